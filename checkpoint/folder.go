package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gad/internal/vfs"
)

// WriteFolder creates the folder dst with the files that fill creates: whole, by a rename, or not
// at all, and durable when it returns nil. It writes no manifest.
//
// The error is ErrExists if dst is there, ErrSpace if the disk fills up. Two writers of one dst at
// a time share a temporary folder: each works under [Alone].
func WriteFolder(fsys FS, dst string, fill func(*Dir) error) error {
	fsys = vfs.OrDisk(fsys)
	dst = filepath.Clean(dst)
	if err := CheckAbsent(fsys, dst, "folder"); err != nil {
		return err
	}
	d := newDir(fsys, filepath.Join(filepath.Dir(dst), ".write-"+filepath.Base(dst)))
	err := d.fill(fill)
	if err == nil {
		err = d.moveTo(dst)
	}
	if err != nil {
		_ = fsys.RemoveAll(d.root) // best effort: the next attempt does it again
		return ExplainFull(fsys, dst, d.written, fmt.Errorf("checkpoint: %s: %w", dst, err))
	}
	return nil
}

// CheckAbsent returns ErrExists if dst is there. what, a folder or a file, names in the error what
// will be created at dst.
func CheckAbsent(fsys FS, dst, what string) error {
	fsys = vfs.OrDisk(fsys)
	_, err := fsys.Stat(dst)
	switch {
	case err == nil:
		return fmt.Errorf("checkpoint: %s: %w: choose another %s, or remove this one", dst,
			ErrExists, what)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("checkpoint: %s: %w", dst, vfs.Target(err))
	}
	return nil
}
