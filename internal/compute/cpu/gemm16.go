package cpu

import "gad/internal/compute"

// product16 is C = A·B, or C += A·B when acc is set, of packed bfloat16 panels with
// float32 sums: see kernels16.
//
// Each element of C is one chain over ascending pairs, begun at zero or, with acc,
// at C's value; within a pair, or as many as the kernels' unit, their order. Where k is
// cut, at pairs or units, the next part goes on from the stored value.
type product16 struct {
	m, n, k          int
	a, b             []uint32
	strideA, strideB int // from panel to panel
	c                []float32
	ldc              int
	acc              bool
	bias             []float32 // [n] added last; may be nil
	// C is so large that it is stored past the caches, if the kernels can
	past     bool
	unpacked packing // in a's place, if that is nil: each task packs its own rows
	// quantised weights in b's place, from their panel first and their element column on
	quant         *frozen
	first, column int
}

const (
	// pairBlock is how many pairs a tile goes along k before it moves on.
	pairBlock = 256
	// aheadTiles is how many tiles of rows a panel of B is multiplied with at least where
	// the next is fetched meanwhile: fewer take no longer than it takes to fetch.
	aheadTiles = 4
	// storePast, in place of acc, has a whole tile stored past the caches.
	storePast = -1
	// passLimit is from how many bytes on a result is stored past the caches: nothing of it would
	// be left there when it is read.
	passLimit = 8 << 20
	// packLimit is how many bytes an operation packs of one operand at a time: what
	// is packed should be in a cache still when it is multiplied.
	packLimit = 4 << 20
	// taskTiles is how many tiles of rows a task packs itself, if it does, and taskPairs
	// how many pairs of them at a time. They stay in the second-level cache, 288 KiB with
	// 16 lanes, as do the columns of C that taskPanels of B's panels have, which follow.
	taskTiles, taskPairs, taskPanels = 9, 2 * pairBlock, 8
	// tokenBlock is how many of many tokens a weight's gradient takes up at a time, whole
	// pairs: its elements are read and written again for each block.
	tokenBlock = 2048
)

// pairs returns how many pairs a panel of k elements has.
func (k *kernels16) pairs(n int) int { return ((n+1)/2 + k.unit - 1) / k.unit * k.unit }

// size is how many numbers the panels of n lanes of k elements take.
func (k *kernels16) sizeA(n,
	depth int) int {
	return (n + k.mr - 1) / k.mr * k.pairs(depth) * k.lanesA
}
func (k *kernels16) sizeB(n,
	depth int) int {
	return (n + k.nr - 1) / k.nr * k.pairs(depth) * k.lanesB
}

// compute multiplies the panels [a0, a1) of A by [b0, b1) of B, on the calling goroutine.
func (p *product16) compute(k *kernels16, w *worker, a0, a1, b0, b1 int) {
	if p.a != nil {
		p.tiles(k, w, a0, a1, b0, b1)
		return
	}
	i := a0 * k.mr
	part, rows := &w.part, p.unpacked
	*part = *p
	part.m, part.c = min(p.m, a1*k.mr)-i, p.c[i*p.ldc:]
	for x := 0; x == 0 || x < p.k; x += 2 * taskPairs {
		rows.n, rows.k = part.m, min(2*taskPairs, p.k-x)
		rows.stride = k.pairs(rows.k) * k.lanesA
		rows.dst = local(&w.panels, (a1-a0)*rows.stride)
		if rows.down {
			rows.src = p.unpacked.src[x*rows.ld+i:]
		} else {
			rows.src = p.unpacked.src[i*rows.ld+x:]
		}
		for t := range rows.tasks(k) {
			rows.task(k, t)
		}
		part.k, part.a, part.strideA = rows.k, rows.dst, rows.stride
		part.acc, part.bias, part.column = p.acc || x > 0, nil, p.column+x
		if p.quant == nil {
			part.b = p.b[x/2*k.lanesB:]
		}
		if x+rows.k == p.k {
			part.bias = p.bias
		}
		for q := b0; q < b1; q += taskPanels {
			part.tiles(k, w, 0, a1-a0, q, min(b1, q+taskPanels))
		}
	}
}

func (p *product16) tiles(k *kernels16, w *worker, a0, a1, b0, b1 int) {
	if p.quant != nil {
		p.quantTiles(k, w, a0, a1, b0, b1)
		return
	}
	k.tiles(p, w, a0, a1, b0, b1)
}

// tilesOf computes a task's tiles with one kernel for each number of rows.
func (p *product16) tilesOf(k *kernels16, gemm []gemm16Func, w *worker, a0, a1, b0, b1 int) {
	pairs := k.pairs(p.k)
	for p0 := 0; p0 == 0 || p0 < pairs; p0 += pairBlock {
		pn, acc := min(pairBlock, pairs-p0), asInt(p.acc || p0 > 0)
		past := p.past && acc == 0 && pn == pairs && p.ldc%16 == 0 && onLine(p.c)
		for q := b0; q < b1; q++ {
			b := p.b[q*p.strideB+p0*k.lanesB:]
			cols, ahead := min(k.nr, p.n-q*k.nr), 0
			if q+1 < b1 && a1-a0 >= aheadTiles {
				ahead = p.strideB
			}
			for t := a0; t < a1; t++ {
				rows := min(k.mr, p.m-t*k.mr)
				a, c := p.a[t*p.strideA+p0*k.lanesA:], p.c[t*k.mr*p.ldc+q*k.nr:]
				switch {
				case cols == k.nr && rows == k.mr && past:
					gemm[rows-1](a, b, c, p.ldc, pn, storePast, ahead)
					continue
				case cols == k.nr:
					gemm[rows-1](a, b, c, p.ldc, pn, acc, ahead)
					continue
				}
				w.partial(rows, cols, k.nr, c, p.ldc,
					func(tile []float32) { gemm[rows-1](a, b, tile, k.nr, pn, acc, ahead) })
			}
		}
	}
	p.addBias(k, w, a0, a1, b0, b1)
}

// partial lets fn go on with a tile of nr columns of which c has cols.
func (w *worker) partial(rows, cols, nr int, c []float32, ldc int, fn func(tile []float32)) {
	for r := range rows {
		copy(w.tile[r*nr:], c[r*ldc:r*ldc+cols])
	}
	fn(w.tile)
	for r := range rows {
		copy(c[r*ldc:r*ldc+cols], w.tile[r*nr:])
	}
}

// tilesRounding computes a task's tiles with the float32 kernels of k, after
// making float32 of the part of the panels that is at hand.
func (p *product16) tilesRounding(k16 *kernels16, k *kernels, w *worker, a0, a1, b0, b1 int) {
	pairs, la, lb := k16.pairs(p.k), k16.lanesA, k16.lanesB
	for p0 := 0; p0 == 0 || p0 < pairs; p0 += pairBlock {
		pn, acc := min(pairBlock, pairs-p0), asInt(p.acc || p0 > 0)
		as, b := local(&w.wide[0], (a1-a0)*2*pn*la), local(&w.wide[1], 2*pn*lb)
		for t := a0; t < a1 && pn > 0; t++ {
			k16.expand(as[(t-a0)*2*pn*la:], p.a[t*p.strideA+p0*la:], la, pn)
		}
		for q := b0; q < b1; q++ {
			if pn > 0 {
				k16.expand(b, p.b[q*p.strideB+p0*lb:], lb, pn)
			}
			cols := min(k.nr, p.n-q*k.nr)
			for t := a0; t < a1; t++ {
				rows := min(k.mr, p.m-t*k.mr)
				a, c := as[(t-a0)*2*pn*la:], p.c[t*k.mr*p.ldc+q*k.nr:]
				if cols == k.nr {
					k.gemm[rows-1](a, 1, la, b, lb, c, p.ldc, 2*pn, acc)
					continue
				}
				w.partial(rows, cols, k.nr, c, p.ldc,
					func(tile []float32) { k.gemm[rows-1](a, 1, la, b, lb, tile, k.nr, 2*pn, acc) })
			}
		}
	}
	p.addBias(k16, w, a0, a1, b0, b1)
}

func (p *product16) addBias(k *kernels16, w *worker, a0, a1, b0, b1 int) {
	if p.bias == nil {
		return
	}
	lo, hi := b0*k.nr, min(p.n, b1*k.nr)
	for i := a0 * k.mr; i < min(p.m, a1*k.mr); i++ {
		k.add(p.c[i*p.ldc+lo:i*p.ldc+hi], p.bias[lo:hi])
	}
}

func (p *product16) whole(b *Backend, w *worker) {
	mr, nr := b.k16.mr, b.k16.nr
	p.compute(b.k16, w, 0, (p.m+mr-1)/mr, 0, (p.n+nr-1)/nr)
}

func (p *product16) work() int { return p.m * p.n * p.k }

func (p *product16) width(b *Backend) int { return (p.n + b.k16.nr - 1) / b.k16.nr }

// cut makes tasks of all columns where they pack their rows, so that nothing is
// packed twice: as many for each worker, of equally many tiles, to within one.
func (p *product16) cut(b *Backend) split {
	if p.a != nil {
		return cut(p.m, p.n, p.k, b.k16.mr, b.k16.nr, b.pool.workers, 8)
	}
	each := taskTiles * b.pool.workers * b.k16.mr
	return split{tasks: (p.m + each - 1) / each * b.pool.workers}
}

func (p *product16) task(b *Backend, w *worker, s split, t int) {
	mr, nr := b.k16.mr, b.k16.nr
	tiles, panels := (p.m+mr-1)/mr, (p.n+nr-1)/nr
	if p.a == nil {
		p.compute(b.k16, w, t*tiles/s.tasks, (t+1)*tiles/s.tasks, 0, panels)
		return
	}
	i, q := t/s.across*s.rows/mr, t%s.across*s.panels
	p.compute(b.k16, w, i, min(tiles, i+s.rows/mr), q, min(panels, q+s.panels))
}

// packing is one operand to be packed: n lanes of k elements each, rows of src or,
// with down, its columns. Panels are stride apart.
type packing struct {
	dst    []uint32
	stride int
	src    []float32
	ld     int
	n, k   int
	down   bool
	b      bool    // panels of B, not A
	quant  *frozen // quantised weights in dst's place, from their panel first on
	first  int
}

const (
	// packDepth is how many elements of a lane a task packs of rows, packRows how
	// many rows of all columns.
	packDepth, packRows = 1 << 11, 32
	// packGrain is how many elements are worth handing out.
	packGrain = 1 << 14
)

func (p *packing) panel(k *kernels16) (width, lanes int) {
	if p.b {
		return k.nr, k.lanesB
	}
	return k.mr, k.lanesA
}

// lanes returns the operand's lanes lo, where a panel begins, to hi-1; depth its elements x0, where
// a unit of pairs begins, to x1-1.
func (p packing) lanes(k *kernels16, lo, hi int) packing {
	width, _ := p.panel(k)
	if p.quant != nil {
		p.first, p.n = p.first+lo/width, hi-lo
		return p
	}
	p.dst, p.n = p.dst[lo/width*p.stride:], hi-lo
	return p
}

func (p packing) depth(k *kernels16, x0, x1 int) packing {
	_, lanes := p.panel(k)
	p.dst, p.k = p.dst[x0/2*lanes:], x1-x0
	return p
}

func (p *packing) tasks(k *kernels16) int {
	width, _ := p.panel(k)
	if p.down {
		return (p.k + packRows - 1) / packRows
	}
	return (p.n + width - 1) / width * ((p.k + packDepth - 1) / packDepth)
}

func (p *packing) task(k *kernels16, t int) {
	width, lanes := p.panel(k)
	pack := k.packA
	if p.b {
		pack = k.packB
	}
	if p.down {
		x := t * packRows
		for j := 0; j < p.n; j += width {
			pack(p.dst[j/width*p.stride+x/2*lanes:], p.src[x*p.ld+j:], p.ld, min(width, p.n-j),
				min(packRows, p.k-x), true)
		}
		return
	}
	parts := (p.k + packDepth - 1) / packDepth
	j, x := t/parts*width, t%parts*packDepth
	pack(p.dst[j/width*p.stride+x/2*lanes:], p.src[j*p.ld+x:], p.ld, min(width, p.n-j),
		min(packDepth, p.k-x), false)
}

// pack packs operands, together.
func (b *Backend) pack(ps ...packing) {
	tasks, elements := 0, 0
	for i := range ps {
		tasks += ps[i].tasks(b.k16)
		elements += ps[i].n * ps[i].k
	}
	b.packs = append(b.packs[:0], ps...)
	if elements < packGrain {
		for t := range tasks {
			b.packTask(nil, t)
		}
		return
	}
	b.run(tasks, (*Backend).packTask)
}

func (b *Backend) packTask(_ *worker, t int) {
	for i := range b.packs {
		if n := b.packs[i].tasks(b.k16); t >= n {
			t -= n
		} else {
			b.packs[i].task(b.k16, t)
			return
		}
	}
}

// derived16 is what the backend keeps beside a parameter: B's panels of W's
// transpose, whose lanes are W's rows and which forward products read; and of W
// itself, whose lanes are its columns, for the gradient of a product's input. A
// frozen matrix, which is Narrow, has the latter only if it is asked for.
type derived16 struct{ rows, columns []uint32 }

// derive returns p's panels, packed at their first use.
func (b *Backend) derive(p *compute.Param, columns bool) *derived16 {
	d, _ := p.Derived.(*derived16)
	fresh := make([]packing, 0, 2)
	if d == nil {
		d = &derived16{}
		p.Derived = d
		d.rows = b.panels(p, b.k16.sizeB(p.Rows, p.Cols))
		fresh = append(fresh, b.packingOf(p, d.rows, false))
	}
	if d.columns == nil && (columns || !p.W.Mem().(*memory).narrow) {
		d.columns = b.panels(p, b.k16.sizeB(p.Cols, p.Rows))
		fresh = append(fresh, b.packingOf(p, d.columns, true))
	}
	if len(fresh) > 0 {
		b.pack(fresh...)
	}
	return d
}

func (b *Backend) panels(p *compute.Param, n int) []uint32 {
	p.W.Mem().(*memory).derived += 4 * int64(n)
	b.count(4 * int64(n))
	return newAligned[uint32](n)
}

// packingOf packs p.W as the panels that dst is.
func (b *Backend) packingOf(p *compute.Param, dst []uint32, columns bool) packing {
	n, k := p.Rows, p.Cols
	if columns {
		n, k = k, n
	}
	return packing{dst: dst, stride: b.k16.pairs(k) * b.k16.lanesB,
		src: f32("Refresh", "W", p.W, p.Len()), ld: p.Cols, n: n, k: k, down: columns, b: true}
}

// weightRows returns w's packed transpose, weightColumns w itself packed: see derived16.
func (b *Backend) weightRows(w *compute.Param) packing {
	if f := frozenOf("product", w); f != nil {
		return packing{dst: b.panelsOf(f, w), stride: b.k16.pairs(w.Cols) * b.k16.lanesB, n: w.Rows,
			k: w.Cols, b: true, quant: b.quantised(w)}
	}
	return b.packingOf(w, b.derive(w, false).rows, false)
}

func (b *Backend) weightColumns(w *compute.Param) packing {
	return b.packingOf(w, b.derive(w, true).columns, true)
}

// refresh16 packs p.W anew.
func (b *Backend) refresh16(p *compute.Param) {
	d := p.Derived.(*derived16)
	ps := append(make([]packing, 0, 2), b.packingOf(p, d.rows, false))
	if d.columns != nil {
		ps = append(ps, b.packingOf(p, d.columns, true))
	}
	b.pack(ps...)
}

// operandA packs n rows of k elements, ld apart, as A; operandDown packs columns,
// of k rows, as A or as B. The packing itself is the caller's to start.
func (b *Backend) operandA(buf *[]uint32, src []float32, ld, n, k int, down bool) packing {
	return packing{dst: grow(b, buf, b.k16.sizeA(n, k)), stride: b.k16.pairs(k) * b.k16.lanesA,
		src: src, ld: ld, n: n, k: k, down: down}
}

func (b *Backend) operandB(buf *[]uint32, src []float32, ld, n, k int, down bool) packing {
	return packing{dst: grow(b, buf, b.k16.sizeB(n, k)), stride: b.k16.pairs(k) * b.k16.lanesB,
		src: src, ld: ld, n: n, k: k, down: down, b: true}
}

// of makes p the product of what a and b pack, as C. If a has nowhere to pack to,
// tasks do that.
func (p *product16) of(a, b packing, c []float32, ldc int, acc bool) *product16 {
	*p = product16{m: a.n, n: b.n, k: a.k, a: a.dst, strideA: a.stride, b: b.dst, strideB: b.stride,
		c: c, ldc: ldc, acc: acc, unpacked: a, quant: b.quant, first: b.first}
	return p
}

// large sets past for a product that is a part of one of N rows, or all of it.
func (p *product16) large(N int) *product16 {
	p.past = p.bias == nil && 4*N*p.ldc > passLimit
	return p
}

// chunk returns how many of N rows of width elements are packed at a time: whole tiles, and an even
// number of rows. An element takes 2 bytes; A's lanes are filled up.
func (k *kernels16) chunk(N, width int) int {
	unit := 2 * k.mr * k.unit
	return min(N, max(1, packLimit/3/max(1, width)/unit)*unit)
}

// tasksPack says whether n rows of A are so many that tasks can pack their own.
func (b *Backend) tasksPack(n int) bool { return n >= 4*b.pool.workers*taskTiles*b.k16.mr }

// forward16 does forward, for the first of products16.
func (b *Backend) forward16(x []float32, N, I int, all []multiplication) {
	ps := b.products16[:len(all)]
	switch {
	case b.streams(N):
		a, lda := b.rounded16(x, N, I)
		for i := range ps {
			ps[i].a, ps[i].strideA = a, lda
		}
		b.stream(all...)
	case b.tasksPack(N):
		for i := range ps {
			ps[i].unpacked = packing{src: x, ld: I, n: N, k: I}
			b.multiply(&ps[i])
		}
	default:
		step := b.k16.chunk(N, I)
		for n := 0; n < N; n += step {
			a := b.operandA(&b.a16, x[n*I:], I, min(step, N-n), I, false)
			b.pack(a)
			for i := range ps {
				p := &ps[i]
				p.m, p.a, p.strideA = a.n, a.dst, a.stride
				if n > 0 {
					p.c = p.c[step*p.ldc:]
				}
			}
			b.multiply(all...)
		}
	}
}

// linearGrad16 does LinearGrad, except for the bias.
func (b *Backend) linearGrad16(dx, g, dy, x []float32, N int, w *compute.Param, acc bool) {
	var weights packing
	if dx != nil {
		weights = b.weightColumns(w)
	}
	b.rowsGrad16(weights, dx, g, dy, x, N, w.Rows, w.Cols, acc)
}

// rowsGrad16 computes linearGrad16 with a matrix of O rows and I columns, of which weights has some
// columns; dx begins at the first of these. Its sums over tokens go on from pair to
// pair of tokens of the call.
func (b *Backend) rowsGrad16(weights packing, dx, g, dy, x []float32, N, O, I int, acc bool) {
	if b.tasksPack(N) {
		if dx != nil {
			b.multiply(b.products16[0].of(packing{src: dy, ld: O, n: N, k: O}, weights, dx, I,
				acc).large(N))
		}
		if g != nil {
			b.weightGrad16(g, dy, x, N, O, I)
		}
		return
	}
	step := b.k16.chunk(N, max(O, I))
	for n := 0; n < N; n += step {
		rows := min(step, N-n)
		packs, ps := make([]packing, 0, 3), make([]multiplication, 0, 2)
		if dx != nil {
			a := b.operandA(&b.a16, dy[n*O:], O, rows, O, false)
			packs = append(packs, a)
			ps = append(ps, b.products16[0].of(a, weights, dx[n*I:], I, acc).large(N))
		}
		if g != nil {
			a, c :=
				b.operandA(&b.at16, dy[n*O:], O, O, rows, true),
				b.operandB(&b.b16, x[n*I:], I, I, rows, true)
			packs = append(packs, a, c)
			ps = append(ps, b.products16[1].of(a, c, g, I, true))
		}
		b.pack(packs...)
		b.multiply(ps...)
	}
}

// weightGrad16 computes linearGrad16's g for many tokens, in as few blocks of tokens as fit into
// the packing buffers: x is packed in parts, dy whole unless tasks pack their own.
func (b *Backend) weightGrad16(g, dy, x []float32, N, O, I int) {
	step, late := min(N, tokenBlock), b.tasksPack(O)
	if !late {
		step = min(step, b.k16.chunk(N, O))
	}
	cols := max(1, packLimit/2/step/b.k16.nr) * b.k16.nr
	for n := 0; n < N; n += step {
		a := packing{src: dy[n*O:], ld: O, n: O, k: min(step, N-n), down: true}
		if !late {
			a = b.operandA(&b.at16, a.src, O, O, a.k, true)
			b.pack(a)
		}
		for i := 0; i < I; i += cols {
			c := b.operandB(&b.b16, x[n*I+i:], I, min(cols, I-i), a.k, true)
			b.pack(c)
			b.multiply(b.products16[0].of(a, c, g[i:], I, true))
		}
	}
}

// headGrad16 appends to ps the products of LogProbGrad with the gradients z of n rows'
// logits v0 to v0+cols-1; hDown is h packed as B.
func (b *Backend) headGrad16(ps []multiplication, z, dhRD, g []float32, n, cols, v0 int,
	w *compute.Param, hDown packing, dh bool) []multiplication {
	D, packs := w.Cols, make([]packing, 0, 2)
	if dh {
		a := b.operandA(&b.z16, z, cols, n, cols, false)
		packs = append(packs, a)
		ps = append(ps, b.products16[0].of(a, b.headColumns(w, v0, cols), dhRD, D, true))
	}
	if g != nil {
		a := b.operandA(&b.at16, z, cols, cols, n, true)
		packs = append(packs, a)
		ps = append(ps, b.products16[1].of(a, hDown, g[v0*D:], D, true))
	}
	b.pack(packs...)
	return ps
}

// headColumns returns weightColumns of the rows v0 to v0+cols-1.
func (b *Backend) headColumns(w *compute.Param, v0, cols int) packing {
	if f := frozenOf("LogProbGrad", w); f != nil {
		return b.weightPart16(f, w, v0, v0+cols, 0, w.Cols)
	}
	return b.weightColumns(w).depth(b.k16, v0, v0+cols)
}
