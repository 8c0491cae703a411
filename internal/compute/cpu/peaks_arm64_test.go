package cpu

var peaks = map[string]func(n int){"neon": peakNeon}
