package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"gad/apps/session"
	"gad/checkpoint"
	"gad/internal/endpoint"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/report"
)

// Run is gad data collect: a Collection and its messages to the user.
type Run struct {
	Options
	Prompts session.Rows
	Client  *endpoint.Client
	Limits  endpoint.Options // rate limits of the client, for the estimate of time
	DryRun  bool
	Batch   bool          // use the batch API
	Poll    time.Duration // between two requests of a batch's state
}

// Collect requests the missing answers and writes the output.
func (r Run) Collect(s *session.Session) (err error) {
	defer s.Console.Close()
	lock, err := session.Output{Command: r.Prompts.Command, Path: r.Output,
		Journal: JournalPath(r.Output)}.Claim(s.FS)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	set, err := r.Prompts.Open(s)
	if err != nil {
		return err
	}
	defer set.Close()
	if set.Len() == 0 {
		return fmt.Errorf("data: %s: no rows: there is nothing to ask", r.Prompts.Paths[0])
	}
	r.FS, r.Set, r.Rows, r.Stages, r.Say = s.FS, set, set.Len(), s.Console.Busy, s.Console.Print
	if r.Prompts.Limit > 0 {
		r.Rows = min(r.Prompts.Limit, r.Rows)
	}
	job, err := Open(r.Options)
	if errors.Is(err, ErrSettings) {
		return fault.As(fault.ErrUsage, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, job.Close()) }()
	return r.collectAnswers(s, job)
}

// collectAnswers requests the missing answers of an open collection and writes the output.
func (r Run) collectAnswers(s *session.Session, job *Collection) error {
	missing, rows := job.CountMissing()
	journal := JournalPath(r.Output)
	noun := "answer"
	if r.Env != nil {
		noun = "episode"
	}
	say := s.Console.Print
	if r.DryRun {
		say = func(text string) { fmt.Fprintln(s.Out, text) }
	}
	wanted, blank := job.TotalAnswers(), job.BlankRows()
	if wanted == 0 {
		return fmt.Errorf("data: %s: no row has a prompt (no user turn, or a blank one): name the column of the prompts with --content-key", r.Prompts.Paths[0])
	}
	if blank != "" {
		say(blank)
	}
	if have := wanted - missing; have > 0 {
		say(fmt.Sprintf("%s: %ss that are there already: %d of %d", journal, noun, have, wanted))
	}
	if n := job.OpenBatches(); n > 0 && !r.Batch && !r.DryRun {
		return fault.Usagef("data collect: %s: batches under way: %d: give --batch, which waits for their answers, as they are paid for", journal, n)
	}
	state := func() string {
		missing, _ := job.CountMissing()
		return fmt.Sprintf("%d of %d %ss are in %s: run the same command to resume",
			wanted-missing, wanted, noun, journal)
	}
	stopping := "stopping: answers under way are waited for, as they are paid for; a second Ctrl-C stops at once"
	if r.Batch {
		stopping = "stopping: batches stay at the endpoint, and the same command finds them"
	}
	ctx, stop := s.Stoppable(func() string { return stopping }, state)
	defer stop()
	var pool *env.Pool
	if r.Env != nil && missing > 0 && !r.DryRun { // an environment that fails to start costs nothing
		var err error
		if pool, err = env.Open(ctx, env.Options{Command: r.Settings.Env, Workers: r.Env.Workers,
			Timeout: r.Env.Timeout}); err != nil {
			if ctx.Err() != nil {
				return r.interruptError(s, state(), err)
			}
			return fault.As(fault.ErrUsage, err)
		}
		defer pool.Close()
	}
	estimate := job.Estimate(r.Batch)
	if missing > 0 {
		if suspect, _ := r.Set.Overlooked(); suspect != "" {
			say(suspect)
		}
		say(fmt.Sprintf("%s: %s to %s; %v%s", r.Model, report.Count(missing, noun),
			report.Count(rows, "row"), estimate, r.leastTime(estimate)))
	}
	if r.DryRun {
		return nil
	}
	if err := job.CheckCost(estimate); err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	var err error
	switch {
	case r.Batch:
		err = job.AskBatch(ctx, r.Client, r.Poll)
	case pool != nil:
		err = job.AskEpisodes(ctx, r.Client, pool)
	case r.Env == nil:
		err = job.Ask(ctx, r.Client)
	}
	s.Console.Close()
	var failures endpoint.Failures
	faults, tooMany := job.Faults()
	if len(faults) > 0 {
		sayFaults(s.Err, faults)
	}
	switch {
	case errors.Is(err, ErrFaults), err == nil && tooMany && !r.Partial:
		return fault.As(fault.ErrRunning, fmt.Errorf("data collect: %s: %d of %d episodes (%d played) are faults of the environment, and a share of %g may be: see doc/environments.md; the same command plays them again%s", r.Output, len(faults), wanted, job.countEnded(), maxFaults, partialHint(err)))
	case errors.Is(err, ErrPrompt):
		return fault.As(fault.ErrUsage, err)
	case errors.As(err, &failures):
		sayFailures(s.Err, failures)
	case errors.Is(err, context.Canceled):
		return r.interruptError(s, state(), err)
	case endpoint.Fatal(err) && strings.HasSuffix(err.Error(), "the endpoint wants a key"):
		return fault.As(fault.ErrRunning,
			fmt.Errorf(
				"%w: name its environment variable with --key-env, or its file with --key-file",
				err))
	case r.Batch && endpoint.Fatal(err) && strings.Contains(err.Error(), ": status 404"):
		return fault.As(fault.ErrRunning,
			fmt.Errorf("%w, or leave out --batch, which not every endpoint has", err))
	case err != nil:
		return fault.As(fault.ErrRunning, checkpoint.ExplainFull(s.FS, r.Output, 0, err))
	}
	if missing, rows = job.CountMissing(); missing > len(faults) && !r.Partial {
		return fault.As(fault.ErrRunning, fmt.Errorf("data collect: %s: %d of %s have no answer: the same command asks again, --partial writes the others", r.Output, rows, report.Count(r.Rows, "row")))
	}
	written, err := job.Write()
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	fmt.Fprintf(s.Out, "%s: %s to %s\n", r.Output, report.Count(written, noun),
		report.Count(r.Rows, "prompt"))
	if r.Env != nil {
		fmt.Fprintln(s.Out, job.EpisodeSummary())
		if n := job.CountDiscarded(); n > 0 {
			fmt.Fprintf(s.Out, "left out by --keep %q: %s, which stay in %s\n", r.Env.Keep.text,
				report.Count(n, noun), journal)
		}
		if n := len(faults); n > 0 {
			fmt.Fprintf(s.Out, "left out as faults of the environment: %s of %d\n",
				report.Count(n, noun), wanted)
		}
	}
	if marked := job.MarkedAnswers(); marked != "" {
		fmt.Fprintln(s.Out, marked)
	}
	if soft := job.SoftSummary(); soft != "" {
		fmt.Fprintln(s.Out, soft)
	}
	for _, line := range job.EqualAnswers() {
		fmt.Fprintln(s.Out, line)
	}
	empty, err := job.EmptyRows()
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	if empty != "" {
		fmt.Fprintf(s.Out, "%s: remove %s and give --retry-empty to ask them again\n", empty,
			r.Output)
	}
	if missing > len(faults) {
		fmt.Fprintf(s.Out, "%d of %s have no answer: remove %s, and the same command asks again\n",
			rows, report.Count(r.Rows, "row"), r.Output)
	}
	fmt.Fprintln(s.Out, job.CostSummary())
	if left := r.Set.Unread(); len(left) > 0 {
		fmt.Fprintf(s.Out, "columns left out: %s\n", strings.Join(left, ", "))
	}
	return nil
}

// interruptError prints the state of an interrupted collection and returns err as an interruption.
func (r Run) interruptError(s *session.Session, state string, err error) error {
	fmt.Fprintf(s.Err, "gad: data collect: interrupted: %s\n", state)
	return fault.As(fault.ErrInterrupted, err)
}

// leastTime returns, for a message, the least time of the estimate by the rate limits given; "" if
// it is under a minute.
func (r Run) leastTime(e Estimate) string {
	by, minutes := "", 1.0
	for _, limit := range []struct {
		flag   string
		most   float64 // per minute; 0: not given
		amount float64
	}{
		{"rpm", r.Limits.RequestsPerMinute, float64(e.Requests)},
		{"tpm", r.Limits.TokensPerMinute, e.PromptTokens + e.AnswerTokens},
		{"input-tpm", r.Limits.InputTokensPerMinute, e.PromptTokens},
		{"output-tpm", r.Limits.OutputTokensPerMinute, e.AnswerTokens},
	} {
		if limit.most > 0 && limit.amount/limit.most >= minutes {
			by, minutes = limit.flag, limit.amount/limit.most
		}
	}
	switch {
	case by == "" || r.Batch: // batches have other limits
		return ""
	case minutes < 120:
		return fmt.Sprintf("; about %.0f min by --%s", minutes, by)
	}
	return fmt.Sprintf("; about %.1f h by --%s", minutes/60, by)
}

// partialHint returns the advice to write the other episodes, where that is possible.
func partialHint(err error) string {
	if err != nil {
		return ""
	}
	return ", --partial writes the others"
}

// sayFaults writes the first faults of an environment.
func sayFaults(w io.Writer, faults []error) {
	for k, err := range faults {
		if k == maxFailures {
			fmt.Fprintf(w, "gad: ... and %d more\n", len(faults)-k)
			return
		}
		fmt.Fprintf(w, "gad: %v\n", err)
	}
}

// maxFailures is the largest number of failures in a list.
const maxFailures = 20

// sayFailures writes the first failed rows.
func sayFailures(w io.Writer, failures endpoint.Failures) {
	for k, f := range failures {
		if k == maxFailures {
			fmt.Fprintf(w, "gad: ... and %d more\n", len(failures)-k)
			return
		}
		fmt.Fprintf(w, "gad: row %d: %v (%s)\n", f.Index, f.Err, tries(f.Tries))
	}
}

// tries returns a number of tries as text.
func tries(n int) string {
	if n == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", n)
}
