package session

import (
	"bytes"
	"testing"
)

// What a model writes is no command of a terminal; a pipe gets it as it is.
func TestHarmless(t *testing.T) {
	if got := Harmless("a\x1b[2J\tb\r\nc\u0085é"); got != "a\uFFFD[2J\tb\uFFFD\nc\uFFFDé" {
		t.Errorf("%q", got)
	}
	if text := "\x1b[2J"; Printable(&bytes.Buffer{}, text) != text {
		t.Error("a pipe gets other text")
	}
}
