package computetest

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
)

// convWidths are D and J of gated convolutions.
var convWidths = []struct{ D, J int }{{1, 1}, {5, 3}, {33, 3}, {64, 4}, {130, 3}, {8, 7}}

// convs calls try with widths and packs.
func (s *suite) convs(try func(D, J int, p compute.Pack)) {
	n := 0
	for _, w := range convWidths {
		for _, p := range packs {
			if n++; !s.Few || n%3 == 0 {
				try(w.D, w.J, p)
			}
		}
	}
}

// gatedConv: against the reference, and each sequence by itself with the same bits.
func (s *suite) gatedConv() {
	s.convs(func(D, J int, p compute.Pack) {
		N := int(p.Start[p.Segments()])
		c := s.sample("D=%d J=%d pack=%v", D, J, p)
		g, w := c.random("g", N*3*D).narrow(), c.param("w", 1, D*J, false)
		y, u := c.unset("y", N*D).narrow(), c.unset("u", N*D).narrow()
		c.run(func(s *side) { s.b.GatedConv(s.t(y), s.t(u), s.t(g), s.p(w), p) })
		if p.Segments() < 2 {
			return
		}
		for n := range p.Segments() {
			rows := visibleRows(p, n)
			ys, us := s.empty(compute.Narrow, len(rows)*D), s.empty(compute.Narrow, len(rows)*D)
			s.dev.GatedConv(ys, us, s.narrow(pick(g.data, rows, 3*D)), s.weights(w.w.data, 1, D*J),
				compute.Pack{Start: []int32{0, int32(len(rows))}})
			what := fmt.Sprintf("%s: segment %d by itself", c.name, n)
			s.equal(what+": y", download(s.t, s.dev, ys), pick(y.out, rows, D))
			s.equal(what+": u", download(s.t, s.dev, us), pick(u.out, rows, D))
		}
	})
}

func (s *suite) gatedConvGrad() {
	s.convs(func(D, J int, p compute.Pack) {
		for _, grad := range []bool{true, false} {
			N := int(p.Start[p.Segments()])
			c := s.sample("D=%d J=%d grad=%v pack=%v", D, J, grad, p)
			c.floor = math.Sqrt(float64(max(1, N))) / 4 // of the weights' gradient
			g, w := c.random("g", N*3*D).narrow(), c.param("w", 1, D*J, grad)
			dy, u := c.random("dy", N*D).narrow(), c.unset("u", N*D).narrow()
			dg := c.unset("dg", N*3*D).narrow()
			c.run(func(s *side) {
				s.b.GatedConvGrad(s.t(dg), s.t(u), s.p(w), s.t(dy), s.t(g), p)
			})
		}
	})
}

// gatedConvDecode: against the reference over scrambled pages; and row by row, with prompts that
// share their pages, the bits that GatedConv gives for the whole sequences.
func (s *suite) gatedConvDecode() {
	for _, w := range convWidths {
		D, J := w.D, w.J
		c := s.sample("D=%d J=%d", D, J)
		g, taps := c.random("g", 4*3*D).narrow(), c.param("w", 1, D*J, false)
		y, cache := c.unset("y", 4*D).narrow(), c.random("cache", 12*4*D).narrow()
		pages := compute.Pages{PageTokens: 4,
			Table: [][]int32{{3, 0}, {2, 5, 11, 7}, {1}, {2, 5, 9}}, Len: []int32{7, 13, 1, 9}}
		slots := []int32{0*4 + 2, 7*4 + 0, 1*4 + 0, 9*4 + 0}
		c.run(func(s *side) {
			s.b.GatedConvDecode(s.t(y), s.t(g), s.t(cache), s.p(taps), slots, pages)
		})
		s.convBySteps(D, J)
	}
}

// convBySteps decodes a prompt of 5 tokens and two answers behind it token by token.
func (s *suite) convBySteps(D, J int) {
	const prompt, answer = 5, 6
	p := compute.Pack{Start: []int32{0, prompt, prompt + answer, prompt + 2*answer},
		Parent: []int32{-1, 0, 0}}
	N := prompt + 2*answer
	host, taps := s.round(s.normal(N*3*D)), s.normal(D*J)
	w := s.weights(taps, 1, D*J)
	y, u := s.empty(compute.Narrow, N*D), s.empty(compute.Narrow, N*D)
	s.dev.GatedConv(y, u, s.narrow(host), w, p)
	want := download(s.t, s.dev, y)

	// The prompt has pages 1 and 4, whose last place each answer copies to a page of its own.
	const pt = 4
	tables := [][]int32{{1, 4}, {1, 2, 0}, {1, 5, 3}}
	nan := slices.Repeat([]float32{float32(math.NaN())}, 6*pt*D)
	cache := s.narrow(nan)
	at := func(table []int32, pos int) int32 {
		return table[pos/pt]*pt + int32(pos%pt)
	}
	step := func(rows []int, lens []int32, of [][]int32) {
		pages, slots := compute.Pages{PageTokens: pt, Len: lens}, []int32(nil)
		for r, n := range lens {
			pages.Table = append(pages.Table, of[r])
			slots = append(slots, at(of[r], int(n)-1))
		}
		got := s.empty(compute.Narrow, len(rows)*D)
		s.dev.GatedConvDecode(got, s.narrow(pick(host, rows, 3*D)), cache, w, slots, pages)
		s.equal(fmt.Sprintf("D=%d J=%d: rows %v by steps", D, J, rows), download(s.t, s.dev, got),
			pick(want, rows, D))
	}
	// Two steps for the prompt: several tokens of one sequence in a call.
	step([]int{0, 1, 2}, []int32{1, 2, 3}, [][]int32{tables[0], tables[0], tables[0]})
	step([]int{3, 4}, []int32{4, 5}, [][]int32{tables[0], tables[0]})
	from := int(at(tables[0], prompt-1)) * D
	for _, table := range tables[1:] {
		to := int(at(table, prompt-1)) * D
		s.dev.Copy(cache.Slice(to, to+D), cache.Slice(from, from+D))
	}
	for t := range answer {
		n := int32(prompt + t + 1)
		step([]int{prompt + t, prompt + answer + t}, []int32{n, n},
			tables[1:])
	}
}
