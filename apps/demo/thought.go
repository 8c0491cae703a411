package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/quality"
)

// walks is the task of gad demo --thought.
const walks = "walks"

// The question has 33 tokens, and the longest answer to train on 260. A chunk's context has the
// question and 80 tokens.
var (
	commonThought = []string{"data.max_prompt_length=64", "data.max_response_length=400",
		"rollout.max_num_seqs=128"}
	chunked      = []string{"rollout.chunk=80", "rollout.carry=16", "rollout.chunks=8"}
	judgeThought = append(slices.Clone(chunked), "data.train_batch_size=16", "rollout.n=4",
		"critic.optim.lr=2e-4", "critic.optim.lr_warmup_steps=50", "critic.optim.beta2=0.98",
		"critic.grad_clip=1", "critic.ppo_mini_batch_size=1")
	playThought = append(slices.Clone(chunked), "critic.ppo_mini_batch_size=4",
		"data.train_batch_size=16", "rollout.n=8", "actor.optim.lr=5e-5", "actor.optim.beta2=0.95",
		"actor.grad_clip=1", "actor.kl_loss_coef=0.02")
	// some 0.9 of the sampled tokens of eight thoughts, and as many operations: a branch samples
	// only the tokens after its seam, and a short thought has fewer than two seams
	branching = []string{"rollout.n=1", "rollout.tree.trees=3", "rollout.tree.rounds=1",
		"rollout.tree.expand=2", "algorithm.adv_estimator=tree_node"}
)

var thoughtSizes = map[bool]Size{
	false: {TestRows: 200,
		SFT:    append([]string{"--steps", "500", "trainer.save_freq=0"}, learn...),
		Warmup: append([]string{"--steps", "10", "--critic-warmup", "10"}, judgeThought...),
		Train:  append([]string{"--steps", "6", "trainer.save_freq=0"}, playThought...)},
	true: {TestRows: 50,
		SFT:    append([]string{"--steps", "60", "trainer.save_freq=0"}, learn...),
		Warmup: append([]string{"--steps", "2", "--critic-warmup", "2"}, judgeThought...),
		Train:  append([]string{"--steps", "2", "trainer.save_freq=0"}, playThought...)},
}

// The stages of gad demo --thought.
const (
	stagePlain  = "one-sequence"
	stageChunks = "chunks"
	stageTrees  = "branches"
)

// thought runs gad demo --thought: one student learns to write a long answer as one sequence,
// another in chunks of bounded context, which then plays the game, with whole thoughts and with
// thoughts that branch.
func (d *run) thought(ctx context.Context) error {
	task := []string{"task", "make", walks, "--output", d.path("task"), "--seed",
		fmt.Sprint(d.Seed)}
	if d.Size.Rows > 0 {
		task = append(task, "--rows", fmt.Sprint(d.Size.Rows))
	}
	if err := d.invoke(ctx, task...); err != nil {
		return err
	}
	plain := &arm{Stage: stagePlain, name: "one sequence",
		about: "SFT; a token sees the whole answer before it"}
	chunks := &arm{Stage: stageChunks, name: "chunks",
		about: "SFT; a token sees the question and at most 80 tokens of the answer, of which the first 16 are carried from the chunk before"}
	warmup := &arm{Stage: stageWarmup}
	gad := &arm{Stage: stageGAD, name: "chunks, game",
		about: "the student of the second row, a warm-up of the discriminator alone, and the game: answers are written in chunks, the discriminator reads them whole"}
	trees := &arm{Stage: stageTrees, name: "chunks, branches",
		about: "as the row before, but the thoughts are trees, which branch at the seams of their chunks, of about as many sampled tokens; each part of a thought has an advantage of its own"}
	student := []string{"--model", d.path("task", "student")}
	if err := d.stage(ctx, plain, config.SFT, nil,
		slices.Concat(student, d.Size.SFT)); err != nil {
		return err
	}
	if err := d.stage(ctx, chunks, config.SFT, nil,
		slices.Concat(student, d.Size.SFT, chunked)); err != nil {
		return err
	}
	if err := d.stage(ctx, warmup, config.Warmup, chunks,
		append([]string{"--model", chunks.Folder}, d.Size.Warmup...)); err != nil {
		return err
	}
	game := append([]string{"--resume", d.path(stageWarmup)}, d.Size.Train...)
	if err := d.stage(ctx, gad, config.Train, warmup, game); err != nil {
		return err
	}
	if err := d.stage(ctx, trees, config.Train, warmup,
		slices.Concat(game, branching)); err != nil {
		return err
	}
	return d.compareThought(ctx, []*arm{plain, chunks, gad, trees})
}

// lengths lists the test sets of gad demo --thought: walks as long as in training, and longer ones.
var lengths = []string{"test", "longer"}

// thoughtRow is a line of the closing table, and of demo.json.
type thoughtRow struct {
	arm     *arm
	Stage   string                `json:"stage"`
	Folder  string                `json:"folder"` // of the student
	Right   map[string]float64    `json:"right"`  // share of right answers, by test set
	RightCI map[string][2]float64 `json:"right_ci95"`
	Tokens  int                   `json:"context"` // most tokens of an answer that one token sees
	TFLOP   float64               `json:"tflop"`
	Seconds float64               `json:"seconds"`
}

// compareThought lets the students answer held-out questions greedily, prints the table and writes
// demo.json.
func (d *run) compareThought(ctx context.Context, arms []*arm) error {
	rows := make([]*thoughtRow, len(arms))
	for i, a := range arms {
		rows[i] = &thoughtRow{arm: a, Stage: a.Stage, Folder: a.Folder, TFLOP: a.TFLOP,
			Seconds: a.Seconds, Tokens: 80, Right: map[string]float64{},
			RightCI: map[string][2]float64{}}
	}
	rows[0].Tokens = 400
	for _, set := range lengths {
		args := []string{"eval", "--data", d.path("task", set+".arrow"), "--checker",
			d.Program + " task check " + walks,
			"--limit", fmt.Sprint(d.Size.TestRows), "--temperature", "0", "--disc-steps", "0",
			"--max-prompt-length", "64", "--json"}
		for _, a := range arms {
			args = append(args, "--model", a.Folder)
		}
		// for one sequence; chunks have their own bound
		args = append(append(args, "--max-response-length", "400"), d.Flags...)
		d.announce(args)
		var out bytes.Buffer
		if err := d.Gad(ctx, &out, d.Console, args...); err != nil {
			return err
		}
		if err := readThought(rows, set, out.Bytes()); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(struct {
		Kind string        `json:"kind"`
		Seed uint64        `json:"seed"`
		Fast bool          `json:"fast"`
		Rows int           `json:"rows"` // held out, of each test set
		Arms []*thoughtRow `json:"students"`
	}{walks, d.Seed, d.Fast, d.Size.TestRows, rows}, "", "  ")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := vfs.WriteFile(d.FS, d.path("demo.json"), append(raw, '\n')); err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\n%s\n%s\n", thoughtTable(rows, d.Size.TestRows), d.whyThought(rows))
	fmt.Fprintf(d.Out, "Took %s. See one of them think about a walk that is longer than any it has learned from:\n",
		time.Since(d.started).Round(time.Second))
	fmt.Fprintf(d.Out, "  gad generate --model %s --data %s --limit 1 --temperature 0\n",
		arms[1].Folder, d.path("task", "longer.arrow"))
	return nil
}

// readThought reads the students' figures on a test set from the JSON of gad eval --json.
func readThought(rows []*thoughtRow, set string, raw []byte) error {
	var said struct {
		Models []quality.Evaluation `json:"models"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return fmt.Errorf("demo: gad eval --json: %w", err)
	}
	if len(said.Models) != len(rows) {
		return fmt.Errorf("demo: gad eval --json: %d models, %d were named", len(said.Models),
			len(rows))
	}
	for i, m := range said.Models {
		if m.Check == nil || m.CheckCI95 == nil {
			return fmt.Errorf("demo: gad eval --json: model %q has no check", m.Model)
		}
		rows[i].Right[set], rows[i].RightCI[set] = *m.Check, *m.CheckCI95
	}
	return nil
}

// thoughtTable returns the table: a line for each student, and below it what each is.
func thoughtTable(rows []*thoughtRow, n int) string {
	var b strings.Builder
	const line = "%-22s %-24s %-24s%9s%7s%8s\n"
	fmt.Fprintf(&b, line, fmt.Sprintf("%d unseen walks each", n), "right, 8 to 64 moves",
		"right, 72 to 96 moves", "context", "TFLOP", "time")
	fmt.Fprintf(&b, line, "", "as in training, 95 %", "longer than any, 95 %", "tokens", "", "")
	for _, r := range rows {
		share := func(set string) string {
			ci := r.RightCI[set]
			return fmt.Sprintf("%5.1f %% (%.1f-%.1f)", 100*r.Right[set], 100*ci[0], 100*ci[1])
		}
		fmt.Fprintf(&b, line, r.arm.name, share("test"), share("longer"), fmt.Sprint(r.Tokens),
			fmt.Sprintf("%.1f", r.TFLOP), fmt.Sprintf("%.0f s", r.Seconds))
	}
	b.WriteString("\nGreedy answers. Context: the most tokens of its answer that the student sees at once.\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "%-22s %s\n", r.arm.name, r.arm.about)
	}
	return b.String()
}

// clearlyBetter reports whether a's interval on a test set lies above b's.
func clearlyBetter(a, b *thoughtRow, set string) bool {
	return a.RightCI[set][0] > b.RightCI[set][1]
}

// whyThought returns the text below the table: its meaning.
func (d *run) whyThought(rows []*thoughtRow) string {
	plain, chunks, gad, trees := rows[0], rows[1], rows[2], rows[3]
	text := ""
	switch {
	case clearlyBetter(chunks, plain, "longer"):
		text = "In chunks the student goes on to walks that are longer than any it has seen, since no context is; in one sequence it does not.\n"
	case clearlyBetter(plain, chunks, "longer"):
		text = "One sequence did better on longer walks, which is not what chunks are for: gad doctor looks for what went wrong in their training.\n"
	default:
		text = "On longer walks neither is ahead.\n"
	}
	if clearlyBetter(plain, chunks, "test") {
		text += "On walks as long as those of training one sequence is better: all that it needs is in sight.\n"
	}
	said := func(a, b *thoughtRow, better, worse, neither string) {
		switch {
		case clearlyBetter(a, b, "test") || clearlyBetter(a, b, "longer"):
			text += better
		case clearlyBetter(b, a, "test") || clearlyBetter(b, a, "longer"):
			text += worse
		default:
			text += neither
		}
	}
	said(gad, chunks, "The game made it better.\n", "The game made it worse.\n",
		"The game changes nothing that so many walks show.\n")
	said(trees, gad, "Thoughts that branch taught it more than whole ones.\n",
		"Thoughts that branch taught it less than whole ones.\n",
		"Whether thoughts branch changes nothing that so many walks show.\n")
	if d.Fast {
		text += "With --fast each stage is cut short: read nothing into the figures.\n"
	}
	return text
}
