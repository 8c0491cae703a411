package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs/vfstest"
)

// A disk that fills up under gad generate: one line with the bytes needed and free, and
// with room again the same command makes the bytes of one that had room.
func TestGenerateDiskFull(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	disk, resize := vfstest.Tmpfs(t, "gad generate on a full disk", "64k")
	rows := filepath.Join(dir, "rows.jsonl")
	put(t, rows, strings.Repeat(`{"content":"Add 1+2","teacher_response":"it is 3"}`+"\n", 400))
	generate := func(out string) []string {
		return []string{"generate", "--model", f.path("student"), "--data", rows, "--output", out,
			"--max-new-tokens", "8", "--temperature", "1"}
	}
	out := filepath.Join(disk, "answers.jsonl")
	code, printed, said := gad(generate(out)...)
	last := lastLine(said)
	if code != exitFailed || printed != "" || strings.Count("\n"+said, "\ngad: ") != 1 {
		t.Fatalf("exit status %d, prints %q\n%s", code, printed, said)
	}
	for _, text := range []string{"gad: checkpoint: " + out + ": not enough disk space: more than ",
		" bytes needed, ", " free: free some space and run the same command again: generate: ",
		" of 400 answers are kept: ", "no space left on device"} {
		if !strings.Contains(last, text) {
			t.Errorf("the last line does not say %q:\n%s", text, said)
		}
	}
	t.Log(strings.ReplaceAll(last, disk, "DISK"))
	resize("4m")
	_, said = must(t, generate(out)...)
	if !strings.Contains(said, "resuming, ") {
		t.Errorf("does not resume: %s", said)
	}
	must(t, generate(filepath.Join(dir, "room.jsonl"))...)
	if readFile(t, out) != readFile(t, filepath.Join(dir, "room.jsonl")) {
		t.Error("other bytes than where there was room")
	}
}
