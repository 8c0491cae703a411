package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What else is refused: testdata/mistakes/task.txt.

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
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(said, "gad: ") ||
			!strings.Contains(said, c.want) || strings.Count(said, "\n") != 1 {
			t.Errorf("%s: exit status %d\n got %swant %s", c.line, code, said, c.want)
		}
	}
}
