// Package demo implements gad demo: it makes a task and a student, runs SFT, the warm-up and the
// game, and compares them, by the commands that a user would type.
//
//	demo.go      the demo of single answers, and the parts that all demos share: start here
//	episodes.go  gad demo --episodes: the game on whole episodes
//	thought.go   gad demo --thought: a long answer in one sequence, in chunks, and branching
package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/apps/task"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/textmetrics"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// kind is the task of the demo.
const kind = "two-forms"

// Names of the demo's stages: of their folders and of the rows of demo.json.
const (
	stageSFT    = "sft"
	stageEqual  = "sft-equal-compute"
	stageWarmup = "warmup"
	stageGAD    = "gad"
)

// Size is the size of a demo: rows and settings of its stages.
type Size struct {
	Rows int // of training; 0: as many as the task has (episodes)
	// rows of the table: the last of the test split, since the first were used to choose settings
	TestRows int
	// Overrides of the three stages. SFT begins with --steps, their number and trainer.save_freq,
	// which SFT at equal compute replaces.
	SFT, Warmup, Train []string
}

// Settings of all stages (common), and of the stages that sample (sampling).
var (
	common = []string{"data.max_prompt_length=48", "data.max_response_length=40",
		"rollout.max_num_seqs=128"}
	sampling = "rollout.temperature=1"
)

// The values are from doc/LOG.md: SFT until more of it gains nothing, a discriminator that learns
// alone until it can distinguish the answers, many small updates for it and few small ones for the
// student. The game with GSPO's own clip (steady) is the steadier; quick takes a fifth of the steps
// and would drift in many more.
var (
	learn = []string{"data.train_batch_size=32", "actor.optim.lr=3e-3", "actor.optim.beta2=0.95",
		"actor.optim.lr_warmup_steps=30",
		"actor.optim.lr_scheduler=cosine", "actor.optim.min_lr_ratio=0.03"}
	judge = []string{"--critic-warmup", "20", "--steps", "21", "trainer.critic_warmup_max=200",
		"data.train_batch_size=32", "rollout.n=4",
		"critic.optim.lr=2e-4", "critic.optim.lr_warmup_steps=200", "critic.optim.beta2=0.98",
		"critic.grad_clip=1", "critic.ppo_mini_batch_size=1"}
	play = []string{"critic.ppo_mini_batch_size=4", "data.train_batch_size=16", "rollout.n=8",
		"actor.optim.beta2=0.95", "actor.grad_clip=1"}
	steady = append(slices.Clone(play), "actor.optim.lr=5e-5", "actor.kl_loss_coef=0.02")
	quick  = append(slices.Clone(play), "actor.optim.lr=1e-4", "actor.kl_loss_coef=0.05",
		"actor.clip_ratio_low=0.02", "actor.clip_ratio_high=0.03")
)

var sizes = map[bool]Size{
	false: {Rows: 20000, TestRows: 1000,
		SFT:    append([]string{"--steps", "800", "trainer.save_freq=400"}, learn...),
		Warmup: append(slices.Clone(judge), "trainer.critic_warmup_until=0.45"),
		Train:  append([]string{"--steps", "120", "trainer.save_freq=40"}, steady...)},
	true: {Rows: 10000, TestRows: 300,
		SFT:    append([]string{"--steps", "260", "trainer.save_freq=0"}, learn...),
		Warmup: append(slices.Clone(judge), "trainer.critic_warmup_until=0.5"),
		Train:  append([]string{"--steps", "10", "trainer.save_freq=0"}, quick...)},
}

// Options configures a demo.
type Options struct {
	Dir      string // output folder
	Fast     bool
	Episodes bool     // the game on whole episodes, in an environment
	Thought  bool     // long answers in chunks
	Program  string   // how a shell starts gad: see Program
	Seed     uint64   // of the rows, the student, data order and sampling
	Size     Size     // see SizeOf
	Flags    []string // flags of every stage: the seed and the device
	Backend  compute.Backend
	FS       vfs.FS

	// Gad runs one command line, given without the program's name. Results go to out, messages
	// to console.
	Gad     func(ctx context.Context, out, console io.Writer, args ...string) error
	Out     io.Writer // the closing table
	Console io.Writer // everything else
}

// FolderError reports a folder with other content than this demo's.
type FolderError struct{ Dir, Holds string }

// Error returns the content of the folder and the way out.
func (e *FolderError) Error() string {
	return fmt.Sprintf("demo: %s: contains %s: nothing is overwritten: give another --dir", e.Dir,
		e.Holds)
}

// SizeOf returns the size of a demo.
func SizeOf(fast, episodes, thought bool) Size {
	switch {
	case episodes:
		return episodeSizes[fast]
	case thought:
		return thoughtSizes[fast]
	}
	return sizes[fast]
}

// Run makes the task and the student, trains the student in all stages and compares the results. It
// keeps the parts that an earlier Run with the same options has finished.
func Run(ctx context.Context, o Options) error {
	d := &run{Options: o, started: time.Now(), rows: task.Train + ".arrow", common: common}
	d.Console = &throttledConsole{w: o.Console, now: time.Now}
	play := d.singleAnswers
	switch {
	case o.Episodes:
		d.rows, d.common, play = "train.jsonl", commonEpisodes, d.episodes
	case o.Thought:
		d.common, play = commonThought, d.thought
	}
	if err := d.claim(); err != nil {
		return err
	}
	return play(ctx)
}

// run is one demo in progress.
type run struct {
	Options
	started time.Time
	rows    string   // the task's file of training data
	common  []string // settings of every stage
}

// path returns a path below the demo's folder.
func (d *run) path(parts ...string) string {
	return filepath.Join(append([]string{d.Dir}, parts...)...)
}

// singleAnswers runs the demo of single answers: commands in the order in which a user would type
// them. The commands themselves find what an earlier try has left.
func (d *run) singleAnswers(ctx context.Context) error {
	if err := d.invoke(ctx, "task", "make", kind, "--output", d.path("task"), "--seed",
		fmt.Sprint(d.Seed), "--rows", fmt.Sprint(d.Size.Rows)); err != nil {
		return err
	}
	arms := []*arm{
		{Stage: stageSFT, name: "SFT",
			about: "cross entropy on the teacher's answers (SeqKD), from an untrained student"},
		{Stage: stageEqual, name: "SFT, equal compute",
			about: "SFT with as many FLOPs as SFT, warm-up and game together"},
		{Stage: stageWarmup, name: "after the warm-up", about: "the first row's student; the discriminator has learned to tell its answers from the teacher's"},
		{Stage: stageGAD, name: "GAD", about: "the game: the student learns from the discriminator's scores, and the discriminator from the answers of student and teacher"},
	}
	sft, equal, warmup, gad := arms[0], arms[1], arms[2], arms[3]
	if err := d.stage(ctx, sft, config.SFT, nil,
		append([]string{"--model", d.path("task", "student")}, d.Size.SFT...)); err != nil {
		return err
	}
	if err := d.stage(ctx, warmup, config.Warmup, sft,
		append([]string{"--model", sft.Folder}, d.Size.Warmup...)); err != nil {
		return err
	}
	if err := d.stage(ctx, gad, config.Train, warmup,
		append([]string{"--resume", d.path(stageWarmup)}, d.Size.Train...)); err != nil {
		return err
	}
	if err := d.trainEqualCompute(ctx, equal, sft, gad); err != nil {
		return err
	}
	return d.compare(arms)
}

// trainEqualCompute runs SFT with as much computation as all stages of the game together. It takes
// a step to cost the mean of the first SFT's steps.
func (d *run) trainEqualCompute(ctx context.Context, equal, sft, gad *arm) error {
	steps := int(math.Round(gad.TFLOP / (sft.TFLOP / float64(sft.steps))))
	more := append([]string{"--model", d.path("task", "student"), "--steps", fmt.Sprint(steps),
		"trainer.save_freq=800"}, d.Size.SFT[3:]...)
	if err := d.stage(ctx, equal, config.SFT, nil, more); err != nil {
		return err
	}
	fmt.Fprintf(d.Console, "\n%s: %.2f TFLOP in %d steps; SFT, warm-up and game: %.2f TFLOP\n",
		stageEqual, equal.TFLOP, equal.steps, gad.TFLOP)
	return nil
}

// claim refuses a folder with other content, and marks an empty one as this demo's.
func (d *run) claim() error {
	more := ""
	switch {
	case d.Episodes:
		more = " --episodes"
	case d.Thought:
		more = " --thought"
	}
	about := []byte(fmt.Sprintf("This folder is written by gad demo%s --seed %d --fast=%v.\n", more,
		d.Seed, d.Fast))
	switch was, err := os.ReadFile(d.path("demo.txt")); {
	case err == nil && string(was) != string(about):
		return &FolderError{d.Dir, "another demo, with another --seed, --fast, --episodes or --thought"}
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return vfs.Target(err)
	}
	if entries, err := d.FS.ReadDir(d.Dir); err == nil && len(entries) > 0 {
		return &FolderError{d.Dir, "files that are not from a demo"}
	}
	if err := vfs.MakeDirs(d.FS, d.Dir); err != nil {
		return vfs.Target(err)
	}
	return vfs.WriteFile(d.FS, d.path("demo.txt"), about)
}

// announce prints a command line as a user would type it.
func (d *run) announce(args []string) {
	words := slices.Clone(args)
	for i, w := range words {
		if strings.ContainsAny(w, " \"") {
			words[i] = "'" + w + "'"
		}
	}
	fmt.Fprintf(d.Console, "\n$ gad %s\n", strings.Join(words, " "))
}

// invoke announces a command line and runs it.
func (d *run) invoke(ctx context.Context, args ...string) error {
	d.announce(args)
	return d.Gad(ctx, d.Out, d.Console, args...)
}

// stage runs one stage and records its student and its cost, with the cost of all stages before it.
func (d *run) stage(ctx context.Context, a *arm, stage config.Stage, before *arm,
	overrides []string) error {
	args := append([]string{string(stage), "--data", d.path("task", d.rows),
		"--output", d.path(a.Stage)}, d.Flags...)
	args = append(append(args, overrides...), d.common...)
	if stage != config.SFT {
		args = append(args, sampling)
	}
	if err := d.invoke(ctx, args...); err != nil {
		return err
	}
	ckpt, _, err := saved.Find(d.FS, d.path(a.Stage))
	if err != nil {
		return err
	}
	cost, err := saved.CostOf(d.FS, d.path(a.Stage))
	if err != nil {
		return err
	}
	a.Folder, a.TFLOP, a.Seconds, a.steps =
		filepath.Join(ckpt, "actor"), cost.FLOP/1e12, cost.Seconds, cost.Steps
	if before != nil {
		a.TFLOP, a.Seconds = a.TFLOP+before.TFLOP, a.Seconds+before.Seconds
	}
	return nil
}

// arm is one row of the closing table, and of demo.json.
type arm struct {
	name  string
	about string // in one line
	steps int

	right, rightGreedy []bool // by prompt

	Stage  string `json:"stage"`
	Folder string `json:"folder"` // of the student

	Valid       float64    `json:"valid_t1"` // shares are of all prompts, 0 to 1
	ValidCI     [2]float64 `json:"valid_t1_ci95"`
	Greedy      float64    `json:"valid_greedy"`
	GreedyCI    [2]float64 `json:"valid_greedy_ci95"`
	ResultFirst float64    `json:"result_first"` // shares of the forms at temperature 1
	WalkFirst   float64    `json:"walk_first"`
	Other       float64    `json:"other"`
	RougeL      float64    `json:"rouge_l"` // these at temperature 1 as well
	LenRatio    float64    `json:"len_ratio"`
	TeacherNLL  float64    `json:"teacher_nll"`

	TFLOP   float64 `json:"tflop"`   // cost since the untrained student
	Seconds float64 `json:"seconds"` // likewise
}

// result is the content of demo.json.
type result struct {
	Kind    string `json:"kind"`
	Seed    uint64 `json:"seed"`
	Fast    bool   `json:"fast"`
	Prompts int    `json:"prompts"` // held out; not used to tune the demo
	Rows    []*arm `json:"rows"`
}

// Why is the text below the table if the game has won.
const Why = `The teacher is always right, and three times in four it answers before it works, as a large model can; this student cannot, and guesses there.
SFT (SeqKD) has to copy both forms as often as the teacher uses them, guesses included, however long it runs; the game asks only whether what the student writes could be the teacher's, so the student may choose the form that it can do.
The task was made to show this: where a student can do all that its teacher does, SFT is as good and costs less.
`

// compare evaluates the students on held-out prompts, prints the table and writes demo.json.
func (d *run) compare(arms []*arm) error {
	fmt.Fprintf(d.Console, "\nevaluating on %d held-out prompts\n", d.Size.TestRows)
	set, err := data.Open(d.path("task", task.Test+".arrow"), data.DefaultColumns())
	if err != nil {
		return err
	}
	defer set.Close()
	for _, a := range arms {
		fmt.Fprintf(d.Console, "  %s: %s\n", a.name, a.Folder)
		if err := d.evaluate(a, set); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(result{kind, d.Seed, d.Fast, d.Size.TestRows, arms}, "", "  ")
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(d.FS, d.path("demo.json"), append(raw, '\n')); err != nil {
		return err
	}
	first, err := set.Row(0)
	if err != nil {
		return err
	}
	prompt, trained := first.Messages[0].Content, arms[len(arms)-1].Folder
	fmt.Fprintf(d.Out, "\n%s\n%s\n", table(arms, d.Size.TestRows), d.why(arms))
	fmt.Fprintf(d.Out, "The student is %s, a folder that transformers loads. Took %s. Compare it with the student before the game:\n", trained, time.Since(d.started).Round(time.Second))
	for _, m := range []string{trained, arms[0].Folder} {
		fmt.Fprintf(d.Out, "  gad generate --model %s --prompt %q --temperature 1 -n 4\n", m,
			prompt)
	}
	return nil
}

// why returns the text below the table: its meaning.
func (d *run) why(arms []*arm) string {
	equal, gad := arms[1], arms[3]
	won := differs(gad.right, equal.right) == better
	switch {
	case won && d.Fast:
		return Why + "With --fast each stage is cut short and the game has not ended: read the direction, not the size. The whole demo takes some minutes.\n"
	case won:
		return Why
	case d.Fast:
		return "The game did not beat SFT here. With --fast it takes few steps, and if the discriminator learns late too few are left:\nthe whole demo (without --fast, some minutes) plays it to the end. gad doctor " + d.path(stageGAD) + " looks for what went wrong.\n"
	}
	return "The game did not beat SFT here, although it usually does on this task: try another --seed. gad doctor " + d.path(stageGAD) + " looks for what went wrong;\nd_acc_fresh of distinct pairs should have passed 0.7 in the warm-up.\n"
}

// Results of comparing two shares.
const (
	better = "▲"
	worse  = "▼"
	noise  = "≈"
)

// differs compares two students on the same prompts by the normal 95 % interval of the mean of the
// paired differences. It returns noise if the interval contains 0.
func differs(a, b []bool) string {
	var sum, squares float64
	for i := range a {
		d := 0.0
		switch {
		case a[i] && !b[i]:
			d = 1
		case b[i] && !a[i]:
			d = -1
		}
		sum, squares = sum+d, squares+d*d
	}
	n := float64(len(a))
	mean := sum / n
	half := 1.959963984540054 * math.Sqrt(max(0, squares/n-mean*mean)/n)
	switch {
	case mean-half > 0:
		return better
	case mean+half < 0:
		return worse
	}
	return noise
}

// evaluate sets an arm's shares.
func (d *run) evaluate(a *arm, set *data.Set) error {
	tok, err := tokenizer.Load(a.Folder)
	if err != nil {
		return err
	}
	m, err := model.Load(d.Backend, a.Folder, model.Options{Kind: model.LM})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.SetTokens(tok.Tokens()); err != nil {
		return err
	}
	rows := make([]int, d.Size.TestRows)
	for i := range rows {
		rows[i] = set.Len() - len(rows) + i
	}
	n := float64(len(rows))
	for _, temperature := range []float64{0, 1} {
		j, err := quality.Evaluate(m, tok, set, rows,
			quality.Options{MaxPrompt: 48, MaxResponse: 40, Temperature: temperature, Seed: d.Seed,
				Slots: 128, MaxTokens: 4096})
		if err != nil {
			return err
		}
		valid, right, forms := 0, make([]bool, len(rows)), map[string]float64{}
		for i, answer := range j.Answers {
			row, err := set.Row(rows[i])
			if err != nil {
				return err
			}
			g, err := task.Check(row.Messages[0].Content, answer)
			if err != nil {
				return err
			}
			if j.Truncated[i] {
				g = task.Grade{Form: task.Other}
			}
			if g.Valid {
				valid++
			}
			right[i] = g.Valid
			forms[g.Form] += 1 / n
		}
		if temperature == 0 {
			a.rightGreedy, a.Greedy, a.GreedyCI =
				right, float64(valid)/n, textmetrics.Wilson(valid, len(rows))
			continue
		}
		a.right, a.Valid, a.ValidCI = right, float64(valid)/n, textmetrics.Wilson(valid, len(rows))
		a.ResultFirst, a.WalkFirst, a.Other =
			forms[task.ResultFirst], forms[task.WalkFirst], forms[task.Other]
		a.RougeL, a.LenRatio, a.TeacherNLL = j.Eval.RougeL, j.Eval.LenRatio, j.Eval.TeacherNLL
	}
	return nil
}

// throttledConsole writes of the thousands of lines about steps one in pause, and the last of a
// stage, and all other lines.
type throttledConsole struct {
	w    io.Writer
	now  func() time.Time
	last time.Time
	mu   sync.Mutex
}

// pause is the time between two lines about steps.
const pause = 2 * time.Second

var stepLine = regexp.MustCompile(`^[0-9:]{8}  step ([0-9]+)/([0-9]+) `)

// Write expects whole lines.
func (t *throttledConsole) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := stepLine.FindSubmatch(b); m != nil && !bytes.Equal(m[1], m[2]) {
		if t.now().Sub(t.last) < pause {
			return len(b), nil
		}
		t.last = t.now()
	}
	return t.w.Write(b)
}

// table returns the table: a line for each arm, and below it what each arm is.
func table(arms []*arm, prompts int) string {
	var b strings.Builder
	const line = "%-20s %-22s %-23s%8s%7s%7s%9s%8s%7s%7s\n"
	fmt.Fprintf(&b, line, fmt.Sprintf("%d unseen prompts", prompts), "right, temperature 1",
		"right, greedy", "result", "walk", "other", "ROUGE-L", "length", "TFLOP", "time")
	fmt.Fprintf(&b, line, "", "with 95 % interval", "with 95 % interval", "first", "first", "form",
		"", "ratio", "", "")
	percent := func(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }
	for i, a := range arms {
		share := func(x float64, ci [2]float64, right, first []bool) string {
			text := fmt.Sprintf("%5.1f %% (%.1f-%.1f)", 100*x, 100*ci[0], 100*ci[1])
			if i > 0 {
				text += " " + differs(right, first)
			}
			return text
		}
		fmt.Fprintf(&b, line, a.name, share(a.Valid, a.ValidCI, a.right, arms[0].right),
			share(a.Greedy, a.GreedyCI, a.rightGreedy, arms[0].rightGreedy),
			percent(a.ResultFirst), percent(a.WalkFirst), percent(a.Other),
			fmt.Sprintf("%.3f", a.RougeL), fmt.Sprintf("%.2f", a.LenRatio),
			fmt.Sprintf("%.1f", a.TFLOP), fmt.Sprintf("%.0f s", a.Seconds))
	}
	fmt.Fprintf(&b, "\n%s better than SFT on the same prompts, %s worse, %s within noise (95 %%). Higher is better; result first and walk first are the teacher's two forms.\n", better, worse, noise)
	for _, a := range arms {
		fmt.Fprintf(&b, "%-20s %s\n", a.name, a.about)
	}
	return b.String()
}
