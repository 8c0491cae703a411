//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// leftwards is an environment of two turns that wants to read "left". The label of an episode is
// its seed. A row with Break in it breaks, and one with Wait in it waits for ever.
const leftwards = `while read -r line; do
  id=${line#*'"id":'}; id=${id%%[!0-9]*}
  case $line in
  *'"op":"hello"'*) echo '{"name":"leftwards","version":1,"episodes":8}' ;;
  *'"op":"reset"'*)
    seed=${line#*'"seed":'}; seed=${seed%%[!0-9]*}
    eval "n_$id=0 seed_$id=$seed bad_$id=0"
    case $line in *Break*) eval "bad_$id=1" ;; *Wait*) sleep 600 ;; esac
    echo '{"id":'$id',"append":[]}' ;;
  *'"op":"step"'*)
    eval "n_$id=\$((n_$id+1)); n=\$n_$id seed=\$seed_$id bad=\$bad_$id"
    valid=false reward=0
    case $line in *'"turn":"left"'*) valid=true reward=1 ;; esac
    if [ $bad = 1 ]; then echo '{"id":'$id',"reward":"much"}'
    elif [ $n -gt 1 ]; then echo '{"id":'$id',"reward":'$reward',"valid":'$valid',"done":true,"label":"'$seed'"}'
    else echo '{"id":'$id',"append":[{"role":"user","content":"Again."}],"valid":'$valid'}'
    fi ;;
  esac
done
`

// recorded is a row of leftwards with the teacher's episode.
func recorded(content, then string) string {
	return fmt.Sprintf(`{"content":[{"role":"user","content":%q}],"teacher_response":[{"role":"assistant","content":"left"},{"role":"user","content":%q},{"role":"assistant","content":"left"}],"env":{"kept": 1}}`+"\n", content, then)
}

// acting are two students, and files for --env and --data.
func acting(t *testing.T, rows ...string) (f *fixture, dir, command, data string) {
	t.Helper()
	f, dir = ready(t), t.TempDir()
	data, script := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "env.sh")
	for name, text := range map[string]string{data: strings.Join(rows, ""), script: leftwards} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f, dir, "sh " + script, data
}

// actedLine is a line of gad eval --env --output.
type actedLine struct {
	Model       string
	Temperature *float64
	Row, Sample int
	Content     []struct{ Role, Content string }
	Env         json.RawMessage
	Turns       []struct {
		Role, Text string
		IDs        []int32
		Reward     *float64
		Valid      *bool
	}
	Reward          float64
	Written         int `json:"turns_written"`
	Invalid, Tokens int
	Label, Fault    string
	Cut, Success    bool
}

// actedFigures are the figures of one who plays, of the summary.
type actedFigures struct {
	Model                          string
	Temperature                    *float64
	Rows, Episodes, Faults         int
	Success, Reward, Turns, Tokens float64
	Invalid                        float64     `json:"invalid_frac"`
	Cut                            float64     `json:"cut_frac"`
	SuccessCI                      *[2]float64 `json:"success_ci95"`
	TokensCI                       *[2]float64 `json:"tokens_ci95"`
	Labels                         map[string]int
}

// The figures are those of the episodes in --output: of each student at each temperature, and of
// the teacher, whose recorded turns are played. Every one meets the worlds of the rows. A row that
// the environment breaks counts nothing, and a recorded episode of another world none either.
func TestEvalActing(t *testing.T) {
	var rows []string
	for i := range 8 {
		rows = append(rows, recorded(fmt.Sprintf("Go %d", i), "Again."))
	}
	rows[2] = recorded("Break", "Again.")
	rows[5] = recorded("Go 5", "Elsewhere.")
	rows[6] = `{"content":[{"role":"user","content":"Alone"}]}` + "\n"
	f, dir, command, data := acting(t, rows...)
	sft, student := f.path("sft", "global_step_60", "actor"), f.path("student")
	play := func(name string, more ...string) (string, map[string][]actedLine) {
		t.Helper()
		out := filepath.Join(dir, name)
		printed, _ := must(t, append([]string{"eval", "--env", command, "--data", data, "--model",
			student, "--model", sft, "--temperature", "1", "--greedy", "--n", "3",
			"--max-response-length", "4", "--json", "--output", out}, more...)...)
		by := map[string][]actedLine{}
		for _, x := range objects[actedLine](t, readFile(t, out)) {
			key := x.Model
			if x.Temperature != nil {
				key += fmt.Sprint(" ", *x.Temperature)
			}
			by[key] = append(by[key], x)
		}
		return printed, by
	}
	printed, by := play("a.jsonl")
	var all struct {
		Models      []actedFigures
		Teacher     actedFigures
		Other       int `json:"teacher_other"`
		Differences []struct {
			Model, Minus string
			Temperature  float64
			Tokens       struct {
				Value float64
				CI95  []float64
			}
		}
	}
	if err := json.Unmarshal([]byte(printed), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Models) != 4 || len(all.Differences) != 2 || all.Other != 1 || len(by) != 5 {
		t.Fatalf("%d lists of episodes, %s", len(by), printed)
	}
	worlds := by["teacher"][0].Label
	for _, m := range append(all.Models, all.Teacher) {
		key, n, want := m.Model, 1, 8
		if m.Temperature != nil {
			key += fmt.Sprint(" ", *m.Temperature)
			if *m.Temperature > 0 {
				n = 3
			}
		} else {
			want = 6 // not the one that is of another world, and not that without a teacher
		}
		list := by[key]
		if len(list) != want*n || m.Episodes != want*n || m.Faults != n || m.Rows != want-1 {
			t.Errorf("%s: %d episodes: %+v", key, len(list), m)
			continue
		}
		var turns, invalid, tokens, cut, reward, success float64
		labels := map[string]int{}
		for _, x := range list {
			if x.Fault != "" {
				if x.Row != 2 || !strings.Contains(x.Fault, "reward") {
					t.Errorf("%s: row %d: %s", key, x.Row, x.Fault)
				}
				continue
			}
			labels[x.Label]++
			turns, invalid, tokens, reward =
				turns+float64(x.Written), invalid+float64(x.Invalid), tokens+float64(x.Tokens),
				reward+x.Reward
			if x.Cut {
				cut++
			}
			if x.Success != (x.Reward >= 1) {
				t.Errorf("%s: row %d: success %v with reward %g", key, x.Row, x.Success, x.Reward)
			} else if x.Success {
				success++
			}
			if x.Written != 2 || x.Turns[0].Role != "assistant" || x.Turns[0].Reward == nil ||
				x.Turns[1].Text != "Again." || x.Turns[1].Reward != nil || len(x.Content) != 1 {
				t.Errorf("%s: row %d: %+v", key, x.Row, x)
			}
		}
		k := float64(len(list) - n)
		for what, pair := range map[string][2]float64{"turns": {m.Turns, turns / k},
			"tokens": {m.Tokens, tokens / k}, "reward": {m.Reward, reward / k},
			"success": {m.Success, success / k}, "cut": {m.Cut, cut / k},
			"invalid": {m.Invalid, invalid / turns}} {
			if math.Abs(pair[0]-pair[1]) > 1e-12 {
				t.Errorf("%s: %s is %g, of the episodes %g", key, what, pair[0], pair[1])
			}
		}
		if !maps.Equal(labels, m.Labels) {
			t.Errorf("%s: labels %v, of the episodes %v", key, m.Labels, labels)
		}
		if labels[worlds] != n || m.Temperature != nil && len(labels) != 7 {
			t.Errorf("%s: plays other worlds: %v", key, labels)
		}
		if m.SuccessCI == nil || m.SuccessCI[0] > m.Success || m.SuccessCI[1] < m.Success {
			t.Errorf("%s: success %g in %v", key, m.Success, m.SuccessCI)
		}
	}
	if m := all.Teacher; m.Success != 1 || m.Invalid != 0 || m.Turns != 2 || m.Tokens < 4 {
		t.Errorf("teacher %+v", m)
	}
	if d := all.Differences[1]; d.Model != sft || d.Minus != student || d.Temperature != 1 ||
		math.Abs(d.Tokens.Value-(all.Models[3].Tokens-all.Models[1].Tokens)) > 1e-12 {
		t.Errorf("difference %+v", d)
	}
	if x := by[sft+" 1"]; slices.Equal(x[0].Turns[0].IDs, x[1].Turns[0].IDs) &&
		slices.Equal(x[0].Turns[0].IDs, x[2].Turns[0].IDs) &&
		slices.Equal(x[0].Turns[2].IDs, x[1].Turns[2].IDs) {
		t.Errorf("the samples of a row are alike: %+v", x[:3])
	}
	if string(by[sft+" 0"][0].Env) != `{"kept":1}` {
		t.Errorf("env is %s", by[sft+" 0"][0].Env)
	}

	// The same episodes, whoever replies first; other worlds of another seed.
	again, _ := play("b.jsonl", "--env-workers", "3")
	ids := regexp.MustCompile(`episode [0-9]+, turn`) // of the protocol, in what a fault says
	read := func(name string) string {
		return ids.ReplaceAllString(readFile(t, filepath.Join(dir, name)), "")
	}
	if again != printed || read("a.jsonl") != read("b.jsonl") {
		t.Error("three processes give other episodes than one")
	}
	if _, other := play("c.jsonl", "--seed", "2"); other["teacher"][0].Label == worlds {
		t.Error("another seed has the same worlds")
	}
}

// A table for people; one turn alone is a cut episode; a lower bar of success.
func TestEvalActingTable(t *testing.T) {
	f, _, command, data := acting(t, recorded("Go 1", "Again."), recorded("Go 2", "Again."))
	args := []string{"eval", "--env", command, "--data", data, "--model",
		f.path("sft", "global_step_60", "actor"), "--max-response-length", "4"}
	out, _ := must(t, args...)
	for _, text := range []string{
		"2 rows in leftwards; success is a reward of 1 or more; 95 % intervals in brackets\nA  ",
		"actor, greedy\n", "\n                      A                           teacher\nsuccess  ",
		"  1.000 [0.342, 1.000]\nreward  ",
		"\nepisodes              2                           2\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("lacks %q:\n%s", text, out)
		}
	}
	out, _ = must(t, append(args, "--max-turns", "1", "--success", "-1", "--json")...)
	var all struct{ Models []actedFigures }
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Models) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if m := all.Models[0]; m.Turns != 1 || m.Cut != 1 || m.Success != 1 || len(m.Labels) != 0 {
		t.Errorf("one turn: %+v", m)
	}
}

// An environment that breaks too much, one that is none, and rows without any teacher.
func TestEvalActingBroken(t *testing.T) {
	f, dir, command, data := acting(t, recorded("Break", "Again."), recorded("Go", "Again."))
	args := []string{"eval", "--data", data, "--model", f.path("student"),
		"--max-response-length", "4"}
	out := filepath.Join(dir, "out.jsonl")
	code, _, said := gad(append(args, "--env", command, "--output", out)...)
	if code != exitFailed || !strings.Contains(said,
		": 1 of 2 episodes are broken, more than the 0.2 that may be; the first: ") {
		t.Errorf("exit status %d: %s", code, said)
	}
	if list := objects[actedLine](t, readFile(t, out)); len(list) != 2 {
		t.Errorf("%d episodes are kept, want 2", len(list))
	}
	none := filepath.Join(dir, "none.jsonl")
	code, _, said = gad(append(args, "--env", "false", "--output", none)...)
	if code != exitUsage || !strings.Contains(said, "exit status 1 before its hello") {
		t.Errorf("exit status %d: %s", code, said)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("an environment that is none has written an output")
	}
	alone := filepath.Join(dir, "alone.jsonl")
	if err := os.WriteFile(alone, []byte(`{"content":[{"role":"user","content":"Go"}]}`+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	text, _ := must(t, "eval", "--data", alone, "--model", f.path("student"), "--env", command,
		"--max-response-length", "4")
	if strings.Contains(text, "teacher") || !strings.Contains(text, "1 row in leftwards") {
		t.Errorf("without a teacher:\n%s", text)
	}
}

// gad generate --env prints an episode from a row, or from the environment's own beginning.
func TestGenerateActing(t *testing.T) {
	f, dir, command, data := acting(t, recorded("Break", "Again."), recorded("Go there", "Again."))
	args := []string{"generate", "--env", command, "--model",
		f.path("sft", "global_step_60", "actor"), "--max-new-tokens", "4"}
	row := append(slices.Clone(args), "--data", data)
	out, _ := must(t, append(row, "--row", "1")...)
	if !strings.HasPrefix(out, "user       Go there\nassistant  ") ||
		strings.Count(out, "[invalid]\n") != 2 ||
		!strings.Contains(out, "[invalid]\nuser       Again.\nassistant  ") ||
		!strings.Contains(out, "\nreward 0, 2 turns, ") ||
		!strings.Contains(out, " tokens, 2 invalid, label ") {
		t.Errorf("prints\n%s", out)
	}
	same, _ := must(t, append(row, "--row", "1")...)
	if same != out {
		t.Errorf("prints\n%sthen\n%s", out, same)
	}
	out, _ = must(t, append(row, "--row", "1", "--json", "-n", "2")...)
	list := objects[actedLine](t, out)
	if len(list) != 2 || list[1].Sample != 1 || list[0].Label != list[1].Label ||
		len(list[0].Turns) != 3 || len(list[0].Turns[0].IDs) == 0 || list[0].Row != 1 {
		t.Errorf("prints %s", out)
	}
	code, out, said := gad(append(row, "--row", "0")...)
	if code != exitFailed || !strings.Contains(out, ", broken\n") ||
		strings.Contains(out, "invalid") ||
		!strings.Contains(said, "gad: generate: 1 of 1 episode broken: env: ") {
		t.Errorf("exit status %d: %s%s", code, out, said)
	}
	// leftwards says nothing by itself: no episode can begin so
	code, _, said = gad(args...)
	if code != exitInput || !strings.Contains(said, "the first context has no message") {
		t.Errorf("exit status %d: %s", code, said)
	}
	own := filepath.Join(dir, "own.sh")
	if err := os.WriteFile(own, []byte(strings.Replace(leftwards, `"append":[]`, `"append":[{"role":"user","content":"Where to?"}]`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	args[2] = "sh " + own
	if out, _ = must(t, args...); !strings.HasPrefix(out, "user       Where to?\nassistant  ") {
		t.Errorf("prints\n%s", out)
	}
}

// Ctrl-C keeps the episodes that are complete.
func TestInterruptedActing(t *testing.T) {
	t.Parallel()
	path := built(t)
	var rows []string
	for i := range 300 { // more than are played together
		rows = append(rows, recorded(fmt.Sprintf("Go %d", i), "Again."))
	}
	f, dir, command, data := acting(t, append(rows, recorded("Wait", "Again."))...)
	out, waiting := filepath.Join(dir, "out.jsonl"), filepath.Join(dir, "waiting")
	script := strings.Replace(leftwards, "sleep 600", "touch "+waiting+"; sleep 600", 1)
	if err := os.WriteFile(strings.TrimPrefix(command, "sh "), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, path, "eval", "--env", command, "--data", data, "--model", f.path("student"),
		"--max-response-length", "4", "--output", out, "--env-workers", "2")
	wait(t, "the episode that waits", func() bool {
		_, err := os.Stat(waiting)
		return err == nil
	})
	p.Process.Signal(syscall.SIGINT)
	if code := p.end(t, patience); code != exitStopped ||
		!strings.Contains(p.said.String(), "eval: stopped: 256 episodes are in "+out) {
		t.Errorf("exit status %d: %s", code, p.said.String())
	}
	if n := lines(out); n != 256 {
		t.Errorf("%d episodes are kept, want 256", n)
	}
}
