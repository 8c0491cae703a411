package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Sign is a pattern in the metrics of a sick run. Doc states its rule and thresholds, and is the
// only text that does.
type Sign struct {
	Name   string // the trouble, in a few words
	Doc    string // the rule
	Advice string // the first thing to look at or to do

	// find returns the figures that show the sign, "" if they do not.
	find func(rows []Row) string
}

// Steps that a sign must last.
const (
	atOnce     = 2   // for figures without noise
	fewSteps   = 5   // for figures with little noise
	someSteps  = 10  // for figures compared with their own past
	signWindow = 20  // for all others, to average noise out
	longWindow = 100 // for slow changes that are normal over fewer steps
)

// signs are all signs, in the order in which they are looked for.
var signs = []Sign{
	{"numerical breakdown",
		"an update was skipped, or a metric is not finite, in the last 20 steps",
		"lower the learning rate of the side that skips; resume from a checkpoint before the first skip", brokenNumbers},
	{"worse than where it began", "the newest val/check is more than 0.1 below start/check, or, without a checker, val/rouge_l is below 0.85 times start/rouge_l and by more than 0.05",
		"lower actor.optim.lr; go on from a checkpoint before it (trainer.keep_best keeps the best one)", worse},
	{"right answers are being lost", "mean of reward/check_mean over the last 5 steps more than 0.2 below the largest mean over 5 steps before, and by more than 1.5 times its mean change from step to step; or the newest val/check as far below its largest value (0.2 of that value where scores are above 1)",
		"go on from the best checkpoint (trainer.keep_best=val/check) with a lower actor.optim.lr; look at samples/", lostAnswers},
	{"SFT loss rises", "mean of actor/sft_loss over the last 10 steps above 1.5 times the smallest mean over 10 steps in a row before, or over the last 5 steps above twice that of the first step; by more than 0.05",
		"lower actor.optim.lr, raise actor.optim.lr_warmup_steps; resume from an earlier checkpoint", risingLoss},
	{"overfitting", "the student learns the teacher's answers (actor/sft_loss), and the newest val/teacher_nll is more than 0.02 above 1.1 times the smallest, start/teacher_nll included",
		"fewer steps, more rows, or a lower actor.optim.lr; trainer.keep_best=val/teacher_nll with trainer.test_freq keeps the best checkpoint", overfit},
	{"no pairs", "critic/pairs is 0 in each of the last 2 steps that have it: every pair was left out, since one of its answers was cut at the limit: the discriminator learns nothing, and the student learns from its noise",
		"if the student's answers are cut (rollout/truncated_frac), gad sft first, so that it ends them; if the teacher's are (teacher/truncated_frac), a larger data.max_response_length (gad data validate --model has their lengths); or critic.truncated=include",
		func(rows []Row) string {
			xs := series(rows, "critic/pairs")
			if len(xs) < atOnce || slices.Max(xs[len(xs)-atOnce:]) > 0 {
				return ""
			}
			return fmt.Sprintf("critic/pairs 0 in the last %d steps", atOnce)
		}},
	{"answers end at the limit", "mean of rollout/truncated_frac above 0.5, and by more than 0.2 above that of teacher/truncated_frac, over the last 20 steps, or over all of them from the second one on",
		"gad sft first, until the student ends its answers (10 steps can be enough); or a larger data.max_response_length",
		func(rows []Row) string {
			teacher := 0.0 // whose answers are cut as often has a student that does as it is taught
			if xs := series(rows, "teacher/truncated_frac"); len(xs) > 0 {
				teacher = average(xs[max(0, len(xs)-signWindow):])
			}
			return mean(rows, "rollout/truncated_frac", atOnce,
				func(x float64) bool { return x > 0.5 && x > teacher+0.2 })
		}},
	{"few pairs", "mean of critic/pairs_frac below 0.5 over the last 20 steps, or over all of them from the fifth one on: more than half of the pairs are left out, since one of their answers was cut at the limit",
		"data.max_response_length; rollout/truncated_frac and teacher/truncated_frac say which side is cut",
		func(rows []Row) string {
			return mean(rows, "critic/pairs_frac", fewSteps,
				func(x float64) bool { return x < 0.5 && x > 0 })
		}},
	{"discriminator has not started", "over the last 20 steps of a warm-up, after 40 in which it learned alone or once the student learns beside it, the means of critic/d_loss_distinct above 0.66 and of critic/d_acc_distinct below 0.65 (guessing gives 0.693 and 0.5), or above 0.693 and below 0.8: then it is sure where it is wrong",
		"a longer warm-up that ends when the discriminator has learned (trainer.critic_warmup_until=0.5), another critic.optim.lr; see the signs below for more",
		notStarted},
	{"warm-up ended before the discriminator had learned", "critic/warmup_learned is 0, and the mean of critic/d_loss_distinct over the last 20 steps is not below 0.5",
		"a larger trainer.critic_warmup_max; many small updates (critic.ppo_mini_batch_size=1), critic.optim.lr_warmup_steps=200, another critic.optim.lr",
		func(rows []Row) string {
			xs := series(rows, "critic/warmup_learned")
			if len(xs) == 0 || xs[len(xs)-1] > 0 {
				return ""
			}
			return mean(rows, "critic/d_loss_distinct", 1,
				func(x float64) bool { return !(x < 0.5) })
		}},
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
	{"discriminator is worse than guessing", "critic/d_loss_distinct above 1 in each of the last 5 steps, or in all of them from the second one on (guessing gives ln 2 = 0.693): its scores are spread more widely than it knows the answers, and that spread is noise in the student's rewards",
		"more steps in which the discriminator learns alone (trainer.critic_warmup_until=0.5); a smaller critic.score_init (0 follows the model's width); a lower critic.optim.lr, or critic.optim.lr_warmup_steps",
		func(rows []Row) string {
			xs := series(rows, "critic/d_loss_distinct")
			xs = last(xs, fewSteps)
			if len(xs) < atOnce || !(slices.Min(xs) > 1) {
				return ""
			}
			return fmt.Sprintf("critic/d_loss_distinct %.3g, mean of the last %d steps",
				average(xs), len(xs))
		}},
	{"game began with an untrained discriminator", "over the first 20 steps of the game the means of critic/d_loss_distinct above 0.66 and of critic/d_acc_distinct below 0.65, or above 0.693 and below 0.8: what the student learned there was noise",
		"start again from a warm-up in which the discriminator has learned (trainer.critic_warmup_until=0.5)",
		func(rows []Row) string {
			if game := playedSteps(rows); len(game) >= signWindow {
				return guesses(game[:signWindow])
			}
			return ""
		}},
	{"discriminator at chance", "mean of critic/d_acc_distinct below 0.55 over the last 20 steps after the warm-up (of critic/d_acc_fresh in runs without that metric)",
		"if val/ is as good as the teacher, the game is finished; otherwise check the teacher's answers, then raise critic.optim.lr",
		func(rows []Row) string {
			learning := slices.DeleteFunc(slices.Clone(rows),
				func(r Row) bool { return !hasPrefix(r, "actor/") })
			return mean(learning, accuracy(rows), signWindow,
				func(x float64) bool { return x < 0.55 })
		}},
	{"discriminator always right", "critic/d_acc_distinct above 0.99 in each of the last 20 steps (critic/d_acc_fresh above 0.95 in runs without that metric)",
		"first check that the answers of both sides end in the same way (rollout/truncated_frac, teacher/truncated_frac, samples/); then lower critic.optim.lr, raise actor.optim.lr, shorten the warm-up, or turn on critic.replay",
		func(rows []Row) string {
			limit := 0.95
			if accuracy(rows) == distinct {
				limit = 0.99
			}
			return each(rows, accuracy(rows), func(x float64) bool { return x > limit })
		}},
	{"the discriminator is ahead", "for 100 steps of the game and more the mean of critic/d_acc_distinct is above 0.8 in each 20; over them reward/mean falls, by the mean of the last 20 steps, below its largest mean over 20 steps before by more than its mean change from step to step, and critic/score_gap grows from the mean of the first 20 to that of the last 20 by more than 0.6 of itself. reward/mean alone says nothing: only differences of scores count, and it drifts in healthy runs too",
		"raise actor.optim.lr, or shorten the warm-up (a larger trainer.critic_warmup_until)",
		discriminatorDominates},
	{"scores of a prompt collapse", "over the last 20 steps more than half of the prompts whose answers have different rewards have collapsed scores, (critic/collapsed_groups_frac - adv/zero_var_groups_frac) / (1 - adv/zero_var_groups_frac) by their means: the discriminator separates student and teacher but hardly ranks the student's answers",
		"--preset grgc, or its critic.group_ot=0.01 alone; a higher rollout.temperature", collapsedGroups},
	{"everything is a tie", "mean of critic/tie_frac above 0.9 over the last 20 steps",
		"the student writes the teacher's own texts: nothing is left to learn from this data, or the data were written by the student",
		func(rows []Row) string {
			return mean(rows, "critic/tie_frac", signWindow,
				func(x float64) bool { return x > 0.9 })
		}},
	{"the policy does not move", "over the last 20 steps of the game the mean absolute actor/ppo_kl is below 1e-6, and that of actor/kl_loss, where it is there, too (without it, only where a batch is used in several updates): nobody could tell the student from the one that began",
		"raise actor.optim.lr; gad doctor says by how much the weights differ from those at the start", still},
	{"clip never acts", "actor/pg_clipfrac 0 in each of the last 20 steps although a batch is used in several updates (actor/ratio_max is not 1), and the mean absolute actor/ppo_kl below 1e-4",
		"narrow actor.clip_ratio_low and actor.clip_ratio_high, or raise actor.optim.lr: the policy hardly moves",
		func(rows []Row) string {
			if each(rows, "actor/ratio_max", func(x float64) bool { return x != 1 }) == "" ||
				meanAbs(rows, "actor/ppo_kl") >= 1e-4 {
				return ""
			}
			return each(rows, "actor/pg_clipfrac", func(x float64) bool { return x == 0 })
		}},
	{"clip acts on most tokens", "mean of actor/pg_clipfrac above 0.6 over the last 20 steps",
		"lower actor.optim.lr, or widen actor.clip_ratio_low and actor.clip_ratio_high",
		func(rows []Row) string {
			return mean(rows, "actor/pg_clipfrac", signWindow,
				func(x float64) bool { return x > 0.6 })
		}},
	{"impossible scores from the teacher", "opd/reverse_kl below -0.5 nats in each of the last 2 steps: it estimates a divergence, which is never below 0, and means over a batch stray by less",
		"the teacher's server does not compute the log-probabilities of the student's tokens at temperature 1 (a temperature, a cache, places shifted by one?): compare it with gad logprobs of the teacher's folder, and start again from a checkpoint before",
		func(rows []Row) string {
			xs := series(rows, "opd/reverse_kl")
			if len(xs) < atOnce || !(slices.Max(last(xs, atOnce)) < -0.5) {
				return ""
			}
			return fmt.Sprintf("opd/reverse_kl %.2g and %.2g in the last %d steps",
				xs[len(xs)-2], xs[len(xs)-1], atOnce)
		}},
	{"student and teacher do not meet", "mean of opd/topk_overlap over the last 20 steps below 0.3, and not by more than 0.05 above that of the first 20: what the student writes is nothing that the teacher would say, and what the teacher says of it corrects nothing",
		"gad sft first, on the teacher's answers; a larger actor.optim.lr; or a teacher that is nearer to the student", differentTokens},
	{"KL runs away",
		"mean of actor/kl_loss or reward/kl_mean over the last 10 steps above 0.4 nats",
		"lower actor.optim.lr, or raise actor.kl_loss_coef", runawayKL},
	{"KL dominates the loss", "over the last 20 steps the means of actor/kl_share above 0.8 and of actor/kl_pull above 0.2 (actor/kl_share alone in runs without the other): the KL term and not the rewards decides where the student goes",
		"lower actor.kl_loss_coef, or rely on the clip", dominantKL},
	{"entropy collapses", "mean of actor/entropy over the last 20 steps of the game below 0.005 nats, or below a tenth of that of its first 20 steps",
		"lower actor.optim.lr, raise actor.entropy_coeff or rollout.temperature", collapsedEntropy},
	{"advantages vanish", "adv/std below 0.05 in each of the last 20 steps, or mean of adv/zero_var_groups_frac above 0.9 over the last 5; not where reward/check_mean is above 0.9, since then nothing is left to learn. Normalised advantages (adv_estimator=grpo) have a deviation near 1 whatever the scores are, so the first half is for the others",
		"raise rollout.n or rollout.temperature; see algorithm.zscore_floor", vanishingAdvantage},
	{"collapse after an update", "over three steps, within the last 20, rollout/repeat_frac or rollout/truncated_frac more than 0.3 above, or reward/check_mean more than 0.3 below, the three steps before, and by more than 2.5 times the mean change from step to step before it",
		"lower actor.optim.lr, raise rollout.n, or add a KL term", jump},
	{"answers become alike", "mean of rollout/unique_frac over the last 5 steps below half of teacher/unique_frac: the student writes the same answer to different prompts",
		"lower actor.optim.lr, go on from an earlier checkpoint; look at samples/", alike},
	{"answers grow too long", "mean of rollout/len_mean over the last 10 steps above 1.5 times that of the first 10, and above 1.5 times teacher/len_mean",
		"a length term in the reward (algorithm.length_coef), or a fresh discriminator",
		gamedLength},
}

// Signs returns all signs that Diagnose looks for.
func Signs() []Sign { return slices.Clone(signs) }

// Finding is a sign that the metrics show.
type Finding struct {
	Sign
	Seen string // the figures
}

// Diagnose returns the signs of a sick run that its metrics show. enough is false if the run has
// too few steps for most signs, which are then not looked for.
func Diagnose(rows []Row) (found []Finding, enough bool) {
	for _, s := range signs {
		if seen := s.find(rows); seen != "" {
			found = append(found, Finding{s, seen})
		}
	}
	return found, len(rows) >= signWindow
}

// series returns a metric's values in the steps that have it.
func series(rows []Row, name string) (xs []float64) {
	for _, r := range rows {
		if x, ok := r.Values[name]; ok {
			xs = append(xs, x)
		}
	}
	return xs
}

// window returns a metric's last signWindow values, nil if there are fewer.
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

// mean returns the figure if sick is true of a metric's mean over its last signWindow values, or
// over all of them if there are fewer, but at least least; else "".
func mean(rows []Row, name string, least int, sick func(float64) bool) string {
	xs := series(rows, name)
	if len(xs) < least || len(xs) == 0 {
		return ""
	}
	xs = last(xs, signWindow)
	if !sick(average(xs)) {
		return ""
	}
	return fmt.Sprintf("%s %.3g over the last %s", name, average(xs), Count(len(xs), "step"))
}

// last returns the end of xs, at most n values.
func last(xs []float64, n int) []float64 { return xs[max(0, len(xs)-n):] }

// meanAbs returns the mean absolute value of a metric over the window; NaN if there are fewer
// steps.
func meanAbs(rows []Row, name string) float64 {
	sum, xs := 0.0, window(rows, name)
	for _, x := range xs {
		sum += math.Abs(x)
	}
	return sum / float64(len(xs))
}

// each returns the range of a metric in the window if sick is true of every value; else "".
func each(rows []Row, name string, sick func(float64) bool) string {
	xs := window(rows, name)
	if xs == nil || slices.ContainsFunc(xs, func(x float64) bool { return !sick(x) }) {
		return ""
	}
	return fmt.Sprintf("%s %.3g to %.3g in the last %d steps", name, slices.Min(xs), slices.Max(xs),
		signWindow)
}

// distinct is the fair accuracy: it leaves out pairs of equal texts, which no discriminator can
// tell apart.
const distinct = "critic/d_acc_distinct"

// accuracy returns the name of the accuracy that a run records.
func accuracy(rows []Row) string {
	if len(series(rows, distinct)) > 0 {
		return distinct
	}
	return "critic/d_acc_fresh"
}

// guesses returns the figures of a discriminator that cannot tell the sides apart in the last
// steps, or is as sure where it is wrong as where it is right; "" for another. A loss above
// guessing with a high accuracy is not such a case: a few pairs of which it is sure and wrong have
// most of the loss.
func guesses(rows []Row) string {
	for _, c := range []struct{ loss, acc float64 }{{0.66, 0.65}, {math.Ln2, 0.8}} {
		loss := mean(rows, "critic/d_loss_distinct", signWindow,
			func(x float64) bool { return x > c.loss })
		acc := mean(rows, distinct, signWindow, func(x float64) bool { return x < c.acc })
		if loss != "" && acc != "" {
			return loss + ", " + acc
		}
	}
	return ""
}

// playedSteps returns the steps in which the student learned from the discriminator's scores.
func playedSteps(rows []Row) []Row {
	return slices.DeleteFunc(slices.Clone(rows),
		func(r Row) bool { _, ok := r.Values["actor/pg_loss"]; return !ok })
}

// discriminatorDominates returns the figures of a student that falls behind a discriminator that
// tells it from the teacher; "" for another.
func discriminatorDominates(rows []Row) string {
	rows = playedSteps(rows)
	acc, rewards, gap :=
		series(rows, distinct), series(rows, "reward/mean"), series(rows, "critic/score_gap")
	n := min(len(acc), len(rewards), len(gap))
	acc, rewards, gap = last(acc, n), last(rewards, n), last(gap, n)
	from := n // the first of the 20 steps, and the 20 before them, ..., that are above 0.8
	for from >= signWindow && average(acc[from-signWindow:from]) > 0.8 {
		from -= signWindow
	}
	if n-from < longWindow {
		return ""
	}
	rewards, gap = rewards[from:], gap[from:]
	best := math.Inf(-1)
	for i := range len(rewards) - 2*signWindow + 1 {
		best = max(best, average(rewards[i:i+signWindow]))
	}
	now := average(last(rewards, signWindow))
	gapWas, gapNow := average(gap[:signWindow]), average(last(gap, signWindow))
	if !(best-now > noise(rewards)) || !(gapNow-gapWas > 0.6*math.Abs(gapWas)) {
		return ""
	}
	return fmt.Sprintf(
		"%s %.2f, reward/mean %.3g to %.3g, critic/score_gap %.3g to %.3g over the last %d steps",
		distinct, average(acc[from:]), best, now, gapWas, gapNow, n-from)
}

// differentTokens returns the figures of a student that expects other tokens than the teacher and
// does not come closer; "" for another.
func differentTokens(rows []Row) string {
	xs := series(rows, "opd/topk_overlap")
	if len(xs) < 2*signWindow {
		return ""
	}
	was, now := average(xs[:signWindow]), average(last(xs, signWindow))
	if now >= 0.3 || now > was+0.05 {
		return ""
	}
	return fmt.Sprintf("opd/topk_overlap %.2g over the last %d steps, %.2g over the first", now,
		signWindow, was)
}

// notStarted returns the figures of a discriminator that guesses before the game; "" for another. A
// discriminator that learns alone is given 40 steps: in the first 20 of a good warm-up it mostly
// guesses.
func notStarted(rows []Row) string {
	alone := !slices.ContainsFunc(rows, func(r Row) bool { return hasPrefix(r, "actor/") })
	if len(rows) < signWindow || alone && len(rows) < 2*signWindow || len(playedSteps(rows)) > 0 {
		return ""
	}
	return guesses(rows)
}

// shaken returns the figures of a discriminator that guesses after its loss rose in the first
// steps, taken at the full learning rate; "" for another.
func shaken(rows []Row) string {
	rates, losses := series(rows, "critic/lr"), series(rows, "critic/d_loss_distinct")
	if notStarted(rows) == "" || len(rates) == 0 || rates[0] < slices.Max(rates) {
		return ""
	}
	worst := slices.Max(losses[:min(signWindow, len(losses))])
	if worst <= 0.75 {
		return ""
	}
	return fmt.Sprintf(
		"critic/lr %.2g from the first step, critic/d_loss_distinct up to %.3g in the first %d",
		rates[0], worst, signWindow)
}

// hasPrefix reports whether a row has a metric whose name begins with prefix.
func hasPrefix(r Row, prefix string) bool {
	for name := range r.Values {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// brokenNumbers returns the skipped updates and the values that are not finite, or "".
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
			seen = append(seen, fmt.Sprintf("%s in %d of the last %d steps", name, skips[name],
				min(signWindow, len(rows))))
		}
	}
	if bad != "" {
		seen = append(seen, bad)
	}
	return strings.Join(seen, "; ")
}

// worse returns the newest validation and the one before the first step if it is much worse, else
// "".
func worse(rows []Row) string {
	for _, c := range []struct {
		name  string
		worse func(was, now float64) bool
	}{
		{"check", func(was, now float64) bool { return was-now > 0.1*scale(was) }},
		{"rouge_l", func(was, now float64) bool { return now < 0.85*was && was-now > 0.05 }},
	} {
		was, now := series(rows, "start/"+c.name), series(rows, "val/"+c.name)
		if len(was) == 0 || len(now) == 0 {
			continue
		}
		if x := now[len(now)-1]; c.worse(was[0], x) {
			return fmt.Sprintf("val/%s %.3g, %.3g before the first step", c.name, x, was[0])
		}
		return "" // the checker knows better than ROUGE-L
	}
	return ""
}

// scale returns the size against which a change of a checker's score is held: scores mostly lie in
// 0 to 1.
func scale(x float64) float64 { return max(1, math.Abs(x)) }

// noise returns the mean absolute change from step to step.
func noise(xs []float64) float64 {
	sum := 0.0
	for i := 1; i < len(xs); i++ {
		sum += math.Abs(xs[i] - xs[i-1])
	}
	return sum / float64(max(len(xs)-1, 1))
}

// lostAnswers returns the shares of right answers now and before, if there were many more, else "".
func lostAnswers(rows []Row) string {
	if xs := series(rows, "reward/check_mean"); len(xs) >= 2*fewSteps {
		best := math.Inf(-1)
		for i := range len(xs) - 2*fewSteps + 1 {
			best = max(best, average(xs[i:i+fewSteps]))
		}
		if now := average(last(xs, fewSteps)); best-now > 0.2*scale(best) &&
			best-now > 1.5*noise(xs) {
			return fmt.Sprintf("reward/check_mean %.3g over the last %d steps, %.3g before", now,
				fewSteps, best)
		}
	}
	if xs := series(rows, "val/check"); len(xs) > 1 {
		if best, now := slices.Max(xs), xs[len(xs)-1]; best-now > 0.2*scale(best) {
			return fmt.Sprintf("val/check %.3g, %.3g before", now, best)
		}
	}
	return ""
}

// risingLoss returns the SFT loss now and before, if it rises, else "".
func risingLoss(rows []Row) string {
	const name = "actor/sft_loss"
	xs := series(rows, name)
	if len(xs) >= fewSteps {
		if now := average(last(xs, fewSteps)); now > 2*xs[0] && now-xs[0] > 0.05 {
			return fmt.Sprintf("%s %.3g over the last %d steps, %.3g in the first", name, now,
				fewSteps, xs[0])
		}
	}
	if len(xs) < 2*someSteps {
		return ""
	}
	least := math.Inf(1)
	for i := range len(xs) - 2*someSteps + 1 {
		least = min(least, average(xs[i:i+someSteps]))
	}
	if now := average(last(xs, someSteps)); now > 1.5*least && now-least > 0.05 {
		return fmt.Sprintf("%s %.3g over the last %d steps, %.3g before", name, now, someSteps,
			least)
	}
	return ""
}

// overfit returns the teacher's NLL now and its least, if it rises during SFT, else "".
func overfit(rows []Row) string {
	const name = "val/teacher_nll"
	if len(series(rows, "actor/sft_loss")) == 0 || len(playedSteps(rows)) > 0 {
		return ""
	}
	xs := series(rows, name)
	if len(xs) == 0 {
		return ""
	}
	least := slices.Min(append(series(rows, "start/teacher_nll"), xs...))
	if now := xs[len(xs)-1]; now > 1.1*least+0.02 {
		return fmt.Sprintf("%s %.3g, %.3g before", name, now, least)
	}
	return ""
}

// collapsedGroups returns the share of prompts whose answers the discriminator hardly ranks, if it
// is large, else "".
func collapsedGroups(rows []Row) string {
	collapsed, flat :=
		window(rows, "critic/collapsed_groups_frac"), window(rows, "adv/zero_var_groups_frac")
	if collapsed == nil {
		return ""
	}
	c, z := average(collapsed), 0.0
	if flat != nil {
		z = average(flat)
	}
	if z > 0.9 || (c-z)/(1-z) <= 0.5 {
		return ""
	}
	return fmt.Sprintf(
		"critic/collapsed_groups_frac %.3g, adv/zero_var_groups_frac %.3g over the last %d steps",
		c, z, signWindow)
}

// still returns the KL of a step's update and from the start, if both are near zero, else "".
func still(rows []Row) string {
	rows = playedSteps(rows)
	moved, from := meanAbs(rows, "actor/ppo_kl"), meanAbs(rows, "actor/kl_loss")
	if !(moved < 1e-6) || from >= 1e-6 {
		return ""
	}
	// Where a batch is used in one update, ppo_kl is taken before it and is always 0.
	if math.IsNaN(from) && each(rows, "actor/ratio_max",
		func(x float64) bool { return x != 1 }) == "" {
		return ""
	}
	seen := fmt.Sprintf("|actor/ppo_kl| %.2g over the last %d steps", moved, signWindow)
	if !math.IsNaN(from) {
		seen += fmt.Sprintf(", |actor/kl_loss| %.2g", from)
	}
	return seen
}

// runawayKL returns the KL from the start, if it is large, else "".
func runawayKL(rows []Row) string {
	for _, name := range []string{"actor/kl_loss", "reward/kl_mean"} {
		xs := series(rows, name)
		if len(xs) < someSteps {
			continue
		}
		if now := average(last(xs, someSteps)); now > 0.4 {
			return fmt.Sprintf("%s %.3g over the last %d steps", name, now, someSteps)
		}
	}
	return ""
}

// dominantKL returns the KL term's share of the loss, if it is most of it, else "".
func dominantKL(rows []Row) string {
	share := mean(rows, "actor/kl_share", signWindow, func(x float64) bool { return x > 0.8 })
	if share == "" || len(series(rows, "actor/kl_pull")) == 0 {
		return share
	}
	pull := mean(rows, "actor/kl_pull", fewSteps, func(x float64) bool { return x > 0.2 })
	if pull == "" {
		return ""
	}
	return share + ", " + pull
}

// collapsedEntropy returns the entropy now and at first, if it has collapsed, else "".
func collapsedEntropy(rows []Row) string {
	const name = "actor/entropy"
	xs := series(playedSteps(rows), name)
	if len(xs) < signWindow {
		return ""
	}
	was, now := average(xs[:signWindow]), average(last(xs, signWindow))
	if now < 0.005 || len(xs) >= 2*signWindow && now < was/10 {
		return fmt.Sprintf("%s %.3g over the last %d steps, %.3g over the first", name, now,
			signWindow, was)
	}
	return ""
}

// vanishingAdvantage returns figures of advantages near zero, unless most answers are right; else
// "".
func vanishingAdvantage(rows []Row) string {
	if xs := series(rows, "reward/check_mean"); len(xs) > 0 && average(last(xs, signWindow)) > 0.9 {
		return ""
	}
	if s := each(rows, "adv/std", func(x float64) bool { return x < 0.05 }); s != "" {
		return s
	}
	xs := last(series(rows, "adv/zero_var_groups_frac"), fewSteps)
	if len(xs) < fewSteps || average(xs) <= 0.9 {
		return ""
	}
	return fmt.Sprintf("adv/zero_var_groups_frac %.3g over the last %d steps", average(xs), len(xs))
}

// jump returns a figure of three steps and of the three before, anywhere in the window, if it is
// suddenly much worse, else "".
func jump(rows []Row) string {
	for _, m := range []struct {
		name string
		bad  float64 // the direction that is bad
	}{{"rollout/repeat_frac", 1}, {"rollout/truncated_frac", 1}, {"reward/check_mean", -1}} {
		xs := series(rows, m.name)
		for i := max(3, len(xs)-signWindow); i+3 <= len(xs); i++ {
			was, now := average(xs[i-3:i]), average(xs[i:i+3])
			if change := m.bad * (now - was); change > 0.3*scale(was) &&
				change > 2.5*noise(xs[:i]) {
				return fmt.Sprintf("%s from %.2f to %.2f within the last %d steps", m.name, was,
					now, signWindow)
			}
		}
	}
	return ""
}

// alike returns the shares of different answers of student and teacher, if the student's is much
// lower, else "".
func alike(rows []Row) string {
	const name = "rollout/unique_frac"
	xs, teacher := series(rows, name), series(rows, "teacher/unique_frac")
	if len(xs) < fewSteps || len(teacher) < fewSteps {
		return ""
	}
	if now, theirs :=
		average(last(xs, fewSteps)), average(last(teacher, fewSteps)); now < theirs/2 {
		return fmt.Sprintf("%s %.3g over the last %d steps, the teacher's %.3g", name, now,
			fewSteps, theirs)
	}
	return ""
}

// gamedLength returns the lengths of answers now, at first and of the teacher, if they have grown
// beyond both, else "".
func gamedLength(rows []Row) string {
	const name = "rollout/len_mean"
	xs, teacher := series(rows, name), series(rows, "teacher/len_mean")
	if len(xs) < 2*someSteps || len(teacher) == 0 {
		return ""
	}
	was, now, theirs :=
		average(xs[:someSteps]), average(last(xs, someSteps)), average(last(teacher, someSteps))
	if now > 1.5*was && now > 1.5*theirs {
		return fmt.Sprintf(
			"%s %.3g over the last %d steps, %.3g over the first, the teacher's %.3g", name, now,
			someSteps, was, theirs)
	}
	return ""
}

// signsMarkdown returns a table of every sign.
func signsMarkdown() string {
	var b strings.Builder
	b.WriteString("\n## Signs of a sick run\n\nWhat `gad doctor` and the board look for, and what a run warns of as it goes: in each of its first 20 steps, later in one of 20, and at its end. Each rule is held against runs that were really made, healthy and sick ones (testdata/runs).\n\n| sign | rule | look first at |\n|---|---|---|\n")
	for _, s := range signs {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.Name, s.Doc, s.Advice)
	}
	return b.String()
}
