package export

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/gguf"
	"gad/internal/gguf/gguftest"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/modeltest"
)

// The tensors of each architecture: names, shapes, types, and which of Hugging Face's
// weights each holds, as llama.cpp asks for them (src/models/{qwen2,qwen3,llama}.cpp of
// the llama.cpp repository).
func TestGGUFTensors(t *testing.T) {
	be := modeltest.Backend(t)
	common := []string{"token_embd.weight=model.embed_tokens.weight",
		"output_norm.weight=model.norm.weight"}
	for l := range 2 {
		n := func(s string) string { return strings.ReplaceAll(s, "N", string('0'+byte(l))) }
		for _, s := range []string{"attn_norm=input_layernorm", "attn_q=self_attn.q_proj",
			"attn_k=self_attn.k_proj", "attn_v=self_attn.v_proj", "attn_output=self_attn.o_proj",
			"ffn_norm=post_attention_layernorm", "ffn_gate=mlp.gate_proj", "ffn_up=mlp.up_proj",
			"ffn_down=mlp.down_proj"} {
			ours, theirs, _ := strings.Cut(s, "=")
			common = append(common, n("blk.N."+ours+".weight=model.layers.N."+theirs+".weight"))
		}
	}
	per := func(list ...string) (all []string) {
		for _, s := range list {
			all = append(all, strings.ReplaceAll(s, "N", "0"), strings.ReplaceAll(s, "N", "1"))
		}
		return all
	}
	for _, c := range []struct {
		arch, name string
		tied       bool
		more       []string
	}{
		{"Qwen2", "qwen2", true, per("blk.N.attn_q.bias=model.layers.N.self_attn.q_proj.bias",
			"blk.N.attn_k.bias=model.layers.N.self_attn.k_proj.bias",
			"blk.N.attn_v.bias=model.layers.N.self_attn.v_proj.bias")},
		{"Qwen3", "qwen3", false,
			append(
				per("blk.N.attn_q_norm.weight=model.layers.N.self_attn.q_norm.weight",
					"blk.N.attn_k_norm.weight=model.layers.N.self_attn.k_norm.weight"),
				"output.weight=lm_head.weight")},
		{"Llama", "llama", false, []string{"output.weight=lm_head.weight", "rope_freqs.weight="}},
		{"Mistral", "llama", false, []string{"output.weight=lm_head.weight"}},
	} {
		cfg := modeltest.Shape
		cfg.Vocab, cfg.Architecture, cfg.TieEmbeddings =
			modeltest.Tokenizer(t).Size()+3, c.arch, c.tied
		cfg.QKVBias, cfg.QKNorm = c.arch == "Qwen2", c.arch == "Qwen3"
		cfg.FFN = 48 // rows of ffn_down that q8_0 cannot hold
		if c.arch == "Llama" {
			cfg.RopeScaling = &model.RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4,
				OriginalMaxPosition: 64}
		}
		m, err := model.New(be, cfg, model.Options{Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Params() { // biases and norms that are not all alike
			if len(p.Shape) == 1 {
				x := make([]float32, p.Len())
				for i := range x {
					x[i] = float32(math.Sin(float64(i + len(p.Name))))
				}
				be.Upload(p.W, x)
			}
		}
		weights := map[string]model.Weight{}
		for _, w := range m.Weights() {
			weights[w.Name] = w
		}
		for kind, matrix := range map[string]gguf.Type{"f16": gguf.F16, "bf16": gguf.BF16,
			"q8_0": gguf.Q8_0} {
			file := gguf.File{Tensors: ggufTensors(cfg, m.Weights(), matrix)}
			var b strings.Builder
			if err := file.Write(&b); err != nil {
				t.Fatal(err)
			}
			got, err := gguftest.Parse([]byte(b.String()))
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Concat(common, c.more)
			if len(got.Tensors) != len(want) {
				t.Errorf("%s: %d tensors, expected %d: %q", c.arch, len(got.Tensors), len(want),
					got.Order)
			}
			for _, s := range want {
				ours, theirs, _ := strings.Cut(s, "=")
				x, ok := got.Tensors[ours]
				if !ok {
					t.Errorf("%s: %s is missing", c.arch, ours)
					continue
				}
				if theirs == "" { // the divisors of the frequencies
					if want := cfg.RopeDivisors(); x.Type != 0 || !slices.Equal(x.Values(), want) ||
						want[0] != 1 || want[len(want)-1] != 8 {
						t.Errorf("%s: %v", ours, x.Values())
					}
					continue
				}
				w := weights[theirs]
				type_ := uint32(matrix)
				switch {
				case len(w.Shape) == 1:
					type_ = 0
				case w.Shape[1] == 48 && matrix == gguf.Q8_0:
					type_ = 1
				}
				if x.Type != type_ || !slices.Equal(x.Shape, w.Shape) {
					t.Errorf("%s %s: %s: type %d shape %v, expected %d %v", c.arch, kind, ours,
						x.Type, x.Shape, type_, w.Shape)
					continue
				}
				rows := make([]float32, len(x.Values()))
				if err := w.Read(rows, 0); err != nil {
					t.Fatal(err)
				}
				if c.name == "llama" && (strings.Contains(ours, "attn_q.") ||
					strings.Contains(ours, "attn_k.")) {
					rows = turned(rows, cfg)
				}
				bound := map[uint32]float64{0: 0, 1: 0x1p-11, 30: 0x1p-8, 8: 0.01}[x.Type]
				for i, v := range x.Values() {
					if d := math.Abs(float64(v - rows[i])); d > bound*0.2 {
						t.Errorf("%s %s: %s: element %d is %g, expected %g", c.arch, kind, ours, i,
							v, rows[i])
						break
					}
				}
			}
		}
		m.Close()
	}
}

// turned puts the rows of each head as llama.cpp's Llama wants them, by its converter's
// definition: [heads, 2, E/2] becomes [heads, E/2, 2].
func turned(x []float32, c model.Config) []float32 {
	d, half := c.Hidden, c.HeadDim/2
	out := make([]float32, 0, len(x))
	for h := range len(x) / d / c.HeadDim {
		for j := range half {
			for part := range 2 {
				row := h*c.HeadDim + part*half + j
				out = append(out, x[row*d:(row+1)*d]...)
			}
		}
	}
	return out
}

// Parts of any size give the rows in the same order.
func TestInterleaved(t *testing.T) {
	const rows, width = 8, 3
	w := model.Weight{Shape: []int{rows, width}, Read: func(dst []float32, lo int) error {
		for i := range dst {
			dst[i] = float32(lo + i)
		}
		return nil
	}}
	read := interleaveRows(w, 4)
	var want []float32
	for _, row := range []int{0, 2, 1, 3, 4, 6, 5, 7} {
		want = append(want, float32(3*row), float32(3*row+1), float32(3*row+2))
	}
	for size := 1; size <= rows*width; size++ {
		got := make([]float32, rows*width)
		for lo := 0; lo < len(got); lo += size {
			if err := read(got[lo:min(lo+size, len(got))], lo); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %v, expected %v", size, got, want)
		}
	}
}

// What a file says of the model, and what llama.cpp's graphs cannot compute.
func TestGGUFPairs(t *testing.T) {
	cfg := modeltest.Shape
	cfg.Vocab, cfg.RopeTheta = modeltest.Tokenizer(t).Size()+2, 1e6
	pairs, err := pairsOf(cfg, modeltest.Tokenizer(t), "student", "q8_0")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, p := range pairs {
		got[p.Key] = p.Value
	}
	for key, want := range map[string]any{
		"general.architecture": "qwen2", "general.name": "student", "general.file_type": uint32(7),
		"general.quantization_version": uint32(2),
		"qwen2.block_count":            uint32(2), "qwen2.context_length": uint32(128),
		"qwen2.embedding_length": uint32(32), "qwen2.feed_forward_length": uint32(64),
		"qwen2.attention.head_count": uint32(4), "qwen2.attention.head_count_kv": uint32(2),
		"qwen2.attention.key_length": uint32(8), "qwen2.attention.value_length": uint32(8),
		"qwen2.rope.dimension_count": uint32(8), "qwen2.rope.freq_base": float32(1e6),
		"qwen2.attention.layer_norm_rms_epsilon": float32(1e-6),
		"qwen2.vocab_size":                       uint32(cfg.Vocab),
		"tokenizer.ggml.model":                   "gpt2", "tokenizer.ggml.pre": "qwen2",
		"tokenizer.ggml.eos_token_id":     uint32(modeltest.Tokenizer(t).EndOfTurn()),
		"tokenizer.ggml.eot_token_id":     uint32(modeltest.Tokenizer(t).EndOfTurn()),
		"tokenizer.ggml.padding_token_id": uint32(modeltest.Tokenizer(t).Pad()),
		"tokenizer.ggml.eos_token_ids":    modeltest.Tokenizer(t).EOS(),
		"tokenizer.ggml.add_bos_token":    false, "tokenizer.ggml.add_eos_token": false,
	} {
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("%s: %v, expected %v", key, got[key], want)
		}
	}
	if n := len(got["tokenizer.ggml.tokens"].([]string)); n != cfg.Vocab {
		t.Errorf("%d tokens for %d rows", n, cfg.Vocab)
	}
	if s := got["tokenizer.chat_template"].(string); !strings.Contains(s, "<|im_start|>") {
		t.Errorf("template %q", s)
	}
	for _, c := range []struct {
		change func(*model.Config)
		want   string
	}{
		{func(c *model.Config) { c.HeadDim = 16 }, "configuration: export: head_dim 16 with 4 heads and hidden_size 32: llama.cpp takes a Qwen2 only where their product is the hidden size: leave out --gguf"},
		{func(c *model.Config) { c.RopeScaling = &model.RopeScaling{} }, "configuration: export: rope type llama3 with Qwen2: llama.cpp has it with Llama only: leave out --gguf"},
		{func(c *model.Config) { c.Architecture = "Other" },
			"configuration: export: Other: files for llama.cpp are written of Gemma2, Gemma3, Granite, GraniteMoeHybrid, Lfm2, Llama, Ministral3, Mistral, Olmo2, Olmo3, Phi3, Qwen2, Qwen3, Qwen3_5, SmolLM3: leave out --gguf"},
		{func(c *model.Config) { c.Architecture, c.Window = "Mistral", 64 }, "configuration: export: sliding_window 64: llama.cpp computes Mistral without: leave out --gguf, or set sliding_window to null if no sequence is longer"},
		{func(c *model.Config) { c.RopeScaling = &model.RopeScaling{Type: "yarn"} },
			"configuration: export: rope type yarn: llama.cpp has it with truncate, beta_fast 32 and beta_slow 1: leave out --gguf"},
		{func(c *model.Config) { c.Vocab = 10 }, "tokenizer: tokenizer.json: ids up to 299: the model's vocab_size is 10: use the tokenizer that belongs to the model"},
	} {
		c2 := cfg
		c.change(&c2)
		if _, err := pairsOf(c2, modeltest.Tokenizer(t), "x", "f16"); err == nil ||
			err.Error() != c.want {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
}

// The files of every family that gad trains are read back as the same model: names, order of
// rotated rows, norms with 1 added, factors, windows. What llama.cpp computes of them was compared
// once (doc/LOG.md).
func TestGGUFOfFamilies(t *testing.T) {
	be := modeltest.Backend(t)
	tok := modeltest.Tokenizer(t)
	for folder, set := range map[string]map[string]any{
		"gemma3": {"num_hidden_layers": 7,
			"layer_types": slices.Concat(slices.Repeat([]string{"sliding_attention"}, 5),
				[]string{"full_attention", "sliding_attention"})},
		"gemma2":  nil,
		"granite": nil, "granite4_nope": nil, "lfm2": nil, "lfm2_bf16": nil, "olmo2": nil, "olmo3": nil,
		"llama_linear": nil, "ministral3": nil, "phi3": nil, "qwen3": nil, "qwen3_5": nil,
		"smollm3": {"num_hidden_layers": 5, "no_rope_layers": []int{1, 1, 1, 0, 1},
			"layer_types": nil, "use_sliding_window": false, "sliding_window": nil},
	} {
		raw, err := os.ReadFile(filepath.Join("../../testdata/model", folder, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		maps.Copy(config, set)
		config["vocab_size"] = tok.Size() + 3
		if strings.HasPrefix(folder, "gemma") {
			config["query_pre_attn_scalar"] = config["head_dim"]
		}
		for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
			delete(config, key)
		}
		dir := t.TempDir()
		if raw, err = json.Marshal(config); err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.ReadConfig(dir)
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		m, err := model.New(be, cfg, model.Options{Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Params() {
			if len(p.Shape) == 1 {
				x := make([]float32, p.Len())
				for i := range x {
					x[i] = float32(math.Sin(float64(i+len(p.Name)))) / 4
				}
				be.Upload(p.W, x)
			}
		}
		pairs, err := pairsOf(cfg, tok, "x", "f16")
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		file := gguf.File{Pairs: pairs, Tensors: ggufTensors(cfg, m.Weights(), gguf.F32)}
		path := filepath.Join(dir, "m.gguf")
		w, err := os.Create(path)
		if err == nil {
			err = errors.Join(file.Write(w), w.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := model.Load(be, path, model.Options{})
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		got := map[string][]float32{}
		for _, w := range again.Weights() {
			x := make([]float32, size(w))
			if err := w.Read(x, 0); err != nil {
				t.Fatal(err)
			}
			got[w.Name] = x
		}
		for _, w := range m.Weights() {
			x := make([]float32, size(w))
			if err := w.Read(x, 0); err != nil {
				t.Fatal(err)
			}
			for i := range x {
				if len(got[w.Name]) != len(x) || math.Abs(float64(x[i]-got[w.Name][i])) > 1e-6 {
					t.Errorf("%s: %s: element %d differs", folder, w.Name, i)
					break
				}
			}
		}
		a, b := cfg, again.Config()
		if a.AttnScale != 0 && math.Abs(a.AttnScale-b.AttnScale) > 1e-6 ||
			math.Abs(a.EmbedScale-b.EmbedScale) > 1e-4 || a.Window != b.Window ||
			math.Abs(a.LogitDivisor-b.LogitDivisor) > 1e-4 ||
			!slices.Equal(a.Sliding, b.Sliding) || !slices.Equal(a.NoRope, b.NoRope) ||
			a.ScoreCap != b.ScoreCap || a.LogitCap != b.LogitCap || a.LocalTheta != b.LocalTheta ||
			a.RopeTheta != b.RopeTheta || !alike(a, b) {
			t.Errorf("%s: wrote %+v\nread %+v", folder, a, b)
		}
		again.Close()
		m.Close()
	}
}

// alike reports whether a and b scale the rotary frequencies by the same rule, within the precision
// of float32.
func alike(a, b model.Config) bool {
	x, y := a.RopeScaling, b.RopeScaling
	if x == nil || y == nil {
		return x == y
	}
	return x.Type == y.Type && x.OriginalMaxPosition == y.OriginalMaxPosition &&
		math.Abs(x.Factor-y.Factor) < 1e-6 && math.Abs(x.AttentionFactor-y.AttentionFactor) < 1e-6 &&
		math.Abs(x.QueryBeta-y.QueryBeta) < 1e-6 &&
		slices.Equal(x.ShortFactors, y.ShortFactors) &&
		slices.Equal(x.LongFactors, y.LongFactors) && x.Stretched == y.Stretched &&
		a.RotaryDim == b.RotaryDim && a.MaxPosition == b.MaxPosition
}

func size(w model.Weight) int {
	n := 1
	for _, k := range w.Shape {
		n *= k
	}
	return n
}

// pairsOf returns the metadata of a file with the tokenizer.
func pairsOf(c model.Config, tok *tokenizer.Tokenizer, name, kind string) ([]gguf.Pair, error) {
	g, err := tok.GGML(c.Vocab)
	if err != nil {
		return nil, err
	}
	return ggufPairs(c, g, name, kind)
}
