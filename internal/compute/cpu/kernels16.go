package cpu

import (
	"math"
	"slices"
)

// kernels16 is one way of multiplying bfloat16 numbers with float32 sums. Two
// matrices that are multiplied are packed first, rounded to nearest, ties to even,
// into panels of pairs:
//
//	panel[x/2*lanes + i] = the elements x (lower half) and x+1 (upper half) of lane i
//
// A lane is a row of C in A's panels, and a column of C in B's. What k has too few
// elements for is zero, what a panel has too many lanes for is arbitrary.
//
// AMX (lines is set) wants the left side otherwise: blocks of tilePairs pairs, in each a
// line for every lane,
//
//	panel[(x/2/tilePairs*lanes+i)*tilePairs + x/2%tilePairs]
type kernels16 struct {
	name string
	// mr and nr are the rows and columns of a tile: how many lanes of a panel are in use.
	mr, nr int
	// lanesA and lanesB are how many lanes a panel has.
	lanesA, lanesB int
	// unit is what the number of pairs in a panel is a multiple of.
	unit  int
	lines bool // A's panels are of lines
	// packA and packB fill one panel with n lanes of k elements: lane i is row i of
	// src, whose rows are ld apart, or its column i if down is set.
	packA, packB func(dst []uint32, src []float32, ld, n, k int, down bool)
	// expand makes float32 of panels, for kernels that multiply those: for p < pairs
	// and i < lanes, dst[2*p*lanes+i] and dst[(2*p+1)*lanes+i] are src[p*lanes+i]'s halves.
	expand func(dst []float32, src []uint32, lanes, pairs int)
	add    func(y, x []float32) // y[i] += x[i]
	// tiles computes the panels [a0, a1) of A times [b0, b1) of B, on the calling goroutine.
	tiles func(p *product16, w *worker, a0, a1, b0, b1 int)
	// stream is stream16Func for so many rows, at most mr, and panels that follow one
	// another, and round makes rows of pairs: dst[i] = src[2*i] and src[2*i+1] for
	// i < 16*blocks. nil where a variant has none.
	stream func(rows int, a []uint32, lda int, b []uint32, panels int, c []float32, ldc, pairs, acc,
		next, step int)
	round func(dst []uint32, src []float32, blocks int)
	// dequant8 and dequant4 are kernels.dequant8 and dequant4 as packB packs their values: nr
	// pairs for each two elements. nil where a variant has none.
	dequant8, dequant4 func(dst []uint32, codes []uint8, scales []uint16, blocks int)
}

// gemm16Func computes a tile of so many rows and 32 columns, from panels of 16
// and 32 lanes:
//
//	c[i*ldc+j] (=, or += if acc is not 0) Σ_{p<pairs} a[p*16+i]*b[p*32+j]
//
// where a pair's upper product is added first and the lower then, each fused, and
// denormal inputs, products and sums are zeros of their sign: dotPair. Meanwhile a
// whole tile's kernel fetches the pairs that lie ahead numbers further than b's into
// the second-level cache. It stores past the caches if acc is storePast, to rows on cache lines.
type gemm16Func func(a, b []uint32, c []float32, ldc, pairs, acc, ahead int)

// dotPair computes VDPBF16PS: c + a's upper half times b's, rounded, + a's lower half times b's,
// rounded.
func dotPair(c float32, a, b uint32) float32 {
	return fma16(fma16(c, a&0xffff0000, b&0xffff0000), a<<16, b<<16)
}

// fma16 computes one step of dotPair: c + a*b, of a's and b's bits as float32.
func fma16(c float32, a, b uint32) float32 {
	at := func(bits uint32) float64 { return float64(flush(math.Float32frombits(bits))) }
	return flush(float32(math.FMA(at(a), at(b), float64(flush(c)))))
}

// tilePairs is how many pairs of a row a tile has: one TDPBF16PS takes them all.
const tilePairs = 16

// dotTile computes TDPBF16PS for one element: c + (the sum of the lower halves' products + the sum
// of the upper halves' products), each sum begun at zero, over ascending pairs, rounded as in
// dotPair. So where an inner dimension is cut shows in no bit if
// it is at a whole number of tilePairs.
//
// Intel documents it (Software Developer's Manual, volume 2, TDPBF16PS), that denormal
// numbers are zeros as well.
func dotTile(c float32, a, b []uint32) float32 {
	var lower, upper float32
	for p := range a {
		lower = fma16(lower, a[p]<<16, b[p]<<16)
		upper = fma16(upper, a[p]&0xffff0000, b[p]&0xffff0000)
	}
	return flush(flush(c) + flush(lower+upper))
}

// flush returns x, or a zero of its sign for a denormal x.
func flush(x float32) float32 {
	if bits := math.Float32bits(x); bits&0x7f800000 == 0 {
		return math.Float32frombits(bits & 0x80000000)
	}
	return x
}

// round16 rounds x to bfloat16: to nearest, ties to even; denormals become zeros.
func round16(x float32) uint32 {
	bits := math.Float32bits(x)
	switch {
	case bits&0x7f800000 == 0:
		return bits >> 16 & 0x8000
	case x != x:
		return bits>>16 | 0x40 // quiet
	}
	return (bits + 0x7fff + bits>>16&1) >> 16
}

// rounded makes y[i] = x[i] rounded to bfloat16.
func rounded(y, x []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] = math.Float32frombits(round16(v) << 16)
	}
}

// packGo packs the lanes first to n-1 of a panel of lanes lanes, from element 2*p0 on.
func packGo(dst []uint32, lanes int, src []float32, ld, first, n, p0, k int, down bool) {
	ri, rx := ld, 1
	if down {
		ri, rx = 1, ld
	}
	for p := p0; 2*p < k; p++ {
		for i := first; i < n; i++ {
			pair := round16(src[i*ri+2*p*rx])
			if 2*p+1 < k {
				pair |= round16(src[i*ri+(2*p+1)*rx]) << 16
			}
			dst[p*lanes+i] = pair
		}
	}
}

// packLines does packGo for panels of lines, from the pair p0 on, where a block begins, to the last
// block's end.
func packLines(dst []uint32, lanes int, src []float32, ld, n, p0, k int, down bool) {
	ri, rx := ld, 1
	if down {
		ri, rx = 1, ld
	}
	for x0 := 2 * p0; x0 < k; x0 += 2 * tilePairs {
		for i := range n {
			line := dst[(x0/2/tilePairs*lanes+i)*tilePairs:][:tilePairs]
			clear(line)
			for x := x0; x < min(k, x0+2*tilePairs); x++ {
				line[(x-x0)/2] |= round16(src[i*ri+x*rx]) << (x % 2 * 16)
			}
		}
	}
}

// expandGo makes float32 of pairs: dst[(2*p)*lanes+i] and dst[(2*p+1)*lanes+i].
func expandGo(dst []float32, src []uint32, lanes, pairs int) {
	for p := range pairs {
		for i, v := range src[p*lanes : (p+1)*lanes] {
			dst[2*p*lanes+i] = math.Float32frombits(v << 16)
			dst[(2*p+1)*lanes+i] = math.Float32frombits(v & 0xffff0000)
		}
	}
}

// rounding returns bfloat16 products by a variant that has no instruction for them: operands are
// rounded and multiplied by its float32 kernels.
func rounding(k *kernels) *kernels16 {
	half := k.nr / 2 // a vector: what expand takes lanes by
	r := &kernels16{
		name: k.name + "-rounded", mr: k.mr, nr: k.nr, lanesA: (k.mr + half - 1) / half * half,
		lanesB: k.nr, unit: 1,
		expand: expanders[k.name], add: k.add,
	}
	if r.expand == nil {
		r.expand = expandGo
	}
	r.packA = func(dst []uint32, src []float32, ld, n, depth int, down bool) {
		packGo(dst, r.lanesA, src, ld, 0, n, 0, depth, down)
	}
	r.packB = func(dst []uint32, src []float32, ld, n, depth int, down bool) {
		packGo(dst, r.lanesB, src, ld, 0, n, 0, depth, down)
	}
	r.tiles = func(p *product16, w *worker, a0, a1, b0,
		b1 int) {
		p.tilesRounding(r, k, w, a0, a1, b0, b1)
	}
	return r
}

// pick16 returns how the variant k multiplies bfloat16 numbers: as name says, or if name is empty,
// natively where the machine can.
func pick16(k *kernels, name string) *kernels16 {
	for _, n := range slices.Backward(natives()) {
		if n.of == k && (name == "" || name == n.name) {
			return n.kernels16
		}
	}
	return rounding(k)
}

// native is kernels of a variant that multiply bfloat16 numbers.
type native struct {
	of *kernels
	*kernels16
}

// stream16Func computes a tile of so many rows and 32 columns, of A's rows of pairs:
//
//	c[i*ldc+j] (=, or += if acc is not 0) Σ_{p<pairs} a[i*lda+p]*b[p*32+j]
//
// with gemm16Func's arithmetic. Meanwhile it asks memory for what lies from b[next] on,
// 32 numbers at p*step for each p.
type stream16Func func(a []uint32, lda int, b []uint32, c []float32, ldc, pairs, acc, next,
	step int)
