package config

import (
	"fmt"
	"strings"

	"gad/actor"
	"gad/algos"
	"gad/model"
)

// Stage is what a run does.
type Stage string

// The stages: SFT, Warmup and Train in the order in which they are run, and DPO and OPD in the
// place of the last two.
const (
	SFT    Stage = "sft"    // cross entropy on the teacher's answers alone (SeqKD)
	Warmup Stage = "warmup" // the discriminator first, then the student beside it
	Train  Stage = "train"  // the game

	// DPO learns from fixed pairs, without a discriminator (SODA, arXiv 2604.03873): to each
	// prompt the teacher's answer is preferred to one sample of the student as it was when the
	// stage began.
	DPO Stage = "dpo"

	// OPD is on-policy distillation, without a discriminator: the student answers, and a teacher
	// whose weights are at hand says of each of its tokens how probable it finds it.
	OPD Stage = "opd"
)

// Stages are all of them, in the order of gad's help.
var Stages = []Stage{SFT, DPO, OPD, Warmup, Train}

// StageNames returns the names of all stages for a sentence: "sft, dpo, opd, warmup or train".
func StageNames() string {
	var names []string
	for _, s := range Stages {
		names = append(names, string(s))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// HasCritic reports whether the stage trains a discriminator.
func (s Stage) HasCritic() bool { return s == Warmup || s == Train }

// HasPolicy reports whether the student of a stage learns by its own answers.
func (s Stage) HasPolicy() bool { return s.HasCritic() || s == OPD }

// Acts reports whether the student of a stage plays episodes in an environment.
func (c *Config) Acts(stage Stage) bool { return stage.HasCritic() && c.Env.Command != "" }

// Chunks are how a stage cuts answers: of rollout.chunk and what belongs to it.
func (c *Config) Chunks(stage Stage) model.Chunks {
	if stage == DPO || stage == OPD { // which read whole answers
		return model.Chunks{}
	}
	return c.Rollout.Thought()
}

// Tree is how the answers of a stage branch: of rollout.tree, in the game.
func (c *Config) Tree(stage Stage) actor.Tree {
	if stage != Train {
		return actor.Tree{}
	}
	return c.Rollout.Tree
}

// Answers is how many answers the student of a stage gives to a prompt, with trees at most.
func (c *Config) Answers(stage Stage) int {
	if tree := c.Tree(stage); tree.Trees > 0 {
		return tree.Answers()
	}
	return c.Rollout.N
}

// Answer is the longest answer of a stage in tokens: of an episode, all behind its first context,
// and in chunks the thought.
func (c *Config) Answer(stage Stage) int {
	n, _ := c.AnswerLimit(stage)
	return n
}

// AnswerLimit is Answer, and the setting that says so.
func (c *Config) AnswerLimit(stage Stage) (n int, key string) {
	if c.Acts(stage) {
		return c.Env.MaxTokens, "env.max_tokens"
	}
	if chunks := c.Chunks(stage); chunks.On() {
		return chunks.Longest(), "rollout.chunks"
	}
	return c.Data.MaxResponse, "data.max_response_length"
}

// contextLimit is the most tokens that the student has behind a prompt in one sequence, and the
// setting that says so.
func (c *Config) contextLimit(stage Stage) (n int, key string) {
	if chunks := c.Chunks(stage); chunks.On() {
		return chunks.Size, "rollout.chunk"
	}
	return c.AnswerLimit(stage)
}

// Longest is the longest sequence of a stage in tokens that the student reads.
func (c *Config) Longest(stage Stage) int {
	n, _ := c.contextLimit(stage)
	return c.Data.MaxPrompt + n
}

// LongestScored is the longest sequence in tokens that a discriminator reads.
func (c *Config) LongestScored(stage Stage) int {
	if c.Critic.Reads == "last" {
		return c.Longest(stage)
	}
	return c.Data.MaxPrompt + c.Answer(stage)
}

// CheckLongest refuses sequences of the student that are longer than the model in dir takes; most 0
// is no bound.
func (c *Config) CheckLongest(stage Stage, dir string, most int) error {
	_, key := c.contextLimit(stage)
	if n := c.Longest(stage); most > 0 && n > most {
		return fmt.Errorf("%w: model: %s: data.max_prompt_length + %s = %d, but max_position_embeddings is %d: lower them", ErrConfig, dir, key, n, most)
	}
	return nil
}

// CheckScored refuses sequences that are longer than the discriminator in dir takes; most 0 is no
// bound.
func (c *Config) CheckScored(stage Stage, dir string, most int) error {
	n := c.LongestScored(stage)
	if most == 0 || n <= most {
		return nil
	}
	if c.Chunks(stage).On() && c.Critic.Reads == "answer" {
		return fmt.Errorf("%w: model: %s: critic.reads=answer reads a prompt and a whole thought, data.max_prompt_length + %d (rollout.chunks) = %d tokens, but max_position_embeddings is %d: set critic.reads=last, or lower rollout.chunks", ErrConfig, dir, c.Answer(stage), n, most)
	}
	return c.CheckLongest(stage, dir, most)
}

// ARun names a run of the stage: "an sft run".
func (s Stage) ARun() string {
	if s == SFT {
		return "an sft run"
	}
	return fmt.Sprintf("a %s run", s)
}

// LearnsTeacher reports whether the actor's objective in a stage is the teacher's answers.
func (c *Config) LearnsTeacher(stage Stage) bool {
	return stage == SFT || stage == Warmup && c.Trainer.WarmupActor == "sft"
}

// Ranks reports whether a stage learns the order of scored answers.
func (c *Config) Ranks(stage Stage) bool {
	return stage == SFT && c.Trainer.Objective == "ranking"
}

// SoftLabels reports whether a stage learns soft labels where rows have them.
func (c *Config) SoftLabels(stage Stage) bool {
	return c.LearnsTeacher(stage) && !c.Ranks(stage) && c.Data.SoftLabels > 0
}

// NeedsReference reports whether a stage compares the student with what it was.
func (c *Config) NeedsReference(stage Stage) bool {
	return stage == DPO || (c.inReward(stage) || c.Actor.HasKL()) && !c.LearnsTeacher(stage)
}

// EstimatesKL reports whether a stage reads the reference's log-probabilities of the student's
// answers.
func (c *Config) EstimatesKL(stage Stage) bool {
	inReward, inLoss := c.ExactKL(stage)
	return c.NeedsReference(stage) && (c.inReward(stage) && !inReward ||
		c.Actor.HasKL() && !inLoss)
}

// inReward reports whether a stage has rewards, and the KL in them.
func (c *Config) inReward(stage Stage) bool {
	return stage.HasCritic() && c.Algorithm.UseKLInReward
}

// ExactKL reports whether a stage takes the exact KL to the reference, in the reward and in the
// loss.
func (c *Config) ExactKL(stage Stage) (reward, loss bool) {
	plays := stage.HasPolicy() && !c.LearnsTeacher(stage)
	return plays && c.inReward(stage) && c.Algorithm.KLPenalty == algos.KLFull,
		plays && c.Actor.ExactKL()
}

// RatioLevel resolves actor.ratio_level: that of the reward.
func (c *Config) RatioLevel() string {
	switch {
	case c.Actor.RatioLevel != "auto":
		return c.Actor.RatioLevel
	case c.Actor.ByTurn(), c.Algorithm.AdvEstimator == "gigpo", c.Critic.Level == "turn",
		c.Rollout.Tree.Branches():
		return "turn"
	}
	return "episode"
}

// Mixes reports whether a stage adds a teacher's advantages to those of its rewards, and Taught
// whether it has the teacher whose probabilities are read, for that or as gad opd.
func (c *Config) Mixes(stage Stage) bool {
	return stage.HasCritic() && c.Algorithm.TeacherWeight > 0
}

// Taught: see Mixes.
func (c *Config) Taught(stage Stage) bool { return stage == OPD || c.Mixes(stage) }

// Loads reports whether a stage loads that teacher, and does not ask a server.
func (c *Config) Loads(stage Stage) bool { return c.Taught(stage) && c.Teacher.URL == "" }

// Divergence reports whether a stage learns by a divergence from the teacher's distributions, over
// the whole vocabulary or by its most probable tokens.
func (c *Config) Divergence(stage Stage) bool { return stage == OPD && c.Teacher.Loss != "policy" }

// Merges reports whether sampling reads a merged copy of the weights.
func (c *Config) Merges(stage Stage) bool {
	return c.Actor.LoRA.On() && stage.HasPolicy() &&
		(c.Rollout.Merged == "true" || c.Rollout.Merged == "auto" && c.Trainer.Device == "cuda")
}

// Student is the network that a run trains, without passes.
func (c *Config) Student() model.PlanOptions {
	return model.PlanOptions{Kind: model.LM, Trainable: true, LoRA: c.Actor.LoRA,
		Recompute: c.Actor.Recompute,
		Moments8:  c.Actor.Optim.Moments == "8bit", Offload: c.Actor.Optim.Offload}
}

// Discriminator is the network that the game and its warm-up train beside the student,
// without passes.
func (c *Config) Discriminator() model.PlanOptions {
	return model.PlanOptions{Kind: c.Critic.Kind(), Trainable: true, LoRA: c.Critic.LoRA,
		Recompute: c.Critic.Recompute,
		Moments8:  c.Critic.Optim.Moments == "8bit", Offload: c.Critic.Optim.Offload}
}

// The first CheckFirst steps of a run, and every CheckEvery-th, compare the sampler's
// log-probabilities with the trainer's. The number of the step decides, so that a resumed
// run does as one that was not interrupted.
const (
	CheckFirst = 3
	CheckEvery = 50
)

// Base is how LoRA's base is kept: the student's, which the discriminator's adapters stand on
// too, or the discriminator's own.
func (c *Config) Base() string {
	if c.Actor.LoRA.On() {
		return c.Actor.LoRA.Base
	}
	return c.Critic.LoRA.Base
}
