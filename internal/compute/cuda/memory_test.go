//go:build nvidia

package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// edges are float32 at which the two halves of a master are easily wrong: ties of either
// parity and sign, what is beside them, the smallest and largest numbers, infinities.
func edges() []float32 {
	var x []float32
	for _, bits := range []uint32{
		0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x10000, 0x17fff, 0x18000, 0x18001, 0x7fffff,
		0x800000,
		0x3f800000, 0x3f807fff, 0x3f808000, 0x3f808001, 0x3f80ffff, 0x3f817fff, 0x3f818000,
		0x3f818001,
		0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000,
	} {
		x = append(x, math.Float32frombits(bits), math.Float32frombits(bits|1<<31))
	}
	return x
}

// twin is the bfloat16 that stands for x in a master, as float32.
func twin(
	x float32) float32 {
	return math.Float32frombits((math.Float32bits(x) + 0x8000) &^ 0xffff)
}

// A Master matrix keeps every bit of its weights in four bytes, and products and lookups
// read them rounded to nearest, ties away from zero, without a copy.
func TestMaster(t *testing.T) {
	for precision, kept := range map[string]func(float32) float32{BF16: twin,
		F32: func(x float32) float32 { return x }} {
		t.Run(precision, func(t *testing.T) {
			b := start(t, Options{Precision: precision})
			s := set(t, b)
			x := edges()
			for range 10000 - len(x) {
				x = append(x, math.Float32frombits(s.rng.Uint32N(0x7f800000)|s.rng.Uint32N(2)<<31))
			}
			const cols = 8
			before, _ := b.Memory()
			w := &compute.Param{Name: "w", Rows: len(x) / cols, Cols: cols,
				W: s.put(compute.Master, x)}
			b.Refresh(w)
			y := s.empty(compute.Wide, len(x))
			if now, _ := b.Memory(); now-before != 2*b.Block(int64(4*len(x))) {
				t.Errorf("%d weights and as many float32 take %d bytes", len(x), now-before)
			}
			s.same("downloaded", s.down(w.W), x)
			want := make([]float32, len(x))
			for i, v := range x {
				want[i] = kept(v)
			}
			b.Embed(y, w, seqOf(w.Rows))
			s.same("looked up", s.down(y), want)

			// A product with the unit matrix gives each weight, but for the infinite ones, which
			// spoil their row.
			unit := make([]float32, cols*cols)
			for i := range cols {
				unit[i*cols+i] = 1
			}
			tail := &compute.Param{Name: "tail", Rows: 500, Cols: cols,
				W: w.W.Slice(len(x)-500*cols, len(x))}
			z := s.empty(compute.Narrow, cols*tail.Rows)
			b.Linear(z, s.put(compute.Narrow, unit), tail, nil, false)
			for i, v := range s.down(z) {
				if want := want[len(x)-500*cols+i%tail.Rows*cols+i/tail.Rows]; v != want &&
					math.Abs(float64(want)) > 1e-37 {
					t.Fatalf("product: [%d] is %v, want %v", i, v, want)
				}
			}

			// Parts of it, at odd places.
			for _, part := range [][2]int{{1, 4}, {7, 1000}, {16, 32}, {9999, 10000}, {5, 5}} {
				lo, hi := part[0], part[1]
				s.same(fmt.Sprint("part ", part), s.down(w.W.Slice(lo, hi)), x[lo:hi])
				slices.Reverse(x[lo:hi])
				b.Upload(w.W.Slice(lo, hi), x[lo:hi])
				s.same(fmt.Sprint("with new part ", part), s.down(w.W), x)
			}
			other := s.empty(compute.Master, len(x))
			b.Copy(other.Slice(3, 9000), w.W.Slice(33, 9030))
			s.same("copied", s.down(other),
				slices.Concat(make([]float32, 3), x[33:9030], make([]float32, len(x)-9000)))
			b.Zero(w.W.Slice(5, 778))
			clear(x[5:778])
			s.same("zeroed", s.down(w.W), x)

			// NaN stays one, in both its halves.
			nans := []uint32{0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7fc00000, 0xffc08000,
				0x7f808000, 0x7fe5a5a5}
			for i, bits := range nans {
				x[i] = math.Float32frombits(bits)
			}
			b.Upload(w.W, x)
			b.Embed(y, w, seqOf(w.Rows))
			full, read := s.down(w.W), s.down(y)
			for i := range nans {
				if full[i] == full[i] || read[i] == read[i] {
					t.Errorf("NaN %#x: %v, and products read %v", nans[i], full[i], read[i])
				}
			}
			s.same("beside NaN", full[len(nans):], x[len(nans):])
		})
	}
}

// Add and Scale of masters have the bits that they have of float32.
func TestMasterArithmetic(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	for _, n := range []int{1, 7, 8, 9, 4000, 4001} {
		x, y := s.normal(n), s.normal(n)
		var got, want []float32
		for out, c := range map[*[]float32]compute.Class{&got: compute.Master,
			&want: compute.Wide} {
			xt, yt := s.put(c, x), s.put(c, y)
			b.Add(yt, xt)
			b.Scale(xt.Slice(n/3, n), 0.3)
			*out = slices.Concat(s.down(xt), s.down(yt))
		}
		s.same(fmt.Sprint(n, " elements"), got, want)
	}
}

// optimized is a parameter with all that AdamW reads and writes, from off on in its blocks.
func (s *setting) optimized(w, moments compute.Class, off int, data [4][]float32) *compute.Param {
	n := len(data[0])
	put := func(c compute.Class, x []float32) compute.Tensor {
		t := s.empty(c, off+len(x)+3)
		s.b.Upload(t.Slice(off, off+len(x)), x)
		return t.Slice(off, off+len(x))
	}
	p := &compute.Param{Name: "w", Rows: 2, Cols: n / 2, Decay: true}
	if n%2 != 0 {
		p.Rows, p.Cols = 1, n
	}
	p.W, p.G, p.M, p.V =
		put(w, data[0]), put(compute.Wide, data[1]), put(moments, data[2]), put(moments, data[3])
	if moments&^compute.Host == compute.Code {
		scales := compute.Wide | moments&compute.Host
		p.MScale, p.VScale =
			put(scales, make([]float32, compute.Blocks(n))),
			put(scales, make([]float32, compute.Blocks(n)))
	}
	s.b.Refresh(p)
	return p
}

// state is all that AdamW writes.
func (s *setting) state(p *compute.Param) []float32 {
	x := slices.Concat(s.down(p.W), s.down(p.M), s.down(p.V))
	if !p.MScale.Absent() {
		x = slices.Concat(x, s.down(p.MScale), s.down(p.VScale))
	}
	return x
}

// rates are those of a step that decays, and clips by half.
func rates(step int) compute.AdamW {
	return compute.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, GradScale: 0.5,
		Step: step}
}

// grads are gradients of very different sizes, with zeros.
func (s *setting) grads(n int) []float32 {
	g := s.normal(n)
	for i := range g {
		switch s.rng.IntN(8) {
		case 0:
			g[i] = 0
		case 1:
			g[i] *= 1e-6
		case 2:
			g[i] *= 1e-3
		}
	}
	return g
}

// Trained weights have the same bits as float32 with a copy, as a master, and with
// moments in the host's memory; and so have the moments.
func TestAdamWClasses(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		for _, n := range []int{1, 7, 8, 255, 256, 257, 2048, 20001} {
			for _, off := range []int{0, 3, 8} {
				for _, moments := range []compute.Class{compute.Wide, compute.Code} {
					none := make([]float32, n)
					data := [4][]float32{s.normal(n), none, none, none}
					var ps []*compute.Param
					for _, w := range []compute.Class{compute.Wide, compute.Master} {
						for _, host := range []compute.Class{0, compute.Host} {
							ps = append(ps, s.optimized(w, moments|host, off, data))
						}
					}
					for step := range 4 {
						g := s.grads(n)
						for _, p := range ps {
							b.Upload(p.G, g)
							b.AdamW([]*compute.Param{p}, rates(step+1))
						}
					}
					want := s.state(ps[0])
					if slices.Equal(want[:n], data[0]) {
						t.Fatalf("%d weights did not move", n)
					}
					for i, p := range ps[1:] {
						s.same(fmt.Sprintf("%s, %d elements from %d, moments %v, variant %d",
							precision, n, off, moments, i+1), s.state(p), want)
					}
					for _, p := range ps {
						for _, x := range []compute.Tensor{p.W, p.G, p.M, p.V, p.MScale, p.VScale} {
							if !x.Absent() {
								b.Free(compute.View(x.Mem()))
							}
						}
					}
				}
			}
		}
	}
}

// One call steps parameters of all classes, in four launches at most, with the bits of a
// call for each; and the sum of their gradients' squares has the bits of each one's
// blocks in order.
func TestAdamWTogether(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		// One block, its end, several, their end; and nothing.
		sizes := []int{1, 256, optimBlock - 1, 1000, optimBlock, optimBlock + 1, 0,
			3*optimBlock + 777, 2 * optimBlock}
		var apart, together []*compute.Param
		var gs []compute.Tensor
		for i, n := range sizes {
			for j, kind := range [][2]compute.Class{{compute.Wide, compute.Wide},
				{compute.Master, compute.Wide}, {compute.Wide, compute.Code},
				{compute.Master, compute.Code}} {
				none := make([]float32, n)
				data := [4][]float32{s.normal(n), s.grads(n), none, none}
				off := []int{0, 3, 8}[(i+j)%3]
				x, y :=
					s.optimized(kind[0], kind[1], off, data),
					s.optimized(kind[0], kind[1], off, data)
				x.Decay, y.Decay = (i+j)%2 == 0, (i+j)%2 == 0
				apart, together, gs = append(apart, x), append(together, y), append(gs, y.G)
				if j == 1 { // of the other type, in between
					gs = append(gs, s.put(compute.Narrow, s.grads(n)))
				}
			}
		}
		for step := range 3 {
			for _, p := range apart {
				b.AdamW([]*compute.Param{p}, rates(step+1))
			}
			launched := launches(b, func() { b.AdamW(together, rates(step+1)) })
			if want := map[string]int{BF16: 4, F32: 2}[precision]; launched != want &&
				driver.Emulated() != nil {
				t.Errorf("%s: %d launches step %d parameters, want %d", precision, launched,
					len(together), want)
			}
		}
		for i, p := range together {
			s.same(fmt.Sprintf("%s, parameter %d of %d elements", precision, i, p.Len()),
				s.state(p), s.state(apart[i]))
		}
		// Blocks one by one, as sums of their own; then in the order of sum_partials.
		var parts []float64
		for _, g := range gs {
			for lo := 0; lo < g.Len(); lo += optimBlock {
				parts = append(parts, b.SumSquares(
					[]compute.Tensor{g.Slice(lo, min(lo+optimBlock, g.Len()))}))
			}
		}
		var sum float64
		launched := launches(b, func() { sum = b.SumSquares(gs) })
		if want := addedUp(parts); math.Float64bits(sum) != math.Float64bits(want) {
			t.Errorf("%s: sum of squares %v, want %v", precision, sum, want)
		}
		if want := map[string]int{BF16: 3, F32: 2}[precision]; launched != want &&
			driver.Emulated() != nil {
			t.Errorf("%s: %d launches add the squares of %d tensors up, want %d", precision,
				launched, len(gs), want)
		}
	}
}

// addedUp is what sum_partials makes of parts.
func addedUp(parts []float64) float64 {
	var threads [1024]float64
	for i, x := range parts {
		threads[i%1024] += x
	}
	for half := 512; half > 0; half /= 2 {
		for t := range half {
			threads[t] += threads[t+half]
		}
	}
	return threads[0]
}

// launches is how many kernels op runs, where the device is the emulated one, which counts.
func launches(b *Backend, op func()) int {
	if driver.Emulated() == nil {
		op()
		return 0
	}
	defer b.dev.Enter()()
	count := func() int {
		b.wait()
		return driver.Emulated().Work().Kernels
	}
	before := count()
	op()
	return count() - before
}

// decoded are the moments that codes and their blocks' scales stand for.
func decoded(m *compute.Moments, codes, scales []float32) []float32 {
	x := make([]float32, len(codes))
	for i, c := range codes {
		x[i] = m.Value[int(c)] * scales[i/compute.MomentBlock]
	}
	return x
}

// encoded is what compute.Moments says of x.
func encoded(m *compute.Moments, x []float32) (codes, scales []float32) {
	for lo := 0; lo < len(x); lo += compute.MomentBlock {
		block, scale := x[lo:min(len(x), lo+compute.MomentBlock)], float32(0)
		for _, v := range block {
			scale = max(scale, float32(math.Abs(float64(v))))
		}
		for _, v := range block {
			y := float32(0)
			if scale > 0 {
				y = v / scale
			}
			codes = append(codes, float32(m.Encode(y)))
		}
		scales = append(scales, scale)
	}
	return codes, scales
}

// Moments at the edges between two codes, and beside them, at scales of all sizes, get the
// codes that an exact quotient gives: the moments are the gradients and their squares here.
func TestAdamWCodeEdges(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	for _, scale := range []float32{1, 0.7, 5, 3e-3, 1.1e-20, 1.1e-30, 7e4} {
		var g []float32
		beside := func(x float64) {
			for _, to := range []float32{float32(math.Inf(-1)), float32(x), float32(math.Inf(1))} {
				if len(g)%compute.MomentBlock == 0 {
					g = append(g, scale)
				}
				g = append(g, math.Nextafter32(float32(x), to))
			}
		}
		for c := range compute.Signed.Mid {
			beside(float64(compute.Signed.Mid[c]) * float64(scale))
			beside(math.Sqrt(float64(compute.Squares.Mid[c])) * float64(scale))
		}
		for c := range compute.Signed.Value {
			beside(float64(compute.Signed.Value[c]) * float64(scale))
		}
		n := len(g)
		none := make([]float32, n)
		p := s.optimized(compute.Master, compute.Code, 0, [4][]float32{none, g, none, none})
		a := compute.AdamW{LR: 1e-3, Eps: 1e-8, GradScale: 1, Step: 1}
		b.AdamW([]*compute.Param{p}, a)
		squares := make([]float32, n)
		for i, x := range g {
			squares[i] = x * x
		}
		wantM, scaleM := encoded(compute.Signed, g)
		wantV, scaleV := encoded(compute.Squares, squares)
		what := fmt.Sprintf("scale %g: ", scale)
		s.same(what+"scales of M", s.down(p.MScale), scaleM)
		s.same(what+"scales of V", s.down(p.VScale), scaleV)
		s.same(what+"codes of M", s.down(p.M), wantM)
		s.same(what+"codes of V", s.down(p.V), wantV)
	}
}

// Moments in 8 bits: a step has the bits of one with the decoded moments in float32, and
// what it leaves is encoded by the rules of compute.Moments.
func TestAdamWCodes(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	for _, n := range []int{1, 255, 256, 257, 1000, 20001} {
		for _, off := range []int{0, 3} {
			// Begin with every code, so that all are decoded.
			var codes [2][]float32
			for k := range codes {
				codes[k] = make([]float32, n)
				for i := range n {
					codes[k][i] = float32((i*(2*k+1) + k) % 256)
				}
			}
			none := make([]float32, n)
			p := s.optimized(compute.Wide, compute.Code, off,
				[4][]float32{s.normal(n), none, codes[0], codes[1]})
			wide := s.optimized(compute.Wide, compute.Wide, off,
				[4][]float32{s.down(p.W), none, none, none})
			scale := func() []float32 {
				x := s.normal(compute.Blocks(n))
				for i := range x {
					x[i] = float32(math.Abs(float64(x[i])))
				}
				return x
			}
			b.Upload(p.MScale, scale())
			b.Upload(p.VScale, scale())
			for step := range 4 {
				g := s.grads(n)
				if step == 2 && n > 600 {
					clear(g[256:512]) // and a block of zeros, of which codes do not matter
					zero := make([]float32, compute.Blocks(n))
					b.Upload(p.MScale.Slice(1, 2), zero[:1])
					b.Upload(p.VScale.Slice(1, 2), zero[:1])
				}
				m := decoded(compute.Signed, s.down(p.M), s.down(p.MScale))
				v := decoded(compute.Squares, s.down(p.V), s.down(p.VScale))
				for x, data := range map[compute.Tensor][]float32{p.G: g, wide.G: g, wide.M: m,
					wide.V: v} {
					b.Upload(x, data)
				}
				b.AdamW([]*compute.Param{p}, rates(step+1))
				b.AdamW([]*compute.Param{wide}, rates(step+1))
				what := fmt.Sprintf("%d elements from %d, step %d: ", n, off, step)
				s.same(what+"weights", s.down(p.W), s.down(wide.W))
				wantM, scaleM := encoded(compute.Signed, s.down(wide.M))
				wantV, scaleV := encoded(compute.Squares, s.down(wide.V))
				s.same(what+"scales of M", s.down(p.MScale), scaleM)
				s.same(what+"scales of V", s.down(p.VScale), scaleV)
				s.same(what+"codes of M", s.down(p.M), wantM)
				s.same(what+"codes of V", s.down(p.V), wantV)
				for i, x := range s.down(wide.V) {
					if x > 0 && s.down(p.V.Slice(i, i+1))[0] == 0 && i < 50 {
						t.Fatalf("%sV[%d] is %g and has the code of zero", what, i, x)
					}
				}
				copied := s.empty(compute.Narrow, n)
				if p.Rows == 2 { // the copy that products read follows
					b.Copy(copied, compute.View(
						&memory{block: block{p: p.Derived.(*derived).p}, t: bf16, n: n}))
					s.same(what+"copy", s.down(copied), s.down(s.put(compute.Narrow, s.down(p.W))))
				}
			}
		}
	}
	// A square far below its block's largest does not become zero.
	n := 300
	g := make([]float32, n)
	for i := range g {
		g[i] = 1e-7
	}
	g[3] = 1
	p := s.optimized(compute.Master, compute.Code, 0,
		[4][]float32{make([]float32, n), g, make([]float32, n), make([]float32, n)})
	b.AdamW([]*compute.Param{p}, rates(1))
	for i, c := range s.down(p.V) {
		if c < 1 {
			t.Fatalf("V[%d] has the code %v", i, c)
		}
	}
}

// Codes are bytes, wherever a part begins.
func TestCode(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	for _, host := range []compute.Class{0, compute.Host} {
		x := make([]float32, 3_000_001) // in several parts
		for i := range x {
			x[i] = float32((i*7 + i/256) % 256)
		}
		before, _ := b.Memory()
		y := s.put(compute.Code|host, x)
		want := b.Block(int64(len(x)))
		if host != 0 {
			want = 0
		}
		if now, _ := b.Memory(); now-before != want {
			t.Errorf("%v: %d codes take %d bytes of the device", host, len(x), now-before)
		}
		s.same("codes", s.down(y), x)
		for _, part := range [][2]int{{1, 2}, {2, 5}, {3, 9}, {8, 8}, {13, 100},
			{3_000_000, 3_000_001}} {
			b.Zero(y.Slice(part[0], part[1]))
			clear(x[part[0]:part[1]])
			s.same(fmt.Sprint("zeroed ", part), s.down(y), x)
			for i := part[0]; i < part[1]; i++ {
				x[i] = float32(i % 251)
			}
			b.Upload(y.Slice(part[0], part[1]), x[part[0]:part[1]])
			s.same(fmt.Sprint("written ", part), s.down(y), x)
		}
		b.Free(y)
		if now, _ := b.Memory(); now != before {
			t.Errorf("%d bytes are left", now-before)
		}
	}
}

// Host memory is not the device's: not counted, zeroed, given back, its lack named.
func TestHost(t *testing.T) {
	b := start(t, Options{Limit: ringBytes + 4096})
	s := set(t, b)
	before, _ := b.Memory()
	const n = 1 << 20 // beyond the device's limit
	x := s.empty(compute.Wide|compute.Host, n)
	if now, peak := b.Memory(); now != before || peak < before {
		t.Errorf("it takes %d bytes of the device", now-before)
	}
	data := s.normal(n)
	b.Upload(x, data)
	b.Zero(x.Slice(5, 1000))
	clear(data[5:1000])
	s.same("elements", s.down(x), data)
	s.same("a part", s.down(x.Slice(999, 5000)), data[999:5000])
	if none := s.empty(compute.Code|compute.Host, 0); none.Len() != 0 {
		t.Error("no elements are some")
	}
	panics(t, "class master on the host: only Wide and Code are",
		func() { b.Alloc("w", compute.Master|compute.Host, 8) })
	if b.onHost != 4*n {
		t.Errorf("%d bytes of the host's are counted", b.onHost)
	}
	emulated := driver.Emulated()
	if emulated == nil {
		b.Free(x)
		t.Skip("NOT TESTED: only the emulated device fails on demand, and counts")
	}
	emulated.FailAlloc(0)
	_, err := b.Alloc("first moment", compute.Code|compute.Host, 100)
	emulated.FailAlloc(-1)
	if !errors.Is(err, compute.ErrMemory) || !strings.HasPrefix(err.Error(), `cuda: "first moment": 100 bytes of pinned host memory, beside 4194304 that gad has pinned: keep the moments on the GPU (optim.offload=false) or in 8 bits (optim.moments=8bit), or give the host, or its container, more memory: out of memory`) {
		t.Errorf("the host has no more: %v", err)
	}
	pins := emulated.PinnedBlocks()
	b.Free(x)
	if got := emulated.PinnedBlocks(); got != pins-1 || b.onHost != 0 {
		t.Errorf("%d blocks of pinned memory after Free, %d before, and %d bytes", got, pins,
			b.onHost)
	}
	s.empty(compute.Code|compute.Host, 10) // forgotten
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := emulated.PinnedBlocks(); got != pins-2 { // and the ring
		t.Errorf("%d blocks of pinned memory after Close, want %d", got, pins-2)
	}
}

// As lends memory that begins where another tensor does.
func TestAs(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		parent := s.put(compute.Wide, s.normal(1000))
		before, _ := b.Memory()
		narrow := 1000 * 4 / int(b.narrow.size())
		lent := b.As(parent, compute.Narrow, narrow)
		if now, _ := b.Memory(); now != before {
			t.Errorf("lent memory takes %d bytes", now-before)
		}
		x := s.down(s.put(compute.Narrow, s.normal(narrow)))
		b.Upload(lent, x)
		s.same("lent", s.down(lent), x)
		raw := s.down(parent)
		got := s.down(b.As(lent.Slice(narrow/2, narrow), compute.Wide, 500)) // lent on
		s.same("lent on", got, raw[500:])
		b.Zero(lent.Slice(0, narrow/2))
		if got := s.down(parent); got[0] != 0 || got[499] != 0 ||
			math.Float32bits(got[500]) != math.Float32bits(raw[500]) {
			t.Error("the lent half is not the parent's first")
		}
		again := b.As(lent, compute.Wide, 10)
		b.As(compute.Tensor{}, compute.Narrow, 0)
		for name, op := range map[string]func(){
			"do not fit": func() { b.As(parent, compute.Wide, 1001) },
			"do not fit into": func() {
				b.As(parent.Slice(1, 1000), compute.Narrow,
					narrow)
			},
			"of class code":             func() { b.As(parent, compute.Code, 8) },
			"of class wide on the host": func() { b.As(parent, compute.Wide|compute.Host, 8) },
			"-1 elements":               func() { b.As(parent, compute.Wide, -1) },
			"not a whole block, lent":   func() { b.Free(lent) },
			"in the host's memory": func() {
				b.As(s.empty(compute.Wide|compute.Host, 4),
					compute.Wide, 4)
			},
			"As: t is codes of 8 bits": func() {
				b.As(s.empty(compute.Code, 4), compute.Wide,
					1)
			},
			"the middle of a float32": func() {
				b.As(s.empty(compute.Narrow, 4).Slice(1, 4),
					compute.Wide, 1)
			},
			"Copy: src is in the host's": func() {
				x := s.empty(compute.Wide|compute.Host,
					4)
				b.Copy(x, x)
			},
			"Add: codes stand for numbers": func() { x := s.empty(compute.Code, 4); b.Add(x, x) },
		} {
			if precision == F32 && name == "the middle of a float32" {
				continue // all elements are four bytes
			}
			panics(t, name, op)
		}
		b.Free(parent)
		panics(t, "Zero: t was freed", func() { b.Zero(lent) })
		panics(t, "Zero: t was freed", func() { b.Zero(again) })
		panics(t, "As: t was freed", func() { b.As(lent, compute.Wide, 1) })
		panics(t, "Download: src was freed", func() { b.Download(make([]float32, 10), again) })
	}
}

// panics wants op to panic as this package or a shared check does, with words.
func panics(t *testing.T, words string, op func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if what := fmt.Sprint(recover()); !strings.HasPrefix(what, "cuda: ") &&
			!strings.HasPrefix(what, "compute: ") || !strings.Contains(what, words) {
			t.Errorf("%s: %s", words, what)
		}
	}()
	op()
}

// What Element and DerivedBytes say is what Memory counts.
func TestFootprint(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		for _, c := range []compute.Class{compute.Wide, compute.Narrow, compute.Master,
			compute.Frozen, compute.Code, compute.Wide | compute.Host,
			compute.Code | compute.Host} {
			// also where pages of 2 MiB begin
			for _, n := range []int{4, 1000, 4096, 1 << 18, 1<<18 - 4, 1<<19 + 4} {
				before, _ := b.Memory()
				w := s.empty(c, n)
				now, _ := b.Memory()
				if now-before != b.Block(int64(n)*b.Element(c)) {
					t.Errorf("%s: %d elements of %v take %d bytes, said are %d each", precision, n,
						c, now-before, b.Element(c))
				}
				if c != compute.Code && c&compute.Host == 0 {
					p := &compute.Param{Name: "w", Rows: 2, Cols: n / 2, W: w}
					b.Refresh(p)
					b.Embed(s.empty(compute.Wide, n), p, seqOf(2))
					if with, _ := b.Memory(); with-now != b.Block(
						b.DerivedBytes(c, false, 2, n/2))+b.Block(4*int64(n)) ||
						b.DerivedBytes(c, true, 2, n/2) != b.DerivedBytes(c, false, 2, n/2) {
						t.Errorf("%s: beside %d elements of %v lie %d bytes, said are %d",
							precision, n, c, with-now-int64(4*n), b.DerivedBytes(c, false, 2, n/2))
					}
				}
			}
		}
	}
}
