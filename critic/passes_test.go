package critic

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/model"
)

// passes counts the tokens that pass forward.
type passes struct {
	compute.Backend
	forward int
}

func (p *passes) Embed(y compute.Tensor, table *compute.Param, ids []int32) {
	p.forward += len(ids)
	p.Backend.Embed(y, table, ids)
}

// An update that takes the scores from the gradient's forward pass has the scores, the
// figures and the weights of one that was given them, to the bit, and each answer passes
// forward once, its prompt once for all of them; only where a pair lies in two packs, the
// sequence of the later one passes twice, and an answer that is in no pair passes later,
// with its prompt.
func TestScoresOfTheUpdate(t *testing.T) {
	seqs := batch()
	rows := func(seqs ...model.Seq) (n int) {
		for _, s := range model.Segments(seqs) {
			n += s.Tokens
		}
		return n
	}
	apart := 0
	for _, s := range slices.Concat(seqs.Students, seqs.Teachers) {
		apart += len(s.IDs)
	}
	const prompt = 2
	all := rows(slices.Concat(seqs.Students, seqs.Teachers)...)
	// of the first prompt, which then fill a pack
	first := rows(append(seqs.Students[:3:3], seqs.Teachers[0])...)
	if all != apart-2*3*prompt {
		t.Fatalf("%d tokens, %d with a prompt for each answer", all, apart)
	}
	for _, c := range []struct {
		name  string
		set   func(*Config)
		batch func(*Batch)
		// Tokens that pass forward without fresh scores: all, and so many more.
		more int
	}{
		{"one pack", nil, nil, 0},
		{"recomputed", func(c *Config) { c.Recompute = true }, nil, 0},
		{"a pack for each prompt", func(c *Config) { c.MaxTokenLen = first }, nil, 0},
		{"a pack for each sequence", func(c *Config) { c.MaxTokenLen = 1 }, nil,
			2*apart - len(seqs.Teachers[0].IDs) - len(seqs.Teachers[1].IDs) - all},
		{"cross entropy with a penalty",
			func(c *Config) { c.Loss, c.ScoreL2, c.MaxTokenLen = "bce", 0.01, first }, nil, 0},
		{"group term", func(c *Config) { c.GroupOT = 0.01 }, nil, 0},
		{"group term in two packs", func(c *Config) { c.GroupOT, c.MaxTokenLen = 0.01, first }, nil,
			all},
		{"left out", nil, func(b *Batch) { b.Skip[1], b.Skip[4] = true, true }, 2 * prompt},
		{"a prompt left out", nil,
			func(b *Batch) { b.Skip[3], b.Skip[4], b.Skip[5] = true, true, true }, 0},
		{"no pairs", nil, func(b *Batch) { b.Skip = []bool{true, true, true, true, true, true} },
			0},
		{"a tie", nil, func(b *Batch) { b.Students[4] = b.Teachers[1] },
			len(seqs.Teachers[1].IDs) - len(seqs.Students[4].IDs) + prompt},
		{"two mini-batches", func(c *Config) { c.PPOMiniBatch = 1 }, nil, all - first},
	} {
		t.Run(c.name, func(t *testing.T) {
			var weights [][]uint32
			var stats []string
			var scores [][]float32
			for _, given := range []bool{true, false} {
				d, s := newCritic(t, c.set)
				p := &passes{Backend: s.Backend}
				s.Backend = p
				b := batch()
				if c.batch != nil {
					c.batch(&b)
				}
				if given {
					fresh(t, d, &b)
				}
				want := slices.Clone(slices.Concat(b.ScoreS, b.ScoreP))
				p.forward = 0
				st := update(t, d, b)
				got := slices.Concat(st.ScoreS, st.ScoreP)
				if given && !slices.Equal(got, want) {
					t.Errorf("scores %v, given %v", got, want)
				}
				if !given && p.forward != all+c.more {
					t.Errorf("%d tokens pass forward, want %d and %d more", p.forward, all, c.more)
				}
				st.ScoreS, st.ScoreP = nil, nil
				weights, stats, scores =
					append(weights, bits(d, s)), append(stats, fmt.Sprintf("%+v", st)),
					append(scores, got)
			}
			if !slices.Equal(weights[0], weights[1]) || stats[0] != stats[1] ||
				!slices.Equal(scores[0], scores[1]) {
				t.Errorf(
					"the update's own scores %v, statistics %s; given %v, %s; weights equal: %v",
					scores[1], stats[1], scores[0], stats[0], slices.Equal(weights[0], weights[1]))
			}
		})
	}
}

// With a pool of earlier answers too each sequence of an update passes forward once, and
// what has given way to the pool is scored all the same.
func TestScoresOfTheUpdateWithAPool(t *testing.T) {
	var weights [][]uint32
	var scores [][]float32
	for _, given := range []bool{true, false} {
		d, s := newCritic(t,
			func(c *Config) { c.Replay = Replay{Size: 100, Share: 0.5, Live: true} })
		update(t, d, batch())
		b := batch()
		b.Step = 1
		before, err := d.Score(slices.Concat(b.Students, b.Teachers))
		if err != nil {
			t.Fatal(err)
		}
		if given {
			fresh(t, d, &b)
		}
		st := update(t, d, b)
		if got := slices.Concat(st.ScoreS, st.ScoreP); !slices.Equal(got, before) ||
			st.Pooled != 0.5 {
			t.Errorf("given %v: scores %v, want %v of the weights before the update; share of the pool %g", given, got, before, st.Pooled)
		}
		weights, scores = append(weights, bits(d, s)), append(scores, before)
	}
	if !slices.Equal(weights[0], weights[1]) || !slices.Equal(scores[0], scores[1]) {
		t.Error("scores from the update's own pass give other weights")
	}
}

// An update in mini-batches has the bits of one update for each of them, one after another,
// whether their size divides the batch or not, and whether scores are given or not: behind an
// optimizer step no score of older weights is learned from.
func TestMiniBatchesAreUpdates(t *testing.T) {
	three := batch()
	three.Students = append(three.Students, seq(9, 10, 19, 1), seq(9, 10, 20, 21, 1))
	three.Group = append(three.Group, 2, 2)
	three.Teachers = append(three.Teachers, seq(9, 10, 33, 1))
	three.Skip = make([]bool, len(three.Students))
	part := func(lo, hi int) Batch {
		b := Batch{Teachers: three.Teachers[lo:hi]}
		for s, g := range three.Group {
			if g >= lo && g < hi {
				b.Students = append(b.Students, three.Students[s])
				b.Group, b.Skip = append(b.Group, g-lo), append(b.Skip, false)
			}
		}
		return b
	}
	for _, c := range []struct{ mini, epochs, updates int }{
		{3, 1, 1}, {2, 1, 2}, {1, 1, 3}, {2, 2, 4}} {
		set := func(cfg *Config) {
			cfg.PPOMiniBatch, cfg.PPOEpochs, cfg.ScoreL2 = c.mini, c.epochs, 0.01
		}
		apart, be := newCritic(t, func(cfg *Config) { set(cfg); cfg.PPOEpochs = 1 })
		var loss, pairs float64
		for range c.epochs {
			for lo := 0; lo < 3; lo += c.mini {
				st := update(t, apart, part(lo, min(lo+c.mini, 3)))
				loss, pairs = loss+st.Loss*st.Pairs, pairs+st.Pairs
			}
		}
		want := bits(apart, be)
		for _, given := range []bool{false, true} {
			d, be := newCritic(t, set)
			b := three
			if given {
				fresh(t, d, &b)
			}
			st := update(t, d, b)
			if st.Updates != c.updates || st.Pairs != pairs ||
				math.Abs(st.Loss-loss/pairs) > 1e-12 {
				t.Errorf("mini-batches of %d of 3 prompts, %d epochs, scores given %v: %d updates, %g pairs, loss %g: want %d, %g, %g",
					c.mini, c.epochs, given, st.Updates, st.Pairs, st.Loss, c.updates, pairs, loss/pairs)
			}
			if !slices.Equal(bits(d, be), want) {
				t.Errorf("mini-batches of %d of 3 prompts, %d epochs, scores given %v: not the weights of an update for each mini-batch",
					c.mini, c.epochs, given)
			}
		}
	}
}

// A score that is not finite, found in the middle of an update, leaves weights and moments,
// and the other sequences have their scores.
func TestScoresOfTheUpdateNotFinite(t *testing.T) {
	d, s := newCritic(t, func(c *Config) { c.MaxTokenLen = 1 })
	update(t, d, batch())
	before := bits(d, s)
	bad := &poison{Backend: s.Backend}
	s.Backend = bad
	bad.on = true
	st := update(t, d, batch())
	bad.on = false
	if st.Skipped != 1 || st.Updates != 0 || !slices.Equal(bits(d, s), before) {
		t.Errorf("%d skipped, %d updates, weights unchanged: %v", st.Skipped, st.Updates,
			slices.Equal(bits(d, s), before))
	}
	if len(st.ScoreS) != 6 || len(st.ScoreP) != 2 {
		t.Errorf("%d and %d scores", len(st.ScoreS), len(st.ScoreP))
	}
	if clean := update(t, d, batch()); clean.Updates != 1 {
		t.Errorf("after it %+v, want an update", clean)
	}
}

// poison makes the score of a pack of one sequence infinite.
type poison struct {
	compute.Backend
	on bool
}

func (p *poison) Download(dst []float32, src compute.Tensor) {
	p.Backend.Download(dst, src)
	if p.on && len(dst) == 1 {
		dst[0] = float32(math.Inf(1))
	}
}
