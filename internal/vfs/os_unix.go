//go:build unix

package vfs

import (
	"cmp"
	"os"
)

// syncDir syncs the names in a folder.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return cmp.Or(d.Sync(), d.Close())
}
