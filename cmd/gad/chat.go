package main

import (
	"errors"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"gad/apps/chat"
	"gad/apps/generate"
)

// chatCommand returns the command gad chat.
func (p *program) chatCommand() *cli.Command {
	return &cli.Command{
		Name:  "chat",
		Usage: "talk with a model in the terminal",
		Description: "A line is a message; several lines are one between \"\"\" and \"\"\", or pasted. /system TEXT sets the system message, /reset begins a new conversation, /help lists the commands, /exit or Ctrl-D ends the program, Ctrl-C ends the answer.\n" +
			"Standard input may be a pipe: every line of it is a message, and the exit status is 1 if one got no answer.",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			weightsFlag(),
			&cli.StringFlag{Name: "system", Usage: "system message"},
			withLimits(&cli.IntFlag{Name: "max-new-tokens", Value: generate.DefaultMaxNew,
				DefaultText: "1536, or what the model's context leaves after the conversation",
				Usage:       "longest answer, tokens"}, atLeast(1)),
		}, samplingFlags(), chunkFlags(), []cli.Flag{
			&cli.Uint64Flag{Name: "seed", Value: 1,
				Usage: "seed of sampling; equal seeds and messages give equal answers"},
		}, templateFlags(), deviceFlags()),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model")); err != nil {
				return err
			}
			o := chat.Options{Source: withTemplate(sourceOf(c, "model")), Sampling: sampling(c),
				System: c.String("system"), MaxNew: c.Int("max-new-tokens"),
				Seed:        c.Uint64("seed"),
				StopSignals: stopSignals, Exit: func() { os.Exit(exitStopped) }}
			asked, err := chunksOf(c)
			if err != nil {
				return err
			}
			s := p.session()
			if o.Chunks, err = s.AnswerChunks("chat", c.String("model"), asked); err != nil {
				return err
			}
			if most := o.Chunks.Longest(); o.Chunks.On() &&
				(!c.IsSet("max-new-tokens") || o.MaxNew > most) {
				o.MaxNew = most
			}
			return chat.Run(s, o)
		},
	}
}
