package cpu

// available returns the variants that this machine can run, slowest first: every arm64 processor
// that Go runs on has NEON.
func available() []*kernels { return []*kernels{portable, neon} }
