package algos

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	G "gorgonia.org/gorgonia"
)

// DPOConfig chooses a preference objective. A zero field takes the default that
// its comment states.
type DPOConfig struct {
	Loss string  // one of DPOLossNames; default "sigmoid"
	Beta float64 // above 0; default 0.1. Small lets the policy go far from the reference
	// LabelSmoothing is the share of pairs taken to be the wrong way round, in [0, 0.5);
	// sigmoid, robust, exo_pair, aot and aot_unpaired read it. Default 0, for exo_pair 1e-3.
	LabelSmoothing float64
	Tau            float64 // discopop's temperature, above 0; default 0.05
}

// dpoLoss is one named preference loss.
type dpoLoss struct {
	build   func(dpoGraph) *G.Node // [n], a loss for each pair
	smooths bool                   // reads LabelSmoothing
	lengths bool                   // reads the lengths
	tokens  bool                   // is a mean over chosen tokens, not over pairs
	match   func(b matchInput) (policyC, policyR, refC, refR []int)
}

// Names and forms are from TRL's DPOTrainer (1.16), over
//
//	h_c = logp_c - ref_c        h_r = logp_r - ref_r        r = beta*h        z = r_c - r_r
//
// Its sigmoid has no smoothing; here label_smoothing makes it cDPO.
var dpoLosses = map[string]dpoLoss{
	// Direct Preference Optimization, -log sigmoid(z) (arXiv 2305.18290, eq. 7); with smoothing e
	// cDPO, -(1-e) log sigmoid(z) - e log sigmoid(-z).
	"sigmoid": {build: func(g dpoGraph) *G.Node { return g.smoothedLoss(g.z()) }, smooths: true},
	// max(0, 1 - z): the hinge on the same margin (RSO, arXiv 2309.06657).
	"hinge": {build: func(g dpoGraph) *G.Node {
		x := g.add(g.neg(g.z()), g.num(1))
		return g.mul(x, g.apply(positiveOp, x))
	}},
	// IPO, (h_c/len_c - h_r/len_r - 1/(2 beta))^2 (arXiv 2310.12036, eq. 17; by length as its
	// authors computed it).
	"ipo": {build: func(g dpoGraph) *G.Node {
		return g.square(g.sub(g.normalizedMargin(), g.num(1/(2*g.c.Beta))))
	}, lengths: true},
	// EXO: the reverse KL from [sigmoid(z), sigmoid(-z)] to [1-e, e] (arXiv 2402.00856, eq. 16).
	"exo_pair": {build: func(g dpoGraph) *G.Node {
		won, e := g.z(), g.c.LabelSmoothing
		lost := g.neg(won)
		return g.add(
			g.mul(g.apply(sigmoidOp, won), g.sub(g.logSigmoid(won), g.num(math.Log1p(-e)))),
			g.mul(g.apply(sigmoidOp, lost), g.sub(g.logSigmoid(lost), g.num(math.Log(e)))))
	}, smooths: true},
	// NCA, -log sigmoid(r_c) - 1/2 log sigmoid(-r_c) - 1/2 log sigmoid(-r_r) (arXiv 2402.05369).
	"nca_pair": {build: func(g dpoGraph) *G.Node {
		c, r := g.reward("chosen"), g.reward("rejected")
		both := g.add(g.apply(softplusOp, c), g.apply(softplusOp, r))
		return g.add(g.apply(softplusOp, g.neg(c)), g.mul(both, g.num(.5)))
	}},
	// Robust DPO: unbiased under a share e of flipped pairs,
	// (-(1-e) log sigmoid(z) + e log sigmoid(-z)) / (1-2e) (arXiv 2403.00409).
	"robust": {build: func(g dpoGraph) *G.Node {
		z, e := g.z(), g.c.LabelSmoothing
		right := g.mul(g.apply(softplusOp, g.neg(z)), g.num((1-e)/(1-2*e)))
		return g.sub(right, g.mul(g.apply(softplusOp, z), g.num(e/(1-2*e))))
	}, smooths: true},
	// BCO, -log sigmoid(r_c) - log sigmoid(-r_r) (arXiv 2404.04656), as TRL 1.16 has it: without
	// the paper's running mean of rewards.
	"bco_pair": {build: func(g dpoGraph) *G.Node {
		return g.add(g.apply(softplusOp, g.neg(g.reward("chosen"))),
			g.apply(softplusOp, g.reward("rejected")))
	}},
	// SPPO with hard wins, (h_c - 1/(2 beta))^2 + (h_r + 1/(2 beta))^2 (arXiv 2405.00675, eq. 4.7).
	"sppo_hard": {build: func(g dpoGraph) *G.Node {
		half := g.num(.5 / g.c.Beta)
		return g.add(g.square(g.sub(g.ratio("chosen"), half)),
			g.square(g.add(g.ratio("rejected"), half)))
	}},
	// APO-zero, 1 - sigmoid(r_c) + sigmoid(r_r) (arXiv 2408.06266, eq. 7): chosen up, rejected
	// down.
	"apo_zero": {build: func(g dpoGraph) *G.Node {
		return g.add(g.apply(sigmoidOp, g.neg(g.reward("chosen"))),
			g.apply(sigmoidOp, g.reward("rejected")))
	}},
	// APO-down, sigmoid(r_c) + 1 - sigmoid(z) (eq. 8 there): chosen down, rejected further.
	"apo_down": {build: func(g dpoGraph) *G.Node {
		return g.add(g.apply(sigmoidOp, g.reward("chosen")), g.apply(sigmoidOp, g.neg(g.z())))
	}},
	// DiscoPOP, -log sigmoid(z) (1-m) + exp(-z) m with m = sigmoid(z/tau) (arXiv 2406.08414, eq.
	// 5).
	"discopop": {build: func(g dpoGraph) *G.Node {
		z := g.z()
		byTau := g.mul(z, g.num(1/g.c.Tau))
		logistic := g.mul(g.apply(softplusOp, g.neg(z)), g.apply(sigmoidOp, g.neg(byTau)))
		return g.add(logistic, g.exp(g.sub(g.logSigmoid(byTau), z))) // exp(-z) alone would overflow
	}},
	// DPO on log-ratios per token, -log sigmoid(beta*(h_c/len_c - h_r/len_r)) (Tulu 3, arXiv
	// 2411.15124).
	"sigmoid_norm": {build: func(g dpoGraph) *G.Node {
		return g.apply(softplusOp, g.neg(g.mul(g.normalizedMargin(), g.num(g.c.Beta))))
	}, lengths: true},
	// -logp of the chosen tokens: cross entropy, no preference.
	"sft": {build: func(g dpoGraph) *G.Node { return g.neg(g.bN("chosen")) }, lengths: true,
		tokens: true},
	// AOT: the sorted policy margins logp_c-logp_r against the sorted reference margins
	// (arXiv 2406.05882): the j-th smallest with the j-th smallest.
	"aot": {build: func(g dpoGraph) *G.Node { return g.smoothedLoss(g.z()) }, smooths: true,
		match: func(in matchInput) (pc, pr, rc, rr []int) {
			policy, ref := in.order(in.c, in.r), in.order(in.refC, in.refR)
			return policy, policy, ref, ref
		}},
	// AOT without pairs: sorted h_c against sorted h_r.
	"aot_unpaired": {build: func(g dpoGraph) *G.Node { return g.smoothedLoss(g.z()) }, smooths: true,
		match: func(in matchInput) (pc, pr, rc, rr []int) {
			chosen, rejected := in.order(in.c, in.refC), in.order(in.r, in.refR)
			return chosen, rejected, chosen, rejected
		}},
}

// DPOLossNames returns the names of the preference losses.
func DPOLossNames() []string { return names(dpoLosses) }

// dpoGraph provides the terms of which losses are built.
type dpoGraph struct {
	*expr
	n int
	c DPOConfig
}

// bN returns the input name [n].
func (g dpoGraph) bN(name string) *G.Node { return g.input(name, g.n) }

// ratio returns h, the log-ratio of policy to reference, of the side "chosen" or "rejected".
func (g dpoGraph) ratio(side string) *G.Node { return g.sub(g.bN(side), g.bN("ref "+side)) }

// reward returns r = beta*h of a side.
func (g dpoGraph) reward(side string) *G.Node { return g.mul(g.ratio(side), g.num(g.c.Beta)) }

// z returns beta*(h_c - h_r).
func (g dpoGraph) z() *G.Node {
	return g.mul(g.sub(g.ratio("chosen"), g.ratio("rejected")), g.num(g.c.Beta))
}

// normalizedMargin returns h_c/len_c - h_r/len_r.
func (g dpoGraph) normalizedMargin() *G.Node {
	mean := func(side string) *G.Node { return g.mul(g.ratio(side), g.bN("1/len "+side)) }
	return g.sub(mean("chosen"), mean("rejected"))
}

// logSigmoid returns log sigmoid(x).
func (g dpoGraph) logSigmoid(x *G.Node) *G.Node { return g.neg(g.apply(softplusOp, g.neg(x))) }

// smoothedLoss returns -(1-e) log sigmoid(z) - e log sigmoid(-z).
func (g dpoGraph) smoothedLoss(z *G.Node) *G.Node {
	right, e := g.apply(softplusOp, g.neg(z)), g.c.LabelSmoothing
	if e == 0 {
		return right
	}
	return g.add(g.mul(right, g.num(1-e)), g.mul(g.apply(softplusOp, z), g.num(e)))
}

// matchInput holds the log-probabilities that a sorting loss matches.
type matchInput struct{ c, r, refC, refR []float64 }

// order returns the pairs sorted by a-b, ascending; ties keep their order.
func (matchInput) order(a, b []float64) []int {
	at := make([]int, len(a))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		switch x, y := a[i]-b[i], a[j]-b[j]; {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return at
}

// DPO computes one preference objective. It is not safe for concurrent use.
type DPO[F Float] struct {
	c      DPOConfig
	loss   dpoLoss
	cached cache[int, F]
}

// NewDPO resolves the defaults and checks the settings. Errors wrap
// ErrUnknownName or ErrConfig.
func NewDPO[F Float](c DPOConfig) (*DPO[F], error) {
	if c.Loss == "" {
		c.Loss = "sigmoid"
	}
	loss, err := lookup("preference loss", c.Loss, dpoLosses)
	if err != nil {
		return nil, err
	}
	if c.Beta == 0 {
		c.Beta = .1
	}
	if c.Tau == 0 {
		c.Tau = .05
	}
	if c.LabelSmoothing == 0 && c.Loss == "exo_pair" {
		c.LabelSmoothing = 1e-3 // the paper's; at 0 the target has no logarithm
	}
	bad := func(format string, args ...any) (*DPO[F], error) {
		return nil, fmt.Errorf("algos: preference loss %q: %s: %w", c.Loss,
			fmt.Sprintf(format, args...), ErrConfig)
	}
	switch {
	case !(c.Beta > 0) || math.IsInf(c.Beta, 0):
		return bad("beta = %g: must be above 0", c.Beta)
	case !(c.Tau > 0) || math.IsInf(c.Tau, 0):
		return bad("tau = %g: must be above 0", c.Tau)
	case !(c.LabelSmoothing >= 0 && c.LabelSmoothing < .5):
		return bad("label_smoothing = %g: must be at least 0 and below 0.5", c.LabelSmoothing)
	case c.LabelSmoothing > 0 && !loss.smooths:
		return bad(
			"label_smoothing = %g: this loss has none: set 0, or use sigmoid, robust or exo_pair",
			c.LabelSmoothing)
	}
	return &DPO[F]{c: c, loss: loss}, nil
}

// Config returns the configuration with its defaults filled in.
func (d *DPO[F]) Config() DPOConfig { return d.c }

// Close releases the compiled programs.
func (d *DPO[F]) Close() error { return d.cached.close() }

// DPOBatch is n pairs. Log-probabilities are sums over a response's tokens, natural
// logarithms.
type DPOBatch[F Float] struct {
	Chosen, Rejected       []F // [n] under the policy
	RefChosen, RefRejected []F // [n] under the frozen reference
	// [n] response tokens; read by ipo, sigmoid_norm and sft, else nil will do
	LenChosen, LenRejected []int
}

// DPOStats holds means over pairs.
type DPOStats struct {
	Loss float64
	// of the indicator r_c > r_r, strict: 0 while the policy is the reference
	Acc            float64
	Margin         float64 // of r_c - r_r
	ChosenReward   float64 // of r_c = beta*(logp_c - ref_c)
	RejectedReward float64 // of r_r
	Pairs          int
}

// Add returns the figures of both sets of pairs together.
func (s DPOStats) Add(o DPOStats) DPOStats {
	n, m := float64(s.Pairs), float64(o.Pairs)
	if m == 0 {
		return s
	}
	mean := func(a, b float64) float64 { return (n*a + m*b) / (n + m) }
	return DPOStats{mean(s.Loss, o.Loss), mean(s.Acc, o.Acc), mean(s.Margin, o.Margin),
		mean(s.ChosenReward, o.ChosenReward), mean(s.RejectedReward, o.RejectedReward),
		s.Pairs + o.Pairs}
}

// DPOResult is the result of a mini-batch of pairs.
type DPOResult[F Float] struct {
	DPOStats
	DChosen, DRejected []F // [n] d Loss/d sequence log-probability
}

// Step computes loss and gradients of n pairs: all of a mini-batch, since the loss is a
// mean over them. Errors wrap ErrShape or ErrNotFinite.
func (d *DPO[F]) Step(b DPOBatch[F]) (DPOResult[F], error) {
	var res DPOResult[F]
	n := len(b.Chosen)
	bad := func(format string, args ...any) (DPOResult[F], error) {
		return DPOResult[F]{}, fmt.Errorf("algos: preference loss %q: %s: %w", d.c.Loss,
			fmt.Sprintf(format, args...), ErrShape)
	}
	if n == 0 || len(b.Rejected) != n || len(b.RefChosen) != n || len(b.RefRejected) != n {
		return bad("log-probabilities of %d and %d, reference of %d and %d: must be equally many, and at least one", n, len(b.Rejected), len(b.RefChosen), len(b.RefRejected))
	}
	share := slices.Repeat([]float64{1 / float64(n)}, n)
	if d.loss.lengths {
		if len(b.LenChosen) != n || len(b.LenRejected) != n {
			return bad("%d pairs, lengths of %d and %d", n, len(b.LenChosen), len(b.LenRejected))
		}
		tokens := 0
		for i := range n {
			if b.LenChosen[i] < 1 || b.LenRejected[i] < 1 {
				return bad("pair %d: lengths %d and %d: must be at least 1", i, b.LenChosen[i],
					b.LenRejected[i])
			}
			tokens += b.LenChosen[i]
		}
		if d.loss.tokens {
			share = slices.Repeat([]float64{1 / float64(tokens)}, n)
		}
	}
	for i := range n {
		x := []F{b.Chosen[i], b.Rejected[i], b.RefChosen[i], b.RefRejected[i]}
		if notFinite(x) >= 0 {
			return res, fmt.Errorf("algos: preference loss %q: pair %d: log-probabilities %g and %g, reference %g and %g: skip this step: %w", d.c.Loss, i, x[0], x[1], x[2], x[3], ErrNotFinite)
		}
	}
	// A padded pair weighs 0, so few shapes serve every n.
	size := 1 << bits.Len(uint(n-1))
	prog, err := d.cached.get(size, func() (*program[F], error) { return d.compile(size) })
	if err != nil {
		return res, err
	}
	at := d.matchPairs(b)
	fill := func(name string, value func(i int) F) {
		if in := prog.in[name]; in != nil { // sft reads one of them
			clear(in)
			for i := range n {
				in[i] = value(i)
			}
		}
	}
	fill("chosen", func(i int) F { return b.Chosen[at[0][i]] })
	fill("rejected", func(i int) F { return b.Rejected[at[1][i]] })
	fill("ref chosen", func(i int) F { return b.RefChosen[at[2][i]] })
	fill("ref rejected", func(i int) F { return b.RefRejected[at[3][i]] })
	fill("1/len chosen", func(i int) F { return F(1 / float64(b.LenChosen[i])) })
	fill("1/len rejected", func(i int) F { return F(1 / float64(b.LenRejected[i])) })
	fill("weight", func(i int) F { return F(share[i]) })
	if err := prog.run(); err != nil {
		return res, err
	}
	res.DPOStats = d.stats(b)
	res.Loss = prog.scalar("loss")
	res.DChosen, res.DRejected = make([]F, n), make([]F, n)
	if dc := prog.get("dchosen"); dc != nil {
		for i := range n {
			res.DChosen[at[0][i]] = dc[i]
		}
	}
	if dr := prog.get("drejected"); dr != nil {
		for i := range n {
			res.DRejected[at[1][i]] = dr[i]
		}
	}
	if notFinite(res.DChosen) >= 0 || notFinite(res.DRejected) >= 0 || math.IsNaN(res.Loss) ||
		math.IsInf(res.Loss, 0) {
		return DPOResult[F]{}, fmt.Errorf("algos: preference loss %q: loss %g: skip this step: %w",
			d.c.Loss, res.Loss, ErrNotFinite)
	}
	return res, nil
}

// matchPairs returns at each index the pair whose chosen, rejected, reference chosen and reference
// rejected are read: the pair itself, except in losses that sort.
func (d *DPO[F]) matchPairs(b DPOBatch[F]) (at [4][]int) {
	if d.loss.match != nil {
		wide := func(x []F) []float64 {
			y := make([]float64, len(x))
			for i, v := range x {
				y[i] = float64(v)
			}
			return y
		}
		at[0], at[1], at[2], at[3] = d.loss.match(
			matchInput{wide(b.Chosen), wide(b.Rejected), wide(b.RefChosen), wide(b.RefRejected)})
		return at
	}
	own := make([]int, len(b.Chosen))
	for i := range own {
		own[i] = i
	}
	return [4][]int{own, own, own, own}
}

// stats computes the figures of the rewards, which do not depend on the loss.
func (d *DPO[F]) stats(b DPOBatch[F]) (s DPOStats) {
	n := float64(len(b.Chosen))
	s.Pairs = len(b.Chosen)
	for i := range b.Chosen {
		c := d.c.Beta * (float64(b.Chosen[i]) - float64(b.RefChosen[i]))
		r := d.c.Beta * (float64(b.Rejected[i]) - float64(b.RefRejected[i]))
		s.Acc += indicator(c > r) / n
		s.ChosenReward += c / n
		s.RejectedReward += r / n
		s.Margin += (c - r) / n
	}
	return s
}

// compile builds the loss over n pairs and its gradients.
func (d *DPO[F]) compile(n int) (*program[F], error) {
	g := dpoGraph{newExpr[F](), n, d.c}
	loss := g.sum(g.mul(d.loss.build(g), g.input("weight", n)))
	var wrt []string
	for _, side := range []string{"chosen", "rejected"} {
		if g.byName[side] != nil {
			wrt = append(wrt, side)
		}
	}
	return compile[F](g.expr, loss, wrt, map[string]*G.Node{"loss": loss})
}
