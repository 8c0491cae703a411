package report

import (
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"

	"gad/internal/vfs"
)

// healthy is a run of n steps of the game as it should be, after ten of warm-up.
func healthy(n int) (rows []Row) {
	for i := range n {
		wave := math.Sin(float64(i))
		r := Row{Step: i + 1, Values: map[string]float64{"critic/d_acc_fresh": 0.75 + 0.1*wave,
			"critic/d_acc_distinct": 0.85 + 0.1*wave, "critic/d_loss_distinct": 0.4 + 0.1*wave,
			"critic/tie_frac": 0.2, "critic/updates": 8, "critic/group_std": 0.1,
			"critic/lr": 1e-4 * float64(min(i+1, 10)), "rollout/len_mean": 100 + 5*wave,
			"teacher/len_mean":       105,
			"rollout/truncated_frac": 0.1 + 0.05*wave, "rollout/repeat_frac": 0.05, "adv/std": 0.9,
			"adv/zero_var_groups_frac": 0.1, "critic/d_loss": 0.5}}
		if i < 10 {
			r.Values["critic/d_acc_fresh"], r.Values["critic/d_acc_distinct"], r.Values["critic/d_loss_distinct"] = 0.5, 0.5, 0.69 // the discriminator begins at chance
		} else {
			for name, x := range map[string]float64{"actor/pg_loss": wave,
				"actor/pg_clipfrac": 0.2 + 0.05*wave, "actor/ratio_max": 1.01,
				"actor/kl_loss":  0.02 * float64(i) / float64(n),
				"actor/kl_share": 0.3, "actor/entropy": 1 - 0.5*float64(i)/float64(n)} {
				r.Values[name] = x
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// A healthy run shows no sign; each sickness shows its own, and only that one.
func TestDiagnose(t *testing.T) {
	for _, n := range []int{0, 1, 19, 20, 60, 100} {
		found, enough := Diagnose(healthy(n))
		if len(found) > 0 || enough != (n >= 20) {
			t.Errorf("%d healthy steps: %v, enough %v", n, found, enough)
		}
	}
	set := func(name string, from int, x func(i int) float64) func([]Row) {
		return func(rows []Row) {
			for i := from; i < len(rows); i++ {
				rows[i].Values[name] = x(i)
			}
		}
	}
	without := func(name string, then func([]Row)) func([]Row) { // a run of an earlier version
		return func(rows []Row) {
			for _, r := range rows {
				delete(r.Values, name)
			}
			then(rows)
		}
	}
	alone := func(harms ...func([]Row)) func([]Row) { // a discriminator that has not started
		return func(rows []Row) {
			for i, r := range rows {
				for name := range r.Values {
					if strings.HasPrefix(name, "actor/") {
						delete(r.Values, name)
					}
				}
				r.Values["critic/d_loss_distinct"], r.Values["critic/d_acc_distinct"] =
					0.69+0.01*math.Sin(float64(i)), 0.5
			}
			for _, harm := range harms {
				harm(rows)
			}
		}
	}
	at := func(name string, i int, x float64) func([]Row) {
		return func(rows []Row) { rows[i].Values[name] = x }
	}
	all := func(harms ...func([]Row)) func([]Row) {
		return func(rows []Row) {
			for _, harm := range harms {
				harm(rows)
			}
		}
	}
	constant := func(x float64) func(int) float64 { return func(int) float64 { return x } }
	shown := map[string]bool{}
	for _, c := range []struct {
		sign string
		harm func([]Row)
	}{
		{"numerical breakdown", set("actor/skipped_updates", 99, constant(1))},
		{"numerical breakdown", set("critic/skipped_updates", 85, constant(2))},
		{"numerical breakdown", set("critic/d_loss", 99, constant(math.NaN()))},
		{"SFT loss rises", set("actor/sft_loss", 0,
			func(i int) float64 { return 0.5 + 0.1*float64(max(0, i-50)) })},
		{"no pairs", set("critic/pairs", 0, constant(0))},
		{"no pairs", set("critic/pairs", 95, constant(0))},
		{"few pairs", set("critic/pairs_frac", 80, constant(0.3))},
		{"discriminator has not started", alone()},
		{"discriminator has not started, discriminator takes few updates",
			alone(set("critic/updates", 0, constant(1)))},
		{"discriminator has not started, discriminator was disturbed by a large learning rate",
			alone(set("critic/lr", 0, constant(1e-3)),
				set("critic/d_loss_distinct", 3,
					func(i int) float64 { return 0.69 + 0.2/float64(i) }))},
		{"discriminator is worse than guessing", set("critic/d_loss_distinct", 95, constant(1.1))},
		{"game began with an untrained discriminator", func(rows []Row) {
			for i := 10; i < 35; i++ {
				rows[i].Values["critic/d_loss_distinct"], rows[i].Values["critic/d_acc_distinct"] =
					0.69, 0.5
			}
		}},
		{"discriminator at chance", set("critic/d_acc_distinct", 70, constant(0.51))},
		{"discriminator at chance",
			without("critic/d_acc_distinct", set("critic/d_acc_fresh", 70, constant(0.51)))},
		{"discriminator always right", set("critic/d_acc_distinct", 80, constant(0.995))},
		{"discriminator always right",
			without("critic/d_acc_distinct", set("critic/d_acc_fresh", 80, constant(0.99)))},
		{"the discriminator is ahead", func(rows []Row) {
			for i, r := range rows {
				r.Values["actor/pg_loss"], r.Values["critic/d_acc_distinct"] = 0, 0.9
				r.Values["critic/d_loss_distinct"], r.Values["actor/ratio_max"] = 0.3, 1.01
				r.Values["reward/mean"], r.Values["critic/score_gap"] =
					5-0.05*float64(i)+0.1*float64(i%2), 2+0.04*float64(i)
			}
		}},
		{"scores of a prompt collapse", set("critic/collapsed_groups_frac", 75, constant(0.7))},
		{"everything is a tie", set("critic/tie_frac", 80, constant(0.95))},
		{"clip never acts", set("actor/pg_clipfrac", 80, constant(0))},
		{"clip acts on most tokens", set("actor/pg_clipfrac", 80, constant(0.7))},
		{"impossible scores from the teacher", set("opd/reverse_kl", 0, constant(-1.1))},
		{"student and teacher do not meet", set("opd/topk_overlap", 0, constant(0.2))},
		{"KL runs away", set("actor/kl_loss", 80, constant(1.5))},
		{"KL runs away", set("actor/kl_loss", 60,
			func(i int) float64 { return 0.02 * math.Exp2(float64(max(0, i-70))/4) })},
		{"KL runs away", set("reward/kl_mean", 10, constant(3))},
		{"KL dominates the loss", set("actor/kl_share", 80, constant(0.92))},
		{"entropy collapses", set("actor/entropy", 80, constant(0.01))},
		{"entropy collapses", set("actor/entropy", 80, constant(0.07))},
		{"advantages vanish", set("adv/std", 80, constant(0.01))},
		{"advantages vanish", set("adv/zero_var_groups_frac", 80, constant(0.95))},
		{"answers end at the limit", set("rollout/truncated_frac", 0, constant(0.6))},
		{"worse than where it began", all(at("start/rouge_l", 0, 0.5), at("val/rouge_l", 99, 0.3))},
		{"worse than where it began",
			all(at("start/check", 0, 0.5), at("val/check", 99, 0.3), at("start/rouge_l", 0, 0.5),
				at("val/rouge_l", 99, 0.6))},
		{"right answers are being lost",
			set("reward/check_mean", 0,
				func(i int) float64 { return 0.9 - 0.007*math.Abs(float64(i-50)) })},
		{"right answers are being lost", all(at("val/check", 49, 0.9), at("val/check", 99, 0.6))},
		{"SFT loss rises", set("actor/sft_loss", 0,
			func(i int) float64 { return 0.1 + float64(min(i, 1)) })},
		{"overfitting", func(rows []Row) {
			for _, r := range rows {
				delete(r.Values, "actor/pg_loss")
			}
			all(set("actor/sft_loss", 0, constant(1)), at("val/teacher_nll", 50, 1),
				at("val/teacher_nll", 99, 1.3))(rows)
		}},
		{"warm-up ended before the discriminator had learned",
			all(at("critic/warmup_learned", 9, 0),
				set("critic/d_loss_distinct", 0, constant(0.55)))},
		{"the policy does not move",
			all(set("actor/ppo_kl", 0, constant(-1e-9)), set("actor/kl_loss", 0, constant(1e-9)))},
		{"answers become alike", all(set("teacher/unique_frac", 0, constant(0.9)),
			set("rollout/unique_frac", 90, constant(0.3)))},
		{"collapse after an update",
			set("reward/check_mean", 0,
				func(i int) float64 { return 0.3 + 0.32*float64(min(max(97-i, 0), 1)) })},
		{"collapse after an update", set("rollout/repeat_frac", 95, constant(0.6))},
		{"answers grow too long", set("rollout/len_mean", 60, constant(180))},
	} {
		rows := healthy(100)
		c.harm(rows)
		found, _ := Diagnose(rows)
		var names []string
		for _, f := range found {
			names = append(names, f.Name)
			if f.Seen == "" || f.Doc == "" || f.Advice == "" {
				t.Errorf("%s: %+v: something is empty", c.sign, f)
			}
		}
		if got := strings.Join(names, ", "); got != c.sign {
			t.Errorf("%s: found %q", c.sign, got)
		}
		for _, name := range names {
			shown[name] = true
		}
	}
	for _, s := range Signs() {
		if !shown[s.Name] {
			t.Errorf("%s: no test shows it", s.Name)
		}
	}
	// What looks like a sign and is none.
	for what, change := range map[string]func([]Row){
		"a batch that is used in one update cannot be clipped": all(
			set("actor/pg_clipfrac", 0, constant(0)), set("actor/ratio_max", 0, constant(1))),
		"one update a batch, and no KL": func(rows []Row) {
			for _, r := range rows {
				delete(r.Values, "actor/kl_loss")
				delete(r.Values, "actor/kl_share")
			}
			all(set("actor/ratio_max", 0, constant(1)), set("actor/ppo_kl", 0, constant(0)))(rows)
		},
		"flat groups of a student that is right": all(
			set("adv/zero_var_groups_frac", 0, constant(1)),
			set("reward/check_mean", 0, constant(0.97))),
		"flat groups are not collapsed ones": all(
			set("adv/zero_var_groups_frac", 0, constant(0.8)),
			set("critic/collapsed_groups_frac", 0, constant(0.85))),
		"a small KL term beside a policy loss that is 0": all(set("actor/kl_share", 0, constant(1)),
			set("actor/kl_pull", 0, constant(0.1))),
		"ROUGE-L falls where the checker's score rises": all(at("start/check", 0, 0.4),
			at("val/check", 99, 0.9), at("start/rouge_l", 0, 0.9), at("val/rouge_l", 99, 0.5)),
		"a teacher whose answers are cut as often": all(
			set("rollout/truncated_frac", 0, constant(0.97)),
			set("teacher/truncated_frac", 0, constant(0.93))),
		"a noisy checker": set("reward/check_mean", 0,
			func(i int) float64 { return 0.5 + 0.5*math.Sin(7*float64(i*i)) }),
	} {
		rows := healthy(100)
		change(rows)
		if found, _ := Diagnose(rows); len(found) > 0 {
			t.Errorf("%s: %v", what, found)
		}
	}
}

// The last word is that of the last session; a session that was cut off has none.
func TestLastWord(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadLastWord(vfs.OS, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
	session := func(end End, text string) LastWord {
		r, err := Open(vfs.OS, dir, Options{Command: "gad train " + text})
		if err != nil {
			t.Fatal(err)
		}
		r.Log().Info("student of some size")
		if end != "" {
			r.End(end, text)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		w, err := ReadLastWord(vfs.OS, dir)
		if err != nil || w.At.IsZero() || w.Command != "gad train "+text {
			t.Errorf("%s: %+v, %v", text, w, err)
		}
		return w
	}
	for _, end := range []End{Finished, Interrupted, Aborted, DiskFull, Numerical, OutOfMemory,
		Failed} {
		if w := session(end, "because"); w.End != end || w.Text != "because" {
			t.Errorf("%s: %+v", end, w)
		}
		if w := session("", "cut off"); w.End != "" || w.Text != "student of some size" {
			t.Errorf("cut off after %s: %+v", end, w)
		}
	}
}
