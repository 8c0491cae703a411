package algos

import (
	"math"
	"testing"
)

// The mode-seeking experiment of the paper's figure 5 (arXiv 2511.10643), with constants of our
// own: ten answers 0..9; the teacher is 0.6 N(2,.7) + 0.4 N(7,.7), each
// component discretised and normalised; the student is one discretised Gaussian. All losses
// and gradients are the package's own: only the chain rule from log q_k to (mu, log
// sigma) is written here. Expectations are taken exactly, by weighting each answer with
// its probability.
const answers = 10

// gaussian is the discretised normal distribution on 0..9, and its logarithms.
func gaussian(mu, sigma float64) (q, logq [answers]float64) {
	var z float64
	for k := range q {
		logq[k] = -.5 * (float64(k) - mu) / sigma * (float64(k) - mu) / sigma
		z += math.Exp(logq[k])
	}
	for k := range q {
		logq[k] -= math.Log(z)
		q[k] = math.Exp(logq[k])
	}
	return q, logq
}

func teacherMixture() (p [answers]float64) {
	a, _ := gaussian(2, .7)
	b, _ := gaussian(7, .7)
	for k := range p {
		p[k] = .6*a[k] + .4*b[k]
	}
	return p
}

// chain turns d loss/d log q_k into d loss/d(mu, log sigma).
func chain(mu, sigma float64, q [answers]float64, dlogq []float64) (dmu, dls float64) {
	var meanA, meanB float64
	a, b := make([]float64, answers), make([]float64, answers)
	for k := range q {
		x := (float64(k) - mu) / sigma
		a[k], b[k] = x/sigma, x*x
		meanA += q[k] * a[k]
		meanB += q[k] * b[k]
	}
	for k := range q {
		dmu += dlogq[k] * (a[k] - meanA)
		dls += dlogq[k] * (b[k] - meanB)
	}
	return dmu, dls
}

func divergence(p, q [answers]float64) (kl float64) {
	for k := range p {
		if p[k] > 0 {
			kl += p[k] * math.Log(p[k]/q[k])
		}
	}
	return kl
}

// student descends a policy objective over the ten answers as ten rows of one
// token, weighted by probability. Norm counts ten tokens, hence the factor ten.
type student struct {
	mu, logSigma float64
	policy       *Policy[float64]
}

func (s *student) dist() (q, logq [answers]float64) { return gaussian(s.mu, math.Exp(s.logSigma)) }

// gradient is d loss/d(mu, log sigma) for advantages adv under weights w.
func (s *student) gradient(t *testing.T, w [answers]float64, adv []float64) (dmu, dls float64) {
	t.Helper()
	q, logq := s.dist()
	b := PolicyBatch[float64]{B: answers, T: 1, Logp: logq[:], Old: logq[:], Adv: adv}
	for k := range w {
		b.Mask = append(b.Mask, 1)
		b.RolloutWeight = append(b.RolloutWeight, answers*w[k])
	}
	r, err := s.policy.Step(b, normOf(b))
	if err != nil {
		t.Fatal(err)
	}
	return chain(s.mu, math.Exp(s.logSigma), q, r.DLogp)
}

func newStudent(t *testing.T, loss string, mu, sigma float64) *student {
	t.Helper()
	p, err := NewPolicy[float64](PolicyConfig{Loss: loss, ClipLow: .2, ClipHigh: .2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &student{mu, math.Log(sigma), p}
}

// tabular is a discriminator with one score per answer. Every teacher answer i
// meets every student answer j, with weight p_i q_j.
type tabular struct {
	score   [answers]float64
	disc    *Discriminator[float64]
	pair    []int
	student []float64
	weight  []float64
}

func newTabular(t *testing.T) *tabular {
	t.Helper()
	d, err := NewDiscriminator[float64](DiscConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &tabular{disc: d, student: make([]float64, answers*answers),
		weight: make([]float64, answers*answers), pair: make([]int, answers*answers)}
}

// train takes steps of gradient descent, each coordinate scaled by the inverse
// of a bound on its curvature, (p_k+q_k)/4, as rare answers would otherwise
// take for ever. It returns the largest scaled gradient of the last step.
func (d *tabular) train(t *testing.T, p, q [answers]float64, steps int) (worst float64) {
	t.Helper()
	for range steps {
		for i := range answers {
			for j := range answers {
				n := i*answers + j
				d.pair[n], d.student[n], d.weight[n] = i, d.score[j], p[i]*q[j]
			}
		}
		r, err := d.disc.Step(d.student, d.score[:], d.pair, d.weight)
		if err != nil {
			t.Fatal(err)
		}
		worst = 0
		for k := range answers {
			grad := r.DTeacher[k]
			for i := range answers {
				grad += r.DStudent[i*answers+k]
			}
			move := grad / (p[k] + q[k]) * 2
			d.score[k] -= move
			worst = max(worst, math.Abs(move))
		}
	}
	return worst
}

// doc/algorithms.md, "Worked examples": maximum likelihood covers both modes, from any start.
func TestGameSeqKD(t *testing.T) {
	p := teacherMixture()
	for _, start := range [][2]float64{{2.5, 1.5}, {7, 1}} {
		s := newStudent(t, "sft", start[0], start[1])
		for range 1500 {
			dmu, dls := s.gradient(t, p, nil)
			// Natural scale: the curvature by mu is 1/sigma^2.
			s.mu -= .5 * min(math.Exp(2*s.logSigma), 20) * dmu
			s.logSigma -= .2 * dls
		}
		q, _ := s.dist()
		near(t, "mu, sigma, KL(p||q)", tolerance{0, 6e-5},
			[]float64{s.mu, math.Exp(s.logSigma), divergence(p, q)},
			[]float64{3.3680, 3.8565, .5279})
	}
}

// doc/algorithms.md, "Worked examples": the game settles on the nearer mode: reverse
// KL. The minimum of KL(q||p) itself is found beside it, by differences; the game must
// come within 1e-4 of that. The sigmas in c.want are .0003 larger: they come from a run
// whose discriminator took one plain gradient step per student step and still lagged on
// the rarest answers.
func TestGameAdversarial(t *testing.T) {
	t.Parallel()
	p := teacherMixture()
	for _, c := range []struct{ start, want []float64 }{
		{[]float64{2.5, 1.5}, []float64{2.0010, .7021, .5105}},
		{[]float64{7, 1}, []float64{6.9988, .7026, .9159}},
	} {
		s, d := newStudent(t, "gspo", c.start[0], c.start[1]), newTabular(t)
		q, _ := s.dist()
		d.train(t, p, q, 400)
		var last float64
		for range 1000 {
			q, _ = s.dist()
			d.train(t, p, q, 3)
			adv := make([]float64, answers)
			var mean float64
			for k := range q {
				mean += q[k] * d.score[k]
			}
			for k := range q {
				adv[k] = d.score[k] - mean
			}
			dmu, dls := s.gradient(t, q, adv)
			s.mu -= .05 * dmu
			s.logSigma -= .05 * dls
			last = math.Abs(dmu) + math.Abs(dls)
		}
		if last > 1e-4 {
			t.Errorf("from %v: not settled, gradient %g", c.start, last)
		}
		q, _ = s.dist()
		got := []float64{s.mu, math.Exp(s.logSigma), divergence(q, p)}
		near(t, "minimum of the reverse KL", tolerance{0, 1e-4}, got,
			reverseMinimum(p, c.start[0], c.start[1]))
		near(t, "mu, sigma, KL(q||p)", tolerance{0, 5e-4}, got, c.want)
	}
}

// reverseMinimum descends KL(q||p) by differences: mu, sigma and the divergence.
func reverseMinimum(p [answers]float64, mu, sigma float64) []float64 {
	f := func(mu, ls float64) float64 {
		q,
			_ := gaussian(mu, math.Exp(ls))
		return divergence(q, p)
	}
	ls := math.Log(sigma)
	const h = 1e-5
	for range 3000 {
		dmu, dls := (f(mu+h, ls)-f(mu-h, ls))/(2*h), (f(mu, ls+h)-f(mu, ls-h))/(2*h)
		mu, ls = mu-.05*dmu, ls-.05*dls
	}
	return []float64{mu, math.Exp(ls), f(mu, ls)}
}

// doc/algorithms.md, "The game": at a fixed student the optimal discriminator is log(p/q) + c.
func TestGameTabularOptimum(t *testing.T) {
	p := teacherMixture()
	q, _ := gaussian(4, 2.5)
	d := newTabular(t)
	if move := d.train(t, p, q, 4000); move > 1e-9 {
		t.Errorf("discriminator still moves by %g", move)
	}
	var c float64
	for k := range p {
		c += (d.score[k] - math.Log(p[k]/q[k])) / answers
	}
	for k := range p {
		if got := d.score[k] - math.Log(p[k]/q[k]) - c; math.Abs(got) > 1e-6 {
			t.Errorf("answer %d: D - log(p/q) - c = %g", k, got)
		}
	}
}
