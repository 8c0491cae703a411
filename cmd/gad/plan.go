package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"gad/internal/compute"
	"gad/trainer"
)

// planCommand is gad plan.
func (p *program) planCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "YAML file of settings"},
		&cli.StringFlag{Name: "stage", Value: string(trainer.Train), Usage: "sft, warmup or train"},
	}
	for _, f := range stageFlags {
		flags = append(flags, &cli.StringFlag{Name: f.name, Usage: f.usage})
	}
	return &cli.Command{
		Name:      "plan",
		Usage:     "memory, disk, tokens and time of a run before it starts; refuses what cannot fit",
		ArgsUsage: "[KEY=VALUE ...]",
		Flags:     flags,
		Action: func(c *cli.Context) error {
			stage := trainer.Stage(c.String("stage"))
			if stage != trainer.SFT && stage != trainer.Warmup && stage != trainer.Train {
				return usage("plan: --stage %q: must be sft, warmup or train", stage)
			}
			cfg, err := p.configure(c, stage)
			if err != nil {
				return err
			}
			be, err := openBackend(cfg.Trainer.Device, cfg.Trainer.Threads)
			if err != nil {
				return err
			}
			defer be.Close()
			return p.plan(be, cfg, stage)
		},
	}
}

func (p *program) plan(be compute.Backend, cfg trainer.Config, stage trainer.Stage) error {
	plan, err := trainer.NewPlan(be, files(), cfg, stage)
	if err != nil {
		return err
	}
	fmt.Fprint(p.out, plan)
	return plan.Check(cfg)
}
