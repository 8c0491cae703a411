package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/gguf/gguftest"
	"gad/internal/safetensors"
)

// weightsOf are the bytes of each tensor of a folder's weights.
func weightsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	f, err := safetensors.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]string{}
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		out[name] = string(x.DType) + string(x.Data)
	}
	return out
}

// differing are the names of tensors that two folders do not share bit for bit.
func differing(t *testing.T, a, b string) (names []string) {
	t.Helper()
	x, y := weightsOf(t, a), weightsOf(t, b)
	for name := range x {
		if x[name] != y[name] {
			names = append(names, name)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// Every command that takes a model folder takes a GGUF file of it, and does what it does
// with the folder that gad export --model makes of the file.
func TestGGUFInPlaceOfAFolder(t *testing.T) {
	linked(t, "student", "train.arrow", "test.jsonl")
	if printed, _ := must(t, "export", "--model", "student", "--output", "s.gguf", "--gguf",
		"bf16"); !strings.HasSuffix(printed, "s.gguf: student, GGUF bf16\n") {
		t.Errorf("prints %q", printed)
	}
	if printed, _ := must(t, "export", "--model", "s.gguf", "--output",
		"hf"); !strings.HasSuffix(printed, "hf: s.gguf, float32\n") {
		t.Errorf("prints %q", printed)
	}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json",
		"generation_config.json", "model.safetensors"} {
		if _, err := os.Stat(filepath.Join("hf", name)); err != nil {
			t.Error(err)
		}
	}
	// The same text, from both.
	for _, command := range []string{
		"generate --model M --prompt walk --temperature 0 --max-new-tokens 8",
		"logprobs --model M --data test.jsonl --limit 4",
		"data validate --data test.jsonl --model M --json",
		"eval --model M --data test.jsonl --limit 8 --max-response-length 8 --disc-steps 2 --json",
		"eval --model hf --data test.jsonl --limit 8 --max-response-length 8 --disc-steps 2 --disc-from M --json",
	} {
		file, _ := must(t, strings.Fields(strings.ReplaceAll(command, "M", "s.gguf"))...)
		folder, _ := must(t, strings.Fields(strings.ReplaceAll(command, "M", "hf"))...)
		if file = strings.ReplaceAll(file, "s.gguf", "hf"); file != folder {
			t.Errorf("%s\nof the file   %s\nof the folder %s", command, file, folder)
		}
	}
	must(t, "plan", "--model", "s.gguf", "--data", "train.arrow", "data.max_prompt_length=32",
		"data.max_response_length=32")
	must(t, "init", "--config", "s.gguf", "--corpus", "test.jsonl", "--output", "new")
	if out, _ := must(t, "generate", "--model", "s.gguf", "--data", "test.jsonl", "--limit", "2",
		"--output", "a.jsonl", "--max-new-tokens", "4"); out == "" {
		t.Error("nothing printed")
	}

	// A run from the file is the run from the folder, bit for bit, the reference and the
	// discriminator included; its checkpoints are folders, and it goes on without the file.
	run := func(out, model string, steps string) {
		must(t, stage("warmup", "--model", model, "--reward-model", model, "--data", "train.arrow",
			"--output", out, "--steps", steps, "--critic-warmup", "1",
			"trainer.warmup_objective=policy", "actor.use_kl_loss=true")...)
	}
	run("a", "s.gguf", "2")
	run("b", "hf", "2")
	for _, part := range []string{"global_step_2/actor", "global_step_2/critic", "reference"} {
		if names := differing(t, filepath.Join("a", part),
			filepath.Join("b", part)); len(names) > 0 {
			t.Errorf("%s: differ: %v", part, names)
		}
	}
	if err := os.Rename("s.gguf", "away.gguf"); err != nil {
		t.Fatal(err)
	}
	run("a", "s.gguf", "3")
	run("b", "hf", "3")
	if names := differing(t, "a/global_step_3/actor", "b/global_step_3/actor"); len(names) > 0 {
		t.Errorf("resumed: differ: %v", names)
	}
	if err := os.Rename("away.gguf", "s.gguf"); err != nil {
		t.Fatal(err)
	}

	// Adapters stand on the file.
	lora := func(out, model string) {
		must(t, stage("sft", "--model", model, "--data", "train.arrow", "--output", out, "--steps",
			"2", "actor.lora.rank=2", "actor.optim.lr=0.01")...)
	}
	lora("l", "s.gguf")
	lora("m", "hf")
	one, _ := must(t, "generate", "--model", "l/global_step_2/actor", "--prompt", "walk",
		"--temperature", "0", "--max-new-tokens", "8")
	two, _ := must(t, "generate", "--model", "m/global_step_2/actor", "--prompt", "walk",
		"--temperature", "0", "--max-new-tokens", "8")
	beside, _ := must(t, "generate", "--model", "s.gguf", "--adapter", "l/global_step_2/actor",
		"--prompt", "walk", "--temperature", "0", "--max-new-tokens", "8")
	if one != two || one != beside {
		t.Errorf("with adapters: %q, %q, %q", one, two, beside)
	}
	for run, want := range map[string]string{"l": "s.gguf, to be loaded with peft, which cannot read this base (gad export --model writes it as a folder); --merge writes the whole model\n", "m": "hf, to be loaded with peft; --merge writes the whole model\n"} {
		if _, said := must(t, "export", "--run", run, "--output",
			"adapters-"+run); !strings.HasPrefix(said, "gad: note: these are LoRA adapters for ") ||
			!strings.HasSuffix(said, want) {
			t.Errorf("adapters of %s are exported with %q, want %q", run, said, want)
		}
	}
	must(t, "export", "--run", "l", "--output", "merged", "--merge", "--dtype", "float32")
	must(t, "export", "--model", "l/global_step_2/actor", "--output", "merged2", "--dtype",
		"float32")
	must(t, "export", "--run", "m", "--output", "merged3", "--merge", "--dtype", "float32")
	if a, b :=
		differing(t, "merged", "merged2"), differing(t, "merged", "merged3"); len(a)+len(b) > 0 {
		t.Errorf("merged: differ: %v %v", a, b)
	}
	// A merged folder, or adapters on their base, become the file that their run becomes.
	for _, dir := range []string{"of-run", "of-folder", "of-adapters"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"q8_0", "f16"} {
		name := kind + ".gguf" // in the file as well
		must(t, "export", "--run", "m", "--output", "of-run/"+name, "--gguf", kind)
		if printed, _ := must(t, "export", "--model", "merged3", "--output", "of-folder/"+name,
			"--gguf", kind); !strings.HasSuffix(printed, name+": merged3, GGUF "+kind+"\n") {
			t.Errorf("prints %q", printed)
		}
		must(t, "export", "--model", "m/global_step_2/actor", "--output", "of-adapters/"+name,
			"--gguf", kind)
	}
	for _, name := range []string{"q8_0.gguf", "f16.gguf"} {
		want := fileText(filepath.Join("of-run", name))
		for _, dir := range []string{"of-folder", "of-adapters"} {
			if got := fileText(filepath.Join(dir, name)); got != want || len(want) < 1000 {
				t.Errorf("%s of %s is another file: %d bytes, %d of the run", name, dir, len(got),
					len(want))
			}
		}
	}
	// An exported folder says the same again as a file.
	must(t, "export", "--model", "hf", "--output", "again.gguf", "--gguf", "bf16")
	must(t, "export", "--model", "again.gguf", "--output", "hf2")
	if names := differing(t, "hf", "hf2"); len(names) > 0 {
		t.Errorf("again: differ: %v", names)
	}
}

// A GGUF file of a student with GPT-4o's pattern is written, with a note on what llama.cpp cuts
// differently; read back it has the folder's own pattern.
func TestExportGGUFNotesAPattern(t *testing.T) {
	linked(t, "student")
	must(t, "export", "--model", "student", "--output", "hf")
	file := filepath.Join("hf", "tokenizer.json")
	var tok map[string]any
	if err := json.Unmarshal([]byte(fileText(file)), &tok); err != nil {
		t.Fatal(err)
	}
	const word = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	const more, ends = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, `(?i:'s|'t|'re|'ve|'m|'ll|'d)?|`
	tok["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Split", "behavior": "Isolated", "invert": false,
			"pattern": map[string]any{"Regex": word + `*` + more + `+` + ends + word + `+` + more + `*` + ends +
				`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`}},
		map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}}
	b, _ := json.Marshal(tok)
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if printed, _ := must(t, "export", "--model", "hf", "--output", "s.gguf", "--gguf",
		"f16"); strings.Count(printed,
		"GGUF f16; llama.cpp has its own form of the tokenizer's pattern") != 1 {
		t.Errorf("prints %q", printed)
	}
	must(t, "export", "--model", "s.gguf", "--output", "back")
	if got := fileText(filepath.Join("back", "tokenizer.json")); !strings.Contains(got,
		`p{N}{1,3}| ?[^`) {
		t.Errorf("read back, the pattern is lost: %.600s", got)
	}
	if printed, _ := must(t, "export", "--model", "student", "--output", "plain.gguf", "--gguf",
		"f16"); strings.Contains(printed, "pattern") {
		t.Errorf("of another pattern prints %q", printed)
	}
}

// A GGUF file of a run holds the student; what it prints says so.
func TestExportGGUF(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	for kind, fileType := range map[string]uint32{"f16": 1, "bf16": 32, "q8_0": 7} {
		out := filepath.Join(dir, kind+".gguf")
		printed, _ := must(t, "export", "--run", f.path("train"), "--output", out, "--gguf", kind)
		if want := out + ": actor of " + f.path("train", "global_step_3") + ", GGUF " + kind +
			"\n"; !strings.HasSuffix(printed, want) {
			t.Errorf("prints %q, expected %q", printed, want)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		g, err := gguftest.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if g.Pairs["general.file_type"] != fileType || g.Pairs["general.name"] != kind ||
			len(g.Tensors) < 20 {
			t.Errorf("%s: %v, %v, %d tensors", kind, g.Pairs["general.file_type"],
				g.Pairs["general.name"], len(g.Tensors))
		}
	}
}
