//go:build !linux

package cpu

import "errors"

// allowTiles returns an error: AMX's tiles are used on Linux only.
func allowTiles() error { return errors.New("it is for Linux only") }
