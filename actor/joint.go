package actor

import (
	"errors"
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// jointUpdate is one optimizer step of a loss of whole sequences' log-probabilities in which
// sequences are compared: the pairs of DPO, the groups of Rank.
type jointUpdate struct {
	seqs  []model.Seq
	unit  []int // [S] index of the sequence's pair or group
	units int

	// compare returns the loss's gradient with respect to each sequence's log-probability [S],
	// given all log-probabilities [S].
	compare func(sumS []float64) (seedS []float64, err error)

	seedS []float64 // nil until compare
	st    JointStats
}

// JointStats describes an update by whole sequences, taken before its optimizer step.
type JointStats struct {
	Entropy  float64 // mean over the tokens of all sequences, nats
	GradNorm float64 // before clipping
	LR       float64
	Updates  int // optimizer steps taken: 0 or 1
	Skipped  int // optimizer steps left out for a loss or gradient that is not finite
	// passes through the student, a forward pass counted as 1 and a backward pass as 2: 3, or 4
	// where the sequences take several packs
	Passes int
}

// SeqLogp returns the log-probability of each response [S]: the sum over its tokens'
// log-probabilities logpST [S][T].
func SeqLogp(logpST [][]float32) []float64 {
	sumS := make([]float64, len(logpST))
	for s, row := range logpST {
		for _, x := range row {
			sumS[s] += float64(x)
		}
	}
	return sumS
}

// learnJointly takes the optimizer step. The gradient of a sequence's log-probability depends on
// the log-probabilities of its whole unit (pair or group), and the sequences may be in different
// packs. So unless one pack holds all sequences, a forward pass computes all log-probabilities
// before the passes of the gradient. Temperature is 1.
func (a *Actor) learnJointly(u *jointUpdate) (JointStats, error) {
	finite, err := a.jointGradient(u)
	if err != nil {
		return u.st, err
	}
	if !finite { // nothing of these sequences reaches the weights
		u.st.Skipped = 1
		return u.st, a.opt.ZeroGrad()
	}
	step, err := a.opt.Step()
	if err != nil {
		return u.st, fmt.Errorf("actor: optimizer: %w", err)
	}
	if step.Skipped {
		u.st.Skipped = 1
		return u.st, nil
	}
	u.st.Updates, u.st.GradNorm, u.st.LR = 1, step.GradNorm, step.LR
	return u.st, nil
}

// seed computes seedS from the log-probabilities and entropies [S][T] of all sequences.
func (u *jointUpdate) seed(logpST, entST [][]float32) (err error) {
	u.st.Entropy = meanOf(entST)
	u.seedS, err = u.compare(SeqLogp(logpST))
	return err
}

// jointGradient adds the gradient of the loss to the student's gradients. finite is false if the
// loss, or a gradient, is not finite on any rank.
func (a *Actor) jointGradient(u *jointUpdate) (finite bool, err error) {
	shards := make([][]int, a.m.Shards())
	for s, unit := range u.unit { // the sequences of a unit in one shard
		k := a.m.Shard(unit, u.units)
		shards[k] = append(shards[k], s)
	}
	packsK := model.PacksByShard(u.seqs, shards, a.cfg.MaxTokenLen)
	u.st.Passes = 3
	if len(shards) > 1 || len(packsK[0]) > 1 {
		u.st.Passes = 4
		logpST, entST, err := a.m.AllLogProbs(u.seqs, 1, a.cfg.MaxTokenLen)
		if err != nil {
			return false, fmt.Errorf("actor: %w", err)
		}
		if err := u.seed(logpST, entST); errors.Is(err, algos.ErrNotFinite) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("actor: %w", err)
		}
	}
	finiteK, err := model.EachShard(a.m, func(k int) ([]bool, error) {
		for _, pack := range packsK[k] {
			err := a.jointPack(u, pack)
			if errors.Is(err, algos.ErrNotFinite) {
				return []bool{false}, nil
			}
			if err != nil {
				return nil, fmt.Errorf("actor: %w", err)
			}
		}
		return []bool{true}, nil
	})
	return !slices.Contains(slices.Concat(finiteK...), false), err
}

// jointPack passes one pack forward and backward. pack holds indices of sequences.
func (a *Actor) jointPack(u *jointUpdate, pack []int) error {
	return a.m.LogProbGrad(model.Pick(u.seqs, pack), 1,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			if u.seedS == nil { // the pack holds all sequences
				allLogpST, allEntST :=
					make([][]float32, len(u.seqs)), make([][]float32, len(u.seqs))
				for i, s := range pack {
					allLogpST[s], allEntST[s] = logpST[i], entST[i]
				}
				if err := u.seed(allLogpST, allEntST); err != nil {
					return nil, nil, err
				}
			}
			for i, s := range pack {
				dlogpST = append(dlogpST,
					slices.Repeat([]float32{float32(u.seedS[s])}, len(logpST[i])))
			}
			return dlogpST, nil, nil
		})
}

// meanOf returns the mean of all values.
func meanOf(rows [][]float32) float64 {
	var sum, n float64
	for _, row := range rows {
		for _, x := range row {
			sum += float64(x)
			n++
		}
	}
	return sum / max(n, 1)
}
