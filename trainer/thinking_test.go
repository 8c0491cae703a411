package trainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// thinker is an untrained Qwen3 whose chat template closes an empty thought by a variable, in a
// folder with eight rows, and the prompt of a row that transformers makes under each of the
// variable's values.
func thinker(t *testing.T, be compute.Backend) (tok *tokenizer.Tokenizer, student, rows string,
	prompts map[string]string) {
	t.Helper()
	raw, err := os.ReadFile("../testdata/templates/thoughts.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Kinds map[string]string
		Cases []struct{ Kind, Variables, Row, Prompt string }
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	const kind = "closes by a variable" // as Qwen3's
	prompts = map[string]string{}
	for _, c := range f.Cases {
		if _, value, ok := strings.Cut(strings.Trim(c.Variables, "{}"), ": "); ok &&
			c.Kind == kind && c.Row == "none" {
			prompts["enable_thinking="+value] = c.Prompt
		}
	}
	if len(prompts) != 2 {
		t.Fatalf("prompts of %v", prompts)
	}
	dir := t.TempDir()
	template := filepath.Join(dir, "t.jinja")
	rows = filepath.Join(dir, "rows.jsonl")
	row := `{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}` + "\n"
	if err := errors.Join(os.WriteFile(template, []byte(f.Kinds[kind]), 0o600),
		os.WriteFile(rows, []byte(strings.Repeat(row, 8)), 0o600)); err != nil {
		t.Fatal(err)
	}
	tok, err = tokenizer.Load("../testdata/tokenizer/qwen2")
	if err == nil {
		tok, err = tok.With(tokenizer.ChatOptions{Template: template})
	}
	if err != nil {
		t.Fatal(err)
	}
	shape, err := model.ReadConfig("../testdata/model/qwen3")
	if err != nil {
		t.Fatal(err)
	}
	shape.Vocab = tok.Size()
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	student = filepath.Join(dir, "student")
	if err := errors.Join(export.WriteFolder(vfs.OS, student, m, tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	return tok, student, rows, prompts
}

// With thinking off an untrained Qwen3's rows have the prompts that transformers makes, token by
// token, in the run and in every model that it saves; the run keeps the variable, goes on with it,
// and refuses another.
func TestThinkingOff(t *testing.T) {
	be, dir := ready(t), t.TempDir()
	tok, student, rows, prompts := thinker(t, be)
	prompt := prompts["enable_thinking=false"]
	want := tok.Encode(prompt)
	cfg := func(variables string, more ...string) config.Config {
		return settings(config.SFT, filepath.Join(dir, "run"), append([]string{
			"model.path=" + student, "data.train_files=" + rows, "data.template=" + variables,
			"trainer.total_steps=1"}, more...)...)
	}
	tr, err := Open(cfg("enable_thinking=false"), config.SFT, Options{FS: vfs.OS, Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	r, err := tr.train.set.Row(0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tr.enc.Prompt(r); err != nil || !slices.Equal(got, want) {
		t.Errorf("prompt %q, %v, transformers has %q", tok.Decode(got, false), err, prompt)
	}
	if err := errors.Join(tr.Run(t.Context()), tr.Close()); err != nil {
		t.Fatal(err)
	}
	last, _, err := saved.Find(vfs.OS, filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := saved.Tokenizer(filepath.Join(last, "actor"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := kept.ChatPrompt([]tokenizer.Message{{Role: "user", Content: "2+2"}})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the saved model's prompt: %q, %v, transformers has %q", kept.Decode(got, false),
			err, prompt)
	}
	for variables, wrong := range map[string]string{"enable_thinking=true": "data.template",
		"enable_thinking=false": ""} {
		c := cfg(variables, "trainer.total_steps=2")
		err := play(be, c, config.SFT)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("going on with %s: %v, want %q", variables, err, wrong)
		}
	}
}

// Rollouts and the teacher of on-policy distillation read the prompts that transformers makes under
// data.template and teacher.template, token by token, each its own.
func TestRolloutsByVariable(t *testing.T) {
	be := ready(t)
	tok, student, rows, prompts := thinker(t, be)
	for _, c := range []struct{ own, teacher, reads string }{
		{"enable_thinking=false", "", "enable_thinking=true"},
		{"enable_thinking=false", "enable_thinking=false", "enable_thinking=false"},
		{"enable_thinking=true", "enable_thinking=false", "enable_thinking=false"},
	} {
		tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			"model.path="+student, "teacher.path="+student, "data.train_files="+rows,
			"data.template="+c.own, "teacher.template="+c.teacher), config.OPD)
		r := sampledRound(t, tr, &tr.stage.(*opd).onPolicy, 4)
		read, err := tr.stage.(*opd).teachers.readings(r)
		if err != nil {
			t.Fatal(err)
		}
		own, teacher := tok.Encode(prompts[c.own]), tok.Encode(prompts[c.reads])
		for s, seq := range listsOf(r).seqs {
			if !slices.Equal(seq.IDs[:seq.Prompt()], own) {
				t.Errorf("%+v: rollout %d behind %q", c, s, tok.Decode(seq.IDs[:seq.Prompt()], false))
			}
			other := read[s].seq
			if !slices.Equal(other.IDs[:other.Prompt()], teacher) {
				t.Errorf("%+v: the teacher reads %d behind %q", c, s,
					tok.Decode(other.IDs[:other.Prompt()], false))
			}
		}
	}
}
