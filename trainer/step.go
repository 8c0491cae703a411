package trainer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/episode"
)

// gameStep is one step of the game (GAD, arXiv 2511.10643, algorithm 1).
//
// P prompts, G answers each, S = P*G sequences, T response tokens. Run takes steps, and records,
// validates and saves around them; sft and dpo have steps of their own.
func (t *Trainer) gameStep() (m Metrics, err error) {
	m = Metrics{}
	r, err := t.play(m) // answers
	if err != nil {
		return nil, err
	}
	if err := t.updateCritic(m, r); err != nil { // gives the scores of the weights before it too
		return m, err
	}
	if t.cfg.Algorithm.UseKLInReward {
		if err := t.rewardKL(m, r); err != nil {
			return m, err
		}
	}
	advST, err := t.advantages(m, r)
	if err != nil {
		return m, err
	}
	if !t.criticAlone() {
		if advST != nil && t.actor.NeedsReference() {
			if err := t.refLogProbs(m, r); err != nil {
				return m, err
			}
		}
		mixedST, err := t.withTeacher(m, r, advST)
		if err != nil {
			return m, err
		}
		if err := t.updateActor(m, r.batch, r.roll, mixedST, r.refST); err != nil {
			return m, err
		}
	}
	teachers := r.batch.Teachers
	learned, scored := t.learned(teachers), t.scored(teachers)
	t.done = t.count(m, len(teachers), slices.Concat(learned, r.roll.Seqs),
		func(x config.Pass) []model.Seq {
			switch {
			case x.Network == config.Teacher:
				return r.read
			case x.Part == thoughtPass:
				return slices.DeleteFunc(slices.Clone(r.behindA), empty)
			}
			if t.chunks().On() && x.Network == config.Discriminator {
				return sides(x, r.forCritic, scored)
			}
			return sides(x, r.roll.Seqs, learned)
		})
	return m, t.describe(m, r, r.firstOf(advST))
}

// round is what is played in one step: prompts, answers and the discriminator's
// scores of both sides. An answer is what the student did with a prompt: one text, or, in an
// environment, an episode of turns. There are A of them, in S sequences, as many where no context
// is rebuilt. With rollout.chunk an answer is a thought, whose chunks are its sequences.
type round struct {
	batch     *encode.Batch
	roll      *actor.Rollout    // [S]
	group     []int             // [A] prompt of each answer
	cut       []bool            // [A] at a limit
	episodes  []episode.Episode // [A]; nil without an environment
	branches  []algos.Branch    // [A] numbers within the prompt; nil where answers do not branch
	wroteA    [][]int32         // [A] with branches: all tokens of each answer
	forCritic []model.Seq       // [A] the answers on the discriminator's path
	scoreA    []float32         // [A]; nil before they are known
	scoreP    []float32         // [P] of the teacher's answers
	turnA     [][]float32       // [A] scores by turn; nil but with critic.level=turn
	termA     [][]float32       // [A] scores by token; nil but with critic.level=token
	turnP     [][]float32       // [P]
	behindA   []model.Seq       // [A] teacher's answers behind thoughts; nil where no term reads them
	teacherA  []float64         // [A] their mean log-probabilities
	checkA    []float64         // [A] the checker's scores; nil where the reward has none of them
	rewardA   []float64         // [A] what advantages are computed from; nil before that
	advST     [][]float64       // advantages; nil before, and where a score is not finite
	refST     [][]float32       // the reference's log-probabilities; nil where nothing reads them
	klST      [][]float32       // the exact KL to it; nil where the reward has none
	read      []model.Seq       // [S] what a teacher beside the discriminator reads; nil: there is none
}

// play plays a round. With dynamic sampling, prompts whose answers all have the
// same reward are replaced (DAPO, arXiv 2503.14476, section 3.2); the discriminator then
// scores them here, otherwise as it learns from them.
func (t *Trainer) play(m Metrics) (*round, error) {
	want, filter := t.cfg.Data.TrainBatchSize, t.cfg.Algorithm.FilterGroups
	whole := &round{batch: &encode.Batch{}, roll: &actor.Rollout{}}
	drawn := map[int]int{} // how often this step has drawn each row
	for try := 1; ; try++ {
		r, err := t.playOnce(m, want-len(whole.batch.Rows), drawn)
		if err != nil {
			return nil, err
		}
		keep := allGroups(len(r.batch.Rows))
		last := !filter.Enable || try >= filter.MaxGenBatches
		if filter.Enable {
			if err := t.score(m, r); err != nil {
				return nil, err
			}
		}
		if !last {
			if keep, err = spreadGroups(t.rewards(m, r), r.group, len(r.batch.Rows),
				t.cfg.Algorithm.FilterGroups.MinSpread); err != nil {
				return nil, err
			}
		}
		whole.take(r, keep)
		if last || len(whole.batch.Rows) >= want {
			t.stepRows = whole.batch.Rows
			return whole, nil
		}
	}
}

// playOnce samples answers to the next n prompts.
func (t *Trainer) playOnce(m Metrics, n int, drawn map[int]int) (r *round, err error) {
	r = &round{}
	if r.batch, err = t.draw(n); err != nil {
		return nil, err
	}
	if err = t.rollout(m, r, drawn); err != nil {
		return nil, err
	}
	if err = t.checkRound(m, r); err != nil {
		return nil, err
	}
	r.forCritic = t.forCritic(r)
	return r, t.thoughts(m, r)
}

func (t *Trainer) rollout(m Metrics, r *round, drawn map[int]int) error {
	b, before, apart := r.batch, m["timing_s/rollout"], m.apart()
	t.ranks.Enter("rollout")
	err := m.time("timing_s/rollout", func() (err error) {
		keys := t.keys(b.Rows, drawn)
		if t.tree().Trees > 0 {
			return t.grow(m, r, keys)
		}
		advance, done := t.rec.Progress("rollout",
			len(b.Prompts)*t.cfg.Answers(t.Stage)*t.cfg.Answer(t.Stage))
		defer done()
		if t.env != nil {
			return t.act(m, r, keys, advance)
		}
		r.roll, err = t.actor.Rollout(b.Prompts, t.tok.EOS(),
			actor.Key{Seed: t.seed(), Step: t.step, Rows: keys}, advance)
		if err == nil {
			r.group, r.cut = answersOf(r.roll)
		}
		return err
	})
	if err != nil {
		return err
	}
	m["timing_s/rollout"] -= m.apart() - apart
	tokens := 0
	for _, seq := range r.roll.Seqs {
		tokens += seq.Trained()
	}
	m["rollout/tokens_per_s"] = float64(tokens) / max(m["timing_s/rollout"]-before, 1e-9)
	return t.oldLogProbs(m, r.roll)
}

// keys name rows for the sampler: a row's number, or, where a step draws the row
// again, one that no row has, so that its answers are not the same again.
func (t *Trainer) keys(rows []int, drawn map[int]int) []int {
	keys := make([]int, len(rows))
	for i, row := range rows {
		keys[i] = row + drawn[row]*t.set.Len()
		drawn[row]++
	}
	return keys
}

// answersOf are the prompt of each answer of a rollout, and whether it was cut.
func answersOf(r *actor.Rollout) (group []int, cut []bool) {
	if r.Episode == nil {
		return r.Group, r.Truncated
	}
	for s, a := range r.Episode {
		if a == len(group) {
			group, cut = append(group, r.Group[s]), append(cut, r.Truncated[s])
		}
	}
	return group, cut
}

// chunks are how the run cuts answers.
func (t *Trainer) chunks() model.Chunks { return t.cfg.Chunks(t.Stage) }

// learned are answers as the student learns them: in chunks each is a sequence.
func (t *Trainer) learned(answers []model.Seq) []model.Seq {
	list, _ := t.chunks().SplitAll(answers)
	return list
}

// scored are answers as the discriminator reads them: whole, or of each its last chunk.
func (t *Trainer) scored(answers []model.Seq) []model.Seq {
	if t.cfg.Critic.Reads != "last" {
		return answers
	}
	return t.chunks().Last(answers)
}

// whole are the answers of a round with their prompts, ended as the teacher's are.
func (t *Trainer) whole(r *round) []model.Seq {
	out, written := make([]model.Seq, len(r.group)), r.written()
	for a, p := range r.group {
		if r.episodes != nil {
			out[a] = t.enc.Ending().Turns(r.episodes[a].Script, r.episodes[a].Open)
			continue
		}
		out[a] = t.enc.Ending().Seq(r.batch.Prompts[p], written[a], r.cut[a])
	}
	return out
}

// forCritic are the answers on the discriminator's path.
func (t *Trainer) forCritic(r *round) []model.Seq {
	return t.branching(t.scored(t.whole(r)))
}

// advantages turns scores into one advantage for each response token: shaping, KL in the reward,
// the estimator, the clip (doc/algorithms.md, "Rewards" and "Advantages", in that order). An
// answer's tokens are those of all its turns. It is nil where a score is not finite: then nothing
// can be learned by it.
func (t *Trainer) advantages(m Metrics, r *round) (advST [][]float64, err error) {
	c := t.cfg.Algorithm
	lenA, maskAT := r.mask()
	rewardA := t.rewards(m, r)
	in := algos.AdvantageInput{Scores: rewardA, Group: r.group, Len: lenA, Mask: maskAT,
		Steps: t.steps(r), Branches: r.allBranches()}
	if r.termA != nil {
		in.TokenRewards = padded(r.termA, maskAT)
	}
	if c.UseKLInReward && (r.refST != nil || r.klST != nil) {
		var kl float64
		if r.klST != nil {
			in.TokenRewards, in.Scores, kl, err = algos.SubtractKL(t.kl.Coef, rewardA,
				padded(r.byAnswer(r.klST), maskAT), maskAT)
		} else {
			in.TokenRewards, in.Scores, kl, err = algos.KLInReward(c.KLPenalty, t.kl.Coef, rewardA,
				padded(r.byAnswer(r.roll.OldST), maskAT), padded(r.byAnswer(r.refST), maskAT),
				maskAT)
		}
		if err != nil {
			return nil, err
		}
		m["reward/kl_mean"], m["reward/kl_coef"] = kl, t.kl.Coef
		if c.KLCtrl.Type == "adaptive" {
			t.kl.Update(kl, len(rewardA))
		}
	}
	r.rewardA = in.Scores
	m["reward/mean"], _, _ = moments(in.Scores)
	_, m["adv/zero_var_groups_frac"], err = algos.KeepGroups(in.Scores, r.group, 0)
	if err != nil {
		return nil, err
	}
	advAT, err := algos.Advantages(
		algos.AdvantageConfig{Name: c.AdvEstimator, Gamma: c.Gamma, ZScoreFloor: c.ZScoreFloor,
			ClipAbs: c.AdvClip, MeanOnly: !c.NormByStd, Power: c.AdvPower,
			GroupStats: c.GroupStats, StepWeight: c.GiGPO.StepAdvantageW}, in)
	if errors.Is(err, algos.ErrNotFinite) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	advA := make([]float64, len(advAT))
	for a, row := range advAT {
		advA[a] = row[0]
	}
	m["adv/mean"], m["adv/std"], m["adv/max"] = moments(advA)
	if t.cfg.Actor.ReadsEntropy() {
		return gtpo(advA, r.roll, len(maskAT[0]))
	}
	r.advST = r.bySequence(advAT)
	return r.advST, nil
}

func (t *Trainer) updateCritic(m Metrics, r *round) error {
	b := r.batch
	cb := critic.Batch{Step: t.step, Students: r.forCritic, Group: r.group,
		Teachers: t.scored(b.Teachers),
		Skip:     make([]bool, len(r.forCritic)), ScoreS: r.scoreA, ScoreP: r.scoreP,
		TurnS: r.turnA, TurnP: r.turnP}
	if t.cfg.Critic.Truncated == "exclude" {
		for a, p := range r.group {
			cb.Skip[a] = r.cut[a] || b.TeacherCut[p]
		}
	}
	if t.cfg.Critic.ByToken() {
		err := t.phase(m, "update_critic", t.critic.Model(), cb.Students, 1, func() (err error) {
			r.termA, err = t.critic.Terms(cb.Students)
			return err
		})
		if err != nil {
			return err
		}
	}
	m["critic/pairs"] = float64(cb.Pairs())
	m["critic/pairs_frac"] = float64(cb.Pairs()) / float64(len(cb.Skip))
	var st critic.Stats
	passes := t.cfg.Critic.PPOEpochs
	if n := t.cfg.Critic.PPOMiniBatch; r.scoreA == nil && n > 0 && n < len(b.Rows) {
		passes++ // later mini-batches are scored before the first one is learned from
	}
	err := t.phase(m, "update_critic", t.critic.Model(), slices.Concat(cb.Students, cb.Teachers),
		passes, func() (err error) {
			st, err = t.critic.Update(cb)
			return err
		})
	if err != nil {
		return err
	}
	r.scoreA, r.scoreP, r.turnA, r.turnP = st.ScoreS, st.ScoreP, st.TurnS, st.TurnP
	if cb.ScoreS, cb.ScoreP = st.ScoreS, st.ScoreP; cb.Pairs() > 0 {
		t.noteSignal(m, cb.Signal())
	}
	if st.Pairs > 0 {
		m["critic/d_loss"], m["critic/d_acc"], m["critic/updates"] =
			st.Loss, st.Acc, float64(st.Updates)
		if t.cfg.Critic.GroupOT > 0 {
			m["critic/group_term"] = st.GroupTerm
		}
		if t.critic.Replay != nil {
			m["critic/pool_frac"] = st.Pooled
		}
	}
	if st.Updates > 0 {
		m["critic/grad_norm"], m["critic/lr"] = st.GradNorm, st.LR
	}
	return t.skips("critic", st.Updates, st.Skipped, st.Streak, m)
}

func (t *Trainer) updateActor(m Metrics, b *encode.Batch, r *actor.Rollout, advST [][]float64,
	refST [][]float32) error {
	var st actor.Stats
	sft := t.learnsTeacher()
	if !sft && advST == nil {
		return t.skips("actor", 0, 1, 1, m)
	}
	learned, passes := []model.Seq(nil), 1
	if sft {
		learned = t.learned(b.Teachers)
	} else {
		learned, passes = r.Seqs, t.cfg.Actor.PPOEpochs
	}
	aside := t.teacher.aside()
	err := t.phase(m, "update_actor", t.actor.Model(), learned, passes, func() (err error) {
		if sft {
			st, err = t.actor.SoftSFT(learned, t.softLabels(b, learned))
		} else {
			st, err = t.actor.Update(r, advST, refST)
		}
		return err
	})
	if err != nil {
		return err
	}
	if took := t.teacher.aside() - aside; took > 0 {
		m["timing_s/teacher_logp"] = took.Seconds()
	}
	switch {
	case st.Passes == 0: // skipped whole: there is no figure
	case sft:
		m["actor/sft_loss"] = st.Loss
		t.describeSoft(m, b, st)
	default:
		m["actor/pg_loss"], m["actor/pg_clipfrac"], m["actor/seq_clipfrac"] =
			st.PGLoss, st.ClipFrac(), st.SeqClipFrac()
		m["actor/ppo_kl"], m["actor/ratio_min"], m["actor/ratio_max"] =
			st.PPOKL(), st.RatioMin, st.RatioMax
		m["actor/first_ratio_min"], m["actor/first_ratio_max"] = st.FirstRatioMin, st.FirstRatioMax
		if t.cfg.Divergence(t.Stage) {
			m["opd/divergence"] = st.KLLoss
		}
		if n := st.Soft.Tokens; n > 0 {
			m["opd/topk_overlap"], m["opd/teacher_mass"], m["opd/student_mass"] =
				st.Soft.Overlap/n, st.Soft.TeacherMass/n, st.Soft.StudentMass/n
		}
		if t.cfg.Actor.HasKL() {
			m["actor/kl_loss"], m["actor/kl_share"] = st.KLLoss, st.KLShare
			if push := t.meanAbs(r, advST); push > 0 && t.Stage != config.OPD {
				m["actor/kl_pull"] = t.cfg.Actor.KLLossCoef * math.Sqrt(2*math.Abs(st.KLLoss)) /
					push
			}
		}
	}
	if st.Passes > 0 {
		m["actor/entropy"] = st.Entropy
	}
	if st.Updates > 0 {
		m["actor/grad_norm"], m["actor/lr"] = st.GradNorm, st.LR
	}
	return t.skips("actor", st.Updates, st.Skipped, st.Streak, m)
}

// meanAbs is the mean absolute advantage over the responses: of each its first token's or, where a
// teacher gives each token its own, the mean over its tokens.
func (t *Trainer) meanAbs(r *actor.Rollout, advST [][]float64) float64 {
	sum := 0.0
	for s, row := range advST {
		row = row[:1]
		if n := r.Seqs[s].Trained(); t.cfg.Mixes(t.Stage) && n > 1 {
			row = advST[s][:n]
		}
		own := 0.0
		for _, x := range row {
			own += math.Abs(x)
		}
		sum += own / float64(len(row))
	}
	return sum / float64(len(advST))
}

// learnsTeacher reports whether the actor's objective is the teacher's answers.
func (t *Trainer) learnsTeacher() bool { return t.cfg.LearnsTeacher(t.Stage) }

// sftStep is one step of the SeqKD baseline: the teacher's answers alone.
func (t *Trainer) sftStep() (Metrics, error) {
	m := Metrics{}
	batch, err := t.draw(t.cfg.Data.TrainBatchSize)
	if err != nil {
		return nil, err
	}
	t.stepRows = batch.Rows
	if err := t.updateActor(m, batch, nil, nil, nil); err != nil {
		return m, err
	}
	learned := t.learned(batch.Teachers)
	t.done = t.count(m, len(batch.Rows), learned,
		func(config.Pass) []model.Seq { return learned })
	t.describeTeacher(m, batch)
	return m, nil
}

// Below: what a step says about itself.

// describe adds the metrics of the rollout and the teacher, and writes samples with the answers'
// advantages [A].
func (t *Trainer) describe(m Metrics, r *round, advA []float64) error {
	var lens, cut, repeat float64
	longest := 0
	for a, ids := range r.written() {
		lens += float64(len(ids))
		longest = max(longest, len(ids))
		if r.cut[a] {
			cut++
		}
		repeat += textmetrics.RepeatFrac(ids)
	}
	n := float64(len(r.group))
	m["train/prompts"] = float64(len(r.batch.Rows))
	m["rollout/len_mean"], m["rollout/len_max"] = lens/n, float64(longest)
	m["rollout/truncated_frac"], m["rollout/repeat_frac"] = cut/n, repeat/n
	m["rollout/unique_frac"] = uniqueFrac(t.whole(r), r.group)
	if t.chunks().On() {
		m["rollout/chunks_mean"] = float64(len(r.roll.Seqs)) / n
	}
	t.describeTrees(m, r)
	t.describeTeacher(m, r.batch)
	return t.samples(r, advA)
}

// firstOf are the advantages [A] of the answers' first tokens; NaN where there are none.
func (r *round) firstOf(advST [][]float64) []float64 {
	advA := make([]float64, len(r.group))
	for a, s := range r.firsts() {
		if advA[a] = math.NaN(); advST != nil {
			advA[a] = advST[s][0]
		}
	}
	return advA
}

func (t *Trainer) describeTeacher(m Metrics, b *encode.Batch) {
	var lens, cut float64
	for p, seq := range b.Teachers {
		lens += float64(seq.Trained())
		if b.TeacherCut[p] {
			cut++
		}
	}
	m["teacher/unique_frac"] = uniqueFrac(b.Teachers, nil)
	m["teacher/len_mean"], m["teacher/truncated_frac"] =
		lens/float64(len(b.Rows)), cut/float64(len(b.Rows))
	if x, ok := m["rollout/len_mean"]; ok {
		m["rollout/len_ratio"] = x / m["teacher/len_mean"]
	}
}

// uniqueFrac is the share of different responses among those of different prompts. The
// n answers of a prompt are not compared with each other: a student that is sure of its
// answer writes it n times. The i-th answers of all prompts are compared, for each i, and
// the shares averaged, so that the figure is comparable with the teacher's, which has one
// answer per prompt (group nil: each response has a prompt of its own).
func uniqueFrac(seqs []model.Seq, group []int) float64 {
	seen, nth := map[string]bool{}, map[int]int{}
	var key []byte
	for s, seq := range seqs {
		p := s
		if group != nil {
			p = group[s]
		}
		key = binary.AppendVarint(key[:0], int64(nth[p]))
		for _, id := range seq.Response() {
			key = binary.AppendVarint(key, int64(id))
		}
		seen[string(key)] = true
		nth[p]++
	}
	return float64(len(seen)) / float64(len(seqs))
}

// skips counts optimizer steps left out because the gradient was not finite, and
// stops the run after too many in a row.
func (t *Trainer) skips(who string, updates, skipped, streak int, m Metrics) error {
	if updates > 0 {
		t.skipped[who] = 0
	}
	t.skipped[who] += streak
	if skipped > 0 {
		m[who+"/skipped_updates"] = float64(skipped)
		t.log.Warn(
			fmt.Sprintf(
				"%s: a score, loss or gradient is not finite: update skipped, weights unchanged",
				who))
	}
	if t.skipped[who] >= t.cfg.Trainer.MaxSkips {
		return fmt.Errorf("%w: %s: %d optimizer steps in a row with a score, loss or gradient that is not finite (trainer.max_skips): lower %s.optim.lr and %s", ErrNumerical, who, t.skipped[who], who, t.wayBack())
	}
	return nil
}

// wayBack says where to go on from when the numbers have broken down.
func (t *Trainer) wayBack() string {
	if t.good > 0 {
		return fmt.Sprintf(
			"resume from global_step_%d, the last checkpoint before updates were skipped", t.good)
	}
	return "start again with another --output"
}

// Metrics are one step's figures by name.
type Metrics map[string]float64

// apart are the seconds of the parts of a step that a rollout may have within it.
func (m Metrics) apart() float64 { return m["timing_s/score"] + m["timing_s/check"] }

// time runs f and adds its seconds to the metric.
func (m Metrics) time(name string, f func() error) error {
	start := time.Now()
	err := f()
	m[name] += time.Since(start).Seconds()
	return err
}
