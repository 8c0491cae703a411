package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/bench"
)

// Mistakes with predictions for a GPU that is not there.
func TestMistakesOfCost(t *testing.T) {
	_, work := linked(t, "student")
	const alone = `: not with --model-cost, which measures nothing and computes in bfloat16: leave out one of them`
	mistaken(t, []string{work}, []mistake{
		{"bench --model-cost b200", 2, `bench: --model-cost "b200": gad has no figures of this GPU: use a100, h100, h200, a6000, l4, 5090, 4090, 3090, 4060ti-16gb, 3060-12gb`},
		{"bench --model-cost h200 --device cuda", 2, `bench: --device` + alone},
		{"bench --model-cost h200 --precision f32", 2, `bench: --precision` + alone},
		{"bench --model-cost h200 --threads 2", 2, `bench: --threads` + alone},
		{"bench --model-cost h200 --seconds 5", 2, `bench: --seconds` + alone},
		{"bench --model-cost h200 --serve", 2, `bench: --serve` + alone},
		{"bench --model-cost h200 --what everything", 2, `bench: part "everything": expected some of limits, ops, stages`},
		{"bench --slots 0", 2, `bench: --slots 0: must be from 1 to 65536`},
		{"plan --model student --output out --device cuda --card b200", 2, `plan: --card "b200": gad has no figures of this GPU: use a100, h100, h200, a6000, l4, 5090, 4090, 3090, 4060ti-16gb, 3060-12gb`},
		{"plan --model student --output out --device cuda --card T4", 2, `plan: --card "T4": has compute capability 7.5, and gad needs 8.0 or later (doc/cuda.md): use a100, h100, h200, a6000, l4, 5090, 4090, 3090, 4060ti-16gb, 3060-12gb`},
		{"bench --model-cost v100", 2, `bench: --model-cost "v100": has compute capability 7.0, and gad needs 8.0 or later (doc/cuda.md): use a100, h100, h200, a6000, l4, 5090, 4090, 3090, 4060ti-16gb, 3060-12gb`},
		{"plan --stage sft --model student --hours 3", 2, `plan: --hours: is for --fit: add that`},
		{"plan --stage sft --model student --fit --hours 0", 2, `plan: --hours 0: must be above 0`},
		{"plan --model student --output out --card h200", 2, `plan: --card h200: needs --device cuda, in bfloat16: add --device cuda, and leave out --precision f32`},
		{"plan --model student --output out --card h200 --device cuda --precision f32", 2, `plan: --card h200: needs --device cuda, in bfloat16: add --device cuda, and leave out --precision f32`},
		{"plan --cards --card h200", 2, `plan: --card: not with --cards, which is a table of models and GPUs: leave out one of them`},
	})
}

// The same command line with --model-cost in the place of --device cuda prints the lines that
// the GPU would, and gad plan says what a step would take there.
func TestModelCost(t *testing.T) {
	f := ready(t)
	out, _ := must(t, "bench", "--model-cost", "a100", "--shape", "qwen2.5-0.5b", "--prompts", "4", "--new-tokens", "16", "--json")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Card == nil || r.Card.Name != "a100" || r.Limits.Products != 312e12 || len(r.Stages) != 3 || len(r.Stages[2].Parts) != 6 || len(r.Stages[0].Ops) < 15 || len(r.Ops) < 20 {
		t.Errorf("%s", out)
	}
	plan, _ := must(t, "plan", "--device", "cuda", "--card", "h100", "--model", f.path("student"), "--data", f.path("rows.jsonl"), "--output", filepath.Join(t.TempDir(), "run"), "data.max_prompt_length=64", "data.max_response_length=14")
	for _, want := range []string{"of 80 GB available", "predicted, nothing was measured (H100 SXM 80 GB; doc/gpu/predicted.md says what is assumed)", "rollout", "old_logp", "update_critic", "ref_logp", "update_actor"} {
		if !strings.Contains(plan, want) {
			t.Errorf("gad plan --card: no %q in\n%s", want, plan)
		}
	}
}
