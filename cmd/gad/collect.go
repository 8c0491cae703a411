package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/collect"
	"gad/apps/session"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/trainer"
)

// endpointFlags name an endpoint and say how hard it may be used.
func endpointFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "base-url", Usage: "endpoint that speaks OpenAI's chat completions, such as https://api.openai.com/v1"},
		&cli.StringFlag{Name: "key-env", Value: "OPENAI_API_KEY", DefaultText: "OPENAI_API_KEY, or none where --base-url is this machine", Usage: "environment variable that holds the key; empty sends none"},
		&cli.StringFlag{Name: "key-file", Usage: "file that holds the key, readable by its owner alone; instead of --key-env"},
		&cli.BoolFlag{Name: "insecure-http", Usage: "allow http:// to another machine, which sends key and prompts as plain text"},
		within(&cli.IntFlag{Name: "concurrency", Value: 16, Usage: "requests in flight, at most; fewer where the endpoint wants less"}, atLeast(1)),
		within(&cli.Float64Flag{Name: "rpm", DefaultText: "as the endpoint's headers say", Usage: "requests a minute, at most"}, positive(1e12)),
		within(&cli.Float64Flag{Name: "tpm", DefaultText: "as the endpoint's headers say", Usage: "tokens a minute, prompts and answers, at most"}, positive(1e12)),
		within(&cli.Float64Flag{Name: "input-tpm", DefaultText: "as the endpoint's headers say", Usage: "tokens of prompts a minute, at most, for endpoints that limit them apart"}, positive(1e12)),
		within(&cli.Float64Flag{Name: "output-tpm", DefaultText: "as the endpoint's headers say", Usage: "tokens of answers a minute, at most"}, positive(1e12)),
		within(&cli.DurationFlag{Name: "timeout", Value: 10 * time.Minute, Usage: "longest time of one request"}, positive(math.Inf(1))),
		within(&cli.IntFlag{Name: "retries", Value: 10, Usage: "tries of a request after the first, at most"}, atLeast(0)),
	}
}

// client opens the endpoint of endpointFlags. The key stays in the client.
func (p *program) client(c *cli.Context) (*endpoint.Client, error) {
	o := endpoint.Options{
		BaseURL: c.String("base-url"), InsecureHTTP: c.Bool("insecure-http"), Concurrency: c.Int("concurrency"),
		RequestsPerMinute: c.Float64("rpm"), TokensPerMinute: c.Float64("tpm"),
		InputTokensPerMinute: c.Float64("input-tpm"), OutputTokensPerMinute: c.Float64("output-tpm"), Timeout: c.Duration("timeout"), Retries: c.Int("retries"),
		Say: func(format string, args ...any) { p.console().Print(fmt.Sprintf(format, args...)) },
	}
	if o.Retries == 0 {
		o.Retries = -1
	}
	err := endpoint.CheckURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return nil, fault.As(fault.Usage, err)
	}
	switch file := c.String("key-file"); {
	case file != "" && c.IsSet("key-env"):
		return nil, usage("%s: --key-env and --key-file: give one of them", typed(c))
	case file != "":
		o.Key, err = endpoint.KeyFromFile(files(), file)
	case c.IsSet("key-env") && c.String("key-env") == "", !c.IsSet("key-env") && endpoint.Loopback(o.BaseURL):
	default:
		o.Key, err = endpoint.KeyFromEnv(c.String("key-env"))
	}
	if err != nil {
		return nil, fault.As(fault.Usage, err)
	}
	client, err := endpoint.New(o)
	if err != nil {
		return nil, fault.As(fault.Usage, err)
	}
	return client, nil
}

// collectCommand is gad data collect.
func (p *program) collectCommand() *cli.Command {
	cols := data.DefaultColumns()
	return &cli.Command{
		Name:  "collect",
		Usage: "ask a teacher's endpoint for its answers to the prompts of a data set. After an interruption the same command resumes",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "prompts", Usage: "prompts: file, folder or quoted pattern, in any format of gad data; answers in it are not read; may be given several times"},
			&cli.StringFlag{Name: "split", Usage: "which split, if a folder has several"},
			&cli.StringFlag{Name: "format", Value: data.FormatAuto, Usage: "format of the rows, as for gad data inspect"},
			&cli.StringFlag{Name: "content-key", Value: cols.Content, Usage: "column with the conversation or the prompt"},
			within(&cli.IntFlag{Name: "limit", Usage: "rows of --prompts to ask; 0 is all"}, atLeast(0)),
			&cli.StringFlag{Name: "output", Usage: "output file: .arrow, .arrows, .parquet or .jsonl. OUTPUT.journal beside it keeps every answer as it comes"},
			&cli.StringFlag{Name: "model", Usage: "the teacher, as the endpoint calls it"},
			&cli.StringFlag{Name: "system", Usage: "system message for rows that have none; the teacher alone sees it, it is not in the output"},
			within(&cli.Float64Flag{Name: "temperature", DefaultText: "the endpoint's", Usage: "sampling temperature"}, from(0, 100)),
			within(&cli.Float64Flag{Name: "top-p", DefaultText: "the endpoint's", Usage: "nucleus sampling"}, from(0, 1)),
			within(&cli.IntFlag{Name: "max-tokens", DefaultText: "the endpoint's", Usage: "longest answer, tokens"}, atLeast(1)),
			&cli.Int64Flag{Name: "seed", DefaultText: "none", Usage: "seed of the endpoint's sampling, where it has one"},
			&cli.StringFlag{Name: "extra", Usage: `more fields of the request, as JSON, such as {"max_completion_tokens": 2048}`},
			within(&cli.IntFlag{Name: "n", Value: 1, Usage: "answers per prompt, a row of the output each"}, oneTo(1024, "")),
			&cli.StringFlag{Name: "prices", Usage: `file with prices in USD per million tokens: {"MODEL": {"input": 2.5, "output": 10}}`},
			within(&cli.Float64Flag{Name: "max-cost", DefaultText: "no limit", Usage: "USD; with --prices: refuses to begin where the estimate is more, and stops where it has been spent"}, positive(math.MaxFloat64)),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the estimate and ask nothing"},
			&cli.BoolFlag{Name: "batch", Usage: "ask by the batch API: half the price, within a day. The command waits; after an interruption it finds its batches again"},
			within(&cli.DurationFlag{Name: "poll", Value: time.Minute, Usage: "with --batch: time between two looks at a batch"}, pollAtLeast),
			&cli.BoolFlag{Name: "partial", Usage: "write the output although answers are missing"},
			&cli.BoolFlag{Name: "retry-empty", Usage: "ask again for the rows whose answers have no text, which is paid for again"},
		}, endpointFlags()...),
		Action: p.collect,
	}
}

// pollAtLeast is the shortest time between two looks at a batch.
var pollAtLeast = limit{func(seconds float64) bool { return seconds >= 0.01 }, "must be at least 10ms"}

// collectRules are what flags of gad data collect need.
var collectRules = rules{
	{[]string{"poll"}, false, "batch", ": is for --batch: give that, or leave it out"},
	{[]string{"max-cost"}, false, "prices", ": needs --prices FILE"},
}

// checkCollectFlags refuses what gad data collect cannot mean.
func checkCollectFlags(c *cli.Context) (o collect.Options, err error) {
	if err := errors.Join(noArguments(c), need(c, "prompts")); err != nil {
		return o, err
	}
	for _, name := range []string{"output", "base-url", "model"} {
		if err := need(c, name); err != nil {
			return o, err
		}
	}
	if err := data.CheckSuffix(c.String("output")); err != nil {
		return o, fault.As(fault.Usage, err)
	}
	o.Output, o.Model, o.System, o.N, o.MaxTokens = c.String("output"), c.String("model"), c.String("system"), c.Int("n"), c.Int("max-tokens")
	if file, ok := strings.CutPrefix(o.System, "@"); ok {
		if _, err := os.Stat(file); err == nil {
			return o, usage(`data collect: --system %q: would be sent as it is: give the text, --system "$(cat %s)"`, o.System, file)
		}
	}
	number := func(name string) *float64 {
		if !c.IsSet(name) {
			return nil
		}
		x := c.Float64(name)
		return &x
	}
	o.Temperature, o.TopP = number("temperature"), number("top-p")
	if c.IsSet("seed") {
		x := c.Int64("seed")
		o.Seed = &x
	}
	if text := c.String("extra"); text != "" {
		dec := json.NewDecoder(bytes.NewReader([]byte(text)))
		if err := dec.Decode(&o.Extra); err != nil || dec.More() {
			return o, usage(`data collect: --extra: must be one JSON object, such as {"max_completion_tokens": 2048}`)
		}
		for _, name := range []string{"model", "messages", "n", "stream"} {
			if _, ok := o.Extra[name]; ok {
				return o, usage("data collect: --extra: %q cannot be set here: gad sets it", name)
			}
		}
		if _, ok := o.Extra["max_tokens"]; ok && c.IsSet("max-tokens") {
			return o, usage("data collect: --extra: \"max_tokens\" and --max-tokens: give one of them")
		}
	}
	if err := collectRules.check(c); err != nil {
		return o, err
	}
	o.Partial, o.Empty, o.MaxCost = c.Bool("partial"), c.Bool("retry-empty"), c.Float64("max-cost")
	if path := c.String("prices"); path != "" {
		price, err := endpoint.ReadPrice(files(), path, o.Model)
		if err != nil {
			return o, err
		}
		o.Price = &price
	}
	return o, nil
}

// collect is the action of gad data collect.
func (p *program) collect(c *cli.Context) (err error) {
	o, err := checkCollectFlags(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	con := p.console()
	defer con.Close()
	lock, err := session.Output{Command: typed(c), Path: o.Output, Journal: collect.JournalPath(o.Output)}.Claim(files())
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	prompts := rowsOf(c)
	prompts.Paths = c.StringSlice("prompts")
	set, err := prompts.Open(p.session())
	if err != nil {
		return err
	}
	defer set.Close()
	if set.Len() == 0 {
		return fmt.Errorf("data: %s: no rows: there is nothing to ask", c.StringSlice("prompts")[0])
	}
	o.FS, o.Set, o.Rows, o.Stages, o.Say = files(), set, set.Len(), con.Busy, con.Print
	if n := c.Int("limit"); n > 0 {
		o.Rows = min(n, o.Rows)
	}
	job, err := collect.Open(o)
	if errors.Is(err, collect.ErrSettings) {
		return fault.As(fault.Usage, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, job.Close()) }()
	return p.collectAnswers(c, con, o, job, client)
}

// collectAnswers asks for what is missing and writes the output.
func (p *program) collectAnswers(c *cli.Context, con *report.Console, o collect.Options, job *collect.Collection, client *endpoint.Client) error {
	missing, rows := job.Missing()
	journal := collect.JournalPath(o.Output)
	say := con.Print
	if c.Bool("dry-run") {
		say = func(text string) { fmt.Fprintln(p.out, text) }
	}
	wanted, blank := job.Wanted(), job.Blank()
	if wanted == 0 {
		return fmt.Errorf("data: %s: no row has a prompt (no user turn, or a blank one): name the column of the prompts with --content-key", c.StringSlice("prompts")[0])
	}
	if blank != "" {
		say(blank)
	}
	if have := wanted - missing; have > 0 {
		say(fmt.Sprintf("%s: answers that are there already: %d of %d", journal, have, wanted))
	}
	if n := job.OpenBatches(); n > 0 && !c.Bool("batch") && !c.Bool("dry-run") {
		return usage("data collect: %s: batches under way: %d: give --batch, which waits for their answers, as they are paid for", journal, n)
	}
	estimate := job.Estimate(c.Bool("batch"))
	if missing > 0 {
		if suspect, _ := o.Set.Overlooked(); suspect != "" {
			say(suspect)
		}
		say(fmt.Sprintf("%s: %s to %s; %v%s", c.String("model"), report.Count(missing, "answer"), report.Count(rows, "row"), estimate, leastTime(c, estimate)))
	}
	if c.Bool("dry-run") {
		return nil
	}
	if err := job.CheckCost(estimate); err != nil {
		return fault.As(fault.Usage, err)
	}
	state := func() string {
		missing, _ := job.Missing()
		return fmt.Sprintf("%d of %d answers are in %s: run the same command to resume", wanted-missing, wanted, journal)
	}
	stopping := "stopping: answers under way are waited for, as they are paid for; a second Ctrl-C stops at once"
	if c.Bool("batch") {
		stopping = "stopping: batches stay at the endpoint, and the same command finds them"
	}
	ctx, stop := p.session().Stoppable(func() string { return stopping }, state)
	defer stop()
	var err error
	if c.Bool("batch") {
		err = job.AskBatch(ctx, client, c.Duration("poll"))
	} else {
		err = job.Ask(ctx, client)
	}
	con.Close()
	var failures endpoint.Failures
	switch {
	case errors.As(err, &failures):
		p.sayFailures(failures)
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(p.err, "gad: data collect: interrupted: %s\n", state())
		return trainer.ErrInterrupted
	case endpoint.Fatal(err) && strings.HasSuffix(err.Error(), "the endpoint wants a key"):
		return fault.As(fault.Running, fmt.Errorf("%w: name its environment variable with --key-env, or its file with --key-file", err))
	case c.Bool("batch") && endpoint.Fatal(err) && strings.Contains(err.Error(), ": status 404"):
		return fault.As(fault.Running, fmt.Errorf("%w, or leave out --batch, which not every endpoint has", err))
	case err != nil:
		return fault.As(fault.Running, checkpoint.ExplainFull(files(), o.Output, 0, err))
	}
	if missing, rows = job.Missing(); missing > 0 && !o.Partial {
		return fault.As(fault.Running, fmt.Errorf("data collect: %s: %d of %s have no answer: the same command asks again, --partial writes the others", o.Output, rows, report.Count(o.Rows, "row")))
	}
	written, err := job.Write()
	if err != nil {
		return fault.As(fault.Running, err)
	}
	fmt.Fprintf(p.out, "%s: %s to %s\n", o.Output, report.Count(written, "answer"), report.Count(o.Rows, "prompt"))
	if marked := job.Marked(); marked != "" {
		fmt.Fprintln(p.out, marked)
	}
	for _, line := range job.Equal() {
		fmt.Fprintln(p.out, line)
	}
	empty, err := job.Empty()
	if err != nil {
		return fault.As(fault.Running, err)
	}
	if empty != "" {
		fmt.Fprintf(p.out, "%s: remove %s and give --retry-empty to ask them again\n", empty, o.Output)
	}
	if missing > 0 {
		fmt.Fprintf(p.out, "%d of %s have no answer: remove %s, and the same command asks again\n", rows, report.Count(o.Rows, "row"), o.Output)
	}
	fmt.Fprintln(p.out, job.Tally())
	if left := o.Set.Unread(); len(left) > 0 {
		fmt.Fprintf(p.out, "columns left out: %s\n", strings.Join(left, ", "))
	}
	return nil
}

// leastTime says how long the limits that are given make the estimate last; "" where that
// is under a minute.
func leastTime(c *cli.Context, e collect.Estimate) string {
	by, minutes := "", 1.0
	for _, limit := range []struct {
		flag   string
		amount float64
	}{
		{"rpm", float64(e.Requests)},
		{"tpm", e.PromptTokens + e.AnswerTokens},
		{"input-tpm", e.PromptTokens},
		{"output-tpm", e.AnswerTokens},
	} {
		if c.IsSet(limit.flag) && limit.amount/c.Float64(limit.flag) >= minutes {
			by, minutes = limit.flag, limit.amount/c.Float64(limit.flag)
		}
	}
	switch {
	case by == "" || c.Bool("batch"): // batches have limits of their own
		return ""
	case minutes < 120:
		return fmt.Sprintf("; about %.0f min by --%s", minutes, by)
	}
	return fmt.Sprintf("; about %.1f h by --%s", minutes/60, by)
}

// maxFailures is how many failures are listed.
const maxFailures = 20

func (p *program) sayFailures(failures endpoint.Failures) {
	for k, f := range failures {
		if k == maxFailures {
			fmt.Fprintf(p.err, "gad: ... and %d more\n", len(failures)-k)
			return
		}
		fmt.Fprintf(p.err, "gad: row %d: %v (%s)\n", f.Index, f.Err, tries(f.Tries))
	}
}

func tries(n int) string {
	if n == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", n)
}
