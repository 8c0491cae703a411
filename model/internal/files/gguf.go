package files

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gad/internal/gguf"
	"gad/internal/safetensors"
	"gad/model/internal/rope"
)

// ggufArch describes how GGUF files of one of llama.cpp's architectures differ from the Hugging
// Face folders that they are converted from. The keys come from src/llama-arch.cpp of the llama.cpp
// repository, the changes to weights from its converter (conversion/*.py).
type ggufArch struct {
	model    string            // model_type of config.json
	also     []string          // others that a file may turn out to be
	class    string            // the language model's class in transformers
	biased   bool              // q, k and v have biases
	permuted bool              // rows of q and k are in the order of rope type NORM: see halves
	plusOne  bool              // weights of norms are stored with 1 added
	convs    bool              // layers without key/value heads are short convolutions
	delta    bool              // layers of the gated delta rule: see deltaOrder
	partial  bool              // heads may rotate in part, by factors for short and long contexts
	names    map[string]string // names of a block's tensors that differ from ggufNames
	whole    map[string]string // the same of tensors whose names have no common ending
	keys     map[string]string // more keys of config.json, as in ggufKeys
	// finish adds the keys of config.json that such files imply without naming them.
	finish func(c map[string]any) error
}

// ggufArchs is the table of supported architectures, by general.architecture: a new one is a row.
var ggufArchs = map[string]ggufArch{
	// also Mistral without a sliding window
	"llama": {model: "llama", also: []string{"mistral"}, class: "LlamaForCausalLM", permuted: true},
	"qwen2": {model: "qwen2", class: "Qwen2ForCausalLM", biased: true},
	"qwen3": {model: "qwen3", class: "Qwen3ForCausalLM"},
	"gemma2": {model: "gemma2", class: "Gemma2ForCausalLM", plusOne: true, names: gemmaNames,
		keys: map[string]string{"attention.sliding_window": "sliding_window",
			"attn_logit_softcapping":  "attn_logit_softcapping",
			"final_logit_softcapping": "final_logit_softcapping"},
		finish: func(c map[string]any) error {
			gemmaScale(c, 46)
			return nil
		}},
	"gemma3": {model: "gemma3_text", class: "Gemma3ForCausalLM", plusOne: true, names: gemmaNames,
		keys: map[string]string{"attention.sliding_window": "sliding_window",
			"attention.sliding_window_pattern": "sliding_window_pattern",
			"rope.freq_base_swa":               "rope_local_base_freq"},
		finish: finishGemma3},
	"mistral3": {model: "ministral3", also: []string{"mistral"}, class: "Ministral3ForCausalLM",
		permuted: true,
		finish: func(c map[string]any) error {
			if c["query_beta"] == nil { // a Mistral of before, as it is converted now
				c["model_type"], c["architectures"] = "mistral", []string{"MistralForCausalLM"}
				c["sliding_window"] = nil
			}
			return nil
		},
		keys: map[string]string{"attention.temperature_scale": "query_beta",
			"rope.scaling.yarn_log_multiplier": "mscale_all_dim"}},
	"lfm2": {model: "lfm2", class: "Lfm2ForCausalLM", convs: true,
		names: map[string]string{"operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
			"self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
			"self_attn.out_proj": "attn_output", "conv.in_proj": "shortconv.in_proj",
			"conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
			"feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
			"feed_forward.w2": "ffn_down", "model.embedding_norm": "token_embd_norm"},
		keys: map[string]string{"shortconv.l_cache": "conv_L_cache"},
		finish: func(c map[string]any) error {
			c["norm_eps"] = c["rms_norm_eps"]
			c["block_auto_adjust_ff_dim"] = false // the file has the width itself
			return nil
		}},
	"qwen35": {model: "qwen3_5_text", class: "Qwen3_5ForCausalLM", plusOne: true, partial: true,
		delta: true,
		names: map[string]string{"post_attention_layernorm": "post_attention_norm",
			"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
			"linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
			"linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
			"linear_attn.out_proj": "ssm_out"},
		whole: map[string]string{"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
		keys: map[string]string{"ssm.conv_kernel": "linear_conv_kernel_dim",
			"ssm.state_size": "linear_key_head_dim", "ssm.group_count": "linear_num_key_heads",
			"ssm.time_step_rank": "linear_num_value_heads", "ssm.inner_size": "inner",
			"full_attention_interval":    "full_attention_interval",
			"attention.recurrent_layers": "layer_types", "nextn_predict_layers": "mtp"},
		finish: finishQwen35},
	"phi3": {model: "phi3", class: "Phi3ForCausalLM", partial: true,
		names: map[string]string{"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
		keys:  map[string]string{"attention.sliding_window": "sliding_window"},
		finish: func(c map[string]any) error {
			if n, ok := c["sliding_window"].(float64); ok && n == 0 {
				delete(c, "sliding_window")
			}
			return nil
		}},
	"smollm3": {model: "smollm3", class: "SmolLM3ForCausalLM", permuted: true},
	// also OLMo 3, whose files have a window
	"olmo2": {model: "olmo2", also: []string{"olmo3"}, class: "Olmo2ForCausalLM",
		names: map[string]string{"post_attention_layernorm": "post_attention_norm",
			"post_feedforward_layernorm": "post_ffw_norm"},
		keys: map[string]string{"attention.sliding_window": "sliding_window",
			"attention.sliding_window_pattern": "sliding_window_pattern",
			"rope.freq_base_swa":               "rope_local_base_freq"},
		finish: finishOlmo},
	"granite": {model: "granite", also: []string{"granitemoehybrid"}, class: "GraniteForCausalLM",
		permuted: true,
		keys: map[string]string{"attention.scale": "attention_multiplier",
			"embedding_scale": "embedding_multiplier",
			"residual_scale":  "residual_multiplier", "logit_scale": "logits_scaling",
			"rope.scaling.finetuned":            "rotates",
			"expert_shared_feed_forward_length": "shared_intermediate_size",
			// of a Granite 4 without Mamba
			"ssm.conv_kernel": "ssm", "ssm.state_size": "ssm", "ssm.group_count": "ssm",
			"ssm.inner_size": "ssm", "ssm.time_step_rank": "ssm"},
		finish: finishGranite},
}

// finishQwen35 takes away the layers that draft tokens, which stand behind the others, and sets the
// width of a value head.
func finishQwen35(c map[string]any) error {
	layers := c["num_hidden_layers"].(float64)
	if n, ok := c["mtp"].(float64); ok {
		layers -= n
	}
	delete(c, "mtp")
	if c["num_hidden_layers"] = layers; layers < 1 {
		return fmt.Errorf("key \"qwen35.block_count\": %g without the layers that draft", layers)
	}
	if types, ok := c["layer_types"].([]string); ok {
		c["layer_types"] = types[:min(len(types), int(layers))]
		delete(c, "full_attention_interval")
	}
	inner, ok := c["inner"].(float64)
	heads, has := c["linear_num_value_heads"].(float64)
	if !ok || !has || heads < 1 {
		return fmt.Errorf("key \"qwen35.ssm.inner_size\", or ssm.time_step_rank: is missing")
	}
	c["linear_value_head_dim"] = math.Floor(inner / heads)
	delete(c, "inner")
	return nil
}

// finishGranite makes a file without rotation, as its finetuned says, a Granite 4.
func finishGranite(c map[string]any) error {
	if _, ok := c["attention_multiplier"]; !ok {
		c["attention_multiplier"] = 1 / math.Sqrt(c["head_dim"].(float64))
	}
	if n, ok := c["shared_intermediate_size"]; ok && n != 0.0 && n != c["intermediate_size"] {
		return fmt.Errorf(
			"key \"granite.expert_shared_feed_forward_length\": %v, and feed_forward_length %v: %w: llama.cpp has one width", n, c["intermediate_size"], rope.ErrUnsupported)
	}
	delete(c, "shared_intermediate_size")
	delete(c, "ssm")
	if rotates, ok := c["rotates"]; ok && rotates == 0.0 {
		c["model_type"], c["architectures"] =
			"granitemoehybrid", []string{"GraniteMoeHybridForCausalLM"}
		c["position_embedding_type"], c["num_local_experts"] = "nope", 0
		c["shared_intermediate_size"] = c["intermediate_size"]
		c["layer_types"] = slices.Repeat([]string{"attention"}, int(c["num_hidden_layers"].(float64)))
		c["mamba_n_heads"] = 1
	}
	delete(c, "rotates")
	return nil
}

// finishOlmo makes a file with a window an OLMo 3. llama.cpp has one rotary base for all of its
// layers.
func finishOlmo(c map[string]any) error {
	if n, ok := c["sliding_window"].(float64); !ok || n == 0 {
		delete(c, "sliding_window")
		return nil
	}
	c["model_type"], c["architectures"] = "olmo3", []string{"Olmo3ForCausalLM"}
	if local, ok := c["rope_local_base_freq"]; ok && local != c["rope_theta"] {
		return fmt.Errorf(
			"key \"olmo2.rope.freq_base_swa\": %v, and rope.freq_base %v: %w: llama.cpp has one base for all layers", local, c["rope_theta"], rope.ErrUnsupported)
	}
	return nil
}

// gemmaNames has the names of the norms of Gemma 2 and 3.
var gemmaNames = map[string]string{"post_attention_layernorm": "post_attention_norm",
	"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}

// gemmaScale adds query_pre_attn_scalar, from which the attention scale follows: head_dim, but
// hidden_size / heads in the 27B model, which llama.cpp recognizes by its number of layers.
func gemmaScale(c map[string]any, layers27 float64) {
	c["query_pre_attn_scalar"] = c["head_dim"]
	if layers := c["num_hidden_layers"].(float64); layers == layers27 {
		c["query_pre_attn_scalar"] = math.Floor(
			c["hidden_size"].(float64) / c["num_attention_heads"].(float64))
	}
}

// finishGemma3 turns sliding windows off in a file that gives none.
func finishGemma3(c map[string]any) error {
	gemmaScale(c, 62)
	if n, ok := c["sliding_window"].(float64); !ok || n == 0 {
		c["sliding_window_pattern"] = 1
		delete(c, "sliding_window")
	} else if _, ok := c["sliding_window_pattern"]; !ok {
		c["sliding_window_pattern"] = 6
	}
	return nil
}

// ggufKeys has the key of config.json for a GGUF file's key without "ARCH.".
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

// ggufChecked has the keys, without "ARCH.", that config.json has no key for, and the only value
// that each may have: the default. NaN allows any value, for keys that shape and rope check or that
// change nothing. A key in none of ggufChecked, ggufKeys and ggufArch.keys refuses the model.
var ggufChecked = map[string]float64{
	"vocab_size": math.NaN(), "rope.dimension_count": math.NaN(),
	"attention.value_length": math.NaN(), "rope.scaling.type": math.NaN(),
	"rope.scaling.factor": math.NaN(), "rope.scale_linear": math.NaN(),
	"rope.scaling.original_context_length": math.NaN(),
	"rope.scaling.yarn_beta_fast":          math.NaN(), "rope.scaling.yarn_beta_slow": math.NaN(),
	"rope.scaling.finetuned": math.NaN(), "pooling_type": math.NaN(),
	"rope.scaling.attn_factor": math.NaN(), "rope.scaling.yarn_attn_factor": math.NaN(),
	"rope.scaling.yarn_ext_factor": 1, "rope.scaling.yarn_log_multiplier": 0,
	"attention.causal": 1, "expert_count": 0, "expert_used_count": 0, "attention.sliding_window": 0,
	"attention.max_alibi_bias": 0,
	"attention.clamp_kqv":      0, "final_logit_softcapping": 0, "attn_logit_softcapping": 0,
	"use_parallel_residual": 0,
}

// ggufNames has llama.cpp's name for each Hugging Face name, for tensors of the whole model and of
// a block (gguf-py/gguf/constants.py and tensor_mapping.py of the llama.cpp repository).
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

// Names of tensors with divisors of the rotary frequencies: Llama 3's rule, and longrope's short
// and long factors.
const (
	ggufRopes = "rope_freqs.weight"
	ggufShort = "rope_factors_short.weight"
	ggufLong  = "rope_factors_long.weight"
)

// ggufFile is the path of a GGUF file.
type ggufFile string

// Digest returns the file's SHA-256, in hexadecimal.
func (path ggufFile) Digest() (string, error) { return fileDigest(string(path)) }

// open opens the file, which the caller must close, and returns its architecture, with its name in
// the file.
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

// archOf returns the file's architecture, a key of ggufArchs. It refuses a file that is not one
// whole model: an adapter, a projector, a part of a split.
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
		return "", fmt.Errorf("key \"general.type\": %q: %w: give the file of the model itself",
			kind, rope.ErrUnsupported)
	case !known:
		return "",
			fmt.Errorf("key \"general.architecture\": %q: %w: use a model of architecture %s", name,
				rope.ErrUnsupported, archNames())
	case parts > 1:
		return "", fmt.Errorf("key \"split.count\": is one of %d parts: %w: join them (llama-gguf-split --merge) or get the whole file", parts, rope.ErrUnsupported)
	}
	return name, nil
}

// GGUFArchitectures returns general.architecture of the files that are read as a model of this
// model_type.
func GGUFArchitectures(modelType string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(ggufArchs)) {
		if a := ggufArchs[name]; a.model == modelType || slices.Contains(a.also, modelType) {
			list = append(list, name)
		}
	}
	return list
}

// archNames lists the supported architectures for an error: "gemma3, granite or llama".
func archNames() string {
	names := slices.Sorted(maps.Keys(ggufArchs))
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// Config returns a config.json made from the file's metadata.
func (path ggufFile) Config() (text []byte, name string, err error) {
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

// config returns the keys and values of config.json for f, whose keys begin with arch. It refuses a
// key that changes the computation and is not implemented.
func (a ggufArch) config(f *gguf.Reader, arch string) (map[string]any, error) {
	c := map[string]any{"model_type": a.model, "architectures": []string{a.class},
		"dtype": "float32"}
	for _, key := range f.Keys() {
		short, ours := strings.CutPrefix(key, arch+".")
		if !ours {
			continue
		}
		to := a.keys[short]
		if to == "" {
			to = ggufKeys[short]
		}
		if list, has, err := f.Bools(key); has && err == nil && to == "sliding_window_pattern" {
			types := make([]string, len(list))
			for i, window := range list {
				if types[i] = "full_attention"; window {
					types[i] = "sliding_attention"
				}
			}
			c["layer_types"] = types
			continue
		}
		if list, has, err := f.Bools(key); has && err == nil && to == "layer_types" {
			types := make([]string, len(list))
			for i, recurrent := range list {
				if types[i] = "full_attention"; recurrent {
					types[i] = "linear_attention"
				}
			}
			c[to] = types
			continue
		}
		if a.delta && short == "rope.dimension_sections" { // by which positions of images are divided
			continue
		}
		if list, has, err := f.Ints(key); has && err == nil && to == "num_key_value_heads" && a.convs {
			types, most := make([]string, len(list)), int64(0)
			for i, n := range list {
				if types[i] = "full_attention"; n == 0 {
					types[i] = "conv"
				} else if most > 0 && n != most {
					return nil, fmt.Errorf(
						"key %q: layers of %d and of %d heads: %w: use a model whose layers are alike", key, most, n,
						rope.ErrUnsupported)
				}
				most = max(most, n)
			}
			c["layer_types"], c[to] = types, float64(most)
			continue
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
			return nil, fmt.Errorf("key %q: %v: %w: use a model without it", key, v, rope.ErrUnsupported)
		}
	}
	embedding, ok := f.Tensor("token_embd.weight")
	if !ok || len(embedding.Shape) != 2 {
		return nil,
			fmt.Errorf("tensor \"token_embd.weight\": is missing, or no matrix: not a whole model")
	}
	c["vocab_size"] = embedding.Shape[0]
	_, untied := f.Tensor("output.weight")
	c["tie_word_embeddings"] = !untied
	if _, biased := f.Tensor("blk.0.attn_q.bias"); biased && !a.biased {
		c["attention_bias"] = true
	}
	for short, to := range map[string]string{"bos": "bos_token_id", "eos": "eos_token_id",
		"padding": "pad_token_id"} {
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
	if a.finish != nil {
		if err := a.finish(c); err != nil {
			return nil, err
		}
	}
	return c, a.rope(f, arch, c)
}

// scalar returns a value as encoding/json decodes it: a string, or a float64, also for a boolean (0
// or 1) and for an array of numbers, one a layer, which must all be equal.
func scalar(f *gguf.Reader, key string) (any, error) {
	if v, has, err := f.Ints(key); has && err == nil {
		if len(v) == 0 || slices.Min(v) != slices.Max(v) {
			return nil,
				fmt.Errorf("key %q: differs by layer: %w: use a model whose layers are alike", key,
					rope.ErrUnsupported)
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
		return nil, fmt.Errorf("%w: %w", err, rope.ErrUnsupported)
	}
	if v {
		return 1.0, nil
	}
	return 0.0, nil
}

// shape checks the keys that every model needs, fills in key-value heads and head_dim where they
// are absent, and refuses keys that contradict head_dim.
func (a ggufArch) shape(f *gguf.Reader, arch string, c map[string]any) error {
	for short, to := range ggufKeys { // the required keys
		switch short {
		case "block_count", "context_length", "embedding_length", "feed_forward_length",
			"attention.head_count", "attention.layer_norm_rms_epsilon":
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
		} else if has && a.partial && short == "rope.dimension_count" {
			c["partial_rotary_factor"] = float64(n) / c["head_dim"].(float64)
		} else if has && float64(n) != c["head_dim"] {
			return fmt.Errorf("key %q: %d, but heads have %v elements: %w: only full rotation of keys as long as values is implemented", arch+"."+short, n, c["head_dim"], rope.ErrUnsupported)
		}
	}
	return nil
}

// rope sets rope_theta and rope_scaling: linear and YaRN from the file's keys, Llama 3's rule from
// its tensor of divisors (ggufRopes).
func (a ggufArch) rope(f *gguf.Reader, arch string, c map[string]any) error {
	if _, ok := c["rope_theta"]; !ok {
		c["rope_theta"] = 10000.0 // llama.cpp's default
	}
	var errs []error
	number := func(short string) (x float64, has bool) {
		v, err := scalar(f, arch+"."+short)
		if x, has = v.(float64); f.Has(arch+"."+short) && (err != nil || !has) {
			errs = append(errs, fmt.Errorf("key %q: expected a number", arch+"."+short))
		}
		return x, has && f.Has(arch+"."+short)
	}
	kind, typed, err := f.Text(arch + ".rope.scaling.type")
	errs = append(errs, err)
	factor, ok := number("rope.scaling.factor")
	if linear, old := number("rope.scale_linear"); old && !ok && !typed {
		kind, factor = "linear", linear
	}
	original, given := number("rope.scaling.original_context_length")
	fast, isFast := number("rope.scaling.yarn_beta_fast")
	slow, isSlow := number("rope.scaling.yarn_beta_slow")
	times, isTimes := number("rope.scaling.attn_factor")
	attention, isAttention := number("rope.scaling.yarn_attn_factor")
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	short, long, err := factors(f, a)
	if err != nil {
		return err
	}
	for short, wrong := range map[string]bool{
		"rope.scaling.attn_factor": isTimes && times != 1 && kind != "yarn" && short == nil,
		// the converter writes attention_factor of config.json, which llama.cpp does not read
		"rope.scaling.yarn_attn_factor": isAttention && attention != 1 && (kind != "yarn" ||
			math.Abs(attention-rope.YarnAttention(factor, 1)) > 1e-5),
	} {
		if wrong {
			return fmt.Errorf("key %q: %w: use a model without it", arch+"."+short,
				rope.ErrUnsupported)
		}
	}
	switch {
	case short != nil && (kind == "" || kind == "longrope"):
		if !isTimes {
			times = 1
		}
		longrope := map[string]any{"rope_type": "longrope", "short_factor": short,
			"long_factor": long, "attention_factor": times}
		if given {
			longrope["original_max_position_embeddings"] = original
		}
		c["rope_scaling"] = longrope
	case kind == "" || kind == "none" || kind == "linear" && (factor == 0 || factor == 1):
	case kind == "linear":
		c["rope_scaling"] = map[string]any{"rope_type": kind, "factor": factor}
	case kind == "yarn":
		if !given {
			original = c["max_position_embeddings"].(float64)
		}
		yarn := map[string]any{"rope_type": kind, "factor": factor,
			"original_max_position_embeddings": original}
		if isFast {
			yarn["beta_fast"] = fast
		}
		if isSlow {
			yarn["beta_slow"] = slow
		}
		all, ok := c["mscale_all_dim"].(float64)
		if delete(c, "mscale_all_dim"); ok && all != 0 {
			attention = rope.YarnAttention(factor, 1) / rope.YarnAttention(factor, all)
		} else {
			attention = rope.YarnAttention(factor, 1)
		}
		if isTimes {
			attention *= times
		}
		yarn["attention_factor"] = attention
		if beta, ok := c["query_beta"]; ok {
			yarn["llama_4_scaling_beta"] = beta
			delete(c, "query_beta")
		}
		c["rope_scaling"] = yarn
	default:
		return fmt.Errorf("key \"%s.rope.scaling.type\": %q: %w: use a model with linear, yarn or no scaling, or of Llama 3", arch, kind, rope.ErrUnsupported)
	}
	t, ok := f.Tensor(ggufRopes)
	if !ok {
		return nil
	}
	if c["rope_scaling"] != nil {
		return fmt.Errorf(
			"tensor %q: beside rope.scaling.type %s: %w: use a model with one of them", ggufRopes,
			kind, rope.ErrUnsupported)
	}
	d := make([]float32, t.Len())
	if err := t.Float32(d, 0); err != nil {
		return err
	}
	s, err := rope.ScalingOf(int(c["head_dim"].(float64)), c["rope_theta"].(float64), d)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", ggufRopes, err)
	}
	if s != nil {
		c["rope_scaling"] = s.Encode()
	}
	return nil
}

// factors returns longrope's factors of f, nil if it has none.
func factors(f *gguf.Reader, a ggufArch) (short, long []float64, err error) {
	if !a.partial {
		return nil, nil, nil // such tensors are refused as unexpected
	}
	for name, list := range map[string]*[]float64{ggufShort: &short, ggufLong: &long} {
		t, ok := f.Tensor(name)
		if !ok {
			continue
		}
		x := make([]float32, t.Len())
		if err := t.Float32(x, 0); err != nil {
			return nil, nil, err
		}
		for _, v := range x {
			*list = append(*list, float64(v))
		}
	}
	if (short == nil) != (long == nil) {
		return nil, nil, fmt.Errorf("tensors %q and %q: one of them is missing", ggufShort,
			ggufLong)
	}
	return short, long, nil
}

// Tensors opens the file's weights under Hugging Face's names, with the row order and the norm
// weights of a Hugging Face folder.
func (path ggufFile) Tensors() (Tensors, error) {
	f, name, a, err := path.open()
	if err != nil {
		return nil, err
	}
	t := &ggufTensors{Reader: f, arch: a, names: map[string]string{}}
	c, err := a.config(f, name)
	if err == nil {
		t.headDim, err = pairs(c["head_dim"].(float64))
	}
	if err == nil && a.delta {
		err = t.deltaHeads(c)
	}
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, fmt.Errorf("model: %s: %w", string(path), err)
	}
	for _, name := range f.Names() {
		if name == ggufRopes || a.partial && (name == ggufShort || name == ggufLong) {
			continue // config has read it
		}
		hf := a.hfName(name)
		if t.layers > 0 && blockOf(name) >= t.layers { // a layer that drafts tokens
			hf = "mtp." + name
		}
		if _, twice := t.names[hf]; twice {
			hf = name
		}
		t.names[hf] = name
	}
	return t, nil
}

// pairs returns headDim as an int. It refuses an odd number, since a head rotates in pairs, and one
// out of bounds.
func pairs(headDim float64) (int, error) {
	if !(headDim >= 2 && headDim <= 1<<10) || math.Mod(headDim, 2) != 0 {
		return 0, fmt.Errorf("heads of %g elements: expected an even number from 2 to %d", headDim,
			1<<10)
	}
	return int(headDim), nil
}

// hfName returns Hugging Face's name of the file's tensor name, or name itself if it is unknown.
func (a ggufArch) hfName(name string) string {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return name
	}
	part, before, suffix := name[:dot], "", name[dot:] // suffix is ".weight" or ".bias"
	rest, ok := strings.CutPrefix(name, "blk.")
	if ok {
		number, of, _ := strings.Cut(rest, ".")
		before = "model.layers." + number + "."
		for hf, whole := range a.whole {
			if whole == of {
				return before + hf
			}
		}
		if part, ok = strings.CutSuffix(of, suffix); !ok {
			return name
		}
	}
	for _, names := range []map[string]string{a.names, ggufNames} {
		for hf, gguf := range names {
			whole := strings.HasPrefix(hf, "model.") || hf == "lm_head"
			if gguf == part && whole == (before == "") {
				return before + hf + suffix
			}
		}
	}
	return name
}

// ggufTensors is an open GGUF file under Hugging Face's names.
type ggufTensors struct {
	*gguf.Reader
	arch    ggufArch
	headDim int
	names   map[string]string // from Hugging Face's name to the file's
	// of a gated delta rule: its layers and others, groups of value heads, value heads of a group,
	// their width, and the rows of queries and keys
	layers, groups, each, width, keys int
}

// blockOf returns the number of the block that a tensor of the file belongs to, or -1.
func blockOf(name string) int {
	rest, ok := strings.CutPrefix(name, "blk.")
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return -1
	}
	return n
}

// deltaHeads reads the heads of a gated delta rule.
func (f *ggufTensors) deltaHeads(c map[string]any) error {
	number := func(key string) int {
		x, _ := c[key].(float64)
		return int(x)
	}
	f.layers, f.groups, f.width =
		number("num_hidden_layers"), number("linear_num_key_heads"), number("linear_value_head_dim")
	f.keys = 2 * f.groups * number("linear_key_head_dim")
	heads := number("linear_num_value_heads")
	if f.groups < 1 || f.width < 1 || f.keys < 1 || heads%f.groups != 0 {
		return fmt.Errorf("%d value heads of %d elements, %d key heads: %w", heads, f.width, f.groups,
			rope.ErrUnsupported)
	}
	f.each = heads / f.groups
	return nil
}

// deltaOrder returns the row in the file of a row of a tensor of the gated delta rule; nil: the
// same. The value heads of a key head follow one another in a folder. llama.cpp has the first of
// each key head, then the second of each (_LinearAttentionVReorderBase of its converter).
func (f *ggufTensors) deltaOrder(part string) func(row int) int {
	width, first := 1, 0
	switch {
	case f.each == 1:
		return nil
	case part == "in_proj_qkv" || part == "conv1d":
		width, first = f.width, f.keys
	case part == "in_proj_z" || part == "out_proj": // of the second: its columns
		width = f.width
	case part == "in_proj_a" || part == "in_proj_b" || part == "A_log" || part == "dt_bias":
	default:
		return nil
	}
	heads := f.each * f.groups
	return func(row int) int {
		head, in := (row-first)/width, (row-first)%width
		if row < first || head >= heads {
			return row
		}
		return first + (head%f.each*f.groups+head/f.each)*width + in
	}
}

// deltaRead returns a reader of a tensor of the gated delta rule as a folder has it.
func (f *ggufTensors) deltaRead(part string, t *gguf.Stored) func([]float32, int) error {
	width := 1
	for _, n := range t.Shape[1:] {
		width *= n
	}
	read, order := t.Float32, f.deltaOrder(part)
	switch {
	case part == "A_log":
		read = func(dst []float32, lo int) error {
			err := t.Float32(dst, lo)
			for i, x := range dst {
				dst[i] = float32(math.Log(-float64(x)))
			}
			return err
		}
	case part == "out_proj" && order != nil:
		return func(dst []float32, lo int) error {
			row := make([]float32, width)
			for len(dst) > 0 {
				at, col := lo/width, lo%width
				if err := t.Float32(row, at*width); err != nil {
					return err
				}
				n := min(width-col, len(dst))
				for i := range dst[:n] {
					dst[i] = row[order(col+i)]
				}
				dst, lo = dst[n:], lo+n
			}
			return nil
		}
	}
	return InOrder(read, order, width)
}

// Names returns Hugging Face's names of all tensors, sorted.
func (f *ggufTensors) Names() []string { return slices.Sorted(maps.Keys(f.names)) }

// Tensor returns the tensor with Hugging Face's name. Its Read undoes what the converter did to q,
// k and norms.
func (f *ggufTensors) Tensor(name string) (*OnDisk, bool) {
	t, ok := f.Reader.Tensor(f.names[name])
	if !ok {
		return nil, false
	}
	d := &OnDisk{Name: name, DType: safetensors.F32, Shape: t.Shape, Read: t.Float32}
	if (f.arch.convs && strings.HasSuffix(name, ".conv.conv.weight") ||
		f.arch.delta && strings.HasSuffix(name, ".conv1d.weight")) && len(t.Shape) == 2 {
		d.Shape = []int{t.Shape[0], 1, t.Shape[1]}
	}
	if _, part, ok := strings.Cut(name, ".linear_attn."); ok && f.arch.delta {
		d.Read = f.deltaRead(strings.TrimSuffix(part, ".weight"), t)
		return d, true
	}
	switch part := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias"); {
	case f.arch.permuted && (strings.HasSuffix(part, ".q_proj") ||
		strings.HasSuffix(part, ".k_proj")):
		d.Read = halves(t, f.headDim)
	case f.arch.plusOne && strings.HasSuffix(part, "norm"):
		d.Read = func(dst []float32, lo int) error {
			err := t.Float32(dst, lo)
			for i := range dst {
				dst[i]--
			}
			return err
		}
	}
	return d, true
}

// halves returns OnDisk.Read for t, weight or bias of q or k, with the rows of each head in Hugging
// Face's order. Hugging Face rotates rows j and j+E/2 together, llama.cpp's rope type NORM rows 2j
// and 2j+1: its files alternate rows of the first half and of the second. A bias is read as a
// matrix of one column.
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
