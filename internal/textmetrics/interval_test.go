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
		xs[i] = float64(2 * (i % 2)) // not a share, which is Wilson's
	}
	ci := RatioInterval(xs, nil, 1)
	if d := 1.96 / 20; math.Abs(ci[0]-(1-d)) > 0.012 || math.Abs(ci[1]-(1+d)) > 0.012 {
		t.Errorf("interval %v, want about 1 +- %g", ci, d)
	}
	if again := RatioInterval(xs, nil, 1); again != ci {
		t.Errorf("%v, then %v", ci, again)
	}
	if other := RatioInterval(xs, nil, 2); other == ci {
		t.Error("the seed does not matter")
	}
	covered, draw := 0, rand.New(rand.NewPCG(1, 2))
	for sample := range 100 {
		for i := range xs[:50] {
			xs[i] = draw.Float64()
		}
		if ci := RatioInterval(xs[:50], nil, uint64(sample)); ci[0] <= 0.5 && 0.5 <= ci[1] {
			covered++
		}
	}
	if covered < 85 {
		t.Errorf("%d of 100 intervals hold the truth", covered)
	}
	if ci := RatioInterval([]float64{1, 2, 4}, []float64{0, 0, 0}, 1); !math.IsNaN(ci[0]) &&
		!math.IsInf(ci[0], 0) {
		t.Errorf("%v, want no number", ci)
	}
}

// Units that do not differ, and a single one, say nothing of others: there is no
// interval, rather than one without width. Of shares Wilson's knows more.
func TestNoInterval(t *testing.T) {
	tenths := []float64{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1} // their means differ by rounding
	for name, ci := range map[string][2]float64{
		"no unit": RatioInterval(nil, nil, 1), "one unit": RatioInterval([]float64{0.3}, nil, 1),
		"one ratio":                RatioInterval([]float64{3}, []float64{4}, 1),
		"equal units":              RatioInterval(tenths, nil, 1),
		"equal ratios":             RatioInterval([]float64{1, 2, 3}, []float64{2, 4, 6}, 1),
		"one share":                RatioInterval([]float64{1}, nil, 1),
		"one difference of shares": RatioDifference([]float64{1}, nil, []float64{0}, nil, 1),
		"equal differences": RatioDifference([]float64{2.5, 3.5, 4.5}, nil,
			[]float64{1.5, 2.5, 3.5}, nil, 1),
		"one difference": RatioDifference([]float64{2.5}, nil, []float64{1.5}, nil, 1),
		"equal texts":    Jackknife(0.1, tenths),
	} {
		if !math.IsNaN(ci[0]) || !math.IsNaN(ci[1]) {
			t.Errorf("%s: %v", name, ci)
		}
	}
	if got, want := RatioInterval([]float64{1, 1, 1, 0}, nil, 1), Wilson(3, 4); got != want {
		t.Errorf("a share: %v, want %v", got, want)
	}
}

// Newcombe's interval of two shares of the same units: by hand where one is clear, turned
// round with the units, and with as much coverage as it says.
func TestNewcombe(t *testing.T) {
	units := func(both, onlyX, onlyY, neither int) (xs, ys []float64) {
		for _, c := range []struct {
			n    int
			x, y float64
		}{{both, 1, 1}, {onlyX, 1, 0}, {onlyY, 0, 1}, {neither, 0, 0}} {
			for range c.n {
				xs, ys = append(xs, c.x), append(ys, c.y)
			}
		}
		return xs, ys
	}
	// All right in one, all wrong in the other: both ends of Wilson's, z^2/(n+z^2) wide, are
	// independent.
	xs, ys := units(0, 40, 0, 0)
	wide := Wilson(0, 40)[1]
	if ci := RatioDifference(xs, nil, ys, nil, 1); math.Abs(ci[0]-(1-math.Sqrt2*wide)) > 1e-12 ||
		ci[1] != 1 {
		t.Errorf("1 against 0 in 40: %v", ci)
	}
	if ci := Newcombe(xs, xs); math.Abs(ci[0]+wide) > 1e-12 || math.Abs(ci[1]-wide) > 1e-12 {
		t.Errorf("all right in both, of 40: %v, want -+%g", ci, wide)
	}
	xs, ys = units(1, 1, 7, 12) // worked by Fagerland, Lydersen and Laake 2014
	if ci := Newcombe(xs, ys); math.Abs(ci[0]+0.507) > 5e-4 || math.Abs(ci[1]+0.026) > 5e-4 {
		t.Errorf("%v, want -0.507 to -0.026", ci)
	}
	xs, ys = units(20, 12, 2, 16)
	ci, turned := Newcombe(xs, ys), Newcombe(ys, xs)
	if math.Abs(ci[0]+turned[1]) > 1e-12 || math.Abs(ci[1]+turned[0]) > 1e-12 ||
		!(ci[0] > 0 && ci[0] < 0.2 && ci[1] > 0.2) {
		t.Errorf("%v, turned round %v", ci, turned)
	}
	if a, b := units(26, 6, 8, 10); Newcombe(a, b)[1]-Newcombe(a, b)[0] >= Wilson(32,
		50)[1]-Wilson(32, 50)[0]+Wilson(34, 50)[1]-Wilson(34, 50)[0] {
		t.Errorf("%v is wider than both together", Newcombe(a, b))
	}
	covered, draw := 0, rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		xs, ys := make([]float64, 60), make([]float64, 60)
		for i := range xs {
			same := draw.Float64() // a correlation, and shares of 0.8 and 0.7
			if same < 0.8 {
				xs[i] = 1
			}
			if draw.Float64() < 0.5 {
				same = draw.Float64()
			}
			if same < 0.7 {
				ys[i] = 1
			}
		}
		if ci := Newcombe(xs, ys); ci[0] <= 0.1 && 0.1 <= ci[1] {
			covered++
		}
	}
	if covered < 935 || covered > 985 {
		t.Errorf("%d of 1000 intervals hold the truth", covered)
	}
}

// Wilson's interval by hand, and at the ends where a bootstrap says nothing.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want [2]float64
	}{{0, 10, [2]float64{0, 0.2775}}, {15, 60, [2]float64{0.1577, 0.3723}}, {0, 40, [2]float64{0, 0.0876}}, {40, 40, [2]float64{0.9124, 1}}, {81, 263, [2]float64{0.2553, 0.3662}}} { // the last is Newcombe's 1998 example
		if ci := Wilson(c.k, c.n); math.Abs(ci[0]-c.want[0]) > 5e-4 ||
			math.Abs(ci[1]-c.want[1]) > 5e-4 {
			t.Errorf("%d of %d: %v, want %v", c.k, c.n, ci, c.want)
		}
	}
	for n := range 2 {
		if ci := Wilson(0, n); !math.IsNaN(ci[0]) || !math.IsNaN(ci[1]) {
			t.Errorf("none of %d: %v", n, ci)
		}
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
	if ci := Jackknife(mean, without); math.Abs(ci[0]-(mean-half)) > 1e-12 ||
		math.Abs(ci[1]-(mean+half)) > 1e-12 {
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
