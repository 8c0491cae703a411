package config

import "gad/model"

// What a step computes, as one list. The loop (trainer/step.go, trainer/dpo.go) is the order in
// which a step calls its networks; this list is what those calls cost, for everyone who counts:
// perf/ metrics, gad plan (measured, predicted and --fit), gad bench. TestPassesOfAStep compares
// the list with the passes that a backend sees in real steps.

// Network is one that a step passes sequences through.
type Network int

// The networks of a run.
const (
	Student Network = iota
	Discriminator
	Reference // the student as it was when the run began: same shape and settings
)

// Kind is what a pass does with its sequences.
type Kind int

// The kinds of passes.
const (
	Sample  Kind = iota // the prompt passes once, then a token of each answer at a time
	Forward             // one forward pass
	Learn               // a forward and a backward pass, and optimizer steps
)

// When says in which steps a pass is due.
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
	Part     string // of a step, as in timing_s/PART; a part may have several passes
	Network  Network
	Kind     Kind
	When     When
	Students int     // answers of the student to each prompt
	Teachers int     // answers of the teacher to each prompt: 0 or 1
	Times    float64 // how often; a share where the other sequences' results are known already
	Prompts  int     // of the batch
	Mini     int     // of Learn: prompts of an optimizer step
}

// Answers is how many sequences a prompt has.
func (p Pass) Answers() int { return p.Students + p.Teachers }

// Updates is how many optimizer steps one of Times takes.
func (p Pass) Updates() int {
	if p.Kind != Learn {
		return 0
	}
	return (p.Prompts + p.Mini - 1) / p.Mini
}

// Passes are what a step of a stage computes with a batch of so many prompts, in the order of
// the step. independent says that a row's bits do not depend on the rows beside it
// (compute.Backend.Alone).
func (c *Config) Passes(stage Stage, prompts int, independent bool) []Pass {
	n := c.Rollout.N
	teacher := Pass{Part: "update_actor", Kind: Learn, Teachers: 1, Times: 1, Mini: prompts}
	var list []Pass
	switch {
	case stage == SFT:
		list = []Pass{teacher}
	case stage == DPO:
		list = []Pass{
			{Part: "rollout", Network: Reference, Kind: Sample, Students: 1, Times: 1},
			{Part: "ref_logp", Network: Reference, Kind: Forward, Students: 1, Teachers: 1, Times: 1},
			{Part: "update_actor", Kind: Forward, When: SeveralPacks, Students: 1, Teachers: 1, Times: 1},
			{Part: "update_actor", Kind: Learn, Students: 1, Teachers: 1, Times: 1, Mini: prompts},
		}
	default:
		list = []Pass{
			{Part: "rollout", Kind: Sample, Students: n, Times: 1},
			{Part: "old_logp", Kind: Forward, When: c.oldLogProbs(stage, independent), Students: n, Times: 1},
		}
		if share := c.scoredBefore(prompts); share > 0 {
			part := "update_critic"
			if c.Algorithm.FilterGroups.Enable { // the scores say which groups to replace
				part = "score"
			}
			list = append(list, Pass{Part: part, Network: Discriminator, Kind: Forward, Students: n, Teachers: 1, Times: share})
		}
		list = append(list, Pass{Part: "update_critic", Network: Discriminator, Kind: Learn, Students: n, Teachers: 1,
			Times: float64(c.Critic.PPOEpochs), Mini: c.Critic.MiniBatch(prompts)})
		if c.NeedsReference(stage) {
			list = append(list, Pass{Part: "ref_logp", Network: Reference, Kind: Forward, Students: n, Times: 1})
		}
		if !c.LearnsTeacher(stage) {
			teacher = Pass{Part: "update_actor", Kind: Learn, Students: n, Times: float64(c.Actor.PPOEpochs), Mini: c.Actor.MiniBatch(prompts)}
		}
		list = append(list, teacher)
	}
	for i := range list {
		list[i].Prompts = prompts
	}
	return list
}

// oldLogProbs says when the trainer's own pass gives the old log-probabilities
// (Trainer.recomputesOld).
func (c *Config) oldLogProbs(stage Stage, independent bool) When {
	own := c.Actor.OldLogProb == "recompute" || c.Actor.OldLogProb != "rollout" && (!independent || c.Merges(stage))
	if c.Actor.ReadsEntropy() || own && !c.LearnsTeacher(stage) {
		return Always
	}
	return Checks
}

// scoredBefore is the share of a batch of prompts whose scores come from a forward pass of
// their own: all with dynamic sampling, otherwise those that the discriminator's first
// mini-batch does not have.
func (c *Config) scoredBefore(prompts int) float64 {
	switch n := c.Critic.PPOMiniBatch; {
	case c.Algorithm.FilterGroups.Enable:
		return 1
	case n > 0 && n < prompts:
		return 1 - float64(n)/float64(prompts)
	}
	return 0
}

// OptimizerSteps is how many a network takes in one step of a stage.
func (c *Config) OptimizerSteps(stage Stage, network Network) (n int) {
	for _, p := range c.Passes(stage, c.Data.TrainBatchSize, true) {
		if p.Network == network {
			n += int(p.Times) * p.Updates()
		}
	}
	return n
}

// StepAnswers is the most sequences that a pass of a step has for each prompt.
func (c *Config) StepAnswers(stage Stage) (n int) {
	for _, p := range c.Passes(stage, c.Data.TrainBatchSize, true) {
		n = max(n, p.Answers())
	}
	return n
}

// NetworkConfig is what the settings say of a network, whichever it is.
type NetworkConfig struct {
	MaxTokenLen int // of a pack
	LoRA        model.LoRA
	Recompute   bool
	Optim       model.OptimSettings
}

// Of is the settings of a network.
func (c *Config) Of(network Network) NetworkConfig {
	if network == Discriminator {
		return NetworkConfig{c.Critic.MaxTokenLen, c.Critic.LoRA, c.Critic.Recompute, c.Critic.Optim}
	}
	return NetworkConfig{c.Actor.MaxTokenLen, c.Actor.LoRA, c.Actor.Recompute, c.Actor.Optim}
}

// Forwards is what a pass costs, in forward passes over its sequences.
func (c *Config) Forwards(p Pass) float64 {
	if p.Kind == Learn {
		return c.Of(p.Network).LoRA.TrainPasses() * p.Times
	}
	return p.Times
}
