package main

import (
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
	if !strings.HasPrefix(out, half+": Qwen2 with ") ||
		!strings.Contains(out,
			" parameters, 1 of the 2 layers of "+from+", tokenizer of 300 tokens\n") {
		t.Errorf("prints %s", out)
	}
	was, is := tree(t, from), tree(t, half)
	for name := range was {
		if same := is[name] == was[name]; same == (name == "config.json" ||
			name == "model.safetensors") {
			t.Errorf("%s: equal in both folders: %t", name, same)
		}
	}
	must(t, "generate", "--model", half, "--prompt", "Add 1+2", "--max-new-tokens", "4")
	must(t, stage("sft", "--model", half, "--data", f.path("train.arrow"), "--output",
		filepath.Join(t.TempDir(), "run"), "--steps", "1")...)

	all := filepath.Join(t.TempDir(), "all")
	must(t, "init", "--from", from, "--keep-layers", "0-1", "--output", all)
	for name, content := range tree(t, all) {
		if content != was[name] {
			t.Errorf("all layers: %s differs", name)
		}
	}
}
