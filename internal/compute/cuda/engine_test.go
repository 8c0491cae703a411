//go:build nvidia

package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
	"gad/internal/compute/cuda/driver"
	"gad/internal/hostile"
)

// start opens a backend on the machine's device, emulated or not; where there is
// none the test is skipped, unless GAD_REQUIRE_CUDA says that there must be one.
func start(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := open(o)
	if errors.Is(err, ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if what := b.Counts().Warning(); what != "" {
			t.Error(what)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestConformance(t *testing.T) {
	for precision, contract := range map[string]computetest.Contract{
		// tensor cores cut the lowest bits of what they add off
		F32: {Tol: 1e-5, Align: 8, Joined: true},
		// twice the distance of bfloat16's numbers: gradients pass through it twice
		BF16: {Tol: 1e-5, NarrowTol: 8e-3, Align: 8, Joined: true, QuantFew: fewRows},
	} {
		t.Run(precision, func(t *testing.T) {
			start(t, Options{Precision: precision}) // or skip
			contract.Slow = driver.Emulated() != nil
			contract.Few = contract.Slow && !hostile.Long()
			computetest.Run(t,
				func(int) (compute.Backend, error) { return Open(Options{Precision: precision}) },
				contract)
		})
	}
}

// The fast attention kernels, over several tiles, groups of heads and splits,
// against the plain ones in float32.
func TestFastAttention(t *testing.T) {
	fast, plain := set(t, start(t, Options{})), set(t, start(t, Options{Precision: F32}))
	for _, a := range []compute.AttnShape{{H: 4, K: 2, E: 64}, {H: 3, K: 1, E: 128}} {
		a.Scale = 1 / math.Sqrt(float64(a.E))
		start := []int32{0, 1, 131, 131, 420}
		N := int(start[len(start)-1])
		nq, nk := N*a.H*a.E, N*a.K*a.E
		q, k, v, do := fast.normal(nq), fast.normal(nk), fast.normal(nk), fast.normal(nq)
		for _, x := range [][]float32{q, k, v, do} {
			copy(x, fast.down(fast.put(compute.Narrow, x))) // rounded
		}
		forward := func(s *setting) [][]float32 {
			n := compute.Narrow
			qt, kt, vt, dot := s.put(n, q), s.put(n, k), s.put(n, v), s.put(n, do)
			o, lse := s.empty(n, nq), s.empty(compute.Wide, N*a.H)
			dq, dk, dv := s.empty(n, nq), s.empty(n, nk), s.empty(n, nk)
			s.b.Attention(o, lse, qt, kt, vt, a, compute.Pack{Start: start})
			s.b.AttentionGrad(dq, dk, dv, dot, o, lse, qt, kt, vt, a, compute.Pack{Start: start})
			return [][]float32{s.down(o), s.down(lse), s.down(dq), s.down(dk), s.down(dv)}
		}
		// Rows of one cache, the longest over three splits, with the pages scrambled.
		const R, P, pages = 3, 16, 72
		cache := fast.normal(2 * pages * P * a.K * a.E)
		copy(cache, fast.down(fast.put(compute.Narrow, cache)))
		table := make([]int32, pages)
		for i, page := range fast.rng.Perm(pages) {
			table[i] = int32(page)
		}
		paged := compute.Pages{PageTokens: P, Table: [][]int32{table, table[3:9], table[40:]},
			Len: []int32{pages*P - 5, 81, 512}}
		decode := func(s *setting, rows int) []float32 {
			s.b.rows = rows
			kv, o := s.put(compute.Narrow, cache), s.empty(compute.Narrow, R*a.H*a.E)
			half := len(cache) / 2
			s.b.AttentionDecode(o, s.put(compute.Narrow, q[:R*a.H*a.E]), kv.Slice(0, half),
				kv.Slice(half, 2*half), a, paged)
			return s.down(o)
		}
		got, want :=
			append(forward(fast), decode(fast, decodeRows)),
			append(forward(plain), decode(plain, decodeRows))
		fast.same(fmt.Sprintf("width %d: decoded in two launches", a.E), decode(fast, 2), got[5])
		plain.same(fmt.Sprintf("width %d: decoded in two launches", a.E), decode(plain, 2), want[5])
		for i, name := range []string{"o", "lse", "dq", "dk", "dv", "decoded o"} {
			for j, x := range want[i] {
				if y := got[i][j]; !(math.Abs(float64(y-x)) <= 8e-3*(1+math.Abs(float64(x)))) {
					t.Errorf("width %d: %s[%d] of %d: %v, want %v", a.E, name, j, len(want[i]), y,
						x)
					break
				}
			}
		}
	}
}

// setting is a small model's memory, for tests of the engine itself.
type setting struct {
	t   testing.TB
	b   *Backend
	rng *rand.Rand
}

func set(t testing.TB, b *Backend) *setting { return &setting{t, b, rand.New(rand.NewPCG(3, 4))} }

func (s *setting) put(c compute.Class, host []float32) compute.Tensor {
	s.t.Helper()
	x, err := s.b.Alloc("test", c, len(host))
	if err != nil {
		s.t.Fatal(err)
	}
	s.b.Upload(x, host)
	return x
}

func (s *setting) empty(c compute.Class,
	n int) compute.Tensor {
	return s.put(c, make([]float32, n))
}

func (s *setting) normal(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(s.rng.NormFloat64())
	}
	return x
}

// param is a parameter of random weights, with a gradient of zeros.
func (s *setting) param(rows, cols int) *compute.Param {
	host := s.normal(rows * cols)
	for i := range host {
		host[i] /= float32(math.Sqrt(float64(cols)))
	}
	p := &compute.Param{Name: "w", Rows: rows, Cols: cols, W: s.put(compute.Wide, host),
		G: s.empty(compute.Wide, rows*cols)}
	s.b.Refresh(p)
	return p
}

func (s *setting) perm(n int) []int32 {
	x := make([]int32, n)
	for i, p := range s.rng.Perm(n) {
		x[i] = int32(p)
	}
	return x
}

func (s *setting) draws(n, of int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(s.rng.IntN(of))
	}
	return x
}

func (s *setting) down(x compute.Tensor) []float32 {
	s.t.Helper()
	host := make([]float32, x.Len())
	s.b.Download(host, x)
	if err := s.b.Sync(); err != nil {
		s.t.Fatal(err)
	}
	return host
}

func (s *setting) same(what string, got, want []float32) {
	s.t.Helper()
	if len(got) != len(want) {
		s.t.Errorf("%s: %d and %d elements", what, len(got), len(want))
		return
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			s.t.Errorf("%s: [%d] of %d: %v is not %v", what, i, len(got), got[i], want[i])
			return
		}
	}
}

// step is a layer of generation over rows that begin with N tokens: all that a
// graph records, and indices of every kind.
type step struct {
	*setting
	embed, norm, w          *compute.Param
	x, rstd, h, q, k, v, up compute.Tensor
	rope                    compute.Tensor
}

const (
	stepV, stepD, stepN, stepSlots = 50, 32, 6, 40
)

func newStep(t testing.TB, b *Backend) *step {
	s := &step{setting: set(t, b)}
	s.embed, s.norm, s.w = s.param(stepV, stepD), s.param(1, stepD), s.param(stepD, stepD)
	n, w := compute.Narrow, compute.Wide
	s.x, s.rstd, s.h, s.q =
		s.empty(w, stepN*stepD), s.empty(w, stepN), s.empty(n, stepN*stepD), s.empty(n, stepN*stepD)
	s.k, s.v, s.up =
		s.empty(n, stepSlots*stepD), s.empty(n, stepSlots*stepD), s.empty(n, stepN*stepD)
	s.rope = s.put(w, s.normal(20*stepD/2))
	return s
}

// input is one call's indices.
type input struct {
	ids, pos, slots []int32
	pages           compute.Pages
}

func (s *step) input(N int) input {
	in := input{ids: s.draws(N, stepV), pos: s.draws(N, 20), pages: compute.Pages{PageTokens: 2}}
	for _, slot := range s.rng.Perm(stepSlots)[:N] {
		in.slots = append(in.slots, int32(slot))
		n := 1 + s.rng.IntN(8)
		in.pages.Table = append(in.pages.Table, s.draws(blocks(n, 2), stepSlots/2))
		in.pages.Len = append(in.pages.Len, int32(n))
	}
	return in
}

func (s *step) run(in input) {
	const E = stepD / 2
	n := len(in.ids) * stepD
	x, rstd, h, q := s.x.Slice(0, n), s.rstd.Slice(0, len(in.ids)), s.h.Slice(0, n), s.q.Slice(0, n)
	s.b.Zero(s.up)
	s.b.Embed(x, s.embed, in.ids)
	for range 2 {
		s.b.RMSNorm(h, rstd, x, s.norm, 1e-6)
		s.b.Linear(q, h, s.w, nil, false)
		s.b.Rope(q, 2, E, in.pos, s.rope, false)
		s.b.CacheWrite(s.k, h, stepD, in.slots)
		s.b.CacheWrite(s.v, h, stepD, in.slots)
		s.b.AttentionDecode(h, q, s.k, s.v, compute.AttnShape{H: 2, K: 2, E: E, Scale: 0.25},
			in.pages)
		s.b.Linear(x, h, s.w, nil, true)
	}
	s.b.Copy(s.up.Slice(0, n), h)
}

// Under Repeat a step gives the bits that it gives by itself, for indices that
// change, without a wait between calls, for rows that come and go, and after its
// memory was moved; and graphs do run.
func TestRepeat(t *testing.T) {
	b := start(t, Options{})
	defer b.dev.Enter()()
	byItself, repeated := newStep(t, b), newStep(t, b)
	const calls = 24
	var want, got []compute.Tensor
	ran := 0
	for i := range calls {
		N := stepN - i/5%3
		in := byItself.input(N)
		byItself.run(in)
		key := fmt.Sprint("step ", N)
		before := b.graph.known[key]
		captured := before != nil && before.graph != nil
		b.Repeat(key, compute.Indices{}, func() { repeated.run(in) })
		if r := b.graph.known[key]; captured && r.graph != nil && r.misses == 0 {
			ran++
		}
		// Kept on the device: reading back would wait.
		for _, x := range []struct {
			s    *step
			list *[]compute.Tensor
		}{{byItself, &want}, {repeated, &got}} {
			n := N * stepD
			keep := x.s.empty(compute.Wide, n)
			b.Copy(keep, x.s.x.Slice(0, n))
			*x.list = append(*x.list, keep)
		}
		if i == 15 { // all addresses change
			b.wait()
			repeated.k, repeated.v =
				repeated.put(compute.Narrow, repeated.down(repeated.k)),
				repeated.put(compute.Narrow, repeated.down(repeated.v))
		}
	}
	for i := range want {
		byItself.same(fmt.Sprintf("call %d", i), byItself.down(got[i]), byItself.down(want[i]))
	}
	if ran < calls/4 {
		t.Errorf("%d of %d calls ran a graph", ran, calls)
	}
	if s := b.Graphs(); s.Replayed != ran || s.Recorded+s.Captured+s.Replayed != calls ||
		s.Diverged == 0 || s.GivenUp != 0 || s.Failed != 0 || s.Err != nil {
		t.Errorf("%d calls, of which %d ran an earlier call's graph: %+v", calls, ran, s)
	}
	byItself.same("keys", byItself.down(repeated.k), byItself.down(byItself.k))
}

// Commands that were compared while the device ran give a step's own bits, for other indices of the
// same number. Whatever may change them in between has them compared when they are asked for: an
// operation, memory that is allocated or moves, another closure, lists of other lengths.
func TestRepeatAhead(t *testing.T) {
	b := start(t, Options{})
	byItself, repeated := newStep(t, start(t, Options{})), newStep(t, b)
	heads := map[*step]*compute.Param{}
	for _, s := range []*step{byItself, repeated} {
		heads[s] = s.param(stepV, stepD)
	}
	sample := func(s *step, N int) (logp []float32) {
		ids, logp := make([]int32, N), make([]float32, N)
		s.b.Sample(ids, logp, s.h.Slice(0, N*stepD), heads[s], compute.Sampling{},
			make([]float64, N))
		return logp
	}
	var now input
	op := func() { repeated.run(now) }
	spare := repeated.empty(compute.Wide, 64)
	between := map[int]func(){
		6: func() { b.Zero(spare) },
		9: func() { repeated.empty(compute.Wide, 3<<20) },
		12: func() { // addresses change, and need to be recorded again
			repeated.k = repeated.put(compute.Narrow, repeated.down(repeated.k))
		},
		17: func() { op = func() { repeated.run(now) } },
	}
	var ahead []int
	for i := range 32 {
		N, pages := stepN, 0
		switch {
		case i == 20:
			N = stepN - 1
		case i >= 25:
			pages = 70
		}
		now = byItself.input(N)
		now.pages.Table[1] = append(now.pages.Table[1], make([]int32, pages)...)
		if f := between[i]; f != nil {
			f()
		}
		before := b.Graphs().Ahead
		b.Repeat("step", compute.Indices{IDs: now.ids, Pos: now.pos, Slots: now.slots,
			Pages: now.pages}, op)
		if b.Graphs().Ahead > before {
			ahead = append(ahead, i)
		}
		got := sample(repeated, N)
		byItself.run(now)
		byItself.same(fmt.Sprintf("call %d", i), got, sample(byItself, N))
	}
	// The first two calls are recorded, since Sample moves the scratch memory, and the third is
	// captured; after a difference a call is recorded and the next one captured.
	want := []int{3, 4, 5, 7, 8, 10, 11, 14, 15, 16, 18, 19, 23, 24, 27, 28, 29, 30, 31}
	if !slices.Equal(ahead, want) {
		t.Errorf("compared ahead were %v, want %v: %+v", ahead, want, b.Graphs())
	}
	now.slots[2] = stepSlots
	panics(t, "slots", func() {
		b.Repeat("step", compute.Indices{IDs: now.ids, Pos: now.pos, Slots: now.slots,
			Pages: now.pages}, op)
	})
}

// Each way in which an operation can differ from what was captured is seen, and
// the operation is then run as it is.
func TestRepeatSeesDifferences(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	x, y, w := s.put(compute.Wide, s.normal(64)), s.empty(compute.Wide, 64), s.param(8, 8)
	h, o := s.put(compute.Narrow, s.normal(64)), s.empty(compute.Narrow, 64)
	z, u, p, r :=
		s.empty(compute.Wide, 64), s.empty(compute.Wide, 8), s.empty(compute.Narrow, 64),
		s.empty(compute.Narrow, 64)
	everything := []compute.Tensor{x, y, z, u, h, o, p, r}
	w2, n, other :=
		s.param(8, 8), w0(w),
		&compute.Param{Name: "w1", Rows: 1, Cols: w.Cols, W: w.W.Slice(w.Cols, 2*w.Cols)}
	moved := *n
	moved.Offset = 1
	b.Linear(o, h, w, n, false) // now, and not within Repeat, the copy of the biases is made
	grad := func(dx, dy, x, rstd compute.Tensor, w *compute.Param, acc bool) func() {
		return func() { b.RMSNormGrad(dx, w, dy, x, rstd, acc) }
	}
	for _, c := range []struct {
		name       string
		one, other func()
	}{
		{"kernel", func() { b.Add(y, x) }, func() { b.Copy(y, x) }},
		{"arguments", func() { b.Gated(compute.SiLU, o, h, h) },
			func() { b.Gated(compute.SiLU, h, o, o) }},
		{"number", func() { b.RMSNorm(o, y.Slice(0, 8), h, w0(w), 1e-6) },
			func() { b.RMSNorm(o, y.Slice(0, 8), h, w0(w), 1) }},
		{"product", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(o.Slice(0, 56), h.Slice(0, 56), w, nil, false) }},
		{"size", func() { b.Zero(y) }, func() { b.Zero(y.Slice(0, 8)) }},
		{"less", func() { b.Zero(y); b.Copy(y, x) }, func() { b.Zero(y) }},
		{"more", func() { b.Zero(y) }, func() { b.Zero(y); b.Copy(y, x) }},
		// One argument of a kernel, whichever it is: its output, its inputs, its numbers.
		{"output", func() { b.Gated(compute.SiLU, o, h, p) }, func() { b.Gated(compute.SiLU, r, h, p) }},
		{"first input", func() { b.Gated(compute.SiLU, o, h, p) },
			func() { b.Gated(compute.SiLU, o, r, p) }},
		{"second input", func() { b.Gated(compute.SiLU, o, h, p) },
			func() { b.Gated(compute.SiLU, o, h, r) }},
		{"gradient's output", grad(z, p, x, u, n, false), grad(y, p, x, u, n, false)},
		{"gradient's dy", grad(z, p, x, u, n, false), grad(z, h, x, u, n, false)},
		{"gradient's x", grad(z, p, x, u, n, false), grad(z, p, y, u, n, false)},
		{"gradient's rstd", grad(z, p, x, u, n, false), grad(z, p, x, y.Slice(40, 48), n, false)},
		{"gradient's weights", grad(z, p, x, u, n, false), grad(z, p, x, u, other, false)},
		{"gradient's acc", grad(z, p, x, u, n, false), grad(z, p, x, u, n, true)},
		{"gradient's offset", grad(z, p, x, u, n, false), grad(z, p, x, u, &moved, false)},
		{"factor", func() { b.Scale(y, 2) }, func() { b.Scale(y, 3) }},
		{"product's output", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(r, h, w, nil, false) }},
		{"product's input", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(o, p, w, nil, false) }},
		{"product's weights", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(o, h, w2, nil, false) }},
		{"product's acc", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(o, h, w, nil, true) }},
		{"product's bias", func() { b.Linear(o, h, w, nil, false) },
			func() { b.Linear(o, h, w, n, false) }},
		{"copy's destination", func() { b.Copy(z, x) }, func() { b.Copy(y, x) }},
		{"copy's source", func() { b.Copy(z, x) }, func() { b.Copy(z, y) }},
		{"copy's length", func() { b.Copy(z, x) },
			func() { b.Copy(z.Slice(0, 32), x.Slice(0, 32)) }},
		{"memory that is zeroed", func() { b.Zero(y) }, func() { b.Zero(z) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := func(op func()) (all []float32) {
				for i, m := range everything {
					b.Upload(m, seq(m.Len(), []float32{1, 2, 0.5, 0.1, 0.01, 0.02, 0.03, 0.3}[i]))
				}
				op()
				for _, m := range everything {
					all = append(all, s.down(m)...)
				}
				return all
			}
			ops := []func(){c.one, c.one, c.one, c.other, c.other, c.other, c.one}
			for i, op := range ops {
				want := state(op)
				s.same(fmt.Sprintf("call %d", i), state(func() { b.Repeat(c.name, compute.Indices{}, op) }),
					want)
			}
		})
	}
}

// A grid has at most 16 blocks for each multiprocessor, 4.3 million elements of them on 132:
// what lies behind is the same blocks' next turn. With one multiprocessor that is so from
// 32,768 elements on, and the bits are those of a grid that covers all.
func TestSmallGrid(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		const N, D, E = 70, 1032, 8 // rows; elements of one, an odd number of eights; of a head
		n := N * D
		wide := [2][]float32{s.normal(n), s.normal(n)}
		table, ids, w := s.normal(N*E), s.perm(N), s.normal(n)
		run := func(sms int) (all [][]float32) {
			defer func(sms int) { b.sms = sms }(b.sms)
			b.sms = sms
			keep := func(ts ...compute.Tensor) {
				for _, t := range ts {
					all = append(all, s.down(t))
				}
			}
			for _, class := range []compute.Class{compute.Wide, compute.Narrow, compute.Master} {
				x, y := s.put(class, wide[0]), s.put(class, wide[1])
				b.Add(y, x)
				keep(y)
				b.Scale(x, 0.75)
				keep(x)
			}
			x, y, p := s.put(compute.Narrow, wide[0]), s.put(compute.Narrow, wide[1]), s.param(N, D)
			b.Upload(p.W, w)
			b.Refresh(p)
			a, o, dg, du :=
				s.put(compute.Wide, wide[1]), s.empty(compute.Narrow, n),
				s.empty(compute.Narrow, n), s.empty(compute.Narrow, n)
			b.Add(a, x)
			keep(a)
			b.Gated(compute.SiLU, o, x, y)
			keep(o)
			b.GatedGrad(compute.SiLU, o, dg, du, y, x, y)
			keep(dg, du)
			b.Gated(compute.GELUTanh, o, x, y)
			keep(o)
			b.GatedGrad(compute.GELUTanh, o, dg, du, y, x, y)
			keep(dg, du)
			b.Rope(x, D/E, E, ids, s.put(compute.Wide, table), false)
			keep(x)
			b.Embed(a, p, ids)
			keep(a)
			b.EmbedGrad(p, a, ids)
			keep(p.G)
			b.CacheWrite(o, y, D, ids)
			keep(o)
			shape := compute.AttnShape{H: D/E - 2, K: 1, E: E}
			q, k, v :=
				s.put(compute.Narrow, wide[0][:N*shape.H*E]), s.put(compute.Narrow, wide[0][:N*E]),
				s.put(compute.Narrow, wide[1][:N*E])
			kc, vc := s.empty(compute.Narrow, N*E), s.empty(compute.Narrow, N*E)
			b.RopeCache(q, k, v, kc, vc, shape, ids, s.put(compute.Wide, table), ids)
			keep(q, kc, vc)
			return all
		}
		want := run(b.sms)
		for i, got := range run(1) {
			s.same(fmt.Sprintf("%s, result %d", precision, i), got, want[i])
		}
	}
}

// Gated activations without gaps are one row, or rows that a kernel can count in 32 bits: all
// elements, whatever a released model's micro-batch has.
func TestOneRow(t *testing.T) {
	for _, tokens := range []int{1, 7, 16384, 65536, 131072} {
		for _, F := range []int{1536, 4864, 8960, 18944, 27648} {
			N, width := oneRow(tokens * F)
			if N*width != tokens*F || width > 1<<30 || N < 1 {
				t.Errorf("%d tokens of %d: %d rows of %d", tokens, F, N, width)
			}
		}
	}
}

// Elements behind the 2^31st and bytes behind the 2^32nd of tables and caches, which a model
// reaches where its keys take 4 GB: an offset in 32 bits reads or writes elsewhere. It takes
// 4.3 GB, so an emulated device runs it only where GAD_LARGE asks for it.
func TestBeyond32Bits(t *testing.T) {
	b := start(t, Options{})
	emulated := driver.Emulated() != nil
	if emulated && os.Getenv("GAD_LARGE") == "" {
		t.Skip("NOT TESTED on an emulated device, for the memory that it takes: GAD_LARGE=1 does it all the same")
	}
	if free := b.Available(); !emulated && free > 0 && free < 5<<30 {
		t.Skipf("NOT TESTED: 5 GB of memory are needed, %d bytes are free", free)
	}
	s := set(t, b)
	const D, E, P = 4096, 64, 16
	const rows = 1<<31/D + P // of a table and of caches of 64 heads
	const last = rows - 1
	cache, err := b.Alloc("cache", compute.Narrow, rows*D)
	if err != nil {
		t.Fatal(err)
	}
	x := s.put(compute.Narrow, s.normal(2*D))
	b.CacheWrite(cache, x, D, []int32{last, rows - P})
	s.same("written behind the border", s.down(cache.Slice(last*D, rows*D)), s.down(x.Slice(0, D)))
	s.same("before it", s.down(cache.Slice(0, D)), make([]float32, D))
	y := s.empty(compute.Wide, 2*D)
	b.Embed(y, &compute.Param{Name: "table", Shape: []int{rows, D}, Rows: rows, Cols: D, W: cache},
		[]int32{last, 0})
	s.same("looked up behind the border", s.down(y.Slice(0, D)), s.down(x.Slice(0, D)))
	for _, fast := range []bool{true, false} {
		a := compute.AttnShape{H: D / E, K: D / E, E: E, Scale: 0.125}
		if !fast {
			a.Window = 3
		}
		// The page behind the border has two written positions, 0 and 15; the others are zeros.
		o, q := s.empty(compute.Narrow, D), s.put(compute.Narrow, s.normal(D))
		near := s.empty(compute.Narrow, P*D)
		b.Copy(near, cache.Slice((rows-P)*D, rows*D))
		b.AttentionDecode(o, q, cache, cache, a,
			compute.Pages{PageTokens: P, Table: [][]int32{{rows/P - 1}}, Len: []int32{P}})
		want := s.empty(compute.Narrow, D)
		b.AttentionDecode(want, q, near, near, a,
			compute.Pages{PageTokens: P, Table: [][]int32{{0}}, Len: []int32{P}})
		s.same(fmt.Sprintf("decoded behind the border, fast %v", fast), s.down(o), s.down(want))
	}
	if !emulated { // where it takes minutes
		b.Scale(cache, 2)
		for i, v := range s.down(cache.Slice(last*D, last*D+8)) {
			if w := 2 * s.down(x.Slice(i, i+1))[0]; v != w {
				t.Errorf("scaled behind the border: %v, want %v", v, w)
			}
		}
	}
	b.Zero(cache)
	s.same("zeroed behind the border", s.down(cache.Slice(last*D, rows*D)), make([]float32, D))
	b.Free(cache)
}

// One pass for the gradients of a norm's input and scale has, in dx, the bits of two passes, and
// the scale's sums are as near to those in float64. Rows are a warp's or a block's, and a block has
// one turn, several, or more rows than the least.
func TestNormPasses(t *testing.T) {
	for _, shape := range [][2]int{{1, 256}, {33, 250}, {33*1024 + 7, 16}, {3, 264}, {9, 4096},
		{4*1024 + 3, 257}, {5, 4097}} {
		N, D := shape[0], shape[1]
		for _, narrow := range []bool{false, true} {
			b := start(t, Options{})
			s := set(t, b)
			class := compute.Wide
			if narrow {
				class = compute.Narrow
			}
			x, dy := s.put(class, s.normal(N*D)), s.put(compute.Narrow, s.normal(N*D))
			rstd, w := s.put(compute.Wide, s.normal(N)), s.param(1, D)
			w.Offset = 1
			begin := s.normal(D)
			run := func(columns int, acc bool) (dx, g []float32) {
				defer func(n int) { b.onePass = n }(b.onePass)
				b.onePass = columns
				out := s.put(class, seq(N*D, 0.25))
				b.Upload(w.G, begin)
				b.RMSNormGrad(out, w, dy, x, rstd, acc)
				return s.down(out), s.down(w.G)
			}
			hx, hdy, hr := s.down(x), s.down(dy), s.down(rstd)
			want, size := make([]float64, D), make([]float64, D)
			for i := range hx {
				term := float64(hdy[i]) * float64(hx[i]) * float64(hr[i/D])
				want[i%D] += term
				size[i%D] += math.Abs(term)
			}
			for _, acc := range []bool{false, true} {
				name := fmt.Sprintf("%d rows of %d, narrow=%v acc=%v", N, D, narrow, acc)
				dx, g := run(onePassNorm, acc)
				twice, _ := run(0, acc)
				s.same(name, dx, twice)
				for d, sum := range g {
					sum -= begin[d]
					if e := math.Abs(float64(sum) - want[d]); e > 2e-6*(size[d]+10) {
						t.Fatalf("%s: the scale's gradient [%d] is %v, want %v", name, d, sum,
							want[d])
					}
				}
			}
		}
	}
}

// Without filters a draw reads one tile of a row's logits. It finds the tokens that the kernel with
// filters finds, but where u lies at a token's border, and those that float64 sums allow.
func TestDraw(t *testing.T) {
	b := start(t, Options{Precision: F32}) // of weights that are the logits
	s := set(t, b)
	const V, R = 3*headTile + 333, 100
	inf := float32(math.Inf(1))
	one, u := make([]float32, R), make([]float64, R)
	for r := range u {
		one[r], u[r] = 1, float64(r)/(R-1)
	}
	u[R-1] = math.Nextafter(1, 0)
	h := s.put(compute.Narrow, one)
	draw := func(w *compute.Param, greedy, surveys bool) ([]int32, []float32) {
		defer func() { b.surveys = false }()
		b.surveys = surveys
		ids, logp := make([]int32, R), make([]float32, R)
		how := compute.Sampling{Temperature: 1}
		if greedy {
			how.Temperature = 0
		}
		b.Sample(ids, logp, h, w, how, u)
		return ids, logp
	}
	for _, c := range []struct {
		name string
		make func(z []float32)
		odd  bool // masses alone decide, not float64 sums
	}{
		{"flat", func([]float32) {}, false},
		{"steep", func(z []float32) {
			for i := range z {
				z[i] *= 4
			}
		}, false},
		{"far below and above 0", func(z []float32) {
			for i := range z {
				z[i] = 2*z[i] - 90 + 60*float32(i/headTile)
			}
		}, false},
		{"borders of tiles", func(z []float32) {
			for i := range z {
				if z[i] = -inf; i%headTile == 0 || i%headTile == headTile-1 || i == V-1 {
					z[i] = float32(i/headTile) / 3
				}
			}
		}, false},
		{"a tile without tokens", func(z []float32) {
			for i := range headTile {
				z[headTile+i] = -inf
			}
		}, false},
		{"large", func(z []float32) {
			for i := range z {
				z[i] *= 1e30
			}
		}, true},
		{"none", func(z []float32) {
			for i := range z {
				z[i] = -inf
			}
		}, true},
		{"infinite", func(z []float32) { z[headTile+7], z[headTile+9] = inf, inf }, true},
		{"no number", func(z []float32) { z[5] = float32(math.NaN()) }, true},
	} {
		z := s.normal(V)
		c.make(z)
		best := 2*headTile + 17 // twice
		if !c.odd && c.name != "borders of tiles" {
			z[best] = slices.Max(z)
			z[best+headTile], z[slices.Index(z, z[best])] = z[best], z[best]-1
		}
		w := s.param(V, 1)
		b.Upload(w.W, z)
		b.Refresh(w)
		for _, greedy := range []bool{false, true} {
			ids, logp := draw(w, greedy, false)
			want, wantP := draw(w, greedy, true)
			differ := 0
			for r := range ids {
				if ids[r] != want[r] {
					differ++
				} else if math.Float32bits(logp[r]) != math.Float32bits(wantP[r]) {
					t.Fatalf("%s: u=%v: log-probability %v, want %v", c.name, u[r], logp[r],
						wantP[r])
				}
			}
			if most := R / 50; differ > most || (greedy || c.odd) && differ > 0 {
				t.Errorf("%s, greedy=%v: %d of %d tokens are others than the filters' kernel has",
					c.name, greedy, differ, R)
			}
			if greedy || c.odd {
				continue
			}
			sums := make([]float64, V+1) // sums[v] is the probability of tokens before v
			top := slices.Max(z)
			for v, x := range z {
				sums[v+1] = sums[v] + math.Exp(float64(x-top))
			}
			for r, id := range ids {
				from, to := sums[id]/sums[V], sums[id+1]/sums[V]
				if from == to || u[r] < from-1e-6 || u[r] > to+1e-6 {
					t.Fatalf("%s: u=%v gives token %d, of %v to %v", c.name, u[r], id, from, to)
				}
			}
		}
	}
}

// w0 is the first row of w as a norm's weights.
func w0(w *compute.Param) *compute.Param {
	return &compute.Param{Name: "w0", Rows: 1, Cols: w.Cols, W: w.W.Slice(0, w.Cols)}
}

func seq(n int, scale float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = scale * float32(i%17-8)
	}
	return x
}

// A graph belongs to what its products are added to.
func TestRepeatLinearAdd(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	const n, d = 8, 32
	w, x := s.param(d, d), s.put(compute.Narrow, s.normal(n*d))
	rs := []compute.Tensor{s.put(compute.Wide, s.normal(n*d)), s.put(compute.Wide, s.normal(n*d))}
	y, want := s.empty(compute.Wide, n*d), s.empty(compute.Wide, n*d)
	for i, r := range []compute.Tensor{rs[0], rs[0], rs[0], rs[1], rs[1], rs[1], rs[1], rs[0], y} {
		b.Copy(want, r)
		b.Linear(want, x, w, nil, true)
		b.Repeat("add", compute.Indices{}, func() { b.LinearAdd(y, r, x, w) })
		s.same(fmt.Sprint("call ", i), s.down(y), s.down(want))
	}
	if b.Graphs().Replayed == 0 {
		t.Errorf("%+v: no graph was replayed", b.Graphs())
	}
}

// More keys than are kept: the oldest go, with their memory.
func TestRepeatForgets(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	table, y := s.param(9, 4), s.empty(compute.Wide, 4)
	var most int64
	for i := range 3 * maxGraphs {
		id := []int32{int32(i % 9)}
		for range 3 {
			b.Repeat(fmt.Sprint(i), compute.Indices{}, func() { b.Embed(y, table, id) })
		}
		if i == maxGraphs {
			most, _ = b.Memory()
		}
	}
	if len(b.graph.known) != maxGraphs {
		t.Errorf("%d keys are kept, want %d", len(b.graph.known), maxGraphs)
	}
	if now, _ := b.Memory(); now > most {
		t.Errorf("%d bytes in use, %d when all keys were taken first", now, most)
	}
}

func TestRepeatRefuses(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	x, w := s.empty(compute.Narrow, 8), s.param(8, 8)
	host := make([]float32, 8)
	for name, op := range map[string]func(){
		"Alloc":    func() { b.Alloc("x", compute.Wide, 1) },
		"Free":     func() { b.Free(x) },
		"Upload":   func() { b.Upload(x, host) },
		"Download": func() { b.Download(host, x) },
		"Sync":     func() { b.Sync() },
		"Close":    func() { b.Close() },
		"Sample": func() {
			b.Sample(make([]int32, 1), host[:1], x, w, compute.Sampling{},
				nil)
		},
		"SumSquares": func() { b.SumSquares([]compute.Tensor{x}) },
		"Repeat":     func() { b.Repeat("inner", compute.Indices{}, func() {}) },
	} {
		said := func() (what any) {
			defer func() { what = recover() }()
			b.Repeat("outer "+name, compute.Indices{}, op)
			return nil
		}()
		if text, _ := said.(string); !strings.Contains(text, name) {
			t.Errorf("%s inside Repeat: %v", name, said)
		}
		if b.graph.mode != plain {
			t.Fatalf("%s: still inside Repeat", name)
		}
	}
	s.same("afterwards", s.down(x), make([]float32, 8))
}

// Indices pass through pinned memory that is used again and again: what the
// device has not read is not overwritten, lists that do not fit make it larger,
// and a list that is there already is not brought again.
func TestStaging(t *testing.T) {
	b := start(t, Options{})
	defer b.dev.Enter()()
	s := set(t, b)
	const V, D, N = 300, 8, 100
	table := s.param(V, D)
	all := s.down(table.W)
	b.ring.release(b)
	if err := b.ring.grow(b, 1024); err != nil {
		t.Fatal(err)
	}
	var ys []compute.Tensor
	var lists [][]int32
	for i := range 12 {
		n := N
		if i == 7 {
			n = 1000 // 4000 bytes
		}
		ids := s.draws(n, V)
		y, err := b.Alloc("y", compute.Wide, n*D)
		if err != nil {
			t.Fatal(err)
		}
		b.Embed(y, table, ids)
		lists, ys = append(lists, slices.Clone(ids)), append(ys, y)
		if i%2 == 0 {
			used := b.ring.used
			b.Embed(y, table, slices.Clone(ids))
			if b.ring.used != used {
				t.Errorf("call %d: the same list was staged twice", i)
			}
		}
		clear(ids) // the caller may do as it likes with it
	}
	for i, y := range ys {
		got := s.down(y)
		for n, id := range lists[i] {
			for d := range D {
				if x := all[int(id)*D+d]; math.Abs(float64(got[n*D+d]-x)) > math.Abs(
					float64(x))/128 {
					t.Fatalf("call %d: row %d, of token %d: [%d] is %v, want %v", i, n, id, d,
						got[n*D+d], x)
				}
			}
		}
	}
	long := s.normal(10000)
	s.same("an upload in many parts", s.down(s.put(compute.Wide, long)), long)
	narrow := s.down(s.put(compute.Narrow, long))
	for i, x := range long {
		if math.Abs(float64(narrow[i]-x)) > math.Abs(float64(x))/128 {
			t.Fatalf("an upload to Narrow memory in many parts: [%d] is %v, was %v", i, narrow[i],
				x)
		}
	}
}

// No list of an operation is put over another one that it still needs, wherever in
// the ring it begins, nor freed when the ring grows between the two.
func TestStagingWithinOperation(t *testing.T) {
	b := start(t, Options{})
	defer b.dev.Enter()()
	s := set(t, b)
	const V, D = 90, 8
	table := s.param(V, D)
	for _, N := range []int{20, 60, 90, 200} { // three lists of up to 800 bytes
		dy, ids := s.put(compute.Wide, s.normal(N*D)), s.draws(N, V)
		var want []float32
		for i, ring := range []int{1 << 16, 1024, 2048} {
			b.wait()
			b.ring.release(b)
			if err := b.ring.grow(b, ring); err != nil {
				t.Fatal(err)
			}
			for before := range 5 {
				b.Zero(table.G)
				if before > 0 {
					// the lists begin elsewhere
					b.Embed(dy.Slice(0, before*D), table, seqOf(before))
					b.Upload(dy, seq(N*D, 0.5))
				} else {
					b.Upload(dy, seq(N*D, 0.5))
				}
				b.EmbedGrad(table, dy, ids)
				got := s.down(table.G)
				if i+before == 0 {
					want = got
				}
				s.same(fmt.Sprintf("%d rows through %d bytes", N, ring), got, want)
			}
		}
		if len(b.retired) > 0 {
			t.Errorf("%d blocks are kept that nothing reads", len(b.retired))
		}
	}
}

// seqOf counts up from 0.
func seqOf(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i)
	}
	return x
}

// Repeat's indices may need more room than is there: the first key's area grows
// while it is recorded, a later one's begins large enough, and its second call is a graph.
func TestRepeatLargeIndices(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	const V, D, N = 40, 8, areaBytes / 4
	table, y := s.param(V, D), s.empty(compute.Wide, N*D)
	ids := [][]int32{s.draws(N, V), s.draws(N/2, V)}
	for key, want := range []GraphStats{
		{Recorded: 2, Captured: 1, Replayed: 1, Diverged: 1},
		{Recorded: 3, Captured: 2, Replayed: 3, Diverged: 1},
	} {
		for range 4 {
			b.Repeat(fmt.Sprint(key), compute.Indices{}, func() {
				b.Embed(y.Slice(0, len(ids[1])*D), table, ids[1])
				b.Embed(y, table, ids[0])
			})
		}
		if got := b.Graphs(); got != want {
			t.Errorf("key %d: %+v, want %+v", key, got, want)
		}
	}
	got := s.down(y)
	b.Embed(y, table, ids[0])
	s.same("rows", got, s.down(y))
}

// Where cuBLASLt has no algorithm the backend's own kernel takes the product, in
// graphs too.
func TestNoPlan(t *testing.T) {
	b, known := start(t, Options{}), newStep(t, start(t, Options{}))
	emulated := driver.Emulated()
	if emulated == nil {
		t.Skip("NOT TESTED: only the emulated device refuses products on demand")
	}
	emulated.NoPlans(b.dev)
	byItself, repeated := newStep(t, b), newStep(t, b)
	for i := range 5 {
		in := known.input(stepN)
		known.run(in)
		byItself.run(in)
		b.Repeat("step", compute.Indices{}, func() { repeated.run(in) })
		got, want := byItself.down(byItself.x), known.down(known.x)
		byItself.same(fmt.Sprintf("call %d, repeated", i), repeated.down(repeated.x), got)
		for j, x := range want {
			if math.Abs(float64(got[j]-x)) > 1e-2*(1+math.Abs(float64(x))) {
				t.Fatalf("call %d: [%d] is %v, want %v", i, j, got[j], x)
			}
		}
	}
	if s := b.Graphs(); s != (GraphStats{Recorded: 1, Captured: 1, Replayed: 3}) {
		t.Errorf("%+v", s)
	}
	want := compute.Counts{Products: 10 * 4, Declined: 10 * 4,
		First: "Linear: [6,32] bfloat16 over 32 bfloat16", Repeats: 5, Replayed: 3}
	if got := b.Counts(); got != want ||
		!strings.Contains(got.Warning(),
			"cuBLASLt declined 40 of 40 matrix products, the first Linear: [6,32]") {
		t.Errorf("counts %+v, want %+v; %q", got, want, got.Warning())
	}
	if got := known.b.Counts(); got != (compute.Counts{Products: 5 * 4}) || got.Warning() != "" {
		t.Errorf("with a library that declines nothing: %+v, %q", got, got.Warning())
	}
	b.counts = compute.Counts{} // declined on purpose
}

// The head in small chunks gives what it gives in one: of LogProb and Sample the
// same bits, if only the library's products do not depend on the number of rows.
func TestHeadChunks(t *testing.T) {
	for _, precision := range []string{F32, BF16} {
		b := start(t, Options{Precision: precision})
		for _, V := range []int{3 * headTile, 2*headTile + 500} {
			s := set(t, b)
			const N, R, D = 9, 7, 16
			h, w := s.put(compute.Narrow, s.normal(N*D)), s.param(V, D)
			// equal rows lie across chunks
			rows, targets := []int32{8, 1, 1, 1, 1, 7, 2}, s.draws(R, V)
			dlogp, dent := s.put(compute.Wide, s.normal(R)), s.put(compute.Wide, s.normal(R))
			u := []float64{0.1, 0.9, 0.4, 0.99, 0.5, 0, 0.7}
			draw := func(l bounds, shift float64) (lp []float32, ids []int32) {
				b.head = l
				moved := make([]float64, R)
				for r := range u {
					moved[r] = max(0, u[r]+shift)
				}
				ids, lp = make([]int32, R), make([]float32, R)
				b.Sample(ids, lp, h.Slice(0, R*D), w,
					compute.Sampling{Temperature: 0.8, TopK: 1000, TopP: 0.95}, moved)
				return lp, ids
			}
			run := func(l bounds) (logp, grad []float32) {
				b.head = l
				out := compute.HeadOut{LogpR: s.empty(compute.Wide, R),
					EntR: s.empty(compute.Wide, R), LseR: s.empty(compute.Wide, R)}
				dh := s.empty(compute.Narrow, N*D)
				b.Zero(w.G)
				b.LogProb(out, h, w, rows, targets, 1.25)
				b.LogProbGrad(dh, w, out, dlogp, dent, h, rows, targets, 1.25)
				return slices.Concat(s.down(out.LogpR), s.down(out.EntR), s.down(out.LseR)),
					slices.Concat(s.down(dh), s.down(w.G))
			}
			near := func(what string, got, want []float32, tol float64) {
				t.Helper()
				for i, x := range want {
					if !(math.Abs(float64(got[i]-x)) <= tol*(1+math.Abs(float64(x)))) {
						t.Fatalf("%s: [%d] is %v, want %v", what, i, got[i], x)
					}
				}
			}
			few := limits{rows: 3, vocab: headTile, logits: 4 * 3 * headTile}
			small := bounds{few, few, few}
			logp, grad := run(headLimits)
			logp2, grad2 := run(small)
			lp, ids := draw(headLimits, 0)
			lp2, ids2 := draw(small, 0)
			tol := 1e-5
			if driver.Emulated() != nil {
				s.same("log-probabilities in chunks", logp2, logp)
				s.same("sampled tokens' in chunks", lp2, lp)
				if !slices.Equal(ids, ids2) {
					t.Errorf("tokens in chunks: %v, want %v", ids2, ids)
				}
			} else {
				near("log-probabilities in chunks", logp2, logp, tol)
				// A token may be another one only where u is close to the boundary between the two.
				_, below := draw(headLimits, -1e-4)
				_, above := draw(headLimits, 1e-4)
				for r, id := range ids2 {
					switch id {
					case ids[r]:
						near("sampled tokens' in chunks", lp2[r:r+1], lp[r:r+1], tol)
					case below[r], above[r]:
						t.Logf("row %d: token %d in chunks, not %d: u is at their boundary", r, id,
							ids[r])
					default:
						t.Errorf("row %d: token %d in chunks, want %d", r, id, ids[r])
					}
				}
			}
			if precision == BF16 {
				tol = 1e-2
			}
			near("gradient in chunks", grad2, grad, tol)
		}
	}
}

func TestLimit(t *testing.T) {
	b := start(t, Options{Limit: ringBytes + 4096})
	if n := b.Available(); n <= 0 || n > 4096 {
		t.Errorf("%d bytes available of 4096", n)
	}
	_, err := b.Alloc("too much", compute.Wide, 1<<20)
	if err == nil || !strings.Contains(err.Error(), `"too much"`) || !strings.Contains(err.Error(), "4194304 bytes") {
		t.Errorf("beyond the limit: %v", err)
	}
	x, err := b.Alloc("enough", compute.Narrow, 1000)
	if err != nil {
		t.Fatal(err)
	}
	b.Free(x)
	// Scratch beyond the limit: Sync says so, and the backend goes on.
	s := set(t, b)
	w, h := s.param(9, 4), s.empty(compute.Narrow, 4)
	ids, logp := []int32{-7}, []float32{5}
	b.Limit = b.inUse
	b.Sample(ids, logp, h, w, compute.Sampling{}, nil)
	if err := b.Sync(); err == nil || !strings.Contains(err.Error(), "scratch") {
		t.Errorf("scratch beyond the limit: %v", err)
	}
	if ids[0] != -7 || logp[0] != 5 {
		t.Errorf("a failed Sample wrote %d and %v", ids[0], logp[0])
	}
	b.Limit = 0
	b.Sample(ids, logp, h, w, compute.Sampling{}, nil)
	if err := b.Sync(); err != nil || ids[0] != 0 {
		t.Errorf("afterwards: token %d, %v", ids[0], err)
	}
}

// Freed weights take with them what was derived from them.
func TestFreeTakesCopies(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	before, _ := b.Memory()
	w := s.param(32, 32)
	if now, _ := b.Memory(); now-before != 2*b.Block(32*32*4)+b.Block(32*32*2) {
		t.Errorf("weights, gradient and copy take %d bytes", now-before)
	}
	b.Free(w.W)
	b.Free(w.G)
	if now, _ := b.Memory(); now != before {
		t.Errorf("%d bytes are left", now-before)
	}
}

func TestMisuse(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	x, y, freed := s.empty(compute.Wide, 8), s.empty(compute.Narrow, 8), s.empty(compute.Wide, 8)
	b.Free(freed)
	w := s.param(2, 4)
	for name, op := range map[string]func(){
		"classes differ": func() { b.Copy(x, y) },
		"a Wide input":   func() { b.Linear(y.Slice(0, 4), x, w, nil, false) },
		"freed memory":   func() { b.Zero(freed) },
		"freed twice":    func() { b.Free(freed) },
		"a part freed":   func() { b.Free(x.Slice(0, 4)) },
		"a length":       func() { b.Add(x, x.Slice(0, 4)) },
		"an index":       func() { b.Embed(x, w, []int32{0, 2}) },
		"start beyond": func() {
			b.Attention(y, x, y, y, y, compute.AttnShape{H: 1, K: 1, E: 1, Scale: 1},
				compute.Pack{Start: []int32{0, 9}})
		},
		"a branch behind a sequence": func() {
			b.Attention(y, x, y, y, y, compute.AttnShape{H: 1, K: 1, E: 1, Scale: 1},
				compute.Pack{Start: []int32{0, 2, 4, 6, 8}, Parent: []int32{-1, 0, -1, 1}})
		},
		"a page beyond": func() {
			b.AttentionDecode(y, y, y, y, compute.AttnShape{H: 1, K: 1, E: 8, Scale: 1},
				compute.Pages{PageTokens: 1, Table: [][]int32{{1}}, Len: []int32{1}})
		},
		"a vocabulary": func() {
			b.Sample(nil, nil, compute.Tensor{}, &compute.Param{Rows: maxSampled, Cols: 1},
				compute.Sampling{}, nil)
		},
		"a negative length": func() { b.Alloc("x", compute.Wide, -1) },
	} {
		func() {
			defer func() {
				if what := recover(); what == nil ||
					!strings.HasPrefix(fmt.Sprint(what), "cuda: ") &&
						!strings.HasPrefix(fmt.Sprint(what), "compute: ") {
					t.Errorf("%s: %v", name, what)
				}
			}()
			op()
		}()
	}
}

// Two backends on one device do not disturb each other.
func TestTwo(t *testing.T) {
	a, b := start(t, Options{}), start(t, Options{Precision: F32})
	sa, sb := set(t, a), set(t, b)
	x := sa.normal(100)
	xa, xb := sa.put(compute.Wide, x), sb.put(compute.Narrow, x)
	a.Zero(xa)
	sb.same("the other's", sb.down(xb), x)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	sa.same("after the other's end", sa.down(xa), make([]float32, 100))
}

// everything uses each way in which the engine allocates.
func everything(b *Backend) (result []float32, err error) {
	alloc := func(c compute.Class, n int) (x compute.Tensor) {
		if err == nil {
			x, err = b.Alloc("test", c, n)
		}
		return x
	}
	const N, D, V, R = 5, 16, 40, 3
	h, g, y := alloc(compute.Narrow, N*D), alloc(compute.Narrow, N*D), alloc(compute.Wide, N*D)
	w := &compute.Param{Name: "w", Rows: V, Cols: D, W: alloc(compute.Wide, V*D),
		G: alloc(compute.Wide, V*D)}
	square := &compute.Param{Name: "square", Rows: D, Cols: D, W: alloc(compute.Wide, D*D),
		G: alloc(compute.Wide, D*D)}
	bias := &compute.Param{Name: "bias", Rows: 1, Cols: D, W: alloc(compute.Wide, D),
		G: alloc(compute.Wide, D)}
	stats := alloc(compute.Wide, 4*R)
	trained := &compute.Param{Name: "trained", Rows: D, Cols: D, W: alloc(compute.Master, D*D),
		G: alloc(compute.Wide, D*D), M: alloc(compute.Code, D*D),
		V:      alloc(compute.Code|compute.Host, D*D),
		MScale: alloc(compute.Wide, 1), VScale: alloc(compute.Wide|compute.Host, 1)}
	defer func() {
		for _, x := range []compute.Tensor{h, g, y, w.W, w.G, square.W, square.G, bias.W, bias.G,
			stats, trained.W, trained.G, trained.M, trained.V, trained.MScale, trained.VScale} {
			b.Free(x)
		}
	}()
	if err != nil {
		return nil, err
	}
	for i, p := range []*compute.Param{w, square, bias} {
		b.Upload(p.W, seq(p.Len(), 0.05*float32(i+1)))
		b.Refresh(p)
	}
	b.Upload(h, seq(N*D, 0.1))
	for i := range 4 {
		ids := []int32{int32(i), 2, 3, 4, 5}
		b.Repeat("everything", compute.Indices{}, func() {
			b.Embed(y, w, ids)
			b.Linear(g, h, square, bias, false)
			b.Linear(y, g, square, nil, true)
		})
	}
	out := compute.HeadOut{LogpR: stats.Slice(0, R), EntR: stats.Slice(R, 2*R),
		LseR: stats.Slice(2*R, 3*R)}
	rows, targets := []int32{4, 0, 2}, []int32{7, 39, 0}
	b.LogProb(out, h, w, rows, targets, 1)
	b.LogProbGrad(compute.Tensor{}, w, out, stats.Slice(3*R, 4*R), compute.Tensor{}, h, rows,
		targets, 1)
	b.LinearGrad(g, square, bias, y, h, false)
	ids, logp := make([]int32, N), make([]float32, N)
	b.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1}, make([]float64, N))
	sum := b.SumSquares([]compute.Tensor{w.G, square.G, bias.G})
	b.LinearGrad(g, trained, nil, y, h, true)
	b.AdamW([]*compute.Param{trained},
		compute.AdamW{LR: 1, Beta1: 0.5, Beta2: 0.5, Eps: 1, GradScale: 1, Step: 1})
	b.Linear(g, h, trained, nil, true)
	host := make([]float32, N*D)
	b.Download(host, g)
	if err := b.Sync(); err != nil {
		return nil, err
	}
	return append(append(host, logp...), float32(sum)), nil
}

// Close gives everything back, also what the caller forgot.
func TestCloseFreesEverything(t *testing.T) {
	start(t, Options{}) // or skip
	emulated := driver.Emulated()
	if emulated == nil {
		t.Skip("NOT TESTED: only the emulated device counts its allocations")
	}
	before := emulated.Allocs()
	b := start(t, Options{})
	if _, err := everything(b); err != nil {
		t.Fatal(err)
	}
	set(t, b).param(30, 30) // forgotten
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n := emulated.Allocs(); n != before {
		t.Errorf("%d allocations are left", n-before)
	}
}

// Each allocation in turn fails: the failure is reported, the backend goes on, and
// nothing is lost.
func TestEachAllocationFails(t *testing.T) {
	start(t, Options{}) // or skip
	emulated := driver.Emulated()
	if emulated == nil {
		t.Skip("NOT TESTED: only the emulated device fails on demand")
	}
	before := emulated.Allocs()
	healthy := start(t, Options{})
	want, err := everything(healthy)
	if err != nil {
		t.Fatal(err)
	}
	healthy.Close()
	if n := emulated.Allocs(); n != before {
		t.Fatalf("%d allocations are left of a healthy run", n-before)
	}
	failures := 0
	for i := 0; ; i++ {
		emulated.FailAlloc(i)
		b, err := open(Options{})
		if err == nil {
			_, err = everything(b)
		}
		emulated.FailAlloc(-1)
		if err == nil { // there are only i allocations
			b.Close()
			break
		}
		failures++
		if !errors.Is(err, driver.ErrMemory) {
			t.Errorf("allocation %d: %v", i, err)
		}
		if b == nil {
			continue
		}
		got, err := everything(b)
		if err != nil {
			t.Fatalf("allocation %d: afterwards: %v", i, err)
		}
		set(t, b).same(fmt.Sprintf("allocation %d: afterwards", i), got, want)
		if err := b.Close(); err != nil {
			t.Errorf("allocation %d: %v", i, err)
		}
		if n := emulated.Allocs(); n != before {
			t.Fatalf("allocation %d: %d allocations are left", i, n-before)
		}
	}
	if failures < 15 {
		t.Errorf("only %d allocations were failed", failures)
	}
}
