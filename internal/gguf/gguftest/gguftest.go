// Package gguftest reads GGUF files for tests. It is written from the description of
// the format and shares nothing with the writer. It trusts its input: a damaged file
// makes it panic.
package gguftest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// File is what a file contains.
type File struct {
	Pairs   map[string]any // uint32, int32, uint64, float32, bool, string, []string, []int32, []bool
	Order   []string       // the tensors' names
	Tensors map[string]Tensor
}

// Tensor is one tensor of a file.
type Tensor struct {
	Type  uint32 // by ggml's numbers: 0 is f32, 1 f16, 8 q8_0, 30 bf16
	Shape []int  // row-major, the other way round than in the file
	Data  []byte
}

type reader struct {
	b  []byte
	at int
}

// take returns the next n bytes.
func (r *reader) take(n int) []byte {
	out := r.b[r.at : r.at+n]
	r.at += n
	return out
}
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) str() string { return string(r.take(int(r.u64()))) }

// value reads a value of a type, given by the format's number. Of arrays it reads those of strings,
// of int32 and of booleans.
func (r *reader) value(kind uint32) any {
	switch kind {
	case 4:
		return r.u32()
	case 5:
		return int32(r.u32())
	case 6:
		return math.Float32frombits(r.u32())
	case 7:
		return r.take(1)[0] != 0
	case 8:
		return r.str()
	case 10:
		return r.u64()
	case 9:
		elem, n := r.u32(), int(r.u64())
		var texts []string
		var ints []int32
		var bools []bool
		for range n {
			switch x := r.value(elem).(type) {
			case string:
				texts = append(texts, x)
			case int32:
				ints = append(ints, x)
			case bool:
				bools = append(bools, x)
			}
		}
		switch elem {
		case 7:
			return bools
		case 8:
			return texts
		}
		return ints
	}
	panic(fmt.Sprint("a value of type ", kind))
}

// Parse reads a file. It returns an error unless magic, version, alignment, padding and the order
// of the offsets are as the format says.
func Parse(b []byte) (File, error) {
	r := &reader{b: b}
	if string(r.take(4)) != "GGUF" || r.u32() != 3 {
		return File{}, fmt.Errorf("header % x", b[:8])
	}
	tensors, pairs := int(r.u64()), int(r.u64())
	f := File{Pairs: map[string]any{}, Tensors: map[string]Tensor{}}
	for range pairs {
		key := r.str()
		f.Pairs[key] = r.value(r.u32())
	}
	type info struct {
		name string
		Tensor
		at int
	}
	var list []info
	for range tensors {
		i := info{name: r.str()}
		i.Shape = make([]int, r.u32())
		for d := range i.Shape {
			i.Shape[d] = int(r.u64())
		}
		slices.Reverse(i.Shape)
		i.Type, i.at = r.u32(), int(r.u64())
		list = append(list, i)
	}
	zeros := func(from, to int) error {
		if slices.ContainsFunc(b[from:to], func(c byte) bool { return c != 0 }) {
			return fmt.Errorf("the padding at %d is not zero", from)
		}
		return nil
	}
	start := alignUp(r.at)
	if err := zeros(r.at, start); err != nil {
		return f, err
	}
	end := start
	for _, i := range list {
		if start+i.at != end {
			return f, fmt.Errorf("tensor %s is at %d, expected %d", i.name, i.at, end-start)
		}
		n := 1
		for _, d := range i.Shape {
			n *= d
		}
		size := map[uint32]int{0: 4 * n, 1: 2 * n, 30: 2 * n, 8: n / 32 * 34}[i.Type]
		i.Data = b[end : end+size]
		if err := zeros(end+size, alignUp(end+size)); err != nil {
			return f, err
		}
		end = alignUp(end + size)
		f.Order = append(f.Order, i.name)
		f.Tensors[i.name] = i.Tensor
	}
	if end != len(b) {
		return f, fmt.Errorf("%d bytes, expected %d", len(b), end)
	}
	return f, nil
}

// alignUp returns the next multiple of 32 from n on.
func alignUp(n int) int { return (n + 31) / 32 * 32 }

// Values returns the tensor's elements as float32, decoded by the definition of its type.
func (t Tensor) Values() (out []float32) {
	le := binary.LittleEndian
	half := func(b []byte) float32 {
		h := le.Uint16(b)
		e, m := int(h>>10&31), float64(h&1023)
		v := math.Ldexp(1+m/1024, e-15)
		switch e {
		case 0:
			v = math.Ldexp(m, -24)
		case 31:
			v = math.Inf(1)
		}
		if h>>15 == 1 {
			v = -v
		}
		return float32(v)
	}
	switch t.Type {
	case 0:
		for b := t.Data; len(b) > 0; b = b[4:] {
			out = append(out, math.Float32frombits(le.Uint32(b)))
		}
	case 1:
		for b := t.Data; len(b) > 0; b = b[2:] {
			out = append(out, half(b))
		}
	case 30:
		for b := t.Data; len(b) > 0; b = b[2:] {
			out = append(out, math.Float32frombits(uint32(le.Uint16(b))<<16))
		}
	case 8:
		for b := t.Data; len(b) > 0; b = b[34:] {
			d := half(b)
			for _, q := range b[2:34] {
				out = append(out, d*float32(int8(q)))
			}
		}
	}
	return out
}
