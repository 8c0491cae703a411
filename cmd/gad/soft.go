package main

import (
	"errors"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/data/score"
	"gad/data"
	"gad/internal/fault"
	"gad/trainer/scoring"
)

// softCommand returns the command gad data score.
func (p *program) softCommand() *cli.Command {
	return &cli.Command{
		Name:  "score",
		Usage: "add the log-probabilities that a teacher, loaded or behind a server, gives the tokens of the answers: soft labels for gad sft. After an interruption the same command resumes",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "teacher", Usage: modelUsage + ": the teacher, which reads the rows by its own chat template; its tokenizer may be another than the student's. With --teacher-url a folder with its tokenizer and chat template, which need no weights beside them"},
			&cli.StringFlag{Name: "teacher-url", Usage: "server that scores the answers in the place of a teacher that is loaded: vLLM, SGLang or gad serve, such as http://127.0.0.1:8000/v1. Its key is in " + teacherKey},
			&cli.BoolFlag{Name: "insecure-http",
				Usage: "allow http:// to another machine with --teacher-url"},
			adapterFlag("teacher"),
			weightsFlag(),
			withLimits(&cli.IntFlag{Name: "top-logprobs", Value: 20,
				Usage: "likely tokens that are kept at each place, beside the answer's own"},
				oneTo(128, "")),
			&cli.StringFlag{Name: "system",
				Usage: "system message that the teacher reads in the place of the row's"},
			&cli.StringFlag{Name: "teacher-prompt-key", Usage: "column with a prompt, a text or messages, that the teacher reads in the place of the row's, where a row has one (as teacher.prompt_key)"},
			withLimits(&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"}, atLeast(0)),
			withLimits(&cli.IntFlag{Name: "max-token-len", Value: 8192,
				Usage: "tokens of one forward pass"}, atLeast(1)),
			&cli.StringFlag{Name: "output", Usage: "output file: .arrow, .arrows, .parquet or .jsonl: the rows with the column teacher_logprobs"},
		}, setFlags("rows with the teacher's answers"), templateFlags(), deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "teacher", "data", "output")); err != nil {
				return err
			}
			if err := data.CheckSuffix(c.String("output")); err != nil {
				return fault.As(fault.ErrUsage, err)
			}
			o := score.Options{Source: sourceOf(c, "teacher"), Top: c.Int("top-logprobs"),
				System: c.String("system"), MaxTokens: c.Int("max-token-len")}
			if err := setServer(c, &o); err != nil {
				return err
			}
			rows := rowsOf(c)
			rows.TeacherPrompt = c.String("teacher-prompt-key")
			return score.Score(p.session(), o, rows, c.String("output"))
		},
	}
}

// loadedOnly lists the flags of gad data score that have no meaning with a server.
var loadedOnly = []string{"adapter", "weights", "max-token-len", "device", "precision", "threads"}

// setServer sets the server of o, if one is given.
func setServer(c *cli.Context, o *score.Options) (err error) {
	if !c.IsSet("teacher-url") {
		if c.IsSet("insecure-http") {
			return usage("data score: --insecure-http: is for --teacher-url: add that")
		}
		return nil
	}
	for _, name := range loadedOnly {
		if c.IsSet(name) {
			return usage("data score: --%s: is for a teacher that is loaded: leave it out with --teacher-url", name)
		}
	}
	o.Server, err = scoringServer(scoring.Options{URL: c.String("teacher-url"),
		InsecureHTTP: c.Bool("insecure-http"),
		Names: scoring.Names{URL: "data score: --teacher-url", Insecure: "--insecure-http",
			Top: "--top-logprobs", Again: ": no row that has its scores is asked for again"}})
	return err
}
