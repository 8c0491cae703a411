package rubric

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gad/apps/judge/pipe"
	"gad/apps/session"
	"gad/checkpoint"
	"gad/internal/child"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/vfs"
	"gad/trainer/checker"
)

// lengthJudge is a judge with one criterion, which answers of an even length meet.
func lengthJudge(t *testing.T) *endpointtest.Server {
	t.Helper()
	title := regexp.MustCompile(`(?m)^<<[0-9a-f]{16} (.*)>>$`)
	s, err := endpointtest.Start(&endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) {
			text := c.Messages[1].Content
			if !strings.Contains(text, " criteria>>\n") {
				return `{"criteria": [{"criterion": "has an even length", "weight": 1}]}`, "stop"
			}
			at := title.FindAllStringSubmatchIndex(text, -1)
			var grades [][]bool
			for i, x := range at[:len(at)-1] {
				if strings.HasPrefix(text[x[2]:x[3]], "answer ") {
					grades = append(grades, []bool{(at[i+1][0]-x[1]-2)%2 == 0})
				}
			}
			raw, _ := json.Marshal(map[string]any{"grades": grades})
			return string(raw), "stop"
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// row is a line of what a checker gets.
func row(n int, answer string) string {
	raw, _ := json.Marshal(checker.Row{Row: n, Prompt: fmt.Sprint("q", n),
		Content: []checker.Message{{Role: "user", Content: fmt.Sprint("q", n)}}, Response: answer,
		Teacher: "the teacher's"})
	return string(raw) + "\n"
}

// call runs a call of the checker.
func call(o pipe.Options, in string) (out, said string, err error) {
	var stdout, stderr bytes.Buffer
	err = pipe.Run(&session.Session{Out: &stdout, Err: &stderr, FS: vfs.OS}, o, strings.NewReader(in))
	return stdout.String(), stderr.String(), err
}

func options(s *endpointtest.Server, dir string) pipe.Options {
	return pipe.Options{Job: Job, Endpoint: endpoint.Options{BaseURL: s.URL, Retries: -1,
		Concurrency: 3},
		Model: "m", Dir: dir, MaxTokens: 100}
}

// Rows with one number are a group, in whatever order; each has its score in its place. The file of
// replies is that of the prompts: other answers to them are asked for in it, the same ones are not.
func TestRun(t *testing.T) {
	s, dir := lengthJudge(t), filepath.Join(t.TempDir(), "a", "kept")
	o := options(s, dir)
	o.Price = &endpoint.Price{Input: 1000, Output: 1000}
	in := row(5, "xx") + row(7, "x") + row(5, "xxx") + row(7, "") + row(5, "xx")
	out, said, err := call(o, in)
	if err != nil || out != "1\n0\n0\n1\n1\n" {
		t.Fatalf("%q, %v", out, err)
	}
	want := regexp.MustCompile(`^rubrics of 2 prompts: 4 requests made, \d+ tokens to it and \d+ from it, \$\d\.\d\d; 0 in .* before\n$`)
	if !want.MatchString(said) || len(s.Calls()) != 4 {
		t.Errorf("%d calls, %s", len(s.Calls()), said)
	}
	if again, said, err := call(o, in); err != nil || again != out || len(s.Calls()) != 4 ||
		!strings.HasPrefix(said, "rubrics of 2 prompts: 0 requests made, 0 tokens to it and 0 from it, $0.00; 4 in ") {
		t.Errorf("again: %q, %v, %d calls\n%s", again, err, len(s.Calls()), said)
	}
	if out, _, err := call(o, row(5, "x")+row(7, "xx")); err != nil || out != "0\n1\n" {
		t.Errorf("other answers: %q, %v", out, err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if len(files) != 1 {
		t.Errorf("files %q of one list of prompts", files)
	}
	if _, _, err := call(o, row(5, "x")); err != nil {
		t.Error(err)
	}
	if files, _ = filepath.Glob(filepath.Join(dir, "*.jsonl")); len(files) != 2 {
		t.Errorf("files %q of two lists of prompts", files)
	}
	var spent bytes.Buffer
	if err := pipe.PrintCost(&session.Session{Out: &spent, FS: vfs.OS}, o); err != nil {
		t.Fatal(err)
	}
	if ok, _ := regexp.MatchString(`^.*kept: 10 replies of the judge, \d+ tokens to it and \d+ from it, \$\d\.\d\d; 0 prompts without an answer of the endpoint\n$`, spent.String()); !ok {
		t.Error(spent.String())
	}
	if out, _, err := call(o, ""); out != "" || err != nil {
		t.Errorf("no rows: %q, %v", out, err)
	}
}

// A prompt that the endpoint refuses has no score, said and kept; a trial says what is to come.
func TestGap(t *testing.T) {
	s := lengthJudge(t)
	s.Misbehave = func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if strings.Contains(c.Messages[1].Content, "q8\n") {
			endpointtest.Fail(w, 400, "content_filter", "no")
			return true
		}
		return false
	}
	o := options(s, t.TempDir())
	o.Price = &endpoint.Price{Input: 1, Output: 10}
	t.Setenv(checker.TrialVar, `{"steps":200,"prompts":32,"answers":8,"validation_rows":100,"prompt_bytes":400,"teacher_bytes":1200}`)
	_, said, err := call(o, row(1, "xx"))
	var to, from, later, dollars, all float64
	first, _, _ := strings.Cut(said, "\n")
	_, step, _ := strings.Cut(first, "a step asks ")
	if _, scanned := fmt.Sscanf(step, "64 requests (2 for each of 32 prompts with 8 answers): %g tokens to it and %g from it, $%f, $%f in 200 steps; a validation asks 200 requests the first time, %g later", &to, &from, &dollars, &all, &later); err != nil || scanned != nil || later != 100 {
		t.Errorf("%v, %v\n%s", err, scanned, first)
	}
	// Twice the prompt, 17 answers of the teacher's length, a rubric, 48 grades, and the rules.
	least := 32. * (2*100 + 17*300 + 250 + 48*5)
	if cost := (to + 10*from) / 1e6; to < least+32*300 || to > least+32*1000 ||
		from != 32*(250+2*48) || math.Abs(dollars-cost) > 0.005 ||
		math.Abs(all-200*cost) > 0.005 {
		t.Errorf("%g tokens to it, %g from it, $%g, $%g in all", to, from, dollars, all)
	}
	os.Unsetenv(checker.TrialVar)
	for range 2 {
		calls := len(s.Calls())
		out, said, err := call(o, row(8, "xx")+row(1, "xx")+row(8, "x"))
		if err != nil || out != "null\n1\nnull\n" ||
			!strings.Contains(said, "; 1 without, the first: \"endpoint: ") {
			t.Errorf("%q, %v\n%s", out, err, said)
		}
		s.Misbehave = nil // what is kept stays so
		if calls > 5 && len(s.Calls()) != calls {
			t.Errorf("asked again: %d calls", len(s.Calls())-calls)
		}
	}
}

// A call waits for one that has its file, and ends in time where it does not come to an end.
func TestLocked(t *testing.T) {
	s := lengthJudge(t)
	o := options(s, t.TempDir())
	if _, _, err := call(o, row(1, "xx")); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(o.Dir, "*.jsonl"))
	lock, err := checkpoint.LockOutput(files[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(child.Deadline, fmt.Sprint(time.Now().Add(2*time.Second).Unix()))
	if _, _, err := call(o, row(1, "x")); !errors.Is(err, checkpoint.ErrLocked) {
		t.Errorf("while another has it: %v", err)
	}
	t.Setenv(child.Deadline, fmt.Sprint(time.Now().Add(time.Hour).Unix()))
	time.AfterFunc(300*time.Millisecond, func() { lock.Unlock() })
	if out, _, err := call(o, row(1, "x")); err != nil || out != "0\n" {
		t.Errorf("after another had it: %q, %v", out, err)
	}
}

func TestWrongRows(t *testing.T) {
	s := lengthJudge(t)
	o := options(s, t.TempDir())
	for in, want := range map[string]string{
		row(1, "x") + "{\n": "rubric: line 2 of standard input: unexpected EOF: give what a checker gets, one JSON object per line (doc/the-game.md)",
		`{"row":1,"content":[{"role":"user","content":"q"}],"teacher_response":"t"}`: "rubric: line 1 of standard input: has no response or no content: a rubric is about a conversation in text, and an answer",
		`{"row":1,"content":[],"teacher_response":"t","response":"r"}`:               "rubric: line 1 of standard input: has no response or no content: a rubric is about a conversation in text, and an answer",
		`{"row":3,"content":[{"role":"user","content":"q"}],"response":"r"}`:         "rubric: line 1 of standard input: row 3 has no teacher's answer: a rubric is made from it",
	} {
		if out, _, err := call(o, in); out != "" || err == nil || err.Error() != want {
			t.Errorf("%s: %q, %v\nwant %s", in, out, err, want)
		}
	}
	o.Dir = filepath.Join(o.Dir, "file")
	if err := os.WriteFile(o.Dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := call(o, row(1, "x")); err == nil || !errors.Is(err, vfs.ErrTarget) {
		t.Errorf("a journal that is a file: %v", err)
	}
	if n := len(s.Calls()); n > 0 {
		t.Errorf("%d calls", n)
	}
}
