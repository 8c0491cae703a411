package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/conf"
)

// Facts at the settings are valid: stages that there are, and names of other trainers that no
// setting has and that one field alone claims.
func TestFactsAreValid(t *testing.T) {
	c := Default()
	keys := map[string]bool{}
	for f := range c.facts() {
		keys[f.key] = true
	}
	claimed := map[string]string{} // alias -> tag
	for f := range c.facts() {
		tag := f.tags[len(f.tags)-1]
		if text, ok := tag.Lookup("stages"); ok {
			stages := strings.Fields(text)
			if len(stages) == 0 || len(stages) > 4 {
				t.Errorf("%s: stages %q", f.key, text)
			}
			for i, s := range stages {
				if !slices.Contains(Stages, Stage(s)) ||
					slices.Contains(stages[:i], s) {
					t.Errorf("%s: stages %q", f.key, text)
				}
			}
			for _, outer := range f.tags[:len(f.tags)-1] {
				if around, ok := outer.Lookup("stages"); ok {
					t.Errorf("%s: stages %q within a group of %q", f.key, text, around)
				}
			}
		}
		for name, only := range map[string]string{"fixed": "true", "inherit": "no"} {
			if text, ok := tag.Lookup(name); ok && text != only {
				t.Errorf("%s: %s %q, expected %q", f.key, name, text, only)
			}
		}
		for _, alias := range strings.Fields(tag.Get("alias")) {
			if was, ok := claimed[alias]; ok && was != string(tag) || keys[alias] &&
				alias != "epochs" || f.group {
				t.Errorf("%s: alias %q is a setting, a group's, or of two fields", f.key, alias)
			}
			claimed[alias] = string(tag)
		}
	}
	for key, ignoring := range map[string][]Stage{"trainer.warmup_objective": {SFT, Train, DPO},
		"critic.optim.lr": {SFT, DPO}, "dpo.beta": {SFT, Warmup, Train},
		"teacher.beta": {SFT, Warmup, Train, DPO}, "teacher.system": {SFT, Warmup, Train, DPO},
		"rollout.temperature": {SFT}, "actor.policy_loss.loss_mode": {SFT, DPO},
		"actor.optim.lr": nil} {
		for _, stage := range []Stage{SFT, Warmup, Train, DPO} {
			if got, want :=
				c.Ignores(stage, key) != "", slices.Contains(ignoring, stage); got != want {
				t.Errorf("gad %s ignores %s: %t, want %t", stage, key, got, want)
			}
		}
	}
	var fixed []string
	for _, f := range c.Fixed() {
		fixed = append(fixed, f.Key)
	}
	if got, want := strings.Join(fixed, " "),
		"data.turns data.where data.template data.train_batch_size data.max_prompt_length data.max_response_length data.overlong_prompts data.truncated_teachers data.soft_labels rollout.chunk rollout.carry rollout.carry_head rollout.chunks algorithm.adv_power algorithm.env_weight actor.optim.moments actor.lora actor.lora.base critic.head critic.level critic.reads critic.optim.moments critic.lora critic.lora.base critic.group_ot teacher.by teacher.template teacher.system teacher.prompt_key teacher.max_prompt_length teacher.loss teacher.top_k teacher.horizon teacher.horizon_schedule teacher.renew teacher.weights coach.template coach.question coach.max_tokens coach.plain env.max_turns env.max_tokens env.invalid_penalty trainer.critic_warmup_until trainer.objective trainer.seed"; got != want {
		t.Errorf("fixed within a run: %s\nwant %s", got, want)
	}
	if Inherited("trainer.total_steps") || Inherited("critic.optim.lr_scheduler") ||
		!Inherited("actor.optim.lr") || !Inherited("trainer.seed") {
		t.Error("what the next stage inherits")
	}
	for alias, want := range map[string]string{"learning_rate": "actor.optim.lr",
		"num_generations": "rollout.n", "actor_rollout_ref.model.lora_rank": "actor.lora.rank",
		"lr": ""} {
		if got, _ := Alias(alias); got != want {
			t.Errorf("%s is %q, want %q", alias, got, want)
		}
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
		{OPD, "model.path=m teacher.path=m/", "teacher.path m/ is the student itself, and reads what it reads: there is nothing to learn: give another model, or teacher.prompt_key or coach.command, which the teacher alone reads"},
		{OPD, "model.path=m teacher.path=m teacher.system=s", ""},
		{OPD, "model.path=m teacher.path=n", ""},
		{SFT, "critic.optim.lr=0", ""},
		{Train, "critic.optim.lr=0", "critic.optim.lr is 0: the discriminator will not change"},
		{SFT, "actor.optim.min_lr_ratio=0.1", "actor.optim.min_lr_ratio 0.1 has no effect: actor.optim.lr_scheduler is constant: set it to cosine or linear"},
		{SFT, "actor.optim.min_lr_ratio=0.1 actor.optim.lr_scheduler=cosine", ""},
		{Warmup, "critic.optim.min_lr_ratio=0.1", "critic.optim.min_lr_ratio 0.1 has no effect: critic.optim.lr_scheduler is constant: set it to cosine or linear"},
		{Warmup, "trainer.critic_warmup_max=50",
			"trainer.critic_warmup_max 50 has no effect: trainer.critic_warmup_until is 0"},
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

// A run's config.yaml from before a setting was taken out is read where it was off, and only there.
func TestRetiredSettings(t *testing.T) {
	for key, r := range retired {
		group, name, _ := strings.Cut(key, ".")
		read := func(value string) error {
			path := filepath.Join(t.TempDir(), "config.yaml")
			text := fmt.Sprintf("%s:\n  %s: %s\ntrainer:\n  seed: 7\n", group, name, value)
			if group == "trainer" {
				text = fmt.Sprintf("trainer:\n  %s: %s\n  seed: 7\n", name, value)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := Default()
			err := conf.Load(&c, path, nil, nil)
			if err == nil && c.Trainer.Seed != 7 {
				t.Errorf("%s: what stands behind it is not read", key)
			}
			return err
		}
		if err := read(cmp.Or(r.off, `""`)); err != nil {
			t.Errorf("%s: off: %v", key, err)
		}
		c := Default()
		for _, err := range []error{read("0.5"), read("[0]"),
			conf.Load(&c, "", []string{key + "=" + r.off}, nil)} {
			if err == nil || !strings.Contains(err.Error(), r.why) {
				t.Errorf("%s: %v, want %q", key, err, r.why)
			}
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
			if name := strings.TrimRight(
				strings.FieldsFunc(rest,
					func(r rune) bool { return r == ' ' || r == '=' || r == ',' })[0],
				","); !known(name) {
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
		"algorithm.gigpo.mode":                      verls["algorithm.gigpo.mode"],
		"rollout.gpu_memory_utilization":            verls["actor_rollout_ref.rollout.gpu_memory_utilization"],
		"actor.clip_ratio":                          "write actor.clip_ratio_low and actor.clip_ratio_high",
		"model.lora_rank":                           "write actor.lora.rank",
		"num_generations":                           "write rollout.n",
		"data.max_completion_length":                "write data.max_response_length",
		"critic.optim.learning_rate":                "write critic.optim.lr",
		"critic.learning_rate":                      "",
		"beta":                                      "", // dpo and opd have one too
		"epochs":                                    "write trainer.total_epochs",
		"actor.optim.lrr":                           "",
		"critic.optim":                              "",
	} {
		if got := c.Hint(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// Every preset is of settings that there are, in each stage, and of none that the stage ignores.
func TestPresets(t *testing.T) {
	for _, name := range PresetNames() {
		for _, stage := range []Stage{SFT, Warmup, Train, DPO} {
			set, err := Preset(name, stage)
			if err != nil {
				t.Fatal(err)
			}
			c := StageDefaults(stage)
			if err := c.Load("", append(set, "env.command=x")...); err != nil {
				t.Errorf("%s, gad %s: %v", name, stage, err)
			}
			for _, s := range set {
				key, _, _ := strings.Cut(s, "=")
				if why := c.Ignores(stage, key); why != "" {
					t.Errorf("%s, gad %s: %s: %s", name, stage, s, why)
				}
			}
		}
	}
}

// actor.ratio_level=auto follows the reward: turns with gigpo and Flow-GRPO's aggregation.
func TestRatioLevel(t *testing.T) {
	for set, want := range map[string]string{
		"":                              "episode",
		"algorithm.adv_estimator=gigpo": "turn",
		"algorithm.adv_estimator=rloo":  "episode",
		"actor.ratio_level=turn":        "turn",
		"critic.level=turn":             "turn",
		"rollout.tree.trees=4":          "turn",
		"rollout.tree.trees=4 rollout.tree.rounds=0":              "episode",
		"algorithm.group_stats=turns":                             "episode",
		"actor.loss_agg_mode=token-mean":                          "episode",
		"algorithm.gigpo.step_advantage_w=2":                      "episode",
		"actor.loss_agg_mode=episode-mean-turn-mean-token-mean":   "turn",
		"algorithm.adv_estimator=gigpo actor.ratio_level=episode": "episode",
	} {
		c := StageDefaults(Train)
		if err := c.Load("", strings.Fields(set)...); err != nil {
			t.Fatal(err)
		}
		if got := c.RatioLevel(); got != want {
			t.Errorf("%s: %s, want %s", set, got, want)
		}
	}
	for preset, want := range map[string]string{"gigpo": "turn", "flow-grpo": "turn",
		"gad": "episode"} {
		set, err := Preset(preset, Train)
		if err != nil {
			t.Fatal(err)
		}
		c := StageDefaults(Train)
		if err := c.Load("", set...); err != nil || c.RatioLevel() != want {
			t.Errorf("%s: %s, %v, want %s", preset, c.RatioLevel(), err, want)
		}
	}
}

// What the needs tags name are settings, with values that these can have; and a setting that needs
// another is idle exactly where that one is not so.
func TestNeedsAreSettings(t *testing.T) {
	asked := 0
	for f := range new(Config).facts() {
		for _, need := range strings.Fields(f.ownTag("needs")) {
			asked++
			c := StageDefaults(Train)
			other := need[:strings.IndexAny(need, "=!>")]
			if strings.HasPrefix(other, ".") {
				other = f.key[:strings.LastIndex(f.key, ".")] + other
			}
			if o, ok := c.find(other); !ok {
				t.Errorf("%s needs %s, which is no setting", f.key, other)
			} else if values, one := strings.CutPrefix(need[strings.IndexAny(need, "=!>"):],
				"="); one && o.ownTag("choices") != "" {
				for _, v := range strings.Split(values, "|") {
					if !slices.Contains(strings.Split(o.ownTag("choices"), ","), v) {
						t.Errorf("%s needs %s=%s, which is no choice", f.key, other, v)
					}
				}
			}
		}
	}
	if asked < 20 {
		t.Errorf("%d needs: are they read?", asked)
	}
	for _, x := range []struct {
		stage     Stage
		set       []string
		key, want string
	}{
		{Train, nil, "critic.replay.share", "critic.replay.size is 0"},
		{Train, []string{"critic.replay.size=8"}, "critic.replay.share", ""},
		{Train, nil, "critic.level", "env.command is empty"},
		{Train, []string{"env.command=true"}, "critic.level", ""},
		{SFT, nil, "actor.optim.min_lr_ratio",
			"actor.optim.lr_scheduler is constant: set it to cosine or linear"},
		{SFT, []string{"actor.optim.lr_scheduler=linear"}, "actor.optim.min_lr_ratio", ""},
		{Train, nil, "algorithm.kl_ctrl.horizon",
			"algorithm.kl_ctrl.type is fixed: set it to adaptive"},
		{OPD, nil, "teacher.beta", "teacher.loss is policy: set it to exact"},
		{Train, nil, "teacher.weights", "algorithm.teacher_weight is 0: no teacher is asked"},
		{Train, []string{"algorithm.adv_estimator=rloo"}, "algorithm.norm_adv_by_std_in_grpo",
			"algorithm.adv_estimator is rloo: set it to grpo or grpo_passk or gigpo or tree_grpo"},
		{Train, nil, "algorithm.norm_adv_by_std_in_grpo", ""},
		{Train, nil, "algorithm.kl_ctrl.type",
			"algorithm.use_kl_in_reward is false: set it to true"},
		{Train, []string{"actor.policy_loss.loss_mode=gpg"}, "actor.clip_ratio_low",
			"actor.policy_loss.loss_mode is gpg: set it to vanilla or gspo or gspo_token or cispo or geo_mean or dapo"},
		{Train, []string{"teacher.loss=exact"}, "actor.clip_ratio_low", ""}, // read by opd alone
		{OPD, []string{"teacher.loss=exact"}, "actor.policy_loss.loss_mode",
			"teacher.loss is exact: set it to policy"},
		{OPD, []string{"teacher.loss=topk"}, "actor.clip_ratio_high",
			"teacher.loss is topk: set it to policy"},
		{Train, []string{"rollout.n=1", "rollout.tree.trees=2", "rollout.tree.rounds=0"},
			"rollout.tree.select", "rollout.tree.rounds is 0"},
		{DPO, []string{"dpo.loss_type=sft"}, "dpo.beta", "dpo.loss_type is sft"},
		{SFT, []string{"trainer.total_steps=3"}, "trainer.total_epochs",
			"trainer.total_steps is 3: set it to 0"},
		{SFT, nil, "trainer.total_epochs", ""},
		{SFT, nil, "trainer.resume_optimizer", "trainer.resume_from is empty"},
		{SFT, []string{"data.ratings=r"}, "data.ratings",
			"data.where is empty: no row is chosen by the ratings"},
		{SFT, []string{"data.ratings=r", "data.where=right > 0"}, "data.ratings", ""},
		{SFT, []string{"data.ratings=r", "trainer.objective=ranking"}, "data.ratings", ""},
		{SFT, []string{"data.cache_dir=none"}, "data.cache_gb", "data.cache_dir is none"},
	} {
		c := StageDefaults(x.stage)
		if err := conf.Load(&c, "", x.set, nil); err != nil {
			t.Fatal(err)
		}
		if got := c.Ignores(x.stage, x.key); got != x.want {
			t.Errorf("gad %s %q: %s is idle because %q, want %q", x.stage, x.set, x.key, got,
				x.want)
		}
	}
}

// Settings that do nothing, or nothing good, are answered where settings are checked.
func TestSilentSettings(t *testing.T) {
	for _, x := range []struct {
		stage Stage
		set   string
		want  string // begins a warning, or is in the refusal
	}{
		{Train, "rollout.top_k=1", "rollout.top_k is 1: every answer to a prompt would be the same"},
		{OPD, "rollout.min_p=1", "rollout.min_p is 1: only the most probable token"},
		{SFT, "actor.optim.lr=100", "actor.optim.lr is 100: AdamW moves every weight"},
		{SFT, "actor.optim.eps=3", "actor.optim.eps is 3: must be above 0 and below 1"},
		{Train, "critic.replay.share=0.9", "critic.replay.share 0.9 has no effect: "},
		{Warmup, "critic.level=turn", "critic.level turn has no effect: "},
		{Train, "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive " +
			"algorithm.kl_ctrl.horizon=64 data.train_batch_size=40 rollout.n=8",
			"a step's 320 answers could turn the coefficient negative: must be above 64"},
		{Train, "rollout.n=1 rollout.tree.trees=2 rollout.tree.segment=9999",
			"rollout.tree.segment 9999 is not below data.max_response_length"},
	} {
		c := StageDefaults(x.stage)
		set := append(strings.Fields(x.set), "data.train_files=x", "model.path=x",
			"trainer.default_local_dir=x", "teacher.path=x", "trainer.resume_from=x")
		if err := conf.Load(&c, "", set, nil); err != nil {
			t.Fatal(err)
		}
		said := fmt.Sprint(c.Validate(x.stage), strings.Join(c.Warnings(x.stage), "\n"))
		if !strings.Contains(said, x.want) {
			t.Errorf("gad %s %s says %q, not %q", x.stage, x.set, said, x.want)
		}
	}
}
