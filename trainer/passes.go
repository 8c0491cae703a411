package trainer

import (
	"fmt"
	"math"
	"slices"

	"gad/actor"
	"gad/critic"
	"gad/trainer/config"
)

// A step takes only the forward passes whose results are read and not known already. This
// file says which those are; doc/performance.md has the table.

// checksOld reports whether the present step compares the sampler's log-probabilities with the
// trainer's.
func (t *Trainer) checksOld() bool {
	step := t.step + 1
	return step <= config.CheckFirst || step%config.CheckEvery == 0
}

// readsOld reports whether the present step reads old log-probabilities: for the ratio, or
// for the KL in the reward.
func (t *Trainer) readsOld() bool {
	return !t.criticAlone() && !t.learnsTeacher() || t.reference != nil &&
		t.cfg.Algorithm.UseKLInReward
}

// recomputesOld reports whether the trainer's own pass gives the old log-probabilities.
func (t *Trainer) recomputesOld() bool {
	switch t.cfg.Actor.OldLogProb {
	case "recompute":
		return true
	case "rollout":
		return false
	}
	return t.oldDiffers || t.actor.Merges() || !t.be.Alone() || t.cfg.Actor.ReadsEntropy()
}

// oldLogProbs sets the log-probabilities that ratios are taken to: the sampler's, or those
// of the trainer's own forward pass. A sampler that should have the trainer's bits and has
// not is no longer believed.
func (t *Trainer) oldLogProbs(m Metrics, r *actor.Rollout) error {
	own := t.recomputesOld()
	if !t.checksOld() && !(own && (t.readsOld() || t.cfg.Actor.ReadsEntropy())) {
		return nil // r has the sampler's
	}
	if err := t.phase(m, "old_logp", t.actor.Model(), r.Seqs, 1,
		func() error { return t.actor.Old(r) }); err != nil {
		return err
	}
	diff := m["rollout/logp_diff_max"]
	for s := range r.OldST {
		for i, x := range r.OldST[s] {
			diff = math.Max(diff, math.Abs(float64(x)-float64(r.SampledST[s][i])))
		}
	}
	m["rollout/logp_diff_max"] = diff
	switch {
	case t.cfg.Actor.OldLogProb == "rollout":
		r.OldST = r.SampledST
	case t.cfg.Actor.OldLogProb == "auto" && t.be.Alone() && !t.actor.Merges() && diff != 0 &&
		!t.oldDiffers:
		t.oldDiffers = true
		t.log.Warn(fmt.Sprintf("rollout/logp_diff_max is %g and should be 0 on %s: from here on a forward pass of the trainer gives the old log-probabilities (as actor.old_log_prob=recompute): please report it", diff, t.be.Name()))
	}
	return nil
}

// score takes the discriminator's scores of both sides, by a pass of their own.
func (t *Trainer) score(m Metrics, r *round) error {
	b := critic.Batch{Students: r.forCritic, Teachers: t.scored(r.batch.Teachers)}
	err := t.phase(m, "score", t.critic.Model(), slices.Concat(b.Students, b.Teachers), 1,
		func() error { return t.critic.ScoreBoth(&b) })
	r.scoreA, r.scoreP, r.turnA, r.turnP = b.ScoreS, b.ScoreP, b.TurnS, b.TurnP
	return err
}

// rewardKL takes what the KL in the reward is made of: the reference's log-probabilities, or
// the exact divergences, by passes of the student and of the reference.
func (t *Trainer) rewardKL(m Metrics, r *round) error {
	if t.reference == nil {
		return nil
	}
	if exact, _ := t.cfg.ExactKL(t.Stage); !exact {
		return t.refLogProbs(m, r)
	}
	return t.phase(m, "exact_kl", t.actor.Model(), r.roll.Seqs, 1, func() (err error) {
		r.klST, err = t.reference.KL(t.actor.Model(), r.roll.Seqs, t.cfg.Rollout.Temperature)
		return err
	})
}

// refLogProbs takes the reference's log-probabilities, if the run has a reference and they
// are not known.
func (t *Trainer) refLogProbs(m Metrics, r *round) error {
	if t.reference == nil || r.refST != nil {
		return nil
	}
	return t.phase(m, "ref_logp", t.reference.Model(), r.roll.Seqs, 1, func() (err error) {
		r.refST, err = t.reference.LogProbs(r.roll.Seqs, t.cfg.Rollout.Temperature)
		return err
	})
}
