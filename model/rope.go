package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// RopeScaling is a rule for stretching the rotary frequencies beyond the positions that a
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
type RopeScaling struct {
	Type                string
	Factor              float64
	OriginalMaxPosition int

	LowFreqFactor, HighFreqFactor       float64 // llama3
	AttentionFactor, BetaFast, BetaSlow float64 // yarn
	Exact                               bool    // yarn
}

// ropeKeys are the keys of rope_parameters by type, beside those that all have.
var ropeKeys = map[string][]string{
	// of no effect, as in transformers
	"default": {"factor", "low_freq_factor", "high_freq_factor",
		"original_max_position_embeddings"},
	"llama3": {"factor", "low_freq_factor", "high_freq_factor",
		"original_max_position_embeddings"},
	"linear": {"factor"},
	"yarn": {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
		"beta_slow", "mscale", "mscale_all_dim", "truncate"},
}

// rope reads the rotary settings: rope_parameters of transformers 5, one for all layers or
// one for each type of layer, or rope_theta and rope_scaling of transformers 4.
func (r *reader) rope(c *Config, fam family) {
	c.RopeTheta = r.float("rope_theta", or(fam.theta, 10000))
	byType := fam.windows == layerByType
	if byType {
		c.LocalTheta = r.float("rope_local_base_freq", 10000)
	}
	key := "rope_parameters"
	v, ok := r.get(key)
	if !ok {
		key = "rope_scaling"
		if v, ok = r.get(key); !ok {
			return
		}
	}
	raw, err := object(v)
	if err != nil {
		r.fail("key %q: %w", key, err)
		return
	}
	s := reader{raw: raw}
	if byType && key == "rope_parameters" {
		for _, kind := range slices.Sorted(maps.Keys(raw)) {
			v, given := s.get(kind)
			if kind != "full_attention" && kind != "sliding_attention" {
				s.fail("key %q: %w: unknown: expected full_attention and sliding_attention", kind,
					ErrUnsupported)
				break
			}
			if !given {
				continue
			}
			one, err := object(v)
			if err != nil {
				s.fail("key %q: %w", kind, err)
				break
			}
			of := reader{raw: one}
			theta, scaling := of.ropeOf(c, c.RopeTheta)
			if kind == "full_attention" {
				c.RopeTheta, c.RopeScaling = theta, scaling
			} else if c.LocalTheta = of.float("rope_theta", c.LocalTheta); scaling != nil {
				of.fail("key \"rope_type\": %w: only full_attention has scaled positions",
					ErrUnsupported)
			}
			if of.err != nil {
				s.fail("key %q: %w", kind, of.err)
			}
		}
	} else {
		c.RopeTheta, c.RopeScaling = s.ropeOf(c, c.RopeTheta)
	}
	// transformers prefers the key outside
	if x := c.RopeScaling; x != nil && x.OriginalMaxPosition > 0 {
		x.OriginalMaxPosition = r.int("original_max_position_embeddings", x.OriginalMaxPosition)
	}
	if s.err != nil {
		r.fail("key %q: %w", key, s.err)
	}
}

// ropeOf reads one object of rotary settings.
func (s *reader) ropeOf(c *Config, theta float64) (float64, *RopeScaling) {
	theta = s.float("rope_theta", theta)
	kind := s.str("rope_type", s.str("type", "default"))
	known, ok := ropeKeys[kind]
	if !ok {
		s.fail("key \"rope_type\": %q: %w: use a model of rope type default, linear, llama3 or yarn, or remove the scaling and keep to max_position_embeddings", kind, ErrUnsupported)
		return theta, nil
	}
	var scaling *RopeScaling
	switch kind {
	case "llama3":
		scaling = &RopeScaling{
			Factor:              s.float("factor", 0),
			LowFreqFactor:       s.float("low_freq_factor", 0),
			HighFreqFactor:      s.float("high_freq_factor", 0),
			OriginalMaxPosition: s.int("original_max_position_embeddings", 0),
		}
	case "linear":
		scaling = &RopeScaling{Type: kind, Factor: s.float("factor", 0)}
	case "yarn":
		scaling = s.yarn(c)
	}
	// Keys that change the rotation and that are not known here must not pass unseen.
	for _, k := range slices.Sorted(maps.Keys(s.raw)) {
		switch {
		case k == "rope_theta" || k == "rope_type" || k == "type" || slices.Contains(known, k):
		case k == "partial_rotary_factor":
			if s.float(k, 1) != 1 {
				s.fail("key %q: %s: %w: only full rotation is implemented", k, s.raw[k],
					ErrUnsupported)
			}
		default:
			s.fail("key %q: %w: unknown to the rope type %s", k, ErrUnsupported, kind)
		}
	}
	return theta, scaling
}

// yarn reads the settings of yarn, with transformers' defaults.
func (s *reader) yarn(c *Config) *RopeScaling {
	y := &RopeScaling{Type: "yarn",
		OriginalMaxPosition: s.int("original_max_position_embeddings", c.MaxPosition)}
	y.Factor = s.float("factor", float64(c.MaxPosition)/float64(max(1, y.OriginalMaxPosition)))
	y.BetaFast, y.BetaSlow = s.float("beta_fast", 32), s.float("beta_slow", 1)
	y.Exact = !s.bool("truncate", true)
	attention := func(mscale float64) float64 {
		if y.Factor <= 1 {
			return 1
		}
		return 0.1*mscale*math.Log(y.Factor) + 1
	}
	y.AttentionFactor = attention(1)
	if m, all := s.float("mscale", 0), s.float("mscale_all_dim", 0); m != 0 && all != 0 {
		y.AttentionFactor = attention(m) / attention(all)
	}
	y.AttentionFactor = s.float("attention_factor", y.AttentionFactor)
	return y
}

// encode is the rule as transformers reads it.
func (s *RopeScaling) encode() map[string]any {
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

func (s *RopeScaling) validate() error {
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

// rope is the rotation of some layers.
type rope struct {
	headDim int
	theta   float64      // base of the frequencies
	scaling *RopeScaling // nil: frequencies as they are
}

// freq is the angle by which pair e of a head turns from one position to the next, before
// any scaling.
func (r rope) freq(e int) float64 {
	return 1 / math.Pow(r.theta, float64(2*e)/float64(r.headDim))
}

// scaled is freq by the rule of RopeScaling.
func (r rope) scaled(e int) float64 {
	f, s := r.freq(e), r.scaling
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

// ramp is yarn's share of the divided frequency in that of pair e: equation 13 of
// arXiv 2309.00071, over pairs.
func (r rope) ramp(e int) float64 {
	s := r.scaling
	pair := func(turns float64) float64 { // that turns so often within the original positions
		return float64(r.headDim) * math.Log(float64(s.OriginalMaxPosition)/(turns*2*math.Pi)) /
			(2 * math.Log(r.theta))
	}
	low, high := pair(s.BetaFast), pair(s.BetaSlow)
	if !s.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.headDim-1))
	if low == high {
		high += 0.001
	}
	return min(max((float64(e)-low)/(high-low), 0), 1)
}

// table is the table [positions, E] for Backend.Rope. Frequencies and angles are rounded to
// float32 before the cosine, since that is the rotation that the published weights were
// trained with.
func (r rope) table(positions int) []float32 {
	half, factor := r.headDim/2, 1.0
	if r.scaling != nil && r.scaling.Type == "yarn" {
		factor = r.scaling.AttentionFactor
	}
	freq := make([]float32, half)
	for e := range freq {
		freq[e] = float32(r.scaled(e))
	}
	table := make([]float32, positions*r.headDim)
	for p := range positions {
		row := table[p*r.headDim:][:r.headDim]
		for e, f := range freq {
			sin, cos := math.Sincos(float64(float32(p) * f))
			row[e], row[half+e] = float32(factor*cos), float32(factor*sin)
		}
	}
	return table
}

// RopeDivisors is what RopeScaling divides each rotary frequency by, one for each pair
// of a head; nil without scaling.
func (c Config) RopeDivisors() []float32 {
	if c.RopeScaling == nil {
		return nil
	}
	r := rope{c.HeadDim, c.RopeTheta, c.RopeScaling}
	d := make([]float32, c.HeadDim/2)
	for e := range d {
		d[e] = float32(r.freq(e) / r.scaled(e))
	}
	return d
}
