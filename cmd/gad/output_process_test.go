//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/apps/session/sessiontest"
	"gad/trainer/quality"
)

// held suspends a process (SIGSTOP), calls meanwhile, sends all signals, resumes the process and
// returns its exit status: so the second signal arrives before the process has handled the first.
// What meanwhile returns is an error, unless the process had finished its work.
func (p *process) held(t *testing.T, meanwhile func() (wrong string),
	signals ...syscall.Signal) (code int) {
	t.Helper()
	p.Process.Signal(syscall.SIGSTOP)
	wrong := meanwhile()
	for _, s := range append(signals, syscall.SIGCONT) {
		p.Process.Signal(s)
	}
	if code = p.end(t, patience); code != exitDone && wrong != "" {
		t.Error(wrong)
	}
	return code
}

// Ctrl-C keeps the answers that are complete, and what is said at a second one is true: gad
// generate resumes to the bytes of a command that was left alone, gad eval writes what it has. Of
// two commands with one output the second is refused before it computes anything, by the name of
// the first.
func TestOneMakerOfAnOutput(t *testing.T) {
	path, f := built(t), ready(t)
	dir := t.TempDir()
	var many strings.Builder
	for i := range 400 {
		fmt.Fprintf(&many, `{"content":"Add %s2","teacher_response":"it is %s"}`+"\n",
			strings.Repeat("1+", 1+i%7), strings.Repeat("x", i%5))
	}
	rows, student := filepath.Join(dir, "rows.jsonl"), f.path("sft", "global_step_60", "actor")
	host, err := os.Hostname()
	if put(t, rows, many.String()); err != nil {
		t.Fatal(err)
	}
	both := []string{"--model", student, "--data", rows, "--temperature", "2", "--threads", "1"}
	// refused returns a function that runs other commands with the output of p, which must be
	// refused, and returns what is wrong.
	refused := func(p *process, out string, lines ...[]string) func() string {
		return func() (wrong string) {
			want := fmt.Sprintf("gad: checkpoint: %s: in use by process %d on host %q: wait until it "+
				"ends, or choose another name\n", out, p.Process.Pid, host)
			for _, args := range lines {
				if code, printed, said := gad(args...); code != exitUsage || said != want ||
					printed != "" {
					wrong += fmt.Sprintf("exit status %d, prints %q, says %q, want %q\n", code,
						printed, said, want)
				}
			}
			return wrong
		}
	}

	whole, out := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "answers.jsonl")
	generate := func(out string) []string {
		return slices.Concat([]string{"generate", "-n", "4", "--max-new-tokens", "40", "--output",
			out}, both)
	}
	must(t, generate(whole)...)
	const resume = " of 1600 answers are in %s.partial: run the same command to resume\n"
	type interruption struct {
		signals []syscall.Signal
		code    int
		says    []string
	}
	list := []interruption{
		{[]syscall.Signal{syscall.SIGINT}, exitInterrupted, nil},
		{[]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, exitFailed, []string{
			"stopping; what is answered is kept, and the same command resumes; a second Ctrl-C stops at " +
				"once\n",
			"stopped at once by a second signal: "}},
		{[]syscall.Signal{syscall.SIGKILL}, -1, nil},
	}
	for try := 0; try < len(list); try++ {
		c := list[try]
		p := start(t, path, generate(out)...)
		from := lines(out + ".partial")
		wait(t, "some answers", func() bool { return lines(out+".partial") > from+20 || ended(p) })
		others := [][]string{generate(out), append(generate(out), "--seed", "2")}
		if c.code < 0 { // it may be killed when all is done but its end
			others = nil
		}
		code := p.held(t, refused(p, out, others...), c.signals...)
		said := p.said.String()
		if code == exitDone { // before the signal: all of it again
			collecttest.Drop(t, out)
			try = -1
			continue
		}
		if code != c.code && (try != 1 || code != exitInterrupted) || // the first was quicker
			code == c.code && slices.ContainsFunc(c.says, func(text string) bool {
				return !strings.Contains(said, text)
			}) || code >= 0 && (!strings.HasSuffix(said, fmt.Sprintf(resume, out)) ||
			strings.Contains(said, "without saving")) ||
			code == exitInterrupted && strings.Count(said, "gad: ") != 1 ||
			try > 0 && !strings.Contains(said, "resuming, ") {
			t.Fatalf("%v: exit status %d\n%s", c.signals, code, said)
		}
	}
	if lines(out) == 0 {
		must(t, generate(out)...) // the lock has ended with its process
	}
	if fileText(out) != fileText(whole) {
		t.Error("an interrupted output has other bytes")
	}

	for try, signals := range [][]syscall.Signal{{syscall.SIGINT},
		{syscall.SIGINT, syscall.SIGTERM}} {
		out := filepath.Join(dir, fmt.Sprintf("eval%d.jsonl", try))
		evaluate := slices.Concat([]string{"eval", "--max-response-length", "14", "--disc-steps",
			"1000000", "--disc-seeds", "1", "--output", out}, both)
		p := start(t, path, evaluate...)
		// written once they are complete, before fresh discriminators
		wait(t, "figures of the answers", func() bool {
			return lines(out) == 400 && strings.Contains(fileText(out), `"teacher_nll":`) &&
				strings.Contains(p.said.String(), "fresh discriminators (2 x 1")
		})
		code := p.held(t, refused(p, out, append(evaluate, "--seed", "2")), signals...)
		said := p.said.String()
		if first := code == exitStopped && strings.Contains(said, "\nROUGE-L") &&
			strings.HasSuffix(said, "gad: eval: stopped: 400 of 400 answers are in "+out+"\n"); !first &&
			(try == 0 || code != exitFailed || !strings.HasSuffix(said,
				"stopped at once by a second signal: "+out+" has 400 answers, as they were before\n") ||
				!strings.Contains(said, "stopping; complete answers are written to "+out+
					"; a second Ctrl-C stops at once, without that\n")) {
			t.Errorf("exit status %d\n%s", code, said)
		}
		if got := sessiontest.Lines[quality.Row](t, fileText(out)); len(got) != 400 ||
			got[7].Response == "" && got[8].Response == "" {
			t.Errorf("%d rows are kept", len(got))
		}
	}
}
