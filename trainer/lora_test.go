package trainer

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
)

// lora are settings that give both networks adapters.
var lora = []string{"actor.lora.rank=4", "critic.lora.rank=3", "critic.lora.rslora=true",
	"critic.lora.targets=q_proj,v_proj,down_proj", "actor.optim.lr=1e-2", "critic.optim.lr=1e-2"}

// SFT, a warm-up and a game with LoRA, each from the one before: all roles stand on the
// same weights, which stay as they are on the disk and in memory; checkpoints hold adapters
// alone; stopped or killed and resumed, each ends with the bits of an undisturbed run; and
// the exported student is the trained one.
func TestLoRARun(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	before, err := os.ReadFile(filepath.Join(fixed.student, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	var last string
	for _, stage := range []config.Stage{config.SFT, config.Warmup, config.Train} {
		more := append([]string{"trainer.total_steps=5", "trainer.save_freq=2",
			"actor.use_kl_loss=true", "actor.kl_loss_coef=0.1"}, lora...)
		switch stage {
		case config.Warmup:
			// The student's adapters come from the first stage, and the discriminator begins at
			// the base.
			more = append(more, "trainer.critic_warmup=2", "trainer.warmup_objective=policy",
				"model.adapter_path="+filepath.Join(last, "global_step_5", "actor"),
				"critic.lora.rank=4", "critic.lora.rslora=false", "critic.lora.targets=all-linear")
		case config.Train:
			more = append(more, "trainer.resume_from="+last, "critic.lora.rank=4",
				"critic.lora.rslora=false", "critic.lora.targets=all-linear")
		}
		whole := filepath.Join(root, string(stage))
		finished(t, be, settings(stage, whole, more...), stage)
		want := record(t, whole, 5)
		cfg := settings(stage, filepath.Join(t.TempDir(), "run"), more...)
		inPieces(t, cfg, stage, 0, 1)
		same(t, record(t, cfg.Trainer.Output, 5), want)
		files := filesOf(t, filepath.Join(whole, "global_step_5"))
		for name := range files {
			if base := filepath.Base(name); base == "config.json" || base == "model.safetensors" {
				t.Errorf("%s: the checkpoint has %s: it should hold adapters alone", stage, name)
			}
		}
		if stage == config.Train &&
			!strings.Contains(strings.Join(keys(filesOf(t, filepath.Join(whole, "reference"))), " "),
				"adapter_model.safetensors") {
			t.Error("the reference is not written as adapters")
		}
		last = whole
	}
	after, err := os.ReadFile(filepath.Join(fixed.student, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the base's file has changed")
	}

	tr := opened(t, be, settings(config.Train, filepath.Join(root, "more"),
		append(lora, "trainer.resume_from="+last, "trainer.total_steps=2", "critic.lora.rank=4",
			"critic.lora.rslora=false", "critic.lora.targets=all-linear")...), config.Train)
	base := tr.actor.Model().Base()
	if base == nil || gameOf(tr).critic.Model().Base() != base ||
		tr.reference.Model().Base() != base {
		t.Error("the three roles do not stand on one base")
	}
	digest := bits(be, base)
	if _, err := nextOf(tr); err != nil {
		t.Fatal(err)
	}
	if got := bits(be, base); got != digest {
		t.Error("a step of the game changed the base's weights")
	}
	seqs := []model.Seq{model.Answer([]int32{4, 5, 6, 7, 8}, 2)}
	tr.Close()

	// Sampled from merged weights, log-probabilities are the trainer's to rounding, and the
	// ratios are taken to the trainer's own.
	for _, r := range finished(t, be,
		settings(config.Train, filepath.Join(root, "merging"),
			append(lora, "trainer.resume_from="+last, "trainer.total_steps=5",
				"rollout.merged=true",
				"critic.lora.rank=4", "critic.lora.rslora=false",
				"critic.lora.targets=all-linear")...),
		config.Train) {
		if d, ok := r.Values["rollout/logp_diff_max"]; !ok || !(d > 0 && d < 1e-4) ||
			r.Values["actor/first_ratio_max"] != 1 {
			t.Errorf("merged, step %d: log-probabilities differ by %g, %t, first ratio %g", r.Step,
				d, ok, r.Values["actor/first_ratio_max"])
		}
	}

	dir := filepath.Join(last, "global_step_5")
	adapters, merged := filepath.Join(root, "adapters"), filepath.Join(root, "merged")
	if _, err := export.Part(vfs.OS, dir, "actor", adapters, "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := export.MergedPart(vfs.OS, dir, "actor", merged, "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := export.MergedPart(vfs.OS, filepath.Join(fixed.warmup, "global_step_3"), "actor",
		filepath.Join(root, "no"), "base"); err == nil ||
		!strings.Contains(err.Error(), "has no adapters: leave out --merge") {
		t.Errorf("merging a student without adapters: %v", err)
	}
	var logps [][]float32
	for _, folder := range []string{adapters, merged, fixed.student} {
		m, err := model.Load(be, folder, model.Options{Kind: model.LM})
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := m.LogProbs(seqs, 1)
		if err != nil {
			t.Fatal(err)
		}
		logps = append(logps, l[0])
		m.Close()
	}
	for i := range logps[0] {
		if d := logps[0][i] - logps[1][i]; d > 1e-4 || d < -1e-4 {
			t.Errorf("token %d: %g by the adapters, %g merged", i, logps[0][i], logps[1][i])
		}
	}
	if d := logps[0][0] - logps[2][0]; d < 1e-3 && d > -1e-3 {
		t.Error("training changed nothing")
	}
}

// Adapters and settings that do not belong together are refused, each with the way out.
func TestLoRARefused(t *testing.T) {
	be := ready(t)
	root := t.TempDir()
	run := filepath.Join(root, "sft")
	finished(t, be, settings(config.SFT, run, append(lora, "trainer.total_steps=1")...), config.SFT)
	adapters := filepath.Join(run, "global_step_1", "actor")
	other := filepath.Join(root, "other")
	copyTree(t, fixed.student, other)
	raw, err := os.ReadFile(filepath.Join(other, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-5] ^= 1
	if err := os.WriteFile(filepath.Join(other, "model.safetensors"), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ settings, want string }{
		{"actor.lora.rank=4 actor.lora.targets=q_proj,head", `actor.lora.targets: "head": expected all-linear, or some of q_proj`},
		{"model.path=" + adapters, "is a LoRA adapter, and all weights are to be trained: train adapters with lora.rank=4 lora.alpha=8 (of actor or critic, whichever is loaded from it), or merge it into its base first"},
		{"actor.lora.rank=8 model.adapter_path=" + adapters, "the adapter has lora.rank=4 lora.alpha=8, the settings are lora.rank=8 lora.alpha=16: make them the same"},
		{"actor.lora.rank=4 model.adapter_path=" + fixed.student,
			"is no folder of LoRA adapters: it has no adapter_config.json"},
		{"actor.lora.rank=4 model.path=" + other + " model.adapter_path=" + adapters,
			"was trained on a base whose weights have SHA-256"},
	} {
		_, err := Open(settings(config.SFT, filepath.Join(root, "run"),
			strings.Fields(c.settings)...), config.SFT, Options{FS: vfs.OS, Backend: be})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.settings, err, c.want)
		}
	}
	// A discriminator of another model is not taken for adapters on the student's.
	_, err = Open(settings(config.Warmup, filepath.Join(root, "run"), "actor.lora.rank=4",
		"critic.lora.rank=4", "model.reward_path="+other), config.Warmup,
		Options{FS: vfs.OS, Backend: be})
	if err == nil || !strings.Contains(err.Error(),
		other+": new adapters would stand on "+fixed.student) {
		t.Errorf("a discriminator of another base: %v", err)
	}
	// A run's own settings stay.
	_, err = Open(settings(config.SFT, run,
		append(lora, "trainer.total_steps=3", "actor.lora.alpha=3")...), config.SFT,
		Options{FS: vfs.OS, Backend: be})
	if err == nil || !strings.Contains(err.Error(),
		"actor.lora was lora.rank=4 lora.alpha=8 when the run in") {
		t.Errorf("another alpha within a run: %v", err)
	}
}

// bits are a model's weights, to the last one.
func bits(be compute.Backend, m *model.Model) string {
	var b strings.Builder
	for _, p := range m.Params() {
		x := make([]float32, p.Len())
		be.Download(x, p.W)
		for _, v := range x {
			fmt.Fprintf(&b, "%08x", math.Float32bits(v))
		}
	}
	return b.String()
}

func keys(m map[string]string) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}
