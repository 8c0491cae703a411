package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"gad/internal/textmetrics"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// Program is the name of gad in a shell that gad starts.
const Program = `"$GAD"`

// world is the task of gad demo --episodes.
const world = "doors"

// Settings of all stages. A turn is short; the answer that SFT learns is a whole episode.
var commonEpisodes = []string{"data.max_prompt_length=256", "env.max_tokens=384"}

// The settings of doors in doc/study.md, with larger and fewer steps of the student, so that the
// demo takes five minutes.
var (
	wholeEpisodes = append([]string{"data.turns=all", "data.max_response_length=384"}, learn...)
	playTurn      = []string{"data.max_response_length=16", "rollout.n=8"}
	judgeEpisodes = append(slices.Clone(playTurn), "data.train_batch_size=16",
		"critic.optim.lr=3e-4", "critic.optim.lr_warmup_steps=50", "critic.optim.beta2=0.98",
		"critic.grad_clip=1", "critic.ppo_mini_batch_size=1")
	playEpisodes = append(slices.Clone(playTurn), "critic.ppo_mini_batch_size=1",
		"data.train_batch_size=8", "actor.ppo_mini_batch_size=2", "actor.optim.lr=3e-4",
		"actor.optim.beta2=0.95", "actor.grad_clip=1", "actor.kl_loss_coef=0.02")
)

var episodeSizes = map[bool]Size{
	false: {TestRows: 400,
		SFT:    append([]string{"--steps", "400", "trainer.save_freq=0"}, wholeEpisodes...),
		Warmup: append([]string{"--steps", "20", "--critic-warmup", "20"}, judgeEpisodes...),
		Train:  append([]string{"--steps", "40", "trainer.save_freq=0"}, playEpisodes...)},
	true: {TestRows: 100,
		SFT:    append([]string{"--steps", "120", "trainer.save_freq=0"}, wholeEpisodes...),
		Warmup: append([]string{"--steps", "5", "--critic-warmup", "5"}, judgeEpisodes...),
		Train:  append([]string{"--steps", "5", "trainer.save_freq=0"}, playEpisodes...)},
}

// env returns the command of the environment.
func (d *run) env() string { return d.Program + " env " + world }

// episodes runs gad demo --episodes.
func (d *run) episodes(ctx context.Context) error {
	task := []string{"task", "make", world, "--output", d.path("task"), "--seed",
		fmt.Sprint(d.Seed)}
	if d.Size.Rows > 0 {
		task = append(task, "--rows", fmt.Sprint(d.Size.Rows))
	}
	if err := d.invoke(ctx, task...); err != nil {
		return err
	}
	sft := &arm{Stage: stageSFT, name: "SFT",
		about: "cross entropy on the teacher's episodes, from an untrained student"}
	equal := &arm{Stage: stageEqual, name: "SFT, equal compute",
		about: "SFT with as many FLOPs as SFT, warm-up and game together"}
	warmup := &arm{Stage: stageWarmup}
	gad := &arm{Stage: stageGAD, name: "GAD on episodes", about: "SFT, a warm-up of the discriminator alone, then the game: whole episodes are played in doors, and the discriminator compares them with the teacher's"}
	if err := d.stage(ctx, sft, config.SFT, nil,
		append([]string{"--model", d.path("task", "student")}, d.Size.SFT...)); err != nil {
		return err
	}
	if err := d.stage(ctx, warmup, config.Warmup, sft,
		append([]string{"--model", sft.Folder, "--env", d.env()}, d.Size.Warmup...)); err != nil {
		return err
	}
	if err := d.stage(ctx, gad, config.Train, warmup,
		append([]string{"--resume", d.path(stageWarmup), "--env", d.env()},
			d.Size.Train...)); err != nil {
		return err
	}
	if err := d.trainEqualCompute(ctx, equal, sft, gad); err != nil {
		return err
	}
	return d.compareEpisodes(ctx, []*arm{sft, equal, gad})
}

// episodeLine is a line of gad eval --env --output.
type episodeLine struct {
	Model       string
	Temperature *float64 // nil for the teacher
	Success     bool
	Label       string
	Turns       int `json:"turns_written"`
	Invalid     int
	Fault       string
}

// episodeStats is the counts of a student's episodes at one temperature.
type episodeStats struct {
	right          []bool // by row
	turns, invalid int
	labels         map[string]int
}

// episodeRow is a line of the closing table, and of demo.json.
type episodeRow struct {
	arm            *arm
	sampled        *episodeStats
	greedy         *episodeStats
	Stage          string         `json:"stage"`
	Folder         string         `json:"folder"` // of the student
	Success        float64        `json:"success_t1"`
	SuccessCI      [2]float64     `json:"success_t1_ci95"`
	Greedy         float64        `json:"success_greedy"`
	GreedyCI       [2]float64     `json:"success_greedy_ci95"`
	Turns          float64        `json:"turns"` // this and the next two: at temperature 1
	Invalid        float64        `json:"invalid_frac"`
	Labels         map[string]int `json:"labels"` // episodes
	TFLOP, Seconds float64
}

// episodeResult is the content of demo.json of gad demo --episodes.
type episodeResult struct {
	Environment string        `json:"environment"`
	Seed        uint64        `json:"seed"`
	Fast        bool          `json:"fast"`
	Rows        int           `json:"rows"` // held out
	Students    []*episodeRow `json:"students"`
}

// compareEpisodes lets the students play on held-out rows, prints the table and writes demo.json.
func (d *run) compareEpisodes(ctx context.Context, arms []*arm) error {
	file := d.path("episodes.jsonl")
	if err := d.FS.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("demo: %w", err)
	}
	args := []string{"eval", "--data", d.path("task", "test.jsonl"), "--env", d.env(),
		"--limit", fmt.Sprint(d.Size.TestRows), "--temperature", "1", "--greedy",
		"--max-prompt-length", "256", "--max-tokens", "384", "--max-response-length", "16",
		"--output", file}
	for _, a := range arms {
		args = append(args, "--model", a.Folder)
	}
	args = append(args, d.Flags...)
	d.announce(args)
	if err := d.Gad(ctx, io.Discard, d.Console, args...); err != nil {
		return err
	}
	raw, err := d.FS.ReadFile(file)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	rows, err := readEpisodes(raw, arms)
	if err != nil {
		return fmt.Errorf("demo: %s: %w", file, err)
	}
	result, err := json.MarshalIndent(episodeResult{world, d.Seed, d.Fast, d.Size.TestRows, rows},
		"",
		"  ")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := vfs.WriteFile(d.FS, d.path("demo.json"), append(result, '\n')); err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\n%s\n%s\n", episodeTable(rows, d.Size.TestRows),
		d.whyEpisodes(rows[1], rows[2]))
	fmt.Fprintf(d.Out, "The student is %s, a folder that transformers loads. Took %s. Watch it play, and the student before the game:\n", arms[2].Folder, time.Since(d.started).Round(time.Second))
	for _, m := range []string{arms[2].Folder, arms[0].Folder} {
		fmt.Fprintf(d.Out,
			"  gad generate --model %s --data %s --env 'gad env %s' --limit 1 --temperature 1\n", m,
			d.path("task", "test.jsonl"), world)
	}
	return nil
}

// readEpisodes returns the counts of gad eval --env --output by student.
func readEpisodes(raw []byte, arms []*arm) ([]*episodeRow, error) {
	var rows []*episodeRow
	for _, a := range arms {
		rows = append(rows, &episodeRow{arm: a, Stage: a.Stage, Folder: a.Folder, TFLOP: a.TFLOP,
			Seconds: a.Seconds, sampled: &episodeStats{labels: map[string]int{}},
			greedy: &episodeStats{labels: map[string]int{}}})
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var p episodeLine
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, err
		}
		if p.Temperature == nil {
			continue // the teacher's
		}
		i := slices.IndexFunc(arms, func(a *arm) bool { return a.Folder == p.Model })
		switch {
		case i < 0:
			return nil, fmt.Errorf("model %q: is none of the demo's", p.Model)
		case p.Fault != "":
			return nil, fmt.Errorf("model %q: a broken episode: %s", p.Model, p.Fault)
		}
		t := rows[i].sampled
		if *p.Temperature == 0 {
			t = rows[i].greedy
		}
		t.right, t.turns, t.invalid =
			append(t.right, p.Success), t.turns+p.Turns, t.invalid+p.Invalid
		t.labels[p.Label]++
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, r := range rows {
		for _, t := range []*episodeStats{r.sampled, r.greedy} {
			if len(t.right) == 0 || len(t.right) != len(rows[0].sampled.right) {
				return nil, fmt.Errorf("model %q: %d episodes, %q has %d", r.Folder, len(t.right),
					rows[0].Folder, len(rows[0].sampled.right))
			}
		}
		r.Success, r.SuccessCI = shareOf(r.sampled.right)
		r.Greedy, r.GreedyCI = shareOf(r.greedy.right)
		r.Turns = float64(r.sampled.turns) / float64(len(r.sampled.right))
		r.Invalid = float64(r.sampled.invalid) / float64(max(1, r.sampled.turns))
		r.Labels = r.sampled.labels
	}
	return rows, nil
}

// shareOf returns a share with its 95 % interval.
func shareOf(right []bool) (float64, [2]float64) {
	n := 0
	for _, yes := range right {
		if yes {
			n++
		}
	}
	return float64(n) / float64(len(right)), textmetrics.Wilson(n, len(right))
}

// episodeTable returns the table: a line for each student, and below it what each is.
func episodeTable(rows []*episodeRow, n int) string {
	var b strings.Builder
	const line = "%-20s %-24s %-24s%7s%9s%6s%6s%8s%6s%7s%8s\n"
	fmt.Fprintf(&b, line, fmt.Sprintf("%d unseen houses", n), "success, temperature 1",
		"success, greedy", "turns", "invalid", "code", "key", "jammed", "lost", "TFLOP", "time")
	fmt.Fprintf(&b, line, "", "with 95 % interval", "with 95 % interval", "", "turns", "", "", "",
		"", "", "")
	for i, r := range rows {
		share := func(x float64, ci [2]float64, right, first []bool) string {
			text := fmt.Sprintf("%5.1f %% (%.1f-%.1f)", 100*x, 100*ci[0], 100*ci[1])
			if i > 0 {
				text += " " + differs(right, first)
			}
			return text
		}
		fmt.Fprintf(&b, line, r.arm.name,
			share(r.Success, r.SuccessCI, r.sampled.right, rows[0].sampled.right),
			share(r.Greedy, r.GreedyCI, r.greedy.right, rows[0].greedy.right),
			fmt.Sprintf("%.1f", r.Turns), fmt.Sprintf("%.0f %%", 100*r.Invalid),
			fmt.Sprint(r.Labels["code"]), fmt.Sprint(r.Labels["key"]),
			fmt.Sprint(r.Labels["jammed"]), fmt.Sprint(r.Labels["lost"]),
			fmt.Sprintf("%.1f", r.TFLOP), fmt.Sprintf("%.0f s", r.Seconds))
	}
	fmt.Fprintf(&b, "\n%s better than SFT on the same houses, %s worse, %s within noise (95 %%). Turns and what follows at temperature 1: code and key are the two ways out, jammed is a wrong dial, lost 12 turns; the others ended at a limit of tokens.\n", better, worse, noise)
	for _, r := range rows {
		fmt.Fprintf(&b, "%-20s %s\n", r.arm.name, r.arm.about)
	}
	return b.String()
}

// whyEpisodes returns the text below the table: its meaning.
func (d *run) whyEpisodes(equal, gad *episodeRow) string {
	text := "The teacher always leaves the house, three times in four by the dial, which this student can only guess. "
	switch differs(gad.sampled.right, equal.sampled.right) {
	case better:
		text += "SFT has to copy both ways; the game lets the student choose, and it leaves the house more often than with as much SFT.\n"
	case worse:
		text += "The game leaves the house less often than as much SFT does.\n"
	default:
		text += "The game leaves the house no more often than as much SFT does. A likely reason: to tell a wrong dial from a right one, the discriminator, as small as the student, would have to work the lock out.\n"
	}
	if gad.Invalid < equal.Invalid {
		text += fmt.Sprintf("What it does teach is to act as the teacher does: %.0f %% of its turns are invalid, %.0f %% with as much SFT.\n", 100*gad.Invalid, 100*equal.Invalid)
	}
	if d.Fast {
		text += "With --fast each stage is cut short: read nothing into the figures.\n"
	}
	return text
}
