package rope

import (
	"math"
	"testing"
)

// The frequencies of yarn at its ends and between, and its factor (arXiv 2309.00071,
// equations 13, 17 to 19 and 22), and those of linear.
func TestRopeScalings(t *testing.T) {
	r := Rotation{HeadDim: 128, Theta: 10000,
		Scaling: &Scaling{Type: "yarn", Factor: 16, OriginalMaxPosition: 4096, BetaFast: 32,
			BetaSlow: 1, AttentionFactor: 0.1*math.Log(16) + 1}}
	turns := func(e int) float64 { return 4096 * r.freq(e) / (2 * math.Pi) }
	between := 0
	for e := range 64 {
		share := r.scaledFreq(e) / r.freq(e) // 1 stays, 1/16 is divided
		switch {
		case turns(e) > 33 && turns(e+1) > 32 && share != 1:
			t.Errorf("pair %d turns %.1f times: %g of its frequency, want all", e, turns(e), share)
		case turns(e) < 0.8 && math.Abs(share-1./16) > 1e-12:
			t.Errorf("pair %d turns %.2f times: %g of its frequency, want 1/16", e, turns(e), share)
		case share < 1 && share > 1./16:
			between++
		}
	}
	if between < 10 {
		t.Errorf("%d pairs on the ramp", between)
	}
	row := r.Table(2)[128:]
	if norm := math.Hypot(float64(row[0]),
		float64(row[64])); math.Abs(norm-r.Scaling.AttentionFactor) > 1e-6 {
		t.Errorf("cosine and sine have the length %g, want %g", norm, r.Scaling.AttentionFactor)
	}
	l := Rotation{HeadDim: 128, Theta: 10000, Scaling: &Scaling{Type: "linear", Factor: 4}}
	if got, want := l.scaledFreq(7), l.freq(7)/4; got != want {
		t.Errorf("linear: %g, want %g", got, want)
	}
}

func llama3(factor, high float64, original int) Scaling {
	return Scaling{Factor: factor, LowFreqFactor: 1, HighFreqFactor: high,
		OriginalMaxPosition: original}
}

// The rule of Llama 3 is found in its divisors alone: of the published models, of short
// heads, and of any factor and length.
func TestScalingOf(t *testing.T) {
	for _, s := range []Scaling{llama3(8, 4, 8192), llama3(32, 4, 8192), llama3(8, 4, 64),
		llama3(4, 4, 3000), llama3(2.5, 4, 40000)} {
		for _, e := range []int{8, 64, 128} {
			for _, theta := range []float64{10000, 500000} {
				r := Rotation{HeadDim: e, Theta: theta, Scaling: &s}
				want := r.Divisors()
				got, err := ScalingOf(e, theta, want)
				if err != nil {
					t.Errorf("%+v, heads of %d: %v", s, e, err)
					continue
				}
				r.Scaling = got
				for i, d := range r.Divisors() {
					if math.Abs(float64(d-want[i])) > 1e-5*float64(want[i]) {
						t.Errorf("%+v, heads of %d: divisor %d is %g, want %g", s, e, i, d, want[i])
					}
				}
				if e == 128 && s.Factor > 4 && s.OriginalMaxPosition == 8192 &&
					(math.Abs(got.Factor-s.Factor) > 1e-6 || got.OriginalMaxPosition != 8192) {
					t.Errorf("%+v became %+v", s, *got)
				}
			}
		}
	}
	s := llama3(8, 8, 8192)
	other := Rotation{HeadDim: 128, Theta: 500000, Scaling: &s}.Divisors()
	if _, err := ScalingOf(128, 500000, other); err == nil {
		t.Error("a rule with high_freq_factor 8 was taken for one with 4")
	}
}
