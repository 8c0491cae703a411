package rate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gad/apps/score"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/trainer/modeltest"
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

// raters are rows, and a rating of them with every judge. The checker calls an answer right that
// has an end, fails while a file stop is there, and notes how many rows it was asked.
func raters(t *testing.T) (dir string, o Options, rows session.Rows) {
	t.Helper()
	dir = t.TempDir()
	raw, err := os.ReadFile(modeltest.Letters("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(path, bytes.Join(bytes.SplitAfter(raw, []byte("\n"))[:7], nil),
		0o644); err != nil {
		t.Fatal(err)
	}
	cols := data.DefaultColumns()
	cpu := device.Options{Name: "cpu", Threads: 1}
	return dir, Options{Source: session.Source{Path: modeltest.Student(t), Device: cpu},
			Sampling: compute.Sampling{Temperature: 1, TopP: 1}, Critic: modeltest.Critic(t),
			Checker:        "cd " + dir + ` && [ ! -e stop ] && while read -r l; do echo >> asked; case "$l" in *'"truncated":true'*) echo 0;; *) echo 1;; esac; done`,
			CheckerTimeout: time.Minute, RightAt: 1, N: 3, MaxNew: 8, MaxTokens: 8192, Seed: 1,
			KeepAnswers: true},
		session.Rows{Command: "data rate", Paths: []string{path}, Format: data.FormatAuto,
			Content: cols.Content, Answer: cols.Teacher}
}

// rates runs a rating into a file.
func rates(o Options, rows session.Rows, output string) (printed, said string, err error) {
	return sessiontest.Run(func(s *session.Session) error { return Rate(s, o, rows, output) })
}

// read decodes lines of JSON.
func read[T any](t *testing.T, text string) (list []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		var x T
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, x)
	}
	return list
}

// Ratings are what gad logprobs and gad score say of the teacher's answers, and what the judges
// say of the student's.
func TestRate(t *testing.T) {
	dir, o, rows := raters(t)
	out := filepath.Join(dir, "ratings.jsonl")
	printed, said, err := rates(o, rows, out)
	if err != nil {
		t.Fatal(said)
	}
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
	lines := read[ratedLine](t, rest)
	given := score.Options{Source: o.Source, Rows: rows, MaxResponse: 8, MaxTokens: 8192}
	printed, _ = sessiontest.Must(t, func(s *session.Session) error {
		return score.LogProbs(s, given, 1)
	})
	logprobs := read[struct {
		LogProbs []float32
		Response []int32 `json:"response_ids"`
	}](t, printed)
	given.Path = o.Critic
	printed, _ = sessiontest.Must(t, func(s *session.Session) error {
		return score.Scores(s, given)
	})
	teachers := read[struct{ Score float64 }](t, printed)
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
		near("the teacher's score", *l.Mean+*l.Gap, teachers[i].Score)
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
}

// A rating that was interrupted, wherever, has the same bytes in the end, and asks nobody for what
// it has.
func TestRateResumes(t *testing.T) {
	dir, o, rows := raters(t)
	//lint:ignore ST1008 a test reads the error first
	rate := func(name string) (error, string, []byte) {
		out := filepath.Join(dir, name)
		_, said, err := rates(o, rows, out)
		raw, _ := os.ReadFile(out)
		return err, said, raw
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
	if err, said, raw := rate("half"); err == nil || raw != nil ||
		!strings.Contains(said, "row 0 has no score: printed 0 of 28") {
		t.Fatalf("a checker that fails: %v, %s", err, said)
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
		if err, said, raw := rate("cut"); err != nil || !bytes.Equal(raw, want) {
			t.Fatalf("cut behind record %d: %v, %s\n%s\nwant\n%s", k, err, said, raw, want)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	before := asked()
	if err, _, raw := rate("half"); err != nil || !bytes.Equal(raw, want) ||
		asked()-before != once {
		t.Errorf("half: %v, the checker was asked %d times more", err, asked()-before)
	}
}

// A command that is killed behind the rename of its output, before or after its records are
// removed, has done its work: the same command says so, and another one is refused.
func TestRatedBefore(t *testing.T) {
	dir, o, rows := raters(t)
	out := filepath.Join(dir, "ratings.jsonl")
	if _, said, err := rates(o, rows, out); err != nil {
		t.Fatal(said)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	partial := out + ".partial"
	for _, left := range []bool{true, false} {
		if left {
			if err := os.WriteFile(partial, []byte("records"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		printed, said, err := rates(o, rows, out)
		_, stat := os.Stat(partial)
		raw, _ := os.ReadFile(out)
		if err != nil || !bytes.Equal(raw, want) || stat == nil ||
			printed != out+": 7 rows rated before, by the same command\n" {
			t.Errorf("prints %s, says %s, removed: %v", printed, said, stat)
		}
	}
	for name, change := range map[string]func(o *Options, rows *session.Rows){
		"seed":         func(o *Options, _ *session.Rows) { o.Seed = 2 },
		"right-at":     func(o *Options, _ *session.Rows) { o.RightAt = 0.5 },
		"keep-answers": func(o *Options, _ *session.Rows) { o.KeepAnswers = false },
		"limit":        func(_ *Options, rows *session.Rows) { rows.Limit = 3 },
		"critic":       func(o *Options, _ *session.Rows) { o.Critic = "" },
		"model":        func(o *Options, _ *session.Rows) { o.Path = modeltest.Blank(t) },
	} {
		o, rows := o, rows
		change(&o, &rows)
		if _, said, err := rates(o, rows, out); !errors.Is(err, fault.ErrUsage) ||
			!strings.Contains(said, "exists: nothing is overwritten") {
			t.Errorf("another %s: %v, %s", name, err, said)
		}
	}
	if raw, err := os.ReadFile(out); err != nil || !bytes.Equal(raw, want) {
		t.Errorf("the output has changed: %v", err)
	}
}

// Rows in chunks, the last of them smaller, have the bytes of rows at once.
func TestChunksOfRows(t *testing.T) {
	dir, o, rows := raters(t)
	defer func(n int) { chunk = n }(chunk)
	var outputs [2][]byte
	for i, n := range []int{64, 3} {
		chunk = n
		out := filepath.Join(dir, fmt.Sprint(n))
		_, said, err := rates(o, rows, out)
		if err != nil {
			t.Fatal(said)
		}
		if outputs[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(outputs[0], outputs[1]) {
		t.Errorf("at once\n%s\nin chunks of 3\n%s", outputs[0], outputs[1])
	}
}

// A mean is over the rows that have the figure: here all but one have a likelihood.
func TestMeanOfMissingFigures(t *testing.T) {
	dir, o, rows := raters(t)
	out := filepath.Join(dir, "ratings.jsonl")
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := rates(o, rows, out); err == nil {
		t.Fatal("the checker has not failed")
	}
	partial, err := os.ReadFile(out + ".partial")
	if err != nil {
		t.Fatal(err)
	}
	nlls := regexp.MustCompile(`("key":"t/\d+","record":\{"nll":)([0-9.e+-]+)`)
	sum, all := 0.0, nlls.FindAllSubmatch(partial, -1)
	for _, m := range all[1:] {
		x, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += x
	}
	partial = bytes.Replace(partial, all[0][0], append(all[0][1], "null"...), 1)
	if err := errors.Join(os.WriteFile(out+".partial", partial, 0o644),
		os.Remove(filepath.Join(dir, "stop"))); err != nil {
		t.Fatal(err)
	}
	printed, said, err := rates(o, rows, out)
	if want := fmt.Sprintf("teacher_nll %.3g, ", sum/6); err != nil || len(all) != 7 ||
		!strings.Contains(printed, want) {
		t.Errorf("%v: prints %s, want %s; %s", err, printed, want, said)
	}
}
