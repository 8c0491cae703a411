package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exchange is a command line and what it is answered.
type exchange struct {
	line string // SMALL stands for the settings of the test's runs
	code int
	// printed or said, with one blank for several; behind "=" once, behind "!" not at all
	says []string
}

// blanks are several where one says as much.
var blanks = regexp.MustCompile(" +")

// answered runs command lines in turn.
func answered(t *testing.T, rows []exchange) {
	t.Helper()
	for _, c := range rows {
		code, out, said := gad(words(c.line)...)
		if code != c.code {
			t.Errorf("gad %s: exit status %d, want %d\n%.3000s%s", c.line, code, c.code, out, said)
		}
		all := blanks.ReplaceAllString(out+said, " ")
		for _, text := range c.says {
			text = blanks.ReplaceAllString(text, " ")
			want := strings.TrimLeft(text, "=!")
			if n := strings.Count(all, want); n == 0 != (text[0] == '!') || text[0] == '=' && n > 1 {
				t.Errorf("gad %s: says %d times %q\n%.3000s%s", c.line, n, want, out, said)
			}
		}
	}
}

// What is odd about settings is said before a run begins, or a plan: what the stage does not read,
// what is given twice, a batch larger than the data, few steps to learn in, a learning rate that is
// the warm-up's; and what differs when a run is resumed, or takes over another's settings.
func TestSettingsAreTold(t *testing.T) {
	f, _ := linked(t, "student", "warmup", "train.arrow", "test.jsonl")
	n := lines(f.path("test.jsonl"))
	const sft, game = "sft --model student --data train.arrow ",
		"train --resume warmup --data train.arrow "
	put(t, "run.yaml", "data: {max_response_length: 12}\n")
	answered(t, []exchange{
		{sft + "--output a --steps 2 SMALL trainer.test_freq=1 actor.optim.lr=1e-3", exitDone, []string{
			"=warning: rollout.n=4 has no effect: gad sft does not read it\n",
			"=warning: critic.optim.lr=1e-3 has no effect: gad sft does not read it\n",
			"=warning: trainer.test_freq=1 has no effect: there are no validation data: give --val-data FILE\n",
			"!actor.optim.lr=1e-3 has no effect", "!actor.max_token_len=512 has"}},
		{"resume a --steps 3 actor.optim.lr=2e-3", exitDone, []string{
			"=resumed with another setting: actor.optim.lr was 0.001, now 0.002\n",
			"=resumed with another setting: trainer.total_steps was 2, now 3\n", "step 3/3"}},
		{"resume a", exitDone, []string{"already finished", "!another setting"}},
		{fmt.Sprintf(
			"sft --model student --data test.jsonl --val-data train.arrow --output b SMALL "+
				"data.train_batch_size=%d trainer.val_rows=3", n+1), exitDone, []string{
			fmt.Sprintf(
				"=warning: data.train_batch_size %d is more than the %d rows: every step takes each row "+
					"several times: lower it\n", n+1, n),
			fmt.Sprintf(
				"=warning: %d rows at data.train_batch_size %d are 1 step, and the student learns in 1: ", n,
				n+1),
			"=validation: the first 3 of "}},
		{fmt.Sprintf(
			"plan --stage warmup --model student --data test.jsonl data.max_prompt_length=64 "+
				"data.max_response_length=14 data.train_batch_size=%d rollout.n=2 critic.optim.lr=0", n),
			exitDone, []string{
				fmt.Sprintf(
					"=gad: warning: %d rows at data.train_batch_size %d are 1 step, and the student learns in 1: ",
					n, n),
				"=gad: warning: rollout.n is 2: with fewer than 4 answers ",
				"=gad: warning: critic.optim.lr is 0: the discriminator will not change\n"}},
		{game + "--output c --steps 1 actor.optim.lr=3e-3 trainer.critic_warmup=1 trainer.critic_warmup_until=10 trainer.critic_warmup_max=2", exitDone, []string{
			"=warning: actor.optim.lr is 0.003: ",
			"=at most 2 steps: up to 2 for the discriminator alone (trainer.critic_warmup_max), then 0"}},
		// A game whose student never learns says so, and a warm-up; whoever gives both wants it.
		{"warmup --model student --data train.arrow --output d --steps 2 SMALL --critic-warmup 2 --dry-run", exitDone, []string{"!will not be trained"}},
		{game + "--output d --steps 1 SMALL --critic-warmup 5 trainer.warmup_objective=policy", exitDone,
			[]string{
				"=warning: trainer.critic_warmup 5 is not below the number of steps of the run, 1: the " +
					"student will not be trained\n",
				"=warning: trainer.warmup_objective=policy has no effect: gad train does not read it\n"}},
		// A setting that was empty when a run began is not printed as nothing.
		{game + "--output d --steps 1 SMALL --critic-warmup 5 trainer.warmup_objective=policy model.reward_path=student", exitUsage, []string{
			"=model.reward_path was not set when the run in d began, now it is "}},
		{"generate --model student --prompt Add -n 3 --max-new-tokens 1", exitDone,
			[]string{"gad: note: 3 of 3 answers cut at 1 token\n"}},
		{"train", exitUsage,
			[]string{"=settings: trainer.resume_from: no warm-up to start from: give --resume RUN (made " +
				"by gad warmup)\n"}},
		// A file overrides what is inherited, and says so.
		{game + "--config run.yaml --output e --dry-run", exitDone, []string{
			"=run.yaml overrides the settings of warmup: data.max_response_length was 14, now 12\n"}},
		// A preset overrides no value that the warm-up had of its own; what is given again does.
		{game + "--preset small --output e --dry-run", exitDone, []string{
			"=preset small gives way to warmup: data.max_response_length was 256, now 14\n",
			"max_response_length: 14\n", "lr: 0.0003\n"}},
		{game + "--preset small --output e --dry-run data.max_response_length=20", exitDone,
			[]string{"max_response_length: 20\n"}},
		// A preset stands before the file and the overrides; an unknown one is refused.
		{game + "--preset grgc --output e --dry-run", exitDone,
			[]string{"adv_power: 1.5\n", "group_ot: 0.01\n"}},
		{game + "--preset grgc critic.group_ot=0.05 --output e --dry-run", exitDone,
			[]string{"adv_power: 1.5\n", "group_ot: 0.05\n"}},
		{game + "--preset gad --output e --dry-run", exitDone,
			[]string{"adv_power: 1\n", "group_ot: 0\n"}},
		{game + "--preset gan --output e --dry-run", exitUsage, []string{
			`train: --preset: "gan": use delethink, flow-grpo, gad, gigpo, grgc, lora, paper or small`}},
		// A stage takes over what the run that it starts from was told, but no schedule of a learning
		// rate: one that has risen or fallen begins anew only where that is asked for.
		{"warmup --model student --data train.arrow --output warm --steps 4 SMALL --critic-warmup 1 critic.optim.lr=3e-4 critic.optim.lr_warmup_steps=3 critic.optim.lr_scheduler=linear critic.optim.min_lr_ratio=0.25 actor.optim.lr_scheduler=cosine actor.optim.lr_warmup_steps=2 trainer.critic_warmup_until=0.1 trainer.critic_warmup_max=1", exitDone, nil},
		{"train --resume warm --data train.arrow --output e --dry-run", exitDone, []string{
			"lr: 0.0003\n", "critic_warmup_until: 0\n", "critic_warmup_max: 200\n",
			"!lr_warmup_steps: 3", "!lr_warmup_steps: 2", "!lr_scheduler: linear",
			"!lr_scheduler: cosine", "!min_lr_ratio: 0.25"}},
		{"train --resume warm --data train.arrow --output e --dry-run critic.optim.lr_warmup_steps=3",
			exitDone, []string{"lr_warmup_steps: 3\n"}},
	})
	if _, err := os.Stat("e"); err == nil {
		t.Error("--dry-run writes")
	}
	// What a launcher has started several times and is not for that is told.
	t.Setenv("OMPI_COMM_WORLD_SIZE", "2")
	t.Setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
	for rank, want := range []string{"gad: warning: mpirun has started 2 processes, and gad " +
		"config is not for several: each does all of it\n", ""} {
		t.Setenv("OMPI_COMM_WORLD_RANK", fmt.Sprint(rank))
		if _, said := does(t, "config"); said != want {
			t.Errorf("rank %d says %q", rank, said)
		}
	}
}

// Flags and settings may stand in any order, and the template of settings loads. Help is of the
// command, of its stage and of a setting, whatever stands before it.
func TestOrderTemplateAndHelp(t *testing.T) {
	linked(t, "student", "train.arrow")
	var resolved [2]string
	for i, line := range []string{"sft data.train_batch_size=4 --dry-run --model student LENGTHS " +
		"--data=train.arrow --output run", "sft --model student --data train.arrow --output run " +
		"--dry-run data.train_batch_size=4 LENGTHS"} {
		out, _ := does(t, strings.Replace(line, "LENGTHS",
			"data.max_prompt_length=64 data.max_response_length=14", 1))
		resolved[i], _, _ = strings.Cut(out, "\nmemory")
	}
	if resolved[0] != resolved[1] || !strings.Contains(resolved[0], "train_batch_size: 4") {
		t.Errorf("flags behind settings resolve to\n%s\nbefore them\n%s", resolved[0], resolved[1])
	}
	template, _ := does(t, "config --stage sft actor.optim.lr=3e-5")
	put(t, "run.yaml", template)
	game, _ := does(t, "config --stage game") // the documents' word for it
	train, _ := does(t, "config --stage train")
	if game != train || !strings.Contains(game, "# The settings of gad train") {
		t.Errorf("--stage game prints\n%.200s", game)
	}
	answered(t, []exchange{
		{"config --stage sft actor.optim.lr=3e-5", exitDone, []string{"\n    lr: 3e-05\n"}},
		{"sft --config run.yaml --model student --data train.arrow --output run --dry-run data.max_prompt_length=64 data.max_response_length=14", exitDone, []string{"lr: 3e-05"}},
	})
	if !strings.Contains(template, "\n    # peak learning rate") {
		t.Errorf("the template has no comment:\n%.2000s", template)
	}
	for line, want := range map[string]string{ // what it begins with
		"help settings critic.replay": "critic.replay.size=0\n    ",
		"train --help critic.replay":  "critic.replay.size=0\n    ",
		"train critic.replay --help":  "critic.replay.size=0\n    ",
		// what the stage begins with, not another
		"sft --help actor.optim.lr":            "actor.optim.lr=5e-06\n",
		"train --help actor.optim.lr":          "actor.optim.lr=1e-06\n",
		"help settings actor.optim.lr":         "actor.optim.lr=1e-06\n",
		"help --stage sft settings actor.grad": "actor.grad_clip=1\n",
		"train --help trainer.total_epochs":    "trainer.total_epochs=2\n",
	} {
		if out, _ := must(t, strings.Fields(line)...); !strings.HasPrefix(out, want) ||
			strings.HasPrefix(want, "critic") && strings.Contains(out, "actor.") {
			t.Errorf("%s: prints %.60s, want %s", line, out, want)
		}
	}
	answered(t, []exchange{
		{"help sft", exitDone, []string{"actor.optim.lr=5e-06", "gad sft - "}},
		{"sft --help", exitDone, []string{"actor.optim.lr=5e-06", "gad sft - "}},
		{"sft -h --model x", exitDone, []string{"actor.optim.lr=5e-06", "gad sft - "}},
		{"sft --model model --help", exitDone, []string{"gad sft - "}},
		{"sft --data data -h", exitDone, []string{"gad sft - "}},
		{"config --stage train --help", exitDone, []string{"gad config - "}},
		{"plan --stage train --help", exitDone, []string{"gad plan - "}},
		{"--help", exitDone, []string{"gad - ", "\n   sft ", "\n   doctor ", "--version"}},
		{"-h", exitDone, []string{"gad - "}},
		{"help", exitDone, []string{"gad - "}},
	})
}

// A run whose newest checkpoint is damaged resumes from the one before, in a folder whose name
// looks like a setting. Its settings cannot be changed by an editor, which the doctor sees; nor can
// it go on without a checkpoint.
func TestResumeOfADamagedRun(t *testing.T) {
	linked(t, "student", "train.arrow")
	const run, line = "lr=1e-3",
		"sft --model student --data train.arrow --output lr=1e-3 --steps 2 SMALL actor.optim.lr=1e-3 " +
			"actor.optim.lr=2e-3 trainer.save_freq=1"
	answered(t, []exchange{{line, exitDone, []string{
		"=warning: actor.optim.lr is given twice: actor.optim.lr=2e-3 holds, actor.optim.lr=1e-3 does not\n"}}})
	put := func(name, text string) {
		t.Helper()
		put(t, filepath.Join(run, name), text)
	}
	put("global_step_2/trainer.json", "{")
	put("global_step_2/manifest.json", "{")
	answered(t, []exchange{{"resume " + run, exitDone, []string{"step 2/2"}}})
	was := fileText(filepath.Join(run, "config.yaml"))
	const rule = "data.train_batch_size was 4 when the run in "
	put("config.yaml", strings.Replace(was, "train_batch_size: 4\n", "train_batch_size: 8\n", 1))
	answered(t, []exchange{{"doctor " + run, exitFailed, []string{rule}},
		{"resume " + run + " --steps 3", exitUsage, []string{rule}}})
	put("config.yaml", was)
	answered(t, []exchange{{"doctor " + run, exitDone, []string{"\nno problems found\n"}}})
	for _, step := range []string{"global_step_1", "global_step_2"} {
		if err := os.RemoveAll(filepath.Join(run, step)); err != nil {
			t.Fatal(err)
		}
	}
	const again = "repeat the command that began the run"
	answered(t, []exchange{
		{"doctor " + run, exitFailed, []string{"it has saved, and no checkpoint is left"}},
		{"resume " + run, exitUsage, []string{again + "\n"}}, // of a name that looks like a setting
		{"sft --model student --data train.arrow --output began --steps 1 SMALL", exitDone, nil}})
	if err := os.RemoveAll("began/global_step_1"); err != nil {
		t.Fatal(err)
	}
	answered(t, []exchange{{"resume began", exitUsage, []string{again + ": gad sft --model "}}})
}
