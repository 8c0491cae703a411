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

// Names on a hub, given in the place of a path, become paths in the cache here. No connection is
// opened.

// fileSuffixes mark paths of files: a/b.gguf is a path, though a repository could have that name.
var fileSuffixes = []string{".arrow", ".arrows", ".csv", ".gguf", ".json", ".jsonl", ".parquet",
	".safetensors"}

// Local returns the path that a flag or a setting names: the path itself where it exists; else, for
// OWNER/NAME[@REVISION][:FILE], its place in the Hugging Face cache. A text that could be a name
// but is not in the cache stays a path if its folder exists: it is then a mistyped path.
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
		return path, nil // not a name: opening the path gives the error
	}
	env, err := FromEnvironment(fsys, func(name string) string {
		if name == "HF_HUB_DISABLE_IMPLICIT_TOKEN" {
			return "1" // no connection: no token is needed
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

// ModelName returns the last part of a model's path; for a snapshot in the Hugging Face cache,
// whose last part is a commit, the repository's name without its owner.
func ModelName(path string) string {
	repo, ok := strings.CutPrefix(filepath.Base(filepath.Dir(filepath.Dir(path))), "models--")
	if filepath.Base(filepath.Dir(path)) != "snapshots" || !ok {
		return filepath.Base(path)
	}
	return repo[strings.LastIndex("--"+repo, "--"):]
}
