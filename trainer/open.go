package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gad/actor"
	"gad/algos"
	"gad/checkpoint"
	"gad/critic"
	"gad/data"
	"gad/internal/conf"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/reference"
)

// Open prepares a run. If the output folder holds an unfinished or finished run
// of the same stage, it is gone on with; a folder with anything else in it is
// refused. Nothing is written before all inputs have been read and checked.
func Open(cfg Config, stage Stage, o Options) (t *Trainer, err error) {
	if o.Backend == nil {
		return nil, fmt.Errorf("%w: trainer: Options.Backend is nil: open one with device.Open", ErrConfig)
	}
	o.FS = vfs.OrDisk(o.FS)
	if err := cfg.Validate(stage); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if o.Ranks.Rank() > 0 {
		o.Console, o.TTY = nil, false // rank 0 speaks
	}
	t = &Trainer{Stage: stage, cfg: cfg, fs: o.FS, be: o.Backend, ranks: o.Ranks, skipped: map[string]int{}, verified: map[int]bool{}, named: map[string]bool{}, free: o.Backend.Available(), con: report.NewConsole(o.Console, o.TTY), notes: o.Notes}
	defer func() {
		if err != nil {
			err = checkpoint.ExplainFull(o.FS, cfg.Trainer.Output, 0, err)
			t.ranks.Abort(err)
			t.Close()
			t = nil
		}
	}()
	run := cfg.Trainer.Output
	if err := t.joinRanks(); err != nil {
		return t, err
	}
	var start start
	err = t.inTurn("the run's folder", func() (err error) {
		if t.first() {
			if err := t.claim(run); err != nil {
				return err
			}
		}
		start, err = t.findStart(run)
		return err
	})
	if err != nil {
		return t, err
	}
	if err := t.alike("checkpoints to start from", start.dir); err != nil {
		return t, err
	}
	if err := t.inTurn("the data", func() error { return t.openData(&start) }); err != nil {
		return t, err
	}
	if err := t.sameInputs(); err != nil {
		return t, err
	}
	// Before the models take the memory that the run is planned for.
	err = t.busy("timing a matrix product", func() (err error) {
		t.peak, err = measurePeak(t.be)
		t.peak *= float64(t.ranks.Size())
		return err
	})
	if err != nil {
		return t, err
	}
	if err := t.openModels(start); err != nil {
		return t, err
	}
	if err := t.openJudges(); err != nil {
		return t, err
	}
	if start.inPlace && t.step >= t.total {
		run = "" // finished: say so, and change nothing
	} else if err := t.settle(start); err != nil {
		return t, err
	}
	if err := t.split(); err != nil {
		return t, err
	}
	if err := t.sameWeights(true); err != nil {
		return t, err
	}
	if !t.first() {
		run = ""
	}
	t.rec, err = report.Open(t.fs, run, report.Options{ResumeStep: t.step, TotalSteps: t.total, Command: o.Command, Console: t.con})
	if err != nil {
		return t, err
	}
	t.log = t.rec.Log()
	t.introduce(start)
	return t, nil
}

// claim locks the folder of a run that is there. A folder that is missing or
// empty is left as it is until all inputs have been checked: see settle. Any
// other is refused.
func (t *Trainer) claim(run string) error {
	isRun, err := t.isRun(run)
	if err != nil || !isRun {
		return err
	}
	if t.lock, err = checkpoint.LockRun(run); errors.Is(err, vfs.ErrTarget) {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return err
}

// isRun reports whether the folder holds a run; false is missing or empty.
func (t *Trainer) isRun(run string) (bool, error) {
	entries, err := t.fs.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: trainer: %s: cannot be the run folder: %w", ErrConfig, run, err)
	}
	foreign := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case name == configName || strings.HasPrefix(name, "global_step_"):
			return true, nil
		case !slices.Contains(unborn, name):
			foreign = name
		}
	}
	if foreign != "" {
		return false, fmt.Errorf("%w: trainer: %s: contains %q but no run: nothing is overwritten: give another --output", ErrConfig, run, foreign)
	}
	return false, nil
}

const configName = "config.yaml"

// unborn are the files of a run that was ended before it began, be it in the middle of
// writing them.
var unborn = []string{".lock", ".lock.holder", vfs.TempName(".lock.holder"), vfs.TempName(configName)}

// settle writes the first files of the run, once nothing but the disk can fail.
func (t *Trainer) settle(s start) (err error) {
	if !t.first() {
		return t.openReference(s)
	}
	run := t.cfg.Trainer.Output
	if t.lock == nil {
		if t.lock, err = checkpoint.LockRun(run); errors.Is(err, vfs.ErrTarget) {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		} else if err != nil {
			return err
		}
		if began, err := t.isRun(run); err != nil {
			return err
		} else if began {
			return fmt.Errorf("trainer: %s: %w: another process began a run there just now: give another --output", run, checkpoint.ErrLocked)
		}
	}
	stored := t.cfg.absolute()
	resolved, err := conf.Marshal(&stored)
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(t.fs, filepath.Join(run, configName), resolved); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	return t.openReference(s)
}

// start says what a run begins from.
type start struct {
	dir     string // checkpoint; empty for a fresh run from model.path
	state   state
	inPlace bool     // dir lies in the output folder: the run goes on
	notes   []string // warnings
	said    []string // what else is to be known at the start
}

func (t *Trainer) findStart(run string) (s start, err error) {
	find := checkpoint.Latest // a folder without a run is not written to
	if t.lock != nil {
		find = checkpoint.Recover
	}
	_, done := t.con.Busy("verifying checkpoints", 0)
	step, dir, notes, err := find(t.fs, run)
	done()
	s.notes = notes
	switch {
	case err == nil:
		s.dir, s.inPlace, t.verified[step] = dir, true, true
		t.saved.Store(int64(step))
	case !errors.Is(err, checkpoint.ErrNone):
		return s, err
	case t.cfg.Trainer.Resume != "":
		if s.dir, s.notes, err = FindCheckpoint(t.fs, t.cfg.Trainer.Resume); err != nil {
			return s, err
		}
	case t.Stage == Train:
		return s, fmt.Errorf("%w: train starts from a warm-up checkpoint: give --resume RUN (made by gad warmup)", ErrConfig)
	}
	if s.dir == "" {
		return s, nil
	}
	if !s.inPlace && t.cfg.Model.Path != "" {
		return s, fmt.Errorf("%w: trainer: model.path %s and trainer.resume_from %s are both set: the student comes from the run: leave out --model", ErrConfig, t.cfg.Model.Path, t.cfg.Trainer.Resume)
	}
	if !s.inPlace && t.cfg.Model.Adapter != "" {
		return s, fmt.Errorf("%w: trainer: model.adapter_path %s and trainer.resume_from %s are both set: the adapters come from the run: leave out --adapter", ErrConfig, t.cfg.Model.Adapter, t.cfg.Trainer.Resume)
	}
	if s.state, err = readState(t.fs, s.dir); err != nil {
		return s, err
	}
	if s.inPlace {
		if err := changed(s.state.Kept, t.cfg.kept(), run); err != nil {
			return s, err
		}
	}
	if s.inPlace && s.state.Stage != t.Stage {
		return s, fmt.Errorf("%w: trainer: %s: contains a run of stage %s, not %s: give another --output", ErrConfig, run, s.state.Stage, t.Stage)
	}
	if !s.inPlace && t.Stage == Train && !s.state.Stage.hasCritic() {
		return s, fmt.Errorf("%w: trainer: %s: is %s and has no discriminator: run gad warmup --model %s first", ErrConfig, t.cfg.Trainer.Resume, s.state.Stage.aRun(), filepath.Join(s.dir, "actor"))
	}
	return s, nil
}

// FindCheckpoint is path itself if it is a checkpoint, else the newest one of
// the run path that verifies; notes say which newer ones did not.
func FindCheckpoint(fsys checkpoint.FS, path string) (dir string, notes []string, err error) {
	fsys = vfs.OrDisk(fsys)
	if strings.HasPrefix(filepath.Base(filepath.Clean(path)), "global_step_") {
		return path, nil, checkpoint.Verify(fsys, path)
	}
	if info, err := fsys.Stat(path); err == nil && !info.IsDir() {
		return "", nil, fmt.Errorf("checkpoint: %s: is a file: give a run folder or one of its global_step_N folders", path)
	}
	_, dir, notes, err = checkpoint.Latest(fsys, path)
	if errors.Is(err, checkpoint.ErrNone) {
		if _, missing := fsys.Stat(path); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("%w, as there is no such folder", err)
		}
		err = fmt.Errorf("%w: give a run folder or one of its global_step_N folders", err)
	}
	return dir, notes, err
}

// StageOf is the stage that made the run or checkpoint at path.
func StageOf(fsys checkpoint.FS, path string) (Stage, error) {
	fsys = vfs.OrDisk(fsys)
	dir := filepath.Clean(path)
	if !strings.HasPrefix(filepath.Base(dir), "global_step_") {
		steps, err := checkpoint.Steps(fsys, dir)
		if err != nil {
			return "", err
		}
		// The newest of which the state can be read: all are of one stage, and opening the
		// run says which are damaged.
		for _, step := range slices.Backward(steps) {
			var s state
			if s, err = readState(fsys, filepath.Join(dir, fmt.Sprintf("global_step_%d", step))); err == nil {
				return s.Stage, nil
			}
		}
		if len(steps) == 0 {
			return "", checkpoint.ErrNone
		}
		return "", err
	}
	s, err := readState(fsys, dir)
	return s.Stage, err
}

// openData reads tokenizer and data set, and puts the cursor where the run stands.
func (t *Trainer) openData(s *start) (err error) {
	c := t.cfg
	if err := CheckModelFolder(t.fs, t.actorDir(*s)); err != nil {
		return err
	}
	err = t.busy("reading the tokenizer", func() (err error) {
		t.tok, err = LoadTokenizer(t.actorDir(*s))
		return err
	})
	if err != nil {
		return err
	}
	t.enc = encoder{tok: t.tok, maxPrompt: c.Data.MaxPrompt, maxResponse: c.Data.MaxResponse}
	if err := t.openSets(s); err != nil {
		return err
	}
	t.order = data.NewOrder(len(t.rows), t.seed(), 0, 1)
	t.planned = c.Trainer.TotalSteps
	if t.planned == 0 {
		t.planned = (c.Trainer.TotalEpochs*len(t.rows) + c.Data.TrainBatchSize - 1) / c.Data.TrainBatchSize
	}
	if s.inPlace {
		t.disc = s.state.Disc
	}
	t.stretch()
	if s.dir != "" {
		t.validated = s.state.Validated
	}
	if s.inPlace {
		t.step = s.state.Step
		t.best, t.good, t.oldDiffers = s.state.Best, s.state.Good, s.state.OldDiffers
		maps.Copy(t.skipped, s.state.Skipped)
		return t.order.Restore(s.state.Order)
	}
	return nil
}

// actorDir is the folder that the student is loaded from.
func (t *Trainer) actorDir(s start) string {
	if s.dir != "" {
		return filepath.Join(s.dir, "actor")
	}
	return t.cfg.Model.Path
}

func (t *Trainer) openModels(s start) (err error) {
	c, batch := t.cfg, t.cfg.Data.TrainBatchSize
	from := t.actorDir(s)
	cfg, err := model.ReadConfig(from)
	if err != nil {
		return err
	}
	if t.tok.Size() > cfg.Vocab {
		return fmt.Errorf("model: %s: vocabulary of %d, but the tokenizer has %d tokens: they do not belong together", from, cfg.Vocab, t.tok.Size())
	}
	if err := c.checkSizes(t.Stage, from, cfg); err != nil {
		return err
	}
	t.baseDType = cfg.DType
	if s.dir != "" {
		t.baseDType = s.state.BaseDType
	} else if earlier, err := readState(t.fs, filepath.Dir(filepath.Clean(from))); err == nil {
		t.baseDType = earlier.BaseDType // from is the actor of another run's checkpoint
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.As(err, new(foreignState)) {
		return err
	}
	perStep := 1 // the teacher's answers, and pairs, take one optimizer step
	if !t.learnsTeacher() && t.Stage != DPO {
		perStep = c.Actor.Updates(batch)
	}
	learning := t.planned // steps in which the student learns
	if t.Stage.hasCritic() {
		learning -= c.Trainer.CriticWarmup
	}
	updates := max(learning, 1) * perStep
	if err := c.Actor.Optim.Schedule(updates).Validate(); err != nil {
		return fmt.Errorf("%w: actor.optim: %w", ErrConfig, err)
	}
	if s.dir != "" && !s.inPlace && c.Actor.LoRA.On() && !model.IsAdapter(from) {
		return fmt.Errorf("%w: actor.lora.rank=%d, but %s was trained in full: leave out LoRA, or export the student (gad export) and begin with gad warmup --model", ErrConfig, c.Actor.LoRA.Rank, s.dir)
	}
	student, o := from, model.Options{Kind: model.LM, Trainable: true, Recompute: c.Actor.Recompute, LoRA: c.Actor.LoRA, Seed: t.seed(), StatesOver: t.statesOver()}
	err = t.busy("loading the student", func() (err error) {
		if s.dir == "" && c.Model.Adapter != "" {
			if student = c.Model.Adapter; !model.IsAdapter(student) {
				return fmt.Errorf("%w: model.adapter_path %s: is no folder of LoRA adapters: it has no %s", ErrConfig, student, model.AdapterConfigName)
			}
			if o.Base, err = model.Load(t.be, from, model.Options{Kind: model.LM, Quant: c.Actor.LoRA.Base}); err != nil {
				return err
			}
			defer o.Base.Close() // the student keeps its weights
		}
		m, err := model.Load(t.be, student, o)
		if err != nil {
			return fmt.Errorf("actor: %w", err)
		}
		if t.actor, err = actor.New(m, c.Actor, c.Rollout, updates, c.Data.MaxResponse); err != nil {
			return errors.Join(err, m.Close())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.inPlace || s.dir != "" && (t.Stage != Train && t.Stage != DPO || c.Trainer.ResumeOptim == "both") {
		if err := t.actor.Optimizer().Load(filepath.Join(s.dir, actorOptimizer)); err != nil {
			return err
		}
	}
	if t.before = s.state.Before; !s.inPlace {
		t.before.Actor = t.actor.Optimizer().Steps()
	}
	t.actor.Optimizer().ScheduleFrom(t.before.Actor)
	if t.Stage == DPO {
		t.frozen = t.newFrozenPairs()
		t.dpo, err = algos.NewDPO[float64](c.DPO.objective())
	}
	if !t.Stage.hasCritic() {
		return err
	}
	scorer := student
	carried := s.dir != "" && s.state.Stage.hasCritic() && (s.inPlace || c.Model.RewardPath == "")
	switch {
	case carried:
		scorer = filepath.Join(s.dir, "critic")
	case c.Model.RewardPath != "":
		scorer = c.Model.RewardPath // given beside --resume, it takes the place of the checkpoint's
	}
	if !carried && c.Model.RewardPath != "" {
		if err := SameTokens(t.tok, scorer, "model.reward_path"); err != nil {
			return err
		}
	}
	steps := t.planned + max(0, t.lastAlone()-c.Trainer.CriticWarmup) // whenever its time alone ends: a schedule is fixed beforehand
	if err := c.Critic.Schedule(steps, batch).Validate(); err != nil {
		return fmt.Errorf("%w: critic.optim: %w", ErrConfig, err)
	}
	err = t.busy("loading the discriminator", func() (err error) {
		// With adapters on both it stands on the student's base.
		m, err := model.Load(t.be, scorer, model.Options{Kind: model.Scorer, Trainable: true, Recompute: c.Critic.Recompute,
			LoRA: c.Critic.LoRA, Base: t.actor.Model().Base(), Turns: t.actor.Model(), Seed: t.seed(), ScoreInit: c.Critic.HeadStd(cfg.Hidden), StatesOver: t.statesOver()})
		if err != nil {
			return fmt.Errorf("critic: %w", err)
		}
		if t.critic, err = critic.New(m, c.Critic, steps, batch, t.seed()); err != nil {
			return errors.Join(err, m.Close())
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.critic.Model().Share(t.actor.Model()) // they take turns
	t.kl = algos.AdaptiveKL{Coef: c.Algorithm.KLCtrl.KLCoef, Target: c.Algorithm.KLCtrl.TargetKL, Horizon: c.Algorithm.KLCtrl.Horizon}
	if n, v := c.Data.MaxPrompt+c.Data.MaxResponse, t.critic.Model().Config().MaxPosition; v > 0 && n > v {
		return fmt.Errorf("%w: model: %s: data.max_prompt_length + data.max_response_length = %d, but max_position_embeddings is %d: lower them", ErrConfig, scorer, n, v)
	}
	if carried {
		if s.inPlace || c.Trainer.ResumeOptim != "none" {
			if err := t.critic.Optimizer().Load(filepath.Join(s.dir, criticOptimizer)); err != nil {
				return err
			}
		}
		if t.critic.Replay != nil {
			if err := readReplay(s.dir, t.critic.Replay); err != nil {
				return err
			}
		}
	}
	if !c.Critic.Replay.Live && (t.critic.Replay == nil || len(t.critic.Replay.Pairs) == 0) {
		return fmt.Errorf("%w: critic.replay.live=false needs the pool of an earlier stage, which has none: keep one in the warm-up (critic.replay.size=4096) and here", ErrConfig)
	}
	if s.inPlace {
		t.kl.Coef = s.state.KLCoef
	} else {
		t.before.Critic = t.critic.Optimizer().Steps()
	}
	t.critic.Optimizer().ScheduleFrom(t.before.Critic)
	return nil
}

// referenceDir is the folder of the frozen reference in a run's folder.
const referenceDir = "reference"

func missingReference(dir string) error {
	return fmt.Errorf("reference: %s: the frozen reference is missing: restore it, or start again with another --output", dir)
}

// openReference keeps the student as it was at the start in the run's own folder,
// so that the run can go on wherever it was resumed from is gone.
func (t *Trainer) openReference(s start) (err error) {
	if !t.cfg.needsReference(t.Stage) {
		return nil
	}
	dir := filepath.Join(t.cfg.Trainer.Output, referenceDir)
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
		t.reference = reference.New(m, t.cfg.Actor.MaxTokenLen)
		return nil
	})
	if err != nil {
		return err
	}
	t.reference.Model().Share(t.actor.Model())
	return nil
}

// writeReference writes the reference's folder where the run begins.
func (t *Trainer) writeReference(dir string, s start) error {
	switch _, err := t.fs.Stat(dir); {
	case s.inPlace && errors.Is(err, fs.ErrNotExist):
		return missingReference(dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reference: %w", err)
	case !s.inPlace: // what an earlier attempt left may be of another student
		if err := t.fs.RemoveAll(dir); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		return t.busy("writing the reference", func() error {
			return WriteFolder(t.fs, dir, t.actor.Model(), t.tok, "float32")
		})
	}
	return nil
}

// length is how many steps the run has, as far as that is known.
func (t *Trainer) length() string {
	if t.until() > 0 && t.disc.AloneFor == 0 {
		return fmt.Sprintf("at most %s: up to %d for the discriminator alone (trainer.critic_warmup_max), then %d", report.Count(t.total, "step"), t.lastAlone(), t.total-t.lastAlone())
	}
	return report.Count(t.total, "step")
}

// fewSteps are too few for a student to learn in at the learning rates that are usual.
const fewSteps = 10

// lengthWarnings are warnings of a run of so many steps over so many rows: that the student
// learns in none of them, or in hardly any.
func (c *Config) lengthWarnings(stage Stage, rows, steps int) []string {
	alone := 0
	if stage.hasCritic() {
		alone = c.Trainer.CriticWarmup
	}
	switch learning := steps - alone; {
	case alone > 0 && learning < 1 && c.Trainer.CriticWarmupUntil == 0:
		return []string{fmt.Sprintf("trainer.critic_warmup %d is not below the number of steps of the run, %d: the student will not be trained", alone, steps)}
	case learning >= 1 && learning < fewSteps && c.Trainer.TotalSteps == 0:
		return []string{fmt.Sprintf("%s at data.train_batch_size %d are %s, and the student learns in %d: a smaller batch, more trainer.total_epochs or --steps give it more (--preset small has a batch and rates for a released student)", report.Count(rows, "row"), c.Data.TrainBatchSize, report.Count(steps, "step"), learning)}
	}
	return nil
}

// busy runs f, and shows its name if it takes its time.
func (t *Trainer) busy(name string, f func() error) error {
	_, done := t.con.Busy(name, 0)
	defer done()
	return f()
}

// introduce says what the run is about to do.
func (t *Trainer) introduce(s start) {
	for _, note := range slices.Concat(s.notes, t.notes, t.cfg.Warnings(t.Stage)) {
		t.log.Warn(note)
	}
	for _, note := range s.said {
		t.log.Info(note)
	}
	if !s.inPlace {
		for _, note := range t.cfg.lengthWarnings(t.Stage, len(t.rows), t.planned) {
			t.log.Warn(note)
		}
	}
	run := t.cfg.Trainer.Output
	if w := s.state.Disc.deaf(s.dir); w != "" && t.Stage == Train && !s.inPlace && t.cfg.Model.RewardPath == "" {
		t.log.Warn(w)
	}
	p := Plan{Stage: t.Stage, ranks: t.ranks.Size(), PromptMean: float64(t.cfg.Data.MaxPrompt), AnswerMean: float64(t.cfg.Data.MaxResponse)}
	p.Memory = p.planMemory(t.be, t.actor.Model().Config(), t.cfg)
	if need, free := total(p.Memory), t.free; free > 0 && need > free {
		t.log.Warn(fmt.Sprintf("memory: this run may need %s, but %s are available: gad plan says which settings to lower", bytesText(need), bytesText(free)))
	}
	switch {
	case t.step >= t.total:
		t.log.Info(fmt.Sprintf("%s: already finished after %s of %d (%s): nothing to do; raise trainer.total_steps or trainer.total_epochs to continue", run, report.Count(t.step, "step"), t.total, s.dir))
		return
	case s.inPlace:
		t.log.Info(fmt.Sprintf("%s: resuming after step %d of %d", run, t.step, t.total))
	case s.dir != "":
		t.log.Info(fmt.Sprintf("%s: %s from %s, %s", run, t.Stage, s.dir, t.length()))
	default:
		t.log.Info(fmt.Sprintf("%s: %s of %s, %s", run, t.Stage, t.cfg.Model.Path, t.length()))
	}
	c := t.actor.Model().Config()
	size := human(float64(c.ParamCount(model.LM))) + " parameters"
	if l := t.actor.Model().LoRA(); l.On() {
		size += fmt.Sprintf(", frozen, and LoRA adapters of %s", human(float64(c.TrainedCount(model.LM, l))))
	}
	t.log.Info(fmt.Sprintf("%s; student %s, %s; %s, %s per step%s; %s",
		time.Now().Format(time.DateOnly), c.Architecture, size, report.Count(len(t.rows), "row"), report.Count(t.cfg.Data.TrainBatchSize, "prompt"), t.answers(), t.be.Name()))
	if t.joined != "" {
		t.log.Info(fmt.Sprintf("%d ranks: %s", t.ranks.Size(), t.joined))
	}
}

func (t *Trainer) answers() string {
	if !t.Stage.hasCritic() {
		return ""
	}
	return " x " + report.Count(t.cfg.Rollout.N, "answer")
}
