package trainer

import (
	"gad/actor"
	"gad/algos"
	"gad/model"
	"gad/trainer/config"
)

// rankStep is one step of gad sft --objective ranking: one optimizer step on the next prompts'
// scored answers, which gad data rate has sampled and kept.
func (t *Trainer) rankStep() (Metrics, error) {
	m := Metrics{}
	batch, err := t.draw(t.cfg.Data.TrainBatchSize)
	if err != nil {
		return nil, err
	}
	t.stepRows = batch.Rows
	ranked, err := t.enc.Ranked(t.set, batch, t.cfg.Rollout.N)
	if err != nil {
		return nil, err
	}
	tau := algos.AnnealTau(t.step, t.total)
	m["ranking/tau"] = tau
	var st actor.RankStats
	err = t.phase(m, "update_actor", t.actor.Model(), ranked.Seqs, 1, func() (err error) {
		st, err = t.actor.Rank(actor.Ranked(ranked), tau)
		return err
	})
	if err != nil {
		return m, err
	}
	if st.Skipped == 0 {
		m["ranking/loss"], m["ranking/agree"], m["actor/entropy"] = st.Loss, st.Agree, st.Entropy
	}
	if st.Updates > 0 {
		m["actor/grad_norm"], m["actor/lr"] = st.GradNorm, st.LR
	}
	said := 0
	for s, seq := range ranked.Seqs {
		if s%(t.cfg.Rollout.N+1) < t.cfg.Rollout.N { // the teacher's is the last of a group
			said += seq.Trained()
		}
	}
	m["rollout/len_mean"] = float64(said) / float64(len(ranked.Seqs)-len(batch.Rows))
	t.describeTeacher(m, batch)
	t.done = t.count(m, len(batch.Rows), ranked.Seqs, func(x config.Pass) []model.Seq {
		if x.When == config.SeveralPacks && st.Passes < 4 {
			return nil
		}
		return ranked.Seqs
	})
	return m, t.skips("actor", st.Updates, st.Skipped, st.Skipped, m)
}
