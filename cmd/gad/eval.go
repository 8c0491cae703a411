package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"gad/data"
	"gad/trainer"
)

// checkEvalFlags refuses numbers that gad eval cannot mean.
func checkEvalFlags(c *cli.Context) error {
	if c.Int("disc-steps") < 0 || c.Int("disc-batch") < 1 || c.Int("disc-seeds") < 1 || !(c.Float64("disc-lr") >= 0) {
		return usage("eval: --disc-steps %d, --disc-batch %d, --disc-seeds %d, --disc-lr %g: must be at least 0, 1, 1 and 0",
			c.Int("disc-steps"), c.Int("disc-batch"), c.Int("disc-seeds"), c.Float64("disc-lr"))
	}
	if n := c.Int("checker-timeout"); n < 1 || n > 1e6 {
		return usage("eval: --checker-timeout %d: must be 1 to 1000000 seconds", n)
	}
	return nil
}

// checkAnswers has the program of --checker score the answers.
func checkAnswers(c *cli.Context, j *trainer.Judged, set *data.Set) error {
	if c.String("checker") == "" {
		return nil
	}
	// The program is in a process group of its own: a signal to gad must be passed on.
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := j.Check(ctx, set, c.String("checker"), time.Duration(c.Int("checker-timeout"))*time.Second, c.Uint64("seed")); err != nil {
		return marked{errRunning, err}
	}
	return nil
}

// judgeFresh trains the fresh discriminators that the flags ask for.
func judgeFresh(c *cli.Context, l *loaded, j *trainer.Judged) error {
	if c.Int("disc-steps") == 0 || len(j.Seqs) < 2 {
		return nil
	}
	from := c.String("disc-from")
	switch from {
	case "":
		from = c.String("model")
	case "random":
		from = ""
	}
	f, err := trainer.JudgeFresh(l.be, trainer.DiscOptions{From: from, Shape: l.m.Config(), Steps: c.Int("disc-steps"), Batch: c.Int("disc-batch"),
		LR: c.Float64("disc-lr"), Seed: c.Uint64("seed"), Seeds: c.Int("disc-seeds")}, j)
	if err != nil {
		return err
	}
	j.Eval.SetFresh(f)
	return nil
}

// printEvaluation is the figures for people.
func printEvaluation(w io.Writer, e trainer.Evaluation) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-30s"+format+"\n", append([]any{name}, args...)...)
	}
	between := func(ci *[2]float64) string {
		if ci == nil {
			return ""
		}
		return fmt.Sprintf("  (95 %% of resamples: %.3f to %.3f)", ci[0], ci[1])
	}
	line("rows", "%d (temperature %g)", e.Rows, e.Temperature)
	if e.Check != nil {
		line("checker's score", "%.4f%s", *e.Check, between(e.CheckCI95))
	}
	for _, label := range slices.SortedFunc(maps.Keys(e.Labels), func(a, b string) int {
		return cmp.Or(cmp.Compare(e.Labels[b], e.Labels[a]), cmp.Compare(a, b))
	}) {
		line("  "+label, "%.3f", e.Labels[label])
	}
	line("ROUGE-L", "%.4f%s", e.RougeL, between(e.RougeLCI95))
	line("teacher NLL, nats per token", "%.4f", e.TeacherNLL)
	line("length ratio", "%.3f%s", e.LenRatio, between(e.LenRatioCI95))
	line("distinct-1, distinct-2", "%.3f %.3f", e.Distinct1, e.Distinct2)
	line("truncated", "%.3f", e.TruncatedFrac)
	line("repeated 4-grams", "%.3f", e.RepeatFrac)
	switch {
	case e.FreshDTies == nil:
		return
	case e.FreshDAcc != nil:
		line("fresh discriminator accuracy", "%.3f%s (0.5 cannot tell)", *e.FreshDAcc, between(e.FreshDCI95))
	case *e.FreshDTies == 1:
		line("fresh discriminator accuracy", "no answer differs from the teacher's")
		return
	case *e.FreshDLearned:
		line("fresh discriminator accuracy", "too few answers differ from the teacher's to ask about")
	default:
		line("fresh discriminator accuracy", "not learned: no finding; give more rows, --disc-steps or another --disc-lr")
	}
	if e.FreshDControl != nil && !math.IsNaN(*e.FreshDControl) {
		line("  its control", "%.3f (one token of the teacher's replaced: what this training can tell)", *e.FreshDControl)
	}
	line("  ties", "%.3f (answers equal to the teacher's, not asked about)", *e.FreshDTies)
}
