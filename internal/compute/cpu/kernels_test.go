package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/compute"
)

// lanes are the kernels over slices: how many slices they take, and a call.
var lanes = map[string]struct {
	slices int
	call   func(k *kernels, s [][]float32) []float64
}{
	"add":   {2, func(k *kernels, s [][]float32) []float64 { k.add(s[0], s[1]); return nil }},
	"scale": {1, func(k *kernels, s [][]float32) []float64 { k.scale(s[0], 0.7); return nil }},
	"axpy": {2,
		func(k *kernels, s [][]float32) []float64 { k.axpy(s[0], s[1], -1.3); return nil }},
	"dot": {2,
		func(k *kernels, s [][]float32) []float64 { return []float64{float64(k.dot(s[0], s[1]))} }},
	"dot3": {3,
		func(k *kernels,
			s [][]float32) []float64 {
			return []float64{float64(k.dot3(s[0], s[1], s[2]))}
		}},
	"sumSquares": {1,
		func(k *kernels, s [][]float32) []float64 { return []float64{k.sumSquares(s[0])} }},
	"mulScale": {3,
		func(k *kernels,
			s [][]float32) []float64 {
			k.mulScale(s[0], s[1], s[2], 0.3)
			return nil
		}},
	"normGrad": {4, func(k *kernels, s [][]float32) []float64 {
		k.normGrad(s[0], s[1], s[2], s[3], 0.9, 0.4, 0)
		k.normGrad(s[0], s[1], s[2], s[3], 1.1, 0.2, 1)
		return nil
	}},
	"mulAcc": {3,
		func(k *kernels, s [][]float32) []float64 { k.mulAcc(s[0], s[1], s[2], 0.6); return nil }},
	"rotate": {4,
		func(k *kernels,
			s [][]float32) []float64 {
			k.rotate(s[0], s[1], s[2], s[3], -1)
			return nil
		}},
	"scaleMax": {1,
		func(k *kernels,
			s [][]float32) []float64 {
			return []float64{float64(k.scaleMax(s[0], 2.5))}
		}},
	"expSum": {1,
		func(k *kernels,
			s [][]float32) []float64 {
			return []float64{float64(k.expSum(s[0], 0.5))}
		}},
	"expStats": {1, func(k *kernels, s [][]float32) []float64 {
		sum, mean := k.expStats(s[0], 1.5)
		return []float64{float64(sum), float64(mean)}
	}},
	"headGrad": {1,
		func(k *kernels, s [][]float32) []float64 { k.headGrad(s[0], 2, -0.7, 0.3); return nil }},
	"softGrad": {2,
		func(k *kernels,
			s [][]float32) []float64 {
			k.softGrad(s[0], s[1], 0.5, 1, 0.2)
			return nil
		}},
	"swiglu": {3,
		func(k *kernels, s [][]float32) []float64 { k.swiglu(s[0], s[1], s[2]); return nil }},
	"swigluGrad": {5,
		func(k *kernels, s [][]float32) []float64 {
			k.swigluGrad(s[0], s[1], s[2], s[3], s[4])
			return nil
		}},
	"adamW": {4, func(k *kernels, s [][]float32) []float64 {
		for i, v := range s[3] {
			s[3][i] = v * v // a second moment is not negative
		}
		k.adamW(s[0], s[1], s[2], s[3], &adamConsts{0.5, 0.9, 0.1, 0.99, 0.01, 0.1, 2, 1e-8, 0.01})
		return nil
	}},
}

// guarded is n elements at an offset, between NaNs.
func guarded(n, off int) (all, part []float32) {
	all = make([]float32, off+n+20)
	for i := range all {
		all[i] = float32(math.NaN())
	}
	return all, all[off : off+n]
}

// TestKernels runs every kernel of every variant against the portable one, for
// all short lengths and all offsets of a cache line. Nothing outside may be
// written or read into a sum; an element's bits may not depend on its index.
func TestKernels(t *testing.T) {
	// those in slices of functions: TestChain, TestStream
	fields := reflect.TypeFor[kernels]()
	// TestRows, TestCodes, TestDequant
	others := []string{"transpose", "rows", "decode8", "encode8", "dequant8", "dequant4"}
	for i := range fields.NumField() {
		f := fields.Field(i)
		if _, ok := lanes[f.Name]; !ok && f.Type.Kind() == reflect.Func &&
			!slices.Contains(others, f.Name) {
			t.Errorf("kernel %s has no test", f.Name)
		}
	}
	lengths := []int{127, 128, 129, 1000}
	for n := range 67 {
		lengths = append(lengths, n)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for _, k := range available() {
		for name, kernel := range lanes {
			for _, n := range lengths {
				off := rng.IntN(16)
				var all, want, got [][]float32
				for range kernel.slices {
					a, part := guarded(n, off)
					for i := range part {
						part[i] = float32(rng.NormFloat64())
					}
					all, got, want =
						append(all, a), append(got, part), append(want, slices.Clone(part))
				}
				before := make([][]float32, len(got))
				for i := range got {
					before[i] = slices.Clone(got[i])
				}
				sums := kernel.call(k, got)
				for i, x := range kernel.call(portable, want) {
					if !near(sums[i], x, float64(n+1)) {
						t.Errorf("%s %s: n=%d: result %d is %v, want %v", k.name, name, n, i,
							sums[i], x)
					}
				}
				for s := range got {
					for i := range got[s] {
						if !near(float64(got[s][i]), float64(want[s][i]), 4) {
							t.Fatalf("%s %s: n=%d: slice %d: [%d] is %v, want %v", k.name, name, n,
								s, i, got[s][i], want[s][i])
						}
					}
					for i, x := range all[s] {
						if (i < off || i >= off+n) && x == x {
							t.Fatalf("%s %s: n=%d: slice %d: wrote outside at [%d]", k.name, name,
								n, s, i-off)
						}
					}
				}
				if n == 0 || n > 40 {
					continue
				}
				i, alone := rng.IntN(n), make([][]float32, len(got))
				for s := range alone {
					alone[s] = []float32{before[s][i]}
				}
				kernel.call(k, alone)
				for s := range alone {
					if math.Float32bits(alone[s][0]) != math.Float32bits(got[s][i]) {
						t.Errorf("%s %s: n=%d: slice %d: [%d] is %v, alone %v", k.name, name, n, s,
							i, got[s][i], alone[s][0])
					}
				}
			}
		}
	}
}

func near(got, want, scale float64) bool {
	return got == want || math.Abs(got-want) <= 1e-6*(math.Abs(want)+scale)
}

// TestExp: the relative error over the whole range, and the range's ends.
func TestExp(t *testing.T) {
	for _, k := range available() {
		worst, at := 0.0, 0.0
		x, y := make([]float32, 1000), make([]float32, 1000)
		for lo := -87.33; lo < 88.7; lo += 0.37 {
			for i := range x {
				x[i] = float32(min(lo+0.37*float64(i)/1000, 88.7))
			}
			copy(y, x)
			k.expSum(y, 0)
			for i := range x {
				want := math.Exp(float64(x[i]))
				if e := math.Abs(float64(y[i])-want) / want; e > worst {
					worst, at = e, float64(x[i])
				}
			}
		}
		t.Logf("%s: largest relative error of exp %.3g, at %v", k.name, worst, at)
		if worst > 1.3e-7 {
			t.Errorf("%s: relative error of exp %.3g at %v", k.name, worst, at)
		}
		inf := float32(math.Inf(1))
		ends := []float32{-87.34, -88, -104, -1e4, -3e38, -inf, 89.1, 1e4, 3e38, inf, 0,
			float32(math.NaN())}
		want := []float32{0, 0, 0, 0, 0, 0, inf, inf, inf, inf, 1, 0}
		k.expSum(ends, 0)
		for i, w := range want {
			if i == len(want)-1 {
				if ends[i] == ends[i] {
					t.Errorf("%s: exp(NaN) is %v", k.name, ends[i])
				}
			} else if ends[i] != w {
				t.Errorf("%s: end %d: %v, want %v", k.name, i, ends[i], w)
			}
		}
	}
}

// TestChain: each element of a product is one chain over ascending k, from zero
// or from c: fused in the assembly, rounded twice in the portable kernels.
func TestChain(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, k := range available() {
		for m := 1; m <= k.mr; m++ {
			for _, depth := range []int{0, 1, 2, 37} {
				for acc := range 2 {
					rs, cs, ldb, ldc := 40, 1, k.nr+3, k.nr+5
					if depth == 2 {
						rs, cs = 1, 19 // A transposed
					}
					_, a := guarded(15*40, rng.IntN(16))
					_, b := guarded(40*ldb, rng.IntN(16))
					all, c := guarded(m*ldc, rng.IntN(16))
					for _, x := range [][]float32{a, b} {
						for i := range x {
							x[i] = float32(rng.NormFloat64())
						}
					}
					for i := range m {
						for j := range k.nr {
							c[i*ldc+j] = float32(rng.NormFloat64())
						}
					}
					before := slices.Clone(c)
					k.gemm[m-1](a, rs, cs, b, ldb, c, ldc, depth, acc)
					for i := range m {
						for j := range ldc {
							if j >= k.nr {
								if x := c[i*ldc+j]; x == x {
									t.Fatalf("%s: %d rows: wrote beyond column %d", k.name, m, k.nr)
								}
								continue
							}
							want := float32(acc) * before[i*ldc+j]
							for x := range depth {
								p, q := a[i*rs+x*cs], b[x*ldb+j]
								if k == portable {
									want += float32(p * q)
								} else {
									want = float32(math.FMA(float64(p), float64(q), float64(want)))
								}
							}
							if c[i*ldc+j] != want {
								t.Fatalf("%s: %d rows, depth %d, acc %d: c[%d,%d] is %v, want %v",
									k.name, m, depth, acc, i, j, c[i*ldc+j], want)
							}
						}
					}
					for _, x := range [][]float32{all[:len(all)-len(c)-20], all[len(all)-20:]} {
						for _, v := range x {
							if v == v {
								t.Fatalf("%s: %d rows: wrote outside", k.name, m)
							}
						}
					}
				}
			}
		}
	}
}

// TestStream: a product that streams its weights has the bits of one that does
// not, whatever its rows, columns and depth, and writes nothing beyond it.
func TestStream(t *testing.T) {
	for _, variant := range Variants() {
		b, err := New(Options{Workers: 2, Variant: variant})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if b.k.stream == nil {
			continue
		}
		for _, s := range [][3]int{{1, 1, 1}, {1, 70, 33}, {3, 32, 300}, {13, 100, 500},
			{14, 97, 145}, {15, 64, 144}, {29, 161, 289}, {32, 200, 1000}, {128, 40, 7}} {
			M, N, K := s[0], s[1], s[2]
			x, bias := random(b, M*K), random(b, N)
			w := &compute.Param{Rows: N, Cols: K, W: random(b, N*K)}
			for _, acc := range []bool{false, true} {
				made := func(c []float32) *product {
					p := &product{m: M, n: N, k: K, a: f32("t", "x", x, M*K), rs: K, cs: 1, c: c,
						ldc: N + 3, acc: acc, bias: f32("t", "b", bias, N)}
					return p.weights(b.k, b.columns(w), w.Rows)
				}
				_, want := guarded(M*(N+3), 0)
				for i := range M {
					for j := range N {
						want[i*(N+3)+j] = float32(i - j)
					}
				}
				got := slices.Clone(want)
				made(want).all(b.k, &b.workers[0])
				if !b.streams(M) {
					t.Fatalf("%s: %v: not streamed", variant, s)
				}
				b.stream(made(got))
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%s: %v: acc %t: element %d,%d is %v, want %v", variant, s, acc,
							i/(N+3), i%(N+3), got[i], want[i])
					}
				}
			}
		}
		if b.streams(streamRows + 1) {
			t.Errorf("%s: %d rows are streamed", variant, streamRows+1)
		}
	}
}

func TestTranspose(t *testing.T) {
	for _, k := range available() {
		for _, shape := range [][2]int{{1, 1}, {1, 40}, {8, 8}, {16, 16}, {17, 33}, {32, 48},
			{31, 15}, {9, 64}, {32, 7}} {
			rows, cols := shape[0], shape[1]
			lds, ldd := cols+3, rows+2
			_, src := guarded(rows*lds, 5)
			for i := range src {
				src[i] = float32(i)
			}
			all, dst := guarded(cols*ldd, 3)
			k.transpose(dst, ldd, src, lds, rows, cols)
			written := 0
			for _, v := range all {
				if v == v {
					written++
				}
			}
			if written != rows*cols {
				t.Errorf("%s: %v: %d elements written", k.name, shape, written)
			}
			for r := range rows {
				for x := range cols {
					if dst[x*ldd+r] != src[r*lds+x] {
						t.Fatalf("%s: %v: [%d,%d] is %v", k.name, shape, x, r, dst[x*ldd+r])
					}
				}
			}
		}
	}
}

// TestRows: rows of a panel's width are copied, whatever their distance and their alignment, and
// nothing outside is written.
func TestRows(t *testing.T) {
	for _, k := range available() {
		for _, n := range []int{1, 2, 3, 17} {
			for off := range 16 {
				ld := k.nr + off
				_, src := guarded(n*ld, off)
				for i := range src {
					src[i] = float32(i)
				}
				all, dst := guarded(n*k.nr, 15-off)
				k.rows(dst, src, ld, n)
				written := 0
				for _, v := range all {
					if v == v {
						written++
					}
				}
				if written != n*k.nr {
					t.Errorf("%s: %d rows, %d apart: %d elements written", k.name, n, ld, written)
				}
				for i, v := range dst {
					if want := float32(i/k.nr*ld + i%k.nr); v != want {
						t.Fatalf("%s: %d rows, %d apart: [%d] is %v, want %v", k.name, n, ld, i, v,
							want)
					}
				}
			}
		}
	}
}

func TestPool(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, workers := range []int{1, 2, 5} {
		p := newPool(workers, idleSpins)
		for round := range 300 {
			tasks := round % 17
			counts := make([]atomic.Int32, tasks)
			p.run(tasks, func(w, i int) {
				if w < 0 || w >= workers {
					t.Errorf("worker %d of %d", w, workers)
				}
				counts[i].Add(1)
			})
			for i := range counts {
				if n := counts[i].Load(); n != 1 {
					t.Fatalf("%d workers, %d tasks: task %d ran %d times", workers, tasks, i, n)
				}
			}
			if round%100 == 99 {
				time.Sleep(2 * time.Millisecond) // long enough for the workers to sleep
			}
		}
		func() {
			defer func() {
				if v := recover(); v != "task 3" {
					t.Errorf("%d workers: recovered %v", workers, v)
				}
			}()
			p.run(8, func(_, i int) {
				if i == 3 {
					panic("task 3")
				}
			})
		}()
		p.run(4, func(_, _ int) {}) // it still works
		p.close()
	}
	// A worker has said that it is done a moment before its goroutine is gone.
	after := runtime.NumGoroutine()
	for end := time.Now().Add(time.Minute); after > before &&
		time.Now().Before(end); after = runtime.NumGoroutine() {
		time.Sleep(time.Millisecond)
	}
	if after > before {
		t.Errorf("%d goroutines after, %d before", after, before)
	}
}

func TestVariants(t *testing.T) {
	t.Setenv(variantEnv, "portable")
	b, err := New(Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if b.Name() != "cpu/portable" {
		t.Errorf("forced portable, got %s", b.Name())
	}
	b.Close()
	t.Setenv(variantEnv, "sse9")
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "sse9") ||
		!strings.Contains(err.Error(), "portable") {
		t.Errorf("unknown variant: error %v", err)
	}
	t.Setenv(variantEnv, "")
	b, err = New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if all := Variants(); b.Name() != "cpu/"+all[len(all)-1] {
		t.Errorf("%s is not the fastest of %v", b.Name(), all)
	}
}

func TestLimit(t *testing.T) {
	b, err := New(Options{Workers: 1, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	x, err := b.Alloc("x", compute.Wide, 1<<17)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Alloc("activations of block 7", compute.Wide, 1<<17+1); err == nil || !strings.Contains(err.Error(), `"activations of block 7"`) {
		t.Errorf("beyond the limit: error %v", err)
	}
	b.Free(x)
	if _, err := b.Alloc("y", compute.Wide, 1<<18); err != nil {
		t.Errorf("within the limit: %v", err)
	}
}

// TestSteadyState: repeated operations neither grow nor allocate more than
// their bookkeeping.
func TestSteadyState(t *testing.T) {
	b, err := New(Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const N, D, H, K, E = 200, 64, 4, 2, 16
	x, y, w := random(b, N*D), random(b, N*D), randomParam(b, D, D)
	kv, lse := random(b, N*K*E), random(b, N*H)
	out := compute.HeadOut{LogpR: random(b, N), EntR: random(b, N), LseR: random(b, N)}
	rows, targets := make([]int32, N), make([]int32, N)
	for i := range rows {
		rows[i] = int32(i)
	}
	step := func() {
		b.Linear(y, x, w, nil, false)
		b.LinearGrad(x, w, nil, y, y, false)
		b.Attention(y, lse, x, kv, kv, compute.AttnShape{H: H, K: K, E: E, Scale: 0.25},
			compute.Pack{Start: []int32{0, 50, N}})
		b.LogProb(out, x, w, rows, targets, 1)
		b.LogProbGrad(y, w, out, out.LogpR, out.EntR, x, rows, targets, 1)
		b.AdamW([]*compute.Param{w},
			compute.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradScale: 1, Step: 1})
	}
	for range 3 {
		step()
	}
	var before, after runtime.MemStats
	inUse, _ := b.Memory()
	runtime.ReadMemStats(&before)
	for range 20 {
		step()
	}
	runtime.ReadMemStats(&after)
	if bytes := (after.TotalAlloc - before.TotalAlloc) / 20; bytes > 16<<10 {
		t.Errorf("a step of six operations allocates %d bytes", bytes)
	}
	if now, _ := b.Memory(); now != inUse {
		t.Errorf("memory in use grew from %d to %d bytes", inUse, now)
	}
	for range 20 {
		if n := testing.AllocsPerRun(1, step); n > 200 {
			t.Fatalf("a step of six operations makes %v allocations", n)
		}
	}
}

// TestDerivedIsCounted: packed weights are memory, and go with their parameter.
func TestDerivedIsCounted(t *testing.T) {
	b, err := New(Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	x, y := random(b, 64), random(b, 64)
	before, _ := b.Memory()
	w := &compute.Param{Rows: 64, Cols: 64}
	w.W, _ = b.Alloc("w", compute.Wide, 64*64)
	b.Linear(y, x, w, nil, false)
	if now, _ := b.Memory(); now-before != 2*4*64*64 {
		t.Errorf("a parameter of 16 KiB and its packed copy take %d bytes", now-before)
	}
	b.Free(w.W)
	if now, _ := b.Memory(); now != before {
		t.Errorf("%d bytes in use after Free, %d before", now, before)
	}
}

// TestWrongShapesPanic: a mistake is a message before any memory is touched.
func TestWrongShapesPanic(t *testing.T) {
	b, err := New(Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	x, w := random(b, 64), randomParam(b, 8, 8)
	for name, op := range map[string]func(){
		"Linear: y has 63 elements, want 64": func() { b.Linear(x.Slice(0, 63), x, w, nil, false) },
		"Embed: ids[1] is 8, of 8":           func() { b.Embed(x.Slice(0, 16), w, []int32{0, 8}) },
		"EmbedGrad: ids[0] is -1, of 8":      func() { b.EmbedGrad(w, x.Slice(0, 8), []int32{-1}) },
		"does not cut 8 tokens": func() {
			b.Attention(x, x.Slice(0, 8), x, x, x, compute.AttnShape{H: 1, K: 1, E: 8},
				compute.Pack{Start: []int32{0, 7}})
		},
		"LogProb: targets[0] is 8, of 8": func() {
			b.LogProb(compute.HeadOut{LogpR: x.Slice(0, 1), EntR: x.Slice(0, 1),
				LseR: x.Slice(0, 1)}, x, w, []int32{0}, []int32{8}, 1)
		},
	} {
		func() {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.Contains(v, name) {
					t.Errorf("want a panic with %q, got %v", name, v)
				}
			}()
			op()
		}()
	}
}
