package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/internal/conf"
	"gad/trainer/config"
)

// arrange puts the flags of a command line before its arguments, where the library wants
// them: gad sft data.train_batch_size=8 --steps 2. A flag that the command does not have,
// and a flag given twice that takes one value, are errors that say what was meant.
func arrange(app *cli.App, args []string) ([]string, error) {
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
			return nil, usage("unknown flag --%s: did you mean --%s?", key, near)
		} else if !slices.Contains(names, key) {
			return nil, usage("unknown flag --%s: flags come after a command: see gad --help", key)
		}
		return args, nil
	case c == nil:
		return args, nil // gad --help
	case len(c.Subcommands) > 0 && at < len(args) && !strings.HasPrefix(args[at], "-"):
		if near := nearestCommand(args[at], c.Subcommands); near != "" {
			return nil, unknownCommand(name+" ", args[at], c.Subcommands)
		}
		return args[:at+1], nil // the command says what it takes
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
			if !inline && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && !strings.Contains(args[i+1], "=") {
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
				return nil, usage("%s: --%s: a value is missing: see gad %s --help", name, key, name)
			}
			i++
			value = args[i]
			flags = append(flags, value)
		}
		first := f.Names()[0]
		if before, twice := given[first]; twice && value == "" && before == "" {
			return nil, usage("%s: --%s is given twice: give it once", name, first)
		} else if twice && !adds(f) {
			return nil, usage("%s: --%s is given twice, %q and %q: give it once", name, first, before, value)
		}
		given[first] = value
	}
	switch {
	case help:
		return helpOn(c, args[:at], rest), nil
	case slices.Contains(rest, "--"): // an argument after it may look like a flag
		rest = append([]string{"--"}, slices.DeleteFunc(rest, func(a string) bool { return a == "--" })...)
	}
	return slices.Concat(args[:at], flags, rest), nil
}

// helpOn is the command line for help on a command; beside it the name of a setting, or
// of a group of them, asks for those: gad sft --help actor.optim.
func helpOn(c *cli.Command, command, rest []string) []string {
	cfg := config.Default()
	for _, a := range rest {
		group := strings.TrimSuffix(a, ".")
		if takesSettings(c) && slices.ContainsFunc(conf.Describe(&cfg), func(s conf.Setting) bool { return s.Key == group || strings.HasPrefix(s.Key, group+".") }) {
			line := []string{command[0], "help"}
			if stages := []string{"sft", "warmup", "train", "dpo"}; slices.Contains(stages, c.Name) { // its defaults
				line = append(line, "--stage", c.Name)
			}
			return append(line, "settings", a)
		}
	}
	return append(slices.Clone(command), "--help")
}

// adds reports whether a flag may be given several times.
func adds(f cli.Flag) bool {
	slice, ok := f.(cli.DocGenerationSliceFlag)
	return ok && slice.IsSliceFlag()
}

// flagOf is the command's flag of that name; nil is none.
func flagOf(c *cli.Command, name string) cli.Flag {
	for _, f := range append(slices.Clone(c.Flags), cli.HelpFlag) {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// nearestCommand is the command whose name is spelled almost so; "" is none.
func nearestCommand(name string, commands []*cli.Command) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	return conf.Nearest(name, names)
}

func unknownCommand(before, name string, commands []*cli.Command) error {
	for _, c := range commands { // gad validate
		if before == "" && slices.ContainsFunc(c.Subcommands, func(s *cli.Command) bool { return s.Name == name }) {
			return usage("unknown command %q: did you mean gad %s %s?", name, c.Name, name)
		}
	}
	if other := map[string]string{"evaluate": "eval", "test": "eval", "finetune": "sft", "run": "generate", "infer": "generate", "continue": "resume", "settings": "help settings", "version": "--version"}[name]; before == "" && other != "" {
		return usage("unknown command %q: did you mean gad %s?", name, other)
	}
	if near := nearestCommand(name, commands); near != "" {
		return usage("unknown command %q: did you mean gad %s%s?", before+name, before, near)
	}
	return usage("unknown command %q: see gad %s--help", before+name, before)
}

// noSubcommand refuses a command that has subcommands and was given none of them.
func noSubcommand(c *cli.Context, names string) error {
	name := c.Command.Name
	if arg := c.Args().First(); arg != "" {
		return usage("%s: unknown subcommand %q: use %s (see gad %s --help)", name, arg, names, name)
	}
	return usage("%s: a subcommand is missing: use %s (see gad %s --help)", name, names, name)
}

// flagsHere are flags that a command does not have and a neighbour does, by command, and
// what to give here.
var flagsHere = map[string]map[string]string{
	"score":        {"model": "--critic", "run": "--critic RUN/global_step_N/critic"},
	"logprobs":     {"critic": "--model; gad score takes a discriminator"},
	"demo":         {"output": "--dir", "model": "no model: the demo makes its own; gad sft trains yours"},
	"data collect": {"max-new-tokens": "--max-tokens", "max-response-length": "--max-tokens", "system-prompt": "--system", "samples": "-n"},
	"chat":         {"max-tokens": "--max-new-tokens", "max-response-length": "--max-new-tokens"},
	"generate":     {"max-tokens": "--max-new-tokens", "max-response-length": "--max-new-tokens"},
	"serve":        {"max-new-tokens": "--max-tokens", "max-response-length": "--max-tokens", "port": "--listen 127.0.0.1:PORT", "host": "--listen ADDRESS:PORT"},
	"eval":         {"max-tokens": "--max-response-length", "max-new-tokens": "--max-response-length"},
	"export":       {"resume": "--run"},
	"data split":   {"output": "--first and --second, one file each"},
}

// unknownFlag says which flag, or which setting, the user may have meant.
func unknownFlag(c *cli.Command, command, key, value string) error {
	var names []string
	for _, f := range c.Flags {
		names = append(names, f.Names()...)
	}
	if key == "resume" && takesSettings(c) {
		return usage("%s: unknown flag --resume: repeat the command that began the run, or use gad resume RUN; to start from another run's student give --model RUN/global_step_N/actor", command)
	}
	if takesSettings(c) {
		if value == "" {
			value = "VALUE"
		}
		snake := strings.ReplaceAll(key, "-", "_")
		if strings.Contains(key, ".") {
			return usage("%s: unknown flag --%s: a setting has no dashes: give %s=%s", command, key, snake, value)
		}
		cfg := config.Default()
		if keys := slices.DeleteFunc(settingsNamed(snake), func(k string) bool { return cfg.Ignores(config.Stage(command), k) != "" }); len(keys) > 0 {
			for i, k := range keys {
				keys[i] = k + "=" + value
			}
			return usage("%s: unknown flag --%s: give the setting %s", command, key, strings.Join(keys, " or "))
		}
	}
	if here := flagsHere[command][key]; here != "" {
		return usage("%s: unknown flag --%s: give %s", command, key, here)
	}
	if key == "data" && slices.Contains(names, "prompts") {
		return usage("%s: unknown flag --data: give the prompts with --prompts", command)
	}
	if near := conf.Nearest(key, names); near != "" {
		return usage("%s: unknown flag --%s: did you mean --%s?", command, key, near)
	}
	if kinds := c.Subcommands; len(kinds) > 0 {
		return usage("%s: --%s before its subcommand: give one first: gad %s --help lists them", command, key, command)
	}
	more := ""
	if takesSettings(c) {
		more = "; gad help settings lists the settings"
	}
	return usage("%s: unknown flag --%s: see gad %s --help%s", command, key, command, more)
}

// takesSettings reports whether key=value may stand on the command line.
func takesSettings(c *cli.Command) bool { return strings.Contains(c.ArgsUsage, "KEY=VALUE") }

// settingsNamed are the settings whose name, or another trainer's name for them, ends
// with name: at most three.
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

// checkArguments refuses files where settings belong, and a setting beside the flag that
// stands for it. Of a setting given twice the last one holds, as in Hydra, which is noted.
func checkArguments(c *cli.Context, set []conf.Flag) (notes []string, err error) {
	flags, given := map[string]string{}, map[string]string{}
	for _, f := range set {
		flags[f.Key] = f.Name + " " + f.Value
	}
	for _, a := range c.Args().Slice() {
		key, _, ok := strings.Cut(a, "=")
		if info, err := files().Stat(a); err == nil && (!ok || !strings.Contains(key, ".")) {
			if info.IsDir() {
				return nil, usage("%s: unexpected argument %q, which is a folder: settings are KEY=VALUE, and a folder goes with a flag, such as --data, --model, --resume or --output", typed(c), a)
			}
			return nil, usage("%s: unexpected argument %q, which is a file: put a pattern in quotes, --data 'shards/*.arrow', or give --data before each file", typed(c), a)
		}
		if flag, twice := flags[key]; ok && twice {
			return nil, usage("%s: %q and %q are the same setting: give one of them", typed(c), flag, a)
		}
		if before, twice := given[key]; ok && twice && before != a {
			notes = append(notes, fmt.Sprintf("%s is given twice: %s holds, %s does not", key, a, before))
		}
		given[key] = a
	}
	return notes, nil
}

// ignored are the settings on a command line that the stage does not read, as warnings.
func ignored(stage config.Stage, cfg config.Config, overrides []string) (warnings []string) {
	for _, o := range overrides {
		key, _, _ := strings.Cut(strings.TrimPrefix(o, "+"), "=")
		if why := cfg.Ignores(stage, key); why != "" {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", o, why))
		}
	}
	return warnings
}
