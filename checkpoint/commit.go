package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"sort"
	"sync"

	"gad/internal/vfs"
)

// Dir is a checkpoint, or another folder, that is being written. Several goroutines may create
// files in it concurrently.
type Dir struct {
	fsys vfs.FS
	root string // its temporary path

	mu      sync.Mutex
	dirs    map[string]bool // below root, with slashes; "." is root
	names   map[string]bool
	open    int
	written int64
	files   []fileEntry
	err     error // the first error of any file: the commit fails even if fill ignores it
}

// newDir returns a Dir at the temporary path root.
func newDir(fsys vfs.FS, root string) *Dir {
	return &Dir{fsys: fsys, root: root, dirs: map[string]bool{".": true}, names: map[string]bool{}}
}

// fill creates the temporary folder and lets f write its files. Each file is synced, but the names
// are not yet.
func (d *Dir) fill(f func(*Dir) error) error {
	if err := vfs.MakeDirs(d.fsys, filepath.Dir(d.root)); err != nil {
		return vfs.Target(err)
	}
	if err := d.fsys.RemoveAll(d.root); err != nil { // left by a kill
		return vfs.Target(err)
	}
	if err := d.fsys.Mkdir(d.root); err != nil {
		return vfs.Target(err)
	}
	if err := f(d); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if d.open != 0 {
		return fmt.Errorf("%d files were created and not closed", d.open)
	}
	return nil
}

// moveTo syncs the names in the folder, renames it to dst, and syncs that name.
func (d *Dir) moveTo(dst string) error {
	if err := d.syncDirs(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := d.fsys.Rename(d.root, dst); err != nil {
		return err
	}
	return d.fsys.SyncDir(filepath.Dir(dst))
}

// Create creates a file. name is a path below the checkpoint with slashes, like
// "actor/config.json"; folders are made as needed. The bytes are hashed while
// they are written; Close syncs the file, and an error of it counts.
func (d *Dir) Create(name string) (io.WriteCloser, error) {
	if err := checkName(name); err != nil {
		return nil, d.fail(fmt.Errorf("file %q: %w", name, err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] {
		return nil, d.failLocked(fmt.Errorf("file %q: created twice: %w", name, ErrExists))
	}
	d.names[name] = true
	if err := d.mkdir(path.Dir(name)); err != nil {
		return nil, d.failLocked(fmt.Errorf("file %q: %w", name, err))
	}
	f, err := d.fsys.Create(filepath.Join(d.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, d.failLocked(fmt.Errorf("file %q: %w", name, err))
	}
	d.open++
	return &writer{d: d, name: name, f: f, hash: sha256.New()}, nil
}

// WriteFile creates a file with data in it.
func (d *Dir) WriteFile(name string, data []byte) error {
	w, err := d.Create(name)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return cmp.Or(err, w.Close())
}

// mkdir creates a folder of the checkpoint and its parents.
func (d *Dir) mkdir(dir string) error {
	if d.dirs[dir] {
		return nil
	}
	if err := d.mkdir(path.Dir(dir)); err != nil {
		return err
	}
	if err := d.fsys.Mkdir(filepath.Join(d.root, filepath.FromSlash(dir))); err != nil {
		return err
	}
	d.dirs[dir] = true
	return nil
}

// fail records an error, unless there was one before, and returns err.
func (d *Dir) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failLocked(err)
}

// failLocked records an error as fail does, for a caller that holds d.mu.
func (d *Dir) failLocked(err error) error {
	if d.err == nil {
		d.err = err
	}
	return err
}

// syncDirs syncs the names in all folders.
func (d *Dir) syncDirs() error {
	dirs := make([]string, 0, len(d.dirs))
	for dir := range d.dirs {
		dirs = append(dirs, dir)
	}
	// The order does not matter: all of them are synced before the rename.
	sort.Strings(dirs)
	for _, dir := range dirs {
		if err := d.fsys.SyncDir(filepath.Join(d.root, filepath.FromSlash(dir))); err != nil {
			return err
		}
	}
	return nil
}

// writer is an open file of a Dir.
type writer struct {
	d      *Dir
	name   string
	f      vfs.File
	hash   hash.Hash
	size   int64
	failed bool
	closed bool
}

// Write writes and hashes p.
func (w *writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.hash.Write(p[:n])
	w.size += int64(n)
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.d.written += int64(n)
	if err != nil {
		w.failed = true
		return n, w.d.failLocked(fmt.Errorf("file %q: write: %w", w.name, err))
	}
	return n, nil
}

// Close syncs and closes the file, and adds it to the manifest.
func (w *writer) Close() error {
	if w.closed {
		return fmt.Errorf("file %q: closed twice: %w", w.name, fs.ErrClosed)
	}
	w.closed = true
	var err error
	if !w.failed {
		err = w.f.Sync()
	}
	err = cmp.Or(err, w.f.Close())
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.d.open--
	if err != nil {
		return w.d.failLocked(fmt.Errorf("file %q: sync and close: %w", w.name, err))
	}
	if !w.failed {
		w.d.files = append(w.d.files,
			fileEntry{w.name, w.size, hex.EncodeToString(w.hash.Sum(nil))})
	}
	return nil
}

// Commit writes the checkpoint of a step: fill writes its files, Commit makes them durable and puts
// them in place. When it returns nil, the step survives a loss of power; when it returns an error
// or does not return, earlier checkpoints are unchanged, and the step is there whole or not at all.
//
// An existing checkpoint of the step is kept: that is no error if fill wrote the same bytes, and
// ErrExists if it wrote others. A checkpoint that does not verify is replaced.
//
// A full disk is ErrSpace. The caller holds the run's lock; a missing run folder is created.
func Commit(fsys FS, run string, step int, fill func(*Dir) error) error {
	fsys = vfs.OrDisk(fsys)
	if step < 0 {
		return fmt.Errorf("checkpoint: %s: step %d: must be 0 or more", run, step)
	}
	final := stepDir(run, step)
	tmp := filepath.Join(run, commitPrefix+filepath.Base(final))
	d := newDir(fsys, tmp)
	err := d.fill(fill)
	if err == nil {
		err = d.writeManifest()
	}
	if err == nil {
		err = d.commit(run, step)
	}
	if err != nil {
		// Best effort: Clean does it again, and err is the one to report.
		_ = fsys.RemoveAll(tmp)
		return ExplainFull(fsys, final, d.written,
			fmt.Errorf("checkpoint: %s: commit: %w", final, err))
	}
	return nil
}

// writeManifest writes the manifest of the files so far.
func (d *Dir) writeManifest() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := encodeManifest(d.files)
	if len(m) > maxManifest {
		return fmt.Errorf("manifest of %d files: %d bytes: the limit is %d", len(d.files), len(m),
			maxManifest)
	}
	f, err := d.fsys.Create(filepath.Join(d.root, manifestName))
	if err != nil {
		return fmt.Errorf("file %q: %w", manifestName, err)
	}
	n, err := f.Write(m)
	d.written += int64(n)
	if err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return fmt.Errorf("file %q: %w", manifestName, err)
	}
	return nil
}

// commit moves the finished folder to its place, then writes the tracker.
func (d *Dir) commit(run string, step int) error {
	placed, err := d.place(run, step)
	if err != nil {
		return err
	}
	if err := writeTracker(d.fsys, run, step); err != nil {
		return err
	}
	if !placed {
		return d.fsys.RemoveAll(d.root)
	}
	// The damaged checkpoint that was renamed away, if there was one.
	return d.fsys.RemoveAll(filepath.Join(run, prunePrefix+filepath.Base(stepDir(run, step))))
}

// place moves the finished folder to its final name, unless an equal checkpoint is there; placed
// reports that it did.
func (d *Dir) place(run string, step int) (placed bool, err error) {
	final := stepDir(run, step)
	_, err = d.fsys.Stat(final)
	switch {
	case err == nil:
		err := Verify(d.fsys, final)
		if err == nil {
			old, err := readSmall(d.fsys, filepath.Join(final, manifestName), maxManifest)
			if err != nil {
				return false, err
			}
			if !bytes.Equal(old, encodeManifest(d.files)) {
				return false, fmt.Errorf("%w with other contents: move it away first", ErrExists)
			}
			// A kill may have come between the rename and its sync.
			return false, d.fsys.SyncDir(run)
		}
		if !errors.Is(err, ErrCorrupt) {
			return false, err
		}
		if _, err := moveAway(d.fsys, run, step); err != nil {
			return false, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	// Synced before the tracker is written, which must not name a folder that a crash could undo.
	return true, d.moveTo(final)
}
