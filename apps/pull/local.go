package pull

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gad/internal/fault"
	"gad/internal/vfs"
)

// This file is where a name on a hub, given in the place of a path, becomes the path of what
// was fetched. It is read from the cache; nothing is asked.

// fileSuffixes end the names of files: a/b.gguf is a path, though a repository could be called so.
var fileSuffixes = []string{".arrow", ".arrows", ".csv", ".gguf", ".json", ".jsonl", ".parquet",
	".safetensors"}

// Local is the path that a flag or a setting names: itself where something is there, or
// else, for OWNER/NAME[@REVISION][:FILE], what the Hugging Face cache has under that name. A
// path that looks like a name and is in neither stays a path if its folder exists: it is
// then a mistyped path.
func Local(fsys vfs.FS, getenv func(string) string, path string, dataset bool) (string, error) {
	if path == "" {
		return "", nil
	}
	if _, err := fsys.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	name, err := ParseName(path, dataset)
	if err != nil || name.File == "" &&
		slices.Contains(fileSuffixes, strings.ToLower(filepath.Ext(path))) {
		return path, nil // no name: opening the path says what is wrong with it
	}
	env, err := FromEnvironment(fsys, func(name string) string {
		if name == "HF_HUB_DISABLE_IMPLICIT_TOKEN" {
			return "1" // nothing is asked: no token is read
		}
		return getenv(name)
	})
	if err != nil {
		return "", fault.As(fault.ErrUsage, err)
	}
	found, err := Find(fsys, env.Cache, name)
	if err == nil {
		return found, nil
	}
	if _, there := fsys.Stat(filepath.Dir(path)); there == nil {
		return path, nil
	}
	what, kind := "model", "folder"
	if dataset {
		what, kind = "data", "file or folder"
	}
	if !errors.Is(err, ErrAbsent) {
		return "", err
	}
	return "", fmt.Errorf("%s: %s: there is no such %s, and %s: run %s", what, path, kind,
		strings.TrimPrefix(err.Error(), "pull: "+path+": "), name.Command())
}

// ModelName is the last part of a model's path; of a snapshot in the Hugging Face cache, whose
// last part is a commit, the repository's name without its owner.
func ModelName(path string) string {
	repo, ok := strings.CutPrefix(filepath.Base(filepath.Dir(filepath.Dir(path))), "models--")
	if filepath.Base(filepath.Dir(path)) != "snapshots" || !ok {
		return filepath.Base(path)
	}
	return repo[strings.LastIndex("--"+repo, "--"):]
}
