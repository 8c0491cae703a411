package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cuda"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

// edited is a fixture's config.json with keys set (or, with nil, removed), as a folder.
func edited(t testing.TB, name string, edits map[string]any) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(fixtures, name, "config.json"))
	must(t, err)
	m := map[string]any{}
	must(t, json.Unmarshal(b, &m))
	for k, v := range edits {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	b, err = json.Marshal(m)
	must(t, err)
	d := t.TempDir()
	must(t, os.WriteFile(filepath.Join(d, "config.json"), b, 0o600))
	return d
}

func TestReadConfig(t *testing.T) {
	c, err := ReadConfig(filepath.Join(fixtures, "llama3_sharded"))
	must(t, err)
	c.raw = nil
	want := Config{
		Architecture: "Llama", Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 48,
		Vocab: 97, MaxPosition: 256,
		RMSEps: 1e-6, RopeTheta: 5e5, DType: "float32", InitRange: 0.02,
		RopeScaling: &RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4,
			OriginalMaxPosition: 64},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant %+v", c, want)
	}
	// The same in the words of transformers 4.
	d := edited(t, "llama3_sharded", map[string]any{
		"rope_parameters": nil, "rope_theta": 5e5, "dtype": nil, "torch_dtype": "float32",
		"head_dim": nil, "mlp_bias": nil, "attention_bias": nil,
		"rope_scaling": map[string]any{"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 64, "rope_type": "llama3"},
	})
	c, err = ReadConfig(d)
	must(t, err)
	c.raw = nil
	if !reflect.DeepEqual(c, want) {
		t.Errorf("transformers 4: %+v\nwant %+v", c, want)
	}
	for name, f := range map[string]func(c Config) bool{
		"qwen2_tied": func(c Config) bool {
			return c.QKVBias && c.TieEmbeddings && !c.QKNorm &&
				c.RopeTheta == 1e6
		},
		"qwen3":      func(c Config) bool { return !c.QKVBias && c.QKNorm && c.HeadDim == 12 },
		"qwen2_bf16": func(c Config) bool { return c.DType == "bfloat16" },
		"mistral":    func(c Config) bool { return c.Architecture == "Mistral" && c.HeadDim == 16 },
	} {
		c, err := ReadConfig(filepath.Join(fixtures, name))
		must(t, err)
		if !f(c) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// The config.json of families that people use, with the keys that their folders on the hub
// have and that say nothing about what is computed.
func TestReadConfigOfTheHub(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Config
	}{
		"SmolLM2-135M": {`{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
			"hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
			"model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
			"rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
			"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152}`,
			Config{Architecture: "Llama", Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3,
				HeadDim: 64, FFN: 1536, Vocab: 49152, MaxPosition: 8192, RMSEps: 1e-5,
				RopeTheta:     1e5,
				TieEmbeddings: true, DType: "bfloat16", InitRange: 0.041666666666666664}},
		"TinyLlama-1.1B": {`{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048,
			"initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
			"num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
			"transformers_version": "4.35.0", "use_cache": true, "vocab_size": 32000}`,
			Config{Architecture: "Llama", Hidden: 2048, Layers: 22, Heads: 32, KVHeads: 4,
				HeadDim: 64, FFN: 5632, Vocab: 32000, MaxPosition: 2048, RMSEps: 1e-5,
				RopeTheta: 1e4,
				DType:     "bfloat16", InitRange: 0.02}},
		"Gemma 3, as transformers 4 has it": {`{"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
			"eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
			"intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 7, "num_key_value_heads": 1,
			"pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
			"sliding_window_pattern": 6, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 262144}`,
			Config{Architecture: "Gemma3", Hidden: 1152, Layers: 7, Heads: 4, KVHeads: 1,
				HeadDim: 256, FFN: 6912, Vocab: 262144, MaxPosition: 32768, RMSEps: 1e-6,
				RopeTheta: 1e6, LocalTheta: 1e4,
				TieEmbeddings: true, QKNorm: true, Window: 512,
				Sliding: []bool{true, true, true, true, true, false, true}, AttnScale: 1. / 16,
				DType: "bfloat16", InitRange: 0.02}},
		// windows by the class's default; only the full layers have scaled positions
		"OLMo 3, as transformers 4 has it": {`{"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": 100257, "hidden_act": "silu",
			"hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 5,
			"num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
			"original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 100278}`,
			Config{Architecture: "Olmo3", Hidden: 4096, Layers: 5, Heads: 32, KVHeads: 32,
				HeadDim: 128, FFN: 11008, Vocab: 100278, MaxPosition: 65536, RMSEps: 1e-6,
				RopeTheta: 5e5, LocalTheta: 5e5, QKNorm: true, Window: 4096,
				Sliding: []bool{true, true, true, false, true},
				RopeScaling: &RopeScaling{Type: "yarn", Factor: 8, OriginalMaxPosition: 8192,
					BetaFast: 32, BetaSlow: 1, AttentionFactor: 1.2079441541679836},
				DType: "bfloat16", InitRange: 0.02}},
		"Ministral 3, the text part of a model that reads images": {`{"architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
			"multimodal_projector_bias": false, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
			"hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
			"num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1,
			"mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"}, "sliding_window": null,
			"tie_word_embeddings": true, "use_cache": true, "vocab_size": 131072}, "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1}`,
			Config{Architecture: "Ministral3", Hidden: 3072, Layers: 26, Heads: 32, KVHeads: 8,
				HeadDim: 128, FFN: 9216, Vocab: 131072, MaxPosition: 262144, RMSEps: 1e-5,
				RopeTheta: 1e6, RopeScaling: &RopeScaling{Type: "yarn", Factor: 16,
					OriginalMaxPosition: 16384, BetaFast: 32, BetaSlow: 1, AttentionFactor: 1,
					QueryBeta: 0.1},
				TieEmbeddings: true, DType: "bfloat16", InitRange: 0.02}},
		// fewer and shorter heads; positions end where the long factors would begin
		"Phi-4-mini": {`{"_name_or_path": "Phi-4-mini-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 199999, "embd_pdrop": 0.0,
			"eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
			"max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 4, "num_hidden_layers": 32, "num_key_value_heads": 2,
			"original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
			"rope_scaling": {"long_factor": [1, 1.5, 8, 20.5, 30, 40], "short_factor": [1.0, 1.0, 1.0, 1.0, 1.25, 1.5], "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
			"tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 200064}`,
			Config{Architecture: "Phi3", Hidden: 64, Layers: 32, Heads: 4, KVHeads: 2, HeadDim: 16,
				FFN: 8192, Vocab: 200064, MaxPosition: 4096, RMSEps: 1e-5, RopeTheta: 1e4,
				RotaryDim: 12, RopeScaling: &RopeScaling{Type: "longrope", Stretched: 131072,
					OriginalMaxPosition: 4096, AttentionFactor: math.Sqrt(1 + math.Log(32)/math.Log(4096)),
					ShortFactors: []float64{1, 1, 1, 1, 1.25, 1.5},
					LongFactors:  []float64{1, 1.5, 8, 20.5, 30, 40}},
				TieEmbeddings: true, Window: 262144, DType: "bfloat16", InitRange: 0.02}},
		"Granite 4 without Mamba": {`{"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attention_multiplier": 0.015625, "bos_token_id": 100257,
			"embedding_multiplier": 12, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2560, "init_method": "mup", "initializer_range": 0.1, "intermediate_size": 8192,
			"layer_types": ["attention", "attention"], "logits_scaling": 10, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 32, "mamba_d_state": 256,
			"mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
			"normalization_function": "rmsnorm", "num_attention_heads": 40, "num_experts_per_tok": 0, "num_hidden_layers": 2, "num_key_value_heads": 8, "num_local_experts": 0,
			"output_router_logits": false, "pad_token_id": 100256, "position_embedding_type": "rope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
			"rope_theta": 10000000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 100352}`,
			Config{Architecture: "GraniteMoeHybrid", Hidden: 2560, Layers: 2, Heads: 40,
				KVHeads: 8, HeadDim: 64, FFN: 8192, Vocab: 100352, MaxPosition: 131072,
				RMSEps: 1e-5, RopeTheta: 1e7, AttnScale: 0.015625, EmbedScale: 12,
				ResidualScale: 0.22, LogitDivisor: 10, TieEmbeddings: true, DType: "bfloat16",
				InitRange: 0.1}},
		// the keys of the class have defaults: caps, every second layer's window, the scale
		"Gemma 2 without its defaults": {`{"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 3,
			"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192, "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid",
			"rope_theta": 10000.0, "torch_dtype": "float32", "final_logit_softcapping": null}`,
			Config{Architecture: "Gemma2", Hidden: 2304, Layers: 3, Heads: 8, KVHeads: 4,
				HeadDim: 256, FFN: 9216, Vocab: 256000, MaxPosition: 8192, RMSEps: 1e-6,
				RopeTheta: 1e4, TieEmbeddings: true, AttnScale: 1. / 16, Window: 4096,
				Sliding: []bool{true, false, true}, ScoreCap: 50, DType: "float32",
				InitRange: 0.02}},
		"Phi-3-mini-4k": {`{"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
			"initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
			"num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
			"sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "attention_bias": false, "vocab_size": 32064}`,
			Config{Architecture: "Phi3", Hidden: 3072, Layers: 32, Heads: 32, KVHeads: 32,
				HeadDim: 96, FFN: 8192, Vocab: 32064, MaxPosition: 4096, RMSEps: 1e-5,
				RopeTheta: 1e4, Window: 2047, DType: "bfloat16", InitRange: 0.02}},
		// the text part; positions of images are left, and layers that draft tokens
		"Qwen3.5-0.8B": {`{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0,
			"attn_output_gate": true, "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
			"intermediate_size": 3584, "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
			"linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
			"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 2,
			"rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
			"tie_word_embeddings": true, "use_cache": true, "vocab_size": 248320}, "tie_word_embeddings": true, "vision_config": {"model_type": "qwen3_5"}}`,
			Config{Architecture: "Qwen3_5", Hidden: 1024, Layers: 4, Heads: 8, KVHeads: 2,
				HeadDim: 256, FFN: 3584, Vocab: 248320, MaxPosition: 262144, RMSEps: 1e-6,
				RopeTheta: 1e7, RotaryDim: 64, QKNorm: true, TieEmbeddings: true,
				Mixer: Mixer{Layers: []bool{true, true, true, false}, Taps: 4, KeyHeads: 16,
					ValueHeads: 16, KeyDim: 128, ValueDim: 128}, DType: "bfloat16", InitRange: 0.02}},
		"Qwen3.5, by its class's defaults": {`{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 2,
			"num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 32768, "full_attention_interval": 2}`,
			Config{Architecture: "Qwen3_5", Hidden: 64, Layers: 5, Heads: 2, KVHeads: 1,
				HeadDim: 256, FFN: 64, Vocab: 100, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e4,
				RotaryDim: 64, QKNorm: true,
				Mixer: Mixer{Layers: []bool{true, false, true, false, true}, Taps: 4, KeyHeads: 16,
					ValueHeads: 32, KeyDim: 128, ValueDim: 128}, DType: "float32", InitRange: 0.02}},
		"a Mistral without the key": {`{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
			"num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 32768}`,
			Config{Architecture: "Mistral", Hidden: 64, Layers: 1, Heads: 2, KVHeads: 1,
				HeadDim: 32, FFN: 64, Vocab: 100, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e4,
				Window: 4096,
				DType:  "float32", InitRange: 0.02}},
	} {
		got, err := parseConfig([]byte(c.text))
		must(t, err)
		if got.raw = nil; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v\nwant %+v", name, got, c.want)
		}
	}
}

// What is not computed, or makes no sense, is refused by the key's name.
func TestReadConfigRefuses(t *testing.T) {
	const qwen, llama, mistral = "qwen2_tied", "llama3_sharded", "mistral"
	for _, c := range []struct {
		folder, key string
		value       any
		unsupported bool
		says        string
	}{
		{qwen, "model_type", "gpt2", true, "model_type"},
		{qwen, "model_type", nil, true, "model_type"},
		{qwen, "model_type", "gemma4", true, "it has embeddings by layer, keys and values that several"},
		{qwen, "model_type", "qwen3_next", true, "it has a mixture of experts"},
		{qwen, "model_type", 7, false, "model_type"},
		{qwen, "architectures", []string{"Qwen2ForTokenClassification"}, true, "architectures"},
		{qwen, "architectures", []string{"LlamaForCausalLM"}, true, "architectures"},
		{qwen, "architectures", "Qwen2ForCausalLM", true, "architectures"},
		{qwen, "use_sliding_window", true, true, "sliding_window"},
		{mistral, "sliding_window", 0, false, "sliding_window"},
		{mistral, "layer_types", []string{"sliding_attention", "full_attention"}, true,
			"layer_types"},
		{llama, "sliding_window", 4096, true, "sliding_window"},
		{llama, "rope_interleaved", true, true, "rope_interleaved"},
		{"gemma3", "final_logit_softcapping", 30.0, true, "final_logit_softcapping"},
		{"gemma3", "attn_logit_softcapping", 50.0, true, "attn_logit_softcapping"},
		{"gemma3", "use_bidirectional_attention", true, true, "use_bidirectional_attention"},
		{"gemma3", "hidden_activation", "gelu", true, "hidden_activation"},
		{"gemma3", "layer_types", []string{"full_attention"}, false, "layer_types"},
		{"gemma3", "layer_types",
			[]string{"full_attention", "chunked_attention", "full_attention", "full_attention"},
			true, "layer_types"},
		{"gemma3", "sliding_window", json.RawMessage("null"), false, "sliding_window"},
		{"gemma3", "rope_parameters",
			map[string]any{"chunked_attention": map[string]any{"rope_type": "default"}}, true,
			"chunked_attention"},
		{"gemma3", "query_pre_attn_scalar", 0, false, "query_pre_attn_scalar"},
		{"smollm3", "no_rope_layers", []int{1, 0}, false, "no_rope_layers"},
		{"smollm3", "use_sliding_window", true, true, "sliding_window"},
		{"granite", "residual_multiplier", -1, false, "residual_multiplier"},
		{"granite", "mlp_bias", true, true, "mlp_bias"},
		{"olmo2", "sliding_window", 7, true, "sliding_window"},
		{"ministral3", "rope_parameters", nil, false, "rope_parameters"},
		{"ministral3", "rope_parameters", map[string]any{"rope_type": "default"}, true,
			`"rope_type": "default"`},
		{qwen, "rope_parameters",
			map[string]any{"rope_type": "yarn", "factor": 4, "llama_4_scaling_beta": 0.1}, true,
			"llama_4_scaling_beta"},
		{"ministral3_vision", "text_config", map[string]any{"model_type": "mistral4"}, true,
			"mistral4"},
		{"ministral3_vision", "text_config", nil, false, "text_config"},
		{"ministral3_vision", "quantization_config", map[string]any{"quant_method": "fp8"}, true,
			"quantization_config"},
		{"olmo3", "attention_bias", true, true, "attention_bias"},
		{"gemma2", "final_logit_softcapping", 0, false, "final_logit_softcapping"},
		{"gemma2", "attn_logit_softcapping", "soft", false, "attn_logit_softcapping"},
		{"gemma2", "use_bidirectional_attention", true, true, "use_bidirectional_attention"},
		{"granite4", "layer_types", []string{"attention", "mamba"}, true, `layer 1: "mamba"`},
		{"granite4", "layer_types", []string{"linear_attention", "attention"}, true, "Mamba"},
		{"granite4", "layer_types", []string{"attention"}, false, "layer_types"},
		{"granite4", "layer_types", nil, true, "layer_types"},
		{"qwen3_5", "layer_types", []string{"linear_attention", "full_attention"}, false, "layer_types"},
		{"qwen3_5", "layer_types", []string{"conv", "full_attention"}, true, `layer 0: "conv"`},
		{"qwen3_5", "linear_num_value_heads", 3, false, "linear_num_value_heads"},
		{"qwen3_5", "linear_key_head_dim", 0, false, "linear_key_head_dim"},
		{"qwen3_5", "linear_conv_kernel_dim", 99, false, "99 tokens"},
		{"qwen3_5", "attn_output_gate", false, true, "attn_output_gate"},
		{"qwen3_5", "full_attention_interval", 0, false, "full_attention_interval"},
		{"granite4", "num_local_experts", 32, true, "num_local_experts"},
		{"granite4", "num_local_experts", nil, true, "num_local_experts"},
		{"granite4", "shared_intermediate_size", nil, false, "shared_intermediate_size"},
		{"phi3", "rope_parameters", map[string]any{"rope_type": "llama3", "factor": 8}, true,
			`"llama3"`},
		{"phi3", "rope_parameters", map[string]any{"rope_type": "longrope",
			"short_factor": []int{1, 2, 3}, "long_factor": []int{1, 2, 3}}, false, "short_factor"},
		{"phi3", "rope_parameters", map[string]any{"rope_type": "longrope"}, false,
			"0 short_factor"},
		{"phi3", "rope_parameters", map[string]any{"rope_type": "longrope", "short_mscale": 1.1},
			true, "short_mscale"},
		{"phi3", "partial_rotary_factor", 0.0, false, "partial_rotary_factor"},
		{qwen, "rope_parameters", map[string]any{"rope_type": "longrope",
			"short_factor": []int{1}, "long_factor": []int{1}}, true, `"longrope"`},
		{"olmo3", "rope_parameters",
			map[string]any{"sliding_attention": map[string]any{"rope_type": "linear", "factor": 2}},
			true, "sliding_attention"},
		{qwen, "layer_types", []string{"full_attention", "sliding_attention"}, true, "layer_types"},
		{qwen, "hidden_act", "gelu", true, "hidden_act"},
		{llama, "attention_bias", true, true, "attention_bias"},
		{llama, "mlp_bias", true, true, "mlp_bias"},
		{qwen, "quantization_config", map[string]any{"quant_method": "gptq"}, true,
			"quantization_config"},
		{qwen, "rope_parameters",
			map[string]any{"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4}, true,
			"dynamic"},
		{qwen, "rope_parameters",
			map[string]any{"rope_type": "linear", "factor": 4, "beta_fast": 3}, true, "beta_fast"},
		{qwen, "rope_parameters", map[string]any{"rope_type": "linear"}, false, "factor"},
		{qwen, "rope_parameters",
			map[string]any{"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2}, false,
			"beta_slow"},
		{qwen, "rope_parameters",
			map[string]any{"full_attention": map[string]any{"rope_type": "default"}}, true,
			"full_attention"},
		{qwen, "rope_parameters",
			map[string]any{"rope_type": "default", "partial_rotary_factor": 0.5}, true,
			"partial_rotary_factor"},
		{qwen, "rope_parameters", map[string]any{"rope_type": "llama3", "factor": 8}, false,
			"original_max_position"},
		{qwen, "rope_parameters", 5, false, "rope_parameters"},
		{qwen, "hidden_size", nil, false, "hidden_size"},
		{qwen, "hidden_size", 0, false, "hidden_size"},
		{qwen, "hidden_size", -32, false, "hidden_size"},
		{qwen, "hidden_size", 32.5, false, "hidden_size"},
		{qwen, "hidden_size", "32", false, "hidden_size"},
		{qwen, "hidden_size", 1e300, false, "hidden_size"},
		{qwen, "hidden_size", int64(math.MaxInt64), false, "hidden_size"},
		{qwen, "hidden_size", 30, false, "hidden_size"},
		{qwen, "num_hidden_layers", 1 << 40, false, "num_hidden_layers"},
		{qwen, "num_attention_heads", 0, false, "num_attention_heads"},
		{qwen, "num_key_value_heads", 3, false, "num_key_value_heads"},
		{qwen, "num_key_value_heads", nil, false, "num_key_value_heads"},
		{qwen, "head_dim", 7, false, "head_dim"},
		{qwen, "intermediate_size", 1 << 62, false, "intermediate_size"},
		{qwen, "vocab_size", 1 << 31, false, "vocab_size"},
		{qwen, "max_position_embeddings", 1 << 50, false, "max_position_embeddings"},
		{qwen, "rms_norm_eps", 0, false, "rms_norm_eps"},
		{qwen, "rms_norm_eps", "small", false, "rms_norm_eps"},
		{qwen, "tie_word_embeddings", "yes", false, "tie_word_embeddings"},
		{qwen, "dtype", "float8_e4m3fn", true, "dtype"},
	} {
		_, err := ReadConfig(edited(t, c.folder, map[string]any{c.key: c.value}))
		if err == nil || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %s = %v: %v", c.folder, c.key, c.value, err)
		} else if errors.Is(err, ErrUnsupported) != c.unsupported {
			t.Errorf("%s: %s = %v: %v: is ErrUnsupported: %t", c.folder, c.key, c.value, err,
				!c.unsupported)
		}
	}
	whole, err := os.ReadFile(filepath.Join(fixtures, qwen, "config.json"))
	must(t, err)
	good := strings.TrimSpace(string(whole))
	for says, text := range map[string]string{
		"not a JSON object":               "[1]",
		"more than 1048576 bytes":         "{" + strings.Repeat(" ", files.MostConfig) + "}",
		`key "model_type": appears twice`: strings.Replace(good, "{", `{"model_type": "llama",`, 1),
		"is the file cut short":           good[:len(good)-1],
		"bytes after the JSON object":     good + "{}",
	} {
		d := t.TempDir()
		must(t, os.WriteFile(filepath.Join(d, "config.json"), []byte(text), 0o600))
		if _, err := ReadConfig(d); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if _, err := ReadConfig(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Sizes that agree with each other but not with the files are refused before
// any memory is asked for.
func TestLoadAllocatesNothingForLies(t *testing.T) {
	for _, e := range []map[string]any{
		{"num_hidden_layers": 1024, "layer_types": nil},
		{"hidden_size": 1 << 16, "head_dim": 8},
		{"intermediate_size": 1 << 19},
		{"vocab_size": 1 << 22},
	} {
		d := edited(t, "qwen2_tied", e)
		b, err := os.ReadFile(filepath.Join(fixtures, "qwen2_tied", "model.safetensors"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(d, "model.safetensors"), b, 0o600))
		be := ref.New()
		if _, err := Load(be, d, Options{}); err == nil || strings.Contains(err.Error(), "\n") ||
			len(err.Error()) > 2000 {
			t.Errorf("%v: %v", e, err)
		}
		if _, peak := be.Memory(); peak != 0 {
			t.Errorf("%v: %d bytes allocated", e, peak)
		}
	}
}

// Keys without a field pass through With, Save and Key, and fields changed after
// reading are what is saved.
func TestConfigKeys(t *testing.T) {
	for _, name := range slices.Concat(architectures, lmFolders, scorerFolders) {
		c := tiny("Qwen3")
		if _, ok := architecture.Families[name]; ok {
			c = tiny(name)
		} else {
			var err error
			c, err = ReadConfig(filepath.Join(fixtures, name))
			must(t, err)
			c = c.FirstLayers(1)
			c.RopeTheta, c.Vocab = 777, 50
		}
		c, err := c.With("eos_token_id", []int{7, 9})
		must(t, err)
		b, err := c.encode(LM, "float16")
		must(t, err)
		again, err := parseConfig(b)
		must(t, err)
		var eos []int
		if ok, err := again.Key("eos_token_id", &eos); !ok || err != nil || len(eos) != 2 ||
			eos[1] != 9 {
			t.Errorf("%s: eos %v %t %v", name, eos, ok, err)
		}
		var one int
		if ok, err := again.Key("eos_token_id", &one); !ok || err == nil {
			t.Errorf("%s: a list as a number: %t %v", name, ok, err)
		}
		if ok, err := again.Key("nothing", &one); ok || err != nil {
			t.Errorf("%s: absent key: %t %v", name, ok, err)
		}
		c.DType, c.raw, again.raw = "float16", nil, nil
		if !reflect.DeepEqual(c, again) {
			t.Errorf("%s: %+v became %+v", name, c, again)
		}
	}
}

// Row 12: a damaged config.json is refused or read as a sound configuration.
func TestHostileFormats(t *testing.T) {
	var seeds [][]byte
	for _, name := range slices.Concat(lmFolders, scorerFolders) {
		b, err := os.ReadFile(filepath.Join(fixtures, name, "config.json"))
		must(t, err)
		seeds = append(seeds, bytes.TrimSpace(b))
	}
	dir := t.TempDir()
	hostile.Format{
		Name:   "config.json",
		Small:  seeds[0],
		Whole:  true,
		Seeds:  seeds[1:],
		Words:  []string{`{`, `}`, `[`, `]`, `"`, `,`, `:`, "null", "true", "1e999", `"hidden_size": 1`, `"num_hidden_layers": 1024`, `"rope_scaling": {`, "\xff"},
		Prefix: "model: ",
		Read: func(text []byte) error {
			must(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
			c, err := ReadConfig(dir)
			if err == nil {
				err = c.Validate()
				if err != nil {
					t.Errorf("%q: read as what is not valid: %v", text, err)
				}
				_, err = c.encode(LM, "float32")
			}
			return err
		},
	}.Try(t)
}

func FuzzConfig(f *testing.F) {
	for _, name := range slices.Concat(lmFolders, scorerFolders) {
		b, err := os.ReadFile(filepath.Join(fixtures, name, "config.json"))
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConfig(b)
		if err != nil {
			return
		}
		// What is accepted can be written and read again, to the same architecture.
		out, err := c.encode(LM, "float32")
		must(t, err)
		again, err := parseConfig(out)
		must(t, err)
		c.DType, c.raw, again.raw = "float32", nil, nil
		if !reflect.DeepEqual(c, again) {
			t.Fatalf("%+v became %+v", c, again)
		}
	})
}

func TestParamCount(t *testing.T) {
	for _, arch := range architectures {
		for _, k := range []Kind{LM, Scorer} {
			n := int64(0)
			for _, p := range tiny(arch).arrange(k).params {
				n += int64(p.Len())
			}
			if got := tiny(arch).ParamCount(k); got != n {
				t.Errorf("%s %v: %d parameters, want %d", arch, k, got, n)
			}
		}
	}
	// Published: 494,032,768 parameters, of which 136,134,656 are the embedding.
	qwen := Config{Architecture: "Qwen2", Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2,
		HeadDim: 64, FFN: 4864, Vocab: 151936, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e6,
		TieEmbeddings: true, QKVBias: true}
	must(t, qwen.Validate())
	if got := qwen.ParamCount(LM); got != 494_032_768 {
		t.Errorf("Qwen2.5-0.5B: %d parameters", got)
	}
	// Two operations a parameter of the matrix products, and attention.
	if got, want := qwen.FLOPsPerToken(0, true), 2*494.0e6; math.Abs(got-want) > 0.001*want {
		t.Errorf("Qwen2.5-0.5B: %g operations a token, want about %g", got, want)
	}
}

// The plan is what the model then takes.
func TestPlan(t *testing.T) {
	for _, arch := range []string{"Qwen3", "Gemma3", "Olmo2", "Lfm2", "Qwen3_5"} {
		planned(t, tiny(arch))
	}
}

func planned(t *testing.T, c Config) {
	seqs := seqsOf(29, 30, 20)
	for _, o := range []PlanOptions{
		{Tokens: 50},
		{Tokens: 50, Trainable: true},
		{Tokens: 50, Trainable: true, Recompute: true},
		{Slots: 4, N: 3, Prompts: 2, PromptTokens: 21, MaxNew: 9},
	} {
		be := ref.New()
		m, err := New(be, c, Options{Trainable: o.Trainable, Recompute: o.Recompute})
		must(t, err)
		switch {
		case o.Trainable:
			_, err = NewOptimizer(m, adamw())
			must(t, err)
			must(t, m.LogProbGrad(seqs, 1,
				func(l, e [][]float32) (_, _ [][]float32, err error) { return l, e, nil }))
		case o.Slots > 0:
			prompt := make([]int32, o.PromptTokens)
			_, err = m.Generate([][]int32{prompt, prompt}, []uint64{0, 1},
				SampleOptions{N: o.N, MaxNew: o.MaxNew, Slots: o.Slots}, nil)
			must(t, err)
		default:
			_, _, err = m.LogProbs(seqs, 1)
			must(t, err)
		}
		_, peak := be.Memory()
		got, want := c.Plan(be, o).Total(), peak
		// Not in the plan: the rotary table, and what grows with rows, not with tokens.
		small := int64(8 * (128*c.HeadDim*len(c.spec(LM).Ropes) + 8*50 + 10*c.Hidden))
		if got > want || got+small < want {
			t.Errorf("%s: %+v: plan of %d bytes, model took %d", c.Architecture, o, got, want)
		}
		must(t, m.Close())
	}
}

// The frequencies of Llama 3.1 (factor 8, 1, 4, 8192; theta 500000) by hand: those that
// turn once in less than 2048 positions stay, those above 8192 are divided by 8.
func TestRopeDivisors(t *testing.T) {
	c := tiny("Llama")
	if d := c.RopeDivisors(); d != nil {
		t.Errorf("without scaling: %v", d)
	}
	c.HeadDim, c.RopeTheta = 128, 500000
	c.RopeScaling = &RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4,
		OriginalMaxPosition: 8192}
	d := c.RopeDivisors()
	if len(d) != 64 {
		t.Fatalf("%d divisors", len(d))
	}
	for e, x := range d {
		wave := 2 * math.Pi * math.Pow(500000, float64(e)/64)
		want := 1.0
		switch {
		case wave > 8192:
			want = 8
		case wave > 2048: // 8192/wave runs from 4 to 1, the share of the unscaled frequency from 1 to 0
			share := (8192/wave - 1) / 3
			want = 1 / (share + (1-share)/8)
		}
		if math.Abs(float64(x)-want) > 1e-6*want {
			t.Errorf("pair %d, wavelength %.0f: %g, want %g", e, wave, x, want)
		}
	}
}

// Keys that the GPU's kernels are too narrow for are refused by their key.
func TestCheckDevice(t *testing.T) {
	c := tiny("Qwen3_5")
	if err := c.CheckDevice(cuda.Options{}); err != nil {
		t.Error(err)
	}
	c.Mixer.KeyDim = 129
	if err := c.CheckDevice(cuda.Options{}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), `"linear_key_head_dim": 129`) {
		t.Error(err)
	}
	if err := c.CheckDevice(ref.New()); err != nil {
		t.Error(err)
	}
}
