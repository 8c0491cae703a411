package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// Stream turns ids into text as they come. A token may end within a character; its last
// bytes then wait for what completes them. Byte tokens of byte_fallback wait for the next
// other token, since all that follow each other are one text or none is. All that a Stream
// returns is what Decode gives.
type Stream struct {
	t    *Tokenizer
	skip bool
	tail []byte    // of a byte-level vocabulary
	d    *decoding // of any other
}

// Stream begins a text; skipSpecial is that of Decode.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skip: skipSpecial}
	if t.decoders != nil {
		s.d = &decoding{t: t}
	}
	return s
}

// Next is the text that id completes.
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

// End is the rest of the text: U+FFFD for each part of a character that nothing has completed.
func (s *Stream) End() string {
	if s.d != nil {
		return s.d.end()
	}
	text := validUTF8(string(s.tail))
	s.tail = s.tail[:0]
	return text
}

// Piece is the bytes that id adds to a text; none if there is no such token. Decode may
// leave out a blank of the first token of a text, and write bytes that are not UTF-8 as
// U+FFFD.
func (t *Tokenizer) Piece(id int32) []byte {
	if id < 0 || int(id) >= len(t.pieces) {
		return nil
	}
	return slices.Clone(t.pieces[id])
}

// Token is the token of which the bytes inside of a text are piece. Control tokens write nothing
// there and are none. Of several tokens it is the one that a text is cut into: a byte token of
// byte_fallback comes last, else the lowest id first.
func (t *Tokenizer) Token(piece []byte) (id int32, ok bool) {
	id, ok = t.writes()[string(piece)]
	return id, ok
}

// byPiece makes the table of Token.
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

func isByteToken(token string) bool {
	_, ok := byteToken(token)
	return ok
}

// Named is a control token as the folder declares it, such as that of bos_token; "" if it
// declares none.
func (t *Tokenizer) Named(key string) string { return t.named[key] }

// ChatTemplate is the source of the chat template; "" if there is none.
func (t *Tokenizer) ChatTemplate() string {
	if t.chat == nil {
		return ""
	}
	return t.chat.source
}

// sources are the texts of all chat templates of the model.
func (t *Tokenizer) sources() string {
	if t.chat == nil {
		return ""
	}
	if t.chat.forTools == nil {
		return t.chat.source
	}
	return t.chat.source + t.chat.forTools.source
}
