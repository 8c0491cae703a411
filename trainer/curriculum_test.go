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

// A run whose rows are chosen and enter by a curriculum has the same bits when it was stopped,
// killed, and on several ranks.
func TestCurriculumChangesNoBit(t *testing.T) {
	be := ready(t)
	for _, stage := range []config.Stage{config.SFT, config.Train, config.DPO} {
		t.Run(string(stage), func(t *testing.T) {
			overrides := leveled(t, sharded("trainer.total_steps=6",
				"data.where=level != 3", "data.curriculum=level:desc until 0.7")...)
			whole := filepath.Join(t.TempDir(), "whole")
			rows := finished(t, be, settings(stage, whole, overrides...), stage)
			var in []string
			for _, row := range rows {
				in = append(in, fmt.Sprintf("%.2f", row.Values["train/entered_frac"]))
			}
			// 36 of 40 rows; 4.2 steps: 8.57 rows a step
			if want := []string{"0.25", "0.50", "0.72", "0.97", "1.00", "1.00"}; !slices.Equal(in,
				want) {
				t.Errorf("rows in: %v, want %v", in, want)
			}
			want := record(t, whole, 6)
			stops := []int{2, 4}
			if !hostile.Long() {
				stops = stops[:1]
			}
			for _, n := range stops {
				run := filepath.Join(t.TempDir(), fmt.Sprint("stopped", n))
				cfg := settings(stage, run, overrides...)
				if err := part(t, cfg, stage, n, false); !errors.Is(err, ErrInterrupted) {
					t.Fatalf("stopped after %d steps: %v", n, err)
				}
				finished(t, be, cfg, stage)
				same(t, record(t, run, 6), want)
			}
			run := filepath.Join(t.TempDir(), "killed")
			cfg := settings(stage, run, overrides...)
			if err := part(t, cfg, stage, 4, true); err != nil {
				t.Fatal(err)
			}
			finished(t, be, cfg, stage)
			same(t, record(t, run, 6), want)
			run = filepath.Join(t.TempDir(), "2")
			for r, err := range together(2, settings(stage, run, overrides...), stage) {
				if err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			}
			same(t, record(t, run, 6), want)
		})
	}
}

// A condition until half of the steps draws only rows that meet it, each once in a pass, and then
// all.
func TestCurriculumOfACondition(t *testing.T) {
	be := ready(t)
	c := settings(config.SFT, filepath.Join(t.TempDir(), "run"), leveled(t,
		"data.curriculum=level = 3 until 0.5", "trainer.total_steps=8",
		"data.train_batch_size=2")...)
	tr := opened(t, be, c, config.SFT)
	var first, second []int
	for tr.step = range 8 {
		rows := tr.nextRows(2)
		if tr.step < 4 {
			first = append(first, rows...)
		} else {
			second = append(second, rows...)
		}
	}
	for _, row := range first {
		if row*7%10 != 3 {
			t.Errorf("row %d, of level %d, was drawn before half of the steps", row, row*7%10)
		}
	}
	// four rows are of level 3: two passes over them
	for _, pass := range [][]int{first[:4], first[4:]} {
		slices.Sort(pass)
		if len(slices.Compact(pass)) != 4 {
			t.Errorf("a pass draws %v", pass)
		}
	}
	if !slices.ContainsFunc(second, func(row int) bool { return row*7%10 != 3 }) {
		t.Errorf("no other row is drawn afterwards: %v", second)
	}
}

// A condition that only rows meet which cannot be used is refused, and one that few rows meet is
// said.
func TestCurriculumOfFewRows(t *testing.T) {
	be := ready(t)
	var console lines
	told := leveled(t, "data.curriculum=level = 3 until 0.5", "trainer.total_steps=2",
		"data.train_batch_size=8", "trainer.save_freq=0")
	if err := playOn(be, settings(config.SFT, filepath.Join(t.TempDir(), "run"), told...),
		config.SFT, &console); err != nil || !console.have(
		"data.curriculum has 4 rows enter first, and data.train_batch_size is 8") {
		t.Errorf("%v: %s", err, console.String())
	}
	long := strings.Repeat("Add 1+1+1 ", 40)
	path := filepath.Join(t.TempDir(), "long.jsonl")
	text := fmt.Sprintf(`{"level":1,"content":%q,"teacher_response":"It is 3."}`+"\n"+
		`{"level":2,"content":"Add 1+1+1","teacher_response":"It is 3."}`+"\n", long)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	err := play(be, settings(config.SFT, filepath.Join(t.TempDir(), "run"),
		"data.train_files="+path, "data.overlong_prompts=filter", "data.train_batch_size=1",
		"data.curriculum=level = 1 until 0.5"), config.SFT)
	if err == nil || !strings.Contains(err.Error(),
		"no row that meets the condition can be used: 1 others can: loosen it") {
		t.Errorf("%v", err)
	}
}

// A resumed run wants the ratings that it began with, and its own condition and curriculum.
func TestCurriculumIsTheRuns(t *testing.T) {
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
