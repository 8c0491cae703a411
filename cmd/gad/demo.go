package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"gad/apps/demo"
	"gad/internal/fault"
)

// demoCommand returns the command gad demo.
func (p *program) demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "try the whole method on a small generated task on the CPU, in minutes: SFT, warm-up, game, evaluation",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "dir",
				Usage: "output folder (default: gad-demo, with --episodes gad-demo-episodes, with --thought gad-demo-thought, and -fast behind it with --fast)"},
			&cli.BoolFlag{Name: "episodes",
				Usage: "play the game on whole episodes, in the environment doors"},
			&cli.BoolFlag{Name: "thought",
				Usage: "long answers, written in one sequence and in chunks of bounded context"},
			&cli.BoolFlag{Name: "fast", Usage: "a smaller demo, about a minute"},
			&cli.Uint64Flag{Name: "seed", Value: 1,
				Usage: "seed of the rows, the student, data order and sampling"},
		}, deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Bool("episodes") && c.Bool("thought") {
				return usage("demo: --episodes and --thought: give one of them")
			}
			dir := c.String("dir")
			if dir == "" {
				dir = "gad-demo" + map[bool]string{true: "-episodes"}[c.Bool("episodes")] +
					map[bool]string{true: "-thought"}[c.Bool("thought")] +
					map[bool]string{true: "-fast"}[c.Bool("fast")]
			}
			be, err := p.openDevice(deviceFlagsOf(c))
			if err != nil {
				return err
			}
			defer be.Close()
			err = demo.Run(c.Context,
				demo.Options{Dir: dir, Fast: c.Bool("fast"), Episodes: c.Bool("episodes"),
					Thought: c.Bool("thought"), Program: demo.Program, Seed: c.Uint64("seed"),
					Size: demo.SizeOf(c.Bool("fast"), c.Bool("episodes"),
						c.Bool("thought")),
					Backend: be, FS: files(), Gad: p.runNested, Out: p.out, Console: p.err,
					Flags: []string{"--seed", fmt.Sprint(c.Uint64("seed")), "--device",
						c.String("device"), "--precision", c.String("precision"), "--threads",
						fmt.Sprint(c.Int("threads"))}})
			if _, ok := errors.AsType[*demo.FolderError](err); ok {
				return fault.As(fault.ErrUsage, err)
			}
			return err
		},
	}
}

// runNested runs a command line of gad inside another command, with its own output and console.
func (p *program) runNested(ctx context.Context, out, console io.Writer, args ...string) error {
	inner := &program{out: out, err: console, command: p.command}
	return inner.invoke(ctx, append([]string{"gad"}, args...))
}
