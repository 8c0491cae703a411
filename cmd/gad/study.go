package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/session"
	"gad/apps/study"
	"gad/checkpoint"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/plan"
	"gad/trainer/saved"
)

// studyCommand returns the command gad study.
func (p *program) studyCommand() *cli.Command {
	return &cli.Command{
		Name:      "study",
		Usage:     "compare several ways of training over several seeds, from one file: means, 95 % intervals, paired differences, cost",
		ArgsUsage: "FILE",
		Flags: []cli.Flag{
			withLimits(&cli.IntFlag{Name: "jobs", Usage: "commands that run at the same time; 0 is as many as cores and memory allow, on cuda one"}, atLeast(0)),
			&cli.BoolFlag{Name: "table",
				Usage: "write the tables from finished runs, and run nothing; of a FILE.tsv (a study's tables as data, such as doc/study/*.tsv), print them"},
			&cli.BoolFlag{Name: "dry-run",
				Usage: "print the command lines and an estimate of the time, and stop"},
		},
		Action: func(c *cli.Context) error {
			file := c.Args().First()
			if file == "" {
				return usage("study: the study file is missing: gad study FILE (see doc/study.md)")
			}
			// flags after the file
			if rest := c.Args().Tail(); len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
				args := append([]string{"gad", "study"}, rest...)
				for _, name := range []string{"jobs", "table", "dry-run"} {
					if c.IsSet(name) {
						args = append(args, fmt.Sprintf("--%s=%v", name, c.Value(name)))
					}
				}
				return p.invoke(c.Context, append(args, file))
			} else if len(rest) > 0 {
				return usage("study: unexpected argument %q: this command takes one file", rest[0])
			}
			if strings.HasSuffix(file, ".tsv") {
				return p.printTables(file, c.Bool("table"))
			}
			plan, err := study.Read(file)
			if err != nil {
				return err
			}
			return p.study(plan, c.Int("jobs"), c.Bool("table"), c.Bool("dry-run"))
		},
	}
}

// printTables prints the tables of a finished study as Markdown, from their file of data. table is
// the flag --table, without which it refuses the file.
func (p *program) printTables(file string, table bool) error {
	if !table {
		return usage("study: %s: tables of a finished study: give --table to print them", file)
	}
	data, err := files().ReadFile(file)
	if err != nil {
		return fmt.Errorf("study: %s: cannot be read: %w: give a file such as doc/study/doors.tsv",
			file, err)
	}
	text, err := study.TSVToMarkdown(file, string(data))
	if err == nil {
		fmt.Fprint(p.out, text)
	}
	return err
}

// study runs a study, or writes its tables.
func (p *program) study(plan *study.Plan, n int, table, dry bool) error {
	all := &jobs{aborts: map[int]func(string){}}
	o := study.Options{FS: files(), Gad: inProcess{p, all}, Jobs: n, Cores: runtime.GOMAXPROCS(0),
		Log: p.err, Now: time.Now}
	if dry {
		return studyError(study.DryRun(plan, o, p.out))
	}
	lock, err := checkpoint.LockRun(plan.Dir)
	if err == nil {
		defer lock.Unlock()
	} else if !table || !errors.Is(err, checkpoint.ErrLocked) {
		return err
	}
	var report *study.Report
	if held := lock != nil; table {
		// by a process that runs the study
		if report, err = study.Tables(plan, o, held); err == nil && !held {
			fmt.Fprint(p.out, report.Markdown())
			fmt.Fprintf(p.err, "%s is in use: these are the tables of what is finished by now, and nothing is written\n", plan.Dir)
			return nil
		}
	} else {
		var stop func()
		all.ctx, stop = p.interruptible(func(text string) { fmt.Fprintln(p.err, text) }, all.abort)
		report, err = study.Run(all.ctx, plan, o)
		stop()
	}
	switch {
	case errors.Is(err, study.ErrInterrupted):
		fmt.Fprintf(p.err,
			"stopped: run the same command again to resume; tables of the finished parts: %s\n",
			filepath.Join(plan.Dir, study.TablesName))
		return err
	case report != nil:
		fmt.Fprint(p.out, report.Markdown())
		fmt.Fprintf(p.err, "%s and %s in %s\n", study.TablesName, study.JSONName, plan.Dir)
	}
	return studyError(err)
}

// studyError marks the errors of a study for the exit status.
func studyError(err error) error {
	if err != nil && errors.Is(err, fault.ErrRunning) {
		return fault.As(fault.ErrRunning, err)
	}
	return err
}

// jobs holds the training commands that run concurrently in this process. A signal stops all of
// them.
type jobs struct {
	ctx    context.Context
	mu     sync.Mutex
	next   int
	aborts map[int]func(why string)
}

// join adds a command, and returns what interruptible returns for a single command.
func (j *jobs) join(abort func(why string)) (context.Context, func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := j.next
	j.next++
	j.aborts[id] = abort
	return j.ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.aborts, id)
	}
}

// abort notes in the log of each command that it is stopped at once.
func (j *jobs) abort(why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var wait sync.WaitGroup
	for _, abort := range j.aborts {
		wait.Go(func() { abort(why) })
	}
	wait.Wait()
}

// inProcess runs gad's command lines within this process.
type inProcess struct {
	p    *program
	jobs *jobs
}

// Run runs one command line.
func (g inProcess) Run(ctx context.Context, args []string, out, log io.Writer) error {
	if ctx.Err() != nil {
		return study.ErrInterrupted
	}
	args = append([]string{"gad"}, args...)
	one := &program{out: out, err: log, command: strings.Join(args, " "), jobs: g.jobs}
	app := one.app()
	removeHelp(app)
	err := app.RunContext(ctx, args)
	if errors.Is(err, trainer.ErrNumerical) {
		return fault.As(study.ErrFinal, err)
	}
	return err
}

// removeHelp removes help from a command line that runs concurrently with others: the library's
// help flag and command are global variables, which every parse writes to.
func removeHelp(app *cli.App) {
	app.HideHelp, app.HideHelpCommand = true, true
	for _, c := range app.Commands {
		c.HideHelp, c.HideHelpCommand = true, true
	}
}

// Checkpoint returns the newest checkpoint of a run that verifies.
func (g inProcess) Checkpoint(run string) (string, error) {
	dir, _, err := saved.Find(files(), run)
	return dir, err
}

// Plan returns the resources of a command line, from gad plan.
func (g inProcess) Plan(args []string, timed bool) (study.Needs, error) {
	take := &planRecorder{timed: timed}
	one := &program{out: io.Discard, err: io.Discard, planRecorder: take}
	err := one.invoke(context.Background(),
		append([]string{"gad", "plan", "--stage", args[0]}, args[1:]...))
	return take.needs, err
}

// planRecorder receives the plan that gad plan would print.
type planRecorder struct {
	timed bool
	needs study.Needs
}

// record plans a run and keeps the numbers that a study needs.
func (t *planRecorder) record(d device.Options, cfg config.Config, stage config.Stage) error {
	if err := cfg.Validate(stage); err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	be, err := session.OpenDevice(d)
	if err != nil {
		return err
	}
	defer be.Close()
	free := be.Available()
	var timer compute.Backend
	if t.timed {
		timer = be
	}
	plan, err := plan.New(timer, be, free, files(), cfg, stage)
	if err != nil {
		return err
	}
	t.needs = study.Needs{Free: free, Steps: plan.Steps}
	for _, i := range plan.Memory {
		t.needs.Bytes += i.Bytes
	}
	for _, s := range plan.StepTime {
		t.needs.StepSeconds += s.Seconds
	}
	return plan.Check(cfg)
}
