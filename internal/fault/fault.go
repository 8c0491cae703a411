// Package fault says what kind of failure an error is, where its text alone does not: a
// mistake of the user, a run that broke, or a command that a signal has ended. The command
// line makes an exit status of it.
package fault

import (
	"errors"
	"fmt"
)

// The kinds, for errors.Is.
var (
	// ErrUsage is what the user typed wrong.
	ErrUsage = errors.New("usage")
	// ErrRunning is a failure after everything had been read and checked.
	ErrRunning = errors.New("run failed")
	// ErrInterrupted is the end by a signal, after which the same command resumes. It has been
	// said.
	ErrInterrupted = errors.New("interrupted and saved")
	// ErrStopped is the end by a signal, after which no command resumes.
	ErrStopped = errors.New("stopped")
)

// As is err marked with a kind: errors.Is finds both, and the text is err's alone.
func As(kind, err error) error { return marked{kind, err} }

// Usagef is an error of kind ErrUsage.
func Usagef(format string, args ...any) error { return As(ErrUsage, fmt.Errorf(format, args...)) }

type marked struct{ kind, err error }

func (m marked) Error() string        { return m.err.Error() }
func (m marked) Unwrap() error        { return m.err }
func (m marked) Is(target error) bool { return target == m.kind }
