package actor

import (
	"math"
	"slices"
	"testing"

	"gad/algos"
)

// rankedOf are the answers of a rollout with scores.
func rankedOf(r Rollout) Ranked {
	score := make([]float64, len(r))
	for s := range score {
		score[s] = float64(s*5%7) / 3
	}
	return Ranked{Seqs: r.Seqs(), Score: score, Group: r.Groups()}
}

// The gradient that reaches the weights is the loss's: along a parameter's own gradient it is the
// loss's central difference.
func TestRankGradientIsTheLosss(t *testing.T) {
	const tau = .4
	a, spy := student(t, func(c *Config) { c.Optim.LR = 0; c.Optim.WeightDecay = 0 })
	p := rankedOf(rolled(t, a))
	st, err := a.Rank(p, tau)
	if err != nil || st.Updates != 1 {
		t.Fatal(st, err)
	}
	lossAt := func() float64 {
		logpST, _, err := a.m.AllLogProbs(p.Seqs, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		loss, _, err := algos.Ranking(SeqLogp(logpST), p.Score, p.Group, tau)
		if err != nil {
			t.Fatal(err)
		}
		return loss
	}
	if math.Abs(lossAt()-st.Loss) > 1e-12 {
		t.Errorf("loss %g, was %g with a learning rate of 0", lossAt(), st.Loss)
	}
	checked := 0
	for _, param := range a.m.Params() {
		grad := spy.grads[param.Name]
		var norm float64
		for _, g := range grad {
			norm += float64(g) * float64(g)
		}
		if norm = math.Sqrt(norm); norm < .02 {
			continue
		}
		w := make([]float32, param.Len())
		spy.Download(w, param.W)
		moved := func(h float64) float64 {
			x := slices.Clone(w)
			for i := range x {
				x[i] += float32(h * float64(grad[i]) / norm)
			}
			setWeights(spy, param, x)
			defer setWeights(spy, param, w)
			return lossAt()
		}
		const h = 2e-3
		if got := (moved(h) - moved(-h)) / (2 * h); math.Abs(got-norm) > .05*norm {
			t.Errorf("%s: the loss's slope is %g, the gradient's norm %g", param.Name, got, norm)
		}
		checked++
	}
	if checked < 3 {
		t.Errorf("only %d parameters have a gradient to speak of", checked)
	}
	logpST, _, err := a.m.AllLogProbs(p.Seqs, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	likeliest := p
	likeliest.Score = SeqLogp(logpST)
	if st, err := a.Rank(likeliest, tau); err != nil || st.Agree != 1 {
		t.Errorf("log-probabilities as scores: %g of the groups agree, %v", st.Agree, err)
	}
}

// The share of groups whose likeliest answer is the best, or one of equal ones.
func TestAgree(t *testing.T) {
	got := agree([]float64{-1, -2, -5, -4, -3, -7}, Ranked{
		Score: []float64{2, 1, 3, 9, 9, 9}, Group: []int{0, 0, 1, 1, 2, 2}})
	if got != 1 {
		t.Errorf("agree %g, want 1", got)
	}
	got = agree([]float64{-1, -2, -5, -4}, Ranked{Score: []float64{1, 2, 0, 5},
		Group: []int{0, 0, 1, 1}})
	if got != .5 {
		t.Errorf("agree %g, want 0.5", got)
	}
	// whichever of two equal scores is the likeliest
	for _, sumS := range [][]float64{{-1, -2}, {-2, -1}} {
		got := agree(sumS, Ranked{Score: []float64{4, 4}, Group: []int{0, 0}})
		if got != 1 {
			t.Errorf("two equal scores, the likeliest of %v: agree %g, want 1", sumS, got)
		}
	}
}
