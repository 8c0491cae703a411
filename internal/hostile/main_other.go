//go:build !linux

package hostile

// inMemory returns "": such a folder is known on Linux alone.
func inMemory() string { return "" }
