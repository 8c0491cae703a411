package config

import (
	"slices"
	"strings"
	"testing"

	"gad/internal/conf"
)

// What a stage is said not to read is a setting, or a group that has some; and no setting
// of a stage is said to be read that no code of the stage can reach.
func TestUnreadSettingsExist(t *testing.T) {
	c := Default()
	all := conf.Describe(&c)
	for stage, keys := range unread {
		for i, key := range keys {
			if !slices.ContainsFunc(all, func(s conf.Setting) bool {
				return s.Key == key || strings.HasSuffix(key, ".") && strings.HasPrefix(s.Key, key)
			}) {
				t.Errorf("%s: %q is no setting and no group", stage, key)
			}
			if slices.Contains(keys[:i], key) {
				t.Errorf("%s: %q is listed twice", stage, key)
			}
		}
	}
	for _, stage := range []Stage{SFT, Train, DPO} {
		if c.Ignores(stage, "trainer.warmup_objective") == "" {
			t.Errorf("%s is said to read trainer.warmup_objective", stage)
		}
	}
	if why := c.Ignores(Warmup, "trainer.warmup_objective"); why != "" {
		t.Error(why)
	}
}

// Every whole number has a largest value, so that no setting alone asks for more memory
// than there is, and sums of them do not overflow.
func TestWholeNumbersAreBounded(t *testing.T) {
	c := Default()
	for _, s := range conf.Describe(&c) {
		if s.Type == "integer" && s.Key != "trainer.seed" && (s.Min == "" || s.Max == "") {
			t.Errorf("%s: from %q to %q", s.Key, s.Min, s.Max)
		}
	}
}

// Settings that have no effect, or hardly one, are warned of, each by itself.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		stage Stage
		set   string
		want  string // "": nothing
	}{
		{Train, "", ""},
		{SFT, "", ""},
		{Warmup, "rollout.n=2", "rollout.n is 2: with fewer than 4 answers a group's statistics say little (with 2, grpo's advantages are the same size whatever the scores): 8 is usual"},
		{Train, "rollout.n=3", "rollout.n is 3: with fewer than 4 answers a group's statistics say little (with 2, grpo's advantages are the same size whatever the scores): 8 is usual"},
		{Train, "rollout.n=4", ""},
		{SFT, "rollout.n=2", ""},
		{SFT, "actor.optim.lr=0", "actor.optim.lr is 0: the student will not change"},
		{SFT, "critic.optim.lr=0", ""},
		{Train, "critic.optim.lr=0", "critic.optim.lr is 0: the discriminator will not change"},
		{SFT, "actor.optim.min_lr_ratio=0.1", "actor.optim.min_lr_ratio 0.1 has no effect: actor.optim.lr_scheduler is constant: set it to cosine or linear"},
		{SFT, "actor.optim.min_lr_ratio=0.1 actor.optim.lr_scheduler=cosine", ""},
		{Warmup, "critic.optim.min_lr_ratio=0.1", "critic.optim.min_lr_ratio 0.1 has no effect: critic.optim.lr_scheduler is constant: set it to cosine or linear"},
		{Warmup, "trainer.critic_warmup_max=50", "trainer.critic_warmup_max 50 has no effect: trainer.critic_warmup_until is 0"},
		{Warmup, "trainer.critic_warmup_max=50 trainer.critic_warmup_until=0.5", ""},
		{SFT, "trainer.critic_warmup_max=50", ""},
		{Train, "actor.optim.lr=1e-3", "actor.optim.lr is 0.001: fit for learning the teacher's answers, and mostly too large for the game (the paper's is 1e-6, gad demo's 5e-5 after 3e-3): if KL runs away, lower it"},
	} {
		cfg := StageDefaults(c.stage)
		if err := cfg.Load("", strings.Fields(c.set)...); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(cfg.Warnings(c.stage), "\n"); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.stage, c.set, got, c.want)
		}
	}
}

// Names of verl's settings are answered by what to write here, and each of the answers
// names a setting that there is.
func TestVerlsNames(t *testing.T) {
	c := Default()
	all := conf.Describe(&c)
	known := func(key string) bool {
		return slices.ContainsFunc(all, func(s conf.Setting) bool { return s.Key == key })
	}
	for key, to := range verls {
		if known(key) {
			t.Errorf("%s is a setting here too", key)
		}
		if rest, ok := strings.CutPrefix(to, "write "); ok {
			if name := strings.TrimRight(strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '=' || r == ',' })[0], ","); !known(name) {
				t.Errorf("%s: %q names no setting", key, to)
			}
		}
	}
	for key, want := range map[string]string{
		"actor_rollout_ref.actor.kl_loss_coef":      "write actor.kl_loss_coef",
		"actor_rollout_ref.rollout.n":               "write rollout.n",
		"actor_rollout_ref.actor.optim.lr":          "write actor.optim.lr",
		"actor_rollout_ref.model.path":              "write model.path",
		"actor_rollout_ref.actor.grad_clip":         "write actor.grad_clip",
		"actor_rollout_ref.rollout.enforce_eager":   `verl's "enforce_eager" has no counterpart here: leave it out; gad help settings lists all`,
		"actor_rollout_ref.ref.fsdp_config.offload": verls["actor_rollout_ref.ref"],
		"critic.model.path":                         "write model.reward_path (flag --reward-model)",
		"critic.model.tokenizer_path":               verls["critic.model"],
		"reward_model.enable":                       verls["reward_model"],
		"algorithm.lam":                             verls["algorithm.lam"],
		"actor.optim.lrr":                           "",
		"critic.optim":                              "",
	} {
		if got := c.Hint(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
