package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/data"
	"gad/model"
)

// Default returns the paper's recipe (arXiv 2511.10643, section 3.1 and appendix) where it states
// one.
func Default() Config {
	cols := data.DefaultColumns()
	return Config{
		Data: DataConfig{Format: data.FormatAuto, Turns: data.TurnsLast, ContentKey: cols.Content,
			TeacherKey: cols.Teacher, TrainBatchSize: 256,
			MaxPrompt: 2048, MaxResponse: 1536, Overlong: "error", TruncTeacher: "keep",
			SoftLabels: 1, CacheDir: "auto", CacheGB: 20},
		Rollout: actor.DefaultRollout(),
		Algorithm: AlgorithmConfig{AdvEstimator: "grpo", NormByStd: true, Gamma: 1,
			GroupStats: "episodes", GiGPO: GiGPO{StepAdvantageW: 1}, ZScoreFloor: 0.1, AdvPower: 1,
			KLPenalty: "low_var_kl", KLCtrl: KLCtrl{Type: "fixed", KLCoef: 1e-3, TargetKL: 0.1,
				Horizon: 10000},
			FilterGroups: FilterGroups{MaxGenBatches: 3}, Overlong: OverlongBuffer{Factor: 1},
			TruncReward: "group_min"},
		Actor:  actor.DefaultConfig(),
		Critic: critic.DefaultConfig(),
		DPO:    DefaultDPO(), Teacher: TeacherConfig{Loss: "policy", Beta: 1, TopK: 32,
			HorizonPace: "constant", Weights: model.Native},
		Coach: CoachConfig{Timeout: 600, MaxTokens: 512, Template: "{prompt}\n\n" +
			"Notes on an earlier answer, for you alone; do not mention them:\n{notes}",
			Question: "{prompt}\n\nAn answer to this:\n{answer}\n\nWrite notes for whoever answers anew:" +
				" what is wrong or missing there, how to do it right, and what should stay. Be short and" +
				" definite. Do not quote the answer, and do not write a whole answer."},
		Env: EnvConfig{Workers: 1, MaxTurns: 16, MaxTokens: 2048, Timeout: 60,
			MaxFaults: 0.2},
		Trainer: RunConfig{ResumeOptim: "critic", CriticWarmupMax: 200, WarmupActor: "sft",
			Objective:   "cross_entropy",
			TotalEpochs: 1, SaveFreq: 50, ValBeforeTrain: true, ValRows: 64, MaxToKeep: 2,
			CheckerTimeout: 60,
			SaveSamples:    8, MaxSkips: 10, Seed: 1, Device: "cpu", Precision: "auto", Shards: 1,
			RankTimeout: 1800, MaxShardSizeMB: 5000},
	}
}

// DefaultDPO returns SODA's loss with TRL's settings.
func DefaultDPO() DPOConfig {
	return DPOConfig{LossType: "sigmoid", Beta: 0.1, Tau: 0.05, Truncated: "exclude"}
}

// StageDefaults returns Default with the values that the paper sets differently by stage: SeqKD
// learns at 5e-6, the warm-up takes one epoch, the game two. DPO clips at TRL's 1. OPD takes one
// answer per prompt, since it compares none, at the temperature of the teacher's probabilities, and
// a loss by token, since its advantages are by token.
func StageDefaults(stage Stage) Config {
	c := Default()
	switch stage {
	case SFT:
		c.Actor.Optim.LR = 5e-6
		c.Actor.GradClip = 1
	case DPO:
		c.Actor.GradClip = 1
	case OPD:
		c.Rollout.N, c.Rollout.Temperature = 1, 1
		c.Actor.UseKLLoss, c.Actor.GradClip = false, 1
		c.Actor.PolicyLoss.LossMode = "vanilla"
	case Train:
		c.Trainer.TotalEpochs = 2
	}
	return c
}

// PresetRank is the rank of the preset lora.
const PresetRank = 64

// preset holds the settings of a method or of a size of student, for every stage (all) and by stage
// (of).
type preset struct {
	all []string
	of  map[Stage][]string
}

// giGPO holds the settings of the preset gigpo, and flowGRPO of flow-grpo, in the stages that read
// them.
var giGPO = []string{"algorithm.adv_estimator=gigpo", "algorithm.gamma=0.95",
	"env.invalid_penalty=0.1"}

var flowGRPO = []string{"algorithm.adv_estimator=grpo",
	"actor.loss_agg_mode=" + algos.EpisodeMean, "actor.policy_loss.loss_mode=vanilla",
	"actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.3", "actor.use_kl_loss=true",
	"actor.kl_loss_coef=1e-3", "actor.optim.lr=1e-6", "rollout.temperature=0.7", "rollout.n=8"}

// thought holds the chunks of the preset delethink, and delethink these and its other settings.
var thought = []string{"rollout.chunk=8192", "rollout.carry=4096", "rollout.carry_head=100",
	"rollout.chunks=5"}

var delethink = slices.Concat(thought, []string{"algorithm.adv_estimator=grpo",
	"actor.policy_loss.loss_mode=vanilla", "actor.loss_agg_mode=seq-mean-token-mean",
	"actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.26", "actor.use_kl_loss=false",
	"actor.rollout_is=token", "actor.rollout_is_threshold=2", "rollout.temperature=0.6",
	"rollout.n=8", "data.train_batch_size=128", "actor.ppo_mini_batch_size=64"})

// presets maps a name to the settings of a published method, or to the settings that a kind of
// student needs.
var presets = map[string]preset{
	// GAD, arXiv 2511.10643: the defaults.
	"gad": {all: []string{"critic.group_ot=0", "algorithm.adv_power=1"}},
	// GRGC, arXiv 2609.39757: a discriminator that keeps a group's scores spread, and
	// rewards that favour the best.
	"grgc": {all: []string{"critic.group_ot=0.01", "algorithm.adv_power=1.5"}},
	// GiGPO, arXiv 2505.10978, section 5.1, for episodes in an environment.
	"gigpo": {of: map[Stage][]string{Warmup: giGPO, Train: giGPO}},
	// Flow-GRPO, arXiv 2510.05592, by AgentFlow's configuration, for episodes in an environment.
	"flow-grpo": {of: map[Stage][]string{Warmup: flowGRPO, Train: flowGRPO}},
	// Delethink, arXiv 2510.06557, for thoughts in chunks: two optimizer steps a rollout. SFT has
	// the same chunks.
	"delethink": {of: map[Stage][]string{SFT: thought, Warmup: delethink, Train: delethink}},
	// The defaults, which train all weights.
	"paper": {},
	// LoRA of rank 64 on every linear layer of both networks at ten times the learning
	// rates, as "LoRA without regret" found for policy gradients (doc/lora.md).
	"lora": {all: []string{fmt.Sprintf("actor.lora.rank=%d", PresetRank),
		fmt.Sprintf("critic.lora.rank=%d", PresetRank), "actor.optim.lr=1e-5",
		"critic.optim.lr=1e-5"}},
	// A released student of 100M to 1B parameters and hundreds to thousands of rows, on a CPU
	// (doc/getting-started.md). The rates come from the search in doc/study.md, and so does the
	// discriminator: a likelihood orders such a student's answers, a value hardly does. The
	// discriminator's warm-up has the game's rates, which the game inherits.
	"small": {
		all: []string{"actor.lora.rank=16", "critic.lora.rank=16", "actor.grad_clip=1",
			"critic.grad_clip=1", "rollout.n=4",
			"data.max_prompt_length=256", "data.max_response_length=256",
			"data.overlong_prompts=filter", "data.truncated_teachers=filter"},
		of: map[Stage][]string{
			SFT: {"data.train_batch_size=16", "actor.optim.lr=1e-3",
				"actor.optim.lr_warmup_steps=4", "actor.optim.lr_scheduler=linear",
				"actor.optim.min_lr_ratio=0.1"},
			DPO: {"data.train_batch_size=16", "actor.optim.lr=1e-4",
				"actor.optim.lr_warmup_steps=2"},
			OPD: {"data.train_batch_size=16", "actor.optim.lr=3e-4", "rollout.n=1",
				"actor.optim.lr_warmup_steps=2"},
			Warmup: {"data.train_batch_size=8", "actor.optim.lr=3e-4",
				"actor.ppo_mini_batch_size=2", "critic.head=likelihood", "critic.optim.lr=2e-4",
				"critic.optim.lr_warmup_steps=10", "critic.ppo_mini_batch_size=1"},
			Train: {"data.train_batch_size=8", "actor.optim.lr=3e-4",
				"actor.ppo_mini_batch_size=2", "critic.head=likelihood", "critic.optim.lr=1e-4",
				"critic.ppo_mini_batch_size=2"},
		},
	},
}

// PresetNames returns the presets' names in alphabetical order.
func PresetNames() []string { return slices.Sorted(maps.Keys(presets)) }

// Preset returns the settings of one or several presets (names separated by commas) as overrides
// for a stage, without settings that the stage does not read; names "" gives none.
func Preset(names string, stage Stage) (overrides []string, err error) {
	if names == "" {
		return nil, nil
	}
	for _, name := range strings.Split(names, ",") {
		p, ok := presets[name]
		if !ok {
			all := PresetNames()
			return nil, fmt.Errorf("%q: use %s or %s", name, strings.Join(all[:len(all)-1], ", "),
				all[len(all)-1])
		}
		for _, set := range slices.Concat(p.all, p.of[stage]) {
			key, _, _ := strings.Cut(set, "=")
			if f, _ := new(Config).find(key); f.readBy(stage) {
				overrides = append(overrides, set)
			}
		}
	}
	return overrides, nil
}
