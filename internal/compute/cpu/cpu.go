// Package cpu is the backend for the processor: assembly where the machine has
// AVX-512, AVX2 with FMA or NEON, plain Go everywhere else, over a pool of
// workers. It computes in float32; matrix products with parameters can take
// bfloat16 operands (Options.Precision, gemm16.go).
//
// Within a variant a row's result has the same bits alone, in any batch, at any
// position and for any number of workers. Three rules make it so: each element
// of a matrix product is one chain of multiply-adds over ascending indices,
// whatever the tile (see gemm.go; of bfloat16, pairs or sixteens of them); every
// other sum is taken over one row by one kernel, whose order depends on the row's
// length alone; no sum is split over tasks, except into fixed blocks whose results
// are added in order.
//
// In reading order:
//
//	cpu.go            the backend, its memory, and the operations row by row: start here
//	pool.go           the workers, which share tasks
//	kernels.go        what a variant's assembly must offer; kernels_amd64.go, kernels_arm64.go: the
//	                  variants; kernels_other.go: none; portable.go: the same in plain Go
//	stubs_amd64.go    declarations of assembly; stubs_arm64.go likewise
//	gemm.go           matrix products in float32: tiles, packing, chains
//	kernels16.go      bfloat16 dot products: the same for kernels16_amd64.go, kernels16_other.go and
//	                  stubs16_amd64.go
//	gemm16.go         matrix products with bfloat16 operands
//	amx_amd64.go      AMX's tiles; amx_linux_amd64.go and amx_nolinux_amd64.go: leave to use them
//	attention.go      attention over packs, and its gradient
//	decode.go         products of few rows, for sampling; decode16.go: in bfloat16
//	conv.go           the gated short convolution
//	head.go           the head: logits, log-probabilities, their gradients
//	frozen.go         weights that are packed in their own place; quant.go: in 8 and 4 bits
//	moments.go        AdamW's moments in 8 bits
//	footprint.go      what the operations take, for plans
//	limits.go         the processor's peak, measured: limits_amd64.go, limits_arm64.go,
//	                  limits_other.go
//	host.go           a tensor's elements for the host; cgroup.go: a container's limit of memory
//	pages_linux.go    large pages; pages_other.go: none
//
// Names end in their shapes; package compute has the legend.
package cpu

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"gad/internal/compute"
)

// Options configure a backend; the zero value is good.
type Options struct {
	Workers int    // goroutines that compute; 0 means GOMAXPROCS
	Variant string // one of Variants; empty means $GAD_CPU, or else the fastest
	Limit   int64  // bytes that Alloc may hand out in all; 0 means no limit
	// Precision is that of matrix products with parameters: F32, or BF16 for
	// bfloat16 operands and float32 sums. Empty means F32.
	Precision string
}

// Precisions of Options.
const (
	F32  = "f32"
	BF16 = "bf16"
)

// Backend is a compute.Backend on the processor. Its operations are done when
// they return.
type Backend struct {
	Footprint
	pool        *pool
	workers     []worker
	limit       int64
	inUse, peak int64
	// of frozen weights that are uploaded
	mu sync.Mutex
	// of kernels16, of any way to multiply
	expand func(dst []float32, src []uint32, lanes, pairs int)

	args                        // of the running operation
	task taskFunc               // what run is running
	do   func(worker, task int) // runs it

	// Scratch of the operations, kept from call to call.
	hRD, dhRD, zRV, packed []float32
	sum                    []float32 // LinearAdd in place: the product
	shifted                []float32 // normWeights
	a16, at16, b16, z16    []uint32  // packed operands
	unpacked               []float32 // packed columns of a matrix, for gradients
	unpacked16             []uint32
	stats                  []stat
	sums                   []float64
	jobs                   []attnJob
	rows                   []decodeRows
	mix                    mixScratch
}

// args is what the tasks of the running operation read. Tasks are functions that
// capture nothing, and find here what a closure would hold: a closure that other
// goroutines run is allocated, at every call of an operation.
type args struct {
	y, x, w, g, m, v, u []float32 // operands, named as in the operation
	dy, rstd            []float32
	act                 compute.Activation
	index, slots        []int32
	N, H, E, D, J       int
	sign, acc           int
	eps                 float64
	adam                adamConsts

	n, size int       // each and its kind: elements, and how many of them a task has
	part    rangeFunc // and what is done with them

	attn  attnArgs
	head  headArgs
	coded codedArgs
	froze frozenArgs
	delta deltaArgs
	multArgs
}

// taskFunc does a task, rangeFunc the elements, rows or columns lo to hi-1.
type (
	taskFunc  func(b *Backend, w *worker, t int)
	rangeFunc func(b *Backend, lo, hi int)
)

// run calls fn, which should capture nothing, once for each task.
func (b *Backend) run(tasks int, fn taskFunc) {
	b.task = fn
	b.pool.run(tasks, b.do)
}

// worker is the scratch of one goroutine.
type worker struct {
	tile   []float32    // a register tile, for the columns that a tile reaches beyond its matrix
	buf    [4][]float32 // whatever the running operation says
	panels []uint32     // the rows that a bfloat16 product multiplies next
	turned []float32    // the rows that a float32 product multiplies next: see turn
	wide   [2][]float32 // parts of bfloat16 panels, as float32
	deq    []float32    // parts of quantised panels
	deq16  []uint32     // as bfloat16
	codes  []uint8      // of a quantised panel that is packed, and its scales
	scales []uint16
	kept   []int32 // tokens that pass Sample's filters
	heap   []int32 // tokens that it ranks
	marks  [][drawRows]float64
	delta  deltaWork
	back   deltaBack
	p      product // of the running task
	p16    product16
	part   product16 // of that, with rows that it has packed
	dense  product16 // of that, with weights that it has dequantised
	_      [64]byte  // workers do not share a cache line
}

var _ compute.Backend = (*Backend)(nil)

// New starts a backend's workers; Close ends them. It fails when the machine
// cannot run the variant that was asked for.
func New(o Options) (*Backend, error) {
	k, k16, err := pick(o.Variant, o.Precision)
	if err != nil {
		return nil, err
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	b := &Backend{Footprint: Footprint{o.Precision, k, k16},
		pool: newPool(o.Workers, idleSpins), workers: make([]worker, o.Workers), limit: o.Limit}
	if b.expand = expanders[k.name]; b.expand == nil {
		b.expand = expandGo
	}
	b.do = func(w, t int) { b.task(b, &b.workers[w], t) }
	for i := range b.workers {
		n := k.mr * k.nr
		if k16 != nil {
			n = max(n, k16.mr*k16.nr)
		}
		b.workers[i].tile = aligned(n)
	}
	return b, nil
}

// memory is a block of n elements: float32 or, of class Code, bytes, or frozen. derived counts the
// bytes of the copies that are kept beside a parameter in this block.
// narrow says that what is uploaded is rounded to bfloat16, lent that the memory is
// another block's.
type memory struct {
	n            int
	data         []float32
	codes        []uint8
	frozen       *frozen
	derived      int64
	narrow, lent bool
}

// Len returns the number of elements.
func (m *memory) Len() int { return m.n }

// pad is how many elements lie beyond every block's end, so that a register
// tile may read past its matrix; no kernel writes there.
const pad = 64

// aligned returns n zeros that begin on a cache line, followed by pad more.
func aligned(n int) []float32 { return newAligned[float32](n) }

func newAligned[T float32 | uint32](n int) []T {
	const line = 64 / 4
	raw := make([]T, n+pad+line)
	largePages(raw)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw)))%64) / 4
	return raw[skip : skip+n : skip+n+pad]
}

// onLine reports whether x begins on a cache line.
func onLine(x []float32) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(x)))%64 == 0 }

// f32 returns t's elements; it panics unless there are n.
func f32(op, name string, t compute.Tensor, n int) []float32 {
	compute.CheckContiguous(op, name, t, n)
	if t.Absent() {
		return nil
	}
	m := t.Mem().(*memory)
	if m.data == nil {
		panic(fmt.Sprintf("cpu: %s: %s is in memory of another class than the operation takes", op,
			name))
	}
	return m.data[t.Off() : t.Off()+n]
}

// u8 returns t's elements of class Code; it panics unless there are n.
func u8(op, name string, t compute.Tensor, n int) []uint8 {
	m, _ := t.Mem().(*memory)
	if t.Len() != n || m == nil || m.codes == nil {
		panic(fmt.Sprintf("cpu: %s: %s has %d elements, want %d in 8 bits", op, name, t.Len(), n))
	}
	return m.codes[t.Off() : t.Off()+n]
}

// frozenIn returns t's block if that is Frozen, else nil.
func frozenIn(t compute.Tensor) *frozen {
	m, _ := t.Mem().(*memory)
	if m == nil {
		return nil
	}
	return m.frozen
}

// inCodes reports whether t is of class Code.
func inCodes(t compute.Tensor) bool {
	m, _ := t.Mem().(*memory)
	return m != nil && m.codes != nil
}

// opt returns f32, or nil for an absent tensor.
func opt(op, name string, t compute.Tensor, n int) []float32 {
	if t.Absent() {
		return nil
	}
	return f32(op, name, t, n)
}

// Name returns "cpu/" and the variant; in bfloat16 the variant of its matrix products.
func (b *Backend) Name() string {
	if b.k16 != nil {
		return "cpu/" + b.k16.name
	}
	return "cpu/" + b.k.name
}

// Alloc returns n zeroed elements, float32 in every class but Code. It fails when that would
// pass Options.Limit.
func (b *Backend) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	if n < 0 {
		panic(fmt.Sprintf("cpu: Alloc: %q: %d elements", what, n))
	}
	bytes := compute.Bytes(b, c, n)
	if b.limit > 0 && bytes > b.limit-b.inUse {
		return compute.Tensor{}, fmt.Errorf("cpu: %q: %d elements, %d bytes: %w: beyond the limit of %d bytes with %d in use: use a smaller batch or shorter sequences",
			what, n, bytes, compute.ErrMemory, b.limit, b.inUse)
	}
	m := &memory{n: n}
	switch c &^ compute.Host {
	case compute.Code:
		m.codes = make([]uint8, n)
	case compute.Q8, compute.Q4:
		m.frozen = &frozen{n: n, quant: b.newQuant(c, n)}
	case compute.Frozen:
		m.frozen = newFrozen(n, b.k16 != nil)
	default:
		m.data, m.narrow = aligned(n), b.rounds(c)
	}
	b.count(m.bytes())
	return compute.View(m), nil
}

// bytes returns the memory that m takes, with copies derived from it.
func (m *memory) bytes() int64 {
	bytes := 4*int64(len(m.data)) + int64(len(m.codes)) + m.derived
	if m.frozen != nil {
		bytes += 4 * int64(len(m.frozen.words))
		if m.frozen.quant != nil {
			bytes += m.frozen.quant.size()
		}
	}
	return bytes
}

// rounds reports whether elements uploaded to memory of class c are rounded to bfloat16.
func (b *Backend) rounds(c compute.Class) bool { return b.k16 != nil && c == compute.Narrow }

// count adds to the bytes in use.
func (b *Backend) count(bytes int64) {
	b.inUse += bytes
	b.peak = max(b.peak, b.inUse)
}

// Free gives t's block back, and the copies derived from it.
func (b *Backend) Free(t compute.Tensor) {
	if t.Absent() {
		return
	}
	m := t.Mem().(*memory)
	if t.Len() != m.n || m.lent || m.data == nil && m.codes == nil && m.frozen == nil {
		panic("cpu: Free: not a whole block, or freed before")
	}
	b.count(-m.bytes())
	m.data, m.codes, m.frozen, m.derived = nil, nil, nil, 0
	b.args = args{} // no operand outlives its memory
	for w := range b.workers {
		b.workers[w].p, b.workers[w].p16, b.workers[w].part = product{}, product16{}, product16{}
		b.workers[w].dense = product16{}
	}
}

// As returns t's first n elements, which have one type: Wide and Narrow differ in Upload only.
func (b *Backend) As(t compute.Tensor, c compute.Class, n int) compute.Tensor {
	if n > t.Len() {
		panic(fmt.Sprintf("cpu: As: %d elements do not fit into %d", n, t.Len()))
	}
	return compute.View(&memory{n: n, data: f32("As", "t", t, t.Len())[:n], narrow: b.rounds(c),
		lent: true})
}

// Memory returns the number of bytes allocated now, scratch and packed weights included, and its
// maximum so far.
func (b *Backend) Memory() (inUse, peak int64) { return b.inUse, b.peak }

// Alone returns true: a sum is one chain, whatever the other rows.
func (b *Backend) Alone() bool { return true }

// Available returns the rest of Options.Limit, or without a limit the memory that the system says a
// program can have.
func (b *Backend) Available() int64 {
	if b.limit > 0 {
		return max(1, b.limit-b.inUse) // 0 would be "unknown"
	}
	return MemoryAvailable()
}

// grow returns n elements of a scratch buffer, of any content, and makes it larger if it must.
func (b *Backend) grow(buf *[]float32, n int) []float32 { return grow(b, buf, n) }

func grow[T float32 | uint32](b *Backend, buf *[]T, n int) []T {
	if cap(*buf)-pad < n {
		n := n + n/4
		b.count(4 * int64(n-len(*buf)))
		*buf = newAligned[T](n)
	}
	return (*buf)[:n]
}

// local returns a worker's scratch: as grow, but not counted as memory in use, since a worker may
// call it.
func local[T float32 | uint32](buf *[]T, n int) []T {
	if cap(*buf)-pad < n {
		*buf = newAligned[T](n + n/4)
	}
	return (*buf)[:n]
}

// room gives each worker scratch of at least these sizes, before there are tasks that
// use it. Made by the workers themselves, it would come with the first large task that
// chance hands to each, at whatever step.
func (b *Backend) room(sizes ...int) {
	for w := range b.workers {
		for i, n := range sizes {
			local(&b.workers[w].buf[i], n)
		}
	}
}

// Upload copies src to dst; to Narrow memory rounded, where products are taken in bfloat16.
func (b *Backend) Upload(dst compute.Tensor, src []float32) {
	if inCodes(dst) {
		x := u8("Upload", "dst", dst, len(src))
		for i, c := range src {
			x[i] = uint8(int32(c))
		}
		return
	}
	if f := frozenIn(dst); f != nil {
		b.uploadFrozen(f, dst, src)
		return
	}
	x := f32("Upload", "dst", dst, len(src))
	if len(x) > 0 && dst.Mem().(*memory).narrow {
		rounded(x, src)
		return
	}
	copy(x, src)
}

// Download copies src to dst.
func (b *Backend) Download(dst []float32, src compute.Tensor) {
	if inCodes(src) {
		for i, c := range u8("Download", "src", src, len(dst)) {
			dst[i] = float32(c)
		}
		return
	}
	if f := frozenIn(src); f != nil {
		compute.CheckContiguous("Download", "src", src, len(dst))
		b.readFrozen(dst, f, src.Off())
		return
	}
	copy(dst, f32("Download", "src", src, len(dst)))
}

// Sync has nothing to wait for.
func (b *Backend) Sync() error { return nil }

// Close ends the workers; the backend cannot compute any more.
func (b *Backend) Close() error {
	b.pool.close()
	return nil
}

// block is how many elements a task of an elementwise operation has.
const block = 8192

// each calls fn on the blocks of n elements.
func (b *Backend) each(n int, fn rangeFunc) { b.parts(n, block, fn) }

// eachRow calls fn on groups of the N rows of width elements.
func (b *Backend) eachRow(N, width int,
	fn rangeFunc) {
	b.parts(N, max(1, block/max(1, width)), fn)
}

// slab is how many columns a task has where sums run down the columns.
const slab = 64

// eachSlab calls fn on groups of D columns.
func (b *Backend) eachSlab(D int, fn rangeFunc) { b.parts(D, slab, fn) }

func (b *Backend) parts(n, size int, fn rangeFunc) {
	b.n, b.size, b.part = n, size, fn
	b.run((n+size-1)/size,
		func(b *Backend, _ *worker, t int) { b.part(b, t*b.size, min(b.n, (t+1)*b.size)) })
}

// Repeat runs op.
func (b *Backend) Repeat(_ string, _ compute.Indices, op func()) { op() }

// Zero sets t to zero.
func (b *Backend) Zero(t compute.Tensor) {
	if inCodes(t) {
		clear(u8("Zero", "t", t, t.Len()))
		return
	}
	b.y = f32("Zero", "t", t, t.Len())
	b.each(len(b.y), func(b *Backend, lo, hi int) { clear(b.y[lo:hi]) })
}

// Copy copies src to dst.
func (b *Backend) Copy(dst, src compute.Tensor) {
	if inCodes(src) {
		copy(u8("Copy", "dst", dst, src.Len()), u8("Copy", "src", src, src.Len()))
		return
	}
	if f := frozenIn(dst); f != nil { // now and then, and by way of the host
		x := make([]float32, src.Len())
		b.Download(x, src)
		b.Upload(dst, x)
		return
	}
	b.y = f32("Copy", "dst", dst, src.Len())
	if f := frozenIn(src); f != nil {
		b.readFrozen(b.y, f, src.Off())
		return
	}
	b.x = f32("Copy", "src", src, src.Len())
	b.each(len(b.x), func(b *Backend, lo, hi int) { copy(b.y[lo:hi], b.x[lo:hi]) })
}

// Add adds x to y.
func (b *Backend) Add(y, x compute.Tensor) {
	b.y, b.x = f32("Add", "y", y, x.Len()), f32("Add", "x", x, x.Len())
	b.each(len(b.x), func(b *Backend, lo, hi int) { b.k.add(b.y[lo:hi], b.x[lo:hi]) })
}

// Scale multiplies t by s.
func (b *Backend) Scale(t compute.Tensor, s float64) {
	b.y, b.eps = f32("Scale", "t", t, t.Len()), s
	b.each(len(b.y), func(b *Backend, lo, hi int) { b.k.scale(b.y[lo:hi], float32(b.eps)) })
}

// Embed gathers rows of the table.
func (b *Backend) Embed(yND compute.Tensor, table *compute.Param, ids []int32) {
	D := table.Cols
	b.y = f32("Embed", "y", yND, len(ids)*D)
	compute.CheckIndices("Embed", "ids", ids, table.Rows)
	if f := frozenOf("Embed", table); f != nil {
		b.embedFrozen(f, ids, D)
		return
	}
	b.w = f32("Embed", "W", table.W, table.Len())
	b.index, b.D = ids, D
	b.eachRow(len(ids), D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			row := b.w[int(b.index[n])*D : int(b.index[n])*D+D]
			if b.k16 != nil {
				rounded(b.y[n*D:n*D+D], row)
			} else {
				copy(b.y[n*D:n*D+D], row)
			}
		}
	})
}

// EmbedGrad adds to rows of the table's gradient, n ascending: tasks own columns.
func (b *Backend) EmbedGrad(table *compute.Param, dyND compute.Tensor, ids []int32) {
	D := table.Cols
	b.dy, b.g =
		f32("EmbedGrad", "dy", dyND, len(ids)*D), opt("EmbedGrad", "G", table.G, table.Len())
	if b.g == nil {
		return
	}
	compute.CheckIndices("EmbedGrad", "ids", ids, table.Rows)
	b.index, b.D = ids, D
	b.eachSlab(D, func(b *Backend, lo, hi int) {
		D := b.D
		for n, id := range b.index {
			at := int(id) * D
			b.k.add(b.g[at+lo:at+hi], b.dy[n*D+lo:n*D+hi])
		}
	})
}

// RMSNorm normalises rows by their root mean square.
func (b *Backend) RMSNorm(yND, rstdN, xND compute.Tensor, w *compute.Param, eps float64) {
	D := w.Cols
	N := compute.RowsOf("RMSNorm", "x", xND, D)
	b.y, b.rstd = f32("RMSNorm", "y", yND, N*D), f32("RMSNorm", "rstd", rstdN, N)
	b.x, b.w = f32("RMSNorm", "x", xND, N*D), b.normWeights("RMSNorm", w)
	b.D, b.eps = D, eps
	b.eachRow(N, D, func(b *Backend, lo, hi int) {
		D := b.D
		for n := lo; n < hi; n++ {
			row := b.x[n*D : n*D+D]
			r := float32(1 / math.Sqrt(float64(b.k.dot(row, row))/float64(D)+b.eps))
			b.rstd[n] = r
			b.k.mulScale(b.y[n*D:n*D+D], row, b.w, r)
		}
	})
}

// normWeights returns the factors of RMSNorm: w itself, or the sum with its offset.
func (b *Backend) normWeights(op string, w *compute.Param) []float32 {
	W := f32(op, "W", w.W, w.Cols)
	if w.Offset == 0 {
		return W
	}
	sum := b.grow(&b.shifted, len(W))
	for i, x := range W {
		sum[i] = w.Offset + x
	}
	return sum
}

// normBlock is how many elements of dy, and of x, RMSNormGrad takes at a time: they are in the
// second-level cache still when they are read for dx.
const normBlock = 1 << 16

// RMSNormGrad computes the gradient of RMSNorm.
func (b *Backend) RMSNormGrad(dxND compute.Tensor, w *compute.Param, dyND, xND,
	rstdN compute.Tensor, acc bool) {
	D := w.Cols
	N := compute.RowsOf("RMSNormGrad", "x", xND, D)
	dx, dy := f32("RMSNormGrad", "dx", dxND, N*D), f32("RMSNormGrad", "dy", dyND, N*D)
	x, rstd := f32("RMSNormGrad", "x", xND, N*D), f32("RMSNormGrad", "rstd", rstdN, N)
	b.w, b.g = b.normWeights("RMSNormGrad", w), opt("RMSNormGrad", "G", w.G, D)
	b.D, b.acc = D, asInt(acc)
	rows := max(1, normBlock/D)
	if b.g == nil {
		rows = N
	}
	for n := 0; n < N; n += rows {
		end := min(N, n+rows)
		b.y, b.dy, b.x, b.rstd, b.N = dx[n*D:end*D], dy[n*D:end*D], x[n*D:end*D], rstd[n:end], end-n
		if b.g != nil {
			b.eachSlab(D, func(b *Backend, lo, hi int) {
				D := b.D
				for n := range b.N {
					b.k.mulAcc(b.g[lo:hi], b.dy[n*D+lo:n*D+hi], b.x[n*D+lo:n*D+hi], b.rstd[n])
				}
			})
		}
		b.eachRow(b.N, D, func(b *Backend, lo, hi int) {
			D := b.D
			for n := lo; n < hi; n++ {
				dyD, xD, r := b.dy[n*D:n*D+D], b.x[n*D:n*D+D], b.rstd[n]
				c := r * r * (b.k.dot3(dyD, b.w, xD) / float32(D))
				b.k.normGrad(b.y[n*D:n*D+D], dyD, b.w, xD, r, c, b.acc)
			}
		})
	}
}

// asInt returns a bool as the kernels take it.
func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Rope rotates pairs of a head by their position's angles, here w.
func (b *Backend) Rope(xNHE compute.Tensor, heads, headDim int, pos []int32, table compute.Tensor,
	inverse bool) {
	x := f32("Rope", "x", xNHE, len(pos)*heads*headDim)
	b.sign = 1
	if inverse {
		b.sign = -1
	}
	b.rotate("Rope", x, nil, heads, headDim, pos, table)
}

// rotate turns the rows of x that slots gives, or all, by sign.
func (b *Backend) rotate(op string, x []float32, slots []int32, H, E int, pos []int32,
	table compute.Tensor) {
	P := compute.RowsOf(op, "table", table, E)
	b.x, b.w = x, f32(op, "table", table, P*E)
	compute.CheckIndices(op, "pos", pos, P)
	b.index, b.slots, b.H, b.E = pos, slots, H, E
	b.eachRow(len(pos), H*E, func(b *Backend, lo, hi int) {
		H, E, sign := b.H, b.E, float32(b.sign)
		for n := lo; n < hi; n++ {
			angle, row := b.w[int(b.index[n])*E:int(b.index[n])*E+E], n
			if b.slots != nil {
				row = int(b.slots[n])
			}
			for h := range H {
				head := b.x[(row*H+h)*E : (row*H+h+1)*E]
				b.k.rotate(head[:E/2], head[E/2:], angle[:E/2], angle[E/2:], sign)
			}
		}
	})
}

// Gated gates up, here u, by act(gate), here g.
func (b *Backend) Gated(act compute.Activation, yNF, gateNF, upNF compute.Tensor) {
	op, n := act.Unit(), gateNF.Len()
	b.y, b.g, b.u = f32(op, "y", yNF, n), f32(op, "gate", gateNF, n), f32(op, "up", upNF, n)
	b.act = act
	b.room(block)
	b.run((n+block-1)/block, func(b *Backend, wk *worker, t int) {
		lo, hi := t*block, min(len(b.y), (t+1)*block)
		y, gate, up := b.y[lo:hi], b.g[lo:hi], b.u[lo:hi]
		switch b.act {
		case compute.SiLU:
			b.k.swiglu(y, gate, up)
		case compute.GELUTanh:
			for i, d := range b.gates(wk, gate) {
				y[i] = gate[i] / d * up[i]
			}
		case compute.Sigmoid:
			for i, e := range b.opposite(wk, gate) {
				y[i] = up[i] / (1 + e)
			}
		}
	})
}

// GatedGrad computes the gradient of Gated: b.y is dgate, b.x dup, b.w Gated's output. dgate may be
// dy, so an element is read before its places are written.
func (b *Backend) GatedGrad(act compute.Activation, yNF, dgateNF, dupNF, dyNF, gateNF,
	upNF compute.Tensor) {
	op, n := act.Grad(), gateNF.Len()
	b.y, b.x = f32(op, "dgate", dgateNF, n), f32(op, "dup", dupNF, n)
	b.dy, b.g, b.u = f32(op, "dy", dyNF, n), f32(op, "gate", gateNF, n), f32(op, "up", upNF, n)
	b.w, b.act = opt(op, "y", yNF, n), act
	b.room(block)
	b.run((n+block-1)/block, func(b *Backend, wk *worker, t int) {
		switch lo, hi := t*block, min(len(b.y), (t+1)*block); b.act {
		case compute.SiLU:
			b.siluGrad(wk, lo, hi)
		case compute.GELUTanh:
			b.geluGrad(wk, lo, hi)
		case compute.Sigmoid:
			b.sigmoidGrad(wk, lo, hi)
		}
	})
}

// siluGrad does the work of GatedGrad for the elements lo to hi-1. The kernel computes the output,
// too, whether or not it is kept.
func (b *Backend) siluGrad(wk *worker, lo, hi int) {
	y := wk.buf[0][:hi-lo]
	if b.w != nil {
		y = b.w[lo:hi]
	}
	if &b.y[lo] != &b.dy[lo] {
		copy(b.y[lo:hi], b.dy[lo:hi])
	}
	b.k.swigluGrad(y, b.y[lo:hi], b.x[lo:hi], b.g[lo:hi], b.u[lo:hi])
}

// geluGrad does the work of GatedGrad for the elements lo to hi-1.
func (b *Backend) geluGrad(wk *worker, lo, hi int) {
	dgate, dup, dy, up := b.y[lo:hi], b.x[lo:hi], b.dy[lo:hi], b.u[lo:hi]
	for i, d := range b.gates(wk, b.g[lo:hi]) {
		x, dyi := b.g[lo+i], dy[i]
		if b.w != nil {
			b.w[lo+i] = x / d * up[i]
		}
		s := 1 / d
		if s == 0 { // far below zero gelu is flat; x² may be infinite there
			dgate[i], dup[i] = 0, 0
			continue
		}
		slope := 2 * tanhC * (1 + float32(3*tanhCube*x*x))
		dgate[i], dup[i] = dyi*up[i]*(s*(1+float32(x*(1-s)*slope))), dyi*(x*s)
	}
}

// sigmoidGrad does the work of GatedGrad for the elements lo to hi-1.
func (b *Backend) sigmoidGrad(wk *worker, lo, hi int) {
	dgate, dup, dy, up := b.y[lo:hi], b.x[lo:hi], b.dy[lo:hi], b.u[lo:hi]
	for i, e := range b.opposite(wk, b.g[lo:hi]) {
		if b.w != nil {
			b.w[lo+i] = up[i] / (1 + e)
		}
		s, dyi := 1/(1+e), dy[i]
		if s == 0 { // far below zero the gate is shut; e may be infinite there
			dgate[i], dup[i] = 0, 0
			continue
		}
		dgate[i], dup[i] = dyi*up[i]*(s*(e*s)), dyi*s
	}
}

// opposite computes exp(-gate), in the worker's memory.
func (b *Backend) opposite(wk *worker, gate []float32) []float32 {
	e := wk.buf[0][:len(gate)]
	for i, x := range gate {
		e[i] = -x
	}
	b.k.expSum(e, 0)
	return e
}

// The constants of GELUTanh: sqrt(2/π), and the factor of the cube.
const (
	tanhC    = 0.7978845608028654
	tanhCube = 0.044715
)

// gates computes gate/gelu(gate) = 1 + exp(-2c*(x + 0.044715*x³)), in the worker's memory.
func (b *Backend) gates(wk *worker, gate []float32) []float32 {
	d := wk.buf[0][:len(gate)]
	for i, x := range gate {
		d[i] = -2 * tanhC * (x + float32(tanhCube*x*x*x))
	}
	b.k.expSum(d, 0)
	for i := range d {
		d[i]++
	}
	return d
}

// Score computes the value head's scores.
func (b *Backend) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	D := w.Cols
	N := compute.RowsOf("Score", "h", hND, D)
	s, h, wD :=
		f32("Score", "s", sR, len(rows)), f32("Score", "h", hND, N*D), f32("Score", "W", w.W, D)
	compute.CheckIndices("Score", "rows", rows, N)
	for r, n := range rows {
		s[r] = b.k.dot(h[int(n)*D:int(n)*D+D], wD)
	}
}

// ScoreGrad computes the gradient of Score.
func (b *Backend) ScoreGrad(dhND compute.Tensor, w *compute.Param, dsR, hND compute.Tensor,
	rows []int32) {
	D := w.Cols
	N := compute.RowsOf("ScoreGrad", "h", hND, D)
	dh, ds, h :=
		opt("ScoreGrad", "dh", dhND, N*D), f32("ScoreGrad", "ds", dsR, len(rows)),
		f32("ScoreGrad", "h", hND, N*D)
	wD, gD := f32("ScoreGrad", "W", w.W, D), opt("ScoreGrad", "G", w.G, D)
	compute.CheckIndices("ScoreGrad", "rows", rows, N)
	for r, n := range rows {
		at := int(n) * D
		if dh != nil {
			b.k.axpy(dh[at:at+D], wD, ds[r])
		}
		if gD != nil {
			b.k.axpy(gD, h[at:at+D], ds[r])
		}
	}
}

// SumSquares returns the sum of the squares of all elements, each block's in float64 and the
// blocks' in order.
func (b *Backend) SumSquares(ts []compute.Tensor) float64 {
	total := 0.0
	for _, t := range ts {
		for _, s := range b.SquaresOfBlocks(t) {
			total += s
		}
	}
	return total
}

// SumBlock returns how many elements SumSquares sums by themselves.
func (b *Backend) SumBlock() int { return block }

// SquaresOfBlocks returns the sums that SumSquares adds up for t, valid until the next call.
func (b *Backend) SquaresOfBlocks(t compute.Tensor) []float64 {
	b.x = f32("SumSquares", "t", t, t.Len())
	blocks := (len(b.x) + block - 1) / block
	b.sums = slices.Grow(b.sums[:0], blocks)[:blocks]
	b.each(len(b.x), func(b *Backend, lo, hi int) { b.sums[lo/block] = b.k.sumSquares(b.x[lo:hi]) })
	return b.sums
}

// AdamW takes one optimizer step of ps.
func (b *Backend) AdamW(ps []*compute.Param, a compute.AdamW) {
	b.adam = adamConsts{
		gradScale: float32(a.GradScale),
		beta1:     float32(a.Beta1), rest1: float32(1 - a.Beta1),
		beta2: float32(a.Beta2), rest2: float32(1 - a.Beta2),
		step: float32(a.LR / (1 - math.Pow(a.Beta1, float64(a.Step)))),
		inv2: float32(1 / (1 - math.Pow(a.Beta2, float64(a.Step)))),
		eps:  float32(a.Eps),
	}
	for _, p := range ps {
		b.adam.decay = 0
		if p.Decay {
			b.adam.decay = float32(a.LR * a.Decay)
		}
		b.adamW(p)
	}
}

// adamW steps p by the constants b.adam.
func (b *Backend) adamW(p *compute.Param) {
	n := p.Len()
	b.w, b.g = f32("AdamW", "W", p.W, n), f32("AdamW", "G", p.G, n)
	if inCodes(p.M) {
		b.adamW8(p)
	} else {
		b.m, b.v = f32("AdamW", "M", p.M, n), f32("AdamW", "V", p.V, n)
		b.each(n,
			func(b *Backend, lo,
				hi int) {
				b.k.adamW(b.w[lo:hi], b.g[lo:hi], b.m[lo:hi], b.v[lo:hi], &b.adam)
			})
	}
	b.Refresh(p)
}
