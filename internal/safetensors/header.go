package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"sort"
	"strings"
	"unicode/utf8"
)

// Limits of a header, which is bounded by its file's size too.
const (
	maxHeader   = 100_000_000 // bytes, the bound of the reference implementation
	maxRank     = 16
	maxMetadata = 1 << 16 // entries
)

// DType names the type of a tensor's elements as the format does: F32, BF16, ...
type DType string

// The types whose elements take whole bytes. F8 types, integers and booleans are
// read and written as bytes; [Tensor.Float32] widens U8, F16, BF16, F32 and F64.
const (
	Bool   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E5M2 DType = "F8_E5M2"
	F8E4M3 DType = "F8_E4M3"
	F8E8M0 DType = "F8_E8M0"
	I16    DType = "I16"
	U16    DType = "U16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	I32    DType = "I32"
	U32    DType = "U32"
	F32    DType = "F32"
	C64    DType = "C64"
	F64    DType = "F64"
	I64    DType = "I64"
	U64    DType = "U64"
)

// dtypes lists the types in the order of the reference implementation, which
// writes the tensors of a file from the last to the first.
var dtypes = [...]struct {
	name DType
	size int
}{
	{Bool, 1}, {U8, 1}, {I8, 1}, {F8E5M2, 1}, {F8E4M3, 1}, {F8E8M0, 1},
	{I16, 2}, {U16, 2}, {F16, 2}, {BF16, 2},
	{I32, 4}, {U32, 4}, {F32, 4},
	{C64, 8}, {F64, 8}, {I64, 8}, {U64, 8},
}

// rank returns the index of d in dtypes, or -1.
func (d DType) rank() int {
	for i := range dtypes {
		if dtypes[i].name == d {
			return i
		}
	}
	return -1
}

// Size returns the bytes of one element, or 0 for an unknown type.
func (d DType) Size() int {
	if r := d.rank(); r >= 0 {
		return dtypes[r].size
	}
	return 0
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	// Data is the tensor's bytes, little-endian, row-major. It is part of the
	// mapped file: it must not be written, nor used after Close.
	Data []byte

	begin, end int64 // of Data, from the end of the header
}

// entry is one pair of a map of strings. A slice of them costs less than a map when a hostile file
// is full of them.
type entry struct{ key, value string }

// header is the parsed header of a file.
type header struct {
	tensors []Tensor // sorted by name; Data not set
	meta    []entry  // sorted by key
}

// parseHeader parses the JSON text of a header (without the 8 bytes of its length) of a file with
// dataLen bytes after it. The tensors cover these bytes exactly: no hole, no overlap, no rest.
//
// Memory: at most about 4 times the text. The names are substrings of text.
func parseHeader(text string, dataLen int64) (*header, error) {
	switch {
	case text == "":
		return nil, fmt.Errorf("header: is empty: expected a JSON object")
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("header: not valid UTF-8")
	case text[0] != '{':
		return nil, fmt.Errorf("header: starts with %q, not with a JSON object",
			clip(text[:runeLen(text)]))
	}
	// Each tensor needs this key, in this spelling: an upper bound on the count
	// that makes one allocation enough.
	h := &header{tensors: make([]Tensor, 0, strings.Count(text, `"dtype"`))}
	c := &cursor{s: text}
	dims := arena{}
	seenMeta := false
	err := c.object(func(key string) error {
		if key == "__metadata__" {
			if seenMeta {
				return c.errorf("__metadata__ appears twice")
			}
			seenMeta = true
			return h.metadata(c)
		}
		t, err := tensor(c, key, &dims)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", clip(key), err)
		}
		h.tensors = append(h.tensors, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if rest := strings.TrimLeft(text[c.i:], " "); rest != "" {
		return nil, fmt.Errorf("header: %d bytes after its end: only spaces are allowed", len(rest))
	}
	if err := h.check(dataLen); err != nil {
		return nil, err
	}
	return h, nil
}

// runeLen returns the bytes of the first rune of s.
func runeLen(s string) int { _, n := utf8.DecodeRuneInString(s); return n }

// arena allocates the shapes from a few large slices: a slice per tensor would cost more memory
// than the header's text.
type arena struct{ buf []int }

// copy returns a copy of dims within the arena.
func (a *arena) copy(dims []int) []int {
	if len(a.buf)+len(dims) > cap(a.buf) {
		a.buf = make([]int, 0, max(64, min(2*cap(a.buf), 1<<16)))
	}
	start := len(a.buf)
	a.buf = append(a.buf, dims...)
	return a.buf[start:len(a.buf):len(a.buf)]
}

// metadata reads the object __metadata__, whose values must be strings.
func (h *header) metadata(c *cursor) error {
	err := c.object(func(key string) error {
		if len(h.meta) == maxMetadata {
			return c.errorf("more than %d entries", maxMetadata)
		}
		if c.peek() != '"' {
			return c.errorf("value of %q: only strings are allowed", clip(key))
		}
		value, err := c.str()
		h.meta = append(h.meta, entry{key, value})
		return err
	})
	if err != nil {
		return fmt.Errorf("__metadata__: %w", err)
	}
	if key, dup := sortEntries(h.meta); dup {
		return fmt.Errorf("__metadata__: key %q appears twice", clip(key))
	}
	return nil
}

// sortEntries sorts by key. It returns the first duplicate key, and whether there is one.
func sortEntries(list []entry) (string, bool) {
	sort.Slice(list, func(i, j int) bool { return list[i].key < list[j].key })
	for i := 1; i < len(list); i++ {
		if list[i].key == list[i-1].key {
			return list[i].key, true
		}
	}
	return "", false
}

// tensor reads the object that describes one tensor.
func tensor(c *cursor, name string, dims *arena) (Tensor, error) {
	t := Tensor{Name: name}
	var seenType, seenShape, seenOffsets bool
	once := func(seen *bool, key string) error {
		if *seen {
			return c.errorf("key %q appears twice", key)
		}
		*seen = true
		return nil
	}
	err := c.object(func(key string) error {
		switch key {
		case "dtype":
			if err := once(&seenType, key); err != nil {
				return err
			}
			s, err := c.str()
			if err != nil {
				return fmt.Errorf("dtype: %w", err)
			}
			r := DType(s).rank()
			if r < 0 {
				return c.errorf("dtype %q is not known", clip(s))
			}
			t.DType = dtypes[r].name
			return nil
		case "shape":
			if err := once(&seenShape, key); err != nil {
				return err
			}
			var shape [maxRank]int
			n := 0
			err := c.array(func(i int) error {
				if i == maxRank {
					return c.errorf("more than %d dimensions", maxRank)
				}
				d, err := c.natural()
				if err == nil && d > math.MaxInt {
					err = c.errorf("dimension %d is too large for this machine", d)
				}
				shape[i], n = int(d), i+1
				return err
			})
			if err != nil {
				return fmt.Errorf("shape: %w", err)
			}
			t.Shape = dims.copy(shape[:n])
			return nil
		case "data_offsets":
			if err := once(&seenOffsets, key); err != nil {
				return err
			}
			n := 0
			err := c.array(func(i int) error {
				v, err := c.natural()
				switch n = i + 1; i {
				case 0:
					t.begin = v
				case 1:
					t.end = v
				default:
					return c.errorf("more than two offsets")
				}
				return err
			})
			if err == nil && n < 2 {
				err = c.errorf("%d offsets: expected two", n)
			}
			if err != nil {
				return fmt.Errorf("data_offsets: %w", err)
			}
			return nil
		}
		return c.errorf("key %q is not known: dtype, shape and data_offsets are", clip(key))
	})
	if err != nil {
		return t, err
	}
	for _, k := range []struct {
		seen bool
		key  string
	}{{seenType, "dtype"}, {seenShape, "shape"}, {seenOffsets, "data_offsets"}} {
		if !k.seen {
			return t, fmt.Errorf("key %q is missing", k.key)
		}
	}
	return t, nil
}

// size returns the bytes of a tensor. The product of the dimensions other than 0 must not overflow
// either, so that callers may multiply them in any order.
func size(d DType, shape []int) (int64, error) {
	product, zero := uint64(d.Size()), false
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("shape %v: negative dimension", shape)
		}
		if n == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(product, uint64(n))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %v of %s: its bytes overflow", shape, d)
		}
		product = lo
	}
	if zero {
		return 0, nil
	}
	return int64(product), nil
}

// check returns an error unless the tensors cover the dataLen bytes after the header exactly, each
// with as many bytes as type and shape need. It sorts them by name.
func (h *header) check(dataLen int64) error {
	for i := range h.tensors {
		t := &h.tensors[i]
		want, err := size(t.DType, t.Shape)
		switch {
		case err != nil:
		case t.begin > t.end:
			err = fmt.Errorf("offsets [%d %d]: end before start", t.begin, t.end)
		case t.end-t.begin != want:
			err = fmt.Errorf("%s %v needs %d bytes, offsets [%d %d] span %d", t.DType, t.Shape,
				want, t.begin, t.end, t.end-t.begin)
		case t.end > dataLen:
			err = fmt.Errorf(
				"offsets [%d %d]: beyond the file's end, it has %d bytes of data: is it cut short?",
				t.begin, t.end, dataLen)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", clip(t.Name), err)
		}
	}
	ts := h.tensors
	sort.Slice(ts, func(i, j int) bool {
		if ts[i].begin != ts[j].begin {
			return ts[i].begin < ts[j].begin
		}
		return ts[i].end < ts[j].end
	})
	at := int64(0)
	for i := range ts {
		switch t := &ts[i]; {
		case t.begin > at:
			return fmt.Errorf("tensor %q: starts at %d, %d unused bytes before it", clip(t.Name),
				t.begin, t.begin-at)
		case t.begin < at:
			return fmt.Errorf(
				"tensor %q: starts at %d, inside the previous tensor, which ends at %d",
				clip(t.Name), t.begin, at)
		}
		at = ts[i].end
	}
	if at != dataLen {
		return fmt.Errorf("file: %d bytes after the last tensor", dataLen-at)
	}
	sort.Slice(ts, func(i, j int) bool { return ts[i].Name < ts[j].Name })
	for i := 1; i < len(ts); i++ {
		if ts[i].Name == ts[i-1].Name {
			return fmt.Errorf("tensor %q: appears twice", clip(ts[i].Name))
		}
	}
	return nil
}
