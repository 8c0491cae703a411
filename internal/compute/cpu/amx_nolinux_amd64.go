//go:build !linux

package cpu

import "errors"

// allowTiles requests permission for AMX's tiles, which only Linux needs.
func allowTiles() error { return errors.New("it is for Linux only") }
