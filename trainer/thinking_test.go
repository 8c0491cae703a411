package trainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// With thinking off an untrained Qwen3's rows have the prompts that transformers makes, token by
// token, in the run and in every model that it saves; the run keeps the variable, goes on with it,
// and refuses another.
func TestThinkingOff(t *testing.T) {
	be := ready(t)
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
	prompt := ""
	for _, c := range f.Cases {
		if c.Kind == kind && c.Row == "none" && strings.Contains(c.Variables, "false") {
			prompt = c.Prompt
		}
	}
	dir := t.TempDir()
	template, rows := filepath.Join(dir, "t.jinja"), filepath.Join(dir, "rows.jsonl")
	row := `{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}` + "\n"
	if err := errors.Join(os.WriteFile(template, []byte(f.Kinds[kind]), 0o600),
		os.WriteFile(rows, []byte(strings.Repeat(row, 8)), 0o600)); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load("../testdata/tokenizer/qwen2")
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
	student := filepath.Join(dir, "student")
	if err := errors.Join(export.WriteFolder(vfs.OS, student, m, tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
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
