package trainer

import (
	"math"

	"gad/actor"
	"gad/algos"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/encode"
	"gad/trainer/episode"
)

// round is what is played in one step: prompts, each with a group of answers.
type round struct {
	groups []*group
	scored bool // the discriminator's scores are known
	learns bool // all advantages are known, and finite
}

// group is a prompt with the teacher's answer, and the student's answers.
type group struct {
	encode.Row
	key     int       // of the sampler's random numbers
	score   float32   // the discriminator's, of the teacher's answer
	turns   []float32 // the same by turn, with critic.level=turn
	answers []*answer
}

// answer is what the student did with a prompt: its form says in how many sequences.
type answer struct {
	ids  []int32       // tokens that the student wrote; of a branch, those that it shares too
	cut  bool          // at a limit
	seqs actor.Rollout // only tokens that were sampled for this answer are trained

	episode *episode.Episode  // in an environment
	branch  algos.Branch      // of a tree, by numbers within the prompt
	place   *report.TreePlace // for readers, of a tree

	judged  model.Seq // on the discriminator's path
	score   float32   // the discriminator's
	turns   []float32 // the same by turn, with critic.level=turn
	terms   []float32 // the same by token, with critic.level=token
	check   float64   // the checker's score; NaN: none
	behind  model.Seq // the teacher's answer behind this one's thought, for the term teacher_logp
	thought float64   // that term
	kl      []float32 // the exact KL to the reference by token, where the reward has it

	reward float64   // what advantages are computed from
	advT   []float64 // of its own tokens, before a teacher's are added; nil: none
	adv    float64   // what a sample shows: the first of them; NaN: none
	taught float64   // mean log-probability of its tokens under the teacher of gad opd
}

// newAnswer returns an answer in the given sequences, which nobody has judged.
func newAnswer(cut bool, seqs ...*actor.Sequence) *answer {
	a := &answer{cut: cut, seqs: seqs, check: math.NaN(), adv: math.NaN(), taught: math.NaN()}
	for _, s := range seqs {
		if len(seqs) == 1 {
			a.ids = s.Seq.TrainedIDs()
			break
		}
		a.ids = append(a.ids, s.Seq.TrainedIDs()...)
	}
	return a
}

// own counts the tokens that were sampled for the answer.
func (a *answer) own() (n int) {
	for _, s := range a.seqs {
		n += s.Seq.Trained()
	}
	return n
}

// joined returns a value of each of the answer's own tokens, sequence after sequence.
func (a *answer) joined(value func(*actor.Sequence) []float32) (all []float32) {
	for _, s := range a.seqs {
		all = append(all, value(s)...)
	}
	return all
}

// newRound returns a round of prompts without answers. keys are the sampler's.
func newRound(b encode.Batch, keys []int) *round {
	r := &round{}
	for i, row := range b {
		r.groups = append(r.groups, &group{Row: row, key: keys[i]})
	}
	return r
}

// batch returns the round's prompts with the teacher's answers.
func (r *round) batch() (b encode.Batch) {
	for _, g := range r.groups {
		b = append(b, g.Row)
	}
	return b
}

// answers returns the answers to all prompts.
func (r *round) answers() (list []*answer) {
	for _, g := range r.groups {
		list = append(list, g.answers...)
	}
	return list
}

// each returns a value of every answer [A].
func each[T any](r *round, value func(*group, *answer) T) (list []T) {
	for _, g := range r.groups {
		for _, a := range g.answers {
			list = append(list, value(g, a))
		}
	}
	return list
}

// group returns the prompt of each answer [A].
func (r *round) group() (list []int) {
	for p, g := range r.groups {
		for range g.answers {
			list = append(list, p)
		}
	}
	return list
}

// judged returns the answers on the discriminator's path [A].
func (r *round) judged() []model.Seq {
	return each(r, func(_ *group, a *answer) model.Seq { return a.judged })
}

// rollout returns the answers' sequences, numbered as the actor reads them.
func (r *round) rollout() (list actor.Rollout) {
	number := 0
	for p, g := range r.groups {
		for _, a := range g.answers {
			for _, s := range a.seqs {
				s.Group, s.Answer = p, number
				list = append(list, s)
			}
			number++
		}
	}
	return list
}

// mask returns the answers' own tokens [A] and their mask [A][T], T the most.
func (r *round) mask() (lenA []int, maskAT [][]float64) {
	most := 1
	for _, a := range r.answers() {
		lenA = append(lenA, a.own())
		most = max(most, a.own())
	}
	for _, n := range lenA {
		row := make([]float64, most)
		for i := range row[:n] {
			row[i] = 1
		}
		maskAT = append(maskAT, row)
	}
	return lenA, maskAT
}

// spread gives the sequences of each answer their parts of its advantages [A][T].
func (r *round) spread(advAT [][]float64) {
	for i, a := range r.answers() {
		at := 0
		for _, s := range a.seqs {
			n := s.Seq.Trained()
			s.Adv = advAT[i][at : at+n]
			at += n
		}
		a.advT, a.adv = advAT[i], advAT[i][0]
	}
	r.learns = true
}

// take appends the groups of from that keep names.
func (r *round) take(from *round, keep []int) {
	r.groups = append(r.groups, model.Pick(from.groups, keep)...)
	r.scored = from.scored
}
