package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/hostile"
	"gad/trainer/config"
)

// leveled are the fixture's rows with a column level, 0 to 9, and what a run of them is told.
func leveled(t *testing.T, more ...string) []string {
	t.Helper()
	raw, err := os.ReadFile(fixed.data)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, line := range bytes.SplitAfter(bytes.TrimSpace(raw), []byte("\n")) {
		fmt.Fprintf(&out, `{"level":%d,%s`, i*7%10, bytes.TrimPrefix(line, []byte("{")))
	}
	path := filepath.Join(t.TempDir(), "leveled.jsonl")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return append([]string{"data.train_files=" + path}, more...)
}

// A run whose rows are chosen has the same bits when it was stopped, killed, and on several ranks.
func TestChoiceChangesNoBit(t *testing.T) {
	t.Parallel()
	be := ready(t)
	for _, stage := range []config.Stage{config.SFT, config.Train, config.DPO} {
		if testing.Short() && stage != config.SFT {
			continue
		}
		t.Run(string(stage), func(t *testing.T) {
			overrides := leveled(t, sharded("trainer.total_steps=5",
				"data.where=level != 3")...)
			whole := filepath.Join(t.TempDir(), "whole")
			finished(t, be, settings(stage, whole, overrides...), stage)
			want := record(t, whole, 5)
			cfg := settings(stage, filepath.Join(t.TempDir(), "pieces"), overrides...)
			inPieces(t, cfg, stage, 0, 2)
			same(t, record(t, cfg.Trainer.Output, 5), want)
			if !hostile.Long() {
				return
			}
			for _, n := range []int{2, 4} {
				run := filepath.Join(t.TempDir(), fmt.Sprint("stopped", n))
				cfg := settings(stage, run, overrides...)
				if err := part(t, cfg, stage, n, false); !errors.Is(err, ErrInterrupted) {
					t.Fatalf("stopped after %d steps: %v", n, err)
				}
				finished(t, be, cfg, stage)
				same(t, record(t, run, 5), want)
			}
		})
	}
}

// A condition draws only rows that meet it, each once in a pass.
func TestChoiceDrawsItsRows(t *testing.T) {
	be := ready(t)
	c := settings(config.SFT, filepath.Join(t.TempDir(), "run"), leveled(t,
		"data.where=level = 3", "trainer.total_steps=4", "data.train_batch_size=2")...)
	tr := opened(t, be, c, config.SFT)
	for range 2 { // four rows are of level 3
		b, err := tr.draw(4)
		if err != nil {
			t.Fatal(err)
		}
		pass := b.Indices()
		slices.Sort(pass)
		var levels []int
		for _, row := range slices.Compact(pass) {
			levels = append(levels, tr.train.set.Before(row)*7%10)
		}
		if !slices.Equal(levels, []int{3, 3, 3, 3}) {
			t.Errorf("a pass draws rows %v, of levels %v", pass, levels)
		}
	}
}

// A resumed run wants the ratings that it began with, and its own condition.
func TestChoiceIsTheRuns(t *testing.T) {
	be := ready(t)
	s, err := data.Open(fixed.data, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ratings := filepath.Join(t.TempDir(), "ratings.jsonl")
	rate := func(right func(i int) int) {
		var b strings.Builder
		fmt.Fprintf(&b, `{"gad_ratings":1,"rows":40,"data_sha256":%q,"tokenizer_sha256":%q,"columns":["right"]}`+"\n", s.Digest(), fixed.tok.Digest())
		for i := range 40 {
			fmt.Fprintf(&b, `{"row":%d,"right":%d}`+"\n", i, right(i))
		}
		if err := os.WriteFile(ratings, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rate(func(i int) int { return i % 2 })
	run := filepath.Join(t.TempDir(), "run")
	told := []string{"data.ratings=" + ratings, "data.where=right > 0", "trainer.total_steps=4",
		"trainer.save_freq=1"}
	cfg := settings(config.SFT, run, told...)
	if err := part(t, cfg, config.SFT, 2, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	refused := func(want string, c config.Config) {
		t.Helper()
		if err := play(be, c, config.SFT); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	refused("data.where was right > 0 when the run in",
		settings(config.SFT, run, append(told, "data.where=right > 1")...))
	rate(func(i int) int { return i / 20 })
	refused("has changed since the run began", cfg)
	rate(func(i int) int { return i % 2 })
	finished(t, be, cfg, config.SFT)
}
