package trainer

import (
	"encoding/binary"
	"fmt"
	"math"

	"gad/actor"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
)

// onPolicy is the part that stages share whose student learns from its own answers: the game, its
// warm-up, and opd.
type onPolicy struct {
	basic
	round    *round    // of the step
	teachers *teachers // nil if no probabilities of a teacher are read
	read     []reading // sequences that the teachers have read in the step
}

func (o *onPolicy) networks() []network { return o.teachers.networks(o.read) }

// next returns a round of the next n prompts. drawn counts the step's draws of each row: a row that
// is drawn again gets a key that no row has, so that its answers differ.
func (o *onPolicy) next(n int, drawn map[int]int) (*round, error) {
	b, err := o.t.draw(n)
	if err != nil {
		return nil, err
	}
	keys := make([]int, len(b))
	for i, row := range b {
		keys[i] = row.Index + drawn[row.Index]*o.t.train.set.Len()
		drawn[row.Index]++
	}
	return newRound(b, keys), nil
}

// sample samples the student's answers to the prompts of a round, and sets their old
// log-probabilities. readsOld reports whether the step reads these.
func (o *onPolicy) sample(m Metrics, r *round, readsOld bool) error {
	t, before, nested := o.t, m["timing_s/rollout"], m.nestedTime()
	t.ranks.Enter("rollout")
	if err := m.time("timing_s/rollout", func() error { return t.form.sample(m, r) }); err != nil {
		return err
	}
	m["timing_s/rollout"] -= m.nestedTime() - nested
	tokens := 0
	for _, a := range r.answers() {
		tokens += a.ownTokens()
	}
	m["rollout/tokens_per_s"] = float64(tokens) / max(m["timing_s/rollout"]-before, 1e-9)
	return o.oldLogProbs(m, r, readsOld)
}

// A step takes only the forward passes whose results are read and not known already. The conditions
// are here and in passes.go; doc/performance.md has the table.

// checksOld reports whether the present step compares the sampler's log-probabilities with the
// trainer's.
func (t *Trainer) checksOld() bool {
	step := t.step + 1
	return step <= config.CheckFirst || step%config.CheckEvery == 0
}

// recomputesOld reports whether the trainer's own pass gives the old log-probabilities.
func (o *onPolicy) recomputesOld() bool {
	t := o.t
	switch t.cfg.Actor.OldLogProb {
	case "recompute":
		return true
	case "rollout":
		return false
	}
	return t.past.oldDiffers || t.actor.Merges() || !t.be.Alone()
}

// oldLogProbs sets the old log-probabilities, the denominators of ratios: the sampler's, or the
// result of a forward pass of the trainer. If a sampler that should have the trainer's bits has
// others, it is not trusted for the rest of the run.
func (o *onPolicy) oldLogProbs(m Metrics, r *round, read bool) error {
	t, own, checks := o.t, o.recomputesOld(), o.t.checksOld()
	if !checks && !(own && read) {
		return nil // the answers have the sampler's
	}
	roll := r.rollout()
	if first := t.cfg.FirstRatios(o.kind, roll.Prompts()); !checks {
		for len(roll) > 0 && roll[0].Group < first {
			roll[0].Old, roll = nil, roll[1:]
		}
		if len(roll) == 0 {
			return nil
		}
	}
	if err := t.phase(m, "old_logp", t.actor.Model(), roll.Seqs(), 1,
		func() error { return t.actor.RecomputeOld(roll) }); err != nil {
		return err
	}
	diff := m["rollout/logp_diff_max"]
	for _, s := range roll {
		for i, x := range s.Old {
			diff = math.Max(diff, math.Abs(float64(x)-float64(s.Sampled[i])))
		}
	}
	m["rollout/logp_diff_max"] = diff
	switch {
	case t.cfg.Actor.OldLogProb == "rollout":
		for _, s := range roll {
			s.Old = s.Sampled
		}
	case t.cfg.Actor.OldLogProb == "auto" && t.be.Alone() && !t.actor.Merges() && diff != 0 &&
		!t.past.oldDiffers:
		t.past.oldDiffers = true
		t.log.Warn(fmt.Sprintf("rollout/logp_diff_max is %g and should be 0 on %s: from here on a forward pass of the trainer gives the old log-probabilities (as actor.old_log_prob=recompute): please report it", diff, t.be.Name()))
	}
	return nil
}

// refLogProbs sets the reference's log-probabilities, if the run has a reference and they are not
// set yet.
func (o *onPolicy) refLogProbs(m Metrics, r *round) error {
	t, roll := o.t, r.rollout()
	if t.reference == nil || len(roll) > 0 && roll[0].Ref != nil {
		return nil
	}
	return t.phase(m, "ref_logp", t.reference.Model(), roll.Seqs(), 1, func() error {
		refST, err := t.reference.LogProbs(roll.Seqs(), t.cfg.Rollout.Temperature)
		if err == nil {
			roll.SetRef(refST)
		}
		return err
	})
}

// updatePolicy takes the optimizer steps of the policy loss on a round's advantages. Without
// advantages it counts a skipped update.
func (o *onPolicy) updatePolicy(m Metrics, r *round) (st actor.Stats, err error) {
	t := o.t
	if !r.hasAdvantages {
		return st, t.noteUpdates(m, "actor", 0, 0, 0, 1, 1)
	}
	roll, aside := r.rollout(), o.teachers.updateTime()
	err = t.phase(m, "update_actor", t.actor.Model(), roll.Seqs(), t.cfg.Actor.PPOEpochs,
		func() (err error) {
			st, err = t.actor.Update(roll)
			return err
		})
	if err != nil {
		return st, err
	}
	if took := o.teachers.updateTime() - aside; took > 0 {
		m["timing_s/teacher_logp"] = took.Seconds()
	}
	if st.Passes > 0 { // otherwise it was skipped whole, and has no figure
		m["actor/pg_loss"], m["actor/pg_clipfrac"], m["actor/seq_clipfrac"] =
			st.PGLoss, st.ClipFrac(), st.SeqClipFrac()
		m["actor/ppo_kl"], m["actor/ratio_min"], m["actor/ratio_max"] =
			st.PPOKL(), st.RatioMin, st.RatioMax
		m["actor/first_ratio_min"], m["actor/first_ratio_max"] = st.FirstRatioMin, st.FirstRatioMax
		if t.cfg.Actor.HasKL() {
			m["actor/kl_loss"], m["actor/kl_share"] = st.KLLoss, st.KLShare
		}
		m["actor/entropy"] = st.Entropy
	}
	return st, t.noteUpdates(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Streak)
}

// teacherSeqs returns the teacher's answers of the step as sequences that the student would learn.
func (o *onPolicy) teacherSeqs() []model.Seq {
	return o.t.form.trainSeqs(o.round.batch().Teachers())
}

// describe adds the metrics of a round to m, and writes samples of it with the scores that the
// stage shows.
func (o *onPolicy) describe(m Metrics, r *round,
	scores func(*group, *answer) (student, teacher float64)) error {
	var lens, cut, repeat float64
	longest := 0
	answers := r.answers()
	for _, a := range answers {
		lens += float64(len(a.ids))
		longest = max(longest, len(a.ids))
		if a.cut {
			cut++
		}
		repeat += textmetrics.RepeatFrac(a.ids)
	}
	n := float64(len(answers))
	m["train/prompts"] = float64(len(r.groups))
	m["rollout/len_mean"], m["rollout/len_max"] = lens/n, float64(longest)
	m["rollout/truncated_frac"], m["rollout/repeat_frac"] = cut/n, repeat/n
	m["rollout/unique_frac"] = uniqueFrac(each(r, o.t.form.whole), r.group())
	if err := o.t.form.describe(m, r); err != nil {
		return err
	}
	o.describeTeacher(m, r.batch())
	return o.samples(r, scores)
}

// samples writes the answers to the step's first prompts as samples.
func (o *onPolicy) samples(r *round,
	scores func(*group, *answer) (student, teacher float64)) error {
	t := o.t
	var out []report.Sample
	for _, g := range r.groups[:min(t.cfg.Trainer.SaveSamples, len(r.groups))] {
		for _, a := range g.answers {
			s := report.Sample{Row: g.Index, Prompt: g.PromptText, Teacher: g.TeacherText,
				Advantage: a.adv, Notes: a.taught.notes}
			s.StudentScore, s.TeacherScore = scores(g, a)
			if err := t.form.fillSample(&s, a); err != nil {
				return err
			}
			out = append(out, s)
		}
	}
	if t.cfg.Trainer.SaveSamples == 0 {
		return nil
	}
	return t.rec.Samples(report.InTraining, t.step+1, out)
}

// uniqueFrac returns the share of different responses among responses to different prompts. The n
// answers to one prompt are not compared with each other: a student that is sure of its answer
// writes it n times. The i-th answers to all prompts are compared, for each i, and the shares
// averaged, so that the figure is comparable with the teacher's, which has one answer per prompt
// (group nil: each response has a prompt of its own).
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
