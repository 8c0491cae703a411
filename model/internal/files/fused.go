package files

import (
	"slices"
	"strings"

	"gad/internal/safetensors"
)

// Arrangement says how a folder stores the weights of a model's layers where it does not store each
// in a tensor of its own, with the rows in the model's order. The zero Arrangement changes nothing.
type Arrangement struct {
	Fused []Fused
	// by a weight's name: the row in the folder, counted in the weight, of a row of the model
	Reordered map[string]func(row int) int
}

// Fused is a matrix of a folder whose rows are those of several weights, one below the other.
type Fused struct {
	Whole string // name behind the layer's number and before ".weight" or ".lora_B.weight"
	Parts []Part
}

// Part is a weight in a fused matrix.
type Part struct {
	Name string
	Rows int
}

// rowwise are the endings of tensors that have a row, or an element, for each output of a layer.
var rowwise = []string{".weight", ".bias", ".lora_B.weight"}

// split cuts the name of a tensor with an output a row into what stands before and behind the name
// of its layer, one of names.
func split(name string, names ...string) (before, part, suffix string, ok bool) {
	for _, suffix := range rowwise {
		rest, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		for _, part := range names {
			if before, ok := strings.CutSuffix(rest, "."+part); ok {
				return before + ".", part, suffix, true
			}
		}
	}
	return "", "", "", false
}

// place returns the tensor of the folder that has the part's weight, and the rows of it.
func (a Arrangement) place(name string) (whole string, at, rows, all int, fused bool) {
	for _, f := range a.Fused {
		at, all = 0, 0
		for _, p := range f.Parts {
			all += p.Rows
		}
		for _, p := range f.Parts {
			if before, _, suffix, ok := split(name, p.Name); ok {
				return before + f.Whole + suffix, at, p.Rows, all, true
			}
			at += p.Rows
		}
	}
	return name, 0, 0, 0, false
}

// order returns the row in the folder of each row of a tensor; nil: the same.
func (a Arrangement) order(name string) func(row int) int {
	for part, order := range a.Reordered {
		if _, _, _, ok := split(name, part); ok {
			return order
		}
	}
	return nil
}

// View returns f with each weight in a tensor of its own, rows in the model's order.
func (a Arrangement) View(f Tensors) Tensors {
	if len(a.Fused) == 0 && len(a.Reordered) == 0 {
		return f
	}
	return arranged{f, a}
}

// arranged is a folder's tensors as its model has them.
type arranged struct {
	Tensors
	a Arrangement
}

// Names returns the names of the parts in place of the fused matrices.
func (v arranged) Names() (names []string) {
next:
	for _, name := range v.Tensors.Names() {
		for _, f := range v.a.Fused {
			if before, _, suffix, ok := split(name, f.Whole); ok {
				for _, p := range f.Parts {
					names = append(names, before+p.Name+suffix)
				}
				continue next
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Tensor returns the tensor of a weight. Where the folder's has another number of rows than the
// parts together, it returns that one, whose shape tells.
func (v arranged) Tensor(name string) (*OnDisk, bool) {
	whole, at, rows, all, fused := v.a.place(name)
	order := v.a.order(name)
	t, ok := v.Tensors.Tensor(whole)
	if fused && !ok { // a GGUF file may have the part by itself
		return v.Tensors.Tensor(name)
	}
	if !ok || len(t.Shape) == 0 || !fused && order == nil || fused && t.Shape[0] != all {
		return t, ok
	}
	width := 1
	for _, n := range t.Shape[1:] {
		width *= n
	}
	d := *t
	d.Name, d.Shape, d.Data = name, slices.Clone(t.Shape), nil
	if fused {
		d.Shape[0] = rows
	}
	read := func(dst []float32, lo int) error { return t.Read(dst, at*width+lo) }
	d.Read = InOrder(read, order, width)
	return &d, true
}

// InOrder returns a reader of the rows of width elements that order gives, row by row; read reads
// them as they are. order nil is read itself.
func InOrder(read func(dst []float32, lo int) error, order func(row int) int,
	width int) func(dst []float32, lo int) error {
	if order == nil {
		return read
	}
	return func(dst []float32, lo int) error {
		for len(dst) > 0 {
			row, col := lo/width, lo%width
			n := min(width-col, len(dst))
			from := order(row)
			// rows that follow one another there are read together
			for rows := 1; n < len(dst) && order(row+rows) == from+rows; rows++ {
				n = min(n+width, len(dst))
			}
			if err := read(dst[:n], from*width+col); err != nil {
				return err
			}
			dst, lo = dst[n:], lo+n
		}
		return nil
	}
}

// Weight is a tensor that is written to a folder.
type Weight struct {
	Name  string
	Shape []int
	DType safetensors.DType
	Read  func(dst []float32, lo int) error // as OnDisk.Read
}

// Stored returns a model's weights as a folder stores them: rows in the folder's order, parts of a
// fused matrix as one tensor, in the place of the first of them.
func (a Arrangement) Stored(weights []Weight) (list []Weight) {
	at := map[string]int{} // where a fused matrix is in list
	parts := map[string][]Weight{}
	for _, w := range weights {
		width := 1
		for _, n := range w.Shape[1:] {
			width *= n
		}
		if order := a.order(w.Name); order != nil {
			w.Read = InOrder(w.Read, inverse(order, w.Shape[0]), width)
		}
		whole, _, _, all, fused := a.place(w.Name)
		if !fused {
			list = append(list, w)
			continue
		}
		parts[whole] = append(parts[whole], w)
		if _, ok := at[whole]; !ok {
			at[whole] = len(list)
			shape := slices.Clone(w.Shape)
			shape[0] = all
			list = append(list, Weight{Name: whole, Shape: shape, DType: w.DType})
		}
	}
	for whole, i := range at {
		list[i].Read = concat(parts[whole])
	}
	return list
}

// inverse returns the row that order takes to each of n rows.
func inverse(order func(row int) int, n int) func(row int) int {
	back := make([]int, n+1)
	back[n] = -1 // no row follows the last
	for row := range n {
		back[order(row)] = row
	}
	return func(row int) int { return back[row] }
}

// concat returns a reader of the elements of parts, one behind the other.
func concat(parts []Weight) func(dst []float32, lo int) error {
	return func(dst []float32, lo int) error {
		for _, p := range parts {
			size := 1
			for _, n := range p.Shape {
				size *= n
			}
			if n := min(size-lo, len(dst)); n > 0 {
				if err := p.Read(dst[:n], lo); err != nil {
					return err
				}
				dst, lo = dst[n:], lo+n
			}
			if lo -= size; len(dst) == 0 {
				return nil
			}
		}
		return nil
	}
}

// file is the tensors of one safetensors file.
type file struct{ *safetensors.File }

// FileOf returns the tensors of a safetensors file.
func FileOf(f *safetensors.File) Tensors { return file{f} }

func (f file) Tensor(name string) (*OnDisk, bool) {
	t, ok := f.File.Tensor(name)
	if !ok {
		return nil, false
	}
	return Plain(t), true
}
