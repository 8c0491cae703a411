// Package mpi connects ranks by MPI: by the library of Open MPI 4 and 5, libmpi.so.40,
// or by the standard binary interface of MPI-5.0, libmpi_abi, which MPICH 5 has. The
// launcher decides which. It is called without cgo, and is in builds with the
// tag mpi alone: a program that loads libraries is linked to the system's C library,
// which the plain build does not need.
//
// Of MPI only messages between two ranks are used, and always without blocking: they are
// asked after until they are done or a deadline has passed. Sums are taken in Go, by
// internal/comm, so that their order does not depend on the library.
package mpi
