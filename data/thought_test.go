package data

import (
	"os"
	"path/filepath"
	"reflect"
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

// Thoughts under each of their keys, of turns and of columns, and in parts, are the same rows in
// Parquet, Arrow and JSON lines (scripts/fixtures_street.py, pyarrow).
func TestThoughtColumns(t *testing.T) {
	files, err := filepath.Glob("testdata/thoughts/*.jsonl")
	if err != nil || len(files) != 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		want := readAll(t, openFiles(t, Options{}, file))
		if len(want) == 0 || want[0].Turns == nil || want[0].Turns[0].Thinking != "two and two" {
			t.Errorf("%s: row 0 is %+v: want the thought", file, want)
		}
		for _, ext := range []string{".parquet", ".arrow"} {
			other := strings.TrimSuffix(file, ".jsonl") + ext
			if got := readAll(t, openFiles(t, Options{}, other)); !reflect.DeepEqual(got, want) {
				t.Errorf("%s:\n got %+v\nwant %+v", other, got, want)
			}
		}
	}
	// a flag is no thought
	file := filepath.Join(t.TempDir(), "flag.jsonl")
	row := `{"content": "2+2", "teacher_response": "4", "thinking": true}` + "\n"
	if err := os.WriteFile(file, []byte(row), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, openFiles(t, Options{}, file)); got[0].Turns != nil {
		t.Errorf("a flag is read as a thought: %+v", got)
	}
}
