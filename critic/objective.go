package critic

import (
	"fmt"

	"gad/algos"
	"gad/model"
)

// learned are the statistics of a mini-batch, means over its pairs.
type learned struct {
	algos.DiscResult[float32]
	groupTerm float64
}

// evaluation is a result of objective.
type evaluation struct {
	learned
	seed []float32 // [len(seqs)]
}

// objective is the loss over the pairs whose scores are known,
//
//	L = 1/(n+ties) Σ_pairs loss(D_s, D_t) + GroupOT * group term
//
// and its seeds dL/dD [len(seqs)]. Ties are in the mean, with a gradient of zero. Once all scores
// are known, the result does not change and is computed once (pairSet.final).
func (c *Critic) objective(set *pairSet) (res learned, seed []float32, err error) {
	if set.final != nil {
		return set.final.learned, set.final.seed, nil
	}
	score := set.score.values()
	studentN := model.Pick(score, set.student)
	complete := set.score.complete()
	var weight []float32 // [n]; nil is 1/n
	if !complete {
		weight = make([]float32, len(studentN))
		for n, s := range set.student {
			if set.score[s].Known && set.score[set.teacher[n]].Known {
				weight[n] = float32(1 / float64(len(studentN)))
			}
		}
	}
	if res.DiscResult, err = c.loss.Step(studentN, score, set.teacher, weight); err != nil {
		return res, nil, fmt.Errorf("critic: %w", err)
	}
	seed = res.DTeacher // a sequence is a student's or a teacher's, never both
	for n, i := range set.student {
		seed[i] += res.DStudent[n]
	}
	if set.ties > 0 {
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
		for n, i := range set.student {
			seed[i] += dStudentN[n]
		}
	}
	flush(seed)
	if complete {
		set.final = &evaluation{res, seed}
	}
	return res, seed, nil
}

// least is the smallest |dL/dD| that passes backward. A discriminator that is sure of a pair
// has smaller ones, whose products with weights are subnormal numbers: a processor multiplies
// those some hundred times slower. AdamW, whose eps is 1e-8, makes nothing of them either way.
const least = 1e-25

// flush makes seeds zero that are too small to matter.
func flush(seed []float32) {
	for i, x := range seed {
		if x < least && x > -least {
			seed[i] = 0
		}
	}
}
