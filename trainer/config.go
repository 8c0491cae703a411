package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"gad/actor"
	"gad/critic"
	"gad/data"
	"gad/internal/conf"
	"gad/model"
)

// Config is everything that a run can be told, in the sections of the YAML
// file. Names that verl also has mean the same here.
type Config struct {
	Model     ModelConfig         `yaml:"model"`
	Data      DataConfig          `yaml:"data"`
	Rollout   actor.RolloutConfig `yaml:"rollout" doc:"how answers are sampled from the student"`
	Algorithm AlgorithmConfig     `yaml:"algorithm"`
	Actor     actor.Config        `yaml:"actor" doc:"the student"`
	Critic    critic.Config       `yaml:"critic" doc:"the discriminator"`
	DPO       DPOConfig           `yaml:"dpo"`
	Trainer   RunConfig           `yaml:"trainer"`
}

// ModelConfig is the `model` section.
type ModelConfig struct {
	Path       string `yaml:"path" doc:"student: a Hugging Face model folder, a GGUF file, or a folder of LoRA adapters that names its base (flag --model)"`
	Adapter    string `yaml:"adapter_path" doc:"LoRA adapters to go on with, on the weights of path: a folder as peft writes it (flag --adapter)"`
	RewardPath string `yaml:"reward_path" doc:"model folder or GGUF file that the discriminator starts from; empty: the student's, or with --resume the run's discriminator (flag --reward-model)"`
}

// DataConfig is the `data` section.
type DataConfig struct {
	TrainFiles     []string `yaml:"train_files" doc:"training data: files (Arrow IPC, Parquet, JSON lines, CSV), folders of them or patterns such as shards/*.arrow, read as one set in this order (flag --data)"`
	ValFiles       []string `yaml:"val_files" doc:"held-out data (rows that are not trained on) for the val/ metrics, as train_files; empty is none (flag --val-data)"`
	Split          string   `yaml:"split" doc:"which split of train_files, if a folder has several, such as train; empty is the only one (flag --split)"`
	ValSplit       string   `yaml:"val_split" doc:"which split of val_files (flag --val-split)"`
	Format         string   `yaml:"format" choices:"auto,messages,sharegpt,alpaca,qa,prompt_completion,preference" doc:"what the rows look like: see doc/data.md; auto finds out by the columns and says so (flag --format)"`
	ContentKey     string   `yaml:"content_key" doc:"column with the conversation or the prompt; where it is missing, the format's own"`
	TeacherKey     string   `yaml:"teacher_key" doc:"column with the teacher's answer; where it is missing, the format's own"`
	TrainBatchSize int      `yaml:"train_batch_size" min:"1" max:"1048576" doc:"prompts per step"`
	MaxPrompt      int      `yaml:"max_prompt_length" min:"1" max:"1048576" doc:"longest prompt in tokens"`
	MaxResponse    int      `yaml:"max_response_length" min:"1" max:"1048576" doc:"longest answer in tokens, end token included; longer teacher answers are cut there"`
	Overlong       string   `yaml:"overlong_prompts" choices:"error,filter" doc:"what happens to rows whose prompt is over the limit"`
	TruncTeacher   string   `yaml:"truncated_teachers" choices:"keep,filter" doc:"what happens to rows whose teacher answer would be cut, or is unfinished by its finish_reason; kept ones are left out of the discriminator's pairs unless critic.truncated is include"`
	CacheDir       string   `yaml:"cache_dir" doc:"folder for encoded training rows, so that the next run on the same data and tokenizer need not encode them again (data of 4 MB and more); auto: gad in the user's cache folder, on Linux $XDG_CACHE_HOME or ~/.cache; none: rows are encoded in each run. Results do not depend on it"`
	CacheGB        int      `yaml:"cache_gb" min:"1" max:"1000000" doc:"largest size of that folder, GB; the oldest files are removed first"`
}

// AlgorithmConfig is the `algorithm` section: from scores to advantages.
type AlgorithmConfig struct {
	AdvEstimator  string        `yaml:"adv_estimator" choices:"grpo,dr_grpo,rloo,opo,reinforce_plus_plus,reinforce_plus_plus_baseline,grpo_passk,global,rank,zscore" doc:"advantage estimator; doc/algorithms.md has the formulas"`
	NormByStd     bool          `yaml:"norm_adv_by_std_in_grpo" doc:"divide by the standard deviation of the group; false makes grpo the same as dr_grpo"`
	Gamma         float64       `yaml:"gamma" min:"0" max:"1" doc:"discount of reinforce_plus_plus"`
	ZScoreFloor   float64       `yaml:"zscore_floor" min:"0" doc:"zscore divides by at least this standard deviation"`
	AdvPower      float64       `yaml:"adv_power" min:"0" doc:"power of GRGC (arXiv 2609.39757, which uses 1.5): rewards are standardised within their group and raised to this power before the estimator, so that the best and the worst answers count more; 1: unchanged"`
	AdvClip       float64       `yaml:"adv_clip" min:"0" doc:"clip advantages to plus or minus this; 0: no clip"`
	UseKLInReward bool          `yaml:"use_kl_in_reward" doc:"subtract the KL to the reference from the reward (no gradient)"`
	KLPenalty     string        `yaml:"kl_penalty" choices:"k1,kl,abs,k2,mse,k3,low_var_kl" doc:"KL estimator in the reward"`
	KLCtrl        KLCtrl        `yaml:"kl_ctrl"`
	FilterGroups  FilterGroups  `yaml:"filter_groups"`
	ScoreClip     float64       `yaml:"score_clip" min:"0" doc:"clip scores to plus or minus this in the reward; 0: no clip"`
	LengthCoef    float64       `yaml:"length_coef" doc:"coefficient of log(1+length), which is subtracted from the reward; above 0 favours short answers"`
	Overlong      OverlongPunct `yaml:"overlong_buffer"`
	CheckerWeight float64       `yaml:"checker_weight" min:"0" max:"1" doc:"share w of the checker (trainer.checker) in the reward: (1-w)*z(score) + w*z(check), where z standardises within a prompt's answers; 0: the discriminator's score alone"`
	TruncReward   string        `yaml:"truncated_reward" choices:"group_min,score" doc:"reward of an answer cut at the length limit: the smallest of its group, or its own score"`
}

// KLCtrl is the `algorithm.kl_ctrl` section.
type KLCtrl struct {
	Type     string  `yaml:"type" choices:"fixed,adaptive" doc:"fixed: kl_coef does not change; adaptive: it follows target_kl"`
	KLCoef   float64 `yaml:"kl_coef" min:"0" doc:"KL coefficient in the reward; the initial one if adaptive"`
	TargetKL float64 `yaml:"target_kl" min:"0" doc:"target of the adaptive coefficient, nats per token"`
	Horizon  float64 `yaml:"horizon" min:"1" doc:"number of answers over which it adapts; larger is slower"`
}

// FilterGroups is the `algorithm.filter_groups` section: dynamic sampling (arXiv 2503.14476).
type FilterGroups struct {
	Enable        bool    `yaml:"enable" doc:"drop prompts whose answers all have the same reward and sample other prompts instead (DAPO's dynamic sampling)"`
	MinSpread     float64 `yaml:"min_spread" min:"0" doc:"with enable: a prompt is also dropped if the largest and the smallest reward of its answers differ by no more than this. 0 drops equal rewards only, which a checker gives and a discriminator's scores hardly ever are"`
	MaxGenBatches int     `yaml:"max_num_gen_batches" min:"1" max:"1000000" doc:"rollout batches per step; after the last one the step uses what it has"`
}

// OverlongPunct is the `algorithm.overlong_buffer` section (arXiv 2503.14476, equation 13).
type OverlongPunct struct {
	Len    int     `yaml:"len" min:"0" max:"100000000" doc:"the penalty grows over this many tokens before the length limit; 0: no penalty"`
	Factor float64 `yaml:"penalty_factor" min:"0" doc:"penalty at the limit"`
}

// RunConfig is the `trainer` section.
type RunConfig struct {
	Output            string  `yaml:"default_local_dir" doc:"run folder (flag --output)"`
	Resume            string  `yaml:"resume_from" doc:"run or checkpoint folder to start from or to resume (flag --resume)"`
	ResumeOptim       string  `yaml:"resume_optimizer" choices:"none,critic,both" doc:"which optimizer states the game takes from the warm-up checkpoint"`
	CriticWarmup      int     `yaml:"critic_warmup" min:"0" max:"1000000000" doc:"number of steps at the start in which only the discriminator learns (flag --critic-warmup)"`
	CriticWarmupUntil float64 `yaml:"critic_warmup_until" min:"0" doc:"the discriminator learns alone until its smoothed loss is below this (critic/d_loss_distinct, where guessing gives 0.693); trainer.critic_warmup is then the least number of such steps, and the run becomes longer by the additional ones; 0: exactly trainer.critic_warmup steps"`
	CriticWarmupMax   int     `yaml:"critic_warmup_max" min:"1" max:"1000000000" doc:"largest number of such steps with trainer.critic_warmup_until"`
	WarmupActor       string  `yaml:"warmup_objective" choices:"sft,policy" doc:"the student's objective in the warm-up: sft (cross entropy on the teacher's answers) or policy"`
	TotalEpochs       int     `yaml:"total_epochs" min:"1" max:"1000000" doc:"passes over the data, if total_steps is 0"`
	TotalSteps        int     `yaml:"total_steps" min:"0" max:"1000000000" doc:"number of steps; 0: as many as total_epochs takes"`
	SaveFreq          int     `yaml:"save_freq" min:"0" max:"1000000000" doc:"steps between checkpoints; 0: only at the end"`
	TestFreq          int     `yaml:"test_freq" min:"0" max:"1000000000" doc:"steps between evaluations on data.val_files; 0: only at the end"`
	ValBeforeTrain    bool    `yaml:"val_before_train" doc:"evaluate on data.val_files before the first step too (start/ metrics): gad doctor then sees a student that gets worse. What the run that this one starts from has measured at its end is not measured again"`
	ValRows           int     `yaml:"val_rows" min:"1" max:"1000000000" doc:"number of rows of data.val_files that an evaluation uses"`
	MaxToKeep         int     `yaml:"max_ckpt_to_keep" min:"1" max:"1000000" doc:"number of newest checkpoints to keep"`
	KeepBest          string  `yaml:"keep_best" choices:",val/rouge_l,val/teacher_nll,val/check,val/held_out_d" doc:"also keep the checkpoint that is best by this metric: the smallest val/teacher_nll, the largest of the others; empty: none"`
	Checker           string  `yaml:"checker" doc:"program that scores the student's answers, run by sh -c; the protocol is in doc/the-game.md; gives val/check; empty: none (flag --checker)"`
	CheckerTimeout    int     `yaml:"checker_timeout" min:"1" max:"1000000" doc:"time limit for one call of the checker in seconds; after it the run stops with an error"`
	HeldOutCritic     string  `yaml:"held_out_critic" doc:"folder of a discriminator that takes no part in training, for example the critic of a warm-up on other rows or with another seed; gives val/held_out_d; empty: none"`
	SaveSamples       int     `yaml:"save_samples" min:"0" max:"1000000000" doc:"number of prompts per step whose samples are written to samples/step_N.jsonl, and of validation prompts to samples/val_N.jsonl"`
	MaxSkips          int     `yaml:"max_skips" min:"1" max:"1000000000" doc:"the run stops after this many optimizer steps in a row with a gradient that is not finite"`
	Seed              uint64  `yaml:"seed" doc:"seed of data order, sampling and new weights"`
	Device            string  `yaml:"device" choices:"cpu,cuda" doc:"where to compute (flag --device)"`
	Precision         string  `yaml:"precision" choices:"auto,bf16,f32" doc:"precision of matrix products, on cuda also of activations: bfloat16 with float32 sums, or float32; auto: bf16 on cuda, f32 on cpu. Trained weights and optimizer states are always float32"`
	Threads           int     `yaml:"threads" min:"0" max:"4096" doc:"number of CPU threads; 0: one per core. Results do not depend on it"`
	Shards            int     `yaml:"shards" min:"1" max:"4096" doc:"number of parts into which the gradient of an optimizer step is divided, by prompt: each is summed alone, and they are joined by a binary tree, so that a run has the same bits for 1, 2, 4, ... ranks. A power of two, and a multiple of the number of ranks (doc/ranks.md)"`
	ShardOptimizer    bool    `yaml:"shard_optimizer" doc:"with several ranks: each keeps AdamW's states of its part of the parameters alone, and steps that part (ZeRO stage 1): less memory for each rank, the same bits; on CPUs as much to send, on GPUs 1.25 times as much in bf16 and 1.5 times in f32 (doc/ranks.md)"`
	RankTimeout       int     `yaml:"rank_timeout" min:"1" max:"1000000" doc:"with several ranks: the longest time in seconds that one waits for the others in one phase of a step; then the run ends and names the missing one. It must be longer than the longest rollout of one rank"`
	MaxShardSizeMB    int     `yaml:"max_shard_size_mb" min:"1" max:"1000000000" doc:"largest size of one safetensors file in a checkpoint, MB"`
}

// DefaultConfig is the paper's recipe (arXiv 2511.10643, section 3.1 and appendix)
// where it states one.
func DefaultConfig() Config {
	cols := data.DefaultColumns()
	return Config{
		Data: DataConfig{Format: data.FormatAuto, ContentKey: cols.Content, TeacherKey: cols.Teacher, TrainBatchSize: 256,
			MaxPrompt: 2048, MaxResponse: 1536, Overlong: "error", TruncTeacher: "keep", CacheDir: "auto", CacheGB: 20},
		Rollout: actor.DefaultRollout(),
		Algorithm: AlgorithmConfig{AdvEstimator: "grpo", NormByStd: true, Gamma: 1, ZScoreFloor: 0.1, AdvPower: 1,
			KLPenalty: "low_var_kl", KLCtrl: KLCtrl{Type: "fixed", KLCoef: 1e-3, TargetKL: 0.1, Horizon: 10000},
			FilterGroups: FilterGroups{MaxGenBatches: 3}, Overlong: OverlongPunct{Factor: 1}, TruncReward: "group_min"},
		Actor:  actor.DefaultConfig(),
		Critic: critic.DefaultConfig(),
		DPO:    DefaultDPO(),
		Trainer: RunConfig{ResumeOptim: "critic", CriticWarmupMax: 200, WarmupActor: "sft", TotalEpochs: 1, SaveFreq: 50, ValBeforeTrain: true, ValRows: 64, MaxToKeep: 2, CheckerTimeout: 60,
			SaveSamples: 8, MaxSkips: 10, Seed: 1, Device: "cpu", Precision: "auto", Shards: 1, RankTimeout: 1800, MaxShardSizeMB: 5000},
	}
}

// Options say how the training data is read.
func (c DataConfig) Options(stages data.Stages) data.Options {
	cols := data.DefaultColumns()
	cols.Content, cols.Teacher = c.ContentKey, c.TeacherKey
	return data.Options{Columns: cols, Format: c.Format, Split: c.Split, Stages: stages}
}

// Load sets what the YAML file at path says ("" is no file) and then the overrides, such
// as "actor.optim.lr=1e-5". Every problem has a line in the error, and then c is as it was.
func (c *Config) Load(path string, overrides ...string) error {
	return conf.Load(c, path, overrides, nil)
}

// Validate finds every value, and every combination of settings, that cannot be meant.
func (c *Config) Validate(stage Stage) error {
	if err := conf.Validate(c); err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("settings: "+format, args...)) }
	if len(c.Data.TrainFiles) == 0 {
		bad("data.train_files: no training data: give --data FILE")
	}
	if c.Data.CacheDir == "" {
		bad("data.cache_dir is empty: name a folder, auto or none")
	}
	if c.Trainer.Output == "" {
		bad("trainer.default_local_dir: no run folder: give --output DIR")
	}
	if stage != Train && c.Model.Path == "" && c.Trainer.Resume == "" {
		bad("model.path: no student: give --model DIR")
	}
	if err := c.Rollout.Validate(); err != nil && stage != SFT {
		errs = append(errs, err)
	}
	if m, b := c.Actor.PPOMiniBatch, c.Data.TrainBatchSize; m > b {
		bad("actor.ppo_mini_batch_size %d is larger than data.train_batch_size %d: lower it", m, b)
	}
	if m, b := c.Critic.PPOMiniBatch, c.Data.TrainBatchSize; m > b {
		bad("critic.ppo_mini_batch_size %d is larger than data.train_batch_size %d: lower it", m, b)
	}
	if c.Algorithm.AdvEstimator == "grpo_passk" && c.Rollout.N < 2 {
		bad("algorithm.adv_estimator grpo_passk needs rollout.n of at least 2, not %d", c.Rollout.N)
	}
	if p := c.Algorithm.AdvPower; !(p > 0) {
		bad("algorithm.adv_power is %g: must be above 0; 1 leaves the rewards unchanged", p)
	} else if p != 1 && strings.HasPrefix(c.Algorithm.AdvEstimator, "reinforce_plus_plus") && c.Algorithm.UseKLInReward {
		bad("algorithm.adv_power %g needs one reward per answer, but %s with algorithm.use_kl_in_reward has one per token: use grpo, or put the KL into the loss (actor.use_kl_loss)", p, c.Algorithm.AdvEstimator)
	}
	if k := c.Trainer.Shards; k&(k-1) != 0 || k > 4096 {
		bad("trainer.shards is %d: must be a power of two of at most 4096", k)
	}
	if t := c.Trainer; t.CriticWarmupUntil > 0 && t.CriticWarmupMax < t.CriticWarmup {
		bad("trainer.critic_warmup_max %d is below trainer.critic_warmup %d: raise it", t.CriticWarmupMax, t.CriticWarmup)
	}
	if b := c.Algorithm.Overlong.Len; b >= c.Data.MaxResponse {
		bad("algorithm.overlong_buffer.len %d must be below data.max_response_length %d", b, c.Data.MaxResponse)
	}
	if c.Rollout.Merged == "true" && !c.Actor.LoRA.On() {
		bad("rollout.merged is true, but actor.lora.rank is 0: there are no adapters to merge: set a rank, or leave it out")
	}
	if b := c.base(); model.Quantised(b) && c.Trainer.Device == "cuda" {
		bad("the base of LoRA is kept in %s, which only the CPU has: leave actor.lora.base and critic.lora.base out, or use trainer.device=cpu", b)
	}
	if b := c.Critic.LoRA.Base; c.Actor.LoRA.On() && model.Quantised(b) && b != c.Actor.LoRA.Base {
		bad("critic.lora.base is %s, but the discriminator's adapters stand on the student's base, which is %s: set actor.lora.base=%s, or leave critic.lora.base out", b, c.Actor.LoRA.Base, b)
	}
	errs = append(errs, c.Actor.Validate())
	if stage.hasCritic() {
		errs = append(errs, c.Critic.Validate())
	}
	if stage == DPO {
		errs = append(errs, c.DPO.Validate())
	}
	if k := c.Algorithm.KLCtrl; k.Type == "adaptive" && !(k.TargetKL > 0) {
		bad("algorithm.kl_ctrl.target_kl is %g: an adaptive coefficient needs a target above 0", k.TargetKL)
	}
	if f := c.Algorithm.FilterGroups; f.Enable && f.MaxGenBatches < 2 {
		bad("algorithm.filter_groups.max_num_gen_batches is %d: must be at least 2, or no group can be replaced", f.MaxGenBatches)
	}
	if f := c.Algorithm.FilterGroups; !f.Enable && f.MinSpread > 0 {
		bad("algorithm.filter_groups.min_spread %g needs algorithm.filter_groups.enable=true", f.MinSpread)
	}
	if c.Trainer.KeepBest != "" && len(c.Data.ValFiles) == 0 {
		bad("trainer.keep_best %s needs data.val_files", c.Trainer.KeepBest)
	}
	if complaint := c.offloads(stage); complaint != "" {
		bad("%s", complaint)
	}
	errs = append(errs, c.validateJudges(stage)...)
	if stage == Train && c.Trainer.Resume == "" && errors.Join(errs...) != nil { // else findStart says it
		bad("trainer.resume_from: no warm-up to start from: give --resume RUN (made by gad warmup)")
	}
	return errors.Join(errs...)
}

// offloads is what is wrong with moments that are to leave a device's memory for the same.
func (c *Config) offloads(stage Stage) (complaint string) {
	key := "actor.optim.offload"
	switch {
	case c.Trainer.Device == "cuda":
		return ""
	case c.Actor.Optim.Offload:
	case c.Critic.Optim.Offload && stage.hasCritic():
		key = "critic.optim.offload"
	default:
		return ""
	}
	return fmt.Sprintf("%s is true, but trainer.device is %s: there is no other memory: leave it out", key, c.Trainer.Device)
}

// largeLR is a little more than the largest rate at which a game was seen to win, 2e-4
// with a narrow clip (doc/study.md, "Ablations and a student that is too fast"). Adapters
// take ten times as much.
const largeLR = 3e-4

// Warnings are settings that are allowed and rarely right.
func (c *Config) Warnings(stage Stage) (warnings []string) {
	warnings = append(c.judgeWarnings(), c.idleWarnings(stage)...)
	if !stage.hasCritic() {
		return warnings
	}
	large := largeLR
	if c.Actor.LoRA.On() {
		large *= 10
	}
	if lr := c.Actor.Optim.LR; stage == Train && lr > large {
		warnings = append(warnings, fmt.Sprintf("actor.optim.lr is %g: fit for learning the teacher's answers, and mostly too large for the game (the paper's is 1e-6, gad demo's 5e-5 after 3e-3): if KL runs away, lower it", lr))
	}
	if c.Rollout.N < 4 {
		warnings = append(warnings, fmt.Sprintf("rollout.n is %d: with fewer than 4 answers a group's statistics say little (with 2, grpo's advantages are the same size whatever the scores): 8 is usual", c.Rollout.N))
	}
	if c.Actor.PolicyLoss.LossMode == "gspo" && c.Actor.MiniBatch(c.Data.TrainBatchSize) == c.Data.TrainBatchSize && c.Actor.PPOEpochs == 1 {
		warnings = append(warnings, "actor.ppo_mini_batch_size is the whole batch and actor.ppo_epochs is 1: every ratio is exactly 1 and the clip never acts")
	}
	return warnings
}

// idleWarnings are settings without effect beside the others.
func (c *Config) idleWarnings(stage Stage) (warnings []string) {
	networks := []struct {
		key, who string
		model.OptimSettings
	}{{"actor.optim", "student", c.Actor.Optim}, {"critic.optim", "discriminator", c.Critic.Optim}}
	if !stage.hasCritic() {
		networks = networks[:1]
	}
	for _, n := range networks {
		if n.LR == 0 {
			warnings = append(warnings, fmt.Sprintf("%s.lr is 0: the %s will not change", n.key, n.who))
		}
		if n.MinLRRatio > 0 && n.LRScheduler == "constant" {
			warnings = append(warnings, fmt.Sprintf("%s.min_lr_ratio %g has no effect: %[1]s.lr_scheduler is constant: set it to cosine or linear", n.key, n.MinLRRatio))
		}
	}
	if t := c.Trainer; stage.hasCritic() && t.CriticWarmupUntil == 0 && t.CriticWarmupMax != DefaultConfig().Trainer.CriticWarmupMax {
		warnings = append(warnings, fmt.Sprintf("trainer.critic_warmup_max %d has no effect: trainer.critic_warmup_until is 0", t.CriticWarmupMax))
	}
	return warnings
}

// learnsTeacher reports whether the actor's objective in a stage is the teacher's answers.
func (c *Config) learnsTeacher(stage Stage) bool {
	return stage == SFT || stage == Warmup && c.Trainer.WarmupActor == "sft"
}

// needsReference reports whether a stage compares the student with what it was.
func (c *Config) needsReference(stage Stage) bool {
	return stage == DPO || (c.Algorithm.UseKLInReward || c.Actor.UseKLLoss && c.Actor.KLLossCoef > 0) && !c.learnsTeacher(stage)
}

// StageDefaults is DefaultConfig with what the paper sets differently by stage:
// SeqKD learns at 5e-6, warm-up takes one epoch, the game two. DPO clips at TRL's 1.
func StageDefaults(stage Stage) Config {
	c := DefaultConfig()
	switch stage {
	case SFT:
		c.Actor.Optim.LR = 5e-6
		c.Actor.GradClip = 1
	case DPO:
		c.Actor.GradClip = 1
	case Train:
		c.Trainer.TotalEpochs = 2
	}
	return c
}

// presetRank is the rank of the preset lora.
const presetRank = 64

// preset is the settings of a method or of a size of student: those of every stage, and a
// stage's own.
type preset struct {
	all []string
	of  map[Stage][]string
}

// presets are the settings in which published methods differ from each other, and those that
// kinds of students need, by name.
var presets = map[string]preset{
	// GAD, arXiv 2511.10643: the defaults.
	"gad": {all: []string{"critic.group_ot=0", "algorithm.adv_power=1"}},
	// GRGC, arXiv 2609.39757: a discriminator that keeps a group's scores spread, and
	// rewards that favour the best.
	"grgc": {all: []string{"critic.group_ot=0.01", "algorithm.adv_power=1.5"}},
	// The defaults, which train all weights.
	"paper": {},
	// LoRA of rank 64 on every linear layer of both networks at ten times the learning
	// rates, as "LoRA without regret" found for policy gradients (doc/lora.md).
	"lora": {all: []string{fmt.Sprintf("actor.lora.rank=%d", presetRank), fmt.Sprintf("critic.lora.rank=%d", presetRank), "actor.optim.lr=1e-5", "critic.optim.lr=1e-5"}},
	// A released student of 100M to 1B parameters and hundreds to thousands of rows, on a CPU
	// (doc/getting-started.md). The rates are those of the search in doc/study.md. The game's
	// are the discriminator's warm-up's too, which the game inherits.
	"small": {
		all: []string{"actor.lora.rank=16", "critic.lora.rank=16", "actor.grad_clip=1", "critic.grad_clip=1", "rollout.n=4",
			"data.max_prompt_length=256", "data.max_response_length=256", "data.overlong_prompts=filter", "data.truncated_teachers=filter"},
		of: map[Stage][]string{
			SFT:    {"data.train_batch_size=16", "actor.optim.lr=1e-3", "actor.optim.lr_warmup_steps=4", "actor.optim.lr_scheduler=linear", "actor.optim.min_lr_ratio=0.1"},
			DPO:    {"data.train_batch_size=16", "actor.optim.lr=1e-4", "actor.optim.lr_warmup_steps=2"},
			Warmup: {"data.train_batch_size=8", "actor.optim.lr=3e-4", "actor.ppo_mini_batch_size=2", "critic.optim.lr=2e-4", "critic.optim.lr_warmup_steps=10", "critic.ppo_mini_batch_size=1"},
			Train:  {"data.train_batch_size=8", "actor.optim.lr=3e-4", "actor.ppo_mini_batch_size=2", "critic.optim.lr=1e-4", "critic.ppo_mini_batch_size=2"},
		},
	},
}

// PresetNames lists the presets.
func PresetNames() []string { return slices.Sorted(maps.Keys(presets)) }

// Preset is the settings of one or several presets, separated by commas, as overrides for
// a stage, which has those that it reads; "" has none.
func Preset(names string, stage Stage) (overrides []string, err error) {
	if names == "" {
		return nil, nil
	}
	for _, name := range strings.Split(names, ",") {
		p, ok := presets[name]
		if !ok {
			all := PresetNames()
			return nil, fmt.Errorf("%q: use %s or %s", name, strings.Join(all[:len(all)-1], ", "), all[len(all)-1])
		}
		for _, set := range slices.Concat(p.all, p.of[stage]) {
			if stage.hasCritic() || strings.HasPrefix(set, "actor.") || strings.HasPrefix(set, "data.") {
				overrides = append(overrides, set)
			}
		}
	}
	return overrides, nil
}

// absolute is c with paths that hold from any folder: a run's own settings are
// kept so, since it may be gone on with from another one.
func (c Config) absolute() Config {
	c.Data.TrainFiles, c.Data.ValFiles = slices.Clone(c.Data.TrainFiles), slices.Clone(c.Data.ValFiles)
	paths := []*string{&c.Model.Path, &c.Model.Adapter, &c.Model.RewardPath, &c.Trainer.Output, &c.Trainer.Resume, &c.Trainer.HeldOutCritic}
	if dir := c.Data.CacheDir; dir != "auto" && dir != "none" {
		paths = append(paths, &c.Data.CacheDir)
	}
	for _, files := range [][]string{c.Data.TrainFiles, c.Data.ValFiles} {
		for i := range files {
			paths = append(paths, &files[i])
		}
	}
	for _, path := range paths {
		list := filepath.SplitList(*path)
		for i, p := range list {
			if abs, err := filepath.Abs(p); err == nil {
				list[i] = abs
			}
		}
		*path = strings.Join(list, string(filepath.ListSeparator))
	}
	return c
}

// kept is a setting that cannot change within a run.
type kept struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// kept are the settings that cannot change within a run, those that name folders apart.
func (c *Config) kept() []kept {
	var list []kept
	for _, s := range []struct {
		key   string
		value any
	}{
		{"trainer.seed", c.Trainer.Seed},
		{"data.train_batch_size", c.Data.TrainBatchSize},
		{"data.max_prompt_length", c.Data.MaxPrompt},
		{"data.max_response_length", c.Data.MaxResponse},
		{"data.overlong_prompts", c.Data.Overlong},
		{"data.truncated_teachers", c.Data.TruncTeacher},
		{"critic.group_ot", c.Critic.GroupOT},
		{"algorithm.adv_power", c.Algorithm.AdvPower},
		{"trainer.critic_warmup_until", c.Trainer.CriticWarmupUntil},
		{"actor.lora", c.Actor.LoRA},
		{"critic.lora", c.Critic.LoRA},
		{"actor.lora.base", c.Actor.LoRA.Base},
		{"critic.lora.base", c.Critic.LoRA.Base},
		{"actor.optim.moments", c.Actor.Optim.Moments},
		{"critic.optim.moments", c.Critic.Optim.Moments},
	} {
		list = append(list, kept{s.key, fmt.Sprint(s.value)})
	}
	return list
}

// CheckChange refuses to resume a run under settings that would make it another run.
func CheckChange(before, after *Config) error {
	was, now := before.absolute(), after.absolute()
	paths := func(c Config) []kept {
		return []kept{{"trainer.resume_from", c.Trainer.Resume}, {"model.path", c.Model.Path}, {"model.adapter_path", c.Model.Adapter}, {"model.reward_path", c.Model.RewardPath}}
	}
	return changed(slices.Concat(paths(was), was.kept()), slices.Concat(paths(now), now.kept()), after.Trainer.Output)
}

// changed refuses what is not as it was when the run began. A setting that was not noted
// then, by an earlier gad, is not compared.
func changed(was, now []kept, run string) error {
	for _, w := range was {
		for _, n := range now {
			if w.Key == n.Key && w.Value != n.Value {
				return fmt.Errorf("%w: %s was %s when the run in %s began, now it is %s: it cannot change within a run: give another --output", ErrConfig, w.Key, cmp.Or(w.Value, "not set"), run, cmp.Or(n.Value, "not set"))
			}
		}
	}
	return nil
}
