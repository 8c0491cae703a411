//go:build nvidia

package model

import (
	"slices"
	"testing"

	"gad/internal/compute/cuda"
)

// said is a story, and what the request is told of its prompt.
type said struct {
	story
	echo []Token
}

// On a GPU a prompt that is passed in parts is answered as on the CPU, where it is not, up to
// rounding; and nothing is kept for later requests, since that would change bits.
func TestCUDALongPrompts(t *testing.T) {
	for _, precision := range []string{cuda.F32, cuda.BF16} {
		t.Run(precision, func(t *testing.T) {
			be := gpu(t, precision)
			c := tensorCore("Qwen2", 64)
			m := narrowed(t, be, c, Options{Seed: 3})
			defer m.Close()
			truth := narrowed(t, processor(t), c, Options{Seed: 3})
			defer truth.Close()
			var got, want []said
			for i, x := range []struct {
				m     *Model
				admit int
				to    *[]said
			}{{m, 10, &got}, {truth, 0, &want}} {
				e, err := x.m.NewEngine(EngineOptions{Slots: 3, PageTokens: 4, Pages: 60,
					Longest: 100, Admit: x.admit, Keep: i == 0})
				must(t, err)
				for _, s := range append(seqsOf(c.Vocab, 45, 7, 70), seqsOf(c.Vocab, 45)...) {
					var y said
					y.story, err = ask(t, e, &Request{Prompt: s.IDs, N: 2, MaxNew: 1, Ranked: true,
						Echo: func(tokens []Token) { y.echo = slices.Clone(tokens) }}, nil)
					must(t, err)
					*x.to = append(*x.to, y)
				}
				e.Close()
			}
			worst := 0.0
			for i, w := range want {
				g := got[i]
				if g.found != 0 {
					t.Errorf("prompt %d: %d tokens were found", i, g.found)
				}
				if len(g.echo) != len(w.echo) || len(g.told) != 2 {
					t.Fatalf("prompt %d: told %+v", i, g)
				}
				for j := range w.echo {
					if g.echo[j].ID != w.echo[j].ID {
						t.Errorf("prompt %d: token %d is %d, want %d", i, j, g.echo[j].ID,
							w.echo[j].ID)
					}
					worst = max(worst, away([]float32{g.echo[j].Logp}, []float32{w.echo[j].Logp}))
				}
				if precision == cuda.F32 && g.told[1].ID != w.told[1].ID {
					t.Errorf("prompt %d: drew %d, on the CPU %d", i, g.told[1].ID,
						w.told[1].ID)
				}
			}
			t.Logf("GPU and CPU differ by at most %.2g", worst)
			if tol := map[string]float64{cuda.F32: 1e-4, cuda.BF16: 0.05}[precision]; worst > tol {
				t.Errorf("GPU and CPU differ by %g", worst)
			}
		})
	}
}
