package tokenizer

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of a text before the encoder runs.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // includes the white space before it
	RStrip     bool   `json:"rstrip"`      // includes the white space behind it
	Normalized bool   `json:"normalized"`  // is searched for in the normalized text
	Special    bool   `json:"special"`
}

// matcher finds added tokens in a text: the leftmost match, and the longest of those that start
// there.
type matcher struct {
	byFirst [256][]matchEntry
	empty   bool
}

type matchEntry struct {
	text  string
	token *addedToken
}

// newMatcher returns a matcher of texts and their tokens.
func newMatcher(entries []matchEntry) *matcher {
	m := &matcher{empty: len(entries) == 0}
	for _, e := range entries {
		b := e.text[0]
		m.byFirst[b] = append(m.byFirst[b], e)
	}
	for b := range m.byFirst {
		l := m.byFirst[b]
		sort.SliceStable(l, func(i, j int) bool { return len(l[i].text) > len(l[j].text) })
	}
	return m
}

// longestAt returns the longest entry whose text starts s[i:].
func (m *matcher) longestAt(s string, i int) (matchEntry, bool) {
	for _, e := range m.byFirst[s[i]] {
		if strings.HasPrefix(s[i:], e.text) {
			return e, true
		}
	}
	return matchEntry{}, false
}

// split cuts s at the matcher's tokens and calls text and token with the parts in order. With plain
// set special tokens are not cut out. A match that is not cut out is text as a whole, as in the
// reference: no shorter match inside it is tried.
func (m *matcher) split(s string, plain bool, text func(string), token func(*addedToken)) {
	if m.empty {
		if s != "" {
			text(s)
		}
		return
	}
	start := 0
	for i := 0; i < len(s); {
		if m.byFirst[s[i]] == nil {
			i++
			continue
		}
		e, ok := m.longestAt(s, i)
		if !ok {
			i++
			continue
		}
		from, to := i, i+len(e.text)
		i = to
		if plain && e.token.Special || e.token.SingleWord && touchesWord(s, from, to) {
			continue
		}
		if e.token.LStrip {
			from = len(strings.TrimRightFunc(s[:from], unicode.IsSpace))
		}
		if e.token.RStrip {
			to = len(s) - len(strings.TrimLeftFunc(s[to:], unicode.IsSpace))
			i = to
		}
		// A token may start inside the blanks that the token before it has included.
		if from > start {
			text(s[start:from])
		}
		token(e.token)
		start = to
	}
	if start < len(s) {
		text(s[start:])
	}
}

// touchesWord reports whether a word character stands directly before or behind s[from:to].
func touchesWord(s string, from, to int) bool {
	before, n := utf8.DecodeLastRuneInString(s[:from])
	after, k := utf8.DecodeRuneInString(s[to:])
	return n > 0 && isWord(before) || k > 0 && isWord(after)
}
