package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/ranks_demo.sh plays the stages of the demo: with its settings.
func TestRanksDemoHasTheseSettings(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "scripts", "ranks_demo.sh"))
	if err != nil {
		t.Fatal(err)
	}
	s := SizeOf(false, false, false)
	for name, words := range map[string][]string{"common": common, "sampling": {sampling},
		"sft": s.SFT, "warmup": s.Warmup, "train": s.Train} {
		if want := "\n" + name + "='" + strings.Join(words, " ") +
			"'\n"; !strings.Contains(string(raw), want) {
			t.Errorf("scripts/ranks_demo.sh has another line than%s", want)
		}
	}
	if want := "task make " + kind + " --output"; !strings.Contains(string(raw), want) ||
		!strings.Contains(string(raw), "--rows 20000") || s.Rows != 20000 {
		t.Errorf("scripts/ranks_demo.sh makes another task than %s with %d rows", kind, s.Rows)
	}
}
