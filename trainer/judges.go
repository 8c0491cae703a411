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
func (t *Trainer) openJudges() error {
	c := t.cfg
	if c.Trainer.Checker != "" {
		t.checker = checker.New(c.Trainer.Checker,
			time.Duration(c.Trainer.CheckerTimeout)*time.Second)
	}
	if err := t.tryChecker(); err != nil {
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
func (t *Trainer) tryChecker() error {
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
	return t.busy("trying the checker", func() error {
		if _, err := t.checker.Check(context.Background(), rows); err != nil {
			return fmt.Errorf("%w: tried on the teacher's answer to row %d: %w", config.ErrConfig,
				at[0], err)
		}
		return nil
	})
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
		m["val/check"] = checker.Mean(verdicts)
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
	var ask []int // a search of trees has had the others checked
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
	return nil
}

func nans(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = math.NaN()
	}
	return x
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
