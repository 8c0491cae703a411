package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
)

// resident is the memory in kB that a process has made for itself, 0 once it has
// ended. What it has looked at of its program file is not counted: the collector
// comes by new pages of the function tables for thousands of steps.
func resident(pid int) float64 {
	for line := range strings.Lines(fileText(fmt.Sprintf("/proc/%d/status", pid))) {
		if kb, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 64)
			return n
		}
	}
	return 0
}

// many is the command line of a run of as many steps as -steady says, with no save
// but the last.
func many(f *fixture, run string) []string {
	return []string{"train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"),
		"--output", run, "--steps", fmt.Sprint(*steady),
		"trainer.save_freq=0", "trainer.save_samples=0", "critic.replay.size=16"}
}

// A process has as much memory after many steps as after a hundred (doc/reliability.md, row 19),
// but for the collector: how far it lets the heap grow depends on the moments at
// which it gets to run.
func TestSteadyMemory(t *testing.T) {
	if !hostile.Long() {
		t.Skip("takes hundreds of steps: in a long run")
	}
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	const warm = 100
	p := start(t, path, many(f, run)...)
	metrics := filepath.Join(run, "metrics.jsonl")
	wait(t, "step 100", func() bool { return lines(metrics) >= warm })
	var kb []float64
	for {
		n := resident(p.Process.Pid)
		if n == 0 || lines(metrics) >= *steady {
			break // the save at the end is no step
		}
		kb = append(kb, n)
		time.Sleep(20 * time.Millisecond)
	}
	if code := p.end(t, time.Hour); code != exitDone {
		t.Fatalf("exit status %d\n%s", code, p.said.String())
	}
	if len(kb) < 20 {
		t.Fatalf("only %d samples", len(kb))
	}
	tenth := len(kb) / 10
	mean := func(xs []float64) (m float64) {
		for _, x := range xs {
			m += x / float64(len(xs))
		}
		return m
	}
	first, last := mean(kb[:tenth]), mean(kb[len(kb)-tenth:])
	change := 100 * (last/first - 1)
	limit := 8e3 / first * 100 // a small heap swings by its own size, 4 MB, between collections
	if *steady >= 5000 {
		limit = 3
	}
	q := len(kb) / 4
	t.Logf("row 19: steady memory: %d steps, resident %.1f MB after step %d, %.1f MB at the end: %+.2f %%; means of quarters %.2f %.2f %.2f %.2f MB", *steady, first/1e3, warm, last/1e3, change,
		mean(kb[:q])/1e3, mean(kb[q:2*q])/1e3, mean(kb[2*q:3*q])/1e3, mean(kb[3*q:])/1e3)
	if math.Abs(change) > limit {
		t.Errorf("memory changed by %+.2f %%, more than %.3g %%", change, limit)
	}
}
