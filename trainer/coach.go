package trainer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"gad/trainer/checker"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// coach has a program write notes on the student's answers (coach.command), which the teacher reads
// with the prompt of that answer, and the student does not: a language model of gad coach, or a
// rule. The loss is that of gad opd (LLM-as-a-Coach, arXiv 2607.18110).
//
// Notes are text that nobody controls. Those that the teacher may not read (checker.CleanNotes) and
// those that are too long cost their answer the notes: the teacher then reads its prompt without.
type coach struct {
	t       *Trainer
	program *checker.Checker
	plain   int // prompts of a step without notes
}

// openCoach opens the coach, and tries it on the teacher's answer to one row; nil without one.
func openCoach(b basic, s *start) (*coach, error) {
	t, c := b.t, b.t.cfg
	if !c.Coached(b.kind) {
		return nil, nil
	}
	t.judges.coach = checker.NewCoach(c.Coach.Command, time.Duration(c.Coach.Timeout)*time.Second)
	o := &coach{t: t, program: t.judges.coach,
		plain: c.PlainPrompts(b.kind, c.Data.TrainBatchSize)}
	return o, o.try(s)
}

// try asks for notes on the teacher's answer to the first row: a program that cannot be run must
// fail here, not after hours of training.
func (c *coach) try(s *start) error {
	t := c.t
	row, err := t.train.set.Row(int(t.train.rows[0]))
	if err != nil {
		return err
	}
	if _, err := encode.WithNotes(row, t.cfg.Coach.Template, "notes"); err != nil {
		return fmt.Errorf("%w: coach.command: %w", config.ErrConfig, err)
	}
	if t.step > 0 || !t.first() { // a run that is resumed has used it
		return nil
	}
	rows, err := checker.Rows(t.train.set, []int{row.Index},
		[]string{cmp.Or(row.Teacher, "yes")}, []bool{false})
	if err != nil {
		return err
	}
	trial, err := t.measureRows(checker.Trial{Steps: t.past.planned,
		Prompts: t.cfg.Data.TrainBatchSize - c.plain, Answers: t.cfg.Rollout.N})
	if err != nil {
		return err
	}
	err = t.busy("trying the coach", func() error {
		_, err := c.program.Try(context.Background(), rows, trial)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: coach.command: tried on the teacher's answer to row %d: %w",
			config.ErrConfig, row.Index, err)
	}
	for _, line := range c.program.Said() {
		s.infos = append(s.infos, "coach: "+line)
	}
	return nil
}

// write sets the notes on a round's answers, but those to its last prompts, which stay plain. An
// interruption ends the program and gives up the step: model.ErrStopped.
func (c *coach) write(m Metrics, r *round) error {
	if c == nil {
		return nil
	}
	t := c.t
	var asked []*answer
	var at []int
	var texts []string
	var cut []bool
	for i, g := range r.groups {
		if g.plain = i >= len(r.groups)-c.plain; g.plain {
			continue
		}
		for _, a := range g.answers {
			asked, at = append(asked, a), append(at, g.Index)
			texts, cut = append(texts, t.tok.Decode(a.ids, true)), append(cut, a.cut)
		}
	}
	rows, err := checker.Rows(t.train.set, at, texts, cut)
	if err != nil {
		return err
	}
	return m.time("timing_s/coach", func() error {
		verdicts, err := t.verdictsOf(t.context(), c.program, rows)
		if err != nil {
			return fmt.Errorf("coach.command: %w", err)
		}
		for i, v := range verdicts {
			// without notes that may be read, the teacher reads none
			asked[i].notes, _ = checker.CleanNotes(v.Notes, texts[i], rows[i].Prompt)
		}
		return nil
	})
}

// manyWithout is the share of answers without notes above which a step is worth a warning.
const manyWithout = 0.5

// describe adds the metrics of the notes that the teacher has read to m.
func (c *coach) describe(m Metrics, r *round, longer []int) {
	if c == nil {
		return
	}
	with, of, tokens := 0, 0, 0
	for _, g := range r.groups {
		if g.plain {
			continue
		}
		for _, a := range g.answers {
			of++
			if a.notes != "" {
				with++
			}
		}
	}
	for _, n := range longer {
		tokens += n
	}
	m["coach/notes_frac"] = float64(with) / float64(max(of, 1))
	if with > 0 {
		m["coach/tokens_mean"] = float64(tokens) / float64(with)
	}
	if share := 1 - m["coach/notes_frac"]; share > manyWithout {
		text := fmt.Sprintf("coach: %d of %d answers have no notes that the teacher may read",
			of-with, of)
		if lines := c.program.Said(); len(lines) > 0 { // on the rank that has run it
			text += "; it said: " + lines[len(lines)-1]
		}
		c.t.log.Warn(text)
	}
}
