package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"gad/actor"
	"gad/algos"
	"gad/model"
	"gad/reference"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// actorDir returns the folder from which the student is loaded.
func (t *Trainer) actorDir(s *start) string {
	if s.dir != "" {
		return filepath.Join(s.dir, "actor")
	}
	return t.cfg.Model.Path
}

// openModels opens the student with its optimizer, new or resumed, and the stage's other models.
func (t *Trainer) openModels(s *start) error {
	from := t.actorDir(s)
	if err := t.checkStudent(s, from); err != nil {
		return err
	}
	if err := t.openStudent(s, from); err != nil {
		return err
	}
	return t.stage.open(s)
}

// checkStudent refuses a student in folder from that does not fit the tokenizer and the settings.
// It notes the weights' data type before any training.
func (t *Trainer) checkStudent(s *start, from string) error {
	shape, err := model.ReadConfig(from)
	if err != nil {
		return err
	}
	if t.tok.Size() > shape.Vocab {
		return fmt.Errorf("model: %s: vocabulary of %d, but the tokenizer has %d tokens: they do not belong together", from, shape.Vocab, t.tok.Size())
	}
	if err := t.cfg.CheckSizes(t.Stage, from, shape); err != nil {
		return err
	}
	t.past.baseDType = shape.DType
	if s.dir != "" {
		t.past.baseDType = s.state.BaseDType
	} else if earlier, err := saved.Read(t.fs, filepath.Dir(filepath.Clean(from))); err == nil {
		t.past.baseDType = earlier.BaseDType // from is the actor of another run's checkpoint
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.As(err, new(saved.Foreign)) {
		return err
	}
	return nil
}

// openStudent opens the student in folder from, with adapters if the settings have some, and its
// optimizer. It sets s.student to the folder of the weights: from, or the adapters'.
func (t *Trainer) openStudent(s *start, from string) (err error) {
	kind := t.Stage
	learning := t.past.planned - t.stage.waitSteps() // steps in which the student learns
	updates := max(learning, 1) * t.cfg.OptimizerSteps(kind, config.Student)
	if err := t.checkSchedule(s, "actor.optim", &t.cfg.Actor.Optim, updates); err != nil {
		return err
	}
	c := t.cfg
	if s.dir != "" && !s.inPlace && c.Actor.LoRA.On() && !model.IsAdapter(from) {
		return fmt.Errorf("%w: actor.lora.rank=%d, but %s was trained in full: leave out LoRA, or export the student (gad export) and begin with gad warmup --model", config.ErrConfig, c.Actor.LoRA.Rank, s.dir)
	}
	s.student = from
	o := model.Options{Kind: model.LM, Trainable: true, Recompute: c.Actor.Recompute,
		LoRA: c.Actor.LoRA, Seed: t.seed(), StatesOver: t.statesOver()}
	err = t.busy("loading the student", func() (err error) {
		if s.dir == "" && c.Model.Adapter != "" {
			if s.student = c.Model.Adapter; !model.IsAdapter(s.student) {
				return fmt.Errorf(
					"%w: model.adapter_path %s: is no folder of LoRA adapters: it has no %s",
					config.ErrConfig, s.student, model.AdapterConfigName)
			}
			if o.Base, err = model.Load(t.be, from,
				model.Options{Kind: model.LM, Quant: t.cfg.Actor.LoRA.Base}); err != nil {
				return err
			}
			defer o.Base.Close() // the student keeps its weights
		}
		m, err := model.Load(t.be, s.student, o)
		if err != nil {
			return fmt.Errorf("actor: %w", err)
		}
		if err := m.SetTokens(t.tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("actor: %w", err), m.Close())
		}
		c.Rollout.Tree = c.Tree(kind)
		if !c.Chunks(kind).On() {
			c.Rollout.Chunk = 0 // the stage reads whole answers
		}
		c.Actor.RatioLevel = c.RatioLevel()
		if c.Divergence(kind) { // from the teacher, the target that opd.open sets
			c.Actor.UseKLLoss, c.Actor.KLLossCoef, c.Actor.KLLossType = true, 1, algos.KLFull
		}
		if t.actor, err = actor.New(m, c.Actor, c.Rollout, updates,
			t.enc.MaxResponse); err != nil {
			return errors.Join(err, m.Close())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.inPlace || s.dir != "" &&
		(kind != config.Train && kind != config.DPO || c.Trainer.ResumeOptim == "both") {
		if err := t.actor.Optimizer().Load(filepath.Join(s.dir, saved.ActorOptimizer)); err != nil {
			return err
		}
	}
	if t.past.before = s.state.Before; !s.inPlace {
		t.past.before.Actor = t.actor.Optimizer().Steps()
	}
	t.actor.Optimizer().ScheduleFrom(t.past.before.Actor)
	return nil
}

// checkSchedule checks the schedule o of the learning rate over a run's optimizer updates; key is
// the setting's prefix. A warm-up that only a preset gave is shortened to leave one update after
// it, with a note.
func (t *Trainer) checkSchedule(s *start, key string, o *model.OptimSettings, updates int) error {
	warmup := key + ".lr_warmup_steps"
	if o.WarmupSteps >= updates && slices.Contains(s.preset, warmup) {
		s.lateNotes = append(s.lateNotes, fmt.Sprintf(
			"%s is %d of the %d optimizer steps of this run: the preset's %d is too long for it",
			warmup, updates-1, updates, o.WarmupSteps))
		o.WarmupSteps = updates - 1
	}
	if err := o.Schedule(updates).Validate(); err != nil {
		return fmt.Errorf("%w: %s: %w: here at most %s=%d", config.ErrConfig, key, err, warmup,
			max(updates-1, 0))
	}
	return nil
}

// openReference writes the student as it was at the start into the run's own folder and loads it as
// reference, so that the run can be resumed when the folder that it started from is gone.
func (t *Trainer) openReference(s *start) (err error) {
	if !t.stage.hasReference() {
		return nil
	}
	dir := filepath.Join(t.cfg.Trainer.Output, saved.ReferenceDir)
	if t.first() {
		if err := t.writeReference(dir, s); err != nil {
			return err
		}
	}
	if err := t.ranks.Barrier("the reference"); err != nil {
		return err
	}
	err = t.busy("loading the reference", func() (err error) {
		m, err := model.Load(t.be, dir, model.Options{Kind: model.LM, Base: t.actor.Model().Base()})
		if err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		if err := m.SetTokens(t.tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("reference: %w", err), m.Close())
		}
		t.reference = reference.New(m, t.cfg.Actor.MaxTokenLen)
		return nil
	})
	if err != nil {
		return err
	}
	t.reference.Model().Share(t.actor.Model())
	t.actor.SetTarget(actor.Target{Policy: t.reference.Model(), Beta: 1})
	return nil
}

// writeReference writes the reference's folder when the run begins; a resumed run must have it.
func (t *Trainer) writeReference(dir string, s *start) error {
	switch _, err := t.fs.Stat(dir); {
	case s.inPlace && errors.Is(err, fs.ErrNotExist):
		return saved.MissingReference(dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reference: %w", err)
	case !s.inPlace: // what an earlier attempt left may be of another student
		if err := t.fs.RemoveAll(dir); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		return t.busy("writing the reference", func() error {
			return export.WriteFolder(t.fs, dir, t.actor.Model(), t.tok, "float32")
		})
	}
	return nil
}
