//go:build !linux

package cpu

// largePages asks Linux alone.
func largePages[T float32 | uint32]([]T) {}
