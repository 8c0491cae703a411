package study

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// fake is a gad that trains at once: a step costs what cost says, a student is a
// number, and a stage adds to it. Like gad it saves when it is stopped, goes on where
// it was, and refuses a folder of another run.
type fake struct {
	fs    vfs.FS
	needs Needs

	mu       sync.Mutex
	ran      []string // command lines, without what a probe ran
	probed   int
	steps    int                     // taken in all
	stopAt   int                     // steps after which stop is called; 0 is never
	stop     func()                  // ends the context
	fail     func(line string) error // of a command line
	now, max int                     // commands running, and the most there were
	hold     time.Duration           // that each takes
	noise    float64                 // relative deviation of a step's cost
}

var perStep = map[string]float64{"sft": 0.01, "dpo": 0.03, "warmup": 0.05, "train": 0.07}

func (f *fake) Run(ctx context.Context, args []string, out, log io.Writer) error {
	line := strings.Join(args, " ")
	probe := strings.Contains(line, "/"+probeName+" ")
	f.mu.Lock()
	f.now++
	f.max = max(f.max, f.now)
	if probe {
		f.probed++
	} else {
		f.ran = append(f.ran, line)
	}
	fail := f.fail
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.now--; f.mu.Unlock() }()
	time.Sleep(f.hold)
	if fail != nil {
		if err := fail(line); err != nil {
			return err
		}
	}
	switch args[0] {
	case "eval":
		return f.eval(args, out)
	case "fidelity":
		return f.fidelity(args, out)
	}
	fmt.Fprintln(log, "training")
	return f.train(ctx, args)
}

// flag is the value behind --name.
func flag(args []string, name string) string {
	if i := slices.Index(args, "--"+name); i >= 0 {
		return args[i+1]
	}
	return ""
}

func (f *fake) quality(model string) (q float64, err error) {
	raw, err := f.fs.ReadFile(filepath.Join(model, "quality"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(string(raw), 64)
}

func (f *fake) eval(args []string, out io.Writer) error {
	q, err := f.quality(flag(args, "model"))
	if err != nil {
		return err
	}
	t, _ := strconv.ParseFloat(flag(args, "temperature"), 64)
	if cmd := flag(args, "env"); cmd != "" { // ten episodes, of which one is broken
		return json.NewEncoder(out).Encode(map[string]any{"success_from": 1, "models": []any{
			map[string]any{"model": "m", "rows": 9, "episodes": 10, "faults": 1, "temperature": t,
				"labels": map[string]int{"key": 6, "lost": 3}, "success": q - t/100,
				"success_ci95": []float64{0, 1}, "reward": q, "turns": 5 + q, "tokens": 20,
				"invalid_frac": 1 - q, "cut_frac": 0}}, "teacher": map[string]any{"success": 1}})
	}
	e := map[string]any{"rows": 10, "temperature": t, "check": q - t/100, "rouge_l": q / 2,
		"teacher_nll": 1 - q,
		"labels":      map[string]any{"good": q}, "len_ratio": 1.0, "distinct_1": 0.5}
	if other := flag(args, "against"); other != "" {
		if _, err := f.quality(other); err != nil {
			return err
		}
		maps.Copy(e, map[string]any{"against": other, "reverse_kl": 2 - q,
			"reverse_kl_sampled": 2 - q, "forward_kl": 3 - q, "fluency": q - 4})
	}
	if steps := flag(args, "disc-steps"); steps != "0" {
		maps.Copy(e, map[string]any{"fresh_d_acc": 1 - q/2, "fresh_d_control": 0.9,
			"fresh_d_steps": 100.0})
	}
	return json.NewEncoder(out).Encode(e)
}

// fidelity prints that of a discriminator which is as good as its student.
func (f *fake) fidelity(args []string, out io.Writer) error {
	q, err := f.quality(filepath.Join(flag(args, "critic"), "actor"))
	if err != nil {
		return err
	}
	reward := func(name string, rho any) map[string]any {
		return map[string]any{"reward": name, "rho": rho, "pairs": 0.5 + q/4}
	}
	return json.NewEncoder(out).Encode(map[string]any{"rewards": []any{
		reward("log p_T - log p_S", 1.0), reward("mean log p_S", 0.25), reward("length", nil),
		reward(flag(args, "critic"), q/2)}})
}

func (f *fake) train(ctx context.Context, args []string) error {
	run, seed := flag(args, "output"), flag(args, "seed")
	total := 5
	if s := flag(args, "steps"); s != "" {
		total, _ = strconv.Atoi(s)
	}
	model := flag(args, "model")
	if r := flag(args, "resume"); r != "" {
		dir, err := f.Checkpoint(r)
		if err != nil {
			return err
		}
		model = filepath.Join(dir, "actor")
	}
	q, err := f.quality(model)
	if err != nil {
		return err
	}
	if err := vfs.MakeDirs(f.fs, run); err != nil {
		return err
	}
	kept, err := f.fs.ReadFile(filepath.Join(run, "metrics.jsonl"))
	if err != nil {
		kept = nil
	}
	h := fnv.New64()
	fmt.Fprint(h, seed, args[0])
	for step := bytes.Count(kept, []byte("\n")) + 1; step <= total; step++ {
		cost := perStep[args[0]] *
			(1 + f.noise*rand.New(rand.NewPCG(h.Sum64(), uint64(step))).NormFloat64())
		kept = fmt.Appendf(kept, `{"step":%d,"perf/tflops":%g,"timing_s/step":2,"critic/d_acc":%g,"reward/mean":"NaN"}`+"\n", step, cost/2, 0.5+float64(step)/1000)
		f.mu.Lock()
		f.steps++
		stop := f.steps == f.stopAt
		f.mu.Unlock()
		if stop {
			f.stop()
		}
		if ctx.Err() != nil {
			if err := vfs.WriteFile(f.fs, filepath.Join(run, "metrics.jsonl"), kept); err != nil {
				return err
			}
			return ErrInterrupted
		}
	}
	if err := vfs.WriteFile(f.fs, filepath.Join(run, "metrics.jsonl"), kept); err != nil {
		return err
	}
	if args[0] == "warmup" && seed == "2" {
		said := `{"level":"warn","msg":"the discriminator has not learned"}` + "\n" + `{"level":"info","msg":"done"}` + "\n"
		if err := vfs.WriteFile(f.fs, filepath.Join(run, "log.jsonl"), []byte(said+said+`{"level":"wa`)); err != nil {
			return err
		}
	}
	actor := filepath.Join(run, fmt.Sprintf("global_step_%d", total), "actor")
	if err := vfs.MakeDirs(f.fs, actor); err != nil {
		return err
	}
	gain := rand.New(rand.NewPCG(h.Sum64(), 0)).Float64() / 10
	return vfs.WriteFile(f.fs, filepath.Join(actor, "quality"),
		fmt.Appendf(nil, "%.6f", q+0.1+gain))
}

func (f *fake) Checkpoint(run string) (string, error) {
	list, err := f.fs.ReadDir(run)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "global_step_") {
			return filepath.Join(run, e.Name()), nil
		}
	}
	return "", errors.New("no checkpoint in " + run)
}

func (f *fake) Plan(args []string, timed bool) (Needs, error) {
	for _, a := range args {
		if strings.HasPrefix(a, "wrong=") {
			return Needs{}, errors.New("wrong is no setting")
		}
	}
	if _, err := f.fs.Stat(flag(args, "output")); err == nil {
		return Needs{}, errors.New("a run is there, and was told otherwise")
	}
	return f.needs, nil
}

// trial is a study on files in memory.
type trial struct {
	*fake
	plan *Plan
	log  bytes.Buffer
	jobs int
}

// world is a file system with a student and data.
func world(t *testing.T) *vfstest.CrashFS {
	t.Helper()
	fs := vfstest.NewCrash()
	for path, text := range map[string]string{"/w/student/quality": "0.1", "/w/train.arrow": "rows",
		"/w/test.arrow": "other rows"} {
		if err := errors.Join(vfs.MakeDirs(fs, filepath.Dir(path)),
			vfs.WriteFile(fs, path, []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// two arms that share a stage, one of them filled, over two seeds.
func twoArms() *Plan {
	sft := &Stage{Name: "sft", Run: "sft", Steps: 4, CriticWarmup: -1,
		Set: []string{"actor.optim.lr=3e-3"}}
	return &Plan{File: "two.yaml", Name: "two arms", Dir: "/w/out", Data: "/w/train.arrow",
		Model: "/w/student", Seeds: []uint64{1, 2},
		Common: []string{"data.max_response_length=40"},
		Eval: Eval{Sets: []Set{{"test", "/w/test.arrow"}}, Temperatures: []float64{1, 0},
			Rows: 10},
		Budget: Budget{Like: "GAD"}, Metrics: DefaultMetrics, Compare: []string{"SeqKD"},
		Arms: []Arm{
			{"SeqKD", []*Stage{sft}},
			{"SeqKD, filled", []*Stage{{Run: "sft", Fill: true, CriticWarmup: -1, Set: sft.Set}}},
			{"GAD", []*Stage{sft, {Run: "warmup", Steps: 3, CriticWarmup: 2},
				{Run: "train", CriticWarmup: -1, Preset: "gad"}}},
		}}
}

func try(t *testing.T) *trial {
	t.Helper()
	return &trial{fake: &fake{fs: world(t)}, plan: twoArms(), jobs: 1}
}

func (r *trial) options() Options {
	clock := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	return Options{FS: r.fs, Gad: r.fake, Jobs: r.jobs, Cores: 4, Log: &r.log,
		Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			clock = clock.Add(time.Second)
			return clock
		}}
}

// run runs the study until it ends or is stopped.
func (r *trial) run() (*Report, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.stop = cancel
	return Run(ctx, r.plan, r.options())
}

// must runs a study that has to succeed.
func (r *trial) must(t *testing.T) *Report {
	t.Helper()
	report, err := r.run()
	if err != nil {
		t.Fatalf("%v\n%s", err, &r.log)
	}
	return report
}

// tables are the bytes of what the study has written for people and programs.
func (r *trial) tables(t *testing.T) string {
	t.Helper()
	var all []byte
	for _, name := range []string{TablesName, JSONName} {
		raw, err := r.fs.ReadFile(filepath.Join(r.plan.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, raw...)
	}
	return string(all)
}
