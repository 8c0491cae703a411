package trainer

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"gad/internal/report"
)

// This file is what a run knows of its student before the first step, and what the run
// says of itself while there is time to stop it.

// validated is the newest validation of a run: what the next run, which begins with the
// same weights, would measure again.
type validated struct {
	Step    int                `json:"step"`
	Of      string             `json:"of"` // digest of what was validated on, and how
	Figures map[string]float64 `json:"figures"`
}

// validation is the digest of everything that the val/ metrics depend on, weights apart.
func (t *Trainer) validation() string {
	c := t.cfg
	raw, err := json.Marshal([]any{t.val.Digest(), t.valRows, c.Data.MaxPrompt, c.Data.MaxResponse, c.Trainer.Checker,
		c.Trainer.HeldOutCritic, c.Trainer.Device, c.Trainer.Precision})
	if err != nil {
		panic(err) // texts and numbers
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// noteValidation keeps the val/ figures of m for the checkpoint. JSON has no number for
// what is not finite: then nothing is kept.
func (t *Trainer) noteValidation(m Metrics) {
	t.validated = nil
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
	t.validated = &validated{Step: t.step, Of: t.validation(), Figures: figures}
}

// current is the newest validation if it was of the present weights.
func (t *Trainer) current() *validated {
	if v := t.validated; v != nil && v.Step == t.step {
		return v
	}
	return nil
}

// begin measures the student before the first step: the start/ metrics and the time that
// they took, for the metrics of step 1. A run that starts from another one's checkpoint
// takes the figures that the other has measured at that step, if it was on the same rows
// in the same way.
func (t *Trainer) begin() (Metrics, error) {
	if t.step > 0 {
		return nil, nil
	}
	v := t.validated // of the run that this one starts from: its steps are not this run's
	t.validated = nil
	if t.val == nil || !t.cfg.Trainer.ValBeforeTrain {
		return nil, nil
	}
	m := Metrics{}
	if v != nil && v.Of == t.validation() {
		for name, x := range v.Figures {
			m[name] = x
		}
	} else if err := m.time("timing_s/val", func() error { return t.validate(m) }); err != nil {
		return nil, err
	}
	for name, x := range m {
		if at, ok := strings.CutPrefix(name, "val/"); ok {
			delete(m, name)
			m["start/"+at] = x
		}
	}
	return m, nil
}

// watched steps are judged while the run goes on: all of the first 20, so that a sign that
// needs no history is named before an hour is lost, and then one in 20 of those so far. A
// judgment reads the metrics of all steps.
const watched = 20

// watch warns of the signs that the metrics show by now and that this process has not named.
func (t *Trainer) watch() {
	if !t.first() || t.step%max(1, t.step/watched) > 0 && t.step < t.total {
		return
	}
	rows, err := report.ReadMetrics(t.fs, t.cfg.Trainer.Output)
	if err != nil { // no reason to end a run: what was recorded was checked as it was written
		t.log.Warn(fmt.Sprintf("no signs are looked for in this step, since the metrics cannot be read: %v", err))
		return
	}
	found, _ := report.Judge(rows)
	for _, f := range found {
		if !t.named[f.Name] {
			t.named[f.Name] = true
			t.log.Warn(fmt.Sprintf("%s: %s: %s (gad doctor %s has the rule)", f.Name, f.Seen, f.Advice, t.cfg.Trainer.Output))
		}
	}
}
