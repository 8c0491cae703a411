//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gad/checkpoint"
)

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
