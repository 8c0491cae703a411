// Package critic is the discriminator: it scores the student's and the
// teacher's sequences on the same path and learns to tell them apart
// (GAD, arXiv 2511.10643, equations 1 to 3).
//
// Legend: P prompts, S student sequences (G of each prompt), n pairs of a
// student sequence with its prompt's teacher sequence.
package critic

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gad/algos"
	"gad/model"
)

// Critic is the discriminator with its optimizer.
type Critic struct {
	Replay *Buffer // the pool of past negatives; nil when off

	cfg   Config
	m     *model.Model
	opt   *model.Optimizer
	loss  *algos.Discriminator[float32]
	group algos.GroupSpread[float32]
	lr    model.Schedule
	first int // optimizer steps taken before the schedule began
	seed  uint64
}

// Open loads the discriminator from dir: a scorer as a checkpoint holds it, or a
// language model, whose head is then replaced by a fresh value head drawn from
// seed. steps is the number of trainer steps planned, batch their prompts.
func Open(be model.Backend, dir string, cfg Config, steps, batch int, seed uint64) (*Critic, error) {
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	m, err := model.Load(be, dir, model.Options{Kind: model.Scorer, Trainable: true,
		Recompute: cfg.Recompute, LoRA: cfg.LoRA, Seed: seed, ScoreInit: cfg.HeadStd(shape.Hidden)})
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	c, err := New(m, cfg, steps, batch, seed)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return c, nil
}

// New wraps a scorer that is already there.
func New(m *model.Model, cfg Config, steps, batch int, seed uint64) (*Critic, error) {
	opt, err := model.NewOptimizer(m, cfg.Optim.AdamW(cfg.GradClip))
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	loss, err := algos.NewDiscriminator[float32](cfg.objective())
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	c := &Critic{cfg: cfg, m: m, opt: opt, loss: loss, lr: cfg.Schedule(steps, batch), seed: seed}
	if cfg.Replay.Size > 0 {
		c.Replay = &Buffer{Cap: cfg.Replay.Size}
	}
	return c, nil
}

// Model is the scorer, and Optimizer its state, for saving.
func (c *Critic) Model() *model.Model { return c.m }

// Optimizer is the discriminator's AdamW state.
func (c *Critic) Optimizer() *model.Optimizer { return c.opt }

// ScheduleFrom begins the learning rate's schedule after the given number of
// optimizer steps: those of an earlier stage whose state was loaded.
func (c *Critic) ScheduleFrom(updates int) { c.first = updates }

// Close frees the weights.
func (c *Critic) Close() error { return errors.Join(c.loss.Close(), c.group.Close(), c.m.Close()) }

// Score is the discriminator's value at the last token of each sequence.
func (c *Critic) Score(seqs []model.Seq) (scoreS []float32, err error) {
	return c.m.AllScores(seqs, c.cfg.MaxTokenLen)
}

// ScoreBoth fills in FreshS and FreshP of b, in passes that both sides of a prompt share.
func (c *Critic) ScoreBoth(b *Batch) error {
	score, err := c.Score(slices.Concat(b.Students, b.Teachers))
	if err != nil {
		return err
	}
	b.FreshS, b.FreshP = score[:len(b.Students):len(b.Students)], score[len(b.Students):]
	return nil
}

// Batch is what the discriminator learns from in one step.
type Batch struct {
	Step     int
	Students []model.Seq // [S]
	Group    []int       // [S] index of each student sequence's teacher
	Teachers []model.Seq // [P], scored once for all their pairs
	Skip     []bool      // [S] left out of the pairs

	// Scores under the present weights, as Score gave them for this step, where they
	// are already known; nil leaves them to Update.
	FreshS, FreshP []float32
}

// Pairs is the number of pairs in b, ties included.
func (b *Batch) Pairs() (n int) {
	for _, skip := range b.Skip {
		if !skip {
			n++
		}
	}
	return n
}

// Tie reports whether student sequence s is the teacher's, token by token: then both
// have the same score, whatever the discriminator is, and nothing can be learned.
func (b *Batch) Tie(s int) bool {
	return slices.Equal(b.Students[s].IDs, b.Teachers[b.Group[s]].IDs)
}

// Stats are means over the pairs of an update, taken before each optimizer step.
type Stats struct {
	Pairs     float64 // that Loss, Acc, GroupTerm and Pooled are means over
	Loss, Acc float64 // over all pairs; a tie counts as ln 2 (bt), and as wrong
	GroupTerm float64 // GRGC's, before its weight
	Pooled    float64 // share of the pairs that came from the pool
	GradNorm  float64 // before clipping, mean over optimizer steps
	LR        float64 // of the last optimizer step
	Updates   int     // optimizer steps taken
	Skipped   int     // optimizer steps left out for a non-finite gradient
	Streak    int     // those since the last optimizer step taken

	// The batch's scores under the weights before the first optimizer step: the
	// batch's own, or those that Update took.
	FreshS, FreshP []float32
}

// Update takes the discriminator's optimizer steps on b: for each mini-batch of
// prompts, scores under the present weights, loss and d loss/d score over all
// its pairs, then one backward pass with those seeds. The forward pass of the gradient
// gives the scores too, so a sequence passes forward once for each optimizer step. A
// teacher's gradient collects from all its pairs. Ties are left out where their gradient
// is zero; they still count in the mean. Afterwards the student sequences enter the pool.
func (c *Critic) Update(b Batch) (st Stats, err error) {
	prompts := len(b.Teachers)
	mini := c.cfg.miniBatch(prompts)
	begin := newScores(b)
	now := begin // the scores that hold for the present weights; nil where none is known
	var pairs float64
	batches := 0 // mini-batches begun: the key of what is drawn for each
	for range c.cfg.PPOEpochs {
		for lo := 0; lo < prompts; lo += mini {
			set := c.gather(b, lo, min(lo+mini, prompts), batches, now)
			batches++
			n := float64(len(set.student) + set.ties)
			if len(set.student) == 0 {
				pairs += n
				st.Loss += math.Ln2 * n
				continue
			}
			res, err := c.learn(set)
			if now != nil { // before the weights change
				now.take(set)
			}
			if errors.Is(err, algos.ErrNotFinite) {
				st.Skipped++ // nothing of this mini-batch reaches the weights
				st.Streak++
				if err := c.opt.ZeroGrad(); err != nil {
					return st, fmt.Errorf("critic: %w", err)
				}
				continue
			}
			if err != nil {
				return st, err
			}
			if now != nil {
				if err := c.complete(now, b); err != nil {
					return st, err
				}
			}
			pairs += n
			st.Loss += n*res.Loss + math.Ln2*float64(set.ties)
			st.Acc += n * res.Acc
			st.GroupTerm += n * res.groupTerm
			st.Pooled += float64(set.pooled)
			lr := c.lr.LR(c.cfg.Optim.LR, c.opt.Steps()-c.first+1)
			norm, skipped, err := c.opt.Step(lr)
			if err != nil {
				return st, fmt.Errorf("critic: optimizer: %w", err)
			}
			if skipped {
				st.Skipped++
				st.Streak++
				continue
			}
			st.Streak = 0
			st.LR = lr
			st.GradNorm += norm
			st.Updates++
			now = nil
		}
	}
	if now != nil { // no step was taken
		if err := c.complete(now, b); err != nil {
			return st, err
		}
	}
	st.FreshS, st.FreshP = begin.score[:len(b.Students)], begin.score[len(b.Students):]
	st.Pairs = pairs
	if pairs > 0 {
		st.Loss, st.Acc, st.GroupTerm, st.Pooled = st.Loss/pairs, st.Acc/pairs, st.GroupTerm/pairs, st.Pooled/pairs
	}
	st.GradNorm /= float64(max(st.Updates, 1))
	if c.Replay != nil && c.cfg.Replay.Live {
		c.Replay.Add(b)
	}
	return st, nil
}

// scores are a batch's scores under one state of the weights, as far as they are known:
// those of the students, then those of the teachers.
type scores struct {
	score []float32
	known []bool
}

func newScores(b Batch) *scores {
	n := len(b.Students) + len(b.Teachers)
	out := &scores{score: make([]float32, n), known: make([]bool, n)}
	at := 0
	for _, side := range []struct {
		n     int
		score []float32
	}{{len(b.Students), b.FreshS}, {len(b.Teachers), b.FreshP}} {
		for i := range side.score {
			out.score[at+i], out.known[at+i] = side.score[i], true
		}
		at += side.n
	}
	return out
}

// take keeps what is known of the set's sequences.
func (s *scores) take(set *pairSet) {
	for i, at := range set.from {
		if at >= 0 && set.known[i] {
			s.score[at], s.known[at] = set.score[i], true
		}
	}
}

// complete scores what is not known of the batch: sequences that are in no pair, or in
// one of a later mini-batch.
func (c *Critic) complete(s *scores, b Batch) error {
	return c.scoreUnknown(slices.Concat(b.Students, b.Teachers), s.score, s.known, func(int) bool { return true })
}

// scoreUnknown scores those of seqs that are wanted and not known, by a forward pass.
func (c *Critic) scoreUnknown(seqs []model.Seq, score []float32, known []bool, wanted func(i int) bool) error {
	var todo []int
	for i := range seqs {
		if !known[i] && wanted(i) {
			todo = append(todo, i)
		}
	}
	got, err := c.Score(model.Pick(seqs, todo))
	if err != nil {
		return fmt.Errorf("critic: %w", err)
	}
	for k, i := range todo {
		score[i], known[i] = got[k], true
	}
	return nil
}

// pairSet is one mini-batch: sequences, and pairs as indices into them.
type pairSet struct {
	seqs             []model.Seq
	score            []float32 // score[i] of seqs[i] where known
	known            []bool
	from             []int // place of seqs[i] in the batch's scores; -1 of one out of the pool
	student, teacher []int // [n] pair: seqs[student[i]] against seqs[teacher[i]]
	group            []int // [n] prompt of a fresh pair, -1 for one out of the pool
	ties             int   // pairs left out, for they are equal
	pooled           int   // pairs out of the pool
}

// add appends a sequence that stands at place from of the batch's scores, of which now
// holds what is known.
func (p *pairSet) add(s model.Seq, now *scores, from int) int {
	p.seqs = append(p.seqs, s)
	p.from = append(p.from, from)
	if from >= 0 && now != nil {
		p.score, p.known = append(p.score, now.score[from]), append(p.known, now.known[from])
	} else {
		p.score, p.known = append(p.score, 0), append(p.known, false)
	}
	return len(p.seqs) - 1
}

// tiesTeach reports whether a pair of equal sequences has a gradient: Bradley-Terry
// sees a difference of scores, which is 0 whatever the weights are.
func (c Config) tiesTeach() bool { return c.Loss != "bt" || c.ScoreL2 > 0 || c.GroupOT > 0 }

// gather collects the pairs of prompts lo to hi-1. Where there is a pool, a share of
// those prompts gives way to it: as many of its pairs stand in their place. now are the
// scores that hold for the present weights.
func (c *Critic) gather(b Batch, lo, hi, update int, now *scores) *pairSet {
	set := &pairSet{}
	give := c.Replay.gives(lo, hi, c.cfg.Replay.Share, c.seed, b.Step, update)
	at := map[int]int{} // prompt -> its teacher in set.seqs
	for s, seq := range b.Students {
		p := b.Group[s]
		switch {
		case p < lo || p >= hi || b.Skip[s]:
			continue
		case give[p]:
			set.pooled++
			continue
		case b.Tie(s) && !c.cfg.tiesTeach():
			set.ties++
			continue
		}
		if _, ok := at[p]; !ok {
			at[p] = set.add(b.Teachers[p], now, len(b.Students)+p)
		}
		set.teacher = append(set.teacher, at[p])
		set.student = append(set.student, set.add(seq, now, s))
		set.group = append(set.group, p)
	}
	again := map[string]int{} // a teacher's tokens -> its place in set.seqs: scored once
	for _, old := range c.Replay.Draw(set.pooled, c.seed, b.Step, update) {
		key := fmt.Sprint(old.Teacher.IDs)
		if _, ok := again[key]; !ok {
			again[key] = set.add(old.Teacher, nil, -1)
		}
		set.teacher = append(set.teacher, again[key])
		set.student = append(set.student, set.add(old.Student, nil, -1))
		set.group = append(set.group, -1)
	}
	return set
}

// learned is what a mini-batch contributed.
type learned struct {
	algos.DiscResult[float32]
	groupTerm float64
}

// learn accumulates the gradient of one mini-batch, by shard: a teacher stands in one with
// all its pairs. A pack's seeds are taken from the scores of the pack's own forward pass; a
// score that an earlier pack needs comes first, by a forward pass of its own.
func (c *Critic) learn(set *pairSet) (res learned, err error) {
	shards := set.byShard(c.m)
	packsK := make([][][]int, len(shards))
	for k, shard := range shards {
		for _, pack := range model.Packs(model.Pick(set.seqs, shard), c.cfg.MaxTokenLen) {
			packsK[k] = append(packsK[k], model.Pick(shard, pack))
		}
	}
	early := c.neededEarly(set, slices.Concat(packsK...))
	if err := c.scoreUnknown(set.seqs, set.score, set.known, func(i int) bool { return early[i] }); err != nil {
		return res, err
	}
	var seed []float32 // [len(seqs)]
	whole := false     // seed and res are of all pairs
	if whole = !slices.Contains(set.known, false); whole {
		if res, seed, err = c.compare(set); err != nil {
			return res, err
		}
	}
	figuresK, err := c.m.EachShard(func(k int) ([]float64, error) {
		for _, pack := range packsK[k] {
			if whole && zero(seed, pack) {
				continue
			}
			err := c.m.ScoreGrad(model.Pick(set.seqs, pack), func(scoreS []float32) ([]float32, error) {
				for k, i := range pack {
					if !set.known[i] {
						set.score[i], set.known[i] = scoreS[k], true
					}
				}
				if !whole {
					if res, seed, err = c.compare(set); err != nil {
						return nil, err
					}
					whole = !slices.Contains(set.known, false)
				}
				if zero(seed, pack) {
					return nil, nil
				}
				return model.Pick(seed, pack), nil
			})
			if errors.Is(err, algos.ErrNotFinite) {
				break // all find it below, by the scores
			}
			if err != nil {
				return nil, fmt.Errorf("critic: %w", err)
			}
		}
		return set.told(shards[k]), nil
	})
	if err != nil {
		return res, err
	}
	for k, shard := range shards {
		set.heard(shard, figuresK[k])
	}
	if !whole {
		res, _, err = c.compare(set)
	}
	return res, err
}

// zero reports whether a pack has no gradient.
func zero(seed []float32, pack []int) bool {
	return !slices.ContainsFunc(pack, func(i int) bool { return seed[i] != 0 })
}

// byShard divides the sequences among the shards of m, by their teacher.
func (p *pairSet) byShard(m *model.Model) [][]int {
	teachers := map[int]int{} // place in seqs -> number, in order
	of := make([]int, len(p.seqs))
	for n, t := range p.teacher {
		if _, ok := teachers[t]; !ok {
			teachers[t] = len(teachers)
		}
		of[t], of[p.student[n]] = t, t
	}
	shards := make([][]int, m.Shards())
	for i, t := range of {
		k := m.Shard(teachers[t], len(teachers))
		shards[k] = append(shards[k], i)
	}
	return shards
}

// told are a shard's figures for heard: of each sequence whether its score is known, and
// the score.
func (p *pairSet) told(shard []int) (figures []float64) {
	for _, i := range shard {
		known := 0.0
		if p.known[i] {
			known = 1
		}
		figures = append(figures, known, float64(p.score[i]))
	}
	return figures
}

// heard takes in what told has said of a shard, on whatever rank it was.
func (p *pairSet) heard(shard []int, figures []float64) {
	for n, i := range shard {
		if figures[2*n] == 1 {
			p.score[i], p.known[i] = float32(figures[2*n+1]), true
		}
	}
}

// neededEarly are the sequences whose score the seeds of an earlier pack need, of packs in
// the order in which they pass: a teacher's seed needs those of all its pairs, and a student's its teacher's. The group
// term compares all the answers, and is left for when all of them are known.
func (c *Critic) neededEarly(set *pairSet, packs [][]int) []bool {
	early := make([]bool, len(set.seqs))
	if len(packs) == 1 {
		return early
	}
	packOf := make([]int, len(set.seqs))
	for k, pack := range packs {
		for _, i := range pack {
			packOf[i] = k
			early[i] = c.cfg.GroupOT > 0
		}
	}
	for n, s := range set.student {
		switch t := set.teacher[n]; {
		case packOf[s] > packOf[t]:
			early[s] = true
		case packOf[t] > packOf[s]:
			early[t] = true
		}
	}
	return early
}

// compare is the loss over the pairs and d loss/d score of each sequence, both as far as
// the scores are known.
func (c *Critic) compare(set *pairSet) (res learned, seed []float32, err error) {
	studentN := model.Pick(set.score, set.student)
	var weight []float32 // nil is 1/n
	if slices.Contains(set.known, false) {
		weight = make([]float32, len(studentN))
		for n, s := range set.student {
			if set.known[s] && set.known[set.teacher[n]] {
				weight[n] = float32(1 / float64(len(studentN)))
			}
		}
	}
	if res.DiscResult, err = c.loss.Step(studentN, set.score, set.teacher, weight); err != nil {
		return res, nil, fmt.Errorf("critic: %w", err)
	}
	seed = res.DTeacher // [len(seqs)]; a sequence is a student's or a teacher's, never both
	for k, i := range set.student {
		seed[i] += res.DStudent[k]
	}
	if set.ties > 0 { // they count in the mean
		share := float64(len(set.student)) / float64(len(set.student)+set.ties)
		res.Loss, res.Acc = share*res.Loss, share*res.Acc
		for i := range seed {
			seed[i] *= float32(share)
		}
	}
	if c.cfg.GroupOT > 0 {
		term, dStudentN, err := c.group.Step(studentN, set.group, c.cfg.GroupOT)
		if err != nil {
			return res, nil, fmt.Errorf("critic: %w", err)
		}
		res.groupTerm = term
		for k, i := range set.student {
			seed[i] += dStudentN[k]
		}
	}
	flush(seed)
	return res, seed, nil
}

// least is the smallest d loss/d score that is propagated. A discriminator that is sure
// of a pair has smaller ones, whose products with weights are subnormal numbers: a
// processor multiplies those some hundred times slower. AdamW, whose eps is 1e-8, makes
// nothing of them either way.
const least = 1e-25

// flush makes seeds zero that are too small to matter.
func flush(seed []float32) {
	for i, x := range seed {
		if x < least && x > -least {
			seed[i] = 0
		}
	}
}

// Schedule is the learning rate over the optimizer steps of the given number of
// trainer steps, of batch prompts each.
func (c Config) Schedule(steps, batch int) model.Schedule {
	return c.Optim.Schedule(steps * c.Updates(batch))
}

// Updates is the number of optimizer steps of one update on a batch of prompts.
func (c Config) Updates(batch int) int { return c.PPOEpochs * ceilDiv(batch, c.miniBatch(batch)) }

func (c Config) miniBatch(prompts int) int {
	if c.PPOMiniBatch > 0 {
		return min(c.PPOMiniBatch, prompts)
	}
	return prompts
}

func ceilDiv(a, b int) int { return (a + b - 1) / max(b, 1) }
