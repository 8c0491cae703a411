package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"gad/apps/eval"
	"gad/apps/judge"
	"gad/cmd/gad/line"
	"gad/trainer/config"
)

// completionCommand returns the command gad completion, which prints a script for a shell. The
// script asks gad completion words for the candidates at the cursor, so it is never out of date.
func (p *program) completionCommand() *cli.Command {
	shell := func(name, where, script string) *cli.Command {
		return &cli.Command{
			Name:        name,
			Usage:       "print the completion script for " + name,
			Description: where,
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				_, err := io.WriteString(p.out, script)
				return err
			},
		}
	}
	return &cli.Command{
		Name:  "completion",
		Usage: "print a script that completes commands, flags and settings in bash, zsh or fish",
		Subcommands: []*cli.Command{
			shell("bash", "Add to ~/.bashrc: source <(gad completion bash)", line.Bash),
			shell("zsh", "Write it to a folder in $fpath: gad completion zsh > ~/.zfunc/_gad",
				line.Zsh),
			shell("fish", "gad completion fish > ~/.config/fish/completions/gad.fish", line.Fish),
			{
				Name:      "words",
				Usage:     "candidates for the last word, one per line: the word, a tab and its description",
				ArgsUsage: "-- gad WORD ...",
				Hidden:    true,
				Action: func(c *cli.Context) error {
					for _, w := range line.Candidates(p.app(), c.Args().Slice(), valuesOf) {
						fmt.Fprintf(p.out, "%s\t%s\n", w.Text, w.About)
					}
					return nil
				},
			},
		},
		Action: func(c *cli.Context) error { return noSubcommand(c, "bash, zsh or fish") },
	}
}

// valuesOf returns the values of a flag that has a fixed set of them, otherwise nil.
func valuesOf(flag string) []string {
	key := "trainer." + flag // device, precision
	switch flag {
	case "preset":
		return config.PresetNames()
	case "stage":
		var names []string
		for _, s := range config.Stages {
			names = append(names, string(s))
		}
		return names
	case "judge-mode":
		return judge.Modes
	case "judge-against":
		return []string{eval.AgainstTeacher, eval.AgainstFirst}
	}
	for _, f := range stageFlags {
		if f.name == flag {
			key = f.key
		}
	}
	for _, s := range line.Settings() {
		if s.Key == key {
			return s.Choices
		}
	}
	return nil
}

// manCommand returns the command gad man.
func (p *program) manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page in roff format: commands, flags, settings, exit statuses",
		Description: "gad man > ~/.local/share/man/man1/gad.1",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			_, err := io.WriteString(p.out, line.Manual(p.app(), version, statuses, variables))
			return err
		},
	}
}

// statuses lists the exit statuses, for the manual.
var statuses = []line.Status{
	{Code: exitDone, When: "Done."},
	{Code: exitFailed, When: "The command failed, for example because disk space or memory ran out, or gad doctor found that the run should not be resumed."},
	{Code: exitUsage, When: "A mistake in the command line or a setting."},
	{Code: exitInput, When: "A mistake in data or model files."},
	{Code: exitNumerical, When: "The numbers of a training run broke down."},
	{Code: exitInterrupted, When: "Interrupted and saved: the same command resumes the run."},
	{Code: exitStopped, When: "Stopped by a signal, with nothing to resume."},
}

// variables lists the environment variables that gad reads, for the manual.
var variables = []line.Variable{
	{Name: "GAD_CPU",
		About: "The variant of the CPU's kernels to use, such as avx2, instead of the fastest."},
	{Name: "GAD_NCCL", About: "With several GPUs: the file of libnccl.so.2; off sums gradients over the host's memory."},
	{Name: addrVar, About: "With several processes: host:port where rank 0 listens. They connect by TCP then, also under mpirun."},
	{Name: secretVar + ", " + secretFileVar, About: "The secret of processes that connect by TCP, or a file with it: the same on all, at least 16 bytes."},
	{Name: "NO_COLOR", About: "If set, output has no colours."},
}
