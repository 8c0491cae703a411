// Command gad distils a teacher, of which only the answers are known, into a student language model
// by an adversarial game (arXiv 2511.10643).
//
// This package is the command line: commands, flags and their limits, exit statuses. The work of a
// command is in apps/NAME or in the packages of the pipeline.
//
//	main.go        the table of commands, exit statuses, signals: start here
//	line/          words: their order, advice for mistyped ones, completion, the manual
//	args.go        files and settings among the arguments
//	limits.go      limits of flags, and rules between them
//	resolve.go     names of a hub instead of paths
//	stage.go       the stages: a Config from settings, flags and a run's folder
//	help.go        help, config, resume, and the settings in --help
//	ranks.go       several processes of one run; link.go: their connection
//	tools.go       init, logprobs, score, export
//	study.go       study, and its runs inside this process
//	data.go        data inspect, validate, convert, split
//	collect.go     data collect; rate.go: data rate; soft.go: data score
//	eval.go        eval; fidelity.go, bench.go, doctor.go, plan.go: other measurements
//	generate.go    generate; chat.go, serve.go: other answers; chunks.go: flags of all three
//	board.go       board and report
//	complete.go    completion and man
//	demo.go        one command each: also env.go, pull.go, rubric.go, task.go, version.go
//
// signals_unix.go and signals_other.go list the signals that stop a run.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"gad/apps/session"
	"gad/apps/study"
	"gad/checkpoint"
	"gad/cmd/gad/line"
	"gad/data"
	"gad/device"
	"gad/internal/comm"
	"gad/internal/comm/mpi"
	"gad/internal/compute"
	"gad/internal/conf"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer"
	"gad/trainer/config"
)

// Exit statuses.
const (
	exitDone        = 0
	exitFailed      = 1 // the run broke: a full disk, memory; or the doctor found one sick
	exitUsage       = 2 // usage or configuration
	exitInput       = 3 // data or model files
	exitNumerical   = 5
	exitInterrupted = 75  // saved: run the same command again
	exitStopped     = 130 // by Ctrl-C, with nothing to resume
)

func main() {
	mpi.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// program is the state that commands share: outputs, console and rank.
type program struct {
	out, err     io.Writer
	tty          bool // err is a terminal
	command      string
	jobs         *jobs         // the commands of a study; nil outside of a study
	planRecorder *planRecorder // receives the plan; nil: it is printed
	con          *report.Console
	rank         string // prefix of messages; "" for rank 0 and for one process
	localRank    int    // index of this rank among the ranks of its machine
	ranks        bool   // several processes run the command together
	joined       bool   // the ranks are connected, or must not be, or connecting has failed
	reported     bool   // the reason of the end has been printed
}

// console returns the console for progress, created at the first call.
func (p *program) console() *report.Console {
	if p.con == nil {
		p.con = report.NewConsole(p.err, p.tty)
	}
	return p.con
}

// openDevice starts a device. At the first start on a machine a GPU's driver compiles the kernels,
// some ten seconds, for which one process shows a bar.
func (p *program) openDevice(o device.Options) (compute.Backend, error) {
	if o.Name == device.CUDA && p.rank == "" && p.jobs == nil {
		_, done := p.console().Busy("starting the GPU; its driver compiles the kernels once", 0)
		defer done()
	}
	return session.OpenDevice(o)
}

// session returns the session in which packages of apps run.
func (p *program) session() *session.Session {
	return &session.Session{Out: p.out, Err: p.err, Console: p.console(), FS: files(),
		Signals: p.interruptible}
}

// run executes gad with the given arguments, and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	p := &program{out: stdout, err: stderr, command: strings.Join(args, " ")}
	if f, ok := stderr.(*os.File); ok {
		p.tty = term.IsTerminal(int(f.Fd()))
	}
	p.ranks = len(args) > 1 && slices.Contains(rankCommands, args[1])
	p.warnOfMany(args)
	err := p.invoke(context.Background(), args)
	if err != nil {
		err = p.reportOnce(explainFullDisk(err))
	}
	p.console().Close()
	if err == nil {
		return exitDone
	}
	if !isReported(err) && !p.reportedElsewhere(err) {
		p.printError(err)
	}
	return status(err)
}

// warnOfMany warns if a launcher has started several processes of a command that they do not run
// together: each does all of the work.
func (p *program) warnOfMany(args []string) {
	if p.ranks || len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return
	}
	if l, err := comm.FindLaunch(os.LookupEnv); err == nil && l.Size > 1 && l.Rank == 0 {
		fmt.Fprintf(p.err, "gad: warning: %s has started %d processes, and gad %s is not for several: each does all of it\n", l.By, l.Size, args[1])
	}
}

// explainFullDisk adds the way out to the error of a full disk, unless it has one. A full disk is
// no mistake in a file.
func explainFullDisk(err error) error {
	if isReported(err) || errors.Is(err, checkpoint.ErrSpace) || !errors.Is(err, syscall.ENOSPC) &&
		!errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fault.As(fault.ErrRunning,
		fmt.Errorf("%w: free some space and run the same command again", err))
}

// isReported reports whether err was printed where it occurred.
func isReported(err error) bool {
	return errors.Is(err, fault.ErrInterrupted) || errors.Is(err, errSick)
}

// invoke runs one command line.
func (p *program) invoke(ctx context.Context, args []string) error {
	app := p.app()
	args, err := line.Arrange(app, args)
	if err != nil {
		return err
	}
	return app.RunContext(ctx, args)
}

// app returns the table of commands.
func (p *program) app() *cli.App {
	app := &cli.App{
		Name:                      "gad",
		Usage:                     "train a student model on the answers of a black-box teacher (GAD, arXiv 2511.10643). The game, in texts and documents, is gad train: student against discriminator",
		HideHelpCommand:           true,
		Flags:                     []cli.Flag{cli.HelpFlag}, // cli adds it only beside its own help command
		Version:                   versionText(),
		Writer:                    p.out,
		ErrWriter:                 p.err,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return usage("%v: see gad --help", err)
		},
		Commands: []*cli.Command{
			p.demoCommand(), p.taskCommand(), p.envCommand(), p.dataCommand(), p.initCommand(),
			p.stageCommand(config.SFT), p.stageCommand(config.DPO), p.stageCommand(config.OPD),
			p.stageCommand(config.Warmup),
			p.stageCommand(config.Train),
			p.evalCommand(), p.fidelityCommand(), p.generateCommand(), p.chatCommand(), p.serveCommand(),
			p.logprobsCommand(), p.scoreCommand(), p.rubricCommand(), coachCommand(p),
			p.studyCommand(), p.planCommand(), p.resumeCommand(), p.doctorCommand(),
			p.boardCommand(), p.reportCommand(), p.exportCommand(), p.benchCommand(),
			p.pullCommand(), p.configCommand(), p.completionCommand(), p.manCommand(),
			p.helpCommand(),
		},
	}
	for _, c := range app.Commands {
		oneLineErrors(c)
		resolveNames(c)
	}
	return app
}

// oneLineErrors replaces cli's errors, which print help, by errors of one line, in a command and
// its subcommands.
func oneLineErrors(c *cli.Command) {
	c.HideHelpCommand = true // there is one: gad help
	c.OnUsageError = func(ctx *cli.Context, err error, _ bool) error {
		name := commandName(ctx)
		return usage("%s: %v: see gad %s --help", name, plainError(err, c.Flags), name)
	}
	for _, sub := range c.Subcommands {
		oneLineErrors(sub)
	}
}

var badValue = regexp.MustCompile(`^invalid (?:boolean )?value ("(?:[^"\\]|\\.)*") for (?:flag )?-([\w-]+): (.*)`)

// plainError rewrites an error of parsing the command line without the words of Go's flag package.
func plainError(err error, flags []cli.Flag) error {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	for _, f := range flags {
		if !slices.Contains(f.Names(), m[2]) {
			continue
		}
		want := ""
		switch f.(type) {
		case *cli.IntFlag, *cli.Int64Flag:
			want = "a whole number"
		case *cli.Uint64Flag:
			want = "a whole number of at least 0"
		case *cli.Float64Flag:
			want = "a number"
		case *cli.DurationFlag:
			want = "a time with its unit, such as 90s or 10m"
		case *cli.BoolFlag:
			want = "true or false"
		default:
			return err
		}
		if strings.Contains(m[3], "out of range") {
			want = "a smaller number"
		}
		dashes := "--"
		if len(m[2]) == 1 {
			dashes = "-"
		}
		return fmt.Errorf("%s%s %s: must be %s", dashes, m[2], m[1], want)
	}
	return err
}

// commandName returns the command's name as the user typed it: "data inspect".
func commandName(c *cli.Context) string { return strings.TrimPrefix(c.Command.HelpName, "gad ") }

// usage returns the error of a mistake on the command line.
func usage(format string, args ...any) error { return fault.Usagef(format, args...) }

// status returns the exit status for an error.
func status(err error) int {
	var problems conf.Problems
	var aborted *comm.Aborted
	switch {
	case errors.As(err, &aborted) && aborted.Status > 0:
		return aborted.Status
	case errors.Is(err, fault.ErrInterrupted):
		return exitInterrupted
	case errors.Is(err, fault.ErrStopped):
		return exitStopped
	case errors.Is(err, trainer.ErrNumerical):
		return exitNumerical
	case errors.Is(err, fault.ErrRunning), errors.Is(err, errSick):
		return exitFailed
	case errors.Is(err, fault.ErrUsage), errors.Is(err, config.ErrConfig),
		errors.As(err, &problems), errors.Is(err, checkpoint.ErrLocked),
		errors.Is(err, checkpoint.ErrExists), errors.Is(err, data.ErrExists),
		errors.Is(err, data.ErrChoice),
		errors.Is(err, vfs.ErrTarget), errors.Is(err, study.ErrMemory):
		return exitUsage
	case errors.Is(err, checkpoint.ErrSpace), errors.Is(err, model.ErrMemory):
		return exitFailed
	}
	return exitInput
}

// interruptible returns a context for a training run. The first of stopSignals ends the context, so
// that the run can save; the second ends the process after abort has noted it. Commands that have
// nothing to save leave signals their default effect.
//
// The caller must call the returned function when the run has ended. From then on a signal has no
// effect, unless the process hangs on its way out.
//
// say prints a line above the progress bars; abort removes the bars and prints that the run was
// stopped without a save.
func (p *program) interruptible(say, abort func(text string)) (context.Context, func()) {
	if p.jobs != nil {
		return p.jobs.join(abort) // one signal for all of them
	}
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stopSignals...)
	signal.Ignore(syscall.SIGPIPE) // a closed console is no reason to lose a step
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
		case <-done:
			return
		}
		say("stopping: the run is saved after this step, or before it if it is still sampling; a second Ctrl-C stops at once, without saving")
		cancel()
		select {
		case <-signals:
			noted := make(chan struct{})
			go func() {
				abort("stopped at once by a second signal, without saving")
				close(noted)
			}()
			select {
			case <-noted:
			case <-time.After(300 * time.Millisecond): // a disk may hang
			}
			os.Exit(exitFailed)
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		cancel()
		time.AfterFunc(10*time.Second, func() { signal.Stop(signals) })
	}
}

// deviceOf returns the device that the settings name.
func deviceOf(c config.Config) device.Options {
	return device.Options{Name: c.Trainer.Device, Precision: c.Trainer.Precision,
		Threads: c.Trainer.Threads}
}

// deviceFlags returns the flags common to every command that computes.
func deviceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "device", Value: "cpu", Usage: "where to compute: cpu or cuda"},
		&cli.StringFlag{Name: "precision", Value: "auto",
			Usage: "auto, bf16 or f32; auto is bf16 on cuda, f32 on cpu"},
		&cli.IntFlag{Name: "threads", Usage: "CPU threads; 0 is one per core"},
	}
}

// deviceFlagsOf returns the values of deviceFlags.
func deviceFlagsOf(c *cli.Context) device.Options {
	return device.Options{Name: c.String("device"), Precision: c.String("precision"),
		Threads: c.Int("threads")}
}

// files returns the file system.
func files() vfs.FS { return vfs.OS }

// noArguments refuses positional arguments.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return usage("%s: unexpected argument %q: this command takes flags only", commandName(c),
			c.Args().First())
	}
	return nil
}

// need refuses a command line without one of the named flags, or with an empty one.
func need(c *cli.Context, names ...string) error {
	for _, name := range names {
		if c.IsSet(name) && c.String(name) == "" {
			return usage("%s: --%s \"\": is empty: give a value", commandName(c), name)
		}
		if !c.IsSet(name) {
			return usage("%s: --%s is missing: see gad %s --help", commandName(c), name, commandName(c))
		}
	}
	return nil
}
