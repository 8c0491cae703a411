package saved

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"gad/checkpoint"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
)

// ChunksOf returns the chunks in which the run that made the model in dir had it answer, if dir is
// part of a checkpoint; for any other folder no chunks.
func ChunksOf(fsys checkpoint.FS, dir string) (model.Chunks, error) {
	above := filepath.Dir(filepath.Clean(dir))
	if !strings.HasPrefix(filepath.Base(above), "global_step_") {
		return model.Chunks{}, nil
	}
	s, err := Read(vfs.OrDisk(fsys), above)
	if errors.Is(err, fs.ErrNotExist) || err == nil && s.Stage == config.DPO {
		return model.Chunks{}, nil
	}
	if err != nil {
		return model.Chunks{}, err
	}
	var c config.Config
	for _, x := range s.Fixed {
		n, _ := strconv.Atoi(x.Value) // others are no numbers
		switch x.Key {
		case "rollout.chunk":
			c.Rollout.Chunk = n
		case "rollout.carry":
			c.Rollout.Carry = n
		case "rollout.carry_head":
			c.Rollout.CarryHead = n
		case "rollout.chunks":
			c.Rollout.Chunks = n
		}
	}
	return c.Rollout.Thought(), nil
}
