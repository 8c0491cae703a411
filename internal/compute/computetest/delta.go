package computetest

import (
	"fmt"
	"math"

	"gad/internal/compute"
)

// siluConv: against the reference; each sequence by itself and cut by states, with the same bits.
func (s *suite) siluConv() {
	if noDelta(s) {
		return
	}
	s.convs(func(D, J int, p compute.Pack) {
		N := int(p.Start[p.Segments()])
		c := s.sample("D=%d J=%d pack=%v", D, J, p)
		x, w, y := c.random("x", N*D).narrow(), c.param("w", D, J, false), c.unset("y", N*D).narrow()
		states := c.random("states", 2*p.Segments()*(J-1)*D)
		s.round(states.data)
		from, to := statesOf(p)
		c.run(func(s *side) {
			s.b.SiLUConv(s.t(y), s.t(x), s.p(w), p,
				compute.States{Rows: s.t(states), From: from, To: to})
		})
		for n := range p.Segments() {
			rows := visibleRows(p, n)
			taps := s.weights(w.w.data, D, J)
			first := rowOf(states.data, from, rootOf(p, n), (J-1)*D)
			s.inParts(fmt.Sprintf("%s: segment %d", c.name, n), len(rows), (J-1)*D, first, D,
				pick(y.out, rows, D), rowOf(states.out, to, n, (J-1)*D),
				func(y compute.Tensor, lo, hi int, p compute.Pack, st compute.States) {
					s.dev.SiLUConv(y, s.narrow(pick(x.data, rows[lo:hi], D)), taps, p, st)
				})
		}
	})
}

// statesOf gives every root segment of p but the first a state to begin at, every third the slot
// that it ends in, and every segment but the last a slot to end in.
func statesOf(p compute.Pack) (from, to []int32) {
	S := p.Segments()
	for n := range S {
		f, t := int32(-1), int32(S+n)
		if n > 0 && !p.Branched(n) {
			if f = int32(n); n%3 == 0 {
				f = t
			}
		}
		if n == S-1 {
			t = -1
		}
		if n == S-1 && f >= int32(S) {
			f = -1
		}
		from, to = append(from, f), append(to, t)
	}
	return from, to
}

// rootOf returns the first of the segments that segment n's sequence has.
func rootOf(p compute.Pack, n int) int {
	for p.Branched(n) {
		n = int(p.Parent[n])
	}
	return n
}

// rowOf returns the state that list gives segment n, nil for none.
func rowOf(states []float32, list []int32, n, width int) []float32 {
	if list[n] < 0 {
		return nil
	}
	return states[int(list[n])*width : (int(list[n])+1)*width]
}

// inParts computes N rows of a sequence whole, in parts of several lengths and token by token, by
// states of width elements that begin at first, and wants the outputs y and, unless it is nil, the
// state behind: the same bits, if the backend promises them.
func (s *suite) inParts(what string, N, width int, first []float32, out int, y, behind []float32,
	call func(y compute.Tensor, lo, hi int, p compute.Pack, st compute.States)) {
	for _, step := range []int{N, 1, 7, 40} {
		if N == 0 || step > N || s.Slow && N > 4*step { // a device that is emulated
			continue
		}
		states := s.empty(compute.Wide, 3*width)
		if first != nil {
			s.dev.Upload(states.Slice(0, width), first)
		}
		var got []float32
		for lo, at := 0, int32(0); lo < N; lo += step {
			hi, to := min(N, lo+step), (at+int32(lo/step)%2)%3 // in place, or to another slot
			part := s.empty(compute.Narrow, (hi-lo)*out)
			call(part, lo, hi, compute.Pack{Start: []int32{0, int32(hi - lo)}},
				compute.States{Rows: states, From: []int32{at}, To: []int32{to}})
			got, at = append(got, download(s.t, s.dev, part)...), to
			if hi == N && behind != nil {
				s.alone(fmt.Sprintf("%s: state in parts of %d", what, step),
					download(s.t, s.dev, states)[int(at)*width:int(at+1)*width], behind)
			}
		}
		s.alone(fmt.Sprintf("%s: outputs in parts of %d", what, step), got, y)
	}
}

func (s *suite) siluConvGrad() {
	if noDelta(s) {
		return
	}
	s.convs(func(D, J int, p compute.Pack) {
		for _, grad := range []bool{true, false} {
			N := int(p.Start[p.Segments()])
			c := s.sample("D=%d J=%d grad=%v pack=%v", D, J, grad, p)
			c.floor = math.Sqrt(float64(max(1, N))) / 4 // of the weights' gradient
			x, w := c.random("x", N*D).narrow(), c.param("w", D, J, grad)
			dy, dx := c.random("dy", N*D).narrow(), c.unset("dx", N*D).narrow()
			c.run(func(s *side) { s.b.SiLUConvGrad(s.t(dx), s.p(w), s.t(dy), s.t(x), p) })
		}
	})
}

// noDelta reports whether the backend has no gated delta rule.
func noDelta(s *suite) bool {
	return s.dev.DeltaState(compute.DeltaShape{K: 1, H: 1, E: 1, F: 1}) == 0
}

// deltaShapes are the heads of gated delta rules.
var deltaShapes = []compute.DeltaShape{{K: 1, H: 1, E: 1, F: 1}, {K: 2, H: 2, E: 5, F: 3},
	{K: 1, H: 3, E: 16, F: 33}, {K: 2, H: 4, E: 24, F: 16}, {K: 1, H: 1, E: 64, F: 40}}

// deltas calls try with shapes, packs and shifts of the gates: decays and β near 0 and 1.
func (s *suite) deltas(try func(d deltaCase)) {
	n := 0
	for _, shape := range deltaShapes {
		for _, p := range packs {
			n++
			shift := [][3]float32{{}, {0, 0, -3}, {3, -5, 1}, {-6, 6, 0}}[n%4]
			if s.Few && n%3 != 0 {
				continue
			}
			c := s.sample("%+v shift=%v pack=%v", shape, shift, p)
			try(c.delta(shape, p, shift))
		}
	}
}

// deltaSizes: a chunk's borders, and sequences of many chunks, of heads as large as Qwen3.5's and
// smaller; decays and β of 0 and 1 but for rounding. The reference is recurrent, in float64.
func (s *suite) deltaSizes() {
	if noDelta(s) {
		return
	}
	small, large := compute.DeltaShape{K: 1, H: 2, E: 8, F: 16},
		compute.DeltaShape{K: 1, H: 2, E: 128, F: 128}
	for i, n := range []int32{1, 2, 63, 64, 65, 127, 128, 129, 300, 4097} {
		shifts := [][3]float32{{}, {-30, 40, 0}, {20, -40, 2}, {0, 3, -20}}
		shape := small
		switch {
		case n == 129:
			shape, shifts = large, shifts[:1]
		case n > 300:
			shifts = shifts[:1]
		case s.Few:
			shifts = [][3]float32{shifts[i%2], shifts[3-i%2]}
		}
		if s.Slow && n > 129 {
			break
		}
		for _, shift := range shifts {
			c := s.large("%+v shift=%v N=%d", shape, shift, n)
			c.delta(shape, compute.Pack{Start: []int32{0, n}}, shift).both()
		}
	}
	// Branches at, before and behind a chunk's border, and of whole chunks.
	c := s.large("borders")
	c.delta(small, compute.Pack{Start: []int32{0, 64, 65, 129, 192, 255, 256, 300, 428, 491, 620},
		Parent: []int32{-1, 0, 1, 2, 2, 1, 0, 6, 7, -1}}, [3]float32{}).both()
}

// both runs forward and gradient, against the reference.
func (d deltaCase) both() {
	H, F := d.H, d.F
	// a token's decay has what all tokens of its chunk behind it give, of both signs
	d.floor = 1
	d.decay.g.floor = 4 * math.Sqrt(float64(max(1, d.N)))
	d.t.g.floor = d.decay.g.floor
	o, do := d.unset("o", d.N*H*F).narrow(), d.random("do", d.N*H*F).narrow()
	dx := d.unset("dx", len(d.x.data)).narrow()
	da, db := d.unset("da", len(d.a.data)).narrow(), d.unset("db", len(d.b.data)).narrow()
	d.run(func(s *side) {
		s.b.GatedDelta(s.t(o), s.t(d.x), s.t(d.a), s.t(d.b), s.p(d.decay), s.p(d.t),
			d.DeltaShape, d.pack, compute.States{})
		s.b.GatedDeltaGrad(s.t(dx), s.t(da), s.t(db), s.t(do), s.t(o), s.t(d.x), s.t(d.a),
			s.t(d.b), s.p(d.decay), s.p(d.t), d.DeltaShape, d.pack)
	})
}

// deltaCase is the operands of a gated delta rule.
type deltaCase struct {
	*sample
	compute.DeltaShape
	pack     compute.Pack
	N        int
	x, a, b  *value
	decay, t *param
}

// delta makes a case whose a, b and A are shifted.
func (c *sample) delta(shape compute.DeltaShape, p compute.Pack, shift [3]float32) deltaCase {
	d := deltaCase{sample: c, DeltaShape: shape, pack: p, N: int(p.Start[p.Segments()])}
	d.x = c.random("x", d.N*shape.Width()).narrow()
	d.a, d.b = c.random("a", d.N*shape.H), c.random("b", d.N*shape.H)
	d.decay, d.t = c.param("A", 1, shape.H, true), c.param("dt", 1, shape.H, true)
	for i := range d.a.data {
		d.a.data[i] += shift[0]
		d.b.data[i] += shift[1]
	}
	for i := range d.decay.w.data {
		d.decay.w.data[i] += shift[2]
	}
	c.s.round(d.decay.w.data)
	d.a.narrow()
	d.b.narrow()
	return d
}

// gatedDelta: against the reference; each sequence by itself and cut by states, with the same bits
// if the backend promises that. States have an order of the backend's own, so they are not
// compared.
func (s *suite) gatedDelta() {
	if noDelta(s) {
		return
	}
	for i, p := range packs {
		if p.Parent != nil && (!s.Slow || i == 8) {
			s.deltaTree(deltaShapes[3], p)
		}
	}
	s.deltas(func(d deltaCase) {
		H, F, C := d.H, d.F, d.Width()
		o := d.unset("o", d.N*H*F).narrow()
		d.run(func(s *side) {
			s.b.GatedDelta(s.t(o), s.t(d.x), s.t(d.a), s.t(d.b), s.p(d.decay), s.p(d.t),
				d.DeltaShape, d.pack, compute.States{})
		})
		A, dt := s.weights(d.decay.w.data, 1, H), s.weights(d.t.w.data, 1, H)
		for n := range d.pack.Segments() {
			rows := visibleRows(d.pack, n)
			s.inParts(fmt.Sprintf("%s: segment %d", d.name, n), len(rows),
				s.dev.DeltaState(d.DeltaShape), nil, H*F, pick(o.out, rows, H*F), nil,
				func(o compute.Tensor, lo, hi int, p compute.Pack, st compute.States) {
					part := func(v *value, width int) compute.Tensor {
						return s.narrow(pick(v.data, rows[lo:hi], width))
					}
					s.dev.GatedDelta(o, part(d.x, C), part(d.a, H), part(d.b, H), A, dt,
						d.DeltaShape, p, st)
				})
		}
	})
}

// deltaTree computes a pack whose root segments, every second one, go on from the state behind 61
// tokens; then one token behind each segment, from the state that the pack left there. Each
// sequence in one call has the same bits, if the backend promises that.
func (s *suite) deltaTree(shape compute.DeltaShape, p compute.Pack) {
	const history = 61
	H, F, C, S := shape.H, shape.F, shape.Width(), p.Segments()
	N := int(p.Start[S])
	tokens := S*history + N + S // the histories, the pack, and what follows its segments
	x, a, b := s.round(s.normal(tokens*C)), s.round(s.normal(tokens*H)), s.round(s.normal(tokens*H))
	A, dt := s.weights(s.normal(H), 1, H), s.weights(s.normal(H), 1, H)
	states := s.empty(compute.Wide, 2*S*s.dev.DeltaState(shape))
	run := func(rows []int, p compute.Pack, from, to []int32) []float32 {
		o := s.empty(compute.Narrow, len(rows)*H*F)
		s.dev.GatedDelta(o, s.narrow(pick(x, rows, C)), s.narrow(pick(a, rows, H)),
			s.narrow(pick(b, rows, H)), A, dt, shape, p,
			compute.States{Rows: states, From: from, To: to})
		return download(s.t, s.dev, o)
	}
	span := func(lo, n int) (rows []int) {
		for i := range n {
			rows = append(rows, lo+i)
		}
		return rows
	}
	lengths := func(n int) (p compute.Pack) {
		for i := range S + 1 {
			p.Start = append(p.Start, int32(i*n))
		}
		return p
	}
	var first, from, to, none []int32
	for n := range S {
		begin := int32(-1)
		if !p.Branched(n) && n%2 == 0 {
			begin = int32(n)
		}
		first, from, to, none = append(first, int32(n)), append(from, begin),
			append(to, int32(S+n)), append(none, -1)
	}
	run(span(0, S*history), lengths(history), none, first)
	inPack := run(span(S*history, N), p, from, to)
	behind := run(span(S*history+N, S), lengths(1), to, to)
	for n := range S {
		var rows []int
		if root := rootOf(p, n); from[root] >= 0 {
			rows = span(root*history, history)
		}
		for _, r := range visibleRows(p, n) {
			rows = append(rows, S*history+r)
		}
		rows = append(rows, S*history+N+n)
		own := p.Tokens(n)
		got := run(rows, compute.Pack{Start: []int32{0, int32(len(rows))}}, nil, nil)
		what := fmt.Sprintf("%+v pack=%v: segment %d behind a history", shape, p, n)
		s.alone(what, got[(len(rows)-1-own)*H*F:(len(rows)-1)*H*F],
			inPack[int(p.Start[n])*H*F:int(p.Start[n+1])*H*F])
		s.alone(what+": the next token", got[(len(rows)-1)*H*F:], behind[n*H*F:(n+1)*H*F])
	}
}

func (s *suite) gatedDeltaGrad() {
	if noDelta(s) {
		return
	}
	s.deltas(deltaCase.both)
}
