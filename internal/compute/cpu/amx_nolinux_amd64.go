//go:build !linux

package cpu

import "errors"

// allowTiles is leave to use AMX's tiles, which is asked of Linux alone.
func allowTiles() error { return errors.New("it is for Linux only") }
