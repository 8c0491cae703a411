package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/comm"
	"gad/internal/conf"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/scoring"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// stageFlag is a flag that sets a configuration key.
type stageFlag struct{ name, key, usage string }

var stageFlags = []stageFlag{
	{"model", "model.path", "student: a Hugging Face model folder"},
	{"adapter", "model.adapter_path", "LoRA adapters to go on with, for the weights of --model: a folder as peft writes it (with actor.lora.rank as there)"},
	{"reward-model", "model.reward_path",
		"model folder or GGUF file that the discriminator starts from (default: the student's)"},
	{"teacher-url", "teacher.url", "server that scores answers as a teacher: vLLM, SGLang or gad serve. Its key is in GAD_TEACHER_KEY"},
	{"teacher", "teacher.path", "model whose probabilities the student learns from: a model folder or GGUF file"},
	{"data", "data.train_files", "training data: file, folder or quoted pattern such as 'shards/*.arrow'; may be given several times"},
	{"val-data", "data.val_files", "held-out data for the val/ metrics; files as for --data"},
	{"split", "data.split", "which split of --data, if a folder has several"},
	{"val-split", "data.val_split", "which split of --val-data"},
	{"content-key", "data.content_key", "column with the conversation or the prompt"},
	{"teacher-key", "data.teacher_key", "column with the teacher's answer"},
	{"format", "data.format", "format of the rows: " + strings.Join(data.RowFormats, ", ")},
	{"turns", "data.turns", "which of the teacher's turns are learned: last, each, or all (sft)"},
	{"template", "data.template", "variables of the chat template: NAME=VALUE,... such as enable_thinking=false, or a JSON object"},
	{"chat-template", "data.chat_template", "chat template in the place of the student's: a file, a name of the folder's, or chatml"},
	{"objective", "trainer.objective",
		"what sft learns: cross_entropy of the teacher's answers, or the ranking of scored ones"},
	{"ratings", "data.ratings", "file of gad data rate, for data.where"},
	{"output", "trainer.default_local_dir", "run folder"},
	{"resume", "trainer.resume_from", "run or checkpoint folder to start from"},
	{"checker", "trainer.checker",
		"program that scores the student's answers, for val/check and algorithm.checker_weight"},
	{"env", "env.command",
		"program that is the environment the student acts in: see gad env (with data.turns=all)"},
	{"critic-warmup", "trainer.critic_warmup", "steps in which only the discriminator learns"},
	{"steps", "trainer.total_steps",
		"steps to run (default: as many as trainer.total_epochs takes)"},
	{"seed", "trainer.seed", "seed of data order, sampling and fresh weights"},
	{"device", "trainer.device", "where to compute: cpu or cuda"},
	{"precision", "trainer.precision", "auto, bf16 or f32; auto is bf16 on cuda, f32 on cpu"},
	{"threads", "trainer.threads", "CPU threads; 0 is one per core"},
}

// lists are the flags of stageFlags that may be given several times.
var lists = []string{"data", "val-data"}

func (f stageFlag) flag() cli.Flag {
	if slices.Contains(lists, f.name) {
		return &cli.StringSliceFlag{Name: f.name, Usage: f.usage}
	}
	return &cli.StringFlag{Name: f.name, Usage: f.usage}
}

// settings are the settings that the flag's values make; none where it is not given.
func (f stageFlag) settings(c *cli.Context) (set []conf.Flag) {
	if !c.IsSet(f.name) {
		return nil
	}
	values := []string{c.String(f.name)}
	if slices.Contains(lists, f.name) {
		values = c.StringSlice(f.name)
	}
	for _, v := range values {
		set = append(set, conf.Flag{Key: f.key, Value: v, Name: "--" + f.name})
	}
	if f.name == "env" && values[0] != "" && !says(c, "turns", "data.turns") {
		// a row is then an episode of the teacher
		set = append(set, conf.Flag{Key: "data.turns", Value: data.TurnsAll, Name: "--env"})
	}
	return set
}

// stageCommand is gad sft, gad dpo, gad opd, gad warmup or gad train.
func (p *program) stageCommand(stage config.Stage) *cli.Command {
	var about = map[config.Stage]string{
		config.SFT:    "learn the teacher's answers by cross entropy (SeqKD): baseline and warm start",
		config.Warmup: "train the discriminator alone, then together with the student, which learns by SFT",
		config.OPD:    "train the student on its own answers by a teacher's probabilities of their tokens (on-policy distillation): no discriminator; for a teacher whose weights are at hand, or behind a server that scores texts",
		config.DPO:    "train the student to prefer the teacher's answers to its own first samples (SODA): no discriminator",
		config.Train:  "train student and discriminator against each other (the game), from a warm-up checkpoint; or resume an interrupted run",
	}
	flags := []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "YAML file of settings (see doc/settings.md)"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print all settings and the plan, and stop"},
	}
	flags = append(flags, presetFlag(), ranksFlag())
	for _, f := range stageFlags {
		if !stage.HasCritic() &&
			slices.Contains([]string{"critic-warmup", "reward-model", "resume", "env"}, f.name) ||
			strings.HasPrefix(f.name, "teacher") && f.name != "teacher-key" && !stage.HasPolicy() {
			continue
		}
		if stage != config.SFT && f.name == "objective" {
			continue
		}
		flags = append(flags, f.flag())
	}
	return &cli.Command{
		Name:        string(stage),
		Usage:       about[stage],
		ArgsUsage:   "[KEY=VALUE ...]",
		Description: settingsHelp(stage),
		Flags:       flags,
		Action: func(c *cli.Context) error {
			cfg, notes, err := p.configure(c, stage)
			if err != nil {
				return err
			}
			return p.runStage(c, cfg, stage, notes)
		},
	}
}

// presetFlag chooses among the published methods, and LoRA.
func presetFlag() cli.Flag {
	return &cli.StringFlag{Name: "preset",
		Usage: "start from the settings of a method, one of " +
			strings.Join(config.PresetNames(), ", ") +
			". Several with commas between them: grgc,lora"}
}

// configure resolves the settings: the stage's defaults, or those of the run that is
// resumed; then the file, the overrides and the flags. notes say what has changed since
// the run began, and what was given and is not read.
func (p *program) configure(c *cli.Context,
	stage config.Stage) (cfg config.Config, notes []string, err error) {
	if c.String("steps") == "0" {
		return cfg, nil, usage("%s: --steps 0: must be at least 1; leave it out for as many as trainer.total_epochs takes", typed(c))
	}
	var set []conf.Flag
	for _, f := range stageFlags {
		set = append(set, f.settings(c)...)
	}
	notes, err = checkArguments(c, set)
	if err != nil {
		return cfg, nil, err
	}
	// The folders decide what the settings start from, so they are resolved first.
	probe := config.StageDefaults(stage)
	if err := conf.Load(&probe, c.String("config"), c.Args().Slice(), set); err != nil {
		return cfg, nil, err
	}
	cfg = config.StageDefaults(stage)
	out, resume := probe.Trainer.Output, probe.Trainer.Resume
	if out == "" && resume != "" {
		if steps, err := checkpoint.Steps(files(), resume); err == nil && len(steps) > 0 {
			out = resume // train --resume RUN alone: go on there
			set = append(set, conf.Flag{Key: "trainer.default_local_dir", Value: out,
				Name: "--resume"})
		}
	}
	settled, going := filepath.Join(out, "config.yaml"), false
	if out != "" {
		if _, err := files().Stat(settled); err == nil {
			going = true
			if err := conf.Load(&cfg, settled, nil, nil); err != nil {
				return cfg, nil, fmt.Errorf("%w: the run's config.yaml cannot be read", err)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return cfg, nil,
				usage("trainer: %s: cannot be used as run folder: %v: give another --output", out,
					err)
		}
	}
	if resume != "" && !going {
		if err := inherit(&cfg, resume); err != nil {
			return cfg, nil, err
		}
		file := cfg
		if err := conf.Load(&file, c.String("config"), nil, nil); err != nil {
			return cfg, nil, err
		}
		for _, change := range config.Changes(cfg, file) {
			notes = append(notes, fmt.Sprintf("%s overrides the settings of %s: %s",
				c.String("config"), resume, change))
		}
	}
	before := cfg
	for _, x := range outside {
		*x.of(&cfg) = ""
	}
	cfg.Teacher.InsecureHTTP = false // it is consent to one address
	preset, err := config.Preset(c.String("preset"), stage)
	if err != nil {
		return cfg, nil, usage("%s: --preset: %v", typed(c), err)
	}
	if err := conf.Load(&cfg, "", preset, nil); err != nil {
		return cfg, nil, err
	}
	if resume != "" && !going && preset != nil {
		kept, err := keepChosen(&cfg, &before, resume, c.String("preset"))
		if err != nil {
			return cfg, nil, err
		}
		notes = append(notes, kept...)
	}
	if err := conf.Load(&cfg, c.String("config"), c.Args().Slice(), set); err != nil {
		return cfg, nil, err
	}
	if err := localSettings(&cfg); err != nil {
		return cfg, nil, err
	}
	if err := named(c, before, cfg); err != nil {
		return cfg, nil, err
	}
	if going && filepath.Clean(cfg.Trainer.Resume) == filepath.Clean(cfg.Trainer.Output) {
		cfg.Trainer.Resume = before.Trainer.Resume // going on with itself is no other start
	}
	if going {
		if was, err := saved.StageOf(files(), out); err == nil && was != stage {
			return cfg, nil, fmt.Errorf(
				"%w: trainer: %s: contains a run of stage %s, not %s: give another --output",
				config.ErrConfig, out, was, stage)
		}
		if err := config.CheckChange(&before, &cfg); err != nil {
			return cfg, nil, err
		}
		own := ofPreset(c, cfg, stage) // whose warm-up the run has shortened
		for _, change := range config.Changes(before, cfg) {
			if key, _, _ := strings.Cut(change, " "); strings.HasSuffix(key, ".lr_warmup_steps") &&
				slices.Contains(own, key) {
				continue
			}
			notes = append(notes, "resumed with another setting: "+change)
		}
	}
	return cfg, append(notes, ignored(stage, cfg, c.Args().Slice())...), nil
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
	{"teacher-url", "teacher.url", "a teacher's server",
		"send texts and the key in " + teacherKey + " to an address",
		", or teacher.url= for none",
		func(c *config.Config) *string { return &c.Teacher.URL }},
}

// named refuses a program or an address that only a run's own folder names: it must be given on
// each command line, even to say that there is none.
func named(c *cli.Context, before, cfg config.Config) error {
	for _, x := range outside {
		if was := *x.of(&before); was != "" && *x.of(&cfg) == "" && !says(c, x.flag, x.key) {
			return usage("%s: the run's settings name %s, %q: gad does not %s because a folder names it: give --%s %q again%s", typed(c), x.what, was, x.rule, x.flag, was, x.none)
		}
	}
	return nil
}

// inherit takes over what the run that resume names was told: the settings that
// differ from its stage's defaults, those apart that belong to one run (config.Inherited).
func inherit(cfg *config.Config, resume string) error {
	stage, was, err := settingsOf(resume)
	if err != nil || stage == "" {
		return err
	}
	defaults := config.StageDefaults(stage)
	conf.Copy(cfg, &was, chosenIn(&was, &defaults))
	return nil
}

// keepChosen puts back what a preset has overridden in cfg, where the run that cfg inherits
// from had a value of its own: neither its stage's default nor the preset's for that stage.
// inherited is cfg before the preset; notes name what was put back.
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

// settingsOf is the stage and the settings of the run that resume names, or that holds the
// checkpoint which resume names. The stage is empty if resume names no run to start from,
// which opening it explains, or a checkpoint moved out of its run.
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

// chosenIn are the settings in which a and b differ and which a run inherits.
func chosenIn(a, b *config.Config) (keys []string) {
	other := conf.Describe(b)
	for i, s := range conf.Describe(a) {
		if s.Default != other[i].Default && config.Inherited(s.Key) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

func (p *program) runStage(c *cli.Context, cfg config.Config, stage config.Stage,
	notes []string) (err error) {
	if err := cfg.Validate(stage); err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	if c.Bool("dry-run") {
		p.met = true
		if l, err := comm.FindLaunch(os.LookupEnv); err == nil && l.Size > 1 && l.Rank > 0 &&
			c.Int("ranks") != 1 {
			return nil // rank 0 prints
		}
		for _, note := range notes {
			fmt.Fprintln(p.err, "gad: warning: "+note)
		}
		resolved, err := conf.Marshal(&cfg)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "%s\n", resolved)
		return p.plan(cfg, stage, planFor{})
	}
	ranks, err := p.connect(c, time.Duration(cfg.Trainer.RankTimeout)*time.Second)
	if err != nil {
		return err
	}
	running := false
	ranks.Exits(func(err error) int { return status(ofRun(err, running)) })
	defer func() {
		if err != nil && !errors.Is(err, trainer.ErrInterrupted) {
			ranks.Abort(err)
			// before a launcher sees that another rank has ended
			if ranks != nil && !p.silent(err) {
				p.complain(err)
				p.said = true
			}
		}
		err = parted(err, ranks.Close())
	}()
	be, err := p.openDevice(p.ofRank(deviceOf(cfg)))
	if err != nil {
		return err
	}
	defer be.Close()
	var t *trainer.Trainer
	teacher, err := teacherServer(cfg, stage, func(text string) {
		if t != nil {
			t.Say(text)
		}
	})
	if err != nil {
		return err
	}
	t, err = trainer.Open(cfg, stage,
		trainer.Options{FS: files(), Backend: be, Console: p.err, TTY: p.tty, Command: p.command,
			Notes: notes, Ranks: ranks, Teacher: teacher, Preset: ofPreset(c, cfg, stage)})
	if err != nil {
		return ofRun(err, false)
	}
	running = true
	defer func() {
		if failed := t.Close(); err == nil && failed != nil {
			err = fault.As(fault.ErrRunning, failed)
		}
	}()
	ctx, stop := p.interruptible(t.Say, t.Abort)
	defer stop()
	return ofRun(t.Run(ctx), true)
}

// teacherKey names the variable of the environment that has the key of teacher.url.
const teacherKey = "GAD_TEACHER_KEY"

// teacherServer is the server of teacher.url; nil where a stage asks none. It opens no connection.
func teacherServer(cfg config.Config, stage config.Stage,
	say func(text string)) (trainer.Scores, error) {
	if cfg.Teacher.URL == "" || !cfg.Taught(stage) {
		return nil, nil
	}
	s, err := scoringServer(scoring.Options{URL: cfg.Teacher.URL, Say: say,
		InsecureHTTP: cfg.Teacher.InsecureHTTP,
		Names: scoring.Names{URL: "teacher.url", Insecure: "teacher.insecure_http=true",
			Top: "teacher.top_k", Again: " to go on from the last checkpoint"}})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// scoringServer is the server of o with the key of the environment. It opens no connection.
func scoringServer(o scoring.Options) (*scoring.Server, error) {
	if _, ok := os.LookupEnv(teacherKey); ok {
		var err error
		if o.Key, err = endpoint.KeyFromEnv(teacherKey); err != nil {
			return nil, fault.As(fault.ErrUsage, err)
		}
	}
	s, err := scoring.Open(o)
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	return s, nil
}

// parted is how a run ends that ended with err on this rank, once the ranks have parted. One
// that is done, or stopped and saved here, has failed if it has on another rank.
func parted(err, failed error) error {
	told := (*comm.Aborted)(nil)
	if failed != nil && (err == nil || errors.Is(err, trainer.ErrInterrupted) &&
		errors.As(failed, &told)) {
		return fault.As(fault.ErrRunning, failed)
	}
	return err
}

// ofRun is an error of a run as status reads it: one that is none of the inputs' is marked.
func ofRun(err error, running bool) error {
	if err == nil || errors.Is(err, trainer.ErrInterrupted) ||
		errors.Is(err, trainer.ErrNumerical) || !running && !errors.Is(err, comm.ErrRanks) {
		return err
	}
	return fault.As(fault.ErrRunning, err)
}
