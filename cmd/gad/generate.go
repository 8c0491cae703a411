package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/generate"
	"gad/apps/session"
	"gad/data"
	"gad/internal/compute"
	"gad/trainer/config"
)

// generateCommand returns the command gad generate.
func (p *program) generateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "answer a prompt, or every prompt of a data file, or play an episode in an environment",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			weightsFlag(),
			&cli.StringFlag{Name: "prompt",
				Usage: "user message, put into the chat template; - reads it from standard input"},
			&cli.StringFlag{Name: "system", Usage: "system message before --prompt"},
			&cli.BoolFlag{Name: "raw", Usage: "use --prompt as it is, without a chat template"},
			&cli.StringFlag{Name: "output", Usage: "output file for --data: one JSON line per answer. After an interruption the same command resumes"},
			withLimits(&cli.IntFlag{Name: "limit", Usage: "rows of --data to answer; 0 is all"},
				atLeast(0)),
			withLimits(&cli.IntFlag{Name: "n", Value: 1, Usage: "answers per prompt"},
				oneTo(1<<16-1, "")),
			withLimits(&cli.IntFlag{Name: "max-new-tokens", Value: generate.DefaultMaxNew, DefaultText: "1536, or what the model's context leaves after the prompt; with --data at most half of the context", Usage: "longest answer, tokens"}, atLeast(1)),
		}, templateFlags(), samplingFlags(), chunkFlags(), []cli.Flag{
			&cli.Uint64Flag{Name: "seed", Value: 1,
				Usage: "seed of sampling; equal seeds give equal answers"},
			&cli.BoolFlag{Name: "stream", DefaultText: "on a terminal",
				Usage: "print the answer as it is decoded"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object for each answer to --prompt, with token ids and log-probabilities"},
		}, setFlags("conversations to answer, instead of --prompt"), environmentFlags(), []cli.Flag{
			withLimits(&cli.IntFlag{Name: "row", Usage: "with --env and --data: the row that the episode is about; without --data the environment begins by itself"}, atLeast(0)),
			withLimits(&cli.IntFlag{Name: "max-prompt-length",
				DefaultText: fmt.Sprintf("%d or what the context leaves",
					config.Default().Data.MaxPrompt),
				Usage: "with --env: longest first context, tokens"}, atLeast(1)),
		}, deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := checkGenerate(c); err != nil {
				return err
			}
			o := generate.Options{Source: sourceOf(c, "model"), Sampling: sampling(c),
				N: c.Int("n"), Seed: c.Uint64("seed")}
			o.Talks = c.IsSet("prompt") && !c.Bool("raw")
			if c.IsSet("max-new-tokens") {
				o.MaxNew = c.Int("max-new-tokens")
			}
			var err error
			if o.Chunks, err = chunksOf(c); err != nil {
				return err
			}
			if c.String("env") != "" {
				a := generate.Acting{Options: playOptions(c), Rows: rowsOf(c), Row: c.Int("row"),
					JSON: c.Bool("json")}
				a.Rows.Turns, a.Rows.All, a.Turn = data.TurnsAll, true, o.MaxNew
				return generate.Act(p.session(), o, a)
			}
			if c.IsSet("data") {
				return generate.AnswerData(p.session(), o, rowsOf(c), c.String("output"))
			}
			prompt := generate.Prompt{Text: c.String("prompt"), System: c.String("system"),
				Raw: c.Bool("raw"), JSON: c.Bool("json"), Stream: c.Bool("stream")}
			if !c.IsSet("stream") {
				prompt.Stream = o.N == 1 && !prompt.JSON && session.Terminal(p.out)
			}
			if prompt.Text == "-" {
				if prompt.Text, err = generate.ReadPrompt(os.Stdin); err != nil {
					return err
				}
			}
			return generate.Answer(p.session(), o, prompt)
		},
	}
}

// generateRules are the rules between flags of gad generate.
var generateRules = rules{
	{[]string{"prompt"}, true, "data", " and --data: give one of them"},
	{[]string{"system", "raw", "stream", "json"}, true, "data",
		" is for --prompt, not for --data: leave it out"},
	{[]string{"output", "limit", "split", "format", "content-key", "teacher-key"}, false, "data",
		" is for --data, not for --prompt: leave it out"},
	{[]string{"system"}, true, "raw",
		" is part of the chat template, which --raw leaves out: write it into --prompt"},
}

// actingRules are the rules between flags of gad generate --env.
var actingRules = rules{
	{[]string{"prompt", "system", "raw", "stream", "output", "limit", "turns", "chunk"}, true,
		"env",
		" is for single answers, not for --env: leave it out"},
	{[]string{"row", "split", "format", "content-key", "teacher-key"}, false, "data",
		": needs --data, the rows"},
}

// checkGenerate refuses combinations of flags of gad generate.
func checkGenerate(c *cli.Context) error {
	if err := environmentRules("max-new-tokens", "row", "max-prompt-length").check(c); err != nil {
		return err
	}
	if err := errors.Join(noArguments(c), need(c, "model")); err != nil {
		return err
	}
	if c.String("env") != "" {
		return actingRules.check(c)
	}
	from := "prompt"
	if c.IsSet("data") {
		from = "data"
	}
	if err := need(c, from); err != nil {
		return err
	}
	if from == "data" && c.String("output") == "" {
		return usage("generate: --data needs --output FILE, where the answers go")
	}
	if err := generateRules.check(c); err != nil {
		return err
	}
	if c.Bool("stream") && (c.Int("n") > 1 || c.Bool("json")) {
		return usage("generate: --stream prints one answer as text: leave out -n and --json")
	}
	return nil
}

// samplingFlags returns the flags about sampling.
func samplingFlags() []cli.Flag {
	return []cli.Flag{
		withLimits(&cli.Float64Flag{Name: "temperature", Value: 0.8,
			Usage: "sampling temperature; 0 is greedy"}, floatRange(0, 1e6)),
		withLimits(&cli.Float64Flag{Name: "top-p", Value: 1,
			Usage: "keep the smallest set of tokens with this probability"},
			nonzero("must be above 0; 1 keeps all"), floatRange(0, 1)),
		withLimits(&cli.Float64Flag{Name: "min-p",
			Usage: "drop tokens less probable than this share of the best"}, floatRange(0, 1)),
		withLimits(&cli.IntFlag{Name: "top-k", Usage: "keep the k most probable tokens; 0 is all"},
			atLeast(0)),
	}
}

// sampling returns the values of samplingFlags.
func sampling(c *cli.Context) compute.Sampling {
	return compute.Sampling{Temperature: c.Float64("temperature"), TopK: c.Int("top-k"),
		TopP: c.Float64("top-p"), MinP: c.Float64("min-p")}
}
