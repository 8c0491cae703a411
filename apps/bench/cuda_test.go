//go:build nvidia

package bench

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/cuda"
	"gad/internal/compute/cuda/driver"
)

// The report says how many decode steps were replayed, and, where cuBLASLt has no
// algorithm, that it has none.
func TestCUDACounts(t *testing.T) {
	be, err := cuda.Open(cuda.Options{})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	be.Close()
	for _, declines := range []bool{false, true} {
		if declines {
			if driver.Emulated() == nil {
				t.Skip("NOT TESTED: only the emulated device refuses products on demand")
			}
			t.Setenv("GAD_EMU_NO_PLANS", "1")
		}
		r := fitting(t,
			Options{Open: func() (compute.Backend, error) { return cuda.Open(cuda.Options{}) },
				Name: "tiny", Config: tiny,
				Load: tinyLoad, What: []string{"stages"}, Budget: time.Second})
		if r.Repeats < 6 || r.Replayed <= 0 || r.Replayed >= 1 ||
			strings.HasPrefix(r.Declined, "cuBLASLt declined ") != declines {
			t.Errorf("declining %t: %d decode steps, %g of them replayed, %q", declines, r.Repeats,
				r.Replayed, r.Declined)
		}
		var printed strings.Builder
		if err := r.Print(&printed); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(printed.String(), " decode steps were replayed as a CUDA graph") ||
			strings.Contains(printed.String(), "cuBLASLt declined ") != declines ||
			strings.Contains(string(text), `"declined":"cuBLASLt declined `) != declines || !strings.Contains(string(text), `"replayed_frac":0.`) {
			t.Errorf("declining %t: the report is\n%s\n%s", declines, printed.String(), text)
		}
	}
}
