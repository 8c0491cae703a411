package critic

import (
	"fmt"

	"gad/model"
)

// lossStats is the statistics of a mini-batch, means over its pairs.
type lossStats struct {
	loss      float64
	acc       float64 // of the indicator D_teacher > D_student of the last turns, strict
	groupTerm float64
}

// evaluation is a cached result of objective.
type evaluation struct {
	lossStats
	seed []float32 // [scores]
}

// objective returns the loss over the pairs whose scores are known,
//
//	L = 1/(n+ties) Σ_pairs loss of the pair (turns.go) + GroupOT * group term
//
// and its seeds dL/dD [scores]. Ties are in the mean, with a gradient of zero. The group term is of
// the last turns' scores. Once all scores are known, the result does not change and is computed
// once (pairSet.final).
func (c *Critic) objective(set *pairSet) (res lossStats, seed []float32, err error) {
	if set.final != nil {
		return set.final.lossStats, set.final.seed, nil
	}
	score, terms, pairs := set.score.values(), set.terms, float64(len(set.student))
	studentN := model.Pick(score, terms.student)
	weight := make([]float32, len(studentN)) // 0: a score is unknown
	for n, i := range terms.student {
		if set.score.at[i].Known && set.score.at[terms.teacher[n]].Known {
			weight[n] = float32(terms.share[n] / pairs)
		}
	}
	step, err := c.loss.Step(studentN, score, terms.teacher, weight)
	if err != nil {
		return res, nil, fmt.Errorf("critic: %w", err)
	}
	res.loss = step.Loss
	for _, n := range terms.last {
		if weight[n] > 0 && score[terms.teacher[n]] > studentN[n] {
			res.acc += 1 / pairs
		}
	}
	seed = step.DTeacher // a score is a student's or a teacher's, never both
	for n, i := range terms.student {
		seed[i] += step.DStudent[n]
	}
	if set.ties > 0 {
		share := pairs / (pairs + float64(set.ties))
		res.loss, res.acc = share*res.loss, share*res.acc
		for i := range seed {
			seed[i] *= float32(share)
		}
	}
	if c.cfg.GroupOT > 0 {
		term, dLastN, err := c.group.Step(model.Pick(studentN, terms.last), set.group,
			c.cfg.GroupOT)
		if err != nil {
			return res, nil, fmt.Errorf("critic: %w", err)
		}
		res.groupTerm = term
		for i, n := range terms.last {
			seed[terms.student[n]] += dLastN[i]
		}
	}
	flush(seed)
	if set.score.complete() {
		set.final = &evaluation{res, seed}
	}
	return res, seed, nil
}

// minSeed is the smallest |dL/dD| that passes backward. A discriminator that is sure of a pair has
// smaller ones, whose products with weights are subnormal numbers, which a processor multiplies
// about a hundred times slower. AdamW, whose eps is 1e-8, ignores them either way.
const minSeed = 1e-25

// flush makes seeds zero that are too small to matter.
func flush(seed []float32) {
	for i, x := range seed {
		if x < minSeed && x > -minSeed {
			seed[i] = 0
		}
	}
}
