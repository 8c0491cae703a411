//go:build nvidia

package cuda

import (
	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// GatedConv computes u, and convolves it over the tokens that each token sees last.
func (b *Backend) GatedConv(yND, uND, gN3D compute.Tensor, w *compute.Param, p compute.Pack) {
	const op = "GatedConv"
	before := p.Before(nil)
	N := len(before)
	D, J := compute.CheckGatedConv(op, N, gN3D, w)
	y, u := b.narrowView(op, "y", yND, N*D), b.narrowView(op, "u", uND, N*D)
	g, W := b.narrowView(op, "g", gN3D, 3*N*D), wide(op, "w", w.W, w.Len())
	if N == 0 {
		return
	}
	defer b.enter()()
	b.gatedInputs(u, g, 0, N, D)
	b.convolve(y, u, g, W, compute.Back(nil, before, J), N, D, J)
}

// gatedInputs writes u of N rows of g to the rows that slots, on the device, gives, or in order.
func (b *Backend) gatedInputs(u, g view, slots driver.Ptr, N, D int) {
	b.launch(b.k.gatedConvU[u.t], b.eachRow(N, D), at(u.p), at(g.p), at(slots), whole(N), whole(D))
}

// convolve writes y, of which a row reads the rows of u that back has for it.
func (b *Backend) convolve(y, u, g, w view, back []int32, N, D, J int) {
	b.launch(b.k.gatedConv[y.t], b.eachRow(N, D), at(y.p), at(u.p), at(g.p), at(w.p),
		at(index(b, "back", back)), whole(N), whole(D), whole(J))
}

// GatedConvGrad computes u again, and the gradients of g and w.
func (b *Backend) GatedConvGrad(dgN3D, uND compute.Tensor, w *compute.Param, dyND,
	gN3D compute.Tensor, p compute.Pack) {
	const op = "GatedConvGrad"
	before := p.Before(nil)
	N := len(before)
	D, J := compute.CheckGatedConv(op, N, gN3D, w)
	dg, u := b.narrowView(op, "dg", dgN3D, 3*N*D), b.narrowView(op, "u", uND, N*D)
	dy, g := b.narrowView(op, "dy", dyND, N*D), b.narrowView(op, "g", gN3D, 3*N*D)
	W := wide(op, "w", w.W, w.Len())
	var grad view
	if !w.G.Absent() {
		grad = wide(op, "G", w.G, w.Len())
	}
	if N == 0 {
		return
	}
	defer b.enter()()
	back := index(b, "back", compute.Back(nil, before, J))
	b.gatedInputs(u, g, 0, N, D)
	if grad.n > 0 {
		rows := sumRows(N, D*J)
		parts, part := blocks(N, rows), b.scratch(partialBytes(N, D*J))[0]
		b.launch(b.k.gatedConvWGrad[u.t], grid{blocks(D*J, 256), parts, 1, 256, 0}, at(part),
			at(u.p), at(dy.p), at(g.p), at(back), whole(N), whole(D), whole(J), whole(rows))
		b.addPartials(grad, part, parts, D*J)
	}
	first, next := compute.Successors(before, J)
	b.launch(b.k.gatedConvGrad[u.t], b.eachRow(N, D), at(dg.p), at(u.p), at(dy.p), at(g.p),
		at(W.p), at(back), at(index(b, "first successors", first)),
		at(index(b, "successors", next)), whole(N), whole(D), whole(J))
}

// GatedConvDecode computes GatedConv for one token a row over paged u.
func (b *Backend) GatedConvDecode(yRD, gR3D, cache compute.Tensor, w *compute.Param, slots []int32,
	pages compute.Pages) {
	const op = "GatedConvDecode"
	R := len(slots)
	D, J := compute.CheckGatedConv(op, R, gR3D, w)
	y, g := b.narrowView(op, "y", yRD, R*D), b.narrowView(op, "g", gR3D, 3*R*D)
	if R == 0 {
		return
	}
	u, W := b.narrowView(op, "cache", cache, cache.Len()), wide(op, "w", w.W, w.Len())
	n := compute.RowsOf(op, "cache", cache, D)
	compute.CheckIndices(op, "slots", slots, n)
	defer b.enter()()
	b.gatedInputs(u, g, index(b, "slots", slots), R, D)
	b.convolve(y, u, g, W, pages.Back(nil, J), R, D, J)
}
