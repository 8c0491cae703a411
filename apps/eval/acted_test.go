package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/apps/play"
	"gad/apps/play/playtest"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/fault"
	"gad/trainer/modeltest"
)

// rowsIn are the rows of a file.
func rowsIn(path string) session.Rows {
	cols := data.DefaultColumns()
	return session.Rows{Command: "eval", Paths: []string{path}, Format: data.FormatAuto,
		Content: cols.Content, Answer: cols.Teacher}
}

// acts is gad eval --env of models in turns of at most 4 tokens.
func acts(command, path string, models ...string) Options {
	rows := rowsIn(path)
	rows.Turns, rows.All = data.TurnsAll, true
	return Options{Models: models, Rows: rows, Temperature: 1, Seed: 1, MaxTokens: 8192,
		Device: device.Options{Name: "cpu", Threads: 1},
		Acting: &Acting{Options: play.Options{Command: command, Workers: 1, Timeout: time.Minute,
			Turns: 20, Turn: 4}, N: 1, Success: 1}}
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

// playedFigures are the figures of one who plays, of the summary.
type playedFigures struct {
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

// actedLines are those of an output.
func actedLines(t *testing.T, path string) (list []actedLine) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var x actedLine
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, x)
	}
	return list
}

// The figures are those of the episodes in --output: of each student at each temperature, and of
// the teacher, whose recorded turns are played. Every one meets the worlds of the rows. A row that
// the environment breaks counts nothing, and a recorded episode of another world none either.
func TestEvalActing(t *testing.T) {
	t.Parallel()
	var rows []string
	for i := range 8 {
		rows = append(rows, playtest.Recorded(fmt.Sprintf("Go %d", i), "Again."))
	}
	rows[2] = playtest.Recorded("Break", "Again.")
	rows[5] = playtest.Recorded("Go 5", "Elsewhere.")
	rows[6] = `{"content":[{"role":"user","content":"Alone"}]}` + "\n"
	command, data := playtest.Files(t, playtest.Leftwards, rows...)
	dir, sft, student := t.TempDir(), modeltest.Student(t), modeltest.Blank(t)
	play := func(name string, more func(o *Options)) (string, map[string][]actedLine) {
		t.Helper()
		o := acts(command, data, student, sft)
		o.Output, o.JSON, o.Acting.Greedy, o.Acting.N = filepath.Join(dir, name), true, true, 3
		more(&o)
		printed, _ := sessiontest.Must(t, func(s *session.Session) error { return Run(s, o) })
		by := map[string][]actedLine{}
		for _, x := range actedLines(t, o.Output) {
			key := x.Model
			if x.Temperature != nil {
				key += fmt.Sprint(" ", *x.Temperature)
			}
			by[key] = append(by[key], x)
		}
		return printed, by
	}
	printed, by := play("a.jsonl", func(*Options) {})
	var all struct {
		Models      []playedFigures
		Teacher     playedFigures
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
	again, _ := play("b.jsonl", func(o *Options) { o.Acting.Workers = 3 })
	ids := regexp.MustCompile(`episode [0-9]+, turn`) // of the protocol, in what a fault says
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return ids.ReplaceAllString(string(raw), "")
	}
	if again != printed || read("a.jsonl") != read("b.jsonl") {
		t.Error("three processes give other episodes than one")
	}
	if _, other := play("c.jsonl", func(o *Options) { o.Seed = 2 }); other["teacher"][0].Label == worlds {
		t.Error("another seed has the same worlds")
	}
}

// A table for people; one turn alone is a cut episode; a lower bar of success.
func TestEvalActingTable(t *testing.T) {
	command, data := playtest.Files(t, playtest.Leftwards, playtest.Recorded("Go 1", "Again."),
		playtest.Recorded("Go 2", "Again."))
	student := modeltest.Student(t)
	o := acts(command, data, student)
	o.Temperature = 0
	out, _ := sessiontest.Must(t, func(s *session.Session) error { return Run(s, o) })
	for _, text := range []string{
		"2 rows in leftwards; success is a reward of 1 or more; 95 % intervals in brackets\nA  ",
		filepath.Base(student) + ", greedy\n", "\n                      A                           teacher\nsuccess  ",
		"  1.000 [0.342, 1.000]\nreward  ",
		"\nepisodes              2                           2\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("lacks %q:\n%s", text, out)
		}
	}
	o.Acting.Turns, o.Acting.Success, o.JSON = 1, -1, true
	out, _ = sessiontest.Must(t, func(s *session.Session) error { return Run(s, o) })
	var all struct{ Models []playedFigures }
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Models) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if m := all.Models[0]; m.Turns != 1 || m.Cut != 1 || m.Success != 1 || len(m.Labels) != 0 {
		t.Errorf("one turn: %+v", m)
	}
}

// An environment that breaks too much, one that is none, and rows without any teacher.
func TestEvalActingBroken(t *testing.T) {
	command, data := playtest.Files(t, playtest.Leftwards, playtest.Recorded("Break", "Again."),
		playtest.Recorded("Go", "Again."))
	dir, student := t.TempDir(), modeltest.Blank(t)
	play := func(command, data, output string) (printed, said string, err error) {
		o := acts(command, data, student)
		o.Temperature, o.Output = 0, output
		return sessiontest.Run(func(s *session.Session) error { return Run(s, o) })
	}
	out := filepath.Join(dir, "out.jsonl")
	_, said, err := play(command, data, out)
	if !errors.Is(err, fault.ErrRunning) || !strings.Contains(said,
		": 1 of 2 episodes are broken, more than the 0.2 that may be; the first: ") {
		t.Errorf("%v: %s", err, said)
	}
	if list := actedLines(t, out); len(list) != 2 {
		t.Errorf("%d episodes are kept, want 2", len(list))
	}
	none := filepath.Join(dir, "none.jsonl")
	_, said, err = play("false", data, none)
	if !errors.Is(err, fault.ErrUsage) || !strings.Contains(said, "exit status 1 before its hello") {
		t.Errorf("%v: %s", err, said)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("an environment that is none has written an output")
	}
	alone := filepath.Join(dir, "alone.jsonl")
	if err := os.WriteFile(alone, []byte(`{"content":[{"role":"user","content":"Go"}]}`+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	text, said, err := play(command, alone, "")
	if err != nil || strings.Contains(text, "teacher") || !strings.Contains(text, "1 row in leftwards") {
		t.Errorf("without a teacher:\n%s%s", text, said)
	}
}
