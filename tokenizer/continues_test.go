package tokenizer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A header of control tokens before an answer is refused with the template's line; a thought that
// the template puts there, and a template without anything, are not.
func TestContinues(t *testing.T) {
	const start = `{% for m in messages %}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}
`
	for between, want := range map[string]string{
		"":                        "",
		"<think>\n\n</think>\n":   "",
		"<|im_end|>final":         `line 4 of it: <|im_end|>final{{ m.content }}`,
		"<|im_start|>x<|im_end|>": "line 4 of it: ",
	} {
		tok, err := Load(filepath.Join("..", "testdata", "tokenizer", "qwen2"))
		if err != nil {
			t.Fatal(err)
		}
		source := start + between + `{{ m.content }}
{% else %}
{{ m.content }}
{% endif %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}`
		if tok.chat, err = newChatTemplate(source,
			map[string]any{"bos_token": "", "eos_token": ""}); err != nil {
			t.Fatal(err)
		}
		err = tok.Continues()
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrHeader) ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", between, err, want)
		}
	}
}
