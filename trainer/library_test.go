package trainer_test

import (
	"errors"
	"path/filepath"
	"testing"

	"gad/actor"
	"gad/critic"
	"gad/device"
	"gad/model"
	"gad/reference"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// What another program may leave out, or fill in wrongly, is an error and no panic.
func TestLibraryMistakes(t *testing.T) {
	const dir = "../testdata/model/qwen2_tied"
	const noBackend = "model: the backend is nil: open one with device.Open"
	c, err := model.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.StageDefaults(config.SFT)
	cfg.Model.Path, cfg.Data.TrainFiles, cfg.Trainer.Output =
		dir, []string{"../testdata/letters/train.jsonl"}, filepath.Join(t.TempDir(), "run")
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	opened := func(change func(*config.Config)) error {
		cfg := cfg
		change(&cfg)
		_, err := trainer.Open(cfg, config.SFT, trainer.Options{Backend: be})
		return err
	}
	for name, row := range map[string]struct {
		try  func() error
		want string
	}{
		"model.Load": {func() error { _, err := model.Load(nil, dir, model.Options{}); return err },
			noBackend},
		"model.New": {func() error { _, err := model.New(nil, c, model.Options{}); return err },
			noBackend},
		"actor.Open": {func() error {
			_, err := actor.Open(nil, dir, actor.DefaultConfig(), actor.DefaultRollout(), 1, 1)
			return err
		}, "actor: " + noBackend},
		"actor.New": {func() error {
			_, err := actor.New(nil, actor.DefaultConfig(), actor.DefaultRollout(), 1, 1)
			return err
		}, "actor: model: optimizer: the model is nil: load one with Trainable"},
		"critic.Open": {
			func() error {
				_,
					err := critic.Open(nil, dir, critic.DefaultConfig(), 1, 1)
				return err
			},
			"critic: " + noBackend},
		"critic.New": {
			func() error { _, err := critic.New(nil, critic.DefaultConfig(), 1, 1); return err },
			"critic: no network: load one with model.Load, or use critic.Open"},
		"reference.Open": {func() error { _, err := reference.Open(nil, dir, 1); return err },
			"reference: " + noBackend},
		"trainer.Open": {
			func() error { _, err := trainer.Open(cfg, config.SFT, trainer.Options{}); return err },
			"configuration: trainer: Options.Backend is nil: open one with device.Open"},
		"trainer.NewPlan": {
			func() error { _, err := plan.New(nil, nil, 0, nil, cfg, config.SFT); return err },
			"configuration: trainer: a plan has neither a backend nor a footprint: give device.Options.Footprint"},
		"a device that does not exist": {func() error { _, err := device.Open(device.Options{Name: "tpu"}); return err }, `device: "tpu": use cpu or cuda`},
		"a precision that does not exist": {
			func() error { _, err := device.Open(device.Options{Precision: "f16"}); return err },
			`device: precision "f16": use auto, bf16 or f32`},
		"threads below 0": {
			func() error { _, err := device.Open(device.Options{Threads: -1}); return err },
			"device: -1 threads: use 0 for one per core, or more"},
		"a value below its minimum": {
			func() error { return opened(func(c *config.Config) { c.Data.TrainBatchSize = 0 }) },
			"configuration: settings: data.train_batch_size: 0: below the minimum 1"},
		"a name that is not one of the choices": {
			func() error {
				return opened(
					func(c *config.Config) { c.Actor.LossAggMode = "token-men" })
			},
			`configuration: settings: actor.loss_agg_mode: token-men: did you mean "token-mean"? (one of: token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, episode-mean-turn-mean-token-mean)`},
	} {
		if err := row.try(); err == nil || err.Error() != row.want {
			t.Errorf("%s:\n%v, want\n%s", name, err, row.want)
		}
	}
	if err := opened(func(c *config.Config) { c.Data.TrainBatchSize = -1 }); !errors.Is(err,
		config.ErrConfig) {
		t.Errorf("a value below its minimum: %v is not ErrConfig", err)
	}
}
