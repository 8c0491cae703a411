package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gad/internal/vfs"
)

// WriteFolder makes the folder dst with the files that fill creates: whole, by a
// rename, or not at all, and durable when it returns nil. There is no manifest in
// it. It is ErrExists if dst is there.
func WriteFolder(fsys vfs.FS, dst string, fill func(*Dir) error) error {
	dst = filepath.Clean(dst)
	if _, err := fsys.Stat(dst); err == nil {
		return fmt.Errorf("checkpoint: %s: %w: choose another folder, or remove this one", dst, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint: %s: %w", dst, err)
	}
	parent := filepath.Dir(dst)
	d := &Dir{fsys: fsys, root: filepath.Join(parent, ".write-"+filepath.Base(dst)), dirs: map[string]bool{".": true}, names: map[string]bool{}}
	if err := d.replace(dst, fill); err != nil {
		_ = fsys.RemoveAll(d.root) // best effort: the next attempt does it again
		return fmt.Errorf("checkpoint: %s: %w", dst, err)
	}
	return nil
}

// replace fills d and moves it to dst.
func (d *Dir) replace(dst string, fill func(*Dir) error) error {
	parent := filepath.Dir(dst)
	if err := vfs.MakeDirs(d.fsys, parent); err != nil {
		return err
	}
	if err := d.fsys.RemoveAll(d.root); err != nil { // left by a kill
		return err
	}
	if err := d.fsys.Mkdir(d.root); err != nil {
		return err
	}
	if err := fill(d); err != nil {
		return err
	}
	if d.err != nil {
		return d.err
	}
	if err := d.syncDirs(); err != nil {
		return err
	}
	if err := d.fsys.Rename(d.root, dst); err != nil {
		return err
	}
	return d.fsys.SyncDir(parent)
}
