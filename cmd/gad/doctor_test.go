//go:build unix

package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// doctor examines a run and wants an exit status and texts.
func examined(t *testing.T, what, run string, code int, texts ...string) string {
	t.Helper()
	got, out, said := gad("doctor", run)
	if got != code || said != "" {
		t.Errorf("%s: exit status %d, want %d\n%s%s", what, got, code, out, said)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("%s: does not say %q:\n%s", what, text, out)
		}
	}
	if n := strings.Count(out, "\n"); n > 40 {
		t.Errorf("%s: %d lines are more than a screen", what, n)
	}
	return out
}

// ends wants the run's log to end with an entry of this kind.
func ends(t *testing.T, run, end string) {
	t.Helper()
	if last := lastLine(fileText(filepath.Join(run, "log.jsonl"))); !strings.Contains(last, fmt.Sprintf(`"end":%q`, end)) {
		t.Errorf("the log's last line says no %q: %s", end, last)
	}
}

// A run says in its last line why it ended, and the doctor says it again, for each
// way to end; it changes nothing.
func TestDoctor(t *testing.T) {
	path, f := built(t), ready(t)
	before := tree(t, f.path("train"))
	out := examined(t, "finished", f.path("train"), exitDone, "train, step 3 of 3", "finished",
		"global_step_3     verified", "<- would be resumed", "for the next save", "3 steps\n",
		"too few for most of them", "\nno problems found\n")
	ends(t, f.path("train"), "finished")
	if after := tree(t, f.path("train")); len(after) != len(before) {
		t.Errorf("the doctor left %d files, there were %d", len(after), len(before))
	}
	t.Logf("finished:\n%s", strings.ReplaceAll(out, f.root, "RUNS"))

	run := filepath.Join(t.TempDir(), "run")
	long := f.stage("sft", run, 100000, "trainer.save_freq=5")
	p := start(t, path, long...)
	wait(t, "some steps", func() bool { return lines(filepath.Join(run, "metrics.jsonl")) > 7 })
	examined(t, "running", run, exitDone, fmt.Sprintf("by process %d on host", p.Process.Pid))
	refused(t, exitUsage, "run folder in use by process", long...)
	p.Process.Signal(syscall.SIGTERM)
	p.end(t, patience)
	examined(t, "interrupted", run, exitDone, "interrupted",
		"the same command continues after step", "\nno problems found\n")
	ends(t, run, "interrupted")

	at := lines(filepath.Join(run, "metrics.jsonl"))
	p = start(t, path, long...)
	wait(t, "more steps", func() bool { return lines(filepath.Join(run, "metrics.jsonl")) > at+7 })
	p.Process.Kill()
	p.end(t, patience)
	out = examined(t, "killed", run, exitDone, "unexpectedly: kill -9, a loss of power",
		"the same command continues after step", "\nno problems found\n")
	t.Logf("killed:\n%s", strings.ReplaceAll(out, filepath.Dir(run), "RUNS"))

	broken := filepath.Join(t.TempDir(), "broken")
	code, _, said := gad(f.stage("sft", broken, 20, "actor.optim.lr=1e38",
		"trainer.max_skips=3")...)
	if code != exitNumerical || strings.Count(said, "optimizer steps in a row") != 1 ||
		!strings.Contains(said,
			"(trainer.max_skips): lower actor.optim.lr and start again with another --output") ||
		fileText(filepath.Join(broken, "numerical_stop.txt")) == "" {
		t.Errorf("numerical stop: exit status %d, must be said once:\n%s", code, said)
	}
	out = examined(t, "numerical stop", broken, exitFailed, "numbers broke down",
		"actor/skipped_updates in", "problems: it ended with an error that may happen again")
	ends(t, broken, "numbers broke down")
	t.Logf("numerical stop:\n%s", strings.ReplaceAll(out, filepath.Dir(broken), "RUNS"))
	t.Log("row 10: last words: 5 ways to end, each told by the log's last entry (killed: by its absence) and by gad doctor; full disk and memory: TestDoctorDiskFull, TestRunOutOfMemory")
}

// Without a run, the doctor says what the machine has.
func TestDoctorOfMachine(t *testing.T) {
	out, _ := must(t, "doctor")
	for _, text := range []string{runtime.GOOS + "/" + runtime.GOARCH, "\ncpu      cpu/",
		"\nmemory   ", "\ndisk     ", "\ncuda     "} {
		if !strings.Contains(out, text) {
			t.Errorf("does not say %q:\n%s", text, out)
		}
	}
	t.Logf("\n%s", out)
}
