package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/actor"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// pairs are a step's prompts with an answer of each side.
type pairs struct {
	batch     *encode.Batch
	rejected  []model.Seq   // [P] the starting student's, ended as the teacher's
	truncated []bool        // [P]
	texts     []string      // [P]
	frozen    []*frozenPair // [P]
	kept      []int         // prompts that give a pair
	ties      int           // those whose sample is the teacher's very text

	// that the reference has sampled and given log-probabilities in this step
	sampled, compared []model.Seq
}

// frozenPair is what the frozen reference says of a row: the same whenever the row comes up.
type frozenPair struct {
	answer           []int32 // the rejected one
	truncated        bool
	compared         bool    // the figures below are there
	chosen, rejected float64 // SeqLogp
}

// frozenPairs keeps frozenPair by row, for the epochs after the first. It is no part of a
// run's state: what is not there is computed again, with the same bits. A full one takes no
// more rows: the order of an epoch is random, so that no row is worth more than another.
type frozenPairs struct {
	rows map[int]*frozenPair
	room int // bytes that answers may still take
}

// frozenBytes bounds what is kept: ten million tokens of answers and more.
const frozenBytes = 64 << 20

// newFrozenPairs is nil, which keeps nothing, where no row comes up twice, or where a row's
// bits depend on its neighbours: there a resumed run would differ from one that kept them.
func (t *Trainer) newFrozenPairs() *frozenPairs {
	if t.Stage != config.DPO || !t.be.Alone() ||
		t.total*t.cfg.Data.TrainBatchSize <= len(t.rows) {
		return nil
	}
	return &frozenPairs{rows: map[int]*frozenPair{}, room: frozenBytes}
}

func (f *frozenPairs) get(row int) *frozenPair {
	if f == nil {
		return nil
	}
	return f.rows[row]
}

func (f *frozenPairs) put(row int, p *frozenPair) {
	const entry = 128 // bytes of a row beside its answer
	if n := 4*len(p.answer) + entry; f != nil && n <= f.room && f.rows[row] == nil {
		f.rows[row] = p
		f.room -= n
	}
}

// dpoStep is one step of SODA: one optimizer step on the next prompts' pairs.
func (t *Trainer) dpoStep() (Metrics, error) {
	m := Metrics{}
	batch, err := t.draw(t.cfg.Data.TrainBatchSize)
	if err != nil {
		return nil, err
	}
	t.stepRows = batch.Rows
	p, err := t.pairUp(m, batch)
	if err != nil {
		return nil, err
	}
	pref, err := t.compareUnderReference(m, p)
	if err != nil {
		return nil, err
	}
	st, err := t.updateByPairs(m, pref)
	if err != nil {
		return m, err
	}
	t.describePairs(m, p)
	t.describeTeacher(m, batch)
	t.done = t.pairWork(m, p, slices.Concat(pref.Chosen, pref.Rejected), st.Passes)
	return m, t.pairSamples(p, pref, st)
}

// pairUp draws the rejected answers. The starting student draws them with randomness that
// depends on the seed and the row alone: they are the same in every epoch and after a
// resume, so that none is stored.
func (t *Trainer) pairUp(m Metrics, b *encode.Batch) (*pairs, error) {
	p := &pairs{batch: b, frozen: make([]*frozenPair, len(b.Rows))}
	var unknown []int
	for i, row := range b.Rows {
		if p.frozen[i] = t.frozen.get(row); p.frozen[i] == nil {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		if err := t.sampleRejected(m, p, unknown); err != nil {
			return nil, err
		}
	}
	for i, f := range p.frozen {
		p.rejected = append(p.rejected, t.enc.Ending().Seq(b.Prompts[i], f.answer, f.truncated))
		p.truncated = append(p.truncated, f.truncated)
		p.texts = append(p.texts, t.tok.Decode(f.answer, true))
	}
	for _, i := range unknown {
		p.sampled = append(p.sampled, p.rejected[i])
	}
	for i, teacher := range b.Teachers {
		cut := p.truncated[i] || b.TeacherCut[i]
		said := strings.TrimRight(p.texts[i], " \t\r\n") // as encoder.answer trims the teacher's
		switch {
		case said == strings.TrimRight(b.TeacherText[i], " \t\r\n"),
			said == t.tok.Decode(teacher.Response(), true):
			p.ties++ // nothing to prefer
		case cut && t.cfg.DPO.Truncated == "exclude":
		default:
			p.kept = append(p.kept, i)
		}
	}
	return p, nil
}

// sampleRejected draws the answers to the batch's prompts that the indices name.
func (t *Trainer) sampleRejected(m Metrics, p *pairs, indices []int) error {
	b, c := p.batch, t.cfg.Rollout
	keys := make([]uint64, len(indices))
	for k, i := range indices {
		keys[k] = uint64(b.Rows[i])
	}
	tokens := 0
	t.ranks.Enter("rollout")
	err := m.time("timing_s/rollout", func() error {
		advance, done := t.rec.Progress("rollout", len(indices)*t.cfg.Data.MaxResponse)
		defer done()
		out, err := t.reference.Model().GenerateAll(model.Pick(b.Prompts, indices), keys,
			model.SampleOptions{
				N: 1, MaxNew: t.cfg.Data.MaxResponse, Slots: c.MaxNumSeqs, EOS: t.tok.EOS(),
				Seed: t.seed(), Stop: t.actor.Stop,
				Sampling: model.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP,
					MinP: c.MinP},
			}, advance)
		if err != nil {
			return fmt.Errorf("reference: rollout: %w", err)
		}
		for k, i := range indices {
			tokens += len(out[k][0].IDs)
			p.frozen[i] = &frozenPair{answer: out[k][0].IDs, truncated: out[k][0].Truncated}
			t.frozen.put(b.Rows[i], p.frozen[i])
		}
		return nil
	})
	if err != nil {
		return err
	}
	m["rollout/tokens_per_s"] = float64(tokens) / max(m["timing_s/rollout"], 1e-9)
	return nil
}

// compareUnderReference gives both sides of the pairs and what the reference gives them.
func (t *Trainer) compareUnderReference(m Metrics, p *pairs) (pref actor.Preferences, err error) {
	pref = actor.Preferences{Chosen: model.Pick(p.batch.Teachers, p.kept),
		Rejected: model.Pick(p.rejected, p.kept)}
	var unknown []int
	for _, i := range p.kept {
		if !p.frozen[i].compared {
			unknown = append(unknown, i)
		}
	}
	if n := len(unknown); n > 0 {
		p.compared = slices.Concat(model.Pick(p.batch.Teachers, unknown),
			model.Pick(p.rejected, unknown))
		err := t.phase(m, "ref_logp", t.reference.Model(), p.compared, 1, func() error {
			refST, err := t.reference.LogProbs(p.compared, 1)
			if err != nil {
				return err
			}
			refS := actor.SeqLogp(refST)
			for k, i := range unknown {
				f := p.frozen[i]
				f.compared, f.chosen, f.rejected = true, refS[k], refS[n+k]
			}
			return nil
		})
		if err != nil {
			return pref, err
		}
	}
	for _, i := range p.kept {
		pref.RefChosen, pref.RefRejected =
			append(pref.RefChosen, p.frozen[i].chosen),
			append(pref.RefRejected, p.frozen[i].rejected)
	}
	return pref, nil
}

// updateByPairs takes the optimizer step; where there are no pairs there is none.
func (t *Trainer) updateByPairs(m Metrics, pref actor.Preferences) (st actor.DPOStats, err error) {
	m["dpo/pairs"] = float64(len(pref.Chosen))
	if len(pref.Chosen) == 0 {
		return st, nil
	}
	err = t.phase(m, "update_actor", t.actor.Model(), slices.Concat(pref.Chosen, pref.Rejected), 1,
		func() (err error) {
			st, err = t.actor.DPO(t.dpo, pref)
			return err
		})
	if err != nil {
		return st, err
	}
	if st.Pairs > 0 {
		m["dpo/loss"], m["dpo/acc"], m["dpo/margin"] = st.Loss, st.Acc, st.Margin
		m["dpo/chosen_reward"], m["dpo/rejected_reward"] = st.ChosenReward, st.RejectedReward
		m["actor/entropy"] = st.Entropy
	}
	if st.Updates > 0 {
		m["actor/grad_norm"], m["actor/lr"] = st.GradNorm, st.LR
	}
	return st, t.skips("actor", st.Updates, st.Skipped, st.Skipped, m)
}

// describePairs adds the figures of the sampled side.
func (t *Trainer) describePairs(m Metrics, p *pairs) {
	var lens, cut, repeat float64
	longest, n := 0, float64(len(p.rejected))
	for i, seq := range p.rejected {
		ids := seq.Response()
		lens += float64(len(ids))
		longest = max(longest, len(ids))
		if p.truncated[i] {
			cut++
		}
		repeat += textmetrics.RepeatFrac(ids)
	}
	m["train/prompts"], m["dpo/tie_frac"] = n, float64(p.ties)/n
	m["rollout/len_mean"], m["rollout/len_max"] = lens/n, float64(longest)
	m["rollout/truncated_frac"], m["rollout/repeat_frac"] = cut/n, repeat/n
}

// pairWork counts a step: what was sampled and compared under the reference, then both
// sides under the student.
func (t *Trainer) pairWork(m Metrics, p *pairs, both []model.Seq, passes int) work {
	all := slices.Concat(p.batch.Teachers, p.rejected)
	return t.count(m, len(p.rejected), all, func(x config.Pass) []model.Seq {
		switch {
		case x.Kind == config.Sample:
			return p.sampled
		case x.Network == config.Reference:
			return p.compared
		case x.When == config.SeveralPacks && passes < 4:
			return nil
		}
		return both
	})
}

// pairSamples writes what the step's first prompts were answered. The scores are the rewards
// beta*(logp-ref), NaN where a prompt gave no pair; the advantage is the teacher's over the
// student's.
func (t *Trainer) pairSamples(p *pairs, pref actor.Preferences, st actor.DPOStats) error {
	n := min(t.cfg.Trainer.SaveSamples, len(p.rejected))
	if n == 0 {
		return nil
	}
	out := make([]report.Sample, n)
	for i := range out {
		out[i] = report.Sample{Row: p.batch.Rows[i], Prompt: p.batch.PromptText[i],
			Teacher: p.batch.TeacherText[i], Student: p.texts[i],
			StudentScore: math.NaN(), TeacherScore: math.NaN(), Advantage: math.NaN()}
		if k := slices.Index(p.kept, i); k >= 0 && st.Pairs > 0 {
			out[i].TeacherScore = t.cfg.DPO.Beta * (st.Chosen[k] - pref.RefChosen[k])
			out[i].StudentScore = t.cfg.DPO.Beta * (st.Rejected[k] - pref.RefRejected[k])
			out[i].Advantage = out[i].TeacherScore - out[i].StudentScore
		}
	}
	return t.rec.Samples(report.InTraining, t.step+1, out)
}
