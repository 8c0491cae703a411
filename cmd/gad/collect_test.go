package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/internal/endpoint/endpointtest"
)

var tasks sync.Map // by kind: the folder

// taskOf returns the folder of a task with 60 rows, made once for each kind.
func taskOf(t *testing.T, kind string) (dir string) {
	t.Helper()
	made, _ := tasks.LoadOrStore(kind, sync.OnceValue(func() string {
		dir := filepath.Join(fixed.root, kind)
		must(t, "task", "make", kind, "--output", dir, "--seed", "3", "--rows", "60")
		return dir
	}))
	return made.(func() string)()
}

// calculatorRows are so many rows of the calculator.
func calculatorRows(t *testing.T, dir string, n int) (path string) {
	t.Helper()
	rows := strings.SplitAfter(fileText(filepath.Join(taskOf(t, "calculator"), "train.jsonl")), "\n")
	path = filepath.Join(dir, "prompts.jsonl")
	collecttest.Put(t, path, strings.TrimSuffix(strings.Join(rows[:n], ""), "\n"))
	return path
}

// jsonLines are the objects of a file of JSON lines.
func jsonLines(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(readFile(t, path)) {
		var o map[string]any
		decode(t, line, &o)
		all = append(all, o)
	}
	return all
}

// The flags of gad data collect say what is asked, what it may cost and what is written; the key is
// in no file, and gad data reads what was collected.
func TestCollect(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TEACHER_KEY", "sk-teacher-0123456789")
	s := collecttest.Teacher(t, &endpointtest.Server{Key: "sk-teacher-0123456789",
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.N > 1 { // and a row's second answer is asked for apart
				endpointtest.Fail(w, 400, "", "'n' must be 1")
			} else {
				fmt.Fprintf(w, `{"choices":[{"finish_reason":"length","message":{"content":"to %s","reasoning_content":"I see."}}]}`, c.Prompt)
			}
			return true
		}})
	collecttest.Prompts(t, "prompts.jsonl", 6)
	collecttest.Put(t, "prices.json", `{"big": {"input": 1000, "output": 2000}}`)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--limit", "3", "--output",
		"rows.jsonl", "--base-url", s.URL, "--model", "big", "--key-env", "TEACHER_KEY",
		"--system", "be brief", "--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "100",
		"--seed", "7", "--extra", `{"user": "me"}`, "--n", "2", "--prices", "prices.json",
		"--max-cost", "20", "--keep-thinking", "--concurrency", "1"}
	dry, _ := must(t, append(line, "--dry-run", "--rpm", "1")...)
	if !strings.HasPrefix(dry, "big: 6 answers to 3 rows; ") ||
		!strings.Contains(dry, "about 3 min by --rpm") || len(s.Calls()) > 0 {
		t.Errorf("--dry-run prints %s", dry)
	}
	out, _ := must(t, line...)
	if !strings.HasPrefix(out, "rows.jsonl: 6 answers to 3 prompts\n") {
		t.Errorf("prints %s", out)
	}
	for _, c := range s.Calls() {
		if got := fmt.Sprintf("%v %v %v %v %v", c.Raw["model"], c.Raw["temperature"],
			c.Raw["top_p"], c.Raw["max_tokens"], c.Raw["user"]); got != "big 0.5 0.9 100 me" ||
			c.Raw["seed"] == nil || len(c.Messages) != 2 {
			t.Errorf("asked %v", c.Raw)
		}
	}
	for name, content := range tree(t, ".") {
		if strings.Contains(content, "sk-teacher") {
			t.Errorf("%s holds the key", name)
		}
	}
	if out, _ := must(t, "data", "validate", "--data", "rows.jsonl"); !strings.Contains(out,
		`is unfinished (finish_reason is "length")`) || !strings.Contains(out, "0 errors, ") ||
		strings.Contains(out, "not read") {
		t.Errorf("validate says %s", out)
	}
	must(t, "data", "convert", "--data", "rows.jsonl", "--output", "rows.parquet")
	if out, _ := must(t, "data", "inspect", "--data", "rows.parquet", "--row",
		"1"); !strings.Contains(out, `(thought) "I see."`) {
		t.Error(out)
	}
}

// Flags of an episode, and what gad env check and gad data validate say of the rows.
func TestCollectEpisodes(t *testing.T) {
	self, dir := built(t), t.TempDir()
	s := collecttest.Teacher(t, &endpointtest.Server{Answer: collecttest.AddsAsText})
	out := filepath.Join(dir, "rows.jsonl")
	args := []string{"data", "collect", "--prompts", calculatorRows(t, dir, 10), "--output", out,
		"--base-url", s.URL, "--model", "big", "--env", self + " env calculator"}
	refused(t, exitFailed, `--keep "turns>1" leaves out all`,
		append(args, "--max-turns", "1", "--keep", "turns>1")...)
	must(t, append(args, "--env-workers", "2", "--keep", "reward>=1")...)
	must(t, "env", "check", "--env", self+" env calculator", "--data", out)
	if said, _ := must(t, "data", "validate", "--data", out, "--turns",
		"all"); !strings.Contains(said, "0 errors") || len(jsonLines(t, out)) != 10 {
		t.Errorf("validate says %s", said)
	}
	args[len(args)-1] = "true"
	refused(t, exitUsage, "exists: nothing is overwritten", args...)
}
