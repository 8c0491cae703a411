package algos

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
)

// Norm holds the totals that a policy loss is divided by. They are taken over
// the whole mini-batch (all micro-batches, all workers) before the first
// gradient: a mean of micro-batch means would depend on how rows are packed.
type Norm struct {
	Tokens   float64 // response tokens: sum of the mask
	Seqs     float64 // rows with at least one such token
	Episodes float64 // G, episodes with at least one such token; see PolicyBatch.Turns
	FixedLen float64 // tokens; the constant of seq-mean-token-sum-norm, unused elsewhere
}

// NormOf counts a [B,T] mask in which each row is an episode of its own.
func NormOf[F Float](B, T int, maskBT []F) Norm {
	var n Norm
	for b := 0; b < B; b++ {
		var row float64
		for _, m := range maskBT[b*T : (b+1)*T] {
			row += float64(m)
		}
		n.Tokens += row
		if row > 0 {
			n.Seqs++
			n.Episodes++
		}
	}
	return n
}

// Add returns the totals of both parts. FixedLen is a constant, not a count.
func (n Norm) Add(o Norm) Norm {
	return Norm{n.Tokens + o.Tokens, n.Seqs + o.Seqs, n.Episodes + o.Episodes,
		max(n.FixedLen, o.FixedLen)}
}

// aggregation turns per-token losses x [B,T] into one number, as
// sum_b row_b * 1/by(Norm), with byTurns sum_b row_b * 1/(by(Norm)*Turns_b).
type aggregation struct {
	row     func(e *expr, x, mask *G.Node) *G.Node // [B,T] to [B]
	by      func(Norm) float64
	byTurns bool
	// byTokens: sum_b row_b * 1/(by(Norm)*Tokens_b), of PolicyBatch.Tokens
	byTokens bool
}

// EpisodeMean is Flow-GRPO's aggregation (arXiv 2510.05592), over rows that are turns: G episodes,
// T_i turns of episode i, |a_t| tokens of turn t,
//
//	1/G sum_i 1/T_i sum_t 1/|a_t| sum_j x_itj
const EpisodeMean = "episode-mean-turn-mean-token-mean"

// Names as in verl's agg_loss; seq-mean-token-sum-norm is Dr. GRPO's (arXiv 2503.20783), whose
// divisor is the fixed length alone.
var aggregations = map[string]aggregation{
	"token-mean":              {row: rowSum, by: func(n Norm) float64 { return n.Tokens }},
	"seq-mean-token-sum":      {row: rowSum, by: func(n Norm) float64 { return n.Seqs }},
	"seq-mean-token-mean":     {row: rowMean, by: func(n Norm) float64 { return n.Seqs }},
	"seq-mean-token-sum-norm": {row: rowSum, by: func(n Norm) float64 { return n.FixedLen }},
	EpisodeMean: {row: turnMean, by: func(n Norm) float64 { return n.Episodes },
		byTurns: true},
}

// byEpisode holds the aggregations in which all rows of an episode are one sequence
// (PolicyConfig.ByEpisode): the mean over episodes of the sum over the tokens of all their rows,
// which seq-mean-token-mean divides by the number of these tokens.
var byEpisode = map[string]aggregation{
	"seq-mean-token-sum": {row: rowSum, by: func(n Norm) float64 { return n.Episodes }},
	"seq-mean-token-mean": {row: rowSum, by: func(n Norm) float64 { return n.Episodes },
		byTokens: true},
}

// aggregation returns the aggregation of that name under the policy's settings.
func (p *Policy[F]) aggregation(name string) aggregation {
	if a, ok := byEpisode[name]; ok && p.c.ByEpisode {
		return a
	}
	return aggregations[name]
}

// AggNames returns the names of the aggregations.
func AggNames() []string { return names(aggregations) }

// rowSum returns sum_t x*mask [B].
func rowSum(e *expr, x, mask *G.Node) *G.Node { return e.rows(e.mul(x, mask)) }

// rowMean returns sum_t x*mask / (sum_t mask + 1e-8) [B]: 0 for an empty row.
func rowMean(e *expr, x, mask *G.Node) *G.Node {
	return e.div(rowSum(e, x, mask), e.add(e.rows(mask), e.num(1e-8)))
}

// turnMean returns sum_t x*mask / max(sum_t mask, 1) [B].
func turnMean(e *expr, x, mask *G.Node) *G.Node {
	return e.div(rowSum(e, x, mask), e.clamp(e.rows(mask), 1, math.MaxFloat32))
}

// divisor returns the aggregation's normaliser; one that is not above 0 is refused.
func (a aggregation) divisor(name string, n Norm) (float64, error) {
	by := a.by(n)
	if !(by > 0) {
		return 0, fmt.Errorf("algos: aggregation %q: normaliser %g (tokens %g, sequences %g, episodes %g, fixed length %g) must be above 0: fill Norm over the whole mini-batch: %w",
			name, by, n.Tokens, n.Seqs, n.Episodes, n.FixedLen, ErrShape)
	}
	return by, nil
}
