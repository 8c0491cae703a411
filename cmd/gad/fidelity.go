package main

import (
	"errors"
	"math"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/fidelity"
)

// fidelityCommand returns the command gad fidelity.
func (p *program) fidelityCommand() *cli.Command {
	return &cli.Command{
		Name:  "fidelity",
		Usage: "measure how well a discriminator orders a student's own answers to one prompt, against a teacher whose weights are known",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "critic", Usage: "run, checkpoint or critic folder; repeat it for each discriminator to compare on the same answers; without it only the rewards that need none are measured"},
			&cli.StringFlag{Name: "model", DefaultText: "the actor beside the first --critic",
				Usage: modelUsage + ": the student that answers"},
			&cli.StringFlag{Name: "teacher", Usage: modelUsage + " with the student's tokenizer"},
			withLimits(&cli.IntFlag{Name: "n", Value: 8, Usage: "answers to each prompt"},
				floatRange(2, 1<<12)),
			withLimits(&cli.Float64Flag{Name: "temperature",
				DefaultText: "rollout.temperature of the run of the first --critic, or 1",
				Usage:       "sampling temperature of the answers"}, positive(math.Inf(1))),
			withLimits(&cli.Float64Flag{Name: "teacher-temperature", Value: 1,
				Usage: "temperature at which the teacher's answers are sampled"},
				positive(math.Inf(1))),
			&cli.StringFlag{Name: "teacher-system",
				Usage: "system message that the teacher reads and the student does not"},
			withLimits(&cli.IntFlag{Name: "max-prompt-length", DefaultText: "as in the run",
				Usage: "rows with a longer prompt are left out, tokens"}, atLeast(1)),
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling and of the intervals"},
			&cli.StringFlag{Name: "output",
				Usage: "output file: every answer with its log-ratio and its scores, JSON lines"},
		}, rowFlags(), deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "teacher", "data")); err != nil {
				return err
			}
			o := fidelity.Options{Critics: c.StringSlice("critic"), Student: c.String("model"),
				Teacher: c.String("teacher"), Rows: rowsOf(c), N: c.Int("n"),
				Temperature:        c.Float64("temperature"),
				TeacherTemperature: c.Float64("teacher-temperature"),
				System:             c.String("teacher-system"), MaxPrompt: c.Int("max-prompt-length"),
				MaxTokens: c.Int("max-token-len"), Seed: c.Uint64("seed"), JSON: c.Bool("json"),
				Output: c.String("output"), Device: deviceFlagsOf(c)}
			if c.IsSet("max-response-length") {
				o.MaxResponse = c.Int("max-response-length")
			}
			return fidelity.Run(p.session(), o)
		},
	}
}
