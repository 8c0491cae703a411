package trainer

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"gad/algos"
	"gad/critic"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// step takes one step of the game (GAD, arXiv 2511.10643, algorithm 1). Run calls it, and records,
// validates and saves after it.
func (g *game) step(m Metrics) error {
	r, err := g.play(m) // answers
	if err != nil {
		return err
	}
	if err := g.updateCritic(m, r); err != nil { // also sets the scores under the weights before it
		return err
	}
	if err := g.rewardKL(m, r); err != nil {
		return err
	}
	if err := g.advantages(m, r); err != nil {
		return err
	}
	if !g.alone() {
		if err := g.updateActor(m, r); err != nil {
			return err
		}
	}
	if err := g.describe(m, r, gameScores); err != nil {
		return err
	}
	g.endAlone(m)
	return nil
}

// game is the stage of the game and of its warm-up: a discriminator and the student learn.
type game struct {
	onPolicy
	critic   *critic.Critic
	kl       algos.AdaptiveKL    // coefficient of the KL in the reward
	disc     saved.Discriminator // how far the discriminator has learned
	terms    []config.Term       // of the reward
	imitates bool                // the student learns the teacher's answers
	// thoughtless warns once that no answer of the teacher has a thought
	thoughtless sync.Once
}

// newGame returns the stage. For a resumed run it restores how far the discriminator had learned.
func newGame(b basic, s *start) stage {
	c := b.t.cfg
	g := &game{onPolicy: onPolicy{basic: b}, terms: c.RewardTerms(b.kind),
		imitates: c.LearnsTeacher(b.kind)}
	if s.inPlace {
		g.disc = s.state.Disc
	}
	return g
}

// play plays a round. With dynamic sampling, prompts whose answers all have the same reward are
// replaced (DAPO, arXiv 2503.14476, section 3.2), and the discriminator scores the answers here;
// otherwise it scores them in its update.
func (g *game) play(m Metrics) (*round, error) {
	want, filter := g.t.cfg.Data.TrainBatchSize, g.t.cfg.Algorithm.FilterGroups
	g.round = &round{}
	drawn := map[int]int{}
	var answered *round // the newest draw with an answer
	for try := 1; ; try++ {
		r, err := g.playOnce(m, want-len(g.round.groups), drawn)
		if err != nil {
			return nil, err
		}
		if len(r.answers()) > 0 {
			answered = r
		}
		keep := allGroups(len(r.groups))
		last := !filter.Enable || try >= filter.MaxGenBatches
		if filter.Enable {
			if err := g.scoreRound(m, r); err != nil {
				return nil, err
			}
		}
		if !last {
			if keep, err = spreadGroups(g.rewards(m, r), r.group(), len(r.groups),
				filter.MinSpread); err != nil {
				return nil, err
			}
		}
		g.round.take(r, keep)
		if last || len(g.round.groups) >= want {
			if len(g.round.answers()) == 0 { // the environment broke all episodes of the last draw
				g.round = answered
			}
			g.t.train.step = g.round.batch().Indices()
			return g.round, nil
		}
	}
}

// playOnce returns a round of the next n prompts with sampled answers. drawn counts each row's
// draws in this step.
func (g *game) playOnce(m Metrics, n int, drawn map[int]int) (*round, error) {
	r, err := g.next(n, drawn)
	if err != nil {
		return nil, err
	}
	if err := g.sample(m, r, g.readsOld()); err != nil {
		return nil, err
	}
	if err := g.checkRound(m, r); err != nil {
		return nil, err
	}
	judged := g.t.form.markBranching(g.t.form.criticSeqs(each(r, g.t.form.whole)))
	for i, a := range r.answers() {
		a.criticSeq = judged[i]
	}
	return r, g.thoughtTerm(m, r)
}

// advantages sets one advantage for each response token from the scores: shaping, KL in the reward,
// the estimator, the clip (doc/algorithms.md, "Rewards" and "Advantages", in that order). An
// answer's tokens are the tokens of all its sequences. If a score is not finite it sets no
// advantages, and the student does not learn from the round.
func (g *game) advantages(m Metrics, r *round) (err error) {
	c := g.t.cfg.Algorithm
	lenA, maskAT := r.mask()
	in := algos.AdvantageInput{Scores: g.rewards(m, r), Group: r.group(), Len: lenA, Mask: maskAT}
	g.t.form.credit(r, g.terms, &in)
	if g.t.cfg.Critic.ByToken() {
		in.TokenRewards = pad(each(r, func(_ *group, a *answer) []float32 { return a.terms }),
			maskAT)
	}
	if err := g.subtractKL(m, r, &in); err != nil {
		return err
	}
	for i, a := range r.answers() {
		a.reward = in.Scores[i]
	}
	m["reward/mean"], _ = report.Moments(in.Scores)
	_, m["adv/zero_var_groups_frac"], err = algos.KeepGroups(in.Scores, in.Group, 0)
	if err != nil {
		return err
	}
	advAT, err := algos.Advantages(
		algos.AdvantageConfig{Name: c.AdvEstimator, Gamma: c.Gamma, ZScoreFloor: c.ZScoreFloor,
			ClipAbs: c.AdvClip, MeanOnly: !c.NormByStd, Power: c.AdvPower,
			GroupStats: c.GroupStats, StepWeight: c.GiGPO.StepAdvantageW,
			N: g.t.cfg.Rollout.N}, in)
	if errors.Is(err, algos.ErrNotFinite) {
		return nil
	}
	if err != nil {
		return err
	}
	advA := make([]float64, len(advAT))
	m["adv/max"] = 0
	for a, row := range advAT {
		advA[a] = row[0]
		for _, x := range row[:lenA[a]] {
			m["adv/max"] = max(m["adv/max"], x, -x)
		}
	}
	m["adv/mean"], m["adv/std"] = report.Moments(advA)
	r.setAdvantages(advAT)
	return nil
}

// subtractKL subtracts the KL to the reference from the rewards, where the settings ask for it.
func (g *game) subtractKL(m Metrics, r *round, in *algos.AdvantageInput) (err error) {
	c := g.t.cfg.Algorithm
	if !c.UseKLInReward || g.t.reference == nil {
		return nil
	}
	of := func(value func(*group, *answer) []float32) [][]float64 {
		return pad(each(r, value), in.Mask)
	}
	var kl float64
	if g.exactKLInReward() {
		in.TokenRewards, in.Scores, kl, err = algos.SubtractKL(g.kl.Coef, in.Scores,
			of(func(_ *group, a *answer) []float32 { return a.kl }), in.Mask)
	} else {
		in.TokenRewards, in.Scores, kl, err = algos.KLInReward(c.KLPenalty, g.kl.Coef, in.Scores,
			of(oldOf), of(refOf), in.Mask)
	}
	if err != nil {
		return err
	}
	m["reward/kl_mean"], m["reward/kl_coef"] = kl, g.kl.Coef
	if c.KLCtrl.Type == "adaptive" {
		g.kl.Update(kl, len(in.Scores))
	}
	return nil
}

// pad converts x to float64, with rows padded by 0 to the mask's length.
func pad(x [][]float32, maskST [][]float64) [][]float64 {
	out := make([][]float64, len(x))
	for s, row := range x {
		out[s] = make([]float64, len(maskST[s]))
		for t, v := range row {
			out[s][t] = float64(v)
		}
	}
	return out
}

// updateCritic takes the discriminator's optimizer steps on a round, and sets the round's scores
// under the weights before them.
func (g *game) updateCritic(m Metrics, r *round) error {
	cfg := g.t.cfg.Critic
	cb := g.criticBatch(r)
	if cfg.ByToken() {
		err := g.t.phase(m, "update_critic", g.critic.Model(), cb.Students, 1, func() error {
			terms, err := g.critic.Terms(cb.Students)
			if err != nil {
				return err
			}
			for i, a := range r.answers() {
				a.terms = terms[i]
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	m["critic/pairs"] = float64(cb.Pairs())
	m["critic/pairs_frac"] = float64(cb.Pairs()) / float64(len(cb.Skip))
	passes := cfg.PPOEpochs
	if n := cfg.PPOMiniBatch; !r.scored && n > 0 && n < len(r.groups) {
		passes++ // later mini-batches are scored before the first one is learned from
	}
	var st critic.Stats
	err := g.t.phase(m, "update_critic", g.critic.Model(), slices.Concat(cb.Students, cb.Teachers),
		passes, func() (err error) {
			st, err = g.critic.Update(cb)
			return err
		})
	if err != nil {
		return err
	}
	r.setScores(st.ScoreS, st.ScoreP, st.TurnS, st.TurnP)
	if cb.ScoreS, cb.ScoreP = st.ScoreS, st.ScoreP; cb.Pairs() > 0 {
		g.noteSignal(m, cb.Signal())
	}
	if st.Pairs > 0 {
		m["critic/d_loss"], m["critic/d_acc"], m["critic/updates"] =
			st.Loss, st.Acc, float64(st.Updates)
		if cfg.GroupOT > 0 {
			m["critic/group_term"] = st.GroupTerm
		}
		if g.critic.Replay != nil {
			m["critic/pool_frac"] = st.Pooled
		}
	}
	return g.t.noteUpdates(m, "critic", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Streak)
}

// criticBatch returns a round as the discriminator learns it, with the scores that are already
// known.
func (g *game) criticBatch(r *round) critic.Batch {
	b := critic.Batch{Step: g.t.step, Students: r.criticSeqs(), Group: r.group(),
		Teachers: g.t.form.criticSeqs(r.batch().Teachers())}
	exclude := g.t.cfg.Critic.Truncated == "exclude"
	b.Skip = each(r, func(g *group, a *answer) bool { return exclude && (a.cut || g.TeacherCut) })
	if !r.scored {
		return b
	}
	b.ScoreS = each(r, func(_ *group, a *answer) float32 { return a.score })
	for _, g := range r.groups {
		b.ScoreP = append(b.ScoreP, g.score)
	}
	if g.t.cfg.Critic.Level == "turn" {
		b.TurnS = each(r, func(_ *group, a *answer) []float32 { return a.turns })
		for _, g := range r.groups {
			b.TurnP = append(b.TurnP, g.turns)
		}
	}
	return b
}

// setScores sets the discriminator's scores of both sides: answers [A] and prompts' teachers [P].
// Scores by turn may be nil.
func (r *round) setScores(scoreA, scoreP []float32, turnA, turnP [][]float32) {
	for i, a := range r.answers() {
		a.score = scoreA[i]
		if turnA != nil {
			a.turns = turnA[i]
		}
	}
	for p, g := range r.groups {
		g.score = scoreP[p]
		if turnP != nil {
			g.turns = turnP[p]
		}
	}
	r.scored = true
}

// updateActor updates the student: by the teacher's answers in the warm-up, otherwise by its own
// advantages.
func (g *game) updateActor(m Metrics, r *round) error {
	if g.imitates {
		return g.learnTeachers(m, r.batch())
	}
	if r.hasAdvantages && g.t.actor.NeedsReference() {
		if err := g.refLogProbs(m, r); err != nil {
			return err
		}
	}
	if err := g.addTeacher(m, r); err != nil {
		return err
	}
	st, err := g.updatePolicy(m, r)
	if st.Passes > 0 && g.t.cfg.Actor.HasKL() {
		if push := g.meanAbs(r); push > 0 {
			m["actor/kl_pull"] = g.t.cfg.Actor.KLLossCoef * math.Sqrt(2*math.Abs(st.KLLoss)) / push
		}
	}
	return err
}

// meanAbs returns the mean over the sequences of the absolute advantage: the first token's or,
// where a teacher gives each token an advantage, the mean over the tokens.
func (g *game) meanAbs(r *round) float64 {
	sum, roll := 0.0, r.rollout()
	for _, s := range roll {
		row := s.Adv[:1]
		if n := s.Seq.Trained(); g.teachers != nil && n > 1 {
			row = s.Adv[:n]
		}
		own := 0.0
		for _, x := range row {
			own += math.Abs(x)
		}
		sum += own / float64(len(row))
	}
	return sum / float64(len(roll))
}

// stepSeqs returns the step's sequences: the teacher's answers and the student's.
func (g *game) stepSeqs() []model.Seq {
	return slices.Concat(g.teacherSeqs(), g.round.rollout().Seqs())
}

// passSeqs returns the sequences of one of the step's passes.
func (g *game) passSeqs(x config.Pass) []model.Seq {
	switch {
	case x.Network == config.Teacher:
		return readSeqs(g.read)
	case x.Part == thoughtPass:
		return g.round.thoughtSeqs()
	case x.Network == config.Discriminator:
		return pickSides(x, g.round.criticSeqs(), g.t.form.criticSeqs(g.round.batch().Teachers()))
	}
	return pickSides(x, g.round.rollout().Seqs(), g.teacherSeqs())
}

// gameScores returns the discriminator's scores of an answer and of the teacher's, for samples.
func gameScores(g *group, a *answer) (student, teacher float64) {
	return float64(a.score), float64(g.score)
}

// Metrics holds one step's figures by name.
type Metrics map[string]float64

// nestedTime returns the seconds of the parts of a step that can run inside a rollout, with metrics
// of their own.
func (m Metrics) nestedTime() float64 { return m["timing_s/score"] + m["timing_s/check"] }

// time runs f and adds its seconds to the metric name.
func (m Metrics) time(name string, f func() error) error {
	start := time.Now()
	err := f()
	m[name] += time.Since(start).Seconds()
	return err
}
