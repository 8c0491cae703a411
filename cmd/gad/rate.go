package main

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/rate"
)

// rateCommand returns the command gad data rate.
func (p *program) rateCommand() *cli.Command {
	return &cli.Command{
		Name:  "rate",
		Usage: "rate each row by a student's answers, a discriminator and a checker: columns for data.where, and answers for gad sft --objective ranking",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage + ": the student that answers"},
			adapterFlag("model"),
			&cli.StringFlag{Name: "critic",
				Usage: "critic folder of a checkpoint: d_mean, d_spread and d_gap"},
			&cli.StringFlag{Name: "checker",
				Usage: "program that scores answers, run by sh -c (doc/the-game.md): right and check"},
			withLimits(&cli.IntFlag{Name: "checker-timeout", Value: 60,
				Usage: "time limit for one call of the checker, in seconds"},
				oneTo(1e6, " seconds")),
			withLimits(&cli.Float64Flag{Name: "right-at", Value: 1,
				Usage: "with --checker: the score from which on an answer is right"},
				floatRange(-1e9, 1e9)),
			withLimits(&cli.IntFlag{Name: "n", Value: 8, Usage: "answers to each row"},
				oneTo(1<<12, "")),
			withLimits(&cli.IntFlag{Name: "max-new-tokens", Value: rate.DefaultMaxNew,
				DefaultText: "1536, and at most half of the model's context",
				Usage:       "longest answer, tokens"}, atLeast(1)),
			withLimits(&cli.IntFlag{Name: "max-token-len", Value: 8192,
				Usage: "tokens of one forward pass"}, atLeast(1)),
			withLimits(&cli.Float64Flag{Name: "temperature", Value: 1,
				Usage: "sampling temperature"}, positive(math.Inf(1))),
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling"},
			&cli.BoolFlag{Name: "keep-answers",
				Usage: "keep the answers with their scores too, for gad sft --objective ranking"},
			&cli.StringFlag{Name: "output", Usage: "output file, which data.ratings names. After an interruption the same command resumes"},
		}, setFlags("rows to rate"), deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data", "output")); err != nil {
				return err
			}
			if err := rateRules.check(c); err != nil {
				return err
			}
			if c.String("critic") == "" && c.String("checker") == "" {
				for _, name := range []string{"keep-answers", "n"} {
					if c.IsSet(name) {
						return usage("data rate: --%s: nobody scores the answers: add --critic DIR or --checker CMD", name)
					}
				}
			}
			o := rate.Options{Source: sourceOf(c, "model"), Critic: c.String("critic"),
				Checker:        c.String("checker"),
				CheckerTimeout: time.Duration(c.Int("checker-timeout")) * time.Second,
				RightAt:        c.Float64("right-at"), N: c.Int("n"),
				MaxTokens: c.Int("max-token-len"), Seed: c.Uint64("seed"),
				KeepAnswers: c.Bool("keep-answers")}
			o.Temperature, o.TopP = c.Float64("temperature"), 1
			if c.IsSet("max-new-tokens") {
				o.MaxNew = c.Int("max-new-tokens")
			}
			return rate.Rate(p.session(), o, rowsOf(c), c.String("output"))
		},
	}
}

// rateRules are the rules between flags of gad data rate.
var rateRules = rules{
	{[]string{"right-at", "checker-timeout"}, false, "checker", ": is for --checker: add that"},
}
