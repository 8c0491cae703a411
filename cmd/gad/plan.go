package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/session"
	"gad/device"
	"gad/internal/compute/cost"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// planCommand returns the command gad plan.
func (p *program) planCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "YAML file of settings"},
		presetFlag(),
		withLimits(&cli.Float64Flag{Name: "memory", DefaultText: "what this machine has now",
			Usage: "plan for a device with this many GB free"},
			positiveBelow(1e6, "must be a number of GB above 0; leave it out for what this machine has")),
		&cli.StringFlag{Name: "card", Usage: "with --device cuda: plan for a GPU this machine does not have, its memory and a predicted time, out of " + strings.Join(cost.Names(), ", ")},
		&cli.BoolFlag{Name: "fit",
			Usage: "find the cheapest settings with which the run fits the memory, and say why"},
		withLimits(&cli.Float64Flag{Name: "hours", DefaultText: "no limit",
			Usage: "with --fit: find also how many prompts and steps end within so many hours"},
			positiveBelow(1e6, "must be above 0")),
		&cli.BoolFlag{Name: "cards", Usage: "print what the game takes for Qwen2.5-0.5B to 7B on GPUs of 12 to 141 GB, as a Markdown table (doc/memory.md), and nothing else"},
		withLimits(&cli.IntFlag{Name: "ranks", DefaultText: "1",
			Usage: "plan for so many processes that train together (doc/ranks.md)"}, powerOfTwo),
		withLimits(&cli.Float64Flag{Name: "bandwidth", DefaultText: "10",
			Usage: "with --ranks: what the network between them carries, Gbit/s"},
			positiveBelow(1e6, "must be a number of Gbit/s above 0")),
		&cli.StringFlag{Name: "stage", Value: string(config.Train),
			Usage: "sft, dpo, opd, warmup, train (or game) or eval"},
	}
	for _, f := range stageFlags {
		flags = append(flags, f.flag())
	}
	return &cli.Command{
		Name:      "plan",
		Usage:     "estimate memory, disk, tokens and time of a run before it starts; refuses a run that cannot fit",
		ArgsUsage: "[KEY=VALUE ...]",
		Flags:     flags,
		Action: func(c *cli.Context) error {
			if c.Bool("cards") {
				return p.cards(c)
			}
			if c.String("stage") == "eval" {
				return p.planEval(c)
			}
			stage, err := stageNamed(c, "eval")
			if err != nil {
				return err
			}
			cfg, notes, err := p.configure(c, stage)
			if err != nil {
				return err
			}
			for _, note := range notes {
				fmt.Fprintln(p.err, "gad: warning: "+note)
			}
			hours := rules{{[]string{"hours"}, false, "fit", ": is for --fit: add that"}}
			if err := hours.check(c); err != nil {
				return err
			}
			var card *cost.Card
			if c.IsSet("card") {
				named, ok := cost.FindCard(c.String("card"))
				if !ok {
					return usage("plan: --card %q: %s", c.String("card"),
						cost.NoCardReason(c.String("card")))
				}
				if d := deviceOf(cfg); d.Name != device.CUDA || d.Precision == device.F32 {
					return usage("plan: --card %s: needs --device cuda, in bfloat16: add --device cuda, and leave out --precision f32", named.Name)
				}
				card = &named
			}
			ranks, gbits := 1, 10.0
			if c.IsSet("ranks") {
				ranks = c.Int("ranks")
			}
			if c.IsSet("bandwidth") {
				gbits = c.Float64("bandwidth")
			}
			if c.IsSet("bandwidth") && ranks == 1 {
				return usage("plan: --bandwidth: one process sends nothing: add --ranks")
			}
			if err := cfg.CheckRanks(ranks); err != nil {
				return err
			}
			return p.plan(cfg, stage,
				planOptions{int64(c.Float64("memory") * 1e9), c.Bool("fit"), c.Float64("hours"), card,
					rankNetwork{ranks, gbits}})
		},
	}
}

// cards prints the table of GPUs, which is not about a run.
func (p *program) cards(c *cli.Context) error {
	for _, name := range c.LocalFlagNames() {
		if name != "cards" {
			return usage("plan: --%s: not with --cards, which is a table of models and GPUs: leave out one of them", name)
		}
	}
	if c.Args().Present() {
		return usage("plan: %q: not with --cards, which is a table of models and GPUs: leave out one of them", c.Args().First())
	}
	fmt.Fprint(p.out, plan.Cards(device.Options{Name: device.CUDA}.Footprint()))
	return nil
}

// planOptions describes the machine of a plan: the zero value is this machine.
type planOptions struct {
	free    int64 // bytes; 0: the device's
	fit     bool  // add settings with which it fits
	hours   float64
	card    *cost.Card
	network rankNetwork
}

// plan prints the plan of a run. If the GPU is not available, its memory is planned all the same.
// With a card it is not opened.
func (p *program) plan(cfg config.Config, stage config.Stage, f planOptions) error {
	d, card, network := deviceOf(cfg), f.card, f.network
	if p.planRecorder != nil {
		return p.planRecorder.record(d, cfg, stage)
	}
	var be model.Backend
	var missing error
	if card != nil {
		be = cost.New(*card)
	} else {
		be, missing = session.OpenDevice(d)
	}
	switch {
	case missing == nil:
		defer be.Close()
	case !errors.Is(missing, device.ErrUnavailable):
		return missing
	}
	_, done := p.console().Busy("reading and timing", 0)
	planned := plan.New
	if f.fit {
		planned = plan.NewFitting
	}
	plan, err := planned(be, d.Footprint(), f.free, files(), cfg, stage)
	done()
	if err != nil {
		return err
	}
	if network.ranks > 1 {
		plan.SetRanks(cfg, network.ranks)
	}
	fmt.Fprint(p.out, plan)
	if network.ranks > 1 {
		fmt.Fprint(p.out, plan.RanksText(cfg, network.ranks, network.gbits))
	}
	if missing != nil {
		fmt.Fprintf(p.out,
			"no time estimate, and no memory limit but --memory; --card %s gives both: %v\n",
			strings.Join(cost.Names(), ", "), missing)
	}
	if err := plan.Check(cfg); err != nil {
		return err
	}
	for _, note := range plan.Warnings(cfg) {
		fmt.Fprintln(p.err, "gad: warning: "+note)
	}
	if f.hours == 0 {
		return nil
	}
	text, err := plan.FitHours(cfg, f.hours)
	fmt.Fprint(p.out, text)
	return err
}

// rankNetwork is the number of ranks of a plan, and the network between them.
type rankNetwork struct {
	ranks int
	gbits float64
}

// planEval runs gad eval --dry-run with the flags that both commands have.
func (p *program) planEval(c *cli.Context) error {
	shared := []string{"model", "split", "format", "checker", "seed", "device", "precision",
		"threads"}
	args := []string{"gad", "eval", "--dry-run"}
	for _, name := range c.LocalFlagNames() {
		switch {
		case name == "stage":
		case name == "data":
			for _, file := range c.StringSlice(name) {
				args = append(args, "--"+name, file)
			}
		case slices.Contains(shared, name):
			args = append(args, "--"+name, c.String(name))
		default:
			return usage("plan: --%s: not with --stage eval: use gad eval --dry-run, which takes all flags of eval", name)
		}
	}
	if c.Args().Present() {
		return usage(
			"plan: %q: not with --stage eval, which has no settings: use gad eval --dry-run",
			c.Args().First())
	}
	return p.invoke(c.Context, args)
}
