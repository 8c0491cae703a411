package trainer

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"gad/actor"
	"gad/critic"
	"gad/model"
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

// thoughtPass is the part of a step in which thoughts are read.
const thoughtPass = "thought_logp"

// thoughts takes the term teacher_logp: how probable the student, at temperature 1, finds the
// teacher's answer behind its own thought, as a mean over that answer's tokens. A thought ends with
// the first </think>; without one it is all of an answer but end tokens, as where it was cut. The
// sequence is no longer than a prompt and an answer may be: a thought that leaves no room loses its
// beginning. Where the teacher's answer has no thought the term is 0.
func (t *Trainer) thoughts(m Metrics, r *round) error {
	if !t.cfg.ReadsThoughts(t.Stage) {
		return nil
	}
	r.behindA, r.teacherA = make([]model.Seq, len(r.group)), make([]float64, len(r.group))
	var seqs []model.Seq
	for a, ids := range r.written() {
		teacher := r.batch.Teachers[r.group[a]].Response()
		after := t.thought(teacher)
		if after == 0 || after == len(teacher) {
			continue
		}
		teacher = teacher[after:]
		n := t.thought(ids)
		if n == 0 {
			n = len(t.enc.Ending().Seq(nil, ids, true).IDs)
		}
		room := max(0, t.cfg.Data.MaxResponse-len(teacher))
		prompt := r.batch.Prompts[r.group[a]]
		before := slices.Concat(prompt, ids[max(0, n-room):n])
		s := model.Answer(slices.Concat(before, teacher), len(before))
		s.Shared = len(prompt)
		r.behindA[a], seqs = s, append(seqs, s)
	}
	if len(seqs) == 0 {
		t.thoughtless.Do(func() {
			t.log.Warn("algorithm.terms: none of a step's answers of the teacher has a thought that ends with </think>: the term teacher_logp is 0 for them: keep thoughts (gad data collect --keep-thinking, reasoning_content of a row), or leave it out")
		})
		return nil
	}
	return t.phase(m, thoughtPass, t.actor.Model(), seqs, 1, func() error {
		logpST, _, err := t.actor.Model().AllLogProbs(seqs, 1, t.cfg.Actor.MaxTokenLen)
		if err != nil {
			return fmt.Errorf("actor: %w", err)
		}
		s := 0
		for a := range r.behindA {
			if empty(r.behindA[a]) {
				continue
			}
			r.teacherA[a], _, _ = moments(float64s(logpST[s]))
			s++
		}
		return nil
	})
}

// thought is the number of tokens of an answer up to the first </think>; 0 if there is none.
func (t *Trainer) thought(ids []int32) int {
	n := sort.Search(len(ids)+1, func(n int) bool {
		return strings.Contains(t.tok.Decode(ids[:n], false), "</think>")
	})
	if n > len(ids) {
		return 0
	}
	return n
}

// empty says that a sequence is none.
func empty(s model.Seq) bool { return len(s.IDs) == 0 }
