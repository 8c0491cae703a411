package actor

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"gad/algos"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/model"
)

var tiny = model.Config{Architecture: "Llama", Vocab: 48, Hidden: 16, Layers: 1, Heads: 2,
	KVHeads: 1, HeadDim: 8, FFN: 32,
	MaxPosition: 64, RMSEps: 1e-6, RopeTheta: 10000, DType: "float32"}

// spy keeps the gradients that the optimizer was given, by parameter, and can
// plant a value in one before it is looked at.
type spy struct {
	compute.Backend
	grads map[string][]float32
	plant float32
}

func (s *spy) AdamW(ps []*compute.Param, a compute.AdamW) {
	for _, p := range ps {
		s.grads[p.Name] = make([]float32, p.Len())
		s.Download(s.grads[p.Name], p.G)
	}
	s.Backend.AdamW(ps, a)
}

func (s *spy) SumSquares(ts []compute.Tensor) float64 {
	if s.plant != 0 {
		s.Upload(ts[1].Slice(0, 1), []float32{s.plant})
	}
	return s.Backend.SumSquares(ts)
}

// student is an actor over random weights and its spy.
func student(t *testing.T, edit func(*Config)) (*Actor, *spy) {
	t.Helper()
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &spy{Backend: be, grads: map[string][]float32{}}
	m, err := model.New(s, tiny, model.Options{Kind: model.LM, Trainable: true, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	cfg, roll := DefaultConfig(), DefaultRollout()
	cfg.Optim.LR, cfg.UseKLLoss, cfg.GradClip, cfg.PPOMiniBatch, roll.N, roll.Temperature =
		1e-3, false, 0, 2, 4, 1
	if edit != nil {
		edit(&cfg)
	}
	a, err := New(m, cfg, roll, 10, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); be.Close() })
	return a, s
}

var prompts = [][]int32{{5, 6, 7, 8}, {9, 10, 11}}

// rolled is a rollout of the two prompts with old log-probabilities.
func rolled(t *testing.T, a *Actor) Rollout {
	t.Helper()
	r, err := a.Rollout(context.Background(), prompts, []int32{1, 2},
		Key{Seed: 1, Step: 2, Rows: []int{4, 7}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RecomputeOld(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// with gives the sequences their advantages.
func with(r Rollout, advST [][]float64) Rollout {
	r.SetAdv(advST)
	return r
}

// spread gives every token of response s the advantage adv[s].
func spread(r Rollout, adv func(s, t int) float64) [][]float64 {
	mask := r.Mask()
	for s, row := range mask {
		for t := range row {
			row[t] *= adv(s, t)
		}
	}
	return mask
}

func winnersAndLosers(s, _ int) float64 { return float64(1 - 2*(s%2)) }

func logps(t *testing.T, a *Actor, seqs []model.Seq) []float64 {
	t.Helper()
	rows, _, err := a.m.AllLogProbs(seqs, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(rows))
	for s, row := range rows {
		for _, x := range row {
			out[s] += float64(x)
		}
	}
	return out
}

// distance is the largest difference of two gradients by the largest size.
func distance(t *testing.T, a, b map[string][]float32, sign float32) float64 {
	t.Helper()
	var diff, size float64
	for name, x := range a {
		for i, v := range x {
			diff = max(diff, math.Abs(float64(v-sign*b[name][i])))
			size = max(size, math.Abs(float64(v)))
		}
	}
	if size == 0 {
		t.Fatal("the gradient is zero")
	}
	return diff / size
}

// The sampler's log-probabilities are the trainer's to the bit, and the first
// ratio of an update is exactly 1 (doc/reliability.md, row 7).
func TestFirstRatioIsOne(t *testing.T) {
	a, _ := student(t, nil)
	r := rolled(t, a)
	for s := range r {
		if !slices.Equal(r[s].Sampled, r[s].Old) {
			t.Errorf("sequence %d: sampled with %v, trained with %v", s, r[s].Sampled, r[s].Old)
		}
	}
	st, err := a.Update(with(r, spread(r, winnersAndLosers)))
	if err != nil {
		t.Fatal(err)
	}
	if st.FirstRatioMin != 1 || st.FirstRatioMax != 1 {
		t.Errorf("first ratios from %v to %v, want exactly 1", st.FirstRatioMin, st.FirstRatioMax)
	}
	if st.Updates != 1 || st.Skipped != 0 {
		t.Errorf("%d updates, %d skipped, want 1 and 0", st.Updates, st.Skipped)
	}
}

// Responses of one group with advantages of opposite sign are learned in
// opposite directions: one becomes more probable, the other less, and a change
// of sign turns the whole gradient round.
func TestSignsOfAdvantages(t *testing.T) {
	for _, loss := range []string{"gspo", "vanilla", "gpg", "cispo"} {
		t.Run(loss, func(t *testing.T) {
			var grads [2]map[string][]float32
			for k, sign := range []float64{1, -1} {
				a, spy := student(t, func(c *Config) { c.PolicyLoss.LossMode = loss })
				r := rolled(t, a)
				r = r[:2] // two answers to the first prompt
				before := logps(t, a, r.Seqs())
				if _, err := a.Update(with(r, spread(r, func(s, _ int) float64 {
					return sign * winnersAndLosers(s, 0)
				}))); err != nil {
					t.Fatal(err)
				}
				after := logps(t, a, r.Seqs())
				for s := range after {
					if up := after[s] > before[s]; up != (sign*winnersAndLosers(s, 0) > 0) {
						t.Errorf("sign %g: response %d goes from %g to %g", sign, s, before[s],
							after[s])
					}
				}
				grads[k] = spy.grads
			}
			if d := distance(t, grads[0], grads[1], -1); d > 1e-6 {
				t.Errorf("the gradient of the opposite advantages differs from the opposite gradient by %g", d)
			}
		})
	}
}

// What is learned depends on the response and on the prompt, token by token (a
// loss on the prompt alone was seen elsewhere: doc/algorithms.md, "Policy losses").
func TestLearnsFromTheResponse(t *testing.T) {
	base := model.Answer([]int32{5, 6, 7, 20, 21, 22, 1}, 3)
	learn := func(seq model.Seq, adv []float64) (float64, map[string][]float32) {
		a, spy := student(t, func(c *Config) { c.PolicyLoss.LossMode = "gpg" })
		if adv == nil {
			st, err := a.SFT([]model.Seq{seq})
			if err != nil {
				t.Fatal(err)
			}
			return st.Loss, spy.grads
		}
		r := Rollout{{Seq: seq}}
		if err := a.RecomputeOld(r); err != nil {
			t.Fatal(err)
		}
		r[0].Sampled = r[0].Old
		st, err := a.Update(with(r, [][]float64{adv}))
		if err != nil {
			t.Fatal(err)
		}
		return st.Loss, spy.grads
	}
	all, first, second := []float64{1, 1, 1, 1}, []float64{1, 0, 0, 0}, []float64{0, 1, 0, 0}
	for _, adv := range [][]float64{nil, all} {
		loss, grad := learn(base, adv)
		for i := range base.IDs {
			other := model.Answer(slices.Clone(base.IDs), 3)
			other.IDs[i] = 30
			l, g := learn(other, adv)
			if l == loss {
				t.Errorf("loss is the same (%g) when token %d is another one", l, i)
			}
			if distance(t, grad, g, 1) < 1e-3 {
				t.Errorf("gradient is the same when token %d is another one", i)
			}
		}
	}
	_, g1 := learn(base, first)
	_, g2 := learn(base, second)
	if distance(t, g1, g2, 1) < 1e-2 {
		t.Error("the gradient does not depend on which response token has the advantage")
	}
	changed := model.Answer([]int32{5, 6, 7, 20, 21, 30, 1}, 3)
	if _, g := learn(changed, first); distance(t, g1, g, 1) > 1e-6 {
		t.Error("the gradient of the first response token depends on later tokens")
	}
}

// How sequences are packed into micro-batches changes loss and gradient by
// rounding alone, whatever the aggregation (doc/algorithms.md, "Aggregation").
func TestMicroBatchesDoNotMatter(t *testing.T) {
	for _, agg := range algos.AggNames() {
		t.Run(agg, func(t *testing.T) {
			var losses []float64
			var grads []map[string][]float32
			for _, tokens := range []int{1, 30, 4096} {
				a, spy := student(t, func(c *Config) {
					c.PolicyLoss.LossMode, c.LossAggMode, c.MaxTokenLen, c.EntropyCoeff =
						"vanilla", agg, tokens, 0.01
				})
				r := acted(t, a)
				st, err := a.Update(with(r, spread(r, winnersAndLosers)))
				if err != nil {
					t.Fatal(err)
				}
				losses, grads = append(losses, st.Loss), append(grads, spy.grads)
			}
			for k := range losses[1:] {
				if math.Abs(losses[k+1]-losses[0]) > 1e-6*math.Max(1, math.Abs(losses[0])) {
					t.Errorf("losses %v differ with the size of the micro-batches", losses)
				}
				if d := distance(t, grads[0], grads[k+1], 1); d > 1e-5 {
					t.Errorf("gradients differ by %g with the size of the micro-batches", d)
				}
			}
		})
	}
}

// A number that is not finite reaches neither weights nor moments nor the count
// of steps (doc/reliability.md, row 9), wherever it comes from.
func TestNotFiniteIsSkipped(t *testing.T) {
	nan := float32(math.NaN())
	for name, plant := range map[string]func(*spy, Rollout, [][]float64){
		"gradient NaN": func(s *spy, _ Rollout, _ [][]float64) { s.plant = nan },
		"gradient Inf": func(s *spy, _ Rollout,
			_ [][]float64) {
			s.plant = float32(math.Inf(-1))
		},
		"advantage":           func(_ *spy, _ Rollout, adv [][]float64) { adv[1][0] = math.NaN() },
		"old log-probability": func(_ *spy, r Rollout, _ [][]float64) { r[2].Old[0] = nan },
	} {
		t.Run(name, func(t *testing.T) {
			a, spy := student(t, nil)
			r := rolled(t, a)
			adv := spread(r, winnersAndLosers)
			if _, err := a.Update(with(r, adv)); err != nil { // moments that are not zero
				t.Fatal(err)
			}
			before, steps := state(t, a, spy), a.opt.Steps()
			plant(spy, r, adv)
			st, err := a.Update(with(r, adv))
			if err != nil {
				t.Fatal(err)
			}
			if st.Skipped != 1 || st.Updates != 0 {
				t.Errorf("%d updates, %d skipped, want 0 and 1", st.Updates, st.Skipped)
			}
			if a.opt.Steps() != steps || !slices.Equal(state(t, a, spy), before) {
				t.Error("weights, moments or the count of steps have changed")
			}
			spy.plant = 0
			clean := rolled(t, a)
			if st, err := a.Update(with(clean, spread(clean, winnersAndLosers))); err != nil ||
				st.Updates != 1 {
				t.Errorf("after it: %d updates, %v: want the next step to be taken", st.Updates,
					err)
			}
			for name, g := range spy.grads {
				for _, x := range g {
					if x-x != 0 {
						t.Fatalf("%s: what was skipped is in the next gradient", name)
					}
				}
			}
		})
	}
}

// state is weights and moments, as bits.
func state(t *testing.T, a *Actor, be compute.Backend) (bits []uint32) {
	t.Helper()
	for _, p := range a.m.Params() {
		for _, x := range []compute.Tensor{p.W, p.M, p.V} {
			v := make([]float32, p.Len())
			be.Download(v, x)
			for _, f := range v {
				bits = append(bits, math.Float32bits(f))
			}
		}
	}
	return bits
}

// Answers are functions of weights, prompt, seed, step, row and sample: not of
// the other prompts or of how many are sampled side by side.
func TestRolloutIsKeyed(t *testing.T) {
	a, _ := student(t, nil)
	roll := func(slots int, prompts [][]int32, k Key) Rollout {
		a.roll.MaxNumSeqs = slots
		r, err := a.Rollout(context.Background(), prompts, []int32{1, 2}, k, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	key := Key{Seed: 1, Step: 2, Rows: []int{4, 7}}
	base := roll(64, prompts, key)
	for _, slots := range []int{1, 3} {
		r := roll(slots, prompts, key)
		for s := range r {
			if !slices.Equal(r[s].Seq.IDs, base[s].Seq.IDs) ||
				!slices.Equal(r[s].Sampled, base[s].Sampled) {
				t.Errorf("%d slots: sequence %d differs", slots, s)
			}
		}
	}
	alone := roll(64, prompts[1:], Key{Seed: 1, Step: 2, Rows: []int{7}})
	for s := range alone {
		if !slices.Equal(alone[s].Seq.IDs, base[4+s].Seq.IDs) {
			t.Errorf("sampled alone: sequence %d differs", s)
		}
	}
	for name, k := range map[string]Key{"seed": {2, 2, key.Rows}, "step": {1, 3, key.Rows},
		"rows": {1, 2, []int{5, 8}}} {
		equal := 0
		for s, seq := range roll(64, prompts, k).Seqs() {
			if slices.Equal(seq.IDs, base[s].Seq.IDs) {
				equal++
			}
		}
		if equal == len(base) {
			t.Errorf("another %s gives the same answers", name)
		}
	}
	if slices.Equal(base[0].Seq.IDs, base[1].Seq.IDs) &&
		slices.Equal(base[1].Seq.IDs, base[2].Seq.IDs) {
		t.Error("the answers to one prompt are all the same")
	}
}

func TestUpdatesOfABatch(t *testing.T) {
	for _, c := range []struct{ mini, epochs, batch, want int }{{0, 1, 256, 4}, {0, 2, 8, 8},
		{0, 1, 1, 1}, {3, 1, 8, 3}, {16, 2, 8, 2}} {
		cfg := Config{PPOMiniBatch: c.mini, PPOEpochs: c.epochs}
		if got := cfg.Updates(c.batch); got != c.want {
			t.Errorf("mini-batch %d, %d epochs, batch %d: %d updates, want %d", c.mini, c.epochs,
				c.batch, got, c.want)
		}
	}
	a, _ := student(t, func(c *Config) { c.PPOMiniBatch, c.PPOEpochs = 1, 3 })
	r := rolled(t, a)
	st, err := a.Update(with(r, spread(r, winnersAndLosers)))
	if err != nil {
		t.Fatal(err)
	}
	if want := a.cfg.Updates(len(prompts)); st.Updates != want || st.Passes != want {
		t.Errorf("%d updates in %d passes, want %d", st.Updates, st.Passes, want)
	}
}

// The learning rate rises from the first optimizer step on: that step is not
// lost to a rate of 0. It counts from where the stage began.
func TestLearningRateWarmsUp(t *testing.T) {
	a, _ := student(t, func(c *Config) { c.Optim.WarmupSteps, c.PPOMiniBatch = 4, 1 })
	r := rolled(t, a)
	var got []float64
	for range 3 {
		st, err := a.Update(with(r, spread(r, winnersAndLosers)))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, st.LR) // of the second of two optimizer steps
	}
	if want := []float64{0.5e-3, 1e-3, 1e-3}; !slices.Equal(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
	a.opt.ScheduleFrom(a.opt.Steps())
	if st, err := a.Update(with(r, spread(r, winnersAndLosers))); err != nil || st.LR != 0.5e-3 {
		t.Errorf("a new stage's rate is %g, %v, want 0.0005", st.LR, err)
	}
}

// Rows and columns are padded to few shapes, and by little.
func TestRoundUp(t *testing.T) {
	shapes := map[int]bool{}
	for n := 1; n <= 4096; n++ {
		r := roundUp(n)
		if r < n || r >= 2*n || 2*r >= 3*n && n > 8 {
			t.Fatalf("roundUp(%d) = %d", n, r)
		}
		shapes[r] = true
	}
	if len(shapes) > 30 {
		t.Errorf("%d shapes up to 4096", len(shapes))
	}
}

// The first mini-batch needs no old log-probabilities: its own forward pass gives them, with the
// same bits. A later one does.
func TestFirstMiniBatchIsItsOwnDenominator(t *testing.T) {
	update := func(edit func(r Rollout)) (*Actor, *spy, Stats, error) {
		a, spy := student(t, func(c *Config) { c.PPOMiniBatch = 1 })
		r := rolled(t, a)
		edit(r)
		st, err := a.Update(with(r, spread(r, winnersAndLosers)))
		return a, spy, st, err
	}
	without := func(group int) func(Rollout) {
		return func(r Rollout) {
			for _, s := range r {
				if s.Group == group {
					s.Old = nil
				}
			}
		}
	}
	a, sa, want, err := update(func(Rollout) {})
	if err != nil {
		t.Fatal(err)
	}
	b, sb, got, err := update(without(0))
	if err != nil {
		t.Fatal(err)
	}
	if got != want || got.FirstRatioMax != 1 || got.RatioMax == 1 {
		t.Errorf("without the first mini-batch's: %+v, with them %+v", got, want)
	}
	x, y := make([]float32, 1), make([]float32, 1)
	for i, p := range a.m.Params() {
		x, y = slices.Grow(x[:0], p.Len())[:p.Len()], slices.Grow(y[:0], p.Len())[:p.Len()]
		sa.Download(x, p.W)
		sb.Download(y, b.m.Params()[i].W)
		if !slices.Equal(x, y) {
			t.Errorf("%s: other weights without the first mini-batch's", p.Name)
		}
	}
	if _, _, _, err := update(without(1)); !errors.Is(err, algos.ErrShape) {
		t.Errorf("without the second mini-batch's: %v, want an error", err)
	}
}
