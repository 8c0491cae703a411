package config

import (
	"cmp"

	"gad/critic"
	"gad/model"
)

// The passes of a step, as one list. The stages (trainer/step.go, trainer/dpo.go) call the
// networks; perf/ metrics, gad plan (measured, predicted, --fit and --ranks) and gad bench walk
// this list to count the cost of these calls. TestPassesOfAStep compares the list with the passes
// that a backend sees in real steps: a new loss or network is one call there and one row here.

// Network is a network that a step passes sequences through.
type Network int

// The networks of a run.
const (
	Student Network = iota
	Discriminator
	Reference // the student as it was when the run began: same shape and settings
	Teacher   // a teacher that gives probabilities, with a shape of its own
)

// Kind is the kind of a pass.
type Kind int

// The kinds of passes.
const (
	Sample  Kind = iota // the prompt passes once, then a token of each answer at a time
	Forward             // one forward pass
	Learn               // a forward and a backward pass, and optimizer steps
)

// When is the condition under which a step has a pass.
type When int

// The conditions.
const (
	Always       When = iota
	Checks            // steps that compare the sampler's log-probabilities: see CheckFirst
	SeveralPacks      // steps whose sequences of this pass do not fit in one pack
)

// Pass is a row of the list. The answers to a prompt pass together with it, so that the prompt
// is computed once for all of them.
type Pass struct {
	Part     string // part of the step, as in timing_s/PART; a part may have several passes
	Network  Network
	Kind     Kind
	When     When
	Students int     // answers of the student to each prompt
	Teachers int     // answers of the teacher to each prompt: 0 or 1
	Times    float64 // number of passes; a share if other sequences' results are known
	Prompts  int     // of the batch
	Mini     int     // prompts of an optimizer step, for Learn
	// above 0, Sample writes so many tokens on each of the students' answers, after a question of
	// its own (CoachConfig.LongestQuestion)
	Notes int
}

// Answers returns the number of sequences for each prompt.
func (p Pass) Answers() int { return p.Students + p.Teachers }

// Updates returns the number of optimizer steps in one of Times.
func (p Pass) Updates() int {
	if p.Kind != Learn {
		return 0
	}
	return (p.Prompts + p.Mini - 1) / p.Mini
}

// Passes returns the passes of a step of a stage with a batch of so many prompts, in the order of
// the step. independent reports that a row's bits do not depend on the rows computed with it
// (compute.Backend.Alone).
func (c *Config) Passes(stage Stage, prompts int, independent bool) []Pass {
	var list []Pass
	switch stage {
	case SFT:
		if c.LearnsRanking(stage) {
			list = append(list, Pass{Part: "update_actor", Kind: Forward, When: SeveralPacks,
				Students: c.Rollout.N, Teachers: 1, Times: 1})
		}
		list = append(list, c.actorUpdate(stage, prompts))
	case DPO:
		list = []Pass{
			{Part: "rollout", Network: Reference, Kind: Sample, Students: 1, Times: 1},
			{Part: "ref_logp", Network: Reference, Kind: Forward, Students: 1, Teachers: 1,
				Times: 1},
			{Part: "update_actor", Kind: Forward, When: SeveralPacks, Students: 1, Teachers: 1,
				Times: 1},
			c.actorUpdate(stage, prompts),
		}
	case OPD:
		n := c.Answers(stage)
		list = []Pass{
			{Part: "rollout", Kind: Sample, Students: n, Times: 1},
		}
		list = append(list, c.oldLogProbs(stage, prompts, independent)...)
		if notes := c.Coach.OwnNotes(stage); notes > 0 {
			list = append(list, Pass{Part: "coach", Kind: Sample, Students: n, Times: 1, Notes: notes,
				Prompts: prompts - c.Coach.PlainOf(stage, prompts)})
		}
		seen := Pass{Part: "teacher_logp", Network: Teacher, Kind: Forward, Students: n, Times: 1}
		if c.Divergence(stage) { // with the student's update, pack by pack
			seen.Part, seen.Times = "update_actor", float64(c.Actor.PPOEpochs)
		}
		if c.LoadsTeacher(stage) {
			list = append(list, seen)
		}
		list = append(list, c.policyUpdate(stage, prompts)...)
	default:
		list = c.game(stage, prompts, independent)
	}
	for i := range list {
		list[i].Prompts = cmp.Or(list[i].Prompts, prompts)
	}
	return list
}

// actorUpdate returns the pass in which the student learns from the teacher's answers, from pairs,
// or from its own answers.
func (c *Config) actorUpdate(stage Stage, prompts int) Pass {
	update := Pass{Part: "update_actor", Kind: Learn, Times: 1, Mini: prompts}
	switch {
	case c.LearnsRanking(stage):
		update.Students, update.Teachers = c.Rollout.N, 1
	case c.LearnsTeacher(stage):
		update.Teachers = 1
	case stage == DPO:
		update.Students, update.Teachers = 1, 1
	default:
		update.Students, update.Mini = c.Answers(stage), c.Actor.MiniBatch(prompts)
		update.Times = float64(c.Actor.PPOEpochs)
	}
	return update
}

// game returns the passes of the stages that have a discriminator.
func (c *Config) game(stage Stage, prompts int, independent bool) []Pass {
	n := c.Answers(stage)
	both := Pass{Part: "update_critic", Network: Discriminator, Students: n, Teachers: 1}
	list := []Pass{
		{Part: "rollout", Kind: Sample, Students: n, Times: 1},
	}
	list = append(list, c.oldLogProbs(stage, prompts, independent)...)
	if c.ReadsThoughts(stage) { // the teacher's answers after the student's thoughts
		list = append(list, Pass{Part: "thought_logp", Kind: Forward, Students: n, Times: 1})
	}
	// against adds the student's pass, whose log-probabilities the score of head likelihood
	// subtracts.
	against := func(part string, times float64, teachers int) {
		if c.Critic.Head == critic.Likelihood {
			list = append(list, Pass{Part: part, Kind: Forward, Students: n, Teachers: teachers,
				Times: times})
		}
	}
	if share := c.searchScoredShare(stage); share > 0 {
		list = append(list, Pass{Part: "score", Network: Discriminator, Kind: Forward, Students: n,
			Times: share})
		against("score", share, 0)
	}
	if share := c.scoredBeforeShare(prompts); share > 0 {
		score := both
		score.Kind, score.Times = Forward, share
		if c.Algorithm.FilterGroups.Enable { // the scores say which groups to replace
			score.Part = "score"
			against("score", share, 1)
		}
		list = append(list, score)
	}
	against("update_critic", 1, 1)
	if c.Critic.ByToken() { // the terms, before the discriminator learns
		against("update_critic", 1, 0)
		list = append(list, Pass{Part: "update_critic", Network: Discriminator, Kind: Forward,
			Students: n, Times: 1})
	}
	learn := both
	learn.Kind, learn.Times, learn.Mini =
		Learn, float64(c.Critic.PPOEpochs), c.Critic.MiniBatch(prompts)
	list = append(list, learn)
	if c.Mixes(stage) && c.LoadsTeacher(stage) {
		list = append(list, Pass{Part: "teacher_logp", Network: Teacher, Kind: Forward, Students: n,
			Times: 1})
	}
	return append(list, c.policyUpdate(stage, prompts)...)
}

// policyUpdate returns the passes of the student's update by its own answers, and of the comparison
// with the reference.
func (c *Config) policyUpdate(stage Stage, prompts int) (list []Pass) {
	n := c.Answers(stage)
	inReward, inLoss := c.ExactKL(stage)
	if inReward {
		for _, network := range []Network{Reference, Student} {
			list = append(list, Pass{Part: "exact_kl", Network: network, Kind: Forward, Students: n,
				Times: 1})
		}
	}
	if c.EstimatesKL(stage) {
		list = append(list, Pass{Part: "ref_logp", Network: Reference, Kind: Forward, Students: n,
			Times: 1})
	}
	update := c.actorUpdate(stage, prompts)
	if inLoss { // with the student's update, pack by pack
		list = append(list, Pass{Part: "update_actor", Network: Reference, Kind: Forward,
			Students: n, Times: update.Times})
	}
	return append(list, update)
}

// oldLogProbs returns the trainer's passes for old log-probabilities: in every step where its own
// are read (onPolicy.recomputesOld), but for FirstRatios, and of all answers in steps that compare
// them with the sampler's.
func (c *Config) oldLogProbs(stage Stage, prompts int, independent bool) (list []Pass) {
	pass := Pass{Part: "old_logp", Kind: Forward, Students: c.Answers(stage), Times: 1}
	own := c.Actor.OldLogProb == "recompute" ||
		c.Actor.OldLogProb != "rollout" && (!independent || c.Merges(stage))
	checked := 1.0
	if own && !c.LearnsTeacher(stage) {
		checked = float64(c.FirstRatios(stage, prompts)) / float64(prompts)
	}
	if checked < 1 {
		pass.Times = 1 - checked
		list = append(list, pass)
	}
	if checked > 0 {
		pass.When, pass.Times = Checks, checked
		list = append(list, pass)
	}
	return list
}

// FirstRatios returns how many of a batch's first prompts need no pass for old log-probabilities:
// the first mini-batch, which learns under the weights that sampled, so that its own forward pass
// gives them. It is 0 where something else reads them: a later epoch, a KL in the reward, a
// teacher's advantages; and where the update has other prompts first (dynamic sampling).
func (c *Config) FirstRatios(stage Stage, prompts int) int {
	if c.Actor.PPOEpochs > 1 || c.Algorithm.UseKLInReward || c.Algorithm.FilterGroups.Enable ||
		c.ReadsTeacher(stage) && !c.Divergence(stage) {
		return 0
	}
	return c.Actor.MiniBatch(prompts)
}

// scoredBeforeShare returns the share of a batch of prompts whose scores come from a separate
// forward pass: all with dynamic sampling, otherwise all but the discriminator's first mini-batch.
func (c *Config) scoredBeforeShare(prompts int) float64 {
	switch n := c.Critic.PPOMiniBatch; {
	case c.Algorithm.FilterGroups.Enable:
		return 1
	case n > 0 && n < prompts:
		return 1 - float64(n)/float64(prompts)
	}
	return 0
}

// searchScoredShare returns the share of the answers that are scored while their trees are
// searched: all but the last round's.
func (c *Config) searchScoredShare(stage Stage) float64 {
	tree := c.Tree(stage)
	if !tree.Branches() || tree.Select != "uct" {
		return 0
	}
	return 1 - float64(tree.Trees*tree.Expand)/float64(tree.Answers())
}

// LossHeads returns how many products of the trained tokens with a network's head a pass takes for
// a loss over distributions, in addition to Forwards and in units of forward products. The loss
// takes one, and its gradient takes it again with the products of a backward pass. soft reports
// that rows have soft labels.
func (c *Config) LossHeads(stage Stage, p Pass, soft bool) float64 {
	_, inLoss := c.ExactKL(stage)
	switch whole := inLoss || c.Divergence(stage); {
	case p.Part != "update_actor":
	case p.Network == Student && p.Kind == Learn && (whole || soft && c.SoftLabels(stage)):
		return (1 + c.NetworkConfig(p.Network).LoRA.TrainPasses()) * p.Times
	case p.Network != Student && whole && !(c.Divergence(stage) && c.Teacher.Loss == "topk"):
		return p.Times // of the two products with its head, Forwards counts one
	}
	return 0
}

// OptimizerSteps returns how many optimizer steps a network takes in one step of a stage.
func (c *Config) OptimizerSteps(stage Stage, network Network) (n int) {
	for _, p := range c.Passes(stage, c.Data.TrainBatchSize, true) {
		if p.Network == network {
			n += int(p.Times) * p.Updates()
		}
	}
	return n
}

// StepAnswers returns the largest number of sequences that a pass of a step has for each prompt.
func (c *Config) StepAnswers(stage Stage) (n int) {
	for _, p := range c.Passes(stage, c.Data.TrainBatchSize, true) {
		n = max(n, p.Answers())
	}
	return n
}

// NetworkConfig holds the settings that all networks have.
type NetworkConfig struct {
	MaxTokenLen int // tokens of a pack
	LoRA        model.LoRA
	Recompute   bool
	Optim       model.OptimSettings
}

// NetworkConfig returns the settings of a network.
func (c *Config) NetworkConfig(network Network) NetworkConfig {
	if network == Discriminator {
		return NetworkConfig{c.Critic.MaxTokenLen, c.Critic.LoRA, c.Critic.Recompute,
			c.Critic.Optim}
	}
	return NetworkConfig{c.Actor.MaxTokenLen, c.Actor.LoRA, c.Actor.Recompute, c.Actor.Optim}
}

// Forwards returns the cost of a pass in forward passes over its sequences.
func (c *Config) Forwards(p Pass) float64 {
	if p.Kind == Learn {
		return c.NetworkConfig(p.Network).LoRA.TrainPasses() * p.Times
	}
	return p.Times
}
