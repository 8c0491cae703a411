package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// Pre-tokenizer patterns with hand-written splitters. Any other pattern goes to a backtracking
// engine, which is five to ten times slower on English.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternDigit = `\p{N}` // cut out by the Digits pre-tokenizer
)

// probeTime bounds the trial of an unknown pattern; a sane one takes some milliseconds.
const probeTime = 10 * time.Second

// matchTime bounds each match of the trial, by the clock of a machine that may be busy; a variable
// for tests.
var matchTime = 2 * time.Second

// splitter cuts s into consecutive pieces that together are s, and calls emit with each in order.
type splitter func(s string, emit func(piece string))

// newSplitter returns the splitter of a Split pre-tokenizer's pattern: matches and the gaps between
// them are pieces ("Isolated").
func newSplitter(pattern string) (splitter, error) {
	switch pattern {
	case patternGPT2:
		return scan(nextGPT2), nil
	case patternQwen2:
		return scan(func(s string, i int) int { return nextDigits(s, i, 1) }), nil
	case patternLlama3:
		return scan(func(s string, i int) int { return nextDigits(s, i, 3) }), nil
	}
	find, err := newFinder(pattern)
	if err != nil {
		return nil, err
	}
	return withBehavior(find, "Isolated"), nil
}

// newFinder returns the finder of a regular expression.
func newFinder(pattern string) (finder, error) {
	if setInSet(pattern) {
		return nil, fmt.Errorf("pattern %q: has a set within a set, or an intersection of sets: cannot be read: write one set, of \\p{...} in place of [:...:]", pattern)
	}
	re, err := regexp2.Compile(withNewPoints(pattern), regexp2.None)
	if err != nil {
		return nil,
			fmt.Errorf(
				"pattern %q: %w: use a tokenizer whose pattern is a valid regular expression",
				pattern,
				err)
	}
	// Encode has no error to give, so a pattern that explodes is refused here: slow on runs of any
	// of these characters. (It may still be slow on other texts.)
	re.MatchTimeout = matchTime
	start := time.Now()
	for _, unit := range []string{"a", "A", "1", " ", "\n", "\t", "'", "!", "é", "字", "a ", "a1",
		"\u0301", " \n"} {
		for _, tail := range []string{"", "\x00", "a", "!"} {
			err := findRegexp(re, strings.Repeat(unit, 1000)+tail, func(string, bool) {})
			if err != nil || time.Since(start) > probeTime {
				return nil, fmt.Errorf("pattern %q: takes too long on repeated %q: use a pattern without unbounded backtracking", pattern, unit)
			}
		}
	}
	re.MatchTimeout = regexp2.DefaultMatchTimeout
	return func(s string, emit func(string, bool)) {
		// The only error is the time limit, which is off.
		_ = findRegexp(re, s, emit)
	}, nil
}

// setInSet reports whether a set of the pattern has another in it ([[:punct:]], [a[bc]]) or &&. The
// reference's engine reads them so, and ours would read other sets.
func setInSet(pattern string) bool {
	inClass := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case inClass && (c == '[' || strings.HasPrefix(pattern[i:], "&&")):
			return true
		case c == '[' || c == ']':
			inClass = c == '['
		}
	}
	return false
}

// withNewPoints adds the letters and numbers that the engine's tables lack to
// \p{L}, \p{N} and their negations. Finer properties (\p{Lu}) stay as they are.
func withNewPoints(pattern string) string {
	extra := map[string]string{"{L}": classText(newLetters), "{N}": classText(newNumbers)}
	var b strings.Builder
	inClass := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\' && i+1 < len(pattern):
			points := ""
			if p := pattern[i+1]; (p == 'p' || p == 'P') && i+5 <= len(pattern) {
				points = extra[pattern[i+2:i+5]]
			}
			switch negated := pattern[i+1] == 'P'; {
			case points == "" || negated && inClass:
				b.WriteString(pattern[i : i+2])
				i++
				continue
			case inClass:
				b.WriteString(pattern[i:i+5] + points)
			case negated:
				b.WriteString(`[^\p` + pattern[i+2:i+5] + points + "]")
			default:
				b.WriteString("[" + pattern[i:i+5] + points + "]")
			}
			i += 4
			continue
		case c == '[' && !inClass:
			inClass = true
		case c == ']' && inClass:
			inClass = false
		}
		b.WriteByte(pattern[i])
	}
	return b.String()
}

// classText writes a table as the inside of a character class.
func classText(t *unicode.RangeTable) string {
	var b strings.Builder
	for _, r := range t.R16 {
		fmt.Fprintf(&b, "%c-%c", r.Lo, r.Hi)
	}
	for _, r := range t.R32 {
		fmt.Fprintf(&b, "%c-%c", r.Lo, r.Hi)
	}
	return b.String()
}

// findRegexp calls emit with the matches of re in s and the gaps between them.
func findRegexp(re *regexp2.Regexp, s string, emit func(piece string, match bool)) error {
	text := []rune(s)
	last := 0
	m, err := re.FindRunesMatch(text)
	for m != nil && err == nil {
		if m.Index > last {
			emit(string(text[last:m.Index]), false)
		}
		emit(string(text[m.Index:m.Index+m.Length]), true)
		last = m.Index + m.Length
		m, err = re.FindNextMatch(m)
	}
	if err != nil {
		return err
	}
	if last < len(text) {
		emit(string(text[last:]), false)
	}
	return nil
}

// scan returns a splitter from next, which returns the end of the piece at s[i].
func scan(next func(s string, i int) int) splitter {
	return func(s string, emit func(string)) {
		for i := 0; i < len(s); {
			j := next(s, i)
			emit(s[i:j])
			i = j
		}
	}
}

// splitDigits returns the Digits pre-tokenizer: numbers are separated from the rest, each character
// alone if single is set, else in runs.
func splitDigits(single bool) splitter {
	return scan(func(s string, i int) int {
		c, n := classAt(s, i)
		j := i + n
		if c == number && single {
			return j
		}
		for {
			d, n := classAt(s, j)
			if n == 0 || (c == number) != (d == number) {
				return j
			}
			j += n
		}
	})
}

// class is the group of a code point that the patterns distinguish.
type class uint8

const (
	other   class = iota
	letter        // \p{L}
	number        // \p{N}
	space         // \s less newline
	newline       // \r \n
)

var asciiClass = func() (t [128]class) {
	for i := range t {
		t[i] = classOf(rune(i))
	}
	return
}()

// classOf returns the class of a code point.
func classOf(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsLetter(r) || r > 0x1C80 && unicode.Is(newLetters, r):
		return letter
	case unicode.Is(unicode.N, r) || r > 0x10D00 && unicode.Is(newNumbers, r):
		return number
	case unicode.Is(unicode.White_Space, r):
		return space
	}
	return other
}

// classAt returns the class and length of the code point at s[i]; the length
// is 0 at the end of s.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return other, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// contraction returns the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i], which
// is an apostrophe, or 0. Under (?i) the long s U+017F is an s too.
func contraction(s string, i int) int {
	if i+1 >= len(s) {
		return 0
	}
	switch a := s[i+1] | 0x20; a {
	case 's', 't', 'm', 'd':
		if s[i+1] >= 'A' {
			return 2
		}
	case 'r', 'v', 'l':
		if i+2 < len(s) {
			b := s[i+2] | 0x20
			if s[i+1] >= 'A' && s[i+2] >= 'A' && (a != 'l' && b == 'e' || a == 'l' && b == 'l') {
				return 3
			}
		}
	}
	if strings.HasPrefix(s[i+1:], "ſ") {
		return 3
	}
	return 0
}

// nextDigits returns the end of the piece at s[i] under the Qwen2 pattern (digits 1) or the Llama-3
// pattern (digits 3). The branches are in the order of the pattern's alternatives.
func nextDigits(s string, i, digits int) int {
	c, n := classAt(s, i)
	// (?i:'s|'t|'re|'ve|'m|'ll|'d)
	if s[i] == '\'' {
		if k := contraction(s, i); k > 0 {
			return i + k
		}
	}
	// [^\r\n\p{L}\p{N}]?\p{L}+
	j := i
	if c == letter {
		j = i + n
	} else if c == other || c == space {
		if c2, n2 := classAt(s, i+n); n2 > 0 && c2 == letter {
			j = i + n + n2
		}
	}
	if j > i {
		return endOfRun(s, j, letter)
	}
	// \p{N}{1,digits}
	if c == number {
		j = i + n
		for k := 1; k < digits; k++ {
			c2, n2 := classAt(s, j)
			if n2 == 0 || c2 != number {
				break
			}
			j += n2
		}
		return j
	}
	//  ?[^\s\p{L}\p{N}]+[\r\n]*
	j = i
	if s[i] == ' ' {
		j++
	}
	if c2, n2 := classAt(s, j); n2 > 0 && c2 == other {
		return endOfRun(s, endOfRun(s, j, other), newline)
	}
	return nextBlank(s, i, true)
}

// nextGPT2 returns the end of the piece at s[i] under the GPT-2 pattern.
func nextGPT2(s string, i int) int {
	if s[i] == '\'' && i+1 < len(s) {
		switch s[i+1] {
		case 's', 't', 'm', 'd':
			return i + 2
		}
		if i+2 < len(s) {
			switch s[i+1 : i+3] {
			case "re", "ve", "ll":
				return i + 3
			}
		}
	}
	j := i
	if s[i] == ' ' {
		j++
	}
	if c, n := classAt(s, j); n > 0 && c != space && c != newline {
		return endOfRun(s, j, c)
	}
	return nextBlank(s, i, false)
}

// endOfRun returns the end of the run of class c at s[i:].
func endOfRun(s string, i int, c class) int {
	for {
		d, n := classAt(s, i)
		if n == 0 || d != c {
			return i
		}
		i += n
	}
}

// nextBlank returns the end of a piece that starts with white space: up to the run's last newline
// if lines is set (\s*[\r\n]+), else all of the run but its last character (\s+(?!\S)), which goes
// with the word behind it, else the run (\s+).
func nextBlank(s string, i int, lines bool) int {
	end, afterLine, lastStart := i, -1, i
	for {
		c, n := classAt(s, end)
		if n == 0 || c != space && c != newline {
			break
		}
		lastStart = end
		end += n
		if c == newline {
			afterLine = end
		}
	}
	if lines && afterLine >= 0 {
		return afterLine
	}
	if end == len(s) || lastStart == i {
		return end
	}
	return lastStart
}

// newLetters and newNumbers are the letters and numbers of Unicode 16 that the
// tables of Go 1.26 (Unicode 15.0) lack; the reference tokenizer has them.
var (
	newLetters = ranges(0x1C89, 0x1C8A, 0xA7CB, 0xA7CD, 0xA7DA, 0xA7DC, 0x105C0, 0x105F3,
		0x10D4A, 0x10D65, 0x10D6F, 0x10D85, 0x10EC2, 0x10EC4, 0x11380, 0x11389, 0x1138B, 0x1138B,
		0x1138E, 0x1138E, 0x11390, 0x113B5, 0x113B7, 0x113B7, 0x113D1, 0x113D1, 0x113D3, 0x113D3,
		0x11BC0, 0x11BE0, 0x13460, 0x143FA, 0x16100, 0x1611D, 0x16D40, 0x16D6C, 0x18CFF, 0x18CFF,
		0x1E5D0, 0x1E5ED, 0x1E5F0, 0x1E5F0, 0x2EBF0, 0x2EE5D)
	newNumbers = ranges(0x10D40, 0x10D49, 0x116D0, 0x116E3, 0x11BF0, 0x11BF9, 0x16130, 0x16139,
		0x16D70, 0x16D79, 0x1CCF0, 0x1CCF9, 0x1E5F1, 0x1E5FA)
)

// ranges returns a table of (first, last) pairs in rising order.
func ranges(bounds ...uint32) *unicode.RangeTable {
	t := &unicode.RangeTable{}
	for i := 0; i < len(bounds); i += 2 {
		lo, hi := bounds[i], bounds[i+1]
		if hi < 0x10000 {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(lo), Hi: uint16(hi), Stride: 1})
		} else {
			t.R32 = append(t.R32, unicode.Range32{Lo: lo, Hi: hi, Stride: 1})
		}
	}
	return t
}
