package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/doctor"
	"gad/apps/session"
	"gad/device"
	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
)

// errSick marks a run that the doctor found sick.
var errSick = errors.New("sick")

// doctorCommand returns the command gad doctor.
func (p *program) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "report how a run ended, whether it can be resumed and what looks wrong; of A and B: how far their weights are apart; without RUN: what this machine has",
		ArgsUsage: "[RUN | A B]",
		Description: "Reads a run folder, including every byte of its checkpoints, and changes nothing.\n" +
			"Exit status 0: the run can be resumed as it is. 1: it should not be; the last lines say why.\n" +
			"A and B are runs, checkpoints or model folders: by layer, the L2 norm of the difference\n" +
			"of their weights as a share of that of A's.\n" +
			"The signs that it looks for in the metrics are described in doc/metrics.md.",
		Action: func(c *cli.Context) error {
			switch c.NArg() {
			case 0:
				return p.examineMachine()
			case 1:
				_, done := p.console().Busy("verifying checkpoints", 0)
				x, err := doctor.Examine(files(), c.Args().First())
				done()
				if err != nil {
					return err
				}
				fmt.Fprint(p.out, x)
				if len(x.Sick) > 0 {
					return errSick
				}
				return nil
			case 2:
				_, done := p.console().Busy("comparing weights", 0)
				x, err := doctor.Compare(files(), c.Args().Get(0), c.Args().Get(1))
				done()
				if err != nil {
					return err
				}
				fmt.Fprint(p.out, x)
				return nil
			}
			return usage("doctor: unexpected argument %q: give one run folder, two of which the weights are to be compared, or none",
				c.Args().Get(2))
		},
	}
}

// examineMachine prints the resources of this machine.
func (p *program) examineMachine() error {
	field := func(name, format string, args ...any) {
		fmt.Fprintf(p.out, "%-9s%s\n", name, fmt.Sprintf(format, args...))
	}
	gb := func(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }
	field("system", "%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	field("cpu", "%s; this machine has %s", be.Name(), strings.Join(cpu.Variants16(), ", "))
	if free := cpu.MemoryAvailable(); free > 0 {
		field("memory", "%s available", gb(free))
	} else {
		field("memory", "not reported by the system")
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	if free, err := files().Free(dir); err == nil {
		field("disk", "%s free in %s", gb(free), dir)
	} else {
		field("disk", "%v", err)
	}
	if gpu, err := cuda.Open(cuda.Options{}); err != nil {
		field("cuda", "%v", err)
	} else {
		field("cuda", "%s, %s free", gpu.Name(), gb(gpu.Available()))
		return gpu.Close()
	}
	return nil
}
