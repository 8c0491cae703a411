package critic

import (
	"fmt"
	"slices"

	"gad/model"
)

// score is the discriminator's value of a sequence under the present weights, if a pass has
// computed it.
type score struct {
	Known bool
	Value float32 // 0 where not Known
}

// scores are those of a list of sequences.
type scores []score

// newScores are the scores of b's students, then of its teachers, as far as b has them.
func newScores(b Batch) scores {
	all := make(scores, len(b.Students)+len(b.Teachers))
	for s, v := range b.ScoreS {
		all[s] = score{true, v}
	}
	for p, v := range b.ScoreP {
		all[len(b.Students)+p] = score{true, v}
	}
	return all
}

// fill sets the scores at the given indices that are not known.
func (s scores) fill(indices []int, values []float32) {
	for k, i := range indices {
		if !s[i].Known {
			s[i] = score{true, values[k]}
		}
	}
}

// complete reports whether all scores are known.
func (s scores) complete() bool {
	return !slices.ContainsFunc(s, func(x score) bool { return !x.Known })
}

// values are the scores as numbers, 0 where unknown.
func (s scores) values() []float32 {
	out := make([]float32, len(s))
	for i, x := range s {
		out[i] = x.Value
	}
	return out
}

// complete computes the scores that present lacks of b's sequences.
func (c *Critic) complete(present scores, b Batch) error {
	return c.scoreUnknown(slices.Concat(b.Students, b.Teachers), present, nil)
}

// scoreUnknown computes, by a forward pass, the scores of seqs that are wanted and not known;
// nil wants all.
func (c *Critic) scoreUnknown(seqs []model.Seq, s scores, wanted []bool) error {
	var todo []int
	for i := range seqs {
		if !s[i].Known && (wanted == nil || wanted[i]) {
			todo = append(todo, i)
		}
	}
	values, err := c.Score(model.Pick(seqs, todo))
	if err != nil {
		return fmt.Errorf("critic: %w", err)
	}
	s.fill(todo, values)
	return nil
}

// pairSet is one mini-batch: sequences, and pairs as indices into them. A teacher's sequence
// is in it once, for all its pairs.
type pairSet struct {
	seqs             []model.Seq
	score            scores      // of seqs
	final            *evaluation // the objective of complete scores; nil until then
	place            []int       // index of each of seqs in the batch's scores; -1: from the pool
	student, teacher []int       // [n] pair: seqs[student[i]] against seqs[teacher[i]]
	group            []int       // [n] prompt of a pair of the batch; -1: from the pool
	ties             int         // pairs of the batch left out because their gradient is zero
	pooled           int         // pairs of the pool that replace pairs of the batch
}

// add appends a sequence whose score is at index place of present, and returns its index.
func (p *pairSet) add(s model.Seq, present scores, place int) int {
	var known score
	if place >= 0 && present != nil {
		known = present[place]
	}
	p.seqs, p.score, p.place = append(p.seqs, s), append(p.score, known), append(p.place, place)
	return len(p.seqs) - 1
}

// report copies the scores that are known of the set's sequences to those of the batch.
func (p *pairSet) report(present scores) {
	for i, at := range p.place {
		if at >= 0 && p.score[i].Known {
			present[at] = p.score[i]
		}
	}
}

// tiesTeach reports whether a pair of equal sequences has a gradient: Bradley-Terry
// sees a difference of scores, which is 0 whatever the weights are.
func (c Config) tiesTeach() bool { return c.Loss != "bt" || c.ScoreL2 > 0 || c.GroupOT > 0 }

// gather collects the pairs of prompts lo to hi-1. If there is a pool, pairs of the pool
// replace the pairs of a share of those prompts, one for one. present are the batch's scores
// under the present weights; nil: none is known.
func (c *Critic) gather(b Batch, lo, hi, update int, present scores) *pairSet {
	set := &pairSet{}
	replaced := c.Replay.replaced(lo, hi, c.cfg.Replay.Share, c.seed, b.Step, update)
	at := map[int]int{} // prompt -> its teacher in set.seqs
	for s, seq := range b.Students {
		p := b.Group[s]
		switch {
		case p < lo || p >= hi || b.Skip[s]:
			continue
		case replaced[p]:
			set.pooled++
			continue
		case b.Tie(s) && !c.cfg.tiesTeach():
			set.ties++
			continue
		}
		if _, ok := at[p]; !ok {
			at[p] = set.add(b.Teachers[p], present, len(b.Students)+p)
		}
		set.teacher = append(set.teacher, at[p])
		set.student = append(set.student, set.add(seq, present, s))
		set.group = append(set.group, p)
	}
	pooled := map[string]int{} // tokens of a teacher in the pool -> its index in set.seqs
	for _, old := range c.Replay.Draw(set.pooled, c.seed, b.Step, update) {
		key := fmt.Sprint(old.Teacher.IDs)
		if _, ok := pooled[key]; !ok {
			pooled[key] = set.add(old.Teacher, nil, -1)
		}
		set.teacher = append(set.teacher, pooled[key])
		set.student = append(set.student, set.add(old.Student, nil, -1))
		set.group = append(set.group, -1)
	}
	return set
}

// byShard divides the indices of the sequences among the shards of m. A teacher and all its
// pairs are in one shard.
func (p *pairSet) byShard(m *model.Model) [][]int {
	number := map[int]int{} // index of a teacher -> its number among the teachers
	teacherOf := make([]int, len(p.seqs))
	for n, t := range p.teacher {
		if _, ok := number[t]; !ok {
			number[t] = len(number)
		}
		teacherOf[t], teacherOf[p.student[n]] = t, t
	}
	shards := make([][]int, m.Shards())
	for i, t := range teacherOf {
		k := m.Shard(number[t], len(number))
		shards[k] = append(shards[k], i)
	}
	return shards
}
