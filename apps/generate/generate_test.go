package generate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/score"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/trainer/modeltest"
)

// answering returns the options of gad generate with a student at temperature 1.
func answering(student string, n int) Options {
	return Options{Source: session.Source{Path: student,
		Device: device.Options{Name: "cpu", Threads: 1}}, N: n, MaxNew: 12, Seed: 1,
		Sampling: compute.Sampling{Temperature: 1, TopP: 1}}
}

// rowsOf returns the first rows of a file.
func rowsOf(path string, limit int) session.Rows {
	cols := data.DefaultColumns()
	return session.Rows{Command: "generate", Paths: []string{path}, Format: data.FormatAuto,
		Content: cols.Content, Answer: cols.Teacher, Limit: limit}
}

// asked returns what gad generate --prompt prints.
func asked(t *testing.T, o Options, p Prompt) string {
	t.Helper()
	p.Text = "Add 1+2+3"
	printed, _ := sessiontest.Must(t, func(s *session.Session) error { return Answer(s, o, p) })
	return printed
}

func TestAnswer(t *testing.T) {
	o := answering(modeltest.Student(t), 3)
	printed := asked(t, o, Prompt{JSON: true})
	var texts []string
	for line := range strings.Lines(printed) {
		var a struct {
			Sample   int
			Text     string
			Prompt   []int32   `json:"prompt_ids"`
			Response []int32   `json:"response_ids"`
			LogProbs []float64 `json:"logprobs"`
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Sample != len(texts) ||
			len(a.Prompt) == 0 || len(a.Response) != len(a.LogProbs) {
			t.Errorf("%v: %s", err, line)
		}
		texts = append(texts, a.Text)
	}
	if len(texts) != 3 {
		t.Fatalf("prints %s", printed)
	}
	if asked(t, o, Prompt{JSON: true}) != printed {
		t.Error("the same command gives other answers")
	}
	one := o
	one.N = 1
	if text := asked(t, one, Prompt{}); text != texts[0]+"\n" {
		t.Errorf("without --json %q, with it %q", text, texts[0])
	}
	if o.Seed = 2; asked(t, o, Prompt{JSON: true}) == printed {
		t.Error("another seed gives the same answers")
	}
}

// Token by token the same text comes as at once, characters whole.
func TestStream(t *testing.T) {
	o := answering(modeltest.Student(t), 1)
	o.Temperature, o.MaxNew = 3, 40
	for o.Seed = range 4 {
		whole, streamed := asked(t, o, Prompt{}), asked(t, o, Prompt{Stream: true})
		if streamed != whole {
			t.Errorf("seed %d: streamed %q, at once %q", o.Seed, streamed, whole)
		}
	}
}

func TestReadPrompt(t *testing.T) {
	if text, err := ReadPrompt(strings.NewReader("Add 1+2+3\n")); text != "Add 1+2+3" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	for content, want := range map[string]string{"\n": "is empty",
		"\xff\xfe": "is not UTF-8 text"} {
		want = "generate: --prompt -: standard input " + want
		if _, err := ReadPrompt(strings.NewReader(content)); !errors.Is(err, fault.ErrUsage) ||
			err.Error() != want {
			t.Errorf("%q: %v, want %s", content, err, want)
		}
	}
}

// Every row is answered with every sample; each answer is that of the same row alone, and the file
// is data for gad score.
func TestAnswerData(t *testing.T) {
	student, dir := modeltest.Student(t), t.TempDir()
	o, from := answering(student, 3), rowsOf(modeltest.Letters("test.jsonl"), 10)
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, o Options, from session.Rows) (text, printed, said string) {
		t.Helper()
		printed, said = sessiontest.Must(t,
			func(s *session.Session) error { return AnswerData(s, o, from, file(name)) })
		raw, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw), printed, said
	}
	all, printed, _ := write("all.jsonl", o, from)
	if !strings.Contains(printed, "30 answers to 10 rows") {
		t.Errorf("prints %q", printed)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(all, "\n"), "\n")
	if len(lines) != 30 {
		t.Fatalf("%d answers", len(lines))
	}
	for i, line := range lines {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Row != i/3 ||
			a.Sample != i%3 || len(a.Content) == 0 || a.Teacher == "" || a.Tokens < 1 ||
			a.Truncated != (a.Finish == "length") ||
			a.Truncated != (a.Tokens == 12 && a.Finish != "stop") {
			t.Errorf("line %d: %v, %+v", i, err, a)
		}
	}
	if _, err := os.Stat(file("all.jsonl.partial")); !os.IsNotExist(err) {
		t.Errorf("the journal is left: %v", err)
	}
	// What an environment gets of a row stays with its answers.
	if err := os.WriteFile(file("env.jsonl"),
		[]byte(`{"content":"q","env":{"n": 1.50}}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := write("acted.jsonl", answering(student, 2), rowsOf(file("env.jsonl"),
		0)); strings.Count(got, `,"env":{"n":1.50},`) != 2 {
		t.Errorf("writes\n%s", got)
	}
	// The rows before a limit are the same, whatever comes after them.
	if two, _, _ := write("two.jsonl", o, rowsOf(from.Paths[0], 2)); !strings.HasPrefix(all, two) ||
		strings.Count(two, "\n") != 6 {
		t.Errorf("a limit of 2 gives other answers:\n%s", two)
	}
	other := o
	other.Seed = 2
	if text, _, _ := write("other.jsonl", other, from); text == all {
		t.Error("another seed gives the same answers")
	}
	scores, _ := sessiontest.Must(t, func(s *session.Session) error {
		return score.Scores(s, score.Options{Source: session.Source{Path: modeltest.Critic(t),
			Device: o.Device}, Rows: rowsOf(file("all.jsonl"), 0), MaxResponse: 12,
			MaxTokens: 8192})
	})
	if n := strings.Count(scores, "\n"); n != 30 {
		t.Errorf("%d scores", n)
	}

	// From any part of the journal the same bytes come.
	head := begun(t, o, from)
	for k, part := range map[string]string{
		"nothing":               "",
		"some, out of order":    lines[7] + lines[2] + lines[0] + lines[1],
		"a line cut short":      lines[0] + lines[1][:20],
		"a last line unended":   strings.TrimSuffix(lines[4], "\n"),
		"the same answer twice": lines[4] + lines[4],
	} {
		keyed := head
		for line := range strings.Lines(part) {
			i := slices.IndexFunc(lines, func(whole string) bool {
				return strings.HasPrefix(whole, strings.TrimSuffix(line, "\n"))
			})
			keyed += fmt.Sprintf(`{"key":%q,"record":`, answerKey(i/3, i%3)) +
				strings.Replace(line, "\n", "}\n", 1)
		}
		name := strings.ReplaceAll(k, " ", "-") + ".jsonl"
		if err := os.WriteFile(file(name+".partial"), []byte(keyed), 0o644); err != nil {
			t.Fatal(err)
		}
		text, _, said := write(name, o, from)
		if text != all {
			t.Errorf("%s: other bytes than without an interruption", k)
		}
		if strings.Contains(part, "\n") && !strings.Contains(said, "resuming, ") {
			t.Errorf("%s: does not say that it resumes: %s", k, said)
		}
	}
}

// begun returns the first record of the journal of answers to rows: their settings.
func begun(t *testing.T, o Options, from session.Rows) (line string) {
	t.Helper()
	sessiontest.Must(t, func(s *session.Session) error {
		set, _, err := from.List(s)
		if err != nil {
			return err
		}
		defer set.Close()
		b := &batch{s: s, o: o, limit: o.MaxNew}
		settings, err := b.describe(from, set)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(settings)
		line = fmt.Sprintf(`{"key":"settings","record":%s}`+"\n", raw)
		return err
	})
	return line
}
