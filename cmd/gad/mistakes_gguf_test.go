package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/gguf/gguftest"
)

// Mistakes with gad export --gguf.
func TestMistakesOfGGUF(t *testing.T) {
	f, work := linked(t, "warmup", "sft")
	if err := os.WriteFile("there.gguf", []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	mistaken(t, []string{work, f.path("sft"), f.path("warmup")}, []mistake{
		{"export --run sft --output s.gguf --gguf q4_0", 2, `configuration: export: --gguf "q4_0": must be f16, bf16 or q8_0`},
		{"export --run sft --output s.gguf --gguf=", 2, `configuration: export: --gguf "": must be f16, bf16 or q8_0`},
		{"export --run sft --output student --gguf f16", 2, `configuration: export: --output student: with --gguf one file is written: give a name that ends in .gguf`},
		{"export --run sft --output s.gguf --gguf f16 --dtype float16", 2, `export: --dtype float16 with --gguf f16: the type of a GGUF file is --gguf's: leave out --dtype`},
		{"export --run warmup --output s.gguf --gguf f16 --part critic", 2, `export: --part critic with --gguf: llama.cpp has no use for a discriminator: leave out --gguf`},
		{"export --run sft --output there.gguf --gguf f16", 2, `checkpoint: there.gguf: already exists: choose another file, or remove this one`},
		{"export --run nowhere --output s.gguf --gguf f16", 3, `checkpoint: nowhere: no checkpoint, as there is no such folder: give a run folder or one of its global_step_N folders`},
		{"export --run sft --output there.gguf/s.gguf --gguf f16", 2, `checkpoint: there.gguf/s.gguf: cannot be written: choose another path: stat there.gguf/s.gguf: not a directory`},
	})
}

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
