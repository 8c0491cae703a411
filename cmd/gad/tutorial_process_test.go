//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gad/apps/judge/judgetest"
	"gad/apps/task"
	"gad/data"
	"gad/internal/gguf/gguftest"
	"gad/internal/hostile"
)

// tutorialShell are the shell commands of a section of doc/tutorial.md, block by block.
func tutorialShell(t *testing.T, section string) (blocks []string) {
	t.Helper()
	_, after, _ := strings.Cut(readFile(t, "../../doc/tutorial.md"), "## "+section+"\n")
	after, _, _ = strings.Cut(after, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(after,
		-1) {
		blocks = append(blocks, block[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("doc/tutorial.md: %q has no commands", section)
	}
	return blocks
}

// shell returns a function that runs a shell command in dir, with the program at path on PATH.
func shell(t *testing.T, path, dir string, env ...string) func(command string) string {
	return func(command string) string {
		t.Helper()
		c := exec.Command("sh", "-ec", command)
		c.Dir = dir
		c.Env = append(append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"),
			"OPENAI_API_KEY=a-key"), env...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
}

// The six commands of doc/tutorial.md, as they stand there, lead from prompts to a judged
// student in a GGUF file. A gad serve is the teacher, a server that goes by rules the judge;
// names and settings are the test's.
func TestTutorial(t *testing.T) {
	path, f := built(t), ready(t)
	commands := strings.Split(strings.TrimSpace(tutorialShell(t, "The six commands")[0]), "\n")
	if len(commands) > 6 {
		t.Fatalf("doc/tutorial.md has %d commands", len(commands))
	}

	dir := t.TempDir()
	teacher, url := serving(t, "--model", f.path("sft", "global_step_60", "actor"), "--listen",
		"127.0.0.1:0", "--name", "teacher")
	judge := judgetest.Slow(t, 0)

	const prompts = 40
	var rows strings.Builder
	for i := range prompts {
		fmt.Fprintf(&rows, `{"content":"%s"}`+"\n", strings.Repeat(string(rune(97+i%26)), 1+i/26))
	}
	for name, text := range map[string]string{
		"prompts.jsonl": rows.String(),
		"tutorial.yaml": "data: {train_batch_size: 4, max_prompt_length: 64, max_response_length: 14}\nrollout: {n: 4, temperature: 1}\n",
	} {
		put(t, filepath.Join(dir, name), text)
	}
	sh := shell(t, path, dir, "TEACHER_URL="+url+"/v1",
		"TEACHER=teacher", "JUDGE_URL="+judge.URL, "JUDGE=a-judge", "STUDENT="+f.path("student"),
		"STEPS=8", "LONGEST=14", "RATE=1e-4")
	var said []string
	for _, command := range commands {
		said = append(said, sh(command))
	}
	before := strings.Count(teacher.said.String(), "/v1/chat/completions 200")
	sh("rm collected.arrow") // its journal is left
	again := sh(commands[0])
	if n := strings.Count(teacher.said.String(), "/v1/chat/completions 200"); before != prompts ||
		n != prompts {
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
	if want := fmt.Sprintf("collected.arrow: %d answers to %d prompts\n", prompts-empty,
		prompts); set.Len() != prompts-empty || empty > prompts/4 || set.NeedTeacher() != nil ||
		!strings.Contains(again, want) {
		t.Errorf("%d rows were collected, %d are empty, %v\n%s", set.Len(), empty,
			set.NeedTeacher(), again)
	}
	if table := said[4]; !strings.Contains(table, "win %") ||
		!strings.Contains(table, "runs/game/global_step_8/actor") {
		t.Errorf("the judge's table is missing:\n%s", table)
	}
	for line := range strings.Lines(readFile(t, filepath.Join(dir, "answers.jsonl"))) {
		var row struct {
			Judge *struct {
				Grade, ReferenceGrade *int
			}
		}
		if decode(t, line, &row); row.Judge == nil || row.Judge.Grade == nil {
			t.Fatalf("a row without a grade: %s", line)
		}
	}
	file := readFile(t, filepath.Join(dir, "student.gguf"))
	if _, err := gguftest.Parse([]byte(file)); err != nil {
		t.Error(err)
	}
}

// The tutorial's section "Without a key", as it stands there, with other ports: the judge,
// which goes by the rules of scripts/rule_judge.py, thinks more of the student after the game
// than of the untrained one, and gad doctor does not find that the game has harmed it.
func TestTutorialWithoutKey(t *testing.T) {
	if !hostile.Long() {
		t.Skip("trains a teacher and a student: a minute")
	}
	path := built(t)
	dir := t.TempDir()
	sh := shell(t, path, dir)
	blocks := tutorialShell(t, "Without a key")
	train, serve, ok := strings.Cut(blocks[0], "\ngad serve ")
	if !ok || len(blocks) != 2 {
		t.Fatalf("the section has %d blocks; the first:\n%s", len(blocks), blocks[0])
	}
	sh(train)
	args := strings.Fields(serve)
	for i, a := range args {
		if strings.HasPrefix(a, "runs/") {
			args[i] = filepath.Join(dir, a)
		}
	}
	_, url := serving(t, append(args, "--listen", "127.0.0.1:0")...)

	const right = "a right answer" // the judge's own
	grade := func(prompt, answer string) int {
		if answer == right {
			return 9
		}
		switch g, err := task.Check(prompt, answer); {
		case err == nil && g.Valid:
			return 9
		case err == nil && g.Form != task.Other:
			return 4
		}
		return 2
	}
	judge := judgetest.Server(t, func(string) string { return right }, grade,
		func(prompt, a, b string) string {
			switch x, y := grade(prompt, a), grade(prompt, b); {
			case x > y:
				return "A"
			case x < y:
				return "B"
			}
			return "tie"
		})
	// With one seed the answers do not depend on which request came first.
	six := strings.Replace(tutorialShell(t, "The six commands")[0], "gad data collect ",
		"gad data collect --seed 1 ", 1)
	names := strings.NewReplacer("http://127.0.0.1:8000/v1",
		url+"/v1", "http://127.0.0.1:8123/v1",
		judge.URL).Replace(blocks[1])
	out := sh(names + six)
	_, table, _ := strings.Cut(out, "win %")
	scores := regexp.MustCompile(`(?m)^[AB] +([0-9.]+) `).FindAllStringSubmatch(table, 2)
	if len(scores) != 2 {
		t.Fatalf("no scores of two students:\n%s", out)
	}
	before, err := strconv.ParseFloat(scores[0][1], 64)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strconv.ParseFloat(scores[1][1], 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("score %.1f before, %.1f after the game", before, after)
	if after < before+8 {
		t.Errorf("the judge's score went from %.1f to %.1f:\n%s", before, after, table)
	}
	said := sh("gad doctor runs/game || true")
	if !strings.Contains(said, "train, step 60 of 60") ||
		strings.Contains(said, "worse than where it began") ||
		strings.Contains(said, "KL runs away") {
		t.Errorf("gad doctor:\n%s", said)
	}
}
