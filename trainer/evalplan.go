package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"gad/critic"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
)

// Pace is how fast this machine computes with a student: a measurement of about a
// second, from which the time of an evaluation is extrapolated by floating-point
// operations.
type Pace struct {
	Device  string
	Seconds float64 // that the measurement took
	Forward float64 // seconds per operation of a forward pass
	Train   float64 // seconds per operation of a forward pass that is learned from: its scores, it again, and its gradients
	Update  float64 // seconds of an optimizer step per parameter
	Decode  float64 // seconds of a decoding step whatever the number of answers
	Slot    float64 // and for each answer under way
	Load    float64 // seconds to load the student
	Ends    float64 // probability with which the student ends an answer where the teacher ended it
}

// Sizes of the measurement: operations of one forward pass, and its bounds in tokens.
const (
	probeFLOP   = 6e10
	probeLeast  = 32
	probeMost   = 512
	probeLayers = 2 // of the discriminator that is timed
	probeDecode = 6 // tokens
)

// sumSeconds is what a core takes to sum two distributions over one token of the vocabulary
// (model.Divergences): two exponentials in float64, as measured on a Xeon.
const sumSeconds = 3e-8

// endsAt is how probable the student must find the end of the teacher's answers for
// its own to be expected to be about as long. Others run to the limit.
const endsAt = 0.05

// MeasurePace times m on the first rows of b: forward passes, decoding of so many
// answers at a time, and, for fresh discriminators, the training of one of the same width.
// Where stop, which may be nil, is true between two of these, it ends with ErrInterrupted.
func MeasurePace(be model.Backend, m *model.Model, tok *tokenizer.Tokenizer, b *Batch, slots int, fresh bool, stop func() bool) (p Pace, err error) {
	begun := time.Now()
	defer func() {
		p.Seconds = time.Since(begun).Seconds()
		if errors.Is(err, model.ErrStopped) {
			err = ErrInterrupted
		}
	}()
	c := m.Config()
	p.Device = be.Name()
	limit := int(min(max(probeFLOP/c.FLOPsPerToken(128, true), probeLeast), probeMost))
	var seqs []model.Seq
	for left := limit; left > 1 && len(seqs) < len(b.Teachers); {
		s := b.Teachers[len(seqs)]
		if n := min(len(s.IDs), left); n < len(s.IDs) { // its last tokens: the end is among them
			s = model.Seq{IDs: s.IDs[len(s.IDs)-n:], Prompt: max(1, s.Prompt-(len(s.IDs)-n))}
		}
		if s.Prompt >= len(s.IDs) {
			break
		}
		seqs = append(seqs, s)
		left -= len(s.IDs)
	}
	if len(seqs) == 0 {
		return p, fmt.Errorf("trainer: plan of an evaluation: no row to measure with")
	}
	operations := func(c model.Config, head bool) (n float64) {
		for _, s := range seqs {
			n += float64(len(s.IDs)) * c.FLOPsPerToken(float64(len(s.IDs))/2, head)
		}
		return n
	}
	// The mean of two after one to warm up: what other programs take of the machine now
	// they will take later too.
	timed := func(work func() error) (float64, error) {
		f := func() error {
			if stop != nil && stop() {
				return ErrInterrupted
			}
			return work()
		}
		if err := f(); err != nil {
			return 0, err
		}
		start := time.Now()
		for range 2 {
			if err := f(); err != nil {
				return 0, err
			}
		}
		return time.Since(start).Seconds() / 2, nil
	}
	var logpST [][]float32
	forward, err := timed(func() (err error) { logpST, _, err = m.LogProbs(seqs, 1); return err })
	if err != nil {
		return p, err
	}
	p.Forward = forward / operations(c, true)
	n := 0.0
	for i, s := range seqs {
		if s.IDs[len(s.IDs)-1] == tok.EndOfTurn() {
			p.Ends += math.Exp(float64(logpST[i][len(logpST[i])-1]))
			n++
		}
	}
	p.Ends /= max(n, 1)

	decode := func(answers int) (float64, error) {
		run := func(tokens int) func() error {
			return func() error {
				_, err := m.Generate([][]int32{seqs[0].IDs[:1]}, []uint64{0}, model.SampleOptions{N: answers, MaxNew: tokens, Slots: answers,
					Sampling: model.Sampling{Temperature: 1, TopP: 1}, Stop: stop}, nil)
				return err
			}
		}
		short, err := timed(run(1))
		if err != nil {
			return 0, err
		}
		long, err := timed(run(1 + probeDecode))
		return max(long-short, 0) / probeDecode, err
	}
	one, err := decode(1)
	if err != nil {
		return p, err
	}
	p.Decode = one
	if slots > 1 {
		all, err := decode(slots)
		if err != nil {
			return p, err
		}
		p.Slot = max(0, all-one) / float64(slots-1)
		p.Decode = max(0, one-p.Slot)
	}
	if !fresh {
		return p, nil
	}

	small := c.FirstLayers(probeLayers)
	small.Vocab = min(c.Vocab, 1024)
	sc, err := model.New(be, small, model.Options{Kind: model.Scorer, Trainable: true, Seed: 1})
	if err != nil {
		return p, err
	}
	defer sc.Close()
	given := make([]model.Seq, len(seqs))
	for i, s := range seqs {
		given[i] = model.Seq{IDs: make([]int32, len(s.IDs)), Prompt: s.Prompt}
		for k, id := range s.IDs {
			given[i].IDs[k] = id % int32(small.Vocab)
		}
	}
	train, err := timed(func() error {
		if _, err := sc.Scores(given); err != nil {
			return err
		}
		return sc.ScoreGrad(given, func(scoreS []float32) ([]float32, error) { return make([]float32, len(scoreS)), nil })
	})
	if err != nil {
		return p, err
	}
	p.Train = train / operations(small, false)
	opt, err := model.NewOptimizer(sc, critic.DefaultConfig().Optim.AdamW(1, 1))
	if err != nil {
		return p, err
	}
	update, err := timed(func() error { _, err := opt.Step(); return err })
	p.Update = update / float64(small.ParamCount(model.Scorer))
	return p, err
}

// passOf is the seconds of a forward pass over sequences of these lengths.
func (p Pace) passOf(c model.Config, lengths []int, head bool) (s float64) {
	for _, n := range lengths {
		s += float64(n) * c.FLOPsPerToken(float64(n)/2, head) * p.Forward
	}
	return s
}

// answers is the seconds that sampling takes: prompts, then answers of these lengths.
func (p Pace) answers(c model.Config, prompts, lengths []int, slots int) float64 {
	tokens, longest, context := 0, 0, 0.0
	for i, n := range lengths {
		tokens, longest = tokens+n, max(longest, n)
		context += float64(n) * (float64(prompts[i]) + float64(n)/2)
	}
	steps := max(float64(longest), float64(tokens)/float64(slots))
	mean := context / max(float64(tokens), 1)
	scale := c.FLOPsPerToken(mean, true) / c.FLOPsPerToken(probeDecode/2, true)
	// A step for one answer reads the weights; keys and values are read at the same rate.
	cache := mean * float64(2*c.Layers*c.KVHeads*c.HeadDim) / float64(c.ParamCount(model.LM)) * p.Decode
	return p.passOf(c, prompts, false) + steps*p.Decode + float64(tokens)*(p.Slot*scale+cache)
}

// pairLength is the tokens of a pair.
type pairLength struct{ prompt, student, teacher int }

// training is what one training of a discriminator of shape c takes on such pairs, by
// the tokens of an answer that it reads, 0 for all. At its end half of the pairs are
// asked about, and some of the others again.
func (p Pace) training(c model.Config, o DiscOptions, pairs []pairLength) func(read int) DiscCost {
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
			Step: float64(cmp.Or(o.Batch, 4))*pair*p.Train + float64(c.ParamCount(model.Scorer))*p.Update,
		}
	}
}

// EvalPlan is what an evaluation will take, known before it starts.
type EvalPlan struct {
	Pace
	Rows       int
	Limit      int // tokens of an answer
	PromptMean float64
	TeacherCut int     // answers that the limit cuts
	AnswerMean float64 // tokens, expected of the student

	Parts   []Timed // seconds
	Most    float64 // if every answer runs to the limit; 0 is the same
	Checker bool    // a program will run, for nobody knows how long

	Disc     DiscOptions // as they were fitted
	DiscNote string      // what was shortened
	DiscWhy  string      // why there is none
	Memory   []Item      // bytes, all held at once
	Free     int64       // bytes available; 0 is unknown
}

// DiscBudget is how long the fresh discriminators may take.
type DiscBudget struct {
	Seconds float64 // 0 is any time
	Fixed   bool    // the steps are the user's: passes do not bound them
}

// PlanEval says what the evaluation of the student c on the rows of b will take.
// disc.Steps of 0 is no discriminator.
func PlanEval(f model.Footprint, free int64, c model.Config, b *Batch, pace Pace, o EvalOptions, disc DiscOptions, budget DiscBudget) EvalPlan {
	plan := EvalPlan{Pace: pace, Rows: len(b.Rows), Limit: o.MaxResponse, Free: free}
	n := len(b.Rows)
	prompts, whole, expected, most := make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	var prompt, answer float64
	for i := range n {
		prompts[i], whole[i], most[i] = len(b.Prompts[i]), len(b.Teachers[i].IDs), o.MaxResponse
		if b.TeacherCut[i] {
			plan.TeacherCut++
		}
		expected[i] = o.MaxResponse
		if pace.Ends >= endsAt {
			expected[i] = min(whole[i]-prompts[i], o.MaxResponse)
		}
		prompt, answer = prompt+float64(prompts[i])/float64(n), answer+float64(expected[i])/float64(n)
	}
	plan.PromptMean, plan.AnswerMean = prompt, answer
	sampling := pace.answers(c, prompts, expected, o.Slots)
	plan.Parts = []Timed{{"answers", sampling}, {"teacher NLL", pace.passOf(c, whole, true)}}
	longest := pace.answers(c, prompts, most, o.Slots)
	used := c.Plan(f, model.PlanOptions{Kind: model.LM, Quant: o.Quant, Tokens: min(o.MaxTokens, max(shownTokens, maxOf(whole))), Slots: o.Slots, N: 1, Prompts: n, PromptTokens: maxOf(prompts), MaxNew: o.MaxResponse})
	plan.Memory = evalMemory("student", used)
	beside := int64(0)
	if other := o.Against; other != nil {
		var lengths []int
		positions := 0
		for i := range n {
			lengths = append(lengths, prompts[i]+expected[i], whole[i])
			positions += expected[i] + whole[i] - prompts[i]
		}
		sums := float64(positions) * float64(min(c.Vocab, other.Vocab)) * sumSeconds / float64(runtime.GOMAXPROCS(0))
		plan.Parts = append(plan.Parts, Timed{"against the other model", pace.passOf(c, lengths, true) + pace.passOf(*other, lengths, true) + sums})
		m := other.Plan(f, model.PlanOptions{Kind: model.LM, Tokens: min(o.MaxTokens, max(shownTokens, maxOf(lengths)))})
		beside = m.Total() + model.LogitsBytes
		plan.Memory = append(plan.Memory, Item{"other model: weights and activations", m.Total(), ""}, Item{"logits of both", model.LogitsBytes, ""})
	}
	if disc.Steps > 0 {
		shape := disc.Shape
		both := int(float64(2*cmp.Or(disc.Batch, 4)) * (prompt + float64(o.MaxResponse)))
		m := shape.Plan(f, model.PlanOptions{Kind: model.Scorer, Trainable: true, Tokens: min(critic.DefaultConfig().MaxTokenLen, both)})
		var pairs []pairLength
		for i := range n {
			if !b.TeacherCut[i] || plan.Ends < endsAt {
				pairs = append(pairs, pairLength{prompts[i], expected[i], whole[i] - prompts[i]})
			}
		}
		cost := pace.training(shape, disc, pairs)
		plan.Disc, plan.DiscNote, plan.DiscWhy = disc.Fit(len(pairs), cost, budget.Seconds, budget.Fixed)
		switch {
		case n == 1:
			plan.DiscWhy = "1 row: a discriminator learns from half of the rows and is tested on the others"
		case plan.DiscWhy == "" && free > 0 && m.Total() > free:
			plan.DiscWhy = fmt.Sprintf("it needs %s of memory, %s are available: give --disc-steps 0, or --disc-from a smaller model", bytesText(m.Total()), bytesText(free))
		}
		if plan.DiscWhy == "" {
			plan.Parts = append(plan.Parts, Timed{fmt.Sprintf("fresh discriminators (2 x %d of %d steps)", plan.Disc.Seeds, plan.Disc.Steps), cost(plan.Disc.Read).of(plan.Disc.Steps, plan.Disc.Seeds)})
			if m.Total() > used.Total()+beside { // the student, and the model beside it, are closed before
				plan.Memory = evalMemory("fresh discriminator", m)
			}
		}
	}
	if longest > 1.05*sampling {
		plan.Most = plan.Total() - sampling + longest
	}
	return plan
}

func maxOf(xs []int) (most int) {
	for _, x := range xs {
		most = max(most, x)
	}
	return most
}

func evalMemory(name string, p model.Plan) (items []Item) {
	for _, i := range []Item{{name + ": weights", p.Weights, ""}, {name + ": copy of the weights for fast products", p.Copies, ""}, {name + ": gradients", p.Gradients, ""},
		{name + ": optimizer", p.Moments, ""}, {name + ": key/value cache", p.Cache, ""}, {"activations", p.Activations, ""}, {"scratch memory", p.Scratch, ""}} {
		if i.Bytes > 0 {
			items = append(items, i)
		}
	}
	return items
}

// Total is the seconds of all parts.
func (p EvalPlan) Total() (s float64) {
	for _, t := range p.Parts {
		s += t.Seconds
	}
	return s
}

// Time is the estimate for people.
func (p EvalPlan) Time() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; prompts of %.0f tokens on average; answers ", report.Count(p.Rows, "row"), p.PromptMean)
	if p.Ends >= endsAt {
		fmt.Fprintf(&b, "of about %.0f tokens are expected, at most %d", p.AnswerMean, p.Limit)
	} else {
		fmt.Fprintf(&b, "are expected to reach the limit of %d tokens: the student does not end the teacher's answers", p.Limit)
	}
	if p.TeacherCut > 0 {
		fmt.Fprintf(&b, "; the limit cuts %d of the teacher's answers", p.TeacherCut)
	}
	fmt.Fprintf(&b, "\nestimate, from a measurement of %s on %s\n", secondsText(p.Seconds), p.Device)
	for _, t := range p.Parts {
		fmt.Fprintf(&b, "  %-44s %10s\n", t.Name, secondsText(t.Seconds))
	}
	fmt.Fprintf(&b, "  %-44s %10s", "total", secondsText(p.Total()))
	if p.Checker {
		b.WriteString(", and the checker's time")
	}
	if p.Most > 0 {
		fmt.Fprintf(&b, "; at most %s, if no answer ends before its limit", secondsText(p.Most))
	}
	b.WriteByte('\n')
	if p.DiscNote != "" {
		fmt.Fprintf(&b, "fresh discriminators are shortened: %s\n", p.DiscNote)
	}
	if p.DiscWhy != "" {
		fmt.Fprintf(&b, "no fresh discriminator: %s\n", p.DiscWhy)
	}
	return b.String()
}

// String is Time and the memory.
func (p EvalPlan) String() string {
	var b strings.Builder
	b.WriteString("memory\n")
	for _, i := range p.Memory {
		fmt.Fprintf(&b, "  %-44s %10s\n", i.Name, bytesText(i.Bytes))
	}
	fmt.Fprintf(&b, "  %-44s %10s", "total", bytesText(total(p.Memory)))
	if p.Free > 0 {
		fmt.Fprintf(&b, " of %s available", bytesText(p.Free))
	}
	return b.String() + "\n" + p.Time()
}

// Check refuses what cannot fit.
func (p EvalPlan) Check() error {
	if need := total(p.Memory); p.Free > 0 && need > p.Free {
		return fmt.Errorf("%w: eval: %w in memory: needs %s, %s are available: lower --max-response-length, or use a smaller model", ErrConfig, ErrTooLarge, bytesText(need), bytesText(p.Free))
	}
	return nil
}

// Calibrate corrects the pace by what the teacher's NLL took: a longer measurement than
// that before the start, and a later one.
func (p EvalPlan) Calibrate(seconds float64) EvalPlan {
	const least, most = 0.25, 4
	if planned := p.Parts[1].Seconds; planned > 0 && seconds > 1 { // less says nothing
		r := min(max(seconds/planned, least), most)
		p.Forward, p.Train, p.Update = r*p.Forward, r*p.Train, r*p.Update
	}
	return p
}

// Refit fits the fresh discriminators again once the answers of j are known.
func (p EvalPlan) Refit(j *Judged, disc DiscOptions, budget DiscBudget) EvalPlan {
	if disc.Steps == 0 || p.DiscWhy != "" {
		return p
	}
	set := j.pairs()
	var pairs []pairLength
	for i, skip := range set.skip {
		if a, b := set.worse[i], set.better[i]; !skip {
			pairs = append(pairs, pairLength{a.Prompt, len(a.IDs) - a.Prompt, len(b.IDs) - b.Prompt})
		}
	}
	p.Disc, p.DiscNote, p.DiscWhy = disc.Fit(len(pairs), p.training(disc.Shape, disc, pairs), budget.Seconds, budget.Fixed)
	return p
}

// AlikeDiscriminators lowers the fresh discriminators of several students to the fewest
// steps, seeds and tokens among them: the accuracies of trainings that differ in these
// do not compare. A student without any changes nothing.
func AlikeDiscriminators(plans []EvalPlan) {
	var least *DiscOptions
	for i := range plans {
		if d := plans[i].Disc; plans[i].DiscWhy == "" && d.Steps > 0 {
			if least == nil {
				least = &d
			}
			least.Steps, least.Seeds = min(least.Steps, d.Steps), min(least.Seeds, d.Seeds)
			if d.Read > 0 && (least.Read == 0 || d.Read < least.Read) {
				least.Read = d.Read
			}
		}
	}
	for i := range plans {
		p := &plans[i]
		if p.DiscWhy != "" || p.Disc.Steps == 0 {
			continue
		}
		var kept []string
		if d := p.Disc; d.Steps > least.Steps {
			kept = append(kept, fmt.Sprintf("%d of %d steps", least.Steps, d.Steps))
		}
		if d := p.Disc; d.Seeds > least.Seeds {
			kept = append(kept, fmt.Sprintf("%d of %d seeds", least.Seeds, d.Seeds))
		}
		if p.Disc.Read != least.Read {
			kept = append(kept, fmt.Sprintf("the first %d tokens of each answer", least.Read))
		}
		if len(kept) > 0 {
			if p.DiscNote != "" {
				p.DiscNote += "; then "
			}
			p.DiscNote += strings.Join(kept, ", ") + ", to train those of all models alike"
			p.Disc.Steps, p.Disc.Seeds, p.Disc.Read = least.Steps, least.Seeds, least.Read
		}
	}
}
