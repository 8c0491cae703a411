package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"gad/internal/vfs"
)

const (
	lockName   = ".lock"
	holderName = ".lock.holder"
)

// holder is what the file beside the lock says of who holds it.
type holder struct {
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// Lock is the right to write in a run folder. The operating system takes it
// back when the process ends, however it ends.
type Lock struct {
	flock *flock.Flock
	dir   string
}

// LockRun takes the lock of a run folder, which is made if it is missing. If
// another process, or another Lock of this one, has it, it is ErrLocked at once,
// the message names who, and nothing is written. It is vfs.ErrTarget where nothing can
// be written, ErrSpace where the disk is full.
func LockRun(dir string) (*Lock, error) {
	if err := vfs.MakeDirs(vfs.OS, dir); err != nil {
		return nil, lockFailed(dir, err)
	}
	l := &Lock{flock: flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o644)), dir: dir} // gad doctor of another user reads it
	ok, err := l.flock.TryLock()
	if err != nil {
		return nil, lockFailed(dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("checkpoint: %s: %w by %s: wait until it ends, or choose another folder", dir, ErrLocked, readHolder(dir))
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// Two numbers and a string: it cannot fail.
	text, _ := json.Marshal(holder{os.Getpid(), host})
	if err := vfs.WriteFile(vfs.OS, filepath.Join(dir, holderName), append(text, '\n')); err != nil {
		_ = l.flock.Unlock() // err is the one to report
		return nil, lockFailed(dir, err)
	}
	return l, nil
}

func lockFailed(dir string, err error) error {
	return ExplainFull(vfs.OS, dir, 0, fmt.Errorf("checkpoint: %s: lock: %w", dir, vfs.Target(err)))
}

// Holder returns who works in a run folder, "" if nobody does. It writes nothing;
// a LockRun of another process in the same moment may be refused.
func Holder(dir string) (who string, err error) {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil // never locked
		}
		return "", fmt.Errorf("checkpoint: %s: lock: %w", dir, err)
	}
	l := flock.New(filepath.Join(dir, lockName), flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock()             // shared: two who ask do not see each other
	if errors.Is(err, fs.ErrPermission) { // another user's, of an earlier version of gad
		if _, err := os.Stat(filepath.Join(dir, holderName)); err != nil {
			return "", nil // whoever works in a folder has left its name there
		}
		return readHolder(dir) + ", if it is still running: the lock belongs to another user and cannot be read", nil
	}
	if err == nil && free {
		err = l.Unlock()
	} else if err == nil {
		who = readHolder(dir)
		err = l.Close()
	}
	if err != nil {
		return "", fmt.Errorf("checkpoint: %s: lock: %w", dir, err)
	}
	return who, nil
}

// readHolder names the process that holds the lock of dir. It may be writing
// its name just now: wait a little for it.
func readHolder(dir string) string {
	for range 20 {
		data, err := readSmall(vfs.OS, filepath.Join(dir, holderName), 1<<12)
		var h holder
		if err == nil && json.Unmarshal(data, &h) == nil && h.PID > 0 {
			return fmt.Sprintf("process %d on host %q", h.PID, h.Host)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "an unknown process"
}

// Unlock gives the lock back. The lock file itself stays: to remove it would let
// two processes lock two files of one name.
func (l *Lock) Unlock() error {
	err := vfs.OS.Remove(filepath.Join(l.dir, holderName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = cmp.Or(err, l.flock.Unlock()); err != nil {
		return fmt.Errorf("checkpoint: %s: unlock: %w", l.dir, err)
	}
	return nil
}
