//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// mpich starts gad on several ranks by MPICH's mpirun, whose library has the standard
// binary interface: pip install mpich has both.
func mpich(t *testing.T, ranks int, args ...string) *process {
	t.Helper()
	slow(t)
	launcher, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Skip("NOT TESTED: there is no mpiexec.hydra in PATH: pip install mpich")
	}
	lib := filepath.Join(filepath.Dir(launcher), "..", "lib")
	if _, err := os.Stat(filepath.Join(lib, "libmpi_abi.so.1")); err != nil {
		t.Skipf("NOT TESTED: MPICH without its standard interface: %v: pip install mpich", err)
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", lib)
	return start(t, launcher, slices.Concat([]string{"-n", fmt.Sprint(ranks), path}, args)...)
}

// The same by MPICH, over the standard binary interface.
func TestRanksOverMPICH(t *testing.T) { sameOnRanks(t, mpich) }

// The same by MPICH.
func TestRankFaultsOverMPICH(t *testing.T) { faultsOfRanks(t, mpich) }

// SIGUSR1 to MPICH's mpirun saves the run, and all end with exit status 75.
func TestRankSignalOverMPICH(t *testing.T) { signalsToRanks(t, mpich, 60, 2) }

// MPICH's mpirun without a library that gad knows: each rank says so, and the status is 1.
func TestMistakesOverMPICH(t *testing.T) {
	slow(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PMI_RANK", "0")
	t.Setenv("PMI_SIZE", "2")
	lib := t.TempDir()
	for _, c := range []struct{ library, says string }{
		{"", "gad: mpi: libmpi_abi.so.1 cannot be loaded: libmpi_abi.so.1: cannot open shared object file: No such file or directory: install MPICH 5 or later, or set LD_LIBRARY_PATH\n"},
		{"not a library", "gad: mpi: libmpi_abi.so.1 cannot be loaded: " + lib +
			"/libmpi_abi.so.1: file too short: install MPICH 5 or later, or set LD_LIBRARY_PATH\n"},
	} {
		t.Setenv("LD_LIBRARY_PATH", lib)
		if c.library != "" {
			put(t, filepath.Join(lib, "libmpi_abi.so.1"), c.library)
		}
		p := start(t, path, "bench", "--ranks", "2")
		if code := p.end(t, patience); code != exitFailed || p.said.String() != c.says {
			t.Errorf("exit status %d\n%s\nwant %s", code, p.said.String(), c.says)
		}
	}
}
