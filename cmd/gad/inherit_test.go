package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A stage takes over what the run that it starts from was told, but no schedule of a
// learning rate: one that has risen or fallen begins anew only where that is asked for.
func TestSchedulesAreNotInherited(t *testing.T) {
	f := ready(t)
	warm := filepath.Join(t.TempDir(), "warm")
	must(t,
		append(
			stage("warmup", "--model", f.path("sft", "global_step_60", "actor"), "--data",
				f.path("train.arrow"), "--output", warm, "--steps", "10", "--critic-warmup", "2"),
			"critic.optim.lr=3e-4", "critic.optim.lr_warmup_steps=7",
			"critic.optim.lr_scheduler=linear", "critic.optim.min_lr_ratio=0.25",
			"actor.optim.lr_scheduler=cosine", "actor.optim.lr_warmup_steps=5",
			"trainer.critic_warmup_until=0.1", "trainer.critic_warmup_max=2")...)
	args := []string{"train", "--resume", warm, "--data", f.path("train.arrow"), "--output",
		filepath.Join(t.TempDir(), "run"), "--dry-run"}
	settled := func(args []string) string {
		out, _ := must(t, args...)
		return out
	}
	inherited := settled(args)
	for _, line := range []string{"lr: 0.0003\n", "lr_warmup_steps: 0\n",
		"lr_scheduler: constant\n", "min_lr_ratio: 0\n", "critic_warmup_until: 0\n",
		"critic_warmup_max: 200\n"} {
		if !strings.Contains(inherited, line) {
			t.Errorf("train's settings lack %q:\n%s", line, inherited)
		}
	}
	for _, line := range []string{"lr_warmup_steps: 7", "lr_warmup_steps: 5",
		"lr_scheduler: linear", "lr_scheduler: cosine", "min_lr_ratio: 0.25",
		"critic_warmup_until: 0.1"} {
		if strings.Contains(inherited, line) {
			t.Errorf("train inherits %q", line)
		}
	}
	if asked := settled(append(args, "critic.optim.lr_warmup_steps=7")); !strings.Contains(asked,
		"lr_warmup_steps: 7\n") {
		t.Errorf("asked for, the rise is not there:\n%s", asked)
	}
}

// A preset stands before the file and the overrides; an unknown one is refused.
func TestPresetFlag(t *testing.T) {
	f := ready(t)
	args := []string{"train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"),
		"--output", filepath.Join(t.TempDir(), "run"), "--dry-run", "--preset"}
	out, _ := must(t, append(args, "grgc")...)
	if !strings.Contains(out, "adv_power: 1.5\n") || !strings.Contains(out, "group_ot: 0.01\n") {
		t.Errorf("--preset grgc:\n%s", out)
	}
	out, _ = must(t, append(args, "grgc", "critic.group_ot=0.05")...)
	if !strings.Contains(out, "adv_power: 1.5\n") || !strings.Contains(out, "group_ot: 0.05\n") {
		t.Errorf("--preset grgc with an override:\n%s", out)
	}
	out, _ = must(t, append(args, "gad")...)
	if !strings.Contains(out, "adv_power: 1\n") || !strings.Contains(out, "group_ot: 0\n") {
		t.Errorf("--preset gad:\n%s", out)
	}
	if code, _, said := gad(append(args, "gan")...); code != exitUsage || !strings.Contains(said, `train: --preset: "gan": use delethink, flow-grpo, gad, gigpo, grgc, lora, paper or small`) {
		t.Errorf("--preset gan: %d, %s", code, said)
	}
}
