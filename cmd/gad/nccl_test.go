//go:build nvidia && linux

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gad/internal/compute/cuda/driver"
	"gad/internal/hostile"
)

// cudaBinary is gad with CUDA.
var cudaBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(fixed.programs, "gad-cuda")
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", "nvidia", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build -tags nvidia: %w\n%s", err, out)
	}
	return path, nil
})

// gpuRanks are ranks of one run, each a process with the emulated device, connected by TCP.
type gpuRanks []*process

// onGPUs starts gad on several ranks; env is for one of them, by rank. A rank whose env is
// "absent" is not started.
func onGPUs(t *testing.T, ranks int, env map[int][]string, args ...string) gpuRanks {
	t.Helper()
	slow(t)
	needsGPU(t)
	if driver.Emulated() == nil {
		t.Skip("NOT TESTED: needs the emulated device, which several processes can have")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("NOT TESTED: builds the program, and there is no Go")
	}
	path, err := cudaBinary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	t.Setenv("GAD_EMU_NCCL_LOG", "1")
	return connected(t, path, ranks, env, args...)
}

// done wants all ranks to end well, and as many sums and groups of broadcasts over NCCL on each;
// without a sum no communicator. One sum more connects them.
func (list gpuRanks) done(t *testing.T, sums, groups int) {
	t.Helper()
	for r, p := range list {
		code := p.end(t, patience)
		said := p.said.String()
		if code != exitDone || strings.Count(said, "emu: nccl: ") != min(sums, 1) || sums > 0 &&
			!strings.Contains(said,
				fmt.Sprintf("emu: nccl: %d sums, %d groups\n", sums+1, groups)) {
			t.Fatalf("rank %d of %d: exit status %d, want %d sums and %d groups\n%s", r, len(list),
				code, sums, groups, said)
		}
	}
}

// How whole runs of several GPUs compare: two have the bits of one, whose gradient is divided
// into two shards, as a sum of two has one order; over the host's memory or by NCCL. More GPUs
// repeat their bits, and are close to one. Optimizer states that are divided among the GPUs
// change no bit on any number of them, nor do they in a checkpoint, which goes on on another
// number.
func TestCUDARanks(t *testing.T) {
	f := ready(t)
	const steps = 2
	args := func(run, precision string, shards, steps int, more ...string) []string {
		return slices.Concat(stage("warmup", "--model", f.path("sft", "global_step_60", "actor"),
			"--data", f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(steps),
			"--critic-warmup", "1",
			"--device", "cuda", "--precision", precision),
			[]string{"trainer.warmup_objective=policy", "--seed", "3",
				fmt.Sprint("trainer.shards=", shards),
				"actor.optim.lr_scheduler=constant", "critic.optim.lr_scheduler=constant"}, more)
	}
	const (
		divided = "trainer.shard_optimizer=true"
		sums    = 6 // of gradients; each is followed by a gather of weights
		third   = 5 // in step 3
	)
	for _, precision := range []string{"f32", "bf16"} {
		dir := t.TempDir()
		run := func(name string) string { return filepath.Join(dir, name) }
		wholes := 0 // of the models, before a checkpoint: the rest of the weights is gathered
		if precision == "bf16" {
			wholes = 2
		}
		onGPUs(t, 1, nil, args(run("one"), precision, 2, steps)...).done(t, 0, 0)
		var two gpuRanks
		if precision == "f32" {
			two = onGPUs(t, 2, nil, args(run("two"), precision, 2, steps)...)
			two.done(t, sums, 0)
		} else {
			two = onGPUs(t, 2, nil, args(run("two"), precision, 2, steps, divided)...)
			two.done(t, sums, sums+wholes)
		}
		equalRuns(t, run("two"), run("one"), steps)
		for _, want := range []string{"2 ranks: gradients go by NCCL 2.30.7 (libnccl.so.2), NCCL_ALGO=Ring, NCCL_PROTO=Simple, NCCL_NVLS_ENABLE=0"} {
			if said := two[0].said.String(); strings.Count(said, want) != 1 ||
				strings.Contains(two[1].said.String(), want) {
				t.Errorf("it does not say once: %q\n%s", want, said)
			}
		}
		onGPUs(t, 2, nil, args(run("one"), precision, 2, steps+1, divided)...).done(t, third,
			third+wholes)
		onGPUs(t, 1, nil, args(run("two"), precision, 2, steps+1)...).done(t, 0, 0)
		equalRuns(t, run("two"), run("one"), steps+1)
		if precision != "f32" {
			continue
		}
		off := map[int][]string{1: {"GAD_NCCL=off"}}
		host := onGPUs(t, 2, off, args(run("host"), precision, 2, steps+1, divided)...)
		host.done(t, 0, 0)
		equalRuns(t, run("host"), run("one"), steps+1)
		if want := "2 ranks: gradients go over the host's memory, which is slow: rank 1: not wanted (GAD_NCCL=off)"; !strings.Contains(host[0].said.String(), want) {
			t.Errorf("it does not say %q\n%s", want, host[0].said.String())
		}
		onGPUs(t, 4, nil, args(run("four"), precision, 4, steps)...).done(t, sums, 0)
		onGPUs(t, 4, nil, args(run("again"), precision, 4, steps, divided)...).done(t, sums, sums)
		equalRuns(t, run("again"), run("four"), steps)
		onGPUs(t, 1, nil, args(run("whole"), precision, 4, steps)...).done(t, 0, 0)
		four, whole := metricsOf(t, run("four"))[steps-1], metricsOf(t, run("whole"))[steps-1]
		for _, name := range []string{"actor/grad_norm", "critic/grad_norm", "critic/d_loss"} {
			if a, b := four[name], whole[name]; a == 0 || math.Abs(a-b) > 1e-3*math.Abs(b) {
				t.Errorf("four ranks: %s is %g, on one %g", name, a, b)
			}
		}
		if !hostile.Long() {
			continue
		}
		for _, name := range []string{"four", "again"} {
			onGPUs(t, 1, nil, args(run(name), precision, 4, steps+1)...).done(t, 0, 0)
		}
		equalRuns(t, run("again"), run("four"), steps+1)
	}
}

// What fails on one rank is named by it, told to the other, and ends both with exit status 1;
// nothing waits longer than the limit and 5 s.
func TestCUDARankFaults(t *testing.T) {
	f := ready(t)
	const limit = 6
	fail := func(rank int, call string) map[int][]string {
		return map[int][]string{rank: {"GAD_EMU_NCCL_FAIL=" + call}}
	}
	failed := func(phase string, rank int, call string) string {
		return fmt.Sprintf(`ranks: phase %s, rank %d on \S+: driver: device 0: %s: ncclSystemError \(2\), unhandled system error \(NCCL_DEBUG=WARN says more\)`, phase, rank, call)
	}
	const connecting, gradients, weights = "opening, connecting GPUs", `\S.*, gradients`, `\S.*, weights`
	for _, c := range []struct {
		name string
		env  map[int][]string
		stop bool   // rank 1 is stopped when it hangs in a sum
		zero bool   // with optimizer states that are divided
		want string // what some rank says, and no other thing
	}{
		{name: "id", env: fail(0, "ncclGetUniqueId"), want: `ranks: cuda: NCCL: ncclGetUniqueId: ncclSystemError \(2\), unhandled system error`},
		{name: "connecting", env: fail(1, "ncclCommInitRankConfig"),
			want: failed(connecting, 1, "ncclCommInitRankConfig")},
		{name: "state", env: fail(0, "ncclCommGetAsyncError"),
			want: failed(connecting, 0, "ncclCommGetAsyncError")},
		{name: "first sum", env: fail(1, "ncclAllReduce"),
			want: failed(connecting, 1, "ncclAllReduce")},
		{name: "wrong GPU", env: map[int][]string{0: {"GAD_EMU_NCCL_WRONG=1"}}, want: `ranks: phase ` + connecting + `, rank 0 on \S+: cuda: NCCL: the first sum is 4, not 3: the GPUs, or what connects them, do not work`},
		{name: "sum", env: fail(1, "ncclAllReduce:1"), want: failed(gradients, 1, "ncclAllReduce")},
		{name: "later sum", env: fail(0, "ncclAllReduce:2"),
			want: failed(gradients, 0, "ncclAllReduce")},
		{name: "network", env: fail(0, "async:1"), want: `ranks: phase ` + gradients + `, rank 0 on \S+: driver: device 0: ncclAllReduce: ncclRemoteError \(6\), remote process exited or there was a network error`},
		{name: "version", env: map[int][]string{1: {"GAD_EMU_NCCL_VERSION=22105"}}, want: `ranks: cuda: rank 0 has NCCL 2.30.7, rank 1 has NCCL 2.21.5: they must be the same: install one, or name its file in GAD_NCCL`},
		{name: "settings", env: map[int][]string{1: {"NCCL_ALGO=Tree"}}, want: `ranks: cuda: NCCL: rank 0 has NCCL_ALGO=Ring, .*, rank 1 has NCCL_ALGO=Tree \(set by the user\), .*: they must be the same: set them alike on all ranks`},
		{name: "no file", env: map[int][]string{0: {"GAD_NCCL=/nonexistent/libnccl.so"}}, want: `ranks: cuda: driver: no NCCL: /nonexistent/libnccl.so: cannot open shared object file: No such file or directory: install NCCL 2.14 or later, or name the file in GAD_NCCL`},
		{name: "GPU that hangs", env: map[int][]string{1: {"GAD_EMU_NCCL_HANG=ncclAllReduce:1"}},
			want: `ranks: phase ` + gradients + `: all ranks answer, but their GPUs are not done within 6s \(trainer.rank_timeout\): a GPU or the network between them hangs \(NCCL_DEBUG=INFO says more\)`},
		{name: "group", zero: true, env: fail(1, "ncclGroupStart"),
			want: failed(weights, 1, "ncclGroupStart")},
		{name: "broadcast", zero: true, env: fail(0, "ncclBroadcast:5"),
			want: failed(weights, 0, "ncclBroadcast")},
		{name: "end of a group", zero: true, env: fail(1, "ncclGroupEnd:1"),
			want: failed(weights, 1, "ncclGroupEnd")},
		{name: "GPU that hangs in a broadcast", zero: true,
			env:  map[int][]string{0: {"GAD_EMU_NCCL_HANG=ncclBroadcast:2"}},
			want: `ranks: phase ` + weights + `: all ranks answer, but their GPUs are not done within 6s \(trainer.rank_timeout\): a GPU or the network between them hangs \(NCCL_DEBUG=INFO says more\)`},
		{name: "hangs when connecting", env: map[int][]string{0: {"GAD_EMU_NCCL_HANG=ncclCommInitRankConfig"}}, want: `ranks: phase ` + connecting + `: all ranks answer, but their GPUs are not done within 6s`},
		{name: "hangs in an abort",
			env: map[int][]string{
				1: {"GAD_EMU_NCCL_HANG=ncclCommAbort", "GAD_EMU_NCCL_FAIL=ncclAllReduce:1"}},
			want: failed(gradients, 1, "ncclAllReduce")},
		{name: "rank that is stopped",
			env: map[int][]string{1: {"GAD_EMU_NCCL_HANG=ncclAllReduce:1"}}, stop: true,
			want: `ranks: phase ` + gradients + `: rank 1 on \S+ did not answer within 6s \(trainer.rank_timeout\): it hangs or has ended: the same command resumes from the last checkpoint`},
		{name: "rank that does not come", env: map[int][]string{1: {"absent"}}, want: `tcp: rank 0 at 127.0.0.1:\d+: rank 1 did not come within 6s \(trainer.rank_timeout\): start all 2 ranks with the same address`},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := filepath.Join(t.TempDir(), "run")
			list := onGPUs(t, 2, c.env,
				f.stage("sft", run, 2, "--device", "cuda", "--precision", "f32", "trainer.shards=2",
					fmt.Sprint("trainer.shard_optimizer=", c.zero),
					fmt.Sprint("trainer.rank_timeout=", limit))...)
			begun := time.Now()
			if c.stop {
				// It is in the sum when both have begun it.
				list[0].hears(t, "2 ranks: gradients go by NCCL")
				time.Sleep(2 * time.Second)
				list[1].Process.Signal(syscall.SIGSTOP)
				begun = time.Now()
			}
			all := ""
			for r, p := range list {
				if p == nil {
					continue
				}
				if c.stop && r == 1 {
					p.Process.Kill()
					continue
				}
				p.wants(t, exitFailed)
				all += p.said.String()
			}
			took := time.Since(begun)
			t.Logf("%v", took.Round(time.Millisecond))
			if took > (limit+5+10)*time.Second { // 10 s for the start, on a machine that is busy
				t.Errorf("took %v", took)
			}
			if !regexp.MustCompile(`(?m)^gad: (rank \d on \S+: )?(trainer: step \d: actor: optimizer: )?` + c.want).MatchString(all) {
				t.Errorf("want %s\n%s", c.want, all)
			}
		})
	}
}

// gad bench of ranks with GPUs measures NCCL's sums and gathers beside the host's, and rank 0
// prints them.
func TestCUDABenchOfRanks(t *testing.T) {
	shape := t.TempDir()
	put(t, filepath.Join(shape, "config.json"), tinyConfig)
	list := onGPUs(t, 2, nil, "bench", "--ranks", "2", "--shape", shape, "--seconds", "0.1",
		"--device", "cuda", "--json")
	for _, p := range list {
		p.wants(t, exitDone)
	}
	said := list[0].said.String()
	_, text, _ := strings.Cut(said, "{")
	var r struct {
		Devices string
		Rows    []struct {
			Name         string
			Bytes, Least int64
			Calls        int
			Seconds      float64
			Sent         int64
			BusBandwidth float64 `json:"bus_bandwidth"`
		}
	}
	if err := json.NewDecoder(strings.NewReader("{" + text)).Decode(&r); err != nil ||
		len(r.Rows) != 16 ||
		!strings.HasPrefix(r.Devices, "gradients go by NCCL 2.30.7 (libnccl.so.2), ") ||
		strings.Contains(list[1].said.String(), "{") {
		t.Fatalf("%v, %q\n%s", err, r.Devices, said)
	}
	sums, groups := 1, 0 // one connects them
	for i, row := range r.Rows {
		least := map[string]int64{"device sum": row.Bytes, "device gather": row.Bytes / 2}[row.Name]
		if i < 8 != (least == 0) || i >= 8 && (row.Least != least || row.Sent != 0) ||
			row.Calls < 1 || row.Seconds <= 0 {
			t.Errorf("row %d is %+v", i, row)
		}
		if want := float64(row.Least) / row.Seconds; math.Abs(row.BusBandwidth-want) > 1e-9*want {
			t.Errorf("row %d: bus bandwidth %g, want %g", i, row.BusBandwidth, want)
		}
		switch row.Name {
		case "device sum":
			sums += row.Calls + 2
		case "device gather":
			groups += row.Calls + 2
		}
	}
	if want := fmt.Sprintf("emu: nccl: %d sums, %d groups\n", sums, groups); !strings.Contains(said,
		want) {
		t.Errorf("it does not say %q\n%s", want, said)
	}
}
