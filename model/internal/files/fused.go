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
	// above 1: rows alternate, the first of so many groups of each part, then the second of each
	Groups int
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

// placed is where a folder has a weight: some rows of a tensor.
type placed struct {
	whole string          // the tensor's name
	rows  int             // of the weight
	all   int             // of the tensor; 0: the weight is the tensor
	row   func(i int) int // row of the tensor that has the weight's row i, in the folder's order
}

// place returns the place of a weight.
func (a Arrangement) place(name string) placed {
	for _, f := range a.Fused {
		at, all := 0, 0
		for _, p := range f.Parts {
			all += p.Rows
		}
		for _, p := range f.Parts {
			if before, _, suffix, ok := split(name, p.Name); ok {
				groups := max(f.Groups, 1)
				own, first, each := p.Rows/groups, at/groups, all/groups
				return placed{before + f.Whole + suffix, p.Rows, all,
					func(i int) int { return i/own*each + first + i%own }}
			}
			at += p.Rows
		}
	}
	return placed{whole: name, row: func(i int) int { return i }}
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
	p := v.a.place(name)
	order := v.a.order(name)
	t, ok := v.Tensors.Tensor(p.whole)
	if p.all > 0 && !ok { // a GGUF file may have the part by itself
		return v.Tensors.Tensor(name)
	}
	if !ok || len(t.Shape) == 0 || p.all == 0 && order == nil || p.all > 0 && t.Shape[0] != p.all {
		return t, ok
	}
	width := 1
	for _, n := range t.Shape[1:] {
		width *= n
	}
	d := *t
	d.Name, d.Shape, d.Data = name, slices.Clone(t.Shape), nil
	if p.all > 0 {
		d.Shape[0] = p.rows
	}
	rows := d.Shape[0]
	d.Read = InOrder(t.Read, func(i int) int {
		if i >= rows { // no row follows the last
			return -1
		}
		if order != nil {
			i = order(i)
		}
		return p.row(i)
	}, width)
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
	rows := map[string][]int{} // by fused matrix: the folder's row of each row of its parts
	for _, w := range weights {
		width := 1
		for _, n := range w.Shape[1:] {
			width *= n
		}
		if order := a.order(w.Name); order != nil {
			w.Read = InOrder(w.Read, inverse(order, w.Shape[0]), width)
		}
		p := a.place(w.Name)
		if p.all == 0 {
			list = append(list, w)
			continue
		}
		if _, ok := at[p.whole]; !ok {
			at[p.whole] = len(list)
			shape := slices.Clone(w.Shape)
			shape[0] = p.all
			list = append(list, Weight{Name: p.whole, Shape: shape, DType: w.DType})
		}
		parts[p.whole] = append(parts[p.whole], w)
		for i := range p.rows {
			rows[p.whole] = append(rows[p.whole], p.row(i))
		}
	}
	for whole, i := range at {
		list[i].Read = concat(parts[whole])
		if from := rows[whole]; !slices.IsSorted(from) {
			width := 1
			for _, n := range list[i].Shape[1:] {
				width *= n
			}
			to := inverse(func(row int) int { return from[row] }, len(from))
			list[i].Read = InOrder(list[i].Read, to, width)
		}
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
