package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/urfave/cli/v2"

	"gad/data"
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
		Usage: "a fresh model folder: random weights, and a BPE tokenizer trained on a text",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "a config.json that gives the architecture, or the folder that holds it"},
			&cli.StringFlag{Name: "corpus", Usage: "text file that the tokenizer is trained on"},
			&cli.StringFlag{Name: "output", Usage: "folder to make"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the weights"},
		},
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "config", "corpus", "output")); err != nil {
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
			tok, err := tokenizer.Train(io.LimitReader(f, maxCorpusBytes), tokenizer.TrainOptions{VocabSize: cfg.Vocab})
			if err != nil {
				return err
			}
			be, err := device{name: "cpu", precision: "f32"}.open()
			if err != nil {
				return err
			}
			defer be.Close()
			if cfg, err = withTokens(cfg, tok); err != nil {
				return err
			}
			m, err := model.New(be, cfg, model.Options{Kind: model.LM, Seed: c.Uint64("seed")})
			if err != nil {
				return err
			}
			if err := trainer.WriteFolder(files(), c.String("output"), m, tok, "float32"); err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s: %s with %d parameters, tokenizer of %d tokens\n", c.String("output"), cfg.Architecture, cfg.ParamCount(model.LM), tok.Size())
			return nil
		},
	}
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

// loaded is a model with its tokenizer.
type loaded struct {
	be  compute.Backend
	m   *model.Model
	tok *tokenizer.Tokenizer
}

func load(c *cli.Context, dir string, kind model.Kind) (l *loaded, err error) {
	if err := trainer.CheckModelFolder(files(), dir); err != nil {
		return nil, err
	}
	l = &loaded{}
	if l.be, err = flagged(c).open(); err != nil {
		return nil, err
	}
	if l.tok, err = tokenizer.Load(dir); err == nil {
		if l.m, err = model.Load(l.be, dir, model.Options{Kind: kind}); err == nil {
			return l, nil
		}
	}
	l.be.Close()
	return nil, err
}

func (l *loaded) close() { l.m.Close(); l.be.Close() }

// generateCommand is gad generate.
func (p *program) generateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "answer a prompt",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "model folder"},
			&cli.StringFlag{Name: "prompt", Usage: "what the user says; the chat template is put around it"},
			&cli.StringFlag{Name: "system", Usage: "system message"},
			&cli.BoolFlag{Name: "raw", Usage: "take the prompt as it is, without a chat template"},
			&cli.IntFlag{Name: "n", Value: 1, Usage: "answers"},
			&cli.IntFlag{Name: "max-new-tokens", Value: 1536, Usage: "longest answer, tokens"},
			&cli.Float64Flag{Name: "temperature", Value: 0.8, Usage: "0 is greedy"},
			&cli.Float64Flag{Name: "top-p", Value: 1, Usage: "keep the smallest set of this probability"},
			&cli.Float64Flag{Name: "min-p", Usage: "drop tokens less probable than this share of the best"},
			&cli.IntFlag{Name: "top-k", Usage: "keep the k most probable tokens; 0 is all"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed; equal seeds give equal answers"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object an answer"},
		}, deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "prompt")); err != nil {
				return err
			}
			if n := c.Int("n"); n < 1 || n > 1<<16-1 {
				return usage("generate: --n %d: must be 1 to 65535", n)
			}
			if c.Int("max-new-tokens") < 1 {
				return usage("generate: --max-new-tokens %d: must be at least 1", c.Int("max-new-tokens"))
			}
			if err := errors.Join(inRange(c, "temperature", 1e6), inRange(c, "top-p", 1), inRange(c, "min-p", 1)); err != nil {
				return err
			}
			if c.Int("top-k") < 0 {
				return usage("generate: --top-k %d: must be at least 0", c.Int("top-k"))
			}
			l, err := load(c, c.String("model"), model.LM)
			if err != nil {
				return err
			}
			defer l.close()
			var prompt []int32
			if c.Bool("raw") {
				prompt = l.tok.EncodeSpecial(c.String("prompt"))
			} else {
				msgs := []tokenizer.Message{{Role: "user", Content: c.String("prompt")}}
				if s := c.String("system"); s != "" {
					msgs = append([]tokenizer.Message{{Role: "system", Content: s}}, msgs...)
				}
				if prompt, err = l.tok.ChatPrompt(msgs); err != nil {
					return err
				}
			}
			limit := c.Int("max-new-tokens")
			if room := l.m.Config().MaxPosition - len(prompt); l.m.Config().MaxPosition > 0 {
				if room < 1 {
					return usage("generate: the prompt has %d tokens, the model takes %d: shorten it", len(prompt), l.m.Config().MaxPosition)
				}
				limit = min(limit, room)
			}
			out, err := l.m.Generate([][]int32{prompt}, []uint64{0}, model.SampleOptions{
				N: c.Int("n"), MaxNew: limit, EOS: l.tok.EOS(), Seed: c.Uint64("seed"), Slots: 64,
				Sampling: compute.Sampling{Temperature: c.Float64("temperature"), TopK: c.Int("top-k"), TopP: c.Float64("top-p"), MinP: c.Float64("min-p")},
			}, nil)
			if err != nil {
				return err
			}
			for i, a := range out[0] {
				text := l.tok.Decode(a.IDs, true)
				if !c.Bool("json") {
					fmt.Fprintln(p.out, text)
					continue
				}
				if err := printJSON(p.out, map[string]any{"sample": i, "text": text, "prompt_ids": prompt, "response_ids": a.IDs,
					"logprobs": floats(a.Logp), "truncated": a.Truncated}); err != nil {
					return err
				}
			}
			return nil
		},
	}
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
	return append(setFlags("data; a row may carry prompt_ids and response_ids, or response, in place of teacher_response"),
		&cli.IntFlag{Name: "limit", Usage: "rows to read; 0 is all"},
		&cli.IntFlag{Name: "max-response-length", Value: 1 << 20, DefaultText: "no limit; eval: 1536", Usage: "longer answers are cut there, tokens"},
		&cli.IntFlag{Name: "max-token-len", Value: 8192, Usage: "tokens of one forward pass"},
		&cli.BoolFlag{Name: "json", Usage: "JSON; logprobs and score print nothing else"},
	)
}

func openRows(c *cli.Context) (*data.Set, []int, error) {
	set, err := openSet(c, c.StringSlice("data"), c.String("split"))
	if err != nil {
		return nil, nil, err
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
		Usage: "log-probabilities of given responses, JSON lines",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "model folder"},
			&cli.Float64Flag{Name: "temperature", Value: 1, Usage: "logits are divided by this"},
		}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data")); err != nil {
				return err
			}
			if !(c.Float64("temperature") > 0) {
				return usage("logprobs: --temperature %g: must be above 0", c.Float64("temperature"))
			}
			return p.eachGiven(c, c.String("model"), model.LM, func(l *loaded, w io.Writer, given []trainer.Given) error {
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
		Usage: "discriminator scores of given responses, JSON lines",
		Flags: append(append([]cli.Flag{&cli.StringFlag{Name: "critic", Usage: "critic folder of a checkpoint"}}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "critic", "data")); err != nil {
				return err
			}
			if cfg, err := model.ReadConfig(c.String("critic")); err != nil {
				return err
			} else if cfg.Kind() != model.Scorer {
				return fmt.Errorf("model: %s: is a language model, not a discriminator: give the critic folder of a checkpoint", c.String("critic"))
			}
			return p.eachGiven(c, c.String("critic"), model.Scorer, func(l *loaded, w io.Writer, given []trainer.Given) error {
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
						Prompt    []int32         `json:"prompt_ids"`
						Response  []int32         `json:"response_ids"`
					}{g.Row, number(scores[i]), g.Truncated, seqs[i].IDs[:seqs[i].Prompt], seqs[i].IDs[seqs[i].Prompt:]}
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
// that output flows and memory stays bounded.
func (p *program) eachGiven(c *cli.Context, dir string, kind model.Kind, do func(*loaded, io.Writer, []trainer.Given) error) error {
	set, rows, err := openRows(c)
	if err != nil {
		return err
	}
	defer set.Close()
	l, err := load(c, dir, kind)
	if err != nil {
		return err
	}
	defer l.close()
	w := bufio.NewWriter(p.out)
	const chunk = 256
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
	}
	return nil
}

// evalCommand is gad eval.
func (p *program) evalCommand() *cli.Command {
	return &cli.Command{
		Name:  "eval",
		Usage: "compare a student with the teacher on held-out rows",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "model folder"},
			&cli.Float64Flag{Name: "temperature", Usage: "of the answers; 0 is greedy"},
			&cli.IntFlag{Name: "max-prompt-length", Value: 1 << 20, Usage: "longer prompts are refused, tokens"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling and of the fresh discriminator"},
			&cli.StringFlag{Name: "checker", Usage: "program that scores the answers, for sh -c (see doc/the-game.md)"},
			&cli.IntFlag{Name: "checker-timeout", Value: 60, Usage: "seconds after which it is ended"},
			&cli.IntFlag{Name: "disc-steps", Value: trainer.DefaultDiscSteps, Usage: "optimizer steps of a fresh discriminator on half of the rows; 0 is none"},
			&cli.IntFlag{Name: "disc-batch", Value: 4, Usage: "pairs of one such step"},
			&cli.Float64Flag{Name: "disc-lr", DefaultText: "0.0512/hidden width", Usage: "its peak learning rate"},
			&cli.IntFlag{Name: "disc-seeds", Value: 3, Usage: "fresh discriminators, each with a split and a head of its own"},
			&cli.StringFlag{Name: "disc-from", DefaultText: "the student's folder", Usage: "folder that they start from, or random: random weights of the student's shape"},
		}, rowFlags()...), deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "model", "data"), inRange(c, "temperature", 1e6)); err != nil {
				return err
			}
			if err := checkEvalFlags(c); err != nil {
				return err
			}
			set, rows, err := openRows(c)
			if err != nil {
				return err
			}
			defer set.Close()
			l, err := load(c, c.String("model"), model.LM)
			if err != nil {
				return err
			}
			defer l.close()
			j, err := trainer.Evaluate(l.m, l.tok, set, rows, trainer.EvalOptions{MaxPrompt: c.Int("max-prompt-length"),
				MaxResponse: evalLimit(c, l.m.Config()), Temperature: c.Float64("temperature"), Seed: c.Uint64("seed"), Slots: 64, MaxTokens: c.Int("max-token-len")})
			if err != nil {
				return err
			}
			if err := checkAnswers(c, j, set); err != nil {
				return err
			}
			if err := judgeFresh(c, l, j); err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(p.out, j.Eval)
			}
			printEvaluation(p.out, j.Eval)
			return nil
		},
	}
}

// evalLimit is the longest answer of an evaluation: as told, else 1536 tokens or
// half of what the model can take.
func evalLimit(c *cli.Context, cfg model.Config) int {
	if c.IsSet("max-response-length") {
		return c.Int("max-response-length")
	}
	if cfg.MaxPosition > 1 {
		return min(1536, cfg.MaxPosition/2)
	}
	return 1536
}

// exportCommand is gad export.
func (p *program) exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "the student of a run as a Hugging Face folder",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "run", Usage: "run folder, or one global_step_N of it"},
			&cli.StringFlag{Name: "output", Usage: "folder to make"},
			&cli.StringFlag{Name: "part", Value: "actor", Usage: "actor or critic"},
			&cli.StringFlag{Name: "dtype", Value: "base", Usage: "float32, bfloat16, float16, or base: what the student had before training"},
		},
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "run", "output")); err != nil {
				return err
			}
			if part := c.String("part"); part != "actor" && part != "critic" {
				return usage("export: --part %q: must be actor or critic", part)
			}
			dir, notes, err := trainer.FindCheckpoint(files(), c.String("run"))
			if err != nil {
				return err
			}
			for _, n := range notes {
				fmt.Fprintln(p.err, "gad: warning: "+n)
			}
			dtype, err := trainer.Export(files(), dir, c.String("part"), c.String("output"), c.String("dtype"))
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s: %s of %s, %s\n", c.String("output"), c.String("part"), dir, dtype)
			return nil
		},
	}
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
