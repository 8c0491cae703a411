package main

import (
	"strings"
	"testing"
)

// gad init --from: the student has fewer layers and the teacher's own tokenizer, answers,
// and is trained.
func TestInitFrom(t *testing.T) {
	linked(t, "sft", "train.arrow")
	const from = "sft/global_step_60/actor"
	out, _ := does(t, "init --from "+from+" --keep-layers 0 --output half")
	if !strings.HasPrefix(out, "half: Qwen2 with ") || !strings.Contains(out,
		" parameters, 1 of the 2 layers of "+from+", tokenizer of 300 tokens\n") {
		t.Errorf("prints %s", out)
	}
	does(t, "init --from "+from+" --keep-layers 0-1 --output all")
	was, is, all := tree(t, from), tree(t, "half"), tree(t, "all")
	for name := range was {
		if same := is[name] == was[name]; same == (name == "config.json" ||
			name == "model.safetensors") || all[name] != was[name] {
			t.Errorf("%s: equal in half: %t, in all: %t", name, same, all[name] == was[name])
		}
	}
	does(t, "generate --model half --prompt Add --max-new-tokens 4")
	does(t, "sft --model half --data train.arrow --output run --steps 1 SMALL")
}
