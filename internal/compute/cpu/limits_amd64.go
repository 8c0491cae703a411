package cpu

import xcpu "golang.org/x/sys/cpu"

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks = map[string]func(n int){"avx2": peakAvx2, "avx512": peakAvx512}

// dots is such a loop of bfloat16 dot products, and the operations of one turn of
// it; nil where the processor has none. A processor with AMX would have another.
func dots() (loop func(n int), flops int) {
	if xcpu.X86.HasAVX512BF16 && xcpu.X86.HasAVX512F {
		return peak16, 2 * 32 * 2 * avx512.mr
	}
	return nil, 0
}
