package critic

import (
	"fmt"
	"slices"

	"gad/model"
)

// score is one of the discriminator's values under the present weights, if a pass has computed it.
type score struct {
	Known bool
	Value float32 // 0 where not Known
	Base  float64 // subtracted from the network's part (Scorer.baseline)
}

// scores holds the scores of a list of sequences: one each or, with level turn, one for each turn.
type scores struct {
	at    []score // sequence by sequence
	first []int   // [sequences] the first score of each
}

// newScores returns the scores of b's students, then of its teachers. Scores that b does not have
// are unknown.
func (c *Critic) newScores(b Batch) *scores {
	all := &scores{}
	add := func(seqs []model.Seq, scoreS []float32, turnS [][]float32) {
		for i, s := range seqs {
			of := c.unscored(s, b.base, len(all.first))
			switch {
			case c.cfg.byTurn() && turnS != nil:
				setKnown(of, turnS[i])
			case !c.cfg.byTurn() && scoreS != nil:
				setKnown(of, scoreS[i:i+1])
			}
			all.add(of)
		}
	}
	add(b.Students, b.ScoreS, b.TurnS)
	add(b.Teachers, b.ScoreP, b.TurnP)
	return all
}

// unscored returns a sequence's scores before any pass, all unknown. base[i] are their baselines;
// base nil stands for zeros.
func (c *Scorer) unscored(s model.Seq, base [][]float64, i int) []score {
	n := 1
	if c.cfg.byTurn() {
		n = s.Turns()
	}
	of := make([]score, n)
	if base != nil {
		for k := range of {
			of[k].Base = base[i][k]
		}
	}
	return of
}

// setKnown sets scores to values that the caller knows.
func setKnown(of []score, values []float32) {
	for k := range of {
		of[k].Known, of[k].Value = true, values[k]
	}
}

// add appends the scores of one more sequence.
func (s *scores) add(of []score) {
	s.first = append(s.first, len(s.at))
	s.at = append(s.at, of...)
}

// span returns where the scores of sequence i are: at[from:to].
func (s *scores) span(i int) (from, to int) {
	if i+1 < len(s.first) {
		return s.first[i], s.first[i+1]
	}
	return s.first[i], len(s.at)
}

// sequence returns the scores of sequence i.
func (s *scores) sequence(i int) []score {
	from, to := s.span(i)
	return s.at[from:to]
}

// indices returns the indices in at of the given sequences' scores.
func (s *scores) indices(seqs []int) (at []int) {
	for _, i := range seqs {
		for from, to := s.span(i); from < to; from++ {
			at = append(at, from)
		}
	}
	return at
}

// fill sets the unknown scores of the given sequences from values, the network's part of each of
// their scores.
func (s *scores) fill(seqs []int, values []float64) {
	for k, i := range s.indices(seqs) {
		if at := &s.at[i]; !at.Known {
			at.Known, at.Value = true, float32(values[k]-at.Base)
		}
	}
}

// complete reports whether all scores are known.
func (s *scores) complete() bool { return allKnown(s.at) }

// allKnown reports whether all of the given scores are known.
func allKnown(of []score) bool {
	return !slices.ContainsFunc(of, func(x score) bool { return !x.Known })
}

// values returns the scores as numbers, 0 where unknown.
func (s *scores) values() []float32 {
	out := make([]float32, len(s.at))
	for i, x := range s.at {
		out[i] = x.Value
	}
	return out
}

// bySequence returns each sequence's last score and, if byTurn, all its scores.
func (s *scores) bySequence(byTurn bool) (last []float32, turns [][]float32) {
	values := s.values()
	for i := range s.first {
		from, to := s.span(i)
		last = append(last, values[to-1])
		if byTurn {
			turns = append(turns, values[from:to:to])
		}
	}
	return last, turns
}

// scoreRest computes the scores of b's sequences that present lacks.
func (c *Critic) scoreRest(present *scores, b Batch) error {
	return c.scoreUnknown(slices.Concat(b.Students, b.Teachers), present, nil)
}

// scoreUnknown computes, by a forward pass, the unknown scores of the sequences that wanted marks;
// nil marks all.
func (c *Scorer) scoreUnknown(seqs []model.Seq, s *scores, wanted []bool) error {
	var todo []int
	for i := range seqs {
		if !allKnown(s.sequence(i)) && (wanted == nil || wanted[i]) {
			todo = append(todo, i)
		}
	}
	values, err := c.head.scores(model.Pick(seqs, todo), c.cfg.MaxTokenLen)
	if err != nil {
		return fmt.Errorf("critic: %w", err)
	}
	s.fill(todo, slices.Concat(values...))
	return nil
}

// pairSet is one mini-batch: sequences, and pairs as indices into them. A teacher's sequence
// is in it once, for all its pairs.
type pairSet struct {
	seqs             []model.Seq
	score            scores      // of seqs
	terms            terms       // of the loss
	final            *evaluation // the objective of complete scores; nil until then
	place            []int       // index of each of seqs in the batch; -1: from the pool
	student, teacher []int       // [n] pair: seqs[student[i]] against seqs[teacher[i]]
	group            []int       // [n] prompt of a pair of the batch; -1: from the pool
	ties             int         // pairs of the batch left out because their gradient is zero
	pooled           int         // pairs of the pool that replace pairs of the batch
}

// copyScores copies the known scores of the set's sequences to the batch's scores.
func (p *pairSet) copyScores(present *scores) {
	for i, at := range p.place {
		if at >= 0 && allKnown(p.score.sequence(i)) {
			copy(present.sequence(at), p.score.sequence(i))
		}
	}
}

// tiesTeach reports whether a pair of equal sequences has a gradient: Bradley-Terry
// sees a difference of scores, which is 0 whatever the weights are.
func (c Config) tiesTeach() bool { return c.Loss != "bt" || c.ScoreL2 > 0 || c.GroupOT > 0 }

// gather collects the pairs of prompts lo to hi-1. If there is a pool, pairs of the pool replace
// the pairs of a share of those prompts, one for one. present holds the batch's scores under the
// present weights; nil: none is known.
func (c *Critic) gather(b Batch, lo, hi, update int, present *scores) (*pairSet, error) {
	set := &pairSet{}
	add := func(s model.Seq, place int, base [][]float64) int {
		of := c.unscored(s, base, max(place, 0))
		if place >= 0 && present != nil {
			of = present.sequence(place)
		}
		set.score.add(of)
		set.seqs, set.place = append(set.seqs, s), append(set.place, place)
		return len(set.seqs) - 1
	}
	replaced := c.Replay.pickPooled(lo, hi, c.cfg.Replay.Share, c.seed, b.Step, update)
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
			at[p] = add(b.Teachers[p], len(b.Students)+p, b.base)
		}
		set.teacher = append(set.teacher, at[p])
		set.student = append(set.student, add(seq, s, b.base))
		set.group = append(set.group, p)
	}
	pooled := map[string]int{} // tokens and spans of a teacher in the pool -> its index in set.seqs
	drawn := c.Replay.Draw(set.pooled, c.seed, b.Step, update)
	var both []model.Seq
	for _, old := range drawn {
		both = append(both, old.Student, old.Teacher)
	}
	base, err := c.baseline(both) // under the student's present weights
	if err != nil {
		return nil, err
	}
	of := func(i int) [][]float64 { return base[min(i, len(base)):] }
	for i, old := range drawn {
		key := fmt.Sprint(old.Teacher)
		if _, ok := pooled[key]; !ok {
			pooled[key] = add(old.Teacher, -1, of(2*i+1))
		}
		set.teacher = append(set.teacher, pooled[key])
		set.student = append(set.student, add(old.Student, -1, of(2*i)))
		set.group = append(set.group, -1)
	}
	set.terms = set.score.compare(set.student, set.teacher)
	return set, nil
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
