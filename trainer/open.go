package trainer

import (
	"fmt"

	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// Open prepares a run. If the output folder holds an unfinished or finished run of the same stage,
// that run is resumed; a folder with other files is refused. Nothing is written before all inputs
// have been read and checked. The caller closes the Trainer.
func Open(cfg config.Config, stage config.Stage, o Options) (t *Trainer, err error) {
	if o.Backend == nil {
		return nil, fmt.Errorf("%w: trainer: Options.Backend is nil: open one with device.Open",
			config.ErrConfig)
	}
	o.FS = vfs.OrDisk(o.FS)
	if err := cfg.Validate(stage); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	if o.Ranks.Rank() > 0 {
		o.Console, o.TTY = nil, false // rank 0 speaks
	}
	t = &Trainer{Stage: stage, cfg: cfg, fs: o.FS, be: o.Backend, ranks: o.Ranks,
		past:   progress{verified: map[int]bool{}, skipped: map[string]int{}},
		warned: map[string]bool{}, con: report.NewConsole(o.Console, o.TTY)}
	t.judges.t = t
	s := &start{lateNotes: o.Notes, preset: o.Preset, teachers: o.Teachers,
		free: o.Backend.Available()}
	defer func() {
		if err != nil {
			err = checkpoint.ExplainFull(o.FS, cfg.Trainer.Output, 0, err)
			t.ranks.Abort(err)
			t.Close()
			t = nil
		}
	}()
	run := cfg.Trainer.Output
	if err := t.joinRanks(s); err != nil {
		return t, err
	}
	err = t.rankZeroFirst("the run's folder", func() (err error) {
		if t.first() {
			if err := t.claim(run); err != nil {
				return err
			}
		}
		return t.findStart(s, run)
	})
	if err != nil {
		return t, err
	}
	if err := t.requireSame("checkpoints to start from", s.dir); err != nil {
		return t, err
	}
	t.stage, t.form = stages[stage].make(basic{t, stage}, s), newForm(t)
	if err := t.rankZeroFirst("the data", func() error { return t.openData(s) }); err != nil {
		return t, err
	}
	if err := t.requireSameInputs(); err != nil {
		return t, err
	}
	if err := t.chooseSlots(s); err != nil {
		return t, err
	}
	// Before the models take the memory that the run is planned for.
	err = t.busy("timing a matrix product", func() (err error) {
		t.meter.peak, err = measurePeak(t.be)
		t.meter.peak *= float64(t.ranks.Size())
		return err
	})
	if err != nil {
		return t, err
	}
	if err := t.openModels(s); err != nil {
		return t, err
	}
	if err := t.judges.open(s); err != nil {
		return t, err
	}
	if err := t.form.open(); err != nil {
		return t, err
	}
	if s.inPlace && t.step >= t.total {
		run = "" // finished: say so, and change nothing
	} else if err := t.settle(s); err != nil {
		return t, err
	}
	if err := t.splitWork(); err != nil {
		return t, err
	}
	if err := t.requireSameWeights(true); err != nil {
		return t, err
	}
	if !t.first() {
		run = ""
	}
	t.rec, err = report.Open(t.fs, run,
		report.Options{ResumeStep: t.step, TotalSteps: t.total, Command: o.Command, Console: t.con})
	if err != nil {
		return t, err
	}
	t.log = t.rec.Log()
	t.introduce(s)
	return t, nil
}

// busy runs f, and shows name on the console if f takes a while.
func (t *Trainer) busy(name string, f func() error) error {
	_, done := t.con.Busy(name, 0)
	defer done()
	return f()
}
