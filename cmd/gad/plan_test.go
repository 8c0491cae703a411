package main

import (
	"os"
	"strings"
	"testing"
)

// gad plan and --dry-run say what a run of each stage takes, on one process, on ranks and on GPUs,
// and write nothing. Of what does not fit the rows say what takes the memory.
func TestPlan(t *testing.T) {
	linked(t, "student", "sft", "train.arrow", "test.jsonl")
	const lengths = " data.max_prompt_length=64 data.max_response_length=14"
	const stage, ranks = "plan --model student --data train.arrow --output run SMALL --stage ",
		"plan --model student --ranks 4" + lengths + " --stage "
	const gpus = ranks + "sft --device cuda --memory 8 trainer.shards=4 --precision "
	const eval = " --model sft/global_step_60/actor --data test.jsonl"
	evals := []string{"memory\n", "student: key/value cache",
		"fresh discriminators (2 x 3 of 50 steps)",
		"estimate, from a measurement", "50 of 800 steps, which are 40 passes over 5 pairs"}
	const many = " data.train_batch_size=1048576"
	answered(t, []exchange{
		{"warmup --model student --data train.arrow --output run SMALL --dry-run", exitDone, []string{
			" train_batch_size: 4\n", "\ncritic:\n", "memory\n", "critic: optimizer",
			"with actor.recompute=true critic.recompute=true)", "disk\n", "over 40 rows",
			"time of a step", "10 steps", "!reference: weights"}},
		{stage + "sft", exitDone, []string{"actor: weights", "!critic: "}},
		{stage + "dpo", exitDone, []string{"actor: optimizer", "reference: weights",
			"reference: key/value cache", "rollout", "ref_logp", "update_actor", "10 steps",
			"!critic: ", "!actor: key/value cache"}},
		{"plan --stage eval" + eval, exitDone, evals}, {"eval --dry-run" + eval, exitDone, evals},
		{"plan SMALL --model student --data train.arrow --fit --memory 0.1", exitDone,
			[]string{"fits 100 MB as it is: no settings to add\nmemory\n"}},
		{"plan --fit --model student --data test.jsonl --memory 0.0001" + lengths, exitUsage, []string{
			"memory\n", "gad: plan: does not fit in memory: needs ",
			", 100 kB are available: even with actor.recompute=true critic.recompute=true " +
				"actor.max_token_len=78 critic.max_token_len=78 rollout.max_num_seqs=", " it needs ",
			": use a smaller student, shorter answers or more memory\n",
			"!offload"}}, // on a CPU there is no other memory
		// A step whose sequences alone take more than the memory is refused after the data, before the
		// models. How much memory there is depends on the machine.
		{"plan --stage warmup --model student rollout.n=60000" + lengths + many, exitUsage, []string{
			"gad: data.train_batch_size 1048576 x 60001 answers (rollout.n 60000, and the teacher's) of up to 78 tokens each take 78.5 TB in a step, and ", " are available: lower them\n"}},
		{"sft --model student --data test.jsonl --output run" + lengths + many, exitUsage,
			[]string{"gad: data.train_batch_size 1048576 is more than 100 times the 10 rows: lower it\n"}},
		{"plan --stage sft --model student --data test.jsonl" + lengths + many, exitUsage,
			[]string{"gad: data.train_batch_size 1048576 is more than 100 times the 10 rows: lower it\n"}},
		// What each of several ranks sends for a step: 2*3/4 of the gradients of 28,320 parameters, each
		// tensor's rounded up to 64 elements, four times for the student and once for the discriminator.
		{ranks + "warmup --bandwidth 1 data.train_batch_size=8 trainer.shards=8 trainer.warmup_objective=policy actor.ppo_mini_batch_size=2", exitDone, []string{
			"sums of gradients of shards (trainer.shards=8)",
			"4 ranks, each with all weights and 2 of 8 shards", "sent by each for a step 862 kB",
			"(gradients of 4 optimizer steps of the student and 1 of the discriminator)",
			"time of it at 1 Gbit/s 7 ms", "bits: the same for any number of ranks"}},
		{"plan --model student --stage warmup" + lengths, exitDone, []string{"!ranks, each"}},
		// 28,320 parameters have 8 bytes of moments each. A quarter would be 57 kB; of four ranks the one
		// with the most has 8,192 elements of a parameter that is cut, and small ones.
		{ranks + "sft trainer.shards=4", exitDone, []string{" actor: optimizer 227 kB\n"}},
		{ranks + "sft trainer.shards=4 trainer.shard_optimizer=true", exitDone, []string{
			" actor: optimizer 66.3 kB (its part of 227 kB, on 4 ranks (trainer.shard_optimizer))\n"}},
		// On GPUs each rank sends, beside a sum of the gradients, what is computed with of its weights:
		// of 28,320 parameters 4 bytes each in float32, and 2 in bfloat16 but for the vectors; and NCCL
		// has buffers. Three quarters of twice 113.3 kB for the sum, rounded up to the blocks of
		// gradients, and of 113.3 or 57.2 kB for the weights.
		{gpus + "f32 trainer.shard_optimizer=true", exitDone, []string{
			" actor: optimizer 67.6 kB (its part of 230 kB, on 4 ranks (trainer.shard_optimizer))\n",
			" NCCL's buffers 403 MB (an estimate, at NCCL's defaults: not measured)\n",
			" sent by each for a step 258 kB (gradients, and 85 kB of weights, of 1 optimizer step of the student and 0 of the discriminator)\n"}},
		{gpus + "bf16 trainer.shard_optimizer=true", exitDone, []string{
			" sent by each for a step 216 kB (gradients, and 42.9 kB of weights, of 1 optimizer step of the student and 0 of the discriminator)\n"}},
		{gpus + "bf16", exitDone, []string{" actor: optimizer 230 kB\n",
			" sent by each for a step 173 kB (gradients of 1 optimizer step of the student and 0 of the discriminator)\n"}},
		{"plan --model student --stage sft --device cuda --memory 8 trainer.shards=4" + lengths, exitDone,
			[]string{"!NCCL"}},
		// what a step would take on a GPU that is not here
		{"plan --device cuda --card h100 --model student --data test.jsonl --output run" + lengths,
			exitDone, []string{
				"of 80 GB available",
				"predicted, nothing was measured (H100 SXM 80 GB; doc/gpu/predicted.md says what is assumed)",
				"rollout", "old_logp", "update_critic", "ref_logp", "update_actor"}},
	})

	// With the settings that --fit adds it fits, and a plan with them is the same.
	huge := strings.Fields(
		"plan --stage warmup --memory 0.1 --model student --data train.arrow --output run " +
			strings.Join(small, " ") + " actor.max_token_len=1000000000 data.train_batch_size=4000")
	refused(t, exitUsage, "does not fit in memory: needs", huge...)
	refused(t, exitUsage, "100 MB are available: with actor.max_token_len=120 "+
		"critic.max_token_len=120 it needs", huge...)
	printed, _ := must(t, append(huge, "--fit")...)
	added, _, ok := strings.Cut(printed[strings.Index(printed, "\n")+1:], "\n")
	if !ok || strings.TrimSpace(added) != "actor.max_token_len=120 critic.max_token_len=120" ||
		strings.Count(printed, "  taken ") != 1 || strings.Count(printed, "  not taken ") != 3 {
		t.Errorf("plan --fit:\n%s", printed)
	}
	again, _ := must(t, append(huge, strings.Fields(added)...)...)
	memory := func(plan string) string {
		_, plan, _ = strings.Cut(plan, "memory\n")
		plan, _, _ = strings.Cut(plan, "disk\n")
		return plan
	}
	if memory(printed) != memory(again) || memory(again) == "" {
		t.Errorf("with the settings added:\n%s\n--fit said\n%s", memory(again), memory(printed))
	}
	if _, err := os.Stat("run"); err == nil {
		t.Error("the run folder was made")
	}
}
