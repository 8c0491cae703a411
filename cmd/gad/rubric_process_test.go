//go:build linux

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/apps/judge/judgetest"
	"gad/internal/hostile"
)

// hasVowel is the rule of both checkers below, in the shell. An answer of the fixture's student has
// no quotation mark.
const hasVowel = `while IFS= read -r line; do
r=${line#*\"response\":\"}; r=${r%%\",\"teacher_response\"*}
case $r in *a*|*e*|*o*) echo 1;; *) echo 0;; esac; done`

// A game with a rubric's reward has the bits of the same game with a checker that has the rubric's
// criterion as its rule. Played again from the journal, with nobody to ask, it has them too; so it
// has after kill -9, which has at most what was in the air asked twice. A judge that is often at
// fault ends no run, and its run is played again with the same gaps.
func TestRubricGame(t *testing.T) {
	f := ready(t)
	j := newJudged(t, "rubric", judgetest.Rubric("has an a, e or o",
		func(answer string) bool { return strings.ContainsAny(answer, "aeo") }),
		`{"grades": [["true"]]}`)
	j.steps, j.tried = few(3, 2), 2
	j.args = func(run string) []string {
		return append([]string{"train", "--resume", f.path("warmup"), "--data",
			f.path("train.arrow"), "--val-data", f.path("test.jsonl"), "--output", run, "--steps",
			fmt.Sprint(j.steps), "--checker", `sh "$RULE"`, "--threads", "1",
			"algorithm.checker_weight=0.5", "trainer.test_freq=1", "trainer.keep_best=val/check"},
			stateful...)
	}
	j.script(t, hasVowel)
	j.play(t, "checked")
	share := metric(t, "checked", "reward/check_mean")
	if !slices.ContainsFunc(share, func(x float64) bool { return x > 0.1 && x < 0.9 }) {
		t.Fatalf("scores %v: nothing is tested", share)
	}

	j.ask(t, j.server.URL, "kept")
	said := j.play(t, "graded")
	equalRuns(t, "graded", "checked", j.steps)
	first := len(j.server.Calls())
	wantSaid := regexp.MustCompile(
		`checker: rubrics of rule at 127\.0\.0\.1:\d+: a step asks 8 requests \(2 for each of 4 prompts with 4 answers\): \d+ tokens to it and \d+ from it; a validation asks \d+ requests the first time, \d+ later: \d+ tokens to it and \d+ from it; estimate by 4 bytes per token and answers as long as the teacher's`)
	if !wantSaid.MatchString(said) ||
		!strings.Contains(said, "checker: rubrics of 1 prompt: 2 requests made, ") {
		t.Errorf("the cost is not said at the start:\n%s", said)
	}

	t.Setenv("JUDGE_KEY", "wrong")
	j.ask(t, j.server.URL, "other")
	start(t, j.path, j.args("refused")...).wants(t, exitUsage, `it said "gad: endpoint: 127.0.0.1:`,
		`the key is not accepted: check the key and what it may use"`)
	t.Setenv("JUDGE_KEY", "secret")

	if hostile.Long() { // and of a journal with gaps: fault
		j.replay(t, "kept", "replayed", "checked")
	}
	j.kill(t, "checked", few(4, 1), first)
	j.fault(t)
	gaps := metric(t, "faulty", "reward/unchecked_frac")
	if most := slices.Max(gaps); most == 0 || slices.Min(gaps) == 1 {
		t.Errorf("shares without a score: %v", gaps)
	}
	out, _ := must(t, "rubric", "--spent", "--journal", "faulty-kept")
	if ok, _ := regexp.MatchString(
		`^faulty-kept: \d+ replies of the judge, \d+ tokens to it and \d+ from it; [1-9]\d* prompts? without an answer of the endpoint\n$`, out); !ok {
		t.Errorf("spent: %s", out)
	}
}
