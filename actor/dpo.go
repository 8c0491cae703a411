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

// SeqLogp is each sequence's log-probability, the sum over its response's tokens,
// from their own logarithms [S][T].
func SeqLogp(logpST [][]float32) []float64 {
	sumS := make([]float64, len(logpST))
	for s, row := range logpST {
		for _, x := range row {
			sumS[s] += float64(x)
		}
	}
	return sumS
}

// DPO takes one optimizer step of the preference objective on all pairs. Its gradient by
// a sequence's log-probability needs the sums of the whole pair, and the two sequences may
// stand in different packs: so the sums come first, by a forward pass of their own unless
// one pack holds all, then the backward passes. Log-probabilities are at temperature 1.
func (a *Actor) DPO(objective *algos.DPO[float64], p Preferences) (DPOStats, error) {
	var st DPOStats
	n := len(p.Chosen)
	if n == 0 || len(p.Rejected) != n || len(p.RefChosen) != n || len(p.RefRejected) != n {
		return st, fmt.Errorf("actor: preferences: %d chosen, %d rejected, reference of %d and %d: must be equally many, and at least one", n, len(p.Rejected), len(p.RefChosen), len(p.RefRejected))
	}
	seqs := slices.Concat(p.Chosen, p.Rejected)
	var seed []float64 // [2n] d loss/d sequence log-probability
	compare := func(logpST, entST [][]float32) error {
		sumS := SeqLogp(logpST)
		st.Chosen, st.Rejected = sumS[:n], sumS[n:]
		res, err := objective.Step(algos.DPOBatch[float64]{Chosen: st.Chosen, Rejected: st.Rejected, RefChosen: p.RefChosen, RefRejected: p.RefRejected,
			LenChosen: responseLens(p.Chosen), LenRejected: responseLens(p.Rejected)})
		st.DPOStats, seed = res.DPOStats, slices.Concat(res.DChosen, res.DRejected)
		st.Entropy = meanOf(entST)
		return err
	}
	skip := func() (DPOStats, error) {
		st.Skipped = 1 // nothing of these pairs reaches the weights
		return st, a.opt.ZeroGrad()
	}
	shards, packsK := make([][]int, a.m.Shards()), make([][][]int, a.m.Shards())
	for s := range seqs { // both sides of a pair in one
		k := a.m.Shard(s%n, n)
		shards[k] = append(shards[k], s)
	}
	for k, shard := range shards {
		for _, pack := range model.Packs(model.Pick(seqs, shard), a.cfg.MaxTokenLen) {
			packsK[k] = append(packsK[k], model.Pick(shard, pack))
		}
	}
	st.Passes = 3
	if a.m.Shards() > 1 || len(packsK[0]) > 1 {
		st.Passes = 4
		logpST, entST, err := a.m.AllLogProbs(seqs, 1, a.cfg.MaxTokenLen)
		if err != nil {
			return st, fmt.Errorf("actor: %w", err)
		}
		if err := compare(logpST, entST); errors.Is(err, algos.ErrNotFinite) {
			return skip()
		} else if err != nil {
			return st, fmt.Errorf("actor: %w", err)
		}
	}
	finiteK, err := model.EachShard(a.m, func(k int) ([]bool, error) {
		for _, pack := range packsK[k] {
			err := a.m.LogProbGrad(model.Pick(seqs, pack), 1, func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
				if seed == nil { // one pack, which has both sides of a prompt together
					logps, ents := make([][]float32, len(seqs)), make([][]float32, len(seqs))
					for i, s := range pack {
						logps[s], ents[s] = logpST[i], entST[i]
					}
					if err := compare(logps, ents); err != nil {
						return nil, nil, err
					}
				}
				for i, s := range pack {
					dlogpST = append(dlogpST, slices.Repeat([]float32{float32(seed[s])}, len(logpST[i])))
				}
				return dlogpST, nil, nil
			})
			if errors.Is(err, algos.ErrNotFinite) {
				return []bool{false}, nil
			}
			if err != nil {
				return nil, fmt.Errorf("actor: %w", err)
			}
		}
		return []bool{true}, nil
	})
	if err != nil {
		return st, err
	}
	if slices.Contains(slices.Concat(finiteK...), false) {
		return skip()
	}
	step, err := a.opt.Step()
	if err != nil {
		return st, fmt.Errorf("actor: optimizer: %w", err)
	}
	if step.Skipped {
		st.Skipped = 1
		return st, nil
	}
	st.Updates, st.GradNorm, st.LR = 1, step.GradNorm, step.LR
	return st, nil
}

// responseLens are the tokens of each sequence's response.
func responseLens(seqs []model.Seq) []int {
	n := make([]int, len(seqs))
	for i, s := range seqs {
		n[i] = len(s.IDs) - s.Prompt
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
