package checkpoint

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// A real disk that fills up: a tmpfs of 256 KiB, where this user may mount one.
func TestRealDiskFull(t *testing.T) {
	disk, _ := vfstest.Tmpfs(t, "row 4: real full disk", "256k")
	run := filepath.Join(disk, "run")
	commitSteps(t, vfs.OS, run, 1)
	big := func(d *Dir) error { return d.WriteFile("model", make([]byte, 1<<20)) }
	if err := CheckSpace(vfs.OS, filepath.Join(run, "new"), 1<<20); !errors.Is(err, ErrSpace) {
		t.Errorf("CheckSpace: %v", err)
	}
	err := Commit(vfs.OS, run, 2, big)
	if !errors.Is(err, ErrSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Commit: %v", err)
	}
	for _, part := range []string{stepDir(run, 2), "bytes needed", " free:"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	step, dir, warnings, lerr := Latest(vfs.OS, run)
	if lerr != nil || step != 1 || len(warnings) != 0 {
		t.Fatalf("Latest: %d %v %v", step, warnings, lerr)
	}
	if err := holds(vfs.OS, dir, content(1)); err != nil {
		t.Error(err)
	}
	commitSteps(t, vfs.OS, run, 2) // what the failed one took is free again
	t.Logf("row 4: real full disk: tmpfs of 256 KiB: the checkpoint before intact; message: %v",
		strings.ReplaceAll(err.Error(), disk, "DISK"))
}
