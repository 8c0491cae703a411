package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gad/checkpoint"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/quality"
)

// Run takes the remaining steps. When ctx ends, sampling stops before its next token and the step
// that it belongs to is given up; a validation before the first step stops too. Any other part of a
// step, and any other validation, is finished first. Then the run is saved, and the error is
// ErrInterrupted. The last entry of log.jsonl says how the run ended.
func (t *Trainer) Run(ctx context.Context) error {
	if t.step >= t.total {
		if t.first() && !t.past.sick() {
			if err := t.prune(); err != nil { // a kill may have come between the save and its prune
				return err
			}
		}
		return t.rec.Sync()
	}
	if t.first() {
		err := checkpoint.CheckSpace(t.fs, t.cfg.Trainer.Output, t.checkpointBytes())
		if errors.Is(err, checkpoint.ErrSpace) {
			t.log.Warn(fmt.Sprintf("%v: the next checkpoint would fail, and the steps before it would be lost", err))
		}
	}
	t.ctx = ctx
	defer func() {
		if r := recover(); r != nil {
			t.rec.End(report.Failed, fmt.Sprintf("step %d: panic: %v", t.step+1, r))
			t.ranks.Abort(fmt.Errorf("step %d: panic: %v", t.step+1, r))
			panic(r)
		}
	}()
	for t.step < t.total {
		stopped, err := t.advance(ctx)
		if err != nil {
			t.rec.End(endOf(err), err.Error())
			t.ranks.Abort(err)
			if failed := t.rec.Sync(); failed != nil && !errors.Is(err, failed) {
				err = errors.Join(err, failed)
			}
			return err
		}
		if stopped && t.step < t.total {
			done := fmt.Sprintf("stopped and saved after step %d of %d", t.step, t.total)
			if t.step == 0 {
				done = fmt.Sprintf("stopped before step 1 of %d was finished, so nothing is saved",
					t.total)
			}
			t.rec.End(report.Interrupted, done+": run the same command again to resume")
			return ErrInterrupted
		}
	}
	if w := t.stage.warning(nil); w != "" {
		t.log.Warn(w)
	}
	t.watch()
	t.rec.End(report.Finished,
		fmt.Sprintf("done: %s",
			filepath.Join(t.cfg.Trainer.Output, fmt.Sprintf("global_step_%d", t.step))))
	return t.rec.Sync()
}

// Say prints a line on the console, above its bars. It may be called from another
// goroutine than Run's.
func (t *Trainer) Say(text string) { t.con.Print(text) }

// Abort notes in log.jsonl that the run ends without a save, and prints which checkpoint it will
// resume from. It may be called from another goroutine than Run's. The caller ends the process.
func (t *Trainer) Abort(why string) {
	t.judges.kill()
	t.form.kill()
	saved := int(t.past.saved.Load())
	where := fmt.Sprintf("%s: the same command resumes after step %d, the last checkpoint", why,
		saved)
	if saved == 0 {
		where = why + ": there is no checkpoint yet: the same command starts again at step 1"
	}
	t.rec.End(report.Aborted, where)
	t.con.Close() // its bars would stay on the screen
	t.con.Print(where)
}

// endOf returns the kind of end that log.jsonl records for the error err.
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
	startTime := time.Now()
	step, cursor := t.step+1, t.train.order.State()
	m := Metrics{}
	defer func() {
		if err == nil {
			return
		}
		if errors.Is(err, model.ErrNotFinite) && !errors.Is(err, ErrNumerical) {
			err = fmt.Errorf("%w: %w", ErrNumerical, err)
		}
		err = checkpoint.ExplainFull(t.fs, t.cfg.Trainer.Output, t.checkpointBytes(),
			fmt.Errorf("trainer: step %d: %w", step, err))
		if errors.Is(err, ErrNumerical) && t.first() {
			if failed := t.dump(step, m, err); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}()
	began, err := t.validateStart()
	if errors.Is(err, fault.ErrInterrupted) { // before anything was learned
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = t.next(m)
	if errors.Is(err, model.ErrStopped) { // nothing has been learned in this step
		if err := t.train.order.Restore(cursor); err != nil {
			return false, err
		}
		if t.step == int(t.past.saved.Load()) {
			return true, nil
		}
		return true, t.save(nil, false)
	}
	if err != nil {
		return false, err
	}
	work := t.count(m)
	t.step++
	maps.Copy(m, began)
	c, last := t.cfg.Trainer, t.step >= t.total
	planned := t.due(c.SaveFreq, last)
	if t.val.set != nil && (t.due(c.TestFreq, last) || c.KeepBest != "" && planned) {
		if err := m.time("timing_s/val", func() error { return t.validate(m) }); err != nil {
			return false, err
		}
	}
	t.performance(m, work, time.Since(startTime).Seconds())
	if err := t.rec.Step(t.step, m); err != nil {
		return false, err
	}
	if !last { // Run does it after the other warnings
		t.watch()
	}
	t.ranks.Enter("end of the step")
	if stopped, err = t.ranks.Any("stop", ctx.Err() != nil); err != nil {
		return false, err
	}
	if planned || stopped {
		return stopped, t.save(m, planned)
	}
	return false, nil
}

// context returns Run's context or, outside of Run, a context that does not end.
func (t *Trainer) context() context.Context {
	if t.ctx == nil {
		return context.Background()
	}
	return t.ctx
}

// next takes the stage's next step, and adds the epoch to m.
func (t *Trainer) next(m Metrics) error {
	if err := t.stage.step(m); err != nil {
		return err
	}
	m["train/epoch"] = t.train.order.Epoch()
	return nil
}

// dump writes numerical_stop.txt: the step at which the numbers broke down, its rows and its
// metrics.
func (t *Trainer) dump(step int, m Metrics, cause error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "step %d\n%v\ndata rows %v\n", step, cause, t.train.step)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s %g\n", name, m[name])
	}
	return vfs.WriteFile(t.fs, filepath.Join(t.cfg.Trainer.Output, "numerical_stop.txt"),
		[]byte(b.String()))
}

// due reports whether an action of every freq steps is due after the present step; it always is
// after the last.
func (t *Trainer) due(freq int, last bool) bool { return last || freq > 0 && t.step%freq == 0 }

// phase runs f as a timed part of the step, with a progress bar of its own. f passes seqs through
// m, passes times, which is the bar's length in tokens.
func (t *Trainer) phase(into Metrics, name string, m *model.Model, seqs []model.Seq, passes int,
	f func() error) error {
	tokens := 0
	for _, s := range model.Segments(seqs) {
		tokens += passes * s.Tokens
	}
	t.ranks.Enter(name)
	advance, done := t.rec.Progress(name, tokens)
	shown := 0
	show := func(n int) { // a prompt in several packs counts in each: no more than there is
		n = min(n, tokens-shown)
		shown += n
		advance(n)
	}
	m.Watch(show)
	defer func() { m.Watch(nil); done() }()
	err := into.time("timing_s/"+name, f)
	if err == nil { // count what was left out, such as a pass without a gradient
		show(tokens)
	}
	return err
}

// sampleValidation writes the answers to the first validation prompts as samples: always the same
// prompts, so that a reader can compare steps.
func (t *Trainer) sampleValidation(j *quality.Results) error {
	var out []report.Sample
	for p := range min(t.cfg.Trainer.SaveSamples, len(j.Answers)) {
		row := j.Batch[p]
		out = append(out, report.Sample{Row: row.Index, Prompt: row.PromptText,
			Teacher: row.TeacherText, Student: j.Answers[p],
			StudentScore: math.NaN(), TeacherScore: math.NaN(), Advantage: math.NaN()})
	}
	if out == nil {
		return nil
	}
	return t.rec.Samples(report.InValidation, t.step, out)
}

// watchEvery sets which steps watch examines while the run goes on: all of the first 20, so that a
// sign that needs no history is reported before an hour is lost, and then one step in every
// twentieth of the steps so far. watch examines the metrics of all steps each time.
const watchEvery = 20

// watch warns of the signs of a sick run in the metrics so far, each once in a process.
func (t *Trainer) watch() {
	if !t.first() || t.step%max(1, t.step/watchEvery) > 0 && t.step < t.total {
		return
	}
	found, _ := report.Diagnose(t.rec.Rows())
	for _, f := range found {
		if !t.warned[f.Name] {
			t.warned[f.Name] = true
			t.log.Warn(fmt.Sprintf("%s: %s: %s (gad doctor %s has the rule)", f.Name, f.Seen,
				f.Advice, t.cfg.Trainer.Output))
		}
	}
}
