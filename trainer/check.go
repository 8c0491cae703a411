package trainer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/data"
	"gad/internal/checker"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
)

// This file is the judges that do not play: the user's own program, and a
// discriminator that is held out of the game. Neither learns, so neither has a state.

// Check has command score j's answers to rows of set, within the deadline, and notes
// the mean score and the shares of labels in j.Eval.
func (j *Judged) Check(ctx context.Context, set *data.Set, command string, deadline time.Duration) error {
	rows, err := checker.Rows(set, j.Batch.Rows, j.Answers, j.Truncated)
	if err != nil {
		return err
	}
	verdicts, err := checker.New(command, deadline).Check(ctx, rows)
	if err != nil {
		return err
	}
	mean := checker.Mean(verdicts)
	j.checks = verdicts
	j.Eval.Check, j.Eval.Labels = &mean, checker.Shares(verdicts)
	return nil
}

// openJudges opens what the settings name beside the run's own discriminator.
func (t *Trainer) openJudges() error {
	c := t.cfg
	if c.Trainer.Checker != "" {
		t.checker = checker.New(c.Trainer.Checker, time.Duration(c.Trainer.CheckerTimeout)*time.Second)
	}
	if err := t.tryChecker(); err != nil {
		return err
	}
	dir := c.Trainer.HeldOutCritic
	if dir == "" {
		return nil
	}
	cfg, err := readHeldOut(dir)
	if err != nil {
		return err
	}
	if err := SameTokens(t.tok, dir, "trainer.held_out_critic"); err != nil {
		return err
	}
	if n := c.Data.MaxPrompt + c.Data.MaxResponse; cfg.MaxPosition > 0 && n > cfg.MaxPosition {
		return fmt.Errorf("%w: model: %s: data.max_prompt_length + data.max_response_length = %d, but max_position_embeddings is %d: lower them", config.ErrConfig, dir, n, cfg.MaxPosition)
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
			return fmt.Errorf("%w: tried on the teacher's answer to row %d: %w", config.ErrConfig, at[0], err)
		}
		return nil
	})
}

// readHeldOut is the shape of a held-out discriminator, which must have a head
// already: a fresh one would judge by chance.
func readHeldOut(dir string) (model.Config, error) {
	cfg, err := model.ReadConfig(dir)
	if err == nil && cfg.Kind() != model.Scorer {
		err = fmt.Errorf("model: %s: trainer.held_out_critic: is a language model, not a discriminator: give the critic folder of a checkpoint", dir)
	}
	return cfg, err
}

// SameTokens refuses a discriminator, the model in dir, that does not know the student's
// tokens by the same ids: it is given ids and would read another text. setting names dir.
func SameTokens(tok *tokenizer.Tokenizer, dir, setting string) error {
	other, err := tokensOf(dir, setting)
	if err != nil {
		return err
	}
	if what := tok.Missing(other); what != "" {
		return notTheStudents(dir, what, "the discriminator reads the student's token ids", setting)
	}
	cfg, err := model.ReadConfig(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	if tok.Size() > cfg.Vocab {
		return fmt.Errorf("model: %s: vocabulary of %d, but its tokenizer has %d tokens: they do not belong together", dir, cfg.Vocab, tok.Size())
	}
	return nil
}

// CheckAgainst refuses a model to compare the student with, in dir, whose tokenizer is not
// the student's. setting names dir.
func CheckAgainst(tok *tokenizer.Tokenizer, dir, setting string) error {
	other, err := tokensOf(dir, setting)
	if err != nil {
		return err
	}
	what := tok.Missing(other)
	if what == "" && tok.Size() != other.Size() {
		what = fmt.Sprintf("has %d tokens, and the student's has %d", other.Size(), tok.Size())
	}
	if what != "" {
		return notTheStudents(dir, what, "the two models are compared token by token", setting)
	}
	return nil
}

// tokensOf is the tokenizer of a model beside the student, in dir.
func tokensOf(dir, setting string) (*tokenizer.Tokenizer, error) {
	if err := CheckModelFolder(vfs.OS, dir); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	if _, err := model.ReadConfig(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	other, err := LoadTokenizer(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: its tokenizer must be the student's: %w", setting, err)
	}
	return other, nil
}

func notTheStudents(dir, what, why, setting string) error {
	return fmt.Errorf("tokenizer: %s: is not the student's tokenizer: %s: %s: give a %s with the same tokenizer", dir, what, why, setting)
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
func (t *Trainer) judge(m Metrics, j *Judged) error {
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
func (t *Trainer) heldOutShare(m Metrics, j *Judged) error {
	limit := t.cfg.Actor.MaxTokenLen
	scoreS, err := t.heldOut.AllScores(j.Seqs, limit)
	if err != nil {
		return err
	}
	scoreP, err := t.heldOut.AllScores(j.Batch.Teachers, limit)
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
	if !(t.cfg.Algorithm.CheckerWeight > 0) {
		return nil
	}
	rowS, answers := model.Pick(r.batch.Rows, r.roll.Group), make([]string, len(r.roll.Seqs))
	for s, seq := range r.roll.Seqs {
		answers[s] = t.tok.Decode(seq.IDs[seq.Prompt:], true)
	}
	rows, err := checker.Rows(t.set, rowS, answers, r.roll.Truncated)
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
	for _, v := range verdicts {
		r.checkS = append(r.checkS, v.Score)
	}
	return nil
}

// rewarded are the scores [S] that rewards are made of: the discriminator's, or with
// w = algorithm.checker_weight above 0
//
//	(1-w) z(score) + w z(check),  z(x) = (x - mean) / (std + 1e-6) within the prompt's group
//
// so that w is the checker's share whatever the discriminator's scale.
func (t *Trainer) rewarded(m Metrics, r *round) []float32 {
	w := t.cfg.Algorithm.CheckerWeight
	if r.checkS == nil {
		return r.scoreS
	}
	m["reward/check_mean"], _, _ = moments(r.checkS)
	return mixed(w, zWithin(float64s(r.scoreS), r.roll.Group), zWithin(r.checkS, r.roll.Group))
}

func mixed(w float64, scoreZ, checkZ []float64) []float32 {
	out := make([]float32, len(scoreZ))
	for s := range out {
		out[s] = float32(float64((1-w)*scoreZ[s]) + float64(w*checkZ[s]))
	}
	return out
}

// zWithin is x standardised within its group, by the unbiased standard deviation; a
// group whose values are all equal is 0.
func zWithin(xS []float64, group []int) []float64 {
	members := map[int][]int{}
	for s, p := range group {
		members[p] = append(members[p], s)
	}
	z := make([]float64, len(xS))
	for _, at := range members {
		xs := model.Pick(xS, at)
		mean, std, _ := moments(xs)
		flat := !slices.ContainsFunc(xs, func(x float64) bool { return x != xs[0] })
		for _, s := range at {
			if !flat {
				z[s] = (xS[s] - mean) / (std + 1e-6)
			}
		}
	}
	return z
}

// heldOutShape is the shape that a plan counts for the held-out discriminator; shape
// where its folder cannot be read, which opening the run will tell.
func heldOutShape(c config.Config, shape model.Config) model.Config {
	if cfg, err := readHeldOut(c.Trainer.HeldOutCritic); err == nil {
		return cfg
	}
	return shape
}

// finite is a pair of finite numbers, or nil: JSON has no others.
func finite(x [2]float64) *[2]float64 {
	if math.IsNaN(x[0]) || math.IsNaN(x[1]) || math.IsInf(x[0], 0) || math.IsInf(x[1], 0) {
		return nil
	}
	return &x
}
