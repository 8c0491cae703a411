// Package folder opens files of a folder that somebody else made: regular files inside it, and
// nothing else. A name or a symbolic link that leads out of the folder is refused before anything
// is opened, and so are pipes, devices and folders: opening them may wait, and reading them may
// never end.
//
// One exception makes the cache of Hugging Face usable as it lies. In it a model's folder,
// models--NAME/snapshots/REVISION, consists of links to models--NAME/blobs. For a folder of this
// shape, or inside one, the border is models--NAME (or datasets--NAME), which holds only files of
// that model. One more link is followed: models--NAME/blobs/ETAG to blobs/XX/HASH beside
// models--NAME, where huggingface_hub keeps contents that several repositories have, under their
// hashes.
package folder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	errNotRegular = errors.New("not a regular file")
	errLeaves     = errors.New(
		"is a symbolic link out of the folder, or a broken link: copy the folder with cp -rL")
)

// Folder is an open folder.
type Folder struct {
	path  string // as the caller gave it, for messages
	root  *os.Root
	below string // the folder's path within root
	hub   string // the cache in which root is a repository; "" for any other folder
}

// Open opens a folder. path is given by the user: it may be, or pass through, a symbolic link.
func Open(path string) (*Folder, error) {
	f := &Folder{path: path, below: "."}
	border := path
	real := path
	if to, err := os.Readlink(path); err == nil && to != "" { // a link to a folder of the cache
		if real, err = filepath.EvalSymlinks(path); err != nil {
			return nil, reason(path, err)
		}
	}
	if abs, err := filepath.Abs(real); err == nil {
		if b, rel, ok := splitCache(abs); ok {
			border, f.below, f.hub = b, rel, filepath.Dir(b)
		}
	}
	root, err := os.OpenRoot(border)
	if err != nil {
		return nil, reason(path, err)
	}
	f.root = root
	return f, nil
}

// splitCache splits a path .../models--NAME/snapshots/REVISION[/...] behind models--NAME. ok is
// false for a path of another shape.
func splitCache(path string) (border, below string, ok bool) {
	for at := path; ; at = filepath.Dir(at) {
		snapshots := filepath.Dir(at)
		border = filepath.Dir(snapshots)
		if border == snapshots {
			return "", "", false // the top
		}
		name := filepath.Base(border)
		if filepath.Base(snapshots) == "snapshots" &&
			(strings.HasPrefix(name, "models--") || strings.HasPrefix(name, "datasets--")) {
			below, err := filepath.Rel(border, path)
			return border, below, err == nil
		}
	}
}

// Open opens a regular file of the folder for reading. The error names the file.
func (f *Folder) Open(name string) (*os.File, error) {
	path := filepath.Join(f.path, name)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("%q: not a name inside the folder %s", name, f.path)
	}
	inside := filepath.Join(f.below, name)
	// Stat comes first because opening a FIFO waits for a writer.
	info, err := f.root.Stat(inside)
	if err != nil {
		if file := f.openShared(inside); file != nil {
			return file, nil
		}
		if link, lerr := f.root.Lstat(inside); lerr == nil && link.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s: %w", path, errLeaves)
		}
		return nil, reason(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	file, err := f.root.Open(inside)
	if err != nil {
		return nil, reason(path, err)
	}
	return file, nil
}

// sharedBlob matches the link target of models--NAME/blobs/ETAG where the content is shared.
var sharedBlob = regexp.MustCompile(`^\.\./\.\./blobs/([0-9a-f]{2})/([0-9a-f]{64})$`)

// The file that marks the folder of shared contents, and its text.
const (
	sharedMarker  = "blobs/.huggingface-shared-blobs"
	sharedVersion = "1\n"
)

// openShared opens a file of a snapshot whose content several repositories share; it returns nil
// for any other file. Every link must have exactly the form that huggingface_hub makes, and the
// last must lead to a regular file.
func (f *Folder) openShared(inside string) *os.File {
	if f.hub == "" {
		return nil
	}
	to, err := f.root.Readlink(inside)
	blob := filepath.ToSlash(filepath.Join(filepath.Dir(inside), to))
	if err != nil || filepath.IsAbs(to) || !strings.HasPrefix(blob, "blobs/") ||
		strings.Count(blob, "/") != 1 {
		return nil
	}
	to, err = f.root.Readlink(blob)
	m := sharedBlob.FindStringSubmatch(filepath.ToSlash(to))
	if err != nil || m == nil || !strings.HasPrefix(m[2], m[1]) {
		return nil
	}
	hub, err := os.OpenRoot(f.hub)
	if err != nil {
		return nil
	}
	defer hub.Close() // the file stays open
	target := "blobs/" + m[1] + "/" + m[2]
	for _, name := range []string{sharedMarker, target} {
		if info, err := hub.Lstat(name); err != nil || !info.Mode().IsRegular() {
			return nil
		}
	}
	if text, err := hub.ReadFile(sharedMarker); err != nil || string(text) != sharedVersion {
		return nil
	}
	file, err := hub.Open(target)
	if err != nil {
		return nil
	}
	return file
}

// ReadFile reads a regular file of the folder. A file of more than limit bytes is an error.
func (f *Folder) ReadFile(name string, limit int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	path := filepath.Join(f.path, name)
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, reason(path, err)
	}
	if int64(len(text)) > limit {
		return nil,
			fmt.Errorf("%s: more than %d bytes, the limit for this file: is it the right file?",
				path, limit)
	}
	return text, nil
}

// Close closes the folder, not the files that were opened through it.
func (f *Folder) Close() error { return f.root.Close() }

// File opens a regular file by a path that the user gave.
func File(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, reason(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, reason(path, err)
	}
	return file, nil
}

// reason returns an error of the file system with path in place of the path that the system was
// given.
func reason(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
