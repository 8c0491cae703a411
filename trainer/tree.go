package trainer

import (
	"math"
	"slices"
	"unicode/utf8"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/internal/philox"
	"gad/internal/report"
	"gad/model"
)

// This file is what a step has beside that of single answers where answers branch (doc/trees.md):
// trees grow round by round, their answers become sequences of which the own tokens are learned,
// and samples say where each answer stands in its tree.

// tree is how answers of the run branch.
func (t *Trainer) tree() actor.Tree { return t.cfg.Tree(t.Stage) }

// leaf is an answer of a tree.
type leaf struct {
	algos.Branch           // numbers within the prompt
	ids          []int32   // the whole answer
	logp         []float32 // of its own tokens
	cut          bool
	score        float32 // the discriminator's; NaN: not known
	check        float64 // the checker's; NaN: not known
}

// grove is the trees of a step's prompts while they grow.
type grove struct {
	t       *Trainer
	r       *round // with the prompts
	keys    []int  // [P] the sampler's
	leavesP [][]leaf
}

// grow samples the answers to the prompts of r: M first ones, then in each round N branches of
// each tree. An answer's number is that of the sample whose draws it has, and a branch's draws
// begin at its branch point, so that without rounds answers are those of rollout.n=M.
func (t *Trainer) grow(m Metrics, r *round, keys []int) error {
	g := &grove{t: t, r: r, keys: keys, leavesP: make([][]leaf, len(keys))}
	first := make([]offshoot, len(keys))
	for p := range first {
		first[p].prompt = p
	}
	if err := g.sample(first, t.tree().Trees); err != nil {
		return err
	}
	for k := range t.tree().Rounds {
		var rewards [][]float64
		if t.tree().Select == "uct" {
			var err error
			if rewards, err = g.rewards(m); err != nil {
				return err
			}
		}
		chosen := g.choose(k, rewards)
		if len(chosen) == 0 {
			break
		}
		if err := g.sample(chosen, 1); err != nil {
			return err
		}
	}
	return g.finish(r)
}

// offshoot is an answer that is to be sampled: to a prompt, behind a place of one of its trees.
type offshoot struct {
	prompt int
	algos.Branch
}

// sample adds n answers for each of list: first ones, or one branch.
func (g *grove) sample(list []offshoot, n int) error {
	t, b := g.t, g.r.batch
	key := actor.Key{Seed: t.seed(), Step: t.step}
	var prompts [][]int32
	var begun []model.Begun
	limit, next, most := t.cfg.Answer(t.Stage), map[int]int{}, 0
	for _, x := range list {
		context := b.Prompts[x.prompt]
		if leaves := g.leavesP[x.prompt]; leaves != nil {
			context = slices.Concat(context, leaves[x.Parent].ids[:x.At])
			begun = append(begun,
				model.Begun{Sample: len(leaves) + next[x.prompt], Drawn: x.At})
			next[x.prompt]++
		}
		prompts, key.Rows = append(prompts, context), append(key.Rows, g.keys[x.prompt])
		most += n * (limit - x.At)
	}
	advance, done := t.rec.Progress("rollout", most)
	defer done()
	out, err := t.actor.Answers(prompts, n, begun, t.tok.EOS(), key, advance)
	if err != nil {
		return err
	}
	for i, x := range list {
		shared := prompts[i][len(b.Prompts[x.prompt]):]
		for s, c := range out[i] {
			at := x.Branch
			if begun == nil {
				at = algos.Branch{Tree: s, Parent: -1}
			}
			g.leavesP[x.prompt] = append(g.leavesP[x.prompt], leaf{Branch: at,
				ids: slices.Concat(shared, c.IDs), logp: c.Logp, cut: c.Truncated,
				score: float32(math.NaN()), check: math.NaN()})
		}
	}
	return nil
}

// choose are the places that branch in round k, in the order of prompts and trees. rewards [P] are
// those of the answers, nil without a search.
func (g *grove) choose(k int, rewards [][]float64) (list []offshoot) {
	t, c := g.t, g.t.tree()
	for p, leaves := range g.leavesP {
		for tree := range c.Trees {
			var of []int // the tree's answers among the prompt's
			var branches []algos.Branch
			var own []int
			var values []float64
			at := map[int]int{} // an answer of the prompt among the tree's
			for s, x := range leaves {
				if x.Tree != tree {
					continue
				}
				branch := x.Branch
				if branch.Parent >= 0 {
					branch.Parent = at[branch.Parent]
				}
				at[s] = len(of)
				of, branches, own = append(of, s), append(branches, branch), append(own, len(x.logp))
				if rewards != nil {
					values = append(values, rewards[p][s])
				}
			}
			places := algos.Places(branches, own, c.Segment)
			var chosen []algos.Place
			if rewards != nil {
				chosen = algos.ChooseUCT(branches, places, values, c.Expand)
			} else {
				chosen = algos.ChooseRandom(places, c.Expand, func(i, n int) int {
					return philox.IntN(n, t.seed(), philox.Branches, uint64(t.step),
						uint64(g.keys[p])<<16|uint64(tree), uint64(k*c.Expand+i))
				})
			}
			for _, x := range chosen {
				list = append(list, offshoot{p,
					algos.Branch{Tree: tree, Parent: of[x.Answer], At: x.At}})
			}
		}
	}
	return list
}

// rewards are those [P] of the answers so far, by the present weights: what a step would learn
// from. Only answers that are new since the last round are scored and checked.
func (g *grove) rewards(m Metrics) ([][]float64, error) {
	t := g.t
	if err := g.score(m); err != nil {
		return nil, err
	}
	so := &round{batch: g.r.batch}
	if err := g.finish(so); err != nil {
		return nil, err
	}
	for _, x := range slices.Concat(g.leavesP...) {
		so.scoreA = append(so.scoreA, x.score)
	}
	if err := t.checkRound(m, so); err != nil {
		return nil, err
	}
	rewardA := t.rewards(Metrics{}, so)
	out, a := make([][]float64, len(g.leavesP)), 0
	for p, leaves := range g.leavesP {
		for s := range leaves {
			if so.checkA != nil {
				leaves[s].check = so.checkA[a]
			}
			out[p] = append(out[p], rewardA[a])
			a++
		}
	}
	return out, nil
}

// score has the discriminator score the answers that it has not.
func (g *grove) score(m Metrics) error {
	var b critic.Batch
	var of []*leaf
	for p, leaves := range g.leavesP {
		for s := range leaves {
			if x := &leaves[s]; math.IsNaN(float64(x.score)) {
				of = append(of, x)
				b.Students = append(b.Students,
					g.t.enc.Ending().Seq(g.r.batch.Prompts[p], x.ids, x.cut))
			}
		}
	}
	b.Students = g.t.scored(b.Students)
	err := g.t.phase(m, "score", g.t.critic.Model(), b.Students, 1,
		func() error { return g.t.critic.ScoreBoth(&b) })
	for i, score := range b.ScoreS {
		of[i].score = score
	}
	return err
}

// finish makes a round of the answers. An answer is one sequence, of which its own tokens are
// trained, a span for each of its nodes; what it shares with an earlier answer is context behind
// the prompt. Of what a search knows the round has the checker's verdicts; the discriminator's
// update gives its scores anyway.
func (g *grove) finish(r *round) error {
	r.roll = &actor.Rollout{}
	var known []float64
	for p, leaves := range g.leavesP {
		prompt := g.r.batch.Prompts[p]
		branches, own := make([]algos.Branch, len(leaves)), make([]int, len(leaves))
		for s, x := range leaves {
			branches[s], own[s] = x.Branch, len(x.logp)
		}
		nodes, err := algos.Nodes(branches, own)
		if err != nil {
			return err
		}
		first := len(r.roll.Seqs)
		for _, x := range leaves {
			r.roll.Seqs = append(r.roll.Seqs,
				model.Seq{IDs: slices.Concat(prompt, x.ids), Shared: len(prompt)})
			r.roll.SampledST = append(r.roll.SampledST, x.logp)
			r.roll.Group, r.group = append(r.roll.Group, p), append(r.group, p)
			r.roll.Truncated, r.cut = append(r.roll.Truncated, x.cut), append(r.cut, x.cut)
			r.roll.Whole = append(r.roll.Whole, len(x.ids))
			r.branches = append(r.branches, x.Branch)
			known = append(known, x.check)
		}
		for _, n := range nodes {
			seq := &r.roll.Seqs[first+n.Answer]
			seq.Spans = append(seq.Spans,
				model.Span{From: len(prompt) + n.From, To: len(prompt) + n.To})
		}
	}
	r.roll.OldST = r.roll.SampledST
	if g.t.cfg.ChecksAnswers(g.t.Stage) {
		r.checkA = known
	}
	return nil
}

// allBranches are the branches of all answers, by their numbers in the round; nil where answers do
// not branch.
func (r *round) allBranches() []algos.Branch {
	if r.branches == nil {
		return nil
	}
	out := slices.Clone(r.branches)
	first, before, trees := 0, 0, 0 // answers and trees of the prompts before, trees so far
	for a, p := range r.group {
		if a > 0 && r.group[a-1] != p {
			first, before = a, trees
		}
		if out[a].Parent >= 0 {
			out[a].Parent += first
		}
		out[a].Tree += before
		trees = max(trees, out[a].Tree+1)
	}
	return out
}

// describeTrees adds the metrics of trees.
func (t *Trainer) describeTrees(m Metrics, r *round) {
	if r.branches == nil {
		return
	}
	var branches, depth, own, all float64
	at := make([]int, len(r.branches)) // branch points before each answer
	for a, b := range r.allBranches() {
		if b.Parent >= 0 {
			branches++
			at[a] = at[b.Parent] + 1
		}
		depth += float64(at[a])
		own += float64(r.roll.Seqs[a].Trained())
		all += float64(r.roll.Whole[a])
	}
	m["tree/branches"] = branches / float64(len(r.batch.Rows)*t.tree().Trees)
	m["tree/depth"] = depth / float64(len(at))
	m["tree/shared_frac"] = 1 - own/all
}

// placesOf are the places of the answers to the first n prompts in their trees, for readers; nil
// where answers do not branch.
func (t *Trainer) placesOf(r *round, n int) ([]*report.TreePlace, error) {
	if r.branches == nil {
		return nil, nil
	}
	branches, own := r.allBranches(), make([]int, len(r.group))
	for a, seq := range r.roll.Seqs {
		own[a] = seq.Trained()
	}
	nodes, err := algos.Nodes(branches, own)
	if err != nil {
		return nil, err
	}
	values := algos.NodeValues(nodes, r.rewardA)
	out, written := make([]*report.TreePlace, len(r.group)), r.written()
	leaf := 0
	for a, b := range r.branches {
		if a > 0 && r.group[a-1] != r.group[a] {
			leaf = 0
		}
		out[a] = &report.TreePlace{Tree: b.Tree, Leaf: leaf, Parent: b.Parent}
		leaf++
	}
	for k, x := range nodes {
		a := x.Answer
		if r.group[a] >= n {
			continue
		}
		chars := func(tokens int) int {
			return utf8.RuneCountInString(t.tok.Decode(written[a][:tokens], true))
		}
		node := report.TreeNode{From: chars(x.From), To: chars(x.To), Leaves: len(x.Leaves)}
		if v := values[k]; !math.IsNaN(v) && !math.IsInf(v, 0) {
			node.Value = &v
		}
		if r.advST != nil {
			node.Advantage = &r.advST[a][x.From-branches[a].At]
		}
		out[a].Nodes = append(out[a].Nodes, node)
	}
	return out, nil
}
