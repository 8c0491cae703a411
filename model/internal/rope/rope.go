// Package rope computes rotary position embeddings: frequencies, the rules that scale them, and
// tables of cosines and sines.
package rope

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// ErrUnsupported is wrapped by errors about models that gad reads but cannot compute: another
// architecture, rope rule or attention variant.
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
//	"longrope"      arXiv 2402.13753: the frequency of each pair is divided by its ShortFactors;
//	                cosines and sines are multiplied by AttentionFactor. Beyond
//	                OriginalMaxPosition, LongFactors would divide the frequencies of all positions,
//	                earlier ones too: such sequences are not computed
type Scaling struct {
	Type                string
	Factor              float64
	OriginalMaxPosition int

	LowFreqFactor, HighFreqFactor float64 // llama3
	AttentionFactor               float64 // yarn, longrope
	BetaFast, BetaSlow            float64 // yarn
	Exact                         bool    // yarn

	// Queries at position p are multiplied by 1 + QueryBeta*log(1 + floor(p/OriginalMaxPosition)):
	// llama_4_scaling_beta
	QueryBeta float64 // yarn

	ShortFactors, LongFactors []float64 // longrope, one for each rotated pair
	Stretched                 int       // longrope: max_position_embeddings
}

// Encode returns the rule as the object rope_scaling of config.json, with transformers' keys.
func (s *Scaling) Encode() map[string]any {
	switch s.Type {
	case "linear":
		return map[string]any{"rope_type": s.Type, "factor": s.Factor}
	case "yarn":
		keys := map[string]any{"rope_type": s.Type, "factor": s.Factor,
			"original_max_position_embeddings": s.OriginalMaxPosition,
			"attention_factor":                 s.AttentionFactor, "beta_fast": s.BetaFast,
			"beta_slow": s.BetaSlow,
			"truncate":  !s.Exact}
		if s.QueryBeta != 0 {
			keys["llama_4_scaling_beta"] = s.QueryBeta
		}
		return keys
	case "longrope":
		return map[string]any{"rope_type": s.Type,
			"original_max_position_embeddings": s.OriginalMaxPosition,
			"attention_factor":                 s.AttentionFactor, "short_factor": s.ShortFactors,
			"long_factor": s.LongFactors}
	}
	return map[string]any{"rope_type": "llama3", "factor": s.Factor,
		"low_freq_factor":                  s.LowFreqFactor,
		"high_freq_factor":                 s.HighFreqFactor,
		"original_max_position_embeddings": s.OriginalMaxPosition}
}

// YarnAttention returns YaRN's factor of cosines and sines: a logarithm of the factor by which
// positions are stretched, times mscale.
func YarnAttention(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}

// YarnAttention returns the AttentionFactor that YaRN has by itself.
func (s *Scaling) YarnAttention() float64 { return YarnAttention(s.Factor, 1) }

// Validate refuses an unknown type and numbers out of its bounds.
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
			!(s.AttentionFactor > 0 && s.AttentionFactor <= 1e3) ||
			!(s.QueryBeta >= 0 && s.QueryBeta <= 1e3) {
			return fmt.Errorf(
				"rope scaling yarn: factor %g, original_max_position_embeddings %d, beta_slow %g, beta_fast %g, attention factor %g, llama_4_scaling_beta %g: expected factor >= 1, 0 < beta_slow <= beta_fast, and positive numbers",
				s.Factor, s.OriginalMaxPosition, s.BetaSlow, s.BetaFast, s.AttentionFactor,
				s.QueryBeta)
		}
	case "longrope":
		positive := func(x float64) bool { return x >= 1e-6 && x <= 1e6 }
		all := func(list []float64) bool {
			return !slices.ContainsFunc(list, func(x float64) bool { return !positive(x) })
		}
		if !original || s.Stretched < s.OriginalMaxPosition || s.Stretched > 1<<26 ||
			!(s.AttentionFactor > 0 && s.AttentionFactor <= 1e3) || len(s.ShortFactors) == 0 ||
			len(s.LongFactors) != len(s.ShortFactors) || !all(s.ShortFactors) ||
			!all(s.LongFactors) {
			return fmt.Errorf(
				"rope scaling longrope: original_max_position_embeddings %d of %d, attention factor %g, %d short_factor and %d long_factor: expected positive numbers, as many of both", s.OriginalMaxPosition, s.Stretched, s.AttentionFactor, len(s.ShortFactors), len(s.LongFactors))
		}
	default:
		return fmt.Errorf("rope scaling %q: %w: use %s", s.Type, ErrUnsupported,
			strings.Join([]string{"linear", "llama3", "yarn", "longrope"}, ", "))
	}
	return nil
}

// Rotation has the parameters of the rotary embedding of some layers.
type Rotation struct {
	HeadDim int
	// rotated elements of a head; 0: all. In the model's order of a head they are the first ones
	// of each half: their pairs too are HeadDim/2 apart
	Rotated int
	Theta   float64  // base of the frequencies
	Scaling *Scaling // nil: unscaled frequencies
	Query   bool     // for queries: scaled by position, as Scaling.QueryBeta says
}

// pairs returns the number of pairs of a head that rotate.
func (r Rotation) pairs() int {
	if r.Rotated > 0 {
		return r.Rotated / 2
	}
	return r.HeadDim / 2
}

// freq returns the angle, in radians, by which pair e of a head turns from one position to the
// next, before scaling.
func (r Rotation) freq(e int) float64 {
	return 1 / math.Pow(r.Theta, float64(e)/float64(r.pairs()))
}

// scaledFreq returns freq after the rule of Scaling.
func (r Rotation) scaledFreq(e int) float64 {
	f, s := r.freq(e), r.Scaling
	switch {
	case s == nil:
		return f
	case s.Type == "linear":
		return f / s.Factor
	case s.Type == "longrope":
		return f / s.ShortFactors[e]
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

// ramp returns the weight, 0 to 1, of the divided frequency in YaRN's frequency of pair e: equation
// 13 of arXiv 2309.00071, over pairs.
func (r Rotation) ramp(e int) float64 {
	s := r.Scaling
	// pair returns the index, not rounded, of the pair that turns so often within the original
	// positions.
	pair := func(turns float64) float64 {
		return float64(r.pairs()) * math.Log(float64(s.OriginalMaxPosition)/(turns*2*math.Pi)) /
			math.Log(r.Theta)
	}
	low, high := pair(s.BetaFast), pair(s.BetaSlow)
	if !s.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(2*r.pairs()-1))
	if low == high {
		high += 0.001
	}
	return min(max((float64(e)-low)/(high-low), 0), 1)
}

// Table returns the table [positions, E] for Backend.Rope: of each position E/2 cosines, then E/2
// sines. Frequencies and angles are rounded to float32 before the cosine, since the published
// weights were trained with that rotation.
func (r Rotation) Table(positions int) []float32 {
	half, factor := r.HeadDim/2, 1.0
	if s := r.Scaling; s != nil && (s.Type == "yarn" || s.Type == "longrope") {
		factor = s.AttentionFactor
	}
	freq := make([]float32, r.pairs())
	for e := range freq {
		freq[e] = float32(r.scaledFreq(e))
	}
	table := make([]float32, positions*r.HeadDim)
	for p := range positions {
		row, times := table[p*r.HeadDim:][:r.HeadDim], factor
		if r.Query && r.Scaling != nil && r.Scaling.QueryBeta != 0 {
			times *= 1 + r.Scaling.QueryBeta*math.Log1p(float64(p/r.Scaling.OriginalMaxPosition))
		}
		for e, f := range freq {
			sin, cos := math.Sincos(float64(float32(p) * f))
			row[e], row[half+e] = float32(times*cos), float32(times*sin)
		}
		for e := len(freq); e < half; e++ {
			row[e] = 1
		}
	}
	return table
}

// Divisors returns the unscaled frequency divided by the scaled one, for each pair of a head:
// [E/2].
func (r Rotation) Divisors() []float32 {
	d := make([]float32, r.pairs())
	for e := range d {
		d[e] = float32(r.freq(e) / r.scaledFreq(e))
	}
	return d
}

// ScalingOf returns the Llama 3 rule whose Divisors are d, for heads of headDim elements and the
// base theta; nil if all divisors are 1. A file has only the divisors. The factor is the largest of
// them, and the published models have 1 and 4 as low_freq_factor and high_freq_factor; the original
// length is a power of two, or follows from a divisor between 1 and the factor. A rule is refused
// unless its divisors are d within a relative 1e-5, the precision of the converters.
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
