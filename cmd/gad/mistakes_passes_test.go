package main

import (
	"os"
	"testing"
)

// Mistakes with the settings that say which passes a step takes.
func TestMistakesOfPasses(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	if err := os.Symlink(f.path("warmup"), "warmup"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(f.path("test.jsonl"), "rows.jsonl"); err != nil {
		t.Fatal(err)
	}
	const train = "train --resume warmup --data rows.jsonl --output run SET "
	mistaken(t, []string{work, f.path("warmup")}, []mistake{
		{train + "actor.old_log_prob=sampler", 2, `conf: override "actor.old_log_prob=sampler": setting "actor.old_log_prob": "sampler": expected one of: auto, recompute, rollout`},
		{train + "actor.old_log_prob=rollout actor.rollout_is=token", 2, `config: actor.rollout_is is token with actor.old_log_prob=rollout: every weight would be 1: set actor.rollout_is to none`},
		{train + "actor.old_log_prob=rollout actor.policy_loss.loss_mode=gtpo", 2, `config: actor.old_log_prob is rollout: gtpo reads entropies, which the sampler does not give: set it to auto`},
	})
}
