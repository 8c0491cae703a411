//go:build !(linux || darwin || freebsd)

package vfs

import (
	"errors"
	"os"
)

// free returns [errors.ErrUnsupported], or the error of a missing path.
func free(path string) (int64, error) {
	if _, err := os.Stat(path); err != nil {
		return 0, err
	}
	return 0, &os.PathError{Op: "free space", Path: path, Err: errors.ErrUnsupported}
}
