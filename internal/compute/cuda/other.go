//go:build !nvidia

package cuda

import (
	"fmt"

	"gad/internal/compute"
)

// Open fails: this program is built without CUDA.
func Open(Options) (compute.Backend, error) {
	return nil, fmt.Errorf("cuda: %w: this gad is built without it: build it with `go build -tags nvidia ./cmd/gad` (doc/cuda.md), or compute on the CPU", ErrUnavailable)
}
