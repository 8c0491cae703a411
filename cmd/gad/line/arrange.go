// Package line handles the words of any command line: their order, advice for mistyped ones,
// completion, and the manual page.
//
//	arrange.go   flags before arguments; unknown commands and flags
//	complete.go  completion for shells
//	man.go       the manual page
package line

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/internal/conf"
	"gad/internal/fault"
	"gad/trainer/config"
)

// Arrange moves the flags of a command line before its arguments, where the library needs them: gad
// sft data.train_batch_size=8 --steps 2. An unknown flag, and a single-valued flag given twice, are
// errors with advice.
func Arrange(app *cli.App, args []string) ([]string, error) {
	at, commands := 1, app.Commands
	var c *cli.Command
	for at < len(args) {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[at]) })
		if i < 0 {
			break
		}
		c, commands = commands[i], commands[i].Subcommands
		at++
	}
	name := strings.Join(args[1:at], " ")
	switch {
	case c == nil && at < len(args) && !strings.HasPrefix(args[at], "-"):
		return nil, unknownCommand("", args[at], app.Commands)
	case c == nil && at < len(args):
		key, _, _ := strings.Cut(strings.TrimLeft(args[at], "-"), "=")
		names := append(cli.HelpFlag.Names(), cli.VersionFlag.Names()...)
		if near := conf.Nearest(key, names); !slices.Contains(names, key) && near != "" {
			return nil, fault.Usagef("unknown flag --%s: did you mean --%s?", key, near)
		} else if !slices.Contains(names, key) {
			return nil, fault.Usagef(
				"unknown flag --%s: flags come after a command: see gad --help", key)
		}
		return args, nil
	case c == nil:
		return args, nil // gad --help
	case len(c.Subcommands) > 0 && at < len(args) && !strings.HasPrefix(args[at], "-"):
		if near := nearestCommand(args[at], c.Subcommands); near != "" {
			return nil, unknownCommand(name+" ", args[at], c.Subcommands)
		}
		return args[:at+1], nil // the command's error lists its subcommands
	}
	var flags, rest []string
	help := false
	given := map[string]string{} // by the flag's first name: its value
	for i := at; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			rest = append(rest, a)
			continue
		}
		key, value, inline := strings.Cut(strings.TrimLeft(a, "-"), "=")
		f := flagOf(c, key)
		if f == nil {
			if !inline && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") &&
				!strings.Contains(args[i+1], "=") {
				value = args[i+1]
			}
			return nil, unknownFlag(c, name, key, value)
		}
		if f == cli.HelpFlag {
			help = true
			continue
		}
		flags = append(flags, a)
		if _, is := f.(*cli.BoolFlag); !is && !inline {
			if i+1 == len(args) {
				usage := ""
				if f, ok := f.(cli.DocGenerationFlag); ok {
					usage = f.GetUsage()
				}
				return nil, fault.Usagef("%s: --%s: a value is missing: %s (see gad %s --help)",
					name, key, usage, name)
			}
			i++
			value = args[i]
			flags = append(flags, value)
		}
		first := f.Names()[0]
		if before, twice := given[first]; twice && value == "" && before == "" {
			return nil, fault.Usagef("%s: --%s is given twice: give it once", name, first)
		} else if twice && !repeatable(f) {
			return nil, fault.Usagef("%s: --%s is given twice, %q and %q: give it once", name,
				first, before, value)
		}
		given[first] = value
	}
	switch {
	case help:
		return helpArgs(c, args[:at], rest), nil
	case slices.Contains(rest, "--"): // an argument after it may look like a flag
		rest = append([]string{"--"},
			slices.DeleteFunc(rest, func(a string) bool { return a == "--" })...)
	}
	return slices.Concat(args[:at], flags, rest), nil
}

// helpArgs returns the command line for help on a command or, if rest names a setting or a group of
// settings, for help on these: gad sft --help actor.optim.
func helpArgs(c *cli.Command, command, rest []string) []string {
	cfg := config.Default()
	for _, a := range rest {
		group := strings.TrimSuffix(a, ".")
		if TakesSettings(c) && slices.ContainsFunc(conf.Describe(&cfg),
			func(s conf.Setting) bool {
				return s.Key == group ||
					strings.HasPrefix(s.Key, group+".")
			}) {
			line := []string{command[0], "help"}
			// its defaults
			if slices.Contains(config.Stages, config.Stage(c.Name)) {
				line = append(line, "--stage", c.Name)
			}
			return append(line, "settings", a)
		}
	}
	return append(slices.Clone(command), "--help")
}

// repeatable reports whether a flag may be given several times.
func repeatable(f cli.Flag) bool {
	slice, ok := f.(cli.DocGenerationSliceFlag)
	return ok && slice.IsSliceFlag()
}

// flagOf returns the command's flag of that name; nil if it has none.
func flagOf(c *cli.Command, name string) cli.Flag {
	for _, f := range append(slices.Clone(c.Flags), cli.HelpFlag) {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// nearestCommand returns the command whose name is spelled almost the same; "" if there is no such
// command.
func nearestCommand(name string, commands []*cli.Command) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	return conf.Nearest(name, names)
}

// unknownCommand returns the error of an unknown command, with the command that the user may have
// meant. before is its parent, with a blank.
func unknownCommand(before, name string, commands []*cli.Command) error {
	for _, c := range commands { // gad validate
		if before == "" && slices.ContainsFunc(c.Subcommands,
			func(s *cli.Command) bool { return s.Name == name }) {
			return fault.Usagef("unknown command %q: did you mean gad %s %s?", name, c.Name, name)
		}
	}
	if other := map[string]string{"evaluate": "eval", "test": "eval", "finetune": "sft",
		"run": "generate", "infer": "generate", "continue": "resume", "settings": "help settings",
		"version": "--version"}[name]; before == "" && other != "" {
		return fault.Usagef("unknown command %q: did you mean gad %s?", name, other)
	}
	if near := nearestCommand(name, commands); near != "" {
		return fault.Usagef("unknown command %q: did you mean gad %s%s?", before+name, before, near)
	}
	return fault.Usagef("unknown command %q: see gad %s--help", before+name, before)
}

// flagHints holds, by command, flags of similar commands that it does not have, and what to give
// instead.
var flagHints = map[string]map[string]string{
	"score":    {"model": "--critic", "run": "--critic RUN/global_step_N/critic"},
	"logprobs": {"critic": "--model; gad score takes a discriminator"},
	"demo": {"output": "--dir",
		"model": "no model: the demo makes its own; gad sft trains yours"},
	"data collect": {"max-new-tokens": "--max-tokens", "max-response-length": "--max-tokens",
		"system-prompt": "--system", "samples": "-n"},
	"chat":     {"max-tokens": "--max-new-tokens", "max-response-length": "--max-new-tokens"},
	"generate": {"max-tokens": "--max-new-tokens", "max-response-length": "--max-new-tokens"},
	"serve": {"max-new-tokens": "--max-tokens", "max-response-length": "--max-tokens",
		"port": "--listen 127.0.0.1:PORT", "host": "--listen ADDRESS:PORT"},
	"eval": {"max-tokens": "--max-response-length",
		"max-new-tokens": "--max-response-length"},
	"resume": {"data": "the setting data.train_files=FILE, where the run's data have moved",
		"val-data": "the setting data.val_files=FILE, where the run's data have moved",
		"output":   "the run itself, gad resume RUN"},
	"export":     {"resume": "--run"},
	"data split": {"output": "--first and --second, one file each"},
}

// unknownFlag returns the error of an unknown flag, with the flag or setting that the user may have
// meant.
func unknownFlag(c *cli.Command, command, key, value string) error {
	var names []string
	for _, f := range c.Flags {
		names = append(names, f.Names()...)
	}
	if key == "resume" && TakesSettings(c) {
		return fault.Usagef("%s: unknown flag --resume: repeat the command that began the run, or use gad resume RUN; to start from another run's student give --model RUN/global_step_N/actor", command)
	}
	if TakesSettings(c) {
		if value == "" {
			value = "VALUE"
		}
		snake := strings.ReplaceAll(key, "-", "_")
		if strings.Contains(key, ".") {
			return fault.Usagef("%s: unknown flag --%s: a setting has no dashes: give %s=%s",
				command, key, snake, value)
		}
		cfg := config.Default()
		if keys := slices.DeleteFunc(settingsNamed(snake),
			func(k string) bool { return cfg.Ignores(config.Stage(command), k) != "" }); len(
			keys) > 0 {
			for i, k := range keys {
				keys[i] = k + "=" + value
			}
			return fault.Usagef("%s: unknown flag --%s: give the setting %s", command, key,
				strings.Join(keys, " or "))
		}
	}
	if here := flagHints[command][key]; here != "" {
		return fault.Usagef("%s: unknown flag --%s: give %s", command, key, here)
	}
	if key == "data" && slices.Contains(names, "prompts") {
		return fault.Usagef("%s: unknown flag --data: give the prompts with --prompts", command)
	}
	if near := conf.Nearest(key, names); near != "" {
		return fault.Usagef("%s: unknown flag --%s: did you mean --%s?", command, key, near)
	}
	if kinds := c.Subcommands; len(kinds) > 0 {
		return fault.Usagef(
			"%s: --%s before its subcommand: give one first: gad %s --help lists them", command,
			key, command)
	}
	more := ""
	if TakesSettings(c) {
		more = "; gad help settings lists the settings"
	}
	return fault.Usagef("%s: unknown flag --%s: see gad %s --help%s", command, key, command, more)
}

// TakesSettings reports whether key=value may stand on the command line.
func TakesSettings(c *cli.Command) bool { return strings.Contains(c.ArgsUsage, "KEY=VALUE") }

// settingsNamed returns the settings whose name, or another trainer's name for them, ends with
// name; nil if there are more than three.
func settingsNamed(name string) (keys []string) {
	if key, ok := config.Alias(name); ok {
		return []string{key}
	}
	cfg := config.Default()
	for _, s := range conf.Describe(&cfg) {
		if s.Key == name || strings.HasSuffix(s.Key, "."+name) {
			keys = append(keys, s.Key)
		}
	}
	if len(keys) > 3 {
		return nil
	}
	return keys
}
