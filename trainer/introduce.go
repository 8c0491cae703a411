package trainer

import (
	"fmt"
	"slices"
	"time"

	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// introduce prints the warnings and notes of the start, and what the run is about to do.
func (t *Trainer) introduce(s *start) {
	kind := t.Stage
	for _, note := range slices.Concat(s.notes, s.lateNotes, t.cfg.Warnings(kind)) {
		t.log.Warn(note)
	}
	if t.cfg.Trainer.ShardOptimizer && t.ranks.Size() == 1 {
		t.log.Warn("trainer.shard_optimizer true has no effect: one process trains: see gad train --ranks")
	}
	for _, note := range s.infos {
		t.log.Info(note)
	}
	if !s.inPlace {
		for _, note := range t.cfg.LengthWarnings(kind, len(t.train.rows), t.past.planned) {
			t.log.Warn(note)
		}
	}
	run := t.cfg.Trainer.Output
	if w := t.stage.warning(s); w != "" {
		t.log.Warn(w)
	}
	need := plan.Need(t.be, t.actor.Model().Config(), t.cfg, kind, t.ranks.Size())
	if t.train.soft {
		need += plan.LabelMemory(t.be, t.actor.Model().Config(), t.cfg, kind)
	}
	if free := s.free; free > 0 && need > free {
		t.log.Warn(fmt.Sprintf("memory: this run may need %s, but %s are available: gad plan says which settings to lower", report.Bytes(need), report.Bytes(free)))
	}
	switch {
	case t.step >= t.total:
		t.log.Info(fmt.Sprintf("%s: already finished after %s of %d (%s): nothing to do; raise trainer.total_steps or trainer.total_epochs to continue", run, report.Count(t.step, "step"), t.total, s.dir))
		return
	case s.inPlace:
		t.log.Info(fmt.Sprintf("%s: resuming after step %d of %d", run, t.step, t.total))
	case s.dir != "":
		t.log.Info(fmt.Sprintf("%s: %s from %s, %s", run, kind, s.dir, t.stage.length()))
	default:
		t.log.Info(fmt.Sprintf("%s: %s of %s, %s", run, kind, t.cfg.Model.Path, t.stage.length()))
	}
	c := t.actor.Model().Config()
	size := report.Magnitude(float64(c.ParamCount(model.LM))) + " parameters"
	if l := t.actor.Model().LoRA(); l.On() {
		size += fmt.Sprintf(", frozen, and LoRA adapters of %s",
			report.Magnitude(float64(c.TrainedCount(model.LM, l))))
	}
	t.log.Info(fmt.Sprintf("%s; student %s, %s; %s, %s per step%s; %s",
		time.Now().Format(time.DateOnly), c.Architecture, size,
		report.Count(len(t.train.rows), "row"),
		report.Count(t.cfg.Data.TrainBatchSize, "prompt"), t.answersText(kind), t.be.Name()))
	if s.deviceLink != "" {
		t.log.Info(fmt.Sprintf("%d ranks: %s", t.ranks.Size(), s.deviceLink))
	}
}

// answersText returns the number and form of the student's answers to a prompt, in words.
func (t *Trainer) answersText(kind config.Stage) string {
	if !kind.HasPolicy() {
		return t.form.words()
	}
	return " x " + report.Count(t.cfg.Answers(kind), "answer") + t.form.words()
}
