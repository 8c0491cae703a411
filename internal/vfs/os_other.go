//go:build !unix

package vfs

import "os"

// syncDir only checks that the folder exists: these systems cannot sync a folder, and journal its
// names themselves.
func syncDir(path string) error {
	_, err := os.ReadDir(path)
	return err
}
