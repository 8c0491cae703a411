package algos

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
)

// PolicyConfig chooses the actor's objective. A zero field takes the default
// that its comment states.
type PolicyConfig struct {
	Loss string // one of PolicyLossNames; default "gspo"
	// el: ratios are clipped to [1-el, 1+eh]; default 3e-4 for gspo and gspo_token, else 0.2
	ClipLow  float64
	ClipHigh float64 // eh; default 4e-4 for gspo and gspo_token, 0.28 for dapo, else 0.2
	ClipC    float64 // c of the dual clip, above 1; default 3; +Inf turns it off
	TauPos   float64 // sapo's temperature where A > 0; default 1
	TauNeg   float64 // sapo's temperature elsewhere; default 1.05
	// one of AggNames; default "token-mean". gspo, gspo_token and sapo average by sequence, and
	// geo_mean by row: for them it governs the KL and entropy terms only
	Agg string

	// rows of one episode (PolicyBatch.Turns and Tokens) are one sequence for the aggregations by
	// sequence, as for chunks of one thought; ratios are still by row
	ByEpisode bool

	KLCoef float64 // beta of the KL term, >= 0; default 0: no such term
	KLType string  // one of KLNames, or KLFull; default "low_var_kl"
	// weight of the entropy bonus, subtracted from the loss; default 0: no such term
	EntropyCoef float64
}

// surrogate is a policy loss before aggregation.
type surrogate struct {
	tokens  *G.Node // [B,T], to be aggregated; nil when rows is set
	rows    *G.Node // [B], a loss per row, averaged over non-empty rows
	clipped *G.Node // [B,T], 1 where the clipped branch counts; nil: the loss has none
	lower   *G.Node // [B,T], 1 where the dual clip (geo_mean: the clip for A<0) counts
}

// policyLoss is one named loss: its graph and its inputs.
type policyLoss struct {
	build              func(policyGraph) surrogate
	needsOld, needsAdv bool
	// aggregation that the paper prescribes; "" leaves it to the configuration
	agg                 string
	clipLow, clipHigh   float64 // defaults
	clampsDrift, perRow bool    // ppo_kl counts the clamped log-ratio; geo_mean
}

var policyLosses = map[string]policyLoss{
	"vanilla": {build: ppo, needsOld: true, needsAdv: true, clipLow: .2, clipHigh: .2,
		clampsDrift: true},
	"dapo": {build: ppo, needsOld: true, needsAdv: true, clipLow: .2, clipHigh: .28,
		clampsDrift: true},
	"gspo": {build: gspo, needsOld: true, needsAdv: true, clipLow: 3e-4, clipHigh: 4e-4,
		agg: "seq-mean-token-mean"},
	"gspo_token": {build: gspo, needsOld: true, needsAdv: true, clipLow: 3e-4, clipHigh: 4e-4,
		agg: "seq-mean-token-mean"},
	"cispo": {build: cispo, needsOld: true, needsAdv: true, clipLow: .2, clipHigh: .2,
		clampsDrift: true},
	"sapo": {build: sapo, needsOld: true, needsAdv: true, clipLow: .2, clipHigh: .2,
		clampsDrift: true, agg: "seq-mean-token-mean"},
	"geo_mean": {build: geoMean, needsOld: true, needsAdv: true, clipLow: .2, clipHigh: .2,
		perRow: true},
	"gpg": {build: gpg, needsAdv: true, clipLow: .2, clipHigh: .2},
	"sft": {build: sft, clipLow: .2, clipHigh: .2},
}

// PolicyLossNames returns the names of the policy losses, "sft" (cross entropy on given tokens)
// among them.
func PolicyLossNames() []string { return names(policyLosses) }

// policyGraph provides the terms of which losses are built.
type policyGraph struct {
	*expr
	B, T int
	c    PolicyConfig
}

func (g policyGraph) bt(name string) *G.Node { return g.input(name, g.B, g.T) }
func (g policyGraph) logp() *G.Node          { return g.bt("logp") }
func (g policyGraph) adv() *G.Node           { return g.bt("adv") }
func (g policyGraph) mask() *G.Node          { return g.bt("mask") }
func (g policyGraph) logRatio() *G.Node      { return g.sub(g.logp(), g.bt("old")) }

// ratio returns r = exp(logp-old), the exponent clamped to +-20.
func (g policyGraph) ratio() *G.Node { return g.exp(g.clamp(g.logRatio(), -20, 20)) }

func (g policyGraph) clip(r *G.Node) *G.Node { return g.clamp(r, 1-g.c.ClipLow, 1+g.c.ClipHigh) }

// clippedSurrogate returns max(-A r, -A clip(r, 1-el, 1+eh)): the larger, pessimistic loss.
func (g policyGraph) clippedSurrogate(r *G.Node) surrogate {
	cost := g.neg(g.adv())
	free, clipped := g.mul(cost, r), g.mul(cost, g.clip(r))
	return surrogate{tokens: g.max(free, clipped), clipped: g.apply(greaterOp, clipped, free)}
}

// ppo builds PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with the dual clip min(., -A c)
// where A < 0 (arXiv 1912.09729). DAPO (arXiv 2503.14476, eq. 10) is the same with 1+eh above 1+el.
func ppo(g policyGraph) surrogate {
	s := g.clippedSurrogate(g.ratio())
	if math.IsInf(g.c.ClipC, 1) {
		return s
	}
	limit := g.apply(dualLimitOp(g.c.ClipC), g.adv())
	s.lower = g.apply(greaterOp, s.tokens, limit)
	s.tokens = g.min(s.tokens, limit)
	return s
}

// gspo builds Group Sequence Policy Optimization (arXiv 2507.18071, eq. 5 and 7; eq. 13 for
// gspo_token, which differs only in that A may vary along a row): one length-normalised ratio for
// the whole sequence, whose gradient reaches every token.
//
//	l       = sum_t mask*(logp-old) / max(sum_t mask, 1)
//	log s_t = min(logp - sg(logp) + sg(l), 10)
//	loss    = max(-A s_t, -A clip(s_t, 1-el, 1+eh))
func gspo(g policyGraph) surrogate {
	l := turnMean(g.expr, g.logRatio(), g.mask())
	logS := g.addRow(g.sub(g.logp(), g.stop(g.logp())), g.stop(l))
	return g.clippedSurrogate(g.exp(g.clamp(logS, math.Inf(-1), 10)))
}

// cispo builds -sg(clip(r, 1-el, 1+eh)) A logp (MiniMax-M1, arXiv 2506.13585).
func cispo(g policyGraph) surrogate {
	r := g.ratio()
	w := g.mul(g.stop(g.clip(r)), g.adv())
	return surrogate{
		tokens:  g.neg(g.mul(w, g.logp())),
		clipped: g.apply(exceedsOp(1-g.c.ClipLow, 1+g.c.ClipHigh), r),
	}
}

// sapo builds -A sigmoid(tau (r-1)) 4/tau (arXiv 2511.20347): a soft gate instead of the clip, with
// tau chosen by the advantage's sign.
func sapo(g policyGraph) surrogate {
	positive := g.apply(positiveOp, g.adv())
	tau := g.add(g.mul(positive, g.num(g.c.TauPos-g.c.TauNeg)), g.num(g.c.TauNeg))
	gate := g.apply(sigmoidOp, g.mul(tau, g.sub(g.ratio(), g.num(1))))
	return surrogate{tokens: g.neg(g.mul(g.adv(), g.div(g.mul(gate, g.num(4)), tau)))}
}

// geoMean builds Geometric-Mean Policy Optimization (GMPO, arXiv 2507.20673):
//
//	l_t  = sign(A) min(sign(A)(logp-old), sign(A) clamp(logp-old, -el, eh))
//	loss = -mean(A) exp(mean_t l_t)            one a row
func geoMean(g policyGraph) surrogate {
	l, sign := g.logRatio(), g.apply(signOp, g.adv())
	clamped := g.clamp(l, -g.c.ClipLow, g.c.ClipHigh)
	l1 := g.mul(sign, g.min(g.mul(sign, l), g.mul(sign, clamped)))
	ratio := g.exp(rowMean(g.expr, l1, g.mask()))
	outside := g.apply(exceedsOp(-g.c.ClipLow, g.c.ClipHigh), l)
	return surrogate{
		rows:    g.neg(g.mul(rowMean(g.expr, g.adv(), g.mask()), ratio)),
		clipped: g.mul(outside, g.apply(positiveOp, g.adv())),
		lower:   g.mul(outside, g.apply(negativeOp, g.adv())),
	}
}

// gpg builds -A logp, the plain policy gradient (arXiv 2504.02546).
func gpg(g policyGraph) surrogate {
	return surrogate{tokens: g.neg(g.mul(g.adv(), g.logp()))}
}

// sft builds -logp of the given tokens: cross entropy, SeqKD's objective (arXiv 1606.07947).
func sft(g policyGraph) surrogate { return surrogate{tokens: g.neg(g.logp())} }

// Policy computes one policy objective. It is not safe for concurrent use.
type Policy[F Float] struct {
	c      PolicyConfig
	loss   policyLoss
	pgAgg  string
	kl     klEstimator
	cached cache[policyShape, F]
}

// policyShape holds everything that a compiled program depends on.
type policyShape struct {
	B, T             int
	kl, entropy, wts bool
}

// NewPolicy resolves the defaults and checks the settings. Errors wrap
// ErrUnknownName or ErrConfig.
func NewPolicy[F Float](c PolicyConfig) (*Policy[F], error) {
	or := func(v *float64, byDefault float64) {
		if *v == 0 {
			*v = byDefault
		}
	}
	name := func(v *string, byDefault string) {
		if *v == "" {
			*v = byDefault
		}
	}
	name(&c.Loss, "gspo")
	name(&c.Agg, "token-mean")
	name(&c.KLType, "low_var_kl")
	p := &Policy[F]{}
	var err error
	if p.loss, err = lookup("policy loss", c.Loss, policyLosses); err != nil {
		return nil, err
	}
	if _, err = lookup("aggregation", c.Agg, aggregations); err != nil {
		return nil, err
	}
	if c.KLType != KLFull {
		if p.kl, err = lookup("KL estimator", c.KLType, klEstimators); err != nil {
			return nil, err
		}
	}
	or(&c.ClipLow, p.loss.clipLow)
	or(&c.ClipHigh, p.loss.clipHigh)
	or(&c.ClipC, 3)
	or(&c.TauPos, 1)
	or(&c.TauNeg, 1.05)
	for _, s := range []struct {
		name    string
		v       float64
		ok      bool
		allowed string
	}{
		{"clip_ratio_low", c.ClipLow, c.ClipLow > 0 && !math.IsInf(c.ClipLow, 0), "above 0"},
		{"clip_ratio_high", c.ClipHigh, c.ClipHigh > 0 && !math.IsInf(c.ClipHigh, 0), "above 0"},
		{"clip_ratio_c", c.ClipC, c.ClipC > 1, "above 1"},
		{"tau_pos", c.TauPos, c.TauPos > 0 && !math.IsInf(c.TauPos, 0), "above 0"},
		{"tau_neg", c.TauNeg, c.TauNeg > 0 && !math.IsInf(c.TauNeg, 0), "above 0"},
		{"kl_loss_coef", c.KLCoef, c.KLCoef >= 0 && !math.IsInf(c.KLCoef, 0), "0 or above"},
		{"entropy_coeff", c.EntropyCoef, !math.IsNaN(c.EntropyCoef) &&
			!math.IsInf(c.EntropyCoef, 0), "finite"},
	} {
		if !s.ok {
			return nil, fmt.Errorf("algos: policy loss %q: %s = %g: must be %s: %w", c.Loss, s.name,
				s.v, s.allowed, ErrConfig)
		}
	}
	p.c, p.pgAgg = c, c.Agg
	if p.loss.agg != "" {
		p.pgAgg = p.loss.agg
	}
	return p, nil
}

// byTurns reports whether a part of the objective reads PolicyBatch.Turns.
func (p *Policy[F]) byTurns() bool {
	return p.c.ByEpisode || aggregations[p.pgAgg].byTurns || aggregations[p.c.Agg].byTurns
}

// Config returns the configuration with its defaults filled in.
func (p *Policy[F]) Config() PolicyConfig { return p.c }

// Close releases the compiled programs.
func (p *Policy[F]) Close() error { return p.cached.close() }

// PolicyBatch is one micro-batch of B rows, padded to T tokens. All matrices
// are [B*T], row by row, natural logarithms under the sampling temperature.
// Values where Mask is 0 are not read, not even a NaN.
type PolicyBatch[F Float] struct {
	B, T    int
	Logp    []F // of the sampled tokens under the current policy
	Old     []F // under the policy that sampled; unused by gpg and sft
	Ref     []F // under the frozen policy; unused when KLCoef is 0 or KLType KLFull
	KL      []F // KL to the frozen policy, nats; used when KLType is KLFull
	Mask    []F // 1 on response tokens up to and including the first EOS, else 0
	Adv     []F // unused by sft
	Entropy []F // of the next-token distribution, nats; unused when EntropyCoef is 0
	// RolloutWeight multiplies each token's policy loss, without gradient
	// (RolloutWeights); nil means 1. geo_mean takes a row's geometric mean.
	RolloutWeight []F
	// Turns [B] is how many rows with a response token the row's episode has in the whole
	// mini-batch, as Norm.Episodes counts them; nil: each row is an episode. Only EpisodeMean
	// reads it.
	Turns []F
	// Tokens [B] is how many response tokens the row's episode has in the whole mini-batch; nil:
	// each row is an episode. Only PolicyConfig.ByEpisode reads it.
	Tokens []F
}

// PolicyStats holds sums over a micro-batch. Added up (Add), the micro-batches' sums are the
// mini-batch's.
type PolicyStats struct {
	Loss        float64 // PGLoss + KLCoef*KLLoss - EntropyCoef*EntropyLoss
	PGLoss      float64 // aggregated policy loss
	KLLoss      float64 // aggregated KL estimate, without its coefficient
	EntropyLoss float64 // aggregated entropy, without its coefficient

	TokenSum     float64 // response tokens
	SeqSum       float64 // rows with at least one
	ClipSum      float64 // tokens where the clipped branch is the larger
	ClipLowerSum float64 // tokens at the dual clip; geo_mean: clipped tokens with A < 0
	SeqClipped   float64 // rows with a clipped token
	PPOKLSum     float64 // old - logp, summed over response tokens

	// Smallest and largest sequence ratio exp(mean_t(logp-old)) of a non-empty
	// row; 1 and 1 when the loss has no old log-probabilities.
	RatioMin, RatioMax float64
}

// Add returns the figures of both parts together.
func (s PolicyStats) Add(o PolicyStats) PolicyStats {
	if s.SeqSum == 0 {
		s.RatioMin, s.RatioMax = o.RatioMin, o.RatioMax
	} else if o.SeqSum > 0 {
		s.RatioMin, s.RatioMax = min(s.RatioMin, o.RatioMin), max(s.RatioMax, o.RatioMax)
	}
	s.Loss += o.Loss
	s.PGLoss += o.PGLoss
	s.KLLoss += o.KLLoss
	s.EntropyLoss += o.EntropyLoss
	s.TokenSum += o.TokenSum
	s.SeqSum += o.SeqSum
	s.ClipSum += o.ClipSum
	s.ClipLowerSum += o.ClipLowerSum
	s.SeqClipped += o.SeqClipped
	s.PPOKLSum += o.PPOKLSum
	return s
}

// ClipFrac returns actor/pg_clipfrac: the masked share of clipped tokens.
func (s PolicyStats) ClipFrac() float64 { return s.ClipSum / (s.TokenSum + 1e-8) }

// PPOKL returns actor/ppo_kl: the masked mean of old - logp.
func (s PolicyStats) PPOKL() float64 { return s.PPOKLSum / (s.TokenSum + 1e-8) }

// SeqClipFrac returns the share of rows with a clipped token.
func (s PolicyStats) SeqClipFrac() float64 { return s.SeqClipped / (s.SeqSum + 1e-8) }

// KLShare returns actor/kl_share, |beta*kl| / (|pg| + |beta*kl|); 0 if both are 0.
func (s PolicyStats) KLShare(beta float64) float64 {
	kl := math.Abs(beta * s.KLLoss)
	if kl == 0 {
		return 0
	}
	return kl / (math.Abs(s.PGLoss) + kl)
}

// PolicyResult is a micro-batch's contribution to the mini-batch.
type PolicyResult[F Float] struct {
	PolicyStats
	DLogp    []F // [B*T], d Loss/d Logp; exactly 0 where Mask is 0
	DEntropy []F // [B*T], d Loss/d Entropy; nil when EntropyCoef is 0
	DKL      []F // [B*T], d Loss/d KL; nil unless KLCoef is above 0 and KLType KLFull
}

// Step computes the loss and gradient contributions of one micro-batch under the mini-batch's
// totals n. Summed over the micro-batches of a mini-batch, they are the mini-batch's loss and
// gradient, however rows are packed (to rounding).
//
// Errors wrap ErrShape (lengths, a mask that is not 0 or 1, totals smaller
// than this micro-batch's own) or ErrNotFinite (an input under the mask, or
// the result).
func (p *Policy[F]) Step(b PolicyBatch[F], n Norm) (PolicyResult[F], error) {
	var res PolicyResult[F]
	own, err := p.check(b, n)
	if err != nil {
		return res, err
	}
	shape := policyShape{b.B, b.T, p.c.KLCoef > 0, p.c.EntropyCoef != 0, b.RolloutWeight != nil}
	prog, err := p.cached.get(shape, func() (*program[F], error) { return p.compile(shape) })
	if err != nil {
		return res, err
	}
	for _, in := range []struct {
		name   string
		v      []F
		masked F // value where the mask is 0
	}{{"logp", b.Logp, 0}, {"old", b.Old, 0}, {"ref", b.Ref, 0}, {"kl", b.KL, 0},
		{"adv", b.Adv, 0}, {"entropy", b.Entropy, 0}, {"weight", b.RolloutWeight, 1}} {
		if err := fillMasked(prog.in[in.name], in.v, b.Mask, in.masked, in.name, b.T); err != nil {
			return res, err
		}
	}
	copy(prog.in["mask"], b.Mask)
	if err := p.fillNorms(prog, b, n); err != nil {
		return res, err
	}
	if err := prog.run(); err != nil {
		return res, err
	}
	res.PolicyStats = p.stats(prog, b, own)
	res.DLogp = append([]F(nil), prog.get("dlogp")...)
	res.DEntropy = append([]F(nil), prog.get("dentropy")...)
	res.DKL = append([]F(nil), prog.get("dkl")...)
	if i := notFinite(res.DLogp); i >= 0 || math.IsNaN(res.Loss) || math.IsInf(res.Loss, 0) {
		return PolicyResult[F]{},
			fmt.Errorf(
				"algos: policy loss %q: loss %g, first bad gradient at %d: skip this step: %w",
				p.c.Loss, res.Loss, i, ErrNotFinite)
	}
	for i, m := range b.Mask {
		if m == 0 {
			res.DLogp[i] = 0 // and not -0
		}
	}
	return res, nil
}

// compile builds the whole objective,
//
//	sum_b rows(pg)_b*inv_b + sum_b rows(kl)_b*invKL_b - sum_b rows(entropy)_b*invEntropy_b
//
// whose three row factors hold normalisers and coefficients, so that neither is
// compiled in. A row without response tokens adds 0 to each sum.
func (p *Policy[F]) compile(s policyShape) (*program[F], error) {
	g := policyGraph{newExpr[F](), s.B, s.T, p.c}
	row := func(name string) *G.Node { return g.input(name, g.B) }
	sur := p.loss.build(g)
	perRow := sur.rows
	if perRow == nil {
		x := sur.tokens
		if s.wts {
			x = g.mul(x, g.bt("weight"))
		}
		perRow = p.aggregation(p.pgAgg).row(g.expr, x, g.mask())
	} else if s.wts {
		w := g.log(g.add(g.bt("weight"), g.num(1e-10)))
		perRow = g.mul(perRow, g.exp(rowMean(g.expr, w, g.mask())))
	}
	pg := g.sum(g.mul(perRow, row("inv")))
	cost, read, wrt := pg, map[string]*G.Node{"pg": pg}, []string{"logp"}
	if s.kl {
		var tokens *G.Node
		if p.c.KLType == KLFull {
			tokens = g.bt("kl")
			wrt = append(wrt, "kl")
		} else {
			tokens = p.kl.graph(g.expr, g.sub(g.logp(), g.bt("ref")))
		}
		kl := p.aggregation(p.c.Agg).row(g.expr, tokens, g.mask())
		read["kl"] = g.sum(g.mul(kl, row("invPlain")))
		cost = g.add(cost, g.sum(g.mul(kl, row("invKL"))))
	}
	if s.entropy {
		h := p.aggregation(p.c.Agg).row(g.expr, g.bt("entropy"), g.mask())
		read["entropy"] = g.sum(g.mul(h, row("invPlain")))
		cost = g.sub(cost, g.sum(g.mul(h, row("invEntropy"))))
		wrt = append(wrt, "entropy")
	}
	read["loss"] = cost
	if sur.clipped != nil {
		read["clipped"] = sur.clipped
	}
	if sur.lower != nil {
		read["lower"] = sur.lower
	}
	return compile[F](g.expr, cost, wrt, read)
}

// fillNorms sets the row factors of compile: coefficients divided by normalisers.
func (p *Policy[F]) fillNorms(prog *program[F], b PolicyBatch[F], n Norm) error {
	pgAgg, agg := p.aggregation(p.pgAgg), p.aggregation(p.c.Agg)
	pg, err := pgAgg.divisor(p.pgAgg, n)
	if err != nil {
		return err
	}
	if p.loss.perRow {
		pg, pgAgg.byTurns, pgAgg.byTokens = n.Seqs, false, false
	}
	plain, err := agg.divisor(p.c.Agg, n)
	if err != nil {
		return err
	}
	tokensB := b.Tokens
	if tokensB == nil {
		tokensB = make([]F, b.B)
		for i, x := range b.Mask {
			tokensB[i/b.T] += x
		}
	}
	fill := func(name string, v float64, a aggregation) {
		for row := range prog.in[name] {
			by := 1.
			switch { // 0 in a row without response tokens
			case a.byTokens:
				by = max(float64(tokensB[row]), 1) + 1e-8 // as rowMean
			case a.byTurns && b.Turns != nil:
				by = max(float64(b.Turns[row]), 1)
			}
			prog.in[name][row] = F(v / by)
		}
	}
	fill("inv", 1/pg, pgAgg)
	fill("invPlain", 1/plain, agg)
	fill("invKL", p.c.KLCoef/plain, agg)
	fill("invEntropy", p.c.EntropyCoef/plain, agg)
	return nil
}

// check refuses batches that do not fit together, and counts the micro-batch's own totals.
func (p *Policy[F]) check(b PolicyBatch[F], n Norm) (Norm, error) {
	bad := func(format string, args ...any) (Norm, error) {
		return Norm{}, fmt.Errorf("algos: policy loss %q: %s: %w", p.c.Loss,
			fmt.Sprintf(format, args...), ErrShape)
	}
	if b.B < 1 || b.T < 1 || b.B > math.MaxInt32/b.T {
		return bad("batch of %d x %d: both must be at least 1", b.B, b.T)
	}
	for _, in := range []struct {
		name   string
		v      []F
		needed bool
	}{
		{"logp", b.Logp, true}, {"mask", b.Mask, true}, {"old", b.Old, p.loss.needsOld},
		{"adv", b.Adv, p.loss.needsAdv},
		{"ref", b.Ref, p.c.KLCoef > 0 && p.c.KLType != KLFull},
		{"kl", b.KL, p.c.KLCoef > 0 && p.c.KLType == KLFull},
		{"entropy", b.Entropy, p.c.EntropyCoef != 0},
		{"rollout weight", b.RolloutWeight, b.RolloutWeight != nil},
	} {
		if in.needed && len(in.v) != b.B*b.T {
			return bad("%s has %d values, batch is %d x %d", in.name, len(in.v), b.B, b.T)
		}
	}
	for i, m := range b.Mask {
		if m != 0 && m != 1 {
			return bad("mask[%d,%d] = %g: must be 0 or 1", i/b.T, i%b.T, m)
		}
	}
	own := NormOf(b.B, b.T, b.Mask)
	if b.Turns != nil {
		if len(b.Turns) != b.B {
			return bad("%d counts of turns, %d rows", len(b.Turns), b.B)
		}
		own.Episodes = 0
		for row, turns := range b.Turns {
			if slices.Contains(b.Mask[row*b.T:(row+1)*b.T], 1) {
				if !(turns >= 1) {
					return bad("row %d has response tokens, and its episode %g turns", row, turns)
				}
				own.Episodes += 1 / float64(turns)
			}
		}
	}
	if b.Tokens != nil && len(b.Tokens) != b.B {
		return bad("%d counts of tokens, %d rows", len(b.Tokens), b.B)
	}
	if p.byTurns() && n.Episodes < own.Episodes*(1-1e-6) {
		return bad("norm counts %g episodes, the turns of this micro-batch alone make %g: count the whole mini-batch", n.Episodes, own.Episodes)
	}
	if n.Tokens < own.Tokens || n.Seqs < own.Seqs {
		return bad("norm counts %g tokens and %g sequences, this micro-batch alone has %g and %g: count the whole mini-batch", n.Tokens, n.Seqs, own.Tokens, own.Seqs)
	}
	return own, nil
}

// stats computes the sums from which metrics are derived.
func (p *Policy[F]) stats(prog *program[F], b PolicyBatch[F], own Norm) PolicyStats {
	s := PolicyStats{
		Loss: prog.scalar("loss"), PGLoss: prog.scalar("pg"), KLLoss: prog.scalar("kl"),
		EntropyLoss: prog.scalar("entropy"),
		TokenSum:    own.Tokens, SeqSum: own.Seqs, RatioMin: 1, RatioMax: 1,
	}
	clipped, lower := prog.get("clipped"), prog.get("lower")
	first := true
	for row := 0; row < b.B; row++ {
		var tokens, logRatio, rowClipped float64
		for i := row * b.T; i < (row+1)*b.T; i++ {
			if b.Mask[i] == 0 {
				continue
			}
			tokens++
			if p.loss.needsOld {
				d := float64(b.Logp[i]) - float64(b.Old[i])
				logRatio += d
				if p.loss.clampsDrift {
					d = min(max(d, -20), 20)
				}
				s.PPOKLSum -= d
			}
			if clipped != nil {
				rowClipped += float64(clipped[i])
			}
			if lower != nil {
				s.ClipLowerSum += float64(lower[i])
			}
		}
		if tokens == 0 {
			continue
		}
		s.ClipSum += rowClipped
		s.SeqClipped += indicator(rowClipped > 0)
		ratio := math.Exp(logRatio / tokens)
		if first {
			s.RatioMin, s.RatioMax, first = ratio, ratio, false
		}
		s.RatioMin, s.RatioMax = min(s.RatioMin, ratio), max(s.RatioMax, ratio)
	}
	return s
}

// fillMasked copies src to dst, masked where the mask is 0; dst is nil when the
// graph does not read that input. A value under the mask must be finite.
func fillMasked[F Float](dst, src, mask []F, masked F, name string, T int) error {
	if dst == nil {
		return nil
	}
	for i, m := range mask {
		dst[i] = masked
		if m == 0 {
			continue
		}
		dst[i] = src[i]
		if v := float64(src[i]); math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("algos: %s[%d,%d] = %g: skip this step: %w", name, i/T, i%T, v,
				ErrNotFinite)
		}
	}
	return nil
}

// notFinite returns the index of the first NaN or infinity, or -1.
func notFinite[F Float](x []F) int {
	for i, v := range x {
		if d := float64(v); math.IsNaN(d) || math.IsInf(d, 0) {
			return i
		}
	}
	return -1
}
