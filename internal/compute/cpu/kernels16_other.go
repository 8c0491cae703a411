//go:build !amd64

package cpu

import "errors"

// expanders are the variants' kernels16.expand.
var expanders map[string]func(dst []float32, src []uint32, lanes, pairs int)

// natives is what this machine can multiply bfloat16 numbers with, slowest first.
func natives() []native { return nil }

// amxRefused is why AMX cannot be used.
func amxRefused() error { return errors.New("it is for amd64 processors only") }
