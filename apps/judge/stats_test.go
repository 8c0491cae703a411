package judge

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// Win rates under control of the length are those of scikit-learn (with its ridge) and
// of statsmodels (without one).
func TestLengthControlled(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "golden", "judge.json"))
	if err != nil {
		t.Fatal(err)
	}
	type fit struct{ Rate, Slope float64 }
	var file struct {
		Cases []struct {
			Name                  string
			Length, Against, Y, W []float64
			Raw                   float64
			Ridge, Plain          fit
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.Cases) != 5 {
		t.Fatalf("%d cases: %v", len(file.Cases), err)
	}
	for _, c := range file.Cases {
		z := lengthTerms(c.Length, c.Against)
		for name, x := range map[string]struct {
			penalty float64
			want    fit
		}{"scikit-learn": {ridge, c.Ridge}, "statsmodels": {0, c.Plain}} {
			rate, slope := lengthControlled(c.Y, z, c.W, x.penalty)
			if math.Abs(rate-x.want.Rate) > 1e-8 || math.Abs(slope-x.want.Slope) > 1e-7 {
				t.Errorf("%s: rate %.12f slope %.12f, %s says %.12f and %.12f", c.Name, rate, slope,
					name, x.want.Rate, x.want.Slope)
			}
		}
		if math.Abs(c.Raw-c.Plain.Rate) < 1e-3 {
			t.Errorf("%s: control changes nothing: the case tests nothing", c.Name)
		}
	}
}

// What logistic regression cannot fit still has a rate.
func TestLengthControlledEdges(t *testing.T) {
	longer, shorter := []float64{5, 6, 9, 30}, []float64{2, 8, 4, 1}
	for _, c := range []struct {
		name       string
		y          []float64
		length     []float64
		w          []float64
		rate       float64
		flat       bool // the slope is 0
		rateWithin float64
	}{
		{"all won", []float64{1, 1, 1, 1}, longer, ones(4), 1, true, 0},
		{"all lost", []float64{0, 0, 0, 0}, longer, ones(4), 0, true, 0},
		{"all tied", []float64{.5, .5, .5, .5}, longer, ones(4), 0.5, true, 1e-9},
		{"equal lengths", []float64{1, 0, 1, 1}, shorter, ones(4), 0.75, true, 1e-9},
		{"one prompt", []float64{0.25}, []float64{7}, ones(1), 0.25, true, 1e-9},
		{"the longer always wins", []float64{1, 0, 1, 1}, longer, ones(4), 0.5, false, 0.3},
		{"no weight", []float64{1, 0, 1, 1}, longer, make([]float64, 4), math.NaN(), false, 0},
	} {
		rate, slope := lengthControlled(c.y, lengthTerms(c.length, shorter[:len(c.y)]), c.w, ridge)
		if math.IsNaN(c.rate) != math.IsNaN(rate) || math.Abs(rate-c.rate) > c.rateWithin ||
			(slope == 0) != c.flat && math.Abs(slope) > 1e-9 {
			t.Errorf("%s: rate %g, slope %g", c.name, rate, slope)
		}
	}
	if z := lengthTerms([]float64{3, 4, 5}, []float64{1, 2, 3}); z[0] != 0 || z[2] != 0 {
		t.Errorf("lengths that all differ alike: %v", z)
	}
}
