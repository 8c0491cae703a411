package trainer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gad/checkpoint"
	"gad/internal/conf"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/plan"
	"gad/trainer/saved"
)

// start is where a run begins, and the notes collected while it opens.
type start struct {
	dir     string // checkpoint; empty for a fresh run from model.path
	state   saved.State
	inPlace bool     // dir lies in the output folder: the run is resumed
	notes   []string // warnings
	infos   []string // lines to print at the start that are no warnings

	// set before the run opens, or while it does
	lateNotes  []string          // warnings to print after notes
	preset     []string          // Options.Preset
	teachers   map[string]Scores // Options.Teachers
	deviceLink string            // how the ranks' devices are connected; "": not at all
	free       int64             // bytes of memory that were available when the run began; 0: unknown
	student    string            // folder of the student's weights
	slots      int               // rollout.max_num_seqs of the settings; 0: chosen by the memory
}

// findStart finds the checkpoint to resume from, in the run's own folder or in another run's.
func (t *Trainer) findStart(s *start, run string) (err error) {
	kind, find := t.Stage, checkpoint.Latest // a folder without a run is not written to
	if t.lock != nil {
		find = checkpoint.Recover
	}
	_, done := t.con.Busy("verifying checkpoints", 0)
	step, dir, notes, err := find(t.fs, run)
	done()
	s.notes = notes
	switch {
	case err == nil:
		s.dir, s.inPlace, t.past.verified[step] = dir, true, true
		t.past.saved.Store(int64(step))
	case !errors.Is(err, checkpoint.ErrNone):
		return err
	case t.cfg.Trainer.Resume != "":
		if s.dir, s.notes, err = saved.Find(t.fs, t.cfg.Trainer.Resume); err != nil {
			return err
		}
	case kind == config.Train:
		return fmt.Errorf(
			"%w: train starts from a warm-up checkpoint: give --resume RUN (made by gad warmup)",
			config.ErrConfig)
	}
	if s.dir == "" {
		return nil
	}
	if !s.inPlace && t.cfg.Model.Path != "" {
		return fmt.Errorf("%w: trainer: model.path %s and trainer.resume_from %s are both set: the student comes from the run: leave out --model", config.ErrConfig, t.cfg.Model.Path, t.cfg.Trainer.Resume)
	}
	if !s.inPlace && t.cfg.Model.Adapter != "" {
		return fmt.Errorf("%w: trainer: model.adapter_path %s and trainer.resume_from %s are both set: the adapters come from the run: leave out --adapter", config.ErrConfig, t.cfg.Model.Adapter, t.cfg.Trainer.Resume)
	}
	if s.state, err = saved.Read(t.fs, s.dir); err != nil {
		return err
	}
	if s.inPlace {
		if err := config.CheckFixed(s.state.Fixed, t.cfg.Fixed(), run); err != nil {
			return err
		}
	}
	if s.inPlace && s.state.Stage != kind {
		return fmt.Errorf("%w: trainer: %s: contains a run of stage %s, not %s: give another --output",
			config.ErrConfig, run, s.state.Stage, kind)
	}
	if !s.inPlace && kind == config.Train && !s.state.Stage.HasCritic() {
		return fmt.Errorf(
			"%w: trainer: %s: is %s and has no discriminator: run gad warmup --model %s first",
			config.ErrConfig, t.cfg.Trainer.Resume, s.state.Stage.ARun(),
			filepath.Join(s.dir, "actor"))
	}
	return nil
}

// chooseSlots sets rollout.max_num_seqs where it is 0: as the run began with it, since a GPU's bits
// depend on it, or else as many as the memory has room for, on several ranks on the smallest.
func (t *Trainer) chooseSlots(s *start) error {
	if s.slots = t.cfg.Rollout.MaxNumSeqs; s.slots > 0 {
		return nil
	}
	n := s.state.Slots
	if !s.inPlace {
		shape, err := model.ReadConfig(t.actorDir(s))
		if err != nil {
			return err
		}
		n = plan.Slots(t.be, s.free, shape, t.cfg, t.Stage, t.ranks.Size())
	}
	if t.ranks.Size() > 1 {
		all, err := t.ranks.Gather("rollout.max_num_seqs",
			binary.LittleEndian.AppendUint64(nil, uint64(n)))
		if err != nil {
			return err
		}
		for _, other := range all {
			n = min(n, int(binary.LittleEndian.Uint64(other)))
		}
	}
	if n > model.DefaultSlots {
		t.past.slots = n
		s.infos = append(s.infos, fmt.Sprintf("up to %d answers are sampled at the same time, as the memory has room (rollout.max_num_seqs)", n))
	}
	t.cfg.Rollout.MaxNumSeqs = max(n, model.DefaultSlots)
	return nil
}

// claim locks the folder if it holds a run. A missing or empty folder is not touched until all
// inputs have been checked (settle). Any other folder is refused.
func (t *Trainer) claim(run string) error {
	isRun, err := t.isRun(run)
	if err != nil || !isRun {
		return err
	}
	if t.lock, err = checkpoint.LockRun(run); errors.Is(err, vfs.ErrTarget) {
		err = fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	return err
}

// isRun reports whether the folder holds a run; false: it is missing or empty. It fails on a folder
// of other files.
func (t *Trainer) isRun(run string) (bool, error) {
	entries, err := t.fs.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: trainer: %s: cannot be the run folder: %w", config.ErrConfig,
			run, err)
	}
	foreign := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case name == saved.ConfigName || strings.HasPrefix(name, "global_step_"):
			return true, nil
		case !slices.Contains(leftovers, name):
			foreign = name
		}
	}
	if foreign != "" {
		return false, fmt.Errorf("%w: trainer: %s: contains %q but no run: nothing is overwritten: give another --output", config.ErrConfig, run, foreign)
	}
	return false, nil
}

// leftovers lists the files of a run that was killed before its first commit, perhaps while it
// wrote them.
var leftovers = []string{".lock", ".lock.holder", vfs.TempName(".lock.holder"),
	vfs.TempName(saved.ConfigName)}

// settle writes the first files of the run, when only the disk can still fail, and opens the
// reference. Ranks other than 0 only open the reference.
func (t *Trainer) settle(s *start) (err error) {
	if !t.first() {
		return t.openReference(s)
	}
	run := t.cfg.Trainer.Output
	if t.lock == nil {
		if t.lock, err = checkpoint.LockRun(run); errors.Is(err, vfs.ErrTarget) {
			return fmt.Errorf("%w: %w", config.ErrConfig, err)
		} else if err != nil {
			return err
		}
		if began, err := t.isRun(run); err != nil {
			return err
		} else if began {
			return fmt.Errorf("trainer: %s: %w: another process began a run there just now: give another --output", run, checkpoint.ErrLocked)
		}
	}
	stored := t.cfg.Absolute()
	stored.Rollout.MaxNumSeqs = s.slots // a later stage leaves other memory
	resolved, err := conf.Marshal(&stored)
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(t.fs, filepath.Join(run, saved.ConfigName), resolved); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	return t.openReference(s)
}
