package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"
	"unicode/utf8"

	"gad/internal/folder"
)

// The names under which a model folder keeps its weights.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
)

// maxIndex bounds the index: the largest published ones take a few megabytes.
const maxIndex = 16 << 20

// Folder is the weights of a model folder: one file, or shards with an index.
type Folder struct {
	path   string
	files  []*File
	names  []string // of the tensors, sorted
	fileOf []int32  // index in files of tensor names[i]
}

// OpenFolder opens the weights of a Hugging Face folder: model.safetensors if it exists, else the
// shards that model.safetensors.index.json lists. The index and the shards must name the same
// tensors, each once. Files are opened below dir only: it refuses a name with a separator, and a
// symbolic link that leads out of dir, except within a Hugging Face cache: see internal/folder.
func OpenFolder(dir string) (*Folder, error) {
	root, err := folder.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	defer root.Close() // the files stay open
	f := &Folder{path: dir}
	if err := f.open(root); err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, err
	}
	return f, nil
}

// open opens the single file, or the index and its shards.
func (f *Folder) open(root *folder.Folder) error {
	single, err := root.Open(SingleName)
	if err == nil {
		file, err := load(single, filepath.Join(f.path, SingleName))
		if err != nil {
			return err
		}
		f.files, f.names, f.fileOf = []*File{file}, file.Names(), make([]int32, len(file.tensors))
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("safetensors: %w", err)
	}
	text, err := root.ReadFile(IndexName, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("safetensors: %s: contains neither %s nor %s: %w", f.path, SingleName,
			IndexName, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	weights, err := parseIndex(text)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", filepath.Join(f.path, IndexName), err)
	}
	return f.shards(root, weights)
}

// shards opens the files that the index names, and returns an error unless index and files have the
// same tensors. weights is the index, sorted by tensor.
func (f *Folder) shards(root *folder.Folder, weights []entry) error {
	number := map[string]int32{}
	f.names = make([]string, len(weights))
	f.fileOf = make([]int32, len(weights))
	listed := []int{} // number of tensors that the index places in file i
	for i, w := range weights {
		n, ok := number[w.value]
		if !ok {
			n = int32(len(f.files))
			shard, err := root.Open(w.value)
			if err != nil {
				return fmt.Errorf("safetensors: %w", err)
			}
			file, err := load(shard, filepath.Join(f.path, w.value))
			if err != nil {
				return err
			}
			number[w.value] = n
			f.files, listed = append(f.files, file), append(listed, 0)
		}
		if _, ok := f.files[n].Tensor(w.key); !ok {
			return fmt.Errorf("safetensors: %s: tensor %q: the index says it is here, but the file does not have it", f.files[n].path, clip(w.key))
		}
		f.names[i], f.fileOf[i] = w.key, n
		listed[n]++
	}
	for n, file := range f.files {
		if listed[n] == len(file.tensors) {
			continue
		}
		for _, name := range file.Names() {
			if i := sort.SearchStrings(f.names, name); i == len(f.names) || f.names[i] != name {
				return fmt.Errorf("safetensors: %s: tensor %q: the index does not list it",
					file.path, clip(name))
			} else if f.fileOf[i] != int32(n) {
				return fmt.Errorf("safetensors: %s: tensor %q: is also in %s", file.path,
					clip(name), filepath.Base(f.files[f.fileOf[i]].path))
			}
		}
	}
	return nil
}

// parseIndex returns an index's pairs of tensor and file name, sorted by tensor. metadata and other
// keys may hold anything.
func parseIndex(data []byte) ([]entry, error) {
	if len(data) > maxIndex {
		return nil, fmt.Errorf("index: more than %d bytes", maxIndex)
	}
	text := string(data)
	if !utf8.ValidString(text) {
		return nil, errors.New("index: not valid UTF-8")
	}
	var weights []entry
	seen := false
	c := &cursor{s: text}
	err := c.object(func(key string) error {
		if key != "weight_map" {
			return c.skip(0)
		}
		if seen {
			return c.errorf("weight_map appears twice")
		}
		seen = true
		return c.object(func(name string) error {
			file, err := c.str()
			if err != nil {
				return fmt.Errorf("tensor %q: %w", clip(name), err)
			}
			if err := plainName(file); err != nil {
				return fmt.Errorf("tensor %q: file %q: %w", clip(name), clip(file), err)
			}
			weights = append(weights, entry{name, file})
			return nil
		})
	})
	if err == nil && c.peek() != 0 {
		err = c.errorf("bytes after its end")
	}
	if err == nil && !seen {
		err = errors.New("key weight_map is missing")
	}
	if err == nil && len(weights) == 0 {
		err = errors.New("weight_map is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if name, dup := sortEntries(weights); dup {
		return nil, fmt.Errorf("index: tensor %q: appears twice", clip(name))
	}
	return weights, nil
}

// plainName returns an error unless name is a plain file name, without a separator of any system.
func plainName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return errors.New("not the name of a file")
	case strings.ContainsAny(name, `/\:`) || strings.ContainsRune(name, 0):
		return errors.New("must be a plain file name: shards must be in the folder of the index")
	}
	return nil
}

// Names returns the names of all tensors, sorted. The caller must not change the slice.
func (f *Folder) Names() []string { return f.names }

// Tensor returns the tensor of this name.
func (f *Folder) Tensor(name string) (*Tensor, bool) {
	i := sort.SearchStrings(f.names, name)
	if i == len(f.names) || f.names[i] != name {
		return nil, false
	}
	return f.files[f.fileOf[i]].Tensor(name)
}

// Close closes all files. The Data of their tensors must not be used afterwards.
func (f *Folder) Close() error {
	var errs []error
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	f.files, f.names, f.fileOf = nil, nil, nil
	return errors.Join(errs...)
}
