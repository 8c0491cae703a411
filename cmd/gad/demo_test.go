package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/demo"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
)

// tinyDemo is a demo of a few steps in dir; it returns what it prints.
func tinyDemo(t *testing.T, dir string) (out, said string, err error) {
	t.Helper()
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	var stdout, stderr bytes.Buffer
	size := demo.SizeOf(false, false, false)
	size.Rows, size.TestRows = 100, 20
	size.SFT = append(told(size.SFT, "--steps", "20"), "data.train_batch_size=8",
		"actor.optim.lr_warmup_steps=5")
	size.Warmup = append(told(size.Warmup), "data.train_batch_size=4",
		"trainer.critic_warmup_max=20")
	size.Train = append(told(size.Train, "--steps", "1"), "data.train_batch_size=4")
	p := &program{out: &stdout}
	err = demo.Run(context.Background(),
		demo.Options{Dir: dir, Seed: 2, Size: size, Backend: be, FS: files(), Gad: p.runNested,
			Out: &stdout, Console: &stderr, Flags: []string{"--seed", "2"}})
	return stdout.String(), stderr.String(), err
}

// The demo of long thought: one student in one sequence, one in chunks that then plays the game,
// with whole thoughts and with trees of them.
func TestDemoThought(t *testing.T) {
	slow(t)
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	dir := filepath.Join(t.TempDir(), "demo")
	var out, said bytes.Buffer
	size := demo.SizeOf(false, false, true)
	size.Rows, size.TestRows = 40, 4
	few := []string{"data.train_batch_size=2", "rollout.n=2", "rollout.chunks=2",
		"critic.ppo_mini_batch_size=1"}
	size.SFT = append(told(size.SFT, "--steps", "6"), "data.train_batch_size=2",
		"actor.optim.lr_warmup_steps=2")
	size.Warmup = append(told(told(size.Warmup, "--steps", "1"), "--critic-warmup", "1"), few...)
	size.Train = append(told(size.Train, "--steps", "1"), few...)
	p := &program{out: &out}
	err = demo.Run(context.Background(),
		demo.Options{Dir: dir, Thought: true, Program: built(t), Seed: 2, Size: size, Backend: be,
			FS: files(), Gad: p.runNested, Out: &out, Console: &said, Flags: []string{"--seed", "2"}})
	if err != nil {
		t.Fatal(err, said.String())
	}
	for _, text := range []string{"$ gad task make walks --output " + dir,
		" rollout.chunk=80 rollout.carry=16 ", "$ gad train --data ",
		"longer.arrow --checker '" + built(t) + " task check walks'"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("does not say %q:\n%s", text, said.String())
		}
	}
	for _, text := range []string{"4 unseen walks each", "\none sequence  ", "\nchunks  ",
		"\nchunks, game  ", "\nchunks, branches  ", "  gad generate --model " + dir} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("does not print %q:\n%s", text, out.String())
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kind     string
		Students []struct {
			Stage   string
			Context int
			Right   map[string]float64
			TFLOP   float64
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "walks" || len(got.Students) != 4 {
		t.Fatalf("demo.json: %s", raw)
	}
	for i, s := range got.Students {
		if len(s.Right) != 2 || s.TFLOP <= 0 || s.Context != []int{400, 80, 80, 80}[i] {
			t.Errorf("demo.json: student %d is %+v", i, s)
		}
	}
	for _, s := range got.Students[2:] {
		if sft := got.Students[1].TFLOP; s.TFLOP <= sft {
			t.Errorf("%s took %g TFLOP with the SFT before it, %g", s.Stage, s.TFLOP, sft)
		}
	}
	if rows, err := report.ReadMetrics(vfs.OS, filepath.Join(dir, "branches")); err != nil ||
		len(rows) != 1 || !(rows[0].Values["tree/branches"] > 0) {
		t.Errorf("no thought branches: %+v, %v", rows, err)
	}
}

// The demo of episodes: its stages play in the environment, and its table says what demo.json says.
func TestDemoEpisodes(t *testing.T) {
	slow(t)
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	dir := filepath.Join(t.TempDir(), "demo")
	var out, said bytes.Buffer
	size := demo.SizeOf(false, true, false)
	size.Rows, size.TestRows = 40, 8
	size.SFT = append(told(size.SFT, "--steps", "12"), "data.train_batch_size=2",
		"actor.optim.lr_warmup_steps=3")
	few := []string{"data.train_batch_size=2", "rollout.n=2", "env.max_turns=3"}
	size.Warmup = append(told(told(size.Warmup, "--steps", "1"), "--critic-warmup", "1"), few...)
	size.Train = append(told(size.Train, "--steps", "1"), few...)
	p := &program{out: &out}
	env := built(t) + " env doors"
	err = demo.Run(context.Background(),
		demo.Options{Dir: dir, Episodes: true, Program: built(t), Seed: 2, Size: size, Backend: be,
			FS: files(), Gad: p.runNested, Out: &out, Console: &said, Flags: []string{"--seed", "2"}})
	if err != nil {
		t.Fatal(err, said.String())
	}
	for _, text := range []string{"$ gad task make doors --output " + dir, "$ gad sft --data ",
		" --env '" + env + "' --steps 1 ", "$ gad train --data ", "$ gad eval --data "} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("does not say %q:\n%s", text, said.String())
		}
	}
	for _, text := range []string{"8 unseen houses", "\nSFT  ", "\nSFT, equal compute  ",
		"\nGAD on episodes  ", "The teacher always leaves the house",
		"  gad generate --model " + dir,
		" --env 'gad env doors' "} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("does not print %q:\n%s", text, out.String())
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Students []struct {
			Stage  string
			Turns  float64
			Labels map[string]int
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for i, stage := range []string{"sft", "sft-equal-compute", "gad"} {
		s := got.Students[i]
		episodes := 0
		for _, n := range s.Labels {
			episodes += n
		}
		if s.Stage != stage || s.Turns < 1 || s.Turns > 12 || episodes != 8 {
			t.Errorf("student %d is %+v, want stage %s and 8 episodes", i, s, stage)
		}
	}
	code, _, told := gad("demo", "--dir", dir, "--seed", "2")
	if code != exitUsage || told != "gad: demo: "+dir+": contains another demo, with another --seed, --fast, --episodes or --thought: nothing is overwritten: give another --dir\n" {
		t.Errorf("the other demo in that folder: exit status %d, %s", code, told)
	}
}

// told are the settings with the value of one flag replaced.
func told(settings []string, flag ...string) []string {
	settings = slices.Clone(settings)
	if len(flag) > 0 {
		settings[slices.Index(settings, flag[0])+1] = flag[1]
	}
	return settings
}

// The demo's stages are commands, its table says what demo.json says, and the same
// command again finds everything done.
func TestDemo(t *testing.T) {
	slow(t)
	dir := filepath.Join(t.TempDir(), "demo")
	out, said, err := tinyDemo(t, dir)
	if err != nil {
		t.Fatal(err, said)
	}
	for _, text := range []string{"$ gad task make two-forms --output " + dir, "$ gad sft --data ",
		"$ gad warmup --data ", "$ gad train --data ", "evaluating on 20 held-out prompts"} {
		if !strings.Contains(said, text) {
			t.Errorf("does not say %q:\n%s", text, said)
		}
	}
	for _, text := range []string{"20 unseen prompts", "\nSFT  ", "\nSFT, equal compute  ",
		"\nafter the warm-up  ", "\nGAD  ", "  gad generate --model " + dir, "within noise",
		"\nGAD                  the game: "} {
		if !strings.Contains(out, text) {
			t.Errorf("does not print %q:\n%s", text, out)
		}
	}
	if n := strings.Count(demo.Why, ".\n"); n != 3 {
		t.Errorf("%d sentences under the table, want 3", n)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Rows []map[string]any `json:"rows"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	var stages []string
	for _, row := range got.Rows {
		stages = append(stages, row["stage"].(string))
		forms := 0.0
		for _, key := range []string{"valid_t1", "valid_greedy", "result_first", "walk_first",
			"other"} {
			x, ok := row[key].(float64)
			if !ok || x < 0 || x > 1+1e-9 {
				t.Errorf("%s: %s is %v, want 0 to 1", row["stage"], key, row[key])
			}
			if !strings.HasPrefix(key, "valid") {
				forms += x
			}
		}
		if math.Abs(forms-1) > 1e-9 {
			t.Errorf("%s: the shares of the forms add up to %g", row["stage"], forms)
		}
		if info, err := os.Stat(filepath.Join(row["folder"].(string),
			"model.safetensors")); err != nil || info.Size() == 0 {
			t.Errorf("%s: no student: %v", row["stage"], err)
		}
	}
	if want := []string{"sft", "sft-equal-compute", "warmup", "gad"}; !slices.Equal(stages, want) {
		t.Fatalf("rows are %q, want %q", stages, want)
	}
	equal, game := got.Rows[1]["tflop"].(float64), got.Rows[3]["tflop"].(float64)
	if step := got.Rows[0]["tflop"].(float64) / 20; math.Abs(equal-game) > step {
		t.Errorf("SFT at equal compute takes %g TFLOP, the game %g, a step %g", equal, game, step)
	}

	again, said, err := tinyDemo(t, dir)
	if err != nil || strings.Count(said, "already finished") != 4 {
		t.Errorf("again: %v\n%s", err, said)
	}
	lines := func(s string) []string { return strings.Split(s, "\n")[:8] }
	if !slices.Equal(lines(again), lines(out)) {
		t.Errorf("again:\n%s\nwas\n%s", again, out)
	}
	for _, flags := range [][]string{{}, {"--seed", "2", "--fast"}} {
		code, _, said := gad(append([]string{"demo", "--dir", dir}, flags...)...)
		if code != exitUsage || said != "gad: demo: "+dir+": contains another demo, with another --seed, --fast, --episodes or --thought: nothing is overwritten: give another --dir\n" {
			t.Errorf("%q in that folder: exit status %d, %s", flags, code, said)
		}
	}
}
