package trainer

import (
	"math"

	"gad/actor"
	"gad/checkpoint"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// opd is on-policy distillation (Agarwal et al., arXiv 2306.13649): the student answers, the
// teacher gives each of its tokens a log-probability, and the difference is the token's advantage.
type opd struct {
	onPolicy
	coach *coach // writes notes on the answers; nil without one
}

// newOPD returns the stage of on-policy distillation.
func newOPD(b basic, _ *start) stage { return &opd{onPolicy: onPolicy{basic: b}} }

// byTokens reports whether the student learns by a divergence of two distributions at each token,
// which the teacher must give over the student's own tokens.
func (o *opd) byTokens() bool { return o.t.cfg.Divergence(o.kind) }

func (o *opd) open(s *start) (err error) {
	t := o.t
	if o.teachers, err = openTeachers(o.basic, s, o.byTokens()); err != nil {
		return err
	}
	if err := o.teachers.resume(s); err != nil {
		return err
	}
	if o.coach, err = openCoach(o.basic, s); err != nil || !o.byTokens() {
		return err
	}
	target := actor.Target{Beta: t.cfg.Teacher.Beta}
	if t.cfg.Teacher.Loss == "topk" {
		target.Top = t.cfg.Teacher.TopK
	}
	t.actor.SetTarget(target)
	return nil
}

func (o *opd) close() error { return o.teachers.Close() }

// save writes the teacher, if it is a copy of the student at an earlier step.
func (o *opd) save(d *checkpoint.Dir, _ *saved.State) error { return o.teachers.save(d) }

func (o *opd) bytes() int64 { return o.teachers.bytes() }

func (o *opd) step(m Metrics) error {
	if err := o.teachers.renew(); err != nil {
		return err
	}
	r, err := o.next(o.t.cfg.Data.TrainBatchSize, map[int]int{})
	if err != nil {
		return err
	}
	o.round = r
	horizon := o.t.cfg.Horizon(o.kind, o.t.step, o.t.past.planned)
	o.t.actor.SetMaxNew(horizon)
	if err := o.sample(m, r, true); err != nil {
		return err
	}
	if err := o.coach.write(m, r); err != nil {
		return err
	}
	if o.read, err = o.teachers.readings(r); err != nil {
		return err
	}
	o.coach.describe(m, r, o.teachers)
	learn := o.byPolicy
	if o.byTokens() {
		learn = o.byDivergence
	}
	st, err := learn(m, r)
	if st.Passes > 0 {
		o.describeLabels(m, st)
	}
	if err != nil {
		return err
	}
	err = o.describe(m, r, func(_ *group, a *answer) (student, teacher float64) {
		return a.taught.logp, math.NaN() // the row's own answer is not read
	})
	o.describeHorizon(m, horizon)
	return err
}

// describeHorizon adds the metrics of a horizon. Answers that end at it are not cut at the limit of
// answers, and how many would be is unknown.
func (o *opd) describeHorizon(m Metrics, horizon int) {
	if !o.t.cfg.HasHorizon(o.kind) {
		return
	}
	m["opd/horizon"] = float64(horizon)
	m["opd/horizon_frac"] = m["rollout/truncated_frac"]
	if horizon < o.t.cfg.MaxAnswer(o.kind) {
		delete(m, "rollout/truncated_frac")
		delete(m, "rollout/len_ratio")
	}
}

// byPolicy updates the student by policy gradients. A sample shows an answer's mean advantage.
func (o *opd) byPolicy(m Metrics, r *round) (st actor.Stats, err error) {
	advST, err := o.teachers.advantages(m, r, o.read)
	if err != nil {
		return st, err
	}
	if err := o.refLogProbs(m, r); err != nil {
		return st, err
	}
	if r.hasAdvantages = advST != nil; r.hasAdvantages {
		r.rollout().SetAdv(advST)
		for i, a := range r.answers() {
			a.adv, _ = report.Moments(advST[i])
		}
	}
	return o.updatePolicy(m, r)
}

// byDivergence updates the student by the divergence of the two distributions at each token: an
// update by policy gradients with advantages of 0, whose KL is the divergence from the teacher. No
// answer is scored.
func (o *opd) byDivergence(m Metrics, r *round) (st actor.Stats, err error) {
	roll := r.rollout()
	for i, s := range roll {
		s.Read, s.Adv = o.read[i].seq, make([]float64, s.Seq.Trained())
	}
	if err := o.teachers.labels(m, roll, o.read, o.t.cfg.Teacher.TopK); err != nil {
		return st, err
	}
	r.hasAdvantages = true
	if st, err = o.updatePolicy(m, r); st.Passes > 0 {
		m["opd/divergence"] = st.KLLoss
	}
	return st, err
}

// describeLabels adds the metrics of the teacher's most probable tokens.
func (o *opd) describeLabels(m Metrics, st actor.Stats) {
	if n := st.Soft.Tokens; n > 0 {
		m["opd/topk_overlap"], m["opd/teacher_mass"], m["opd/student_mass"] =
			st.Soft.Overlap/n, st.Soft.TeacherMass/n, st.Soft.StudentMass/n
	}
}

func (o *opd) stepSeqs() []model.Seq { return o.round.rollout().Seqs() }

func (o *opd) passSeqs(x config.Pass) []model.Seq {
	switch {
	case x.Network == config.Teacher:
		return readSeqs(o.read)
	case x.Notes > 0:
		return o.coach.by.wrote()
	}
	return o.stepSeqs()
}
