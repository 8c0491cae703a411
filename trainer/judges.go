package trainer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/actor"
	"gad/model"
	"gad/trainer/checker"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// The judges take no part in the game: the user's own programs, a checker and a coach, and a
// held-out discriminator. None learns, so none is in a checkpoint.

// judges holds the checker and the held-out discriminator that the settings name.
type judges struct {
	t       *Trainer
	checker *checker.Checker // nil without one
	coach   *checker.Checker // writes notes on the student's answers: see coach; nil without one
	heldOut *model.Model     // nil without one
}

// open opens the judges, and tries the checker.
func (j *judges) open(s *start) error {
	t, c := j.t, j.t.cfg
	if c.Trainer.Checker != "" {
		j.checker = checker.New(c.Trainer.Checker,
			time.Duration(c.Trainer.CheckerTimeout)*time.Second)
	}
	if err := j.tryChecker(s); err != nil {
		return err
	}
	dir := c.Trainer.HeldOutCritic
	if dir == "" {
		return nil
	}
	cfg, err := saved.ReadHeldOut(dir)
	if err != nil {
		return err
	}
	if err := saved.CheckTokenIDs(t.tok, dir, "trainer.held_out_critic"); err != nil {
		return err
	}
	if err := c.CheckScored(t.Stage, dir, cfg.MaxPosition); err != nil {
		return err
	}
	if j.heldOut, err = model.Load(t.be, dir, model.Options{Kind: model.Scorer}); err != nil {
		return fmt.Errorf("trainer.held_out_critic: %w", err)
	}
	j.heldOut.Share(t.actor.Model()) // they take turns
	return nil
}

// tryChecker asks the checker about the teacher's answer to one row: a program that cannot be run
// must fail here, not after hours of training.
func (j *judges) tryChecker(s *start) error {
	t := j.t
	if j.checker == nil || t.step > 0 || !t.first() { // a run that is resumed has used it
		return nil
	}
	set, at := t.val.set, t.val.rows
	if set == nil {
		set, at = t.train.set, []int{int(t.train.rows[0])}
	}
	trial, err := j.trial()
	if err != nil {
		return err
	}
	var verdict checker.Verdict
	err = t.busy("trying the checker", func() (err error) {
		verdict, err = j.checker.TryTeacher(context.Background(), set, at[0], trial)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	for _, line := range j.checker.Said() {
		s.infos = append(s.infos, "checker: "+line)
	}
	if verdict.None() {
		s.notes = append(s.notes, fmt.Sprintf(
			"checker: has no score for the teacher's answer to row %d, on which it was tried",
			at[0]))
	}
	return nil
}

// trialRows bounds the rows whose lengths a trial averages.
const trialRows = 256

// trial returns the number and lengths of the questions that the run will ask the checker.
func (j *judges) trial() (checker.Trial, error) {
	t := j.t
	c := checker.Trial{Rows: len(t.val.rows)}
	if t.stage.asksChecker() {
		c.Steps, c.Prompts, c.Answers = t.past.planned, t.cfg.Data.TrainBatchSize, t.cfg.Rollout.N
	}
	return j.measureRows(c)
}

// measureRows returns c with the mean lengths of the training data.
func (j *judges) measureRows(c checker.Trial) (checker.Trial, error) {
	t := j.t
	n := min(len(t.train.rows), trialRows)
	for i := range n {
		r, err := t.train.set.Row(int(t.train.rows[i*len(t.train.rows)/n]))
		if err != nil {
			return c, err
		}
		for _, m := range r.Messages {
			c.PromptBytes += float64(len(m.Text())) / float64(n)
		}
		c.TeacherBytes += float64(len(r.Teacher)) / float64(n)
	}
	return c, nil
}

// kill ends the programs that are running, from another goroutine.
func (j *judges) kill() {
	for _, program := range []*checker.Checker{j.checker, j.coach} {
		if program != nil {
			program.Kill()
		}
	}
}

func (j *judges) close() error {
	if j.heldOut == nil {
		return nil
	}
	return j.heldOut.Close()
}

// judge adds the judges' figures of the validation answers to m.
//
// A validation is always finished, so that interrupted and uninterrupted runs have the same
// figures: the checker's deadline bounds the wait.
func (j *judges) judge(m Metrics, of *quality.Results) error {
	t := j.t
	if j.checker != nil {
		rows, err := checker.Rows(t.val.set, of.Batch.Indices(), of.Answers, of.Truncated)
		if err != nil {
			return err
		}
		verdicts, err := j.verdicts(context.Background(), j.checker, rows)
		if err != nil {
			return err
		}
		mean, none := checker.Mean(verdicts)
		m["val/unchecked_frac"] = j.noteUnchecked(none, len(verdicts))
		if none < len(verdicts) {
			m["val/check"] = mean
		}
	}
	if j.heldOut != nil {
		return j.heldOutShare(m, of)
	}
	return nil
}

// heldOutShare sets val/held_out_d: the share of rows for which the held-out discriminator scores
// the student's answer at least as high as the teacher's; an equal answer counts one half. Rows
// whose teacher is cut by the length limit are left out: the missing end alone would decide.
func (j *judges) heldOutShare(m Metrics, of *quality.Results) error {
	t := j.t
	limit := t.cfg.Actor.MaxTokenLen
	scoreS, err := j.heldOut.AllScores(t.form.criticSeqs(of.Seqs), limit)
	if err != nil {
		return err
	}
	scoreP, err := j.heldOut.AllScores(t.form.criticSeqs(of.Batch.Teachers()), limit)
	if err != nil {
		return err
	}
	sum, n := 0.0, 0.0
	for p := range scoreP {
		if of.Batch[p].TeacherCut {
			continue
		}
		n++
		switch {
		case slices.Equal(of.Seqs[p].IDs, of.Batch[p].Teacher.IDs):
			sum += 0.5
		case scoreS[p] >= scoreP[p]:
			sum++
		}
	}
	if n > 0 {
		m["val/held_out_d"] = sum / n
	}
	return nil
}

// checkRound sets the checker's scores of a round's answers, if the reward reads them. An
// interruption ends the program and gives up the step: model.ErrStopped.
func (g *game) checkRound(m Metrics, r *round) error {
	if !g.readsChecker() {
		return nil
	}
	t := g.t
	// The search of a tree has asked about the others. Answers without a score are asked about
	// again.
	var ask []*answer
	var at []int
	var texts []string
	var cut []bool
	for _, group := range r.groups {
		for _, a := range group.answers {
			if math.IsNaN(a.check) {
				ask, at = append(ask, a), append(at, group.Index)
				texts, cut = append(texts, t.tok.Decode(a.ids, true)), append(cut, a.cut)
			}
		}
	}
	rows, err := checker.Rows(t.train.set, at, texts, cut)
	if err != nil {
		return err
	}
	var verdicts []checker.Verdict
	err = m.time("timing_s/check", func() error {
		verdicts, err = t.judges.verdicts(t.context(), t.judges.checker, rows)
		return err
	})
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		ask[i].check = v.Score
	}
	_, none := checker.Mean(verdicts)
	t.judges.noteUnchecked(none, len(verdicts))
	return nil
}

// manyUnchecked is the share of answers without a score above which a call of the checker is worth
// a warning.
const manyUnchecked = 0.1

// noteUnchecked returns the share none/of of a call's answers without a score of the checker, and
// warns if it is large.
func (j *judges) noteUnchecked(none, of int) float64 {
	t := j.t
	share := float64(none) / float64(of)
	if share > manyUnchecked {
		text := fmt.Sprintf("checker: %d of %d answers have no score", none, of)
		if lines := j.checker.Said(); len(lines) > 0 { // on the rank that has run it
			text += "; it said: " + lines[len(lines)-1]
		}
		t.log.Warn(text)
	}
	return share
}

// verdicts returns a program's verdicts on rows. The program runs on rank 0, which sends the
// verdicts to the others. If ctx ends it, the error is model.ErrStopped on all ranks.
func (j *judges) verdicts(ctx context.Context, program *checker.Checker,
	rows []checker.Row) (list []checker.Verdict, err error) {
	t := j.t
	var answer struct {
		Verdicts []checker.Verdict
		Stopped  string // why, if it was
	}
	var raw []byte
	if t.first() {
		answer.Verdicts, err = program.Check(ctx, rows)
		if err != nil && !errors.Is(err, checker.ErrFailed) && ctx.Err() != nil {
			answer.Stopped = err.Error()
		} else if err != nil {
			return nil, err
		}
		if raw, err = json.Marshal(answer); err != nil {
			return nil, fmt.Errorf("trainer: verdicts: %w", err)
		}
	}
	if raw, err = t.ranks.Broadcast("verdicts of the checker", 0, raw); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("trainer: verdicts of rank 0: %w", err)
	}
	if answer.Stopped != "" {
		return nil, fmt.Errorf("%w: %s", model.ErrStopped, answer.Stopped)
	}
	return answer.Verdicts, nil
}

// coach has notes written on the student's answers, which the teacher reads with the prompt of that
// answer, and the student does not. The loss is that of gad opd (LLM-as-a-Coach, arXiv 2607.18110).
//
// Notes are text that nobody controls. Those that the teacher may not read (checker.CleanNotes) and
// those that are too long cost their answer the notes: the teacher then reads its prompt without.
type coach struct {
	t     *Trainer
	by    noteWriter
	plain int    // prompts of a step without notes
	why   string // of the step: why the first answer without notes has none
}

// noteWriter writes a coach's notes: a program (coach.command), or the student itself.
type noteWriter interface {
	// try asks for notes on one answer: what cannot work must fail here, before anything is written,
	// and not after hours of training. plain is the number of prompts of a step without notes.
	try(x noted, plain int, s *start) error
	// notes returns the notes on answers; "": none, and why says why the first has none, if the
	// writer knows. An interruption gives up the step: model.ErrStopped.
	notes(list []noted) (notes []string, why string, err error)
	// said returns the writer's last message for people; "": none.
	said() string
	// wrote returns the sequences that the student has written as notes in the step.
	wrote() []model.Seq
}

// noted is an answer to write notes on.
type noted struct {
	checker.Row
	key int // of the sampler's random numbers: no other answer of the step has it
}

// openCoach opens the coach, and tries it on the teacher's answer to one row; nil without one.
func openCoach(b basic, s *start) (*coach, error) {
	t, c := b.t, b.t.cfg
	if !c.Coach.On(b.kind) {
		return nil, nil
	}
	o := &coach{t: t, plain: c.Coach.PlainOf(b.kind, c.Data.TrainBatchSize)}
	if c.Coach.ByStudent(b.kind) {
		o.by = &ownNotes{t: t, answer: c.LongestSampled(b.kind),
			longest: c.Coach.LongestQuestion(c.Data.MaxPrompt, c.LongestSampled(b.kind))}
	} else {
		t.judges.coach = checker.NewCoach(c.Coach.Command,
			time.Duration(c.Coach.Timeout)*time.Second)
		o.by = &programNotes{t, t.judges.coach}
	}
	row, err := t.train.set.Row(int(t.train.rows[0]))
	if err != nil {
		return nil, err
	}
	if _, err := encode.WithNotes(row, c.Coach.Template, "notes"); err != nil {
		return nil, fmt.Errorf("%w: coach.command: %w", config.ErrConfig, err)
	}
	rows, err := checker.Rows(t.train.set, []int{row.Index},
		[]string{cmp.Or(row.Teacher, "yes")}, []bool{false})
	if err != nil {
		return nil, err
	}
	return o, o.by.try(noted{Row: rows[0]}, o.plain, s)
}

// write sets the notes on a round's answers, but those to its last prompts, which stay plain.
func (c *coach) write(m Metrics, r *round) error {
	if c == nil {
		return nil
	}
	t := c.t
	c.why = ""
	var asked []*answer
	var at, keys []int
	var texts []string
	var cut []bool
	for i, g := range r.groups {
		if g.plain = i >= len(r.groups)-c.plain; g.plain {
			continue
		}
		for k, a := range g.answers {
			asked, at = append(asked, a), append(at, g.Index)
			keys = append(keys, g.key*len(g.answers)+k)
			texts, cut = append(texts, t.tok.Decode(a.ids, true)), append(cut, a.cut)
		}
	}
	rows, err := checker.Rows(t.train.set, at, texts, cut)
	if err != nil {
		return err
	}
	list := make([]noted, len(rows))
	for i, row := range rows {
		list[i] = noted{row, keys[i]}
	}
	return m.time("timing_s/coach", func() error {
		var notes []string
		if notes, c.why, err = c.by.notes(list); err != nil {
			return fmt.Errorf("coach.command: %w", err)
		}
		for i, text := range notes {
			// without notes that may be read, the teacher reads none
			asked[i].taught.notes, err = checker.CleanNotes(text, texts[i], rows[i].Prompt)
			if err != nil {
				c.why = cmp.Or(c.why, err.Error())
			}
		}
		return nil
	})
}

// manyWithout is the share of answers without notes above which a step is worth a warning.
const manyWithout = 0.5

// describe adds the metrics of the notes that the teacher has read to m.
func (c *coach) describe(m Metrics, r *round, read *teachers) {
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
			if a.taught.notes != "" {
				with++
			}
		}
	}
	for _, n := range read.longer {
		tokens += n
	}
	m["opd/notes_frac"] = float64(with) / float64(max(of, 1))
	if with > 0 {
		m["opd/notes_tokens"] = float64(tokens) / float64(with)
	}
	if share := 1 - m["opd/notes_frac"]; share > manyWithout {
		text := fmt.Sprintf(
			"coach: %d of %d answers have no notes that the teacher may read, the first: %s",
			of-with, of, cmp.Or(c.why, read.tooLong))
		if said := c.by.said(); said != "" {
			text += "; it said: " + said
		}
		c.t.log.Warn(text)
	}
}

// programNotes has a program write the notes: a language model of gad coach, or a rule.
type programNotes struct {
	t       *Trainer
	program *checker.Checker
}

func (p *programNotes) try(x noted, plain int, s *start) error {
	t := p.t
	if t.step > 0 || !t.first() { // a run that is resumed has used it
		return nil
	}
	trial, err := t.judges.measureRows(checker.Trial{Steps: t.past.planned,
		Prompts: t.cfg.Data.TrainBatchSize - plain, Answers: t.cfg.Rollout.N})
	if err != nil {
		return err
	}
	err = t.busy("trying the coach", func() error {
		_, err := p.program.Try(context.Background(), []checker.Row{x.Row}, trial)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: coach.command: tried on the teacher's answer to row %d: %w",
			config.ErrConfig, x.Row.Row, err)
	}
	for _, line := range p.program.Said() {
		s.infos = append(s.infos, "coach: "+line)
	}
	return nil
}

func (p *programNotes) notes(list []noted) (notes []string, why string, err error) {
	rows := make([]checker.Row, len(list))
	for i, x := range list {
		rows[i] = x.Row
	}
	verdicts, err := p.t.judges.verdicts(p.t.context(), p.program, rows)
	for _, v := range verdicts {
		notes = append(notes, v.Notes)
	}
	return notes, "", err
}

// said returns the program's last line, on the rank that has run it.
func (p *programNotes) said() string {
	lines := p.program.Said()
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func (p *programNotes) wrote() []model.Seq { return nil }

// ownNotes has the student write the notes on its own answers, with the weights of the step. They
// are sampled as the answers are: a draw is a function of the seed, the step, the answer and the
// position. So a step that is taken again, by a run that was killed or by another with the same
// settings, has the same notes, and no journal of them is needed.
type ownNotes struct {
	t               *Trainer
	answer, longest int         // tokens of the longest answer, and of the longest question
	seqs            []model.Seq // of the step
}

// noteSeed keeps the random numbers of notes apart from those of answers.
const noteSeed = 1 << 63

// question returns the tokens of the question for notes on an answer; nil if it is too long.
func (w *ownNotes) question(x noted) ([]int32, error) {
	row, err := w.t.train.set.Row(x.Row.Row)
	if err != nil {
		return nil, err
	}
	if row, err = encode.WithAnswer(row, w.t.cfg.Coach.Question, x.Response); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	ids, err := w.t.enc.Prompt(row)
	if err != nil || len(ids) > w.longest {
		return nil, err
	}
	return ids, nil
}

// try refuses a question that leaves no room for an answer, and lengths that the student has no
// positions for.
func (w *ownNotes) try(x noted, _ int, _ *start) error {
	t, c := w.t, w.t.cfg
	x.Response = ""
	ids, err := w.question(x)
	if err != nil {
		return fmt.Errorf("coach.command: %w", err)
	}
	if most := w.longest - w.answer; ids == nil || len(ids) > most {
		return fmt.Errorf(
			"%w: coach.question: without an answer it has more than %d tokens for row %d (data.max_prompt_length + coach.max_tokens): raise coach.max_tokens, or shorten the question", config.ErrConfig, most, x.Row.Row)
	}
	n, most := w.longest+c.Coach.MaxTokens, t.actor.Model().Config().MaxPosition
	if most > 0 && n > most {
		return fmt.Errorf(
			"%w: coach.command %s: a question with its notes has up to %d tokens (data.max_prompt_length + the longest answer + 2 * coach.max_tokens), but max_position_embeddings is %d: lower them", config.ErrConfig, config.StudentCoach, n, most)
	}
	return nil
}

func (w *ownNotes) notes(list []noted) (notes []string, why string, err error) {
	t, most := w.t, w.t.cfg.Coach.MaxTokens
	key := actor.Key{Seed: t.seed() ^ noteSeed, Step: t.step}
	var prompts [][]int32
	var at []int // index in list of each question
	for i, x := range list {
		ids, err := w.question(x)
		if err != nil {
			return nil, "", err
		}
		if ids == nil {
			why = cmp.Or(why, fmt.Sprintf("the question for its notes has more than %d tokens",
				w.longest))
			continue
		}
		prompts, at, key.Rows = append(prompts, ids), append(at, i), append(key.Rows, x.key)
	}
	t.ranks.Enter("coach")
	advance, done := t.rec.Progress("coach", len(prompts)*most)
	defer done()
	written, err := t.actor.Texts(t.context(), prompts, most, t.tok.EOS(), key, advance)
	if err != nil {
		return nil, "", err
	}
	notes, w.seqs = make([]string, len(list)), nil
	for k, c := range written {
		w.seqs = append(w.seqs, model.Answer(append(prompts[k], c.IDs...), len(prompts[k])))
		if c.Truncated {
			why = cmp.Or(why, fmt.Sprintf("its notes do not end within coach.max_tokens, %d", most))
			continue
		}
		notes[at[k]] = t.tok.Decode(c.IDs, true)
	}
	return notes, why, nil
}

func (w *ownNotes) said() string { return "" }

func (w *ownNotes) wrote() []model.Seq { return w.seqs }
