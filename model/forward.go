package model

import (
	"fmt"
	"math"

	"gad/internal/compute"
)

// workspace is memory by purpose, reused between calls: a purpose's block is
// allocated once and again only when more is asked for. What is in it is of use
// until the next call of any model that has it.
type workspace struct {
	be   compute.Backend
	bufs map[purpose]compute.Tensor
	err  error // first failure since take

	trying bool      // try is under way
	taken  []purpose // by it
}

// purpose is what memory is for, in one layer or for all.
type purpose struct {
	layer int // or all
	what  string
}

// all is the layer of what all layers share.
const all = -1

func (p purpose) String() string {
	if p.layer == all {
		return p.what
	}
	return fmt.Sprintf("layer %d: %s", p.layer, p.what)
}

// get is n elements for a purpose that has no layer.
func (w *workspace) get(what string, c compute.Class, n int) compute.Tensor {
	return w.in(purpose{all, what}, c, n)
}

// in is n elements for a purpose. After a failure it returns absent tensors;
// take tells.
func (w *workspace) in(what purpose, c compute.Class, n int) compute.Tensor {
	if w.err != nil || n == 0 {
		return compute.Tensor{}
	}
	t, ok := w.bufs[what]
	if !ok || t.Len() < n {
		if ok {
			w.be.Free(t)
			delete(w.bufs, what)
		}
		if t, w.err = w.be.Alloc(what.String(), c, n); w.err != nil {
			return compute.Tensor{}
		}
		if w.bufs == nil {
			w.bufs = map[purpose]compute.Tensor{}
		}
		w.bufs[what] = t
		if w.trying {
			w.taken = append(w.taken, what)
		}
	}
	return t.Slice(0, n)
}

// take is the first failure of the gets before it.
func (w *workspace) take() error {
	err := w.err
	w.err = nil
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// try is take for the gets of f. If one fails, the memory is free that the others took.
func (w *workspace) try(f func()) error {
	w.trying, w.taken = true, w.taken[:0]
	f()
	w.trying = false
	err := w.take()
	for _, what := range w.taken {
		if err != nil {
			w.be.Free(w.bufs[what])
			delete(w.bufs, what)
		}
	}
	return err
}

// free leaves nothing; who asks again gets new blocks.
func (w *workspace) free() {
	for what, t := range w.bufs {
		w.be.Free(t)
		delete(w.bufs, what)
	}
}

// angles makes sure that the rotary table has n positions.
func (m *Model) angles(n int) error {
	if n <= m.ropeN {
		return nil
	}
	// Doubled, so that growing sequences do not build it at every step.
	n = min(max(n, 2*m.ropeN, 256), max(n, m.cfg.MaxPosition))
	m.freeAngles()
	t, err := m.be.Alloc(fmt.Sprintf("rotary table [%d,%d]", n, m.cfg.HeadDim), compute.Wide, n*m.cfg.HeadDim)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	m.rope, m.ropeN = t, n
	m.be.Upload(t, m.cfg.ropeTable(n))
	return nil
}

func (m *Model) freeAngles() {
	if m.ropeN > 0 {
		m.be.Free(m.rope)
	}
	m.rope, m.ropeN = compute.Tensor{}, 0
}

// block is what the forward pass of one block leaves for its backward pass.
type block struct {
	xND          compute.Tensor // the block's input
	rstd1N       compute.Tensor
	qrNHE, krNKE compute.Tensor // before the q/k norm; absent without one
	rstdqNH      compute.Tensor
	rstdkNK      compute.Tensor
	qNHE, kNKE   compute.Tensor // rotated
	qkNHE        compute.Tensor // both, where they are columns that lie side by side
	vNKE         compute.Tensor
	oNHE, lseNH  compute.Tensor
	x2ND         compute.Tensor // after attention
	rstd2N       compute.Tensor
	gateNF, upNF compute.Tensor
}

// acts is the activations of a pass over N tokens.
type acts struct {
	n      int
	blocks []block          // one a layer when kept; else one for all
	xs     []compute.Tensor // [L+1] inputs of the blocks, and the last one's output; one for all in inference
	hND    compute.Tensor   // scratch: a norm's output, the final one's at the end
	actNF  compute.Tensor   // scratch: SwiGLU's output
	rstdN  compute.Tensor   // of the final norm
	lowNR  compute.Tensor   // scratch: what an adapter's A puts out

	ps []compute.Projection // of the running operation

	// Gradients, in training only.
	dxND, dhND, dqNHE, dkNKE, dqkNHE, dvNKE, doNHE, dgNF, duNF, dlowNR compute.Tensor
	dqrNHE, dkrNKE                                                     compute.Tensor // before the q/k norm; dq and dk themselves without one
}

// What a pass keeps.
type keep int

const (
	keepNothing keep = iota // inference: one block's memory, the residual stream in place
	keepInputs              // training with recomputation
	keepBlocks              // training
)

// activations lays out those of n tokens in the workspace, in place of the pass
// before's.
func (m *Model) activations(n int, k keep) *acts {
	m.cfg.acts(&m.acts, n, k, m.opt.LoRA.Rank, m.be.Joined(), m.ws.in)
	return &m.acts
}

// acts lays out the activations of n tokens in a, with adapters of the given rank (0:
// none). joined has the outputs of q, k and v, and of gate and up, as columns of one matrix
// (compute.Footprint); get is the workspace's, or a counter's when only the size is wanted. What a
// norm or SwiGLU puts out is computed again in the backward pass instead of being kept:
// it costs no matrix product and is a third of the memory.
func (c *Config) acts(a *acts, n int, k keep, rank int, joined bool, get func(what purpose, c compute.Class, n int) compute.Tensor) {
	d, h, kv, e, f := c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.FFN
	*a = acts{n: n, xs: a.xs[:0], blocks: a.blocks[:0], ps: a.ps[:0]}
	wide := func(layer int, what string, width int) compute.Tensor {
		return get(purpose{layer, what}, compute.Wide, n*width)
	}
	narrow := func(layer int, what string, width int) compute.Tensor {
		return get(purpose{layer, what}, compute.Narrow, n*width)
	}
	// columns are matrices of these widths that lie side by side in a tensor.
	columns := func(in compute.Tensor, widths ...int) (ts [3]compute.Tensor) {
		width, at := 0, 0
		for _, w := range widths {
			width += w
		}
		for i, w := range widths {
			if !in.Absent() { // it is where only the size is wanted, or after a failure
				ts[i] = in.Slice(0, n*width).Columns(width, at, at+w)
			}
			at += w
		}
		return ts
	}
	q, kk := h*e, kv*e // widths of queries, and of keys or values
	inputs, kept := 1, 1
	if k != keepNothing {
		inputs = c.Layers + 1
	}
	if k == keepBlocks {
		kept = c.Layers
	}
	for i := range inputs {
		a.xs = append(a.xs, wide(i, "residual stream [N,D]", d))
	}
	for i := range kept {
		b := block{
			rstd1N: wide(i, "first norm [N]", 1),
			oNHE:   narrow(i, "attention [N,H,E]", q),
			lseNH:  wide(i, "attention sums [N,H]", h),
			rstd2N: wide(i, "second norm [N]", 1),
		}
		var qkv [3]compute.Tensor // what the products put out
		if joined {
			both := narrow(i, "queries, keys and values [N,H+2K,E]", q+2*kk)
			if qkv = columns(both, q, kk, kk); !c.QKNorm {
				b.qkNHE = columns(both, q+kk, kk)[0]
			}
			gu := columns(narrow(i, "gate and up [N,2F]", 2*f), f, f)
			b.gateNF, b.upNF = gu[0], gu[1]
		} else {
			names := [2]string{"queries [N,H,E]", "keys [N,K,E]"}
			if c.QKNorm {
				names = [2]string{"queries before their norm [N,H,E]", "keys before their norm [N,K,E]"}
			}
			qkv = [3]compute.Tensor{narrow(i, names[0], q), narrow(i, names[1], kk), narrow(i, "values [N,K,E]", kk)}
			b.gateNF, b.upNF = narrow(i, "gate [N,F]", f), narrow(i, "up [N,F]", f)
		}
		b.qNHE, b.kNKE, b.vNKE = qkv[0], qkv[1], qkv[2]
		if c.QKNorm {
			b.qrNHE, b.krNKE = b.qNHE, b.kNKE
			b.qNHE, b.kNKE = narrow(i, "queries [N,H,E]", q), narrow(i, "keys [N,K,E]", kk)
			b.rstdqNH = wide(i, "query norm [N,H]", h)
			b.rstdkNK = wide(i, "key norm [N,K]", kv)
		}
		if k != keepNothing {
			b.x2ND = wide(i, "after attention [N,D]", d)
		}
		a.blocks = append(a.blocks, b)
	}
	a.hND = narrow(all, "normed [N,D]", d)
	a.actNF = narrow(all, "SwiGLU [N,F]", f)
	a.rstdN = wide(all, "final norm [N]", 1)
	if rank > 0 {
		a.lowNR = narrow(all, "adapter [N,r]", rank)
	}
	if k != keepNothing {
		a.dxND = wide(all, "gradient of the residual stream [N,D]", d)
		a.dhND = narrow(all, "gradient of a norm [N,D]", d)
		a.doNHE = narrow(all, "gradient of attention [N,H,E]", q)
		if joined {
			both := narrow(all, "gradient of queries, keys and values [N,H+2K,E]", q+2*kk)
			qkv := columns(both, q, kk, kk)
			a.dqNHE, a.dkNKE, a.dvNKE = qkv[0], qkv[1], qkv[2]
			a.dqrNHE, a.dkrNKE = a.dqNHE, a.dkNKE
			width := 2 * f
			if c.QKNorm { // gate's and up's are of no use any more when queries' and keys' are computed
				width = max(width, q+kk)
			}
			gu := narrow(all, "gradient of gate and up [N,2F]", width)
			switch {
			case !c.QKNorm:
				a.dqkNHE = columns(both, q+kk, kk)[0]
			case !gu.Absent():
				a.dqNHE, a.dkNKE = gu.Slice(0, n*q), gu.Slice(n*q, n*(q+kk))
			}
			dgu := columns(gu, f, f)
			a.dgNF, a.duNF = dgu[0], dgu[1]
		} else {
			a.dqNHE = narrow(all, "gradient of queries [N,H,E]", q)
			a.dkNKE = narrow(all, "gradient of keys [N,K,E]", kk)
			a.dvNKE = narrow(all, "gradient of values [N,K,E]", kk)
			a.dqrNHE, a.dkrNKE = a.dqNHE, a.dkNKE
			a.dgNF = narrow(all, "gradient of the gate [N,F]", f)
			a.duNF = narrow(all, "gradient of up [N,F]", f)
		}
		if rank > 0 {
			a.dlowNR = narrow(all, "gradient of the adapter [N,r]", rank)
		}
	}
}

// block is the memory for layer i, with the input that belongs to it.
func (a *acts) block(i int) *block {
	b := &a.blocks[min(i, len(a.blocks)-1)]
	b.xND = a.xs[min(i, len(a.xs)-1)]
	if a.inPlace() {
		b.x2ND = b.xND
	}
	return b
}

// inPlace says that the residual stream is one tensor, updated in place: inference.
func (a *acts) inPlace() bool { return len(a.xs) == 1 }

// out is where layer i leaves its output.
func (a *acts) out(i int) compute.Tensor { return a.xs[min(i+1, len(a.xs)-1)] }

// attend is the attention of one block: it reads v of b, and q and k, which are not rotated
// yet, and writes o (and lse and the rotated q and k, when a gradient will want them).
type attend func(layer int, b *block, posN []int32)

// rotate turns queries and keys by their positions, or back: those of qk where both are
// there as one.
func (m *Model) rotate(qNHE, kNKE, qkNHE compute.Tensor, posN []int32, inverse bool) {
	c := &m.cfg
	if !qkNHE.Absent() {
		m.be.Rope(qkNHE, c.Heads+c.KVHeads, c.HeadDim, posN, m.rope, inverse)
		return
	}
	m.be.Rope(qNHE, c.Heads, c.HeadDim, posN, m.rope, inverse)
	m.be.Rope(kNKE, c.KVHeads, c.HeadDim, posN, m.rope, inverse)
}

func (m *Model) attnShape() compute.AttnShape {
	return compute.AttnShape{H: m.cfg.Heads, K: m.cfg.KVHeads, E: m.cfg.HeadDim, Scale: 1 / math.Sqrt(float64(m.cfg.HeadDim))}
}

// inner is block i up to gate and up; SwiGLU and the down projection are left to the
// caller, as a recomputation does not need them.
func (m *Model) inner(i int, a *acts, posN []int32, att attend) {
	be, c, p, b := m.be, &m.cfg, &m.blocks[i], a.block(i)
	be.RMSNorm(a.hND, b.rstd1N, b.xND, p.norm1, c.RMSEps)
	qr, kr := b.qNHE, b.kNKE
	if c.QKNorm {
		qr, kr = b.qrNHE, b.krNKE
	}
	a.ps = append(a.ps[:0], compute.Projection{Y: qr, W: p.wq, B: p.bq}, compute.Projection{Y: kr, W: p.wk, B: p.bk}, compute.Projection{Y: b.vNKE, W: p.wv, B: p.bv})
	m.linears(a.ps, a.hND)
	if c.QKNorm {
		be.RMSNorm(b.qNHE, b.rstdqNH, qr, p.qn, c.RMSEps)
		be.RMSNorm(b.kNKE, b.rstdkNK, kr, p.kn, c.RMSEps)
	}
	att(i, b, posN)
	m.linearAdd(b.x2ND, b.xND, b.oNHE, p.wo)
	be.RMSNorm(a.hND, b.rstd2N, b.x2ND, p.norm2, c.RMSEps)
	a.ps = append(a.ps[:0], compute.Projection{Y: b.gateNF, W: p.gate}, compute.Projection{Y: b.upNF, W: p.up})
	m.linears(a.ps, a.hND)
}

// forward runs the backbone and leaves the final norm's output in a.hND.
func (m *Model) forward(a *acts, ids, posN []int32, att attend) {
	be := m.be
	be.Embed(a.xs[0], m.embed, ids)
	for i := range m.blocks {
		m.inner(i, a, posN, att)
		b := a.block(i)
		be.SwiGLU(a.actNF, b.gateNF, b.upNF)
		m.linearAdd(a.out(i), b.x2ND, a.actNF, m.blocks[i].down)
	}
	be.RMSNorm(a.hND, a.rstdN, a.out(len(m.blocks)-1), m.norm, m.cfg.RMSEps)
}

// backward takes the gradient of the final norm's output in a.dhND and adds the
// gradients of all parameters below the head.
func (m *Model) backward(a *acts, ids, posN []int32, pack compute.Pack, att attend) {
	be, c, shape := m.be, &m.cfg, m.attnShape()
	be.RMSNormGrad(a.dxND, m.norm, a.dhND, a.out(len(m.blocks)-1), a.rstdN, false)
	for i := len(m.blocks) - 1; i >= 0; i-- {
		p, b := &m.blocks[i], a.block(i)
		if len(a.blocks) == 1 && i < len(m.blocks)-1 {
			m.inner(i, a, posN, att) // the shared memory holds the block above
		} else {
			be.RMSNorm(a.hND, b.rstd2N, b.x2ND, p.norm2, c.RMSEps)
		}

		// y = x2 + down(silu(gate(h)) * up(h)), h = norm2(x2)
		dy, act := a.dxND, compute.Tensor{}
		if m.trains(p.down) {
			act = a.actNF
			if be.Element(compute.Narrow) < be.Element(compute.Wide) { // for two products, which would round it each
				dy = a.dhND
				be.Copy(dy, a.dxND)
			}
		}
		m.inputGrad(a.dgNF, p.down, dy)
		be.SwiGLUGrad(act, a.dgNF, a.duNF, a.dgNF, b.gateNF, b.upNF)
		if !act.Absent() {
			m.weightGrad(p.down, dy, act)
		}
		a.ps = append(a.ps[:0], compute.Projection{Y: a.dgNF, W: p.gate}, compute.Projection{Y: a.duNF, W: p.up})
		m.linearsGrad(a.dhND, a.ps, a.hND)
		be.RMSNormGrad(a.dxND, p.norm2, a.dhND, b.x2ND, b.rstd2N, true)

		// x2 = x + o(attention(rope(q(h)), rope(k(h)), v(h))), h = norm1(x)
		m.linearGrad(a.doNHE, p.wo, nil, a.dxND, b.oNHE, false)
		be.AttentionGrad(a.dqNHE, a.dkNKE, a.dvNKE, a.doNHE, b.oNHE, b.lseNH, b.qNHE, b.kNKE, b.vNKE, shape, pack)
		m.rotate(a.dqNHE, a.dkNKE, a.dqkNHE, posN, true)
		if c.QKNorm {
			be.RMSNormGrad(a.dqrNHE, p.qn, a.dqNHE, b.qrNHE, b.rstdqNH, false)
			be.RMSNormGrad(a.dkrNKE, p.kn, a.dkNKE, b.krNKE, b.rstdkNK, false)
		}
		be.RMSNorm(a.hND, b.rstd1N, b.xND, p.norm1, c.RMSEps)
		a.ps = append(a.ps[:0], compute.Projection{Y: a.dqrNHE, W: p.wq, B: p.bq}, compute.Projection{Y: a.dkrNKE, W: p.wk, B: p.bk}, compute.Projection{Y: a.dvNKE, W: p.wv, B: p.bv})
		m.linearsGrad(a.dhND, a.ps, a.hND)
		be.RMSNormGrad(a.dxND, p.norm1, a.dhND, b.xND, b.rstd1N, true)
	}
	if !m.embed.G.Absent() {
		be.EmbedGrad(m.embed, a.dxND, ids)
	}
}
