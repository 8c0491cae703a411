package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// manCommand is gad man.
func (p *program) manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page in roff format: commands, flags, settings, exit statuses",
		Description: "gad man > ~/.local/share/man/man1/gad.1",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			_, err := io.WriteString(p.out, manual(p.app()))
			return err
		},
	}
}

// statuses are the exit statuses, for the manual.
var statuses = []struct {
	code int
	when string
}{
	{exitDone, "Done."},
	{exitFailed, "The command failed, for example because disk space or memory ran out, or gad doctor found that the run should not be resumed."},
	{exitUsage, "A mistake in the command line or a setting."},
	{exitInput, "A mistake in data or model files."},
	{exitNumerical, "The numbers of a training run broke down."},
	{exitInterrupted, "Interrupted and saved: the same command resumes the run."},
}

// manual is the manual page, in the man macros: the same on every machine.
func manual(app *cli.App) string {
	var b strings.Builder
	macro := func(name string, args ...string) {
		b.WriteString("." + name)
		for _, a := range args {
			b.WriteString(` "` + strings.ReplaceAll(roff(a), `"`, `\(dq`) + `"`)
		}
		b.WriteString("\n")
	}
	text := func(s string) {
		for line := range strings.Lines(strings.TrimSpace(s)) {
			if line = strings.TrimSpace(line); line == "" {
				macro("PP")
				continue
			}
			line = roff(line)
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
			b.WriteString(line + "\n")
		}
	}
	item := func(term, about string) {
		macro("TP")
		macro("B", term)
		text(about)
	}
	macro("TH", "GAD", "1", "", strings.TrimSpace("gad "+version), "")
	macro("SH", "NAME")
	text("gad - " + app.Usage)
	macro("SH", "SYNOPSIS")
	text("gad COMMAND [FLAG ...] [KEY=VALUE ...]")
	macro("SH", "COMMANDS")
	var walk func(prefix string, c *cli.Command)
	walk = func(prefix string, c *cli.Command) {
		if c.Hidden {
			return
		}
		name := prefix + " " + c.Name
		macro("SS", strings.TrimSpace(name+" "+c.ArgsUsage))
		text(c.Usage)
		for _, f := range c.Flags {
			d, ok := f.(cli.DocGenerationFlag)
			if !ok {
				continue
			}
			term, about := "--"+strings.Join(f.Names(), ", -"), d.GetUsage()
			if d.TakesValue() {
				term += " VALUE"
				if v := d.GetDefaultText(); v != "" {
					about += " (default: " + v + ")"
				}
			}
			item(term, about)
		}
		for _, sub := range c.Subcommands {
			walk(name, sub)
		}
	}
	for _, c := range app.Commands {
		walk("gad", c)
	}
	macro("SH", "SETTINGS")
	text("Commands that take KEY=VALUE take any of these, with the defaults of gad train.")
	for _, s := range settings() {
		about := s.Doc
		if len(s.Choices) > 0 {
			about += ". One of: " + strings.Join(s.Choices, ", ")
		}
		item(s.Key+"="+s.Default, about)
	}
	macro("SH", "EXIT STATUS")
	for _, s := range statuses {
		item(fmt.Sprint(s.code), s.when)
	}
	macro("SH", "ENVIRONMENT")
	item("GAD_CPU", "The variant of the CPU's kernels to use, such as avx2, instead of the fastest.")
	item("GAD_NCCL", "With several GPUs: the file of libnccl.so.2; off sums gradients over the host's memory.")
	item(addrVar, "With several processes: host:port where rank 0 listens. They connect by TCP then, also under mpirun.")
	item(secretVar+", "+secretFileVar, "The secret of processes that connect by TCP, or a file with it: the same on all, at least 16 bytes.")
	item("NO_COLOR", "If set, output has no colours.")
	return b.String()
}

// roff writes what roff would read as its own.
func roff(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
}
