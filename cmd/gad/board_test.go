//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/apps/board"
)

// documented reads what gad board --json prints.
func documented(t *testing.T, args ...string) (d board.Document) {
	t.Helper()
	out, said := must(t, append([]string{"board", "--json"}, args...)...)
	if said != "" {
		t.Errorf("says %q", said)
	}
	var all struct { // a number may be the text NaN: those are not looked into

		Runs []struct {
			board.Run
			Last, Recent json.RawMessage
		}
		Metrics  []board.Metric
		Settings []board.Setting
		Series   board.Curves
		Scores   []json.RawMessage
		Samples  []struct{ Run, Step int }
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %.300s", err, out)
	}
	for _, r := range all.Runs {
		d.Runs = append(d.Runs, r.Run)
	}
	for _, s := range all.Samples {
		d.Samples = append(d.Samples, board.Samples{Run: s.Run, Step: s.Step})
	}
	d.Metrics, d.Keys, d.Curves = all.Metrics, all.Settings, all.Series
	return d
}

// Runs of every stage, as the program writes them, are told apart and shown, and the
// board leaves them as they are.
func TestBoardOfEveryStage(t *testing.T) {
	f := ready(t)
	stages := []string{"sft", "warmup", "train", "dpo"}
	var paths []string
	before := map[string]map[string]string{}
	for _, s := range stages {
		paths = append(paths, f.path(s))
		before[s] = tree(t, f.path(s))
	}
	d := documented(t, paths...)
	for i, s := range stages {
		r := d.Runs[i]
		if r.Name != s || r.Stage != s || r.State != "finished" || len(r.Problems) > 0 ||
			r.Steps != r.Total || len(r.Headline) < 2 || len(r.Settings) < 50 ||
			len(r.Changed) == 0 {
			t.Errorf(
				"%s: %q of stage %q, %s, %d of %d steps, headline %q, problems %q, %d settings", s,
				r.Name, r.Stage, r.State, r.Steps, r.Total, r.Headline, r.Problems, len(r.Settings))
		}
		if n := len(d.Curves.Runs[i]["timing_s/step"].Step); n != r.Steps {
			t.Errorf("%s: a curve of %d points, %d steps", s, n, r.Steps)
		}
		if after := tree(t, f.path(s)); len(after) != len(before[s]) {
			t.Errorf("%s: %d files, there were %d", s, len(after), len(before[s]))
		}
	}
	var sampled []int
	for _, s := range d.Samples {
		sampled = append(sampled, s.Run)
	}
	// by run; gad sft has none
	if want := []int{1, 1, 1, 1, 2, 2, 2, 3, 3}; !slices.Equal(sampled, want) {
		t.Errorf("samples of the runs %v, want %v", sampled, want)
	}
	if d = documented(t, f.path("sft"), "--points", "10", "--samples",
		"0"); len(d.Curves.Runs[0]["actor/sft_loss"].Step) != 10 || len(d.Samples) != 0 {
		t.Errorf("10 points: %d", len(d.Curves.Runs[0]["actor/sft_loss"].Step))
	}
}

// A report is one file that loads nothing, is written over, and holds the samples.
func TestReport(t *testing.T) {
	f := ready(t)
	t.Chdir(t.TempDir())
	for range 2 {
		if out, _ := must(t, "report", f.path("train"), f.path("sft")); !regexp.MustCompile(`^report\.html: 2 runs, [0-9.]+ MB\n$`).MatchString(out) {
			t.Errorf("prints %q", out)
		}
	}
	raw, err := os.ReadFile("report.html")
	if err != nil {
		t.Fatal(err)
	}
	sample := fileText(f.path("train", "samples", "step_3.jsonl"))
	var first struct{ Prompt, Teacher string }
	if err := json.Unmarshal([]byte(sample[:strings.Index(sample, "\n")]), &first); err != nil {
		t.Fatal(err)
	}
	quoted, _ := json.Marshal(first.Teacher)
	if !strings.Contains(string(raw), string(quoted)) || first.Teacher == "" {
		t.Errorf("the report lacks the sample %s", quoted)
	}
	if m := regexp.MustCompile(`(src|href)="(https?:|//|[a-z]+\.(js|css))`).Find(raw); m != nil {
		t.Errorf("the report loads something: %s", m)
	}
}

// The server says where it is, answers on the loopback interface alone, and ends with
// exit status 0 when it is told to.
func TestBoardServes(t *testing.T) {
	path, f := built(t), ready(t)
	said := filepath.Join(t.TempDir(), "said")
	out, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := start(t, "/bin/sh", "-c", `exec "$0" board --port 0 "$1" 2>"$2"`, path, f.path("train"), said)
	find := regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+/`)
	wait(t, "the address", func() bool { return find.MatchString(fileText(said)) })
	url := find.FindString(fileText(said))
	answer, err := http.Get(url + "api/board")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != 200 || !strings.Contains(string(raw), `"stage":"train"`) {
		t.Errorf("%v: %s: %.300s", err, answer.Status, raw)
	}
	p.Process.Signal(syscall.SIGTERM)
	if code := p.end(t, 20*time.Second); code != exitDone {
		t.Errorf("exit status %d: %s", code, fileText(said))
	}
}
