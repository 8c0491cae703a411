package board

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"gad/internal/report"
)

// seeded makes warm-ups of ten steps, each of one second and 1 TFLOP, and games of twenty, each
// of two seconds and 6 TFLOP, that continue them, with three seeds.
func seeded(t *testing.T) (root string) {
	root = t.TempDir()
	for seed := 1; seed <= 3; seed++ {
		at := func(stage string) string {
			return filepath.Join(root,
				fmt.Sprintf("%s-s%d", stage, seed))
		}
		w := begin(t, at("warm"), report.Options{TotalSteps: 10, Command: "gad warmup"},
			fmt.Sprintf("trainer.seed=%d", seed), "trainer.default_local_dir="+at("warm"),
			"model.path=student")
		for step := 1; step <= 10; step++ {
			v := map[string]float64{"critic/d_loss": 0.5, "critic/d_acc_fresh": 0.8,
				"actor/sft_loss": 1, "timing_s/step": 1, "perf/tflops": 1}
			if step%5 == 0 {
				v["val/rouge_l"] = 0.05*float64(step) + 0.01*float64(seed)
			}
			w.step(step, v)
		}
		w.rec.End(report.Finished, "done")
		g := begin(t, at("game"), report.Options{TotalSteps: 20, Command: "gad train"},
			fmt.Sprintf("trainer.seed=%d", seed), "trainer.default_local_dir="+at("game"),
			"trainer.resume_from="+at("warm"))
		g.rec.Log().Info(fmt.Sprintf("%s: train from %s/global_step_10, 20 steps", at("game"),
			at("warm")))
		for step := 1; step <= 20; step++ {
			v := game(step)
			v["timing_s/step"], v["perf/tflops"] = 2, 3
			if step == 1 {
				v["start/rouge_l"] = 0.5 + 0.01*float64(seed)
			}
			if step%10 == 0 {
				v["val/rouge_l"] = 0.6 + 0.01*float64(step) + 0.01*float64(seed)
			}
			g.step(step, v)
			if step == 5 {
				g.rec.Log().Warn("the student is warned of")
			}
		}
		g.rec.End(report.Finished, "done")
	}
	return root
}

// A run knows the run that it continues, by its settings and its log, and how far that was.
// One figure that no step has, and one file of samples that is none, spoil neither the other runs
// nor the rest of their own.
func TestOneBadValue(t *testing.T) {
	root := t.TempDir()
	f := begin(t, filepath.Join(root, "odd"), report.Options{})
	for n := 1; n <= 3; n++ {
		values := game(n)
		values["timing_s/step"], values["perf/tflops"] = 2, 3
		if n > 1 {
			values["timing_s/step"] = 1e308
		}
		if n == 2 {
			values["perf/tflops"] = 1e308
		}
		f.step(n, values)
	}
	if err := os.MkdirAll(filepath.Join(root, "odd", "samples", "step_1.jsonl"), 0o755); err != nil {
		t.Fatal(err)
	}
	begin(t, filepath.Join(root, "plain"), report.Options{}).step(1, game(1))
	d, err := show(t, root).Document(Limits{Steps: 9})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(d); err != nil {
		t.Error(err)
	}
	a := d.Curves.Axes[0]
	if !slices.Equal(a.Seconds, []float64{2, 2, 2}) || !slices.Equal(a.TFLOP, []float64{6, 6, 6}) {
		t.Errorf("seconds %v, TFLOP %v", a.Seconds, a.TFLOP)
	}
	if len(d.Samples) != 1 || d.Samples[0].Problem == "" && len(d.Runs[0].Problems) == 0 {
		t.Errorf("samples that cannot be read: %+v, problems %v", d.Samples, d.Runs[0].Problems)
	}
}

func TestAxes(t *testing.T) {
	root := seeded(t)
	b := show(t, root)
	s := b.Summary()
	if len(s.Runs) != 6 || s.Runs[0].Name != "game-s1" || s.Runs[3].Name != "warm-s1" {
		t.Fatalf("%d runs, the first is %s", len(s.Runs), s.Runs[0].Name)
	}
	for i := range 3 {
		if want := (&Origin{Run: 3 + i, Path: filepath.Join(root, fmt.Sprintf("warm-s%d", i+1)),
			Step: 10}); !reflect.DeepEqual(s.Runs[i].After, want) {
			t.Errorf("game %d: after %+v, want %+v", i, s.Runs[i].After, want)
		}
		if s.Runs[3+i].After != nil {
			t.Errorf("warm-up %d: after %+v", i, s.Runs[3+i].After)
		}
		if g, w := s.Runs[i].Repeats, s.Runs[3+i].Repeats; g != "game-s*" || w != "warm-s*" {
			t.Errorf("repetitions: %q, %q", g, w)
		}
		if want := []report.Warning{
			{Step: 5, Text: "the student is warned of"}}; !reflect.DeepEqual(s.Runs[i].Warnings,
			want) {
			t.Errorf("warnings: %+v", s.Runs[i].Warnings)
		}
	}
	for _, points := range []int{0, 400, 7} {
		a := b.axes(points)[0]
		n := len(a.Step)
		if want := (Distance{10, 10, 10}); a.Before != want || a.Step[n-1] != 20 ||
			a.Seconds[n-1] != 40 || a.TFLOP[n-1] != 120 || a.Step[0] != 1 || a.Seconds[0] != 2 ||
			points == 7 && n != 7 || points != 7 && n != 20 {
			t.Errorf("%d points: %+v", points, a)
		}
		if w := b.axes(points)[3]; w.Before != (Distance{}) || w.Seconds[len(w.Seconds)-1] != 10 {
			t.Errorf("%d points: %+v", points, w)
		}
	}
	// Alone, the game names what it continues; beside a moved folder it finds it.
	alone := show(t, filepath.Join(root, "game-s2"))
	if r := alone.Summary().Runs[0]; r.After == nil || r.After.Run != -1 || r.After.Step != 10 ||
		r.Repeats != "" {
		t.Errorf("alone: %+v", r.After)
	}
	if a := alone.axes(0)[0]; a.Before != (Distance{Steps: 10}) {
		t.Errorf("alone: %+v", a.Before)
	}
	moved := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(root, moved); err != nil {
		t.Fatal(err)
	}
	if r := show(t, moved).Summary().Runs[1]; r.After == nil || r.After.Run != 4 {
		t.Errorf("moved: %+v", r.After)
	}
}

// What a student that is a model's path comes from; runs that continue each other in a circle
// end somewhere.
func TestOrigins(t *testing.T) {
	root := t.TempDir()
	sft := begin(t, filepath.Join(root, "sft"), report.Options{}, "model.path=student")
	a := begin(t, filepath.Join(root, "a"), report.Options{},
		"model.path="+filepath.Join(root, "sft", "global_step_3", "actor"))
	c := begin(t, filepath.Join(root, "c"), report.Options{},
		"trainer.resume_from="+filepath.Join(root, "d", "global_step_1"))
	d := begin(t, filepath.Join(root, "d"), report.Options{},
		"trainer.resume_from="+filepath.Join(root, "c", "global_step_2"))
	for _, f := range []*folder{sft, a, c, d} {
		for step := 1; step <= 4; step++ {
			f.step(step, map[string]float64{"actor/sft_loss": 1, "timing_s/step": 1})
		}
	}
	b := show(t, a.dir, c.dir, d.dir, sft.dir)
	s := b.Summary()
	for i, want := range []*Origin{{3, sft.dir, 3}, {2, d.dir, 1}, {1, c.dir, 2}, nil} {
		if !reflect.DeepEqual(s.Runs[i].After, want) {
			t.Errorf("%s: after %+v, want %+v", s.Runs[i].Name, s.Runs[i].After, want)
		}
	}
	if before := b.axes(0)[0].Before; before != (Distance{3, 3, 0}) {
		t.Errorf("behind sft: %+v", before)
	}
	if before := b.axes(0)[1].Before; before.Steps != 24 { // 16 times 1 or 2
		t.Errorf("in a circle: %+v", before)
	}
}

// Runs are repetitions if they differ in nothing but the seed, which may stand in paths.
func TestRepetitions(t *testing.T) {
	root := t.TempDir()
	make := func(name string, settings ...string) {
		begin(t, filepath.Join(root, name), report.Options{}, settings...).step(1,
			map[string]float64{"actor/sft_loss": 1})
	}
	make("p-1", "trainer.seed=1", "model.path=/m/Qwen-0.5B-s1")
	make("p-10", "trainer.seed=10", "model.path=/m/Qwen-0.5B-s10")
	make("q-2", "trainer.seed=2", "model.path=/m/Qwen-1.5B-s2")                     // another model
	make("r-3", "trainer.seed=3", "model.path=/m/Qwen-0.5B-s3", "actor.optim.lr=1") // another rate
	// the same seed again
	make("s-1", "trainer.seed=1", "model.path=/m/Qwen-0.5B-s1")
	names := repetitions(show(t, root).runs)
	if want := []string{"p-*", "p-*", "", "", ""}; !reflect.DeepEqual(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}
