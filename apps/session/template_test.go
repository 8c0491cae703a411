package session

import (
	"errors"
	"os"
	"testing"

	"gad/device"
	"gad/model"
	"gad/tokenizer"
)

// That a model has no chat template, or that a variable is misspelt, is said before the weights are
// read: the folder here has none.
func TestTemplateBeforeWeights(t *testing.T) {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../testdata/tokenizer/other")); err != nil {
		t.Fatal(err)
	}
	_, err = Load(be, Source{Path: dir, Talks: true}, model.LM)
	if !errors.Is(err, tokenizer.ErrNoChatTemplate) {
		t.Errorf("without a template: %v, want that it has none", err)
	}
	with := ChatOptions{Template: "chatml", Variables: "enable_thinking=false"}
	if _, err = Load(be, Source{Path: dir, Talks: true, Chat: with}, model.LM); !errors.Is(err,
		tokenizer.ErrVariable) {
		t.Errorf("a variable that is not read: %v", err)
	}
	with.Variables = ""
	_, err = Load(be, Source{Path: dir, Talks: true, Chat: with}, model.LM)
	if err == nil || errors.Is(err, tokenizer.ErrNoChatTemplate) {
		t.Errorf("with a template: %v, want that the weights are missing", err)
	}
}
