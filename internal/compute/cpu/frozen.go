package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"gad/internal/compute"
)

// Frozen weights are held once. What is uploaded lies row by row, in bfloat16 two elements
// a word. The first product packs it, panel by panel in its own place, as products read it:
// a panel of nr rows is the transpose of these rows. From there the rows come back for
// lookups, for Download and Copy and, some columns at a time, for the gradient of a product's
// input.
type frozen struct {
	n          int
	quant      *quant   // of class Q8 or Q4, in the place of words
	half       bool     // bfloat16
	words      []uint32 // float32, or pairs of bfloat16: the lower half is the even element
	rows, cols int      // of the packed matrix; 0 where the elements lie row by row
}

// unpackLimit is how many bytes of a frozen matrix are unpacked at a time for the gradient
// of a product's input; variables for tests. Parts of a float32 matrix are read from a cache,
// and the product is faster than with the whole; for each of a bfloat16 matrix the other
// operand is packed again.
var unpackLimit, unpackLimit16 = 8 << 20, 32 << 20

// expandColumns is how many columns of bfloat16 panels are made float32 at a time.
const expandColumns = 512

func newFrozen(n int, half bool) *frozen {
	words := n
	if half {
		words = (n + 1) / 2
	}
	return &frozen{n: n, half: half, words: newAligned[uint32](words)}
}

// floats returns words as float32 numbers, up to the slice's capacity; bits is the inverse.
func floats(words []uint32) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(words))),
		cap(words))[:len(words)]
}

func bits(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), cap(x))[:len(x)]
}

// frozenOf returns p's weights if they are of class Frozen, else nil.
func frozenOf(op string, p *compute.Param) *frozen {
	m, _ := p.W.Mem().(*memory)
	if m == nil || m.frozen == nil {
		return nil
	}
	if f := m.frozen; p.W.Len() != f.n || p.Len() != f.n {
		panic(
			fmt.Sprintf(
				"cpu: %s: W is %d elements of a frozen block of %d, and [%d,%d]: want the whole block",
				op, p.W.Len(), f.n, p.Rows, p.Cols))
	}
	return m.frozen
}

// tiling is how a packed matrix of class Frozen lies.
type tiling struct {
	nr     int // rows of a panel
	row    int // words of a row, where the elements lie row by row
	stride int // words of a panel
	panels int
	own    bool // panels and rows take the same place
}

func (b *Backend) tiling(f *frozen, rows, cols int) (l tiling) {
	if f.quant != nil { // the rest is quant's own
		return tiling{nr: f.quant.lanes, own: rows%f.quant.lanes == 0}
	}
	if f.half {
		l.nr, l.row, l.stride = b.k16.nr, (cols+1)/2, b.k16.pairs(cols)*b.k16.lanesB
	} else {
		l.nr, l.row = b.k.wide(rows), cols
		l.stride = cols * l.nr
	}
	l.panels = (rows + l.nr - 1) / l.nr
	l.own = rows%l.nr == 0 && l.stride == l.nr*l.row && !(f.half && cols%2 > 0)
	return l
}

// frozenArgs is what the tasks of this file's operations read.
type frozenArgs struct {
	f              *frozen
	tiling         tiling
	o0, o1, i0, i1 int       // rows and columns of the matrix
	panels         []uint32  // that panelsOf makes
	dst, src       []float32 // of readFrozen, weightPart and packedPart
	ld             int       // of src
	off            int       // of readFrozen: the first element
	parts, first   int       // how many elements a task has, and the first task's number
	into           packing   // of weightPart16

	quantFrom, quantTo *quant // of quantPackTask
}

// panelsOf returns w's weights, packed at their first use; nil for quantised ones.
func (b *Backend) panelsOf(f *frozen, w *compute.Param) []uint32 {
	if f.rows == w.Rows && f.cols == w.Cols {
		return f.words
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unpack(f)
	if f.quant != nil {
		b.quantPanels(f, w.Rows, w.Cols)
		return nil
	}
	l := b.tiling(f, w.Rows, w.Cols)
	a := &b.froze
	a.f, a.panels, a.tiling, a.o1, a.i1 = f, f.words, l, w.Rows, w.Cols
	if !l.own {
		a.panels = newAligned[uint32](l.panels * l.stride)
		b.count(4 * int64(len(a.panels)))
	}
	b.room(l.nr * w.Cols)
	b.run(l.panels, (*Backend).packFrozenTask)
	if !l.own {
		b.count(-4 * int64(len(f.words)))
	}
	f.words, f.rows, f.cols, a.panels = a.panels, w.Rows, w.Cols, nil
	return f.words
}

// packFrozenTask packs one panel.
func (b *Backend) packFrozenTask(w *worker, t int) {
	a := &b.froze
	f, l, I := a.f, a.tiling, a.i1
	n := min(l.nr, a.o1-t*l.nr)
	dst := a.panels[t*l.stride : (t+1)*l.stride]
	if f.half && I%2 > 0 {
		rows := w.buf[0][:n*I]
		f.widen(rows, t*l.nr*I)
		b.k16.packB(dst, rows, I, n, I, false)
		return
	}
	src := floats(f.words[t*l.nr*l.row:][:n*l.row])
	if l.own {
		src = w.buf[0][:copy(w.buf[0][:len(src)], src)]
	}
	b.k.transpose(floats(dst), l.nr, src, l.row, n, l.row)
}

// unpack puts the elements back row by row; the caller has the lock. It is rare, and may be
// called from any goroutine: it does without the workers.
func (b *Backend) unpack(f *frozen) {
	if f.rows == 0 {
		return
	}
	if f.quant != nil {
		b.quantUnpack(f)
		return
	}
	l := b.tiling(f, f.rows, f.cols)
	fresh := &frozen{words: f.words}
	if !l.own {
		fresh = newFrozen(f.n, f.half)
		b.count(4 * int64(len(fresh.words)))
	}
	panel, row := make([]float32, l.stride), make([]float32, f.cols)
	for t := range l.panels {
		n := min(l.nr, f.rows-t*l.nr)
		if f.half && f.cols%2 > 0 {
			for o := t * l.nr; o < t*l.nr+n; o++ {
				b.frozenRow(row, f, o, 0)
				fresh.round(row, o*f.cols, nil)
			}
			continue
		}
		copy(panel, floats(f.words[t*l.stride:(t+1)*l.stride]))
		b.k.transpose(floats(fresh.words[t*l.nr*l.row:][:n*l.row]), l.row, panel, l.nr, l.row, n)
	}
	if !l.own {
		b.count(-4 * int64(len(f.words)))
	}
	f.words, f.rows, f.cols = fresh.words, 0, 0
}

// rowMajor returns f's elements row by row, to be written from any goroutine. whole says that all
// will be written.
func (b *Backend) rowMajor(f *frozen, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if whole && f.rows > 0 && b.tiling(f, f.rows, f.cols).own {
		f.rows, f.cols = 0, 0
	}
	b.unpack(f)
}

// uploadFrozen does Upload for Frozen memory.
func (b *Backend) uploadFrozen(f *frozen, dst compute.Tensor, src []float32) {
	compute.CheckContiguous("Upload", "dst", dst, len(src))
	if f.quant != nil {
		compute.CheckBlocks("Upload", "dst", dst)
	}
	b.rowMajor(f, len(src) == f.n)
	if f.quant != nil {
		f.quant.upload(dst.Off()/compute.QuantBlock, src)
	} else if f.half {
		f.round(src, dst.Off(), b.k16.round)
	} else {
		copy(floats(f.words[dst.Off():]), src)
	}
}

// round writes x from the element off on, rounded to bfloat16; round makes pairs of blocks
// of 32, if it is not nil.
func (f *frozen) round(x []float32, off int, round func(dst []uint32, src []float32, blocks int)) {
	set := func(i int, v float32) {
		word, shift := &f.words[i/2], i%2*16
		*word = *word&^(0xffff<<shift) | round16(v)<<shift
	}
	if off%2 > 0 && len(x) > 0 {
		set(off, x[0])
		x, off = x[1:], off+1
	}
	whole := 0
	if round != nil {
		if whole = len(x) / 32; whole > 0 {
			round(f.words[off/2:], x, whole)
		}
	}
	for i := 32 * whole; i+1 < len(x); i += 2 {
		f.words[(off+i)/2] = round16(x[i]) | round16(x[i+1])<<16
	}
	if len(x)%2 > 0 {
		set(off+len(x)-1, x[len(x)-1])
	}
}

// widen does the inverse, for elements that lie row by row.
func (f *frozen) widen(x []float32, off int) {
	if off%2 > 0 && len(x) > 0 {
		x[0] = math.Float32frombits(f.words[off/2] >> 16 << 16)
		x, off = x[1:], off+1
	}
	to := bits(x)
	for i, word := range f.words[off/2:][:len(to)/2] {
		to[2*i], to[2*i+1] = word<<16, word&0xffff0000
	}
	if n := len(to); n%2 > 0 {
		to[n-1] = f.words[(off+n)/2] << 16
	}
}

// frozenRow makes x the elements of a row of a packed matrix, from the column i0 on.
func (b *Backend) frozenRow(x []float32, f *frozen, o, i0 int) {
	if f.quant != nil {
		f.quantRow(x, o, i0)
		return
	}
	l := b.tiling(f, f.rows, f.cols)
	panel, to := f.words[o/l.nr*l.stride+o%l.nr:], bits(x)
	if !f.half {
		for i := range to {
			to[i] = panel[(i0+i)*l.nr]
		}
		return
	}
	for i := range to {
		to[i] = panel[(i0+i)/2*l.nr] >> ((i0 + i) % 2 * 16) << 16
	}
}

// frozenBlock makes x, whose rows are ld apart, the rows o0 to o1-1 of one panel of a packed
// matrix, of their columns i0 to i1-1.
func (b *Backend) frozenBlock(w *worker, x []float32, ld int, f *frozen, o0, o1, i0, i1 int) {
	if f.quant != nil {
		b.quantBlock(w, x, ld, f, o0, o1, i0, i1)
		return
	}
	l := b.tiling(f, f.rows, f.cols)
	panel, lane := f.words[o0/l.nr*l.stride:(o0/l.nr+1)*l.stride], o0%l.nr
	if !f.half {
		b.k.transpose(x, ld, floats(panel[i0*l.nr+lane:]), l.nr, i1-i0, o1-o0)
		return
	}
	wide := w.buf[1]
	for i := i0; i < i1; {
		end := min(i1, i+expandColumns)
		b.expand(wide, panel[i/2*l.nr:], l.nr, (end+1)/2-i/2)
		b.k.transpose(x[i-i0:], ld, wide[i%2*l.nr+lane:], l.nr, end-i, o1-o0)
		i = end
	}
}

// readFrozen makes dst the elements from off on.
func (b *Backend) readFrozen(dst []float32, f *frozen, off int) {
	a := &b.froze
	a.f, a.dst, a.off, a.parts = f, dst, off, block
	if f.rows > 0 {
		a.tiling = b.tiling(f, f.rows, f.cols)
		a.parts = a.tiling.nr * f.cols // a panel's rows
		b.room(0, (expandColumns+2)*a.tiling.nr)
	}
	first, last := off/a.parts, (off+len(dst)+a.parts-1)/a.parts
	a.first = first
	if len(dst) < packGrain {
		for t := range last - first {
			b.readFrozenTask(&b.workers[0], t)
		}
		return
	}
	b.run(last-first, (*Backend).readFrozenTask)
}

func (b *Backend) readFrozenTask(w *worker, t int) {
	a := &b.froze
	f, t := a.f, t+a.first
	lo, hi := max(a.off, t*a.parts), min(a.off+len(a.dst), (t+1)*a.parts)
	x, I := a.dst[lo-a.off:hi-a.off], f.cols
	switch {
	case f.rows == 0 && f.quant != nil:
		f.quant.widen(x, lo)
		return
	case f.rows == 0 && f.half:
		f.widen(x, lo)
		return
	case f.rows == 0:
		copy(x, floats(f.words[lo:hi]))
		return
	}
	if i := lo % I; i > 0 {
		n := min(I-i, len(x))
		b.frozenRow(x[:n], f, lo/I, i)
		x, lo = x[n:], lo+n
	}
	if n := len(x) / I; n > 0 {
		b.frozenBlock(w, x, I, f, lo/I, lo/I+n, 0, I)
		x, lo = x[n*I:], lo+n*I
	}
	if len(x) > 0 {
		b.frozenRow(x, f, lo/I, 0)
	}
}

// embedFrozen does Embed for Frozen memory.
func (b *Backend) embedFrozen(f *frozen, ids []int32, D int) {
	b.froze.f, b.index, b.D = f, ids, D
	b.eachRow(len(ids), D, func(b *Backend, lo, hi int) {
		f, D := b.froze.f, b.D
		for n := lo; n < hi; n++ {
			y, o := b.y[n*D:n*D+D], int(b.index[n])
			switch {
			case f.rows > 0:
				b.frozenRow(y, f, o, 0)
			case f.quant != nil:
				f.quant.widen(y, o*D)
			case f.half:
				f.widen(y, o*D)
			default:
				copy(y, floats(f.words[o*D:o*D+D]))
			}
			if f.quant != nil && b.k16 != nil {
				rounded(y, y)
			}
		}
	})
}

// unpackColumns returns how many columns of a matrix are unpacked at a time: whole panels of them,
// about equally many.
func (b *Backend) unpackColumns(rows, cols int, half bool) int {
	size, nr, limit := 4, b.k.nr, unpackLimit
	if half {
		size, nr, limit = 2, b.k16.nr, unpackLimit16
	}
	parts := max(1, (rows*cols*size+limit-1)/limit)
	return max(1, (cols+parts*nr-1)/(parts*nr)) * nr
}

// weightPart returns the rows o0 to o1-1 of w, columns i0 to i1-1, in panels of columns as packRows
// makes them, for the gradient of a product's input. f is w's frozen weights, or nil if they are
// not Frozen. o0 must begin a panel.
func (b *Backend) weightPart(f *frozen, w *compute.Param, o0, o1, i0, i1 int) []float32 {
	if f == nil {
		return b.packedPart(&b.unpacked, f32("LinearGrad", "W", w.W, w.Len())[o0*w.Cols+i0:],
			w.Cols, o1-o0, i1-i0)
	}
	b.panelsOf(f, w)
	a := &b.froze
	a.f, a.o0, a.o1, a.i0, a.i1, a.tiling = f, o0, o1, i0, i1, b.tiling(f, w.Rows, w.Cols)
	a.dst = b.grow(&b.unpacked, (o1-o0)*b.up(i1-i0))
	b.room(0, (expandColumns+2)*a.tiling.nr)
	b.run((o1-o0+a.tiling.nr-1)/a.tiling.nr, func(b *Backend, w *worker, t int) {
		a, nr := &b.froze, b.k.nr
		o := a.o0 + t*a.tiling.nr
		for i := a.i0; i < a.i1; i += nr {
			b.frozenBlock(w, a.dst[(i-a.i0)*(a.o1-a.o0)+(o-a.o0)*nr:], nr, a.f, o,
				min(a.o1, o+a.tiling.nr), i, min(a.i1, i+nr))
		}
	})
	return a.dst
}

// weightPart16 does weightPart in bfloat16: panels whose lanes are the columns.
func (b *Backend) weightPart16(f *frozen, w *compute.Param, o0, o1, i0, i1 int) packing {
	b.panelsOf(f, w)
	a, k := &b.froze, b.k16
	a.f, a.o0, a.o1, a.i0, a.i1, a.tiling = f, o0, o1, i0, i1, b.tiling(f, w.Rows, w.Cols)
	a.into = packing{dst: grow(b, &b.unpacked16, k.sizeB(i1-i0, o1-o0)),
		stride: k.pairs(o1-o0) * k.lanesB, n: i1 - i0, k: o1 - o0, b: true}
	b.room(0, (k.nr+2)*k.nr)
	b.run((o1-o0+k.nr-1)/k.nr, func(b *Backend, w *worker, t int) {
		a, k := &b.froze, b.k16
		nr, o := k.nr, a.o0+t*k.nr
		if a.f.quant != nil {
			b.quantPart16(w, o, min(nr, a.o1-o))
			return
		}
		panel, rows, block := a.f.words[o/nr*a.tiling.stride:], min(nr, a.o1-o), w.buf[1]
		for i := a.i0; i < a.i1; i += nr {
			dst, n := a.into.dst[(i-a.i0)/nr*a.into.stride+(o-a.o0)/2*k.lanesB:], min(nr, a.i1-i)
			if k.round == nil {
				turnPairs(dst, panel[i/2*nr:], nr, n, rows)
				continue
			}
			b.expand(block, panel[i/2*nr:], nr, (n+1)/2)
			k.packB(dst, block, nr, n, rows, false)
		}
	})
	return a.into
}

// turnPairs makes a block of columns lanes and rows elements of a panel's block of rows
// lanes and columns elements, where there is no assembly that packs. Both panels have nr
// lanes, an even number.
func turnPairs(dst, src []uint32, nr, columns, rows int) {
	for o := 0; o < rows; o += 2 {
		to := dst[o/2*nr:][:nr]
		last := o + 1
		if last == rows {
			last = o
		}
		for i := 0; i < columns; i += 2 {
			from := src[i/2*nr:][:nr]
			x, y := from[o], from[last]
			if last == o {
				y = 0
			}
			to[i], to[i+1] = x&0xffff|y<<16, x>>16|y&0xffff0000
		}
	}
}
