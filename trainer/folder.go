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
	"gad/internal/gguf"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
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
		if gguf.Is(path) {
			return nil
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".arrow", ".arrows", ".parquet", ".jsonl", ".csv":
			return fmt.Errorf("model: %s: is a data file: give a Hugging Face model folder here, and data with --data", path)
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
	if entries, err := fsys.ReadDir(path); err == nil {
		for _, e := range entries { // what hf download makes of a repository of GGUF files
			if file := filepath.Join(path, e.Name()); gguf.Is(file) {
				return fmt.Errorf("model: %s: has no config.json, but GGUF files: give one of them: %s", path, file)
			}
		}
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

// LoadTokenizer is the tokenizer of a model folder or GGUF file; for adapters without one, their
// base's.
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
	return exportPart(fsys, dir, part, dst, dtype, false)
}

// ExportMerged is Export of a part with adapters as a whole model: their base's weights
// with them added.
func ExportMerged(fsys checkpoint.FS, dir, part, dst, dtype string) (string, error) {
	return exportPart(fsys, dir, part, dst, dtype, true)
}

func exportPart(fsys checkpoint.FS, dir, part, dst, dtype string, merge bool) (string, error) {
	fsys = vfs.OrDisk(fsys)
	s, err := readState(fsys, dir)
	if err != nil {
		return "", err
	}
	if part == "critic" && !s.Stage.HasCritic() {
		return "", fmt.Errorf("%w: export: %s: %s has no discriminator: export the actor", config.ErrConfig, dir, s.Stage.ARun())
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
		return "", fmt.Errorf("%w: export: %s: was trained in full and has no adapters: leave out --merge", config.ErrConfig, src)
	case adapter && !merge:
		return "float32", checkpoint.Export(fsys, src, dst)
	case dtype == cfg.DType && !merge:
		return dtype, checkpoint.Export(fsys, src, dst)
	}
	if err := checkDType(dtype); err != nil {
		return "", err
	}
	if err := checkpoint.Verify(fsys, dir); err != nil {
		return "", err
	}
	return dtype, rewrite(fsys, src, cfg.Kind(), dst, dtype, merge)
}

func checkDType(dtype string) error {
	switch dtype {
	case "float32", "bfloat16", "float16":
		return nil
	}
	return fmt.Errorf("%w: export: dtype %q: must be base, float32, bfloat16 or float16", config.ErrConfig, dtype)
}

// ExportModel writes the model at src, a folder or a GGUF file, as the Hugging Face folder
// dst. dtype is as in Export; base is what its weights have, which of a GGUF file is float32:
// that holds all that any of its types does. Adapters are added to their base. It returns
// the dtype written.
func ExportModel(fsys checkpoint.FS, src, dst, dtype string) (string, error) {
	fsys = vfs.OrDisk(fsys)
	if err := checkpoint.Absent(fsys, dst, "folder"); err != nil { // before the model is read; WriteFolder asks again
		return "", err
	}
	cfg, err := model.ReadConfig(src)
	if err != nil {
		return "", err
	}
	if dtype == "base" {
		dtype = cfg.DType
	}
	if err := checkDType(dtype); err != nil {
		return "", err
	}
	return dtype, rewrite(fsys, src, cfg.Kind(), dst, dtype, model.IsAdapter(src))
}

// rewrite loads the model at src and writes it as the folder dst.
func rewrite(fsys checkpoint.FS, src string, kind model.Kind, dst, dtype string, merge bool) error {
	tok, err := LoadTokenizer(src)
	if err != nil {
		return err
	}
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	m, err := model.Load(be, src, model.Options{Kind: kind})
	if err != nil {
		return err
	}
	defer m.Close()
	if merge {
		whole, err := m.Merged()
		if err != nil {
			return err
		}
		defer whole.Close()
		m = whole
	}
	return WriteFolder(fsys, dst, m, tok, dtype)
}
