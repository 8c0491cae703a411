package actor

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gad/algos"
	"gad/model"
)

// Soft holds the soft labels of the sequences that SoftSFT learns. With q the student's
// probabilities, p a label's, K the label's tokens and y the sequence's token, the loss at a token
// is
//
//	-(1-w) log q_y - w (Σ_K p_v log q_v + p_r log q_r),  p_r = 1 - Σ_K p_v, q_r = 1 - Σ_K q_v
//
// and -log q_y at tokens without a label. The tails p_r and q_r count as one event: cross entropy
// with the known part of the teacher's distribution. Its gradient is computed by
// model.LogProbTailGrad.
type Soft struct {
	Weight float64             // w, 0 to 1
	Labels [][]model.SoftLabel // [S][Seq.Trained]; a nil row: all its labels are hard
}

// labelled reports whether a token of the sequences has a label.
func (r Rollout) labelled() bool {
	return slices.ContainsFunc(r, func(s *Sequence) bool {
		return slices.ContainsFunc(s.Labels,
			func(l model.SoftLabel) bool { return len(l.IDs) > 0 })
	})
}

// softGrad computes the gradient of an objective of log-probabilities (sft), in which a token with
// a soft label counts with (1-w) log q_y + w Σ p log q instead of log q_y. It adds the figures of
// the soft labels to sums.
func (a *Actor) softGrad(sums *shardSums, pack Rollout, w, temperature float64, seed seeds) error {
	labelsST := make([][]model.SoftLabel, len(pack))
	for i, s := range pack {
		if labelsST[i] = s.Labels; labelsST[i] == nil {
			labelsST[i] = make([]model.SoftLabel, s.Seq.Trained())
		}
	}
	kl := 0.0
	figures, err := a.m.LogProbTailGrad(pack.Seqs(), labelsST, temperature,
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
	if errors.Is(err, model.ErrNotFinite) { // the objective's error for log-probabilities
		return fmt.Errorf("%w: %w", algos.ErrNotFinite, err)
	}
	if err != nil {
		return fmt.Errorf("soft labels: %w", err)
	}
	sums.Soft, sums.SoftKL = sums.Soft.Add(figures), sums.SoftKL+kl
	return nil
}

// entropy returns the entropy of a label's tokens and tail, in nats.
func entropy(l model.SoftLabel) (h float64) {
	for _, x := range l.Logp {
		h -= math.Exp(x) * x
	}
	if l.Rest > 0 {
		h -= l.Rest * math.Log(l.Rest)
	}
	return h
}
