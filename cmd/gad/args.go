package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/internal/conf"
	"gad/trainer/config"
)

// noSubcommand returns the error of a command that has subcommands and was given none of them;
// names lists them.
func noSubcommand(c *cli.Context, names string) error {
	name := c.Command.Name
	if arg := c.Args().First(); arg != "" {
		return usage("%s: unknown subcommand %q: use %s (see gad %s --help)", name, arg, names,
			name)
	}
	return usage("%s: a subcommand is missing: use %s (see gad %s --help)", name, names, name)
}

// checkArguments refuses files among the settings, and a setting together with the flag that stands
// for it. If a setting is given twice the last one holds, as in Hydra, and notes says so.
func checkArguments(c *cli.Context, set []conf.Flag) (notes []string, err error) {
	flags, given := map[string]string{}, map[string]string{}
	for _, f := range set {
		flags[f.Key] = f.Name + " " + f.Value
	}
	for _, a := range c.Args().Slice() {
		key, _, ok := strings.Cut(a, "=")
		if info, err := files().Stat(a); err == nil && (!ok || !strings.Contains(key, ".")) {
			if info.IsDir() {
				return nil, usage("%s: unexpected argument %q, which is a folder: settings are KEY=VALUE, and a folder goes with a flag, such as --data, --model, --resume or --output", commandName(c), a)
			}
			return nil, usage("%s: unexpected argument %q, which is a file: put a pattern in quotes, --data 'shards/*.arrow', or give --data before each file", commandName(c), a)
		}
		if flag, twice := flags[key]; ok && twice {
			return nil, usage("%s: %q and %q are the same setting: give one of them", commandName(c),
				flag, a)
		}
		if before, twice := given[key]; ok && twice && before != a {
			notes = append(notes, fmt.Sprintf("%s is given twice: %s holds, %s does not", key, a,
				before))
		}
		given[key] = a
	}
	return notes, nil
}

// ignoredSettings returns warnings about settings on a command line that the stage does not read.
func ignoredSettings(stage config.Stage, cfg config.Config,
	overrides []string) (warnings []string) {
	given := cfg.Warnings(stage) // the run prints these
	for _, o := range overrides {
		key, _, _ := strings.Cut(strings.TrimPrefix(o, "+"), "=")
		if slices.ContainsFunc(given, func(w string) bool {
			return strings.HasPrefix(w, key+" ") && strings.Contains(w, " has no effect: ")
		}) {
			continue
		}
		if why := cfg.Ignores(stage, key); why != "" {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", o, why))
		}
	}
	return warnings
}
