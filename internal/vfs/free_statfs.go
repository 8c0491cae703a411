//go:build linux || darwin || freebsd

package vfs

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// free returns the bytes that an ordinary user can write to the file system of path.
func free(path string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(path, &s)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
	// The field types differ between the systems; FreeBSD's count of blocks is
	// negative when only root's reserve is left.
	blocks, size := int64(s.Bavail), int64(s.Bsize)
	switch {
	case blocks <= 0 || size <= 0:
		return 0, nil
	case blocks > math.MaxInt64/size:
		return math.MaxInt64, nil
	}
	return blocks * size, nil
}
