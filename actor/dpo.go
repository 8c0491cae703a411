package actor

import (
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// Preferences holds n pairs of answers, both to the same prompt, with their log-probabilities under
// the frozen reference.
type Preferences struct {
	Chosen, Rejected       []model.Seq
	RefChosen, RefRejected []float64 // [n] SeqLogp
}

// DPOStats describes a preference update, taken before its optimizer step.
type DPOStats struct {
	algos.DPOStats
	JointStats
	Chosen, Rejected []float64 // [n] the student's SeqLogp
}

// DPO takes one optimizer step of the preference objective on all pairs. Temperature is 1.
func (a *Actor) DPO(objective *algos.DPO[float64], p Preferences) (st DPOStats, err error) {
	n := len(p.Chosen)
	if n == 0 || len(p.Rejected) != n || len(p.RefChosen) != n || len(p.RefRejected) != n {
		return st, fmt.Errorf("actor: preferences: %d chosen, %d rejected, reference of %d and %d: must be equally many, and at least one", n, len(p.Rejected), len(p.RefChosen), len(p.RefRejected))
	}
	u := &jointUpdate{seqs: slices.Concat(p.Chosen, p.Rejected), units: n}
	for s := range u.seqs {
		u.unit = append(u.unit, s%n)
	}
	u.compare = func(sumS []float64) (seedS []float64, err error) {
		st.Chosen, st.Rejected = sumS[:n], sumS[n:]
		res, err := objective.Step(
			algos.DPOBatch[float64]{Chosen: st.Chosen, Rejected: st.Rejected,
				RefChosen: p.RefChosen, RefRejected: p.RefRejected,
				LenChosen: responseLens(p.Chosen), LenRejected: responseLens(p.Rejected)})
		st.DPOStats = res.DPOStats
		return slices.Concat(res.DChosen, res.DRejected), err
	}
	st.JointStats, err = a.learnJointly(u)
	return st, err
}

// responseLens counts the tokens of each sequence's response.
func responseLens(seqs []model.Seq) []int {
	n := make([]int, len(seqs))
	for i, s := range seqs {
		n[i] = s.Trained()
	}
	return n
}
