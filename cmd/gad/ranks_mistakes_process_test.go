//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/fault"
	"gad/internal/hostile"
	"gad/trainer"
)

// A mistake is said once, by rank 0, whoever has made it, and all ranks end with the status
// that one process has, which is what mpirun passes on.
func TestMistakesOverMPI(t *testing.T) {
	_, work := linked(t, "student", "test.jsonl=rows.jsonl")
	const rest = " --data rows.jsonl --output run"
	for _, c := range []struct {
		args, other string // of rank 1, if not the same; or the number of ranks, if not 2
		code        int
		says        string
	}{
		{"sft --model nope trainer.shards=2" + rest, "", exitInput,
			"gad: model: nope: does not exist: give a Hugging Face model folder or a GGUF file"},
		{"bench --what ops", "", exitUsage, "gad: bench: --what: not with 2 ranks, of which " +
			"only the messages are measured: leave it out, or give --ranks 1"},
		{"sft --model student trainer.shards=3" + rest, "", exitUsage,
			"gad: settings: trainer.shards is 3: must be a power of two of at most 4096"},
		{"sft --model student" + rest, "", exitUsage, "gad: trainer.shards is 1, but there are 2 ranks: each needs as many shards as any other: set trainer.shards=2 or a multiple"},
		{"sft --modle student" + rest, "", exitUsage,
			"gad: sft: unknown flag --modle: did you mean --model?"},
		{"sft --ranks 4 --model student" + rest, "", exitUsage,
			"gad: sft: --ranks 4: mpirun has started 2: start as many, or leave --ranks out"},
		{"sft --model student" + rest, "3", exitUsage,
			"gad: sft: mpirun has started 3 ranks: there must be 2, 4 or another power of two"},
		{"sft --model student trainer.shards=2" + rest, "sft --config missing.yaml", exitUsage,
			"gad: ranks: rank 1 on " + hostName(t) +
				": settings: missing.yaml: no such file or directory"},
	}[:hostile.Share(8)] {
		args := strings.Fields(c.args)
		ranks := 2
		if c.other == "3" {
			ranks, c.other = 3, ""
		}
		if c.other != "" {
			path, err := binary()
			if err != nil {
				t.Fatal(err)
			}
			args = append(append(args, ":", "-n", "1", path), strings.Fields(c.other)...)
		}
		if c.other != "" {
			ranks = 1
		}
		p := ranked(t, ranks, args...)
		code := p.end(t, patience)
		var said []string
		for line := range strings.Lines(p.said.String()) {
			if strings.HasPrefix(line, "gad: ") { // the rest is mpirun's
				said = append(said, strings.TrimSpace(line))
			}
		}
		if code != c.code || len(said) != 1 || said[0] != c.says {
			t.Errorf("%s: exit status %d, want %d\n%s\nwant once\n%s", c.args, code, c.code,
				p.said.String(), c.says)
		}
	}
	if _, err := os.Stat(filepath.Join(work, "run")); err == nil {
		t.Error("a run was begun")
	}
}

func hostName(t *testing.T) string {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// What ranks say that have made mistakes of their own, before they train.
func TestMistakesTogether(t *testing.T) {
	for _, c := range []struct {
		name     string
		mistakes [4]error
		code     int
		says     string
	}{
		{"none", [4]error{}, exitDone, ""},
		{"the same", [4]error{usage("a"), usage("a"), usage("a"), usage("a")}, exitUsage,
			"gad: a\n"},
		{"one", [4]error{nil, nil, fmt.Errorf("no such file"), nil}, exitInput,
			"gad: ranks: rank 2 on HOST: no such file\n"},
		{"two", [4]error{nil, usage("a"), nil, fmt.Errorf("b")}, exitUsage,
			"gad: ranks: rank 1 on HOST: a\ngad: ranks: rank 3 on HOST: b\n"},
	} {
		var said [4]bytes.Buffer
		var wg sync.WaitGroup
		for r, link := range commtest.Links(4) {
			wg.Go(func() {
				p := &program{out: &said[r], err: &said[r]}
				g, err := p.formGroup(link, time.Minute, c.mistakes[r])
				code := exitDone
				if err != nil {
					code = status(err)
				}
				if code != c.code || (g != nil) != (err == nil) || err != nil && !p.reportedElsewhere(err) {
					t.Errorf("%s: rank %d: %v, exit status %d", c.name, r, err, code)
				}
				if g != nil {
					g.Close()
				}
			})
		}
		wg.Wait()
		for r := range said {
			want := ""
			if r == 0 {
				want = strings.ReplaceAll(c.says, "HOST", hostName(t))
			}
			if said[r].String() != want {
				t.Errorf("%s: rank %d says\n%s\nwant\n%s", c.name, r, said[r].String(), want)
			}
		}
	}
}

// All ranks end alike, also where one of them fails when the others have nothing left to do.
func TestParted(t *testing.T) {
	aborted := &comm.Aborted{Status: exitFailed, Reason: "checkpoint: no space"}
	lost := &comm.Lost{Host: "node0", Phase: "ending"}
	for _, c := range []struct {
		err, failed error
		code        int
	}{
		{nil, nil, exitDone},
		{nil, lost, exitFailed},
		{nil, aborted, exitFailed},
		{trainer.ErrInterrupted, nil, exitInterrupted},
		{trainer.ErrInterrupted, aborted, exitFailed},
		{trainer.ErrInterrupted, lost, exitInterrupted}, // the run is saved
		{trainer.ErrNumerical, aborted, exitNumerical},
	} {
		code := exitDone
		if err := closeError(c.err, c.failed); err != nil {
			code = status(err)
		}
		if code != c.code {
			t.Errorf("%v, %v: exit status %d, want %d", c.err, c.failed, code, c.code)
		}
	}
}

// A run that breaks ends on all ranks with one status: that of the rank that has failed.
func TestStatusOfAborted(t *testing.T) {
	for _, want := range []int{exitInput, exitUsage, exitFailed, exitNumerical} {
		err := fault.As(fault.ErrRunning,
			fmt.Errorf("trainer: %w", &comm.Aborted{Status: want, Reason: "elsewhere"}))
		if got := status(err); got != want {
			t.Errorf("exit status %d, want %d", got, want)
		}
	}
	if got := status(fault.As(fault.ErrRunning,
		&comm.Aborted{Reason: "elsewhere"})); got != exitFailed {
		t.Errorf("exit status %d where the other rank does not say", got)
	}
}
