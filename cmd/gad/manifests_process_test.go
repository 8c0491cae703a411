//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gad/apps/bench"
	"gad/internal/comm"
)

// manifests are the Kubernetes objects of a file, by their kind.
func manifests(t *testing.T, name string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for docs := yaml.NewDecoder(strings.NewReader(fileText(ranksDoc(name)))); ; {
		var m map[string]any
		err := docs.Decode(&m)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		objects[fmt.Sprint(m["kind"])] = m
	}
}

// at returns what a path of keys and places in lists, with dots between them, leads to in an
// object; nil where it leads nowhere.
func at(x any, path string) any {
	for step := range strings.SplitSeq(path, ".") {
		list, _ := x.([]any)
		if n, err := strconv.Atoi(step); err == nil && n < len(list) {
			x = list[n]
		} else {
			keys, _ := x.(map[string]any)
			x = keys[step]
		}
	}
	return x
}

// number is a number there, or -1.
func number(x any, path string) int {
	if n, ok := at(x, path).(int); ok {
		return n
	}
	return -1
}

// list are the values there.
func list(x any, path string) []any {
	l, _ := at(x, path).([]any)
	return l
}

// commandOf is the command line of a container.
func commandOf(container any) (line []string) {
	for _, x := range slices.Concat(list(container, "command"), list(container, "args")) {
		line = append(line, fmt.Sprint(x))
	}
	return line
}

func ranksDoc(name string) string { return filepath.Join("..", "..", "doc", "ranks", name) }

// started is what a command of doc/ranks starts: programs with their arguments, as stand-ins
// for them were called.
type started struct {
	calls [][]string
	code  int
}

// starts runs a command with stand-ins for all programs that it may start. The status of
// the one that runs gad is given.
func starts(t *testing.T, status int, env []string, command ...string) (s started) {
	t.Helper()
	programs := map[string]string{}
	for _, name := range []string{"gad", "mpirun", "srun", "torchrun", "scontrol", "sleep"} {
		code := status
		if name == "scontrol" || name == "sleep" {
			code = 0
		}
		programs[name] = fmt.Sprintf(
			"{ printf '%%s\\0' %s \"$@\"; printf '\\n'; } >>$STARTED\nexit %d\n", name, code)
	}
	return startsWith(t, programs, env, command...)
}

// startsWith runs a command with stand-ins, shell programs that write into $STARTED a line for each
// call. The command and they say nothing.
func startsWith(t *testing.T, programs map[string]string, env []string,
	command ...string) (s started) {
	t.Helper()
	bin := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	path, err := exec.LookPath(command[0])
	if _, ok := programs[command[0]]; ok {
		path, err = filepath.Join(bin, command[0]), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	c, log := exec.Command(path, command[1:]...), filepath.Join(bin, "started")
	c.Env = append(env, "PATH="+bin+":/usr/bin:/bin", "STARTED="+log)
	out, err := c.CombinedOutput()
	if left := (*exec.ExitError)(nil); err != nil && !errors.As(err, &left) || len(out) > 0 {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	s.code = c.ProcessState.ExitCode()
	for _, line := range strings.Split(strings.TrimSuffix(fileText(log), "\n"), "\n") {
		s.calls = append(s.calls, strings.Split(strings.TrimSuffix(line, "\x00"), "\x00"))
	}
	return s
}

// option is the value behind the name, or joined to it by "=".
func option(t *testing.T, args []string, name string) string {
	t.Helper()
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
		if a == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	t.Errorf("%q: no %s", args, name)
	return ""
}

func integer(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Error(err)
	}
	return n
}

// accepted has gad itself read the command line that is somewhere in args: for so many
// ranks, with flags and settings that there are.
func accepted(t *testing.T, f *fixture, args []string, ranks int) {
	t.Helper()
	at := slices.Index(args, "gad")
	if at < 0 {
		t.Fatalf("%q: does not start gad", args)
	}
	line := slices.Clone(args[at+1:])
	if got := integer(t, option(t, line, "--ranks")); got != ranks {
		t.Errorf("%q: for %d ranks, but %d are started", line, got, ranks)
	}
	for i, a := range line {
		if file, ok := strings.CutPrefix(a, "/data/"); ok {
			here, ok := map[string]string{"warmup": f.path("warmup"),
				"train.jsonl": f.path("test.jsonl"),
				"game":        filepath.Join(t.TempDir(), "game")}[file]
			if !ok {
				t.Errorf("%q: the test has no /data/%s", line, file)
			}
			line[i] = here
		}
		if i > 0 && line[i-1] == "--device" && a == "cuda" { // which this build need not have
			line[i] = "cpu"
		}
	}
	for _, other := range []string{"OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"} {
		if _, ok := os.LookupEnv(other); ok {
			t.Fatalf("%s is set: the test wants to be alone", other)
		}
	}
	out, _ := must(t, slices.Insert(line, 1, "--dry-run")...)
	shards := regexp.MustCompile(`(?m)^ +shards: (\d+)`).FindStringSubmatch(out)
	if shards == nil || integer(t, shards[1])%ranks != 0 {
		t.Errorf("%q: shards %q do not fit %d ranks", line, shards, ranks)
	}
}

// launched has the launch table read what a launcher sets.
func launched(t *testing.T, env map[string]string) comm.Launch {
	t.Helper()
	l, err := comm.FindLaunch(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Error(err)
	}
	return l
}

// The shell scripts of doc/ranks start as many ranks as they say, with a command that gad
// takes, and a job that is stopped and saved is put into the queue again.
func TestRanksScripts(t *testing.T) {
	f := ready(t)
	t.Run("box.sh", func(t *testing.T) {
		s := starts(t, 0, nil, "sh", ranksDoc("box.sh"))
		accepted(t, f, s.calls[0], integer(t, option(t, s.calls[0], "-n")))
		if pe := option(t, s.calls[0], "--map-by"); pe != "slot:PE="+option(t, s.calls[0],
			"--threads") {
			t.Errorf("%s, which are not the threads", pe)
		}
	})
	t.Run("torchrun.sh", func(t *testing.T) {
		s := starts(t, 0, []string{"NODE_RANK=1", "LEADER=node0"}, "sh", ranksDoc("torchrun.sh"))
		args := s.calls[0]
		ranks := integer(t, option(t, args, "--nnodes")) * integer(t,
			option(t, args, "--nproc-per-node"))
		accepted(t, f, args, ranks)
		if !slices.Contains(args[:slices.Index(args, "gad")], "--no-python") ||
			option(t, args, "--node-rank") != "1" {
			t.Errorf("%q", args)
		}
		l := launched(t, map[string]string{"RANK": "3", "WORLD_SIZE": fmt.Sprint(ranks),
			"LOCAL_RANK": "1", "MASTER_ADDR": option(t, args, "--master-addr"),
			"MASTER_PORT": option(t, args, "--master-port")})
		if l.By != "torchrun" || l.Size != ranks || l.Addr != "node0:29500" {
			t.Errorf("%+v", l)
		}
		if !strings.Contains(fileText(ranksDoc("torchrun.sh")), "\nexport "+secretFileVar+"=/") {
			t.Error("no secret")
		}
	})
	for _, name := range []string{"slurm.sbatch", "slurm-mpirun.sbatch"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("bash"); err != nil {
				t.Skip("NOT TESTED: there is no bash")
			}
			batch := map[string]string{}
			for _, m := range regexp.MustCompile(`(?m)^#SBATCH --([a-z-]+)=?(\S*)$`).FindAllStringSubmatch(fileText(ranksDoc(name)), -1) {
				batch[m[1]] = m[2]
			}
			ranks := integer(t, batch["nodes"]) * integer(t, batch["ntasks-per-node"])
			env := []string{fmt.Sprint("SLURM_NTASKS=", ranks),
				"SLURM_CPUS_PER_TASK=" + batch["cpus-per-task"], "SLURM_JOB_ID=7"}
			s := starts(t, 0, env, "bash", ranksDoc(name))
			if len(s.calls) != 1 || s.code != 0 {
				t.Errorf("exit status %d, %q", s.code, s.calls)
			}
			accepted(t, f, s.calls[0], ranks)
			if s = starts(t, 1, env, "bash", ranksDoc(name)); len(s.calls) != 1 || s.code != 1 {
				t.Errorf("a run that fails: exit status %d, %q", s.code, s.calls)
			}
			if _, ok := batch["requeue"]; !ok {
				t.Error("the job cannot be put into the queue again")
			}
			if name == "slurm.sbatch" {
				if s.calls[0][1] != "--mpi=pmix" || batch["signal"] != "TERM@600" {
					t.Errorf("%q, signal %s", s.calls[0], batch["signal"])
				}
				l := launched(t, map[string]string{"SLURM_PROCID": "3",
					"SLURM_STEP_NUM_TASKS": fmt.Sprint(ranks), "SLURM_LOCALID": "1",
					"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "PMIX_RANK": "3"})
				if l.By != "srun" || !l.MPI || l.Size != ranks {
					t.Errorf("%+v", l)
				}
				s = starts(t, exitInterrupted, env, "bash", ranksDoc(name))
			} else {
				if option(t, s.calls[0], "-n") != fmt.Sprint(ranks) ||
					batch["signal"] != "B:TERM@600" {
					t.Errorf("%q, signal %s", s.calls[0], batch["signal"])
				}
				s = startsWith(t, stoppedBatch, env, "bash", ranksDoc(name))
			}
			if len(s.calls) != 2 || strings.Join(s.calls[1], " ") != "scontrol requeue 7" ||
				s.code != 0 {
				t.Errorf("a run that was stopped: exit status %d, %q", s.code, s.calls)
			}
		})
	}
}

// stoppedBatch are stand-ins of which mpirun waits for the SIGUSR1 that a batch script makes of its
// SIGTERM, then takes a while to save and ends with 75.
var stoppedBatch = map[string]string{
	"mpirun": `trap 'sleep 0.2; printf "mpirun saved\n" >>$STARTED; exit 75' USR1
sleep 0.3
kill -TERM $PPID
for i in $(seq 200); do sleep 0.05; done
`,
	"scontrol": `printf '%s\0' scontrol "$@" >>$STARTED` + "\n",
}

// The Kubernetes manifests of doc/ranks set what the launch table reads, start as many ranks
// as they say, with a command that gad takes. scripts/manifests checks their other fields.
func TestRanksManifests(t *testing.T) {
	f := ready(t)
	// wants compares what stands in an object.
	wants := func(t *testing.T, x any, want map[string]any) {
		t.Helper()
		for path, v := range want {
			if got := at(x, path); got != v {
				t.Errorf("%s is %v, want %v", path, got, v)
			}
		}
	}
	// checked is for the one container of a pod by TCP.
	checked := func(t *testing.T, pod any, ranks int, set map[string]string, status int) comm.Launch {
		t.Helper()
		c := at(pod, "spec.containers.0")
		secret := false
		for _, e := range list(c, "env") {
			name := fmt.Sprint(at(e, "name"))
			switch {
			case name == secretVar:
				secret = at(e, "valueFrom.secretKeyRef.name") == "gad-ranks" &&
					at(e, "valueFrom.secretKeyRef.key") == "secret"
			case at(e,
				"valueFrom.fieldRef.fieldPath") == "metadata.annotations['jobset.sigs.k8s.io/coordinator']":
				set[name] = "gad-ranks-0-0.gad"
			default:
				set[name] = fmt.Sprint(at(e, "value"))
			}
		}
		if !secret {
			t.Error("no secret gad-ranks with the key secret")
		}
		volume := at(pod, "spec.volumes.0.name")
		wants(t, c, map[string]any{"volumeMounts.0.mountPath": "/data", "volumeMounts.0.name": volume})
		if len(list(c, "volumeMounts")) != 1 || len(list(pod, "spec.volumes")) != 1 || volume == nil {
			t.Errorf("volumes %v, mounts %v", at(pod, "spec.volumes"), at(c, "volumeMounts"))
		}
		s := starts(t, status, nil, commandOf(c)...)
		if s.code != status {
			t.Errorf("gad ends with %d, the container with %d", status, s.code)
		}
		accepted(t, f, s.calls[0], ranks)
		return launched(t, set)
	}
	t.Run("mpijob.yaml", func(t *testing.T) {
		spec := at(manifests(t, "mpijob.yaml")["MPIJob"], "spec")
		c := at(spec, "mpiReplicaSpecs.Launcher.template.spec.containers.0")
		s := starts(t, 0, nil, commandOf(c)...)
		ranks := number(spec, "mpiReplicaSpecs.Worker.replicas") * number(spec, "slotsPerWorker")
		if stopped := starts(t, exitInterrupted, nil, commandOf(c)...); s.code != 0 ||
			stopped.code != exitInterrupted {
			t.Errorf("mpirun ends with 0 and %d, the container with %d and %d", exitInterrupted,
				s.code, stopped.code)
		}
		if s.calls[0][0] != "mpirun" || integer(t, option(t, s.calls[0], "-n")) != ranks {
			t.Errorf("%d ranks, %q", ranks, s.calls[0])
		}
		accepted(t, f, s.calls[0], ranks)
		const worker = "mpiReplicaSpecs.Worker.template.spec.containers.0."
		wants(t, spec, map[string]any{"mpiReplicaSpecs.Launcher.replicas": 1,
			worker + "volumeMounts.0.mountPath": "/data", worker + "volumeMounts.1": nil,
			worker + "command.0": "/usr/sbin/sshd"})
	})
	t.Run("indexed-job.yaml", func(t *testing.T) {
		objects := manifests(t, "indexed-job.yaml")
		job, service := objects["Job"], objects["Service"]
		name := at(service, "metadata.name")
		ranks, set := number(job, "spec.completions"), map[string]string{"JOB_COMPLETION_INDEX": "3"}
		l := checked(t, at(job, "spec.template"), ranks, set, exitInterrupted)
		wants(t, job, map[string]any{"spec.completionMode": "Indexed", "spec.parallelism": ranks,
			"spec.template.spec.restartPolicy": "Never", "spec.template.spec.subdomain": name})
		wants(t, service, map[string]any{"spec.clusterIP": "None",
			"spec.selector.job-name": at(job, "metadata.name")})
		// The host name of an Indexed Job's pod is the job's name and the index.
		want := fmt.Sprintf("%v-0.%v:29600", at(job, "metadata.name"), name)
		if l.By != "Indexed Job" || l.Rank != 3 || set[addrVar] != want {
			t.Errorf("%+v; rank 0 is at %q, not at %s", l, set[addrVar], want)
		}
	})
	t.Run("jobset.yaml", func(t *testing.T) {
		m := manifests(t, "jobset.yaml")["JobSet"]
		const job = "spec.replicatedJobs.0."
		ranks := number(m, job+"template.spec.completions")
		l := checked(t, at(m, job+"template.spec.template"), ranks,
			map[string]string{"JOB_COMPLETION_INDEX": "3"}, exitInterrupted)
		if l.By != "JobSet" || l.Rank != 3 || l.Addr != "gad-ranks-0-0.gad:29600" {
			t.Errorf("%+v", l)
		}
		// The coordinator's address is jobset-replicatedJob-jobIndex-podIndex.jobset.
		wants(t, m, map[string]any{"metadata.name": "gad", job + "name": "ranks",
			"spec.coordinator.replicatedJob": "ranks", "spec.replicatedJobs.1": nil,
			job + "replicas": 1, job + "template.spec.completionMode": "Indexed",
			job + "template.spec.parallelism": ranks})
	})
	t.Run("leaderworkerset.yaml", func(t *testing.T) {
		w := at(manifests(t, "leaderworkerset.yaml")["LeaderWorkerSet"], "spec.leaderWorkerTemplate")
		size := number(w, "size")
		l := checked(t, at(w, "workerTemplate"), size, map[string]string{
			"LWS_LEADER_ADDRESS": "gad-0.gad.default", "LWS_GROUP_SIZE": fmt.Sprint(size),
			"LWS_WORKER_INDEX": "3"}, 0)
		if l.By != "LeaderWorkerSet" || l.Rank != 3 || l.Size != size ||
			l.Addr != "gad-0.gad.default" || at(w, "leaderTemplate") != nil {
			t.Errorf("%+v, %+v", l, w)
		}
		s := starts(t, 1, nil, commandOf(at(w, "workerTemplate.spec.containers.0"))...)
		if s.code == 0 || len(s.calls) != 1 {
			t.Errorf("a run that fails: exit status %d, %q", s.code, s.calls)
		}
	})
	kept, _ := os.ReadDir(filepath.Join("..", "..", "doc", "ranks"))
	if len(kept) != 9 {
		t.Errorf("doc/ranks has %d files: test the new ones too", len(kept))
	}
}

// gad bench under mpirun: rank 0 prints the report of all, with no more bytes in sums than
// must be sent. A flag that says nothing there is refused: TestMistakesOverMPI.
func TestBenchOfRanks(t *testing.T) {
	t.Parallel()
	shape := t.TempDir()
	put(t, filepath.Join(shape, "config.json"), tinyConfig)
	p := ranked(t, 2, "bench", "--ranks", "2", "--shape", shape, "--seconds", "0.05", "--json")
	code := p.end(t, patience)
	_, text, _ := strings.Cut(p.said.String(), "{")
	var r bench.RanksReport
	if err := json.NewDecoder(bytes.NewReader([]byte("{" + text))).Decode(&r); err != nil || code != exitDone || len(r.Hosts) != 2 || len(r.Rows) != 8 || strings.Count(p.said.String(), `"hosts"`) != 1 {
		t.Fatalf("exit status %d, %v\n%s", code, err, p.said.String())
	}
	for _, row := range r.Rows {
		if row.Seconds <= 0 || row.Name == "sum" && row.Sent != row.Least {
			t.Errorf("%+v", row)
		}
	}
}
