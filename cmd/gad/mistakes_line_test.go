package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Mistakes on the command line itself, and folders that are not models.
func TestMistakesOnTheLine(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	for name, content := range map[string]string{
		"lora/adapter_config.json":             "{}",
		"hubbase/adapter_config.json":          `{"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],"base_model_name_or_path":"Qwen/Qwen2.5-0.5B"}`,
		"dora/adapter_config.json":             `{"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],"use_dora":true}`,
		"cache/snapshots/0123abcd/config.json": "{}", "cache/refs/main": "0123abcd",
		"m.gguf": "GGUF", "m.bin": "x", "dir/notes.txt": "x",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"student", "sft", "warmup", "train"} {
		if err := os.Symlink(f.path(dir), dir); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rows.jsonl", "more.jsonl"} {
		if err := os.WriteFile(name, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("rows.jsonl", "link.jsonl"), os.Link("rows.jsonl", "hard.jsonl")); err != nil {
		t.Fatal(err)
	}
	mistaken(t, []string{work, f.path("sft"), f.path("warmup")}, []mistake{
		// commands
		{"trian", 2, `unknown command "trian": did you mean gad train?`},
		{"evla --model student", 2, `unknown command "evla": did you mean gad eval?`},
		{"finetune", 2, `unknown command "finetune": did you mean gad sft?`},
		{"validate --data rows.jsonl", 2, `unknown command "validate": did you mean gad data validate?`},
		{"evaluate", 2, `unknown command "evaluate": did you mean gad eval?`},
		{"data inspct --data rows.jsonl", 2, `unknown command "data inspct": did you mean gad data inspect?`},
		{"data frob", 2, `data: unknown subcommand "frob": use inspect, validate, convert, split or collect (see gad data --help)`},
		{"help settings nothing.like.it", 2, `help settings: no setting has "nothing.like.it" in its name: gad help settings lists all`},
		{"help settings actor critic", 2, `help settings: unexpected argument "critic": give one prefix, such as actor.optim`},
		{"help frob", 2, `unknown command "frob": see gad --help`},
		// flags that are settings, or another trainer's
		{"sft --lr 1e-5", 2, `sft: unknown flag --lr: give the setting actor.optim.lr=1e-5`},
		{"warmup --lr 1e-5", 2, `warmup: unknown flag --lr: give the setting actor.optim.lr=1e-5 or critic.optim.lr=1e-5`},
		{"sft --learning-rate=1e-5", 2, `sft: unknown flag --learning-rate: give the setting actor.optim.lr=1e-5`},
		{"sft --batch-size 8", 2, `sft: unknown flag --batch-size: give the setting data.train_batch_size=8`},
		{"sft --per_device_train_batch_size 8", 2, `sft: unknown flag --per_device_train_batch_size: give the setting data.train_batch_size=8`},
		{"sft --epochs 3", 2, `sft: unknown flag --epochs: give the setting trainer.total_epochs=3`},
		{"train --num-generations 8", 2, `train: unknown flag --num-generations: give the setting rollout.n=8`},
		{"train --beta 0.1", 2, `train: unknown flag --beta: give the setting actor.kl_loss_coef=0.1`},
		{"train --actor.optim.lr=1e-5", 2, `train: unknown flag --actor.optim.lr: a setting has no dashes: give actor.optim.lr=1e-5`},
		{"train --rollout.temperature 1", 2, `train: unknown flag --rollout.temperature: a setting has no dashes: give rollout.temperature=1`},
		{"plan --gradient-checkpointing", 2, `plan: unknown flag --gradient-checkpointing: give the setting actor.recompute=VALUE`},
		{"sft --stpes 5", 2, `sft: unknown flag --stpes: did you mean --steps?`},
		{"generate --modle student", 2, `generate: unknown flag --modle: did you mean --model?`},
		{"sft --model student --resume sft", 2, "sft: unknown flag --resume: repeat the command that began the run, or use gad resume RUN; to start from another run's student give --model RUN/global_step_N/actor"},
		// flags given twice, empty or out of range
		{"sft --model student --model sft", 2, `sft: --model is given twice, "student" and "sft": give it once`},
		{"sft: --seed 1 SET --seed 2", 2, `sft: --seed is given twice, "1" and "2": give it once`},
		{"sft --output=a --output=b", 2, `sft: --output is given twice, "a" and "b": give it once`},
		{"sft --steps", 2, `sft: --steps: a value is missing: see gad sft --help`},
		{"sft: SET --steps 0", 2, `sft: --steps 0: must be at least 1; leave it out for as many as trainer.total_epochs takes`},
		{"sft: SET --steps -3", 2, `settings: flag --steps: setting "trainer.total_steps": "-3": below the minimum 0`},
		{"sft: SET --threads two", 2, `settings: flag --threads: setting "trainer.threads": "two": expected an integer in decimal digits`},
		{"sft: SET --device gpu", 2, `settings: flag --device: setting "trainer.device": "gpu": did you mean "cuda"? (one of: cpu, cuda)`},
		{"sft: SET 5", 2, `settings: override "5": expected setting=value, such as model.path=...`},
		{"sft: SET actor=5", 2, `settings: override "actor=5": group "actor": name one of its settings, such as actor.policy_loss.loss_mode`},
		{"sft: SET data.train_batch_size=0", 2, `settings: override "data.train_batch_size=0": setting "data.train_batch_size": "0": below the minimum 1`},
		{"sft: SET actor.optim.lr=nan", 2, `settings: override "actor.optim.lr=nan": setting "actor.optim.lr": "nan": expected a finite number`},
		{"config --stage ppo", 2, `config: --stage "ppo": must be sft, warmup, train, dpo`},
		{"config rollout.nn=2", 2, `settings: override "rollout.nn=2": setting "rollout.nn": unknown: did you mean "rollout.n"?`},
		{"train --preset fast", 2, `train: --preset: "fast": use gad, grgc, lora, paper or small`},
		// flags beside settings, files where a pattern was not quoted
		{"sft: SET data.train_files=more.jsonl", 2, `sft: "--data rows.jsonl" and "data.train_files=more.jsonl" are the same setting: give one of them`},
		{"sft: SET --steps 3 trainer.total_steps=4", 2, `sft: "--steps 3" and "trainer.total_steps=4" are the same setting: give one of them`},
		{"sft: more.jsonl SET", 2, `sft: unexpected argument "more.jsonl", which is a file: put a pattern in quotes, --data 'shards/*.arrow', or give --data before each file`},
		{"sft: SET --data " + filepath.Join(work, "rows.jsonl"), 3, `data: ` + filepath.Join(work, "rows.jsonl") + `: is the same file as rows.jsonl: its rows would count twice: give it once`},
		{"data inspect --data rows.jsonl --data link.jsonl", 3, `data: link.jsonl: is the same file as rows.jsonl: its rows would count twice: give it once`},
		{"data inspect --data rows.jsonl --data hard.jsonl", 3, `data: hard.jsonl: is the same file as rows.jsonl: its rows would count twice: give it once`},
		{"data inspect --data https://example.com/rows.jsonl", 3, `data: https://example.com/rows.jsonl: is an address: fetch the file first and give its path`},
		{"data validate --data rows.jsonl --model Qwen/Qwen2.5-0.5B", 3, `model: Qwen/Qwen2.5-0.5B: there is no such folder, and the cache /nowhere does not have it: run gad pull Qwen/Qwen2.5-0.5B`},
		{"sft: SET -- --frob", 2, `settings: override "--frob": looks like a flag: a setting is written without dashes, setting=value`},
		{"sft --dry-run --dry-run", 2, `sft: --dry-run is given twice: give it once`},
		{"sft: SET --checker false trainer.val_rows=4 --val-data more.jsonl", 2, `tried on the teacher's answer to row 0: checker: "false": row 0 has no score: printed 0 of 1: ended with exit status 1: must end with exit status 0`},
		// runs
		{"resume sft/global_step_60", 2, `resume: sft/global_step_60: is a checkpoint: give its run, sft`},
		{"doctor sft/global_step_60", 2, `trainer: sft/global_step_60: is a checkpoint: give its run, sft`},
		{"doctor nowhere", 2, `trainer: nowhere: no such folder: give the --output of gad sft, warmup, train or dpo`},
		{"export sft --output run", 2, `export: unexpected argument "sft": give it as --run sft`},
		{"resume", 2, `resume: the run is missing: gad resume RUN, where RUN is the --output of gad sft, warmup, train or dpo`},
		{"resume nowhere", 2, `resume: nowhere: no such folder: give the --output of gad sft, warmup, train or dpo`},
		{"resume rows.jsonl", 2, `resume: rows.jsonl: no such folder: give the --output of gad sft, warmup, train or dpo`},
		{"eval --model student --data rows.jsonl --max-prompt-length 3 --disc-steps 0", 2, `eval: rows.jsonl: row 0: the prompt is longer than --max-prompt-length 3: raise it, or leave it out`},
		{"resume dir", 2, `resume: dir: contains no checkpoint to resume: repeat the command that began the run`},
		{"resume sft --seed 5", 2, `resume: unknown flag --seed: give the setting trainer.seed=5`},
		{"resume sft trainer.seed=5", 2, `trainer.seed was 1 when the run in sft began, now it is 5: it cannot change within a run: give another --output`},
		{"doctor dir", 2, `trainer: dir: contains no run: give the --output of gad sft, warmup, train or dpo`},
		{"doctor sft warmup", 2, `doctor: unexpected argument "warmup": give one run folder, or none`},
		// folders that are not models
		{"generate --model Qwen/Qwen2.5-0.5B-Instruct --prompt x", 3, `model: Qwen/Qwen2.5-0.5B-Instruct: there is no such folder, and the cache /nowhere does not have it: run gad pull Qwen/Qwen2.5-0.5B-Instruct`},
		{"sft --model Qwen/Qwen2.5-0.5B --data rows.jsonl --output run SET", 3, `model: Qwen/Qwen2.5-0.5B: there is no such folder, and the cache /nowhere does not have it: run gad pull Qwen/Qwen2.5-0.5B`},
		{"generate --model ./nowhere --prompt x", 3, `model: ./nowhere: no such folder: give a Hugging Face model folder`},
		{"generate --model rows.jsonl --prompt x", 3, `model: rows.jsonl: is a data file: give a Hugging Face model folder here, and data with --data`},
		{"generate --model m.gguf --prompt x", 3, `tokenizer: gguf: m.gguf: offset 0: header: 4 bytes: too short for a GGUF file`},
		{"generate --model m.bin --prompt x", 3, `model: m.bin: is a file: give the folder that contains it`},
		{"generate --model lora --prompt x", 3, `model: lora/adapter_config.json: key "peft_type": "": not supported: gad reads adapters of LoRA only`},
		{"generate --model student --adapter student --prompt x", 2, `--adapter student: is no folder of LoRA adapters: it has no adapter_config.json`},
		{"generate --model hubbase --prompt x", 3, `model: hubbase/adapter_config.json: the base Qwen/Qwen2.5-0.5B is no folder here: fetch it, and give it with --model and this folder with --adapter`},
		{"generate --model dora --prompt x", 3, `model: dora/adapter_config.json: key "use_dora": true: not supported: merge the adapter into its base (peft: merge_and_unload)`},
		{"eval --model student --model dora --adapter hubbase --data rows.jsonl", 2, `eval: --adapter goes with one --model, 2 are given: give folders of adapters that name their base as --model`},
		{"sft --model student --adapter student --data rows.jsonl --output run SET actor.lora.rank=4", 2, `model.adapter_path student: is no folder of LoRA adapters: it has no adapter_config.json`},
		{"sft --model student --data rows.jsonl --output run SET actor.lora.rank=4 actor.lora.targets=lm_head", 2, `settings: actor.lora.targets: "lm_head": expected all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj`},
		{"sft --model student --data rows.jsonl --output run SET actor.lora.alpha=8", 2, `settings: actor.lora.rank is 0, which is no LoRA, but other settings of actor.lora are given: set a rank, or leave them out`},
		{"sft --model student --data rows.jsonl --output run SET actor.lora.base=q8_0", 2, `settings: actor.lora.rank is 0, which is no LoRA, but other settings of actor.lora are given: set a rank, or leave them out`},
		{"sft --model student --data rows.jsonl --output run SET actor.lora.rank=4 actor.lora.base=q8_0 trainer.device=cuda", 2, `settings: the base of LoRA is kept in q8_0, which only the CPU has: leave actor.lora.base and critic.lora.base out, or use trainer.device=cpu`},
		{"warmup --model student --data rows.jsonl --output run SET actor.lora.rank=4 critic.lora.rank=4 critic.lora.base=q4_0", 2, `settings: critic.lora.base is q4_0, but the discriminator's adapters stand on the student's base, which is native: set actor.lora.base=q4_0, or leave critic.lora.base out`},
		{"bench --weights q8_0", 2, `bench: --weights q8_0: must be native, or with --lora-rank q8_0 or q4_0`},
		{"generate --model student --prompt x --weights q4_1", 2, `--weights q4_1: must be native, q8_0 or q4_0`},
		{"warmup --model student --data rows.jsonl --output run SET rollout.merged=true", 2, `settings: rollout.merged is true, but actor.lora.rank is 0: there are no adapters to merge: set a rank, or leave it out`},
		{"train --resume warmup --adapter hubbase --data rows.jsonl --output run", 2, `trainer: model.adapter_path hubbase and trainer.resume_from warmup are both set: the adapters come from the run: leave out --adapter`},
		{"export --run sft --output run --merge", 2, `export: sft/global_step_60/actor: was trained in full and has no adapters: leave out --merge`},
		{"generate --model cache --prompt x", 3, `model: cache: is a folder of the Hugging Face cache: give cache/snapshots/0123abcd`},
		{"generate --model student/config.json --prompt x", 3, `model: student/config.json: is a file: give the folder that contains it`},
		{"init --config rows.jsonl --corpus rows.jsonl --output run", 3, `model: rows.jsonl: is not a config.json: give that file, or the folder that contains it`},
		{"warmup --model student --data rows.jsonl --output run --reward-model dir SET", 3, `model.reward_path: model: dir/config.json: no such file or directory`},
	})
}

// What a command line says and the stage does not read is told, and so is a setting that
// differs from the run's when it is resumed; gad resume takes a run on.
func TestIgnoredAndChangedSettings(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	_, said := must(t, append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", "2"), "trainer.test_freq=1", "actor.optim.lr=1e-3")...)
	for _, want := range []string{
		"warning: rollout.n=4 has no effect: gad sft does not read it\n",
		"warning: critic.optim.lr=1e-3 has no effect: gad sft does not read it\n",
		"warning: trainer.test_freq=1 has no effect: there are no validation data: give --val-data FILE\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "actor.optim.lr=1e-3 has no effect") || strings.Contains(said, "actor.max_token_len=512 has") {
		t.Errorf("a setting that is read is said to have no effect:\n%s", said)
	}
	_, said = must(t, "resume", run, "--steps", "3", "actor.optim.lr=2e-3")
	for _, want := range []string{"resumed with another setting: actor.optim.lr was 0.001, now 0.002\n", "resumed with another setting: trainer.total_steps was 2, now 3\n", "step 3/3"} {
		if strings.Count(said, want) != 1 {
			t.Errorf("does not say once %q:\n%s", want, said)
		}
	}
	if _, said = must(t, "resume", run); !strings.Contains(said, "already finished") || strings.Contains(said, "another setting") {
		t.Errorf("gad resume of a finished run says\n%s", said)
	}
}

// The settings that a stage is said not to read change nothing in what it computes.
func TestIgnoredSettingsAreIgnored(t *testing.T) {
	f := ready(t)
	weights := func(extra ...string) string {
		run := filepath.Join(t.TempDir(), "run")
		must(t, append([]string{"sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", "2",
			"data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=14"}, extra...)...)
		raw, err := os.ReadFile(filepath.Join(run, "global_step_2", "actor", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	plain := weights()
	if weights("rollout.n=3", "rollout.temperature=0.5", "rollout.top_k=3", "algorithm.adv_estimator=rloo", "critic.loss=bce", "dpo.beta=3", "actor.policy_loss.loss_mode=vanilla",
		"actor.kl_loss_coef=3", "actor.clip_ratio_low=0.1", "actor.ppo_mini_batch_size=1", "actor.ppo_epochs=3", "actor.rollout_is=token", "trainer.critic_warmup=1") != plain {
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
	first, _ := must(t, append([]string{"sft", "data.train_batch_size=4", "--dry-run", "--model", f.path("student"), "data.max_prompt_length=64"}, "data.max_response_length=14", "--data="+f.path("train.arrow"), "--output", run)...)
	last, _ := must(t, "sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--dry-run", "data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=14")
	if a, _, _ := strings.Cut(first, "\nmemory"); !strings.HasPrefix(last, a) || !strings.Contains(a, "train_batch_size: 4") {
		t.Errorf("flags behind settings resolve to\n%s\nbefore them\n%s", first, last)
	}
	template, _ := must(t, "config", "--stage", "sft", "actor.optim.lr=3e-5")
	if !strings.Contains(template, "\n    # peak learning rate") || !strings.Contains(template, "\n    lr: 3e-05\n") {
		t.Errorf("the template has no comment, or not the value given:\n%.2000s", template)
	}
	file := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(file, []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	from, _ := must(t, "sft", "--config", file, "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--dry-run", "data.max_prompt_length=64", "data.max_response_length=14")
	if !strings.Contains(from, "lr: 3e-05") {
		t.Errorf("the template's setting is not taken:\n%.1500s", from)
	}
	for _, args := range [][]string{{"help", "settings", "critic.replay"}, {"train", "--help", "critic.replay"}, {"train", "critic.replay", "--help"}} {
		if out, _ := must(t, args...); !strings.HasPrefix(out, "critic.replay.size=0\n    ") || strings.Contains(out, "actor.") {
			t.Errorf("gad %s prints\n%s", strings.Join(args, " "), out)
		}
	}
	for _, args := range [][]string{{"help", "sft"}, {"sft", "--help"}, {"sft", "-h", "--model", "x"}} {
		if out, _ := must(t, args...); !strings.Contains(out, "actor.optim.lr=5e-06") || !strings.Contains(out, "gad help settings") {
			t.Errorf("gad %s prints\n%s", strings.Join(args, " "), out)
		}
	}
}

// Help is of the command, whatever stands before it; a setting given twice is told, and
// a file of settings that overrides what a stage inherits.
func TestHelpAndNotes(t *testing.T) {
	f := ready(t)
	for _, line := range []string{"config --stage train --help", "plan --stage train --help", "sft --model model --help", "sft --data data -h"} {
		if out, _ := must(t, strings.Fields(line)...); !strings.Contains(out, "gad "+strings.Fields(line)[0]+" - ") {
			t.Errorf("gad %s prints\n%s", line, out)
		}
	}
	run := filepath.Join(t.TempDir(), "lr=1e-3")
	args := append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", "2"), "actor.optim.lr=1e-3", "actor.optim.lr=2e-3", "trainer.save_freq=1")
	if _, said := must(t, args...); strings.Count(said, "warning: actor.optim.lr is given twice: actor.optim.lr=2e-3 holds, actor.optim.lr=1e-3 does not\n") != 1 {
		t.Errorf("a setting given twice:\n%s", said)
	}
	// A run whose newest checkpoint is damaged resumes from the one before, in a folder
	// whose name looks like a setting.
	for _, name := range []string{"trainer.json", "manifest.json"} {
		if err := os.WriteFile(filepath.Join(run, "global_step_2", name), []byte("{"), 0o644); err != nil {
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
		if code, _, said := gad("resume", run, "--steps", "3"); text == edited && (code != exitUsage || !strings.Contains(said, want)) {
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
	if code, out, _ := gad("doctor", run); code != exitFailed || !strings.Contains(out, "it has saved, and no checkpoint is left") {
		t.Errorf("without checkpoints: exit status %d\n%s", code, out)
	}
	began := filepath.Join(t.TempDir(), "began")
	must(t, stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", began, "--steps", "1")...)
	if err := os.RemoveAll(filepath.Join(began, "global_step_1")); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{run: "began the run\n", began: "began the run: gad sft --model "} {
		if code, _, said := gad("resume", dir); code != exitUsage || !strings.Contains(said, "repeat the command that "+want) {
			t.Errorf("resume without checkpoints: exit status %d\n%s", code, said)
		}
	}
	// An answer that is cut is told so.
	if _, said := must(t, "generate", "--model", f.path("student"), "--prompt", "Add 1+1", "-n", "3", "--max-new-tokens", "1"); said != "gad: note: 3 of 3 answers cut at 1 token\n" {
		t.Errorf("cut answers: %q", said)
	}
	template := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(template, []byte("data: {max_response_length: 12}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, said := must(t, "train", "--config", template, "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "game"), "--dry-run")
	if !strings.Contains(said, template+" overrides the settings of "+f.path("warmup")+": data.max_response_length was 14, now 12\n") {
		t.Errorf("a file that overrides what is inherited:\n%s", said)
	}
}

// What is odd about a run is said before it begins: a batch larger than the data, few
// steps to learn in, a learning rate that is the warm-up's, a length that is not known, a
// validation on some of the rows.
func TestOddRuns(t *testing.T) {
	f := ready(t)
	rows := lines(f.path("test.jsonl"))
	_, said := must(t, append(stage("sft", "--model", f.path("student"), "--data", f.path("test.jsonl"), "--val-data", f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "a")),
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
	_, said = must(t, "plan", "--stage", "warmup", "--model", f.path("student"), "--data", f.path("test.jsonl"), "data.max_prompt_length=64", "data.max_response_length=14",
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
	_, said = must(t, "train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", filepath.Join(t.TempDir(), "b"), "--steps", "1", "actor.optim.lr=3e-3", "trainer.critic_warmup=1", "trainer.critic_warmup_until=10", "trainer.critic_warmup_max=2")
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
		return append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--val-data", f.path("test.jsonl"), "--output", run, "--steps", "2", "--checker", checker), "trainer.save_freq=0")
	}
	code, _, said := gad(args("./chek.py")...)
	if code != exitUsage || !strings.Contains(said, "tried on the teacher's answer to row 0") || strings.Contains(said, "step 1") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	if _, err := os.Stat(run); err == nil {
		t.Error("the run's folder was made")
	}
}
