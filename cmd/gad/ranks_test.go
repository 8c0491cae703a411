package main

import (
	"slices"
	"strings"
	"testing"
)

// The plan of several ranks has what each sends for a step: 2*3/4 of the gradients of
// 28,320 parameters, each tensor's rounded up to 64 elements, four times for the student
// and once for the discriminator.
func TestPlanOfRanks(t *testing.T) {
	f := ready(t)
	line := []string{"plan", "--model", f.path("student"), "--stage", "warmup", "--ranks", "4",
		"--bandwidth", "1", "data.max_prompt_length=64", "data.max_response_length=14",
		"data.train_batch_size=8", "trainer.shards=8", "trainer.warmup_objective=policy",
		"actor.ppo_mini_batch_size=2"}
	out, _ := must(t, line...)
	for _, want := range []string{
		"sums of gradients of shards (trainer.shards=8)",
		"4 ranks, each with all weights and 2 of 8 shards",
		"sent by each for a step                                  862 kB",
		"(gradients of 4 optimizer steps of the student and 1 of the discriminator)",
		"time of it at 1 Gbit/s                                     7 ms",
		"bits: the same for any number of ranks",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan does not say %q:\n%s", want, out)
		}
	}
	if alone, _ := must(t, append(line[:5:5], line[9:]...)...); strings.Contains(alone,
		"ranks, each") {
		t.Errorf("the plan of one process speaks of ranks:\n%s", alone)
	}
}

// The commands with --ranks are those of rankCommands, and gad plan, which only counts them.
func TestWithRanks(t *testing.T) {
	var found []string
	for _, c := range (&program{}).app().Commands {
		for _, f := range c.Flags {
			if slices.Contains(f.Names(), "ranks") && c.Name != "plan" {
				found = append(found, c.Name)
			}
		}
	}
	slices.Sort(found)
	if want := slices.Sorted(slices.Values(rankCommands)); !slices.Equal(found, want) {
		t.Errorf("--ranks is a flag of %v, withRanks has %v", found, want)
	}
}
