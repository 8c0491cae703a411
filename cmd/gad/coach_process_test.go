//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/apps/judge/judgetest"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
)

// notesByRule returns the notes on an answer by a rule, shellNotes writes them in the shell.
func notesByRule(cut bool) string {
	if cut {
		return "Be brief."
	}
	return "It may be longer."
}

const shellNotes = `while IFS= read -r line; do case $line in
*'"truncated":true}') echo '{"notes":"Be brief."}';; *) echo '{"notes":"It may be longer."}';; esac; done`

// A run with notes of gad coach has the bits of the same run with a program that writes the same
// notes by rule. Played again from the journal, with nobody to ask, it has them too; so it has
// after kill -9 in a step, which has at most what was in the air asked twice. A coach that is often
// at fault ends no run, and its run is played again with the same gaps. The samples have the notes.
func TestCoachRun(t *testing.T) {
	f := ready(t)
	j := newJudged(t, "coach", func(c endpointtest.Call) string {
		_, cut := judgetest.Material(c)["answer of the student, cut at the limit of length"]
		raw, _ := json.Marshal(map[string]string{"notes": notesByRule(cut)})
		return string(raw)
	}, `{"notes": ["a"]}`)
	j.steps, j.tried = few(4, 2), 1
	j.args = func(run string) []string {
		return []string{"opd", "--model", f.path("student"), "--teacher", f.path("student"), "--data",
			f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(j.steps), "--coach",
			`sh "$RULE"`, "--threads", "1", "teacher.loss=topk", "teacher.top_k=5",
			fmt.Sprint("teacher.renew=", j.steps-1), "coach.plain=0.25", "rollout.n=3",
			"trainer.save_freq=1", "data.train_batch_size=4",
			"data.max_prompt_length=64", "data.max_response_length=10", "actor.optim.lr=1e-2"}
	}
	j.script(t, shellNotes)
	j.play(t, "ruled")
	last := fmt.Sprint("global_step_", j.steps)
	share := metric(t, "ruled", "opd/notes_frac")
	if slices.Min(share) != 1 {
		t.Fatalf("shares with notes %v", share)
	}
	j.script(t, "while IFS= read -r line; do echo null; done")
	j.play(t, "plain")
	if a, b := fileText("ruled/"+last+"/actor/model.safetensors"),
		fileText("plain/"+last+"/actor/model.safetensors"); a == b {
		t.Fatal("notes teach nothing: nothing is tested")
	}

	j.ask(t, j.server.URL, "kept")
	said := j.play(t, "coached")
	equalRuns(t, "coached", "ruled", j.steps)
	first := len(j.server.Calls())
	wantSaid := regexp.MustCompile(
		`coach: notes of rule at 127\.0\.0\.1:\d+: a step asks 9 requests \(3 for each of 3 prompts with 3 answers\): \d+ tokens to it and \d+ from it; estimate by 4 bytes per token and answers as long as the teacher's`)
	if !wantSaid.MatchString(said) ||
		!strings.Contains(said, "coach: notes of 1 prompt: 1 request made, ") {
		t.Errorf("the cost is not said at the start:\n%s", said)
	}
	samples, _, err := report.ReadSamples(vfs.OS, "coached", report.InTraining, 1)
	if err != nil || len(samples) == 0 {
		t.Fatal(len(samples), err)
	}
	if _, out, _ := gad("doctor", "coached"); !strings.Contains(out, last+"     verified") ||
		!strings.HasSuffix(out, "problems: answers end at the limit\n") {
		t.Errorf("doctor: %s", out)
	}
	said = ""
	for i, s := range samples {
		said += s.Notes
		if (s.Notes != "") != (i < 9) {
			t.Errorf("sample %d has notes %q", i, s.Notes)
		}
	}
	if !strings.Contains(said, notesByRule(true)) || !strings.Contains(said, notesByRule(false)) {
		t.Errorf("all answers have the same notes: %s", said)
	}

	if hostile.Long() { // and of a journal with gaps: fault
		j.replay(t, "kept", "replayed", "ruled")
	}
	j.kill(t, "ruled", few(4, 2), first)
	j.fault(t)
	gaps := metric(t, "faulty", "opd/notes_frac")
	if slices.Min(gaps) == 1 || slices.Max(gaps) == 0 {
		t.Errorf("shares with notes: %v", gaps)
	}
	out, _ := must(t, "coach", "--spent", "--journal", "faulty-kept")
	if ok, _ := regexp.MatchString(
		`^faulty-kept: \d+ replies of the judge, \d+ tokens to it and \d+ from it; \d+ answers? without an answer of the endpoint\n$`, out); !ok {
		t.Errorf("spent: %s", out)
	}
}

// The rule of a task is a coach without a model: a run with it takes its notes from gad task notes.
func TestCoachByRule(t *testing.T) {
	path := built(t)
	t.Chdir(t.TempDir())
	must(t, "task", "make", "two-forms", "--output", "task", "--rows", "40")
	p := start(t, path, "opd", "--model", "task/student", "--teacher", "task/student", "--data",
		"task/train.arrow", "--output", "run", "--steps", "2", "--threads", "1", "--coach",
		`"$GAD" task notes two-forms`, "data.train_batch_size=4", "data.max_prompt_length=48",
		"data.max_response_length=16", "trainer.save_samples=4", "coach.template={prompt} {notes}")
	p.wants(t, exitDone)
	if share := metric(t, "run", "opd/notes_frac"); slices.Min(share) != 1 {
		t.Errorf("shares with notes %v", share)
	}
	samples, _, err := report.ReadSamples(vfs.OS, "run", report.InTraining, 2)
	if err != nil || len(samples) != 4 || samples[0].Notes != "By way of the walk, now the result." {
		t.Errorf("%+v, %v", samples, err)
	}
}
