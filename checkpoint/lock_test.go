package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/vfs"

	"gad/internal/hostile"
)

// holdEnv makes the test binary a process that holds a lock until it is killed.
const holdEnv = "GAD_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		if _, err := LockRun(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("locked")
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(hostile.Main(m))
}

// hold starts another process that holds the lock of dir.
func hold(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "locked\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd
}

// listing returns the names, sizes and times of a folder.
func listing(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, e.Name(), info.Size(), info.ModTime())
	}
	return b.String()
}

// While one process holds a run, a second is refused at once, learns who holds
// it, and writes nothing. Once the first is killed, the run is free.
func TestTwoProcesses(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 3
	}
	dir := filepath.Join(t.TempDir(), "new", "run")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	for range rounds {
		other := hold(t, dir)
		before := listing(t, dir)
		start := time.Now()
		lock, err := LockRun(dir)
		slowest = max(slowest, time.Since(start))
		if lock != nil || !errors.Is(err, ErrLocked) {
			t.Fatalf("the second process got the lock: %v", err)
		}
		for _, part := range []string{fmt.Sprintf("process %d ", other.Process.Pid), host, dir} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
		if who, err := Holder(dir); err != nil ||
			!strings.HasPrefix(who, fmt.Sprintf("process %d ", other.Process.Pid)) {
			t.Errorf("Holder says %q, %v", who, err)
		}
		if after := listing(t, dir); after != before {
			t.Errorf("the refused process wrote:\n%s%s", before, after)
		}
		if err := other.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = other.Wait()
		if who, err := Holder(dir); who != "" || err != nil {
			t.Errorf("after kill -9 Holder says %q, %v", who, err)
		}
		lock, err = LockRun(dir)
		if err != nil {
			t.Fatalf("after kill -9: %v", err)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if slowest > time.Second {
		t.Errorf("refused after %v", slowest)
	}
	t.Logf(
		"row 11: one process a folder: %d rounds: refused within %v, %d of %d free after kill -9",
		rounds, slowest, rounds, rounds)
}

func TestLockWithinAProcess(t *testing.T) {
	dir := t.TempDir()
	a, err := LockRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockRun(dir); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("a second lock: %v", err)
	}
	if err := a.Unlock(); err != nil {
		t.Fatal(err)
	}
	b, err := LockRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	// A broken note of the holder is no obstacle.
	if err := os.WriteFile(filepath.Join(dir, lockName+holderMark), []byte("{"),
		0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := LockRun(dir); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "by an unknown process") {
		t.Errorf("a second lock: %v", err)
	}
	if err := b.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := LockRun(filepath.Join(dir, lockName)); !errors.Is(err, vfs.ErrTarget) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a file was locked as a folder: %v", err)
	}
	if who, err := Holder(filepath.Join(dir, "none")); who != "" || err != nil {
		t.Errorf("a folder that is not there: %q, %v", who, err)
	}
}

// One output has one maker, however many try and however often it changes hands; nothing
// of the lock is left.
func TestLockOutput(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "answers.jsonl")
	a, err := LockOutput(out)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("checkpoint: %s: in use by process %d on host ", out, os.Getpid())
	if l, err := LockOutput(out); l != nil || !errors.Is(err, ErrLocked) ||
		!strings.HasPrefix(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), ": wait until it ends, or choose another name") {
		t.Errorf("a second lock: %v", err)
	}
	if other, err := LockOutput(filepath.Join(dir, "other.jsonl")); err != nil {
		t.Errorf("another output in the same folder: %v", err)
	} else if err := other.Unlock(); err != nil {
		t.Error(err)
	}
	if err := a.Unlock(); err != nil {
		t.Fatal(err)
	}
	var inside, got atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for got.Load() < 200 {
				l, err := LockOutput(out)
				if errors.Is(err, ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				got.Add(1)
				inside.Add(-1)
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := listing(t, dir); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if _, err := LockOutput(filepath.Join(dir, "none", "answers.jsonl")); !errors.Is(err,
		vfs.ErrTarget) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

// One of two makers of a folder works, and the folder is whole; the other is refused before it
// writes. Folders above it are made, and nothing of the lock is left.
func TestAlone(t *testing.T) {
	above := filepath.Join(t.TempDir(), "a")
	out := filepath.Join(above, "b")
	fill := func(d *Dir) error {
		second := Alone(out+string(filepath.Separator), func() error {
			t.Error("two work at once")
			return nil
		})
		if !errors.Is(second, ErrLocked) {
			t.Errorf("the second maker: %v", second)
		}
		return d.WriteFile("weights", []byte("w"))
	}
	if err := Alone(out, func() error { return WriteFolder(vfs.OS, out, fill) }); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "weights")); string(got) != "w" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if entries, err := os.ReadDir(above); len(entries) != 1 || err != nil {
		t.Errorf("left beside the folder: %v, %v", entries, err)
	}
}
