//go:build !amd64 && !arm64

package cpu

// available returns the variants that this machine can run, slowest first.
func available() []*kernels { return []*kernels{portable} }
