package child

import (
	"strconv"
	"strings"
	"testing"
)

// A quotation has at most 60 bytes of the text, and cuts no character.
func TestQuoted(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		strings.Repeat("a", 60):        strings.Repeat("a", 60),
		strings.Repeat("a", 61):        strings.Repeat("a", 60) + "...",
		strings.Repeat("a", 59) + "éé": strings.Repeat("a", 59) + "...",
		strings.Repeat("a", 58) + "éé": strings.Repeat("a", 58) + "é...",
		"x" + strings.Repeat("日", 30):  "x" + strings.Repeat("日", 19) + "...",
		strings.Repeat("\xff", 100):    strings.Repeat("\xff", 60) + "...",
		"a\nb\x1b[2J":                  "a\nb\x1b[2J",
		strings.Repeat("\x80", 1<<20):  strings.Repeat("\x80", 60) + "...",
	} {
		if got := Quote(text); len(text) < 1000 && got != strconv.Quote(want) ||
			strings.Contains(got, "\n") || len(got) > 4*64 {
			t.Errorf("%.80q: %s, want %q", text, got, want)
		}
	}
}

func TestCheckLabel(t *testing.T) {
	for label, ok := range map[string]bool{"": true, "walk first": true,
		strings.Repeat("é", 100): true, strings.Repeat("é", 101): false, "a\tb": false,
		"a\x1b": false} {
		if err := CheckLabel(label); (err == nil) != ok {
			t.Errorf("%q: %v", label, err)
		}
	}
}
