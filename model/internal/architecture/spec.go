// Package architecture describes the computation of the models of each family.
//
//	kind.go  the head on top of the backbone
//	spec.go  the forward pass of each family, and the table of families
package architecture

import (
	"slices"
	"strings"

	"gad/internal/compute"
	"gad/model/internal/rope"
)

// Spec describes the computation of a model. The forward pass, its gradient, the layout of
// parameters and activations, the counts of operations and the adapters follow it; none of them
// asks for the architecture's name.
//
//	x = embed * embedding(ids)
//	for each of layers:
//	    h = norm1(x) if PreNorm, or x
//	    in a layer that mixes by attention
//	    q, k, v = h wqᵀ + bq, h wkᵀ + bk, h wvᵀ + bv         without biases unless QKVBias
//	    q, k = qn(q), kn(k)                                 as QKNorm says
//	    q, k = rotated by the frequencies of query and rope unless there are none
//	    o = attention(q, k, v)                     scale; scoreCap; the last window positions
//	    a = (o * sigmoid(h wgᵀ)) woᵀ                        without the sigmoid unless OutGate
//	    in one that mixes by a short convolution
//	    b, c, u = parts of h winᵀ
//	    a = (c * conv(b * u)) woᵀ                           over the last tokens
//	    in one that mixes by the gated delta rule
//	    q, k, v = parts of silu(conv(h wqkvᵀ))              over the last tokens
//	    o = deltaRule(q, k, v, h waᵀ, h wbᵀ)                by logA and dt of each value head
//	    a = (on(o) * silu(h wzᵀ)) woᵀ                       a norm of each value head
//	    in all layers
//	    x = x + residual * post1(a)                         without post1 unless PostNorm
//	    h = norm2(x) if PreNorm, or x
//	    f = (act(h gateᵀ) * (h upᵀ)) downᵀ
//	    x = x + residual * post2(f)
//	h = final * norm(x);  logits = h headᵀ, capped at logitCap, or score = h headᵀ
//
// A cap is soft: cap*tanh(x/cap).
//
// Every norm is RMSNorm with the weight NormOffset + w, but on's, which is w.
type Spec struct {
	PreNorm, PostNorm bool
	NormOffset        float32
	QKVBias           bool
	QKNorm            qkNorm
	OutGate           bool // attention's output is gated by a projection of its input
	Act               compute.Activation
	Scale             float64 // of attention
	Embed, Residual   float64
	Final             float64         // 1 for a scorer
	ScoreCap          float64         // soft cap of attention's scores; 0: none
	LogitCap          float64         // of the logits; 0 for a scorer
	Ropes             []rope.Rotation // indexed by Layer.Rope and Layer.Query
	Layers            []Layer
}

// Layer holds the settings in which the layers of a model differ.
type Layer struct {
	Mixer  Mixer
	Rope   int // index into Spec.Ropes; -1: no rotation
	Query  int // the same of queries, which may be scaled by position
	Window int // positions in the attention window, the token's own included; 0: all
}

// Mixer is the way in which a layer's tokens read each other.
type Mixer int

const (
	Attention Mixer = iota
	ShortConv       // LFM2's gated short convolution (arXiv 2511.23404)
	DeltaRule       // Qwen3.5's gated delta rule (arXiv 2412.06464)
)

// MixerNames has layer_types' name of each mixer.
var MixerNames = [...]string{Attention: "full_attention", ShortConv: "conv",
	DeltaRule: "linear_attention"}

// qkNorm selects the norm of q and k between projection and rotation: over which elements.
type qkNorm int

const (
	NoNorm    qkNorm = iota
	HeadNorm         // each head by itself: weights [E]
	WidthNorm        // all heads together: weights [H*E] and [K*E]
)

// ActivationNames has config.json's name of each activation.
var ActivationNames = [...]string{compute.SiLU: "silu", compute.GELUTanh: "gelu_pytorch_tanh"}

// Family is an architecture: the part of its spec that config.json does not change, the keys that
// its config.json may have, and the defaults of absent keys.
type Family struct {
	ModelType string
	Models    string // released models, for documents
	Spec      Spec
	Scorer    string // class of a scorer, unless it is the family's name and ClassSuffix

	// Defaults of keys; 0 makes the key required.
	HeadDim     int     // 0 is Hidden/Heads
	Tied        bool    // tie_word_embeddings
	Eps         float64 // rms_norm_eps; 0 is 1e-6
	Theta       float64 // rope_theta; 0 is 10000
	KVHeads     bool    // num_key_value_heads is num_attention_heads where it is absent
	AttentionOf string  // key of an attention scale of its own: "" is 1/sqrt(HeadDim)

	Windows    windowing
	NullWindow bool // with EveryLayer: no window where sliding_window is absent
	// without layer_types, every n-th layer has full attention, the others a window or the Mixer
	FullEvery   int
	LocalRope   LocalRope // rotation in the layers with a window
	NoRope      noRope    // layers without rotation
	FFNKey      string    // key of the feed-forward width; "" is intermediate_size
	Hybrid      bool      // layers may be Mamba or have experts: such models are refused
	LongRope    bool      // the rope type longrope
	Partial     float64   // partial_rotary_factor where it is absent; 0: heads rotate whole
	MRope       bool      // positions of images have parts of their own: of text they are equal
	QueryScale  bool      // llama_4_scaling_beta among the rotary settings
	Multipliers bool      // embedding_multiplier, residual_multiplier and logits_scaling
	SqrtEmbed   bool      // the embedding's output is multiplied by sqrt(Hidden)
	Caps        bool      // attn_logit_softcapping (50) and final_logit_softcapping (30)
	ActKey      string    // key of the activation; "" is hidden_act
	Mixer       Mixer     // of layers that layer_types does not name as attention; Attention: none
	EpsKey      string    // key of the norms' eps; "" is rms_norm_eps
	Fused       []Fused   // weights of a layer that folders store in one matrix, or under another name
}

// EpsName returns the key of the norms' eps.
func (f Family) EpsName() string {
	if f.EpsKey != "" {
		return f.EpsKey
	}
	return "rms_norm_eps"
}

// Fused is a matrix of a folder with several of a layer's weights, one below the other. Names begin
// behind the layer's number, of the final norm behind "model".
type Fused struct {
	Whole  string
	Parts  []string
	ByHead bool // a head of each part in turn, instead of the parts one below the other
}

// Known reports whether the matrix is one of its own parts, under its name: who names that part
// means the whole.
func (f Fused) Known() bool { return slices.Contains(f.Parts, f.Whole) }

// Module returns the last part of a weight's name, which is peft's name of its linear layer.
func Module(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// WholeOf returns the fused matrix that has the weight of a linear layer as a part; name is the
// layer's, without ".weight".
func (f Family) WholeOf(name string) (Fused, bool) {
	for _, x := range f.Fused {
		if slices.ContainsFunc(x.Parts, func(part string) bool {
			return strings.HasSuffix(name, "."+part)
		}) {
			return x, true
		}
	}
	return Fused{}, false
}

// windowing is the way a family's config.json describes sliding windows.
type windowing int

const (
	NoWindow   windowing = iota // a window in use is refused
	Switched                    // use_sliding_window must be false
	EveryLayer                  // sliding_window holds for all layers
	// sliding_window holds for the layers that layer_types names, or for all but every
	// sliding_window_pattern-th
	LayerByType
)

// noRope is the way a family's config.json describes layers without rotation.
type noRope int

const (
	AllRotate noRope = iota
	ByLayer          // no_rope_layers
	AllOrNone        // position_embedding_type: rope, or another value for none
)

// LocalRope is the rotary base of layers with a window where it is not that of the others. Such
// layers rotate without scaling, and rope_parameters may be given by type of layer.
type LocalRope int

const (
	Alike    LocalRope = iota // all layers rotate alike
	OwnBase                   // rope_local_base_freq
	SameBase                  // rope_theta
)

// Families is the table of architectures: a new one that Spec can describe is a row here.
var Families = map[string]Family{
	"Qwen2": {ModelType: "qwen2", Models: "Qwen2, Qwen2.5",
		Spec: Spec{PreNorm: true, QKVBias: true}, Windows: Switched},
	"Qwen3": {ModelType: "qwen3", Models: "Qwen3 (dense)",
		Spec: Spec{PreNorm: true, QKNorm: HeadNorm}, HeadDim: 128,
		Windows: Switched},
	"Qwen3_5": {ModelType: "qwen3_5_text", Models: "Qwen3.5, Qwen3.6 (dense, text part)",
		Spec:    Spec{PreNorm: true, NormOffset: 1, QKNorm: HeadNorm, OutGate: true},
		Scorer:  "Qwen3_5TextForSequenceClassification",
		HeadDim: 256, Partial: 0.25, MRope: true, Mixer: DeltaRule, FullEvery: 4,
		Fused: []Fused{{Whole: "self_attn.q_proj",
			Parts: []string{"self_attn.q_proj", "self_attn.q_gate"}, ByHead: true}}},
	"Llama": {ModelType: "llama", Models: "Llama 2 to 3.2 (text), SmolLM2, TinyLlama",
		Spec: Spec{PreNorm: true}, KVHeads: true},
	"Mistral": {ModelType: "mistral", Models: "Mistral",
		Spec: Spec{PreNorm: true}, Windows: EveryLayer},
	"Ministral3": {ModelType: "ministral3", Models: "Ministral 3 (text part)",
		Spec: Spec{PreNorm: true}, HeadDim: 128, Eps: 1e-5,
		Windows: EveryLayer, NullWindow: true, QueryScale: true},
	"Phi3": {ModelType: "phi3", Models: "Phi-3, Phi-3.5-mini, Phi-4-mini",
		Spec: Spec{PreNorm: true}, Eps: 1e-5, KVHeads: true,
		Windows: EveryLayer, NullWindow: true, LongRope: true, Partial: 1,
		Fused: []Fused{
			{Whole: "self_attn.qkv_proj",
				Parts: []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
			{Whole: "mlp.gate_up_proj", Parts: []string{"mlp.gate_proj", "mlp.up_proj"}}}},
	"Gemma2": {ModelType: "gemma2", Models: "Gemma 2",
		Spec:    Spec{PreNorm: true, PostNorm: true, NormOffset: 1, Act: compute.GELUTanh},
		HeadDim: 256, Tied: true, AttentionOf: "query_pre_attn_scalar", Windows: LayerByType,
		FullEvery: 2, SqrtEmbed: true, Caps: true, ActKey: "hidden_activation"},
	"Gemma3": {ModelType: "gemma3_text", Models: "Gemma 3 (text: 270M, 1B)",
		Spec: Spec{PreNorm: true, PostNorm: true, NormOffset: 1, QKNorm: HeadNorm,
			Act: compute.GELUTanh},
		Scorer:  "Gemma3TextForSequenceClassification",
		HeadDim: 256, Tied: true, Theta: 1e6, AttentionOf: "query_pre_attn_scalar",
		Windows: LayerByType, FullEvery: 6, LocalRope: OwnBase, SqrtEmbed: true,
		ActKey: "hidden_activation"},
	"SmolLM3": {ModelType: "smollm3", Models: "SmolLM3",
		Spec: Spec{PreNorm: true}, Tied: true, Theta: 2e6,
		Windows: Switched, NoRope: ByLayer},
	"Olmo2": {ModelType: "olmo2", Models: "OLMo 2",
		Spec: Spec{PostNorm: true, QKNorm: WidthNorm}, Eps: 1e-5,
		KVHeads: true},
	"Lfm2": {ModelType: "lfm2", Models: "LFM2, LFM2.5 (dense)",
		Spec: Spec{PreNorm: true, QKNorm: HeadNorm}, Tied: true, Eps: 1e-5, Theta: 1e6,
		Mixer: ShortConv, EpsKey: "norm_eps",
		Fused: []Fused{{Whole: "embedding_norm", Parts: []string{"norm"}},
			{Whole: "operator_norm", Parts: []string{"input_layernorm"}},
			{Whole: "ffn_norm", Parts: []string{"post_attention_layernorm"}},
			{Whole: "self_attn.q_layernorm", Parts: []string{"self_attn.q_norm"}},
			{Whole: "self_attn.k_layernorm", Parts: []string{"self_attn.k_norm"}},
			{Whole: "self_attn.out_proj", Parts: []string{"self_attn.o_proj"}},
			{Whole: "conv.out_proj", Parts: []string{"conv.o_proj"}},
			{Whole: "feed_forward.w1", Parts: []string{"mlp.gate_proj"}},
			{Whole: "feed_forward.w3", Parts: []string{"mlp.up_proj"}},
			{Whole: "feed_forward.w2", Parts: []string{"mlp.down_proj"}}}},
	"Olmo3": {ModelType: "olmo3", Models: "OLMo 3",
		Spec: Spec{PostNorm: true, QKNorm: WidthNorm}, Eps: 1e-5,
		Theta: 5e5, KVHeads: true, Windows: LayerByType, FullEvery: 4, LocalRope: SameBase},
	"Granite": {ModelType: "granite", Models: "Granite 3 (dense)",
		Spec: Spec{PreNorm: true}, KVHeads: true,
		AttentionOf: "attention_multiplier", Multipliers: true},
	"GraniteMoeHybrid": {ModelType: "granitemoehybrid", Models: "Granite 4 without Mamba",
		Spec: Spec{PreNorm: true}, KVHeads: true,
		AttentionOf: "attention_multiplier", Multipliers: true, NoRope: AllOrNone,
		FFNKey: "shared_intermediate_size", Hybrid: true,
		Fused: []Fused{
			{Whole: "shared_mlp.input_linear", Parts: []string{"mlp.gate_proj", "mlp.up_proj"}},
			{Whole: "shared_mlp.output_linear", Parts: []string{"mlp.down_proj"}}}},
}

// Refused has, by model_type, what Spec cannot describe of families that users look for.
var Refused = map[string]string{
	"gemma4":           gemma4,
	"gemma4_text":      gemma4,
	"qwen3_next":       "a mixture of experts",
	"qwen3_5_moe":      "a mixture of experts",
	"qwen3_5_moe_text": "a mixture of experts",
}

// gemma4 is what stands against Gemma 4.
const gemma4 = "embeddings by layer, keys and values that several layers share, heads whose width differs by layer"

// ModelTypes lists the families' model_type for an error: "llama, mistral, qwen2 or qwen3".
func ModelTypes() string {
	var types []string
	for _, f := range Families {
		types = append(types, f.ModelType)
	}
	slices.Sort(types)
	last := len(types) - 1
	return strings.Join(types[:last], ", ") + " or " + types[last]
}

// ClassSuffix has the ending of transformers' class names, by Kind; the family's name is their
// beginning.
var ClassSuffix = [...]string{LM: "ForCausalLM", Scorer: "ForSequenceClassification"}

// Plain reports whether attention and the feed-forward layer add their last product to the residual
// stream without a norm or a factor in between.
func (s *Spec) Plain() bool { return !s.PostNorm && s.Residual == 1 }
