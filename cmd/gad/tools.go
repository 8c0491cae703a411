package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"gad/data"
	"gad/device"
	"gad/internal/compute"
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
	be, err := openDevice(device.Options{})
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

// initFrom makes a model of some layers of another: their weights with unchanged bits, and
// its tokenizer.
func (p *program) initFrom(c *cli.Context) error {
	for _, name := range []string{"config", "corpus", "seed"} {
		if c.IsSet(name) {
			return usage("init: --%s goes with random weights, not with --from: leave one of them out", name)
		}
	}
	if err := need(c, "from", "keep-layers", "output"); err != nil {
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
	if err := absent("init", out); err != nil {
		return err
	}
	be, err := openDevice(device.Options{})
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

// loaded is a model with its tokenizer.
type loaded struct {
	be  compute.Backend
	m   *model.Model
	tok *tokenizer.Tokenizer
}

func (p *program) load(c *cli.Context, dir string, kind model.Kind) (l *loaded, err error) {
	part := "actor"
	if kind == model.Scorer {
		part = "critic"
	}
	if err := trainer.CheckPart(files(), dir, part); err != nil {
		return nil, err
	}
	be, err := openDevice(flagged(c))
	if err != nil {
		return nil, err
	}
	_, done := p.console().Busy("loading "+dir, 0)
	defer done()
	if l, err = loadOn(be, dir, c.String("adapter"), c.String("weights"), kind); err != nil {
		be.Close()
	}
	return l, err
}

// loadOn loads onto a device that is open. adapter, unless empty, is a folder of LoRA
// adapters for the weights in dir; quant is model.Options.Quant.
func loadOn(be compute.Backend, dir, adapter, quant string, kind model.Kind) (l *loaded, err error) {
	l = &loaded{be: be}
	var (
		wg     sync.WaitGroup
		tokErr error
	)
	if quant != "" && quant != model.Native && !model.Quantised(quant) {
		return nil, usage("--weights %s: must be %s, q8_0 or q4_0", quant, model.Native)
	}
	weights, o := dir, model.Options{Kind: kind, Quant: quant}
	if adapter != "" {
		if !model.IsAdapter(adapter) {
			return nil, usage("--adapter %s: is no folder of LoRA adapters: it has no %s", adapter, model.AdapterConfigName)
		}
		if o.Base, err = model.Load(be, dir, model.Options{Kind: model.LM, Quant: quant}); err != nil {
			return nil, err
		}
		defer o.Base.Close() // what stands on it keeps its weights
		weights = adapter
	}
	wg.Go(func() { l.tok, tokErr = trainer.LoadTokenizer(dir) }) // one core's work, the weights are that of all
	l.m, err = model.Load(be, weights, o)
	wg.Wait()
	if tokErr != nil {
		if err == nil {
			l.m.Close()
		}
		return nil, tokErr
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// weightsFlag is how frozen weights are kept.
func weightsFlag() cli.Flag {
	return &cli.StringFlag{Name: "weights", Value: model.Native, Usage: "how the weights are kept: " + model.Native + " (as matrix products read them), or on the CPU in ggml's q8_0 or q4_0, which take a quarter and an eighth of float32's memory"}
}

// adapterFlag names LoRA adapters beside the flag of the weights that they are for.
func adapterFlag(weights string) cli.Flag {
	return &cli.StringFlag{Name: "adapter", Usage: "LoRA adapters for the weights of --" + weights + ": a folder as peft writes it; without it --" + weights + " itself may be such a folder, if it names its base"}
}

func (l *loaded) close() { l.m.Close(); l.be.Close() }

// aboveZero refuses 0 where it would leave no token to sample.
func aboveZero(c *cli.Context, name string) error {
	if c.Float64(name) == 0 {
		return usage("%s: --%s 0: must be above 0; 1 keeps all", typed(c), name)
	}
	return nil
}

// inRange refuses a number below 0 or above high.
func inRange(c *cli.Context, name string, high float64) error {
	if x := c.Float64(name); !(x >= 0 && x <= high) {
		return usage("%s: --%s %g: must be from 0 to %g", typed(c), name, x, high)
	}
	return nil
}

// rowFlags are common to the commands that read a data file's rows.
func rowFlags() []cli.Flag {
	return append(setFlags("data; a row may have prompt_ids and response_ids, or response, instead of teacher_response"),
		&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"},
		&cli.IntFlag{Name: "max-response-length", Value: 1 << 20, DefaultText: "no limit; eval: 1536 or half of the context", Usage: "longest answer, tokens; longer ones are cut"},
		&cli.IntFlag{Name: "max-token-len", Value: 8192, Usage: "tokens of one forward pass"},
		&cli.BoolFlag{Name: "json", Usage: "print the summary as JSON; logprobs and score print JSON lines in any case"},
	)
}

func (p *program) openRows(c *cli.Context) (*data.Set, []int, error) {
	set, err := p.openSet(c, c.StringSlice("data"), c.String("split"))
	if err != nil {
		return nil, nil, err
	}
	if suspect, _ := set.Overlooked(); suspect != "" {
		p.console().Warn(suspect)
	}
	n := set.Len()
	if limit := c.Int("limit"); limit > 0 {
		n = min(n, limit)
	}
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	return set, rows, nil
}

// logprobsCommand is gad logprobs.
func (p *program) logprobsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logprobs",
		Usage: "print log-probabilities of given responses as JSON lines",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			&cli.Float64Flag{Name: "temperature", Value: 1, Usage: "logits are divided by this"},
		}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data")); err != nil {
				return err
			}
			if !(c.Float64("temperature") > 0) {
				return usage("logprobs: --temperature %g: must be above 0", c.Float64("temperature"))
			}
			return p.eachGiven(c, "log-probabilities, rows", c.String("model"), model.LM, func(l *loaded, w io.Writer, given []trainer.Given) error {
				seqs := make([]model.Seq, len(given))
				for i, g := range given {
					seqs[i] = g.Seq
				}
				logpST, _, err := l.m.AllLogProbs(seqs, c.Float64("temperature"), c.Int("max-token-len"))
				if err != nil {
					return err
				}
				for i, g := range given {
					if err := printJSON(w, logprobRow{g.Row, g.Seq.IDs[:g.Seq.Prompt], g.Seq.IDs[g.Seq.Prompt:], floats(logpST[i])}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

type logprobRow struct {
	Row      int     `json:"row"`
	Prompt   []int32 `json:"prompt_ids"`
	Response []int32 `json:"response_ids"`
	LogProbs floats  `json:"logprobs"`
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
			return p.eachGiven(c, "scores, rows", c.String("critic"), model.Scorer, func(l *loaded, w io.Writer, given []trainer.Given) error {
				seqs := make([]model.Seq, len(given))
				for i, g := range given {
					seqs[i] = g.Judge(l.tok)
				}
				scores, err := l.m.AllScores(seqs, c.Int("max-token-len"))
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
					}{g.Row, number(scores[i]), g.Truncated, l.tok.Decode(g.Seq.IDs[g.Seq.Prompt:], true), seqs[i].IDs[:seqs[i].Prompt], seqs[i].IDs[seqs[i].Prompt:]}
					if err := printJSON(w, row); err != nil {
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
func (p *program) eachGiven(c *cli.Context, name, dir string, kind model.Kind, do func(*loaded, io.Writer, []trainer.Given) error) error {
	set, rows, err := p.openRows(c)
	if err != nil {
		return err
	}
	defer set.Close()
	l, err := p.load(c, dir, kind)
	if err != nil {
		return err
	}
	defer l.close()
	w := bufio.NewWriter(p.out)
	advance, done := func(int) {}, func() {}
	if !terminal(p.out) { // where the lines themselves are seen, a bar would only be in their way
		advance, done = p.console().Busy(name, len(rows))
	}
	defer done()
	const chunk = 64
	for lo := 0; lo < len(rows); lo += chunk {
		given, err := trainer.GivenRows(l.tok, set, rows[lo:min(lo+chunk, len(rows))], c.Int("max-response-length"))
		if err != nil {
			return err
		}
		if err := do(l, w, given); err != nil {
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

// printJSON writes v on one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// floats prints float32 values with as many digits as tell them apart.
type floats []float32

// MarshalJSON writes the list; what is not finite becomes null.
func (f floats) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, x := range f {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, number(x)...)
	}
	return append(b, ']'), nil
}

func number(x float32) json.RawMessage {
	if x != x || x-x != 0 {
		return json.RawMessage("null")
	}
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 32)
}
