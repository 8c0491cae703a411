package cpu

import (
	"runtime"
	"sync"
	"unsafe"

	"gad/internal/compute"
)

// Weights of the classes Q8 and Q4 are a frozen matrix whose codes and scales stand in the
// place of words. Uploaded blocks lie row by row; the first product packs them as it packs
// other frozen weights, a block of QuantBlock elements in the place of an element: of a
// panel of nr rows, for each block of columns, CodeBytes rows of nr bytes, and nr scales.
//
//	row by row   codes[(o*blocks+x)*bytes + j]             scales[o*blocks+x]
//	panels       codes[((o/nr*blocks+x)*bytes + j)*nr + o%nr]   scales[(o/nr*blocks+x)*nr + o%nr]
//
// A product makes float32 of the part of a panel that its next tiles read, in a worker's
// scratch that the first- or second-level cache holds, and multiplies that by the kernels
// of other weights: its bits are those of a matrix that holds the codes' values.
type quant struct {
	class  compute.Class
	bytes  int // of a block's codes
	lanes  int // of a panel
	codes  []uint8
	scales []uint16
	// of panels; nil: dequantGo
	kernel func(dst []float32, codes []uint8, scales []uint16, blocks int)
	// as bfloat16; nil: by way of kernel
	pairs func(dst []uint32, codes []uint8, scales []uint16, blocks int)
}

const (
	// quantStream is how many rows of a panel a product of few rows makes float32 at a
	// time: 16 KiB with panels of 32 columns.
	quantStream = 128
	// quantAhead is how many panels' parts are packed as bfloat16 at a time where a call of
	// tiles makes float32 of the other operand.
	quantAhead = 4
)

// newQuant returns n elements: zeros.
func (b *Backend) newQuant(c compute.Class, n int) *quant {
	compute.CheckBlocks("Alloc", c.String(), compute.View(&memory{n: n}))
	q := &quant{class: c, bytes: c.CodeBytes(), lanes: b.k.nr, kernel: b.k.dequant8}
	if c == compute.Q4 {
		q.kernel = b.k.dequant4
	}
	if b.k16 != nil {
		q.lanes, q.pairs = b.k16.nr, b.k16.dequant8
		if c == compute.Q4 {
			q.pairs = b.k16.dequant4
		}
	}
	q = q.fresh(n / compute.QuantBlock)
	if c == compute.Q4 { // whose code of zero is 8
		for i := range q.codes {
			q.codes[i] = 0x88
		}
	}
	return q
}

// fresh returns a copy of q's description over new memory of so many blocks.
func (q *quant) fresh(blocks int) *quant {
	to := *q
	words := newAligned[uint32](blocks * q.bytes / 4)
	to.codes = unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(words))),
		4*cap(words))[: 4*len(words) : 4*cap(words)]
	to.scales = make([]uint16, blocks, blocks+pad)
	return &to
}

// size returns the bytes of codes and scales.
func (q *quant) size() int64 { return int64(len(q.codes)) + 2*int64(len(q.scales)) }

// upload quantises src to the blocks from block on, which lie row by row, on all cores.
func (q *quant) upload(block int, src []float32) {
	const grain = 1 << 14
	n := len(src) / compute.QuantBlock
	some := func(lo, hi int) {
		for i := lo; i < hi; i++ {
			b := block + i
			q.scales[b] = q.class.Encode(q.codes[b*q.bytes:], src[i*compute.QuantBlock:])
		}
	}
	if len(src) < 2*grain {
		some(0, n)
		return
	}
	var wg sync.WaitGroup
	parts := min(runtime.GOMAXPROCS(0), len(src)/grain)
	for p := range parts {
		wg.Go(func() { some(n*p/parts, n*(p+1)/parts) })
	}
	wg.Wait()
}

// widen makes x the elements from off on, which lie row by row.
func (q *quant) widen(x []float32, off int) {
	const B = compute.QuantBlock
	var whole [B]float32
	for len(x) > 0 {
		b, i := off/B, off%B
		q.class.Decode(whole[:], q.codes[b*q.bytes:], q.scales[b])
		n := copy(x, whole[i:])
		x, off = x[n:], off+n
	}
}

// quantPanels does panelsOf: packing in place if the last panel is a whole one, else in memory of
// its own.
func (b *Backend) quantPanels(f *frozen, rows, cols int) {
	q, nr := f.quant, f.quant.lanes
	blocks := cols / compute.QuantBlock
	panels := (rows + nr - 1) / nr
	from, to := q, q
	if rows%nr != 0 {
		to = q.fresh(panels * nr * blocks)
		b.count(to.size())
	}
	for w := range b.workers {
		local(&b.workers[w].deq, kBlock*nr) // before there are tasks that use it
		if b.k16 != nil {
			local(&b.workers[w].deq16, quantAhead*pairBlock*nr)
		}
	}
	a := &b.froze
	a.f, a.quantFrom, a.quantTo, a.o1, a.i1 = f, from, to, rows, cols
	b.run(panels, (*Backend).quantPackTask)
	a.quantFrom, a.quantTo = nil, nil
	if to != from {
		b.count(-from.size())
	}
	f.quant, f.rows, f.cols = to, rows, cols
}

// quantPackTask packs one panel.
func (b *Backend) quantPackTask(w *worker, t int) {
	a, nr := &b.froze, b.froze.quantFrom.lanes
	from, to, blocks := a.quantFrom, a.quantTo, a.i1/compute.QuantBlock
	n, row := min(nr, a.o1-t*nr), blocks*from.bytes
	codes, scales := from.codes[t*nr*row:][:n*row], from.scales[t*nr*blocks:][:n*blocks]
	if to == from {
		w.codes, w.scales = append(w.codes[:0], codes...), append(w.scales[:0], scales...)
		codes, scales = w.codes, w.scales
	}
	for i := range n {
		for j, c := range codes[i*row : (i+1)*row] {
			to.codes[(t*row+j)*nr+i] = c
		}
		for x, s := range scales[i*blocks : (i+1)*blocks] {
			to.scales[(t*blocks+x)*nr+i] = s
		}
	}
}

// quantUnpack does unpack.
func (b *Backend) quantUnpack(f *frozen) {
	q, nr := f.quant, f.quant.lanes
	blocks := f.cols / compute.QuantBlock
	row, panels := blocks*q.bytes, (f.rows+nr-1)/nr
	to := q
	if f.rows%nr != 0 {
		to = q.fresh(f.rows * blocks)
		b.count(to.size())
	}
	for t := range panels {
		codes, scales := q.codes[t*nr*row:][:nr*row], q.scales[t*nr*blocks:][:nr*blocks]
		if to == q {
			codes, scales = append([]uint8(nil), codes...), append([]uint16(nil), scales...)
		}
		for i := range min(nr, f.rows-t*nr) {
			o := t*nr + i
			for j := range row {
				to.codes[o*row+j] = codes[j*nr+i]
			}
			for x := range blocks {
				to.scales[o*blocks+x] = scales[x*nr+i]
			}
		}
	}
	if to != q {
		b.count(-q.size())
	}
	f.quant, f.rows, f.cols = to, 0, 0
}

// blocks returns the codes and scales of panel t of f, from its block of columns x on.
func (f *frozen) blocks(t, x int) (codes []uint8, scales []uint16) {
	at := (t*(f.cols/compute.QuantBlock) + x) * f.quant.lanes
	return f.quant.codes[at*f.quant.bytes:], f.quant.scales[at:]
}

// part makes dst the elements of panel t of f, of so many blocks of columns from block x on:
// rows of lanes elements, one for each column.
func (f *frozen) part(dst []float32, t, x, blocks int) {
	q := f.quant
	codes, scales := f.blocks(t, x)
	if q.kernel != nil {
		q.kernel(dst, codes, scales, blocks)
		return
	}
	dequantGo(dst, codes, scales, blocks, q.lanes, q.class == compute.Q4)
}

// dequantGo computes kernels.dequant8, or with four dequant4, for panels of nr lanes.
func dequantGo(dst []float32, codes []uint8, scales []uint16, blocks, nr int, four bool) {
	const B = compute.QuantBlock
	for x := range blocks {
		for i := range nr {
			d := compute.FromHalf(scales[x*nr+i])
			if four {
				for j := range B / 2 {
					c := codes[(x*B/2+j)*nr+i]
					dst[(x*B+j)*nr+i] = float32(int(c&15)-8) * d
					dst[(x*B+j+B/2)*nr+i] = float32(int(c>>4)-8) * d
				}
				continue
			}
			for j := range B {
				dst[(x*B+j)*nr+i] = float32(int8(codes[(x*B+j)*nr+i])) * d
			}
		}
	}
}

// quantRow computes frozenRow of quantised weights.
func (f *frozen) quantRow(x []float32, o, i0 int) {
	const B = compute.QuantBlock
	q := f.quant
	var codes [B]uint8
	var whole [B]float32
	for len(x) > 0 {
		at := o/q.lanes*(f.cols/B) + i0/B
		for j := range q.bytes {
			codes[j] = q.codes[(at*q.bytes+j)*q.lanes+o%q.lanes]
		}
		q.class.Decode(whole[:], codes[:], q.scales[at*q.lanes+o%q.lanes])
		n := copy(x, whole[i0%B:])
		x, i0 = x[n:], i0+n
	}
}

// quantBlock computes frozenBlock of quantised weights.
func (b *Backend) quantBlock(w *worker, x []float32, ld int, f *frozen, o0, o1, i0, i1 int) {
	const B = compute.QuantBlock
	nr := f.quant.lanes
	for i := i0; i < i1; {
		from := i / B * B
		end := min(i1, from+kBlock)
		f.part(w.deq, o0/nr, from/B, (end-from+B-1)/B)
		b.k.transpose(x[i-i0:], ld, w.deq[(i-from)*nr+o0%nr:], nr, end-i, o1-o0)
		i = end
	}
}

// quantTiles computes product.tiles of quantised weights.
func (p *product) quantTiles(k *kernels, w *worker, m0, m1, p0, p1 int) {
	part := *p
	part.quant, part.b, part.bias, part.panel, part.ldb = nil, w.deq, nil, 0, k.nr
	for k0 := 0; k0 < p.k; k0 += kBlock {
		part.k, part.acc = min(kBlock, p.k-k0), p.acc || k0 > 0
		part.a = p.a[min(k0*p.cs, len(p.a)):]
		for q := p0; q < p1; q++ {
			p.quant.part(w.deq, p.first+q, k0/compute.QuantBlock, part.k/compute.QuantBlock)
			part.n, part.c = min(k.nr, p.n-q*k.nr), p.c[q*k.nr:]
			part.tiles(k, w, m0, m1, 0, 1)
		}
	}
	p.addBias(k, m0, m1, p0, p1)
}

// quantStream computes product.stream of quantised weights.
func (p *product) quantStream(k *kernels, w *worker, p0, p1 int) {
	blocks := (p.m + k.mr - 1) / k.mr
	for q := p0; q < p1; q++ {
		j := q * k.nr
		cols := min(k.nr, p.n-j)
		for k0 := 0; k0 < p.k; k0 += quantStream {
			kn, acc := min(quantStream, p.k-k0), asInt(p.acc || k0 > 0)
			p.quant.part(w.deq, p.first+q, k0/compute.QuantBlock, kn/compute.QuantBlock)
			for t := range blocks {
				i, end := p.m*t/blocks, p.m*(t+1)/blocks
				a, c := p.a[i*p.rs+k0*p.cs:], p.c[i*p.ldc+j:]
				if cols == k.nr {
					k.gemm[end-i-1](a, p.rs, p.cs, w.deq, k.nr, c, p.ldc, kn, acc)
					continue
				}
				w.partial(end-i, cols, k.nr, c, p.ldc, func(tile []float32) {
					k.gemm[end-i-1](a, p.rs, p.cs, w.deq, k.nr, tile, k.nr, kn, acc)
				})
			}
		}
	}
	p.addBias(k, 0, p.m, p0, p1)
}

// pairs packs so many blocks of columns of panel t, from block x on, as bfloat16.
func (f *frozen) pairs(dst []uint32, k *kernels16, w *worker, t, x, blocks int) {
	if pairs := f.quant.pairs; pairs != nil {
		codes, scales := f.blocks(t, x)
		pairs(dst, codes, scales, blocks)
		return
	}
	f.part(w.deq, t, x, blocks)
	k.packB(dst, w.deq, k.nr, k.nr, blocks*compute.QuantBlock, true)
}

// quantTiles computes kernels16.tiles of quantised weights: panels and parts of panels, one after
// the other.
func (p *product16) quantTiles(k *kernels16, w *worker, a0, a1, b0, b1 int) {
	const B = compute.QuantBlock
	part, group := &w.dense, 1
	if k.expand != nil {
		group = quantAhead
	}
	*part = *p
	part.quant, part.bias, part.b = nil, nil, w.deq16
	for k0 := 0; k0 < p.k; k0 += 2 * pairBlock {
		part.k, part.acc = min(2*pairBlock, p.k-k0), p.acc || k0 > 0
		part.a, part.strideB = p.a[k0/2*k.lanesA:], part.k/2*k.lanesB
		for q := b0; q < b1; q += group {
			n := min(group, b1-q)
			for i := range n {
				p.quant.pairs(w.deq16[i*part.strideB:], k, w, p.first+q+i, (p.column+k0)/B,
					part.k/B)
			}
			part.n, part.c = min(n*k.nr, p.n-q*k.nr), p.c[q*k.nr:]
			k.tiles(part, w, a0, a1, 0, n)
		}
	}
	p.addBias(k, w, a0, a1, b0, b1)
}

// quantStream computes product16.stream of quantised weights.
func (p *product16) quantStream(k *kernels16, w *worker, q0, q1 int) {
	const B = compute.QuantBlock
	blocks := (p.m + k.mr - 1) / k.mr
	for q := q0; q < q1; q++ {
		cols := min(k.nr, p.n-q*k.nr)
		for k0 := 0; k0 < p.k; k0 += quantStream {
			n, acc := min(quantStream, p.k-k0), asInt(p.acc || k0 > 0)
			p.quant.pairs(w.deq16, k, w, p.first+q, k0/B, n/B)
			for t := range blocks {
				i, end := p.m*t/blocks, p.m*(t+1)/blocks
				a, c := p.a[i*p.strideA+k0/2:], p.c[i*p.ldc+q*k.nr:]
				if cols == k.nr {
					k.stream(end-i, a, p.strideA, w.deq16, 1, c, p.ldc, n/2, acc, 0, 0)
					continue
				}
				w.partial(end-i, cols, k.nr, c, p.ldc, func(tile []float32) {
					k.stream(end-i, a, p.strideA, w.deq16, 1, tile, k.nr, n/2, acc, 0, 0)
				})
			}
		}
	}
	p.addBias(k, w, 0, blocks, q0, q1)
}

// quantPart16 does a task of weightPart16: the rows o to o+rows-1 of one panel.
func (b *Backend) quantPart16(w *worker, o, rows int) {
	const B = compute.QuantBlock
	a, k := &b.froze, b.k16
	nr := k.nr
	for i := a.i0; i < a.i1; {
		from := i / B * B
		end := min(a.i1, from+kBlock)
		a.f.part(w.deq, o/nr, from/B, (end-from+B-1)/B)
		for ; i < end; i += nr {
			dst := a.into.dst[(i-a.i0)/nr*a.into.stride+(o-a.o0)/2*k.lanesB:]
			k.packB(dst, w.deq[(i-from)*nr:], nr, min(nr, a.i1-i), rows, false)
		}
	}
}
