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

// round is the record of one step: prompts, each with a group of answers.
type round struct {
	groups        []*group
	scored        bool // the discriminator's scores are known
	hasAdvantages bool // all advantages are set, and finite
}

// group is a prompt with the teacher's answer, and the student's answers.
type group struct {
	encode.Row
	key     int       // key of the sampler's random numbers
	score   float32   // the discriminator's score of the teacher's answer
	turns   []float32 // the same by turn, with critic.level=turn
	answers []*answer
	plain   bool // no notes are written, and the teacher is the one of the start
}

// answer is the student's answer to a prompt. Its form determines in how many sequences.
type answer struct {
	ids  []int32       // tokens that the student wrote; a branch has those of its parent first
	cut  bool          // ended by a limit
	seqs actor.Rollout // only tokens that were sampled for this answer are trained

	episode *episode.Episode  // in an environment
	branch  algos.Branch      // place in a tree; Parent and Tree count within the prompt
	place   *report.TreePlace // place in a tree, for samples

	criticSeq   model.Seq // as the discriminator reads it
	score       float32   // the discriminator's
	turns       []float32 // the same by turn, with critic.level=turn
	terms       []float32 // the same by token, with critic.level=token
	check       float64   // the checker's score; NaN: none
	thoughtSeq  model.Seq // the teacher's answer after this answer's thought, for teacher_logp
	thoughtLogp float64   // value of the term teacher_logp
	kl          []float32 // exact KL to the reference by token, if it is in the reward

	reward float64   // reward that the advantages are computed from
	advT   []float64 // advantages of its own tokens, before a teacher's are added; nil: none
	adv    float64   // advantage that a sample shows, the first of advT; NaN: none
	taught taught    // as the teacher reads it
}

// taught is an answer as the teacher reads it.
type taught struct {
	notes string  // a coach's, which it reads with the prompt; "": none
	logp  float64 // mean log-probability of the answer's tokens; NaN: none
}

// newAnswer returns an answer of the given sequences, without scores.
func newAnswer(cut bool, seqs ...*actor.Sequence) *answer {
	a := &answer{cut: cut, seqs: seqs, check: math.NaN(), adv: math.NaN(),
		taught: taught{logp: math.NaN()}}
	for _, s := range seqs {
		if len(seqs) == 1 {
			a.ids = s.Seq.TrainedIDs()
			break
		}
		a.ids = append(a.ids, s.Seq.TrainedIDs()...)
	}
	return a
}

// ownTokens returns the number of tokens that were sampled for the answer.
func (a *answer) ownTokens() (n int) {
	for _, s := range a.seqs {
		n += s.Seq.Trained()
	}
	return n
}

// concat returns the values of the answer's own tokens, sequence after sequence.
func (a *answer) concat(value func(*actor.Sequence) []float32) (all []float32) {
	for _, s := range a.seqs {
		all = append(all, value(s)...)
	}
	return all
}

// oldOf returns the old log-probabilities of an answer's own tokens.
func oldOf(_ *group, a *answer) []float32 {
	return a.concat(func(s *actor.Sequence) []float32 { return s.Old })
}

// refOf returns the reference's log-probabilities of an answer's own tokens.
func refOf(_ *group, a *answer) []float32 {
	return a.concat(func(s *actor.Sequence) []float32 { return s.Ref })
}

// newRound returns a round of prompts without answers. keys [P] are the keys of the sampler's
// random numbers.
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

// each returns value of every answer [A], in the order of the round.
func each[T any](r *round, value func(*group, *answer) T) (list []T) {
	for _, g := range r.groups {
		for _, a := range g.answers {
			list = append(list, value(g, a))
		}
	}
	return list
}

// group returns the index of each answer's prompt [A].
func (r *round) group() (list []int) {
	for p, g := range r.groups {
		for range g.answers {
			list = append(list, p)
		}
	}
	return list
}

// criticSeqs returns the answers as the discriminator reads them [A].
func (r *round) criticSeqs() []model.Seq {
	return each(r, func(_ *group, a *answer) model.Seq { return a.criticSeq })
}

// rollout returns the answers' sequences, with the indices of prompt and answer that the actor
// reads.
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

// mask returns each answer's number of own tokens [A], and their mask [A][T], with T the largest
// number.
func (r *round) mask() (lenA []int, maskAT [][]float64) {
	most := 1
	for _, a := range r.answers() {
		lenA = append(lenA, a.ownTokens())
		most = max(most, a.ownTokens())
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

// setAdvantages sets the advantages advAT [A][T] of the answers, and of each answer's sequences.
func (r *round) setAdvantages(advAT [][]float64) {
	for i, a := range r.answers() {
		at := 0
		for _, s := range a.seqs {
			n := s.Seq.Trained()
			s.Adv = advAT[i][at : at+n]
			at += n
		}
		a.advT, a.adv = advAT[i], advAT[i][0]
	}
	r.hasAdvantages = true
}

// take appends the groups of from whose indices are in keep.
func (r *round) take(from *round, keep []int) {
	r.groups = append(r.groups, model.Pick(from.groups, keep)...)
	r.scored = from.scored
}
