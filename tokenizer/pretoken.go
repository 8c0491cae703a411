package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// step is one pre-tokenizer: a splitter, or a Metaspace, which depends on whether its piece starts
// the text.
type step struct {
	cut  splitter
	meta *metaspace
}

// metaspace writes blanks as mark, puts one before a text, and cuts before each.
type metaspace struct {
	mark  string // of one character
	first bool   // a mark goes only before the first piece of a text
	never bool   // no mark goes before a piece
	cut   splitter
}

// split calls emit with the pieces of s; first is true if s starts the text.
func (m *metaspace) split(s string, first bool, emit func(piece string)) {
	s = strings.ReplaceAll(s, " ", m.mark)
	if !m.never && (first || !m.first) && !strings.HasPrefix(s, m.mark) {
		s = m.mark + s
	}
	if m.cut == nil {
		emit(s)
		return
	}
	m.cut(s, emit)
}

// newMetaspace parses a Metaspace, pre-tokenizer or decoder.
func newMetaspace(p component) (*metaspace, error) {
	m := &metaspace{mark: p.Replacement}
	if utf8.RuneCountInString(m.mark) != 1 {
		return nil, fmt.Errorf("Metaspace with replacement %q: must be one character", m.mark)
	}
	switch p.PrependScheme {
	case "", "always":
	case "first":
		m.first = true
	case "never":
		m.never = true
	default:
		return nil, fmt.Errorf("Metaspace with prepend_scheme %q: must be always, first or never",
			p.PrependScheme)
	}
	// The older way to write never. The reference refuses it together with another scheme.
	if p.AddPrefixSpace != nil && !*p.AddPrefixSpace && !m.never {
		if p.PrependScheme != "" {
			return nil, fmt.Errorf("Metaspace with add_prefix_space false and prepend_scheme %q: contradict each other: remove add_prefix_space", p.PrependScheme)
		}
		m.never = true
	}
	if p.Split == nil || *p.Split {
		mark, _ := utf8.DecodeRuneInString(m.mark)
		m.cut = withBehavior(eachRune(func(r rune) bool { return r == mark }), "MergedWithNext")
	}
	return m, nil
}

// finder cuts s into consecutive pieces and reports for each whether it is a match.
type finder func(s string, emit func(piece string, match bool))

// eachRune returns a finder of single characters for which is returns true.
func eachRune(is func(r rune) bool) finder {
	return func(s string, emit func(string, bool)) {
		start := 0
		for i, r := range s {
			if !is(r) {
				continue
			}
			if i > start {
				emit(s[start:i], false)
			}
			start = i + utf8.RuneLen(r)
			emit(s[i:start], true)
		}
		if start < len(s) {
			emit(s[start:], false)
		}
	}
}

// eachText returns a finder of a fixed text.
func eachText(text string) finder {
	return func(s string, emit func(string, bool)) {
		for {
			i := strings.Index(s, text)
			if i < 0 {
				break
			}
			if i > 0 {
				emit(s[:i], false)
			}
			emit(text, true)
			s = s[i+len(text):]
		}
		if s != "" {
			emit(s, false)
		}
	}
}

// invert returns a finder that swaps matches and gaps.
func invert(find finder) finder {
	return func(s string, emit func(string, bool)) {
		find(s, func(piece string, match bool) { emit(piece, !match) })
	}
}

// withBehavior returns a splitter that treats the matches of find by the reference's behavior; nil
// for an unknown behavior.
func withBehavior(find finder, behavior string) splitter {
	switch behavior {
	case "Isolated": // a piece
		return func(s string, emit func(string)) {
			find(s, func(piece string, _ bool) {
				if piece != "" {
					emit(piece)
				}
			})
		}
	case "Removed":
		return func(s string, emit func(string)) {
			find(s, func(piece string, match bool) {
				if piece != "" && !match {
					emit(piece)
				}
			})
		}
	}
	// The others join neighbours: joins reports whether a piece continues the piece before it.
	var joins func(before, match, first bool) bool
	switch behavior {
	case "Contiguous": // matches that follow each other are one piece
		joins = func(before, match, first bool) bool { return before == match }
	case "MergedWithPrevious": // of several matches in a row the first
		joins = func(before, match, first bool) bool { return match && !before }
	case "MergedWithNext": // of several matches in a row the last
		joins = func(before, match, first bool) bool { return before && !match }
	default:
		return nil
	}
	return func(s string, emit func(string)) {
		start, at, before := 0, 0, false
		find(s, func(piece string, match bool) {
			if at > 0 && !joins(before, match, at == start) {
				if at > start {
					emit(s[start:at])
				}
				start = at
			}
			at += len(piece)
			before = match
		})
		if at > start {
			emit(s[start:at])
		}
	}
}

// setPreTokenizer parses the pre-tokenizer's steps.
func (t *Tokenizer) setPreTokenizer(c *component) error {
	bytesSeen := false
	for _, p := range c.parts() {
		switch p.Type {
		case "ByteLevel":
			// Behind another step the blank would go before each of its pieces.
			if p.AddPrefixSpace == nil || *p.AddPrefixSpace {
				if bytesSeen || len(t.steps) > 0 {
					return fmt.Errorf(
						"add_prefix_space true after another step: cannot be read: set it to false")
				}
				t.prefix = true
			}
			if p.UseRegex == nil || *p.UseRegex {
				t.addStep(scan(nextGPT2), patternGPT2)
			}
			bytesSeen = true
			continue
		case "Split":
			if err := t.addSplit(p); err != nil {
				return err
			}
		case "Digits":
			t.addStep(splitDigits(p.Individual),
				map[bool]string{true: patternDigit, false: patternDigit + "+"}[p.Individual])
		case "Punctuation":
			behavior := p.Behavior
			if behavior == "" {
				behavior = "Isolated"
			}
			cut := withBehavior(eachRune(isPunctuation), behavior)
			if cut == nil {
				return fmt.Errorf("Punctuation with behavior %q: there is none of this name",
					p.Behavior)
			}
			t.addStep(cut, "Punctuation "+behavior)
		case "WhitespaceSplit":
			t.addStep(withBehavior(eachRune(unicode.IsSpace), "Removed"), "WhitespaceSplit")
		case "Metaspace":
			m, err := newMetaspace(p)
			if err != nil {
				return err
			}
			for _, n := range t.norms {
				if m.first && n.cuts {
					return fmt.Errorf("Metaspace with prepend_scheme \"first\" behind a %s that takes away the beginning of texts: cannot be read: use prepend_scheme always or never", n.kind)
				}
			}
			t.steps, t.patterns = append(t.steps, step{meta: m}), append(t.patterns, "Metaspace")
		default:
			return refuse("pre-tokenizer", p)
		}
		if bytesSeen {
			return fmt.Errorf("%s after ByteLevel would split encoded bytes: put ByteLevel last",
				p.Type)
		}
	}
	t.model.text = !bytesSeen
	return nil
}

// addStep adds a splitter with the pattern that describes it for GGML.
func (t *Tokenizer) addStep(cut splitter, pattern string) {
	t.steps, t.patterns = append(t.steps, step{cut: cut}), append(t.patterns, pattern)
}

// addSplit parses a Split.
func (t *Tokenizer) addSplit(p component) error {
	pattern, isRegexp := p.Pattern["Regex"]
	text, isText := p.Pattern["String"]
	if isRegexp && p.Behavior == "Isolated" {
		cut, err := newSplitter(pattern)
		if err == nil {
			t.addStep(cut, pattern)
		}
		return err
	}
	var find finder
	switch {
	case isRegexp:
		var err error
		if find, err = newFinder(pattern); err != nil {
			return err
		}
	case isText && text != "":
		find = eachText(text)
	default:
		return fmt.Errorf("Split with pattern %v: only a String or a Regex can be read", p.Pattern)
	}
	if p.Invert {
		find = invert(find)
	}
	cut := withBehavior(find, p.Behavior)
	if cut == nil {
		return fmt.Errorf("Split with behavior %q: must be Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext", p.Behavior)
	}
	t.addStep(cut, fmt.Sprintf("%s %v %q %q", p.Behavior, p.Invert, text, pattern))
	return nil
}

// isPunctuation reports whether the Punctuation pre-tokenizer cuts at r.
func isPunctuation(r rune) bool {
	return r < utf8.RuneSelf && unicode.In(r, unicode.P, unicode.S) || unicode.Is(unicode.P, r)
}
