package cpu

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks = map[string]func(n int){"neon": peakNeon}

// dots returns no loop of bfloat16 dot products: none is written for arm64.
func dots(string) (loop func(n int), flops int) { return nil, 0 }
