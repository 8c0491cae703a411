package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
	"gad/model/internal/rope"
	"gad/model/internal/sequence"
)

// Config is a transformer's architecture. A literal Config describes a new model; ReadConfig
// returns the Config of a folder.
type Config struct {
	Architecture string       // family: a row of Families, such as "Qwen2" or "Llama"
	Hidden       int          // D, width of the residual stream
	Layers       int          // number of blocks
	Heads        int          // H, query heads
	KVHeads      int          // K, key/value heads; H is a multiple of it
	HeadDim      int          // E, width of one head
	FFN          int          // F, width of the feed-forward layer
	Vocab        int          // V, rows of the embedding
	MaxPosition  int          // longest sequence
	RMSEps       float64      // added to the mean square in RMSNorm
	RopeTheta    float64      // base of the rotary frequencies
	RopeScaling  *RopeScaling // nil: unscaled frequencies
	RotaryDim    int          // elements of a head that rotate, its first ones; 0: all
	// rotary base in the layers with a window, without RopeScaling; 0: RopeTheta
	LocalTheta    float64
	TieEmbeddings bool // the head is the embedding
	QKVBias       bool // biases on the projections to q, k and v
	QKNorm        bool // RMSNorm of q and k, before the rotation
	// positions in the window of the layers of Sliding, the token's own included; 0: no window
	Window  int
	Sliding []bool // [Layers] layers with the window; nil: all, if Window > 0
	NoRope  []bool // [Layers] layers that do not rotate q and k; nil: none
	Mixer   Mixer  // the mixer of layers without attention

	// Factors of Granite, and AttnScale of Gemma. 0 is 1, and of AttnScale 1/sqrt(HeadDim).
	AttnScale     float64 // on the product of query and key
	EmbedScale    float64 // on the embedding's output
	ResidualScale float64 // on the outputs that are added to the residual stream
	LogitDivisor  float64 // the logits of a language model are divided by it
	// soft caps, cap*tanh(x/cap), of Gemma 2's scores of attention and of its logits; 0: none
	ScoreCap, LogitCap float64

	DType     string  // dtype of a folder's weights: "float32", "bfloat16" or "float16"
	InitRange float64 // standard deviation of new weights; 0 is 0.02

	raw map[string]json.RawMessage // config.json as read: a save keeps its unknown keys
}

// Mixer describes layers without attention, whose tokens are mixed by a convolution over the last
// tokens and, in Qwen3.5, by the gated delta rule behind it.
type Mixer struct {
	Layers []bool // [Config.Layers] the layers with this mixer; nil: none
	Taps   int    // tokens that the convolution reads, its own included
	// heads of the gated delta rule and their widths; the value heads are a multiple of the key heads
	KeyHeads, ValueHeads, KeyDim, ValueDim int
}

// keys returns the width of the delta rule's queries, and of its keys.
func (x Mixer) keys() int { return x.KeyHeads * x.KeyDim }

// values returns the width of its values, and of its output.
func (x Mixer) values() int { return x.ValueHeads * x.ValueDim }

// mixed returns the width of the convolution's input: queries, keys and values.
func (x Mixer) mixed() int { return 2*x.keys() + x.values() }

// shape returns the heads of the gated delta rule.
func (x Mixer) shape() compute.DeltaShape {
	return compute.DeltaShape{K: x.KeyHeads, H: x.ValueHeads, E: x.KeyDim, F: x.ValueDim}
}

// knownClass returns the class among classes, the key architectures, that tells the kind of the
// weights: the language model's, else the scorer's, else the bare model's, which folders saved
// without a head name. It returns "" if there is none of them.
func (c Config) knownClass(classes []string) string {
	bare := strings.TrimSuffix(c.class(LM), "ForCausalLM") + "Model"
	for _, known := range []string{c.class(LM), c.class(Scorer), bare} {
		if slices.Contains(classes, known) {
			return known
		}
	}
	return ""
}

// parseConfig reads a config.json and checks it. ReadConfig lists what it refuses.
func parseConfig(b []byte) (Config, error) {
	raw, err := parseObject(b)
	if err != nil {
		return Config{}, err
	}
	if raw, err = files.TextConfig(raw); err != nil {
		return Config{}, err
	}
	r := reader{raw: raw}
	var c Config
	var fam architecture.Family
	modelType := r.str("model_type", "")
	for name, f := range architecture.Families {
		if f.ModelType == modelType {
			c.Architecture, fam = name, f
		}
	}
	if why := architecture.Refused[modelType]; why != "" {
		return Config{}, fmt.Errorf("key \"model_type\": %q: %w: it has %s: use a model of type %s",
			modelType, ErrUnsupported, why, architecture.ModelTypes())
	}
	if r.err == nil && c.Architecture == "" {
		return Config{}, fmt.Errorf("key \"model_type\": %q: %w: use a model of type %s", modelType,
			ErrUnsupported, architecture.ModelTypes())
	}
	if a, ok := r.get("architectures"); ok {
		var classes []string
		if json.Unmarshal(a, &classes) != nil || c.knownClass(classes) == "" {
			r.fail("key \"architectures\": %.200s: %w: expected [%q] or [%q]",
				strings.Join(strings.Fields(string(a)), " "), ErrUnsupported, c.class(LM),
				c.class(Scorer))
		}
	}
	c.raw = raw
	c.QKVBias, c.QKNorm = fam.Spec.QKVBias, fam.Spec.QKNorm != architecture.NoNorm
	c.Hidden = r.int("hidden_size", 0)
	c.Layers = r.int("num_hidden_layers", 0)
	c.Heads = r.int("num_attention_heads", 0)
	kvDefault := 0 // required: the families' own defaults differ
	if fam.KVHeads {
		kvDefault = c.Heads
	}
	c.KVHeads = r.int("num_key_value_heads", kvDefault)
	headDim := fam.HeadDim
	if headDim == 0 && c.Heads > 0 {
		headDim = c.Hidden / c.Heads
		if _, ok := r.get("head_dim"); !ok && r.err == nil && headDim*c.Heads != c.Hidden {
			r.fail(
				"key \"hidden_size\": %d: not a multiple of num_attention_heads %d: give head_dim",
				c.Hidden, c.Heads)
		}
	}
	// sizes of zero are refused below, by their own name
	c.HeadDim = r.int("head_dim", max(headDim, 1))
	ffn := fam.FFNKey
	if _, ok := r.get("block_ff_dim"); ok && fam.Mixer == architecture.ShortConv {
		ffn = "block_ff_dim"
	} else if ffn == "" {
		ffn = "intermediate_size"
	}
	c.FFN = r.int(ffn, 0)
	c.Vocab = r.int("vocab_size", 0)
	c.MaxPosition = r.int("max_position_embeddings", 0)
	c.RMSEps = r.float(fam.EpsName(), or(fam.Eps, 1e-6))
	c.InitRange = r.float("initializer_range", 0.02)
	c.TieEmbeddings = r.bool("tie_word_embeddings", fam.Tied)
	c.DType = strings.TrimPrefix(r.str("dtype", r.str("torch_dtype", "float32")), "torch.")
	r.rope(&c, fam)
	r.factors(&c, fam)
	r.layers(&c, fam)
	r.refuse(c.Architecture, fam)
	if r.err != nil {
		return Config{}, r.err
	}
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// factors reads the multipliers of families that have some. A multiplier of 1 is left 0.
func (r *reader) factors(c *Config, fam architecture.Family) {
	factor := func(key string) float64 {
		x := r.float(key, 1)
		switch {
		case !(x > 0 && x <= 1e6):
			r.fail("key %q: %g: expected a positive number", key, x)
		case x == 1:
			return 0
		}
		return x
	}
	switch fam.AttentionOf {
	case "attention_multiplier":
		if c.AttnScale = r.float(fam.AttentionOf, 1); !(c.AttnScale > 0 && c.AttnScale <= 1e6) {
			r.fail("key %q: %g: expected a positive number", fam.AttentionOf, c.AttnScale)
		}
	case "query_pre_attn_scalar":
		x := r.float(fam.AttentionOf, 256)
		if !(x >= 1e-6 && x <= 1e12) {
			r.fail("key %q: %g: expected a positive number", fam.AttentionOf, x)
		}
		c.AttnScale = 1 / math.Sqrt(x)
	}
	if fam.Caps {
		limit := func(key string, def float64) float64 {
			if v, ok := r.raw[key]; ok && bytes.Equal(v, []byte("null")) {
				return 0
			}
			x := r.float(key, def)
			if !(x >= 1e-3 && x <= 1e6) {
				r.fail("key %q: %g: expected a positive number, or null for none", key, x)
			}
			return x
		}
		c.ScoreCap, c.LogitCap =
			limit("attn_logit_softcapping", 50), limit("final_logit_softcapping", 30)
	}
	if fam.Multipliers {
		c.EmbedScale, c.ResidualScale, c.LogitDivisor =
			factor("embedding_multiplier"), factor("residual_multiplier"), factor("logits_scaling")
	}
}

// layers reads the settings that differ by layer: windows, and layers without rotation.
func (r *reader) layers(c *Config, fam architecture.Family) {
	var types []string
	r.value("layer_types", "a list of strings", &types)
	mayslide := fam.Windows == architecture.LayerByType || fam.Windows == architecture.EveryLayer
	if fam.Hybrid {
		r.hybrid(types)
	}
	for i, t := range types {
		if fam.Hybrid && t == "attention" { // the name of transformers 4
			continue
		}
		if t != "full_attention" && !(mayslide && t == "sliding_attention") &&
			t != architecture.MixerNames[fam.Mixer] {
			r.fail("key \"layer_types\": layer %d: %.40q: %w: only full_attention is implemented",
				i, t, ErrUnsupported)
		}
	}
	if n := len(types); n > 0 && n != c.Layers && (mayslide || fam.Hybrid ||
		fam.Mixer != architecture.Attention) {
		r.fail("key \"layer_types\": %d layers: num_hidden_layers is %d", n, c.Layers)
	}
	window := func() int { // the window's length; the classes' default is 4096
		n := r.int("sliding_window", 4096)
		if n < 1 {
			r.fail("key \"sliding_window\": %d: expected at least 1 position", n)
		}
		return n
	}
	_, given := r.raw["sliding_window"]
	_, windowed := r.get("sliding_window")
	switch fam.Windows {
	case architecture.NoWindow:
		if windowed {
			r.fail("key \"sliding_window\": in use: %w: %s has none: set it to null if no sequence exceeds the window", ErrUnsupported, c.Architecture)
		}
	case architecture.Switched:
		if r.bool("use_sliding_window", false) {
			r.fail("key \"sliding_window\": in use: %w: set it to null (use_sliding_window to false) if no sequence exceeds the window", ErrUnsupported)
		}
	case architecture.EveryLayer:
		if windowed || !given && !fam.NullWindow {
			c.Window = window()
		}
		if slices.Contains(types, "full_attention") && c.Window > 0 ||
			slices.Contains(types, "sliding_attention") && c.Window == 0 {
			r.fail("key \"layer_types\": %w: a window in some layers, and in others not: expected none of this key with %s", ErrUnsupported, c.Architecture)
		}
	case architecture.LayerByType:
		pattern := r.int("sliding_window_pattern",
			r.int("_sliding_window_pattern", fam.FullEvery))
		if pattern < 1 || c.Layers > 1<<10 || c.Layers < 0 {
			r.fail(
				"key \"sliding_window_pattern\": %d: expected at least 1, and at most 1024 layers",
				pattern)
			return
		}
		sliding := make([]bool, c.Layers)
		for i := range sliding {
			if types == nil {
				sliding[i] = (i+1)%pattern != 0
			} else if i < len(types) {
				sliding[i] = types[i] == "sliding_attention"
			}
		}
		if slices.Contains(sliding, true) {
			if given && !windowed {
				r.fail("key \"sliding_window\": null: layer_types has layers with a window: give its length")
			}
			c.Window, c.Sliding = window(), sliding
		} else {
			c.LocalTheta = 0
		}
	}
	switch fam.NoRope {
	case architecture.ByLayer:
		r.noRope(c)
	case architecture.AllOrNone:
		if kind := r.str("position_embedding_type", ""); kind != "rope" && c.Layers >= 0 &&
			c.Layers <= 1<<10 {
			c.NoRope = slices.Repeat([]bool{true}, c.Layers)
		}
	}
	switch fam.Mixer {
	case architecture.ShortConv:
		r.convs(c, types)
	case architecture.DeltaRule:
		r.deltaRule(c, types, fam.FullEvery)
	}
}

// hybrid refuses layers of Mamba and mixtures of experts, both of which are the class's defaults.
func (r *reader) hybrid(types []string) {
	if n := r.int("num_local_experts", 8); n != 0 {
		r.fail("key \"num_local_experts\": %d: %w: a mixture of experts: use a dense model", n,
			ErrUnsupported)
	}
	for i, t := range types {
		if t == "mamba" || t == "linear_attention" {
			r.fail("key \"layer_types\": layer %d: %q: %w: Mamba is not implemented: use a model whose layers are all attention", i, t, ErrUnsupported)
		}
	}
	if types == nil {
		r.fail("key \"layer_types\": is missing: %w: all layers are then Mamba, which is not implemented",
			ErrUnsupported)
	}
}

// convs reads the layers of a short convolution, those that layer_types or full_attn_idxs do not
// name as attention, and the width of the feed-forward layers, of which intermediate_size is a part
// where block_auto_adjust_ff_dim says so (Lfm2MLP of transformers).
func (r *reader) convs(c *Config, types []string) {
	if types == nil && c.Layers <= 1<<10 {
		if _, ok := r.get("full_attn_idxs"); ok {
			var full []int
			r.value("full_attn_idxs", "a list of whole numbers", &full)
			types = make([]string, max(0, c.Layers))
			for i := range types {
				if types[i] = "conv"; slices.Contains(full, i) {
					types[i] = "full_attention"
				}
			}
		}
	}
	if c.Mixer.Layers = mixedLayers(types, architecture.ShortConv); c.Mixer.Layers != nil {
		c.Mixer.Taps = r.int("conv_L_cache", 3)
	}
	if r.bool("conv_bias", false) {
		r.fail("key \"conv_bias\": true: %w: a convolution with biases is not implemented",
			ErrUnsupported)
	}
	c.TieEmbeddings = r.bool("tie_embedding", c.TieEmbeddings)
	if !r.bool("block_auto_adjust_ff_dim", true) {
		return
	}
	factor, multiple := r.float("block_ffn_dim_multiplier", 1), r.int("block_multiple_of", 256)
	if !(factor > 0 && factor <= 1e3) || multiple < 1 || multiple > 1<<19 {
		r.fail("key \"block_ffn_dim_multiplier\": %g, block_multiple_of %d: expected positive numbers",
			factor, multiple)
		return
	}
	c.FFN = int(2 * float64(c.FFN) / 3)
	if v, ok := r.raw["block_ffn_dim_multiplier"]; ok && string(v) == "null" {
		return // as transformers has it
	}
	c.FFN = (int(factor*float64(c.FFN)) + multiple - 1) / multiple * multiple
}

// mixedLayers returns which layers layer_types names for a mixer; nil: none.
func mixedLayers(types []string, mixer architecture.Mixer) []bool {
	name := architecture.MixerNames[mixer]
	if !slices.Contains(types, name) {
		return nil
	}
	layers := make([]bool, len(types))
	for i, t := range types {
		layers[i] = t == name
	}
	return layers
}

// deltaRule reads the layers of the gated delta rule, those that layer_types names or all but every
// full_attention_interval-th, and its shape.
func (r *reader) deltaRule(c *Config, types []string, every int) {
	every = r.int("full_attention_interval", every)
	if every < 1 || c.Layers > 1<<10 || c.Layers < 0 {
		r.fail("key \"full_attention_interval\": %d: expected at least 1, and at most 1024 layers",
			every)
		return
	}
	if types == nil {
		types = make([]string, c.Layers)
		for i := range types {
			if types[i] = architecture.MixerNames[architecture.DeltaRule]; (i+1)%every == 0 {
				types[i] = architecture.MixerNames[architecture.Attention]
			}
		}
	}
	if c.Mixer.Layers = mixedLayers(types, architecture.DeltaRule); c.Mixer.Layers == nil {
		return
	}
	x := &c.Mixer
	x.Taps = r.int("linear_conv_kernel_dim", 4)
	x.KeyHeads, x.ValueHeads = r.int("linear_num_key_heads", 16), r.int("linear_num_value_heads", 32)
	x.KeyDim, x.ValueDim = r.int("linear_key_head_dim", 128), r.int("linear_value_head_dim", 128)
	delete(r.raw, "mtp_num_hidden_layers") // layers that draft tokens are not read, nor written
}

// noRope reads the layers without rotation: those with 0 in no_rope_layers, or else every
// no_rope_layer_interval-th.
func (r *reader) noRope(c *Config) {
	var rotates []int
	r.value("no_rope_layers", "a list of 0 and 1", &rotates)
	every := r.int("no_rope_layer_interval", 4)
	if every < 1 || c.Layers > 1<<10 || rotates != nil && len(rotates) < c.Layers {
		r.fail("key \"no_rope_layers\": %d layers, no_rope_layer_interval %d: expected a number for each of %d layers, or an interval of at least 1", len(rotates), every, c.Layers)
		return
	}
	none := make([]bool, max(0, c.Layers))
	for i := range none {
		if none[i] = (i+1)%every == 0; rotates != nil {
			none[i] = rotates[i] == 0
		}
	}
	if slices.Contains(none, true) {
		c.NoRope = none
	}
}

// parseObject returns the values of a JSON object by key. It refuses a key that appears twice, of
// which encoding/json would silently take one.
func parseObject(b []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	m := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		k := t.(string) // the decoder accepts only strings here
		if _, ok := m[k]; ok {
			return nil, fmt.Errorf("key %q: appears twice", k)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("key %q: %w", k, err)
		}
		m[k] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("the JSON object is incomplete: %w: is the file cut short?", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("bytes after the JSON object")
	}
	return m, nil
}

// reader decodes typed values of a JSON object and remembers the first error. null counts as
// absent, as in transformers.
type reader struct {
	raw map[string]json.RawMessage
	err error
}

// fail records an error, if it is the first.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// get returns the value of key, and whether it is there and not null.
func (r *reader) get(key string) (json.RawMessage, bool) {
	v, ok := r.raw[key]
	return v, ok && !bytes.Equal(v, []byte("null"))
}

// value decodes key into p; an absent key leaves p unchanged. want describes the type in errors.
func (r *reader) value(key, want string, p any) {
	if v, ok := r.get(key); ok && json.Unmarshal(v, p) != nil {
		text := strings.Join(strings.Fields(string(v)), " ")
		if len(text) > 40 {
			text = text[:40] + "..."
		}
		r.fail("key %q: %s: expected %s", key, text, want)
	}
}

// int returns a whole number, or def if the key is absent; def 0 makes the key required.
func (r *reader) int(key string, def int) int {
	if _, ok := r.get(key); !ok && def == 0 {
		r.fail("key %q: is missing: this architecture needs it", key)
	}
	r.value(key, "a whole number", &def)
	return def
}

// float returns a number, or def if the key is absent.
func (r *reader) float(key string, def float64) float64 {
	r.value(key, "a number", &def)
	return def
}

// str returns a string, or def if the key is absent.
func (r *reader) str(key, def string) string {
	r.value(key, "a string", &def)
	return def
}

// bool returns true or false, or def if the key is absent.
func (r *reader) bool(key string, def bool) bool {
	r.value(key, "true or false", &def)
	return def
}

// refuse fails on settings that change the computation and are not implemented.
func (r *reader) refuse(arch string, fam architecture.Family) {
	if v, ok := r.get("quantization_config"); ok {
		r.fail("key \"quantization_config\": %.40s: %w: export the weights in bfloat16 or float32",
			v, ErrUnsupported)
	}
	key, act := fam.ActKey, architecture.ActivationNames[fam.Spec.Act]
	if key == "" {
		key = "hidden_act"
	}
	if a := r.str(key, act); a != act {
		r.fail("key %q: %q: %w: only %s is implemented", key, a, ErrUnsupported, act)
	}
	for _, k := range []string{"attention_bias", "mlp_bias"} {
		if r.bool(k, false) {
			r.fail("key %q: true: %w: %s with these biases is not implemented", k, ErrUnsupported,
				arch)
		}
	}
	if fam.Windows == architecture.LayerByType {
		for _, k := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
			if v, ok := r.get(k); ok && !fam.Caps {
				r.fail("key %q: %.40s: %w: only null is implemented", k, v, ErrUnsupported)
			}
		}
		if r.bool("use_bidirectional_attention", false) {
			r.fail("key \"use_bidirectional_attention\": true: %w: use a language model",
				ErrUnsupported)
		}
	}
	if !r.bool("attn_output_gate", fam.Spec.OutGate) && fam.Spec.OutGate {
		r.fail("key \"attn_output_gate\": false: %w: %s has it", ErrUnsupported, arch)
	}
	if r.bool("rope_interleaved", false) {
		r.fail("key \"rope_interleaved\": true: %w: export the weights as transformers has them",
			ErrUnsupported)
	}
	if fam.Partial == 0 && r.float("partial_rotary_factor", 1) != 1 {
		r.fail("key \"partial_rotary_factor\": %s: %w: only full rotation is implemented",
			r.raw["partial_rotary_factor"], ErrUnsupported)
	}
}

// Validate returns an error about the first invalid field of c. The bounds are far above any model
// of these families and keep products of sizes within int64.
func (c Config) Validate() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("model: config: %w", err)
	}
	return nil
}

// validate checks c as Validate does, but its error lacks the prefix.
func (c Config) validate() error {
	fam, ok := architecture.Families[c.Architecture]
	if !ok {
		return fmt.Errorf("architecture %q: %w: use one of %s", c.Architecture, ErrUnsupported,
			strings.Join(slices.Sorted(maps.Keys(architecture.Families)), ", "))
	}
	if norm := fam.Spec.QKNorm != architecture.NoNorm; c.QKVBias != fam.Spec.QKVBias ||
		c.QKNorm != norm {
		return fmt.Errorf("architecture %q: qkv bias %t and q/k norm %t: its models have %t and %t",
			c.Architecture, c.QKVBias, c.QKNorm, fam.Spec.QKVBias, norm)
	}
	for _, f := range []struct {
		name    string
		v, most int
	}{
		{"hidden_size", c.Hidden, 1 << 16},
		{"num_hidden_layers", c.Layers, 1 << 10},
		{"num_attention_heads", c.Heads, 1 << 10},
		{"num_key_value_heads", c.KVHeads, 1 << 10},
		{"head_dim", c.HeadDim, 1 << 10},
		{"intermediate_size", c.FFN, 1 << 19},
		{"vocab_size", c.Vocab, 1 << 22},
		{"max_position_embeddings", c.MaxPosition, 1 << 26},
	} {
		if f.v < 1 || f.v > f.most {
			return fmt.Errorf("key %q: %d: expected 1 to %d", f.name, f.v, f.most)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("key \"num_key_value_heads\": %d: does not divide num_attention_heads %d",
			c.KVHeads, c.Heads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("key \"head_dim\": %d: odd: rotary positions need pairs", c.HeadDim)
	}
	if c.RotaryDim != 0 && (c.RotaryDim%2 != 0 || c.RotaryDim < 2 || c.RotaryDim >= c.HeadDim ||
		fam.Partial == 0) {
		return fmt.Errorf(
			"key \"partial_rotary_factor\": %d of %d elements of a head: %w for %s: rotary positions need pairs, and Phi-3 or Qwen3.5", c.RotaryDim, c.HeadDim, ErrUnsupported, c.Architecture)
	}
	if !(c.RMSEps > 0 && c.RMSEps < 1) {
		return fmt.Errorf("key \"rms_norm_eps\": %g: expected a number between 0 and 1", c.RMSEps)
	}
	if !(c.RopeTheta >= 1 && c.RopeTheta <= 1e12) {
		return fmt.Errorf("key \"rope_theta\": %g: expected 1 to 1e12", c.RopeTheta)
	}
	if !(c.InitRange >= 0 && c.InitRange <= 10) {
		return fmt.Errorf("key \"initializer_range\": %g: expected 0 to 10", c.InitRange)
	}
	if c.LocalTheta != 0 && !(c.LocalTheta >= 1 && c.LocalTheta <= 1e12) {
		return fmt.Errorf("key \"rope_local_base_freq\": %g: expected 1 to 1e12", c.LocalTheta)
	}
	if s := c.RopeScaling; s != nil {
		if err := s.Validate(); err != nil {
			return err
		}
		if pairs := (or(c.RotaryDim, c.HeadDim)) / 2; s.Type == "longrope" && (!fam.LongRope ||
			len(s.ShortFactors) != pairs || c.MaxPosition > s.OriginalMaxPosition) {
			return fmt.Errorf(
				"key \"short_factor\": %d numbers, of %d positions: %s has %d rotated pairs, and its short factors are for at most %d positions", len(s.ShortFactors), c.MaxPosition, c.Architecture, pairs, s.OriginalMaxPosition)
		}
		if s.Type == "yarn" && c.RopeTheta == 1 {
			return fmt.Errorf(
				"key \"rope_theta\": 1: yarn needs frequencies that differ: expected more than 1")
		}
	}
	if err := c.validateLayers(fam); err != nil {
		return err
	}
	if _, ok := files.DTypes[c.DType]; !ok && c.DType != "" && c.DType != autoDType {
		return fmt.Errorf("key \"dtype\": %q: %w: use float32, bfloat16 or float16 weights",
			c.DType, ErrUnsupported)
	}
	if n := c.ParamCount(LM); n > 1<<40 {
		return fmt.Errorf("%d parameters: too many for any machine: check the sizes", n)
	}
	return nil
}

// validateLayers checks windows, layers without rotation, and multipliers.
func (c Config) validateLayers(fam architecture.Family) error {
	windows := fam.Windows == architecture.EveryLayer || fam.Windows == architecture.LayerByType
	if c.Window < 0 || c.Window > 1<<26 || c.Window > 0 && !windows ||
		fam.Windows != architecture.LayerByType &&
			c.Sliding != nil {
		return fmt.Errorf("key \"sliding_window\": %d: %w for %s: expected 0 for none", c.Window,
			ErrUnsupported, c.Architecture)
	}
	if fam.Windows == architecture.LayerByType && c.Window > 0 && len(c.Sliding) != c.Layers ||
		fam.Windows == architecture.LayerByType && c.Window == 0 && c.Sliding != nil {
		return fmt.Errorf("key \"layer_types\": %d layers with a window of %d: expected one for each of %d, or no window", len(c.Sliding), c.Window, c.Layers)
	}
	if local := fam.LocalRope != architecture.Alike; c.LocalTheta != 0 &&
		(!local || c.Window == 0) || local && c.Window > 0 && c.LocalTheta == 0 {
		return fmt.Errorf(
			"local rotary base %g with a window of %d: %s has one, of the layers with a window: %t",
			c.LocalTheta, c.Window, c.Architecture, local)
	}
	if err := c.Mixer.validate(c.Architecture, fam, c.Layers); err != nil {
		return err
	}
	if c.NoRope != nil && (fam.NoRope == architecture.AllRotate || len(c.NoRope) != c.Layers ||
		fam.NoRope == architecture.AllOrNone && slices.Contains(c.NoRope, false)) {
		return fmt.Errorf("key \"no_rope_layers\": %d layers: %s takes one for each of %d, or none",
			len(c.NoRope), c.Architecture, c.Layers)
	}
	if s := c.RopeScaling; fam.QueryScale && (s == nil || s.Type != "yarn") ||
		!fam.QueryScale && s != nil && s.QueryBeta != 0 {
		return fmt.Errorf(
			"key \"llama_4_scaling_beta\": rotary settings %+v: %w for %s: Ministral 3 has it, with the rope type yarn", s, ErrUnsupported, c.Architecture)
	}
	for _, f := range []struct {
		name string
		v    float64
		has  bool
	}{
		{"attention scale", c.AttnScale, fam.AttentionOf != ""},
		{"embedding scale", c.EmbedScale, fam.Multipliers},
		{"residual scale", c.ResidualScale, fam.Multipliers},
		{"logit divisor", c.LogitDivisor, fam.Multipliers},
		{"cap of scores", c.ScoreCap, fam.Caps},
		{"cap of logits", c.LogitCap, fam.Caps},
	} {
		if f.v != 0 && (!f.has || !(f.v > 0 && f.v <= 1e6)) {
			return fmt.Errorf(
				"%s %g: expected 0 for none, or a positive number with an architecture that has it",
				f.name, f.v)
		}
	}
	return nil
}

// validate checks x, of a model of so many layers.
func (x Mixer) validate(arch string, fam architecture.Family, layers int) error {
	if x.Layers == nil {
		if x.Taps != 0 || x.mixed() != 0 {
			return fmt.Errorf("mixer %+v: no layer has it: leave it out", x)
		}
		return nil
	}
	if fam.Mixer == architecture.Attention || len(x.Layers) != layers || x.Taps < 1 || x.Taps > 16 {
		return fmt.Errorf(
			"key \"layer_types\": %d layers, a convolution of %d tokens: %s takes one for each of %d layers, and 1 to 16 tokens, or none", len(x.Layers), x.Taps, arch, layers)
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"linear_num_key_heads", x.KeyHeads}, {"linear_num_value_heads", x.ValueHeads},
		{"linear_key_head_dim", x.KeyDim}, {"linear_value_head_dim", x.ValueDim},
	} {
		if rule := fam.Mixer == architecture.DeltaRule; rule && (f.v < 1 || f.v > 1<<10) ||
			!rule && f.v != 0 {
			return fmt.Errorf("key %q: %d: expected 1 to 1024 with the gated delta rule, else 0", f.name,
				f.v)
		}
	}
	if fam.Mixer == architecture.DeltaRule && x.ValueHeads%x.KeyHeads != 0 {
		return fmt.Errorf("key \"linear_num_value_heads\": %d: not a multiple of linear_num_key_heads %d",
			x.ValueHeads, x.KeyHeads)
	}
	return nil
}

// CheckDevice refuses a model that the backend cannot compute.
func (c Config) CheckDevice(f Footprint) error {
	if c.Stateful() && f.DeltaState(c.Mixer.shape()) == 0 {
		return fmt.Errorf(
			"model: key \"linear_key_head_dim\": %d: a gated delta rule of such keys is %w on this device: use --device cpu",
			c.Mixer.KeyDim, ErrUnsupported)
	}
	return nil
}

// Key decodes into p the value of a key of config.json that Config has no field for, such as
// "eos_token_id". It reports whether the key is there.
func (c Config) Key(name string, p any) (bool, error) {
	r := reader{raw: c.raw}
	if _, ok := r.get(name); !ok {
		return false, nil
	}
	r.value(name, "another type", p)
	if r.err != nil {
		return true, fmt.Errorf("model: config.json: %w", r.err)
	}
	return true, nil
}

// With returns c with a value for a key of config.json that Config has no field for, such as
// "eos_token_id" or "pad_token_id"; Save writes it.
func (c Config) With(name string, value any) (Config, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return c, fmt.Errorf("model: config.json: key %q: %w", name, err)
	}
	c.raw = maps.Clone(c.raw)
	if c.raw == nil {
		c.raw = map[string]json.RawMessage{}
	}
	c.raw[name] = b
	return c, nil
}

// stale reports whether fields differ from raw: the configuration was not read from a file, or has
// changed since.
func (c Config) stale() bool {
	b, err := json.Marshal(c.raw)
	if err != nil {
		return true
	}
	was, err := parseConfig(b)
	was.DType, was.raw = c.DType, c.raw
	return err != nil || !reflect.DeepEqual(was, c)
}

// encode returns config.json for a model of kind k with weights of dtype: the keys as read, with
// the keys that this package knows replaced if fields have changed.
func (c Config) encode(k Kind, dtype string) ([]byte, error) {
	out := map[string]any{}
	for key, v := range c.raw {
		out[key] = v
	}
	if c.stale() {
		for _, key := range []string{"rope_parameters", "rope_scaling", "layer_types",
			"original_max_position_embeddings", "full_attention_interval"} {
			delete(out, key)
		}
		out["hidden_size"] = c.Hidden
		out["num_hidden_layers"] = c.Layers
		out["num_attention_heads"] = c.Heads
		out["num_key_value_heads"] = c.KVHeads
		out["head_dim"] = c.HeadDim
		out["intermediate_size"] = c.FFN
		out["vocab_size"] = c.Vocab
		out["max_position_embeddings"] = c.MaxPosition
		out[architecture.Families[c.Architecture].EpsName()] = c.RMSEps
		out["rope_theta"] = c.RopeTheta
		out["initializer_range"] = c.initRange()
		out["tie_word_embeddings"] = c.TieEmbeddings
		out["use_cache"] = true
		if s := c.RopeScaling; s != nil {
			out["rope_scaling"] = s.Encode()
			if s.Type == "longrope" {
				out["max_position_embeddings"] = s.Stretched
				out["original_max_position_embeddings"] = s.OriginalMaxPosition
			}
		}
		if fam := architecture.Families[c.Architecture]; fam.Partial > 0 {
			out["partial_rotary_factor"] = c.rotatedShare()
		}
		c.encodeFamily(out)
	}
	out["architectures"] = []string{c.class(k)}
	out["torch_dtype"] = dtype // transformers 4, and 5 reads it as well
	if _, ok := c.raw["dtype"]; ok {
		out["dtype"] = dtype
	}
	if k == Scorer {
		out["num_labels"] = 1
		out["id2label"] = map[string]string{"0": "LABEL_0"}
		out["label2id"] = map[string]int{"LABEL_0": 0}
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("model: config.json: %w", err)
	}
	return append(b, '\n'), nil
}

// encodeFamily writes the keys in which the families differ.
func (c Config) encodeFamily(out map[string]any) {
	fam := architecture.Families[c.Architecture]
	out["model_type"] = fam.ModelType
	key := fam.ActKey
	if key == "" {
		key = "hidden_act"
	}
	out[key] = architecture.ActivationNames[fam.Spec.Act]
	if !fam.Spec.QKVBias { // Qwen2 has no such key
		out["attention_bias"] = false
	}
	switch fam.Windows {
	case architecture.Switched:
		out["use_sliding_window"] = false
	case architecture.EveryLayer:
		out["sliding_window"] = nil // absent would mean the class's default of 4096
		if c.Window > 0 {
			out["sliding_window"] = c.Window
		}
	case architecture.LayerByType:
		types := make([]string, c.Layers)
		for i := range types {
			if types[i] = "full_attention"; c.Window > 0 && c.Sliding[i] {
				types[i] = "sliding_attention"
			}
		}
		out["layer_types"] = types
		if c.Window > 0 {
			out["sliding_window"] = c.Window
			c.encodeLocalRope(out, fam.LocalRope)
		}
	}
	if fam.FFNKey != "" {
		out[fam.FFNKey] = c.FFN
	}
	if fam.Hybrid {
		// transformers 5 reads its older name too, llama.cpp's converter only this
		out["layer_types"] = slices.Repeat([]string{"attention"}, c.Layers)
		out["num_local_experts"], out["num_experts_per_tok"] = 0, 0
		if _, ok := out["mamba_n_heads"]; !ok { // the default does not suit every width
			out["mamba_n_heads"] = 1
		}
	}
	switch fam.NoRope {
	case architecture.AllOrNone:
		out["position_embedding_type"] = "rope"
		if c.NoRope != nil {
			out["position_embedding_type"] = "nope"
		}
	case architecture.ByLayer:
		rotates := make([]int, c.Layers)
		for i := range rotates {
			if c.NoRope == nil || !c.NoRope[i] {
				rotates[i] = 1
			}
		}
		out["no_rope_layers"] = rotates
		if _, ok := out["pad_token_id"]; !ok {
			out["pad_token_id"] = nil // absent would mean the class's default of 128004
		}
	}
	if fam.Mixer != architecture.Attention {
		types := make([]string, c.Layers)
		for i := range types {
			types[i] = architecture.MixerNames[c.mixer(i)]
		}
		out["layer_types"] = types
	}
	switch x := c.Mixer; fam.Mixer {
	case architecture.DeltaRule:
		if x.Layers != nil {
			out["linear_conv_kernel_dim"] = x.Taps
			out["linear_num_key_heads"], out["linear_num_value_heads"] = x.KeyHeads, x.ValueHeads
			out["linear_key_head_dim"], out["linear_value_head_dim"] = x.KeyDim, x.ValueDim
		}
	case architecture.ShortConv:
		out["conv_L_cache"], out["conv_bias"] = max(x.Taps, 1), false
		out["block_auto_adjust_ff_dim"] = false
		for _, key := range []string{"full_attn_idxs", "block_ff_dim", "tie_embedding"} {
			delete(out, key)
		}
	}
	if fam.Caps {
		out["attn_logit_softcapping"], out["final_logit_softcapping"] = nil, nil
		if c.ScoreCap > 0 {
			out["attn_logit_softcapping"] = c.ScoreCap
		}
		if c.LogitCap > 0 {
			out["final_logit_softcapping"] = c.LogitCap
		}
	}
	s := c.spec(LM)
	switch fam.AttentionOf {
	case "query_pre_attn_scalar": // a whole number in transformers
		x := 1 / (s.Scale * s.Scale)
		if n := math.Round(x); math.Abs(x-n) < 1e-9*n {
			x = n
		}
		out[fam.AttentionOf] = x
	case "attention_multiplier":
		out[fam.AttentionOf] = s.Scale
	}
	if fam.Multipliers {
		out["embedding_multiplier"], out["residual_multiplier"], out["logits_scaling"] =
			s.Embed, s.Residual, or(c.LogitDivisor, 1)
	}
}

// rotatedShare returns the share of a head's elements that rotate.
func (c Config) rotatedShare() float64 {
	return float64(or(c.RotaryDim, c.HeadDim)) / float64(c.HeadDim)
}

// encodeLocalRope writes the rotary base of the layers with a window.
func (c Config) encodeLocalRope(out map[string]any, of architecture.LocalRope) {
	switch of {
	case architecture.OwnBase:
		out["rope_local_base_freq"] = c.LocalTheta
	case architecture.SameBase: // transformers 5 reads another base than its default only here
		full := map[string]any{"rope_type": "default"}
		if s := c.RopeScaling; s != nil {
			full = s.Encode()
		}
		full["rope_theta"] = c.RopeTheta
		out["rope_parameters"] = map[string]any{"full_attention": full,
			"sliding_attention": map[string]any{"rope_type": "default",
				"rope_theta": c.LocalTheta}}
	}
}

// FirstLayers returns the architecture of the first n of c's layers.
func (c Config) FirstLayers(n int) Config {
	layers := make([]int, min(n, c.Layers))
	for i := range layers {
		layers[i] = i
	}
	return c.withLayers(layers)
}

// withLayers returns the architecture with only the given layers of c, renumbered. A window, or a
// list of layers without rotation, goes if it applies to none of them.
func (c Config) withLayers(layers []int) Config {
	c.Layers = len(layers)
	if c.Sliding != nil {
		if c.Sliding = sequence.Pick(c.Sliding, layers); !slices.Contains(c.Sliding, true) {
			c.Sliding, c.Window, c.LocalTheta = nil, 0, 0
		}
	}
	if c.Mixer.Layers != nil {
		kept := sequence.Pick(c.Mixer.Layers, layers)
		if c.Mixer.Layers = kept; !slices.Contains(kept, true) {
			c.Mixer = Mixer{}
		}
	}
	if c.NoRope != nil {
		if c.NoRope = sequence.Pick(c.NoRope, layers); !slices.Contains(c.NoRope, true) {
			c.NoRope = nil
		}
	}
	return c
}

// initRange returns InitRange, or its default.
func (c Config) initRange() float64 {
	if c.InitRange == 0 {
		return 0.02
	}
	return c.InitRange
}

// ParamCount returns the number of parameters of a model of kind k; tied weights count once.
func (c Config) ParamCount(k Kind) int64 {
	s := architecture.Families[c.Architecture].Spec
	q, kv, d := int64(c.Heads*c.HeadDim), int64(c.KVHeads*c.HeadDim), int64(c.Hidden)
	attention, block := 2*q*d+2*kv*d, 3*int64(c.FFN)*d
	for _, norms := range []bool{s.PreNorm, s.PostNorm} {
		if norms {
			block += 2 * d
		}
	}
	if s.QKVBias {
		attention += q + 2*kv
	}
	switch s.QKNorm {
	case architecture.HeadNorm:
		attention += 2 * int64(c.HeadDim)
	case architecture.WidthNorm:
		attention += q + kv
	}
	if s.OutGate {
		attention += q * d
	}
	x, mixed := c.Mixer, int64(c.mixedLayers())
	mixer := 4*d*d + d*int64(x.Taps)
	if x.ValueHeads > 0 {
		v, heads := int64(x.values()), int64(x.ValueHeads)
		mixer = int64(x.mixed())*(d+int64(x.Taps)) + (2*v+2*heads)*d + 2*heads + int64(x.ValueDim)
	}
	n := int64(c.Vocab)*d + int64(c.Layers)*block + (int64(c.Layers)-mixed)*attention +
		mixed*mixer + d
	switch {
	case k == Scorer:
		n += d
	case !c.TieEmbeddings:
		n += int64(c.Vocab) * d
	}
	return n
}

// FLOPsPerToken returns the floating-point operations of a forward pass for one token that attends
// to context positions, its own included: two per multiply-add of the matrix products and of
// attention, none for the rest. head adds the token's logits. A backward pass costs twice as much,
// and recomputation one forward pass more.
func (c Config) FLOPsPerToken(context float64, head bool) float64 {
	q, kv, d := float64(c.Heads*c.HeadDim), float64(c.KVHeads*c.HeadDim), float64(c.Hidden)
	x, mixed := c.Mixer, c.mixedLayers()
	mixer := 2 * 4 * d * d
	if x.ValueHeads > 0 { // the delta rule: three products of each head's state
		mixer = 2*(float64(x.mixed()+2*x.values()+2*x.ValueHeads)*d) +
			2*3*float64(x.values()*x.KeyDim)
	}
	attention := 2*q*d + 2*kv*d
	if architecture.Families[c.Architecture].Spec.OutGate {
		attention += q * d
	}
	full, windowed := c.Layers-mixed, 0
	for i := range c.Layers {
		if c.Window > 0 && (c.Sliding == nil || c.Sliding[i]) {
			full, windowed = full-1, windowed+1
		}
	}
	seen := float64(full)*context + float64(windowed)*min(context, float64(c.Window))
	f := float64(c.Layers-mixed)*2*attention + float64(mixed)*mixer +
		float64(c.Layers)*2*3*float64(c.FFN)*d + 4*seen*q
	if head {
		f += c.HeadFLOPs()
	}
	return f
}

// mixer returns the mixer of layer i.
func (c *Config) mixer(i int) architecture.Mixer {
	if c.Mixer.Layers != nil && c.Mixer.Layers[i] {
		return architecture.Families[c.Architecture].Mixer
	}
	return architecture.Attention
}

// mixedLayers returns the number of layers without attention.
func (c *Config) mixedLayers() (n int) {
	for _, mixed := range c.Mixer.Layers {
		if mixed {
			n++
		}
	}
	return n
}

// mixers returns the mixers of c's layers.
func (c *Config) mixers() (list []architecture.Mixer) {
	for i := range c.Layers {
		if x := c.mixer(i); !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// states returns the elements of the states of layer i that generation keeps of a sequence: of the
// convolution and of the gated delta rule.
func (c *Config) states(f Footprint, i int) []int {
	if c.mixer(i) != architecture.DeltaRule {
		return nil
	}
	return []int{(c.Mixer.Taps - 1) * c.Mixer.mixed(), f.DeltaState(c.Mixer.shape())}
}

// Stateful reports whether generation keeps states of sequences beside the caches by position.
func (c Config) Stateful() bool {
	return c.Mixer.Layers != nil &&
		architecture.Families[c.Architecture].Mixer == architecture.DeltaRule
}

// Stated returns the elements, of float32, of the states of a sequence, which each of its tokens
// reads and writes.
func (c Config) Stated() int {
	if !c.Stateful() {
		return 0
	}
	x := c.Mixer
	return c.mixedLayers() * ((x.Taps-1)*x.mixed() + x.values()*x.KeyDim)
}

// Cached returns the elements of generation's caches for one position of a sequence: keys and
// values, or the inputs of a short convolution, of all layers.
func (c Config) Cached() (n int) {
	for i := range c.Layers {
		for _, w := range c.caches(i) {
			n += w
		}
	}
	return n
}

// caches returns the widths of layer i's caches by position: of keys and values, or of a short
// convolution's inputs.
func (c *Config) caches(i int) []int {
	switch c.mixer(i) {
	case architecture.ShortConv:
		return []int{c.Hidden}
	case architecture.DeltaRule:
		return nil
	}
	return []int{c.KVHeads * c.HeadDim, c.KVHeads * c.HeadDim}
}

// HeadFLOPs returns the operations of one token's logits, a part of FLOPsPerToken.
func (c Config) HeadFLOPs() float64 { return 2 * float64(c.Vocab) * float64(c.Hidden) }

// Kind returns the kind of the model in the folder that c was read from; LM for a new model.
func (c Config) Kind() Kind {
	var classes []string
	if json.Unmarshal(c.raw["architectures"], &classes) == nil && len(classes) == 1 &&
		classes[0] == c.class(Scorer) {
		return Scorer
	}
	return LM
}

// class returns the class in transformers of a model of kind k. transformers has no class for a
// scorer of Granite; such folders carry the name that it would have.
func (c Config) class(k Kind) string {
	if f := architecture.Families[c.Architecture]; k == Scorer && f.Scorer != "" {
		return f.Scorer
	}
	return c.Architecture + architecture.ClassSuffix[k]
}

// spec returns the computation of a model of this architecture and kind.
func (c *Config) spec(k Kind) architecture.Spec {
	s := architecture.Families[c.Architecture].Spec
	s.Scale = or(c.AttnScale, 1/math.Sqrt(float64(c.HeadDim)))
	s.Embed, s.Residual, s.Final = or(c.EmbedScale, 1), or(c.ResidualScale, 1), 1
	if architecture.Families[c.Architecture].SqrtEmbed {
		s.Embed = math.Sqrt(float64(c.Hidden))
	}
	s.ScoreCap = c.ScoreCap
	if k == LM {
		s.Final, s.LogitCap = 1/or(c.LogitDivisor, 1), c.LogitCap
	}
	s.Ropes = []rope.Rotation{{HeadDim: c.HeadDim, Rotated: c.RotaryDim, Theta: c.RopeTheta,
		Scaling: c.RopeScaling}}
	local := 0
	if c.LocalTheta > 0 && c.Window > 0 {
		s.Ropes, local = append(s.Ropes, rope.Rotation{HeadDim: c.HeadDim, Theta: c.LocalTheta}), 1
	}
	query := 0
	if c.RopeScaling != nil && c.RopeScaling.QueryBeta != 0 {
		r := s.Ropes[0]
		r.Query, query = true, len(s.Ropes)
		s.Ropes = append(s.Ropes, r)
	}
	s.Layers = make([]architecture.Layer, c.Layers)
	for i := range s.Layers {
		s.Layers[i].Query = query
		s.Layers[i].Mixer = c.mixer(i)
		if c.Window > 0 && (c.Sliding == nil || c.Sliding[i]) {
			if local > 0 {
				s.Layers[i].Rope, s.Layers[i].Query = local, local
			}
			if c.Window < c.MaxPosition { // else every position is in it
				s.Layers[i].Window = c.Window
			}
		}
		if c.NoRope != nil && c.NoRope[i] {
			s.Layers[i].Rope, s.Layers[i].Query = -1, -1
		}
	}
	return s
}

// or returns x, or other if x is 0.
func or[T int | float64](x, other T) T {
	if x == 0 {
		return other
	}
	return x
}
