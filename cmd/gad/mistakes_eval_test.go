package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Mistakes with the commands that read models and rows: eval, generate, score,
// logprobs, plan --stage eval.
func TestMistakesOfEval(t *testing.T) {
	f, work := linked(t, "student", "warmup", "sft")
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	write := func(name, content string) {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("rows.jsonl", string(raw))
	write("long.jsonl", first+"\n"+`{"content":"`+strings.Repeat("Add 1+1+1 ", 40)+`","teacher_response":"x"}`+"\n")
	write("corpus.txt", strings.Repeat("another text of other words, which gives another tokenizer. ", 50))
	must(t, "init", "--config", f.path("config.json"), "--corpus", "corpus.txt", "--output", "foreign")
	write("diary.jsonl.partial", "Dear diary\n")

	write("begun.jsonl.partial", begunBefore(t, "student", "rows.jsonl", 1, 3, 0.8)) // of an interrupted command

	settings, answer := begunBefore(t, "student", "rows.jsonl", 1, 3, 0.8), `{"row":7,"sample":0,"response":"x","tokens":1,"truncated":false,"finish_reason":"stop"}`
	write("far.jsonl.partial", settings+answer+"\n")

	const gen, ev = "generate --model student --data rows.jsonl --output out.jsonl", "eval --model student --data rows.jsonl"
	critic := filepath.Join("warmup", "global_step_4", "critic")
	mistaken(t, []string{work, f.path("sft"), f.path("warmup")}, []mistake{
		{"generate --model student --data rows.jsonl", 2, `generate: --data needs --output FILE, where the answers go`},
		{gen + " --prompt x", 2, `generate: --prompt and --data: give one of them`},
		{gen + " --json", 2, `generate: --json is for --prompt, not for --data: leave it out`},
		{gen + " --stream", 2, `generate: --stream is for --prompt, not for --data: leave it out`},
		{gen + " --system s", 2, `generate: --system is for --prompt, not for --data: leave it out`},
		{gen + " --raw", 2, `generate: --raw is for --prompt, not for --data: leave it out`},
		{gen + " -n 70000", 2, `generate: -n 70000: must be 1 to 65535`},
		{gen + " --limit -1", 2, `generate: --limit -1: must be at least 0`},
		{gen + " --min-p 2", 2, `generate: --min-p 2: must be from 0 to 1`},
		{gen + " --max-new-tokens 0", 2, `generate: --max-new-tokens 0: must be at least 1`},
		{gen + " --max-new-tokens 120", 2, `generate: row 8: prompt has 37 tokens: with an answer of 120 that is more than the 128 of the model: give --max-new-tokens 91`},
		{gen + " rows.jsonl", 2, `generate: unexpected argument "rows.jsonl": this command takes flags only`},
		{"generate --model student --data nowhere.jsonl --output out.jsonl", 3, `data: nowhere.jsonl: does not exist: give a data file or a folder`},
		{"generate --model student --data long.jsonl --output out.jsonl", 3, `data: row 1: prompt has 417 tokens, the model takes 128: drop the row`},
		{"generate --model student --data rows.jsonl --output rows.jsonl", 2, `generate: rows.jsonl: exists: nothing is overwritten: remove it or give another --output`},
		{"generate --model student --data rows.jsonl --output no/out.jsonl", 2, `generate: no/out.jsonl: there is no folder no: create it or give another --output`},
		{"generate --model student --data rows.jsonl --output begun.jsonl --max-new-tokens 3 --seed 2", 2, `generate: begun.jsonl.partial: cannot be resumed: --seed was 1, now it is 2: give the same settings, or another --output`},
		{"generate --model student --data rows.jsonl --output begun.jsonl --max-new-tokens 4", 2, `generate: begun.jsonl.partial: cannot be resumed: --max-new-tokens was 3, now it is 4: give the same settings, or another --output`},
		{"generate --model student --data long.jsonl --output begun.jsonl --max-new-tokens 3", 2, `generate: begun.jsonl.partial: cannot be resumed: the data are not the same: give the same settings, or another --output`},
		{"generate --model sft/global_step_60/actor --data rows.jsonl --output begun.jsonl --max-new-tokens 3", 2, `generate: begun.jsonl.partial: cannot be resumed: the model is not the same: give the same settings, or another --output`},
		{"generate --model student --data rows.jsonl --output far.jsonl --max-new-tokens 3 --limit 7", 2, `generate: far.jsonl.partial: has answers up to row 7: --limit 7 would drop them: give --limit 8 or more, or another --output`},
		{"generate --model student --data rows.jsonl --output diary.jsonl", 2, `generate: diary.jsonl.partial: is not an interrupted output of gad generate: remove it or give another --output`},
		{"generate --model sft --data rows.jsonl --output out.jsonl", 3, `model: sft: is a run: give sft/global_step_60/actor`},
		{"generate --model " + critic + " --data rows.jsonl --output out.jsonl", 3, `model: warmup/global_step_4/critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
		{"generate --model " + critic + " --prompt x", 3, `model: warmup/global_step_4/critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
		{"generate --model student --prompt x --output out.jsonl", 2, `generate: --output is for --data, not for --prompt: leave it out`},
		{"generate --model student --prompt x --limit 3", 2, `generate: --limit is for --data, not for --prompt: leave it out`},
		{"generate --model student --prompt x --stream -n 2", 2, `generate: --stream prints one answer as text: leave out -n and --json`},
		{"generate --model student --prompt x --stream --json", 2, `generate: --stream prints one answer as text: leave out -n and --json`},
		{"generate --model student --prompt x --raw --system s", 2, `generate: --system is part of the chat template, which --raw leaves out: write it into --prompt`},
		{"generate --model student --prompt x --top-k -1", 2, `generate: --top-k -1: must be at least 0`},
		{"generate --prompt x", 2, `generate: --model is missing: see gad generate --help`},
		{"eval --data rows.jsonl", 2, `eval: --model is missing: see gad eval --help`},
		{"eval --model student", 2, `eval: --data is missing: see gad eval --help`},
		{ev + " --model student", 2, `eval: --model student: given twice: name two models to compare`},
		{ev + " --output rows.jsonl", 2, `eval: rows.jsonl: exists: nothing is overwritten: remove it or give another --output`},
		{ev + " --output no/out.jsonl", 2, `eval: no/out.jsonl: there is no folder no: create it or give another --output`},
		{ev + " --dry-run --output out.jsonl", 2, `eval: --dry-run writes nothing: leave --output out`},
		{ev + " --disc-minutes -1", 2, `eval: --disc-minutes -1: must be from 0 to 1e+06`},
		{ev + " --disc-seeds 0", 2, `eval: --disc-steps 800, --disc-batch 4, --disc-seeds 0, --disc-lr 0: must be at least 0, 1, 1 and 0`},
		{ev + " --disc-from nowhere", 3, `--disc-from: model: nowhere: no such folder: give a Hugging Face model folder`},
		{ev + " --disc-from foreign", 3, `tokenizer: foreign: is not the student's tokenizer: token 256 is "er", and the student's is " i": the discriminator reads the student's token ids: give a --disc-from with the same tokenizer`},
		{ev + " --against nowhere", 3, `--against: model: nowhere: no such folder: give a Hugging Face model folder`},
		{ev + " --against sft", 3, `--against: model: sft: is a run: give sft/global_step_60/actor`},
		{ev + " --against foreign", 3, `tokenizer: foreign: is not the student's tokenizer: token 256 is "er", and the student's is " i": the two models are compared token by token: give a --against with the same tokenizer`},
		{ev + " --against " + critic, 3, `model: warmup/global_step_4/critic: is a discriminator, which has no distribution over tokens: give --against a language model`},
		{ev + " --against=", 2, `eval: --against is empty: give a model folder, or leave it out`},
		{ev + " --limit -1", 2, `eval: --limit -1: must be at least 0`},
		{ev + " --max-response-length 0", 2, `eval: --max-response-length 0: must be at least 1`},
		{ev + " --max-response-length 120", 2, `eval: row 8: prompt has 37 tokens: with an answer of 120 that is more than the 128 of the model: give --max-response-length 91`},
		{ev + " --checker-timeout 0", 2, `eval: --checker-timeout 0: must be 1 to 1000000 seconds`},
		{ev + " --temperature -2", 2, `eval: --temperature -2: must be from 0 to 1e+06`},
		{ev + " --model warmup", 3, `model: warmup: is a run: give warmup/global_step_4/actor`},
		{"eval --model sft --data rows.jsonl", 3, `model: sft: is a run: give sft/global_step_60/actor`},
		{"eval --model student --data nowhere.jsonl", 3, `data: nowhere.jsonl: does not exist: give a data file or a folder`},
		{"eval --model student --data long.jsonl", 3, `data: row 1: prompt has 417 tokens, the model takes 128: drop the row`},
		{"eval --model " + critic + " --data rows.jsonl", 3, `model: warmup/global_step_4/critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
		{"plan --stage eval --data rows.jsonl", 2, `eval: --model is missing: see gad eval --help`},
		{"plan --stage eval --model student --data rows.jsonl --output run", 2, `plan: --output: not with --stage eval: use gad eval --dry-run, which takes all flags of eval`},
		{"plan --stage eval --model student --data rows.jsonl rollout.n=4", 2, `plan: "rollout.n=4": not with --stage eval, which has no settings: use gad eval --dry-run`},
		{"score --data rows.jsonl", 2, `score: --critic is missing: see gad score --help`},
		{"score --critic warmup --data rows.jsonl", 3, `model: warmup: is a run: give warmup/global_step_4/critic`},
		{"score --critic warmup/global_step_4 --data rows.jsonl", 3, `model: warmup/global_step_4: is a checkpoint: give warmup/global_step_4/critic`},
		{"score --critic sft --data rows.jsonl", 3, `model: sft: is a run without a discriminator: give one of a warm-up or a game`},
		{"score --critic nowhere --data rows.jsonl", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		{"logprobs --model warmup --data rows.jsonl", 3, `model: warmup: is a run: give warmup/global_step_4/actor`},
		{"logprobs --model " + critic + " --data rows.jsonl", 3, `model: warmup/global_step_4/critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
	})
}
