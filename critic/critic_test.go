package critic

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/model"
)

var tiny = model.Config{Architecture: "Llama", Vocab: 48, Hidden: 16, Layers: 1, Heads: 2,
	KVHeads: 1, HeadDim: 8, FFN: 32,
	MaxPosition: 64, RMSEps: 1e-6, RopeTheta: 10000, DType: "float32"}

// spy counts the sequences that are scored and keeps the gradients that the
// optimizer was given.
type spy struct {
	compute.Backend
	scored int
	grads  map[string][]float32
	plant  float32
}

func (s *spy) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	s.scored += len(rows)
	s.Backend.Score(sR, hND, w, rows)
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

func newCritic(t *testing.T, edit func(*Config)) (*Critic, *spy) {
	t.Helper()
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &spy{Backend: be, grads: map[string][]float32{}}
	cfg := DefaultConfig()
	cfg.Optim.LR, cfg.GradClip, cfg.ScoreInit = 1e-3, 0, 0.5
	if edit != nil {
		edit(&cfg)
	}
	m, err := model.New(s, tiny,
		model.Options{Kind: cfg.Kind(), Trainable: true, Seed: 3, ScoreInit: cfg.ScoreInit})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(m, cfg, 10*cfg.Updates(2), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); be.Close() })
	return c, s
}

func seq(ids ...int32) model.Seq { return model.Answer(ids, 2) }

// batch is two prompts with three answers each.
func batch() Batch {
	return Batch{
		Students: []model.Seq{seq(5, 6, 10, 1), seq(5, 6, 11, 12, 1), seq(5, 6, 13, 1),
			seq(7, 8, 14, 1), seq(7, 8, 15, 16, 17, 1), seq(7, 8, 18, 1)},
		Group:    []int{0, 0, 0, 1, 1, 1},
		Teachers: []model.Seq{seq(5, 6, 30, 31, 1), seq(7, 8, 32, 1)},
		Skip:     make([]bool, 6),
	}
}

// gathered is the mini-batch of two prompts.
func gathered(t *testing.T, c *Critic, b Batch, present *scores) *pairSet {
	t.Helper()
	set, err := c.gather(b, 0, 2, 0, present)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func fresh(t *testing.T, c *Critic, b *Batch) {
	t.Helper()
	var err error
	if b.ScoreS, err = c.Score(b.Students); err != nil {
		t.Fatal(err)
	}
	if b.ScoreP, err = c.Score(b.Teachers); err != nil {
		t.Fatal(err)
	}
}

func update(t *testing.T, c *Critic, b Batch) Stats {
	t.Helper()
	st, err := c.Update(b)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func distance(t *testing.T, a, b map[string][]float32) float64 {
	t.Helper()
	var diff, size float64
	for name, x := range a {
		for i, v := range x {
			diff = max(diff, math.Abs(float64(v-b[name][i])))
			size = max(size, math.Abs(float64(v)))
		}
	}
	if size == 0 {
		t.Fatal("the gradient is zero")
	}
	return diff / size
}

// Loss and accuracy are those of the Bradley-Terry objective under the weights
// before the update (doc/algorithms.md, "Discriminator"); the teacher is scored once for all
// its pairs, and learned from once.
func TestUpdateIsBradleyTerry(t *testing.T) {
	c, spy := newCritic(t, nil)
	b := batch()
	fresh(t, c, &b)
	if spy.scored != 8 {
		t.Errorf("%d sequences scored for 6 answers and 2 teachers", spy.scored)
	}
	var loss, acc float64
	for s, g := range b.Group {
		d := float64(b.ScoreS[s]) - float64(b.ScoreP[g])
		loss += math.Log1p(math.Exp(d)) / 6
		if d < 0 {
			acc += 1.0 / 6
		}
	}
	got := b.Signal().Acc
	spy.scored = 0
	st := update(t, c, b)
	if spy.scored != 8 {
		t.Errorf("the update ran %d sequences forward, want 8: each once", spy.scored)
	}
	if math.Abs(st.Loss-loss) > 1e-6 || math.Abs(st.Acc-acc) > 1e-6 || math.Abs(got-acc) > 1e-12 {
		t.Errorf("loss %g, d_acc %g, fresh %g: want %g, %g", st.Loss, st.Acc, got, loss, acc)
	}
	after := batch()
	fresh(t, c, &after)
	if st2 := update(t, c, after); st2.Loss >= st.Loss {
		t.Errorf("loss goes from %g to %g: does not learn", st.Loss, st2.Loss)
	}
}

// The gradient of a batch is the sum over its pairs, each divided by their
// number: so a teacher's gradient collects from all its pairs.
func TestGradientIsTheSumOverPairs(t *testing.T) {
	c, spy := newCritic(t, nil)
	b := batch()
	fresh(t, c, &b)
	update(t, c, b)
	whole := spy.grads
	sum := map[string][]float32{}
	for s := range b.Students {
		c, spy := newCritic(t, nil)
		one := Batch{Students: b.Students[s : s+1], Group: []int{0},
			Teachers: []model.Seq{b.Teachers[b.Group[s]]}, Skip: []bool{false}}
		fresh(t, c, &one)
		update(t, c, one)
		for name, g := range spy.grads {
			if sum[name] == nil {
				sum[name] = make([]float32, len(g))
			}
			for i, x := range g {
				sum[name][i] += x / float32(len(b.Students))
			}
		}
	}
	if d := distance(t, whole, sum); d > 1e-5 {
		t.Errorf("gradient of the batch and mean over its pairs differ by %g", d)
	}
}

// Scores and loss depend on the response and on the prompt.
func TestScoresReadTheWholeSequence(t *testing.T) {
	c, _ := newCritic(t, nil)
	base := seq(5, 6, 10, 11, 1)
	want, err := c.Score([]model.Seq{base})
	if err != nil {
		t.Fatal(err)
	}
	for i := range base.IDs {
		other := seq(slices.Clone(base.IDs)...)
		other.IDs[i] = 40
		got, err := c.Score([]model.Seq{other})
		if err != nil {
			t.Fatal(err)
		}
		if got[0] == want[0] {
			t.Errorf("the score is the same when token %d is another one", i)
		}
		b := Batch{Students: []model.Seq{other}, Group: []int{0},
			Teachers: []model.Seq{seq(5, 6, 30, 1)}, Skip: []bool{false}}
		cb, _ := newCritic(t, nil)
		was := b
		was.Students = []model.Seq{base}
		fresh(t, cb, &was)
		fresh(t, cb, &b)
		cw, _ := newCritic(t, nil)
		if update(t, cb, b).Loss == update(t, cw, was).Loss {
			t.Errorf("the loss is the same when token %d of the answer is another one", i)
		}
	}
}

// The size of the micro-batches changes no bit of a score, and the gradient by
// rounding alone; score clip, replay and mini-batches included.
func TestMicroBatchesDoNotMatter(t *testing.T) {
	var scores [][]float32
	var grads []map[string][]float32
	var losses []float64
	for _, tokens := range []int{1, 11, 4096} {
		c, spy := newCritic(t, func(c *Config) { c.MaxTokenLen, c.ScoreL2 = tokens, 0.01 })
		b := batch()
		fresh(t, c, &b)
		st := update(t, c, b)
		scores, grads, losses =
			append(scores, append(b.ScoreS, b.ScoreP...)), append(grads, spy.grads),
			append(losses, st.Loss)
	}
	for k := 1; k < 3; k++ {
		if !slices.Equal(scores[k], scores[0]) {
			t.Errorf("scores differ: %v and %v", scores[0], scores[k])
		}
		if losses[k] != losses[0] {
			t.Errorf("losses differ: %v", losses)
		}
		if d := distance(t, grads[0], grads[k]); d > 1e-5 {
			t.Errorf("gradients differ by %g", d)
		}
	}
}

// Skipped sequences are no pairs; a batch without pairs changes nothing.
func TestSkippedPairs(t *testing.T) {
	c, spy := newCritic(t, nil)
	b := batch()
	b.Skip = []bool{false, true, true, true, true, true}
	fresh(t, c, &b)
	update(t, c, b)
	alone, spyAlone := newCritic(t, nil)
	one := Batch{Students: b.Students[:1], Group: []int{0}, Teachers: b.Teachers[:1],
		Skip: []bool{false}}
	fresh(t, alone, &one)
	update(t, alone, one)
	if d := distance(t, spy.grads, spyAlone.grads); d > 1e-6 {
		t.Errorf("skipped sequences change the gradient by %g", d)
	}
	for s := range b.Skip {
		b.Skip[s] = true
	}
	steps := c.Optimizer().Steps()
	st := update(t, c, b)
	if st.Updates != 0 || c.Optimizer().Steps() != steps {
		t.Error("a batch without pairs has taken a step")
	}
	if g := b.Signal(); g != (Signal{}) || b.Pairs() != 0 {
		t.Errorf("the signal of no pairs is %+v", g)
	}
}

// A number that is not finite reaches neither weights nor the count of steps.
func TestNotFiniteIsSkipped(t *testing.T) {
	for name, plant := range map[string]func(*spy, *Batch){
		"gradient": func(s *spy, _ *Batch) { s.plant = float32(math.Inf(1)) },
		"score":    func(_ *spy, b *Batch) { b.ScoreS[2] = float32(math.NaN()) },
	} {
		t.Run(name, func(t *testing.T) {
			c, spy := newCritic(t, nil)
			b := batch()
			fresh(t, c, &b)
			update(t, c, b)
			before, steps := bits(c, spy), c.Optimizer().Steps()
			b = batch()
			fresh(t, c, &b)
			plant(spy, &b)
			st := update(t, c, b)
			if st.Skipped != 1 || st.Updates != 0 || c.Optimizer().Steps() != steps {
				t.Errorf("%d updates, %d skipped, %d steps, want 0, 1, %d", st.Updates, st.Skipped,
					c.Optimizer().Steps(), steps)
			}
			if !slices.Equal(bits(c, spy), before) {
				t.Error("weights or moments have changed")
			}
		})
	}
	c, _ := newCritic(t, func(c *Config) { c.PPOMiniBatch = 1 })
	b := batch()
	fresh(t, c, &b)
	b.ScoreS[2] = float32(math.NaN())
	if st := update(t, c, b); st.Skipped != 1 || st.Updates != 1 {
		t.Errorf("%d updates and %d skipped, want the first of two skipped", st.Updates, st.Skipped)
	}
}

func bits(c *Critic, be compute.Backend) (out []uint32) {
	for _, p := range c.m.Params() {
		for _, x := range []compute.Tensor{p.W, p.M, p.V} {
			v := make([]float32, p.Len())
			be.Download(v, x)
			for _, f := range v {
				out = append(out, math.Float32bits(f))
			}
		}
	}
	return out
}

// Both paths end in one way: whatever ids end the answer, one end of turn
// stands there; what was cut has none (doc/algorithms.md, "Endings").
func TestEnding(t *testing.T) {
	e := Ending{EOS: []int32{1, 2}, Turn: 2}
	for name, c := range map[string]struct {
		response  []int32
		truncated bool
		want      []int32
	}{
		"end of turn":      {[]int32{9, 2}, false, []int32{9, 2}},
		"end of text":      {[]int32{9, 1}, false, []int32{9, 2}},
		"both":             {[]int32{9, 2, 1}, false, []int32{9, 2}},
		"none":             {[]int32{9}, false, []int32{9, 2}},
		"nothing":          {nil, false, []int32{2}},
		"cut":              {[]int32{9, 8}, true, []int32{9, 8}},
		"end inside stays": {[]int32{9, 1, 8, 1}, false, []int32{9, 1, 8, 2}},
	} {
		prompt := []int32{5, 2}
		got := e.Seq(prompt, c.response, c.truncated)
		if want := append([]int32{5, 2}, c.want...); !slices.Equal(got.IDs, want) ||
			got.Prompt() != 2 {
			t.Errorf("%s: %v, prompt of %d, want %v, 2", name, got.IDs, got.Prompt(), want)
		}
	}
	// Equal texts are equal sequences, on either path and whatever ended them.
	c, _ := newCritic(t, nil)
	scores, err := c.Score([]model.Seq{e.Seq([]int32{5, 6}, []int32{9, 1}, false),
		e.Seq([]int32{5, 6}, []int32{9, 2}, false)})
	if err != nil {
		t.Fatal(err)
	}
	if scores[0] != scores[1] {
		t.Errorf("one answer with two endings scores %g and %g", scores[0], scores[1])
	}
	turns := episode(5, []int32{1, 2}, []int32{9, 8}, []int32{9, 2, 1})
	for _, c := range []struct {
		open bool
		of   model.Seq
		want model.Seq
	}{
		{false, turns, episode(5, []int32{2}, []int32{9, 8}, []int32{9, 2})},
		{true, episode(5, []int32{9, 1}, []int32{9, 8}), episode(5, []int32{9, 2}, []int32{9, 8})},
		{false, episode(5, []int32{9, 8}), episode(5, []int32{9, 8, 2})},
	} {
		if got := e.Turns(c.of, c.open); !reflect.DeepEqual(got, c.want) {
			t.Errorf("turns %v, open %v: %v, want %v", c.of, c.open, got, c.want)
		}
	}
}

// The buffer keeps the last pairs and draws by key: the same for the same seed,
// step and update, another for another.
func TestReplayBuffer(t *testing.T) {
	r := &Buffer{Cap: 8}
	if got := r.Draw(3, 1, 0, 0); got != nil {
		t.Errorf("an empty buffer gives %v", got)
	}
	b := batch()
	b.Skip[1] = true
	r.Add(b)
	r.Add(b)
	if len(r.Pairs) != 8 || !slices.Equal(r.Pairs[7].Student.IDs, b.Students[5].IDs) ||
		!slices.Equal(r.Pairs[0].Student.IDs, b.Students[3].IDs) {
		t.Errorf("%d pairs, first %v, last %v: want the last 8 of 10", len(r.Pairs), r.Pairs[0],
			r.Pairs[len(r.Pairs)-1])
	}
	for _, p := range r.Pairs {
		if !slices.Equal(p.Student.IDs[:2], p.Teacher.IDs[:2]) {
			t.Errorf("pair of two prompts: %v", p)
		}
	}
	draw := func(seed uint64, step,
		update int) string {
		return fmt.Sprint(r.Draw(20, seed, step, update))
	}
	if draw(1, 2, 3) != draw(1, 2, 3) {
		t.Error("a draw is not a function of its key")
	}
	for _, other := range []string{draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)} {
		if other == draw(1, 2, 3) {
			t.Error("another key draws the same")
		}
	}

	ids, lens := r.Flat()
	back := Buffer{Pairs: r.Pairs[:1:1]}
	if err := back.SetFlat(ids, lens); err != nil || fmt.Sprint(back.Pairs) != fmt.Sprint(r.Pairs) {
		t.Errorf("read back: %v, %v", err, back.Pairs)
	}
	for name, bad := range map[string]func() ([]int32, []int32){
		"lengths":      func() ([]int32, []int32) { return ids, lens[:3] },
		"too few ids":  func() ([]int32, []int32) { return ids[:5], lens },
		"too many ids": func() ([]int32, []int32) { return append(slices.Clone(ids), 1), lens },
		"negative": func() ([]int32, []int32) {
			l := slices.Clone(lens)
			l[0] = -1
			return ids,
				l
		},
		"prompt": func() ([]int32,
			[]int32) {
			l := slices.Clone(lens)
			l[2] = l[0] + 1
			return ids, l
		},
	} {
		if err := new(Buffer).SetFlat(bad()); err == nil ||
			!strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v, want an error that says the checkpoint is damaged", name, err)
		}
	}
}

// A share of the prompts of an update gives way to pairs out of the pool: no more
// pairs than without one. What was learned from enters the pool afterwards.
func TestPoolReplacesAShare(t *testing.T) {
	c, spy := newCritic(t, func(c *Config) { c.Replay = Replay{Size: 100, Share: 0.5, Live: true} })
	b := batch()
	fresh(t, c, &b)
	if st := update(t, c, b); st.Pooled != 0 {
		t.Errorf("a share of %g out of an empty pool", st.Pooled)
	}
	if len(c.Replay.Pairs) != 6 {
		t.Fatalf("%d pairs in the pool, want 6", len(c.Replay.Pairs))
	}
	b = batch()
	b.Step = 1
	fresh(t, c, &b)
	spy.scored = 0
	st := update(t, c, b)
	if st.Pooled != 0.5 {
		t.Errorf("a share of %g out of the pool, want one prompt of two", st.Pooled)
	}
	// Of one prompt the three fresh answers and their teacher are learned from, already
	// scored; in the other's place stand three drawn pairs, of at most two teachers.
	if spy.scored < 4+4 || spy.scored > 4+5 {
		t.Errorf("%d sequences ran forward, want 8 or 9: each once", spy.scored)
	}
	if len(c.Replay.Pairs) != 12 {
		t.Errorf("%d pairs in the pool, want 12", len(c.Replay.Pairs))
	}

	// Off-policy: all of it out of the pool, which stays as it is.
	c.cfg.Replay = Replay{Size: 100, Share: 1}
	b = batch()
	b.Step = 2
	fresh(t, c, &b)
	if st := update(t, c, b); st.Pooled != 1 || len(c.Replay.Pairs) != 12 {
		t.Errorf("a share of %g out of a pool of %d, want all of it, and 12", st.Pooled,
			len(c.Replay.Pairs))
	}
}

// How many prompts give way is the share on average, whatever the mini-batch, and
// which ones is a function of the key.
func TestPoolShare(t *testing.T) {
	r := &Buffer{Cap: 1, Pairs: make([]Pair, 1)}
	for _, c := range []struct {
		prompts int
		share   float64
	}{{1, 0.25}, {3, 0.5}, {4, 0.25}, {32, 0.3}} {
		given, each := 0, make([]int, c.prompts)
		const updates = 4000
		for u := range updates {
			give := r.pickPooled(10, 10+c.prompts, c.share, 7, 3, u)
			given += len(give)
			for p := range give {
				each[p-10]++
			}
			if want := c.share * float64(c.prompts); math.Abs(float64(len(give))-want) >= 1 {
				t.Fatalf("%d of %d prompts give way at a share of %g", len(give), c.prompts,
					c.share)
			}
		}
		for p, n := range append(each, given) {
			want := c.share * updates
			if p == c.prompts {
				want *= float64(c.prompts)
			}
			if math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
				t.Errorf("%d prompts, share %g: prompt %d gave way %d times, want about %g",
					c.prompts, c.share, p, n, want)
			}
		}
	}
	if fmt.Sprint(r.pickPooled(0, 32, .5, 1, 2, 3)) != fmt.Sprint(r.pickPooled(0, 32, .5, 1, 2, 3)) {
		t.Error("which prompts give way is not a function of the key")
	}
}

// A pair of equal sequences has no gradient, costs no pass, and counts as wrong in
// d_acc and as ln 2 in the loss.
func TestTies(t *testing.T) {
	tied := func() Batch {
		b := batch()
		b.Students[1] = seq(slices.Clone(b.Teachers[0].IDs)...)
		b.Students[4] = seq(slices.Clone(b.Teachers[1].IDs)...)
		return b
	}
	c, spy := newCritic(t, nil)
	b := tied()
	fresh(t, c, &b)
	if b.ScoreS[1] != b.ScoreP[0] {
		t.Fatalf("equal texts score %g and %g", b.ScoreS[1], b.ScoreP[0])
	}
	g := b.Signal()
	if math.Abs(g.Ties-2.0/6) > 1e-12 || g.Distinct != 4 ||
		math.Abs(g.Acc-g.DistinctAcc*4/6) > 1e-12 {
		t.Errorf("signal %+v: want two ties of six pairs", g)
	}
	spy.scored = 0
	st := update(t, c, b)
	if spy.scored != 6 {
		t.Errorf("%d sequences ran forward, want 6: four answers, two teachers", spy.scored)
	}
	// The same with the ties learned from: a penalty too small to be seen keeps them in.
	whole, spyWhole := newCritic(t, func(c *Config) { c.ScoreL2 = 1e-12 })
	b = tied()
	fresh(t, whole, &b)
	spyWhole.scored = 0
	want := update(t, whole, b)
	if spyWhole.scored != 8 {
		t.Errorf("%d sequences ran forward with a penalty on the scores, want all 8",
			spyWhole.scored)
	}
	if math.Abs(st.Loss-want.Loss) > 1e-6 || math.Abs(st.Acc-want.Acc) > 1e-6 {
		t.Errorf("loss %g, d_acc %g without the ties' passes, %g, %g with them", st.Loss, st.Acc,
			want.Loss, want.Acc)
	}
	if d := distance(t, spyWhole.grads, spy.grads); d > 1e-5 {
		t.Errorf("leaving ties out changes the gradient by %g", d)
	}
	b = tied()
	b.Skip = []bool{true, false, true, true, false, true}
	fresh(t, c, &b)
	steps := c.Optimizer().Steps()
	if st := update(t, c, b); st.Updates != 0 || c.Optimizer().Steps() != steps ||
		math.Abs(st.Loss-math.Ln2) > 1e-12 || st.Acc != 0 {
		t.Errorf("a batch of ties: %+v, want no step, a loss of ln 2", st)
	}
}

// With GRGC's term the gradient is that of both losses, and only the student's
// scores of one prompt have a part in it; those out of the pool have none.
func TestGroupTerm(t *testing.T) {
	const weight = 0.3
	c, spy := newCritic(t, func(c *Config) { c.GroupOT = weight })
	plain, spyPlain := newCritic(t, nil)
	b, pb := batch(), batch()
	fresh(t, c, &b)
	fresh(t, plain, &pb)
	st, was := update(t, c, b), update(t, plain, pb)
	if st.Loss != was.Loss || st.GroupTerm <= 0 {
		t.Errorf("loss %g, group term %g: want the Bradley-Terry loss %g as it was, and a term",
			st.Loss, st.GroupTerm, was.Loss)
	}
	if d := distance(t, spyPlain.grads, spy.grads); d < 1e-3 {
		t.Error("the term has no gradient")
	}
	// Spread, relative to where it would be without the term, grows.
	steps := func(weight float64) float64 {
		c, _ := newCritic(t, func(c *Config) { c.GroupOT = weight })
		for range 30 {
			b := batch()
			fresh(t, c, &b)
			update(t, c, b)
		}
		b := batch()
		fresh(t, c, &b)
		return b.Signal().RelStd
	}
	if with, without := steps(weight), steps(0); with <= without {
		t.Errorf("relative spread %g with the term, %g without", with, without)
	}
}

// The figures of a batch, by hand: scores [1,2,3] against a teacher's 6, and [5,5,9]
// against 5, the last left out.
func TestSignal(t *testing.T) {
	b := batch()
	b.ScoreS, b.ScoreP = []float32{1, 2, 3, 5, 5, 9}, []float32{6, 5}
	b.Skip[5] = true
	g := b.Signal()
	softplus := func(x float64) float64 { return math.Log1p(math.Exp(x)) }
	for name, x := range map[string][2]float64{
		"acc":          {g.Acc, 3.0 / 5},
		"student mean": {g.StudentMean, 16.0 / 5},
		"teacher mean": {g.TeacherMean, 28.0 / 5},
		"distinct loss": {g.DistinctLoss,
			(softplus(-5) + softplus(-4) + softplus(-3) + 2*math.Ln2) / 5},
		"group std": {g.GroupStd, 0.5},
		"rel std":   {g.RelStd, 0.25}, // the second group has no gap
		"collapsed": {g.Collapsed, 0},
		"top gap":   {g.TopGap, 0.5}, // the second group has no spread
	} {
		if math.Abs(x[0]-x[1]) > 1e-12 {
			t.Errorf("%s is %g, want %g", name, x[0], x[1])
		}
	}
	b.Skip[0], b.Skip[1] = true, true
	if got := b.Signal().TopGap; got != 0 {
		t.Errorf("groups of one answer and of two equal scores: a gap of %g", got)
	}
	b.ScoreS[4] = 7
	if got := b.Signal().TopGap; got != 1 {
		t.Errorf("a group of one answer before one of two: a gap of %g, want 1", got)
	}
	b = batch()
	b.ScoreS, b.ScoreP = []float32{1, 2, 3, 5, 5, 9}, []float32{100, 5}
	b.Skip[5] = true
	if g := b.Signal(); g.Collapsed != 1 {
		t.Errorf("a spread of 1 at a distance of 98: %g collapsed groups, want 1", g.Collapsed)
	}
}

// The fresh head follows the width, unless it is told.
func TestHeadStd(t *testing.T) {
	if got := DefaultConfig().HeadStd(100); math.Abs(got-0.01) > 1e-12 {
		t.Errorf("width 100: %g, want 0.01", got)
	}
	if got := (Config{ScoreInit: 0.02}).HeadStd(128); got != 0.02 {
		t.Errorf("told 0.02: %g", got)
	}
}

// A discriminator that is sure of all pairs has nothing to learn, and no gradient of
// subnormal numbers, which would take hundreds of times longer.
func TestSureOfAllPairs(t *testing.T) {
	c, s := newCritic(t, func(cfg *Config) { cfg.ScoreInit = 2000 })
	b := batch()
	scoreS, err := c.Score(b.Students)
	if err != nil {
		t.Fatal(err)
	}
	scoreP, err := c.Score(b.Teachers)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i, g := range b.Group {
		if d := scoreP[g] - scoreS[i]; d < 60 || d > 1e6 {
			b.Skip[i] = true
		} else {
			kept++
		}
	}
	if kept == 0 {
		t.Fatalf("no pair is sure: students %v, teachers %v", scoreS, scoreP)
	}
	st, err := c.Update(b)
	if err != nil || st.Updates != 1 || st.Pairs != float64(kept) || st.Acc != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	if len(s.grads) == 0 {
		t.Fatal("no optimizer step")
	}
	for name, g := range s.grads {
		for i, x := range g {
			if x != 0 {
				t.Fatalf("%s[%d]: gradient %g, want none", name, i, x)
			}
		}
	}
	seeds := []float32{1, -1e-3, 1e-24, -1e-24, 9e-26, -1e-38, 0, float32(math.NaN()),
		float32(math.Inf(1))}
	want := append(slices.Clone(seeds[:4]), 0, 0, 0)
	if flush(seeds); !slices.Equal(seeds[:7], want) || seeds[7] == seeds[7] ||
		!math.IsInf(float64(seeds[8]), 1) {
		t.Errorf("flushed %v", seeds)
	}
}
