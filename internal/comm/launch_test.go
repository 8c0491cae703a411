package comm_test

import (
	"testing"

	"gad/internal/comm"
)

// Each launcher by what it sets; each row beside the variables that its machines also have.
func TestFindLaunch(t *testing.T) {
	type env map[string]string
	for _, c := range []struct {
		name string
		env  env
		want comm.Launch
	}{
		{"none", env{"HOME": "/root"}, comm.Launch{}},
		{"mpirun", env{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
			"OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMIX_RANK": "3"},
			comm.Launch{By: "mpirun", Rank: 3, Size: 4, Local: 1, MPI: true}},
		{"mpirun in a Slurm job",
			env{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
				"OMPI_COMM_WORLD_LOCAL_RANK": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1",
				"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"},
			comm.Launch{By: "mpirun", Rank: 1, Size: 2, MPI: true}},
		{"Kubeflow MPI operator",
			env{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
				"OMPI_COMM_WORLD_LOCAL_RANK":     "1",
				"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile", "K_MPI_JOB_ROLE": "worker"},
			comm.Launch{By: "mpirun", Rank: 5, Size: 8, Local: 1, MPI: true}},
		{"srun --mpi=pmix", env{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4",
			"SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
			"PMIX_RANK": "2"},
			comm.Launch{By: "srun", Rank: 2, Size: 4, Addr: "10.0.0.1", MPI: true}},
		{"srun", env{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1",
			"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"},
			comm.Launch{By: "srun", Rank: 2, Size: 4, Local: 1, Addr: "10.0.0.1"}},
		{"MPICH", env{"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"},
			comm.Launch{By: "MPICH's mpirun", Rank: 1, Size: 2, Local: 1, MPI: true, ABI: true}},
		{"a batch script of Slurm",
			env{"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, comm.Launch{}},
		{"torchrun", env{"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "MASTER_ADDR": "node0",
			"MASTER_PORT": "29500"},
			comm.Launch{By: "torchrun", Rank: 6, Size: 8, Local: 2, Addr: "node0:29500"}},
		{"a container's variables of one process", env{"RANK": "0", "WORLD_SIZE": "1"},
			comm.Launch{}},
		{"by hand", env{"RANK": "1", "WORLD_SIZE": "2", "GAD_RANKS_ADDR": "127.0.0.1:29700"},
			comm.Launch{By: "a script", Rank: 1, Size: 2, Addr: "127.0.0.1:29700"}},
		{"Kubeflow Trainer", env{"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4",
			"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"},
			comm.Launch{By: "Kubeflow Trainer", Rank: 4, Size: 8, Addr: "job-node-0-0.job:29400"}},
		{"Kubeflow Trainer, auto",
			env{"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto",
				"PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "1", "JOB_COMPLETION_INDEX": "1"},
			comm.Launch{By: "Kubeflow Trainer", Rank: 1, Size: 2, Addr: "h:1"}},
		{"LeaderWorkerSet", env{"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2",
			"LWS_LEADER_ADDRESS": "lws-0.lws.default"},
			comm.Launch{By: "LeaderWorkerSet", Rank: 1, Size: 2, Addr: "lws-0.lws.default"}},
		{"JobSet", env{"JOB_COMPLETION_INDEX": "3", "MASTER_ADDR": "set-workers-0-0.set",
			"MASTER_PORT": "29500"},
			comm.Launch{By: "JobSet", Rank: 3, Addr: "set-workers-0-0.set:29500"}},
		{"Indexed Job", env{"JOB_COMPLETION_INDEX": "3"}, comm.Launch{By: "Indexed Job", Rank: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := comm.FindLaunch(
				func(name string) (string, bool) { v, ok := c.env[name]; return v, ok })
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	for want, bad := range map[string]env{
		`ranks: OMPI_COMM_WORLD_RANK of mpirun is "x": expected a number of at least 0: correct it, or give --ranks 1`:                                                          {"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "4"},
		`ranks: WORLD_SIZE of torchrun is "0": expected a number of at least 1: correct it, or give --ranks 1`:                                                                  {"RANK": "0", "WORLD_SIZE": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
		`ranks: torchrun says rank 4 of 4: ranks count from 0: correct RANK, or give --ranks 1`:                                                                                 {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
		`ranks: RANK=6 WORLD_SIZE=8 is set, without an address of rank 0 (MASTER_ADDR and MASTER_PORT, or GAD_RANKS_ADDR): set all (doc/ranks.md), unset it, or give --ranks 1`: {"RANK": "6", "WORLD_SIZE": "8"},
	} {
		if _, err := comm.FindLaunch(
			func(name string) (string, bool) { v, ok := bad[name]; return v, ok }); err == nil ||
			err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}
