package cpu

import xcpu "golang.org/x/sys/cpu"

// available is the variants that this machine can run, slowest first.
func available() []*kernels {
	all := []*kernels{portable}
	if xcpu.X86.HasAVX2 && xcpu.X86.HasFMA {
		all = append(all, avx2)
	}
	if hasAVX512() {
		all = append(all, avx512)
	}
	return all
}

func hasAVX512() bool {
	return xcpu.X86.HasAVX512F && xcpu.X86.HasAVX512BW && xcpu.X86.HasAVX512DQ && xcpu.X86.HasAVX512VL
}

// blocked is a transpose kernel made of one for whole blocks of w rows and w
// columns; what is left over goes element by element.
func blocked(w int, block func(dst []float32, ldd int, src []float32, lds, blocks int)) func([]float32, int, []float32, int, int, int) {
	return func(dst []float32, ldd int, src []float32, lds, rows, k int) {
		r, whole := 0, k/w*w
		for ; whole > 0 && r+w <= rows; r += w {
			block(dst[r:], ldd, src[r*lds:], lds, k/w)
			if whole < k {
				transposeGo(dst[whole*ldd+r:], ldd, src[r*lds+whole:], lds, w, k-whole)
			}
		}
		if r < rows {
			transposeGo(dst[r:], ldd, src[r*lds:], lds, rows-r, k)
		}
	}
}
