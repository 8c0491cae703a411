package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Figure is a figure of an evaluation (gad eval).
type Figure struct {
	Key      string // in JSON, and in the tables of gad study
	Name     string // in the table of gad eval
	Better   int    // 1: more is better, -1: less is better, 0: no direction is better
	Doc      string // its meaning and how it is computed
	Interval string // the method of its 95 % interval
}

// figures is the only declaration of the figures of an evaluation of single answers, in the order
// in which people read them.
var figures = []Figure{
	{"check", "checker's score", 1, "mean score of your `--checker` program, by [its protocol](the-game.md#judges-that-do-not-play), and the share of each label", "bootstrap; scores of 0 and 1 only, and labels: Wilson"},
	{"rouge_l", "ROUGE-L", 1, "overlap of words with the teacher's answer, 0 to 1", "bootstrap"},
	{"teacher_nll", "teacher NLL, nats per token", -1,
		"-log p of the teacher's answers, mean over tokens, at temperature 1", "bootstrap"},
	{"reverse_kl", "reverse KL, nats per token", -1, "KL(student || model of `--against`): at each token of the student's answers, exact over the vocabulary; mean over tokens", "bootstrap"},
	{"reverse_kl_sampled", "reverse KL, sampled", -1, "the same, estimated from the tokens of the student's answers alone: mean of log student - log model of `--against`", "bootstrap"},
	{"forward_kl", "forward KL, nats per token", -1, "KL(model of `--against` || student): at each token of the teacher's answers, exact over the vocabulary; mean over tokens", "bootstrap"},
	{"forward_kl_sampled", "forward KL, sampled", -1, "the same, estimated from the tokens of the teacher's answers alone: mean of log model of `--against` - log student", "bootstrap"},
	{"fluency", "fluency, log p per token", 0, "log p of the student's answers under the model of `--against`, mean over tokens. Text that repeats itself is probable too: read it beside repeated 4-grams", "bootstrap"},
	{"len_ratio", "length ratio", 0,
		"tokens of all the student's answers / tokens of all the teacher's", "bootstrap"},
	{"distinct_1", "distinct-1", 0, "share of different words among all words of the answers",
		"jackknife"},
	{"distinct_2", "distinct-2", 0, "share of different pairs of words among all pairs",
		"jackknife"},
	{"truncated_frac", "truncated", -1,
		"share of answers without an end within `--max-response-length`", "Wilson"},
	{"repeat_frac", "repeated 4-grams", -1,
		"share of tokens in a run of 4 that the same answer had before", "bootstrap"},
	{"fidelity", "fidelity", 1, "rank correlation, within a prompt, of the score of the run's own discriminator with log p_T - log p_S, of `gad fidelity`, in a study with `eval.fidelity`", "bootstrap"},
	{"fidelity_pairs", "pairs in the truth's order", 1,
		"share of pairs of answers to one prompt that this score puts in the truth's order",
		"bootstrap"},
	{"fidelity_fluency", "fidelity of fluency", 0,
		"the rank correlation of the mean log p_S of an answer with the same truth", "bootstrap"},
	{"fresh_d_acc", "fresh discriminator", -1, "held-out accuracy of new discriminators; 0.5: they cannot tell student from teacher; see [the fresh discriminator](#the-fresh-discriminator)", "bootstrap over seeds and prompts"},
}

// episodeFigures are the figures of episodes (gad eval --env), likewise.
var episodeFigures = []Figure{
	{"success", "success", 1, "share of episodes with a reward of `--success` or more",
		"bootstrap"},
	{"reward", "reward", 1, "mean of an episode's rewards, added up", "bootstrap"},
	{"turns", "turns", 0, "turns of the student in an episode", "bootstrap"},
	{"tokens", "tokens", 0, "tokens of the student in an episode", "bootstrap"},
	{"invalid_frac", "invalid turns", -1,
		"share of turns that the environment called invalid", "bootstrap"},
	{"cut_frac", "cut episodes", -1,
		"share of episodes that a limit of turns or tokens ended", "bootstrap"},
	{"faults", "broken episodes", -1,
		"episodes that the environment broke; they count nothing", "none"},
}

// FigureOf returns the figure of a key and its index among all; -1 for an unknown key.
func FigureOf(key string) (Figure, int) {
	all := slices.Concat(figures, episodeFigures)
	i := slices.IndexFunc(all, func(f Figure) bool { return f.Key == key })
	if i < 0 {
		return Figure{Key: key}, i
	}
	return all[i], i
}

// link matches a link of Markdown.
var link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// Text returns Doc without links.
func (f Figure) Text() string { return link.ReplaceAllString(f.Doc, "$1") }

// FiguresMarkdown returns a table with a description of every figure of an evaluation.
func FiguresMarkdown() string {
	var b strings.Builder
	b.WriteString("| figure | in JSON | meaning | better | interval |\n|---|---|---|---|---|\n")
	for _, f := range figures {
		better := map[int]string{1: "more", -1: "less"}[f.Better]
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", f.Name, f.Key, strings.ReplaceAll(f.Doc, "|", `\|`), better, f.Interval)
	}
	return b.String()
}
