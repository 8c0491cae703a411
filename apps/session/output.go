package session

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gad/checkpoint"
	"gad/internal/fault"
	"gad/internal/vfs"
)

// Output is a file that a command makes while it works, and never overwrites.
type Output struct {
	Command string // begins the errors
	Path    string
	Journal string // keeps what was paid for when Path is removed; "" is none
}

// Claim takes the lock of the output, before the work and not after it. It refuses a file that
// is there, one that another process makes, and a place where none can be made.
func (o Output) Claim(fsys vfs.FS) (*checkpoint.Lock, error) {
	dir := filepath.Dir(o.Path)
	if info, err := fsys.Stat(dir); err != nil || !info.IsDir() {
		return nil, fault.Usagef(
			"%s: %s: there is no folder %s: create it or give another --output", o.Command, o.Path,
			dir)
	}
	lock, err := checkpoint.LockOutput(o.Path)
	if err != nil {
		return nil, err
	}
	if err := o.Absent(fsys); err != nil {
		return nil, cmp.Or(err, lock.Unlock())
	}
	return lock, nil
}

// Absent refuses an output that is there.
func (o Output) Absent(fsys vfs.FS) error {
	_, err := fsys.Stat(o.Path)
	switch {
	case err == nil:
		if _, err := fsys.Stat(o.Journal); err == nil && o.Journal != "" {
			return fault.Usagef("%s: %s: exists: nothing is overwritten: remove it (its answers stay in %s) or give another --output", o.Command, o.Path, o.Journal)
		}
		return fault.Usagef(
			"%s: %s: exists: nothing is overwritten: remove it or give another --output", o.Command,
			o.Path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return vfs.Target(fmt.Errorf("%s: %s: %w", o.Command, o.Path, err))
}

// Write makes the output of its bytes. what begins the error of a disk that refuses them.
func (o Output) Write(fsys vfs.FS, content []byte, what string) error {
	if err := vfs.WriteFile(fsys, o.Path, content); err != nil {
		return o.Broken(fsys, int64(len(content)), fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// Broken is an error of the disk on which the output is, which needs so many bytes there.
func (o Output) Broken(fsys vfs.FS, needed int64, err error) error {
	return fault.As(fault.ErrRunning, checkpoint.ExplainFull(fsys, o.Path, needed, err))
}
