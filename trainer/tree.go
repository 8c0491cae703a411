package trainer

import (
	"math"
	"slices"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/internal/philox"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
)

// tree is the form of answers that branch (doc/trees.md). Trees grow round by round; each answer
// becomes sequences in which only its own tokens are learned; samples show each answer's place in
// its tree. The answers have another form, the branchable: texts branch every few tokens, episodes
// at their turns, thoughts at their chunks.
type tree struct {
	branchable
	t *Trainer
	c actor.Tree
}

// branchable is a form in which an answer can begin with a part of another answer.
type branchable interface {
	form
	// branchPoints returns the numbers of tokens of an answer after which a branch may begin. The
	// answer's own tokens are [at, end).
	branchPoints(at, end int, a *answer) []int
	// grower returns the sampler of a step's trees.
	grower(g *grove) grower
	// ownSeqs returns the sequences of an answer in which its own tokens are trained. nodes are the
	// parts between branch points.
	ownSeqs(g *group, x *leaf, nodes []model.Span) actor.Rollout
	// mark returns the position in a sample's text, or turns, that corresponds to a number of an
	// answer's tokens.
	mark(a *answer, tokens int) int
}

// grower samples the answers of trees.
type grower interface {
	// grow samples the answers of list and adds them to the grove. number[i] is the number of
	// list[i] within its prompt, the key of its random numbers.
	grow(list []offshoot, number []int) error
	// end adds the metrics of all sampled answers to m, when the trees are complete.
	end(m Metrics, r *round) error
	// close frees what grow has kept between rounds.
	close()
}

// leaf is an answer of a tree that is still growing.
type leaf struct {
	*answer           // score is NaN until it is known
	own     int       // number of its own tokens, after branch.At
	logp    []float32 // of its own tokens
	sample  int       // of an episode's task
}

// grove holds the growing trees of a step's prompts.
type grove struct {
	f            *tree
	r            *round // with the prompts
	leavesP      [][]*leaf
	sampleCounts []int // [P] answers sampled so far, with broken episodes
	grower       grower
}

// sample samples the answers: M first ones to each prompt, then in each round N branches of each
// tree. An answer's number in its prompt is the key of its random numbers, and a branch's random
// numbers begin at its branch point, so that without rounds the answers are the same as with
// rollout.n=M.
func (f *tree) sample(m Metrics, r *round) error {
	g := f.plant(r)
	defer g.grower.close()
	var first []offshoot
	for p := range r.groups {
		for tree := range f.c.Trees {
			first = append(first, offshoot{p, algos.Branch{Tree: tree, Parent: -1}})
		}
	}
	if err := g.sample(first); err != nil {
		return err
	}
	for k := range f.c.Rounds {
		var rewards [][]float64
		if f.c.Select == "uct" {
			var err error
			if rewards, err = g.rewards(m); err != nil {
				return err
			}
		}
		chosen := g.choose(k, rewards)
		if len(chosen) == 0 {
			break
		}
		if err := g.sample(chosen); err != nil {
			return err
		}
	}
	if err := g.finish(); err != nil {
		return err
	}
	return g.grower.end(m, r)
}

// plant returns the trees of the prompts of r before they grow.
func (f *tree) plant(r *round) *grove {
	g := &grove{f: f, r: r, leavesP: make([][]*leaf, len(r.groups)),
		sampleCounts: make([]int, len(r.groups))}
	g.grower = f.grower(g)
	return g
}

// offshoot is an answer to sample: to a prompt, from a place in one of its trees.
type offshoot struct {
	prompt int
	algos.Branch
}

// sample samples the answers of list. They are numbered within their prompt, after the prompt's
// earlier answers.
func (g *grove) sample(list []offshoot) error {
	number := make([]int, len(list))
	for i, x := range list {
		number[i] = g.sampleCounts[x.prompt]
		g.sampleCounts[x.prompt]++
	}
	return g.grower.grow(list, number)
}

// texts samples single answers and thoughts in chunks.
type texts struct{ g *grove }

func (w *texts) close() {}

func (w *texts) end(Metrics, *round) error { return nil }

// grow samples answers that continue a part of another answer. number[i] is the number of list[i]
// within its prompt, the key of its random numbers.
func (w *texts) grow(list []offshoot, number []int) error {
	g, t := w.g, w.g.f.t
	key := actor.Key{Seed: t.seed(), Step: t.step}
	var prompts [][]int32
	var begun []model.Begun
	most := 0
	for i, x := range list {
		of := g.r.groups[x.prompt]
		context := of.Prompt
		if x.Parent >= 0 {
			context = slices.Concat(context, g.leavesP[x.prompt][x.Parent].ids[:x.At])
		}
		prompts, key.Rows = append(prompts, context), append(key.Rows, of.key)
		begun = append(begun, model.Begun{Sample: number[i], Drawn: x.At})
		most += t.enc.MaxResponse - x.At
	}
	advance, done := t.rec.Progress("rollout", most)
	defer done()
	out, err := t.actor.Answers(t.context(), prompts, 1, begun, t.tok.EOS(), key, advance)
	if err != nil {
		return err
	}
	for i, x := range list {
		c := out[i][0]
		ids := slices.Concat(prompts[i][len(g.r.groups[x.prompt].Prompt):], c.IDs)
		g.add(x, &leaf{own: len(c.IDs), logp: c.Logp,
			answer: &answer{ids: ids, cut: c.Truncated}})
	}
	return nil
}

// add adds an answer to its prompt's trees, without scores.
func (g *grove) add(at offshoot, x *leaf) {
	x.branch, x.score, x.check = at.Branch, float32(math.NaN()), math.NaN()
	x.adv, x.taught.logp = math.NaN(), math.NaN()
	g.leavesP[at.prompt] = append(g.leavesP[at.prompt], x)
}

// choose returns the places that branch in round k, in the order of prompts and trees. rewards [P]
// holds the answers' rewards; nil: the places are random, without a search.
func (g *grove) choose(k int, rewards [][]float64) (list []offshoot) {
	t, c := g.f.t, g.f.c
	for p, leaves := range g.leavesP {
		for tree := range c.Trees {
			var of []int // the tree's answers among the prompt's
			var branches []algos.Branch
			var values []float64
			places := []algos.Place{{}}
			at := map[int]int{} // index in the prompt's answers -> index in the tree's
			for s, x := range leaves {
				if x.branch.Tree != tree {
					continue
				}
				branch := x.branch
				if branch.Parent >= 0 {
					branch.Parent = at[branch.Parent]
				}
				at[s] = len(of)
				for _, stop := range g.branchPoints(x) {
					places = append(places, algos.Place{Answer: len(of), At: stop})
				}
				of, branches = append(of, s), append(branches, branch)
				if rewards != nil {
					values = append(values, rewards[p][s])
				}
			}
			if len(of) == 0 { // its first episode broke
				continue
			}
			var chosen []algos.Place
			if rewards != nil {
				chosen = algos.ChooseUCT(branches, places, values, c.Expand)
			} else {
				chosen = algos.ChooseRandom(places, c.Expand, func(i, n int) int {
					return philox.IntN(n, t.seed(), philox.Branches, uint64(t.step),
						uint64(g.r.groups[p].key)<<16|uint64(tree), uint64(k*c.Expand+i))
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

// branchPoints returns the numbers of tokens after which x may branch: within its own tokens, but
// not at its end.
func (g *grove) branchPoints(x *leaf) (list []int) {
	at, end := x.branch.At, x.branch.At+x.own
	for _, n := range g.f.branchPoints(at, end, x.answer) {
		if n > at && n < end {
			list = append(list, n)
		}
	}
	return list
}

// answers sets the answers of the groups to the leaves so far.
func (g *grove) answers() {
	for p, leaves := range g.leavesP {
		g.r.groups[p].answers = nil
		for _, x := range leaves {
			g.r.groups[p].answers = append(g.r.groups[p].answers, x.answer)
		}
	}
}

// rewards returns the rewards [P] of the answers so far, under the present weights, as a step
// computes them. Only answers that are new since the last round are scored and checked.
func (g *grove) rewards(m Metrics) ([][]float64, error) {
	g.answers()
	if err := g.score(m); err != nil {
		return nil, err
	}
	game := g.f.t.stage.(*game)
	if err := game.checkRound(m, g.r); err != nil {
		return nil, err
	}
	rewardA := game.rewards(Metrics{}, g.r)
	out := make([][]float64, len(g.leavesP))
	for p, leaves := range g.leavesP {
		out[p], rewardA = rewardA[:len(leaves):len(leaves)], rewardA[len(leaves):]
	}
	return out, nil
}

// score scores the answers that have no discriminator's score yet.
func (g *grove) score(m Metrics) error {
	t := g.f.t
	var b critic.Batch
	var of []*answer
	for _, group := range g.r.groups {
		for _, a := range group.answers {
			if math.IsNaN(float64(a.score)) {
				of, b.Students = append(of, a), append(b.Students, g.f.whole(group, a))
			}
		}
	}
	b.Students = g.f.markBranching(g.f.criticSeqs(b.Students))
	game := t.stage.(*game)
	err := t.phase(m, "score", game.critic.Model(), b.Students, 1,
		func() error { return game.critic.ScoreBoth(&b) })
	for i, score := range b.ScoreS {
		of[i].score = score
	}
	return err
}

// finish sets the answers' sequences. A branch's shared tokens are context after the prompt; only
// its own tokens are trained, with a span for each of its nodes or, in an episode, for each turn.
// The checker's scores that a search has asked for stay; the discriminator's are computed again in
// its update.
func (g *grove) finish() error {
	g.answers()
	for p, leaves := range g.leavesP {
		branches, own := make([]algos.Branch, len(leaves)), make([]int, len(leaves))
		for s, x := range leaves {
			branches[s], own[s] = x.branch, x.own
		}
		nodes, err := algos.Nodes(branches, own)
		if err != nil {
			return err
		}
		spansS := make([][]model.Span, len(leaves))
		for _, n := range nodes {
			spansS[n.Answer] = append(spansS[n.Answer], model.Span{From: n.From, To: n.To})
		}
		for s, x := range leaves {
			x.seqs = g.f.ownSeqs(g.r.groups[p], x, spansS[s])
			for _, q := range x.seqs {
				q.Seq.Branching = g.f.branches()
				q.Cut, q.Whole, q.Old = x.cut, x.branch.At+x.own, q.Sampled
			}
		}
	}
	return nil
}

// branches reports whether answers branch, that is, whether there are rounds. Without rounds all
// results have the bits of answers without trees.
func (f *tree) branches() bool { return f.c.Rounds > 0 }

func (f *tree) markBranching(judged []model.Seq) []model.Seq {
	for i := range judged {
		judged[i].Branching = f.branches()
	}
	return judged
}

// credit adds the branches of all answers to in.
func (f *tree) credit(r *round, _ []config.Term, in *algos.AdvantageInput) {
	in.Branches = r.branches()
}

// branches returns the branches of all answers, with the indices of trees and parents in the round.
func (r *round) branches() (list []algos.Branch) {
	trees := 0
	for _, g := range r.groups {
		first, before := len(list), trees
		for _, a := range g.answers {
			b := a.branch
			if b.Parent >= 0 {
				b.Parent += first
			}
			b.Tree += before
			trees = max(trees, b.Tree+1)
			list = append(list, b)
		}
	}
	return list
}

func (f *tree) words() string {
	return " of " + report.Count(f.c.Trees, "tree") + f.branchable.words()
}

// describe adds the metrics of trees to m, and sets the places of the answers that samples show.
func (f *tree) describe(m Metrics, r *round) error {
	var joins, depth, own, all float64
	branches, answers := r.branches(), r.answers()
	at := make([]int, len(branches)) // branch points before each answer
	for a, b := range branches {
		if b.Parent >= 0 {
			joins++
			at[a] = at[b.Parent] + 1
		}
		depth += float64(at[a])
		own, all = own+float64(answers[a].ownTokens()), all+float64(len(answers[a].ids))
	}
	m["tree/branches"] = joins / float64(len(r.groups)*f.c.Trees)
	m["tree/depth"] = depth / float64(len(at))
	m["tree/shared_frac"] = 1 - own/all
	if err := f.places(r, f.t.cfg.Trainer.SaveSamples); err != nil {
		return err
	}
	return f.branchable.describe(m, r)
}

func (f *tree) fillSample(s *report.Sample, a *answer) error {
	s.Tree = a.place
	return f.branchable.fillSample(s, a)
}

// places sets the places in their trees of the answers to the first n prompts, for samples.
func (f *tree) places(r *round, n int) error {
	branches, group, answers := r.branches(), r.group(), r.answers()
	lenA, _ := r.mask()
	nodes, err := algos.Nodes(branches, lenA)
	if err != nil {
		return err
	}
	values := algos.NodeValues(nodes, each(r, rewardOf))
	for _, g := range r.groups {
		for leaf, a := range g.answers {
			a.place = &report.TreePlace{Tree: a.branch.Tree, Leaf: leaf, Parent: a.branch.Parent}
		}
	}
	for k, x := range nodes {
		a := answers[x.Answer]
		if group[x.Answer] >= n {
			continue
		}
		node := report.TreeNode{From: f.mark(a, x.From), To: f.mark(a, x.To), Leaves: len(x.Leaves)}
		if v := values[k]; !math.IsNaN(v) && !math.IsInf(v, 0) {
			node.Value = &v
		}
		if a.advT != nil {
			node.Advantage = &a.advT[x.From-a.branch.At]
		}
		a.place.Nodes = append(a.place.Nodes, node)
	}
	return nil
}

func rewardOf(_ *group, a *answer) float64 { return a.reward }
