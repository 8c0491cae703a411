//go:build !unix

package vfs

import "os"

// syncDir only looks whether the folder is there: these systems cannot sync
// one, and journal their names on their own.
func syncDir(path string) error {
	_, err := os.ReadDir(path)
	return err
}
