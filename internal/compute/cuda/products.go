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

// dense returns v as rows of cols elements without gaps.
func dense(v view, rows,
	cols int) matrix {
	return matrix{view: v, rows: rows, cols: cols, ld: cols}
}

// transpose returns m's transpose.
func (m matrix) transpose() matrix {
	m.turned = !m.turned
	return m
}

// shape returns m's rows and columns, as a product sees it.
func (m matrix) shape() (rows, cols int) {
	if m.turned {
		return m.cols, m.rows
	}
	return m.rows, m.cols
}

// strides returns the distances of m's elements along its rows' and columns' index, as a product
// sees it.
func (m matrix) strides() (row, col uint64) {
	if m.turned {
		return 1, whole(m.ld)
	}
	return whole(m.ld), 1
}

// fits reports whether cuBLASLt's fast kernels take m: all rows begin at 16 bytes.
func (m matrix) fits() bool {
	return aligned(m.p) && aligned(m.from) &&
		int64(m.ld)*m.t.size()%16 == 0
}

// mat returns m for cuBLASLt.
func (m matrix) mat() driver.Mat {
	t := driver.F32
	if m.t == bf16 {
		t = driver.BF16
	}
	return driver.Mat{P: m.p, Type: t, Rows: int64(m.rows), Cols: int64(m.cols), Ld: int64(m.ld),
		From: m.from}
}

// multiply queues c (=, or if acc += or what c is from +) alpha*a*w, and adds the biases, which lie
// one behind the other, to each row if there are any. cuBLASLt does it where all rows begin at 16
// bytes, which its tensor core kernels want, unless it has no algorithm; our own kernel does the
// rest. Counts says how often it had none.
func (b *Backend) multiply(op string, c, a, w matrix, alpha float32, acc bool,
	bias []*compute.Param) {
	M, K := a.shape()
	_, N := w.shape()
	if M == 0 || N == 0 || (K == 0 && acc && len(bias) == 0 && c.from == 0) {
		return
	}
	if w.t.quantised() {
		if b.multiplyFew(op, c, a, w, alpha, acc, bias) {
			return
		}
		w.view = b.expand(w.view)
	}
	if c.fits() && a.fits() && w.fits() && K > 0 {
		if bv := b.biases(op, bias, c.t); aligned(bv.p) {
			b.counts.Products++
			if b.matmul(c.mat(), a.mat(), w.mat(), a.turned, w.turned, alpha, acc, bv.p) {
				return
			}
			if b.counts.Declined++; b.counts.Declined == 1 {
				b.counts.First = fmt.Sprintf("%s: [%d,%d] %v over %d %v", op, M, N, c.t, K, a.t)
			}
		}
	}
	bv := b.biases(op, bias, f32)
	if c.from != 0 {
		b.copyDev(c.p, c.from, int64(c.n)*c.t.size())
	}
	am, ak := a.strides()
	bk, bn := w.strides()
	b.launch(b.k.gemm[a.t][c.t], grid{blocks(M, 64), blocks(N, 64), 1, 256, 8704}, at(c.p),
		whole(c.ld), at(a.p), am, ak, at(w.p), bk, bn, at(bv.p),
		whole(M), whole(N), whole(K), real(alpha), flag(acc))
}

// biases returns the vector of biases in type t, or the zero view without biases.
func (b *Backend) biases(op string, bias []*compute.Param, t dtype) (v view) {
	switch len(bias) {
	case 0:
	case 1:
		v = b.weights(op, bias[0], t)
	default:
		v, _ = b.stackWeights(op, bias, t)
	}
	return v
}

// Linear multiplies x by a parameter's transpose.
func (b *Backend) Linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	const op = "Linear"
	I, O := w.Cols, w.Rows
	N := compute.RowsOf(op, "x", xNI, I)
	x, y := b.narrowView(op, "x", xNI, N*I), b.result(op, "y", yNO, N, O)
	if bias != nil {
		take(op, "bias", bias.W, O)
	}
	if N == 0 {
		return
	}
	defer b.enter()()
	W := b.weights(op, w, b.narrow)
	b.multiply(op, y, dense(x, N, I), dense(W, O, I).transpose(), 1, acc,
		[]*compute.Param{bias}[:present(bias)])
}

// present returns 1 for a parameter, 0 for none.
func present(p *compute.Param) int {
	if p == nil {
		return 0
	}
	return 1
}

// result returns t, of either class, as a matrix; a narrow t may be columns.
func (b *Backend) result(op, name string, t compute.Tensor, rows, cols int) matrix {
	if width, _ := t.Rows(); width == 0 {
		return dense(take(op, name, t, rows*cols), rows, cols)
	}
	v, row := b.spread(op, name, t, rows, cols)
	return matrix{view: v, rows: rows, cols: cols, ld: row}
}

// LinearAdd multiplies x by a parameter's transpose and adds r.
func (b *Backend) LinearAdd(yNO, rNO, xNI compute.Tensor, w *compute.Param) {
	const op = "LinearAdd"
	I, O := w.Cols, w.Rows
	N := compute.RowsOf(op, "x", xNI, I)
	x, y, r := b.narrowView(op, "x", xNI, N*I), wide(op, "y", yNO, N*O), wide(op, "r", rNO, N*O)
	if N == 0 {
		return
	}
	defer b.enter()()
	c := dense(y, N, O)
	if r.p != y.p {
		c.from = r.p
	}
	W := b.weights(op, w, b.narrow)
	b.multiply(op, c, dense(x, N, I), dense(W, O, I).transpose(), 1, true, nil)
}

// joined is ps as one projection, of outputs or their gradients of N rows.
type joined struct {
	y     matrix // [N,O], O those of all
	w     view   // [O,I]
	g     view   // the gradient; none where the weights have none
	bias  []*compute.Param
	biasG view
}

// join returns ps as one, if outputs lie side by side and weights, biases and, if learn, gradients
// one after the other.
func (b *Backend) join(op string, ps []compute.Projection, N int, learn bool) (j joined, ok bool) {
	if len(ps) < 2 || N == 0 {
		return j, false
	}
	var ws []*compute.Param
	O, n, m := 0, 0, 0 // outputs, elements of gradients of weights and biases
	for i, p := range ps {
		if cols, _ := p.Y.Rows(); cols != p.W.Rows || p.Y.Len() != N*cols ||
			p.W.Cols != ps[0].W.Cols {
			return j, false
		}
		if p.B != nil {
			j.bias = append(j.bias, p.B)
		}
		O, n, m, ws = O+p.W.Rows, n+p.W.G.Len(), m+biasGrad(p).Len(), append(ws, p.W)
		if i == 0 {
			continue
		}
		q := ps[i-1]
		if !q.Y.ColumnsBefore(p.Y) || learn && !follows(q.W.G, p.W.G) || learn &&
			!follows(biasGrad(q), biasGrad(p)) {
			return j, false
		}
	}
	if len(j.bias) != 0 && len(j.bias) != len(ps) {
		return j, false
	}
	for i := 1; i < len(j.bias); i++ {
		if !j.bias[i-1].W.EndsAt(j.bias[i].W) {
			return j, false
		}
	}
	if j.w, ok = b.stackWeights(op, ws, b.narrow); !ok {
		return j, false
	}
	v, row := b.spread(op, "y", ps[0].Y, N, ps[0].W.Rows)
	j.y = matrix{view: v, rows: N, cols: O, ld: row}
	if learn && n > 0 {
		j.g = wide(op, "G", ps[0].W.G, ps[0].W.Len())
		j.g.n = n
	}
	if learn && m > 0 {
		j.biasG = wide(op, "bias.G", ps[0].B.G, ps[0].B.Len())
		j.biasG.n = m
	}
	return j, true
}

// follows reports whether u begins where t ends, or neither is there.
func follows(t, u compute.Tensor) bool { return t.Absent() && u.Absent() || t.EndsAt(u) }

// biasGrad computes the gradient of p's bias, if it has one.
func biasGrad(p compute.Projection) compute.Tensor {
	if p.B == nil {
		return compute.Tensor{}
	}
	return p.B.G
}

// Linears computes Linear for each of ps: one product for all where they can be joined.
func (b *Backend) Linears(ps []compute.Projection, xNI compute.Tensor) {
	if !b.linears(ps, xNI) {
		for _, p := range ps {
			b.Linear(p.Y, xNI, p.W, p.B, false)
		}
	}
}

// linears computes Linears as one product; it reports whether that can be.
func (b *Backend) linears(ps []compute.Projection, xNI compute.Tensor) bool {
	const op = "Linears"
	if len(ps) < 2 {
		return false
	}
	I := ps[0].W.Cols
	N := compute.RowsOf(op, "x", xNI, I)
	x := b.narrowView(op, "x", xNI, N*I)
	defer b.enter()()
	j, ok := b.join(op, ps, N, false)
	if ok {
		b.multiply(op, j.y, dense(x, N, I), dense(j.w, j.y.cols, I).transpose(), 1, false, j.bias)
	}
	return ok
}

// LinearsGrad computes LinearGrad for each of ps: at most a product for dx and one for the weights'
// gradients where they can be joined.
func (b *Backend) LinearsGrad(dxNI compute.Tensor, ps []compute.Projection, xNI compute.Tensor) {
	if !b.linearsGrad(dxNI, ps, xNI) {
		for i, p := range ps {
			b.LinearGrad(dxNI, p.W, p.B, p.Y, xNI, i > 0)
		}
	}
}

// linearsGrad computes LinearsGrad of ps as one projection; it reports whether they can be joined.
func (b *Backend) linearsGrad(dxNI compute.Tensor, ps []compute.Projection,
	xNI compute.Tensor) bool {
	const op = "LinearsGrad"
	if len(ps) < 2 {
		return false
	}
	I := ps[0].W.Cols
	N := compute.RowsOf(op, "dy", ps[0].Y, ps[0].W.Rows)
	defer b.enter()()
	j, ok := b.join(op, ps, N, !xNI.Absent())
	if !ok {
		return false
	}
	if j.biasG.n > 0 {
		b.columnSums(j.biasG, j.y, b.scratch(partialBytes(N, j.y.cols))[0])
	}
	if !dxNI.Absent() {
		b.multiply(op, b.result(op, "dx", dxNI, N, I), j.y, dense(j.w, j.y.cols, I), 1, false, nil)
	}
	if j.g.n > 0 {
		x := b.narrowView(op, "x", xNI, N*I)
		b.multiply(op, dense(j.g, j.y.cols, I), j.y.transpose(), dense(x, N, I), 1, true, nil)
	}
	return true
}

// LinearGrad computes the gradient of Linear.
func (b *Backend) LinearGrad(dxNI compute.Tensor, w, bias *compute.Param, dyNO, xNI compute.Tensor,
	acc bool) {
	const op = "LinearGrad"
	I, O := w.Cols, w.Rows
	N := compute.RowsOf(op, "dy", dyNO, O)
	dy := b.result(op, "dy", dyNO, N, O)
	var dx matrix
	var x, g, gb view
	if !dxNI.Absent() {
		if dx = b.result(op, "dx", dxNI, N, I); dx.t != b.narrow {
			panic(fmt.Sprintf("cuda: %s: dx is %v, want %v: allocate it in the other class", op,
				dx.t, b.narrow))
		}
	}
	if !w.G.Absent() && !xNI.Absent() {
		x, g = b.narrowView(op, "x", xNI, N*I), wide(op, "G", w.G, O*I)
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
		b.columnSums(gb, dy, place[1])
	}
	if dy.t != b.narrow && dx.n+g.n > 0 {
		short := view{p: place[0], t: b.narrow, n: N * O}
		b.cast(short, dy.view)
		dy = dense(short, N, O)
	}
	if dx.n > 0 {
		W := b.weights(op, w, b.narrow)
		b.multiply(op, dx, dy, dense(W, O, I), 1, acc, nil)
	}
	if g.n > 0 {
		b.multiply(op, dense(g, O, I), dy.transpose(), dense(x, N, I), 1, true, nil)
	}
}
