package cpu

import (
	"errors"
	"sync"

	xcpu "golang.org/x/sys/cpu"
)

// amx is TDPBF16PS on tiles of 16 rows of 64 bytes, two by two of them, so that a
// panel has 32 rows or columns. A line of A's panels is 16 pairs of one row, the
// next line the next row's; B's are as avx512bf16 has them.
var amx = &kernels16{
	name: "amx", mr: tileLanes, nr: tileLanes, lanesA: tileLanes, lanesB: tileLanes,
	unit: tilePairs, lines: true, add: addAvx512,
	packA: packTiles,
	packB: func(dst []uint32, src []float32, ld, n, k int, down bool) {
		avx512bf16.packB(dst, src, ld, n, k, down)
		clear(dst[(k+1)/2*tileLanes : (k+2*tilePairs-1)/(2*tilePairs)*tilePairs*tileLanes])
	},
}

const (
	// tileLanes is how many rows, and columns, gemmAMX keeps: two tiles.
	tileLanes = 32
	// tilesBlock is pairBlock for tiles, at the most: a panel of A, 40 KiB, stays in the
	// first-level cache of processors with AMX.
	tilesBlock = 32 * tilePairs
)

func init() {
	amx.round = roundRow16
	amx.dequant8, amx.dequant4 = dequant8Pairs, dequant4Pairs
	amx.stream = func(rows int, a []uint32, lda int, b []uint32, panels int, c []float32, ldc,
		pairs, acc, next, step int) {
		streamAMX(a, lda, b, panels, c, ldc, pairs/tilePairs, rows, acc, next, step)
	}
	amx.tiles = func(p *product16, w *worker, a0, a1, b0, b1 int) { p.tilesAMX(w, a0, a1, b0, b1) }
}

// tilesAMX computes a task's tiles.
func (p *product16) tilesAMX(w *worker, a0, a1, b0, b1 int) {
	pairs, rows := amx.pairs(p.k), min(p.m, a1*amx.mr)-a0*amx.mr
	// equal ones: a short one would be all loads and stores of C
	parts := max(1, (pairs+tilesBlock-1)/tilesBlock)
	block := max(1, (pairs/tilePairs+parts-1)/parts) * tilePairs
	for p0 := 0; p0 == 0 || p0 < pairs; p0 += block {
		pn, acc := min(block, pairs-p0), asInt(p.acc || p0 > 0)
		past := asInt(p.past && acc == 0 && pn == pairs && p.n%amx.nr == 0 && p.ldc%16 == 0 &&
			onLine(p.c))
		for q := b0; q < b1; q++ {
			next := p.strideB // from this part of B's panel to what is multiplied after it
			switch {
			case q+1 < b1:
			case p0+pn < pairs:
				next = (b0-q)*p.strideB + pn*amx.lanesB
			default:
				next -= p0 * amx.lanesB
			}
			gemmAMX(p.a[a0*p.strideA+p0*amx.lanesA:], p.b[q*p.strideB+p0*amx.lanesB:],
				p.c[a0*amx.mr*p.ldc+q*amx.nr:], w.tile,
				p.ldc, pn/tilePairs, p.strideA, rows, min(amx.nr, p.n-q*amx.nr), acc, past, next)
		}
	}
	p.addBias(amx, w, a0, a1, b0, b1)
}

// packTiles packs n lanes of A.
func packTiles(dst []uint32, src []float32, ld, n, k int, down bool) {
	whole := k / (2 * tilePairs)
	switch {
	case whole == 0:
	case down:
		for u := range whole {
			for i := 0; i < n; i += 16 {
				packColumnsAMX(dst[(u*tileLanes+i)*tilePairs:], src[u*2*tilePairs*ld+i:], ld,
					min(16, n-i))
			}
		}
	default:
		packRowsAMX(dst, src, ld, n, whole)
	}
	packLines(dst, tileLanes, src, ld, n, whole*tilePairs, k, down)
}

// amxState is what XCR0 says of a system that saves tiles: their configuration and
// their data.
const amxState = 1<<17 | 1<<18

// amxRefused is why AMX cannot be used, or nil. The first call asks the system for
// leave, once for the whole process.
var amxRefused = sync.OnceValue(func() error {
	switch x := xcpu.X86; {
	case !x.HasAMXTile || !x.HasAMXBF16:
		return errors.New("this processor has no AMX-BF16 (CPUID leaf 7, EDX bits 22 and 24)")
	case !hasAVX512() || !x.HasAVX512BF16:
		return errors.New("this processor has no AVX512-BF16, which packs its operands")
	case !x.HasOSXSAVE || xcr0()&amxState != amxState:
		return errors.New("the system does not save AMX's tiles (XCR0 bits 17 and 18)")
	}
	return allowTiles()
})
