package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"gad/apps/board"
	"gad/internal/report"
	"gad/trainer/config"
)

// boardFlags returns the flags that bound the contents of a document of runs.
func boardFlags() []cli.Flag {
	return []cli.Flag{
		withLimits(&cli.IntFlag{Name: "points", Value: board.Points,
			Usage: "most points of a curve; 0 is every step"}, atLeast(0)),
		withLimits(&cli.IntFlag{Name: "samples", Value: 12,
			Usage: "steps of each run whose samples are contained; 0 is none"}, atLeast(0)),
	}
}

// boardCommand returns the command gad board.
func (p *program) boardCommand() *cli.Command {
	return &cli.Command{
		Name:      "board",
		Usage:     "show runs in the browser: curves, scores, samples, the doctor's findings, settings; with --json print all of it",
		ArgsUsage: "RUN ...",
		Description: "Serves one page on this machine (127.0.0.1) until Ctrl-C, and follows runs that are being written. It changes nothing.\n" +
			"RUN is the --output of gad " + config.StageNames() + ", or a folder of such runs. From another machine: ssh -L 6161:127.0.0.1:6161 HOST.\n" +
			"With --json it serves nothing and prints one document; doc/board.md describes it.",
		Flags: append([]cli.Flag{
			withLimits(&cli.IntFlag{Name: "port", Value: 6161,
				Usage: "port on 127.0.0.1; 0 is any free one"}, intRange(0, 65535)),
			&cli.BoolFlag{Name: "json",
				Usage: "print everything as one JSON object, and serve nothing"},
		}, boardFlags()...),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(needRuns(c), boardRules.check(c)); err != nil {
				return err
			}
			if c.Bool("json") {
				d, err := p.document(c)
				if err != nil {
					return err
				}
				return json.NewEncoder(p.out).Encode(d)
			}
			b, err := p.openBoard(c)
			if err != nil {
				return err
			}
			s, err := b.Listen(c.Int("port"))
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM,
				syscall.SIGHUP)
			defer stop()
			fmt.Fprintf(p.err, "the board is at %s (Ctrl-C ends it)\n", s.URL())
			return s.Serve(ctx)
		},
	}
}

// reportCommand returns the command gad report.
func (p *program) reportCommand() *cli.Command {
	return &cli.Command{
		Name:        "report",
		Usage:       "write the page of gad board as one HTML file that needs no server",
		ArgsUsage:   "RUN ...",
		Description: "The file holds style, script and data, and loads nothing. It contains the samples' texts, all settings and their paths: look before you share it.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "output", Value: "report.html",
				Usage: "file to write; an older report is replaced, any other file is not"},
		}, boardFlags()...),
		Action: func(c *cli.Context) error {
			if err := needRuns(c); err != nil {
				return err
			}
			out := c.String("output")
			if out == "" {
				return usage(
					"report: --output is empty: give the name of a file, such as report.html")
			}
			if err := board.Writable(files(), out); err != nil {
				return err
			}
			d, err := p.document(c)
			if err != nil {
				return err
			}
			size, err := d.Write(files(), out)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s: %s, %.1f MB\n", out, report.Count(len(d.Runs), "run"),
				float64(size)/1e6)
			return nil
		},
	}
}

// boardRules are the rules between flags of gad board.
var boardRules = rules{
	{[]string{"port"}, true, "json",
		" with --json: with --json nothing is served: leave out one of them"},
	{[]string{"points", "samples"}, false, "json",
		" without --json: the page asks for what it shows: add --json, or leave it out"},
}

// needRuns refuses a command line without a run.
func needRuns(c *cli.Context) error {
	if !c.Args().Present() {
		return usage("%s: the run is missing: gad %s RUN, where RUN is the --output of gad %s",
			commandName(c), commandName(c), config.StageNames())
	}
	return nil
}

// openBoard opens the runs on the command line.
func (p *program) openBoard(c *cli.Context) (*board.Board, error) {
	_, done := p.console().Busy("reading the runs", 0)
	defer done()
	return board.Open(files(), c.Args().Slice())
}

// document returns the document of the runs on the command line.
func (p *program) document(c *cli.Context) (*board.Document, error) {
	b, err := p.openBoard(c)
	if err != nil {
		return nil, err
	}
	return b.Document(board.Limits{Points: c.Int("points"), Steps: c.Int("samples")})
}
