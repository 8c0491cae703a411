package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Sign is a way in which the metrics of a run show that it is sick. The rule and its
// thresholds stand in Doc, and nowhere else in words.
type Sign struct {
	Name   string // what is wrong, in a few words
	Doc    string // the rule
	Advice string // what to look at first

	// find looks for the sign and says what it saw, "" for nothing.
	find func(rows []Row) string
}

// fewSteps are enough for what no noise brings about.
const fewSteps = 5

// signWindow is how many steps a sign must last, so that noise is none.
const signWindow = 20

// signs are looked for in this order.
var signs = []Sign{
	{"numerical breakdown", "an update was skipped, or a metric is not finite, in the last 20 steps",
		"lower the learning rate of the side that skips; resume from a checkpoint before the first skip", brokenNumbers},
	{"SFT loss rises", "mean of actor/sft_loss over the last 20 steps above 1.5 times the smallest mean over 20 steps in a row before",
		"lower actor.optim.lr, raise actor.optim.lr_warmup_steps; resume from an earlier checkpoint",
		func(rows []Row) string {
			const name = "actor/sft_loss"
			xs := series(rows, name)
			if len(xs) < 2*signWindow {
				return ""
			}
			least := math.Inf(1)
			for i := range len(xs) - 2*signWindow + 1 {
				least = min(least, average(xs[i:i+signWindow]))
			}
			if now := average(xs[len(xs)-signWindow:]); now > 1.5*least {
				return fmt.Sprintf("%s %.3g over the last %d steps, %.3g before", name, now, signWindow, least)
			}
			return ""
		}},
	{"no pairs", "critic/pairs is 0 in each of the last 5 steps that the discriminator took: every pair was left out, since one of its answers was cut at the limit: it learns nothing, and the student learns from its noise",
		"raise data.max_response_length above the teacher's answers (gad data validate --model has their lengths), or set critic.truncated=include",
		func(rows []Row) string {
			xs := series(rows, "critic/pairs")
			if len(xs) < fewSteps || slices.Max(xs[len(xs)-fewSteps:]) > 0 {
				return ""
			}
			return fmt.Sprintf("critic/pairs 0 in the last %d steps", fewSteps)
		}},
	{"few pairs", "mean of critic/pairs_frac below 0.5 over the last 20 steps: more than half of the pairs are left out, since one of their answers was cut at the limit",
		"data.max_response_length; rollout/truncated_frac and teacher/truncated_frac say which side is cut",
		func(rows []Row) string {
			return mean(rows, "critic/pairs_frac", func(x float64) bool { return x < 0.5 && x > 0 })
		}},
	{"discriminator has not started", "over the last 20 steps, in which it learned alone, the means of critic/d_loss_distinct above 0.66 and of critic/d_acc_distinct below 0.65: guessing gives 0.693 and 0.5",
		"a longer warm-up that ends when the discriminator has learned (trainer.critic_warmup_until=0.5), another critic.optim.lr; see the signs below for more",
		notStarted},
	{"discriminator takes few updates", "it has not started, and takes one optimizer step in each of the last 20 steps (critic/updates)",
		"critic.ppo_mini_batch_size of a few prompts: many small updates",
		func(rows []Row) string {
			if notStarted(rows) == "" {
				return ""
			}
			return each(rows, "critic/updates", func(x float64) bool { return x <= 1 })
		}},
	{"discriminator was disturbed by a large learning rate", "it has not started, its learning rate was at its largest from the first step, and critic/d_loss_distinct was above 0.75, worse than guessing, in at least one of the first 20 steps",
		"critic.optim.lr_warmup_steps=100, or a lower critic.optim.lr", shaken},
	{"value head is flat", "it has not started, and in the first step critic/group_std is below 0.01: its scores hardly differ",
		"critic.score_init: 0 follows the model's width",
		func(rows []Row) string {
			xs := series(rows, "critic/group_std")
			if notStarted(rows) == "" || len(xs) == 0 || xs[0] >= 0.01 {
				return ""
			}
			return fmt.Sprintf("critic/group_std %.2g in the first step", xs[0])
		}},
	{"game began with an untrained discriminator", "over the first 20 steps of the game the means of critic/d_loss_distinct above 0.66 and of critic/d_acc_distinct below 0.65: what the student learned there was noise",
		"start again from a warm-up in which the discriminator has learned (trainer.critic_warmup_until=0.5)",
		func(rows []Row) string {
			if game := playing(rows); len(game) >= signWindow {
				return deaf(game[:signWindow])
			}
			return ""
		}},
	{"discriminator at chance", "mean of critic/d_acc_distinct below 0.55 over the last 20 steps after the warm-up (of critic/d_acc_fresh in runs without that metric)",
		"if val/ is as good as the teacher, the game is finished; otherwise check the teacher's answers, then raise critic.optim.lr",
		func(rows []Row) string {
			learning := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return !hasPrefix(r, "actor/") })
			return mean(learning, accuracy(rows), func(x float64) bool { return x < 0.55 })
		}},
	{"discriminator always right", "critic/d_acc_distinct above 0.99 in each of the last 20 steps (critic/d_acc_fresh above 0.95 in runs without that metric)",
		"first check that the answers of both sides end in the same way (rollout/truncated_frac, teacher/truncated_frac, samples/); then lower critic.optim.lr, or turn on critic.replay",
		func(rows []Row) string {
			limit := 0.95
			if accuracy(rows) == distinct {
				limit = 0.99
			}
			return each(rows, accuracy(rows), func(x float64) bool { return x > limit })
		}},
	{"scores of a prompt collapse", "mean of critic/collapsed_groups_frac above 0.5 over the last 20 steps: the discriminator separates student and teacher but hardly ranks the student's answers",
		"--preset grgc, or its critic.group_ot=0.01 alone; a higher rollout.temperature",
		func(rows []Row) string {
			return mean(rows, "critic/collapsed_groups_frac", func(x float64) bool { return x > 0.5 })
		}},
	{"everything is a tie", "mean of critic/tie_frac above 0.9 over the last 20 steps",
		"the student writes the teacher's own texts: nothing is left to learn from this data, or the data were written by the student",
		func(rows []Row) string {
			return mean(rows, "critic/tie_frac", func(x float64) bool { return x > 0.9 })
		}},
	{"clip never acts", "actor/pg_clipfrac 0 in each of the last 20 steps although a batch is used in several updates (actor/ratio_max is not 1)",
		"narrow actor.clip_ratio_low and actor.clip_ratio_high, or raise actor.optim.lr: the policy hardly moves",
		func(rows []Row) string {
			if each(rows, "actor/ratio_max", func(x float64) bool { return x != 1 }) == "" {
				return ""
			}
			return each(rows, "actor/pg_clipfrac", func(x float64) bool { return x == 0 })
		}},
	{"clip acts on most tokens", "mean of actor/pg_clipfrac above 0.5 over the last 20 steps",
		"lower actor.optim.lr, or widen actor.clip_ratio_low and actor.clip_ratio_high",
		func(rows []Row) string {
			return mean(rows, "actor/pg_clipfrac", func(x float64) bool { return x > 0.5 })
		}},
	{"KL runs away", "mean of actor/kl_loss or reward/kl_mean over the last 20 steps above 1 nat, or above 0.1 and five times that of the 20 steps before",
		"lower actor.optim.lr, or raise actor.kl_loss_coef", runawayKL},
	{"KL dominates the loss", "actor/kl_share above 0.8 in each of the last 20 steps",
		"lower actor.kl_loss_coef, or rely on the clip",
		func(rows []Row) string {
			return each(rows, "actor/kl_share", func(x float64) bool { return x > 0.8 })
		}},
	{"entropy collapses", "mean of actor/entropy over the last 20 steps of the game below 0.02 nats, or below a tenth of that of its first 20 steps",
		"lower actor.optim.lr, raise actor.entropy_coeff or rollout.temperature", collapsedEntropy},
	{"advantages vanish", "adv/std below 0.05 in each of the last 20 steps, or mean of adv/zero_var_groups_frac above 0.5",
		"raise rollout.n or rollout.temperature; see algorithm.zscore_floor",
		func(rows []Row) string {
			if s := each(rows, "adv/std", func(x float64) bool { return x < 0.05 }); s != "" {
				return s
			}
			return mean(rows, "adv/zero_var_groups_frac", func(x float64) bool { return x > 0.5 })
		}},
	{"answers end at the limit", "mean of rollout/truncated_frac above 0.5 over the last 20 steps",
		"raise data.max_response_length, or start from an SFT that ends its answers",
		func(rows []Row) string {
			return mean(rows, "rollout/truncated_frac", func(x float64) bool { return x > 0.5 })
		}},
	{"collapse after an update", "rollout/repeat_frac or rollout/truncated_frac, over three steps, more than 0.3 above the three before, within the last 20 steps",
		"lower actor.optim.lr, raise rollout.n, or add a KL term", jump},
	{"answers grow too long", "mean of rollout/len_mean over the last 20 steps above 1.5 times that of the first 20, and above 1.5 times teacher/len_mean",
		"a length term in the reward (algorithm.length_coef), or a fresh discriminator", gamedLength},
}

// Signs are all signs that Judge looks for.
func Signs() []Sign { return slices.Clone(signs) }

// Finding is a sign that the metrics show.
type Finding struct {
	Sign
	Seen string // the figures
}

// Judge looks for the signs of a sick run in its metrics. enough is false where
// there are too few steps for most signs, which are then not looked for.
func Judge(rows []Row) (found []Finding, enough bool) {
	for _, s := range signs {
		if seen := s.find(rows); seen != "" {
			found = append(found, Finding{s, seen})
		}
	}
	return found, len(rows) >= signWindow
}

// series is a metric over the steps that have it.
func series(rows []Row, name string) (xs []float64) {
	for _, r := range rows {
		if x, ok := r.Values[name]; ok {
			xs = append(xs, x)
		}
	}
	return xs
}

// window is the last signWindow steps of a metric, nil if there are fewer.
func window(rows []Row, name string) []float64 {
	xs := series(rows, name)
	if len(xs) < signWindow {
		return nil
	}
	return xs[len(xs)-signWindow:]
}

func average(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// mean holds a rule against a metric's mean over the window.
func mean(rows []Row, name string, sick func(float64) bool) string {
	xs := window(rows, name)
	if xs == nil || !sick(average(xs)) {
		return ""
	}
	return fmt.Sprintf("%s %.3g over the last %d steps", name, average(xs), signWindow)
}

// each holds a rule against every value in the window.
func each(rows []Row, name string, sick func(float64) bool) string {
	xs := window(rows, name)
	if xs == nil || slices.ContainsFunc(xs, func(x float64) bool { return !sick(x) }) {
		return ""
	}
	return fmt.Sprintf("%s %.3g to %.3g in the last %d steps", name, slices.Min(xs), slices.Max(xs), signWindow)
}

// distinct is the honest accuracy: equal texts, which no discriminator can tell apart,
// are left out of it.
const distinct = "critic/d_acc_distinct"

// accuracy names the accuracy that a run's metrics have.
func accuracy(rows []Row) string {
	if len(series(rows, distinct)) > 0 {
		return distinct
	}
	return "critic/d_acc_fresh"
}

// deaf says that the discriminator cannot tell the sides apart in the last steps.
func deaf(rows []Row) string {
	loss := mean(rows, "critic/d_loss_distinct", func(x float64) bool { return x > 0.66 })
	acc := mean(rows, distinct, func(x float64) bool { return x < 0.65 })
	if loss == "" || acc == "" {
		return ""
	}
	return loss + ", " + acc
}

// playing is the steps in which the student learned by its scores.
func playing(rows []Row) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { _, ok := r.Values["actor/pg_loss"]; return !ok })
}

// notStarted looks at a discriminator that is still learning alone.
func notStarted(rows []Row) string {
	if len(rows) < signWindow || slices.ContainsFunc(rows[len(rows)-signWindow:], func(r Row) bool { return hasPrefix(r, "actor/") }) {
		return ""
	}
	return deaf(rows)
}

func shaken(rows []Row) string {
	rates, losses := series(rows, "critic/lr"), series(rows, "critic/d_loss_distinct")
	if notStarted(rows) == "" || len(rates) == 0 || rates[0] < slices.Max(rates) {
		return ""
	}
	worst := slices.Max(losses[:min(signWindow, len(losses))])
	if worst <= 0.75 {
		return ""
	}
	return fmt.Sprintf("critic/lr %.2g from the first step, critic/d_loss_distinct up to %.3g in the first %d", rates[0], worst, signWindow)
}

func hasPrefix(r Row, prefix string) bool {
	for name := range r.Values {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func brokenNumbers(rows []Row) string {
	skips, bad := map[string]int{}, ""
	for _, r := range rows[max(0, len(rows)-signWindow):] {
		for _, m := range table {
			x, ok := r.Values[m.Name]
			switch {
			case ok && strings.HasSuffix(m.Name, "/skipped_updates") && x > 0:
				skips[m.Name]++
			case ok && (math.IsNaN(x) || math.IsInf(x, 0)) && bad == "":
				bad = fmt.Sprintf("%s is %g in step %d", m.Name, x, r.Step)
			}
		}
	}
	var seen []string
	for _, name := range []string{"actor/skipped_updates", "critic/skipped_updates"} {
		if skips[name] > 0 {
			seen = append(seen, fmt.Sprintf("%s in %d of the last %d steps", name, skips[name], min(signWindow, len(rows))))
		}
	}
	if bad != "" {
		seen = append(seen, bad)
	}
	return strings.Join(seen, "; ")
}

func runawayKL(rows []Row) string {
	for _, name := range []string{"actor/kl_loss", "reward/kl_mean"} {
		xs := series(rows, name)
		if len(xs) < signWindow {
			continue
		}
		now := average(xs[len(xs)-signWindow:])
		if now > 1 {
			return fmt.Sprintf("%s %.3g over the last %d steps", name, now, signWindow)
		}
		if len(xs) < 2*signWindow {
			continue
		}
		if was := average(xs[len(xs)-2*signWindow:][:signWindow]); now > 0.1 && now > 5*was {
			return fmt.Sprintf("%s %.3g over the last %d steps, %.3g before", name, now, signWindow, was)
		}
	}
	return ""
}

func collapsedEntropy(rows []Row) string {
	const name = "actor/entropy"
	xs := series(playing(rows), name)
	if len(xs) < signWindow {
		return ""
	}
	was, now := average(xs[:signWindow]), average(xs[len(xs)-signWindow:])
	if now < 0.02 || len(xs) >= 2*signWindow && now < was/10 {
		return fmt.Sprintf("%s %.3g over the last %d steps, %.3g over the first", name, now, signWindow, was)
	}
	return ""
}

func jump(rows []Row) string {
	for _, name := range []string{"rollout/repeat_frac", "rollout/truncated_frac"} {
		xs := window(rows, name)
		for i := 3; i+3 <= len(xs); i++ {
			if was, now := average(xs[i-3:i]), average(xs[i:i+3]); now-was > 0.3 {
				return fmt.Sprintf("%s from %.2f to %.2f within the last %d steps", name, was, now, signWindow)
			}
		}
	}
	return ""
}

func gamedLength(rows []Row) string {
	const name = "rollout/len_mean"
	xs, teacher := series(rows, name), window(rows, "teacher/len_mean")
	if len(xs) < 2*signWindow || teacher == nil {
		return ""
	}
	was, now := average(xs[:signWindow]), average(xs[len(xs)-signWindow:])
	if now > 1.5*was && now > 1.5*average(teacher) {
		return fmt.Sprintf("%s %.3g over the last %d steps, %.3g over the first, the teacher's %.3g", name, now, signWindow, was, average(teacher))
	}
	return ""
}

// signsMarkdown describes every sign.
func signsMarkdown() string {
	var b strings.Builder
	b.WriteString("\n## Signs of a sick run\n\nWhat `gad doctor` looks for.\n\n| sign | rule | look first at |\n|---|---|---|\n")
	for _, s := range signs {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.Name, s.Doc, s.Advice)
	}
	return b.String()
}
