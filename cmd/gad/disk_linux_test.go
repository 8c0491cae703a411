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
	args := f.stage("sft", run, 12, "trainer.save_freq=1", "trainer.max_ckpt_to_keep=9")
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
	linked(t, "student", "train.arrow", "warmup", "corpus.txt", "rows.jsonl", "train")
	for _, out := range []string{"/proc/gad/out", "rows.jsonl/out"} {
		for _, line := range []string{
			"sft --model student --data train.arrow --steps 1 SMALL --output OUT",
			"train --resume warmup --data train.arrow --steps 1 --output OUT",
			"init --config student/config.json --corpus corpus.txt --output OUT",
			"data convert --data rows.jsonl --output OUT.arrow",
			"data split --data rows.jsonl --first OUT.arrow --second OUT.jsonl",
			"export --run train --output OUT",
			"export --run train --output OUT --dtype float32",
			"demo --dir OUT --fast",
		} {
			if line[0] == 'e' && strings.HasPrefix(out, "/proc") {
				continue // its disk has no room at all, and that is said first
			}
			code, _, said := gad(words(strings.ReplaceAll(line, "OUT", out))...)
			if last := lastLine(said); code != exitUsage || !strings.HasPrefix(last, "gad: ") ||
				!strings.Contains(last, filepath.Dir(out)) ||
				strings.Count("\n"+said, "\ngad: ") != 1 {
				t.Errorf("gad %s to %s: exit status %d: %s", line, out, code, said)
			}
		}
	}
}
