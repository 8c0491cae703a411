//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/env/games"
	"gad/data"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/hostile"
)

// The games' folders: rows whose episodes the environment plays again exactly, a student, the same
// bytes from the same command; and the check of them through the protocol.
func TestGames(t *testing.T) {
	self := built(t)
	for arm, g := range games.Games() {
		dir := filepath.Join(t.TempDir(), "game")
		args := []string{"task", "make", g.Name, "--output", dir, "--seed", "3", "--rows", "50"}
		out, _ := must(t, args...)
		if !strings.Contains(out, dir+": "+g.Name+", 50 training rows") {
			t.Errorf("says %q", out)
		}
		before := tree(t, dir)
		for _, split := range games.Splits {
			want := g.Rows[split]
			if split == "train" {
				want = 50
			}
			if n := strings.Count(before[split+".jsonl"], "\n"); n != want {
				t.Errorf("%s: %s has %d rows, want %d", g.Name, split, n, want)
			}
		}
		if err := os.Remove(filepath.Join(dir, "tune.jsonl")); err != nil {
			t.Fatal(err)
		}
		must(t, args...) // interrupted: the rest is made
		after := tree(t, dir)
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("%s: %s differs", g.Name, name)
			}
		}
		if len(before) < 7 || len(after) != len(before) {
			t.Errorf("%d files, were %d", len(after), len(before))
		}

		sameEnv(t, dir)

		command := self + " env " + g.Name
		for way, data := range []string{"", filepath.Join(dir, "train.jsonl")} {
			if !hostile.InTurn(arm, way, 2) {
				continue
			}
			args := []string{"env", "check", "--env", command}
			if data != "" {
				args = append(args, "--data", data)
			}
			out, _ := must(t, args...)
			if !strings.Contains(out, "\n30 forks of episodes\n") {
				t.Errorf("%s: forks are not checked:\n%s", g.Name, out)
			}
			if !strings.HasPrefix(out, g.Name+": protocol version 1, 2048 episodes at once\n") || !strings.HasSuffix(out, "\nnothing breaks the protocol, and the same seeds and turns give the same replies\n") ||
				!strings.Contains(out, "20 of 20 plays were done") ||
				strings.Contains(out, "\n10 episodes of the teacher\n") != (data != "") {
				t.Errorf("%s %s:\n%s", g.Name, data, out)
			}
		}
		// A row whose episode is not the environment's.
		other := filepath.Join(dir, "other.jsonl")
		text := before["train.jsonl"][:strings.Index(before["train.jsonl"], "\n")]
		changed := strings.Replace(text, `"role":"assistant","content":"`, `"role":"assistant","content":"x`, 1)
		if err := os.WriteFile(other, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, said := gad("env", "check", "--env", command, "--data", other)
		if want := `gad: env check: "` + command + `": 1 fault: see doc/environments.md` + "\n"; code != exitInput || said != want || !strings.Contains(out, "\nrow 0: message 1 of teacher_response is not what the environment answers now\n") {
			t.Errorf("%s: exit status %d\n%s%swant %s", g.Name, code, out, said, want)
		}
	}
}

// The planner, by rule and with a helper: nothing that it answers breaks the protocol, and a
// teacher's plan is played.
func TestPlanner(t *testing.T) {
	self := built(t)
	server, err := endpointtest.Start(&endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) {
			return fmt.Sprintf("Command: %d + 1\nAnswer: %d\nCONTINUE", c.Number, c.Number), "stop"
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	dir := t.TempDir()
	text := func(field, command string) string {
		return `{"role":"assistant","content":"Sub-Goal: all\nTool: add\n` + field + ": " + command + `"}`
	}
	// What the helper adds is the number of the request: never the sum.
	lines := map[string]string{
		"rules":  text("Command", "1 + 2") + "," + text("Command", "3 + 3"),
		"helper": strings.Repeat(text("Context", "all")+",", 7) + text("Context", "all"),
	}
	for kind, turns := range lines {
		data := filepath.Join(dir, kind+".jsonl")
		row := `{"content":[],"env":{"numbers":[1,2,3]},"teacher_response":[` + turns + "]}\n"
		if err := os.WriteFile(data, []byte(row), 0o644); err != nil {
			t.Fatal(err)
		}
		command, episodes := self+" env planner", 2048
		if kind == "helper" {
			command += " --helper " + server.URL + " --helper-model m --helper-journal " + dir
			episodes = 32
		}
		for _, args := range [][]string{{}, {"--data", data}} {
			out, _ := must(t, append([]string{"env", "check", "--env", command}, args...)...)
			if !strings.HasPrefix(out, fmt.Sprintf(
				"planner: protocol version 1, %d episodes at once\n", episodes)) ||
				!strings.HasSuffix(out, "\nnothing breaks the protocol, and the same seeds and turns give the same replies\n") ||
				strings.Contains(out, "\n1 episodes of the teacher\n") != (len(args) > 0) {
				t.Errorf("%s %v:\n%s", command, args, out)
			}
		}
	}
	// The helper answers by the number of the request: equal replies are the journal's.
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if n := len(server.Calls()); err != nil || n == 0 || len(files) != n {
		t.Errorf("%d requests, %d files, %v", n, len(files), err)
	}
}

// The example of doc/environments.md is an environment.
func TestExampleEnvironment(t *testing.T) {
	slow(t)
	doc := readFile(t, filepath.Join("..", "..", "doc", "environments.md"))
	_, text, _ := strings.Cut(doc, "```sh\n# guess.sh")
	text, _, _ = strings.Cut(text, "```")
	path := filepath.Join(t.TempDir(), "guess.sh")
	if err := os.WriteFile(path, []byte("#"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ := must(t, "env", "check", "--env", "sh "+path)
	if !strings.HasPrefix(out, "guess: protocol version 1, 32 episodes at once\n") ||
		!strings.Contains(out, "       1  done\n") {
		t.Error(out)
	}
}

// sameEnv wants rows as data reads them, and as gad data convert writes them, to have the column
// env of the file, byte by byte.
func sameEnv(t *testing.T, dir string) {
	t.Helper()
	for _, split := range games.Splits {
		path := filepath.Join(dir, split+".jsonl")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		paths := []string{path}
		for _, ext := range []string{"arrow", "parquet", "jsonl"} {
			paths = append(paths, filepath.Join(t.TempDir(), split+"."+ext))
			must(t, "data", "convert", "--data", path, "--output", paths[len(paths)-1])
		}
		for _, path := range paths {
			set, err := data.Open(path, data.Columns{})
			if err != nil {
				t.Fatal(err)
			}
			i := 0
			for line := range strings.Lines(string(text)) {
				var want struct{ Env json.RawMessage }
				if err := json.Unmarshal([]byte(line), &want); err != nil {
					t.Fatal(err)
				}
				row, err := set.Row(i)
				if err != nil || len(want.Env) == 0 || string(row.Env) != string(want.Env) {
					t.Fatalf("%s: row %d: env %s, %v, want %s", path, i, row.Env, err, want.Env)
				}
				i++
			}
			if set.Len() != i {
				t.Errorf("%s: %d rows, want %d", path, set.Len(), i)
			}
			set.Close()
		}
	}
}
