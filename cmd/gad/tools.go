package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	create "gad/apps/init"
	"gad/apps/score"
	"gad/apps/session"
	"gad/checkpoint"
	"gad/model"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// initCommand returns the command gad init.
func (p *program) initCommand() *cli.Command {
	return &cli.Command{
		Name:  "init",
		Usage: "make a new model folder: random weights and a BPE tokenizer trained on a text, or some layers of a model",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "config.json with the architecture, the folder that contains it, or a GGUF file"},
			&cli.StringFlag{Name: "corpus", Usage: "text file that the tokenizer is trained on"},
			&cli.StringFlag{Name: "tokenizer", Usage: modelUsage +
				" whose tokenizer the new model has, such as the teacher's, instead of --corpus"},
			&cli.StringFlag{Name: "from",
				Usage: modelUsage +
					" whose layers, widths and tokenizer are taken, instead of --config and --corpus"},
			&cli.StringFlag{Name: "keep-layers", Usage: "layers of --from that are kept, counted from 0: numbers and ranges, such as 0,1,5-9 or 0-28:2"},
			&cli.StringFlag{Name: "output", Usage: "output folder"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the weights"},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("from") || c.IsSet("keep-layers") {
				if err := cmp.Or(initRules.check(c),
					need(c, "from", "keep-layers", "output")); err != nil {
					return err
				}
				return checkpoint.Alone(c.String("output"), func() error {
					return create.Part(p.session(), c.String("from"), c.String("keep-layers"),
						c.String("output"))
				})
			}
			if c.IsSet("tokenizer") {
				if err := cmp.Or(initRules.check(c), need(c, "config", "tokenizer",
					"output")); err != nil {
					return err
				}
				return create.WithTokenizer(p.session(), c.String("config"),
					c.String("tokenizer"), c.String("output"), c.Uint64("seed"))
			}
			if err := need(c, "config", "corpus", "output"); err != nil {
				return err
			}
			return checkpoint.Alone(c.String("output"), func() error {
				return create.Fresh(p.session(), c.String("config"), c.String("corpus"),
					c.String("output"), c.Uint64("seed"))
			})
		},
	}
}

// initRules are the rules between flags of gad init.
var initRules = rules{
	{[]string{"corpus"}, true, "tokenizer",
		" trains a tokenizer, and --tokenizer takes another model's: leave one of them out"},
	{[]string{"config", "corpus", "tokenizer", "seed"}, true, "from",
		" goes with random weights, not with --from: leave one of them out"},
	{[]string{"config", "corpus", "tokenizer", "seed"}, true, "keep-layers",
		" goes with random weights, not with --from: leave one of them out"},
}

// modelUsage describes the values of --model.
const modelUsage = "model folder, or GGUF file"

// sourceOf returns the model that a flag names, with --adapter, on the device of the flags.
func sourceOf(c *cli.Context, flag string) session.Source {
	return session.Source{Path: c.String(flag), Adapter: c.String("adapter"),
		Quant: c.String("weights"), Chat: chatOf(c), Device: deviceFlagsOf(c)}
}

// templateFlags returns the flags about the chat template.
func templateFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "template", DefaultText: "those that the model's folder keeps", Usage: "variables of the chat template: NAME=VALUE with commas between several, such as enable_thinking=false, or a JSON object"},
		&cli.StringFlag{Name: "chat-template", Usage: "chat template in the place of the model's: a file, the name of one that its folder has beside the default, or chatml"},
	}
}

// withTemplate returns a model that is prompted through its chat template.
func withTemplate(s session.Source) session.Source {
	s.Talks = true
	return s
}

// chatOf returns the values of templateFlags.
func chatOf(c *cli.Context) session.ChatOptions {
	return session.ChatOptions{Variables: c.String("template"), Template: c.String("chat-template")}
}

// weightsFlag returns the flag for the storage type of frozen weights.
func weightsFlag() cli.Flag {
	return &cli.StringFlag{Name: "weights", Value: model.Native, Usage: "how the weights are kept: " + model.Native + " (as matrix products read them), or in ggml's q8_0 or q4_0, which take a quarter and an eighth of float32's memory"}
}

// adapterFlag returns the flag for LoRA adapters; weights is the flag of the weights that they are
// for.
func adapterFlag(weights string) cli.Flag {
	return &cli.StringFlag{Name: "adapter",
		Usage: "LoRA adapters for the weights of --" + weights +
			": a folder as peft writes it; without it --" + weights +
			" itself may be such a folder, if it names its base"}
}

// rowFlags returns the flags common to the commands that read a data file's rows.
func rowFlags() []cli.Flag {
	return append(setFlags("data; a row may have prompt_ids and response_ids, or response, instead of teacher_response"),
		withLimits(&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"}, atLeast(0)),
		withLimits(&cli.IntFlag{Name: "max-response-length", Value: 1 << 20,
			DefaultText: "no limit; eval: 1536 or half of the context",
			Usage:       "longest answer, tokens; longer ones are cut"}, atLeast(1)),
		withLimits(&cli.IntFlag{Name: "max-token-len", Value: 8192,
			Usage: "tokens of one forward pass"}, atLeast(1)),
		&cli.BoolFlag{Name: "json",
			Usage: "print the summary as JSON; logprobs and score print JSON lines in any case"},
	)
}

// logprobsCommand returns the command gad logprobs.
func (p *program) logprobsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logprobs",
		Usage: "print log-probabilities of given responses as JSON lines",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			withLimits(&cli.Float64Flag{Name: "temperature", Value: 1,
				Usage: "logits are divided by this"}, positive(math.Inf(1))),
		}, append(rowFlags(), templateFlags()...)...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data")); err != nil {
				return err
			}
			return score.LogProbs(p.session(), scoreOptions(c, "model"), c.Float64("temperature"))
		},
	}
}

// scoreOptions returns the values of the flags that gad logprobs and gad score share.
func scoreOptions(c *cli.Context, flag string) score.Options {
	return score.Options{Source: sourceOf(c, flag), Rows: rowsOf(c),
		MaxResponse: c.Int("max-response-length"), MaxTokens: c.Int("max-token-len")}
}

// scoreCommand returns the command gad score.
func (p *program) scoreCommand() *cli.Command {
	return &cli.Command{
		Name:  "score",
		Usage: "print discriminator scores of given responses as JSON lines",
		Flags: append(
			append(
				[]cli.Flag{&cli.StringFlag{Name: "critic", Usage: "critic folder of a checkpoint"},
					&cli.StringFlag{Name: "student", DefaultText: "the actor of its checkpoint",
						Usage: modelUsage + " whose answers are scored, for a discriminator with critic.head=likelihood"},
					adapterFlag("critic")}, append(rowFlags(), templateFlags()...)...),
			deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "critic", "data")); err != nil {
				return err
			}
			o := scoreOptions(c, "critic")
			o.Student = c.String("student")
			return score.Scores(p.session(), o)
		},
	}
}

// exportCommand returns the command gad export.
func (p *program) exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write the student (or discriminator) of a run, or any model, as a Hugging Face folder, or as a GGUF file for llama.cpp",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "run", Usage: "run folder, or one of its global_step_N folders"},
			&cli.StringFlag{Name: "model", Usage: "instead of --run: a model folder, a GGUF file, or a folder of LoRA adapters, which are added to their base"},
			&cli.StringFlag{Name: "output", Usage: "output folder; with --gguf a file"},
			&cli.StringFlag{Name: "part", Value: "actor", Usage: "actor or critic"},
			&cli.StringFlag{Name: "dtype", Value: "base", Usage: "float32, bfloat16, float16, or base: what the student had before training, of --model what its weights have (of a GGUF file float32)"},
			&cli.BoolFlag{Name: "merge", Usage: "of a run with LoRA: add the adapters to their base and write the whole model; without it the adapters are written, for peft"},
			&cli.StringFlag{Name: "gguf", Usage: "f16, bf16 or q8_0: write the student as one GGUF file of that type, adapters merged"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 1 && !c.IsSet("run") { // gad export RUN, as gad resume RUN
				return usage("export: unexpected argument %q: give it as --run %s",
					c.Args().First(), c.Args().First())
			}
			if err := checkExportFlags(c); err != nil {
				return err
			}
			from, what, write, err := p.exportSource(c)
			if err != nil {
				return err
			}
			var dtype string
			err = checkpoint.Alone(c.String("output"), func() (err error) {
				_, done := p.console().Busy("writing "+c.String("output"), 0)
				defer done()
				dtype, err = write()
				return err
			})
			if err != nil {
				return err
			}
			p.chunksNote(from, what)
			if what != "" {
				from = what + " of " + from
			}
			fmt.Fprintf(p.out, "%s: %s, %s\n", c.String("output"), from, dtype)
			if a, err := model.ReadAdapterConfig(c.String("output")); err == nil {
				fmt.Fprintf(p.err, "gad: note: these are LoRA adapters for %s, to be loaded with peft%s; --merge writes the whole model\n", a.Base, basesNote(a.Base))
			}
			return nil
		},
	}
}

// chunksNote prints a note if the exported student answers in chunks, which neither a folder nor a
// GGUF file tells another program.
func (p *program) chunksNote(from, part string) {
	if part == "actor" {
		from = filepath.Join(from, part)
	}
	if part == "critic" {
		return
	}
	if c, err := saved.ChunksOf(files(), from); err == nil && c.On() {
		fmt.Fprintf(p.err, "gad: note: the student answers in chunks of %d tokens with a carry of %d (rollout.chunk), which other programs do not, and gad only if it is told: gad serve --chunk %d --carry %d --carry-head %d --chunks %d\n",
			c.Size, c.Carry, c.Size, c.Carry, c.Head, c.Most)
	}
}

// basesNote returns why peft cannot load the base of exported adapters; "" if it can.
func basesNote(base string) string {
	if !strings.EqualFold(filepath.Ext(base), ".gguf") {
		return ""
	}
	return ", which cannot read this base (gad export --model writes it as a folder)"
}

// checkExportFlags refuses combinations of flags of gad export.
func checkExportFlags(c *cli.Context) error {
	from := "run"
	if c.IsSet("model") {
		from = "model"
	}
	if err := errors.Join(noArguments(c), need(c, from, "output")); err != nil {
		return err
	}
	if part := c.String("part"); part != "actor" && part != "critic" {
		return usage("export: --part %q: must be actor or critic", part)
	}
	if from == "model" {
		switch {
		case c.IsSet("run"):
			return usage("export: --run and --model: give one of them")
		case c.IsSet("part"):
			return usage("export: --part %s with --model: is a part of a run: leave it out",
				c.String("part"))
		case c.IsSet("merge"):
			return usage("export: --merge with --model: adapters are added to their base in any case: leave it out")
		}
	}
	if c.IsSet("gguf") {
		return checkGGUFFlags(c)
	}
	if strings.EqualFold(filepath.Ext(c.String("output")), ".gguf") {
		return usage("export: --output %s: a GGUF file needs its type: add --gguf q8_0, f16 or bf16; or name a folder", c.String("output"))
	}
	return nil
}

// exportSource returns the folder and the part of it to export, and the function that writes it.
// write returns the type of the weights written.
func (p *program) exportSource(
	c *cli.Context) (from, part string, write func() (string, error), err error) {
	to, kind := c.String("output"), c.String("gguf")
	if from = c.String("model"); from != "" {
		if err := saved.CheckModel(files(), from); err != nil {
			return "", "", nil, err
		}
		if kind != "" {
			return from, "",
				func() (string, error) { return export.ModelGGUF(files(), from, to, kind) }, nil
		}
		return from, "",
			func() (string, error) { return export.Model(files(), from, to, c.String("dtype")) },
			nil
	}
	dir, notes, err := saved.Find(files(), c.String("run"))
	if err != nil {
		return "", "", nil, err
	}
	for _, n := range notes {
		fmt.Fprintln(p.err, "gad: warning: "+n)
	}
	part = c.String("part")
	if kind != "" {
		return dir, part,
			func() (string, error) { return export.GGUF(files(), dir, to, kind) }, nil
	}
	if adapters := filepath.Join(dir, part); c.IsSet("dtype") && c.String("dtype") != "float32" &&
		!c.Bool("merge") && model.IsAdapter(adapters) {
		return "", "", nil, usage("export: --dtype %s: %s are adapters, which are written in float32: leave it out, or add --merge", c.String("dtype"), adapters)
	}
	copyOf := export.Part
	if c.Bool("merge") {
		copyOf = export.MergedPart
	}
	return dir, part,
		func() (string, error) { return copyOf(files(), dir, part, to, c.String("dtype")) }, nil
}

// checkGGUFFlags refuses flags of gad export that have no meaning for a GGUF file, and values that
// GGUF cannot have.
func checkGGUFFlags(c *cli.Context) error {
	switch {
	case c.String("part") != "actor":
		return usage("export: --part %s with --gguf: llama.cpp has no use for a discriminator: leave out --gguf", c.String("part"))
	case c.IsSet("dtype"):
		return usage("export: --dtype %s with --gguf %s: the type of a GGUF file is --gguf's: leave out --dtype", c.String("dtype"), c.String("gguf"))
	}
	return export.CheckGGUF(c.String("output"), c.String("gguf"))
}
