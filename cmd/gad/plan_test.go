package main

import (
	"regexp"
	"strings"
	"testing"
)

// What does not fit is planned, so that the rows say what takes the memory.
func TestPlanThatDoesNotFit(t *testing.T) {
	linked(t, "test.jsonl=rows.jsonl", "student")
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

// A step whose sequences alone take more than the memory is refused after the data, before
// the models; by plan as well. How much memory there is depends on the machine.
func TestMistakenBatch(t *testing.T) {
	_, work := linked(t, "student", "test.jsonl=rows.jsonl")
	before := tree(t, work)
	for line, want := range map[string]string{
		"plan --stage warmup --model student data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576 rollout.n=60000": `data\.train_batch_size 1048576 x 60001 answers \(rollout\.n 60000, and the teacher's\) of up to 78 tokens each take 78\.5 TB in a step, and .* are available: lower them`,
		"sft --model student --data rows.jsonl --output run data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576":  `data\.train_batch_size 1048576 is more than 100 times the \d+ rows: lower it`,
		"plan --stage sft --model student --data rows.jsonl data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576":  `data\.train_batch_size 1048576 is more than 100 times the \d+ rows: lower it`,
	} {
		code, out, said := gad(strings.Fields(line)...)
		if !regexp.MustCompile(`^gad: `+want+`\n$`).MatchString(said) || code != exitUsage || out != "" {
			t.Errorf("%s: exit status %d, prints %q, says %s", line, code, out, said)
		}
	}
	if now := tree(t, work); len(now) != len(before) {
		t.Errorf("made something: %v", now)
	}
}
