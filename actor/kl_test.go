package actor

import (
	"math"
	"testing"

	"gad/model"
)

// With the exact KL alone in the loss the figure is its mean over all tokens, and updates bring the
// student back to the reference; a student that is the reference does not move.
func TestExactKL(t *testing.T) {
	full := func(c *Config) {
		c.UseKLLoss, c.KLLossCoef, c.KLLossType, c.LossAggMode, c.Optim.WeightDecay =
			true, 1, "full", "token-mean", 0
		c.PolicyLoss.LossMode, c.PPOMiniBatch = "vanilla", 0
	}
	a, spy := student(t, func(c *Config) { full(c); c.Optim.LR = 3e-3; c.PPOMiniBatch = 2 })
	ref, err := model.New(spy, tiny, model.Options{Kind: model.LM, Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	ref.Share(a.m)
	a.SetTarget(Target{Policy: ref, Beta: 1})
	if a.NeedsReference() {
		t.Error("the exact KL reads no log-probabilities of the reference")
	}
	r := rolled(t, a)
	nothing := spread(r, func(_, _ int) float64 { return 0 })
	var first, last float64
	for k := range 60 {
		klST, err := a.m.AllKL(ref, r.Seqs(), 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		var sum, n float64
		for _, row := range klST {
			for _, x := range row {
				sum, n = sum+float64(x), n+1
			}
		}
		st, err := a.Update(with(r, nothing))
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(st.KLLoss-sum/n) > 1e-6*(1+sum/n) || math.Abs(st.Loss-st.KLLoss) > 1e-6 {
			t.Fatalf("update %d: KL %g, loss %g, AllKL has %g", k, st.KLLoss, st.Loss, sum/n)
		}
		if last = st.KLLoss; k == 0 {
			first = st.KLLoss
		}
	}
	if !(last < first/5) {
		t.Errorf("the KL went from %g to %g", first, last)
	}

	a, spy = student(t, full)
	same, err := model.New(spy, tiny, model.Options{Kind: model.LM, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	a.SetTarget(Target{Policy: same, Beta: 1})
	st, err := a.Update(with(rolled(t, a), nothing))
	if err != nil {
		t.Fatal(err)
	}
	if st.KLLoss != 0 || st.GradNorm != 0 || st.Updates == 0 {
		t.Errorf("student and reference are equal: %+v", st)
	}
}
