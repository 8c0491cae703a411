package endpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"gad/internal/vfs"
)

// Price is a model's price, in USD per million tokens.
type Price struct {
	Input, Output float64
	Cached        float64 // input tokens that the endpoint had in a cache
}

// Cost returns the price of so many tokens, none of them from a cache, in USD.
func (p Price) Cost(prompt, answer float64) float64 {
	return (prompt*p.Input + answer*p.Output) / 1e6
}

// UsageCost returns the price of the tokens that a server has counted, in USD.
func (p Price) UsageCost(u Usage) float64 {
	return p.Cost(float64(u.PromptTokens), float64(u.CompletionTokens)) -
		float64(u.CachedTokens)*(p.Input-p.Cached)/1e6
}

// ReadPrice reads a model's price from a file {"MODEL": {"input": 2.5, "output": 10}}. A
// "cached_input" is the price of tokens from a cache; without it they cost as much as input.
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
		return Price{}, fmt.Errorf(
			"endpoint: price file %s: has %d bytes: that is no list of prices", path, info.Size())
	}
	raw, err := fsys.ReadFile(path)
	if err != nil {
		return Price{}, fmt.Errorf("endpoint: price file: %w", err)
	}
	var list map[string]struct {
		Input, Output *float64
		Cached        *float64 `json:"cached_input"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		return Price{}, fmt.Errorf(`endpoint: price file %s: %v: write {"MODEL": {"input": 2.5, "output": 10}}, in USD per million tokens`, path, err)
	}
	x, ok := list[model]
	if !ok {
		return Price{}, fmt.Errorf("endpoint: price file %s: has no model %q, only %s", path, model,
			strings.Join(slices.Sorted(maps.Keys(list)), ", "))
	}
	if x.Input == nil || x.Output == nil {
		return Price{}, fmt.Errorf("endpoint: price file %s: model %q: needs input and output: write 0 for what costs nothing", path, model)
	}
	p := Price{Input: *x.Input, Output: *x.Output, Cached: *cmp.Or(x.Cached, x.Input)}
	if !(p.Input >= 0 && p.Output >= 0 && p.Cached >= 0) {
		return Price{}, fmt.Errorf("endpoint: price file %s: model %q: prices must not be negative",
			path, model)
	}
	return p, nil
}
