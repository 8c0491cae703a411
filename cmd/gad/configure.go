package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/checkpoint"
	"gad/internal/conf"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// A run's settings have these sources; a later one overrides an earlier one:
//
//  1. the defaults of its stage
//  2. the config.yaml of its own folder, if the run goes on; else what was chosen for the run that
//     --resume names
//  3. --preset
//  4. the file of --config
//  5. KEY=VALUE on the command line, and the flags that stand for settings
//
// The folders of 2 are settings themselves, so 4 and 5 are read for them beforehand. A program or a
// server is taken from 4 and 5 alone.

// settings is a Config under construction.
type settings struct {
	c     *cli.Context
	stage config.Stage
	flags []conf.Flag // settings that were given as flags

	output, resume string // the run's folder, and the run or checkpoint that it starts from
	continues      bool   // output has a run already, which goes on

	cfg   config.Config
	taken config.Config // cfg after sources 1 and 2
	notes []string      // what changed since the run began, and what was given and is not read
}

// configure builds the settings of a command from their sources, one step a source. notes are
// warnings about them.
func (p *program) configure(c *cli.Context,
	stage config.Stage) (cfg config.Config, notes []string, err error) {
	s := settings{c: c, stage: stage, cfg: config.StageDefaults(stage)}
	for _, step := range []func() error{
		s.readFlags,       // flags become settings; a mistake in the arguments ends it here
		s.findFolders,     // --config and the command line, only for --output and --resume
		s.readOwnRun,      // config.yaml of --output: a run that goes on keeps its settings
		s.readStart,       // a new run has the settings of the run that it starts from
		s.forgetPrograms,  // a folder may be a stranger's: it starts nothing
		s.readPreset,      // a method's settings; what was chosen for the start of the run stays
		s.readCommandLine, // --config, KEY=VALUE and flags, which override all before
		s.checkPrograms,   // a forgotten program is given again, or there is none
		s.checkChanges,    // a run that goes on: what may not change, and what did
	} {
		if err := step(); err != nil {
			return cfg, nil, err
		}
	}
	return s.cfg, append(s.notes, ignoredSettings(stage, s.cfg, c.Args().Slice())...), nil
}

func (s *settings) readFlags() (err error) {
	if s.c.String("steps") == "0" {
		return usage("%s: --steps 0: must be at least 1; leave it out for as many as "+
			"trainer.total_epochs takes", commandName(s.c))
	}
	for _, f := range stageFlags {
		s.flags = append(s.flags, f.settings(s.c)...)
	}
	s.notes, err = checkArguments(s.c, s.flags)
	return err
}

// findFolders sets the folder of the run and the folder of its start. A run that --resume names
// alone goes on in its own folder.
func (s *settings) findFolders() error {
	given := config.StageDefaults(s.stage)
	if err := s.loadGiven(&given); err != nil {
		return err
	}
	s.output, s.resume = given.Trainer.Output, given.Trainer.Resume
	if s.output != "" || s.resume == "" {
		return nil
	}
	if steps, err := checkpoint.Steps(files(), s.resume); err == nil && len(steps) > 0 {
		s.output = s.resume
		s.flags = append(s.flags, conf.Flag{Key: "trainer.default_local_dir", Value: s.output,
			Name: "--resume"})
	}
	return nil
}

// loadGiven reads the file of --config, KEY=VALUE and the flags into cfg.
func (s *settings) loadGiven(cfg *config.Config) error {
	return conf.Load(cfg, s.c.String("config"), s.c.Args().Slice(), s.flags)
}

func (s *settings) readOwnRun() error {
	if s.output == "" {
		return nil
	}
	own := filepath.Join(s.output, "config.yaml")
	if _, err := files().Stat(own); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return usage("trainer: %s: cannot be used as run folder: %v: give another --output",
			s.output, err)
	}
	s.continues = true
	if err := conf.Load(&s.cfg, own, nil, nil); err != nil {
		return fmt.Errorf("%w: the run's config.yaml cannot be read", err)
	}
	return nil
}

// readStart takes over the chosen settings of the run that a new run starts from, and notes where
// the file of --config chooses otherwise.
func (s *settings) readStart() error {
	if s.resume == "" || s.continues {
		return nil
	}
	if err := inherit(&s.cfg, s.resume); err != nil {
		return err
	}
	file := s.cfg
	if err := conf.Load(&file, s.c.String("config"), nil, nil); err != nil {
		return err
	}
	for _, change := range config.Changes(s.cfg, file) {
		s.notes = append(s.notes, fmt.Sprintf("%s overrides the settings of %s: %s",
			s.c.String("config"), s.resume, change))
	}
	return nil
}

func (s *settings) forgetPrograms() error {
	s.taken = s.cfg
	for _, x := range outside {
		*x.of(&s.cfg) = ""
	}
	s.cfg.Teacher.InsecureHTTP = false // it is consent to one address
	return nil
}

func (s *settings) readPreset() error {
	preset, err := config.Preset(s.c.String("preset"), s.stage)
	if err != nil {
		return usage("%s: --preset: %v", commandName(s.c), err)
	}
	if err := conf.Load(&s.cfg, "", preset, nil); err != nil {
		return err
	}
	if preset == nil || s.resume == "" || s.continues {
		return nil
	}
	kept, err := keepChosen(&s.cfg, &s.taken, s.resume, s.c.String("preset"))
	s.notes = append(s.notes, kept...)
	return err
}

func (s *settings) readCommandLine() error {
	if err := s.loadGiven(&s.cfg); err != nil {
		return err
	}
	return localSettings(&s.cfg)
}

// checkPrograms refuses a program or an address that only a run's own folder names: it must be
// given on each command line, an empty one too.
func (s *settings) checkPrograms() error {
	for _, x := range outside {
		if was := *x.of(&s.taken); was != "" && *x.of(&s.cfg) == "" && !says(s.c, x.flag, x.key) {
			return usage("%s: the run's settings name %s, %q: gad does not %s because a folder "+
				"names it: give --%s %q again%s", commandName(s.c), x.what, was, x.rule, x.flag, was,
				x.none)
		}
	}
	return nil
}

// checkChanges compares the settings of a run that goes on with those it began with.
func (s *settings) checkChanges() error {
	if !s.continues {
		return nil
	}
	if filepath.Clean(s.cfg.Trainer.Resume) == filepath.Clean(s.cfg.Trainer.Output) {
		s.cfg.Trainer.Resume = s.taken.Trainer.Resume // going on with itself is no other start
	}
	if was, err := saved.StageOf(files(), s.output); err == nil && was != s.stage {
		return fmt.Errorf(
			"%w: trainer: %s: contains a run of stage %s, not %s: give another --output",
			config.ErrConfig, s.output, was, s.stage)
	}
	if err := config.CheckChange(&s.taken, &s.cfg); err != nil {
		return err
	}
	own := ofPreset(s.c, s.cfg, s.stage) // whose warm-up the run has shortened
	for _, change := range config.Changes(s.taken, s.cfg) {
		if key, _, _ := strings.Cut(change, " "); strings.HasSuffix(key, ".lr_warmup_steps") &&
			slices.Contains(own, key) {
			continue
		}
		s.notes = append(s.notes, "resumed with another setting: "+change)
	}
	return nil
}

// ofPreset lists the settings that --preset gave and that have its value still, because neither the
// command line nor the file of --config gives another.
func ofPreset(c *cli.Context, cfg config.Config, stage config.Stage) (keys []string) {
	set, err := config.Preset(c.String("preset"), stage)
	if err != nil {
		return nil // configure has refused it
	}
	with := cfg
	for _, s := range set {
		key, _, _ := strings.Cut(s, "=")
		if err := conf.Load(&with, "", []string{s}, nil); err == nil && !says(c, "", key) &&
			len(config.Changes(cfg, with)) == 0 {
			keys = append(keys, key)
		}
		with = cfg
	}
	return keys
}

// says reports whether the command line sets a setting, by its flag or by its name.
func says(c *cli.Context, flag, key string) bool {
	return c.IsSet(flag) || slices.ContainsFunc(c.Args().Slice(),
		func(s string) bool { return strings.HasPrefix(s, key+"=") })
}

// outside lists the settings that name a program to start or a server to send texts and a key to.
// A run's folder may be a stranger's, so gad takes them from the command line alone.
var outside = []struct {
	flag, key string
	what      string // the value is, with its article
	rule      string // what gad does not do because a folder says so
	none      string // how to go on without, after "or"; "" where nothing can
	of        func(*config.Config) *string
}{
	{"checker", "trainer.checker", "a checker", "start a program",
		", or trainer.checker= for none (and trainer.keep_best= if it uses the checker)",
		func(c *config.Config) *string { return &c.Trainer.Checker }},
	{"env", "env.command", "an environment", "start a program", "",
		func(c *config.Config) *string { return &c.Env.Command }},
	{"coach", "coach.command", "a coach", "start a program", ", or coach.command= for none",
		func(c *config.Config) *string {
			if c.Coach.Command == config.StudentCoach {
				return new(string) // no program
			}
			return &c.Coach.Command
		}},
	{"teacher-url", "teacher.url", "a teacher's server",
		"send texts and the key in " + teacherKey + " to an address",
		", or teacher.url= for none",
		func(c *config.Config) *string { return &c.Teacher.URL }},
	{"teacher-models", "teacher.models", "teachers behind servers",
		"send texts and the key in " + teacherKey + " to an address", "",
		func(c *config.Config) *string {
			if len(c.Teacher.Servers()) == 0 {
				return new(string) // folders alone
			}
			return &c.Teacher.Models
		}},
}

// inherit takes over the chosen settings of the run at resume, which differ from its
// stage's defaults, without those that belong to one run (config.Inherited).
func inherit(cfg *config.Config, resume string) error {
	stage, was, err := settingsOf(resume)
	if err != nil || stage == "" {
		return err
	}
	defaults := config.StageDefaults(stage)
	conf.Copy(cfg, &was, chosenIn(&was, &defaults))
	return nil
}

// keepChosen restores the settings of cfg that a preset has overridden, where the run that cfg
// inherits from had a value of its own: neither its stage's default nor the preset's for that
// stage. inherited is cfg before the preset; notes name what was put back.
func keepChosen(cfg, inherited *config.Config, resume, presets string) (notes []string, err error) {
	stage, was, err := settingsOf(resume)
	if err != nil || stage == "" {
		return nil, err
	}
	defaults, preset := config.StageDefaults(stage), config.StageDefaults(stage)
	set, err := config.Preset(presets, stage)
	if err != nil {
		return nil, err
	}
	if err := conf.Load(&preset, "", set, nil); err != nil {
		return nil, err
	}
	overridden := chosenIn(inherited, cfg)
	chosen := slices.DeleteFunc(chosenIn(&was, &preset), func(key string) bool {
		return !slices.Contains(chosenIn(&was, &defaults), key) || !slices.Contains(overridden, key)
	})
	now := *cfg
	conf.Copy(cfg, &was, chosen)
	for _, change := range config.Changes(now, *cfg) {
		notes = append(notes, fmt.Sprintf("preset %s gives way to %s: %s", presets, resume, change))
	}
	return notes, nil
}

// settingsOf reads the stage and the settings of the run at resume, or around the checkpoint at
// resume. The stage is empty if resume is no run to start from, which opening it explains, or a
// checkpoint moved out of its run.
func settingsOf(resume string) (stage config.Stage, was config.Config, err error) {
	run := filepath.Clean(resume)
	if strings.HasPrefix(filepath.Base(run), "global_step_") {
		run = filepath.Dir(run)
	}
	settled := filepath.Join(run, "config.yaml")
	if _, err := files().Stat(settled); errors.Is(err, fs.ErrNotExist) {
		return "", was, nil
	}
	if stage, err = saved.StageOf(files(), resume); err != nil {
		return "", was, nil
	}
	was = config.StageDefaults(stage)
	return stage, was, conf.Load(&was, settled, nil, nil)
}

// chosenIn lists the settings in which a and b differ and which a run inherits.
func chosenIn(a, b *config.Config) (keys []string) {
	other := conf.Describe(b)
	for i, s := range conf.Describe(a) {
		if s.Default != other[i].Default && config.Inherited(s.Key) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}
