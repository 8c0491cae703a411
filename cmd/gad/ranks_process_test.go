//go:build linux

package main

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var rankFaults = flag.Int("rankfaults", few(6, 1),
	"ranks that TestRankFaults kills or hangs")

// ranked starts gad on several ranks.
func ranked(t *testing.T, ranks int, args ...string) *process {
	t.Helper()
	return rankedBy(t, []string{"mpirun"}, ranks, args...)
}

// rankedBy starts them by a command that takes mpirun's arguments.
func rankedBy(t *testing.T, command []string, ranks int, args ...string) *process {
	t.Helper()
	slow(t)
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("NOT TESTED: there is no mpirun: apt-get install openmpi-bin")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, command[0],
		slices.Concat(command[1:], []string{"--oversubscribe", "-n", fmt.Sprint(ranks), path},
			args)...)
}

// rankPIDs are the processes that mpirun has started, or MPICH's by its proxy.
func (p *process) rankPIDs() (pids []int) {
	list, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		_, rest, ok := bytes.Cut(raw, []byte("(gad) "))
		fields := strings.Fields(string(rest))
		if !ok || len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		if mpirun := strconv.Itoa(p.Process.Pid); fields[1] != mpirun {
			raw, _ := os.ReadFile("/proc/" + fields[1] + "/stat")
			if _, rest, ok := bytes.Cut(raw, []byte("(hydra_pmi_proxy) ")); !ok ||
				strings.Fields(string(rest))[1] != mpirun {
				continue
			}
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// endsWithin reports whether p, mpirun, ends by then.
func (p *process) endsWithin(limit time.Duration) bool {
	select {
	case err := <-p.done:
		p.done <- err
		return true
	case <-time.After(limit):
		return false
	}
}

// The three stages over MPI on 1, 2 and 4 ranks: the same checkpoints and metrics, byte
// for byte, as one process without MPI.
func TestRanksOverMPI(t *testing.T) {
	t.Parallel()
	sameOnRanks(t, ranked)
}

func sameOnRanks(t *testing.T, ranked func(t *testing.T, ranks int, args ...string) *process) {
	t.Helper()
	f := ready(t)
	settings := []string{"trainer.shards=4", "--threads", "1", "--seed", "3"}
	runs := func(dir string) [][]string {
		return [][]string{
			slices.Concat(stage("sft", "--model", f.path("student"), "--data",
				f.path("train.arrow"), "--val-data", f.path("test.jsonl"), "--output",
				filepath.Join(dir, "sft"), "--steps", "3"), settings),
			slices.Concat(stage("warmup", "--model", f.path("sft", "global_step_60", "actor"),
				"--data", f.path("train.arrow"), "--output", filepath.Join(dir, "warmup"),
				"--steps", "3", "--critic-warmup", "1"), settings),
			slices.Concat([]string{"train", "--resume", filepath.Join(dir, "warmup"), "--data",
				f.path("train.arrow"), "--output", filepath.Join(dir, "train"), "--steps", "3"},
				settings, stateful),
		}
	}
	whole := t.TempDir()
	for _, args := range runs(whole) {
		must(t, args...)
	}
	for _, ranks := range []int{2, 4, 1}[:few(3, 1)] {
		dir := t.TempDir()
		for _, args := range runs(dir) {
			p := ranked(t, ranks, args...)
			p.wants(t, exitDone)
			if n := strings.Count(p.said.String(), "step 3/3"); n != 1 {
				t.Errorf("%d ranks: the last step is told %d times\n%s", ranks, n, p.said.String())
			}
		}
		for _, name := range []string{"sft", "warmup", "train"} {
			equalRuns(t, filepath.Join(dir, name), filepath.Join(whole, name), 3)
		}
	}
	t.Log("ranks: sft, warmup and train on 1, 2 and 4 ranks over MPI: checkpoints and metrics byte-equal to one process")
}

// A rank that is killed, or hangs, at a random moment ends the whole run within the limit
// and 5 s; the last checkpoint is good, and the same command, on another number of ranks,
// ends with the bits of a run that was left alone.
func TestRankFaults(t *testing.T) {
	t.Parallel()
	faultsOfRanks(t, ranked)
}

func faultsOfRanks(t *testing.T, ranked func(t *testing.T, ranks int, args ...string) *process) {
	t.Helper()
	f := ready(t)
	const steps, limit = 10, 10
	args := func(run string) []string {
		return slices.Concat(f.stage("warmup", run, steps, "--critic-warmup", "2", "--threads", "1",
			"trainer.warmup_objective=policy", "trainer.shards=4",
			fmt.Sprint("trainer.rank_timeout=", limit)), stateful)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	begun := time.Now()
	ranked(t, 2, args(whole)...).wants(t, exitDone)
	took := time.Since(begun)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	faults, hangs, launchers := 0, 0, 0
	var slowest time.Duration
	for faults < *rankFaults && !t.Failed() {
		run := filepath.Join(t.TempDir(), "run")
		for try := 0; ; try++ {
			if try > 50 {
				t.Fatalf("seed %d: no end after %d starts", seed, try)
			}
			ranks := []int{1, 2, 4}[r.IntN(3)]
			p := ranked(t, ranks, args(run)...)
			hang, killed := r.IntN(2) == 0 && ranks > 1, false
			var at time.Time
			if faults < *rankFaults {
				time.Sleep(time.Duration(r.Int64N(int64(took))))
				if pids := p.rankPIDs(); len(pids) > 0 {
					signal := syscall.SIGKILL
					if hang {
						signal = syscall.SIGSTOP
					}
					at = time.Now()
					killed = syscall.Kill(pids[r.IntN(len(pids))], signal) == nil
				}
			}
			if killed && !p.endsWithin((limit+5)*time.Second) {
				pids := p.rankPIDs()
				// one that hangs after all have ended keeps mpirun from ending
				if len(pids) > 1 || len(pids) == 1 && !hang {
					t.Errorf("seed %d: %v after one of %d ranks was hit, %d are there\n%s", seed,
						time.Since(at), ranks, len(pids), p.said.String())
				}
				for _, pid := range pids {
					syscall.Kill(pid, syscall.SIGKILL)
				}
				if !p.endsWithin(10*time.Second) && len(p.rankPIDs()) == 0 {
					p.Process.Kill() // a fault of Open MPI 4.1: doc/ranks.md
					launchers++
				}
				at = time.Now() // the ranks have ended in time
			}
			code := p.end(t, patience)
			if code == exitDone {
				break
			}
			if !killed {
				t.Fatalf("seed %d: start %d on %d ranks: exit status %d\n%s", seed, try, ranks,
					code, p.said.String())
			}
			faults++
			slowest = max(slowest, time.Since(at))
			if hang {
				hangs++
			}
			if faults%20 == 0 {
				t.Logf("%d ranks killed at random moments of %s, %d of them stopped instead; the slowest end %s after it", faults, took, hangs, slowest.Round(time.Millisecond))
			}
			if hang {
				said := p.said.String()
				// the others have left: nobody waits for it
				ended := strings.Contains(said, "done: ")
				if strings.Contains(said, " step ") && !ended && !strings.Contains(said, " did not answer within 10s (trainer.rank_timeout): it hangs or has ended: the same command resumes from the last checkpoint") {
					t.Errorf("seed %d: a rank hangs, and nobody says so:\n%s", seed, said)
				}
			}
		}
		equalRuns(t, run, whole, steps)
		os.RemoveAll(run)
	}
	t.Logf("ranks: %d ranks killed, %d of them stopped instead, at random moments; the slowest end %s after it, with a limit of %d s; mpirun hung by itself %d times, after all its ranks had ended; 0 divergences (seed %d)", faults, hangs, slowest.Round(time.Millisecond), limit, launchers, seed)
	if launchers > 1+faults/10 {
		t.Errorf("mpirun hung %d times", launchers)
	}
	if slowest > (limit+5)*time.Second {
		t.Errorf("the slowest end came %s after the fault, with a limit of %d s", slowest, limit)
	}
}

// SIGTERM to any rank, and SIGUSR1 to mpirun, saves the run, and all end with exit status 75. The
// run goes on within one process.
func TestRankSignal(t *testing.T) {
	t.Parallel()
	signalsToRanks(t, ranked, 30, few(0, 1), 1, 2)
}

// signalsToRanks interrupts a run on two ranks by SIGTERM to the ranks 0 and 1, and, for 2, by
// SIGUSR1 to mpirun.
func signalsToRanks(t *testing.T, ranked func(t *testing.T, ranks int, args ...string) *process,
	steps int, to ...int) {
	t.Helper()
	f := ready(t)
	args := func(run string) []string {
		return f.stage("warmup", run, steps, "--critic-warmup", "2", "trainer.save_freq=10",
			"trainer.shards=2", "--threads", "1")
	}
	run, whole := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "whole")
	for _, rank := range slices.Compact(to) {
		p := ranked(t, 2, args(run)...)
		p.hears(t, "  step ")
		pids := p.rankPIDs()
		if len(pids) != 2 {
			t.Fatalf("ranks %v\n%s", pids, p.said.String())
		}
		if rank < 2 {
			syscall.Kill(pids[rank], syscall.SIGTERM)
		} else {
			p.Process.Signal(syscall.SIGUSR1)
		}
		p.wants(t, exitInterrupted, "run the same command again to resume")
	}
	must(t, args(run)...)
	must(t, args(whole)...)
	equalRuns(t, run, whole, steps)
}

// SIGTERM and SIGINT to the script around mpirun, and SIGTERM to the launcher of the MPIJob,
// save the run, and the status is 75, however long saving takes.
func TestRankSignalByScript(t *testing.T) {
	t.Parallel()
	f := ready(t)
	text := fmt.Sprint(at(manifests(t, "mpijob.yaml")["MPIJob"],
		"spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.args.0"))
	inline := regexp.MustCompile(`(?s)mpirun .* &\n`).ReplaceAllString(text, "mpirun \"$$@\" &\n")
	for _, by := range []struct {
		signal  syscall.Signal
		command []string
	}{
		{syscall.SIGTERM, []string{"sh", ranksDoc("mpirun.sh")}},
		{syscall.SIGINT, []string{"sh", ranksDoc("mpirun.sh")}},
		{syscall.SIGTERM, []string{"sh", "-c", inline, "sh"}},
	}[:few(3, 1)] {
		run := filepath.Join(t.TempDir(), "run")
		// a step takes longer than mpirun's patience
		args := append(longStep(t, f, run, "--steps", "20", "trainer.shards=2"),
			"data.train_batch_size=12000")
		p := rankedBy(t, by.command, 2, args...)
		begins(t, run)
		time.Sleep(200 * time.Millisecond)
		p.Process.Signal(by.signal)
		begun := time.Now()
		if code := p.end(t, patience); code != exitInterrupted ||
			!strings.Contains(p.said.String(), "run the same command again to resume") {
			t.Fatalf("%v to %q: exit status %d\n%s", by.signal, by.command, code, p.said.String())
		}
		t.Logf("%v: ended after %v", by.signal, time.Since(begun).Round(time.Millisecond))
	}
}
