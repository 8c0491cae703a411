package vfstest

import (
	"syscall"
	"testing"
)

// Tmpfs mounts a file system of the given size for a test and returns a function that resizes it.
// Without the right to mount it skips the test, and says that what is not tested.
func Tmpfs(t testing.TB, what, size string) (disk string, resize func(size string)) {
	t.Helper()
	disk = t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("%s: NOT TESTED: no mount here: %v", what, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk, func(size string) {
		t.Helper()
		if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT,
			"size="+size); err != nil {
			t.Fatal(err)
		}
	}
}
