package trainer

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/trainer/config"
)

// talks writes conversations of three turns of the teacher each, the second of which is not
// learned in every other row.
func talks(t *testing.T, rows int) string {
	t.Helper()
	var b strings.Builder
	for i := range rows {
		train := ""
		if i%2 == 1 {
			train = `,"train":false`
		}
		fmt.Fprintf(&b, `{"content":"%d","teacher_response":[{"role":"assistant","content":"7."},{"role":"user","content":"%d"},`+
			`{"role":"assistant","content":"%d."%s},{"role":"user","content":"8"},{"role":"assistant","content":"8."}]}`+"\n", i%6, i%8, 1+i%8, train)
	}
	path := filepath.Join(t.TempDir(), "talks.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A step of SFT on whole conversations is the step on their turns, each with those before it as its
// prompt: the same tokens are learned with the same contexts. Only the sums are rounded elsewhere.
func TestTurnsAllIsEach(t *testing.T) {
	be := ready(t)
	data := talks(t, 4)
	step := func(turns, batch string) report.Row {
		out := filepath.Join(t.TempDir(), turns)
		rows := finished(t, be, settings(config.SFT, out, "trainer.total_steps=1",
			"data.train_files="+data, "data.turns="+turns, "data.train_batch_size="+batch,
			"data.max_prompt_length=74", "data.max_response_length=54", "model.path="+fixed.student,
			"data.val_files="+data, "trainer.val_rows=2"), config.SFT)
		return rows[len(rows)-1]
	}
	// four rows, in two of which two turns are learned
	all, each := step("all", "4"), step("each", "10")
	for _, name := range []string{"actor/sft_loss", "actor/grad_norm", "actor/entropy"} {
		a, ok := all.Values[name]
		e := each.Values[name]
		if d := math.Abs(a - e); !ok || d > 1e-5*math.Abs(e) {
			t.Errorf("%s: %.9g, by turns %.9g", name, a, e)
		}
	}
	last := step("last", "4")
	if a, l := all.Values["actor/sft_loss"], last.Values["actor/sft_loss"]; math.Abs(a-l) < 1e-3 {
		t.Errorf("all turns have the loss of the last alone: %g and %g", a, l)
	}
}

// Each turn is a row for every stage; whole conversations are for SFT alone.
func TestTurnsInEveryStage(t *testing.T) {
	be := ready(t)
	data := talks(t, 4)
	for _, stage := range []config.Stage{config.Warmup, config.DPO} {
		c := settings(stage, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=1",
			"data.train_files="+data, "data.turns=each", "data.max_prompt_length=110")
		if tr := opened(t, be, c, stage); tr.train.set.Len() != 10 {
			t.Errorf("%s: %d rows, want 10 turns", stage, tr.train.set.Len())
		}
		c.Trainer.Output = filepath.Join(t.TempDir(), "whole")
		if rows := finished(t, be, c, stage); len(rows) != 1 {
			t.Errorf("%s: %d steps", stage, len(rows))
		}
		c.Data.Turns = "all"
		if err := c.Validate(stage); err == nil ||
			!strings.Contains(err.Error(),
				"data.turns is all: only gad sft learns a conversation as one sequence") {
			t.Errorf("%s: %v", stage, err)
		}
	}
}
