//go:build !amd64 && !arm64

package cpu

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks map[string]func(n int)

// dots returns no loop of bfloat16 dot products: none is written for other processors.
func dots(string) (loop func(n int), flops int) { return nil, 0 }
