package computetest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// ops has a test for each method of compute.Backend; nil is tested by that of another, or by Run.
var ops = map[string]func(s *suite){
	"Name": (*suite).name, "Alloc": (*suite).alloc, "Free": nil, "Memory": nil,
	"As": (*suite).as, "Available": (*suite).available,
	"Alone": (*suite).promise, "Joined": nil,
	"Element": (*suite).footprint, "DerivedBytes": nil, "Scratch": nil, "Overhead": nil,
	"Block":          nil,
	"DecodeMultiple": nil,
	"Upload":         (*suite).transfer, "Download": nil, "Sync": nil, "Close": nil,
	"Repeat": (*suite).repeat, "Zero": (*suite).zero, "Copy": (*suite).copy, "Add": (*suite).add,
	"Scale": (*suite).scale, "Refresh": (*suite).refresh,
	"Embed": (*suite).embed, "EmbedGrad": (*suite).embedGrad,
	"RMSNorm": (*suite).rmsNorm, "RMSNormGrad": (*suite).rmsNormGrad,
	"Linear": (*suite).linear, "LinearAdd": (*suite).linearAdd, "Linears": (*suite).linears,
	"LinearsGrad": (*suite).linearsGrad, "LinearGrad": (*suite).linearGrad,
	"Rope":      (*suite).rope,
	"Attention": (*suite).attention, "AttentionGrad": nil,
	"CacheWrite": (*suite).cacheWrite, "RopeCache": (*suite).ropeCache,
	"AttentionDecode": (*suite).attentionDecode,
	"GatedConv":       (*suite).gatedConv, "GatedConvGrad": (*suite).gatedConvGrad,
	"GatedConvDecode": (*suite).gatedConvDecode,
	"SiLUConv":        (*suite).siluConv, "SiLUConvGrad": (*suite).siluConvGrad,
	"GatedDelta": (*suite).gatedDelta, "GatedDeltaGrad": (*suite).gatedDeltaGrad, "DeltaState": nil,
	"Gated": (*suite).gated, "GatedGrad": (*suite).gatedGrad,
	"LogProb": (*suite).logProb, "LogProbGrad": (*suite).logProbGrad, "Sample": (*suite).sampling,
	"Score": (*suite).score, "ScoreGrad": (*suite).scoreGrad,
	"SumSquares": (*suite).sumSquares, "AdamW": (*suite).adamW,
}

// Run holds the backend that open starts to the contract. Its results for 1, 2, 3
// and 8 workers, or contract.Workers, have the same bits. It fails if a method of
// compute.Backend has no test.
func Run(t *testing.T, open Open, contract Contract) {
	names := manifest(t)
	var first *suite
	counts := []int{2, 1, 3, 8}
	if contract.Workers != nil {
		counts = contract.Workers
	}
	if testing.Short() || contract.Slow {
		counts = counts[:1]
	}
	for _, workers := range counts {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			dev, err := open(workers)
			if err != nil {
				t.Fatal(err)
			}
			s := &suite{dev: &device{Backend: dev}, Contract: contract}
			if first == nil {
				s.ref = ref.New()
			}
			run := func(name string, test func(s *suite)) {
				t.Run(name, func(t *testing.T) {
					h := fnv.New64a()
					h.Write([]byte(name)) // each has its own numbers, whatever the others draw
					s.t = t
					s.seed(h.Sum64())
					test(s)
					s.dev.sweep()
				})
			}
			for _, name := range names {
				if ops[name] != nil {
					run(name, ops[name])
				}
			}
			for i, more := range []map[string]func(s *suite){classes, columns, sizes} {
				// large: two counts will do, and the reference itself has no borders
				if i == 2 && (workers > 2 || contract.Small || dev.Name() == "ref") {
					continue
				}
				for _, name := range slices.Sorted(maps.Keys(more)) {
					run(name, more[name])
				}
			}
			s.t = t
			if err := dev.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if first == nil {
				first = s
				return
			}
			if (len(s.trace) != len(first.trace) && workers == 1 ||
				len(s.trace) > len(first.trace)) && !t.Failed() {
				t.Fatalf("%d results with %d workers, %d with 2", len(s.trace), workers,
					len(first.trace))
			}
			for i := range min(len(s.trace), len(first.trace)) {
				s.equal(fmt.Sprintf("%s: %d workers and 2", s.names[i], workers), s.trace[i],
					first.trace[i])
			}
		})
	}
}

// manifest lists the methods of the interface, in order; each must have a test.
func manifest(t *testing.T) []string {
	var names []string
	backend := reflect.TypeFor[compute.Backend]()
	for i := range backend.NumMethod() {
		name := backend.Method(i).Name
		if _, ok := ops[name]; !ok {
			t.Errorf("computetest: method %s of compute.Backend has no test: add one to ops", name)
		}
		names = append(names, name)
	}
	for name := range ops {
		if !slices.Contains(names, name) {
			t.Errorf("computetest: ops has a test for %s, which is no method of compute.Backend",
				name)
		}
	}
	return names
}

var widths = []int{1, 2, 3, 16, 33, 96, 130}

// counts returns numbers of rows to try.
func (s *suite) counts() []int {
	if s.Few {
		return []int{0, 2, 65}
	}
	return []int{0, 1, 2, 7, 64, 65}
}

// record keeps results for the comparison of worker counts.
func (s *suite) record(name string, x []float32) {
	s.trace, s.names = append(s.trace, x), append(s.names, name)
}

func (s *suite) name() {
	if s.dev.Name() == "" {
		s.t.Error("no name")
	}
}

func (s *suite) alloc() {
	before, _ := s.dev.Memory()
	x, err := s.dev.Alloc("x", compute.Wide, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	in, peak := s.dev.Memory()
	if in < before+4000 || peak < in {
		s.t.Errorf("1000 elements: %d bytes in use after %d, peak %d", in, before, peak)
	}
	s.equal("fresh memory", download(s.t, s.dev, x), make([]float32, 1000))
	s.dev.Free(x)
	after, peak2 := s.dev.Memory()
	if after != before || peak2 != peak {
		s.t.Errorf("after Free: %d bytes in use and peak %d, were %d and %d", after, peak2, before,
			peak)
	}
	for _, class := range []compute.Class{compute.Wide, compute.Narrow} {
		for _, n := range []int{0, 77} {
			y, err := s.dev.Alloc("fresh", class, n)
			if err != nil {
				s.t.Fatal(err)
			}
			s.equal("fresh memory", download(s.t, s.dev, y), make([]float32, n))
			s.dev.Free(y)
		}
	}
}

// available checks that the free memory falls by the size of an allocation, if it is known. Of the
// system's memory other programs take and give back gigabytes at any time: one of ten tries must
// show it.
func (s *suite) available() {
	var said string
	for range 10 {
		before := s.dev.Available()
		if before == 0 {
			return
		}
		x, err := s.dev.Alloc("large", compute.Wide, 1<<22)
		if err != nil {
			s.t.Fatal(err)
		}
		s.dev.Upload(x, make([]float32, 1<<22)) // so that the system sees it used
		after := s.dev.Available()
		s.dev.Free(x)
		if after >= 0 && before-after >= -1<<30 && before-after <= 1<<30 {
			return
		}
		said = fmt.Sprintf("%d bytes available, %d after 16 MiB were allocated", before, after)
	}
	s.t.Error(said)
}

// promise: a backend says of itself what its contract promises and its other tests show.
func (s *suite) promise() {
	if got := s.dev.Alone(); got != s.Contract.Alone {
		s.t.Errorf("Alone is %v, the contract says %v", got, s.Contract.Alone)
	}
	if got := s.dev.Joined(); got != s.Contract.Joined {
		s.t.Errorf("Joined is %v, the contract says %v", got, s.Contract.Joined)
	}
}

// footprint: what a plan counts is what Memory counts.
func (s *suite) footprint() {
	const rows, cols = 512, 512
	host := s.normal(rows * cols)
	count := func(what string, want int64, op func() []compute.Tensor) {
		s.t.Helper()
		before, _ := s.dev.Memory()
		ts := op()
		after, _ := s.dev.Memory()
		if got, slack := after-before, want/16; got < want-slack || got > want+slack {
			s.t.Errorf("%s: takes %d bytes, planned %d", what, got, want)
		}
		for _, t := range ts {
			s.dev.Free(t)
		}
	}
	for _, class := range append(
		[]compute.Class{compute.Wide, compute.Narrow, compute.Master, compute.Frozen},
		s.quantClasses()...) {
		for mode := 1; mode <= 4; mode++ {
			lookup, product, through := mode&1 > 0, mode != 1, mode == 4
			if through && class == compute.Narrow {
				continue // no gradient passes through what is written now and then
			}
			what := fmt.Sprintf("a %v matrix, looked up %v, multiplied %v, gradients through it %v",
				class, lookup, product, through)
			want := s.dev.Block(compute.Bytes(s.dev, class, rows*cols)) +
				s.dev.Block(s.dev.DerivedBytes(class, !product, rows, cols))
			use := func() []compute.Tensor {
				p := s.newOfClass(class, host, rows, cols)
				for range 2 {
					if lookup {
						y := s.empty(compute.Wide, cols)
						s.dev.Embed(y, p, []int32{1})
						s.dev.Free(y)
					}
					if product {
						x, y := s.empty(compute.Narrow, cols), s.empty(compute.Narrow, rows)
						s.dev.Linear(y, x, p, nil, false)
						if through {
							s.dev.LinearGrad(x, p, nil, y, compute.Tensor{}, false)
						}
						s.dev.Free(x)
						s.dev.Free(y)
					}
				}
				return []compute.Tensor{p.W}
			}
			s.dev.Free(use()[0]) // what operations keep is not the matrix's
			count(what, want, use)
		}
	}
	for _, class := range []compute.Class{compute.Code, compute.Wide | compute.Host,
		compute.Code | compute.Host} {
		count(fmt.Sprintf("%d elements %v", rows*cols, class),
			s.dev.Block(rows*cols*s.dev.Element(class)), func() []compute.Tensor {
				return []compute.Tensor{s.empty(class, rows*cols)}
			})
	}
	small := compute.Work{Tokens: 64, Rows: 64, Slots: 4, Positions: 64, Hidden: 32, Vocab: 100,
		Heads: 2, HeadDim: 16}
	large := compute.Work{Tokens: 4096, Rows: 4096, Slots: 256, Positions: 4096, Hidden: 896,
		Vocab: 151936, Heads: 14, HeadDim: 64, Trainable: true}
	if a, b := s.dev.Scratch(small), s.dev.Scratch(large); a < 0 || b < a {
		s.t.Errorf("scratch of %+v is %d bytes, of %+v %d", small, a, large, b)
	}
	for _, n := range []int64{0, 1, 512, 1 << 20, 5<<20 + 3, 1 << 40} {
		if got := s.dev.Block(n); got < n || got > n+4<<20 || s.dev.Block(got) != got {
			s.t.Errorf("a block of %d bytes takes %d, and one of that %d", n, got, s.dev.Block(got))
		}
	}
	if n := s.dev.DecodeMultiple(); n < 1 || n > 64 {
		s.t.Errorf("rows of generation in multiples of %d", n)
	}
	if n := s.dev.Overhead(); n < 0 {
		s.t.Errorf("overhead of %d bytes", n)
	}
}

func (s *suite) transfer() {
	for _, n := range []int{0, 1, 65, 10000} {
		x := s.normal(n)
		d, narrow := s.wide(x), s.narrow(x)
		s.equal("Upload and Download", download(s.t, s.dev, d), x)
		s.equal("Narrow: Upload and Download", download(s.t, s.dev, narrow),
			s.round(slices.Clone(x)))
		if n > 8 {
			s.equal("a view", download(s.t, s.dev, d.Slice(3, 8)), x[3:8])
			s.dev.Upload(d.Slice(5, 7), []float32{1, 2})
			s.equal("Upload to a view", download(s.t, s.dev, d.Slice(4, 8)),
				[]float32{x[4], 1, 2, x[7]})
			s.dev.Upload(narrow.Slice(5, 7), []float32{1, 2})
			s.equal("Narrow: Upload to a view", download(s.t, s.dev, narrow.Slice(4, 8)),
				s.round([]float32{x[4], 1, 2, x[7]}))
		}
		s.dev.Free(d)
	}
}

var lengths = []int{0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000, 20001}

func (s *suite) eachClass(test func(class compute.Class, n int)) {
	for _, class := range []compute.Class{compute.Wide, compute.Narrow} {
		for _, n := range lengths {
			test(class, n)
		}
	}
}

// repeat checks that the same sequence of operations on the same tensors, with other indices and
// now and then another length, gives the same results with Repeat as without.
func (s *suite) repeat() {
	const V, D, slots = 12, 16, 8
	table, w := s.weights(s.normal(V*D), V, D), s.weights(s.normal(D*D), D, D)
	norm := s.weights(s.normal(D), 1, D)
	a := compute.AttnShape{H: 2, K: 2, E: D / 2, Scale: 0.3}
	type memory struct{ x, h, o, rstd, k, v compute.Tensor }
	memories := [2]memory{}
	for i := range memories {
		n, w := compute.Narrow, compute.Wide
		memories[i] = memory{s.empty(w, 4*D), s.empty(n, 4*D), s.empty(n, 4*D), s.empty(w, 4),
			s.empty(n, slots*D), s.empty(n, slots*D)}
	}
	for step := range 12 {
		N := 4 - step/6
		ids, at := s.draws(N, V), s.perm(N, slots)
		pages := compute.Pages{PageTokens: 1}
		for range N {
			pages.Table, pages.Len =
				append(pages.Table, s.perm(1+step%slots, slots)),
				append(pages.Len, int32(1+step%slots))
		}
		var results [2][]float32
		for i, m := range memories {
			op := func() {
				x, h, o, rstd :=
					m.x.Slice(0, N*D), m.h.Slice(0, N*D), m.o.Slice(0, N*D), m.rstd.Slice(0, N)
				s.dev.Embed(x, table, ids)
				s.dev.RMSNorm(h, rstd, x, norm, 1e-6)
				s.dev.CacheWrite(m.k, h, D, at)
				s.dev.CacheWrite(m.v, h, D, at)
				s.dev.AttentionDecode(o, h, m.k, m.v, a, pages)
				s.dev.Linear(x, o, w, nil, true)
			}
			if i == 0 {
				op()
			} else {
				s.dev.Repeat(fmt.Sprintf("test %d", N), compute.Indices{}, op)
			}
			for _, x := range []compute.Tensor{m.x, m.k} {
				results[i] = append(results[i], download(s.t, s.dev, x)...)
			}
		}
		s.equal(fmt.Sprintf("repeated, step %d", step), results[1], results[0])
	}
}

func (s *suite) zero() {
	s.eachClass(func(class compute.Class, n int) {
		c := s.sample("%v n=%d", class, n)
		x := c.random("x", n).in(class)
		c.run(func(s *side) { s.b.Zero(s.t(x)) })
	})
}

func (s *suite) copy() {
	s.eachClass(func(class compute.Class, n int) {
		c := s.sample("%v n=%d", class, n)
		y, x := c.unset("y", n).in(class).exact(), c.random("x", n).in(class)
		c.run(func(s *side) { s.b.Copy(s.t(y), s.t(x)) })
	})
	for _, n := range lengths {
		c := s.sample("wide to narrow n=%d", n)
		x, y := c.random("x", n), c.unset("y", n)
		y.class = compute.Narrow
		c.run(func(s *side) { s.b.Copy(s.t(y), s.t(x)) })
		want := slices.Clone(x.data)
		if s.dev.Element(compute.Narrow) < s.dev.Element(compute.Wide) {
			s.round(want)
		}
		s.equal(c.name+": y", y.out, want)
	}
}

func (s *suite) add() {
	s.eachClass(func(class compute.Class, n int) {
		c := s.sample("%v n=%d", class, n)
		y, x := c.random("y", n).in(class), c.random("x", n).in(class)
		c.run(func(s *side) { s.b.Add(s.t(y), s.t(x)) })
	})
	for _, n := range lengths {
		c := s.sample("narrow to wide n=%d", n)
		y, x := c.random("y", n).exact(), c.random("x", n).narrow()
		c.run(func(s *side) { s.b.Add(s.t(y), s.t(x)) })
	}
}

func (s *suite) scale() {
	s.eachClass(func(class compute.Class, n int) {
		c := s.sample("%v n=%d", class, n)
		t := c.random("t", n).in(class)
		c.run(func(s *side) { s.b.Scale(s.t(t), 2.0/3) })
	})
}

// refresh checks that a product uses the weights uploaded last, of parameters without a gradient
// too.
func (s *suite) refresh() {
	const N, I, O = 5, 19, 37
	x := s.normal(N * I)
	one, two := s.normal(O*I), s.normal(O*I)
	xt, y, want := s.narrow(x), s.empty(compute.Narrow, N*O), s.empty(compute.Narrow, N*O)
	w := s.weights(one, O, I)
	s.dev.Linear(y, xt, w, nil, false)
	s.dev.Upload(w.W, two)
	s.dev.Refresh(w)
	s.dev.Linear(y, xt, w, nil, false)
	s.dev.Linear(want, xt, s.weights(two, O, I), nil, false)
	s.equal("product after Refresh", download(s.t, s.dev, y), download(s.t, s.dev, want))
	frozen := &compute.Param{Name: "frozen", Shape: []int{O, I}, Rows: O, Cols: I, W: s.narrow(two)}
	s.dev.Refresh(frozen)
	s.dev.Linear(y, xt, frozen, nil, false)
	s.equal("product with frozen, Narrow weights", download(s.t, s.dev, y),
		download(s.t, s.dev, want))
	dy, dx, dxWant :=
		s.wide(s.normal(N*O)), s.empty(compute.Narrow, N*I), s.empty(compute.Narrow, N*I)
	s.dev.LinearGrad(dx, frozen, nil, dy, compute.Tensor{}, false)
	s.dev.LinearGrad(dxWant, s.weights(two, O, I), nil, dy, xt, false)
	s.equal("gradient through frozen, Narrow weights", download(s.t, s.dev, dx),
		download(s.t, s.dev, dxWant))
	rows, frozenRows := s.empty(compute.Wide, 2*I), s.empty(compute.Wide, 2*I)
	s.dev.Embed(rows, w, []int32{3, O - 1})
	s.dev.Embed(frozenRows, frozen, []int32{3, O - 1})
	s.equal("rows of frozen, Narrow weights", download(s.t, s.dev, frozenRows),
		download(s.t, s.dev, rows))
}

func (s *suite) embed() {
	for _, N := range s.counts() {
		for _, D := range []int{1, 33, 96} {
			c := s.sample("N=%d D=%d", N, D)
			table, y, ids := c.param("w", 10, D, false), c.unset("y", N*D), s.draws(N, 10)
			c.run(func(s *side) { s.b.Embed(s.t(y), s.p(table), ids) })
		}
	}
}

func (s *suite) embedGrad() {
	for _, N := range s.counts() {
		for _, D := range []int{1, 33, 96, 130} {
			for _, grad := range []bool{true, false} {
				c := s.sample("N=%d D=%d grad=%v", N, D, grad)
				table, dy, ids := c.param("w", 10, D, grad), c.random("dy", N*D), s.draws(N, 10)
				c.run(func(s *side) { s.b.EmbedGrad(s.p(table), s.t(dy), ids) })
			}
		}
	}
}

func (s *suite) rmsNorm() {
	for _, D := range widths {
		for _, N := range s.counts() {
			for mode := range 4 {
				class, inPlace := compute.Class(mode&1), mode&2 > 0
				c := s.sample("%v N=%d D=%d in place=%v", class, N, D, inPlace)
				x, w, rstd :=
					c.random("x", N*D).in(class), c.param("w", 1, D, false),
					c.unset("rstd", N).exact()
				w.offset = float32(N % 2)
				y := x
				if !inPlace {
					y = c.unset("y", N*D).narrow()
				}
				c.run(func(s *side) { s.b.RMSNorm(s.t(y), s.t(rstd), s.t(x), s.p(w), 1e-6) })
			}
		}
		x, w := s.normal(65*D), s.weights(s.normal(D), 1, D)
		s.rowsAlone("RMSNorm", 65, []int{D}, []int{D, -1}, [][]float32{x}, true,
			func(in, out []compute.Tensor) {
				s.dev.RMSNorm(out[0], out[1], in[0], w, 1e-5)
			})
	}
}

// rowsAlone runs op for all N rows and for some rows by themselves: the same bits,
// always or where the contract promises it. in and out give the row widths of
// inputs and outputs, which are Narrow; a width of -1 is one Wide element.
func (s *suite) rowsAlone(name string, N int, in, out []int, data [][]float32, always bool,
	op func(in, out []compute.Tensor)) {
	s.t.Helper()
	width := func(w int) (int, compute.Class) {
		if w < 0 {
			return -w, compute.Wide
		}
		return w, compute.Narrow
	}
	do := func(lo, hi int) (results [][]float32) {
		var ins, outs []compute.Tensor
		for i, w := range in {
			w, class := width(w)
			ins = append(ins, s.put(class, data[i][lo*w:hi*w]))
		}
		for _, w := range out {
			w, class := width(w)
			outs = append(outs, s.empty(class, (hi-lo)*w))
		}
		op(ins, outs)
		for _, o := range outs {
			results = append(results, download(s.t, s.dev, o))
		}
		for _, x := range append(ins, outs...) {
			s.dev.Free(x)
		}
		return results
	}
	all := do(0, N)
	for i := range out {
		s.record(name, all[i])
	}
	for _, part := range [][2]int{{0, 1}, {1, 2}, {N - 1, N}, {N / 2, N/2 + 1}, {1, min(N, 4)},
		{2, min(N, 9)}, {0, N - 1}} {
		lo, hi := part[0], part[1]
		for i, part := range do(lo, hi) {
			w, _ := width(out[i])
			what, whole :=
				fmt.Sprintf("%s: output %d: rows %d to %d of %d by themselves", name, i, lo, hi-1,
					N), all[i][lo*w:hi*w]
			if always {
				s.equal(what, part, whole)
			} else {
				s.alone(what, part, whole)
			}
		}
	}
}

func (s *suite) rmsNormGrad() {
	for _, D := range widths {
		for _, N := range s.counts() {
			for mode := range 8 {
				class, mode := compute.Class(mode/4), mode%4
				acc, grad, inPlace := mode == 1, mode != 2, mode == 3
				if inPlace {
					class = compute.Narrow
				}
				c := s.sample("%v N=%d D=%d acc=%v grad=%v in place=%v", class, N, D, acc, grad,
					inPlace)
				// the gradient's two terms cancel, and w.G's N
				c.floor = max(1, math.Sqrt(float64(N))/2)
				if D == 1 {
					c.floor = 100 // and leave nothing, of terms as large as rstd
				}
				x, w := c.random("x", N*D).in(class), c.param("w", 1, D, grad)
				w.offset = float32(N % 2)
				dy, y, rstd :=
					c.random("dy", N*D).narrow(), c.unset("y", N*D).narrow(),
					c.unset("rstd", N).exact()
				dx := dy
				if !inPlace {
					dx = c.output("dx", N*D, acc).in(class)
				}
				if grad {
					w.g.exact()
				}
				if class == compute.Wide {
					dx.exact()
				}
				c.run(func(s *side) {
					s.b.RMSNorm(s.t(y), s.t(rstd), s.t(x), s.p(w), 1e-6)
					s.b.RMSNormGrad(s.t(dx), s.p(w), s.t(dy), s.t(x), s.t(rstd), acc)
				})
			}
		}
	}
}

// products returns (N, I, O) of matrix products: edges of tiles, and a product larger than every
// block of the kernels.
func (s *suite) products() (shapes [][3]int) {
	for _, N := range s.counts() {
		shapes = append(shapes, [3]int{N, 33, 65}, [3]int{N, 64, 3}, [3]int{N, 1, 32})
	}
	for O := 1; O <= 34; O += 3 {
		shapes = append(shapes, [3]int{O % 17, 5, O})
	}
	return append(shapes, [3]int{150, 1100, 70}, [3]int{300, 96, 256})
}

func (s *suite) linear() {
	for _, shape := range s.products() {
		N, I, O := shape[0], shape[1], shape[2]
		for mode := range 4 {
			acc, bias := mode&1 > 0, mode&2 > 0
			if N*I*O > 1e6 && mode != 3 {
				continue
			}
			c := s.sample("N=%d I=%d O=%d acc=%v bias=%v", N, I, O, acc, bias)
			x, w, y :=
				c.random("x", N*I).narrow(), c.param("w", O, I, false), c.output("y", N*O, acc)
			if acc {
				y.exact() // the residual stream
			} else {
				y.narrow()
			}
			var b *param
			if bias {
				b = c.param("b", 1, O, false)
			}
			c.run(func(s *side) { s.b.Linear(s.t(y), s.t(x), s.p(w), s.p(b), acc) })
		}
	}
	for _, shape := range [][2]int{{33, 65}, {700, 40}, {96, 128}} {
		I, O := shape[0], shape[1]
		x, w, b := s.normal(129*I), s.weights(s.normal(O*I), O, I), s.weights(s.normal(O), 1, O)
		s.rowsAlone("Linear", 129, []int{I}, []int{O}, [][]float32{x}, false,
			func(in, out []compute.Tensor) {
				s.dev.Linear(out[0], in[0], w, b, false)
			})
	}
}

// linearAdd has the same bits in place, and rounds to r's magnitude once: r is 2^14 here, the
// terms are multiples of 2^-12, and every sum of them is exact.
func (s *suite) linearAdd() {
	for _, shape := range s.products() {
		N, I, O := shape[0], shape[1], shape[2]
		c := s.sample("N=%d I=%d O=%d", N, I, O)
		x, w, r :=
			c.random("x", N*I).narrow(), c.param("w", O, I, false), c.random("r", N*O).exact()
		for i := range x.data {
			x.data[i] = float32(math.Round(float64(16*max(-4, min(x.data[i], 4))))) / 16
		}
		for i := range w.w.data {
			w.w.data[i] = float32(math.Round(float64(64*max(-1, min(w.w.data[i], 1))))) / 256
		}
		want := make([]float32, N*O)
		for i := range r.data {
			r.data[i] = 1<<14 + float32(math.Round(float64(64*r.data[i])))/64
			sum := 0.0
			for k := range I {
				sum += float64(x.data[i/O*I+k]) * float64(w.w.data[i%O*I+k])
			}
			want[i] = float32(float64(r.data[i]) + sum)
		}
		y, place := c.unset("y", N*O).exact(), c.unset("y in place", N*O).exact()
		c.run(func(s *side) {
			s.b.LinearAdd(s.t(y), s.t(r), s.t(x), s.p(w))
			s.b.Copy(s.t(place), s.t(r))
			s.b.LinearAdd(s.t(place), s.t(place), s.t(x), s.p(w))
		})
		s.equal(c.name+": y", y.out, want)
		s.equal(c.name+": y in place", place.out, want)
	}
}

// linears: several products of one input, as many as they are, have Linear's bits.
func (s *suite) linears() {
	for _, N := range []int{0, 1, 5, 32, 33, 200} {
		for _, outs := range [][]int{{40}, {128, 32, 32}, {97, 1}, {33, 64, 7, 130}} {
			I := 70
			c := s.sample("N=%d I=%d O=%v", N, I, outs)
			x := c.random("x", N*I).narrow()
			var ws, bs []*param
			var ys, alone []*value
			for i, O := range outs {
				ws = append(ws, c.param(fmt.Sprintf("w%d", i), O, I, false))
				bs = append(bs, nil)
				if i%2 == 0 {
					bs[i] = c.param(fmt.Sprintf("b%d", i), 1, O, false)
				}
				ys = append(ys, c.unset(fmt.Sprintf("y%d", i), N*O).narrow())
				alone = append(alone, c.unset(fmt.Sprintf("y%d by Linear", i), N*O).narrow())
			}
			c.run(func(s *side) {
				var ps []compute.Projection
				for i := range outs {
					ps = append(ps, compute.Projection{Y: s.t(ys[i]), W: s.p(ws[i]), B: s.p(bs[i])})
				}
				s.b.Linears(ps, s.t(x))
				for i := range outs {
					s.b.Linear(s.t(alone[i]), s.t(x), s.p(ws[i]), s.p(bs[i]), false)
				}
			})
			for i := range outs {
				s.equal(c.name+": "+ys[i].name, ys[i].out, alone[i].out)
			}
		}
	}
}

// linearsGrad: what LinearGrad leaves of one projection after the other, bit for bit.
func (s *suite) linearsGrad() {
	for _, N := range []int{0, 1, 33} {
		for _, outs := range [][]int{{40}, {128, 32, 32}, {97, 1}} {
			I := 70
			c := s.sample("N=%d I=%d O=%v", N, I, outs)
			x, dx, alone :=
				c.random("x", N*I).narrow(), c.unset("dx", N*I).narrow(),
				c.unset("dx by LinearGrad", N*I).narrow()
			var ws, bs, again, bAgain []*param
			var dys []*value
			for i, O := range outs {
				two := func(name string, rows, cols int) (a, b *param) {
					a = c.param(name, rows, cols, true)
					b = c.param(name+" by LinearGrad", rows, cols, true)
					copy(b.w.data, a.w.data)
					copy(b.g.data, a.g.data)
					a.g.exact()
					b.g.exact()
					return a, b
				}
				w, w2 := two(fmt.Sprintf("w%d", i), O, I)
				var b, b2 *param
				if i%2 == 0 {
					b, b2 = two(fmt.Sprintf("b%d", i), 1, O)
				}
				ws, again, bs, bAgain =
					append(ws, w), append(again, w2), append(bs, b), append(bAgain, b2)
				dys = append(dys, c.random(fmt.Sprintf("dy%d", i), N*O).narrow())
			}
			c.run(func(s *side) {
				var ps []compute.Projection
				for i := range outs {
					ps = append(ps, compute.Projection{Y: s.t(dys[i]), W: s.p(ws[i]),
						B: s.p(bs[i])})
				}
				s.b.LinearsGrad(s.t(dx), ps, s.t(x))
				for i := range outs {
					s.b.LinearGrad(s.t(alone), s.p(again[i]), s.p(bAgain[i]), s.t(dys[i]), s.t(x),
						i > 0)
				}
			})
			s.equal(c.name+": dx", dx.out, alone.out)
			for i := range outs {
				s.equal(c.name+": "+ws[i].g.name, ws[i].g.out, again[i].g.out)
				if bs[i] != nil {
					s.equal(c.name+": "+bs[i].g.name, bs[i].g.out, bAgain[i].g.out)
				}
			}
		}
	}
}

func (s *suite) linearGrad() {
	for _, shape := range s.products() {
		N, I, O := shape[0], shape[1], shape[2]
		for mode := range 7 {
			acc, dxAbsent, wFrozen, bias, bFrozen :=
				mode == 1, mode == 2, mode == 3, mode != 4, mode == 5
			if N*I*O > 1e6 && mode > 1 {
				continue
			}
			c := s.sample("N=%d I=%d O=%d mode %d", N, I, O, mode)
			x, w, dy :=
				c.random("x", N*I).narrow(), c.param("w", O, I, !wFrozen),
				c.random("dy", N*O).narrow()
			if mode&1 > 0 {
				// of the residual stream, with values that Narrow memory can hold
				dy.class = compute.Wide
			}
			var b *param
			if bias {
				b = c.param("b", 1, O, !bFrozen)
			}
			for _, p := range []*param{w, b} {
				if p != nil && p.g != nil {
					p.g.exact()
				}
			}
			var dx *value
			if !dxAbsent {
				dx = c.output("dx", N*I, acc).narrow()
			}
			if wFrozen || mode == 6 { // which leaves w.G as it is
				x = nil
			}
			c.run(func(s *side) { s.b.LinearGrad(s.t(dx), s.p(w), s.p(b), s.t(dy), s.t(x), acc) })
		}
	}
	const I, O = 33, 130
	dy, w := s.normal(129*O), s.weights(s.normal(O*I), O, I)
	s.rowsAlone("LinearGrad", 129, []int{O, I}, []int{I}, [][]float32{dy, s.normal(129 * I)}, false,
		func(in, out []compute.Tensor) {
			s.dev.LinearGrad(out[0], w, nil, in[0], in[1], false)
		})
}

func (s *suite) rope() {
	for _, N := range s.counts() {
		for _, shape := range [][2]int{{1, 2}, {3, 10}, {2, 64}, {5, 34}} {
			H, E := shape[0], shape[1]
			c := s.sample("N=%d H=%d E=%d", N, H, E)
			x, table, pos := c.random("x", N*H*E).narrow(), c.random("table", 20*E), s.draws(N, 20)
			c.run(func(s *side) { s.b.Rope(s.t(x), H, E, pos, s.t(table), false) })
			c.run(func(s *side) { s.b.Rope(s.t(x), H, E, pos, s.t(table), true) })
		}
	}
	// Turned forth and back is nearly unchanged, with a table of angles.
	const N, H, E = 9, 2, 8
	table := make([]float32, N*E)
	for p := range N {
		for e := range E / 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(1e4, -2*float64(e)/E))
			table[p*E+e], table[p*E+E/2+e] = float32(cos), float32(sin)
		}
	}
	x := s.normal(N * H * E)
	s.round(x)
	d, tab, pos := s.narrow(x), s.wide(table), s.perm(N, N)
	s.dev.Rope(d, H, E, pos, tab, false)
	s.dev.Rope(d, H, E, pos, tab, true)
	for i, got := range download(s.t, s.dev, d) {
		if math.Abs(float64(got-x[i])) > 8*s.loose()*(1+math.Abs(float64(x[i]))) {
			s.t.Fatalf("turned forth and back: [%d] is %v, was %v", i, got, x[i])
		}
	}
}

var packs = []compute.Pack{
	{Start: []int32{0}}, {Start: []int32{0, 1}}, {Start: []int32{0, 2}}, {Start: []int32{0, 7}},
	{Start: []int32{0, 1, 2, 9, 9, 12}}, {Start: []int32{0, 65}}, {Start: []int32{0, 40, 41, 105}},
	// Branches: of short, empty and long parents, longer than tiles of any backend.
	{Start: []int32{0, 2, 3}, Parent: []int32{-1, 0}},
	{Start: []int32{0, 3, 8, 8, 9, 16, 20, 25, 25, 27},
		Parent: []int32{-1, 0, 0, 0, -1, 4, 4, -1, 7}},
	{Start: []int32{0, 70, 205, 206, 239}, Parent: []int32{-1, 0, 0, 0}},
	// Branches of branches: a chain; siblings at each depth, and a sequence behind them; only
	// children and segments of no tokens as root, between and as leaf; longer than tiles.
	{Start: []int32{0, 2, 3, 5, 6}, Parent: []int32{-1, 0, 1, 2}},
	{Start: []int32{0, 3, 7, 8, 10, 15, 16, 19, 21, 26, 30},
		Parent: []int32{-1, 0, 1, 2, 2, 1, 0, 6, 6, -1}},
	{Start: []int32{0, 0, 5, 5, 7, 11, 11, 12, 14, 14},
		Parent: []int32{-1, 0, 1, 2, 3, 3, 1, 6, 0}},
	{Start: []int32{0, 37, 80, 101, 122, 125, 170, 240, 241, 292},
		Parent: []int32{-1, 0, 1, 2, 2, 1, 5, 0, 7}},
}

// attentions calls try with heads, their windows and packs; with Few it takes every fifth of them,
// with -short every ninth, and every 13th with a cap, on an emulated device every fifth. Each pack
// and each window stands among them.
func (s *suite) attentions(try func(a compute.AttnShape, p compute.Pack)) {
	n, every, everyCapped := 0, 1, 5
	if s.Few {
		every = 5
		if testing.Short() {
			every = 9
		}
	}
	for i, a := range heads {
		turn := 0
		if s.Few && !s.Slow { // of one window not the same packs for all heads
			turn, everyCapped = i+3, 13
		}
		a.Scale = 1 / math.Sqrt(float64(a.E))
		for _, a.Window = range s.windows(a) {
			for _, p := range packs {
				if n++; (n+turn)%every == 0 && !s.long(a, p) {
					try(a, p)
				}
				for _, limit := range caps[1:] {
					if (n+turn)%everyCapped == 0 {
						capped := a
						capped.Cap = limit
						try(capped, p)
					}
				}
			}
		}
	}
}

// caps are soft caps to try: none, and one that most scores and logits feel.
var caps = []float64{0, 0.9}

// long reports whether a pack takes an emulated device too long with these heads: tiles are only
// of wide ones.
func (s *suite) long(a compute.AttnShape, p compute.Pack) bool {
	return s.Slow && p.Start[p.Segments()] > 250 && (a.E < 64 || a.Window > 0)
}

// visibleRows returns the rows of the sequence that ends with segment n: all rows that its last
// token sees, by a walk that reads nothing of Pack but its two fields.
func visibleRows(p compute.Pack, n int) (rows []int) {
	for ; n >= 0; n = int(p.Parent[n]) {
		var own []int
		for i := p.Start[n]; i < p.Start[n+1]; i++ {
			own = append(own, int(i))
		}
		rows = append(own, rows...)
		if p.Parent == nil {
			break
		}
	}
	return rows
}

// pick is rows of x, of so many elements each.
func pick(x []float32, rows []int, width int) (out []float32) {
	for _, r := range rows {
		out = append(out, x[r*width:(r+1)*width]...)
	}
	return out
}

var heads = []compute.AttnShape{
	{H: 1, K: 1, E: 2}, {H: 2, K: 1, E: 16}, {H: 4, K: 2, E: 33}, {H: 3, K: 3, E: 32},
	{H: 7, K: 1, E: 8}, {H: 8, K: 2, E: 64}, {H: 2, K: 1, E: 128},
}

// windows returns lengths of a window to try: none, one token, less than a tile, more than one, and
// more than most packs have, which has no effect.
func (s *suite) windows(a compute.AttnShape) []int {
	switch {
	case a.E == 8 && s.Slow:
		return []int{0, 6, 40}
	case a.E == 64 && s.Slow:
		return []int{0, 40}
	case a.E == 8 || a.E == 64 || a.E == 128 && !s.Slow:
		return []int{0, 1, 6, 40, 100}
	}
	return []int{0}
}

func (s *suite) attention() {
	s.attentions(s.attentionOf)
	// Large scores neither overflow nor lose the largest.
	a := compute.AttnShape{H: 1, K: 1, E: 4, Scale: 0.5}
	c := s.sample("large scores")
	q, k, v := c.random("q", 40).narrow(), c.random("k", 40).narrow(), c.random("v", 40).narrow()
	for i := range q.data {
		q.data[i] *= 64
	}
	o, lse := c.unset("o", 40).narrow(), c.unset("lse", 10).exact()
	c.run(func(s *side) {
		s.b.Attention(s.t(o), s.t(lse), s.t(q), s.t(k), s.t(v), a,
			compute.Pack{Start: []int32{0, 10}})
	})
}

// attentionOf tests Attention and AttentionGrad.
func (s *suite) attentionOf(a compute.AttnShape, p compute.Pack) {
	c := s.sample("H=%d K=%d E=%d window=%d cap=%g pack=%v", a.H, a.K, a.E, a.Window, a.Cap, p)
	// of one key, the gradients of q and k are 0: the difference of two sums over E,
	// for k of each query head that reads it
	q, k, v, o, lse := c.attention(a, p, max(1, math.Sqrt(float64(a.E*a.H/a.K))/4))
	if p.Segments() < 2 {
		return
	}
	// Each sequence by itself, its beginning included: the same bits.
	for n := range p.Segments() {
		rows := visibleRows(p, n)
		part := func(v *value, width int) compute.Tensor {
			return s.narrow(
				pick(v.data, rows, width))
		}
		os, ls := s.empty(compute.Narrow, len(rows)*a.H*a.E), s.empty(compute.Wide, len(rows)*a.H)
		s.dev.Attention(os, ls, part(q, a.H*a.E), part(k, a.K*a.E), part(v, a.K*a.E), a,
			compute.Pack{Start: []int32{0, int32(len(rows))}})
		what := fmt.Sprintf("%s: segment %d by itself", c.name, n)
		s.equal(what+": o", download(s.t, s.dev, os), pick(o.out, rows, a.H*a.E))
		s.equal(what+": lse", download(s.t, s.dev, ls), pick(lse.out, rows, a.H))
	}
	s.dev.sweep()
}

// attention runs Attention and AttentionGrad on random tensors of p. The gradients have the floor.
func (c *sample) attention(a compute.AttnShape, p compute.Pack,
	floor float64) (q, k, v, o, lse *value) {
	N := int(p.Start[p.Segments()])
	q, k, v =
		c.random("q", N*a.H*a.E).narrow(), c.random("k", N*a.K*a.E).narrow(),
		c.random("v", N*a.K*a.E).narrow()
	o, lse = c.unset("o", N*a.H*a.E).narrow(), c.unset("lse", N*a.H).exact()
	do := c.random("do", N*a.H*a.E).narrow()
	dq, dk, dv :=
		c.unset("dq", N*a.H*a.E).narrow(), c.unset("dk", N*a.K*a.E).narrow(),
		c.unset("dv", N*a.K*a.E).narrow()
	dq.floor, dk.floor, dv.floor = floor, floor, floor
	c.run(func(s *side) {
		s.b.Attention(s.t(o), s.t(lse), s.t(q), s.t(k), s.t(v), a, p)
		s.b.AttentionGrad(s.t(dq), s.t(dk), s.t(dv), s.t(do), s.t(o), s.t(lse), s.t(q), s.t(k),
			s.t(v), a, p)
	})
	return q, k, v, o, lse
}

func (s *suite) cacheWrite() {
	for _, N := range []int{0, 1, 7, 20} {
		for _, W := range []int{1, 33, 64} {
			c := s.sample("N=%d W=%d", N, W)
			cache, x, slots :=
				c.random("cache", 20*W).narrow(), c.random("x", N*W).narrow(), s.perm(N, 20)
			c.run(func(s *side) { s.b.CacheWrite(s.t(cache), s.t(x), W, slots) })
		}
	}
}

// ropeCache: what Rope and CacheWrite leave, bit for bit.
func (s *suite) ropeCache() {
	for _, N := range []int{0, 1, 7, 20, 65} {
		for _, a := range []compute.AttnShape{{H: 1, K: 1, E: 2}, {H: 3, K: 1, E: 10},
			{H: 4, K: 2, E: 64}, {H: 5, K: 5, E: 34}, {H: 7, K: 1, E: 128}} {
			const slots, P = 70, 30
			W := a.K * a.E
			c := s.sample("N=%d H=%d K=%d E=%d", N, a.H, a.K, a.E)
			q, k, v, table :=
				c.random("q", N*a.H*a.E).narrow(), c.random("k", N*W).narrow(),
				c.random("v", N*W).narrow(), c.random("table", P*a.E)
			kc, vc :=
				c.random("key cache", slots*W).narrow(), c.random("value cache", slots*W).narrow()
			pos, at := s.draws(N, P), s.perm(N, slots)
			again := *c // the same, by Rope and CacheWrite
			c.run(
				func(s *side) {
					s.b.RopeCache(s.t(q), s.t(k), s.t(v), s.t(kc), s.t(vc), a, pos,
						s.t(table), at)
				})
			got := map[*value][]float32{q: q.out, kc: kc.out, vc: vc.out}
			again.run(func(s *side) {
				s.b.Rope(s.t(q), a.H, a.E, pos, s.t(table), false)
				s.b.Rope(s.t(k), a.K, a.E, pos, s.t(table), false)
				s.b.CacheWrite(s.t(kc), s.t(k), W, at)
				s.b.CacheWrite(s.t(vc), s.t(v), W, at)
			})
			for v, out := range got {
				s.equal(c.name+": "+v.name+" of Rope and CacheWrite", out, v.out)
			}
		}
	}
}

// attentionDecode: sequences that share a prompt, and its pages, give the bits
// that Attention gives when each is a sequence of a pack.
func (s *suite) attentionDecode() {
	n := 0
	for _, a := range heads {
		a.Scale = 1 / math.Sqrt(float64(a.E))
		for _, a.Window = range s.windows(a) {
			for i, P := range []int{1, 5, 16, 32} {
				if s.Few && i != n%4 {
					continue
				}
				for _, a.Cap = range caps {
					s.decodeOf(a, P)
				}
				a.Cap = 0
			}
			n++
		}
	}
	a := compute.AttnShape{H: 6, K: 2, E: 10, Scale: 0.3}
	for _, a.Window = range []int{0, 1, 5, 9} {
		c := s.sample("against the reference, window=%d", a.Window)
		q, o, k, v :=
			c.random("q", 3*60).narrow(), c.unset("o", 3*60).narrow(),
			c.random("k", 12*4*20).narrow(), c.random("v", 12*4*20).narrow()
		pages := compute.Pages{PageTokens: 4, Table: [][]int32{{3, 0}, {3, 5, 11, 7}, {1}},
			Len: []int32{7, 13, 1}}
		c.run(func(s *side) { s.b.AttentionDecode(s.t(o), s.t(q), s.t(k), s.t(v), a, pages) })
	}
}

func (s *suite) decodeOf(a compute.AttnShape, P int) {
	QW, KW := a.H*a.E, a.K*a.E
	shared := 2 * P // prompt tokens
	ends := []int{shared + 1, shared + P, shared + 2*P + 1, shared + 50}
	start := []int32{0}
	var q, k, v []float32
	promptQ, promptK, promptV := s.normal(shared*QW), s.normal(shared*KW), s.normal(shared*KW)
	for _, n := range ends {
		q = append(append(q, promptQ...), s.normal((n-shared)*QW)...)
		k = append(append(k, promptK...), s.normal((n-shared)*KW)...)
		v = append(append(v, promptV...), s.normal((n-shared)*KW)...)
		start = append(start, start[len(start)-1]+int32(n))
	}
	N := int(start[len(start)-1])
	o, lse := s.empty(compute.Narrow, N*QW), s.empty(compute.Wide, N*a.H)
	kt, vt := s.narrow(k), s.narrow(v)
	s.dev.Attention(o, lse, s.narrow(q), kt, vt, a, compute.Pack{Start: start})
	all := download(s.t, s.dev, o)

	// Pages in a scrambled order; what no row wrote is NaN.
	pages := compute.Pages{PageTokens: P}
	var free []int32
	total := 2
	for _, n := range ends {
		total += (n-shared+P-1)/P + 1
	}
	free = s.perm(total, total)
	prompt := free[:2]
	free = free[2:]
	var slots []int32
	for _, n := range ends {
		own := (n - shared + P - 1) / P
		table := append(slices.Clone(prompt), free[:own]...)
		free = free[own:]
		pages.Table, pages.Len = append(pages.Table, table), append(pages.Len, int32(n))
		for j := range n {
			slots = append(slots, table[j/P]*int32(P)+int32(j%P))
		}
	}
	nan := make([]float32, total*P*KW)
	for i := range nan {
		nan[i] = float32(math.NaN())
	}
	kc, vc := s.narrow(nan), s.narrow(nan)
	// Sequence by sequence: they write the prompt's slots with equal values.
	for i := range ends {
		lo, hi := int(start[i]), int(start[i+1])
		s.dev.CacheWrite(kc, kt.Slice(lo*KW, hi*KW), KW, slots[lo:hi])
		s.dev.CacheWrite(vc, vt.Slice(lo*KW, hi*KW), KW, slots[lo:hi])
	}
	for _, back := range []int{0, 1} { // the last query, and the one before
		var last, want []float32
		for i, n := range ends {
			at := int(start[i]) + n - 1 - back
			last = append(last, q[at*QW:(at+1)*QW]...)
			want = append(want, all[at*QW:(at+1)*QW]...)
			pages.Len[i] = int32(n - back)
		}
		qr, or := s.narrow(last), s.empty(compute.Narrow, len(last))
		s.dev.AttentionDecode(or, qr, kc, vc, a, pages)
		got := download(s.t, s.dev, or)
		s.alone(fmt.Sprintf("H=%d K=%d E=%d window=%d page=%d back=%d: decode and attention", a.H,
			a.K, a.E, a.Window, P, back), got, want)
		s.record("decode", got)
		one := s.empty(compute.Narrow, QW)
		s.dev.AttentionDecode(one, qr.Slice(2*QW, 3*QW), kc, vc, a,
			compute.Pages{PageTokens: P, Table: pages.Table[2:3], Len: pages.Len[2:3]})
		s.equal("a row by itself", download(s.t, s.dev, one), got[2*QW:3*QW])
	}
	s.dev.sweep()
}

// activations are those of gated linear units, in float64.
var activations = map[compute.Activation]func(x float64) float64{
	compute.SiLU: func(x float64) float64 { return x / (1 + math.Exp(-x)) },
	compute.GELUTanh: func(x float64) float64 { // not by tanh, which is -1 too soon
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	},
	compute.Sigmoid: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
}

func (s *suite) gated() {
	for _, act := range slices.Sorted(maps.Keys(activations)) {
		s.gatedBy(act, activations[act])
	}
}

// gatedBy tests the gated linear unit of an activation f.
func (s *suite) gatedBy(act compute.Activation, f func(x float64) float64) {
	for _, n := range lengths {
		c := s.sample("%s n=%d", act.Unit(), n)
		gate, up, y :=
			c.random("gate", n).narrow(), c.random("up", n).narrow(), c.unset("y", n).narrow()
		c.run(func(s *side) { s.b.Gated(act, s.t(y), s.t(gate), s.t(up)) })
	}
	extreme := []float32{0, -0.5, 10, -10, 40, -40, 87, -87, 88.5, -88.5, 100, -100, 1e4, -1e4,
		1e-20, 3}
	c := s.sample("%s extreme gates", act.Unit())
	gate, up, y :=
		c.value("gate", extreme).narrow(), c.random("up", 16).narrow(), c.unset("y", 16).narrow()
	c.run(func(s *side) { s.b.Gated(act, s.t(y), s.t(gate), s.t(up)) })
	for i, x := range y.out {
		want := f(float64(extreme[i])) * float64(up.data[i])
		if math.Abs(float64(x)-want) > s.loose()*math.Abs(want)+1e-36 {
			s.t.Errorf("%s gate %v: %v, want %v", act.Unit(), extreme[i], x, want)
		}
	}
	s.rowsAlone(act.Unit(), 33, []int{33, 33}, []int{33},
		[][]float32{s.normal(33 * 33), s.normal(33 * 33)}, true, func(in, out []compute.Tensor) {
			s.dev.Gated(act, out[0], in[0], in[1])
		})
}

func (s *suite) gatedGrad() {
	for _, act := range slices.Sorted(maps.Keys(activations)) {
		s.gatedGradBy(act)
	}
}

func (s *suite) gatedGradBy(act compute.Activation) {
	for _, n := range lengths {
		for _, inPlace := range []bool{false, true} {
			c := s.sample("%s n=%d in place=%v", act.Unit(), n, inPlace)
			gate, up, dy, dup :=
				c.random("gate", n).narrow(), c.random("up", n).narrow(),
				c.random("dy", n).narrow(), c.unset("dup", n).narrow()
			dgate := dy
			if !inPlace {
				dgate = c.unset("dgate", n).narrow()
			}
			c.run(
				func(s *side) {
					s.b.GatedGrad(act, compute.Tensor{}, s.t(dgate), s.t(dup), s.t(dy),
						s.t(gate), s.t(up))
				})
			// With the output again, which has its bits, the gradient keeps its own.
			y, alone := c.unset("y", n).narrow(), c.unset("y by itself", n).narrow()
			dgateOut, dupOut := dgate.out, dup.out
			c.run(func(s *side) {
				s.b.GatedGrad(act, s.t(y), s.t(dgate), s.t(dup), s.t(dy), s.t(gate), s.t(up))
				s.b.Gated(act, s.t(alone), s.t(gate), s.t(up))
			})
			s.equal(c.name+": y again", y.out, alone.out)
			s.equal(c.name+": dgate beside y", dgate.out, dgateOut)
			s.equal(c.name+": dup beside y", dup.out, dupOut)
		}
	}
}

// headShapes are (N, R, D, V) of the language-model head.
var headShapes = [][4]int{{1, 0, 3, 5}, {1, 1, 1, 1}, {7, 7, 33, 64}, {65, 64, 16, 777},
	{20, 9, 10, 2500}, {540, 530, 8, 1030}}

func (s *suite) logProb() {
	for i, shape := range headShapes {
		N, R, D, V := shape[0], shape[1], shape[2], shape[3]
		c := s.sample("N=%d R=%d D=%d V=%d", N, R, D, V)
		h, w := c.random("h", N*D).narrow(), c.param("w", V, D, false)
		w.limit = caps[i%len(caps)]
		rows, targets, inv := s.perm(R, N), s.draws(R, V), 1/0.7
		logp, ent, lse :=
			c.unset("logp", R).exact(), c.unset("ent", R).exact(), c.unset("lse", R).exact()
		c.run(func(s *side) {
			s.b.LogProb(compute.HeadOut{LogpR: s.t(logp), EntR: s.t(ent), LseR: s.t(lse)}, s.t(h),
				s.p(w), rows, targets, inv)
		})
		// Rows by themselves: the same bits.
		wd, hd := s.weights(w.w.data, V, D), s.narrow(h.data)
		wd.Cap = w.limit
		for _, r := range []int{0, R / 2, R - 1} {
			if R == 0 {
				break
			}
			one := compute.HeadOut{LogpR: s.empty(compute.Wide, 1), EntR: s.empty(compute.Wide, 1),
				LseR: s.empty(compute.Wide, 1)}
			s.dev.LogProb(one, hd, wd, rows[r:r+1], targets[r:r+1], inv)
			for i, x := range []compute.Tensor{one.LogpR, one.EntR, one.LseR} {
				s.alone(fmt.Sprintf("%s: row %d by itself, output %d", c.name, r, i),
					download(s.t, s.dev, x), [][]float32{logp.out, ent.out, lse.out}[i][r:r+1])
			}
		}
		// Probabilities of all targets sum to 1.
		if V > 64 || R == 0 {
			continue
		}
		sum := 0.0
		for v := range V {
			one := compute.HeadOut{LogpR: s.empty(compute.Wide, 1), EntR: s.empty(compute.Wide, 1),
				LseR: s.empty(compute.Wide, 1)}
			s.dev.LogProb(one, hd, wd, rows[:1], []int32{int32(v)}, inv)
			sum += math.Exp(float64(download(s.t, s.dev, one.LogpR)[0]))
		}
		if math.Abs(sum-1) > 4*s.Tol {
			s.t.Errorf("%s: the probabilities of all tokens sum to %v", c.name, sum)
		}
	}
}

func (s *suite) logProbGrad() {
	for i, shape := range headShapes {
		N, R, D, V := shape[0], shape[1], shape[2], shape[3]
		for mode := range 4 {
			withEnt, withDh, grad := mode != 1, mode != 2, mode != 3
			if V > 1000 && (mode > 1 || s.Few && mode != i%2) {
				continue
			}
			c := s.sample("N=%d R=%d D=%d V=%d dent=%v dh=%v G=%v", N, R, D, V, withEnt, withDh,
				grad)
			c.factor = 4 // from LogProb's rounded lse, through exp
			h, w, dlogp :=
				c.random("h", N*D).narrow(), c.param("w", V, D, grad), c.random("dlogp", R)
			w.limit = caps[(mode+V)%len(caps)]
			rows, targets, inv := s.perm(R, N), s.draws(R, V), 1/0.7
			logp, ent, lse := c.unset("logp", R), c.unset("ent", R), c.unset("lse", R)
			var dent, dh *value
			if withEnt {
				dent = c.random("dent", R)
			}
			if withDh {
				dh = c.random("dh", N*D).narrow()
			}
			c.run(func(s *side) {
				out := compute.HeadOut{LogpR: s.t(logp), EntR: s.t(ent), LseR: s.t(lse)}
				s.b.LogProb(out, s.t(h), s.p(w), rows, targets, inv)
				s.b.LogProbGrad(s.t(dh), s.p(w), out, s.t(dlogp), s.t(dent), s.t(h), rows, targets,
					inv)
			})
		}
	}
	// Rows from which several tokens are predicted, within a backend's block and across two.
	for _, shape := range [][4]int{{9, 14, 16, 50}, {540, 600, 16, 33}} {
		N, R, D, V := shape[0], shape[1], shape[2], shape[3]
		c := s.sample("equal rows: N=%d R=%d D=%d V=%d", N, R, D, V)
		c.factor = 4
		h, w, dlogp, dent :=
			c.random("h", N*D).narrow(), c.param("w", V, D, true), c.random("dlogp", R),
			c.random("dent", R)
		dh := c.random("dh", N*D).narrow()
		logp, ent, lse := c.unset("logp", R), c.unset("ent", R), c.unset("lse", R)
		rows := s.perm(N, N)
		// These rows stand several times. What is inserted before a group moves it: by 20 here.
		for _, i := range []int{N - 1, min(N-1, 480), 2} {
			rows = slices.Insert(rows, i, slices.Repeat(rows[i:i+1], min(20, (R-N+2)/3))...)
		}
		rows = rows[:min(R, len(rows))]
		if len(rows) > 512 && rows[511] != rows[512] {
			s.t.Fatalf("%s: no group of equal rows lies across the border of 512 rows, which is what this case is for", c.name)
		}
		targets := s.draws(len(rows), V)
		part := func(t compute.Tensor) compute.Tensor { return t.Slice(0, len(rows)) }
		c.run(func(s *side) {
			out := compute.HeadOut{LogpR: part(s.t(logp)), EntR: part(s.t(ent)),
				LseR: part(s.t(lse))}
			s.b.LogProb(out, s.t(h), s.p(w), rows, targets, 1.25)
			s.b.LogProbGrad(s.t(dh), s.p(w), out, part(s.t(dlogp)), part(s.t(dent)), s.t(h), rows,
				targets, 1.25)
		})
	}
}

func (s *suite) score() {
	for _, N := range s.counts()[1:] {
		for _, D := range widths {
			c := s.sample("N=%d D=%d", N, D)
			h, w, rows := c.random("h", N*D).narrow(), c.param("w", 1, D, false), s.perm((N+1)/2, N)
			out := c.unset("s", len(rows)).exact()
			c.run(func(s *side) { s.b.Score(s.t(out), s.t(h), s.p(w), rows) })
			c = s.sample("N=%d D=%d again", N, D) // one row by itself
			hd, wd, one := s.narrow(h.data), s.weights(w.w.data, 1, D), s.empty(compute.Wide, 1)
			s.dev.Score(one, hd, wd, rows[len(rows)-1:])
			s.equal(c.name+": a row by itself", download(s.t, s.dev, one), out.out[len(rows)-1:])
		}
	}
}

func (s *suite) scoreGrad() {
	for _, N := range s.counts()[1:] {
		for _, D := range widths {
			for mode := range 3 {
				c := s.sample("N=%d D=%d mode %d", N, D, mode)
				c.floor = math.Sqrt(float64(N)) / 2 // w.G's terms cancel
				h, w, rows :=
					c.random("h", N*D).narrow(), c.param("w", 1, D, mode != 1), s.perm((N+1)/2, N)
				ds := c.random("ds", len(rows))
				var dh *value
				if mode != 2 {
					dh = c.random("dh", N*D).narrow()
				}
				if mode != 1 {
					w.g.exact()
				}
				c.run(func(s *side) { s.b.ScoreGrad(s.t(dh), s.p(w), s.t(ds), s.t(h), rows) })
			}
		}
	}
}

func (s *suite) sumSquares() {
	want := 0.0
	var ts []compute.Tensor
	for i, n := range lengths {
		x := s.normal(n)
		for _, v := range x {
			want += float64(v) * float64(v)
		}
		// Off the block's beginning, between guards.
		block := s.wide(append(append(slices.Repeat([]float32{guard}, i), x...), guard))
		ts = append(ts, block.Slice(i, i+n))
	}
	got := s.dev.SumSquares(ts)
	if math.Abs(got-want) > 1e-9*want {
		s.t.Errorf("sum of squares %v, want %v", got, want)
	}
	if again := s.dev.SumSquares(ts); again != got {
		s.t.Errorf("a second time: %v, was %v", again, got)
	}
	if none := s.dev.SumSquares(nil); none != 0 {
		s.t.Errorf("of nothing: %v", none)
	}
	s.record("SumSquares", []float32{math.Float32frombits(uint32(math.Float64bits(got) >> 32)),
		math.Float32frombits(uint32(math.Float64bits(got)))})
}

func (s *suite) adamW() {
	for _, shape := range [][2]int{{1, 1}, {1, 7}, {1, 33}, {65, 33}, {100, 130}} {
		for _, decay := range []bool{false, true} {
			c := s.sample("%v decay=%v", shape, decay)
			w := c.param("w", shape[0], shape[1], true)
			n := shape[0] * shape[1]
			w.decay, w.m, w.v =
				decay, c.value("w.M", make([]float32, n)).exact(),
				c.value("w.V", make([]float32, n)).exact()
			w.w.exact()
			I := shape[1]
			x, y := c.random("x", 3*I).narrow(), c.unset("y", 3*shape[0]).narrow()
			c.run(func(s *side) {
				// so that there is something to refresh
				s.b.Linear(s.t(y), s.t(x), s.p(w), nil, false)
				s.b.AdamW(nil, compute.AdamW{LR: 1, GradScale: 1, Step: 1}) // of nothing
				for step := 1; step <= 3; step++ {
					s.b.AdamW([]*compute.Param{s.p(w)},
						compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1,
							GradScale: 0.3, Step: step})
				}
				s.b.Linear(s.t(y), s.t(x), s.p(w), nil, false)
			})
			// A decay too small for 1 - LR*Decay in float32 still has its effect.
			if decay && n > 1000 {
				c := s.sample("small decay")
				w := c.param("w", shape[0], shape[1], false)
				w.g, w.decay = c.value("w.G", make([]float32, n)), true
				w.m, w.v = c.value("w.M", make([]float32, n)), c.value("w.V", make([]float32, n))
				c.run(func(s *side) {
					s.b.AdamW([]*compute.Param{s.p(w)},
						compute.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.01,
							GradScale: 1, Step: 1})
				})
				before, after := 0.0, 0.0
				for i, x := range w.w.data {
					before, after = before+math.Abs(float64(x)), after+math.Abs(float64(w.w.out[i]))
				}
				if rate := (before - after) / before; rate < 0.5e-5 || rate > 1.5e-5 {
					s.t.Errorf("decay of 1e-5 shrank the weights by %v", rate)
				}
			}
		}
	}
}
