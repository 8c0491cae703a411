package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// cached is what an answer says about its prompt's tokens.
func (r *running) cached(path, body string) (answer answerOut, prompt, found int) {
	r.t.Helper()
	status, raw, _ := r.send("POST", path, body)
	var a struct {
		Usage struct {
			Details struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := errors.Join(json.Unmarshal([]byte(raw), &answer),
		json.Unmarshal([]byte(raw), &a)); err != nil || status != 200 ||
		a.Usage.Details.Cached == nil {
		r.t.Fatalf("%s: %d %s, %v", body, status, raw, err)
	}
	answer.ID = ""
	return answer, answer.Usage.Prompt, *a.Usage.Details.Cached
}

// A server that takes the beginnings of prompts from its cache answers as one that computes
// them, and says how many tokens it took: with each answer and to Prometheus.
func TestPrefixes(t *testing.T) {
	keeps, forgets := run(t, Options{Slots: 4}), run(t, Options{Slots: 4, Forget: true})
	prompts, found := 0, 0
	ask := func(path, body string) (prompt, cached int) {
		t.Helper()
		got, prompt, cached := keeps.cached(path, body)
		want, _, none := forgets.cached(path, body)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, computed anew %+v", body, got, want)
		}
		if none != 0 {
			t.Errorf("%s: %d tokens were found by a server that forgets", body, none)
		}
		prompts, found = prompts+prompt, found+cached
		return prompt, cached
	}

	messages, before := "", 0
	for turn := range 4 {
		if turn > 0 {
			messages += `,{"role":"assistant","content":"so"},`
		}
		messages += fmt.Sprintf(`{"role":"user","content":"turn %d of a chat"}`, turn)
		prompt, cached := ask("/v1/chat/completions", fmt.Sprintf(`{"messages":[%s],"max_tokens":4,"temperature":1,"seed":%d,"logprobs":true}`, messages, turn))
		if least := before - 10; turn > 0 && (cached < least || cached >= prompt) {
			t.Errorf("turn %d: %d of %d tokens were found; the turn before had %d", turn, cached,
				prompt, before)
		}
		before = prompt
	}
	question := "Which of these is the largest: one, two, three or four? It is"
	for i, choice := range []string{" one", " two", " three", " four"} {
		prompt, cached := ask("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"echo":true,"logprobs":1,"temperature":0}`, question+choice))
		if i > 0 && cached < prompt-4 {
			t.Errorf("choice %d: %d of %d tokens were found", i, cached, prompt)
		}
	}
	if found == 0 {
		t.Fatal("nothing was found")
	}

	// Several prompts in one request, and a stream.
	list, _, cached := keeps.cached("/v1/completions", `{"prompt":["a b c d e f g h i","a b c d e f g h i"],"n":2,"max_tokens":2,"seed":1}`)
	prompts, found = prompts+list.Usage.Prompt, found+cached
	if all := list.Usage.Prompt; len(list.Choices) != 4 || cached < 0 || cached >= all/2 {
		t.Errorf("%d of %d tokens of two equal prompts were found: %+v", cached, all, list)
	}
	_, raw, _ := keeps.send("POST", "/v1/completions", `{"prompt":"a b c d e f g h i","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`)
	if want := fmt.Sprintf(`"prompt_tokens_details":{"cached_tokens":%d}`, list.Usage.Prompt/2-1); !strings.Contains(raw, want) {
		t.Errorf("no %s in %s", want, raw)
	}
	prompts, found = prompts+list.Usage.Prompt/2, found+list.Usage.Prompt/2-1

	_, text, _ := keeps.send("GET", "/metrics", "")
	for name, want := range map[string]int{"gad_prefix_cache_queries_total": prompts,
		"gad_prefix_cache_hits_total": found} {
		if line := fmt.Sprintf("%s %d\n", name, want); !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	keeps.settled()
}
