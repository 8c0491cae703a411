package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	eof kind = iota
	data
	blockBegin
	blockEnd
	variableBegin
	variableEnd
	name
	text
	number
	operator
)

// token is a name, a literal or an operator of a tag, a border of a tag, or the text between two
// tags.
type token struct {
	kind  kind
	at    int    // offset in the source
	word  string // of a name, a text, an operator, data
	value any    // of a number
}

// String returns the token for a message.
func (t token) String() string {
	switch t.kind {
	case eof:
		return "the end of the template"
	case data:
		return "text between tags"
	case blockBegin:
		return "'{%'"
	case blockEnd:
		return "'%}'"
	case variableBegin:
		return "'{{'"
	case variableEnd:
		return "'}}'"
	case number:
		return "a number"
	case text:
		return "a text"
	}
	return "'" + t.word + "'"
}

// tagLimit bounds the tokens of a tag: expressions are evaluated by recursion.
const tagLimit = 2000

// operators are all operators, the longer first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
	"(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

// isSpace reports whether Python takes r for white space.
func isSpace(r rune) bool {
	return r >= '\t' && r <= '\r' || r >= 0x1c && r <= 0x20 || r == 0x85 || r == 0xa0 ||
		r > 0xff && unicode.Is(unicode.Z, r)
}

// lexer cuts a template into tokens.
type lexer struct {
	p            *parser
	source       string
	pos          int
	tokens       []token
	lineStarting bool // the last tag ended with a line break
}

// lex sets the tokens of source.
func (p *parser) lex(source string) {
	if !utf8.ValidString(source) {
		p.source = source
		p.failAt(0, "is not UTF-8")
	}
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	p.source = source
	l := &lexer{p: p, source: strings.TrimSuffix(source, "\n"), lineStarting: true}
	for l.pos < len(l.source) {
		l.root()
	}
	p.tokens = append(l.tokens, token{kind: eof, at: len(l.source)})
}

func (l *lexer) emit(t token) { l.tokens = append(l.tokens, t) }

// data adds the text between two tags.
func (l *lexer) data(at int, text string) {
	if text != "" {
		l.emit(token{kind: data, at: at, word: text})
	}
}

// advance moves to end, the end of a tag.
func (l *lexer) advance(end int) {
	l.lineStarting = end > l.pos && l.source[end-1] == '\n'
	l.pos = end
}

// skipSpace returns the offset behind the blanks at i.
func (l *lexer) skipSpace(i int) int {
	return len(l.source) - len(strings.TrimLeftFunc(l.source[i:], isSpace))
}

// sign returns the sign of whitespace control behind a tag's beginning, and its end.
func (l *lexer) sign(i int) (sign byte, end int) {
	if i < len(l.source) && (l.source[i] == '-' || l.source[i] == '+') {
		return l.source[i], i + 1
	}
	return 0, i
}

// trimBefore returns the text before a tag, without the blanks that the tag removes.
func (l *lexer) trimBefore(text string, sign byte, variable bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign != '+' && !variable:
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStarting) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
			return text[:line]
		}
	}
	return text
}

// root reads text up to a tag, and the tag.
func (l *lexer) root() {
	begin := -1
	for i := l.pos; ; i++ {
		k := strings.IndexByte(l.source[i:], '{')
		if k < 0 || i+k+1 >= len(l.source) {
			break
		}
		i += k
		if c := l.source[i+1]; c == '{' || c == '%' || c == '#' {
			begin = i
			break
		}
	}
	if begin < 0 {
		l.data(l.pos, l.source[l.pos:])
		l.advance(len(l.source))
		return
	}
	text, at := l.source[l.pos:begin], l.pos
	sign, inside := l.sign(begin + 2)
	which := l.source[begin+1]
	if which == '%' {
		if end, ok := l.rawBegin(inside); ok {
			l.data(at, l.trimBefore(text, sign, false))
			l.advance(end)
			l.raw()
			return
		}
	}
	l.data(at, l.trimBefore(text, sign, which == '{'))
	l.advance(inside)
	switch which {
	case '#':
		l.comment(begin)
	case '%':
		l.emit(token{kind: blockBegin, at: begin})
		l.tag(begin, '%', blockEnd)
	default:
		l.emit(token{kind: variableBegin, at: begin})
		l.tag(begin, '}', variableEnd)
	}
}

// rawBegin reports whether {% raw %} continues at i, and returns its end.
func (l *lexer) rawBegin(i int) (end int, ok bool) {
	i = l.skipSpace(i)
	if !strings.HasPrefix(l.source[i:], "raw") {
		return 0, false
	}
	i = l.skipSpace(i + 3)
	switch rest := l.source[i:]; {
	case strings.HasPrefix(rest, "-%}"):
		return l.skipSpace(i + 3), true
	case strings.HasPrefix(rest, "%}"):
		return i + 2, true
	}
	return 0, false
}

// tagEnd returns the offset behind a tag's end at i: with - and the blanks behind it, with + alone,
// or with a line break if trim is set.
func (l *lexer) tagEnd(i int, end string, plus, trim bool) (int, bool) {
	switch rest := l.source[i:]; {
	case strings.HasPrefix(rest, "-"+end):
		return l.skipSpace(i + 3), true
	case plus && strings.HasPrefix(rest, "+"+end):
		return i + 3, true
	case strings.HasPrefix(rest, end):
		if i += 2; trim && strings.HasPrefix(l.source[i:], "\n") {
			i++
		}
		return i, true
	}
	return 0, false
}

// raw reads text up to {% endraw %}.
func (l *lexer) raw() {
	for i := l.pos; ; i += 2 {
		k := strings.Index(l.source[i:], "{%")
		if k < 0 {
			l.p.failAt(l.pos, "missing end of raw directive")
		}
		i += k
		sign, inside := l.sign(i + 2)
		if inside = l.skipSpace(inside); !strings.HasPrefix(l.source[inside:], "endraw") {
			continue
		}
		if end, ok := l.tagEnd(l.skipSpace(inside+6), "%}", true, true); ok {
			l.data(l.pos, l.trimBefore(l.source[l.pos:i], sign, false))
			l.advance(end)
			return
		}
	}
}

// comment skips to the end of a comment.
func (l *lexer) comment(begin int) {
	for i := l.pos; i < len(l.source); i++ {
		if end, ok := l.tagEnd(i, "#}", true, true); ok {
			l.advance(end)
			return
		}
	}
	l.p.failAt(begin, "missing end of comment tag")
}

// tag reads the tokens of a tag and its end.
func (l *lexer) tag(begin int, end byte, closes kind) {
	var open []byte // brackets to be closed
	first := len(l.tokens)
	for {
		if len(l.tokens)-first > tagLimit {
			l.p.failAt(begin, fmt.Sprintf("a tag of more than %d words and signs: split it",
				tagLimit))
		}
		if len(open) == 0 {
			block := closes == blockEnd
			if to, ok := l.tagEnd(l.pos, string([]byte{end, '}'}), block, block); ok {
				l.emit(token{kind: closes, at: l.pos})
				l.advance(to)
				return
			}
		}
		if l.pos >= len(l.source) {
			l.p.failAt(begin, "a tag without an end")
		}
		r, n := utf8.DecodeRuneInString(l.source[l.pos:])
		switch {
		case isSpace(r):
			l.pos = l.skipSpace(l.pos)
		case r >= '0' && r <= '9':
			l.number()
		case r == '\'' || r == '"':
			l.text(byte(r))
		case r == '_' || wordRune(r):
			l.name()
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(l.source[l.pos:], o) {
					op = o
					break
				}
			}
			if op == "" {
				l.p.failAt(l.pos, fmt.Sprintf("unexpected character %q", l.source[l.pos:l.pos+n]))
			}
			switch op {
			case "(":
				open = append(open, ')')
			case "[":
				open = append(open, ']')
			case "{":
				open = append(open, '}')
			case ")", "]", "}":
				if len(open) == 0 {
					l.p.failAt(l.pos, "unexpected '"+op+"'")
				}
				if want := open[len(open)-1]; want != op[0] {
					l.p.failAt(l.pos, fmt.Sprintf("unexpected '%s', expected '%c'", op, want))
				}
				open = open[:len(open)-1]
			}
			l.emit(token{kind: operator, at: l.pos, word: op})
			l.pos += len(op)
		}
	}
}

// wordRune reports whether r may stand in a name.
func wordRune(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) ||
		unicode.Is(unicode.Pc, r)
}

// name reads a name.
func (l *lexer) name() {
	rest := strings.TrimLeftFunc(l.source[l.pos:], wordRune)
	end := len(l.source) - len(rest)
	word := l.source[l.pos:end]
	for i, r := range word {
		if i == 0 && !unicode.IsLetter(r) && r != '_' || unicode.Is(unicode.No, r) {
			l.p.failAt(l.pos, fmt.Sprintf("invalid character in the name %q", word))
		}
	}
	l.emit(token{kind: name, at: l.pos, word: word})
	l.pos = end
}

// digits returns the offset behind the digits at i, which may have single underscores between them.
func (l *lexer) digits(i int, valid func(c byte) bool) int {
	for i < len(l.source) && (valid(l.source[i]) || l.source[i] == '_' && i+1 < len(l.source) &&
		valid(l.source[i+1]) && l.source[i-1] != '_') {
		i++
	}
	return i
}

func decimal(c byte) bool { return c >= '0' && c <= '9' }

// number reads an int or a float.
func (l *lexer) number() {
	at := l.pos
	emit := func(end int, value any) {
		l.emit(token{kind: number, at: at, value: value})
		l.pos = end
	}
	isDigit := func(i int) bool { return i < len(l.source) && decimal(l.source[i]) }
	// a float does not follow a dot: x.0.1 is two indices
	if at == 0 || l.source[at-1] != '.' {
		end := l.digits(at, decimal)
		float := false
		if end < len(l.source) && l.source[end] == '.' && isDigit(end+1) {
			end, float = l.digits(end+1, decimal), true
		}
		if end < len(l.source) && (l.source[end] == 'e' || l.source[end] == 'E') {
			e := end + 1
			if e < len(l.source) && (l.source[e] == '+' || l.source[e] == '-') {
				e++
			}
			if isDigit(e) {
				end, float = l.digits(e, decimal), true
			}
		}
		if float {
			f, _ := strconv.ParseFloat(strings.ReplaceAll(l.source[at:end], "_", ""), 64)
			emit(end, f)
			return
		}
	}
	end, base := 0, 10
	if prefix := strings.ToLower(l.source[at:min(at+2, len(l.source))]); prefix == "0x" ||
		prefix == "0o" || prefix == "0b" {
		valid := map[string]func(byte) bool{
			"0x": func(c byte) bool { return decimal(c) || c|32 >= 'a' && c|32 <= 'f' },
			"0o": func(c byte) bool { return c >= '0' && c <= '7' },
			"0b": func(c byte) bool { return c == '0' || c == '1' },
		}[prefix]
		if e := l.digits(at+2, valid); e > at+2 {
			end, base = e, 0
		}
	}
	if end == 0 {
		if l.source[at] == '0' { // zeros alone
			end = l.digits(at, func(c byte) bool { return c == '0' })
		} else {
			end = l.digits(at, decimal)
		}
	}
	n, ok := new(big.Int).SetString(strings.ReplaceAll(l.source[at:end], "_", ""), base)
	if !ok || n.BitLen() > intLimit {
		l.p.failAt(at, "an int of more than 4300 digits")
	}
	emit(end, intValue(n))
}

// text reads a string literal.
func (l *lexer) text(q byte) {
	at := l.pos
	i := at + 1
	for ; i < len(l.source) && l.source[i] != q; i++ {
		if l.source[i] == '\\' {
			i++
		}
	}
	if i >= len(l.source) {
		l.p.failAt(at, "a text without its closing quotation mark")
	}
	l.emit(token{kind: text, at: at, word: l.unescape(at+1, l.source[at+1:i])})
	l.pos = i + 1
}

// unescape returns a string literal's value by Python's escapes.
func (l *lexer) unescape(at int, s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		c := s[i]
		if c != '\\' {
			b.WriteByte(c)
			i++
			continue
		}
		i++
		simple := strings.IndexByte(`\'"abfnrtv`, s[i])
		hex := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		switch {
		case s[i] == '\n':
			i++
		case simple >= 0:
			b.WriteByte("\\'\"\a\b\f\n\r\t\v"[simple])
			i++
		case s[i] >= '0' && s[i] <= '7':
			n := 0
			for k := 0; k < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7'; k++ {
				n = n*8 + int(s[i]-'0')
				i++
			}
			b.WriteRune(rune(n))
		case hex > 0:
			digits := s[i+1 : min(i+1+hex, len(s))]
			n, err := strconv.ParseUint(digits, 16, 32)
			if err != nil || len(digits) < hex || n > unicode.MaxRune {
				l.p.failAt(at+i-1, "truncated or impossible escape of a character")
			}
			if n >= 0xd800 && n < 0xe000 {
				l.p.failAt(at+i-1, "half of a surrogate pair: write the character itself")
			}
			b.WriteRune(rune(n))
			i += 1 + hex
		case s[i] == 'N':
			l.p.failAt(at+i-1, `\N{...} is not supported: write the character itself`)
		case s[i] >= utf8.RuneSelf: // jinja2 puts an escape in its place, whose backslash this is
			r, n := utf8.DecodeRuneInString(s[i:])
			switch {
			case r < 0x100:
				fmt.Fprintf(&b, `\x%02x`, r)
			case r < 0x10000:
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				fmt.Fprintf(&b, `\U%08x`, r)
			}
			i += n
		default:
			b.WriteByte('\\')
		}
	}
	return b.String()
}
