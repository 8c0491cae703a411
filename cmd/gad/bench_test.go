package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/bench"
)

// The command on a tiny shape, as JSON; as a table: TestModelCost, and TestRun of apps/bench.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "config.json"), tinyConfig)
	refused(t, exitInput, "config.json", "bench", "--shape", t.TempDir())
	if testing.Short() {
		return // memory's bandwidth
	}
	out, _ := must(t, "bench", "--shape", dir, "--what", "limits", "--json", "--threads", "1")
	var r bench.Report
	decode(t, out, &r)
	if r.Limits.Products <= 0 || len(r.Ops)+len(r.Stages) > 0 || r.Shape != dir {
		t.Errorf("prints %s", out)
	}
}

// The same command line with --model-cost in the place of --device cuda prints the lines that
// the GPU would.
func TestModelCost(t *testing.T) {
	out, _ := must(t, "bench", "--model-cost", "a100", "--shape", "qwen2.5-0.5b", "--prompts", "4",
		"--new-tokens", "16", "--json")
	var r bench.Report
	decode(t, out, &r)
	if table, _ := must(t, "bench", "--model-cost", "a100", "--shape", "qwen2.5-0.5b", "--what",
		"limits"); !strings.Contains(table, "bfloat16 products                        312 TFLOP/s\n") {
		t.Errorf("the table:\n%s", table)
	}
	if r.Card == nil || r.Card.Name != "a100" || r.Limits.Products != 312e12 ||
		len(r.Stages) != 3 || len(r.Stages[2].Parts) != 6 || len(r.Stages[0].Ops) < 15 ||
		len(r.Ops) < 20 {
		t.Errorf("%s", out)
	}
}
