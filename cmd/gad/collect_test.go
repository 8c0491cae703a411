package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/endpoint/endpointtest"
)

// teacher is a server that the test ends.
func teacher(t *testing.T, s *endpointtest.Server) *endpointtest.Server {
	t.Helper()
	if _, err := endpointtest.Start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// promptFile has n prompts; every third is a conversation.
func promptFile(t *testing.T, path string, n int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		if i%3 == 1 {
			fmt.Fprintf(&b, `{"id":"r%d","messages":[{"role":"system","content":"be %d"},{"role":"user","content":"p%d"}]}`+"\n", i, i, i)
		} else {
			fmt.Fprintf(&b, `{"id":"r%d","messages":[{"role":"user","content":"p%d"}],"level":3}`+"\n", i, i)
		}
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// collected are the rows of an output.
func collected(t *testing.T, path string) (rows []data.Row) {
	t.Helper()
	set, err := data.Open(path, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for i := range set.Len() {
		r, err := set.Row(i)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	return rows
}

// put writes a file of lines.
func put(t *testing.T, name string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// drop removes a file.
func drop(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

var aNumber = regexp.MustCompile(`[0-9]+`)

// adds is a teacher of the environment calculator: its next turn by the conversation, as the
// scripted teacher of gad task make has it.
func adds(messages []struct{ Role, Content string }) (call bool, a, b int) {
	var numbers []int
	last, calls := 0, 0
	for _, m := range messages {
		switch {
		case m.Role == "user" && numbers == nil:
			for _, s := range aNumber.FindAllString(m.Content, -1) {
				n, _ := strconv.Atoi(s)
				numbers = append(numbers, n)
			}
			last = numbers[0]
		case m.Role == "tool":
			last, _ = strconv.Atoi(m.Content)
			calls++
		}
	}
	if calls+1 < len(numbers) {
		return true, last, numbers[calls+1]
	}
	return false, last, 0
}

// addsAsText writes the turns of adds.
func addsAsText(c endpointtest.Call, _ int) (text, finish string) {
	call, a, b := adds(c.Messages)
	if !call {
		return fmt.Sprintf("The sum is %d.", a), "stop"
	}
	return fmt.Sprintf(
		"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": %d, \"b\": %d}}\n</tool_call>", a,
		b), "stop"
}

// calculatorRows are rows of gad task make calculator in the file train.jsonl.
func calculatorRows(t *testing.T, dir string, n int) (path string) {
	t.Helper()
	must(t, "task", "make", "calculator", "--output", filepath.Join(dir, "task"), "--rows",
		fmt.Sprint(n))
	return filepath.Join(dir, "task", "train.jsonl")
}

// jsonLines are the objects of a file of JSON lines.
func jsonLines(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// The flags of gad data collect say what is asked, what it may cost and what is written; the key is
// in no file, and gad data reads what was collected.
func TestCollect(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TEACHER_KEY", "sk-teacher-0123456789")
	s := teacher(t, &endpointtest.Server{Key: "sk-teacher-0123456789",
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.N > 1 { // and a row's second answer is asked for apart
				endpointtest.Fail(w, 400, "", "'n' must be 1")
			} else {
				fmt.Fprintf(w, `{"choices":[{"finish_reason":"length","message":{"content":"to %s","reasoning_content":"I see."}}]}`, c.Prompt)
			}
			return true
		}})
	promptFile(t, "prompts.jsonl", 6)
	put(t, "prices.json", `{"big": {"input": 1000, "output": 2000}}`)
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
	s := teacher(t, &endpointtest.Server{Answer: addsAsText})
	out := filepath.Join(dir, "rows.jsonl")
	args := []string{"data", "collect", "--prompts", calculatorRows(t, dir, 10), "--output", out,
		"--base-url", s.URL, "--model", "big", "--env", self + " env calculator"}
	code, _, said := gad(append(args, "--max-turns", "1", "--keep", "turns>1")...)
	if code != exitFailed || !strings.Contains(said, `--keep "turns>1" leaves out all`) {
		t.Errorf("exit status %d, %s", code, said)
	}
	must(t, append(args, "--env-workers", "2", "--keep", "reward>=1")...)
	must(t, "env", "check", "--env", self+" env calculator", "--data", out)
	if said, _ := must(t, "data", "validate", "--data", out, "--turns",
		"all"); !strings.Contains(said, "0 errors") || len(jsonLines(t, out)) != 10 {
		t.Errorf("validate says %s", said)
	}
	args[len(args)-1] = "true"
	if code, _, said := gad(args...); code != exitUsage ||
		!strings.Contains(said, "exists: nothing is overwritten") {
		t.Errorf("exit status %d, %s", code, said)
	}
}
