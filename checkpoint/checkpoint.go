// Package checkpoint stores the checkpoints of a run: folders that are whole and verified, or
// absent. It knows names and bytes, not models.
//
//	checkpoint.go  the run folder: newest checkpoint, recovery, pruning, free space
//	commit.go      commit: start here
//	manifest.go    manifest and verification
//	lock.go        locks of run folders and output files
//	export.go      copies of a checkpoint, or of a folder of one
//	folder.go      other folders, written whole; file.go: files, the same
//	disk.go        the file system
//
// A run folder holds
//
//	global_step_N/                       one checkpoint, with manifest.json
//	latest_checkpointed_iteration.txt    the number of the newest, for people and other tools
//	.commit-*, .prune-*                  left by a killed process: see Clean
//	.lock, .lock.holder                  see LockRun
//
// A loss of power costs at most the step that was not acknowledged, by the order of operations in
// [Commit]: every file is synced, then the manifest with the SHA-256 of each, then the folders that
// hold their names; only then is the folder renamed to its final name, that name synced, and the
// tracker file replaced. Killing the process does not reveal a missing sync, only a loss of power
// does: crash_test.go leaves out each sync in turn and requires the damage to show.
//
// A folder that does not verify is never used: [Latest] takes an older one and returns a warning.
package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gad/internal/vfs"
)

// Errors that callers test for.
var (
	// ErrNone: the run has no checkpoint. A run whose checkpoints all fail to verify is ErrCorrupt,
	// since a caller may start anew on ErrNone.
	ErrNone = errors.New("no checkpoint")
	// ErrCorrupt: the bytes differ from the committed ones.
	ErrCorrupt = errors.New("corrupt checkpoint")
	// ErrExists: the target is there already, and different.
	ErrExists = errors.New("already exists")
	// ErrLocked: another process works in the run folder, or writes the output file.
	ErrLocked = errors.New("in use")
	// ErrSpace: the disk is full, or would be.
	ErrSpace = errors.New("not enough disk space")
)

const (
	stepPrefix   = "global_step_"
	commitPrefix = ".commit-"
	prunePrefix  = ".prune-"
	trackerName  = "latest_checkpointed_iteration.txt"
)

// stepDir returns the folder of a step.
func stepDir(run string, step int) string {
	return filepath.Join(run, stepPrefix+strconv.Itoa(step))
}

// stepOf returns the step in a folder's name; ok is false for any other name.
func stepOf(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, stepPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits // no "+1", no "01"
}

// Steps returns the steps that have a folder, verified or not, ascending. A missing run folder has
// none. Symbolic links are not followed.
func Steps(fsys FS, run string) ([]int, error) {
	fsys = vfs.OrDisk(fsys)
	entries, err := fsys.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: list: %w", run, err)
	}
	var steps []int
	for _, e := range entries {
		if n, ok := stepOf(e.Name()); ok && e.IsDir() {
			steps = append(steps, n)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// Latest returns the newest checkpoint that verifies, and a warning for each newer one that does
// not. It reads all bytes of these.
//
// The error is ErrNone if the run has no checkpoint, ErrCorrupt if it has some and none verifies. A
// checkpoint that could not be read (an I/O error, a format of a newer version) is an error too,
// and no older one is used.
func Latest(fsys FS, run string) (step int, dir string, warnings []string, err error) {
	fsys = vfs.OrDisk(fsys)
	steps, err := Steps(fsys, run)
	if err != nil {
		return 0, "", nil, err
	}
	tracked, err := tracker(fsys, run)
	if err != nil {
		return 0, "", nil, err
	}
	for i := len(steps) - 1; i >= 0; i-- {
		dir := stepDir(run, steps[i])
		err := Verify(fsys, dir)
		if err == nil {
			if tracked > steps[i] && !slices.Contains(steps, tracked) {
				warnings = append(warnings,
					fmt.Sprintf(
						"checkpoint: %s: it names step %d, whose folder is missing: step %d is used",
						filepath.Join(run, trackerName), tracked, steps[i]))
			}
			return steps[i], dir, warnings, nil
		}
		if !errors.Is(err, ErrCorrupt) {
			return 0, "", warnings, err
		}
		warnings = append(warnings,
			fmt.Sprintf("%v: an older checkpoint is used if there is one", err))
	}
	if len(steps) > 0 {
		return 0, "", warnings, fmt.Errorf("checkpoint: %s: all %d checkpoints are damaged: restore one from a copy, or choose another run folder: %w", run, len(steps), ErrCorrupt)
	}
	if tracked >= 0 {
		return 0, "", warnings, fmt.Errorf("checkpoint: %s: names step %d, but there is no checkpoint: restore it, or remove this file to start again: %w", filepath.Join(run, trackerName), tracked, ErrCorrupt)
	}
	return 0, "", warnings, fmt.Errorf("checkpoint: %s: %w", run, ErrNone)
}

// tracker returns the step in the tracker file, or -1 if the file is missing or holds no number:
// the file is a hint, the folders decide.
func tracker(fsys vfs.FS, run string) (int, error) {
	name := filepath.Join(run, trackerName)
	data, err := readSmall(fsys, name, 64)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errTooLarge) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n < 0 {
		return -1, nil
	}
	return n, nil
}

// Prune removes checkpoints, except the newest keepLast that verify, any for which keep returns
// true (keep may be nil), and always the newest that verifies. A checkpoint that does not verify is
// not counted: it is removed when keepLast newer ones verify. A crash leaves each of them whole or
// gone: a folder is renamed away, the rename is synced, and then its files are removed.
//
// good, which may be nil, holds the steps that this process has committed or read: they are not
// read again, and Prune adds the steps that it verifies. Any other step is read in full before it
// is counted, once, and only if there may be something to remove. If none verifies, nothing is
// removed, and the error is ErrCorrupt. An I/O error, or a format of a newer version, removes
// nothing either.
func Prune(fsys FS, run string, keepLast int, keep func(step int) bool, good map[int]bool) error {
	fsys = vfs.OrDisk(fsys)
	if keepLast < 0 {
		return fmt.Errorf("checkpoint: %s: prune: keep the last %d: must be 0 or more", run,
			keepLast)
	}
	steps, err := Steps(fsys, run)
	if err != nil {
		return err
	}
	if keep == nil {
		keep = func(int) bool { return false }
	}
	if good == nil {
		good = map[int]bool{}
	}
	if !slices.ContainsFunc(steps[:max(0, len(steps)-keepLast)],
		func(s int) bool { return !keep(s) }) {
		return nil // nothing to remove, whatever verifies
	}
	var doomed []int
	kept, want := 0, max(1, keepLast)
	for _, s := range slices.Backward(steps) {
		if kept >= want {
			if !keep(s) {
				doomed = append(doomed, s)
			}
			continue
		}
		if !good[s] {
			err := Verify(fsys, stepDir(run, s))
			if errors.Is(err, ErrCorrupt) {
				continue
			}
			if err != nil {
				return fmt.Errorf("checkpoint: %s: prune: nothing removed: %w", run, err)
			}
			good[s] = true
		}
		kept++
	}
	if kept == 0 {
		return fmt.Errorf(
			"checkpoint: %s: prune: nothing removed: none of %d checkpoints verifies: %w", run,
			len(steps), ErrCorrupt)
	}
	var away []string
	for _, s := range slices.Backward(doomed) { // the oldest first
		to, err := moveAway(fsys, run, s)
		if err != nil {
			return err
		}
		away = append(away, to)
		delete(good, s)
	}
	if len(away) == 0 {
		return nil
	}
	// Without this sync the files could be gone and the name still there.
	if err := fsys.SyncDir(run); err != nil {
		return fmt.Errorf("checkpoint: %s: prune: sync: %w", run, err)
	}
	for _, dir := range away {
		if err := fsys.RemoveAll(dir); err != nil {
			return fmt.Errorf("checkpoint: %s: prune: remove: %w", dir, err)
		}
	}
	return nil
}

// moveAway renames the folder of a step to a name that Clean removes. The caller
// syncs run.
func moveAway(fsys vfs.FS, run string, step int) (string, error) {
	dir := stepDir(run, step)
	to := filepath.Join(run, prunePrefix+filepath.Base(dir))
	if err := fsys.RemoveAll(to); err != nil { // left by a killed prune
		return "", fmt.Errorf("checkpoint: %s: remove: %w", to, err)
	}
	if err := fsys.Rename(dir, to); err != nil {
		return "", fmt.Errorf("checkpoint: %s: rename away: %w", dir, err)
	}
	return to, nil
}

// Recover prepares a run folder for resuming, for the holder of its lock: it removes what a killed
// Commit or Prune left, finds the checkpoint to resume from as Latest does, and writes its step
// into the tracker. So a tracker that names a damaged checkpoint is corrected at the next start.
// Errors and warnings are Latest's.
func Recover(fsys FS, run string) (step int, dir string, warnings []string, err error) {
	fsys = vfs.OrDisk(fsys)
	if err := Clean(fsys, run); err != nil {
		return 0, "", nil, err
	}
	if step, dir, warnings, err = Latest(fsys, run); err != nil {
		return step, dir, warnings, err
	}
	tracked, err := tracker(fsys, run)
	if err == nil && tracked != step {
		err = writeTracker(fsys, run, step)
	}
	if err != nil {
		return 0, "", warnings, ExplainFull(fsys, run, 0,
			fmt.Errorf("checkpoint: %s: %w", run, err))
	}
	return step, dir, warnings, nil
}

// writeTracker replaces the tracker file.
func writeTracker(fsys vfs.FS, run string, step int) error {
	return vfs.WriteFile(fsys, filepath.Join(run, trackerName), []byte(strconv.Itoa(step)))
}

// Clean removes what a killed Commit or Prune left in the run folder. The caller
// holds the run's lock.
func Clean(fsys FS, run string) error {
	fsys = vfs.OrDisk(fsys)
	entries, err := fsys.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: clean: %w", run, err)
	}
	tmp := filepath.Base(vfs.TempName(trackerName))
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, commitPrefix) && !strings.HasPrefix(name, prunePrefix) &&
			name != tmp {
			continue
		}
		if err := fsys.RemoveAll(filepath.Join(run, name)); err != nil {
			return fmt.Errorf("checkpoint: %s: clean: %w", filepath.Join(run, name), err)
		}
	}
	return nil
}

// CheckSpace returns ErrSpace if the disk that holds path (which need not exist
// yet) has less than need bytes free for this user.
func CheckSpace(fsys FS, path string, need int64) error {
	fsys = vfs.OrDisk(fsys)
	free, err := fsys.Free(path)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the write itself will fail
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: free space: %w", path, err)
	}
	if free < need {
		return fmt.Errorf(
			"checkpoint: %s: %w: %d bytes needed, %d free: free some space, or choose another disk",
			path, ErrSpace, need, free)
	}
	return nil
}

// ExplainFull turns the error of a full disk into ErrSpace and adds the bytes that were needed at
// least and the bytes free after the attempt was removed. Any other error, and an error that is
// ErrSpace already, is returned unchanged.
func ExplainFull(fsys FS, path string, needed int64, err error) error {
	fsys = vfs.OrDisk(fsys)
	if errors.Is(err, ErrSpace) || !errors.Is(err, syscall.ENOSPC) &&
		!errors.Is(err, syscall.EDQUOT) {
		return err
	}
	free := "unknown"
	if n, ferr := fsys.Free(path); ferr == nil {
		free = strconv.FormatInt(n, 10)
	}
	return fmt.Errorf("checkpoint: %s: %w: more than %d bytes needed, %s free: free some space and run the same command again: %w", path, ErrSpace, needed, free, err)
}
