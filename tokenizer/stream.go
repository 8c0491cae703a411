package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// Stream turns ids into text one by one. A token may end within a character; its last bytes then
// wait for the bytes that complete it. Byte tokens of byte_fallback wait for the next other token,
// since consecutive byte tokens form one text or none. The texts that a Stream returns add up to
// the result of Decode.
type Stream struct {
	t    *Tokenizer
	skip bool
	tail []byte    // of a byte-level vocabulary
	d    *decoding // of any other
}

// Stream returns a Stream at the start of a text; skipSpecial is as in Decode.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skip: skipSpecial}
	if t.decoders != nil {
		s.d = &decoding{t: t}
	}
	return s
}

// Next returns the text that id completes.
func (s *Stream) Next(id int32) string {
	if s.d != nil {
		s.d.next(id, s.skip)
		return s.d.take()
	}
	if s.skip && s.t.special[id] {
		return ""
	}
	s.tail = append(s.tail, s.t.Piece(id)...)
	cut := len(s.tail)
	for i := cut - 1; i >= max(0, cut-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(s.tail[i]) {
			if !utf8.FullRune(s.tail[i:]) {
				cut = i
			}
			break
		}
	}
	text := validUTF8(string(s.tail[:cut]))
	s.tail = append(s.tail[:0], s.tail[cut:]...)
	return text
}

// End returns the rest of the text, with U+FFFD for each incomplete part of a character.
func (s *Stream) End() string {
	if s.d != nil {
		return s.d.end()
	}
	text := validUTF8(string(s.tail))
	s.tail = s.tail[:0]
	return text
}

// Piece returns the bytes that id adds to a text; none if there is no such token. Decode may leave
// out a blank of the first token of a text, and replaces bytes that are not UTF-8 by U+FFFD.
func (t *Tokenizer) Piece(id int32) []byte {
	if id < 0 || int(id) >= len(t.pieces) {
		return nil
	}
	return slices.Clone(t.pieces[id])
}

// Token returns the token whose bytes inside a text are piece. Control tokens write nothing there
// and are never returned. Of several tokens it returns the token that texts are cut into: the
// lowest id, and a byte token of byte_fallback only if there is no other.
func (t *Tokenizer) Token(piece []byte) (id int32, ok bool) {
	id, ok = t.writes()[string(piece)]
	return id, ok
}

// byPiece returns the table of Token.
func (t *Tokenizer) byPiece() map[string]int32 {
	table := make(map[string]int32, len(t.pieces))
	add := func(fallback bool) {
		for id, piece := range t.pieces {
			if len(piece) == 0 || t.special[int32(id)] ||
				t.tokens != nil && isByteToken(t.tokens[id]) != fallback {
				continue
			}
			if _, known := table[string(piece)]; !known {
				table[string(piece)] = int32(id)
			}
		}
	}
	add(false)
	add(true)
	return table
}

// isByteToken reports whether a token is a byte token of byte_fallback.
func isByteToken(token string) bool {
	_, ok := byteToken(token)
	return ok
}

// Named returns the control token that the folder declares under a key such as bos_token; "" if it
// declares none.
func (t *Tokenizer) Named(key string) string { return t.named[key] }

// ChatTemplate returns the source of the chat template, or "".
func (t *Tokenizer) ChatTemplate() string {
	if t.chat == nil {
		return ""
	}
	return t.chat.source
}

// sources returns the texts of all chat templates of the model, joined.
func (t *Tokenizer) sources() string {
	if t.chat == nil {
		return ""
	}
	if t.chat.forTools == nil {
		return t.chat.source
	}
	return t.chat.source + t.chat.forTools.source
}
