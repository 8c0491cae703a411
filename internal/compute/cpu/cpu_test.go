package cpu

import (
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
)

func TestConformance(t *testing.T) {
	for _, variant := range []string{"portable", "avx2", "avx512", "neon"} {
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

// Bfloat16 products by each variant: natively, and with its float32 kernels.
func TestConformance16(t *testing.T) {
	be, err := New(Options{Workers: 1, Precision: BF16})
	if err != nil {
		t.Fatal(err)
	}
	fastest := strings.TrimSuffix(strings.TrimPrefix(be.Name(), "cpu/"), "-rounded")
	be.Close()
	for _, variant := range []string{"portable", "avx2", "avx512", "avx512bf16", "amx", "neon"} {
		t.Run(variant, func(t *testing.T) {
			if !slices.Contains(Variants16(), variant) {
				t.Skipf("NOT TESTED: this machine cannot run the variant %q (it has %v)", variant, Variants16())
			}
			if testing.Short() && variant != fastest {
				t.Skip("slow: left out with -short, but for the variant that this machine computes with")
			}
			contract := computetest.Contract{Tol: 2e-6, NarrowTol: 8e-3, Align: 1, Alone: true}
			if !slices.Contains([]string{"avx512bf16", "amx", "neon"}, variant) { // tasks are cut as TestConformance tries them
				contract.Workers = []int{2, 3}
			}
			computetest.Run(t, func(workers int) (compute.Backend, error) {
				return New(Options{Workers: workers, Variant: variant, Precision: BF16})
			}, contract)
		})
	}
}
