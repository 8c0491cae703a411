package main

import (
	"os"
	"slices"
	"testing"
)

// Mistakes with several processes.
func TestMistakesOfRanks(t *testing.T) {
	f, work := linked(t, "warmup", "test.jsonl=rows.jsonl", "student")
	const sft = "sft --model student --data rows.jsonl --output run SET "
	for _, c := range []struct {
		env  map[string]string
		rows []mistake
	}{
		{nil, []mistake{
			{sft + "trainer.shards=3", 2, `settings: trainer.shards is 3: must be a power of two of at most 4096`},
			{sft + "--ranks 3", 2, `sft: --ranks 3: must be 1, 2, 4 or another power of two`},
			{sft + "--ranks 0", 2, `sft: --ranks 0: must be 1, 2, 4 or another power of two`},
			{"plan --model student --ranks 6 SET", 2, `plan: --ranks 6: must be 1, 2, 4 or another power of two`},
			{"plan --model student --ranks 4 SET", 2, `trainer.shards is 1, but there are 4 ranks: each needs as many shards as any other: set trainer.shards=4 or a multiple`},
			{"plan --model student --bandwidth 10 SET", 2, `plan: --bandwidth: one process sends nothing: add --ranks`},
			{"plan --model student --ranks 2 --bandwidth -1 SET trainer.shards=2", 2, `plan: --bandwidth -1: must be a number of Gbit/s above 0`},
			{sft + "--ranks 4", 2, `sft: --ranks 4: this process was started alone: start it with mpirun -n 4, or by another launcher (doc/ranks.md)`},
		}},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, []mistake{
			{sft + "--ranks 4", 2, `sft: --ranks 4: mpirun has started 2: start as many, or leave --ranks out`},
			{sft, 2, `mpi: this gad was built without MPI: build it with: go build -tags mpi -o gad ./cmd/gad (Linux and macOS)`},
		}},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, []mistake{
			{sft + "--ranks 4", 2, `sft: --ranks 4: MPICH's mpirun has started 2: start as many, or leave --ranks out`},
			{sft, 2, `mpi: this gad was built without MPI: build it with: go build -tags mpi -o gad ./cmd/gad (Linux and macOS)`},
		}},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "first", "OMPI_COMM_WORLD_SIZE": "2"}, []mistake{
			{sft, 2, `ranks: OMPI_COMM_WORLD_RANK of mpirun is "first": expected a number of at least 0: correct it, or give --ranks 1`},
		}},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, []mistake{
			{sft, 2, `sft: torchrun has started rank 1 of 4 without MPI, so they connect by TCP: set GAD_RANKS_SECRET to the same random text on all ranks, or GAD_RANKS_SECRET_FILE to a file with it (doc/ranks.md), or give --ranks 1`},
		}},
		{map[string]string{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, []mistake{
			{sft, 2, `sft: srun has started rank 1 of 2 without MPI, so they connect by TCP: set GAD_RANKS_SECRET to the same random text on all ranks, or GAD_RANKS_SECRET_FILE to a file with it (doc/ranks.md), or give --ranks 1`},
		}},
		{map[string]string{"GAD_RANKS_ADDR": "node0:29600"}, []mistake{
			{sft, 2, `sft: GAD_RANKS_ADDR is set, but not RANK and WORLD_SIZE, which say which rank this is: set all three, or give --ranks 1`},
		}},
		{map[string]string{"GAD_RANKS_ADDR": "node0:29600", "JOB_COMPLETION_INDEX": "1"}, []mistake{
			{sft, 2, `sft: GAD_RANKS_ADDR is set, but the launcher (Indexed Job) does not say how many ranks there are: give --ranks`},
		}},
		{map[string]string{"JOB_COMPLETION_INDEX": "4"}, []mistake{
			{sft + "--ranks 4", 2, `sft: --ranks 4: Indexed Job has started rank 4, and ranks count from 0: start as many, or correct --ranks`},
		}},
	} {
		for _, name := range []string{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LAUNCH_NODE_IPADDR", "JOB_COMPLETION_INDEX", "GAD_RANKS_ADDR"} {
			t.Setenv(name, "") // to be as it was afterwards
			os.Unsetenv(name)
		}
		for name, value := range c.env {
			t.Setenv(name, value)
		}
		mistaken(t, []string{work, f.path("warmup")}, c.rows)
	}
}

// The commands with --ranks are those of withRanks, and gad plan, which only counts them.
func TestWithRanks(t *testing.T) {
	var found []string
	for _, c := range (&program{}).app().Commands {
		for _, f := range c.Flags {
			if slices.Contains(f.Names(), "ranks") && c.Name != "plan" {
				found = append(found, c.Name)
			}
		}
	}
	slices.Sort(found)
	if want := slices.Sorted(slices.Values(withRanks)); !slices.Equal(found, want) {
		t.Errorf("--ranks is a flag of %v, withRanks has %v", found, want)
	}
}
