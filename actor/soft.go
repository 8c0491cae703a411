package actor

import (
	"errors"
	"fmt"
	"math"

	"gad/algos"
	"gad/model"
)

// Soft are the soft labels of sequences that SoftSFT learns. With q the student's probabilities, p
// those of a label, K its tokens and y the sequence's token, the loss at a token is
//
//	-(1-w) log q_y - w (Σ_K p_v log q_v + p_r log q_r),  p_r = 1 - Σ_K p_v, q_r = 1 - Σ_K q_v
//
// and -log q_y where the label says nothing. The tails p_r and q_r count as one event: cross
// entropy with what is known of the teacher, and its gradient is that of model.LogProbTailGrad.
type Soft struct {
	Weight float64             // w, 0 to 1
	Labels [][]model.SoftLabel // [S][Seq.Trained]; nil of a sequence: all its labels are hard
}

// any reports whether one of the given sequences has a label.
func (s *Soft) any(rows []int) bool {
	if s == nil || s.Weight == 0 {
		return false
	}
	for _, r := range rows {
		for _, l := range s.Labels[r] {
			if len(l.IDs) > 0 {
				return true
			}
		}
	}
	return false
}

// softGrad is LogProbGrad of an objective of log-probabilities, as sft is, of which that of a token
// with a soft label is replaced by the label's: (1-w) log q_y + w Σ p log q.
func (a *Actor) softGrad(sums *shardSums, seqs []model.Seq, soft *Soft, rows []int,
	temperature float64, seed func(logpST, entST, klST [][]float32) (dlogpST, dentST,
		dklST [][]float32, err error)) error {
	labelsST := make([][]model.SoftLabel, len(seqs))
	for i, r := range rows {
		if labelsST[i] = soft.Labels[r]; labelsST[i] == nil {
			labelsST[i] = make([]model.SoftLabel, seqs[i].Trained())
		}
	}
	kl, w := 0.0, soft.Weight
	figures, err := a.m.LogProbTailGrad(seqs, labelsST, temperature,
		func(logpST, entST, tailST [][]float32) (dlogpST, dentST, dtailST [][]float32, err error) {
			for s, labels := range labelsST {
				for t, l := range labels {
					if len(l.IDs) == 0 {
						continue
					}
					kl += float64(tailST[s][t])
					logpST[s][t] = float32((1-w)*float64(logpST[s][t]) -
						w*(float64(tailST[s][t])+entropy(l)))
				}
			}
			if dlogpST, dentST, _, err = seed(logpST, entST, nil); err != nil {
				return nil, nil, nil, err
			}
			dtailST = make([][]float32, len(dlogpST))
			for s, row := range dlogpST {
				dtailST[s] = make([]float32, len(row))
				for t := range row {
					if len(labelsST[s][t].IDs) > 0 {
						dtailST[s][t] = float32(-w * float64(row[t]))
						row[t] = float32((1 - w) * float64(row[t]))
					}
				}
			}
			return dlogpST, dentST, dtailST, nil
		})
	if errors.Is(err, model.ErrNotFinite) { // as the objective says of log-probabilities
		return fmt.Errorf("%w: %w", algos.ErrNotFinite, err)
	}
	if err != nil {
		return fmt.Errorf("soft labels: %w", err)
	}
	sums.Soft, sums.SoftKL = sums.Soft.Add(figures), sums.SoftKL+kl
	return nil
}

// entropy is that of the label's tokens and the tail, nats.
func entropy(l model.SoftLabel) (h float64) {
	for _, x := range l.Logp {
		h -= math.Exp(x) * x
	}
	if l.Rest > 0 {
		h -= l.Rest * math.Log(l.Rest)
	}
	return h
}
