package quality

import (
	"math"
	"slices"
	"testing"

	"gad/critic"
	"gad/internal/philox"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/modeltest"
)

func TestSpearman(t *testing.T) {
	for _, c := range []struct {
		xs, ys []float64
		want   float64
	}{
		{[]float64{1, 2, 3, 4}, []float64{10, 20, 40, 30}, 0.8},
		{[]float64{3, 1, 2}, []float64{-1, 5, 2}, -1},
		// ties by mean ranks: 1.5 1.5 3 against 1 2 3, scipy.stats.spearmanr
		{[]float64{0, 0, 1}, []float64{1, 2, 3}, 0.8660254037844387},
		{[]float64{2, 2, 1, 5}, []float64{1, 3, 3, 4}, 0.5},
	} {
		if got := Spearman(c.xs, c.ys); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v and %v: %g, want %g", c.xs, c.ys, got, c.want)
		}
	}
	for n := 2; n < 33; n++ {
		flat, up := make([]float64, n), make([]float64, n)
		for i := range up {
			up[i] = float64(i)
		}
		if a, b := Spearman(flat, up), Spearman(up, flat); !math.IsNaN(a) || !math.IsNaN(b) {
			t.Errorf("%d equal rewards, or truths, have a correlation of %g, %g", n, a, b)
		}
	}
}

// groupsOf returns sampled answers of the student and their truth: the other model is the teacher.
func groupsOf(t *testing.T, temperature, teacherTemperature float64) (heldOut, *model.Model,
	[]Group, Options) {
	t.Helper()
	be := modeltest.Backend(t)
	tr := openHeldOut(t, be)
	teacher, err := model.Load(be, modeltest.Blank(t), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { teacher.Close() })
	o := Options{MaxPrompt: 64, MaxResponse: 10, Temperature: temperature, Seed: 1, Slots: 8,
		MaxTokens: 512}
	b, err := EncodeRows(tr.tok, tr.val, tr.valRows, o)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := Sample(tr.m, tr.tok, b, 4, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := SetTruth(teacher, groups, b.Prompts(), teacherTemperature, o); err != nil {
		t.Fatal(err)
	}
	return tr, teacher, groups, o
}

// The truth is the sum over the answer's tokens, its end included where it was not cut, of the
// teacher's log-probability at its temperature minus the student's at that of the rollouts, one
// sequence at a time.
func TestTruth(t *testing.T) {
	tr, teacher, groups, _ := groupsOf(t, 0.8, 0.6)
	cut, whole := 0, 0
	for _, x := range each(groups) {
		if x.Cut {
			cut++
		} else {
			whole++
		}
		s, _, err := tr.m.LogProbs([]model.Seq{x.Seq}, 0.8)
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := teacher.LogProbs([]model.Seq{x.Seq}, 0.6)
		if err != nil {
			t.Fatal(err)
		}
		var logp, ratio float64
		for i := range s[0] {
			logp, ratio = logp+float64(s[0][i]), ratio+float64(p[0][i])-float64(s[0][i])
		}
		if math.Abs(logp-x.LogP) > 1e-4 || math.Abs(ratio-x.Ratio) > 1e-4 {
			t.Fatalf("log p %g and ratio %g, want %g and %g", x.LogP, x.Ratio, logp, ratio)
		}
	}
	if cut == 0 || whole == 0 {
		t.Errorf("%d answers are cut, %d are not: both kinds are needed", cut, whole)
	}
}

// A critic that is the truth orders all pairs rightly, its negative none, a random one half of
// them; a likelihood that is the teacher itself is the truth.
func TestFidelity(t *testing.T) {
	tr, teacher, groups, o := groupsOf(t, 1, 1)
	var truth, random []float64
	for i, x := range each(groups) {
		truth = append(truth, x.Ratio)
		random = append(random, philox.Float64(1, philox.Bootstrap, 7, uint64(i), 0))
	}
	negative := slices.Clone(truth)
	for i := range negative {
		negative[i] *= -2
	}
	for _, c := range []struct {
		name       string
		reward     []float64
		rho, pairs float64
	}{{"truth", truth, 1, 1}, {"negative", negative, -1, 0}} {
		f := Measure(c.name, groups, c.reward, 1)
		if math.Abs(*f.Rho-c.rho) > 1e-9 || *f.Pairs != c.pairs || f.Prompts < 2 {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
	f := Measure("random", groups, random, 1)
	if f.RhoCI95 == nil || f.RhoCI95[0] > 0 || f.RhoCI95[1] < 0 || math.Abs(*f.Pairs-0.5) > 0.2 {
		t.Errorf("random: %+v, interval %v", f, f.RhoCI95)
	}

	cfg := critic.DefaultConfig()
	cfg.Head, cfg.MaxTokenLen = critic.Likelihood, o.MaxTokens
	c, err := critic.NewScorer(teacher, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.SetStudent(tr.m, 1)
	scoreS, err := c.Score(ReadSeqs(groups))
	if err != nil {
		t.Fatal(err)
	}
	reward := make([]float64, len(scoreS))
	for i, x := range scoreS {
		reward[i] = float64(x)
	}
	f = Measure("teacher", groups, reward, 1)
	if math.Abs(*f.Rho-1) > 1e-3 || *f.Pairs < 0.999 || f.Acc == nil {
		t.Errorf("the teacher's own likelihood: rho %g, pairs %g, d_acc %v", *f.Rho, *f.Pairs,
			f.Acc)
	}
	trivial := MeasureTrivial(groups, 1)
	if len(trivial) != 4 || *trivial[0].Rho != 1 && math.Abs(*trivial[0].Rho-1) > 1e-9 {
		t.Errorf("%+v", trivial)
	}
}

// The figures by hand: two prompts of three answers, the first ordered wholly, the second with one
// pair of three wrong and a reward that ties.
func TestMeasureByHand(t *testing.T) {
	seq := model.Answer([]int32{1, 2, 3}, 1)
	group := func(ratios ...float64) (g Group) {
		for i, r := range ratios {
			g.Answers = append(g.Answers, Graded{Seq: seq, Tokens: i + 1, LogP: -float64(i),
				Ratio: r})
		}
		return g
	}
	groups := []Group{group(1, 2, 3), group(1, 2, 3)}
	f := Measure("d", groups, []float64{5, 6, 7, 1, 0, 1, 6.5, 0.5}, 1)
	// second: ranks 2.5 1 2.5 against 1 2 3: r = 0
	if math.Abs(*f.Rho-0.5) > 1e-12 {
		t.Errorf("rho %g, want the mean of 1 and 0", *f.Rho)
	}
	// second: (1,2) wrong, (2,3) right, (1,3) a tie
	if math.Abs(*f.Pairs-(3+1.5)/6) > 1e-12 {
		t.Errorf("pairs %g", *f.Pairs)
	}
	// 6.5 above 5 and 6; 0.5 above 0
	if math.Abs(*f.Acc-0.5) > 1e-12 {
		t.Errorf("d_acc %g", *f.Acc)
	}
	if want := (1 + math.Sqrt(1.0/3)) / 2; math.Abs(f.Spread-want) > 1e-12 {
		t.Errorf("spread %g, want %g", f.Spread, want)
	}
	if got := textmetrics.Interval(2, 1, func(_ int, w []float64) float64 {
		return meanOf([]float64{1, 0}, w)
	}); *f.RhoCI95 != got {
		t.Errorf("interval %v, want %v", *f.RhoCI95, got)
	}
}
