package trainer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// stopAfter is a context that ends after n steps of a run, which asks once a step.
type stopAfter struct {
	context.Context
	n    int
	kill bool // panic instead: the process dies after the step's line and before its checkpoint
}

type killed struct{}

func (s *stopAfter) Err() error {
	if s.n--; s.n > 0 {
		return nil
	}
	if s.kill {
		panic(killed{})
	}
	return context.Canceled
}

// part runs up to n steps and leaves the folder as a stop or a kill does.
func part(t *testing.T, c config.Config, stage config.Stage, n int, kill bool) (err error) {
	t.Helper()
	return under(t, &stopAfter{Context: context.Background(), n: n, kill: kill}, c, stage)
}

// under runs steps until ctx ends, or panics with killed.
func under(t *testing.T, ctx context.Context, c config.Config, stage config.Stage) (err error) {
	t.Helper()
	be, err := newBackend(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	tr, err := Open(c, stage, Options{FS: vfs.OS, Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	defer func() {
		if r := recover(); r != nil && r != (killed{}) {
			panic(r)
		}
	}()
	return tr.Run(ctx)
}

// inPieces interrupts a run in each way in turn. The run is stopped after a step; killed while it
// samples, before its tokens-th token, if tokens is above 0; killed one step after its next
// checkpoint; and finished by several ranks under the settings in more.
func inPieces(t *testing.T, c config.Config, stage config.Stage, tokens, ranks int,
	more ...string) {
	t.Helper()
	if err := part(t, c, stage, 1, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	if tokens > 0 {
		inTokens(t, c, stage, tokens)
	}
	if err := part(t, c, stage, c.Trainer.SaveFreq, true); err != nil {
		t.Fatal(err)
	}
	if err := c.Load("", more...); err != nil {
		t.Fatal(err)
	}
	onRanks(t, ranks, c, stage)
}

// inTokens plays a run that is killed before its n-th sampled token.
func inTokens(t *testing.T, c config.Config, stage config.Stage, n int) {
	t.Helper()
	ctx := &killAt{Context: context.Background(), n: n}
	if err := under(t, ctx, c, stage); err != nil || ctx.n != 0 {
		t.Fatalf("killed %d tokens too late, %v", ctx.n, err)
	}
}

// onRanks plays a run to its end on several ranks.
func onRanks(t *testing.T, ranks int, c config.Config, stage config.Stage) {
	t.Helper()
	for r, err := range together(ranks, c, stage) {
		if err != nil {
			t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
		}
	}
}

// Everything that has state: replay, adaptive KL in the reward, schedules,
// several epochs over the rollouts, dynamic sampling, the best checkpoint.
var stateful = []string{"critic.replay.size=24", "critic.replay.share=0.5", "critic.group_ot=0.01",
	"algorithm.adv_power=1.5", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive",
	"algorithm.kl_ctrl.horizon=20", "actor.optim.lr_scheduler=cosine",
	"critic.optim.lr_scheduler=linear", "critic.optim.lr_warmup_steps=3",
	"actor.ppo_epochs=2", "critic.ppo_epochs=2", "algorithm.filter_groups.enable=true",
	"trainer.save_freq=3", "trainer.test_freq=1",
	"trainer.keep_best=val/teacher_nll", "trainer.max_ckpt_to_keep=1"}

// A run that was stopped, or killed, and gone on with equals one that was not,
// byte for byte: metrics without timings, samples, weights, optimizers, state
// (doc/reliability.md, row 1).
func TestResumeEqualsUninterrupted(t *testing.T) {
	t.Parallel()
	be := ready(t)
	for i, c := range []struct {
		stage config.Stage
		extra []string
	}{
		{config.SFT, nil},
		{config.Warmup, []string{"trainer.critic_warmup=2"}},
		{config.Warmup, []string{"trainer.critic_warmup=1", "trainer.warmup_objective=policy"}},
		{config.Warmup, []string{"trainer.critic_warmup=1", "trainer.critic_warmup_until=0.6",
			"trainer.critic_warmup_max=6", "trainer.total_steps=4"}},
		{config.Train, nil},
		{config.Train, []string{"algorithm.kl_penalty=full", "actor.kl_loss_type=full"}},
		{config.Warmup, []string{"actor.lora.rank=4", "actor.kl_loss_type=full",
			"trainer.critic_warmup=1", "trainer.warmup_objective=policy", "critic.lora.rank=4"}},
		{config.DPO, nil},
		{config.OPD, nil},
		{config.OPD, []string{"teacher.loss=exact", "teacher.beta=0.5"}},
	} {
		if testing.Short() && i%4 != 0 { // SFT, the game, OPD
			continue
		}
		if !hostile.Long() && !testing.Short() && slices.Contains([]int{1, 2, 5, 8}, i) {
			continue // others are like them
		}
		name := string(c.stage)
		if len(c.extra) > 1 {
			name += " " + c.extra[1]
		}
		t.Run(name, func(t *testing.T) {
			overrides := append(append(
				half("trainer.total_steps=6", "data.val_files="+fixed.val), stateful...),
				c.extra...)
			whole := filepath.Join(t.TempDir(), "whole")
			total := len(finished(t, be, settings(c.stage, whole, overrides...), c.stage))
			if total < 6 {
				t.Fatalf("%d steps: too few for the stops", total)
			}
			want := record(t, whole, total)
			run := settings(c.stage, filepath.Join(t.TempDir(), "run"), overrides...)
			inPieces(t, run, c.stage, 0, 1)
			same(t, record(t, run.Trainer.Output, total), want)
			if !hostile.Long() {
				return
			}
			for _, steps := range [][]int{{3}, {4}, {1, 1, 3}} {
				t.Run(fmt.Sprint("stopped after ", steps), func(t *testing.T) {
					run := filepath.Join(t.TempDir(), "run")
					cfg := settings(c.stage, run, overrides...)
					for _, n := range steps {
						if err := part(t, cfg, c.stage, n, false); !errors.Is(err, ErrInterrupted) {
							t.Fatalf("stopped after %d steps: %v, want ErrInterrupted", n, err)
						}
					}
					finished(t, be, cfg, c.stage)
					same(t, record(t, run, total), want)
				})
			}
			for _, n := range []int{1, 5} {
				t.Run(fmt.Sprint("killed after ", n), func(t *testing.T) {
					run := filepath.Join(t.TempDir(), "run")
					cfg := settings(c.stage, run, overrides...)
					if err := part(t, cfg, c.stage, n, true); err != nil {
						t.Fatal(err)
					}
					finished(t, be, cfg, c.stage)
					same(t, record(t, run, total), want)
				})
			}
		})
	}
}

// A finished run says so and does nothing.
func TestFinishedRunIsLeftAlone(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Train, run, "trainer.total_steps=2", "trainer.save_freq=1")
	finished(t, be, cfg, config.Train)
	before := filesOf(t, run)
	var console lines
	tr, err := Open(cfg, config.Train, Options{FS: vfs.OS, Backend: be, Console: &console})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tr.Run(context.Background()), tr.Close()); err != nil {
		t.Fatal(err)
	}
	if !console.have("already finished") {
		t.Errorf("the console does not say that the run is finished:\n%s", console.String())
	}
	after := filesOf(t, run)
	for name, content := range before {
		if name != "log.jsonl" && after[name] != content {
			t.Errorf("%s has changed", name)
		}
	}
}
