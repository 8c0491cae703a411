package trainer

import (
	"fmt"

	"gad/actor"
	"gad/algos"
	"gad/model"
	"gad/trainer/config"
)

// ranking is the stage of gad sft --objective ranking: it learns the order of scored answers, which
// gad data rate has sampled and stored.
type ranking struct {
	basic
	ranked       actor.Ranked // of the step
	updatePasses int          // passes of its update
}

// usable leaves out rows whose answers have no order.
func (s *ranking) usable(rows []int32, begin *start) ([]int32, error) {
	kept, err := s.t.enc.Rankable(s.t.train.set, rows, s.t.cfg.Rollout.N)
	if left := len(rows) - len(kept); err == nil && left > 0 {
		begin.notes = append(begin.notes, fmt.Sprintf("%d of %d rows cannot be ranked and are left out: all their scores are equal, or one is not finite", left, len(rows)))
	}
	return kept, err
}

func (s *ranking) step(m Metrics) error {
	t := s.t
	batch, err := t.draw(t.cfg.Data.TrainBatchSize)
	if err != nil {
		return err
	}
	of, err := t.enc.RankedAnswers(t.train.set, batch, t.cfg.Rollout.N)
	if err != nil {
		return err
	}
	s.ranked = actor.Ranked(of)
	tau := algos.AnnealTau(t.step, t.total)
	m["ranking/tau"] = tau
	var st actor.RankStats
	err = t.phase(m, "update_actor", t.actor.Model(), s.ranked.Seqs, 1, func() (err error) {
		st, err = t.actor.Rank(s.ranked, tau)
		return err
	})
	if err != nil {
		return err
	}
	s.updatePasses = st.Passes
	if st.Skipped == 0 {
		m["ranking/loss"], m["ranking/agree"], m["actor/entropy"] = st.Loss, st.Agree, st.Entropy
	}
	tokens := 0
	for i, seq := range s.ranked.Seqs {
		if i%(t.cfg.Rollout.N+1) < t.cfg.Rollout.N { // the teacher's is the last of a group
			tokens += seq.Trained()
		}
	}
	m["rollout/len_mean"] = float64(tokens) / float64(len(s.ranked.Seqs)-len(batch))
	s.describeTeacher(m, batch)
	return t.noteUpdates(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Skipped)
}

func (s *ranking) stepSeqs() []model.Seq { return s.ranked.Seqs }

func (s *ranking) passSeqs(x config.Pass) []model.Seq {
	if x.When == config.SeveralPacks && s.updatePasses < 4 {
		return nil
	}
	return s.ranked.Seqs
}
