package main

import (
	"strings"
	"testing"
)

// Mistakes with gad plan --fit and --cards, and with moments on the host.
func TestMistakesInPlans(t *testing.T) {
	_, work := linked(t, "test.jsonl=rows.jsonl", "student")
	const cards = `: not with --cards, which is a table of models and GPUs: leave out one of them`
	mistaken(t, []string{work}, []mistake{
		{"plan --cards --model student", 2, `plan: --model` + cards},
		{"plan --cards --fit", 2, `plan: --fit` + cards},
		{"plan --cards --memory 80", 2, `plan: --memory` + cards},
		{"plan --cards --stage eval", 2, `plan: --stage` + cards},
		{"plan --cards rollout.n=4", 2, `plan: "rollout.n=4"` + cards},
		{"plan --stage eval --model student --data rows.jsonl --fit", 2, `plan: --fit: not with --stage eval: use gad eval --dry-run, which takes all flags of eval`},
		{"plan --fit --model student --memory 0 --memory 1", 2, `plan: --memory is given twice, "0" and "1": give it once`},
		{"plan --ift --model student", 2, `plan: unknown flag --ift: did you mean --fit?`},
		{"sft: SET actor.optim.offload=true", 2, `settings: actor.optim.offload is true, but trainer.device is cpu: there is no other memory: leave it out`},
		{"warmup --model student --data rows.jsonl --output run SET critic.optim.offload=true", 2, `settings: critic.optim.offload is true, but trainer.device is cpu: there is no other memory: leave it out`},
		{"plan --model student SET critic.optim.offload=true", 2, `plan: critic.optim.offload is true, but trainer.device is cpu: there is no other memory: leave it out`},
		{"sft: SET actor.optim.moments=4bit", 2, `settings: override "actor.optim.moments=4bit": setting "actor.optim.moments": "4bit": did you mean "8bit"? (one of: float32, 8bit)`},
	})
	// What does not fit is planned, so that the rows say what takes the memory.
	line := "plan --fit --model student --data rows.jsonl --memory 0.0001 data.max_prompt_length=64 data.max_response_length=14"
	code, out, said := gad(strings.Fields(line)...)
	if code != exitUsage || !strings.HasPrefix(out, "memory\n") || strings.Count(said, "\n") != 1 {
		t.Errorf("%s: exit status %d\n%s%s", line, code, out, said)
	}
	for _, want := range []string{"gad: plan: does not fit in memory: needs ", ", 100 kB are available: even with actor.recompute=true critic.recompute=true actor.max_token_len=78 critic.max_token_len=78 rollout.max_num_seqs=", " it needs ", ": use a smaller student, shorter answers or more memory\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("%s: says %q, without %q", line, said, want)
		}
	}
	if strings.Contains(said, "offload") {
		t.Errorf("%s: on a CPU there is no other memory: %s", line, said)
	}
}
