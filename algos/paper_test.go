package algos

// One test per equation: each cites its source and works an example small
// enough to check by hand. The numbers are those of doc/algorithms.md,
// "Worked examples", printed there to six digits or so, or follow from the formula
// in the comment.

import (
	"math"
	"testing"
)

// printed is the tolerance for a number that was written down with six digits.
var printed = tolerance{0, 6e-7}

func near(t *testing.T, what string, tol tolerance, got, want []float64) {
	t.Helper()
	if err := tol.differ(what, got, want); err != nil {
		t.Error(err)
	}
}

// scalars runs an estimator on one group of one-token responses.
func scalars(t *testing.T, c AdvantageConfig, in AdvantageInput) []float64 {
	t.Helper()
	S := len(in.Scores)
	if in.Mask == nil {
		for range S {
			in.Mask = append(in.Mask, []float64{1})
		}
	}
	if in.Group == nil {
		in.Group = make([]int, S)
	}
	adv, err := Advantages(c, in)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, S)
	for s, row := range adv {
		out[s] = row[0]
	}
	return out
}

var s1236 = AdvantageInput{Scores: []float64{1, 2, 3, 6}}

// DeepSeekMath, arXiv 2402.03300, outcome supervision: A = (s-mu)/sigma, sigma 2.160247 unbiased.
func TestPaperGRPO(t *testing.T) {
	if _, sigma := moments(s1236.Scores); !printed.ok(sigma, 2.160247) {
		t.Errorf("sigma %g", sigma)
	}
	near(t, "grpo", printed, scalars(t, AdvantageConfig{Name: "grpo"}, s1236),
		[]float64{-.925820, -.462910, 0, 1.388730})
	near(t, "pair", tolerance{0, 1e-6},
		scalars(t, AdvantageConfig{}, AdvantageInput{Scores: []float64{-4, 100}}),
		[]float64{-math.Sqrt2 / 2, math.Sqrt2 / 2})
	near(t, "alone", tolerance{1e-6, 0},
		scalars(t, AdvantageConfig{}, AdvantageInput{Scores: []float64{3}}), []float64{3})
}

// Dr. GRPO, arXiv 2503.20783: A = s-mu.
func TestPaperDrGRPO(t *testing.T) {
	want := []float64{-2, -1, 0, 3}
	near(t, "dr_grpo", golden64, scalars(t, AdvantageConfig{Name: "dr_grpo"}, s1236), want)
	near(t, "grpo without std", golden64, scalars(t, AdvantageConfig{MeanOnly: true}, s1236), want)
}

// RLOO, arXiv 2402.14740: each score less the mean of the others.
func TestPaperRLOO(t *testing.T) {
	near(t, "rloo", golden64, scalars(t, AdvantageConfig{Name: "rloo"}, s1236),
		[]float64{1 - 11./3, 2 - 10./3, 0, 6 - 2})
	near(t, "alone", golden64,
		scalars(t, AdvantageConfig{Name: "rloo"}, AdvantageInput{Scores: []float64{3}}),
		[]float64{3})
}

// OPO, arXiv 2505.23585: the baseline is the length-weighted mean, (1+4+9+24)/10 = 3.8.
func TestPaperOPO(t *testing.T) {
	in := s1236
	in.Len = []int{1, 2, 3, 4}
	near(t, "opo", golden64, scalars(t, AdvantageConfig{Name: "opo"}, in),
		[]float64{-2.8, -1.8, -.8, 2.2})
	in.Len = nil
	in.Mask = [][]float64{{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 1, 0}, {1, 1, 1, 1}}
	near(t, "opo by mask", golden64, scalars(t, AdvantageConfig{Name: "opo"}, in),
		[]float64{-2.8, -1.8, -.8, 2.2})
}

// Pass@k training, arXiv 2503.19595: the best alone, by its lead: (6-3)/2.160247.
func TestPaperPassK(t *testing.T) {
	near(t, "grpo_passk", printed, scalars(t, AdvantageConfig{Name: "grpo_passk"}, s1236),
		[]float64{0, 0, 0, 1.388730})
	in := AdvantageInput{Scores: []float64{6, 3, 2, 1}}
	near(t, "best first", printed, scalars(t, AdvantageConfig{Name: "grpo_passk"}, in),
		[]float64{1.388730, 0, 0, 0})
}

// Ranks 1..4 about 2.5 over sqrt(4*5/12); ties share; a monotone drift of the critic does not show.
func TestPaperRank(t *testing.T) {
	want := []float64{-1.161895, -.387298, .387298, 1.161895}
	near(t, "rank", printed, scalars(t, AdvantageConfig{Name: "rank"}, s1236), want)
	near(t, "drifted", printed,
		scalars(t, AdvantageConfig{Name: "rank"},
			AdvantageInput{Scores: []float64{-9, -8.99, 0, 1e9}}), want)
	near(t, "tied", golden64,
		scalars(t, AdvantageConfig{Name: "rank"}, AdvantageInput{Scores: []float64{5, 5, 5}}),
		[]float64{0, 0, 0})
	near(t, "half tied", golden64,
		scalars(t, AdvantageConfig{Name: "rank"}, AdvantageInput{Scores: []float64{5, 5, 7}}),
		[]float64{-.5, -.5, 1})
}

// z-score with a floor: a gap of 0.01 stays a tenth of a standard deviation.
func TestPaperZScore(t *testing.T) {
	near(t, "wide", printed, scalars(t, AdvantageConfig{Name: "zscore"}, s1236),
		[]float64{-.925820, -.462910, 0, 1.388730})
	near(t, "narrow", golden64,
		scalars(t, AdvantageConfig{Name: "zscore"}, AdvantageInput{Scores: []float64{0, .02}}),
		[]float64{-.1, .1})
	near(t, "own floor", golden64,
		scalars(t, AdvantageConfig{Name: "zscore", ZScoreFloor: 1},
			AdvantageInput{Scores: []float64{0, .02}}), []float64{-.01, .01})
}

// The batch's mean and deviation, whatever the groups.
func TestPaperGlobal(t *testing.T) {
	in := s1236
	in.Group = []int{0, 1, 1, 2}
	near(t, "global", printed, scalars(t, AdvantageConfig{Name: "global"}, in),
		[]float64{-.925820, -.462910, 0, 1.388730})
}

// REINFORCE++, arXiv 2501.03262: returns 1+.5*(2+.5*4)=3, 4, 4 and 6, whitened: mean 4.25, unbiased
// variance 1.583333.
func TestPaperReinforcePP(t *testing.T) {
	adv, err := Advantages(AdvantageConfig{Name: "reinforce_plus_plus", Gamma: .5}, AdvantageInput{
		Scores: []float64{0, 0}, Group: []int{0, 0}, Mask: [][]float64{{1, 1, 1, 0}, {1, 0, 0, 0}},
		TokenRewards: [][]float64{{1, 2, 4, math.NaN()}, {6, 0, 100, 100}},
	})
	if err != nil {
		t.Fatal(err)
	}
	scale := 1 / math.Sqrt(4.75/3)
	near(t, "reinforce_plus_plus", tolerance{0, 1e-7}, flat(adv),
		[]float64{-1.25 * scale, -.25 * scale, -.25 * scale, 0, 1.75 * scale, 0, 0, 0})
}

// Without token rewards the score is the last response token's reward: every return is the score.
func TestPaperReinforcePPOutcome(t *testing.T) {
	adv, err := Advantages(AdvantageConfig{Name: "reinforce_plus_plus"}, AdvantageInput{
		Scores: []float64{2, 4}, Group: []int{0, 1}, Mask: [][]float64{{1, 1, 0}, {1, 1, 0}}})
	if err != nil {
		t.Fatal(err)
	}
	a := 1 / math.Sqrt(4./3)
	near(t, "outcome", tolerance{0, 1e-7}, flat(adv), []float64{-a, -a, 0, a, a, 0})
}

// The same with the group's mean as baseline: s-mu = -1, 1 on one token and three.
func TestPaperReinforcePPBaseline(t *testing.T) {
	adv, err := Advantages(AdvantageConfig{Name: "reinforce_plus_plus_baseline"}, AdvantageInput{
		Scores: []float64{0, 2}, Group: []int{5, 5}, Mask: [][]float64{{1, 0, 0}, {1, 1, 1}}})
	if err != nil {
		t.Fatal(err)
	}
	// mean .5, variance (1.5^2 + 3*.5^2)/3 = 1
	near(t, "baseline", tolerance{0, 1e-7}, flat(adv), []float64{-1.5, 0, 0, .5, .5, .5})
}

// GiGPO, arXiv 2505.10978: episodes 1 and 3 give -1, 1 (mean only); steps from state "a" have
// returns 0+.5*2 = 1 and 5, from "b" only one of each prompt.
func TestPaperGiGPO(t *testing.T) {
	in := AdvantageInput{
		Scores: []float64{1, 3, 0}, Group: []int{0, 0, 1},
		Mask: [][]float64{{1, 1, 1}, {1, 1, 0}, {1, 0, 0}},
		Steps: [][]TurnStep{
			{{0, 1, 0, "a"}, {1, 3, 2, "b"}},
			{{0, 2, 5, "a"}},
			{{0, 1, 9, "a"}}, // another prompt's "a" is no company
		},
	}
	adv, err := Advantages(AdvantageConfig{Name: "gigpo", Gamma: .5, StepWeight: .25,
		MeanOnly: true}, in)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "mean only", golden64, flat(adv), []float64{-1.5, -1, -1, 1.5, 1.5, 0, 0, 0, 0})
	adv, err = Advantages(AdvantageConfig{Name: "gigpo", Gamma: .5}, in)
	if err != nil {
		t.Fatal(err)
	}
	h := math.Sqrt2 / 2
	near(t, "normalised", tolerance{0, 1e-5}, flat(adv)[:6],
		[]float64{-2 * h, -h, -h, 2 * h, 2 * h, 0})
}

// logR is one row of log-ratios .1, -.2, .4 with advantage a.
func logR(a float64) PolicyBatch[float64] {
	return PolicyBatch[float64]{B: 1, T: 3, Logp: []float64{-1.9, -2.2, -1.6},
		Old: []float64{-2, -2, -2}, Mask: []float64{1, 1, 1}, Adv: []float64{a, a, a}}
}

func onRow(t *testing.T, c PolicyConfig, a float64) PolicyResult[float64] {
	t.Helper()
	return step(t, c, logR(a), normOf(logR(a)))
}

var clip2 = PolicyConfig{ClipLow: .2, ClipHigh: .2}

func (c PolicyConfig) with(loss string) PolicyConfig { c.Loss = loss; return c }

// PPO, arXiv 1707.06347, eq. 7: r = 1.105171, .818731, 1.491825.
func TestPaperPPO(t *testing.T) {
	near(t, "A=+1", printed, []float64{onRow(t, clip2.with("vanilla"), 1).Loss},
		[]float64{-1.041301})
	near(t, "A=-1", printed, []float64{onRow(t, clip2.with("vanilla"), -1).Loss},
		[]float64{1.138575})
	up := onRow(t, clip2.with("vanilla"), 1)
	near(t, "gradient", golden64, up.DLogp, []float64{-math.Exp(.1) / 3, -math.Exp(-.2) / 3, 0})
	near(t, "clipped tokens", golden64, []float64{up.ClipSum, up.TokenSum, up.SeqClipped},
		[]float64{1, 3, 1})
	near(t, "ppo_kl", tolerance{1e-8, 0}, []float64{up.PPOKL()}, []float64{-.1})
}

// Dual clip, arXiv 1912.09729: for A<0 the loss never exceeds -A c.
func TestPaperDualClip(t *testing.T) {
	b := PolicyBatch[float64]{B: 1, T: 2, Logp: []float64{3, 3}, Old: []float64{0, 0},
		Mask: []float64{1, 1}, Adv: []float64{-2, 2}}
	r := step(t, clip2.with("vanilla"), b, normOf(b))
	near(t, "loss", golden64, []float64{r.Loss}, []float64{(2*3 - 2*1.2) / 2})
	near(t, "gradient", golden64, r.DLogp, []float64{0, 0})
	near(t, "counts", golden64, []float64{r.ClipLowerSum, r.ClipSum}, []float64{1, 1})
	off := clip2.with("vanilla")
	off.ClipC = math.Inf(1)
	near(t, "off", golden64, []float64{step(t, off, b, normOf(b)).Loss},
		[]float64{(2*math.Exp(3) - 2*1.2) / 2})
}

// DAPO, arXiv 2503.14476, eq. 10: the upper clip alone moves to 1.28, over the mean of tokens.
func TestPaperDAPO(t *testing.T) {
	near(t, "A=+1", golden64, []float64{onRow(t, PolicyConfig{Loss: "dapo"}, 1).Loss},
		[]float64{-(math.Exp(.1) + math.Exp(-.2) + 1.28) / 3})
}

// GSPO, arXiv 2507.18071, eq. 5 and 7: s = exp(mean) = 1.105171 for the whole row; eq. 10: every
// token's gradient is s A / length.
func TestPaperGSPO(t *testing.T) {
	r := onRow(t, clip2.with("gspo"), 1)
	near(t, "loss", printed, []float64{r.Loss, r.RatioMin, r.RatioMax},
		[]float64{-1.105171, 1.105171, 1.105171})
	g := -math.Exp(.1) / 3
	near(t, "gradient", tolerance{1e-8, 0}, r.DLogp, []float64{g, g, g})
	tight := onRow(t, PolicyConfig{Loss: "gspo"}, 1) // the published 3e-4, 4e-4
	near(t, "clipped", tolerance{1e-8, 0},
		[]float64{tight.Loss, tight.SeqClipped, tight.ClipFrac()}, []float64{-1.0004, 1, 1})
	near(t, "no gradient", golden64, tight.DLogp, []float64{0, 0, 0})
}

// GSPO-token, arXiv 2507.18071, eq. 13: the same ratio, each token with its own advantage.
func TestPaperGSPOToken(t *testing.T) {
	b := logR(1)
	b.Adv = []float64{1, 0, -3}
	r := step(t, clip2.with("gspo_token"), b, normOf(b))
	s := math.Exp(.1)
	near(t, "gradient", tolerance{1e-8, 1e-12}, r.DLogp, []float64{-s / 3, 0, s})
}

// CISPO (MiniMax-M1, arXiv 2506.13585): the clipped ratio is a weight, so a clipped token still
// learns.
func TestPaperCISPO(t *testing.T) {
	r := onRow(t, clip2.with("cispo"), 1)
	near(t, "gradient", golden64, r.DLogp,
		[]float64{-math.Exp(.1) / 3, -math.Exp(-.2) / 3, -1.2 / 3})
	near(t, "loss", golden64, []float64{r.Loss},
		[]float64{(1.9*math.Exp(.1) + 2.2*math.Exp(-.2) + 1.6*1.2) / 3})
}

// SAPO, arXiv 2511.20347: at r=1 the gate is 1/2, the loss -2A/tau and the gradient exactly -A.
func TestPaperSAPO(t *testing.T) {
	b := PolicyBatch[float64]{B: 2, T: 1, Logp: []float64{0, 0}, Old: []float64{0, 0},
		Mask: []float64{1, 1}, Adv: []float64{1, -1}}
	r := step(t, PolicyConfig{Loss: "sapo", TauNeg: 2}, b, normOf(b))
	near(t, "loss", tolerance{1e-7, 0}, []float64{r.Loss}, []float64{(-2 + 2./2) / 2})
	near(t, "gradient", tolerance{1e-7, 0}, r.DLogp, []float64{-.5, .5})
}

// GMPO, arXiv 2507.20673: geometric mean of clipped ratios, exp((.1-.2+.2)/3) for A>0 and
// exp((.1-.2+.4)/3) for A<0.
func TestPaperGMPO(t *testing.T) {
	near(t, "A=+1", printed, []float64{onRow(t, clip2.with("geo_mean"), 1).Loss},
		[]float64{-1.033895})
	near(t, "A=-1", printed, []float64{onRow(t, clip2.with("geo_mean"), -1).Loss},
		[]float64{1.105171})
}

// GPG, arXiv 2504.02546: -A logp and nothing else.
func TestPaperGPG(t *testing.T) {
	r := onRow(t, PolicyConfig{Loss: "gpg"}, 2)
	near(t, "gpg", golden64, append(r.DLogp, r.Loss), []float64{-2. / 3, -2. / 3, -2. / 3, 3.8})
}

// Sequence-level distillation, arXiv 1606.07947: cross entropy of the teacher's tokens.
func TestPaperSFT(t *testing.T) {
	b := PolicyBatch[float64]{B: 2, T: 2, Logp: []float64{-1, -3, -5, math.NaN()},
		Mask: []float64{1, 1, 1, 0}}
	r := step(t, PolicyConfig{Loss: "sft"}, b, normOf(b))
	near(t, "token-mean", golden64, append(r.DLogp, r.Loss),
		[]float64{-1. / 3, -1. / 3, -1. / 3, 0, 3})
	r = step(t, PolicyConfig{Loss: "sft", Agg: "seq-mean-token-mean"}, b, normOf(b))
	near(t, "seq-mean-token-mean", tolerance{1e-7, 0}, []float64{r.Loss}, []float64{3.5})
}

// Schulman's estimators, http://joschu.net/blog/kl-approx.html: k3 at d=-.5 and .5.
func TestPaperKL(t *testing.T) {
	for name, want := range map[string][]float64{
		"k1": {-.5, .5}, "abs": {.5, .5}, "k2": {.125, .125}, "low_var_kl": {.148721, .106531},
		"k3+": {.148721, .106531},
	} {
		got, err := KLPenalty(name, []float64{-.5, .5}, []float64{0, 0})
		if err != nil {
			t.Fatal(err)
		}
		near(t, name, printed, got, want)
	}
	got, err := KLPenalty("k3", []float64{-25, 25, -4}, []float64{0, 0, 0})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "clamped", golden64, got, []float64{10, 10, 10})
}

// The straight-through forms keep the value and descend k2, whose gradient is logp-ref.
func TestPaperKLStraightThrough(t *testing.T) {
	for _, name := range []string{"k1+", "abs+", "k3+"} {
		b := PolicyBatch[float64]{B: 1, T: 2, Logp: []float64{-.5, .25}, Ref: []float64{0, 0},
			Adv: []float64{0, 0}, Mask: []float64{1, 1}}
		r := step(t, PolicyConfig{Loss: "gpg", KLCoef: 3, KLType: name}, b, normOf(b))
		value, err := KLPenalty(name, b.Logp, b.Ref)
		if err != nil {
			t.Fatal(err)
		}
		near(t, name, golden64, append(r.DLogp, r.Loss, r.KLLoss),
			[]float64{-.75, .375, 3 * (value[0] + value[1]) / 2, (value[0] + value[1]) / 2})
	}
}

// Ziegler et al., arXiv 1909.08593, section 2.2: an error beyond 20 % counts as 20 %.
func TestPaperAdaptiveKL(t *testing.T) {
	a := AdaptiveKL{Coef: .001, Target: 6, Horizon: 1e4}
	near(t, "above", golden64, []float64{a.Update(12, 256)}, []float64{.00100512})
	a = AdaptiveKL{Coef: .001, Target: 6, Horizon: 1e4}
	near(t, "near", golden64, []float64{a.Update(6.6, 256)}, []float64{.001 * (1 + .1*.0256)})
	if got := a.Update(math.NaN(), 256); got != a.Coef || !golden64.ok(got, .001*(1+.1*.0256)) {
		t.Errorf("NaN moved the coefficient to %g", got)
	}
	fixed := AdaptiveKL{Coef: .001}
	near(t, "fixed", golden64, []float64{fixed.Update(100, 256)}, []float64{.001})
}

// The game's value function, arXiv 2511.10643: at D_t - D_s = 1 the loss is .313262, the gradient
// .268941.
func TestPaperBradleyTerry(t *testing.T) {
	d, err := NewDiscriminator[float64](DiscConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Step([]float64{2}, []float64{3}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "bt", printed, []float64{r.Loss, r.DStudent[0], r.DTeacher[0], r.Acc, r.Gap},
		[]float64{.313262, .268941, -.268941, 1, 1})
}

// The paper's ablation, cross entropy: -log sigmoid(3) - log(1-sigmoid(2)).
func TestPaperBCE(t *testing.T) {
	d, err := NewDiscriminator[float64](DiscConfig{Loss: "bce"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Step([]float64{2}, []float64{3}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "bce", golden64, []float64{r.Loss, r.DStudent[0], r.DTeacher[0]},
		[]float64{math.Log1p(math.Exp(-3)) + 2 + math.Log1p(math.Exp(-2)), 1 / (1 + math.Exp(-2)),
			-1 / (1 + math.Exp(3))})
}

// DAPO, arXiv 2503.14476, eq. 13: L 1536, buffer 256, 1408 tokens: half way through the buffer.
func TestPaperOverlong(t *testing.T) {
	o := Overlong{MaxLen: 1536, Buffer: 256, Factor: 1}
	for n, want := range map[int]float64{1: 0, 1280: 0, 1281: -1. / 256, 1408: -.5, 1536: -1} {
		if got := o.Penalty(n); got != want {
			t.Errorf("%d tokens: %g, want %g", n, got, want)
		}
	}
	if got := (Overlong{MaxLen: 10}).Penalty(100); got != 0 {
		t.Errorf("off: %g", got)
	}
}

// DAPO, arXiv 2503.14476, dynamic sampling: a group whose scores are equal teaches nothing.
func TestPaperDynamicSampling(t *testing.T) {
	keep, dropped, err := KeepGroups([]float64{1, 5, 1, 5.5, 2}, []int{0, 1, 0, 1, 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if keep[0] || !keep[1] || keep[2] || !keep[3] || keep[4] || !golden64.ok(dropped, 2./3) {
		t.Errorf("keep %v, dropped %g", keep, dropped)
	}
}

// KL in the reward (Ziegler et al., arXiv 1909.08593, eq. 2): r_t = score at the end - beta*KL_t.
func TestPaperKLInReward(t *testing.T) {
	nan := math.NaN()
	rewards, sums, kl, err := KLInReward("k1", .5, []float64{3, 7},
		[][]float64{{-1, -2, nan}, {-4, nan, nan}}, [][]float64{{-2, -1.5, nan}, {-4.5, nan, nan}},
		[][]float64{{1, 1, 0}, {1, 0, 0}})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "token rewards", golden64, flat(rewards), []float64{-.5, 3.25, 0, 6.75, 0, 0})
	near(t, "sums", golden64, sums, []float64{2.75, 6.75})
	near(t, "kl", tolerance{1e-7, 0}, []float64{kl}, []float64{(.25 + .5) / 2})
}

// Truncated importance sampling between trainer and sampler: min(exp(old-rollout), C).
func TestPaperRolloutCorrection(t *testing.T) {
	old, rollout, mask :=
		[]float64{-1, -1, math.NaN(), -1, -1, -1}, []float64{-1.5, -.9, 0, -3, -.5, -1},
		[]float64{1, 1, 0, 1, 1, 1}
	w, err := RolloutWeights("token", 2, 2, 3, old, rollout, mask)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "token", golden64, w, []float64{math.Exp(.5), math.Exp(-.1), 1, 2, math.Exp(-.5), 1})
	w, err = RolloutWeights("sequence", 2, 2, 3, old, rollout, mask)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "sequence", golden64, w, []float64{math.Exp(.4), math.Exp(.4), 1, 2, 2, 2})
}

// doc/algorithms.md, "Aggregation", worked on rows of 1 and 3 tokens with losses 4 and 1, 2, 3.
func TestPaperAggregation(t *testing.T) {
	b := PolicyBatch[float64]{B: 3, T: 3, Logp: []float64{-4, 0, 0, -1, -2, -3, 0, 0, 0},
		Mask: []float64{1, 0, 0, 1, 1, 1, 0, 0, 0}}
	n := normOf(b)
	n.FixedLen = 5
	for agg, want := range map[string]float64{"token-mean": 10. / 4, "seq-mean-token-sum": 10. / 2,
		"seq-mean-token-mean": (4. + 2) / 2, "seq-mean-token-sum-norm": 10. / 5} {
		r := step(t, PolicyConfig{Loss: "sft", Agg: agg}, b, n)
		near(t, agg, tolerance{2e-8, 0}, []float64{r.Loss}, []float64{want})
	}
}

// Flow-GRPO, arXiv 2510.05592: the mean over episodes of the mean over turns of the mean over
// tokens. The rows of 1 and 3 tokens are one episode, a third row of 2 tokens with losses 8 and 10
// is another: ((4+2)/2 + 9)/2 = 6. Over turns alone it would be 5, over tokens 28/6.
func TestPaperFlowGRPO(t *testing.T) {
	b := PolicyBatch[float64]{B: 3, T: 3, Logp: []float64{-4, 0, 0, -1, -2, -3, -8, -10, 0},
		Mask: []float64{1, 0, 0, 1, 1, 1, 1, 1, 0}, Turns: []float64{2, 2, 1}}
	n := normOf(b)
	r := step(t, PolicyConfig{Loss: "sft", Agg: EpisodeMean}, b, n)
	near(t, "loss", golden64, []float64{r.Loss}, []float64{6})
	near(t, "gradient", golden64, r.DLogp,
		[]float64{-1. / 4, 0, 0, -1. / 12, -1. / 12, -1. / 12, -1. / 4, -1. / 4, 0})
	b.Turns = nil // each row an episode of one turn
	n = normOf(b)
	near(t, "one turn each", tolerance{2e-8, 0},
		[]float64{step(t, PolicyConfig{Loss: "sft", Agg: EpisodeMean}, b, n).Loss},
		[]float64{step(t, PolicyConfig{Loss: "sft", Agg: "seq-mean-token-mean"}, b, n).Loss})
}
