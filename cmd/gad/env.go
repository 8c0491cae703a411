package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/env/games"
	"gad/apps/env/openenv"
	"gad/apps/env/planner"
	"gad/internal/endpoint"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/report"
)

// envCommand returns the command gad env check, and a subcommand for each environment that ships.
func (p *program) envCommand() *cli.Command {
	check := &cli.Command{
		Name:  "check",
		Usage: "play ten random episodes of an environment, twice, and say what breaks the protocol or is not deterministic",
		Description: "First one episode after another, then all again at once with the same seeds and turns: the replies must be equal.\n" +
			"With --data the rows of gad task make, or your own: their teachers' episodes are played too, and must be what was recorded.\n" +
			"Exit status 0: nothing is wrong. 2: the program is no environment. 3: the last lines say what is wrong.\n" +
			"The protocol, and how to write an environment: doc/environments.md.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "env",
				Usage: "command that runs the environment, for the shell; $GAD is this program"},
			&cli.StringFlag{Name: "data", Usage: "JSON lines whose columns content and env the environment gets; without it, it gets neither"},
			withLimits(&cli.Uint64Flag{Name: "seed", Value: 1,
				Usage: "seed of the first episode, and of the random turns"}, intRange(0, 1<<52)),
			withLimits(&cli.IntFlag{Name: "workers", Value: 2, Usage: "processes of the environment"},
				oneTo(64, "")),
			withLimits(&cli.DurationFlag{Name: "timeout", Value: time.Minute,
				Usage: "time limit of one reply"}, positive(86400)),
		},
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "env")); err != nil {
				return err
			}
			return p.checkEnv(c)
		},
	}
	subcommands, names := []*cli.Command{check}, "check"
	all := games.Games()
	for i, g := range all {
		before := ", "
		if i == len(all)-1 {
			before = " or "
		}
		names += before + g.Name
		subcommands = append(subcommands, &cli.Command{
			Name: g.Name, Usage: "an environment for --env: " + g.About,
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				return g.Serve(os.Stdin, p.out)
			},
		})
	}
	names = strings.Replace(names, " or ", ", ", 1) + ", planner or openenv"
	subcommands = append(subcommands, p.plannerCommand(), p.openenvCommand())
	return &cli.Command{
		Name:        "env",
		Usage:       "check an environment in which a student acts in turns, or run one of those that ship",
		Action:      func(c *cli.Context) error { return noSubcommand(c, names) },
		Subcommands: subcommands,
	}
}

// plannerCommand returns the command gad env planner.
func (p *program) plannerCommand() *cli.Command {
	return &cli.Command{
		Name:  "planner",
		Usage: "an environment for --env: the planner of four roles, whose contexts are rebuilt from a memory of steps",
		Description: "The student plans a step a turn, for a tool. Executor, verifier and generator are rules, or, with --helper, a model behind an\n" +
			"endpoint, such as gad serve; it is asked at temperature 0. Rows: doc/environments.md.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "helper", Usage: "base URL of an OpenAI endpoint for the roles beside the planner; without it they are rules"},
			&cli.StringFlag{Name: "helper-model",
				Usage: "the helper, as the endpoint calls it"},
			&cli.StringFlag{Name: "helper-key-env", Value: defaultKeyEnv,
				DefaultText: defaultKeyEnv + "; none for an endpoint on this machine",
				Usage:       "environment variable with the endpoint's key; empty for none"},
			&cli.StringFlag{Name: "helper-journal", Usage: "existing folder that keeps the helper's answers, a file each: an episode that is played again does not ask again"},
			&cli.BoolFlag{Name: "insecure-http",
				Usage: "allow http:// to another machine, which sends key and prompts as plain text"},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			helper, err := plannerHelper(c)
			if err != nil {
				return err
			}
			return planner.Serve(os.Stdin, p.out, helper)
		},
	}
}

// plannerRules refuses flags of gad env planner that have no meaning without a helper.
var plannerRules = rules{{flags: []string{"helper-model", "helper-key-env", "helper-journal",
	"insecure-http"}, other: "helper", message: ": needs --helper URL, the endpoint of a helper"}}

// plannerHelper returns the helper of gad env planner; nil without one. It opens no connection.
func plannerHelper(c *cli.Context) (*planner.Helper, error) {
	o := endpoint.Options{BaseURL: c.String("helper"), InsecureHTTP: c.Bool("insecure-http"),
		Timeout: time.Minute, Retries: 3}
	if err := plannerRules.check(c); err != nil || o.BaseURL == "" {
		return nil, err
	}
	if err := need(c, "helper-model"); err != nil {
		return nil, err
	}
	err := endpoint.CheckURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	key := c.String("helper-key-env")
	if key != "" && (c.IsSet("helper-key-env") || !endpoint.Loopback(o.BaseURL)) {
		if o.Key, err = endpoint.KeyFromEnv(key); err != nil {
			return nil, fault.As(fault.ErrUsage, err)
		}
	}
	h := &planner.Helper{Model: c.String("helper-model"), Dir: c.String("helper-journal"),
		FS: files()}
	if h.Dir != "" {
		if info, err := h.FS.Stat(h.Dir); err != nil || !info.IsDir() {
			return nil, usage("env planner: --helper-journal %s: is no folder: create it", h.Dir)
		}
	}
	if h.Client, err = endpoint.New(o); err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	return h, nil
}

// openenvCommand returns the command gad env openenv.
func (p *program) openenvCommand() *cli.Command {
	return &cli.Command{
		Name: "openenv", Usage: "an environment for --env: one that an OpenEnv server plays",
		ArgsUsage: "ws://HOST/ws",
		Flags: []cli.Flag{
			withLimits(&cli.IntFlag{Name: "episodes", Value: 1, Usage: "episodes at once, a connection each; the server's max_concurrent_envs is 1 unless it says otherwise"},
				oneTo(4096, "")),
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("env openenv: one address of a server is wanted, such as ws://localhost:8000/ws: given are %d", c.NArg())
			}
			server, err := openenv.Open(c.Context, c.Args().First(), c.Int("episodes"))
			if errors.Is(err, openenv.ErrAddress) {
				return fault.As(fault.ErrUsage, err)
			}
			if err != nil {
				return fault.As(fault.ErrRunning, err)
			}
			return server.Serve(os.Stdin, p.out)
		},
	}
}

// checkEnv runs gad env check.
func (p *program) checkEnv(c *cli.Context) error {
	var rows []games.Recorded
	if path := c.String("data"); path != "" {
		f, err := os.Open(path)
		if err != nil {
			return fault.Usagef("env check: %w: give JSON lines, such as those of gad task make",
				err)
		}
		defer f.Close()
		if rows, err = games.ReadRows(f); err != nil {
			return fmt.Errorf("env check: %s: %w", path, err)
		}
	}
	ctx, cancel := signal.NotifyContext(c.Context, stopSignals...)
	defer cancel()
	command := c.String("env")
	opt := env.Options{Command: command, Workers: c.Int("workers"), Timeout: c.Duration("timeout")}
	pool, err := env.Open(ctx, opt)
	if err == nil {
		defer pool.Close()
		var broken []string
		broken, err = games.Check(ctx, pool, c.Uint64("seed"), rows, p.out)
		if err == nil && len(broken) == 0 {
			fmt.Fprintln(p.out,
				"nothing breaks the protocol, and the same seeds and turns give the same replies")
			return nil
		}
		for _, text := range broken {
			fmt.Fprintln(p.out, text)
		}
		if err == nil {
			return fmt.Errorf("env check: %q: %s: see doc/environments.md", command,
				report.Count(len(broken), "fault"))
		}
	}
	if errors.Is(err, context.Canceled) {
		return fault.As(fault.ErrStopped, errors.New("env check: stopped"))
	}
	return fault.As(fault.ErrUsage, err)
}
