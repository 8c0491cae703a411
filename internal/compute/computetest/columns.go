package computetest

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gad/internal/compute"
)

// columns are the tests of tensors that are columns of a wider matrix. A backend that is not
// Joined never gets any.
var columns = map[string]func(s *suite){
	"columns/RMSNorm": (*suite).normOfColumns, "columns/Linear": (*suite).linearOfColumns,
	"columns/Linears": (*suite).stack,
	"columns/Rope":    (*suite).ropeOfColumns, "columns/RopeCache": (*suite).cacheOfColumns,
	"columns/Attention":       (*suite).attentionOfColumns,
	"columns/AttentionDecode": (*suite).decodeOfColumns,
	"columns/Gated":           (*suite).gatedOfColumns,
}

// gaps are how many columns a matrix has before and behind those of a case: none, such that
// all rows begin at 16 bytes, and such that few do.
var gaps = [][2]int{{0, 0}, {8, 16}, {3, 2}}

// matrix is a value of N rows, some of whose columns a case uses, side by side.
type matrix struct {
	*value
	N, width, lead int
	widths         []int
}

func (c *sample) matrix(name string, N int, gap [2]int, widths ...int) *matrix {
	m := &matrix{N: N, lead: gap[0], width: gap[0] + gap[1], widths: widths}
	for _, w := range widths {
		m.width += w
	}
	m.value = c.random(name, N*m.width).narrow()
	return m
}

// bounds returns where the i-th columns begin and end.
func (m *matrix) bounds(i int) (lo, hi int) {
	lo = m.lead
	for _, w := range m.widths[:i] {
		lo += w
	}
	return lo, lo + m.widths[i]
}

// in is the i-th columns on a side.
func (m *matrix) in(s *side, i int) compute.Tensor {
	lo, hi := m.bounds(i)
	return s.t(m.value).Columns(m.width, lo, hi)
}

// pick is the i-th columns of data, without gaps.
func (m *matrix) pick(data []float32, i int) (out []float32) {
	lo, hi := m.bounds(i)
	for n := range m.N {
		out = append(out, data[n*m.width+lo:n*m.width+hi]...)
	}
	return out
}

// kept wants all but the columns of m as they were.
func (c *sample) kept(ms ...*matrix) {
	c.s.t.Helper()
	for _, m := range ms {
		for i, x := range m.out {
			if at := i % m.width; (at < m.lead || at >= m.width-(m.width-m.lead-sum(m.widths))) &&
				math.Float32bits(x) != math.Float32bits(m.data[i]) {
				c.s.t.Errorf("%s: %s: wrote at column %d of %d, beside its own from %d on", c.name,
					m.name, at, m.width, m.lead)
				return
			}
		}
	}
}

func sum(x []int) (n int) {
	for _, v := range x {
		n += v
	}
	return n
}

// same wants the bits computed without gaps. Where rows begin anywhere, a backend may take another
// way, and is held to the tolerance.
func (c *sample) same(gap [2]int, what string, got, want []float32) {
	c.s.t.Helper()
	if what = c.name + ": " + what + " in columns and without gaps"; gap[0]%8 == 0 {
		c.s.equal(what, got, want)
	} else {
		c.s.checkNear(what, got, want, c.s.loose(), max(1, c.floor))
	}
}

// eachGap runs a test where there are columns.
func (s *suite) eachGap(test func(gap [2]int)) {
	if !s.dev.Joined() {
		return
	}
	for _, gap := range gaps {
		test(gap)
	}
}

func (s *suite) normOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, shape := range [][2]int{{1, 40}, {3, 2}, {2, 33}, {4, 64}, {2, 128}, {1, 300}} {
			H, D := shape[0], shape[1]
			for _, N := range s.counts() {
				c := s.sample("N=%d H=%d D=%d gap=%v", N, H, D, gap)
				c.floor = max(1, math.Sqrt(float64(N*H))/2)
				x, dx := c.matrix("x", N, gap, H*D), c.matrix("dx", N, gap, H*D)
				w, rstd, rstd2 :=
					c.param("w", 1, D, true), c.unset("rstd", N*H).exact(),
					c.unset("rstd without gaps", N*H).exact()
				w.g.exact()
				y, dy, y2, dx2 :=
					c.unset("y", N*H*D).narrow(), c.random("dy", N*H*D).narrow(),
					c.unset("y without gaps", N*H*D).narrow(),
					c.unset("dx without gaps", N*H*D).narrow()
				plain := c.value("x without gaps", x.pick(x.data, 0)).narrow()
				c.run(func(s *side) {
					s.b.RMSNorm(s.t(y), s.t(rstd), x.in(s, 0), s.p(w), 1e-6)
					s.b.RMSNormGrad(dx.in(s, 0), s.p(w), s.t(dy), x.in(s, 0), s.t(rstd), false)
					s.b.RMSNorm(s.t(y2), s.t(rstd2), s.t(plain), s.p(w), 1e-6)
					s.b.RMSNormGrad(s.t(dx2), s.p(w), s.t(dy), s.t(plain), s.t(rstd), false)
				})
				c.kept(x, dx)
				c.same(gap, "y", y.out, y2.out)
				c.same(gap, "rstd", rstd.out, rstd2.out)
				c.same(gap, "dx", dx.pick(dx.out, 0), dx2.out)
			}
		}
	})
}

func (s *suite) linearOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, shape := range [][3]int{{0, 16, 8}, {1, 33, 65}, {7, 64, 48}, {65, 40, 8},
			{200, 96, 64}} {
			N, I, O := shape[0], shape[1], shape[2]
			for mode := range 4 {
				acc, bias := mode&1 > 0, mode&2 > 0
				c := s.sample("N=%d I=%d O=%d acc=%v bias=%v gap=%v", N, I, O, acc, bias, gap)
				x, y := c.random("x", N*I).narrow(), c.matrix("y", N, gap, O)
				dx, dy := c.matrix("dx", N, gap, I), c.matrix("dy", N, gap, O)
				w := c.param("w", O, I, true)
				w.g.exact()
				var b *param
				if bias {
					b = c.param("b", 1, O, true)
					b.g.exact()
				}
				c.run(func(s *side) {
					s.b.Linear(y.in(s, 0), s.t(x), s.p(w), s.p(b), acc)
					s.b.LinearGrad(dx.in(s, 0), s.p(w), s.p(b), dy.in(s, 0), s.t(x), acc)
				})
				c.kept(y, dx, dy)
			}
		}
	})
}

// stack tests projections whose outputs lie side by side, and whose weights, biases and gradients
// are adjacent: one product computes them, with the results of one product each. So too where
// something lies between them, and after biases have changed, of which a backend may have copies.
func (s *suite) stack() {
	const (
		joined  = iota
		biased  // with biases, which are stepped and then written between products
		late    // the same, and one of them was used by itself before
		apart   // something lies between the weights
		partly  // one projection has no bias
		swapped // outputs in another order than the weights
		frozen  // without gradients
		modes
	)
	s.eachGap(func(gap [2]int) {
		for mode := range modes {
			for _, shape := range []struct {
				N, I int
				outs []int
			}{{0, 64, []int{64, 64}}, {9, 64, []int{128, 64, 64}}, {7, 33, []int{65, 2}},
				{33, 64, []int{64, 64}}} {
				N, I, outs := shape.N, shape.I, shape.outs
				c := s.sample("N=%d I=%d O=%v gap=%v mode %d", N, I, outs, gap, mode)
				between := 0
				if mode == apart {
					between = 8
				}
				widths := slices.Clone(outs)
				if mode == swapped {
					slices.Reverse(widths)
				}
				x, dx := c.random("x", N*I).narrow(), c.unset("dx", N*I).narrow()
				y, dy := c.matrix("y", N, gap, widths...), c.matrix("dy", N, gap, widths...)
				stepped, written :=
					c.matrix("y after a step", N, gap, widths...),
					c.matrix("y of other biases", N, gap, widths...)
				total := sum(outs) + between*len(outs)
				alone, other, moments :=
					c.unset("one by itself", N*outs[0]).narrow(), c.random("other biases", total),
					c.value("moments", make([]float32, 2*total)).exact()
				s.round(other.data)
				block := map[string]*value{"W": c.random("W", total*I),
					"G": c.random("G", total*I).exact(), "b": c.random("b", total),
					"bG": c.random("b.G", total).exact()}
				for i := range block["W"].data {
					block["W"].data[i] /= float32(math.Sqrt(float64(I)))
				}
				s.round(block["W"].data)
				s.round(block["b"].data)
				if block["W"].class = compute.Master; mode == frozen {
					block["W"].class = compute.Narrow
				}
				var before compute.Counts
				counted := false
				products := 0
				c.run(func(sd *side) {
					var ps, grads, then, last []compute.Projection
					var bs []*compute.Param
					at := 0
					for i, O := range outs {
						place := func(name string, width int) compute.Tensor {
							if mode == frozen && (name == "G" || name == "bG") {
								return compute.Tensor{}
							}
							return sd.t(block[name]).Slice(at*width, (at+O)*width)
						}
						column := i
						if mode == swapped {
							column = len(outs) - 1 - i
						}
						w := &compute.Param{Name: fmt.Sprintf("w%d", i), Shape: []int{O, I},
							Rows: O, Cols: I, W: place("W", I), G: place("G", I)}
						sd.b.Refresh(w)
						p := compute.Projection{Y: y.in(sd, column), W: w}
						if mode != joined && (mode != partly || i > 0) {
							p.B = &compute.Param{Name: fmt.Sprintf("b%d", i), Shape: []int{O},
								Rows: 1, Cols: O, W: place("b", 1), G: place("bG", 1)}
							p.B.M, p.B.V =
								sd.t(moments).Slice(at, at+O),
								sd.t(moments).Slice(total+at, total+at+O)
							sd.b.Refresh(p.B)
							bs = append(bs, p.B)
						}
						ps = append(ps, p)
						for _, to := range []struct {
							m  *matrix
							ps *[]compute.Projection
						}{{dy, &grads}, {stepped, &then}, {written, &last}} {
							p.Y = to.m.in(sd, column)
							*to.ps = append(*to.ps, p)
						}
						at += O + between
					}
					if mode == late {
						sd.b.Linear(sd.t(alone), sd.t(x), ps[0].W, ps[0].B, false)
					}
					if sd.b == s.dev {
						before, counted = compute.CountsOf(s.dev.Backend)
					}
					sd.b.Linears(ps, sd.t(x))
					sd.b.LinearsGrad(sd.t(dx), grads, sd.t(x))
					if sd.b == s.dev {
						now, _ := compute.CountsOf(s.dev.Backend)
						products = max(products, now.Since(before).Products)
					}
					if mode == biased || mode == late {
						sd.b.AdamW(bs, compute.AdamW{LR: 0.5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
							GradScale: 1, Step: 1})
						sd.b.Linears(then, sd.t(x))
						sd.b.Copy(sd.t(block["b"]), sd.t(other))
						for _, b := range bs {
							sd.b.Refresh(b)
						}
						sd.b.Linears(last, sd.t(x))
					}
				})
				c.kept(y, dy, stepped, written)
				if fits := gap[0]%8 == 0 && I%8 == 0; counted && N > 0 && fits {
					want := map[int]int{joined: 3, biased: 3, late: 3, frozen: 2}[mode]
					if want == 0 {
						want = 3 * len(outs)
					}
					if products != want {
						s.t.Errorf("%s: %d products, want %d", c.name, products, want)
					}
				}
			}
		}
	})
}

func (s *suite) ropeOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, N := range s.counts() {
			for _, shape := range [][2]int{{1, 2}, {3, 10}, {2, 64}, {3, 128}} {
				H, E := shape[0], shape[1]
				c := s.sample("N=%d H=%d E=%d gap=%v", N, H, E, gap)
				x, table, pos := c.matrix("x", N, gap, H*E), c.random("table", 20*E), s.draws(N, 20)
				plain := c.value("x without gaps", x.pick(x.data, 0)).narrow()
				c.run(func(s *side) {
					s.b.Rope(x.in(s, 0), H, E, pos, s.t(table), N%2 == 0)
					s.b.Rope(s.t(plain), H, E, pos, s.t(table), N%2 == 0)
				})
				c.kept(x)
				c.same(gap, "x", x.pick(x.out, 0), plain.out)
			}
		}
	})
}

// cacheOfColumns: RopeCache, and CacheWrite of k and v as they are.
func (s *suite) cacheOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, N := range []int{0, 1, 7, 20, 65} {
			for _, a := range []compute.AttnShape{{H: 1, K: 1, E: 2}, {H: 3, K: 1, E: 10},
				{H: 4, K: 2, E: 64}, {H: 7, K: 1, E: 128}} {
				const slots, P = 70, 30
				Q, W := a.H*a.E, a.K*a.E
				c := s.sample("N=%d H=%d K=%d E=%d gap=%v", N, a.H, a.K, a.E, gap)
				x, table := c.matrix("qkv", N, gap, Q, W, W), c.random("table", P*a.E)
				var plain, caches []*value
				for i, name := range []string{"q", "k", "v"} {
					plain = append(plain, c.value(name+" without gaps", x.pick(x.data, i)).narrow())
				}
				for _, name := range []string{"key cache", "value cache", "key cache without gaps",
					"value cache without gaps", "k as it is", "v as it is"} {
					caches = append(caches, c.value(name, make([]float32, slots*W)).narrow())
				}
				pos, at := s.draws(N, P), s.perm(N, slots)
				c.run(func(s *side) {
					s.b.CacheWrite(s.t(caches[4]), x.in(s, 1), W, at)
					s.b.CacheWrite(s.t(caches[5]), x.in(s, 2), W, at)
					s.b.RopeCache(x.in(s, 0), x.in(s, 1), x.in(s, 2), s.t(caches[0]),
						s.t(caches[1]), a, pos, s.t(table), at)
					s.b.RopeCache(s.t(plain[0]), s.t(plain[1]), s.t(plain[2]), s.t(caches[2]),
						s.t(caches[3]), a, pos, s.t(table), at)
				})
				c.kept(x)
				c.same(gap, "q", x.pick(x.out, 0), plain[0].out)
				s.equal(c.name+": k and v stay", append(x.pick(x.out, 1), x.pick(x.out, 2)...),
					append(x.pick(x.data, 1), x.pick(x.data, 2)...))
				c.same(gap, "key cache", caches[0].out, caches[2].out)
				c.same(gap, "value cache", caches[1].out, caches[3].out)
			}
		}
	})
}

// attentionOfColumns: q, k and v in one matrix, and their gradients in another; and v alone,
// as it is where q and k have a norm.
func (s *suite) attentionOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, a := range []compute.AttnShape{{H: 4, K: 2, E: 33}, {H: 4, K: 2, E: 64},
			{H: 2, K: 1, E: 128}} {
			a.Scale = 1 / math.Sqrt(float64(a.E))
			Q, W := a.H*a.E, a.K*a.E
			for _, p := range []compute.Pack{{Start: []int32{0}},
				{Start: []int32{0, 1, 2, 9, 9, 12}},
				{Start: []int32{0, 2, 68, 70, 72}, Parent: []int32{-1, -1, 1, 1}}} {
				for _, valuesOnly := range []bool{false, true} {
					// the longest pack takes long
					if gap[0] != 8 && (valuesOnly || p.Parent != nil) {
						continue
					}
					N := int(p.Start[p.Segments()])
					c := s.sample("H=%d K=%d E=%d pack=%v gap=%v v only=%v", a.H, a.K, a.E, p, gap,
						valuesOnly)
					c.floor = max(1, math.Sqrt(float64(a.E))/4)
					x, dx := c.matrix("qkv", N, gap, Q, W, W), c.matrix("dqkv", N, gap, Q, W, W)
					var plain, grads []*value
					for i, name := range []string{"q", "k", "v"} {
						plain = append(plain, c.value(name+" without gaps",
							x.pick(x.data, i)).narrow())
						grads = append(grads, c.unset("d"+name+" without gaps",
							len(plain[i].data)).narrow())
					}
					o, lse, do :=
						c.unset("o", N*Q).narrow(), c.unset("lse", N*a.H).exact(),
						c.random("do", N*Q).narrow()
					o2, lse2, dq, dk :=
						c.unset("o without gaps", N*Q).narrow(),
						c.unset("lse without gaps", N*a.H).exact(), c.random("dq", N*Q).narrow(),
						c.random("dk", N*W).narrow()
					c.run(func(s *side) {
						q, k, v, gq, gk, gv :=
							x.in(s, 0), x.in(s, 1), x.in(s, 2), dx.in(s, 0), dx.in(s, 1),
							dx.in(s, 2)
						if valuesOnly {
							q, k, gq, gk = s.t(plain[0]), s.t(plain[1]), s.t(dq), s.t(dk)
						}
						s.b.Attention(s.t(o), s.t(lse), q, k, v, a, p)
						s.b.AttentionGrad(gq, gk, gv, s.t(do), s.t(o), s.t(lse), q, k, v, a, p)
						s.b.Attention(s.t(o2), s.t(lse2), s.t(plain[0]), s.t(plain[1]),
							s.t(plain[2]), a, p)
						s.b.AttentionGrad(s.t(grads[0]), s.t(grads[1]), s.t(grads[2]), s.t(do),
							s.t(o2), s.t(lse2), s.t(plain[0]), s.t(plain[1]), s.t(plain[2]), a, p)
					})
					c.kept(x, dx)
					if N == 0 {
						continue
					}
					c.same(gap, "o", o.out, o2.out)
					c.same(gap, "lse", lse.out, lse2.out)
					gotQ, gotK := dx.pick(dx.out, 0), dx.pick(dx.out, 1)
					if valuesOnly {
						gotQ, gotK = dq.out, dk.out
					}
					c.same(gap, "dq", gotQ, grads[0].out)
					c.same(gap, "dk", gotK, grads[1].out)
					c.same(gap, "dv", dx.pick(dx.out, 2), grads[2].out)
				}
			}
		}
	})
}

func (s *suite) decodeOfColumns() {
	s.eachGap(func(gap [2]int) {
		for _, a := range heads {
			a.Scale = 1 / math.Sqrt(float64(a.E))
			Q, W := a.H*a.E, a.K*a.E
			c := s.sample("H=%d K=%d E=%d gap=%v", a.H, a.K, a.E, gap)
			q, k, v :=
				c.matrix("q", 3, gap, Q), c.random("k", 12*4*W).narrow(),
				c.random("v", 12*4*W).narrow()
			plain, o, o2 :=
				c.value("q without gaps", q.pick(q.data, 0)).narrow(), c.unset("o", 3*Q).narrow(),
				c.unset("o without gaps", 3*Q).narrow()
			pages := compute.Pages{PageTokens: 4, Table: [][]int32{{3, 0}, {3, 5, 11, 7}, {1}},
				Len: []int32{7, 13, 1}}
			c.run(func(s *side) {
				s.b.AttentionDecode(s.t(o), q.in(s, 0), s.t(k), s.t(v), a, pages)
				s.b.AttentionDecode(s.t(o2), s.t(plain), s.t(k), s.t(v), a, pages)
			})
			c.kept(q)
			c.same(gap, "o", o.out, o2.out)
		}
	})
}

// gatedOfColumns: gate and up in one matrix, and their gradients in another, where dy may be
// what dgate will be.
func (s *suite) gatedOfColumns() {
	for _, act := range slices.Sorted(maps.Keys(activations)) {
		s.gatedOfColumnsBy(act)
	}
}

func (s *suite) gatedOfColumnsBy(act compute.Activation) {
	s.eachGap(func(gap [2]int) {
		for _, F := range []int{1, 8, 33, 200} {
			for _, N := range s.counts() {
				for _, inPlace := range []bool{false, true} {
					c := s.sample("%s N=%d F=%d gap=%v in place=%v", act.Unit(), N, F, gap, inPlace)
					x, dx :=
						c.matrix("gate and up", N, gap, F, F), c.matrix("gradient", N, gap, F, F)
					gate, up :=
						c.value("gate without gaps", x.pick(x.data, 0)).narrow(),
						c.value("up without gaps", x.pick(x.data, 1)).narrow()
					dy := c.value("dy without gaps", dx.pick(dx.data, 0)).narrow()
					y, again, y2 :=
						c.unset("y", N*F).narrow(), c.unset("y again", N*F).narrow(),
						c.unset("y without gaps", N*F).narrow()
					dgate, dup :=
						c.unset("dgate without gaps", N*F).narrow(),
						c.unset("dup without gaps", N*F).narrow()
					c.run(func(s *side) {
						s.b.Gated(act, s.t(y), x.in(s, 0), x.in(s, 1))
						of := s.t(dy)
						if inPlace {
							of = dx.in(s, 0)
						}
						s.b.GatedGrad(act, s.t(again), dx.in(s, 0), dx.in(s, 1), of, x.in(s, 0), x.in(s, 1))
						s.b.GatedGrad(act, s.t(y2), s.t(dgate), s.t(dup), s.t(dy), s.t(gate), s.t(up))
					})
					c.kept(x, dx)
					s.equal(c.name+": y again", again.out, y.out)
					c.same(gap, "y", y.out, y2.out)
					c.same(gap, "dgate", dx.pick(dx.out, 0), dgate.out)
					c.same(gap, "dup", dx.pick(dx.out, 1), dup.out)
				}
			}
		}
	})
}
