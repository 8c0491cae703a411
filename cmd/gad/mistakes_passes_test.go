package main

import (
	"testing"
)

// Mistakes with the settings that say which passes a step takes.
func TestMistakesOfPasses(t *testing.T) {
	f, work := linked(t, "warmup", "test.jsonl=rows.jsonl")
	const train = "train --resume warmup --data rows.jsonl --output run SET "
	mistaken(t, []string{work, f.path("warmup")}, []mistake{
		{train + "actor.old_log_prob=sampler", 2, `settings: override "actor.old_log_prob=sampler": setting "actor.old_log_prob": "sampler": expected one of: auto, recompute, rollout`},
		{train + "actor.old_log_prob=rollout actor.rollout_is=token", 2, `settings: actor.rollout_is is token with actor.old_log_prob=rollout: every weight would be 1: set actor.rollout_is to none`},
		{train + "actor.old_log_prob=rollout actor.policy_loss.loss_mode=gtpo", 2, `settings: actor.old_log_prob is rollout: gtpo reads entropies, which the sampler does not give: set it to auto`},
	})
}
