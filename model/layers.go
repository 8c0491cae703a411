package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gad/model/internal/sequence"
)

// ParseLayers reads a selection of the layers 0 to n-1 of a model: numbers and ranges, separated by
// commas. A range is FIRST-LAST, both included, or FIRST-LAST:STEP. It returns the layers in
// ascending order and refuses a layer that is named twice.
func ParseLayers(text string, n int) ([]int, error) {
	var layers []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, step, err := layerRange(strings.TrimSpace(part))
		if err == nil && last >= n {
			err = fmt.Errorf("there is no layer %d", last)
		}
		if err != nil {
			return nil,
				fmt.Errorf(
					"%q: %w: expected layers such as 0,1,5-9 or 0-%d:2; the model has %d, 0 to %d",
					text, err, n-1, n, n-1)
		}
		for i := first; i <= last; i += step {
			layers = append(layers, i)
		}
	}
	slices.Sort(layers)
	for i := range layers[1:] {
		if layers[i] == layers[i+1] {
			return nil, fmt.Errorf("%q: layer %d is named twice: each of the model's %d layers is kept once or left out", text, layers[i], n)
		}
	}
	return layers, nil
}

// layerRange reads N, FIRST-LAST or FIRST-LAST:STEP.
func layerRange(part string) (first, last, step int, err error) {
	number := func(s string) int {
		n, e := strconv.ParseUint(s, 10, 31)
		if e != nil && err == nil {
			err = fmt.Errorf("%q is no layer number", s)
		}
		return int(n)
	}
	ends, by, stepped := strings.Cut(part, ":")
	from, to, ranged := strings.Cut(ends, "-")
	step, first = 1, number(from)
	last = first
	if ranged {
		last = number(to)
	}
	if stepped {
		step = number(by)
	}
	switch {
	case err != nil:
	case stepped && !ranged:
		err = fmt.Errorf("%q has a step and no range", part)
	case step < 1:
		err = fmt.Errorf("%q has a step of 0", part)
	case last < first:
		err = fmt.Errorf("%q ends before it begins", part)
	}
	return first, last, step, err
}

// checkLayers refuses layers that a model of n layers does not have, or that do not ascend.
func checkLayers(layers []int, n int) error {
	for i, l := range layers {
		if l < 0 || l >= n || i > 0 && l <= layers[i-1] {
			return fmt.Errorf("layers %v: expected ascending numbers from 0 to %d", layers, n-1)
		}
	}
	return nil
}

// keepLayers returns withLayers of a configuration that was read from a file, with config.json cut
// likewise: num_hidden_layers, max_window_layers, and lists with an entry for each layer. A rule by
// which a family distinguishes its layers, such as every fourth one, becomes a list.
func (c Config) keepLayers(layers []int) (Config, error) {
	next := c.withLayers(layers)
	next.raw = maps.Clone(c.raw)
	values := map[string]any{"num_hidden_layers": len(layers)}
	for key, v := range c.raw {
		var list []json.RawMessage
		if strings.Contains(key, "layer") && json.Unmarshal(v, &list) == nil &&
			len(list) == c.Layers {
			values[key] = sequence.Pick(list, layers)
		}
	}
	// Layers from max_window_layers on may have a window.
	var full int
	if has, err := c.Key("max_window_layers", &full); err == nil && has && full < c.Layers {
		values["max_window_layers"], _ = slices.BinarySearch(layers, full)
	}
	family := map[string]any{}
	next.encodeFamily(family)
	for _, key := range []string{"layer_types", "no_rope_layers"} {
		if list, ok := family[key]; ok {
			values[key] = list
		}
	}
	for key, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return c, fmt.Errorf("config.json: key %q: %w", key, err)
		}
		next.raw[key] = b
	}
	if next.Layers > 0 && next.stale() {
		return c, fmt.Errorf("config.json: cannot be written for some of the layers: %w",
			ErrUnsupported)
	}
	return next, nil
}

// wholeName returns the name in the whole model of parameter name of a model with only these
// layers.
func wholeName(name string, layers []int) string {
	const pre = "model.layers."
	rest, ok := strings.CutPrefix(name, pre)
	if !ok || layers == nil {
		return name
	}
	number, rest, _ := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	if err != nil {
		return name
	}
	return fmt.Sprintf("%s%d.%s", pre, layers[i], rest)
}
