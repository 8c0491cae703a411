package model

import (
	"encoding/json"
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
}
