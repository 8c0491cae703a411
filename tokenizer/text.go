package tokenizer

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// byteToRune is GPT-2's alphabet: the printable bytes of Latin-1 stand for
// themselves, the others for U+0100 and up, so that a vocabulary is text.
var byteToRune = func() (t [256]rune) {
	n := rune(256)
	for b := range t {
		t[b] = rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE) {
			t[b] = n
			n++
		}
	}
	return
}()

var runeToByte = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range byteToRune {
		m[r] = byte(b)
	}
	return m
}()

// rawBytes returns the bytes that s spells in the byte alphabet; ok is false if s has another
// character.
func rawBytes(s string) (raw []byte, ok bool) {
	raw = make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := runeToByte[r]
		if !ok {
			return nil, false
		}
		raw = append(raw, b)
	}
	return raw, true
}

// alphabetText returns raw bytes spelled in the byte alphabet.
func alphabetText(raw string) string {
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		b.WriteRune(byteToRune[raw[i]])
	}
	return b.String()
}

// validUTF8 replaces each maximal invalid subpart of a sequence by one U+FFFD
// (Unicode 16, section 3.9, table 3-8), as the reference does. The standard
// library's ToValidUTF8 makes one of each run, a range loop one of each byte.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r != utf8.RuneError || n > 1 {
			out.WriteString(s[:n])
			s = s[n:]
			continue
		}
		lo, hi, need := byte(0x80), byte(0xBF), 0
		switch c := s[0]; {
		case c >= 0xC2 && c <= 0xDF:
			need = 1
		case c >= 0xE0 && c <= 0xEF:
			need = 2
			if c == 0xE0 {
				lo = 0xA0
			} else if c == 0xED {
				hi = 0x9F
			}
		case c >= 0xF0 && c <= 0xF4:
			need = 3
			if c == 0xF0 {
				lo = 0x90
			} else if c == 0xF4 {
				hi = 0x8F
			}
		}
		for n = 1; n <= need && n < len(s) && s[n] >= lo && s[n] <= hi; n++ {
			lo, hi = 0x80, 0xBF
		}
		out.WriteRune(utf8.RuneError)
		s = s[n:]
	}
	return out.String()
}

// normalize brings s to a Unicode normal form without a limit on the number of
// marks on a letter: the library's own functions insert U+034F after 30.
func normalize(form norm.Form, s string) string {
	if form.IsNormalString(s) && !longMarks(s) {
		return s
	}
	if !longMarks(s) {
		return form.String(s)
	}
	decompose := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	rs := make([]rune, 0, len(s))
	for _, r := range s {
		rs = append(rs, []rune(decompose.String(string(r)))...)
	}
	ccc := make([]uint8, len(rs))
	for i, r := range rs {
		ccc[i] = norm.NFD.PropertiesString(string(r)).CCC()
	}
	for i := 0; i < len(rs); {
		j := i + 1
		if ccc[i] != 0 {
			for j < len(rs) && ccc[j] != 0 {
				j++
			}
			sort.Stable(byClass{rs[i:j], ccc[i:j]})
		}
		i = j
	}
	if form == norm.NFD || form == norm.NFKD {
		return string(rs)
	}
	// Canonical composition (Unicode Standard Annex 15, D117): each character
	// joins the last starter unless one of the same or a higher class stands between.
	out := rs[:0]
	starter, last := -1, -1
	for i, r := range rs {
		c := int(ccc[i])
		if starter >= 0 && last < c {
			if joined := []rune(norm.NFC.String(string([]rune{out[starter], r}))); len(
				joined) == 1 {
				out[starter] = joined[0]
				continue
			}
		}
		if c == 0 {
			starter, last = len(out), -1
		} else {
			last = c
		}
		out = append(out, r)
	}
	return string(out)
}

type byClass struct {
	rs  []rune
	ccc []uint8
}

func (b byClass) Len() int           { return len(b.rs) }
func (b byClass) Less(i, j int) bool { return b.ccc[i] < b.ccc[j] }
func (b byClass) Swap(i, j int) {
	b.rs[i], b.rs[j] = b.rs[j], b.rs[i]
	b.ccc[i], b.ccc[j] = b.ccc[j], b.ccc[i]
}

// longMarks reports whether s has a run of marks near the library's limit of 30.
func longMarks(s string) bool {
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		// Every non-starter is a mark, so that this can only be true too often.
		if r >= 0x300 && unicode.Is(unicode.M, r) {
			// one code point may decompose into up to three marks
			if run += 3; run > 27 {
				return true
			}
		} else {
			run = 0
		}
		i += n
	}
	return false
}

// isWord reports whether r is \w of the reference's regular expressions: letters, marks, decimal
// digits, connectors and joiners.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc,
		unicode.Other_Alphabetic, unicode.Join_Control, newLetters, newNumbers)
}
