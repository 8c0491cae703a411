package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command that takes a model folder takes a GGUF file of it, and does what it does
// with the folder that gad export --model makes of the file. A run from it: TestRunFromGGUF of
// trainer.
func TestGGUFInPlaceOfAFolder(t *testing.T) {
	linked(t, "student", "train", "train.arrow", "test.jsonl")
	for line, want := range map[string]string{
		"export --model student --output s.gguf --gguf bf16":  "s.gguf: student, GGUF bf16\n",
		"export --run train --output train.gguf --gguf q8_0":  "train.gguf: actor of train/global_step_3, GGUF q8_0\n",
		"export --model student --output hf --dtype bfloat16": "hf: student, bfloat16\n",
	} {
		if printed, _ := does(t, line); printed != want {
			t.Errorf("%s prints %q", line, printed)
		}
	}
	if err := os.RemoveAll("hf"); err != nil {
		t.Fatal(err)
	}
	does(t, "export --model s.gguf --output hf")
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
		file, _ := does(t, strings.ReplaceAll(command, "M", "s.gguf"))
		folder, _ := does(t, strings.ReplaceAll(command, "M", "hf"))
		if file = strings.ReplaceAll(file, "s.gguf", "hf"); file != folder {
			t.Errorf("%s\nof the file   %s\nof the folder %s", command, file, folder)
		}
	}
	does(t, "plan --model s.gguf --data train.arrow data.max_prompt_length=32 data.max_response_length=32")
	does(t, "init --config s.gguf --corpus test.jsonl --output new")
	out, _ := does(t,
		"generate --model s.gguf --data test.jsonl --limit 2 --output a.jsonl --max-new-tokens 4")
	if out == "" {
		t.Error("nothing printed")
	}

	equal := func(folders ...string) {
		t.Helper()
		want := fileText(filepath.Join(folders[0], "model.safetensors"))
		for _, dir := range folders[1:] {
			if want == "" || fileText(filepath.Join(dir, "model.safetensors")) != want {
				t.Errorf("%s has not the weights of %s", dir, folders[0])
			}
		}
	}
	// Adapters stand on the file.
	const ask = " --prompt walk --temperature 0 --max-new-tokens 8"
	var said [3]string
	for i, line := range []string{"generate --model l/global_step_2/actor",
		"generate --model m/global_step_2/actor",
		"generate --model s.gguf --adapter l/global_step_2/actor"} {
		if i == 0 {
			for out, model := range map[string]string{"l": "s.gguf", "m": "hf"} {
				does(t, "sft --model "+model+" --data train.arrow --output "+out+
					" --steps 2 SMALL actor.lora.rank=2 actor.optim.lr=0.01")
			}
		}
		said[i], _ = does(t, line+ask)
	}
	if said[0] != said[1] || said[0] != said[2] {
		t.Errorf("with adapters: %q", said)
	}
	for run, want := range map[string]string{"l": "s.gguf, to be loaded with peft, which cannot read this base (gad export --model writes it as a folder); --merge writes the whole model\n", "m": "hf, to be loaded with peft; --merge writes the whole model\n"} {
		if _, said := does(t, "export --run "+run+" --output adapters-"+run); !strings.HasPrefix(said,
			"gad: note: these are LoRA adapters for ") ||
			!strings.HasSuffix(said, want) {
			t.Errorf("adapters of %s are exported with %q, want %q", run, said, want)
		}
	}
	does(t, "export --run l --output merged --merge --dtype float32")
	does(t, "export --model l/global_step_2/actor --output merged2 --dtype float32")
	does(t, "export --run m --output merged3 --merge --dtype float32")
	equal("merged", "merged2", "merged3")
	// A merged folder, or adapters on their base, become the file that their run becomes.
	for _, kind := range []string{"q8_0", "f16"} {
		name := kind + ".gguf" // in the file as well
		want := ""
		for dir, from := range map[string]string{"of-run": "--run m", "of-folder": "--model merged3",
			"of-adapters": "--model m/global_step_2/actor"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			does(t, "export "+from+" --output "+dir+"/"+name+" --gguf "+kind)
			got := fileText(filepath.Join(dir, name))
			if want == "" {
				want = got
			}
			if got != want || len(want) < 1000 {
				t.Errorf("%s of %s is another file: %d bytes, %d", name, dir, len(got), len(want))
			}
		}
	}
	// An exported folder says the same again as a file.
	does(t, "export --model hf --output again.gguf --gguf bf16")
	does(t, "export --model again.gguf --output hf2")
	equal("hf", "hf2")
}
