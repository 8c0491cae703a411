package algos

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
)

// klEstimator is one estimator of KL(policy || reference) from the sampled
// tokens, d = logp - ref: as a graph for the loss, as a value for the reward.
type klEstimator struct {
	graph func(e *expr, d *G.Node) *G.Node
	value func(d float64) float64
}

var (
	k1 = klEstimator{
		graph: func(_ *expr, d *G.Node) *G.Node { return d },
		value: func(d float64) float64 { return d },
	}
	kAbs = klEstimator{
		graph: func(e *expr, d *G.Node) *G.Node { return e.apply(absOp, d) },
		value: math.Abs,
	}
	k2 = klEstimator{
		graph: func(e *expr, d *G.Node) *G.Node { return e.mul(e.square(d), e.num(.5)) },
		value: func(d float64) float64 { return d * d / 2 },
	}
	// k3 is exp(-d) + d - 1 >= 0, with the exponent clamped to +-20 and the
	// result to +-10.
	k3 = klEstimator{
		graph: func(e *expr, d *G.Node) *G.Node {
			x := e.clamp(e.neg(d), -20, 20)
			return e.clamp(e.sub(e.sub(e.exp(x), x), e.num(1)), -10, 10)
		},
		value: func(d float64) float64 {
			x := min(max(-d, -20), 20)
			return min(max(math.Exp(x)-x-1, -10), 10)
		},
	}
)

// klEstimators maps the names of the literature (Schulman, "Approximating KL divergence", 2020: k1,
// k2, k3) and of verl's run scripts.
var klEstimators = map[string]klEstimator{
	"k1": k1, "kl": k1, "abs": kAbs, "k2": k2, "mse": k2, "k3": k3, "low_var_kl": k3,
	"k1+": withK2Gradient(k1), "kl+": withK2Gradient(k1), "abs+": withK2Gradient(kAbs),
	"k2+": k2, "mse+": k2, "k3+": withK2Gradient(k3), "low_var_kl+": withK2Gradient(k3),
}

// withK2Gradient returns an estimator with the value of k and the gradient of k2, which is in
// expectation the gradient of the true divergence: k2 - sg(k2) + sg(k).
func withK2Gradient(k klEstimator) klEstimator {
	return klEstimator{value: k.value, graph: func(e *expr, d *G.Node) *G.Node {
		g := k2.graph(e, d)
		return e.add(e.sub(g, e.stop(g)), e.stop(k.graph(e, d)))
	}}
}

// KLNames returns the names of the estimators of the KL divergence. A trailing + keeps the value
// and takes k2's gradient. KLFull is not one of them.
func KLNames() []string { return names(klEstimators) }

// KLFull selects the exact divergence at each token, summed over the vocabulary, instead of an
// estimate from the sampled token: PolicyBatch.KL.
const KLFull = "full"

// KLPenalty returns the estimator's value for each token, without gradient: kl[i] from logp[i] and
// ref[i] (natural logarithms). A reward subtracts it.
func KLPenalty(name string, logp, ref []float64) ([]float64, error) {
	k, err := lookup("KL estimator", name, klEstimators)
	if err != nil {
		return nil, err
	}
	if len(logp) != len(ref) {
		return nil, fmt.Errorf("algos: KL penalty: %d log-probabilities, %d references: %w",
			len(logp), len(ref), ErrShape)
	}
	kl := make([]float64, len(logp))
	for i, l := range logp {
		kl[i] = k.value(l - ref[i])
	}
	return kl, nil
}

// AdaptiveKL steers the coefficient of a KL penalty towards a target (Ziegler et al.,
// arXiv 1909.08593, section 2.2). Its fields are its whole state: save and
// restore it as JSON. With Horizon 0 the coefficient is fixed.
type AdaptiveKL struct {
	Coef    float64 `json:"coef"`    // beta, the present coefficient
	Target  float64 `json:"target"`  // KL wanted, > 0, nats a token
	Horizon float64 `json:"horizon"` // sequences; the larger, the slower; 0: fixed
}

// Update moves the coefficient after n sequences whose mean KL was kl, and
// returns it:
//
//	beta *= 1 + clip(kl/target - 1, +-0.2) * n/horizon
//
// A kl that is not finite leaves it as it is.
func (a *AdaptiveKL) Update(kl float64, n int) float64 {
	if a.Horizon > 0 && !math.IsNaN(kl) && !math.IsInf(kl, 0) {
		a.Coef *= 1 + min(max(kl/a.Target-1, -.2), .2)*float64(n)/a.Horizon
	}
	return a.Coef
}
