package trainer

import (
	"fmt"
	"math"

	"gad/critic"
	"gad/internal/report"
	"gad/trainer/saved"
)

// smoothing is the weight of the present step in a smoothed figure: about the last
// ten steps count.
const smoothing = 0.2

// noteSignal notes what the discriminator knew of a batch.
func (t *Trainer) noteSignal(m Metrics, g critic.Signal) {
	m["critic/d_acc_fresh"], m["critic/student_value_mean"], m["critic/teacher_value_mean"] =
		g.Acc, g.StudentMean, g.TeacherMean
	m["critic/score_gap"] = g.TeacherMean - g.StudentMean
	m["critic/tie_frac"] = g.Ties
	m["critic/group_std"], m["critic/group_rel_std"] = g.GroupStd, g.RelStd
	m["critic/collapsed_groups_frac"], m["critic/top_gap"] = g.Collapsed, g.TopGap
	if g.Distinct == 0 {
		return
	}
	m["critic/d_acc_distinct"], m["critic/d_loss_distinct"] = g.DistinctAcc, g.DistinctLoss
	if d := &t.disc; !math.IsNaN(g.DistinctLoss) && !math.IsInf(g.DistinctLoss, 0) {
		if d.Steps++; d.Steps == 1 {
			d.Loss, d.Acc = g.DistinctLoss, g.DistinctAcc
		}
		// Rounded before the sum on every architecture: the warm-up ends by it.
		d.Loss += float64(smoothing * (g.DistinctLoss - d.Loss))
		d.Acc += float64(smoothing * (g.DistinctAcc - d.Acc))
	}
}

// criticAlone reports whether the discriminator learns alone in the present step:
// for trainer.critic_warmup steps, and then, where trainer.critic_warmup_until is set,
// until it has learned enough.
func (t *Trainer) criticAlone() bool {
	if t.until() > 0 {
		return t.disc.AloneFor == 0
	}
	return t.step < t.cfg.Trainer.CriticWarmup
}

// until is the bound on the smoothed loss at which the discriminator's time alone
// ends; 0 is none, as in stages without a discriminator.
func (t *Trainer) until() float64 {
	if !t.Stage.HasCritic() {
		return 0
	}
	return t.cfg.Trainer.CriticWarmupUntil
}

// lastAlone is the most steps that the discriminator may learn alone.
func (t *Trainer) lastAlone() int {
	if t.until() > 0 {
		return t.cfg.Trainer.CriticWarmupMax
	}
	return t.cfg.Trainer.CriticWarmup
}

// endAlone ends the discriminator's time alone after the step just taken, if that is
// due, and notes in m whether the discriminator has learned. The steps of the run that
// follow are as many as they would be after trainer.critic_warmup steps alone.
func (t *Trainer) endAlone(m Metrics) {
	c := t.cfg.Trainer
	if t.until() == 0 || t.disc.AloneFor > 0 || t.step < c.CriticWarmup {
		return
	}
	learned := t.disc.Steps > 0 && t.disc.Loss < c.CriticWarmupUntil
	if !learned && t.step < c.CriticWarmupMax {
		return
	}
	t.disc.AloneFor = max(t.step, 1)
	t.setTotal()
	m["critic/warmup_learned"] = 0
	if learned {
		m["critic/warmup_learned"] = 1
		t.log.Info(fmt.Sprintf("the discriminator has learned after %s: smoothed loss %.3f over pairs that differ, below trainer.critic_warmup_until %g", report.Count(t.step, "step"), t.disc.Loss, c.CriticWarmupUntil))
	} else {
		t.log.Warn(fmt.Sprintf("the discriminator has not learned in %s (trainer.critic_warmup_max): its smoothed loss over pairs that differ is %.3f, not below trainer.critic_warmup_until %g; guessing is 0.693: %s", report.Count(t.step, "step"), t.disc.Loss, c.CriticWarmupUntil, saved.StartAdvice))
	}
}

// setTotal sets the steps of the run: those asked for, and those that the
// discriminator learns alone beyond trainer.critic_warmup.
func (t *Trainer) setTotal() {
	t.total = t.planned
	if t.until() > 0 {
		alone, least := t.lastAlone(), t.cfg.Trainer.CriticWarmup
		if t.disc.AloneFor > 0 {
			alone = t.disc.AloneFor
		}
		t.total = max(t.planned, least) + alone - least
	}
	if t.rec != nil {
		t.rec.Total(t.total)
	}
}
