package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/gguf"
	"gad/internal/gguf/gguftest"
)

// Mistakes with gad export --gguf.
func TestMistakesOfGGUF(t *testing.T) {
	f, work := linked(t, "warmup", "sft")
	if err := os.WriteFile("there.gguf", []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	mistaken(t, []string{work, f.path("sft"), f.path("warmup")}, []mistake{
		{"export --run sft --output s.gguf --gguf q4_0", 2, `export: --gguf "q4_0": must be f16, bf16 or q8_0`},
		{"export --run sft --output s.gguf --gguf=", 2, `export: --gguf "": must be f16, bf16 or q8_0`},
		{"export --run sft --output student --gguf f16", 2, `export: --output student: with --gguf one file is written: give a name that ends in .gguf`},
		{"export --run sft --output s.gguf --gguf f16 --dtype float16", 2, `export: --dtype float16 with --gguf f16: the type of a GGUF file is --gguf's: leave out --dtype`},
		{"export --run warmup --output s.gguf --gguf f16 --part critic", 2, `export: --part critic with --gguf: llama.cpp has no use for a discriminator: leave out --gguf`},
		{"export --run sft --output there.gguf --gguf f16", 2, `checkpoint: there.gguf: already exists: choose another file, or remove this one`},
		{"export --run nowhere --output s.gguf --gguf f16", 3, `checkpoint: nowhere: no checkpoint, as there is no such folder: give a run folder or one of its global_step_N folders`},
		{"export --run sft --output there.gguf/s.gguf --gguf f16", 2, `checkpoint: there.gguf/s.gguf: cannot be written: choose another path: stat there.gguf/s.gguf: not a directory`},
	})
}

// Mistakes with GGUF files as models, and with gad export --model.
func TestMistakesWithGGUFModels(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	if err := os.Symlink(f.path("student"), "student"); err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	file := func(pairs ...gguf.Pair) []byte {
		var b bytes.Buffer
		if err := (gguf.File{Pairs: pairs}).Write(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	arch := func(name string) gguf.Pair { return gguf.Pair{Key: "general.architecture", Value: name} }
	good := file(arch("llama"))
	big := bytes.Clone(good)
	copy(big[4:], "\x00\x00\x00\x03")
	old := bytes.Clone(good)
	old[4] = 1
	write("mamba.gguf", file(arch("mamba")))
	write("empty.gguf", file(arch("llama")))
	write("part.gguf", file(arch("llama"), gguf.Pair{Key: "split.count", Value: uint32(3)}))
	write("lora.gguf", file(arch("llama"), gguf.Pair{Key: "general.type", Value: "adapter"}))
	write("big.gguf", big)
	write("old.gguf", old)
	write("page.gguf", []byte("<!DOCTYPE html><html><body>"))
	write("cut.gguf", good[:len(good)-30])
	write("repo/a.gguf", good)
	write("repo/b.gguf", good)
	write("there/x", nil)
	mistaken(t, []string{work}, []mistake{
		{"plan --model mamba.gguf", 3, `model: mamba.gguf: key "general.architecture": "mamba": not supported: use a model of architecture ` + ggufArchitectures},
		{"plan --model empty.gguf", 3, `model: empty.gguf: tensor "token_embd.weight": is missing, or no matrix: not a whole model`},
		{"plan --model part.gguf", 3, `model: part.gguf: key "split.count": is one of 3 parts: not supported: join them (llama-gguf-split --merge) or get the whole file`},
		{"plan --model lora.gguf", 3, `model: lora.gguf: key "general.type": "adapter": not supported: give the file of the model itself`},
		{"plan --model big.gguf", 3, `model: gguf: big.gguf: offset 4: version: 50331648, which is 3 in the other byte order: a big-endian file: not supported: get the little-endian one`},
		{"plan --model old.gguf", 3, `model: gguf: old.gguf: offset 4: version: 1: not supported: convert the file with a later llama.cpp`},
		{"plan --model page.gguf", 3, `model: gguf: page.gguf: offset 0: magic: "<!DO": not a GGUF file, which begins with "GGUF"`},
		{"plan --model cut.gguf", 3, `model: gguf: cut.gguf: offset 56: key "general.architecture": 5, for which the 2 bytes that remain are too few: is the file cut short?`},
		{"generate --model repo --prompt x", 3, `model: repo: has no config.json, but GGUF files: give one of them: repo/a.gguf`},
		{"data validate --model empty.gguf --data " + f.path("test.jsonl"), 3, `tokenizer: empty.gguf: key "tokenizer.ggml.model": is missing: the file has no tokenizer: use a file with one`},
		{"logprobs --model empty.gguf --data " + f.path("test.jsonl"), 3, `tokenizer: empty.gguf: key "tokenizer.ggml.model": is missing: the file has no tokenizer: use a file with one`},
		{"score --critic empty.gguf --data " + f.path("test.jsonl"), 3, `model: empty.gguf: tensor "token_embd.weight": is missing, or no matrix: not a whole model`},

		{"export --output out", 2, `export: --run is missing: see gad export --help`},
		{"export --model student", 2, `export: --output is missing: see gad export --help`},
		{"export --model student --run student --output out", 2, `export: --run and --model: give one of them`},
		{"export --model student --part critic --output out", 2, `export: --part critic with --model: is a part of a run: leave it out`},
		{"export --model student --merge --output out", 2, `export: --merge with --model: adapters are added to their base in any case: leave it out`},
		{"export --model nowhere --output out", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		{"export --model student --output out --dtype int8", 2, `export: dtype "int8": must be base, float32, bfloat16 or float16`},
		{"export --model student --output there", 2, `checkpoint: there: already exists: choose another folder, or remove this one`},
		{"export --model student --output out --gguf q4_0", 2, `export: --gguf "q4_0": must be f16, bf16 or q8_0`},
		{"export --model student --output out --gguf f16", 2, `export: --output out: with --gguf one file is written: give a name that ends in .gguf`},
		{"export --model student --output m.gguf --gguf f16 --dtype float16", 2, `export: --dtype float16 with --gguf f16: the type of a GGUF file is --gguf's: leave out --dtype`},
		{"export --model mamba.gguf --output out", 3, `model: mamba.gguf: key "general.architecture": "mamba": not supported: use a model of architecture ` + ggufArchitectures},
	})
}

// ggufArchitectures are those that are read.
const ggufArchitectures = "gemma3, granite, llama, olmo2, qwen2, qwen3 or smollm3"

// A GGUF file of a run holds the student; what it prints says so.
func TestExportGGUF(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	for kind, fileType := range map[string]uint32{"f16": 1, "bf16": 32, "q8_0": 7} {
		out := filepath.Join(dir, kind+".gguf")
		printed, _ := must(t, "export", "--run", f.path("train"), "--output", out, "--gguf", kind)
		if want := out + ": actor of " + f.path("train", "global_step_3") + ", GGUF " + kind + "\n"; !strings.HasSuffix(printed, want) {
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
		if g.Pairs["general.file_type"] != fileType || g.Pairs["general.name"] != kind || len(g.Tensors) < 20 {
			t.Errorf("%s: %v, %v, %d tensors", kind, g.Pairs["general.file_type"], g.Pairs["general.name"], len(g.Tensors))
		}
	}
}
