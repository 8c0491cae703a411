package chat

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gad/apps/chat/chattest"
)

// What is typed at a terminal, and the messages that it is.
func TestEditor(t *testing.T) {
	const begins, ends = "\x1b[200~", "\x1b[201~"
	for _, c := range []struct {
		what, typed string
		want        []string // "!" before a literal one
	}{
		{"lines", "one\rtwo\n", []string{"one", "two"}},
		{"CR LF", "one\r\ntwo\r\n", []string{"one", "two"}},
		{"left, and a letter", "ac\x1b[Db\r", []string{"abc"}},
		{"left of another terminal", "ac\x1bODb\r", []string{"abc"}},
		{"home and end", "b\x1b[1~a\x1b[4~c\x1bOHx\x1b[Fy\r", []string{"xabcy"}},
		{"Ctrl-A, Ctrl-E, Ctrl-W, Ctrl-U", "bc\x01a\x05 d\x17e\rx\x15y\r", []string{"abc e", "y"}},
		{"backspace and delete", "abx\x7fcd\x1b[D\x1b[3~\r", []string{"abc"}},
		{"words", "one three\x1bbtwo \x1b[1;5D\x1b[1;5Dzero \r", []string{"zero one two three"}},
		{"history", "first\rsecond\r\x1b[A\x1b[A!\r\x1b[A\r\x1b[A\x1b[A\x1b[B\r",
			[]string{"first", "second", "first!", "first!", "first!"}},
		{"keys that mean nothing", "a\x1b[15~\x1b[1;2P\x1bOPb\x1b\x1ac\x07\r", []string{"abc"}},
		{"other scripts", "zwölf 字 Ω🙂\r", []string{"zwölf 字 Ω🙂"}},
		{"pasted lines are one message", begins + "one\n\ttwo\r\nthree" + ends + "\r",
			[]string{"!one\n\ttwo\nthree"}},
		{"with an end of line", begins + "one\ntwo\n" + ends + "\r", []string{"!one\ntwo"}},
		{"behind what is typed", "say: " + begins + "one\ntwo" + ends + ", please\rnext\r",
			[]string{"!say: one\ntwo, please", "next"}},
		{"one line, pasted and changed", begins + "abc" + ends + "\x7fd\r", []string{"abd"}},
		{"pasted control characters", begins + "a\x1b[31mred\x1b[0m\x07\x08\x1b]0;x" + ends + "\r",
			[]string{"ared]0;x"}},
		{"a pasted command is one only alone",
			begins + "/exit" + ends + "\r" + begins + "/exit\nx" + ends + "\r",
			[]string{"/exit", "!/exit\nx"}},
		{"quoted", "\"\"\"\rone\r  two\r\"\"\"\rnext\r", []string{"!one\n  two", "next"}},
		{"quoted on the lines themselves", "\"\"\"one\r\rtwo\"\"\"\r", []string{"!one\n\ntwo"}},
		{"quoted on one line", "\"\"\"/exit\"\"\"\r", []string{"!/exit"}},
		{"a long line", strings.Repeat("word ", 100) + "\x1b[Hthe \r",
			[]string{"the " + strings.Repeat("word ", 100)}},
		{"a long paste", begins + strings.Repeat("x", 20000) + ends + "\r",
			[]string{strings.Repeat("x", 20000)}},
		{"Ctrl-C drops a line", "abc\x03def\r", []string{"^C", "def"}},
		{"Ctrl-C in a paste without end", begins + "abc\x03def\r", []string{"^C", "def"}},
		{"Ctrl-C keeps the history", "abc\rx\x03\x1b[A\r", []string{"abc", "^C", "abc"}},
		{"Ctrl-D at the beginning", "ab\x1b[D\x04\r\x04", []string{"a", "^D"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			ours, theirs := chattest.Terminal(t, 80)
			t.Setenv("TERM", "xterm")
			e := newEditor(theirs, theirs)
			if e == nil {
				t.Fatal("no editor on a terminal")
			}
			go func() { // somebody reads the screen
				for buf := make([]byte, 4096); ; {
					if _, err := ours.Read(buf); err != nil {
						return
					}
				}
			}()
			cooked, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			// A terminal holds 4096 bytes: it takes the rest as the editor reads. It is raw before
			// the first of them, so that none is a signal.
			if err := e.raw(); err != nil {
				t.Fatal(err)
			}
			was := e.saved
			go ours.WriteString(c.typed)
			var got []string
			for range c.want {
				text, literal, err := e.message()
				switch {
				case errors.Is(err, errInterrupted):
					text = "^C"
				case errors.Is(err, io.EOF):
					text = "^D"
				case err != nil:
					t.Fatal(err)
				case literal:
					text = "!" + text
				}
				got = append(got, text)
				if err := e.raw(); err != nil {
					t.Fatal(err)
				}
			}
			e.saved = was
			e.restore()
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
			if now, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS); err != nil ||
				*now != *cooked {
				t.Errorf("the terminal is left as %+v, %v; it was %+v", now, err, cooked)
			}
		})
	}
	if theirs, err := os.Open(os.DevNull); err != nil || newEditor(theirs, theirs) != nil {
		t.Error("an editor where there is no terminal", err)
	}
}
