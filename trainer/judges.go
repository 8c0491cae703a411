package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/model"
	"gad/trainer/checker"
	"gad/trainer/config"
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
	r, err := set.Row(at[0])
	if err != nil {
		return err
	}
	rows, err := checker.Rows(set, at[:1], []string{r.Teacher}, []bool{false})
	if err != nil {
		return err
	}
	trial, err := j.trial()
	if err != nil {
		return err
	}
	var verdicts []checker.Verdict
	err = t.busy("trying the checker", func() (err error) {
		verdicts, err = j.checker.Try(context.Background(), rows, trial)
		if err != nil {
			return fmt.Errorf("%w: tried on the teacher's answer to row %d: %w", config.ErrConfig,
				at[0], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, line := range j.checker.Said() {
		s.infos = append(s.infos, "checker: "+line)
	}
	if verdicts[0].None() {
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
