//go:build unix

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gad/internal/hostile"
)

// process is a started gad.
type process struct {
	*exec.Cmd
	said speech
	done chan error
}

// speech is what a process says, readable while it speaks.
type speech struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *speech) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *speech) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func start(t *testing.T, path string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, path, args...)
}

// startWith starts the program with env added to the environment.
func startWith(t *testing.T, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(path, args...), done: make(chan error, 1)}
	p.Stdout, p.Stderr, p.Env = &p.said, &p.said, append(os.Environ(), env...)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

// stopped starts gad, sends it the signal by once holds is true, and returns how gad ended.
func stopped(t *testing.T, what string, holds func() bool, by os.Signal, path string,
	args ...string) (code int, said string) {
	t.Helper()
	p := start(t, path, args...)
	wait(t, what, holds)
	p.Process.Signal(by)
	return p.end(t, patience), p.said.String()
}

// patience is how long a process may take where time is not the matter: on a machine
// whose cores others have, a step of milliseconds takes half a minute.
const patience = 5 * time.Minute

// end waits for the process and returns its exit status, -1 for a signal.
func (p *process) end(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case err := <-p.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return p.ProcessState.ExitCode()
	case <-time.After(limit):
		p.Process.Signal(syscall.SIGQUIT) // it says where it stands
		select {
		case <-p.done:
		case <-time.After(time.Minute):
		}
		t.Fatalf("has not ended after %s\n%s", limit, p.said.String())
	}
	return 0
}

// wants waits for the process, which has to end with an exit status and to have said the texts.
func (p *process) wants(t *testing.T, code int, texts ...string) {
	t.Helper()
	got, said := p.end(t, patience), p.said.String()
	if got != code || slices.ContainsFunc(texts, func(s string) bool {
		return !strings.Contains(said, s)
	}) {
		t.Fatalf("exit status %d, want %d and %q\n%s", got, code, texts, said)
	}
}

// hears waits until the process has said a text.
func (p *process) hears(t *testing.T, text string) {
	t.Helper()
	wait(t, text, func() bool { return strings.Contains(p.said.String(), text) })
}

// begins waits until a run says in its log that its first step begins.
func begins(t *testing.T, run string) {
	t.Helper()
	wait(t, "the first step", func() bool {
		return strings.Contains(fileText(filepath.Join(run, "log.jsonl")), "parameters;")
	})
}

// wait polls for a condition.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 12000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited two minutes for %s", what)
}

// Everything that has state is on.
var stateful = []string{"critic.replay.size=16", "critic.group_ot=0.01", "algorithm.adv_power=1.5",
	"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "actor.ppo_epochs=2",
	"actor.optim.lr_scheduler=cosine", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2"}

// The sizes of the tests that deal with processes; scripts/soak.sh raises them.
var (
	kills   = flag.Int("kills", few(50, 3), "processes that TestKill kills")
	signals = flag.Int("signals", few(12, 2), "processes that TestInterrupt interrupts")
	steady  = flag.Int("steady", 500, "steps of TestSteadyMemory")
)

// few is all of them with GAD_LONG, and otherwise some.
func few(all, some int) int {
	if hostile.Long() {
		return all
	}
	return some
}

// A killable is a way to start a run that saves after each step, with everything on that
// has state. share is its part of the kills.
type killable struct {
	name  string
	share int // one of so many
	args  func(f *fixture, run string, steps int) []string
}

// ofBoth is a run in which both networks learn, from the given student.
func ofBoth(student string, more ...string) func(f *fixture, run string, steps int) []string {
	return func(f *fixture, run string, steps int) []string {
		args := stage("warmup", "--model", f.path(student), "--data", f.path("train.arrow"),
			"--output", run, "--steps", fmt.Sprint(steps), "--critic-warmup", "1",
			"trainer.warmup_objective=policy")
		return slices.Concat(args, stateful, more)
	}
}

var killables = []killable{
	{"game", 1, func(f *fixture, run string, steps int) []string {
		return append([]string{"train", "--resume", f.path("warmup"), "--data",
			f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(steps)}, stateful...)
	}},
	{"lora", 5, ofBoth("student", "actor.lora.rank=4", "critic.lora.rank=4",
		"actor.use_kl_loss=true")},
	{"moments in 8 bits", 5, ofBoth("wide", "actor.optim.moments=8bit",
		"critic.optim.moments=8bit")},
	{"chunks", 5, ofBoth("student", "rollout.chunk=4", "rollout.carry=2", "rollout.chunks=4")},
	{"a student's own notes", 5, func(f *fixture, run string, steps int) []string {
		return append([]string{"opd", "--model", f.path("student"), "--teacher", f.path("student"),
			"--data", f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(steps), "--coach",
			"@student", "data.max_prompt_length=64", "data.max_response_length=10",
			"coach.max_tokens=20", "coach.question={prompt} {answer}", "teacher.renew=3"}, stateful...)
	}},
	{"chosen rows", 5, ofBoth("student", "data.where=teacher_response != 'It is 9.'")},
}

// saving reports whether a save or a prune is under way in a run folder, or was
// when its process died.
func saving(run string) bool {
	list, _ := os.ReadDir(run)
	for _, e := range list {
		if n := e.Name(); strings.HasPrefix(n, ".commit-") || strings.HasPrefix(n, ".prune-") ||
			strings.HasPrefix(n, ".latest") {
			return true
		}
	}
	return false
}

// A run that is killed at random times, at least a quarter of them inside a save or
// a prune, and started again with the same command until it is done, equals one
// that was not: metrics and weights byte for byte (doc/reliability.md, row 1).
func TestKill(t *testing.T) {
	t.Parallel()
	path, f := built(t), ready(t)
	steps := few(12, 6)
	for i, k := range killables {
		if i > 0 && !hostile.Long() {
			continue // trainer's tests kill them within one process
		}
		t.Run(k.name, func(t *testing.T) {
			whole := filepath.Join(t.TempDir(), "whole")
			begun := time.Now()
			p := start(t, path, k.args(f, whole, steps)...)
			p.wants(t, exitDone)
			took := time.Since(begun)
			seed := uint64(time.Now().UnixNano())
			r := rand.New(rand.NewPCG(seed, 0))
			most := (*kills + k.share - 1) / k.share
			killed, inside, runs := 0, 0, 0
			for ; killed < most && !t.Failed(); runs++ {
				run := filepath.Join(t.TempDir(), "run")
				for try := 0; ; try++ {
					if try > 200 {
						t.Fatalf("seed %d: no end after %d starts", seed, try)
					}
					p := start(t, path, k.args(f, run, steps)...)
					if killed < most && try < 40 {
						killAt(p, r, run, took)
					}
					code := p.end(t, patience)
					if code == exitDone {
						break
					}
					if code != -1 {
						t.Fatalf("seed %d: start %d: exit status %d\n%s", seed, try, code,
							p.said.String())
					}
					killed++
					if saving(run) {
						inside++
					}
				}
				equalRuns(t, run, whole, steps)
				if saving(run) {
					t.Errorf("seed %d: something is left over in %s", seed, run)
				}
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
				os.RemoveAll(run)
			}
			t.Logf("row 1: kill -9: %s: %d kills in %d runs of %d steps, %d of them inside a save or prune, 0 divergences (a run takes %s; seed %d)",
				k.name, killed, runs, steps, inside, took.Round(time.Millisecond), seed)
			if killed > 20 && 4*inside < killed {
				t.Errorf(
					"only %d of %d kills came inside a save or prune: the test shows too little",
					inside, killed)
			}
		})
	}
}

// killAt kills p at a random time, or a moment after it is seen to save for the
// first, second or third time.
func killAt(p *process, r *rand.Rand, run string, took time.Duration) {
	if r.IntN(5) < 2 {
		time.Sleep(took/12 + time.Duration(r.Int64N(int64(took)/2)))
		p.Process.Kill()
		return
	}
	pass, within := r.IntN(3), time.Duration(r.Int64N(int64(2*time.Millisecond)))
	deadline := time.Now().Add(took)
	for was := false; time.Now().Before(deadline); {
		now := saving(run)
		if now && !was {
			if pass--; pass < 0 {
				break
			}
		}
		was = now
		time.Sleep(30 * time.Microsecond)
	}
	time.Sleep(within)
	p.Process.Kill()
}

// SIGINT and SIGTERM at random times end the run within one step, saved, with exit
// status 75; the same command goes on, and the result is that of a run that was left
// alone (doc/reliability.md, row 10). Before it takes its first step a run has nothing to save,
// and a signal has its usual effect.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	path, f := built(t), ready(t)
	steps := few(120, 20) // beside which the start is short
	args := func(run string) []string {
		return f.stage("warmup", run, steps, "--critic-warmup", "3", "trainer.save_freq=10")
	}
	whole := filepath.Join(t.TempDir(), "whole")
	begun := time.Now()
	// a process: its start is part of the time
	start(t, path, args(whole)...).wants(t, exitDone)
	took := time.Since(begun)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	sent, saved, early, runs := 0, 0, 0, 0
	var slowest time.Duration
	for ; sent < *signals && !t.Failed(); runs++ {
		run := filepath.Join(t.TempDir(), "run")
		for try := 0; ; try++ {
			if try > 200 {
				t.Fatalf("seed %d: no end after %d starts", seed, try)
			}
			p := start(t, path, args(run)...)
			sig := []os.Signal{os.Interrupt, syscall.SIGTERM}[r.IntN(2)]
			interrupted := sent < *signals
			var at time.Time
			if interrupted {
				time.Sleep(time.Duration(r.Int64N(int64(took))))
				at = time.Now()
				if p.Process.Signal(sig) != nil {
					interrupted = false // it had ended
				}
			}
			code := p.end(t, patience)
			if code == exitDone {
				break
			}
			if !interrupted {
				t.Fatalf("seed %d: start %d: exit status %d\n%s", seed, try, code, p.said.String())
			}
			sent++
			slowest = max(slowest, time.Since(at))
			if code == -1 && !strings.Contains(p.said.String(), "  step ") &&
				!strings.Contains(p.said.String(), "stopping") {
				early++
				continue
			}
			if code != exitInterrupted {
				t.Fatalf("seed %d: %v: exit status %d, want %d\n%s", seed, sig, code,
					exitInterrupted, p.said.String())
			}
			saved++
			n := lines(filepath.Join(run, "metrics.jsonl"))
			want := fmt.Sprintf(
				"stopped and saved after step %d of %d: run the same command again to resume", n,
				steps)
			if n == 0 {
				want = fmt.Sprintf("stopped before step 1 of %d was finished, so nothing is saved: run the same command again to resume", steps)
			} else if _, err := os.Stat(
				filepath.Join(run, fmt.Sprintf("global_step_%d", n), "manifest.json")); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			for _, text := range []string{"stopping: the run is saved after this step, or before it if it is still sampling; a second Ctrl-C stops at once, without saving", want} {
				if !strings.Contains(p.said.String(), text) {
					t.Errorf("seed %d: %v: does not say %q:\n%s", seed, sig, text, p.said.String())
				}
			}
			if last := lastLine(fileText(filepath.Join(run, "log.jsonl"))); !strings.Contains(last, `"end":"interrupted"`) {
				t.Errorf("seed %d: the log's last line: %s", seed, last)
			}
		}
		equalRuns(t, run, whole, steps)
		os.RemoveAll(run)
	}
	t.Logf("row 10: SIGINT and SIGTERM: %d signals in %d runs, %d saved with exit status 75, %d came before there was anything to save, the slowest end %s, 0 divergences (seed %d)",
		sent, runs, saved, early, slowest.Round(time.Millisecond), seed)
	if sent > 8 && 2*saved < sent {
		t.Errorf("only %d of %d signals came to a run under way: the test shows too little", saved,
			sent)
	}
}

// longStep is a command line of sft whose steps take many seconds: a batch of 30,000, and as
// many rows as such a batch needs.
func longStep(t *testing.T, f *fixture, run string, args ...string) []string {
	t.Helper()
	rows, text := filepath.Join(t.TempDir(), "rows.jsonl"), fileText(f.path("test.jsonl"))
	put(t, rows, strings.Repeat(text, 1+300/lines(f.path("test.jsonl"))))
	return append(stage("sft", "--model", f.path("student"), "--data", rows, "--output", run,
		"--threads", "1"), append(args, "data.train_batch_size=30000")...)
}

// A second signal ends the process at once, in the middle of a long step, and a
// second process is refused while the first one runs.
func TestSecondSignalAndSecondProcess(t *testing.T) {
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	// One step of the teacher's answers: it cannot be left in the middle, as sampling can.
	long := longStep(t, f, run, "--steps", "2")
	p := start(t, path, long...)
	begins(t, run)

	before := tree(t, run)
	// A second, and more on a machine that is so busy that a process which does nothing takes long.
	begun := time.Now()
	start(t, path, "--version").wants(t, exitDone)
	within := time.Second + 20*time.Since(begun)
	begun = time.Now()
	code, _, said := gad(long...)
	if took := time.Since(begun); code != exitUsage || took > within ||
		!strings.Contains(said,
			fmt.Sprintf("run folder in use by process %d on host", p.Process.Pid)) ||
		strings.Count(said, "\n") != 1 {
		t.Errorf("the second process: exit status %d after %s: %s", code, took, said)
	}
	for name, content := range tree(t, run) {
		if was, ok := before[name]; !ok || name != "log.jsonl" && was != content {
			t.Errorf("the second process has written %s", name)
		}
	}

	p.Process.Signal(os.Interrupt)
	p.hears(t, "a second Ctrl-C")
	p.Process.Signal(os.Interrupt)
	begun = time.Now()
	code = p.end(t, patience)
	took := time.Since(begun)
	if code != exitFailed || took > within {
		t.Errorf("after the second signal: exit status %d after %s\n%s", code, took,
			p.said.String())
	}
	if last := lastLine(fileText(filepath.Join(run, "log.jsonl"))); !strings.Contains(last, `"end":"aborted"`) || !strings.Contains(last, "second signal") {
		t.Errorf("the log's last line: %s", last)
	}
	t.Logf("row 10: second signal: ended after %s", took.Round(time.Microsecond))
}

// A signal that comes when the run has ended, saved or not, and the process is on its
// way out, does not end it with another exit status. If it did, it would end this test.
func TestSignalAfterTheEnd(t *testing.T) {
	p := &program{err: io.Discard}
	ctx, stop := p.interruptible(func(string) {}, func(why string) { t.Error(why) })
	stop()
	<-ctx.Done()
	for range 3 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func lastLine(s string) string {
	s = strings.TrimSuffix(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}
