package model

import "fmt"

// OptimSettings are the optimizer's settings, under verl's names; actor and
// critic each carry one.
type OptimSettings struct {
	LR          float64 `yaml:"lr" min:"0" doc:"peak learning rate" alias:"learning_rate"`
	LRScheduler string  `yaml:"lr_scheduler" choices:"constant,cosine,linear" doc:"learning-rate schedule after its warm-up: constant, or a cosine or linear decay to min_lr_ratio" inherit:"no" alias:"lr_scheduler_type"`
	WarmupSteps int     `yaml:"lr_warmup_steps" min:"0" max:"1000000000" doc:"optimizer steps over which the learning rate rises linearly from 0" inherit:"no" alias:"warmup_steps"`
	MinLRRatio  float64 `yaml:"min_lr_ratio" min:"0" max:"1" doc:"final learning rate as a share of lr, for cosine and linear" inherit:"no" needs:".lr_scheduler=cosine|linear"`
	Beta1       float64 `yaml:"beta1" min:"0" max:"1" doc:"AdamW's decay of the first moment"`
	Beta2       float64 `yaml:"beta2" min:"0" max:"1" doc:"AdamW's decay of the second moment"`
	Eps         float64 `yaml:"eps" min:"0" doc:"AdamW's epsilon"`
	WeightDecay float64 `yaml:"weight_decay" min:"0" doc:"AdamW's decoupled weight decay, on matrices only"`
	Moments     string  `yaml:"moments" choices:"float32,8bit" doc:"how AdamW's moments are kept: float32, or 8 bits by blocks of 256 (arXiv 2110.02861), which takes 6 bytes a parameter less and rounds them at every step; embeddings, norms, biases and small tensors stay float32" fixed:"true"`
	Offload     bool    `yaml:"offload" doc:"keep AdamW's moments in the host's memory, where a GPU reads and writes them over the bus at every update: the same bits, 8 bytes a parameter less on the GPU" alias:"actor_rollout_ref.actor.fsdp_config.optimizer_offload"`
}

// DefaultOptim returns the paper's optimizer (arXiv 2511.10643, appendix): AdamW with betas 0.9 and
// 0.999, weight decay 0.01, a constant learning rate.
func DefaultOptim() OptimSettings {
	return OptimSettings{LR: 1e-6, LRScheduler: "constant", Beta1: 0.9, Beta2: 0.999, Eps: 1e-8,
		WeightDecay: 0.01, Moments: "float32"}
}

// AdamW returns the optimizer's configuration. Gradients are clipped to a global norm of clip, 0 is
// no clipping; total is the number of optimizer steps of the learning rate's schedule.
func (o OptimSettings) AdamW(clip float64, total int) AdamWConfig {
	return AdamWConfig{LR: o.Schedule(total), Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps,
		WeightDecay: o.WeightDecay,
		ClipNorm:    clip, Moments8: o.Moments == "8bit", Offload: o.Offload}
}

// Schedule returns the learning rate's schedule over total optimizer steps.
func (o OptimSettings) Schedule(total int) Schedule {
	return Schedule{Peak: o.LR, Kind: o.LRScheduler, Warmup: o.WarmupSteps, Total: total,
		Floor: o.MinLRRatio}
}

// Validate checks bounds that the tags cannot express; key names the section in errors.
func (o OptimSettings) Validate(key string) error {
	for _, b := range []struct {
		name string
		v    float64
	}{{"beta1", o.Beta1}, {"beta2", o.Beta2}} {
		if b.v >= 1 {
			return fmt.Errorf("settings: %s.%s is %g: must be below 1", key, b.name, b.v)
		}
	}
	if o.Eps == 0 || o.Eps >= 1 {
		return fmt.Errorf("settings: %s.eps is %g: must be above 0 and below 1; 1e-8 is usual", key,
			o.Eps)
	}
	return nil
}
