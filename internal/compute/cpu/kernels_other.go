//go:build !amd64 && !arm64

package cpu

// available is the variants that this machine can run, slowest first.
func available() []*kernels { return []*kernels{portable} }
