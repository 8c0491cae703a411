//go:build nvidia

package driver

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// bf16 rounds to the nearest bfloat16, ties to even.
func bf16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func float(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// host is a matrix on the host with its copy on the device; rows lie Ld apart with NaN between.
type host struct {
	Mat
	v []float32
}

func (d *Device) upload(t testing.TB, h *host) {
	t.Helper()
	size := map[DType]int{F32: 4, BF16: 2}[h.Type]
	b := pinned(t, d, len(h.v)*size)
	for i, x := range h.v {
		if h.Type == F32 {
			*(*float32)(unsafe.Pointer(&b[4*i])) = x
		} else {
			*(*uint16)(unsafe.Pointer(&b[2*i])) = bf16(x)
		}
	}
	must(t, d.CopyIn(h.P, unsafe.Pointer(&b[0]), int64(len(b))), d.Sync())
}

// download is what is in h's place on the device now.
func (d *Device) download(t testing.TB, h *host) []float32 {
	t.Helper()
	size := map[DType]int{F32: 4, BF16: 2}[h.Type]
	b := pinned(t, d, len(h.v)*size)
	must(t, d.CopyOut(unsafe.Pointer(&b[0]), h.P, int64(len(b))), d.Sync())
	v := make([]float32, len(h.v))
	for i := range v {
		if h.Type == F32 {
			v[i] = *(*float32)(unsafe.Pointer(&b[4*i]))
		} else {
			v[i] = float(*(*uint16)(unsafe.Pointer(&b[2*i])))
		}
	}
	return v
}

// random is a matrix of bfloat16 values in [-1,1], its rows pad apart and its start offset elements
// into its allocation.
func (d *Device) random(t testing.TB, r *rand.Rand, typ DType, rows, cols, pad, offset int64) *host {
	t.Helper()
	h := &host{Mat: Mat{Type: typ, Rows: rows, Cols: cols, Ld: cols + pad},
		v: make([]float32, rows*(cols+pad))}
	for i := range h.v {
		h.v[i] = float(bf16(2*r.Float32() - 1))
		if int64(i)%h.Ld >= cols {
			h.v[i] = float32(math.NaN())
		}
	}
	size := map[DType]int64{F32: 4, BF16: 2}[typ]
	h.P = alloc(t, d, size*(int64(len(h.v))+offset)) + Ptr(size*offset)
	d.upload(t, h)
	return h
}

// at is element [i,j] of h, or of h transposed.
func (h *host) at(trans bool, i, j int64) float64 {
	if trans {
		i, j = j, i
	}
	return float64(h.v[i*h.Ld+j])
}

func TestMatmul(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(1, 2))
	shapes := [][3]int64{{8, 8, 8}, {1, 8, 16}, {5, 24, 40}, {64, 136, 72}, {33, 8, 256}}
	if testing.Short() {
		shapes = shapes[:3]
	}
	for _, types := range [][2]DType{{BF16, BF16}, {BF16, F32}, {F32, F32}} {
		for _, s := range shapes {
			for variant := range 16 {
				m, n, k := s[0], s[1], s[2]
				transA, transB, acc, biased :=
					variant&1 != 0, variant&2 != 0, variant&4 != 0, variant&8 != 0
				if transA && m%8 != 0 {
					// its rows would not be 16-byte multiples, which callers keep away from
					continue
				}
				pad, offset := int64(variant%3*8), int64(variant%2*8)
				t.Run(fmt.Sprintf("%v to %v %v %04b", types[0], types[1], s, variant),
					func(t *testing.T) {
						t.Cleanup(d.Enter()) // a subtest is another goroutine
						ar, ac, br, bc := m, k, k, n
						if transA {
							ar, ac = ac, ar
						}
						if transB {
							br, bc = bc, br
						}
						a := d.random(t, r, types[0], ar, ac, pad, offset)
						b := d.random(t, r, types[0], br, bc, 8-pad%16, 0)
						c := d.random(t, r, types[1], m, n, pad, offset)
						bias := &host{}
						if biased {
							bias = d.random(t, r, types[1], 1, n, 0, 0)
						}
						alpha, beta := float32(1), float32(0)
						if acc {
							alpha, beta = -0.75, 0.5
						} else { // what is in c is not read
							for i := range c.v {
								c.v[i] = float32(math.NaN())
							}
							d.upload(t, c)
						}
						must(t, d.Matmul(c.Mat, a.Mat, b.Mat, transA, transB, alpha, beta, bias.P))
						got := d.download(t, c)
						for i := range m {
							for j := range n {
								want, size := 0., 1.
								for l := range k {
									p := a.at(transA, i, l) * b.at(transB, l, j)
									want += p
									size += math.Abs(p)
								}
								want *= float64(alpha)
								if acc {
									want += float64(beta) * c.at(false, i, j)
								}
								if biased {
									want += bias.at(false, 0, j)
								}
								eps := size * 1e-6
								if types[1] == BF16 {
									// two roundings: one more in an implementation that adds in
									// parts
									eps += math.Abs(want) / 128
								}
								if g := float64(got[i*c.Ld+j]); !(math.Abs(g-want) <= eps) {
									t.Fatalf("[%d,%d] = %v, not %v ± %v", i, j, g, want, eps)
								}
							}
							for j := n; j < c.Ld; j++ {
								if g := got[i*c.Ld+j]; g == g {
									t.Fatalf("[%d,%d] = %v: outside the matrix", i, j, g)
								}
							}
						}
					})
			}
		}
	}
}

// A plan is made once, serves other pointers of the same alignment, and other biases.
func TestMatmulPlans(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(3, 4))
	a, b, c :=
		d.random(t, r, BF16, 16, 32, 0, 0), d.random(t, r, BF16, 32, 8, 0, 0),
		d.random(t, r, F32, 16, 8, 0, 0)
	run := func(a *host, bias *host) []float32 {
		t.Helper()
		must(t, d.Matmul(c.Mat, a.Mat, b.Mat, false, false, 1, 0, bias.P))
		return d.download(t, c)
	}
	one, two := d.random(t, r, F32, 1, 8, 0, 0), d.random(t, r, F32, 1, 8, 0, 0)
	plain := run(a, &host{})
	for range 3 {
		for _, bias := range []*host{one, two} {
			got := run(a, bias)
			for i := range got {
				if want := plain[i] + bias.v[i%8]; math.Abs(float64(got[i]-want)) > 1e-5 {
					t.Fatalf("[%d] = %v, not %v", i, got[i], want)
				}
			}
		}
	}
	if n := len(d.lt.plans); n != 2 {
		t.Errorf("%d plans, not 2", n)
	}
	run(d.random(t, r, BF16, 16, 32, 0, 8), one) // aligned to 16 bytes: no more is asked for
	if n := len(d.lt.plans); n != 2 {
		t.Errorf("%d plans, not 2", n)
	}
	run(d.random(t, r, BF16, 16, 32, 0, 4), one) // to 8 only
	if n := len(d.lt.plans); n != 3 {
		t.Errorf("%d plans, not 3", n)
	}

	// In a graph, and after its plan is gone.
	graph, err := d.Capture(
		func() error { return d.Matmul(c.Mat, a.Mat, b.Mat, false, false, 1, 0, 0) })
	must(t, err)
	d.lt.forget()
	must(t, d.Set32(c.P, 0, 16*8), graph.Launch())
	for i, g := range d.download(t, c) {
		if g != plain[i] {
			t.Fatalf("[%d] = %v, not %v", i, g, plain[i])
		}
	}
	must(t, graph.Close())
}

// The order of a product's sums is not that of blocks' arrival, nor are parts of a sum rounded to
// the result's type: the same product gives the same bits, and a bfloat16 result is the float32
// one, rounded.
func TestMatmulOrder(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(9, 10))
	a, b := d.random(t, r, BF16, 32, 4096, 0, 0), d.random(t, r, BF16, 4096, 48, 0, 0)
	var wide []float32
	for _, typ := range []DType{F32, BF16} {
		c := d.random(t, r, typ, 32, 48, 0, 0)
		var first []float32
		for call := range 4 {
			must(t, d.Matmul(c.Mat, a.Mat, b.Mat, false, false, 1, 0, 0))
			got := d.download(t, c)
			if first == nil {
				first = got
			}
			for i := range got {
				if got[i] != first[i] {
					t.Fatalf("%v: call %d: [%d] = %v, and %v in the first", typ, call, i, got[i],
						first[i])
				}
			}
		}
		if typ == F32 {
			wide = first
			continue
		}
		for i := range first {
			if off := math.Abs(float64(first[i] - wide[i])); !(off <= math.Abs(float64(wide[i]))/256+1e-4) {
				t.Fatalf("[%d] = %v in bfloat16, %v in float32: more than one rounding apart", i,
					first[i], wide[i])
			}
		}
	}
}

// While a capture is under way the heuristics are not asked, which cuBLASLt of CUDA 13.3 and later
// answers with an error: the product fails, nothing is remembered of it, and outside it is done.
func TestMatmulInCapture(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(11, 12))
	a, b, c :=
		d.random(t, r, BF16, 16, 32, 0, 0), d.random(t, r, BF16, 32, 8, 0, 0),
		d.random(t, r, F32, 16, 8, 0, 0)
	product := func() error { return d.Matmul(c.Mat, a.Mat, b.Mat, false, false, 1, 0, 0) }
	if _, err := d.Capture(product); !errors.Is(err, ErrCapturing) {
		t.Errorf("asked inside a capture: %v", err)
	}
	if len(d.lt.plans) != 0 || d.NoPlan(c.Mat, a.Mat, b.Mat, false, false, 0) {
		t.Errorf("%d plans were made; %v", len(d.lt.plans), d.lt.refused)
	}
	must(t, product(), d.Sync())
	graph, err := d.Capture(product)
	must(t, err, graph.Launch(), d.Sync(), graph.Close())
}

// A product that the heuristics know nothing for, in either way of saying so, is an ErrNoPlan,
// which is remembered; others go on.
func TestNoPlan(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(7, 8))
	a, b, c :=
		d.random(t, r, BF16, 16, 32, 0, 0), d.random(t, r, BF16, 32, 8, 0, 0),
		d.random(t, r, F32, 16, 8, 0, 0)
	known := func() { t.Helper(); must(t, d.Matmul(c.Mat, a.Mat, b.Mat, false, false, 1, 0, 0)) }
	known()
	heuristic := d.lt.heuristic
	for _, answer := range []status{0, notSupported} {
		asked := 0
		d.lt.heuristic = purego.NewCallback(func(_, _, _, _, _, _, _, _, _, count uintptr) uintptr {
			asked++
			*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&count))) = 0
			return uintptr(answer)
		})
		rows := Mat{P: a.P, Type: BF16, Rows: 8 - int64(answer&1), Cols: a.Cols, Ld: a.Ld}
		some := Mat{P: c.P, Type: F32, Rows: rows.Rows, Cols: c.Cols, Ld: c.Ld}
		if d.NoPlan(some, rows, b.Mat, false, false, 0) {
			t.Error("known before it was asked for")
		}
		for range 2 {
			if err := d.Matmul(some, rows, b.Mat, false, false, 1, 0, 0); !errors.Is(err,
				ErrNoPlan) {
				t.Errorf("status %d: %v", answer, err)
			}
		}
		if asked != 1 || !d.NoPlan(some, rows, b.Mat, false, false, 0) ||
			d.NoPlan(c.Mat, a.Mat, b.Mat, false, false, 0) {
			t.Errorf("status %d: asked %d times; %v", answer, asked, d.lt.refused)
		}
		known()
	}
	d.lt.heuristic = heuristic
	must(t, d.Sync())
}

// What is added to a product may lie elsewhere, aligned as it is; it stays as it was.
func TestMatmulFrom(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(7, 8))
	for _, offset := range []int64{0, 1, 4} {
		const m, n, k = 40, 24, 64
		a, b := d.random(t, r, BF16, m, k, 0, 0), d.random(t, r, BF16, n, k, 0, 0)
		from, place := d.random(t, r, F32, m, n, 8, offset), d.random(t, r, F32, m, n, 8, 0)
		result := d.random(t, r, F32, m, n, 8, 0)
		copy(place.v, from.v)
		d.upload(t, place)
		must(t, d.Matmul(place.Mat, a.Mat, b.Mat, false, true, 1, 1, 0))
		to := result.Mat
		to.From = from.P
		must(t, d.Matmul(to, a.Mat, b.Mat, false, true, 1, 1, 0))
		want, got, left := d.download(t, place), d.download(t, result), d.download(t, from)
		for i := range from.v {
			if i%(n+8) >= n {
				continue // between rows
			}
			if got[i] != want[i] || left[i] != from.v[i] || want[i] == left[i] {
				t.Fatalf("from %d: element %d is %v, in place %v; what was added is %v, was %v",
					offset, i, got[i], want[i], left[i], from.v[i])
			}
		}
	}
}

func TestMatmulRefuses(t *testing.T) {
	d := device(t)
	m := func(typ DType, rows, cols, ld int64) Mat { return Mat{256, typ, rows, cols, ld, 0} }
	for name, err := range map[string]error{
		"inner": d.Matmul(m(F32, 8, 8, 8), m(F32, 8, 16, 16), m(F32, 8, 8, 8), false, false, 1, 0,
			0),
		"outer": d.Matmul(m(F32, 8, 16, 16), m(F32, 8, 8, 8), m(F32, 8, 8, 8), false, false, 1, 0,
			0),
		"types": d.Matmul(m(F32, 8, 8, 8), m(F32, 8, 8, 8), m(BF16, 8, 8, 8), false, false, 1, 0,
			0),
		"narrow": d.Matmul(m(BF16, 8, 8, 8), m(F32, 8, 8, 8), m(F32, 8, 8, 8), false, false, 1, 0,
			0),
		"apart": d.Matmul(m(F32, 8, 8, 8), m(F32, 8, 8, 7), m(F32, 8, 8, 8), false, false, 1, 0,
			0),
	} {
		if err == nil || !strings.Contains(err.Error(), "do not fit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, d.Matmul(m(F32, 0, 8, 8), m(F32, 0, 8, 8), m(F32, 8, 8, 8), false, false, 1, 0, 0))
}

// TestDescriptors sets every attribute in descriptors of the machine's cuBLASLt, which needs the
// library but no device: it refuses attributes and sizes that it does not know.
func TestDescriptors(t *testing.T) {
	var handle uintptr
	var opened string
	var errs []error
	for _, name := range ltNames(99000) {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			handle, opened = h, name
			break
		}
		errs = append(errs, err)
	}
	if handle == 0 {
		t.Skipf("needs cuBLASLt: %v", errors.Join(errs...))
	}
	lt := &cublasLt{space: 32 << 20, plans: map[shape]*plan{}}
	must(t, lt.bind(handle))
	v, _, _ := purego.SyscallN(lt.version)
	t.Log(opened, v)
	must(t, lt.newPreference())
	a, b, c :=
		Mat{256, BF16, 32, 16, 24, 0}, Mat{512, BF16, 8, 32, 40, 0}, Mat{1024, F32, 16, 8, 8, 0}
	s := shape{m: 16, n: 8, k: 32, lda: a.Ld, ldb: b.Ld, ldc: c.Ld, transA: true, transB: true,
		bias: true, in: BF16, out: F32,
		alignA: 16, alignB: 16, alignC: 16, alignBias: 16}
	p, err := lt.describe(s, a, b, c, 4096+16)
	must(t, err)
	lt.plans[s] = p
	must(t, lt.setBias(p, 4096))
	if p.op == 0 || p.a == 0 || p.b == 0 || p.c == 0 || p.bias != 4096 {
		t.Errorf("%+v", p)
	}
	lt.forget()
	must(t, ltError(purego.SyscallN(lt.prefDestroy, lt.pref)))
}

func TestAlignment(t *testing.T) {
	for p, want := range map[Ptr]uint16{0: 16, 256: 16, 4096 + 16: 16, 4096 + 8: 8, 130: 2, 1: 1,
		1 << 40: 16} {
		if got := alignment(p); got != want {
			t.Errorf("%d: %d, not %d", p, got, want)
		}
	}
}

// BenchmarkMatmul is the host's part of a product whose plan is known.
func BenchmarkMatmul(b *testing.B) {
	d := device(b)
	r := rand.New(rand.NewPCG(5, 6))
	x, y, z :=
		d.random(b, r, BF16, 8, 8, 0, 0), d.random(b, r, BF16, 8, 8, 0, 0),
		d.random(b, r, F32, 8, 8, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Matmul(z.Mat, x.Mat, y.Mat, false, true, 1, 0, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	must(b, d.Sync())
}
