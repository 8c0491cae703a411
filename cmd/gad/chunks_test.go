package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// A student that was trained in chunks answers in them by itself; a folder that was exported needs
// the flags, and its export says so. Streaming shows no seams.
func TestChunksOfAStudent(t *testing.T) {
	linked(t, "student", "test.jsonl")
	does(t, "sft --model student --data test.jsonl --output run --steps 2 data.train_batch_size=4 data.max_prompt_length=64 rollout.chunk=8 rollout.carry=4 rollout.carry_head=1 rollout.chunks=6")
	const student = "run/global_step_2/actor"
	ask := func(line string) (out, said string) {
		t.Helper()
		return does(t, `generate --prompt "Add 1+1+1" --temperature 1 --seed 5 --model `+line)
	}
	own, said := ask(student + " --json")
	if !strings.Contains(said, "answers in up to 6 chunks of 8 tokens (carry 4, of which 1 are the first), as in its run") {
		t.Errorf("said %q", said)
	}
	asked, said := ask(student + " --json --chunk 8 --carry 4 --carry-head 1 --chunks 6")
	if asked != own || said != "" && strings.Contains(said, "as in its run") {
		t.Errorf("asked for %q, by itself %q (%q)", asked, own, said)
	}
	var answer struct {
		Text string
		IDs  []int32 `json:"response_ids"`
	}
	if err := json.Unmarshal([]byte(own), &answer); err != nil || len(answer.IDs) > 28 {
		t.Fatalf("%d tokens, %v", len(answer.IDs), err)
	}
	if out, _ := ask(student + " --stream"); out != answer.Text+"\n" {
		t.Errorf("streamed %q, want %q", out, answer.Text)
	}
	if out, said := ask(student + " --json --chunk 0 --max-new-tokens 28"); out == own &&
		len(answer.IDs) > 8 || strings.Contains(said, "chunks") {
		t.Errorf("in one sequence: %q", out)
	}
	answered(t, []exchange{
		{"export --run run --output out", exitDone,
			[]string{"gad serve --chunk 8 --carry 4 --carry-head 1 --chunks 6"}},
		{"generate --prompt Add --model out --max-new-tokens 20", exitDone, []string{"!chunks"}},
		{"eval --model " + student + " --data test.jsonl --limit 4 --disc-steps 0 --json --temperature 1 --output answers.jsonl", exitDone, []string{"teacher_nll"}}})
	if n := lines("answers.jsonl"); n != 4 {
		t.Errorf("%d answers", n)
	}
}
