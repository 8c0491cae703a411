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
	"gad/data"
	"gad/internal/safetensors"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
)

// What a checkpoint holds beside actor/ and critic/.
const (
	stateName       = "trainer.json"
	actorOptimizer  = "actor_optimizer.safetensors"
	criticOptimizer = "critic_optimizer.safetensors"
	replayName      = "replay.safetensors"
	stateFormat     = 1
)

// state is trainer.json: all that a run needs to go on, weights, optimizers and
// replay apart. Random numbers are functions of the seed and the step, so there
// is no generator's state.
type state struct {
	Format     int          `json:"format"`
	Stage      config.Stage `json:"stage"`
	Step       int          `json:"step"`
	Total      int          `json:"total_steps"`
	Seed       uint64       `json:"seed"`
	Order      data.Cursor  `json:"order"`
	DataDigest string       `json:"data_sha256"`
	KLCoef     float64      `json:"kl_coef"`
	Before     updates      `json:"updates_before"`
	BaseDType  string       `json:"base_dtype"`
	Best       best         `json:"best"`

	// Skipped counts the updates left out in a row, by "actor" and "critic";
	// Good is the last checkpoint that was saved while there were none.
	Skipped map[string]int `json:"skipped,omitempty"`
	Good    int            `json:"good_step"`

	Disc discriminator `json:"discriminator"`

	// Validated is the newest validation, if it was of these weights.
	Validated *validated `json:"validated,omitempty"`

	// OldDiffers: a check has found that the sampler's log-probabilities are not the trainer's.
	OldDiffers bool `json:"old_log_prob_differs,omitempty"`

	// Kept are the settings that cannot change within the run: its config.yaml may be
	// edited.
	Kept []config.Fixed `json:"settings,omitempty"`
}

// updates are the optimizer steps that each side had taken when the stage began:
// the learning rates' schedules count from there.
type updates struct {
	Actor  int `json:"actor"`
	Critic int `json:"critic"`
}

// best is the best validation so far.
type best struct {
	Metric string  `json:"metric,omitempty"`
	Value  float64 `json:"value"`
	Step   int     `json:"step"`
}

// better reports whether value beats b under the metric: a smaller negative
// log-likelihood, a larger anything else.
func (b best) better(metric string, value float64) bool {
	if b.Metric != metric {
		return true
	}
	if metric == "val/teacher_nll" {
		return value < b.Value
	}
	return value > b.Value
}

const maxState = 1 << 20

// foreignState is the error of a file that has the name of a run's state and is none.
type foreignState struct{ error }

func (f foreignState) Unwrap() error { return f.error }

func readState(fsys vfs.FS, dir string) (s state, err error) {
	path := filepath.Join(dir, stateName)
	info, err := fsys.Stat(path)
	if err != nil {
		return s, fmt.Errorf("trainer: %w", err)
	}
	if info.Size() > maxState {
		return s, foreignState{fmt.Errorf("trainer: %s: %d bytes: too large for a state file: the checkpoint is damaged", path, info.Size())}
	}
	raw, err := fsys.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("trainer: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, foreignState{fmt.Errorf("trainer: %s: %w", path, err)}
	}
	if s.Format != stateFormat {
		return s, foreignState{fmt.Errorf("trainer: %s: format %d: this version of gad reads format %d: use the version that wrote it", path, s.Format, stateFormat)}
	}
	return s, nil
}

// save commits a checkpoint of the present step, then prunes old ones. m are the
// step's metrics, among them perhaps the one that says which checkpoint is best;
// one that only an interruption made does not compete, so that a run which was
// interrupted keeps the same one as a run which was not.
func (t *Trainer) save(m Metrics, planned bool) error {
	begun := time.Now()
	_, done := t.rec.Stage("saving", 0)
	defer done()
	t.ranks.Enter("saving")
	run, c := t.cfg.Trainer.Output, t.cfg.Trainer
	sick := t.skipped["actor"]+t.skipped["critic"] > 0
	if !sick {
		t.good = t.step
	}
	if v, ok := m[c.KeepBest]; ok && planned && t.best.better(c.KeepBest, v) {
		t.best = best{Metric: c.KeepBest, Value: v, Step: t.step}
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
			return fmt.Errorf("%w: no checkpoint was written: lower the learning rates and %s", err, t.wayBack())
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
	err := checkpoint.Prune(t.fs, run, c.MaxToKeep, func(step int) bool { return t.best.Metric != "" && step == t.best.Step }, t.verified)
	t.saveTime = time.Since(begun).Seconds()
	return err
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
	if err := writeTo(d, actorOptimizer, func(w io.Writer) error { return t.actor.Optimizer().Save(w, false) }); err != nil {
		return err
	}
	folders := []string{"actor"}
	if t.critic != nil {
		folders = append(folders, "critic")
		if err := t.critic.Model().Save(under("critic"), "float32", shard); err != nil {
			return err
		}
		if err := writeTo(d, criticOptimizer, func(w io.Writer) error { return t.critic.Optimizer().Save(w, false) }); err != nil {
			return err
		}
		if t.critic.Replay != nil {
			if err := writeTo(d, replayName, func(w io.Writer) error { return writeReplay(w, t.critic.Replay) }); err != nil {
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
	raw, err := json.MarshalIndent(state{Format: stateFormat, Stage: t.Stage, Step: t.step, Total: t.total, Seed: t.cfg.Trainer.Seed,
		Order: t.order.State(), DataDigest: t.set.Digest(), KLCoef: t.kl.Coef, Before: t.before, BaseDType: t.baseDType, Best: t.best, Skipped: t.skipped, Good: t.good, Disc: t.disc, Validated: t.current(), OldDiffers: t.oldDiffers, Kept: t.cfg.Fixed()}, "", "  ")
	if err != nil {
		return err
	}
	return d.WriteFile(stateName, append(raw, '\n'))
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
	return safetensors.Source{Name: name, DType: safetensors.I32, Shape: []int{len(x)}, Write: func(w io.Writer) error {
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
	path := filepath.Join(dir, replayName)
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
			return nil, fmt.Errorf("trainer: %s: tensor %q of type I32 is missing: the checkpoint is damaged", path, name)
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
