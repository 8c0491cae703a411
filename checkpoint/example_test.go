package checkpoint_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gad/checkpoint"
)

// A checkpoint is written whole or not at all, and read back after its digests were
// compared.
func Example() {
	run, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(run)
	err = checkpoint.Commit(checkpoint.Disk, run, 10, func(d *checkpoint.Dir) error {
		return d.WriteFile("actor/state.json", []byte(`{"step": 10}`))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	step, _, warnings, err := checkpoint.Latest(checkpoint.Disk, run)
	fmt.Println(step, warnings, err)
	// Output:
	// 10 [] <nil>
}

// A run keeps its newest checkpoints, and those that it asks for.
func ExamplePrune() {
	run, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(run)
	for step := 10; step <= 40; step += 10 {
		err := checkpoint.Commit(checkpoint.Disk, run, step, func(d *checkpoint.Dir) error {
			return d.WriteFile("state.json", []byte("{}"))
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	best := func(step int) bool { return step == 10 }
	if err := checkpoint.Prune(checkpoint.Disk, run, 2, best, nil); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(checkpoint.Steps(checkpoint.Disk, run))
	// Output:
	// [10 30 40] <nil>
}

// A checkpoint that has changed is not used.
func ExampleVerify() {
	run, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(run)
	err = checkpoint.Commit(checkpoint.Disk, run, 10, func(d *checkpoint.Dir) error {
		return d.WriteFile("state.json", []byte(`{"step": 10}`))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	dir := filepath.Join(run, "global_step_10")
	fmt.Println(checkpoint.Verify(checkpoint.Disk, dir))
	state := filepath.Join(dir, "state.json")
	if err := os.WriteFile(state, []byte(`{"step": 11}`), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(errors.Is(checkpoint.Verify(checkpoint.Disk, dir), checkpoint.ErrCorrupt))
	// Output:
	// <nil>
	// true
}

// Two processes do not write one run.
func ExampleLockRun() {
	run, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(run)
	lock, err := checkpoint.LockRun(run)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock()
	_, err = checkpoint.LockRun(run)
	fmt.Println(errors.Is(err, checkpoint.ErrLocked))
	// Output:
	// true
}
