package safetensors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cursor reads a JSON text strictly: it reports every key to the caller, also a duplicate, in its
// own case, and rounds no number. It allocates only strings that hold an escape, so that a text
// costs no more memory than its own length.
type cursor struct {
	s string // valid UTF-8
	i int    // offset of the next byte
}

// errorf formats an error with the cursor's offset.
func (c *cursor) errorf(format string, a ...any) error {
	return fmt.Errorf("at byte %d: %w", c.i, fmt.Errorf(format, a...))
}

// skipSpace moves the cursor to the next byte that is not white space.
func (c *cursor) skipSpace() {
	for c.i < len(c.s) {
		switch c.s[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte without reading it, or 0 at the end.
func (c *cursor) peek() byte {
	c.skipSpace()
	if c.i == len(c.s) {
		return 0
	}
	return c.s[c.i]
}

// expect reads one byte of punctuation.
func (c *cursor) expect(b byte) error {
	if got := c.peek(); got != b {
		if c.i == len(c.s) {
			return c.errorf("the text ends where %q should be", b)
		}
		return c.errorf("%q where %q should be", c.s[c.i:c.i+1], b)
	}
	c.i++
	return nil
}

// object reads an object and calls field after each key; field must read the value.
func (c *cursor) object(field func(key string) error) error {
	if err := c.expect('{'); err != nil {
		return err
	}
	if c.peek() == '}' {
		c.i++
		return nil
	}
	for {
		key, err := c.str()
		if err != nil {
			return err
		}
		if err := c.expect(':'); err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
		if c.peek() == ',' {
			c.i++
			continue
		}
		return c.expect('}')
	}
}

// array reads an array and calls elem before each element i; elem must read it.
func (c *cursor) array(elem func(i int) error) error {
	if err := c.expect('['); err != nil {
		return err
	}
	if c.peek() == ']' {
		c.i++
		return nil
	}
	for i := 0; ; i++ {
		if err := elem(i); err != nil {
			return err
		}
		if c.peek() == ',' {
			c.i++
			continue
		}
		return c.expect(']')
	}
}

// natural reads an integer that is at least 0 and fits an int64.
func (c *cursor) natural() (int64, error) {
	c.skipSpace()
	start := c.i
	for c.i < len(c.s) && strings.IndexByte("+-.0123456789eE", c.s[c.i]) >= 0 {
		c.i++
	}
	text := c.s[start:c.i]
	at := cursor{c.s, start}
	switch {
	case text == "":
		return 0, at.errorf("a number should be here")
	case text[0] == '-':
		return 0, at.errorf("negative number %s", clip(text))
	case strings.ContainsAny(text, "+-.eE"):
		return 0, at.errorf("%s is not written as an integer", clip(text))
	case len(text) > 1 && text[0] == '0':
		return 0, at.errorf("%s has leading zeros", clip(text))
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, at.errorf("%s is beyond 2^63-1", clip(text))
	}
	return n, nil
}

// str reads a string. A string without an escape is a substring of c.s.
func (c *cursor) str() (string, error) {
	if got := c.peek(); got != '"' {
		return "", c.errorf("a string should be here")
	}
	c.i++
	start := c.i
	for c.i < len(c.s) {
		switch b := c.s[c.i]; {
		case b == '"':
			c.i++
			return c.s[start : c.i-1], nil
		case b == '\\':
			return c.unescape(start)
		case b < ' ':
			return "", c.errorf("control character %#02x in a string", b)
		}
		c.i++
	}
	return "", c.errorf("string without an end")
}

// unescape reads the rest of a string that began at start, from its first backslash on.
func (c *cursor) unescape(start int) (string, error) {
	out := []byte(c.s[start:c.i])
	for c.i < len(c.s) {
		b := c.s[c.i]
		switch {
		case b == '"':
			c.i++
			return string(out), nil
		case b < ' ':
			return "", c.errorf("control character %#02x in a string", b)
		case b != '\\':
			out = append(out, b)
			c.i++
			continue
		}
		if c.i+1 == len(c.s) {
			break
		}
		const short, meaning = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		if e := c.s[c.i+1]; e != 'u' {
			k := strings.IndexByte(short, e)
			if k < 0 {
				return "", c.errorf("unknown escape \\%c", e)
			}
			out = append(out, meaning[k])
			c.i += 2
			continue
		}
		r, err := c.unicode()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return "", c.errorf("string without an end")
}

// unicode reads one escape \uXXXX, or a surrogate pair of two.
func (c *cursor) unicode() (rune, error) {
	hex := func() (rune, bool) {
		if c.i+6 > len(c.s) || c.s[c.i] != '\\' || c.s[c.i+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(c.s[c.i+2:c.i+6], 16, 16)
		return rune(n), err == nil
	}
	at := *c
	r, ok := hex()
	if !ok {
		return 0, c.errorf("broken \\u escape")
	}
	c.i += 6
	if r < 0xd800 || r > 0xdfff {
		return r, nil
	}
	low, ok := hex()
	if !ok || r > 0xdbff || low < 0xdc00 || low > 0xdfff {
		return 0, at.errorf("half of a surrogate pair")
	}
	c.i += 6
	return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, nil
}

// maxDepth bounds the nesting of values that are skipped.
const maxDepth = 64

// skip reads a value of any type and discards it.
func (c *cursor) skip(depth int) error {
	if depth == maxDepth {
		return c.errorf("nested more than %d deep", maxDepth)
	}
	switch b := c.peek(); {
	case b == '{':
		return c.object(func(string) error { return c.skip(depth + 1) })
	case b == '[':
		return c.array(func(int) error { return c.skip(depth + 1) })
	case b == '"':
		_, err := c.str()
		return err
	case b == '-' || b >= '0' && b <= '9':
		start := c.i
		for c.i < len(c.s) && strings.IndexByte("+-.0123456789eE", c.s[c.i]) >= 0 {
			c.i++
		}
		if _, err := strconv.ParseFloat(c.s[start:c.i], 64); err != nil &&
			!errors.Is(err, strconv.ErrRange) {
			return c.errorf("%s is not a number", clip(c.s[start:c.i]))
		}
		return nil
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(c.s[c.i:], word) {
			c.i += len(word)
			return nil
		}
	}
	return c.errorf("a value should be here")
}

// clip shortens text from a file for an error.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
