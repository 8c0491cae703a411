// Package gguf reads and writes the file format of llama.cpp, GGUF: it reads versions 2 and 3 and
// writes 3, little-endian. It knows the layout of the file and of the tensor types, and no model.
//
//	gguf.go     the format, and its writer: start here
//	read.go     the reader: header, values, tensors
//	types.go    the types of tensors
//	decode.go   quantised blocks to float32
//
// A file is a header, key/value pairs, a list of tensors and their bytes. The format is described
// in docs/gguf.md of the ggml repository (github.com/ggml-org/ggml), the types in ggml.h there. In
// short:
//
//	uint32 magic "GGUF", uint32 version, uint64 tensors, uint64 pairs
//	each pair: string key, uint32 type, value
//	each tensor: string name, uint32 dimensions, uint64 each, uint32 type, uint64 offset
//	zeros up to a multiple of 32 (or of the key general.alignment), from where the offsets count
//	the tensors' bytes, each padded with zeros to such a multiple
//
// A string is its length as uint64 and its bytes; an array is uint32 type of the elements, uint64
// length, elements. Dimensions are listed from the innermost, whose neighbours are adjacent in
// memory: the reverse of safetensors.
package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"gad/internal/safetensors"
)

const (
	magic      = "GGUF"
	version    = 3
	alignment  = 32 // the default of general.alignment
	maxDims    = 4
	maxName    = 63 // bytes of a tensor's name: ggml keeps 64 with the final zero
	blockElems = 32 // of q8_0
	blockBytes = 2 + blockElems
	chunk      = 1 << 16 // elements that are converted at a time: a multiple of every block
)

// Pair is a key and its value: a string, bool, uint32, int32, uint64, float32,
// []string, []int32 or []bool.
type Pair struct {
	Key   string
	Value any
}

// Tensor is a tensor to be written.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // row-major, as in safetensors: the last dimension is adjacent in memory
	// Read fills dst with the elements from lo on, in row-major order. It is called
	// with increasing lo.
	Read func(dst []float32, lo int) error
}

// Len returns the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// bytes returns the size of the tensor's data in bytes.
func (t Tensor) bytes() int64 {
	l := layouts[t.Type]
	return int64(t.Len()) / int64(l.elems) * int64(l.bytes)
}

// File is the content of a file.
type File struct {
	Pairs   []Pair
	Tensors []Tensor
}

// Size returns the number of bytes that Write writes.
func (f File) Size() (int64, error) {
	head, err := f.head()
	if err != nil {
		return 0, err
	}
	n := int64(len(head))
	for _, t := range f.Tensors {
		n += alignUp(t.bytes())
	}
	return n, nil
}

// Write writes the file to w, each tensor streamed through Read. It returns an error for a value
// that its type cannot hold.
func (f File) Write(w io.Writer) error {
	head, err := f.head()
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	for _, t := range f.Tensors {
		if err := t.write(w); err != nil {
			return fmt.Errorf("gguf: tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

// head encodes header, pairs and list of tensors, padded: everything before the tensors' bytes.
func (f File) head() ([]byte, error) {
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(f.Tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(f.Pairs)))
	seen := map[string]bool{}
	for _, p := range f.Pairs {
		if p.Key == "" || seen[p.Key] {
			return nil, fmt.Errorf("gguf: key %q: empty or given twice", p.Key)
		}
		seen[p.Key] = true
		var err error
		if b, err = appendValue(appendString(b, p.Key), p.Value); err != nil {
			return nil, fmt.Errorf("gguf: key %q: %w", p.Key, err)
		}
	}
	clear(seen)
	at := int64(0)
	for _, t := range f.Tensors {
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("gguf: tensor %q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("gguf: tensor %q: given twice", t.Name)
		}
		seen[t.Name] = true
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += alignUp(t.bytes())
	}
	return append(b, make([]byte, alignUp(int64(len(b)))-int64(len(b)))...), nil
}

// check returns an error unless type, name and shape can be written.
func (t Tensor) check() error {
	switch t.Type {
	case F32, F16, BF16, Q8_0:
	default:
		return fmt.Errorf("%s: cannot be written: use f32, f16, bf16 or q8_0", t.Type)
	}
	if t.Name == "" || len(t.Name) > maxName {
		return fmt.Errorf("a name of %d bytes: expected 1 to %d", len(t.Name), maxName)
	}
	if n := len(t.Shape); n < 1 || n > maxDims {
		return fmt.Errorf("%d dimensions: expected 1 to %d", n, maxDims)
	}
	left := int64(math.MaxInt64 / 4)
	for _, d := range t.Shape {
		if d < 1 || int64(d) > left {
			return fmt.Errorf("shape %v: a dimension is below 1, or the size overflows", t.Shape)
		}
		left /= int64(d)
	}
	if last := t.Shape[len(t.Shape)-1]; last%t.Type.Block() != 0 {
		return fmt.Errorf("rows of %d elements: %s needs a multiple of %d", last, t.Type,
			t.Type.Block())
	}
	return nil
}

// write writes the tensor's bytes and their padding.
func (t Tensor) write(w io.Writer) error {
	n := t.Len()
	buf := make([]float32, min(chunk, n))
	for lo := 0; lo < n; lo += chunk {
		part := buf[:min(chunk, n-lo)]
		if err := t.Read(part, lo); err != nil {
			return err
		}
		if i := slices.IndexFunc(part, func(x float32) bool { return !t.Type.holds(x) }); i >= 0 {
			if x := part[i]; x-x != 0 {
				return fmt.Errorf("element %d is %g: not finite: use an earlier checkpoint", lo+i,
					x)
			}
			wider := BF16
			if t.Type == BF16 {
				wider = F32
			}
			return fmt.Errorf("element %d is %g, too large for %s: use %s", lo+i, part[i], t.Type,
				wider)
		}
		var err error
		switch t.Type {
		case F32:
			err = safetensors.EncodeFloat32(w, safetensors.F32, part)
		case F16:
			err = safetensors.EncodeFloat32(w, safetensors.F16, part)
		case BF16:
			err = safetensors.EncodeFloat32(w, safetensors.BF16, part)
		case Q8_0:
			err = encodeQ8(w, part)
		}
		if err != nil {
			return err
		}
	}
	size := t.bytes()
	_, err := w.Write(make([]byte, alignUp(size)-size))
	return err
}

// holds reports whether x rounds to a finite number of the type.
func (t Type) holds(x float32) bool {
	const f16 = 65520 // half way between the largest binary16, 65504, and 65536
	a := math.Abs(float64(x))
	switch t {
	case F16:
		return a < f16
	case Q8_0: // the scale of its block is a binary16
		return a/127 < f16
	case BF16: // likewise
		return a < 0x1.ffp127
	}
	return a <= math.MaxFloat32 // false for NaN
}

// encodeQ8 writes blocks of q8_0. As ggml-quants.c of the ggml repository defines it
// (quantize_row_q8_0_ref), of each 32 elements x:
//
//	d = max|x| / 127;  q = round(x * (1/d)), halves away from zero
//
// in float32; d is stored as binary16, q as signed bytes. A block of zeros has d = 0.
func encodeQ8(w io.Writer, x []float32) error {
	blocks := len(x) / blockElems
	d := make([]float32, blocks)
	out := make([]byte, blocks*blockBytes)
	for i := range d {
		block := x[i*blockElems:][:blockElems]
		var most float32
		for _, v := range block {
			most = max(most, max(v, -v))
		}
		d[i] = most / 127
		inverse := 1 / d[i]
		if d[i] < 0x1p-126 { // no inverse in float32; as binary16 it is zero anyway
			inverse = 0
		}
		q := out[i*blockBytes+2:][:blockElems]
		for j, v := range block {
			q[j] = byte(int8(math.Round(float64(float32(v * inverse)))))
		}
	}
	var scales bytes.Buffer
	if err := safetensors.EncodeFloat32(&scales, safetensors.F16, d); err != nil {
		return err
	}
	for i := range d {
		copy(out[i*blockBytes:], scales.Bytes()[2*i:2*i+2])
	}
	_, err := w.Write(out)
	return err
}

// alignUp returns the next multiple of alignment from n on.
func alignUp(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// The types of values, by the format's numbers.
const (
	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9
	typeUint64  = 10
	typeInt64   = 11
	typeFloat64 = 12
)

// appendValue appends the number of the value's type and the value.
func appendValue(b []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	kind := func(t uint32) { b = le.AppendUint32(b, t) }
	switch v := value.(type) {
	case string:
		kind(typeString)
		return appendString(b, v), nil
	case bool:
		kind(typeBool)
		if v {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case uint32:
		kind(typeUint32)
		return le.AppendUint32(b, v), nil
	case int32:
		kind(typeInt32)
		return le.AppendUint32(b, uint32(v)), nil
	case uint64:
		kind(typeUint64)
		return le.AppendUint64(b, v), nil
	case float32:
		kind(typeFloat32)
		return le.AppendUint32(b, math.Float32bits(v)), nil
	case []string:
		kind(typeArray)
		kind(typeString)
		b = le.AppendUint64(b, uint64(len(v)))
		for _, s := range v {
			b = appendString(b, s)
		}
		return b, nil
	case []int32:
		kind(typeArray)
		kind(typeInt32)
		b = le.AppendUint64(b, uint64(len(v)))
		for _, x := range v {
			b = le.AppendUint32(b, uint32(x))
		}
		return b, nil
	case []bool:
		kind(typeArray)
		kind(typeBool)
		b = le.AppendUint64(b, uint64(len(v)))
		for _, x := range v {
			b = append(b, 0)
			if x {
				b[len(b)-1] = 1
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("a value of type %T: cannot be written", value)
}
