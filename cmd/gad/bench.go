package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/bench"
	"gad/apps/session"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/internal/fault"
	"gad/model"
	"gad/trainer"
	"gad/trainer/config"
)

// benchCommand returns the command gad bench.
func (p *program) benchCommand() *cli.Command {
	load := bench.DefaultLoad()
	return &cli.Command{
		Name:  "bench",
		Usage: "measure this machine, and what share of its limits each operation and stage reaches",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "25m", Usage: strings.Join(bench.ShapeNames(), ", ") + ", a folder with config.json or a GGUF file; weights are random, nothing is downloaded"},
			&cli.StringFlag{Name: "what",
				Usage: "comma-separated, of " + strings.Join(bench.Parts, ", ") + "; default: all"},
			withLimits(&cli.Float64Flag{Name: "seconds", Value: 60, Usage: "approximate time to spend, in seconds; a stage that would take longer is named and skipped"}, seconds),
			withLimits(&cli.IntFlag{Name: "prompts", Value: load.Prompts,
				Usage: "prompts of a GAD step"}, intRange(1, 1<<20)),
			withLimits(&cli.IntFlag{Name: "answers", Value: load.N, Usage: "answers per prompt"},
				intRange(1, 1<<20)),
			withLimits(&cli.IntFlag{Name: "prompt-tokens", Value: load.Prompt,
				Usage: "tokens of each prompt, in the GAD step and in generation"},
				intRange(1, 1<<20)),
			withLimits(&cli.IntFlag{Name: "new-tokens", Value: load.New,
				Usage: "tokens of each answer"}, intRange(1, 1<<20)),
			withLimits(&cli.IntFlag{Name: "micro", Value: load.Micro,
				Usage: "tokens per micro-batch of a GAD step"}, intRange(1, 1<<20)),
			&cli.BoolFlag{Name: "recompute",
				Usage: "recompute activations in the backward pass (gradient checkpointing)"},
			withLimits(&cli.IntFlag{Name: "lora-rank", Usage: "train LoRA adapters of this rank on one frozen base for all roles; 0: all weights"}, intRange(0, 1<<12)),
			&cli.StringFlag{Name: "weights", Value: model.Native,
				Usage: "with --lora-rank: how the base is kept: " + model.Native +
					", or in q8_0 or q4_0"},
			withLimits(&cli.IntFlag{Name: "slots", DefaultText: "as a run takes",
				Usage: "answers generated at the same time in a GAD step"}, intRange(1, 1<<16)),
			&cli.StringFlag{Name: "model-cost", Usage: "measure nothing: predict the same lines for a GPU this machine does not have, from launches, bytes and products, out of " + strings.Join(cost.Names(), ", ")},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "serve", Usage: "read names of cases, one per line, and answer each with a line of JSON, for comparisons (scripts/peers)"},
			withLimits(&cli.IntFlag{Name: "ranks", DefaultText: "what the launcher says", Usage: "processes that a launcher has started, such as mpirun: measures how fast they talk, with --device cuda also their GPUs, and nothing else (doc/ranks.md)"}, powerOfTwo),
		}, deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			budget := time.Duration(c.Float64("seconds") * float64(time.Second))
			load.Prompts, load.N, load.Prompt, load.New, load.Micro =
				c.Int("prompts"), c.Int("answers"), c.Int("prompt-tokens"), c.Int("new-tokens"),
				c.Int("micro")
			load.Recompute, load.Rank = c.Bool("recompute"), c.Int("lora-rank")
			if c.IsSet("slots") {
				load.Slots = c.Int("slots")
			}
			if load.Weights = c.String("weights"); load.Weights != model.Native &&
				(load.Rank == 0 || !model.Quantised(load.Weights)) {
				return usage("bench: --weights %s: must be %s, or with --lora-rank q8_0 or q4_0",
					load.Weights, model.Native)
			}
			cfg, err := benchShape(c.String("shape"))
			if err != nil {
				return err
			}
			ranks, err := p.connect(c, benchLimit)
			if err != nil {
				return err
			}
			if ranks.Size() > 1 {
				return p.benchRanks(c, ranks, cfg.ParamCount(model.LM), budget)
			}
			var what []string
			if c.IsSet("what") {
				what = strings.Split(c.String("what"), ",")
			}
			if err := bench.Check(what); err != nil {
				return fault.As(fault.ErrUsage, err)
			}
			d := deviceFlagsOf(c)
			if c.IsSet("model-cost") {
				return p.predict(c, bench.Options{Name: c.String("shape"), Config: cfg, Load: load,
					What: what})
			}
			if c.Bool("serve") {
				if c.IsSet("what") || c.Bool("json") {
					return usage("bench: --serve: takes neither --what nor --json: the cases on standard input decide what is measured")
				}
				be, err := session.OpenDevice(d)
				if err != nil {
					return err
				}
				defer be.Close()
				return bench.Serve(os.Stdin, p.out, be, cfg, load)
			}
			r, err := bench.Run(bench.Options{
				Open: func() (compute.Backend, error) { return session.OpenDevice(d) },
				Name: c.String("shape"), Config: cfg,
				Load: load, What: what, Budget: budget, Progress: p.console().Busy})
			if err != nil {
				return err
			}
			return p.report(c, r)
		},
	}
}

// seconds is the limit of the time that gad bench may take.
var seconds = limit{func(x float64) bool { return x > 0 && x <= 1e6 },
	"must be above 0, to 1000000"}

// benchRules are the rules between flags of gad bench.
var benchRules = rules{
	{[]string{"serve", "seconds", "device", "precision", "threads"}, true, "model-cost", ": not with --model-cost, which measures nothing and computes in bfloat16: leave out one of them"},
}

// benchLimit is the longest time that a rank waits for the others.
const benchLimit = 5 * time.Minute

// benchRanks runs gad bench on several ranks, with sums of up to the given number of elements; rank
// 0 prints.
func (p *program) benchRanks(c *cli.Context, ranks *trainer.Ranks, elements int64,
	budget time.Duration) (err error) {
	defer func() {
		if err != nil {
			ranks.Abort(err)
		}
		if failed := ranks.Close(); err == nil && failed != nil {
			err = fault.As(fault.ErrRunning, failed)
		}
	}()
	for _, name := range c.LocalFlagNames() {
		if !slices.Contains([]string{"ranks", "shape", "seconds", "json", "device"}, name) {
			return fmt.Errorf("%w: bench: --%s: not with %d ranks, of which only the messages are measured: leave it out, or give --ranks 1", config.ErrConfig, name, ranks.Size())
		}
	}
	var be compute.Backend
	if d := deviceFlagsOf(c); d.Name == device.CUDA {
		if be, err = session.OpenDevice(p.rankDevice(d)); err != nil {
			return err
		}
		defer be.Close()
	}
	r, err := bench.Ranks(ranks, be, elements, budget)
	switch {
	case err != nil:
		return fault.As(fault.ErrRunning, err)
	case ranks.Rank() > 0:
		return nil
	}
	return p.report(c, r)
}

// predict runs gad bench --model-cost.
func (p *program) predict(c *cli.Context, o bench.Options) error {
	if err := benchRules.check(c); err != nil {
		return err
	}
	card, ok := cost.FindCard(c.String("model-cost"))
	if !ok {
		return usage("bench: --model-cost %q: %s", c.String("model-cost"),
			cost.NoCardReason(c.String("model-cost")))
	}
	r, err := bench.Predict(o, card)
	if err != nil {
		return err
	}
	return p.report(c, r)
}

// report prints a result as text or, with --json, as JSON.
func (p *program) report(c *cli.Context, r interface{ Print(io.Writer) error }) error {
	if c.Bool("json") {
		enc := json.NewEncoder(p.out)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	return r.Print(p.out)
}

// benchShape returns the named shape, or the shape of a model folder.
func benchShape(name string) (model.Config, error) {
	if c, ok := bench.Shapes[name]; ok {
		return c, nil
	}
	if _, err := os.Stat(name); err != nil {
		return model.Config{}, usage(
			"bench: --shape %q: use %s, a folder with config.json or a GGUF file", name,
			strings.Join(bench.ShapeNames(), ", "))
	}
	c, err := model.ReadConfig(name)
	if err != nil {
		return c, fmt.Errorf("bench: --shape: %w", err)
	}
	return c, nil
}
