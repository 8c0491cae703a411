package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/device"
	"gad/model"
	"gad/tokenizer"
)

// running is a server that answers.
type running struct {
	*Server
	t    testing.TB
	url  string
	stop func() error // and waits
	m    *model.Model
	mu   sync.Mutex
	said []string // to the log

	breaks bool // it is to end with an error
}

// shape is a small model with random weights, whose text is often no UTF-8.
func shape(vocab int) model.Config {
	return model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: 8, FFN: 48, Vocab: vocab, MaxPosition: 512,
		RMSEps: 1e-5, RopeTheta: 1e4, QKVBias: true, InitRange: 0.3, TieEmbeddings: true}
}

func run(t testing.TB, o Options) *running {
	t.Helper()
	return runOf(t, o, false)
}

// runOf is run, of a model with a final norm of NaNs if it is broken.
func runOf(t testing.TB, o Options, broken bool) *running {
	t.Helper()
	return runWith(t, o, broken, "qwen2")
}

func runWith(t testing.TB, o Options, broken bool, tokens string) *running {
	t.Helper()
	tok, err := tokenizer.Load("../../testdata/tokenizer/" + tokens)
	if err != nil {
		t.Fatal(err)
	}
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(be, shape(tok.Size()), model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params() {
		if broken && p.Name == "model.norm.weight" {
			be.Upload(p.W, slices.Repeat([]float32{float32(math.NaN())}, p.Len()))
			be.Refresh(p)
		}
	}
	r := &running{t: t, m: m}
	if o.Name == "" {
		o.Name = "tiny"
	}
	o.Log = func(line string) { r.mu.Lock(); r.said = append(r.said, line); r.mu.Unlock() }
	o.Loopback = true
	if r.Server, err = New(m, tok, o); err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, l) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			m.Close()
			be.Close()
			return err
		case <-time.After(time.Minute):
			return fmt.Errorf("the server does not end")
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); (err != nil) != r.breaks {
			t.Error(err)
		}
	})
	return r
}

// send sends a body and returns what is answered.
func (r *running) send(method, path, body string,
	headers ...string) (status int, answer string, h http.Header) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(raw), res.Header
}

// choiceOut and answerOut are what the tests read of answers.
type choiceOut struct {
	Index   int    `json:"index"`
	Text    string `json:"text"`
	Message struct {
		Role, Content string
	} `json:"message"`
	Delta    struct{ Role, Content string } `json:"delta"`
	Finish   *string                        `json:"finish_reason"`
	Logprobs *struct {
		Tokens  []string             `json:"tokens"`
		Logp    []*float32           `json:"token_logprobs"`
		Top     []map[string]float32 `json:"top_logprobs"`
		Offset  []int                `json:"text_offset"`
		Content []struct {
			Token   string
			Logprob float32
			Bytes   []byte2
			Top     []struct {
				Token   string
				Logprob float32
			} `json:"top_logprobs"`
		} `json:"content"`
	} `json:"logprobs"`
}

type byte2 int

type answerOut struct {
	ID, Object, Model string
	Choices           []choiceOut
	Usage             *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	} `json:"usage"`
}

// ask sends a body that is answered.
func (r *running) ask(path, body string) answerOut {
	r.t.Helper()
	status, raw, _ := r.send("POST", path, body)
	if status != 200 {
		r.t.Fatalf("%s %s: %d %s", path, body, status, raw)
	}
	var a answerOut
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		r.t.Fatalf("%v: %s", err, raw)
	}
	return a
}

// events reads a stream to its [DONE].
func (r *running) events(path, body string) (list []answerOut) {
	r.t.Helper()
	status, raw, h := r.send("POST", path, body)
	if status != 200 || h.Get("Content-Type") != "text/event-stream" {
		r.t.Fatalf("%s: %d %v %s", body, status, h, raw)
	}
	blocks := strings.Split(strings.TrimSuffix(raw, "\n\n"), "\n\n")
	for i, b := range blocks {
		data, ok := strings.CutPrefix(b, "data: ")
		if !ok || strings.Contains(data, "\n") || (data == "[DONE]") != (i == len(blocks)-1) {
			r.t.Fatalf("event %d of %d: %q", i, len(blocks), b)
		}
		if data == "[DONE]" {
			break
		}
		var a answerOut
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			r.t.Fatalf("%v: %s", err, data)
		}
		list = append(list, a)
	}
	return list
}

// generated is what the model itself answers, without a server.
func (r *running) generated(tok *tokenizer.Tokenizer, prompt []int32, n, limit int, seed uint64,
	s model.Sampling) []model.Completion {
	r.t.Helper()
	be, err := device.Open(device.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, shape(tok.Size()), model.Options{Seed: 3})
	if err != nil {
		r.t.Fatal(err)
	}
	defer m.Close()
	out, err := m.Generate([][]int32{prompt}, []uint64{0},
		model.SampleOptions{N: n, MaxNew: limit, EOS: tok.EOS(), Seed: seed, Sampling: s}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return out[0]
}

// A chat's answers are those of Generate (and so of gad generate) with the same seed,
// streamed and whole.
func TestChatIsGenerate(t *testing.T) {
	r := run(t, Options{})
	prompt, err := r.tok.ChatPrompt(
		[]tokenizer.Message{{Role: "system", Content: "Be brief."},
			{Role: "user", Content: "Hello 世界"}})
	if err != nil {
		t.Fatal(err)
	}
	body := func(more string) string {
		return `{"model":"tiny","messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hello "},{"type":"text","text":"世界"}]}],"max_completion_tokens":40,"n":3,"seed":-5,"temperature":0.9,"top_p":0.95,"top_k":200` + more + `}`
	}
	seed := int64(-5)
	want := r.generated(r.tok, prompt, 3, 40, uint64(seed),
		model.Sampling{Temperature: 0.9, TopP: 0.95, TopK: 200})
	a := r.ask("/v1/chat/completions", body(""))
	tokens := 0
	for i, w := range want {
		tokens += len(w.IDs)
		c := a.Choices[i]
		finish := "stop"
		if w.Truncated {
			finish = "length"
		}
		if text := r.tok.Decode(w.IDs, true); c.Index != i || c.Message.Content != text ||
			c.Message.Role != "assistant" || *c.Finish != finish || c.Logprobs != nil {
			t.Errorf("choice %d: %+v, want %q, %s", i, c, text, finish)
		}
	}
	if a.Object != "chat.completion" || a.Model != "tiny" || a.Usage.Prompt != len(prompt) ||
		a.Usage.Completion != tokens || a.Usage.Total != len(prompt)+tokens {
		t.Errorf("%+v, want %d + %d tokens", a, len(prompt), tokens)
	}
	list := r.events("/v1/chat/completions", body(`,"stream":true,"stream_options":{"include_usage":true}`))
	texts, finish := make([]string, 3), make([]string, 3)
	for i, e := range list {
		if e.Object != "chat.completion.chunk" || e.ID != list[0].ID {
			t.Errorf("event %d: %+v", i, e)
		}
		if i == len(list)-1 {
			if len(e.Choices) != 0 || e.Usage == nil || !reflect.DeepEqual(e.Usage, a.Usage) {
				t.Errorf("the last event: %+v, want %+v", e.Usage, a.Usage)
			}
			break
		}
		c := e.Choices[0]
		if i < 3 && (c.Index != i || c.Delta.Role != "assistant") || e.Usage != nil {
			t.Errorf("event %d: %+v", i, e)
		}
		if texts[c.Index] += c.Delta.Content; c.Finish != nil {
			finish[c.Index] = *c.Finish
		}
	}
	for i, c := range a.Choices {
		if texts[i] != c.Message.Content || finish[i] != *c.Finish {
			t.Errorf("choice %d streamed: %q %s, whole %q %s", i, texts[i], finish[i],
				c.Message.Content, *c.Finish)
		}
	}
	if len(list) < 20 {
		t.Errorf("%d events of %d tokens: it is not streamed as it comes", len(list), tokens)
	}
}

// Completions: texts and ids, several prompts, echo and log-probabilities as
// lm-evaluation-harness asks for them.
func TestCompletions(t *testing.T) {
	r := run(t, Options{Slots: 3})
	texts := []string{"Hello world", "The turn is left", "x"}
	var lists [][]int32
	for _, s := range texts {
		lists = append(lists, r.tok.EncodeSpecial(s))
	}
	raw, _ := json.Marshal(lists)
	words, _ := json.Marshal(texts)
	const rest = `,"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true}`
	byIDs := r.ask("/v1/completions", `{"model":"tiny","prompt":`+string(raw)+rest)
	byText := r.ask("/v1/completions", `{"model":"tiny","prompt":`+string(words)+rest)
	if !reflect.DeepEqual(byIDs.Choices, byText.Choices) {
		t.Errorf("by ids %+v, by texts %+v", byIDs.Choices, byText.Choices)
	}
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, shape(r.tok.Size()), model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i, ids := range lists {
		c := byIDs.Choices[i]
		l := c.Logprobs
		if n := len(ids) + 1; len(l.Tokens) != n || len(l.Logp) != n || len(l.Top) != n ||
			len(l.Offset) != n || l.Logp[0] != nil || l.Top[0] != nil {
			t.Fatalf("prompt %d: %+v: want %d tokens, the first without log-probability", i, l, n)
		}
		if !strings.HasPrefix(c.Text, texts[i]) || c.Index != i || *c.Finish != "length" {
			t.Errorf("prompt %d: %+v", i, c)
		}
		want, _, err := m.LogProbs([]model.Seq{model.Answer(ids, 1)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for k := 1; k < len(l.Logp); k++ {
			best := float32(math.Inf(-1))
			for _, x := range l.Top[k] {
				best = max(best, x)
			}
			if k < len(ids) {
				if d := math.Abs(float64(*l.Logp[k] - want[0][k-1])); d > 1e-5 {
					t.Errorf("prompt %d: token %d: %g, want %g", i, k, *l.Logp[k], want[0][k-1])
				}
			} else if *l.Logp[k] != best { // it was drawn greedily
				t.Errorf("prompt %d: the drawn token has %g, the best %g", i, *l.Logp[k], best)
			}
			if x, ok := l.Top[k][l.Tokens[k]]; !ok || x != *l.Logp[k] &&
				l.Tokens[k] == strings.ToValidUTF8(l.Tokens[k], "") && x < *l.Logp[k] {
				t.Errorf("prompt %d: token %d, %q with %g, is not in %v", i, k, l.Tokens[k],
					*l.Logp[k], l.Top[k])
			}
			if strings.HasPrefix(l.Tokens[k], "bytes:") {
				continue
			}
			if at := []rune(c.Text + "\ufffd\ufffd\ufffd\ufffd")[l.Offset[k]:]; k < len(ids) &&
				!strings.HasPrefix(string(at), l.Tokens[k]) {
				t.Errorf("prompt %d: token %d, %q, is not at %d of %q", i, k, l.Tokens[k],
					l.Offset[k], c.Text)
			}
		}
	}
	if u := byIDs.Usage; u.Prompt != len(lists[0])+len(lists[1])+len(lists[2]) ||
		u.Completion != 3 {
		t.Errorf("usage %+v", u)
	}

	// Only the prompt's; one list of ids; several answers to several prompts.
	c := r.ask("/v1/completions", `{"prompt":`+string(raw)+`,"echo":true,"logprobs":0,"max_tokens":0}`).Choices[1]
	if c.Text != texts[1] || len(c.Logprobs.Logp) != len(lists[1]) ||
		!reflect.DeepEqual(c.Logprobs.Logp, byIDs.Choices[1].Logprobs.Logp[:len(lists[1])]) ||
		len(c.Logprobs.Top[1]) != 0 {
		t.Errorf("only the prompt: %+v", c)
	}
	one, _ := json.Marshal(lists[0])
	single := r.ask("/v1/completions", `{"prompt":`+string(one)+`,"seed":7,"max_tokens":9,"n":2}`)
	several := r.ask("/v1/completions", `{"prompt":[`+string(one)+`,[5]],"seed":7,"max_tokens":9,"n":2}`)
	if len(single.Choices) != 2 || len(several.Choices) != 4 ||
		!reflect.DeepEqual(single.Choices, several.Choices[:2]) {
		t.Errorf("one prompt %+v, among several %+v", single.Choices, several.Choices)
	}
	if single.Choices[0].Text == single.Choices[1].Text {
		t.Error("two samples are the same")
	}
	if same := r.ask("/v1/completions", `{"prompt":[[5],[5]],"seed":7,"max_tokens":9}`).Choices; same[0].Text == same[1].Text {
		t.Errorf("two prompts of a request have the same draws: %+v", same)
	}
	var streamed [4]string
	for _, e := range r.events("/v1/completions", `{"prompt":[`+string(one)+`,[5]],"seed":7,"max_tokens":9,"n":2,"stream":true,"echo":true}`) {
		streamed[e.Choices[0].Index] += e.Choices[0].Text
	}
	for i, s := range streamed {
		if want := r.tok.Decode([][]int32{lists[0], {5}}[i/2], false) +
			several.Choices[i].Text; s != want {
			t.Errorf("choice %d streamed: %q, want %q", i, s, want)
		}
	}
}

// An answer ends before the first stop, whatever tokens it falls into; nothing of it, and
// nothing of its beginning, is ever sent.
func TestStop(t *testing.T) {
	r := run(t, Options{})
	const body = `{"prompt":"Once","seed":3,"max_tokens":60,"ignore_eos":true`
	whole := r.ask("/v1/completions", body+`}`).Choices[0].Text
	rs := []rune(whole)
	for at := 1; at+3 < len(rs); at += 5 {
		stop := string(rs[at : at+3])
		if strings.Contains(stop, "\ufffd") {
			continue
		}
		raw, _ := json.Marshal([]string{"not in there at all", stop, stop + "beyond"})
		want := whole[:strings.Index(whole, stop)]
		a := r.ask("/v1/completions", body+`,"stop":`+string(raw)+`}`)
		if c := a.Choices[0]; c.Text != want || *c.Finish != "stop" {
			t.Errorf("stop %q: %q %s, want %q", stop, c.Text, *c.Finish, want)
		}
		got := ""
		for _, e := range r.events("/v1/completions", body+`,"stream":true,"stop":`+string(raw)+`}`) {
			if got += e.Choices[0].Text; !strings.HasPrefix(want, got) {
				t.Errorf("stop %q: %q was sent", stop, got)
			}
		}
		if got != want {
			t.Errorf("stop %q: streamed %q, want %q", stop, got, want)
		}
	}
	// The beginning of a stop that does not come is sent in the end.
	raw, _ := json.Marshal(string(rs[len(rs)-1:]) + "more")
	if c := r.ask("/v1/completions", body+`,"stop":`+string(raw)+`}`).Choices[0]; c.Text != whole || *c.Finish != "length" {
		t.Errorf("%q %s, want %q", c.Text, *c.Finish, whole)
	}
}

// take finds the first of the stops, however the text is cut, and holds back only what may
// be the beginning of one.
func TestTake(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		random := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = "ab"[rng.IntN(2)]
			}
			return string(b)
		}
		text, stops :=
			random(rng.IntN(12)), []string{random(1 + rng.IntN(4)), random(1 + rng.IntN(5))}
		want, found := text, false
		for end := 1; end <= len(text) && !found; end++ {
			for _, s := range stops {
				if strings.HasSuffix(text[:end], s) && (!found || end-len(s) < len(want)) {
					want, found = text[:end-len(s)], true
				}
			}
		}
		c, got, stopped := &choice{stops: stops}, "", false
		for at := 0; at < len(text) && !stopped; {
			n := 1 + rng.IntN(len(text)-at)
			var out string
			out, stopped = c.take(text[at : at+n])
			got += out
			at += n
			if strings.HasPrefix(want, got) {
				continue
			}
			t.Fatalf("%q, stops %q: %q was let through", text, stops, got)
		}
		if !stopped {
			got += c.pending
		}
		if stopped != found || got != want {
			t.Fatalf("%q, stops %q: %q %t, want %q %t", text, stops, got, stopped, want, found)
		}
	}
}

// What a request is answered does not depend on the others: eight clients at once, with
// different settings, get what each gets alone.
func TestConcurrentClients(t *testing.T) {
	r := run(t, Options{Slots: 5, Context: 256, Cache: 700})
	var bodies []string
	for i := range 24 {
		bodies = append(bodies, fmt.Sprintf(`{"prompt":%q,"seed":%d,"max_tokens":%d,"temperature":%v,"top_p":%v,"n":%d,"logprobs":%d,"echo":%t}`,
			strings.Repeat("word ", i%7+1), i, 5+i%40, []float64{0, 0.7, 1, 1.3}[i%4],
			[]float64{1, 0.9}[i%2], 1+i%3, i%6, i%5 == 0))
	}
	var alone []answerOut
	for _, b := range bodies {
		alone = append(alone, r.ask("/v1/completions", b))
	}
	together := make([]answerOut, len(bodies))
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() {
			for i := range bodies {
				if i%8 == client {
					together[i] = r.ask("/v1/completions", bodies[i])
				}
			}
		})
	}
	wg.Wait()
	for i := range bodies {
		if !reflect.DeepEqual(alone[i].Choices, together[i].Choices) {
			t.Errorf("%s:\nalone    %+v\ntogether %+v", bodies[i], alone[i].Choices,
				together[i].Choices)
		}
	}
	r.settled()
}

// settled waits until the engine has nothing to do and nothing taken.
func (r *running) settled() {
	r.t.Helper()
	for range 6000 {
		m := r.meter
		if m.running.Load() == 0 && m.waiting.Load() == 0 && m.taken.Load() == 0 &&
			r.busy.Load() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("%d run, %d wait, %d pages are taken, %d requests are under way",
		r.meter.running.Load(), r.meter.waiting.Load(), r.meter.taken.Load(), r.busy.Load())
}

// refused are requests, what is answered and why.
var refused = []struct {
	path, body string
	status     int
	param      string
	message    string
}{
	{"/v1/completions", `{"prompt":`, 400, "", "the body is not a JSON object: it ends at byte 10, too early"},
	{"/v1/completions", `{"prompt":"x",}`, 400, "", "the body is not a JSON object: byte 15: invalid character '}' looking for beginning of object key string"},
	{"/v1/completions", `{'prompt':"x"}`, 400, "", `the body is not a JSON object: byte 2: invalid character '\'' looking for beginning of object key string`},
	{"/v1/completions", `[1]`, 400, "", "the body is not a JSON object"},
	{"/v1/completions", `null`, 400, "", "the body is not a JSON object"},
	{"/v1/completions", `{"prompt":"x"} {}`, 400, "", "the body has something behind its JSON object"},
	{"/v1/completions", `{}`, 400, "prompt", "prompt: is missing"},
	{"/v1/completions", `{"prompt":""}`, 400, "prompt", "prompt: is empty: give at least one token"},
	{"/v1/completions", `{"prompt":[]}`, 400, "prompt", "prompt: must be a string, a list of strings, a list of token ids or a list of such lists"},
	{"/v1/completions", `{"prompt":[[1],[]]}`, 400, "prompt", "prompt 1: prompt: is empty: give at least one token"},
	{"/v1/completions", `{"prompt":[1,"x"]}`, 400, "prompt", "prompt: must be a string, a list of strings, a list of token ids or a list of such lists"},
	{"/v1/completions", `{"prompt":[1,-1]}`, 400, "prompt", "prompt: prompt 0: token 1: id -1 is outside the vocabulary of 1514"},
	{"/v1/completions", `{"prompt":"x"}}`, 400, "", "the body has something behind its JSON object"},
	{"/v1/completions", "{\"prompt\":\"\xe4x\"}", 400, "", "the body is not UTF-8 text"},
	{"/v1/completions", `{"prompt":[1,null]}`, 400, "prompt", "prompt: has a null among the texts or token ids"},
	{"/v1/completions", `{"prompt":[[1],[2, null ]]}`, 400, "prompt", "prompt: has a null among the texts or token ids"},
	{"/v1/completions", `{"prompt":["a",null]}`, 400, "prompt", "prompt: has a null among the texts or token ids"},
	{"/v1/completions", `{"prompt":[1514]}`, 400, "prompt", "prompt: prompt 0: token 0: id 1514 is outside the vocabulary of 1514"},
	{"/v1/completions", `{"prompt":"x","max_tokens":300}`, 400, "prompt", "prompt: 1 token and an answer of 300 are more than the 256 that this server takes: lower one of the two"},
	{"/v1/completions", `{"prompt":"` + strings.Repeat("x ", 400) + `","max_tokens":1}`, 400, "prompt", "prompt: has more than the 256 tokens that this server takes with an answer: shorten it"},
	{"/v1/completions", `{"prompt":["x","` + strings.Repeat("x ", 400) + `"],"max_tokens":1}`, 400, "prompt", "prompt 1: prompt: has more than the 256 tokens that this server takes with an answer: shorten it"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"` + strings.Repeat("x ", 400) + `"}]}`, 400, "messages", "messages: has more than the 256 tokens that this server takes with an answer: shorten it"},
	{"/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, "max_tokens", "max_tokens: 0: must be from 1 to 1073741824"},
	{"/v1/completions", `{"prompt":"x","max_tokens":1.5}`, 400, "max_tokens", "max_tokens: must be an integer"},
	{"/v1/completions", `{"prompt":"x","n":17}`, 400, "n", "n: 17: must be from 1 to 16"},
	{"/v1/completions", `{"prompt":"x","n":2,"best_of":3}`, 400, "best_of", "best_of: is not supported: leave it out, or give that of n"},
	{"/v1/completions", `{"prompt":"x","temperature":-1}`, 400, "temperature", "temperature: -1: must be from 0 to 2"},
	{"/v1/completions", `{"prompt":"x","temperature":0.001}`, 400, "temperature", "temperature: 0.001: must be 0, which is greedy, or from 0.01 to 2"},
	{"/v1/completions", `{"prompt":"x","temperature":1e999}`, 400, "temperature", "temperature: must be a number"},
	{"/v1/completions", `{"prompt":"x","temperature":"hot"}`, 400, "temperature", "temperature: must be a number"},
	{"/v1/completions", `{"prompt":"x","top_p":0}`, 400, "top_p", "top_p: 0: must be above 0, to 1"},
	{"/v1/completions", `{"prompt":"x","logprobs":65}`, 400, "logprobs", "logprobs: must be an integer from 0 to 64"},
	{"/v1/completions", `{"prompt":"x","seed":1e3}`, 400, "seed", "seed: must be an integer of 64 bits"},
	{"/v1/completions", `{"prompt":"x","stop":""}`, 400, "stop", "stop: a string of 0 bytes: each must have 1 to 1024"},
	{"/v1/completions", `{"prompt":"x","stop":[1]}`, 400, "stop", "stop: must be a string or a list of strings"},
	{"/v1/completions", `{"prompt":"x","stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}`, 400, "stop", "stop: 17 strings: at most 16 are taken"},
	{"/v1/completions", `{"prompt":"x","frequency_penalty":0.5}`, 400, "frequency_penalty", "frequency_penalty: is not supported: leave it out, or give 0"},
	{"/v1/completions", `{"prompt":"x","logit_bias":{"5":1}}`, 400, "logit_bias", "logit_bias: is not supported: leave it out, or give {}"},
	{"/v1/completions", `{"prompt":"x","guided_json":{}}`, 400, "guided_json", "guided_json: is not known here: leave it out"},
	{"/v1/completions", `{"prompt":"x","repetition_penalty":1.1}`, 400, "repetition_penalty", "repetition_penalty: is not supported: leave it out, or give 1"},
	{"/v1/completions", `{"prompt":"x","min_tokens":1}`, 400, "min_tokens", "min_tokens: is not supported: leave it out, or give 0"},
	{"/v1/completions", `{"prompt":"x","stream_options":1}`, 400, "stream_options", "stream_options: must be an object"},
	{"/v1/completions", `{"prompt":"x","stream_options":{"include_obfuscation":true}}`, 400, "include_obfuscation", "include_obfuscation: is not supported: leave it out, or give false"},
	{"/v1/completions", `{"prompt":"x","stream":1}`, 400, "stream", "stream: must be true or false"},
	{"/v1/completions", `{"prompt":"x","stream":true,"stream_options":{"x":1}}`, 400, "x", "x: is not known here: leave it out"},
	{"/v1/completions", `{"prompt":"x","model":"gpt-4"}`, 404, "model", `model: is not served here: give "tiny", or leave it out`},
	{"/v1/completions", `{"prompt":"x","model":4}`, 400, "model", "model: must be a string"},
	{"/v1/completions", `{"prompt":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"],"n":16}`, 400, "prompt", "prompt: 272 answers: at most 256 are given to a request"},
	{"/v1/chat/completions", `{}`, 400, "messages", "messages: is missing"},
	{"/v1/chat/completions", `{"messages":[]}`, 400, "messages", "messages: is empty: give at least one message"},
	{"/v1/chat/completions", `{"messages":[{"role":"function","content":"x"}]}`, 400, "messages", "messages: message 0: role: must be system, user, assistant or tool"},
	{"/v1/chat/completions", `{"messages":[{"role":"user"}]}`, 400, "messages", "messages: message 0: content: must be a string, or a list of parts of type text"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://example.com"}}]}]}`, 400, "messages", "messages: message 0: content: must be a string, or a list of parts of type text"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x","name":3}]}`, 400, "messages", "messages: message 0: name: must be a string"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}`, 400, "tools", `tools: tool 0: must be {"type": "function", "function": {"name": ..., "parameters": {...}}}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"top_logprobs":3}`, 400, "top_logprobs", "top_logprobs: is given without logprobs: give logprobs true"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":65}`, 400, "top_logprobs", "top_logprobs: 65: must be from 0 to 64"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_completion_tokens":6}`, 400, "max_completion_tokens", "max_completion_tokens: and max_tokens differ: give one of them"},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"echo":true}`, 400, "echo", "echo: is not supported: leave it out, or give false"},
	{"/tokenize", `{}`, 400, "prompt", "prompt: give prompt or messages"},
	{"/tokenize", `{"prompt":1}`, 400, "prompt", "prompt: must be a string"},
	{"/tokenize", `{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`, 400, "add_generation_prompt", "add_generation_prompt: is not supported: leave it out, or give true"},
	{"/tokenize", `{"messages":[{"role":"user","content":"x"}],"add_special_tokens":true}`, 400, "add_special_tokens", "add_special_tokens: the chat template says which tokens are around messages: leave it out, or give false"},
	{"/detokenize", `{}`, 400, "tokens", "tokens: is missing"},
	{"/detokenize", `{"tokens":[1,null]}`, 400, "tokens", "tokens: has a null among the ids"},
	{"/detokenize", `{"tokens":[1, null ]}`, 400, "tokens", "tokens: has a null among the ids"},
	{"/detokenize", `{"tokens":null}`, 400, "tokens", "tokens: is missing"},
	{"/detokenize", `{"tokens":[1514]}`, 400, "tokens", "tokens: token 0: id 1514 is outside the vocabulary of 1514"},
	{"/v1/embeddings", `{}`, 404, "", "there is nothing at this path: see doc/serve.md"},
	{"/chat/completions", `{}`, 404, "", "there is nothing at this path: try /v1/chat/completions"},
	{"/v1/tokenize", `{}`, 404, "", "there is nothing at this path: try /tokenize"},
	{"/v1/completions/", `{}`, 404, "", "there is nothing at this path: try /v1/completions"},
	{"/v1/models", `{}`, 405, "", "this path takes GET"},
}

// What cannot be done is refused in the form of OpenAI's errors, and named; nothing of it
// reaches the engine.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := run(t, Options{Context: 256, Body: 2000})
	for _, c := range refused {
		status, raw, h := r.send("POST", c.path, c.body)
		var e struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal([]byte(raw), &e); err != nil {
			t.Errorf("%s: %s", c.body, raw)
			continue
		}
		param := ""
		if e.Error.Param != nil {
			param = *e.Error.Param
		}
		if status != c.status || e.Error.Message != c.message || param != c.param ||
			e.Error.Type != "invalid_request_error" || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s:\n %d %s\nwant %d %s: %s", c.path, c.body, status, raw, c.status,
				c.param, c.message)
		}
	}
	for _, c := range []struct {
		method, path, body, name, value, want string
		status                                int
	}{
		{"POST", "/v1/completions", `{"prompt":"x"}`, "Content-Type", "text/plain", "the Content-Type must be application/json", 415},
		{"POST", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 2000) + `"}`, "Accept", "*/*", "the body has more than 2000 bytes", 413},
		{"GET", "/v1/completions", "", "Accept", "*/*", "this path takes POST", 405},
		{"GET", "/health", "", "Host", "evil.example:80", "the Host header names another machine",
			403},
		{"GET", "/health", "", "Host", "localhost.evil.example",
			"the Host header names another machine", 403},
		{"GET", "/health", "", "Host", "127.0.0.1.evil.example:8000",
			"the Host header names another machine", 403},
		{"GET", "/health", "", "Host", "localhost:8000", `"ok"`, 200},
		{"GET", "/health", "", "Host", "[::1]:8000", `"ok"`, 200},
		{"HEAD", "/health", "", "Accept", "*/*", "", 200},
		{"GET", "/v1/models/tiny", "", "Accept", "*/*", `"id":"tiny"`, 200},
		{"GET", "/v1/models/other", "", "Accept", "*/*", "model: is not served here", 404},
		{"GET", "/v1/models/", "", "Accept", "*/*", "model: is not served here", 404},
		{"POST", "/v1/models/tiny", "{}", "Accept", "*/*", "this path takes GET", 405},
	} {
		status, raw, _ := r.send(c.method, c.path, c.body, c.name, c.value)
		if status != c.status || !strings.Contains(raw, c.want) {
			t.Errorf("%s %s with %s %s: %d %s, want %d %s", c.method, c.path, c.name, c.value,
				status, raw, c.status, c.want)
		}
	}
	if r.meter.steps.Load() != 0 {
		t.Errorf("%d steps for requests that were refused", r.meter.steps.Load())
	}
	// What says what is done anyway, or changes nothing, is taken.
	r.ask("/v1/chat/completions", `{"messages":[{"role":"user","content":"x","tool_calls":null,"refusal":null}],"max_tokens":2,"frequency_penalty":0,"presence_penalty":0.0,"logit_bias":{},"tools":null,"tool_choice":"none","response_format":{ "type": "text" },"user":"u","metadata":{"a":"b"},"stop":null,"seed":null,"n":1,"stream":false,"top_k":-1,"never_heard_of":null}`)
	// As clients of vLLM send their defaults; 1.0 is 1.
	r.ask("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"repetition_penalty":1.0,"length_penalty":1.00,"min_tokens":0,"use_beam_search":false,"skip_special_tokens":true,"add_generation_prompt":true,"continue_final_message":false,"echo":false,"stop_token_ids":[ ],"include_stop_str_in_output":false,"chat_template_kwargs":{},"reasoning_effort":"none","store":false,"service_tier":"auto","parallel_tool_calls":false}`)
	if u := r.ask("/v1/completions", `{"prompt":"x","max_tokens":2,"stream_options":{"include_usage":true}}`).Usage; u == nil || u.Prompt != 1 {
		t.Errorf("usage %+v", u)
	}
	r.ask("/v1/completions", `{"prompt":"x","max_tokens":2,"best_of":1,"suffix":null,"logprobs":false,"temperature":null}`)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.said {
		for _, secret := range []string{"guided_json", "xxxx", "evil", "image_url"} {
			if strings.Contains(line, secret) {
				t.Errorf("the log has %q: %s", secret, line)
			}
		}
	}
}

// With a key every path but /health asks for it.
func TestKey(t *testing.T) {
	const key = "correct horse battery"
	r := run(t, Options{Key: key})
	for path, to := range routes {
		body := ""
		if to.method == "POST" {
			body = `{"prompt":"x","tokens":[1],"messages":[{"role":"user","content":"x"}]}`
		}
		for _, c := range []struct{ value, what string }{{"", "none"}, {"Bearer wrong", "wrong"},
			{"Bearer " + key + "x", "longer"}, {key, "without Bearer"}, {"Bearer ", "empty"},
			{"Basic " + key, "of another scheme"}, {"Bearer  " + key, "with a blank before it"}} {
			status, raw, h := r.send(to.method, path, body, "Authorization", c.value)
			if want := 401; path != "/health" &&
				(status != want || h.Get("WWW-Authenticate") != "Bearer" ||
					strings.Contains(raw, key)) {
				t.Errorf("%s, key %s: %d %s", path, c.what, status, raw)
			} else if path == "/health" && status != 200 {
				t.Errorf("%s, key %s: %d", path, c.what, status)
			}
		}
	}
	// its case does not matter: RFC 9110, 11.1
	for _, scheme := range []string{"Bearer ", "bearer "} {
		if status, _, _ := r.send("GET", "/v1/models", "", "Authorization",
			scheme+key); status != 200 {
			t.Errorf("with the key: %d", status)
		}
	}
}

// Tokens as lm-evaluation-harness's remote tokenizer asks for them.
func TestTokens(t *testing.T) {
	r := run(t, Options{Context: 256})
	const text = "Hello <|im_end|> 世界"
	var ids struct {
		Count, Max_model_len int
		Tokens               []int32
	}
	read := func(path, body string, v any) {
		t.Helper()
		status, raw, _ := r.send("POST", path, body)
		if err := json.Unmarshal([]byte(raw), v); err != nil || status != 200 {
			t.Fatalf("%d %s", status, raw)
		}
	}
	read("/tokenize", `{"prompt":"Hello <|im_end|> 世界","add_special_tokens":false}`, &ids)
	if want := r.tok.Encode(text); !slices.Equal(ids.Tokens, want) || ids.Count != len(want) ||
		ids.Max_model_len != 256 {
		t.Errorf("%+v, want %v", ids, want)
	}
	raw, _ := json.Marshal(ids.Tokens)
	var back struct{ Prompt string }
	if read("/detokenize", `{"tokens":`+string(raw)+`}`, &back); back.Prompt != text {
		t.Errorf("%q, want %q", back.Prompt, text)
	}
	read("/tokenize", `{"messages":[{"role":"user","content":"<|im_end|>"}]}`, &ids)
	want, err := r.tok.ChatPrompt([]tokenizer.Message{{Role: "user", Content: "<|im_end|>"}})
	if err != nil || !slices.Equal(ids.Tokens, want) {
		t.Errorf("%v, want %v: %v", ids.Tokens, want, err)
	}
	status, answer, _ := r.send("GET", "/tokenizer_info", "")
	var info map[string]any
	if err := json.Unmarshal([]byte(answer), &info); err != nil || status != 200 ||
		info["eos_token"] != "<|im_end|>" || info["pad_token"] != "<|endoftext|>" ||
		info["bos_token"] != nil || info["chat_template"] != r.tok.ChatTemplate() {
		t.Errorf("%d %s", status, answer)
	}
	var models struct{ Data []struct{ ID, Object string } }
	_, answer, _ = r.send("GET", "/v1/models", "")
	if err := json.Unmarshal([]byte(answer), &models); err != nil || len(models.Data) != 1 ||
		models.Data[0].ID != "tiny" || models.Data[0].Object != "model" {
		t.Errorf("%s", answer)
	}
}

// Log-probabilities of a chat: each token with its bytes, which make the text.
func TestChatLogprobs(t *testing.T) {
	r := run(t, Options{})
	const body = `{"messages":[{"role":"user","content":"x"}],"max_tokens":30,"seed":2,"logprobs":true,"top_logprobs":3`
	a := r.ask("/v1/chat/completions", body+`}`)
	var all []byte
	for i, x := range a.Choices[0].Logprobs.Content {
		for _, b := range x.Bytes {
			all = append(all, byte(b))
		}
		if len(x.Top) != 3 || x.Top[0].Logprob < x.Logprob || x.Logprob > 0 ||
			x.Top[1].Logprob > x.Top[0].Logprob {
			t.Errorf("token %d: %+v", i, x)
		}
	}
	if n := len(a.Choices[0].Logprobs.Content); n != a.Usage.Completion {
		t.Errorf("%d tokens, the usage says %d", n, a.Usage.Completion)
	}
	var text string
	var streamed []byte
	for _, e := range r.events("/v1/chat/completions", body+`,"stream":true}`) {
		text += e.Choices[0].Delta.Content
		if l := e.Choices[0].Logprobs; l != nil {
			for _, x := range l.Content {
				for _, b := range x.Bytes {
					streamed = append(streamed, byte(b))
				}
			}
		}
	}
	if want := a.Choices[0].Message.Content; !bytes.Equal(streamed, all) || text != want ||
		!strings.HasPrefix(string([]rune(string(all))), want) {
		t.Errorf("streamed %q and %q, whole %q and %q", text, streamed, want, all)
	}
}

// A client that goes away frees what it has; the others are answered as ever.
func TestClientsGoAway(t *testing.T) {
	r := run(t, Options{Slots: 2, Queue: 50})
	want := r.ask("/v1/completions", `{"prompt":"stay","seed":1,"max_tokens":20}`)
	const long = `{"prompt":"go","max_tokens":500,"n":4,"ignore_eos":true,"stream":true}`
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/completions",
				strings.NewReader(long))
			req.Header.Set("Content-Type", "application/json")
			if i%3 == 0 { // before anything has come
				time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			defer res.Body.Close()
			lines := bufio.NewReader(res.Body)
			for range i {
				if _, err := lines.ReadString('\n'); err != nil {
					return
				}
			}
		})
	}
	got := r.ask("/v1/completions", `{"prompt":"stay","seed":1,"max_tokens":20}`)
	if !reflect.DeepEqual(got.Choices, want.Choices) {
		t.Errorf("beside clients that go: %+v, want %+v", got.Choices, want.Choices)
	}
	wg.Wait()
	r.settled()
	// To their ends they take 12 x 4 x 500 tokens, two at a time.
	if steps := r.meter.steps.Load(); steps > 4000 {
		t.Errorf("%d steps for clients that went away", steps)
	}
}

// A client that does not send what it has begun, or nothing at all, is cut off; with all
// connections taken by such clients the next one is answered as soon as one of them is.
func TestSlowClients(t *testing.T) {
	defer func(n int, header, body, idle time.Duration) {
		connections, headerTime, bodyTime, idleTime = n, header, body, idle
	}(connections, headerTime, bodyTime, idleTime)
	connections, headerTime, bodyTime, idleTime =
		3, 300*time.Millisecond, 600*time.Millisecond, 300*time.Millisecond
	r := run(t, Options{})
	begun := time.Now()
	var wg sync.WaitGroup
	for _, text := range []string{
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-",
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n", // refused, and without its body
		"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, text)
		wg.Go(func() {
			conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			raw, err := io.ReadAll(conn)
			if os.IsTimeout(err) {
				t.Errorf("%q: the connection stays open: %q", text, raw)
			}
			if strings.HasSuffix(text, "{") &&
				!strings.Contains(string(raw), "the body cannot be read") {
				t.Errorf("%q: %q", text, raw)
			}
		})
	}
	if status, raw, _ := r.send("GET", "/health", ""); status != 200 {
		t.Errorf("behind slow clients: %d %s", status, raw)
	}
	if took := time.Since(begun); took < 250*time.Millisecond {
		t.Errorf("the next one was answered after %v: connections are not limited", took)
	}
	wg.Wait()
}

// More requests than may wait are refused at once, and told when to come again.
func TestQueueIsBounded(t *testing.T) {
	r := run(t, Options{Slots: 1, Queue: 2})
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			status, raw, h := r.send("POST", "/v1/completions", `{"prompt":"x","max_tokens":400,"ignore_eos":true}`)
			mu.Lock()
			defer mu.Unlock()
			if statuses[status]++; status == 429 &&
				(h.Get("Retry-After") == "" || !strings.Contains(raw, "rate_limit_exceeded")) {
				t.Errorf("%v %s", h, raw)
			}
		})
	}
	wg.Wait()
	if statuses[200] < 3 || statuses[429] == 0 || statuses[200]+statuses[429] != 12 {
		t.Errorf("statuses %v", statuses)
	}
	r.settled()
}

// A server that is stopped lets what is under way end, takes nothing more, and cuts off
// what needs longer than the grace.
func TestStopping(t *testing.T) {
	for _, c := range []struct {
		grace  time.Duration
		tokens int
		whole  bool
	}{{20 * time.Second, 200, true}, {0, 500, false}} {
		r := run(t, Options{Grace: c.grace})
		body := fmt.Sprintf(`{"prompt":"x","max_tokens":%d,"ignore_eos":true,"stream":true,"n":16}`, c.tokens)
		res, err := http.Post(r.url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(res.Body)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(lines)
		res.Body.Close()
		if whole := bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")); whole != c.whole {
			t.Errorf("grace %v: whole is %t: ... %q", c.grace, whole, rest[max(0, len(rest)-300):])
		}
		if !c.whole && !bytes.Contains(rest, []byte("the server is stopping")) {
			t.Errorf("what is cut off is not told why: ... %q", rest[max(0, len(rest)-300):])
		}
		if conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
			conn.Close()
			t.Error("a stopped server takes connections")
		}
	}
}

// While the last answers end the port stays open: /health and new requests get status 503,
// so that a load balancer learns that this server is about to go.
func TestHealthWhileStopping(t *testing.T) {
	r := run(t, Options{Grace: 30 * time.Second})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"prompt":"x","max_tokens":3}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:5])
	await(t, "the request under way", func() bool { return r.busy.Load() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	await(t, "the server to stop", r.drains.Load)
	for range 3 {
		if status, raw, _ := r.send("GET", "/health", ""); status != 503 ||
			!strings.Contains(raw, "the server is stopping") {
			t.Errorf("/health: %d %s", status, raw)
		}
	}
	if status, raw, h := r.send("POST", "/v1/completions", body); status != 503 ||
		h.Get("Retry-After") == "" {
		t.Errorf("a new request: %d %s", status, raw)
	}
	select {
	case err := <-stopped:
		t.Fatal("ended before the answer", err)
	default:
	}
	io.WriteString(conn, body[5:])
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 || !strings.Contains(string(raw), `"completion_tokens":`) {
		t.Errorf("the answer under way: %d %s %v", res.StatusCode, raw, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		conn.Close()
		t.Error("a stopped server takes connections")
	}
}

// await waits until a condition holds, however busy the machine is.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// A temperature that some clients write for 0 is greedy.
func TestNearlyGreedy(t *testing.T) {
	r := run(t, Options{})
	ask := func(temperature, seed string) string {
		return r.ask("/v1/completions", `{"prompt":"x","max_tokens":20,"ignore_eos":true,"temperature":`+temperature+`,"seed":`+seed+`}`).Choices[0].Text
	}
	greedy := ask("0", "1")
	for _, temperature := range []string{"1e-9", "1e-6", "0.000009"} {
		if got := ask(temperature, "2"); got != greedy {
			t.Errorf("%s: %s\nwant %s", temperature, got, greedy)
		}
	}
	if ask("1", "1") == ask("1", "2") {
		t.Error("temperature 1 draws nothing: the test shows nothing")
	}
}

// hangsUp is the context of a client that hangs up when the server has looked for it a
// number of times.
type hangsUp struct {
	context.Context
	after, looks int
}

func (c *hangsUp) Err() error {
	if c.looks++; c.looks > c.after {
		return context.Canceled
	}
	return nil
}

// Work for a client that hangs up while its prompt is encoded ends: the server looks for the
// client within a word, and no more once it has gone.
func TestGoneWhileEncoding(t *testing.T) {
	t.Parallel()
	r := run(t, Options{})
	tokenize := func(client *hangsUp) {
		body := `{"prompt":"` + strings.Repeat("there", 1<<15) + `"}`
		req := httptest.NewRequestWithContext(client, "POST", r.url+"/tokenize",
			strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		r.ServeHTTP(httptest.NewRecorder(), req)
	}
	stays := &hangsUp{Context: t.Context(), after: math.MaxInt}
	tokenize(stays)
	leaves := &hangsUp{Context: t.Context(), after: 2}
	tokenize(leaves)
	if stays.looks < 10 || leaves.looks != 3 {
		t.Errorf("the server has looked %d times for a client that stays, %d for one that leaves",
			stays.looks, leaves.looks)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.said) != 2 || !strings.HasPrefix(r.said[0], "POST /tokenize 200") ||
		!strings.HasPrefix(r.said[1], "POST /tokenize 4") {
		t.Errorf("the log has %q", r.said)
	}
}

// A model whose numbers are not finite answers with an error of the server's, which then
// ends with one.
func TestBrokenModel(t *testing.T) {
	for _, body := range []string{`{"prompt":"x","max_tokens":3}`, `{"prompt":"x y","max_tokens":0,"echo":true,"logprobs":2}`} {
		r := runOf(t, Options{Grace: time.Second}, true)
		r.breaks = true
		status, raw, _ := r.send("POST", "/v1/completions", body)
		if status != 500 || !strings.Contains(raw, `"the model has failed: see the server's log"`) || !strings.Contains(raw, `"server_error"`) {
			t.Errorf("%s: %d %s", body, status, raw)
		}
		if err := r.stop(); err == nil || !strings.Contains(err.Error(), "not finite") {
			t.Errorf("%s: the server ends with %v", body, err)
		}
	}
}

// /metrics has what was done; doc/serve.md has a line for each metric.
func TestMetrics(t *testing.T) {
	r := run(t, Options{})
	a := r.ask("/v1/completions", `{"prompt":"a b c","max_tokens":7}`)
	r.send("POST", "/v1/completions", `{`)
	r.settled()
	_, text, h := r.send("GET", "/metrics", "")
	if !strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		t.Errorf("%v", h)
	}
	for _, want := range []string{
		`gad_requests_total{path="/v1/completions",status="200"} 1`, `gad_requests_total{path="/v1/completions",status="400"} 1`,
		fmt.Sprintf("gad_prompt_tokens_total %d", a.Usage.Prompt),
		fmt.Sprintf("gad_generated_tokens_total %d", a.Usage.Completion),
		"gad_sequences_running 0", "gad_cache_pages_used 0", "gad_first_token_seconds_count 1", `gad_request_seconds_bucket{le="+Inf"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "doc", "serve.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if f[0] == "#" && f[1] == "TYPE" && !strings.Contains(string(doc), "`"+f[2]+"`") {
			t.Errorf("doc/serve.md does not have %s", f[2])
		}
	}
	for path, to := range routes {
		if !strings.Contains(string(doc), "`"+to.method+" "+path+"`") {
			t.Errorf("doc/serve.md does not have %s %s", to.method, path)
		}
	}
	for name := range unsupported {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("doc/serve.md does not have %s", name)
		}
	}
}

// Malformed requests are answered with a 4xx, whatever is wrong with them; the memory does
// not grow and the server answers afterwards as before. GAD_HOSTILE_REQUESTS=10000 sends more.
func TestMalformedRequests(t *testing.T) {
	n := 400
	if s := os.Getenv("GAD_HOSTILE_REQUESTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, Options{Context: 256, Body: 1 << 20})
	const good = `{"prompt":"still here","seed":9,"max_tokens":8}`
	want := r.ask("/v1/completions", good)
	rng := rand.New(rand.NewPCG(7, 8))
	seeds := []string{
		`{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3,"temperature":0.5,"stop":["a"],"logprobs":true,"top_logprobs":2,"n":1}`,
		`{"prompt":[[1,2,3],[4]],"echo":true,"logprobs":1,"max_tokens":1,"seed":5,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":"text","add_special_tokens":false}`, `{"tokens":[1,2]}`,
	}
	values := []string{"null", "-1", "1e400", "1e18", "99999999999999999999", "0.5", "true", `""`, `"x"`, "[]", "{}", `[[[]]]`, `[null]`, `{"a":{"b":1}}`, `"\ud800"`, "[-1]", "[2147483648]", `[{"role":1}]`,
		`[{"role":"user","content":{"type":"text"}}]`, strings.Repeat("[", 5000), `"` + strings.Repeat("y", 100000) + `"`, "[" + strings.Repeat("1,", 50000) + "1]"}
	damage := func(s string) string {
		switch rng.IntN(4) {
		case 0: // a value of another kind
			var m map[string]json.RawMessage
			json.Unmarshal([]byte(s), &m)
			keys := make([]string, 0, len(m))
			for k := range m {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			k := keys[rng.IntN(len(keys))]
			if rng.IntN(4) == 0 {
				k = "unheard_of"
			}
			m[k] = json.RawMessage("0")
			out, _ := json.Marshal(m)
			return strings.Replace(string(out), strconv.Quote(k)+":0",
				strconv.Quote(k)+":"+values[rng.IntN(len(values))], 1)
		case 1: // cut short
			return s[:rng.IntN(len(s))]
		case 2: // a byte changed
			b := []byte(s)
			b[rng.IntN(len(b))] = byte(rng.IntN(256))
			return string(b)
		}
		b := make([]byte, rng.IntN(300)) // no JSON at all
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		return string(b)
	}
	paths := []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
		"/v1/nothing"}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	counts := map[int]int{}
	address := strings.TrimPrefix(r.url, "http://")
	var before uint64
	for i := range n {
		if i == n/4 {
			before = heap()
		}
		if rng.IntN(8) == 0 { // no HTTP
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			lines := []string{"GARBAGE\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nContent-Type: application/json\r\n\r\n{", "GET / HTTP/9.9\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzzzz\r\n", "\x16\x03\x01\x02\x00", "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET /" + strings.Repeat("a", 80000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n"}
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			io.WriteString(conn, lines[rng.IntN(len(lines))])
			conn.(*net.TCPConn).CloseWrite()
			first, _ := bufio.NewReader(conn).ReadString('\n')
			conn.Close()
			if first != "" && !strings.HasPrefix(first, "HTTP/1.1 4") &&
				!strings.HasPrefix(first, "HTTP/1.0 4") &&
				!strings.HasPrefix(first, "HTTP/1.1 505") {
				t.Errorf("no HTTP: %q", first)
			}
			continue
		}
		body := damage(seeds[rng.IntN(len(seeds))])
		path := paths[rng.IntN(len(paths))]
		status, raw, _ := r.send("POST", path, body)
		if counts[status]++; status >= 500 || status < 200 || status >= 300 && status < 400 {
			t.Fatalf("%s %.300s: %d %.300s", path, body, status, raw)
		}
	}
	if counts[400] < n/3 {
		t.Errorf("statuses %v: too few are malformed", counts)
	}
	if got := r.ask("/v1/completions", good); !reflect.DeepEqual(got.Choices, want.Choices) {
		t.Errorf("afterwards %+v, want %+v", got.Choices, want.Choices)
	}
	http.DefaultClient.CloseIdleConnections()
	r.settled()
	after := heap()
	t.Logf("%d requests: statuses %v, heap %d KiB after a quarter, %d KiB at the end", n, counts,
		before>>10, after>>10)
	if after > before+(8<<20) {
		t.Errorf("the heap has grown from %d to %d bytes", before, after)
	}
}

// Options that cannot be are refused.
func TestOptions(t *testing.T) {
	tok, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, shape(tok.Size()), model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Context: 513}, "serve: context of 513 tokens: the model takes 512: lower it"},
		{Options{Context: 512, Cache: 520}, "serve: cache of 520 tokens: a request of 512 takes 528: raise --cache-tokens or lower --context"},
	} {
		if _, err := New(m, tok, c.o); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true,
		"localhost:1": true, "127.9.9.9:0": true, "0.0.0.0:1": false, ":8000": false,
		"192.168.1.2:80": false, "example.com:80": false, "[::]:1": false} {
		if got, err := Loopback(address); err != nil || got != want {
			t.Errorf("%s: %t %v, want %t", address, got, err, want)
		}
	}
	if _, err := Loopback("127.0.0.1"); err == nil {
		t.Error("an address without a port")
	}
}
