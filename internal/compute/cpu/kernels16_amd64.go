package cpu

import xcpu "golang.org/x/sys/cpu"

// expanders are the variants' kernels16.expand.
var expanders = map[string]func(dst []float32, src []uint32, lanes, pairs int){"avx2": expand16Avx2,
	"avx512": expand16Avx512}

// natives returns the native bfloat16 products of this machine, slowest first.
func natives() []native {
	if !xcpu.X86.HasAVX512BF16 || !hasAVX512() {
		return nil
	}
	all := []native{{avx512, avx512bf16}}
	if amxRefused() == nil {
		all = append(all, native{avx512, amx})
	}
	return all
}

// avx512bf16 is VDPBF16PS, on tiles of 14 rows and 32 columns.
var avx512bf16 = &kernels16{
	name: "avx512bf16", mr: 14, nr: 32, lanesA: 16, lanesB: 32, unit: 1, add: addAvx512,
	packA: func(dst []uint32, src []float32, ld, n, k int,
		down bool) {
		packHalf(dst, 16, src, ld, n, k, down)
	},
	packB: func(dst []uint32, src []float32, ld, n, k int, down bool) {
		packHalf(dst, 32, src, ld, min(n, 16), k, down)
		if n > 16 && down {
			packHalf(dst[16:], 32, src[16:], ld, n-16, k, down)
		} else if n > 16 {
			packHalf(dst[16:], 32, src[16*ld:], ld, n-16, k, down)
		}
	},
}

func init() {
	avx512bf16.round = roundRow16
	avx512bf16.dequant8, avx512bf16.dequant4 = dequant8Pairs, dequant4Pairs
	avx512bf16.stream = func(rows int, a []uint32, lda int, b []uint32, panels int, c []float32,
		ldc, pairs, acc, next, step int) {
		for q := range panels {
			streams16[rows-1](a, lda, b[q*pairs*32:], c[q*32:], ldc, pairs, acc, next, step)
		}
	}
	avx512bf16.tiles = func(p *product16, w *worker, a0, a1, b0,
		b1 int) {
		p.tilesOf(avx512bf16, gemms16, w, a0, a1, b0, b1)
	}
}

// packHalf packs 16 lanes of a panel, of which n are there.
func packHalf(dst []uint32, lanes int, src []float32, ld, n, k int, down bool) {
	done := 0
	switch {
	case down && k >= 2:
		done = k / 2
		packColumns16(dst, lanes, src, ld, n, done)
	case !down && k >= 32:
		done = k / 32 * 16
		packRows16(dst, lanes, src, ld, n, k/32)
	}
	packGo(dst, lanes, src, ld, 0, n, done, k, down)
}
