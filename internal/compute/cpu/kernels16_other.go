//go:build !amd64

package cpu

import "errors"

// expanders are the variants' kernels16.expand.
var expanders map[string]func(dst []float32, src []uint32, lanes, pairs int)

// natives returns the native bfloat16 products of this machine, slowest first.
func natives() []native { return nil }

// amxRefused returns why AMX cannot be used.
func amxRefused() error { return errors.New("it is for amd64 processors only") }
