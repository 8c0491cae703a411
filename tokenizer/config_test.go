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

// TestMistralPattern: fix_mistral_regex replaces the pattern of a Mistral that transformers before
// version 5 wrote, and of no other. The ids are those of transformers 5.24 for a large vocabulary.
func TestMistralPattern(t *testing.T) {
	top := minimal()
	model := top["model"].(map[string]any)
	model["vocab"].(map[string]any)["eB"] = 258
	model["merges"] = []any{"e B"}
	top["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Split", "behavior": "Isolated",
			"pattern": map[string]any{"Regex": `[^\r\n\p{L}\p{N}]?\p{L}+|\s+`}},
		map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}}
	fixed, plain := []int32{'e', 'B', 'a', 'y'}, []int32{258, 'a', 'y'}
	for _, c := range []struct {
		fix, model string
		want       []int32
	}{
		{"true", `{"model_type": "mistral", "transformers_version": "4.57.1"}`, fixed},
		{"true", `{"model_type": "mistral3"}`, fixed},
		{"true", `{"model_type": "mistral", "transformers_version": "5.1.0"}`, plain},
		{"true", `{"model_type": "qwen2"}`, plain},
		{"false", `{"model_type": "mistral"}`, plain},
	} {
		files := filesOf(t, top)
		files[fileConfig] = []byte(`{"eos_token": "<end>", "fix_mistral_regex": ` + c.fix + `}`)
		files[fileModel] = []byte(c.model)
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s, %s: %v", c.fix, c.model, err)
			continue
		}
		if got := tok.Encode("eBay"); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.fix, c.model, got, c.want)
		}
	}
}
