package computetest

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"gad/internal/compute"
)

// classes are the tests of what a class of memory promises, over all operations that take it.
var classes = map[string]func(s *suite){
	"Code": (*suite).code, "Moments": (*suite).moments, "NotFinite": (*suite).notFinite,
	"Master": (*suite).master, "Frozen": (*suite).frozen, "Quantised": (*suite).quant,
	"Host": (*suite).host, "Live": (*suite).live,
}

// code: memory of whole numbers from 0 to 255.
func (s *suite) code() {
	for _, n := range []int{0, 1, 255, 256, 1000} {
		host := make([]float32, n)
		for i := range host {
			host[i] = float32(i*7%256 + i/256%2)
			host[i] = min(host[i], 255)
		}
		t := s.empty(compute.Code, n)
		s.equal("fresh memory", download(s.t, s.dev, t), make([]float32, n))
		s.dev.Upload(t, host)
		s.equal("Upload and Download", download(s.t, s.dev, t), host)
		if n > 20 {
			s.equal("a view", download(s.t, s.dev, t.Slice(3, 18)), host[3:18])
			s.dev.Upload(t.Slice(5, 8), []float32{255, 0, 128})
			s.equal("Upload to a view", download(s.t, s.dev, t.Slice(4, 9)),
				[]float32{host[4], 255, 0, 128, host[8]})
			s.dev.Zero(t.Slice(6, 9))
			s.equal("Zero of a view", download(s.t, s.dev, t.Slice(4, 10)),
				[]float32{host[4], 255, 0, 0, 0, host[9]})
		}
		s.dev.Zero(t)
		s.equal("Zero", download(s.t, s.dev, t), make([]float32, n))
		s.dev.Free(t)
	}
}

// moments: steps of AdamW with moments in 8 bits. Before each step the reference has the
// state of the backend under test, so that a code which was on an edge is no excuse for the
// next one.
func (s *suite) moments() {
	for _, n := range []int{1, 255, 256, 257, 20001} {
		for trial, off := range []int{0, 16, 0} { // the last with other gradients
			p := s.coded(s.normal(n), off)
			p.Decay = (n+trial)%2 == 0 // norms and biases have none
			for step := 1; step <= 4; step++ {
				g := s.gradient(n, trial+step)
				a := compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1,
					GradScale: 0.5, Step: step}
				s.stepCoded(fmt.Sprintf("n=%d trial %d step %d", n, trial, step), p, g, a)
			}
			p.free(s)
		}
	}
}

// gradient returns n numbers whose blocks differ in size; some are zeros, and some elements are so
// small compared with their block's largest that their squares' nearest value is zero.
func (s *suite) gradient(n, step int) []float32 {
	g := s.normal(n)
	for i := range g {
		switch block := i / compute.MomentBlock; {
		case block%5 == 1 && step < 3, block%5 == 4:
			g[i] = 0
		case block%5 == 2:
			g[i] *= 1e-12
		case i%7 == 3:
			g[i] *= 1e-5
		case i%11 == 5:
			g[i] = 0
		}
	}
	return g
}

// coded is a parameter whose moments are Code, with guards around all of them.
type coded struct {
	*compute.Param
	off    int
	blocks []compute.Tensor // in the order of its tensors
}

func (p *coded) tensors() []compute.Tensor {
	return []compute.Tensor{p.W, p.G, p.M, p.V, p.MScale, p.VScale}
}

func (p *coded) free(s *suite) {
	for _, t := range p.blocks {
		s.dev.Free(t)
	}
}

// guardCode is the guard of memory that holds codes.
const guardCode = 165

func (s *suite) coded(w []float32, off int) *coded {
	n := len(w)
	p := &coded{Param: &compute.Param{Name: "coded", Shape: []int{1, n}, Rows: 1, Cols: n},
		off: off}
	place := func(class compute.Class, host []float32) compute.Tensor {
		mark := guard
		if class == compute.Code {
			mark = guardCode
		}
		block := slices.Repeat([]float32{mark}, off+len(host)+behind)
		copy(block[off:], host)
		t := s.put(class, block)
		p.blocks = append(p.blocks, t)
		return t.Slice(off, off+len(host))
	}
	scales := make([]float32, compute.Blocks(n))
	p.W, p.G = place(compute.Wide, w), place(compute.Wide, make([]float32, n))
	p.M, p.V = place(compute.Code, make([]float32, n)), place(compute.Code, make([]float32, n))
	p.MScale, p.VScale = place(compute.Wide, scales), place(compute.Wide, scales)
	s.dev.Refresh(p.Param)
	return p
}

// stepCoded takes a step with the gradient g and checks its results.
func (s *suite) stepCoded(what string, p *coded, g []float32, a compute.AdamW) {
	t, n := s.t, p.Len()
	t.Helper()
	before := make([][]float32, 6)
	s.dev.Upload(p.G, g)
	for i, x := range p.tensors() {
		before[i] = download(t, s.dev, x)
	}
	s.dev.AdamW([]*compute.Param{p.Param}, a)
	after := make([][]float32, 6)
	for i, x := range p.tensors() {
		whole := download(t, s.dev, p.blocks[i])
		after[i] = whole[p.off : p.off+x.Len()]
		for k, v := range whole {
			if (k < p.off || k >= p.off+x.Len()) && v == v && v != guardCode {
				t.Errorf("%s: tensor %d: wrote outside at [%d] of %d elements: %v", what, i,
					k-p.off, x.Len(), v)
				break
			}
		}
		s.record(fmt.Sprintf("%s: tensor %d", what, i), after[i])
	}
	s.equal(what+": G", after[1], g)
	if s.ref == nil {
		return
	}
	q := *p.Param
	q.Derived = nil
	for i, dst := range []*compute.Tensor{&q.W, &q.G, &q.M, &q.V, &q.MScale, &q.VScale} {
		*dst, _ = s.ref.Alloc("reference", compute.Wide, len(before[i]))
		s.ref.Upload(*dst, before[i])
	}
	s.ref.AdamW([]*compute.Param{&q}, a)
	s.checkNear(what+": W", after[0], download(t, s.ref, q.W), s.Tol, 0)
	for k, moment := range []struct {
		name          string
		by            *compute.Moments
		codes, scales compute.Tensor
		beta, power   float64
	}{{"M", compute.Signed, q.M, q.MScale, a.Beta1, 1},
		{"V", compute.Squares, q.V, q.VScale, a.Beta2, 2}} {
		codes, scales := download(t, s.ref, moment.codes), download(t, s.ref, moment.scales)
		// Of a moment's two terms, where they cancel, their rounding is left.
		terms, most := make([][2]float64, n), make([]float64, len(scales))
		for i := range terms {
			block := i / compute.MomentBlock
			old := moment.beta * float64(moment.by.Value[uint8(before[2+k][i])]) *
				float64(before[4+k][block])
			add := (1 - moment.beta) * math.Pow(float64(g[i])*a.GradScale, moment.power)
			terms[i] = [2]float64{old + add, 4e-7 * (math.Abs(old) + math.Abs(add))}
			most[block] = max(most[block], terms[i][1])
		}
		for i, want := range codes {
			block := i / compute.MomentBlock
			scale, got := float64(scales[block]), after[2+k][i]
			if x := float64(after[4+k][block]); math.Abs(x-scale) > most[block] {
				t.Fatalf("%s: %s: scale of block %d is %v, want %v", what, moment.name, block, x,
					scale)
			}
			if scale == 0 {
				continue
			}
			y := terms[i][0] / scale
			slack := (terms[i][1] + math.Abs(y)*most[block]) / scale
			if k == 1 && y > 1e-30 && moment.by.Value[uint8(got)] == 0 {
				t.Fatalf("%s: V[%d] of %d is %g of its scale, and has the code of zero", what, i, n,
					y)
			}
			if got == want {
				continue
			}
			mid := float64(moment.by.Mid[uint8(min(got, want))])
			if got-want != 1 && want-got != 1 || math.Abs(y-mid) > 1e-5*math.Abs(mid)+slack {
				t.Fatalf(
					"%s: code of %s[%d] of %d is %v, want %v: %g of its scale, between them is %g",
					what, moment.name, i, n, got, want, y, mid)
			}
		}
	}
}

// notFinite: numbers that are not finite leave other blocks as they are without them.
func (s *suite) notFinite() {
	const n = 3*compute.MomentBlock + 5
	w, g := s.normal(n), s.normal(n)
	var results [2][][]float32
	for i := range results {
		p := s.coded(w, 0)
		if i == 1 {
			for k, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32} {
				g[compute.MomentBlock+10*k] = float32(bad)
			}
		}
		s.dev.Upload(p.G, g)
		for step := 1; step <= 3; step++ {
			s.dev.AdamW([]*compute.Param{p.Param},
				compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradScale: 1,
					Step: step})
		}
		for _, x := range p.tensors() {
			results[i] = append(results[i], download(s.t, s.dev, x))
		}
		p.free(s)
	}
	for i, name := range []string{"W", "G", "M", "V", "MScale", "VScale"} {
		lo, hi := compute.MomentBlock, 2*compute.MomentBlock
		if i > 3 {
			lo, hi = 1, 2
		}
		got, want := results[1][i], results[0][i]
		s.equal(name+" before what is not finite", got[:lo], want[:lo])
		s.equal(name+" after what is not finite", got[hi:], want[hi:])
	}
}

// as: Wide and Narrow elements in memory of either class.
func (s *suite) as() {
	const n = 1000
	x := s.normal(n)
	for _, from := range []compute.Class{compute.Wide, compute.Narrow} {
		before, _ := s.dev.Memory()
		t := s.empty(from, n)
		with, _ := s.dev.Memory()
		for _, to := range []compute.Class{compute.Wide, compute.Narrow} {
			for _, off := range []int{0, 128} {
				view := s.dev.As(t.Slice(off, n), to, (n-off)/2)
				if view.Len() != (n-off)/2 {
					s.t.Fatalf("%v as %v: %d elements, want %d", from, to, view.Len(), (n-off)/2)
				}
				part, want := x[:view.Len()], slices.Clone(x[:view.Len()])
				if to == compute.Narrow {
					s.round(want)
				}
				s.dev.Upload(view, part)
				what := fmt.Sprintf("%v as %v from %d on", from, to, off)
				s.equal(what, download(s.t, s.dev, view), want)
				s.dev.Add(view, view)
				for i := range want {
					want[i] *= 2
				}
				s.equal(what+": twice", download(s.t, s.dev, view), want)
			}
		}
		if in, _ := s.dev.Memory(); in != with {
			s.t.Errorf("%v: %d bytes in use after As, %d before", from, in, with)
		}
		s.dev.Upload(t, x)
		want := slices.Clone(x)
		if from == compute.Narrow {
			s.round(want)
		}
		s.equal(fmt.Sprintf("%v after As", from), download(s.t, s.dev, t), want)
		func() {
			defer func() {
				if recover() == nil {
					s.t.Errorf("%v: As of more than fits does not panic", from)
				}
			}()
			s.dev.As(t, compute.Wide, n+1)
		}()
		s.dev.Free(t)
		if in, _ := s.dev.Memory(); in != before {
			s.t.Errorf("%v: %d bytes in use after Free, %d before", from, in, before)
		}
	}
}

// newOfClass returns a matrix of the values host in memory of class c.
func (s *suite) newOfClass(c compute.Class, host []float32, rows, cols int) *compute.Param {
	p := &compute.Param{Name: c.String(), Shape: []int{rows, cols}, Rows: rows, Cols: cols,
		W: s.put(c, host)}
	s.dev.Refresh(p)
	return p
}

// use is a result of an operation that reads a weight matrix.
type use struct {
	name string
	out  []float32
	rows int // of a product with the matrix's transpose; 0 of another operation
}

// uses returns the results of all operations that read a weight matrix w, and with grad those that
// write its gradient. Few takes half of the numbers of rows, other ones for each matrix. Arguments
// are a function of rng alone.
func (s *suite) uses(w *compute.Param, grad bool) (all []use) {
	O, I := w.Rows, w.Cols
	keep := func(name string, rows int, ts ...compute.Tensor) {
		for i, t := range ts {
			all = append(all, use{fmt.Sprintf("%s, result %d", name, i), download(s.t, s.dev, t),
				rows})
			s.dev.Free(t)
		}
	}
	narrow := func(n int) compute.Tensor { return s.narrow(s.normal(n)) }
	if grad {
		w.G = s.wide(s.normal(O * I))
	}
	rows := []int{1, 3, 40, 150}
	if s.Slow {
		rows = rows[:3]
	}
	for i, N := range rows {
		if s.Few && (i+bits.OnesCount(s.dev.compared))%2 > 0 {
			continue
		}
		rows := s.empty(compute.Wide, N*I)
		s.dev.Embed(rows, w, s.draws(N, O))
		keep(fmt.Sprintf("Embed N=%d", N), 0, rows)
		x, y, y1, y2 :=
			narrow(N*I), s.empty(compute.Narrow, N*O), s.empty(compute.Narrow, N*O),
			s.empty(compute.Narrow, N*O)
		s.dev.Linear(y, x, w, nil, false)
		s.dev.Linears([]compute.Projection{{Y: y1, W: w}, {Y: y2, W: w}}, x)
		keep(fmt.Sprintf("Linear N=%d", N), N, y, y1, y2)
		for _, acc := range []bool{false, true} {
			dx, dy := narrow(N*I), narrow(N*O)
			if grad {
				s.dev.LinearGrad(dx, w, nil, dy, x, acc)
			} else {
				s.dev.LinearGrad(dx, w, nil, dy, compute.Tensor{}, acc)
			}
			s.dev.Free(dy)
			keep(fmt.Sprintf("LinearGrad N=%d acc=%v", N, acc), 0, dx)
		}
		s.dev.Free(x)

		h, dh, dlogp := narrow(N*I), narrow(N*I), s.wide(s.normal(N+1))
		out := compute.HeadOut{LogpR: s.empty(compute.Wide, N+1), EntR: s.empty(compute.Wide, N+1),
			LseR: s.empty(compute.Wide, N+1)}
		which, targets := s.perm(N, N), s.draws(N+1, O)
		which = append(which, which[N-1])
		s.dev.LogProb(out, h, w, which, targets, 0.8)
		s.dev.LogProbGrad(dh, w, out, dlogp, compute.Tensor{}, h, which, targets, 0.8)
		keep(fmt.Sprintf("head N=%d", N), N+1, out.LogpR, out.EntR, out.LseR, dh)
		ids, logp, u := make([]int32, N), make([]float32, N), make([]float64, N)
		for i := range u {
			u[i] = s.rng.Float64()
		}
		s.dev.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1}, u)
		for _, id := range ids {
			logp = append(logp, float32(id))
		}
		all = append(all, use{fmt.Sprintf("Sample N=%d", N), logp, N})
		s.dev.Free(h)
		s.dev.Free(dlogp)
	}
	if grad {
		keep("G", 0, w.G)
		w.G = compute.Tensor{}
	}
	return all
}

// sameUses: two matrices give the same bits in all operations, but in products of few rows with
// quantised weights where the contract says that these have an order of their own.
func (s *suite) sameUses(what string, w, like *compute.Param, grad bool) {
	s.t.Helper()
	seed := s.rng.Uint64()
	s.dev.compared++
	s.seed(seed)
	got := s.uses(w, grad)
	s.seed(seed)
	for i, want := range s.uses(like, grad) {
		what := fmt.Sprintf("%s: [%d,%d] as %s and as %s: %s", what, w.Rows, w.Cols, w.Name,
			like.Name, want.name)
		if want.rows > 0 && want.rows <= s.QuantFew {
			s.checkNear(what, got[i].out, want.out, s.loose(), 1)
			continue
		}
		s.equal(what, got[i].out, want.out)
	}
}

// master: trained weights lose no bit, and compute what Wide ones do.
func (s *suite) master() {
	odd := []float32{0, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32,
		-3 * math.SmallestNonzeroFloat32, 1e-39, -1.17e-38,
		math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), 1 + 1.0/256,
		1 + 3.0/256, -1 - 1.0/256, 1 + 1.0/(1<<23), 3.3895314e38, -1e-30}
	for _, n := range []int{1, 16, 77, 10000} {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(s.rng.NormFloat64())
			if i%3 == 0 {
				x[i] = odd[i/3%len(odd)]
			}
		}
		t := s.put(compute.Master, x)
		s.equal("Upload and Download", download(s.t, s.dev, t), x)
		if n > 40 {
			s.equal("a view", download(s.t, s.dev, t.Slice(3, 38)), x[3:38])
			s.dev.Upload(t.Slice(5, 8), odd[2:5])
			s.equal("Upload to a view", download(s.t, s.dev, t.Slice(4, 9)),
				[]float32{x[4], odd[2], odd[3], odd[4], x[8]})
		}
		s.dev.Free(t)
	}
	for _, shape := range [][2]int{{1, 7}, {37, 19}, {130, 96}} {
		O, I := shape[0], shape[1]
		host := s.normal(O * I)
		for _, moments := range []compute.Class{compute.Wide, compute.Code} {
			master, wide :=
				s.newOfClass(compute.Master, host, O, I), s.newOfClass(compute.Wide, host, O, I)
			if O > 1 {
				s.sameUses("before a step", master, wide, true)
			}
			g := s.normal(O * I)
			for _, p := range []*compute.Param{master, wide} {
				p.Decay, p.G = true, s.wide(g)
				s.giveMoments(p, moments)
				for step := 1; step <= 3; step++ {
					s.dev.AdamW([]*compute.Param{p},
						compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1,
							GradScale: 1, Step: step})
				}
			}
			for i, name := range []string{"W", "M", "V"} {
				a, b :=
					[]compute.Tensor{master.W, master.M, master.V}[i],
					[]compute.Tensor{wide.W, wide.M, wide.V}[i]
				s.equal(fmt.Sprintf("%v after AdamW with %v moments: %s", shape, moments, name),
					download(s.t, s.dev, a), download(s.t, s.dev, b))
			}
			if O > 1 {
				s.sameUses("after steps", master, wide, true)
			}
		}
	}
}

// giveMoments gives p moments of zeros in memory of class c.
func (s *suite) giveMoments(p *compute.Param, c compute.Class) {
	n, host := p.Len(), c&compute.Host
	p.M, p.V = s.empty(c, n), s.empty(c, n)
	if c&^compute.Host == compute.Code {
		p.MScale, p.VScale =
			s.empty(compute.Wide|host, compute.Blocks(n)),
			s.empty(compute.Wide|host, compute.Blocks(n))
	}
}

// frozen: weights that are kept as products read them give the bits that Narrow ones give,
// however they came there and whatever they were used for before.
func (s *suite) frozen() {
	for _, shape := range s.shapes([2]int{2, 1}, [2]int{37, 19}, [2]int{64, 32}, [2]int{33, 64},
		[2]int{130, 96}, [2]int{1030, 8}) {
		O, I := shape[0], shape[1]
		host := s.normal(O * I)
		what := "first"
		frozen, narrow :=
			s.newOfClass(compute.Frozen, host, O, I), s.newOfClass(compute.Narrow, host, O, I)
		read := func() {
			s.t.Helper()
			want := download(s.t, s.dev, narrow.W)
			s.equal(what+": Download", download(s.t, s.dev, frozen.W), want)
			for _, part := range [][2]int{{0, 1}, {I / 2, I/2 + 1}, {1, O*I - 1}, {I, 2 * I},
				{O * I / 2, O * I / 2}, {O*I/3 + 1, O*I - I/2}} {
				lo, hi := part[0], max(part[0], part[1])
				s.equal(fmt.Sprintf("%s: Download of [%d:%d] of %v", what, lo, hi, shape),
					download(s.t, s.dev, frozen.W.Slice(lo, hi)), want[lo:hi])
				for _, class := range []compute.Class{compute.Wide, compute.Narrow} {
					if class == compute.Wide && s.NarrowTol > 0 {
						continue // another class than Frozen's values have
					}
					dst := s.empty(class, hi-lo)
					s.dev.Copy(dst, frozen.W.Slice(lo, hi))
					s.equal(fmt.Sprintf("%s: Copy of [%d:%d] of %v to %v", what, lo, hi, shape,
						class), download(s.t, s.dev, dst), want[lo:hi])
					s.dev.Free(dst)
				}
			}
		}
		read()
		s.sameUses(what, frozen, narrow, false)
		what = "after products"
		read()
		s.sameUses(what, frozen, narrow, false)

		// Some of it is written again, then all.
		what = "after Upload of a part"
		lo, hi := O*I/3, O*I/3+min(O*I/2, 2*I)
		for _, p := range []*compute.Param{frozen, narrow} {
			s.dev.Upload(p.W.Slice(lo, hi), host[:hi-lo])
			s.dev.Refresh(p)
		}
		read()
		s.sameUses(what, frozen, narrow, false)
		what = "after Upload"
		slices.Reverse(host)
		for _, p := range []*compute.Param{frozen, narrow} {
			s.dev.Upload(p.W, host)
			s.dev.Refresh(p)
		}
		s.sameUses(what, frozen, narrow, false)
		read()
		s.dev.Free(frozen.W)
		s.dev.Free(narrow.W)
	}
}

// host checks that moments in the host's memory equal moments in the device's.
func (s *suite) host() {
	for _, class := range []compute.Class{compute.Wide, compute.Code} {
		for _, n := range []int{0, 1, 300, 10000} {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(s.rng.IntN(256))
			}
			t := s.put(class|compute.Host, x)
			s.equal("Upload and Download", download(s.t, s.dev, t), x)
			if n > 10 {
				s.dev.Upload(t.Slice(2, 4), []float32{7, 9})
				s.equal("a view", download(s.t, s.dev, t.Slice(1, 5)), []float32{x[1], 7, 9, x[4]})
			}
			s.dev.Zero(t)
			s.equal("Zero", download(s.t, s.dev, t), make([]float32, n))
			s.dev.Free(t)
		}
		for _, n := range []int{5, 256, 20001} {
			w, g := s.normal(n), s.normal(n)
			var results [2][]float32
			for i, where := range []compute.Class{class, class | compute.Host} {
				p := s.newOfClass(compute.Wide, w, 1, n)
				p.G = s.wide(g)
				s.giveMoments(p, where)
				for step := 1; step <= 3; step++ {
					s.dev.AdamW([]*compute.Param{p},
						compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradScale: 1,
							Step: step})
				}
				ts := []compute.Tensor{p.W, p.M, p.V}
				if class == compute.Code {
					ts = append(ts, p.MScale, p.VScale)
				}
				for _, t := range ts {
					results[i] = append(results[i], download(s.t, s.dev, t)...)
					s.dev.Free(t)
				}
				s.dev.Free(p.G)
			}
			s.equal(fmt.Sprintf("%d steps of %v moments, on the host and not", n, class),
				results[1], results[0])
		}
	}
}
