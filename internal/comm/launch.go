package comm

import (
	"fmt"
	"strconv"
	"strings"
)

// Launch is the place of this process in a run, as its launcher says.
type Launch struct {
	By    string // name of the launcher; "" is none
	Rank  int
	Size  int    // number of ranks; 0: unknown
	Local int    // number among the ranks of this machine; 0 if unknown
	Addr  string // host, or host and port, of rank 0; "" is none
	MPI   bool   // the launcher has prepared MPI
	ABI   bool   // MPI's library is libmpi_abi, not Open MPI's
}

// launcher names the environment variables that one launcher sets; "" for none.
type launcher struct {
	by                string
	rank, size, local string
	// number of ranks on each node: size is then the number of nodes, rank a node's number
	perNode    string
	host, port string
	mpi        string // set if MPI is prepared
	abi        bool   // MPI has the standard binary interface
}

// launchers are tried in this order: launchers that start the processes themselves come before
// systems that only name machines.
var launchers = []launcher{
	// Also under Kubeflow's MPI operator: its launcher runs mpirun.
	{by: "mpirun", rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE",
		local: "OMPI_COMM_WORLD_LOCAL_RANK", mpi: "OMPI_COMM_WORLD_SIZE"},
	// SLURM_NTASKS is set in a batch script too, whose one process is no rank.
	{by: "srun", rank: "SLURM_PROCID", size: "SLURM_STEP_NUM_TASKS", local: "SLURM_LOCALID",
		host: "SLURM_LAUNCH_NODE_IPADDR", mpi: "PMIX_RANK"},
	// the interface of MPICH's own libmpi is another one
	{by: "MPICH's mpirun", rank: "PMI_RANK", size: "PMI_SIZE", local: "MPI_LOCALRANKID",
		mpi: "PMI_RANK", abi: true},
	{by: "torchrun", rank: "RANK", size: "WORLD_SIZE", local: "LOCAL_RANK", host: "MASTER_ADDR",
		port: "MASTER_PORT"},
	// By hand: RANK and WORLD_SIZE with the address of rank 0, as doc/ranks.md says.
	{by: "a script", rank: "RANK", size: "WORLD_SIZE", local: "LOCAL_RANK", host: "GAD_RANKS_ADDR"},
	{by: "Kubeflow Trainer", rank: "PET_NODE_RANK", size: "PET_NNODES",
		perNode: "PET_NPROC_PER_NODE", host: "PET_MASTER_ADDR", port: "PET_MASTER_PORT"},
	{by: "LeaderWorkerSet", rank: "LWS_WORKER_INDEX", size: "LWS_GROUP_SIZE",
		host: "LWS_LEADER_ADDRESS"},
	// JobSet's jobs are indexed ones; its coordinator is an annotation, which the manifest
	// hands on as MASTER_ADDR.
	{by: "JobSet", rank: "JOB_COMPLETION_INDEX", host: "MASTER_ADDR", port: "MASTER_PORT"},
	{by: "Indexed Job", rank: "JOB_COMPLETION_INDEX"},
}

// FindLaunch returns how this process was started, from its environment; lookup is os.LookupEnv.
// Without a launcher it returns the zero Launch.
func FindLaunch(lookup func(name string) (string, bool)) (Launch, error) {
	for _, l := range launchers {
		if !l.started(lookup) {
			continue
		}
		out := Launch{By: l.by}
		for _, v := range []struct {
			name string
			to   *int
			min  int
		}{{l.rank, &out.Rank, 0}, {l.size, &out.Size, 1}, {l.local, &out.Local, 0}} {
			text, ok := lookup(v.name)
			if v.name == "" || !ok {
				continue
			}
			n, err := strconv.Atoi(text)
			if err != nil || n < v.min || n > 1<<20 {
				return Launch{}, fmt.Errorf("ranks: %s of %s is %q: expected a number of at least %d: correct it, or give --ranks 1", v.name, l.by, text, v.min)
			}
			*v.to = n
		}
		if l.perNode != "" {
			each := 1
			if text, ok := lookup(l.perNode); ok {
				// "auto", "gpu" and "cpu" are torchrun's
				if n, err := strconv.Atoi(text); err == nil && n > 0 {
					each = n
				}
			}
			out.Rank, out.Size = out.Rank*each, out.Size*each
		}
		if out.Size > 0 && out.Rank >= out.Size {
			return Launch{}, fmt.Errorf(
				"ranks: %s says rank %d of %d: ranks count from 0: correct %s, or give --ranks 1",
				l.by, out.Rank, out.Size, l.rank)
		}
		if host, _ := lookup(l.host); host != "" {
			out.Addr = host
			if port, _ := lookup(l.port); port != "" {
				out.Addr += ":" + port
			}
		}
		_, out.MPI = lookup(l.mpi)
		out.ABI = out.MPI && l.abi
		return out, nil
	}
	return Launch{}, incompleteLaunch(lookup)
}

// incompleteLaunch returns an error if RANK or WORLD_SIZE is set without the address of rank 0 and
// the other: each process would train alone, all of them the same. A size of 1 is no harm, and
// common in containers.
func incompleteLaunch(lookup func(string) (string, bool)) error {
	rank, isRank := lookup("RANK")
	size, isSize := lookup("WORLD_SIZE")
	if (!isRank || rank == "" || rank == "0") && (!isSize || size == "" || size == "1") {
		return nil
	}
	var set, missing []string
	for _, name := range []string{"RANK", "WORLD_SIZE"} {
		if value, ok := lookup(name); ok {
			set = append(set, fmt.Sprintf("%s=%s", name, value))
		} else {
			missing = append(missing, name)
		}
	}
	if _, ok := lookup("GAD_RANKS_ADDR"); !ok {
		missing = append(missing,
			"an address of rank 0 (MASTER_ADDR and MASTER_PORT, or GAD_RANKS_ADDR)")
	}
	return fmt.Errorf(
		"ranks: %s is set, without %s: set all (doc/ranks.md), unset it, or give --ranks 1",
		strings.Join(set, " "), strings.Join(missing, " and "))
}

// started reports whether l has started the process: all of its variables are set.
func (l launcher) started(lookup func(string) (string, bool)) bool {
	for _, name := range []string{l.rank, l.size, l.host, l.port} {
		if _, ok := lookup(name); name != "" && !ok {
			return false
		}
	}
	return true
}
