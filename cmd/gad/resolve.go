package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/pull"
	"gad/internal/fault"
	"gad/trainer/config"
)

// This file is where a name on a hub, given in the place of a path, becomes the path of what
// gad pull has fetched. It is read from the cache; nothing is asked.

// fileSuffixes end the names of files: a/b.gguf is a path, though a repository could be called so.
var fileSuffixes = []string{".arrow", ".arrows", ".csv", ".gguf", ".json", ".jsonl", ".parquet", ".safetensors"}

// localPath is the path that a flag or a setting names: itself where something is there, or
// else, for OWNER/NAME[@REVISION][:FILE], what the Hugging Face cache has under that name. A
// path that looks like a name and is in neither stays a path if its folder exists: it is
// then a mistyped path.
func localPath(path string, dataset bool) (string, error) {
	if path == "" {
		return "", nil
	}
	if _, err := files().Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	name, err := pull.ParseName(path, dataset)
	if err != nil || name.File == "" && slices.Contains(fileSuffixes, strings.ToLower(filepath.Ext(path))) {
		return path, nil // no name: opening the path says what is wrong with it
	}
	env, err := pull.FromEnvironment(files(), func(name string) string {
		if name == "HF_HUB_DISABLE_IMPLICIT_TOKEN" {
			return "1" // nothing is asked: no token is read
		}
		return os.Getenv(name)
	})
	if err != nil {
		return "", fault.As(fault.ErrUsage, err)
	}
	found, err := pull.Find(files(), env.Cache, name)
	if err == nil {
		return found, nil
	}
	if _, there := files().Stat(filepath.Dir(path)); there == nil {
		return path, nil
	}
	what, kind := "model", "folder"
	if dataset {
		what, kind = "data", "file or folder"
	}
	if !errors.Is(err, pull.ErrAbsent) {
		return "", err
	}
	return "", fmt.Errorf("%s: %s: there is no such %s, and %s: run %s", what, path, kind, strings.TrimPrefix(err.Error(), "pull: "+path+": "), name.Command())
}

// The flags whose values are paths of models, and of data.
var (
	modelFlags = []string{"model", "adapter", "critic", "reward-model", "disc-from", "from", "against"}
	dataFlags  = []string{"data", "val-data", "prompts"}
)

// local makes a command, and those below it, resolve the names in its flags before it runs.
// Settings that name a path are resolved where they are read: see localSettings.
func local(c *cli.Command) {
	for _, sub := range c.Subcommands {
		local(sub)
	}
	if action := c.Action; action != nil {
		c.Action = func(ctx *cli.Context) error {
			for _, f := range c.Flags {
				if err := localFlag(ctx, f); err != nil {
					return err
				}
			}
			return action(ctx)
		}
	}
}

// localFlag replaces the value of a flag by localPath of it.
func localFlag(c *cli.Context, f cli.Flag) error {
	name := f.Names()[0]
	dataset := slices.Contains(dataFlags, name)
	if !c.IsSet(name) || !dataset && !slices.Contains(modelFlags, name) || name == "model" && c.Command.Name == "collect" { // there, a model of the endpoint
		return nil
	}
	if _, several := f.(*cli.StringSliceFlag); !several {
		path, err := localPath(c.String(name), dataset)
		if err != nil {
			return err
		}
		return c.Set(name, path)
	}
	paths := slices.Clone(c.StringSlice(name))
	for i := range paths {
		var err error
		if paths[i], err = localPath(paths[i], dataset); err != nil {
			return err
		}
	}
	return c.Set(name, cli.NewStringSlice(paths...).Serialize()) // replaces, where a plain value would be one more
}

// localSettings replaces the settings that are paths of models and data by localPath of them.
func localSettings(cfg *config.Config) (err error) {
	for _, path := range []*string{&cfg.Model.Path, &cfg.Model.Adapter, &cfg.Model.RewardPath} {
		if *path, err = localPath(*path, false); err != nil {
			return err
		}
	}
	for _, list := range [][]string{cfg.Data.TrainFiles, cfg.Data.ValFiles} {
		for i := range list {
			if list[i], err = localPath(list[i], true); err != nil {
				return err
			}
		}
	}
	return nil
}

// modelName is the last part of a model's path; of a snapshot in the Hugging Face cache, whose
// last part is a commit, the repository's name without its owner.
func modelName(path string) string {
	repo, ok := strings.CutPrefix(filepath.Base(filepath.Dir(filepath.Dir(path))), "models--")
	if filepath.Base(filepath.Dir(path)) != "snapshots" || !ok {
		return filepath.Base(path)
	}
	return repo[strings.LastIndex("--"+repo, "--"):]
}
