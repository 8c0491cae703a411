package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// Of the lines about steps one in pause is printed, and the last; all others are.
func TestThinned(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(100, 0)
	w := &throttledConsole{w: &out, now: func() time.Time { return now }}
	for _, c := range []struct {
		wait time.Duration
		line string
		kept bool
	}{
		{0, "10:00:00  step 1/3  sft_loss 1\n", true},
		{pause / 2, "10:00:00  step 2/3  sft_loss 1\n", false},
		{0, "10:00:00  done\n", true},
		{pause / 2, "10:00:00  step 2/3  sft_loss 1\n", true},
		{0, "10:00:00  step 3/3  sft_loss 1\n", true},
		{0, "$ gad sft\n", true},
	} {
		now = now.Add(c.wait)
		before := out.Len()
		if n, err := w.Write([]byte(c.line)); err != nil || n != len(c.line) ||
			(out.Len() > before) != c.kept {
			t.Errorf("%q: kept %v, want %v (%d, %v)", c.line, out.Len() > before, c.kept, n, err)
		}
	}
}

// A difference counts where the interval of the paired differences leaves 0 out.
func TestDiffers(t *testing.T) {
	shares := func(yes, n int) []bool {
		out := make([]bool, n)
		for i := range yes {
			out[i] = true
		}
		return out
	}
	for _, c := range []struct {
		a, b []bool
		want string
	}{
		{shares(50, 100), shares(50, 100), noise},
		{shares(52, 100), shares(50, 100), noise}, // 2 of 100: 0.02 +- 0.027
		{shares(60, 100), shares(50, 100), better},
		{shares(50, 100), shares(60, 100), worse},
		{shares(100, 100), shares(0, 100), better},
		{[]bool{true, false, true, false}, []bool{false, true, false, true}, noise},
	} {
		if got := differs(c.a, c.b); got != c.want {
			t.Errorf("%v against %v: %s, want %s", c.a, c.b, got, c.want)
		}
	}
}

// A demo whose game does not win says why it may not have, and what to do.
func TestWhy(t *testing.T) {
	all, none := []bool{true, true, true, true}, make([]bool, 4)
	arms := func(equal, gad []bool) []*arm { return []*arm{{}, {right: equal}, {}, {right: gad}} }
	for _, c := range []struct {
		fast       bool
		equal, gad []bool
		want, not  string
	}{
		{false, none, all, "The task was made to show this", "did not beat"},
		{true, none, all, "read the direction, not the size", "did not beat"},
		{false, all, all, "try another --seed. gad doctor d/gad", "was made to show"},
		{true, all, none, "the whole demo (without --fast", "was made to show"},
	} {
		d := &run{Options: Options{Dir: "d", Fast: c.fast}}
		if got := d.why(arms(c.equal, c.gad)); !strings.Contains(got, c.want) ||
			strings.Contains(got, c.not) {
			t.Errorf("fast %v, equal %v, gad %v: %s", c.fast, c.equal, c.gad, got)
		}
	}
}
