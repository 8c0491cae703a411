package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mistake is a command and what it is answered.
type mistake struct {
	line string // appended to gad; sft: stands for a whole sft command, SET for settings that fit the model
	code int
	want string // the whole error, of one line
}

// mistaken runs the commands. Each must give its exit status and its error, print
// nothing else, and leave the folders as they are.
func mistaken(t *testing.T, folders []string, mistakes []mistake) {
	t.Helper()
	const (
		whole    = "sft --model student --data rows.jsonl --output run"
		settings = "data.max_prompt_length=64 data.max_response_length=14"
	)
	for _, c := range mistakes {
		t.Run(c.line, func(t *testing.T) {
			line := strings.ReplaceAll(c.line, "SET", settings)
			if rest, ok := strings.CutPrefix(line, "sft:"); ok {
				line = whole + rest
			}
			before := make([]map[string]string, len(folders))
			for i, dir := range folders {
				before[i] = tree(t, dir)
			}
			code, out, said := gad(strings.Fields(line)...)
			if code != c.code || said != "gad: "+c.want+"\n" || strings.Count(said, "\n") != 1 {
				t.Errorf("exit status %d, want %d\n got %swant gad: %s", code, c.code, said, c.want)
			}
			if out != "" {
				t.Errorf("prints %q", out)
			}
			for i, dir := range folders {
				now := tree(t, dir)
				for name := range now {
					if _, ok := before[i][name]; !ok {
						t.Errorf("%s was made", filepath.Join(dir, name))
					} else if now[name] != before[i][name] {
						t.Errorf("%s was changed", filepath.Join(dir, name))
					}
				}
			}
		})
	}
}

// A newcomer's mistakes: one line that says what and how out of it, exit status
// 2 (usage, configuration) or 3 (data, model), and nothing written.
func TestMistakes(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	write := func(name, content string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"student", "warmup", "sft", "dpo"} {
		if err := os.Symlink(f.path(dir), dir); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	write("rows.jsonl", string(raw))
	first, _, _ := strings.Cut(string(raw), "\n")
	write("empty.jsonl", first+"\n"+`{"content":"Add 1+1+1","teacher_response":""}`+"\n")
	write("long.jsonl", first+"\n"+`{"content":"`+strings.Repeat("Add 1+1+1 ", 40)+`","teacher_response":"x"}`+"\n")
	write("foreign/thesis.tex", "ten years")
	write("typo.yaml", "actor:\n  optim:\n    lrr: 3\n")
	write("notok/config.json", tinyConfig)
	write("plain/readme.txt", "no model")

	mistaken(t, []string{work, f.path("sft")}, []mistake{
		{"frobnicate", 2, `unknown command "frobnicate": see gad --help`},
		{"sft --frob", 2, `sft: unknown flag --frob: see gad sft --help; gad help settings lists the settings`},
		{"data split --frob", 2, `data split: unknown flag --frob: see gad data split --help`},
		{"data", 2, `data: a subcommand is missing: use inspect, validate, convert, split or collect (see gad data --help)`},
		{"data inspect", 2, `data inspect: --data is missing: see gad data inspect --help`},
		{"data inspect --data rows.jsonl more.jsonl", 2, `data inspect: unexpected argument "more.jsonl": this command takes flags only`},
		{"data inspect --data nowhere.arrow", 3, `data: nowhere.arrow: does not exist: give a data file or a folder`},
		{"data convert --data rows.jsonl --output empty.jsonl", 2, `data: empty.jsonl: output exists: nothing is overwritten: remove it or name another file`},
		{"data split --data rows.jsonl --first a.jsonl --second b.jsonl --fraction 2", 2, `data split: --fraction 2: must be above 0 and below 1`},
		{"sft: actor.optim.lrr=1", 2, `settings: override "actor.optim.lrr=1": setting "actor.optim.lrr": unknown: did you mean "actor.optim.lr"?`},
		{"sft: actor.optim.lr=fast", 2, `settings: override "actor.optim.lr=fast": setting "actor.optim.lr": "fast": expected a number, such as 0.2 or 1e-6`},
		{"sft --config typo.yaml", 2, `settings: typo.yaml:3:5: setting "actor.optim.lrr": unknown: did you mean "actor.optim.lr"?`},
		{"sft --config none.yaml", 2, `settings: none.yaml: no such file or directory`},
		{"sft --model student --data rows.jsonl", 2, `settings: trainer.default_local_dir: no run folder: give --output DIR`},
		{"sft --model student --output run", 2, `settings: data.train_files: no training data: give --data FILE`},
		{"sft --data rows.jsonl --output run", 2, `settings: model.path: no student: give --model DIR`},
		{"generate --precision f16 --model student --prompt x", 2, `device: precision "f16": use auto, bf16 or f32`},
		{"plan --stage sft --memory -1", 2, `plan: --memory -1: must be a number of GB above 0; leave it out for what this machine has`},
		{"generate --device tpu --model student --prompt x", 2, `device: "tpu": use cpu or cuda`},
		{"sft --steps many --model student --data rows.jsonl --output run", 2, `settings: flag --steps: setting "trainer.total_steps": "many": expected an integer in decimal digits`},
		{"sft --model student --data nowhere.arrow --output run SET", 3, `data: nowhere.arrow: does not exist: give a data file or a folder`},
		{"sft --model plain --data rows.jsonl --output run SET", 3, `tokenizer: plain/tokenizer.json: no such file or directory: give a Hugging Face model folder with tokenizer.json, or train a tokenizer (gad init)`},
		{"sft --model notok --data rows.jsonl --output run SET", 3, `tokenizer: notok/tokenizer.json: no such file or directory: give a Hugging Face model folder with tokenizer.json, or train a tokenizer (gad init)`},
		{"sft: SET data.teacher_key=answer", 3, `data: rows.jsonl: column "answer" is missing: name the teacher's column with data.teacher_key`},
		{"sft --model student --data empty.jsonl --output run SET", 3, `data: empty.jsonl: row 1: no teacher answer in column "teacher_response" (missing, empty or blank): write one or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data long.jsonl --output run SET", 3, `data: long.jsonl: row 1: prompt has 417 tokens, data.max_prompt_length is 64: raise it, or set data.overlong_prompts=filter (gad data validate lists all such rows)`},
		{"sft:", 2, `model: student: data.max_prompt_length + data.max_response_length = 3584, but max_position_embeddings is 128: lower them`},
		{"sft --model student --data rows.jsonl --output foreign SET", 2, `trainer: foreign: contains "thesis.tex" but no run: nothing is overwritten: give another --output`},
		{"sft --model student --data rows.jsonl --output rows.jsonl SET", 2, `trainer: rows.jsonl: cannot be used as run folder: stat rows.jsonl/config.yaml: not a directory: give another --output`},
		{"sft --model student --data rows.jsonl --output warmup SET", 2, `trainer: warmup: contains a run of stage warmup, not sft: give another --output`},
		{"sft --output warmup", 2, `trainer: warmup: contains a run of stage warmup, not sft: give another --output`},
		{"sft --output sft --seed 5", 2, `trainer.seed was 1 when the run in sft began, now it is 5: it cannot change within a run: give another --output`},
		{"sft --output sft --data rows.jsonl", 3, `data: rows.jsonl: has changed since the run began (digest 1b01fe00a91b, was 515826c17ab3): give the same data, or another --output`},
		{"train --data rows.jsonl --output run", 2, `train starts from a warm-up checkpoint: give --resume RUN (made by gad warmup)`},
		{"train --resume sft --data rows.jsonl --output run", 2, `trainer: sft: is an sft run and has no discriminator: run gad warmup --model sft/global_step_60/actor first`},
		{"train --resume dpo --data rows.jsonl --output run", 2, `trainer: dpo: is a dpo run and has no discriminator: run gad warmup --model dpo/global_step_2/actor first`},
		{"train --resume dpo", 2, `trainer: dpo: contains a run of stage dpo, not train: give another --output`},
		{"dpo --resume sft --data rows.jsonl --output run", 2, "dpo: unknown flag --resume: repeat the command that began the run, or use gad resume RUN; to start from another run's student give --model RUN/global_step_N/actor"},
		{"dpo --model student --data rows.jsonl --output run SET dpo.beta=0", 2, `settings: dpo.beta is 0: must be above 0`},
		{"dpo --model student --data rows.jsonl --output run SET dpo.loss_type=simpo", 2, `settings: override "dpo.loss_type=simpo": setting "dpo.loss_type": "simpo": expected one of: sigmoid, hinge, ipo, exo_pair, nca_pair, robust, bco_pair, sppo_hard, aot, aot_unpaired, apo_zero, apo_down, discopop, sigmoid_norm, sft`},
		{"export --run dpo --output run --part critic", 2, `export: dpo/global_step_2: a dpo run has no discriminator: export the actor`},
		{"train --resume warmup", 2, `trainer: warmup: contains a run of stage warmup, not train: give another --output`},
		{"train --resume nowhere --data rows.jsonl --output run", 3, `checkpoint: nowhere: no checkpoint, as there is no such folder: give a run folder or one of its global_step_N folders`},
		{"generate --model student", 2, `generate: --prompt is missing: see gad generate --help`},
		{"generate --model student --prompt x -n 0", 2, `generate: -n 0: must be 1 to 65535`},
		{"generate --model student --prompt x --temperature -1", 2, `generate: --temperature -1: must be from 0 to 1e+06`},
		{"generate --model student --prompt x --top-p 2", 2, `generate: --top-p 2: must be from 0 to 1`},
		{"generate --model nowhere --prompt x", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		{"generate --model sft --prompt x", 3, `model: sft: is a run: give sft/global_step_60/actor`},
		{"generate --model sft/global_step_60 --prompt x", 3, `model: sft/global_step_60: is a checkpoint: give sft/global_step_60/actor`},
		{"logprobs --model student --data rows.jsonl --temperature 0", 2, `logprobs: --temperature 0: must be above 0`},
		{"score --critic student --data rows.jsonl", 3, `model: student: is a language model, not a discriminator: give the critic folder of a checkpoint`},
		{"eval --model student --data rows.jsonl --disc-steps -1", 2, `eval: --disc-steps -1, --disc-batch 4, --disc-seeds 3, --disc-lr 0: must be at least 0, 1, 1 and 0`},
		{"export --run warmup --output run --dtype int8", 2, `export: dtype "int8": must be base, float32, bfloat16 or float16`},
		{"export --run warmup --output foreign", 2, `checkpoint: foreign: already exists: choose another folder, or remove this one`},
		{"export --run warmup --output run --part both", 2, `export: --part "both": must be actor or critic`},
		{"export --run sft --output run --part critic", 2, `export: sft/global_step_60: an sft run has no discriminator: export the actor`},
		{"export --run nowhere --output run", 3, `checkpoint: nowhere: no checkpoint, as there is no such folder: give a run folder or one of its global_step_N folders`},
		{"init --config notok --corpus rows.jsonl --output foreign", 2, `checkpoint: foreign: already exists: choose another folder, or remove this one`},
		{"init --config notok --corpus none.txt --output run", 3, `tokenizer: open none.txt: no such file or directory`},
		{"init --corpus rows.jsonl --output run", 2, `init: --config is missing: see gad init --help`},
		{"plan --stage x", 2, `plan: --stage "x": must be sft, warmup, train, dpo, eval`},
		{"plan --stage sft", 2, `plan: no student: give model.path (flag --model)`},
		{"demo --dir foreign --fast", 2, `demo: foreign: contains files that are not from a demo: nothing is overwritten: give another --dir`},
	})
}

// All that is wrong is said at once, a line each.
func TestAllProblemsAtOnce(t *testing.T) {
	code, _, said := gad("sft", "--data", "rows.jsonl")
	if code != exitUsage || strings.Count(said, "\n") != 2 || !strings.Contains(said, "--output DIR") || !strings.Contains(said, "--model DIR") {
		t.Errorf("exit status %d\n%s", code, said)
	}
}
