package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/coach"
	"gad/apps/judge"
	"gad/apps/judge/pipe"
	"gad/apps/rubric"
	"gad/internal/endpoint"
)

// rubricCommand returns the command gad rubric.
func (p *program) rubricCommand() *cli.Command {
	return &cli.Command{
		Name:  "rubric",
		Usage: "a checker for --checker: a language model writes a rubric for each prompt and grades the answers by it",
		Description: "Reads the rows that a checker gets from standard input and writes a score from 0 to 1 for each, or null: --checker '\"$GAD\" rubric --base-url URL --model M'.\n" +
			"Two requests a prompt. What the model has replied is kept in --journal and not asked again: doc/rubrics.md.",
		Flags: pipeFlags("the model that writes rubrics and grades, as the endpoint calls it",
			"rubrics"),
		Action: func(c *cli.Context) error { return runPipe(p, c, rubric.Job) },
	}
}

// pipeFlags returns the flags of a program that has a judge answer rows; model is the help of
// --model, journal the default of --journal.
func pipeFlags(model, journal string) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "model", Usage: model},
		&cli.StringFlag{Name: "journal", Value: journal,
			Usage: "folder that keeps every reply; what is in it is not asked again"},
		withLimits(&cli.Float64Flag{Name: "temperature", Usage: "sampling temperature of the model"},
			floatRange(0, 2)),
		withLimits(&cli.IntFlag{Name: "max-tokens", Value: 2048,
			Usage: "longest reply, tokens; more for a model that reasons"}, oneTo(1<<20, "")),
		&cli.StringFlag{Name: "extra",
			Usage: `more fields of a request, as JSON; null leaves one out: {"max_completion_tokens": 4096, "max_tokens": null, "temperature": null}`},
		&cli.StringFlag{Name: "prices",
			Usage: `file with prices in USD per million tokens: {"MODEL": {"input": 2.5, "output": 10}}`},
		&cli.BoolFlag{Name: "spent",
			Usage: "read no rows: print what the replies in --journal have taken, and with --model and --prices what they cost"},
	}, endpointFlags()...)
}

// runPipe has a judge answer the rows on standard input, by the flags of pipeFlags.
func runPipe(p *program, c *cli.Context, job pipe.Job) error {
	if err := noArguments(c); err != nil {
		return err
	}
	o := pipe.Options{Job: job, Model: c.String("model"), Dir: c.String("journal"),
		Temperature: c.Float64("temperature"), MaxTokens: c.Int("max-tokens")}
	spent := c.Bool("spent")
	var err error
	if o.Extra, err = extraFields(c, "extra"); err != nil {
		return err
	}
	if !spent || c.IsSet("prices") {
		if err := need(c, "model"); err != nil {
			return err
		}
	}
	if err := need(c, "journal"); c.IsSet("journal") && err != nil {
		return err
	}
	if path := c.String("prices"); path != "" {
		price, err := endpoint.ReadPrice(files(), path, o.Model)
		if err != nil {
			return err
		}
		o.Price = &price
	}
	if spent {
		return pipe.PrintCost(p.session(), o)
	}
	if err := need(c, "base-url"); err != nil {
		return err
	}
	if o.Endpoint, err = p.endpointOptions(c); err != nil {
		return err
	}
	return pipe.Run(p.session(), o, os.Stdin)
}

// extraFields returns the fields of a request in a flag, a JSON object.
func extraFields(c *cli.Context, flag string) (fields map[string]any, err error) {
	text := c.String(flag)
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, usage(`%s: --%s: must be one JSON object, such as {"max_completion_tokens": 4096, "max_tokens": null}`, commandName(c), flag)
	}
	for _, name := range []string{"model", "messages", "n", "stream"} {
		if _, ok := fields[name]; ok {
			return nil, usage("%s: --%s: %q cannot be set here: gad sets it", commandName(c), flag, name)
		}
	}
	return fields, nil
}

// maxRules is the largest size of a file of rules, in bytes.
const maxRules = 64 << 10

// coachCommand returns the command gad coach.
func coachCommand(p *program) *cli.Command {
	return &cli.Command{
		Name:  "coach",
		Usage: "a coach for gad opd --coach: a language model writes notes on each answer, which the teacher reads",
		Description: "Reads the rows that a checker gets from standard input and writes {\"notes\": ...} for each: --coach '\"$GAD\" coach --base-url URL --model M'.\n" +
			"One request for each different answer. What the model has replied is kept in --journal and not asked again: doc/opd.md.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "rules",
				Usage: "file with the rules by which notes are written, in the place of gad's own"},
			&cli.BoolFlag{Name: "print-rules", Usage: "read no rows: print gad's own rules, to edit them"},
		}, pipeFlags("the model that writes notes, as the endpoint calls it", "notes")...),
		Action: func(c *cli.Context) error {
			if c.Bool("print-rules") {
				fmt.Fprintln(p.out, judge.NotesRules)
				return nil
			}
			rules := judge.NotesRules
			if path := c.String("rules"); path != "" {
				var err error
				if rules, err = readRules(path); err != nil {
					return err
				}
			}
			return runPipe(p, c, coach.Job(rules))
		},
	}
}

// readRules reads the rules of a coach.
func readRules(path string) (string, error) {
	f, err := files().Open(path)
	if err != nil {
		return "", usage("coach: --rules: %v: give a text file, such as gad coach --print-rules > FILE",
			err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRules+1))
	switch text := strings.TrimSpace(string(raw)); {
	case err != nil:
		return "", usage("coach: --rules: %s: %v", path, err)
	case text == "":
		return "", usage("coach: --rules: %s: is empty: gad coach --print-rules prints gad's own", path)
	case len(raw) > maxRules:
		return "", usage("coach: --rules: %s: is larger than %d bytes: shorten it", path, maxRules)
	default:
		return strings.ToValidUTF8(text, "\uFFFD"), nil
	}
}
