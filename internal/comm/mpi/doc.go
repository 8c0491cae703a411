// Package mpi connects ranks by MPI: by the library of Open MPI 4 and 5, libmpi.so.40, or by the
// standard binary interface of MPI-5.0, libmpi_abi, which MPICH 5 has. The launcher decides which.
// It is called without cgo, and only in builds with the tag mpi: a program that loads libraries is
// linked to the system's C library, which the plain build does not need.
//
// Only messages between two ranks are used, always non-blocking: they are polled until they are
// done or a deadline has passed. Sums are computed in Go, by internal/comm, so that their order
// does not depend on the library.
package mpi
