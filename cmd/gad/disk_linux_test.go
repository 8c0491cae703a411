package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs/vfstest"
)

// A real disk that fills up under a real process: exit status 1, one line with path,
// bytes needed and free, the checkpoint before loads, and with room again the same
// command goes on (doc/reliability.md, row 4). The output of a path that cannot be made is a
// mistake, not a fault.
func TestDoctorDiskFull(t *testing.T) {
	path, f := built(t), ready(t)
	disk, resize := vfstest.Tmpfs(t, "row 4: real full disk under a process", "3m")
	run := filepath.Join(disk, "run")
	args := stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output",
		run, "--steps", "12", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=9")
	p := start(t, path, args...)
	p.wants(t, exitFailed)
	last := lastLine(p.said.String())
	for _, text := range []string{"gad: trainer: step ", run, "not enough disk space",
		" bytes needed, ", " free"} {
		if !strings.Contains(last, text) {
			t.Errorf("the last line does not say %q:\n%s", text, p.said.String())
		}
	}
	if strings.Count(p.said.String(), "not enough disk space") != 1 {
		t.Errorf("said more than once:\n%s", p.said.String())
	}
	ends(t, run, "disk full")
	out := examined(t, "disk full", run, exitFailed, "disk full", "verified", "<- would be resumed",
		"problems: the disk has too little room for the next save")
	t.Logf("disk full:\n%s", strings.ReplaceAll(out, disk, "DISK"))
	resize("64m")
	examined(t, "room again", run, exitDone, "disk full", "\nno problems found\n")
	p = start(t, path, args...)
	p.wants(t, exitDone)
	t.Logf("row 4: real full disk under a process: tmpfs of 3 MiB: exit status 1, %s",
		strings.ReplaceAll(strings.TrimPrefix(last, "gad: "), disk, "DISK"))
}

// An output that cannot be made is a mistake in the command line: exit status 2, one
// line, for every command that makes one.
func TestUnwritableOutput(t *testing.T) {
	f := ready(t)
	for _, out := range []string{"/proc/gad/out", f.path("rows.jsonl", "out")} {
		for _, args := range [][]string{
			stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output",
				out, "--steps", "1"),
			{"train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output",
				out, "--steps", "1"},
			{"init", "--config", f.path("config.json"), "--corpus", f.path("corpus.txt"),
				"--output", out},
			{"data", "convert", "--data", f.path("rows.jsonl"), "--output", out + ".arrow"},
			{"data", "split", "--data", f.path("rows.jsonl"), "--first", out + ".arrow", "--second",
				out + ".jsonl"},
			{"export", "--run", f.path("train"), "--output", out},
			{"export", "--run", f.path("train"), "--output", out, "--dtype", "float32"},
			{"demo", "--dir", out, "--fast"},
		} {
			if args[0] == "export" && strings.HasPrefix(out, "/proc") {
				continue // its disk has no room at all, and that is said first
			}
			code, _, said := gad(args...)
			last := lastLine(said)
			if code != exitUsage || !strings.HasPrefix(last, "gad: ") ||
				!strings.Contains(last, filepath.Dir(out)) ||
				strings.Count("\n"+said, "\ngad: ") != 1 {
				t.Errorf("gad %s: exit status %d: %s", strings.Join(args, " "), code, said)
			}
		}
	}
}
