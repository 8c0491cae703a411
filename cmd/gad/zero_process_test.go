//go:build linux

package main

import (
	"path/filepath"
	"slices"
	"testing"
)

// A warm-up over MPI on 4 ranks that divide the optimizer states, then on 2: the checkpoints
// and metrics of one process, byte for byte.
func TestShardedOptimizerOverMPI(t *testing.T) {
	t.Parallel()
	f := ready(t)
	args := func(run, steps string, more ...string) []string {
		return slices.Concat(stage("warmup", "--model", f.path("student"), "--data",
			f.path("train.arrow"), "--output", run, "--steps", steps, "--critic-warmup", "1"),
			[]string{"trainer.shards=4", "--threads", "1", "--seed", "3",
				"actor.optim.lr_scheduler=constant", "critic.optim.lr_scheduler=constant"}, more)
	}
	dir := t.TempDir()
	whole, run := filepath.Join(dir, "whole"), filepath.Join(dir, "run")
	must(t, args(whole, "3")...)
	for i, steps := range []string{"2", "3"} {
		p := ranked(t, 4>>i, args(run, steps, "trainer.shard_optimizer=true")...)
		p.wants(t, exitDone)
	}
	equalRuns(t, run, whole, 3)
}
