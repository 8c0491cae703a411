package cpu

// peaks are loops of nothing but multiply-adds, by variant; see peakGo.
var peaks = map[string]func(n int){"neon": peakNeon}

// dots is such a loop of bfloat16 dot products: none is written.
func dots(string) (loop func(n int), flops int) { return nil, 0 }
