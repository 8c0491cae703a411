//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/apps/play/playtest"
)

// The flags of gad eval --env and of gad generate --env are those of the episodes that are played.
func TestActing(t *testing.T) {
	f, out := ready(t), filepath.Join(t.TempDir(), "out.jsonl")
	command, data := playtest.Files(t, playtest.Leftwards, playtest.Recorded("Go 1", "Again."),
		playtest.Recorded("Go 2", "Again."))
	student := f.path("sft", "global_step_60", "actor")
	printed, _ := must(t, "eval", "--env", command, "--env-workers", "2", "--env-timeout", "60",
		"--data", data, "--model", student, "--temperature", "1", "--greedy", "--n", "3",
		"--max-response-length", "4", "--max-turns", "1", "--success", "-1", "--seed", "2",
		"--output", out)
	for _, text := range []string{"2 rows in leftwards; success is a reward of -1 or more; ",
		"\nepisodes              2                           6 ", "teacher\n"} {
		if !strings.Contains(printed, text) {
			t.Errorf("lacks %q:\n%s", text, printed)
		}
	}
	if n := lines(out); n != 2*(3+1+1) {
		t.Errorf("%d episodes in the output", n)
	}
	printed, _ = must(t, "generate", "--env", command, "--model", student, "--data", data, "--row",
		"1", "--max-new-tokens", "4", "--max-turns", "1", "-n", "2", "--json")
	if strings.Count(printed, `"turns_written":1`) != 2 || !strings.Contains(printed, "Go 2") {
		t.Errorf("prints %s", printed)
	}
}

// Ctrl-C keeps the episodes that are complete.
func TestInterruptedActing(t *testing.T) {
	t.Parallel()
	path := built(t)
	var rows []string
	for i := range 300 { // more than are played together
		rows = append(rows, playtest.Recorded(fmt.Sprintf("Go %d", i), "Again."))
	}
	f, dir := ready(t), t.TempDir()
	out, waiting := filepath.Join(dir, "out.jsonl"), filepath.Join(dir, "waiting")
	command, data := playtest.Files(t,
		strings.Replace(playtest.Leftwards, "sleep 600", "touch "+waiting+"; sleep 600", 1),
		append(rows, playtest.Recorded("Wait", "Again."))...)
	code, said := stopped(t, "the episode that waits", func() bool {
		_, err := os.Stat(waiting)
		return err == nil
	}, syscall.SIGINT, path, "eval", "--env", command, "--data", data, "--model",
		f.path("student"), "--max-response-length", "4", "--output", out, "--env-workers", "2")
	if code != exitStopped || !strings.Contains(said, "eval: stopped: 256 episodes are in "+out) {
		t.Errorf("exit status %d: %s", code, said)
	}
	if n := lines(out); n != 256 {
		t.Errorf("%d episodes are kept, want 256", n)
	}
}
