// Package input reads bytes of files that are not trusted: offsets and lengths are checked before
// anything is allocated, compressed parts expand within bounds (decode.go), and a panic of a
// format's library becomes an error. It is the lowest package of data; a program calls package
// data.
package input

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"strings"
)

// ErrTruncated marks a file that ends too early by its own lengths.
var ErrTruncated = errors.New("file is cut short")

// ErrCorrupt marks a file that breaks the rules of its format.
var ErrCorrupt = errors.New("file is corrupt")

// Error is an error with a text of its own that errors.Is finds to be a sentinel.
type Error struct {
	text     string
	sentinel error
}

// NewError returns an error with this text that errors.Is finds to be the sentinel.
func NewError(text string, sentinel error) error { return &Error{text, sentinel} }

func (e *Error) Error() string { return e.text }

func (e *Error) Is(target error) bool { return target == e.sentinel }

// NewTruncated returns an error with this text that is ErrTruncated.
func NewTruncated(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...), ErrTruncated}
}

// NewCorrupt returns an error with this text that is ErrCorrupt.
func NewCorrupt(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...), ErrCorrupt}
}

// Guard runs f and returns its panic as an error. The libraries that read Arrow and Parquet panic
// on damaged input; they are only called inside Guard, and only on paths that start no goroutines.
// A memory fault becomes a panic as well, for their unsafe parts.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w (%s)", ErrCorrupt, oneLine(p))
		}
	}()
	return f()
}

// Corrupt returns an error of a format library as ErrCorrupt, unless it already is one of this
// package's that came through the library.
func Corrupt(err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) {
		return err
	}
	return fmt.Errorf("%s: %w", oneLine(err), ErrCorrupt)
}

func oneLine(v any) string { return strings.ReplaceAll(fmt.Sprint(v), "\n", " ") }

// Input is an open data file, or the unpacked contents of a compressed one.
type Input interface {
	io.ReaderAt
	io.Closer
	Name() string
	Stat() (fs.FileInfo, error)
}

// Sized is an open file with its size at that time.
type Sized struct {
	File Input
	Size int64
}

// ReadAt returns the n bytes at offset at, all inside the file.
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
