package hostile

import (
	"os"
	"runtime/debug"
	"testing"
)

// Main runs the tests of a package whose time goes into small files and small heaps: see Quick.
func Main(m *testing.M) int {
	Quick()
	return m.Run()
}

// Quick has the tests of a process make their folders in memory, where the machine has that, with
// room, and where TMPDIR says no other place: to make a file costs a disk more than what a run of
// a small model computes between two. And it has the collector run at four times the heap.
func Quick() {
	if dir := inMemory(); dir != "" && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", dir)
	}
	debug.SetGCPercent(400)
}
