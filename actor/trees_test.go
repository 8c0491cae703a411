package actor

import (
	"context"
	"math"
	"slices"
	"testing"

	"gad/algos"
	"gad/model"
)

// grown are two trees of answers to each of two prompts, whose branches are sampled behind given
// places of the answers before them; and the same answers with every path whole.
func grown(t *testing.T, a *Actor) (once, paths Rollout, branches []algos.Branch) {
	t.Helper()
	key := Key{Seed: 1, Step: 2, Rows: []int{4, 7}}
	// none ends before the limit
	first, err := a.Answers(context.Background(), prompts, 2, nil, nil, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	for p, q := range prompts {
		of := []algos.Branch{{Parent: -1}, {Tree: 1, Parent: -1}}
		answers := [][]int32{first[p][0].IDs, first[p][1].IDs}
		for _, b := range []algos.Branch{{Parent: 0, At: 3}, {Parent: 0, At: 5},
			{Parent: 2, At: 6}, {Tree: 1, Parent: 1, At: 2 + p}, {Tree: 1, Parent: 1}} {
			shared := answers[b.Parent][:b.At]
			out, err := a.Answers(context.Background(), [][]int32{slices.Concat(q, shared)}, 1,
				[]model.Begun{{Sample: len(answers), Drawn: b.At}}, nil,
				Key{Seed: 1, Step: 2, Rows: key.Rows[p : p+1]}, nil)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, slices.Concat(shared, out[0][0].IDs))
			of = append(of, b)
		}
		own := make([]int, len(of))
		for s, b := range of {
			own[s] = len(answers[s]) - b.At
		}
		nodes, err := algos.Nodes(of, own)
		if err != nil {
			t.Fatal(err)
		}
		base := len(branches)
		for s, b := range of {
			seq := model.Seq{IDs: slices.Concat(q, answers[s]), Shared: len(q), Branching: true}
			for _, n := range nodes {
				if n.Answer == s {
					seq.Spans = append(seq.Spans, model.Span{From: len(q) + n.From,
						To: len(q) + n.To})
				}
			}
			once = append(once, &Sequence{Seq: seq, Group: p, Answer: len(once),
				Whole: len(answers[s])})
			paths = append(paths, &Sequence{Seq: model.Answer(seq.IDs, len(q)), Group: p,
				Answer: len(paths)})
			if b.Tree += 2 * p; b.Parent >= 0 {
				b.Parent += base
			}
			branches = append(branches, b)
		}
	}
	for _, r := range []Rollout{once, paths} {
		if err := a.RecomputeOld(r); err != nil {
			t.Fatal(err)
		}
		for _, s := range r {
			s.Sampled = s.Old
		}
	}
	return once, paths, branches
}

// An actor whose answers branch.
func branching(t *testing.T, edit func(*Config)) (*Actor, *spy) {
	t.Helper()
	a, s := student(t, edit)
	roll := a.roll
	roll.Tree.Trees, roll.Tree.Rounds = 2, 1
	b, err := New(a.m, a.cfg, roll, 10, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.policy.Close(); b.sft.Close() })
	return b, s
}

// Each token learned once, with the sum of the advantages of all answers that it is part of, has
// the student's gradient of every answer's whole path learned (Tree-GRPO), at ratio 1: whether rows
// of the objective are nodes or answers, by token, by answer, and with gspo's mean over an answer,
// of as many tokens for all.
func TestTokensOfTreesAreLearnedOnce(t *testing.T) {
	score := []float64{.3, -2, 1.7, .1, 4, -.6, 2, 1, 1, 0, 3, -1, 0, .5}
	for _, loss := range []string{"gspo", "vanilla"} {
		for _, level := range []string{"turn", "episode"} {
			for _, agg := range []string{"seq-mean-token-sum", "seq-mean-token-sum-norm",
				"seq-mean-token-mean"} {
				edit := levelled(loss, agg, level)
				var grads []map[string][]float32
				for _, whole := range []bool{false, true} {
					a, spy := branching(t, func(c *Config) {
						edit(c)
						c.EntropyCoeff, c.PolicyLoss.TauPos = 0, 1
						if whole {
							c.RatioLevel = "episode"
						}
					})
					once, paths, branches := grown(t, a)
					in := algos.AdvantageInput{Scores: score, Group: once.Groups(),
						Branches: branches}
					in.Mask = once.Mask()
					adv, err := algos.Advantages(algos.AdvantageConfig{Name: "tree_grpo"}, in)
					if err != nil {
						t.Fatal(err)
					}
					r := once
					if whole {
						last := func(s int) float64 { return adv[s][once[s].Seq.Trained()-1] }
						r, adv = paths, spread(paths, func(s, _ int) float64 { return last(s) })
					}
					if _, err := a.Update(with(r, adv)); err != nil {
						t.Fatal(err)
					}
					grads = append(grads, spy.grads)
				}
				if d := distance(t, grads[0], grads[1], 1); d > 1e-6 {
					t.Errorf("%s by %s, %s: the gradient differs by %g", loss, level, agg, d)
				}
			}
		}
	}
}

// gspo's loss at ratio 1 is minus the mean over answers of (sum over own tokens of A) / (tokens of
// the whole answer): a short branch of a long answer weighs little. The ratio is a node's.
func TestLossOfTrees(t *testing.T) {
	a, _ := branching(t, levelled("gspo", "token-mean", "turn"))
	once, _, _ := grown(t, a)
	once[3].Whole = 80 // as if all that it shares were longer
	adv := spread(once, func(s, t int) float64 { return float64(s) - 3 })
	want, nodes := 0.0, 0
	for s, seq := range once.Seqs() {
		want -= adv[s][0] * float64(seq.Trained()) / float64(once[s].Whole) /
			float64(len(once))
		nodes += len(seq.Spans)
	}
	st, err := a.Update(with(once, adv))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(st.PGLoss-want) > 1e-5 || st.SeqSum != float64(nodes) || nodes != 22 {
		t.Errorf("loss %g of %g rows, want %g of %d nodes", st.PGLoss, st.SeqSum, want, nodes)
	}
	a, _ = branching(t, levelled("gspo", "token-mean", "turn"))
	once, _, _ = grown(t, a)
	shift := []float32{.1, -.3, .2}
	drift(once, func(_, node int) float32 { return shift[node] })
	st, err = a.Update(with(once, adv))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(st.FirstRatioMin-math.Exp(-.3)) > 1e-5 ||
		math.Abs(st.FirstRatioMax-math.Exp(.2)) > 1e-5 {
		t.Errorf("ratios from %g to %g, want those of nodes", st.FirstRatioMin, st.FirstRatioMax)
	}
}
