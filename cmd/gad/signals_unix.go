//go:build unix

package main

import (
	"os"
	"syscall"
)

// stopSignals ask a run to save and end. mpirun forwards SIGUSR1 to its ranks at once, and Slurm
// sends it before the end of a job's time (--signal=USR1@120).
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1}
