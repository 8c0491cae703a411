package tokenizer

import (
	"slices"
	"testing"
)

// Added tokens that lie in one another or touch: a match that is passed over, as a special one of
// plain text or a part of a word, is text as a whole, and none is looked for inside it. The ids are
// those of tokenizers 0.23.3, with encode_special_tokens for EncodeText.
func TestOverlappingAddedTokens(t *testing.T) {
	top := minimal()
	token := func(id int, content string, special, word bool) map[string]any {
		return map[string]any{"id": id, "content": content, "special": special,
			"single_word": word, "normalized": false}
	}
	top["model"] = map[string]any{"type": "BPE", "vocab": top["model"].(map[string]any)["vocab"],
		"merges": []any{}}
	delete(top["model"].(map[string]any)["vocab"].(map[string]any), "ab")
	top["added_tokens"] = []any{token(256, "<a>b", true, false), token(257, ">b", false, false),
		token(258, "cd", false, true), token(259, "dd", false, false),
		token(260, "<end>", true, false)}
	tok, err := parse(filesOf(t, top))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text         string
		whole, plain []int32 // Encode, EncodeText
	}{
		{"x<a>bc", []int32{120, 256, 99}, []int32{120, 60, 97, 62, 98, 99}},
		{">b<a>b>b", []int32{257, 256, 257}, []int32{257, 60, 97, 62, 98, 257}},
		{"<a>><a>b", []int32{60, 97, 62, 62, 256}, []int32{60, 97, 62, 62, 60, 97, 62, 98}},
		{"cd", []int32{258}, []int32{258}},
		{"xcd", []int32{120, 99, 100}, []int32{120, 99, 100}},
		{"cd dd xcdd ddcd cd",
			[]int32{258, 32, 259, 32, 120, 99, 100, 100, 32, 259, 99, 100, 32, 258},
			[]int32{258, 32, 259, 32, 120, 99, 100, 100, 32, 259, 99, 100, 32, 258}},
		{"<a>>b", []int32{60, 97, 62, 257}, []int32{60, 97, 62, 257}},
	} {
		if got := tok.Encode(c.text); !slices.Equal(got, c.whole) {
			t.Errorf("Encode(%q): %v, want %v", c.text, got, c.whole)
		}
		if got := tok.EncodeText(c.text); !slices.Equal(got, c.plain) {
			t.Errorf("EncodeText(%q): %v, want %v", c.text, got, c.plain)
		}
	}
}
