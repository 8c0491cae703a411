package chat

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/term"

	"gad/apps/session"
)

// editor reads messages typed at a terminal: with cursor keys, history, pasted lines as one
// message, and messages between """ and """. The terminal is raw only while message runs, so that
// Ctrl-C is a signal during an answer.
type editor struct {
	in, out *os.File
	keys    *keys
	term    *term.Terminal

	mu    sync.Mutex
	saved *term.State // settings to restore while the terminal is raw; nil: it is not
}

// errInterrupted is Ctrl-C at the prompt.
var errInterrupted = errors.New("interrupted")

const (
	ctrlC, escape = 3, 27

	pasteMode, noPasteMode = "\x1b[?2004h", "\x1b[?2004l"
	pasteBegins, pasteEnds = "\x1b[200~", "\x1b[201~"
	tripleQuote            = `"""`
)

// newEditor returns an editor; nil if lines cannot be edited: input or output is not a terminal, or
// the terminal has no control sequences.
func newEditor(in io.Reader, out io.Writer) *editor {
	i, ok := in.(*os.File)
	o, also := out.(*os.File)
	if !ok || !also || !session.Terminal(i) || !session.Terminal(o) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	e := &editor{in: i, out: o, keys: &keys{from: i}}
	e.renew()
	return e
}

// renew starts with an empty line; it keeps the history.
func (e *editor) renew() {
	old := e.term
	e.term = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{e.keys, e.out}, "")
	if old != nil {
		e.term.History = old.History
	}
}

// message reads a message up to Enter and returns it without control characters. literal marks a
// message of several lines or between """, which is never a command. The error is io.EOF after
// Ctrl-D, and errInterrupted after Ctrl-C.
func (e *editor) message() (text string, literal bool, err error) {
	if err := e.raw(); err != nil {
		return "", false, err
	}
	defer e.restore()
	if w, h, err := term.GetSize(int(e.out.Fd())); err == nil {
		if w == 0 { // a terminal without a size, as of docker exec -t
			w, h = 80, 24
		}
		e.term.SetSize(w, h)
	}
	e.term.SetPrompt("> ")
	var lines []string
	quoted := false
	for {
		line, err := e.term.ReadLine()
		switch {
		case errors.Is(err, io.EOF) && e.keys.last == ctrlC:
			e.renew()
			return "", false, errInterrupted
		case errors.Is(err, io.EOF):
			return "", false, io.EOF
		case err != nil && !errors.Is(err, term.ErrPasteIndicator):
			return "", false, fmt.Errorf("chat: standard input: %w", err)
		}
		line = printable(line)
		if trimmed := strings.TrimSpace(line); len(lines) == 0 &&
			strings.HasPrefix(trimmed, tripleQuote) {
			quoted, line = true, strings.TrimPrefix(trimmed, tripleQuote)
		}
		if rest, ends := strings.CutSuffix(strings.TrimRight(line, " \t"), tripleQuote); quoted &&
			ends {
			text := strings.Join(append(lines, rest), "\n")
			return strings.TrimSuffix(strings.TrimPrefix(text, "\n"), "\n"), true, nil
		}
		lines = append(lines, line)
		if !quoted && !e.keys.pasting {
			return strings.TrimRight(strings.Join(lines, "\n"), "\n"), len(lines) > 1, nil
		}
		if n := len(lines); n == 1 {
			e.term.SetPrompt("... ")
		}
	}
}

// printAbove prints a line above the line being typed.
func (e *editor) printAbove(text string) {
	e.mu.Lock()
	raw := e.saved != nil
	e.mu.Unlock()
	if raw {
		fmt.Fprintln(e.term, text)
	} else {
		fmt.Fprintln(e.out, text)
	}
}

// raw sets the terminal to raw mode, with paste marks.
func (e *editor) raw() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, err := term.MakeRaw(int(e.in.Fd()))
	if err != nil {
		return fmt.Errorf("chat: the terminal: %w", err)
	}
	e.saved = was
	io.WriteString(e.out, pasteMode)
	return nil
}

// restore restores the terminal's settings.
func (e *editor) restore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.saved != nil {
		io.WriteString(e.out, noPasteMode)
		term.Restore(int(e.in.Fd()), e.saved)
		e.saved = nil
	}
}

var sequences = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|O[@-~])`)

// printable returns typed text without control sequences and control characters, except tabs and
// line breaks.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, sequences.ReplaceAllString(text, ""))
}

// keys converts a terminal's bytes for term.Terminal. A Read never returns bytes after the end of a
// line, so that pasting tells whether the end of the line just read was pasted. It drops control
// characters of pasted text, and key sequences that Terminal would take for text, and translates
// the sequences for Home and End of other terminals.
type keys struct {
	from    io.Reader
	raw     []byte // read and not processed
	ready   []byte // processed and not returned
	seq     []byte // a control sequence so far
	pasting bool
	last    byte // last byte returned
	buf     [512]byte
}

// keySequences lists the sequences that Terminal knows by the sequences that terminals send.
var keySequences = map[string]string{
	"\x1b[A": "\x1b[A", "\x1b[B": "\x1b[B", "\x1b[C": "\x1b[C", "\x1b[D": "\x1b[D",
	"\x1b[H": "\x1b[H", "\x1b[F": "\x1b[F",
	"\x1bOA": "\x1b[A", "\x1bOB": "\x1b[B", "\x1bOC": "\x1b[C", "\x1bOD": "\x1b[D",
	"\x1bOH": "\x1b[H", "\x1bOF": "\x1b[F",
	"\x1b[1~": "\x1b[H", "\x1b[7~": "\x1b[H", "\x1b[4~": "\x1b[F", "\x1b[8~": "\x1b[F",
	"\x1b[3~":   "\x1b[3~",
	"\x1b[1;3C": "\x1b[1;3C", "\x1b[1;3D": "\x1b[1;3D", "\x1b[1;5C": "\x1b[1;3C",
	"\x1b[1;5D": "\x1b[1;3D",
	"\x1bf":     "\x1b[1;3C", "\x1bb": "\x1b[1;3D",
	pasteBegins: pasteBegins,
}

func (k *keys) Read(p []byte) (int, error) {
	for len(k.ready) == 0 {
		if len(k.raw) == 0 {
			n, err := k.from.Read(k.buf[:])
			if n == 0 {
				k.last = 0
				return 0, err
			}
			k.raw = k.buf[:n]
		}
		for len(k.raw) > 0 && !k.take() {
		}
	}
	n := copy(p, k.ready)
	k.ready = k.ready[n:]
	return n, nil
}

// take processes the next byte of raw; ends reports whether it ends a line.
func (k *keys) take() (ends bool) {
	b := k.raw[0]
	if len(k.seq) > 0 && !k.inSequence(b) {
		k.sequence(string(k.seq))
		k.seq = nil
		if len(k.raw) == 0 {
			return false
		}
		b = k.raw[0]
	} else if len(k.seq) > 0 {
		k.seq, k.raw = append(k.seq, b), k.raw[1:]
		return false
	}
	k.raw = k.raw[1:]
	switch {
	case b == escape:
		k.seq = []byte{escape}
		return false
	case b == '\n' && k.last == '\r': // of \r\n
		k.last = b
		return false
	case b == '\r' || b == '\n':
		k.ready, k.last = append(k.ready, '\r'), b
		return true
	case b == ctrlC && k.pasting: // a paste without end
		k.pasting = false
		k.ready = append(k.ready, pasteEnds...)
	case k.pasting && (b < ' ' && b != '\t' || b == 127):
		return false
	}
	k.ready, k.last = append(k.ready, b), b
	return b == ctrlC
}

// inSequence reports whether b continues the control sequence in seq. It takes the last byte of a
// sequence itself, and returns false.
func (k *keys) inSequence(b byte) bool {
	final := b >= '@' && b <= '~'
	switch n := len(k.seq); {
	case n == 1 && (b == '[' || b == 'O'):
		return true
	case n == 1 && (b == 'b' || b == 'f') && !k.pasting, n >= 2 && final:
		k.seq, k.raw = append(k.seq, b), k.raw[1:]
		return false
	case n == 1, n > 32, b < ' ' || b > '~': // Escape alone, or no sequence
		return false
	}
	return true
}

// sequence passes on a complete control sequence, if Terminal knows it.
func (k *keys) sequence(seq string) {
	known := keySequences[seq]
	switch {
	case k.pasting && seq == pasteEnds:
		known, k.pasting = seq, false
	case k.pasting:
		return
	case seq == pasteBegins:
		k.pasting = true
	}
	k.ready = append(k.ready, known...)
	k.last = 0
}
