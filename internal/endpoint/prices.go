package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"gad/internal/vfs"
)

// Price is what a model costs, in USD per million tokens.
type Price struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}

// Cost is the price of so many tokens.
func (p Price) Cost(prompt, answer float64) float64 {
	return (prompt*p.Input + answer*p.Output) / 1e6
}

// ReadPrice reads a model's price from a file {"MODEL": {"input": 2.5, "output": 10}}.
func ReadPrice(fsys vfs.FS, path, model string) (Price, error) {
	info, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Price{}, fmt.Errorf(`endpoint: price file %s: does not exist: write one such as {"%s": {"input": 2.5, "output": 10}}, in USD per million tokens`, path, model)
	}
	if err != nil {
		return Price{}, fmt.Errorf("endpoint: price file: %w", err)
	}
	if info.Mode().IsDir() {
		return Price{}, fmt.Errorf("endpoint: price file %s: is a folder: give a file", path)
	}
	if info.Size() > 1<<20 {
		return Price{}, fmt.Errorf("endpoint: price file %s: has %d bytes: that is no list of prices", path, info.Size())
	}
	raw, err := fsys.ReadFile(path)
	if err != nil {
		return Price{}, fmt.Errorf("endpoint: price file: %w", err)
	}
	var list map[string]Price
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		return Price{}, fmt.Errorf(`endpoint: price file %s: %v: write {"MODEL": {"input": 2.5, "output": 10}}, in USD per million tokens`, path, err)
	}
	p, ok := list[model]
	if !ok {
		return Price{}, fmt.Errorf("endpoint: price file %s: has no model %q, only %s", path, model, strings.Join(slices.Sorted(maps.Keys(list)), ", "))
	}
	if !(p.Input >= 0 && p.Output >= 0) || math.IsInf(p.Input+p.Output, 0) {
		return Price{}, fmt.Errorf("endpoint: price file %s: model %q: prices must not be negative", path, model)
	}
	return p, nil
}
