// Package session is one command at work on a model, on rows or on an output: where it prints,
// how signals stop it, what it loads, and which files it makes. gad eval, generate, chat and
// their neighbours stand on it.
package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
)

// Session is a command at work.
type Session struct {
	Out, Err io.Writer
	Console  *report.Console // on Err
	FS       vfs.FS

	// Signals is a context that ends with the first signal that stops a command. say is called
	// then, and abort at the second signal, which ends the process. The function that it returns
	// is called when the command has ended.
	Signals func(say, abort func(text string)) (context.Context, func())
}

// Stoppable is Signals with a command's own words: first is printed at the first signal, second
// at the one that ends the process.
func (s *Session) Stoppable(first, second func() string) (context.Context, func()) {
	return s.Signals(
		func(string) { s.Console.Print(first()) },
		func(string) {
			s.Console.Close()
			s.Console.Print("stopped at once by a second signal: " + second())
		})
}

// PrintJSON writes v on one line.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Terminal reports whether w is a terminal.
func Terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Shown is text as it may reach w: no control character of a model is a terminal's.
func Shown(w io.Writer, text string) string {
	if !Terminal(w) {
		return text
	}
	return Harmless(text)
}

// Harmless is text without control characters, but for tabs and ends of lines.
func Harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// SayCut says that answers have no end, since they were cut at a limit of tokens.
func (s *Session) SayCut(answers []model.Completion, limit int) {
	cut := 0
	for _, a := range answers {
		if a.Truncated {
			cut++
		}
	}
	if cut > 0 {
		fmt.Fprintf(s.Err, "gad: note: %d of %s cut at %s\n", cut,
			report.Count(len(answers), "answer"), report.Count(limit, "token"))
	}
}

// Floats prints float32 values with as many digits as tell them apart.
type Floats []float32

// MarshalJSON writes the list; what is not finite becomes null.
func (f Floats) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, x := range f {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, Number(x)...)
	}
	return append(b, ']'), nil
}

// Number is a float32 value as JSON; what is not finite is null.
func Number(x float32) json.RawMessage {
	if x != x || x-x != 0 {
		return json.RawMessage("null")
	}
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 32)
}

// MaxPromptBytes bounds a prompt that is typed or piped.
const MaxPromptBytes = 16 << 20
