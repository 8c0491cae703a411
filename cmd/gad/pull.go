package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/pull"
	"gad/checkpoint"
	"gad/internal/fault"
	"gad/internal/report"
)

// pullCommand returns the command gad pull.
func (p *program) pullCommand() *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "fetch a model (or a data set) from a Hugging Face hub into the cache that its programs share. After an interruption the same command resumes",
		ArgsUsage: "OWNER/NAME[@REVISION][:FILE]",
		Description: "Prints the folder, or the file, that was fetched. Then --model OWNER/NAME finds it, without a connection. FILE is a GGUF file, or its quantisation: OWNER/NAME-GGUF:Q8_0.\n" +
			"Environment: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE mean what they mean to the hub's own programs.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "revision", DefaultText: "main", Usage: "branch, tag or commit"},
			&cli.BoolFlag{Name: "dataset", Usage: "OWNER/NAME is a data set; FILE may be a pattern, such as 'data/train-*.parquet'"},
			&cli.BoolFlag{Name: "dry-run",
				Usage: "print the files and their sizes and fetch nothing"},
			&cli.BoolFlag{Name: "verify", Usage: "hash the large files too that are in the cache already; damaged ones are fetched again"},
			withLimits(&cli.IntFlag{Name: "retries", Value: 5,
				Usage: "tries in a row without progress, after the first"}, atLeast(0)),
			withLimits(&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second,
				Usage: "longest silence of the server"}, positive(math.MaxFloat64)),
			&cli.BoolFlag{Name: "insecure-http",
				Usage: "allow an HF_ENDPOINT with http:// on another machine"},
		},
		Action: func(c *cli.Context) error {
			err := p.pull(c)
			switch {
			case errors.Is(err, pull.ErrName):
				return fault.As(fault.ErrUsage, err)
			case errors.Is(err, pull.ErrNetwork), errors.Is(err, pull.ErrSpace):
				return fault.As(fault.ErrRunning, err)
			}
			return err
		},
	}
}

// pull runs gad pull.
func (p *program) pull(c *cli.Context) error {
	switch {
	case c.NArg() == 0:
		return usage("pull: a name is missing: give OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct")
	case c.NArg() > 1:
		return usage("pull: unexpected argument %q: give one name", c.Args().Get(1))
	}
	text := c.Args().First()
	name, err := pull.ParseName(text, c.Bool("dataset"))
	if err != nil {
		return err
	}
	if rev := c.String("revision"); rev != "" {
		if name.Revision != "" {
			return usage("pull: %s and --revision %s: give the revision once", text, rev)
		}
		name.Revision = rev
		if name, err = pull.ParseName(name.String(), name.Dataset); err != nil {
			return err
		}
	}
	env, err := pull.FromEnvironment(files(), os.Getenv)
	if err != nil {
		return err
	}
	con := p.console()
	defer con.Close()
	if env.Offline {
		path, err := pull.Find(files(), env.Cache, name)
		if err != nil {
			return fmt.Errorf("%w, and HF_HUB_OFFLINE is set: unset it", err)
		}
		fmt.Fprintln(p.out, path)
		return nil
	}
	ctx, stop := p.session().Stoppable(
		func() string { return "stopping: what has come is kept, and the same command resumes" },
		func() string { return "what has come is kept" })
	defer stop()
	done := func() {}
	if p.tty { // in a pipe the lines of tries say enough
		_, done = con.Busy("asking "+env.Endpoint, 0)
	}
	job, err := pull.Open(ctx, pull.Options{
		FS: files(), Environment: env, Name: name, InsecureHTTP: c.Bool("insecure-http"),
		Timeout: c.Duration("timeout"), Retries: c.Int("retries"),
		Verify:   c.Bool("verify"),
		Say:      func(format string, args ...any) { con.Print(fmt.Sprintf(format, args...)) },
		Progress: con.Busy,
	})
	done()
	if err == nil && c.Bool("dry-run") {
		return job.Print(p.out, env.Cache)
	}
	fetched := int64(0)
	if err == nil {
		fetched = job.Missing()
		err = job.Fetch(ctx)
	}
	con.Close()
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(p.err,
			"gad: pull: interrupted: what has come is kept: run the same command to resume\n")
		return fault.ErrInterrupted
	case err != nil:
		return checkpoint.ExplainFull(files(), env.Cache, 0, err)
	}
	con.Print(fmt.Sprintf("%s: %s, %s; %s fetched", name, report.Count(len(job.Items), "file"),
		pull.Bytes(job.Size()), pull.Bytes(fetched)))
	fmt.Fprintln(p.out, job.Path())
	return nil
}
