package critic

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/ref"
	"gad/model"
)

func byTurn(c *Config) { c.Level = "turn" }

// episode is a sequence of a prompt of two tokens and turns, each behind two tokens of the
// environment, the first behind the prompt.
func episode(prompt int32, turns ...[]int32) model.Seq {
	s := model.Seq{IDs: []int32{prompt, prompt + 1}}
	for k, ids := range turns {
		if k > 0 {
			s.IDs = append(s.IDs, 40, prompt+int32(k))
		}
		from := len(s.IDs)
		s.IDs = append(s.IDs, ids...)
		s.Spans = append(s.Spans, model.Span{From: from, To: len(s.IDs)})
	}
	return s
}

// episodes is two prompts with three episodes each, of one to three turns; the teachers' have two
// and three.
func episodes() Batch {
	return Batch{
		Students: []model.Seq{episode(5, []int32{10, 1}),
			episode(5, []int32{11, 1}, []int32{12, 1}),
			episode(5, []int32{13, 1}, []int32{14, 15, 1}, []int32{16, 1}),
			episode(7, []int32{17, 1}, []int32{18, 1}),
			episode(7, []int32{30, 1}, []int32{19, 1}, []int32{20, 1}), episode(7, []int32{21})},
		Group: []int{0, 0, 0, 1, 1, 1},
		Teachers: []model.Seq{episode(5, []int32{30, 31, 1}, []int32{32, 1}),
			episode(7, []int32{30, 1}, []int32{33, 1}, []int32{34, 35, 1})},
		Skip: make([]bool, 6),
	}
}

func scoreBoth(t *testing.T, c *Critic, b *Batch) {
	t.Helper()
	if err := c.ScoreBoth(b); err != nil {
		t.Fatal(err)
	}
}

// pairLoss is the loss of two episodes, in plain words: turn by turn as far as both go, and the
// last turns again if one of them goes further.
func pairLoss(student, teacher []float32, loss func(s, t float64) float64) float64 {
	sum, n := 0.0, 0.0
	for k := 0; k < len(student) && k < len(teacher); k++ {
		sum, n = sum+loss(float64(student[k]), float64(teacher[k])), n+1
	}
	if len(student) != len(teacher) {
		s, t := student[len(student)-1], teacher[len(teacher)-1]
		sum, n = sum+loss(float64(s), float64(t)), n+1
	}
	return sum / n
}

func bradleyTerry(s, t float64) float64 { return math.Log1p(math.Exp(s - t)) }

// With one turn in each sequence, level turn is level episode, to the bit.
func TestOneTurnIsAnEpisode(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"bt":                 func(*Config) {},
		"a pack a sequence":  func(c *Config) { c.MaxTokenLen = 1 },
		"bce with a penalty": func(c *Config) { c.Loss, c.ScoreL2 = "bce", 0.01 },
		"group term":         func(c *Config) { c.GroupOT = 0.3 },
		"pool": func(c *Config) {
			c.Replay = Replay{Size: 100, Share: 0.5, Live: true}
			c.PPOMiniBatch, c.PPOEpochs = 1, 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stats []string
			var weights [][]uint32
			var grads []map[string][]float32
			for _, level := range []string{"episode", "turn"} {
				c, spy := newCritic(t, func(c *Config) { edit(c); c.Level = level })
				for step := range 2 {
					b := batch()
					b.Step, b.Students[4] = step, b.Teachers[1] // a tie
					if step == 1 {
						scoreBoth(t, c, &b)
					}
					st := update(t, c, b)
					for i, x := range slices.Concat(st.TurnS, st.TurnP) {
						if want := slices.Concat(st.ScoreS, st.ScoreP)[i]; len(x) != 1 ||
							x[0] != want {
							t.Errorf("scores by turn %v of an answer, want %g", x, want)
						}
					}
					if level == "episode" && (st.TurnS != nil || st.TurnP != nil ||
						b.TurnS != nil) {
						t.Error("level episode has scores by turn")
					}
					st.TurnS, st.TurnP = nil, nil
					stats = append(stats, fmt.Sprintf("%+v", st))
				}
				weights, grads = append(weights, bits(c, spy)), append(grads, spy.grads)
			}
			if stats[0] != stats[2] || stats[1] != stats[3] ||
				!slices.Equal(weights[0], weights[1]) ||
				!reflect.DeepEqual(grads[0], grads[1]) {
				t.Errorf("level episode %s, turn %s; weights equal: %v", stats[:2], stats[2:],
					slices.Equal(weights[0], weights[1]))
			}
		})
	}
}

// Loss and accuracy are the formula's, under the weights before the update: the mean over pairs of
// the mean over their terms, and the last turns' order.
func TestLossByTurn(t *testing.T) {
	losses := map[string]func(s, t float64) float64{"bt": bradleyTerry,
		"bce": func(s, t float64) float64 {
			return math.Log1p(math.Exp(-t)) + math.Log1p(math.Exp(s))
		}}
	for name, loss := range losses {
		c, _ := newCritic(t, func(c *Config) { c.Level, c.Loss = "turn", name })
		b := episodes()
		b.Skip[1] = true
		scoreBoth(t, c, &b)
		var want, acc float64
		for s, p := range b.Group {
			if len(b.TurnS[s]) != len(b.Students[s].Spans) ||
				b.ScoreS[s] != b.TurnS[s][len(b.TurnS[s])-1] {
				t.Fatalf("scores by turn %v of %v, and %g", b.TurnS[s], b.Students[s], b.ScoreS[s])
			}
			if b.Skip[s] {
				continue
			}
			want += pairLoss(b.TurnS[s], b.TurnP[p], loss) / 5
			if b.ScoreP[p] > b.ScoreS[s] {
				acc += 1.0 / 5
			}
		}
		for _, given := range []bool{false, true} {
			c, _ := newCritic(t, func(c *Config) { c.Level, c.Loss = "turn", name })
			in := b
			if !given {
				in.ScoreS, in.ScoreP, in.TurnS, in.TurnP = nil, nil, nil, nil
			}
			st := update(t, c, in)
			if math.Abs(st.Loss-want) > 1e-6 || math.Abs(st.Acc-acc) > 1e-6 || st.Pairs != 5 {
				t.Errorf("%s: loss %g, d_acc %g of %g pairs, want %g, %g of 5", name, st.Loss,
					st.Acc,
					st.Pairs, want, acc)
			}
			if !reflect.DeepEqual(st.TurnS, b.TurnS) || !reflect.DeepEqual(st.TurnP, b.TurnP) ||
				!slices.Equal(st.ScoreS, b.ScoreS) || !slices.Equal(st.ScoreP, b.ScoreP) {
				t.Errorf("%s: scores %v and %v, want %v and %v", name, st.TurnS, st.TurnP, b.TurnS,
					b.TurnP)
			}
		}
		if acc := b.Signal().Acc; math.Abs(acc-update(t, c, b).Acc) > 1e-12 {
			t.Errorf("the signal's accuracy is %g", acc)
		}
	}
}

// The gradient of every parameter, against differences of the formula in float64 along it.
func TestGradientByTurn(t *testing.T) {
	for name, edit := range map[string]func(*Config){"one pack": byTurn,
		"several packs": func(c *Config) { c.Level, c.MaxTokenLen = "turn", 12 }} {
		cfg := DefaultConfig()
		edit(&cfg)
		be := ref.New()
		m, err := model.New(be, tiny,
			model.Options{Kind: model.Scorer, Trainable: true, Seed: 3, ScoreInit: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(m, cfg, 10, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := episodes()
		if _, err := c.learn(gathered(t, c, b, nil)); err != nil {
			t.Fatal(err)
		}
		loss := func() (sum float64) {
			scoreBoth(t, c, &b)
			for s, p := range b.Group {
				sum += pairLoss(b.TurnS[s], b.TurnP[p], bradleyTerry) / float64(len(b.Group))
			}
			return sum
		}
		checkGradient(t, name, m, loss)
	}
}

// An update passes each sequence forward once, whatever its number of turns, and reads a score at
// the end of each; packs change neither scores nor loss, and gradients by rounding alone.
func TestTurnsPassOnce(t *testing.T) {
	b := episodes()
	all, turns, apart := 0, 0, 0
	for _, s := range model.Segments(slices.Concat(b.Students, b.Teachers)) {
		all += s.Tokens
	}
	for _, s := range slices.Concat(b.Students, b.Teachers) {
		turns, apart = turns+len(s.Spans), apart+len(s.IDs)
	}
	var stats []string
	var grads []map[string][]float32
	for _, c := range []struct{ tokens, forward, scores int }{
		{4096, all, turns},
		{35, all, turns}, // a pack for each prompt
		// A pack for each sequence: students pass twice, as their pairs lie in two packs.
		{1, 2*apart - len(b.Teachers[0].IDs) - len(b.Teachers[1].IDs), 2*turns - 5},
	} {
		d, spy := newCritic(t, func(cfg *Config) { cfg.Level, cfg.MaxTokenLen = "turn", c.tokens })
		p := &passes{Backend: spy.Backend}
		spy.Backend = p
		st := update(t, d, episodes())
		if p.forward != c.forward || spy.scored != c.scores {
			t.Errorf("packs of %d: %d tokens pass forward and give %d scores, want %d and %d",
				c.tokens, p.forward, spy.scored, c.forward, c.scores)
		}
		st.GradNorm = 0 // of the gradient below
		stats, grads = append(stats, fmt.Sprintf("%+v", st)), append(grads, spy.grads)
	}
	for k := 1; k < len(stats); k++ {
		if stats[k] != stats[0] {
			t.Errorf("%s, in one pack %s", stats[k], stats[0])
		}
		if d := distance(t, grads[0], grads[k]); d > 1e-5 {
			t.Errorf("gradients differ by %g", d)
		}
	}
}

// Another token of the environment changes no score of a turn before it.
func TestEnvironmentComesAfterItsTurn(t *testing.T) {
	c, _ := newCritic(t, byTurn)
	s := episodes().Students[2]
	for k, span := range s.Spans[:2] {
		other := model.Seq{IDs: slices.Clone(s.IDs), Spans: s.Spans}
		other.IDs[span.To]++ // the first token behind turn k
		_, turnS, err := c.scoreTurns([]model.Seq{s, other})
		if err != nil {
			t.Fatal(err)
		}
		for j := range s.Spans {
			if same := turnS[0][j] == turnS[1][j]; same != (j <= k) {
				t.Errorf("behind turn %d: score of turn %d unchanged: %v", k, j, same)
			}
		}
	}
}

// An episode equal to the teacher's has its scores at every turn and costs no pass; one with its
// tokens but other turns is no tie.
func TestTiesByTurn(t *testing.T) {
	tied := func() Batch {
		b := episodes()
		b.Students[1], b.Students[4] = b.Teachers[0], b.Teachers[1]
		b.Students[4].Spans = b.Students[4].Spans[1:]
		return b
	}
	c, spy := newCritic(t, byTurn)
	b := tied()
	scoreBoth(t, c, &b)
	if !slices.Equal(b.TurnS[1], b.TurnP[0]) || !b.Tie(1) || b.Tie(4) || b.Signal().Ties != 1.0/6 {
		t.Errorf("scores %v and %v, ties %v and %v", b.TurnS[1], b.TurnP[0], b.Tie(1), b.Tie(4))
	}
	spy.scored = 0
	st := update(t, c, b)
	whole, spyWhole := newCritic(t, func(c *Config) { c.Level, c.ScoreL2 = "turn", 1e-12 })
	b = tied()
	want := update(t, whole, b)
	if spy.scored != spyWhole.scored-2 || math.Abs(st.Loss-want.Loss) > 1e-6 ||
		math.Abs(st.Acc-want.Acc) > 1e-6 {
		t.Errorf("%d scores, %+v; with the tie's pass %d, %+v", spy.scored, st, spyWhole.scored,
			want)
	}
	if d := distance(t, spyWhole.grads, spy.grads); d > 1e-5 {
		t.Errorf("leaving ties out changes the gradient by %g", d)
	}
}

// GRGC's term is that of the last turns' scores, and its gradient goes to them.
func TestGroupTermOfLastTurns(t *testing.T) {
	const weight = 0.3
	c, _ := newCritic(t, func(c *Config) { c.Level, c.GroupOT = "turn", weight })
	b := episodes()
	scoreBoth(t, c, &b)
	want, dS, err := c.group.Step(b.ScoreS, b.Group, weight)
	if err != nil {
		t.Fatal(err)
	}
	dS = slices.Clone(dS)
	set := gathered(t, c, b, c.newScores(b))
	res, seed, err := c.objective(set)
	if err != nil || math.Abs(res.groupTerm-want) > 1e-6 {
		t.Errorf("a term of %g, want %g, %v", res.groupTerm, want, err)
	}
	plain, _ := newCritic(t, byTurn)
	_, without, err := plain.objective(gathered(t, plain, b, plain.newScores(b)))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range set.student {
		from, to := set.score.span(s)
		for k := from; k < to; k++ {
			more := float32(0)
			if k == to-1 {
				more = dS[i]
			}
			if math.Abs(float64(seed[k]-without[k]-more)) > 1e-7 {
				t.Errorf("student %d, score %d: the term's gradient is %g, want %g", i, k-from,
					seed[k]-without[k], more)
			}
		}
	}
}

// A score of any turn that is not finite leaves out the step.
func TestNotFiniteTurnIsSkipped(t *testing.T) {
	c, spy := newCritic(t, byTurn)
	b := episodes()
	scoreBoth(t, c, &b)
	b.TurnS[2][0] = float32(math.Inf(1))
	before := bits(c, spy)
	if st := update(t, c, b); st.Skipped != 1 || st.Updates != 0 ||
		!slices.Equal(bits(c, spy), before) {
		t.Errorf("%d skipped, %d updates, want 1 and 0", st.Skipped, st.Updates)
	}
	if st := update(t, c, episodes()); st.Updates != 1 {
		t.Errorf("after it %+v, want an update", st)
	}
}

// A pool keeps its episodes' turns through a checkpoint.
func TestPoolOfEpisodes(t *testing.T) {
	c, _ := newCritic(t,
		func(c *Config) { c.Level, c.Replay = "turn", Replay{Size: 100, Share: 1, Live: true} })
	first := episodes()
	first.Students[1].Spans = nil
	first.Students[2] = model.Answer([]int32{5, 6}, 2) // of no tokens
	update(t, c, first)
	ids, lens := c.Replay.Flat()
	var back Buffer
	if err := back.SetFlat(ids, lens); err != nil ||
		!reflect.DeepEqual(back.Pairs, c.Replay.Pairs) {
		t.Fatalf("read back: %v, %v, want %v", err, back.Pairs, c.Replay.Pairs)
	}
	b := episodes()
	b.Step = 1
	if st := update(t, c, b); st.Pooled != 1 || st.Updates != 1 || len(st.TurnS[2]) != 3 {
		t.Errorf("%+v, want a step on pairs of the pool", st)
	}
	for i := range lens {
		for _, x := range []int32{-1 << 31, -99, 99, 1<<31 - 1} {
			bad := slices.Clone(lens)
			bad[i] = x
			if err := new(Buffer).SetFlat(ids, bad); err == nil ||
				!strings.Contains(err.Error(), "damaged") {
				t.Errorf("number %d is %d: %v, want an error that says the checkpoint is damaged",
					i,
					x, err)
			}
		}
		if err := new(Buffer).SetFlat(ids, lens[:i]); err == nil {
			t.Errorf("%d numbers of %d: no error", i, len(lens))
		}
	}
}

// The rewards of an episode's turns add up to its score.
func TestTurnRewards(t *testing.T) {
	if d := TurnRewards([]float32{2, -1.5, 4}); !slices.Equal(d, []float64{2, -3.5, 5.5}) {
		t.Errorf("rewards %v", d)
	}
	if d := TurnRewards(nil); len(d) != 0 {
		t.Errorf("rewards %v of no turns", d)
	}
	scores := make([]float32, 1000)
	for k := range scores {
		scores[k] = float32(50 * math.Sin(float64(k*k)))
	}
	sum := 0.0
	for k, d := range TurnRewards(scores) {
		if sum += d; math.Abs(sum-float64(scores[k])) > 1e-10 {
			t.Fatalf("the rewards of %d turns add up to %g, the score is %g", k+1, sum, scores[k])
		}
	}
}
