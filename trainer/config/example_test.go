package config_test

import (
	"fmt"

	"gad/trainer/config"
)

// Settings as on the command line, over the defaults of a stage.
func ExampleConfig_Load() {
	cfg := config.StageDefaults(config.Train)
	err := cfg.Load("", "actor.optim.lr=1e-5", "rollout.n=4")
	fmt.Println(cfg.Actor.Optim.LR, cfg.Rollout.N, err)
	err = cfg.Load("", "rollout.m=4")
	fmt.Println(err)
	// Output:
	// 1e-05 4 <nil>
	// settings: override "rollout.m=4": setting "rollout.m": unknown: known in "rollout": n, temperature, top_k, top_p, min_p, chunk, carry, carry_head, chunks, tree, merged, max_num_seqs
}

// Every rule that a stage's settings break has a line.
func ExampleConfig_Validate() {
	cfg := config.StageDefaults(config.SFT)
	cfg.Data.TrainBatchSize = 0
	fmt.Println(cfg.Validate(config.SFT))
	// Output:
	// settings: data.train_batch_size: 0: below the minimum 1
}

// A published method is a list of settings.
func ExamplePreset() {
	settings, err := config.Preset("grgc", config.Train)
	fmt.Println(settings, err)
	// Output:
	// [critic.group_ot=0.01 algorithm.adv_power=1.5] <nil>
}

// The reward as a sum of terms.
func ExampleParseTerms() {
	terms, err := config.ParseTerms("d + 0.5*z(check) - 0.3*rouge_l@wrong")
	for _, t := range terms {
		fmt.Printf("%+v\n", t)
	}
	fmt.Println(err)
	// Output:
	// {Name:d Weight:1 Z:false Wrong:false}
	// {Name:check Weight:0.5 Z:true Wrong:false}
	// {Name:rouge_l Weight:-0.3 Z:false Wrong:true}
	// <nil>
}

// Other trainers' names lead to the setting.
func ExampleAlias() {
	fmt.Println(config.Alias("num_generations"))
	// Output:
	// rollout.n true
}
