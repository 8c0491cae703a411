//go:build nvidia

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// block is one allocation on the device.
type block struct {
	p     driver.Ptr
	bytes int64
}

// memory is a block of elements of one type, with the copies of it that were
// derived for parameters in it.
type memory struct {
	block
	t      dtype
	n      int
	host   []byte // the block, where it is pinned memory of the host
	copies []*derived
	freed  bool
	of     *memory // whose memory it is, where As lent it
}

// gone reports whether m, or the memory that lent it by As, was freed.
func (m *memory) gone() bool { return m != nil && (m.freed || m.of.gone()) }

// Len returns the number of elements.
func (m *memory) Len() int { return m.n }

// derived is a parameter's weights in the other type than W's.
type derived struct {
	block
	t  dtype
	of *derived // whose memory it is part of, where neighbours have one block (stacked)
}

// gone reports whether d's memory was freed, or never taken.
func (d *derived) gone() bool { return d == nil || d.bytes == 0 || d.of.freed() }

func (d *derived) freed() bool { return d != nil && d.bytes == 0 }

// view is a tensor that the device reads and writes.
type view struct {
	p  driver.Ptr
	t  dtype
	n  int
	lo driver.Ptr // the second plane of master, and the scales of blocks
	// the first element; where there are blocks p and lo are where the first block's would be
	first int
}

// step returns the distance of neighbouring elements in bytes, in each plane of a master.
func (t dtype) step() int64 { return [...]int64{4, 2, 2, 1}[t] }

// from returns the address of element i, in the first plane of a master.
func (v view) from(i int) driver.Ptr { return v.p + driver.Ptr(int64(i)*v.t.step()) }

// slice returns v from element lo on, n elements.
func (v view) slice(lo, n int) view {
	if v.t.quantised() {
		return view{p: v.p, t: v.t, n: n, lo: v.lo, first: v.first + lo}
	}
	s := view{p: v.from(lo), t: v.t, n: n}
	if v.t == master {
		s.lo = v.lo + driver.Ptr(2*lo)
	}
	return s
}

// aligned reports whether p is at 16 bytes.
func aligned(p driver.Ptr) bool { return p%16 == 0 }

// reach returns the view of t, of any class, on the device or on the host; it panics unless there
// are n elements without gaps.
func reach(op, name string, t compute.Tensor, n int) view {
	compute.CheckContiguous(op, name, t, n)
	return begin(op, name, t, n)
}

// begin is t as if it had no gaps; it panics unless there are n elements.
func begin(op, name string, t compute.Tensor, n int) view {
	compute.CheckLen(op, name, t, n)
	if t.Absent() {
		return view{}
	}
	m := t.Mem().(*memory)
	if m.gone() {
		panic(fmt.Sprintf("cuda: %s: %s was freed", op, name))
	}
	v := view{p: m.p, t: m.t, n: m.n}
	switch codes, _ := m.t.planes(m.n); {
	case m.t == master:
		v.lo = m.p + driver.Ptr(2*m.n)
	case m.t.quantised():
		v.lo = m.p + driver.Ptr(codes)
	}
	return v.slice(t.Off(), n)
}

// pinnedOf returns t's memory if it is the host's, else nil.
func pinnedOf(t compute.Tensor) []byte {
	if t.Absent() {
		return nil
	}
	m := t.Mem().(*memory)
	if m.host == nil {
		return nil
	}
	return m.host[int64(t.Off())*m.t.size():][:int64(t.Len())*m.t.size()]
}

// local is reach for a tensor on the device.
func local(op, name string, t compute.Tensor, n int) view {
	v := reach(op, name, t, n)
	if !t.Absent() && t.Mem().(*memory).host != nil {
		panic(fmt.Sprintf("cuda: %s: %s is in the host's memory, which only AdamW, Zero, Upload and Download take", op, name))
	}
	return v
}

// take returns t on the device, float32 or bfloat16; it panics unless there are n elements.
func take(op, name string, t compute.Tensor, n int) view {
	v := local(op, name, t, n)
	if v.t > bf16 {
		panic(fmt.Sprintf("cuda: %s: %s is %v, want float32 or bfloat16", op, name, v.t))
	}
	return v
}

// opt is take, but the zero view for an absent tensor.
func opt(op, name string, t compute.Tensor, n int) view {
	if t.Absent() {
		return view{}
	}
	return take(op, name, t, n)
}

// viewOfType is take for a tensor whose elements must be of type t.
func viewOfType(op, name string, x compute.Tensor, n int, t dtype) view {
	v := local(op, name, x, n)
	if !x.Absent() && v.t != t {
		panic(fmt.Sprintf("cuda: %s: %s is %v, want %v: allocate it in the other class", op, name,
			v.t, t))
	}
	return v
}

// narrowView is take of a Narrow tensor, wide of a Wide one.
func (b *Backend) narrowView(op, name string, x compute.Tensor, n int) view {
	return viewOfType(op, name, x, n, b.narrow)
}

// spread is narrowed of a tensor that may be columns: N rows of width elements, and how far
// apart they begin.
func (b *Backend) spread(op, name string, x compute.Tensor, N, width int) (v view, row int) {
	cols, row := x.Rows()
	if cols == 0 {
		return b.narrowView(op, name, x, N*width), width
	}
	if cols != width {
		panic(fmt.Sprintf("cuda: %s: %s is columns, rows of %d elements: want %d", op, name, cols,
			width))
	}
	if v = begin(op, name, x, N*width); v.t != b.narrow || x.Mem().(*memory).host != nil {
		panic(fmt.Sprintf("cuda: %s: %s is columns of %v, want %v: allocate it in the other class",
			op, name, v.t, b.narrow))
	}
	return v, row
}

func wide(op, name string, x compute.Tensor, n int) view { return viewOfType(op, name, x, n, f32) }

// allocate allocates and counts bytes on the device.
func (b *Backend) allocate(what string, bytes int64) (block, error) {
	if bytes == 0 {
		return block{}, nil
	}
	if b.Limit > 0 && b.Block(bytes) > b.Limit-b.inUse {
		return block{}, fmt.Errorf("cuda: %q: %d bytes: %w: beyond the limit of %d bytes with %d in use: use a smaller batch or shorter sequences, recompute activations, or raise the limit",
			what, bytes, compute.ErrMemory, b.Limit, b.inUse)
	}
	p, err := b.dev.Alloc(bytes)
	if err != nil {
		if errors.Is(err, driver.ErrMemory) {
			err = fmt.Errorf("%w: %w", compute.ErrMemory, err)
		}
		free, total := b.dev.Free()
		return block{}, fmt.Errorf("cuda: %q: %d bytes, %d of the device's %d are free and gad uses %d: use a smaller batch or shorter sequences, recompute activations, or a larger GPU: %w",
			what, bytes, free, total, b.inUse, err)
	}
	b.count(b.Block(bytes))
	b.blocks[p] = bytes
	return block{p, bytes}, nil
}

// count adds to the bytes in use.
func (b *Backend) count(bytes int64) {
	b.inUse += bytes
	b.peak = max(b.peak, b.inUse)
}

// release gives a block back. What still uses it must be done.
func (b *Backend) release(k *block) {
	if k.bytes > 0 {
		b.dev.Release(k.p)
		b.count(-b.Block(k.bytes))
		delete(b.blocks, k.p)
	}
	*k = block{}
}

// Alloc returns n zeroed elements. It fails when the device, or Options.Limit,
// has not so much left.
func (b *Backend) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	b.outside("Alloc")
	if n < 0 {
		panic(fmt.Sprintf("cuda: Alloc: %q: %d elements", what, n))
	}
	if c&compute.Host != 0 && c != compute.Wide|compute.Host && c != compute.Code|compute.Host {
		panic(fmt.Sprintf("cuda: Alloc: %q: class %v: only Wide and Code are on the host", what, c))
	}
	defer b.enter()()
	m := &memory{t: storage(c, b.narrow), n: n}
	if m.t.quantised() {
		compute.CheckBlocks("Alloc", c.String(), compute.View(m))
	}
	var err error
	if c&compute.Host != 0 {
		if err = b.pin(what, m); err != nil {
			return compute.Tensor{}, err
		}
		return compute.View(m), nil
	}
	first, second := m.t.planes(n)
	bytes := (first + second + 3) &^ 3
	if m.block, err = b.allocate(what, bytes); err != nil {
		return compute.Tensor{}, err
	}
	if bytes > 0 {
		err := b.dev.Set32(m.p, 0, bytes/4)
		if err == nil && m.t == q4 { // whose code of zero is 8
			err = b.dev.Set32(m.p, 0x88888888, first/4)
		}
		if err != nil {
			b.release(&m.block)
			return compute.Tensor{}, fmt.Errorf("cuda: %q: zero %d bytes: %w", what, bytes, err)
		}
	}
	return compute.View(m), nil
}

// pin gives m zeroed memory of the host, which the device reads and writes by the same
// address.
func (b *Backend) pin(what string, m *memory) error {
	bytes := int64(m.n) * m.t.size()
	if bytes == 0 {
		return nil
	}
	host, err := b.dev.AllocPinned(int(bytes))
	if err != nil {
		if errors.Is(err, driver.ErrMemory) {
			err = fmt.Errorf("%w: %w", compute.ErrMemory, err)
		}
		return fmt.Errorf("cuda: %q: %d bytes of pinned host memory, beside %d that gad has pinned: keep the moments on the GPU (optim.offload=false) or in 8 bits (optim.moments=8bit), or give the host, or its container, more memory: %w",
			what, bytes, b.onHost, err)
	}
	clear(host)
	m.host, m.block = host, block{driver.Ptr(uintptr(unsafe.Pointer(&host[0]))), bytes}
	b.pins[m.p] = host
	b.onHost += bytes
	return nil
}

// unpin gives m's memory of the host back. What still uses it must be done.
func (b *Backend) unpin(m *memory) {
	b.dev.Unpin(m.host)
	b.onHost -= m.bytes
	delete(b.pins, m.p)
	m.host, m.block = nil, block{}
}

// As returns n elements of class c at the beginning of t's memory.
func (b *Backend) As(t compute.Tensor, c compute.Class, n int) compute.Tensor {
	if c != compute.Wide && c != compute.Narrow || n < 0 {
		panic(fmt.Sprintf("cuda: As: %d elements of class %v: want Wide or Narrow ones", n, c))
	}
	v := take("As", "t", t, t.Len())
	m := &memory{block: block{p: v.p}, t: storage(c, b.narrow), n: n}
	if int64(n)*m.t.size() > int64(v.n)*v.t.size() {
		panic(fmt.Sprintf("cuda: As: %d elements of %v do not fit into %d of %v", n, m.t, v.n, v.t))
	}
	if int64(v.p)%m.t.size() != 0 {
		panic(fmt.Sprintf("cuda: As: t begins in the middle of a %v", m.t))
	}
	if !t.Absent() {
		m.of = t.Mem().(*memory)
	}
	return compute.View(m)
}

// Free frees t's block, with its derived copies, once all operations are done.
func (b *Backend) Free(t compute.Tensor) {
	b.outside("Free")
	if t.Absent() || b.dev == nil { // Close has freed everything
		return
	}
	m := t.Mem().(*memory)
	if m.freed || m.of != nil || t.Len() != m.n {
		panic("cuda: Free: not a whole block, lent, or freed before")
	}
	defer b.enter()()
	b.wait()
	for _, d := range m.copies {
		b.release(&d.block)
	}
	if m.host != nil {
		b.unpin(m)
	} else {
		b.release(&m.block)
	}
	m.copies, m.freed = nil, true
}

// Memory returns the number of bytes of the device that are allocated now, scratch and derived
// copies included, and its maximum so far.
func (b *Backend) Memory() (inUse, peak int64) { return b.inUse, b.peak }

// Alone returns false: cuBLASLt chooses the order of a product's sums by the call's shape, and
// generation has an attention kernel of its own.
func (b *Backend) Alone() bool { return false }

// Available returns the free memory of the device, within Options.Limit.
func (b *Backend) Available() int64 {
	defer b.enter()()
	free, _ := b.dev.Free()
	if b.Limit > 0 {
		free = min(free, b.Limit-b.inUse)
	}
	return max(free, 0)
}

// scratch cuts the arena for one operation: a place of each size in bytes, of any
// content. All operations share it, because the device runs them in order.
// After a failure the places are nil; commands do nothing then.
func (b *Backend) scratch(bytes ...int64) []driver.Ptr {
	need := int64(0)
	for _, n := range bytes {
		need += alignScratch(n)
	}
	places := make([]driver.Ptr, len(bytes))
	if b.err != nil {
		return places
	}
	p := b.room(&b.scratched.arena, "scratch", need)
	if p == 0 {
		return places
	}
	for i, n := range bytes {
		places[i] = p
		p += driver.Ptr(alignScratch(n))
	}
	return places
}

// room returns k's address, once k has at least bytes; it is 0 after a failure, and where k would
// move under a graph.
func (b *Backend) room(k *block, what string, bytes int64) driver.Ptr {
	if b.err != nil {
		return 0
	}
	if bytes > k.bytes {
		if b.graph.fixed() {
			b.graph.diverged = true
			return 0
		}
		b.wait()
		b.release(k)
		var err error
		if *k, err = b.allocate(what, bytes); err != nil {
			b.err = err
			return 0
		}
	}
	return k.p
}

// weights returns the whole of p.W in type t: W itself, also of quantised ones if t is Narrow, the
// bfloat16 plane of a master, or the copy derived from W, which is made at its first use.
func (b *Backend) weights(op string, p *compute.Param, t dtype) view {
	w := local(op, "W", p.W, p.Len())
	if w.t.quantised() && t == b.narrow {
		return w
	}
	if w.t == t || w.n == 0 || w.t == master && t == bf16 {
		return view{p: w.p, t: t, n: w.n}
	}
	if w.t > bf16 {
		panic(fmt.Sprintf("cuda: %s: %s is %v, want %v: allocate it in another class", op, p.Name,
			w.t, t))
	}
	d, _ := p.Derived.(*derived)
	if d.gone() {
		if b.err != nil {
			return view{t: t, n: w.n}
		}
		if b.graph.fixed() {
			b.graph.diverged = true
			return view{t: t, n: w.n}
		}
		k, err := b.allocate(fmt.Sprintf("%s in %v", p.Name, t), int64(w.n)*t.size())
		if err != nil {
			b.err = err
			return view{t: t, n: w.n}
		}
		d = &derived{block: k, t: t}
		p.Derived = d
		m := p.W.Mem().(*memory)
		m.copies = append(m.copies, d)
		b.cast(view{p: d.p, t: t, n: w.n}, w)
	}
	return view{p: d.p, t: t, n: w.n}
}

// stackWeights returns one view of the weights of all parameters ps in type t, one after the other;
// quantised weights stay in blocks, as in weights.
func (b *Backend) stackWeights(op string, ps []*compute.Param, t dtype) (all view, ok bool) {
	for i, p := range ps {
		if i > 0 && !ps[i-1].W.EndsAt(p.W) {
			return view{}, false
		}
		all.n += p.Len()
	}
	first := local(op, "W", ps[0].W, ps[0].Len())
	if first.t.quantised() && t == b.narrow {
		first.n = all.n
		return first, true
	}
	if all.t = t; first.t == t || first.t == master && t == bf16 {
		all.p = first.p
		return all, true
	}
	if ps[0].Rows > 1 || first.t != f32 {
		return view{}, false // the copies of matrices are a block each
	}
	whole, _ := ps[0].Derived.(*derived)
	if whole != nil {
		whole = whole.of
	}
	at := int64(0)
	for _, p := range ps {
		d, _ := p.Derived.(*derived)
		if d.gone() || d.of == nil || d.of != whole || d.t != t || d.p != whole.p+driver.Ptr(at) {
			return b.stack(op, ps, all, first)
		}
		at += d.bytes
	}
	all.p = whole.p
	return all, true
}

// stack makes the copies of neighbouring vectors, whose W begin at first, one block.
func (b *Backend) stack(op string, ps []*compute.Param, all, first view) (view, bool) {
	if b.err != nil {
		return all, true
	}
	if b.graph.fixed() {
		b.graph.diverged = true
		return all, true
	}
	k, err := b.allocate(fmt.Sprintf("%s and %d more in %v", ps[0].Name, len(ps)-1, all.t),
		int64(all.n)*all.t.size())
	if err != nil {
		b.err = err
		return all, true
	}
	whole := &derived{block: k, t: all.t}
	m := ps[0].W.Mem().(*memory)
	m.copies = append(m.copies, whole)
	at := k.p
	for _, p := range ps {
		bytes := int64(p.Len()) * all.t.size()
		p.Derived = &derived{block: block{at, bytes}, t: all.t, of: whole}
		at += driver.Ptr(bytes)
	}
	all.p = k.p
	first.n = all.n
	b.cast(all, first)
	return all, true
}

// Refresh brings the copy of p.W up to date. A matrix gets one if it needs one and has none;
// for a vector it is made by the first product that wants it, because norms do not.
func (b *Backend) Refresh(p *compute.Param) {
	defer b.enter()()
	d, _ := p.Derived.(*derived)
	if d == nil {
		if p.Rows > 1 {
			b.weights("Refresh", p, b.narrow)
		}
		return
	}
	w := take("Refresh", "W", p.W, p.Len()) // quantised weights have no copy
	b.cast(view{p: d.p, t: d.t, n: w.n}, w)
}

// cast converts all of src to dst's type; one of two types is float32, or src is quantised.
func (b *Backend) cast(dst, src view) {
	switch {
	case dst.t.quantised() && dst.t == src.t:
		codes, scales := dst.t.planes(src.n)
		toCode, toScale := dst.t.planes(dst.first)
		ofCode, ofScale := dst.t.planes(src.first)
		b.copyDev(dst.p+driver.Ptr(toCode), src.p+driver.Ptr(ofCode), codes)
		b.copyDev(dst.lo+driver.Ptr(toScale), src.lo+driver.Ptr(ofScale), scales)
	case dst.t.quantised():
		codes, scales := dst.t.planes(dst.first)
		b.launch(b.k.quant.quantise[dst.t-q8], b.flat(src.n), at(dst.p+driver.Ptr(codes)),
			at(dst.lo+driver.Ptr(scales)), at(src.p), whole(src.n/compute.QuantBlock))
	case src.t.quantised():
		b.launch(b.k.quant.dequant[src.t-q8][dst.t], b.flat(src.n), at(dst.p), at(src.p), at(src.lo),
			whole(src.first), whole(src.n))
	case dst.t == src.t:
		b.copyDev(dst.p, src.p, int64(src.n)*src.t.step())
		if src.t == master {
			b.copyDev(dst.lo, src.lo, int64(src.n)*src.t.step())
		}
	case dst.t == master:
		b.launch(b.k.castMaster, b.flat(src.n), at(dst.p), at(dst.lo), at(src.p), whole(src.n))
	case src.t == master:
		b.launch(b.k.castOfMaster, b.flat(src.n), at(dst.p), at(src.p), at(src.lo), whole(src.n))
	default:
		b.launch(b.k.cast[dst.t], b.flat(src.n), at(dst.p), at(src.p), whole(src.n))
	}
}

// stagingRing is pinned host memory with a twin on the device, filled from the front,
// and then from the front again, but not over lists of the operation that runs: its
// kernels, which are not queued yet, read them.
type staging struct {
	host   []byte
	twin   block
	used   int
	end    int // of the room
	live   int // where the running operation's first list is, or len(host)
	recent []staged
}

// staged is a list that lies in staging.
type staged struct {
	what   string
	off, n int            // bytes
	list   unsafe.Pointer // what it was copied from
	limit  int            // of its indices; 0 is none
}

// grow replaces s by a larger one, once the device has read the staged data. The old twin stays
// until the next operation begins. After a failure s is unchanged.
func (s *staging) grow(b *Backend, bytes int) error {
	b.wait()
	host, err := b.dev.AllocPinned(bytes)
	if err != nil {
		return fmt.Errorf("cuda: %d bytes of pinned memory: %w", bytes, err)
	}
	twin, err := b.allocate("staging", int64(bytes))
	if err != nil {
		b.dev.Unpin(host)
		return err
	}
	if s.twin.bytes > 0 {
		b.retired = append(b.retired, s.twin)
		s.twin = block{}
	}
	s.release(b)
	s.host, s.twin = host, twin
	s.begin()
	return nil
}

// begin is called when an operation begins.
func (s *staging) begin() { s.end, s.live = len(s.host), len(s.host) }

func (s *staging) release(b *Backend) {
	if s.host != nil {
		b.dev.Unpin(s.host)
	}
	b.release(&s.twin)
	*s = staging{}
}

// rewind empties the staging memory; the device must have read it.
func (s *staging) rewind() {
	s.used, s.recent = 0, s.recent[:0]
	s.begin()
}

// stagingRing returns the ring, or the running graph's own.
func (b *Backend) stagingRing() *staging {
	if b.graph.mode != plain {
		return &b.graph.now.area
	}
	return &b.ring
}

// place returns n bytes of staging; off is -1 after a failure.
func (b *Backend) place(n int) (s *staging, off int) {
	s = b.stagingRing()
	if b.err != nil {
		return s, -1
	}
	if s.used+n > s.end {
		switch {
		case b.graph.fixed():
			b.graph.diverged = true
			return s, -1
		case b.graph.mode == plain && n <= s.live:
			b.wait()
			room := s.live
			s.rewind()
			if room < len(s.host) {
				s.end, s.live = room, 0
			}
		default:
			if err := s.grow(b, max(2*len(s.host), 2*n, areaBytes, b.graph.largest())); err != nil {
				b.err = err
				return s, -1
			}
		}
	}
	off = s.used
	s.used += (n + 255) &^ 255
	return s, off
}

// recall is how many lists staging remembers.
const recall = 16

// stage brings a list of n bytes to the device and returns where it is there. A
// list under the same name with the same content is not brought again: same
// compares, and fill writes. Within one call of Repeat the same memory, which list
// is the beginning of, counts as the same content: each layer brings its own again.
// While commands are compared ahead of a call, only places are found. limit is kept.
func (b *Backend) stage(what string, list unsafe.Pointer, n, limit int, same func(old []byte) bool,
	fill func(list []byte)) driver.Ptr {
	if n == 0 {
		return 0
	}
	s := b.stagingRing()
	for i := len(s.recent) - 1; i >= 0; i-- {
		if e := s.recent[i]; e.what == what && e.n == n &&
			(e.list == list && b.graph.mode != plain ||
				b.graph.mode != foreseeing && same(s.host[e.off:e.off+n])) {
			s.live = min(s.live, e.off)
			return s.twin.p + driver.Ptr(e.off)
		}
	}
	s, off := b.place(n)
	if off < 0 {
		return 0
	}
	s.live = min(s.live, off)
	if b.graph.mode != foreseeing {
		fill(s.host[off : off+n])
	}
	b.copyIn(s.twin.p+driver.Ptr(off), unsafe.Pointer(&s.host[off]), int64(n))
	if len(s.recent) == recall {
		s.recent = append(s.recent[:0], s.recent[1:]...)
	}
	s.recent = append(s.recent, staged{what, off, n, list, limit})
	return s.twin.p + driver.Ptr(off)
}

// index stages one list of indices or numbers.
func index[T int32 | float32 | float64 | uint64](b *Backend, what string, list []T) driver.Ptr {
	return indexBelow(b, what, list, 0)
}

// indexBelow stages a list of indices that were found to be below limit.
func indexBelow[T int32 | float32 | float64 | uint64](b *Backend, what string, list []T,
	limit int) driver.Ptr {
	raw := bytesOf(list)
	return b.stage(what, unsafe.Pointer(unsafe.SliceData(list)), len(raw), limit,
		func(old []byte) bool { return bytes.Equal(old, raw) }, func(to []byte) { copy(to, raw) })
}

// ints returns n indices that begin at raw.
func ints(raw []byte, n int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(raw))), n)
}

// bytesOf returns the memory of a list.
func bytesOf[T int32 | float32 | float64 | uint64](list []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))),
		len(list)*int(unsafe.Sizeof(*new(T))))
}

// part returns how many elements Upload and Download take at a time.
func (b *Backend) part() int { return len(b.ring.host) / 4 / 4 }

// Upload copies src to dst, rounding for Narrow memory.
func (b *Backend) Upload(dst compute.Tensor, src []float32) {
	b.outside("Upload")
	d := reach("Upload", "dst", dst, len(src))
	if d.t.quantised() {
		compute.CheckBlocks("Upload", "dst", dst)
	}
	defer b.enter()()
	if host := pinnedOf(dst); host != nil {
		if b.wait(); b.err == nil {
			pack(host, src, d.t)
		}
		return
	}
	for lo := 0; lo < len(src); lo += b.part() {
		n := min(b.part(), len(src)-lo)
		s, off := b.place(4 * n)
		if off < 0 {
			return
		}
		part := d.slice(lo, n)
		pack(s.host[off:], src[lo:lo+n], d.t)
		host, twin := unsafe.Pointer(&s.host[off]), s.twin.p+driver.Ptr(off)
		if d.t == f32 || d.t == code {
			b.copyIn(part.p, host, int64(n)*d.t.size())
			continue
		}
		b.copyIn(twin, host, int64(4*n))
		b.cast(part, view{p: twin, t: f32, n: n})
	}
}

// pack writes x to memory of the host: bytes for codes, or else float32.
func pack(to []byte, x []float32, t dtype) {
	if t != code {
		copy(to, bytesOf(x))
		return
	}
	for i, v := range x {
		to[i] = byte(v)
	}
}

// unpack does the inverse of pack.
func unpack(x []float32, from []byte, t dtype) {
	if t != code {
		copy(bytesOf(x), from)
		return
	}
	for i := range x {
		x[i] = float32(from[i])
	}
}

// Download copies src to dst, after all operations before it. After a failure, which Sync returns,
// dst is unchanged.
func (b *Backend) Download(dst []float32, src compute.Tensor) {
	b.outside("Download")
	v := reach("Download", "src", src, len(dst))
	defer b.enter()()
	if host := pinnedOf(src); host != nil {
		if b.wait(); b.err == nil {
			unpack(dst, host, v.t)
		}
		return
	}
	for lo := 0; lo < len(dst); lo += b.part() {
		n := min(b.part(), len(dst)-lo)
		part := v.slice(lo, n)
		if v.t == code {
			raw := make([]byte, n)
			if !b.readBack(raw, part.p, nil) {
				return
			}
			unpack(dst[lo:lo+n], raw, code)
			continue
		}
		if v.t != f32 {
			s, off := b.place(4 * n)
			if off < 0 {
				return
			}
			wide := view{p: s.twin.p + driver.Ptr(off), t: f32, n: n}
			b.cast(wide, part)
			part = wide
		}
		b.readBack(bytesOf(dst[lo:lo+n]), part.p, nil)
	}
}

// readBack copies to host memory from the device, after all operations, and
// reports whether it could. meanwhile, unless nil, is called before it waits.
func (b *Backend) readBack(dst []byte, src driver.Ptr, meanwhile func()) bool {
	s, off := b.place(len(dst))
	if off < 0 {
		return false
	}
	b.copied++
	if err := b.dev.CopyOut(unsafe.Pointer(&s.host[off]), src, int64(len(dst))); err != nil {
		b.fail("copy from the device", err)
	}
	if meanwhile != nil {
		meanwhile()
	}
	b.wait()
	if b.err == nil {
		copy(dst, s.host[off:])
	}
	s.rewind()
	return b.err == nil
}
