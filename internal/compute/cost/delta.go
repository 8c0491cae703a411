package cost

import (
	"gad/internal/compute"
	"gad/internal/compute/cuda"
)

// SiLUConv queues the convolution, whose rows neighbours find in the cache, and the states.
func (b *Backend) SiLUConv(yND, xND compute.Tensor, w *compute.Param, p compute.Pack,
	st compute.States) {
	b.begin("SiLUConv")
	N, D, J := compute.CheckSiLUConv("SiLUConv", xND, w, p, st)
	if N == 0 {
		return
	}
	back, behind := st.Back(nil, p, J)
	b.index("back", back)
	b.moves(b.bytes(xND) + b.bytes(yND))
	if st.To == nil || J == 1 {
		return
	}
	b.index("behind", behind)
	b.index("to", st.To)
	b.moves((narrow + wide) * float64(len(behind)*D))
}

// SiLUConvGrad queues the sums of the weights' gradient, and the gradient of x.
func (b *Backend) SiLUConvGrad(dxND compute.Tensor, w *compute.Param, dyND, xND compute.Tensor,
	p compute.Pack) {
	b.begin("SiLUConvGrad")
	N, _, J := compute.CheckSiLUConv("SiLUConvGrad", xND, w, p, compute.States{})
	if N == 0 {
		return
	}
	before := p.Before(nil)
	start, row := compute.Successors(before, J)
	b.index("back", compute.Back(nil, before, J))
	if !w.G.Absent() {
		b.sums(b.bytes(xND)+b.bytes(dyND), cuda.SumParts(N, w.Len()), w.Len())
	}
	b.index("first successors", start)
	b.index("successors", row)
	b.moves(b.bytes(xND) + b.bytes(dyND) + b.bytes(dxND))
}

// deltaRate returns the multiply-adds, two each, that the kernels of the gated delta rule do in a
// second with so many blocks: they take no tensor cores, and one block goes through a sequence. A
// quarter of the rate of float32, a sixteenth of bfloat16's on a card of data centres, is an
// assumption: no card has run them.
func deltaRate(c Card, blocks int) float64 {
	return c.FLOPS / 16 / 4 * min(1, float64(blocks)/float64(c.SMs))
}

// GatedDelta queues one kernel.
func (b *Backend) GatedDelta(oNHF, xNC, aNH, bNH compute.Tensor, _, _ *compute.Param,
	s compute.DeltaShape, p compute.Pack, st compute.States) {
	b.begin("GatedDelta")
	if xNC.Len() == 0 {
		return
	}
	l := deltaLayout(b, p, st)
	c := elements.GatedDelta(xNC.Len()/s.Width(), s, st)
	blocks, _ := l.Blocks(s)
	b.queue(command{flops: c.FLOPs, rate: deltaRate(b.card, blocks), bytes: c.Bytes})
}

// deltaLayout brings a pack's layout to the device.
func deltaLayout(b *Backend, p compute.Pack, st compute.States) cuda.DeltaLayout {
	l := cuda.LayDelta(p, st)
	b.index("segments", l.Segments)
	b.index("families", l.Families)
	return l
}

// GatedDeltaGrad queues the rule again, zeros of the gradients by states, the way back, and the
// gradients of the decays.
func (b *Backend) GatedDeltaGrad(dxNC, daNH, dbNH, doNHF, _, xNC, aNH, _ compute.Tensor, _,
	_ *compute.Param, s compute.DeltaShape, p compute.Pack) {
	b.begin("GatedDeltaGrad")
	if xNC.Len() == 0 {
		return
	}
	l := deltaLayout(b, p, compute.States{})
	N, state := xNC.Len()/s.Width(), float64(s.H*s.E*s.F)
	forward, backward := l.Blocks(s)
	c := elements.GatedDelta(N, s, compute.States{})
	kept := wide * (float64(l.Chunks)*state + float64(N*s.H*s.F))
	b.queue(command{flops: c.FLOPs / 3 * 2, rate: deltaRate(b.card, forward), bytes: c.Bytes + kept})
	places := float64(l.Ends + len(l.Families)/2)
	b.copies(wide * places * state)
	b.queue(command{flops: c.FLOPs / 3 * 6, rate: deltaRate(b.card, backward),
		bytes: kept + b.bytes(xNC) + b.bytes(dxNC) + b.bytes(doNHF) + 2*b.bytes(dbNH)})
	b.moves(b.bytes(aNH) + b.bytes(daNH) + wide*float64(N*s.H))
}
