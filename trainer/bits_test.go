package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	xcpu "golang.org/x/sys/cpu"

	"gad/internal/compute/cpu"
	"gad/internal/conf"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/trainer/config"
	"gad/trainer/modeltest"
)

// The number of threads and of sequences sampled side by side change no bit
// (doc/reliability.md, rows 6 and 7), in any variant that the machine has.
func TestSameBits(t *testing.T) {
	ready(t)
	variants := cpu.Variants()
	if testing.Short() {
		variants = variants[len(variants)-1:]
	}
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			var want map[string]string
			for i, c := range []struct{ threads, slots int }{{1, 64}, {3, 1}, {2, 4}, {8, 64},
				{16, 1}} {
				if !hostile.Long() && (i == 3 || i > 1 && variant != variants[len(variants)-1]) ||
					i > 2 && testing.Short() {
					continue
				}
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.threads))
				be, err := cpu.New(cpu.Options{Workers: c.threads, Variant: variant})
				if err != nil {
					t.Fatal(err)
				}
				run := filepath.Join(t.TempDir(), fmt.Sprintf("%d-%d", c.threads, c.slots))
				finished(t, be, settings(config.Train, run, "trainer.total_steps=2",
					"algorithm.use_kl_in_reward=true",
					fmt.Sprintf("rollout.max_num_seqs=%d", c.slots)), config.Train)
				be.Close()
				got := record(t, run, 2)
				if want == nil {
					want = got
					continue
				}
				same(t, got, want)
			}
		})
	}
	t.Logf("row 6: threads: 1, 2, 3, 8 and 16 threads and processors of Go, with 1, 4 and 64 "+
		"sampling slots, in %s: metrics, samples and checkpoints byte-equal within a variant (without "+
		"8 threads, and 1 and 3 threads, 1 and 64 slots in all but the last, if this is no long run)",
		strings.Join(variants, ", "))
}

// goldenSteps is the length of each golden run.
const goldenSteps = 20

// A change that should not change the numbers must leave this curve as it is, to the last bit: 20
// steps of warm-up, then 20 of the game, from random weights, by the portable variant, whose
// arithmetic the Go compiler fixes (doc/reliability.md, row 8). It holds on amd64: elsewhere the
// compiler may fuse a multiplication and an addition, and math.Exp and math.Log have other
// implementations.
//
// Commit a rewritten file (go test ./trainer -run Golden -update) only if you
// understand the difference.
func TestGoldenRun(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skipf("NOT TESTED: the golden run was made on amd64; on %s fused multiply-adds give other last bits", runtime.GOARCH)
	}
	if !xcpu.X86.HasFMA {
		t.Skip("NOT TESTED: the golden run was made with FMA, which math.Exp uses where it is: this processor has none")
	}
	ready(t)
	be, err := cpu.New(cpu.Options{Workers: 2, Variant: "portable"})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	dir := t.TempDir()
	warmup, train := filepath.Join(dir, "warmup"), filepath.Join(dir, "train")
	small := []string{fmt.Sprintf("trainer.total_steps=%d", goldenSteps), "data.train_batch_size=2",
		"trainer.save_freq=0"}
	// From the blank student: the fixture's own was trained by the machine's fastest variant.
	finished(t, be, settings(config.Warmup, warmup,
		append(small, "model.path="+filepath.Join(fixed.root, "blank"), "critic.truncated=include",
			"trainer.critic_warmup=5", "actor.optim.lr=5e-3")...), config.Warmup)
	finished(t, be, settings(config.Train, train,
		append(small, "trainer.resume_from="+warmup, "critic.truncated=include",
			"actor.ppo_epochs=2", "critic.replay.size=32")...), config.Train)
	var got []byte
	for _, run := range []string{warmup, train} {
		raw, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := report.StripTimings(raw)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, lines...)
	}
	modeltest.Golden(t, filepath.Join("..", "testdata", "trainer", "golden_run.jsonl"), got)
	if !t.Failed() {
		t.Logf("row 8: golden run: %d steps of warm-up and %d of the game equal to the file at full bits", goldenSteps, goldenSteps)
	}
}

// doc/settings.md and doc/metrics.md say what the tables in the code say.
func TestDocumentsAreTheTables(t *testing.T) {
	defaults := config.Default()
	if err := conf.Check(&defaults); err != nil {
		t.Error(err)
	}
	settings := "# Settings\n\nAll settings of `gad sft`, `gad warmup`, `gad train`, `gad dpo` and `gad opd`. On the command line a setting is written `actor.optim.lr=1e-6`; in a YAML file each dot is a level. " +
		"The defaults are the paper's where it states them. They differ by command in four places: `actor.optim.lr` (`sft`: 5e-06), `actor.grad_clip` (`sft` and `dpo`: 1), `trainer.total_epochs` (`train`: 2). What is *unproven* lost its study, or has none: see [CONTRIBUTING.md](../CONTRIBUTING.md#rules).\n\n" +
		conf.Markdown(&defaults)
	modeltest.Golden(t, filepath.Join("..", "doc", "settings.md"), []byte(settings))
	metrics := "# Metrics\n\nAll numbers that a step may write to `metrics.jsonl` and to TensorBoard. A step writes only those that were measured in it: for example, `gad sft` has no `critic/` metrics.\n\n" + report.Markdown()
	modeltest.Golden(t, filepath.Join("..", "doc", "metrics.md"), []byte(metrics))
	path := filepath.Join("..", "doc", "evaluation.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), "<!-- figures -->\n")
	_, after, closed := strings.Cut(rest, "<!-- /figures -->\n")
	if !ok || !closed {
		t.Fatalf("%s: no place for the figures", path)
	}
	modeltest.Golden(t, path,
		[]byte(before+"<!-- figures -->\n"+report.FiguresMarkdown()+"<!-- /figures -->\n"+after))
	for stage, want := range map[config.Stage][3]float64{config.SFT: {5e-6, 1, 1},
		config.Warmup: {1e-6, 0.2, 1}, config.Train: {1e-6, 0.2, 2}, config.DPO: {1e-6, 1, 1}} {
		c := config.StageDefaults(stage)
		if got := [3]float64{c.Actor.Optim.LR, c.Actor.GradClip,
			float64(c.Trainer.TotalEpochs)}; got != want {
			t.Errorf("%s: learning rate, clip and epochs %v, want %v as doc/settings.md says",
				stage, got, want)
		}
	}
}
