package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/model"
	"gad/trainer/config"
)

// tokenTimes holds seconds per token: of a forward and a backward pass, of a forward pass alone, of
// sampling, and of a product with the head for a loss over distributions, with the host's part of
// that loss.
type tokenTimes struct{ trained, forward, decoded, head float64 }

// tokens returns the tokens of prompts and of answers that a pass computes, if the student's
// answers have student tokens each.
func (p *Plan) tokens(x config.Pass, student float64) (prompts, answers float64) {
	if x.Notes > 0 { // and their questions, as long as both may be
		n, notes := float64(x.Prompts*x.Students), float64(x.Notes)
		return n * (p.PromptMean + student + notes), n * notes
	}
	batch := float64(x.Prompts)
	each := float64(x.Students)*p.answerTokens(x.Network, student) +
		float64(x.Teachers)*p.answerTokens(x.Network, p.AnswerMean)
	return batch * p.promptOf(x.Network), batch * each
}

// promptOf returns the mean tokens of the prompts that a network reads for each prompt of the
// student.
func (p *Plan) promptOf(network config.Network) float64 {
	if network == config.Teacher && p.TeacherPromptMean > 0 {
		return p.TeacherPromptMean * max(p.teacher.apart, 1)
	}
	return p.PromptMean
}

// carriedChunks returns the number of chunks of an answer of n tokens that begin with a carry.
func (p *Plan) carriedChunks(n float64) float64 {
	return float64(p.chunks.Count(int(math.Ceil(n))) - 1)
}

// answerTokens returns the tokens that a network computes for an answer of n tokens, after its
// prompt. In chunks the student also computes each chunk's carry; a discriminator that reads only
// the last chunk computes no other.
func (p *Plan) answerTokens(network config.Network, n float64) float64 {
	switch {
	case !p.chunks.On():
		return n
	case network != config.Discriminator:
		return n + p.carriedChunks(n)*float64(p.chunks.Carry)
	case p.lastOnly:
		return min(n, float64(p.chunks.Size))
	}
	return n
}

// longest returns the longest sequence of a network, with a prompt and an answer of mean length.
func (p *Plan) longest(network config.Network) int {
	answer := p.AnswerMean
	if p.chunks.On() && (network != config.Discriminator || p.lastOnly) {
		answer = min(answer, float64(p.chunks.Size))
	}
	return int(p.PromptMean + answer)
}

// passTime returns the seconds of a pass.
func (p *Plan) passTime(c config.Config, x config.Pass, t tokenTimes, student float64) float64 {
	prompts, answers := p.tokens(x, student)
	loss := answers * t.head * c.LossHeads(p.Stage, x, p.soft)
	switch x.Kind {
	case config.Sample:
		written := float64(x.Prompts*x.Students) * student
		if p.chunks.On() && x.Notes == 0 { // each later chunk computes its prompt and its carry again
			again := float64(x.Prompts*x.Students) * p.carriedChunks(student)
			return (prompts+again*(p.PromptMean+float64(p.chunks.Carry)))*t.forward +
				written*t.decoded
		}
		return prompts*t.forward + answers*t.decoded
	case config.Learn:
		return (prompts+answers)*t.trained*x.Times + loss
	}
	seconds := (prompts+answers)*t.forward*x.Times + loss
	if x.Network == config.Teacher {
		seconds *= p.teacher.cost
	}
	return seconds
}

// due reports whether every step of c has the pass.
func (p *Plan) due(c config.Config, x config.Pass, student float64) bool {
	prompts, answers := p.tokens(x, student)
	several := prompts+answers > float64(c.NetworkConfig(x.Network).MaxTokenLen)
	return x.When == config.Always || x.When == config.SeveralPacks && several
}

// stepTime returns the parts of a step in which the student's answers have student tokens each.
func (p *Plan) stepTime(c config.Config, independent bool, t tokenTimes, student float64) []Timed {
	var step []Timed
	for _, x := range c.Passes(p.Stage, c.Data.TrainBatchSize, independent) {
		if p.due(c, x, student) {
			step = withPass(step, x.Part, p.passTime(c, x, t, student))
		}
	}
	return step
}

// withPass adds a pass to its part, the last of step or a new one.
func withPass(step []Timed, part string, seconds float64) []Timed {
	if n := len(step); n > 0 && step[n-1].Name == part {
		step[n-1].Seconds += seconds
		return step
	}
	return append(step, Timed{part, seconds})
}

// measureTime sets the times of a run, from timing a forward and backward pass and a short
// generation of a model of the same width with at most two layers, scaled by floating-point
// operations.
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
	head, err := p.measureLoss(m, seqs, c, train, best)
	if err != nil {
		return err
	}
	slots, fresh := min(p.slots(c), c.Data.TrainBatchSize*c.Answers(p.Stage)), 8
	decode, err := best(func() error {
		_, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{0},
			model.SampleOptions{N: slots, MaxNew: fresh, Slots: slots,
				Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
		return err
	})
	if err != nil {
		return err
	}
	scale := shape.FLOPsPerToken(float64(length)/2, true) / small.FLOPsPerToken(float64(length)/2,
		true)
	p.Measured = fmt.Sprintf("%s, %d of %d layers, %d tokens", be.Name(), small.Layers,
		shape.Layers, int(trained))
	p.setTimes(c, be.Alone(), tokenTimes{scale * train / trained, scale * forward / trained,
		scale * decode / float64(slots*fresh), head})
	return nil
}

// measureLoss returns tokenTimes.head: the time that a loss over distributions adds to m's passes
// over seqs, which take train seconds without it; 0 if the run has no such loss.
func (p *Plan) measureLoss(m *model.Model, seqs []model.Seq, c config.Config, train float64,
	best func(func() error) (float64, error)) (float64, error) {
	heads, k := 0.0, labelTokens
	for _, x := range c.Passes(p.Stage, c.Data.TrainBatchSize, true) {
		heads = max(heads, c.LossHeads(p.Stage, x, p.soft))
	}
	if heads == 0 {
		return 0, nil
	}
	if c.Divergence(p.Stage) {
		k = c.Teacher.TopK
	}
	k = min(k, m.Config().Vocab)
	label := model.SoftLabel{Rest: 1 / float64(k+1)}
	for id := range k {
		label.IDs = append(label.IDs, int32(id))
		label.Logp = append(label.Logp, -math.Log(float64(k+1)))
	}
	labelsST, tokens := make([][]model.SoftLabel, len(seqs)), 0
	for s, seq := range seqs {
		labelsST[s] = slices.Repeat([]model.SoftLabel{label}, seq.Trained())
		tokens += seq.Trained()
	}
	whole, err := best(func() error {
		_, err := m.LogProbTailGrad(seqs, labelsST, 1,
			func(logpST, _, tailST [][]float32) (dlogpST, dentST, dtailST [][]float32, err error) {
				return logpST, nil, tailST, nil
			})
		return err
	})
	const products = 4 // of LossHeads, with weights that learn
	return max(0, whole-train) / float64(products*tokens), err
}

// lossShare returns the operations that LossHeads adds to a pass, as a share of the pass's own.
func (p *Plan) lossShare(c config.Config, shape model.Config, x config.Pass) float64 {
	if x.Network == config.Teacher {
		shape = teacherShape(c, shape)
	}
	heads := c.LossHeads(p.Stage, x, p.soft)
	if heads == 0 {
		return 0
	}
	prompts, answers := p.tokens(x, p.AnswerMean)
	return heads * answers * shape.HeadFLOPs() / (c.Forwards(x) * (prompts + answers) *
		shape.FLOPsPerToken((p.PromptMean+p.AnswerMean)/2, true))
}
