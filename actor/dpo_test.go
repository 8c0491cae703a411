package actor

import (
	"math"
	"slices"
	"testing"

	"gad/algos"
	"gad/internal/compute"
	"gad/model"
)

// pairsOf are answers of the student to the two prompts, preferred against the ones
// after them, and the reference: the student itself moved by shift a sequence.
func pairsOf(t *testing.T, a *Actor, shift float64) Preferences {
	t.Helper()
	r := rolled(t, a)
	p := Preferences{Chosen: []model.Seq{r[0].Seq, r[4].Seq, r[2].Seq},
		Rejected: []model.Seq{r[1].Seq, r[5].Seq, r[3].Seq}}
	c, _, err := a.m.AllLogProbs(p.Chosen, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	j, _, err := a.m.AllLogProbs(p.Rejected, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	p.RefChosen, p.RefRejected = SeqLogp(c), SeqLogp(j)
	for i := range p.RefChosen {
		p.RefChosen[i] += shift * float64(i+1)
	}
	return p
}

func objective(t *testing.T, c algos.DPOConfig) *algos.DPO[float64] {
	t.Helper()
	d, err := algos.NewDPO[float64](c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// The gradient that reaches the weights is the loss's: along a direction in the space
// of weights it is the loss's central difference, for every loss. A direction is one
// parameter's own gradient.
func TestDPOGradientIsTheLosss(t *testing.T) {
	for _, loss := range algos.DPOLossNames() {
		t.Run(loss, func(t *testing.T) {
			a, spy := student(t, func(c *Config) { c.Optim.LR = 0; c.Optim.WeightDecay = 0 })
			d := objective(t, algos.DPOConfig{Loss: loss, Beta: .5, Tau: .5})
			p := pairsOf(t, a, .7)
			st, err := a.DPO(d, p)
			if err != nil || st.Updates != 1 {
				t.Fatal(st, err)
			}
			lossAt := func() float64 {
				c, _, err := a.m.AllLogProbs(slices.Concat(p.Chosen, p.Rejected), 1, 512)
				if err != nil {
					t.Fatal(err)
				}
				sums := SeqLogp(c)
				r, err := d.Step(algos.DPOBatch[float64]{Chosen: sums[:3], Rejected: sums[3:],
					RefChosen: p.RefChosen, RefRejected: p.RefRejected,
					LenChosen: responseLens(p.Chosen), LenRejected: responseLens(p.Rejected)})
				if err != nil {
					t.Fatal(err)
				}
				return r.Loss
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
					t.Errorf("%s: the loss's slope is %g, the gradient's norm %g", param.Name, got,
						norm)
				}
				checked++
			}
			if checked < 3 {
				t.Errorf("only %d parameters have a gradient to speak of", checked)
			}
		})
	}
}

func setWeights(be compute.Backend, p *compute.Param, w []float32) {
	be.Upload(p.W, w)
	be.Refresh(p)
}

// A step makes the chosen answers more probable against the rejected ones, at the
// reference by beta/2n a pair; packs change figures by nothing and gradients by rounding.
func TestDPOUpdate(t *testing.T) {
	var grads []map[string][]float32
	var stats []DPOStats
	for _, tokens := range []int{512, 20, 1} {
		a, spy := student(t, func(c *Config) { c.MaxTokenLen = tokens })
		p := pairsOf(t, a, 0)
		d := objective(t, algos.DPOConfig{})
		st, err := a.DPO(d, p)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(st.Loss-math.Ln2) > 1e-15 || st.Acc != 0 || st.Margin != 0 || st.Pairs != 3 ||
			st.Updates != 1 || st.Skipped != 0 {
			t.Errorf("at the reference: %+v", st)
		}
		if want := map[bool]int{true: 3, false: 4}[tokens == 512]; st.Passes != want {
			t.Errorf("packs of %d tokens: %d passes, want %d", tokens, st.Passes, want)
		}
		grads, stats = append(grads, spy.grads), append(stats, st)
		after, err := a.DPO(d, p)
		if err != nil {
			t.Fatal(err)
		}
		if !(after.Loss < math.Ln2) || !(after.Margin > 0) || after.Acc != 1 {
			t.Errorf("after a step: loss %g, margin %g, accuracy %g", after.Loss, after.Margin,
				after.Acc)
		}
	}
	for k := 1; k < 3; k++ {
		if !slices.Equal(stats[k].Chosen, stats[0].Chosen) || stats[k].Entropy != stats[0].Entropy {
			t.Error("log-probabilities depend on the packs")
		}
		if d := distance(t, grads[0], grads[k], 1); d > 1e-5 {
			t.Errorf("the gradient in smaller packs differs by %g", d)
		}
	}
}

// A value that is not finite leaves the weights as they are, and the gradient cleared.
func TestDPOSkips(t *testing.T) {
	for _, tokens := range []int{512, 1} {
		a, spy := student(t, func(c *Config) { c.MaxTokenLen = tokens })
		p := pairsOf(t, a, 0)
		d := objective(t, algos.DPOConfig{})
		before := logps(t, a, p.Chosen)
		bad := p
		bad.RefChosen = []float64{-1, math.Inf(-1), -1}
		st, err := a.DPO(d, bad)
		if err != nil || st.Skipped != 1 || st.Updates != 0 || len(spy.grads) != 0 {
			t.Errorf("infinite reference: %+v, %v", st, err)
		}
		spy.plant = float32(math.NaN())
		st, err = a.DPO(d, p)
		if err != nil || st.Skipped != 1 || st.Updates != 0 {
			t.Errorf("gradient NaN: %+v, %v", st, err)
		}
		spy.plant = 0
		if after := logps(t, a, p.Chosen); !slices.Equal(after, before) {
			t.Errorf("log-probabilities %v, were %v", after, before)
		}
		if st, err = a.DPO(d, p); err != nil || st.Updates != 1 || math.IsNaN(st.GradNorm) {
			t.Errorf("the step after: %+v, %v", st, err)
		}
	}
	a, _ := student(t, nil)
	if _, err := a.DPO(objective(t, algos.DPOConfig{}), Preferences{}); err == nil {
		t.Error("no pairs are accepted")
	}
}
