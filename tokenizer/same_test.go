package tokenizer

import (
	"encoding/json"
	"strings"
	"testing"
)

// A model reads another tokenizer's ids if it knows all its tokens by them, and the
// first difference is named.
func TestMissing(t *testing.T) {
	read := func(change func(top map[string]any)) *Tokenizer {
		t.Helper()
		raw, err := json.Marshal(minimal()) // a copy: change may not touch what others see
		if err != nil {
			t.Fatal(err)
		}
		top := map[string]any{}
		if err := json.Unmarshal(raw, &top); err != nil {
			t.Fatal(err)
		}
		change(top)
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	vocab := func(top map[string]any) map[string]any {
		return top["model"].(map[string]any)["vocab"].(map[string]any)
	}
	added := func(top map[string]any, token map[string]any) {
		top["added_tokens"] = append(top["added_tokens"].([]any), token)
	}
	own := read(func(map[string]any) {})
	for _, c := range []struct {
		name   string
		change func(top map[string]any)
		want   string // begins the difference; "" is none
	}{
		{"the same", func(map[string]any) {}, ""},
		{"one more token",
			func(top map[string]any) {
				added(top,
					map[string]any{"id": 258, "content": "<more>", "special": true})
			}, ""},
		{"two tokens exchanged", func(top map[string]any) {
			v := vocab(top)
			v["a"], v["b"] = v["b"], v["a"]
		}, `token 97 is "b", and the student's is "a"`},
		{"another merge", func(top map[string]any) {
			delete(vocab(top), "ab")
			vocab(top)["ac"] = 256
			top["model"].(map[string]any)["merges"] = []any{"a c"}
		}, `token 256 is "ac", and the student's is "ab"`},
		{"the end is no control token", func(top map[string]any) {
			top["added_tokens"].([]any)[0].(map[string]any)["special"] = false
		}, `token 257, "<end>", is a control token in one of them only`},
	} {
		if got := own.Missing(read(c.change)); !strings.HasPrefix(got, c.want) || c.want == "" &&
			got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	more := read(
		func(top map[string]any) {
			added(top,
				map[string]any{"id": 258, "content": "<more>", "special": true})
		})
	if got, want := more.Missing(own), "has 258 tokens, and the student's has 259"; got != want {
		t.Errorf("one token less: %q, want %q", got, want)
	}
	ends := read(
		func(top map[string]any) {
			added(top,
				map[string]any{"id": 258, "content": "<more>", "special": true})
		})
	ends.endOfTurn = 258
	if got, want := more.Missing(ends), `an answer ends with token 258, "<more>", and the student's with 257, "<end>"`; got != want {
		t.Errorf("another end: %q, want %q", got, want)
	}
}
