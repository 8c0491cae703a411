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

// dpo is SODA (arXiv 2604.03873): for each prompt the teacher's answer is preferred to one sample
// of the student at the start of the stage.
type dpo struct {
	basic
	objective    *algos.DPO[float64]
	frozen       *frozenPairs // nil: nothing is cached
	pairs        *pairs       // of the step
	updatePasses int          // passes of the step's update
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
	s.updatePasses = st.Passes
	s.describePairs(m, s.pairs)
	s.describeTeacher(m, batch)
	return s.pairSamples(s.pairs, st)
}

// pairs holds a step's prompts, each with an answer of both sides.
type pairs struct {
	list []*pair
	ties int // pairs whose sample has the teacher's text
	// sequences that the reference sampled, and scored, in this step
	sampled, compared []model.Seq
}

// pair is a prompt with the teacher's answer and a sample of the reference.
type pair struct {
	encode.Row
	frozen   *frozenPair
	rejected model.Seq // with the same end as the teacher's
	text     string    // of the rejected answer
	usable   bool      // false: the texts are equal, or one side is cut
}

// learnable returns the pairs that are learned.
func (p *pairs) learnable() (list []*pair) {
	for _, x := range p.list {
		if x.usable {
			list = append(list, x)
		}
	}
	return list
}

// bothSides returns the teacher's answers of the pairs, followed by the rejected answers.
func bothSides(list []*pair) []model.Seq {
	seqs := make([]model.Seq, 2*len(list))
	for i, x := range list {
		seqs[i], seqs[len(list)+i] = x.Teacher, x.rejected
	}
	return seqs
}

// preferences returns the learnable pairs as the actor learns them.
func (p *pairs) preferences() (pref actor.Preferences) {
	for _, x := range p.learnable() {
		pref.Chosen = append(pref.Chosen, x.Teacher)
		pref.Rejected = append(pref.Rejected, x.rejected)
		pref.RefChosen = append(pref.RefChosen, x.frozen.chosen)
		pref.RefRejected = append(pref.RefRejected, x.frozen.rejected)
	}
	return pref
}

// frozenPair is the frozen reference's results for a row: the same each time the row is drawn.
type frozenPair struct {
	answer           []int32 // the rejected one
	truncated        bool
	compared         bool    // the figures below are there
	chosen, rejected float64 // SeqLogp
}

// frozenPairs caches frozenPair by row, for the epochs after the first. It is no part of a run's
// state: a missing entry is computed again, with the same bits. A full cache takes no more rows:
// the order of an epoch is random, so that no row is worth more than another.
type frozenPairs struct {
	rows map[int]*frozenPair
	room int // bytes that answers may still take
}

// frozenBytes bounds the cache: ten million tokens of answers and more.
const frozenBytes = 64 << 20

// newFrozenPairs returns nil, which caches nothing, if no row is drawn twice, or if a row's bits
// depend on its neighbours in a batch: then a resumed run would differ from a run with a cache.
func (s *dpo) newFrozenPairs() *frozenPairs {
	t := s.t
	if !t.be.Alone() || t.total*t.cfg.Data.TrainBatchSize <= len(t.train.rows) {
		return nil
	}
	return &frozenPairs{rows: map[int]*frozenPair{}, room: frozenBytes}
}

// get returns the cached results of a row; nil: none.
func (f *frozenPairs) get(row int) *frozenPair {
	if f == nil {
		return nil
	}
	return f.rows[row]
}

// put caches the results of a row, if there is room.
func (f *frozenPairs) put(row int, p *frozenPair) {
	const entry = 128 // bytes of a row without its answer
	if n := 4*len(p.answer) + entry; f != nil && n <= f.room && f.rows[row] == nil {
		f.rows[row] = p
		f.room -= n
	}
}

// pairUp pairs the teacher's answers with samples of the reference. Their random numbers depend on
// the seed and the row alone: the samples are the same in every epoch and after a resume, so that
// none is stored.
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
		sampled := strings.TrimRight(x.text, " \t\r\n") // as Encoder.text does
		switch {
		case sampled == strings.TrimRight(x.TeacherText, " \t\r\n"),
			sampled == t.tok.Decode(x.Teacher.Response(), true):
			p.ties++ // nothing to prefer
		default:
			x.usable = !cut || t.cfg.DPO.Truncated != "exclude"
		}
	}
	for _, x := range unknown {
		p.sampled = append(p.sampled, x.rejected)
	}
	return p, nil
}

// sampleRejected samples the rejected answers of the pairs in list.
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
				Seed: t.seed(), Stop: actor.StopFunc(t.context()),
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

// compareUnderReference sets the reference's log-probabilities of the pairs that have none.
func (s *dpo) compareUnderReference(m Metrics, p *pairs) error {
	unknown := slices.DeleteFunc(p.learnable(), func(x *pair) bool { return x.frozen.compared })
	if len(unknown) == 0 {
		return nil
	}
	p.compared = bothSides(unknown)
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

// updateByPairs takes the optimizer step on all pairs; without pairs it does nothing.
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
	return st, s.t.noteUpdates(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Skipped)
}

// describePairs adds the metrics of the rejected answers to m.
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

func (s *dpo) stepSeqs() []model.Seq { return bothSides(s.pairs.list) }

// passSeqs returns the sequences of a pass: sampled by the reference, scored by it, or both sides
// for the student.
func (s *dpo) passSeqs(x config.Pass) []model.Seq {
	switch {
	case x.Kind == config.Sample:
		return s.pairs.sampled
	case x.Network == config.Reference:
		return s.pairs.compared
	case x.When == config.SeveralPacks && s.updatePasses < 4:
		return nil
	}
	return bothSides(s.pairs.learnable())
}

// pairSamples writes the answers to the step's first prompts as samples. The scores are the rewards
// beta*(logp-ref), NaN where a prompt gave no pair; the advantage is the teacher's reward minus the
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
		if !x.usable {
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
