package actor

import (
	"context"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
)

// bits returns weights and moments.
func bits(a *Actor, be compute.Backend) (out []uint32) {
	for _, p := range a.m.Params() {
		for _, x := range []compute.Tensor{p.W, p.M, p.V} {
			v := make([]float32, p.Len())
			be.Download(v, x)
			for _, f := range v {
				out = append(out, math.Float32bits(f))
			}
		}
	}
	return out
}

// part returns the answers to prompts lo to hi of a rollout.
func part(r Rollout, lo, hi int) (out Rollout) {
	for _, s := range r {
		if lo <= s.Group && s.Group < hi {
			one := *s
			one.Group -= lo
			out = append(out, &one)
		}
	}
	return out
}

// An update in mini-batches has the bits of one update for each of them, one after another,
// whether their size divides the batch or not: each prompt is learned once an epoch.
func TestMiniBatchesAreUpdates(t *testing.T) {
	three := [][]int32{{5, 6, 7, 8}, {9, 10, 11}, {12, 13}}
	for _, c := range []struct{ mini, epochs, passes int }{
		{3, 1, 1}, {2, 1, 2}, {1, 1, 3}, {2, 2, 4}} {
		set := func(cfg *Config) { cfg.PPOMiniBatch, cfg.PPOEpochs = c.mini, c.epochs }
		a, be := student(t, set)
		r, err := a.Rollout(context.Background(), three, []int32{1, 2},
			Key{Seed: 1, Step: 2, Rows: []int{4, 7, 9}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.RecomputeOld(r); err != nil {
			t.Fatal(err)
		}
		adv := spread(r, func(s, _ int) float64 { return float64(1-2*(s%2)) * float64(1+s) })
		st, err := a.Update(with(r, adv))
		if err != nil {
			t.Fatal(err)
		}
		if st.Passes != c.passes || st.Updates != c.passes {
			t.Errorf("mini-batches of %d of 3 prompts, %d epochs: %d passes, %d updates, want %d",
				c.mini, c.epochs, st.Passes, st.Updates, c.passes)
		}
		b, beB := student(t, func(cfg *Config) { set(cfg); cfg.PPOEpochs = 1 })
		for range c.epochs {
			for lo := 0; lo < 3; lo += c.mini {
				one := part(r, lo, min(lo+c.mini, 3))
				if _, err := b.Update(one); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !slices.Equal(bits(a, be), bits(b, beB)) {
			t.Errorf("mini-batches of %d of 3 prompts, %d epochs: not the weights of an update for each mini-batch", c.mini, c.epochs)
		}
	}
}
