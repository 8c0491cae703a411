package export

import (
	"fmt"
	"io"
	"maps"
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

// ggufKinds are the types that GGUF writes matrices in, with llama.cpp's number
// for such a file (llama_ftype in include/llama.h of the llama.cpp repository).
var ggufKinds = map[string]struct {
	matrix gguf.Type
	file   uint32
}{
	"f16":  {gguf.F16, 1},
	"bf16": {gguf.BF16, 32},
	"q8_0": {gguf.Q8_0, 7},
}

// CheckGGUF refuses what GGUF cannot write: another kind than f16, bf16 and q8_0,
// and a file dst whose name does not end in .gguf.
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

// GGUF writes the student of the checkpoint dir as one file dst that llama.cpp
// loads: weights, adapters added where it has some, tokenizer and chat template. kind is
// "f16", "bf16" or "q8_0", of the matrices; vectors are float32. The file is there whole
// or not at all.
func GGUF(fsys checkpoint.FS, dir, dst, kind string) error {
	fsys = vfs.OrDisk(fsys)
	return writeGGUF(fsys, filepath.Join(dir, "actor"), dst, kind, func() error {
		if _, err := saved.Read(fsys, dir); err != nil {
			return err
		}
		return checkpoint.Verify(fsys, dir)
	})
}

// ModelGGUF is GGUF of the language model at src, a folder or a GGUF file.
func ModelGGUF(fsys checkpoint.FS, src, dst, kind string) error {
	return writeGGUF(vfs.OrDisk(fsys), src, dst, kind, func() error { return nil })
}

// writeGGUF writes the model at src, once verify has found it whole.
func writeGGUF(fsys checkpoint.FS, src, dst, kind string, verify func() error) error {
	if err := CheckGGUF(dst, kind); err != nil {
		return err
	}
	// before the model is read; WriteFile asks again
	if err := checkpoint.Absent(fsys, dst, "file"); err != nil {
		return err
	}
	if err := verify(); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(src)
	if err != nil {
		return err
	}
	tok, err := saved.Tokenizer(src)
	if err != nil {
		return err
	}
	pairs, err := ggufPairs(cfg, tok, strings.TrimSuffix(filepath.Base(dst), ".gguf"), kind)
	if err != nil {
		return err
	}
	return reading(src, model.LM, func(m *model.Model) error {
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

// ggufArchitectures are the names of architectures, as llama.cpp has them. Mistral is Llama's
// graph there, without a window. Of an architecture that is missing, names and values of tensors
// have not been compared with llama.cpp's.
var ggufArchitectures = map[string]string{"Qwen2": "qwen2", "Qwen3": "qwen3", "Llama": "llama",
	"Mistral": "llama"}

func ggufArch(c model.Config) string { return ggufArchitectures[c.Architecture] }

// ggufPairs is all that a file says beside its tensors. Keys and their meaning are those
// of docs/gguf.md of the ggml repository, and of src/llama-arch.cpp and src/llama-model.cpp
// of the llama.cpp repository, which read them.
func ggufPairs(c model.Config, tok *tokenizer.Tokenizer, name, kind string) ([]gguf.Pair, error) {
	arch := ggufArch(c)
	switch {
	case arch == "":
		return nil,
			fmt.Errorf("%w: export: %s: files for llama.cpp are written of %s: leave out --gguf",
				config.ErrConfig, c.Architecture,
				strings.Join(slices.Sorted(maps.Keys(ggufArchitectures)), ", "))
	case c.Window > 0 && c.Window < c.MaxPosition:
		return nil, fmt.Errorf("%w: export: sliding_window %d: llama.cpp computes %s without: leave out --gguf, or set sliding_window to null if no sequence is longer", config.ErrConfig, c.Window, c.Architecture)
	case c.RopeScaling != nil && c.RopeScaling.Type != "" && c.RopeScaling.Type != "llama3":
		return nil, fmt.Errorf("%w: export: rope type %s: files for llama.cpp are written with default and llama3: leave out --gguf", config.ErrConfig, c.RopeScaling.Type)
	case arch == "qwen2" && c.Heads*c.HeadDim != c.Hidden:
		return nil, fmt.Errorf("%w: export: head_dim %d with %d heads and hidden_size %d: llama.cpp takes a Qwen2 only where their product is the hidden size: leave out --gguf", config.ErrConfig, c.HeadDim, c.Heads, c.Hidden)
	case arch != "llama" && c.RopeScaling != nil:
		return nil, fmt.Errorf("%w: export: rope type llama3 with %s: llama.cpp has it with Llama only: leave out --gguf", config.ErrConfig, c.Architecture)
	}
	g, err := tok.GGML(c.Vocab)
	if err != nil {
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
	of("context_length", c.MaxPosition)
	of("embedding_length", c.Hidden)
	of("feed_forward_length", c.FFN)
	of("attention.head_count", c.Heads)
	of("attention.head_count_kv", c.KVHeads)
	of("attention.key_length", c.HeadDim)
	of("attention.value_length", c.HeadDim)
	of("rope.dimension_count", c.HeadDim)
	of("vocab_size", c.Vocab)
	add(arch+".attention.layer_norm_rms_epsilon", float32(c.RMSEps))
	add(arch+".rope.freq_base", float32(c.RopeTheta))

	add("tokenizer.ggml.model", "gpt2")
	add("tokenizer.ggml.pre", g.Pre)
	add("tokenizer.ggml.tokens", g.Tokens)
	add("tokenizer.ggml.token_type", g.Types)
	add("tokenizer.ggml.merges", g.Merges)
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
	return pairs, nil
}

// ggufNames are llama.cpp's names for parts of Hugging Face's (gguf-py/gguf/constants.py
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

// ggufTensors are the tensors of a file. A matrix whose rows are no multiple of the
// type's block is written as f16, as llama.cpp's converter does. A tied head is left
// out: llama.cpp takes the embedding.
func ggufTensors(c model.Config, weights []model.Weight, matrix gguf.Type) []gguf.Tensor {
	var list []gguf.Tensor
	if d := c.RopeDivisors(); d != nil {
		list = append(list, gguf.Tensor{Name: "rope_freqs.weight", Type: gguf.F32,
			Shape: []int{len(d)}, Read: func(dst []float32, lo int) error {
				copy(dst, d[lo:])
				return nil
			}})
	}
	for _, w := range weights {
		t := gguf.Tensor{Name: ggufNames.Replace(w.Name), Type: matrix, Shape: w.Shape,
			Read: w.Read}
		switch {
		case len(w.Shape) == 1:
			t.Type = gguf.F32
		case w.Shape[1]%matrix.Block() != 0:
			t.Type = gguf.F16
		}
		if ggufArch(c) == "llama" &&
			(strings.HasSuffix(w.Name, ".q_proj.weight") ||
				strings.HasSuffix(w.Name, ".k_proj.weight")) {
			t.Read = interleaved(w, c.HeadDim)
		}
		list = append(list, t)
	}
	return list
}

// interleaved reads the rows of each head in the order in which llama.cpp's Llama wants
// them (rope type NORM in llama_model_rope_type: it turns rows 2j and 2j+1 together,
// where Hugging Face's turns j and j+E/2): row j of the first half, row j of the second.
func interleaved(w model.Weight, headDim int) func([]float32, int) error {
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
