package model

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"gad/internal/compute"
	"gad/internal/safetensors"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

// Load reads a model: a Hugging Face folder, a GGUF file, or a folder of LoRA adapters as peft
// writes it (see ReadAdapterConfig). The base of adapters is the folder that they name, or o.Base,
// a frozen language model that several share. With o.LoRA a whole model becomes the base of new
// adapters, and adapters in dir must have the same settings.
func Load(be Backend, dir string, o Options) (*Model, error) {
	if be == nil {
		return nil, errNoBackend
	}
	adapter, has, err := adapterOf(dir)
	switch {
	case err != nil:
		return nil, err
	case !has && !o.LoRA.On():
		return loadFull(be, dir, o)
	case o.Layers != nil && (has || o.LoRA.On()):
		return nil, fmt.Errorf("model: %s: layers are taken out of whole models only, not beside LoRA adapters: merge them first (gad export --merge)", dir)
	case has && !o.LoRA.On() && o.Trainable:
		return nil, fmt.Errorf("model: %s: is a LoRA adapter, and all weights are to be trained: train adapters with %s (of actor or critic, whichever is loaded from it), or merge it into its base first (gad export --merge)", dir, adapter.LoRA.settings())
	case has && o.LoRA.On() && !o.LoRA.same(adapter.LoRA):
		return nil, fmt.Errorf("model: %s: the adapter has %s, the settings are %s: make them the same, or merge it into its base first (gad export --merge)", dir, adapter.LoRA.settings(), o.LoRA.settings())
	}
	base := o.Base
	if base != nil && !has && !sameFolder(dir, base.dir) {
		return nil, fmt.Errorf("model: %s: new adapters would stand on %s, which is in memory, and not on this: give adapters for that, the same folder, or lora.rank=0", dir, base.dir)
	}
	if base == nil {
		from := dir
		if has {
			if from, err = baseDir(dir, adapter); err != nil {
				return nil, err
			}
		}
		quant := o.Quant
		if quant == "" {
			quant = o.LoRA.Base
		}
		if base, err = loadFull(be, from, Options{Quant: quant}); err != nil {
			return nil, err
		}
		defer base.Close() // adapted models keep its memory
	}
	if has {
		o.LoRA = adapter.LoRA
	}
	o.Quant = "" // the base's
	m, err := base.Adapt(o)
	if err != nil {
		return nil, err
	}
	if has {
		if err := m.loadAdapter(dir, adapter.Kind); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// sameFolder reports whether two paths name one folder.
func sameFolder(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// loadFull reads a whole model: config.json and model.safetensors, or shards with their index; or a
// GGUF file, whose weights are widened as they are read. A Scorer comes from a
// *ForSequenceClassification folder with one label, or from a *ForCausalLM folder: then lm_head is
// ignored and the score head is new (see Options.ScoreInit). Names and shapes of all tensors are
// checked before memory is allocated; values must be finite. Config().DType is then the dtype of
// the folder's tensors.
func loadFull(be Backend, dir string, o Options) (*Model, error) {
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	from := c.Kind()
	if from == Scorer && o.Kind == LM {
		return nil,
			fmt.Errorf("model: %s: a %s folder has no language-model head: expected a %s folder",
				dir, c.class(from), c.class(LM))
	}
	f, err := files.PlaceOf(dir).Tensors()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f = c.arrangement().View(files.StripPrefix(f))
	if c.DType, err = checkTensors(f, c, from, o.Kind); err != nil {
		return nil, fmt.Errorf("model: %s: %w", dir, err)
	}
	if o.Layers != nil {
		if err := checkLayers(o.Layers, c.Layers); err != nil {
			return nil, fmt.Errorf("model: %s: %w", dir, err)
		}
		if c, err = c.keepLayers(o.Layers); err != nil {
			return nil, fmt.Errorf("model: %s: %w", dir, err)
		}
	}
	m, err := alloc(be, c, o)
	if err != nil {
		return nil, err
	}
	if o.Layers == nil {
		m.dir = dir
	}
	m.dtypes = map[string]safetensors.DType{}
	var list []transfer
	for _, p := range m.params {
		if p.Name == files.ScoreName && from == LM {
			continue
		}
		t, _ := f.Tensor(wholeName(p.Name, o.Layers))
		m.dtypes[p.Name] = t.DType
		list = append(list, transfer{from: t, to: p.W})
	}
	if err := upload(be, list); err != nil {
		m.Close()
		return nil, fmt.Errorf("model: %s: %w", dir, err)
	}
	for i, p := range m.params {
		if p.Name == files.ScoreName && from == LM {
			m.draw(p, i, o.ScoreInit)
		} else {
			m.refresh(p)
		}
	}
	if err := be.Sync(); err != nil {
		m.Close()
		return nil, fmt.Errorf("model: %s: %w", dir, err)
	}
	return m, nil
}

// arrangement returns how folders of c's family store its weights. The pairs of a rotated head are
// half a head apart in the model; where only the first elements of a head rotate, the folder's are
// half of these apart.
func (c Config) arrangement() (a files.Arrangement) {
	rows := map[string]int{"self_attn.q_proj": c.Heads * c.HeadDim,
		"self_attn.k_proj": c.KVHeads * c.HeadDim, "self_attn.v_proj": c.KVHeads * c.HeadDim,
		"self_attn.o_proj": c.Hidden, "conv.o_proj": c.Hidden,
		"mlp.gate_proj": c.FFN, "mlp.up_proj": c.FFN, "mlp.down_proj": c.Hidden,
		"norm": c.Hidden, "input_layernorm": c.Hidden, "post_attention_layernorm": c.Hidden,
		"self_attn.q_norm": c.HeadDim, "self_attn.k_norm": c.HeadDim,
		"self_attn.q_gate": c.Heads * c.HeadDim}
	for _, f := range architecture.Families[c.Architecture].Fused {
		whole := files.Fused{Whole: f.Whole}
		if f.ByHead {
			whole.Groups = c.Heads
		}
		for _, part := range f.Parts {
			whole.Parts = append(whole.Parts, files.Part{Name: part, Rows: rows[part]})
		}
		a.Fused = append(a.Fused, whole)
	}
	if turned := c.RotaryDim / 2; turned > 0 {
		half := c.HeadDim / 2
		order := func(row int) int {
			e := row % c.HeadDim
			head, side, in := row-e, e/half, e%half
			if in < turned {
				return head + side*turned + in
			}
			return head + 2*turned + side*(half-turned) + in - turned
		}
		a.Reordered = map[string]func(int) int{"self_attn.q_proj": order,
			"self_attn.k_proj": order, "self_attn.q_norm": order, "self_attn.k_norm": order}
	}
	return a
}

// checkTensors compares the folder's tensors with the parameters of a model of kind from, to make a
// model of kind want, and returns their common dtype.
func checkTensors(f files.Tensors, c Config, from, want Kind) (string, error) {
	expected := map[string]bool{}
	var missing, wrong, unexpected []string
	var dtype safetensors.DType
	for _, p := range c.arrange(from).params {
		expected[p.Name] = true
		t, ok := f.Tensor(p.Name)
		switch {
		case !ok && p.Name == files.HeadName && want == Scorer: // not needed
		case !ok:
			missing = append(missing, p.Name)
		case !slices.Equal(t.Shape, p.Shape):
			wrong = append(wrong, fmt.Sprintf("%s is %v, config.json says %v", p.Name, t.Shape,
				p.Shape))
		case p.Name == files.EmbedName:
			dtype = t.DType
		}
	}
	for _, name := range f.Names() {
		switch {
		// a buffer in old Llama folders
		case expected[name] || strings.HasSuffix(name, "rotary_emb.inv_freq") ||
			files.Left(name):
		case name == files.HeadName && c.TieEmbeddings:
			a, _ := f.Tensor(files.EmbedName)
			b, _ := f.Tensor(files.HeadName)
			if a != nil && (a.DType != b.DType || !bytes.Equal(a.Data, b.Data)) {
				return "", fmt.Errorf("tensor %q: differs from %s although tie_word_embeddings is true: set it to false to keep both, or remove one", files.HeadName, files.EmbedName)
			}
		default:
			unexpected = append(unexpected, name)
		}
	}
	var problems []error
	for _, l := range []struct {
		rule  string
		names []string
	}{{"missing", missing}, {"of another shape", wrong}, {"unexpected", unexpected}} {
		if n := len(l.names); n > 0 {
			const most = 8
			more := ""
			if n > most {
				l.names, more = l.names[:most], fmt.Sprintf(" and %d more", n-most)
			}
			problems = append(problems,
				fmt.Errorf("%d tensors %s: %s%s", n, l.rule, strings.Join(l.names, ", "), more))
		}
	}
	if len(problems) > 0 {
		return "", fmt.Errorf("weights and config.json do not belong together: %s",
			strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; "))
	}
	for name, code := range files.DTypes {
		if code == dtype {
			return name, nil
		}
	}
	return "",
		fmt.Errorf("tensor %q: dtype %s: %w: export the weights in float32, bfloat16 or float16",
			files.EmbedName, dtype, ErrUnsupported)
}

// transfer is a tensor of a file and its destination on the device.
type transfer struct {
	from *files.OnDisk
	to   compute.Tensor
	code bool // 8-bit codes of moments, never weights
}

// upload widens tensors to float32 and writes them to their destinations, on all cores.
func upload(be compute.Backend, list []transfer) error {
	var (
		mu   sync.Mutex // held in Upload, on a backend whose memory is not the host's
		from []*files.OnDisk
	)
	for _, t := range list {
		if from = append(from, t.from); (t.from.DType == safetensors.U8) != t.code {
			return fmt.Errorf(
				"tensor %q: dtype %s: %w: export the weights in float32, bfloat16 or float16",
				t.from.Name, t.from.DType, ErrUnsupported)
		}
	}
	return files.Widen(from, func(i, lo, n int) []float32 {
		if all := compute.HostView(be, list[i].to); all != nil {
			return all[lo : lo+n]
		}
		return nil
	}, func(i, lo int, part []float32, placed bool) error {
		if !placed {
			mu.Lock()
			defer mu.Unlock()
			be.Upload(list[i].to.Slice(lo, lo+len(part)), part)
		}
		return nil
	})
}

// Weight is one weight of a model, for reading in parts.
type Weight struct {
	Name  string // as in Hugging Face folders
	Shape []int
	// Read fills dst with the elements from lo on, in row-major order. A value that is
	// not finite is ErrNotFinite.
	Read func(dst []float32, lo int) error
}

// Weights returns all weights of a language model as its folder stores them, tied ones once. For a
// model with adapters they are the base's with the adapters added, as in Merged, but one at a time:
// reading them in order takes the memory of the largest, no second model.
func (m *Model) Weights() (list []Weight) {
	params := m.params
	if m.base != nil {
		params = m.base.params
	}
	var (
		all    []files.Weight
		merged *compute.Param // the weight whose sum with its adapter is in sum
		sum    compute.Tensor
	)
	for _, p := range params {
		read := func(dst []float32, lo int) error {
			if m.adapters[p] == nil {
				return m.read(p.Name, p.W, dst, lo)
			}
			if merged != p {
				merged, sum = nil, m.ws.Get("merged weight", compute.Narrow, p.Len())
				if err := m.ws.Take(); err != nil {
					return err
				}
				m.be.Copy(sum, p.W)
				if err := m.merge(sum, p); err != nil {
					return fmt.Errorf("model: merge: %w", err)
				}
				merged = p
			}
			return m.read(p.Name, sum, dst, lo)
		}
		all = append(all, files.Weight{Name: p.Name, Shape: p.Shape, Read: read})
	}
	for _, w := range m.cfg.arrangement().Stored(all) {
		list = append(list, Weight{w.Name, w.Shape, w.Read})
	}
	return list
}

// read writes t's elements from lo on to dst. A value that is not finite is an ErrNotFinite, so
// that broken weights are never saved.
func (m *Model) read(name string, t compute.Tensor, dst []float32, lo int) error {
	if m.narrowed {
		return errNarrowed
	}
	m.be.Download(dst, t.Slice(lo, lo+len(dst)))
	if err := m.be.Sync(); err != nil {
		return err
	}
	return checkFinite(name, dst, lo)
}

// checkFinite returns an ErrNotFinite if part, a tensor's elements from lo on, has a NaN or an
// infinity.
func checkFinite(name string, part []float32, lo int) error {
	for i, x := range part {
		if x-x != 0 {
			return fmt.Errorf(
				"tensor %q: element %d: %g: %w: it is not saved: go back to an earlier checkpoint",
				name, lo+i, x, ErrNotFinite)
		}
	}
	return nil
}

// stream returns a tensor for a safetensors file that streams w.
func stream(w files.Weight) safetensors.Source {
	size := 1
	for _, n := range w.Shape {
		size *= n
	}
	return safetensors.Source{Name: w.Name, DType: w.DType, Shape: w.Shape,
		Write: func(to io.Writer) error {
			buf := make([]float32, min(files.Chunk, size))
			for lo := 0; lo < size; lo += files.Chunk {
				b := buf[:min(files.Chunk, size-lo)]
				if err := w.Read(b, lo); err != nil {
					return err
				}
				if err := safetensors.EncodeFloat32(to, w.DType, b); err != nil {
					return err
				}
			}
			return nil
		}}
}

// weight returns t, a tensor of m, for stream, under name and as elements of type dt.
func (m *Model) weight(name string, shape []int, t compute.Tensor,
	dt safetensors.DType) files.Weight {
	return files.Weight{Name: name, Shape: shape, DType: dt,
		Read: func(dst []float32, lo int) error { return m.read(name, t, dst, lo) }}
}

// streams returns the tensors for the safetensors files of a folder with these weights.
func (c Config) streams(weights []files.Weight) (list []safetensors.Source) {
	for _, w := range c.arrangement().Stored(weights) {
		list = append(list, stream(w))
	}
	return list
}

// Save writes config.json and the weights as transformers loads them, through
// create: model.safetensors, or shards of at most maxShard bytes (0: one file)
// and their index. dtype is "float32", "bfloat16" or "float16"; "" keeps each tensor's dtype in the
// folder that the model was loaded from. Weights are rounded to the nearest, ties to even. Tied
// weights are written once. The tokenizer's files are not written.
//
// A model with adapters writes these alone, in float32, as peft writes them; Merged returns a model
// that is written whole.
func (m *Model) Save(create func(name string) (io.WriteCloser, error), dtype string,
	maxShard int64) error {
	if m.base != nil {
		return m.saveAdapter(create)
	}
	own := dtype == ""
	if own {
		dtype = m.cfg.DType
	}
	if dtype == "" {
		dtype = "float32"
	}
	dt, ok := files.DTypes[dtype]
	if !ok {
		return fmt.Errorf("model: save: dtype %q: expected float32, bfloat16 or float16", dtype)
	}
	b, err := m.cfg.encode(m.opt.Kind, dtype)
	if err != nil {
		return err
	}
	w, err := create("config.json")
	if err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("model: save: config.json: %w", err)
	}
	var weights []files.Weight
	for _, p := range m.params {
		to := dt
		if was, ok := m.dtypes[p.Name]; own && ok {
			to = was
		}
		weights = append(weights, m.weight(p.Name, p.Shape, p.W, to))
	}
	if err := safetensors.WriteFolder(create, m.cfg.streams(weights), maxShard, nil); err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	return nil
}

// ReadConfig reads dir/config.json, a file like it, or a GGUF file's metadata; of a folder of
// adapters, the base's. It refuses settings that are not implemented: other model types, windows,
// activations, caps and rope types that their families do not have, layers of Mamba, mixtures of
// experts, biases on other projections, quantized weights. Such errors wrap ErrUnsupported.
func ReadConfig(dir string) (Config, error) {
	if a, has, err := adapterOf(dir); err != nil {
		return Config{}, err
	} else if has {
		base, err := baseDir(dir, a)
		if err != nil {
			return Config{}, err
		}
		c, err := ReadConfig(base)
		if err == nil && a.Kind == Scorer {
			return c.With("architectures", []string{c.class(Scorer)})
		}
		return c, err
	}
	text, name, err := files.PlaceOf(dir).Config()
	if err != nil {
		return Config{}, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return Config{}, fmt.Errorf("model: %s: %w", name, err)
	}
	if c.DType == autoDType {
		if f, err := files.PlaceOf(dir).Tensors(); err == nil { // else loading reports the error
			c.DType = storedDType(files.StripPrefix(f))
			f.Close()
		}
	}
	return c, nil
}

// autoDType is the dtype of a config.json that defers to the weights.
const autoDType = "auto"

// storedDType returns the dtype of the embedding in f; float32 if f has none.
func storedDType(f files.Tensors) string {
	if t, ok := f.Tensor(files.EmbedName); ok {
		for name, code := range files.DTypes {
			if code == t.DType {
				return name
			}
		}
	}
	return "float32"
}
