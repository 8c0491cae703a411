package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gad/internal/report"
)

// gad logprobs and gad score say how far they are while their lines go to a file.
func TestBarsOfGivenRows(t *testing.T) {
	f := ready(t)
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(rows, []byte(strings.Repeat(`{"content":"Add 1+2","teacher_response":"it is 3"}`+"\n", 2000)), 0o644); err != nil {
		t.Fatal(err)
	}
	old := report.BusyDelay
	report.BusyDelay = 0
	defer func() { report.BusyDelay = old }()
	for name, args := range map[string][]string{
		"log-probabilities": {"logprobs", "--model", f.path("student")},
		"scores":            {"score", "--critic", f.path("warmup", "global_step_4", "critic")},
	} {
		printed, said := must(t, append(args, "--data", rows)...)
		if !regexp.MustCompile(`  `+name+`, rows \d+/2000`).MatchString(said) || strings.Count(printed, "\n") != 2000 {
			t.Errorf("gad %s prints %d lines and says\n%s", args[0], strings.Count(printed, "\n"),
				said)
		}
	}
}
