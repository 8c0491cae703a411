package main

import (
	"errors"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/soft"
	"gad/data"
	"gad/internal/fault"
)

// softCommand is gad data score.
func (p *program) softCommand() *cli.Command {
	return &cli.Command{
		Name:  "score",
		Usage: "add the log-probabilities that a teacher with weights gives the tokens of the answers: soft labels for gad sft. After an interruption the same command resumes",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "teacher", Usage: modelUsage + ": the teacher, which reads the rows by its own chat template; its tokenizer may be another than the student's"},
			adapterFlag("teacher"),
			weightsFlag(),
			within(&cli.IntFlag{Name: "top-logprobs", Value: 20,
				Usage: "likely tokens that are kept at each place, beside the answer's own"},
				oneTo(128, "")),
			&cli.StringFlag{Name: "system",
				Usage: "system message that the teacher reads in the place of the row's"},
			within(&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"}, atLeast(0)),
			within(&cli.IntFlag{Name: "max-token-len", Value: 8192,
				Usage: "tokens of one forward pass"}, atLeast(1)),
			&cli.StringFlag{Name: "output", Usage: "output file: .arrow, .arrows, .parquet or .jsonl: the rows with the column teacher_logprobs"},
		}, setFlags("rows with the teacher's answers"), deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "teacher", "data", "output")); err != nil {
				return err
			}
			if err := data.CheckSuffix(c.String("output")); err != nil {
				return fault.As(fault.ErrUsage, err)
			}
			return soft.Score(p.session(), soft.Options{Source: sourceOf(c, "teacher"),
				Top: c.Int("top-logprobs"), System: c.String("system"),
				MaxTokens: c.Int("max-token-len")}, rowsOf(c), c.String("output"))
		},
	}
}
