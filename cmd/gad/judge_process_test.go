//go:build unix

package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/apps/judge/judgetest"
)

// A judge that is stopped, or killed, is not asked again what it has said, and the
// figures in the end are those of a command that was not interrupted.
func TestInterruptedJudge(t *testing.T) {
	path := built(t)
	t.Chdir(t.TempDir())
	const n = 30
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"row":%d,"content":"question %d","teacher_response":"%s","response":"answer %d"}`+"\n", i, i, strings.Repeat("t", 3+i%7), i)
	}
	put(t, "a.jsonl", b.String())
	server := judgetest.Slow(t, 20*time.Millisecond)
	args := func(journal string) []string {
		return []string{"eval", "--answers", "a.jsonl", "--judge", server.URL, "--judge-model", "m",
			"--judge-concurrency", "4", "--judge-journal", journal, "--json"}
	}
	whole, _ := must(t, args("whole.jsonl")...)
	all := len(server.Calls())
	if all != 4*n {
		t.Fatalf("%d calls", all)
	}
	for try, signal := range []os.Signal{syscall.SIGINT, os.Kill} {
		from := lines("stopped.jsonl")
		code, said := stopped(t, "some judgments",
			func() bool { return lines("stopped.jsonl") > from+15 }, signal, path,
			args("stopped.jsonl")...)
		if try == 0 && (code != exitInterrupted ||
			!strings.HasSuffix(said,
				" judgments in stopped.jsonl: the same command asks only for the others\n") ||
			strings.Count(said, "gad: ") != 1) {
			t.Fatalf("exit status %d\n%s", code, said)
		}
	}
	kept := lines("stopped.jsonl")
	if kept < 30 || kept >= all {
		t.Fatalf("%d judgments kept of %d", kept, all)
	}
	before := len(server.Calls())
	again, _ := must(t, args("stopped.jsonl")...)
	got, want := judgetest.ReadOutput(t, again).Judge, judgetest.ReadOutput(t, whole).Judge
	if asked := len(server.Calls()) - before; asked != got.Tally.Asked ||
		got.Tally.Asked+got.Tally.Kept != all || got.Tally.Kept < kept-1 {
		t.Errorf("%d asked, %+v, %d were kept", asked, got.Tally, kept)
	}
	if a, b := got.Students[0], want.Students[0]; !reflect.DeepEqual(a, b) || a.Score == nil ||
		a.ScoreCI95 == nil || a.LCWin == nil || a.Swap == nil {
		t.Errorf("%+v after interruptions, %+v without", a, b)
	}
	// At most what was in the air was asked twice: four requests at each end.
	if twice := len(server.Calls()) - 2*all; twice > 8 {
		t.Errorf("%d requests were made again", twice)
	}
}

// A judge that is stopped while students are evaluated: before their answers the same
// command continues, after them --answers does.
func TestInterruptedEvalJudge(t *testing.T) {
	path, f := built(t), ready(t)
	t.Chdir(t.TempDir())
	server := judgetest.Slow(t, 50*time.Millisecond)
	about := []string{"--judge", server.URL, "--judge-model", "m", "--judge-concurrency", "1"}
	eval := append([]string{"eval", "--model", f.path("sft", "global_step_60", "actor"), "--data",
		f.path("test.jsonl"), "--max-response-length", "14", "--disc-steps", "0", "--output",
		"rows.jsonl"}, about...)
	for _, c := range []struct {
		after, code   int
		stopping, end string
	}{
		{2, exitInterrupted, "  stopping; what the judge has said is kept in judgments.jsonl; a second Ctrl-C stops at once\n", " judgments in judgments.jsonl: the same command asks only for the others\n"},
		{14, exitStopped, "  stopping; complete answers are written to rows.jsonl; a second Ctrl-C stops at once, without that\n", " judgments in judgments.jsonl: give --answers rows.jsonl instead of --model and --data to continue\n"},
	} {
		code, said := stopped(t, "some judgments",
			func() bool { return lines("judgments.jsonl") > c.after }, syscall.SIGINT, path, eval...)
		if code != c.code || !strings.HasSuffix(said, c.end) ||
			!strings.Contains(said, c.stopping) || strings.Count(said, "stopping; ") != 1 ||
			strings.Count(said, "gad: ") != 1 {
			t.Fatalf("exit status %d, want %d\n%s", code, c.code, said)
		}
	}
	printed, _ := must(t, append([]string{"eval", "--answers", "rows.jsonl", "--json"},
		about...)...)
	if j := judgetest.ReadOutput(t, printed).Judge; j.Students[0].Scored != 10 || j.Tally.Kept < 14 ||
		j.Tally.Asked == 0 || len(server.Calls()) > j.Tally.Kept+j.Tally.Asked+2 {
		t.Errorf("%d calls, %+v", len(server.Calls()), j.Tally)
	}
}
