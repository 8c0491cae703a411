package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/checkpoint"
	"gad/trainer"
)

// A full disk is no mistake in a file, whatever command meets it: exit status 1, and the way
// out in the line.
func TestFullDiskOfAnyCommand(t *testing.T) {
	full := fmt.Errorf("data: a.arrow: %w", syscall.ENOSPC)
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{full, exitFailed, "data: a.arrow: no space left on device: free some space and run the same command again"},
		{usage("x: %w", full), exitFailed, "x: data: a.arrow: no space left on device: free some space and run the same command again"},
		{fmt.Errorf("b: %w", syscall.EDQUOT), exitFailed, "b: disk quota exceeded: free some space and run the same command again"},
		{fmt.Errorf("%w: %w", checkpoint.ErrSpace, full), exitFailed, checkpoint.ErrSpace.Error() + ": " + full.Error()},
		{errors.Join(trainer.ErrInterrupted, full), exitInterrupted, trainer.ErrInterrupted.Error() + "\n" + full.Error()},
		{errors.New("a.arrow: torn"), exitInput, "a.arrow: torn"},
	} {
		if err := noSpace(c.err); status(err) != c.code || err.Error() != c.want {
			t.Errorf("%v: exit status %d, says %q, want %d, %q", c.err, status(err), err, c.code, c.want)
		}
	}
	f, disk := ready(t), t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("a real full disk: NOT TESTED: no mount here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	for _, line := range []string{
		"data split --data " + f.path("train.arrow") + " --fraction 0.5 --first " + disk + "/a.arrow --second " + disk + "/b.arrow",
		"report " + f.path("warmup") + " --output " + disk + "/r.html",
		"task make two-forms --rows 400 --output " + disk + "/task",
	} {
		code, out, said := gad(strings.Fields(line)...)
		if code != exitFailed || out != "" || !strings.HasSuffix(said, "no space left on device: free some space and run the same command again\n") {
			t.Errorf("%s: exit status %d, prints %q, %s", line, code, out, strings.ReplaceAll(said, filepath.Dir(disk), ""))
		}
	}
}
