//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/internal/endpoint/endpointtest"
)

// gad env check of the environments that ship, as processes: what it prints, and the exit statuses.
// What is checked of each: TestFolders of apps/env/games, TestPlanner of apps/env/planner.
func TestEnvCheck(t *testing.T) {
	self, dir := built(t), t.TempDir()
	server := collecttest.Teacher(t, &endpointtest.Server{})
	plan := filepath.Join(dir, "plan.jsonl")
	turn := `{"role":"assistant","content":"Sub-Goal: all\nTool: add\nContext: all"}`
	collecttest.Put(t, plan, `{"content":[],"env":{"numbers":[1,2]},"teacher_response":[`+
		strings.Repeat(turn+",", 7)+turn+"]}")
	for command, says := range map[string]string{
		self + " env doors": "doors: protocol version 1, 2048 episodes at once\n",
		self + " env planner --helper " + server.URL + " --helper-model m --helper-journal " + dir: "planner: protocol version 1, 32 episodes at once\n",
	} {
		args := []string{"env", "check", "--env", command}
		if strings.HasPrefix(says, "planner") {
			args = append(args, "--data", plan)
		}
		if out, _ := must(t, args...); !strings.HasPrefix(out, says) || !strings.HasSuffix(out,
			"\nnothing breaks the protocol, and the same seeds and turns give the same replies\n") {
			t.Errorf("gad %s:\n%s", command, out)
		}
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "*.json")); len(kept) == 0 ||
		len(kept) != len(server.Calls()) {
		t.Errorf("%d requests, %d files, %v", len(server.Calls()), len(kept), err)
	}
	// A row whose episode is not the environment's.
	text := fileText(calculatorRows(t, dir, 1))
	rows := filepath.Join(dir, "other.jsonl")
	collecttest.Put(t, rows, strings.TrimSpace(
		strings.Replace(text, `"role":"assistant","content":"`, `"role":"assistant","content":"x`, 1)))
	command := self + " env calculator"
	code, out, said := gad("env", "check", "--env", command, "--data", rows)
	if want := `gad: env check: "` + command + `": 1 fault: see doc/environments.md` + "\n"; code != exitInput || said != want || !strings.Contains(out, "\nrow 0: message 1 of teacher_response is not what the environment answers now\n") {
		t.Errorf("exit status %d\n%s%swant %s", code, out, said, want)
	}
}
