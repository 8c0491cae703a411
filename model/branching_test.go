package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/model/internal/sequence"
)

// sprouts are n sequences behind a prompt of so many tokens, in trees: each begins with a part of
// an earlier one, cut anywhere, and trains what it adds in spans of up to four tokens; then one
// that is a part of another, and two that are equal. Few ids are used, so that some share more.
func sprouts(r *rand.Rand, prompt, n int) (seqs []Seq) {
	add := func(ids []int32, from int) {
		s := Seq{IDs: ids, Shared: prompt, Branching: true}
		for ; from < len(ids); from += 4 {
			s.Spans = append(s.Spans, Span{From: from, To: min(len(ids), from+4)})
		}
		seqs = append(seqs, s)
	}
	for i := range n {
		ids, at := make([]int32, prompt), prompt
		for t := range ids {
			ids[t] = int32(prompt+t) % 29
		}
		if i > 0 {
			before := seqs[r.IntN(i)].IDs
			at = prompt + r.IntN(len(before)-prompt)
			ids = slices.Clone(before[:at])
		}
		for range 1 + r.IntN(12) {
			ids = append(ids, int32(r.IntN(4)))
		}
		add(ids, at)
	}
	longest := slices.MaxFunc(seqs, func(a, b Seq) int { return len(a.IDs) - len(b.IDs) }).IDs
	add(longest[:max(prompt+1, len(longest)-2)], prompt)
	add(slices.Clone(longest), prompt)
	return seqs
}

// distinct is how many tokens have to be computed for seqs: one for each different beginning, and
// each sequence's last.
func distinct(seqs []Seq) int {
	known := map[string]bool{}
	for _, s := range seqs {
		for n := 1; n < len(s.IDs); n++ {
			known[fmt.Sprint(s.IDs[:n])] = true
		}
	}
	return len(known) + len(seqs)
}

// Sequences that branch have the bits of the same ones apart, in log-probabilities, entropies, and
// scores of answers and of turns, and their gradients but for the order of sums; and a pass
// computes what they have in common once, at any depth.
func TestBranchingSequences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	seqs := slices.Concat(sprouts(r, 9, 14), sprouts(r, 1, 3), sprouts(r, 40, 9))
	var tr sequence.Tree
	tr.Grow(seqs[:16])
	deepest := 0
	for k := range tr.Runs {
		depth := 0
		for up := tr.Runs[k].Parent; up >= 0; up = tr.Runs[up].Parent {
			depth++
		}
		deepest = max(deepest, depth)
	}
	if deepest < 3 {
		t.Fatalf("runs %v: no branches of branches", tr.Runs)
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			if testing.Short() && arch != "Gemma3" && arch != "Qwen3" {
				continue // one with windows, one without
			}
			lm, scorer := networks(t, be, arch)
			defer lm.Close()
			defer scorer.Close()
			tokens := 0
			lm.Watch(func(n int) { tokens += n })
			type result struct {
				values, grads [][]float32
				tokens        int
			}
			pass := func(apart bool) (out result) {
				lm.unshared, scorer.unshared = apart, apart
				tokens = 0
				l, e, err := lm.LogProbs(seqs, 0.8)
				must(t, err)
				out.tokens = tokens
				v, err := scorer.Scores(seqs)
				must(t, err)
				turns, err := scorer.scores(seqs, turnRows)
				must(t, err)
				out.values = append(append(append(out.values, l...), e...), v, turns)
				learns(t, lm, seqs, l, e)
				keep := func(m *Model) {
					for _, p := range m.params {
						out.grads = append(out.grads, values(be, p.G))
						be.Zero(p.G)
					}
				}
				keep(lm)
				must(t, scorer.ScoreGrad(seqs, func(score []float32) ([]float32, error) {
					same(t, "score with a gradient", score, v)
					return score, nil
				}))
				keep(scorer)
				must(t, scorer.TurnScoreGrad(seqs, func(score []float32) ([]float32, error) {
					same(t, "turns' scores with a gradient", score, turns)
					return score, nil
				}))
				keep(scorer)
				return out
			}
			want, got := pass(true), pass(false)
			for i := range want.values {
				same(t, "value", got.values[i], want.values[i])
			}
			worst := worstGradient(got.grads, want.grads)
			limit := 1e-5
			if be.Name() == "ref" {
				limit = 1e-7 // what is read is rounded
			} else if tiny(arch).Stateful() { // norms of small outputs
				limit = 5e-5
			}
			if worst > limit {
				t.Errorf("%s: a gradient is off by %.3g of its norm", be.Name(), worst)
			}
			all := 0
			for _, s := range Segments(seqs) {
				all += s.Tokens
			}
			different := distinct(seqs[:16]) + distinct(seqs[16:21]) + distinct(seqs[21:])
			if got.tokens != different || all != different {
				t.Errorf("%d tokens are computed, Segments has %d, different ones are %d",
					got.tokens, all, different)
			}
			t.Logf("%s, %s: gradients off by %.2g, %d tokens, apart %d", be.Name(), arch, worst,
				got.tokens, want.tokens)
		}
	})
}

// Packs of a tree hold each sequence once and no more tokens than they may, as many sequences as
// fit, and neighbours of the tree together; what is parted is computed again.
func TestPacksOfTrees(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 20 {
		seqs := sprouts(r, 5, 2+r.IntN(30))
		r.Shuffle(len(seqs), func(i, j int) { seqs[i], seqs[j] = seqs[j], seqs[i] })
		least := distinct(seqs)
		for _, limit := range []int{60, 150, 1 << 20} {
			packs, all, tokens := Packs(seqs, limit), []int{}, 0
			for k, pack := range packs {
				n := sequence.Rows(seqs, pack)
				if want := distinct(Pick(seqs, pack)); n != want || n > limit && len(pack) > 1 {
					t.Fatalf("a pack of %d tokens, %d of them different, at most %d", n, want, limit)
				}
				if k > 0 && sequence.Rows(seqs, append(slices.Clone(packs[k-1]), pack[0])) <= limit {
					t.Errorf("limit %d: pack %d has room for the next sequence", limit, k-1)
				}
				all, tokens = append(all, pack...), tokens+n
			}
			for k := 1; k < len(all); k++ {
				if slices.Compare(seqs[all[k-1]].IDs, seqs[all[k]].IDs) > 0 {
					t.Errorf("limit %d: sequences %d and %d stand apart in the tree", limit,
						all[k-1], all[k])
				}
			}
			slices.Sort(all)
			if !slices.Equal(all, allOf(len(seqs))) || limit == 1<<20 && tokens != least {
				t.Errorf("limit %d: packs %v of %d tokens, %d different", limit, packs, tokens, least)
			}
		}
	}
}

// Trees of the study's two forms, of answers of 512 tokens that have nothing else in common: one
// pack computes each token once; one that is too small for a prompt's trees parts them, and
// computes again what its parts share.
func TestTokensOfParts(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, form := range []struct {
		name          string
		trees, places int // a branch begins behind 0 to places-1 sixteens of tokens
	}{{"random", 4, 32}, {"uct", 3, 2}} {
		tokens, alone, own := map[int]int{}, 0, 0
		const prompt, answer = 128, 512
		for p := range 16 {
			var seqs []Seq
			next := int32(1000 * p)
			for tree := range form.trees {
				for branch := range 3 {
					ids, at := make([]int32, prompt), 0
					for i := range ids {
						ids[i] = int32(p)
					}
					if branch > 0 {
						at = 16 * r.IntN(form.places)
						ids = slices.Clone(seqs[3*tree+r.IntN(branch)].IDs[:prompt+at])
					}
					for len(ids) < prompt+answer {
						next++
						ids = append(ids, next<<5)
					}
					own, alone = own+answer-at, alone+answer
					seqs = append(seqs, Seq{IDs: ids, Shared: prompt, Branching: true})
				}
			}
			for _, limit := range []int{8192, 4096, 2048, 1024} {
				for _, pack := range Packs(seqs, limit) {
					tokens[limit] += sequence.Rows(seqs, pack) - prompt
				}
			}
		}
		ratio := func(n int) float64 { return float64(n) / float64(own) }
		t.Logf("%s: for each token sampled %.3f are computed in packs of 8,192, %.3f of 4,096, %.3f of 2,048, %.3f of 1,024, %.3f with prompts alone", form.name, ratio(tokens[8192]), ratio(tokens[4096]), ratio(tokens[2048]), ratio(tokens[1024]), ratio(alone))
		if tokens[8192] != own || tokens[1024] < tokens[2048] || tokens[1024] > alone {
			t.Errorf("%s: %d tokens, computed %v, with prompts alone %d", form.name, own, tokens, alone)
		}
	}
}
