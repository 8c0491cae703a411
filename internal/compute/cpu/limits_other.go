//go:build !amd64 && !arm64

package cpu

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks map[string]func(n int)

// dots is such a loop of bfloat16 dot products: there is none.
func dots(string) (loop func(n int), flops int) { return nil, 0 }
