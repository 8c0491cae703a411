package config

import (
	"fmt"

	"gad/internal/report"
	"gad/model"
)

// tokenBytes is the memory of a token of an answer in a step, outside the models: its id and three
// log-probabilities of 4 bytes each. Advantages, masks and copies come on top: the check must not
// refuse a run that fits.
const tokenBytes = 16

// CheckSizes refuses settings that do not fit the student in dir, of the given shape.
func (c *Config) CheckSizes(stage Stage, dir string, shape model.Config) error {
	if err := c.CheckLongest(stage, dir, shape.MaxPosition); err != nil {
		return err
	}
	if stage.HasCritic() && c.Model.RewardPath == "" {
		if err := c.CheckScored(stage, dir, shape.MaxPosition); err != nil {
			return err
		}
	}
	ranks := []struct {
		key string
		l   model.LoRA
	}{{"actor", c.Actor.LoRA}, {"critic", c.Critic.LoRA}}
	if !stage.HasCritic() {
		ranks = ranks[:1]
	}
	for _, r := range ranks {
		if r.l.Rank > shape.Hidden {
			return fmt.Errorf("%w: %s.lora.rank is %d, above the hidden size of %s, which is %d: adapters would have more parameters than the weights: lower it", ErrConfig, r.key, r.l.Rank, dir, shape.Hidden)
		}
	}
	return nil
}

// CheckBatch refuses a step whose sequences alone would not fit free bytes of memory; free 0:
// unknown. answers is the number of sequences for each prompt, each of length tokens at most.
func (c *Config) CheckBatch(answers, length int, free int64) error {
	need := float64(c.Data.TrainBatchSize) * float64(answers) * float64(length) * tokenBytes
	if free <= 0 || need <= float64(free) {
		return nil
	}
	settings := fmt.Sprintf("data.train_batch_size %d", c.Data.TrainBatchSize)
	if answers > 1 {
		settings += fmt.Sprintf(" x %d answers (rollout.n %d, and the teacher's)", answers,
			answers-1)
	}
	return fmt.Errorf(
		"%w: %s of up to %d tokens each take %s in a step, and %s are available: lower them",
		ErrConfig, settings, length, report.Bytes(int64(min(need, 9e18))), report.Bytes(free))
}

// mostRepeats is how often a step may take each row. A larger batch is a mistake, and a signal
// could not end the long step, since only sampling is interruptible.
const mostRepeats = 100

// CheckRows refuses a batch that is far larger than the number of rows.
func (c *Config) CheckRows(rows int) error {
	if b := c.Data.TrainBatchSize; rows > 0 && b/mostRepeats > rows {
		return fmt.Errorf("%w: data.train_batch_size %d is more than %d times the %s: lower it",
			ErrConfig, b, mostRepeats, report.Count(rows, "row"))
	}
	return nil
}
