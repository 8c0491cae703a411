package trainer

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// alone counts the steps of a run before the student first learns.
func alone(rows []report.Row) (n int) {
	for _, r := range rows {
		if _, ok := r.Values["actor/grad_norm"]; ok {
			return n
		}
		n++
	}
	return n
}

// The discriminator's time alone ends by its smoothed loss over pairs that differ, at
// the least after trainer.critic_warmup steps and at the most after
// trainer.critic_warmup_max; the student then has as many steps as it would have had.
func TestWarmupUntil(t *testing.T) {
	t.Parallel()
	be := ready(t)
	const least, most, total = 2, 30, 4
	for name, c := range map[string]struct {
		until float64
		alone func(rows []report.Row) int
	}{
		"at once": {10, func([]report.Row) int { return least }},
		"never":   {1e-9, func([]report.Row) int { return most }},
		"between": {0.65, func(rows []report.Row) int {
			smooth := 0.0
			for i, r := range rows {
				x := r.Values["critic/d_loss_distinct"]
				if i == 0 {
					smooth = x
				}
				if smooth += 0.2 * (x - smooth); i+1 >= least && smooth < 0.65 {
					return i + 1
				}
			}
			return most
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run := filepath.Join(t.TempDir(), "run")
			var said lines
			cfg := settings(config.Warmup, run, fmt.Sprintf("trainer.total_steps=%d", total),
				fmt.Sprintf("trainer.critic_warmup=%d", least),
				fmt.Sprintf("trainer.critic_warmup_max=%d", most),
				fmt.Sprintf("trainer.critic_warmup_until=%g", c.until),
				"critic.score_init=0.02", "critic.ppo_mini_batch_size=1")
			tr, err := Open(cfg, config.Warmup, Options{FS: vfs.OS, Backend: be, Console: &said})
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
			rows, err := report.ReadMetrics(vfs.OS, run)
			if err != nil {
				t.Fatal(err)
			}
			want := c.alone(rows)
			if got := alone(rows); got != want || len(rows) != want+total-least {
				t.Errorf("%d steps alone of %d, want %d of %d", got, len(rows), want,
					want+total-least)
			}
			if name == "between" && (want == least || want == most) {
				t.Errorf("it ended after %d steps: the test shows nothing", want)
			}
			if learned := want < most; said.have(
				"the discriminator has learned after") != learned ||
				said.have("has not learned in") == learned {
				t.Errorf("console:\n%s", said.String())
			}
		})
	}
}

// A run that is shorter than the discriminator's least time alone is as long as that,
// and is saved at its end; stages without a discriminator know no such time.
func TestWarmupUntilOfOtherRuns(t *testing.T) {
	slow(t)
	be := ready(t)
	for _, c := range []struct {
		stage config.Stage
		steps int
		told  []string
	}{
		{config.Warmup, 4, []string{"trainer.total_steps=2", "trainer.critic_warmup=4",
			"trainer.critic_warmup_until=10", "trainer.critic_warmup_max=8"}},
		{config.Warmup, 8, []string{"trainer.total_steps=2", "trainer.critic_warmup=4",
			"trainer.critic_warmup_until=1e-9", "trainer.critic_warmup_max=8"}},
		{config.SFT, 3, []string{"trainer.total_steps=3", "trainer.critic_warmup_until=0.5",
			"trainer.critic_warmup=1"}},
		{config.DPO, 3, []string{"trainer.total_steps=3", "trainer.critic_warmup_until=0.5",
			"trainer.critic_warmup=1"}},
	} {
		run := filepath.Join(t.TempDir(), "run")
		rows := finished(t, be, settings(c.stage, run, c.told...), c.stage)
		dir, _, err := saved.Find(vfs.OS, run)
		if len(rows) != c.steps || err != nil ||
			filepath.Base(dir) != fmt.Sprintf("global_step_%d", c.steps) {
			t.Errorf("%s %v: %d steps, last checkpoint %s, %v: want %d", c.stage, c.told, len(rows),
				dir, err, c.steps)
		}
	}
}

// A discriminator's schedule lasts as long as it may learn alone.
func TestWarmupUntilSchedule(t *testing.T) {
	be := ready(t)
	rows := finished(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=3", "trainer.critic_warmup=2", "trainer.critic_warmup_until=1e-9",
		"trainer.critic_warmup_max=9", "critic.optim.lr_scheduler=linear"), config.Warmup)
	for _, r := range rows[:len(rows)-1] {
		if lr := r.Values["critic/lr"]; !(lr > 0) {
			t.Errorf("step %d of %d: the rate is %g", r.Step, len(rows), lr)
		}
	}
}

// A discriminator that is to learn off-policy needs the pool of an earlier stage.
func TestOffPolicyNeedsAPool(t *testing.T) {
	be := ready(t)
	for _, size := range []string{"0", "100"} {
		_, err := Open(settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"critic.replay.live=false", "critic.replay.size="+size), config.Train,
			Options{FS: vfs.OS, Backend: be})
		if !errors.Is(err, config.ErrConfig) ||
			!strings.Contains(err.Error(), "keep one in the warm-up") {
			t.Errorf("critic.replay.size=%s: %v", size, err)
		}
	}
}

// A discriminator that has learned nothing is said so, loudly, when the warm-up ends
// and before the game begins; of one that has learned nothing is said.
func TestDeafDiscriminatorIsSaid(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	for lr, deaf := range map[string]bool{"0": true, "2e-3": false} {
		dir := t.TempDir()
		var said lines
		warm := settings(config.Warmup, filepath.Join(dir, "warm"), "trainer.total_steps=30",
			"trainer.critic_warmup=30", "critic.optim.lr="+lr, "critic.score_init=1e-4",
			"critic.ppo_mini_batch_size=1")
		tr := func(c config.Config, stage config.Stage) {
			t.Helper()
			r, err := Open(c, stage, Options{FS: vfs.OS, Backend: be, Console: &said})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.Close()
		}
		tr(warm, config.Warmup)
		if said.have("its rewards would be noise") != deaf {
			t.Errorf("critic.optim.lr=%s, end of the warm-up:\n%s", lr, said.String())
		}
		said.Reset()
		tr(settings(config.Train, filepath.Join(dir, "train"),
			"trainer.resume_from="+filepath.Join(dir, "warm"), "trainer.total_steps=1"),
			config.Train)
		if said.have("its rewards would be noise") != deaf {
			t.Errorf("critic.optim.lr=%s, begin of the game:\n%s", lr, said.String())
		}
	}
}

// Under --preset grgc the group term and the power are on, and the metrics of the
// groups are there; under gad they are what they were.
func TestPresets(t *testing.T) {
	be := ready(t)
	episodes := episodesOf(t, 12)
	for _, name := range config.PresetNames() {
		stage, rank := config.Train, "0"
		// adapters begin at a whole model; lora's are wider than this one
		if name == "lora" || name == "small" {
			stage, rank = config.Warmup, "16"
		}
		told, err := config.Preset(name, stage)
		if err != nil {
			t.Fatal(err)
		}
		limits := []string{"data.max_prompt_length=64", "data.max_response_length=14"}
		if name == "gigpo" || name == "flow-grpo" { // they are for episodes
			limits = acting(episodes, "well")
		}
		if name == "delethink" { // of a smaller student
			limits = append(limits, thinking("actor.ppo_mini_batch_size=1")...)
		}
		told = append(told, limits...)
		rows := finished(t, be, settings(stage, filepath.Join(t.TempDir(), "run"),
			append(told, "trainer.total_steps=2", "actor.lora.rank="+rank, "critic.lora.rank="+rank,
				"data.truncated_teachers=keep", "data.train_batch_size=2")...), stage)
		for _, r := range rows {
			term, on := r.Values["critic/group_term"]
			if on != (name == "grgc") || on && !(term > 0) {
				t.Errorf("%s: step %d: group term %g, %t", name, r.Step, term, on)
			}
			for _, metric := range []string{"critic/group_rel_std", "critic/collapsed_groups_frac",
				"critic/top_gap", "critic/tie_frac", "critic/d_acc_distinct", "rollout/len_ratio"} {
				if x, ok := r.Values[metric]; !ok || math.IsNaN(x) {
					t.Errorf("%s: step %d: %s is %g, %t", name, r.Step, metric, x, ok)
				}
			}
		}
	}
	if _, err := config.Preset("gan", config.Train); err == nil {
		t.Error("an unknown preset is taken")
	}
}
