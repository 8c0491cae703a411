package main

import (
	"regexp"
	"slices"
	"testing"
)

// 28,320 parameters have 8 bytes of moments each. A quarter would be 57 kB; of four ranks
// the one with the most has 8,192 elements of a parameter that is cut, and small ones.
func TestPlanOfShardedOptimizer(t *testing.T) {
	f := ready(t)
	line := []string{"plan", "--model", f.path("student"), "--stage", "sft", "--ranks", "4",
		"data.max_prompt_length=64", "data.max_response_length=14", "trainer.shards=4"}
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

// On GPUs each rank sends, beside a sum of the gradients, what is computed with of its weights:
// of 28,320 parameters 4 bytes each in float32, and 2 in bfloat16 but for the vectors; and NCCL
// has buffers. Three quarters of twice 113.3 kB for the sum, rounded up to the blocks of
// gradients, and of 113.3 or 57.2 kB for the weights.
func TestPlanOfRanksOfGPUs(t *testing.T) {
	f := ready(t)
	line := []string{"plan", "--model", f.path("student"), "--stage", "sft", "--device", "cuda",
		"--memory", "8", "data.max_prompt_length=64", "data.max_response_length=14",
		"trainer.shards=4"}
	for _, c := range []struct {
		more []string
		want []string
	}{
		{[]string{"--precision", "f32", "trainer.shard_optimizer=true"}, []string{
			`(?m)^  actor: optimizer +67\.6 kB  \(its part of 230 kB, on 4 ranks \(trainer.shard_optimizer\)\)$`,
			`(?m)^  NCCL's buffers +403 MB  \(an estimate, at NCCL's defaults: not measured\)$`,
			`(?m)^  sent by each for a step +258 kB  \(gradients, and 85 kB of weights, of 1 optimizer step of the student and 0 of the discriminator\)$`}},
		{[]string{"--precision", "bf16", "trainer.shard_optimizer=true"}, []string{
			`(?m)^  sent by each for a step +216 kB  \(gradients, and 42\.9 kB of weights, of 1 optimizer step of the student and 0 of the discriminator\)$`}},
		{[]string{"--precision", "bf16"}, []string{
			`(?m)^  actor: optimizer +230 kB$`,
			`(?m)^  sent by each for a step +173 kB  \(gradients of 1 optimizer step of the student and 0 of the discriminator\)$`}},
	} {
		out, _ := must(t, slices.Concat(line, []string{"--ranks", "4"}, c.more)...)
		for _, want := range c.want {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%v: the plan does not say %q:\n%s", c.more, want, out)
			}
		}
	}
	if out, _ := must(t, line...); regexp.MustCompile("NCCL").MatchString(out) {
		t.Errorf("the plan of one process speaks of NCCL:\n%s", out)
	}
}
