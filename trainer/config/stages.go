package config

import (
	"fmt"
	"slices"
	"strings"
)

// unread are the settings that a stage does not read: whole names, or groups that end
// with a dot.
var unread = map[Stage][]string{
	SFT: {"model.reward_path", "algorithm.", "critic.", "dpo.", "rollout.n", "rollout.temperature", "rollout.top_k", "rollout.top_p", "rollout.min_p",
		"actor.policy_loss.", "actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c",
		"actor.ppo_mini_batch_size", "actor.ppo_epochs", "actor.old_log_prob", "actor.rollout_is", "actor.rollout_is_threshold",
		"trainer.critic_warmup", "trainer.critic_warmup_until", "trainer.critic_warmup_max", "trainer.warmup_objective", "trainer.save_samples"},
	DPO: {"model.reward_path", "algorithm.", "critic.", "rollout.n",
		"actor.policy_loss.", "actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c",
		"actor.ppo_mini_batch_size", "actor.ppo_epochs", "actor.old_log_prob", "actor.rollout_is", "actor.rollout_is_threshold",
		"trainer.critic_warmup", "trainer.critic_warmup_until", "trainer.critic_warmup_max", "trainer.warmup_objective"},
	Warmup: {"dpo."},
	Train:  {"dpo.", "trainer.warmup_objective"},
}

// Ignores says why a run of the stage does not read the setting key, "" if it does.
func (c *Config) Ignores(stage Stage, key string) string {
	if slices.ContainsFunc(unread[stage], func(u string) bool {
		return key == u || strings.HasSuffix(u, ".") && strings.HasPrefix(key, u)
	}) {
		return fmt.Sprintf("gad %s does not read it", stage)
	}
	if (key == "trainer.test_freq" || key == "trainer.val_rows" || key == "trainer.val_before_train") && len(c.Data.ValFiles) == 0 {
		return "there are no validation data: give --val-data FILE"
	}
	return ""
}
