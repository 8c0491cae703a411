//go:build unix

package report

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/internal/vfs"
)

// A pipe in the place of a file is refused and not opened: that would wait for a writer.
func TestPipesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"metrics.jsonl", "log.jsonl", "samples/step_1.jsonl"} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := vfs.MakeDirs(vfs.OS, filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o644); err != nil {
			t.Skip(err)
		}
	}
	var c Curves
	var l Log
	_, _, err := ReadSamples(vfs.OS, dir, InTraining, 1)
	for what, err := range map[string]error{"metrics.jsonl": c.Read(vfs.OS, dir),
		"log.jsonl": l.Read(vfs.OS, dir), "step_1.jsonl": err} {
		if err == nil || !strings.HasSuffix(err.Error(), what+": not a regular file") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
