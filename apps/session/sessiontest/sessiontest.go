// Package sessiontest runs commands in tests, without their command lines.
package sessiontest

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gad/apps/session"
	"gad/data"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

func init() {
	report.BusyDelay = time.Hour // what a slow machine shows is none of what a command says
}

// Run runs a command and returns its standard output, its messages, and its error as the program
// writes it. No signal interrupts it. It writes to the disk without syncing.
func Run(command func(s *session.Session) error) (printed, said string, err error) {
	var out, errs bytes.Buffer
	s := New(&out, &errs, context.Background())
	err = command(s)
	s.Console.Close()
	if err != nil {
		errs.WriteString("gad: " + err.Error() + "\n")
	}
	return out.String(), errs.String(), err
}

// Must runs a command and fails the test if the command fails.
func Must(t testing.TB, command func(s *session.Session) error) (printed, said string) {
	t.Helper()
	printed, said, err := Run(command)
	if err != nil {
		t.Fatalf("%s%s", printed, said)
	}
	return printed, said
}

// New returns the session of a command; the end of ctx stands for a signal.
func New(out, said *bytes.Buffer, ctx context.Context) *session.Session {
	return &session.Session{Out: out, Err: said, Console: report.NewConsole(said, false),
		FS: vfstest.NoSync(vfs.OS),
		Signals: func(say, _ func(string)) (context.Context, func()) {
			stop := context.AfterFunc(ctx, func() { say("") })
			return ctx, func() { stop() }
		}}
}

// Rows returns the rows of an output.
func Rows(t testing.TB, path string) (rows []data.Row) {
	t.Helper()
	set, err := data.Open(path, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for i := range set.Len() {
		row, err := set.Row(i)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// Lines returns the values of JSON lines, none of which has a key that T lacks.
func Lines[T any](t testing.TB, lines string) (out []T) {
	t.Helper()
	for line := range strings.Lines(lines) {
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		var v T
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}
