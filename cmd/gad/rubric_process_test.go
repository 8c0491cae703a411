//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/apps/judge/judgetest"
	"gad/internal/endpoint/endpointtest"
)

// hasVowel is the rule of both checkers below, in the shell. An answer of the fixture's student has
// no quotation mark.
const hasVowel = `while IFS= read -r line; do
r=${line#*\"response\":\"}; r=${r%%\",\"teacher_response\"*}
case $r in *a*|*e*|*o*) echo 1;; *) echo 0;; esac; done`

// vowelReply is the reply of a judge whose rubrics have that rule as their only criterion.
func vowelReply(c endpointtest.Call) string {
	m := judgetest.Material(c)
	if m["criteria"] == "" {
		return `{"criteria": [{"criterion": "has an a, e or o", "weight": 2.5}]}`
	}
	var grades [][]bool
	for i := 1; ; i++ {
		at := slices.IndexFunc(sortedKeys(m), func(title string) bool {
			return regexp.MustCompile(fmt.Sprintf(`^answer %d of the student(, cut at .*)?$`,
				i)).MatchString(title)
		})
		if at < 0 {
			raw, _ := json.Marshal(map[string]any{"grades": grades})
			return string(raw)
		}
		grades = append(grades, []bool{strings.ContainsAny(m[sortedKeys(m)[at]], "aeo")})
	}
}

func sortedKeys(m map[string]string) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// A game with a rubric's reward has the bits of the same game with a checker that has the rubric's
// criterion as its rule. Played again from the journal, with nobody to ask, it has them too; so it
// has after kill -9, which has at most what was in the air asked twice. A judge that is often at
// fault ends no run, and its run is played again with the same gaps.
func TestRubricGame(t *testing.T) {
	path, f := built(t), ready(t)
	work := t.TempDir()
	t.Chdir(work)
	const steps, inTheAir = 3, 4
	most := few(4, 2) // kills
	var delay atomic.Bool
	var spared atomic.Int64 // calls before the judge is at fault; 0: it never is
	server := collecttest.Teacher(t, &endpointtest.Server{Key: "secret",
		Answer: func(c endpointtest.Call, _ int) (string, string) { return vowelReply(c), "stop" },
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if delay.Load() {
				time.Sleep(30 * time.Millisecond)
			}
			sum := fnv.New32()
			fmt.Fprint(sum, c.Messages[1].Content, len(c.Messages))
			if n := spared.Load(); n == 0 || int64(c.Number) < n {
				return false
			}
			switch sum.Sum32() % 5 {
			case 0:
				endpointtest.Fail(w, 400, "content_filter", "not this one")
			case 1:
				fmt.Fprint(w, `{"choices":[{"message":{"content":"{\"grades\": [[\"true\"]]}"}}]}`)
			case 2:
				fmt.Fprint(w, `{"choices":[{"message":{"content":"I am sorry."}}]}`)
			default:
				return false
			}
			return true
		}})
	rule := filepath.Join(work, "rule")
	t.Setenv("RULE", rule)
	t.Setenv("RUBRIC_KEY", "secret")
	script := func(text string) {
		t.Helper()
		if err := os.WriteFile(rule, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rubric := func(url, journal string) {
		script(fmt.Sprintf(`exec "$GAD" rubric --base-url %s --key-env RUBRIC_KEY --model rule --journal %s --retries 0 --concurrency %d`, url, journal, inTheAir))
	}
	args := func(run string) []string {
		return append([]string{"train", "--resume", f.path("warmup"), "--data",
			f.path("train.arrow"), "--val-data", f.path("test.jsonl"), "--output", run, "--steps",
			fmt.Sprint(steps), "--checker", `sh "$RULE"`, "--threads", "1",
			"algorithm.checker_weight=0.5", "trainer.test_freq=1", "trainer.keep_best=val/check"},
			stateful...)
	}
	play := func(run string) string {
		t.Helper()
		p := start(t, path, args(run)...)
		if code := p.end(t, patience); code != exitDone {
			t.Fatalf("%s: exit status %d\n%s", run, code, p.said.String())
		}
		return p.said.String()
	}
	script(hasVowel)
	play("checked")
	share := metric(t, "checked", "reward/check_mean")
	if !slices.ContainsFunc(share, func(x float64) bool { return x > 0.1 && x < 0.9 }) {
		t.Fatalf("scores %v: nothing is tested", share)
	}

	rubric(server.URL, "kept")
	said := play("graded")
	equalRuns(t, "graded", "checked", steps)
	first := len(server.Calls())
	wantSaid := regexp.MustCompile(`checker: rubrics of rule at 127\.0\.0\.1:\d+: a step asks 8 requests \(2 for each of 4 prompts with 4 answers\): \d+ tokens to it and \d+ from it; a validation asks \d+ requests the first time, \d+ later: \d+ tokens to it and \d+ from it; estimate by 4 bytes per token and answers as long as the teacher's`)
	if !wantSaid.MatchString(said) ||
		!strings.Contains(said, "checker: rubrics of 1 prompt: 2 requests made, ") {
		t.Errorf("the cost is not said at the start:\n%s", said)
	}

	t.Setenv("RUBRIC_KEY", "wrong")
	rubric(server.URL, "other")
	p := start(t, path, args("refused")...)
	if code, said := p.end(t, patience), p.said.String(); code != exitUsage ||
		!strings.Contains(said, `it said "gad: endpoint: 127.0.0.1:`) ||
		!strings.Contains(said, `the key is not accepted: check the key and what it may use"`) {
		t.Errorf("a wrong key: exit status %d\n%s", code, said)
	}
	t.Setenv("RUBRIC_KEY", "secret")

	rubric("http://127.0.0.1:1/v1", "kept")
	play("replayed")
	equalRuns(t, "replayed", "checked", steps)
	if n := len(server.Calls()); n != first {
		t.Errorf("%d requests of a run whose replies are all kept", n-first)
	}

	rubric(server.URL, "killed-kept")
	delay.Store(true)
	kills := 0
	for try := 0; ; try++ {
		before := len(server.Calls())
		p := start(t, path, args("killed")...)
		if kills == most {
			if code := p.end(t, patience); code != exitDone {
				t.Fatalf("exit status %d\n%s", code, p.said.String())
			}
			break
		}
		wait(t, "some requests", func() bool { return len(server.Calls()) > before+1+3*try })
		syscall.Kill(p.Process.Pid, syscall.SIGKILL)
		if try%2 == 0 { // its checker too, which otherwise goes on alone, and is waited for
			for _, name := range processesWith("RULE=" + rule) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		p.end(t, patience)
		kills++
	}
	delay.Store(false)
	equalRuns(t, "killed", "checked", steps)
	if n := len(server.Calls()) - first; n < first || n > first+kills*inTheAir {
		t.Errorf("%d requests of a run that was killed %d times, %d of one that was not", n, kills,
			first)
	}

	rubric(server.URL, "faulty-kept")
	spared.Store(int64(len(server.Calls()) + 2)) // the checker is tried on the teacher's answer
	play("faulty")
	gaps := metric(t, "faulty", "reward/unchecked_frac")
	if most := slices.Max(gaps); most == 0 || slices.Min(gaps) == 1 {
		t.Errorf("shares without a score: %v", gaps)
	}
	rubric("http://127.0.0.1:1/v1", "faulty-kept")
	play("faulty-replayed")
	equalRuns(t, "faulty-replayed", "faulty", steps)
	out, _ := must(t, "rubric", "--spent", "--journal", "faulty-kept")
	if ok, _ := regexp.MatchString(`^faulty-kept: \d+ replies of the judge, \d+ tokens to it and \d+ from it; [1-9]\d* prompts? without an answer of the endpoint\n$`, out); !ok {
		t.Errorf("spent: %s", out)
	}
}

// metric is a metric of a run, step by step; NaN where it has none.
func metric(t *testing.T, run, name string) (list []float64) {
	t.Helper()
	for line := range strings.Lines(fileText(filepath.Join(run, "metrics.jsonl"))) {
		row := map[string]any{}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		x, ok := row[name].(float64)
		if !ok {
			x = math.NaN()
		}
		list = append(list, x)
	}
	return list
}
