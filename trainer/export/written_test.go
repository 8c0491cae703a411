package export

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/gguf/gguftest"
	"gad/internal/vfs"
	"gad/trainer/modeltest"
)

// A GGUF file of each kind says its kind, and its own name as the model's.
func TestGGUFKinds(t *testing.T) {
	student := modeltest.Student(t)
	for kind, fileType := range map[string]uint32{"f16": 1, "bf16": 32, "q8_0": 7} {
		out := filepath.Join(t.TempDir(), "small "+kind+".gguf")
		what, err := ModelGGUF(vfs.OS, student, out, kind)
		if err != nil || what != "GGUF "+kind {
			t.Fatalf("%s: %q, %v", kind, what, err)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		g, err := gguftest.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if g.Pairs["general.file_type"] != fileType || g.Pairs["general.name"] != "small "+kind ||
			len(g.Tensors) < 20 {
			t.Errorf("%s: %v, %v, %d tensors", kind, g.Pairs["general.file_type"],
				g.Pairs["general.name"], len(g.Tensors))
		}
	}
}

// A GGUF file of a student with GPT-4o's pattern is written, with a note on what llama.cpp cuts
// differently; read back it has the folder's own pattern.
func TestGGUFNotesAPattern(t *testing.T) {
	folder, dir := modeltest.Student(t), t.TempDir()
	file := filepath.Join(folder, "tokenizer.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tok map[string]any
	if err := json.Unmarshal(raw, &tok); err != nil {
		t.Fatal(err)
	}
	const word = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	const more, ends = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, `(?i:'s|'t|'re|'ve|'m|'ll|'d)?|`
	tok["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Split", "behavior": "Isolated", "invert": false,
			"pattern": map[string]any{"Regex": word + `*` + more + `+` + ends + word + `+` + more + `*` + ends +
				`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`}},
		map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}}
	if raw, err = json.Marshal(tok); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	out, back := filepath.Join(dir, "s.gguf"), filepath.Join(dir, "back")
	what, err := ModelGGUF(vfs.OS, folder, out, "f16")
	if err != nil || !strings.HasPrefix(what,
		"GGUF f16; llama.cpp has its own form of the tokenizer's pattern") {
		t.Errorf("%q, %v", what, err)
	}
	if _, err := Model(vfs.OS, out, back, "float32"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(back, "tokenizer.json")); err != nil ||
		!strings.Contains(string(got), `p{N}{1,3}| ?[^`) {
		t.Errorf("read back, the pattern is lost: %v, %.600s", err, got)
	}
}
