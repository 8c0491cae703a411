package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/checkpoint"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
	"gad/trainer/config"
	"gad/trainer/export"
)

// The file is there whole or not at all, whichever operation fails; adapters are merged
// into it, as export.MergedPart does; a file that is there stays.
func TestExportGGUF(t *testing.T) {
	t.Parallel()
	be := ready(t)
	dir := t.TempDir()
	run, dst := filepath.Join(dir, "run"), filepath.Join(dir, "out", "student.gguf")
	finished(t, be, settings(config.SFT, run, "actor.lora.rank=4", "trainer.total_steps=1",
		"actor.optim.lr=0.1"), config.SFT)
	ckpt := filepath.Join(run, "global_step_1")
	if _, err := export.GGUF(nil, ckpt, dst, "f16"); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(dir, "whole")
	if _, err := export.MergedPart(nil, ckpt, "actor", whole, "float32"); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other", "student.gguf")
	if _, err := export.ModelGGUF(nil, whole, other, "f16"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != string(want) {
		t.Error("a student with adapters gives another file than its merged folder")
	}
	if _, err := export.GGUF(nil, ckpt, dst, "q8_0"); !errors.Is(err, checkpoint.ErrExists) ||
		!strings.Contains(err.Error(),
			"student.gguf: already exists: choose another file, or remove this one") {
		t.Errorf("over a file that is there: %v", err)
	}
	if _, err := export.GGUF(vfstest.NewBudget(vfs.OS, 10<<10), ckpt, filepath.Join(dir, "full.gguf"),
		"f16"); !errors.Is(err, checkpoint.ErrSpace) {
		t.Errorf("on a disk that is too small: %v", err)
	}
	killed, absent := 0, 0
	for at := 0; ; at++ {
		os.RemoveAll(filepath.Dir(dst))
		e := vfstest.NewError(vfs.OS, at, true)
		_, err := export.GGUF(e, ckpt, dst, "f16")
		if e.Faults() == 0 {
			break
		}
		killed++
		if err == nil {
			t.Errorf("killed at %s: no error", e.Op(at))
		}
		if got, err := os.ReadFile(dst); errors.Is(err, fs.ErrNotExist) {
			absent++
		} else if string(got) != string(want) {
			t.Errorf("killed at %s: %d of %d bytes", e.Op(at), len(got), len(want))
		}
		os.Remove(dst)
		if _, err := export.GGUF(nil, ckpt, dst, "f16"); err != nil {
			t.Errorf("after a kill at %s: %v", e.Op(at), err)
		}
		if rest, _ := filepath.Glob(filepath.Join(filepath.Dir(dst), ".*")); len(rest) > 0 {
			t.Errorf("after a kill at %s: left over: %v", e.Op(at), rest)
		}
	}
	if killed < 8 || absent == killed {
		t.Errorf("killed at %d operations, %d times absent", killed, absent)
	}
	t.Logf("row 18: a GGUF file: killed at each of %d operations, %d absent, %d whole, the next one succeeds each time", killed, absent, killed-absent)
}

// A run from a GGUF file has the bits of a run from the folder that the file is read into, the
// reference and the discriminator included; its checkpoints are folders, and it goes on without the
// file.
func TestRunFromGGUF(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "s.gguf"), filepath.Join(dir, "hf")
	_, err := export.ModelGGUF(nil, fixed.student, file, "bf16")
	if err == nil {
		_, err = export.Model(nil, file, folder, "base")
	}
	if err != nil {
		t.Fatal(err)
	}
	var runs [2]string
	for i, path := range []string{file, folder} {
		runs[i] = filepath.Join(dir, fmt.Sprint("run", i))
		for _, steps := range []string{"2", "3"} {
			finished(t, be, settings(config.Warmup, runs[i], half("model.path="+path,
				"model.reward_path="+path, "trainer.critic_warmup=1", "actor.use_kl_loss=true",
				"trainer.warmup_objective=policy", "trainer.total_steps="+steps)...), config.Warmup)
			if steps == "2" {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	same(t, record(t, runs[0], 3), record(t, runs[1], 3))
	same(t, record(t, runs[0], 2), record(t, runs[1], 2))
	if a, b := filesOf(t, filepath.Join(runs[0], "reference")),
		filesOf(t, filepath.Join(runs[1], "reference")); len(a) < 4 || !maps.Equal(a, b) {
		t.Errorf("the reference has %d files, or others than the folder's", len(a))
	}
}
