package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ofFiles is the tokenizer that a GGUF file's values make.
func ofFiles(t *testing.T, g *GGML) *Tokenizer {
	t.Helper()
	files, err := FromGGML(g)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// A vocabulary over characters, read from scores and written as scores again, encodes as before; a
// list of merges that no scores stand for is refused.
func TestGGMLOfCharacters(t *testing.T) {
	for _, prefix := range []bool{false, true} {
		g := NewGGML("llama", "default")
		g.SpacePrefix = prefix
		add := func(token string, kind int32, score float32) {
			g.Tokens, g.Types, g.Scores =
				append(g.Tokens, token), append(g.Types, kind), append(g.Scores, score)
		}
		add("<unk>", GGMLUnknown, 0)
		add("<s>", GGMLControl, 0)
		add("</s>", GGMLControl, 0)
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b), GGMLByte, 0)
		}
		for i, token := range []string{"ab", "▁a", "bc", "▁ab", "abc", "cd", "▁abc", "abcd", "dd",
			"▁▁", "é▁"} {
			add(token, GGMLNormal, float32(-i))
		}
		for i, c := range "▁abcdé" {
			add(string(c), GGMLNormal, float32(-100-i))
		}
		tok := ofFiles(t, g)
		again, err := tok.GGML(len(g.Tokens) + 3)
		if err != nil {
			t.Fatal(err)
		}
		if again.Model != "llama" || again.SpacePrefix != prefix || !again.AddBOS {
			t.Errorf("%+v", again)
		}
		twice := ofFiles(t, again)
		for _, text := range []string{"", "a", " abcd  ab\n\nabc dd", "é é日本語 👩‍👩‍👧 \x00", "abcdd cd",
			"▁ under", "<0x41> A", strings.Repeat("abc ", 50)} {
			if got, want := twice.Encode(text), tok.Encode(text); !slices.Equal(got, want) {
				t.Errorf("%q: %v, want %v", text, got, want)
			}
		}
	}
	if _, err := load(t, "gemma").GGML(2000); err == nil || !strings.Contains(err.Error(),
		"has merges that no scores stand for: 1164 pairs join to tokens, and 1001 merges are listed") {
		t.Errorf("a list that is not whole: %v", err)
	}
}
