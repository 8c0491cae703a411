//go:build nvidia

package trainer

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cuda"
	"gad/internal/compute/cuda/driver"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// gpu opens a GPU, emulated or not; where there is none the test is skipped,
// unless GAD_REQUIRE_CUDA says that there must be one.
func gpu(t testing.TB, precision string) compute.Backend {
	t.Helper()
	be, err := cuda.Open(cuda.Options{Precision: precision})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { be.Close() })
	return be
}

// inTurn reports whether way number way is tried on arm number arm: on an emulated device, but for
// GAD_LONG, each way is tried on one of two arms.
func inTurn(arm, way int) bool { return driver.Emulated() == nil || hostile.InTurn(arm, way, 2) }

// Every stage on the GPU, beside the same stage on the CPU: the first step's
// figures agree, as both start from the same weights; in float32 so do the
// answers that are sampled.
func TestCUDAStages(t *testing.T) {
	cpu := ready(t)
	gpu(t, cuda.F32) // opens the driver, or skips
	quantised := func(base string, more ...string) []string {
		return append(more, "trainer.total_steps=3", "actor.lora.rank=4", "actor.lora.base="+base)
	}
	stages := []struct {
		stage    config.Stage
		settings []string
		figures  []string // of the first step that has them
	}{
		{config.SFT, []string{"trainer.total_steps=3"},
			[]string{"actor/sft_loss", "actor/grad_norm", "actor/entropy"}},
		{config.Warmup, []string{"trainer.total_steps=4", "trainer.critic_warmup=2"},
			[]string{"critic/d_loss", "critic/d_acc_fresh", "critic/grad_norm", "critic/score_gap",
				"actor/sft_loss"}},
		{config.Train, []string{"trainer.total_steps=3"},
			[]string{"critic/d_loss", "critic/grad_norm", "actor/entropy", "actor/kl_loss",
				"rollout/len_mean"}},
		{config.Warmup, quantised("q8_0", "critic.lora.rank=4", "trainer.critic_warmup=2"),
			[]string{"critic/d_loss", "critic/grad_norm", "critic/score_gap", "actor/sft_loss"}},
		{config.Warmup, quantised("q4_0", "critic.lora.rank=4", "trainer.critic_warmup=2",
			"rollout.merged=true"), []string{"critic/d_loss", "critic/grad_norm",
			"critic/score_gap", "actor/sft_loss"}},
		{config.OPD, quantised("q4_0", "teacher.weights=q8_0", "teacher.loss=exact"),
			[]string{"actor/entropy", "rollout/len_mean"}},
	}
	for arm, precision := range []string{cuda.F32, cuda.BF16} {
		for way, s := range stages {
			if s.stage != config.Train && !inTurn(arm, way) {
				continue
			}
			name := strings.Join(append([]string{string(s.stage)}, s.settings...), " ")
			t.Run(precision+"/"+name, func(t *testing.T) {
				be := gpu(t, precision)
				out := t.TempDir()
				want := finished(t, cpu, settings(s.stage, filepath.Join(out, "cpu"),
					s.settings...), s.stage)
				got := finished(t, be, settings(s.stage, filepath.Join(out, "cuda"),
					append(s.settings, "trainer.device=cuda", "trainer.precision="+precision)...),
					s.stage)
				if len(got) != len(want) {
					t.Fatalf("%d rows of metrics, on the CPU %d", len(got), len(want))
				}
				for i, row := range got {
					for name, x := range row.Values {
						if math.IsNaN(x) || math.IsInf(x, 0) {
							t.Errorf("step %d: %s is %g", row.Step, name, x)
						}
						if _, ok := want[i].Values[name]; !ok && name != "perf/declined_products" &&
							name != "perf/replayed_frac" {
							t.Errorf("step %d: %s is not there on the CPU", row.Step, name)
						}
					}
				}
				tol := map[string]float64{cuda.F32: 1e-3, cuda.BF16: 0.1}[precision]
				for _, name := range s.figures {
					if precision == cuda.BF16 && name == "rollout/len_mean" {
						continue // other answers are as good
					}
					i := 0
					for i < len(want) && !has(want[i].Values, name) {
						i++
					}
					if i == len(want) || !has(got[i].Values, name) {
						t.Errorf("%s: no step has it", name)
						continue
					}
					x, y := got[i].Values[name], want[i].Values[name]
					t.Logf("step %d: %s %.6g, on the CPU %.6g", want[i].Step, name, x, y)
					if precision == cuda.BF16 && s.stage != config.SFT {
						continue // the answers differ, and all that is computed from them
					}
					if math.Abs(x-y) > tol*math.Max(math.Abs(y), 0.01) {
						t.Errorf("step %d: %s is %g, on the CPU %g", want[i].Step, name, x, y)
					}
				}
				for _, row := range got {
					if row.Values["perf/declined_products"] != 0 ||
						has(row.Values, "perf/replayed_frac") != has(row.Values,
							"rollout/len_mean") {
						t.Errorf("step %d: %g products were declined, replayed_frac %g", row.Step,
							row.Values["perf/declined_products"], row.Values["perf/replayed_frac"])
					}
				}
				if s.stage == config.Train {
					for _, row := range got {
						if d, tol :=
							row.Values["rollout/logp_diff_max"],
							map[string]float64{cuda.F32: 1e-4, cuda.BF16: 0.1}[precision]; d > tol {
							t.Errorf("step %d: sampler and trainer differ by %g", row.Step, d)
						}
					}
				}
			})
		}
	}
}

// What a run says where cuBLASLt has no algorithm for anything: one line in the log, and
// the counts in every step; and graphs are replayed all the same.
func TestCUDADeclined(t *testing.T) {
	ready(t)
	if driver.Emulated() == nil {
		gpu(t, cuda.BF16) // opens the driver, or skips
		if driver.Emulated() == nil {
			t.Skip("NOT TESTED: only the emulated device refuses products on demand")
		}
	}
	t.Setenv("GAD_EMU_NO_PLANS", "1")
	out := filepath.Join(t.TempDir(), "run")
	c := settings(config.Train, out, "trainer.total_steps=2", "trainer.device=cuda",
		"trainer.precision=bf16")
	rows := finished(t, gpu(t, cuda.BF16), c, config.Train)
	for _, row := range rows {
		if n, share :=
			row.Values["perf/declined_products"], row.Values["perf/replayed_frac"]; n < 10 ||
			share <= 0 || share >= 1 {
			t.Errorf("step %d: %g products declined, %g of the decode steps replayed", row.Step, n,
				share)
		}
	}
	text, err := os.ReadFile(filepath.Join(out, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "cuBLASLt declined "); n != 1 {
		t.Errorf("%d lines of the log speak of it, want 1:\n%s", n, text)
	}
}

func has(m map[string]float64, name string) bool { _, ok := m[name]; return ok }

// A run on the GPU that is stopped and gone on with leaves the bits of one that
// was not; also with moments in 8 bits, and with moments in the host's memory, which
// change no bit. A master's rest is in the checkpoint.
func TestCUDAResume(t *testing.T) {
	cpu := ready(t)
	gpu(t, cuda.F32) // opens the driver, or skips
	shape := modeltest.Shape
	// large enough for 8 bits
	shape.Vocab, shape.Hidden, shape.FFN, shape.HeadDim = fixed.tok.Size(), 64, 128, 16
	m, err := model.New(cpu, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	student := filepath.Join(t.TempDir(), "student")
	if err := errors.Join(export.WriteFolder(vfs.OS, student, m, fixed.tok, "bfloat16"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	var wide [][]byte
	for arm, moments := range []string{"float32", "8bit"} {
		for way, offload := range []string{"false", "true"} {
			// TestCUDAMoments of package model tries each pair
			if !inTurn(arm, way) {
				continue
			}
			t.Run(moments+" "+offload, func(t *testing.T) {
				out := t.TempDir()
				set := func(dir string) config.Config {
					return settings(config.Warmup, filepath.Join(out, dir), "trainer.total_steps=4",
						"trainer.critic_warmup=1", "trainer.device=cuda", "trainer.save_freq=2",
						"model.path="+student,
						"actor.optim.moments="+moments, "critic.optim.moments="+moments,
						"actor.optim.offload="+offload, "critic.optim.offload="+offload)
				}
				if err := play(gpu(t, cuda.BF16), set("whole"), config.Warmup); err != nil {
					t.Fatal(err)
				}
				stopped := opened(t, gpu(t, cuda.BF16), set("parts"), config.Warmup)
				if err := stopped.Run(&stopAfter{Context: context.Background(), n: 3}); !errors.Is(
					err, ErrInterrupted) {
					t.Fatalf("the first part ended with %v", err)
				}
				if err := stopped.Close(); err != nil {
					t.Fatal(err)
				}
				if err := play(gpu(t, cuda.BF16), set("parts"), config.Warmup); err != nil {
					t.Fatal(err)
				}
				same(t, record(t, filepath.Join(out, "parts"), 4),
					record(t, filepath.Join(out, "whole"), 4))
				state, err := os.ReadFile(
					filepath.Join(out, "whole", "global_step_4", saved.ActorOptimizer))
				if err != nil {
					t.Fatal(err)
				}
				if wide = append(wide, state); offload == "true" && len(wide)%2 == 0 &&
					inTurn(arm, 1-way) && !bytes.Equal(state, wide[len(wide)-2]) {
					t.Error("the moments on the host change the actor's optimizer state")
				}
			})
		}
	}
	if n := len(wide); n > 1 && bytes.Equal(wide[0], wide[n-1]) {
		t.Error("moments in 8 bits change nothing")
	}
}

// What a whole game takes at its peak is what its plan says, for each way to take less.
func TestCUDAPeakIsThePlan(t *testing.T) {
	var sets [][]string
	for _, set := range append(slices.Clone(smaller), []string{"actor.optim.offload=true"},
		[]string{"critic.optim.offload=true", "critic.optim.moments=8bit"}) {
		sets = append(sets, append(slices.Clone(set), "trainer.device=cuda"))
	}
	gpu(t, cuda.F32) // opens the driver, or skips
	for arm, precision := range []string{cuda.F32, cuda.BF16} {
		open := func(precision string) compute.Backend { return gpu(t, precision) }
		some := func(all [][]string) (some [][]string) {
			for way, set := range all {
				if inTurn(arm, way) {
					some = append(some, set)
				}
			}
			return some
		}
		peaks(t, open, config.OPD, precision, some([][]string{{}, {"trainer.device=cuda",
			"actor.lora.rank=32", "actor.lora.base=q4_0", "teacher.weights=q8_0"}}))
		peaks(t, open, config.Warmup, precision, some(sets))
	}
}
