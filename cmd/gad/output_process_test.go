//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/trainer/quality"
)

// manyRows writes a data file that takes a while to answer.
func manyRows(t *testing.T, dir string) string {
	t.Helper()
	rows := filepath.Join(dir, "rows.jsonl")
	text := strings.Repeat(`{"content":"Add 1+2","teacher_response":"it is 3"}`+"\n", 400)
	if err := os.WriteFile(rows, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return rows
}

// twice sends two signals at once, so that the second finds the process at work.
func twice(p *process) {
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGINT, syscall.SIGTERM,
		syscall.SIGCONT} {
		p.Process.Signal(s)
	}
}

// Of two commands with one output the second is refused before it computes anything, by
// the name of the first, and what the first says at a second signal is true.
func TestOneMakerOfAnOutput(t *testing.T) {
	path, f := built(t), ready(t)
	dir := t.TempDir()
	rows, student := manyRows(t, dir), f.path("sft", "global_step_60", "actor")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(p *process, out string, args []string) {
		t.Helper()
		want := fmt.Sprintf("gad: checkpoint: %s: in use by process %d on host %q: wait until it ends, or choose another name\n", out, p.Process.Pid, host)
		if code, printed, said := gad(args...); code != exitUsage || said != want || printed != "" {
			t.Errorf("exit status %d, prints %q, says %q, want %q", code, printed, said, want)
		}
	}

	out := filepath.Join(dir, "answers.jsonl")
	generate := func(seed string) []string {
		return []string{"generate", "--model", student, "--data", rows, "--output", out, "-n", "40",
			"--max-new-tokens", "60", "--temperature", "2", "--threads", "1", "--seed", seed}
	}
	for try := 0; ; try++ {
		p := start(t, path, generate("1")...)
		before := lines(out + ".partial")
		wait(t, "some answers",
			func() bool { return lines(out+".partial") > before+20 || lines(out) > 0 })
		if try == 0 {
			refused(p, out, generate("1"))
			refused(p, out, generate("2"))
		}
		twice(p)
		code, said := p.end(t, patience), p.said.String()
		if code == exitInterrupted && try < 5 {
			continue // the first signal was quicker
		}
		want := " of 16000 answers are in " + out + ".partial: run the same command to resume\n"
		if code != exitFailed || !strings.Contains(said, "stopping; what is answered is kept, and the same command resumes; a second Ctrl-C stops at once\n") ||
			!strings.Contains(said, "stopped at once by a second signal: ") ||
			!strings.HasSuffix(said, want) || strings.Contains(said, "without saving") {
			t.Errorf("exit status %d\n%s", code, said)
		}
		break
	}
	// The lock has ended with its process; what it said of the answers holds.
	p := start(t, path, generate("1")...)
	wait(t, "resuming",
		func() bool { return strings.Contains(p.said.String(), "resuming, ") })
	p.Process.Signal(syscall.SIGINT)
	if code := p.end(t, patience); code != exitInterrupted {
		t.Errorf("exit status %d\n%s", code, p.said.String())
	}

	out = filepath.Join(dir, "eval.jsonl")
	evaluate := []string{"eval", "--model", student, "--data", rows, "--max-response-length", "14",
		"--temperature", "2", "--output", out, "--threads", "1", "--disc-steps", "1000000",
		"--disc-seeds", "1"}
	p = start(t, path, evaluate...)
	wait(t, "answers", func() bool { return lines(out) == 400 })
	refused(p, out, append(evaluate, "--seed", "2"))
	twice(p)
	if code, said := p.end(t, patience), p.said.String(); code != exitStopped &&
		(code != exitFailed ||
			!strings.HasSuffix(said,
				"stopped at once by a second signal: "+out+" has 400 answers, as they were before\n") ||
			!strings.Contains(said, "stopping; complete answers are written to "+out+"; a second Ctrl-C stops at once, without that\n")) {
		t.Errorf("exit status %d\n%s", code, said)
	}
	raw, err := os.ReadFile(out)
	if err != nil || len(sessiontest.Lines[quality.Row](t, string(raw))) != 400 {
		t.Errorf("%v: %d bytes are left", err, len(raw))
	}
}
