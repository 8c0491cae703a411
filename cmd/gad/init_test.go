package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gad init --from: the student has fewer layers and the teacher's own tokenizer, answers,
// and is trained.
func TestInitFrom(t *testing.T) {
	f := ready(t)
	from, half := f.path("sft", "global_step_60", "actor"), filepath.Join(t.TempDir(), "half")
	out, _ := must(t, "init", "--from", from, "--keep-layers", "0", "--output", half)
	if !strings.HasPrefix(out, half+": Qwen2 with ") || !strings.Contains(out, " parameters, 1 of the 2 layers of "+from+", tokenizer of 300 tokens\n") {
		t.Errorf("prints %s", out)
	}
	was, is := tree(t, from), tree(t, half)
	for name := range was {
		if same := is[name] == was[name]; same == (name == "config.json" || name == "model.safetensors") {
			t.Errorf("%s: equal in both folders: %t", name, same)
		}
	}
	must(t, "generate", "--model", half, "--prompt", "Add 1+2", "--max-new-tokens", "4")
	must(t, stage("sft", "--model", half, "--data", f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "run"), "--steps", "1")...)

	all := filepath.Join(t.TempDir(), "all")
	must(t, "init", "--from", from, "--keep-layers", "0-1", "--output", all)
	for name, content := range tree(t, all) {
		if content != was[name] {
			t.Errorf("all layers: %s differs", name)
		}
	}
}

func TestMistakesOfInit(t *testing.T) {
	_, work := linked(t, "student", "warmup", "train", "corpus.txt", "config.json")
	const lora = `{"peft_type": "LORA", "base_model_name_or_path": "../student", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}`
	if err := errors.Join(os.Mkdir("adapter", 0o755), os.WriteFile("adapter/adapter_config.json", []byte(lora), 0o644)); err != nil {
		t.Fatal(err)
	}
	const (
		from = "init --from student --output half --keep-layers "
		rule = ": expected layers such as 0,1,5-9 or 0-1:2; the model has 2, 0 to 1"
	)
	mistaken(t, []string{work}, []mistake{
		{from + "0-28:2", 2, `init: --keep-layers "0-28:2": there is no layer 28` + rule},
		{from + "0,x", 2, `init: --keep-layers "0,x": "x" is no layer number` + rule},
		{from + "1-0", 2, `init: --keep-layers "1-0": "1-0" ends before it begins` + rule},
		{from + "0-1:0", 2, `init: --keep-layers "0-1:0": "0-1:0" has a step of 0` + rule},
		{from + "1:2", 2, `init: --keep-layers "1:2": "1:2" has a step and no range` + rule},
		{from + "0,0-1", 2, `init: --keep-layers "0,0-1": layer 0 is named twice: each of the model's 2 layers is kept once or left out`},
		{"init --from student --output half", 2, `init: --keep-layers is missing: see gad init --help`},
		{"init --keep-layers 0 --output half", 2, `init: --from is missing: see gad init --help`},
		{"init --from student --keep-layers 0", 2, `init: --output is missing: see gad init --help`},
		{from + "0 --config config.json", 2, `init: --config goes with random weights, not with --from: leave one of them out`},
		{from + "0 --corpus corpus.txt", 2, `init: --corpus goes with random weights, not with --from: leave one of them out`},
		{from + "0 --seed 2", 2, `init: --seed goes with random weights, not with --from: leave one of them out`},
		{"init --from student --keep-layers 0 --output warmup", 2, `init: warmup: exists: nothing is overwritten: remove it or give another --output`},
		{"init --from nowhere --keep-layers 0 --output half", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		{"init --from adapter --keep-layers 0 --output half", 2, `init: --from adapter: is a LoRA adapter: merge it into its base first (gad export --merge), and give that folder`},
		{"init --from train/global_step_3/critic --keep-layers 0 --output half", 3, `model: train/global_step_3/critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
	})
}
