package checkpoint

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"path/filepath"

	"gad/internal/vfs"
)

// WriteFile creates the file dst with the bytes that fill writes: whole, by a rename, or not at
// all, and durable when it returns nil. The bytes are written to the disk as they come. size is
// their expected number, for a check of the free space.
//
// The error is ErrExists if dst is there, ErrSpace if the disk is too small. Two writers of one dst
// at a time share a temporary file: each works under [Alone].
func WriteFile(fsys FS, dst string, size int64, fill func(io.Writer) error) error {
	fsys = vfs.OrDisk(fsys)
	dst = filepath.Clean(dst)
	if err := CheckAbsent(fsys, dst, "file"); err != nil {
		return err
	}
	if err := CheckSpace(fsys, dst, size); err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(dst), ".write-"+filepath.Base(dst))
	err := writeFile(fsys, tmp, dst, fill)
	if err != nil {
		_ = fsys.Remove(tmp) // best effort: the next attempt writes over it
		return ExplainFull(fsys, dst, size, fmt.Errorf("checkpoint: %s: %w", dst, err))
	}
	return nil
}

// writeFile writes tmp, syncs it, renames it to dst, and syncs that name.
func writeFile(fsys vfs.FS, tmp, dst string, fill func(io.Writer) error) error {
	if err := vfs.MakeDirs(fsys, filepath.Dir(dst)); err != nil {
		return vfs.Target(err)
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return vfs.Target(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, dst); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(dst))
}
