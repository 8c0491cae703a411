package model

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute/ref"
	"gad/internal/safetensors"
)

// Folders as other programs leave them are the same model: one prefix before all names, names of a
// bare model, classes beside the known one, a dtype that the weights tell.
func TestStreetFolders(t *testing.T) {
	be := ref.New()
	want := load(t, be, "qwen2_tied", Options{Kind: LM})
	for name, x := range map[string]struct {
		rename func(string) string
		config map[string]any
	}{
		"compiled": {func(n string) string { return "_orig_mod." + n }, nil},
		"parallel": {func(n string) string { return "module." + n }, nil},
		"vision": {func(n string) string {
			return "model.language_model." + strings.TrimPrefix(n, "model.")
		}, nil},
		"bare": {func(n string) string { return strings.TrimPrefix(n, "model.") },
			map[string]any{"architectures": []string{"Qwen2Model"}}},
		"two":  {nil, map[string]any{"architectures": []string{"Custom", "Qwen2ForCausalLM"}}},
		"auto": {nil, map[string]any{"dtype": "auto"}},
		"dot":  {nil, map[string]any{"dtype": "torch.float32", "torch_dtype": "torch.float32"}},
	} {
		d := t.TempDir()
		must(t, want.Save(dir(d).create, "", 0))
		path := filepath.Join(d, "config.json")
		raw, err := os.ReadFile(path)
		must(t, err)
		var config map[string]any
		must(t, json.Unmarshal(raw, &config))
		for key, v := range x.config {
			config[key] = v
		}
		raw, err = json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(path, raw, 0o644))
		if x.rename != nil {
			renameTensors(t, filepath.Join(d, "model.safetensors"), x.rename)
		}
		got, err := Load(be, d, Options{Kind: LM})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sameWeights(t, name, got, want)
		if c, err := ReadConfig(d); err != nil || c.DType != "float32" {
			t.Errorf("%s: dtype %q, %v", name, c.DType, err)
		}
	}
	if _, err := parseConfig([]byte(`{"model_type":"qwen2","architectures":["Qwen2ForRewardModel"]}`)); err == nil ||
		!strings.Contains(err.Error(), "Qwen2ForRewardModel") {
		t.Errorf("another head: %v", err)
	}
}

// Folders of Qwen3.5 as others leave them: layers that draft tokens beside the others, which are
// not read; and a folder whose convolutions lie otherwise, as another framework stores them, which
// is refused.
func TestStreetQwen35(t *testing.T) {
	be := ref.New()
	want := load(t, be, "qwen3_5", Options{Kind: LM})
	more := func(extra map[string][]int, rename func(string) string) (*Model, error) {
		d := t.TempDir()
		must(t, want.Save(dir(d).create, "", 0))
		path := filepath.Join(d, "model.safetensors")
		file, err := safetensors.Open(path)
		must(t, err)
		var list []safetensors.Source
		for _, name := range file.Names() {
			x, _ := file.Tensor(name)
			shape := x.Shape
			if s, ok := extra[name]; ok {
				shape = s
			}
			list = append(list, safetensors.Source{Name: name, DType: x.DType, Shape: shape,
				Write: func(w io.Writer) error { _, err := w.Write(x.Data); return err }})
		}
		for name, shape := range extra {
			if _, ok := file.Tensor(name); !ok {
				list = append(list, safetensors.Source{Name: name, DType: safetensors.F32, Shape: shape,
					Write: func(w io.Writer) error { _, err := w.Write(make([]byte, 4*shape[0])); return err }})
			}
		}
		var b bytes.Buffer
		must(t, safetensors.Write(&b, list, nil))
		must(t, file.Close())
		must(t, os.WriteFile(path, b.Bytes(), 0o644))
		if rename != nil {
			renameTensors(t, path, rename)
		}
		return Load(be, d, Options{Kind: LM})
	}
	text := func(n string) string {
		if rest, ok := strings.CutPrefix(n, "model."); ok {
			return "model.language_model." + rest
		}
		return n
	}
	for name, rename := range map[string]func(string) string{"a language model": nil,
		"its text": text} {
		got, err := more(map[string][]int{"mtp.fc.weight": {4},
			"mtp.layers.0.input_layernorm.weight": {4}},
			rename)
		must(t, err)
		sameWeights(t, name, got, want)
	}
	const conv = "model.layers.0.linear_attn.conv1d.weight"
	_, err := more(map[string][]int{conv: {64, 4, 1}}, nil)
	if err == nil || !strings.Contains(err.Error(), conv+" is [64 4 1], config.json says [64 1 4]") {
		t.Errorf("transposed: %v", err)
	}
}

// Adapters that peft saved of a model that also reads images are those of its language model, and
// names of parts that no file of transformers has are refused.
func TestStreetAdaptersOfText(t *testing.T) {
	be := ref.New()
	base := load(t, be, "qwen3_5", Options{})
	defer base.Close()
	d := t.TempDir()
	for _, name := range []string{AdapterConfigName, adapterWeights} {
		b, err := os.ReadFile(filepath.Join("../testdata/lora/qwen3_5", name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(d, name), b, 0o644))
	}
	want, err := Load(be, d, Options{Base: base})
	must(t, err)
	defer want.Close()
	renameTensors(t, filepath.Join(d, adapterWeights), func(n string) string {
		return strings.Replace(n, ".model.model.layers.", ".model.model.language_model.layers.", 1)
	})
	got, err := Load(be, d, Options{Base: base})
	must(t, err)
	defer got.Close()
	for i, p := range got.params {
		same(t, p.Name, values(be, p.W), values(be, want.params[i].W))
	}
	_, err = parseAdapterConfig(
		[]byte(`{"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["in_proj_q"]}`),
		func() []string { return nil })
	if err == nil || !strings.Contains(err.Error(), `"in_proj_q"`) {
		t.Errorf("a part of in_proj_qkv: %v", err)
	}
}

// renameTensors writes a file of float32 tensors anew with other names.
func renameTensors(t *testing.T, path string, rename func(string) string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	n := int(raw[0]) | int(raw[1])<<8 | int(raw[2])<<16
	var head map[string]json.RawMessage
	must(t, json.Unmarshal(raw[8:8+n], &head))
	renamed := map[string]json.RawMessage{}
	for name, v := range head {
		if name != "__metadata__" {
			name = rename(name)
		}
		renamed[name] = v
	}
	text, err := json.Marshal(renamed)
	must(t, err)
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	size := make([]byte, 8)
	for i := range size {
		size[i] = byte(len(text) >> (8 * i))
	}
	must(t, os.WriteFile(path, append(append(size, text...), raw[8+n:]...), 0o644))
	f, err := safetensors.Open(path)
	must(t, err)
	must(t, f.Close())
}

// Adapters whose start was taken out of the base are refused, and those whose layers a pattern
// names have the layers of their tensors.
func TestStreetAdapters(t *testing.T) {
	config := func(start, targets string) []byte {
		return []byte(`{"peft_type":"LORA","r":2,"lora_alpha":4,"init_lora_weights":` + start +
			`,"target_modules":` + targets + `}`)
	}
	names := func() []string {
		return []string{"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
			"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
			"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"}
	}
	for _, start := range []string{`"pissa"`, `"pissa_niter_4"`, `"olora"`, `"corda"`, `"loftq"`,
		`"lora_ga"`, `"mica"`, `{"x":1}`} {
		if _, err := parseAdapterConfig(config(start, `["q_proj"]`), names); err == nil ||
			!strings.Contains(err.Error(), `key "init_lora_weights": `+start) {
			t.Errorf("%s: %v", start, err)
		}
	}
	for _, start := range []string{`true`, `null`, `"gaussian"`, `"eva"`, `"orthogonal"`} {
		if _, err := parseAdapterConfig(config(start, `["q_proj"]`), names); err != nil {
			t.Errorf("%s: %v", start, err)
		}
	}
	a, err := parseAdapterConfig(config("true", `"^.*\\.(q_proj|up_proj)$"`), names)
	if err != nil || a.LoRA.Targets != "q_proj,up_proj" {
		t.Errorf("a pattern: %+v, %v", a, err)
	}
	with := func(more string) []byte {
		return append(bytes.TrimSuffix(config("true", `"all-linear"`), []byte("}")), more...)
	}
	a, err = parseAdapterConfig(with(`,"exclude_modules":".*(k|v|o|gate|down)_proj"}`), names)
	if err != nil || a.LoRA.Targets != "q_proj,up_proj" {
		t.Errorf("all layers but some: %+v, %v", a, err)
	}
	for _, variant := range []string{"kasa_config", "arrow_config", "monteclora_config"} {
		if _, err := parseAdapterConfig(with(`,"`+variant+`":{"x":1}}`), names); err == nil ||
			!strings.Contains(err.Error(), `key "`+variant+`"`) {
			t.Errorf("%s: %v", variant, err)
		}
	}
}
