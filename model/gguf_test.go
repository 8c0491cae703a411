package model

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/internal/gguf"
	"gad/model/internal/files"
)

const ggufFixtures = "../testdata/gguf"

// Each fixture as llama.cpp's converter writes it has the configuration of the folder, every
// weight of it bit for bit, and its log-probabilities.
func TestGGUFIsTheFolder(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(ggufFixtures, "*.gguf"))
	must(t, err)
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".gguf")
		if name == "types" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(fixtures, name)
			// what its config.json says of these, no file can: every sixth layer is full, queries
			// are scaled by heads
			if strings.HasPrefix(name, "gemma") {
				folder = edited(t, name, map[string]any{"query_pre_attn_scalar": 6,
					"layer_types": nil})
				b, err := os.ReadFile(filepath.Join(fixtures, name, "model.safetensors"))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(folder, "model.safetensors"), b, 0o666))
			}
			want, err := ReadConfig(folder)
			must(t, err)
			got, err := ReadConfig(path)
			must(t, err)
			// llama.cpp has them so
			if as := map[string]string{"Mistral": "Llama",
				"GraniteMoeHybrid": "Granite"}[want.Architecture]; as != "" {
				want.Architecture = as
			}
			// the file has divisors, which more than one rule may have
			if want.RopeScaling != nil && want.RopeScaling.Type != "linear" &&
				want.RopeScaling.Type != "yarn" {
				if !slices.Equal(got.RopeDivisors(), want.RopeDivisors()) {
					t.Errorf("divisors %v, want %v", got.RopeDivisors(), want.RopeDivisors())
				}
				got.RopeScaling = want.RopeScaling
			}
			got.raw, want.raw = nil, nil
			if got.InitRange = want.InitRange; !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			a, b := sameNames(t, path, folder)
			// 1 was added and is taken off; of Qwen3.5 an exponential too
			same := func(x, y float32) bool {
				return x == y || (strings.HasPrefix(name, "gemma") || name == "qwen3_5") &&
					math.Abs(float64(x-y)) < 1.2e-7
			}
			for _, tensor := range a.Names() {
				x, _ := a.Tensor(tensor)
				y, _ := b.Tensor(tensor)
				if !slices.Equal(x.Shape, y.Shape) {
					t.Fatalf("%s: %v, want %v", tensor, x.Shape, y.Shape)
				}
				p, q := make([]float32, x.Len()), make([]float32, x.Len())
				must(t, x.Read(p, 0))
				must(t, y.Read(q, 0))
				if !slices.EqualFunc(p, q, same) {
					t.Errorf("%s differs", tensor)
				}
				for lo := 0; lo < len(p); lo += 7 { // parts that begin within rows
					part := make([]float32, min(7, len(p)-lo))
					must(t, x.Read(part, lo))
					if !slices.Equal(part, p[lo:lo+len(part)]) {
						t.Fatalf("%s: elements from %d differ", tensor, lo)
					}
				}
			}
			m, err := Load(ref.New(), path, Options{})
			must(t, err)
			defer m.Close()
			e := readExpected(t, name)
			if strings.HasPrefix(name, "gemma") {
				whole, err := Load(ref.New(), folder, Options{})
				must(t, err)
				defer whole.Close()
				for i, v := range e.Values {
					e.Values[i].Logp, e.Values[i].Entropy, err = whole.LogProbs(e.seqs(),
						v.Temperature)
					must(t, err)
				}
			}
			for _, v := range e.Values {
				logp, ent, err := m.LogProbs(e.seqs(), v.Temperature)
				must(t, err)
				near(t, "log-probability", logp, v.Logp, 1e-4)
				near(t, "entropy", ent, v.Entropy, 1e-4)
			}
		})
	}
}

// What is saved of a GGUF model is a Hugging Face folder of the same weights, in float32.
func TestGGUFSavesAFolder(t *testing.T) {
	m, err := Load(ref.New(), filepath.Join(ggufFixtures, "llama3_sharded.gguf"), Options{})
	must(t, err)
	defer m.Close()
	folder := t.TempDir()
	must(t, m.Save(dir(folder).create, "", 0))
	again, err := Load(ref.New(), folder, Options{})
	must(t, err)
	defer again.Close()
	if c := again.Config(); c.DType != "float32" || c.RopeScaling == nil {
		t.Errorf("%+v", c)
	}
	for i, p := range again.params {
		q := m.params[i]
		a, b := make([]float32, p.Len()), make([]float32, p.Len())
		again.be.Download(a, p.W)
		m.be.Download(b, q.W)
		if p.Name != q.Name || !slices.Equal(a, b) {
			t.Errorf("%s differs", p.Name)
		}
	}
}

// Adapters on a GGUF file name it as their base and know its digest.
func TestAdaptersOnGGUF(t *testing.T) {
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	defer be.Close()
	top := t.TempDir()
	base := filepath.Join(top, "base.gguf")
	b, err := os.ReadFile(filepath.Join(ggufFixtures, "qwen3.gguf"))
	must(t, err)
	must(t, os.WriteFile(base, b, 0o666))
	m, err := Load(be, base, Options{Trainable: true, LoRA: LoRA{Rank: 2, Targets: "q_proj"},
		Seed: 1})
	must(t, err)
	adapters := filepath.Join(top, "adapters")
	must(t, os.Mkdir(adapters, 0o777))
	must(t, m.Save(dir(adapters).create, "", 0))
	must(t, m.Close())
	a, err := ReadAdapterConfig(adapters)
	must(t, err)
	if a.Base != base || !IsAdapter(adapters) || IsAdapter(base) {
		t.Errorf("base %s", a.Base)
	}
	if from, err := BaseDir(adapters); err != nil || from != base {
		t.Errorf("base %s, %v", from, err)
	}
	if _, err := ReadConfig(adapters); err != nil {
		t.Error(err)
	}
	m, err = Load(be, adapters, Options{})
	must(t, err)
	must(t, m.Close())
	at := bytes.Index(b, []byte("general.name")) + len("general.name") + 12
	b[at] ^= 1 // another file, whose model is as good
	must(t, os.WriteFile(base, b, 0o666))
	if _, err = Load(be, adapters, Options{}); err == nil ||
		!strings.Contains(err.Error(), "give the base that it was trained on") {
		t.Errorf("another base: %v", err)
	}
}

// smallGGUF is the content of a GGUF file of a Llama with one layer of 8 elements.
func smallGGUF() (pairs map[string]any, tensors map[string][]int) {
	return map[string]any{"general.architecture": "llama", "general.type": "model",
			"llama.block_count": uint32(1), "llama.context_length": uint32(64),
			"llama.embedding_length": uint32(8), "llama.feed_forward_length": uint32(16),
			"llama.attention.head_count":             uint32(2),
			"llama.attention.layer_norm_rms_epsilon": float32(1e-5),
			"llama.rope.freq_base":                   float32(10000)},
		map[string][]int{"token_embd.weight": {5, 8}, "output_norm.weight": {8},
			"blk.0.attn_norm.weight": {8}, "blk.0.ffn_norm.weight": {8},
			"blk.0.attn_q.weight": {8, 8}, "blk.0.attn_k.weight": {8, 8},
			"blk.0.attn_v.weight": {8, 8}, "blk.0.attn_output.weight": {8, 8},
			"blk.0.ffn_gate.weight": {16, 8}, "blk.0.ffn_up.weight": {16, 8},
			"blk.0.ffn_down.weight": {8, 16}}
}

// writeGGUF writes such a file; its tensors hold the numbers that fill gives.
func writeGGUF(t *testing.T, path string, pairs map[string]any, tensors map[string][]int,
	fill func(name string, i int) float32) {
	t.Helper()
	var f gguf.File
	for key, v := range pairs {
		f.Pairs = append(f.Pairs, gguf.Pair{Key: key, Value: v})
	}
	for name, shape := range tensors {
		f.Tensors = append(f.Tensors,
			gguf.Tensor{Name: name, Type: gguf.F32, Shape: shape,
				Read: func(dst []float32, lo int) error {
					for i := range dst {
						dst[i] = fill(name, lo+i)
					}
					return nil
				}})
	}
	var b bytes.Buffer
	must(t, f.Write(&b))
	must(t, os.WriteFile(path, b.Bytes(), 0o666))
}

// What gad would compute wrongly is refused by name.
func TestRefusedGGUF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	one := func(string, int) float32 { return 1 }
	type edit = func(p map[string]any, w map[string][]int)
	set := func(key string, v any) edit {
		return func(p map[string]any,
			_ map[string][]int) {
			p[key] = v
		}
	}
	without := func(name string) edit {
		return func(p map[string]any, w map[string][]int) { delete(p, name); delete(w, name) }
	}
	with := func(name string, shape ...int) edit {
		return func(_ map[string]any, w map[string][]int) { w[name] = shape }
	}
	for _, c := range []struct {
		name string
		edit edit
		fill func(string, int) float32
		want string // "": it is read
	}{
		{"as it is", func(map[string]any, map[string][]int) {}, nil, ""},
		{"no scaling", set("llama.rope.scaling.type", "none"), nil, ""},
		{"no experts", set("llama.expert_count", uint32(0)), nil, ""},
		{"the same number for each layer", set("llama.attention.head_count_kv", []int32{1, 1}), nil,
			"weights and config.json do not belong together: 2 tensors of another shape"},
		{"untied", with("output.weight", 5, 8), nil, ""},
		{"divisors of 1", with("rope_freqs.weight", 2), nil, ""},
		{"another architecture", set("general.architecture", "mamba"), nil,
			`key "general.architecture": "mamba": not supported: use a model of architecture ` + "gemma2, gemma3, granite, lfm2, llama, mistral3, olmo2, phi3, qwen2, qwen3, qwen35 or smollm3"},
		{"no architecture", without("general.architecture"), nil, `key "general.architecture": is missing: not a model`},
		{"an adapter", set("general.type", "adapter"), nil, `key "general.type": "adapter": not supported: give the file of the model itself`},
		{"a part", set("split.count", uint32(3)), nil, `key "split.count": is one of 3 parts: not supported: join them (llama-gguf-split --merge) or get the whole file`},
		{"no layers", without("llama.block_count"), nil, `key "llama.block_count": is missing, or not a positive number`},
		{"half a layer", set("llama.block_count", float32(1.5)), nil, `key "num_hidden_layers": 1.5: expected a whole number`},
		{"layers of a text", set("llama.block_count", "1"), nil, `key "llama.block_count": is missing, or not a positive number`},
		{"layers that differ", set("llama.feed_forward_length", []int32{16, 32}), nil, `key "llama.feed_forward_length": differs by layer: not supported: use a model whose layers are alike`},
		{"experts", set("llama.expert_count", uint32(8)), nil, `key "llama.expert_count": 8: not supported: use a model without it`},
		{"a window", set("llama.attention.sliding_window", uint32(4096)), nil, `key "llama.attention.sliding_window": 4096: not supported: use a model without it`},
		{"an unknown key", set("llama.attention.magic", float32(2)), nil, `key "llama.attention.magic": 2: not supported: use a model without it`},
		{"longrope", set("llama.rope.scaling.type", "longrope"), nil, `key "llama.rope.scaling.type": "longrope": not supported: use a model with linear, yarn or no scaling, or of Llama 3`},
		{"yarn without a factor", set("llama.rope.scaling.type", "yarn"), nil, `rope scaling yarn: factor 0, original_max_position_embeddings 64`},
		{"two scalings", func(p map[string]any, w map[string][]int) {
			p["llama.rope.scaling.type"], p["llama.rope.scaling.factor"], w["rope_freqs.weight"] =
				"linear", float32(2), []int{2}
		}, nil, `tensor "rope_freqs.weight": beside rope.scaling.type linear: not supported: use a model with one of them`},
		{"a factor of a text", set("llama.rope.scaling.factor", "2"), nil, `key "llama.rope.scaling.factor": expected a number`},
		{"an old linear factor", set("llama.rope.scale_linear", float32(2)), nil, ""},
		{"part of a head turns", set("llama.rope.dimension_count", uint32(2)), nil, `key "llama.rope.dimension_count": 2, but heads have 4 elements: not supported: only full rotation of keys as long as values is implemented`},
		{"short values", set("llama.attention.value_length", uint32(2)), nil, `key "llama.attention.value_length": 2, but heads have 4 elements: not supported`},
		{"other divisors", with("rope_freqs.weight", 2), func(name string, i int) float32 { return float32(3 - i) }, `tensor "rope_freqs.weight": divides the frequencies otherwise than Llama 3 does: not supported`},
		{"divisors that are no numbers", with("rope_freqs.weight", 2), func(name string, i int) float32 { return float32(math.Inf(1)) }, `tensor "rope_freqs.weight": has +Inf: expected divisors of 1 or more`},
		{"too many divisors", with("rope_freqs.weight", 3), nil, `tensor "rope_freqs.weight": 3 divisors: expected 2, one for each pair of a head`},
		{"biases", with("blk.0.attn_q.bias", 8), nil, `key "attention_bias": true: not supported`},
		{"no embedding", without("token_embd.weight"), nil, `tensor "token_embd.weight": is missing, or no matrix: not a whole model`},
		{"a tensor too few", without("blk.0.ffn_up.weight"), nil, `weights and config.json do not belong together: 1 tensors missing: model.layers.0.mlp.up_proj.weight`},
		{"a tensor too many", with("blk.0.ffn_gate_inp.weight", 8, 8), nil, `weights and config.json do not belong together: 1 tensors unexpected: blk.0.ffn_gate_inp.weight`},
		{"another shape", with("blk.0.ffn_up.weight", 8, 8), nil, `weights and config.json do not belong together: 1 tensors of another shape: model.layers.0.mlp.up_proj.weight is [8 8], config.json says [16 8]`},
		{"not finite", func(map[string]any, map[string][]int) {}, func(name string, i int) float32 {
			if name == "blk.0.attn_k.weight" && i == 9 {
				return float32(math.Inf(1))
			}
			return 1
		}, `tensor "model.layers.0.self_attn.k_proj.weight": element 17: +Inf: not finite`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pairs, tensors := smallGGUF()
			c.edit(pairs, tensors)
			fill := c.fill
			if fill == nil {
				fill = one
			}
			// the writer refuses such values
			if c.name == "not finite" || strings.HasPrefix(c.name, "divisors that") {
				writeRaw(t, path, pairs, tensors, fill)
			} else {
				writeGGUF(t, path, pairs, tensors, fill)
			}
			m, err := Load(ref.New(), path, Options{})
			if err == nil {
				m.Close()
			}
			if (err == nil) != (c.want == "") || err != nil &&
				!strings.HasPrefix(err.Error(), "model: "+path+": "+c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

// writeRaw is writeGGUF for numbers that the writer refuses: they are put in afterwards.
func writeRaw(t *testing.T, path string, pairs map[string]any, tensors map[string][]int,
	fill func(string, int) float32) {
	t.Helper()
	const mark = 0x1.23456p3
	writeGGUF(t, path, pairs, tensors, func(name string, i int) float32 {
		if x := fill(name, i); x-x == 0 {
			return x
		}
		return mark
	})
	b, err := os.ReadFile(path)
	must(t, err)
	le := func(x float32) []byte {
		v := math.Float32bits(x)
		return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
	}
	must(t, os.WriteFile(path, bytes.ReplaceAll(b, le(mark), le(float32(math.Inf(1)))), 0o666))
}

// Damaged GGUF models are refused or read; nothing else happens.
func TestHostileGGUF(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(ggufFixtures, "qwen3.gguf"))
	must(t, err)
	path := filepath.Join(t.TempDir(), "m.gguf")
	be := ref.New()
	read, refused := 0, 0
	end := bytes.Index(good, []byte("t96")) // behind it are tensors
	for i := 0; i < 400; i++ {
		b := bytes.Clone(good)
		at := (i * 7919) % (end + 3000)
		b[at] ^= 1 << (i % 8)
		if i%10 == 0 {
			b = b[:at]
		}
		must(t, os.WriteFile(path, b, 0o666))
		m, err := Load(be, path, Options{})
		if err != nil {
			if refused++; !strings.HasPrefix(err.Error(), "model: ") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("case %d: %v", i, err)
			}
			continue
		}
		read++
		m.Close()
	}
	if read == 0 || refused == 0 {
		t.Errorf("%d read, %d refused: they do not test both ways", read, refused)
	}
	t.Logf("%d damaged models: %d refused, %d read", read+refused, refused, read)
}

// sameNames opens the tensors of two models, which must have the same names.
func sameNames(t *testing.T, got, want string) (a, b files.Tensors) {
	t.Helper()
	of := func(path string) files.Tensors {
		c, err := ReadConfig(path)
		must(t, err)
		f, err := files.PlaceOf(path).Tensors()
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return c.arrangement().View(f)
	}
	a, b = of(got), of(want)
	if !slices.Equal(a.Names(), b.Names()) {
		t.Fatalf("tensors %v, want %v", a.Names(), b.Names())
	}
	return a, b
}

// A real file, named by GAD_REAL_GGUF, has the weights bit for bit that the folder
// GAD_REAL_HF has, which transformers made of it (float32).
func TestRealGGUF(t *testing.T) {
	path, folder := os.Getenv("GAD_REAL_GGUF"), os.Getenv("GAD_REAL_HF")
	if path == "" || folder == "" {
		t.Skip("GAD_REAL_GGUF and GAD_REAL_HF name no real model")
	}
	got, err := ReadConfig(path)
	must(t, err)
	want, err := ReadConfig(folder)
	must(t, err)
	got.raw, want.raw = nil, nil
	if math.Abs(got.RMSEps-want.RMSEps) < 1e-12 { // transformers keeps the float32 next to it
		got.RMSEps = want.RMSEps
	}
	if got.InitRange = want.InitRange; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	a, b := sameNames(t, path, folder)
	values, differ := 0, 0
	for _, name := range a.Names() {
		x, _ := a.Tensor(name)
		y, _ := b.Tensor(name)
		p, q := make([]float32, x.Len()), make([]float32, y.Len())
		must(t, x.Read(p, 0))
		must(t, y.Read(q, 0))
		for i := range p {
			if values++; math.Float32bits(p[i]) != math.Float32bits(q[i]) {
				differ++
			}
		}
	}
	t.Logf("%d tensors, %d values: %d differ", len(a.Names()), values, differ)
	if differ > 0 {
		t.Fail()
	}
}
