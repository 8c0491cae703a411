package algos

import (
	"fmt"
	"math"
)

// ScoreReg bounds the discriminator's scores before they become rewards. (L2 on the scores belongs
// to the discriminator's loss: DiscConfig.) The zero value does nothing.
type ScoreReg struct {
	ClipAbs float64 // scores are clipped to +-ClipAbs; 0: not clipped
}

// Apply returns clip(score, +-ClipAbs) for each response.
func (r ScoreReg) Apply(scoreS []float64) []float64 {
	out := make([]float64, len(scoreS))
	for s, v := range scoreS {
		if r.ClipAbs > 0 {
			v = min(max(v, -r.ClipAbs), r.ClipAbs)
		}
		out[s] = v
	}
	return out
}

// Overlong is DAPO's soft punishment of long responses (arXiv 2503.14476, eq.
// 13). The zero value does nothing.
type Overlong struct {
	MaxLen int     // L, the response budget, tokens
	Buffer int     // buf: the last tokens of the budget, in which the punishment grows; 0: off
	Factor float64 // f, the punishment at L
}

// Penalty returns the number to add to the score of a response of n tokens: min(-(n-(L-buf))/buf*f,
// 0).
func (o Overlong) Penalty(n int) float64 {
	if o.Buffer <= 0 {
		return 0
	}
	return min(-float64(n-(o.MaxLen-o.Buffer))/float64(o.Buffer)*o.Factor, 0)
}

// KLInReward subtracts the penalty from each response's reward:
//
//	r_t = score_t - beta*KL(old, ref)_t
//
// with the score on the last response token. It returns the token rewards [S][T], their sums [S]
// (the scores of an outcome estimator), and the mean over responses of the masked mean KL, which an
// AdaptiveKL takes. A KL under a zero mask does not count, not even a NaN. Errors wrap
// ErrUnknownName or ErrShape.
func KLInReward(name string, beta float64, scoreS []float64, oldST, refST,
	maskST [][]float64) (rewardST [][]float64, sumS []float64, kl float64, err error) {
	if len(oldST) != len(scoreS) || len(refST) != len(scoreS) || len(maskST) != len(scoreS) ||
		len(scoreS) == 0 {
		return nil, nil, 0, fmt.Errorf(
			"algos: KL in reward: %d scores, %d, %d and %d rows of old, ref and mask: %w",
			len(scoreS), len(oldST), len(refST), len(maskST), ErrShape)
	}
	klST := make([][]float64, len(scoreS))
	for s := range klST {
		if klST[s], err = KLPenalty(name, oldST[s], refST[s]); err != nil {
			return nil, nil, 0, err
		}
	}
	return SubtractKL(beta, scoreS, klST, maskST)
}

// SubtractKL computes KLInReward from given divergences klST [S][T], such as exact ones.
func SubtractKL(beta float64, scoreS []float64, klST, maskST [][]float64) (rewardST [][]float64,
	sumS []float64, kl float64, err error) {
	if len(klST) != len(scoreS) || len(maskST) != len(scoreS) || len(scoreS) == 0 {
		return nil, nil, 0, fmt.Errorf(
			"algos: KL in reward: %d scores, %d and %d rows of KL and mask: %w", len(scoreS),
			len(klST), len(maskST), ErrShape)
	}
	rewardST, sumS = make([][]float64, len(scoreS)), make([]float64, len(scoreS))
	for s, mask := range maskST {
		klT := klST[s]
		if len(mask) != len(klT) {
			return nil, nil, 0, fmt.Errorf(
				"algos: KL in reward: response %d: %d log-probabilities, mask of %d: %w", s,
				len(klT), len(mask), ErrShape)
		}
		rewardST[s] = make([]float64, len(mask))
		var n, sum float64
		last := -1
		for t, m := range mask {
			if m != 0 {
				n++
				sum += klT[t]
				last = t
				rewardST[s][t] = -beta * klT[t]
			}
		}
		if last >= 0 {
			rewardST[s][last] += scoreS[s]
		}
		for _, r := range rewardST[s] {
			sumS[s] += r
		}
		kl += sum / (n + 1e-8) / float64(len(scoreS))
	}
	return rewardST, sumS, kl, nil
}

// KeepGroups marks the responses whose group's scores differ: DAPO's dynamic sampling (arXiv
// 2503.14476, section 3.2) drops the others and samples new prompts instead. A group is dropped if
// its largest and smallest score differ by at most spread; 0 drops exact ties only. It returns keep
// [S] and the share of groups without variance, adv/zero_var_groups_frac.
func KeepGroups(scoreS []float64, groupS []int,
	spread float64) (keep []bool, dropped float64, err error) {
	if len(scoreS) != len(groupS) {
		return nil, 0, fmt.Errorf("algos: group filter: %d scores, %d group indices: %w",
			len(scoreS), len(groupS), ErrShape)
	}
	keep = make([]bool, len(scoreS))
	groups := groupRows(groupS)
	for _, rows := range groups {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, r := range rows {
			lo, hi = min(lo, scoreS[r]), max(hi, scoreS[r])
		}
		if !(hi-lo > spread) {
			dropped++
			continue
		}
		for _, r := range rows {
			keep[r] = true
		}
	}
	if len(groups) > 0 {
		dropped /= float64(len(groups))
	}
	return keep, dropped, nil
}

// rolloutLevels maps a level of RolloutWeights to whether its ratio is over the sequence.
var rolloutLevels = map[string]bool{"token": false, "sequence": true}

// RolloutLevels returns the levels of RolloutWeights.
func RolloutLevels() []string { return names(rolloutLevels) }

// RolloutWeights returns truncated importance weights [B*T] between the trainer's log-probabilities
// old and the sampler's own, for samplers that do not share the trainer's kernels:
// min(exp(clamp(old-rollout, +-20)), limit) for each token or, with the sum over the row's response
// tokens, for each sequence; 1 where the mask is 0. Errors wrap ErrUnknownName, ErrConfig or
// ErrShape.
func RolloutWeights[F Float](level string, limit float64, B, T int, old, rollout,
	mask []F) ([]F, error) {
	sequence, err := lookup("rollout correction level", level, rolloutLevels)
	if err != nil {
		return nil, err
	}
	if !(limit > 0) {
		return nil, fmt.Errorf("algos: rollout correction: limit = %g: must be above 0: %w", limit,
			ErrConfig)
	}
	if len(old) != B*T || len(rollout) != B*T || len(mask) != B*T {
		return nil, fmt.Errorf("algos: rollout correction: %d, %d and %d values of old, rollout and mask for %d x %d: %w", len(old), len(rollout), len(mask), B, T, ErrShape)
	}
	truncated := func(logRatio float64) F {
		return F(
			min(math.Exp(min(max(logRatio, -20), 20)), limit))
	}
	w := make([]F, B*T)
	for b := range B {
		var sum float64
		for i := b * T; i < (b+1)*T; i++ {
			if mask[i] != 0 {
				sum += float64(old[i]) - float64(rollout[i])
			}
		}
		for i := b * T; i < (b+1)*T; i++ {
			switch {
			case mask[i] == 0:
				w[i] = 1
			case sequence:
				w[i] = truncated(sum)
			default:
				w[i] = truncated(float64(old[i]) - float64(rollout[i]))
			}
		}
	}
	return w, nil
}
