package plan

import (
	"fmt"
	"time"

	"gad/internal/compute"
	"gad/model"
	"gad/trainer/config"
)

// stretches are the parts that a step of the game is made of, in seconds.
type stretches struct {
	rollout float64
	answers float64 // a forward pass over prompts and the student's answers
	judged  float64 // one over prompts and all answers
	critic  float64 // the discriminator's updates, the student's on its answers,
	actor   float64
	teacher float64 // and on the teacher's
}

// arrange lists which of them a step of c has.
func (p *Plan) arrange(c config.Config, alone bool, t stretches) (step []Timed) {
	add := func(name string, seconds float64) {
		if seconds > 0 {
			step = append(step, Timed{name, seconds})
		}
	}
	add("rollout", t.rollout)
	teacher := c.LearnsTeacher(p.Stage)
	if c.Actor.ReadsEntropy() || !teacher && c.Actor.OldLogProb != "rollout" && (c.Actor.OldLogProb == "recompute" || !alone) {
		add("old_logp", t.answers)
	}
	scores := t.judged * c.ScoredBefore(c.Data.TrainBatchSize)
	if c.Algorithm.FilterGroups.Enable { // the scores say which groups to replace
		add("score", scores)
		add("update_critic", t.critic)
	} else {
		add("update_critic", t.critic+scores)
	}
	if teacher {
		add("update_actor", t.teacher)
		return step
	}
	if c.NeedsReference(p.Stage) {
		add("ref_logp", t.answers)
	}
	add("update_actor", t.actor)
	return step
}

// tokenTimes are seconds a token: of a forward and a backward pass, of a forward pass alone,
// and of sampling.
type tokenTimes struct{ trained, forward, decoded float64 }

// stepTime is the parts of a step in which the student's answers have so many tokens.
func (p *Plan) stepTime(c config.Config, alone bool, t tokenTimes, student float64) []Timed {
	prompts := float64(c.Data.TrainBatchSize)
	whole := p.PromptMean + p.AnswerMean
	switch p.Stage {
	case config.SFT:
		return []Timed{{"update_actor", prompts * whole * t.trained}}
	case config.DPO:
		return p.pairTime(c, t, student)
	}
	// The answers to a prompt pass with it once.
	written := prompts * float64(c.Rollout.N) * student
	answers := prompts*p.PromptMean + written
	judged := answers + prompts*p.AnswerMean
	return p.arrange(c, alone, stretches{
		rollout: prompts*p.PromptMean*t.forward + written*t.decoded,
		answers: answers * t.forward,
		judged:  judged * t.forward,
		critic:  judged * t.trained * float64(c.Critic.PPOEpochs),
		actor:   answers * t.trained * float64(c.Actor.PPOEpochs),
		teacher: prompts * whole * t.trained,
	})
}

// pairTime estimates a step's stretches from times per token, with samples of so many tokens.
func (p *Plan) pairTime(c config.Config, t tokenTimes, sample float64) []Timed {
	prompts := float64(c.Data.TrainBatchSize)
	both := prompts * (p.PromptMean + p.AnswerMean + sample) // of a prompt's two sides, which pass with it once
	update := t.trained
	if both > float64(c.Actor.MaxTokenLen) {
		update += t.forward // several packs: the sums come first
	}
	return []Timed{
		{"rollout", prompts * (p.PromptMean*t.forward + sample*t.decoded)},
		{"ref_logp", both * t.forward},
		{"update_actor", both * update},
	}
}

// measureTime times a forward and backward pass and a short generation of a model
// of the same width with at most two layers, and scales by floating-point operations.
func (p *Plan) measureTime(be compute.Backend, shape model.Config, c config.Config) error {
	small := shape.FirstLayers(2)
	m, err := model.New(be, small, model.Options{Kind: model.LM, Trainable: true, Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	length := max(2, min(int(p.PromptMean+p.AnswerMean), 512))
	const tokens = 512
	var seqs []model.Seq
	for n := 0; n < tokens; n += length {
		ids := make([]int32, length)
		for i := range ids {
			ids[i] = int32((n + i*7) % shape.Vocab)
		}
		seqs = append(seqs, model.Answer(ids, length/2))
	}
	trained := float64(len(seqs) * length)
	zero := func(logpST, entST [][]float32) ([][]float32, [][]float32, error) {
		d := make([][]float32, len(logpST))
		for i := range d {
			d[i] = make([]float32, len(logpST[i]))
		}
		return d, nil, nil
	}
	best := func(f func() error) (float64, error) {
		fastest := 0.0
		for i := range 3 {
			start := time.Now()
			if err := f(); err != nil {
				return 0, err
			}
			if s := time.Since(start).Seconds(); i == 0 || s < fastest {
				fastest = s
			}
		}
		return fastest, nil
	}
	train, err := best(func() error { return m.LogProbGrad(seqs, 1, zero) })
	if err != nil {
		return err
	}
	forward, err := best(func() error { _, _, err := m.LogProbs(seqs, 1); return err })
	if err != nil {
		return err
	}
	slots, fresh := min(c.Rollout.MaxNumSeqs, c.Data.TrainBatchSize*c.Rollout.N), 8
	decode, err := best(func() error {
		_, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{0}, model.SampleOptions{N: slots, MaxNew: fresh, Slots: slots,
			Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
		return err
	})
	if err != nil {
		return err
	}
	scale := shape.FLOPsPerToken(float64(length)/2, true) / small.FLOPsPerToken(float64(length)/2, true)
	p.Measured = fmt.Sprintf("%s, %d of %d layers, %d tokens", be.Name(), small.Layers, shape.Layers, int(trained))
	p.time(c, be.Alone(), tokenTimes{scale * train / trained, scale * forward / trained, scale * decode / float64(slots*fresh)})
	return nil
}
