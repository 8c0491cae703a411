package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/task"
)

// taskCommand is gad task make|check: each kind is a subcommand of both, so that
// flags may follow it.
func (p *program) taskCommand() *cli.Command {
	var makes, checks []*cli.Command
	var names []string
	for _, k := range task.Kinds() {
		names = append(names, k.Name)
		makes = append(makes, &cli.Command{
			Name: k.Name, Usage: k.About,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "output", Usage: "output folder: train.arrow, test.arrow, tune.arrow, student and more"},
				&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the rows"},
				&cli.Uint64Flag{Name: "student-seed", Usage: "seed of the student's weights", DefaultText: "as --seed"},
				&cli.IntFlag{Name: "rows", Usage: "training rows", DefaultText: fmt.Sprint(k.Rows[task.Train])},
			},
			Action: func(c *cli.Context) error {
				if err := errors.Join(noArguments(c), need(c, "output")); err != nil {
					return err
				}
				f := task.Folder{Kind: k, Dir: c.String("output"), Seed: c.Uint64("seed"), StudentSeed: c.Uint64("seed"), Rows: k.Rows[task.Train]}
				if c.IsSet("student-seed") {
					f.StudentSeed = c.Uint64("student-seed")
				}
				if c.IsSet("rows") {
					f.Rows = c.Int("rows")
				}
				if most := task.Max(task.Train); f.Rows < 1 || f.Rows > most {
					return usage("task make: --rows %d: must be 1 to %d, so that no question appears twice", f.Rows, most)
				}
				return f.Write(p.session())
			},
		})
		checks = append(checks, &cli.Command{
			Name: k.Name, Usage: "check answers to " + k.Name,
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				return task.CheckRows(os.Stdin, p.out)
			},
		})
	}
	verbs := []*cli.Command{
		{Name: "make", Usage: "write a task's rows and an untrained student", Subcommands: makes},
		{Name: "check", Usage: "a checker for --checker: reads rows from standard input, writes a score and the form of each answer to standard output", Subcommands: checks},
	}
	for _, v := range verbs {
		v.Action = func(c *cli.Context) error {
			return usage("task %s: kind %q: unknown: use %s", v.Name, c.Args().First(), strings.Join(names, ", "))
		}
	}
	return &cli.Command{
		Name:        "task",
		Usage:       "make and check the generated tasks of the demo and the studies",
		Action:      func(c *cli.Context) error { return noSubcommand(c, "make or check") },
		Subcommands: verbs,
	}
}
