package config

import (
	"fmt"
	"slices"
	"strings"

	"gad/internal/conf"
)

// verls maps verl's names to advice, where an alias is not enough: settings that gad does not have,
// or has in another form. Settings in verl's groups actor_rollout_ref.actor, .rollout and .model
// are mostly not listed: as a rule they have the same name in actor, rollout and model.
var verls = map[string]string{
	"actor_rollout_ref":       "verl's group: its settings are actor.*, rollout.* and model.* here",
	"actor_rollout_ref.actor": "verl's group: its settings are actor.* here",
	"actor_rollout_ref.ref":   "verl's group: the reference has no settings here: it is the student as it began",

	"actor_rollout_ref.actor.clip_ratio":                   "write actor.clip_ratio_low and actor.clip_ratio_high",
	"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "write actor.max_token_len, which counts tokens and not sequences",
	"actor_rollout_ref.actor.ppo_micro_batch_size":         "write actor.max_token_len, which counts tokens and not sequences",
	"actor_rollout_ref.actor.fsdp_config.param_offload":    "weights always stay on the device: leave it out",
	"actor_rollout_ref.rollout.tensor_model_parallel_size": "there is no tensor parallelism: leave it out",
	"actor_rollout_ref.rollout.gpu_memory_utilization":     "the cache is sized by rollout.max_num_seqs: leave it out",
	"actor_rollout_ref.rollout.name":                       "gad samples by itself: leave it out",
	"actor_rollout_ref.rollout.calculate_log_probs":        "gad always has them: leave it out, or see actor.old_log_prob",
	"algorithm.gigpo.mode":                                 "write algorithm.norm_adv_by_std_in_grpo=false for mean_norm, and true for mean_std_norm",
	"algorithm.gigpo.enable_similarity":                    "steps share a group if their anchors are equal: leave it out",
	"algorithm.gigpo.similarity_thresh":                    "steps share a group if their anchors are equal: leave it out",
	"algorithm.lam":                                        "lambda of GAE, which needs a value function, and the critic here is a discriminator: leave it out",
	"critic.model":                                         "verl's group: the folder that the discriminator starts from is model.reward_path here",
	"critic.model.path":                                    "write model.reward_path (flag --reward-model)",
	"critic.ppo_micro_batch_size_per_gpu":                  "write critic.max_token_len, which counts tokens and not sequences",
	"critic.cliprange_value":                               "a clip of values, and the critic here is a discriminator: leave it out",
	"reward_model":                                         "verl's group: the reward is the discriminator's score here: see critic.* and trainer.checker",
	"reward_model.model.path":                              "write model.reward_path (flag --reward-model)",
	"custom_reward_function":                               "verl's group: give a program that scores answers as trainer.checker, and its share as algorithm.checker_weight",
	"data.shuffle":                                         "rows are always shuffled, by trainer.seed: leave it out",
	"data.reward_fn_key":                                   "the reward is the discriminator's score: leave it out",
	"data.filter_overlong_prompts":                         "write data.overlong_prompts=filter",
	"gradient_accumulation_steps":                          "a step is split by actor.max_token_len: leave it out",
	"trainer.n_gpus_per_node":                              "start so many ranks (doc/ranks.md): leave it out",
	"trainer.nnodes":                                       "start ranks on the machines (doc/ranks.md): leave it out",
	"trainer.logger":                                       "metrics.jsonl and TensorBoard files are always written: leave it out",
	"trainer.project_name":                                 "a run's name is its folder, trainer.default_local_dir: leave it out",
	"trainer.experiment_name":                              "a run's name is its folder, trainer.default_local_dir: leave it out",
	"trainer.resume_mode":                                  "the same command resumes a run: leave it out, or see trainer.resume_from",
}

// retired maps a removed setting to the value that turned it off, which the config.yaml of an older
// run has, and to the reason of its removal.
var retired = map[string]struct{ off, why string }{
	"data.curriculum":           {"", "taken out, since the order of rows showed no effect (doc/failures.md): leave it out; data.where chooses rows"},
	"trainer.skip_update_below": {"0", "taken out, since no study showed an effect (doc/failures.md): leave it out"},
}

// Retired returns the value that turned off the removed setting key, for conf.Load, which ignores
// that value.
func (c *Config) Retired(key string) (off string, ok bool) {
	r, ok := retired[key]
	return r.off, ok
}

// Hint returns what to write instead of another trainer's setting, verl's also without their first
// group, or of a removed setting; "" if key is neither.
func (c *Config) Hint(key string) string {
	if r, ok := retired[key]; ok {
		return r.why
	}
	if to, ok := verls[key]; ok {
		return to
	}
	if name, ok := Alias(key); ok && strings.Contains(key, ".") { // verl's are whole names
		return "write " + name
	}
	if to, ok := verls["actor_rollout_ref."+key]; ok {
		return to
	}
	if name, ok := Alias("actor_rollout_ref." + key); ok {
		return "write " + name
	}
	all := conf.Describe(c)
	known := func(name string) bool {
		return slices.ContainsFunc(all, func(s conf.Setting) bool { return s.Key == name })
	}
	if name := aliasIn(key, all); name != "" {
		return "write " + name
	}
	for _, group := range []string{"critic.model", "reward_model", "custom_reward_function",
		"actor_rollout_ref.ref"} {
		if strings.HasPrefix(key, group+".") {
			return verls[group]
		}
	}
	rest, ok := strings.CutPrefix(key, "actor_rollout_ref.")
	if !ok {
		return ""
	}
	last := rest[strings.LastIndexByte(rest, '.')+1:]
	for _, name := range []string{rest, "actor." + last, "rollout." + last} {
		if known(name) {
			return "write " + name
		}
	}
	return fmt.Sprintf(
		"verl's %q has no counterpart here: leave it out; gad help settings lists all", last)
}

// aliasIn returns the setting for which other trainers have the last name of key: the one in key's
// own group, or else one in the same outer group; "" where a setting has that name itself.
func aliasIn(key string, all []conf.Setting) string {
	group, last := "", key
	if i := strings.LastIndexByte(key, '.'); i >= 0 {
		group, last = key[:i+1], key[i+1:]
	}
	name, ok := Alias(last)
	own := group + name[strings.LastIndexByte(name, '.')+1:]
	for _, s := range all {
		if s.Key == own {
			return own
		}
		ok = ok && !strings.HasSuffix(s.Key, "."+last)
	}
	outer, _, _ := strings.Cut(group, ".")
	if !ok || !strings.HasPrefix(name, outer) {
		return ""
	}
	return name
}
