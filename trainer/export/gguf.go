package export

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gad/checkpoint"
	"gad/internal/gguf"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// ggufKinds maps a kind of GGUF file to the type of its matrices and to llama.cpp's number of the
// kind (llama_ftype in include/llama.h of the llama.cpp repository).
var ggufKinds = map[string]struct {
	matrix gguf.Type
	file   uint32
}{
	"f16":  {gguf.F16, 1},
	"bf16": {gguf.BF16, 32},
	"q8_0": {gguf.Q8_0, 7},
}

// CheckGGUF refuses kinds other than f16, bf16 and q8_0, and a file dst whose name does not end in
// .gguf.
func CheckGGUF(dst, kind string) error {
	if _, ok := ggufKinds[kind]; !ok {
		return fmt.Errorf("%w: export: --gguf %q: must be f16, bf16 or q8_0", config.ErrConfig,
			kind)
	}
	if filepath.Ext(dst) != ".gguf" {
		return fmt.Errorf("%w: export: --output %s: with --gguf one file is written: give a name that ends in .gguf", config.ErrConfig, dst)
	}
	return nil
}

// GGUF writes the student of the checkpoint dir as one file dst that llama.cpp loads: weights with
// adapters added, tokenizer and chat template. kind is "f16", "bf16" or "q8_0", the type of the
// matrices; vectors are float32. The file is written whole or not at all. It returns the type, with
// texts for which llama.cpp has other tokens.
func GGUF(fsys checkpoint.FS, dir, dst, kind string) (what string, err error) {
	fsys = vfs.OrDisk(fsys)
	return writeGGUF(fsys, filepath.Join(dir, "actor"), dst, kind, func() error {
		if _, err := saved.Read(fsys, dir); err != nil {
			return err
		}
		return checkpoint.Verify(fsys, dir)
	})
}

// ModelGGUF writes the language model at src, a folder or a GGUF file, as GGUF does.
func ModelGGUF(fsys checkpoint.FS, src, dst, kind string) (what string, err error) {
	return writeGGUF(vfs.OrDisk(fsys), src, dst, kind, func() error { return nil })
}

// writeGGUF writes the model at src after verify has checked it.
func writeGGUF(
	fsys checkpoint.FS, src, dst, kind string, verify func() error) (what string, err error) {
	if err := CheckGGUF(dst, kind); err != nil {
		return "", err
	}
	// before the model is read; WriteFile checks again
	if err := checkpoint.CheckAbsent(fsys, dst, "file"); err != nil {
		return "", err
	}
	// before the weights are read, even for their digest
	if cfg, err := model.ReadConfig(src); err == nil {
		if err := checkSupported(cfg); err != nil {
			return "", err
		}
	}
	if err := verify(); err != nil {
		return "", err
	}
	cfg, err := model.ReadConfig(src)
	if err != nil {
		return "", err
	}
	tok, err := saved.Tokenizer(src)
	if err != nil {
		return "", err
	}
	g, err := tok.GGML(cfg.Vocab)
	if err != nil {
		return "", err
	}
	what = "GGUF " + kind
	if g.Differs != "" {
		what += "; llama.cpp has its own form of the tokenizer's pattern, and other tokens for " + g.Differs
	}
	pairs, err := ggufPairs(cfg, g, strings.TrimSuffix(filepath.Base(dst), ".gguf"), kind)
	if err != nil {
		return "", err
	}
	return what, withModel(src, model.LM, func(m *model.Model) error {
		file := gguf.File{Pairs: pairs,
			Tensors: ggufTensors(cfg, m.Weights(), ggufKinds[kind].matrix)}
		size, err := file.Size()
		if err != nil {
			return err
		}
		return checkpoint.WriteFile(fsys, dst, size,
			func(w io.Writer) error { return file.Write(w) })
	})
}

// ggufFamily holds the differences between a family's files and its Hugging Face folders.
// model/internal/files/gguf.go reads these files, and cites the sources of llama.cpp's names and
// rules.
type ggufFamily struct {
	arch     string // general.architecture
	permuted bool   // q and k have the order of rope type NORM (interleaveRows)
	plusOne  bool   // norms are stored with 1 added
	// names of the upper and the lower half of a matrix whose halves are two tensors
	split map[string][2]string
	// of Gemma: llama.cpp has full attention in every fullEvery-th layer, and scales the queries
	// of the model of 27B parameters, which it recognises by its number of layers, otherwise
	fullEvery, layers27 int
	betas               bool              // llama.cpp reads YaRN's beta_fast and beta_slow
	names               map[string]string // names of a block's tensors that differ from ggufNames
}

// olmoNorms has the names of the norms of OLMo 2 and 3.
var olmoNorms = map[string]string{"post_attention_layernorm": "post_attention_norm",
	"post_feedforward_layernorm": "post_ffw_norm"}

// gemmaNames has the names of the norms of Gemma 2 and 3.
var gemmaNames = map[string]string{"post_attention_layernorm": "post_attention_norm",
	"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}

// ggufFamilies has every family that gad trains. Mistral is Llama's graph, without a window.
var ggufFamilies = map[string]ggufFamily{
	"Qwen2": {arch: "qwen2"}, "Qwen3": {arch: "qwen3"},
	"Llama": {arch: "llama", permuted: true}, "Mistral": {arch: "llama", permuted: true},
	"Ministral3": {arch: "mistral3", permuted: true, betas: true},
	"Phi3": {arch: "phi3", names: map[string]string{"self_attn.qkv_proj": "attn_qkv",
		"mlp.gate_up_proj": "ffn_up"}},
	"SmolLM3": {arch: "smollm3", permuted: true},
	"Granite": {arch: "granite", permuted: true},
	"GraniteMoeHybrid": {arch: "granite", permuted: true,
		names: map[string]string{"shared_mlp.output_linear": "ffn_down"},
		split: map[string][2]string{"shared_mlp.input_linear": {"ffn_gate", "ffn_up"}}},
	"Olmo2": {arch: "olmo2", names: olmoNorms},
	"Olmo3": {arch: "olmo2", names: olmoNorms},
	"Lfm2": {arch: "lfm2", names: map[string]string{"operator_norm": "attn_norm",
		"ffn_norm":              "ffn_norm",
		"self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
		"self_attn.out_proj": "attn_output", "conv.in_proj": "shortconv.in_proj",
		"conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
		"feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
		"feed_forward.w2": "ffn_down", "model.embedding_norm": "token_embd_norm"}},
	"Qwen3_5": {arch: "qwen35", plusOne: true,
		names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
	"Gemma2": {arch: "gemma2", plusOne: true, names: gemmaNames, fullEvery: 2, layers27: 46},
	"Gemma3": {arch: "gemma3", plusOne: true, names: gemmaNames, fullEvery: 6, layers27: 62},
}

// smolLM3Skips is n where llama.cpp leaves out the rotation of every n-th layer of SmolLM3.
const smolLM3Skips = 4

// checkSupported refuses a model that llama.cpp would compute differently. It reads no weights.
func checkSupported(c model.Config) error {
	refuse := func(what, why, way string) error {
		return fmt.Errorf("%w: export: %s: %s: leave out --gguf%s", config.ErrConfig, what, why, way)
	}
	f, ok := ggufFamilies[c.Architecture]
	gemma := f.fullEvery > 0
	rope := ropeType(c)
	every := func(n int, of []bool, last bool) bool { // each n-th element is last, the others not
		for i, x := range of {
			if x != (((i+1)%n == 0) == last) {
				return false
			}
		}
		return true
	}
	switch {
	case !ok:
		return refuse(c.Architecture, "files for llama.cpp are written of "+
			strings.Join(slices.Sorted(maps.Keys(ggufFamilies)), ", "), "")
	case !gemma && c.Sliding == nil && c.Window > 0 && c.Window < c.MaxPosition:
		return refuse(fmt.Sprintf("sliding_window %d", c.Window),
			"llama.cpp computes "+c.Architecture+" without",
			", or set sliding_window to null if no sequence is longer")
	case gemma && c.Window > 0 && !every(f.fullEvery, c.Sliding, false):
		return refuse("layer_types", fmt.Sprintf(
			"llama.cpp has full attention in each layer that is a multiple of %d of %s",
			f.fullEvery, c.Architecture), "")
	case f.arch == "gemma2" && (c.ScoreCap == 0 || c.LogitCap == 0):
		return refuse("attn_logit_softcapping or final_logit_softcapping null",
			"llama.cpp caps both in Gemma 2", "")
	case gemma && c.AttnScale != 0 &&
		math.Abs(c.AttnScale*math.Sqrt(float64(gemmaScale(c)))-1) > 1e-6:
		return refuse("query_pre_attn_scalar", fmt.Sprintf(
			"llama.cpp takes %d for a %s of this shape", gemmaScale(c), c.Architecture), "")
	case f.arch == "smollm3" && c.NoRope != nil && !every(smolLM3Skips, c.NoRope, true):
		return refuse("no_rope_layers", fmt.Sprintf(
			"llama.cpp leaves out the rotation of every %dth layer", smolLM3Skips), "")
	case f.arch == "olmo2" && c.LocalTheta != 0 && c.LocalTheta != c.RopeTheta:
		return refuse(fmt.Sprintf("rope_theta %g in the layers with a window", c.LocalTheta),
			"llama.cpp has one base of OLMo 3", "")
	case rope == "yarn" && (c.RopeScaling.Exact || !f.betas &&
		(c.RopeScaling.BetaFast != 32 || c.RopeScaling.BetaSlow != 1)):
		return refuse("rope type yarn", "llama.cpp has it with truncate, beta_fast 32 and beta_slow 1",
			"")
	case rope == "yarn" && f.arch == "gemma3":
		return refuse("rope type yarn", "llama.cpp would scale the layers with a window too", "")
	case (f.arch == "lfm2" || f.arch == "qwen35") && c.Mixer.Taps == 1:
		return refuse("a convolution of 1 token", "llama.cpp takes 2 or more", "")
	case f.arch == "qwen35" && (c.Mixer.Layers == nil || c.Mixer.KeyDim != c.Mixer.ValueDim):
		return refuse(fmt.Sprintf("linear_key_head_dim %d and linear_value_head_dim %d",
			c.Mixer.KeyDim, c.Mixer.ValueDim), "llama.cpp has one width of both, and no model without",
			"")
	case f.arch == "qwen35" && c.RMSEps != 1e-6:
		return refuse(fmt.Sprintf("rms_norm_eps %g", c.RMSEps),
			"llama.cpp adds it to the squares of queries and keys too, which is 1e-6 of the delta rule's",
			"")
	case (f.arch == "qwen2" || f.arch == "olmo2" || f.arch == "lfm2") && c.Heads*c.HeadDim != c.Hidden:
		return refuse(fmt.Sprintf("head_dim %d with %d heads and hidden_size %d", c.HeadDim,
			c.Heads, c.Hidden),
			fmt.Sprintf("llama.cpp takes a %s only where their product is the hidden size", c.Architecture),
			"")
	case f.arch != "llama" && rope == "llama3":
		return refuse("rope type llama3 with "+c.Architecture, "llama.cpp has it with Llama only",
			"")
	}
	return nil
}

// longest returns max_position_embeddings of config.json.
func longest(c model.Config) int {
	if c.RopeScaling != nil && c.RopeScaling.Type == "longrope" {
		return c.RopeScaling.Stretched
	}
	return c.MaxPosition
}

// ropeType returns the rule that scales the rotary frequencies, "" without one.
func ropeType(c model.Config) string {
	if c.RopeScaling == nil {
		return ""
	}
	return cmp.Or(c.RopeScaling.Type, "llama3")
}

// gemmaScale returns the number by whose root llama.cpp divides the queries of a Gemma: the length
// of a head, except for the model of 27B parameters.
func gemmaScale(c model.Config) int {
	if c.Layers == ggufFamilies[c.Architecture].layers27 {
		return c.Hidden / c.Heads
	}
	return c.HeadDim
}

// ggufArch returns llama.cpp's name of the architecture.
func ggufArch(c model.Config) string { return ggufFamilies[c.Architecture].arch }

// ggufPairs returns the metadata of a file: everything but its tensors. Keys and their meaning are
// documented in docs/gguf.md of the ggml repository, and defined by src/llama-arch.cpp and
// src/llama-model.cpp of the llama.cpp repository, which read them.
func ggufPairs(c model.Config, g *tokenizer.GGML, name, kind string) ([]gguf.Pair, error) {
	arch := ggufArch(c)
	if err := checkSupported(c); err != nil {
		return nil, err
	}
	pairs := []gguf.Pair{
		{Key: "general.architecture", Value: arch},
		{Key: "general.type", Value: "model"},
		{Key: "general.name", Value: name},
		{Key: "general.file_type", Value: ggufKinds[kind].file},
		// of q8_0's layout; others ignore it
		{Key: "general.quantization_version", Value: uint32(2)},
	}
	add := func(key string, value any) { pairs = append(pairs, gguf.Pair{Key: key, Value: value}) }
	of := func(key string, value int) { add(arch+"."+key, uint32(value)) }
	of("block_count", c.Layers)
	rotated := c.HeadDim
	if c.RotaryDim > 0 {
		rotated = c.RotaryDim
	}
	of("context_length", longest(c))
	of("embedding_length", c.Hidden)
	of("feed_forward_length", c.FFN)
	of("attention.head_count", c.Heads)
	if heads := kvHeads(c); heads != nil {
		add(arch+".attention.head_count_kv", heads)
		of("shortconv.l_cache", max(c.Mixer.Taps, 2))
	} else {
		of("attention.head_count_kv", c.KVHeads)
	}
	of("attention.key_length", c.HeadDim)
	of("attention.value_length", c.HeadDim)
	of("rope.dimension_count", rotated)
	of("vocab_size", c.Vocab)
	add(arch+".attention.layer_norm_rms_epsilon", float32(c.RMSEps))
	add(arch+".rope.freq_base", float32(c.RopeTheta))
	switch arch {
	case "gemma2":
		window := c.MaxPosition // none: llama.cpp's default is 4096
		if c.Window > 0 {
			window = c.Window
		}
		of("attention.sliding_window", window)
		add(arch+".attn_logit_softcapping", float32(c.ScoreCap))
		add(arch+".final_logit_softcapping", float32(c.LogitCap))
	case "gemma3":
		if c.Window > 0 {
			of("attention.sliding_window", c.Window)
			of("attention.sliding_window_pattern", ggufFamilies[c.Architecture].fullEvery)
			add(arch+".rope.freq_base_swa", float32(cmp.Or(c.LocalTheta, 10000)))
		}
	case "phi3":
		of("attention.sliding_window", 0)
		if r := c.RopeScaling; r != nil {
			of("rope.scaling.original_context_length", r.OriginalMaxPosition)
			add(arch+".rope.scaling.attn_factor", float32(r.AttentionFactor))
		} else {
			of("rope.scaling.original_context_length", c.MaxPosition)
		}
	case "olmo2":
		if c.Window > 0 {
			of("attention.sliding_window", c.Window)
			add(arch+".attention.sliding_window_pattern", c.Sliding)
		}
	case "qwen35":
		pairs = append(pairs, deltaPairs(c)...)
	case "granite":
		add(arch+".attention.scale", float32(cmp.Or(c.AttnScale, 1/math.Sqrt(float64(c.HeadDim)))))
		add(arch+".embedding_scale", float32(cmp.Or(c.EmbedScale, 1)))
		add(arch+".residual_scale", float32(cmp.Or(c.ResidualScale, 1)))
		add(arch+".logit_scale", float32(cmp.Or(c.LogitDivisor, 1)))
		add(arch+".rope.scaling.finetuned", c.NoRope == nil) // whether q and k rotate
	}

	if r := c.RopeScaling; r != nil && (r.Type == "linear" || r.Type == "yarn") {
		add(arch+".rope.scaling.type", r.Type)
		add(arch+".rope.scaling.factor", float32(r.Factor))
		if r.Type == "yarn" {
			of("rope.scaling.original_context_length", r.OriginalMaxPosition)
			add(arch+".rope.scaling.yarn_beta_fast", float32(r.BetaFast))
			add(arch+".rope.scaling.yarn_beta_slow", float32(r.BetaSlow))
			add(arch+".rope.scaling.attn_factor", float32(r.AttentionFactor/r.YarnAttention()))
			if r.QueryBeta != 0 {
				add(arch+".attention.temperature_scale", float32(r.QueryBeta))
			}
		}
	}

	add("tokenizer.ggml.model", g.Model)
	add("tokenizer.ggml.pre", g.Pre)
	add("tokenizer.ggml.tokens", g.Tokens)
	add("tokenizer.ggml.token_type", g.Types)
	if g.Model == "llama" {
		add("tokenizer.ggml.scores", g.Scores)
		add("tokenizer.ggml.add_space_prefix", g.SpacePrefix)
	} else {
		add("tokenizer.ggml.merges", g.Merges)
	}
	for _, t := range []struct {
		name string
		id   int32
	}{{"bos", g.BOS}, {"eos", g.EOS}, {"eot", g.EOT}, {"eom", g.EOM}, {"unknown", g.Unknown},
		{"padding", g.Pad}} {
		if t.id >= 0 {
			add("tokenizer.ggml."+t.name+"_token_id", uint32(t.id))
		}
	}
	add("tokenizer.ggml.eos_token_ids", g.Ends) // read by Ollama; llama.cpp ignores it
	add("tokenizer.ggml.add_bos_token", g.AddBOS)
	add("tokenizer.ggml.add_eos_token", g.AddEOS)
	if g.ChatTemplate != "" {
		add("tokenizer.chat_template", g.ChatTemplate)
	}
	if g.ToolTemplate != "" {
		add("tokenizer.chat_template.tool_use", g.ToolTemplate)
	}
	return pairs, nil
}

// ggufNames replaces parts of Hugging Face's tensor names by llama.cpp's (gguf-py/gguf/constants.py
// and tensor_mapping.py of the llama.cpp repository).
var ggufNames = strings.NewReplacer(
	"model.embed_tokens.", "token_embd.",
	"model.norm.", "output_norm.",
	"lm_head.", "output.",
	"model.layers.", "blk.",
	"input_layernorm.", "attn_norm.",
	"self_attn.q_proj.", "attn_q.",
	"self_attn.k_proj.", "attn_k.",
	"self_attn.v_proj.", "attn_v.",
	"self_attn.o_proj.", "attn_output.",
	"self_attn.q_norm.", "attn_q_norm.",
	"self_attn.k_norm.", "attn_k_norm.",
	"post_attention_layernorm.", "ffn_norm.",
	"mlp.gate_proj.", "ffn_gate.",
	"mlp.up_proj.", "ffn_up.",
	"mlp.down_proj.", "ffn_down.",
)

// ggufTensors returns the tensors of a file. A matrix whose rows are not a multiple of the type's
// block is written as f16, as llama.cpp's converter does. A tied head is left out: llama.cpp takes
// the embedding.
func ggufTensors(c model.Config, weights []model.Weight, matrix gguf.Type) []gguf.Tensor {
	var list []gguf.Tensor
	vector := func(name string, d []float32) {
		list = append(list, gguf.Tensor{Name: name, Type: gguf.F32, Shape: []int{len(d)},
			Read: func(dst []float32, lo int) error {
				copy(dst, d[lo:])
				return nil
			}})
	}
	switch ropeType(c) {
	case "llama3":
		vector("rope_freqs.weight", c.RopeDivisors())
	case "longrope":
		narrow := func(factors []float64) (d []float32) {
			for _, x := range factors {
				d = append(d, float32(x))
			}
			return d
		}
		vector("rope_factors_long.weight", narrow(c.RopeScaling.LongFactors))
		vector("rope_factors_short.weight", narrow(c.RopeScaling.ShortFactors))
	}
	f := ggufFamilies[c.Architecture]
	for _, w := range f.halves(weights) {
		t := gguf.Tensor{Name: f.name(w.Name), Type: matrix, Shape: w.Shape,
			Read: w.Read}
		switch {
		case len(w.Shape) == 1:
			t.Type = gguf.F32
		case len(w.Shape) == 3: // a convolution's taps
			t.Type, t.Shape = gguf.F32, []int{w.Shape[0], w.Shape[2]}
		case w.Shape[1]%matrix.Block() != 0:
			t.Type = gguf.F16
		}
		if to := deltaName(w.Name); to != "" {
			t.Name, t.Read = to, deltaRead(c.Mixer, w)
		} else if f.plusOne && len(w.Shape) == 1 && strings.HasSuffix(w.Name, "norm.weight") {
			t.Read = plusOne(w.Read)
		}
		if f.permuted &&
			(strings.HasSuffix(w.Name, ".q_proj.weight") ||
				strings.HasSuffix(w.Name, ".k_proj.weight")) {
			t.Read = interleaveRows(w, c.HeadDim)
		}
		list = append(list, t)
	}
	return list
}

// kvHeads returns the key/value heads of each layer, 0 of a short convolution; nil of families
// whose layers are all alike.
func kvHeads(c model.Config) (heads []int32) {
	if ggufArch(c) != "lfm2" {
		return nil
	}
	for i := range c.Layers {
		n := int32(c.KVHeads)
		if c.Mixer.Layers != nil && c.Mixer.Layers[i] {
			n = 0
		}
		heads = append(heads, n)
	}
	return heads
}

// name returns llama.cpp's name of a tensor.
func (f ggufFamily) name(of string) string {
	block, part, suffix := inBlock(of)
	if name := f.names[part]; name != "" {
		return block + name + suffix
	}
	return ggufNames.Replace(of)
}

// inBlock cuts the name of a layer's tensor, model.layers.N.PART.weight, into llama.cpp's beginning
// "blk.N.", PART and ".weight". Of other names PART is empty.
func inBlock(name string) (block, part, suffix string) {
	parts := strings.Split(name, ".")
	last := len(parts) - 1
	if last <= 3 {
		return "", "", ""
	}
	return "blk." + parts[2] + ".", strings.Join(parts[3:last], "."), "." + parts[last]
}

// halves returns weights with the halves of the matrices in f.split, under llama.cpp's names.
func (f ggufFamily) halves(weights []model.Weight) (list []model.Weight) {
	for _, w := range weights {
		block, part, suffix := inBlock(w.Name)
		names, ok := f.split[part]
		if !ok {
			list = append(list, w)
			continue
		}
		rows := w.Shape[0] / 2
		for i, name := range names {
			list = append(list, model.Weight{Name: block + name + suffix,
				Shape: []int{rows, w.Shape[1]}, Read: func(dst []float32, lo int) error {
					return w.Read(dst, i*rows*w.Shape[1]+lo)
				}})
		}
	}
	return list
}

// plusOne returns a reader of read's values with 1 added, as llama.cpp's converter stores the norms
// of Gemma.
func plusOne(read func([]float32, int) error) func([]float32, int) error {
	return func(dst []float32, lo int) error {
		err := read(dst, lo)
		for i := range dst {
			dst[i]++
		}
		return err
	}
}

// interleaveRows returns a reader of the rows of each head in the order of llama.cpp's Llama (rope
// type NORM in llama_model_rope_type: it rotates rows 2j and 2j+1 together, where Hugging Face
// rotates j and j+E/2): row j of the first half, row j of the second.
func interleaveRows(w model.Weight, headDim int) func([]float32, int) error {
	width := w.Shape[1]
	return func(dst []float32, lo int) error {
		for len(dst) > 0 {
			row, col := lo/width, lo%width
			in := row % headDim
			from := row - in + in%2*(headDim/2) + in/2
			n := min(width-col, len(dst))
			if err := w.Read(dst[:n], from*width+col); err != nil {
				return err
			}
			dst, lo = dst[n:], lo+n
		}
		return nil
	}
}
