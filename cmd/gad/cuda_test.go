//go:build nvidia

package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/internal/compute/cuda"
	"gad/internal/hostile"
)

// needsGPU leaves a test out where there is no GPU.
func needsGPU(t *testing.T) {
	t.Helper()
	be, err := cuda.Open(cuda.Options{})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	be.Close()
}

// Every command that computes, on the GPU and on the CPU, on the same models.
func TestCUDACommands(t *testing.T) {
	needsGPU(t)

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
		a, b := sessiontest.Lines[rowOut](t, gpu), sessiontest.Lines[rowOut](t, cpu)
		gpu, cpu = both("score", "--critic", critic, "--data", rows, "--json")
		c, d := sessiontest.Lines[rowOut](t, gpu), sessiontest.Lines[rowOut](t, cpu)
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
		x, y := sessiontest.Lines[generated](t, gpu), sessiontest.Lines[generated](t, cpu)
		if precision == "f32" && !slices.Equal(x[0].Response, y[0].Response) {
			t.Errorf("greedy answers %v, on the CPU %v", x[0].Response, y[0].Response)
		}
		var figures [2]map[string]any
		if precision != "f32" && !hostile.Long() { // half of this test's time
			continue
		}
		gpu, cpu = both("eval", "--model", actor, "--data", rows, "--json", "--disc-steps", "2")
		for i, text := range []string{gpu, cpu} {
			decode(t, text, &figures[i])
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

// headsOf64 is the configuration of a Llama whose heads have the width of the fast kernels.
const headsOf64 = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":128,"intermediate_size":192,"num_hidden_layers":3,
"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":300,"max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,
"tie_word_embeddings":true,"torch_dtype":"float32","hidden_act":"silu"}`

// A GGUF file of blocks on the GPU, beside the CPU: log-probabilities, answers, the distance of a
// model of half its layers to it, and a step of training; then a study whose model it is, which
// with GAD_LONG comes to the same bits twice.
func TestCUDAFromGGUF(t *testing.T) {
	needsGPU(t)

	f, dir := ready(t), t.TempDir()
	config, model := filepath.Join(dir, "config.json"), filepath.Join(dir, "whole")
	file, half := filepath.Join(dir, "whole.gguf"), filepath.Join(dir, "half")
	put(t, config, headsOf64)
	must(t, "init", "--config", config, "--corpus", f.path("corpus.txt"), "--output", model)
	must(t, "export", "--model", model, "--output", file, "--gguf", "q8_0")
	must(t, "init", "--from", file, "--keep-layers", "0-2:2", "--output", half)
	rows := f.path("test.jsonl")
	type distance struct {
		Reverse *float64 `json:"reverse_kl"`
		Forward *float64 `json:"forward_kl"`
		Fluency *float64 `json:"fluency"`
	}
	for precision, tol := range map[string]float64{"f32": 1e-4, "auto": 0.05} {
		both := func(args ...string) (gpu, cpu string) {
			gpu, _ = must(t, append(args, "--device", "cuda", "--precision", precision)...)
			cpu, _ = must(t, args...)
			return gpu, cpu
		}
		gpu, cpu := both("logprobs", "--model", file, "--data", rows, "--json", "--limit", "6")
		a, b := sessiontest.Lines[rowOut](t, gpu), sessiontest.Lines[rowOut](t, cpu)
		worst, tokens := 0.0, 0
		for i := range a {
			for j, x := range a[i].LogProbs {
				worst, tokens = max(worst, math.Abs(float64(x-b[i].LogProbs[j]))), tokens+1
			}
		}
		if len(a) != 6 || tokens < 40 || worst > tol {
			t.Errorf("%s: log-probabilities of %d rows, %d tokens, differ by %g", precision, len(a),
				tokens, worst)
		}
		gpu, cpu = both("generate", "--model", file, "--prompt", "Add 1+2+3", "--json",
			"--max-new-tokens", "12", "--temperature", "1", "-n", "3")
		answers := func(printed string) []generated { return sessiontest.Lines[generated](t, printed) }
		if x, y := answers(gpu), answers(cpu); precision == "f32" &&
			(len(x) != 3 || !slices.EqualFunc(x, y, func(x, y generated) bool {
				return slices.Equal(x.Response, y.Response)
			})) {
			t.Errorf("sampled %v, on the CPU %v", x, y)
		}
		if precision != "f32" && !hostile.Long() { // the study below evaluates in bfloat16
			continue
		}
		gpu, cpu = both("eval", "--model", half, "--against", file, "--data", rows, "--json",
			"--limit", "6", "--disc-steps", "0", "--temperature", "1", "--max-response-length", "12")
		var x, y distance
		decode(t, gpu, &x)
		decode(t, cpu, &y)
		t.Logf("%s: log-probabilities within %.2g; reverse KL %.5f (CPU %.5f), forward %.5f (%.5f)",
			precision, worst, *x.Reverse, *y.Reverse, *x.Forward, *y.Forward)
		if !(*y.Reverse > 0.001) || precision == "f32" &&
			math.Abs(*x.Reverse-*y.Reverse)+math.Abs(*x.Fluency-*y.Fluency) > tol ||
			math.Abs(*x.Forward-*y.Forward) > tol {
			t.Errorf("%s: half against the whole is %s, on the CPU %s", precision, gpu, cpu)
		}
	}

	text := fmt.Sprintf(`name: gpu
output: out
device: cuda
data: %q
model: %q
seeds: [1]
common: [%s, trainer.save_freq=2]
eval: {data: %q, temperatures: [1], rows: 6, against: %q}
budget: {like: GAD}
arms:
  SeqKD: [{run: sft, steps: fill}]
  GAD: [{run: warmup, steps: 2, critic_warmup: 1}, {run: train, steps: 2}]
`, f.path("train.arrow"), file, strings.Join(small, ", "), rows, file)
	evals := make([]map[string]string, 1)
	if hostile.Long() {
		evals = append(evals, nil)
	}
	for i := range evals {
		folder := t.TempDir()
		spec := filepath.Join(folder, "gpu.yaml")
		put(t, spec, text)
		must(t, "study", spec)
		evals[i] = tree(t, filepath.Join(folder, "out", "evals"))
		delete(evals[i], ".")
		for name, text := range evals[i] {
			_, result, ok := strings.Cut(text, `"result"`)
			if evals[i][name] = result; !ok || !strings.Contains(result, `"reverse_kl"`) {
				t.Errorf("evals/%s: %q", name, text)
			}
		}
		for name, run := range stages(t, folder) {
			raw, err := os.ReadFile(filepath.Join(run, "config.yaml"))
			if err != nil || !strings.Contains(string(raw), "device: cuda\n") {
				t.Errorf("%s: %v: no run on the GPU:\n%s", name, err, raw)
			}
		}
	}
	if last := evals[len(evals)-1]; len(last) != 2 || !maps.Equal(evals[0], last) {
		t.Errorf("studies: %v and %v", evals[0], last)
	}
}
