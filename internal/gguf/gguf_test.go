package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/gguf/gguftest"
)

// values is a tensor's Read over numbers in memory.
func values(x []float32) func([]float32, int) error {
	return func(dst []float32, lo int) error {
		if copy(dst, x[lo:]) != len(dst) {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
}

func parse(t *testing.T, b []byte) gguftest.File {
	t.Helper()
	f, err := gguftest.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f File) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil || size != int64(b.Len()) {
		t.Errorf("Size says %d (%v), written %d", size, err, b.Len())
	}
	return b.Bytes()
}

// The bytes of a tiny file, put together by hand from the description of the format.
func TestGolden(t *testing.T) {
	got := write(t, File{
		Pairs:   []Pair{{"a", uint32(7)}, {"b", []string{"x", ""}}, {"c", true}},
		Tensors: []Tensor{{"t", F16, []int{2, 3}, values([]float32{0, 1, -2, 0.5, 65504, 1e-8})}},
	})
	want := strings.Join([]string{
		"47475546 03000000 0100000000000000 0300000000000000",
		"0100000000000000 61 04000000 07000000",
		"0100000000000000 62 09000000 08000000 0200000000000000 0100000000000000 78 0000000000000000",
		"0100000000000000 63 07000000 01",
		"0100000000000000 74 02000000 0300000000000000 0200000000000000 01000000 0000000000000000",
		strings.Repeat("00", 22),
		"0000 003c 00c0 0038 ff7b 0000", strings.Repeat("00", 20),
	}, "")
	if g, w := hex.EncodeToString(got), strings.ReplaceAll(want, " ", ""); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if len(got)%32 != 0 {
		t.Errorf("%d bytes", len(got))
	}
}

// Every type of value and tensor, read back, with tensors longer than a chunk.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 3*chunk+2*blockElems)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	f := File{
		Pairs: []Pair{{"s", "text ▁ \x00"}, {"u", uint32(1 << 31)}, {"i", int32(-5)},
			{"l", uint64(1 << 40)}, {"f", float32(1e-6)},
			{"t", true}, {"n", false}, {"ss", []string{"a", "", "ü"}}, {"is", []int32{-1, 0, 7}},
			{"none", []string(nil)}},
	}
	for i, k := range []Type{F32, F16, BF16, Q8_0} {
		f.Tensors = append(f.Tensors,
			Tensor{"m" + k.String(), k, []int{len(x) / blockElems, blockElems}, values(x)},
			Tensor{"v" + k.String(), k, []int{blockElems}, values(x[i:])})
	}
	f.Tensors = append(f.Tensors, Tensor{"odd", F32, []int{3}, values(x)})
	p := parse(t, write(t, f))
	for _, pair := range f.Pairs {
		if got := p.Pairs[pair.Key]; !reflect.DeepEqual(got, pair.Value) {
			t.Errorf("%s: %#v, expected %#v", pair.Key, got, pair.Value)
		}
	}
	for _, w := range f.Tensors {
		got := p.Tensors[w.Name]
		if got.Type != uint32(w.Type) || !slices.Equal(got.Shape, w.Shape) {
			t.Fatalf("%s: type %d shape %v", w.Name, got.Type, got.Shape)
		}
		want := make([]float32, w.Len())
		if err := w.Read(want, 0); err != nil {
			t.Fatal(err)
		}
		for i, y := range got.Values() {
			bound := map[Type]float64{F32: 0, F16: 0x1p-11, BF16: 0x1p-8, Q8_0: 0}[w.Type] *
				math.Abs(float64(want[i]))
			if w.Type == Q8_0 { // half a step, and the scale's rounding
				var most float64
				for _, v := range want[i/32*32:][:32] {
					most = max(most, math.Abs(float64(v)))
				}
				bound = most/127*0.5 + most*0x1p-11
			}
			if math.Abs(float64(y)-float64(want[i])) > bound+1e-7*float64(min(1, w.Type)) {
				t.Fatalf("%s: element %d: %g, expected %g", w.Name, i, y, want[i])
			}
		}
	}
}

// q8_0 against its definition, with ties: max|x| is 127, so that the scale is 1 and
// halves stay halves.
func TestQ8Rounding(t *testing.T) {
	x := []float32{127, -127, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 126.5,
		-126.5, 63, -64.5, 0, float32(math.Copysign(0, -1))}
	want := []int8{127, -127, 1, -1, 2, -2, 3, -3, 0, 0, 127, -127, 63, -65, 0, 0}
	x, want = append(x, make([]float32, 16)...), append(want, make([]int8, 16)...)
	tiny := make([]float32, 32)
	tiny[3] = math.SmallestNonzeroFloat32
	low := make([]float32, 32)
	low[0], low[1] = 127*0x1p-20, -63.5*0x1p-20 // a scale that is subnormal in binary16
	all := slices.Concat(x, make([]float32, 32), tiny, low)
	p := parse(t,
		write(t, File{Tensors: []Tensor{{"q", Q8_0, []int{4, 32}, values(all)}}})).Tensors["q"].Data
	if d := binary.LittleEndian.Uint16(p); d != 0x3c00 {
		t.Errorf("scale %04x, expected 1", d)
	}
	for i, q := range p[2:34] {
		if int8(q) != want[i] {
			t.Errorf("%g became %d, expected %d", x[i], int8(q), want[i])
		}
	}
	if rest := p[34 : 34*3]; slices.ContainsFunc(rest, func(b byte) bool { return b != 0 }) {
		t.Errorf("blocks of zeros, and of what no scale can hold: % x", rest)
	}
	if b := p[34*3:]; binary.LittleEndian.Uint16(b) != 0x10 || int8(b[2]) != 127 ||
		int8(b[3]) != -64 {
		t.Errorf("a small scale: % x", b[:4])
	}
}

func TestRefused(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	block := func(x float32) []float32 { return append([]float32{1, x}, make([]float32, 30)...) }
	one := func(k Type, x float32) File {
		return File{Tensors: []Tensor{{"w", k, []int{1, 32}, values(block(x))}}}
	}
	for _, c := range []struct {
		file File
		want string
	}{
		{one(F16, 65520), `gguf: tensor "w": element 1 is 65520, too large for f16: use bf16`},
		{one(F16, nan), `gguf: tensor "w": element 1 is NaN: not finite: use an earlier checkpoint`},
		{one(F32, inf), `gguf: tensor "w": element 1 is -Inf: not finite: use an earlier checkpoint`},
		{one(BF16, math.MaxFloat32), `gguf: tensor "w": element 1 is 3.4028235e+38, too large for bf16: use f32`},
		{one(Q8_0, -127*65520), `gguf: tensor "w": element 1 is -8.32104e+06, too large for q8_0: use bf16`},
		{one(Q8_0, nan), `gguf: tensor "w": element 1 is NaN: not finite: use an earlier checkpoint`},
		{one(Type(2), 0), `gguf: tensor "w": q4_0: cannot be written: use f32, f16, bf16 or q8_0`},
		{File{Tensors: []Tensor{{Name: "w", Type: Q8_0, Shape: []int{2, 48}}}}, `gguf: tensor "w": rows of 48 elements: q8_0 needs a multiple of 32`},
		{File{Tensors: []Tensor{{Name: "w", Type: F32, Shape: []int{1 << 40, 1 << 40}}}}, `gguf: tensor "w": shape [1099511627776 1099511627776]: a dimension is below 1, or the size overflows`},
		{File{Tensors: []Tensor{{Name: "w", Type: F32}}}, `gguf: tensor "w": 0 dimensions: expected 1 to 4`},
		{File{Tensors: []Tensor{{Name: strings.Repeat("n", 64), Type: F32, Shape: []int{1}}}}, `gguf: tensor "` + strings.Repeat("n", 64) + `": a name of 64 bytes: expected 1 to 63`},
		{File{Tensors: []Tensor{{Name: "w", Shape: []int{1}}, {Name: "w", Shape: []int{1}}}}, `gguf: tensor "w": given twice`},
		{File{Pairs: []Pair{{"k", 1}}}, `gguf: key "k": a value of type int: cannot be written`},
		{File{Pairs: []Pair{{"k", true}, {"k", true}}}, `gguf: key "k": empty or given twice`},
	} {
		if err := c.file.Write(io.Discard); err == nil || err.Error() != c.want {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
	broken := errors.New("broken")
	f := File{Tensors: []Tensor{{"w", F32, []int{1}, func([]float32, int) error { return broken }}}}
	if err := f.Write(io.Discard); !errors.Is(err, broken) {
		t.Error(err)
	}
	for _, k := range []Type{F16, BF16, Q8_0} { // the largest that round to finite numbers
		x := map[Type]float32{F16: 65519, BF16: 0x1.fep127, Q8_0: 127 * 65519}[k]
		for i, y := range parse(t, write(t, one(k, x))).Tensors["w"].Values()[:2] {
			if y-y != 0 {
				t.Errorf("%s: element %d of %g is %g", k, i, x, y)
			}
		}
	}
}
