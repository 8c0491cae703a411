package model

import (
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// Models that share their memory for activations compute, taking turns, what they
// compute alone; it is counted once; and it is there until the last one is closed.
func TestShare(t *testing.T) {
	c := tiny("Qwen3")
	seqs, long := seqsOf(29, 30, 20), seqsOf(29, 41, 7, 22)
	type outcome struct {
		numbers []float32
		used    int64
		be      *ref.Backend
		models  []*Model
	}
	play := func(share bool) (o outcome) {
		o.be = ref.New()
		for _, opt := range []Options{{Kind: LM, Trainable: true, Seed: 1},
			{Kind: Scorer, Trainable: true, Seed: 2, ScoreInit: 0.1}, {Kind: LM, Seed: 3}} {
			m, err := New(o.be, c, opt)
			must(t, err)
			if share && len(o.models) > 0 {
				m.Share(o.models[0])
			}
			o.models = append(o.models, m)
		}
		student, critic, frozen := o.models[0], o.models[1], o.models[2]
		keep := func(lists ...[]float32) {
			for _, l := range lists {
				o.numbers = append(o.numbers, l...)
			}
		}
		for turn := range 3 {
			out, err := student.Generate([][]int32{{1, 2, 3}}, []uint64{uint64(turn)},
				SampleOptions{N: 2, MaxNew: 6, Slots: 2, Seed: 1,
					Sampling: compute.Sampling{Temperature: 1}}, nil)
			must(t, err)
			for _, a := range out[0] {
				keep(a.Logp)
			}
			scores, err := critic.Scores(long)
			must(t, err)
			keep(scores)
			logp, _, err := frozen.LogProbs(seqs, 1)
			must(t, err)
			keep(logp...)
			must(t, student.LogProbGrad(seqs, 1,
				func(l, e [][]float32) (_, _ [][]float32, err error) {
					keep(l...)
					return l, e,
						nil
				}))
			must(t, critic.ScoreGrad(long,
				func(s []float32) ([]float32, error) { keep(s); return s, nil }))
		}
		for _, m := range o.models {
			for _, p := range m.Params() {
				if p.G.Len() > 0 {
					g := make([]float32, p.G.Len())
					o.be.Download(g, p.G)
					keep(g)
				}
			}
		}
		o.used, _ = o.be.Memory()
		return o
	}
	alone, shared := play(false), play(true)
	if !slices.Equal(shared.numbers, alone.numbers) {
		t.Error("models that share compute other numbers")
	}
	plans := []Plan{
		c.Plan(shared.be, PlanOptions{Trainable: true, Tokens: 50, Slots: 2, N: 2, Prompts: 1,
			PromptTokens: 3, MaxNew: 6}),
		c.Plan(shared.be, PlanOptions{Kind: Scorer, Trainable: true, Tokens: 70}),
		c.Plan(shared.be, PlanOptions{Tokens: 50}),
	}
	saved := -SharedActivations(plans...)
	for _, p := range plans {
		saved += p.Activations
	}
	// what grows with rows is shared as well
	if got := alone.used - shared.used; got < saved || got > saved+saved/20 {
		t.Errorf("sharing saves %d bytes, the plan says %d", got, saved)
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		o := play(true)
		for n, i := range order {
			must(t, o.models[i].Close())
			if last := o.models[order[2]]; n < 2 { // those that are left go on
				if last.opt.Kind == Scorer {
					_, err := last.Scores(long)
					must(t, err)
				} else {
					_, _, err := last.LogProbs(seqs, 1)
					must(t, err)
				}
			}
		}
		if used, _ := o.be.Memory(); used != 0 {
			t.Errorf("closed in the order %v: %d bytes are left", order, used)
		}
	}
}
