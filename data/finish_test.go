package data

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/vfs"
)

// finishRows are a set with and without finish_reason.
const finishRows = `{"content":"a","teacher_response":"one","finish_reason":"stop"}
{"content":"b","teacher_response":"two","finish_reason":"length"}
{"content":"c","teacher_response":"three","finish_reason":null}
{"content":"d","teacher_response":"four","finish_reason":"content_filter"}
`

// TestFinishReason: it is read in every format, its answers lose their end token, and
// validate counts them.
func TestFinishReason(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "rows.jsonl")
	writeTest(t, first, finishRows)
	csv := filepath.Join(dir, "rows.csv")
	writeTest(t, csv, "content,teacher_response,finish_reason\na,one,stop\nb,two,length\nc,three,\nd,four,content_filter\n")
	paths := []string{first, csv}
	set := openFiles(t, Options{}, first)
	for _, ext := range []string{"arrow", "arrows", "parquet", "jsonl"} {
		path := filepath.Join(dir, "converted."+ext)
		if err := Convert(set, path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	for _, path := range paths {
		s := openFiles(t, Options{}, path)
		if s.Digest() != set.Digest() {
			t.Errorf("%s: another digest", path)
		}
		for i, want := range []string{"stop", "length", "", "content_filter"} {
			ex, err := s.Example(i, &counted{}, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if cut := i == 1 || i == 3; ex.Finish != want || ex.Unfinished() != cut ||
				(ex.Answer[len(ex.Answer)-1] == 1<<24) == cut || len(ex.Answer) < len(ex.Teacher) {
				t.Errorf("%s: row %d: %q, answer %v", path, i, ex.Finish, ex.Answer)
			}
		}
		r, err := Validate(s, nil, Limits{})
		if err != nil || r.Counts[KindUnfinished] != 2 || r.Warnings != 2 || r.Errors != 0 {
			t.Errorf("%s: %v\n%s", path, err, r)
		}
		if want := `row 1: answer in column "teacher_response" is unfinished (finish_reason is "length"): it teaches no end and makes no pair`; !strings.Contains(r.String(), want) {
			t.Errorf("validate does not say %s\n%s", want, r)
		}
	}
}

// TestFinishReasonIsKept: rows that are read from a file of encoded rows are the same.
func TestFinishReasonIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, `{"content":"%d","teacher_response":"it is","finish_reason":"%s"}`+"\n", i, []string{"stop", "length", ""}[i%3])
	}
	writeTest(t, path, b.String())
	keep := EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}
	want := pass(t, path, EncodeOptions{}, nil)
	pass(t, path, keep, nil).equal(t, "cold", want)
	warm := pass(t, path, keep, nil)
	warm.equal(t, "warm", want)
	if m := warm.measures; warm.calls != 0 || m[0].Unfinished || !m[1].Unfinished ||
		m[0].Answer != 6 || m[1].Answer != 5 {
		t.Errorf("%d rows encoded, measures %+v", warm.calls, m[:3])
	}
}

// TestUnfinished: the finish_reasons that say that an answer is cut, and those that do not.
func TestUnfinished(t *testing.T) {
	for finish, want := range map[string]bool{"length": true, "max_tokens": true,
		"model_length": true, "content_filter": true, "abort": true,
		"insufficient_system_resource": true, "MAX_TOKENS": true, "repetition": true,
		"model_context_window_exceeded": true, "error": true, "RECITATION": true,
		"stop": false, "": false, "eos_token": false, "tool_calls": false,
		"refusal": false, "STOP": false} {
		if got := (Row{Finish: finish}).Unfinished(); got != want {
			t.Errorf("%q: %v", finish, got)
		}
	}
}

// TestFinishReasonOfOthers: beside a given answer the column is that answer's, and where
// it is no text it is left out.
func TestFinishReasonOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	writeTest(t, path, `{"content":"a","teacher_response":"one","response":"o","finish_reason":"length"}`+"\n")
	if r, err := openFiles(t, Options{}, path).Row(0); err != nil || r.Finish != "" {
		t.Errorf("%+v, %v", r, err)
	}
	other := filepath.Join(dir, "other.jsonl")
	writeTest(t, other, `{"content":"a","teacher_response":"one","finish_reason":["length"]}`+"\n")
	if r, err := openFiles(t, Options{}, other).Row(0); err != nil || r.Finish != "" {
		t.Errorf("%+v, %v", r, err)
	}
	// Sets without the column, and with nothing in it, have the digest that they had.
	plain, empty := filepath.Join(dir, "plain.jsonl"), filepath.Join(dir, "empty.jsonl")
	writeTest(t, plain, `{"content":"a","teacher_response":"one"}`+"\n")
	writeTest(t, empty, `{"content":"a","teacher_response":"one","finish_reason":""}`+"\n")
	set := openFiles(t, Options{}, plain)
	if set.Digest() != "f93a771ae4c20a5c4a49c6c7263ee2fe35ded1d110f5e0b51ab1c9296313f079" {
		t.Errorf("digest %s", set.Digest())
	}
	if got := openFiles(t, Options{}, empty).Digest(); got != set.Digest() {
		t.Errorf("digest %s with an empty column", got)
	}
}

// TestWriteAnswers: what is written beside an answer is there, and is not a row's.
func TestWriteAnswers(t *testing.T) {
	dir := t.TempDir()
	rows := []Row{
		{Messages: []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "a"}},
			Teacher: "one", Finish: "stop", ID: "x", Env: `{"at":[1,2.5],"b":"x"}`,
			Told: Told{"m", 3, 4, &Played{0.5, "half"}}},
		{Messages: []Message{{Role: "user", Content: "b"}}, Teacher: "two", Finish: "length",
			ID: "y", Env: `"maze"`, Told: Told{"m2", 5, 6, nil}},
		{Messages: []Message{{Role: "user", Content: "c"}}, Teacher: "three", Finish: "stop",
			ID: "z", Told: Told{"m2", 5, 6, nil}},
	}
	for _, ext := range []string{"arrow", "arrows", "parquet", "jsonl"} {
		path := filepath.Join(dir, "out."+ext)
		if err := WriteAnswers(vfs.OS, path, true, nil, len(rows),
			func(i int) (Row, error) { return rows[i], nil }); err != nil {
			t.Fatal(err)
		}
		s := openFiles(t, Options{}, path)
		for i, want := range rows {
			want.Told, want.Index = Told{}, i
			if got, err := s.Row(i); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, %v, want %+v", path, got, err, want)
			}
		}
		if got := fmt.Sprint(slices.Sorted(
			slices.Values(
				s.Unread()))); got != "[completion_tokens label model prompt_tokens reward]" &&
			ext != "jsonl" || s.Len() != 3 {
			t.Errorf("%s: columns that are not read: %s", path, got)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "out.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"x","content":[{"role":"system","content":"s"},{"role":"user","content":"a"}],"teacher_response":"one","env":{"at":[1,2.5],"b":"x"},"finish_reason":"stop","model":"m","prompt_tokens":3,"completion_tokens":4,"reward":0.5,"label":"half"}`
	if got, _, _ := strings.Cut(string(raw), "\n"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
