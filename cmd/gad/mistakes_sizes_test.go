package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sizes that no machine has are refused before anything of that size is allocated, by
// plan too; settings that would be ignored are refused or told.
func TestMistakesOfSizes(t *testing.T) {
	f, work := linked(t, "student", "warmup", "sft", "train", "test.jsonl=rows.jsonl")
	for _, dir := range []string{"notok", "lfs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, "a.jsonl", `{"content":"a"}`)
	put(t, "latin1.txt", "Gr\xfc\xdfe")
	put(t, "tail.txt", "Gr\xc3\xbc\xc3")
	put(t, "notok/config.json", tinyConfig)
	put(t, "indent.yaml", "actor:\n  optim:\n    lr: 1e-5\n   grad_clip: 1\n")
	put(t, "comma.yaml", "actor:\n  optim:\n    lr: \"1,5e-3\"\n")
	put(t, "quoted.yaml", "actor:\n  optim:\n    lr: \"1e-3\"\n")
	put(t, "verl.yaml", "actor_rollout_ref:\n  actor: {}\n")
	put(t, "lfs/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123")
	for name, text := range tree(t, f.path("student")) {
		if strings.HasSuffix(name, ".json") {
			put(t, filepath.Join("lfs", name), text)
		}
	}
	const (
		width   = `, above the hidden size of student, which is 32: adapters would have more parameters than the weights: lower it`
		largest = `: above the maximum `
		half    = `: set all (doc/ranks.md), unset it, or give --ranks 1`
	)
	rows := []mistake{
		{"sft: SET data.train_batch_size=99999999999", 2, `settings: override "data.train_batch_size=99999999999": setting "data.train_batch_size": "99999999999"` + largest + `1048576`},
		{"sft: SET trainer.threads=1000000", 2, `settings: override "trainer.threads=1000000": setting "trainer.threads": "1000000"` + largest + `4096`},
		{"warmup --model student --data rows.jsonl --output run SET rollout.n=9999999999", 2, `settings: override "rollout.n=9999999999": setting "rollout.n": "9999999999"` + largest + `65535`},
		{"warmup --model student --data rows.jsonl --output run SET rollout.top_p=0", 2, `settings: rollout.top_p is 0: no token would be left: set it above 0; 1 is all`},
		{"plan --stage warmup --model student SET rollout.top_p=0", 2, `settings: rollout.top_p is 0: no token would be left: set it above 0; 1 is all`},
		{"generate --model student --prompt x --top-p 0", 2, `generate: --top-p 0: must be above 0; 1 keeps all`},
		{"chat --model student --top-p 0", 2, `chat: --top-p 0: must be above 0; 1 keeps all`},
		{"sft: SET actor.lora.rank=1000", 2, `actor.lora.rank is 1000` + width},
		{"plan --stage sft --model student SET actor.lora.rank=1000", 2, `actor.lora.rank is 1000` + width},
		{"plan --stage warmup --model student SET critic.lora.rank=1000", 2, `critic.lora.rank is 1000` + width},
		{"plan --stage sft --model student SET --memory 0", 2, `plan: --memory 0: must be a number of GB above 0; leave it out for what this machine has`},
		{"plan --model student/config.json", 3, `model: student/config.json: is a file: give the folder that contains it`},
		{"plan --stage warmup --model student SET algorithm.filter_groups.min_spread=-1", 2, `settings: override "algorithm.filter_groups.min_spread=-1": setting "algorithm.filter_groups.min_spread": "-1": below the minimum 0`},
		// what another program calls a setting, a flag of a neighbour
		{"train algorithm.lam=0.95", 2, `settings: override "algorithm.lam=0.95": setting "algorithm.lam": unknown: lambda of GAE, which needs a value function, and the critic here is a discriminator: leave it out`},
		{"train actor_rollout_ref.rollout.n=8", 2, `settings: override "actor_rollout_ref.rollout.n=8": setting "actor_rollout_ref.rollout.n": unknown: write rollout.n`},
		{"train critic.model.path=student", 2, `settings: override "critic.model.path=student": setting "critic.model.path": unknown: write model.reward_path (flag --reward-model)`},
		{"train --config verl.yaml", 2, `settings: verl.yaml:1:1: setting "actor_rollout_ref": unknown: verl's group: its settings are actor.*, rollout.* and model.* here`},
		{"score --model student", 2, `score: unknown flag --model: give --critic`},
		{"demo --output x", 2, `demo: unknown flag --output: give --dir`},
		{"task make --output x", 2, `task make: --output before its subcommand: give one first: gad task make --help lists them`},
		{"data split --data rows.jsonl --output x", 2, `data split: unknown flag --output: give --first and --second, one file each`},
		{"chat --max-tokens 5", 2, `chat: unknown flag --max-tokens: give --max-new-tokens`},
		{"generate --max-tokens 5", 2, `generate: unknown flag --max-tokens: give --max-new-tokens`},
		{"serve --max-new-tokens 5", 2, `serve: unknown flag --max-new-tokens: give --max-tokens`},
		{"eval --max-new-tokens 5", 2, `eval: unknown flag --max-new-tokens: give --max-response-length`},
		{"sft: SET trainer.keep_best=true", 2, `settings: override "trainer.keep_best=true": setting "trainer.keep_best": "true": expected one of: val/rouge_l, val/teacher_nll, val/check, val/held_out_d, or nothing`},
		// files of settings
		{"sft --config indent.yaml", 2, `settings: indent.yaml:1: not YAML: did not find expected key: check the indentation: the settings of a group begin in the same column`},
		{"sft --config comma.yaml", 2, `settings: comma.yaml:3:9: setting "actor.optim.lr": "1,5e-3": expected a number, such as 0.2 or 1e-6`},
		{"sft --config quoted.yaml", 2, `settings: quoted.yaml:3:9: setting "actor.optim.lr": "1e-3": expected a number: write it without quotes`},
		// runs and folders
		{"train --resume a.jsonl --data rows.jsonl --output run SET", 3, `checkpoint: a.jsonl: is a file: give a run folder or one of its global_step_N folders`},
		{"train --resume warmup --data rows.jsonl --output sft", 2, `trainer: sft: contains a run of stage sft, not train: give another --output`},
		{"sft --model student --data rows.jsonl --output warmup SET", 2, `trainer: warmup: contains a run of stage warmup, not sft: give another --output`},
		{"resume train warmup", 2, `resume: unexpected argument "warmup": gad resume takes one run; what follows are settings, KEY=VALUE`},
		{"sft: SET warmup", 2, `sft: unexpected argument "warmup", which is a folder: settings are KEY=VALUE, and a folder goes with a flag, such as --data, --model, --resume or --output`},
		{"generate --model lfs --prompt x", 3, `model: safetensors: lfs/model.safetensors: is a Git LFS pointer, not the weights: fetch them with git lfs pull`},
		{"export --run sft --output student.gguf", 2, `export: --output student.gguf: a GGUF file needs its type: add --gguf q8_0, f16 or bf16; or name a folder`},
		{"init --config notok --corpus latin1.txt --output new", 3, `tokenizer: train: reading the corpus: latin1.txt: byte 2 is not UTF-8: convert it first, such as with: iconv -f latin1 -t utf-8`},
		{"init --config notok --corpus tail.txt --output new", 3, `tokenizer: train: reading the corpus: tail.txt: byte 4 is not UTF-8: convert it first, such as with: iconv -f latin1 -t utf-8`},
		{"serve --model student --max-tokens 5000 --listen 127.0.0.1:0", 2, `serve: --max-tokens 5000: the model takes 128 tokens with the prompt: lower it`},
	}
	mistaken(t, []string{work, f.path("sft"), f.path("warmup"), f.path("train")}, rows)

	// Half of what a rank needs: each process would train alone.
	for _, c := range []struct{ rank, size, want string }{
		{"0", "2", `ranks: RANK=0 WORLD_SIZE=2 is set, without an address of rank 0 (MASTER_ADDR and MASTER_PORT, or GAD_RANKS_ADDR)` + half},
		{"x", "", `ranks: RANK=x is set, without WORLD_SIZE and an address of rank 0 (MASTER_ADDR and MASTER_PORT, or GAD_RANKS_ADDR)` + half},
		{"", "2", `ranks: WORLD_SIZE=2 is set, without RANK and an address of rank 0 (MASTER_ADDR and MASTER_PORT, or GAD_RANKS_ADDR)` + half},
	} {
		for name, value := range map[string]string{"RANK": c.rank, "WORLD_SIZE": c.size} {
			t.Setenv(name, value) // to be as it was afterwards
			if value == "" {
				os.Unsetenv(name)
			}
		}
		mistaken(t, []string{work}, []mistake{{"sft: SET", 2, c.want}})
	}
}

// A step whose sequences alone take more than the memory is refused after the data, before
// the models; by plan as well. How much memory there is depends on the machine.
func TestMistakenBatch(t *testing.T) {
	_, work := linked(t, "student", "test.jsonl=rows.jsonl")
	before := tree(t, work)
	for line, want := range map[string]string{
		"plan --stage warmup --model student data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576 rollout.n=60000": `data\.train_batch_size 1048576 x 60001 answers \(rollout\.n 60000, and the teacher's\) of up to 78 tokens each take 78\.5 TB in a step, and .* are available: lower them`,
		"sft --model student --data rows.jsonl --output run data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576":  `data\.train_batch_size 1048576 is more than 100 times the \d+ rows: lower it`,
		"plan --stage sft --model student --data rows.jsonl data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=1048576":  `data\.train_batch_size 1048576 is more than 100 times the \d+ rows: lower it`,
	} {
		code, out, said := gad(strings.Fields(line)...)
		if !regexp.MustCompile(`^gad: `+want+`\n$`).MatchString(said) || code != exitUsage || out != "" {
			t.Errorf("%s: exit status %d, prints %q, says %s", line, code, out, said)
		}
	}
	if now := tree(t, work); len(now) != len(before) {
		t.Errorf("made something: %v", now)
	}
}

// gad sft --help SETTING shows what sft begins with, not another stage.
func TestHelpOfASettingInItsStage(t *testing.T) {
	for line, want := range map[string]string{
		"sft --help actor.optim.lr":            "actor.optim.lr=5e-06\n",
		"train --help actor.optim.lr":          "actor.optim.lr=1e-06\n",
		"help settings actor.optim.lr":         "actor.optim.lr=1e-06\n",
		"help --stage sft settings actor.grad": "actor.grad_clip=1\n",
		"train --help trainer.total_epochs":    "trainer.total_epochs=2\n",
	} {
		if out, _ := must(t, strings.Fields(line)...); !strings.HasPrefix(out, want) {
			t.Errorf("%s: prints %.60s, want %s", line, out, want)
		}
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
	_, said := must(t, append(stage("train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", run, "--steps", "1"), "--critic-warmup", "5", "trainer.warmup_objective=policy")...)
	for _, want := range []string{
		"warning: trainer.critic_warmup 5 is not below the number of steps of the run, 1: the student will not be trained\n",
		"warning: trainer.warmup_objective=policy has no effect: gad train does not read it\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	for name, value := range map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"} {
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
