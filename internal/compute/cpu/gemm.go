package cpu

import (
	"fmt"

	"gad/internal/compute"
)

// product is C = A·B, or C += A·B when acc is set, with
//
//	A(i,x) = a[i*rs+x*cs]                      i < m, x < k
//	B(x,j) = b[j/nr*panel + x*ldb + j%nr]      j < n
//	C(i,j) = c[i*ldc+j]
//
// so that A may be a matrix or a transpose, and B a matrix of rows (panel = nr,
// ldb the row's length) or packed column panels (panel = k*nr, ldb = nr).
//
// Each element of C is one chain over ascending x, begun at zero or, with acc,
// at C's value. A tile computes whole chains, and where k is cut, the next part
// goes on from the stored value: no cut changes a bit.
type product struct {
	m, n, k int
	a       []float32
	rs, cs  int
	b       []float32
	panel   int
	ldb     int
	c       []float32
	ldc     int
	acc     bool
	bias    []float32 // [n] added last; may be nil
	quant   *frozen   // quantised weights in b's place, from their panel first on; nil: b
	first   int
}

const (
	// kBlock is how far a tile goes along k before it moves on: the part of B's
	// panel stays in the first-level cache while A's rows pass.
	kBlock = 512
	// grain is how many multiply-adds a task should have at least.
	grain = 1 << 16
)

// rowMajor makes b a matrix of rows of ld elements.
func (p *product) rowMajor(k *kernels, b []float32, ld int) *product {
	p.b, p.panel, p.ldb = b, k.nr, ld
	return p
}

// columns makes b packed column panels.
func (p *product) columns(k *kernels, b []float32) *product {
	p.b, p.panel, p.ldb = b, p.k*k.nr, k.nr
	return p
}

// weights makes b the packed transpose of a parameter of so many rows.
func (p *product) weights(k *kernels, b []float32, rows int) *product {
	p.columns(k, b).ldb = k.wide(rows)
	return p
}

// wide returns how many columns the panels of n columns have: a single panel has no more than there
// are.
func (k *kernels) wide(n int) int { return min(k.nr, n) }

// panels returns how many numbers the panels of n lanes of depth elements take.
func (k *kernels) panels(n, depth int) int {
	nr := k.wide(n)
	return (n + nr - 1) / nr * nr * depth
}

// tiles computes the rows m0 to m1-1 and the column panels p0 to p1-1 of C, on
// the calling goroutine.
func (p *product) tiles(k *kernels, w *worker, m0, m1, p0, p1 int) {
	if m0 >= m1 {
		return
	}
	if p.quant != nil {
		p.quantTiles(k, w, m0, m1, p0, p1)
		return
	}
	b := p.b[:cap(p.b)] // a tile may read beyond the last row's end: see pad
	blocks := (m1 - m0 + k.mr - 1) / k.mr
	turns, ahead := p.turns(k, m1-m0, p1-p0), k.ahead && blocks >= aheadTiles && p.ldb == k.nr
	for k0 := 0; k0 == 0 || k0 < p.k; k0 += kBlock {
		kn, acc := min(kBlock, p.k-k0), asInt(p.acc || k0 > 0)
		rowsA, rs, cs := p.a[min(m0*p.rs+k0*p.cs, len(p.a)):], p.rs, p.cs
		if turns {
			rowsA, rs, cs = p.turn(k, w, m0, m1, k0, kn), turnedRow, 1
		}
		for q := p0; q < p1; q++ {
			bq := b[min(q*p.panel+k0*p.ldb, len(b)):]
			j := q * k.nr
			cols := min(k.nr, p.n-j)
			for t := range blocks {
				i, end := m0+(m1-m0)*t/blocks, m0+(m1-m0)*(t+1)/blocks
				a := rowsA[min((i-m0)*rs, len(rowsA)):]
				c := p.c[i*p.ldc+j:]
				if cols == k.nr {
					if ahead && q+1 < p1 { // each tile fetches its share of the next panel
						k.stream[end-i-1](a, rs, cs, bq, p.ldb, c, p.ldc, kn, acc,
							p.panel+kn*k.nr*t/blocks, (k.nr+blocks-1)/blocks)
						continue
					}
					k.gemm[end-i-1](a, rs, cs, bq, p.ldb, c, p.ldc, kn, acc)
					continue
				}
				for r := range end - i {
					copy(w.tile[r*k.nr:], c[r*p.ldc:r*p.ldc+cols])
				}
				k.gemm[end-i-1](a, rs, cs, bq, p.ldb, w.tile, k.nr, kn, acc)
				for r := range end - i {
					copy(c[r*p.ldc:r*p.ldc+cols], w.tile[r*k.nr:])
				}
			}
		}
	}
	p.addBias(k, m0, m1, p0, p1)
}

func (p *product) addBias(k *kernels, m0, m1, p0, p1 int) {
	if p.bias == nil {
		return
	}
	lo, hi := p0*k.nr, min(p.n, p1*k.nr)
	for i := m0; i < m1; i++ {
		k.add(p.c[i*p.ldc+lo:i*p.ldc+hi], p.bias[lo:hi])
	}
}

const (
	// turnedRow is the distance of the rows that turn makes: their beginnings do not fall into
	// the same few sets of the cache.
	turnedRow = kBlock + 16
	// turnPanels is with how many of B's panels a task multiplies at least what it turned.
	turnPanels = 4
)

// turns reports whether a task of so many rows and panels transposes its part of A first. A's
// columns may be pages apart: read as they lie, each element of a tile costs a line of the
// first-level cache and an entry of the page table's.
func (p *product) turns(k *kernels, rows, panels int) bool {
	return p.rs == 1 && p.cs > 1 && rows > k.mr && panels >= turnPanels && p.k >= k.nr
}

// turn makes the rows m0 to m1-1 of A's columns k0 to k0+kn-1, turnedRow apart.
func (p *product) turn(k *kernels, w *worker, m0, m1, k0, kn int) []float32 {
	rows := m1 - m0
	half := k.nr / 2
	// Whole blocks are faster: beyond the last row lies something that nobody reads.
	if whole := (rows + half - 1) / half * half; k0*p.cs+m0+(kn-1)*p.cs+whole <= cap(p.a) {
		rows = whole
	}
	dst := local(&w.turned, rows*turnedRow)
	k.transpose(dst, turnedRow, p.a[:cap(p.a)][k0*p.cs+m0:], p.cs, kn, rows)
	return dst
}

// all computes the whole of C on the calling goroutine.
func (p *product) all(k *kernels, w *worker) {
	p.tiles(k, w, 0, p.m, 0, (p.n+k.nr-1)/k.nr)
}

// split is how a product is cut into tasks.
type split struct{ rows, panels, across, tasks int }

// cut chooses tasks of an m by n product over k that are large enough to be worth
// handing out and numerous enough to even out the workers. A tile is mr by nr, and a task has
// wide panels at the most.
func cut(m, n, k, mr, nr, workers, wide int) split {
	panels := (n + nr - 1) / nr
	s := split{rows: 9 * mr, panels: wide}
	count := func() int { return (m + s.rows - 1) / s.rows * ((panels + s.panels - 1) / s.panels) }
	for count() < 4*workers && s.panels*nr*min(s.rows, m)*k > 2*grain {
		if s.panels > 1 {
			s.panels /= 2
		} else if s.rows > mr {
			s.rows = max(1, s.rows/mr/2) * mr
		} else {
			break
		}
	}
	s.across = (panels + s.panels - 1) / s.panels
	s.tasks = count()
	return s
}

func (p *product) cut(b *Backend) split {
	k, wide := b.k, 8
	if p.rs == 1 {
		wide = 32 // what a task turns is multiplied with more panels
	}
	s := cut(p.m, p.n, p.k, k.mr, k.nr, b.pool.workers, wide)
	if rows := min(s.rows, p.m); p.turns(k, rows, s.panels) {
		for w := range b.workers { // as room does
			local(&b.workers[w].turned, (rows+k.nr/2)*turnedRow)
		}
	}
	return s
}

// task computes one part of a cut product. Neighbouring tasks share A's rows.
func (p *product) task(b *Backend, w *worker, s split, t int) {
	i, q := t/s.across*s.rows, t%s.across*s.panels
	p.tiles(b.k, w, i, min(p.m, i+s.rows), q, min((p.n+b.k.nr-1)/b.k.nr, q+s.panels))
}

func (p *product) whole(b *Backend, w *worker) { p.all(b.k, w) }

func (p *product) work() int { return p.m * p.n * p.k }

func (p *product) width(b *Backend) int { return (p.n + b.k.nr - 1) / b.k.nr }

// multiplication is a product that can be cut into tasks: a product or a product16.
type multiplication interface {
	work() int                   // multiply-adds
	whole(b *Backend, w *worker) // on the calling goroutine
	cut(b *Backend) split
	task(b *Backend, w *worker, s split, t int)
	width(b *Backend) int                     // panels of columns
	stream(b *Backend, w *worker, q0, q1 int) // some of them, if the product has few rows
}

// multArgs is what the tasks of multiply and stream read.
type multArgs struct {
	products   [3]product // of the running operation
	products16 [3]product16
	ps         []multiplication // that multiply or stream computes
	cuts       [3]split         // and their tasks
	first      [3]int           // of the tasks
	packs      []packing        // that pack packs
	rows16     []uint32         // that roundRows makes
	across     int              // of columns, of what stream computes
	tasks      int              // of it
}

// multiply computes one or two products that do not depend on each other.
func (b *Backend) multiply(ps ...multiplication) {
	b.ps = append(b.ps[:0], ps...)
	tasks, work := 0, 0
	for i, p := range ps {
		b.cuts[i], b.first[i] = p.cut(b), tasks
		tasks += b.cuts[i].tasks
		work += p.work()
	}
	if work < 2*grain {
		for t := range tasks {
			b.multiplyTask(&b.workers[0], t)
		}
		return
	}
	b.run(tasks, (*Backend).multiplyTask)
}

func (b *Backend) multiplyTask(w *worker, t int) {
	i := len(b.ps) - 1
	for b.first[i] > t {
		i--
	}
	b.ps[i].task(b, w, b.cuts[i], t-b.first[i])
}

// derived is what the backend keeps beside a parameter that Linear or the head
// multiplies with: W's transpose in packed column panels, [O/nr][I][nr], the
// last panel filled up with zeros, unless it is the only one.
type derived struct{ columns []float32 }

// quantised returns p's packed weights if they are of class Q8 or Q4, else nil.
func (b *Backend) quantised(p *compute.Param) *frozen {
	f := frozenOf("product", p)
	if f == nil || f.quant == nil {
		return nil
	}
	b.panelsOf(f, p)
	return f
}

// columns returns p's packed transpose, which its first use makes.
func (b *Backend) columns(p *compute.Param) []float32 {
	if f := frozenOf("product", p); f != nil {
		return floats(b.panelsOf(f, p))
	}
	if p.Derived == nil {
		n := b.k.panels(p.Rows, p.Cols)
		p.Derived = &derived{aligned(n)}
		p.W.Mem().(*memory).derived += 4 * int64(n)
		b.count(4 * int64(n))
		b.Refresh(p)
	}
	return p.Derived.(*derived).columns
}

// Refresh packs p.W anew, if anything was multiplied with it yet.
func (b *Backend) Refresh(p *compute.Param) {
	if p.Derived == nil {
		return
	}
	if b.k16 != nil {
		b.refresh16(p)
		return
	}
	b.w, b.y = f32("Refresh", "W", p.W, p.Len()), p.Derived.(*derived).columns
	b.N, b.D = p.Rows, p.Cols
	b.run((p.Rows+b.k.nr-1)/b.k.nr, func(b *Backend, _ *worker, t int) {
		nr, I := b.k.wide(b.N), b.D
		b.k.transpose(b.y[t*nr*I:(t+1)*nr*I], nr, b.w[t*nr*I:], I, min(nr, b.N-t*nr), I)
	})
}

// Linear multiplies x by a parameter's transpose.
func (b *Backend) Linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	b.linears("Linear", xNI, acc, compute.Projection{Y: yNO, W: w, B: bias})
}

// LinearAdd computes Linear, and adds r last.
func (b *Backend) LinearAdd(yNO, rNO, xNI compute.Tensor, w *compute.Param) {
	N := compute.RowsOf("LinearAdd", "x", xNI, w.Cols)
	size := N * w.Rows
	x, y, r :=
		f32("LinearAdd", "x", xNI, N*w.Cols), f32("LinearAdd", "y", yNO, size),
		f32("LinearAdd", "r", rNO, size)
	sum := y
	if yNO == rNO {
		sum = b.grow(&b.sum, size)
	}
	b.forward(x, N, w.Cols, b.linear(0, sum, x, N, w, nil, false))
	if yNO == rNO {
		r = sum
	}
	b.y, b.x = y, r
	b.each(size, func(b *Backend, lo, hi int) { b.k.add(b.y[lo:hi], b.x[lo:hi]) })
}

// Linears computes Linear for each of ps: one run of tasks, and in bfloat16 one rounding of x.
func (b *Backend) Linears(ps []compute.Projection, xNI compute.Tensor) {
	for len(ps) > 0 {
		n := min(len(ps), len(b.products))
		b.linears("Linears", xNI, false, ps[:n]...)
		ps = ps[n:]
	}
}

func (b *Backend) linears(op string, xNI compute.Tensor, acc bool, ps ...compute.Projection) {
	I := ps[0].W.Cols
	N := compute.RowsOf(op, "x", xNI, I)
	x := f32(op, "x", xNI, N*I)
	all := make([]multiplication, 0, len(b.products))
	for i, p := range ps {
		if p.W.Cols != I {
			panic(fmt.Sprintf("cpu: %s: W has %d columns, and x %d", op, p.W.Cols, I))
		}
		O, bias := p.W.Rows, []float32(nil)
		if p.B != nil {
			bias = f32(op, "b", p.B.W, O)
		}
		all = append(all, b.linear(i, f32(op, "y", p.Y, N*O), x, N, p.W, bias, acc))
	}
	b.forward(x, N, I, all...)
}

// linear makes y the product of N rows x and w's transpose, in products[i], or in
// products16[i] without A.
func (b *Backend) linear(i int, y, x []float32, N int, w *compute.Param, bias []float32,
	acc bool) multiplication {
	if b.k16 != nil {
		p, weights := &b.products16[i], b.weightRows(w)
		*p = product16{m: N, n: w.Rows, k: w.Cols, b: weights.dst, strideB: weights.stride,
			quant: weights.quant, c: y, ldc: w.Rows, acc: acc, bias: bias}
		return p.large(N)
	}
	p := &b.products[i]
	*p = product{m: N, n: w.Rows, k: w.Cols, a: x, rs: w.Cols, cs: 1, c: y, ldc: w.Rows, acc: acc,
		bias: bias}
	if p.quant = b.quantised(w); p.quant != nil {
		return p
	}
	return p.weights(b.k, b.columns(w), w.Rows)
}

// forward computes products that linear made of the same N rows x of I elements.
func (b *Backend) forward(x []float32, N, I int, ps ...multiplication) {
	switch {
	case b.k16 != nil:
		b.forward16(x, N, I, ps)
	case b.streams(N):
		b.stream(ps...)
	default:
		b.multiply(ps...)
	}
}

// LinearsGrad calls LinearGrad for each of ps.
func (b *Backend) LinearsGrad(dxNI compute.Tensor, ps []compute.Projection, xNI compute.Tensor) {
	for i, p := range ps {
		b.LinearGrad(dxNI, p.W, p.B, p.Y, xNI, i > 0)
	}
}

// LinearGrad computes the gradient of Linear. The chains of w.G and b.G start from
// their present values, so that a batch's gradient has the same bits in one call or
// in several; in bfloat16, where a step of w.G's chains is a pair of tokens or with
// AMX 32 of them, if all calls but the last have whole steps.
func (b *Backend) LinearGrad(dxNI compute.Tensor, w, bias *compute.Param, dyNO, xNI compute.Tensor,
	acc bool) {
	O, I := w.Rows, w.Cols
	N := compute.RowsOf("LinearGrad", "dy", dyNO, O)
	dy := f32("LinearGrad", "dy", dyNO, N*O)
	dx, x := opt("LinearGrad", "dx", dxNI, N*I), opt("LinearGrad", "x", xNI, N*I)
	var g []float32
	if x != nil {
		g = opt("LinearGrad", "G", w.G, O*I)
	}
	f := frozenOf("LinearGrad", w)
	if f != nil && dx != nil {
		b.inputGrad(f, dx, dy, N, w, acc)
		dx = nil
	}
	switch {
	case b.k16 != nil:
		b.linearGrad16(dx, g, dy, x, N, w, acc)
	case N >= packedRows:
		if dx != nil {
			b.inputGrad(nil, dx, dy, N, w, acc)
		}
		if g != nil {
			b.weightGrad(g, dy, x, N, O, I)
		}
	default:
		ps := make([]multiplication, 0, 2)
		if dx != nil {
			p := &b.products[0]
			*p = product{m: N, n: I, k: O, a: dy, rs: O, cs: 1, c: dx, ldc: I, acc: acc}
			ps = append(ps, p.rowMajor(b.k, f32("LinearGrad", "W", w.W, O*I), I))
		}
		if g != nil {
			p := &b.products[1]
			*p = product{m: O, n: I, k: N, a: dy, rs: 1, cs: O, c: g, ldc: I, acc: true}
			ps = append(ps, p.rowMajor(b.k, x, I))
		}
		b.multiply(ps...)
	}
	if bias == nil || bias.G.Absent() {
		return
	}
	b.g, b.dy, b.N, b.D = f32("LinearGrad", "b.G", bias.G, O), dy, N, O
	b.eachSlab(O, func(b *Backend, lo, hi int) {
		for n := range b.N {
			b.k.add(b.g[lo:hi], b.dy[n*b.D+lo:n*b.D+hi])
		}
	})
}

// packedRows is from how many rows on a gradient's right side is packed before it is multiplied.
const packedRows = 64

// inputGrad computes LinearGrad's dx.
func (b *Backend) inputGrad(f *frozen, dx, dy []float32, N int, w *compute.Param, acc bool) {
	O, I := w.Rows, w.Cols
	step := b.unpackColumns(O, I, f != nil && b.k16 != nil)
	for i := 0; i < I; i += step {
		end := min(I, i+step)
		if f != nil && b.k16 != nil {
			b.rowsGrad16(b.weightPart16(f, w, 0, O, i, end), dx[i:], nil, dy, nil, N, O, I, acc)
			continue
		}
		p := &b.products[0]
		*p = product{m: N, n: end - i, k: O, a: dy, rs: O, cs: 1, c: dx[i:], ldc: I, acc: acc}
		b.multiply(p.panels(b.k, b.weightPart(f, w, 0, O, i, end), O))
	}
}

// weightGrad adds to g the product of dy's transpose and x, of N rows.
func (b *Backend) weightGrad(g, dy, x []float32, N, O, I int) {
	step := min(N, tokenBlock)
	cols := max(1, packLimit/4/step/b.k.nr) * b.k.nr
	for n := 0; n < N; n += step {
		rows := min(step, N-n)
		for i := 0; i < I; i += cols {
			part := b.packedPart(&b.unpacked, x[n*I+i:], I, rows, min(cols, I-i))
			p := &b.products[0]
			*p = product{m: O, n: min(cols, I-i), k: rows, a: dy[n*O:], rs: 1, cs: O, c: g[i:],
				ldc: I, acc: true}
			b.multiply(p.panels(b.k, part, rows))
		}
	}
}

// packedPart packs rows of cols elements, ld apart, as packRows does.
func (b *Backend) packedPart(buf *[]float32, src []float32, ld, rows, cols int) []float32 {
	a := &b.froze
	a.dst, a.src, a.ld, a.o1, a.i1 = b.grow(buf, rows*b.up(cols)), src, ld, rows, cols
	b.run((rows+packRows-1)/packRows, func(b *Backend, _ *worker, t int) {
		a := &b.froze
		b.packRows(a.dst, a.src, a.ld, t*packRows, min(a.o1, (t+1)*packRows), a.o1, a.i1)
	})
	return a.dst
}
