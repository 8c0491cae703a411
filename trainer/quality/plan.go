package quality

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"gad/critic"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/plan"
)

// Sizes of the measurement: operations of one forward pass, and its bounds in tokens.
const (
	probeFLOP   = 6e10
	probeLeast  = 32
	probeMost   = 512
	probeLayers = 2 // of the discriminator that is timed
	probeDecode = 6 // tokens
)

// sumSeconds is the time in which a core sums two distributions over one token of the vocabulary
// (model.Divergences): two exponentials in float64, measured on a Xeon.
const sumSeconds = 3e-8

// endsAt is the least probability of the end of the teacher's answers with which the student's own
// are expected to be about as long. Otherwise they are expected to reach the limit.
const endsAt = 0.05

// Plan holds the time and memory that an evaluation will take.
type Plan struct {
	Pace
	Rows       int
	Limit      int // tokens of an answer
	PromptMean float64
	TeacherCut int     // answers of the teacher that the limit cuts
	AnswerMean float64 // tokens, expected of the student

	Parts   []plan.Timed // seconds
	Most    float64      // seconds if every answer reaches the limit; 0: the same
	Checker bool         // a checker will run, for an unknown time

	Disc     DiscOptions // after DiscOptions.Fit
	DiscNote string      // what was shortened
	DiscWhy  string      // why there is none
	Memory   []plan.Item // bytes, all held at once
	Free     int64       // bytes available; 0: unknown
}

// DiscBudget limits the time of the fresh discriminators.
type DiscBudget struct {
	Seconds float64 // 0: no limit
	Fixed   bool    // the steps are the user's: passes do not bound them
}

// PlanOf returns the plan of the evaluation of the student c on the rows of b. With disc.Steps 0 no
// discriminator is trained.
func PlanOf(f model.Footprint, free int64, c model.Config, b encode.Batch, pace Pace, o Options,
	disc DiscOptions, budget DiscBudget) Plan {
	out := Plan{Pace: pace, Rows: len(b), Limit: o.MaxResponse, Free: free}
	n := len(b)
	prompts, whole, expected, most := make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	var prompt, answer float64
	for i := range n {
		prompts[i], whole[i], most[i] = len(b[i].Prompt), len(b[i].Teacher.IDs), o.MaxResponse
		if b[i].TeacherCut {
			out.TeacherCut++
		}
		expected[i] = o.MaxResponse
		if pace.Ends >= endsAt {
			expected[i] = min(whole[i]-prompts[i], o.MaxResponse)
		}
		prompt, answer =
			prompt+float64(prompts[i])/float64(n), answer+float64(expected[i])/float64(n)
	}
	out.PromptMean, out.AnswerMean = prompt, answer
	sampling := pace.answers(c, o.Chunks, prompts, expected, o.Slots)
	out.Parts = []plan.Timed{{Name: "answers", Seconds: sampling},
		{Name: "teacher NLL", Seconds: pace.passOf(c, whole, true)}}
	longest := pace.answers(c, o.Chunks, prompts, most, o.Slots)
	used := c.Plan(f, model.PlanOptions{Kind: model.LM, Quant: o.Quant,
		Tokens: min(o.MaxTokens, max(shownTokens, maxOf(whole))), Slots: o.Slots, N: 1, Prompts: n,
		PromptTokens: maxOf(prompts), MaxNew: o.MaxResponse, Chunks: o.Chunks})
	out.Memory = evalMemory("student", used)
	beside := int64(0)
	if other := o.Against; other != nil {
		var lengths []int
		positions := 0
		for i := range n {
			lengths = append(lengths, prompts[i]+expected[i], whole[i])
			positions += expected[i] + whole[i] - prompts[i]
		}
		sums := float64(positions) * float64(min(c.Vocab, other.Vocab)) * sumSeconds /
			float64(runtime.GOMAXPROCS(0))
		out.Parts = append(out.Parts,
			plan.Timed{Name: "against the other model",
				Seconds: pace.passOf(c, lengths, true) + pace.passOf(*other, lengths, true) + sums})
		m := other.Plan(f, model.PlanOptions{Kind: model.LM,
			Tokens: min(o.MaxTokens, max(shownTokens, maxOf(lengths)))})
		beside = m.Total() + model.LogitsBytes
		out.Memory = append(out.Memory,
			plan.Item{Name: "other model: weights and activations", Bytes: m.Total()},
			plan.Item{Name: "logits of both", Bytes: model.LogitsBytes})
	}
	if disc.Steps > 0 {
		shape := disc.Shape
		both := int(float64(2*cmp.Or(disc.Batch, 4)) * (prompt + float64(o.MaxResponse)))
		m := shape.Plan(f, model.PlanOptions{Kind: model.Scorer, Trainable: true,
			Tokens: min(critic.DefaultConfig().MaxTokenLen, both)})
		var pairs []pairLength
		for i := range n {
			if !b[i].TeacherCut || out.Ends < endsAt {
				pairs = append(pairs, pairLength{prompts[i], expected[i], whole[i] - prompts[i]})
			}
		}
		cost := pace.trainingCost(shape, disc, pairs)
		out.Disc, out.DiscNote, out.DiscWhy = disc.Fit(len(pairs), cost, budget.Seconds,
			budget.Fixed)
		switch {
		case n == 1:
			out.DiscWhy = "1 row: a discriminator learns from half of the rows and is tested on the others"
		case out.DiscWhy == "" && free > 0 && m.Total() > free:
			out.DiscWhy = fmt.Sprintf("it needs %s of memory, %s are available: give --disc-steps 0, or --disc-from a smaller model", report.Bytes(m.Total()), report.Bytes(free))
		}
		if out.DiscWhy == "" {
			out.Parts = append(out.Parts,
				plan.Timed{
					Name: fmt.Sprintf("fresh discriminators (2 x %d of %d steps)", out.Disc.Seeds,
						out.Disc.Steps), Seconds: cost(out.Disc.Read).total(out.Disc.Steps,
						out.Disc.Seeds)})
			// the student and the other model are closed before
			if m.Total() > used.Total()+beside {
				out.Memory = evalMemory("fresh discriminator", m)
			}
		}
	}
	if longest > 1.05*sampling {
		out.Most = out.Total() - sampling + longest
	}
	return out
}

// maxOf returns the largest of xs, at least 0.
func maxOf(xs []int) (most int) {
	for _, x := range xs {
		most = max(most, x)
	}
	return most
}

// evalMemory returns the memory of one model of an evaluation.
func evalMemory(name string, p model.Plan) (items []plan.Item) {
	for _, i := range []plan.Item{{Name: name + ": weights", Bytes: p.Weights},
		{Name: name + ": copy of the weights for fast products", Bytes: p.Copies},
		{Name: name + ": gradients", Bytes: p.Gradients},
		{Name: name + ": optimizer", Bytes: p.Moments},
		{Name: name + ": key/value cache", Bytes: p.Cache},
		{Name: "activations", Bytes: p.Activations}, {Name: "scratch memory", Bytes: p.Scratch}} {
		if i.Bytes > 0 {
			items = append(items, i)
		}
	}
	return items
}

// Total returns the seconds of all parts.
func (p Plan) Total() (s float64) {
	for _, t := range p.Parts {
		s += t.Seconds
	}
	return s
}

// Time formats the time for people.
func (p Plan) Time() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; prompts of %.0f tokens on average; answers ", report.Count(p.Rows, "row"),
		p.PromptMean)
	if p.Ends >= endsAt {
		fmt.Fprintf(&b, "of about %.0f tokens are expected, at most %d", p.AnswerMean, p.Limit)
	} else {
		fmt.Fprintf(&b, "may reach the limit of %d tokens: where a teacher's answer ends the student would go on in most of those tried", p.Limit)
	}
	if p.TeacherCut > 0 {
		fmt.Fprintf(&b, "; the limit cuts %d of the teacher's answers", p.TeacherCut)
	}
	fmt.Fprintf(&b, "\nestimate, from a measurement of %s on %s\n", report.Seconds(p.Seconds),
		p.Device)
	for _, t := range p.Parts {
		fmt.Fprintf(&b, "  %-44s %10s\n", t.Name, report.Seconds(t.Seconds))
	}
	fmt.Fprintf(&b, "  %-44s %10s", "total", report.Seconds(p.Total()))
	if p.Checker {
		b.WriteString(", and the checker's time")
	}
	if p.Most > 0 {
		fmt.Fprintf(&b, "; at most %s, if no answer ends before its limit", report.Seconds(p.Most))
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

// String formats memory and time.
func (p Plan) String() string {
	var b strings.Builder
	b.WriteString("memory\n")
	for _, i := range p.Memory {
		fmt.Fprintf(&b, "  %-44s %10s\n", i.Name, report.Bytes(i.Bytes))
	}
	fmt.Fprintf(&b, "  %-44s %10s", "total", report.Bytes(plan.Total(p.Memory)))
	if p.Free > 0 {
		fmt.Fprintf(&b, " of %s available", report.Bytes(p.Free))
	}
	return b.String() + "\n" + p.Time()
}

// Check refuses an evaluation that does not fit the memory.
func (p Plan) Check() error {
	if need := plan.Total(p.Memory); p.Free > 0 && need > p.Free {
		return fmt.Errorf("%w: eval: %w in memory: needs %s, %s are available: lower --max-response-length, or use a smaller model", config.ErrConfig, plan.ErrTooLarge, report.Bytes(need), report.Bytes(p.Free))
	}
	return nil
}

// Calibrate corrects the pace by the time that the teacher's NLL took, a longer and later
// measurement than the one before the start.
func (p Plan) Calibrate(seconds float64) Plan {
	const least, most = 0.25, 4
	if planned := p.Parts[1].Seconds; planned > 0 && seconds > 1 { // less is too short
		r := min(max(seconds/planned, least), most)
		p.Forward, p.Train, p.Update = r*p.Forward, r*p.Train, r*p.Update
	}
	return p
}

// Refit fits the fresh discriminators again when the answers of j are known.
func (p Plan) Refit(j *Results, disc DiscOptions, budget DiscBudget) Plan {
	if disc.Steps == 0 || p.DiscWhy != "" {
		return p
	}
	set := j.pairs()
	var pairs []pairLength
	for i, skip := range set.skip {
		if a, b := set.worse[i], set.better[i]; !skip {
			pairs = append(pairs, pairLength{a.Prompt(), a.Trained(), b.Trained()})
		}
	}
	p.Disc, p.DiscNote, p.DiscWhy = disc.Fit(len(pairs), p.trainingCost(disc.Shape, disc, pairs),
		budget.Seconds, budget.Fixed)
	return p
}

// EqualizeDiscriminators lowers the fresh discriminators of several students to the fewest steps,
// seeds and tokens among them: accuracies of trainings that differ in these are not comparable. A
// student without discriminators changes nothing.
func EqualizeDiscriminators(plans []Plan) {
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
