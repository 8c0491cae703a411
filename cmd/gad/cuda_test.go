//go:build nvidia

package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cuda"
)

// Every command that computes, on the GPU and on the CPU, on the same models.
func TestCUDACommands(t *testing.T) {
	be, err := cuda.Open(cuda.Options{})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	be.Close()

	f := ready(t)
	actor, critic, rows :=
		f.path("train", "global_step_3", "actor"), f.path("train", "global_step_3", "critic"),
		f.path("test.jsonl")
	for precision, tol := range map[string]float64{"f32": 1e-4, "auto": 0.1} {
		both := func(args ...string) (gpu, cpu string) {
			gpu, _ = must(t, append(args, "--device", "cuda", "--precision", precision)...)
			cpu, _ = must(t, args...)
			return gpu, cpu
		}
		gpu, cpu := both("logprobs", "--model", actor, "--data", rows, "--json")
		a, b := objects[rowOut](t, gpu), objects[rowOut](t, cpu)
		gpu, cpu = both("score", "--critic", critic, "--data", rows, "--json")
		c, d := objects[rowOut](t, gpu), objects[rowOut](t, cpu)
		if len(a) != len(b) || len(c) != len(d) || len(a) == 0 || len(c) == 0 {
			t.Fatalf("%s: %d, %d, %d and %d rows", precision, len(a), len(b), len(c), len(d))
		}
		worst := 0.0
		for i := range a {
			if !slices.Equal(a[i].Response, b[i].Response) ||
				len(a[i].LogProbs) != len(b[i].LogProbs) {
				t.Fatalf("%s: row %d differs in its tokens", precision, i)
			}
			for j := range a[i].LogProbs {
				worst = max(worst, math.Abs(float64(a[i].LogProbs[j]-b[i].LogProbs[j])))
			}
			worst = max(worst, math.Abs(float64(c[i].Score-d[i].Score)))
		}
		t.Logf("%s: log-probabilities and scores within %.2g", precision, worst)
		if worst > tol {
			t.Errorf("%s: log-probabilities or scores differ by %g", precision, worst)
		}
		gpu, cpu = both("generate", "--model", actor, "--prompt", "Add 1+2+3", "--json",
			"--max-new-tokens", "10", "--temperature", "0")
		x, y := objects[generated](t, gpu), objects[generated](t, cpu)
		if precision == "f32" && !slices.Equal(x[0].Response, y[0].Response) {
			t.Errorf("greedy answers %v, on the CPU %v", x[0].Response, y[0].Response)
		}
		var figures [2]map[string]any
		gpu, cpu = both("eval", "--model", actor, "--data", rows, "--json", "--disc-steps", "2")
		for i, text := range []string{gpu, cpu} {
			if err := json.Unmarshal([]byte(text), &figures[i]); err != nil {
				t.Fatal(err)
			}
		}
		if len(figures[0]) != len(figures[1]) || len(figures[0]) == 0 {
			t.Errorf("%s: eval gives %v, on the CPU %v", precision, figures[0], figures[1])
		}
	}
	printed, _ := must(t, stage("plan", "--model", f.path("student"), "--data",
		f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "run"), "--device",
		"cuda")...)
	for _, want := range []string{"CUDA context and libraries", "available", "time of a step",
		"cuda/bf16"} {
		if !strings.Contains(printed, want) {
			t.Errorf("the plan does not say %q:\n%s", want, printed)
		}
	}
}
