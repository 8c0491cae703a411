package main

import (
	"fmt"
	"os"
	"path/filepath"
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

// Rows that the run leaves out are no part of the plan; the mean lengths and steps are those of
// the others. A run without a row is refused, as the run itself refuses it.
func TestPlanLeavesRowsOut(t *testing.T) {
	_, work := linked(t, "student")
	rows := ""
	for i := range 40 {
		answer := "Yes."
		if i%4 == 0 {
			answer = strings.Repeat("It is 3. ", 20)
		}
		rows += fmt.Sprintf(`{"content":"Add %d+1","teacher_response":%q}`+"\n", i, answer)
	}
	if err := os.WriteFile(filepath.Join(work, "rows.jsonl"), []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	line := "plan --stage sft --model student --data rows.jsonl --output run data.max_prompt_length=64 data.train_batch_size=10 trainer.total_epochs=1 "
	for filter, want := range map[string]string{
		"data.truncated_teachers=filter": "over 30 rows; about 10 more are over the length limits and left out)\n",
		"data.truncated_teachers=keep":   "over 40 rows)\n",
	} {
		if out, _ := must(t, strings.Fields(
			line+"data.max_response_length=14 "+filter)...); !strings.Contains(out, want) ||
			!strings.Contains(out,
				map[bool]string{true: "3 steps", false: "4 steps"}[strings.Contains(want, "30")]) {
			t.Errorf("%s: want %q in\n%s", filter, want, out)
		}
	}
	code, _, said := gad(strings.Fields(line +
		"data.truncated_teachers=filter data.max_response_length=2")...)
	if want := "gad: data: rows.jsonl: none of 40 rows is within data.max_prompt_length 64 and data.max_response_length 2: raise them\n"; code != exitInput || said != want {
		t.Errorf("no row: exit status %d, %q\nwant %q", code, said, want)
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
