package tokenizer

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/gguf"
	"gad/internal/hostile"
)

// ggufOf is a GGUF file of a tokenizer, without a model.
func ggufOf(t *testing.T, tok *Tokenizer, more ...gguf.Pair) []byte {
	t.Helper()
	g, err := tok.GGML(tok.Size())
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string, v any) gguf.Pair {
		return gguf.Pair{Key: "tokenizer.ggml." + name,
			Value: v}
	}
	pairs := append([]gguf.Pair{key("model", g.Model), key("pre", g.Pre), key("tokens", g.Tokens),
		key("token_type", g.Types), key("merges", g.Merges),
		key("eos_token_id", uint32(g.EOS)), key("padding_token_id", uint32(g.Pad)),
		key("eos_token_ids", g.Ends), key("add_bos_token", g.AddBOS),
		key("unknown_token_id", uint32(0xffffffff)), // none
	}, more...)
	if g.BOS >= 0 {
		pairs = append(pairs, key("bos_token_id", uint32(g.BOS)))
	}
	if g.ChatTemplate != "" {
		pairs = append(pairs, gguf.Pair{Key: "tokenizer.chat_template", Value: g.ChatTemplate})
	}
	var b bytes.Buffer
	if err := (gguf.File{Pairs: pairs}).Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A tokenizer that was written to a GGUF file is read from it: the same tokens of the same
// texts, the same ends, the same chats.
func TestLoadGGUF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.gguf")
	for _, name := range []string{"llama3", "gpt2"} {
		want, err := Load(filepath.Join("..", "testdata", "tokenizer", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, ggufOf(t, want), 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Size() != want.Size() || !slices.Equal(got.EOS(), want.EOS()) ||
			got.EndOfTurn() != want.EndOfTurn() {
			t.Errorf("%s: %d tokens, ends %v, turn %d; want %d, %v, %d", name, got.Size(),
				got.EOS(), got.EndOfTurn(), want.Size(), want.EOS(), want.EndOfTurn())
		}
		for _, text := range []string{"", "Hello, world!", "  two  blanks\n\n\t", "1234567 x y",
			"naïve Ünïcode 中文 😀", "don't WE'LL", "<|im_end|><|endoftext|>"} {
			for _, of := range []func(*Tokenizer, string) []int32{(*Tokenizer).Encode,
				(*Tokenizer).EncodeSpecial, (*Tokenizer).EncodeText} {
				if a, b := of(got, text), of(want, text); !slices.Equal(a, b) {
					t.Errorf("%s: %q is %v, want %v", name, text, a, b)
				}
			}
		}
		if chat := []Message{{Role: "user", Content: "Hi"}}; want.ChatTemplate() != "" {
			a, err := got.ChatPrompt(chat)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := want.ChatPrompt(chat); err != nil || !slices.Equal(a, b) {
				t.Errorf("%s: chat %v, want %v, %v", name, a, b, err)
			}
		}
	}
}

// TestToolTemplateGGUF: llama.cpp renders chats with tools by a template of its own key.
func TestToolTemplateGGUF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.gguf")
	want, err := Load(filepath.Join("..", "testdata", "tokenizer", "llama3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, ggufOf(t, want, gguf.Pair{Key: "tokenizer.chat_template.tool_use",
		Value: "{{ tools | length }} tools<|eot_id|>"}), 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	chat := Chat{Messages: []Message{{Role: "user", Content: "Hi"}}, Tools: `[{"name": "f"}]`}
	if text, err := got.Render(chat, true); err != nil || text != "1 tools<|eot_id|>" {
		t.Errorf("Render = %q, %v", text, err)
	}
	if g, err := got.GGML(got.Size()); err != nil || g.ToolTemplate == "" ||
		g.ChatTemplate != want.ChatTemplate() {
		t.Errorf("written: %+v, %v", g, err)
	}
}

// What a file says wrongly of its tokenizer is named.
func TestRefusedGGUF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.gguf")
	for _, c := range []struct {
		pairs []gguf.Pair
		want  string
	}{
		{nil, `key "tokenizer.ggml.model": is missing: the file has no tokenizer: use a file with one`},
		{[]gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}}, `key "tokenizer.ggml.tokens": is missing or empty: the file has no tokenizer: use a file with one`},
		{[]gguf.Pair{{Key: "tokenizer.ggml.model", Value: uint32(1)}}, `offset 56: key "tokenizer.ggml.model": a value of type uint32: expected a string`},
		{[]gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.eos_token_id", Value: uint64(1 << 40)}}, `key "tokenizer.ggml.eos_token_id": 1099511627776: expected -1 to 2147483647`},
		{[]gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.tokens", Value: []int32{1}}}, `offset 113: key "tokenizer.ggml.tokens": a value of type array of 1 int32: expected an array of strings`},
		{[]gguf.Pair{{Key: "tokenizer.ggml.model", Value: "bert"}, {Key: "tokenizer.ggml.tokens", Value: []string{"a"}}}, `tokenizer.ggml.model: "bert": is no byte-pair encoding: use a model with gpt2, llama or gemma4 here`},
	} {
		var b bytes.Buffer
		if err := (gguf.File{Pairs: c.pairs}).Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || err.Error() != "tokenizer: "+path+": "+c.want {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
}

// Damaged files are refused, or read as a tokenizer that encodes and decodes.
func TestHostileGGUF(t *testing.T) {
	tok, err := Load(filepath.Join("..", "testdata", "tokenizer", "gpt2"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "t.gguf")
	hostile.Format{
		Name:  "tokenizer of a GGUF file",
		Small: ggufOf(t, tok),
		Words: []string{"tokenizer.ggml.tokens", "gpt2", "llama",
			"\x00\x00\x00\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\xff",
			"\x01\x00\x00\x00"},
		Prefix: "tokenizer: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(path, text, 0o666); err != nil {
				return err
			}
			tok, err := Load(path)
			if err != nil {
				return err
			}
			for _, id := range tok.Encode("a text, 12") {
				if id < 0 || int(id) >= tok.Size() {
					t.Errorf("id %d of %d", id, tok.Size())
				}
			}
			return nil
		},
	}.Try(t)
}
