// Package vfs is the one seam through which every write of the product passes, so that a test can
// fail, cut short or forget any single operation.
//
// The interface is the part of the os package that a crash-safe program needs, and no more.
// Durability is explicit, as on the disk: a file's bytes are safe after File.Sync, a name (created,
// renamed, removed) after FS.SyncDir of the folder that holds it. [WriteFile] and [MakeDirs] are
// the two compositions of these that are easy to get wrong.
//
//	vfs.go           the interface, WriteFile and MakeDirs: start here
//	os.go            the operating system's; os_unix.go, os_other.go: sync of a folder
//	free_statfs.go   free space; free_other.go: where the system does not say
//
// The test doubles are in the package vfstest.
package vfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"
)

// File is an open file. A file from Create or OpenAppend is for writing, one
// from Open for reading; the other direction fails.
type File interface {
	io.Reader
	io.Writer
	io.Closer

	// Sync makes the bytes written so far survive a loss of power. It says
	// nothing about the file's name: see FS.SyncDir.
	Sync() error

	// Stat describes the open file.
	Stat() (fs.FileInfo, error)
}

// FS is a file system. Paths are those of the operating system. A missing path
// gives an error that is [fs.ErrNotExist], one in the way [fs.ErrExist].
type FS interface {
	// Create opens a file for writing, and empties it if it is there.
	Create(path string) (File, error)

	// OpenAppend opens a file for writing at its end, and creates it if it is
	// missing.
	OpenAppend(path string) (File, error)

	// Open opens a file for reading.
	Open(path string) (File, error)

	// Mkdir creates one folder; it fails if path is there already.
	Mkdir(path string) error

	// MkdirAll creates a folder and its missing parents, none of them synced:
	// MakeDirs is the durable form.
	MkdirAll(path string) error

	// Rename moves a file or a folder from one path to another, in one step. It
	// replaces a file at to, and fails if to is a folder that is not empty.
	Rename(from, to string) error

	// Remove removes a file or an empty folder.
	Remove(path string) error

	// RemoveAll removes path and what is below it; a missing path is no error.
	RemoveAll(path string) error

	// Symlink creates a symbolic link at path to target, which is taken as it is: a
	// relative one counts from the folder of path. It fails if path is there already.
	// Some systems have no links, or allow them to administrators only.
	Symlink(target, path string) error

	// Readlink returns the target of a symbolic link; it fails for any other file.
	Readlink(path string) (string, error)

	// Stat describes a path, through symbolic links.
	Stat(path string) (fs.FileInfo, error)

	// ReadDir lists a folder, sorted by name. Symbolic links are not followed: an
	// entry's type says that it is a link.
	ReadDir(path string) ([]fs.DirEntry, error)

	// ReadFile returns a whole file. The caller bounds its size first.
	ReadFile(path string) ([]byte, error)

	// SyncDir makes the names in a folder survive a loss of power.
	SyncDir(path string) error

	// Free returns the bytes that an ordinary user can still write to the file
	// system of path, or of its nearest parent that exists. It is
	// [errors.ErrUnsupported] where the system does not say.
	Free(path string) (int64, error)
}

// ErrTarget is wrapped by the error of an output that cannot be created at the path that the user
// chose: a mistake in the path or its permissions, not a fault of the disk.
var ErrTarget = errors.New("cannot be written")

// Target wraps ErrTarget around the error of the first operation on an output, unless the disk is
// full or a quota used up. It returns nil for nil.
func Target(err error) error {
	if err == nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: choose another path: %w", ErrTarget, err)
}

// OS is the file system of the operating system.
var OS FS = osFS{}

// OrDisk returns fsys, or OS if fsys is nil.
func OrDisk(fsys FS) FS {
	if fsys == nil {
		return OS
	}
	return fsys
}

// ErrNotRegular is wrapped by the error for a pipe, a socket, a device or a folder in place of a
// file.
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading, also through links. It refuses a pipe, whose open
// would wait for ever.
func OpenRegular(fsys FS, path string) (File, error) {
	info, err := fsys.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: remove it", path, ErrNotRegular)
	}
	return fsys.Open(path)
}

// TempName returns the name under which [WriteFile] writes path before it renames: one name per
// path, so that the next write replaces what a killed process left, and a cleanup finds it.
func TempName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
}

// WriteFile replaces the file at path by data: after a crash at any moment path
// holds all of the old bytes or all of the new ones, and the new ones once
// WriteFile has returned nil. The folder of path must exist. It is not meant
// for two writers of one path at a time.
func WriteFile(fsys FS, path string, data []byte) error {
	tmp := TempName(path)
	if err := writeSynced(fsys, tmp, data); err != nil {
		// Best effort: the error above is the one to report.
		_ = fsys.Remove(tmp)
		return fmt.Errorf("%s: write: %w", path, err)
	}
	if err := fsys.Rename(tmp, path); err != nil {
		_ = fsys.Remove(tmp)
		return fmt.Errorf("%s: rename into place: %w", path, err)
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s: sync of the folder: %w", path, err)
	}
	return nil
}

// writeSynced creates path with data in it and syncs the file, not its name.
func writeSynced(fsys FS, path string, data []byte) error {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}

// MakeDirs creates the folder path and its missing parents, and syncs each new
// name into the folder above it: the folder is there after a loss of power.
func MakeDirs(fsys FS, path string) error {
	path = filepath.Clean(path)
	info, err := fsys.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s: not a folder: choose another path: %w", path, fs.ErrExist)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := MakeDirs(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.Mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: create folder: %w", path, err)
	}
	if err := fsys.SyncDir(parent); err != nil {
		return fmt.Errorf("%s: sync of the folder: %w", parent, err)
	}
	return nil
}
