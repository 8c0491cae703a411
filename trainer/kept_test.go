package trainer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/trainer/config"
)

// Rows that are kept change no bit of a run: encoded in each run, kept by the run, read by
// the next, read by a run that is resumed, and damaged while a run reads them.
func TestKeptRowsChangeNoBit(t *testing.T) {
	slow(t)
	be := ready(t)
	defer func(n int64) { cacheMin = n }(cacheMin)
	cacheMin = 0
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "rows")
	configured := func(name string, stage config.Stage, more ...string) config.Config {
		more = append(half("trainer.total_steps=3", "data.val_files="+fixed.val,
			"critic.truncated=include"), more...)
		return settings(stage, filepath.Join(dir, name), more...)
	}
	run := func(name string, stage config.Stage, more ...string) map[string]string {
		finished(t, be, configured(name, stage, more...), stage)
		return record(t, filepath.Join(dir, name), 3)
	}
	cached := "data.cache_dir=" + cache
	for _, stage := range []config.Stage{config.SFT, config.DPO, config.Train} {
		want := run("none-"+string(stage), stage, "data.cache_dir=none")
		same(t, run("cold-"+string(stage), stage, cached), want)
		same(t, run("warm-"+string(stage), stage, cached), want)
	}
	files, err := os.ReadDir(cache)
	if err != nil || len(files) != 1 { // of one tokenizer, whatever the stage
		t.Fatalf("%v: %v", files, err)
	}
	file := filepath.Join(cache, files[0].Name())

	for name, said := range map[string]string{
		"cold-sft": "encoded rows are kept for the next run in " + file + ", ",
		"warm-sft": "encoded rows are read from " + file + " ",
		"cold-dpo": "encoded rows are read from " + file + " "} {
		if log, err := os.ReadFile(filepath.Join(dir, name, "log.jsonl")); err != nil ||
			!strings.Contains(string(log), said) {
			t.Errorf("%s: %q is not in the log (%v)", name, said, err)
		}
	}

	// Resumed from kept rows, and from none.
	want := run("whole", config.Train, "data.cache_dir=none", "trainer.save_freq=2")
	for name, then := range map[string]string{"warm": cached, "none": "data.cache_dir=none"} {
		cfg := configured("resumed "+name, config.Train, cached, "trainer.save_freq=2")
		if err := part(t, cfg, config.Train, 2, false); !errors.Is(err, ErrInterrupted) {
			t.Fatalf("stopped: %v, want ErrInterrupted", err)
		}
		finished(t, be, configured("resumed "+name, config.Train, then, "trainer.save_freq=2"),
			config.Train)
		same(t, record(t, filepath.Join(dir, "resumed "+name), 3), want)
	}

	// Damaged under the run, which says so in its log, once.
	tr := opened(t, be, configured("damaged", config.Train, cached, "trainer.save_freq=2"),
		config.Train)
	whole, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, make([]byte, len(whole)), 0o644)
	}
	if err = errors.Join(err, tr.Run(context.Background()), tr.Close()); err != nil {
		t.Fatal(err)
	}
	same(t, record(t, filepath.Join(dir, "damaged"), 3), want)
	log, err := os.ReadFile(filepath.Join(dir, "damaged", "log.jsonl"))
	if n := strings.Count(string(log), "rows are encoded again"); err != nil || n != 1 {
		t.Errorf("the log says %d times that rows are encoded again (%v)", n, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the damaged file: %v", err)
	}
}
