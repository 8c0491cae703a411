package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gad/device"
	"gad/model"
)

// scored is an entry of prompt_logprobs.
type scored struct {
	Logprob float32
	Rank    int
	Decoded *string `json:"decoded_token"`
}

// scoredOut is what the tests read of an answer with prompt_logprobs.
type scoredOut struct {
	Scores  []map[string]scored `json:"prompt_logprobs"` // of a chat
	Prompt  []int32             `json:"prompt_token_ids"`
	Choices []struct {
		Text     string
		Finish   string              `json:"finish_reason"`
		Scores   []map[string]scored `json:"prompt_logprobs"`
		Prompt   []int32             `json:"prompt_token_ids"`
		IDs      []int32             `json:"token_ids"`
		Logprobs *struct {
			Logp []*float32           `json:"token_logprobs"`
			Top  []map[string]float32 `json:"top_logprobs"`
		}
	}
	Usage struct {
		Completion int `json:"completion_tokens"`
	}
}

func (r *running) scored(path, body string) (a scoredOut) {
	r.t.Helper()
	status, raw, _ := r.send("POST", path, body)
	if err := json.Unmarshal([]byte(raw), &a); status != 200 || err != nil {
		r.t.Fatalf("%s: %d %s", body, status, raw)
	}
	return a
}

// ranked are the prompts' tokens as the engine of the same model ranks them, without a server, and
// their log-probabilities as a training pass computes them.
func ranked(t *testing.T, vocab int, prompts [][]int32, top int) (tokens [][]model.Token,
	logp [][]float32) {
	t.Helper()
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, shape(vocab), model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	e, err := m.NewEngine(model.EngineOptions{Pages: 64, Longest: 512})
	if err != nil {
		t.Fatal(err)
	}
	for _, ids := range prompts {
		if err := e.Submit(&model.Request{Prompt: ids, N: 1, Top: top,
			Echo: func(list []model.Token) {
				tokens = append(tokens,
					slices.Clone(list))
			}}); err != nil {
			t.Fatal(err)
		}
		for !e.Idle() {
			if err := e.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.Close()
	for _, ids := range prompts {
		one := []float32{}
		if len(ids) > 1 {
			list, _, err := m.LogProbs([]model.Seq{model.Answer(ids, 1)}, 1)
			if err != nil {
				t.Fatal(err)
			}
			one = slices.Clone(list[0])
		}
		logp = append(logp, one)
	}
	return tokens, logp
}

// prompt_logprobs are the model's, to the bit those of its engine and of echo, whatever the
// temperature, the alternatives, the prompts beside it and what the cache has; the token itself is
// always among them, with its rank.
func TestPromptLogprobs(t *testing.T) {
	t.Parallel()
	r := run(t, Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	prompts := [][]int32{{7}, {5, 6}, r.tok.EncodeSpecial("Hä 世界 🙂 text <|im_end|> end")}
	var long []int32
	for range 90 {
		long = append(long, rng.Int32N(int32(r.tok.Size())))
	}
	prompts = append(prompts, long, append(slices.Clone(long[:50]), 3, 4, 5))
	want, trained := ranked(t, r.tok.Size(), prompts, topMost)
	list, _ := json.Marshal(prompts)
	worst, outside := 0.0, 0
	for _, k := range []int{0, 1, 5, 64, 20, 64, 0} {
		for _, more := range []string{`,"max_tokens":1,"temperature":0.3`, `,"max_tokens":0`,
			`,"max_tokens":2,"n":2,"logprobs":3`, `,"max_tokens":0,"echo":true,"logprobs":2`} {
			body := fmt.Sprintf(`{"prompt":%s,"prompt_logprobs":%d,"seed":1%s}`, list, k, more)
			a := r.scored("/v1/completions", body)
			n := len(a.Choices) / len(prompts)
			for i, c := range a.Choices {
				ids, tokens := prompts[i/n], want[i/n]
				if len(c.Scores) != len(ids) || c.Scores[0] != nil {
					t.Fatalf("k %d%s: choice %d: %d entries for %d tokens: %v", k, more, i,
						len(c.Scores), len(ids), c.Scores)
				}
				for at, w := range tokens {
					entry := c.Scores[at+1]
					own, ok := entry[strconv.Itoa(int(ids[at+1]))]
					if !ok || own.Logprob != w.Logp || own.Rank != int(w.Rank) ||
						own.Decoded == nil {
						t.Fatalf("k %d%s: choice %d: token %d: %+v, want %v", k, more, i, at+1,
							entry, w)
					}
					worst = max(worst, math.Abs(float64(own.Logprob-trained[i/n][at])))
					entries := k
					if own.Rank > k {
						entries, outside = k+1, outside+1
					}
					if len(entry) != entries {
						t.Fatalf("k %d: token %d: %d entries, want %d", k, at+1, len(entry),
							entries)
					}
					for rank, x := range w.Top[:k] {
						if e := entry[strconv.Itoa(int(x.ID))]; e.Logprob != x.Logp ||
							e.Rank != rank+1 || e.Decoded == nil {
							t.Fatalf("k %d: token %d: %d is %+v, want %v, rank %d", k, at+1, x.ID,
								e, x, rank+1)
						}
					}
				}
				if l := c.Logprobs; strings.Contains(more, "echo") {
					for at := 1; at < len(ids); at++ {
						if *l.Logp[at] != c.Scores[at][strconv.Itoa(int(ids[at]))].Logprob {
							t.Errorf("k %d: token %d: echo has %g", k, at, *l.Logp[at])
						}
						if len(l.Top[at]) > 3 {
							t.Errorf("k %d: token %d: %d alternatives of logprobs 2", k, at,
								len(l.Top[at]))
						}
					}
				} else if l != nil && (len(l.Logp) < 1 || len(l.Top[0]) > 4) {
					t.Errorf("k %d: logprobs %+v", k, l)
				}
			}
			if strings.Contains(more, `"max_tokens":0`) && (a.Usage.Completion != 0 ||
				a.Choices[0].Finish != "length") {
				t.Errorf("scores only: %+v", a)
			}
		}
	}
	if outside == 0 {
		t.Error("no token is outside the alternatives: the test shows little")
	}
	t.Logf("the largest difference to a training pass: %.2g nat", worst)
	if worst > 1e-5 {
		t.Errorf("%g nat off a training pass", worst)
	}
}

// The form is vLLM's, letter by letter: an object from ids, the token itself first. Of a chat it
// stands beside the choices.
func TestPromptLogprobsExactly(t *testing.T) {
	r := run(t, Options{})
	ids := []int32{5, r.tok.Encode("世")[0], 9}
	want, _ := ranked(t, r.tok.Size(), [][]int32{ids}, 2)
	entry := func(id int32, logp float32, rank int32) string {
		text, _ := json.Marshal(r.tok.Decode([]int32{id}, false))
		number, _ := json.Marshal(logp)
		return fmt.Sprintf(`"%d":{"logprob":%s,"rank":%d,"decoded_token":%s}`, id, number, rank, text)
	}
	list := "[null"
	for i, w := range want[0] {
		list += ",{" + entry(ids[i+1], w.Logp, w.Rank)
		for k, c := range w.Top {
			if c.ID != ids[i+1] {
				list += "," + entry(c.ID, c.Logp, int32(k+1))
			}
		}
		list += "}"
	}
	raw, _ := json.Marshal(ids)
	_, got, _ := r.send("POST", "/v1/completions", fmt.Sprintf(`{"prompt":%s,"prompt_logprobs":2,"max_tokens":0}`, raw))
	if s := `{"choices":[{"finish_reason":"length","index":0,"logprobs":null,"prompt_logprobs":` + list + `],"text":""}],`; !strings.HasPrefix(got, s) {
		t.Errorf("got %s\nwant %s...", got, s)
	}
	const chat = `{"messages":[{"role":"user","content":"x"}],"max_tokens":0,"prompt_logprobs":1,"return_token_ids":true}`
	a := r.scored("/v1/chat/completions", chat)
	tokens, _ := ranked(t, r.tok.Size(), [][]int32{a.Prompt}, 1)
	if len(a.Scores) != len(a.Prompt) || len(a.Choices) != 1 || a.Choices[0].Scores != nil ||
		a.Choices[0].Prompt != nil || a.Choices[0].IDs == nil || len(a.Choices[0].IDs) != 0 ||
		a.Choices[0].Finish != "length" {
		t.Fatalf("a chat: %+v", a)
	}
	for i, w := range tokens[0] {
		if e := a.Scores[i+1][strconv.Itoa(int(w.ID))]; e.Logprob != w.Logp {
			t.Errorf("a chat: token %d: %+v, want %v", i+1, e, w)
		}
	}
	if r.meter.pages.Load() == 0 || a.Usage.Completion != 0 {
		t.Errorf("%+v", a)
	}
}

// Token ids of prompts and answers: what is drawn comes back as it was, by text and by ids, at
// once and streamed; a prompt of ids that is sent with its answer's is scored as it was drawn.
func TestTokenIDs(t *testing.T) {
	r := run(t, Options{})
	for i := range 12 {
		body := fmt.Sprintf(`"seed":%d,"max_tokens":%d,"n":2,"return_token_ids":true,"return_tokens_as_token_ids":true,"ignore_eos":%t`, i, 1+i*2, i%2 == 0)
		if i%3 == 1 {
			body += `,"stop":["e","\ufffd\ufffd"]`
		}
		// A completion of texts: ids of the prompt with each choice.
		ask := `{"prompt":["Hä 世","x"],"logprobs":0,` + body
		if i%4 == 2 {
			ask = `{"prompt":["Hä 世","x"],"logprobs":0,"echo":true,` + body
		}
		_, raw, _ := r.send("POST", "/v1/completions", ask+`}`)
		var whole answerIDs
		if err := json.Unmarshal([]byte(raw), &whole); err != nil {
			t.Fatal(err)
		}
		for k, c := range whole.Choices {
			prompt := r.tok.EncodeSpecial([]string{"Hä 世", "x"}[k/2])
			named := c.named(t)
			if i%4 == 2 {
				if !slices.Equal(named[:len(prompt)], prompt) {
					t.Errorf("%d: the echo's names %v, want %v", i, named, prompt)
				}
				named = named[len(prompt):]
			}
			if !slices.Equal(c.Prompt, prompt) || len(c.IDs) == 0 || !slices.Equal(named, c.IDs) {
				t.Errorf("%d: choice %d: %+v", i, k, c)
			}
			// The sum of what was drawn is that of a scoring request.
			sequence, _ := json.Marshal(append(slices.Clone(prompt), c.IDs...))
			a := r.scored("/v1/completions", fmt.Sprintf(`{"prompt":%s,"prompt_logprobs":0,"max_tokens":1,"temperature":0}`, sequence))
			drawn := r.ask("/v1/completions", ask+`}`).Choices[k].Logprobs.Logp
			drawn = drawn[len(drawn)-len(c.IDs):]
			for at, id := range c.IDs {
				if x := a.Choices[0].Scores[len(prompt)+at][strconv.Itoa(
					int(id))].Logprob; x != *drawn[at] {
					t.Errorf("%d: choice %d: token %d: scored %g, drawn with %g", i, k, at, x,
						*drawn[at])
				}
			}
		}
		_, raw, _ = r.send("POST", "/v1/completions", ask+`,"stream":true}`)
		parts := make([]choiceIDs, 4)
		for _, line := range strings.Split(strings.TrimSpace(raw), "\n\n") {
			if line = strings.TrimPrefix(line, "data: "); line == "[DONE]" {
				break
			}
			var e struct {
				Choices []struct {
					Index int
					choiceIDs
				}
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			p, c := &parts[e.Choices[0].Index], e.Choices[0]
			if (p.Prompt == nil) != (c.Prompt != nil) {
				t.Errorf("%d: the prompt's ids are in the first event alone: %s", i, line)
			}
			if p.IDs = append(p.IDs, c.IDs...); c.Prompt != nil {
				p.Prompt = c.Prompt
			}
		}
		for k, p := range parts {
			if w := whole.Choices[k]; !slices.Equal(p.IDs, w.IDs) ||
				!slices.Equal(p.Prompt, w.Prompt) {
				t.Errorf("%d: choice %d streamed %+v, whole %+v", i, k, p, w)
			}
		}
	}
	// Nothing of it where it is not asked for.
	for _, body := range []string{`{"prompt":"x","max_tokens":3}`,
		`{"prompt":"x","max_tokens":3,"return_token_ids":false,"prompt_logprobs":null}`} {
		if _, raw, _ := r.send("POST", "/v1/completions", body); strings.Contains(raw,
			"token_ids") ||
			strings.Contains(raw, "prompt_logprobs") {
			t.Errorf("%s: %s", body, raw)
		}
	}
}

// What is asked too much of is refused by its name.
func TestHostileScores(t *testing.T) {
	r := run(t, Options{Context: 512})
	many, _ := json.Marshal(slices.Repeat([][]int32{slices.Repeat([]int32{5}, 500)}, 128))
	const chat = `{"messages":[{"role":"user","content":"x"}],`
	for _, c := range []struct{ path, body, param, message string }{
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":65}`, "prompt_logprobs", "prompt_logprobs: 65: must be from 0 to 64"},
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":-1}`, "prompt_logprobs", "prompt_logprobs: -1: must be from 0 to 64"},
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":true}`, "prompt_logprobs", "prompt_logprobs: must be an integer"},
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":1.5}`, "prompt_logprobs", "prompt_logprobs: must be an integer"},
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":0,"stream":true}`, "prompt_logprobs", "prompt_logprobs: are not streamed: leave stream out, or give false"},
		{"/v1/completions", `{"prompt":"x","prompt_logprobs":0,"max_tokens":-1}`, "max_tokens", "max_tokens: -1: must be from 0 to 1073741824"},
		{"/v1/completions", `{"prompt":"x","return_token_ids":1}`, "return_token_ids", "return_token_ids: must be true or false"},
		{"/v1/completions", `{"prompt":"x","return_tokens_as_token_ids":"yes"}`, "return_tokens_as_token_ids", "return_tokens_as_token_ids: must be true or false"},
		{"/v1/completions", `{"prompt":` + string(many) + `,"prompt_logprobs":64,"max_tokens":0}`, "prompt_logprobs", "prompt_logprobs: 4151680 log-probabilities: at most 2097152 are given to a request: send fewer prompts, or ask for fewer alternatives"},
		{"/v1/completions", `{"prompt":` + string(many) + `,"prompt_logprobs":20,"max_tokens":0,"n":2}`, "prompt_logprobs", "prompt_logprobs: 2682624 log-probabilities: at most 2097152 are given to a request: send fewer prompts, or ask for fewer alternatives"},
		{"/v1/completions", `{"prompt":` + string(many) + `,"logprobs":64,"max_tokens":0,"echo":true}`, "logprobs", "logprobs: 4151680 log-probabilities: at most 2097152 are given to a request: send fewer prompts, or ask for fewer alternatives"},
		{"/v1/chat/completions", chat + `"max_tokens":0}`, "max_tokens", "max_tokens: 0: must be from 1 to 1073741824"},
		{"/v1/chat/completions", chat + `"prompt_logprobs":99}`, "prompt_logprobs", "prompt_logprobs: 99: must be from 0 to 64"},
		{"/v1/completions", `{"prompt":"x","tools":[]}`, "", ""},
		{"/v1/completions", `{"prompt":"x","tools":[{}]}`, "tools", "tools: is not supported: leave it out, or give []"},
	} {
		status, raw, _ := r.send("POST", c.path, c.body)
		var e struct {
			Error struct{ Message, Param string }
		}
		if json.Unmarshal([]byte(raw), &e); c.message == "" {
			if status != 200 {
				t.Errorf("%.200s: %d %s", c.body, status, raw)
			}
			continue
		}
		if status != 400 || e.Error.Param != c.param || e.Error.Message != c.message {
			t.Errorf("%.200s:\n got %d %q %q\nwant %q %q", c.body, status, e.Error.Param,
				e.Error.Message, c.param, c.message)
		}
	}
}
