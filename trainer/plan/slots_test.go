package plan

import (
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
	"gad/model"
	"gad/trainer/config"
)

// How many answers are sampled at a time: on a processor 64, on a GPU as many as a step has
// answers and the memory has room for, up to 512; a number that is set stays.
func TestSlots(t *testing.T) {
	const gb = 1_000_000_000
	shape := model.Qwen25[1].Config
	game := func(edit func(*config.Config)) config.Config {
		c := cardConfig()
		if edit != nil {
			edit(&c)
		}
		return c
	}
	bf16 := cuda.Options{Precision: cuda.BF16}
	at := func(n int) int64 { // bytes of the game with n at a time
		return Need(bf16, shape, game(func(c *config.Config) { c.Rollout.MaxNumSeqs = n }),
			config.Train, 1)
	}
	if at(512) <= at(256) || at(256) <= at(128) {
		t.Fatal("more answers at a time take no more memory")
	}
	for _, c := range []struct {
		name  string
		f     model.Footprint
		free  int64
		stage config.Stage
		edit  func(*config.Config)
		want  int
	}{
		{"a large GPU", bf16, 141 * gb, config.Train, nil, 512},
		{"room for 256 and an error of the plan", bf16, at(256)*26/25 + gb/2, config.Train, nil, 256},
		{"no room for the plan's error", bf16, at(256), config.Train, nil, 128},
		{"nothing fits", bf16, 8 * gb, config.Train, nil, 64},
		{"unknown memory", bf16, 0, config.Train, nil, 64},
		{"few answers", bf16, 141 * gb, config.Train,
			func(c *config.Config) { c.Data.TrainBatchSize = 12 }, 128},
		// of whose 512 prompts none shares its keys and values
		{"a long validation", bf16, at(512) * 26 / 25, config.Train, func(c *config.Config) {
			c.Data.ValFiles, c.Trainer.ValRows = []string{"val.jsonl"}, 4096
		}, 128},
		{"no answers in a step", bf16, 141 * gb, config.SFT, nil, 64},
		{"set", bf16, 141 * gb, config.Train,
			func(c *config.Config) { c.Rollout.MaxNumSeqs = 48 }, 48},
		{"a processor", cpu.Footprint{}, 141 * gb, config.Train, nil, 64},
	} {
		if got := Slots(c.f, c.free, shape, game(c.edit), c.stage, 1); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
