package model

import (
	"strings"
	"testing"

	"gad/internal/compute"
)

// scoreStep puts a gradient into a Scorer that depends on its weights.
func scoreStep(t *testing.T, m *Model) {
	t.Helper()
	must(t, m.ScoreGrad(seqsOf(m.cfg.Vocab, 9, 14), func(s []float32) ([]float32, error) {
		for i := range s {
			s[i] = 1 - s[i]
		}
		return s, nil
	}))
}

// Two models that learn in turn have the bits of two that learn apart, in one block of
// gradients: that of the larger.
func TestTurns(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		// a student with few parameters: the block grows for the other
		for _, small := range []LoRA{{}, {Rank: 2}} {
			run := func(turns bool) (states [][]float32, bytes int64) {
				before, _ := be.Memory()
				base, err := New(be, tiny("Qwen2"), Options{Seed: 1})
				must(t, err)
				defer base.Close()
				var lm *Model
				if small.On() {
					lm, err = base.Adapt(Options{Trainable: true, Seed: 1, LoRA: small})
				} else {
					lm, err = New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
				}
				must(t, err)
				defer lm.Close()
				o := Options{Kind: Scorer, Trainable: true, Seed: 2, ScoreInit: 0.1}
				if turns {
					o.Turns = lm
				}
				sc, err := New(be, tiny("Qwen2"), o)
				must(t, err)
				defer sc.Close()
				held, _ := be.Memory()
				a, err := NewOptimizer(lm, adamw())
				must(t, err)
				c, err := NewOptimizer(sc, adamw())
				must(t, err)
				for range 3 {
					scoreStep(t, sc)
					_, _, err = c.step(0.01)
					must(t, err)
					trainStep(t, lm)
					_, _, err = a.step(0.01)
					must(t, err)
				}
				return append(state(lm), state(sc)...), held - before
			}
			apart, much := run(false)
			turns, less := run(true)
			sameState(t, "weights and moments", turns, apart)
			lm, sc := tiny("Qwen2").arrange(LM).params, tiny("Qwen2").arrange(Scorer).params
			if small.On() {
				l := tiny("Qwen2").arrange(LM)
				lm, _ = l.newAdapters(small)
			}
			saved := be.Element(compute.Wide) * int64(min(extent(lm), extent(sc)))
			if much-less != saved {
				t.Errorf("%v: gradients in turn save %d bytes, want %d", small, much-less, saved)
			}
		}
	})
}

// A gradient that has not been stepped is not overwritten by the other model's.
func TestTurnsInTurn(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		lm, err := New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
		must(t, err)
		sc, err := New(be, tiny("Qwen2"),
			Options{Kind: Scorer, Trainable: true, Seed: 2, ScoreInit: 0.1, Turns: lm})
		must(t, err)
		o, err := NewOptimizer(lm, adamw())
		must(t, err)
		seed := func(s []float32) ([]float32, error) { return s, nil }
		trainStep(t, lm)
		err = sc.ScoreGrad(seqsOf(sc.cfg.Vocab, 9), seed)
		if err == nil || !strings.Contains(err.Error(), "step its optimizer first") {
			t.Errorf("a gradient over another's: %v", err)
		}
		if _, err := New(be, tiny("Qwen2"), Options{Trainable: true, Turns: lm}); err == nil {
			t.Error("shared gradients that held something")
		}
		must(t, o.ZeroGrad())
		must(t, sc.ScoreGrad(seqsOf(sc.cfg.Vocab, 9), seed))
		frozen, err := New(be, tiny("Qwen2"), Options{Seed: 1})
		must(t, err)
		if _, err := New(be, tiny("Qwen2"), Options{Trainable: true, Turns: frozen}); err == nil {
			t.Error("shared the gradients of a frozen model")
		}
		// In any order of closing, all memory comes back.
		must(t, lm.Close())
		must(t, sc.ScoreGrad(seqsOf(sc.cfg.Vocab, 9), seed))
		must(t, sc.Close())
		must(t, frozen.Close())
		if in, _ := be.Memory(); in > 1<<17 { // scratch
			t.Errorf("%d bytes are left", in)
		}
	})
}

// Sampling in the memory of the gradients gives what it gives elsewhere, and leaves them
// zero; gradients that hold something are not lent.
func TestLentGradients(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, pages := range []int{0, 4, 64} { // 64: the cache is larger than the gradients
			prompts, rows := [][]int32{{1, 2, 3}, {4, 5}}, []uint64{0, 1}
			o := SampleOptions{N: 3, MaxNew: 6, Slots: 4, PageTokens: pages, Seed: 3,
				Sampling: Sampling{Temperature: 1, TopP: 1}}
			frozen, err := New(be, tiny("Qwen2"), Options{Seed: 1})
			must(t, err)
			want, err := frozen.Generate(prompts, rows, o, nil)
			must(t, err)
			must(t, frozen.Close())
			m, err := New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
			must(t, err)
			opt, err := NewOptimizer(m, adamw())
			must(t, err)
			sampled := func(what string) {
				t.Helper()
				got, err := m.Generate(prompts, rows, o, nil)
				must(t, err)
				for p := range want {
					for s := range want[p] {
						same(t, what, got[p][s].Logp, want[p][s].Logp)
					}
				}
			}
			caches := func() (n int) {
				for what := range m.ws.Bufs {
					if strings.Contains(what.What, "cache") {
						n++
					}
				}
				return n
			}
			sampled("log-probabilities sampled in the gradients' memory")
			if all := 2 * m.cfg.Layers; caches() == all {
				t.Errorf("pages of %d: all %d caches have memory of their own", pages, all)
			}
			for _, p := range m.params {
				for _, x := range values(be, p.G) {
					if x != 0 {
						t.Fatalf("pages of %d: %s: a gradient of %g after sampling", pages, p.Name,
							x)
					}
				}
			}
			trainStep(t, m)
			first := values(be, m.params[0].G)
			sampled("log-probabilities sampled beside a gradient")
			same(t, "a gradient, after sampling", values(be, m.params[0].G), first)
			if all := 2 * m.cfg.Layers; caches() != all {
				t.Errorf("pages of %d: %d of %d caches have memory of their own beside a gradient",
					pages, caches(), all)
			}
			must(t, opt.ZeroGrad())
			must(t, m.Close())
		}
	})
}
