// Package computetest is the conformance suite of compute.Backend: every
// operation against the reference backend on random data, over edge sizes,
// accumulation, absent tensors, permitted aliasing, odd offsets and guard values;
// and the bit-equalities that the contract promises.
//
//	computetest.go  Run, and a test for each operation
//	sampling.go     Sample
//	classes.go      classes of memory, and moments in 8 bits
//	quant.go        classes of quantised blocks
//	live.go         heads with more rows than tokens
//	columns.go      operations on columns of a matrix
//	sizes.go        the sizes of released models
//	harness.go      cases, guards, comparisons
//	roof.go         the machine's limits, for benchmarks
package computetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// Open starts a backend that computes with so many workers; a backend without
// workers ignores the number.
type Open func(workers int) (compute.Backend, error)

// Contract is what a backend is held to. A result may differ from the reference's
// by a tolerance times the sum of its own size and that of the largest element of
// its tensor.
type Contract struct {
	// Tol is for float32 results of float32 sums.
	Tol float64
	// NarrowTol is for what passes through Narrow memory, where that is bfloat16:
	// inputs are then rounded to it before they are given to either side. 0 says
	// that Narrow is float32.
	NarrowTol float64
	// Align says at which offsets, in elements, a case has the same bits: all its
	// multiples. At others it is held to the tolerance.
	Align int
	// Alone promises a row's bits in matrix products whatever other rows there
	// are, and the bits of Attention in AttentionDecode.
	Alone bool
	// QuantFew is the most rows of a product that has an order of its own with quantised weights.
	QuantFew int
	// Joined is what the backend says of itself; if so, operations are held to columns, too.
	Joined bool
	// Workers are the counts whose results are compared; nil is 2, 1, 3 and 8. Sizes of
	// released models are tried with counts of at most 2.
	Workers []int
	// Few takes half of the numbers of rows and of the shapes of weights, a fifth of the heads,
	// windows and packs of attention, and two offsets of a case: for a backend or a variant that
	// others are like.
	Few bool
	// Known caches the reference's results by case, for several runs of the same cases; nil is
	// no cache.
	Known map[string][][]float64
	// Small leaves out the sizes of released models.
	Small bool
	// Slow takes one number of workers and fewer draws: for a device that is emulated.
	Slow bool
}

// shapes returns the shapes of weights to try, with Few every second of them.
func (c Contract) shapes(all ...[2]int) (some [][2]int) {
	for i, shape := range all {
		if !c.Few || i%2 == 1 {
			some = append(some, shape)
		}
	}
	return some
}

// device is the backend under test, which knows what a test has allocated and not freed.
type device struct {
	compute.Backend
	live     []compute.Tensor
	compared uint // pairs of matrices, by sameUses
}

// Alloc allocates on the backend.
func (d *device) Alloc(name string, c compute.Class, n int) (compute.Tensor, error) {
	t, err := d.Backend.Alloc(name, c, n)
	if err == nil {
		d.live = append(d.live, t)
	}
	return t, err
}

// Free frees t on the backend.
func (d *device) Free(t compute.Tensor) {
	for i := len(d.live) - 1; i >= 0; i-- { // the last is freed first, mostly
		if d.live[i].Mem() == t.Mem() {
			d.live = slices.Delete(d.live, i, i+1)
			break
		}
	}
	d.Backend.Free(t)
}

// sweep frees what a test has left: the emulated device looks at all memory that is allocated each
// time that it has run something.
func (d *device) sweep() {
	for _, t := range d.live {
		d.Backend.Free(t)
	}
	d.live = nil
}

// suite is one run of all operations' tests on one backend. Each case runs on
// the backend under test at several offsets, and on the reference.
type suite struct {
	t   *testing.T
	dev *device
	ref compute.Backend // nil: only record
	Contract
	rng   *rand.Rand
	trace [][]float32 // all results in order, to compare two runs
	names []string
}

// value is one tensor of a case, on the host.
type value struct {
	s     *suite
	name  string
	class compute.Class
	wide  bool      // held to Contract.Tol although the case has Narrow tensors
	data  []float32 // before the operation
	out   []float32 // after it, on the backend under test
	floor float64   // as sample.floor, of this value alone
}

// narrow makes v Narrow, and its values such as that can hold.
func (v *value) narrow() *value {
	v.class = compute.Narrow
	v.s.round(v.data)
	return v
}

// exact holds v to the tolerance of float32 sums: its inputs are exact in the Narrow tensors.
func (v *value) exact() *value {
	v.wide = true
	return v
}

// in is narrow or not.
func (v *value) in(c compute.Class) *value {
	if c == compute.Narrow {
		return v.narrow()
	}
	return v
}

// round rounds x to what Narrow memory holds, to nearest, ties to even.
func (s *suite) round(x []float32) []float32 {
	if s.NarrowTol > 0 {
		for i, v := range x {
			if bits := math.Float32bits(v); v == v {
				x[i] = math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
			}
		}
	}
	return x
}

// loose is the tolerance of what passes through Narrow memory.
func (s *suite) loose() float64 { return max(s.Tol, s.NarrowTol) }

// param is one parameter of a case.
type param struct {
	rows, cols int
	decay      bool
	offset     float32
	limit      float64 // Cap
	w          *value
	g, m, v    *value // nil: absent
}

// sample is one case: the values and parameters of one operation's call.
type sample struct {
	s      *suite
	name   string
	factor float64 // on the tolerance
	floor  float64 // the size of terms that cancel, where the result may be far smaller
	few    bool    // at two offsets only, because the case is large
	values []*value
	params []*param
}

// side is a case on one backend.
type side struct {
	b       compute.Backend
	tensors map[*value]compute.Tensor
	params  map[*param]*compute.Param
}

func (s *suite) sample(format string, args ...any) *sample {
	return &sample{s: s, name: fmt.Sprintf(format, args...), factor: 1}
}

// random returns n standard normal values.
func (c *sample) random(name string, n int) *value {
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(c.s.rng.NormFloat64())
	}
	return c.value(name, data)
}

// unset returns an output: NaN until it is written.
func (c *sample) unset(name string, n int) *value {
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(math.NaN())
	}
	return c.value(name, data)
}

// output returns an output that is accumulated into if acc, or else overwritten.
func (c *sample) output(name string, n int, acc bool) *value {
	if acc {
		return c.random(name, n)
	}
	return c.unset(name, n)
}

func (c *sample) value(name string, data []float32) *value {
	v := &value{s: c.s, name: name, data: data}
	c.values = append(c.values, v)
	return v
}

// param is a parameter of random weights, scaled so that products stay near 1,
// with a gradient to accumulate into if grad.
func (c *sample) param(name string, rows, cols int, grad bool) *param {
	p := &param{rows: rows, cols: cols, w: c.random(name+".W", rows*cols)}
	if rows > 1 {
		for i := range p.w.data {
			p.w.data[i] /= float32(math.Sqrt(float64(cols)))
		}
	}
	c.s.round(p.w.data)
	if grad {
		p.g = c.random(name+".G", rows*cols)
	}
	c.params = append(c.params, p)
	return p
}

// t returns v on this side; for nil the absent tensor.
func (s *side) t(v *value) compute.Tensor {
	if v == nil {
		return compute.Tensor{}
	}
	return s.tensors[v]
}

// p returns p on this side; nil for nil.
func (s *side) p(p *param) *compute.Param { return s.params[p] }

// guard is a quiet NaN that no computation makes.
var guard = math.Float32frombits(0x7fe5a5a5)

const behind = 21 // guard values behind a tensor

// place puts the case's values on b, each in its own block at the offset, and
// reads them back: that is what guards look like there.
func (c *sample) place(b compute.Backend,
	off int) (s *side, blocks map[*value]compute.Tensor, before map[*value][]float32) {
	s = &side{b, map[*value]compute.Tensor{}, map[*param]*compute.Param{}}
	blocks, before = map[*value]compute.Tensor{}, map[*value][]float32{}
	for _, v := range c.values {
		n := len(v.data)
		host := make([]float32, off+n+behind)
		for i := range host {
			host[i] = guard
		}
		copy(host[off:], v.data)
		block, err := b.Alloc(v.name, v.class, len(host))
		if err != nil {
			c.s.t.Fatalf("%s: %v", c.name, err)
		}
		b.Upload(block, host)
		blocks[v], s.tensors[v], before[v] =
			block, block.Slice(off, off+n), download(c.s.t, b, block)
	}
	for _, p := range c.params {
		q := &compute.Param{Name: p.w.name, Cap: p.limit, Shape: []int{p.rows, p.cols}, Rows: p.rows,
			Cols: p.cols, Decay: p.decay, Offset: p.offset}
		q.W, q.G, q.M, q.V = s.t(p.w), s.t(p.g), s.t(p.m), s.t(p.v)
		b.Refresh(q)
		s.params[p] = q
	}
	return s, blocks, before
}

// download returns the elements of t, after all work is done.
func download(t *testing.T, b compute.Backend, x compute.Tensor) []float32 {
	t.Helper()
	if err := b.Sync(); err != nil {
		t.Fatalf("Sync: %v", err)
	}
	host := make([]float32, x.Len())
	b.Download(host, x)
	return host
}

// run performs op on both sides and compares everything it might have touched.
func (c *sample) run(op func(s *side)) {
	t := c.s.t
	t.Helper()
	offsets := []int{3, 0, 16, 3}
	if n := c.s.Align; n > 1 {
		offsets = []int{n, 0, 3, 2 * n, n}
		if c.s.Slow {
			offsets = offsets[:3]
		}
	}
	switch {
	case c.few || c.s.dev.Name() == "ref": // the reference has no alignments
		offsets = offsets[:2]
	case c.s.Few: // the first, and another in no regular order
		mixed := int(uint32(len(c.s.trace)) * 2654435769 >> 16)
		offsets = []int{offsets[0], offsets[1+mixed%(len(offsets)-1)]}
	}
	if c.s.ref == nil {
		offsets = offsets[:1]
	}
	for trial, off := range offsets {
		s, blocks, before := c.place(c.s.dev, off)
		op(s)
		for _, v := range c.values {
			host := download(t, c.s.dev, blocks[v])
			for i, x := range host {
				if (i < off || i >= off+len(v.data)) &&
					math.Float32bits(x) != math.Float32bits(before[v][i]) {
					t.Errorf("%s: %s: wrote outside at [%d] of %d elements: %v", c.name, v.name,
						i-off, len(v.data), x)
					break
				}
			}
			got := host[off : off+len(v.data)]
			if trial == 0 {
				v.out = got
				c.s.trace, c.s.names = append(c.s.trace, got), append(c.s.names, c.name+": "+v.name)
			} else if what := fmt.Sprintf(
				"%s: %s at offset %d and at %d", c.name, v.name, off,
				offsets[0]); off%c.s.Align == 0 {
				c.s.equal(what, got, v.out)
			} else {
				c.s.checkNear(what, got, v.out, c.tol(v), max(c.floor, v.floor))
			}
			c.s.dev.Free(blocks[v])
		}
	}
	if c.s.ref == nil {
		return
	}
	for i, want := range c.wants(op) {
		v := c.values[i]
		most := max(c.floor, v.floor)
		for _, x := range want {
			most = max(most, math.Abs(x))
		}
		tol := c.tol(v)
		for i, x := range want {
			got := float64(v.out[i])
			if math.IsNaN(x) != math.IsNaN(got) || math.Abs(got-x) > tol*(most+math.Abs(x)) {
				t.Errorf("%s: %s[%d] of %d: got %v, want %v (largest %.3g)", c.name, v.name, i,
					len(want), got, x, most)
				break
			}
		}
	}
}

// wants returns the values after op on the reference, from Known if they are there. The values that
// op only reads are among them: a case with other inputs than the cached one fails.
func (c *sample) wants(op func(s *side)) (all [][]float64) {
	key := fmt.Sprint(len(c.s.trace), " ", c.name)
	if all = c.s.Known[key]; all != nil {
		return all
	}
	s, _, _ := c.place(c.s.ref, 0)
	op(s)
	for _, v := range c.values {
		all = append(all, ref.F64(s.t(v)))
	}
	if c.s.Known != nil && !c.few {
		c.s.Known[key] = all
	}
	return all
}

// tol is how far v may be from the reference.
func (c *sample) tol(v *value) float64 {
	for _, u := range c.values {
		if u.class == compute.Narrow && !v.wide {
			return c.factor * c.s.loose()
		}
	}
	return c.factor * c.s.Tol
}

// checkNear wants values within tol of the largest's size and of floor.
func (s *suite) checkNear(what string, got, want []float32, tol, floor float64) {
	s.t.Helper()
	if len(got) != len(want) {
		s.t.Errorf("%s: %d and %d elements", what, len(got), len(want))
		return
	}
	most := floor
	for _, x := range want {
		most = max(most, math.Abs(float64(x)))
	}
	for i, x := range want {
		if (x != x) != (got[i] != got[i]) || math.Abs(float64(got[i]-x)) > 2*tol*most {
			s.t.Errorf("%s: [%d] of %d: %v is not near %v (largest %.3g)", what, i, len(want),
				got[i], x, most)
			return
		}
	}
}

// alone wants the same bits of rows by themselves, if the contract promises it.
func (s *suite) alone(what string, got, want []float32) {
	s.t.Helper()
	if s.Alone {
		s.equal(what, got, want)
	} else {
		s.checkNear(what, got, want, s.loose(), 1)
	}
}

// equal wants the same bits.
func (s *suite) equal(what string, got, want []float32) {
	s.t.Helper()
	if len(got) != len(want) {
		s.t.Errorf("%s: %d and %d elements", what, len(got), len(want))
		return
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			s.t.Errorf("%s: [%d] of %d: %v (%#x) is not %v (%#x)", what, i, len(got), got[i],
				math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
			return
		}
	}
}

// put places host in memory of the class on the backend under test.
func (s *suite) put(c compute.Class, host []float32) compute.Tensor {
	t, err := s.dev.Alloc("test", c, len(host))
	if err != nil {
		s.t.Fatal(err)
	}
	s.dev.Upload(t, host)
	return t
}

func (s *suite) wide(host []float32) compute.Tensor   { return s.put(compute.Wide, host) }
func (s *suite) narrow(host []float32) compute.Tensor { return s.put(compute.Narrow, host) }

func (s *suite) empty(c compute.Class, n int) compute.Tensor { return s.put(c, make([]float32, n)) }

func (s *suite) weights(host []float32, rows, cols int) *compute.Param {
	p := &compute.Param{Name: "w", Shape: []int{rows, cols}, Rows: rows, Cols: cols,
		W: s.wide(s.round(host))}
	s.dev.Refresh(p)
	return p
}

// seed begins the random numbers again.
func (s *suite) seed(n uint64) { s.rng = rand.New(rand.NewPCG(1, n)) }

func (s *suite) normal(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(s.rng.NormFloat64())
	}
	return x
}

// perm returns the first n of a random order of the numbers below of.
func (s *suite) perm(n, of int) []int32 {
	x := make([]int32, n)
	for i, v := range s.rng.Perm(of)[:n] {
		x[i] = int32(v)
	}
	return x
}

// draws returns n random numbers below of.
func (s *suite) draws(n, of int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(s.rng.IntN(of))
	}
	return x
}
