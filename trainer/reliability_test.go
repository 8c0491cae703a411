package trainer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/checkpoint"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/safetensors"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// The tests of this file show the promises of doc/reliability.md that are about a
// whole run. Each prints its row and its figure. scripts/soak.sh raises the sizes.
var (
	faultEvery = flag.Int("faultevery", 36/hostile.Share(4),
		"TestRunReportsFaults fails each n-th operation of a run, and all of the first")
	budgets = flag.Int("budgets", hostile.Share(32),
		"disks between empty and large enough that TestRunOnAFullDisk runs on")
)

// saboteur is a backend that plants values: into a gradient when the optimizer
// looks at it, into what Score, LogProb and Sample give.
type saboteur struct {
	compute.Backend
	gradient float32
	score    func(i int) float32
	logp     float32
	sampled  float32

	samples  int
	onSample func(n int)
}

func (s *saboteur) SumSquares(ts []compute.Tensor) float64 {
	if s.gradient != 0 {
		s.Upload(ts[1].Slice(0, 1), []float32{s.gradient})
	}
	return s.Backend.SumSquares(ts)
}

func (s *saboteur) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	s.Backend.Score(sR, hND, w, rows)
	if s.score != nil {
		x := make([]float32, sR.Len())
		for i := range x {
			x[i] = s.score(i)
		}
		s.Upload(sR, x)
	}
}

func (s *saboteur) LogProb(out compute.HeadOut, hND compute.Tensor, w *compute.Param, rows,
	targets []int32, invTemp float64) {
	s.Backend.LogProb(out, hND, w, rows, targets, invTemp)
	if s.logp != 0 {
		s.Upload(out.LogpR.Slice(0, 1), []float32{s.logp})
	}
}

func (s *saboteur) Sample(ids []int32, logp []float32, hRD compute.Tensor, w *compute.Param,
	o compute.Sampling, u []float64) {
	s.Backend.Sample(ids, logp, hRD, w, o, u)
	if s.sampled != 0 {
		logp[0] = s.sampled
	}
	if s.samples++; s.onSample != nil {
		s.onSample(s.samples)
	}
}

// NaN and Inf, planted into gradient, reward, log-probability and loss, change no
// bit of parameters, moments and step counts; each skip is counted; after ten in a
// row the run stops with a dump, and the last good checkpoint is there
// (doc/reliability.md, row 9).
func TestNotFiniteNeverReachesTheWeights(t *testing.T) {
	t.Parallel()
	slow(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	cases, all := 0, 0
	for i, c := range []struct {
		name  string
		stage config.Stage
		plant func(s *saboteur)
		sides string // that skip
		extra []string
	}{
		{"gradient NaN", config.Train, func(s *saboteur) { s.gradient = nan }, "actor critic", nil},
		{"gradient -Inf", config.Train, func(s *saboteur) { s.gradient = -inf }, "actor critic",
			nil},
		{"gradient of SFT", config.SFT, func(s *saboteur) { s.gradient = nan }, "actor", nil},
		{"reward NaN", config.Train,
			func(s *saboteur) { s.score = func(int) float32 { return nan } }, "actor critic", nil},
		{"reward Inf", config.Train,
			func(s *saboteur) { s.score = func(i int) float32 { return inf } }, "actor critic",
			nil},
		{"reward NaN, KL in it", config.Train,
			func(s *saboteur) { s.score = func(int) float32 { return nan } }, "actor critic",
			[]string{"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"}},
		{"log-probability NaN", config.Train, func(s *saboteur) { s.logp = nan }, "actor", nil},
		{"log-probability NaN, KL in the reward", config.Train, func(s *saboteur) { s.logp = nan },
			"actor",
			[]string{"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"}},
		{"log-probability Inf", config.Train, func(s *saboteur) { s.logp = inf }, "actor", nil},
		{"log-probability of SFT", config.SFT, func(s *saboteur) { s.logp = nan }, "actor", nil},
		{"gradient of OPD", config.OPD, func(s *saboteur) { s.gradient = nan }, "actor", nil},
		{"log-probability of OPD", config.OPD, func(s *saboteur) { s.logp = nan }, "actor", nil},
		{"gradient of DPO", config.DPO, func(s *saboteur) { s.gradient = nan }, "actor", nil},
		{"log-probability of DPO", config.DPO, func(s *saboteur) { s.logp = nan }, "actor", nil},
		{"log-probability of DPO, in several packs", config.DPO,
			func(s *saboteur) { s.logp = -inf }, "actor", []string{"actor.max_token_len=64"}},
		// a teacher comes first
		{"loss", config.Train,
			func(s *saboteur) {
				s.score = func(i int) float32 { return 3e38 * float32(2*(i%2)-1) }
			},
			"actor critic",
			[]string{"algorithm.norm_adv_by_std_in_grpo=false", "algorithm.adv_clip=0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			be := &saboteur{Backend: ready(t)}
			run := filepath.Join(t.TempDir(), "run")
			skips := 3
			if i == 0 || hostile.Long() {
				skips = 10 // the default
			}
			tr := opened(t, be, settings(c.stage, run,
				append(half(c.extra...), "trainer.total_steps=40", "actor.ppo_mini_batch_size=2",
					"trainer.save_freq=1", "trainer.max_ckpt_to_keep=1",
					fmt.Sprint("trainer.max_skips=", skips))...), c.stage)
			if err := tr.Run(&stopAfter{Context: context.Background(), n: 2}); !errors.Is(err,
				ErrInterrupted) {
				t.Fatal(err)
			}
			kl := klOf(tr)
			before := map[string]map[string]string{}
			for _, side := range strings.Fields(c.sides) {
				before[side] = weights(t, tr, side)
			}
			steps := tr.actor.Optimizer().Steps()
			c.plant(be)
			err := tr.Run(context.Background())
			if !errors.Is(err, ErrNumerical) || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), fmt.Sprint(skips, " optimizer steps in a row")) ||
				!strings.Contains(err.Error(), "global_step_2") {
				t.Fatalf("ends with %v", err)
			}
			for _, side := range strings.Fields(c.sides) {
				same(t, weights(t, tr, side), before[side])
			}
			if tr.actor.Optimizer().Steps() != steps {
				t.Errorf("%d optimizer steps, %d before", tr.actor.Optimizer().Steps(), steps)
			}
			if x := klOf(tr).Coef; x-x != 0 || kl.Coef != 0 && x == 0 {
				t.Errorf("KL coefficient %g, was %g", x, kl.Coef)
			}
			raw, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			counted := strings.Count(string(raw), `actor/skipped_updates":`) + 1 // the last is in the dump
			if counted != skips {
				t.Errorf("%d skips of the actor counted, want %d", counted, skips)
			}
			dump, err := os.ReadFile(filepath.Join(run, "numerical_stop.txt"))
			if err != nil || !strings.Contains(string(dump), "data rows [") {
				t.Errorf("the dump: %s, %v", dump, err)
			}
			if err := checkpoint.Verify(vfs.OS, filepath.Join(run, "global_step_2")); err != nil {
				t.Errorf("the last good checkpoint: %v", err)
			}
			cases, all = cases+1, all+counted
		})
	}
	// The sampler sees nothing finite: there is nothing to learn from, the run stops at once.
	be := &saboteur{Backend: ready(t)}
	run := filepath.Join(t.TempDir(), "run")
	tr := opened(t, be, settings(config.Train, run, "trainer.total_steps=9", "trainer.save_freq=1"),
		config.Train)
	if err := tr.Run(&stopAfter{Context: context.Background(), n: 1}); !errors.Is(err,
		ErrInterrupted) {
		t.Fatal(err)
	}
	before := weights(t, tr, "actor")
	be.sampled = nan
	if err := tr.Run(context.Background()); !errors.Is(err, ErrNumerical) {
		t.Errorf("a sampler that is not finite: %v", err)
	}
	same(t, weights(t, tr, "actor"), before)
	if last, _, err := saved.Find(vfs.OS, run); err != nil ||
		filepath.Base(last) != "global_step_1" {
		t.Errorf("newest checkpoint %s, %v", last, err)
	}
	t.Logf("row 9: NaN and Inf: %d places planted, %d updates skipped and counted, 0 bits of weights, moments and step counts changed, each stop with dump and last good checkpoint", cases+1, all)
}

// A save of weights or moments that are not finite is impossible: the run stops,
// names the tensor, and the checkpoint before is the newest (doc/reliability.md, row 9).
func TestSickWeightsAreNotSaved(t *testing.T) {
	tensors := 0
	for _, side := range []string{"actor", "critic"} {
		for _, part := range []string{"weights", "first moment", "second moment"} {
			be := ready(t)
			run := filepath.Join(t.TempDir(), "run")
			tr := opened(t, be, settings(config.Warmup, run, "trainer.total_steps=4",
				"trainer.save_freq=1", "trainer.critic_warmup=1"), config.Warmup)
			if err := tr.Run(&stopAfter{Context: context.Background(), n: 1}); !errors.Is(err,
				ErrInterrupted) {
				t.Fatal(err)
			}
			m := tr.actor.Model()
			if side == "critic" {
				m = gameOf(tr).critic.Model()
			}
			p := m.Params()[len(m.Params())/2]
			x := map[string]compute.Tensor{"weights": p.W, "first moment": p.M,
				"second moment": p.V}[part]
			be.Upload(x.Slice(3, 4), []float32{float32(math.Inf(-1))})
			tr.step++
			err := tr.save(nil, true)
			if !errors.Is(err, model.ErrNotFinite) || !strings.Contains(err.Error(), p.Name) ||
				!strings.Contains(err.Error(), "element 3: -Inf") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s of the %s: saved with %v", part, side, err)
			}
			if dir, notes, err := saved.Find(vfs.OS, run); err != nil ||
				filepath.Base(dir) != "global_step_1" || len(notes) > 0 {
				t.Errorf("newest checkpoint %s, %v, %v", dir, notes, err)
			}
			if endOf(fmt.Errorf("%w: %w", ErrNumerical, err)) != "numbers broke down" {
				t.Error("the log would not say so")
			}
			tensors++
		}
	}
	t.Logf("row 9: sick weights: %d kinds of tensor planted before a save, %d saves refused, the checkpoint before is the newest each time", tensors, tensors)
}

// Over three epochs with twenty random stops, and stops at the first row, the last
// row and the epochs' ends, each row is learned from exactly once an epoch; also
// where a batch is larger than the data set (doc/reliability.md, row 5).
func TestRowsOncePerEpochAcrossStops(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	stopsMade := 0
	for _, batch := range []int{4, 7, 64} {
		total := (3*40 + batch - 1) / batch
		r := rand.New(rand.NewPCG(5, uint64(batch)))
		stop := map[int]bool{1: true, total - 1: true, 40 / batch: true, 80 / batch: true,
			40/batch + 1: true}
		for range hostile.Share(20) {
			stop[1+r.IntN(total)] = true
		}
		run := filepath.Join(t.TempDir(), fmt.Sprint(batch))
		cfg := settings(config.SFT, run, fmt.Sprintf("data.train_batch_size=%d", batch),
			"trainer.total_epochs=3", "trainer.save_freq=0", "trainer.max_ckpt_to_keep=1")
		var rows []int
		for done := false; !done; {
			tr, err := Open(cfg, config.SFT, Options{FS: vfs.OS, Backend: be})
			if err != nil {
				t.Fatal(err)
			}
			for {
				stopping, cancel := context.WithCancel(context.Background())
				if stop[tr.step+1] {
					cancel()
				}
				if _, err := tr.advance(stopping); err != nil {
					t.Fatal(err)
				}
				cancel()
				rows = append(rows, tr.train.step...)
				if done = tr.step == tr.total; done || stop[tr.step] {
					break
				}
			}
			stopsMade++
			tr.Close()
		}
		if len(rows) < 120 {
			t.Fatalf("batch %d: %d rows, want 120", batch, len(rows))
		}
		for epoch := range 3 {
			part := slices.Clone(rows[40*epoch:][:40])
			slices.Sort(part)
			if len(slices.Compact(part)) != 40 {
				t.Errorf("batch %d: epoch %d: %d different rows of 40", batch, epoch,
					len(slices.Compact(part)))
			}
		}
	}
	t.Logf("row 5: rows: 3 epochs of 40 rows with batches of 4, 7 and 64, %d stops and resumes: each row exactly once an epoch", stopsMade-3)
}

// A signal while answers are sampled ends the sampling before its next token. The
// step is given up, the one before is saved, and the run goes on as one that was
// never stopped (doc/reliability.md, row 10).
func TestStopWhileSampling(t *testing.T) {
	t.Parallel()
	slow(t)
	plain := ready(t)
	// a validation is not left
	overrides := append(half(stateful...), "trainer.total_steps=3", "trainer.keep_best=",
		"trainer.test_freq=0", "trainer.save_freq=2")
	whole := filepath.Join(t.TempDir(), "whole")
	counter := &saboteur{Backend: plain}
	if err := play(counter, settings(config.Train, whole, overrides...), config.Train); err != nil {
		t.Fatal(err)
	}
	want := record(t, whole, 3)
	stops := 0
	for at := 1; at < counter.samples; at += max(1, counter.samples/hostile.Share(16)) {
		be := &saboteur{Backend: plain}
		run := filepath.Join(t.TempDir(), "run")
		cfg := settings(config.Train, run, overrides...)
		tr, err := Open(cfg, config.Train, Options{FS: vfs.OS, Backend: be})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		be.onSample = func(n int) {
			if n == at {
				cancel()
			}
		}
		if err := tr.Run(ctx); !errors.Is(err, ErrInterrupted) {
			t.Fatalf("stopped at sample %d: %v", at, err)
		}
		if be.samples > at+1 { // a first token and the next are one turn
			t.Errorf("stopped at sample %d of %d: %d were drawn", at, counter.samples, be.samples)
		}
		if tr.step > 0 {
			if err := checkpoint.Verify(vfs.OS,
				filepath.Join(run, fmt.Sprintf("global_step_%d", tr.step))); err != nil {
				t.Error(err)
			}
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		finished(t, plain, cfg, config.Train)
		same(t, record(t, run, 3), want)
		stops++
	}
	t.Logf("row 10: stop while sampling: %d stops among a run's %d draws of tokens, each before the next but one, 0 divergences", stops, counter.samples)
}

// A run that a panic ends says so in its last word, and the panic goes on.
func TestLastWordOfAPanic(t *testing.T) {
	be := &saboteur{Backend: ready(t)}
	be.onSample = func(n int) {
		if n == 20 {
			panic("planted")
		}
	}
	run := filepath.Join(t.TempDir(), "run")
	tr, err := Open(settings(config.Train, run, "trainer.total_steps=2"), config.Train,
		Options{FS: vfs.OS, Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	func() {
		defer func() {
			if r := recover(); r != "planted" {
				t.Errorf("the panic went on as %v", r)
			}
		}()
		err = tr.Run(context.Background())
		t.Errorf("the run came back with %v", err)
	}()
	word, err := report.ReadLastWord(vfs.OS, run)
	if want := fmt.Sprintf("step %d: panic: planted", tr.step+1); err != nil ||
		word.End != report.Failed || word.Text != want {
		t.Errorf("last word %+v, %v; want %q", word, err, want)
	}
}

// ops are the operations that a file system was asked for.
func ops(e *vfstest.ErrorFS) (list []string) {
	for i := range e.Ops() {
		list = append(list, e.Op(i))
	}
	return list
}

// What a checkpoint builds on is on the disk before the checkpoint is: no kill would show it if it
// were not.
func TestMetricsAreOnTheDiskBeforeACheckpoint(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	clean := vfstest.NewError(vfs.OS, -1, false)
	tr, err := Open(settings(config.SFT, run, "trainer.total_steps=3", "trainer.save_freq=1",
		"trainer.max_ckpt_to_keep=1", "data.train_batch_size=1"), config.SFT,
		Options{FS: clean, Backend: be})
	if err == nil {
		err = errors.Join(tr.Run(context.Background()), tr.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	safe, commits := false, 0
	for _, op := range ops(clean) {
		switch {
		case op == "write "+filepath.Join(dir, "run", "metrics.jsonl"):
			safe = false
		case op == "sync "+filepath.Join(dir, "run", "metrics.jsonl"):
			safe = true
		case strings.HasPrefix(op, "rename "+filepath.Join(dir, "run", ".commit-")):
			if commits++; !safe {
				t.Error("a checkpoint is committed before its metrics are synced")
			}
		}
	}
	if commits != 3 {
		t.Errorf("%d commits, want 3", commits)
	}
}

// Operations of a run fail, once and for ever: the run reports the error, exits in error, and the
// checkpoint that was acknowledged before loads (doc/reliability.md, row 3).
func TestRunReportsFaults(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	dir := t.TempDir()
	attempt := func(at int, forever bool) (e *vfstest.ErrorFS, run string, tr *Trainer, err error) {
		run = filepath.Join(dir, "run")
		if err := os.RemoveAll(run); err != nil {
			t.Fatal(err)
		}
		e = vfstest.NewError(vfs.OS, at, forever)
		cfg := settings(config.SFT, run, "trainer.total_steps=3", "trainer.save_freq=1",
			"trainer.max_ckpt_to_keep=1", "data.train_batch_size=1")
		if tr, err = Open(cfg, config.SFT, Options{FS: e, Backend: be}); err == nil {
			err = errors.Join(tr.Run(context.Background()), tr.Close())
		}
		return e, run, tr, err
	}
	clean, _, _, err := attempt(-1, false)
	if err != nil {
		t.Fatal(err)
	}
	tried, injected, reported := 0, 0, 0
	for _, forever := range []bool{false, true} {
		const opening = 20 // operations before the first step, each of another kind
		for at := 0; at < clean.Ops(); at++ {
			if at >= opening && at%*faultEvery != 0 {
				continue
			}
			tried++
			e, run, tr, err := attempt(at, forever)
			if e.Faults() == 0 {
				continue
			}
			injected++
			if !errors.Is(err, vfstest.ErrInjected) {
				t.Errorf("operation %d (%s), for ever %v: error %v", at, e.Op(at), forever, err)
				continue
			}
			reported++
			if tr == nil || tr.past.saved.Load() == 0 {
				continue
			}
			step, _, warnings, err := checkpoint.Latest(vfs.OS, run)
			if err != nil || step < int(tr.past.saved.Load()) || len(warnings) > 0 {
				t.Errorf("operation %d (%s): step %d was acknowledged, %d is there: %v %v", at,
					e.Op(at), tr.past.saved.Load(), step, warnings, err)
			}
		}
	}
	t.Logf("row 3: I/O errors in a run: %d of %d operations failed, once and for ever, %d of %d errors reported, the acknowledged checkpoint loads each time", tried/2, clean.Ops(), reported, injected)
}

// A disk fills up at any point of a run: the run says path, bytes needed and bytes
// free, and the last checkpoint that was acknowledged loads. Where a save cannot
// fit it is not begun (doc/reliability.md, row 4).
func TestRunOnAFullDisk(t *testing.T) {
	slow(t)
	be := ready(t)
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	cfg := settings(config.SFT, run, "trainer.total_steps=3", "trainer.save_freq=1",
		"data.train_batch_size=1")
	attempt := func(fsys vfs.FS) (tr *Trainer, err error) {
		if err := os.RemoveAll(run); err != nil {
			t.Fatal(err)
		}
		if tr, err = Open(cfg, config.SFT, Options{FS: fsys, Backend: be}); err == nil {
			err = errors.Join(tr.Run(context.Background()), tr.Close())
		}
		return tr, err
	}
	roomy := vfstest.NewBudget(vfs.OS, 1<<40)
	if _, err := attempt(roomy); err != nil {
		t.Fatal(err)
	}
	need := roomy.BytesUsed()
	top := need + 1<<20 // a save asks for a megabyte more than it takes
	said := regexp.MustCompile(regexp.QuoteMeta(run) + `.*: not enough disk space: (more than )?\d+ bytes needed, \d+ free`)
	refused, begun := 0, 0
	for i := range *budgets {
		room := top * int64(i) / int64(*budgets)
		tr, err := attempt(vfstest.NewBudget(vfs.OS, room))
		if err == nil && room < need {
			t.Errorf("with %d of %d bytes: no error", room, need)
		}
		if err == nil {
			continue
		}
		refused++
		if !errors.Is(err, checkpoint.ErrSpace) || strings.Contains(err.Error(), "\n") ||
			!said.MatchString(err.Error()) {
			t.Errorf("with %d of %d bytes: %v", room, need, err)
		}
		if tr == nil || tr.past.saved.Load() == 0 {
			continue
		}
		begun++
		if step, _, warnings, err := checkpoint.Latest(vfs.OS, run); err != nil ||
			step < int(tr.past.saved.Load()) || len(warnings) > 0 {
			t.Errorf("step %d was acknowledged, %d is there: %v %v", tr.past.saved.Load(), step,
				warnings, err)
		}
	}
	if begun == 0 {
		t.Error("no run came to its first checkpoint: the test shows too little")
	}
	// One byte too few: no file of the checkpoint is begun.
	tight := &tightFS{FS: vfs.OS}
	counted := vfstest.NewError(tight, -1, false)
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(cfg, config.SFT, Options{FS: counted, Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tight.left = tr.checkpointBytes() - 1
	if err := tr.Run(context.Background()); !errors.Is(err, checkpoint.ErrSpace) ||
		!strings.Contains(err.Error(),
			fmt.Sprintf("%d bytes needed, %d free", tr.checkpointBytes(), tight.left)) {
		t.Errorf("with a byte too few: %v", err)
	}
	if i := slices.IndexFunc(ops(counted),
		func(op string) bool { return strings.Contains(op, ".commit-") }); i >= 0 {
		t.Errorf("the save was begun: %s", counted.Op(i))
	}
	t.Logf("row 4: full disk in a run: %d disks from empty to full of %d bytes, refused each time with path, bytes needed and free, %d of them after a checkpoint, which loads", refused, need, begun)
}

// A run whose first checkpoint has no room says so before its first step.
func TestDiskTooSmallIsToldFirst(t *testing.T) {
	be := ready(t)
	for _, room := range []int64{0, 1 << 20} { // 0: as many bytes as there are
		var console strings.Builder
		tr, err := Open(settings(config.SFT, filepath.Join(t.TempDir(), "run"),
			"trainer.total_steps=1"), config.SFT,
			Options{FS: &tightFS{vfs.OS, room}, Backend: be, Console: &console})
		if err != nil {
			t.Fatal(err)
		}
		err = tr.Run(context.Background())
		if errors.Is(err, checkpoint.ErrSpace) != (room > 0) {
			t.Errorf("%d bytes: %v", room, err)
		}
		want := fmt.Sprintf("%d bytes needed, %d free: free some space, or choose another disk: the next checkpoint would fail, and the steps before it would be lost",
			tr.checkpointBytes(), room)
		tr.Close()
		before, _, _ := strings.Cut(console.String(), "step 1/1")
		if strings.Contains(before, want) != (room > 0) {
			t.Errorf("%d bytes: console:\n%s", room, &console)
		}
	}
}

// tightFS is a disk with so many bytes left, or as many as there are.
type tightFS struct {
	vfs.FS
	left int64
}

func (f *tightFS) Free(path string) (int64, error) {
	if f.left > 0 {
		return f.left, nil
	}
	return f.FS.Free(path)
}

// An export, a copy as it is or narrowed, is whole or absent whichever operation it
// is killed at, the next one succeeds, and names, types and shapes are the base
// model's (doc/reliability.md, row 18).
func TestExportIsWholeOrAbsent(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	dir := t.TempDir()
	base, dst := filepath.Join(dir, "base"), filepath.Join(dir, "out")
	m, err := model.New(be, func() model.Config { c := modeltest.Shape; c.Vocab = fixed.tok.Size(); c.DType = "bfloat16"; return c }(), model.Options{Kind: model.LM, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(export.WriteFolder(vfs.OS, base, m, fixed.tok, "bfloat16"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	finished(t, be, settings(config.SFT, run, "model.path="+base, "trainer.total_steps=1"),
		config.SFT)
	ckpt := filepath.Join(run, "global_step_1")
	killed, absent := 0, 0
	for _, dtype := range []string{"base", "float32"} {
		os.RemoveAll(dst)
		if _, err := export.Part(vfs.OS, ckpt, "actor", dst, dtype); err != nil {
			t.Fatal(err)
		}
		want := filesOf(t, dst)
		if dtype == "base" {
			if got, wanted := tensors(t, dst), tensors(t, base); len(wanted) < 20 ||
				!slices.Equal(got, wanted) {
				t.Errorf("exported %v, the base model has %v", got, wanted)
			}
		}
		for at := 0; ; at++ {
			os.RemoveAll(dst)
			e := vfstest.NewError(vfs.OS, at, true)
			_, err := export.Part(e, ckpt, "actor", dst, dtype)
			if e.Faults() == 0 {
				break
			}
			killed++
			if err == nil {
				t.Errorf("%s: killed at %s: no error", dtype, e.Op(at))
			}
			if _, err := os.Stat(dst); errors.Is(err, fs.ErrNotExist) {
				absent++
			} else if got := filesOf(t, dst); !maps.Equal(got, want) {
				t.Errorf("%s: killed at %s: %d of %d files", dtype, e.Op(at), len(got), len(want))
			}
			os.RemoveAll(dst)
			if _, err := export.Part(vfs.OS, ckpt, "actor", dst, dtype); err != nil {
				t.Errorf("%s: after a kill at %s: %v", dtype, e.Op(at), err)
			}
			if got := filesOf(t, dst); !maps.Equal(got, want) {
				t.Errorf("%s: after a kill at %s: another export", dtype, e.Op(at))
			}
		}
	}
	if rest, _ := filepath.Glob(filepath.Join(dir, ".*")); len(rest) > 0 {
		t.Errorf("left over: %v", rest)
	}
	t.Logf("row 18: export: killed at each of %d operations, %d absent, %d whole, the next one succeeds each time; names, types and shapes are the base model's", killed, absent, killed-absent)
}

// tensors lists name, type and shape of a model folder's tensors.
func tensors(t *testing.T, dir string) (list []string) {
	t.Helper()
	f, err := safetensors.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		list = append(list, fmt.Sprint(name, " ", x.DType, " ", x.Shape))
	}
	slices.Sort(list)
	return list
}

// Where memory ends, a run ends with an error that names what the memory was for,
// its shape and its bytes (doc/reliability.md, row 19).
func TestRunOutOfMemory(t *testing.T) {
	slow(t)
	ready(t)
	try := func(limit int64) (int64, error) {
		be, err := cpu.New(cpu.Options{Workers: 1, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer be.Close()
		err = play(be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"trainer.total_steps=1", "data.train_batch_size=1"), config.Train)
		_, peak := be.Memory()
		return peak, err
	}
	peak, err := try(0)
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`"[^"]+": \d+ elements, \d+ bytes: out of memory: beyond the limit of \d+ bytes with \d+ in use`)
	const sizes = 48
	failed, names := 0, map[string]bool{}
	for i := int64(1); i < sizes; i++ {
		_, err := try(peak * i / sizes)
		if err == nil {
			continue // scratch memory is counted and not refused
		}
		failed++
		if !errors.Is(err, compute.ErrMemory) || !said.MatchString(err.Error()) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("with %d of %d bytes: %v", peak*i/sizes, peak, err)
		}
		names[strings.SplitN(err.Error(), `"`, 3)[1]] = true
	}
	if failed < sizes/2 {
		t.Errorf("only %d of %d sizes of memory were too small", failed, sizes-1)
	}
	t.Logf("row 19: memory that runs out: %d sizes too small, each named what it was for (%d different), its elements and bytes", failed, len(names))
}
