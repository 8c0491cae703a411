package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/env/games"
	"gad/apps/task"
	"gad/checkpoint"
)

// taskCommand returns the command gad task make|check|notes: each kind is a subcommand, so that
// flags may follow it.
func (p *program) taskCommand() *cli.Command {
	var makes, checks, notes []*cli.Command
	var kinds []string
	for _, k := range task.Kinds() {
		kinds = append(kinds, k.Name)
		makes = append(makes, p.makeCommand(k.Folder()))
		checks = append(checks, checkCommand(k.Name, p))
		notes = append(notes, notesCommand(k.Name, p))
	}
	makes, kinds = append(makes, p.makeCommand(task.Walks())), append(kinds, "walks")
	checks = append(checks, checkCommand("walks", p))
	notes = append(notes, notesCommand("walks", p))
	made := slices.Clone(kinds)
	for _, g := range games.Games() {
		made = append(made, g.Name)
		makes = append(makes, p.makeCommand(g.Folder()))
	}
	verbs := []*cli.Command{
		{Name: "make", Usage: "write a task's rows and an untrained student", Subcommands: makes},
		{Name: "check", Usage: "a checker for --checker: reads rows from standard input, writes a score and the form of each answer to standard output", Subcommands: checks},
		{Name: "notes",
			Usage: "a coach for gad opd --coach, by rule: writes what is wrong in each answer, beside what check writes", Subcommands: notes},
	}
	for i, v := range verbs {
		known := strings.Join([][]string{made, kinds, kinds}[i], ", ")
		v.Action = func(c *cli.Context) error {
			return usage("task %s: kind %q: unknown: use %s", v.Name, c.Args().First(), known)
		}
	}
	return &cli.Command{
		Name:        "task",
		Usage:       "make and check the generated tasks of the demo and the studies",
		Action:      func(c *cli.Context) error { return noSubcommand(c, "make, check or notes") },
		Subcommands: verbs,
	}
}

// checkCommand returns the command gad task check NAME.
func checkCommand(name string, p *program) *cli.Command {
	return &cli.Command{
		Name: name, Usage: "check answers to " + name,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return task.CheckRows(os.Stdin, p.out)
		},
	}
}

// notesCommand returns the command gad task notes NAME.
func notesCommand(name string, p *program) *cli.Command {
	return &cli.Command{
		Name: name, Usage: "write notes on answers to " + name,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return task.NoteRows(os.Stdin, p.out)
		},
	}
}

// makeCommand returns the command gad task make NAME.
func (p *program) makeCommand(f task.Folder) *cli.Command {
	train := f.Splits[0]
	return &cli.Command{
		Name: f.Name, Usage: f.About,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "output folder: " + f.Files},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the rows"},
			&cli.Uint64Flag{Name: "student-seed", Usage: "seed of the student's weights",
				DefaultText: "as --seed"},
			&cli.IntFlag{Name: "rows", Usage: "training rows",
				DefaultText: fmt.Sprint(f.Counts[train])},
		},
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "output")); err != nil {
				return err
			}
			f.Dir, f.Seed, f.StudentSeed = c.String("output"), c.Uint64("seed"), c.Uint64("seed")
			if c.IsSet("student-seed") {
				f.StudentSeed = c.Uint64("student-seed")
			}
			if c.IsSet("rows") {
				f.Counts[train] = c.Int("rows")
			}
			if n, most := f.Counts[train], f.Most(); n < 1 || n > most {
				return usage(
					"task make: --rows %d: must be 1 to %d, so that no question appears twice", n,
					most)
			}
			return checkpoint.Alone(f.Dir, func() error { return f.Write(p.session()) })
		},
	}
}
