// Package input reads bytes of files that are not trusted: places and lengths are checked before
// anything is allocated, compressed parts expand within bounds, and a panic of a format's library
// becomes an error. It is the lowest room of data: a program calls package data.
package input

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"strings"
)

// ErrTruncated marks a file that ends before its own marks say it should.
var ErrTruncated = errors.New("file is cut short")

// ErrCorrupt marks a file that breaks the rules of its format.
var ErrCorrupt = errors.New("file is corrupt")

// Error is an error with a text of its own that is also a sentinel: the
// text says the same in the words of the case.
type Error struct {
	text     string
	sentinel error
}

// NewError returns an error with this text that errors.Is finds to be the sentinel.
func NewError(text string, sentinel error) error { return &Error{text, sentinel} }

func (e *Error) Error() string { return e.text }

func (e *Error) Is(target error) bool { return target == e.sentinel }

func Truncated(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...), ErrTruncated}
}

func Damaged(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...), ErrCorrupt}
}

// Guard runs f and turns its panic into an error. The libraries that read
// Arrow and Parquet panic on damaged input; they are only called inside guard,
// and only on paths that start no goroutines. A memory fault is made a panic as
// well, for their unsafe parts.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w (%s)", ErrCorrupt, oneLine(p))
		}
	}()
	return f()
}

// Corrupt marks an error of a format library as ErrCorrupt, unless it is one of
// ours that came through the library.
func Corrupt(err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) {
		return err
	}
	return fmt.Errorf("%s: %w", oneLine(err), ErrCorrupt)
}

func oneLine(v any) string { return strings.ReplaceAll(fmt.Sprint(v), "\n", " ") }

// Input is an open data file, or what a compressed one unpacks to.
type Input interface {
	io.ReaderAt
	io.Closer
	Name() string
	Stat() (fs.FileInfo, error)
}

// Sized is an open file and the number of its bytes when it was opened.
type Sized struct {
	File Input
	Size int64
}

// ReadAt returns the n bytes at position at, all inside of the file.
func (s Sized) ReadAt(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || n > s.Size || at > s.Size-n {
		return nil, fmt.Errorf("bytes %d to %d of a file of %d: %w", at, at+n, s.Size, ErrTruncated)
	}
	buf := make([]byte, n)
	if _, err := s.File.ReadAt(buf, at); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("file shrank since it was opened: %w", ErrTruncated)
		}
		return nil, err
	}
	return buf, nil
}
