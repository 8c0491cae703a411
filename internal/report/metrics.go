package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Metric declares one number of a step.
type Metric struct {
	Name   string // "group/name", the key in metrics.jsonl and the tag in TensorBoard
	Unit   string // "" = a plain number
	Doc    string // its meaning and how it is computed
	Format string // fmt verb for people; files hold the full float64
}

// ErrUndeclared is wrapped by the error for a metric that is not in the table: a programmer's
// error.
var ErrUndeclared = errors.New("not declared: add it to the table in internal/report/metrics.go")

// table is the only declaration of the metrics, in the order in which people read them. "Response
// token" means a token under the response mask: up to and including the first end token.
var table = []Metric{
	{"train/epoch", "epochs", "passes over the data so far: 1.5 is the middle of the second pass",
		"%.2f"},
	{"train/prompts", "prompts", "number of prompts in the step, after dynamic sampling", "%.0f"},

	{"critic/d_loss", "nats", "discriminator loss, mean softplus(D(student) - D(teacher)) over the pairs of this step's update, with critic.score_l2 its penalty too; guessing is ln 2 = 0.693; pairs of equal texts count as ln 2; with critic.loss=bce it is softplus(-D(teacher)) + softplus(D(student)), and guessing 2 ln 2", "%.3g"},
	{"critic/d_acc", "share", "share of the pairs of this step's update with D(teacher) > D(student), strictly; a pair of equal texts counts as wrong, so guessing is 0.5 only if critic/tie_frac is 0", "%.2f"},
	{"critic/d_acc_fresh", "share", "share of the pairs of this step's new samples with D(teacher) > D(student), before the discriminator learns from them; the fair figure; a pair of equal texts counts as wrong", "%.2f"},
	{"critic/d_acc_distinct", "share",
		"d_acc_fresh over the pairs whose texts differ; guessing is 0.5", "%.2f"},
	{"critic/d_loss_distinct", "nats", "mean softplus(D(student) - D(teacher)) over the pairs whose texts differ, before the discriminator learns from them; guessing is ln 2 = 0.693", "%.3g"},
	{"critic/tie_frac", "share", "share of pairs whose two texts are equal; they always have equal scores and are left out of the update", "%.2f"},
	{"critic/student_value_mean", "", "mean score of the student's responses", "%.3g"},
	{"critic/teacher_value_mean", "", "mean score of the teacher's responses", "%.3g"},
	{"critic/score_gap", "", "teacher_value_mean - student_value_mean", "%.3g"},
	{"critic/pairs", "pairs", "pairs of a student's and a teacher's response in the step, including equal ones, without truncated ones", "%.0f"},
	{"critic/pairs_frac", "share", "critic/pairs as a share of all answers of the step: the others were left out, since they or the teacher's answer were cut at the limit", "%.2f"},
	{"critic/group_std", "", "standard deviation of the scores of one prompt's answers, before the update; mean over prompts", "%.3g"},
	{"critic/group_rel_std", "", "standard deviation of the scores of one prompt's answers, divided by the distance between D(teacher) and the prompt's mean D(student); mean over prompts", "%.3g"},
	{"critic/collapsed_groups_frac", "share", "share of prompts where group_rel_std is below 0.15: the discriminator hardly ranks their answers", "%.2f"},
	{"critic/top_gap", "share", "(best - second best) / (best - worst) of the scores of one prompt's answers; mean over prompts", "%.2f"},
	{"critic/group_term", "",
		"GRGC's group term in the discriminator's loss, before its weight critic.group_ot", "%.3g"},
	{"critic/pool_frac", "share",
		"share of the update's pairs that come from the pool of past negatives (critic.replay)",
		"%.2f"},
	{"critic/updates", "updates", "optimizer steps of the discriminator in this step", "%.0f"},
	{"critic/skipped_updates", "updates", "discriminator updates of this step that were skipped because a gradient or a loss was not finite", "%.0f"},
	{"critic/grad_norm", "", "global L2 norm of the discriminator's gradient before clipping",
		"%.3g"},
	{"critic/lr", "", "learning rate of the discriminator", "%.2e"},
	{"critic/warmup_learned", "", "1 if the discriminator had learned when its time alone ended (trainer.critic_warmup_until), 0 if trainer.critic_warmup_max ended it; in the last step of that time", "%.0f"},

	{"reward/mean", "", "mean reward of the responses: score with shaping and KL term, from which advantages are computed", "%.3g"},
	{"reward/check_mean", "", "mean score that the checker (trainer.checker) gives the responses",
		"%.3g"},
	{"reward/unchecked_frac", "share", "share of the responses that the checker gives no score: they take the mean of their prompt's others, which moves nothing", "%.2f"},
	{"reward/env_mean", "", "mean over the episodes of the sum of the environment's rewards, penalties of invalid turns included", "%.3g"},
	{"reward/term_d", "", "mean of the term d of algorithm.terms, before weight and z: the discriminator's score. These means are over the answers that a term counts for", "%.3g"},
	{"reward/term_check", "", "mean of the term check: the checker's score", "%.3g"},
	{"reward/term_env", "", "mean of the term env: the sum of an episode's rewards", "%.3g"},
	{"reward/term_rouge_l", "", "mean of the term rouge_l: ROUGE-L of the answer and the teacher's",
		"%.3g"},
	{"reward/term_teacher_logp", "nats", "mean of the term teacher_logp: mean log-probability of the tokens of the teacher's answer behind the student's own thought; 0 where the teacher's has no thought", "%.3g"},
	{"reward/term_length", "", "mean of the term length: log(1+tokens)", "%.3g"},
	{"reward/wrong_frac", "share", "share of answers whose checker's score is below algorithm.right_at, where a term counts for those alone", "%.2f"},
	{"reward/kl_coef", "",
		"coefficient of the KL term in the reward (it changes if algorithm.kl_ctrl is adaptive)",
		"%.2e"},
	{"reward/kl_mean", "nats", "mean KL estimate per token in the reward, before the coefficient",
		"%.2g"},

	{"adv/mean", "", "mean advantage over the responses, of each its first token's", "%.3g"},
	{"adv/std", "", "standard deviation of these advantages; if it is near 0 nothing is learned", "%.3g"},
	{"adv/max", "", "largest absolute advantage of a token", "%.3g"},
	{"adv/teacher_share", "share", "with algorithm.teacher_weight w: the teacher's part of the tokens' advantages, by the mean absolute values of w * (its log-probability minus the student's) and of the advantage of the reward. The other adv/ metrics are of the latter alone", "%.2f"},
	{"adv/zero_var_groups_frac", "share",
		"share of prompts whose responses all have the same reward", "%.2f"},

	{"actor/pg_loss", "", "policy loss without the KL term", "%.3g"},
	{"actor/pg_clipfrac", "share", "share of response tokens that the clip stops; 0.1 to 0.3 is healthy if a batch is used in several updates, and it is 0 if it is used in one", "%.2f"},
	{"actor/seq_clipfrac", "share", "share of responses with a clipped token", "%.2f"},
	{"actor/ratio_min", "",
		"smallest sequence ratio, exp(mean of new - old log-probability), in the step", "%.4f"},
	{"actor/ratio_max", "", "largest sequence ratio in the step", "%.4f"},
	{"actor/first_ratio_min", "", "smallest sequence ratio before the step's first update; exactly 1 if sampler and trainer agree", "%.4f"},
	{"actor/first_ratio_max", "", "largest sequence ratio before the step's first update", "%.4f"},
	{"actor/skipped_updates", "updates",
		"policy updates of this step that were skipped because a gradient or a loss was not finite",
		"%.0f"},
	{"actor/ppo_kl", "nats", "mean of old - new log-probability over response tokens: how far this step's updates moved the policy", "%.2g"},
	{"actor/kl_loss", "nats",
		"KL estimate to the frozen reference, aggregated like the loss, before its coefficient",
		"%.2g"},
	{"actor/kl_share", "share", "share of the KL term in the loss, by absolute value; above 0.8 the KL term outweighs the reward", "%.2f"},
	{"actor/kl_pull", "", "actor.kl_loss_coef * sqrt(2 * actor/kl_loss) / (mean absolute advantage): how strongly the KL term holds a token back, compared with how strongly the rewards push it; unlike actor/kl_share it does not depend on actor/pg_loss, which is near 0 where a batch is used in one update", "%.2g"},
	{"actor/entropy", "nats", "mean entropy of the next-token distribution over response tokens",
		"%.3g"},
	{"actor/grad_norm", "", "global L2 norm of the actor's gradient before clipping", "%.3g"},
	{"actor/lr", "", "learning rate of the actor", "%.2e"},
	{"actor/sft_loss", "nats", "cross entropy on the teacher's tokens, mean per token; where they have soft labels, with those (doc/soft-labels.md)", "%.3g"},

	{"soft/kl", "nats", "KL(teacher, student) at the tokens that have soft labels (column teacher_logprobs), over the tokens of the label and all others as one event; mean per token, before the update", "%.3g"},
	{"soft/token_frac", "share", "share of the teacher's tokens that have a soft label; the others are learned by the token itself", "%.2f"},
	{"soft/unread_frac", "share", "share of the step's rows whose log-probabilities are not read, since their bytes do not write the answer, or the student's tokens do not: they are learned as rows without any", "%.2f"},
	{"soft/teacher_mass", "share", "the teacher's probability of a soft label's tokens together, mean per label; the rest is the tail", "%.3f"},
	{"soft/student_mass", "share", "the student's probability of a soft label's tokens together, mean per label", "%.3f"},

	{"ranking/loss", "nats", "loss of gad sft --objective ranking before the update: cross entropy of the student's distribution over a row's answers against that of their scores, mean over the rows; at least the entropy of the latter", "%.3g"},
	{"ranking/agree", "share", "share of the rows whose likeliest answer, by the whole sequence, has the highest score of the row, before the update", "%.2f"},
	{"ranking/tau", "", "temperature of the scores: from 1 to 0.1 over the run", "%.2f"},

	{"opd/reverse_kl", "nats", "mean of the student's log-probability minus the teacher's over the student's tokens that are compared (gad opd, algorithm.teacher_weight): an estimate of KL(student, teacher) a token, which is what is learned away", "%.3g"},
	{"opd/divergence", "nats", "divergence from the teacher at a token of the student's answers, exact over the vocabulary (teacher.loss=exact, teacher.beta) or by the teacher's most probable tokens and a tail (teacher.loss=topk), before the update", "%.3g"},
	{"opd/topk_overlap", "share", "share of the teacher's teacher.top_k most probable tokens that are among as many of the student's, mean over the tokens of its answers (teacher.loss=topk)", "%.2f"},
	{"opd/teacher_mass", "share", "the teacher's probability of these tokens together; the rest is the tail", "%.3f"},
	{"opd/student_mass", "share", "the student's probability of the same tokens", "%.3f"},
	{"opd/teacher_nll", "nats", "mean of minus the teacher's log-probability over the same tokens; the rest of opd/reverse_kl is the student's entropy", "%.3g"},
	{"opd/horizon", "tokens", "largest number of tokens of an answer that the step samples and learns (teacher.horizon)", "%.0f"},
	{"opd/horizon_frac", "share", "share of the answers that end there, which is no fault; rollout/truncated_frac and rollout/len_ratio are absent while the horizon is below data.max_response_length", "%.2f"},
	{"opd/notes_frac", "share",
		"share of the answers, but those of coach.plain, that the teacher reads with notes of the coach; the others have none, or such as it may not read", "%.2f"},
	{"opd/notes_tokens", "tokens",
		"mean number of tokens by which notes lengthen the teacher's prompt", "%.1f"},
	{"opd/unspelled_frac", "share", "with a teacher of another tokenizer: share of the answers whose text its tokens do not spell byte by byte (it normalises it, say), and which are not compared", "%.2f"},
	{"opd/ends_compared", "share",
		"share of the answers' ends that the teacher also ends with; the others have the mean advantage",
		"%.2f"},

	{"dpo/loss", "nats", "preference loss of gad dpo (dpo.loss_type), mean over the pairs before the update; the sigmoid loss begins at ln 2 = 0.693", "%.3g"},
	{"dpo/acc", "share", "share of pairs in which the teacher's answer has the larger reward, beta*(log-probability - reference's), strictly; 0 in the first step, where all rewards are 0", "%.2f"},
	{"dpo/margin", "", "mean of the teacher's reward minus the sample's", "%.3g"},
	{"dpo/chosen_reward", "",
		"mean reward of the teacher's answers; below 0 they are less probable than at the start",
		"%.3g"},
	{"dpo/rejected_reward", "", "mean reward of the starting student's samples", "%.3g"},
	{"dpo/pairs", "pairs", "number of pairs in the step, without ties and truncated answers",
		"%.0f"},
	{"dpo/tie_frac", "share",
		"share of prompts whose sample equals the teacher's text; they are left out", "%.2f"},

	{"rollout/len_mean", "tokens", "mean length of the student's responses, end token included",
		"%.0f"},
	{"rollout/len_max", "tokens", "longest response", "%.0f"},
	{"rollout/len_ratio", "", "len_mean divided by teacher/len_mean", "%.2f"},
	{"rollout/truncated_frac", "share",
		"share of responses that reached the length limit without an end token", "%.2f"},
	{"rollout/repeat_frac", "share",
		"share of response tokens inside a 4-gram that occurs earlier in the same response",
		"%.2f"},
	{"rollout/unique_frac", "share", "share of different texts among the answers of different prompts: the first answers of all prompts are compared with each other, then the second ones, and so on, and the shares are averaged. Near 1 every prompt has an answer of its own; compare teacher/unique_frac", "%.2f"},
	{"rollout/logp_diff_max", "nats", "largest difference between the sampler's and the trainer's log-probability of a sampled token, in the steps that measure it: the first three, every 50th, and those whose old log-probabilities are recomputed (actor.old_log_prob); exactly 0 on the CPU", "%.2g"},
	{"rollout/chunks_mean", "chunks", "mean number of chunks of a thought (rollout.chunk)", "%.1f"},
	{"rollout/tokens_per_s", "tokens/s", "sampled tokens divided by the time of the rollout",
		"%.0f"},

	{"tree/branches", "branches", "branches of a tree, mean over the step's trees; below rollout.tree.rounds x expand where trees have fewer places that may branch", "%.2f"},
	{"tree/depth", "branch points", "branch points on the way from the prompt to the end of an answer, mean over the answers; 0 for those that a tree began with", "%.2f"},
	{"tree/shared_frac", "share", "share of the answers' tokens that they have from an earlier answer of their tree: they are computed again as context, and neither sampled nor learned twice", "%.2f"},

	{"episode/turns_mean", "turns", "mean number of turns of an episode", "%.1f"},
	{"episode/invalid_frac", "share", "share of turns that the environment called invalid", "%.2f"},
	{"episode/context_mean", "tokens", "mean context of a turn", "%.0f"},
	{"env/fault_frac", "share", "share of episodes that the environment broke: they are learned by nobody and in no statistic", "%.2f"},

	{"teacher/len_mean", "tokens", "mean length of the teacher's responses, end token included",
		"%.0f"},
	{"teacher/truncated_frac", "share", "share of teacher's responses cut at the length limit",
		"%.2f"},
	{"teacher/unique_frac", "share", "share of different texts among the teacher's responses",
		"%.2f"},

	{"start/rouge_l", "", "val/rouge_l of the student before the run's first step (trainer.val_before_train); in step 1", "%.3f"},
	{"start/teacher_nll", "nats", "val/teacher_nll before the first step", "%.3g"},
	{"start/len_ratio", "", "val/len_ratio before the first step", "%.2f"},
	{"start/check", "", "val/check before the first step", "%.3f"},
	{"start/unchecked_frac", "share", "val/unchecked_frac before the first step", "%.2f"},
	{"start/env_reward", "", "val/env_reward before the first step", "%.3f"},
	{"start/held_out_d", "share", "val/held_out_d before the first step", "%.2f"},

	{"val/rouge_l", "",
		"mean ROUGE-L F1 of the student's answers against the teacher's, on held-out rows", "%.3f"},
	{"val/teacher_nll", "nats",
		"mean negative log-probability per token that the student gives the teacher's answers",
		"%.3g"},
	{"val/len_ratio", "", "tokens of the student's answers divided by tokens of the teacher's",
		"%.2f"},
	{"val/check", "",
		"mean score that the checker (trainer.checker) gives the student's greedy answers", "%.3f"},
	{"val/unchecked_frac", "share",
		"share of the student's greedy answers that the checker gives no score, left out of val/check",
		"%.2f"},
	{"val/env_reward", "", "mean reward of one greedy episode on each held-out row, penalties of invalid turns included; its world is the same at every step", "%.3f"},
	{"val/held_out_d", "share", "share of held-out rows on which the held-out discriminator (trainer.held_out_critic) scores the student's greedy answer at least as high as the teacher's; an identical answer counts one half", "%.2f"},

	{"timing_s/rollout", "s", "sampling the responses", "%.2f"},
	{"timing_s/old_logp", "s", "the trainer's log-probabilities under the sampling weights, in the steps that take this pass (actor.old_log_prob)", "%.2f"},
	{"timing_s/ref_logp", "s",
		"log-probabilities under the frozen reference, in the steps that read them", "%.2f"},
	{"timing_s/teacher_logp", "s", "the teacher's passes (gad opd, algorithm.teacher_weight): log-probabilities of the student's tokens, of a teacher that is loaded or behind a server; with teacher.loss=exact and topk of a loaded one its states and logits, which are part of timing_s/update_actor", "%.2f"},
	{"timing_s/exact_kl", "s", "the exact KL to the frozen reference, for the reward (algorithm.kl_penalty=full); that in the loss is part of timing_s/update_actor", "%.2f"},
	{"timing_s/thought_logp", "s", "log-probabilities of the teacher's answers behind the student's thoughts (teacher_logp in algorithm.terms)", "%.2f"},
	{"timing_s/score", "s", "discriminator scores of student and teacher, if they have a pass of their own (dynamic sampling); otherwise timing_s/update_critic includes them", "%.2f"},
	{"timing_s/check", "s", "the checker's scores of the responses", "%.2f"},
	{"timing_s/coach", "s", "the coach's notes on the responses (coach.command)", "%.2f"},
	{"timing_s/update_critic", "s",
		"discriminator update, and the scores that its forward pass gives", "%.2f"},
	{"timing_s/update_actor", "s", "actor update", "%.2f"},
	{"timing_s/val", "s", "validation", "%.2f"},
	{"timing_s/save", "s", "the checkpoint that was written after the previous step", "%.2f"},
	{"timing_s/ranks", "s", "rank 0's calls in which the ranks exchange numbers, waiting for the others included; part of the other times (several ranks)", "%.2f"},
	{"timing_s/step", "s", "the whole step", "%.2f"},

	{"perf/prefill_ratio", "", "context tokens that passed through the student before turns, as a share of those that no earlier turn of the episode had: 1 is none twice; below 1, episodes share their beginnings", "%.2f"},
	{"perf/env_replay_frac", "share", "share of the turns given to the environment that it had been given before, since a branch's episode began anew (answers that branch); 0 where it forks them", "%.2f"},
	{"perf/tokens_per_s", "tokens/s", "prompt and response tokens of the step divided by its time",
		"%.0f"},
	{"perf/tflops", "TFLOP/s", "floating-point operations that the step needs, divided by its time",
		"%.3g"},
	{"perf/mfu", "share", "perf/tflops divided by the speed of a large matrix product, measured at the start of the run", "%.2f"},
	{"perf/replayed_frac", "share", "share of the step's decode steps that ran as one CUDA graph, recorded in an earlier step; the others launch each kernel by itself (device cuda, steps that sample)", "%.2f"},
	{"perf/declined_products", "products", "matrix products of the step that cuBLASLt has no algorithm for, so that gad's own kernel, many times slower, computed them; should be 0 (device cuda; the first step includes what came before it)", "%.0f"},
	{"perf/sent_bytes", "bytes", "sent by rank 0 to others in the step (several ranks)", "%.3g"},
	{"perf/mem_peak_bytes", "bytes",
		"largest memory allocated by the compute backend since the start; the process takes more",
		"%.3g"},
}

var byName = func() map[string]Metric {
	m := make(map[string]Metric, len(table))
	for _, x := range table {
		if _, twice := m[x.Name]; twice {
			panic(fmt.Sprintf("report: metric %q: declared twice", x.Name))
		}
		m[x.Name] = x
	}
	return m
}()

// Metrics returns all declared metrics in the order in which people read them.
func Metrics() []Metric { return slices.Clone(table) }

// Lookup returns the declaration of a metric.
func Lookup(name string) (Metric, bool) {
	m, ok := byName[name]
	return m, ok
}

// Timing reports whether a metric depends on the machine and the moment (time, speed, memory) and
// not on the training alone: two runs that compute the same differ in these metrics only.
func Timing(name string) bool {
	return strings.HasPrefix(name, "timing_s/") || strings.HasPrefix(name, "perf/") ||
		strings.HasSuffix(name, "/tokens_per_s")
}

// Markdown returns a description of every metric, one table for each group, and of every sign of a
// sick run.
func Markdown() string {
	var b strings.Builder
	group := ""
	for _, m := range table {
		g, _, _ := strings.Cut(m.Name, "/")
		if g != group {
			if group != "" {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "## %s\n\n| metric | unit | meaning |\n|---|---|---|\n", g)
			group = g
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, m.Unit, strings.ReplaceAll(m.Doc, "|", `\|`))
	}
	return b.String() + signsMarkdown()
}
