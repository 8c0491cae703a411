package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A student that was trained in chunks answers in them by itself; a folder that was exported needs
// the flags, and its export says so. Streaming shows no seams.
func TestChunksOfAStudent(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	rows := f.path("test.jsonl")
	if code, _, said := gad("sft", "--model", f.path("student"), "--data", rows, "--output", "run",
		"--steps", "2",
		"data.train_batch_size=4", "data.max_prompt_length=64", "rollout.chunk=8",
		"rollout.carry=4",
		"rollout.carry_head=1", "rollout.chunks=6"); code != 0 {
		t.Fatal(said)
	}
	student := filepath.Join("run", "global_step_2", "actor")
	ask := func(args ...string) (out, said string) {
		t.Helper()
		code, out, said := gad(append([]string{"generate", "--prompt", "Add 1+1+1", "--temperature",
			"1", "--seed", "5"}, args...)...)
		if code != 0 {
			t.Fatal(said)
		}
		return out, said
	}
	own, said := ask("--model", student, "--json")
	if !strings.Contains(said, "answers in up to 6 chunks of 8 tokens (carry 4, of which 1 are the first), as in its run") {
		t.Errorf("said %q", said)
	}
	asked, said := ask("--model", student, "--json", "--chunk", "8", "--carry", "4", "--carry-head",
		"1", "--chunks", "6")
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
	if out, _ := ask("--model", student, "--stream"); out != answer.Text+"\n" {
		t.Errorf("streamed %q, want %q", out, answer.Text)
	}
	if out, said := ask("--model", student, "--json", "--chunk", "0", "--max-new-tokens",
		"28"); out == own &&
		len(answer.IDs) > 8 || strings.Contains(said, "chunks") {
		t.Errorf("in one sequence: %q", out)
	}
	code, _, said := gad("export", "--run", "run", "--output", "out")
	if code != 0 || !strings.Contains(said,
		"gad serve --chunk 8 --carry 4 --carry-head 1 --chunks 6") {
		t.Errorf("export: %d, %q", code, said)
	}
	if _, said := ask("--model", "out", "--max-new-tokens", "20"); strings.Contains(said,
		"chunks") {
		t.Errorf("an exported folder: %q", said)
	}
	code, out, said := gad("eval", "--model", student, "--data", rows, "--limit", "4",
		"--disc-steps",
		"0", "--json", "--temperature", "1", "--output", "answers.jsonl")
	if code != 0 || !strings.Contains(out, "teacher_nll") {
		t.Fatalf("eval: %d, %s", code, said)
	}
	raw, err := os.ReadFile("answers.jsonl")
	if err != nil || strings.Count(string(raw), "\n") != 4 {
		t.Errorf("answers: %s, %v", raw, err)
	}
}
