package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/internal/checker"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// The judges do not play: the user's own program, and a discriminator that is held out of the
// game. Neither learns, so neither has a state.

// openJudges opens what the settings name beside the run's own discriminator.
func (t *Trainer) openJudges(s *start) error {
	c := t.cfg
	if c.Trainer.Checker != "" {
		t.checker = checker.New(c.Trainer.Checker,
			time.Duration(c.Trainer.CheckerTimeout)*time.Second)
	}
	if err := t.tryChecker(s); err != nil {
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
	if err := saved.SameTokens(t.tok, dir, "trainer.held_out_critic"); err != nil {
		return err
	}
	if err := c.CheckScored(t.Stage, dir, cfg.MaxPosition); err != nil {
		return err
	}
	if t.heldOut, err = model.Load(t.be, dir, model.Options{Kind: model.Scorer}); err != nil {
		return fmt.Errorf("trainer.held_out_critic: %w", err)
	}
	t.heldOut.Share(t.actor.Model()) // they take turns
	return nil
}

// tryChecker asks the checker for the teacher's answer to one row: a program that cannot
// be run should not be found out after hours of training.
func (t *Trainer) tryChecker(s *start) error {
	if t.checker == nil || t.step > 0 || !t.first() { // a run that is resumed has used it
		return nil
	}
	set, at := t.val, t.valRows
	if set == nil {
		set, at = t.set, []int{int(t.rows[0])}
	}
	r, err := set.Row(at[0])
	if err != nil {
		return err
	}
	rows, err := checker.Rows(set, at[:1], []string{r.Teacher}, []bool{false})
	if err != nil {
		return err
	}
	trial, err := t.trial()
	if err != nil {
		return err
	}
	var verdicts []checker.Verdict
	err = t.busy("trying the checker", func() (err error) {
		verdicts, err = t.checker.Try(context.Background(), rows, trial)
		if err != nil {
			return fmt.Errorf("%w: tried on the teacher's answer to row %d: %w", config.ErrConfig,
				at[0], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, line := range t.checker.Said() {
		s.said = append(s.said, "checker: "+line)
	}
	if verdicts[0].None() {
		s.notes = append(s.notes, fmt.Sprintf(
			"checker: has no score for the teacher's answer to row %d, on which it was tried",
			at[0]))
	}
	return nil
}

// trialRows bounds the rows whose lengths a trial tells.
const trialRows = 256

// trial is what the run will ask the checker.
func (t *Trainer) trial() (checker.Trial, error) {
	c := checker.Trial{Rows: len(t.valRows)}
	if t.cfg.ChecksAnswers(t.Stage) {
		c.Steps, c.Prompts, c.Answers = t.planned, t.cfg.Data.TrainBatchSize, t.cfg.Rollout.N
	}
	n := min(len(t.rows), trialRows)
	for i := range n {
		r, err := t.set.Row(int(t.rows[i*len(t.rows)/n]))
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

func (t *Trainer) closeJudges() error {
	if t.heldOut == nil {
		return nil
	}
	return t.heldOut.Close()
}

// judge adds the judges' figures of the validation answers j.
//
// A validation is always finished, so that a run that was stopped has the figures of
// one that was not: the checker's deadline bounds the wait.
func (t *Trainer) judge(m Metrics, j *quality.Results) error {
	if t.checker != nil {
		rows, err := checker.Rows(t.val, j.Batch.Rows, j.Answers, j.Truncated)
		if err != nil {
			return err
		}
		verdicts, err := t.verdicts(context.Background(), rows)
		if err != nil {
			return err
		}
		mean, none := checker.Mean(verdicts)
		m["val/unchecked_frac"] = t.unchecked(none, len(verdicts))
		if none < len(verdicts) {
			m["val/check"] = mean
		}
	}
	if t.heldOut != nil {
		return t.heldOutShare(m, j)
	}
	return nil
}

// heldOutShare is val/held_out_d: the share of rows for which the held-out
// discriminator scores the student's answer at least as high as the teacher's; the
// very same answer counts one half. Rows whose teacher is cut by our own limit are
// left out: the missing end alone would decide.
func (t *Trainer) heldOutShare(m Metrics, j *quality.Results) error {
	limit := t.cfg.Actor.MaxTokenLen
	scoreS, err := t.heldOut.AllScores(t.scored(j.Seqs), limit)
	if err != nil {
		return err
	}
	scoreP, err := t.heldOut.AllScores(t.scored(j.Batch.Teachers), limit)
	if err != nil {
		return err
	}
	sum, n := 0.0, 0.0
	for p := range scoreP {
		if j.Batch.TeacherCut[p] {
			continue
		}
		n++
		switch {
		case slices.Equal(j.Seqs[p].IDs, j.Batch.Teachers[p].IDs):
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

// checkRound has the checker score a round's answers, where the reward has a share of
// it. An interruption ends the program and gives up the step: model.ErrStopped.
func (t *Trainer) checkRound(m Metrics, r *round) error {
	if !t.cfg.ChecksAnswers(t.Stage) {
		return nil
	}
	scores := r.checkA
	if scores == nil {
		scores = nans(len(r.group))
	}
	// A search of trees has had the others checked. An answer without a score is asked about again.
	var ask []int
	answers := make([]string, 0, len(r.group))
	for a, ids := range r.written() {
		if math.IsNaN(scores[a]) {
			ask, answers = append(ask, a), append(answers, t.tok.Decode(ids, true))
		}
	}
	rows, err := checker.Rows(t.set, model.Pick(r.batch.Rows, model.Pick(r.group, ask)), answers,
		model.Pick(r.cut, ask))
	if err != nil {
		return err
	}
	ctx := t.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	var verdicts []checker.Verdict
	err = m.time("timing_s/check", func() error {
		verdicts, err = t.verdicts(ctx, rows)
		return err
	})
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		scores[ask[i]] = v.Score
	}
	r.checkA = scores
	_, none := checker.Mean(verdicts)
	t.unchecked(none, len(verdicts))
	return nil
}

func nans(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = math.NaN()
	}
	return x
}

// manyUnchecked is the share of answers without a score above which a call of the checker is worth
// a warning.
const manyUnchecked = 0.1

// unchecked is the share of a call's answers that the checker gave no score.
func (t *Trainer) unchecked(none, of int) float64 {
	share := float64(none) / float64(of)
	if share > manyUnchecked {
		text := fmt.Sprintf("checker: %d of %d answers have no score", none, of)
		if said := t.checker.Said(); len(said) > 0 { // on the rank that has run it
			text += "; it said: " + said[len(said)-1]
		}
		t.log.Warn(text)
	}
	return share
}

// verdicts are the checker's of rows. It runs on rank 0, which sends them to the others. One
// that ctx has ended is model.ErrStopped on all of them.
func (t *Trainer) verdicts(ctx context.Context,
	rows []checker.Row) (list []checker.Verdict, err error) {
	var answer struct {
		Verdicts []checker.Verdict
		Stopped  string // why, if it was
	}
	var raw []byte
	if t.first() {
		answer.Verdicts, err = t.checker.Check(ctx, rows)
		if err != nil && !errors.Is(err, checker.ErrFailed) && ctx.Err() != nil {
			answer.Stopped = err.Error()
		} else if err != nil {
			return nil, err
		}
		if raw, err = json.Marshal(answer); err != nil {
			return nil, fmt.Errorf("trainer: verdicts: %w", err)
		}
	}
	if raw, err = t.ranks.From("verdicts of the checker", 0, raw); err != nil {
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
