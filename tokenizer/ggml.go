package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrGGML is wrapped by the errors for tokenizers that llama.cpp cannot express.
var ErrGGML = errors.New("llama.cpp cannot express it")

// GGML is a tokenizer as llama.cpp reads it from a GGUF file (src/llama-vocab.cpp of the llama.cpp
// repository). An id of -1 is none.
type GGML struct {
	Model  string    // tokenizer.ggml.model: "gpt2", "llama" or "gemma4"
	Pre    string    // the name of llama.cpp's pre-tokenizer
	Tokens []string  // by id; of "gpt2" in GPT-2's byte alphabet, added tokens verbatim
	Types  []int32   // by id: one of the types below; nil: all are normal
	Merges []string  // "left right", by rank; none of "llama"
	Scores []float32 // by id: of "llama" alone, the higher the sooner two tokens join to it

	BOS, EOS, EOT, EOM, Unknown, Pad int32
	Ends                             []int32 // all that end an answer
	AddBOS, AddEOS                   bool    // around a text that is encoded with special tokens
	SpacePrefix                      bool    // a blank goes before a text
	ChatTemplate, ToolTemplate       string  // ToolTemplate: for chats with tools; "": the other
	Differs                          string  // texts that llama.cpp cuts in other places than Encode
}

// Types of tokens, by llama.cpp's numbers (llama_token_type in include/llama.h).
const (
	GGMLNormal  int32 = 1
	GGMLUnknown int32 = 2 // stands for text without a token
	GGMLControl int32 = 3 // special: cut out of trusted text, not printed
	GGMLAdded   int32 = 4 // "user defined": cut out of any text, printed
	GGMLUnused  int32 = 5
	GGMLByte    int32 = 6 // <0x00> to <0xFF>
)

// ggmlEnds are tokens that llama.cpp takes for the end of an answer by their text.
var ggmlEnds = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<end_of_turn>",
	"<|endoftext|>", "</s>", "<|eom_id|>", "<|end_of_text|>", "<eos>"}

// GGML returns the tokenizer in llama.cpp's form, for a model with vocab rows in its embedding. A
// tokenizer that llama.cpp would encode differently from Encode is refused; such errors wrap
// ErrGGML. There are three exceptions. The normalizer NFC is accepted, which llama.cpp leaves out:
// text is nearly always in that form already, and other converters leave it out too. Where the
// vocabulary lacks bytes, llama.cpp leaves them out after the merges, Encode before them: the
// characters around such a byte may join here. And the patterns of GPT-4o and Tekken are accepted,
// which llama.cpp rewrites (Differs).
func (t *Tokenizer) GGML(vocab int) (*GGML, error) {
	g, err := t.ggml(vocab)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", fileTokenizer, err)
	}
	return g, nil
}

// setTemplates takes over the chat templates of c, which is nil where there are none.
func (g *GGML) setTemplates(c *chatTemplate) {
	if c != nil {
		g.ChatTemplate = c.source
		if c.forTools != nil {
			g.ToolTemplate = c.forTools.source
		}
	}
}

// ggml returns the tokenizer as GGML does; its errors lack the file's name.
func (t *Tokenizer) ggml(vocab int) (*GGML, error) {
	if t.Size() > vocab {
		return nil, fmt.Errorf("ids up to %d: the model's vocab_size is %d: use the tokenizer that belongs to the model", t.Size()-1, vocab)
	}
	if t.model.text {
		g := &GGML{EOS: t.endOfTurn, EOT: t.endOfTurn, EOM: -1, Unknown: -1, BOS: -1, Pad: t.pad,
			Ends: t.EOS()}
		err := t.ggmlTokens(g, vocab)
		if err == nil {
			err = t.ggmlText(g)
		}
		if err == nil {
			err = t.ggmlEdges(g)
		}
		g.setTemplates(t.chat)
		return g, err
	}
	if t.model.gaps && (t.model.unk >= 0 || t.model.fallback != nil) {
		return nil, cannot("model", "has unk_token or byte_fallback for bytes that have no token",
			"")
	}
	for _, n := range t.norms {
		if n.kind != "NFC" {
			return nil, cannot("normalizer", "changes texts in another way than NFC", "")
		}
	}
	if t.prefix {
		return nil, cannot("pre_tokenizer", "has add_prefix_space true", "")
	}
	names := ggmlPre[strings.Join(t.patterns, "\n")]
	g := &GGML{Model: "gpt2", Pre: names.merges, BOS: -1, EOS: t.endOfTurn, EOT: t.endOfTurn,
		EOM: -1, Unknown: -1, Pad: t.pad, Ends: t.EOS()}
	if t.model.ignoreMerges {
		g.Pre = names.ignores
	}
	g.Differs = names.differs
	switch {
	case names.merges == "" && names.ignores == "":
		return nil, cannot("pre_tokenizer",
			fmt.Sprintf("has the pattern %s",
				clip(fmt.Sprintf("%q", strings.Join(t.patterns, ", ")))), "")
	case g.Pre == "":
		return nil, cannot("model",
			fmt.Sprintf("has ignore_merges %v with this pre_tokenizer", t.model.ignoreMerges), "")
	}
	if err := t.ggmlTokens(g, vocab); err != nil {
		return nil, err
	}
	if err := t.ggmlEdges(g); err != nil {
		return nil, err
	}
	g.setTemplates(t.chat)
	return g, nil
}

// cannot returns the error for a part of tokenizer.json that llama.cpp does not have.
func cannot(part, what, way string) error {
	return fmt.Errorf("%q %s: %w: %s", part, what, ErrGGML,
		cmp.Or(way, "use the Hugging Face folder (gad export without --gguf)"))
}

// ggmlTokens sets the vocabulary and the merges of g.
func (t *Tokenizer) ggmlTokens(g *GGML, vocab int) error {
	g.Tokens, g.Types = make([]string, vocab), make([]int32, vocab)
	for text, id := range t.ids {
		g.Tokens[id], g.Types[id] = text, GGMLNormal
	}
	for _, a := range t.added {
		switch {
		case a.LStrip || a.RStrip:
			return cannot("added_tokens",
				fmt.Sprintf("has %q, which takes the blanks beside it (lstrip, rstrip)", a.Content),
				"")
		case a.SingleWord:
			return cannot("added_tokens",
				fmt.Sprintf("has %q, which is found between blanks only (single_word)", a.Content),
				"")
		}
		g.Types[a.ID] = GGMLAdded
		if a.Special {
			g.Types[a.ID] = GGMLControl
		}
	}
	for id := range g.Tokens { // llama.cpp wants each text once
		for name := fmt.Sprintf("[PAD%d]", id); g.Types[id] == 0; name += "_" {
			if _, taken := t.ids[name]; !taken {
				g.Tokens[id], g.Types[id] = name, GGMLUnused
			}
		}
	}
	type ranked struct {
		rank int32
		text string
	}
	merges := make([]ranked, 0, len(t.model.merges))
	for key, m := range t.model.merges {
		left, right := g.Tokens[key>>32], g.Tokens[uint32(key)]
		if strings.Contains(left+right, " ") {
			continue // the byte alphabet has no blank: no text comes to such a merge
		}
		merges = append(merges, ranked{m.rank, left + " " + right})
	}
	slices.SortFunc(merges, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	g.Merges = make([]string, len(merges))
	for i, m := range merges {
		g.Merges[i] = m.text
	}
	return nil
}

// ggmlEdges sets the tokens of g that begin and end texts and answers.
func (t *Tokenizer) ggmlEdges(g *GGML) error {
	named := func(key string) int32 {
		if id, ok := t.ids[t.named[key]]; ok && t.named[key] != "" {
			return id
		}
		return -1
	}
	g.BOS, g.Unknown = named("bos_token"), named("unk_token")
	switch {
	case len(t.before) == 1:
		g.BOS, g.AddBOS = t.before[0], true
	case len(t.before) > 1:
		return cannot("post_processor", fmt.Sprintf("puts %d tokens before a text", len(t.before)),
			"")
	case g.BOS < 0:
		// llama.cpp has a token 11 for a file that names none. It is not put before texts,
		// but seen by chat templates; Qwen's files name the token that ends a text.
		g.BOS = g.Ends[len(g.Ends)-1]
	}
	switch {
	case len(t.behind) == 1 && t.behind[0] == g.EOS:
		g.AddEOS = true
	case len(t.behind) > 0:
		return cannot("post_processor", "puts other tokens than the end of an answer behind a text",
			"")
	}
	for _, id := range g.Ends[1:] {
		switch {
		case slices.Contains(ggmlEnds, g.Tokens[id]):
		case g.EOM < 0:
			g.EOM = id // the third place for an end that there is
		default:
			return cannot("eos_token_id",
				fmt.Sprintf("has %q and %q beside the end of turn", g.Tokens[g.EOM], g.Tokens[id]),
				"remove all but two of eos_token_id in generation_config.json")
		}
	}
	return nil
}
