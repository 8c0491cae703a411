package algos

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
)

// Ranking is a listwise warm start of the student from scored responses: for
// each prompt, the cross entropy of the student's distribution over its listed
// responses against the scores' (ListNet, Cao et al., ICML 2007):
//
//	q    = softmax(score/tau)        over the group
//	p    = softmax(sequence logp)    over the group
//	loss = -1/groups * sum_groups sum_i q_i log p_i
//
// It is not safe for concurrent use.
type Ranking[F Float] struct {
	cached cache[[2]int, F]
}

// RankingResult is what some groups contribute.
type RankingResult[F Float] struct {
	Loss float64
	// DSeqLogp [S] is d Loss/d seqLogp; the gradient of each response token's
	// log-probability is its row's value (divided by the length where the caller took means).
	DSeqLogp []F
}

// AnnealTau moves the temperature linearly from 1 at step 0 to 0.1 at the last
// of steps.
func AnnealTau(step, steps int) float64 {
	if steps < 2 {
		return .1
	}
	return 1 - .9*min(max(float64(step)/float64(steps-1), 0), 1)
}

// Step computes loss and gradient of S responses, seqLogp and score [S], group
// [S]. All responses of a group must be in one call. groups is the number of
// groups in the whole mini-batch, so that the results of several calls add up.
// Errors wrap ErrConfig, ErrShape or ErrNotFinite.
func (r *Ranking[F]) Step(seqLogp []F, score []float64, group []int, tau float64, groups int) (RankingResult[F], error) {
	var res RankingResult[F]
	if !(tau > 0) {
		return res, fmt.Errorf("algos: ranking: tau = %g: must be above 0: %w", tau, ErrConfig)
	}
	rowsG := groupRows(group)
	if len(score) != len(seqLogp) || len(group) != len(seqLogp) || len(seqLogp) == 0 || groups < len(rowsG) {
		return res, fmt.Errorf("algos: ranking: %d log-probabilities, %d scores, %d group indices, %d groups of %d: %w", len(seqLogp), len(score), len(group), len(rowsG), groups, ErrShape)
	}
	if i := notFinite(seqLogp); i >= 0 {
		return res, fmt.Errorf("algos: ranking: log-probability of response %d is %g: skip this step: %w", i, seqLogp[i], ErrNotFinite)
	}
	if i := notFinite(score); i >= 0 {
		return res, fmt.Errorf("algos: ranking: score of response %d is %g: skip this step: %w", i, score[i], ErrNotFinite)
	}
	K := 1
	for _, rows := range rowsG {
		K = max(K, len(rows))
	}
	shape := [2]int{len(rowsG), K}
	prog, err := r.cached.get(shape, func() (*program[F], error) { return compileRanking[F](len(rowsG), K) })
	if err != nil {
		return res, err
	}
	x, q, listed, top := prog.in["x"], prog.in["q"], prog.in["listed"], prog.in["top"]
	clear(q)
	clear(listed)
	for g, rows := range rowsG {
		hi, hiScore := math.Inf(-1), math.Inf(-1)
		for _, s := range rows {
			hi, hiScore = max(hi, float64(seqLogp[s])), max(hiScore, score[s])
		}
		var z float64
		for _, s := range rows {
			z += math.Exp((score[s] - hiScore) / tau)
		}
		top[g] = F(-hi)
		for k := range K {
			x[g*K+k] = F(hi) // an absent response: exp(0), times listed = 0
			if k < len(rows) {
				x[g*K+k] = seqLogp[rows[k]]
				q[g*K+k] = F(math.Exp((score[rows[k]]-hiScore)/tau) / z / float64(groups))
				listed[g*K+k] = 1
			}
		}
	}
	if err := prog.run(); err != nil {
		return res, err
	}
	res.Loss = prog.scalar("loss")
	res.DSeqLogp = make([]F, len(seqLogp))
	for g, rows := range rowsG {
		for k, s := range rows {
			res.DSeqLogp[s] = prog.get("dx")[g*K+k]
		}
	}
	return res, nil
}

// Close releases the compiled programs.
func (r *Ranking[F]) Close() error { return r.cached.close() }

// compileRanking builds -sum q*(x - top - log sum_k exp(x - top)*listed), top
// being each row's maximum: the log-softmax without overflow.
func compileRanking[F Float](groups, K int) (*program[F], error) {
	e := newExpr[F]()
	x, q, listed := e.input("x", groups, K), e.input("q", groups, K), e.input("listed", groups, K)
	shifted := e.addRow(x, e.input("top", groups)) // top holds -max
	lse := e.log(e.rows(e.mul(e.exp(shifted), listed)))
	loss := e.sum(e.mul(q, e.addRow(e.neg(shifted), lse)))
	return compile[F](e, loss, []string{"x"}, map[string]*G.Node{"loss": loss})
}
