package plan

import (
	"errors"
	"fmt"
	"math"

	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
)

// predictTime sets the time of a step by running its passes on the cost model of a GPU, with
// prompts and answers of mean length: all of them, at full size.
func (p *Plan) predictTime(be *cost.Backend, shape model.Config, c config.Config) (err error) {
	c.Rollout.MaxNumSeqs = p.slots(c)
	p.Measured, p.Predicted = be.Card().Device+"; doc/gpu/predicted.md says what is assumed", true
	r := &predictor{be: be, shape: shape, c: c, cache: map[config.Pass]float64{},
		chunks: p.chunks, lastOnly: p.lastOnly,
		passes: c.Passes(p.Stage, c.Data.TrainBatchSize, be.Alone())}
	r.makeSequences(p)
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(p.Stage); err != nil {
		return err
	}
	for _, x := range r.passes {
		if !p.due(c, x, p.AnswerMean) {
			continue
		}
		seconds, err := r.seconds(x)
		if err != nil {
			return err
		}
		seconds *= 1 + p.lossShare(c, shape, x)
		p.StepTime = withPass(p.StepTime, x.Part, seconds)
	}
	return p.suggestSlots(r)
}

// mostAtATime bounds the answers at a time that suggestSlots tries: with more, the weights are
// hardly read less often.
const mostAtATime = 512

// suggestSlots notes the number of answers at a time with which a step would be at least a
// twentieth shorter, within the memory: a GPU's products of few rows take as long as products of
// many.
func (p *Plan) suggestSlots(r *predictor) error {
	least, step := 0.95*p.step(), p.step()
	for _, x := range r.passes {
		if x.Kind != config.Sample || x.When != config.Always {
			continue
		}
		now, err := r.sample(x)
		if err != nil {
			return err
		}
		given := r.c.Rollout.MaxNumSeqs
		defer func() { r.c.Rollout.MaxNumSeqs = given }()
		for n := 2 * given; n <= min(mostAtATime, x.Prompts*x.Students); n *= 2 {
			r.c.Rollout.MaxNumSeqs = n
			needs := Total(p.planMemory(networksOf(p.footprint, p.shape), r.c))
			if p.MemoryFree > 0 && needs > p.MemoryFree {
				break
			}
			then, err := r.sample(x)
			if err != nil {
				return err
			}
			if shorter := step - now + then; shorter < least {
				least = 0.95 * shorter
				p.Faster = fmt.Sprintf("  %-52s %10s  (%s of memory)\n",
					fmt.Sprintf("with rollout.max_num_seqs=%d", n), report.Seconds(shorter),
					report.Bytes(needs))
			}
		}
	}
	return nil
}

// predictor runs one step of a run on the cost model of a GPU.
type predictor struct {
	be     *cost.Backend
	shape  model.Config
	c      config.Config
	passes []config.Pass

	questions          [][]int32
	asked              [][]int32   // questions for notes on the students' answers
	students, teachers []model.Seq // students: n to each prompt
	read               []model.Seq // students as the teacher reads them
	n, answer          int
	chunks             model.Chunks
	lastOnly           bool // the discriminator reads a thought's last chunk

	// the reference costs the same as the student
	base, sampler, student, discriminator, teacher *model.Model
	studentOpt, discriminatorOpt                   *model.Optimizer
	// seconds of forward passes, by pass
	cache map[config.Pass]float64
}

// makeSequences makes prompts and answers of mean length, with arbitrary tokens.
func (r *predictor) makeSequences(p *Plan) {
	r.n, r.answer = 1, max(2, int(math.Round(p.AnswerMean)))
	for _, x := range r.passes {
		r.n = max(r.n, x.Students)
	}
	ids := func(salt, n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32((i*7919 + salt*104729 + 1) % r.shape.Vocab)
		}
		return out
	}
	notes := r.c.Coach.OwnNotes(p.Stage)
	for i := range r.c.Data.TrainBatchSize {
		q := ids(i, max(1, int(math.Round(p.PromptMean))))
		r.questions = append(r.questions, q)
		after := func(q []int32, salt int) model.Seq {
			return model.Answer(append(q[:len(q):len(q)], ids(salt, r.answer)...), len(q))
		}
		seq := func(salt int) model.Seq { return after(q, salt) }
		r.teachers = append(r.teachers, seq(1<<20+i))
		for k := range r.n {
			r.students = append(r.students, seq(1<<21+i*r.n+k))
			if notes > 0 {
				r.asked = append(r.asked, ids(1<<23+i*r.n+k, len(q)+r.answer+notes))
			}
			salt, copies := i, max(p.teacher.apart, 1)
			if copies > 1 {
				salt = 1<<22 + i*r.n + k
			}
			theirs := ids(salt, max(1, int(math.Round(p.promptOf(config.Teacher)/copies))))
			r.read = append(r.read, after(theirs, 1<<21+i*r.n+k))
		}
	}
}

// open opens the networks of a stage.
func (r *predictor) open(stage config.Stage) (err error) {
	c, game := r.c, stage.HasCritic()
	if c.Actor.LoRA.On() || c.Critic.LoRA.On() && game {
		o := model.Options{Kind: model.LM, Quant: c.LoRABase()}
		if r.base, err = model.New(r.be, r.shape, o); err != nil {
			return err
		}
	}
	if r.student, r.studentOpt, err = r.newTrained(c.StudentPlan(), c.Actor.Optim); err != nil {
		return err
	}
	r.sampler = r.student
	if c.Merges(stage) {
		if r.sampler, err = r.student.Merged(); err != nil {
			return err
		}
		r.sampler.Share(r.student)
	}
	if c.LoadsTeacher(stage) {
		r.teacher, err = model.New(r.be, teacherShape(c, r.shape), model.Options{Kind: model.LM})
		if err != nil {
			return err
		}
		r.teacher.Share(r.student)
	}
	if !game {
		return nil
	}
	r.discriminator, r.discriminatorOpt, err = r.newTrained(c.DiscriminatorPlan(), c.Critic.Optim)
	if err != nil {
		return err
	}
	r.discriminator.Share(r.student)
	return nil
}

// newTrained returns a network with its optimizer. A second one takes turns with the student.
func (r *predictor) newTrained(o model.PlanOptions, optim model.OptimSettings) (
	m *model.Model, opt *model.Optimizer, err error) {
	settings := model.Options{Kind: o.Kind, Trainable: true, Recompute: o.Recompute, LoRA: o.LoRA,
		Turns: r.student}
	if o.LoRA.On() {
		m, err = r.base.Adapt(settings)
	} else {
		m, err = model.New(r.be, r.shape, settings)
	}
	if err != nil {
		return nil, nil, err
	}
	opt, err = model.NewOptimizer(m, optim.AdamW(1, 1))
	return m, opt, err
}

func (r *predictor) close() error {
	var errs []error
	for i, m := range []*model.Model{r.sampler, r.discriminator, r.teacher, r.student,
		r.base} {
		if m != nil && (i > 0 || m != r.student) {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// seqs returns the sequences of a pass.
func (r *predictor) seqs(x config.Pass) (seqs []model.Seq) {
	students := r.students
	if x.Network == config.Teacher {
		students = r.read
	}
	for i, teacher := range r.teachers {
		seqs = append(seqs, students[i*r.n:i*r.n+x.Students]...)
		if x.Teachers > 0 {
			seqs = append(seqs, teacher)
		}
	}
	return seqs
}

// readBy returns answers as a network reads them.
func (r *predictor) readBy(network config.Network, seqs []model.Seq) []model.Seq {
	switch {
	case network != config.Discriminator:
		seqs, _ = r.chunks.SplitAll(seqs)
	case r.lastOnly:
		seqs = r.chunks.Last(seqs)
	}
	return seqs
}

// seconds returns the seconds of a pass on the cost model's clock.
func (r *predictor) seconds(x config.Pass) (float64, error) {
	switch x.Kind {
	case config.Sample:
		return r.sample(x)
	case config.Forward:
		seconds, err := r.forward(x)
		return seconds * x.Times, err
	}
	m, opt := r.student, r.studentOpt
	if x.Network == config.Discriminator {
		// A network's first pass does work that later ones need not repeat. The student's first
		// pass was sampling.
		once := x
		once.Kind, m, opt = config.Forward, r.discriminator, r.discriminatorOpt
		if _, err := r.forward(once); err != nil {
			return 0, err
		}
	}
	before := r.be.Elapsed()
	err := r.update(m, opt, x, r.c.NetworkConfig(x.Network).MaxTokenLen)
	return (r.be.Elapsed() - before) * x.Times, err
}

// sample returns the seconds of sampling. Waves of answers take equal time: the time of some
// prompts is scaled to all.
func (r *predictor) sample(x config.Pass) (float64, error) {
	c, before := r.c.Rollout, r.be.Elapsed()
	o := model.SampleOptions{N: x.Students, MaxNew: r.answer, Chunks: r.chunks, Slots: c.MaxNumSeqs,
		Seed:     1,
		Sampling: compute.Sampling{Temperature: 1, TopP: c.TopP, TopK: c.TopK, MinP: c.MinP}}
	prompts, of := r.questions, x.Prompts
	if x.Notes > 0 {
		o.N, o.MaxNew, o.Chunks = 1, x.Notes, model.Chunks{}
		prompts, of = r.asked, x.Prompts*x.Students
	}
	some := min(of, (4*c.MaxNumSeqs+o.N-1)/o.N)
	_, err := r.sampler.Generate(prompts[:some], make([]uint64, some), o, nil)
	return (r.be.Elapsed() - before) * float64(of) / float64(some), err
}

// forward returns the seconds of one forward pass; the student's and the reference's are equal.
func (r *predictor) forward(x config.Pass) (seconds float64, err error) {
	key, m := config.Pass{When: x.When, Students: x.Students, Teachers: x.Teachers}, r.student
	switch x.Network {
	case config.Discriminator:
		key.Network, m = x.Network, r.discriminator
	case config.Teacher:
		key.Network, m = x.Network, r.teacher
	}
	if seconds, known := r.cache[key]; known {
		return seconds, nil
	}
	seqs, limit, before := r.readBy(x.Network, r.seqs(x)), r.c.NetworkConfig(x.Network).MaxTokenLen,
		r.be.Elapsed()
	if m.Kind() == model.Scorer {
		_, err = m.AllScores(seqs, limit)
	} else {
		_, _, err = m.AllLogProbs(seqs, 1, limit)
	}
	r.cache[key] = r.be.Elapsed() - before
	return r.cache[key], err
}

// update takes the optimizer steps of a pass, on equal parts of the prompts' sequences.
func (r *predictor) update(m *model.Model, opt *model.Optimizer, x config.Pass, limit int) error {
	n, each, seqs := x.Updates(), x.Answers(), r.seqs(x)
	for u := range n {
		part := r.readBy(x.Network, seqs[u*x.Prompts/n*each:(u+1)*x.Prompts/n*each])
		for _, pack := range model.Packs(part, limit) {
			var err error
			if seqs := model.Pick(part, pack); m.Kind() == model.Scorer {
				err = m.ScoreGrad(seqs, func(s []float32) ([]float32, error) { return s, nil })
			} else {
				err = m.LogProbGrad(seqs, 1,
					func(logpST, _ [][]float32) (d, e [][]float32, err error) {
						return logpST, nil, nil
					})
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
