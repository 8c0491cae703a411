// Package files reads the weights and settings of a model from disk, by Hugging Face's names.
//
//	place.go   a Hugging Face folder, or a GGUF file that is read as one
//	gguf.go    llama.cpp's names, keys and orders of rows
//	prefix.go  tensors whose names have one prefix more or less; models that also read images
//	widen.go   tensors to float32, on all cores
package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gad/internal/folder"
	"gad/internal/gguf"
	"gad/internal/safetensors"
)

// place is the source of a model: a Hugging Face folder, or a GGUF file that is read as one.
// PlaceOf is the only function that tells them apart; every function that takes the path of a model
// calls it.
type place interface {
	// Config returns the text of config.json, and its path for errors.
	Config() (text []byte, name string, err error)
	// Tensors opens the weights, under Hugging Face's names.
	Tensors() (Tensors, error)
	// Digest returns the SHA-256 of the files of weights, in hexadecimal.
	Digest() (string, error)
}

// Tensors is an open set of named weights.
type Tensors interface {
	Names() []string // sorted
	Tensor(name string) (*OnDisk, bool)
	Close() error // afterwards no tensor may be read
}

// OnDisk is one tensor of a file, not yet read.
type OnDisk struct {
	Name  string
	DType safetensors.DType // of the elements; F32 for every tensor of a GGUF file
	Shape []int
	Data  []byte // the stored bytes; nil for a GGUF file
	// Read writes elements lo to lo+len(dst)-1, in row-major order, to dst as float32.
	Read func(dst []float32, lo int) error
}

// Len returns the number of elements.
func (t *OnDisk) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// PlaceOf returns the place at path: a GGUF file if the file there is one, else a Hugging Face
// folder. Whether it exists shows when it is read.
func PlaceOf(path string) place {
	if gguf.Is(path) {
		return ggufFile(path)
	}
	return hfFolder(path)
}

// HasModel reports whether path holds a whole model: config.json, or a GGUF file. A folder that
// holds only adapters does not.
func HasModel(path string) bool {
	_, err := os.Stat(filepath.Join(path, "config.json"))
	return err == nil || gguf.Is(path)
}

// hfFolder is the path of a Hugging Face folder, or of its config.json alone, without weights.
type hfFolder string

// Config returns the folder's config.json, or the file dir itself if it is named *.json.
func (dir hfFolder) Config() (text []byte, name string, err error) {
	at, file := string(dir), "config.json"
	if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() {
		if !strings.HasSuffix(at, ".json") {
			return nil, at, fmt.Errorf(
				"model: %s: is not a config.json: give that file, or the folder that contains it",
				at)
		}
		at, file = filepath.Dir(at), filepath.Base(at)
	}
	root, err := folder.Open(at)
	if err != nil {
		return nil, at, fmt.Errorf("model: %w", err)
	}
	defer root.Close() // only read from
	text, err = root.ReadFile(file, MostConfig)
	if err != nil {
		err = fmt.Errorf("model: %w", err)
	}
	return text, filepath.Join(at, file), err
}

// Tensors opens the folder's safetensors files.
func (dir hfFolder) Tensors() (Tensors, error) {
	f, err := safetensors.OpenFolder(string(dir))
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return hfTensors{f}, nil
}

// Digest returns the SHA-256 of a list of the folder's safetensors files, sorted by name: a line
// "name digest" each.
func (dir hfFolder) Digest() (string, error) {
	names, err := filepath.Glob(filepath.Join(string(dir), "*.safetensors"))
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("model: %s: digest: no weights there", string(dir))
	}
	slices.Sort(names)
	sums, errs := make([]string, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			sum, err := fileDigest(name)
			sums[i], errs[i] = fmt.Sprintf("%s %s\n", filepath.Base(name), sum), err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(sums, "")))), nil
}

// fileDigest returns the SHA-256 of a file, in hexadecimal.
func fileDigest(path string) (string, error) {
	h := sha256.New()
	f, err := os.Open(path)
	if err == nil {
		_, err = io.Copy(h, f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return "", fmt.Errorf("model: digest: %w", err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// hfTensors is the open safetensors files of a folder.
type hfTensors struct{ *safetensors.Folder }

func (f hfTensors) Tensor(name string) (*OnDisk, bool) {
	t, ok := f.Folder.Tensor(name)
	if !ok {
		return nil, false
	}
	return Plain(t), true
}

// Plain returns t, a tensor of a safetensors file, as an OnDisk of the same bytes.
func Plain(t *safetensors.Tensor) *OnDisk {
	width := t.DType.Size()
	return &OnDisk{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: t.Data,
		Read: func(dst []float32, lo int) error {
			part := safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: []int{len(dst)},
				Data: t.Data[lo*width : (lo+len(dst))*width]}
			return part.Float32(dst)
		}}
}

// MostConfig is the largest config.json that is read, in bytes.
const MostConfig = 1 << 20

// DTypes has the safetensors code of each dtype name of config.json.
var DTypes = map[string]safetensors.DType{"float32": safetensors.F32,
	"bfloat16": safetensors.BF16, "float16": safetensors.F16}
