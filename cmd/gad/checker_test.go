//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"gad/checkpoint"
)

// --checker on a stage: the figure of each validation; a program that fails when it is
// tried ends the run before its first step, and one that fails later ends it with exit
// status 1: the same command resumes.
func TestStageChecker(t *testing.T) {
	linked(t, "student", "train.arrow", "test.jsonl")
	const line = "sft --model student --data train.arrow --val-data test.jsonl --output sft --steps 2 SMALL trainer.save_freq=1 trainer.test_freq=2 trainer.keep_best=val/check --checker "
	answered(t, []exchange{
		{line + "./chek.py", exitUsage, []string{"tried on the teacher's answer to row 0", "!step 1"}},
		{line + `"exit 7"`, exitUsage, []string{`checker: "exit 7": row 0 has no score`}}})
	if _, err := os.Stat("sft"); err == nil {
		t.Error("the run's folder was made")
	}
	answered(t, []exchange{
		// it is well while it is tried, and fails in the first validation
		{line + `"if test -e tried; then exit 7; fi; touch tried; sed 's/.*/0.25/'"`, exitFailed,
			[]string{"step 1: validation: checker: ", "!tried on"}},
		{line + `"sed 's/.*/0.25/'"`, exitDone, []string{"step 2/2"}}})
}

// A run's folder may be a stranger's: the checker in its settings is not started
// unless the command line names one, or says that there is none.
func TestFolderNamesNoChecker(t *testing.T) {
	linked(t, "student", "train.arrow", "test.jsonl")
	const checker = "touch started; sed 's/.*/1/'"
	started := func(line string, want bool) {
		t.Helper()
		does(t, line)
		if err := os.Remove("started"); (err == nil) != want {
			t.Errorf("gad %s: has started the checker: %t", line, err == nil)
		}
	}
	started(`warmup --model student --data train.arrow --val-data test.jsonl --output warm --steps 2 SMALL --critic-warmup 1 --checker "`+checker+`"`, true)
	for _, line := range []string{"train --resume warm --data train.arrow --output run --steps 1",
		"train --resume run --steps 2"} {
		answered(t, []exchange{{line, exitUsage,
			[]string{fmt.Sprintf(
				"gad does not start a program because a folder names it: give --checker %q again, or "+
					"trainer.checker= for none", checker)}}})
		if _, err := os.Stat("started"); err == nil {
			t.Errorf("gad %s has started the folder's checker", line)
		}
		started(line+` --checker "`+checker+`"`, true)
	}
	started("train --resume run --steps 3 trainer.checker=", false)
}

// A run's folder may be a stranger's: neither texts nor the key go to the server in its settings
// unless the command line names it.
func TestFolderNamesNoServer(t *testing.T) {
	var asked atomic.Int32
	stranger := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusNotFound)
		}))
	defer stranger.Close()
	linked(t, "student", "train.arrow")
	does(t, "opd --model student --teacher student --data train.arrow --output run --steps 1 data.train_batch_size=2 data.max_prompt_length=64 data.max_response_length=4")
	text := fileText("run/config.yaml")
	theirs := strings.Replace(text, " url: \"\"\n", " url: "+stranger.URL+"/v1\n", 1)
	if theirs == text {
		t.Fatal("config.yaml has no empty teacher.url")
	}
	put(t, "run/config.yaml", theirs)
	t.Setenv(teacherKey, "sk-of-the-user-0123456789")
	for _, line := range []string{"resume run --steps 2", "opd --output run --steps 2"} {
		answered(t, []exchange{{line, exitUsage, []string{fmt.Sprintf(
			"give --teacher-url %q again, or teacher.url= for none", stranger.URL+"/v1")}}})
		if n := asked.Load(); n != 0 {
			t.Errorf("gad %s: asked %d times", line, n)
		}
	}
	code, _, said := gad(words("resume run --steps 2 --teacher-url " + stranger.URL + "/v1")...)
	if code == 0 || asked.Load() == 0 || !strings.Contains(said, stranger.URL) {
		t.Errorf("named on the command line: exit status %d, asked %d times\n%s", code,
			asked.Load(), said)
	}
	does(t, "resume run --steps 2 teacher.url=")
}

// What makes a folder or a file holds its lock: a second export, init or task is refused before it
// reads anything, and finds nothing half written.
func TestFoldersHaveOneMaker(t *testing.T) {
	linked(t, "student", "sft")
	for name, line := range map[string]string{
		"folder": "export --model student", "merged": "export --run sft",
		"init": "init --from student --keep-layers 0", "task": "task make two-forms --rows 20",
	} {
		lock, err := checkpoint.LockOutput(name)
		if err != nil {
			t.Fatal(err)
		}
		line += " --output " + name
		answered(t, []exchange{{line, exitUsage, []string{"in use by process"}}})
		if _, err := os.Stat(name); err == nil {
			t.Errorf("gad %s has made it", line)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		does(t, line)
	}
}
