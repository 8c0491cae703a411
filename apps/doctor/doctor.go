// Package doctor examines the folder of a run: how the run ended, whether it can be resumed, and
// the signs of a sick run in its metrics (doctor.go). It also measures the distance between the
// weights of two models (apart.go). It changes nothing.
package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/safetensors"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// Examination is the result of examining a run's folder: how the run ended, whether it can be
// resumed, and the signs of a sick run in its metrics.
type Examination struct {
	Run         string
	Stage       config.Stage
	Step, Total int // of the checkpoint that would be resumed
	Last        report.LastWord
	Holder      string // process that has locked the folder
	Checkpoints []Examined
	Resume      string // name of the checkpoint that would be resumed
	// bytes of the next save, and free on the disk; Need 0: unknown, Free -1: not reported
	Need, Free int64
	Steps      int  // number of steps in the metrics
	Enough     bool // the metrics have enough steps to judge
	Findings   []report.Finding
	Settings   []string // warnings about settings that are allowed and rarely right
	// |now - was| / |was| of the student's weights since MovedFrom; nil: not measured
	Moved     *float64
	MovedFrom string // the reference, or a checkpoint

	kept []config.Fixed      // settings at the start of the run
	disc saved.Discriminator // of the newest checkpoint

	// Sick lists the problems that resuming as it is would meet.
	Sick []string
}

// Examined is one checkpoint of an examined run.
type Examined struct {
	Name   string
	Digest string // SHA-256 of its manifest
	Bytes  int64
	Err    error
}

// Examine examines a run folder and changes nothing in it. It reads all bytes of all checkpoints.
func Examine(fsys checkpoint.FS, run string) (*Examination, error) {
	fsys = vfs.OrDisk(fsys)
	x := &Examination{Run: run, Free: -1}
	if strings.HasPrefix(filepath.Base(filepath.Clean(run)), "global_step_") {
		return nil, fmt.Errorf("%w: trainer: %s: is a checkpoint: give its run, %s",
			config.ErrConfig, run, filepath.Dir(filepath.Clean(run)))
	}
	if _, err := fsys.Stat(run); errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf(
				"%w: trainer: %s: no such folder: give the --output of gad %s",
				config.ErrConfig, run, config.StageNames())
	}
	if _, err := fsys.Stat(filepath.Join(run, saved.ConfigName)); err != nil {
		steps, lerr := checkpoint.Steps(fsys, run)
		if err := errors.Join(lerr, err); lerr != nil || len(steps) == 0 {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: trainer: %s: contains no run: give the --output of gad %s",
					config.ErrConfig, run, config.StageNames())
			}
			return nil, err
		}
	}
	cfg := config.Default()
	unread := cfg.Load(filepath.Join(run, saved.ConfigName))
	if unread != nil {
		x.sick("it cannot be resumed, since config.yaml cannot be read: %v", unread)
	}
	var err error
	if x.Holder, err = checkpoint.Holder(run); err != nil {
		return nil, err
	}
	if x.Last, err = report.ReadLastWord(fsys, run); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := x.examineCheckpoints(fsys); err != nil {
		return nil, err
	}
	if err := config.CheckFixed(x.kept, cfg.Fixed(), run); err != nil && unread == nil {
		x.sick("its config.yaml has been edited: %v", err)
	}
	if err := x.examineStart(fsys, &cfg); err != nil {
		return nil, err
	}
	x.examineEnd()
	if x.Free, err = fsys.Free(run); errors.Is(err, errors.ErrUnsupported) {
		x.Free = -1
	} else if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	} else if x.Need > x.Free {
		x.sick("the disk has too little room for the next save: free %s",
			report.Bytes(x.Need-x.Free))
	}
	return x, x.examineMetrics(fsys)
}

// sick adds a problem.
func (x *Examination) sick(format string, args ...any) {
	x.Sick = append(x.Sick, fmt.Sprintf(format, args...))
}

// examineCheckpoints verifies each checkpoint and finds the one to resume from.
func (x *Examination) examineCheckpoints(fsys vfs.FS) error {
	steps, err := checkpoint.Steps(fsys, x.Run)
	if err != nil {
		return err
	}
	for _, step := range steps {
		e := Examined{Name: fmt.Sprintf("global_step_%d", step)}
		dir := filepath.Join(x.Run, e.Name)
		e.Digest, e.Bytes, e.Err = checkpoint.Inspect(fsys, dir)
		if errors.Is(e.Err, fs.ErrNotExist) && x.Holder != "" {
			continue // pruned during the reading
		}
		if e.Err == nil {
			s, err := saved.Read(fsys, dir)
			if err != nil {
				return err
			}
			x.Resume, x.Stage, x.Step, x.Total, x.kept, x.disc =
				e.Name, s.Stage, s.Step, s.Total, s.Fixed, s.Disc
			x.Need = e.Bytes + 1<<20 // upper bound, as checkpointBytes
		} else {
			x.sick("%s does not verify", e.Name)
		}
		x.Checkpoints = append(x.Checkpoints, e)
	}
	return nil
}

// examineStart examines the inputs of the run: the frozen reference, without which it cannot be
// resumed, and settings that are rarely right.
func (x *Examination) examineStart(fsys vfs.FS, cfg *config.Config) error {
	if x.Resume == "" {
		return nil
	}
	x.Settings = cfg.Warnings(x.Stage)
	if w := x.disc.NotLearned(x.Run); w != "" && x.Stage == config.Warmup && x.Step >= x.Total {
		x.sick("%s", w)
	}
	dir := filepath.Join(x.Run, saved.ReferenceDir)
	if !cfg.NeedsReference(x.Stage) {
		dir = ""
	} else if _, err := fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		x.sick("it cannot be resumed: %v", saved.MissingReference(dir))
		dir = ""
	} else if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	x.examineWeights(dir)
	return nil
}

// examineWeights measures how far training has moved the student: from the frozen reference in dir,
// or, if dir is "", from the oldest checkpoint. It measures nothing without another checkpoint, or
// between adapters and whole weights.
func (x *Examination) examineWeights(dir string) {
	from := saved.ReferenceDir
	if dir == "" {
		oldest := slices.IndexFunc(x.Checkpoints, func(e Examined) bool { return e.Err == nil })
		if from = x.Checkpoints[oldest].Name; from == x.Resume {
			return
		}
		dir = filepath.Join(x.Run, from, "actor")
	}
	moved, err := movedBy(dir, filepath.Join(x.Run, x.Resume, "actor"))
	switch {
	case err != nil && x.Holder == "": // while a run continues, a checkpoint may have been pruned
		x.sick("the student's weights cannot be read: %v", err)
	case err == nil && !math.IsNaN(moved):
		x.Moved, x.MovedFrom = &moved, from
	}
}

// movedBy returns the relative difference of two folders' weights, or adapters, |now - was| / |was|
// over all tensors (L2); NaN if the tensors differ in name or shape.
func movedBy(was, now string) (float64, error) {
	_, all, err := distances(was, now)
	if errors.Is(err, errOther) {
		return math.NaN(), nil
	}
	return all.Relative(), err
}

// openWeights is the open tensors of a folder.
type openWeights interface {
	Names() []string
	Tensor(name string) (*safetensors.Tensor, bool)
	Close() error
}

// weightsOf opens a folder's weights, or its adapters if it has no weights.
func weightsOf(dir string) (openWeights, error) {
	whole, err := safetensors.OpenFolder(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return whole, err
	}
	adapters, missing := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if missing != nil {
		return nil, err
	}
	return adapters, nil
}

// examineEnd adds an end that may happen again.
func (x *Examination) examineEnd() {
	if x.Holder != "" {
		return
	}
	switch x.Last.End {
	case report.Numerical, report.OutOfMemory, report.Failed:
		x.sick("it ended with an error that may happen again: %s", x.Last.End)
	}
}

// examineMetrics looks for gaps in the metrics and for the signs of a sick run.
func (x *Examination) examineMetrics(fsys vfs.FS) error {
	rows, err := report.ReadMetrics(fsys, x.Run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.sick("the metrics are damaged: %v", err)
		return nil
	}
	x.Steps = len(rows)
	if x.Steps > 0 && x.Resume == "" && x.Holder == "" &&
		(x.Last.End == report.Finished || x.Last.End == report.Interrupted) {
		x.sick("it has saved, and no checkpoint is left")
	}
	for i, r := range rows {
		if r.Step != i+1 {
			x.sick("the metrics have a gap: step %d is missing", i+1)
			break
		}
	}
	if x.Steps < x.Step {
		x.sick("the metrics end at step %d, the checkpoint is of step %d", x.Steps, x.Step)
	}
	if x.Findings, x.Enough = report.Diagnose(rows); len(x.Findings) > 0 {
		for _, f := range x.Findings {
			x.sick("%s", f.Name)
		}
	}
	return nil
}

// String returns the examination for people, on one screen.
func (x *Examination) String() string {
	var b strings.Builder
	field := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	stage := "no checkpoint yet"
	if x.Resume != "" {
		stage = fmt.Sprintf("%s, step %d of %d", x.Stage, x.Step, x.Total)
	}
	field("run", "%s: %s", x.Run, stage)
	switch {
	case x.Holder != "":
		field("running", "by %s", x.Holder)
		field("last said", "%s  %s", clock(x.Last.At), x.Last.Text)
	case x.Last.End != "":
		field("ended", "%s  %s", clock(x.Last.At), x.Last.End)
		field("last said", "%s", x.Last.Text)
	case x.Last.At.IsZero():
		field("ended", "it has no log")
	default:
		field("ended", "unexpectedly: kill -9, a loss of power, or the system's memory killer")
		field("last said", "%s  %s", clock(x.Last.At), x.Last.Text)
	}
	switch {
	case x.Holder != "" || x.Last.End == report.Finished:
	case x.Resume == "":
		field("to resume", "the same command starts again")
	default:
		field("to resume", "the same command continues after step %d of %d", x.Step, x.Total)
	}
	const most = 8 // a screen
	shown := x.Checkpoints[max(0, len(x.Checkpoints)-most):]
	for i, c := range shown {
		name := ""
		if i == 0 {
			name = "checkpoints"
			if len(shown) < len(x.Checkpoints) {
				name = fmt.Sprintf("newest %d/%d", len(shown), len(x.Checkpoints))
			}
		}
		switch {
		case c.Err != nil:
			field(name, "%-17s DAMAGED   %v", c.Name, c.Err)
		case c.Name == x.Resume:
			field(name, "%-17s verified  %.12s  %s  <- would be resumed", c.Name, c.Digest,
				report.Bytes(c.Bytes))
		default:
			field(name, "%-17s verified  %.12s  %s", c.Name, c.Digest, report.Bytes(c.Bytes))
		}
	}
	if len(shown) == 0 {
		field("checkpoints", "none")
	}
	switch {
	case x.Free < 0:
		field("disk", "free space is not reported by the system")
	case x.Need == 0:
		field("disk", "%s free", report.Bytes(x.Free))
	default:
		field("disk", "%s for the next save, %s free", report.Bytes(x.Need), report.Bytes(x.Free))
	}
	again := ""
	if n := x.Steps - x.Step; n > 0 && x.Holder == "" {
		again = fmt.Sprintf(", the last %d to be repeated", n)
	}
	field("metrics", "%s%s", report.Count(x.Steps, "step"), again)
	if x.Moved != nil {
		field("weights", "moved by %.2g %% since %s", 100**x.Moved, x.MovedFrom)
	}
	for _, s := range x.Settings {
		field("setting", "%s", s)
	}
	switch {
	case len(x.Findings) > 0:
		for _, f := range x.Findings {
			field("sign", "%s: %s", f.Name, f.Seen)
			field("", "rule: %s", f.Doc)
			field("", "look first at: %s", f.Advice)
		}
	case !x.Enough:
		field("signs", "none, but the steps are too few for most of them")
	default:
		field("signs", "none")
	}
	if len(x.Sick) == 0 {
		b.WriteString("\nno problems found\n")
		return b.String()
	}
	b.WriteString("\nproblems: " + strings.Join(x.Sick, "\n          ") + "\n")
	return b.String()
}

// clock returns a local time as text.
func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
