// Package cuda is the backend for NVIDIA GPUs. Matrix products are cuBLASLt's,
// everything else is this package's own kernels (folder kernels), on one stream
// of one device (package driver). It computes in bfloat16 with float32 sums, or
// in float32 throughout, for debugging.
//
// A program has it when built with the tag nvidia; without the tag Open fails and
// says so. What a plan of memory needs to know is here in either build.
//
//	engine.go     the backend, opened and closed: start here
//	ops.go        operations on elements and rows, and AdamW
//	products.go   matrix products with parameters
//	quant.go      weights in blocks of 8 and 4 bits
//	attention.go  attention and its gradient
//	head.go       log-probabilities, samples and scores
//	memory.go     memory, staging of indices, copies that products read
//	graphs.go     Repeat: commands recorded as a CUDA graph
//	nccl.go       sums over ranks
//	cuda.go       options, and the sizes that a plan needs
//	work.go       sizes of the kernels' grids and chunks
//	other.go      a build without the tag nvidia
//
// Operations are asynchronous: they queue work and return. The first failure, of
// the device or of an allocation for scratch, is kept; operations after it do
// nothing, and Sync returns it. Every sum has a fixed order: a function of the
// call's shapes, never of timing.
//
// Names end in their shapes; the legend is that of package compute.
package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"gad/internal/compute"
)

// Options configure a backend; the zero value is good.
type Options struct {
	Device    int    // ordinal of the GPU
	Precision string // BF16 or F32; empty means BF16
	Limit     int64  // bytes that the backend may hold in all; 0 means no limit
}

// Precisions of Options: what Narrow memory is kept and computed in.
const (
	BF16 = "bf16"
	F32  = "f32"
)

// precision returns o.Precision, or an error.
func (o Options) precision() (dtype, error) {
	switch o.Precision {
	case "", BF16:
		return bf16, nil
	case F32:
		return f32, nil
	}
	return 0, fmt.Errorf("cuda: precision %q: want %s, or %s for debugging", o.Precision, BF16, F32)
}

// dtype is the type of an element in device memory.
type dtype uint8

const (
	f32 dtype = iota
	bf16
	master // float32 in two planes: bfloat16, and what it lacks (Master in kernels/vec.cuh)
	code   // a byte
	q8     // blocks with a scale each, compute.Q8 (kernels/quant.cu)
	q4     // compute.Q4
)

// size returns the size in bytes of an element of a type without blocks.
func (t dtype) size() int64 { return [...]int64{4, 2, 4, 1}[t] }

// quantised reports whether elements are stored in blocks of compute.QuantBlock.
func (t dtype) quantised() bool { return t == q8 || t == q4 }

// class returns the class of memory of a quantised type.
func (t dtype) class() compute.Class {
	if t == q4 {
		return compute.Q4
	}
	return compute.Q8
}

// planes returns the bytes of n elements in each plane: codes and scales of blocks, or the whole.
func (t dtype) planes(n int) (first, second int64) {
	if !t.quantised() {
		return int64(n) * t.size(), 0
	}
	blocks := int64(n / compute.QuantBlock)
	return blocks * int64(t.class().CodeBytes()), 2 * blocks
}

func (t dtype) String() string {
	return [...]string{"float32", "bfloat16", "float32 in two halves", "codes of 8 bits", "q8_0",
		"q4_0"}[t]
}

// storage returns how elements of class c are stored where Narrow memory is bfloat16.
func storage(c compute.Class, narrow dtype) dtype {
	switch c &^ compute.Host {
	case compute.Narrow, compute.Frozen:
		return narrow
	case compute.Master:
		if narrow == bf16 {
			return master
		}
	case compute.Code:
		return code
	case compute.Q8:
		return q8
	case compute.Q4:
		return q4
	}
	return f32
}

// ErrUnavailable is wrapped by Open's error where there is nothing to open: this
// program is built without CUDA, or the machine has no driver, device or library.
var ErrUnavailable = errors.New("CUDA is not available")

var (
	_ compute.Footprint      = Options{}
	_ compute.RanksFootprint = Options{}
)

// Overhead returns the bytes taken before anything is allocated: the CUDA context, the kernels and
// the workspace of cuBLASLt.
func (Options) Overhead() int64 { return 768 << 20 }

// RanksOverhead returns the bytes that NCCL takes in addition for several ranks: an estimate from
// its defaults, not measured.
func (Options) RanksOverhead() int64 { return 32 * (10 + 2) << 20 }

// DecodeMultiple returns 16: a graph serves one number of rows, and samples end one by one.
func (Options) DecodeMultiple() int { return decodeMultiple }

const decodeMultiple = 16

// Joined returns true: one product of several projections is one launch instead of several, reads
// their input once, and fills the device better.
func (Options) Joined() bool { return true }

// Element returns the number of bytes of an element of class c on the device, or of a block.
func (o Options) Element(c compute.Class) int64 {
	if c&compute.Host != 0 {
		return 0
	}
	narrow, _ := o.precision()
	codes, scales := storage(c, narrow).planes(c.Unit())
	return codes + scales
}

// Block rounds a block that is not small up to the driver's pages of 2 MiB, and a small one,
// many of which share such a page, to 512 bytes. That the driver does so is assumed; a
// device has not been asked.
func (Options) Block(bytes int64) int64 {
	if bytes < 1<<20 {
		return (bytes + 511) &^ 511
	}
	return (bytes + 2<<20 - 1) &^ (2<<20 - 1)
}

// DerivedBytes returns the number of bytes of the copy that products and lookups read: Wide weights
// have one in bfloat16.
func (o Options) DerivedBytes(c compute.Class, _ bool, rows, cols int) int64 {
	if narrow, _ := o.precision(); c == compute.Wide && narrow != f32 {
		return narrow.size() * int64(rows) * int64(cols)
	}
	return 0
}

// Scratch returns the largest temporary memory of an operation: all share one block. Decoding takes
// its graph's memory in addition; the graphs of other batch sizes, 32 MiB at most, are small
// compared with the rest of Overhead.
func (o Options) Scratch(w compute.Work) int64 {
	narrow := o.Element(compute.Narrow)
	var most int64
	use := func(bytes ...int64) {
		sum := int64(0)
		for _, n := range bytes {
			sum += alignScratch(n)
		}
		most = max(most, sum)
	}
	if w.Vocab > 1 && w.Rows > 0 {
		use(headLimits.stats.chunks(w.Rows, w.Vocab).bytes(w.Hidden, w.Vocab, narrow, false)...)
		if w.Trainable {
			use(headLimits.grad.chunks(w.Rows, w.Vocab).bytes(w.Hidden, w.Vocab, narrow, true)...)
		}
	}
	if w.Vocab > 1 && w.Slots > 0 {
		use(append(headLimits.sample.whole(w.Slots, w.Vocab).bytes(0, w.Vocab, narrow, false),
			8*int64(w.Slots))...)
	}
	if w.Slots > 0 {
		splits := blocks(w.Positions+64*defaultPage, decodeSplit)
		use(decodeBytes(min(blocks(w.Slots, decodeMultiple)*decodeMultiple, decodeRows), splits,
			w.Heads, w.HeadDim))
	}
	if w.Trainable {
		// a product's Wide gradient, narrowed
		use(int64(w.Tokens)*int64(w.Hidden)*narrow,
			partialBytes(w.Tokens, max(w.Hidden, (w.Heads+2*w.KVHeads)*w.HeadDim)))
		use(normPartBytes(w.Tokens, w.Hidden))
		use(normPartBytes(w.Tokens*w.Heads, w.HeadDim))
		if d := w.Delta; d.H > 0 {
			states := int64(w.Tokens)/deltaChunk + 1
			use(4*states*int64(d.H*d.E*d.F), 4*int64(w.Tokens)*int64(d.H*(d.F+1)))
			use(partialBytes(w.Tokens, d.Width()*4))
		}
		if w.Taps > 0 {
			use(partialBytes(w.Tokens, w.Taps))
		}
		// Row sums of the attention's gradient, and parts of dk and dv.
		use(4*int64(w.Tokens)*int64(w.Heads),
			min(dkvPartBytes, 8*int64(w.Tokens)*int64(w.Heads)*int64(w.HeadDim)))
	}
	most = o.Block(most)
	most += o.Block(o.unpackBytes(w))
	if w.Slots > 0 {
		most += o.Block(areaBytes) + o.Block(counterBytes(min(w.Slots, decodeRows)*w.Heads))
	}
	return most
}

// unpackBytes returns the most memory of quantised weights in Narrow (quant.go) that a product of w
// takes: a layer's, or a chunk of the head's.
func (o Options) unpackBytes(w compute.Work) (bytes int64) {
	narrow := o.Element(compute.Narrow)
	always := w.Trainable || narrow > 2 // the gradient of an input; float32
	if w.Quantised > 0 && (always || max(w.Tokens, w.Rows, w.Slots) > fewRows) {
		bytes = narrow * int64(w.Quantised)
	}
	if w.Quantised > 0 && w.Vocab > 1 && (always || max(w.Rows, w.Slots) > fewRows) {
		bytes = max(bytes, narrow*int64(min(w.Vocab, unpackedVocab))*int64(w.Hidden))
	}
	return bytes
}

// areaBytes is the least size of a graph's pinned memory: the page tables of some
// thousand rows. Where it has to grow in the middle of a recording, addresses change
// that are in the trace already, and the first graph comes a call later.
const areaBytes = 512 << 10

// alignScratch rounds bytes up to the next boundary at which scratch is cut.
func alignScratch(bytes int64) int64 { return (bytes + 255) &^ 255 }

// blocks returns the number of blocks of size that cover n.
func blocks(n, size int) int { return (n + size - 1) / size }

// sumRows returns the number of the N rows of D columns that one block sums where sums run down the
// columns of a gradient: enough that each thread has 64 (kernels/norm.cu), and that the blocks'
// sums, which are then added in order, are at most 1024.
func sumRows(N, D int) int {
	rows := 64 * max(1, 256/blocks(D, 8))
	for blocks(N, rows) > 1024 {
		rows *= 2
	}
	return rows
}

// partialBytes returns the size of such sums.
func partialBytes(N, D int) int64 { return 4 * int64(blocks(N, sumRows(N, D))) * int64(D) }

// Gradients of a norm's input and scale come from one pass over rows of up to onePassNorm columns,
// eight a thread (8*NORM_THREADS in kernels/norm.cu).
const (
	onePassNorm  = 4096
	normParts    = 1024 // the most blocks, whose sums are added in order
	leastNormRow = 4    // the least rows of a block of one row at a time
)

// normRows returns the number of the N rows that one block of such a pass takes: eight at a time if
// they are short.
func normRows(N, D int) int {
	least := leastNormRow
	if D <= 256 {
		least *= 8
	}
	return max(least, blocks(N, normParts))
}

// normPartBytes returns the size of the blocks' sums, at least that for fewer rows.
func normPartBytes(N, D int) int64 {
	return 4 * int64(min(normParts, blocks(N, normRows(0, D)))) * int64(D)
}

// decodeSplit is how many positions a block of the decode kernels takes
// (ATTN_SPLIT in kernels/attention.cuh); defaultPage is the pages' usual size.
const (
	decodeSplit = 512
	defaultPage = 16
)

// decodeRows is how many rows one launch of the decode kernels takes: as many blocks
// as a grid may have along y and z.
const decodeRows = 65535

// counterBytes returns the size of n counters, and of more than most calls need, so that it seldom
// grows.
func counterBytes(n int) int64 { return max(16<<10, 4*int64(n)) }

// decodeBytes returns the size of the partial softmaxes of R rows.
func decodeBytes(R, splits, H, E int) int64 {
	return 4 * int64(R) * int64(splits) * int64(H) * int64(E+2)
}

// The gradients of keys and values: how many queries a block takes at a time, and how
// many blocks are to be under way at once, two on each of 132 multiprocessors. The latter
// is the same on every device, so that a run's bits do not depend on how many it has.
const (
	dkvQueries   = 64
	dkvBlocks    = 264
	dkvPartBytes = 64 << 20 // the most that parts of dk and dv take
)

// keyTile is a tile of a segment's keys, counted from its beginning: so many rows, which the tiles
// from to to-1 of queries see.
type keyTile struct{ segment, tile, rows, from, to int }

// keyBlock is what one block of the gradient of keys and values computes: a tile, or a part of its
// queries, for the query heads from head on of each group. at is the first of its rows among those
// of all parts, or -1 where the tile is not cut (struct KeyBlock in attention.cu).
type keyBlock struct {
	keyTile
	head, heads, at int
}

// work returns how many tiles of queries a block goes through, for each of its heads.
func (b keyBlock) work() int { return (b.to - b.from) * b.heads }

// keyBlocks divides tiles of keys, of K heads each, among blocks, those with most work first:
// whole; or each by the group's query heads; or the longest by their queries, as the prompts of
// shared answers are, which many more queries see than other keys. Parts have at most so many rows
// in all, and least tiles of queries at the least. Another way is taken if it is a twentieth
// shorter, or else it is not worth the memory.
func keyBlocks(tiles []keyTile, K, group, most, least int) []keyBlock {
	best := byHeads(tiles, group, 1)
	shortest, total := blockTime(best, K), 0
	try := func(list []keyBlock) (fits bool) {
		if fits = partRows(list) <= most; fits {
			if time := blockTime(list, K); time < 0.95*shortest {
				best, shortest = list, time
			}
		}
		return fits
	}
	for parts := 2; parts <= group; parts++ {
		if blocks(group, parts-1) != blocks(group, parts) { // or else no shorter
			try(byHeads(tiles, group, parts))
		}
	}
	longest := 0
	for _, t := range tiles {
		total, longest = total+t.to-t.from, max(longest, t.to-t.from)
	}
	for n := max(least, total*K/(2*dkvBlocks)); n < longest; n *= 2 {
		if try(byQueries(tiles, group, n)) {
			break
		}
	}
	at := 0
	for i, b := range best {
		if b.at >= 0 {
			best[i].at, at = at, at+b.rows
		}
	}
	slices.SortStableFunc(best, func(a, b keyBlock) int { return cmp.Compare(b.work(), a.work()) })
	return best
}

// leastQueries is the least number of tiles of queries that a tile of keys is cut to.
const leastQueries = 8

// byHeads divides each tile's query heads among so many blocks.
func byHeads(tiles []keyTile, group, parts int) (list []keyBlock) {
	share, at := blocks(group, parts), -1
	if parts > 1 {
		at = 0
	}
	for _, t := range tiles {
		for head := 0; head < group; head += share {
			list = append(list, keyBlock{t, head, min(share, group-head), at})
		}
	}
	return list
}

// byQueries cuts tiles that more than 1.5 n tiles of queries see to equal parts of at most n.
func byQueries(tiles []keyTile, group, n int) (list []keyBlock) {
	for _, t := range tiles {
		seen, parts, at := t.to-t.from, 1, -1
		if 2*seen > 3*n {
			parts, at = blocks(seen, n), 0
		}
		for i := range parts {
			part := t
			part.from, part.to = t.from+i*seen/parts, t.from+(i+1)*seen/parts
			list = append(list, keyBlock{part, 0, group, at})
		}
	}
	return list
}

// partRows is how many rows the parts have in all.
func partRows(list []keyBlock) (n int) {
	for _, b := range list {
		if b.at >= 0 {
			n += b.rows
		}
	}
	return n
}

// blockTime is about how long blocks of K heads take, in tiles of queries of one head. They are
// begun longest first, so it is near the larger of the mean over dkvBlocks and, for each n, n+1
// times the longest but n*dkvBlocks. To write and read a part takes about as long as a tile.
func blockTime(list []keyBlock, K int) float64 {
	var work []int
	total, cut := 0, 0
	for _, b := range list {
		work, total = append(work, b.work()), total+b.work()
		if b.at >= 0 {
			cut++
		}
	}
	slices.SortFunc(work, func(a, b int) int { return cmp.Compare(b, a) })
	time := float64(total*K) / dkvBlocks
	for i := 0; i < len(work)*K; i += dkvBlocks {
		time = max(time, float64((i/dkvBlocks+1)*work[i/K]))
	}
	return time + float64(cut*K)/dkvBlocks
}

// limits bound the head's scratch.
type limits struct {
	rows   int   // at a time
	vocab  int   // a chunk of the vocabulary that statistics are taken of at a time
	logits int64 // bytes of logits, unless one row's chunk has more
}

// bounds are the limits of the head's operations.
type bounds struct{ stats, grad, sample limits }

// headLimits suit a GPU. Large chunks fill the matrix units: LogProb, which only writes its
// logits and reads them, is 13 % faster on an H200 with these than with chunks that fit the
// second-level cache. LogProbGrad adds each chunk of rows to all of the weights' gradient, and
// the output of two of its products is only rows or chunk by D. Sample reads all weights for
// each chunk of rows, which are not to be more than one.
var headLimits = bounds{
	stats:  limits{rows: 4096, vocab: headTile, logits: 256 << 20},
	grad:   limits{rows: 8192, vocab: 2 * headTile, logits: 256 << 20},
	sample: limits{rows: 8192, vocab: 2 * headTile, logits: 256 << 20},
}

// chunks cuts the head's work on R rows and V tokens into parts.
type chunks struct {
	rows int // at a time
	cols int // of the vocabulary in a product: a multiple of limits.vocab, or all
	ld   int // row stride of the logits
}

// chunks is how LogProb and LogProbGrad take the head: some rows, and as many
// chunks of the vocabulary as the limit allows.
func (l limits) chunks(R, V int) chunks {
	c := chunks{rows: max(1, min(R, l.rows))}
	fit := int(l.logits / int64(4*c.rows))
	c.cols = min(V, max(1, fit/l.vocab)*l.vocab)
	c.ld = stride(c.cols)
	return c
}

// whole returns how Sample divides the head: rows of all logits.
func (l limits) whole(R, V int) chunks {
	ld := stride(V)
	fit := int(l.logits / int64(4*ld))
	return chunks{rows: max(1, min(R, l.rows, fit)), cols: V, ld: ld}
}

// unpackedVocab is how many columns of a quantised head are unpacked at a time.
const unpackedVocab = 4 * headTile

// limitColumns returns chunks for weights of type t, whose columns are at most those that are
// unpacked if the type is quantised.
func (c chunks) limitColumns(t dtype) chunks {
	if t.quantised() {
		c.cols = min(c.cols, unpackedVocab)
		c.ld = stride(c.cols)
	}
	return c
}

// Products of few rows with quantised weights (few in kernels/quant.cu): the most rows, a block's
// rows, warps, a warp's features, and the distance of rows of sums in shared memory. How many rows
// are few was not measured: by count of bytes the other way, which writes and reads the weights as
// bfloat16, costs as much from some 128 on.
const (
	fewRows     = 64
	fewWarps    = 8
	fewFeatures = 16
	fewStride   = 20
)

// stride returns a row's length in memory, such that each row begins at 16 bytes in either type.
func stride(cols int) int { return (cols + 7) &^ 7 }

// bytes returns the sizes of the head's scratch, in the order of headWork's places: rows of h,
// logits, statistics, and for the gradient the logits' and the rows'.
func (c chunks) bytes(D, V int, narrow int64, grad bool) []int64 {
	rows := int64(c.rows)
	sizes := []int64{rows * int64(D) * narrow, rows * int64(c.ld) * 4,
		rows * int64(blocks(V, headTile)) * 16, 0, 0}
	if grad {
		if sizes[4] = rows * int64(D) * 4; narrow < 4 {
			sizes[3] = rows * int64(c.ld) * narrow
		}
	}
	return sizes
}

// headTile is how many columns of the vocabulary a block of head_stats takes
// (HEAD_TILE in kernels/head.cu). Chunks of the vocabulary are multiples of it.
const headTile = 4096
