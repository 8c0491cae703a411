package plan

import (
	"math"

	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/model"
	"gad/trainer/config"
)

// predictTime runs the passes of a step on the model of a GPU's cost, with prompts and
// answers of mean length: all of them, at the full size.
func (p *Plan) predictTime(be *cost.Backend, shape model.Config, c config.Config) (err error) {
	prompts, answer := c.Data.TrainBatchSize, max(2, int(math.Round(p.AnswerMean)))
	ids := func(salt, n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32((i*7919 + salt*104729 + 1) % shape.Vocab)
		}
		return out
	}
	n := p.answersEach(c)
	var questions [][]int32
	var rows []uint64
	var teachers, students, pairs []model.Seq // pairs are an answer of each, as DPO has them
	for i := range prompts {
		q := ids(i, max(1, int(math.Round(p.PromptMean))))
		questions, rows = append(questions, q), append(rows, uint64(i))
		seq := func(salt int) model.Seq {
			return model.Answer(append(q[:len(q):len(q)], ids(salt, answer)...), len(q))
		}
		teachers = append(teachers, seq(1<<20+i))
		for k := range n {
			students = append(students, seq(1<<21+i*n+k))
		}
		pairs = append(pairs, students[i*n], teachers[i])
	}

	var base *model.Model
	if c.Actor.LoRA.On() || c.Critic.LoRA.On() && p.Stage.HasCritic() {
		if base, err = model.New(be, shape, model.Options{Kind: model.LM, Quant: c.Base()}); err != nil {
			return err
		}
		defer base.Close()
	}
	trained := func(o model.PlanOptions, optim model.OptimSettings, turns *model.Model) (*model.Model, *model.Optimizer, error) {
		settings := model.Options{Kind: o.Kind, Trainable: true, Recompute: o.Recompute, LoRA: o.LoRA, Turns: turns}
		m, err := (*model.Model)(nil), error(nil)
		if o.LoRA.On() {
			m, err = base.Adapt(settings)
		} else {
			m, err = model.New(be, shape, settings)
		}
		if err != nil {
			return nil, nil, err
		}
		opt, err := model.NewOptimizer(m, optim.AdamW(1, 1))
		return m, opt, err
	}
	student, opt, err := trained(c.Student(), c.Actor.Optim, nil)
	if err != nil {
		return err
	}
	defer student.Close()
	sampler := student
	if c.Merges(p.Stage) {
		if sampler, err = student.Merged(); err != nil {
			return err
		}
		defer sampler.Close()
		sampler.Share(student)
	}

	// seconds is what f takes on the model's clock.
	seconds := func(f func() error) float64 {
		before := be.Elapsed()
		if err == nil {
			err = f()
		}
		return be.Elapsed() - before
	}
	forward := func(m *model.Model, seqs []model.Seq, limit int) func() error {
		return func() error {
			if m.Kind() == model.Scorer {
				_, err := m.AllScores(seqs, limit)
				return err
			}
			_, _, err := m.AllLogProbs(seqs, 1, limit)
			return err
		}
	}
	// update is updates of equal parts of the prompts' sequences, each to a prompt.
	update := func(m *model.Model, opt *model.Optimizer, seqs []model.Seq, each, updates, limit int) func() error {
		return func() error {
			for u := range updates {
				lo, hi := u*prompts/updates*each, (u+1)*prompts/updates*each
				for _, pack := range model.Packs(seqs[lo:hi], limit) {
					part := model.Pick(seqs[lo:hi], pack)
					var err error
					if m.Kind() == model.Scorer {
						err = m.ScoreGrad(part, func(s []float32) ([]float32, error) { return s, nil })
					} else {
						err = m.LogProbGrad(part, 1, func(l, _ [][]float32) (_, _ [][]float32, err error) { return l, nil, nil })
					}
					if err != nil {
						return err
					}
				}
				if _, err := opt.Step(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	// Waves of answers are alike: some prompts' stand for all.
	some := min(prompts, (4*c.Rollout.MaxNumSeqs+n-1)/n)
	sampling := func(each int) func() error {
		return func() error {
			_, err := sampler.Generate(questions[:some], rows[:some], model.SampleOptions{N: each, MaxNew: answer, Slots: c.Rollout.MaxNumSeqs, Seed: 1,
				Sampling: compute.Sampling{Temperature: 1, TopP: c.Rollout.TopP, TopK: c.Rollout.TopK, MinP: c.Rollout.MinP}}, nil)
			return err
		}
	}

	limit := c.Actor.MaxTokenLen
	p.Measured, p.Predicted = be.Card().Device+"; doc/gpu/predicted.md says what is assumed", true
	switch p.Stage {
	case config.SFT:
		p.StepTime = []Timed{{"update_actor", seconds(update(student, opt, teachers, 1, 1, limit))}}
		return err
	case config.DPO:
		p.StepTime = []Timed{{"rollout", seconds(sampling(1)) * float64(prompts) / float64(some)}, {"ref_logp", seconds(forward(student, pairs, limit))}}
		again := 0.0
		if float64(prompts)*(p.PromptMean+2*p.AnswerMean) > float64(limit) { // several packs: the sums come first
			again = seconds(forward(student, pairs, limit))
		}
		p.StepTime = append(p.StepTime, Timed{"update_actor", again + seconds(update(student, opt, pairs, 2, 1, limit))})
		return err
	}
	critic, criticOpt, err := trained(c.Discriminator(), c.Critic.Optim, student)
	if err != nil {
		return err
	}
	defer critic.Close()
	critic.Share(student)
	var both []model.Seq // a prompt's answers and its teacher's
	for i := range teachers {
		both = append(append(both, students[i*n:(i+1)*n]...), teachers[i])
	}
	mini := prompts
	if m := c.Critic.PPOMiniBatch; m > 0 {
		mini = min(m, mini)
	}
	t := stretches{
		rollout: seconds(sampling(n)) * float64(prompts) / float64(some),
		answers: seconds(forward(student, students, limit)),
		judged:  seconds(forward(critic, both, c.Critic.MaxTokenLen)),
		critic:  float64(c.Critic.PPOEpochs) * seconds(update(critic, criticOpt, both, n+1, (prompts+mini-1)/mini, c.Critic.MaxTokenLen)),
	}
	if c.LearnsTeacher(p.Stage) {
		t.teacher = seconds(update(student, opt, teachers, 1, 1, limit))
	} else {
		epochs := c.Actor.PPOEpochs
		t.actor = float64(epochs) * seconds(update(student, opt, students, n, c.Actor.Updates(prompts)/epochs, limit))
	}
	p.StepTime = p.arrange(c, false, t)
	return err
}
