package scoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"gad/model"
)

const vocab = 40

// logps are a made-up model's log-probabilities behind some ids.
func logps(ids []int32) []float64 {
	seed := uint64(len(ids))
	for _, id := range ids {
		seed = seed*31 + uint64(id)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	out, sum := make([]float64, vocab), 0.0
	for v := range out {
		out[v] = 3 * rng.NormFloat64()
		sum += math.Exp(out[v])
	}
	for v := range out {
		out[v] -= math.Log(sum)
	}
	return out
}

// ranked are the ids of a row, the most probable first.
func ranked(row []float64) []int {
	order := make([]int, len(row))
	for v := range order {
		order[v] = v
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if row[a] > row[b] {
			return -1
		}
		return 1
	})
	return order
}

func name(id int) string { return fmt.Sprintf(" t%d", id) }

// vllm is what a vLLM answers: choices[0].prompt_logprobs.
func vllm(ids []int32, k int) []any {
	places := []any{nil}
	for t := 1; t < len(ids); t++ {
		row := logps(ids[:t])
		order := ranked(row)
		place := map[string]any{}
		for r, v := range order {
			if r < k || v == int(ids[t]) {
				place[fmt.Sprint(v)] = map[string]any{"logprob": row[v], "rank": r + 1,
					"decoded_token": name(v)}
			}
		}
		places = append(places, place)
	}
	return places
}

func vllmAnswer(places []any) map[string]any {
	return map[string]any{"choices": []any{map[string]any{"text": "x", "prompt_logprobs": places}}}
}

// sglang is what SGLang answers.
func sglang(ids []int32, k int) map[string]any {
	var tokens, top []any
	for t, id := range ids {
		if t == 0 {
			tokens, top = append(tokens, []any{nil, id, nil}), append(top, nil)
			continue
		}
		row := logps(ids[:t])
		var best []any
		for _, v := range ranked(row)[:k] {
			best = append(best, []any{row[v], v, name(v)})
		}
		tokens, top = append(tokens, []any{row[id], id, name(int(id))}), append(top, best)
	}
	return map[string]any{"text": "x",
		"meta_info": map[string]any{"input_token_logprobs": tokens, "input_top_logprobs": top}}
}

// fake serves one of the formats; spoil changes an answer before it is sent.
type fake struct {
	format string // vllm, sglang or none
	spoil  func(call int, path string, answer any) any
	calls  atomic.Int64
	asked  func(body map[string]any)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	json.NewDecoder(r.Body).Decode(&body)
	var answer any
	ids := func(key string) (ids []int32) {
		list, _ := body[key].([]any)
		for _, x := range list {
			ids = append(ids, int32(x.(float64)))
		}
		return ids
	}
	number := func(key string) int { x, _ := body[key].(float64); return int(x) }
	switch {
	case r.URL.Path == "/v1/models":
		answer = map[string]any{"data": []any{map[string]any{"id": "teacher"}}}
	case r.URL.Path == "/v1/completions" && f.format == "vllm":
		if body["model"] != "teacher" || number("max_tokens") != 1 {
			w.WriteHeader(404)
			return
		}
		answer = vllmAnswer(vllm(ids("prompt"), number("prompt_logprobs")))
	case r.URL.Path == "/v1/completions": // as llama.cpp: an answer, and no scores
		answer = map[string]any{"choices": []any{map[string]any{"text": "x", "logprobs": nil}}}
	case r.URL.Path == "/generate" && f.format == "sglang":
		answer = sglang(ids("input_ids"), number("top_logprobs_num"))
	default:
		w.WriteHeader(404)
		return
	}
	if f.asked != nil {
		f.asked(body)
	}
	if call := int(f.calls.Add(1)); f.spoil != nil {
		answer = f.spoil(call, r.URL.Path, answer)
	}
	if text, ok := answer.(string); ok {
		w.Write([]byte(text))
		return
	}
	json.NewEncoder(w).Encode(answer)
}

func (f *fake) start(t *testing.T, path string) *Server {
	t.Helper()
	h := httptest.NewServer(f)
	t.Cleanup(h.Close)
	s, err := Open(Options{URL: h.URL + path, Names: Names{Top: "the top", Again: "!"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var seqs = []model.Seq{model.Answer([]int32{3, 1, 4, 1, 5, 9, 2, 6}, 3),
	{IDs: []int32{5, 3, 5, 8, 9, 7, 9}, Spans: []model.Span{{From: 2, To: 4}, {From: 6, To: 7}}},
	model.Answer([]int32{1, 2}, 2)}

func piece(id int32) []byte { return []byte(name(int(id))) }

// Both formats, with and without alternatives: the log-probabilities of the trained tokens and the
// k most probable tokens of their places.
func TestScore(t *testing.T) {
	for format, path := range map[string]string{"vllm": "/v1", "sglang": ""} {
		s := (&fake{format: format}).start(t, path)
		for _, k := range []int{0, 1, 5} {
			if err := s.Check(t.Context(), seqs[:2], k, piece); err != nil {
				t.Fatal(err)
			}
			logp, labels, err := s.Score(t.Context(), seqs, k)
			if err != nil {
				t.Fatal(err)
			}
			for i, seq := range seqs {
				if len(logp[i]) != seq.Trained() || k == 0 && labels != nil ||
					k > 0 && len(labels[i]) != seq.Trained() {
					t.Fatalf("%s, %d: %d scores, labels %v", format, k, len(logp[i]), labels)
				}
				for n, at := range trained(seq) {
					row := logps(seq.IDs[:at])
					if got, want := logp[i][n], float32(row[seq.IDs[at]]); got != want {
						t.Errorf("%s: sequence %d, token %d: %g, want %g", format, i, at, got, want)
					}
					if k == 0 {
						continue
					}
					best := ranked(row)[:k]
					slices.Sort(best)
					l := labels[i][n]
					for j, v := range best {
						if int(l.IDs[j]) != v || l.Logp[j] != row[v] {
							t.Errorf("%s: sequence %d, token %d: %+v, want %v", format, i, at, l, best)
						}
					}
					if math.Abs(l.Mass()+l.Rest-1) > 1e-9 {
						t.Errorf("%s: mass %g and %g", format, l.Mass(), l.Rest)
					}
				}
			}
		}
	}
}

// Servers that cannot teach are refused at the start, with the reason.
func TestCheckRefuses(t *testing.T) {
	wrong := func(id int32) []byte { return fmt.Appendf(nil, " u%d", id) }
	for _, c := range []struct {
		name  string
		f     *fake
		piece func(int32) []byte
		want  string
	}{
		{"no scores", &fake{format: "none"}, piece, "does not score a given text: /v1/completions: the answer has no prompt_logprobs"},
		{"not repeatable", &fake{format: "vllm", spoil: func(call int, path string, answer any) any {
			if path != "/v1/completions" || call%2 == 0 {
				return answer
			}
			return each(answer, func(e map[string]any) { e["logprob"] = e["logprob"].(float64) - .1 })
		}}, piece, "differ by 0.1 nats a token from one request to the next"},
		{"another tokenizer", &fake{format: "vllm"}, wrong, `calls token 1 " t1", and the tokenizer that it is asked with " u1"`},
		{"several models", &fake{format: "vllm", spoil: func(_ int, path string, answer any) any {
			if path == "/v1/models" {
				return map[string]any{"data": []any{map[string]any{"id": "a"}, map[string]any{"id": "b"}}}
			}
			return answer
		}}, piece, "serves 2 models (a, b)"},
		{"fewer alternatives", &fake{format: "vllm", spoil: func(_ int, path string, answer any) any {
			if path == "/v1/completions" { // own and three others, of vllm's k or one more
				a := answer.(map[string]any)["choices"].([]any)[0].(map[string]any)
				for _, p := range a["prompt_logprobs"].([]any)[1:] {
					for key, e := range p.(map[string]any) {
						if r := e.(map[string]any)["rank"].(int); r == 4 || r == 5 {
							delete(p.(map[string]any), key)
						}
					}
				}
			}
			return answer
		}}, piece, "lower the top"},
		{"too few alternatives", &fake{format: "vllm", spoil: func(_ int, path string, answer any) any {
			if path != "/v1/completions" {
				return answer
			}
			a := answer.(map[string]any)["choices"].([]any)[0].(map[string]any)
			for t, p := range a["prompt_logprobs"].([]any)[1:] {
				for key := range p.(map[string]any) {
					if !slices.ContainsFunc(seqs[:2], func(q model.Seq) bool {
						return t+1 < len(q.IDs) && key == fmt.Sprint(q.IDs[t+1])
					}) {
						delete(p.(map[string]any), key) // all but the text's own tokens
					}
				}
			}
			return answer
		}}, piece, "does not give 5 alternatives"},
	} {
		err := c.f.start(t, "/v1").Check(t.Context(), seqs[:2], 5, c.piece)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Open(Options{URL: "http://example.com/v1"}); err == nil {
		t.Error("a key over http to another machine")
	}
}

// Scores that no model gives are refused at the start, whether alternatives are learned from or
// not, and where the server gives none.
func TestCheckRefusesTheImpossible(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(logp float64) float64
		alone bool // no alternatives
		want  string
	}{
		"certain of all": {func(float64) float64 { return 0 }, false,
			"impossible scores: model: soft label: the probabilities of 5 tokens add up to 5"},
		"certain of all, alone": {func(float64) float64 { return 0 }, true,
			"impossible scores: 8 of 8 tokens are certain"},
		"half of all": {func(x float64) float64 { return x / 2 }, false,
			"impossible scores: model: soft label: the probabilities of 5 tokens add up to "},
		"as they are": {func(x float64) float64 { return x }, true, ""},
	} {
		for _, k := range []int{0, 5} {
			if c.alone && k > 0 {
				continue
			}
			f := &fake{format: "vllm", spoil: func(_ int, path string, answer any) any {
				if path != "/v1/completions" {
					return answer
				}
				choice := answer.(map[string]any)["choices"].([]any)[0].(map[string]any)
				places := choice["prompt_logprobs"].([]any)
				if c.alone && len(places) > 1 && len(places[1].(map[string]any)) > 1 {
					return map[string]any{"choices": []any{map[string]any{"text": "x"}}}
				}
				return each(answer, func(e map[string]any) {
					e["logprob"] = c.spoil(e["logprob"].(float64))
				})
			}}
			err := f.start(t, "/v1").Check(t.Context(), seqs[:2], k, piece)
			if c.want == "" && err != nil || c.want != "" && (err == nil ||
				!errors.Is(err, ErrServer) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %d alternatives: %v, want %q", name, k, err, c.want)
			}
		}
	}
}

// A call that is tried again is told while it is, and not each time.
func TestTriedAgainIsSaid(t *testing.T) {
	var bad atomic.Bool
	f := &fake{format: "vllm"}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && bad.CompareAndSwap(true, false) {
			w.WriteHeader(500)
			return
		}
		f.ServeHTTP(w, r)
	}))
	defer h.Close()
	var said []string
	s, err := Open(Options{URL: h.URL, Say: func(text string) { said = append(said, text) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context(), seqs[:1], 0, piece); err != nil || len(said) > 0 {
		t.Fatalf("%v, %q", err, said)
	}
	for range 2 {
		bad.Store(true)
		if _, _, err := s.Score(t.Context(), seqs[:1], 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "status 500") ||
		!strings.HasPrefix(said[0], "teacher's server: ") ||
		!strings.HasSuffix(said[0], ": trying again, try 2 of 11") {
		t.Errorf("%q", said)
	}
}

// each changes every entry of a vLLM's answer.
func each(answer any, f func(map[string]any)) any {
	a := answer.(map[string]any)["choices"].([]any)[0].(map[string]any)
	for _, p := range a["prompt_logprobs"].([]any)[1:] {
		for _, e := range p.(map[string]any) {
			f(e.(map[string]any))
		}
	}
	return answer
}

// 1,000 faulty answers: each is refused with the place and the reason, unless what it spoils is not
// read; then the scores are right. None ends in a panic.
func TestFaultyAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	seq, k := model.Answer([]int32{3, 1, 4, 1, 5, 9, 2, 6}, 3), 4
	seen := map[string]int{}
	for round := range 1000 {
		raw, _ := json.Marshal(vllm(seq.IDs, k))
		var places []any
		json.Unmarshal(raw, &places)
		at := 1 + rng.IntN(len(places)-1)
		place := places[at].(map[string]any)
		keys := make([]string, 0, len(place))
		for key := range place {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		key := keys[rng.IntN(len(keys))]
		entry := place[key].(map[string]any)
		kind := rng.IntN(13)
		answer := any(nil)
		switch kind {
		case 0: // misordered
			other := 1 + rng.IntN(len(places)-1)
			if seq.IDs[at] == seq.IDs[other] { // of equal tokens nobody can tell
				other = at
			}
			places[at], places[other] = places[other], places[at]
		case 1: // missing
			places = slices.Delete(places, at, at+1)
		case 2:
			delete(place, key)
		case 3:
			entry["logprob"] = nil
		case 4:
			entry["logprob"] = -1e300
		case 5:
			entry["logprob"] = "-inf"
		case 6:
			places[at] = nil
		case 7:
			place[key] = nil
		case 8:
			entry["logprob"] = 3.5
		case 9:
			place["x"+key] = entry
		case 10:
			text, _ := json.Marshal(vllmAnswer(places))
			answer = string(text[:rng.IntN(len(text))])
		case 12: // one too many
			places = append(places, places[1])
		case 11:
			text, _ := json.Marshal(vllmAnswer(places))
			answer = strings.Replace(string(text), `"logprob":-`, `"logprob":-Infinity,"x":-`, 1+rng.IntN(3))
		}
		if answer == nil {
			text, _ := json.Marshal(vllmAnswer(places))
			answer = string(text)
		}
		x, err := readVLLM([]byte(answer.(string)), seq, k)
		if err != nil {
			if !strings.Contains(err.Error(), "token") && !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("round %d, fault %d: %v", round, kind, err)
			}
			seen[fmt.Sprint(kind)]++
			continue
		}
		for _, i := range trained(seq) {
			row := logps(seq.IDs[:i])
			if x.logp[i] != row[seq.IDs[i]] {
				t.Errorf("round %d, fault %d: token %d has %g, want %g", round, kind, i, x.logp[i],
					row[seq.IDs[i]])
			}
			best := ranked(row)[:k]
			slices.Sort(best)
			for j, v := range best {
				if int(x.labels[i].IDs[j]) != v || x.labels[i].Logp[j] != row[v] {
					t.Errorf("round %d, fault %d: token %d has %+v", round, kind, i, x.labels[i])
					break
				}
			}
		}
	}
	for kind := range 13 {
		if seen[fmt.Sprint(kind)] < 10 {
			t.Errorf("fault %d was refused %d times only", kind, seen[fmt.Sprint(kind)])
		}
	}
}

// A server that answers wrongly now and then loses nothing: it is asked again. One that keeps doing
// so ends the run with its reason.
func TestFaultsNowAndThen(t *testing.T) {
	bad := &fake{format: "vllm", spoil: func(call int, path string, answer any) any {
		if call%2 == 0 && path == "/v1/completions" {
			return each(answer, func(e map[string]any) { e["logprob"] = nil })
		}
		return answer
	}}
	s := bad.start(t, "/v1")
	s.format, s.model = formats[0], "teacher"
	got, _, err := s.Score(t.Context(), seqs, 0)
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := (func() *Server {
		s := (&fake{format: "vllm"}).start(t, "/v1")
		s.format, s.model = formats[0], "teacher"
		return s
	})().Score(t.Context(), seqs, 0)
	if err != nil || !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	bad.spoil = func(_ int, _ string, answer any) any {
		return each(answer, func(e map[string]any) { e["logprob"] = nil })
	}
	if _, _, err := s.Score(t.Context(), seqs, 0); err == nil ||
		!strings.Contains(err.Error(), "is null (3 times): run the same command again!") {
		t.Errorf("%v", err)
	}
}
