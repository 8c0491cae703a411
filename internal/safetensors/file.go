// Package safetensors reads and writes the files that hold a model's weights: 8 bytes with the
// length of a header, a JSON header with type, shape and offsets of each tensor, and the tensors'
// bytes (the format of github.com/huggingface/safetensors).
//
//	file.go     a file: start here
//	folder.go   a model folder: one file, or shards with an index
//	header.go   the header: parsed, and its tensors checked against the data
//	json.go     the strict JSON reader
//	convert.go  elements from and to float32
//	write.go    the writer
//
// Reading is strict and bounded. A file that two readers could understand in two ways is refused
// (holes, overlaps, duplicate keys, keys in another case, bytes after the end), and every length is
// checked against the file's size before anything is allocated. Data is mapped, not read: opening
// costs the header only.
package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"

	"gad/internal/folder"
)

// File is one open file.
type File struct {
	header
	path  string
	unmap func() error
}

// gitLFS is the header length that the first 8 bytes of a Git LFS pointer, "version ", stand for.
var gitLFS = binary.LittleEndian.Uint64([]byte("version "))

// Open opens one file and checks all of its header; see the package's comment. The path may be a
// symbolic link, but must lead to a regular file.
//
// The data is mapped into memory where the system can (Unix) and read elsewhere. A mapped file must
// not be truncated while it is open: replace model files by renaming.
func Open(path string) (*File, error) {
	f, err := folder.File(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return load(f, path)
}

// load reads the header of an open file, maps the file, and closes it.
func load(f *os.File, path string) (*File, error) {
	defer f.Close() // only read from
	h, data, unmap, err := readFile(f)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	for i := range h.tensors {
		t := &h.tensors[i]
		t.Data = data[t.begin:t.end:t.end]
	}
	return &File{header: *h, path: path, unmap: unmap}, nil
}

// readFile reads and parses the header, then maps the whole file. It reads the header through the
// file, not through the mapping, so that a read error is an error and not a fault.
func readFile(f *os.File) (h *header, data []byte, unmap func() error, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, nil, err
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return nil, nil, nil, errors.New("not a regular file")
	case size < 8:
		return nil, nil, nil, fmt.Errorf("file: %d bytes: too short for a safetensors file", size)
	case size > math.MaxInt:
		return nil, nil, nil, fmt.Errorf("file: %d bytes are too many for this machine", size)
	}
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return nil, nil, nil, fmt.Errorf("header: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > maxHeader:
		if n == gitLFS {
			return nil, nil, nil, errors.New(
				"is a Git LFS pointer, not the weights: fetch them with git lfs pull")
		}
		return nil, nil, nil, fmt.Errorf(
			"header: length of %d bytes, the limit is %d: not a safetensors file", n, maxHeader)
	case n > uint64(size-8):
		return nil, nil, nil, fmt.Errorf(
			"header: its length says %d bytes, the file has %d after it: is it cut short?", n,
			size-8)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, nil, nil, fmt.Errorf("header: %w", err)
	}
	h, err = parseHeader(string(text), size-8-int64(n))
	if err != nil {
		return nil, nil, nil, err
	}
	all, unmap, err := folder.Map(f, int(size))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("map: %w", err)
	}
	return h, all[8+n:], unmap, nil
}

// Names returns the names of the tensors, sorted.
func (f *File) Names() []string {
	names := make([]string, len(f.tensors))
	for i := range f.tensors {
		names[i] = f.tensors[i].Name
	}
	return names
}

// Tensor returns the tensor of this name.
func (f *File) Tensor(name string) (*Tensor, bool) {
	i := sort.Search(len(f.tensors), func(i int) bool { return f.tensors[i].Name >= name })
	if i == len(f.tensors) || f.tensors[i].Name != name {
		return nil, false
	}
	return &f.tensors[i], true
}

// Metadata returns the string pairs of the header's __metadata__.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.meta))
	for _, e := range f.meta {
		m[e.key] = e.value
	}
	return m
}

// Close unmaps the file. The Data of its tensors must not be used afterwards.
func (f *File) Close() error {
	if f.unmap == nil {
		return nil
	}
	unmap := f.unmap
	f.unmap, f.tensors = nil, nil
	if err := unmap(); err != nil {
		return fmt.Errorf("safetensors: %s: unmap: %w", f.path, err)
	}
	return nil
}
