package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gad/checkpoint"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// WeightDistance is the distance between the weights of two models.
type WeightDistance struct {
	A, B   string      // folders of the weights
	Layers []LayerDist // in the order of the network
	All    LayerDist
}

// LayerDist is the distance in a part of the network: sums over its elements in float64.
type LayerDist struct {
	Name    string
	Tensors int
	Size    float64 // Σ a²
	Diff    float64 // Σ (b - a)²
}

// Relative returns |b - a| / |a| (L2): 0 if both are equal, +Inf if only a is all zeros.
func (d LayerDist) Relative() float64 {
	if d.Diff == 0 {
		return 0
	}
	return math.Sqrt(d.Diff / d.Size)
}

// add adds the sums of o.
func (d *LayerDist) add(o LayerDist) {
	d.Tensors, d.Size, d.Diff = d.Tensors+o.Tensors, d.Size+o.Size, d.Diff+o.Diff
}

// errOther reports two folders with different tensors (names or shapes).
var errOther = errors.New("other tensors")

// Compare compares the weights of two students. Each is a run (its newest checkpoint), a
// checkpoint, or a folder of a model or of adapters.
func Compare(fsys checkpoint.FS, a, b string) (*WeightDistance, error) {
	fsys = vfs.OrDisk(fsys)
	x := &WeightDistance{}
	var err error
	if x.A, err = weightsIn(fsys, a); err != nil {
		return nil, err
	}
	if x.B, err = weightsIn(fsys, b); err != nil {
		return nil, err
	}
	x.Layers, x.All, err = distances(x.A, x.B)
	if errors.Is(err, errOther) {
		err = fmt.Errorf("%w: %w: give two models of one shape, both whole or both adapters",
			config.ErrConfig,
			err)
	}
	return x, err
}

// weightsIn returns the folder of the student's weights that path names.
func weightsIn(fsys vfs.FS, path string) (string, error) {
	info, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "",
			fmt.Errorf("%w: doctor: %s: no such folder: give a run, a checkpoint or a model folder",
				config.ErrConfig, path)
	case err != nil:
		return "", fmt.Errorf("doctor: %w", err)
	case !info.IsDir():
		return "",
			fmt.Errorf("%w: doctor: %s: is a file: give a run, a checkpoint or a model folder",
				config.ErrConfig, path)
	}
	if w, err := weightsOf(path); err == nil {
		return path, w.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	dir, _, err := saved.Find(fsys, path)
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return "", fmt.Errorf("%w: doctor: %s: contains no weights: give a run, a checkpoint or a model folder (model.safetensors or adapter_model.safetensors)", config.ErrConfig, path)
	case err != nil:
		return "", err
	}
	return filepath.Join(dir, "actor"), nil
}

var layerName = regexp.MustCompile(`\.layers\.([0-9]+)\.`)

// layerOf returns the part of the network that has a tensor, and a sort key for it.
func layerOf(tensor string) (name string, place int) {
	const behind = 1 << 30
	if m := layerName.FindStringSubmatch(tensor); m != nil {
		n, err := strconv.Atoi(m[1])
		if err == nil {
			return "layer " + m[1], n
		}
	}
	switch {
	case strings.Contains(tensor, "embed_tokens"):
		return "embedding", -1
	case strings.HasSuffix(tensor, "model.norm.weight"):
		return "last norm", behind
	}
	return strings.TrimSuffix(tensor, ".weight"), behind + 1
}

// distances compares the tensors of two folders, by layer and in all. The error wraps errOther if
// the tensors differ in name or shape.
func distances(was, now string) (layers []LayerDist, all LayerDist, err error) {
	all.Name = "all"
	a, err := weightsOf(was)
	if err != nil {
		return nil, all, err
	}
	defer a.Close()
	b, err := weightsOf(now)
	if err != nil {
		return nil, all, err
	}
	defer b.Close()
	for _, name := range a.Names() {
		if _, ok := b.Tensor(name); !ok {
			return nil, all, fmt.Errorf("doctor: %s and %s have %w: %q is in the first alone", was,
				now,
				errOther, name)
		}
	}
	places, of := map[string]int{}, map[string]*LayerDist{}
	for _, name := range b.Names() {
		ta, ok := a.Tensor(name)
		tb, _ := b.Tensor(name)
		if !ok {
			return nil, all, fmt.Errorf("doctor: %s and %s have %w: %q is in the second alone", was,
				now, errOther, name)
		}
		if !slices.Equal(ta.Shape, tb.Shape) {
			return nil, all, fmt.Errorf(
				"doctor: %s and %s have %w: %q is %v in the first and %v in the second", was, now,
				errOther, name, ta.Shape, tb.Shape)
		}
		n := 1
		for _, d := range ta.Shape {
			n *= d
		}
		xs, ys := make([]float32, n), make([]float32, n)
		if err := errors.Join(ta.Float32(xs), tb.Float32(ys)); err != nil {
			return nil, all, fmt.Errorf("%s: %w", now, err)
		}
		sum := LayerDist{Tensors: 1}
		for i, x := range xs {
			d := float64(ys[i]) - float64(x)
			sum.Size += float64(x) * float64(x)
			sum.Diff += d * d
		}
		layer, place := layerOf(name)
		if of[layer] == nil {
			of[layer], places[layer] = &LayerDist{Name: layer}, place
		}
		of[layer].add(sum)
		all.add(sum)
	}
	for _, name := range slices.SortedFunc(maps.Keys(of), func(x, y string) int {
		if places[x] != places[y] {
			return places[x] - places[y]
		}
		return strings.Compare(x, y)
	}) {
		layers = append(layers, *of[name])
	}
	return layers, all, nil
}

// String returns the distances as a table for people.
func (x *WeightDistance) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "A  %s\nB  %s\n", x.A, x.B)
	width := len("all")
	for _, d := range x.Layers {
		width = max(width, len(d.Name))
	}
	fmt.Fprintf(&b, "%-*s  |B - A| / |A|\n", width, "")
	for _, d := range append(slices.Clone(x.Layers), x.All) {
		how := fmt.Sprintf("%.4g", d.Relative())
		switch {
		case d.Diff == 0:
			how = "0: equal"
		case d.Size == 0:
			how = "A is all zeros"
		}
		fmt.Fprintf(&b, "%-*s  %s\n", width, d.Name, how)
	}
	return b.String()
}
