package ref_test

import (
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
)

// The reference against itself: offsets, guards, aliasing and the promised
// equalities; what it computes is checked by finite differences.
func TestConformance(t *testing.T) {
	if !hostile.Long() {
		t.Skip("slow: else by finite differences, and as the other side of each backend")
	}
	computetest.Run(t, func(int) (compute.Backend, error) { return ref.New(), nil },
		computetest.Contract{Workers: []int{2}, Tol: 1e-6, Align: 1, Alone: true, Joined: true})
}
