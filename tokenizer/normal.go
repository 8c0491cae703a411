package tokenizer

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer is one step of the normalizer of tokenizer.json.
type normalizer struct {
	kind  string // the type in the file
	apply func(s string) string
	// Replace: the text searched for, and its replacement; with is also the prefix of Prepend
	text, with string
	cuts       bool // may remove the beginning of a text
}

var unicodeForms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC,
	"NFKD": norm.NFKD}

// setNormalizer parses the normalizer's steps.
func (t *Tokenizer) setNormalizer(c *component) error {
	for _, p := range c.parts() {
		n := normalizer{kind: p.Type}
		switch p.Type {
		case "NFC", "NFD", "NFKC", "NFKD":
			f := unicodeForms[p.Type]
			n.apply = func(s string) string { return normalize(f, s) }
		case "Prepend":
			n.with = p.Prepend
			n.apply = func(s string) string {
				if s == "" {
					return s
				}
				return n.with + s
			}
		case "Replace":
			var err error
			if n.apply, err = replacer(p); err != nil {
				return err
			}
			n.text, n.with, n.cuts = p.Pattern["String"], *p.Content, *p.Content == ""
		case "Strip":
			n.cuts = p.StripLeft
			n.apply = func(s string) string {
				if p.StripLeft {
					s = strings.TrimLeftFunc(s, unicode.IsSpace)
				}
				if p.StripRight {
					s = strings.TrimRightFunc(s, unicode.IsSpace)
				}
				return s
			}
		default:
			return refuse("normalizer", p)
		}
		t.norms = append(t.norms, n)
	}
	return nil
}

// replacer returns the function of a Replace, a normalizer or a decoder.
func replacer(c component) (func(string) string, error) {
	if c.Content == nil {
		return nil, fmt.Errorf("Replace without content: the file is damaged, fetch it again")
	}
	with := *c.Content
	if text, ok := c.Pattern["String"]; ok && text != "" {
		return func(s string) string { return strings.ReplaceAll(s, text, with) }, nil
	}
	pattern, ok := c.Pattern["Regex"]
	if !ok {
		return nil, fmt.Errorf("Replace with pattern %v: only a String or a Regex can be read",
			c.Pattern)
	}
	find, err := newFinder(pattern)
	if err != nil {
		return nil, err
	}
	return func(s string) string {
		var b strings.Builder
		find(s, func(piece string, match bool) {
			if match {
				piece = with
			}
			b.WriteString(piece)
		})
		return b.String()
	}, nil
}

// normalize applies the normalizer.
func (t *Tokenizer) normalize(s string) string {
	for i := range t.norms {
		s = t.norms[i].apply(s)
	}
	return s
}

// formsOnly reports whether the normalizer is idempotent because it applies Unicode normal forms
// only.
func (t *Tokenizer) formsOnly() bool {
	for _, n := range t.norms {
		if _, ok := unicodeForms[n.kind]; !ok {
			return false
		}
	}
	return true
}
