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
	holderMark = ".holder" // suffix to the name of a lock file
)

// holder is the content of the file next to the lock file: the process that holds the lock.
type holder struct {
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// Lock is the exclusive right to write in a run folder, or to create an output file. The operating
// system releases it when the process ends, however it ends.
type Lock struct {
	flock  *flock.Flock
	what   string // the folder or the output
	output bool
}

// LockRun takes the lock of a run folder, which is created if it is missing. If another process, or
// another Lock of this one, holds it, the error is ErrLocked at once, with the holder's name, and
// nothing is written. The error is vfs.ErrTarget if the folder cannot be written, ErrSpace if the
// disk is full.
func LockRun(dir string) (*Lock, error) {
	if err := vfs.MakeDirs(vfs.OS, dir); err != nil {
		return nil, lockError(dir, err)
	}
	if err := ownFiles(dir); err != nil {
		return nil, err
	}
	l := &Lock{flock: newFlock(filepath.Join(dir, lockName)), what: dir}
	ok, err := l.flock.TryLock()
	if err != nil {
		return nil, lockError(dir, err)
	}
	if !ok {
		return nil,
			fmt.Errorf(
				"checkpoint: %s: run folder %w by %s: wait until it ends, or choose another folder",
				dir, ErrLocked, readHolder(l.flock.Path()))
	}
	return l.writeHolder()
}

// fixedNames lists the files outside checkpoints that a run writes in its folder under fixed names:
// a link of such a name would lead its writes out of the folder.
var fixedNames = []string{lockName, "log.jsonl", "metrics.jsonl", "samples", "tb"}

// ownFiles refuses a run folder, which somebody else may have made, that has a link of a name that
// a run writes, or a pipe, a socket or a device at its top level.
func ownFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return lockError(dir, err)
	}
	for _, e := range entries {
		what := ""
		switch mode := e.Type(); {
		case mode&fs.ModeSymlink != 0 && slices.Contains(fixedNames, e.Name()):
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

// LockOutput takes the lock of an output file that is about to be created: a hidden file next to
// it, which Unlock removes. Errors are LockRun's. The folder of path must exist.
func LockOutput(path string) (*Lock, error) {
	file := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+lockName)
	for {
		l := &Lock{flock: newFlock(file), what: path, output: true}
		ok, err := l.flock.TryLock()
		if err != nil {
			return nil, lockError(path, err)
		}
		if !ok {
			return nil,
				fmt.Errorf("checkpoint: %s: %w by %s: wait until it ends, or choose another name",
					path, ErrLocked, readHolder(file))
		}
		// The previous holder may have removed the file between our opening and our locking it:
		// then the next process would lock another file of this name.
		held, err := l.flock.Stat()
		if err == nil {
			var named fs.FileInfo
			if named, err = os.Stat(file); err == nil && os.SameFile(held, named) {
				return l.writeHolder()
			}
		}
		if unlockErr := l.flock.Unlock(); unlockErr != nil || err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return nil, lockError(path, cmp.Or(unlockErr, err))
		}
	}
}

// Alone runs work, which creates the file or folder path, while it holds the lock of that output: a
// second process is refused at once. Folders above path are created. Errors are LockRun's.
func Alone(path string, work func() error) (err error) {
	path = filepath.Clean(path)
	if err := vfs.MakeDirs(vfs.OS, filepath.Dir(path)); err != nil {
		if err := work(); err != nil { // its error names the output
			return err
		}
		return lockError(path, err)
	}
	lock, err := LockOutput(path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	return work()
}

// newFlock returns an unlocked lock file that other users can read.
func newFlock(file string) *flock.Flock {
	return flock.New(file, flock.SetPermissions(0o644)) // gad doctor of another user reads it
}

// writeHolder writes the file that names the holder, and returns l. If that fails it unlocks l.
func (l *Lock) writeHolder() (*Lock, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// Two numbers and a string: it cannot fail.
	text, _ := json.Marshal(holder{os.Getpid(), host})
	if err := vfs.WriteFile(vfs.OS, l.flock.Path()+holderMark, append(text, '\n')); err != nil {
		_ = l.Unlock() // err is the one to report
		return nil, lockError(l.what, err)
	}
	return l, nil
}

// lockError returns the error of a lock that cannot be taken or read.
func lockError(path string, err error) error {
	return ExplainFull(vfs.OS, path, 0,
		fmt.Errorf("checkpoint: %s: lock: %w", path, vfs.Target(err)))
}

// Holder returns who holds the lock of a run folder, "" if nobody does. It writes nothing; a
// LockRun of another process at the same moment may be refused.
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
	free, err := l.TryRLock()             // shared, so that two callers do not disturb each other
	if errors.Is(err, fs.ErrPermission) { // another user's, of an earlier version of gad
		if _, err := os.Stat(filepath.Join(dir, lockName+holderMark)); err != nil {
			return "", nil // a process that works in a folder has written its name there
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

// readHolder returns the name of the process that holds a lock file. It waits a little, since that
// process may be writing its name just now.
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

// ErrMoved is wrapped by the error of a lock whose folder was removed, renamed or replaced.
var ErrMoved = errors.New("the folder was removed or renamed")

// CheckHeld returns ErrMoved unless the path of the lock file still leads to the locked file: then
// later writes to the path go to the locked folder.
func (l *Lock) CheckHeld() error {
	held, err := l.flock.Stat()
	if err != nil {
		return lockError(l.what, err)
	}
	if named, err := os.Stat(l.flock.Path()); err != nil || !os.SameFile(held, named) {
		return fmt.Errorf("checkpoint: %s: %w while a process worked in it: move it back, and run the same command again: it resumes from the last checkpoint there",
			l.what, ErrMoved)
	}
	return nil
}

// Unlock releases the lock. The lock file of a run stays: removing it would let two processes lock
// two files of one name. The lock file of an output is removed; LockOutput checks for that.
func (l *Lock) Unlock() error {
	file := l.flock.Path()
	err := ignoreMissing(vfs.OS.Remove(file + holderMark))
	if !l.output {
		err = cmp.Or(err, l.flock.Unlock())
	} else if runtime.GOOS == "windows" { // removes no file that is open, so none that another has locked
		err = cmp.Or(err, l.flock.Unlock())
		_ = vfs.OS.Remove(file)
	} else { // while it is held: afterwards another process might own it
		err = cmp.Or(err, ignoreMissing(vfs.OS.Remove(file)), l.flock.Unlock())
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: unlock: %w", l.what, err)
	}
	return nil
}

// ignoreMissing returns err, or nil if err reports a missing file.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
