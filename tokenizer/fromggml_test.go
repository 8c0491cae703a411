package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGGMLRoundTrip writes tokenizers as GGUF has them and reads them back.
func TestGGMLRoundTrip(t *testing.T) {
	for _, shape := range []string{"gpt2", "llama3"} {
		tok, e := readExpected(t, shape)
		g, err := tok.GGML(tok.Size() + 3)
		if err != nil {
			t.Fatal(err)
		}
		files, err := FromGGML(g)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parse(files)
		if err != nil {
			t.Fatal(err)
		}
		if back.Size() != tok.Size() || !slices.Equal(back.EOS(), tok.EOS()) ||
			back.Pad() != tok.Pad() || back.ChatTemplate() != tok.ChatTemplate() {
			t.Errorf("%s: %d tokens, ends %v, padding %d; want %d, %v, %d", shape, back.Size(),
				back.EOS(), back.Pad(), tok.Size(), tok.EOS(), tok.Pad())
		}
		for _, c := range e.Texts {
			if got, want :=
				back.EncodeSpecial(c.Text), tok.EncodeSpecial(c.Text); !slices.Equal(got, want) {
				t.Errorf("%s: EncodeSpecial(%+q) = %v, want %v", shape, c.Text, got, want)
			}
			if got, want :=
				back.EncodeText(c.Text), tok.EncodeText(c.Text); !slices.Equal(got, want) {
				t.Errorf("%s: EncodeText(%+q) = %v, want %v", shape, c.Text, got, want)
			}
		}
		for _, c := range e.Decode {
			if got := back.Decode(c.IDs, c.Skip); got != c.Text {
				t.Errorf("%s: Decode(%v) = %+q, want %+q", shape, c.IDs, got, c.Text)
			}
		}
	}
}

// TestSentencePiece reads SentencePiece models as GGUF has them (tokens, scores and types)
// and wants the ids and texts of the sentencepiece library.
func TestSentencePiece(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(testdata, "sentencepiece.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		WrittenBy string   `json:"written_by"`
		Texts     []string `json:"texts"`
		Models    []struct {
			Prefix bool      `json:"prefix"`
			Tokens []string  `json:"tokens"`
			Scores []float32 `json:"scores"`
			Types  []int32   `json:"types"`
			IDs    [][]int32 `json:"ids"`
			Decode []string  `json:"decode"`
		} `json:"models"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Models) != 2 || len(f.Texts) < 100 {
		t.Fatalf("%d models, %d texts in the fixture", len(f.Models), len(f.Texts))
	}
	for i, m := range f.Models {
		g := NewGGML("llama", "default")
		g.Tokens, g.Scores, g.Types, g.SpacePrefix = m.Tokens, m.Scores, m.Types, m.Prefix
		files, err := FromGGML(g)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := parse(files)
		if err != nil {
			t.Fatal(err)
		}
		for k, text := range f.Texts {
			got := tok.EncodeText(text)
			if !slices.Equal(got, m.IDs[k]) {
				t.Errorf("model %d (%s): EncodeText(%+q):\n got %v\nwant %v", i, f.WrittenBy, text,
					got, m.IDs[k])
			}
			if got := tok.Decode(m.IDs[k], false); got != m.Decode[k] {
				t.Errorf("model %d: Decode(%v) = %+q, want %+q", i, m.IDs[k], got, m.Decode[k])
			}
			for _, id := range got {
				if tok.Special(id) && id != g.Unknown {
					t.Errorf("model %d: EncodeText(%+q) makes the control token %d", i, text, id)
				}
			}
		}
		if got := tok.EncodeSpecial("a"); got[0] != 1 {
			t.Errorf("model %d: EncodeSpecial begins with %d, not with BOS", i, got[0])
		}
	}
}

func TestFromGGMLRefused(t *testing.T) {
	good := func() *GGML {
		g := NewGGML("gpt2", "gpt-2")
		for _, r := range byteToRune {
			g.Tokens = append(g.Tokens, string(r))
		}
		g.Tokens = append(g.Tokens, "ab", "<end>")
		g.Merges, g.EOS = []string{"a b"}, 257
		return g
	}
	if files, err := FromGGML(good()); err != nil {
		t.Fatal(err)
	} else if tok, err := parse(files); err != nil ||
		!slices.Equal(tok.Encode("abc<end>"), []int32{256, 'c', 257}) {
		t.Fatal(tok, err)
	}
	for want, spoil := range map[string]func(g *GGML){
		`tokenizer: GGUF: tokenizer.ggml.model: "bert": is no byte-pair encoding: use a model with gpt2, llama or gemma4 here`: func(g *GGML) { g.Model = "bert" },
		`"t5": is no`:   func(g *GGML) { g.Model = "t5" },
		`"rwkv": is no`: func(g *GGML) { g.Model = "rwkv" },
		`"new": is not`: func(g *GGML) { g.Model = "new" },
		`tokenizer.ggml.pre: "kimi-k2": this pre-tokenizer is not known: use the model's Hugging Face folder`: func(g *GGML) { g.Pre = "kimi-k2" },
		`no tokens`:                  func(g *GGML) { g.Tokens = nil },
		`1 types of 258`:             func(g *GGML) { g.Types = []int32{1} },
		`eos_token_id: 258: outside`: func(g *GGML) { g.EOS = 258 },
		`bos_token_id: -2: outside`:  func(g *GGML) { g.BOS = -2 },
		`no end token here`:          func(g *GGML) { g.EOS = -1 },
		`token 256, "\xff": is not`:  func(g *GGML) { g.Tokens[256] = "\xff" },
		`tokens 97 and 256 are both`: func(g *GGML) { g.Tokens[256] = "a" },
		`no merges`:                  func(g *GGML) { g.Merges = nil },
		`merge 0, "ab": must name`:   func(g *GGML) { g.Merges = []string{"ab"} },
		`merge 0, "": must name`:     func(g *GGML) { g.Merges = []string{""} },
		`merge 0, "a c": a part or`:  func(g *GGML) { g.Merges = []string{"a c"} },
		`0 scores of 258 tokens`:     func(g *GGML) { g.Model = "llama" },
	} {
		g := good()
		spoil(g)
		if _, err := FromGGML(g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %s", err, want)
		}
	}
}

// TestGGMLPreTokenizers reads a vocabulary with each of the pre-tokenizers, those that give the
// same files once.
func TestGGMLPreTokenizers(t *testing.T) {
	t.Parallel()
	read := map[string]bool{}
	for i, name := range slices.Sorted(maps.Keys(ggmlPreTokenizers)) {
		if testing.Short() && i%4 != 0 {
			continue
		}
		g := NewGGML("gpt2", name)
		for _, r := range byteToRune {
			g.Tokens = append(g.Tokens, string(r))
		}
		g.Tokens = append(g.Tokens, "ab", "<end>")
		g.Merges, g.EOS = []string{"a b"}, 257
		if name == "sarvam-moe" { // over characters
			g.Tokens = append(g.Tokens, "▁")
		}
		files, err := FromGGML(g)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := fmt.Sprintf("%s", files)
		if read[all] {
			continue
		}
		read[all] = true
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		const text = "ab don't 12345 ab!! 日本\n\n ab"
		if got := tok.Encode(text); name != "sarvam-moe" && tok.Decode(got, false) != text ||
			!slices.Contains(got, 256) {
			t.Errorf("%s: %v is %q", name, got, tok.Decode(got, false))
		}
	}
}

// TestGGMLControl holds that no merge of a GGUF file writes a control token.
func TestGGMLControl(t *testing.T) {
	g := NewGGML("llama", "default")
	g.Tokens = []string{"<unk>", "<s>", "</s>", "<", "s", ">", "<s", "s>", "▁", "/"}
	g.Types = []int32{GGMLUnknown, GGMLControl, GGMLControl, 1, 1, 1, 1, 1, 1, 1}
	g.Scores = make([]float32, len(g.Tokens))
	files, err := FromGGML(g)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := parse(files)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.EncodeText("<s>x"), []int32{8, 6, 5, 0}; !slices.Equal(got, want) {
		t.Errorf("EncodeText = %v, want %v", got, want)
	}
	if got, want := tok.Encode("<s>x"), []int32{1, 8, 0}; !slices.Equal(got, want) {
		t.Errorf("Encode = %v, want %v", got, want)
	}
}
