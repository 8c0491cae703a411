package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gad/checkpoint"
	"gad/critic"
	"gad/internal/safetensors"
	"gad/model"
	"gad/trainer/saved"
)

// save commits a checkpoint of the present step, then prunes old ones. m are the
// step's metrics, among them perhaps the one that says which checkpoint is best;
// one that only an interruption made does not compete, so that a run which was
// interrupted keeps the same one as a run which was not.
func (t *Trainer) save(m Metrics, planned bool) error {
	begun := time.Now()
	_, done := t.rec.Progress("saving", 0)
	defer done()
	t.ranks.Enter("saving")
	run, c := t.cfg.Trainer.Output, t.cfg.Trainer
	if t.lock != nil {
		if err := t.lock.Held(); err != nil { // else a new folder of this name would have the rest
			return err
		}
	}
	sick := t.skipped["actor"]+t.skipped["critic"] > 0
	if !sick {
		t.good = t.step
	}
	if v, ok := m[c.KeepBest]; ok && planned && t.best.Better(c.KeepBest, v) {
		t.best = saved.Best{Metric: c.KeepBest, Value: v, Step: t.step}
	}
	if err := t.rec.Sync(); err != nil {
		return err
	}
	if err := t.wholeWeights(); err != nil {
		return err
	}
	if err := t.sameWeights(false); err != nil {
		return err
	}
	if t.first() {
		if err := checkpoint.CheckSpace(t.fs, run, t.checkpointBytes()); err != nil {
			return err
		}
		if err := checkpoint.Commit(t.fs, run, t.step, t.fill); errors.Is(err, model.ErrNotFinite) {
			return fmt.Errorf("%w: no checkpoint was written: lower the learning rates and %s", err,
				t.wayBack())
		} else if err != nil {
			return err
		}
	} else if err := t.saveParts(); err != nil {
		return err
	}
	if err := t.ranks.Barrier("the checkpoint"); err != nil {
		return err
	}
	t.verified[t.step] = true
	t.saved.Store(int64(t.step))
	if sick {
		return nil // older checkpoints may be the better ones
	}
	if !t.first() {
		return nil
	}
	err := t.prune()
	t.saveTime = time.Since(begun).Seconds()
	return err
}

// prune removes the checkpoints that trainer.max_ckpt_to_keep does not keep.
func (t *Trainer) prune() error {
	return checkpoint.Prune(t.fs, t.cfg.Trainer.Output, t.cfg.Trainer.MaxToKeep,
		func(step int) bool { return t.best.Metric != "" && step == t.best.Step }, t.verified)
}

// fill writes the checkpoint's files.
func (t *Trainer) fill(d *checkpoint.Dir) error {
	shard := int64(t.cfg.Trainer.MaxShardSizeMB) * 1_000_000
	under := func(folder string) func(string) (io.WriteCloser, error) {
		return func(name string) (io.WriteCloser, error) { return d.Create(folder + "/" + name) }
	}
	if err := t.actor.Model().Save(under("actor"), "float32", shard); err != nil {
		return err
	}
	if err := writeTo(d, saved.ActorOptimizer,
		func(w io.Writer) error { return t.actor.Optimizer().Save(w, false) }); err != nil {
		return err
	}
	folders := []string{"actor"}
	if t.critic != nil {
		folders = append(folders, "critic")
		if err := t.critic.Model().Save(under("critic"), "float32", shard); err != nil {
			return err
		}
		if err := writeTo(d, saved.CriticOptimizer,
			func(w io.Writer) error { return t.critic.Optimizer().Save(w, false) }); err != nil {
			return err
		}
		if t.cfg.Critic.Head == critic.Likelihood {
			raw, err := saved.Head{Head: critic.Likelihood,
				Temperature: t.cfg.Rollout.Temperature, Student: "../actor"}.Bytes()
			if err != nil {
				return err
			}
			if err := d.WriteFile("critic/"+saved.HeadName, raw); err != nil {
				return err
			}
		}
		if t.critic.Replay != nil {
			if err := writeTo(d, saved.ReplayName,
				func(w io.Writer) error { return writeReplay(w, t.critic.Replay) }); err != nil {
				return err
			}
		}
	}
	for _, folder := range folders {
		for name, content := range t.tok.Files() {
			if err := d.WriteFile(folder+"/"+name, content); err != nil {
				return err
			}
		}
	}
	raw, err := json.MarshalIndent(
		saved.State{Format: saved.StateFormat, Stage: t.Stage, Step: t.step, Total: t.total,
			Seed:  t.cfg.Trainer.Seed,
			Order: t.order.State(), DataDigest: t.set.Digest(), Rows: t.chosen, KLCoef: t.kl.Coef,
			Before:    t.before,
			BaseDType: t.baseDType, Best: t.best, Skipped: t.skipped, Good: t.good, Disc: t.disc,
			Validated: t.current(), OldDiffers: t.oldDiffers, Kept: t.cfg.Fixed()}, "", "  ")
	if err != nil {
		return err
	}
	return d.WriteFile(saved.StateName, append(raw, '\n'))
}

// checkpointBytes is the size of a checkpoint, from above.
func (t *Trainer) checkpointBytes() (n int64) {
	weights := func(m *model.Model) {
		for _, p := range m.Params() {
			n += 4 * int64(p.Len())
		}
	}
	weights(t.actor.Model())
	n += t.actor.Optimizer().Bytes()
	if t.critic != nil {
		weights(t.critic.Model())
		n += t.critic.Optimizer().Bytes()
	}
	for _, content := range t.tok.Files() {
		n += 2 * int64(len(content))
	}
	if t.critic != nil && t.critic.Replay != nil {
		for _, p := range t.critic.Replay.Pairs {
			n += 4 * int64(len(p.Student.IDs)+len(p.Teacher.IDs)+4)
		}
	}
	return n + 1<<20
}

func writeTo(d *checkpoint.Dir, name string, write func(io.Writer) error) error {
	w, err := d.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(w), w.Close())
}

func writeReplay(w io.Writer, r *critic.Buffer) error {
	ids, lens := r.Flat()
	return safetensors.Write(w, []safetensors.Source{int32s("ids", ids), int32s("lens", lens)}, nil)
}

func int32s(name string, x []int32) safetensors.Source {
	return safetensors.Source{Name: name, DType: safetensors.I32, Shape: []int{len(x)},
		Write: func(w io.Writer) error {
			b := make([]byte, 0, 4*len(x))
			for _, v := range x {
				b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
			}
			_, err := w.Write(b)
			return err
		}}
}

// readReplay restores the buffer, which stays empty where the checkpoint has none.
func readReplay(dir string, r *critic.Buffer) error {
	path := filepath.Join(dir, saved.ReplayName)
	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	read := func(name string) ([]int32, error) {
		x, ok := f.Tensor(name)
		if !ok || x.DType != safetensors.I32 {
			return nil,
				fmt.Errorf(
					"trainer: %s: tensor %q of type I32 is missing: the checkpoint is damaged",
					path,
					name)
		}
		out := make([]int32, len(x.Data)/4)
		for i := range out {
			b := x.Data[4*i:]
			out[i] = int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
		}
		return out, nil
	}
	ids, err := read("ids")
	if err != nil {
		return err
	}
	lens, err := read("lens")
	if err != nil {
		return err
	}
	return r.SetFlat(ids, lens)
}
