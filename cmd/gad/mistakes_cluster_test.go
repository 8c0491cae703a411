package main

import (
	"os"
	"testing"
)

// Mistakes with gad bench of several processes.
func TestMistakesOfRanksBench(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		rows []mistake
	}{
		{nil, []mistake{
			{"bench --ranks 3", 2, `bench: --ranks 3: must be 1, 2, 4 or another power of two`},
			{"bench --ranks 2", 2, `bench: --ranks 2: this process was started alone: start it with mpirun -n 2, or by another launcher (doc/ranks.md)`},
		}},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, []mistake{
			{"bench --ranks 4", 2, `bench: --ranks 4: mpirun has started 2: start as many, or leave --ranks out`},
			{"bench", 2, `mpi: this gad was built without MPI: build it with: go build -tags mpi -o gad ./cmd/gad (Linux and macOS)`},
		}},
	} {
		for _, name := range []string{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"} {
			t.Setenv(name, "") // to be as it was afterwards
			os.Unsetenv(name)
		}
		for name, value := range c.env {
			t.Setenv(name, value)
		}
		mistaken(t, nil, c.rows)
	}
}
