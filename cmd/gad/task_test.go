package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/task"
	"gad/data"
)

func TestTaskMakeRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "task")
	must(t, "task", "make", "few-rows", "--output", dir, "--rows", "20")
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "notes"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, want string
	}{
		{"task make few-rows --output " + dir + " --rows 21", "task make: " + dir + ": contains another task, or this one with another seed or number of rows: nothing is overwritten: give another --output"},
		{"task make few-rows --output " + dir + " --rows 20 --student-seed 2",
			"task make: " + dir + ": contains another task"},
		{"task make few-rows --output " + foreign,
			"task make: " + foreign +
				": contains other files: nothing is overwritten: give another --output"},
		{"task make few-rows --output x --rows 0", "task make: --rows 0: must be 1 to "},
		{"task make few-rows --output x --rows 30000", "so that no question appears twice"},
		{"task make few-rows",
			"task make few-rows: --output is missing: see gad task make few-rows --help"},
		{"task make riddle --output x", `task make: kind "riddle": unknown: use two-forms, few-rows, unlearned, walks, doors, calculator`},
		{"task make doors --output x --rows 100001",
			"task make: --rows 100001: must be 1 to 100000, so that no question appears twice"},
		{"task check doors", `task check: kind "doors": unknown: use two-forms, few-rows, unlearned, walks`},
		{"task check riddle", `task check: kind "riddle": unknown: use two-forms, few-rows, unlearned, walks`},
		{"task check few-rows x", `task check few-rows: unexpected argument "x"`},
		{"task", "task: a subcommand is missing: use make, check or notes (see gad task --help)"},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(said, "gad: ") ||
			!strings.Contains(said, c.want) || strings.Count(said, "\n") != 1 {
			t.Errorf("%s: exit status %d\n got %swant %s", c.line, code, said, c.want)
		}
	}
}

// The checker's protocol: a line for a line, in order.
func TestTaskCheck(t *testing.T) {
	two := slices.IndexFunc(task.Kinds(), func(k task.Kind) bool { return k.Name == "two-forms" })
	rows, err := task.Kinds()[two].Make(1, task.Test, 40)
	if err != nil {
		t.Fatal(err)
	}
	var in strings.Builder
	var want []string
	line := func(prompt, response string, truncated bool, score int, label string) {
		raw, _ := json.Marshal(map[string]any{"row": len(want), "prompt": prompt,
			"content":  []data.Message{{Role: "user", Content: prompt}},
			"response": response, "teacher_response": "", "truncated": truncated})
		fmt.Fprintf(&in, "%s\n", raw)
		want = append(want, fmt.Sprintf(`{"label":%q,"score":%d}`, label, score))
	}
	for _, r := range rows {
		line(r.Prompt, r.Answer, false, 1, r.Form)
		line(r.Prompt, r.Answer, true, 0, r.Form)
		line(r.Prompt, strings.Replace(r.Answer, "way of", "way of "+r.Result, 1), false, 0, r.Form)
		line(r.Prompt, "", false, 0, task.Other)
	}
	var out strings.Builder
	if err := task.CheckRows(strings.NewReader(in.String()), &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); strings.Join(got,
		"\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), strings.Join(want, "\n"))
	}
	for _, c := range []struct{ in, want string }{
		{in.String() + "no json\n", "task check: row 161 of standard input: invalid character 'o' in literal null (expecting 'u'): give one JSON object per line"},
		{`{"prompt":"Facing north, go left"}`, "task check: row 1 of standard input: prompt or response is missing: each row needs both"},
		{`{"prompt":"What is 1+1?","response":"2"}`, `task check: row 1 of standard input: task: question "What is 1+1?": not a question of this task`},
	} {
		if err := task.CheckRows(strings.NewReader(c.in), &out); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
