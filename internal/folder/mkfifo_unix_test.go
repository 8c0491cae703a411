//go:build unix

package folder

import (
	"syscall"
	"testing"
)

// mkfifo makes a FIFO, where the system has them.
func mkfifo(t *testing.T, path string) bool {
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		t.Logf("no FIFO: %v", err)
		return false
	}
	return true
}
