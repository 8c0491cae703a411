// Package kernels holds the CUDA backend's kernels: CUDA C, one file for each
// family, device.cuh with the words that they are written in, and gad.cu, which
// includes them all; and what the compiler made of them, PTX, which the driver
// of a GPU turns into machine code when the program starts. So a machine that
// trains needs no compiler. The test keeps the PTX true to the sources:
//
//	go test ./internal/compute/cuda/kernels            # compares
//	go test ./internal/compute/cuda/kernels -update    # compiles; scripts/gpu/toolchain.sh finds the compiler
//
// Only the backend imports this package, and so only a build with the tag nvidia
// carries the PTX.
package kernels

import (
	_ "embed"
	"regexp"
	"slices"
)

//go:embed ptx/compute_80.ptx
var compute80 []byte

//go:embed ptx/compute_90.ptx
var compute90 []byte

// entry is a kernel's definition in PTX.
var entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

// PTX is the program for a device of compute capability cc, 10 times major plus
// minor: that for the highest architecture not above it, or nil below 80, where
// bfloat16 is missing.
func PTX(cc int) []byte {
	switch {
	case cc >= 90:
		return compute90
	case cc >= 80:
		return compute80
	}
	return nil
}

// Names lists the kernels in ascending order.
func Names() []string {
	var names []string
	for _, m := range entry.FindAllSubmatch(compute80, -1) {
		names = append(names, string(m[1]))
	}
	slices.Sort(names)
	return names
}
