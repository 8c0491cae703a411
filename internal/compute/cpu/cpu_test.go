package cpu

import (
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
	"gad/internal/hostile"
)

// fastest is the variant that this machine computes with.
func fastest(t *testing.T, precision string) string {
	be, err := New(Options{Workers: 1, Precision: precision})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	return strings.TrimSuffix(strings.TrimPrefix(be.Name(), "cpu/"), "-rounded")
}

func TestConformance(t *testing.T) {
	fastest, known := fastest(t, F32), map[string][][]float64{}
	for _, variant := range []string{"portable", "avx2", "avx512", "neon"} {
		t.Run(variant, func(t *testing.T) {
			if !slices.Contains(Variants(), variant) {
				t.Skipf("NOT TESTED: this machine cannot run the variant %q (it has %v)", variant,
					Variants())
			}
			if testing.Short() && variant != fastest {
				t.Skip("slow: -short takes the variant that this machine computes with")
			}
			contract := computetest.Contract{Tol: 2e-6, Align: 1, Alone: true}
			// which tasks there are depends on the tiles; who takes them does not
			switch {
			case hostile.Long() && variant == fastest:
			case hostile.Long():
				contract.Workers = []int{2, 3}
			case variant == fastest:
				contract.Workers, contract.Few, contract.Known = []int{2, 3}, true, known
			default:
				contract.Workers, contract.Few, contract.Small = []int{2}, true, true
				contract.Known = known
			}
			computetest.Run(t, func(workers int) (compute.Backend, error) {
				return New(Options{Workers: workers, Variant: variant})
			}, contract)
		})
	}
}

// Bfloat16 products by each variant: natively, and with its float32 kernels.
func TestConformance16(t *testing.T) {
	fastest := fastest(t, BF16)
	for _, variant := range []string{"portable", "avx2", "avx512", "avx512bf16", "amx", "neon"} {
		t.Run(variant, func(t *testing.T) {
			if !slices.Contains(Variants16(), variant) {
				t.Skipf("NOT TESTED: this machine cannot run the variant %q (it has %v)", variant,
					Variants16())
			}
			if !hostile.Long() && variant != fastest || testing.Short() {
				t.Skip("slow: in a long run, but for the variant that this machine computes with; not with -short")
			}
			contract := computetest.Contract{Tol: 2e-6, NarrowTol: 8e-3, Align: 1, Alone: true}
			if variant != fastest || !hostile.Long() {
				contract.Workers, contract.Few = []int{2, 3}, !hostile.Long()
				contract.Small = !hostile.Long() // TestConformance has them
			}
			computetest.Run(t, func(workers int) (compute.Backend, error) {
				return New(Options{Workers: workers, Variant: variant, Precision: BF16})
			}, contract)
		})
	}
}
