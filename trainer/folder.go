package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gad/checkpoint"
	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
)

// CheckModelFolder says what is wrong with a path given for a model folder, where
// a person is likely to have meant another.
func CheckModelFolder(fsys checkpoint.FS, path string) error {
	return CheckPart(fsys, path, "actor")
}

// CheckPart is CheckModelFolder for a model that a checkpoint holds as part: actor or
// critic.
func CheckPart(fsys checkpoint.FS, path, part string) error {
	fsys = vfs.OrDisk(fsys)
	info, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("model: %s: no such folder: give a Hugging Face model folder", path)
	}
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if !info.IsDir() {
		switch strings.ToLower(filepath.Ext(path)) {
		case ".arrow", ".arrows", ".parquet", ".jsonl", ".csv":
			return fmt.Errorf("model: %s: is a data file: give a Hugging Face model folder here, and data with --data", path)
		case ".gguf":
			return fmt.Errorf("model: %s: is a GGUF file: give the Hugging Face folder that it was made from", path)
		}
		return fmt.Errorf("model: %s: is a file: give the folder that contains it", path)
	}
	if _, err := fsys.Stat(filepath.Join(path, "config.json")); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("model: %w", err)
	}
	if _, err := fsys.Stat(filepath.Join(path, model.AdapterConfigName)); err == nil {
		_, err := model.BaseDir(path)
		return err
	}
	if entries, err := fsys.ReadDir(filepath.Join(path, "snapshots")); err == nil && len(entries) > 0 {
		return fmt.Errorf("model: %s: is a folder of the Hugging Face cache: give %s", path, filepath.Join(path, "snapshots", entries[len(entries)-1].Name()))
	}
	dir, what := path, "checkpoint"
	if !isModel(fsys, filepath.Join(path, "actor")) {
		if dir, _, err = FindCheckpoint(fsys, path); err != nil {
			return nil
		}
		what = "run"
	}
	if !isModel(fsys, filepath.Join(dir, part)) {
		return fmt.Errorf("model: %s: is a %s without a %s: give one of a warm-up or a game", path, what, map[string]string{"critic": "discriminator"}[part])
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

// LoadTokenizer is the tokenizer of a model folder; for adapters without one, their base's.
func LoadTokenizer(dir string) (*tokenizer.Tokenizer, error) {
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil && model.IsAdapter(dir) {
		base, err := model.BaseDir(dir)
		if err != nil {
			return nil, err
		}
		dir = base
	}
	return tokenizer.Load(dir)
}

// WriteFolder writes a model and its tokenizer as a Hugging Face folder, whole
// or not at all; a folder that is there is refused.
func WriteFolder(fsys checkpoint.FS, dst string, m *model.Model, tok *tokenizer.Tokenizer, dtype string) error {
	fsys = vfs.OrDisk(fsys)
	return checkpoint.WriteFolder(fsys, dst, func(d *checkpoint.Dir) error {
		if err := m.Save(d.Create, dtype, 5_000_000_000); err != nil {
			return err
		}
		for name, content := range tok.Files() {
			if err := d.WriteFile(name, content); err != nil {
				return err
			}
		}
		return nil
	})
}

// Export copies one part ("actor" or "critic") of the checkpoint dir to dst.
// dtype is "float32", "bfloat16", "float16", or "base", what the student had
// before training. It returns the dtype written. What needs no conversion is a
// verified copy; so are adapters.
func Export(fsys checkpoint.FS, dir, part, dst, dtype string) (string, error) {
	return export(fsys, dir, part, dst, dtype, false)
}

// ExportMerged is Export of a part with adapters as a whole model: their base's weights
// with them added.
func ExportMerged(fsys checkpoint.FS, dir, part, dst, dtype string) (string, error) {
	return export(fsys, dir, part, dst, dtype, true)
}

func export(fsys checkpoint.FS, dir, part, dst, dtype string, merge bool) (string, error) {
	fsys = vfs.OrDisk(fsys)
	s, err := readState(fsys, dir)
	if err != nil {
		return "", err
	}
	if part == "critic" && !s.Stage.hasCritic() {
		return "", fmt.Errorf("%w: export: %s: %s has no discriminator: export the actor", ErrConfig, dir, s.Stage.aRun())
	}
	src := filepath.Join(dir, part)
	cfg, err := model.ReadConfig(src)
	if err != nil {
		return "", err
	}
	if dtype == "base" {
		dtype = s.BaseDType
	}
	adapter := model.IsAdapter(src)
	switch {
	case merge && !adapter:
		return "", fmt.Errorf("%w: export: %s: was trained in full and has no adapters: leave out --merge", ErrConfig, src)
	case adapter && !merge:
		return "float32", checkpoint.Export(fsys, src, dst)
	case dtype == cfg.DType && !merge:
		return dtype, checkpoint.Export(fsys, src, dst)
	}
	switch dtype {
	case "float32", "bfloat16", "float16":
	default:
		return "", fmt.Errorf("%w: export: dtype %q: must be base, float32, bfloat16 or float16", ErrConfig, dtype)
	}
	if err := checkpoint.Verify(fsys, dir); err != nil {
		return "", err
	}
	tok, err := LoadTokenizer(src)
	if err != nil {
		return "", err
	}
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		return "", err
	}
	defer be.Close()
	m, err := model.Load(be, src, model.Options{Kind: cfg.Kind()})
	if err != nil {
		return "", err
	}
	defer m.Close()
	if merge {
		whole, err := m.Merged()
		if err != nil {
			return "", err
		}
		defer whole.Close()
		m = whole
	}
	return dtype, WriteFolder(fsys, dst, m, tok, dtype)
}
