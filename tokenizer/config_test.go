package tokenizer

import (
	"slices"
	"testing"
)

// TestDeclaredTokens has control tokens that tokenizer.json does not list: those of the
// configuration and of special_tokens_map.json. The ids and the template's names are those of
// transformers 5.24.
func TestDeclaredTokens(t *testing.T) {
	const template = `"chat_template": "{# <n> #}{{ bos_token }}{{ note_token }}{% for m in messages %}` +
		`{{ m.content }}<end>{% endfor %}", "eos_token": "<end>"`
	end := `"257": {"content": "<end>", "special": true}`
	for name, c := range map[string]struct {
		config, special string
		text            string
		want            []int32 // Encode
		chat            []int32 // of one message, "c"
	}{
		"by id": {`{"added_tokens_decoder": {` + end + `, "258": {"content": "<n>", "special": true}}}`,
			"", "a<n>c", []int32{'a', 258, 'c'}, nil},
		"of the vocabulary": {`{"added_tokens_decoder": {` + end + `, "256": {"content": "ab", "rstrip": true}}}`,
			"", "aab c", []int32{'a', 256, 'c'}, nil},
		"a name":                      {`{"bos_token": "<s>"}`, "", "<s>c", []int32{258, 'c'}, []int32{258, 'c', 257}},
		"one that no template writes": {`{"unk_token": "<u>"}`, "", "<u>", []int32{'<', 'u', '>'}, nil},
		"a list": {`{"additional_special_tokens": ["<x>", {"content": "<n>", "rstrip": true}]}`, "",
			"<n> c", []int32{259, 'c'}, nil},
		"a model's own names": {`{"extra_special_tokens": {"note_token": "<n>"}}`, "", "<n>c",
			[]int32{258, 'c'}, []int32{258, 'c', 257}},
		"the map wins": {`{"bos_token": "<s>"}`, `{"bos_token": "<n>"}`, "<n>c", []int32{258, 'c'},
			[]int32{258, 'c', 257}},
		"the configuration wins": {`{"bos_token": "<s>", "added_tokens_decoder": {` + end + `}}`,
			`{"bos_token": "<n>"}`, "<s>c", []int32{258, 'c'}, []int32{258, 'c', 257}},
	} {
		files := filesOf(t, minimal())
		files[fileConfig] = []byte("{" + template + ", " + c.config[1:])
		if c.special != "" {
			files[fileSpecial] = []byte(c.special)
		}
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := tok.Encode(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: Encode(%q) = %v, want %v", name, c.text, got, c.want)
		}
		if c.chat == nil {
			continue
		}
		got, err := tok.ChatPrompt([]Message{{Role: "user", Content: "c"}})
		if err != nil || !slices.Equal(got, c.chat) {
			t.Errorf("%s: ChatPrompt = %v, %v, want %v", name, got, err, c.chat)
		}
	}
}
