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
	path  string
	files []*File
	from  []int32 // of tensor i of names, the file
	names []string
}

// OpenFolder opens the weights of a Hugging Face folder: model.safetensors if it
// is there, else the shards that model.safetensors.index.json lists. The index
// and the shards must name the same tensors, each once. Files are opened below
// dir only: a name with a separator is refused, and so is a symbolic link that
// leads out of dir, but for folders in the cache of Hugging Face: see
// internal/folder.
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

func (f *Folder) open(root *folder.Folder) error {
	single, err := root.Open(SingleName)
	if err == nil {
		file, err := load(single, filepath.Join(f.path, SingleName))
		if err != nil {
			return err
		}
		f.files, f.names, f.from = []*File{file}, file.Names(), make([]int32, len(file.tensors))
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

// shards opens the files that the index names and holds both against each other.
func (f *Folder) shards(root *folder.Folder, weights []entry) error {
	number := map[string]int32{}
	f.names = make([]string, len(weights))
	f.from = make([]int32, len(weights))
	listed := []int{} // tensors that the index places in file i
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
		f.names[i], f.from[i] = w.key, n
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
			} else if f.from[i] != int32(n) {
				return fmt.Errorf("safetensors: %s: tensor %q: is also in %s", file.path,
					clip(name), filepath.Base(f.files[f.from[i]].path))
			}
		}
	}
	return nil
}

// parseIndex reads an index: the tensors by name, each with its file's name.
// metadata and other keys may hold anything.
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

// plainName refuses what is not the name of a file in this very folder, on any
// system.
func plainName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return errors.New("not the name of a file")
	case strings.ContainsAny(name, `/\:`) || strings.ContainsRune(name, 0):
		return errors.New("must be a plain file name: shards must be in the folder of the index")
	}
	return nil
}

// Names returns the names of all tensors, sorted. The caller must not change it.
func (f *Folder) Names() []string { return f.names }

// Tensor returns the tensor of this name.
func (f *Folder) Tensor(name string) (*Tensor, bool) {
	i := sort.SearchStrings(f.names, name)
	if i == len(f.names) || f.names[i] != name {
		return nil, false
	}
	return f.files[f.from[i]].Tensor(name)
}

// Close closes all files. No Data of them may be used any more.
func (f *Folder) Close() error {
	var errs []error
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	f.files, f.names, f.from = nil, nil, nil
	return errors.Join(errs...)
}
