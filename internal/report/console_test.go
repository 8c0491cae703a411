package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"

	"go.uber.org/zap"
)

func TestStepLine(t *testing.T) {
	full := map[string]float64{
		"critic/d_acc": 0.712, "critic/d_loss": 0.5213, "actor/pg_clipfrac": 0.18,
		"actor/kl_loss": 0.00123, "actor/ppo_kl": 3e-5,
		"rollout/len_mean": 143.2, "rollout/truncated_frac": 0.031, "perf/tokens_per_s": 1912,
		"adv/std": 1}
	for _, c := range []struct {
		step, total int
		values      map[string]float64
		left        time.Duration
		want        string
	}{
		{12, 200, full, 250 * time.Second, "step 12/200  d_acc 0.71  d_loss 0.521  clip 0.18  kl 0.0012  len 143 (cut 3%)  1.9k tok/s  eta 4m10s"},
		{13, 200, map[string]float64{"critic/d_acc": 0.9, "critic/d_acc_fresh": 0.62,
			"critic/d_acc_distinct": 0.7, "critic/tie_frac": 0.1, "critic/pairs": 4}, 0,
			"step 13/200  d_acc_fresh 0.62  d_acc 0.90  of distinct 0.70"},
		{14, 200, map[string]float64{"critic/pairs": 0, "rollout/len_mean": 9}, 0,
			"step 14/200  no pairs (answers cut)  len 9"},
		{1, 200, map[string]float64{"critic/d_acc": 0.5, "critic/d_loss": 0.693147,
			"rollout/len_mean": 20, "rollout/truncated_frac": 0}, 0,
			"step 1/200  d_acc 0.50  d_loss 0.693  len 20"},
		{7, 0, map[string]float64{"actor/sft_loss": 2.3456, "perf/tokens_per_s": 88}, 0,
			"step 7  sft_loss 2.35  88 tok/s"},
		{8, 9, map[string]float64{"val/check": 0.75, "val/held_out_d": 0.5, "val/rouge_l": 0.3123,
			"val/teacher_nll": 1.5, "actor/skipped_updates": 2}, time.Hour,
			"step 8/9  check 0.750  held_out 0.50  rouge_l 0.312  nll 1.5  skipped 2  eta 1h00m"},
		{9, 9, map[string]float64{"critic/d_loss": math.NaN(), "rollout/len_mean": 5,
			"rollout/truncated_frac": 0.001, "actor/skipped_updates": 0}, 0,
			"step 9/9  d_loss NaN  len 5 (cut <1%)"},
		{9, 9, nil, 0, "step 9/9"},
		{9, 9, map[string]float64{"val/check": 7e300}, 0, "step 9/9  check 7e+300"},
	} {
		if got := stepLine(c.step, c.total, c.values, c.left, plain); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// Each label of a step's line is explained once, below the first line that has it.
func TestLegend(t *testing.T) {
	var b bytes.Buffer
	r, err := Open(vfs.OS, "",
		Options{TotalSteps: 3, Console: NewConsole(&b, false), Now: steady(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for step, values := range []map[string]float64{
		{"critic/d_acc_fresh": 0.6, "critic/tie_frac": 0, "actor/pg_clipfrac": 0.1,
			"actor/kl_loss": 0.1, "actor/ppo_kl": 0.1, "rollout/len_mean": 9,
			"rollout/truncated_frac": 0},
		{"critic/d_acc_fresh": 0.6, "actor/pg_clipfrac": 0.1, "val/teacher_nll": 2,
			"rollout/truncated_frac": 0.5, "rollout/len_mean": 9},
		{"critic/d_acc_fresh": 0.6, "val/teacher_nll": 2},
	} {
		if err := r.Step(step+1, values); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.TrimSpace(line[len("15:04:05"):]))
	}
	want := []string{
		"step 1/3  d_acc_fresh 0.60  clip 0.10  kl 0.1  len 9",
		"d_acc_fresh: the discriminator's accuracy on new pairs, 0.5 = guessing; clip: share of tokens whose update the clip stops; kl: how far the student is from where it began, nats a token; len: tokens of a student's answer",
		"step 2/3  d_acc_fresh 0.60  clip 0.10  len 9 (cut 50%)  nll 2",
		"cut: share of the student's answers that reach the limit without an end; nll: how unlikely the student finds the teacher's answers of unseen rows, nats a token",
		"step 3/3  d_acc_fresh 0.60  nll 2",
	}
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], "  eta")
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%q\nwant %q", lines, want)
	}
	// Every label that a line can have is explained.
	all := map[string]float64{}
	for _, l := range legend {
		if _, ok := byName[l.name]; !ok {
			t.Errorf("%s: no such metric", l.name)
		}
		all[l.name] = 1
	}
	all["critic/d_acc_distinct"] = 1
	delete(all, "actor/kl_loss") // ppo_kl is shown where it is not
	line := stepLine(1, 2, all, 0, plain)
	for _, l := range legend {
		if !strings.Contains(line, l.label+" ") && l.label != "kl" {
			t.Errorf("%s is explained and not in %q", l.label, line)
		}
	}
}

func TestHumanAndSpan(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.314: "0.31", 0.996: "1.0", 7.46: "7.5",
		9.96: "10", 350: "350", 999.4: "999", 999.6: "1.0k", 1912: "1.9k", 12345: "12k",
		1.2e6: "1.2M", 5e9: "5.0G"} {
		if got := human(x); got != want {
			t.Errorf("human(%v) = %s, want %s", x, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0s", 45 * time.Second: "45s",
		59600 * time.Millisecond: "1m00s", 250 * time.Second: "4m10s", 125 * time.Minute: "2h05m",
		76 * time.Hour: "3d4h"} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestETA(t *testing.T) {
	var e eta
	at := time.Unix(0, 0)
	e.add(1, at)
	if got := e.remaining(100); got != 0 {
		t.Errorf("after one step %v", got)
	}
	for step := 2; step <= 50; step++ { // slow at first: only the last 20 steps count
		d := 100 * time.Second
		if step > 30 {
			d = 2 * time.Second
		}
		at = at.Add(d)
		e.add(step, at)
	}
	if got := e.remaining(100); got != 100*time.Second {
		t.Errorf("50 steps of 2 s to go: %v", got)
	}
	if got := e.remaining(50); got != 0 {
		t.Errorf("at the end %v", got)
	}
}

// shown is a console on the tests' clock.
func shown(w io.Writer, tty bool) *Console {
	c := NewConsole(w, tty)
	c.now = steady(0)
	return c
}

// TestPipe drives the console as a pipe sees it: whole lines, no colour, no cursor movement.
func TestPipe(t *testing.T) {
	var b bytes.Buffer
	r := open(t, vfs.OS, "", Options{Console: shown(&b, false), TotalSteps: 3,
		Now: steady(time.Second), Command: "gad train"})
	log := r.Log()
	log.Debug("not shown")
	log.Info("model loaded", zap.String("path", "a b"), zap.Int("layers", 24),
		zap.Duration("took", 1500*time.Millisecond), zap.Float64("gib", 1.0/3),
		zap.Strings("files", []string{"x"}))
	log.Named("data").With(zap.String("file", "d.arrow")).Warn("12 rows\nskipped",
		zap.Error(errors.New("too \x1b[31mlong")))
	log.Error("bad", zap.String("empty", ""))
	for step := 1; step <= 3; step++ {
		must(t, r.Step(step, map[string]float64{"critic/d_acc": float64(step) / 4}))
	}
	must(t, r.Close())
	got := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  `).ReplaceAllString(b.String(), "TIME ")
	want := `TIME model loaded  path="a b"  layers=24  took=1.5s  gib=0.333333  files=[x]
TIME warning: data: 12 rows\nskipped  file=d.arrow  error="too \x1b[31mlong"
TIME error: bad  empty=""
TIME step 1/3  d_acc 0.25
TIME d_acc: the discriminator's accuracy on the pairs it learns from
TIME step 2/3  d_acc 0.50  eta 2s
TIME step 3/3  d_acc 0.75
`
	// The clock is read twice a step (the line and log.jsonl), so a step takes two of its seconds.
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A line carries the time of day; the date is said when it changes.
func TestNewDay(t *testing.T) {
	var b bytes.Buffer
	c := NewConsole(&b, false)
	now := time.Date(2026, 1, 2, 23, 59, 59, 0, time.UTC)
	c.now = func() time.Time { return now }
	c.Print("late")
	now = now.Add(2 * time.Second)
	c.Print("early")
	c.Print("still")
	if want := "23:59:59  late\n2026-01-03\n00:00:01  early\n00:00:01  still\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestColour(t *testing.T) {
	for _, c := range []struct {
		tty           bool
		noColor, term string
		want          bool
	}{{true, "", "xterm", true}, {true, "1", "xterm", false}, {true, "", "dumb", false},
		{false, "", "xterm", false}} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		var b bytes.Buffer
		r := open(t, vfs.OS, "", Options{Console: shown(&b, c.tty)})
		r.Log().Warn("careful")
		must(t, r.Step(1, nil))
		must(t, r.Close())
		want := "03:04:05  warning: careful\n03:04:05  step 1\n"
		if c.want {
			want = "\x1b[2m03:04:05\x1b[0m  \x1b[33mwarning: \x1b[0mcareful\n\x1b[2m03:04:05\x1b[0m  \x1b[1mstep 1\x1b[0m\n"
		}
		if got := b.String(); got != want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// safeBuffer is a console that a test may read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 5 s", what)
		}
	}
}

// TestStageInPipe: a long stage prints a line every so often, also while nothing advances; a short
// one prints nothing.
func TestStageInPipe(t *testing.T) {
	b := &safeBuffer{}
	r := open(t, vfs.OS, "", Options{Console: shown(b, false)})
	advance, done := r.Progress("short", 3)
	advance(3)
	done()
	done()
	if b.String() != "" {
		t.Errorf("a short stage printed %q", b.String())
	}
	must(t, r.Close())

	began := time.Now()
	c := NewConsole(b, false)
	c.every = 20 * time.Millisecond
	c.now = func() time.Time {
		return began.Add(time.Second * time.Duration(strings.Count(b.String(), "\n")))
	}
	r = open(t, vfs.OS, "", Options{Console: c})
	advance, done = r.Progress("rollout", 8)
	eventually(t, "a line without progress",
		func() bool { return strings.Contains(b.String(), "  rollout 0/8\n") })
	advance(1)
	advance(1)
	eventually(t, "a line with progress", func() bool {
		return regexp.MustCompile(`  rollout 2/8  [0-9.]+/s  eta [0-9]+s\n`).MatchString(b.String())
	})
	done()
	if lines := strings.Split(b.String(), "\n"); !regexp.MustCompile(`^\d\d:\d\d:\d\d  rollout 2  took \d+s$`).MatchString(lines[len(lines)-2]) {
		t.Errorf("last line %q", lines[len(lines)-2])
	}
	// never 0 of 8 at the end
	for n, want := range map[int]string{0: "passed over", 2: "passed over 2",
		8: "passed over 8/8"} {
		advance, done = r.Progress("passed over", 8)
		eventually(t, "its first line",
			func() bool { return strings.HasSuffix(b.String(), "  passed over 0/8\n") })
		advance(n)
		done()
		if lines := strings.Split(b.String(), "\n"); !strings.Contains(lines[len(lines)-2],
			"  "+want+"  took ") {
			t.Errorf("last line %q, want %q", lines[len(lines)-2], want)
		}
	}
	c.now = func() time.Time { return began }
	_, done = r.Progress("quick", 1)
	eventually(t, "a line", func() bool { return strings.Contains(b.String(), "  quick 0/1\n") })
	if done(); strings.Contains(b.String(), "took 0s") {
		t.Errorf("says that something took no time:\n%s", b.String())
	}
	_, _ = r.Progress("left open", 0) // Close ends it
	must(t, r.Close())
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("escape codes in a pipe: %q", b.String())
	}
}

var ansi = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// TestBar: with bars on the terminal and several goroutines that log, every logged line arrives
// whole and once.
func TestBar(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the bar to appear")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	b := &safeBuffer{}
	r := open(t, vfs.OS, "", Options{Console: NewConsole(b, true)})
	advance, done := r.Progress("rollout", 400)
	inner, innerDone := r.Progress("unbounded", 0)
	eventually(t, "the bars", func() bool {
		return strings.Contains(b.String(), "rollout ") &&
			strings.Contains(b.String(), "unbounded ")
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				r.Log().Info(fmt.Sprintf("line %d.%d.", g, i))
				advance(1)
				inner(1)
				if i%25 == 0 {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	innerDone()
	eventually(t, "the end of the bar",
		func() bool { return strings.Contains(b.String(), "400/400") })
	r.Log().Info("line before the end.")
	done()
	r.Log().Info("line after the end.")
	must(t, r.Close())
	seen := map[string]int{}
	for _, l := range strings.Split(ansi.ReplaceAllString(b.String(), ""), "\n") {
		if m := regexp.MustCompile(`^\d\d:\d\d:\d\d  (line .*)$`).FindStringSubmatch(l); m != nil {
			seen[m[1]]++
		} else if strings.Contains(l, "line") {
			t.Errorf("garbled: %q", l)
		}
	}
	if len(seen) != 402 {
		t.Errorf("%d different lines, want 402", len(seen))
	}
	for l, n := range seen {
		if n != 1 {
			t.Errorf("%q stands %d times", l, n)
		}
	}
	if !strings.HasSuffix(ansi.ReplaceAllString(b.String(), ""), "line after the end.\n") {
		t.Errorf("the bar outlives its stage: %q", b.String()[max(0, len(b.String())-300):])
	}
}

// brokenPipe fails from its second write on.
type brokenPipe struct{ n int }

func (p *brokenPipe) Write(b []byte) (int, error) {
	if p.n++; p.n > 1 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

// TestConsoleGone: a run outlives its terminal; the log tells.
func TestConsoleGone(t *testing.T) {
	fsys := vfstest.NewCrash()
	p := &brokenPipe{}
	r := open(t, fsys, "/run", Options{Console: NewConsole(p, false)})
	for step := 1; step <= 4; step++ {
		must(t, r.Step(step, nil))
	}
	advance, done := r.Progress("silent", 3)
	advance(1)
	done()
	must(t, r.Close())
	if p.n != 2 {
		t.Errorf("%d writes to a console that failed at the second", p.n)
	}
	want := `"level":"warn","time":"2026-01-02T03:04:05Z","msg":"console failed, silent from here on","error":"io: read/write on closed pipe"`
	if got := read(t, fsys, "/run/log.jsonl"); strings.Count(got, want) != 1 || strings.Count(got, `"step":`) != 4 {
		t.Errorf("log:\n%s", got)
	}
}
