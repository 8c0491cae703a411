package critic

import (
	"fmt"
	"math"

	"gad/algos"
	"gad/model"
)

// Config is the `critic` section: the discriminator's objective and optimizer.
type Config struct {
	Loss         string              `yaml:"loss" choices:"bt,bce" doc:"Bradley-Terry on the score difference, or binary cross entropy on each score"`
	Optim        model.OptimSettings `yaml:"optim"`
	GradClip     float64             `yaml:"grad_clip" min:"0" doc:"global gradient norm is clipped to this; 0 is no clipping"`
	PPOMiniBatch int                 `yaml:"ppo_mini_batch_size" min:"0" doc:"prompts per optimizer step; 0 is the whole batch. A discriminator that does not start wants many small steps"`
	PPOEpochs    int                 `yaml:"ppo_epochs" min:"1" doc:"passes over each rollout batch"`
	MaxTokenLen  int                 `yaml:"max_token_len" min:"1" doc:"tokens of one micro-batch; results do not depend on it, memory does"`
	Recompute    bool                `yaml:"recompute" doc:"recompute each block's activations in the backward pass"`
	ScoreInit    float64             `yaml:"score_init" min:"0" doc:"standard deviation of the fresh value head; 0 follows the model's width, 5.66/sqrt(hidden)"`
	Truncated    string              `yaml:"truncated" choices:"exclude,include" doc:"whether responses cut at the length limit take part in the discriminator's pairs"`
	ScoreL2      float64             `yaml:"score_l2" min:"0" doc:"weight of an L2 penalty on the scores in the discriminator's loss"`
	GroupOT      float64             `yaml:"group_ot" min:"0" doc:"weight of GRGC's group term (arXiv 2609.39757), which keeps the scores of one prompt's answers spread; 0 is none, 0.01 its authors'"`
	Replay       Replay              `yaml:"replay"`
}

// Replay is the `critic.replay` section: a pool of past negatives (arXiv 2609.30864).
type Replay struct {
	Size  int     `yaml:"size" min:"0" doc:"how many triples of prompt, teacher's answer and past student's answer are kept as the discriminator's pool of negatives, the latest ones; 0 is no pool"`
	Share float64 `yaml:"share" min:"0" max:"1" doc:"share of the prompts of each discriminator batch whose pairs are replaced by as many out of the pool; the student's own batch is always fresh"`
	Live  bool    `yaml:"live" doc:"whether the student's answers enter the pool as it learns; false keeps the pool that the earlier stage left: a discriminator trained off-policy, for ablations"`
}

// DefaultConfig is the paper's discriminator.
func DefaultConfig() Config {
	return Config{
		Loss: "bt", Optim: model.DefaultOptim(), GradClip: 0.2, PPOEpochs: 1, MaxTokenLen: 8192,
		Truncated: "exclude", Replay: Replay{Share: 0.5, Live: true},
	}
}

// Validate checks what the tags cannot say.
func (c Config) Validate() error {
	if _, err := algos.NewDiscriminator[float32](c.objective()); err != nil {
		return fmt.Errorf("config: critic: %w", err)
	}
	return c.Optim.Validate("critic.optim")
}

// HeadStd is the standard deviation of a fresh value head on a backbone of the given
// width. Scores of unit-size features then have a standard deviation of 5.66 whatever
// the width. With a small head the score moves little at first, and AdamW's full-size
// steps wear away the backbone's features before the head can read them; the larger
// the first spread of the scores, the earlier a discriminator started (doc/LOG.md).
func (c Config) HeadStd(hidden int) float64 {
	if c.ScoreInit > 0 {
		return c.ScoreInit
	}
	return 5.66 / math.Sqrt(float64(hidden))
}

// objective is the discriminator's objective that the settings describe.
func (c Config) objective() algos.DiscConfig {
	return algos.DiscConfig{Loss: c.Loss, L2: c.ScoreL2}
}
