package model

import (
	"maps"
	"math"
	"slices"

	"gad/model/internal/architecture"
	"gad/model/internal/rope"
)

// ropeKeys has the keys of rope_parameters for each type, in addition to the common ones.
var ropeKeys = map[string][]string{
	// without effect, as in transformers
	"default": {"factor", "low_freq_factor", "high_freq_factor",
		"original_max_position_embeddings"},
	"llama3": {"factor", "low_freq_factor", "high_freq_factor",
		"original_max_position_embeddings"},
	"linear": {"factor"},
	"longrope": {"factor", "original_max_position_embeddings", "attention_factor", "short_factor",
		"long_factor"},
	"yarn": {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
		"beta_slow", "mscale", "mscale_all_dim", "truncate"},
}

// rope reads the rotary settings into c: rope_parameters of transformers 5, one for all layers or
// one for each type of layer, or rope_theta and rope_scaling of transformers 4.
func (r *reader) rope(c *Config, fam architecture.Family) {
	c.RopeTheta = r.float("rope_theta", or(fam.Theta, 10000))
	if fam.Partial > 0 {
		c.rotate(fam.Partial)
		r.rotated(c)
	}
	byType := fam.LocalRope != architecture.Alike
	switch fam.LocalRope {
	case architecture.OwnBase:
		c.LocalTheta = r.float("rope_local_base_freq", 10000)
	case architecture.SameBase:
		c.LocalTheta = c.RopeTheta
	}
	key := "rope_parameters"
	v, ok := r.get(key)
	if !ok {
		key = "rope_scaling"
		if v, ok = r.get(key); !ok {
			if fam.QueryScale {
				r.fail("key \"rope_parameters\": is missing: this architecture needs it")
			}
			return
		}
	}
	raw, err := parseObject(v)
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
			one, err := parseObject(v)
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
	// transformers prefers the key of the outer object
	if x := c.RopeScaling; x != nil && x.OriginalMaxPosition > 0 {
		x.OriginalMaxPosition = r.int("original_max_position_embeddings", x.OriginalMaxPosition)
		s.longrope(c)
	}
	if s.err != nil {
		r.fail("key %q: %w", key, s.err)
	}
}

// ropeOf returns the base and the scaling of s, one object of rotary settings; theta is the base if
// s gives none.
func (s *reader) ropeOf(c *Config, theta float64) (float64, *RopeScaling) {
	theta = s.float("rope_theta", theta)
	fam := architecture.Families[c.Architecture]
	queryScale := fam.QueryScale
	kind := s.str("rope_type", s.str("type", "default"))
	if fam.LongRope && (kind == "su" || kind == "yarn") { // its older names
		kind = "longrope"
	}
	if fam.Partial > 0 {
		s.rotated(c)
	}
	known, ok := ropeKeys[kind]
	if !ok || (kind == "longrope") != fam.LongRope && kind != "default" {
		s.fail("key \"rope_type\": %q: %w: use a model of rope type default, linear, llama3 or yarn, of Phi-3 with default or longrope, or remove the scaling and keep to max_position_embeddings", kind, ErrUnsupported)
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
	case "longrope":
		scaling = &RopeScaling{Type: kind,
			OriginalMaxPosition: s.int("original_max_position_embeddings", 4096)}
		s.value("short_factor", "a list of numbers", &scaling.ShortFactors)
		s.value("long_factor", "a list of numbers", &scaling.LongFactors)
	case "yarn":
		scaling = s.yarn(c)
		if queryScale {
			scaling.QueryBeta = s.float("llama_4_scaling_beta", 0)
		}
	}
	if queryScale && kind != "yarn" {
		s.fail("key \"rope_type\": %q: %w: %s has yarn", kind, ErrUnsupported, c.Architecture)
	}
	// An unknown key may change the rotation: it is refused.
	for _, k := range slices.Sorted(maps.Keys(s.raw)) {
		switch {
		case k == "rope_theta" || k == "rope_type" || k == "type" || slices.Contains(known, k):
		// transformers takes the second from here only where it is absent outside
		case queryScale && kind == "yarn" &&
			(k == "llama_4_scaling_beta" || k == "max_position_embeddings"):
		case k == "partial_rotary_factor" && fam.Partial > 0: // read by rotated
		case k == "mrope_section" && fam.MRope:
		// where the positions of images are parts of a rotation; of text all parts are equal
		case k == "mrope_interleaved" && fam.MRope:
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

// rotated reads partial_rotary_factor into c: the share of a head's elements that rotate.
func (r *reader) rotated(c *Config) {
	share := r.float("partial_rotary_factor", 1)
	if _, ok := r.get("partial_rotary_factor"); !ok {
		return
	}
	if !(share > 0 && share <= 1) {
		r.fail("key \"partial_rotary_factor\": %g: expected more than 0, and at most 1", share)
		return
	}
	c.rotate(share)
}

// rotate makes a share of a head's elements rotate.
func (c *Config) rotate(share float64) {
	if c.RotaryDim = int(float64(c.HeadDim) * share); c.RotaryDim == c.HeadDim {
		c.RotaryDim = 0
	}
}

// longrope completes c's scaling if it is of this type, by transformers' rule. c's positions end
// where the long factors would begin.
func (s *reader) longrope(c *Config) {
	x := c.RopeScaling
	if x.Type != "longrope" {
		return
	}
	x.Stretched, c.MaxPosition = c.MaxPosition, min(c.MaxPosition, x.OriginalMaxPosition)
	factor := s.float("factor", float64(x.Stretched)/float64(max(1, x.OriginalMaxPosition)))
	x.AttentionFactor = 1
	if factor > 1 {
		x.AttentionFactor = math.Sqrt(1 + math.Log(factor)/math.Log(float64(x.OriginalMaxPosition)))
	}
	x.AttentionFactor = s.float("attention_factor", x.AttentionFactor)
}

// yarn returns the settings of YaRN, with transformers' defaults.
func (s *reader) yarn(c *Config) *RopeScaling {
	y := &RopeScaling{Type: "yarn",
		OriginalMaxPosition: s.int("original_max_position_embeddings", c.MaxPosition)}
	y.Factor = s.float("factor", float64(c.MaxPosition)/float64(max(1, y.OriginalMaxPosition)))
	y.BetaFast, y.BetaSlow = s.float("beta_fast", 32), s.float("beta_slow", 1)
	y.Exact = !s.bool("truncate", true)
	y.AttentionFactor = rope.YarnAttention(y.Factor, 1)
	if m, all := s.float("mscale", 0), s.float("mscale_all_dim", 0); m != 0 && all != 0 {
		y.AttentionFactor = rope.YarnAttention(y.Factor, m) / rope.YarnAttention(y.Factor, all)
	}
	y.AttentionFactor = s.float("attention_factor", y.AttentionFactor)
	return y
}

// RopeDivisors returns the unscaled frequency divided by the scaled one, for each pair of a head
// [E/2]; nil without scaling.
func (c Config) RopeDivisors() []float32 {
	if c.RopeScaling == nil {
		return nil
	}
	return rope.Rotation{HeadDim: c.HeadDim, Rotated: c.RotaryDim, Theta: c.RopeTheta,
		Scaling: c.RopeScaling}.Divisors()
}
