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

// noteSignal adds the statistics of the discriminator's scores to m, and updates its smoothed loss
// and accuracy, unless no pair differs.
func (g *game) noteSignal(m Metrics, x critic.Signal) {
	m["critic/d_acc_fresh"], m["critic/student_value_mean"], m["critic/teacher_value_mean"] =
		x.Acc, x.StudentMean, x.TeacherMean
	m["critic/score_gap"] = x.TeacherMean - x.StudentMean
	m["critic/tie_frac"] = x.Ties
	m["critic/group_std"], m["critic/group_rel_std"] = x.GroupStd, x.RelStd
	m["critic/collapsed_groups_frac"], m["critic/top_gap"] = x.Collapsed, x.TopGap
	if x.Distinct == 0 {
		return
	}
	m["critic/d_acc_distinct"], m["critic/d_loss_distinct"] = x.DistinctAcc, x.DistinctLoss
	if d := &g.disc; !math.IsNaN(x.DistinctLoss) && !math.IsInf(x.DistinctLoss, 0) {
		if d.Steps++; d.Steps == 1 {
			d.Loss, d.Acc = x.DistinctLoss, x.DistinctAcc
		}
		// Rounded before the sum on every architecture: the warm-up ends by it.
		d.Loss += float64(smoothing * (x.DistinctLoss - d.Loss))
		d.Acc += float64(smoothing * (x.DistinctAcc - d.Acc))
	}
}

// alone reports whether only the discriminator learns in the present step: for
// trainer.critic_warmup steps, and then, with trainer.critic_warmup_until, until its smoothed loss
// is below that.
func (g *game) alone() bool {
	if g.lossBound() > 0 {
		return g.disc.AloneFor == 0
	}
	return g.t.step < g.t.cfg.Trainer.CriticWarmup
}

// lossBound returns trainer.critic_warmup_until: the smoothed loss below which the student begins
// to learn; 0: no bound.
func (g *game) lossBound() float64 { return g.t.cfg.Trainer.CriticWarmupUntil }

// maxAlone returns the largest number of steps that the discriminator may learn alone.
func (g *game) maxAlone() int {
	if g.lossBound() > 0 {
		return g.t.cfg.Trainer.CriticWarmupMax
	}
	return g.t.cfg.Trainer.CriticWarmup
}

// endAlone ends the discriminator's time alone after the present step, if that is due, and notes in
// m whether the discriminator has learned. The run then has as many more steps as after
// trainer.critic_warmup steps alone.
func (g *game) endAlone(m Metrics) {
	t, c, step := g.t, g.t.cfg.Trainer, g.t.step+1
	if g.lossBound() == 0 || g.disc.AloneFor > 0 || step < c.CriticWarmup {
		return
	}
	learned := g.disc.Steps > 0 && g.disc.Loss < c.CriticWarmupUntil
	if !learned && step < c.CriticWarmupMax {
		return
	}
	g.disc.AloneFor = max(step, 1)
	t.setTotal()
	m["critic/warmup_learned"] = 0
	if learned {
		m["critic/warmup_learned"] = 1
		t.log.Info(fmt.Sprintf("the discriminator has learned after %s: smoothed loss %.3f over pairs that differ, below trainer.critic_warmup_until %g", report.Count(step, "step"), g.disc.Loss, c.CriticWarmupUntil))
	} else {
		t.log.Warn(fmt.Sprintf("the discriminator has not learned in %s (trainer.critic_warmup_max): its smoothed loss over pairs that differ is %.3f, not below trainer.critic_warmup_until %g; guessing is 0.693: %s", report.Count(step, "step"), g.disc.Loss, c.CriticWarmupUntil, saved.StartAdvice))
	}
}

// total returns the steps asked for, and the steps that the discriminator learns alone beyond
// trainer.critic_warmup.
func (g *game) total(planned int) int {
	if g.lossBound() == 0 {
		return planned
	}
	alone, least := g.maxAlone(), g.t.cfg.Trainer.CriticWarmup
	if g.disc.AloneFor > 0 {
		alone = g.disc.AloneFor
	}
	return max(planned, least) + alone - least
}

// waitSteps returns the number of first steps in which only the discriminator learns.
func (g *game) waitSteps() int { return g.t.cfg.Trainer.CriticWarmup }

// length returns the number of steps of the run in words, or its bounds while the number is open.
func (g *game) length() string {
	total := g.t.total
	if g.lossBound() == 0 || g.disc.AloneFor > 0 {
		return report.Count(total, "step")
	}
	return fmt.Sprintf(
		"at most %s: up to %d for the discriminator alone (trainer.critic_warmup_max), then %d",
		report.Count(total, "step"), g.maxAlone(), total-g.maxAlone())
}
