package trainer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/internal/comm"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// Optimizer states that are divided among the ranks change no bit of a run: weights,
// optimizer states, samples and metrics are those of one process, and a checkpoint goes on
// on any number of ranks, divided or not.
func TestShardedOptimizerChangesNoBit(t *testing.T) {
	t.Parallel()
	be := ready(t)
	const on = "trainer.shard_optimizer=true"
	for arm, c := range []struct {
		stage config.Stage
		extra []string
	}{
		{config.SFT, []string{"actor.lora.rank=4"}},
		{config.Warmup, []string{"trainer.critic_warmup=1", "actor.optim.moments=8bit",
			"critic.optim.moments=8bit"}},
		{config.Train, nil},
	} {
		if testing.Short() && arm != 1 {
			continue
		}
		t.Run(fmt.Sprint(c.stage, " ", strings.Join(c.extra, " ")), func(t *testing.T) {
			overrides := sharded(c.extra...)
			whole := filepath.Join(t.TempDir(), "1")
			finished(t, be, settings(c.stage, whole, overrides...), c.stage)
			want := record(t, whole, 3)
			for way, ranks := range []int{1, 2, 4} {
				if !hostile.InTurn(arm, way, 2) {
					continue
				}
				run := filepath.Join(t.TempDir(), fmt.Sprint(ranks))
				for r, err := range together(ranks,
					settings(c.stage, run, append(overrides, on)...), c.stage) {
					if err != nil {
						t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
					}
				}
				same(t, record(t, run, 3), want)
			}
			if !hostile.Long() && c.stage != config.Warmup || testing.Short() {
				return
			}
			type leg struct {
				ranks int
				set   string
			}
			for _, legs := range [][2]leg{{{4, on}, {1, ""}}, {{1, ""}, {2, on}},
				{{2, on}, {4, on}}, {{4, on}, {2, "trainer.shard_optimizer=false"}}}[:hostile.Share(4)] {
				run := filepath.Join(t.TempDir(), "run")
				for i, l := range legs {
					set := overrides
					if l.set != "" {
						set = append(set, l.set)
					}
					members := make([]member, l.ranks)
					if i == 0 { // stopped after step 2
						members[l.ranks-1].ctx = &stopAfter{Context: context.Background(), n: 2}
					}
					for r, err := range team(members, settings(c.stage, run, set...), c.stage,
						nil) {
						if i == 0 && !errors.Is(err, ErrInterrupted) || i > 0 && err != nil {
							t.Fatalf("%v, leg %d, rank %d: %v", legs, i, r, err)
						}
					}
				}
				same(t, record(t, run, 3), want)
			}
		})
	}
}

// A full disk while rank 0 gathers the states of the others ends all ranks; with room the
// same command succeeds.
func TestShardedOptimizerOnAFullDisk(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.SFT, run,
		sharded("trainer.save_freq=1", "trainer.shard_optimizer=true")...)
	blind := &noSpace{FS: vfs.OS, at: saved.ActorOptimizer}
	errs := team([]member{{fs: blind}, {}}, cfg, config.SFT, nil)
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "no space left on device") {
		t.Errorf("rank 0 says %v", errs[0])
	}
	if told := (*comm.Aborted)(nil); !errors.As(errs[1], &told) || told.Rank != 0 {
		t.Errorf("rank 1 says %v", errs[1])
	}
	for r, err := range together(2, cfg, config.SFT) {
		if err != nil {
			t.Errorf("the same command, rank %d: %v", r, err)
		}
	}
}

// noSpace is a disk on which the files of a name cannot be written.
type noSpace struct {
	vfs.FS
	at string
}

func (n *noSpace) Create(name string) (vfs.File, error) {
	f, err := n.FS.Create(name)
	if err == nil && strings.Contains(name, n.at) {
		f = fullFile{f}
	}
	return f, err
}

type fullFile struct{ vfs.File }

func (fullFile) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
