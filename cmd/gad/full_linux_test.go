package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/apps/pull/hubtest"
	"gad/checkpoint"
	"gad/internal/vfs/vfstest"
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
		{fmt.Errorf("b: %w", syscall.EDQUOT), exitFailed,
			"b: disk quota exceeded: free some space and run the same command again"},
		{fmt.Errorf("%w: %w", checkpoint.ErrSpace, full), exitFailed,
			checkpoint.ErrSpace.Error() + ": " + full.Error()},
		{errors.Join(trainer.ErrInterrupted, full), exitInterrupted,
			trainer.ErrInterrupted.Error() + "\n" + full.Error()},
		{errors.New("a.arrow: torn"), exitInput, "a.arrow: torn"},
	} {
		if err := explainFullDisk(c.err); status(err) != c.code || err.Error() != c.want {
			t.Errorf("%v: exit status %d, says %q, want %d, %q", c.err, status(err), err, c.code,
				c.want)
		}
	}
	f := ready(t)
	disk, _ := vfstest.Tmpfs(t, "a real full disk", "4k")
	for _, line := range []string{
		"data split --data " + f.path("train.arrow") + " --fraction 0.5 --first " + disk +
			"/a.arrow --second " + disk + "/b.arrow",
		"report " + f.path("warmup") + " --output " + disk + "/r.html",
		"task make two-forms --rows 400 --output " + disk + "/task",
	} {
		code, out, said := gad(strings.Fields(line)...)
		if code != exitFailed || out != "" ||
			!strings.HasSuffix(said,
				"no space left on device: free some space and run the same command again\n") {
			t.Errorf("%s: exit status %d, prints %q, %s", line, code, out,
				strings.ReplaceAll(said, filepath.Dir(disk), ""))
		}
	}
}

// A real disk that is too small for a model: refused before anything comes, or, where the disk
// fills up meanwhile, exit status 1 and one line; with room the same command goes on.
func TestPullFullDisk(t *testing.T) {
	disk, resize := vfstest.Tmpfs(t, "a real full disk", "3m")
	repo := hubtest.Big()
	s, _ := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	cache := filepath.Join(disk, "hub")
	t.Setenv("HF_HUB_CACHE", cache)
	code, out, said := gad("pull", "org/student")
	if code != exitFailed || out != "" ||
		!strings.HasPrefix(said, "gad: pull: "+cache+": needs 4005005 bytes, ") ||
		!strings.HasSuffix(said,
			" are free: free some space, or set HF_HUB_CACHE to a folder on another disk\n") {
		t.Errorf("exit status %d, %s", code, said)
	}
	for _, c := range s.Calls() {
		if c.Kind == "file" || c.Kind == "cdn" {
			t.Errorf("asks for %s", c.File)
		}
	}
	resize("5m")
	s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind == "cdn" && c.File == "model.safetensors" && c.Before == 0 {
			// another program writes too
			if err := os.WriteFile(filepath.Join(disk, "other"), make([]byte, 2_000_000),
				0o644); err != nil {
				t.Error(err)
			}
		}
		return false
	})
	code, _, said = gad("pull", "org/student")
	if code != exitFailed || !strings.HasSuffix(said, "no space left on device\n") ||
		!strings.Contains(said, "free some space and run the same command again") ||
		strings.Count(said, "gad: ") != 1 {
		t.Errorf("exit status %d, %s", code, said)
	}
	if bad := repo.Finals(cache); bad != "" {
		t.Error(bad)
	}
	resize("16m")
	must(t, "pull", "org/student")
	if bad := repo.Finals(cache); bad != "" {
		t.Error(bad)
	}
}
