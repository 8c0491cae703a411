// Package rope computes rotary positions: frequencies, the rules that stretch them, and tables.
package rope

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// ErrUnsupported is wrapped by the errors about models that gad reads correctly
// but cannot compute: another architecture, rope rule or attention variant.
var ErrUnsupported = errors.New("not supported")

// Scaling is a rule for stretching the rotary frequencies beyond the positions that a
// model was first trained with. Type is one of
//
//	"llama3" or ""  wavelengths above OriginalMaxPosition/LowFreqFactor are divided by Factor,
//	                those below OriginalMaxPosition/HighFreqFactor stay, and between them the
//	                frequency is interpolated
//	"linear"        all frequencies are divided by Factor
//	"yarn"          arXiv 2309.00071: pairs that turn more than BetaFast times within
//	                OriginalMaxPosition stay, those that turn less than BetaSlow times are divided
//	                by Factor, with a ramp over the pairs between them; cosines and sines are
//	                multiplied by AttentionFactor. Exact leaves the ramp's ends between pairs,
//	                instead of at whole ones ("truncate": false)
type Scaling struct {
	Type                string
	Factor              float64
	OriginalMaxPosition int

	LowFreqFactor, HighFreqFactor       float64 // llama3
	AttentionFactor, BetaFast, BetaSlow float64 // yarn
	Exact                               bool    // yarn
}

// Encode returns the rule as transformers reads it.
func (s *Scaling) Encode() map[string]any {
	switch s.Type {
	case "linear":
		return map[string]any{"rope_type": s.Type, "factor": s.Factor}
	case "yarn":
		return map[string]any{"rope_type": s.Type, "factor": s.Factor,
			"original_max_position_embeddings": s.OriginalMaxPosition,
			"attention_factor":                 s.AttentionFactor, "beta_fast": s.BetaFast,
			"beta_slow": s.BetaSlow,
			"truncate":  !s.Exact}
	}
	return map[string]any{"rope_type": "llama3", "factor": s.Factor,
		"low_freq_factor":                  s.LowFreqFactor,
		"high_freq_factor":                 s.HighFreqFactor,
		"original_max_position_embeddings": s.OriginalMaxPosition}
}

func (s *Scaling) Validate() error {
	original := s.OriginalMaxPosition >= 1 && s.OriginalMaxPosition <= 1<<26
	switch factor := s.Factor >= 1 && s.Factor <= 1e6; s.Type {
	case "", "llama3":
		if !factor || !(s.LowFreqFactor > 0 && s.LowFreqFactor < s.HighFreqFactor &&
			s.HighFreqFactor <= 1e6) || !original {
			return fmt.Errorf("rope scaling llama3: factor %g, low_freq_factor %g, high_freq_factor %g, original_max_position_embeddings %d: expected factor >= 1, 0 < low_freq_factor < high_freq_factor and a positive original_max_position_embeddings", s.Factor, s.LowFreqFactor, s.HighFreqFactor, s.OriginalMaxPosition)
		}
	case "linear":
		if !factor {
			return fmt.Errorf("rope scaling linear: factor %g: expected at least 1", s.Factor)
		}
	case "yarn":
		if !factor || !original ||
			!(s.BetaSlow > 0 && s.BetaSlow <= s.BetaFast && s.BetaFast <= 1e6) ||
			!(s.AttentionFactor > 0 && s.AttentionFactor <= 1e3) {
			return fmt.Errorf("rope scaling yarn: factor %g, original_max_position_embeddings %d, beta_slow %g, beta_fast %g, attention factor %g: expected factor >= 1, 0 < beta_slow <= beta_fast, and positive numbers",
				s.Factor, s.OriginalMaxPosition, s.BetaSlow, s.BetaFast, s.AttentionFactor)
		}
	default:
		return fmt.Errorf("rope scaling %q: %w: use %s", s.Type, ErrUnsupported,
			strings.Join([]string{"linear", "llama3", "yarn"}, ", "))
	}
	return nil
}

// Rotation is the rotation of some layers.
type Rotation struct {
	HeadDim int
	Theta   float64  // base of the frequencies
	Scaling *Scaling // nil: frequencies as they are
}

// freq returns the angle by which pair e of a head turns from one position to the next, before
// any scaling.
func (r Rotation) freq(e int) float64 {
	return 1 / math.Pow(r.Theta, float64(2*e)/float64(r.HeadDim))
}

// scaled returns freq by the rule of Scaling.
func (r Rotation) scaled(e int) float64 {
	f, s := r.freq(e), r.Scaling
	switch {
	case s == nil:
		return f
	case s.Type == "linear":
		return f / s.Factor
	case s.Type == "yarn":
		ramp := r.ramp(e)
		return f/s.Factor*ramp + f*(1-ramp)
	}
	wave := 2 * math.Pi / f
	low, high :=
		float64(s.OriginalMaxPosition)/s.LowFreqFactor,
		float64(s.OriginalMaxPosition)/s.HighFreqFactor
	switch {
	case wave > low:
		f /= s.Factor
	case wave >= high:
		t := (float64(s.OriginalMaxPosition)/wave - s.LowFreqFactor) /
			(s.HighFreqFactor - s.LowFreqFactor)
		f = (1-t)*f/s.Factor + t*f
	}
	return f
}

// ramp returns yarn's share of the divided frequency in that of pair e: equation 13 of
// arXiv 2309.00071, over pairs.
func (r Rotation) ramp(e int) float64 {
	s := r.Scaling
	pair := func(turns float64) float64 { // that turns so often within the original positions
		return float64(r.HeadDim) * math.Log(float64(s.OriginalMaxPosition)/(turns*2*math.Pi)) /
			(2 * math.Log(r.Theta))
	}
	low, high := pair(s.BetaFast), pair(s.BetaSlow)
	if !s.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.HeadDim-1))
	if low == high {
		high += 0.001
	}
	return min(max((float64(e)-low)/(high-low), 0), 1)
}

// Table returns the table [positions, E] for Backend.Rope. Frequencies and angles are rounded to
// float32 before the cosine, since that is the rotation that the published weights were
// trained with.
func (r Rotation) Table(positions int) []float32 {
	half, factor := r.HeadDim/2, 1.0
	if r.Scaling != nil && r.Scaling.Type == "yarn" {
		factor = r.Scaling.AttentionFactor
	}
	freq := make([]float32, half)
	for e := range freq {
		freq[e] = float32(r.scaled(e))
	}
	table := make([]float32, positions*r.HeadDim)
	for p := range positions {
		row := table[p*r.HeadDim:][:r.HeadDim]
		for e, f := range freq {
			sin, cos := math.Sincos(float64(float32(p) * f))
			row[e], row[half+e] = float32(factor*cos), float32(factor*sin)
		}
	}
	return table
}

// Divisors returns what the scaling divides the frequency of each pair of a head by.
func (r Rotation) Divisors() []float32 {
	d := make([]float32, r.HeadDim/2)
	for e := range d {
		d[e] = float32(r.freq(e) / r.scaled(e))
	}
	return d
}

// ScalingOf finds the rule of Llama 3 whose divisors d are, for heads of headDim
// elements and the base theta. A file has the divisors alone. Their factor is the largest of them,
// and the published models have 1 and 4 as low_freq_factor and high_freq_factor; the original
// length is a power of two, or what a divisor between 1 and the factor says it is. A rule whose
// divisors are not d within 1e-5, which is how exactly converters compute them, is not taken.
func ScalingOf(headDim int, theta float64, d []float32) (*Scaling, error) {
	const low, high = 1, 4
	r := Rotation{HeadDim: headDim, Theta: theta}
	if len(d) != headDim/2 {
		return nil, fmt.Errorf("%d divisors: expected %d, one for each pair of a head", len(d),
			headDim/2)
	}
	most := float64(slices.Max(d))
	switch {
	case slices.Min(d) == 1 && most == 1:
		return nil, nil
	case !(most > 1) || math.IsInf(most, 0):
		return nil, fmt.Errorf("has %g: expected divisors of 1 or more", most)
	}
	var lengths []int
	for n := 1; n <= 1<<26; n *= 2 {
		lengths = append(lengths, n)
	}
	for e, x := range d {
		// 1/x = (1-t)/most + t,  t = (length/wave - low)/(high - low)
		if x := float64(x); x > 1 && x < most {
			t := (1/x - 1/most) / (1 - 1/most)
			lengths = append(lengths, int(math.Round(2*math.Pi/r.freq(e)*(low+t*(high-low)))))
		}
	}
	for _, n := range lengths {
		r.Scaling = &Scaling{Factor: most, LowFreqFactor: low, HighFreqFactor: high,
			OriginalMaxPosition: n}
		same := func(x, y float32) bool { return math.Abs(float64(x-y)) <= 1e-5*float64(y) }
		if n > 0 && slices.EqualFunc(r.Divisors(), d, same) {
			return r.Scaling, nil
		}
	}
	return nil, fmt.Errorf("divides the frequencies otherwise than Llama 3 does: %w: use a model whose rotation is Llama 3's or plain", ErrUnsupported)
}
