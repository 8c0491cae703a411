package quality

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/critic"
	"gad/internal/fault"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
)

// Pace is the speed of this machine with a student, measured in about a second. The time of an
// evaluation is extrapolated from it by floating-point operations.
type Pace struct {
	Device  string
	Seconds float64 // duration of the measurement
	Forward float64 // seconds per operation of a forward pass
	// seconds per operation of a forward pass that is learned: scores, a second forward pass, and
	// gradients
	Train  float64
	Update float64 // seconds of an optimizer step per parameter
	Decode float64 // seconds of a decoding step, without a part for each answer
	Slot   float64 // additional seconds of a decoding step for each answer
	Load   float64 // seconds to load the student
	Ends   float64 // probability that the student ends an answer where the teacher did
}

// probe is a measurement in progress.
type probe struct {
	be   model.Backend
	m    *model.Model
	seqs []model.Seq // for forward passes
	stop func() bool // may be nil
}

// MeasurePace times m on the first rows of b: forward passes, decoding of slots answers at a time
// and, if fresh, the training of a discriminator of the same width. If stop, which may be nil,
// returns true between two of these, the error is fault.ErrInterrupted.
func MeasurePace(be model.Backend, m *model.Model, tok *tokenizer.Tokenizer, b encode.Batch,
	slots int, fresh bool, stop func() bool) (p Pace, err error) {
	startTime := time.Now()
	defer func() {
		p.Seconds = time.Since(startTime).Seconds()
		if errors.Is(err, model.ErrStopped) {
			err = fault.ErrInterrupted
		}
	}()
	p.Device = be.Name()
	x := probe{be, m, probeSeqs(m.Config(), b), stop}
	if len(x.seqs) == 0 {
		return p, fmt.Errorf("trainer: plan of an evaluation: no row to measure with")
	}
	if err := x.forward(&p, tok.EndOfTurn()); err != nil {
		return p, err
	}
	if p.Decode, err = x.decode(1); err != nil {
		return p, err
	}
	if slots > 1 {
		one := p.Decode
		all, err := x.decode(slots)
		if err != nil {
			return p, err
		}
		p.Slot = max(0, all-one) / float64(slots-1)
		p.Decode = max(0, one-p.Slot)
	}
	if fresh {
		err = x.train(&p)
	}
	return p, err
}

// probeSeqs returns the last tokens of the first rows, as many as a measurement takes: they contain
// the ends of the answers.
func probeSeqs(c model.Config, b encode.Batch) (seqs []model.Seq) {
	limit := int(min(max(probeFLOP/c.FLOPsPerToken(128, true), probeLeast), probeMost))
	for left := limit; left > 1 && len(seqs) < len(b); {
		s := b[len(seqs)].Teacher
		if n := min(len(s.IDs), left); n < len(s.IDs) {
			s = model.Answer(s.IDs[len(s.IDs)-n:], max(1, s.Prompt()-(len(s.IDs)-n)))
		}
		if s.Prompt() >= len(s.IDs) {
			break
		}
		seqs = append(seqs, s)
		left -= len(s.IDs)
	}
	return seqs
}

// timeWork returns the mean seconds of two runs of work after one to warm up. A minimum would leave
// out the load of other programs, which the evaluation will have too.
func (x *probe) timeWork(work func() error) (float64, error) {
	var start time.Time
	for i := range 3 {
		if x.stop != nil && x.stop() {
			return 0, fault.ErrInterrupted
		}
		if i == 1 {
			start = time.Now()
		}
		if err := work(); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds() / 2, nil
}

// operations returns the operations of a forward pass of shape c.
func (x *probe) operations(c model.Config, head bool) (n float64) {
	for _, s := range x.seqs {
		n += float64(len(s.IDs)) * c.FLOPsPerToken(float64(len(s.IDs))/2, head)
	}
	return n
}

// forward sets Forward and Ends.
func (x *probe) forward(p *Pace, end int32) error {
	var logpST [][]float32
	seconds, err := x.timeWork(
		func() (err error) { logpST, _, err = x.m.LogProbs(x.seqs, 1); return err })
	if err != nil {
		return err
	}
	p.Forward = seconds / x.operations(x.m.Config(), true)
	n := 0.0
	for i, s := range x.seqs {
		if s.IDs[len(s.IDs)-1] == end {
			p.Ends += math.Exp(float64(logpST[i][len(logpST[i])-1]))
			n++
		}
	}
	p.Ends /= max(n, 1)
	return nil
}

// decode returns the seconds of a decoding step of the given number of answers.
func (x *probe) decode(answers int) (float64, error) {
	run := func(tokens int) func() error {
		return func() error {
			_, err := x.m.Generate([][]int32{x.seqs[0].IDs[:1]}, []uint64{0},
				model.SampleOptions{N: answers, MaxNew: tokens, Slots: answers,
					Sampling: model.Sampling{Temperature: 1, TopP: 1}, Stop: x.stop}, nil)
			return err
		}
	}
	short, err := x.timeWork(run(1))
	if err != nil {
		return 0, err
	}
	long, err := x.timeWork(run(1 + probeDecode))
	return max(long-short, 0) / probeDecode, err
}

// train sets Train and Update, from a discriminator of the same width.
func (x *probe) train(p *Pace) error {
	small := x.m.Config().FirstLayers(probeLayers)
	small.Vocab = min(small.Vocab, 1024)
	sc, err := model.New(x.be, small, model.Options{Kind: model.Scorer, Trainable: true, Seed: 1})
	if err != nil {
		return err
	}
	defer sc.Close()
	given := make([]model.Seq, len(x.seqs))
	for i, s := range x.seqs {
		given[i] = model.Answer(make([]int32, len(s.IDs)), s.Prompt())
		for k, id := range s.IDs {
			given[i].IDs[k] = id % int32(small.Vocab)
		}
	}
	seconds, err := x.timeWork(func() error {
		if _, err := sc.Scores(given); err != nil {
			return err
		}
		return sc.ScoreGrad(given,
			func(scoreS []float32) ([]float32, error) { return make([]float32, len(scoreS)), nil })
	})
	if err != nil {
		return err
	}
	p.Train = seconds / x.operations(small, false)
	opt, err := model.NewOptimizer(sc, critic.DefaultConfig().Optim.AdamW(1, 1))
	if err != nil {
		return err
	}
	seconds, err = x.timeWork(func() error { _, err := opt.Step(); return err })
	p.Update = seconds / float64(small.ParamCount(model.Scorer))
	return err
}

// passOf returns the seconds of a forward pass over sequences of the given lengths.
func (p Pace) passOf(c model.Config, lengths []int, head bool) (s float64) {
	for _, n := range lengths {
		s += float64(n) * c.FLOPsPerToken(float64(n)/2, head) * p.Forward
	}
	return s
}

// answers returns the seconds of sampling: prompts, then answers of the given lengths. In chunks
// each later chunk computes its context anew.
func (p Pace) answers(c model.Config, chunks model.Chunks, prompts, lengths []int,
	slots int) float64 {
	if chunks.On() {
		var seconds float64
		for left, carry := slices.Clone(lengths), 0; maxOf(left) > 0; carry = chunks.Carry {
			before, written := make([]int, 0, len(left)), make([]int, 0, len(left))
			for i, n := range left {
				if n = min(n, chunks.Size-carry); n > 0 {
					before, written = append(before, prompts[i]+carry), append(written, n)
					left[i] -= n
				}
			}
			seconds += p.answers(c, model.Chunks{}, before, written, slots)
		}
		return seconds
	}
	tokens, longest, context := 0, 0, 0.0
	for i, n := range lengths {
		tokens, longest = tokens+n, max(longest, n)
		context += float64(n) * (float64(prompts[i]) + float64(n)/2)
	}
	steps := max(float64(longest), float64(tokens)/float64(slots))
	mean := context / max(float64(tokens), 1)
	scale := c.FLOPsPerToken(mean, true) / c.FLOPsPerToken(probeDecode/2, true)
	// A step for one answer reads the weights; keys and values are read at the same rate, and states
	// read and written.
	cache := (mean*float64(c.Cached()) + 2*float64(c.Stated())) / float64(c.ParamCount(model.LM)) *
		p.Decode
	return p.passOf(c, prompts, false) + steps*p.Decode + float64(tokens)*(p.Slot*scale+cache)
}

// pairLength holds the tokens of a pair.
type pairLength struct{ prompt, student, teacher int }

// trainingCost returns the cost of one training of a discriminator of shape c on such pairs, as a
// function of the tokens of an answer that it reads, 0 for all. At its end half of the pairs are
// tested, and some of the others again.
func (p Pace) trainingCost(c model.Config, o DiscOptions,
	pairs []pairLength) func(read int) DiscCost {
	return func(read int) DiscCost {
		pair := 0.0 // operations of both forward passes, mean
		for _, l := range pairs {
			for _, n := range []int{l.student, l.teacher} {
				if read > 0 {
					n = min(n, read)
				}
				whole := float64(l.prompt + n)
				pair += whole * c.FLOPsPerToken(whole/2, false) / float64(len(pairs))
			}
		}
		known := min(len(pairs)/2, trainedPairs)
		return DiscCost{
			Once: p.Load + float64(known+(len(pairs)+1)/2)*pair*p.Forward,
			Step: float64(cmp.Or(o.Batch, 4))*pair*p.Train +
				float64(c.ParamCount(model.Scorer))*p.Update,
		}
	}
}
