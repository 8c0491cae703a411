package tokenizer

import "fmt"

// NewGGML is what llama.cpp assumes of a file with this tokenizer.ggml.model and
// tokenizer.ggml.pre ("" where the file has no such key). A reader overwrites what the file
// says: keys that a file lacks keep these values.
func NewGGML(model, pre string) *GGML {
	g := &GGML{Model: model, Pre: pre, BOS: -1, EOS: -1, EOT: -1, EOM: -1, Unknown: -1, Pad: -1}
	switch model {
	case "llama":
		g.BOS, g.EOS, g.Unknown = 1, 2, 0
		g.AddBOS, g.SpacePrefix = true, true
	case "gemma4":
		g.AddBOS = true
	}
	return g
}

// FromGGML makes the files of a Hugging Face tokenizer folder from what a GGUF file says:
// tokenizer.json, tokenizer_config.json, generation_config.json and, where there is a chat
// template, chat_template.jinja. Parse reads them.
func FromGGML(g *GGML) (map[string][]byte, error) {
	return nil, fmt.Errorf("tokenizer: tokenizer.ggml.model %q: cannot be read", g.Model)
}

// Parse is Load of the files of a folder, by name.
func Parse(files map[string][]byte) (*Tokenizer, error) {
	t, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}
