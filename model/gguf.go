package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gad/internal/gguf"
	"gad/internal/safetensors"
)

// ggufArch is what the files of one of llama.cpp's architectures say otherwise than the
// Hugging Face folders that they are made from. Keys are those of src/llama-arch.cpp of the
// llama.cpp repository, what is done to weights is in its converter (conversion/*.py).
type ggufArch struct {
	family   string // of families
	permuted bool   // rows of q and k are in the order of rope type NORM: see halves
	plusOne  bool   // weights of norms are stored with 1 added
	// norms are the names of a block's norms where they are not ggufNames'.
	norms map[string]string
	// keys of config.json beside ggufKeys, by the file's key without "ARCH.".
	keys map[string]string
	// fixed are keys of config.json that go without saying in files of the architecture.
	fixed map[string]any
}

// ggufArchs is the table of architectures that are read, by general.architecture; a new one
// is a row.
var ggufArchs = map[string]ggufArch{
	"llama": {family: "Llama", permuted: true}, // Mistral too
	"qwen2": {family: "Qwen2"},
	"qwen3": {family: "Qwen3"},
}

// ggufKeys are the keys of config.json by the file's key without "ARCH.".
var ggufKeys = map[string]string{
	"block_count":                      "num_hidden_layers",
	"context_length":                   "max_position_embeddings",
	"embedding_length":                 "hidden_size",
	"feed_forward_length":              "intermediate_size",
	"attention.head_count":             "num_attention_heads",
	"attention.head_count_kv":          "num_key_value_heads",
	"attention.key_length":             "head_dim",
	"attention.layer_norm_rms_epsilon": "rms_norm_eps",
	"rope.freq_base":                   "rope_theta",
}

// ggufChecked are keys without "ARCH." that config.json has no key for. Where they say more
// than this value, which is that of their absence, the model is refused.
var ggufChecked = map[string]float64{
	"vocab_size": math.NaN(), "rope.dimension_count": math.NaN(), "attention.value_length": math.NaN(), // checked against others
	"rope.scaling.type": math.NaN(), "rope.scaling.factor": math.NaN(), "rope.scale_linear": 1, "rope.scaling.finetuned": math.NaN(),
	"rope.scaling.original_context_length": math.NaN(), "attention.causal": 1, "expert_count": 0, "expert_used_count": 0, "pooling_type": math.NaN(),
	"attention.sliding_window": 0, "attention.max_alibi_bias": 0, "attention.clamp_kqv": 0, "logit_scale": 1, "use_parallel_residual": 0,
}

// ggufNames are llama.cpp's names for Hugging Face's: of tensors of the whole model, and of
// a block's (gguf-py/gguf/constants.py and tensor_mapping.py of the llama.cpp repository).
var ggufNames = map[string]string{
	"model.embed_tokens":       "token_embd",
	"model.norm":               "output_norm",
	"lm_head":                  "output",
	"input_layernorm":          "attn_norm",
	"self_attn.q_proj":         "attn_q",
	"self_attn.k_proj":         "attn_k",
	"self_attn.v_proj":         "attn_v",
	"self_attn.o_proj":         "attn_output",
	"self_attn.q_norm":         "attn_q_norm",
	"self_attn.k_norm":         "attn_k_norm",
	"post_attention_layernorm": "ffn_norm",
	"mlp.gate_proj":            "ffn_gate",
	"mlp.up_proj":              "ffn_up",
	"mlp.down_proj":            "ffn_down",
}

// ggufRopes is the tensor of what rotary frequencies are divided by.
const ggufRopes = "rope_freqs.weight"

// ggufFile is the path of a GGUF file.
type ggufFile string

func (path ggufFile) digest() (string, error) { return fileDigest(string(path)) }

// open reads the file's header and finds its architecture.
func (path ggufFile) open() (f *gguf.Reader, name string, arch ggufArch, err error) {
	f, err = gguf.Open(string(path))
	if err != nil {
		return nil, "", arch, fmt.Errorf("model: %w", err)
	}
	if name, err = archOf(f); err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, "", arch, fmt.Errorf("model: %s: %w", string(path), err)
	}
	return f, name, ggufArchs[name], nil
}

// archOf is the file's architecture, one of ggufArchs. A file that is no whole model is
// refused.
func archOf(f *gguf.Reader) (string, error) {
	name, has, err := f.Text("general.architecture")
	if err != nil {
		return "", err
	}
	kind, _, err := f.Text("general.type")
	if err != nil {
		return "", err
	}
	parts, _, err := f.Int("split.count")
	if err != nil {
		return "", err
	}
	_, known := ggufArchs[name]
	switch {
	case !has:
		return "", fmt.Errorf("key \"general.architecture\": is missing: not a model")
	case kind != "" && kind != "model":
		return "", fmt.Errorf("key \"general.type\": %q: %w: give the file of the model itself", kind, ErrUnsupported)
	case !known:
		return "", fmt.Errorf("key \"general.architecture\": %q: %w: use a model of architecture %s", name, ErrUnsupported, archNames())
	case parts > 1:
		return "", fmt.Errorf("key \"split.count\": is one of %d parts: %w: join them (llama-gguf-split --merge) or get the whole file", parts, ErrUnsupported)
	}
	return name, nil
}

func archNames() string {
	names := slices.Sorted(maps.Keys(ggufArchs))
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// config makes config.json out of the file's metadata.
func (path ggufFile) config() (text []byte, name string, err error) {
	f, arch, a, err := path.open()
	if err != nil {
		return nil, string(path), err
	}
	defer f.Close() // only read from
	c, err := a.config(f, arch)
	if err == nil {
		text, err = json.Marshal(c)
	}
	if err != nil {
		err = fmt.Errorf("model: %s: %w", string(path), err)
	}
	return text, string(path), err
}

func (a ggufArch) config(f *gguf.Reader, arch string) (map[string]any, error) {
	c := map[string]any{"model_type": families[a.family].modelType, "architectures": []string{a.family + classSuffix[LM]}, "dtype": "float32"}
	maps.Copy(c, a.fixed)
	for _, key := range f.Keys() {
		short, ours := strings.CutPrefix(key, arch+".")
		if !ours {
			continue
		}
		to := a.keys[short]
		if to == "" {
			to = ggufKeys[short]
		}
		v, err := scalar(f, key)
		if err != nil {
			return nil, err
		}
		if to != "" {
			c[to] = v
			continue
		}
		harmless, known := ggufChecked[short]
		if x, number := v.(float64); !known || !math.IsNaN(harmless) && !(number && x == harmless) {
			return nil, fmt.Errorf("key %q: %v: %w: use a model without it", key, v, ErrUnsupported)
		}
	}
	embedding, ok := f.Tensor("token_embd.weight")
	if !ok || len(embedding.Shape) != 2 {
		return nil, fmt.Errorf("tensor \"token_embd.weight\": is missing, or no matrix: not a whole model")
	}
	c["vocab_size"] = embedding.Shape[0]
	_, untied := f.Tensor("output.weight")
	c["tie_word_embeddings"] = !untied
	if _, biased := f.Tensor("blk.0.attn_q.bias"); biased && !families[a.family].qkvBias {
		c["attention_bias"] = true
	}
	for short, to := range map[string]string{"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"} {
		key := "tokenizer.ggml." + short + "_token_id"
		if id, has, err := f.Int(key); err != nil {
			return nil, err
		} else if has && id >= 0 && id < int64(embedding.Shape[0]) {
			c[to] = id
		}
	}
	if err := a.shape(f, arch, c); err != nil {
		return nil, err
	}
	return c, a.rope(f, arch, c)
}

// scalar is a value as JSON has it: a number, a string, true or false. Of numbers that a
// file gives for each layer there must be one.
func scalar(f *gguf.Reader, key string) (any, error) {
	if v, has, err := f.Ints(key); has && err == nil {
		if len(v) == 0 || slices.Min(v) != slices.Max(v) {
			return nil, fmt.Errorf("key %q: differs by layer: %w: use a model whose layers are alike", key, ErrUnsupported)
		}
		return float64(v[0]), nil
	}
	if v, has, err := f.Float(key); has && err == nil {
		return v, nil
	}
	if v, has, err := f.Text(key); has && err == nil {
		return v, nil
	}
	v, _, err := f.Bool(key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrUnsupported)
	}
	if v {
		return 1.0, nil
	}
	return 0.0, nil
}

// shape holds keys that must say the same as others against them.
func (a ggufArch) shape(f *gguf.Reader, arch string, c map[string]any) error {
	for short, to := range ggufKeys { // those without which nothing can be said
		switch short {
		case "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon":
			if x, ok := c[to].(float64); !ok || !(x > 0) {
				return fmt.Errorf("key %q: is missing, or not a positive number", arch+"."+short)
			}
		}
	}
	heads := c["num_attention_heads"].(float64)
	if _, ok := c["num_key_value_heads"]; !ok {
		c["num_key_value_heads"] = heads
	}
	if _, ok := c["head_dim"]; !ok {
		c["head_dim"] = math.Floor(c["hidden_size"].(float64) / heads)
	}
	for _, short := range []string{"attention.value_length", "rope.dimension_count"} {
		if n, has, err := f.Int(arch + "." + short); err != nil {
			return err
		} else if has && float64(n) != c["head_dim"] {
			return fmt.Errorf("key %q: %d, but heads have %v elements: %w: only full rotation of keys as long as values is implemented", arch+"."+short, n, c["head_dim"], ErrUnsupported)
		}
	}
	return nil
}

// rope makes rope_scaling of the file's tensor of divisors. The rules that llama.cpp
// computes itself are refused: gad has none of them.
func (a ggufArch) rope(f *gguf.Reader, arch string, c map[string]any) error {
	kind, _, err := f.Text(arch + ".rope.scaling.type")
	if err != nil {
		return err
	}
	factor, has, err := f.Float(arch + ".rope.scaling.factor")
	if err != nil {
		return err
	}
	if kind != "" && kind != "none" && !(kind == "linear" && (!has || factor == 0 || factor == 1)) {
		return fmt.Errorf("key \"%s.rope.scaling.type\": %q: %w: use a model without scaling, or of Llama 3", arch, kind, ErrUnsupported)
	}
	if _, ok := c["rope_theta"]; !ok {
		c["rope_theta"] = 10000.0 // llama.cpp's, where a file says nothing
	}
	t, ok := f.Tensor(ggufRopes)
	if !ok {
		return nil
	}
	d := make([]float32, t.Len())
	if err := t.Float32(d, 0); err != nil {
		return err
	}
	shape := Config{HeadDim: int(c["head_dim"].(float64)), RopeTheta: c["rope_theta"].(float64)}
	s, err := scalingOf(shape, d)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", ggufRopes, err)
	}
	if s != nil {
		c["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.LowFreqFactor,
			"high_freq_factor": s.HighFreqFactor, "original_max_position_embeddings": s.OriginalMaxPosition}
	}
	return nil
}

// scalingOf finds the rule of Llama 3 whose divisors d are, for the frequencies of c. A file
// has the divisors alone. Their factor is the largest of them, and the published models have
// 1 and 4 as low_freq_factor and high_freq_factor; the original length is a power of two, or
// what a divisor between 1 and the factor says it is. A rule whose divisors are not d within
// 1e-5, which is how exactly converters compute them, is not taken.
func scalingOf(c Config, d []float32) (*RopeScaling, error) {
	const low, high = 1, 4
	if len(d) != c.HeadDim/2 {
		return nil, fmt.Errorf("%d divisors: expected %d, one for each pair of a head", len(d), c.HeadDim/2)
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
		if x := float64(x); x > 1 && x < most { // 1/x = (1-t)/most + t,  t = (length/wave - low)/(high - low)
			t := (1/x - 1/most) / (1 - 1/most)
			lengths = append(lengths, int(math.Round(2*math.Pi/c.ropeFreq(e)*(low+t*(high-low)))))
		}
	}
	for _, n := range lengths {
		c.RopeScaling = &RopeScaling{Factor: most, LowFreqFactor: low, HighFreqFactor: high, OriginalMaxPosition: n}
		same := func(x, y float32) bool { return math.Abs(float64(x-y)) <= 1e-5*float64(y) }
		if n > 0 && slices.EqualFunc(c.RopeDivisors(), d, same) {
			return c.RopeScaling, nil
		}
	}
	return nil, fmt.Errorf("divides the frequencies otherwise than Llama 3 does: %w: use a model whose rotation is Llama 3's or plain", ErrUnsupported)
}

// tensors opens the file's weights as those of a Hugging Face folder.
func (path ggufFile) tensors() (tensors, error) {
	f, _, a, err := path.open()
	if err != nil {
		return nil, err
	}
	t := &ggufTensors{Reader: f, arch: a, names: map[string]string{}}
	c, err := ReadConfig(string(path))
	if err != nil {
		return nil, err
	}
	t.headDim = c.HeadDim
	for _, name := range f.Names() {
		if name == ggufRopes { // config has read it
			continue
		}
		hf := a.hfName(name)
		if _, twice := t.names[hf]; twice {
			hf = name
		}
		t.names[hf] = name
	}
	return t, nil
}

// hfName is Hugging Face's name of a tensor; one that is not known keeps its own.
func (a ggufArch) hfName(name string) string {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return name
	}
	part, before, suffix := name[:dot], "", name[dot:] // suffix is ".weight" or ".bias"
	if rest, ok := strings.CutPrefix(part, "blk."); ok {
		number, of, _ := strings.Cut(rest, ".")
		before, part = "model.layers."+number+".", of
	}
	for _, names := range []map[string]string{a.norms, ggufNames} {
		for hf, gguf := range names {
			whole := strings.HasPrefix(hf, "model.") || hf == "lm_head"
			if gguf == part && whole == (before == "") {
				return before + hf + suffix
			}
		}
	}
	return name
}

// ggufTensors are a file's weights.
type ggufTensors struct {
	*gguf.Reader
	arch    ggufArch
	headDim int
	names   map[string]string // the file's by Hugging Face's
}

func (f *ggufTensors) Names() []string { return slices.Sorted(maps.Keys(f.names)) }

func (f *ggufTensors) Tensor(name string) (*onDisk, bool) {
	t, ok := f.Reader.Tensor(f.names[name])
	if !ok {
		return nil, false
	}
	d := &onDisk{Name: name, DType: safetensors.F32, Shape: t.Shape, read: t.Float32}
	switch part := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias"); {
	case f.arch.permuted && (strings.HasSuffix(part, ".q_proj") || strings.HasSuffix(part, ".k_proj")):
		d.read = halves(t, f.headDim)
	case f.arch.plusOne && strings.HasSuffix(part, "norm"):
		d.read = func(dst []float32, lo int) error {
			err := t.Float32(dst, lo)
			for i := range dst {
				dst[i]--
			}
			return err
		}
	}
	return d, true
}

// halves reads the rows of each head in Hugging Face's order, which rotates rows j and j+E/2
// together. llama.cpp's rope type NORM rotates 2j and 2j+1, so its files have row j of the
// first half and row j of the second side by side. A bias is a matrix of one column.
func halves(t *gguf.Stored, headDim int) func([]float32, int) error {
	width := 1
	if len(t.Shape) > 1 {
		width = t.Shape[1]
	}
	return func(dst []float32, lo int) error {
		for len(dst) > 0 {
			row, col := lo/width, lo%width
			in := row % headDim
			from := row - in + in%(headDim/2)*2 + in/(headDim/2)
			n := min(width-col, len(dst))
			if err := t.Float32(dst[:n], from*width+col); err != nil {
				return err
			}
			dst, lo = dst[n:], lo+n
		}
		return nil
	}
}
