package cpu

import (
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
)

func TestConformance(t *testing.T) {
	for _, variant := range []string{"portable", "avx2", "avx512"} {
		t.Run(variant, func(t *testing.T) {
			if !slices.Contains(Variants(), variant) {
				t.Skipf("NOT TESTED: this machine cannot run the variant %q (it has %v)", variant, Variants())
			}
			computetest.Run(t, func(workers int) (compute.Backend, error) {
				return New(Options{Workers: workers, Variant: variant})
			}, computetest.Contract{Tol: 2e-6, Align: 1, Alone: true})
		})
	}
}
