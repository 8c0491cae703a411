package model

import (
	"fmt"
	"slices"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/workspace"
)

// network is the computation of a model: its parameters, and the two passes over a pack of tokens.
type network struct {
	be   compute.Backend
	cfg  Config
	spec architecture.Spec
	layout
	adapters map[*compute.Param]*adapter // by the base's weight
	rank     int                         // of the adapters; 0: none

	ws     *workspace.Workspace
	angle  compute.Tensor // [ropes, positions, E] rotary tables
	angleN int            // positions in them

	// The running pass, whose memory the next one uses.
	pk       pack
	acts     acts
	progress progress
}

// newNetwork returns the network of a model with settings o and the parameters of l.
func newNetwork(be compute.Backend, c Config, l layout, o Options) network {
	return network{be: be, cfg: c, spec: c.spec(o.Kind), layout: l, rank: o.LoRA.Rank,
		ws: workspace.New(be)}
}

// angles makes the rotary tables at least n positions long.
func (m *network) angles(n int) error {
	if n <= m.angleN {
		return nil
	}
	// Lengths double, so that growing sequences do not rebuild the tables at every step.
	n = min(max(n, 2*m.angleN, 256), max(n, m.cfg.MaxPosition))
	m.freeAngles()
	size := n * m.cfg.HeadDim
	t, err := m.be.Alloc(fmt.Sprintf("rotary table [%d,%d]", n*len(m.spec.Ropes), m.cfg.HeadDim),
		compute.Wide, size*len(m.spec.Ropes))
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	m.angle, m.angleN = t, n
	for i, r := range m.spec.Ropes {
		m.be.Upload(t.Slice(i*size, (i+1)*size), r.Table(n))
	}
	return nil
}

// freeAngles frees the rotary tables.
func (m *network) freeAngles() {
	if m.angleN > 0 {
		m.be.Free(m.angle)
	}
	m.angle, m.angleN = compute.Tensor{}, 0
}

// table returns the table of a rotation of the spec.
func (m *network) table(rope int) compute.Tensor {
	size := m.angleN * m.cfg.HeadDim
	return m.angle.Slice(rope*size, (rope+1)*size)
}

// block has the tensors of one block's forward pass that its backward pass reads.
type block struct {
	xND          compute.Tensor // the block's input
	rstd1N       compute.Tensor
	qrNHE, krNKE compute.Tensor // before the q/k norm; absent without one
	rstdqNH      compute.Tensor
	rstdkNK      compute.Tensor
	qNHE, kNKE   compute.Tensor // rotated
	qkNHE        compute.Tensor // q and k as one tensor; absent unless they are adjacent columns
	vNKE         compute.Tensor
	oNHE, lseNH  compute.Tensor
	added1       added
	gateN3D      compute.Tensor // of a short convolution: its gates and its input
	convND       compute.Tensor // and its output
	gateNHE      compute.Tensor // of attention with an output gate
	delta        delta          // of the gated delta rule
	uND          compute.Tensor // scratch: its gated input
	x2ND         compute.Tensor // after attention
	rstd2N       compute.Tensor
	gateNF, upNF compute.Tensor
	added2       added
}

// delta has the tensors of the gated delta rule of H value heads: W columns of queries, keys and
// values, V of values.
type delta struct {
	xNW, cNW compute.Tensor // queries, keys and values before and behind their convolution
	zNV      compute.Tensor // gate of the output
	aNH, bNH compute.Tensor // decay and strength of an update, before their functions
	oNV      compute.Tensor // output before its norm
	rstdNH   compute.Tensor
}

// added has a linear layer's output before its norm, and that norm's rstd; absent without a norm
// between the layer and the residual stream.
type added struct{ tND, rstdN compute.Tensor }

// acts has the activations of a pass over N tokens.
type acts struct {
	blocks []block // one a layer with keepBlocks, else one for all
	// [L+1] inputs of the blocks, and the last one's output; in inference one for all
	xs    []compute.Tensor
	hND   compute.Tensor // scratch: a norm's output, the final one's at the end
	actNF compute.Tensor // scratch: SwiGLU's output
	rstdN compute.Tensor // rstd of the final norm
	lowNR compute.Tensor // scratch: the output of an adapter's A
	// scratch: a mixer's output behind its gate, and of the delta rule before it
	gatedNV, normedNV compute.Tensor

	ps []compute.Projection // projections of the running operation

	// Gradients, in training only.
	dxND, dhND, dqNHE, dkNKE, dqkNHE, dvNKE, doNHE, dgNF, duNF, dlowNR compute.Tensor
	dconvND, dgateN3D                                                  compute.Tensor
	dgateNHE                                                           compute.Tensor
	ddelta                                                             delta // without rstd
	// gradients before the q/k norm; without one the same tensors as dq and dk
	dqrNHE, dkrNKE compute.Tensor
}

// keep selects the activations that a forward pass keeps for its backward pass.
type keep int

const (
	keepNothing keep = iota // inference: one block's memory, the residual stream in place
	keepInputs              // training with recomputation
	keepBlocks              // training
)

// activations lays out the activations of n tokens in the workspace, over the previous pass's.
func (m *network) activations(n int, k keep) *acts {
	actLayout{&m.cfg, n, m.be.Joined(), m.ws.In}.acts(&m.acts, k, m.rank)
	return &m.acts
}

// actLayout lays out the activations of n tokens. If joined, the outputs of q, k and v, and of gate
// and up, are columns of one matrix (compute.Footprint). get is Workspace.In, or a function that
// only counts elements.
type actLayout struct {
	c      *Config
	n      int
	joined bool
	get    func(what workspace.Purpose, c compute.Class, n int) compute.Tensor
}

// wide returns a float32 tensor [n, width].
func (l *actLayout) wide(layer int, what string, width int) compute.Tensor {
	return l.get(workspace.Purpose{Layer: layer, What: what}, compute.Wide, l.n*width)
}

// narrow returns a tensor [n, width] in the backend's precision.
func (l *actLayout) narrow(layer int, what string, width int) compute.Tensor {
	return l.get(workspace.Purpose{Layer: layer, What: what}, compute.Narrow, l.n*width)
}

// columns splits a tensor [n, sum of widths] into adjacent matrices of these widths.
func (l *actLayout) columns(in compute.Tensor, widths ...int) (ts [3]compute.Tensor) {
	width, at := 0, 0
	for _, w := range widths {
		width += w
	}
	for i, w := range widths {
		if !in.Absent() { // absent if elements are only counted, or after a failure
			ts[i] = in.Slice(0, l.n*width).Columns(width, at, at+w)
		}
		at += w
	}
	return ts
}

// acts lays out, in a, the activations of a pass that keeps k, with adapters of the given rank (0:
// none). Outputs of norms and of SwiGLU are never kept: the backward pass recomputes them, which
// takes no matrix product, and they are a third of the memory.
func (l actLayout) acts(a *acts, k keep, rank int) {
	*a = acts{xs: a.xs[:0], blocks: a.blocks[:0], ps: a.ps[:0]}
	inputs, blocks := 1, 1
	if k != keepNothing {
		inputs = l.c.Layers + 1
	}
	if k == keepBlocks {
		blocks = l.c.Layers
	}
	d, f := l.c.Hidden, l.c.FFN
	for i := range inputs {
		a.xs = append(a.xs, l.wide(i, "residual stream [N,D]", d))
	}
	for i := range blocks {
		mixers := []architecture.Mixer{l.c.mixer(i)}
		if blocks == 1 { // one block's memory for all layers
			mixers = l.c.mixers()
		}
		b := l.block(i, mixers)
		if k != keepNothing {
			b.x2ND = l.wide(i, "after attention [N,D]", d)
		}
		a.blocks = append(a.blocks, b)
	}
	a.hND = l.narrow(workspace.All, "normed [N,D]", d)
	a.actNF = l.narrow(workspace.All, "SwiGLU [N,F]", f)
	a.rstdN = l.wide(workspace.All, "final norm [N]", 1)
	l.gates(a)
	if rank > 0 {
		a.lowNR = l.narrow(workspace.All, "adapter [N,r]", rank)
	}
	if k != keepNothing {
		l.gradients(a)
		if rank > 0 {
			a.dlowNR = l.narrow(workspace.All, "gradient of the adapter [N,r]", rank)
		}
	}
}

// widths returns the widths of the queries, and of the keys or the values.
func (l *actLayout) widths() (q, k int) {
	return l.c.Heads * l.c.HeadDim, l.c.KVHeads * l.c.HeadDim
}

// gates lays out the scratch memory of gates behind a mixer.
func (l *actLayout) gates(a *acts) {
	width := l.c.Mixer.values()
	a.normedNV = l.narrow(workspace.All, "normed output of the delta rule [N,V]", width)
	if architecture.Families[l.c.Architecture].Spec.OutGate {
		q, _ := l.widths()
		width = max(width, q)
	}
	a.gatedNV = l.narrow(workspace.All, "gated output [N,V]", width)
}

// block returns the activations of block i, which mixes by one of mixers, without its input and the
// residual stream after that.
func (l *actLayout) block(i int, mixers []architecture.Mixer) block {
	d, f := l.c.Hidden, l.c.FFN
	spec := architecture.Families[l.c.Architecture].Spec
	norms := 0
	if spec.PreNorm {
		norms = 1
	}
	b := block{
		rstd1N: l.wide(i, "first norm [N]", norms),
		rstd2N: l.wide(i, "second norm [N]", norms),
	}
	if slices.Contains(mixers, architecture.ShortConv) {
		b.gateN3D = l.narrow(i, "gates and input of the convolution [N,3D]", 3*d)
		b.convND = l.narrow(i, "convolution [N,D]", d)
		b.uND = l.narrow(workspace.All, "gated input of the convolution [N,D]", d)
	}
	if slices.Contains(mixers, architecture.DeltaRule) {
		b.delta = l.deltaRule(i, "", true)
	}
	if slices.Contains(mixers, architecture.Attention) {
		l.attention(&b, i)
	}
	if l.joined {
		gu := l.columns(l.narrow(i, "gate and up [N,2F]", 2*f), f, f)
		b.gateNF, b.upNF = gu[0], gu[1]
	} else {
		b.gateNF, b.upNF = l.narrow(i, "gate [N,F]", f), l.narrow(i, "up [N,F]", f)
	}
	if spec.PostNorm {
		b.added1 = added{l.narrow(i, "attention's sum [N,D]", d),
			l.wide(i, "norm of attention's sum [N]", 1)}
		b.added2 = added{l.narrow(i, "down [N,D]", d), l.wide(i, "norm of down [N]", 1)}
	}
	return b
}

// deltaRule lays out the activations of block i's gated delta rule or, of all blocks, their
// gradients: of is what their names begin with. o and z are separate if both are kept.
func (l *actLayout) deltaRule(i int, of string, kept bool) (d delta) {
	x := l.c.Mixer
	d.xNW = l.narrow(i, of+"delta rule's queries, keys and values [N,W]", x.mixed())
	d.cNW = l.narrow(i, of+"their convolution [N,W]", x.mixed())
	d.zNV = l.narrow(i, of+"delta rule's gate [N,V]", x.values())
	d.oNV = l.narrow(i, of+"delta rule [N,V]", x.values())
	d.aNH = l.narrow(i, of+"delta rule's decay [N,H]", x.ValueHeads)
	d.bNH = l.narrow(i, of+"delta rule's strength [N,H]", x.ValueHeads)
	if kept {
		d.rstdNH = l.wide(i, "delta rule's norm [N,H]", x.ValueHeads)
	}
	return d
}

// attention lays out the activations of block i's attention in b.
func (l *actLayout) attention(b *block, i int) {
	q, kk := l.widths()
	h, kv, spec := l.c.Heads, l.c.KVHeads, architecture.Families[l.c.Architecture].Spec
	qkNorm := spec.QKNorm != architecture.NoNorm
	b.oNHE = l.narrow(i, "attention [N,H,E]", q)
	b.lseNH = l.wide(i, "attention sums [N,H]", h)
	if spec.OutGate {
		b.gateNHE = l.narrow(i, "gate of attention [N,H,E]", q)
	}
	var qkv [3]compute.Tensor // outputs of the three projections
	if l.joined {
		both := l.narrow(i, "queries, keys and values [N,H+2K,E]", q+2*kk)
		if qkv = l.columns(both, q, kk, kk); !qkNorm {
			b.qkNHE = l.columns(both, q+kk, kk)[0]
		}
	} else {
		names := [2]string{"queries [N,H,E]", "keys [N,K,E]"}
		if qkNorm {
			names = [2]string{"queries before their norm [N,H,E]", "keys before their norm [N,K,E]"}
		}
		qkv = [3]compute.Tensor{l.narrow(i, names[0], q), l.narrow(i, names[1], kk),
			l.narrow(i, "values [N,K,E]", kk)}
	}
	b.qNHE, b.kNKE, b.vNKE = qkv[0], qkv[1], qkv[2]
	if qkNorm {
		b.qrNHE, b.krNKE = b.qNHE, b.kNKE
		b.qNHE, b.kNKE = l.narrow(i, "queries [N,H,E]", q), l.narrow(i, "keys [N,K,E]", kk)
		normsQ, normsK := h, kv
		if spec.QKNorm == architecture.WidthNorm {
			normsQ, normsK = 1, 1
		}
		b.rstdqNH = l.wide(i, "query norm [N,H]", normsQ)
		b.rstdkNK = l.wide(i, "key norm [N,K]", normsK)
	}
}

// gradients lays out the gradients of activations, one block's for all blocks.
func (l *actLayout) gradients(a *acts) {
	d, f := l.c.Hidden, l.c.FFN
	q, kk := l.widths()
	qkNorm := architecture.Families[l.c.Architecture].Spec.QKNorm != architecture.NoNorm
	a.dxND = l.wide(workspace.All, "gradient of the residual stream [N,D]", d)
	a.dhND = l.narrow(workspace.All, "gradient of a norm [N,D]", d)
	a.doNHE = l.narrow(workspace.All, "gradient of attention [N,H,E]", q)
	mixers := l.c.mixers()
	if architecture.Families[l.c.Architecture].Spec.OutGate {
		a.dgateNHE = l.narrow(workspace.All, "gradient of attention's gate [N,H,E]", q)
	}
	if slices.Contains(mixers, architecture.DeltaRule) {
		a.ddelta = l.deltaRule(workspace.All, "gradient of the ", false)
	}
	if slices.Contains(mixers, architecture.ShortConv) {
		a.dconvND = l.narrow(workspace.All, "gradient of the convolution [N,D]", d)
		a.dgateN3D = l.narrow(workspace.All, "gradient of the convolution's gates [N,3D]", 3*d)
	}
	if !l.joined {
		a.dqNHE = l.narrow(workspace.All, "gradient of queries [N,H,E]", q)
		a.dkNKE = l.narrow(workspace.All, "gradient of keys [N,K,E]", kk)
		a.dvNKE = l.narrow(workspace.All, "gradient of values [N,K,E]", kk)
		a.dqrNHE, a.dkrNKE = a.dqNHE, a.dkNKE
		a.dgNF = l.narrow(workspace.All, "gradient of the gate [N,F]", f)
		a.duNF = l.narrow(workspace.All, "gradient of up [N,F]", f)
		return
	}
	both := l.narrow(workspace.All, "gradient of queries, keys and values [N,H+2K,E]", q+2*kk)
	qkv := l.columns(both, q, kk, kk)
	a.dqNHE, a.dkNKE, a.dvNKE = qkv[0], qkv[1], qkv[2]
	a.dqrNHE, a.dkrNKE = a.dqNHE, a.dkNKE
	width := 2 * f
	if qkNorm { // the memory of gate and up is free when q and k are computed
		width = max(width, q+kk)
	}
	gu := l.narrow(workspace.All, "gradient of gate and up [N,2F]", width)
	switch {
	case !qkNorm:
		a.dqkNHE = l.columns(both, q+kk, kk)[0]
	case !gu.Absent():
		a.dqNHE, a.dkNKE = gu.Slice(0, l.n*q), gu.Slice(l.n*q, l.n*(q+kk))
	}
	dgu := l.columns(gu, f, f)
	a.dgNF, a.duNF = dgu[0], dgu[1]
}

// block returns the memory of layer i, with the layer's input.
func (a *acts) block(i int) *block {
	b := &a.blocks[min(i, len(a.blocks)-1)]
	b.xND = a.xs[min(i, len(a.xs)-1)]
	if a.inPlace() {
		b.x2ND = b.xND
	}
	return b
}

// inPlace reports whether the residual stream is one tensor, updated in place, as in inference.
func (a *acts) inPlace() bool { return len(a.xs) == 1 }

// output returns the output of layer i.
func (a *acts) output(i int) compute.Tensor { return a.xs[min(i+1, len(a.xs)-1)] }

// attend computes the attention of one block. It reads q, k and v of b, with q and k not yet
// rotated, and writes o, and for a gradient lse and the rotated q and k. In the place of attention
// it computes a short convolution, of the gates and the input in b, or the gated delta rule.
type attend func(layer int, b *block, posN []int32)

// rotate applies Rope, or its inverse, to queries and keys if layer l has rotary positions: in one
// call if qkNHE, both as one tensor, is present and both rotate alike.
func (m *network) rotate(l architecture.Layer, qNHE, kNKE, qkNHE compute.Tensor, posN []int32,
	inverse bool) {
	c := &m.cfg
	if l.Rope < 0 {
		return
	}
	if !qkNHE.Absent() && l.Query == l.Rope {
		m.be.Rope(qkNHE, c.Heads+c.KVHeads, c.HeadDim, posN, m.table(l.Rope), inverse)
		return
	}
	m.be.Rope(qNHE, c.Heads, c.HeadDim, posN, m.table(l.Query), inverse)
	m.be.Rope(kNKE, c.KVHeads, c.HeadDim, posN, m.table(l.Rope), inverse)
}

// attnShape returns the attention shape of layer l.
func (m *network) attnShape(l architecture.Layer) compute.AttnShape {
	return compute.AttnShape{H: m.cfg.Heads, K: m.cfg.KVHeads, E: m.cfg.HeadDim,
		Scale: m.spec.Scale, Window: l.Window, Cap: m.spec.ScoreCap}
}

// rmsNorm writes h = norm(x), or h = x if norm is nil.
func (m *network) rmsNorm(hND, rstdN, xND compute.Tensor, norm *compute.Param) {
	if norm == nil {
		m.be.Copy(hND, xND)
		return
	}
	m.be.RMSNorm(hND, rstdN, xND, norm, m.cfg.RMSEps)
}

// rmsNormGrad adds the gradient of rmsNorm to dx.
func (m *network) rmsNormGrad(dxND compute.Tensor, norm *compute.Param, dhND, xND,
	rstdN compute.Tensor) {
	if norm == nil {
		m.be.Add(dxND, dhND)
		return
	}
	m.be.RMSNormGrad(dxND, norm, dhND, xND, rstdN, true)
}

// scale multiplies t by s, which is 1 in most families.
func (m *network) scale(t compute.Tensor, s float64) {
	if s != 1 {
		m.be.Scale(t, s)
	}
}

// add writes y = r + residual * post(x wᵀ), the end of attention and of the feed-forward layer.
// Unless spec is Plain, hND is scratch.
func (m *network) add(y, r, x compute.Tensor, w, post *compute.Param, keep added,
	hND compute.Tensor) {
	if m.spec.Plain() {
		m.linearAdd(y, r, x, w)
		return
	}
	m.product(hND, x, w, post, keep)
	m.scale(hND, m.spec.Residual)
	if y != r {
		m.be.Copy(y, r)
	}
	m.be.Add(y, hND)
}

// product writes h = post(x wᵀ), and keeps the norm's input in keep; post may be nil.
func (m *network) product(hND, x compute.Tensor, w, post *compute.Param, keep added) {
	if post == nil {
		m.linear(hND, x, w)
		return
	}
	m.linear(keep.tND, x, w)
	m.be.RMSNorm(hND, keep.rstdN, keep.tND, post, m.cfg.RMSEps)
}

// addGrad returns the gradient of the linear layer's output in add, given the gradient of y in
// a.dxND. The result is a.dxND itself if spec is Plain, else a.dhND.
func (m *network) addGrad(a *acts, post *compute.Param, keep added) compute.Tensor {
	if m.spec.Plain() {
		return a.dxND
	}
	m.be.Copy(a.dhND, a.dxND)
	m.scale(a.dhND, m.spec.Residual)
	if post != nil {
		m.be.RMSNormGrad(a.dhND, post, a.dhND, keep.tND, keep.rstdN, false)
	}
	return a.dhND
}

// inner runs block i up to gate and up. The caller continues with the activation and the down
// projection, which a recomputation does not need.
func (m *network) inner(i int, a *acts, posN []int32, att attend) {
	p, b := &m.blocks[i], a.block(i)
	m.rmsNorm(a.hND, b.rstd1N, b.xND, p.norm1)
	m.add(b.x2ND, b.xND, m.mix(i, a, posN, att), p.wo, p.post1, b.added1, a.hND)
	m.rmsNorm(a.hND, b.rstd2N, b.x2ND, p.norm2)
	a.ps = append(a.ps[:0], compute.Projection{Y: b.gateNF, W: p.gate},
		compute.Projection{Y: b.upNF, W: p.up})
	m.linears(a.ps, a.hND)
}

// mix runs attention, or the layer's other mixer, of block i over the normed input in a.hND, and
// returns its output before the projection.
func (m *network) mix(i int, a *acts, posN []int32, att attend) compute.Tensor {
	be, eps, p, b := m.be, m.cfg.RMSEps, &m.blocks[i], a.block(i)
	switch d := b.delta; m.spec.Layers[i].Mixer {
	case architecture.ShortConv:
		m.linear(b.gateN3D, a.hND, p.win)
		att(i, b, posN)
		return b.convND
	case architecture.DeltaRule:
		a.ps = append(a.ps[:0], p.deltaInputs(d)...)
		m.linears(a.ps, a.hND)
		att(i, b, posN)
		be.RMSNorm(a.normed(d), d.rstdNH, d.oNV, p.on, eps)
		be.Gated(compute.SiLU, a.gated(d.oNV), d.zNV, a.normed(d))
		return a.gated(d.oNV)
	}
	qr, kr := b.qNHE, b.kNKE
	if p.qn != nil {
		qr, kr = b.qrNHE, b.krNKE
	}
	a.ps = append(a.ps[:0], compute.Projection{Y: qr, W: p.wq, B: p.bq},
		compute.Projection{Y: kr, W: p.wk, B: p.bk},
		compute.Projection{Y: b.vNKE, W: p.wv, B: p.bv})
	m.linears(a.ps, a.hND)
	if p.qn != nil {
		be.RMSNorm(b.qNHE, b.rstdqNH, qr, p.qn, eps)
		be.RMSNorm(b.kNKE, b.rstdkNK, kr, p.kn, eps)
	}
	if p.wg == nil {
		att(i, b, posN)
		return b.oNHE
	}
	m.linear(b.gateNHE, a.hND, p.wg)
	att(i, b, posN)
	be.Gated(compute.Sigmoid, a.gated(b.oNHE), b.gateNHE, b.oNHE)
	return a.gated(b.oNHE)
}

// deltaInputs returns the projections of the gated delta rule's input, whose outputs or their
// gradients are in d.
func (p *blockParams) deltaInputs(d delta) []compute.Projection {
	return []compute.Projection{{Y: d.xNW, W: p.wqkv}, {Y: d.zNV, W: p.wz}, {Y: d.aNH, W: p.wa},
		{Y: d.bNH, W: p.wb}}
}

// normed returns the scratch memory for the normed output of d.
func (a *acts) normed(d delta) compute.Tensor { return a.normedNV.Slice(0, d.oNV.Len()) }

// gated returns the scratch memory for a mixer's output o behind its gate.
func (a *acts) gated(o compute.Tensor) compute.Tensor { return a.gatedNV.Slice(0, o.Len()) }

// mixGrad computes the gradient of the projection behind mix and of mix, given the gradient dy of
// the projection's output, into a.dhND. It overwrites a.hND with the normed input.
func (m *network) mixGrad(i int, a *acts, dy compute.Tensor, posN []int32, pack compute.Pack) {
	be, p, b, l := m.be, &m.blocks[i], a.block(i), m.spec.Layers[i]
	switch l.Mixer {
	case architecture.DeltaRule:
		m.deltaGrad(i, a, dy, pack)
		return
	case architecture.ShortConv:
		m.linearGrad(a.dconvND, p.wo, nil, dy, b.convND, false)
		be.GatedConvGrad(a.dgateN3D, b.uND, p.conv, a.dconvND, b.gateN3D, pack)
		m.rmsNorm(a.hND, b.rstd1N, b.xND, p.norm1)
		m.linearGrad(a.dhND, p.win, nil, a.dgateN3D, a.hND, false)
		return
	}
	if p.wg == nil {
		m.linearGrad(a.doNHE, p.wo, nil, dy, b.oNHE, false)
	} else {
		be.Gated(compute.Sigmoid, a.gated(b.oNHE), b.gateNHE, b.oNHE)
		m.linearGrad(a.dgateNHE, p.wo, nil, dy, a.gated(b.oNHE), false)
		be.GatedGrad(compute.Sigmoid, compute.Tensor{}, a.dgateNHE, a.doNHE, a.dgateNHE, b.gateNHE,
			b.oNHE)
	}
	be.AttentionGrad(a.dqNHE, a.dkNKE, a.dvNKE, a.doNHE, b.oNHE, b.lseNH, b.qNHE, b.kNKE,
		b.vNKE, m.attnShape(l), pack)
	m.rotate(l, a.dqNHE, a.dkNKE, a.dqkNHE, posN, true)
	if p.qn != nil {
		be.RMSNormGrad(a.dqrNHE, p.qn, a.dqNHE, b.qrNHE, b.rstdqNH, false)
		be.RMSNormGrad(a.dkrNKE, p.kn, a.dkNKE, b.krNKE, b.rstdkNK, false)
	}
	m.rmsNorm(a.hND, b.rstd1N, b.xND, p.norm1)
	a.ps = append(a.ps[:0], compute.Projection{Y: a.dqrNHE, W: p.wq, B: p.bq},
		compute.Projection{Y: a.dkrNKE, W: p.wk, B: p.bk},
		compute.Projection{Y: a.dvNKE, W: p.wv, B: p.bv})
	m.linearsGrad(a.dhND, a.ps, a.hND)
	if p.wg != nil {
		m.linearGrad(a.dhND, p.wg, nil, a.dgateNHE, a.hND, true)
	}
}

// deltaGrad does the work of mixGrad in a layer of the gated delta rule. The output's norm and its
// gate are computed again.
func (m *network) deltaGrad(i int, a *acts, dy compute.Tensor, pack compute.Pack) {
	be, p, b := m.be, &m.blocks[i], a.block(i)
	d, g, n, y := b.delta, a.ddelta, a.normed(b.delta), a.gated(b.delta.oNV)
	be.RMSNorm(n, d.rstdNH, d.oNV, p.on, m.cfg.RMSEps)
	be.Gated(compute.SiLU, y, d.zNV, n)
	m.linearGrad(g.zNV, p.wo, nil, dy, y, false)
	be.GatedGrad(compute.SiLU, compute.Tensor{}, g.zNV, g.oNV, g.zNV, d.zNV, n)
	be.RMSNormGrad(g.oNV, p.on, g.oNV, d.oNV, d.rstdNH, false)
	be.GatedDeltaGrad(g.cNW, g.aNH, g.bNH, g.oNV, d.oNV, d.cNW, d.aNH, d.bNH, p.logA, p.dt,
		m.cfg.Mixer.shape(), pack)
	be.SiLUConvGrad(g.xNW, p.conv, g.cNW, d.xNW, pack)
	m.rmsNorm(a.hND, b.rstd1N, b.xND, p.norm1)
	a.ps = append(a.ps[:0], p.deltaInputs(g)...)
	m.linearsGrad(a.dhND, a.ps, a.hND)
}

// forward runs the backbone. It leaves the head's input in a.hND.
func (m *network) forward(a *acts, ids, posN []int32, att attend) {
	be := m.be
	be.Embed(a.xs[0], m.embed, ids)
	m.scale(a.xs[0], m.spec.Embed)
	for i := range m.blocks {
		p, b := &m.blocks[i], a.block(i)
		m.inner(i, a, posN, att)
		m.be.Gated(m.spec.Act, a.actNF, b.gateNF, b.upNF)
		m.add(a.output(i), b.x2ND, a.actNF, p.down, p.post2, b.added2, a.hND)
		m.progress.report(1)
	}
	be.RMSNorm(a.hND, a.rstdN, a.output(len(m.blocks)-1), m.norm, m.cfg.RMSEps)
	m.scale(a.hND, m.spec.Final)
}

// backward reads the gradient of the head's input from a.dhND, which it overwrites, and adds to the
// gradients of all parameters below the head. a, ids, posN and att are those of the forward pass,
// which must have kept activations.
func (m *network) backward(a *acts, ids, posN []int32, pack compute.Pack, att attend) {
	be := m.be
	m.scale(a.dhND, m.spec.Final)
	be.RMSNormGrad(a.dxND, m.norm, a.dhND, a.output(len(m.blocks)-1), a.rstdN, false)
	for i := len(m.blocks) - 1; i >= 0; i-- {
		p, b := &m.blocks[i], a.block(i)
		// recompute: the shared memory still has the activations of the block above
		if len(a.blocks) == 1 && i < len(m.blocks)-1 {
			m.inner(i, a, posN, att)
			if p.post2 != nil {
				m.be.Gated(m.spec.Act, a.actNF, b.gateNF, b.upNF)
				m.product(a.hND, a.actNF, p.down, p.post2, b.added2)
				m.rmsNorm(a.hND, b.rstd2N, b.x2ND, p.norm2)
			}
		} else {
			m.rmsNorm(a.hND, b.rstd2N, b.x2ND, p.norm2)
		}

		// y = x2 + residual * post2(down(act(gate(h)) * up(h))), h = norm2(x2)
		dy, act := m.addGrad(a, p.post2, b.added2), compute.Tensor{}
		if m.trains(p.down) {
			act = a.actNF
			// two products read dy, and each would round it
			if dy == a.dxND && be.Element(compute.Narrow) < be.Element(compute.Wide) {
				dy = a.dhND
				be.Copy(dy, a.dxND)
			}
		}
		m.inputGrad(a.dgNF, p.down, dy)
		m.be.GatedGrad(m.spec.Act, act, a.dgNF, a.duNF, a.dgNF, b.gateNF, b.upNF)
		if !act.Absent() {
			m.weightGrad(p.down, dy, act)
		}
		a.ps = append(a.ps[:0], compute.Projection{Y: a.dgNF, W: p.gate},
			compute.Projection{Y: a.duNF, W: p.up})
		m.linearsGrad(a.dhND, a.ps, a.hND)
		m.rmsNormGrad(a.dxND, p.norm2, a.dhND, b.x2ND, b.rstd2N)

		// x2 = x + residual * post1(o(attention(rope(q(h)), rope(k(h)), v(h)))), h = norm1(x); or
		// o(conv(in(h))); or the gated delta rule's
		m.mixGrad(i, a, m.addGrad(a, p.post1, b.added1), posN, pack)
		m.rmsNormGrad(a.dxND, p.norm1, a.dhND, b.xND, b.rstd1N)
		m.progress.report(2)
	}
	if !m.embed.G.Absent() {
		m.scale(a.dxND, m.spec.Embed)
		be.EmbedGrad(m.embed, a.dxND, ids)
	}
}
