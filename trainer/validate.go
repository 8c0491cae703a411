package trainer

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"gad/actor"
	"gad/model"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// validate measures the student on the first rows of the validation data.
func (t *Trainer) validate(m Metrics) error {
	t.ranks.Enter("validation")
	if err := t.form.validate(m); err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	return nil
}

// evaluate measures the student's greedy answers, in chunks if they are on, and asks the judges
// about them.
func (t *Trainer) evaluate(m Metrics, chunks model.Chunks) error {
	var stop func() bool
	if t.step == 0 && t.ranks.Size() == 1 { // nothing is lost, and nobody else waits
		stop = actor.StopFunc(t.context())
	}
	j, err := quality.Evaluate(t.actor.Model(), t.tok, t.val.set, t.val.rows, quality.Options{
		Stop: stop, MaxPrompt: t.cfg.Data.MaxPrompt, MaxResponse: t.enc.MaxResponse,
		Chunks: chunks, Seed: t.cfg.Trainer.Seed, Slots: t.cfg.Rollout.MaxNumSeqs,
		MaxTokens: t.cfg.Actor.MaxTokenLen,
		Stages: func(name string, total int) (func(int), func()) {
			return t.rec.Progress("validation: "+name, total)
		}})
	if err != nil {
		return err
	}
	m["val/rouge_l"], m["val/teacher_nll"], m["val/len_ratio"] =
		j.Eval.RougeL, j.Eval.TeacherNLL, j.Eval.LenRatio
	if err := t.judges.judge(m, j); err != nil {
		return err
	}
	t.noteValidation(m)
	return t.sampleValidation(j)
}

// validationDigest returns the digest of everything but the weights that the val/ metrics depend
// on.
func (t *Trainer) validationDigest() string {
	c := t.cfg
	acts, world := t.form.validationInputs()
	of := []any{t.val.set.Digest(), t.val.rows, t.tok.Digest(), c.Data.MaxPrompt,
		c.Data.MaxResponse, c.Trainer.Checker, c.Trainer.HeldOutCritic, c.Trainer.Device,
		c.Trainer.Precision, acts, c.Env.MaxTurns, c.Env.MaxTokens, c.Env.InvalidPenalty}
	raw, err := json.Marshal(append(of, world...))
	if err != nil {
		panic(err) // texts and numbers
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// noteValidation keeps the val/ figures of m for the checkpoint. JSON has no number for NaN or
// infinity: with one of them nothing is kept.
func (t *Trainer) noteValidation(m Metrics) {
	t.past.validated = nil
	figures := map[string]float64{}
	for name, x := range m {
		if !strings.HasPrefix(name, "val/") {
			continue
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return
		}
		figures[name] = x
	}
	t.past.validated = &saved.Validation{Step: t.step, Of: t.validationDigest(), Figures: figures}
}

// currentValidation returns the newest validation if it measured the present weights, otherwise
// nil.
func (t *Trainer) currentValidation() *saved.Validation {
	if v := t.past.validated; v != nil && v.Step == t.step {
		return v
	}
	return nil
}

// validateStart measures the student before the first step, and returns the start/ metrics and the
// time that they took, for the metrics of step 1. A run that starts from another run's checkpoint
// takes over that run's figures of the same step, if they were measured on the same rows in the
// same way.
func (t *Trainer) validateStart() (Metrics, error) {
	if t.step > 0 {
		return nil, nil
	}
	v := t.past.validated // of the run that this one starts from: its steps are not this run's
	t.past.validated = nil
	if t.val.set == nil || !t.cfg.Trainer.ValBeforeTrain {
		return nil, nil
	}
	m := Metrics{}
	if v != nil && v.Of == t.validationDigest() {
		for name, x := range v.Figures {
			m[name] = x
		}
	} else if err := m.time("timing_s/val", func() error { return t.validate(m) }); err != nil {
		return nil, err
	}
	text := "before the first step: " + t.form.validationText(m)
	if check, ok := m["val/check"]; ok {
		text += fmt.Sprintf(", checker's score %.3f", check)
	}
	t.log.Info(text)
	for name, x := range m {
		if at, ok := strings.CutPrefix(name, "val/"); ok {
			delete(m, name)
			m["start/"+at] = x
		}
	}
	return m, nil
}
