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
)

// ErrUnsupported is wrapped by the errors about models that gad reads correctly
// but cannot compute: another architecture, rope rule or attention variant.
var ErrUnsupported = errors.New("not supported")

// ErrNotFinite is wrapped by the error of a model whose numbers have broken down.
var ErrNotFinite = errors.New("not finite")

// Config is a transformer's architecture. A literal Config describes a new
// model; ReadConfig gives that of a folder.
type Config struct {
	Architecture  string       // family: "Qwen2", "Qwen3", "Llama" or "Mistral"
	Hidden        int          // D, width of the residual stream
	Layers        int          // number of blocks
	Heads         int          // H, query heads
	KVHeads       int          // K, key/value heads; H is a multiple of it
	HeadDim       int          // E, width of one head
	FFN           int          // F, width of the feed-forward layer
	Vocab         int          // V, rows of the embedding
	MaxPosition   int          // longest sequence
	RMSEps        float64      // added to the mean square in RMSNorm
	RopeTheta     float64      // base of the rotary frequencies
	RopeScaling   *RopeScaling // nil: frequencies as they are
	TieEmbeddings bool         // the head is the embedding
	QKVBias       bool         // biases on the projections to q, k and v
	QKNorm        bool         // RMSNorm on each head of q and k, before the rotation
	DType         string       // of a folder's weights: "float32", "bfloat16" or "float16"
	InitRange     float64      // standard deviation of new weights; 0 is 0.02

	raw map[string]json.RawMessage // config.json as read, so that unknown keys survive a save
}

// RopeScaling is Llama 3's rule for stretching the rotary frequencies (rope type
// "llama3"): wavelengths above OriginalMaxPosition/LowFreqFactor are divided by
// Factor, those below OriginalMaxPosition/HighFreqFactor stay, and between them
// the frequency is interpolated.
type RopeScaling struct {
	Factor              float64 `json:"factor"`
	LowFreqFactor       float64 `json:"low_freq_factor"`
	HighFreqFactor      float64 `json:"high_freq_factor"`
	OriginalMaxPosition int     `json:"original_max_position_embeddings"`
}

// family is what the architectures differ in, beyond numbers of config.json.
type family struct {
	modelType       string
	qkvBias, qkNorm bool
	headDim         int // when config.json gives none; 0 is Hidden/Heads
}

// families is the table of architectures; a new one that fits the same block is a row here.
var families = map[string]family{
	"Qwen2":   {modelType: "qwen2", qkvBias: true},
	"Qwen3":   {modelType: "qwen3", qkNorm: true, headDim: 128},
	"Llama":   {modelType: "llama"},
	"Mistral": {modelType: "mistral"},
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

const maxConfigBytes = 1 << 20

// ReadConfig reads dir/config.json, a file like it, or what a GGUF file says. What gad does
// not compute is refused by name: other model types, sliding windows in use, rope types but "default" and
// "llama3", biases on other projections, activations but silu, quantized
// weights. Such errors wrap ErrUnsupported.
func ReadConfig(dir string) (Config, error) {
	if a, has, err := adapterOf(dir); err != nil {
		return Config{}, err
	} else if has {
		base, err := baseDir(dir, a)
		if err != nil {
			return Config{}, err
		}
		c, err := ReadConfig(base)
		if err == nil && a.Kind == Scorer {
			return c.With("architectures", []string{c.Architecture + classSuffix[Scorer]})
		}
		return c, err
	}
	text, name, err := placeOf(dir).config()
	if err != nil {
		return Config{}, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return Config{}, fmt.Errorf("model: %s: %w", name, err)
	}
	return c, nil
}

func parseConfig(b []byte) (Config, error) {
	raw, err := object(b)
	if err != nil {
		return Config{}, err
	}
	r := reader{raw: raw}
	var c Config
	var fam family
	modelType := r.str("model_type", "")
	for name, f := range families {
		if f.modelType == modelType {
			c.Architecture, fam = name, f
		}
	}
	if r.err == nil && c.Architecture == "" {
		return Config{}, fmt.Errorf("key \"model_type\": %q: %w: use a model of type %s", modelType, ErrUnsupported, modelTypes())
	}
	if a, ok := r.get("architectures"); ok {
		var classes []string
		if json.Unmarshal(a, &classes) != nil || len(classes) != 1 ||
			classes[0] != c.Architecture+classSuffix[LM] && classes[0] != c.Architecture+classSuffix[Scorer] {
			r.fail("key \"architectures\": %.200s: %w: expected [%q] or [%q]", strings.Join(strings.Fields(string(a)), " "), ErrUnsupported, c.Architecture+classSuffix[LM], c.Architecture+classSuffix[Scorer])
		}
	}
	c.raw = raw
	c.QKVBias, c.QKNorm = fam.qkvBias, fam.qkNorm
	c.Hidden = r.int("hidden_size", 0)
	c.Layers = r.int("num_hidden_layers", 0)
	c.Heads = r.int("num_attention_heads", 0)
	kvDefault := 0 // required: the families' own defaults differ
	if c.Architecture == "Llama" {
		kvDefault = c.Heads
	}
	c.KVHeads = r.int("num_key_value_heads", kvDefault)
	headDim := fam.headDim
	if headDim == 0 && c.Heads > 0 {
		headDim = c.Hidden / c.Heads
		if _, ok := r.get("head_dim"); !ok && r.err == nil && headDim*c.Heads != c.Hidden {
			r.fail("key \"hidden_size\": %d: not a multiple of num_attention_heads %d: give head_dim", c.Hidden, c.Heads)
		}
	}
	c.HeadDim = r.int("head_dim", max(headDim, 1)) // sizes of zero are refused below, by their own name
	c.FFN = r.int("intermediate_size", 0)
	c.Vocab = r.int("vocab_size", 0)
	c.MaxPosition = r.int("max_position_embeddings", 0)
	c.RMSEps = r.float("rms_norm_eps", 1e-6)
	c.InitRange = r.float("initializer_range", 0.02)
	c.TieEmbeddings = r.bool("tie_word_embeddings", false)
	c.DType = r.str("dtype", r.str("torch_dtype", "float32"))
	r.rope(&c)
	r.refuse(c.Architecture)
	if r.err != nil {
		return Config{}, r.err
	}
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// object is a JSON object by key; a key that comes twice is refused, since
// encoding/json would take either for the truth.
func object(b []byte) (map[string]json.RawMessage, error) {
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

// reader takes typed values out of an object and keeps the first error. null
// counts as absent, as it does in transformers.
type reader struct {
	raw map[string]json.RawMessage
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) get(key string) (json.RawMessage, bool) {
	v, ok := r.raw[key]
	return v, ok && !bytes.Equal(v, []byte("null"))
}

// value decodes key into p; an absent key leaves it.
func (r *reader) value(key, want string, p any) {
	if v, ok := r.get(key); ok && json.Unmarshal(v, p) != nil {
		if len(v) > 40 {
			v = append(v[:40:40], "..."...)
		}
		r.fail("key %q: %s: expected %s", key, v, want)
	}
}

// int reads a whole number; def 0 makes the key required.
func (r *reader) int(key string, def int) int {
	if _, ok := r.get(key); !ok && def == 0 {
		r.fail("key %q: is missing: this architecture needs it", key)
	}
	r.value(key, "a whole number", &def)
	return def
}

func (r *reader) float(key string, def float64) float64 {
	r.value(key, "a number", &def)
	return def
}

func (r *reader) str(key, def string) string {
	r.value(key, "a string", &def)
	return def
}

func (r *reader) bool(key string, def bool) bool {
	r.value(key, "true or false", &def)
	return def
}

// rope reads the rotary settings: rope_parameters of transformers 5, or
// rope_theta and rope_scaling of transformers 4.
func (r *reader) rope(c *Config) {
	c.RopeTheta = r.float("rope_theta", 10000)
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
	c.RopeTheta = s.float("rope_theta", c.RopeTheta)
	switch kind := s.str("rope_type", s.str("type", "default")); kind {
	case "default":
	case "llama3":
		c.RopeScaling = &RopeScaling{
			Factor:              s.float("factor", 0),
			LowFreqFactor:       s.float("low_freq_factor", 0),
			HighFreqFactor:      s.float("high_freq_factor", 0),
			OriginalMaxPosition: s.int("original_max_position_embeddings", 0),
		}
	default:
		s.fail("key \"rope_type\": %q: %w: use a model of rope type default or llama3, or remove the scaling and keep to max_position_embeddings", kind, ErrUnsupported)
	}
	// Keys that change the rotation and that are not known here must not pass unseen.
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		switch k {
		case "rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings":
		case "partial_rotary_factor":
			if s.float(k, 1) != 1 {
				s.fail("key %q: %s: %w: only full rotation is implemented", k, raw[k], ErrUnsupported)
			}
		default:
			s.fail("key %q: %w: unknown to the rope types default and llama3", k, ErrUnsupported)
		}
	}
	if s.err != nil {
		r.fail("key %q: %w", key, s.err)
	}
}

// refuse names what would silently be computed wrongly.
func (r *reader) refuse(arch string) {
	if v, ok := r.get("quantization_config"); ok {
		r.fail("key \"quantization_config\": %.40s: %w: export the weights in bfloat16 or float32", v, ErrUnsupported)
	}
	if a := r.str("hidden_act", "silu"); a != "silu" {
		r.fail("key \"hidden_act\": %q: %w: only silu is implemented", a, ErrUnsupported)
	}
	for _, k := range []string{"attention_bias", "mlp_bias"} {
		if r.bool(k, false) {
			r.fail("key %q: true: %w: %s with these biases is not implemented", k, ErrUnsupported, arch)
		}
	}
	if r.float("partial_rotary_factor", 1) != 1 {
		r.fail("key \"partial_rotary_factor\": %s: %w: only full rotation is implemented", r.raw["partial_rotary_factor"], ErrUnsupported)
	}
	// Mistral's window is in use whenever it is given; Qwen's only with its switch.
	window := r.int("sliding_window", -1) >= 0
	if arch == "Qwen2" || arch == "Qwen3" {
		window = r.bool("use_sliding_window", false)
	}
	if window {
		r.fail("key \"sliding_window\": in use: %w: set it to null (use_sliding_window to false) if no sequence exceeds the window", ErrUnsupported)
	}
	if v, ok := r.get("layer_types"); ok {
		var types []string
		if json.Unmarshal(v, &types) != nil {
			r.fail("key \"layer_types\": expected a list of strings")
		}
		for i, t := range types {
			if t != "full_attention" {
				r.fail("key \"layer_types\": layer %d: %.40q: %w: only full_attention is implemented", i, t, ErrUnsupported)
			}
		}
	}
}

// Validate reports the first thing that is wrong with c. The bounds are far
// above any model of these families and keep products of sizes within int64.
func (c Config) Validate() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("model: config: %w", err)
	}
	return nil
}

func (c Config) validate() error {
	fam, ok := families[c.Architecture]
	if !ok {
		return fmt.Errorf("architecture %q: %w: use one of %s", c.Architecture, ErrUnsupported, strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	if c.QKVBias != fam.qkvBias || c.QKNorm != fam.qkNorm {
		return fmt.Errorf("architecture %q: qkv bias %t and q/k norm %t: its models have %t and %t", c.Architecture, c.QKVBias, c.QKNorm, fam.qkvBias, fam.qkNorm)
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
		return fmt.Errorf("key \"num_key_value_heads\": %d: does not divide num_attention_heads %d", c.KVHeads, c.Heads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("key \"head_dim\": %d: odd: rotary positions need pairs", c.HeadDim)
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
	if s := c.RopeScaling; s != nil {
		if !(s.Factor >= 1 && s.Factor <= 1e6) || !(s.LowFreqFactor > 0 && s.LowFreqFactor < s.HighFreqFactor && s.HighFreqFactor <= 1e6) ||
			s.OriginalMaxPosition < 1 || s.OriginalMaxPosition > 1<<26 {
			return fmt.Errorf("rope scaling %+v: expected factor >= 1, 0 < low_freq_factor < high_freq_factor and a positive original_max_position_embeddings", *s)
		}
	}
	if _, ok := dtypeCode[c.DType]; !ok && c.DType != "" {
		return fmt.Errorf("key \"dtype\": %q: %w: use float32, bfloat16 or float16 weights", c.DType, ErrUnsupported)
	}
	if n := c.ParamCount(LM); n > 1<<40 {
		return fmt.Errorf("%d parameters: too many for any machine: check the sizes", n)
	}
	return nil
}

// Key decodes the value of a key of config.json that Config has no field for,
// such as "eos_token_id", into p. It reports whether the key is there.
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

// With is c with a key of config.json that Config has no field for, such as
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

// stale says that the fields no longer are what raw holds: the configuration was
// not read from a file, or was changed since.
func (c Config) stale() bool {
	b, err := json.Marshal(c.raw)
	if err != nil {
		return true
	}
	was, err := parseConfig(b)
	was.DType, was.raw = c.DType, c.raw
	return err != nil || !reflect.DeepEqual(was, c)
}

// encode is config.json for a model of kind k with weights of dtype: what was
// read, and over it what this package knows.
func (c Config) encode(k Kind, dtype string) ([]byte, error) {
	out := map[string]any{}
	for key, v := range c.raw {
		out[key] = v
	}
	if c.stale() {
		for _, key := range []string{"rope_parameters", "rope_scaling", "layer_types"} {
			delete(out, key)
		}
		out["model_type"] = families[c.Architecture].modelType
		out["hidden_size"] = c.Hidden
		out["num_hidden_layers"] = c.Layers
		out["num_attention_heads"] = c.Heads
		out["num_key_value_heads"] = c.KVHeads
		out["head_dim"] = c.HeadDim
		out["intermediate_size"] = c.FFN
		out["vocab_size"] = c.Vocab
		out["max_position_embeddings"] = c.MaxPosition
		out["rms_norm_eps"] = c.RMSEps
		out["rope_theta"] = c.RopeTheta
		out["initializer_range"] = c.initRange()
		out["tie_word_embeddings"] = c.TieEmbeddings
		out["hidden_act"] = "silu"
		out["use_cache"] = true
		if c.Architecture != "Qwen2" {
			out["attention_bias"] = false
		}
		switch c.Architecture {
		case "Qwen2", "Qwen3":
			out["use_sliding_window"] = false
		case "Mistral":
			out["sliding_window"] = nil // absent would mean the class's default of 4096
		}
		if s := c.RopeScaling; s != nil {
			out["rope_scaling"] = map[string]any{
				"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.LowFreqFactor,
				"high_freq_factor": s.HighFreqFactor, "original_max_position_embeddings": s.OriginalMaxPosition,
			}
		}
	}
	out["architectures"] = []string{c.Architecture + classSuffix[k]}
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

func (c Config) initRange() float64 {
	if c.InitRange == 0 {
		return 0.02
	}
	return c.InitRange
}

// ParamCount is the number of parameters of a model of kind k; tied weights count once.
func (c Config) ParamCount(k Kind) int64 {
	q, kv, d := int64(c.Heads*c.HeadDim), int64(c.KVHeads*c.HeadDim), int64(c.Hidden)
	block := 2*d + 2*q*d + 2*kv*d + 3*int64(c.FFN)*d
	if c.QKVBias {
		block += q + 2*kv
	}
	if c.QKNorm {
		block += 2 * int64(c.HeadDim)
	}
	n := int64(c.Vocab)*d + int64(c.Layers)*block + d
	switch {
	case k == Scorer:
		n += d
	case !c.TieEmbeddings:
		n += int64(c.Vocab) * d
	}
	return n
}

// FLOPsPerToken is the floating-point operations of a forward pass for one token
// that sees context positions, itself included: two per multiply-add of the
// matrix products and of attention, nothing for the rest. head says whether
// logits are computed for it. A backward pass costs twice as much, and
// recomputation a forward pass more.
func (c Config) FLOPsPerToken(context float64, head bool) float64 {
	q, kv, d := float64(c.Heads*c.HeadDim), float64(c.KVHeads*c.HeadDim), float64(c.Hidden)
	f := float64(c.Layers) * (2*(2*q*d+2*kv*d+3*float64(c.FFN)*d) + 4*context*q)
	if head {
		f += 2 * float64(c.Vocab) * d
	}
	return f
}

// ropeFreq is the angle by which pair e of a head turns from one position to the next,
// before any scaling.
func (c Config) ropeFreq(e int) float64 {
	return 1 / math.Pow(c.RopeTheta, float64(2*e)/float64(c.HeadDim))
}

// scale is the rule of RopeScaling for one frequency.
func (s *RopeScaling) scale(f float64) float64 {
	wave := 2 * math.Pi / f
	low, high := float64(s.OriginalMaxPosition)/s.LowFreqFactor, float64(s.OriginalMaxPosition)/s.HighFreqFactor
	switch {
	case wave > low:
		f /= s.Factor
	case wave >= high:
		t := (float64(s.OriginalMaxPosition)/wave - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
		f = (1-t)*f/s.Factor + t*f
	}
	return f
}

// RopeDivisors is what RopeScaling divides each rotary frequency by, one for each pair
// of a head; nil without scaling.
func (c Config) RopeDivisors() []float32 {
	if c.RopeScaling == nil {
		return nil
	}
	d := make([]float32, c.HeadDim/2)
	for e := range d {
		f := c.ropeFreq(e)
		d[e] = float32(f / c.RopeScaling.scale(f))
	}
	return d
}

// ropeTable is the table [positions, HeadDim] for Backend.Rope. Frequencies and
// angles are rounded to float32 before the cosine, since that is the rotation
// that the published weights were trained with.
func (c Config) ropeTable(positions int) []float32 {
	half := c.HeadDim / 2
	freq := make([]float32, half)
	for e := range freq {
		f := c.ropeFreq(e)
		if s := c.RopeScaling; s != nil {
			f = s.scale(f)
		}
		freq[e] = float32(f)
	}
	table := make([]float32, positions*c.HeadDim)
	for p := range positions {
		row := table[p*c.HeadDim:][:c.HeadDim]
		for e, f := range freq {
			sin, cos := math.Sincos(float64(float32(p) * f))
			row[e], row[half+e] = float32(cos), float32(sin)
		}
	}
	return table
}
