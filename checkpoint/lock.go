package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"gad/internal/vfs"
)

const (
	lockName   = ".lock"
	holderMark = ".holder" // behind the name of a lock file
)

// holder is what the file beside the lock says of who holds it.
type holder struct {
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// Lock is the right to write in a run folder, or to make an output file. The
// operating system takes it back when the process ends, however it ends.
type Lock struct {
	flock  *flock.Flock
	what   string // the folder or the output
	output bool
}

// LockRun takes the lock of a run folder, which is made if it is missing. If
// another process, or another Lock of this one, has it, it is ErrLocked at once,
// the message names who, and nothing is written. It is vfs.ErrTarget where nothing can
// be written, ErrSpace where the disk is full.
func LockRun(dir string) (*Lock, error) {
	if err := vfs.MakeDirs(vfs.OS, dir); err != nil {
		return nil, lockFailed(dir, err)
	}
	if err := ownFiles(dir); err != nil {
		return nil, err
	}
	l := &Lock{flock: newFlock(filepath.Join(dir, lockName)), what: dir}
	ok, err := l.flock.TryLock()
	if err != nil {
		return nil, lockFailed(dir, err)
	}
	if !ok {
		return nil,
			fmt.Errorf(
				"checkpoint: %s: run folder %w by %s: wait until it ends, or choose another folder",
				dir, ErrLocked, readHolder(l.flock.Path()))
	}
	return l.signed()
}

// written are what a run writes in its folder under names that stay, beside checkpoints: a link in
// the place of one would lead its writes out of the folder.
var written = []string{lockName, "log.jsonl", "metrics.jsonl", "samples", "tb"}

// ownFiles refuses a run folder, which somebody else may have made, that has a link where a run
// writes, or a pipe, a socket or a device anywhere at its top.
func ownFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return lockFailed(dir, err)
	}
	for _, e := range entries {
		what := ""
		switch mode := e.Type(); {
		case mode&fs.ModeSymlink != 0 && slices.Contains(written, e.Name()):
			what = "is a link, and a run writes in its own folder only: put what it leads to in its place"
		case mode&fs.ModeSymlink == 0 && !mode.IsRegular() && !mode.IsDir():
			what = "is neither a file nor a folder: remove it"
		}
		if what != "" {
			return fmt.Errorf("checkpoint: %s: %w: %s %s", dir, vfs.ErrTarget, e.Name(), what)
		}
	}
	return nil
}

// LockOutput takes the lock of an output file that is about to be made: a hidden file
// beside it, which Unlock removes. Errors are those of LockRun. The folder of path must exist.
func LockOutput(path string) (*Lock, error) {
	file := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+lockName)
	for {
		l := &Lock{flock: newFlock(file), what: path, output: true}
		ok, err := l.flock.TryLock()
		if err != nil {
			return nil, lockFailed(path, err)
		}
		if !ok {
			return nil,
				fmt.Errorf("checkpoint: %s: %w by %s: wait until it ends, or choose another name",
					path, ErrLocked, readHolder(file))
		}
		// The holder before may have removed the file between our opening and our locking
		// it: then the next process would lock another file of this name.
		held, err := l.flock.Stat()
		if err == nil {
			var named fs.FileInfo
			if named, err = os.Stat(file); err == nil && os.SameFile(held, named) {
				return l.signed()
			}
		}
		if unlockErr := l.flock.Unlock(); unlockErr != nil || err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return nil, lockFailed(path, cmp.Or(unlockErr, err))
		}
	}
}

// Alone runs work, which makes the file or folder path, while it holds the lock of that output: a
// second maker is refused at once. Folders above path are made. Errors are those of LockRun.
func Alone(path string, work func() error) (err error) {
	path = filepath.Clean(path)
	if err := vfs.MakeDirs(vfs.OS, filepath.Dir(path)); err != nil {
		if err := work(); err != nil { // it knows what it was about to make, and says why it cannot
			return err
		}
		return lockFailed(path, err)
	}
	lock, err := LockOutput(path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	return work()
}

func newFlock(file string) *flock.Flock {
	return flock.New(file, flock.SetPermissions(0o644)) // gad doctor of another user reads it
}

// signed is l once it says beside the lock file who holds it.
func (l *Lock) signed() (*Lock, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// Two numbers and a string: it cannot fail.
	text, _ := json.Marshal(holder{os.Getpid(), host})
	if err := vfs.WriteFile(vfs.OS, l.flock.Path()+holderMark, append(text, '\n')); err != nil {
		_ = l.Unlock() // err is the one to report
		return nil, lockFailed(l.what, err)
	}
	return l, nil
}

func lockFailed(path string, err error) error {
	return ExplainFull(vfs.OS, path, 0,
		fmt.Errorf("checkpoint: %s: lock: %w", path, vfs.Target(err)))
}

// Holder returns who works in a run folder, "" if nobody does. It writes nothing;
// a LockRun of another process in the same moment may be refused.
func Holder(dir string) (who string, err error) {
	if info, err := os.Stat(filepath.Join(dir, lockName)); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("checkpoint: %s: %w", filepath.Join(dir, lockName), vfs.ErrNotRegular)
	} else if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil // never locked
		}
		return "", fmt.Errorf("checkpoint: %s: lock: %w", dir, err)
	}
	l := flock.New(filepath.Join(dir, lockName), flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock()             // shared: two who ask do not see each other
	if errors.Is(err, fs.ErrPermission) { // another user's, of an earlier version of gad
		if _, err := os.Stat(filepath.Join(dir, lockName+holderMark)); err != nil {
			return "", nil // whoever works in a folder has left its name there
		}
		return readHolder(filepath.Join(dir, lockName)) +
			", if it is still running: the lock belongs to another user and cannot be read", nil
	}
	if err == nil && free {
		err = l.Unlock()
	} else if err == nil {
		who = readHolder(filepath.Join(dir, lockName))
		err = l.Close()
	}
	if err != nil {
		return "", fmt.Errorf("checkpoint: %s: lock: %w", dir, err)
	}
	return who, nil
}

// readHolder names the process that holds a lock file. It may be writing its name
// just now: wait a little for it.
func readHolder(file string) string {
	for range 20 {
		data, err := readSmall(vfs.OS, file+holderMark, 1<<12)
		var h holder
		if err == nil && json.Unmarshal(data, &h) == nil && h.PID > 0 {
			return fmt.Sprintf("process %d on host %q", h.PID, h.Host)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "an unknown process"
}

// ErrMoved is wrapped where the folder of a lock was removed, renamed or replaced.
var ErrMoved = errors.New("the folder was removed or renamed")

// Held reports whether the lock's file is still the one that its path names: what is written to the
// path afterwards is in the folder that is locked.
func (l *Lock) Held() error {
	held, err := l.flock.Stat()
	if err != nil {
		return lockFailed(l.what, err)
	}
	if named, err := os.Stat(l.flock.Path()); err != nil || !os.SameFile(held, named) {
		return fmt.Errorf("checkpoint: %s: %w while a process worked in it: move it back, and run the same command again: it resumes from the last checkpoint there",
			l.what, ErrMoved)
	}
	return nil
}

// Unlock gives the lock back. The lock file of a run stays: to remove it would let two
// processes lock two files of one name. That of an output is removed: LockOutput looks.
func (l *Lock) Unlock() error {
	file := l.flock.Path()
	err := missingIsFine(vfs.OS.Remove(file + holderMark))
	if !l.output {
		err = cmp.Or(err, l.flock.Unlock())
	} else if runtime.GOOS == "windows" { // removes no file that is open, so none that another has locked
		err = cmp.Or(err, l.flock.Unlock())
		_ = vfs.OS.Remove(file)
	} else { // while it is held: afterwards it might be another's
		err = cmp.Or(err, missingIsFine(vfs.OS.Remove(file)), l.flock.Unlock())
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: unlock: %w", l.what, err)
	}
	return nil
}

func missingIsFine(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
