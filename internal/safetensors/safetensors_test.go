package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

const fixtures = "../../testdata/safetensors"

// raw makes a Source of bytes.
func raw(name string, dt DType, shape []int, data []byte) Source {
	return Source{name, dt, shape, func(w io.Writer) error { _, err := w.Write(data); return err }}
}

// floats makes a Source of float32 values.
func floats(name string, dt DType, shape []int, src []float32) Source {
	return Source{name, dt, shape, func(w io.Writer) error { return EncodeFloat32(w, dt, src) }}
}

func mustOpen(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func mustTensor(t testing.TB, f interface{ Tensor(string) (*Tensor, bool) }, name string) *Tensor {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("tensor %q is missing", name)
	}
	return x
}

func mustFloat32(t testing.TB, x *Tensor) []float32 {
	t.Helper()
	n := 1
	for _, d := range x.Shape {
		n *= d
	}
	dst := make([]float32, n)
	if err := x.Float32(dst); err != nil {
		t.Fatal(err)
	}
	return dst
}

// A file of the reference implementation: every type, and, written again from
// what was read, the same file byte for byte.
func TestReferenceFile(t *testing.T) {
	path := filepath.Join(fixtures, "dtypes.safetensors")
	f := mustOpen(t, path)
	if got := f.Metadata(); !reflect.DeepEqual(got, map[string]string{"format": "pt"}) {
		t.Errorf("metadata %v", got)
	}
	for _, want := range []struct {
		name  string
		dtype DType
		shape []int
		data  string
	}{
		{"scalar", I64, []int{}, "\xf9\xff\xff\xff\xff\xff\xff\xff"},
		{"empty", F32, []int{0, 3}, ""},
		{"bool", Bool, []int{3}, "\x01\x00\x01"},
		{"u8", U8, []int{2}, "\x00\xff"},
		{"i8", I8, []int{2}, "\x80\x7f"},
		{"i16", I16, []int{2}, "\x00\x80\xff\x7f"},
		{"u16", U16, []int{1}, "\xff\xff"},
		{"i32", I32, []int{2}, "\x00\x00\x00\x80\xff\xff\xff\x7f"},
		{"u32", U32, []int{1}, "\xff\xff\xff\xff"},
		{"u64", U64, []int{1}, "\x00\x00\x00\x00\x00\x00\x00\x80"},
		{"f8.e4m3", F8E4M3, []int{2}, "\x38\xc0"},
		{"f8.e5m2", F8E5M2, []int{2}, "\x3c\xc0"},
		{"c64", C64, []int{1}, "\x00\x00\x80\x3f\x00\x00\x00\x40"},
		{"name \"quoted\" \\ <&> ü \u2028", F32, []int{1}, "\x00\x00\x80\x3f"},
	} {
		x := mustTensor(t, f, want.name)
		if x.DType != want.dtype || fmt.Sprint(x.Shape) != fmt.Sprint(want.shape) ||
			string(x.Data) != want.data {
			t.Errorf("tensor %q: %s %v %x", want.name, x.DType, x.Shape, x.Data)
		}
	}
	if got := mustFloat32(t, mustTensor(t, f, "matrix")); !reflect.DeepEqual(got,
		[]float32{0, 1, 2, 3, 4, 5}) {
		t.Errorf("matrix %v", got)
	}
	if _, ok := f.Tensor("Matrix"); ok {
		t.Error("a name was found in another case")
	}
	var ts []Source
	for _, name := range f.Names() {
		x := mustTensor(t, f, name)
		ts = append(ts, raw(name, x.DType, x.Shape, x.Data))
	}
	if len(ts) != 19 {
		t.Errorf("%d tensors", len(ts))
	}
	var out bytes.Buffer
	if err := Write(&out, ts, f.Metadata()); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("written again, the file differs:\n%.900q\n%.900q", out.Bytes(), want)
	}
}

// torch's roundings of 535 float32 values are ours, both ways.
func TestRoundingIsTorchs(t *testing.T) {
	f := mustOpen(t, filepath.Join(fixtures, "dtypes.safetensors"))
	x := mustFloat32(t, mustTensor(t, f, "round.f32"))
	for _, c := range []struct {
		name  string
		dt    DType
		round func(float32) float32
	}{
		{"round.bf16", BF16,
			func(v float32) float32 { return math.Float32frombits(uint32(toBF16(v)) << 16) }},
		{"round.f16", F16, func(v float32) float32 { return FromHalf(toHalf(v)) }},
	} {
		ref := mustTensor(t, f, c.name)
		var out bytes.Buffer
		if err := EncodeFloat32(&out, c.dt, x); err != nil {
			t.Fatal(err)
		}
		wide := mustFloat32(t, ref)
		for i, v := range x {
			if v != v {
				if wide[i] == wide[i] || c.round(v) == c.round(v) {
					t.Errorf("%s: %d: NaN did not stay one", c.name, i)
				}
				continue
			}
			if got, want := out.Bytes()[2*i:2*i+2], ref.Data[2*i:2*i+2]; !bytes.Equal(got, want) {
				t.Errorf("%s: %d: %g (%08x) became %x, torch says %x", c.name, i, v,
					math.Float32bits(v), got, want)
			}
			if math.Float32bits(wide[i]) != math.Float32bits(c.round(v)) {
				t.Errorf("%s: %d: widened to %g, want %g", c.name, i, wide[i], c.round(v))
			}
		}
	}
	back := mustFloat32(t, mustTensor(t, f, "round.f64"))
	for i, v := range x {
		if back[i] != v && (v == v || back[i] == back[i]) {
			t.Errorf("float64: %d: %g, want %g", i, back[i], v)
		}
	}
}

// Every one of the 65536 half-precision values survives; and rounding picks the
// nearest of them, ties to even, for values between each two neighbours.
func TestHalfExhaustive(t *testing.T) {
	value := func(h uint16) float64 { // IEEE 754-2008, section 3.4, binary16
		e, f := int(h>>10&0x1f), float64(h&0x3ff)
		v := math.Ldexp(f, -24)
		if e > 0 {
			v = math.Ldexp(1024+f, e-25)
		}
		return math.Copysign(v, 1-2*float64(h>>15))
	}
	for i := range 1 << 16 {
		h := uint16(i)
		f := FromHalf(h)
		switch {
		case h&0x7fff > 0x7c00:
			if f == f || toHalf(f)&0x7fff <= 0x7c00 || toHalf(f)&0x200 == 0 {
				t.Fatalf("%04x: NaN became %g, back %04x", h, f, toHalf(f))
			}
			continue
		case h&0x7fff == 0x7c00:
			if !math.IsInf(float64(f), 1-2*int(h>>15)) {
				t.Fatalf("%04x: %g", h, f)
			}
		default:
			if float64(f) != value(h) || math.Signbit(float64(f)) != (h>>15 == 1) {
				t.Fatalf("%04x: %g, want %g", h, f, value(h))
			}
		}
		if toHalf(f) != h {
			t.Fatalf("%04x: back %04x", h, toHalf(f))
		}
		if h&0x7fff >= 0x7bff {
			continue
		}
		// The middle of h and its neighbour is exact in float32.
		mid := float32((value(h) + value(h+1)) / 2)
		even := h + h&1
		inf := float32(math.Inf(1 - 2*int(h>>15)))
		if toHalf(mid) != even || toHalf(math.Nextafter32(mid, inf)) != h+1 ||
			toHalf(math.Nextafter32(mid, 0)) != h {
			t.Fatalf("%04x: the middle %g goes to %04x, its neighbours to %04x and %04x", h, mid,
				toHalf(mid), toHalf(math.Nextafter32(mid, 0)), toHalf(math.Nextafter32(mid, inf)))
		}
	}
}

// A folder of transformers, in shards: the sums of its tensors are those that
// Python took.
func TestReferenceFolder(t *testing.T) {
	folder, err := OpenFolder(filepath.Join(fixtures, "sharded"))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	text, err := os.ReadFile(filepath.Join(fixtures, "sharded_sums.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sums map[string]float64
	if err := json.Unmarshal(text, &sums); err != nil {
		t.Fatal(err)
	}
	if len(folder.files) != 3 || len(folder.Names()) != len(sums) || len(sums) < 20 {
		t.Errorf("%d files, %d tensors, want %d", len(folder.files), len(folder.Names()), len(sums))
	}
	for name, want := range sums {
		got := 0.0
		for _, v := range mustFloat32(t, mustTensor(t, folder, name)) {
			got += float64(v)
		}
		if math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
			t.Errorf("tensor %q: sum %g, want %g", name, got, want)
		}
	}
}

// createIn is what WriteFolder needs to write to a folder of the system.
func createIn(dir string) func(string) (io.WriteCloser, error) {
	return func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(dir, name)) }
}

// What is written is what is read, in one file and in any number of shards; the
// sizes of the shards keep the bound.
func TestWriteFolder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var ts []Source
	values := map[string][]float32{}
	for i := range 12 {
		name := fmt.Sprintf("layer.%d.weight", i)
		shape := []int{1 + r.IntN(8), 1 + r.IntN(8)}
		x := make([]float32, shape[0]*shape[1])
		for j := range x {
			x[j] = float32(r.IntN(256)) // exact in bf16 too
		}
		values[name] = x
		ts = append(ts, floats(name, []DType{F32, BF16, F16}[i%3], shape, x))
	}
	for _, max := range []int64{0, 1 << 30, 200, 1} {
		dir := t.TempDir()
		if err := WriteFolder(createIn(dir), ts, max, map[string]string{"step": "3"}); err != nil {
			t.Fatal(err)
		}
		folder, err := OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		single := max == 0 || max == 1<<30
		if single != (len(folder.files) == 1) || max == 1 && len(folder.files) != len(ts) {
			t.Errorf("at most %d bytes: %d files", max, len(folder.files))
		}
		if len(folder.Names()) != len(values) {
			t.Errorf("%d names", len(folder.Names()))
		}
		for _, f := range folder.files {
			if m := f.Metadata(); m["format"] != "pt" || m["step"] != "3" {
				t.Errorf("metadata %v", m)
			}
			var sum int64
			for i := range f.tensors {
				sum += int64(len(f.tensors[i].Data))
			}
			if max > 0 && sum > max && len(f.tensors) > 1 {
				t.Errorf("at most %d bytes: a shard of %d tensors has %d", max, len(f.tensors), sum)
			}
		}
		for name, want := range values {
			if got := mustFloat32(t, mustTensor(t, folder, name)); !reflect.DeepEqual(got, want) {
				t.Errorf("tensor %q: %v, want %v", name, got, want)
			}
		}
		if !single {
			var index struct {
				Metadata  map[string]int64
				WeightMap map[string]string `json:"weight_map"`
			}
			text, err := os.ReadFile(filepath.Join(dir, IndexName))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &index); err != nil {
				t.Fatal(err)
			}
			var total int64
			for _, s := range ts {
				n, _ := s.Size()
				total += n
			}
			first := fmt.Sprintf("model-00001-of-%05d.safetensors", len(folder.files))
			if index.Metadata["total_size"] != total || index.WeightMap[ts[0].Name] != first {
				t.Errorf("index: total %d, want %d; first tensor in %q",
					index.Metadata["total_size"], total, index.WeightMap[ts[0].Name])
			}
		}
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
		if _, ok := folder.Tensor(ts[0].Name); ok {
			t.Error("a closed folder still gives tensors")
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	ok := raw("a", U8, []int{2}, []byte{1, 2})
	for _, c := range []struct {
		name, want string
		ts         []Source
		meta       map[string]string
	}{
		{"too few bytes", "1 of 2 bytes", []Source{raw("a", U8, []int{2}, []byte{1})}, nil},
		{"too many bytes", "1 bytes more", []Source{raw("a", U8, []int{2}, []byte{1, 2, 3})}, nil},
		{"name twice", "taken", []Source{ok, ok}, nil},
		{"reserved name", "taken", []Source{raw("__metadata__", U8, []int{0}, nil)}, nil},
		{"dtype", "not known", []Source{raw("a", "f32", []int{0}, nil)}, nil},
		{"negative", "negative", []Source{raw("a", U8, []int{-1}, nil)}, nil},
		{"overflow", "overflow", []Source{raw("a", U8, []int{1 << 30, 1 << 30, 1 << 30}, nil)},
			nil},
		{"rank", "dimensions", []Source{raw("a", U8, make([]int, 17), nil)}, nil},
		{"name not UTF-8", "UTF-8", []Source{raw("\xff", U8, []int{0}, nil)}, nil},
		{"metadata not UTF-8", "UTF-8", nil, map[string]string{"a": "\xff"}},
	} {
		var out bytes.Buffer
		if err := Write(&out, c.ts, c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := EncodeFloat32(io.Discard, I32, []float32{1}); err == nil {
		t.Error("EncodeFloat32 to I32 passed")
	}
	var codes bytes.Buffer
	if err := EncodeFloat32(&codes, U8, []float32{0, 1, 254, 255}); err != nil ||
		!bytes.Equal(codes.Bytes(), []byte{0, 1, 254, 255}) {
		t.Errorf("whole numbers as U8: %v, %v", codes.Bytes(), err)
	}
	for _, x := range []float32{-1, 0.5, 256, float32(math.NaN()), float32(math.Inf(1))} {
		if err := EncodeFloat32(io.Discard, U8, []float32{x}); err == nil ||
			!strings.Contains(err.Error(), "expected a whole number from 0 to 255") {
			t.Errorf("%g as U8: %v", x, err)
		}
	}
}

// shortWriter fails after n bytes.
type shortWriter struct{ n int }

var errFull = errors.New("full")

func (s *shortWriter) Write(p []byte) (int, error) {
	if len(p) > s.n {
		n := s.n
		s.n = 0
		return n, errFull
	}
	s.n -= len(p)
	return len(p), nil
}

// Every byte that cannot be written is an error.
func TestWriteReportsErrors(t *testing.T) {
	ts := []Source{floats("a", BF16, []int{50}, make([]float32, 50)),
		floats("b", F32, []int{9}, make([]float32, 9))}
	var whole bytes.Buffer
	if err := Write(&whole, ts, nil); err != nil {
		t.Fatal(err)
	}
	for n := range whole.Len() {
		if err := Write(&shortWriter{n}, ts, nil); !errors.Is(err, errFull) {
			t.Fatalf("room for %d of %d bytes: %v", n, whole.Len(), err)
		}
	}
	create := func(string) (io.WriteCloser, error) { return nil, fs.ErrPermission }
	if err := WriteFolder(create, ts, 0, nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("create: %v", err)
	}
	closing := func(string) (io.WriteCloser, error) { return badCloser{io.Discard}, nil }
	if err := WriteFolder(closing, ts, 0, nil); !errors.Is(err, errFull) {
		t.Errorf("close: %v", err)
	}
}

type badCloser struct{ io.Writer }

func (badCloser) Close() error { return errFull }

func TestFloat32Refuses(t *testing.T) {
	f := mustOpen(t, filepath.Join(fixtures, "dtypes.safetensors"))
	if err := mustTensor(t, f, "i32").Float32(make([]float32, 2)); err == nil ||
		!strings.Contains(err.Error(), "I32") {
		t.Errorf("I32: %v", err)
	}
	for _, n := range []int{0, 5, 7} {
		if err := mustTensor(t, f, "matrix").Float32(make([]float32, n)); err == nil ||
			!strings.Contains(err.Error(), "6 elements") {
			t.Errorf("a destination of %d: %v", n, err)
		}
	}
}

// A mapped file that is cut short under the reader is an error, not the end of
// the program.
func TestFileCutShortWhileRead(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the fault is Linux's")
	}
	path := filepath.Join(t.TempDir(), "f.safetensors")
	var out bytes.Buffer
	const n = 1 << 16
	if err := Write(&out, []Source{floats("a", F32, []int{n}, make([]float32, n))},
		nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	if err := mustTensor(t, f, "a").Float32(make([]float32, n)); err == nil ||
		!strings.Contains(err.Error(), "cut short") {
		t.Errorf("error %v", err)
	}
}

// Writing and opening a file of 64 MiB: the speed, and that opening does not
// read the data.
func BenchmarkWrite(b *testing.B) {
	const n = 1 << 25
	x := make([]float32, n)
	for _, dt := range []DType{F32, BF16, F16} {
		b.Run(string(dt), func(b *testing.B) {
			b.SetBytes(int64(n * dt.Size()))
			path := filepath.Join(b.TempDir(), "f.safetensors")
			for b.Loop() {
				f, err := os.Create(path)
				if err == nil {
					err = errors.Join(Write(f, []Source{floats("a", dt, []int{n}, x)}, nil),
						f.Close())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenAndWiden(b *testing.B) {
	const n = 1 << 25
	dst := make([]float32, n)
	for _, dt := range []DType{F32, BF16, F16} {
		path := filepath.Join(b.TempDir(), string(dt))
		f, err := os.Create(path)
		if err == nil {
			err = errors.Join(Write(f, []Source{floats("a", dt, []int{n}, dst)}, nil), f.Close())
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(dt), func(b *testing.B) {
			b.SetBytes(int64(n * dt.Size()))
			for b.Loop() {
				f, err := Open(path)
				if err != nil {
					b.Fatal(err)
				}
				if err := mustTensor(b, f, "a").Float32(dst); err != nil {
					b.Fatal(err)
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Opening a file with the header of a model of some thousand tensors.
func BenchmarkOpen(b *testing.B) {
	var ts []Source
	for i := range 5000 {
		ts = append(ts, raw(fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i), U8,
			[]int{1, 1}, []byte{0}))
	}
	var out bytes.Buffer
	if err := Write(&out, ts, nil); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "f")
	if err := os.WriteFile(path, out.Bytes(), 0o666); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(out.Len()))
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
