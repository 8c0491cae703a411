package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// A stream's pieces are valid text, none of them is kept back longer than a character needs,
// and together they are what Decode gives: for texts, and for random ids, whose bytes are
// often no text.
func TestStreamIsDecode(t *testing.T) {
	tok, err := Load("../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var cases [][]int32
	for _, text := range []string{"", "plain words", "ÄÖÜ ß 你好 世界 🙂🙃 Ω", "tail \xe4\xbd",
		"\xff\xfe x \xe4\xbd", "a\xf0\x9f\x99"} {
		var ids []int32
		for _, b := range []byte(text) { // a token a byte: each character comes in parts
			for id := range tok.pieces {
				if string(tok.pieces[id]) == string([]byte{b}) {
					ids = append(ids, int32(id))
					break
				}
			}
		}
		cases = append(cases, ids, tok.Encode(text))
	}
	for range 300 {
		ids := make([]int32, rng.IntN(20))
		for i := range ids {
			ids[i] = int32(rng.IntN(tok.Size()+2)) - 1
			if rng.IntN(2) == 0 { // single bytes, mostly no ASCII
				ids[i] = int32(rng.IntN(min(256, tok.Size())))
			}
		}
		cases = append(cases, ids)
	}
	for _, skip := range []bool{true, false} {
		for _, ids := range cases {
			s := tok.Stream(skip)
			var all strings.Builder
			for _, id := range ids {
				part := s.Next(id)
				if !utf8.ValidString(part) {
					t.Fatalf("%v: piece %q", ids, part)
				}
				if len(s.tail) > 3 {
					t.Fatalf("%v: %d bytes wait", ids, len(s.tail))
				}
				all.WriteString(part)
			}
			all.WriteString(s.End())
			if want := tok.Decode(ids, skip); all.String() != want {
				t.Fatalf("%v: %q, want %q", ids, all.String(), want)
			}
		}
	}
}

// A token is found by the bytes that it writes: the one that a text is cut into, never a control
// token, and a byte token only where no other writes the byte.
func TestTokenByPiece(t *testing.T) {
	for _, name := range []string{"qwen2", "llama2", "gemma", "gpt2", "llama3", "mistral"} {
		tok, err := Load("../testdata/tokenizer/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for id := range int32(tok.Size()) {
			piece := tok.Piece(id)
			got, ok := tok.Token(piece)
			if len(piece) == 0 {
				if ok {
					t.Errorf("%s: a token without bytes is token %d", name, got)
				}
				continue
			}
			if ok && (tok.Special(got) || string(tok.Piece(got)) != string(piece)) ||
				!ok && !tok.Special(id) {
				t.Errorf("%s: %q of token %d is token %d, %v", name, piece, id, got, ok)
			}
			if got == id {
				found++
			}
			if ids := tok.EncodeText("a" + string(piece)); ok && len(ids) == 2 &&
				string(tok.Piece(ids[1])) == string(piece) && ids[1] != got {
				t.Errorf("%s: %q is cut as token %d, and found as %d", name, piece, ids[1], got)
			}
		}
		if found < tok.Size()*9/10-260 {
			t.Errorf("%s: %d of %d tokens are found", name, found, tok.Size())
		}
		for _, piece := range []string{"no token at all", ""} {
			if id, ok := tok.Token([]byte(piece)); ok {
				t.Errorf("%s: %q is token %d", name, piece, id)
			}
		}
	}
}
