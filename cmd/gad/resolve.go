package main

import (
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/pull"
	"gad/trainer/config"
)

// A name on a hub, given instead of a path, is resolved to the path of the files that gad pull has
// fetched, from the cache alone.

// localPath returns the path of the fetched files if path is a name on a hub, otherwise path.
func localPath(path string, dataset bool) (string, error) {
	return pull.Local(files(), os.Getenv, path, dataset)
}

// The flags whose values are paths of models, and of data.
var (
	modelFlags = []string{"model", "adapter", "critic", "reward-model", "disc-from", "from",
		"against"}
	dataFlags = []string{"data", "val-data", "prompts"}
)

// resolveNames makes a command, and its subcommands, resolve the names in its flags before it runs.
// Settings that name a path are resolved by localSettings.
func resolveNames(c *cli.Command) {
	for _, sub := range c.Subcommands {
		resolveNames(sub)
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

// localFlag replaces the value of a flag that is a path by its localPath.
func localFlag(c *cli.Context, f cli.Flag) error {
	name := f.Names()[0]
	dataset := slices.Contains(dataFlags, name)
	// there --model names a model of the endpoint
	if !c.IsSet(name) || !dataset && !slices.Contains(modelFlags, name) || name == "model" &&
		c.Command.Name == "collect" {
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
	// replaces, where a plain value would be one more
	return c.Set(name, cli.NewStringSlice(paths...).Serialize())
}

// localSettings replaces the settings that are paths of models and data by their localPath.
func localSettings(cfg *config.Config) (err error) {
	for _, path := range []*string{&cfg.Model.Path, &cfg.Model.Adapter, &cfg.Model.RewardPath,
		&cfg.Teacher.Path} {
		if *path, err = localPath(*path, false); err != nil {
			return err
		}
	}
	if cfg.Teacher.Models, err = cfg.Teacher.MapFolders(func(dir string) (string, error) {
		return localPath(dir, false)
	}); err != nil {
		return err
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
