//go:build !unix

package main

import (
	"os"
	"syscall"
)

// stopSignals ask a run to save and end.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
