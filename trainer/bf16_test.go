package trainer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// In bfloat16 on the CPU too a run that was stopped, and one that was killed, gone
// on with by other workers and sampling slots, has the bits of one that was not;
// and the rollout's log-probabilities are the update's.
func TestBF16Run(t *testing.T) {
	t.Parallel()
	slow(t)
	ready(t)
	const total = 4
	out := t.TempDir()
	run := func(dir string, workers, slots, stop int, kill bool) {
		t.Helper()
		be, err := cpu.New(cpu.Options{Workers: workers, Precision: cpu.BF16})
		if err != nil {
			t.Fatal(err)
		}
		defer be.Close()
		cfg := settings(config.Train, filepath.Join(out, dir),
			append(half(fmt.Sprintf("trainer.total_steps=%d", total), "trainer.precision=bf16",
				fmt.Sprintf("rollout.max_num_seqs=%d", slots), "trainer.save_freq=1"),
				stateful[:4]...)...)
		tr, err := Open(cfg, config.Train, Options{FS: vfs.OS, Backend: be})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		var ctx context.Context = context.Background()
		if stop > 0 {
			ctx = &stopAfter{Context: ctx, n: stop, kill: kill}
		}
		defer func() {
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		if err := tr.Run(ctx); stop == 0 && err != nil || stop > 0 &&
			!errors.Is(err, ErrInterrupted) {
			t.Fatalf("%s: stopped after %d: %v", dir, stop, err)
		}
	}
	run("whole", 2, 64, 0, false)
	want := record(t, filepath.Join(out, "whole"), total)
	rows, err := report.ReadMetrics(vfs.OS, filepath.Join(out, "whole"))
	if err != nil || len(rows) != total {
		t.Fatalf("%d rows of metrics, %v", len(rows), err)
	}
	for _, row := range rows {
		if d, ok := row.Values["rollout/logp_diff_max"]; d != 0 ||
			ok != (row.Step <= config.CheckFirst) {
			t.Errorf("step %d: rollout and update differ by %g", row.Step, d)
		}
	}
	for i, kill := range []bool{false, true} {
		dir := fmt.Sprintf("parts killed %v", kill)
		run(dir, 1+2*i, 3, 2, kill)
		run(dir, 3-2*i, 64, 0, false)
		same(t, record(t, filepath.Join(out, dir), total), want)
	}
}
