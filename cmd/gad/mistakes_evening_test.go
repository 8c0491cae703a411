package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
)

// Mistakes of a first evening with gad: a folder that is not there, a run of another stage,
// an output whose answers are in the journal.
func TestMistakesOfTheFirstEvening(t *testing.T) {
	_, work := linked(t, "student", "warmup", "train.arrow")
	s := teacher(t, &endpointtest.Server{})
	put(t, "p.jsonl", `{"content":"a"}`)
	put(t, "paid.jsonl", `{"content":"a","teacher_response":"b"}`)
	put(t, "paid.jsonl.journal", `{"key":"1","record":{}}`)
	mistaken(t, []string{work}, []mistake{
		{"data collect --prompts p.jsonl --model big --output paid.jsonl --base-url " + s.URL, 2, `data collect: paid.jsonl: exists: nothing is overwritten: remove it (its answers stay in paid.jsonl.journal) or give another --output`},
		{"data collect --prompts p.jsonl --model big --output paid.jsonl --retry-empty --base-url " + s.URL, 2, `data collect: paid.jsonl: exists: nothing is overwritten: remove it (its answers stay in paid.jsonl.journal) or give another --output`},
		{"train --resume nowhere/run --data train.arrow --output run", 3, `checkpoint: nowhere/run: no checkpoint, as there is no such folder: give a run folder or one of its global_step_N folders`},
		{"export --run student --output out", 3, `checkpoint: student: no checkpoint: give a run folder or one of its global_step_N folders`},
	})
	if n := len(s.Calls()); n > 0 {
		t.Errorf("%d calls", n)
	}
}

// A judge that never gives a verdict ends the command with 1 and says where the replies and
// the answers are.
func TestMistakenJudge(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{Answer: func(endpointtest.Call, int) (string, string) { return "I like both.", "stop" }})
	put(t, "a.jsonl", `{"row":0,"sample":0,"content":"Add 1+1","teacher_response":"2","response":"3"}`)
	const why = "gad: judge: no verdict can be read, of 3: the reply has no JSON object with reference and answer: read the replies in judgments.jsonl, then try another judge, a larger --judge-max-tokens or --judge-extra\n"
	line := "eval --answers a.jsonl --judge-model m --judge " + s.URL
	for range 2 { // the second time nothing is asked
		if code, out, said := gad(strings.Fields(line)...); code != exitFailed || out != "" || !strings.HasSuffix(said, why) || len(s.Calls()) != 7 {
			t.Errorf("exit status %d after %d calls, prints %q, %s", code, len(s.Calls()), out, said)
		}
	}
}

// What --partial leaves out is said, with the way to get it.
func TestPartialSaysWhatIsMissing(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if c.Prompt == "b" {
			endpointtest.Fail(w, 400, "", "not this")
			return true
		}
		return false
	}})
	put(t, "p.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"c"}`)
	line := strings.Fields("data collect --prompts p.jsonl --model big --output x.jsonl --partial --base-url " + s.URL)
	code, out, _ := gad(line...)
	if want := "x.jsonl: 2 answers to 3 prompts\n1 of 3 rows have no answer: remove x.jsonl, and the same command asks again\n"; code != exitDone || !strings.HasPrefix(out, want) {
		t.Errorf("exit status %d, prints %s", code, out)
	}
	s.Misbehave = nil
	drop(t, "x.jsonl")
	if code, out, _ := gad(line...); code != exitDone || !strings.HasPrefix(out, "x.jsonl: 3 answers to 3 prompts\ncounted") {
		t.Errorf("again: exit status %d, prints %s", code, out)
	}
}

// A setting that was empty when a run began is not printed as nothing.
func TestChangeOfAnEmptySetting(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "game")
	args := stage("train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", run, "--steps", "1")
	if code, _, said := gad(args...); code != exitDone {
		t.Fatalf("exit status %d: %s", code, said)
	}
	code, out, said := gad(append(args, "model.reward_path="+f.path("student"))...)
	if want := "model.reward_path was not set when the run in " + run + " began, now it is "; code != exitUsage || out != "" || !strings.Contains(said, want) {
		t.Errorf("exit status %d: %s, want %q", code, said, want)
	}
}

// The estimate says how long the limits that are given make it last.
func TestEstimateOfTime(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := make([]string, 40)
	for i := range lines {
		lines[i] = `{"content":"` + strings.Repeat("a", 396) + `"}` // 100 tokens with the role
	}
	put(t, "p.jsonl", lines...)
	for flags, want := range map[string]string{
		"":                                 "",
		"--rpm 100":                        "",
		"--rpm 10":                         "; about 4 min by --rpm",
		"--input-tpm 1000":                 "; about 4 min by --input-tpm",
		"--output-tpm 1000":                "; about 2 min by --output-tpm",
		"--tpm 1000":                       "; about 6 min by --tpm",
		"--tpm 1000 --rpm 0.25":            "; about 2.7 h by --rpm",
		"--tpm 1000 --batch":               "",
		"--tpm 3000 --output-tpm 100":      "; about 20 min by --output-tpm",
		"--tpm 1000000 --output-tpm 10000": "",
	} {
		out, _ := must(t, strings.Fields("data collect --prompts p.jsonl --base-url http://127.0.0.1:9/v1 --model m --output x.jsonl --max-tokens 50 --dry-run "+flags)...)
		if want := "m: 40 answers to 40 rows; estimate: 4000 tokens of prompts, 2000 of answers (at 4 bytes per token of a prompt, and the most that --max-tokens allows, 50 tokens per answer)" + want + "\n"; out != want {
			t.Errorf("%s: prints %s want %s", flags, out, want)
		}
	}
}
