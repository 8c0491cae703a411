package trainer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/vfs"
)

// together plays a run on several ranks, each a goroutine with a backend of its own.
func together(ranks int, c Config, stage Stage) []error {
	return commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
		be, err := newBackend(1)
		if err != nil {
			return err
		}
		defer be.Close()
		t, err := Open(c, stage, Options{FS: vfs.OS, Backend: be, Ranks: g})
		if err != nil {
			return err
		}
		return errors.Join(t.Run(context.Background()), t.Close(), g.Close())
	})
}

// sharded are settings under which every kind of work comes up on several ranks.
var sharded = append([]string{"trainer.total_steps=4", "trainer.shards=4", "actor.max_token_len=128", "critic.max_token_len=128", "data.train_batch_size=6",
	"rollout.temperature=0.9"}, stateful...)

// A run has the same bits on 1, 2 and 4 ranks: weights, optimizer states, samples, metrics
// without timings. A run of one size goes on with another.
func TestRanksChangeNoBit(t *testing.T) {
	be := ready(t)
	for _, c := range []struct {
		stage Stage
		extra []string
	}{
		{SFT, []string{"trainer.keep_best=val/rouge_l"}},
		{Warmup, []string{"trainer.critic_warmup=1", "critic.ppo_mini_batch_size=3"}},
		{Train, nil},
		{Train, []string{"critic.group_ot=0", "actor.old_log_prob=recompute", "critic.truncated=include", "algorithm.filter_groups.enable=false", "trainer.held_out_critic=" + filepath.Join(fixed.warmup, "global_step_3", "critic")}},
		{Train, []string{"algorithm.checker_weight=0.5", "trainer.checker=" + checkerProgram}},
		{DPO, nil},
	} {
		t.Run(fmt.Sprint(c.stage, " ", strings.Join(c.extra, " ")), func(t *testing.T) {
			overrides := append(append([]string{"data.val_files=" + fixed.val}, sharded...), c.extra...)
			whole := filepath.Join(t.TempDir(), "1")
			finished(t, be, settings(c.stage, whole, overrides...), c.stage)
			want := record(t, whole, 4)
			for _, ranks := range []int{2, 4} {
				run := filepath.Join(t.TempDir(), fmt.Sprint(ranks))
				for r, err := range together(ranks, settings(c.stage, run, overrides...), c.stage) {
					if err != nil {
						t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
					}
				}
				same(t, record(t, run, 4), want)
			}
			if testing.Short() {
				return
			}
			for _, sizes := range [][]int{{4, 1}, {1, 2}, {2, 4}} {
				run := filepath.Join(t.TempDir(), fmt.Sprint(sizes))
				for i, ranks := range sizes {
					cfg := settings(c.stage, run, append(overrides, fmt.Sprint("trainer.total_steps=", []int{3, 4}[i]))...)
					for r, err := range together(ranks, cfg, c.stage) {
						if err != nil {
							t.Fatalf("%v ranks, rank %d: %v", sizes, r, err)
						}
					}
				}
				got := record(t, run, 4)
				if c.stage == Train && len(c.extra) == 0 {
					same(t, got, want)
				}
			}
		})
	}
}

const checkerProgram = `while read -r line; do echo "{\"score\": $((${#line} % 7))}"; done`
