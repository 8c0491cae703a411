package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/collect"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/fault"
)

// endpointFlags returns the flags that name an endpoint and limit its use.
func endpointFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "base-url", Usage: "endpoint that speaks OpenAI's chat completions, such as https://api.openai.com/v1"},
		&cli.StringFlag{Name: "key-env", Value: "OPENAI_API_KEY",
			DefaultText: "OPENAI_API_KEY, or none where --base-url is this machine",
			Usage:       "environment variable that holds the key; empty sends none"},
		&cli.StringFlag{Name: "key-file",
			Usage: "file that holds the key, readable by its owner alone; instead of --key-env"},
		&cli.BoolFlag{Name: "insecure-http",
			Usage: "allow http:// to another machine, which sends key and prompts as plain text"},
		withLimits(&cli.IntFlag{Name: "concurrency", Value: 16,
			Usage: "requests in flight, at most; fewer where the endpoint wants less"}, atLeast(1)),
		withLimits(&cli.Float64Flag{Name: "rpm", DefaultText: "as the endpoint's headers say",
			Usage: "requests a minute, at most"}, positive(1e12)),
		withLimits(&cli.Float64Flag{Name: "tpm", DefaultText: "as the endpoint's headers say",
			Usage: "tokens a minute, prompts and answers, at most"}, positive(1e12)),
		withLimits(&cli.Float64Flag{Name: "input-tpm", DefaultText: "as the endpoint's headers say",
			Usage: "tokens of prompts a minute, at most, for endpoints that limit them apart"},
			positive(1e12)),
		withLimits(&cli.Float64Flag{Name: "output-tpm", DefaultText: "as the endpoint's headers say",
			Usage: "tokens of answers a minute, at most"}, positive(1e12)),
		withLimits(&cli.DurationFlag{Name: "timeout", Value: 10 * time.Minute,
			Usage: "longest time of one request"}, positive(math.Inf(1))),
		withLimits(&cli.IntFlag{Name: "retries", Value: 10,
			Usage: "tries of a request after the first, at most"}, atLeast(0)),
	}
}

// client opens the endpoint of endpointFlags; o is its options, without the key.
func (p *program) client(c *cli.Context) (client *endpoint.Client, o endpoint.Options, err error) {
	if o, err = p.endpointOptions(c); err != nil {
		return nil, o, err
	}
	if client, err = endpoint.New(o); err != nil {
		return nil, o, fault.As(fault.ErrUsage, err)
	}
	o.Key = "" // it stays in the client
	return client, o, nil
}

// endpointOptions returns the values of endpointFlags, with the key.
func (p *program) endpointOptions(c *cli.Context) (o endpoint.Options, err error) {
	o = endpoint.Options{
		BaseURL: c.String("base-url"), InsecureHTTP: c.Bool("insecure-http"),
		Concurrency:       c.Int("concurrency"),
		RequestsPerMinute: c.Float64("rpm"), TokensPerMinute: c.Float64("tpm"),
		InputTokensPerMinute:  c.Float64("input-tpm"),
		OutputTokensPerMinute: c.Float64("output-tpm"), Timeout: c.Duration("timeout"),
		Retries: c.Int("retries"),
		Say: func(format string,
			args ...any) {
			p.console().Print(fmt.Sprintf(format, args...))
		},
	}
	if o.Retries == 0 {
		o.Retries = -1
	}
	err = endpoint.CheckURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return o, fault.As(fault.ErrUsage, err)
	}
	switch file := c.String("key-file"); {
	case file != "" && c.IsSet("key-env"):
		return o, usage("%s: --key-env and --key-file: give one of them", commandName(c))
	case file != "":
		o.Key, err = endpoint.KeyFromFile(files(), file)
	case c.IsSet("key-env") && c.String("key-env") == "", !c.IsSet("key-env") &&
		endpoint.Loopback(o.BaseURL):
	default:
		o.Key, err = endpoint.KeyFromEnv(c.String("key-env"))
	}
	if err != nil {
		return o, fault.As(fault.ErrUsage, err)
	}
	return o, nil
}

// collectCommand returns the command gad data collect.
func (p *program) collectCommand() *cli.Command {
	cols := data.DefaultColumns()
	return &cli.Command{
		Name:  "collect",
		Usage: "ask a teacher's endpoint for its answers to the prompts of a data set. After an interruption the same command resumes",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "prompts", Usage: "prompts: file, folder or quoted pattern, in any format of gad data; answers in it are not read; may be given several times"},
			&cli.StringFlag{Name: "split", Usage: "which split, if a folder has several"},
			&cli.StringFlag{Name: "format", Value: data.FormatAuto,
				Usage: "format of the rows, as for gad data inspect"},
			&cli.StringFlag{Name: "content-key", Value: cols.Content,
				Usage: "column with the conversation or the prompt"},
			withLimits(&cli.IntFlag{Name: "limit", Usage: "rows of --prompts to ask; 0 is all"},
				atLeast(0)),
			&cli.StringFlag{Name: "output", Usage: "output file: .arrow, .arrows, .parquet or .jsonl. OUTPUT.journal beside it keeps every answer as it comes"},
			&cli.StringFlag{Name: "model", Usage: "the teacher, as the endpoint calls it"},
			&cli.StringFlag{Name: "system", Usage: "system message for rows that have none; the teacher alone sees it, it is not in the output"},
			withLimits(&cli.Float64Flag{Name: "temperature", DefaultText: "the endpoint's",
				Usage: "sampling temperature"}, floatRange(0, 100)),
			withLimits(&cli.Float64Flag{Name: "top-p", DefaultText: "the endpoint's",
				Usage: "nucleus sampling"}, floatRange(0, 1)),
			withLimits(&cli.IntFlag{Name: "max-tokens", DefaultText: "the endpoint's",
				Usage: "longest answer, tokens"}, atLeast(1)),
			&cli.Int64Flag{Name: "seed", DefaultText: "none",
				Usage: "makes answers repeatable where the endpoint takes seeds: each request sends one of its own, derived from it"},
			withLimits(&cli.IntFlag{Name: "top-logprobs", DefaultText: "none", Usage: "ask for the log-probabilities of the answer's tokens and of so many likely ones at each place: soft labels for gad sft (OpenAI gives at most 20)"}, oneTo(64, "")),
			&cli.StringFlag{Name: "extra", Usage: `more fields of the request, as JSON, such as {"max_completion_tokens": 2048}`},
			withLimits(&cli.IntFlag{Name: "n", Value: 1,
				Usage: "answers per prompt, a row of the output each"}, oneTo(1024, "")),
			&cli.StringFlag{Name: "prices", Usage: `file with prices in USD per million tokens: {"MODEL": {"input": 2.5, "output": 10}}`},
			withLimits(&cli.Float64Flag{Name: "max-cost", DefaultText: "no limit", Usage: "USD; with --prices: refuses to begin where the estimate is more, and stops where it has been spent"}, positive(math.MaxFloat64)),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the estimate and ask nothing"},
			&cli.BoolFlag{Name: "batch", Usage: "ask by the batch API: half the price, within a day. The command waits; after an interruption it finds its batches again"},
			withLimits(&cli.DurationFlag{Name: "poll", Value: time.Minute,
				Usage: "with --batch: time between two looks at a batch"}, pollAtLeast),
			&cli.BoolFlag{Name: "partial", Usage: "write the output although answers are missing"},
			&cli.BoolFlag{Name: "keep-thinking", Usage: "write what the teacher thought too, where the endpoint says it: the student learns it before the answer. OUTPUT.journal has it in any case"},
			&cli.StringFlag{Name: "env", Usage: "command of an environment, for the shell ($GAD is this program): the teacher acts in it turn by turn, and a row is an episode"},
			withLimits(&cli.IntFlag{Name: "max-turns", Value: 20,
				Usage: "with --env: turns of an episode, at most"}, oneTo(1000, "")),
			withLimits(&cli.IntFlag{Name: "episode-tokens", DefaultText: "no limit", Usage: "with --env: an episode ends when its conversation has so many tokens, as the endpoint counts them"}, atLeast(1)),
			&cli.StringFlag{Name: "keep", DefaultText: "all", Usage: "with --env: episodes that the output has, one comparison of reward or turns with a number, such as 'reward>=1'"},
			withLimits(&cli.IntFlag{Name: "env-workers", Value: 1,
				Usage: "with --env: processes of the environment"}, oneTo(64, "")),
			withLimits(&cli.DurationFlag{Name: "env-timeout", Value: time.Minute,
				Usage: "with --env: time limit of one reply"}, positive(86400)),
			&cli.BoolFlag{Name: "retry-empty", Usage: "ask again for the rows whose answers have no text, which is paid for again"},
		}, endpointFlags()...),
		Action: func(c *cli.Context) error {
			o, err := checkCollectFlags(c)
			if err != nil {
				return err
			}
			r := collect.Run{Options: o, Prompts: rowsOf(c), DryRun: c.Bool("dry-run"),
				Batch: c.Bool("batch"), Poll: c.Duration("poll")}
			r.Prompts.Paths = c.StringSlice("prompts")
			if r.Client, r.Limits, err = p.client(c); err != nil {
				return err
			}
			return r.Collect(p.session())
		},
	}
}

// pollAtLeast is the limit of the time between two polls of a batch.
var pollAtLeast = limit{func(seconds float64) bool { return seconds >= 0.01 },
	"must be at least 10ms"}

// collectRules are the rules between flags of gad data collect.
var collectRules = rules{
	{[]string{"poll"}, false, "batch", ": is for --batch: give that, or leave it out"},
	{[]string{"max-cost"}, false, "prices", ": needs --prices FILE"},
	{[]string{"max-turns", "episode-tokens", "keep", "env-workers", "env-timeout"}, false, "env",
		": is for --env: give that, or leave it out"},
	{[]string{"batch"}, true, "env", ": not with --env, whose turns wait for each other"},
	{[]string{"retry-empty"}, true, "env", ": not with --env: an empty answer ends its episode"},
	{[]string{"top-logprobs"}, true, "env", ": not with --env: labels are for one answer"},
}

// checkCollectFlags returns the options of gad data collect, and refuses combinations of its flags.
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
		return o, fault.As(fault.ErrUsage, err)
	}
	o.Output, o.Model, o.System, o.N, o.MaxTokens =
		c.String("output"), c.String("model"), c.String("system"), c.Int("n"), c.Int("max-tokens")
	o.TopLogprobs = c.Int("top-logprobs")
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
		for _, name := range []string{"logprobs", "top_logprobs"} {
			if _, ok := o.Extra[name]; ok && c.IsSet("top-logprobs") {
				return o,
					usage("data collect: --extra: %q and --top-logprobs: give one of them", name)
			}
		}
		if _, ok := o.Extra["max_tokens"]; ok && c.IsSet("max-tokens") {
			return o,
				usage("data collect: --extra: \"max_tokens\" and --max-tokens: give one of them")
		}
	}
	if err := collectRules.check(c); err != nil {
		return o, err
	}
	o.Partial, o.Empty, o.Thinking, o.MaxCost =
		c.Bool("partial"), c.Bool("retry-empty"), c.Bool("keep-thinking"), c.Float64("max-cost")
	if command := c.String("env"); command != "" {
		o.Settings.Env = command
		o.Env = &collect.Env{Workers: c.Int("env-workers"), Timeout: c.Duration("env-timeout"),
			MaxTurns: c.Int("max-turns"), MaxTokens: c.Int("episode-tokens")}
		if text := c.String("keep"); text != "" {
			if o.Env.Keep, err = collect.ParseKeep(text); err != nil {
				return o, usage("data collect: --keep %v", err)
			}
		}
	}
	if path := c.String("prices"); path != "" {
		price, err := endpoint.ReadPrice(files(), path, o.Model)
		if err != nil {
			return o, err
		}
		o.Price = &price
	}
	return o, nil
}
