package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/data"
)

// ratedLine is a line of ratings.
type ratedLine struct {
	Row     int                `json:"row"`
	Right   *float64           `json:"right"`
	Check   *float64           `json:"check"`
	Mean    *float64           `json:"d_mean"`
	Spread  *float64           `json:"d_spread"`
	Gap     *float64           `json:"d_gap"`
	NLL     *float64           `json:"teacher_nll"`
	Length  int                `json:"length"`
	Answers []data.RatedAnswer `json:"answers"`
	Teacher data.RatedAnswer   `json:"teacher"`
}

// raters are rows, the flags of a rating of them with every judge, and the folder of it. The
// checker calls an answer right that has an end, fails while a file stop is there, and notes how
// many rows it was asked.
func raters(t *testing.T) (dir string, args []string) {
	t.Helper()
	f := ready(t)
	dir = t.TempDir()
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	rows := bytes.Join(bytes.SplitAfter(raw, []byte("\n"))[:7], nil)
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), rows, 0o644); err != nil {
		t.Fatal(err)
	}
	checker := "cd " + dir + ` && [ ! -e stop ] && while read -r l; do echo >> asked; case "$l" in *'"truncated":true'*) echo 0;; *) echo 1;; esac; done`
	run := f.path("train", "global_step_3")
	return dir, []string{"data", "rate", "--model", filepath.Join(run, "actor"), "--critic",
		filepath.Join(run, "critic"), "--checker", checker, "--data",
		filepath.Join(dir, "rows.jsonl"),
		"--n", "3", "--max-new-tokens", "8", "--keep-answers"}
}

// Ratings are what gad logprobs and gad score say of the teacher's answers, and what the judges
// say of the student's.
func TestRate(t *testing.T) {
	dir, args := raters(t)
	out := filepath.Join(dir, "ratings.jsonl")
	printed, _ := must(t, append(args, "--output", out)...)
	if !strings.HasPrefix(printed, out+": 7 rows rated; means: right 0.") ||
		strings.Count(printed, "\n") != 1 {
		t.Errorf("printed %q", printed)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	var head data.RatingsHead
	if err := json.Unmarshal([]byte(first), &head); err != nil || head.Rows != 7 || head.N != 3 ||
		!head.Answers || head.ScoredBy != "checker" {
		t.Errorf("%s: %v", first, err)
	}
	lines := objects[ratedLine](t, rest)
	rows, actor, critic := filepath.Join(dir, "rows.jsonl"), args[3], args[5]
	printed, _ = must(t, "logprobs", "--model", actor, "--data", rows, "--max-response-length", "8")
	logprobs := objects[rowOut](t, printed)
	printed, _ = must(t, "score", "--critic", critic, "--data", rows, "--max-response-length", "8")
	teachers := objects[rowOut](t, printed)
	somebody := false
	for i, l := range lines {
		var sum float64
		for _, x := range logprobs[i].LogProbs {
			sum -= float64(x)
		}
		whole := 0.0
		for _, a := range l.Answers {
			if *a.Score > 0 != !a.Truncated || len(a.IDs) == 0 || len(a.IDs) > 8 {
				t.Errorf("row %d: answer %+v", i, a)
			}
			whole += *a.Score / 3
		}
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
				t.Errorf("row %d: %s %g, want %g", i, what, got, want)
			}
		}
		near("teacher_nll", *l.NLL, sum/float64(len(logprobs[i].LogProbs)))
		near("the teacher's score", *l.Mean+*l.Gap, float64(teachers[i].Score))
		near("right", *l.Right, whole)
		near("check", *l.Check, whole)
		somebody = somebody || *l.Spread > 0
		if l.Row != i || len(l.Answers) != 3 || l.Length < len(logprobs[i].Response) {
			t.Errorf("row %d: %+v", i, l)
		}
	}
	if !somebody || len(lines) != 7 {
		t.Errorf("%d lines, and all scores of a row are equal: %s", len(lines), raw)
	}
	printed, _ = must(t, "data", "inspect", "--data", rows, "--ratings", out, "--where",
		"right < 2")
	if !strings.Contains(printed, "note: where right < 2: 7 of 7 rows") {
		t.Errorf("inspect: %s", printed)
	}
}

// A rating that was interrupted, wherever, has the same bytes in the end, and asks nobody for what
// it has.
func TestRateResumes(t *testing.T) {
	dir, args := raters(t)
	rate := func(name string) (int, string, []byte) {
		out := filepath.Join(dir, name)
		code, _, said := gad(append(args, "--output", out)...)
		raw, _ := os.ReadFile(out)
		return code, said, raw
	}
	asked := func() int {
		raw, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return len(raw)
	}
	_, _, want := rate("whole")
	once := asked()
	if len(want) == 0 || once != 7*4 {
		t.Fatalf("%d bytes, the checker was asked %d times", len(want), once)
	}
	stop := filepath.Join(dir, "stop")
	if err := os.WriteFile(stop, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, said, raw := rate("half"); code != exitInput || raw != nil ||
		!strings.Contains(said, "row 0 has no score: printed 0 of 28") {
		t.Fatalf("a checker that fails: %d, %s", code, said)
	}
	if err := os.Remove(stop); err != nil {
		t.Fatal(err)
	}
	partial, err := os.ReadFile(filepath.Join(dir, "half.partial"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(partial, []byte("\n"))
	if len(lines) != 1+7+21+7+1 { // settings, teachers, answers, scores, and nothing behind them
		t.Fatalf("%d records:\n%s", len(lines), partial)
	}
	for _, k := range []int{0, 1, 3, 8, 9, 20, 31, 36} {
		cut := bytes.Join(lines[:k], nil)
		if k < len(lines)-1 {
			cut = append(cut, lines[k][:len(lines[k])/2]...)
		}
		name := filepath.Join(dir, "cut")
		if err := os.WriteFile(name+".partial", cut, 0o644); err != nil {
			t.Fatal(err)
		}
		if code, said, raw := rate("cut"); code != exitDone || !bytes.Equal(raw, want) {
			t.Fatalf("cut behind record %d: %d, %s\n%s\nwant\n%s", k, code, said, raw, want)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	before := asked()
	if code, _, raw := rate("half"); code != exitDone || !bytes.Equal(raw, want) ||
		asked()-before != once {
		t.Errorf("half: %d, the checker was asked %d times more", code, asked()-before)
	}
}
