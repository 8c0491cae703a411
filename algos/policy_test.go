package algos

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func step[F Float](t testing.TB, c PolicyConfig, b PolicyBatch[F], n Norm) PolicyResult[F] {
	t.Helper()
	p, err := NewPolicy[F](c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	r, err := p.Step(b, n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// everyObjective names every loss with every aggregation, and every KL estimator once.
func everyObjective() (all []PolicyConfig) {
	for _, loss := range PolicyLossNames() {
		for _, agg := range AggNames() {
			all = append(all, PolicyConfig{Loss: loss, Agg: agg, ClipLow: .2, ClipHigh: .3,
				ClipC: 3, TauPos: 1, TauNeg: 1.05})
		}
	}
	for i, kl := range KLNames() {
		c := all[(i*7)%len(all)]
		c.KLType, c.KLCoef, c.EntropyCoef = kl, .3, .05
		all = append(all, c)
	}
	return all
}

func (c PolicyConfig) label() string {
	return fmt.Sprintf("%s/%s/%s", c.Loss, c.Agg, c.KLType)
}

// Every objective against loops of its own and against central differences of
// those loops, with stop gradients held fixed.
func TestObjectivesAgainstDifferences(t *testing.T) {
	for k, c := range everyObjective() {
		t.Run(c.label(), func(t *testing.T) {
			b := hardBatch(uint64(k), 12, 5, c.Loss != "geo_mean" && c.Loss != "gspo")
			if k%2 == 0 {
				b.RolloutWeight = nil
			}
			n := normOf(b)
			r := step(t, c, b, n)
			if err := golden64.differ("loss", []float64{r.Loss},
				[]float64{oracleLoss(c, b, n, b.Logp, b.Logp)}); err != nil {
				t.Fatal(err)
			}
			parts := r.PGLoss + c.KLCoef*r.KLLoss - c.EntropyCoef*r.EntropyLoss
			if !golden64.ok(parts, r.Loss) {
				t.Errorf("parts add up to %g, loss is %g", parts, r.Loss)
			}
			moving := 0
			for i := range b.Logp {
				x := slices.Clone(b.Logp)
				const h = 1e-5
				x[i] = b.Logp[i] + h
				up := oracleLoss(c, b, n, x, b.Logp)
				x[i] = b.Logp[i] - h
				want := (up - oracleLoss(c, b, n, x, b.Logp)) / (2 * h)
				// Two errors of differences: h^2 times the gradient, and rounding/h.
				if tol := 1e-7*math.Abs(want) +
					1e-10*(1+math.Abs(up)); math.Abs(r.DLogp[i]-want) > tol {
					t.Errorf("row %d token %d: gradient %.12g, differences %.12g", i/b.T, i%b.T,
						r.DLogp[i], want)
				}
				if want != 0 {
					moving++
				}
				if b.Mask[i] == 0 && r.DLogp[i] != 0 {
					t.Errorf("row %d token %d is masked and has gradient %g", i/b.T, i%b.T,
						r.DLogp[i])
				}
			}
			if moving == 0 {
				t.Error("no gradient anywhere: the check checked nothing")
			}
			if c.EntropyCoef != 0 {
				var sum float64
				for i, g := range r.DEntropy {
					sum += g * b.Entropy[i]
				}
				if !golden64.ok(sum, -c.EntropyCoef*r.EntropyLoss) {
					t.Errorf("entropy gradient times entropy is %g, the term is %g", sum,
						-c.EntropyCoef*r.EntropyLoss)
				}
			}
		})
	}
}

// doc/algorithms.md, "Aggregation": the result does not depend on how rows are packed. The
// averaging of micro-batch means, which the reference does, does depend on it.
func TestPackingDoesNotMatter(t *testing.T) {
	t.Parallel()
	packings := [][][]int{
		{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}},
		{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}},
		{{11, 3, 7}, {0, 10}, {1, 2, 4, 5, 6, 8, 9}},
	}
	for k, c := range everyObjective() {
		if testing.Short() && k%3 != 0 {
			continue
		}
		t.Run(c.label(), func(t *testing.T) {
			b := hardBatch(uint64(k), 12, 5, false)
			n := normOf(b)
			p, err := NewPolicy[float64](c)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			want := step(t, c, b, n)
			for _, packing := range packings {
				var sum PolicyStats
				grad := make([]float64, len(b.Logp))
				var meanOfMeans float64
				for _, rows := range packing {
					micro := rowsOf(b, rows)
					r, err := p.Step(micro, n)
					if err != nil {
						t.Fatal(err)
					}
					sum = sum.Add(r.PolicyStats)
					for i, row := range rows {
						copy(grad[row*b.T:(row+1)*b.T], r.DLogp[i*b.T:(i+1)*b.T])
					}
					if own := normOf(micro); own.Tokens > 0 {
						alone, err := p.Step(micro, own)
						if err != nil {
							t.Fatal(err)
						}
						meanOfMeans += alone.Loss / float64(len(packing))
					}
				}
				fields := func(s PolicyStats) []float64 {
					return []float64{s.Loss, s.PGLoss, s.KLLoss, s.EntropyLoss, s.TokenSum,
						s.SeqSum, s.ClipSum, s.ClipLowerSum, s.SeqClipped, s.PPOKLSum, s.RatioMin,
						s.RatioMax}
				}
				if err := golden64.differ("stats", fields(sum),
					fields(want.PolicyStats)); err != nil {
					t.Error(err)
				}
				if !slices.Equal(grad, want.DLogp) {
					t.Error("gradient bits depend on the packing")
				}
				if len(packing) == 3 && math.Abs(meanOfMeans-want.Loss) < 1e-6*math.Abs(want.Loss) {
					t.Errorf("mean of micro-batch means %g equals the loss %g: the rows are too alike to show anything", meanOfMeans, want.Loss)
				}
			}
		})
	}
}

// What stands under a zero mask changes no bit of anything, NaN and infinity
// included, nor does a padded row or column.
func TestMaskedEntriesAreInert(t *testing.T) {
	for k, c := range everyObjective() {
		t.Run(c.label(), func(t *testing.T) {
			b := hardBatch(uint64(k), 12, 5, false)
			n := normOf(b)
			want := step(t, c, b, n)
			dirty := hardBatch(uint64(k), 12, 5, false)
			for i, m := range dirty.Mask {
				if m == 0 {
					bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300}[i%4]
					for _, x := range [][]float64{dirty.Logp, dirty.Old, dirty.Ref, dirty.Adv,
						dirty.Entropy, dirty.RolloutWeight} {
						x[i] = bad
					}
				}
			}
			got := step(t, c, dirty, n)
			if got.PolicyStats != want.PolicyStats || !slices.Equal(got.DLogp, want.DLogp) {
				t.Errorf("masked entries matter: %+v, want %+v", got.PolicyStats, want.PolicyStats)
			}
			wider := PolicyBatch[float64]{B: b.B + 2, T: b.T + 3}
			pad := func(x []float64) []float64 {
				y := make([]float64, wider.B*wider.T)
				for row := range b.B {
					copy(y[row*wider.T:], x[row*b.T:(row+1)*b.T])
				}
				return y
			}
			wider.Logp, wider.Old, wider.Ref, wider.Mask =
				pad(b.Logp), pad(b.Old), pad(b.Ref), pad(b.Mask)
			wider.Adv, wider.Entropy, wider.RolloutWeight =
				pad(b.Adv), pad(b.Entropy), pad(b.RolloutWeight)
			wider.Turns = append(slices.Clone(b.Turns), 0, 0)
			padded := step(t, c, wider, n)
			if padded.Loss != want.Loss || !slices.Equal(padded.DLogp, pad(want.DLogp)) {
				t.Errorf("padding matters: loss %g, want %g", padded.Loss, want.Loss)
			}
		})
	}
}

// A NaN on a response token stops the step; it never becomes a gradient.
func TestNotFiniteIsRefused(t *testing.T) {
	p, err := NewPolicy[float32](PolicyConfig{Loss: "vanilla", KLCoef: .1, EntropyCoef: .1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	clean := func() PolicyBatch[float32] {
		b := hardBatch(3, 6, 4, false)
		return PolicyBatch[float32]{b.B, b.T, as[float32](b.Logp), as[float32](b.Old),
			as[float32](b.Ref), nil, as[float32](b.Mask), as[float32](b.Adv),
			as[float32](b.Entropy),
			as[float32](b.RolloutWeight), nil, nil}
	}
	at := slices.Index(clean().Mask, 1)
	for name, field := range map[string]func(*PolicyBatch[float32]) []float32{
		"logp":    func(b *PolicyBatch[float32]) []float32 { return b.Logp },
		"old":     func(b *PolicyBatch[float32]) []float32 { return b.Old },
		"ref":     func(b *PolicyBatch[float32]) []float32 { return b.Ref },
		"adv":     func(b *PolicyBatch[float32]) []float32 { return b.Adv },
		"entropy": func(b *PolicyBatch[float32]) []float32 { return b.Entropy },
		"weight":  func(b *PolicyBatch[float32]) []float32 { return b.RolloutWeight },
	} {
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			b := clean()
			field(&b)[at] = float32(v)
			r, err := p.Step(b, normOf(b))
			if !errors.Is(err, ErrNotFinite) || r.DLogp != nil ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("%s = %g: gradient %v, error %v", name, v, r.DLogp, err)
			}
		}
	}
	// An overflow inside the objective is found in the result: k2 of 1e30 in float32.
	square, err := NewPolicy[float32](PolicyConfig{Loss: "gpg", KLCoef: 1, KLType: "k2"})
	if err != nil {
		t.Fatal(err)
	}
	defer square.Close()
	b := clean()
	b.Ref[at] = 1e30
	if _, err := square.Step(b, normOf(b)); !errors.Is(err, ErrNotFinite) {
		t.Errorf("overflow: %v", err)
	}
	if _, err := p.Step(clean(), normOf(clean())); err != nil {
		t.Errorf("a clean batch after refused ones: %v", err)
	}
}

// Repeated runs give the same bits, whatever ran in between.
func TestRepeatedRunsGiveTheSameBits(t *testing.T) {
	p, err := NewPolicy[float64](PolicyConfig{KLCoef: .1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, other := hardBatch(1, 9, 6, false), hardBatch(2, 9, 6, false)
	var first PolicyResult[float64]
	for i := range 50 {
		r, err := p.Step(b, normOf(b))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = r
		}
		if r.PolicyStats != first.PolicyStats || !slices.Equal(r.DLogp, first.DLogp) {
			t.Fatalf("run %d differs from the first", i)
		}
		if _, err := p.Step(other, normOf(other)); err != nil {
			t.Fatal(err)
		}
	}
}

// doc/algorithms.md, "Policy losses": every response token carries gradient,
// and the better of two responses to one prompt is pushed up, the worse down.
func TestGradientReachesEveryResponseToken(t *testing.T) {
	adv, err := Advantages(AdvantageConfig{}, AdvantageInput{
		Scores: []float64{2, -1}, Group: []int{0, 0}, Mask: [][]float64{{1, 1, 1, 0}, {1, 1, 0, 0}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, loss := range []string{"gspo", "gspo_token", "vanilla", "dapo", "cispo", "sapo",
		"geo_mean", "gpg"} {
		b := PolicyBatch[float64]{B: 2, T: 4, Logp: make([]float64, 8), Old: make([]float64, 8),
			Mask: []float64{1, 1, 1, 0, 1, 1, 0, 0}, Adv: flat(adv)}
		r := step(t, PolicyConfig{Loss: loss}, b, normOf(b))
		for i, m := range b.Mask {
			want := 0. // descending the loss raises logp where the gradient is negative
			if m != 0 {
				want = []float64{-1, 1}[i/4]
			}
			if indicator(r.DLogp[i] > 0)-indicator(r.DLogp[i] < 0) != want {
				t.Errorf("%s: row %d token %d: gradient %g, want sign %g", loss, i/4, i%4,
					r.DLogp[i], want)
			}
		}
		changed := b
		changed.Logp = slices.Clone(b.Logp)
		changed.Logp[1] -= .01
		if step(t, PolicyConfig{Loss: loss}, changed, normOf(b)).Loss == r.Loss {
			t.Errorf("%s: changing a response token does not change the loss", loss)
		}
	}
}

func TestPolicyRefusals(t *testing.T) {
	for _, c := range []struct {
		c    PolicyConfig
		want error
		says string
	}{
		{PolicyConfig{Loss: "ppo2"}, ErrUnknownName, "vanilla"},
		{PolicyConfig{Agg: "mean"}, ErrUnknownName, "token-mean"},
		{PolicyConfig{KLType: "k4"}, ErrUnknownName, "low_var_kl"},
		{PolicyConfig{ClipLow: -.1}, ErrConfig, "clip_ratio_low = -0.1"},
		{PolicyConfig{ClipHigh: math.NaN()}, ErrConfig, "clip_ratio_high"},
		{PolicyConfig{ClipC: 1}, ErrConfig, "clip_ratio_c"},
		{PolicyConfig{KLCoef: -1}, ErrConfig, "kl_loss_coef"},
		{PolicyConfig{EntropyCoef: math.Inf(1)}, ErrConfig, "entropy"},
		{PolicyConfig{TauNeg: -1}, ErrConfig, "tau_neg"},
	} {
		if _, err := NewPolicy[float64](c.c); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.c, err)
		}
	}
	good := func() (PolicyBatch[float64], Norm) {
		b := hardBatch(1, 4, 3, false)
		return b,
			normOf(b)
	}
	for name, spoil := range map[string]func(*PolicyBatch[float64], *Norm){
		"short logp":      func(b *PolicyBatch[float64], _ *Norm) { b.Logp = b.Logp[1:] },
		"no old":          func(b *PolicyBatch[float64], _ *Norm) { b.Old = nil },
		"no ref":          func(b *PolicyBatch[float64], _ *Norm) { b.Ref = nil },
		"half mask":       func(b *PolicyBatch[float64], _ *Norm) { b.Mask[0] = .5 },
		"NaN mask":        func(b *PolicyBatch[float64], _ *Norm) { b.Mask[0] = math.NaN() },
		"no rows":         func(b *PolicyBatch[float64], _ *Norm) { b.B = 0 },
		"huge":            func(b *PolicyBatch[float64], _ *Norm) { b.B, b.T = math.MaxInt, 2 },
		"norm too small":  func(_ *PolicyBatch[float64], n *Norm) { n.Tokens-- },
		"norm of nothing": func(_ *PolicyBatch[float64], n *Norm) { *n = Norm{} },
		"short turns":     func(b *PolicyBatch[float64], _ *Norm) { b.Turns = b.Turns[1:] },
		"no turns":        func(b *PolicyBatch[float64], _ *Norm) { b.Turns[0] = 0 },
		"NaN turns":       func(b *PolicyBatch[float64], _ *Norm) { b.Turns[0] = math.NaN() },
		"short weights": func(b *PolicyBatch[float64],
			_ *Norm) {
			b.RolloutWeight = b.RolloutWeight[:2]
		},
	} {
		b, n := good()
		spoil(&b, &n)
		p, err := NewPolicy[float64](PolicyConfig{KLCoef: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Step(b, n); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	byTurns, err := NewPolicy[float64](PolicyConfig{Loss: "gpg", Agg: EpisodeMean})
	if err != nil {
		t.Fatal(err)
	}
	for _, episodes := range []float64{0, 1} {
		b, n := good()
		n.Episodes = episodes
		if _, err := byTurns.Step(b, n); !errors.Is(err, ErrShape) ||
			!strings.Contains(err.Error(), "count the whole mini-batch") {
			t.Errorf("%g episodes: %v", episodes, err)
		}
	}
	b, n := good()
	n.FixedLen = 0
	p, err := NewPolicy[float64](PolicyConfig{Loss: "vanilla", Agg: "seq-mean-token-sum-norm"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Step(b, n); !errors.Is(err, ErrShape) ||
		!strings.Contains(err.Error(), "fixed length") {
		t.Errorf("no fixed length: %v", err)
	}
}

// The bound on compiled programs forgets the oldest shape, not the results.
func TestCacheIsBounded(t *testing.T) {
	p, err := NewPolicy[float64](PolicyConfig{Loss: "gpg"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for T := 1; T <= cacheSize+3; T++ {
		b := PolicyBatch[float64]{B: 1, T: T, Logp: make([]float64, T), Mask: make([]float64, T),
			Adv: make([]float64, T)}
		for i := range T {
			b.Logp[i], b.Mask[i], b.Adv[i] = -1, 1, 2
		}
		for range 2 {
			r, err := p.Step(b, normOf(b))
			if err != nil || r.Loss != 2 {
				t.Fatalf("T %d: loss %g, %v", T, r.Loss, err)
			}
		}
	}
	if len(p.cached.byKey) != cacheSize || len(p.cached.order) != cacheSize {
		t.Errorf("%d programs kept, want %d", len(p.cached.byKey), cacheSize)
	}
}

// The defaults are part of what a configuration means: doc/algorithms.md, "Policy losses".
func TestPolicyDefaults(t *testing.T) {
	for loss, clip := range map[string][2]float64{
		"vanilla": {.2, .2}, "dapo": {.2, .28}, "gspo": {3e-4, 4e-4},
		"gspo_token": {3e-4, 4e-4},
		"cispo":      {.2, .2}, "sapo": {.2, .2}, "geo_mean": {.2, .2}, "gpg": {.2, .2},
		"sft": {.2, .2},
	} {
		p, err := NewPolicy[float32](PolicyConfig{Loss: loss})
		if err != nil {
			t.Fatal(err)
		}
		want := PolicyConfig{Loss: loss, ClipLow: clip[0], ClipHigh: clip[1], ClipC: 3, TauPos: 1,
			TauNeg: 1.05, Agg: "token-mean", KLType: "low_var_kl"}
		if p.Config() != want {
			t.Errorf("%s: %+v, want %+v", loss, p.Config(), want)
		}
	}
	if p, err := NewPolicy[float32](PolicyConfig{}); err != nil || p.Config().Loss != "gspo" {
		t.Errorf("default loss: %+v, %v", p, err)
	}
	d, err := NewDiscriminator[float32](DiscConfig{})
	if err != nil || d.Config() != (DiscConfig{Loss: "bt"}) {
		t.Errorf("discriminator: %+v, %v", d, err)
	}
}

// ppo_kl counts the log-ratio as the loss sees it: clamped to +-20 where the loss clamps.
func TestDriftIsClampedWhereTheLossClamps(t *testing.T) {
	b := PolicyBatch[float64]{B: 1, T: 2, Logp: []float64{-30, 0}, Old: []float64{-1, 0},
		Mask: []float64{1, 1}, Adv: []float64{1, 1}}
	for loss, want := range map[string]float64{"vanilla": 20, "dapo": 20, "cispo": 20,
		"sapo": 20, "gspo": 29, "gspo_token": 29, "geo_mean": 29, "gpg": 0, "sft": 0} {
		if got := step(t, PolicyConfig{Loss: loss}, b, normOf(b)).PPOKLSum; got != want {
			t.Errorf("%s: %g, want %g", loss, got, want)
		}
	}
}

// The exact KL enters the loss as it is given: KLLoss is its aggregate, and DKL the gradient of
// that times the coefficient, by differences of the loss, which is linear in it. No gradient of it
// reaches the log-probabilities.
func TestExactKL(t *testing.T) {
	for k, agg := range AggNames() {
		c := PolicyConfig{Loss: "gpg", Agg: agg, KLCoef: .3, KLType: KLFull}
		b := hardBatch(uint64(k), 7, 5, true)
		b.KL = make([]float64, len(b.Logp))
		for i := range b.KL {
			if b.KL[i] = float64(i%11) / 4; b.Mask[i] == 0 {
				b.KL[i] = math.NaN()
			}
		}
		n := normOf(b)
		got := step(t, c, b, n)
		without := step(t, PolicyConfig{Loss: "gpg", Agg: agg}, b, n)
		if without.DKL != nil || !slices.Equal(got.DLogp, without.DLogp) ||
			math.Abs(got.Loss-without.Loss-.3*got.KLLoss) > 1e-12 {
			t.Errorf("%s: loss %g, %g without KL, KL %g", agg, got.Loss, without.Loss, got.KLLoss)
		}
		sum := 0.0
		for i, m := range b.Mask {
			if m == 0 {
				if got.DKL[i] != 0 {
					t.Errorf("%s: gradient %g outside of the answers", agg, got.DKL[i])
				}
				continue
			}
			sum += got.DKL[i] * b.KL[i]
			up := b
			up.KL = slices.Clone(b.KL)
			up.KL[i]++
			if want := step(t, c, up, n).Loss - got.Loss; math.Abs(got.DKL[i]-want) > 1e-12 {
				t.Errorf("%s: token %d: gradient %g, difference %g", agg, i, got.DKL[i], want)
			}
		}
		if math.Abs(sum-.3*got.KLLoss) > 1e-12 || !(got.KLLoss > 0) {
			t.Errorf("%s: KL %g, by its gradient %g", agg, got.KLLoss, sum/.3)
		}
	}
	p, err := NewPolicy[float64](PolicyConfig{KLCoef: .1, KLType: KLFull})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b := hardBatch(1, 3, 4, false)
	b.RolloutWeight = nil
	if _, err := p.Step(b, normOf(b)); !errors.Is(err, ErrShape) {
		t.Errorf("no divergences: %v", err)
	}
	if _, _, _, err := SubtractKL(1, []float64{1}, [][]float64{{1}},
		[][]float64{{1, 1}}); !errors.Is(err, ErrShape) {
		t.Errorf("a mask of another length: %v", err)
	}
}

// KL's share of the loss by size, whatever the signs, and clipped rows of all.
func TestShares(t *testing.T) {
	s := PolicyStats{PGLoss: -1, KLLoss: -3, SeqClipped: 1, SeqSum: 4}
	near(t, "shares", tolerance{1e-8, 0}, []float64{s.KLShare(.5), s.KLShare(0),
		PolicyStats{}.KLShare(.5), s.SeqClipFrac()}, []float64{.6, 0, 0, .25})
}
