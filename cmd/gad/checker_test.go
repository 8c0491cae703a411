//go:build unix

package main

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gad/checkpoint"
)

// A checker in gad eval: mean, interval and labels, for programs and for people; one
// that fails is a failure of the run, on one line.
func TestEvalChecker(t *testing.T) {
	slow(t)
	f := ready(t)
	args := []string{"eval", "--model", f.path("sft", "global_step_60", "actor"), "--data",
		f.path("test.jsonl"), "--max-response-length", "14", "--disc-steps", "0"}
	checker := `n=0; while read -r line; do n=$((n+1)); if test $n -le 4; then echo '{"score":1,"label":"good"}'; else echo '{"score":0,"label":"bad"}'; fi; done`
	printed, _ := must(t, append(args, "--json", "--checker", checker)...)
	e := objects[struct {
		evalFigures
		Check  float64            `json:"check"`
		CI     [2]float64         `json:"check_ci95"`
		Labels map[string]float64 `json:"labels"`
	}](t, printed)[0]
	near := func(x, y float64) bool { return x > y-1e-9 && x < y+1e-9 }
	if !near(e.Check, 0.4) || !(e.CI[0] > 0 && e.CI[0] < 0.3 && e.CI[1] > 0.5 && e.CI[1] < 1) ||
		len(e.Labels) != 2 || !near(e.Labels["good"], 0.4) || !near(e.Labels["bad"], 0.6) {
		t.Errorf("%s", printed)
	}
	text, _ := must(t, append(args, "--checker", checker)...)
	if !strings.Contains(text, "checker's score               0.400 [0.") || !strings.Contains(text, "\n  bad                         0.600 [0.313, 0.832]\n  good                        0.400 [0.168, 0.687]\n") {
		t.Errorf("prints\n%s", text)
	}
	for command, want := range map[string]string{
		"exit 2":                     `gad: checker: "exit 2": row 0 has no score: printed 0 of 10: ended with exit status 2: must end with exit status 0`,
		"head -n 9 | sed 's/.*/1/'":  `gad: checker: "head -n 9 | sed 's/.*/1/'": row 9 has no score: printed 9 of 10: print one line per row, in order`,
		"sleep 60 --checker-timeout": "",
	} {
		if want == "" {
			command, want = "sleep 60", `gad: checker: "sleep 60": row 0 has no score: printed 0 of 10: not finished after 1s, so it was stopped: make it faster, or raise the time limit (trainer.checker_timeout, --checker-timeout)`
		}
		code, out, said := gad(append(args, "--checker-timeout", "1", "--checker", command)...)
		if code != exitFailed || !strings.HasSuffix(said, "\n"+want+"\n") ||
			strings.Count(said, "gad: ") != 1 || out != "" {
			t.Errorf("%s: exit status %d\n%s%swant %s", command, code, out, said, want)
		}
	}
	if code, _, said := gad(append(args, "--checker-timeout", "0", "--checker",
		"true")...); code != exitUsage {
		t.Errorf("--checker-timeout 0: exit status %d, %s", code, said)
	}
}

// Answers that the checker has no score for are left out of its figure, and counted; where all are,
// there is no figure.
func TestEvalWithoutScores(t *testing.T) {
	f := ready(t)
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	args := []string{"eval", "--model", f.path("student"), "--data", f.path("test.jsonl"),
		"--max-response-length", "14", "--disc-steps", "0", "--json", "--checker"}
	printed, said := must(t, append(args,
		`sed '1,3s/.*/null/;4s/.*/1/;5,$s/.*/0.5/'`, "--output", rows)...)
	type figures struct {
		evalFigures
		Check     *float64    `json:"check"`
		CI        *[2]float64 `json:"check_ci95"`
		Unchecked int         `json:"unchecked"`
	}
	e := objects[figures](t, printed)[0]
	if e.Check == nil || math.Abs(*e.Check-4./7) > 1e-9 || e.Unchecked != 3 || e.CI == nil ||
		!(e.CI[0] == 0.5 && e.CI[1] > 0.6 && e.CI[1] <= 1) {
		t.Errorf("%s", printed)
	}
	if !strings.Contains(said, f.path("student")+
		": the checker has no score for 3 of 10 answers: left out") {
		t.Errorf("says\n%s", said)
	}
	if text := fileText(rows); strings.Count(text, `"check":`) != 7 {
		t.Errorf("rows with a score\n%s", text)
	}
	printed, said = must(t, append(args, "sed 's/.*/null/'")...)
	if e := objects[figures](t, printed)[0]; e.Check != nil || e.CI != nil || e.Unchecked != 10 ||
		!strings.Contains(said, "10 of 10 answers") {
		t.Errorf("%s\n%s", printed, said)
	}
}

// --checker on a stage: the figure of each validation; a program that fails when it is
// tried ends the run before its first step, and one that fails later ends it with exit
// status 1: the same command resumes.
func TestStageChecker(t *testing.T) {
	f := ready(t)
	out := t.TempDir() + "/sft"
	args := func(checker string) []string {
		return append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"),
			"--val-data", f.path("test.jsonl"), "--output", out, "--steps", "2",
			"--checker", checker), "trainer.save_freq=1", "trainer.test_freq=2",
			"trainer.keep_best=val/check")
	}
	code, _, said := gad(args("exit 7")...)
	if code != exitUsage || !strings.Contains(said, `checker: "exit 7": row 0 has no score`) {
		t.Errorf("exit status %d\n%s", code, said)
	}
	// it is well while it is tried, and fails in the first validation
	tried := filepath.Join(t.TempDir(), "tried")
	code, _, said = gad(args("if test -e " + tried + "; then exit 7; fi; touch " + tried +
		"; sed 's/.*/0.25/'")...)
	if code != exitFailed || !strings.Contains(said, "step 1: validation: checker: ") ||
		strings.Contains(said, "tried on") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	if _, said = must(t, args("sed 's/.*/0.25/'")...); !strings.Contains(said, "step 2/2") {
		t.Errorf("prints\n%s", said)
	}
}

// A run's folder may be a stranger's: the checker in its settings is not started
// unless the command line names one, or says that there is none.
func TestFolderNamesNoChecker(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	trace := filepath.Join(dir, "started")
	checker := "touch " + trace + "; sed 's/.*/1/'"
	warm, run := filepath.Join(dir, "warm"), filepath.Join(dir, "run")
	must(t, stage("warmup", "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--val-data", f.path("test.jsonl"), "--output", warm, "--steps", "2", "--critic-warmup",
		"1",
		"--checker", checker)...)
	if _, err := os.Stat(trace); err != nil {
		t.Fatal("the checker that was named has not been started")
	}
	for _, resumed := range []string{warm, run} {
		if err := os.Remove(trace); err != nil {
			t.Fatal(err)
		}
		args := []string{"train", "--resume", warm, "--data", f.path("train.arrow"), "--output",
			run, "--steps", "1"}
		if resumed == run {
			args = []string{"train", "--resume", run, "--steps", "2"}
		}
		code, _, said := gad(args...)
		if code != exitUsage || !strings.Contains(said, fmt.Sprintf("gad does not start a program because a folder names it: give --checker %q again, or trainer.checker= for none", checker)) || strings.Count(said, "\n") != 1 {
			t.Errorf("gad %s: exit status %d\n%s", strings.Join(args, " "), code, said)
		}
		if _, err := os.Stat(trace); err == nil {
			t.Errorf("gad %s has started the folder's checker", strings.Join(args, " "))
		}
		must(t, append(args, "--checker", checker)...)
		if _, err := os.Stat(trace); err != nil {
			t.Errorf("gad %s --checker: not started", strings.Join(args, " "))
		}
	}
	if err := os.Remove(trace); err != nil {
		t.Fatal(err)
	}
	must(t, "train", "--resume", run, "--steps", "3", "trainer.checker=")
	if _, err := os.Stat(trace); err == nil {
		t.Error("started although there is to be none")
	}
}

// A run's folder may be a stranger's: neither texts nor the key go to the server in its settings
// unless the command line names it.
func TestFolderNamesNoServer(t *testing.T) {
	f := ready(t)
	var asked atomic.Int32
	stranger := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusNotFound)
		}))
	defer stranger.Close()
	run := filepath.Join(t.TempDir(), "run")
	must(t, "opd", "--model", f.path("student"), "--teacher", f.path("student"), "--data",
		f.path("train.arrow"), "--output", run, "--steps", "1", "data.train_batch_size=2",
		"data.max_prompt_length=64", "data.max_response_length=4")
	settings := filepath.Join(run, "config.yaml")
	text := fileText(settings)
	theirs := strings.Replace(text, " url: \"\"\n", " url: "+stranger.URL+"/v1\n", 1)
	if theirs == text {
		t.Fatal("config.yaml has no empty teacher.url")
	}
	if err := os.WriteFile(settings, []byte(theirs), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(teacherKey, "sk-of-the-user-0123456789")
	for _, args := range [][]string{{"resume", run, "--steps", "2"},
		{"opd", "--output", run, "--steps", "2"}} {
		code, _, said := gad(args...)
		want := fmt.Sprintf("give --teacher-url %q again, or teacher.url= for none",
			stranger.URL+"/v1")
		if code != exitUsage || !strings.Contains(said, want) || asked.Load() != 0 {
			t.Errorf("gad %s: exit status %d, asked %d times\n%s", strings.Join(args, " "), code,
				asked.Load(), said)
		}
	}
	code, _, said := gad("resume", run, "--steps", "2", "--teacher-url", stranger.URL+"/v1")
	if code == 0 || asked.Load() == 0 || !strings.Contains(said, stranger.URL) {
		t.Errorf("named on the command line: exit status %d, asked %d times\n%s", code,
			asked.Load(), said)
	}
	must(t, "resume", run, "--steps", "2", "teacher.url=")
}

// What makes a folder or a file holds its lock: a second export, init or task is refused before it
// reads anything, and finds nothing half written.
func TestFoldersHaveOneMaker(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"export": {"export", "--model", f.path("student")},
		"merged": {"export", "--run", f.path("sft")},
		"init":   {"init", "--from", f.path("student"), "--keep-layers", "0"},
		"task":   {"task", "make", "two-forms", "--rows", "20"},
	} {
		out := filepath.Join(dir, name)
		lock, err := checkpoint.LockOutput(out)
		if err != nil {
			t.Fatal(err)
		}
		code, _, said := gad(append(args, "--output", out)...)
		if _, err := os.Stat(out); code != exitUsage || err == nil ||
			!strings.Contains(said, "in use by process") {
			t.Errorf("%s: exit status %d, %s", name, code, said)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		must(t, append(args, "--output", out)...)
	}
}
