package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a command line says and the stage does not read is told, and so is a setting that
// differs from the run's when it is resumed; gad resume takes a run on.
func TestIgnoredAndChangedSettings(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	_, said := must(t, append(
		stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run,
			"--steps", "2"), "trainer.test_freq=1", "actor.optim.lr=1e-3")...)
	for _, want := range []string{
		"warning: rollout.n=4 has no effect: gad sft does not read it\n",
		"warning: critic.optim.lr=1e-3 has no effect: gad sft does not read it\n",
		"warning: trainer.test_freq=1 has no effect: there are no validation data: give --val-data FILE\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "actor.optim.lr=1e-3 has no effect") ||
		strings.Contains(said, "actor.max_token_len=512 has") {
		t.Errorf("a setting that is read is said to have no effect:\n%s", said)
	}
	_, said = must(t, "resume", run, "--steps", "3", "actor.optim.lr=2e-3")
	for _, want := range []string{
		"resumed with another setting: actor.optim.lr was 0.001, now 0.002\n",
		"resumed with another setting: trainer.total_steps was 2, now 3\n", "step 3/3"} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	if _, said = must(t, "resume", run); !strings.Contains(said, "already finished") ||
		strings.Contains(said, "another setting") {
		t.Errorf("gad resume of a finished run says\n%s", said)
	}
}

// The settings that a stage is said not to read change nothing in what it computes.
func TestIgnoredSettingsAreIgnored(t *testing.T) {
	f := ready(t)
	weights := func(extra ...string) string {
		run := filepath.Join(t.TempDir(), "run")
		must(t,
			append(
				[]string{"sft", "--model", f.path("student"), "--data", f.path("train.arrow"),
					"--output", run, "--steps", "2",
					"data.train_batch_size=4", "data.max_prompt_length=64",
					"data.max_response_length=14"},
				extra...)...)
		raw, err := os.ReadFile(filepath.Join(run, "global_step_2", "actor", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	plain := weights()
	if weights("rollout.n=3", "rollout.temperature=0.5", "rollout.top_k=3",
		"algorithm.adv_estimator=rloo", "critic.loss=bce", "dpo.beta=3",
		"actor.policy_loss.loss_mode=vanilla",
		"actor.kl_loss_coef=3", "actor.clip_ratio_low=0.1", "actor.ppo_mini_batch_size=1",
		"actor.ppo_epochs=3", "actor.rollout_is=token", "trainer.critic_warmup=1") != plain {
		t.Error("a setting that gad sft says it does not read changes the student")
	}
	if weights("actor.optim.lr=1e-3") == plain {
		t.Error("the learning rate changes nothing")
	}
}

// Flags and settings may stand in any order, and the template of settings loads.
func TestOrderAndTemplate(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	first, _ := must(t, append(
		[]string{"sft", "data.train_batch_size=4", "--dry-run", "--model", f.path("student"),
			"data.max_prompt_length=64"}, "data.max_response_length=14",
		"--data="+f.path("train.arrow"), "--output", run)...)
	last, _ := must(t, "sft", "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--output", run, "--dry-run", "data.train_batch_size=4", "data.max_prompt_length=64",
		"data.max_response_length=14")
	if a, _, _ := strings.Cut(first, "\nmemory"); !strings.HasPrefix(last, a) ||
		!strings.Contains(a, "train_batch_size: 4") {
		t.Errorf("flags behind settings resolve to\n%s\nbefore them\n%s", first, last)
	}
	template, _ := must(t, "config", "--stage", "sft", "actor.optim.lr=3e-5")
	if !strings.Contains(template, "\n    # peak learning rate") ||
		!strings.Contains(template, "\n    lr: 3e-05\n") {
		t.Errorf("the template has no comment, or not the value given:\n%.2000s", template)
	}
	file := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(file, []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	from, _ := must(t, "sft", "--config", file, "--model", f.path("student"), "--data",
		f.path("train.arrow"), "--output", run, "--dry-run", "data.max_prompt_length=64",
		"data.max_response_length=14")
	if !strings.Contains(from, "lr: 3e-05") {
		t.Errorf("the template's setting is not taken:\n%.1500s", from)
	}
	for _, args := range [][]string{{"help", "settings", "critic.replay"},
		{"train", "--help", "critic.replay"}, {"train", "critic.replay", "--help"}} {
		if out, _ := must(t, args...); !strings.HasPrefix(out, "critic.replay.size=0\n    ") ||
			strings.Contains(out, "actor.") {
			t.Errorf("gad %s prints\n%s", strings.Join(args, " "), out)
		}
	}
	for _, args := range [][]string{{"help", "sft"}, {"sft", "--help"},
		{"sft", "-h", "--model", "x"}} {
		if out, _ := must(t, args...); !strings.Contains(out, "actor.optim.lr=5e-06") ||
			!strings.Contains(out, "gad help settings") {
			t.Errorf("gad %s prints\n%s", strings.Join(args, " "), out)
		}
	}
}

// Help is of the command, whatever stands before it; a setting given twice is told, and
// a file of settings that overrides what a stage inherits.
func TestHelpAndNotes(t *testing.T) {
	f := ready(t)
	for _, line := range []string{"config --stage train --help", "plan --stage train --help",
		"sft --model model --help", "sft --data data -h"} {
		if out, _ := must(t, strings.Fields(line)...); !strings.Contains(out,
			"gad "+strings.Fields(line)[0]+" - ") {
			t.Errorf("gad %s prints\n%s", line, out)
		}
	}
	run := filepath.Join(t.TempDir(), "lr=1e-3")
	args := append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--output", run, "--steps", "2"), "actor.optim.lr=1e-3", "actor.optim.lr=2e-3",
		"trainer.save_freq=1")
	if _, said := must(t, args...); strings.Count(said, "warning: actor.optim.lr is given twice: actor.optim.lr=2e-3 holds, actor.optim.lr=1e-3 does not\n") != 1 {
		t.Errorf("a setting given twice:\n%s", said)
	}
	// A run whose newest checkpoint is damaged resumes from the one before, in a folder
	// whose name looks like a setting.
	for _, name := range []string{"trainer.json", "manifest.json"} {
		if err := os.WriteFile(filepath.Join(run, "global_step_2", name), []byte("{"),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, said := must(t, "resume", run); !strings.Contains(said, "step 2/2") {
		t.Errorf("a damaged checkpoint:\n%s", said)
	}
	// Its settings cannot be changed by an editor either, and the doctor sees it.
	file := filepath.Join(run, "config.yaml")
	was := fileText(file)
	edited := strings.Replace(was, "train_batch_size: 4\n", "train_batch_size: 8\n", 1)
	const rule = "data.train_batch_size was 4 when the run in "
	for text, want := range map[string]string{edited: rule, was + "x": "cannot be read", "": rule} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, out, _ := gad("doctor", run); code != exitFailed || !strings.Contains(out, want) {
			t.Errorf("doctor with config.yaml changed: exit status %d\n%s", code, out)
		}
		if code, _, said := gad("resume", run, "--steps", "3"); text == edited &&
			(code != exitUsage || !strings.Contains(said, want)) {
			t.Errorf("resume with config.yaml changed: exit status %d\n%s", code, said)
		}
	}
	if err := os.WriteFile(file, []byte(was), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := must(t, "doctor", run); !strings.Contains(out, "\nno problems found\n") {
		t.Errorf("as it was:\n%s", out)
	}
	for _, step := range []string{"global_step_1", "global_step_2"} {
		if err := os.RemoveAll(filepath.Join(run, step)); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, _ := gad("doctor", run); code != exitFailed ||
		!strings.Contains(out, "it has saved, and no checkpoint is left") {
		t.Errorf("without checkpoints: exit status %d\n%s", code, out)
	}
	began := filepath.Join(t.TempDir(), "began")
	must(t, stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output",
		began, "--steps", "1")...)
	if err := os.RemoveAll(filepath.Join(began, "global_step_1")); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{run: "began the run\n",
		began: "began the run: gad sft --model "} {
		if code, _, said := gad("resume", dir); code != exitUsage ||
			!strings.Contains(said, "repeat the command that "+want) {
			t.Errorf("resume without checkpoints: exit status %d\n%s", code, said)
		}
	}
	// An answer that is cut is told so.
	if _, said := must(t, "generate", "--model", f.path("student"), "--prompt", "Add 1+1", "-n",
		"3", "--max-new-tokens", "1"); said != "gad: note: 3 of 3 answers cut at 1 token\n" {
		t.Errorf("cut answers: %q", said)
	}
	template := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(template, []byte("data: {max_response_length: 12}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	_, said := must(t, "train", "--config", template, "--resume", f.path("warmup"), "--data",
		f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "game"), "--dry-run")
	if !strings.Contains(said,
		template+" overrides the settings of "+f.path(
			"warmup")+": data.max_response_length was 14, now 12\n") {
		t.Errorf("a file that overrides what is inherited:\n%s", said)
	}
	// A preset overrides no value that the warm-up had of its own; what is given again does.
	small := []string{"train", "--preset", "small", "--resume", f.path("warmup"), "--data",
		f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "game"), "--dry-run"}
	out, said := must(t, small...)
	if want := "preset small gives way to " + f.path("warmup") +
		": data.max_response_length was 256, now 14\n"; !strings.Contains(said, want) ||
		!strings.Contains(out, "max_response_length: 14\n") ||
		!strings.Contains(out, "lr: 0.0003\n") {
		t.Errorf("a preset over what was chosen: want %q:\n%s%s", want, said, out)
	}
	if out, said := must(t, append(small, "data.max_response_length=20")...); !strings.Contains(out,
		"max_response_length: 20\n") {
		t.Errorf("a setting that is given beside a preset:\n%s%s", said, out)
	}
}

// What is odd about a run is said before it begins: a batch larger than the data, few
// steps to learn in, a learning rate that is the warm-up's, a length that is not known, a
// validation on some of the rows.
func TestOddRuns(t *testing.T) {
	f := ready(t)
	rows := lines(f.path("test.jsonl"))
	_, said := must(t, append(
		stage("sft", "--model", f.path("student"), "--data", f.path("test.jsonl"), "--val-data",
			f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "a")),
		fmt.Sprintf("data.train_batch_size=%d", rows+1), "trainer.val_rows=3")...)
	for _, want := range []string{
		fmt.Sprintf("warning: data.train_batch_size %d is more than the %d rows: every step takes each row several times: lower it\n", rows+1, rows),
		fmt.Sprintf("warning: %d rows at data.train_batch_size %d are 1 step, and the student learns in 1: ", rows, rows+1),
		"validation: the first 3 of ",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	_, said = must(t, "plan", "--stage", "warmup", "--model", f.path("student"), "--data",
		f.path("test.jsonl"), "data.max_prompt_length=64", "data.max_response_length=14",
		fmt.Sprintf("data.train_batch_size=%d", rows), "rollout.n=2", "critic.optim.lr=0") // a plan says it, too
	for _, want := range []string{
		fmt.Sprintf("gad: warning: %d rows at data.train_batch_size %d are 1 step, and the student learns in 1: ", rows, rows),
		"gad: warning: rollout.n is 2: with fewer than 4 answers ",
		"gad: warning: critic.optim.lr is 0: the discriminator will not change\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("plan does not say once %q:\n%s", want, said)
		}
	}
	_, said = must(t, "train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"),
		"--output", filepath.Join(t.TempDir(), "b"), "--steps", "1", "actor.optim.lr=3e-3",
		"trainer.critic_warmup=1", "trainer.critic_warmup_until=10", "trainer.critic_warmup_max=2")
	for _, want := range []string{"warning: actor.optim.lr is 0.003: ", "at most 2 steps: up to 2 for the discriminator alone (trainer.critic_warmup_max), then 0"} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
}

// A checker that cannot be run is found out before the first step.
func TestCheckerIsTried(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	args := func(checker string) []string {
		return append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"),
			"--val-data", f.path("test.jsonl"), "--output", run, "--steps", "2", "--checker",
			checker), "trainer.save_freq=0")
	}
	code, _, said := gad(args("./chek.py")...)
	if code != exitUsage || !strings.Contains(said, "tried on the teacher's answer to row 0") ||
		strings.Contains(said, "step 1") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	if _, err := os.Stat(run); err == nil {
		t.Error("the run's folder was made")
	}
}

// A setting that was empty when a run began is not printed as nothing.
func TestChangeOfAnEmptySetting(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "game")
	args := stage("train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"),
		"--output", run, "--steps", "1")
	if code, _, said := gad(args...); code != exitDone {
		t.Fatalf("exit status %d: %s", code, said)
	}
	code, out, said := gad(append(args, "model.reward_path="+f.path("student"))...)
	if want := "model.reward_path was not set when the run in " + run +
		" began, now it is "; code != exitUsage || out != "" || !strings.Contains(said, want) {
		t.Errorf("exit status %d: %s, want %q", code, said, want)
	}
}

// What gad train alone lacks is said whole.
func TestTrainAlone(t *testing.T) {
	code, _, said := gad("train")
	if want := "gad: settings: trainer.resume_from: no warm-up to start from: give --resume RUN (made by gad warmup)\n"; code != exitUsage || strings.Count(said, "\n") != 3 || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d: %s", code, said)
	}
}

// The documents' word for gad train is taken for it.
func TestStageGame(t *testing.T) {
	game, _ := must(t, "config", "--stage", "game")
	train, _ := must(t, "config", "--stage", "train")
	if game != train || !strings.Contains(game, "# The settings of gad train") {
		t.Errorf("--stage game prints\n%.200s", game)
	}
}

// A game whose student never learns says so, as a warm-up does; what a launcher has started
// several times and is not for that is told.
func TestToldAtTheStart(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	alone := append(stage("warmup", "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--output", filepath.Join(t.TempDir(), "alone"), "--steps", "2"), "--critic-warmup", "2",
		"--dry-run")
	// whoever gives both wants it
	if _, said := must(t, alone...); strings.Contains(said, "will not be trained") {
		t.Errorf("a warm-up of the discriminator alone is warned of:\n%s", said)
	}
	_, said := must(t, append(
		stage("train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output",
			run, "--steps", "1"), "--critic-warmup", "5", "trainer.warmup_objective=policy")...)
	for _, want := range []string{
		"warning: trainer.critic_warmup 5 is not below the number of steps of the run, 1: the student will not be trained\n",
		"warning: trainer.warmup_objective=policy has no effect: gad train does not read it\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	for name, value := range map[string]string{"OMPI_COMM_WORLD_RANK": "0",
		"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"} {
		t.Setenv(name, value)
	}
	if _, said := must(t, "config"); said != "gad: warning: mpirun has started 2 processes, and gad config is not for several: each does all of it\n" {
		t.Errorf("says %q", said)
	}
	t.Setenv("OMPI_COMM_WORLD_RANK", "1")
	if _, said := must(t, "config"); said != "" {
		t.Errorf("rank 1 says %q", said)
	}
}
