// Package tokenizer turns texts and chats into token ids and back. It reads the tokenizer folder of
// a Hugging Face model (BPE: byte-level in the shapes of GPT-2, Qwen2 and Llama-3, or over
// characters with byte_fallback as Llama-2, Mistral and Gemma) and gives the ids that the reference
// gives; it renders chat templates in a sandbox; it trains new tokenizers; it reads and writes
// tokenizers as GGUF files have them.
//
// Load refuses, by name, a file that asks for something else (another model type, normalizer or
// pre-tokenizer). There is no best effort, because a tokenizer that is nearly right trains a model
// that is nearly right.
//
// Not here: truncation and padding settings of tokenizer.json (they are the caller's business), the
// second sequence of a pair, token offsets, and the clean-up of blanks before punctuation that some
// configs ask for in Decode.
//
//	tokenizer.go  a tokenizer, Encode and Decode: start here
//	added.go      1. added tokens are cut out of a text
//	normal.go     2. the normalizer
//	pretoken.go   3. the pre-tokenizer: a text into words; split.go: by pattern
//	bpe.go        4. byte-pair encoding: a word into ids
//	text.go       UTF-8, the byte alphabet, Unicode normal forms
//	decode.go     back from ids to text; stream.go: as they come
//	bounded.go    encoding of untrusted texts
//
//	read.go       the files of a tokenizer folder; config.go: all but tokenizer.json
//	same.go       whether two tokenizers agree
//	train.go      a new tokenizer from a text
//
//	turns.go      chats: prompts, and conversations that grow
//	chat.go       the chat template in its sandbox; template.go: another one, and its variables
//	thought.go    thoughts before an answer
//	time_unix.go  processor time, for the limit of a render; time_other.go: elsewhere
//
//	gguf.go       a tokenizer from a GGUF file; fromggml.go: as a folder's files
//	ggml.go       a tokenizer for a GGUF file; ggmltext.go: over characters
//	ggmlpre.go    llama.cpp's pre-tokenizers by name
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

// ErrTemplate is wrapped by errors of a chat template: refused by the sandbox, over budget, or
// raised by the template itself (two user turns in a row, say).
var ErrTemplate = errors.New("chat template")

// Tokenizer is a loaded tokenizer. It does not change after Load or Train and
// is safe for concurrent use.
type Tokenizer struct {
	files map[string][]byte

	model  bpe
	pieces [][]byte // by id: the bytes in decoded text; nil: no such token
	norms  []normalizer
	steps  []step // the pre-tokenizer
	prefix bool   // a blank is put before a text that begins without one

	patterns []string // descriptions of the steps, for GGML

	tokens   []string     // by id: the token as spelled; nil for a byte-level vocabulary
	decoders []decodeStep // none for a byte-level vocabulary

	ids        map[string]int32 // id by token, as spelled in tokenizer.json
	added      []*addedToken
	special    map[int32]bool
	raw        *matcher // added tokens searched for in the unchanged text
	normalized *matcher // added tokens searched for in the normalized text
	before     []int32  // the post-processor's tokens before a text
	behind     []int32  // and behind a text

	writes    func() map[string]int32 // id by piece: see Token
	named     map[string]string       // bos_token and the like, as the folder declares them
	check     func(ids int, w string) // of Bounded, called before each word; nil: none
	chat      *chatTemplate           // nil: none
	templates map[string]string       // chat templates by name, if the folder has names
	thought   func() thought          // see probeThought
	tagged    func() tags             // tags of thoughts
	headed    func() string           // headers of answers: see probeHeader
	modelFile []byte                  // config.json, for With
	eos       []int32
	endOfTurn int32
	pad       int32
}

// Size returns the highest id + 1: the least number of rows of an embedding.
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

// EndOfTurn returns the token that the chat template writes after an assistant's answer (found by
// rendering one), or else the first of the declared end tokens.
func (t *Tokenizer) EndOfTurn() int32 { return t.endOfTurn }

// Pad returns the padding token, or EndOfTurn if none is declared.
func (t *Tokenizer) Pad() int32 { return t.pad }

// Special reports whether id is a control token: Decode leaves it out with skipSpecial, and
// EncodeText never returns it.
func (t *Tokenizer) Special(id int32) bool { return t.special[id] }

// Files returns the files of the folder, unchanged, by name, so that a checkpoint can carry them.
// The caller must not change the bytes.
func (t *Tokenizer) Files() map[string][]byte { return maps.Clone(t.files) }

// Digest returns a hash of everything that Encode and ChatPrompt depend on, so that their results
// can be cached: the folder's files, and today's date if the chat template uses it. It is "" if the
// template uses the time of day, since nothing can be cached then.
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

// EncodeSpecial returns the ids of text with the post-processor's tokens: the reference's
// encode(text, add_special_tokens=True).
func (t *Tokenizer) EncodeSpecial(text string) []int32 {
	ids := make([]int32, 0, len(text)/3+8)
	ids = append(ids, t.before...)
	ids = t.encode(text, false, nil, ids)
	return append(ids, t.behind...)
}

// EncodeText returns the ids of text that is not trusted: special tokens written in it stay text.
// Added tokens that are not special are ordinary vocabulary and are recognised, as the reference
// does with encode_special_tokens.
func (t *Tokenizer) EncodeText(text string) []int32 {
	return t.encode(text, true, nil, make([]int32, 0, len(text)/3+8))
}

// Lost returns the number of characters of text that the vocabulary cannot express, in whole or in
// part: the ids lack them, or have the unknown token in their place. first names the first of them
// and its fate, or is "". Text that the normalizer or the pre-tokenizer removes (blanks, say) does
// not count.
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
		k, r := m.countLost(w)
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

// encode appends the ids of text. With plain set special tokens are text. Stand-ins are replaced by
// restore after the added tokens were cut out, so that the restored characters cannot be part of
// one.
func (t *Tokenizer) encode(text string, plain bool, restore *strings.Replacer,
	ids []int32) []int32 {
	first := true // the present piece starts the text
	token := func(a *addedToken) { ids, first = append(ids, a.ID), false }
	one := t.model.word
	if t.model.cuts != nil {
		one = t.model.wordInParts
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
				s = t.restoreText(s, whole, raw, restore)
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

// restoreText replaces the stand-ins in s, a part of whole, by restore. raw is the text of whole
// before normalization. A normalizer that does more than normal forms would change the part again
// in a second run: the part is then normalized with its characters restored if it is the whole,
// else left as it is.
func (t *Tokenizer) restoreText(s, whole, raw string, restore *strings.Replacer) string {
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

// split calls word with the pre-tokens of s: each step cuts the pieces of the step before it. first
// is true if s starts the text.
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
