package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gad/apps/study"
	"gad/checkpoint"
	"gad/internal/hostile"
)

// tiny writes the file of a study of two arms that share a stage, with two seeds.
func tiny(f *fixture, dir string) (file string, err error) {
	text := fmt.Sprintf(`name: tiny
output: out
data: %q
model: %q
seeds: [1, 2]
common: [%s, trainer.save_freq=2]
eval: {data: %q, temperatures: [1, 0], rows: 6, against: %q}
budget: {like: GAD}
stages:
  sft: {run: sft, steps: 4, set: [actor.optim.lr=1e-3]}
arms:
  SeqKD: [{run: sft, steps: fill, set: [actor.optim.lr=1e-3, actor.optim.lr_scheduler=cosine, actor.optim.lr_warmup_steps=10]}]
  GAD: [sft, {run: warmup, steps: 2, critic_warmup: 1},
        {run: train, steps: 2, set: [actor.optim.lr=1e-4]}]
`, f.path("train.arrow"), f.path("student"), strings.Join(small, ", "), f.path("test.jsonl"), f.path("sft", "global_step_60", "actor"))
	file = filepath.Join(dir, "tiny.yaml")
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// tinyIn is tiny in a test.
func tinyIn(t *testing.T, f *fixture, dir string) (file string) {
	t.Helper()
	file, err := tiny(f, dir)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// stages are the folders of a study's stages: name to run folder.
func stages(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(dir, "out", "stages"))
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]string{}
	for _, e := range list {
		runs[e.Name()] = filepath.Join(dir, "out", "stages", e.Name(), "run")
	}
	return runs
}

// equalStudies wants the same stages with the same metrics and checkpoints.
func equalStudies(t *testing.T, got, want string) {
	t.Helper()
	a, b := stages(t, got), stages(t, want)
	if len(a) != len(b) || len(b) != 8 {
		t.Fatalf("%d stages, want %d", len(a), len(b))
	}
	for name, run := range b {
		equalRuns(t, a[name], run, lines(filepath.Join(run, "metrics.jsonl")))
	}
	var evals [2]map[string]string
	for i, dir := range []string{got, want} {
		evals[i] = tree(t, filepath.Join(dir, "out", "evals"))
		delete(evals[i], ".")
		for name, text := range evals[i] {
			_, result, ok := strings.Cut(text, `"result"`)
			if !ok {
				t.Errorf("evals/%s: %q", name, text)
			}
			evals[i][name] = result
		}
	}
	if len(evals[1]) != 2*2*2 {
		t.Errorf("%d evaluations", len(evals[1]))
	}
	for name := range evals[1] {
		if evals[0][name] != evals[1][name] {
			t.Errorf("%s: %s, want %s", name, evals[0][name], evals[1][name])
		}
	}
}

// told is a finished study: its folder, its stdout and its stderr.
type told struct{ dir, printed, said string }

// inTurn plays the study of tiny once, one command at a time.
var inTurn = sync.OnceValues(func() (told, error) { return studied("1") })

// studied plays the study of tiny with the given --jobs.
func studied(jobs string) (s told, err error) {
	if s.dir, err = os.MkdirTemp(fixed.root, "study"); err != nil {
		return s, err
	}
	file, err := tiny(&fixed, s.dir)
	if err != nil {
		return s, err
	}
	var code int
	if code, s.printed, s.said = gad("study", file, "--jobs", jobs); code != exitDone {
		return s, errors.New(s.said)
	}
	return s, nil
}

// A study of real runs: the fill comes near its budget, and the tables can be made again. Side by
// side it comes to the same bits as one after the other: TestStudyProcess, here with GAD_LONG.
func TestStudy(t *testing.T) {
	slow(t)
	ready(t)
	s, err := inTurn()
	if err != nil {
		t.Fatal(err)
	}
	one, printed, said := s.dir, s.printed, s.said
	for _, text := range []string{"# tiny\n\n4 of 4 runs (2 arms x 2 seeds: 1 2)", "## test, temperature 1", "## test, greedy", "| arm | rouge_l | teacher_nll | reverse_kl | forward_kl | fluency | len_ratio | distinct_2 | truncated_frac | repeat_frac |",
		"| GAD - SeqKD | ", "critic/d_acc", "4 + 2 + 2", "```sh\ngad study "} {
		if !strings.Contains(printed, text) {
			t.Errorf("does not print %q:\n%s", text, printed)
		}
	}
	for _, text := range []string{"GAD, seed 1: warmup: gad warmup --model ",
		"steps fill the budget of ", "GAD, seed 2: train: 2 steps, ", "eta ", "16 of 16, "} {
		if !strings.Contains(said, text) {
			t.Errorf("does not say %q:\n%s", text, said)
		}
	}
	if hostile.Long() {
		two, err := studied("2")
		if err != nil {
			t.Fatal(err)
		}
		equalStudies(t, two.dir, one)
	}
	plan, err := study.Read(filepath.Join(one, "tiny.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := study.Tables(plan, study.Options{FS: files()}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(said)
	// GAD's own share is 1; a step more or less of so small a budget is some percent.
	if c := report.Costs[0]; c.MinShare < 0.95 || c.MaxShare > 1.05 ||
		report.Costs[1].MinShare != 1 {
		t.Errorf("shares of the budget: %+v", report.Costs)
	}
	// Tables are made again, also while the study runs, and a finished one writes nothing.
	before := tree(t, filepath.Join(one, "out"))
	file := filepath.Join(one, "tiny.yaml")
	if again, said := must(t, "study", file, "--table"); again != printed ||
		strings.Count(said, "\n") != 1 {
		t.Errorf("--table prints\n%s\nand says\n%s", again, said)
	}
	lock, err := checkpoint.LockRun(filepath.Join(one, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if again, said := must(t, "study", file, "--table"); again != printed ||
		said != filepath.Join(one,
			"out")+" is in use: these are the tables of what is finished by now, and nothing is written\n" {
		t.Errorf("--table while the study runs prints\n%s\nand says\n%s", again, said)
	}
	lock.Unlock()
	must(t, "study", "--jobs", "1", file)
	for name, text := range tree(t, filepath.Join(one, "out")) {
		if before[name] != text {
			t.Errorf("a finished study writes %s", name)
		}
	}
}

// What is wrong with a study's file is found before anything is written: what its own reader finds
// is tested beside apps/study. Tables of a finished study are printed from their file of data.
func TestStudyMistakes(t *testing.T) {
	f, dir := ready(t), t.TempDir()
	file := tinyIn(t, f, dir)
	text := fileText(file)
	for old, c := range map[string]struct {
		new, want string
		code      int
	}{
		"actor.optim.lr=1e-4": {"actor.optim.lrr=1e-4",
			`study: arm "GAD", stage train: settings: override "actor.optim.lrr=1e-4": ` +
				`setting "actor.optim.lrr": unknown: did you mean "actor.optim.lr"?`, exitUsage},
		"critic_warmup: 1}": {"critic_warmup: 1, set: [critic.ppo_mini_batch_size=9]}",
			`study: arm "GAD", stage warmup: settings: critic.ppo_mini_batch_size 9 is ` +
				`larger than data.train_batch_size 4: lower it`, exitUsage},
		"test.jsonl": {"none.jsonl", "study: eval: test: " + f.path("none.jsonl") +
			": no such file or folder: paths are relative to the study's file: cannot be read", exitInput},
	} {
		put(t, file, strings.Replace(text, old, c.new, 1))
		answered(t, []exchange{{"study " + file, c.code, []string{"=gad: " + c.want + "\n"}}})
	}
	if _, err := os.Stat(filepath.Join(dir, "out", "stages")); err == nil {
		t.Error("a stage was begun")
	}
	answered(t, []exchange{{"study --table ../../doc/study/two-forms.tsv", exitDone, []string{
		"# two forms, the commoner one out of reach\n", "\n| GAD | 0.889 [0.861, 0.917] | "}}})
}
