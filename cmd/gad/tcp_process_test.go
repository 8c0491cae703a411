//go:build linux

package main

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// byTCP starts ranks of the plain program as torchrun would.
func byTCP(t *testing.T, ranks int, args ...string) []*process {
	t.Helper()
	slow(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return connected(t, path, ranks, nil, args...)
}

// connected starts ranks of the program at path as torchrun would; env is for one of them, by rank.
// A rank whose env is "absent" is not started.
func connected(t *testing.T, path string, ranks int, env map[int][]string,
	args ...string) (list []*process) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for r := range ranks {
		if slices.Equal(env[r], []string{"absent"}) {
			list = append(list, nil)
			continue
		}
		list = append(list, startWith(t, append([]string{"RANK=" + strconv.Itoa(r),
			"WORLD_SIZE=" + strconv.Itoa(ranks), "LOCAL_RANK=" + strconv.Itoa(r),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(port-1),
			"GAD_RANKS_SECRET=a secret of the tests"}, env[r]...), path, args...))
	}
	return list
}

// Ranks that no MPI connects have the bits of one process; a rank that is killed ends the
// others at once; a signal to any of them saves the run, which goes on with another number.
func TestRanksOverTCP(t *testing.T) {
	t.Parallel()
	f := ready(t)
	args := func(run string, steps int) []string {
		return f.stage("warmup", run, steps, "--critic-warmup", "1", "trainer.shards=4",
			"--threads", "1", "trainer.rank_timeout=60")
	}
	const steps = 20
	whole := filepath.Join(t.TempDir(), "whole")
	must(t, args(whole, steps)...)
	run := filepath.Join(t.TempDir(), "run")
	// goesOn plays the run to its end: only rank 0 tells its steps.
	goesOn := func(ranks int) {
		t.Helper()
		for r, p := range byTCP(t, ranks, args(run, steps)...) {
			if code := p.end(t, patience); code != exitDone || strings.Count(p.said.String(),
				fmt.Sprintf("step %d/%[1]d", steps)) != max(1-r, 0) {
				t.Fatalf("rank %d of %d: exit status %d\n%s", r, ranks, code, p.said.String())
			}
		}
		equalRuns(t, run, whole, steps)
	}
	for _, ranks := range []int{2, 4}[few(0, 2):] { // each without a fault
		goesOn(ranks)
		run = filepath.Join(t.TempDir(), "run")
	}

	list := byTCP(t, 4, args(run, steps)...)
	list[0].hears(t, "  step 2")
	list[2].Process.Kill()
	begun := time.Now()
	for r, p := range list {
		code := p.end(t, patience)
		if said := p.said.String(); r != 2 &&
			(code != exitFailed || r == 0 && !strings.Contains(said, ": rank 2 on ")) {
			t.Errorf("rank %d: exit status %d\n%s", r, code, said)
		}
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the other ranks ended after %v", took)
	}
	list = byTCP(t, 4, args(run, steps)...)
	list[0].hears(t, "  step ")
	list[1].Process.Signal(syscall.SIGTERM)
	for _, p := range list {
		p.wants(t, exitInterrupted)
	}
	goesOn(2)
}
