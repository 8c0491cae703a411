package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/hostile"

	"gad/internal/safetensors"
)

const fixtures = "../../testdata/gguf"

func open(t testing.TB, path string) *Reader {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// same compares float32 bit by bit; any NaN is any other, whose payload processors choose.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// Every type, under scales of every kind, has the values that gguf-py reads in the same
// blocks; whole and in parts that begin and end anywhere.
func TestTypesAgainstGGUFPy(t *testing.T) {
	r := open(t, filepath.Join(fixtures, "types.gguf"))
	want, err := safetensors.Open(filepath.Join(fixtures, "types.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if !slices.Equal(r.Names(), want.Names()) {
		t.Fatalf("tensors %v, want %v", r.Names(), want.Names())
	}
	rng := rand.New(rand.NewPCG(1, 23))
	seen := map[Type]bool{}
	values, odd := 0, 0
	for _, name := range r.Names() {
		x, _ := r.Tensor(name)
		w, _ := want.Tensor(name)
		expected := make([]float32, x.Len())
		if err := w.Float32(expected); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x.Shape, w.Shape) || strings.ToLower(x.Type.String()) != name {
			t.Errorf("%s: %s %v, want %v", name, x.Type, x.Shape, w.Shape)
		}
		seen[x.Type] = true
		got := make([]float32, x.Len())
		if err := x.Float32(got, 0); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if values++; got[i]-got[i] != 0 {
				odd++
			}
			if !same(got[i], expected[i]) {
				t.Fatalf("%s: element %d: %g (%08x), want %g (%08x)", name, i, got[i],
					math.Float32bits(got[i]), expected[i], math.Float32bits(expected[i]))
			}
		}
		for range 100 {
			lo := rng.IntN(x.Len())
			part := make([]float32, rng.IntN(x.Len()-lo+1))
			if err := x.Float32(part, lo); err != nil {
				t.Fatal(err)
			}
			for i := range part {
				if !same(part[i], got[lo+i]) {
					t.Fatalf("%s: %d elements from %d: element %d differs", name, len(part), lo, i)
				}
			}
		}
		for _, lo := range []int{-1, x.Len() - 1} {
			if err := x.Float32(make([]float32, 2), lo); err == nil {
				t.Errorf("%s: elements %d and on were read", name, lo)
			}
		}
	}
	for kind, l := range layouts {
		if l.bytes > 0 && !seen[kind] {
			t.Errorf("no fixture of %s", l.name)
		}
	}
	if odd < 200 {
		t.Errorf("%d values are not finite: the scales do not test much", odd)
	}
	t.Logf("%d types, %d values, %d of them not finite: 0 differ", len(seen), values, odd)
}

// What is written is read again, by the reader that shares the package.
func TestReadsWhatIsWritten(t *testing.T) {
	x := make([]float32, 3*64)
	for i := range x {
		x[i] = float32(i) - 90
	}
	f := File{
		Pairs: []Pair{{"z", "text"}, {"b", true}, {"u", uint32(7)}, {"i", int32(-7)},
			{"l", uint64(1 << 40)}, {"f", float32(1e-5)}, {"s", []string{"", "a", "ü"}},
			{"n", []int32{3, -1}}},
		Tensors: []Tensor{{"wide", F32, []int{3, 64}, values(x)},
			{"half", F16, []int{3, 64}, values(x)}, {"brain", BF16, []int{3, 64}, values(x)},
			{"eight", Q8_0, []int{3, 64}, values(x)}, {"vector", F32, []int{192}, values(x)}},
	}
	r := open(t, hostile.Put(t, t.TempDir(), "f", write(t, f)))
	if got, want :=
		r.Names(), []string{"brain", "eight", "half", "vector", "wide"}; !slices.Equal(got, want) {
		t.Errorf("tensors %v", got)
	}
	for _, w := range f.Tensors {
		got, ok := r.Tensor(w.Name)
		if !ok || got.Type != w.Type || !slices.Equal(got.Shape, w.Shape) || got.Len() != len(x) {
			t.Errorf("%s: %+v", w.Name, got)
			continue
		}
		y := make([]float32, len(x))
		if err := got.Float32(y, 0); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if math.Abs(float64(x[i]-y[i])) > 0.5 || w.Type != Q8_0 && x[i] != y[i] {
				t.Fatalf("%s: element %d: %g, written %g", w.Name, i, y[i], x[i])
			}
		}
	}
	check := func(what string, got any, has bool, err error, want any) {
		t.Helper()
		if err != nil || !has || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %v %v, want %v", what, got, has, err, want)
		}
	}
	text, has, err := r.Text("z")
	check("z", text, has, err, "text")
	yes, has, err := r.Bool("b")
	check("b", yes, has, err, true)
	for key, want := range map[string]int64{"u": 7, "i": -7, "l": 1 << 40} {
		n, has, err := r.Int(key)
		check(key, n, has, err, want)
	}
	number, has, err := r.Float("f")
	check("f", number, has, err, 1e-5)
	texts, has, err := r.Texts("s")
	check("s", texts, has, err, []string{"", "a", "ü"})
	list, has, err := r.Ints("n")
	check("n", list, has, err, []int64{3, -1})
	list, has, err = r.Ints("u")
	check("u", list, has, err, []int64{7})
	if _, has, err := r.Int("nothing"); has || err != nil {
		t.Errorf("a key that is not there: %v %v", has, err)
	}
	for _, read := range []func() error{
		func() error { _, _, err := r.Int("z"); return err },
		func() error { _, _, err := r.Text("u"); return err },
		func() error { _, _, err := r.Texts("n"); return err },
		func() error { _, _, err := r.Floats("n"); return err },
		func() error { _, _, err := r.Bool("f"); return err },
		func() error { _, _, err := r.Float("b"); return err },
		func() error { _, _, err := r.Ints("s"); return err },
	} {
		if err := read(); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("a value of another type: %v", err)
		}
	}
}

// raw is a header, byte by byte.
type raw struct{ bytes.Buffer }

func (b *raw) u32(v ...uint32) *raw {
	for _, x := range v {
		b.Write(binary.LittleEndian.AppendUint32(nil, x))
	}
	return b
}

func (b *raw) u64(v ...uint64) *raw {
	for _, x := range v {
		b.Write(binary.LittleEndian.AppendUint64(nil, x))
	}
	return b
}

func (b *raw) text(s string) *raw { b.u64(uint64(len(s))).WriteString(s); return b }

// head begins a file of these counts.
func head(tensors, pairs uint64) *raw {
	b := &raw{}
	b.WriteString(magic)
	return b.u32(3).u64(tensors, pairs)
}

// key begins a file of one pair.
func key(name string) *raw { return head(0, 1).text(name) }

// tensor is a file of one tensor with these dimensions and data bytes.
func tensor(kind uint32, offset uint64, data int, dims ...uint64) []byte {
	b := head(1, 0).text("t").u32(uint32(len(dims))).u64(dims...).u32(kind).u64(offset)
	b.Write(make([]byte, -b.Len()&31+data))
	return b.Bytes()
}

// two is a file of two tensors of 32 bytes each.
func two(a, b string, at, bt uint64) []byte {
	f := head(2, 0).text(a).u32(1).u64(8).u32(0).u64(at).text(b).u32(1).u64(8).u32(0).u64(bt)
	f.Write(make([]byte, -f.Len()&31+64))
	return f.Bytes()
}

// padded is a file with zeros behind it, as many as a header may have.
func padded(b *raw) []byte { b.Write(make([]byte, 64)); return b.Bytes() }

// refused are files of which each breaks one rule, and what its error says.
var refused = []struct {
	name string
	data []byte
	want string
}{
	{"empty", nil, "offset 0: header: 0 bytes: too short for a GGUF file"},
	{"cut in the header", head(0, 0).Bytes()[:23], "offset 0: header: 23 bytes: too short"},
	{"another format", bytes.Repeat([]byte("PK\x03\x04"), 8), `offset 0: magic: "PK\x03\x04": not a GGUF file, which begins with "GGUF"`},
	{"version 1", append([]byte("GGUF\x01\x00\x00\x00"), make([]byte, 40)...),
		"offset 4: version: 1: not supported: convert the file with a later llama.cpp"},
	{"version 4", append([]byte("GGUF\x04\x00\x00\x00"), make([]byte, 40)...),
		"offset 4: version: 4: not supported: versions 2 and 3 are read"},
	{"big-endian", append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 40)...), "offset 4: version: 50331648, which is 3 in the other byte order: a big-endian file: not supported: get the little-endian one"},
	{"tensors lie", padded(head(1<<40, 0)), "offset 8: number of tensors: 1099511627776, for which the 72 bytes that remain are too few: is the file cut short?"},
	{"tensors overflow", padded(head(math.MaxUint64, 0)),
		"offset 8: number of tensors: 18446744073709551615, for which"},
	{"keys lie", padded(head(0, 1<<40)),
		"offset 16: number of keys: 1099511627776, for which the 64 bytes that remain are too few"},
	{"key cut", key("abcdefgh").Bytes()[:38],
		"offset 24: key 0: 8, for which the 6 bytes that remain are too few"},
	{"length of a key lies", padded(head(0, 1).u64(1 << 60)),
		"offset 24: key 0: 1152921504606846976, for which the 64 bytes that remain are too few"},
	{"long key", padded(key(strings.Repeat("k", 1<<16))),
		"offset 24: key 0: 65536: the limit is 65535"},
	{"empty key", padded(key("").u32(4, 1)), `offset 24: key 0: "": expected text in UTF-8`},
	{"key of any bytes", padded(key("\xff\xfe").u32(4, 1)), `offset 24: key 0: "\xff\xfe": expected text in UTF-8`},
	{"type of a value", padded(key("a").u32(13)), `offset 33: key "a": a value of type 13, which is not known`},
	{"type of an array", padded(key("a").u32(9, 99).u64(1)), `offset 37: key "a": a value of type 99, which is not known`},
	{"array of arrays", padded(key("a").u32(9, 9).u64(1)), `offset 37: key "a": an array of arrays: not supported`},
	{"length of an array lies", padded(key("a").u32(9, 4).u64(1 << 61)), `offset 41: key "a": 2305843009213693952, for which the 64 bytes that remain are too few`},
	{"length of an array overflows", padded(key("a").u32(9, 4).u64(1<<62 + 1)), `offset 41: key "a": 4611686018427387905, for which the 64`},
	{"length of strings lies", padded(key("a").u32(9, 8).u64(9)), `offset 41: key "a": 9, for which the 64 bytes that remain are too few`},
	{"string lies", padded(key("a").u32(8).u64(65)), `offset 37: key "a": 65, for which the 64 bytes that remain are too few`},
	{"string in an array lies", padded(key("a").u32(9, 8).u64(2).text("x").u64(1 << 50)), `offset 58: key "a": 1125899906842624, for which the 64 bytes`},
	{"value cut", key("a").u32(12, 0).Bytes(), `offset 37: key "a": 8 bytes, 4 remain: is the file cut short?`},
	{"bool", padded(key("a").u32(7, 2)), `offset 37: key "a": a bool of 2: expected 0 or 1`},
	{"key twice", padded(head(0, 2).text("a").u32(4, 1).text("a").u32(4, 1)), `offset 54: key "a": appears twice`},
	{"alignment", padded(key("general.alignment").u32(4, 24)), `offset 53: key "general.alignment": 24: expected a power of 2 from 8 to 1048576`},
	{"alignment of 0", padded(key("general.alignment").u32(4, 0)), `offset 53: key "general.alignment": 0: expected a power of 2`},
	{"alignment that overflows", padded(key("general.alignment").u32(10).u64(1 << 63)), `offset 53: key "general.alignment": 9223372036854775807: expected a power of 2`},
	{"alignment a text", padded(key("general.alignment").u32(8).text("32")), `offset 53: key "general.alignment": a value of type string: expected a whole number`},
	{"long name", padded(head(1, 0).text(strings.Repeat("n", 64))),
		"offset 24: tensor 0: 64: the limit is 63"},
	{"no name", padded(head(1, 0).text("").u32(1).u64(8).u32(0).u64(0)), `offset 24: tensor 0: "": expected a name in UTF-8`},
	{"no dimensions", tensor(0, 0, 32), `offset 33: tensor "t": 0 dimensions: expected 1 to 4`},
	{"5 dimensions", tensor(0, 0, 32, 1, 1, 1, 1, 8), `offset 33: tensor "t": 5 dimensions: expected 1 to 4`},
	{"dimension 0", tensor(0, 0, 32, 8, 0), `offset 45: tensor "t": a dimension of 0: expected at least 1, and sizes that do not overflow`},
	{"dimensions overflow", tensor(0, 0, 32, 1<<32, 1<<32), `offset 45: tensor "t": a dimension of 4294967296: expected`},
	{"size overflows", tensor(0, 0, 32, 1<<62), `offset 37: tensor "t": a dimension of 4611686018427387904: expected`},
	{"unknown type", tensor(77, 0, 32, 8), `offset 45: tensor "t": type 77, which is not known`},
	{"iq1_s", tensor(19, 0, 64, 256), `offset 45: tensor "t": type iq1_s: not supported: use a file in bf16, f16, f32, iq4_nl, iq4_xs, q2_K, q3_K, q4_0, q4_1, q4_K, q5_0, q5_1, q5_K, q6_K, q8_0`},
	{"tq1_0", tensor(34, 0, 64, 256), `offset 45: tensor "t": type tq1_0: not supported: use a file in`},
	{"mxfp4", tensor(39, 0, 64, 32), `offset 45: tensor "t": type mxfp4: not supported: use a file in`},
	{"i32", tensor(26, 0, 64, 8), `offset 45: tensor "t": type i32: not supported: use a file in`},
	{"rows are no blocks", tensor(8, 0, 64, 33), `offset 45: tensor "t": rows of 33 elements: q8_0 needs a multiple of 32`},
	{"rows are no large blocks", tensor(12, 0, 144, 32, 8), `offset 53: tensor "t": rows of 32 elements: q4_K needs a multiple of 256`},
	{"larger than the file", tensor(0, 0, 32, 1<<40), `offset 49: tensor "t": f32 [1099511627776] takes 4398046511104 bytes, the file has 96: is it cut short?`},
	{"not aligned", tensor(0, 4, 64, 8), `offset 49: tensor "t": starts at 4 of the data: expected a multiple of the alignment 32`},
	{"offset beyond", tensor(0, 1<<62, 64, 8), `offset 49: tensor "t": starts at 4611686018427387904 of the data, the file has 128 bytes: is it cut short?`},
	{"data cut", tensor(0, 0, 31, 8), `offset 49: tensor "t": its 32 bytes from 0 of the data on are beyond the file's end, which has 31 bytes of data: is it cut short?`},
	{"data cut behind another", tensor(0, 32, 60, 8), `offset 49: tensor "t": its 32 bytes from 32 of the data on are beyond the file's end, which has 60 bytes of data`},
	{"one inside another", two("a", "b", 0, 0), `offset 82: tensor "b": starts at 0 of the data, inside of tensor "a", which ends at 32`},
	{"name twice", two("a", "a", 0, 32), `offset 82: tensor "a": appears twice`},
}

// What is merely unusual is read.
func TestUnusualFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	version2 := tensor(0, 0, 32, 8)
	version2[4] = 2
	aligned := head(1, 1).text("general.alignment").u32(4,
		64).text("t").u32(1).u64(8).u32(0).u64(64)
	aligned.Write(make([]byte, -aligned.Len()&63+64+32))
	for _, c := range []struct {
		name    string
		data    []byte
		tensors int
	}{
		{"nothing in it", head(0, 0).Bytes(), 0},
		{"version 2", version2, 1},
		{"in another order", two("a", "b", 32, 0), 2},
		{"a hole", tensor(0, 32, 64, 8), 1},
		{"bytes behind the last", tensor(0, 0, 99, 8), 1},
		{"an alignment of 64", aligned.Bytes(), 1},
		{"every type of value", padded(head(0, 12).text("0").u32(0).text("")), 0},
	} {
		if c.name == "every type of value" {
			b := head(0, 13)
			for kind, l := range valueTypes {
				if b.text(string(rune('a' + kind))).u32(uint32(kind)); kind == typeArray {
					b.u32(4).u64(0)
				} else {
					b.Write(make([]byte, l.size))
				}
			}
			c.data = b.Bytes()
		}
		r, err := Open(hostile.Put(t, dir, "f", c.data))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(r.Names()) != c.tensors {
			t.Errorf("%s: tensors %v", c.name, r.Names())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file is known by its name or by its first bytes.
func TestIs(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]bool{"a.gguf": true, "b.GGUF": true, "c.bin": false} {
		if got := Is(hostile.Put(t, dir, name, []byte("anything"))); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.gguf"), 0o777); err != nil {
		t.Fatal(err)
	}
	if !Is(hostile.Put(t, dir, "d", head(0, 0).Bytes())) ||
		Is(filepath.Join(dir, "nothing.gguf")) || Is(filepath.Join(dir, "folder.gguf")) {
		t.Error("by its first bytes")
	}
}
