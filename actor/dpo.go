package actor

import (
	"errors"
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// Preferences are n pairs of answers to the same prompt, and what the frozen
// reference gives them.
type Preferences struct {
	Chosen, Rejected       []model.Seq
	RefChosen, RefRejected []float64 // [n] SeqLogp
}

// DPOStats describe a preference update, taken before its optimizer step.
type DPOStats struct {
	algos.DPOStats
	Chosen, Rejected []float64 // [n] the student's SeqLogp
	Entropy          float64   // mean over the tokens of both sides, nats
	GradNorm         float64   // before clipping
	LR               float64
	Updates          int // optimizer steps taken: 0 or 1
	Skipped          int // optimizer steps left out for a loss or gradient that is not finite
	// passes through the student, 1 for a forward one: 3, or 4 where the pairs take several packs
	Passes int
}

// SeqLogp is the log-probability of each response [S], the sum over its tokens' [S][T].
func SeqLogp(logpST [][]float32) []float64 {
	sumS := make([]float64, len(logpST))
	for s, row := range logpST {
		for _, x := range row {
			sumS[s] += float64(x)
		}
	}
	return sumS
}

// DPO takes one optimizer step of the preference objective on all pairs. The gradient with
// respect to a sequence's log-probability needs the log-probabilities of the whole pair, and the
// two sequences may be in different packs. So unless one pack holds all sequences, a forward pass
// computes all log-probabilities before the passes of the gradient. Temperature is 1.
func (a *Actor) DPO(objective *algos.DPO[float64], p Preferences) (DPOStats, error) {
	n := len(p.Chosen)
	if n == 0 || len(p.Rejected) != n || len(p.RefChosen) != n || len(p.RefRejected) != n {
		return DPOStats{}, fmt.Errorf("actor: preferences: %d chosen, %d rejected, reference of %d and %d: must be equally many, and at least one", n, len(p.Rejected), len(p.RefChosen), len(p.RefRejected))
	}
	u := &pairUpdate{objective: objective, p: p, seqs: slices.Concat(p.Chosen, p.Rejected)}
	finite, err := a.learnPairs(u)
	if err != nil {
		return u.st, err
	}
	if !finite { // nothing of these pairs reaches the weights
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

// pairUpdate is the state of one preference update.
type pairUpdate struct {
	objective *algos.DPO[float64]
	p         Preferences
	seqs      []model.Seq // [2n] chosen, then rejected
	seed      []float64   // [2n] d loss/d sequence log-probability; nil until compare
	st        DPOStats
}

// compare computes the objective and its seeds from the log-probabilities and entropies of all
// sequences.
func (u *pairUpdate) compare(logpST, entST [][]float32) error {
	n, sumS := len(u.p.Chosen), SeqLogp(logpST)
	u.st.Chosen, u.st.Rejected = sumS[:n], sumS[n:]
	res, err := u.objective.Step(
		algos.DPOBatch[float64]{Chosen: u.st.Chosen, Rejected: u.st.Rejected,
			RefChosen: u.p.RefChosen, RefRejected: u.p.RefRejected,
			LenChosen: responseLens(u.p.Chosen), LenRejected: responseLens(u.p.Rejected)})
	u.st.DPOStats, u.seed = res.DPOStats, slices.Concat(res.DChosen, res.DRejected)
	u.st.Entropy = meanOf(entST)
	return err
}

// learnPairs adds the gradient of the objective to the student's gradients. finite is false if
// the objective, or a gradient, is not finite on any rank.
func (a *Actor) learnPairs(u *pairUpdate) (finite bool, err error) {
	n, shards := len(u.p.Chosen), make([][]int, a.m.Shards())
	for s := range u.seqs { // both sequences of a pair in one shard
		k := a.m.Shard(s%n, n)
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
		if err := u.compare(logpST, entST); errors.Is(err, algos.ErrNotFinite) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("actor: %w", err)
		}
	}
	finiteK, err := model.EachShard(a.m, func(k int) ([]bool, error) {
		for _, pack := range packsK[k] {
			err := a.learnPack(u, pack)
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

// learnPack passes one pack forward and backward.
func (a *Actor) learnPack(u *pairUpdate, pack []int) error {
	return a.m.LogProbGrad(model.Pick(u.seqs, pack), 1,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			if u.seed == nil { // the pack holds all sequences
				allLogpST, allEntST :=
					make([][]float32, len(u.seqs)), make([][]float32, len(u.seqs))
				for i, s := range pack {
					allLogpST[s], allEntST[s] = logpST[i], entST[i]
				}
				if err := u.compare(allLogpST, allEntST); err != nil {
					return nil, nil, err
				}
			}
			for i, s := range pack {
				dlogpST = append(dlogpST,
					slices.Repeat([]float32{float32(u.seed[s])}, len(logpST[i])))
			}
			return dlogpST, nil, nil
		})
}

// responseLens are the tokens of each sequence's response.
func responseLens(seqs []model.Seq) []int {
	n := make([]int, len(seqs))
	for i, s := range seqs {
		n[i] = s.Trained()
	}
	return n
}

// meanOf is the mean of all values.
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
