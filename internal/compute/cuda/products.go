//go:build nvidia

package cuda

import (
	"fmt"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// matrix is a row-major matrix on the device whose rows begin ld elements apart;
// turned says that a product takes its transpose. What is added to a result lies in it,
// unless from is another such matrix.
type matrix struct {
	view
	rows, cols, ld int
	turned         bool
	from           driver.Ptr
}

// dense is v as rows of cols elements without gaps.
func dense(v view, rows, cols int) matrix { return matrix{view: v, rows: rows, cols: cols, ld: cols} }

// transposed is m's transpose.
func (m matrix) transposed() matrix {
	m.turned = !m.turned
	return m
}

// shape is m's, as a product sees it.
func (m matrix) shape() (rows, cols int) {
	if m.turned {
		return m.cols, m.rows
	}
	return m.rows, m.cols
}

// strides are the distances of m's elements along its rows' and columns' index,
// as a product sees it.
func (m matrix) strides() (row, col uint64) {
	if m.turned {
		return 1, whole(m.ld)
	}
	return whole(m.ld), 1
}

// fits reports whether cuBLASLt's fast kernels take m: all rows begin at 16 bytes.
func (m matrix) fits() bool { return aligned(m.p) && aligned(m.from) && int64(m.ld)*m.t.size()%16 == 0 }

// mat is m for cuBLASLt.
func (m matrix) mat() driver.Mat {
	t := driver.F32
	if m.t == bf16 {
		t = driver.BF16
	}
	return driver.Mat{P: m.p, Type: t, Rows: int64(m.rows), Cols: int64(m.cols), Ld: int64(m.ld), From: m.from}
}

// multiply queues c (=, or if acc += or what c is from +) alpha*a*w, and adds bias to each row unless
// it is nil. cuBLASLt does it where all rows begin at 16 bytes, which its tensor
// core kernels want, unless it has no algorithm; our own kernel does the rest. Counts
// says how often it had none.
func (b *Backend) multiply(op string, c, a, w matrix, alpha float32, acc bool, bias *compute.Param) {
	M, K := a.shape()
	_, N := w.shape()
	if M == 0 || N == 0 || (K == 0 && acc && bias == nil && c.from == 0) {
		return
	}
	if c.fits() && a.fits() && w.fits() && K > 0 {
		var bv view
		if bias != nil {
			bv = b.weights(op, bias, c.t)
		}
		if aligned(bv.p) {
			b.counts.Products++
			if b.matmul(c.mat(), a.mat(), w.mat(), a.turned, w.turned, alpha, acc, bv.p) {
				return
			}
			if b.counts.Declined++; b.counts.Declined == 1 {
				b.counts.First = fmt.Sprintf("%s: [%d,%d] %v over %d %v", op, M, N, c.t, K, a.t)
			}
		}
	}
	var bv view
	if bias != nil {
		bv = b.weights(op, bias, f32)
	}
	if c.from != 0 {
		b.copyDev(c.p, c.from, int64(c.n)*c.t.size())
	}
	am, ak := a.strides()
	bk, bn := w.strides()
	b.launch(b.k.gemm[a.t][c.t], grid{blocks(M, 64), blocks(N, 64), 1, 256, 8704}, at(c.p), whole(c.ld), at(a.p), am, ak, at(w.p), bk, bn, at(bv.p),
		whole(M), whole(N), whole(K), real(alpha), flag(acc))
}

// Linear is the product with a parameter's transpose.
func (b *Backend) Linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	const op = "Linear"
	I, O := w.Cols, w.Rows
	N := rowsOf(op, "x", xNI, I)
	x, y := b.narrowed(op, "x", xNI, N*I), take(op, "y", yNO, N*O)
	if bias != nil {
		take(op, "bias", bias.W, O)
	}
	if N == 0 {
		return
	}
	defer b.enter()()
	W := b.weights(op, w, b.narrow)
	b.multiply(op, dense(y, N, O), dense(x, N, I), dense(W, O, I).transposed(), 1, acc, bias)
}

// LinearAdd is the product with a parameter's transpose, added to r.
func (b *Backend) LinearAdd(yNO, rNO, xNI compute.Tensor, w *compute.Param) {
	const op = "LinearAdd"
	I, O := w.Cols, w.Rows
	N := rowsOf(op, "x", xNI, I)
	x, y, r := b.narrowed(op, "x", xNI, N*I), wide(op, "y", yNO, N*O), wide(op, "r", rNO, N*O)
	if N == 0 {
		return
	}
	defer b.enter()()
	c := dense(y, N, O)
	if r.p != y.p {
		c.from = r.p
	}
	W := b.weights(op, w, b.narrow)
	b.multiply(op, c, dense(x, N, I), dense(W, O, I).transposed(), 1, true, nil)
}

// Linears is Linear for each of ps.
func (b *Backend) Linears(ps []compute.Projection, xNI compute.Tensor) {
	for _, p := range ps {
		b.Linear(p.Y, xNI, p.W, p.B, false)
	}
}

// LinearGrad is the gradient of Linear. A Wide dy is rounded once, for both
// products; the bias's gradient sums it unrounded.
func (b *Backend) LinearGrad(dxNI compute.Tensor, w, bias *compute.Param, dyNO, xNI compute.Tensor, acc bool) {
	const op = "LinearGrad"
	I, O := w.Cols, w.Rows
	N := rowsOf(op, "dy", dyNO, O)
	dy := take(op, "dy", dyNO, N*O)
	var x, dx, g, gb view
	if !dxNI.Absent() {
		dx = b.narrowed(op, "dx", dxNI, N*I)
	}
	if !w.G.Absent() && !xNI.Absent() {
		x, g = b.narrowed(op, "x", xNI, N*I), wide(op, "G", w.G, O*I)
	}
	if bias != nil && !bias.G.Absent() {
		gb = wide(op, "bias.G", bias.G, O)
	}
	if N == 0 {
		return
	}
	defer b.enter()()
	var narrowBytes int64
	if dy.t != b.narrow {
		narrowBytes = int64(N*O) * b.narrow.size()
	}
	place := b.scratch(narrowBytes, partialBytes(N, O))
	if gb.n > 0 {
		b.columnSums(gb, dy, N, O, place[1])
	}
	if dy.t != b.narrow && dx.n+g.n > 0 {
		short := view{p: place[0], t: b.narrow, n: N * O}
		b.cast(short, dy)
		dy = short
	}
	dyNOm := dense(dy, N, O)
	if dx.n > 0 {
		W := b.weights(op, w, b.narrow)
		b.multiply(op, dense(dx, N, I), dyNOm, dense(W, O, I), 1, acc, nil)
	}
	if g.n > 0 {
		b.multiply(op, dense(g, O, I), dyNOm.transposed(), dense(x, N, I), 1, true, nil)
	}
}
