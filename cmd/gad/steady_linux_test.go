package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// resident is the memory of a process in kB, 0 once it has ended.
func resident(pid int) float64 {
	for line := range strings.Lines(fileText(fmt.Sprintf("/proc/%d/status", pid))) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 64)
			return n
		}
	}
	return 0
}

// A process takes as much memory after many steps as after a hundred (RELIABILITY
// 19). A short run allows for the collector's noise.
func TestSteadyMemory(t *testing.T) {
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	const warm = 100
	p := start(t, path, "train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(*steady),
		"trainer.save_freq=0", "trainer.save_samples=0", "critic.replay.size=16")
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
	limit := 10.0
	if *steady >= 5000 {
		limit = 3 // the goal is 1
	}
	q := len(kb) / 4
	t.Logf("row 19: steady memory: %d steps, resident %.1f MB after step %d, %.1f MB at the end: %+.2f %%; means of quarters %.2f %.2f %.2f %.2f MB", *steady, first/1e3, warm, last/1e3, change,
		mean(kb[:q])/1e3, mean(kb[q:2*q])/1e3, mean(kb[2*q:3*q])/1e3, mean(kb[3*q:])/1e3)
	if math.Abs(change) > limit {
		t.Errorf("memory changed by %+.2f %%, more than %g %%", change, limit)
	}
}
