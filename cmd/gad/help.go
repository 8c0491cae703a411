package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"gad/checkpoint"
	"gad/cmd/gad/line"
	"gad/internal/conf"
	"gad/internal/report"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// helpCommand returns the command gad help.
func (p *program) helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "show help on a command; gad help settings [PREFIX] describes the settings",
		ArgsUsage: "[COMMAND ... | settings [PREFIX]]",
		Flags: []cli.Flag{&cli.StringFlag{Name: "stage", DefaultText: "the paper's game",
			Usage: "with settings: the stage whose defaults are shown: sft, dpo, opd, warmup or train"}},
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if len(args) == 0 || args[0] != "settings" {
				return p.invoke(c.Context, append(append([]string{"gad"}, args...), "--help"))
			}
			if len(args) > 2 {
				return usage(
					"help settings: unexpected argument %q: give one prefix, such as actor.optim",
					args[2])
			}
			prefix := ""
			if len(args) == 2 {
				prefix = args[1]
			}
			cfg := config.Default()
			if c.IsSet("stage") {
				stage, err := stageNamed(c)
				if err != nil {
					return err
				}
				cfg = config.StageDefaults(stage)
			}
			text := conf.Help(&cfg, prefix)
			if text == "" { // then settings with prefix anywhere in their names
				for _, s := range conf.Describe(&cfg) {
					if strings.Contains(s.Key, prefix) {
						text += conf.Help(&cfg, s.Key)
					}
				}
			}
			if text == "" {
				return usage(
					"help settings: no setting has %q in its name: gad help settings lists all",
					prefix)
			}
			fmt.Fprint(p.out, text)
			return nil
		},
	}
}

// configCommand returns the command gad config.
func (p *program) configCommand() *cli.Command {
	return &cli.Command{
		Name:        "config",
		Usage:       "print a commented YAML file of all settings, to edit and give to --config",
		ArgsUsage:   "[KEY=VALUE ...]",
		Description: "Writes every setting with its meaning and the stage's default: gad config --stage train > run.yaml",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "stage", Value: string(config.Train),
				Usage: "the stage whose defaults are written: " + config.StageNames()},
			presetFlag(),
		},
		Action: func(c *cli.Context) error {
			stage, err := stageNamed(c)
			if err != nil {
				return err
			}
			preset, err := config.Preset(c.String("preset"), stage)
			if err != nil {
				return usage("%s: --preset: %v", commandName(c), err)
			}
			defaults, cfg := config.StageDefaults(stage), config.StageDefaults(stage)
			if err := conf.Load(&cfg, "", append(preset, c.Args().Slice()...), nil); err != nil {
				return err
			}
			text, err := conf.Template(&cfg, &defaults)
			if err != nil {
				return err
			}
			kept := "keeps its default"
			if stage == config.Train {
				kept = "is the warm-up's, or has its default"
			}
			fmt.Fprintf(p.out, "# The settings of gad %s, with their defaults. Take the # away from a line to change it: a setting that is not given %s.\n", stage, kept)
			_, err = p.out.Write(text)
			return err
		},
	}
}

// stageNamed returns the stage that --stage names; more lists further values of the flag, for the
// error.
func stageNamed(c *cli.Context, more ...string) (config.Stage, error) {
	stage := config.Stage(c.String("stage"))
	if stage == "game" { // the documents' word
		stage = config.Train
	}
	if !slices.Contains(config.Stages, stage) {
		names := more
		for _, s := range slices.Backward(config.Stages) {
			names = append([]string{string(s)}, names...)
		}
		return "", usage("%s: --stage %q: must be %s", commandName(c), stage, strings.Join(names, ", "))
	}
	return stage, nil
}

// mainSettings lists the settings that most runs of a stage change, for --help.
var mainSettings = map[config.Stage][]string{
	config.SFT: {"data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
		"actor.optim.lr", "trainer.total_epochs",
		"trainer.save_freq", "trainer.test_freq", "actor.max_token_len", "actor.recompute"},
	config.DPO: {"data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
		"dpo.beta", "dpo.loss_type", "actor.optim.lr",
		"rollout.temperature", "trainer.total_epochs", "trainer.save_freq", "actor.max_token_len"},
	config.OPD: {"data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
		"rollout.n", "actor.optim.lr", "actor.ppo_mini_batch_size", "teacher.loss", "teacher.beta",
		"teacher.system", "teacher.weights", "trainer.total_epochs", "trainer.save_freq",
		"trainer.test_freq",
		"actor.max_token_len"},
	config.Warmup: {"data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
		"rollout.n", "rollout.temperature",
		"critic.optim.lr", "critic.ppo_mini_batch_size", "trainer.critic_warmup_until",
		"actor.optim.lr", "trainer.total_epochs", "trainer.save_freq"},
	config.Train: {"data.train_batch_size", "data.max_response_length", "rollout.n",
		"rollout.temperature", "actor.optim.lr", "actor.kl_loss_coef",
		"actor.clip_ratio_low", "actor.clip_ratio_high", "actor.ppo_mini_batch_size",
		"critic.optim.lr", "trainer.total_epochs", "trainer.save_freq", "trainer.test_freq"},
}

// settingsHelps caches the text of settingsHelp for each stage.
var settingsHelps sync.Map

// settingsHelp returns the part of a stage's --help about settings.
func settingsHelp(stage config.Stage) string {
	if text, ok := settingsHelps.Load(stage); ok {
		return text.(string)
	}
	cfg := config.StageDefaults(stage)
	all := conf.Describe(&cfg)
	var b strings.Builder
	b.WriteString("Settings are KEY=VALUE, before or after the flags, or a YAML file (--config). The ones that most runs change, with their defaults:\n\n")
	for _, key := range mainSettings[stage] {
		s := all[slices.IndexFunc(all, func(s conf.Setting) bool { return s.Key == key })]
		fmt.Fprintf(&b, "  %-34s %s\n", s.Key+"="+s.Default, line.Brief(s.Doc))
	}
	fmt.Fprintf(&b, "\nAll of them: gad help settings [PREFIX]. A commented file to edit: gad config --stage %s > run.yaml", stage)
	settingsHelps.Store(stage, b.String())
	return b.String()
}

// resumeCommand returns the command gad resume.
func (p *program) resumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "resume an interrupted run of any stage from its newest checkpoint",
		ArgsUsage: "RUN [KEY=VALUE ...]",
		Description: "The same as repeating the command that began the run; all settings are read from the run's folder. " +
			"Settings that may change within a run, and --steps, can be given.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "steps",
				Usage: "total number of steps; a larger number than before extends the run"},
			&cli.StringFlag{Name: "checker", Usage: "the run's checker program; it must be given again, since gad starts no program that only a folder names"},
			&cli.StringFlag{Name: "env",
				Usage: "the run's environment, which must be given again for the same reason"},
			&cli.StringFlag{Name: "teacher-url",
				Usage: "the run's teacher's server, which must be given again for the same reason"},
			&cli.StringFlag{Name: "device", Usage: "where to compute: cpu or cuda"},
			&cli.StringFlag{Name: "threads", Usage: "CPU threads; 0 is one per core"},
			ranksFlag(),
			&cli.BoolFlag{Name: "dry-run",
				Usage: "print the resolved configuration and the plan, and stop"},
		},
		Action: func(c *cli.Context) error {
			run := c.Args().First()
			if _, err := files().Stat(run); run == "" || err != nil && strings.Contains(run, "=") {
				return usage("resume: the run is missing: gad resume RUN, where RUN is the --output of gad %s", config.StageNames())
			}
			if info, err := files().Stat(run); err != nil || !info.IsDir() {
				return usage("resume: %s: no such folder: give the --output of gad %s", run,
					config.StageNames())
			}
			if strings.HasPrefix(filepath.Base(filepath.Clean(run)), "global_step_") {
				return usage("resume: %s: is a checkpoint: give its run, %s", run,
					filepath.Dir(filepath.Clean(run)))
			}
			if extra := c.Args().Get(1); extra != "" && !strings.Contains(extra, "=") {
				return usage("resume: unexpected argument %q: gad resume takes one run; what follows are settings, KEY=VALUE", extra)
			}
			stage, err := saved.StageOf(files(), run)
			if errors.Is(err, checkpoint.ErrNone) {
				again := ""
				if w, err := report.ReadLastWord(files(), run); err == nil && w.Command != "" &&
					!strings.Contains(w.Command, " resume ") {
					again = ": " + w.Command
				}
				if runs := runsIn(run); len(runs) > 0 {
					return usage("resume: %s: contains runs and is none: give one of them, such as %s",
						run, runs[len(runs)-1])
				}
				return usage("resume: %s: contains no checkpoint to resume: repeat the command that began the run%s", run, again)
			} else if err != nil {
				return err
			}
			if _, err := files().Stat(filepath.Join(run, "config.yaml")); errors.Is(err,
				fs.ErrNotExist) {
				return usage("resume: %s: its config.yaml, with the run's settings, is missing: restore it, or repeat the whole command that began the run", run)
			}
			args := []string{"gad", string(stage), "--output", run}
			for _, name := range []string{"steps", "checker", "env", "teacher-url",
				"device", "threads", "ranks"} {
				if c.IsSet(name) {
					args = append(args, "--"+name, fmt.Sprint(c.Value(name)))
				}
			}
			if c.Bool("dry-run") {
				args = append(args, "--dry-run")
			}
			return p.invoke(c.Context, append(args, c.Args().Tail()...))
		},
	}
}

// runsIn returns the folders of runs inside of a folder.
func runsIn(dir string) (runs []string) {
	entries, err := files().ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		run := filepath.Join(dir, e.Name())
		if _, err := saved.StageOf(files(), run); err == nil {
			runs = append(runs, run)
		}
	}
	return runs
}
