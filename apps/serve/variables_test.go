package serve

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// chat_template_kwargs are the variables of the chat template: prompts are transformers', token by
// token. What no template reads is refused by its name.
func TestVariablesOfTemplate(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/templates/thoughts.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Kinds map[string]string
		Cases []struct {
			Kind, Variables, Row, Prompt string
			Messages                     []json.RawMessage
		}
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{})
	tried := 0
	for _, c := range f.Cases {
		if !strings.Contains(c.Kind, "variable") {
			continue
		}
		r.tok = templated(t, "qwen2", f.Kinds[c.Kind])
		messages, err := json.Marshal(c.Messages[:len(c.Messages)-1])
		if err != nil {
			t.Fatal(err)
		}
		variables := ""
		if c.Variables != "" {
			variables = `,"chat_template_kwargs":` + c.Variables
		}
		status, body, _ := r.send("POST", "/tokenize",
			`{"messages":`+string(messages)+variables+`}`)
		var out struct{ Tokens []int32 }
		if err := json.Unmarshal([]byte(body), &out); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", c.Kind, status, body)
		}
		if !slices.Equal(out.Tokens, r.tok.Encode(c.Prompt)) {
			t.Errorf("%s, %s: %q, transformers has %q", c.Kind, c.Variables,
				r.tok.Decode(out.Tokens, false), c.Prompt)
		}
		tried++
	}
	if tried < 40 {
		t.Errorf("%d prompts: the test shows little", tried)
	}
	for kwargs, want := range map[string]string{
		`{"enable_thinkng":false}`: "enable_thinkng",
		`{"messages":[]}`:          "given by the request",
		`[]`:                       "must be an object",
	} {
		status, body, _ := r.send("POST", "/v1/chat/completions",
			`{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"chat_template_kwargs":`+kwargs+`}`)
		if status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 400 with %q", kwargs, status, body, want)
		}
	}
	r.ask("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"chat_template_kwargs":{"enable_thinking":false}}`)
}
