package critic

import (
	"fmt"

	"gad/algos"
	"gad/model"
)

// Config is the `critic` section: the discriminator's objective and optimizer.
type Config struct {
	Loss         string              `yaml:"loss" choices:"bt,bce" doc:"Bradley-Terry on the score difference, or binary cross entropy on each score"`
	Optim        model.OptimSettings `yaml:"optim"`
	GradClip     float64             `yaml:"grad_clip" min:"0" doc:"global gradient norm is clipped to this; 0 is no clipping"`
	PPOMiniBatch int                 `yaml:"ppo_mini_batch_size" min:"0" doc:"prompts per optimizer step; 0 is the whole batch"`
	PPOEpochs    int                 `yaml:"ppo_epochs" min:"1" doc:"passes over each rollout batch"`
	MaxTokenLen  int                 `yaml:"max_token_len" min:"1" doc:"tokens of one micro-batch; results do not depend on it, memory does"`
	Recompute    bool                `yaml:"recompute" doc:"recompute each block's activations in the backward pass"`
	ScoreInit    float64             `yaml:"score_init" min:"0" doc:"standard deviation of the fresh value head"`
	Truncated    string              `yaml:"truncated" choices:"exclude,include" doc:"whether responses cut at the length limit take part in the discriminator's pairs"`
	ScoreL2      float64             `yaml:"score_l2" min:"0" doc:"weight of an L2 penalty on the scores in the discriminator's loss"`
	Replay       Replay              `yaml:"replay"`
}

// Replay is the `critic.replay` section.
type Replay struct {
	Size  int     `yaml:"size" min:"0" doc:"how many past student responses are kept for the discriminator; 0 is no replay"`
	Share float64 `yaml:"share" min:"0" max:"0.95" doc:"share of the discriminator's batch that comes from those"`
}

// DefaultConfig is the paper's discriminator.
func DefaultConfig() Config {
	return Config{
		Loss: "bt", Optim: model.DefaultOptim(), GradClip: 0.2, PPOEpochs: 1, MaxTokenLen: 8192,
		ScoreInit: 0.02, Truncated: "exclude", Replay: Replay{Share: 0.5},
	}
}

// Validate checks what the tags cannot say.
func (c Config) Validate() error {
	if _, err := algos.NewDiscriminator[float32](c.objective()); err != nil {
		return fmt.Errorf("config: critic: %w", err)
	}
	return c.Optim.Validate("critic.optim")
}

// objective is the discriminator's objective that the settings describe.
func (c Config) objective() algos.DiscConfig {
	return algos.DiscConfig{Loss: c.Loss, L2: c.ScoreL2}
}
