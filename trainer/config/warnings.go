package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"gad/internal/report"
	"gad/model"
)

// largeLR is a little more than the largest rate at which a game was seen to win, 2e-4
// with a narrow clip (doc/study.md, "Ablations and a student that is too fast"). Adapters
// take ten times as much.
const largeLR = 3e-4

// wildLR is a learning rate above which no student or discriminator was seen to learn.
const wildLR = 0.03

// Warnings returns warnings about settings that are allowed and rarely right.
func (c *Config) Warnings(stage Stage) (warnings []string) {
	warnings = append(c.judgeWarnings(), c.idleWarnings(stage)...)
	if !stage.HasCritic() {
		return warnings
	}
	large := largeLR
	if c.Actor.LoRA.On() {
		large *= 10
	}
	if lr := c.Actor.Optim.LR; stage == Train && lr > large {
		warnings = append(warnings, fmt.Sprintf("actor.optim.lr is %g: fit for learning the teacher's answers, and mostly too large for the game (the paper's is 1e-6, gad demo's 5e-5 after 3e-3): if KL runs away, lower it", lr))
	}
	if n := c.Answers(stage); n < 4 {
		warnings = append(warnings, fmt.Sprintf("rollout.n is %d: with fewer than 4 answers a group's statistics say little (with 2, grpo's advantages are the same size whatever the scores): 8 is usual", n))
	}
	if c.Actor.PolicyLoss.LossMode == "gspo" &&
		c.Actor.MiniBatch(c.Data.TrainBatchSize) == c.Data.TrainBatchSize &&
		c.Actor.PPOEpochs == 1 {
		warnings = append(warnings, "actor.ppo_mini_batch_size is the whole batch and actor.ppo_epochs is 1: every ratio is exactly 1 and the clip never acts")
	}
	return warnings
}

// idleWarnings returns warnings about changed settings that have no effect given the others.
func (c *Config) idleWarnings(stage Stage) (warnings []string) {
	networks := []struct {
		key, who string
		model.OptimSettings
	}{{"actor.optim", "student", c.Actor.Optim}, {"critic.optim", "discriminator", c.Critic.Optim}}
	if !stage.HasCritic() {
		networks = networks[:1]
	}
	for _, n := range networks {
		if n.LR == 0 {
			warnings = append(warnings,
				fmt.Sprintf("%s.lr is 0: the %s will not change", n.key, n.who))
		}
		if n.LR > wildLR {
			warnings = append(warnings, fmt.Sprintf("%s.lr is %g: AdamW moves every weight of the %s by about so much a step, and most weights are below 0.1: 1e-3 is large", n.key, n.LR, n.who))
		}
	}
	defaults, preset := StageDefaults(stage), map[string]any{}
	for f := range defaults.facts() {
		preset[f.key] = f.value.Interface()
	}
	for f := range c.facts() {
		if f.group || f.ownTag("needs") == "" && f.key != "data.ratings" &&
			!strings.HasPrefix(f.key, "teacher.") {
			continue
		}
		if reflect.DeepEqual(preset[f.key], f.value.Interface()) {
			continue
		}
		if why := c.idle(stage, f.key); why != "" {
			warnings = append(warnings,
				fmt.Sprintf("%s %v has no effect: %s", f.key, f.value, why))
		}
	}
	if t := c.Teacher; stage == OPD && t.Path != "" && t.URL == "" && t.By == "" &&
		filepath.Clean(t.Path) == filepath.Clean(c.Model.Path) &&
		c.Model.Adapter+c.Data.Template+c.Data.ChatTemplate+t.Template+t.System+t.PromptKey+
			c.Coach.Command == "" {
		warnings = append(warnings, fmt.Sprintf("teacher.path %s is the student itself, and reads what it reads: there is nothing to learn: give another model, or teacher.prompt_key or coach.command, which the teacher alone reads", t.Path))
	}
	if tree := c.Tree(stage); tree.Branches() && !c.Acts(stage) && !c.Chunks(stage).On() &&
		tree.Segment >= c.Data.MaxResponse {
		warnings = append(warnings, fmt.Sprintf("rollout.tree.segment %d is not below data.max_response_length %d: answers branch at their prompt alone: lower it", tree.Segment, c.Data.MaxResponse))
	}
	return warnings
}

// judgeWarnings returns a warning about a held-out discriminator that is the run's own.
func (c *Config) judgeWarnings() []string {
	held := c.Trainer.HeldOutCritic
	if held == "" {
		return nil
	}
	for _, own := range []string{c.Trainer.Resume, c.Trainer.Output, c.Model.RewardPath} {
		if own == "" {
			continue
		}
		if rel, err := filepath.Rel(own, held); err == nil && rel != ".." &&
			!strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
			return []string{fmt.Sprintf("trainer.held_out_critic %s is this run's own discriminator, at an earlier step: an answer that fools one fools the other: give one that was trained on other rows or with another seed", held)}
		}
	}
	return nil
}

// FewSteps is a number of steps too small for a student to learn at the usual learning rates.
const FewSteps = 20

// LengthWarnings returns warnings about the length of a run of so many steps over so many rows:
// that the student learns in no step, or in hardly any.
func (c *Config) LengthWarnings(stage Stage, rows, steps int) []string {
	alone := 0
	if stage.HasCritic() {
		alone = c.Trainer.CriticWarmup
	}
	switch learning := steps - alone; {
	case alone > 0 && learning < 1 && stage == Warmup && c.Trainer.TotalSteps == alone:
		return nil // the discriminator alone, as whoever gives two equal numbers wants it
	case alone > 0 && learning < 1 && c.Trainer.CriticWarmupUntil == 0:
		return []string{fmt.Sprintf("trainer.critic_warmup %d is not below the number of steps of the run, %d: the student will not be trained", alone, steps)}
	case learning >= 1 && learning < FewSteps && c.Trainer.TotalSteps == 0:
		return []string{fmt.Sprintf("%s at data.train_batch_size %d are %s, and the student learns in %d: a smaller batch, more trainer.total_epochs or --steps give it more (--preset small has a batch and rates for a released student)", report.Count(rows, "row"), c.Data.TrainBatchSize, report.Count(steps, "step"), learning)}
	}
	return nil
}
