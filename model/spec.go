package model

import (
	"gad/model/internal/rope"
	"math"
	"slices"
	"strings"
)

// spec describes what a model computes. The forward pass, its gradient, the layout of
// parameters and activations, the counts of operations and the adapters walk it; none of
// them asks for the architecture's name.
//
//	x = embed * embedding(ids)
//	for each of layers:
//	    h = norm1(x) if preNorm, or x
//	    q, k, v = h wqᵀ + bq, h wkᵀ + bk, h wvᵀ + bv         without biases unless qkvBias
//	    q, k = qn(q), kn(k)                                 as qkNorm says
//	    q, k = rotated by the frequencies of rope           unless rope is nil
//	    a = attention(q, k, v) woᵀ                          scale; the last window positions
//	    x = x + residual * post1(a)                         without post1 unless postNorm
//	    h = norm2(x) if preNorm, or x
//	    f = (act(h gateᵀ) * (h upᵀ)) downᵀ
//	    x = x + residual * post2(f)
//	h = final * norm(x);  logits = h headᵀ, or score = h headᵀ
//
// Every norm is RMSNorm with the weight normOffset + w.
type spec struct {
	preNorm, postNorm bool
	normOffset        float32
	qkvBias           bool
	qkNorm            qkNorm
	act               activation
	scale             float64 // of attention
	embed, residual   float64
	final             float64         // 1 for a scorer
	ropes             []rope.Rotation // that layers refer to
	layers            []layer
}

// layer is the part of a spec in which the layers of a model differ.
type layer struct {
	rope   int // index into spec.ropes; -1: no rotation
	window int // positions that a token sees, its own included; 0: all
}

// qkNorm is the elements of q and k over which the norms between projection and rotation go.
type qkNorm int

const (
	noNorm    qkNorm = iota
	headNorm         // each head by itself: weights [E]
	widthNorm        // all heads together: weights [H*E] and [K*E]
)

// activation is the function of the gate.
type activation int

const (
	silu     activation = iota // SwiGLU
	geluTanh                   // GeGLU, by the approximation with tanh
)

// The names of activations in config.json.
var activationNames = [...]string{silu: "silu", geluTanh: "gelu_pytorch_tanh"}

// family is an architecture: the part of its spec that config.json does not change, which keys
// its config.json may have, and the defaults of those that are absent.
type family struct {
	modelType string
	spec      spec
	scorer    string // class of a scorer, unless it is the family's name and classSuffix

	// Defaults of keys; 0 makes the key required.
	headDim     int     // 0 is Hidden/Heads
	tied        bool    // tie_word_embeddings
	eps         float64 // rms_norm_eps; 0 is 1e-6
	theta       float64 // rope_theta; 0 is 10000
	kvHeads     bool    // num_key_value_heads is num_attention_heads where it is absent
	attentionOf string  // key of an attention scale of its own: "" is 1/sqrt(HeadDim)

	windows     windowing
	noRope      bool   // no_rope_layers
	multipliers bool   // embedding_multiplier, residual_multiplier and logits_scaling
	sqrtEmbed   bool   // the embedding's output is multiplied by sqrt(Hidden)
	actKey      string // key of the activation; "" is hidden_act
}

// windowing is the way in which a family's config.json gives sliding windows.
type windowing int

const (
	noWindow   windowing = iota // a window in use is refused
	switched                    // use_sliding_window must be false
	everyLayer                  // sliding_window, in all layers
	// sliding_window, in the layers of layer_types, or all but every sliding_window_pattern-th;
	// they have rope_local_base_freq
	layerByType
)

// families is the table of architectures: a new one that spec can describe is a row here.
var families = map[string]family{
	"Qwen2": {modelType: "qwen2", spec: spec{preNorm: true, qkvBias: true}, windows: switched},
	"Qwen3": {modelType: "qwen3", spec: spec{preNorm: true, qkNorm: headNorm}, headDim: 128,
		windows: switched},
	"Llama":   {modelType: "llama", spec: spec{preNorm: true}, kvHeads: true},
	"Mistral": {modelType: "mistral", spec: spec{preNorm: true}, windows: everyLayer},
	"Gemma3": {modelType: "gemma3_text",
		spec: spec{preNorm: true, postNorm: true, normOffset: 1, qkNorm: headNorm,
			act: geluTanh},
		scorer:  "Gemma3TextForSequenceClassification",
		headDim: 256, tied: true, theta: 1e6, attentionOf: "query_pre_attn_scalar",
		windows: layerByType, sqrtEmbed: true, actKey: "hidden_activation"},
	"SmolLM3": {modelType: "smollm3", spec: spec{preNorm: true}, tied: true, theta: 2e6,
		windows: switched, noRope: true},
	"Olmo2": {modelType: "olmo2", spec: spec{postNorm: true, qkNorm: widthNorm}, eps: 1e-5,
		kvHeads: true},
	"Granite": {modelType: "granite", spec: spec{preNorm: true}, kvHeads: true,
		attentionOf: "attention_multiplier", multipliers: true},
}

// modelTypes lists the types of families for an error: "llama, mistral, qwen2 or qwen3".
func modelTypes() string {
	var types []string
	for _, f := range families {
		types = append(types, f.modelType)
	}
	slices.Sort(types)
	last := len(types) - 1
	return strings.Join(types[:last], ", ") + " or " + types[last]
}

// The classes of transformers, by Kind, as suffixes of the family's name.
var classSuffix = [...]string{LM: "ForCausalLM", Scorer: "ForSequenceClassification"}

// class is the class of transformers for a model of kind k. transformers has none for a scorer
// of Granite; folders have the name that such a class would have.
func (c Config) class(k Kind) string {
	if f := families[c.Architecture]; k == Scorer && f.scorer != "" {
		return f.scorer
	}
	return c.Architecture + classSuffix[k]
}

// spec describes a model of this architecture.
func (c *Config) spec(k Kind) spec {
	s := families[c.Architecture].spec
	s.scale = or(c.AttnScale, 1/math.Sqrt(float64(c.HeadDim)))
	s.embed, s.residual, s.final = or(c.EmbedScale, 1), or(c.ResidualScale, 1), 1
	if families[c.Architecture].sqrtEmbed {
		s.embed = math.Sqrt(float64(c.Hidden))
	}
	if k == LM {
		s.final = 1 / or(c.LogitDivisor, 1)
	}
	s.ropes = []rope.Rotation{{HeadDim: c.HeadDim, Theta: c.RopeTheta, Scaling: c.RopeScaling}}
	local := 0
	if c.LocalTheta > 0 && c.Window > 0 {
		s.ropes, local = append(s.ropes, rope.Rotation{HeadDim: c.HeadDim, Theta: c.LocalTheta}), 1
	}
	s.layers = make([]layer, c.Layers)
	for i := range s.layers {
		if c.Window > 0 && (c.Sliding == nil || c.Sliding[i]) {
			s.layers[i].rope = local
			if c.Window < c.MaxPosition { // else every position is in it
				s.layers[i].window = c.Window
			}
		}
		if c.NoRope != nil && c.NoRope[i] {
			s.layers[i].rope = -1
		}
	}
	return s
}

// or is x, or the other where x is 0.
func or(x, other float64) float64 {
	if x == 0 {
		return other
	}
	return x
}

// plain reports whether attention and the feed-forward layer add their last product to the
// residual stream without a norm or a factor.
func (s *spec) plain() bool { return !s.postNorm && s.residual == 1 }
