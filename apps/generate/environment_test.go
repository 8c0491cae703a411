package generate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"gad/apps/play"
	"gad/apps/play/playtest"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/trainer/modeltest"
)

// gad generate --env prints an episode from a row, or from the environment's own beginning.
func TestGenerateActing(t *testing.T) {
	command, path := playtest.Files(t, playtest.Leftwards, playtest.Recorded("Break", "Again."),
		playtest.Recorded("Go there", "Again."))
	cols, student := data.DefaultColumns(), modeltest.Student(t)
	act := func(command, path string, row, n int, json bool) (out, said string, err error) {
		a := Acting{Options: play.Options{Command: command, Workers: 1, Timeout: time.Minute,
			Turns: 20, Turn: 4}, Rows: session.Rows{Command: "generate", Format: data.FormatAuto,
			Content: cols.Content, Answer: cols.Teacher, Turns: data.TurnsAll, All: true},
			Row: row, JSON: json}
		if path != "" {
			a.Rows.Paths = []string{path}
		}
		return sessiontest.Run(func(s *session.Session) error {
			return Act(s, Options{Source: session.Source{Path: student,
				Device: device.Options{Name: "cpu", Threads: 1}}, N: n, MaxNew: 4, Seed: 1,
				Sampling: compute.Sampling{TopP: 1}}, a)
		})
	}
	out, said, err := act(command, path, 1, 1, false)
	if err != nil {
		t.Fatal(said)
	}
	if !strings.HasPrefix(out, "user       Go there\nassistant  ") ||
		strings.Count(out, "[invalid]\n") != 2 ||
		!strings.Contains(out, "[invalid]\nuser       Again.\nassistant  ") ||
		!strings.Contains(out, "\nreward 0, 2 turns, ") ||
		!strings.Contains(out, " tokens, 2 invalid, label ") {
		t.Errorf("prints\n%s", out)
	}
	if same, _, _ := act(command, path, 1, 1, false); same != out {
		t.Errorf("prints\n%sthen\n%s", out, same)
	}
	out, _, _ = act(command, path, 1, 2, true)
	var list []play.Played
	for line := range strings.Lines(out) {
		var x play.Played
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, x)
	}
	if len(list) != 2 || list[1].Sample != 1 || list[0].Label != list[1].Label ||
		len(list[0].Turns) != 3 || len(list[0].Turns[0].IDs) == 0 || list[0].Row != 1 {
		t.Errorf("prints %s", out)
	}
	out, said, err = act(command, path, 0, 1, false)
	if !errors.Is(err, fault.ErrRunning) || !strings.Contains(out, ", broken\n") ||
		strings.Contains(out, "invalid") ||
		!strings.Contains(said, "gad: generate: 1 of 1 episode broken: env: ") {
		t.Errorf("%v: %s%s", err, out, said)
	}
	// leftwards says nothing by itself: no episode can begin so
	_, said, err = act(command, "", 0, 1, false)
	if err == nil || errors.Is(err, fault.ErrRunning) || !strings.Contains(said, "the first context has no message") {
		t.Errorf("%v: %s", err, said)
	}
	own, _ := playtest.Files(t, strings.Replace(playtest.Leftwards, `"append":[]`, `"append":[{"role":"user","content":"Where to?"}]`, 1))
	out, said, err = act(own, "", 0, 1, false)
	if err != nil || !strings.HasPrefix(out, "user       Where to?\nassistant  ") {
		t.Errorf("prints\n%s%s", out, said)
	}
}
