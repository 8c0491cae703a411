package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A thought is read under the keys that other programs give it, and from parts of type thinking;
// reasoning_content counts before the others, wherever it stands.
func TestKeysOfThoughts(t *testing.T) {
	for turn, want := range map[string]string{
		`"content": "4", "reasoning_content": "a"`:                                                                    "a",
		`"content": "4", "thinking": "b"`:                                                                             "b",
		`"content": "4", "reasoning": "c"`:                                                                            "c",
		`"thinking": "b", "content": "4", "reasoning_content": "a"`:                                                   "a",
		`"reasoning_content": "a", "thinking": "b", "content": "4"`:                                                   "a",
		`"content": "4", "thinking": null, "reasoning": "c"`:                                                          "c",
		`"content": [{"type": "thinking", "thinking": "d"}, {"type": "text", "text": "4"}]`:                           "d",
		`"content": [{"type": "thinking", "thinking": "d"}, {"type": "text", "text": "4"}], "reasoning_content": "a"`: "a",
	} {
		path := filepath.Join(t.TempDir(), "row.jsonl")
		row := `{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", ` + turn +
			"}]}\n"
		if err := os.WriteFile(path, []byte(row), 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := OpenFiles([]string{path}, Options{})
		if err != nil {
			t.Errorf("%s: %v", turn, err)
			continue
		}
		r, err := set.Row(0)
		if err != nil || len(r.Turns) != 1 || r.Turns[0].Thinking != want ||
			r.Turns[0].Content != "4" || strings.Contains(r.Teacher, "thinking") {
			t.Errorf("%s: %+v, %v, want the thought %q", turn, r.Turns, err, want)
		}
		set.Close()
	}
}
