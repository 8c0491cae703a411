package algos

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// groupTerm is the formula of GroupSpread as it stands in the paper.
func groupTerm(scores []float64) (term float64) {
	sorted := append([]float64(nil), scores...)
	var mean float64
	for _, x := range scores {
		mean += x / float64(len(scores))
	}
	for i := range sorted {
		for j := i; j > 0 && sorted[j] < sorted[j-1]; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], sorted[j]
		}
	}
	for j, r := range sorted {
		q := NormalQuantile((float64(j) + .5) / float64(len(sorted)))
		term += (r - mean - q) * (r - mean - q) / float64(len(sorted))
	}
	return term
}

// For two answers the quantiles are -+0.67449 (Phi^-1 of 1/4 and 3/4).
func TestNormalQuantile(t *testing.T) {
	for p, want := range map[float64]float64{.25: -0.6744897501960817, .75: 0.6744897501960817,
		.5: 0, .975: 1.959963984540054} {
		if got := NormalQuantile(p); math.Abs(got-want) > 1e-12 {
			t.Errorf("Phi^-1(%g) = %.15g, want %.15g", p, got, want)
		}
	}
}

// Value by the formula, gradient by central differences, groups of several sizes at
// once, one score left out.
func TestGroupSpreadGradient(t *testing.T) {
	scores := []float64{.3, -1.2, 2.5, .9, math.NaN(), .1, -.4, 1.7, 3.1}
	groups := []int{7, 7, 7, 2, -1, 2, 5, 2, 2}
	g := &GroupSpread[float64]{}
	defer g.Close()
	value := func(s []float64) float64 {
		var sum float64
		byGroup := map[int][]float64{}
		for i, group := range groups {
			if group >= 0 {
				byGroup[group] = append(byGroup[group], s[i])
			}
		}
		for _, of := range byGroup {
			sum += groupTerm(of) / float64(len(byGroup))
		}
		return sum
	}
	const weight = .05
	term, d, err := g.Step(scores, groups, weight)
	if err != nil {
		t.Fatal(err)
	}
	if want := value(scores); math.Abs(term-want) > 1e-12 {
		t.Errorf("term %.15g, want %.15g", term, want)
	}
	for i := range scores {
		const h = 1e-6
		up, down := append([]float64(nil), scores...), append([]float64(nil), scores...)
		up[i] += h
		down[i] -= h
		want := 0.
		if groups[i] >= 0 {
			want = weight * (value(up) - value(down)) / (2 * h)
		}
		if math.Abs(d[i]-want) > 1e-8 {
			t.Errorf("d[%d] = %g, want %g", i, d[i], want)
		}
	}
}

// GRGC's proposition 1 (arXiv 2609.39757): at a fixed mean score of a group, Bradley-Terry
// is least where the group has no spread, since softplus is convex; with the group term
// the least is at a spread above 0. Exactly the same directions are tried for both.
func TestGroupTermKeepsSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		n := 2 + r.IntN(7)
		mean, teacher := 2*r.NormFloat64(), 2*r.NormFloat64()
		shape := make([]float64, n) // of mean 0
		for i := range shape {
			shape[i] = r.NormFloat64()
			for j := range shape {
				shape[j] -= shape[i] / float64(n)
				if i == j {
					break
				}
			}
		}
		var off float64
		for _, x := range shape {
			off += x / float64(n)
		}
		loss := func(spread, lambda float64) float64 {
			scores, sum := make([]float64, n), 0.
			for i, x := range shape {
				scores[i] = mean + spread*(x-off)
				sum += softplus(scores[i]-teacher) / float64(n)
			}
			return sum + lambda*groupTerm(scores)
		}
		for _, spread := range []float64{1e-3, .1, .5, 1, 3} {
			if loss(spread, 0) <= loss(0, 0) {
				t.Errorf("n %d: Bradley-Terry is %g at spread %g, %g at none", n, loss(spread, 0),
					spread, loss(0, 0))
			}
		}
		if loss(1e-3, .01) >= loss(0, .01) {
			t.Errorf("n %d: with the term the loss is %g at a small spread, %g at none", n,
				loss(1e-3, .01), loss(0, .01))
		}
	}
}

func TestGroupSpreadEdges(t *testing.T) {
	g := &GroupSpread[float32]{}
	defer g.Close()
	if term, d, err := g.Step([]float32{3}, []int{0}, 1); err != nil || term != 0 || d[0] != 0 {
		t.Errorf("a group of one: %g, %v, %v, want nothing", term, d, err)
	}
	if term, d, err := g.Step([]float32{3}, []int{-1}, 1); err != nil || term != 0 || d[0] != 0 {
		t.Errorf("no group: %g, %v, %v, want nothing", term, d, err)
	}
	if _, _, err := g.Step([]float32{float32(math.Inf(1)), 1}, []int{0, 0}, 1); !errors.Is(err,
		ErrNotFinite) {
		t.Errorf("an infinite score: %v", err)
	}
	if _, _, err := g.Step([]float32{1}, nil, 1); !errors.Is(err, ErrShape) {
		t.Errorf("no groups given: %v", err)
	}
}

// GRGC's rewards by hand: [1,2,3,6] has mean 3 and sigma 2.160247; z = [-.92582,
// -.46291, 0, 1.38873], to the power 1.5 [-.89081, -.31495, 0, 1.63655]; their mean is
// .10769, their sigma 1.08392.
func TestPowerAdvantages(t *testing.T) {
	mask := [][]float64{{1}, {1}, {1}, {1}}
	at := func(power float64, scores ...float64) []float64 {
		advST, err := Advantages(AdvantageConfig{Power: power},
			AdvantageInput{Scores: scores, Group: []int{0, 0, 0, 0}, Mask: mask})
		if err != nil {
			t.Fatal(err)
		}
		var adv []float64
		for _, row := range advST {
			adv = append(adv, row[0])
		}
		return adv
	}
	for i, want := range []float64{-.92120, -.38992, -.09935, 1.41049} {
		if got := at(1.5, 1, 2, 3, 6)[i]; math.Abs(got-want) > 2e-5 {
			t.Errorf("advantage %d is %g, want %g", i, got, want)
		}
	}
	for i, want := range at(0, 1, 2, 3, 6) {
		if got := at(1, 1, 2, 3, 6)[i]; got != want {
			t.Errorf("power 1: advantage %d is %g, grpo's is %g", i, got, want)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 { // order is kept
		s := []float64{r.NormFloat64(), r.NormFloat64(), r.NormFloat64(), r.NormFloat64()}
		adv := at(1.2+r.Float64(), s...)
		for i := range s {
			for j := range s {
				if (adv[i] > adv[j]) != (s[i] > s[j]) {
					t.Fatalf("scores %v give advantages %v: another order", s, adv)
				}
			}
		}
	}
	for _, bad := range []float64{-1, math.Inf(1), math.NaN()} {
		if _, err := Advantages(AdvantageConfig{Power: bad},
			AdvantageInput{Scores: []float64{1}, Group: []int{0}, Mask: mask[:1]}); !errors.Is(err,
			ErrConfig) {
			t.Errorf("power %g: %v, want ErrConfig", bad, err)
		}
	}
	tokens := AdvantageInput{Scores: []float64{1, 2}, Group: []int{0, 0}, Mask: mask[:2],
		TokenRewards: [][]float64{{1}, {2}}}
	if _, err := Advantages(AdvantageConfig{Name: "reinforce_plus_plus", Power: 1.5},
		tokens); !errors.Is(err, ErrConfig) {
		t.Errorf("token rewards: %v, want ErrConfig", err)
	}
}
