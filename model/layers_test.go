package model

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
	"gad/internal/safetensors"
	"gad/model/internal/files"
)

func TestParseLayers(t *testing.T) {
	for text, want := range map[string][]int{
		"0": {0}, "3,1": {1, 3}, "2-4": {2, 3, 4},
		"0-28:2": {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28},
		"0-28:9": {0, 9, 18, 27}, "29, 0-2": {0, 1, 2, 29}, "5-5:3": {5},
	} {
		got, err := ParseLayers(text, 30)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	const rule = ": expected layers such as 0,1,5-9 or 0-29:2; the model has 30, 0 to 29"
	for text, want := range map[string]string{
		"":               `"": "" is no layer number` + rule,
		"1,,2":           `"1,,2": "" is no layer number` + rule,
		"0-30:2":         `"0-30:2": there is no layer 30` + rule,
		"0-99999999999":  `"0-99999999999": "99999999999" is no layer number` + rule,
		"-1":             `"-1": "" is no layer number` + rule,
		"4-2":            `"4-2": "4-2" ends before it begins` + rule,
		"0-4:0":          `"0-4:0": "0-4:0" has a step of 0` + rule,
		"4:2":            `"4:2": "4:2" has a step and no range` + rule,
		"0-4-8":          `"0-4-8": "4-8" is no layer number` + rule,
		"first":          `"first": "first" is no layer number` + rule,
		"0-4:2,2":        `"0-4:2,2": layer 2 is named twice: each of the model's 30 layers is kept once or left out`,
		"0-9223372036:1": `"0-9223372036:1": "9223372036" is no layer number` + rule,
	} {
		if got, err := ParseLayers(text, 30); err == nil || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

// deep writes a folder of five layers with random weights, matrices in matrix and vectors
// in vector, and settings of its own in config.json. In left-out layers nothing is added
// to the residual stream.
func deep(t *testing.T, be compute.Backend, arch string, matrix, vector safetensors.DType,
	kept []int, settings map[string]any) string {
	t.Helper()
	c := tiny(arch)
	c.Layers = 5
	if c.Sliding != nil {
		c.Sliding = []bool{true, true, false, true, true}
	}
	if c.NoRope != nil {
		c.NoRope = []bool{false, true, false, true, false}
	}
	if c.Mixer.Layers != nil {
		c.Mixer.Layers = []bool{true, false, false, true, true}
	}
	m, err := New(be, c, Options{Seed: 9})
	must(t, err)
	defer m.Close()
	shake(m)
	var weights []files.Weight
	for _, p := range m.params {
		dt := matrix
		if len(p.Shape) == 1 {
			dt = vector
		}
		for i, b := range m.blocks {
			if (p == b.wo || p == b.down) && !slices.Contains(kept, i) {
				m.fill(p, func(int) float32 { return 0 })
			}
		}
		weights = append(weights, m.weight(p.Name, p.Shape, p.W, dt))
	}
	d := t.TempDir()
	must(t, m.Save(dir(d).create, "float32", 0))
	must(t, safetensors.WriteFolder(dir(d).create, c.streams(weights), 4000, nil))
	must(t, os.Remove(filepath.Join(d, "model.safetensors")))
	path := filepath.Join(d, "config.json")
	raw, err := os.ReadFile(path)
	must(t, err)
	keys := map[string]any{}
	must(t, json.Unmarshal(raw, &keys))
	maps.Copy(keys, settings)
	must(t, os.WriteFile(path, []byte(mustJSON(t, keys)), 0o600))
	return d
}

// Some layers of a model have the whole one's bits in the whole one's types, tensor by
// tensor; config.json differs in what counts layers. All layers are the same model.
func TestLoadLayers(t *testing.T) {
	be := ref.New()
	types := []string{"a", "b", "c", "d", "e"}
	dtypes := [][2]safetensors.DType{{safetensors.BF16, safetensors.F32},
		{safetensors.F16, safetensors.F16}, {safetensors.F32, safetensors.F32},
		{safetensors.BF16, safetensors.BF16}}
	for n, arch := range architectures {
		typesOf := dtypes[n%len(dtypes)]
		whole := deep(t, be, arch, typesOf[0], typesOf[1], nil,
			map[string]any{"layer_names": types, "other_list": types, "max_window_layers": 3,
				"eos_token_id": 7})
		in, err := safetensors.OpenFolder(whole)
		must(t, err)
		defer in.Close()
		for _, kept := range [][]int{{0, 2, 4}, {1}, {0, 1, 2, 3, 4}} {
			m, err := Load(be, whole, Options{Layers: kept})
			must(t, err)
			part := t.TempDir()
			must(t, m.Save(dir(part).create, "", 0))
			must(t, m.Close())
			out, err := safetensors.OpenFolder(part)
			must(t, err)
			defer out.Close()
			if want := len(in.Names()) * len(kept) / 5; len(kept) == 5 && len(out.Names()) != want {
				t.Errorf("%s %v: %d tensors, want %d", arch, kept, len(out.Names()), want)
			}
			seen := map[string]bool{}
			for _, name := range out.Names() {
				was := wholeName(name, kept)
				a, _ := out.Tensor(name)
				b, ok := in.Tensor(was)
				if !ok || a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) ||
					!bytes.Equal(a.Data, b.Data) {
					t.Errorf("%s %v: %s is not the whole model's %s", arch, kept, name, was)
				}
				seen[was] = true
			}
			for _, name := range in.Names() {
				var left bool
				for i := range 5 {
					left = left || !slices.Contains(kept, i) &&
						strings.HasPrefix(name, wholeName("model.layers.0.", []int{i}))
				}
				if seen[name] == left {
					t.Errorf("%s %v: %s is kept: %t", arch, kept, name, seen[name])
				}
			}
			var was, is map[string]any
			for path, v := range map[string]*map[string]any{whole: &was, part: &is} {
				b, err := os.ReadFile(filepath.Join(path, "config.json"))
				must(t, err)
				must(t, json.Unmarshal(b, v))
			}
			was["num_hidden_layers"] = len(kept)
			for _, key := range []string{"layer_types", "no_rope_layers"} {
				if list, ok := was[key].([]any); ok {
					was[key] = Pick(list, kept)
				}
			}
			was["torch_dtype"] = map[safetensors.DType]string{safetensors.BF16: "bfloat16",
				safetensors.F16: "float16", safetensors.F32: "float32"}[typesOf[0]]
			var cut []string
			full := 0
			for _, l := range kept {
				cut = append(cut, types[l])
				if l < 3 {
					full++
				}
			}
			was["layer_names"], was["max_window_layers"] = cut, full
			if a, b := mustJSON(t, is), mustJSON(t, was); a != b {
				t.Errorf("%s %v: config.json\n%s, want\n%s", arch, kept, a, b)
			}
		}
	}
}

// A model whose left-out layers add nothing gives the log-probabilities of the whole one.
func TestLayersThatAddNothing(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			kept := []int{0, 3}
			d := deep(t, be, arch, safetensors.F32, safetensors.F32, kept, nil)
			logp := func(o Options) []float32 {
				m, err := Load(be, d, o)
				must(t, err)
				defer m.Close()
				l, _, err := m.LogProbs(seqsOf(29, 9, 17), 1)
				must(t, err)
				return slices.Concat(l...)
			}
			same(t, arch, logp(Options{Layers: kept}), logp(Options{}))
			if slices.Equal(logp(Options{Layers: []int{3}}), logp(Options{})) {
				t.Errorf("%s: a layer that adds something can be left out unseen", arch)
			}
		}
	})
}

func TestLoadLayersRefuses(t *testing.T) {
	be := ref.New()
	whole := deep(t, be, "Qwen2", safetensors.F32, safetensors.F32, nil, nil)
	adapters := t.TempDir()
	m, err := Load(be, whole, Options{LoRA: LoRA{Rank: 2, Alpha: 4}})
	must(t, err)
	must(t, m.Save(dir(adapters).create, "", 0))
	must(t, m.Close())
	const merge = ": layers are taken out of whole models only, not beside LoRA adapters: merge them first (gad export --merge)"
	for _, x := range []struct {
		dir  string
		o    Options
		want string
	}{
		{whole, Options{Layers: []int{0, 5}},
			"model: " + whole + ": layers [0 5]: expected ascending numbers from 0 to 4"},
		{whole, Options{Layers: []int{2, 1}},
			"model: " + whole + ": layers [2 1]: expected ascending numbers from 0 to 4"},
		{whole, Options{Layers: []int{}}, `model: config: key "num_hidden_layers": 0: expected 1 to 1024`},
		{whole, Options{Layers: []int{1}, LoRA: LoRA{Rank: 2}}, "model: " + whole + merge},
		{adapters, Options{Layers: []int{1}}, "model: " + adapters + merge},
		{filepath.Join(fixtures, "qwen2_scorer"), Options{Layers: []int{1}}, "model: " + filepath.Join(fixtures, "qwen2_scorer") + ": a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder"},
	} {
		if m, err := Load(be, x.dir, x.o); err == nil || err.Error() != x.want {
			t.Errorf("%v, %v, want %s", m, err, x.want)
		}
	}
}

// Whatever tells the layers of a family apart, a rule of config.json or a list, a model of
// some layers has that of the kept ones, also when it is read again.
func TestLayersKeepTheirKind(t *testing.T) {
	for _, x := range []struct {
		name  string
		edits map[string]any
	}{
		{"gemma3", map[string]any{"layer_types": nil, "sliding_window_pattern": 3}},
		{"smollm3", map[string]any{"no_rope_layers": nil, "no_rope_layer_interval": 3}},
		{"smollm3", map[string]any{"no_rope_layers": nil, "no_rope_layer_interval": nil}},
	} {
		x.edits["num_hidden_layers"] = 8
		if _, ok := x.edits["layer_types"]; !ok {
			x.edits["layer_types"] = nil
		}
		whole, err := ReadConfig(edited(t, x.name, x.edits))
		must(t, err)
		for _, layers := range [][]int{{2, 5}, {0, 1, 3, 7}, {0}, {3}, {0, 1, 2, 3, 4, 5, 6, 7}} {
			part, err := whole.keepLayers(layers)
			must(t, err)
			for i, l := range layers {
				if was, is :=
					whole.spec(LM), part.spec(LM); is.Layers[i].Window != was.Layers[l].Window ||
					(is.Layers[i].Rope < 0) != (was.Layers[l].Rope < 0) ||
					is.Layers[i].Rope >= 0 &&
						is.Ropes[is.Layers[i].Rope] != was.Ropes[was.Layers[l].Rope] {
					t.Errorf("%s %v: layer %d is %+v, it was %+v", x.name, layers, l, is.Layers[i],
						was.Layers[l])
				}
			}
			b, err := part.encode(LM, "float32")
			must(t, err)
			again, err := parseConfig(b)
			must(t, err)
			again.DType, again.raw, part.raw = part.DType, nil, nil
			if !reflect.DeepEqual(again, part) {
				t.Errorf("%s %v: read again %+v, want %+v", x.name, layers, again, part)
			}
		}
	}
}
