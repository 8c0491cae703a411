package trainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/plan"
)

// peaks plays a step of a stage with each of the settings on a fresh device, and compares
// its memory at the peak with the plan's: within 5 %.
func peaks(t *testing.T, open func(precision string) compute.Backend, stage config.Stage,
	precision string, sets [][]string) {
	t.Helper()
	slow(t)
	be := ready(t)
	shape := modeltest.Shape // large enough that weights count, and packs that are full
	shape.Vocab, shape.Hidden, shape.FFN, shape.Heads, shape.KVHeads, shape.HeadDim, shape.Layers =
		fixed.tok.Size(), 192, 768, 4, 2, 48, 2
	root, student := t.TempDir(), filepath.Join(fixed.root, "peak")
	other := student + "-2" // of teachers by row
	if _, err := os.Stat(other); err != nil {
		m, err := model.New(be, shape, model.Options{Kind: model.LM, Repeat: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(export.WriteFolder(vfs.OS, student, m, fixed.tok, "float32"),
			os.Symlink(student, other), m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for i, set := range sets {
		be := open(precision)
		_, before := be.Memory()
		cfg := settings(stage, filepath.Join(root, fmt.Sprint(i)),
			append([]string{"model.path=" + student, "teacher.path=" + student,
				"teacher.models=a=" + student + ",b=" + other,
				"trainer.warmup_objective=policy", "trainer.total_steps=1",
				"trainer.precision=" + precision, "data.train_batch_size=2", "actor.max_token_len=90",
				"critic.max_token_len=90", "data.max_prompt_length=40",
				"data.overlong_prompts=filter"}, set...)...)
		tr := opened(t, be, cfg, stage)
		for ; tr.step < tr.total; tr.step++ { // saving takes none of the device's memory
			if _, err := nextOf(tr); err != nil {
				t.Fatal(err)
			}
		}
		tr.Close()
		_, peak := be.Memory()
		planned, took := plan.Need(be, shape, cfg, stage, 1)-be.Overhead(), peak-before
		t.Logf("%s %q: planned %.1f MB, took %.1f MB: %+.1f %%", precision, set,
			float64(planned)/1e6, float64(took)/1e6, 100*(float64(planned)/float64(took)-1))
		if planned < took-took/20 || planned > took+took/20 {
			t.Errorf("%s %q: planned %d bytes, took %d", precision, set, planned, took)
		}
		if err := be.Close(); err != nil {
			t.Error(err)
		}
	}
}

// smaller are ways to take less memory.
var smaller = [][]string{
	{},
	{"actor.recompute=true", "critic.recompute=true"},
	{"actor.optim.moments=8bit", "critic.optim.moments=8bit"},
	{"critic.optim.moments=8bit", "rollout.max_num_seqs=2"},
	{"actor.lora.rank=32", "critic.lora.rank=32", "rollout.merged=true"},
	{"actor.lora.rank=32", "critic.lora.rank=32", "rollout.merged=false",
		"actor.optim.moments=8bit"},
	{"critic.lora.rank=32"},
	{"actor.kl_loss_type=full"},
}

// What a whole game takes at its peak is what its plan says, for each way to take less.
func TestPeakIsThePlan(t *testing.T) {
	t.Parallel()
	for arm, precision := range []string{cpu.F32, cpu.BF16} {
		// inTurn is a third of some settings in each precision, but for GAD_LONG.
		inTurn := func(all [][]string) (some [][]string) {
			for way, more := range all {
				if hostile.InTurn(arm, way, 3) {
					some = append(some, more)
				}
			}
			return some
		}
		open := func(precision string) compute.Backend {
			be, err := cpu.New(cpu.Options{Workers: 2, Precision: precision})
			if err != nil {
				t.Fatal(err)
			}
			return be
		}
		// A processor packs adapters of a low rank in panels that are wider. (With AVX2 a plan of
		// rank 16 and less has 1 MB of scratch memory too much, 5.3 % of this model's.)
		peaks(t, open, config.Warmup, precision, inTurn(append([][]string{{"actor.lora.rank=24",
			"critic.lora.rank=24", "rollout.merged=false"}},
			smaller[:hostile.Share(len(smaller))]...)))
		peaks(t, open, config.Warmup, precision, inTurn([][]string{{"algorithm.teacher_weight=1"}}))
		peaks(t, open, config.OPD, precision, inTurn([][]string{{}, {"actor.lora.rank=32",
			"teacher.weights=q8_0"}, {"teacher.loss=exact"}, {"teacher.loss=topk"}}))
		hints := hinted(t, func(_ int, content string) any { // longer than a pack of the student
			return strings.Repeat("Add 4+7+3. ", 8)
		})
		own := []string{"data.train_files=" + hints, "teacher.prompt_key=hint",
			"teacher.max_prompt_length=112"}
		peaks(t, open, config.OPD, precision, [][]string{
			append(own, "teacher.loss="+[]string{"policy", "exact"}[arm])})
		two := tagged(t, func(i int) any { return string("ab"[i%2]) })
		peaks(t, open, config.OPD, precision, [][]string{{"data.train_files=" + two,
			"teacher.path=", "teacher.by=hint", "teacher.loss=" + []string{"exact", "policy"}[arm]}})
		different := `n=0; while IFS= read -r x; do n=$((n+1)); printf '{"notes":"%d ` +
			strings.Repeat("Add 4+7+3. ", 6) + `"}\n' $n; done`
		noted := []string{"coach.command=" + different, "rollout.n=3", "coach.max_tokens=68",
			"data.max_prompt_length=26",
			"coach.template={prompt}{notes}",
			"teacher.loss=" + []string{"policy", "exact"}[arm]}
		peaks(t, open, config.OPD, precision, [][]string{noted, append(noted,
			"trainer.total_steps=2", "teacher.renew=1", "coach.plain=0.5")})
		// answers of an untrained student are longer as text than they were as tokens
		peaks(t, open, config.OPD, precision, [][]string{{"coach.command=@student", "rollout.n=2",
			"coach.max_tokens=30", "data.max_prompt_length=26", "data.max_response_length=2",
			"coach.question={prompt}{answer} Add 4+7+3. Add 4+7+3. Ad",
			"teacher.loss=" + []string{"exact", "policy"}[arm]}})
	}
}
