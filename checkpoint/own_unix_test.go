//go:build unix

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/internal/vfs"
)

// A run folder that somebody else made does not lead a run's writes out of it, and keeps nobody
// waiting: links where a run writes and pipes are refused before anything is opened.
func TestForeignRunFolder(t *testing.T) {
	for _, name := range fixedNames {
		run, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
		if err := os.Symlink(outside, filepath.Join(run, name)); err != nil {
			t.Fatal(err)
		}
		if l, err := LockRun(run); l != nil || !errors.Is(err, vfs.ErrTarget) ||
			!strings.Contains(err.Error(), name+" is a link") {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(outside)); len(left) > 0 {
			t.Errorf("%s: %v was written", name, left)
		}
	}
	for _, name := range []string{lockName, "metrics.jsonl", trackerName, "notes"} {
		run := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(run, name), 0o644); err != nil {
			t.Fatal(err)
		}
		if l, err := LockRun(run); l != nil || !errors.Is(err, vfs.ErrTarget) ||
			!strings.Contains(err.Error(), name+" is neither a file nor a folder") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Holder(run); (err != nil) != (name == lockName) {
			t.Errorf("holder with a pipe %s: %v", name, err)
		}
		if _, _, _, err := Latest(vfs.OS, run); name == trackerName && err == nil {
			t.Error("a pipe as tracker passes")
		}
	}
	// The user's own: another place for a checkpoint, other files.
	run := t.TempDir()
	for _, name := range []string{"global_step_5", "notes"} {
		if err := os.Symlink(t.TempDir(), filepath.Join(run, name)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := LockRun(run)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}
