// Package tokenizer turns texts and chats into token ids and back. It reads
// the tokenizer folder of a Hugging Face model (BPE: byte-level in the shapes of GPT-2,
// Qwen2 and Llama-3, or over characters with byte_fallback as Llama-2, Mistral and Gemma)
// and gives the ids that the reference gives; it renders chat templates in a sandbox; it
// trains new tokenizers; it reads and writes tokenizers as GGUF files have them.
//
// Where a file asks for what is not built here (another model type, normalizer
// or pre-tokenizer), Load says so by name: there is no best effort, because a
// tokenizer that is nearly right trains a model that is nearly right.
//
// Not here: truncation and padding settings of tokenizer.json (they are the
// caller's business), the second sequence of a pair, token offsets, and the
// clean-up of blanks before punctuation that some configs ask for in Decode.
package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrNoChatTemplate is returned by RenderChat and ChatPrompt if the folder has
// no chat template.
var ErrNoChatTemplate = errors.New("the folder has no chat template")

// ErrTemplate is wrapped by errors of a chat template: refused by the sandbox,
// over budget, or raised by the template itself (two user turns in a row, say).
var ErrTemplate = errors.New("chat template")

// Tokenizer is a loaded tokenizer. It does not change after Load or Train and
// is safe for concurrent use.
type Tokenizer struct {
	files map[string][]byte

	model  bpe
	pieces [][]byte // id -> raw bytes as they decode; nil: no such token
	norms  []normalizer
	steps  []step // the pre-tokenizer
	prefix bool   // a blank is put before each text that has none

	patterns []string // what the steps cut by, for GGML

	tokens   []string     // id -> token as written; nil for a byte-level vocabulary
	decoders []decodeStep // none for a byte-level vocabulary

	ids        map[string]int32 // token as written in tokenizer.json -> id
	added      []*addedToken
	special    map[int32]bool
	raw        *matcher // added tokens that are looked for in the text as it is
	normalized *matcher // added tokens that are looked for in the normalized text
	before     []int32  // the post-processor's tokens before a text
	behind     []int32  // and behind it

	writes    func() map[string]int32 // id by piece: see Token
	named     map[string]string       // bos_token and its like, as the folder declares them
	check     func(ids int, w string) // Bounded's, before the word w; nil: none
	chat      *chatTemplate           // nil: none
	templates map[string]string       // chat templates by name, where the folder names them
	thought   func() thought          // what prompts have of it: see probeThought
	tagged    func() tags             // of thoughts
	headed    func() string           // of answers: see probeHeader
	modelFile []byte                  // config.json, for With
	eos       []int32
	endOfTurn int32
	pad       int32
}

// Size is the highest id + 1: the least number of rows of an embedding.
func (t *Tokenizer) Size() int { return len(t.pieces) }

// Tokens reports for each id below Size whether it has a token: vocabularies may have gaps.
func (t *Tokenizer) Tokens() []bool {
	tokens := make([]bool, len(t.pieces))
	for id, piece := range t.pieces {
		tokens[id] = piece != nil
	}
	return tokens
}

// EOS returns every id that ends an answer. The first is EndOfTurn; then come
// eos_token_id of generation_config.json and eos_token of tokenizer_config.json, or
// eos_token_id of config.json where neither is declared; each once.
func (t *Tokenizer) EOS() []int32 { return slices.Clone(t.eos) }

// EndOfTurn is the token that the chat template writes after an assistant's
// answer (found by rendering one), or else the first of the declared end tokens.
func (t *Tokenizer) EndOfTurn() int32 { return t.endOfTurn }

// Pad is the padding token, or EndOfTurn where none is declared.
func (t *Tokenizer) Pad() int32 { return t.pad }

// Special tells whether id is a control token: one that Decode leaves out with
// skipSpecial and EncodeText never makes.
func (t *Tokenizer) Special(id int32) bool { return t.special[id] }

// Files returns the files of the folder as they were read, by name, so that a
// checkpoint can carry them unchanged. The bytes must not be changed.
func (t *Tokenizer) Files() map[string][]byte { return maps.Clone(t.files) }

// Digest names all that Encode and ChatPrompt depend on, so that their results can be
// kept: the folder's files, and today's date where the chat template asks for it. It
// is "" where the template asks for the time of day, since nothing can be kept then.
func (t *Tokenizer) Digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		fmt.Fprintf(h, "%q %d\n", name, len(t.files[name]))
		h.Write(t.files[name])
	}
	if source := t.sources(); strings.Contains(source, "strftime_now") {
		for _, part := range []string{"%H", "%I", "%M", "%S", "%c", "%T", "%R", "%X", "%s", "%f"} {
			if strings.Contains(source, part) {
				return ""
			}
		}
		fmt.Fprintln(h, now().Format(time.DateOnly))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Encode returns the ids of text. Control tokens written in the text become
// control tokens; the post-processor's tokens (BOS) are not added. Bytes that
// are not UTF-8 are read as U+FFFD.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.encode(text, false, nil, make([]int32, 0, len(text)/3+8))
}

// EncodeSpecial is Encode with the post-processor's tokens: the reference's
// encode(text, add_special_tokens=True).
func (t *Tokenizer) EncodeSpecial(text string) []int32 {
	ids := make([]int32, 0, len(text)/3+8)
	ids = append(ids, t.before...)
	ids = t.encode(text, false, nil, ids)
	return append(ids, t.behind...)
}

// EncodeText is Encode for text that is not trusted: special tokens written in
// it stay text. Added tokens that are not special are ordinary vocabulary and
// are still made, as the reference does with encode_special_tokens.
func (t *Tokenizer) EncodeText(text string) []int32 {
	return t.encode(text, true, nil, make([]int32, 0, len(text)/3+8))
}

// Lost counts the characters of text that the vocabulary cannot express, in whole or in
// part: in the ids they are missing, or the token for the unknown stands in their place.
// first names the first of them and what becomes of it; "" if there is none. What the
// normalizer or the pre-tokenizer takes away (blanks, say) does not count.
func (t *Tokenizer) Lost(text string) (n int, first string) {
	m := &t.model
	if m.whole {
		return 0, ""
	}
	text = validUTF8(text)
	if !m.text && t.formsOnly() { // nearly always there is nothing to find
		s := t.normalize(text)
		for i := 0; i < len(s) && m.byteID[s[i]] >= 0; i++ {
			if i == len(s)-1 {
				return 0, ""
			}
		}
	}
	word := func(w string) {
		k, r := m.lost(w)
		if n += k; k > 0 && first == "" {
			first = fmt.Sprintf("%U %q is left out", r, r)
			if m.unk >= 0 {
				first = fmt.Sprintf("%U %q becomes %q", r, r, t.pieces[m.unk])
			}
		}
	}
	token := func(*addedToken) {}
	t.raw.split(text, true, func(raw string) {
		t.normalized.split(t.normalize(raw), true, func(s string) { t.split(s, true, 0, word) },
			token)
	}, token)
	return n, first
}

// encode appends the ids of text. With plain set special tokens are text.
// Characters that restore stands in for are put back after the added tokens
// were cut out, so they cannot be part of one.
func (t *Tokenizer) encode(text string, plain bool, restore *strings.Replacer,
	ids []int32) []int32 {
	first := true // the piece at hand begins the text
	token := func(a *addedToken) { ids, first = append(ids, a.ID), false }
	one := t.model.word
	if t.model.cuts != nil {
		one = t.model.inParts
	}
	word := func(w string) {
		if t.check != nil {
			t.check(len(ids), w)
		}
		ids = one(w, ids)
	}
	t.raw.split(validUTF8(text), plain, func(raw string) {
		whole := t.normalize(raw)
		t.normalized.split(whole, plain, func(s string) {
			if restore != nil {
				s = t.restored(s, whole, raw, restore)
			}
			if t.prefix && !strings.HasPrefix(s, " ") {
				s = " " + s
			}
			t.split(s, first, 0, word)
			first = false
		}, token)
	}, token)
	return ids
}

// restored puts back in s, a part of whole, the characters that restore stands in for.
// raw is what whole was normalized from. Where the normalizer does more than to bring
// characters to a normal form, a second run would do it twice: such a part is normalized
// with its characters put back if it is the whole, else it stays as it is.
func (t *Tokenizer) restored(s, whole, raw string, restore *strings.Replacer) string {
	r := restore.Replace(s)
	switch {
	case r == s:
		return s
	case t.formsOnly():
		return t.normalize(r)
	case s == whole:
		return t.normalize(restore.Replace(raw))
	}
	return r
}

// split hands the pre-tokens of s to word: each step cuts the pieces of the one before
// it. first says that s begins the text.
func (t *Tokenizer) split(s string, first bool, stage int, word func(string)) {
	if stage == len(t.steps) {
		word(s)
		return
	}
	emit := word
	if stage < len(t.steps)-1 {
		emit = func(piece string) {
			t.split(piece, first, stage+1, word)
			first = false
		}
	}
	if m := t.steps[stage].meta; m != nil {
		m.split(s, first, emit)
	} else {
		t.steps[stage].cut(s, emit)
	}
}

// Decode returns the text of ids. Bytes that do not form UTF-8 (an answer cut
// inside a character, say) become U+FFFD, one for each maximal invalid part.
// With skipSpecial control tokens are left out. Ids outside the vocabulary are
// left out too, as in the reference.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	if t.decoders != nil {
		d := decoding{t: t}
		for _, id := range ids {
			d.next(id, skipSpecial)
		}
		return d.end()
	}
	n := 0
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.pieces) {
			n += len(t.pieces[id])
		}
	}
	out := make([]byte, 0, n)
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.pieces) || skipSpecial && t.special[id] {
			continue
		}
		out = append(out, t.pieces[id]...)
	}
	return validUTF8(string(out))
}
