package trainer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
)

// TestQuantRun: warm-up and game on a base in blocks. The three roles stand on it, a run that
// was interrupted ends with the bits of one that was not, the game's numbers are not those of a
// native base, and another base is refused within a run.
func TestQuantRun(t *testing.T) {
	slow(t)
	be := ready(t)
	root := t.TempDir()
	lora := []string{"actor.lora.rank=4", "critic.lora.rank=4", "trainer.total_steps=3",
		"trainer.save_freq=1", "actor.use_kl_loss=true"}
	warm := filepath.Join(root, "warm")
	quant := append(lora[:len(lora):len(lora)], "actor.lora.base=q8_0")
	finished(t, be, settings(config.Warmup, warm, append(quant, "trainer.critic_warmup=2")...),
		config.Warmup)
	native := filepath.Join(root, "native")
	finished(t, be, settings(config.Warmup, native,
		append(lora[:len(lora):len(lora)], "trainer.critic_warmup=2")...), config.Warmup)
	adapters := filepath.Join("global_step_3", "actor", "adapter_model.safetensors")
	if a, b := filesOf(t, warm)[adapters], filesOf(t, native)[adapters]; len(a) == 0 || a == b {
		t.Error("a base in q8_0 gives the adapters of a native one")
	}

	more := append(quant[:len(quant):len(quant)], "trainer.resume_from="+warm)
	whole := filepath.Join(root, "whole")
	finished(t, be, settings(config.Train, whole, more...), config.Train)
	run := filepath.Join(root, "run")
	cfg := settings(config.Train, run, more...)
	if err := part(t, cfg, config.Train, 2, false); err != nil && !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	finished(t, be, cfg, config.Train)
	same(t, record(t, run, 3), record(t, whole, 3))

	tr := opened(t, be, settings(config.Train, filepath.Join(root, "more"), more...), config.Train)
	base := tr.actor.Model().Base()
	if base == nil || gameOf(tr).critic.Model().Base() != base ||
		tr.reference.Model().Base() != base {
		t.Error("the three roles do not stand on one base")
	}
	wide, err := model.Load(be, fixed.student, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer wide.Close()
	if bits(be, base) == bits(be, wide) {
		t.Error("the base is not in blocks")
	}
	other := settings(config.Train, run,
		append(more, "actor.lora.base=q4_0", "trainer.total_steps=4")...)
	if _, err := Open(other, config.Train, Options{FS: vfs.OS, Backend: be}); err == nil ||
		!strings.Contains(err.Error(), "actor.lora.base was q8_0 when the run in") {
		t.Errorf("another base within a run: %v", err)
	}
}
