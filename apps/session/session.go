// Package session is the surroundings of one command that works on a model, rows or an output:
// console, signals, loading, files. gad eval, generate, chat and others use it.
//
//	session.go   Session: console and signals; text and numbers for output; start here
//	rows.go      a data set as flags name it
//	model.go     a model as flags name it, on a device
//	critic.go    a discriminator
//	thinking.go  answers in chunks
//	output.go    a file that is never overwritten
//	partial.go   an unfinished output that can be resumed
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

// Session is a running command.
type Session struct {
	Out, Err io.Writer
	Console  *report.Console // on Err
	FS       vfs.FS

	// Signals returns a context that ends with the first signal that stops a command. It calls say
	// then, and abort at the second signal, which ends the process. The caller calls the returned
	// function at the command's end.
	Signals func(say, abort func(text string)) (context.Context, func())
}

// Stoppable calls Signals with a command's own messages: first is printed at the first signal,
// second at the signal that ends the process.
func (s *Session) Stoppable(first, second func() string) (context.Context, func()) {
	return s.Signals(
		func(string) { s.Console.Print(first()) },
		func(string) {
			s.Console.Close()
			s.Console.Print("stopped at once by a second signal: " + second())
		})
}

// PrintJSON writes v as JSON on one line.
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

// Printable returns text as it may be written to w: on a terminal without control characters of a
// model's.
func Printable(w io.Writer, text string) string {
	if !Terminal(w) {
		return text
	}
	return Harmless(text)
}

// Harmless returns text without control characters, except tabs and line breaks.
func Harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// SayCut prints how many answers were cut at the limit of tokens.
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

// Floats is float32 values that JSON has with the shortest exact digits.
type Floats []float32

// MarshalJSON returns the list; values that are not finite become null.
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

// Number returns a float32 value as JSON, null if it is not finite.
func Number(x float32) json.RawMessage {
	if x != x || x-x != 0 {
		return json.RawMessage("null")
	}
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 32)
}

// MaxPromptBytes bounds a prompt from a terminal or a pipe.
const MaxPromptBytes = 16 << 20
