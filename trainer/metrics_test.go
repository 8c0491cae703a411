package trainer

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/trainer/config"
)

// Metrics that a step of each stage must have (doc/algorithms.md, "Metrics").
var (
	gameNames = strings.Fields(`critic/d_loss critic/d_acc critic/d_acc_fresh critic/student_value_mean critic/teacher_value_mean critic/score_gap
		critic/grad_norm critic/lr adv/mean adv/std adv/max adv/zero_var_groups_frac rollout/len_mean rollout/len_max rollout/truncated_frac
		rollout/repeat_frac rollout/tokens_per_s teacher/len_mean teacher/truncated_frac timing_s/rollout
		timing_s/update_critic timing_s/step perf/tokens_per_s perf/tflops perf/mfu perf/mem_peak_bytes
		reward/mean train/epoch train/prompts critic/pairs`)
	policyNames = strings.Fields(`actor/pg_loss actor/pg_clipfrac actor/ppo_kl actor/kl_loss actor/kl_share actor/entropy actor/grad_norm
		actor/lr timing_s/update_actor timing_s/ref_logp actor/first_ratio_min actor/first_ratio_max`)
	valNames = strings.Fields("val/rouge_l val/teacher_nll val/len_ratio timing_s/val")
)

func wantNames(t *testing.T, r report.Row, names []string) {
	t.Helper()
	for _, name := range names {
		if _, ok := r.Values[name]; !ok {
			t.Errorf("step %d: %s is missing", r.Step, name)
		}
	}
}

func wantNone(t *testing.T, r report.Row, prefixes ...string) {
	t.Helper()
	for name := range r.Values {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				t.Errorf("step %d: has %s", r.Step, name)
			}
		}
	}
}

// In warm-up the discriminator has its steps alone; afterwards the actor's
// metrics appear; in train all metrics appear from the first step. That every
// name is declared, report.Recorder itself demands.
func TestMetricsOfStages(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "warmup")
	rows := finished(t, be, settings(config.Warmup, run, "trainer.total_steps=5",
		"trainer.critic_warmup=3", "trainer.save_freq=2",
		"data.val_files="+fixed.val, "trainer.test_freq=2"), config.Warmup)
	if len(rows) != 5 {
		t.Fatalf("%d lines of metrics, want 5", len(rows))
	}
	for _, r := range rows {
		wantNames(t, r, gameNames)
		wantNone(t, r, "timing_s/score", "timing_s/ref_logp")
		if r.Step <= config.CheckFirst {
			wantNames(t, r, []string{"rollout/logp_diff_max", "timing_s/old_logp"})
			if r.Values["rollout/logp_diff_max"] != 0 {
				t.Errorf("step %d: sampler and trainer differ by %g", r.Step,
					r.Values["rollout/logp_diff_max"])
			}
		} else {
			wantNone(t, r, "rollout/logp_diff_max", "timing_s/old_logp")
		}
		if math.Abs(r.Values["critic/d_acc"]-r.Values["critic/d_acc_fresh"]) > 1e-6 {
			t.Errorf("step %d: one update without replay: d_acc %g, on the same samples fresh %g",
				r.Step, r.Values["critic/d_acc"], r.Values["critic/d_acc_fresh"])
		}
		if r.Step <= 3 {
			wantNone(t, r, "actor/", "timing_s/update_actor")
		} else {
			wantNames(t, r, []string{"actor/sft_loss", "actor/entropy", "actor/grad_norm",
				"actor/lr", "timing_s/update_actor"})
		}
		if tested := r.Step%2 == 0 || r.Step == 5; tested {
			wantNames(t, r, valNames)
		} else {
			wantNone(t, r, "val/")
		}
		if r.Step == 3 || r.Step == 5 { // the checkpoint of the step before
			wantNames(t, r, []string{"timing_s/save"})
		}
	}

	run2 := filepath.Join(t.TempDir(), "train")
	rows = finished(t, be, settings(config.Train, run2, "trainer.resume_from="+run,
		"trainer.total_steps=2"), config.Train)
	for _, r := range rows {
		wantNames(t, r, gameNames)
		wantNames(t, r, append(policyNames, "rollout/logp_diff_max"))
		for _, name := range []string{"actor/first_ratio_min", "actor/first_ratio_max"} {
			if r.Values[name] != 1 {
				t.Errorf("step %d: %s is %v, want exactly 1", r.Step, name, r.Values[name])
			}
		}
		if r.Values["rollout/logp_diff_max"] != 0 {
			t.Errorf("step %d: sampler and trainer differ by %g", r.Step,
				r.Values["rollout/logp_diff_max"])
		}
	}
	t.Logf("row 7: rollout against update: %d steps: log-probabilities of sampler and trainer bit-equal, the first update's ratio exactly 1", len(rows))
	if kl := rows[0].Values["actor/kl_loss"]; !(kl >= 0 && kl < 0.1) {
		t.Errorf(
			"KL to the reference in the first step: %g, want near 0: it is the student as it was",
			kl)
	}

	rows = finished(t, be, settings(config.SFT, filepath.Join(t.TempDir(), "sft"),
		"trainer.total_steps=2"), config.SFT)
	for _, r := range rows {
		wantNames(t, r, strings.Fields("actor/sft_loss actor/entropy actor/lr teacher/len_mean timing_s/step perf/tokens_per_s train/epoch"))
		wantNone(t, r, "critic/", "rollout/", "adv/", "actor/pg_loss")
	}
}

// The discriminator of step 1 of a warm-up is fresh: over many pairs it cannot
// tell the sides apart better than chance by much, and its loss is near ln 2.
func TestFreshDiscriminatorIsNearChance(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "w"),
		"trainer.total_steps=1", "trainer.critic_warmup=1", "data.train_batch_size=40"),
		config.Warmup)
	m, err := nextOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	if m["critic/pairs"] < 40 {
		t.Fatalf("%g pairs: the fixture's student hardly ever ends its answers", m["critic/pairs"])
	}
	if d := m["critic/d_loss"]; d < 0.65 || d > 0.74 {
		t.Errorf("d_loss of a fresh discriminator is %g, want near ln 2", d)
	}
	t.Logf("pairs %g, d_acc %g, truncated %g", m["critic/pairs"], m["critic/d_acc"],
		m["rollout/truncated_frac"])
}

// Learning rates follow their schedules over the stage's own optimizer steps:
// cosine from the base to min_lr_ratio, counted from where the stage began.
func TestLearningRatesSpanTheStage(t *testing.T) {
	be := ready(t)
	cosine := []string{"trainer.total_steps=4", "actor.optim.lr_scheduler=cosine",
		"critic.optim.lr_scheduler=cosine",
		"actor.optim.min_lr_ratio=0.1", "critic.optim.min_lr_ratio=0.1", "data.train_batch_size=4"}
	for _, c := range []struct {
		stage config.Stage
		extra []string
	}{
		{config.SFT, nil}, {config.Warmup, []string{"trainer.critic_warmup=0"}},
		{config.Train, []string{"trainer.resume_optimizer=both"}},
		{config.Train, []string{"trainer.resume_optimizer=none"}},
	} {
		t.Run(string(c.stage)+strings.Join(c.extra, " "), func(t *testing.T) {
			rows := finished(t, be, settings(c.stage, filepath.Join(t.TempDir(), "run"),
				append(cosine, c.extra...)...), c.stage)
			for _, who := range []struct {
				name string
				base float64
			}{{"actor/lr", 1e-3}, {"critic/lr", 2e-3}} {
				first, ok := rows[0].Values[who.name]
				if !ok && c.stage == config.SFT && who.name == "critic/lr" {
					continue
				}
				last := rows[3].Values[who.name]
				if first < 0.3*who.base || first > who.base || last < 0.0999*who.base ||
					last > 0.1001*who.base {
					t.Errorf("%s goes from %g to %g, want from about %g to %g", who.name, first,
						last, who.base, 0.1*who.base)
				}
			}
		})
	}
}
