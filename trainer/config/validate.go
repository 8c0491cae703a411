package config

import (
	"errors"
	"fmt"
	"strings"

	"gad/algos"
	"gad/critic"
	"gad/data"
	"gad/internal/conf"
	"gad/model"
)

// Validate returns an error with a line for every value, and every combination of settings, that
// the stage refuses.
func (c *Config) Validate(stage Stage) error {
	if err := conf.Validate(c); err != nil {
		return err
	}
	var errs []error
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	if len(c.Data.TrainFiles) == 0 {
		bad("data.train_files: no training data: give --data FILE")
	}
	if c.Data.CacheDir == "" {
		bad("data.cache_dir is empty: name a folder, auto or none")
	}
	if err := c.Data.Choice().Check(); err != nil {
		bad("%w", err)
	}
	if c.Trainer.Output == "" {
		bad("trainer.default_local_dir: no run folder: give --output DIR")
	}
	if stage != Train && c.Model.Path == "" && c.Trainer.Resume == "" {
		bad("model.path: no student: give --model DIR")
	}
	errs = append(errs, c.validateEnv(stage)...)
	errs = append(errs, c.validateChunks(stage)...)
	errs = append(errs, c.validateTokens(stage)...)
	errs = append(errs, c.validateTrees(stage)...)
	if c.Data.Turns == data.TurnsAll && stage != SFT && !c.Acts(stage) {
		way := "use data.turns=each"
		if stage.HasCritic() {
			way += ", or give the environment of the conversations with --env"
		}
		bad("data.turns is all: only gad sft learns a conversation as one sequence; gad %s sets one answer of the student beside one of the teacher: %s", stage, way)
	}
	if c.LearnsRanking(stage) && c.Data.Ratings == "" {
		bad("trainer.objective ranking learns from scored answers: give --ratings FILE, made by gad data rate --keep-answers")
	}
	if c.LearnsRanking(stage) && c.Data.Turns == data.TurnsAll {
		bad("trainer.objective ranking: data.turns is all, and a row's answers are single ones: use last or each")
	}
	if err := c.Rollout.Validate(); err != nil && (stage != SFT || c.LearnsRanking(stage)) {
		errs = append(errs, err)
	}
	if m, b := c.Actor.PPOMiniBatch, c.Data.TrainBatchSize; m > b {
		bad("actor.ppo_mini_batch_size %d is larger than data.train_batch_size %d: lower it", m, b)
	}
	if m, b := c.Critic.PPOMiniBatch, c.Data.TrainBatchSize; m > b {
		bad("critic.ppo_mini_batch_size %d is larger than data.train_batch_size %d: lower it", m, b)
	}
	if n := c.Answers(stage); c.Algorithm.AdvEstimator == "grpo_passk" && n < 2 {
		bad("algorithm.adv_estimator grpo_passk needs rollout.n of at least 2, not %d", n)
	}
	if c.Algorithm.Gamma == 0 {
		bad("algorithm.gamma is 0: must be above 0; 1 discounts nothing")
	}
	if w := c.Algorithm.GiGPO.StepAdvantageW; w == 0 {
		bad("algorithm.gigpo.step_advantage_w is 0: must be above 0: without a step advantage use algorithm.adv_estimator=grpo")
	}
	if p := c.Algorithm.AdvPower; !(p > 0) {
		bad("algorithm.adv_power is %g: must be above 0; 1 leaves the rewards unchanged", p)
	} else if p != 1 && strings.HasPrefix(c.Algorithm.AdvEstimator, "reinforce_plus_plus") &&
		c.Algorithm.UseKLInReward {
		bad("algorithm.adv_power %g needs one reward per answer, but %s with algorithm.use_kl_in_reward has one per token: use grpo, or put the KL into the loss (actor.use_kl_loss)", p, c.Algorithm.AdvEstimator)
	}
	if k := c.Trainer.Shards; k&(k-1) != 0 || k > 4096 {
		bad("trainer.shards is %d: must be a power of two of at most 4096", k)
	}
	if t := c.Trainer; t.CriticWarmupUntil > 0 && t.CriticWarmupMax < t.CriticWarmup {
		bad("trainer.critic_warmup_max %d is below trainer.critic_warmup %d: raise it",
			t.CriticWarmupMax, t.CriticWarmup)
	}
	if b := c.Algorithm.Overlong.Len; c.Acts(stage) && b >= c.Env.MaxTokens {
		bad("algorithm.overlong_buffer.len %d must be below env.max_tokens %d", b, c.Env.MaxTokens)
	} else if n, key := c.AnswerLimit(stage); !c.Acts(stage) && b >= n {
		bad("algorithm.overlong_buffer.len %d must be below %s %d", b, key, n)
	}
	if c.Rollout.Merged == "true" && !c.Actor.LoRA.On() {
		bad("rollout.merged is true, but actor.lora.rank is 0: there are no adapters to merge: set a rank, or leave it out")
	}
	if b := c.Critic.LoRA.Base; c.Actor.LoRA.On() && model.Quantised(b) && b != c.Actor.LoRA.Base {
		bad("critic.lora.base is %s, but the discriminator's adapters stand on the student's base, which is %s: set actor.lora.base=%s, or leave critic.lora.base out", b, c.Actor.LoRA.Base, b)
	}
	errs = append(errs, c.Actor.Validate())
	if stage.HasCritic() {
		errs = append(errs, c.Critic.Validate())
	}
	switch stage {
	case DPO:
		errs = append(errs, c.DPO.Validate())
	case OPD, Warmup, Train:
		errs = append(errs, c.validateTeacher(stage)...)
	}
	if k := c.Algorithm.KLCtrl; k.Type == "adaptive" && !(k.TargetKL > 0) {
		bad("algorithm.kl_ctrl.target_kl is %g: an adaptive coefficient needs a target above 0",
			k.TargetKL)
	} else if n := c.Data.TrainBatchSize * c.Answers(stage); k.Type == "adaptive" &&
		c.Algorithm.UseKLInReward && stage.HasCritic() && k.Horizon <= float64(n)/5 {
		bad("algorithm.kl_ctrl.horizon %g: a step's %d answers could turn the coefficient negative: must be above %g", k.Horizon, n, float64(n)/5)
	}
	if f := c.Algorithm.FilterGroups; f.Enable && f.MaxGenBatches < 2 {
		bad("algorithm.filter_groups.max_num_gen_batches is %d: must be at least 2, or no group can be replaced", f.MaxGenBatches)
	}
	if f := c.Algorithm.FilterGroups; !f.Enable && f.MinSpread > 0 {
		bad("algorithm.filter_groups.min_spread %g needs algorithm.filter_groups.enable=true",
			f.MinSpread)
	}
	if c.Trainer.KeepBest != "" && len(c.Data.ValFiles) == 0 {
		bad("trainer.keep_best %s needs data.val_files", c.Trainer.KeepBest)
	}
	if complaint := c.CheckOffload(stage); complaint != "" {
		bad("%s", complaint)
	}
	errs = append(errs, c.validateTerms(stage)...)
	errs = append(errs, c.validateJudges(stage)...)
	// otherwise Trainer.findStart reports it
	if stage == Train && c.Trainer.Resume == "" && errors.Join(errs...) != nil {
		bad("trainer.resume_from: no warm-up to start from: give --resume RUN (made by gad warmup)")
	}
	return errors.Join(errs...)
}

// validateTeacher checks the settings of gad opd, and of a game with algorithm.teacher_weight.
func (c *Config) validateTeacher(stage Stage) (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	if !c.ReadsTeacher(stage) {
		return nil
	}
	if w := c.Algorithm.TeacherWeight; c.Mixes(stage) {
		switch {
		case c.Teacher.Path == "" && c.Teacher.URL == "" && c.Teacher.By == "":
			bad("algorithm.teacher_weight is %g, and there is no teacher: give --teacher DIR, or leave the weight out", w)
		case c.LearnsTeacher(stage):
			bad("algorithm.teacher_weight is %g, but the student of this warm-up learns the teacher's answers and has no advantages: set trainer.warmup_objective=policy, or give the weight to gad train alone", w)
		case c.Acts(stage):
			bad("algorithm.teacher_weight is %g: a teacher scores single answers, and env.command makes episodes: leave one of them out", w)
		case c.Chunks(stage).On():
			bad("algorithm.teacher_weight is %g: a teacher scores whole answers, and rollout.chunk cuts them: leave one of them out", w)
		}
		if l := c.Actor.PolicyLoss.LossMode; l == "geo_mean" {
			bad("actor.policy_loss.loss_mode geo_mean takes one advantage of an answer, and with algorithm.teacher_weight each token has its own: use gspo or vanilla")
		}
	} else if c.Teacher.Path == "" && c.Teacher.URL == "" && c.Teacher.By == "" {
		bad("teacher.path: no teacher: give --teacher DIR, a model whose weights are at hand, or --teacher-url URL, a server that scores texts. Of a teacher that is known by its answers alone gad sft, dpo and the game learn")
	}
	if h := c.Teacher.Horizon; c.HasHorizon(stage) && h > c.Data.MaxResponse {
		bad("teacher.horizon %d is above data.max_response_length %d: lower it, or leave it out for whole answers", h, c.Data.MaxResponse)
	}
	if key := c.Teacher.PromptKey; key != "" && c.Data.Turns != data.TurnsLast {
		bad("data.turns is %s, and teacher.prompt_key %s has one prompt of a row, which is that of its last answer: use data.turns=last", c.Data.Turns, key)
	}
	if n := c.Teacher.MaxPrompt; c.Teacher.PromptKey != "" && n > 0 && n < c.Data.MaxPrompt {
		bad("teacher.max_prompt_length %d is below data.max_prompt_length %d, and rows without a prompt of their own for the teacher have the student's: raise it, or leave it out", n, c.Data.MaxPrompt)
	}
	errs = append(errs, c.Teacher.validateModels()...)
	if stage == OPD {
		errs = append(errs, c.Teacher.validateRenew()...)
		errs = append(errs, c.Coach.validate(stage, c.Data)...)
	}
	if len(c.Teacher.Servers()) > 0 && c.Teacher.Loss == "exact" && stage == OPD {
		bad("teacher.loss is exact, which needs whole distributions, and a server gives the most probable tokens: use topk or policy, or load the teacher (--teacher)")
	}
	if c.Divergence(stage) && c.Actor.HasKL() {
		bad("actor.use_kl_loss is true: with teacher.loss=%s the loss is the divergence from the teacher, and has no second KL: leave it out, or use teacher.loss=policy", c.Teacher.Loss)
	}
	if t := c.Rollout.Temperature; t != 1 {
		what := "gad opd"
		if c.Mixes(stage) {
			what = "algorithm.teacher_weight"
		}
		bad("rollout.temperature is %g: %s compares the student's log-probabilities with the teacher's, which are those of temperature 1: set it to 1", t, what)
	}
	return errs
}

// validateRenew checks the settings of a teacher that follows the student.
func (c TeacherConfig) validateRenew() (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	switch n := c.Renew; {
	case n == 0:
	case c.URL != "":
		bad("teacher.renew is %d, and a server keeps its weights: load the teacher (--teacher)", n)
	case c.By != "":
		bad("teacher.renew is %d, and with teacher.by there are several teachers: leave one of them out",
			n)
	case c.Weights != model.Native:
		bad("teacher.renew is %d, and teacher.weights is %s: a copy of the student has its weights: use native", n, c.Weights)
	}
	return errs
}

// validate checks the settings of notes.
func (c CoachConfig) validate(stage Stage, rows DataConfig) (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	if !c.On(stage) {
		return nil
	}
	has := func(key, text, example string, parts ...string) {
		for _, part := range parts {
			if strings.Count(text, part) != 1 {
				bad("%s must have %s once: give a text such as %q", key, part, example)
			}
		}
	}
	has("coach.template", c.Template, Default().Coach.Template, "{prompt}", "{notes}")
	if c.ByStudent(stage) {
		has("coach.question", c.Question, Default().Coach.Question, "{prompt}", "{answer}")
	}
	if rows.Turns != data.TurnsLast {
		bad("data.turns is %s, and coach.command writes notes on one answer of a row: use data.turns=last", rows.Turns)
	}
	all := rows.TrainBatchSize
	switch n := c.PlainOf(stage, all); {
	case c.Plain == 1:
		bad("coach.plain is 1: no answer would have notes: lower it, or leave coach.command out")
	case c.Plain > 0 && n == 0:
		bad("coach.plain %g of data.train_batch_size %d is no prompt: raise one of them", c.Plain, all)
	case n == all:
		bad("coach.plain %g of data.train_batch_size %d is all prompts: lower it, or raise the batch",
			c.Plain, all)
	}
	return errs
}

// validateModels checks the teachers of teacher.by.
func (c TeacherConfig) validateModels() (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	if c.By == "" {
		return nil
	}
	for _, x := range [][2]string{{"teacher.path", c.Path}, {"teacher.url", c.URL}} {
		if x[1] != "" {
			bad("%s is %s, and teacher.by %s names the teachers of teacher.models: leave one of them out",
				x[0], x[1], c.By)
		}
	}
	if c.Models == "" {
		bad("teacher.by is %s, and teacher.models is empty: give VALUE=FOLDER or VALUE=URL for each value of that column", c.By)
		return errs
	}
	seen := map[string]bool{}
	for _, pair := range strings.Split(c.Models, ",") {
		value, at, _ := strings.Cut(pair, "=")
		value, at = strings.TrimSpace(value), strings.TrimSpace(at)
		switch {
		case value == "" || at == "":
			bad("teacher.models: %q: write VALUE=FOLDER or VALUE=URL, with commas between several", pair)
		case seen[value]:
			bad("teacher.models: %s is given twice: a row has one teacher", value)
		}
		seen[value] = true
	}
	return errs
}

// Validate checks values that the field tags cannot refuse.
func (c DPOConfig) Validate() error {
	for _, s := range []struct {
		key string
		v   float64
	}{{"beta", c.Beta}, {"discopop_tau", c.Tau}} {
		if !(s.v > 0) {
			return fmt.Errorf("settings: dpo.%s is %g: must be above 0", s.key, s.v)
		}
	}
	if _, err := algos.NewDPO[float64](c.Objective()); err != nil {
		return fmt.Errorf("settings: dpo: %w", err)
	}
	return nil
}

// CheckOffload returns a complaint about moments that are to leave the device's memory on a device
// that has no other; "": none.
func (c *Config) CheckOffload(stage Stage) (complaint string) {
	key := "actor.optim.offload"
	switch {
	case c.Trainer.Device == "cuda":
		return ""
	case c.Actor.Optim.Offload:
	case c.Critic.Optim.Offload && stage.HasCritic():
		key = "critic.optim.offload"
	default:
		return ""
	}
	return fmt.Sprintf(
		"%s is true, but trainer.device is %s: there is no other memory: leave it out", key,
		c.Trainer.Device)
}

// validateJudges checks the settings of the judges.
func (c *Config) validateJudges(stage Stage) (errs []error) {
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	w, r := c.Algorithm.CheckerWeight, c.Trainer
	if w > 0 && r.Checker == "" {
		bad("algorithm.checker_weight %g needs trainer.checker: give --checker CMD", w)
	}
	if r.Checker != "" && len(c.Data.ValFiles) == 0 &&
		!(w > 0 && stage.HasCritic() || c.ChecksAnswers(stage)) {
		bad("trainer.checker has nothing to check: give --val-data, or algorithm.checker_weight above 0 in the game")
	}
	if r.HeldOutCritic != "" && len(c.Data.ValFiles) == 0 {
		bad("trainer.held_out_critic needs data.val_files")
	}
	if r.KeepBest == "val/check" && r.Checker == "" {
		bad("trainer.keep_best val/check needs trainer.checker: give --checker CMD")
	}
	if r.KeepBest == "val/env_reward" && !c.Acts(stage) {
		bad("trainer.keep_best val/env_reward needs env.command: give --env CMD")
	}
	if r.KeepBest == "val/held_out_d" && r.HeldOutCritic == "" {
		bad("trainer.keep_best val/held_out_d needs trainer.held_out_critic")
	}
	return errs
}

// validateEnv checks the settings of the environment.
func (c *Config) validateEnv(stage Stage) (errs []error) {
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	if !stage.HasCritic() {
		return nil
	}
	if c.Env.Command == "" {
		if w := c.Algorithm.EnvWeight; w > 0 {
			bad("algorithm.env_weight %g needs env.command: give --env CMD", w)
		}
		if c.Algorithm.AdvEstimator == "gigpo" {
			bad("algorithm.adv_estimator gigpo compares turns of episodes, and there is no env.command: give --env CMD, or use grpo")
		}
		return errs
	}
	if c.Data.Turns != data.TurnsAll {
		bad("data.turns is %s: with env.command a row is one episode of the teacher: use data.turns=all, as --env does", c.Data.Turns)
	}
	if c.Env.MaxTokens < c.Data.MaxResponse {
		bad("env.max_tokens %d is below data.max_response_length %d: an episode is at least a turn: raise it", c.Env.MaxTokens, c.Data.MaxResponse)
	}
	if w := c.Algorithm.CheckerWeight; w > 0 {
		bad("algorithm.checker_weight %g: a checker reads one answer, and env.command makes episodes: use algorithm.env_weight", w)
	}
	if r := c.Trainer; !c.ChecksAnswers(stage) && c.Algorithm.CheckerWeight == 0 &&
		(r.Checker != "" || r.HeldOutCritic != "") {
		bad("trainer.checker and trainer.held_out_critic judge single answers, and env.command makes episodes: leave them out")
	}
	if k := c.Trainer.KeepBest; k == "val/rouge_l" {
		bad("trainer.keep_best %s compares texts of single answers, and env.command makes episodes: use val/env_reward", k)
	}
	return errs
}

// validateTokens checks the settings of rewards by token (critic.level=token).
func (c *Config) validateTokens(stage Stage) (errs []error) {
	if !c.Critic.ByToken() || !stage.HasCritic() {
		return nil
	}
	for _, x := range []struct {
		wrong bool
		what  string
	}{
		{c.Algorithm.AdvEstimator != "reinforce_plus_plus", "algorithm.adv_estimator " + c.Algorithm.AdvEstimator + ", which takes an answer by its whole reward: use reinforce_plus_plus (algorithm.gamma is the weight of later tokens)"},
		{c.Algorithm.AdvPower != 1, fmt.Sprintf("algorithm.adv_power %g, which needs one reward per answer: use 1", c.Algorithm.AdvPower)},
		{c.Algorithm.UseKLInReward, "algorithm.use_kl_in_reward: its terms are a KL already: leave it out"},
		{c.Algorithm.TruncReward != "score", "algorithm.truncated_reward " + c.Algorithm.TruncReward + ", which is a reward of whole answers: use score"},
		{c.Env.Command != "", "env.command: leave one of them out"},
		{c.Tree(stage).Trees > 0, "rollout.tree: leave one of them out"},
		{c.Algorithm.Terms != "" || c.Algorithm.CheckerWeight > 0 || c.Algorithm.LengthCoef != 0 || c.Algorithm.Overlong.Len > 0, "rewards of whole answers (algorithm.terms, checker_weight, length_coef, overlong_buffer): leave them out"},
	} {
		if x.wrong {
			errs = append(errs, fmt.Errorf("settings: critic.level token does not go with %s", x.what))
		}
	}
	return errs
}

// validateChunks checks the settings of thoughts in chunks.
func (c *Config) validateChunks(stage Stage) (errs []error) {
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	x := c.Chunks(stage)
	if !x.On() {
		if c.Critic.Reads == "last" && stage.HasCritic() {
			bad("critic.reads last is the last chunk of a thought, and rollout.chunk is 0: set it, or leave critic.reads out")
		}
		return errs
	}
	if c.Critic.Head == critic.Likelihood && stage.HasCritic() {
		bad("critic.head likelihood reads an answer in one context, and with rollout.chunk the student writes it in several, each with other probabilities: use critic.head=value")
	}
	switch {
	case x.Carry >= x.Size:
		bad("rollout.carry %d must be below rollout.chunk %d: a later chunk has the difference for new tokens", x.Carry, x.Size)
	case x.Carry < 1:
		bad("rollout.chunk %d is too short to carry anything: raise it", x.Size)
	case x.Head >= x.Carry:
		bad("rollout.carry_head %d must be below rollout.carry %d, of which it is a part", x.Head,
			x.Carry)
	default:
		if err := x.Check(); err != nil {
			bad("rollout.chunk: %w: lower rollout.chunks", err)
		}
	}
	if c.Acts(stage) {
		bad("rollout.chunk %d cuts single answers into chunks, and env.command makes episodes: leave one of them out", x.Size)
	}
	if c.Data.Turns == data.TurnsAll && !c.Acts(stage) {
		bad("rollout.chunk %d cuts one answer into chunks, and data.turns is all: a conversation is one sequence: use data.turns=each", x.Size)
	}
	return errs
}

// mostAnswers is the largest number of answers that a prompt's trees may have.
const mostAnswers = 4096

// validateTrees checks the settings of answers that branch.
func (c *Config) validateTrees(stage Stage) (errs []error) {
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	tree, name := c.Tree(stage), c.Algorithm.AdvEstimator
	if tree.Trees == 0 {
		if stage.HasCritic() && (name == "tree_grpo" || name == "tree_node") {
			way := "set it, or use grpo"
			if stage != Train {
				way = "it is for gad train: use grpo"
			}
			bad("algorithm.adv_estimator %s compares the answers of trees, and rollout.tree.trees is 0: %s", name, way)
		}
		return errs
	}
	if n := c.Rollout.N; n != 1 {
		bad("rollout.n is %d beside rollout.tree.trees %d: the answers to a prompt are those of its trees: set rollout.n=1", n, tree.Trees)
	}
	if n := tree.Answers(); n > mostAnswers {
		bad("rollout.tree: %d trees of 1 + %d rounds x %d branches have %d answers, more than %d: lower rollout.tree.rounds, expand or trees", tree.Trees, tree.Rounds, tree.Expand, n, mostAnswers)
	}
	if name == "gigpo" || c.Algorithm.GroupStats == "turns" {
		bad("algorithm.adv_estimator %s with algorithm.group_stats %s counts the turns of whole episodes, and with rollout.tree.trees %d the first of them are another episode's: use tree_grpo, and episodes", name, c.Algorithm.GroupStats, tree.Trees)
	}
	if c.Algorithm.UseKLInReward {
		bad("algorithm.use_kl_in_reward subtracts the KL of an answer's own tokens, and with rollout.tree.trees %d the first of them are another answer's: put the KL into the loss (actor.use_kl_loss)", tree.Trees)
	}
	return errs
}

// CheckRanks refuses a number of ranks among which the shards cannot be divided.
func (c *Config) CheckRanks(ranks int) error {
	if c.Trainer.Shards%ranks != 0 {
		return fmt.Errorf("%w: trainer.shards is %d, but there are %d ranks: each needs as many shards as any other: set trainer.shards=%d or a multiple", ErrConfig, c.Trainer.Shards, ranks, ranks)
	}
	return nil
}
