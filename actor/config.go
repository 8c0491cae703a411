package actor

import (
	"fmt"

	"gad/algos"
	"gad/model"
)

// Config is the `actor` section: the policy objective and its optimizer.
type Config struct {
	PolicyLoss      PolicyLoss          `yaml:"policy_loss" stages:"warmup train opd"`
	UseKLLoss       bool                `yaml:"use_kl_loss" doc:"add kl_loss_coef times the KL to the reference to the loss" stages:"warmup train opd"`
	KLLossCoef      float64             `yaml:"kl_loss_coef" min:"0" doc:"weight of the KL in the loss" stages:"warmup train opd" alias:"beta kl_coef" needs:".use_kl_loss=true"`
	KLLossType      string              `yaml:"kl_loss_type" choices:"k1,kl,abs,k2,mse,k3,low_var_kl,k1+,k3+,abs+,low_var_kl+,full" doc:"KL estimator in the loss; with a trailing + the value is the same and the gradient is k2's. full: no estimate but the sum over the vocabulary at every token of the answers, with its own gradient; the reference then passes forward in every pass of the update" stages:"warmup train opd" needs:".use_kl_loss=true" unproven:"k1,kl,abs,k2,mse,k3,k1+,k3+,abs+,low_var_kl+,full"`
	ClipRatioLow    float64             `yaml:"clip_ratio_low" min:"0" max:"1" doc:"the ratio is clipped below at 1 minus this; 0: the default of the loss (gspo 3e-4, others 0.2)" stages:"warmup train opd" alias:"epsilon" needs:"teacher.loss=policy .policy_loss.loss_mode=vanilla|gspo|gspo_token|cispo|geo_mean|dapo"`
	ClipRatioHigh   float64             `yaml:"clip_ratio_high" min:"0" doc:"the ratio is clipped above at 1 plus this; 0: the default of the loss (gspo 4e-4, dapo 0.28, others 0.2)" stages:"warmup train opd" needs:"teacher.loss=policy .policy_loss.loss_mode=vanilla|gspo|gspo_token|cispo|geo_mean|dapo"`
	ClipRatioC      float64             `yaml:"clip_ratio_c" min:"1" doc:"bound of the dual clip, for negative advantages (vanilla, dapo)" stages:"warmup train opd" needs:".policy_loss.loss_mode=vanilla|dapo" unproven:"all"`
	LossAggMode     string              `yaml:"loss_agg_mode" choices:"token-mean,seq-mean-token-sum,seq-mean-token-mean,seq-mean-token-sum-norm,episode-mean-turn-mean-token-mean" doc:"how token losses are aggregated; a seq is a row of actor.ratio_level; gspo always uses seq-mean-token-mean. episode-mean-turn-mean-token-mean is Flow-GRPO's (arXiv 2510.05592)" unproven:"all"`
	RatioLevel      string              `yaml:"ratio_level" choices:"auto,turn,episode" doc:"what a row of the policy loss is: over its tokens gspo takes its ratio, and seq-mean averages. turn: one turn of the student; episode: all its turns in one sequence (with contexts that are rebuilt each turn is a sequence, and has a ratio of its own); auto: episode, but turn with algorithm.adv_estimator=gigpo, with critic.level=turn, and with actor.loss_agg_mode=episode-mean-turn-mean-token-mean. Single answers are one turn, and the same in both" stages:"warmup train opd" needs:"env.command!="`
	EntropyCoeff    float64             `yaml:"entropy_coeff" doc:"weight of an entropy bonus in the loss" unproven:"all"`
	Optim           model.OptimSettings `yaml:"optim"`
	LoRA            model.LoRA          `yaml:"lora" fixed:"true"`
	GradClip        float64             `yaml:"grad_clip" min:"0" doc:"clip the global gradient norm to this; 0: no clipping" alias:"max_grad_norm"`
	PPOMiniBatch    int                 `yaml:"ppo_mini_batch_size" min:"0" max:"1000000000" doc:"prompts per optimizer step; 0: a quarter of data.train_batch_size, because the clip acts only if a batch is used in several steps" stages:"warmup train opd"`
	PPOEpochs       int                 `yaml:"ppo_epochs" min:"1" max:"1000000" doc:"passes over each rollout batch" stages:"warmup train opd" unproven:"all"`
	MaxTokenLen     int                 `yaml:"max_token_len" min:"1" max:"1000000000" doc:"largest number of tokens in a micro-batch, a prompt counted once for all its answers; a larger one needs more memory, results agree to rounding" alias:"actor_rollout_ref.actor.ppo_max_token_len_per_gpu"`
	Recompute       bool                `yaml:"recompute" doc:"recompute activations in the backward pass (gradient checkpointing): less memory, a third more work" alias:"gradient_checkpointing actor_rollout_ref.model.enable_gradient_checkpointing"`
	OldLogProb      string              `yaml:"old_log_prob" choices:"auto,recompute,rollout" doc:"where old log-probabilities come from: recompute (a forward pass of the trainer), rollout (the sampler's, verl's bypass mode) or auto (the sampler's where the device gives them the trainer's bits, as the CPU does, otherwise recompute; the first three steps and every 50th check it)" stages:"warmup train opd"`
	RolloutIS       string              `yaml:"rollout_is" choices:"none,token,sequence" doc:"truncated importance weights for differences between sampler and trainer, by token or by sequence, which is a row of actor.ratio_level" stages:"warmup train opd" unproven:"token,sequence"`
	RolloutISThresh float64             `yaml:"rollout_is_threshold" min:"0" doc:"largest such weight" stages:"warmup train opd" needs:".rollout_is=token|sequence" unproven:"all"`
}

// PolicyLoss is the `actor.policy_loss` section.
type PolicyLoss struct {
	LossMode string  `yaml:"loss_mode" choices:"vanilla,gspo,gspo_token,cispo,sapo,geo_mean,gpg,dapo" doc:"policy loss; doc/gspo.md and doc/algorithms.md have the formulas" alias:"actor_rollout_ref.actor.policy_loss" needs:"teacher.loss=policy" unproven:"vanilla,gspo_token,cispo,sapo,geo_mean,gpg,dapo"`
	TauPos   float64 `yaml:"tau_pos" min:"0" doc:"sapo's temperature for positive advantages" needs:".loss_mode=sapo" unproven:"all"`
	TauNeg   float64 `yaml:"tau_neg" min:"0" doc:"sapo's temperature for negative advantages" needs:".loss_mode=sapo" unproven:"all"`
}

// DefaultConfig returns the paper's recipe with GSPO's clip.
func DefaultConfig() Config {
	return Config{
		PolicyLoss: PolicyLoss{LossMode: "gspo", TauPos: 1, TauNeg: 1.05},
		UseKLLoss:  true, KLLossCoef: 1e-3, KLLossType: "low_var_kl",
		ClipRatioC: 3, LossAggMode: "token-mean", RatioLevel: "auto", Optim: model.DefaultOptim(),
		GradClip: 0.2, PPOEpochs: 1, MaxTokenLen: 8192, OldLogProb: "auto", RolloutIS: "none",
		RolloutISThresh: 2, LoRA: model.DefaultLoRA(),
	}
}

// RolloutConfig is the `rollout` section: how answers are sampled.
type RolloutConfig struct {
	N           int     `yaml:"n" min:"1" max:"65535" doc:"answers per prompt; with fewer than 4 the statistics of a group are poor" stages:"warmup train opd" alias:"num_generations"`
	Temperature float64 `yaml:"temperature" min:"0" doc:"sampling temperature; also used for old, reference and current log-probabilities" stages:"warmup train dpo opd"`
	TopK        int     `yaml:"top_k" min:"0" max:"1000000000" doc:"sample from the k most probable tokens; 0: all" stages:"warmup train dpo opd"`
	TopP        float64 `yaml:"top_p" min:"0" max:"1" doc:"sample from the smallest set of tokens with at least this probability; 1: all" stages:"warmup train dpo opd"`
	MinP        float64 `yaml:"min_p" min:"0" max:"1" doc:"drop tokens with less than this share of the largest probability; 0: none" stages:"warmup train dpo opd"`
	Chunk       int     `yaml:"chunk" min:"0" max:"1048576" doc:"a thought in chunks (Delethink, arXiv 2510.06557; doc/thought.md): tokens of the first chunk. An answer that has not ended goes on behind the prompt, its first carry_head tokens and its last carry-carry_head, with up to chunk-carry more, chunks times in all; data.max_response_length is then not read. 0: an answer is one sequence" stages:"sft warmup train" fixed:"true"`
	Carry       int     `yaml:"carry" min:"0" max:"1048576" doc:"tokens of a thought that stand in the context of its next chunk; 0: half of chunk" stages:"sft warmup train" fixed:"true"`
	CarryHead   int     `yaml:"carry_head" min:"0" max:"1048576" doc:"of these, how many are the first of the thought; the others are the last" stages:"sft warmup train" fixed:"true" unproven:"all"`
	Chunks      int     `yaml:"chunks" min:"2" max:"1048576" doc:"chunks of a thought at most; it is then cut, as an answer is at the length limit, and so is the teacher's" stages:"sft warmup train" fixed:"true"`
	Tree        Tree    `yaml:"tree" stages:"train"`
	Merged      string  `yaml:"merged" choices:"auto,true,false" doc:"with LoRA: whether sampling reads a copy of the weights with the adapters added, which is faster and takes the base's memory once more; auto: not where the adapters beside the base give the trainer's own bits (the CPU), nor on a base in 8 or 4 bits, otherwise if there is memory" needs:"actor.lora.rank>0"`
	MaxNumSeqs  int     `yaml:"max_num_seqs" min:"0" max:"65536" doc:"number of sequences generated at the same time. 0: 64; on a GPU up to 512, as many as a step has answers and the planned memory has room for when the run begins. Results do not depend on it on a CPU, and agree to rounding on a GPU"`
}

// DefaultRollout returns the paper's settings: eight answers at temperature 0.8.
func DefaultRollout() RolloutConfig {
	return RolloutConfig{N: 8, Temperature: 0.8, TopP: 1, Chunks: 5, Merged: "auto",
		Tree: Tree{Rounds: 1, Expand: 2, Select: "random", Segment: 16}}
}

// Tree is the `rollout.tree` section: answers that branch.
type Tree struct {
	Trees   int    `yaml:"trees" min:"0" max:"4096" doc:"M, first answers to a prompt, each of which becomes a tree (doc/trees.md): its branches begin with a part of an answer and go on to another end. All answers of its trees are a prompt's group; rollout.n must be 1. 0: answers do not branch" unproven:"all"`
	Rounds  int    `yaml:"rounds" min:"0" max:"4096" doc:"L, how often branches are added to each tree; the answers to a prompt are at most trees x (1 + expand x rounds)" unproven:"all"`
	Expand  int    `yaml:"expand" min:"1" max:"4096" doc:"N, branches added to a tree in a round, at different places, fewer where the tree has fewer (tree/branches)" needs:".rounds>0" unproven:"all"`
	Select  string `yaml:"select" choices:"random,uct" doc:"which places branch: random: each is equally probable (Tree-GRPO, arXiv 2509.21240); uct: a search from the prompt by upper confidence bounds of the answers' rewards so far, under the present weights of student and discriminator (after TreeRL, arXiv 2506.11902)" needs:".rounds>0" unproven:"all"`
	Segment int    `yaml:"segment" min:"1" max:"1048576" doc:"an answer may branch at the prompt and behind every multiple of so many tokens. An episode (env.command) branches before any of its turns instead, a thought (rollout.chunk) at any of its chunks" needs:".rounds>0" unproven:"all"`
}

// Answers returns the largest number of answers that a prompt's trees can have.
func (c Tree) Answers() int { return c.Trees * (1 + c.Rounds*c.Expand) }

// Branches reports whether answers branch.
func (c Tree) Branches() bool { return c.Trees > 0 && c.Rounds > 0 }

// Thought returns the chunks that the settings cut an answer into; the zero value is no chunks.
func (c RolloutConfig) Thought() model.Chunks {
	if c.Chunk == 0 {
		return model.Chunks{}
	}
	carry := c.Carry
	if carry == 0 {
		carry = c.Chunk / 2
	}
	return model.Chunks{Size: c.Chunk, Carry: carry, Head: c.CarryHead, Most: c.Chunks}
}

// Validate checks values that the field tags cannot refuse.
func (c RolloutConfig) Validate() error {
	if c.TopP == 0 {
		return fmt.Errorf(
			"settings: rollout.top_p is 0: no token would be left: set it above 0; 1 is all")
	}
	if c.Temperature == 0 {
		return fmt.Errorf("settings: rollout.temperature is 0: every answer to a prompt would be the same: set it above 0")
	}
	if c.TopK == 1 {
		return fmt.Errorf("settings: rollout.top_k is 1: every answer to a prompt would be the same: raise it; 0 is all")
	}
	if c.MinP == 1 {
		return fmt.Errorf("settings: rollout.min_p is 1: only the most probable token would be left, and every answer to a prompt would be the same: lower it; 0 is none")
	}
	return nil
}

// objective returns the policy objective that the settings describe.
func (c Config) objective() algos.PolicyConfig {
	kl := 0.0
	if c.UseKLLoss {
		kl = c.KLLossCoef
	}
	return algos.PolicyConfig{
		Loss: c.PolicyLoss.LossMode, ClipLow: c.ClipRatioLow, ClipHigh: c.ClipRatioHigh,
		ClipC:  c.ClipRatioC,
		TauPos: c.PolicyLoss.TauPos, TauNeg: c.PolicyLoss.TauNeg, Agg: c.LossAggMode,
		KLCoef: kl, KLType: c.KLLossType, EntropyCoef: c.EntropyCoeff,
	}
}

// Validate checks rules between settings, which the field tags cannot express.
func (c Config) Validate() error {
	if _, err := algos.NewPolicy[float32](c.objective()); err != nil {
		return fmt.Errorf("settings: actor: %w", err)
	}
	if c.LossAggMode == algos.EpisodeMean && c.RatioLevel == "episode" {
		return fmt.Errorf("settings: actor.loss_agg_mode is %s, a mean over turns, but actor.ratio_level is episode: set it to turn, or leave it out", c.LossAggMode)
	}
	if c.RolloutIS != "none" && !(c.RolloutISThresh > 0) {
		return fmt.Errorf(
			"settings: actor.rollout_is_threshold is %g: must be above 0 with actor.rollout_is %s",
			c.RolloutISThresh, c.RolloutIS)
	}
	if c.OldLogProb == "rollout" && c.RolloutIS != "none" {
		return fmt.Errorf("settings: actor.rollout_is is %s with actor.old_log_prob=rollout: every weight would be 1: set actor.rollout_is to none", c.RolloutIS)
	}
	if err := c.LoRA.Validate("actor.lora"); err != nil {
		return err
	}
	return c.Optim.Validate("actor.optim")
}

// HasKL reports whether the loss has a KL term, and ExactKL whether that is the sum over the
// vocabulary.
func (c Config) HasKL() bool   { return c.UseKLLoss && c.KLLossCoef > 0 }
func (c Config) ExactKL() bool { return c.HasKL() && c.KLLossType == algos.KLFull }

// ByTurn reports whether each turn is a row of the policy objective: by RatioLevel or, with auto,
// by the aggregation. The caller must have resolved RatioLevel where other settings decide it too.
func (c Config) ByTurn() bool {
	return c.RatioLevel == "turn" || c.RatioLevel != "episode" && c.LossAggMode == algos.EpisodeMean
}

// MiniBatch returns the number of prompts of one optimizer step for batches of the
// given size: by default a quarter of it, rounded up.
func (c Config) MiniBatch(batch int) int {
	if c.PPOMiniBatch > 0 {
		return min(c.PPOMiniBatch, batch)
	}
	return max(1, (batch+3)/4)
}

// Updates returns the number of optimizer steps of one policy update on a batch of prompts.
func (c Config) Updates(batch int) int {
	mini := c.MiniBatch(batch)
	return c.PPOEpochs * ((batch + mini - 1) / mini)
}
