package actor

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"gad/algos"
	"gad/model"
)

// acted is a rollout of eight sequences that are six episodes: the first two sequences of each
// prompt are one episode with rebuilt contexts. Behind the first token of an answer one token, and
// behind its fourth two, are an environment's.
func acted(t *testing.T, a *Actor) Rollout {
	t.Helper()
	r := rolled(t, a)
	for i, s := range r {
		from, n := s.Seq.Prompt(), len(s.Seq.IDs)
		s.Seq.Spans = nil
		for _, span := range []model.Span{{From: from, To: from + 1},
			{From: from + 2, To: from + 4}, {From: from + 6, To: n}} {
			if span.To = min(span.To, n); span.From < span.To {
				s.Seq.Spans = append(s.Seq.Spans, span)
			}
		}
		s.Answer = []int{0, 0, 1, 2, 3, 3, 4, 5}[i]
	}
	if err := a.RecomputeOld(r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r {
		s.Sampled = s.Old
	}
	return r
}

// apart is the same rollout with a sequence for each span.
func apart(r Rollout, advST [][]float64) (out Rollout, adv [][]float64) {
	for i, s := range r {
		at := 0
		for _, span := range s.Seq.Spans {
			n := span.To - span.From
			one := *s
			one.Seq = model.Answer(s.Seq.IDs[:span.To:span.To], span.From)
			one.Old, one.Sampled = s.Old[at:at+n], s.Sampled[at:at+n]
			out = append(out, &one)
			adv = append(adv, advST[i][at:at+n])
			at += n
		}
	}
	return out, adv
}

// drift moves the old log-probabilities of each turn by its own amount.
func drift(r Rollout, by func(s, turn int) float32) {
	for i, s := range r {
		var old []float32
		for turn, span := range s.Seq.Spans {
			for range span.To - span.From {
				old = append(old, s.Old[len(old)]-by(i, turn))
			}
		}
		s.Old = old
	}
}

func levelled(loss, agg, level string) func(*Config) {
	return func(c *Config) {
		c.PolicyLoss.LossMode, c.LossAggMode, c.RatioLevel, c.EntropyCoeff = loss, agg, level, 0.01
		c.ClipRatioLow, c.ClipRatioHigh = .2, .3
	}
}

// Single answers are one turn: weights, moments and figures have the same bits at both levels.
func TestOneTurnIsTheSameAtBothLevels(t *testing.T) {
	for _, loss := range []string{"gspo", "vanilla", "geo_mean"} {
		for _, agg := range []string{"token-mean", "seq-mean-token-mean"} {
			var states [][]uint32
			var stats []Stats
			for _, level := range []string{"turn", "episode", "auto"} {
				a, spy := student(t, levelled(loss, agg, level))
				r := rolled(t, a)
				drift(r, func(s, _ int) float32 { return .1 * float32(s-3) })
				st, err := a.Update(with(r, spread(r, winnersAndLosers)))
				if err != nil {
					t.Fatal(err)
				}
				states, stats = append(states, state(t, a, spy)), append(stats, st)
			}
			for k := range states {
				if !slices.Equal(states[k], states[0]) || !reflect.DeepEqual(stats[k], stats[0]) {
					t.Errorf("%s, %s: the levels differ: %+v, %+v", loss, agg, stats[0], stats[k])
				}
			}
		}
	}
}

// With ratio_level=turn a sequence of several spans is learned as if each span were a sequence of
// its own: figures and gradient, under every aggregation.
func TestTurnsAreRows(t *testing.T) {
	for _, loss := range []string{"gspo", "vanilla", "geo_mean"} {
		for _, agg := range algos.AggNames() {
			t.Run(loss+"/"+agg, func(t *testing.T) {
				var stats []Stats
				var grads []map[string][]float32
				for _, whole := range []bool{true, false} {
					a, spy := student(t, levelled(loss, agg, "turn"))
					r := acted(t, a)
					drift(r, func(s, turn int) float32 {
						return .05 * float32(s-3) * float32(turn+1)
					})
					adv := spread(r, func(s, t int) float64 { return float64(s-3) + .1*float64(t) })
					if !whole {
						r, adv = apart(r, adv)
					}
					st, err := a.Update(with(r, adv))
					if err != nil {
						t.Fatal(err)
					}
					stats, grads = append(stats, st), append(grads, spy.grads)
				}
				near(t, "a sequence for each turn", stats[0], stats[1])
				if d := distance(t, grads[0], grads[1], 1); d > 1e-5 {
					t.Errorf("the gradient differs by %g", d)
				}
				if stats[0].SeqSum < 16 {
					t.Errorf("%g rows of 8 sequences: there are hardly any turns", stats[0].SeqSum)
				}
			})
		}
	}
}

// GSPO's ratio is over a turn's tokens or over those of all turns of the sequence.
func TestRatioLevel(t *testing.T) {
	shift := []float32{.1, -.3, .2}
	for _, level := range []string{"turn", "episode"} {
		a, _ := student(t, levelled("gspo", "token-mean", level))
		r := acted(t, a)
		lo, hi := math.Inf(1), math.Inf(-1)
		rows := 0
		for _, seq := range r.Seqs() {
			var sum, n float64
			for k, span := range seq.Spans {
				x := float64(span.To - span.From)
				sum, n = sum+x*float64(shift[k]), n+x
				if level == "turn" || k == len(seq.Spans)-1 {
					lo, hi = min(lo, sum/n), max(hi, sum/n)
					rows++
				}
				if level == "turn" {
					sum, n = 0, 0
				}
			}
		}
		drift(r, func(_, turn int) float32 { return shift[turn] })
		st, err := a.Update(with(r, spread(r, winnersAndLosers)))
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(st.FirstRatioMin-math.Exp(lo)) > 1e-5 ||
			math.Abs(st.FirstRatioMax-math.Exp(hi)) > 1e-5 || st.SeqSum != float64(rows) {
			t.Errorf("%s: ratios from %g to %g of %g rows, want %g to %g of %d", level,
				st.FirstRatioMin, st.FirstRatioMax, st.SeqSum, math.Exp(lo), math.Exp(hi), rows)
		}
	}
}

// Flow-GRPO's weights reach the tokens: with gpg, an advantage of 1 and a frozen student the loss
// is minus the mean over episodes of the mean over turns of the mean log-probability of a turn.
func TestEpisodeMean(t *testing.T) {
	a, _ := student(t, func(c *Config) {
		c.PolicyLoss.LossMode, c.LossAggMode = "gpg", algos.EpisodeMean
		c.Optim.LR = 0
	})
	r := acted(t, a)
	turns, sums := map[int]float64{}, map[int]float64{}
	for s, seq := range r.Seqs() {
		at := 0
		for _, span := range seq.Spans {
			var sum float64
			for range span.To - span.From {
				sum += float64(r[s].Old[at])
				at++
			}
			turns[r[s].Answer]++
			sums[r[s].Answer] += sum / float64(span.To-span.From)
		}
	}
	var want float64
	for e := range sums {
		want -= sums[e] / turns[e] / float64(len(sums))
	}
	st, err := a.Update(with(r, spread(r, func(_, _ int) float64 { return 1 })))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(st.Loss-want) > 1e-5*math.Abs(want) {
		t.Errorf("loss %g, want %g", st.Loss, want)
	}
}
