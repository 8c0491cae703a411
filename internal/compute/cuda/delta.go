//go:build nvidia

package cuda

import (
	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// deltaKernels is the kernels of the gated delta rule and its convolution, by their type.
type deltaKernels struct {
	conv, convStates, convGrad, convWGrad, forward, backward, gates [2]*driver.Kernel
}

// SiLUConv convolves x over the tokens that each token sees last, and writes the states.
func (b *Backend) SiLUConv(yND, xND compute.Tensor, w *compute.Param, p compute.Pack,
	st compute.States) {
	const op = "SiLUConv"
	N, D, J := compute.CheckSiLUConv(op, xND, w, p, st)
	y, x := b.narrowView(op, "y", yND, N*D), b.narrowView(op, "x", xND, N*D)
	if N == 0 {
		return
	}
	W, states := wide(op, "w", w.W, D*J), wide(op, "states", st.Rows, st.Rows.Len())
	back, behind := st.Back(nil, p, J)
	defer b.enter()()
	b.launch(b.k.delta.conv[x.t], grid{blocks(N*D, 256), 1, 1, 256, 0}, at(y.p), at(x.p),
		at(states.p), at(W.p), at(index(b, "back", back)), whole(N), whole(D), whole(J))
	if st.To == nil || J == 1 {
		return
	}
	S := p.Segments()
	b.launch(b.k.delta.convStates[x.t], grid{blocks(S*D, 256), 1, 1, 256, 0}, at(states.p),
		at(x.p), at(index(b, "behind", behind)), at(index(b, "to", st.To)), whole(S), whole(D),
		whole(J))
}

// SiLUConvGrad computes the gradients of w and x.
func (b *Backend) SiLUConvGrad(dxND compute.Tensor, w *compute.Param, dyND, xND compute.Tensor,
	p compute.Pack) {
	const op = "SiLUConvGrad"
	N, D, J := compute.CheckSiLUConv(op, xND, w, p, compute.States{})
	dx, dy := b.narrowView(op, "dx", dxND, N*D), b.narrowView(op, "dy", dyND, N*D)
	x := b.narrowView(op, "x", xND, N*D)
	if N == 0 {
		return
	}
	W := wide(op, "w", w.W, D*J)
	before := p.Before(nil)
	defer b.enter()()
	back := index(b, "back", compute.Back(nil, before, J))
	if !w.G.Absent() {
		grad, rows := wide(op, "G", w.G, D*J), sumRows(N, D*J)
		parts, part := blocks(N, rows), b.scratch(partialBytes(N, D*J))[0]
		b.launch(b.k.delta.convWGrad[x.t], grid{blocks(D*J, 256), parts, 1, 256, 0}, at(part),
			at(dy.p), at(x.p), at(W.p), at(back), whole(N), whole(D), whole(J), whole(rows))
		b.addPartials(grad, part, parts, D*J)
	}
	first, next := compute.Successors(before, J)
	b.launch(b.k.delta.convGrad[x.t], grid{blocks(N*D, 256), 1, 1, 256, 0}, at(dx.p), at(dy.p),
		at(x.p), at(W.p), at(back), at(index(b, "first successors", first)),
		at(index(b, "successors", next)), whole(N), whole(D), whole(J))
}

// deltaRule is the operands of the rule on the device, and its layout.
type deltaRule struct {
	compute.DeltaShape
	DeltaLayout
	N          int
	x, a, b    view
	A, dt      view
	states     view
	segs, fams driver.Ptr
}

// newDeltaRule checks the operands, and returns them.
func newDeltaRule(b *Backend, op string, xNC, aNH, bNH compute.Tensor, A, dt *compute.Param,
	s compute.DeltaShape, p compute.Pack, st compute.States) (r deltaRule) {
	r.N = compute.CheckGatedDelta(op, xNC, aNH, bNH, A, dt, s, p, st, b.DeltaState(s))
	if b.DeltaState(s) == 0 {
		panic("cuda: " + op + ": wider keys than the kernels take: see DeltaState")
	}
	r.DeltaShape, r.DeltaLayout = s, LayDelta(p, st)
	r.x, r.a = b.narrowView(op, "x", xNC, r.N*s.Width()), b.narrowView(op, "a", aNH, r.N*s.H)
	r.b, r.A = b.narrowView(op, "b", bNH, r.N*s.H), wide(op, "A", A.W, s.H)
	r.dt, r.states = wide(op, "dt", dt.W, s.H), wide(op, "states", st.Rows, st.Rows.Len())
	return r
}

// stage brings the layout to the device.
func (r *deltaRule) stage(b *Backend) {
	r.segs, r.fams = index(b, "segments", r.Segments), index(b, "families", r.Families)
}

// forward queues the rule; o, u and kept may be 0.
func (r *deltaRule) forward(b *Backend, o, ends, u, kept driver.Ptr) {
	b.launch(b.k.delta.forward[r.x.t], grid{len(r.Families) / 2, r.H, blocks(r.F, deltaCols),
		deltaForwardThreads, deltaForwardShared(r.E)}, at(o), at(r.x.p), at(r.a.p), at(r.b.p),
		at(r.A.p), at(r.dt.p), at(r.segs), at(r.fams), at(r.states.p), at(ends), at(u), at(kept),
		whole(r.K), whole(r.H), whole(r.E), whole(r.F))
}

// GatedDelta computes the rule in one kernel.
func (b *Backend) GatedDelta(oNHF, xNC, aNH, bNH compute.Tensor, A, dt *compute.Param,
	s compute.DeltaShape, p compute.Pack, st compute.States) {
	const op = "GatedDelta"
	r := newDeltaRule(b, op, xNC, aNH, bNH, A, dt, s, p, st)
	o := b.narrowView(op, "o", oNHF, r.N*s.H*s.F)
	if r.N == 0 {
		return
	}
	defer b.enter()()
	r.stage(b)
	ends := driver.Ptr(0)
	if r.Ends > 0 {
		ends = b.scratch(r.stateBytes(r.Ends))[0]
	}
	r.forward(b, o.p, ends, 0, 0)
}

func (r *deltaRule) stateBytes(n int) int64 { return 4 * int64(n) * int64(r.H*r.E*r.F) }

// GatedDeltaGrad keeps the states behind the chunks, goes back through them, and adds up the
// gradients of the decays' parameters.
func (b *Backend) GatedDeltaGrad(dxNC, daNH, dbNH, doNHF, oNHF, xNC, aNH, bNH compute.Tensor, A,
	dt *compute.Param, s compute.DeltaShape, p compute.Pack) {
	const op = "GatedDeltaGrad"
	r := newDeltaRule(b, op, xNC, aNH, bNH, A, dt, s, p, compute.States{})
	N, H := r.N, s.H
	dx, do := b.narrowView(op, "dx", dxNC, N*s.Width()), b.narrowView(op, "do", doNHF, N*H*s.F)
	da, db := b.narrowView(op, "da", daNH, N*H), b.narrowView(op, "db", dbNH, N*H)
	b.narrowView(op, "o", oNHF, N*H*s.F)
	if N == 0 {
		return
	}
	gradient := func(name string, p *compute.Param) driver.Ptr {
		if p.G.Absent() {
			return 0
		}
		return wide(op, name, p.G, H).p
	}
	gA, gdt := gradient("A.G", A), gradient("dt.G", dt)
	defer b.enter()()
	r.stage(b)
	places := r.Ends + len(r.Families)/2
	m := b.scratch(r.stateBytes(r.Ends), r.stateBytes(r.Chunks), r.stateBytes(places),
		4*int64(N*H*s.F), 4*int64(N*H))
	ends, kept, ds, u, dg := m[0], m[1], m[2], m[3], m[4]
	r.forward(b, 0, ends, u, kept)
	b.set(ds, r.stateBytes(places)/4)
	b.launch(b.k.delta.backward[r.x.t], grid{len(r.Families) / 2, s.K, 1, deltaBackwardThreads,
		deltaBackwardShared(s.E)}, at(dx.p), at(db.p), at(dg), at(do.p), at(r.x.p), at(r.a.p),
		at(r.b.p), at(r.A.p), at(r.dt.p), at(r.segs), at(r.fams), whole(r.Ends), at(u), at(kept),
		at(ds), whole(s.K), whole(H), whole(s.E), whole(s.F))
	b.launch(b.k.delta.gates[r.x.t], grid{H, 1, 1, 256, 4 * 32}, at(da.p), at(gA), at(gdt), at(dg),
		at(r.a.p), at(r.A.p), at(r.dt.p), whole(N), whole(H))
}

// The launches of kernels/delta.cu.
const (
	deltaForwardThreads, deltaBackwardThreads = 128, 256
	deltaScores                               = deltaChunk * (deltaChunk + 1)
)

// deltaShared returns the elements of shared memory of a chunk.
func deltaShared(E int) int { return 5*deltaChunk + 2*deltaChunk*(E+1) + 2*deltaScores }

func deltaForwardShared(E int) int {
	return 4 * (deltaShared(E) + (E+3*deltaChunk)*(deltaCols+1))
}

func deltaBackwardShared(E int) int {
	return 4 * (deltaShared(E) + 2*deltaScores + 2*deltaChunk*(E+1) +
		(2*E+3*deltaChunk)*(deltaCols+1) + 2*deltaChunk + 32)
}
