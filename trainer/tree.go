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
	"gad/trainer/episode"
)

// This file is what a step has beside that of single answers where answers branch (doc/trees.md):
// trees grow round by round, their answers become sequences of which the own tokens are learned,
// and samples say where each answer stands in its tree. An answer may be an episode, which branches
// at its turns, or a thought, which branches at its chunks.

// tree is how answers of the run branch.
func (t *Trainer) tree() actor.Tree { return t.cfg.Tree(t.Stage) }

// leaf is an answer of a tree.
type leaf struct {
	algos.Branch           // numbers within the prompt
	own          int       // tokens that were sampled for it, those behind Branch.At
	ids          []int32   // the whole answer
	logp         []float32 // of its own tokens
	cut          bool
	episode      *episode.Episode // in the place of ids and logp
	sample       int              // of the episode's task
	score        float32          // the discriminator's; NaN: not known
	check        float64          // the checker's; NaN: not known
}

// grove is the trees of a step's prompts while they grow.
type grove struct {
	t       *Trainer
	r       *round // with the prompts
	keys    []int  // [P] the sampler's
	leavesP [][]leaf
	asked   []int // [P] answers asked for: more than leaves, where episodes broke
	played  []episode.Episode
	kept    *episode.Kept // this rank's, while the trees grow
}

// grow samples the answers to the prompts of r: M first ones, then in each round N branches of
// each tree. An answer's number is that of the sample whose draws it has, and a branch's draws
// begin at its branch point, so that without rounds answers are those of rollout.n=M.
func (t *Trainer) grow(m Metrics, r *round, keys []int) error {
	g := t.plant(r, keys)
	if t.env != nil {
		g.kept = episode.Keep(t.env)
		defer g.kept.Close()
	}
	var first []offshoot
	for p := range keys {
		for tree := range t.tree().Trees {
			first = append(first, offshoot{p, algos.Branch{Tree: tree, Parent: -1}})
		}
	}
	if err := g.sample(first); err != nil {
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
		if err := g.sample(chosen); err != nil {
			return err
		}
	}
	if t.env != nil {
		var err error
		if m["env/fault_frac"], err = t.faults(g.played); err != nil {
			return err
		}
	}
	if err := g.finish(r); err != nil {
		return err
	}
	if t.env != nil {
		t.describeEpisodes(m, r)
	}
	return nil
}

// plant are the trees of the prompts of r before they grow.
func (t *Trainer) plant(r *round, keys []int) *grove {
	return &grove{t: t, r: r, keys: keys, leavesP: make([][]leaf, len(keys)),
		asked: make([]int, len(keys))}
}

// offshoot is an answer that is to be sampled: to a prompt, behind a place of one of its trees.
type offshoot struct {
	prompt int
	algos.Branch
}

// sample adds the answers of list. Those of a prompt have the numbers behind what it was asked for.
func (g *grove) sample(list []offshoot) error {
	number := make([]int, len(list))
	for i, x := range list {
		number[i] = g.asked[x.prompt]
		g.asked[x.prompt]++
	}
	if g.t.env != nil {
		return g.play(list, number)
	}
	return g.write(list, number)
}

// write samples single answers.
func (g *grove) write(list []offshoot, number []int) error {
	t, b := g.t, g.r.batch
	key := actor.Key{Seed: t.seed(), Step: t.step}
	var prompts [][]int32
	var begun []model.Begun
	most := 0
	for i, x := range list {
		context := b.Prompts[x.prompt]
		if x.Parent >= 0 {
			context = slices.Concat(context, g.leavesP[x.prompt][x.Parent].ids[:x.At])
		}
		prompts, key.Rows = append(prompts, context), append(key.Rows, g.keys[x.prompt])
		begun = append(begun, model.Begun{Sample: number[i], Drawn: x.At})
		most += t.cfg.Answer(t.Stage) - x.At
	}
	advance, done := t.rec.Progress("rollout", most)
	defer done()
	out, err := t.actor.Answers(prompts, 1, begun, t.tok.EOS(), key, advance)
	if err != nil {
		return err
	}
	for i, x := range list {
		c := out[i][0]
		g.add(x, leaf{own: len(c.IDs), logp: c.Logp, cut: c.Truncated,
			ids: slices.Concat(prompts[i][len(b.Prompts[x.prompt]):], c.IDs)})
	}
	return nil
}

// play samples episodes, those of a tree on one rank. A branch forks its environment, or plays the
// turns before it once more: the environment is at the same place then. A broken episode is no
// answer.
func (g *grove) play(list []offshoot, number []int) error {
	t := g.t
	of, err := t.tasks(g.r, g.keys)
	if err != nil {
		return err
	}
	var tasks []episode.Task
	for i, x := range list {
		task := of[x.prompt]
		if task.Sample = number[i]; x.At > 0 {
			parent := g.leavesP[x.prompt][x.Parent]
			task.Replay = parent.episode.Replay(parent.sample, turnsIn(parent.episode, x.At))
		}
		tasks = append(tasks, task)
	}
	advance, done := t.rec.Progress("rollout", len(tasks)*t.cfg.Answer(t.Stage))
	defer done()
	player := t.player()
	player.Kept = g.kept
	tree := func(i int) int { return list[i].prompt*t.tree().Trees + list[i].Tree }
	played, err := t.together(t.context(), player, tasks, tree, advance)
	if err != nil {
		return err
	}
	g.played = append(g.played, played...)
	for i, x := range list {
		if e := &played[i]; e.Fault == "" {
			g.add(x, leaf{own: e.Trained(), cut: e.Cut || e.Open, episode: e,
				sample: number[i]})
		}
	}
	return nil
}

// turnsIn is the number of turns of an episode that have so many tokens together.
func turnsIn(e *episode.Episode, tokens int) (k int) {
	for ; tokens > 0; k++ {
		tokens -= e.Script.Spans[k].To - e.Script.Spans[k].From
	}
	return k
}

func (g *grove) add(at offshoot, x leaf) {
	x.Branch, x.score, x.check = at.Branch, float32(math.NaN()), math.NaN()
	g.leavesP[at.prompt] = append(g.leavesP[at.prompt], x)
}

// choose are the places that branch in round k, in the order of prompts and trees. rewards [P] are
// those of the answers, nil without a search.
func (g *grove) choose(k int, rewards [][]float64) (list []offshoot) {
	t, c := g.t, g.t.tree()
	for p, leaves := range g.leavesP {
		for tree := range c.Trees {
			var of []int // the tree's answers among the prompt's
			var branches []algos.Branch
			var values []float64
			places := []algos.Place{{}}
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
				for _, stop := range g.stops(&leaves[s]) {
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

// stops are where x may branch within its own tokens, its end apart: before every turn of an
// episode, at the seams of a thought, or every rollout.tree.segment tokens.
func (g *grove) stops(x *leaf) (list []int) {
	end := x.At + x.own
	var all []int
	switch {
	case x.episode != nil:
		at := 0
		for _, span := range x.episode.Script.Spans {
			at += span.To - span.From
			all = append(all, at)
		}
	case g.t.chunks().On():
		all = g.t.chunks().Seams(end)
	default:
		segment := g.t.tree().Segment
		for at := (x.At/segment + 1) * segment; at < end; at += segment {
			all = append(all, at)
		}
	}
	for _, at := range all {
		if at > x.At && at < end {
			list = append(list, at)
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
				seq := g.t.enc.Ending().Seq(g.r.batch.Prompts[p], x.ids, x.cut)
				if x.episode != nil {
					seq = g.t.enc.Ending().Turns(x.episode.Script, x.episode.Open)
				}
				b.Students = append(b.Students, seq)
			}
		}
	}
	b.Students = g.t.branching(g.t.scored(b.Students))
	err := g.t.phase(m, "score", g.t.critic.Model(), b.Students, 1,
		func() error { return g.t.critic.ScoreBoth(&b) })
	for i, score := range b.ScoreS {
		of[i].score = score
	}
	return err
}

// finish makes a round of the answers. What an answer shares with an earlier one is context behind
// the prompt: its own tokens alone are trained, a span for each of its nodes or, of an episode, for
// each turn. Of what a search knows the round has the checker's verdicts; the discriminator's
// update gives its scores anyway.
func (g *grove) finish(r *round) error {
	r.roll = &actor.Rollout{}
	var known []float64
	for p, leaves := range g.leavesP {
		branches, own := make([]algos.Branch, len(leaves)), make([]int, len(leaves))
		for s, x := range leaves {
			branches[s], own[s] = x.Branch, x.own
		}
		nodes, err := algos.Nodes(branches, own)
		if err != nil {
			return err
		}
		for s := range leaves {
			x := &leaves[s]
			seqs, logp := g.sequences(p, x, nodes, s)
			for i, seq := range g.t.branching(seqs) {
				a := r.roll
				a.Seqs, a.SampledST = append(a.Seqs, seq), append(a.SampledST, logp[i])
				a.Group, a.Truncated = append(a.Group, p), append(a.Truncated, x.cut)
				a.Whole = append(a.Whole, x.At+x.own)
				if x.episode != nil || g.t.chunks().On() {
					a.Episode = append(a.Episode, len(r.group))
				}
			}
			if x.episode != nil {
				r.episodes = append(r.episodes, *x.episode)
			}
			r.group, r.cut = append(r.group, p), append(r.cut, x.cut)
			r.branches, known = append(r.branches, x.Branch), append(known, x.check)
			r.wroteA = append(r.wroteA, x.written())
		}
	}
	r.roll.OldST = r.roll.SampledST
	if g.t.cfg.ChecksAnswers(g.t.Stage) {
		r.checkA = known
	}
	return nil
}

// branching marks the sequences of trees as such. Without rounds no answer branches, and all has
// the bits of single answers.
func (t *Trainer) branching(seqs []model.Seq) []model.Seq {
	if c := t.tree(); c.Trees > 0 && c.Rounds > 0 {
		for i := range seqs {
			seqs[i].Branching = true
		}
	}
	return seqs
}

// written are all tokens of the answer.
func (x *leaf) written() []int32 {
	if x.episode != nil {
		return x.episode.Script.TrainedIDs()
	}
	return x.ids
}

// sequences are those of answer s of prompt p that have own tokens, and the tokens'
// log-probabilities.
func (g *grove) sequences(p int, x *leaf, nodes []algos.Node, s int) (seqs []model.Seq,
	logp [][]float32) {
	prompt := g.r.batch.Prompts[p]
	switch {
	case x.episode != nil:
		for i, seq := range x.episode.Seqs {
			if len(seq.Spans) == 0 { // a context that was given for turns before
				continue
			}
			if i == 0 {
				seq.Shared = x.episode.Script.Prompt()
			}
			seqs, logp = append(seqs, seq), append(logp, x.episode.Logp[i])
		}
		return seqs, logp
	case g.t.chunks().On():
		at, left := 0, x.logp
		for _, seq := range g.t.chunks().Seqs(prompt, x.ids) {
			n := seq.Trained()
			if at >= x.At {
				seqs, logp = append(seqs, seq), append(logp, left[:n:n])
				left = left[n:]
			}
			at += n
		}
		return seqs, logp
	}
	seq := model.Seq{IDs: slices.Concat(prompt, x.ids), Shared: len(prompt)}
	for _, n := range nodes {
		if n.Answer == s {
			seq.Spans = append(seq.Spans,
				model.Span{From: len(prompt) + n.From, To: len(prompt) + n.To})
		}
	}
	return []model.Seq{seq}, [][]float32{x.logp}
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
	var branches, depth, all float64
	lenA, _ := r.mask()
	own := 0.0
	at := make([]int, len(r.branches)) // branch points before each answer
	for a, b := range r.allBranches() {
		if b.Parent >= 0 {
			branches++
			at[a] = at[b.Parent] + 1
		}
		depth += float64(at[a])
		own, all = own+float64(lenA[a]), all+float64(len(r.wroteA[a]))
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
	branches := r.allBranches()
	own, _ := r.mask()
	nodes, err := algos.Nodes(branches, own)
	if err != nil {
		return nil, err
	}
	values := algos.NodeValues(nodes, r.rewardA)
	out, firsts := make([]*report.TreePlace, len(r.group)), r.firsts()
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
		place := func(tokens int) int {
			if r.episodes != nil {
				return turnsIn(&r.episodes[a], tokens)
			}
			return utf8.RuneCountInString(t.tok.Decode(r.wroteA[a][:tokens], true))
		}
		node := report.TreeNode{From: place(x.From), To: place(x.To), Leaves: len(x.Leaves)}
		if v := values[k]; !math.IsNaN(v) && !math.IsInf(v, 0) {
			node.Value = &v
		}
		if r.advST != nil {
			at, seq := x.From-branches[a].At, firsts[a]
			for ; at >= r.roll.Seqs[seq].Trained(); seq++ {
				at -= r.roll.Seqs[seq].Trained()
			}
			node.Advantage = &r.advST[seq][at]
		}
		out[a].Nodes = append(out[a].Nodes, node)
	}
	return out, nil
}
