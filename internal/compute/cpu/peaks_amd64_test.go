package cpu

var peaks = map[string]func(n int){"avx2": peakAvx2, "avx512": peakAvx512}
