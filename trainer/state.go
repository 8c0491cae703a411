package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"gad/checkpoint"
	"gad/model"
	"gad/trainer/saved"
)

// save commits a checkpoint of the present step, then prunes old ones. m holds the step's metrics,
// among them the metric that ranks checkpoints (trainer.keep_best). planned is false for a
// checkpoint that only an interruption made: it cannot become the best, so that interrupted and
// uninterrupted runs keep the same checkpoint.
func (t *Trainer) save(m Metrics, planned bool) error {
	startTime := time.Now()
	_, done := t.rec.Progress("saving", 0)
	defer done()
	t.ranks.Enter("saving")
	run, c := t.cfg.Trainer.Output, t.cfg.Trainer
	if t.lock != nil {
		if err := t.lock.CheckHeld(); err != nil { // else a new folder of this name would have the rest
			return err
		}
	}
	sick := t.past.sick()
	if !sick {
		t.past.lastGood = t.step
	}
	if v, ok := m[c.KeepBest]; ok && planned && t.past.best.Better(c.KeepBest, v) {
		t.past.best = saved.Best{Metric: c.KeepBest, Value: v, Step: t.step}
	}
	if err := t.rec.Sync(); err != nil {
		return err
	}
	if err := t.wholeWeights(); err != nil {
		return err
	}
	if err := t.requireSameWeights(false); err != nil {
		return err
	}
	if t.first() {
		if err := checkpoint.CheckSpace(t.fs, run, t.checkpointBytes()); err != nil {
			return err
		}
		if err := checkpoint.Commit(t.fs, run, t.step, t.fill); errors.Is(err, model.ErrNotFinite) {
			return fmt.Errorf("%w: no checkpoint was written: lower the learning rates and %s", err,
				t.recoveryAdvice())
		} else if err != nil {
			return err
		}
	} else if err := t.saveParts(); err != nil {
		return err
	}
	if err := t.ranks.Barrier("the checkpoint"); err != nil {
		return err
	}
	t.past.verified[t.step] = true
	t.past.saved.Store(int64(t.step))
	if sick {
		return nil // older checkpoints may be the better ones
	}
	if !t.first() {
		return nil
	}
	err := t.prune()
	t.meter.saveTime = time.Since(startTime).Seconds()
	return err
}

// prune removes the checkpoints that trainer.max_ckpt_to_keep does not keep.
func (t *Trainer) prune() error {
	return checkpoint.Prune(t.fs, t.cfg.Trainer.Output, t.cfg.Trainer.MaxToKeep,
		func(step int) bool { return t.past.best.Metric != "" && step == t.past.best.Step },
		t.past.verified)
}

// fill writes the checkpoint's files into d.
func (t *Trainer) fill(d *checkpoint.Dir) error {
	shard := int64(t.cfg.Trainer.MaxShardSizeMB) * 1_000_000
	learning := t.trainable()
	for _, n := range learning {
		create := func(name string) (io.WriteCloser, error) { return d.Create(n.name + "/" + name) }
		if err := n.model.Save(create, "float32", shard); err != nil {
			return err
		}
		if err := writeTo(d, n.states,
			func(w io.Writer) error { return n.optim.Save(w, false) }); err != nil {
			return err
		}
	}
	p := &t.past
	state := saved.State{Format: saved.StateFormat, Stage: t.Stage, Step: t.step, Total: t.total,
		Seed: t.cfg.Trainer.Seed, Order: t.train.order.State(), DataDigest: t.train.set.Digest(),
		Rows: t.train.chosen, Before: p.before, BaseDType: p.baseDType, Best: p.best,
		Skipped: p.skipped, Good: p.lastGood, Validated: t.currentValidation(), OldDiffers: p.oldDiffers,
		Slots: t.past.slots, Fixed: t.cfg.Fixed()}
	if err := t.stage.save(d, &state); err != nil {
		return err
	}
	for _, n := range learning {
		for name, content := range t.tok.Files() {
			if err := d.WriteFile(n.name+"/"+name, content); err != nil {
				return err
			}
		}
	}
	raw, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	return d.WriteFile(saved.StateName, append(raw, '\n'))
}

// checkpointBytes returns an upper bound of a checkpoint's size.
func (t *Trainer) checkpointBytes() (n int64) {
	for _, x := range t.trainable() {
		for _, p := range x.model.Params() {
			n += 4 * int64(p.Len())
		}
		n += x.optim.Bytes()
	}
	for _, content := range t.tok.Files() {
		n += 2 * int64(len(content))
	}
	return n + t.stage.bytes() + 1<<20
}

// writeTo creates the file name in d, and writes it by write.
func writeTo(d *checkpoint.Dir, name string, write func(io.Writer) error) error {
	w, err := d.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(w), w.Close())
}
