package critic

import (
	"fmt"
	"math"

	"gad/algos"
	"gad/model"
)

// Config is the `critic` section: the discriminator's objective and optimizer.
type Config struct {
	Head         string              `yaml:"head" choices:"value,likelihood" doc:"value: a linear head on the network, read at the answer's last token (the paper's); likelihood: a language model q, and the score is log q of the answer minus the student's own log-probability of it, which is 0 everywhere at first and the log-ratio of teacher and student at the optimum (doc/the-game.md)" fixed:"true"`
	Loss         string              `yaml:"loss" choices:"bt,bce" doc:"bt: Bradley-Terry on the difference of scores; bce: binary cross entropy on each score" unproven:"bce"`
	Level        string              `yaml:"level" choices:"episode,turn,token" doc:"where a sequence is scored, episode: at its last token; turn: at the end of each assistant turn, and a turn's reward is what it adds to the score; token (head likelihood, adv_estimator reinforce_plus_plus): the discriminator learns from whole answers, and the reward of a token is its own term log q - log p_S (unproven: no study has it)" fixed:"true" needs:"env.command!=" unproven:"turn,token"`
	Reads        string              `yaml:"reads" choices:"answer,last" doc:"what of a thought in chunks (rollout.chunk) is scored, answer: the prompt and the whole thought, as one sequence; last: the context of its last chunk and that chunk, the student's against the teacher's, so that memory does not grow with the thought. Answers that are no chunks are read whole" fixed:"true" unproven:"last"`
	Optim        model.OptimSettings `yaml:"optim"`
	LoRA         model.LoRA          `yaml:"lora" fixed:"true"`
	GradClip     float64             `yaml:"grad_clip" min:"0" doc:"clip the global gradient norm to this; 0: no clipping"`
	PPOMiniBatch int                 `yaml:"ppo_mini_batch_size" min:"0" max:"1000000000" doc:"prompts per optimizer step; 0: the whole batch. If the discriminator does not start to learn, use many small steps"`
	PPOEpochs    int                 `yaml:"ppo_epochs" min:"1" max:"1000000" doc:"passes over each rollout batch" unproven:"all"`
	MaxTokenLen  int                 `yaml:"max_token_len" min:"1" max:"1000000000" doc:"largest number of tokens in a micro-batch, a prompt counted once for all its answers; a larger one needs more memory, results agree to rounding" alias:"critic.ppo_max_token_len_per_gpu"`
	Recompute    bool                `yaml:"recompute" doc:"recompute activations in the backward pass (gradient checkpointing): less memory, a third more work" alias:"critic.model.enable_gradient_checkpointing"`
	ScoreInit    float64             `yaml:"score_init" min:"0" doc:"standard deviation of the new score head (head value); 0: 0.1/sqrt(hidden size)" needs:"critic.head=value"`
	Truncated    string              `yaml:"truncated" choices:"exclude,include" doc:"whether answers cut at the length limit take part in the discriminator's pairs"`
	ScoreL2      float64             `yaml:"score_l2" min:"0" doc:"weight of an L2 penalty on the scores in the discriminator's loss" unproven:"all"`
	GroupOT      float64             `yaml:"group_ot" min:"0" doc:"weight of GRGC's group term (arXiv 2609.39757, which uses 0.01): it keeps the scores of a prompt's answers apart; 0: none" fixed:"true" unproven:"all"`
	Replay       Replay              `yaml:"replay"`
}

// Replay is the `critic.replay` section: a pool of past negatives (arXiv 2609.30864).
type Replay struct {
	Size  int     `yaml:"size" min:"0" max:"1000000000" doc:"size of the pool of past negatives: the latest triples of prompt, teacher's answer and student's answer; 0: no pool" unproven:"all"`
	Share float64 `yaml:"share" min:"0" max:"1" doc:"share of the prompts in each discriminator batch whose pairs are replaced by pairs from the pool; the student's own batch is always fresh" needs:".size>0" unproven:"all"`
	Live  bool    `yaml:"live" doc:"true: the student's new answers enter the pool; false: the pool of the earlier stage is kept unchanged (an off-policy discriminator, for ablations)" needs:".size>0" unproven:"all"`
}

// DefaultConfig returns the paper's discriminator: a value head and the Bradley-Terry loss on whole
// answers.
func DefaultConfig() Config {
	return Config{
		Head: Value, Loss: "bt", Level: "episode", Reads: "answer",
		Optim: model.DefaultOptim(), GradClip: 0.2,
		PPOEpochs:   1,
		MaxTokenLen: 8192,
		LoRA:        model.DefaultLoRA(), Truncated: "exclude",
		Replay: Replay{Share: 0.5, Live: true},
	}
}

// Validate checks rules between settings, which the field tags cannot express.
func (c Config) Validate() error {
	if c.ByToken() && c.Head != Likelihood {
		return fmt.Errorf("settings: critic.level token is the terms of a sum over tokens, which critic.head %s is not: use critic.head=likelihood", c.Head)
	}
	if _, err := algos.NewDiscriminator[float32](c.objective()); err != nil {
		return fmt.Errorf("settings: critic: %w", err)
	}
	if err := c.LoRA.Validate("critic.lora"); err != nil {
		return err
	}
	return c.Optim.Validate("critic.optim")
}

// HeadStd returns the standard deviation of a new value head on a backbone of the given width. The
// default gives scores of unit-size features a standard deviation of 0.1 at every width, so that
// the first scores add little noise to the student's rewards. With the earlier 5.66, a released
// model began with a spread of 6.7 nats within a group, which LoRA at 2e-4 had not unlearned after
// 120 updates; the small value also makes a small random student start sooner (doc/LOG.md,
// 2026-11-27).
func (c Config) HeadStd(hidden int) float64 {
	if c.ScoreInit > 0 {
		return c.ScoreInit
	}
	return 0.1 / math.Sqrt(float64(hidden))
}

// byTurn reports whether a sequence has a score for each of its turns.
func (c Config) byTurn() bool { return c.Level == "turn" }

// ByToken reports whether each token has a reward of its own (Scorer.Terms).
func (c Config) ByToken() bool { return c.Level == "token" }

// objective returns the discriminator's objective that the settings describe.
func (c Config) objective() algos.DiscConfig {
	return algos.DiscConfig{Loss: c.Loss, L2: c.ScoreL2}
}
