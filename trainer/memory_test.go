package trainer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/hostile"
	"gad/internal/safetensors"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// The three stages with moments in 8 bits, each from the one before: stopped or killed and
// resumed, each ends with the bits of an undisturbed run, whose checkpoints hold the codes;
// they learn about as fast as with float32 moments; and the moments do not change in a run.
func TestMoments8Run(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	shape := modeltest.Shape
	shape.Vocab, shape.Hidden, shape.FFN, shape.HeadDim = fixed.tok.Size(), 64, 128, 16
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	student := filepath.Join(root, "student")
	if err := errors.Join(export.WriteFolder(vfs.OS, student, m, fixed.tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	eight := []string{"actor.optim.moments=8bit", "critic.optim.moments=8bit"}
	var last string
	losses := map[bool]float64{}
	for arm, stage := range []config.Stage{config.SFT, config.Warmup, config.Train} {
		more := half("trainer.total_steps=6", "trainer.save_freq=2")
		switch stage {
		case config.SFT:
			more = append(more, "model.path="+student)
		case config.Warmup:
			more = append(more, "trainer.critic_warmup=2", "trainer.warmup_objective=policy",
				"model.path="+filepath.Join(last, "global_step_6", "actor"))
		case config.Train:
			more = append(more, "trainer.resume_from="+last)
		}
		whole := filepath.Join(root, string(stage))
		set := append(more, eight...)
		rows := finished(t, be, settings(stage, whole, set...), stage)
		want := record(t, whole, 6)
		for way, kill := range []bool{false, true} {
			if !hostile.InTurn(arm, way, 2) {
				continue
			}
			run := filepath.Join(t.TempDir(), "run")
			cfg := settings(stage, run, set...)
			if err := part(t, cfg, stage, 3, kill); err != nil && !errors.Is(err, ErrInterrupted) {
				t.Fatal(err)
			}
			finished(t, be, cfg, stage)
			same(t, record(t, run, 6), want)
		}
		if stage == config.SFT {
			losses[true] = rows[5].Values["actor/sft_loss"]
			plain := finished(t, be, settings(stage, filepath.Join(root, "plain"), more...), stage)
			losses[false] = plain[5].Values["actor/sft_loss"]
		}
		f, err := safetensors.Open(filepath.Join(whole, "global_step_6", saved.ActorOptimizer))
		if err != nil {
			t.Fatal(err)
		}
		if x, ok := f.Tensor("m.model.layers.0.mlp.up_proj.weight"); !ok ||
			x.DType != safetensors.U8 {
			t.Errorf("%s: the checkpoint's moments are not in 8 bits", stage)
		}
		f.Close()
		last = whole
	}
	if d := losses[true] - losses[false]; d == 0 || d > 0.05 || d < -0.05 {
		t.Errorf("after 6 steps of SFT the loss is %g with moments in 8 bits, %g with float32",
			losses[true], losses[false])
	}
	_, err = Open(settings(config.Train, last, half("trainer.total_steps=9",
		"trainer.resume_from="+filepath.Join(root, "warmup"))...), config.Train,
		Options{FS: vfs.OS, Backend: be})
	if err == nil || !strings.Contains(err.Error(), "actor.optim.moments was 8bit when the run") {
		t.Errorf("other moments in the same run: %v", err)
	}
	_, err = Open(settings(config.Train, filepath.Join(root, "other"),
		"trainer.resume_from="+filepath.Join(root, "warmup")), config.Train,
		Options{FS: vfs.OS, Backend: be})
	if err == nil || !strings.Contains(err.Error(),
		"set optim.moments to 8bit, as when it was written") {
		t.Errorf("other moments than the warm-up's: %v", err)
	}
}
