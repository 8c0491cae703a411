package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/data"
	"gad/internal/compute"
	"gad/internal/demo"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
)

// demoSize is how much of everything a demo takes.
type demoSize struct {
	trainRows, testRows, vocab int
	shape                      model.Config
	sft, warmup, train         []string // overrides of the three stages
	discSteps                  int
}

var demoShape = model.Config{Architecture: "Qwen2", Hidden: 128, Layers: 4, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: 384,
	MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true, DType: "float32"}

// Lengths and sampling are common to the stages.
var demoCommon = []string{"data.max_prompt_length=32", "data.max_response_length=40", "trainer.val_rows=100", "rollout.temperature=1", "rollout.max_num_seqs=128"}

// The game's figures were found by trial (doc/LOG.md): the discriminator needs
// many small updates, the student few and small ones.
var (
	demoSFT  = []string{"data.train_batch_size=32", "actor.optim.lr=3e-3", "actor.optim.beta2=0.95", "actor.optim.lr_warmup_steps=50"}
	demoWarm = []string{"actor.optim.lr=5e-4", "actor.optim.beta2=0.95", "critic.optim.lr=8e-4", "critic.optim.beta2=0.98", "critic.ppo_mini_batch_size=2"}
	demoGame = []string{"actor.optim.lr=5e-5", "critic.optim.lr=5e-4", "actor.clip_ratio_low=0.002", "actor.clip_ratio_high=0.003"}
)

var demoSizes = map[bool]demoSize{
	false: {trainRows: 12000, testRows: 500, vocab: 512, shape: demoShape, discSteps: 150,
		sft:    append([]string{"--steps", "500", "trainer.test_freq=100", "trainer.save_freq=250"}, demoSFT...),
		warmup: append([]string{"--critic-warmup", "30", "--steps", "40", "data.train_batch_size=32", "trainer.test_freq=20", "trainer.save_freq=20"}, demoWarm...),
		train:  append([]string{"--steps", "120", "data.train_batch_size=32", "trainer.test_freq=20", "trainer.save_freq=40"}, demoGame...)},
	true: {trainRows: 4000, testRows: 100, vocab: 512, shape: demoShape, discSteps: 60,
		sft:    append([]string{"--steps", "300", "trainer.test_freq=100", "trainer.save_freq=150"}, demoSFT...),
		warmup: append([]string{"--critic-warmup", "10", "--steps", "14", "data.train_batch_size=16", "trainer.test_freq=0", "trainer.save_freq=10"}, demoWarm...),
		train:  append([]string{"--steps", "10", "data.train_batch_size=16", "trainer.test_freq=0", "trainer.save_freq=5"}, demoGame...)},
}

// demoCommand is gad demo.
func (p *program) demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "a student, a data set, warm-up, training, evaluation: the whole story on the CPU, in minutes",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "folder that everything is written to (default: gad-demo, with --fast gad-demo-fast)"},
			&cli.BoolFlag{Name: "fast", Usage: "a smaller one, in about a minute"},
		}, deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			dir := c.String("dir")
			if dir == "" {
				dir = map[bool]string{false: "gad-demo", true: "gad-demo-fast"}[c.Bool("fast")]
			}
			d := demoRun{p: p, dir: dir, fast: c.Bool("fast"), size: demoSizes[c.Bool("fast")], begun: time.Now(),
				flags: []string{"--device", c.String("device"), "--precision", c.String("precision"), "--threads", fmt.Sprint(c.Int("threads"))}}
			be, err := flagged(c).open()
			if err != nil {
				return err
			}
			defer be.Close()
			d.be = be
			return d.run(c.Context)
		},
	}
}

type demoRun struct {
	p     *program
	dir   string
	fast  bool
	size  demoSize
	flags []string
	be    compute.Backend
	begun time.Time
}

func (d *demoRun) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

// run makes what is not there yet, then the same commands that a user would type.
func (d *demoRun) run(ctx context.Context) error {
	if err := d.prepare(); err != nil {
		return err
	}
	stages := []struct {
		name string
		args []string
	}{
		{"sft", append([]string{"--model", d.path("student")}, d.size.sft...)},
		{"warmup", d.size.warmup},
		{"train", append([]string{"--resume", d.path("warmup")}, d.size.train...)},
	}
	last := ""
	for _, s := range stages {
		args := []string{"--data", d.path("data", "train.arrow"), "--val-data", d.path("data", "test.arrow"), "--output", d.path(s.name)}
		if s.name == "warmup" {
			args = append(args, "--model", last)
		}
		args = append(args, d.flags...)
		args = append(append(args, s.args...), demoCommon...)
		fmt.Fprintf(d.p.err, "\n$ gad %s %s\n", s.name, strings.Join(args, " "))
		if err := d.p.invoke(ctx, append([]string{"gad", s.name}, args...)); err != nil {
			return err
		}
		ckpt, _, err := trainer.FindCheckpoint(files(), d.path(s.name))
		if err != nil {
			return err
		}
		last = filepath.Join(ckpt, "actor")
	}
	return d.compare(last)
}

// prepare writes data, tokenizer and the untrained student.
func (d *demoRun) prepare() error {
	if _, err := files().Stat(d.path("student")); err == nil { // an earlier demo: go on with it
		set, err := data.Open(d.path("data", "train.arrow"), data.DefaultColumns())
		if err != nil {
			return err
		}
		defer set.Close()
		if set.Len() != d.size.trainRows {
			return usage("demo: %s: holds a demo of %d rows, this one has %d (--fast is %v): give another --dir", d.dir, set.Len(), d.size.trainRows, d.fast)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return vfs.Target(err)
	}
	if entries, err := files().ReadDir(d.dir); err == nil && len(entries) > 0 {
		if _, err := files().Stat(d.path("data")); err != nil {
			return usage("demo: %s: holds files that are not a demo's: nothing is overwritten: give another --dir", d.dir)
		}
	}
	fmt.Fprintf(d.p.err, "%s: %d training rows, %d held-out rows, a student of its own\n", d.dir, d.size.trainRows, d.size.testRows)
	if err := vfs.MakeDirs(files(), d.path("data")); err != nil {
		return vfs.Target(err)
	}
	for _, split := range []struct {
		name string
		n    int
	}{{"train", d.size.trainRows}, {"test", d.size.testRows}} {
		if err := d.writeRows(split.name, demo.Rows(1, split.name, split.n)); err != nil {
			return err
		}
	}
	if err := vfs.WriteFile(files(), d.path("README.md"), []byte(demo.Readme)); err != nil {
		return err
	}
	tok, err := tokenizer.Train(strings.NewReader(demo.Corpus(1, d.size.trainRows)), tokenizer.TrainOptions{VocabSize: d.size.vocab})
	if err != nil {
		return err
	}
	shape := d.size.shape
	shape.Vocab = (tok.Size() + 7) / 8 * 8
	if shape, err = withTokens(shape, tok); err != nil {
		return err
	}
	m, err := model.New(d.be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	return trainer.WriteFolder(files(), d.path("student"), m, tok, "float32")
}

// writeRows writes one split as JSON lines and as an Arrow file.
func (d *demoRun) writeRows(split string, rows []demo.Row) error {
	arrow := d.path("data", split+".arrow")
	if _, err := files().Stat(arrow); err == nil {
		return nil
	}
	var b strings.Builder
	for _, r := range rows {
		line, err := json.Marshal(map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}}, "teacher_response": r.Answer})
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	jsonl := d.path("data", split+".jsonl")
	if err := vfs.WriteFile(files(), jsonl, []byte(b.String())); err != nil {
		return err
	}
	set, err := data.Open(jsonl, data.DefaultColumns())
	if err != nil {
		return err
	}
	defer set.Close()
	return data.Convert(set, arrow)
}

// arm is one line of the closing table.
type arm struct {
	Name   string             `json:"name"`
	Exact  float64            `json:"exact"`
	Format float64            `json:"format"`
	Greedy float64            `json:"exact_greedy"`
	Eval   trainer.Evaluation `json:"eval"`
}

// compare evaluates the student before, after SFT, after warm-up (which goes on
// with SFT beside the discriminator) and after the game, on held-out prompts, and
// prints the table.
func (d *demoRun) compare(trained string) error {
	fmt.Fprintf(d.p.err, "\nevaluating on %d held-out prompts\n", d.size.testRows)
	after := map[string]string{}
	for _, stage := range []string{"sft", "warmup"} {
		ckpt, _, err := trainer.FindCheckpoint(files(), d.path(stage))
		if err != nil {
			return err
		}
		after[stage] = filepath.Join(ckpt, "actor")
	}
	set, err := data.Open(d.path("data", "test.arrow"), data.DefaultColumns())
	if err != nil {
		return err
	}
	defer set.Close()
	rows := demo.Rows(1, "test", d.size.testRows)
	var arms []arm
	for _, a := range []struct{ name, dir string }{
		{"before", d.path("student")}, {"after SFT", after["sft"]}, {"after warm-up", after["warmup"]}, {"after GAD", trained}} {
		fmt.Fprintf(d.p.err, "  %s: %s\n", a.name, a.dir)
		got, err := d.evaluate(a.name, a.dir, set, rows)
		if err != nil {
			return err
		}
		arms = append(arms, got)
	}
	raw, err := json.MarshalIndent(arms, "", "  ")
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(files(), d.path("results.json"), append(raw, '\n')); err != nil {
		return err
	}
	fmt.Fprint(d.p.out, "\n"+table(arms))
	fmt.Fprintf(d.p.out, "\nThe student is %s (a folder that transformers loads). Took %s.\n", trained, time.Since(d.begun).Round(time.Second))
	return nil
}

func (d *demoRun) evaluate(name, dir string, set *data.Set, rows []demo.Row) (a arm, err error) {
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return a, err
	}
	m, err := model.Load(d.be, dir, model.Options{Kind: model.LM})
	if err != nil {
		return a, err
	}
	defer m.Close()
	all := make([]int, len(rows))
	for i := range all {
		all[i] = i
	}
	a.Name = name
	for _, temperature := range []float64{0, 1} {
		j, err := trainer.Evaluate(m, tok, set, all, trainer.EvalOptions{MaxPrompt: 64, MaxResponse: 40, Temperature: temperature, Seed: 1, Slots: 128, MaxTokens: 4096})
		if err != nil {
			return a, err
		}
		exact, format := 0.0, 0.0
		for i, answer := range j.Answers {
			g := demo.Check(rows[i], answer)
			if g.Exact && !j.Truncated[i] {
				exact += 1 / float64(len(rows))
			}
			if g.Format && !j.Truncated[i] {
				format += 1 / float64(len(rows))
			}
		}
		if temperature == 0 {
			a.Greedy = exact
			continue
		}
		a.Exact, a.Format, a.Eval = exact, format, j.Eval
		acc, err := trainer.FreshDiscriminator(d.be, trainer.DiscOptions{Shape: m.Config(), Steps: d.size.discSteps, Batch: 32, LR: 1e-3, Seed: 1}, j)
		if err != nil {
			return a, err
		}
		a.Eval.FreshDAcc = &acc
	}
	return a, nil
}

// table lays the arms side by side.
func table(arms []arm) string {
	var b strings.Builder
	line := func(name string, value func(a arm) string) {
		fmt.Fprintf(&b, "%-34s", name)
		for _, a := range arms {
			fmt.Fprintf(&b, "%14s", value(a))
		}
		b.WriteByte('\n')
	}
	percent := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	line("held-out prompts, temperature 1", func(a arm) string { return a.Name })
	line("exact answers", func(a arm) string { return percent(a.Exact) })
	line("exact answers, greedy", func(a arm) string { return percent(a.Greedy) })
	line("teacher's format", func(a arm) string { return percent(a.Format) })
	line("ROUGE-L", func(a arm) string { return fmt.Sprintf("%.3f", a.Eval.RougeL) })
	line("teacher NLL, nats per token", func(a arm) string { return fmt.Sprintf("%.3f", a.Eval.TeacherNLL) })
	line("length ratio", func(a arm) string { return fmt.Sprintf("%.2f", a.Eval.LenRatio) })
	line("fresh discriminator's accuracy", func(a arm) string { return percent(*a.Eval.FreshDAcc) })
	return b.String()
}
