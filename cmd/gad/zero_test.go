package main

import (
	"regexp"
	"testing"
)

// Mistakes with optimizer states that are divided among ranks, and what a plan says of them.
func TestMistakesOfShardedOptimizer(t *testing.T) {
	f := ready(t)
	mistaken(t, nil, []mistake{
		{"plan --model " + f.path("student") + " --device cuda --ranks 2 SET trainer.shards=2 trainer.shard_optimizer=true", 2, `configuration: trainer.shard_optimizer is true, but trainer.device is cuda: optimizer states are divided among CPU ranks alone: leave it out, or lower their memory by optim.moments=8bit or optim.offload=true`},
	})
}

// 28,320 parameters have 8 bytes of moments each. A quarter would be 57 kB; of four ranks
// the one with the most has 8,192 elements of a parameter that is cut, and small ones.
func TestPlanOfShardedOptimizer(t *testing.T) {
	f := ready(t)
	line := []string{"plan", "--model", f.path("student"), "--stage", "sft", "--ranks", "4", "data.max_prompt_length=64", "data.max_response_length=14", "trainer.shards=4"}
	whole, _ := must(t, line...)
	divided, _ := must(t, append(line, "trainer.shard_optimizer=true")...)
	for out, want := range map[string]string{
		whole:   `(?m)^  actor: optimizer +227 kB$`,
		divided: `(?m)^  actor: optimizer +66\.3 kB  \(its part of 227 kB, on 4 ranks \(trainer.shard_optimizer\)\)$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the plan does not say %q:\n%s", want, out)
		}
	}
}
