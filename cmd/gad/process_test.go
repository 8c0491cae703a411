//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is the path of the built program; -short tests do not build it.
func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the program: not with -short")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binary = sync.OnceValues(func() (string, error) {
	path := fixed.path("gad-binary")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

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
	p := &process{Cmd: exec.Command(path, args...), done: make(chan error, 1)}
	p.Stdout, p.Stderr = &p.said, &p.said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

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
		t.Fatalf("has not ended after %s", limit)
	}
	return 0
}

// wait polls for a condition.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 3000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited 30 s for %s", what)
}

func lines(path string) int {
	raw, _ := os.ReadFile(path)
	return bytes.Count(raw, []byte("\n"))
}

// Everything that has state is on.
var stateful = []string{"critic.replay.size=16", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "actor.ppo_epochs=2",
	"actor.optim.lr_scheduler=cosine", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2"}

// A run that is killed at random times, and started again with the same command
// until it is done, equals one that was not (RELIABILITY 1).
func TestKill(t *testing.T) {
	path, f := built(t), ready(t)
	const steps = 12
	args := func(run string) []string {
		return append([]string{"train", "--resume", f.path("warmup"), "--data", f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(steps)}, stateful...)
	}
	whole, run := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
	begun := time.Now()
	p := start(t, path, args(whole)...)
	if code := p.end(t, time.Minute); code != exitDone {
		t.Fatalf("exit status %d\n%s", code, p.said.String())
	}
	took := time.Since(begun)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	killed := 0
	for try := range 40 {
		p := start(t, path, args(run)...)
		if try < 8 {
			time.Sleep(time.Duration(r.Int64N(int64(took)/3)) + took/20)
			p.Process.Kill()
		}
		code := p.end(t, time.Minute)
		if code == exitDone {
			break
		}
		if code != -1 {
			t.Fatalf("seed %d: start %d: exit status %d\n%s", seed, try, code, p.said.String())
		}
		killed++
	}
	t.Logf("seed %d: killed %d times; a run takes %s", seed, killed, took.Round(time.Millisecond))
	if killed == 0 {
		t.Error("nothing was killed: the test shows nothing")
	}
	equalRuns(t, run, whole, steps)
	for name := range tree(t, run) {
		if strings.HasPrefix(name, ".commit") || strings.HasPrefix(name, ".prune") {
			t.Errorf("%s is left over", name)
		}
	}
}

// SIGINT and SIGTERM end the run after its step, saved, with exit status 75; the
// same command goes on, and the result is that of a run that was left alone
// (RELIABILITY 10).
func TestInterrupt(t *testing.T) {
	path, f := built(t), ready(t)
	const steps = 30
	args := func(run string) []string {
		return stage("warmup", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", fmt.Sprint(steps), "--critic-warmup", "3")
	}
	whole, run := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
	must(t, args(whole)...)
	for i, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		at := lines(filepath.Join(run, "metrics.jsonl"))
		p := start(t, path, args(run)...)
		wait(t, "two steps more", func() bool { return lines(filepath.Join(run, "metrics.jsonl")) >= at+2 })
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		code := p.end(t, 20*time.Second)
		if code == exitDone && i == 1 {
			t.Log("the run was done before the second signal came")
			break
		}
		if code != exitInterrupted {
			t.Fatalf("%v: exit status %d, want %d\n%s", sig, code, exitInterrupted, p.said.String())
		}
		n := lines(filepath.Join(run, "metrics.jsonl"))
		for _, text := range []string{"stopping after this step; once more to stop at once", fmt.Sprintf("stopped and saved after step %d of %d: run the same command again to go on", n, steps)} {
			if !strings.Contains(p.said.String(), text) {
				t.Errorf("%v: does not say %q:\n%s", sig, text, p.said.String())
			}
		}
		if _, err := os.Stat(filepath.Join(run, fmt.Sprintf("global_step_%d", n), "manifest.json")); err != nil {
			t.Error(err)
		}
	}
	p := start(t, path, args(run)...)
	if code := p.end(t, time.Minute); code != exitDone {
		t.Fatalf("exit status %d\n%s", code, p.said.String())
	}
	equalRuns(t, run, whole, steps)
}

// A second signal ends the process at once, in the middle of a long step, and a
// second process is refused while the first one runs.
func TestSecondSignalAndSecondProcess(t *testing.T) {
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	long := append(stage("warmup", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", "2"),
		"data.train_batch_size=40", "rollout.n=200", "data.max_response_length=60")
	p := start(t, path, long...)
	wait(t, "the first step", func() bool { return strings.Contains(fileText(filepath.Join(run, "log.jsonl")), "parameters;") })

	before := tree(t, run)
	begun := time.Now()
	code, _, said := gad(long...)
	if took := time.Since(begun); code != exitUsage || took > time.Second || !strings.Contains(said, fmt.Sprintf("run folder in use by process %d on host", p.Process.Pid)) || strings.Count(said, "\n") != 1 {
		t.Errorf("the second process: exit status %d after %s: %s", code, took, said)
	}
	for name, content := range tree(t, run) {
		if was, ok := before[name]; !ok || name != "log.jsonl" && was != content {
			t.Errorf("the second process has written %s", name)
		}
	}

	p.Process.Signal(os.Interrupt)
	wait(t, "the answer to the first signal", func() bool { return strings.Contains(p.said.String(), "once more") })
	p.Process.Signal(os.Interrupt)
	begun = time.Now()
	if code := p.end(t, 10*time.Second); code != exitFailed || time.Since(begun) > time.Second {
		t.Errorf("after the second signal: exit status %d after %s\n%s", code, time.Since(begun), p.said.String())
	}
}

func fileText(path string) string {
	raw, _ := os.ReadFile(path)
	return string(raw)
}
