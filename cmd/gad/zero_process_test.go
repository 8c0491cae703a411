//go:build linux

package main

import (
	"path/filepath"
	"testing"
)

// A warm-up over MPI on 4 ranks that divide the optimizer states, then on 2: the checkpoints
// and metrics of one process, byte for byte.
func TestShardedOptimizerOverMPI(t *testing.T) {
	t.Parallel()
	f := ready(t)
	args := func(run string, steps int, more ...string) []string {
		return append(f.stage("warmup", run, steps, "--critic-warmup", "1", "trainer.shards=4",
			"--threads", "1", "--seed", "3", "actor.optim.lr_scheduler=constant",
			"critic.optim.lr_scheduler=constant"), more...)
	}
	dir := t.TempDir()
	whole, run := filepath.Join(dir, "whole"), filepath.Join(dir, "run")
	must(t, args(whole, 3)...)
	for i, steps := range []int{2, 3} {
		p := ranked(t, 4>>i, args(run, steps, "trainer.shard_optimizer=true")...)
		p.wants(t, exitDone)
	}
	equalRuns(t, run, whole, 3)
}
