package main

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/demo"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
)

// playDemo plays a small demo: rows and test rows, steps of SFT, one step of each other stage, and
// the settings sft and game. It requires that stderr contains each text of say and stdout each of
// print, where $DIR stands for the folder and $GAD for the program, and decodes demo.json into got.
func playDemo(t *testing.T, o demo.Options, rows, test int, steps string, sft, game []string,
	say, print []string, got any) (out, said string) {
	t.Helper()
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	var stdout, stderr bytes.Buffer
	size := demo.SizeOf(false, o.Episodes, o.Thought)
	size.Rows, size.TestRows = rows, test
	size.SFT = append(replaced(size.SFT, "--steps", steps), sft...)
	size.Warmup = append(replaced(replaced(size.Warmup, "--steps", "1"), "--critic-warmup", "1"),
		game...)
	size.Train = append(replaced(size.Train, "--steps", "1"), game...)
	p := &program{out: &stdout}
	o.Seed, o.Size, o.Backend, o.FS, o.Gad = 2, size, be, files(), p.runNested
	o.Out, o.Console, o.Flags = &stdout, &stderr, []string{"--seed", "2"}
	err = demo.Run(context.Background(), o)
	out, said = stdout.String(), stderr.String()
	if err != nil {
		t.Fatal(err, said)
	}
	names := strings.NewReplacer("$DIR", o.Dir, "$GAD", o.Program)
	for _, text := range say {
		if !strings.Contains(said, names.Replace(text)) {
			t.Errorf("does not say %q:\n%s", names.Replace(text), said)
		}
	}
	for _, text := range print {
		if !strings.Contains(out, names.Replace(text)) {
			t.Errorf("does not print %q:\n%s", names.Replace(text), out)
		}
	}
	decode(t, readFile(t, filepath.Join(o.Dir, "demo.json")), got)
	for _, flags := range []string{"", " --seed 2 --fast"} {
		answered(t, []exchange{{"demo --dir " + o.Dir + flags, exitUsage,
			[]string{"=gad: demo: " + o.Dir +
				": contains another demo, with another --seed, --fast, --episodes or --thought: nothing is " +
				"overwritten: give another --dir\n"}}})
	}
	return out, said
}

// replaced are the settings with the value of one flag replaced.
func replaced(settings []string, flag, value string) []string {
	settings = slices.Clone(settings)
	settings[slices.Index(settings, flag)+1] = value
	return settings
}

// The demo of long thought: one student in one sequence, one in chunks that then plays the game,
// with whole thoughts and with trees of them.
func TestDemoThought(t *testing.T) {
	slow(t)
	dir := filepath.Join(t.TempDir(), "demo")
	var got struct {
		Kind     string
		Students []struct {
			Stage   string
			Context int
			Right   map[string]float64
			TFLOP   float64
		}
	}
	playDemo(t, demo.Options{Dir: dir, Thought: true, Program: built(t)}, 20, 2, "3",
		[]string{"data.train_batch_size=2", "actor.optim.lr_warmup_steps=2"},
		[]string{"data.train_batch_size=2", "rollout.n=2", "rollout.chunks=2",
			"critic.ppo_mini_batch_size=1"},
		[]string{"$ gad task make walks --output $DIR", " rollout.chunk=80 rollout.carry=16 ",
			"$ gad train --data ", "longer.arrow --checker '$GAD task check walks'"},
		[]string{"2 unseen walks each", "\none sequence  ", "\nchunks  ", "\nchunks, game  ",
			"\nchunks, branches  ", "  gad generate --model $DIR"}, &got)
	if got.Kind != "walks" || len(got.Students) != 4 {
		t.Fatalf("demo.json: %+v", got)
	}
	for i, s := range got.Students {
		if len(s.Right) != 2 || s.TFLOP <= 0 || s.Context != []int{400, 80, 80, 80}[i] ||
			i > 1 && s.TFLOP <= got.Students[1].TFLOP { // that of the SFT before it
			t.Errorf("demo.json: student %d is %+v", i, s)
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
	var got struct {
		Students []struct {
			Stage  string
			Turns  float64
			Labels map[string]int
		}
	}
	playDemo(t, demo.Options{Dir: filepath.Join(t.TempDir(), "demo"), Episodes: true,
		Program: built(t)}, 20, 4, "4",
		[]string{"data.train_batch_size=2", "actor.optim.lr_warmup_steps=2"},
		[]string{"data.train_batch_size=2", "rollout.n=2", "env.max_turns=3"},
		[]string{"$ gad task make doors --output $DIR", "$ gad sft --data ",
			" --env '$GAD env doors' --steps 1 ", "$ gad train --data ", "$ gad eval --data "},
		[]string{"4 unseen houses", "\nSFT  ", "\nSFT, equal compute  ", "\nGAD on episodes  ",
			"The teacher always leaves the house", "  gad generate --model $DIR",
			" --env 'gad env doors' "}, &got)
	for i, stage := range []string{"sft", "sft-equal-compute", "gad"} {
		s := got.Students[i]
		episodes := 0
		for _, n := range s.Labels {
			episodes += n
		}
		if s.Stage != stage || s.Turns < 1 || s.Turns > 12 || episodes != 4 {
			t.Errorf("student %d is %+v, want stage %s and 4 episodes", i, s, stage)
		}
	}
}

// The demo's stages are commands, its table says what demo.json says, and the same
// command again finds everything done.
func TestDemo(t *testing.T) {
	slow(t)
	o := demo.Options{Dir: filepath.Join(t.TempDir(), "demo")}
	var got struct{ Rows []map[string]any }
	play := func() (out, said string) {
		t.Helper()
		return playDemo(t, o, 40, 8, "6",
			[]string{"data.train_batch_size=4", "actor.optim.lr_warmup_steps=2"},
			[]string{"data.train_batch_size=2", "rollout.n=2", "critic.ppo_mini_batch_size=2",
				"trainer.critic_warmup_until=0"},
			[]string{"$ gad task make two-forms --output $DIR", "$ gad sft --data ",
				"$ gad warmup --data ", "$ gad train --data ", "evaluating on 8 held-out prompts"},
			[]string{"8 unseen prompts", "\nSFT  ", "\nSFT, equal compute  ",
				"\nafter the warm-up  ", "\nGAD  ", "  gad generate --model $DIR", "within noise",
				"\nGAD                  the game: "}, &got)
	}
	out, _ := play()
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
		if fileText(filepath.Join(row["folder"].(string), "model.safetensors")) == "" {
			t.Errorf("%s: no student", row["stage"])
		}
	}
	if want := []string{"sft", "sft-equal-compute", "warmup", "gad"}; !slices.Equal(stages, want) {
		t.Fatalf("rows are %q, want %q", stages, want)
	}
	equal, game := got.Rows[1]["tflop"].(float64), got.Rows[3]["tflop"].(float64)
	if step := got.Rows[0]["tflop"].(float64) / 6; math.Abs(equal-game) > step {
		t.Errorf("SFT at equal compute takes %g TFLOP, the game %g, a step %g", equal, game, step)
	}
	again, said := play()
	lines := func(s string) []string { return strings.Split(s, "\n")[:8] }
	if strings.Count(said, "already finished") != 4 || !slices.Equal(lines(again), lines(out)) {
		t.Errorf("again:\n%s%s\nwas\n%s", said, again, out)
	}
}
