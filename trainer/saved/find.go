package saved

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gad/checkpoint"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// Find returns path itself if it is a checkpoint, otherwise the newest checkpoint of the run path
// that verifies; notes are about newer ones that do not.
func Find(fsys checkpoint.FS, path string) (dir string, notes []string, err error) {
	fsys = vfs.OrDisk(fsys)
	if strings.HasPrefix(filepath.Base(filepath.Clean(path)), "global_step_") {
		return path, nil, checkpoint.Verify(fsys, path)
	}
	if info, err := fsys.Stat(path); err == nil && !info.IsDir() {
		return "", nil, fmt.Errorf(
			"checkpoint: %s: is a file: give a run folder or one of its global_step_N folders",
			path)
	}
	_, dir, notes, err = checkpoint.Latest(fsys, path)
	if errors.Is(err, checkpoint.ErrNone) {
		if _, missing := fsys.Stat(path); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("%w, as there is no such folder", err)
		}
		err = fmt.Errorf("%w: give a run folder or one of its global_step_N folders", err)
	}
	return dir, notes, err
}

// StageOf returns the stage that made the run or checkpoint at path.
func StageOf(fsys checkpoint.FS, path string) (config.Stage, error) {
	fsys = vfs.OrDisk(fsys)
	dir := filepath.Clean(path)
	if !strings.HasPrefix(filepath.Base(dir), "global_step_") {
		steps, err := checkpoint.Steps(fsys, dir)
		if err != nil {
			return "", err
		}
		// The newest whose state can be read: all are of one stage, and opening the run reports
		// damaged ones.
		for _, step := range slices.Backward(steps) {
			var s State
			if s, err = Read(fsys, filepath.Join(dir,
				fmt.Sprintf("global_step_%d", step))); err == nil {
				return s.Stage, nil
			}
		}
		if len(steps) == 0 {
			return "", checkpoint.ErrNone
		}
		return "", err
	}
	s, err := Read(fsys, dir)
	return s.Stage, err
}
