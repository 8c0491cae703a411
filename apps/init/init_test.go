package create

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/session"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// A new model with another's tokenizer has its tokens, and weights of the seed; a vocabulary that
// lacks some of them is refused.
func TestWithTokenizer(t *testing.T) {
	s := &session.Session{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, FS: vfs.OS,
		Console: report.NewConsole(&bytes.Buffer{}, false)}
	from, dir := modeltest.Student(t), t.TempDir()
	config := filepath.Join(from, "config.json")
	read := func(out string, seed uint64) string {
		if err := WithTokenizer(s, config, from, out, seed); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	a, b, again := read(filepath.Join(dir, "a"), 1), read(filepath.Join(dir, "b"), 2),
		read(filepath.Join(dir, "again"), 1)
	if a == b || a != again {
		t.Error("the weights are not a function of the seed")
	}
	tok, err := saved.Tokenizer(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	apart, err := saved.CompareTokenizers(tok, from, "--teacher")
	if err != nil || apart != nil {
		t.Errorf("the tokens are not those of the other model: %v, %v", apart, err)
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var shape map[string]any
	if err := json.Unmarshal(raw, &shape); err != nil {
		t.Fatal(err)
	}
	shape["vocab_size"] = 40
	if raw, err = json.Marshal(shape); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WithTokenizer(s, path, from, filepath.Join(dir, "c"), 1); err == nil ||
		!strings.Contains(err.Error(), "vocab_size 40") {
		t.Errorf("%v", err)
	}
}
