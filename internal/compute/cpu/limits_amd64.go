package cpu

import xcpu "golang.org/x/sys/cpu"

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks = map[string]func(n int){"avx2": peakAvx2, "avx512": peakAvx512}

// dots returns such a loop of bfloat16 dot products, and the operations of one turn of it: AMX's
// unless the backend is of AVX512-BF16; nil if the processor has neither.
func dots(name string) (loop func(n int), flops int) {
	if name != "cpu/avx512bf16" && amxRefused() == nil {
		return peakAMX, 2 * tileLanes * tileLanes * 2 * tilePairs
	}
	if xcpu.X86.HasAVX512BF16 && xcpu.X86.HasAVX512F {
		return peak16, 2 * 32 * 2 * avx512.mr
	}
	return nil, 0
}
