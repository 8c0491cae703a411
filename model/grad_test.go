package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// The whole model against central differences, in float64: every parameter
// tensor of every architecture, through log-probabilities and entropies.
func TestFiniteDifferences(t *testing.T) {
	t.Parallel()
	for _, arch := range architectures {
		t.Run(arch, func(t *testing.T) {
			c := tiny(arch)
			if arch == "Llama" {
				c.RopeScaling = &RopeScaling{Type: "yarn", Factor: 8, BetaFast: 8, BetaSlow: 1,
					AttentionFactor: 1.3, OriginalMaxPosition: 32}
			}
			m, err := New(ref.New(), c, Options{Trainable: true, Seed: 11})
			must(t, err)
			shake(m)
			seqs := seqsOf(c.Vocab, 8, 3, 5)
			// Weights of the loss that float32 holds exactly.
			dlogp, dent :=
				[][]float32{{1, -0.5, 0.25, 2, -1, 1}, {0.5, -2}, {1, 1, -0.75, 0.5}},
				[][]float32{{0.5, 1, -1, 0.25, 1, -0.5}, {1, 0.75}, {-0.25, 1, 1, 2}}
			must(t, m.LogProbGrad(seqs, 0.5,
				func(_, _ [][]float32) (_, _ [][]float32, err error) { return dlogp, dent, nil }))
			loss := func() float64 {
				p, err := m.pack(seqs, trainedRows)
				must(t, err)
				a, out := m.activations(len(p.ids), keepNothing), m.headMemory(p)
				must(t, m.ws.Take())
				m.forward(a, p.ids, p.pos, m.attendPack)
				m.be.LogProb(out, a.hND, m.head, p.rows, p.targets, 2)
				wl, _ := p.join(nil, "", dlogp)
				we, _ := p.join(nil, "", dent)
				sum := 0.0
				for r := range p.rows {
					sum += float64(wl[r])*ref.F64(out.LogpR)[r] +
						float64(we[r])*ref.F64(out.EntR)[r]
				}
				return sum
			}
			differences(t, m, 1e-6, loss)
		})
	}
	for which, seqs := range map[reads][]Seq{lastRows: seqsOf(29, 8, 3, 5),
		turnRows: {{IDs: []int32{4, 5, 6, 7, 8, 9, 10, 11},
			Spans: []Span{{From: 2, To: 4}, {From: 6, To: 8}}},
			Answer([]int32{4, 5, 9, 2, 7}, 2)}} {
		t.Run([]string{lastRows: "scorer", turnRows: "scorer of turns"}[which],
			func(t *testing.T) {
				m, err := New(ref.New(), tiny("Qwen2"),
					Options{Kind: Scorer, Trainable: true, Seed: 5, ScoreInit: 1})
				must(t, err)
				shake(m)
				w := []float32{1, -2, 0.5}
				must(t, m.scoreGrad(seqs, which,
					func([]float32) ([]float32, error) { return w, nil }))
				differences(t, m, 1e-6, func() float64 {
					p, err := m.pack(seqs, which)
					must(t, err)
					a, s :=
						m.activations(len(p.ids), keepNothing),
						m.ws.Get("scores [N]", compute.Wide, len(w))
					must(t, m.ws.Take())
					m.forward(a, p.ids, p.pos, m.attendPack)
					m.be.Score(s, a.hND, m.head, p.scored)
					sum := 0.0
					for i, x := range ref.F64(s) {
						sum += float64(w[i]) * x
					}
					return sum
				})
			})
	}
}

// differences checks some elements of each parameter, within a relative difference.
func differences(t *testing.T, m *Model, within float64, loss func() float64) {
	t.Helper()
	const h = 1e-5
	rng := rand.New(rand.NewPCG(1, 2))
	worst := 0.0
	for _, p := range m.params {
		w, g := ref.F64(p.W), ref.F64(p.G)
		for range 5 {
			i := rng.IntN(len(w))
			keep := w[i]
			w[i] = keep + h
			up := loss()
			w[i] = keep - h
			down := loss()
			w[i] = keep
			want := (up - down) / (2 * h)
			off := math.Abs(g[i]-want) / (math.Abs(want) + 1e-1)
			worst = max(worst, off)
			if !(off < within) {
				t.Errorf("%s: gradient %g, difference %g", fmt.Sprintf("%s[%d]", p.Name, i), g[i],
					want)
			}
		}
	}
	t.Logf("largest relative difference %.2g", worst)
}
