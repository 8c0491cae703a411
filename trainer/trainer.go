// Package trainer runs the stages: sft, warmup, train and dpo. step.go is
// the loop's body; this file opens a run, goes on with one, and closes it.
package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"gad/actor"
	"gad/algos"
	"gad/checkpoint"
	"gad/critic"
	"gad/data"
	"gad/internal/checker"
	"gad/internal/compute"
	"gad/internal/conf"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
)

// Stage is what a run does.
type Stage string

// The stages, in the order in which they are run.
const (
	SFT    Stage = "sft"    // cross entropy on the teacher's answers alone (SeqKD)
	Warmup Stage = "warmup" // the discriminator first, then the student beside it
	Train  Stage = "train"  // the game
)

// What callers branch on.
var (
	// ErrInterrupted reports a run that was asked to stop, has saved, and can go on.
	ErrInterrupted = errors.New("interrupted and saved")
	// ErrNumerical reports a run that stopped because its numbers broke down.
	ErrNumerical = errors.New("numerical stop")
	// ErrConfig reports settings that cannot be run.
	ErrConfig = errors.New("configuration")
)

// Options are what a run needs from the process around it.
type Options struct {
	FS      vfs.FS
	Backend compute.Backend
	Console io.Writer // for people; nil is silent
	TTY     bool
	Command string      // as typed, for the log
	Stages  data.Stages // hears of long work on the data; nil is silent
}

// Trainer is one run of one stage.
type Trainer struct {
	Stage Stage

	cfg       Config
	fs        vfs.FS
	be        compute.Backend
	tok       *tokenizer.Tokenizer
	enc       encoder
	set, val  *data.Set
	rows      []int       // usable rows of set
	valRows   []int       // rows of val that an evaluation takes
	stages    data.Stages // hears of long work on the data; nil is silent
	order     *data.Order
	actor     *actor.Actor
	critic    *critic.Critic    // nil in SFT and DPO
	reference *reference.Policy // nil where no KL is on
	heldOut   *model.Model      // a discriminator that does not play; nil without one
	checker   *checker.Checker  // nil without one
	ctx       context.Context   // of Run; nil outside of it
	kl        algos.AdaptiveKL
	dpo       *algos.DPO[float64] // nil but in DPO
	rec       *report.Recorder
	log       *zap.Logger
	lock      *checkpoint.Lock

	stepRows    []int   // of the step under way
	done        work    // of the last step
	peak        float64 // floating-point operations a second; what perf/mfu is a share of
	step, total int     // steps done, steps to do
	planned     int     // steps asked for: total, unless the discriminator's time alone ends by what it has learned
	disc        discriminator
	free        int64        // bytes of memory that were available when the run began; 0 is unknown
	saved       int          // step of the newest checkpoint
	verified    map[int]bool // checkpoints that this process has written or read
	good        int          // step of the last commit with no update skipped just before; 0 is none
	saveTime    float64      // seconds of a save that no step has reported yet
	before      updates
	best        best
	skipped     map[string]int
	baseDType   string // the student's, before training
}

// seed is the run's, made different for each stage: train does not draw the
// rows and the answers of the warm-up again.
func (t *Trainer) seed() uint64 {
	stage := map[Stage]uint64{SFT: 0, Warmup: 1, Train: 2, DPO: 3}[t.Stage]
	return t.cfg.Trainer.Seed + stage<<56
}

// Config is the resolved configuration.
func (t *Trainer) Config() Config { return t.cfg }

// Steps are the steps done so far and the steps that the run has in all.
func (t *Trainer) Steps() (done, total int) { return t.step, t.total }

// Open prepares a run. If the output folder holds an unfinished or finished run
// of the same stage, it is gone on with; a folder with anything else in it is
// refused. Nothing is written before all inputs have been read and checked.
func Open(cfg Config, stage Stage, o Options) (t *Trainer, err error) {
	if err := cfg.Validate(stage); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	t = &Trainer{Stage: stage, cfg: cfg, fs: o.FS, be: o.Backend, skipped: map[string]int{}, verified: map[int]bool{}, free: o.Backend.Available(), stages: o.Stages}
	defer func() {
		if err != nil {
			err = checkpoint.ExplainFull(o.FS, cfg.Trainer.Output, 0, err)
			t.Close()
			t = nil
		}
	}()
	run := cfg.Trainer.Output
	if err := t.claim(run); err != nil {
		return t, err
	}
	start, err := t.findStart(run)
	if err != nil {
		return t, err
	}
	if err := t.openData(&start); err != nil {
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
	t.rec, err = report.Open(t.fs, run, report.Options{ResumeStep: t.step, TotalSteps: t.total, Command: o.Command, Console: o.Console, TTY: o.TTY})
	if err != nil {
		return t, err
	}
	t.log = t.rec.Log()
	if t.peak, err = measurePeak(t.be); err != nil {
		return t, err
	}
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
		return false, fmt.Errorf("%w: trainer: %s: holds %q and no run: nothing is overwritten: give another --output", ErrConfig, run, foreign)
	}
	return false, nil
}

const configName = "config.yaml"

// unborn are the files of a run that was ended before it began, be it in the middle of
// writing them.
var unborn = []string{".lock", ".lock.holder", vfs.TempName(".lock.holder"), vfs.TempName(configName)}

// settle writes the first files of the run, once nothing but the disk can fail.
func (t *Trainer) settle(s start) (err error) {
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
	inPlace bool // dir lies in the output folder: the run goes on
	notes   []string
}

func (t *Trainer) findStart(run string) (s start, err error) {
	find := checkpoint.Latest // a folder without a run is not written to
	if t.lock != nil {
		find = checkpoint.Recover
	}
	step, dir, notes, err := find(t.fs, run)
	s.notes = notes
	switch {
	case err == nil:
		s.dir, s.inPlace, t.saved, t.verified[step] = dir, true, step, true
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
		return s, fmt.Errorf("%w: trainer: both a student (model.path %s) and a run to start from (trainer.resume_from %s): the student is the run's: leave out --model", ErrConfig, t.cfg.Model.Path, t.cfg.Trainer.Resume)
	}
	if s.state, err = readState(t.fs, s.dir); err != nil {
		return s, err
	}
	if s.inPlace && s.state.Stage != t.Stage {
		return s, fmt.Errorf("%w: trainer: %s: holds a run of stage %s, not %s: give another --output", ErrConfig, run, s.state.Stage, t.Stage)
	}
	if !s.inPlace && t.Stage == Train && !s.state.Stage.hasCritic() {
		return s, fmt.Errorf("%w: trainer: %s: is %s and has no discriminator: run gad warmup --model %s first", ErrConfig, t.cfg.Trainer.Resume, s.state.Stage.aRun(), filepath.Join(s.dir, "actor"))
	}
	return s, nil
}

// FindCheckpoint is path itself if it is a checkpoint, else the newest one of
// the run path that verifies; notes say which newer ones did not.
func FindCheckpoint(fsys vfs.FS, path string) (dir string, notes []string, err error) {
	if strings.HasPrefix(filepath.Base(filepath.Clean(path)), "global_step_") {
		return path, nil, checkpoint.Verify(fsys, path)
	}
	_, dir, notes, err = checkpoint.Latest(fsys, path)
	if errors.Is(err, checkpoint.ErrNone) {
		err = fmt.Errorf("%w: give a run folder that holds a global_step_N, or one of those", err)
	}
	return dir, notes, err
}

// StageOf is the stage that made the run or checkpoint at path.
func StageOf(fsys vfs.FS, path string) (Stage, error) {
	dir := filepath.Clean(path)
	if !strings.HasPrefix(filepath.Base(dir), "global_step_") {
		steps, err := checkpoint.Steps(fsys, dir)
		if err != nil {
			return "", err
		}
		if len(steps) == 0 {
			return "", checkpoint.ErrNone
		}
		dir = filepath.Join(dir, fmt.Sprintf("global_step_%d", steps[len(steps)-1]))
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
	if t.tok, err = tokenizer.Load(t.actorDir(*s)); err != nil {
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
	if s.inPlace {
		t.step = s.state.Step
		t.best, t.good = s.state.Best, s.state.Good
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
	if n := c.Data.MaxPrompt + c.Data.MaxResponse; cfg.MaxPosition > 0 && n > cfg.MaxPosition {
		return fmt.Errorf("%w: model: %s: data.max_prompt_length + data.max_response_length = %d, but max_position_embeddings is %d: lower them", ErrConfig, from, n, cfg.MaxPosition)
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
	if t.actor, err = actor.Open(t.be, from, c.Actor, c.Rollout, updates, c.Data.MaxResponse); err != nil {
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
	t.actor.ScheduleFrom(t.before.Actor)
	if t.Stage == DPO {
		t.dpo, err = algos.NewDPO[float64](c.DPO.objective())
	}
	if !t.Stage.hasCritic() {
		return err
	}
	scorer := from
	carried := s.dir != "" && s.state.Stage.hasCritic() && (s.inPlace || c.Model.RewardPath == "")
	switch {
	case carried:
		scorer = filepath.Join(s.dir, "critic")
	case c.Model.RewardPath != "":
		scorer = c.Model.RewardPath // given beside --resume, it takes the place of the checkpoint's
	}
	steps := t.planned + max(0, t.lastAlone()-c.Trainer.CriticWarmup) // whenever its time alone ends: a schedule is fixed beforehand
	if err := c.Critic.Schedule(steps, batch).Validate(); err != nil {
		return fmt.Errorf("%w: critic.optim: %w", ErrConfig, err)
	}
	if t.critic, err = critic.Open(t.be, scorer, c.Critic, steps, batch, t.seed()); err != nil {
		return err
	}
	t.critic.Model().Share(t.actor.Model()) // they take turns
	if v := t.critic.Model().Config().Vocab; t.tok.Size() > v {
		return fmt.Errorf("model: %s: vocabulary of %d, but the student's tokenizer has %d tokens: the discriminator reads the student's tokens: give a --reward-model with the same tokenizer", scorer, v, t.tok.Size())
	}
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
		return fmt.Errorf("%w: critic.replay.live=false wants the pool of an earlier stage, and there is none: keep one in the warm-up (critic.replay.size=4096) and here", ErrConfig)
	}
	if s.inPlace {
		t.kl.Coef = s.state.KLCoef
	} else {
		t.before.Critic = t.critic.Optimizer().Steps()
	}
	t.critic.ScheduleFrom(t.before.Critic)
	return nil
}

// openReference keeps the student as it was at the start in the run's own folder,
// so that the run can go on wherever it was resumed from is gone.
func (t *Trainer) openReference(s start) (err error) {
	if !t.cfg.needsReference(t.Stage) {
		return nil
	}
	dir := filepath.Join(t.cfg.Trainer.Output, "reference")
	switch _, err := t.fs.Stat(dir); {
	case s.inPlace && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reference: %s: is missing, and the run has trained since: restore it, or start a new --output", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reference: %w", err)
	case !s.inPlace: // what an earlier attempt left may be of another student
		if err := t.fs.RemoveAll(dir); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		if err := WriteFolder(t.fs, dir, t.actor.Model(), t.tok, "float32"); err != nil {
			return err
		}
	}
	if t.reference, err = reference.Open(t.be, dir, t.cfg.Actor.MaxTokenLen); err != nil {
		return err
	}
	t.reference.Model().Share(t.actor.Model())
	return nil
}

// introduce says what the run is about to do.
func (t *Trainer) introduce(s start) {
	for _, note := range append(s.notes, t.cfg.Warnings(t.Stage)...) {
		t.log.Warn(note)
	}
	run := t.cfg.Trainer.Output
	if w := s.state.Disc.deaf(s.dir); w != "" && t.Stage == Train && !s.inPlace && t.cfg.Model.RewardPath == "" {
		t.log.Warn(w)
	}
	if t.Stage == Warmup && t.cfg.Trainer.CriticWarmup >= t.planned && t.cfg.Trainer.CriticWarmupUntil == 0 {
		t.log.Warn(fmt.Sprintf("trainer.critic_warmup %d is not below the %d steps of the run: the student will not learn", t.cfg.Trainer.CriticWarmup, t.planned))
	}
	p := Plan{Stage: t.Stage, PromptMean: float64(t.cfg.Data.MaxPrompt), AnswerMean: float64(t.cfg.Data.MaxResponse)}
	p.Memory = p.planMemory(t.be, t.actor.Model().Config(), t.cfg)
	if need, free := total(p.Memory), t.free; free > 0 && need > free {
		t.log.Warn(fmt.Sprintf("memory: the plan needs up to %s, %s were available: see gad plan for what to lower", bytesText(need), bytesText(free)))
	}
	switch {
	case t.step >= t.total:
		t.log.Info(fmt.Sprintf("%s: already finished: %d steps are done, %d were asked for (%s): nothing to do; raise trainer.total_steps or trainer.total_epochs to go on", run, t.step, t.total, s.dir))
		return
	case s.inPlace:
		t.log.Info(fmt.Sprintf("%s: going on after step %d of %d", run, t.step, t.total))
	case s.dir != "":
		t.log.Info(fmt.Sprintf("%s: %s from %s, %d steps", run, t.Stage, s.dir, t.total))
	default:
		t.log.Info(fmt.Sprintf("%s: %s of %s, %d steps", run, t.Stage, t.cfg.Model.Path, t.total))
	}
	c := t.actor.Model().Config()
	t.log.Info(fmt.Sprintf("student %s, %s parameters; %d rows, %d prompts a step%s; %s",
		c.Architecture, human(float64(c.ParamCount(model.LM))), len(t.rows), t.cfg.Data.TrainBatchSize, t.answers(), t.be.Name()))
}

func (t *Trainer) answers() string {
	if !t.Stage.hasCritic() {
		return ""
	}
	return fmt.Sprintf(" x %d answers", t.cfg.Rollout.N)
}

// Run takes the remaining steps. When ctx ends, sampling ends before its next token
// and the step that it belongs to is given up; any other part of a step, and a
// validation, is finished first. Then the run is saved, and the error is
// ErrInterrupted. The last entry of log.jsonl says how the run ended.
func (t *Trainer) Run(ctx context.Context) error {
	if t.step >= t.total {
		return t.rec.Sync()
	}
	t.ctx = ctx
	t.actor.Stop = func() bool {
		select { // not ctx.Err: it is asked once a step
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	defer func() {
		if r := recover(); r != nil {
			t.rec.End(report.Failed, fmt.Sprintf("step %d: panic: %v", t.step+1, r))
			panic(r)
		}
	}()
	for t.step < t.total {
		stopped, err := t.advance(ctx)
		if err != nil {
			t.rec.End(endOf(err), err.Error())
			if failed := t.rec.Sync(); failed != nil && !errors.Is(err, failed) {
				err = errors.Join(err, failed)
			}
			return err
		}
		if stopped && t.step < t.total {
			done := fmt.Sprintf("stopped and saved after step %d of %d", t.step, t.total)
			if t.step == 0 {
				done = fmt.Sprintf("stopped before step 1 of %d was done", t.total)
			}
			t.rec.End(report.Interrupted, done+": run the same command again to go on")
			return ErrInterrupted
		}
	}
	if w := t.disc.deaf(t.cfg.Trainer.Output); w != "" && t.Stage == Warmup {
		t.log.Warn(w)
	}
	t.rec.End(report.Finished, fmt.Sprintf("done: %s", filepath.Join(t.cfg.Trainer.Output, fmt.Sprintf("global_step_%d", t.step))))
	return t.rec.Sync()
}

// Abort notes in log.jsonl that the run is about to be ended without a save. It may
// be called from another goroutine than Run's.
func (t *Trainer) Abort(why string) {
	if t.checker != nil {
		t.checker.Kill()
	}
	t.rec.End(report.Aborted, why)
}

// endOf is how a run ends with the error err.
func endOf(err error) report.End {
	switch {
	case errors.Is(err, checkpoint.ErrSpace):
		return report.DiskFull
	case errors.Is(err, ErrNumerical):
		return report.Numerical
	case errors.Is(err, compute.ErrMemory):
		return report.OutOfMemory
	}
	return report.Failed
}

// advance takes one step, records it, and validates and saves where that is due;
// stopped reports that ctx has ended and the run is saved.
func (t *Trainer) advance(ctx context.Context) (stopped bool, err error) {
	begun := time.Now()
	step, cursor := t.step+1, t.order.State()
	var m Metrics
	defer func() {
		if err == nil {
			return
		}
		if errors.Is(err, model.ErrNotFinite) && !errors.Is(err, ErrNumerical) {
			err = fmt.Errorf("%w: %w", ErrNumerical, err)
		}
		err = checkpoint.ExplainFull(t.fs, t.cfg.Trainer.Output, t.checkpointBytes(), fmt.Errorf("trainer: step %d: %w", step, err))
		if errors.Is(err, ErrNumerical) {
			if failed := t.dump(step, m, err); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}()
	m, err = t.next()
	if errors.Is(err, model.ErrStopped) { // nothing has been learned in this step
		if err := t.order.Restore(cursor); err != nil {
			return false, err
		}
		if t.step == t.saved {
			return true, nil
		}
		return true, t.save(nil, false)
	}
	if err != nil {
		return false, err
	}
	t.step++
	t.endAlone()
	c, last := t.cfg.Trainer, t.step >= t.total
	planned := t.due(c.SaveFreq, last)
	if t.val != nil && (t.due(c.TestFreq, last) || c.KeepBest != "" && planned) {
		if err := m.time("timing_s/val", func() error { return t.validate(m) }); err != nil {
			return false, err
		}
	}
	t.performance(m, t.done, time.Since(begun).Seconds())
	if err := t.rec.Step(t.step, m); err != nil {
		return false, err
	}
	stopped = ctx.Err() != nil
	if planned || stopped {
		return stopped, t.save(m, planned)
	}
	return false, nil
}

func (t *Trainer) next() (m Metrics, err error) {
	switch t.Stage {
	case SFT:
		m, err = t.sftStep()
	case DPO:
		m, err = t.dpoStep()
	default:
		m, err = t.Step()
	}
	if err != nil {
		return m, err
	}
	m["train/epoch"] = t.order.Epoch()
	return m, nil
}

// dump writes down what is known of the step at which the numbers broke down.
func (t *Trainer) dump(step int, m Metrics, cause error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "step %d\n%v\ndata rows %v\n", step, cause, t.stepRows)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s %g\n", name, m[name])
	}
	return vfs.WriteFile(t.fs, filepath.Join(t.cfg.Trainer.Output, "numerical_stop.txt"), []byte(b.String()))
}

func (t *Trainer) due(freq int, last bool) bool { return last || freq > 0 && t.step%freq == 0 }

// nextRows is the next n rows in the data's keyed order.
func (t *Trainer) nextRows(n int) []int {
	return model.Pick(t.rows, t.order.Next(n))
}

// phase runs f as a timed stretch of the step with a bar of its own: passes times
// the tokens of seqs through m.
func (t *Trainer) phase(into Metrics, name string, m *model.Model, seqs []model.Seq, passes int, f func() error) error {
	tokens := 0
	for _, s := range seqs {
		tokens += passes * len(s.IDs)
	}
	advance, done := t.rec.Stage(name, tokens)
	m.Watch(advance)
	defer func() { m.Watch(nil); done() }()
	return into.time("timing_s/"+name, f)
}

// samples writes what the step's first prompts were answered.
func (t *Trainer) samples(r *round, advS []float64) error {
	n := min(t.cfg.Trainer.SaveSamples, len(r.batch.Rows))
	if n == 0 {
		return nil
	}
	var out []report.Sample
	for s, seq := range r.roll.Seqs {
		p := r.roll.Group[s]
		if p >= n {
			continue
		}
		out = append(out, report.Sample{Row: r.batch.Rows[p], Prompt: r.batch.PromptText[p], Teacher: r.batch.TeacherText[p],
			Student:      t.tok.Decode(seq.IDs[seq.Prompt:], true),
			StudentScore: float64(r.scoreS[s]), TeacherScore: float64(r.scoreP[p]), Advantage: advS[s]})
	}
	return t.rec.Samples(t.step+1, out)
}

// performance adds speed and memory. work is what the step computed.
func (t *Trainer) performance(m Metrics, w work, seconds float64) {
	m["timing_s/step"] = seconds
	if t.saveTime > 0 { // the checkpoint after the step before: a step's line is written before its checkpoint
		m["timing_s/save"], t.saveTime = t.saveTime, 0
	}
	m["perf/tokens_per_s"] = float64(w.tokens) / seconds
	m["perf/tflops"] = w.flops / seconds / 1e12
	if t.peak > 0 {
		m["perf/mfu"] = w.flops / seconds / t.peak
	}
	_, peak := t.be.Memory()
	m["perf/mem_peak_bytes"] = float64(peak)
}

// work counts a step's tokens and the floating-point operations that they need.
type work struct {
	tokens int
	flops  float64
}

// add counts passes over seqs: 1 for a forward pass, 3 for forward and backward.
func (w *work) add(c model.Config, seqs []model.Seq, passes float64, head bool) {
	for _, s := range seqs {
		n := float64(len(s.IDs))
		w.flops += passes * n * c.FLOPsPerToken(n/2, head)
	}
}

// stepWork counts a step of the game; r is nil in SFT.
func (t *Trainer) stepWork(b *Batch, r *actor.Rollout) (w work) {
	c := t.actor.Model().Config()
	for _, s := range b.Teachers {
		w.tokens += len(s.IDs)
	}
	if r == nil {
		w.add(c, b.Teachers, 3, true)
		return w
	}
	for _, s := range r.Seqs {
		w.tokens += len(s.IDs)
	}
	forward := 2.0 // rollout and old
	if t.reference != nil {
		forward++
	}
	w.add(c, r.Seqs, forward, true)
	critic := 1 + 3*float64(t.cfg.Critic.PPOEpochs)
	w.add(c, r.Seqs, critic, false)
	w.add(c, b.Teachers, critic, false)
	switch {
	case t.criticAlone():
	case t.learnsTeacher():
		w.add(c, b.Teachers, 3, true)
	default:
		w.add(c, r.Seqs, 3*float64(t.cfg.Actor.PPOEpochs), true)
	}
	return w
}

// measurePeak is the speed of a large matrix product, in floating-point
// operations a second: what perf/mfu is a share of. The product is made larger
// until it takes a millisecond: a GPU is not busy with less.
func measurePeak(be compute.Backend) (peak float64, err error) {
	for n := 768; n <= 8192; n *= 2 {
		best, err := timeProduct(be, n)
		if err != nil {
			return 0, err
		}
		peak = 2 * math.Pow(float64(n), 3) / best.Seconds()
		if best > time.Millisecond {
			break
		}
	}
	return peak, nil
}

// timeProduct is the shortest time of a product of two matrices [n, n].
func timeProduct(be compute.Backend, n int) (best time.Duration, err error) {
	var t [3]compute.Tensor
	for i := range t {
		if t[i], err = be.Alloc("peak measurement", compute.Narrow, n*n); err != nil {
			return 0, err
		}
		defer be.Free(t[i])
	}
	w := &compute.Param{Name: "peak measurement", Shape: []int{n, n}, Rows: n, Cols: n, W: t[0]}
	be.Refresh(w)
	best = math.MaxInt64
	for range 4 {
		start := time.Now()
		be.Linear(t[1], t[2], w, nil, false)
		if err := be.Sync(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}

// Close frees everything and gives the run folder back. It does not save.
func (t *Trainer) Close() error {
	var errs []error
	if t.rec != nil {
		errs = append(errs, t.rec.Close())
	}
	if t.actor != nil {
		errs = append(errs, t.actor.Close())
	}
	if t.critic != nil {
		errs = append(errs, t.critic.Close())
	}
	if t.reference != nil {
		errs = append(errs, t.reference.Close())
	}
	if t.dpo != nil {
		errs = append(errs, t.dpo.Close())
	}
	errs = append(errs, t.closeJudges())
	for _, set := range []*data.Set{t.set, t.val} {
		if set != nil {
			errs = append(errs, set.Close())
		}
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Unlock())
	}
	return errors.Join(errs...)
}

// human is n with a unit of thousands.
func human(n float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		if math.Abs(n) < 999.5 {
			if unit == "" {
				return fmt.Sprintf("%.0f", n)
			}
			return fmt.Sprintf("%.3g%s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3gP", n)
}
