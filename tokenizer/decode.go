package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decodeStep is one step of the decoder of tokenizer.json. It gets the tokens of a text one by one
// and passes tokens on; behind a Fuse all of them are parts of one.
type decodeStep struct {
	kind  string
	edit  func(token string) string // Replace, and Strip before a Fuse
	mark  string                    // Metaspace: the spelling of a blank
	first bool                      // Metaspace: the first token's marks are left out
	strip string                    // Strip behind a Fuse: the character
	most  int                       // and the number of times it is left out at the beginning
}

// setDecoder parses the decoder. A byte-level vocabulary needs no steps.
func (t *Tokenizer) setDecoder(c *component) error {
	byteLevel, fused := false, false
	seen := map[string]bool{}
	for _, p := range c.parts() {
		s := decodeStep{kind: p.Type}
		switch p.Type {
		case "ByteLevel":
			byteLevel = true
			continue
		case "ByteFallback":
			if fused {
				return fmt.Errorf(
					"ByteFallback behind Fuse: would find no byte tokens: put it before Fuse")
			}
		case "Fuse":
			fused = true
		case "Replace":
			if fused && utf8.RuneCountInString(p.Pattern["String"]) != 1 {
				return fmt.Errorf("Replace of %v behind Fuse: only of one character can be read: put it before Fuse", p.Pattern)
			}
			var err error
			if s.edit, err = replacer(p); err != nil {
				return err
			}
		case "Strip":
			if p.Content == nil || utf8.RuneCountInString(*p.Content) != 1 || p.Start < 0 ||
				p.Stop < 0 {
				return fmt.Errorf("Strip with start %d, stop %d: needs a content of one character and counts of 0 or more: the file is damaged", p.Start, p.Stop)
			}
			if fused && p.Stop != 0 {
				return fmt.Errorf("Strip with stop %d behind Fuse: cannot be read: set stop to 0",
					p.Stop)
			}
			if s.strip, s.most = *p.Content, p.Start; !fused {
				s.edit = func(token string) string {
					return stripToken(token, *p.Content, p.Start,
						p.Stop)
				}
			}
		case "Metaspace":
			m, err := newMetaspace(p)
			if err != nil {
				return err
			}
			if fused {
				return fmt.Errorf(
					"Metaspace behind Fuse: would take out all blanks: put it before Fuse")
			}
			s.mark, s.first = m.mark, !m.never
		default:
			return refuse("decoder", p)
		}
		if byteLevel {
			return fmt.Errorf("%s beside ByteLevel: cannot be read: keep one of them", p.Type)
		}
		if seen[p.Type] && (p.Type == "ByteFallback" || p.Type == "Metaspace" ||
			p.Type == "Strip" && fused) {
			return fmt.Errorf("two %s steps: cannot be read: keep one", p.Type)
		}
		seen[p.Type] = true
		t.decoders = append(t.decoders, s)
	}
	switch {
	case !t.model.text && len(t.decoders) > 0:
		return fmt.Errorf("%s: the pre_tokenizer has a ByteLevel step: set the decoder to {\"type\": \"ByteLevel\"}", t.decoders[0].kind)
	case !t.model.text && !byteLevel:
		return fmt.Errorf("no ByteLevel decoder: decoded text would be wrong: set the decoder to {\"type\": \"ByteLevel\"}")
	case t.model.text && byteLevel:
		return fmt.Errorf("a ByteLevel decoder, and no ByteLevel step in pre_tokenizer: decoded text would be wrong: add the step")
	case t.model.text && len(t.decoders) == 0:
		return fmt.Errorf("no decoder: the reference would put blanks between tokens: add the decoder that belongs to the pre_tokenizer, such as Metaspace")
	}
	if t.model.text {
		t.readPieces()
	}
	return nil
}

// readPieces sets the pieces of a vocabulary that is not byte-level: the text of each token inside
// a text.
func (t *Tokenizer) readPieces() {
	for id, token := range t.tokens {
		if t.pieces[id] != nil {
			t.pieces[id] = t.piece(token)
		}
	}
}

// piece returns the bytes of a token inside a text.
func (t *Tokenizer) piece(token string) []byte {
	fused := false
	for _, s := range t.decoders {
		b, isByte := byteToken(token)
		switch {
		case s.kind == "ByteFallback" && isByte:
			return []byte{b}
		case s.kind == "Fuse":
			fused = true
		case s.kind == "Metaspace":
			token = strings.ReplaceAll(token, s.mark, " ")
		case s.edit != nil && !(s.kind == "Strip" && fused):
			token = s.edit(token)
		}
	}
	return []byte(token)
}

// byteToken returns the byte that a token such as <0x0A> stands for.
func byteToken(token string) (b byte, ok bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(n), err == nil
}

// stripToken removes up to start times the character c at the beginning of a token and up to stop
// times at its end.
func stripToken(token, c string, start, stop int) string {
	for i := 0; i < start && strings.HasPrefix(token, c); i++ {
		token = token[len(c):]
	}
	for i := 0; i < stop && strings.HasSuffix(token, c); i++ {
		token = token[:len(token)-len(c)]
	}
	return token
}

// decoding is the state of one text that is being decoded.
type decoding struct {
	t       *Tokenizer
	out     []byte
	run     []byte // bytes of consecutive byte tokens: one text, or one U+FFFD each
	started bool   // Metaspace has had a token
	cut     int    // characters that Strip has left out; -1: the text has started
}

// next decodes one more id.
func (d *decoding) next(id int32, skipSpecial bool) {
	if id < 0 || int(id) >= len(d.t.pieces) || d.t.pieces[id] == nil || skipSpecial &&
		d.t.special[id] {
		return
	}
	d.token(d.t.tokens[id], 0)
}

// token passes a token through the steps from stage on.
func (d *decoding) token(token string, stage int) {
	for ; stage < len(d.t.decoders); stage++ {
		s := &d.t.decoders[stage]
		switch {
		case s.kind == "ByteFallback":
			if b, ok := byteToken(token); ok {
				d.run = append(d.run, b)
				return
			}
			d.endRun(stage)
		case s.kind == "Metaspace":
			blank := " "
			if s.first && !d.started {
				blank = ""
			}
			token, d.started = strings.ReplaceAll(token, s.mark, blank), true
		case s.edit != nil:
			token = s.edit(token)
		case s.kind == "Strip":
			for d.cut >= 0 && d.cut < s.most && strings.HasPrefix(token, s.strip) {
				token = token[len(s.strip):]
				d.cut++
			}
			if token != "" {
				d.cut = -1
			}
		}
	}
	d.out = append(d.out, token...)
}

// endRun passes the pending byte tokens on: their text, or one U+FFFD for each if their bytes
// together are not UTF-8.
func (d *decoding) endRun(stage int) {
	run := d.run
	d.run = nil
	if utf8.Valid(run) {
		if len(run) > 0 {
			d.token(string(run), stage+1)
		}
		return
	}
	for range run {
		d.token("\uFFFD", stage+1)
	}
}

// take returns the text that is final, and removes it from the state.
func (d *decoding) take() string {
	text := string(d.out)
	d.out = d.out[:0]
	return text
}

// end returns the rest of the text.
func (d *decoding) end() string {
	for stage := range d.t.decoders {
		if d.t.decoders[stage].kind == "ByteFallback" {
			d.endRun(stage)
		}
	}
	return d.take()
}
