package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/coach"
	"gad/apps/judge"
)

// maxRules is the largest size of a file of rules, in bytes.
const maxRules = 64 << 10

// coachCommand returns the command gad coach.
func (p *program) coachCommand() *cli.Command {
	return &cli.Command{
		Name:  "coach",
		Usage: "a coach for gad opd --coach: a language model writes notes on each answer, which the teacher reads",
		Description: "Reads the rows that a checker gets from standard input and writes {\"notes\": ...} for each: --coach '\"$GAD\" coach --base-url URL --model M'.\n" +
			"One request for each different answer. What the model has replied is kept in --journal and not asked again: doc/opd.md.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "rules", Usage: "file with the rules by which notes are written, in the place of gad's own"},
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
			return p.runPipe(c, coach.Job(rules))
		},
	}
}

// readRules reads the rules of a coach.
func readRules(path string) (string, error) {
	f, err := files().Open(path)
	if err != nil {
		return "", usage("coach: --rules: %v: give a text file, such as gad coach --print-rules > FILE", err)
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
