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
