package cpu

import xcpu "golang.org/x/sys/cpu"

// available returns the variants that this machine can run, slowest first.
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
	return xcpu.X86.HasAVX512F && xcpu.X86.HasAVX512BW && xcpu.X86.HasAVX512DQ &&
		xcpu.X86.HasAVX512VL
}
