//go:build !mpi || !(linux || darwin)

package mpi

import (
	"errors"
	"os"
	"time"

	"gad/internal/comm"
)

// Built reports whether Open can succeed.
const Built = false

// Open returns an error: this build has no MPI.
func Open(abi bool, limit time.Duration) (comm.Link, error) {
	return nil, errors.New("mpi: this gad was built without MPI: build it with: go build -tags mpi -o gad ./cmd/gad (Linux and macOS)")
}

// Exit ends the process.
func Exit(code int) { os.Exit(code) }
