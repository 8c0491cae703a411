package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/actor"
	"gad/algos"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// dpo is SODA (arXiv 2604.03873): to each prompt the teacher's answer is preferred to one sample of
// the student as it was when the stage began.
type dpo struct {
	basic
	objective *algos.DPO[float64]
	frozen    *frozenPairs // nil keeps none
	pairs     *pairs       // of the step
	took      int          // passes of its update
}

func newDPO(b basic, _ *start) stage { return &dpo{basic: b} }

func (s *dpo) open(*start) (err error) {
	s.frozen = s.newFrozenPairs()
	s.objective, err = algos.NewDPO[float64](s.t.cfg.DPO.Objective())
	return err
}

func (s *dpo) close() error {
	if s.objective == nil {
		return nil
	}
	return s.objective.Close()
}

// step takes one step of SODA: one optimizer step on the next prompts' pairs.
func (s *dpo) step(m Metrics) error {
	batch, err := s.t.draw(s.t.cfg.Data.TrainBatchSize)
	if err != nil {
		return err
	}
	if s.pairs, err = s.pairUp(m, batch); err != nil {
		return err
	}
	if err := s.compareUnderReference(m, s.pairs); err != nil {
		return err
	}
	pref := s.pairs.preferences()
	st, err := s.updateByPairs(m, pref)
	if err != nil {
		return err
	}
	s.took = st.Passes
	s.describePairs(m, s.pairs)
	s.describeTeacher(m, batch)
	return s.pairSamples(s.pairs, st)
}

// pairs are a step's prompts with an answer of each side.
type pairs struct {
	list []*pair
	ties int // whose sample is the teacher's very text
	// that the reference has sampled and given log-probabilities in this step
	sampled, compared []model.Seq
}

// pair is a prompt with the teacher's answer and the starting student's.
type pair struct {
	encode.Row
	frozen   *frozenPair
	rejected model.Seq // ended as the teacher's
	text     string    // of the rejected answer
	kept     bool      // otherwise there is nothing to prefer, or one side is cut
}

// kept returns the pairs that are learned.
func (p *pairs) kept() (list []*pair) {
	for _, x := range p.list {
		if x.kept {
			list = append(list, x)
		}
	}
	return list
}

// both returns the teacher's answers of some pairs, and behind them the rejected ones.
func both(list []*pair) []model.Seq {
	seqs := make([]model.Seq, 2*len(list))
	for i, x := range list {
		seqs[i], seqs[len(list)+i] = x.Teacher, x.rejected
	}
	return seqs
}

// preferences returns the kept pairs as the actor learns them.
func (p *pairs) preferences() (pref actor.Preferences) {
	for _, x := range p.kept() {
		pref.Chosen = append(pref.Chosen, x.Teacher)
		pref.Rejected = append(pref.Rejected, x.rejected)
		pref.RefChosen = append(pref.RefChosen, x.frozen.chosen)
		pref.RefRejected = append(pref.RefRejected, x.frozen.rejected)
	}
	return pref
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

// newFrozenPairs returns nil, which keeps nothing, where no row comes up twice, or where a row's
// bits depend on its neighbours: there a resumed run would differ from one that kept them.
func (s *dpo) newFrozenPairs() *frozenPairs {
	t := s.t
	if !t.be.Alone() || t.total*t.cfg.Data.TrainBatchSize <= len(t.train.rows) {
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

// pairUp draws the rejected answers. The starting student draws them with randomness that
// depends on the seed and the row alone: they are the same in every epoch and after a
// resume, so that none is stored.
func (s *dpo) pairUp(m Metrics, b encode.Batch) (*pairs, error) {
	t, p := s.t, &pairs{}
	var unknown []*pair
	for _, row := range b {
		x := &pair{Row: row, frozen: s.frozen.get(row.Index)}
		if p.list = append(p.list, x); x.frozen == nil {
			unknown = append(unknown, x)
		}
	}
	if len(unknown) > 0 {
		if err := s.sampleRejected(m, unknown); err != nil {
			return nil, err
		}
	}
	for _, x := range p.list {
		x.rejected = t.enc.Seq(x.Prompt,
			encode.Response{IDs: x.frozen.answer, Finished: !x.frozen.truncated})
		x.text = t.tok.Decode(x.frozen.answer, true)
		cut := x.frozen.truncated || x.TeacherCut
		said := strings.TrimRight(x.text, " \t\r\n") // as encoder.answer trims the teacher's
		switch {
		case said == strings.TrimRight(x.TeacherText, " \t\r\n"),
			said == t.tok.Decode(x.Teacher.Response(), true):
			p.ties++ // nothing to prefer
		default:
			x.kept = !cut || t.cfg.DPO.Truncated != "exclude"
		}
	}
	for _, x := range unknown {
		p.sampled = append(p.sampled, x.rejected)
	}
	return p, nil
}

// sampleRejected draws the rejected answers of some pairs.
func (s *dpo) sampleRejected(m Metrics, list []*pair) error {
	t, c := s.t, s.t.cfg.Rollout
	keys, prompts := make([]uint64, len(list)), make([][]int32, len(list))
	for k, x := range list {
		keys[k], prompts[k] = uint64(x.Index), x.Prompt
	}
	tokens := 0
	t.ranks.Enter("rollout")
	err := m.time("timing_s/rollout", func() error {
		advance, done := t.rec.Progress("rollout", len(list)*t.cfg.Data.MaxResponse)
		defer done()
		out, err := t.reference.Model().GenerateAll(prompts, keys,
			model.SampleOptions{
				N: 1, MaxNew: t.cfg.Data.MaxResponse, Slots: c.MaxNumSeqs, EOS: t.tok.EOS(),
				Seed: t.seed(), Stop: actor.Stopped(t.context()),
				Sampling: model.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP,
					MinP: c.MinP},
			}, advance)
		if err != nil {
			return fmt.Errorf("reference: rollout: %w", err)
		}
		for k, x := range list {
			answer := out[k][0]
			tokens += len(answer.IDs)
			x.frozen = &frozenPair{answer: answer.IDs, truncated: answer.Truncated}
			s.frozen.put(x.Index, x.frozen)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m["rollout/tokens_per_s"] = float64(tokens) / max(m["timing_s/rollout"], 1e-9)
	return nil
}

// compareUnderReference takes the reference's log-probabilities of the pairs that it has not given
// any.
func (s *dpo) compareUnderReference(m Metrics, p *pairs) error {
	unknown := slices.DeleteFunc(p.kept(), func(x *pair) bool { return x.frozen.compared })
	if len(unknown) == 0 {
		return nil
	}
	p.compared = both(unknown)
	return s.t.phase(m, "ref_logp", s.t.reference.Model(), p.compared, 1, func() error {
		refST, err := s.t.reference.LogProbs(p.compared, 1)
		if err != nil {
			return err
		}
		refS := actor.SeqLogp(refST)
		for k, x := range unknown {
			f := x.frozen
			f.compared, f.chosen, f.rejected = true, refS[k], refS[len(unknown)+k]
		}
		return nil
	})
}

// updateByPairs takes the optimizer step; where there are no pairs there is none.
func (s *dpo) updateByPairs(m Metrics, pref actor.Preferences) (st actor.DPOStats, err error) {
	m["dpo/pairs"] = float64(len(pref.Chosen))
	if len(pref.Chosen) == 0 {
		return st, nil
	}
	seqs := slices.Concat(pref.Chosen, pref.Rejected)
	err = s.t.phase(m, "update_actor", s.t.actor.Model(), seqs, 1, func() (err error) {
		st, err = s.t.actor.DPO(s.objective, pref)
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
	return st, s.t.updated(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Skipped)
}

// describePairs adds the figures of the sampled side.
func (s *dpo) describePairs(m Metrics, p *pairs) {
	var lens, cut, repeat float64
	longest, n := 0, float64(len(p.list))
	for _, x := range p.list {
		ids := x.rejected.Response()
		lens += float64(len(ids))
		longest = max(longest, len(ids))
		if x.frozen.truncated {
			cut++
		}
		repeat += textmetrics.RepeatFrac(ids)
	}
	m["train/prompts"], m["dpo/tie_frac"] = n, float64(p.ties)/n
	m["rollout/len_mean"], m["rollout/len_max"] = lens/n, float64(longest)
	m["rollout/truncated_frac"], m["rollout/repeat_frac"] = cut/n, repeat/n
}

func (s *dpo) passed() []model.Seq { return both(s.pairs.list) }

// passedBy returns what was sampled and compared under the reference, then both sides under the
// student.
func (s *dpo) passedBy(x config.Pass) []model.Seq {
	switch {
	case x.Kind == config.Sample:
		return s.pairs.sampled
	case x.Network == config.Reference:
		return s.pairs.compared
	case x.When == config.SeveralPacks && s.took < 4:
		return nil
	}
	return both(s.pairs.kept())
}

// pairSamples writes what the step's first prompts were answered. The scores are the rewards
// beta*(logp-ref), NaN where a prompt gave no pair; the advantage is the teacher's over the
// student's.
func (s *dpo) pairSamples(p *pairs, st actor.DPOStats) error {
	t := s.t
	n := min(t.cfg.Trainer.SaveSamples, len(p.list))
	if n == 0 {
		return nil
	}
	out := make([]report.Sample, n)
	k := 0 // of the pairs that were learned
	for i, x := range p.list[:n] {
		out[i] = report.Sample{Row: x.Index, Prompt: x.PromptText, Teacher: x.TeacherText,
			Student:      x.text,
			StudentScore: math.NaN(), TeacherScore: math.NaN(), Advantage: math.NaN()}
		if !x.kept {
			continue
		}
		if st.Pairs > 0 {
			out[i].TeacherScore = t.cfg.DPO.Beta * (st.Chosen[k] - x.frozen.chosen)
			out[i].StudentScore = t.cfg.DPO.Beta * (st.Rejected[k] - x.frozen.rejected)
			out[i].Advantage = out[i].TeacherScore - out[i].StudentScore
		}
		k++
	}
	return t.rec.Samples(report.InTraining, t.step+1, out)
}
