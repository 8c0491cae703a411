package computetest

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gad/internal/compute"
)

// sampling: u on an even grid must hit each token as often as its exact
// probability says, in the order of ids, and nothing that the filters drop.
func (s *suite) sampling() {
	const V = 61
	grid := 1500
	if s.Slow {
		grid = 150
	}
	if s.Slow && s.Few {
		grid = 75
	}
	logits := s.normal(V)
	for i := range logits {
		logits[i] *= 2
	}
	logits[17] = logits[40] // a tie
	w := s.weights(logits, V, 1)
	rank := 1 // of token 17: so many are kept before its equal is dropped
	for _, z := range logits {
		if z > logits[17] {
			rank++
		}
	}
	one := make([]float32, grid)
	u := make([]float64, grid)
	for r := range grid {
		one[r], u[r] = 1, (float64(r)+0.5)/float64(grid)
	}
	h := s.narrow(one)
	for _, c := range []compute.Sampling{
		{Temperature: 1}, {Temperature: 0.6}, {Temperature: 1.7},
		{Temperature: 1, TopK: 1}, {Temperature: 1, TopK: 5}, {Temperature: 3, TopK: rank},
		{Temperature: 1, TopK: V}, {Temperature: 1, TopK: V + 9},
		{Temperature: 0.8, TopP: 0.9}, {Temperature: 1, TopP: 1e-9}, {Temperature: 1, TopP: 1},
		{Temperature: 1.2, MinP: 0.1}, {Temperature: 1, MinP: 1},
		{Temperature: 1.3, TopK: 20, TopP: 0.8},
		{Temperature: 1.3, TopK: 20, TopP: 0.95, MinP: 0.05},
		{Temperature: 2, TopP: 0.95, MinP: 0.03},
	} {
		ids, logp := make([]int32, grid), make([]float32, grid)
		s.dev.Sample(ids, logp, h, w, c, u)
		p := filterProbs(logits, c)
		hits := make([]float64, V)
		for r, id := range ids {
			if id < 0 || id >= V {
				s.t.Fatalf("%+v: token %d of %d", c, id, V)
			}
			if r > 0 && id < ids[r-1] {
				s.t.Errorf("%+v: u=%v gives token %d, and the smaller u=%v token %d", c, u[r], id,
					u[r-1], ids[r-1])
			}
			hits[id]++
		}
		for v := range V {
			if p[v] == 0 && hits[v] > 0 {
				s.t.Errorf("%+v: token %d is filtered, and was drawn %v times", c, v, hits[v])
			}
			if math.Abs(hits[v]-p[v]*float64(grid)) > 1+float64(grid)*8*s.Tol {
				s.t.Errorf("%+v: token %d was drawn %v times of %d, and has probability %v", c, v,
					hits[v], grid, p[v])
			}
		}
		s.checkLikeLogProb(fmt.Sprintf("%+v", c), ids, logp, h, w, c)
	}
	s.filterOrder(grid)
	// All rows at the ends of [0,1): the first and the last token.
	ids, logp := make([]int32, 2), make([]float32, 2)
	s.dev.Sample(ids, logp, s.narrow([]float32{1, 1}), w, compute.Sampling{Temperature: 1},
		[]float64{0, math.Nextafter(1, 0)})
	if ids[0] != 0 || ids[1] < V-8 {
		s.t.Errorf("u of 0 and almost 1 give tokens %v", ids)
	}

	// Greedy: the largest logit, of equal ones the lowest id; from a wide head, too.
	for _, V := range []int{1, 5, 64, 777, 2500} {
		const D, R = 9, 7
		wd, hd := s.normal(V*D), s.round(s.normal(R*D))
		if V > 4 {
			best := V / 2
			for d := range D {
				wd[best*D+d] = 5 * hd[d] // row 0's largest, three times
				wd[(V-1)*D+d], wd[(V-2)*D+d] = wd[best*D+d], wd[best*D+d]
			}
		}
		w, h := s.weights(wd, V, D), s.narrow(hd)
		ids, logp := make([]int32, R), make([]float32, R)
		s.dev.Sample(ids, logp, h, w, compute.Sampling{}, make([]float64, R))
		if V > 4 && ids[0] != int32(V/2) {
			s.t.Errorf("greedy of %d: token %d, want %d, the first of three equal ones", V, ids[0],
				V/2)
		}
		s.checkLikeLogProb("greedy", ids, logp, h, w, compute.Sampling{})
		u := []float64{0.1, 0.5, 0.9, 0.3, 0.7, 0.99, 0.01}
		c := compute.Sampling{Temperature: 0.9}
		s.dev.Sample(ids, logp, h, w, c, u)
		s.checkLikeLogProb("wide", ids, logp, h, w, c)
		s.record("sampled", logp)
		// A row by itself: the same token and bits.
		id, lp := make([]int32, 1), make([]float32, 1)
		s.dev.Sample(id, lp, h.Slice(3*D, 4*D), w, c, u[3:4])
		if id[0] != ids[3] && s.Alone {
			s.t.Errorf("a row by itself: token %d, in a batch %d", id[0], ids[3])
		}
		s.alone("a row by itself", lp, logp[3:4])
	}
}

// filterOrder: min-p after top-p. Of this row top-p keeps 9 tokens, and would keep 3 if its
// share were taken of what min-p leaves; u's even grid hits every token that is kept.
func (s *suite) filterOrder(grid int) {
	p := append([]float64{0.4, 0.2, 0.1},
		append(slices.Repeat([]float64{0.01}, 15), slices.Repeat([]float64{0.005}, 30)...)...)
	s.rng.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	logits, one, u := make([]float32, len(p)), make([]float32, grid), make([]float64, grid)
	for v, x := range p {
		logits[v] = float32(math.Log(x))
	}
	s.round(logits)
	for r := range grid {
		one[r], u[r] = 1, (float64(r)+0.5)/float64(grid)
	}
	c := compute.Sampling{Temperature: 1, TopP: 0.755, MinP: 0.02}
	ids, logp := make([]int32, grid), make([]float32, grid)
	s.dev.Sample(ids, logp, s.narrow(one), s.weights(logits, len(p), 1), c, u)
	drawn, want := map[int32]bool{}, map[int32]bool{}
	for _, id := range ids {
		drawn[id] = true
	}
	for v, x := range filterProbs(logits, c) {
		if x > 0 {
			want[int32(v)] = true
		}
	}
	if len(want) != 9 {
		s.t.Fatalf("%+v keeps %d tokens, want 9: the row is made for that", c, len(want))
	}
	if !maps.Equal(drawn, want) {
		s.t.Errorf("%+v draws the tokens %v, want %v", c, slices.Sorted(maps.Keys(drawn)),
			slices.Sorted(maps.Keys(want)))
	}
}

// checkLikeLogProb wants a sample's log-probabilities to have LogProb's bits.
func (s *suite) checkLikeLogProb(what string, ids []int32, logp []float32, h compute.Tensor,
	w *compute.Param, c compute.Sampling) {
	s.t.Helper()
	invTemp := 1.0
	if c.Temperature > 0 {
		invTemp = 1 / c.Temperature
	}
	R := len(ids)
	rows := make([]int32, R)
	for r := range rows {
		rows[r] = int32(r)
	}
	out := compute.HeadOut{LogpR: s.empty(compute.Wide, R), EntR: s.empty(compute.Wide, R),
		LseR: s.empty(compute.Wide, R)}
	s.dev.LogProb(out, h, w, rows, ids, invTemp)
	s.equal(what+": Sample's logp and LogProb's", logp, download(s.t, s.dev, out.LogpR))
}

// filterProbs returns the exact distribution that Sample draws from, by the definition of each
// filter.
func filterProbs(logits []float32, c compute.Sampling) []float64 {
	V := len(logits)
	p := make([]float64, V)
	for v, z := range logits {
		p[v] = math.Exp(float64(z) / c.Temperature)
	}
	order := make([]int, V)
	for v := range order {
		order[v] = v
	}
	slices.SortStableFunc(order, func(x, y int) int {
		switch {
		case logits[x] > logits[y]:
			return -1
		case logits[x] < logits[y]:
			return 1
		}
		return 0
	})
	normal := func() {
		sum := 0.0
		for _, x := range p {
			sum += x
		}
		for v := range p {
			p[v] /= sum
		}
	}
	normal()
	for rank, v := range order {
		if c.TopK > 0 && rank >= c.TopK {
			p[v] = 0
		}
	}
	normal()
	before := 0.0
	for _, v := range order {
		x := p[v]
		if c.TopP > 0 && c.TopP < 1 && before >= c.TopP {
			p[v] = 0
		}
		before += x
	}
	normal()
	for v := range p {
		if p[v] < c.MinP*p[order[0]] {
			p[v] = 0
		}
	}
	normal()
	return p
}
