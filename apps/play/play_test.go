package play

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/data"
	"gad/internal/env"
	"gad/tokenizer"
	"gad/trainer/episode"
)

// hermes is a tokenizer whose chat template writes calls of tools.
func hermes(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	root := filepath.Join("..", "..", "testdata")
	raw, err := os.ReadFile(filepath.Join(root, "turns", "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var shapes struct {
		Shapes []struct{ Name, Template string }
	}
	if err := json.Unmarshal(raw, &shapes); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, s := range shapes.Shapes {
		if s.Name == "hermes" {
			write(t, filepath.Join(dir, "chat_template.jinja"), s.Template)
		}
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join(root, "tokenizer", "qwen2", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(raw))
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// scripted answers the turns that it expects, each with a message of a tool.
const scripted = `echo '{"name":"scripted","version":1,"episodes":4}'
read hello
while read -r line; do
  id=$(expr "$line" : '.*"id":\([0-9]*\)')
  case $line in
  *reset*) echo '{"id":'$id',"append":[]}' ;;
  *tool_call*add*) echo '{"id":'$id',"append":[{"role":"tool","content":"3"}]}' ;;
  *"It is 3."*) echo '{"id":'$id',"reward":1,"done":true,"label":"right"}' ;;
  *step*) echo '{"id":'$id',"append":[{"role":"user","content":"What?"}],"valid":false}' ;;
  esac
done
`

// A recorded call of a tool reaches the environment as the student's template writes it; a turn
// that is context is the environment's own. A recorded reply that the environment does not give is
// of another world.
func TestTeachers(t *testing.T) {
	tok := hermes(t)
	script := filepath.Join(t.TempDir(), "env.sh")
	write(t, script, scripted)
	pool, err := env.Open(context.Background(),
		env.Options{Command: "sh " + script, Workers: 2, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ask := []data.Message{{Role: "user", Content: "1+2?"}}
	call := data.Message{Role: "assistant", ToolCalls: `[{"function":{"arguments":{"a":1,"b":2},"name":"add"},"type":"function"}]`}
	said := func(role, text string) data.Message { return data.Message{Role: role, Content: text} }
	rows := []data.Row{
		{Index: 0, Messages: ask, Teacher: "It is 3.",
			Turns: []data.Message{call, said("tool", "3"), said("assistant", "It is 3.")}},
		{Index: 1, Messages: ask, Teacher: "It is 3."},
		{Index: 2, Messages: ask},
		{Index: 3, Messages: ask, Teacher: "It is 3.",
			Turns: []data.Message{call, said("tool", "4"), said("assistant", "It is 3.")}},
		{Index: 4, Messages: ask, Teacher: "Four."},
		{Index: 5, Messages: ask, Teacher: "It is 3.",
			Turns: []data.Message{said("assistant", "It is 3."),
				said("user", "Sure?"), said("assistant", "Yes.")}},
	}
	var tasks []episode.Task
	for _, row := range rows {
		task, err := episode.TaskOf(row, 1, 0, uint64(row.Index))
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, task)
	}
	list, other, err := ReplayTeachers(context.Background(), tok, pool, rows, tasks)
	if err != nil || other != 2 || len(list) != 3 {
		t.Fatalf("%d of another world, %+v, %v", other, list, err)
	}
	a := list[0]
	if a.Row != 0 || a.Reward != 1 || a.Wrote != 2 || a.Invalid != 0 || a.Cut ||
		a.Label != "right" ||
		len(a.Turns) != 3 || a.Turns[1].Text != "3" || a.Tokens < 8 {
		t.Errorf("with a call: %+v", a)
	}
	if text := a.Turns[0].Text; !strings.HasPrefix(text, "<tool_call>\n") ||
		!strings.Contains(text, `"name": "add"`) || strings.Contains(text, "<|im_end|>") {
		t.Errorf("the call is %q", text)
	}
	if b := list[1]; b.Row != 1 || b.Reward != 1 || b.Wrote != 1 {
		t.Errorf("one text: %+v", b)
	}
	if c := list[2]; c.Row != 4 || c.Reward != 0 || c.Invalid != 1 || !c.Cut {
		t.Errorf("an episode that has no end: %+v", c)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := ReplayTeachers(ctx, tok, pool, rows, tasks); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// Limits that are left open are those of training, within what the model takes.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		o    Options
		most int
		want episode.Limits
		bad  string
	}{
		{Options{Turns: 16}, 1 << 17,
			episode.Limits{Prompt: 2048, Turn: 1536, Turns: 16, Tokens: 2048}, ""},
		{Options{Turns: 16}, 1024, episode.Limits{Prompt: 512, Turn: 512, Turns: 16, Tokens: 512},
			""},
		{Options{Turns: 1, Tokens: 1000}, 1024,
			episode.Limits{Prompt: 24, Turn: 1000, Turns: 1, Tokens: 1000}, ""},
		{Options{Turns: 1, Tokens: 10, Turn: 3, Prompt: 5}, 16,
			episode.Limits{Prompt: 5, Turn: 3, Turns: 1, Tokens: 10}, ""},
		{Options{Turns: 1, Tokens: 16}, 16, episode.Limits{}, "leaves no room"},
		{Options{Turns: 1, Tokens: 10, Prompt: 7}, 16, episode.Limits{},
			"together are more than the 16"},
	} {
		got, err := c.o.Limits("eval", c.most)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%+v of %d: %v", c.o, c.most, err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%+v of %d: %+v, %v; want %+v", c.o, c.most, got, err, c.want)
		}
	}
}
