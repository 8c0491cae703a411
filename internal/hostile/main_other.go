//go:build !linux

package hostile

// inMemory returns "": a folder in memory is known on Linux only.
func inMemory() string { return "" }
