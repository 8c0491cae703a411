package trainer

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// readsOld reports whether the present step reads old log-probabilities: for the ratio, or for the
// KL in the reward.
func (g *game) readsOld() bool {
	return !g.alone() && !g.imitates || g.t.reference != nil && g.t.cfg.Algorithm.UseKLInReward
}

// scoreRound sets the discriminator's scores of both sides, by a forward pass of their own.
func (g *game) scoreRound(m Metrics, r *round) error {
	b := g.criticBatch(r)
	err := g.t.phase(m, "score", g.critic.Model(), slices.Concat(b.Students, b.Teachers), 1,
		func() error { return g.critic.ScoreBoth(&b) })
	if err != nil {
		return err
	}
	r.setScores(b.ScoreS, b.ScoreP, b.TurnS, b.TurnP)
	return nil
}

// exactKLInReward reports whether the KL in the reward is the exact one, summed over the
// vocabulary.
func (g *game) exactKLInReward() bool {
	exact, _ := g.t.cfg.ExactKL(g.kind)
	return exact
}

// rewardKL sets the inputs of the KL in the reward: the reference's log-probabilities, or the exact
// divergences, by passes of the student and of the reference.
func (g *game) rewardKL(m Metrics, r *round) error {
	t := g.t
	if !t.cfg.Algorithm.UseKLInReward || t.reference == nil {
		return nil
	}
	if !g.exactKLInReward() {
		return g.refLogProbs(m, r)
	}
	seqs := r.rollout().Seqs()
	return t.phase(m, "exact_kl", t.actor.Model(), seqs, 1, func() error {
		klST, err := t.reference.KL(t.actor.Model(), seqs, t.cfg.Rollout.Temperature)
		if err != nil {
			return err
		}
		for _, a := range r.answers() {
			a.kl = slices.Concat(klST[:len(a.seqs)]...)
			klST = klST[len(a.seqs):]
		}
		return nil
	})
}

// thoughtPass is the part of a step that computes the term teacher_logp.
const thoughtPass = "thought_logp"

// thoughtTerm sets the term teacher_logp: the mean log-probability that the student, at temperature
// 1, gives to the tokens of the teacher's answer after the student's own thought. A thought ends
// with the first </think>; without one it is all of an answer but its end tokens, as in an answer
// that was cut. The sequence is no longer than a prompt and an answer may be: a thought that leaves
// no room loses its beginning. Where the teacher's answer has no thought the term is 0.
func (g *game) thoughtTerm(m Metrics, r *round) error {
	t := g.t
	if !g.hasTerm(config.TermTeacher) {
		return nil
	}
	for _, group := range r.groups {
		teacher := group.Teacher.Response()
		after := t.thoughtLen(teacher)
		if after == 0 || after == len(teacher) {
			continue
		}
		teacher = teacher[after:]
		for _, a := range group.answers {
			n := t.thoughtLen(a.ids)
			if n == 0 {
				n = len(t.enc.Seq(nil, encode.Response{IDs: a.ids}).IDs)
			}
			room := max(0, t.cfg.Data.MaxResponse-len(teacher))
			before := slices.Concat(group.Prompt, a.ids[max(0, n-room):n])
			a.thoughtSeq = model.Answer(slices.Concat(before, teacher), len(before))
			a.thoughtSeq.Shared = len(group.Prompt)
		}
	}
	seqs := r.thoughtSeqs()
	if len(seqs) == 0 {
		g.thoughtless.Do(func() {
			t.log.Warn("algorithm.terms: none of a step's answers of the teacher has a thought that ends with </think>: the term teacher_logp is 0 for them: keep thoughts (gad data collect --keep-thinking, reasoning_content of a row), or leave it out")
		})
		return nil
	}
	return t.phase(m, thoughtPass, t.actor.Model(), seqs, 1, func() error {
		logpST, _, err := t.actor.Model().AllLogProbs(seqs, 1, t.cfg.Actor.MaxTokenLen)
		if err != nil {
			return fmt.Errorf("actor: %w", err)
		}
		for _, a := range r.answers() {
			if len(a.thoughtSeq.IDs) > 0 {
				a.thoughtLogp, _ = report.Moments(float64s(logpST[0]))
				logpST = logpST[1:]
			}
		}
		return nil
	})
}

// thoughtSeqs returns the sequences of the term teacher_logp.
func (r *round) thoughtSeqs() (seqs []model.Seq) {
	for _, a := range r.answers() {
		if len(a.thoughtSeq.IDs) > 0 {
			seqs = append(seqs, a.thoughtSeq)
		}
	}
	return seqs
}

// thoughtLen returns the number of tokens of an answer up to and with the first </think>; 0 without
// one.
func (t *Trainer) thoughtLen(ids []int32) int {
	n := sort.Search(len(ids)+1, func(n int) bool {
		return strings.Contains(t.tok.Decode(ids[:n], false), "</think>")
	})
	if n > len(ids) {
		return 0
	}
	return n
}
