package cpu

import "gad/internal/compute"

// mixScratch is the scratch of convolutions and of the gated delta rule.
type mixScratch struct {
	before, back []int32   // as Pack.Before and Back append them
	taps, grads  []float32 // weights [J,D], and their gradient
	// of the delta rule: states that branches go on from; what the gradient keeps
	ends, kept []float32
}

// GatedConv convolves u = b*x over the tokens that each token sees last, and gates the sum by c.
// Rows of taps, here w, are [J,D]. Each term is one mulAcc of a row, so that the cache's rows give
// the bits of a pack's.
func (b *Backend) GatedConv(yND, uND, gN3D compute.Tensor, w *compute.Param, p compute.Pack) {
	const op = "GatedConv"
	b.mix.before = p.Before(b.mix.before[:0])
	N := len(b.mix.before)
	D, J := compute.CheckGatedConv(op, N, gN3D, w)
	if N == 0 {
		return
	}
	b.y, b.u, b.g = f32(op, "y", yND, N*D), f32(op, "u", uND, N*D), f32(op, "g", gN3D, 3*N*D)
	b.gatedInputs(N, D, nil)
	b.mix.back = compute.Back(b.mix.back[:0], b.mix.before, J)
	b.convolve(w, N, D, J)
}

// gatedInputs writes u = b*x of N rows of g, row n to slots[n] or, without slots, to row n.
func (b *Backend) gatedInputs(N, D int, slots []int32) {
	b.D, b.slots = D, slots
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			row := n
			if b.slots != nil {
				row = int(b.slots[n])
			}
			u, in, x := b.u[row*D:row*D+D], b.g[3*n*D:3*n*D+D], b.g[3*n*D+2*D:3*n*D+3*D]
			for i := range u {
				u[i] = in[i] * x[i]
			}
		}
	})
}

// turnTaps writes the weights [D,J], turned to [J,D], to the backend's scratch, and returns it.
func (b *Backend) turnTaps(wDJ []float32, D, J int) []float32 {
	b.mix.taps = grow(b, &b.mix.taps, D*J)
	for d := range D {
		for j := range J {
			b.mix.taps[j*D+d] = wDJ[d*J+j]
		}
	}
	return b.mix.taps
}

// convolve writes y, of which row n reads the rows of u that b.mix.back has for it.
func (b *Backend) convolve(w *compute.Param, N, D, J int) {
	b.w, b.D, b.J = b.turnTaps(f32("GatedConv", "w", w.W, D*J), D, J), D, J
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			y, c := b.y[n*D:n*D+D], b.g[3*n*D+D:3*n*D+2*D]
			b.sumTaps(y, n)
			for i := range y {
				y[i] *= c[i]
			}
		}
	})
}

// sumTaps writes v of row n: the sum of taps times the rows of u that the row sees.
func (b *Backend) sumTaps(v []float32, n int) {
	D, J := b.D, b.J
	clear(v)
	for j, m := range b.mix.back[n*J : (n+1)*J] {
		if m >= 0 {
			b.k.mulAcc(v, b.w[j*D:j*D+D], b.u[int(m)*D:int(m)*D+D], 1)
		}
	}
}

// GatedConvGrad computes the gradients of g and w: in the kernels x is dg. Of a row of dg, the
// third part first holds dv, and the first du.
func (b *Backend) GatedConvGrad(dgN3D, uND compute.Tensor, w *compute.Param, dyND,
	gN3D compute.Tensor, p compute.Pack) {
	const op = "GatedConvGrad"
	b.mix.before = p.Before(b.mix.before[:0])
	N := len(b.mix.before)
	D, J := compute.CheckGatedConv(op, N, gN3D, w)
	if N == 0 {
		return
	}
	b.x, b.u = f32(op, "dg", dgN3D, 3*N*D), f32(op, "u", uND, N*D)
	b.dy, b.g = f32(op, "dy", dyND, N*D), f32(op, "g", gN3D, 3*N*D)
	b.gatedInputs(N, D, nil)
	b.mix.back = compute.Back(b.mix.back[:0], b.mix.before, J)
	grad := b.tapsToLearn(op, w, N, D, J)
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			dg, dy, c := b.x[3*n*D:3*n*D+3*D], b.dy[n*D:n*D+D], b.g[3*n*D+D:3*n*D+2*D]
			clear(dg[:D])
			dc, dv := dg[D:2*D], dg[2*D:]
			b.sumTaps(dc, n)
			for i := range dc {
				dc[i] *= dy[i]
				dv[i] = dy[i] * c[i]
			}
		}
	})
	b.eachSlab(D, func(b *Backend, lo, hi int) {
		D, J := b.D, b.J
		for n := range b.N {
			dv := b.x[3*n*D+2*D+lo : 3*n*D+2*D+hi]
			for j, m := range b.mix.back[n*J : (n+1)*J] {
				if m < 0 {
					continue
				}
				at := int(m) * D
				b.k.mulAcc(b.x[3*at+lo:3*at+hi], b.w[j*D+lo:j*D+hi], dv, 1)
				if b.m != nil {
					b.k.mulAcc(b.m[j*D+lo:j*D+hi], dv, b.u[at+lo:at+hi], 1)
				}
			}
		}
	})
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			db, dx := b.x[3*n*D:3*n*D+D], b.x[3*n*D+2*D:3*n*D+3*D]
			in, x := b.g[3*n*D:3*n*D+D], b.g[3*n*D+2*D:3*n*D+3*D]
			for i, du := range db {
				db[i], dx[i] = du*x[i], du*in[i]
			}
		}
	})
	for i := range grad {
		grad[i] += b.m[i%J*D+i/J]
	}
}

// GatedConvDecode computes GatedConv for one token a row over paged u.
func (b *Backend) GatedConvDecode(yRD, gR3D, cache compute.Tensor, w *compute.Param, slots []int32,
	pages compute.Pages) {
	const op = "GatedConvDecode"
	R := len(slots)
	D, J := compute.CheckGatedConv(op, R, gR3D, w)
	if R == 0 {
		return
	}
	n := compute.RowsOf(op, "cache", cache, D)
	compute.CheckIndices(op, "slots", slots, n)
	b.y, b.u, b.g = f32(op, "y", yRD, R*D), f32(op, "cache", cache, n*D), f32(op, "g", gR3D, 3*R*D)
	b.gatedInputs(R, D, slots)
	b.mix.back = pages.Back(b.mix.back[:0], J)
	b.convolve(w, R, D, J)
}

// convCols is how many columns of a row SiLUConv takes at a time, and a task of its gradient.
const convCols = 256

// ones is the second operand of swiglu where that is silu.
var ones = func() (x [convCols]float32) {
	for i := range x {
		x[i] = 1
	}
	return x
}()

// convRow returns the columns lo to hi-1 of row m of x or, below -1, of a state (States.Back).
func (b *args) convRow(m, lo, hi int) []float32 {
	if m < 0 {
		return b.u[(-2-m)*b.D+lo : (-2-m)*b.D+hi]
	}
	return b.x[m*b.D+lo : m*b.D+hi]
}

// convolvePart writes the columns lo to hi-1 of v of row n: taps times the rows that it sees.
func (b *Backend) convolvePart(v []float32, n, lo, hi int) {
	clear(v)
	for j, m := range b.mix.back[n*b.J : (n+1)*b.J] {
		if m != -1 {
			b.k.mulAcc(v, b.w[j*b.D+lo:j*b.D+hi], b.convRow(int(m), lo, hi), 1)
		}
	}
}

// SiLUConv convolves x over the tokens that each token sees last. Rows before the first of a
// sequence are its state's.
func (b *Backend) SiLUConv(yND, xND compute.Tensor, w *compute.Param, p compute.Pack,
	st compute.States) {
	const op = "SiLUConv"
	N, D, J := compute.CheckSiLUConv(op, xND, w, p, st)
	if N == 0 {
		return
	}
	b.y, b.x = f32(op, "y", yND, N*D), f32(op, "x", xND, N*D)
	b.u = opt(op, "states", st.Rows, st.Rows.Len())
	b.w, b.D, b.J = b.turnTaps(f32(op, "w", w.W, D*J), D, J), D, J
	back, behind := st.Back(b.mix.back[:0], p, J)
	b.mix.back = back
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		var v [convCols]float32
		for n := lo; n < hi; n++ {
			for d := 0; d < D; d += convCols {
				end := min(D, d+convCols)
				b.convolvePart(v[:end-d], n, d, end)
				b.k.swiglu(b.y[n*D+d:n*D+end], v[:end-d], ones[:end-d])
			}
		}
	})
	for n := range p.Segments() {
		to := st.Target(n)
		for j := 0; j < J-1 && to >= 0; j++ { // a slot that is read too: from later rows
			row := b.u[(to*(J-1)+j)*D:][:D]
			if m := behind[n*(J-1)+j]; m == -1 {
				clear(row)
			} else {
				copy(row, b.convRow(int(m), 0, D))
			}
		}
	}
}

// tapsToLearn prepares the gradient of a convolution of N rows: it transposes the weights to taps x
// channels and makes b.m, the buffer of their gradient in that layout. It returns the gradient
// tensor to add to, or nil.
func (b *Backend) tapsToLearn(op string, w *compute.Param, N, D, J int) (grad []float32) {
	b.w, b.D, b.J, b.N = b.turnTaps(f32(op, "w", w.W, D*J), D, J), D, J, N
	b.m, grad = nil, opt(op, "G", w.G, D*J)
	if grad != nil {
		b.mix.grads = grow(b, &b.mix.grads, D*J)
		clear(b.mix.grads)
		b.m = b.mix.grads
	}
	return grad
}

// SiLUConvGrad computes the gradients of x and w, some columns a task: in the kernels y is dx.
func (b *Backend) SiLUConvGrad(dxND compute.Tensor, w *compute.Param, dyND, xND compute.Tensor,
	p compute.Pack) {
	const op = "SiLUConvGrad"
	N, D, J := compute.CheckSiLUConv(op, xND, w, p, compute.States{})
	if N == 0 {
		return
	}
	b.y, b.dy, b.x = f32(op, "dx", dxND, N*D), f32(op, "dy", dyND, N*D), f32(op, "x", xND, N*D)
	grad := b.tapsToLearn(op, w, N, D, J)
	b.mix.back, _ = compute.States{}.Back(b.mix.back[:0], p, J)
	b.parts(D, convCols, func(b *Backend, lo, hi int) {
		D, J := b.D, b.J
		var v, dv, y, up [convCols]float32
		n := hi - lo
		for row := range b.N {
			b.convolvePart(v[:n], row, lo, hi)
			copy(dv[:n], b.dy[row*D+lo:row*D+hi])
			b.k.swigluGrad(y[:n], dv[:n], up[:n], v[:n], ones[:n])
			clear(b.y[row*D+lo : row*D+hi])
			for j, m := range b.mix.back[row*J : (row+1)*J] {
				if m < 0 {
					continue
				}
				at := int(m) * D
				b.k.mulAcc(b.y[at+lo:at+hi], b.w[j*D+lo:j*D+hi], dv[:n], 1)
				if b.m != nil {
					b.k.mulAcc(b.m[j*D+lo:j*D+hi], dv[:n], b.x[at+lo:at+hi], 1)
				}
			}
		}
	})
	for i := range grad {
		grad[i] += b.m[i%J*D+i/J]
	}
}
