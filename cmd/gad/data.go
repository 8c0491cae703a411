package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/data"
	"gad/internal/report"
	"gad/trainer"
)

// setFlags name a data set and say how its rows are read.
func setFlags(what string) []cli.Flag {
	cols := data.DefaultColumns()
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "data", Usage: what + ": file, folder or quoted pattern such as 'shards/*.arrow'; may be given several times"},
		&cli.StringFlag{Name: "split", Usage: "which split, if a folder has several"},
		&cli.StringFlag{Name: "format", Value: data.FormatAuto, Usage: "format of the rows: " + strings.Join(data.RowFormats, ", ")},
		&cli.StringFlag{Name: "content-key", Value: cols.Content, Usage: "column with the conversation or the prompt"},
		&cli.StringFlag{Name: "teacher-key", Value: cols.Teacher, Usage: "column with the teacher's answer"},
	}
}

// openSet opens the files under the flags of setFlags.
func (p *program) openSet(c *cli.Context, paths []string, split string) (*data.Set, error) {
	cols := data.DefaultColumns()
	cols.Content, cols.Teacher = c.String("content-key"), c.String("teacher-key")
	if f := c.String("format"); !slices.Contains(data.RowFormats, f) {
		return nil, usage("%s: --format %q: use %s", typed(c), f, strings.Join(data.RowFormats, ", "))
	}
	return data.OpenFiles(paths, data.Options{Columns: cols, Format: c.String("format"), Split: split, Stages: p.console().Busy})
}

// namedData are the files of --data as messages name them.
func namedData(c *cli.Context) string { return strings.Join(c.StringSlice("data"), " ") }

// dataCommand is gad data inspect|validate|convert|split|collect.
func (p *program) dataCommand() *cli.Command {
	columns := setFlags("data")
	open := func(c *cli.Context) (*data.Set, error) {
		if err := errors.Join(noArguments(c), need(c, "data")); err != nil {
			return nil, err
		}
		return p.openSet(c, c.StringSlice("data"), c.String("split"))
	}
	limits := trainer.DefaultConfig().Data
	return &cli.Command{
		Name:   "data",
		Usage:  "inspect, validate, convert or split a data set, or collect a teacher's answers for one",
		Action: func(c *cli.Context) error { return noSubcommand(c, "inspect, validate, convert, split or collect") },
		Subcommands: []*cli.Command{
			{
				Name: "inspect", Usage: "format, columns, size and a first row", Flags: columns,
				Action: func(c *cli.Context) error {
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					_, err = fmt.Fprintln(p.out, strings.TrimRight(data.Inspect(set).String(), "\n"))
					return err
				},
			},
			{
				Name: "validate", Usage: "find rows that training refuses, and measure lengths",
				Flags: append([]cli.Flag{
					&cli.StringFlag{Name: "model", Usage: modelUsage + " whose tokenizer measures lengths; without it they are not measured in tokens"},
					&cli.IntFlag{Name: "max-prompt-length", Value: limits.MaxPrompt, Usage: "tokens"},
					&cli.IntFlag{Name: "max-response-length", Value: limits.MaxResponse, Usage: "tokens, end token included"},
					&cli.StringSliceFlag{Name: "val-data", Usage: "validation data: counts its rows that are also training rows"},
					&cli.StringFlag{Name: "val-split", Usage: "which split of --val-data"},
					&cli.BoolFlag{Name: "json", Usage: "print the report as JSON"},
				}, columns...),
				Action: func(c *cli.Context) error {
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					var enc data.Encoder
					if dir := c.String("model"); dir != "" {
						if err := trainer.CheckModelFolder(files(), dir); err != nil {
							return err
						}
						tok, err := trainer.LoadTokenizer(dir)
						if err != nil {
							return err
						}
						enc = trainer.Encoding(tok)
					}
					report, err := data.Validate(set, enc, data.Limits{MaxPrompt: c.Int("max-prompt-length"), MaxResponse: c.Int("max-response-length")})
					if err != nil {
						return err
					}
					if c.IsSet("val-data") {
						if err := p.compare(c, set, report); err != nil {
							return err
						}
					}
					if c.Bool("json") {
						err = printJSON(p.out, report)
					} else {
						_, err = fmt.Fprintln(p.out, strings.TrimRight(report.String(), "\n"))
					}
					if err == nil && report.Errors > 0 {
						err = fmt.Errorf("data: %s: training refuses rows (errors: %d): correct or remove them", namedData(c), report.Errors)
					}
					return err
				},
			},
			{
				Name: "convert", Usage: "write the set in another file format, rows as messages; the extension of --output says which: .arrow, .arrows, .parquet or .jsonl",
				Flags: append([]cli.Flag{&cli.StringFlag{Name: "output", Usage: "output file"}}, columns...),
				Action: func(c *cli.Context) error {
					if err := need(c, "data", "output"); err != nil {
						return err
					}
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					if err := data.Convert(set, c.String("output")); err != nil {
						return err
					}
					fmt.Fprintf(p.out, "%s: %s\n", c.String("output"), report.Count(set.Len(), "row"))
					p.noteSet(set)
					return nil
				},
			},
			{
				Name: "split", Usage: "split a data set into two by a shuffle with a seed; equal prompts stay together",
				Flags: append([]cli.Flag{
					&cli.Float64Flag{Name: "fraction", Value: 0.95, Usage: "share of the first part"},
					&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the shuffle"},
					&cli.StringFlag{Name: "first", Usage: "output file of the first part"},
					&cli.StringFlag{Name: "second", Usage: "output file of the second part"},
				}, columns...),
				Action: func(c *cli.Context) error {
					if err := need(c, "data", "first", "second"); err != nil {
						return err
					}
					if f := c.Float64("fraction"); !(f > 0 && f < 1) {
						return usage("data split: --fraction %g: must be above 0 and below 1", f)
					}
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					a, b, err := data.Split(set, c.Float64("fraction"), c.Uint64("seed"), c.String("first"), c.String("second"))
					if err != nil {
						return err
					}
					fmt.Fprintf(p.out, "%s: %s\n%s: %s\n", c.String("first"), report.Count(a, "row"), c.String("second"), report.Count(b, "row"))
					p.noteSet(set)
					return nil
				},
			},
			p.collectCommand(),
		},
	}
}

// compare notes which rows of --val-data are rows of the set too.
func (p *program) compare(c *cli.Context, set *data.Set, report *data.Report) error {
	val, err := p.openSet(c, c.StringSlice("val-data"), c.String("val-split"))
	if err != nil {
		return err
	}
	defer val.Close()
	prompts, rows, err := data.Shared(set, val)
	if err != nil {
		return err
	}
	report.Notes = append(report.Notes, fmt.Sprintf("%d of %d validation rows have a prompt that is also in the training data, %d of them also the same answer", prompts, val.Len(), rows))
	return nil
}

// noteSet prints what a copy of the set does not carry, and what is odd about it.
func (p *program) noteSet(set *data.Set) {
	if left := set.Unread(); len(left) > 0 {
		fmt.Fprintf(p.out, "columns left out: %s\n", strings.Join(left, ", "))
	}
	for _, note := range slices.Concat(set.Notes(), set.Warnings()) {
		fmt.Fprintf(p.out, "note: %s\n", note)
	}
}
