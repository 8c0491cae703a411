package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/data"
	"gad/internal/comm"
	"gad/internal/conf"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/scoring"
)

// stageFlag is a flag that sets a setting.
type stageFlag struct{ name, key, usage string }

var stageFlags = []stageFlag{
	{"model", "model.path", "student: a Hugging Face model folder"},
	{"adapter", "model.adapter_path", "LoRA adapters to go on with, for the weights of --model: a folder as peft writes it (with actor.lora.rank as there)"},
	{"reward-model", "model.reward_path",
		"model folder or GGUF file that the discriminator starts from (default: the student's)"},
	{"teacher-url", "teacher.url", "server that scores answers as a teacher: vLLM, SGLang or gad serve. Its key is in GAD_TEACHER_KEY"},
	{"teacher-models", "teacher.models",
		"several teachers, by the column of teacher.by: VALUE=FOLDER or VALUE=URL,..."},
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
	{"coach", "coach.command",
		"program that writes notes on the student's answers, which the teacher reads: see gad coach; or @student: the student itself"},
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

// lists holds the flags of stageFlags that may be given several times.
var lists = []string{"data", "val-data"}

// flag returns the flag for cli.
func (f stageFlag) flag() cli.Flag {
	if slices.Contains(lists, f.name) {
		return &cli.StringSliceFlag{Name: f.name, Usage: f.usage}
	}
	return &cli.StringFlag{Name: f.name, Usage: f.usage}
}

// settings returns the settings that the flag's values give; none if it is not given.
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

// stageCommand returns the command gad sft, gad dpo, gad opd, gad warmup or gad train.
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
		if stage != config.SFT && f.name == "objective" || stage != config.OPD && f.name == "coach" {
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

// presetFlag returns the flag that chooses published methods, sizes of students, and LoRA.
func presetFlag() cli.Flag {
	return &cli.StringFlag{Name: "preset",
		Usage: "start from the settings of a method, one of " +
			strings.Join(config.PresetNames(), ", ") +
			". Several with commas between them: grgc,lora"}
}

// runStage runs a stage, or prints its plan with --dry-run.
func (p *program) runStage(c *cli.Context, cfg config.Config, stage config.Stage,
	notes []string) (err error) {
	if err := cfg.Validate(stage); err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	if c.Bool("dry-run") {
		p.joined = true
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
		return p.plan(cfg, stage, planOptions{})
	}
	ranks, err := p.connect(c, time.Duration(cfg.Trainer.RankTimeout)*time.Second)
	if err != nil {
		return err
	}
	running := false
	ranks.Exits(func(err error) int { return status(runError(err, running)) })
	defer func() {
		if err != nil && !errors.Is(err, trainer.ErrInterrupted) {
			ranks.Abort(err)
			// before a launcher notices that another rank has ended
			if ranks != nil && !p.reportedElsewhere(err) {
				p.printError(err)
				p.reported = true
			}
		}
		err = closeError(err, ranks.Close())
	}()
	be, err := p.openDevice(p.rankDevice(deviceOf(cfg)))
	if err != nil {
		return err
	}
	defer be.Close()
	var t *trainer.Trainer
	teachers, err := teacherServers(cfg, stage, func(text string) {
		if t != nil {
			t.Say(text)
		}
	})
	if err != nil {
		return err
	}
	t, err = trainer.Open(cfg, stage,
		trainer.Options{FS: files(), Backend: be, Console: p.err, TTY: p.tty, Command: p.command,
			Notes: notes, Ranks: ranks, Teachers: teachers, Preset: ofPreset(c, cfg, stage)})
	if err != nil {
		return runError(err, false)
	}
	running = true
	defer func() {
		if failed := t.Close(); err == nil && failed != nil {
			err = fault.As(fault.ErrRunning, failed)
		}
	}()
	ctx, stop := p.interruptible(t.Say, t.Abort)
	defer stop()
	return runError(t.Run(ctx), true)
}

// teacherKey names the variable of the environment that has the key of teacher.url.
const teacherKey = "GAD_TEACHER_KEY"

// teacherServers returns the servers of teacher.url and teacher.models by their addresses, where
// the stage asks them. It opens no connection.
func teacherServers(cfg config.Config, stage config.Stage,
	say func(text string)) (map[string]trainer.Scores, error) {
	servers := map[string]trainer.Scores{}
	if !cfg.ReadsTeacher(stage) {
		return nil, nil
	}
	for _, m := range cfg.Teacher.List() {
		if m.URL == "" {
			continue
		}
		s, err := scoringServer(scoring.Options{URL: m.URL, Say: say,
			InsecureHTTP: cfg.Teacher.InsecureHTTP,
			Names: scoring.Names{URL: m.Key, Insecure: "teacher.insecure_http=true",
				Top: "teacher.top_k", Again: " to go on from the last checkpoint"}})
		if err != nil {
			return nil, err
		}
		servers[m.URL] = s
	}
	return servers, nil
}

// scoringServer returns the server of o, with the key of the environment. It opens no connection.
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

// closeError returns how a run ends that ended with err on this rank, after the ranks have
// disconnected with the error failed. A run that is done, or stopped and saved here, has failed if
// it has on another rank.
func closeError(err, failed error) error {
	told := (*comm.Aborted)(nil)
	if failed != nil && (err == nil || errors.Is(err, trainer.ErrInterrupted) &&
		errors.As(failed, &told)) {
		return fault.As(fault.ErrRunning, failed)
	}
	return err
}

// runError marks an error of a run for status, unless the inputs are its cause.
func runError(err error, running bool) error {
	if err == nil || errors.Is(err, trainer.ErrInterrupted) ||
		errors.Is(err, trainer.ErrNumerical) || !running && !errors.Is(err, comm.ErrRanks) {
		return err
	}
	return fault.As(fault.ErrRunning, err)
}
