package tokenizer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// readGGML reads the tokenizer of a GGUF file: the metadata alone, and no more of the
// format than llama.cpp's vocabularies have.
func readGGML(t testing.TB, path string) *GGML {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(data)
	number := func(n int) uint64 {
		var b [8]byte
		if _, err := io.ReadFull(r, b[:n]); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return binary.LittleEndian.Uint64(b[:])
	}
	text := func() string {
		b := make([]byte, number(8))
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(b)
	}
	var value func(kind uint64) any
	value = func(kind uint64) any {
		switch kind {
		case 0, 1, 7:
			return int64(number(1))
		case 2, 3:
			return int64(number(2))
		case 4, 5:
			return int64(int32(number(4)))
		case 6:
			return math.Float32frombits(uint32(number(4)))
		case 8:
			return text()
		case 9:
			of, n := number(4), number(8)
			list := make([]any, n)
			for i := range list {
				list[i] = value(of)
			}
			return list
		case 10, 11, 12:
			return int64(number(8))
		}
		t.Fatalf("%s: a value of type %d", path, kind)
		return nil
	}
	if magic := number(4); magic != 0x46554747 {
		t.Fatalf("%s: no GGUF file", path)
	}
	number(4)
	number(8)
	keys := map[string]any{}
	for range number(8) {
		key := text()
		keys[key] = value(number(4))
	}
	name := func(key string) string { s, _ := keys[key].(string); return s }
	g := NewGGML(name("tokenizer.ggml.model"), name("tokenizer.ggml.pre"))
	g.ChatTemplate = name("tokenizer.chat_template")
	for key, to := range map[string]*int32{"bos": &g.BOS, "eos": &g.EOS, "eot": &g.EOT,
		"eom": &g.EOM, "unknown": &g.Unknown, "padding": &g.Pad} {
		if id, ok := keys["tokenizer.ggml."+key+"_token_id"].(int64); ok {
			*to = int32(id)
		}
	}
	for key, to := range map[string]*bool{"add_bos_token": &g.AddBOS, "add_eos_token": &g.AddEOS,
		"add_space_prefix": &g.SpacePrefix} {
		if v, ok := keys["tokenizer.ggml."+key].(int64); ok {
			*to = v != 0
		}
	}
	list := func(key string, f func(v any)) {
		l, _ := keys["tokenizer.ggml."+key].([]any)
		for _, v := range l {
			f(v)
		}
	}
	list("tokens", func(v any) { g.Tokens = append(g.Tokens, v.(string)) })
	list("merges", func(v any) { g.Merges = append(g.Merges, v.(string)) })
	list("token_type", func(v any) { g.Types = append(g.Types, int32(v.(int64))) })
	if g.Model == "llama" {
		list("scores", func(v any) { g.Scores = append(g.Scores, v.(float32)) })
	}
	return g
}

// TestLlamaVocabs encodes the test texts of every vocabulary in llama.cpp's suite
// (models/ggml-vocab-*.gguf with .inp and .out, which its own tests use) and wants the ids
// in .out, which the models' own tokenizers have written.
func TestLlamaVocabs(t *testing.T) {
	dir := os.Getenv("GAD_LLAMA_VOCABS")
	if dir == "" {
		t.Skip("GAD_LLAMA_VOCABS names no folder with llama.cpp's ggml-vocab-*.gguf: nothing is compared")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "ggml-vocab-*.gguf"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no ggml-vocab-*.gguf: %v", dir, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "ggml-vocab-"), ".gguf")
		g := readGGML(t, path)
		files, err := FromGGML(g)
		if err != nil {
			t.Logf("%-16s %-8s refused: %v", name, g.Model, err)
			if g.Model == "gpt2" || g.Model == "llama" || g.Model == "gemma4" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		in, err := os.ReadFile(path + ".inp")
		if os.IsNotExist(err) {
			t.Logf("%-16s %-8s no texts; loads, %d tokens", name, g.Model, tok.Size())
			continue
		}
		out, err2 := os.ReadFile(path + ".out")
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		texts := strings.Split(string(in), "\n__ggml_vocab_test__\n")
		if texts[len(texts)-1] == "" {
			texts = texts[:len(texts)-1]
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(texts) != len(lines) {
			t.Fatalf("%s: %d texts and %d lines of ids", name, len(texts), len(lines))
		}
		differ, forms := 0, 0
		for i, line := range lines {
			want := []int32{}
			for _, field := range strings.Fields(line) {
				id, err := strconv.Atoi(field)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, int32(id))
			}
			if got := tok.Encode(texts[i]); !slices.Equal(got, want) {
				// Some files of ids are llama.cpp's own, which leaves out the model's NFC.
				bare := *tok
				if bare.norms = nil; tok.formsOnly() && slices.Equal(bare.Encode(texts[i]), want) {
					forms++
					continue
				}
				if differ++; differ <= 3 {
					t.Errorf("%s: Encode(%+q):\n got %s\nwant %s", name, texts[i], tok.spelled(got),
						tok.spelled(want))
				}
			}
		}
		t.Logf("%-16s %-8s %3d cases, %d differ, %d in that .out has no NFC", name, g.Model,
			len(texts), differ, forms)
	}
}

// spelled writes ids with their pieces.
func (t *Tokenizer) spelled(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, " %d%+q", id, t.Piece(id))
	}
	return b.String()
}

// TestPeerLines compares with what transformers makes of real lines
// (scripts/tokenizer_compare.py).
func TestPeerLines(t *testing.T) {
	path := os.Getenv("GAD_PEER_LINES")
	if path == "" {
		t.Skip("GAD_PEER_LINES names no file of scripts/tokenizer_compare.py: nothing is compared")
	}
	tok, err := Load(os.Getenv("GAD_PEER_TOKENIZER"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, tokens, ids, texts, lost := 0, 0, 0, 0, 0
	for d := json.NewDecoder(f); d.More(); lines++ {
		var l struct {
			Text string  `json:"text"`
			IDs  []int32 `json:"ids"`
			Back string  `json:"back"`
		}
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		tokens += len(l.IDs)
		if got := tok.Encode(l.Text); !slices.Equal(got, l.IDs) {
			if ids++; ids <= 5 {
				t.Errorf("Encode(%+q):\n got %s\nwant %s", l.Text, tok.spelled(got),
					tok.spelled(l.IDs))
			}
		}
		if got := tok.Decode(l.IDs, false); got != l.Back {
			if texts++; texts <= 5 {
				t.Errorf("Decode(%v) = %+q, want %+q", l.IDs, got, l.Back)
			}
		}
		if n, _ := tok.Lost(l.Text); n > 0 {
			lost++
		}
	}
	t.Logf("%d lines, %d tokens: %d lines differ in ids, %d in the decoded text; %d have characters without a token", lines, tokens, ids, texts, lost)
}
