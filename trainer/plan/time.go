package plan

import (
	"fmt"
	"sort"
	"strings"

	"gad/internal/report"
	"gad/trainer/config"
)

// Repeated is work that a run does several times between steps.
type Repeated struct {
	Name    string
	Seconds float64 // each time
	AtLimit float64 // the same, if answers have the longest length
	Times   int

	count func(steps int) int // Times, for a given number of steps
	batch bool                // Seconds are proportional to the batch
}

// saveRate is the assumed speed of writing a checkpoint in bytes a second, with syncs: a plan
// writes nothing.
const saveRate = 500e6

// setTimes sets the time of a step of c and of the work between steps.
func (p *Plan) setTimes(c config.Config, independent bool, t tokenTimes) {
	whole := float64(c.MaxAnswer(p.Stage))
	longest := c.MeanSampled(p.Stage, whole)
	p.StepTime = p.stepTime(c, independent, t, p.AnswerMean)
	if p.Stage != config.SFT {
		p.AtLimit = sum(p.stepTime(c, independent, t, longest))
	}
	for _, x := range c.Passes(p.Stage, c.Data.TrainBatchSize, independent) {
		if x.When == config.Checks {
			name := fmt.Sprintf("%s, in the first %d steps and every %dth", x.Part,
				config.CheckFirst, config.CheckEvery)
			p.addRepeated(name, p.passTime(c, x, t, p.AnswerMean),
				p.passTime(c, x, t, longest),
				func(steps int) int {
					return min(steps, config.CheckFirst) +
						steps/config.CheckEvery
				})
			p.Repeated[len(p.Repeated)-1].batch = true
		}
	}
	if p.ValRows > 0 {
		passes := 1.0 // the teacher's answers
		if c.Trainer.HeldOutCritic != "" {
			passes += 2
		}
		each := func(length float64) float64 {
			return float64(p.ValRows) *
				(p.PromptMean*t.forward + length*t.decoded +
					passes*(p.PromptMean+p.wholeMean())*t.forward)
		}
		name := fmt.Sprintf("validation of %s", report.Count(p.ValRows, "row"))
		if c.Trainer.Checker != "" {
			name += ", without the checker"
		}
		p.addRepeated(name, each(p.wholeMean()), each(whole), func(steps int) int {
			n := everyAndLast(c.Trainer.TestFreq)(steps)
			if c.Trainer.ValBeforeTrain && !p.validated { // Trainer.validateStart
				n++
			}
			return n
		})
	}
}

// wholeMean returns the mean tokens of a whole answer, which a validation has.
func (p *Plan) wholeMean() float64 { return max(p.whole, p.AnswerMean) }

// addCheckpoints adds the checkpoints to the work between steps.
func (p *Plan) addCheckpoints(c config.Config) {
	seconds := float64(p.checkpoint) / saveRate
	p.addRepeated(fmt.Sprintf("checkpoint of %s, at an assumed %s a second",
		report.Bytes(p.checkpoint), report.Bytes(saveRate)), seconds, seconds,
		everyAndLast(c.Trainer.SaveFreq))
}

// addRepeated adds work between steps.
func (p *Plan) addRepeated(name string, seconds, atLimit float64, count func(steps int) int) {
	p.Repeated = append(p.Repeated, Repeated{name, seconds, atLimit, count(p.Steps), count, false})
}

// everyAndLast returns the count of an action every freq steps, with freq 0 for never, and after
// the last step.
func everyAndLast(freq int) func(steps int) int {
	return func(steps int) int {
		if freq <= 0 {
			return min(steps, 1)
		}
		return (steps + freq - 1) / freq
	}
}

// sum returns the seconds of all parts.
func sum(list []Timed) (seconds float64) {
	for _, t := range list {
		seconds += t.Seconds
	}
	return seconds
}

// step returns the seconds of a step.
func (p *Plan) step() float64 { return sum(p.StepTime) }

// Seconds returns the seconds of the run; with atLimit, for answers of the longest length. 0:
// unknown.
func (p *Plan) Seconds(atLimit bool) float64 {
	step := p.step()
	if atLimit && p.AtLimit > 0 {
		step = p.AtLimit
	}
	return p.seconds(step, 1, p.Steps, atLimit)
}

// seconds returns the seconds of the given number of steps, with all work between them, for batches
// that are batch times as large.
func (p *Plan) seconds(step, batch float64, steps int, atLimit bool) float64 {
	all := step * batch * float64(steps)
	for _, o := range p.Repeated {
		each := o.Seconds
		if atLimit {
			each = o.AtLimit
		}
		if o.batch {
			each *= batch
		}
		all += float64(o.count(steps)) * each
	}
	return all
}

// runText returns the time of a run as a table.
func (p *Plan) runText() string {
	var b strings.Builder
	row := func(name string, seconds float64) {
		fmt.Fprintf(&b, "  %-52s %10s\n", name,
			report.Seconds(seconds))
	}
	longer := p.AtLimit > 1.05*p.step()
	limit := fmt.Sprintf(", if the student's answers reach %d tokens", p.limit)
	if longer {
		row("step"+limit, p.AtLimit)
	}
	if p.Steps == 0 {
		return b.String()
	}
	b.WriteString("time of the run\n")
	row(report.Count(p.Steps, "step"), p.step()*float64(p.Steps))
	for _, o := range p.Repeated {
		if o.Times > 0 {
			row(fmt.Sprintf("%d x %s", o.Times, o.Name), float64(o.Times)*o.Seconds)
		}
	}
	if p.Predicted && p.ValRows > 0 {
		b.WriteString("  validation is not predicted\n")
	}
	row("in all", p.Seconds(false))
	if longer {
		row("in all"+limit, p.Seconds(true))
	}
	return b.String()
}

// enoughSteps is a number of steps in which a student of the game was seen to change
// (doc/study.md).
const enoughSteps = 50

// FitHours returns the batch and number of steps with which a run of c ends within the given hours,
// in words: the largest batch that leaves enough steps. It assumes answers of the longest length.
func (p *Plan) FitHours(c config.Config, hours float64) (string, error) {
	if p.Fit != nil {
		c = p.Fit.config
	}
	if len(p.StepTime) == 0 {
		return "", fmt.Errorf("%w: plan: --hours: there is no time estimate: give --data, and a device or a --card that has one", config.ErrConfig)
	}
	if p.Steps > 0 && p.Seconds(true) <= hours*3600 {
		return fmt.Sprintf("ends within %g h as it is: %s, %s\n", hours,
			report.Count(p.Steps, "step"), report.Seconds(p.Seconds(true))), nil
	}
	step := max(p.AtLimit, p.step())
	batch := c.Data.TrainBatchSize
	steps := func(b int) int {
		return max(0, sort.Search(1e6,
			func(n int) bool {
				return p.seconds(step, float64(b)/float64(batch), n,
					true) > hours*3600
			})-1)
	}
	least := max(1, c.Actor.PPOMiniBatch, c.Critic.PPOMiniBatch, min(4, batch))
	best := batch
	for b := batch; b >= least && steps(best) < enoughSteps; b /= 2 {
		best = b
	}
	n := steps(best)
	if n < config.FewSteps {
		return "", fmt.Errorf("%w: plan: --hours %g: even with data.train_batch_size=%d only %s end by then: shorten the answers (data.max_response_length), lower rollout.n, or use a smaller student", config.ErrConfig, hours, best, report.Count(n, "step"))
	}
	out := fmt.Sprintf("settings to add, to end within %g h", hours)
	if p.AtLimit > 0 {
		out += fmt.Sprintf(" with answers of up to %d tokens", p.limit)
	}
	settings := fmt.Sprintf("trainer.total_steps=%d", n)
	if best != batch {
		settings = fmt.Sprintf("data.train_batch_size=%d %s", best, settings)
	}
	out += "\n  " + settings + "\n"
	if p.Rows > 0 {
		out += fmt.Sprintf("  %.1f passes over the %s\n", float64(n)*float64(best)/float64(p.Rows),
			report.Count(p.Rows, "row"))
	}
	return out, nil
}
