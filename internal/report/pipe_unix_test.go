//go:build unix

package report

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"gad/internal/vfs"
)

// A pipe in the place of a run's metrics or log is refused: who opens one waits for ever.
func TestPipes(t *testing.T) {
	for _, name := range []string{"metrics.jsonl", "log.jsonl"} {
		run := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(run, name), 0o644); err != nil {
			t.Fatal(err)
		}
		err := eachLine(vfs.OS, filepath.Join(run, name), func([]byte, int64) error { return nil })
		if !errors.Is(err, vfs.ErrNotRegular) {
			t.Errorf("%s: %v", name, err)
		}
		if err := cutTo(vfs.OS, filepath.Join(run, name), 0); !errors.Is(err, vfs.ErrNotRegular) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
