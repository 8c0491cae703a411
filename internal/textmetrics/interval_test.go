package textmetrics

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The interval of a mean is that of the normal approximation for many units, is the
// same again for the same seed, and covers the truth in about 95 of 100 samples.
func TestInterval(t *testing.T) {
	xs := make([]float64, 400)
	for i := range xs {
		xs[i] = float64(i % 2)
	}
	ci := MeanInterval(xs, 1)
	if d := 1.96 * 0.5 / 20; math.Abs(ci[0]-(0.5-d)) > 0.006 || math.Abs(ci[1]-(0.5+d)) > 0.006 {
		t.Errorf("interval %v, want about 0.5 +- %g", ci, d)
	}
	if again := MeanInterval(xs, 1); again != ci {
		t.Errorf("%v, then %v", ci, again)
	}
	if other := MeanInterval(xs, 2); other == ci {
		t.Error("the seed does not matter")
	}
	covered, draw := 0, rand.New(rand.NewPCG(1, 2))
	for sample := range 100 {
		for i := range xs[:50] {
			xs[i] = draw.Float64()
		}
		if ci := MeanInterval(xs[:50], uint64(sample)); ci[0] <= 0.5 && 0.5 <= ci[1] {
			covered++
		}
	}
	if covered < 85 {
		t.Errorf("%d of 100 intervals hold the truth", covered)
	}
	ones := []float64{1, 1, 1}
	if ci := RatioInterval(ones, []float64{2, 2, 2}, 1); ci != [2]float64{0.5, 0.5} {
		t.Errorf("ratio %v, want 0.5 exactly", ci)
	}
	for _, ci := range [][2]float64{MeanInterval(nil, 1), RatioInterval(ones, []float64{0, 0, 0}, 1)} {
		if !math.IsNaN(ci[0]) && !math.IsInf(ci[0], 0) {
			t.Errorf("%v, want no number", ci)
		}
	}
}

// Wilson's interval by hand, and at the ends where a bootstrap says nothing.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want [2]float64
	}{{0, 40, [2]float64{0, 0.0876}}, {40, 40, [2]float64{0.9124, 1}}, {81, 263, [2]float64{0.2553, 0.3662}}} { // the last is Newcombe's 1998 example
		if ci := Wilson(c.k, c.n); math.Abs(ci[0]-c.want[0]) > 5e-4 || math.Abs(ci[1]-c.want[1]) > 5e-4 {
			t.Errorf("%d of %d: %v, want %v", c.k, c.n, ci, c.want)
		}
	}
	if ci := Wilson(0, 0); !math.IsNaN(ci[0]) {
		t.Errorf("none of none: %v", ci)
	}
}

// The jackknife of a mean is its normal interval; that of distinct n-grams leaves out
// what only one text holds.
func TestJackknife(t *testing.T) {
	xs, sum := make([]float64, 50), 0.0
	for i := range xs {
		xs[i] = float64(i % 7)
		sum += xs[i]
	}
	mean, ss := sum/50, 0.0
	without := make([]float64, 50)
	for i, x := range xs {
		without[i] = (sum - x) / 49
		ss += (x - mean) * (x - mean)
	}
	half := 1.959963984540054 * math.Sqrt(ss/49/50)
	if ci := Jackknife(mean, without); math.Abs(ci[0]-(mean-half)) > 1e-12 || math.Abs(ci[1]-(mean+half)) > 1e-12 {
		t.Errorf("%v, want %g +- %g", ci, mean, half)
	}
	if ci := Jackknife(1, []float64{1}); !math.IsNaN(ci[0]) {
		t.Errorf("one unit: %v", ci)
	}
	texts := []string{"a b a b", "a b c", "", "d"}
	for n := 1; n <= 2; n++ {
		got := DistinctWithout(texts, n)
		for i := range texts {
			rest := append(append([]string{}, texts[:i]...), texts[i+1:]...)
			if want := DistinctN(rest, n); got[i] != want {
				t.Errorf("%d-grams without text %d: %g, want %g", n, i, got[i], want)
			}
		}
	}
}
