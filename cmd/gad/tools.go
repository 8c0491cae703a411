package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"gad/apps/session"
	"gad/device"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
)

const maxCorpusBytes = 1 << 30

// initCommand is gad init.
func (p *program) initCommand() *cli.Command {
	return &cli.Command{
		Name:  "init",
		Usage: "make a new model folder: random weights and a BPE tokenizer trained on a text, or some layers of a model",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "config.json with the architecture, the folder that contains it, or a GGUF file"},
			&cli.StringFlag{Name: "corpus", Usage: "text file that the tokenizer is trained on"},
			&cli.StringFlag{Name: "from", Usage: modelUsage + " whose layers, widths and tokenizer are taken, instead of --config and --corpus"},
			&cli.StringFlag{Name: "keep-layers", Usage: "layers of --from that are kept, counted from 0: numbers and ranges, such as 0,1,5-9 or 0-28:2"},
			&cli.StringFlag{Name: "output", Usage: "output folder"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the weights"},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("from") || c.IsSet("keep-layers") {
				return p.initFrom(c)
			}
			return p.initNew(c)
		},
	}
}

// utf8Reader refuses what is not UTF-8: a tokenizer that learned bytes of Latin-1 would
// fit no text.
type utf8Reader struct {
	r    io.Reader
	name string
	at   int64  // bytes before part
	part []byte // of a character that the last Read ended in
}

func (u *utf8Reader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	text := append(u.part, p[:n]...)
	for len(text) > 0 && (utf8.FullRune(text) || err == io.EOF) {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			return 0, fmt.Errorf("%s: byte %d is not UTF-8: convert it first, such as with: iconv -f latin1 -t utf-8", u.name, u.at)
		}
		text, u.at = text[size:], u.at+int64(size)
	}
	u.part = bytes.Clone(text)
	return n, err
}

// initNew makes a model with random weights.
func (p *program) initNew(c *cli.Context) error {
	if err := need(c, "config", "corpus", "output"); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(c.String("config"))
	if err != nil {
		return err
	}
	f, err := os.Open(c.String("corpus"))
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	_, done := p.console().Busy("training the tokenizer", 0)
	tok, err := tokenizer.Train(&utf8Reader{r: io.LimitReader(f, maxCorpusBytes), name: c.String("corpus")}, tokenizer.TrainOptions{VocabSize: cfg.Vocab})
	done()
	if err != nil {
		return err
	}
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	if cfg, err = withTokens(cfg, tok); err != nil {
		return err
	}
	_, done = p.console().Busy("drawing and writing weights", 0)
	defer done()
	m, err := model.New(be, cfg, model.Options{Kind: model.LM, Seed: c.Uint64("seed")})
	if err != nil {
		return err
	}
	if err := trainer.WriteFolder(files(), c.String("output"), m, tok, "float32"); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "%s: %s with %d parameters, tokenizer of %d tokens\n", c.String("output"), cfg.Architecture, cfg.ParamCount(model.LM), tok.Size())
	return nil
}

// initRules are what flags of gad init go with.
var initRules = rules{
	{[]string{"config", "corpus", "seed"}, true, "from", " goes with random weights, not with --from: leave one of them out"},
	{[]string{"config", "corpus", "seed"}, true, "keep-layers", " goes with random weights, not with --from: leave one of them out"},
}

// initFrom makes a model of some layers of another: their weights with unchanged bits, and
// its tokenizer.
func (p *program) initFrom(c *cli.Context) error {
	if err := cmp.Or(initRules.check(c), need(c, "from", "keep-layers", "output")); err != nil {
		return err
	}
	from, out := c.String("from"), c.String("output")
	if err := trainer.CheckModelFolder(files(), from); err != nil {
		return err
	}
	if model.IsAdapter(from) {
		return usage("init: --from %s: is a LoRA adapter: merge it into its base first (gad export --merge), and give that folder", from)
	}
	whole, err := model.ReadConfig(from)
	if err != nil {
		return err
	}
	layers, err := model.ParseLayers(c.String("keep-layers"), whole.Layers)
	if err != nil {
		return usage("init: --keep-layers %v", err)
	}
	if err := (session.Output{Command: "init", Path: out}).Absent(files()); err != nil {
		return err
	}
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	tok, err := trainer.LoadTokenizer(from)
	if err != nil {
		return err
	}
	_, done := p.console().Busy("reading and writing weights", 0)
	m, err := model.Load(be, from, model.Options{Kind: model.LM, Layers: layers})
	if err != nil {
		done()
		return err
	}
	defer m.Close()
	err = trainer.WriteFolder(files(), out, m, tok, "")
	done()
	if err != nil {
		return err
	}
	cfg := m.Config()
	fmt.Fprintf(p.out, "%s: %s with %d parameters, %d of the %d layers of %s, tokenizer of %d tokens\n", out, cfg.Architecture, cfg.ParamCount(model.LM),
		cfg.Layers, whole.Layers, from, tok.Size())
	return nil
}

// withTokens notes the tokenizer's control tokens in a new model's config.json,
// as other programs expect them there.
func withTokens(c model.Config, tok *tokenizer.Tokenizer) (model.Config, error) {
	c, err := c.With("eos_token_id", tok.EndOfTurn())
	if err != nil {
		return c, err
	}
	return c.With("pad_token_id", tok.Pad())
}

// modelUsage says what --model may be.
const modelUsage = "model folder, or GGUF file"

// sourceOf is the model that a flag names, with --adapter, on the device of the flags.
func sourceOf(c *cli.Context, flag string) session.Source {
	return session.Source{Path: c.String(flag), Adapter: c.String("adapter"), Device: flagged(c)}
}

// adapterFlag names LoRA adapters beside the flag of the weights that they are for.
func adapterFlag(weights string) cli.Flag {
	return &cli.StringFlag{Name: "adapter", Usage: "LoRA adapters for the weights of --" + weights + ": a folder as peft writes it; without it --" + weights + " itself may be such a folder, if it names its base"}
}

// rowFlags are common to the commands that read a data file's rows.
func rowFlags() []cli.Flag {
	return append(setFlags("data; a row may have prompt_ids and response_ids, or response, instead of teacher_response"),
		within(&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"}, atLeast(0)),
		within(&cli.IntFlag{Name: "max-response-length", Value: 1 << 20, DefaultText: "no limit; eval: 1536 or half of the context", Usage: "longest answer, tokens; longer ones are cut"}, atLeast(1)),
		within(&cli.IntFlag{Name: "max-token-len", Value: 8192, Usage: "tokens of one forward pass"}, atLeast(1)),
		&cli.BoolFlag{Name: "json", Usage: "print the summary as JSON; logprobs and score print JSON lines in any case"},
	)
}

// logprobsCommand is gad logprobs.
func (p *program) logprobsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logprobs",
		Usage: "print log-probabilities of given responses as JSON lines",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			within(&cli.Float64Flag{Name: "temperature", Value: 1, Usage: "logits are divided by this"}, positive(math.Inf(1))),
		}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data")); err != nil {
				return err
			}
			return p.eachGiven(c, "log-probabilities, rows", "model", model.LM, func(m *session.Model, w io.Writer, given []trainer.Given) error {
				seqs := make([]model.Seq, len(given))
				for i, g := range given {
					seqs[i] = g.Seq
				}
				logpST, _, err := m.AllLogProbs(seqs, c.Float64("temperature"), c.Int("max-token-len"))
				if err != nil {
					return err
				}
				for i, g := range given {
					if err := session.PrintJSON(w, logprobRow{g.Row, g.Seq.IDs[:g.Seq.Prompt], g.Seq.IDs[g.Seq.Prompt:], session.Floats(logpST[i])}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

type logprobRow struct {
	Row      int            `json:"row"`
	Prompt   []int32        `json:"prompt_ids"`
	Response []int32        `json:"response_ids"`
	LogProbs session.Floats `json:"logprobs"`
}

// scoreCommand is gad score.
func (p *program) scoreCommand() *cli.Command {
	return &cli.Command{
		Name:  "score",
		Usage: "print discriminator scores of given responses as JSON lines",
		Flags: append(append([]cli.Flag{&cli.StringFlag{Name: "critic", Usage: "critic folder of a checkpoint"}, adapterFlag("critic")}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "critic", "data")); err != nil {
				return err
			}
			if err := trainer.CheckPart(files(), c.String("critic"), "critic"); err != nil {
				return err
			}
			if cfg, err := model.ReadConfig(c.String("critic")); err != nil {
				return err
			} else if cfg.Kind() != model.Scorer && !c.IsSet("adapter") {
				return fmt.Errorf("model: %s: is a language model, not a discriminator: give the critic folder of a checkpoint", c.String("critic"))
			}
			return p.eachGiven(c, "scores, rows", "critic", model.Scorer, func(m *session.Model, w io.Writer, given []trainer.Given) error {
				seqs := make([]model.Seq, len(given))
				for i, g := range given {
					seqs[i] = g.Judge(m.Tokenizer)
				}
				scores, err := m.AllScores(seqs, c.Int("max-token-len"))
				if err != nil {
					return err
				}
				for i, g := range given {
					row := struct {
						Row       int             `json:"row"`
						Score     json.RawMessage `json:"score"`
						Truncated bool            `json:"truncated,omitempty"`
						Text      string          `json:"text"`
						Prompt    []int32         `json:"prompt_ids"`
						Response  []int32         `json:"response_ids"`
					}{g.Row, session.Number(scores[i]), g.Truncated, m.Tokenizer.Decode(g.Seq.IDs[g.Seq.Prompt:], true), seqs[i].IDs[:seqs[i].Prompt], seqs[i].IDs[seqs[i].Prompt:]}
					if err := session.PrintJSON(w, row); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// eachGiven loads a model and hands it the rows of --data, some at a time, so
// that output flows and memory stays bounded. name is that of the bar.
func (p *program) eachGiven(c *cli.Context, name, flag string, kind model.Kind, do func(*session.Model, io.Writer, []trainer.Given) error) error {
	s := p.session()
	set, rows, err := rowsOf(c).List(s)
	if err != nil {
		return err
	}
	defer set.Close()
	m, err := s.Load(sourceOf(c, flag), kind)
	if err != nil {
		return err
	}
	defer m.Close()
	w := bufio.NewWriter(p.out)
	advance, done := func(int) {}, func() {}
	if !session.Terminal(p.out) { // where the lines themselves are seen, a bar would only be in their way
		advance, done = p.console().Busy(name, len(rows))
	}
	defer done()
	const chunk = 64
	for lo := 0; lo < len(rows); lo += chunk {
		given, err := trainer.GivenRows(m.Tokenizer, set, rows[lo:min(lo+chunk, len(rows))], c.Int("max-response-length"))
		if err != nil {
			return err
		}
		if err := do(m, w, given); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		advance(len(given))
	}
	return nil
}

// exportCommand is gad export.
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
				return usage("export: unexpected argument %q: give it as --run %s", c.Args().First(), c.Args().First())
			}
			if err := exportFlags(c); err != nil {
				return err
			}
			from, what, write, err := p.exported(c)
			if err != nil {
				return err
			}
			_, done := p.console().Busy("writing "+c.String("output"), 0)
			dtype, err := write()
			done()
			if err != nil {
				return err
			}
			if what != "" {
				from = what + " of " + from
			}
			fmt.Fprintf(p.out, "%s: %s, %s\n", c.String("output"), from, dtype)
			return nil
		},
	}
}

// exportFlags refuses flags of export that do not go together.
func exportFlags(c *cli.Context) error {
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
			return usage("export: --part %s with --model: is a part of a run: leave it out", c.String("part"))
		case c.IsSet("merge"):
			return usage("export: --merge with --model: adapters are added to their base in any case: leave it out")
		}
	}
	if c.IsSet("gguf") {
		return ggufAlone(c)
	}
	if strings.EqualFold(filepath.Ext(c.String("output")), ".gguf") {
		return usage("export: --output %s: a GGUF file needs its type: add --gguf q8_0, f16 or bf16; or name a folder", c.String("output"))
	}
	return nil
}

// exported finds what is to be exported: where it is, which part of that, and how it is
// written. write returns the type of what it has written.
func (p *program) exported(c *cli.Context) (from, part string, write func() (string, error), err error) {
	to, kind := c.String("output"), c.String("gguf")
	if from = c.String("model"); from != "" {
		if err := trainer.CheckModelFolder(files(), from); err != nil {
			return "", "", nil, err
		}
		if kind != "" {
			return from, "", func() (string, error) { return "GGUF " + kind, trainer.ExportModelGGUF(files(), from, to, kind) }, nil
		}
		return from, "", func() (string, error) { return trainer.ExportModel(files(), from, to, c.String("dtype")) }, nil
	}
	dir, notes, err := trainer.FindCheckpoint(files(), c.String("run"))
	if err != nil {
		return "", "", nil, err
	}
	for _, n := range notes {
		fmt.Fprintln(p.err, "gad: warning: "+n)
	}
	part = c.String("part")
	if kind != "" {
		return dir, part, func() (string, error) { return "GGUF " + kind, trainer.ExportGGUF(files(), dir, to, kind) }, nil
	}
	if adapters := filepath.Join(dir, part); c.IsSet("dtype") && c.String("dtype") != "float32" && !c.Bool("merge") && model.IsAdapter(adapters) {
		return "", "", nil, usage("export: --dtype %s: %s are adapters, which are written in float32: leave it out, or add --merge", c.String("dtype"), adapters)
	}
	export := trainer.Export
	if c.Bool("merge") {
		export = trainer.ExportMerged
	}
	return dir, part, func() (string, error) { return export(files(), dir, part, to, c.String("dtype")) }, nil
}

// ggufAlone refuses flags of export that a GGUF file has no use for, and what cannot be
// one.
func ggufAlone(c *cli.Context) error {
	switch {
	case c.String("part") != "actor":
		return usage("export: --part %s with --gguf: llama.cpp has no use for a discriminator: leave out --gguf", c.String("part"))
	case c.IsSet("dtype"):
		return usage("export: --dtype %s with --gguf %s: the type of a GGUF file is --gguf's: leave out --dtype", c.String("dtype"), c.String("gguf"))
	}
	return trainer.CheckGGUF(c.String("output"), c.String("gguf"))
}
