package trainer

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute/cuda"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// A plan counts the rows that are chosen and can be ranked, and a ranking's passes.
func TestPlanOfChosenRows(t *testing.T) {
	be := ready(t)
	planned := func(set ...string) *plan.Plan {
		t.Helper()
		p, err := plan.New(be, be, 0, vfs.OS, settings(config.SFT, filepath.Join(t.TempDir(), "run"),
			set...), config.SFT)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := planned()
	where := planned(leveled(t, "data.where=level > 7")...)
	if all.Rows != 40 || where.Rows != 8 || where.Steps != 2 ||
		!strings.Contains(where.String(), "\n  where level > 7: 8 of 40 rows\n") {
		t.Errorf("%d rows, of them %d in %d steps:\n%s", all.Rows, where.Rows, where.Steps, where)
	}
	ranks := planned(byRank(ranked(t, nil), "actor.max_token_len=128")...)
	if ranks.Rows != 32 || ranks.LeftOut != 8 || len(ranks.StepTime) != 1 ||
		ranks.StepTime[0].Name != "update_actor" ||
		!strings.Contains(ranks.String(),
			"about 8 more are over the length limits or have equal scores and left out") {
		t.Errorf("%d rows, %d left out:\n%s", ranks.Rows, ranks.LeftOut, ranks)
	}
}

// Rows that the run leaves out are no part of the plan; the mean lengths and steps are those of
// the others. A run without a row is refused, as the run itself refuses it.
func TestPlanLeavesRowsOut(t *testing.T) {
	be := ready(t)
	var rows strings.Builder
	for i := range 40 {
		answer := "Yes."
		if i%4 == 0 {
			answer = strings.Repeat("It is 3. ", 20)
		}
		fmt.Fprintf(&rows, `{"content":"Add %d+1","teacher_response":%q}`+"\n", i, answer)
	}
	file := hostile.Put(t, t.TempDir(), "rows.jsonl", []byte(rows.String()))
	for _, c := range []struct{ set, steps, says, refused string }{
		{"data.truncated_teachers=filter", "3 steps",
			"over 30 rows; about 10 more are over the length limits and left out)\n", ""},
		{"data.truncated_teachers=keep", "4 steps", "over 40 rows)\n", ""},
		{"data.max_response_length=2", "", "", "data: " + file +
			": none of 40 rows is within data.max_prompt_length 64 and " +
			"data.max_response_length 2: raise them"},
	} {
		p, err := plan.New(be, be, 0, vfs.OS, settings(config.SFT,
			filepath.Join(t.TempDir(), "run"), "data.train_files="+file, "data.train_batch_size=10",
			"trainer.total_epochs=1", "data.truncated_teachers=filter", c.set), config.SFT)
		if c.refused != "" {
			if err == nil || err.Error() != c.refused {
				t.Errorf("%s: %v, want %s", c.set, err, c.refused)
			}
		} else if err != nil || !strings.Contains(p.String(), c.steps) ||
			!strings.Contains(p.String(), c.says) {
			t.Errorf("%s: %v\n%s", c.set, err, p)
		}
	}
}

// A game that starts from a warm-up keeps its moments as they were there: neither rounding
// nor LoRA is offered.
func TestFitOfAResumedGame(t *testing.T) {
	ready(t)
	fits := func(set ...string) string {
		c := settings(config.Train, filepath.Join(t.TempDir(), "run"),
			append(set, "trainer.device=cuda")...)
		p, err := plan.NewFitting(nil, cuda.Options{}, 1e6, nil, c, config.Train)
		if err != nil {
			t.Fatal(err)
		}
		if p.Fit != nil || p.Fits == "" {
			t.Fatalf("a megabyte: fits with %+v, says %q", p.Fit, p.Fits)
		}
		return p.Fits
	}
	if said := fits("trainer.resume_from=" + fixed.warmup); strings.Contains(said, "8bit") ||
		strings.Contains(said, "lora") || !strings.Contains(said, "offload=true") {
		t.Errorf("resumed: %s", said)
	}
	if _, err := plan.NewFitting(nil, cuda.Options{}, 0, nil,
		settings(config.Train, "run", "trainer.resume_from="+fixed.warmup),
		config.Train); err == nil ||
		err.Error() != "configuration: plan: --fit: the memory of the device is not known: give --memory GB" {
		t.Errorf("an unknown memory: %v", err)
	}
}
