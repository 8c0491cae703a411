//go:build unix

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A study that runs two commands at a time is interrupted, and killed, at random times and run
// again until it is done: one that was left alone, one command after the other, has the same bits.
func TestStudyProcess(t *testing.T) {
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	whole, err := inTurn()
	if err != nil {
		t.Fatal(err)
	}
	file := tinyIn(t, f, dir)
	stopped, killed := 0, 0
	for try := 0; ; try++ {
		if try > 60 {
			t.Fatal("no end after 60 starts")
		}
		p := start(t, path, "study", "--jobs", "2", file)
		want := fmt.Sprintf("(start %d)", try)
		commands := func(n int) func() bool {
			return func() bool {
				return strings.Count(p.said.String(), " --threads ") >= n || ended(p)
			}
		}
		switch {
		case try%2 == 0 && stopped < few(3, 1): // in the middle of two commands
			wait(t, "two commands "+want, commands(2))
			p.Process.Signal(os.Interrupt)
		case try%2 == 1 && killed < few(3, 1):
			wait(t, "a command "+want, commands(1))
			p.Process.Kill()
		}
		code := p.end(t, patience)
		said := p.said.String()
		if code == exitDone {
			break
		}
		switch code {
		case exitInterrupted:
			stopped++
			if strings.Count(said, "stopping: the run is saved after this step, or before it if it is still sampling; a second Ctrl-C stops at once, without saving\n") != 1 || !strings.Contains(said, "stopped: run the same command again to resume") || strings.Contains(said, "failed") {
				t.Errorf("interrupted, says\n%s", said)
			}
		case -1:
			killed++
		default:
			t.Fatalf("exit status %d\n%s", code, said)
		}
	}
	equalStudies(t, dir, whole.dir)
	if stopped == 0 || killed == 0 {
		t.Errorf("%d interrupted, %d killed: the test shows too little", stopped, killed)
	}
	t.Logf("%d interrupted, %d killed", stopped, killed)
}

// ended reports whether a process has ended; its status is still to be had.
func ended(p *process) bool {
	select {
	case err := <-p.done:
		p.done <- err
		return true
	default:
		return false
	}
}
