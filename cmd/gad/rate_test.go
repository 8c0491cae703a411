package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The flags of gad data rate are those of a rating, whose columns --where reads.
func TestRate(t *testing.T) {
	f, out := ready(t), filepath.Join(t.TempDir(), "ratings.jsonl")
	run := f.path("train", "global_step_3")
	printed, _ := must(t, "data", "rate", "--model", filepath.Join(run, "actor"), "--critic",
		filepath.Join(run, "critic"), "--checker", `while read -r l; do echo 0.5; done`,
		"--right-at", "0.5", "--data", f.path("test.jsonl"), "--n", "2",
		"--max-new-tokens", "8", "--temperature", "0.7", "--keep-answers", "--output", out)
	if !strings.HasPrefix(printed, out+": 10 rows rated; means: right 1, check 0.5, ") {
		t.Errorf("printed %q", printed)
	}
	printed, _ = must(t, "data", "inspect", "--data", f.path("test.jsonl"),
		"--ratings", out, "--where", "right < 2")
	if !strings.Contains(printed, "note: where right < 2: 10 of 10 rows") {
		t.Errorf("inspect: %s", printed)
	}
}
