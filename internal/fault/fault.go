// Package fault marks errors with a kind where their text alone does not say it: a mistake of the
// user, a run that broke, or a command that a signal ended. The command line turns the kind into an
// exit status.
package fault

import (
	"errors"
	"fmt"
)

// The kinds, for errors.Is.
var (
	// ErrUsage marks a mistake in the command line or in a file that the user wrote.
	ErrUsage = errors.New("usage")
	// ErrRunning marks a failure after all input was read and checked.
	ErrRunning = errors.New("run failed")
	// ErrInterrupted marks an end by a signal after which the same command resumes. The message was
	// printed already.
	ErrInterrupted = errors.New("interrupted and saved")
	// ErrStopped marks an end by a signal after which no command resumes.
	ErrStopped = errors.New("stopped")
)

// As returns err marked with a kind: errors.Is finds both, and the text is err's alone.
func As(kind, err error) error { return marked{kind, err} }

// Usagef formats an error of kind ErrUsage.
func Usagef(format string, args ...any) error { return As(ErrUsage, fmt.Errorf(format, args...)) }

// marked is an error with its kind.
type marked struct{ kind, err error }

func (m marked) Error() string        { return m.err.Error() }
func (m marked) Unwrap() error        { return m.err }
func (m marked) Is(target error) bool { return target == m.kind }
