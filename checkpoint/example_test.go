package checkpoint_test

import (
	"fmt"
	"os"

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
