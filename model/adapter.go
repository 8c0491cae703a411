package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gad/internal/compute"
	"gad/internal/folder"
	"gad/internal/safetensors"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

// The files of an adapter's folder, by peft's names.
const (
	AdapterConfigName = "adapter_config.json"
	adapterWeights    = "adapter_model.safetensors"
)

// baseDigest is the metadata key, in an adapter's weights, of the digest of its base's weights.
const baseDigest = "base_sha256"

// AdapterConfig is the part of adapter_config.json that gad uses.
type AdapterConfig struct {
	LoRA LoRA
	Kind Kind   // Scorer for a task of sequence classification
	Base string // base_model_name_or_path: a folder, or a name on the hub
}

// peftConfig has the keys of adapter_config.json that are read.
type peftConfig struct {
	Type    string          `json:"peft_type"`
	Task    *string         `json:"task_type"`
	Base    *string         `json:"base_model_name_or_path"`
	Rank    int             `json:"r"`
	Alpha   float64         `json:"lora_alpha"`
	Dropout float64         `json:"lora_dropout"`
	Targets json.RawMessage `json:"target_modules"`
	Exclude json.RawMessage `json:"exclude_modules"`
	Bias    string          `json:"bias"`
	RSLoRA  bool            `json:"use_rslora"`
	Save    []string        `json:"modules_to_save"`
	Start   json.RawMessage `json:"init_lora_weights"`
}

// plainStarts are the values of init_lora_weights that leave the base's weights unchanged. Others
// (pissa, olora, corda, loftq, lora_ga) subtract a part from them, and the adapters belong to the
// remainder.
var plainStarts = []string{"", "null", "true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// notComputed are keys of variants that are not implemented: each must be absent, null, false or
// empty.
var notComputed = []string{"use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern",
	"layers_to_transform", "layer_replication", "lora_bias",
	"target_parameters", "trainable_token_indices", "use_qalora", "use_bdlora",
	"alora_invocation_tokens", "kasa_config", "arrow_config", "monteclora_config"}

// task has peft's task_type for each kind.
var task = map[Kind]string{LM: "CAUSAL_LM", Scorer: "SEQ_CLS"}

// ReadAdapterConfig reads adapter_config.json of the folder dir, as peft writes it for LoRA. It
// refuses settings that are not implemented: other methods, trained biases, ranks that differ by
// layer, a choice of layers by number.
func ReadAdapterConfig(dir string) (AdapterConfig, error) {
	root, err := folder.Open(dir)
	if err != nil {
		return AdapterConfig{}, fmt.Errorf("model: %w", err)
	}
	defer root.Close() // only read from
	b, err := root.ReadFile(AdapterConfigName, files.MostConfig)
	if err != nil {
		return AdapterConfig{}, fmt.Errorf("model: %w", err)
	}
	a, err := parseAdapterConfig(b, func() []string { return adapterNames(dir) })
	if err != nil {
		return a, fmt.Errorf("model: %s: %w", filepath.Join(dir, AdapterConfigName), err)
	}
	return a, nil
}

// adapterNames returns the names of the adapters' tensors in dir, nil if they cannot be read: the
// error is reported when they are loaded.
func adapterNames(dir string) []string {
	f, err := safetensors.Open(filepath.Join(dir, adapterWeights))
	if err != nil {
		return nil
	}
	defer f.Close()
	return f.Names()
}

// adaptedLayers returns the linear layers that have an adapter among the tensors names.
func adaptedLayers(names []string) (layers []string) {
	for _, layer := range linearLayers {
		if slices.ContainsFunc(names, func(n string) bool {
			module, _, ok := strings.Cut(n, ".lora_A.")
			module = architecture.Module(module)
			if parts := fusedParts(module, []string{n}); parts != nil {
				return slices.Contains(parts, layer)
			}
			return ok && module == layer
		}) {
			layers = append(layers, layer)
		}
	}
	return layers
}

// parseAdapterConfig reads adapter_config.json. names returns the names of the adapters' tensors,
// from which it takes the adapted layers if target_modules is a pattern.
func parseAdapterConfig(b []byte, names func() []string) (a AdapterConfig, err error) {
	var p peftConfig
	if err := json.Unmarshal(b, &p); err != nil {
		return a, err
	}
	refuse := func(key, value, way string) error {
		return fmt.Errorf("key %q: %s: %w: %s", key, value, ErrUnsupported, way)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return a, err
	}
	for _, key := range notComputed {
		if v := oneLine(raw[key]); !slices.Contains([]string{"", "null", "false", "{}", "[]"}, v) {
			return a, refuse(key, v, "merge the adapter into its base (peft: merge_and_unload)")
		}
	}
	switch {
	case p.Type != "LORA":
		return a, refuse("peft_type", strconv.Quote(p.Type), "gad reads adapters of LoRA only")
	case p.Rank < 1 || p.Rank > 1<<16:
		return a, fmt.Errorf("key \"r\": %d: expected 1 to 65536", p.Rank)
	case !(p.Alpha > 0) || math.IsInf(p.Alpha, 0):
		return a, fmt.Errorf("key \"lora_alpha\": %g: expected a positive number", p.Alpha)
	case p.Bias != "" && p.Bias != "none":
		return a, refuse("bias", strconv.Quote(p.Bias),
			"merge the adapter into its base (peft: merge_and_unload)")
	}
	if start := string(p.Start); !slices.Contains(plainStarts, start) {
		return a, refuse("init_lora_weights", start, "the adapters belong to a base from which their start was taken, and the weights that are named still have it: merge them where they were trained, or save them as plain LoRA (peft: save_pretrained with path_initial_model_for_weight_conversion)")
	}
	for _, name := range p.Save {
		if name != "score" && name != "classifier" { // peft adds both to every classifier
			return a, refuse("modules_to_save", strconv.Quote(name),
				"merge the adapter into its base (peft: merge_and_unload)")
		}
	}
	if p.Task != nil && *p.Task == task[Scorer] {
		a.Kind = Scorer
	}
	if p.Base != nil {
		a.Base = *p.Base
	}
	a.LoRA = LoRA{Rank: p.Rank, Alpha: p.Alpha, RSLoRA: p.RSLoRA}
	var list []string
	if err := json.Unmarshal(p.Targets, &a.LoRA.Targets); err != nil {
		if err := json.Unmarshal(p.Targets, &list); err != nil || len(list) == 0 {
			return a, fmt.Errorf("key \"target_modules\": expected a list of layers")
		}
		for i := 0; i < len(list); i++ { // peft may list each layer's modules
			list[i] = architecture.Module(list[i])
			if parts := fusedParts(list[i], names()); parts != nil {
				list = slices.Replace(list, i, i+1, parts...)
			}
		}
		slices.Sort(list)
		a.LoRA.Targets = strings.Join(slices.Compact(list), ",")
	} else if a.LoRA.Targets != allLinear || len(p.Exclude) > 0 && p.Exclude[0] != 'n' {
		// One string is a pattern, and what is excluded may be one: the tensors tell the layers.
		if layers := adaptedLayers(names()); len(layers) > 0 {
			a.LoRA.Targets = strings.Join(layers, ",")
		}
	}
	if err := a.LoRA.Validate("adapter"); err != nil {
		return a, refuse("target_modules", strconv.Quote(a.LoRA.Targets),
			"gad has adapters on "+strings.Join(linearLayers, ", "))
	}
	return a, nil
}

// saveAdapter writes m's adapters, and a Scorer's head, as peft does: adapter_config.json and
// adapter_model.safetensors. The first names the base's folder, the second has the digest of the
// base's weights in its metadata.
func (m *Model) saveAdapter(create func(name string) (io.WriteCloser, error)) error {
	base, digest := m.base.dir, ""
	if base != "" {
		var err error
		if base, err = filepath.Abs(base); err != nil {
			return fmt.Errorf("model: save: %w", err)
		}
		if digest, err = m.base.Digest(); err != nil {
			return err
		}
	}
	l, taskName := m.opt.LoRA, task[m.opt.Kind]
	p := map[string]any{
		"peft_type": "LORA", "task_type": taskName, "base_model_name_or_path": base, "r": l.Rank,
		"lora_alpha": l.alpha(), "lora_dropout": 0.0,
		"target_modules": m.peftModules(l), "bias": "none", "use_rslora": l.RSLoRA, "use_dora": false,
		"fan_in_fan_out": false, "inference_mode": true,
		"modules_to_save": nil, "rank_pattern": map[string]int{}, "alpha_pattern": map[string]int{},
		"layers_to_transform": nil,
		"layers_pattern":      nil, "init_lora_weights": true, "revision": nil,
	}
	if m.opt.Kind == Scorer {
		p["modules_to_save"] = []string{"score"}
	}
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	w, err := create(AdapterConfigName)
	if err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	_, err = w.Write(append(b, '\n'))
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("model: save: %s: %w", AdapterConfigName, err)
	}
	var weights []files.Weight
	for _, p := range m.params {
		weights = append(weights, m.weight(peftName(p), p.Shape, p.W, safetensors.F32))
	}
	if w, err = create(adapterWeights); err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	err = safetensors.Write(w, m.cfg.streams(weights),
		map[string]string{"format": "pt", baseDigest: digest})
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("model: save: %s: %w", adapterWeights, err)
	}
	return nil
}

// peftName returns the name in peft's file of a parameter of an adapted model.
func peftName(p *compute.Param) string {
	if p.Name == files.ScoreName {
		return peftPrefix + files.ScoreName
	}
	return p.Name
}

// loadAdapter reads m's adapters, and a Scorer's head, from the folder dir of adapters of the given
// kind. It refuses adapters that were trained on a base with other weights. A Scorer also takes the
// adapters of a language model, and keeps its new head.
func (m *Model) loadAdapter(dir string, kind Kind) error {
	if kind == Scorer && m.opt.Kind == LM {
		return fmt.Errorf(
			"model: %s: is an adapter of a scorer (task_type %s): expected one of a language model",
			dir, task[Scorer])
	}
	path := filepath.Join(dir, adapterWeights)
	file, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	defer file.Close()
	f := m.cfg.arrangement().View(files.StripText(files.FileOf(file), peftPrefix+"model."))
	if was := file.Metadata()[baseDigest]; was != "" && m.base.dir != "" {
		digest, err := m.base.Digest()
		if err != nil {
			return err
		}
		if was != digest {
			return fmt.Errorf("model: %s: was trained on a base whose weights have SHA-256 %.12s..., those of %s have %.12s...: give the base that it was trained on", path, was, m.base.dir, digest)
		}
	}
	known := map[string]bool{}
	for _, p := range m.params {
		name := peftName(p)
		t, ok := f.Tensor(name)
		if !ok && p.Name == files.ScoreName && kind == LM {
			continue
		}
		if !ok || !slices.Equal(t.Shape, p.Shape) {
			have := "missing"
			if ok {
				have = fmt.Sprint("of shape ", t.Shape)
			}
			return fmt.Errorf("model: %s: tensor %q: %s: expected %v: the adapter is of another base or other settings", path, name, have, p.Shape)
		}
		known[name] = true
	}
	for _, name := range f.Names() {
		if !known[name] {
			if strings.Contains(name, "embed_tokens") || strings.Contains(name, "lm_head") {
				return fmt.Errorf("model: %s: tensor %q: %w: embeddings were saved beside the adapters, as peft does by itself where the vocabulary was resized: merge the adapter into its base (peft: merge_and_unload)", path, name, ErrUnsupported)
			}
			return fmt.Errorf(
				"model: %s: tensor %q: not of the layers that %s names: the folder is damaged",
				path, name, AdapterConfigName)
		}
	}
	var list []transfer
	for _, p := range m.params {
		if t, ok := f.Tensor(peftName(p)); ok {
			list = append(list, transfer{from: t, to: p.W})
		}
	}
	if err := upload(m.be, list); err != nil {
		return fmt.Errorf("model: %s: %w", path, err)
	}
	for _, p := range m.params {
		m.refresh(p)
	}
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: %s: %w", path, err)
	}
	return nil
}

// mergeElements bounds the elements of a weight that are merged at a time, in whole rows; a
// variable for tests.
var mergeElements = 1 << 22

// adapterOf returns the adapters' configuration of dir; has is false if dir has a whole model, or
// no adapters.
func adapterOf(dir string) (a AdapterConfig, has bool, err error) {
	if files.HasModel(dir) {
		return a, false, nil
	}
	if _, err := os.Stat(filepath.Join(dir, AdapterConfigName)); err != nil {
		return a, false, nil // reading the folder as a model reports what is wrong with it
	}
	a, err = ReadAdapterConfig(dir)
	return a, true, err
}

// IsAdapter reports whether dir is a folder of adapters and not a whole model.
func IsAdapter(dir string) bool {
	_, has, _ := adapterOf(dir)
	return has
}

// baseDir returns the folder or GGUF file of the base that the adapters in dir name: an absolute
// path, or a path relative to dir or to the working directory, in this order.
func baseDir(dir string, a AdapterConfig) (string, error) {
	if a.Base == "" {
		return "", fmt.Errorf("model: %s: names no base (base_model_name_or_path): give the base with --model and this folder with --adapter", filepath.Join(dir, AdapterConfigName))
	}
	for _, path := range []string{filepath.Join(dir, a.Base), a.Base} {
		if filepath.IsAbs(a.Base) {
			path = a.Base
		}
		if files.HasModel(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("model: %s: the base %s is no folder here: fetch it, and give it with --model and this folder with --adapter", filepath.Join(dir, AdapterConfigName), a.Base)
}

// BaseDir returns the folder or GGUF file that has the weights, configuration and tokenizer of the
// model in dir: dir itself, or the base of the adapters in it.
func BaseDir(dir string) (string, error) {
	a, has, err := adapterOf(dir)
	if err != nil || !has {
		return dir, err
	}
	return baseDir(dir, a)
}

// Digest returns the SHA-256, in hexadecimal, of the weights that m was loaded from: of a GGUF
// file, or of the list of a folder's files, sorted by name, with their digests. It is computed
// once.
func (m *Model) Digest() (string, error) {
	if m.digest != "" {
		return m.digest, nil
	}
	sum, err := files.PlaceOf(m.dir).Digest()
	if err != nil {
		return "", err
	}
	m.digest = sum
	return sum, nil
}

// merge adds s B A, the product of w's adapter, to dst, which has the class of w's weights and
// their values. Without an adapter it adds nothing.
func (m *network) merge(dst compute.Tensor, w *compute.Param) error {
	ad := m.adapters[w]
	if ad == nil {
		return nil
	}
	frozen := *ad.a
	frozen.G = compute.Tensor{}
	step := max(1, mergeElements/w.Cols)
	for lo := 0; lo < w.Rows; lo += step {
		hi := min(w.Rows, lo+step)
		part := m.ws.Get("merged rows", compute.Narrow, (hi-lo)*w.Cols)
		if err := m.ws.Take(); err != nil {
			return err
		}
		m.be.LinearGrad(part, &frozen, nil, ad.b.W.Slice(lo*ad.b.Cols, hi*ad.b.Cols),
			compute.Tensor{}, false)
		m.be.Scale(part, ad.scale)
		m.be.Add(dst.Slice(lo*w.Cols, hi*w.Cols), part)
	}
	ad.a.Derived = frozen.Derived
	return nil
}

// Merged returns a frozen copy of m's base with the adapters added to its weights, in memory of its
// own, for faster sampling. Training of m does not change it; Remerge updates it.
func (m *Model) Merged() (*Model, error) {
	if m.base == nil {
		return nil, fmt.Errorf("model: merge: no adapters: the model was not made by Adapt")
	}
	out, err := alloc(m.be, m.cfg, Options{Kind: m.opt.Kind, rewritten: true})
	if err != nil {
		return nil, err
	}
	if err := m.Remerge(out); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	out.ranks, out.shards, out.tokens = m.ranks, m.shards, m.tokens
	out.head.Live = m.head.Live
	return out, nil
}

// Remerge writes m's weights with the adapters added into dst, which Merged made.
func (m *Model) Remerge(dst *Model) error {
	for i, p := range dst.params {
		if p.Name == files.ScoreName {
			m.be.Copy(p.W, m.head.W)
		} else {
			m.be.Copy(p.W, m.base.params[i].W)
			if err := m.merge(p.W, m.base.params[i]); err != nil {
				return fmt.Errorf("model: merge: %w", err)
			}
		}
		dst.refresh(p)
	}
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: merge: %w", err)
	}
	return nil
}

// oneLine returns a JSON value without line breaks.
func oneLine(v json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return string(v)
	}
	return b.String()
}
