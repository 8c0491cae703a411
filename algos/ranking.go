package algos

import (
	"fmt"
	"math"
)

// Ranking returns a listwise loss for a warm start of the student from scored answers: for each
// prompt, the cross entropy of the student's distribution over the answers of its group against the
// scores' (ListNet, Cao et al., ICML 2007):
//
//	q    = softmax(score/tau)        over the group
//	p    = softmax(sequence logp)    over the group
//	loss = -1/groups * sum_groups sum_i q_i log p_i
//
// loss is at least the entropy of q. dSeqLogp [S] is its gradient with respect to each sequence's
// log-probability, (p - q)/groups, which each of the answer's tokens has. Errors wrap ErrConfig,
// ErrShape or ErrNotFinite.
func Ranking(seqLogpS, scoreS []float64, group []int,
	tau float64) (loss float64, dSeqLogpS []float64, err error) {
	if !(tau > 0) {
		return 0, nil, fmt.Errorf("algos: ranking: tau = %g: must be above 0: %w", tau, ErrConfig)
	}
	if n := len(seqLogpS); n == 0 || len(scoreS) != n || len(group) != n {
		return 0, nil, fmt.Errorf(
			"algos: ranking: %d log-probabilities, %d scores, %d group indices: %w", n, len(scoreS),
			len(group), ErrShape)
	}
	for what, x := range map[string][]float64{"log-probability": seqLogpS, "score": scoreS} {
		if i := notFinite(x); i >= 0 {
			return 0, nil, fmt.Errorf("algos: ranking: %s of answer %d is %g: skip this step: %w",
				what, i, x[i], ErrNotFinite)
		}
	}
	dSeqLogpS = make([]float64, len(seqLogpS))
	rowsG := groupRows(group)
	groups := float64(len(rowsG))
	for _, rows := range rowsG {
		logp, logq := logSoftmax(seqLogpS, rows, 1), logSoftmax(scoreS, rows, tau)
		for k, s := range rows {
			q := math.Exp(logq[k])
			loss -= float64(q*logp[k]) / groups
			dSeqLogpS[s] = (math.Exp(logp[k]) - q) / groups
		}
	}
	return loss, dSeqLogpS, nil
}

// logSoftmax returns the log-softmax of x/tau over the given rows, without overflow.
func logSoftmax(x []float64, rows []int, tau float64) []float64 {
	out, top, sum := make([]float64, len(rows)), math.Inf(-1), 0.0
	for _, s := range rows {
		top = max(top, x[s])
	}
	for k, s := range rows {
		out[k] = (x[s] - top) / tau
		sum += math.Exp(out[k])
	}
	for k := range out {
		out[k] -= math.Log(sum)
	}
	return out
}

// AnnealTau returns the temperature of Ranking, which falls linearly from 1 at step 0 to 0.1 at the
// last of steps.
func AnnealTau(step, steps int) float64 {
	if steps < 2 {
		return .1
	}
	return 1 - float64(.9*min(max(float64(step)/float64(steps-1), 0), 1))
}
