package hostile

import (
	"os"
	"runtime/debug"
	"testing"
)

// Main calls Quick and runs a package's tests: for packages whose tests spend their time on small
// files and small heaps.
func Main(m *testing.M) int {
	Quick()
	return m.Run()
}

// Quick makes the tests of a process cheaper. Their temporary folders are in memory, if the machine
// has a file system there with room and TMPDIR is not set: to create a file on a disk costs more
// than a step of a small model. The garbage collector runs when the heap has grown to five times
// the live bytes.
func Quick() {
	if dir := inMemory(); dir != "" && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", dir)
	}
	debug.SetGCPercent(400)
}
