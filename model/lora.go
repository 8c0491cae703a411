package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/internal/compute"
	"gad/internal/philox"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

// LoRA has the settings of low-rank adapters on linear layers (arXiv 2106.09685, equation 3). An
// adapter adds A [r,I] and B [O,r] to the frozen W [O,I], and the layer computes
//
//	y = x Wᵀ + bias + s (x Aᵀ) Bᵀ    s = Alpha/r, or Alpha/sqrt(r) with RSLoRA (arXiv 2312.03732)
//
// A is initialised uniform within ±1/sqrt(I) and B with zeros, as in peft: before the first step
// the model equals its base.
type LoRA struct {
	Rank    int     `yaml:"rank" min:"0" max:"65536" doc:"rank of the LoRA adapters on the linear layers: only they are trained, beside frozen weights that student, discriminator and reference share; 0: all weights are trained" alias:"actor_rollout_ref.model.lora_rank"`
	Alpha   float64 `yaml:"alpha" min:"0" doc:"the adapters' output is multiplied by alpha/rank; 0: alpha is twice the rank" alias:"actor_rollout_ref.model.lora_alpha"`
	RSLoRA  bool    `yaml:"rslora" doc:"multiply by alpha/sqrt(rank) instead (rank-stabilised LoRA, arXiv 2312.03732)" unproven:"true"`
	Base    string  `yaml:"base" choices:"native,q8_0,q4_0" doc:"with a rank: how the frozen weights are kept: native (as matrix products read them: 4 bytes a parameter in float32, 2 in bfloat16), or in ggml's q8_0 (1.06 bytes) or q4_0 (0.56; embeddings and head q8_0)" fixed:"true"`
	Targets string  `yaml:"targets" doc:"which layers have adapters: all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, in_proj of a short convolution, and in_proj_qkv, in_proj_z, in_proj_a, in_proj_b and out_proj of a gated delta rule, separated by commas" alias:"actor_rollout_ref.model.target_modules"`
}

// linearLayers are the layers that can have adapters, by Llama's names, in a block's order, and
// last the mixerLayers.
var linearLayers = append([]string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
	"down_proj"}, mixerLayers...)

// mixerLayers are the layers that only layers without attention have.
var mixerLayers = []string{"in_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b",
	"out_proj"}

// allLinear is peft's name for all linear layers.
const allLinear = "all-linear"

// DefaultLoRA returns settings without adapters that, given a rank, put one on every linear layer.
func DefaultLoRA() LoRA { return LoRA{Targets: allLinear, Base: Native} }

// On reports whether there are adapters.
func (l LoRA) On() bool { return l.Rank > 0 }

// TrainPasses returns the cost of a forward and a backward pass, in forward passes. A backward pass
// costs two, of which the weights' gradients are one, which frozen weights do not need. The
// adapters' own products are not counted.
func (l LoRA) TrainPasses() float64 {
	if l.On() {
		return 2
	}
	return 3
}

// Scaling returns s, the factor of the adapters' output.
func (l LoRA) Scaling() float64 {
	alpha := l.alpha()
	if l.RSLoRA {
		return alpha / math.Sqrt(float64(l.Rank))
	}
	return alpha / float64(l.Rank)
}

// alpha returns Alpha, or its default.
func (l LoRA) alpha() float64 {
	if l.Alpha == 0 {
		return 2 * float64(l.Rank)
	}
	return l.Alpha
}

// targets returns the names of the layers with adapters, in a block's order.
func (l LoRA) targets() []string {
	if l.Targets == "" || l.Targets == allLinear {
		return linearLayers
	}
	asked := strings.Split(l.Targets, ",")
	for i := range asked {
		asked[i] = strings.TrimSpace(asked[i])
	}
	return slices.DeleteFunc(slices.Clone(linearLayers),
		func(name string) bool { return !slices.Contains(asked, name) })
}

// Validate checks what the tags cannot express; at names the section in errors.
func (l LoRA) Validate(at string) error {
	if !l.On() {
		if l.Alpha != 0 || l.RSLoRA || Quantised(l.Base) || l.Targets != "" &&
			l.Targets != allLinear {
			return fmt.Errorf("settings: %s.rank is 0, which is no LoRA, but other settings of %[1]s are given: set a rank, or leave them out", at)
		}
		return nil
	}
	if s := l.Scaling(); math.IsInf(s, 0) || math.IsNaN(s) {
		return fmt.Errorf("settings: %s.alpha is %g: expected a finite number", at, l.Alpha)
	}
	if l.Targets == "" || l.Targets == allLinear {
		return nil
	}
	for _, name := range strings.Split(l.Targets, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(linearLayers, name) {
			return fmt.Errorf("settings: %s.targets: %q: expected %s, or some of %s", at, name,
				allLinear, strings.Join(linearLayers, ", "))
		}
	}
	return nil
}

// same reports whether l and o put the same adapters on the same layers of a model of attention. A
// file of such a model names no mixerLayers, and all-linear has them.
func (l LoRA) same(o LoRA) bool {
	return l.Rank == o.Rank && l.Scaling() == o.Scaling() &&
		slices.Equal(l.attentionTargets(), o.attentionTargets())
}

// attentionTargets returns targets without mixerLayers.
func (l LoRA) attentionTargets() []string {
	return slices.DeleteFunc(slices.Clone(l.targets()),
		func(name string) bool { return slices.Contains(mixerLayers, name) })
}

// fusedParts returns the linear layers in the fused matrix of peft's name module, nil if no family
// has such a matrix. Of several modules of the name it means the one among the adapters' tensors
// names; nil: any.
func fusedParts(module string, names []string) (parts []string) {
	for _, fam := range architecture.Families {
		for _, f := range fam.Fused {
			among := names == nil || slices.ContainsFunc(names,
				func(n string) bool { return strings.Contains(n, "."+f.Whole+".lora_A.") })
			if architecture.Module(f.Whole) == module && parts == nil && !f.Known() && among {
				for _, part := range f.Parts {
					parts = append(parts, architecture.Module(part))
				}
			}
		}
	}
	return parts
}

// peftModules returns the adapted layers of a model by peft's names.
func (l layout) peftModules(o LoRA) (modules []string) {
	for _, target := range o.targets() {
		for i := range l.blocks {
			for _, w := range l.blocks[i].weights(target) {
				name := strings.TrimSuffix(w.Name, ".weight")
				if f, ok := l.family.WholeOf(name); ok {
					name = f.Whole
				}
				if name = architecture.Module(name); !slices.Contains(modules, name) {
					modules = append(modules, name)
				}
			}
		}
	}
	return modules
}

// fits refuses targets that no layer has, and some parts of a matrix that folders store as one.
func (l layout) fits(o LoRA) error {
	fam, targets := l.family, o.targets()
	for _, name := range targets {
		if o.Targets != "" && o.Targets != allLinear && !slices.ContainsFunc(l.blocks,
			func(b blockParams) bool { return len(b.weights(name)) > 0 }) {
			return fmt.Errorf("model: adapt: lora.targets: %s: no layer of this %s has it: leave it out",
				name, fam.ModelType)
		}
	}
	for _, f := range fam.Fused {
		var in, out []string
		for _, part := range f.Parts {
			if f.Known() {
				continue
			}
			if name := architecture.Module(part); slices.Contains(targets, name) {
				in = append(in, name)
			} else {
				out = append(out, name)
			}
		}
		if len(in) > 0 && len(out) > 0 {
			return fmt.Errorf(
				"model: adapt: lora.targets: %s without %s: %s stores them as one matrix %s: name all of them",
				strings.Join(in, ","), strings.Join(out, ","), fam.ModelType, architecture.Module(f.Whole))
		}
	}
	return nil
}

// String returns the settings, or "none" without adapters.
func (l LoRA) String() string {
	if !l.On() {
		return "none"
	}
	return l.settings()
}

// settings returns l as settings of a configuration: "lora.rank=8 lora.alpha=16 ...".
func (l LoRA) settings() string {
	s := fmt.Sprintf("lora.rank=%d lora.alpha=%g", l.Rank, l.alpha())
	if l.RSLoRA {
		s += " lora.rslora=true"
	}
	if t := l.targets(); len(l.attentionTargets()) < len(linearLayers)-len(mixerLayers) {
		s += " lora.targets=" + strings.Join(t, ",")
	}
	return s
}

// adapter is the pair of matrices that is added to a frozen weight. Weights that folders store in
// one matrix share their A, as peft has it.
type adapter struct {
	a, b  *compute.Param // [r,I], [O,r]
	scale float64
}

// peftPrefix begins the name of every module in peft's files.
const peftPrefix = "base_model.model."

// newAdapters returns the adapters of a model, without memory, by their frozen weight in l, and
// their parameters in a fixed order: layer by layer, A before B.
func (l layout) newAdapters(o LoRA) (params []*compute.Param,
	adapters map[*compute.Param]*adapter) {
	adapters = map[*compute.Param]*adapter{}
	matrix := func(module, which string, rows, cols int) *compute.Param {
		p := &compute.Param{Name: peftPrefix + module + which, Shape: []int{rows, cols},
			Rows: rows, Cols: cols, Decay: true}
		params = append(params, p)
		return p
	}
	for i := range l.blocks {
		shared := map[string]*compute.Param{} // A of each fused matrix
		for _, name := range o.targets() {
			for _, w := range l.blocks[i].weights(name) {
				own := strings.TrimSuffix(w.Name, ".weight")
				module := own
				if f, ok := l.family.WholeOf(own); ok {
					module = fmt.Sprintf("model.layers.%d.%s", i, f.Whole)
				}
				ad := &adapter{a: shared[module], scale: o.Scaling()}
				if ad.a == nil {
					ad.a = matrix(module, ".lora_A.weight", o.Rank, w.Cols)
					shared[module] = ad.a
				}
				ad.b = matrix(own, ".lora_B.weight", w.Rows, o.Rank)
				adapters[w] = ad
			}
		}
	}
	return params, adapters
}

// TrainedCount returns the number of parameters that a model of kind k trains: the adapters' and a
// Scorer's head, or all without adapters.
func (c Config) TrainedCount(k Kind, o LoRA) (n int64) {
	if !o.On() {
		return c.ParamCount(k)
	}
	params, _ := c.arrange(k).newAdapters(o)
	for _, p := range params {
		n += int64(p.Len())
	}
	if k == Scorer {
		n += int64(c.Hidden)
	}
	return n
}

// weights returns the weights of the linear layer with peft's name: one, but two of a q_proj that
// attention's gate is a part of.
func (b *blockParams) weights(name string) (list []*compute.Param) {
	for _, w := range []*compute.Param{b.wq, b.wk, b.wv, b.wo, b.gate, b.up, b.down, b.win, b.wqkv,
		b.wz, b.wa, b.wb} {
		if w != nil && architecture.Module(strings.TrimSuffix(w.Name, ".weight")) == name {
			if list = append(list, w); w == b.wq && b.wg != nil {
				list = append(list, b.wg)
			}
		}
	}
	return list
}

// Adapt returns a model of m's frozen weights with adapters of its own, and with a head of its own
// if it is a Scorer (o.ScoreInit). m is the base, whose memory all its adapted models share; it
// must be a frozen language model and may be closed before them. Without o.LoRA the model has m's
// weights alone.
func (m *Model) Adapt(o Options) (*Model, error) {
	if m.opt.Trainable || m.opt.Kind != LM || m.base != nil {
		return nil, fmt.Errorf("model: adapt: the base must be a frozen language model without adapters: load it without Trainable")
	}
	if o.Trainable && !o.LoRA.On() {
		return nil, fmt.Errorf("model: adapt: nothing to train: give LoRA a rank")
	}
	if err := o.LoRA.Validate("lora"); err != nil {
		return nil, err
	}
	if err := m.fits(o.LoRA); err != nil {
		return nil, err
	}
	a := &Model{network: newNetwork(m.be, m.cfg, m.layout, o), opt: o, base: m, tokens: m.tokens}
	a.params = nil
	if o.LoRA.On() {
		a.params, a.adapters = m.newAdapters(o.LoRA)
	}
	if o.Kind == Scorer {
		d := m.cfg.Hidden
		a.head = &compute.Param{Name: files.ScoreName, Shape: []int{1, d}, Rows: 1, Cols: d, Decay: true}
		a.params = append(a.params, a.head)
	}
	m.users++
	if err := a.take(weightNeeds(a.params,
		func(*compute.Param) compute.Class { return compute.Wide })); err != nil {
		return nil, err
	}
	for i, p := range a.params {
		switch {
		case p == a.head && o.Kind == Scorer:
			a.draw(p, i, o.ScoreInit)
		case strings.HasSuffix(p.Name, ".lora_A.weight"):
			limit := 1 / math.Sqrt(float64(p.Cols))
			a.fill(p, func(j int) float32 {
				return float32(limit * (2*philox.Float64(o.Seed, philox.Init, uint64(i), uint64(j),
					0) - 1))
			})
		default:
			a.fill(p, func(int) float32 { return 0 })
		}
	}
	err := a.be.Sync()
	if err == nil && o.Trainable {
		err = a.takeGradients()
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("model: adapt: %w", err)
	}
	return a, nil
}

// Base returns the frozen model from which Adapt made m, or nil.
func (m *Model) Base() *Model { return m.base }

// Alone reports whether the bits of a token's results do not depend on what else a call computes,
// so that sampling has the bits of the training passes (Backend.Alone).
func (m *Model) Alone() bool { return m.be.Alone() }

// LoRA returns the settings of m's adapters.
func (m *Model) LoRA() LoRA { return m.opt.LoRA }

// linearAdd computes a linear layer, with its adapter if it has one, added to r:
//
//	y = r + x wᵀ + s (x Aᵀ) Bᵀ
func (m *network) linearAdd(y, r, x compute.Tensor, w *compute.Param) {
	m.be.LinearAdd(y, r, x, w)
	if ad := m.adapters[w]; ad != nil {
		m.be.LinearAdd(y, y, m.lowRank(ad, x), ad.b)
	}
}

// linear computes a linear layer without bias, with its adapter if it has one:
//
//	y = x wᵀ + s (x Aᵀ) Bᵀ
func (m *network) linear(y, x compute.Tensor, w *compute.Param) {
	m.be.Linear(y, x, w, nil, false)
	m.adapt(y, x, w)
}

// linears computes linear layers of one input x, with their biases and adapters.
func (m *network) linears(ps []compute.Projection, x compute.Tensor) {
	m.be.Linears(ps, x)
	for _, p := range ps {
		m.adapt(p.Y, x, p.W)
	}
}

// adapt adds the output of w's adapter to y: y += s (x Aᵀ) Bᵀ.
func (m *network) adapt(y, x compute.Tensor, w *compute.Param) {
	ad := m.adapters[w]
	if ad == nil {
		return
	}
	m.be.Linear(y, m.lowRank(ad, x), ad.b, nil, true)
}

// lowRank returns s x Aᵀ, in the memory of low.
func (m *network) lowRank(ad *adapter, x compute.Tensor) compute.Tensor {
	t := m.low(ad, x)
	m.be.Linear(t, x, ad.a, nil, false)
	m.be.Scale(t, ad.scale)
	return t
}

// low returns the memory for x Aᵀ.
func (m *network) low(ad *adapter, x compute.Tensor) compute.Tensor {
	return m.acts.lowNR.Slice(0, x.Len()/ad.a.Cols*ad.a.Rows)
}

// dlow returns the memory for the gradient of x Aᵀ.
func (m *network) dlow(ad *adapter, x compute.Tensor) compute.Tensor {
	return m.acts.dlowNR.Slice(0, x.Len()/ad.a.Cols*ad.a.Rows)
}

// inputGrad computes dx of linearGrad, without acc, and dt of adaptGrad.
func (m *network) inputGrad(dx compute.Tensor, w *compute.Param, dy compute.Tensor) {
	m.be.LinearGrad(dx, w, nil, dy, compute.Tensor{}, false)
	if ad := m.adapters[w]; ad != nil {
		dt := m.dlow(ad, dx)
		m.be.LinearGrad(dt, ad.b, nil, dy, compute.Tensor{}, false)
		m.be.Scale(dt, ad.scale)
		m.be.LinearGrad(dx, ad.a, nil, dt, compute.Tensor{}, true)
	}
}

// weightGrad computes the rest of linearGrad for a layer without bias, directly behind inputGrad,
// whose dt it reads.
func (m *network) weightGrad(w *compute.Param, dy, x compute.Tensor) {
	if !w.G.Absent() {
		m.be.LinearGrad(compute.Tensor{}, w, nil, dy, x, false)
	}
	if ad := m.adapters[w]; ad != nil {
		t := m.low(ad, x)
		m.be.Linear(t, x, ad.a, nil, false)
		m.be.Scale(t, ad.scale)
		m.be.LinearGrad(compute.Tensor{}, ad.b, nil, dy, t, false)
		m.be.LinearGrad(compute.Tensor{}, ad.a, nil, m.dlow(ad, x), x, false)
	}
}

// trains reports whether w or its adapter has a gradient.
func (m *network) trains(w *compute.Param) bool { return !w.G.Absent() || m.adapters[w] != nil }

// linearGrad computes the gradient dx of linear, and adds to the gradients that w, b and w's
// adapter have.
//
//	dx (=, or += if acc) dy w + the adapter's part (adaptGrad)
func (m *network) linearGrad(dx compute.Tensor, w, b *compute.Param, dy, x compute.Tensor,
	acc bool) {
	m.be.LinearGrad(dx, w, b, dy, x, acc)
	m.adaptGrad(dx, w, dy, x)
}

// linearsGrad computes the gradient of linears. The gradients of the outputs are in Projection.Y.
func (m *network) linearsGrad(dx compute.Tensor, ps []compute.Projection, x compute.Tensor) {
	if len(m.adapters) > 0 && !m.be.Joined() {
		for i, p := range ps { // one product for all would only change the order of dx's sum
			m.linearGrad(dx, p.W, p.B, p.Y, x, i > 0)
		}
		return
	}
	m.be.LinearsGrad(dx, ps, x)
	for _, p := range ps {
		m.adaptGrad(dx, p.W, p.Y, x)
	}
}

// adaptGrad adds the gradient of adapt; it computes x Aᵀ again.
//
//	t = s x Aᵀ;  B.G += dyᵀ t;  dt = s dy B;  A.G += dtᵀ x;  dx += dt A
func (m *network) adaptGrad(dx compute.Tensor, w *compute.Param, dy, x compute.Tensor) {
	ad := m.adapters[w]
	if ad == nil {
		return
	}
	t, dt := m.low(ad, x), m.dlow(ad, x)
	m.be.Linear(t, x, ad.a, nil, false)
	m.be.Scale(t, ad.scale)
	m.be.LinearGrad(dt, ad.b, nil, dy, t, false)
	m.be.Scale(dt, ad.scale)
	m.be.LinearGrad(dx, ad.a, nil, dt, x, true)
}
