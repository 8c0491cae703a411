package critic

import (
	"math"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/model"
)

func likelihood(c *Config) { c.Head = Likelihood }

// student returns a language model of another seed than newCritic's.
func student(t *testing.T, be model.Backend, seed uint64) *model.Model {
	t.Helper()
	m, err := model.New(be, tiny, model.Options{Kind: model.LM, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// A sequence's score is the sum over its answer's tokens of log q - log p, at the temperature of
// the rollouts; by turn, up to the end of each turn.
func TestLikelihoodScores(t *testing.T) {
	for _, level := range []string{"episode", "turn"} {
		c, spy := newCritic(t, func(c *Config) { c.Head, c.Level = Likelihood, level })
		p := student(t, spy, 9)
		c.SetStudent(p, 0.7)
		b := episodes()
		scoreBoth(t, c, &b)
		seqs, got := slices.Concat(b.Students, b.Teachers), slices.Concat(b.TurnS, b.TurnP)
		last := slices.Concat(b.ScoreS, b.ScoreP)
		for i, s := range seqs {
			q, _, err := c.m.LogProbs([]model.Seq{s}, 0.7)
			if err != nil {
				t.Fatal(err)
			}
			other, _, err := p.LogProbs([]model.Seq{s}, 0.7)
			if err != nil {
				t.Fatal(err)
			}
			at, sum := 0, 0.0
			for k, span := range s.Spans {
				for range span.To - span.From {
					sum += float64(q[0][at]) - float64(other[0][at])
					at++
				}
				if level == "turn" && math.Abs(sum-float64(got[i][k])) > 1e-5 {
					t.Errorf("sequence %d, turn %d: score %g, want %g", i, k, got[i][k], sum)
				}
			}
			if math.Abs(sum-float64(last[i])) > 1e-5 || sum == 0 {
				t.Errorf("%s: sequence %d: score %g, want %g", level, i, last[i], sum)
			}
		}
	}
}

// A discriminator that is the student scores every answer 0, to the bit: its loss is ln 2.
func TestLikelihoodBeginsAtZero(t *testing.T) {
	c, spy := newCritic(t, likelihood)
	c.SetStudent(student(t, spy, 3), 1)
	st := update(t, c, batch())
	for _, x := range slices.Concat(st.ScoreS, st.ScoreP) {
		if x != 0 {
			t.Fatalf("scores %v and %v, want zeros", st.ScoreS, st.ScoreP)
		}
	}
	if math.Abs(st.Loss-math.Ln2) > 1e-7 || st.Updates != 1 || st.GradNorm == 0 {
		t.Errorf("loss %g, %d updates of norm %g, want ln 2 and a gradient", st.Loss, st.Updates,
			st.GradNorm)
	}
	for range 20 {
		st = update(t, c, batch())
	}
	if st.Acc < 0.999 || st.Loss > 0.2 {
		t.Errorf("after 20 updates accuracy %g, loss %g", st.Acc, st.Loss)
	}
}

// The gradient of every parameter, against differences of the Bradley-Terry loss in float64 along
// it, whatever the packs.
func TestLikelihoodGradient(t *testing.T) {
	for name, edit := range map[string]func(*Config){"one pack": func(*Config) {},
		"several packs": func(c *Config) { c.MaxTokenLen = 12 }, "by turn": byTurn} {
		cfg := DefaultConfig()
		edit(&cfg)
		cfg.Head = Likelihood
		be := ref.New()
		m, err := model.New(be, tiny, model.Options{Kind: model.LM, Trainable: true, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(m, cfg, 10, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetStudent(student(t, be, 9), 0.8)
		b := episodes()
		if b.base, err = c.baseline(slices.Concat(b.Students, b.Teachers)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.learn(gathered(t, c, b, nil)); err != nil {
			t.Fatal(err)
		}
		loss := func() (sum float64) {
			scoreBoth(t, c, &b)
			for s, p := range b.Group {
				if cfg.byTurn() {
					sum += pairLoss(b.TurnS[s], b.TurnP[p], bradleyTerry) / float64(len(b.Group))
					continue
				}
				sum += math.Log1p(math.Exp(float64(b.ScoreS[s])-float64(b.ScoreP[p]))) /
					float64(len(b.Group))
			}
			return sum
		}
		checkGradient(t, name, m, loss)
	}
}

// A likelihood that is sure of all pairs has no gradient either, by episode and by turn.
func TestLikelihoodSureOfAllPairs(t *testing.T) {
	for _, level := range []string{"episode", "turn"} {
		c, spy := newCritic(t, func(c *Config) { c.Head, c.Level = Likelihood, level })
		c.SetStudent(student(t, spy, 9), 1)
		b := episodes()
		var err error
		if b.base, err = c.baseline(slices.Concat(b.Students, b.Teachers)); err != nil {
			t.Fatal(err)
		}
		for _, base := range b.base[len(b.Students):] {
			for k := range base {
				base[k] -= 1000
			}
		}
		res, err := c.learn(gathered(t, c, b, nil))
		if err != nil || res.loss != 0 {
			t.Fatalf("%s: loss %g, %v", level, res.loss, err)
		}
		for _, p := range c.m.Params() {
			g := make([]float32, p.Len())
			if spy.Download(g, p.G); slices.ContainsFunc(g, func(x float32) bool { return x != 0 }) {
				t.Errorf("%s: %s has a gradient", level, p.Name)
			}
		}
	}
}

// An update of two mini-batches is two updates of one each: later ones learn from scores of the
// weights that the earlier have made.
func TestLikelihoodMiniBatches(t *testing.T) {
	both, spy := newCritic(t, func(c *Config) { c.Head, c.PPOMiniBatch = Likelihood, 1 })
	both.SetStudent(student(t, spy, 9), 1)
	update(t, both, batch())
	one, other := newCritic(t, func(c *Config) { c.Head, c.PPOMiniBatch = Likelihood, 1 })
	one.SetStudent(student(t, other, 9), 1)
	whole := batch()
	for p := range 2 {
		part := Batch{Students: whole.Students[3*p : 3*p+3], Group: []int{0, 0, 0},
			Teachers: whole.Teachers[p : p+1], Skip: make([]bool, 3)}
		update(t, one, part)
	}
	if !slices.Equal(bits(both, spy), bits(one, other)) {
		t.Error("weights and moments differ")
	}
}

// Pairs of the pool are scored against the student as it is now.
func TestLikelihoodPool(t *testing.T) {
	c, spy := newCritic(t, func(c *Config) {
		c.Head, c.Replay = Likelihood, Replay{Size: 8, Share: 1, Live: true}
	})
	c.SetStudent(student(t, spy, 9), 1)
	update(t, c, batch())
	now := student(t, spy, 11)
	c.SetStudent(now, 1)
	b := batch()
	b.Step = 1
	set := gathered(t, c, b, nil)
	if set.pooled == 0 {
		t.Fatal("no pair is the pool's")
	}
	for i, s := range set.seqs {
		logp, _, err := now.LogProbs([]model.Seq{s}, 1)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, x := range logp[0] {
			sum += float64(x)
		}
		if got := set.score.sequence(i)[0].Base; math.Abs(got-sum) > 1e-5 {
			t.Errorf("sequence %d is compared with %g, want %g", i, got, sum)
		}
	}
}

func TestLikelihoodMistakes(t *testing.T) {
	c, _ := newCritic(t, likelihood)
	if _, err := c.Update(batch()); err == nil || !strings.Contains(err.Error(), "call SetStudent") {
		t.Errorf("without a student: %v", err)
	}
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	cfg := DefaultConfig()
	cfg.Head = Likelihood
	m, err := model.New(be, tiny, model.Options{Kind: model.Scorer, Trainable: true, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := New(m, cfg, 1, 1); err == nil {
		t.Error("a network with a value head is taken for a language model")
	}
}

// The terms of a sequence's tokens add up to its score.
func TestTerms(t *testing.T) {
	c, spy := newCritic(t, func(c *Config) {
		c.Head, c.Level, c.MaxTokenLen = Likelihood, "token", 16
	})
	c.SetStudent(student(t, spy, 9), 0.7)
	b := episodes()
	scoreS, err := c.Score(b.Students)
	if err != nil {
		t.Fatal(err)
	}
	termST, err := c.Terms(b.Students)
	if err != nil {
		t.Fatal(err)
	}
	for s, row := range termST {
		sum := 0.0
		for _, x := range row {
			sum += float64(x)
		}
		if len(row) != b.Students[s].Trained() || math.Abs(sum-float64(scoreS[s])) > 1e-4 {
			t.Errorf("sequence %d: %d terms add up to %g, the score is %g", s, len(row), sum,
				scoreS[s])
		}
	}
	value, _ := newCritic(t, nil)
	if _, err := value.Terms(b.Students); err == nil {
		t.Error("a value head has terms")
	}
}

// checkGradient holds the gradient of every parameter against differences of the loss along it.
func checkGradient(t *testing.T, name string, m *model.Model, loss func() float64) {
	t.Helper()
	for _, p := range m.Params() {
		w, g := ref.F64(p.W), ref.F64(p.G)
		norm := 0.0
		for _, x := range g {
			norm += x * x
		}
		if norm = math.Sqrt(norm); norm < 1e-3 {
			t.Errorf("%s: %s: a gradient of norm %g", name, p.Name, norm)
		}
		h := 5e-3 / (1 + norm) // a smaller one shows that scores are rounded to float32
		move := func(by float64) {
			for i := range w {
				w[i] += by * g[i] / max(norm, 1e-30)
			}
		}
		move(h)
		up := loss()
		move(-2 * h)
		down := loss()
		move(h)
		if got := (up - down) / (2 * h); !(math.Abs(got-norm) < 1e-3*norm+1e-4) {
			t.Errorf("%s: %s: the loss rises by %g along a gradient of norm %g", name, p.Name, got,
				norm)
		}
	}
}
