package trainer

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cost"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// A run with a horizon is a run whose answers are cut there, bit for bit, whichever the loss, the
// means over answers and the number of updates; a horizon of the whole length is none.
func TestHorizonIsACut(t *testing.T) {
	t.Parallel()
	be := ready(t)
	after := func(more ...string) string {
		return studentAfterTwo(t, config.OPD, Options{FS: vfs.OS, Backend: be},
			append(more, "model.path="+fixed.student, "teacher.path="+fixed.blank)...)
	}
	for _, more := range []string{"teacher.loss=policy actor.ppo_mini_batch_size=2",
		"teacher.loss=policy actor.loss_agg_mode=seq-mean-token-sum-norm",
		"teacher.loss=topk teacher.top_k=4"} {
		with := func(set ...string) string { return after(append(set, strings.Fields(more)...)...) }
		whole, cut := with(), with("data.max_response_length=4")
		if with("teacher.horizon=4") != cut || cut == whole {
			t.Errorf("%s: a horizon of 4 tokens and answers of at most 4: other weights", more)
		}
		if with("teacher.horizon=14") != whole {
			t.Errorf("%s: a horizon of the whole length: other weights", more)
		}
	}
}

// A horizon that grows reaches the whole length in the last step. Answers end at it; that is no
// fault: no figure of cut answers, no sign of one, and validation has whole answers. A run that is
// stopped goes on with its horizon.
func TestHorizonGrows(t *testing.T) {
	t.Parallel()
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	c := settings(config.OPD, run, "model.path="+fixed.blank, "teacher.horizon=2",
		"teacher.horizon_schedule=linear", "trainer.total_steps=5", "trainer.save_freq=2",
		"data.val_files="+fixed.val, "data.train_batch_size=8")
	rows := finished(t, be, c, config.OPD)
	for i, want := range []float64{2, 5, 8, 11, 14} {
		v := rows[i].Values
		if v["opd/horizon"] != want || v["rollout/len_max"] > want {
			t.Errorf("step %d: a horizon of %g, want %g; the longest answer has %g", i+1,
				v["opd/horizon"], want, v["rollout/len_max"])
		}
		_, cut := v["rollout/truncated_frac"]
		if _, ratio := v["rollout/len_ratio"]; cut != (want == 14) || ratio != cut {
			t.Errorf("step %d: figures of cut answers %v, of their length %v", i+1, cut, ratio)
		}
		if i == 0 && !(v["opd/horizon_frac"] > 0.9) { // of a student with random weights
			t.Errorf("%g of the answers end at the horizon", v["opd/horizon_frac"])
		}
	}
	var lengths []float64 // of a student that does not move, validated after a step
	for _, horizon := range []string{"2", "0"} {
		still := settings(config.OPD, filepath.Join(t.TempDir(), "still"), "model.path="+fixed.blank,
			"trainer.total_steps=1", "data.val_files="+fixed.val, "actor.optim.lr=0",
			"actor.optim.weight_decay=0", "teacher.horizon="+horizon)
		lengths = append(lengths,
			finished(t, be, still, config.OPD)[0].Values["val/len_ratio"])
	}
	if lengths[0] != lengths[1] || lengths[0] < 1 {
		t.Errorf("validation after a step with a horizon and without: length ratios %v", lengths)
	}
	again := c
	again.Trainer.Output = filepath.Join(t.TempDir(), "again")
	tr := opened(t, be, again, config.OPD)
	for range 3 { // the third step is not kept
		if _, err := nextOf(tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	finished(t, be, again, config.OPD)
	same(t, record(t, again.Trainer.Output, 5), record(t, run, 5))
	constant := settings(config.OPD, filepath.Join(t.TempDir(), "constant"),
		"model.path="+fixed.blank, "teacher.horizon=2", "trainer.total_steps=24")
	for _, r := range finished(t, be, constant, config.OPD) {
		wantNone(t, r, "rollout/truncated_frac", "rollout/len_ratio")
	}
	found, _ := report.Diagnose(metricsOf(t, constant))
	if i := slices.IndexFunc(found, func(f report.Finding) bool {
		return f.Name == "answers end at the limit"
	}); i >= 0 {
		t.Errorf("a horizon counts as cut answers: %v", found[i])
	}
}

// A plan counts the horizon: less memory and time than whole answers, and of one that grows the
// mean time and the memory of whole answers. Validation keeps its time.
func TestHorizonPlan(t *testing.T) {
	ready(t)
	card, _ := cost.FindCard("h200")
	of := func(set ...string) *plan.Plan {
		c := settings(config.OPD, filepath.Join(t.TempDir(), "run"), append(set,
			"data.max_response_length=60", "trainer.total_steps=50", "actor.max_token_len=2048",
			"trainer.device=cuda", "data.train_batch_size=8")...)
		c.Data.TrainFiles = nil
		p, err := plan.New(cost.New(card), nil, 0, vfs.OS, c, config.OPD)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole, short, grows := of(), of("teacher.horizon=6"),
		of("teacher.horizon=6", "teacher.horizon_schedule=linear")
	if whole.AnswerMean != 60 || short.AnswerMean != 6 ||
		!(grows.AnswerMean > 32 && grows.AnswerMean < 34) {
		t.Errorf("mean answers %g, %g, %g: want 60, 6, 33", whole.AnswerMean, short.AnswerMean,
			grows.AnswerMean)
	}
	all, few, most := plan.Total(whole.Memory), plan.Total(short.Memory), plan.Total(grows.Memory)
	if !(few < all) || most != all {
		t.Errorf("%d bytes, with a horizon %d, with one that grows %d", all, few, most)
	}
	a, b, c := whole.Seconds(true), short.Seconds(true), grows.Seconds(true)
	if !(b < 0.7*a && c < 0.9*a) {
		t.Errorf("%g s, with a horizon %g, with one that grows %g", a, b, c)
	}
}

func TestHorizonSettings(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	wantError(t, openError(t, settings(config.OPD, run, "teacher.horizon=15"), config.OPD), nil,
		"settings: teacher.horizon 15 is above data.max_response_length 14: lower it")
	c := settings(config.OPD, run, "teacher.horizon_schedule=linear")
	if why := c.Ignores(config.OPD, "teacher.horizon_schedule"); why != "teacher.horizon is 0" {
		t.Errorf("a schedule without a horizon is idle because %q", why)
	}
	for steps, want := range map[int][]int{1: {4}, 2: {4, 14}, 3: {4, 9, 14}} {
		c.Teacher.Horizon = 4
		for step, n := range want {
			if got := c.Horizon(config.OPD, step, steps); got != n {
				t.Errorf("step %d of %d: %d tokens, want %d", step, steps, got, n)
			}
		}
	}
	if got := c.Horizon(config.Train, 0, 3); got != 14 {
		t.Errorf("the game has a horizon of %d", got)
	}
}
