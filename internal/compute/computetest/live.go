package computetest

import (
	"fmt"
	"slices"

	"gad/internal/compute"
)

// live: a head with more rows than tokens gives the bits of a head without the rows behind them,
// and leaves their gradient alone. What stands in those rows would win every draw.
func (s *suite) live() {
	classes := append([]compute.Class{compute.Wide, compute.Master, compute.Narrow, compute.Frozen},
		s.quantClasses()...)
	shapes := [][3]int{{8, 5, 32}, {777, 770, 32}, {64, 33, 64}, {1060, 1023, 32}, {2500, 1029, 32}}
	switch {
	case s.Slow:
		shapes = shapes[:2]
	case s.Few:
		shapes = [][3]int{shapes[0], shapes[2], shapes[3]}
	}
	for _, shape := range shapes {
		rows, live, D := shape[0], shape[1], shape[2]
		for _, class := range classes {
			if s.dev.Element(class) == 0 {
				continue
			}
			grad := class == compute.Wide || class == compute.Master
			host := s.round(s.normal(rows * D))
			for i := live * D; i < rows*D; i++ {
				host[i] = 1e4
			}
			padded := s.newOfClass(class, host, rows, D)
			cut := s.newOfClass(class, host[:live*D], live, D)
			padded.Live = live
			g := s.normal(rows * D)
			if grad {
				padded.G, cut.G = s.wide(g), s.wide(g[:live*D])
			}
			what := fmt.Sprintf("%v [%d,%d], %d tokens", class, rows, D, live)
			seed := s.rng.Uint64()
			s.seed(seed)
			names, got := s.headUses(padded)
			s.seed(seed)
			_, want := s.headUses(cut)
			for i, name := range names {
				s.alone(what+": "+name, got[i], want[i])
			}
			if grad {
				all := download(s.t, s.dev, padded.G)
				s.alone(what+": G", all[:live*D], download(s.t, s.dev, cut.G))
				s.equal(what+": G of rows without a token", all[live*D:], g[live*D:])
				s.dev.Free(padded.G)
				s.dev.Free(cut.G)
			}
			s.dev.Free(padded.W)
			s.dev.Free(cut.W)
		}
	}
}

// headUses returns the results, by name, of the head's operations for w.
func (s *suite) headUses(w *compute.Param) (names []string, results [][]float32) {
	keep := func(name string, x []float32) {
		names, results = append(names, name), append(results, x)
	}
	D, V := w.Cols, w.Vocab()
	counts := []int{1, 7, 40}
	switch {
	case s.Slow:
		counts = counts[:2]
	case s.Few:
		counts = []int{1, 40}
	}
	for _, N := range counts {
		h, dh := s.narrow(s.round(s.normal(N*D))), s.narrow(s.round(s.normal(N*D)))
		dlogp, dent := s.wide(s.normal(N)), s.wide(s.normal(N))
		out := compute.HeadOut{LogpR: s.empty(compute.Wide, N), EntR: s.empty(compute.Wide, N),
			LseR: s.empty(compute.Wide, N)}
		rows, targets := s.perm(N, N), s.draws(N, V)
		targets[N-1] = int32(V - 1)
		s.dev.LogProb(out, h, w, rows, targets, 0.8)
		s.dev.LogProbGrad(dh, w, out, dlogp, dent, h, rows, targets, 0.8)
		for i, t := range []compute.Tensor{out.LogpR, out.EntR, out.LseR, dh} {
			keep(fmt.Sprintf("%s N=%d", []string{"logp", "ent", "lse", "dh"}[i], N),
				download(s.t, s.dev, t))
			s.dev.Free(t)
		}
		u := make([]float64, N)
		for i := range u {
			u[i] = s.rng.Float64()
		}
		for _, c := range []compute.Sampling{{}, {Temperature: 1.3}, {Temperature: 1, TopK: 3},
			{Temperature: 2, TopP: 0.9, MinP: 0.001}, {Temperature: 1, TopK: V + 1}} {
			ids, logp := make([]int32, N), make([]float32, N)
			s.dev.Sample(ids, logp, h, w, c, u)
			if i := slices.IndexFunc(ids, func(id int32) bool { return int(id) >= V }); i >= 0 {
				s.t.Errorf("%+v: draws id %d of %d tokens", c, ids[i], V)
			}
			s.checkLikeLogProb(fmt.Sprintf("%+v", c), ids, logp, h, w, c)
			for _, id := range ids {
				logp = append(logp, float32(id))
			}
			keep(fmt.Sprintf("%+v N=%d", c, N), logp)
		}
		for _, t := range []compute.Tensor{h, dlogp, dent} {
			s.dev.Free(t)
		}
	}
	return names, results
}
