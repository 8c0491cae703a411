package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type generated struct {
	Sample    int       `json:"sample"`
	Text      string    `json:"text"`
	Prompt    []int32   `json:"prompt_ids"`
	Response  []int32   `json:"response_ids"`
	LogProbs  []float32 `json:"logprobs"`
	Truncated bool      `json:"truncated"`
}

type rowOut struct {
	Row       int       `json:"row"`
	Prompt    []int32   `json:"prompt_ids"`
	Response  []int32   `json:"response_ids"`
	LogProbs  []float32 `json:"logprobs"`
	Score     float32   `json:"score"`
	Text      string    `json:"text"`
	Truncated bool      `json:"truncated"`
}

// Export gives the student as it was stored before training, or in the dtype
// that is asked for; the folder is complete and loads.
func TestExport(t *testing.T) {
	f := ready(t)
	sizes := map[string]int64{}
	for _, dtype := range []string{"float32", "bfloat16"} {
		out := filepath.Join(t.TempDir(), dtype)
		printed, _ := must(t, "export", "--run", f.path("train"), "--output", out, "--dtype", dtype)
		if !strings.Contains(printed, "actor of "+f.path("train", "global_step_3")+", "+dtype) {
			t.Errorf("prints %q", printed)
		}
		info, err := os.Stat(filepath.Join(out, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		sizes[dtype] = info.Size()
		config, err := os.ReadFile(filepath.Join(out, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(config), `"`+dtype+`"`) {
			t.Errorf("config.json does not say %s:\n%s", dtype, config)
		}
		must(t, "generate", "--model", out, "--prompt", "Add 1+2+3", "--max-new-tokens", "2")
	}
	if b, w := sizes["bfloat16"], sizes["float32"]; b > 6*w/10 {
		t.Errorf("bfloat16 takes %d bytes, float32 %d", b, w)
	}
	// What was bfloat16 before training is again, through the stages between.
	base := filepath.Join(t.TempDir(), "base")
	must(t, "export", "--run", f.path("train"), "--output", base, "--dtype", "bfloat16")
	sft, warmup := filepath.Join(t.TempDir(), "sft"), filepath.Join(t.TempDir(), "warmup")
	must(t, stage("sft", "--model", base, "--data", f.path("train.arrow"), "--output", sft,
		"--steps", "1")...)
	must(t, stage("warmup", "--model", filepath.Join(sft, "global_step_1", "actor"), "--data",
		f.path("train.arrow"), "--output", warmup, "--steps", "1")...)
	for _, run := range []string{sft, warmup} {
		printed, _ := must(t, "export", "--run", run, "--output", filepath.Join(t.TempDir(), "out"))
		if !strings.HasSuffix(printed, ", bfloat16\n") {
			t.Errorf("export of %s in the base's dtype prints %q", run, printed)
		}
	}
	critic := filepath.Join(t.TempDir(), "critic")
	must(t, "export", "--run", f.path("train"), "--part", "critic", "--output", critic)
	must(t, "score", "--critic", critic, "--data", f.path("test.jsonl"), "--limit", "1")
}
