package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gad/internal/folder"
	"gad/internal/safetensors"
)

// Limits of a file that is read. No model comes near them.
const (
	maxPairs   = 1 << 16
	maxTensors = 1 << 18
	maxKey     = 1<<16 - 1 // bytes, by the format's description
	maxAlign   = 1 << 20
)

// ErrType is wrapped by the error of a file, value or tensor of a version or type that is not
// supported.
var ErrType = errors.New("not supported")

// Reader is an open file. Open checks the whole header; the tensors' data is mapped, and read on
// demand.
type Reader struct {
	path    string
	pairs   []pair   // sorted by key
	tensors []Stored // sorted by name
	data    []byte   // the whole file
	unmap   func() error
}

// pair is a key with the place of its value. Arrays are decoded on demand, so that a hostile header
// costs little before it is known to be valid.
type pair struct {
	key  string
	kind uint32 // type of the value, or of an array's elements
	n    int    // elements of an array; -1: no array
	at   int    // offset in the file of the value, or of the first element
}

// Stored is a tensor of a file.
type Stored struct {
	Name  string
	Type  Type
	Shape []int // row-major, as in safetensors: the other way round than in the file

	offset int // from the start of the data section, as the file says
	data   []byte
}

// Len returns the number of elements.
func (t *Stored) Len() int { return len(t.data) / layouts[t.Type].bytes * layouts[t.Type].elems }

// Is reports whether path is a regular file that is meant to be GGUF: by its name, or by its first
// bytes.
func Is(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	if strings.EqualFold(filepath.Ext(path), ".gguf") {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() // only read from
	var first [4]byte
	_, err = io.ReadFull(f, first[:])
	return err == nil && string(first[:]) == magic
}

// Open opens a file and checks all of its header: every length, count and offset is compared with
// the file's size before it is used, and files that llama.cpp refuses (a key or tensor that comes
// twice, arrays of arrays) are refused. It reads versions 2 and 3, little-endian.
func Open(path string) (*Reader, error) {
	f, err := folder.File(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	size := info.Size()
	switch {
	case size < 24:
		return nil, fmt.Errorf("gguf: %s: offset 0: header: %d bytes: too short for a GGUF file",
			path, size)
	case size > math.MaxInt:
		return nil, fmt.Errorf("gguf: %s: %d bytes are too many for this machine", path, size)
	}
	r := &Reader{path: path}
	if r.data, r.unmap, err = folder.Map(f, int(size)); err != nil {
		return nil, fmt.Errorf("gguf: %s: map: %w", path, err)
	}
	if err := folder.Guard(r.parse); err != nil {
		_ = r.unmap() // the first error is the one to report
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	return r, nil
}

// Close unmaps the file. Its tensors must not be read afterwards.
func (r *Reader) Close() error {
	if r.unmap == nil {
		return nil
	}
	unmap := r.unmap
	r.unmap, r.data, r.tensors = nil, nil, nil
	if err := unmap(); err != nil {
		return fmt.Errorf("gguf: %s: unmap: %w", r.path, err)
	}
	return nil
}

// cursor reads a header. After the first error, which it keeps, reads return zeros.
type cursor struct {
	b     []byte
	at    int
	what  string // kind of object being read: "key", "tensor", ...
	name  string // the object's name, once it is known
	index int    // the object's number while it has no name; -1: there is only one
	err   error
}

// begin sets the object that the next reads belong to, for errors.
func (c *cursor) begin(what string, index int) { c.what, c.name, c.index = what, "", index }

// fail keeps the first error, with the offset and the object being read.
func (c *cursor) fail(at int, format string, args ...any) {
	if c.err == nil {
		what := c.what
		switch {
		case c.name != "":
			what += fmt.Sprintf(" %q", clip(c.name))
		case c.index >= 0:
			what += fmt.Sprint(" ", c.index)
		}
		c.err = fmt.Errorf("offset %d: %s: %w", at, what, fmt.Errorf(format, args...))
	}
}

// take returns the next n bytes, or after an error at most 8 zeros.
func (c *cursor) take(n int) []byte {
	if c.err == nil && n > len(c.b)-c.at {
		c.fail(c.at, "%d bytes, %d remain: is the file cut short?", n, len(c.b)-c.at)
	}
	if c.err != nil {
		return make([]byte, min(n, 8))
	}
	c.at += n
	return c.b[c.at-n : c.at]
}

func (c *cursor) u32() uint32 { return binary.LittleEndian.Uint32(c.take(4)) }
func (c *cursor) u64() uint64 { return binary.LittleEndian.Uint64(c.take(8)) }

// count reads the number of objects that follow, of at least size bytes each. It fails if the rest
// of the file is too small for them, or above most.
func (c *cursor) count(size, most int) int {
	at := c.at
	n := c.u64()
	switch left := uint64(len(c.b) - c.at); {
	case c.err != nil:
		return 0
	case n > left/uint64(size):
		c.fail(at, "%d, for which the %d bytes that remain are too few: is the file cut short?", n,
			left)
		return 0
	case n > uint64(most):
		c.fail(at, "%d: the limit is %d", n, most)
		return 0
	}
	return int(n)
}

// text reads a string of at most most bytes.
func (c *cursor) text(most int) string { return string(c.take(c.count(1, most))) }

// valueTypes lists the types of values by the format's number: size in bytes and name. A string
// takes at least its 8 bytes of length.
var valueTypes = [...]struct {
	size int
	name string
}{{1, "uint8"}, {1, "int8"}, {2, "uint16"}, {2, "int16"}, {4, "uint32"}, {4, "int32"},
	{4, "float32"}, {1, "bool"}, {8, "string"}, {0, "array"},
	{8, "uint64"}, {8, "int64"}, {8, "float64"}}

// parse reads and checks the header.
func (r *Reader) parse() error {
	c := &cursor{b: r.data, what: "magic", index: -1}
	if m := c.take(4); string(m) != magic {
		c.fail(0, "%q: not a GGUF file, which begins with %q", m, magic)
	}
	c.begin("version", -1)
	switch v := c.u32(); {
	case c.err != nil:
	case v&0xffff == 0:
		c.fail(4, "%d, which is %d in the other byte order: a big-endian file: %w: get the little-endian one", v, bits.ReverseBytes32(v), ErrType)
	case v == 1:
		c.fail(4, "1: %w: convert the file with a later llama.cpp", ErrType)
	case v != 2 && v != version:
		c.fail(4, "%d: %w: versions 2 and 3 are read", v, ErrType)
	}
	c.begin("number of tensors", -1)
	tensors := c.count(8+4+8+4+8, maxTensors)
	c.begin("number of keys", -1)
	pairs := c.count(8+4+1, maxPairs)
	for i := 0; i < pairs && c.err == nil; i++ {
		r.pair(c, i)
	}
	if c.err != nil {
		return c.err
	}
	slices.SortFunc(r.pairs,
		func(a, b pair) int { return cmp.Or(strings.Compare(a.key, b.key), a.at-b.at) })
	for i := 1; i < len(r.pairs); i++ {
		if p := r.pairs[i]; p.key == r.pairs[i-1].key {
			return fmt.Errorf("offset %d: key %q: appears twice", p.at, clip(p.key))
		}
	}
	align, err := r.align()
	if err != nil {
		return err
	}
	places := make([]int, 0, min(tensors, 1<<10)) // of the offset fields in the file, for errors
	for i := 0; i < tensors && c.err == nil; i++ {
		r.tensor(c, i, align)
		places = append(places, c.at-8)
	}
	if c.err != nil {
		return c.err
	}
	return r.place(c.at, align, places)
}

// pair reads key number i and checks its value. It keeps the value's place only.
func (r *Reader) pair(c *cursor, i int) {
	c.begin("key", i)
	at := c.at
	p := pair{key: c.text(maxKey), n: -1}
	if c.err == nil && (p.key == "" || !utf8.ValidString(p.key)) {
		c.fail(at, "%q: expected text in UTF-8", clip(p.key))
	}
	c.name = p.key
	at = c.at
	p.kind = c.u32()
	array := p.kind == typeArray
	if array {
		at = c.at
		p.kind = c.u32()
	}
	switch {
	case c.err != nil:
		return
	case int64(p.kind) >= int64(len(valueTypes)):
		c.fail(at, "a value of type %d, which is not known", p.kind)
		return
	case p.kind == typeArray:
		c.fail(at, "an array of arrays: %w", ErrType)
		return
	}
	size, n := valueTypes[p.kind].size, 1
	if array {
		n = c.count(size, math.MaxInt)
		p.n = n
	}
	p.at = c.at
	switch p.kind {
	case typeString:
		for range n {
			if c.err != nil {
				return
			}
			c.take(c.count(1, math.MaxInt))
		}
	case typeBool:
		for j, v := range c.take(n) {
			if v > 1 {
				c.fail(p.at+j, "a bool of %d: expected 0 or 1", v)
				return
			}
		}
	default:
		c.take(size * n)
	}
	r.pairs = append(r.pairs, p)
}

// align returns the multiple to which the tensors' offsets are aligned, in bytes.
func (r *Reader) align() (int, error) {
	n, has, err := r.Int("general.alignment")
	if err == nil && has && (n < 1 || n > maxAlign || n&(n-1) != 0 || n%8 != 0) {
		err = fmt.Errorf(
			"offset %d: key \"general.alignment\": %d: expected a power of 2 from 8 to %d",
			r.find("general.alignment").at, n, maxAlign)
	}
	if err != nil || !has {
		return alignment, err
	}
	return int(n), nil
}

// tensor reads tensor number i of the header's list: name, shape, type and offset.
func (r *Reader) tensor(c *cursor, i, align int) {
	c.begin("tensor", i)
	at := c.at
	t := Stored{Name: c.text(maxName)}
	if c.err == nil && (t.Name == "" || !utf8.ValidString(t.Name)) {
		c.fail(at, "%q: expected a name in UTF-8", clip(t.Name))
	}
	c.name = t.Name
	at = c.at
	dims := c.u32()
	if c.err == nil && (dims < 1 || dims > maxDims) {
		c.fail(at, "%d dimensions: expected 1 to %d", dims, maxDims)
	}
	elems := uint64(1)
	for range dims {
		at = c.at
		d := c.u64()
		if c.err != nil {
			return
		}
		high, low := bits.Mul64(elems, d)
		if d == 0 || high != 0 || low > math.MaxInt64/4 {
			c.fail(at, "a dimension of %d: expected at least 1, and sizes that do not overflow", d)
			return
		}
		elems = low
		t.Shape = append(t.Shape, int(d))
	}
	at = c.at
	t.Type = Type(c.u32())
	if c.err != nil {
		return
	}
	l, known := layouts[t.Type]
	row := t.Shape[0] // of adjacent elements
	slices.Reverse(t.Shape)
	switch {
	case !known:
		c.fail(at, "type %d, which is not known", uint32(t.Type))
		return
	case l.bytes == 0:
		c.fail(at, "type %s: %w: use a file in %s", l.name, ErrType, readable())
		return
	case row%l.elems != 0:
		c.fail(at, "rows of %d elements: %s needs a multiple of %d", row, l.name, l.elems)
		return
	}
	at = c.at
	// below 2^63: at most 4 bytes an element
	offset, size := c.u64(), elems/uint64(l.elems)*uint64(l.bytes)
	switch {
	case c.err != nil:
		return
	case size > uint64(len(c.b)):
		c.fail(at, "%s %v takes %d bytes, the file has %d: is it cut short?", l.name, t.Shape, size,
			len(c.b))
		return
	case offset%uint64(align) != 0:
		c.fail(at, "starts at %d of the data: expected a multiple of the alignment %d", offset,
			align)
		return
	case offset > uint64(len(c.b)):
		c.fail(at, "starts at %d of the data, the file has %d bytes: is it cut short?", offset,
			len(c.b))
		return
	}
	t.offset = int(offset)
	t.data = c.b[:size:size] // for its length; place sets the bytes
	r.tensors = append(r.tensors, t)
}

// place sets the tensors' data. The data section begins at end, the header's end, rounded up to
// align. It returns an error if a tensor reaches beyond the file or into another one, or if a name
// appears twice. places are the offsets in the file of the tensors' offset fields, for errors.
func (r *Reader) place(end, align int, places []int) error {
	begin := (end + align - 1) / align * align
	order := make([]int, len(r.tensors))
	for i := range order {
		order[i] = i
		t := &r.tensors[i]
		if left := len(r.data) - begin; left < 0 || t.offset > left || len(t.data) > left-t.offset {
			return fmt.Errorf("offset %d: tensor %q: its %d bytes from %d of the data on are beyond the file's end, which has %d bytes of data: is it cut short?", places[i], clip(t.Name), len(t.data), t.offset, max(0, left))
		}
	}
	slices.SortFunc(order, func(a, b int) int { return r.tensors[a].offset - r.tensors[b].offset })
	for k := 1; k < len(order); k++ {
		t, before := &r.tensors[order[k]], &r.tensors[order[k-1]]
		if to := before.offset + len(before.data); t.offset < to {
			return fmt.Errorf("offset %d: tensor %q: starts at %d of the data, inside of tensor %q, which ends at %d", places[order[k]], clip(t.Name), t.offset, clip(before.Name), to)
		}
	}
	for i := range r.tensors {
		t := &r.tensors[i]
		at := begin + t.offset
		t.data = r.data[at : at+len(t.data) : at+len(t.data)]
	}
	slices.SortFunc(order,
		func(a, b int) int { return strings.Compare(r.tensors[a].Name, r.tensors[b].Name) })
	for k := 1; k < len(order); k++ {
		if t := &r.tensors[order[k]]; t.Name == r.tensors[order[k-1]].Name {
			return fmt.Errorf("offset %d: tensor %q: appears twice", places[order[k]], clip(t.Name))
		}
	}
	sort.Slice(r.tensors, func(i, j int) bool { return r.tensors[i].Name < r.tensors[j].Name })
	return nil
}

// clip shortens text from a file for an error.
func clip(s string) string {
	if len(s) > 100 {
		return strings.ToValidUTF8(s[:100], "") + "..."
	}
	return s
}

// Names returns the names of the tensors, sorted.
func (r *Reader) Names() []string {
	names := make([]string, len(r.tensors))
	for i := range names {
		names[i] = r.tensors[i].Name
	}
	return names
}

// Tensor returns the tensor of this name.
func (r *Reader) Tensor(name string) (*Stored, bool) {
	i := sort.Search(len(r.tensors), func(i int) bool { return r.tensors[i].Name >= name })
	if i == len(r.tensors) || r.tensors[i].Name != name {
		return nil, false
	}
	return &r.tensors[i], true
}

// Float32 decodes elements lo to lo+len(dst), in row-major order, into dst. Quantised types give
// the same bits as gguf-py's dequantize; infinities and NaN stay. It returns an error if the mapped
// file was truncated meanwhile.
func (t *Stored) Float32(dst []float32, lo int) error {
	if lo < 0 || lo > t.Len()-len(dst) {
		return fmt.Errorf("gguf: tensor %q: elements %d to %d of %d", t.Name, lo, lo+len(dst),
			t.Len())
	}
	if err := folder.Guard(func() error { return t.widen(dst, lo) }); err != nil {
		return fmt.Errorf("gguf: tensor %q: %w", t.Name, err)
	}
	return nil
}

// widen is Float32 without the checks.
func (t *Stored) widen(dst []float32, lo int) error {
	l := layouts[t.Type]
	if l.decode == nil {
		plain := safetensors.Tensor{Name: t.Name,
			DType: map[Type]safetensors.DType{F32: safetensors.F32, F16: safetensors.F16,
				BF16: safetensors.BF16}[t.Type],
			Data: t.data[lo*l.bytes : (lo+len(dst))*l.bytes]}
		return plain.Float32(dst)
	}
	var edge [256]float32 // a block of which dst takes only a part
	for len(dst) > 0 {
		at := t.data[lo/l.elems*l.bytes:]
		n := len(dst) / l.elems * l.elems
		if from := lo % l.elems; from > 0 || n == 0 {
			l.decode(edge[:l.elems], at)
			n = copy(dst, edge[from:l.elems])
		} else {
			l.decode(dst[:n], at)
		}
		dst, lo = dst[n:], lo+n
	}
	return nil
}

// find returns the pair of a key, or nil.
func (r *Reader) find(key string) *pair {
	i := sort.Search(len(r.pairs), func(i int) bool { return r.pairs[i].key >= key })
	if i == len(r.pairs) || r.pairs[i].key != key {
		return nil
	}
	return &r.pairs[i]
}

// Has reports whether there is such a key.
func (r *Reader) Has(key string) bool { return r.find(key) != nil }

// Keys returns all keys, sorted.
func (r *Reader) Keys() []string {
	keys := make([]string, len(r.pairs))
	for i := range keys {
		keys[i] = r.pairs[i].key
	}
	return keys
}

// value returns the pair of a key, nil if there is none. It returns an error unless the value's
// type is one of kinds, in an array or not as array says; want names the expected type in the
// error.
func (r *Reader) value(key, want string, array bool, kinds ...uint32) (p *pair, err error) {
	p = r.find(key)
	if p == nil {
		return nil, nil
	}
	if array != (p.n >= 0) || !slices.Contains(kinds, p.kind) {
		have := valueTypes[p.kind].name
		if p.n >= 0 {
			have = fmt.Sprintf("array of %d %s", p.n, have)
		}
		return nil, fmt.Errorf("offset %d: key %q: a value of type %s: expected %s", p.at, key,
			have, want)
	}
	return p, nil
}

// integerKinds lists the types of integers.
var integerKinds = []uint32{0, 1, 2, 3, typeUint32, typeInt32, typeUint64, typeInt64}

// number returns element i of p as int64. A uint64 above the largest int64 becomes the largest
// int64.
func (r *Reader) number(p *pair, i int) int64 {
	le, b := binary.LittleEndian, r.data[p.at+i*valueTypes[p.kind].size:]
	switch p.kind {
	case 0:
		return int64(b[0])
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(le.Uint16(b))
	case 3:
		return int64(int16(le.Uint16(b)))
	case typeUint32:
		return int64(le.Uint32(b))
	case typeInt32:
		return int64(int32(le.Uint32(b)))
	case typeInt64:
		return int64(le.Uint64(b))
	}
	return int64(min(le.Uint64(b), math.MaxInt64))
}

// Int returns an integer of any width; has reports whether there is such a key, here and below.
func (r *Reader) Int(key string) (n int64, has bool, err error) {
	p, err := r.value(key, "a whole number", false, integerKinds...)
	if p == nil {
		return 0, false, err
	}
	err = folder.Guard(func() error { n = r.number(p, 0); return nil })
	return n, true, err
}

// Ints returns an array of integers of any width; a single integer is an array of one.
func (r *Reader) Ints(key string) (list []int64, has bool, err error) {
	if p := r.find(key); p != nil && p.n < 0 {
		n, has, err := r.Int(key)
		return []int64{n}, has, err
	}
	p, err := r.value(key, "an array of whole numbers", true, integerKinds...)
	if p == nil {
		return nil, false, err
	}
	list = make([]int64, p.n)
	err = folder.Guard(func() error {
		for i := range list {
			list[i] = r.number(p, i)
		}
		return nil
	})
	return list, true, err
}

// Float returns a number. A float32 is read through its shortest decimal, so that 1e-5 is the
// float64 1e-5.
func (r *Reader) Float(key string) (x float64, has bool, err error) {
	p, err := r.value(key, "a number", false, typeFloat32, typeFloat64)
	if p == nil {
		return 0, false, err
	}
	err = folder.Guard(func() error {
		if p.kind == typeFloat32 {
			x = shortest(math.Float32frombits(binary.LittleEndian.Uint32(r.data[p.at:])))
		} else {
			x = math.Float64frombits(binary.LittleEndian.Uint64(r.data[p.at:]))
		}
		return nil
	})
	return x, true, err
}

// Floats returns an array of float32.
func (r *Reader) Floats(key string) (list []float32, has bool, err error) {
	p, err := r.value(key, "an array of float32", true, typeFloat32)
	if p == nil {
		return nil, false, err
	}
	list = make([]float32, p.n)
	err = folder.Guard(func() error {
		for i := range list {
			list[i] = math.Float32frombits(binary.LittleEndian.Uint32(r.data[p.at+4*i:]))
		}
		return nil
	})
	return list, true, err
}

// Bool returns a bool.
func (r *Reader) Bool(key string) (v, has bool, err error) {
	p, err := r.value(key, "true or false", false, typeBool)
	if p == nil {
		return false, false, err
	}
	err = folder.Guard(func() error { v = r.data[p.at] != 0; return nil })
	return v, true, err
}

// Bools returns an array of bools.
func (r *Reader) Bools(key string) (list []bool, has bool, err error) {
	p, err := r.value(key, "an array of true and false", true, typeBool)
	if p == nil {
		return nil, false, err
	}
	list = make([]bool, p.n)
	err = folder.Guard(func() error {
		for i := range list {
			list[i] = r.data[p.at+i] != 0
		}
		return nil
	})
	return list, true, err
}

// Text returns a string.
func (r *Reader) Text(key string) (s string, has bool, err error) {
	p, err := r.value(key, "a string", false, typeString)
	if p == nil {
		return "", false, err
	}
	err = folder.Guard(func() (err error) { s, _, err = r.stringAt(p.at); return err })
	return s, true, err
}

// Texts returns an array of strings.
func (r *Reader) Texts(key string) (list []string, has bool, err error) {
	p, err := r.value(key, "an array of strings", true, typeString)
	if p == nil {
		return nil, false, err
	}
	list = make([]string, p.n)
	err = folder.Guard(func() (err error) {
		at := p.at
		for i := range list {
			if list[i], at, err = r.stringAt(at); err != nil {
				return err
			}
		}
		return nil
	})
	return list, true, err
}

// stringAt returns the string at an offset that parse has checked, and the offset after it.
func (r *Reader) stringAt(at int) (s string, next int, err error) {
	c := cursor{b: r.data, at: at, what: "a string, whose file has changed while it is read",
		index: -1}
	s = c.text(math.MaxInt)
	return s, c.at, c.err
}

// shortest returns the float64 nearest to the shortest decimal that stands for x: 0.00001 for the
// float32 nearest to 0.00001.
func shortest(x float32) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
	if err != nil {
		return float64(x)
	}
	return y
}
