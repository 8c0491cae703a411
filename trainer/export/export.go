// Package export writes a student, or a discriminator, for other programs: Hugging Face folders
// (export.go), and GGUF files for llama.cpp (gguf.go).
package export

import (
	"fmt"
	"path/filepath"

	"gad/checkpoint"
	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// Part copies one part ("actor" or "critic") of the checkpoint dir to dst. dtype is "float32",
// "bfloat16", "float16", or "base", the type that the student had before training. It returns the
// dtype written. If no conversion is needed the copy is verified; adapters are always copied so.
func Part(fsys checkpoint.FS, dir, part, dst, dtype string) (string, error) {
	return writePart(fsys, dir, part, dst, dtype, false)
}

// MergedPart writes a part with adapters as a whole model: the weights of the base with the
// adapters added. Otherwise it is as Part.
func MergedPart(fsys checkpoint.FS, dir, part, dst, dtype string) (string, error) {
	return writePart(fsys, dir, part, dst, dtype, true)
}

// writePart implements Part and MergedPart.
func writePart(fsys checkpoint.FS, dir, part, dst, dtype string, merge bool) (string, error) {
	fsys = vfs.OrDisk(fsys)
	s, err := saved.Read(fsys, dir)
	if err != nil {
		return "", err
	}
	if part == "critic" && !s.Stage.HasCritic() {
		return "", fmt.Errorf("%w: export: %s: %s has no discriminator: export the actor",
			config.ErrConfig, dir, s.Stage.ARun())
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
		return "",
			fmt.Errorf("%w: export: %s: was trained in full and has no adapters: leave out --merge",
				config.ErrConfig, src)
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

// checkDType refuses a dtype that is not float32, bfloat16 or float16.
func checkDType(dtype string) error {
	switch dtype {
	case "float32", "bfloat16", "float16":
		return nil
	}
	return fmt.Errorf("%w: export: dtype %q: must be base, float32, bfloat16 or float16",
		config.ErrConfig, dtype)
}

// Model writes the model at src, a folder or a GGUF file, as the Hugging Face folder dst. dtype is
// as in Part; base is the type of its weights, which for a GGUF file is float32, since that
// represents all GGUF types. Adapters are added to their base. It returns the dtype written.
func Model(fsys checkpoint.FS, src, dst, dtype string) (string, error) {
	fsys = vfs.OrDisk(fsys)
	// before the model is read; WriteFolder checks again
	if err := checkpoint.CheckAbsent(fsys, dst, "folder"); err != nil {
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
	tok, err := saved.Tokenizer(src)
	if err != nil {
		return err
	}
	return withModel(src, kind, func(m *model.Model) error {
		if merge {
			whole, err := m.Merged()
			if err != nil {
				return err
			}
			defer whole.Close()
			m = whole
		}
		return WriteFolder(fsys, dst, m, tok, dtype)
	})
}

// withModel runs f with the model at src, loaded on the CPU.
func withModel(src string, kind model.Kind, f func(m *model.Model) error) error {
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
	return f(m)
}

// WriteFolder writes a model and its tokenizer as a Hugging Face folder, whole or not at all; an
// existing folder is refused.
func WriteFolder(fsys checkpoint.FS, dst string, m *model.Model, tok *tokenizer.Tokenizer,
	dtype string) error {
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
