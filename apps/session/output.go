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

// Output is a file that a command writes and never overwrites.
type Output struct {
	Command string // beginning of its errors
	Path    string
	Journal string // keeps paid answers when Path is removed; "": none
}

// Claim locks the output before the work begins. It refuses a file that exists, one that another
// process is writing, and a folder that does not exist.
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
	if err := o.CheckAbsent(fsys); err != nil {
		return nil, cmp.Or(err, lock.Unlock())
	}
	return lock, nil
}

// CheckAbsent refuses an output that exists.
func (o Output) CheckAbsent(fsys vfs.FS) error {
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

// Write writes the output. what begins the error of a failed write.
func (o Output) Write(fsys vfs.FS, content []byte, what string) error {
	if err := vfs.WriteFile(fsys, o.Path, content); err != nil {
		return o.DiskError(fsys, int64(len(content)), fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// DiskError returns err as an error of the disk of the output, with its free space if it is full;
// needed is the number of bytes to write.
func (o Output) DiskError(fsys vfs.FS, needed int64, err error) error {
	return fault.As(fault.ErrRunning, checkpoint.ExplainFull(fsys, o.Path, needed, err))
}
