package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// osFS is the FS that calls the os package.
type osFS struct{}

func (osFS) Create(path string) (File, error) {
	return open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}

func (osFS) OpenAppend(path string) (File, error) {
	return open(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
}

func (osFS) Open(path string) (File, error) { return open(path, os.O_RDONLY) }

// open returns a nil interface after a failure, not an interface that holds a nil *os.File.
func open(path string, flag int) (File, error) {
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFS) Mkdir(path string) error                    { return os.Mkdir(path, 0o777) }
func (osFS) MkdirAll(path string) error                 { return os.MkdirAll(path, 0o777) }
func (osFS) Rename(from, to string) error               { return os.Rename(from, to) }
func (osFS) Remove(path string) error                   { return os.Remove(path) }
func (osFS) RemoveAll(path string) error                { return os.RemoveAll(path) }
func (osFS) Symlink(target, path string) error          { return os.Symlink(target, path) }
func (osFS) Readlink(path string) (string, error)       { return os.Readlink(path) }
func (osFS) Stat(path string) (fs.FileInfo, error)      { return os.Stat(path) }
func (osFS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }
func (osFS) ReadFile(path string) ([]byte, error)       { return os.ReadFile(path) }
func (osFS) SyncDir(path string) error                  { return syncDir(path) }

// Free asks the nearest parent of path that exists.
func (osFS) Free(path string) (int64, error) {
	for {
		n, err := free(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
		parent := filepath.Dir(path)
		if parent == path {
			return 0, err
		}
		path = parent
	}
}
