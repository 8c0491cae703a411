// Package saved reads files of runs: the state in a checkpoint, and models with their tokenizers.
// It refuses what is not valid. Package trainer writes runs, package export models.
//
//	state.go          trainer.json and the names of a run's files
//	discriminator.go  how far a run's discriminator has learned
//	head.go           how a discriminator's weights become scores
//	find.go           the checkpoint that a path stands for
//	thought.go        the chunks of a run's answers
//	cost.go           compute and time of a run
//	model.go          whether a path is a model, and whether two models have the same tokens
package saved

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// The files of a checkpoint outside actor/ and critic/.
const (
	StateName       = "trainer.json"
	ActorOptimizer  = "actor_optimizer.safetensors"
	CriticOptimizer = "critic_optimizer.safetensors"
	ReplayName      = "replay.safetensors"
	StateFormat     = 1
)

// ConfigName is the file of the settings in the folder of a run.
const ConfigName = "config.yaml"

// ReferenceDir is the folder of the frozen reference in a run's folder.
const ReferenceDir = "reference"

// TeacherDir is the folder of a teacher that follows the student, in a checkpoint.
const TeacherDir = "teacher"

// State is trainer.json: all that a run needs to resume except weights, optimizers and the replay
// pool. Random numbers are functions of the seed and the step, so there is no generator state.
type State struct {
	Format     int          `json:"format"`
	Stage      config.Stage `json:"stage"`
	Step       int          `json:"step"`
	Total      int          `json:"total_steps"`
	Seed       uint64       `json:"seed"`
	Order      data.Cursor  `json:"order"`
	DataDigest string       `json:"data_sha256"`
	Rows       string       `json:"rows_sha256,omitempty"` // digest; "": all rows
	KLCoef     float64      `json:"kl_coef"`
	Before     Updates      `json:"updates_before"`
	BaseDType  string       `json:"base_dtype"`
	Best       Best         `json:"best"`

	// Skipped counts consecutive skipped updates, by "actor" and "critic"; Good is the step of the
	// last checkpoint that was saved while there were none.
	Skipped map[string]int `json:"skipped,omitempty"`
	Good    int            `json:"good_step"`

	Disc Discriminator `json:"discriminator"`

	// Validated is the newest validation, if it was of these weights.
	Validated *Validation `json:"validated,omitempty"`

	// OldDiffers: a check has found that the sampler's log-probabilities are not the trainer's.
	OldDiffers bool `json:"old_log_prob_differs,omitempty"`

	// Slots is rollout.max_num_seqs where the settings leave it open and the memory has room for
	// more than the default.
	Slots int `json:"max_num_seqs,omitempty"`

	// Fixed holds the settings that cannot change within the run: its config.yaml may be edited.
	Fixed []config.Fixed `json:"settings,omitempty"`
}

// Updates counts the optimizer steps that each side had taken when the stage began: the learning
// rates' schedules count from there.
type Updates struct {
	Actor  int `json:"actor"`
	Critic int `json:"critic"`
}

// Best is the best validation so far.
type Best struct {
	Metric string  `json:"metric,omitempty"`
	Value  float64 `json:"value"`
	Step   int     `json:"step"`
}

// Better reports whether value beats b under the metric: a smaller negative
// log-likelihood, a larger anything else.
func (b Best) Better(metric string, value float64) bool {
	if b.Metric != metric {
		return true
	}
	if metric == "val/teacher_nll" {
		return value < b.Value
	}
	return value > b.Value
}

// Validation is the newest validation of a run. The next run, which begins with the same weights,
// need not repeat it.
type Validation struct {
	Step    int                `json:"step"`
	Of      string             `json:"of"` // digest of rows and settings: Trainer.validationDigest
	Figures map[string]float64 `json:"figures"`
}

// Read returns the state of the checkpoint dir. An error wraps Foreign if a file has the state's
// name but is not a state of this checkpoint.
func Read(fsys checkpoint.FS, dir string) (s State, err error) {
	path := filepath.Join(dir, StateName)
	info, err := fsys.Stat(path)
	if err != nil {
		return s, fmt.Errorf("trainer: %w", err)
	}
	if !info.Mode().IsRegular() {
		return s, Foreign{fmt.Errorf("trainer: %s: %w", path, vfs.ErrNotRegular)}
	}
	if info.Size() > maxState {
		return s,
			Foreign{
				fmt.Errorf(
					"trainer: %s: %d bytes: too large for a state file: the checkpoint is damaged",
					path,
					info.Size())}
	}
	raw, err := fsys.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("trainer: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, Foreign{fmt.Errorf("trainer: %s: %w", path, err)}
	}
	if n, ok := strings.CutPrefix(filepath.Base(dir), "global_step_"); ok &&
		n != strconv.Itoa(s.Step) {
		return s, Foreign{fmt.Errorf("trainer: %s: is the checkpoint of step %d: its folder was renamed: name it global_step_%d again", dir, s.Step, s.Step)}
	}
	if s.Format != StateFormat {
		return s, Foreign{fmt.Errorf("trainer: %s: format %d: this version of gad reads format %d: use the version that wrote it", path, s.Format, StateFormat)}
	}
	return s, nil
}

const maxState = 1 << 20

// Foreign is the error of a file that has the name of a run's state but is not one.
type Foreign struct{ error }

func (f Foreign) Unwrap() error { return f.error }

// MissingReference returns the error of a run whose frozen reference, in dir, is missing.
func MissingReference(dir string) error {
	return fmt.Errorf("reference: %s: the frozen reference is missing: restore it, or start again with another --output", dir)
}
