package score

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/score"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/fault"
	"gad/internal/vfs"
	"gad/trainer/export"
	"gad/trainer/modeltest"
)

// scorable is a scoring of a few rows by the tests' student, and their folder. One row has a
// thought, and one is longer than the teacher's context of 128 tokens.
func scorable(t *testing.T) (dir string, o Options, rows session.Rows) {
	t.Helper()
	dir = t.TempDir()
	raw, err := os.ReadFile(modeltest.Letters("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := append(strings.SplitAfter(string(raw), "\n")[:5], `{"content":"Add 1+1+1","teacher_response":[{"role":"assistant","content":"It is 3.","reasoning_content":"hm"}]}`+"\n",
		`{"content":"Add 1+1+1","teacher_response":"`+strings.Repeat("It is 3. ", 30)+`"}`+"\n")
	path := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	cols := data.DefaultColumns()
	return dir, Options{Source: session.Source{Path: modeltest.Student(t), Quant: "native",
			Device: device.Options{Name: "cpu", Threads: 1}}, Top: 4, MaxTokens: 8192},
		session.Rows{Command: "data score", Paths: []string{path}, Format: data.FormatAuto,
			Content: cols.Content, Answer: cols.Teacher}
}

// scores runs a scoring into a file.
func scores(o Options, rows session.Rows, output string) (printed, said string, err error) {
	return sessiontest.Run(func(s *session.Session) error { return Score(s, o, rows, output) })
}

// must runs a scoring that has to succeed.
func must(t *testing.T, o Options, rows session.Rows, output string) (printed string) {
	t.Helper()
	printed, said, err := scores(o, rows, output)
	if err != nil {
		t.Fatal(said)
	}
	return printed
}

// What a local teacher gives the tokens of an answer is what gad logprobs says of them, in each
// format, and a student with its tokenizer has soft labels at all of them.
func TestDataScore(t *testing.T) {
	dir, o, from := scorable(t)
	five := from
	five.Limit = 5
	printed, _ := sessiontest.Must(t, func(s *session.Session) error {
		return score.LogProbs(s, score.Options{Source: o.Source, Rows: five, MaxResponse: 100,
			MaxTokens: 8192}, 1)
	})
	var want []struct{ LogProbs []float32 }
	tokens := 0
	for line := range strings.Lines(printed) {
		var row struct{ LogProbs []float32 }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		want = append(want, row)
		tokens += len(row.LogProbs)
	}
	for _, name := range []string{"out.jsonl", "out.arrow", "out.parquet"} {
		out := filepath.Join(dir, name)
		printed := must(t, o, from, out)
		if !strings.HasSuffix(printed,
			"\nlonger than the teacher's context, and scored as far as that goes: 1 row\nwithout log-probabilities: 1 row (the first: row 5: the answer is more than a text, which a template writes)\n") {
			t.Errorf("prints %q", printed)
		}
		rows := sessiontest.Rows(t, out)
		if len(rows) != 7 || rows[5].Logprobs != nil || rows[6].LogprobsFault() != "" {
			t.Fatalf("%d rows: %+v", len(rows), rows[5:])
		}
		for i, row := range rows[:5] {
			if len(row.Logprobs) != len(want[i].LogProbs) || row.LogprobsFault() != "" {
				t.Fatalf("row %d: %d tokens, want %d; %s", i, len(row.Logprobs),
					len(want[i].LogProbs), row.LogprobsFault())
			}
			for k, at := range row.Logprobs {
				if d := at[0].LogProb - want[i].LogProbs[k]; d > 1e-5 || d < -1e-5 || len(at) < 3 {
					t.Errorf("row %d: token %d: %v, want %g", i, k, at, want[i].LogProbs[k])
				}
			}
		}
		scored, last := 0, rows[6].Logprobs
		for k, at := range last {
			if at[0].LogProb > data.NoLogProb {
				scored = k + 1
			}
		}
		if scored == 0 || scored >= len(last) {
			t.Errorf("%d of %d tokens of an answer that is longer than the context", scored, len(last))
		}
		if said := fmt.Sprintf("%s: 6 rows of 7 with log-probabilities, %d tokens; the teacher's mean NLL is ", out, tokens+scored); !strings.HasPrefix(printed, said) {
			t.Errorf("prints %q\nwants %q", printed, said)
		}
	}
	// Labels that are there are replaced, and another system message gives others.
	other, first := from, filepath.Join(dir, "out.jsonl")
	other.Paths = []string{first}
	for name, system := range map[string]string{"same": "", "system": "Be brief."} {
		out, o := filepath.Join(dir, name+".jsonl"), o
		o.System = system
		must(t, o, other, out)
		a := sessiontest.Rows(t, first)[0].Logprobs.String()
		b := sessiontest.Rows(t, out)[0].Logprobs.String()
		if equal := a == b; equal != (name == "same") {
			t.Errorf("%s: the same log-probabilities: %v", name, equal)
		}
	}
	// A column of prompts for the teacher gives other labels to the rows that have one.
	hinted := from
	hinted.Paths, hinted.TeacherPrompt = []string{filepath.Join(dir, "hinted.jsonl")}, "hint"
	raw, err := os.ReadFile(from.Paths[0])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(raw), "{", `{"hint":"Last letter of b c? It is c.",`, 1)
	if err := os.WriteFile(hinted.Paths[0], []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, o, hinted, filepath.Join(dir, "told.jsonl"))
	plain, told := sessiontest.Rows(t, first), sessiontest.Rows(t, filepath.Join(dir, "told.jsonl"))
	for i := range plain {
		if same := plain[i].Logprobs.String() == told[i].Logprobs.String(); same != (i > 0) {
			t.Errorf("row %d, a prompt of its own for the teacher: the same log-probabilities: %v", i,
				same)
		}
		if told[i].PromptText() != plain[i].PromptText() {
			t.Errorf("row %d: the student's prompt is %q", i, told[i].PromptText())
		}
	}
	hinted.Turns = data.TurnsEach
	none := from
	none.TeacherPrompt = "hint"
	for want, rows := range map[string]session.Rows{"use last": hinted,
		`column "hint" (--teacher-prompt-key): none of 7 rows has a value there`: none} {
		if _, _, err := scores(o, rows, filepath.Join(dir, "no.jsonl")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// A GGUF file is a teacher too; its weights are rounded.
	gguf := filepath.Join(dir, "teacher.gguf")
	if _, err := export.ModelGGUF(vfs.OS, o.Path, gguf, "f16"); err != nil {
		t.Fatal(err)
	}
	o.Path = gguf
	must(t, o, from, filepath.Join(dir, "gguf.jsonl"))
	a, b := sessiontest.Rows(t, first), sessiontest.Rows(t, filepath.Join(dir, "gguf.jsonl"))
	for i := range a {
		for k, at := range a[i].Logprobs {
			if d := at[0].LogProb - b[i].Logprobs[k][0].LogProb; d > .05 || d < -.05 {
				t.Errorf("row %d: token %d: by the GGUF file %v, want %v", i, k, b[i].Logprobs[k], at)
			}
		}
	}
}

// A scoring that was interrupted, wherever, has the same bytes in the end; one with other settings
// does not go on.
func TestDataScoreResumes(t *testing.T) {
	dir, o, from := scorable(t)
	out := filepath.Join(dir, "out.jsonl")
	must(t, o, from, out)
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	// the journal of a whole command, which removes it: by another name
	full, kept := filepath.Join(dir, "full.jsonl"), filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(full+".partial", nil, 0o644),
		os.Link(full+".partial", kept)); err != nil {
		t.Fatal(err)
	}
	must(t, o, from, full)
	partial, err := os.ReadFile(kept)
	lines := bytes.SplitAfter(partial, []byte("\n"))
	if err != nil || len(lines) != 1+7+1 { // settings, rows, nothing behind them
		t.Fatalf("%d records (%v):\n%s", len(lines), err, partial)
	}
	for k := range len(lines) {
		os.Remove(full)
		cut := bytes.Join(lines[:k], nil)
		cut = append(cut, lines[k][:len(lines[k])/2]...)
		if err := os.WriteFile(full+".partial", cut, 0o644); err != nil {
			t.Fatal(err)
		}
		must(t, o, from, full)
		if got, err := os.ReadFile(full); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("cut in record %d: %v\n%s\nwant\n%s", k, err, got, want)
		}
		if _, err := os.Stat(full + ".partial"); err == nil {
			t.Error("the journal is still there")
		}
	}
	os.Remove(full)
	if err := os.WriteFile(full+".partial", partial, 0o644); err != nil {
		t.Fatal(err)
	}
	for said, change := range map[string]func(o *Options, rows *session.Rows){
		"--top-logprobs was 4, now it is 5":     func(o *Options, _ *session.Rows) { o.Top = 5 },
		`--system was not given, now it is "x"`: func(o *Options, _ *session.Rows) { o.System = "x" },
		"--limit was 7, now it is 3":            func(_ *Options, rows *session.Rows) { rows.Limit = 3 },
		`--weights was "native", now it is "q8_0"`: func(o *Options, _ *session.Rows) {
			o.Quant = "q8_0"
		},
	} {
		o, from := o, from
		change(&o, &from)
		if _, got, err := scores(o, from, full); !errors.Is(err, fault.ErrUsage) || got !=
			"gad: data score: "+full+".partial: cannot be resumed: "+said+
				": give the same settings, or another --output\n" {
			t.Errorf("%s: %v, %s", said, err, got)
		}
	}
}

// Rows in chunks, the last of them smaller, have the bytes of rows at once.
func TestChunksOfRows(t *testing.T) {
	dir, o, from := scorable(t)
	whole, parts := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "parts.jsonl")
	must(t, o, from, whole)
	defer func(n int) { chunk = n }(chunk)
	chunk = 3
	must(t, o, from, parts)
	a, err1 := os.ReadFile(whole)
	b, err2 := os.ReadFile(parts)
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(a, b) {
		t.Errorf("%v: at once\n%s\nin chunks of 3\n%s", err, a, b)
	}
}

// A row has its own log-probabilities, wherever rows stand that have none.
func TestRowsWithoutLabelsBetween(t *testing.T) {
	dir, o, from := scorable(t)
	raw, err := os.ReadFile(from.Paths[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(raw), "\n")+"\n", "\n")[:7]
	out := filepath.Join(dir, "in order.jsonl")
	must(t, o, from, out)
	want := sessiontest.Rows(t, out)
	for _, first := range []int{2, 5} { // the row without stands fourth, and first
		path := filepath.Join(dir, fmt.Sprintf("from %d.jsonl", first))
		text := strings.Join(append(lines[first:len(lines):len(lines)], lines[:first]...), "")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		from.Paths, out = []string{path}, filepath.Join(dir, fmt.Sprintf("out %d.jsonl", first))
		must(t, o, from, out)
		for i, row := range sessiontest.Rows(t, out) {
			at := (first + i) % len(lines)
			if (row.Logprobs == nil) != (at == 5) ||
				row.Logprobs.String() != want[at].Logprobs.String() {
				t.Errorf("rows from %d on: row %d: %v, want %v", first, at, row.Logprobs,
					want[at].Logprobs)
			}
		}
	}
}
