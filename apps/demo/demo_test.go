package demo

import (
	"bytes"
	"math"
	"testing"
	"time"
)

// Wilson's interval against worked cases.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{
		{0, 10, 0, 0.2775}, // Brown, Cai and DasGupta 2001: z^2/(n+z^2)
		{10, 10, 0.7225, 1},
		{15, 60, 0.1577, 0.3723},
		{500, 1000, 0.4691, 0.5309},
	} {
		if ci := wilson(c.k, c.n); math.Abs(ci[0]-c.low) > 1e-3 || math.Abs(ci[1]-c.high) > 1e-3 {
			t.Errorf("%d of %d: %.4f, want %g %g", c.k, c.n, ci, c.low, c.high)
		}
	}
}

// Of the lines about steps one in pause is printed, and the last; all others are.
func TestThinned(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(100, 0)
	w := &thinned{w: &out, now: func() time.Time { return now }}
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
		if n, err := w.Write([]byte(c.line)); err != nil || n != len(c.line) || (out.Len() > before) != c.kept {
			t.Errorf("%q: kept %v, want %v (%d, %v)", c.line, out.Len() > before, c.kept, n, err)
		}
	}
}
