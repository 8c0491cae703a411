package trainer

import (
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute/cuda"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// A game that starts from a warm-up keeps its moments as they were there: neither rounding
// nor LoRA is offered.
func TestFitOfAResumedGame(t *testing.T) {
	ready(t)
	fits := func(set ...string) string {
		c := settings(config.Train, filepath.Join(t.TempDir(), "run"),
			append(set, "trainer.device=cuda")...)
		p, err := plan.Fitting(nil, cuda.Options{}, 1e6, nil, c, config.Train)
		if err != nil {
			t.Fatal(err)
		}
		if p.Fit != nil || p.Fits == "" {
			t.Fatalf("a megabyte: fits with %+v, says %q", p.Fit, p.Fits)
		}
		return p.Fits
	}
	if said := fits("trainer.resume_from=" + fixed.warmup); strings.Contains(said, "8bit") ||
		strings.Contains(said, "lora") || !strings.Contains(said, "offload=true") {
		t.Errorf("resumed: %s", said)
	}
	if _, err := plan.Fitting(nil, cuda.Options{}, 0, nil,
		settings(config.Train, "run", "trainer.resume_from="+fixed.warmup),
		config.Train); err == nil ||
		err.Error() != "configuration: plan: --fit: the memory of the device is not known: give --memory GB" {
		t.Errorf("an unknown memory: %v", err)
	}
}
