package saved

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs"
)

func TestCostOf(t *testing.T) {
	dir := t.TempDir()
	text := `{"step":1,"perf/tflops":0.5,"timing_s/step":2}` + "\n" + `{"step":2,"perf/tflops":0.25,"timing_s/step":8}` + "\n" + `{"step":3,"perf/t`
	if err := os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := CostOf(vfs.OS, dir)
	if err != nil || c.Steps != 2 || math.Abs(c.FLOP-3e12) > 1 || c.Seconds != 10 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := CostOf(vfs.OS, filepath.Join(dir, "nowhere")); err == nil ||
		!strings.Contains(err.Error(), "nowhere") {
		t.Errorf("no run: %v", err)
	}
}
