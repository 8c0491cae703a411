//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/gguf/gguftest"
)

// The six commands of doc/tutorial.md, as they stand there, lead from prompts to a judged
// student in a GGUF file. A gad serve is the teacher, a server that goes by rules the judge;
// names and settings are the test's.
func TestTutorial(t *testing.T) {
	path, f := built(t), ready(t)
	page, err := os.ReadFile("../../doc/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "## The six commands\n")
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(after)
	if block == nil {
		t.Fatal("doc/tutorial.md has no commands")
	}
	commands := strings.Split(strings.TrimSpace(block[1]), "\n")
	if len(commands) > 6 {
		t.Fatalf("doc/tutorial.md has %d commands", len(commands))
	}

	dir := t.TempDir()
	teacher := start(t, path, "serve", "--model", f.path("sft", "global_step_60", "actor"), "--listen", "127.0.0.1:0", "--name", "teacher")
	serving := regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`)
	wait(t, "the teacher", func() bool { return serving.MatchString(teacher.said.String()) })
	judge := judgeServer(t, func(prompt string) string { return "my own words" },
		func(_, answer string) int { return 1 + len(answer)%10 },
		func(_, a, b string) string { return map[bool]string{true: "A", false: "B"}[len(a) > len(b)] })

	const prompts = 40
	var rows strings.Builder
	for i := range prompts {
		fmt.Fprintf(&rows, `{"content":"%s"}`+"\n", strings.Repeat(string(rune(97+i%26)), 1+i/26))
	}
	for name, text := range map[string]string{
		"prompts.jsonl": rows.String(),
		"tutorial.yaml": "data: {train_batch_size: 4, max_prompt_length: 64, max_response_length: 14}\nrollout: {n: 4, temperature: 1}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sh := func(command string) string {
		t.Helper()
		c := exec.Command("sh", "-ec", command)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "OPENAI_API_KEY=a-key",
			"TEACHER_URL="+serving.FindString(teacher.said.String()), "TEACHER=teacher", "JUDGE_URL="+judge.URL, "JUDGE=a-judge", "STUDENT="+f.path("student"), "STEPS=8", "LONGEST=14")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	if err := os.Symlink(path, filepath.Join(filepath.Dir(path), "gad")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	var said []string
	for _, command := range commands {
		said = append(said, sh(command))
	}
	before := strings.Count(teacher.said.String(), "/v1/chat/completions 200")
	sh("rm collected.arrow") // its journal is left
	again := sh(commands[0])
	if n := strings.Count(teacher.said.String(), "/v1/chat/completions 200"); before != prompts || n != prompts {
		t.Errorf("the teacher was asked %d times, and %d times when its answers were lost, for %d prompts", before, n, prompts)
	}

	set, err := data.OpenFiles([]string{filepath.Join(dir, "collected.arrow")}, data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	// The teacher samples, and may answer without text: such answers are counted and left out.
	empty := 0
	if said := regexp.MustCompile(`(\d+) empty \(left out\)`).FindStringSubmatch(again); said != nil {
		if empty, err = strconv.Atoi(said[1]); err != nil {
			t.Fatal(err)
		}
	}
	if want := fmt.Sprintf("collected.arrow: %d answers to %d prompts\n", prompts-empty, prompts); set.Len() != prompts-empty || empty > prompts/4 || set.NeedTeacher() != nil || !strings.Contains(again, want) {
		t.Errorf("%d rows were collected, %d are empty, %v\n%s", set.Len(), empty, set.NeedTeacher(), again)
	}
	if table := said[4]; !strings.Contains(table, "win %") || !strings.Contains(table, "runs/game/global_step_8/actor") {
		t.Errorf("the judge's table is missing:\n%s", table)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "answers.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var row struct {
			Judge *struct {
				Grade, ReferenceGrade *int
			}
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Judge == nil || row.Judge.Grade == nil {
			t.Fatalf("a row without a grade (%v): %s", err, line)
		}
	}
	raw, err = os.ReadFile(filepath.Join(dir, "student.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gguftest.Parse(raw); err != nil {
		t.Error(err)
	}
}
