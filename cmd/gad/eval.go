package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/eval"
	"gad/apps/judge"
	"gad/apps/play"
	"gad/data"
	"gad/internal/endpoint"
	"gad/trainer/config"
	"gad/trainer/quality"
)

// evalFlags returns the flags of gad eval; gad plan --stage eval takes their defaults.
func evalFlags() []cli.Flag {
	return append(append([]cli.Flag{
		adapterFlag("model"),
		weightsFlag(),
		&cli.StringSliceFlag{Name: "model",
			Usage: modelUsage +
				"; repeat it for each model to compare: all are compared with the first"},
		&cli.StringFlag{Name: "against", Usage: modelUsage + " with the same tokenizer, such as the teacher's if you have its weights: adds the exact KL between each student and it, in both directions, and how probable it finds the students' answers; it takes no part in training"},
		&cli.StringFlag{Name: "output",
			Usage: "output file: every answer with its figures, one JSON line per row and model"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print an estimate of memory and time, and stop"},
		withLimits(&cli.Float64Flag{Name: "temperature",
			Usage: "sampling temperature of the answers; 0 is greedy"}, floatRange(0, 1e6)),
		withLimits(&cli.IntFlag{Name: "max-prompt-length", Value: 1 << 20, DefaultText: "no limit",
			Usage: "longest prompt, tokens; longer ones are refused"}, atLeast(1)),
		&cli.Uint64Flag{Name: "seed", Value: 1,
			Usage: "seed of sampling, of the intervals and of the fresh discriminators"},
		&cli.StringFlag{Name: "checker",
			Usage: "command line that scores the answers, run by sh -c (see doc/the-game.md)"},
		withLimits(&cli.IntFlag{Name: "checker-timeout", Value: 60,
			Usage: "time limit for the checker, in seconds"}, oneTo(1e6, " seconds")),
		withLimits(&cli.Float64Flag{Name: "disc-minutes", Value: 10, Usage: "time limit for the fresh discriminators of one model, in minutes: first their steps, then their seeds are reduced to fit; 0 is no limit"}, floatRange(0, 1e6)),
		&cli.IntFlag{Name: "disc-steps", Value: quality.DefaultDiscSteps, Usage: "optimizer steps of each fresh discriminator, on half of the rows; 0 trains none; a number given here is kept unless --disc-minutes is given too"},
		&cli.IntFlag{Name: "disc-batch", Value: 4,
			Usage: "pairs per step of a fresh discriminator"},
		&cli.Float64Flag{Name: "disc-lr", DefaultText: "0.0512/hidden width",
			Usage: "peak learning rate of a fresh discriminator"},
		&cli.IntFlag{Name: "disc-seeds", Value: 3,
			Usage: "fresh discriminators, each with its own split and head"},
		&cli.StringFlag{Name: "disc-from", DefaultText: "the student's folder", Usage: modelUsage + " that the fresh discriminators start from, or random: random weights of the student's shape"},
		&cli.BoolFlag{Name: "greedy",
			Usage: "with --env and --temperature: play greedily too, one more column for each model"},
		withLimits(&cli.IntFlag{Name: "n", Value: 1,
			Usage: "with --env and --temperature: episodes a row"}, oneTo(1<<16-1, "")),
		&cli.Float64Flag{Name: "success", Value: 1,
			Usage: "with --env: least reward of an episode that counts as a success"},
	}, rowFlags()...), slices.Concat(templateFlags(), chunkFlags(), environmentFlags(),
		judgeFlags(), deviceFlags())...)
}

// environmentFlags returns the flags of the commands in which a student acts without being trained.
func environmentFlags() []cli.Flag {
	c := config.Default().Env
	return []cli.Flag{
		&cli.StringFlag{Name: "env", Usage: "command that runs an environment, for the shell, in which the student acts in turns instead of answering once (see doc/environments.md); $GAD is this program"},
		withLimits(&cli.IntFlag{Name: "env-workers", Value: c.Workers,
			Usage: "processes of the environment"}, oneTo(4096, "")),
		withLimits(&cli.IntFlag{Name: "env-timeout", Value: c.Timeout,
			Usage: "time limit of a reply of the environment, in seconds"},
			oneTo(1e6, " seconds")),
		withLimits(&cli.IntFlag{Name: "max-turns", Value: c.MaxTurns, Usage: "turns of an episode"},
			oneTo(1e6, "")),
		withLimits(&cli.IntFlag{Name: "max-tokens", Value: c.MaxTokens,
			DefaultText: fmt.Sprintf("%d or half of the context", c.MaxTokens),
			Usage:       "tokens of an episode behind its first context, the environment's included"},
			oneTo(1<<20, "")),
	}
}

// environmentRules returns the rules of flags that have no meaning without --env: environmentFlags
// and more. answer is the flag for the length of a single answer.
func environmentRules(answer string, more ...string) rules {
	return rules{
		{flags: append([]string{"env-workers", "env-timeout", "max-turns"}, more...), other: "env",
			message: ": needs --env CMD, an environment to act in"},
		{flags: []string{"max-tokens"}, other: "env",
			message: " is for episodes, which need --env CMD: for an answer give --" + answer},
	}
}

// playOptions returns the values of environmentFlags.
func playOptions(c *cli.Context) play.Options {
	o := play.Options{Command: c.String("env"), Workers: c.Int("env-workers"),
		Timeout: time.Duration(c.Int("env-timeout")) * time.Second, Turns: c.Int("max-turns")}
	if c.IsSet("max-tokens") {
		o.Tokens = c.Int("max-tokens")
	}
	if c.IsSet("max-prompt-length") {
		o.Prompt = c.Int("max-prompt-length")
	}
	return o
}

// defaultKeyEnv is the environment variable that other clients read as well.
const defaultKeyEnv = "OPENAI_API_KEY"

// judgeFlags returns the flags of gad eval about a judge.
func judgeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "judge", Usage: "base URL of an OpenAI-compatible endpoint whose model judges the answers, such as https://api.openai.com/v1 or that of gad serve"},
		&cli.StringFlag{Name: "judge-model", Usage: "model of the judge, as the endpoint calls it"},
		&cli.StringFlag{Name: "judge-key-env", Value: defaultKeyEnv,
			DefaultText: defaultKeyEnv + ", or none where --judge is this machine",
			Usage:       "environment variable that holds the endpoint's key; empty sends none"},
		oneOf(&cli.StringFlag{Name: "judge-mode", Value: string(judge.Both), Usage: "score: the judge answers itself, then grades its own answer and the student's; pair: it compares two answers in both orders; both"}, judge.Modes, "score, pair or both"),
		oneOf(&cli.StringFlag{Name: "judge-against", Value: eval.AgainstTeacher,
			Usage: "whom pairs are against: teacher, or first: the first student"},
			[]string{eval.AgainstTeacher, eval.AgainstFirst}, "teacher or first"),
		&cli.BoolFlag{Name: "judge-teacher",
			Usage: "have the teacher's answers graded too, as those of another student"},
		&cli.StringFlag{Name: "judge-journal", Value: "judgments.jsonl",
			Usage: "file that keeps every reply of a judge; what is in it is not asked again"},
		withLimits(&cli.IntFlag{Name: "judge-max-tokens", Value: 2048,
			Usage: "longest reply of the judge, tokens; more for a model that reasons"},
			oneTo(1<<20, "")),
		withLimits(&cli.Float64Flag{Name: "judge-temperature",
			Usage: "sampling temperature of the judge"}, floatRange(0, 2)),
		&cli.StringFlag{Name: "judge-extra", Usage: `more fields of a request to the judge, as JSON; null leaves one out: {"max_completion_tokens": 4096, "max_tokens": null, "temperature": null}`},
		withLimits(&cli.IntFlag{Name: "judge-concurrency", Value: 16,
			Usage: "requests to the judge at a time"}, oneTo(4096, "")),
		withLimits(&cli.Float64Flag{Name: "judge-rpm", DefaultText: "as the endpoint says",
			Usage: "requests to the judge per minute"}, floatRange(0, 1e12)),
		withLimits(&cli.Float64Flag{Name: "judge-tpm", DefaultText: "as the endpoint says",
			Usage: "tokens to and from the judge per minute"}, floatRange(0, 1e12)),
		&cli.StringFlag{Name: "prices", Usage: `file with prices in USD per million tokens: {"MODEL": {"input": 2.5, "output": 10}}`},
		&cli.BoolFlag{Name: "insecure-http",
			Usage: "allow http:// to another machine, which sends key and prompts as plain text"},
		&cli.StringSliceFlag{Name: "answers", Usage: "judge the answers in this file, which gad generate --data or gad eval --output wrote, instead of those of --model; repeat it for each file"},
	}
}

// answersFlags lists the flags of gad eval that have a meaning with --answers.
var answersFlags = []string{"answers", "output", "dry-run", "seed", "limit", "json", "prices",
	"insecure-http"}

// evalRules returns the rules between flags of gad eval.
func evalRules() (all rules) {
	for _, f := range judgeFlags() {
		all = append(all, rule{flags: f.Names()[:1], other: "judge",
			message: ": needs --judge URL, the endpoint of a judge"})
	}
	single := []string{"against", "answers", "chunk", "checker", "checker-timeout", "dry-run",
		"judge",
		"max-token-len", "turns", "disc-minutes", "disc-steps", "disc-batch", "disc-lr",
		"disc-seeds", "disc-from"}
	all = append(all, environmentRules("max-response-length", "greedy", "n", "success")...)
	return append(all, rule{flags: single, given: true, other: "env",
		message: " is for single answers, not for --env: leave it out"})
}

// evalCommand returns the command gad eval.
func (p *program) evalCommand() *cli.Command {
	return &cli.Command{
		Name:  "eval",
		Usage: "compare students with the teacher, and with each other, on held-out rows, by figures and by a judge",
		Flags: evalFlags(),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(noArguments(c), evalRules().check(c), checkJudge(c),
				checkEval(c)); err != nil {
				return err
			}
			o := eval.Options{
				Models: c.StringSlice("model"), Adapter: c.String("adapter"),
				Chat:  chatOf(c),
				Quant: c.String("weights"), Against: c.String("against"),
				Answers: c.StringSlice("answers"),
				Rows:    rowsOf(c), Device: deviceFlagsOf(c), Output: c.String("output"),
				DryRun: c.Bool("dry-run"), JSON: c.Bool("json"),
				Temperature: c.Float64("temperature"), Seed: c.Uint64("seed"),
				MaxPrompt: c.Int("max-prompt-length"), MaxTokens: c.Int("max-token-len"),
				Checker:        c.String("checker"),
				CheckerTimeout: time.Duration(c.Int("checker-timeout")) * time.Second,
				Disc: quality.DiscOptions{From: c.String("disc-from"), Steps: c.Int("disc-steps"),
					Batch: c.Int("disc-batch"), LR: c.Float64("disc-lr"),
					Seeds: c.Int("disc-seeds")},
				Budget: quality.DiscBudget{Seconds: 60 * c.Float64("disc-minutes"),
					Fixed: c.IsSet("disc-steps")},
			}
			if o.Budget.Fixed && !c.IsSet("disc-minutes") {
				o.Budget.Seconds = 0
			}
			if c.IsSet("max-response-length") {
				o.MaxResponse = c.Int("max-response-length")
			}
			if c.String("env") != "" {
				o.Acting = actingOf(c)
				o.Rows.Turns, o.Rows.All = data.TurnsAll, true
			}
			var err error
			if o.Chunks, err = chunksOf(c); err != nil {
				return err
			}
			if o.Judge, err = judgeOptions(c); err != nil {
				return err
			}
			return eval.Run(p.session(), o)
		},
	}
}

// actingOf returns the values of the flags about episodes.
func actingOf(c *cli.Context) *eval.Acting {
	a := &eval.Acting{Options: playOptions(c), Greedy: c.Bool("greedy"), N: c.Int("n"),
		Success: c.Float64("success")}
	if c.IsSet("max-response-length") {
		a.Turn = c.Int("max-response-length")
	}
	return a
}

// checkEval refuses combinations of flags of gad eval.
func checkEval(c *cli.Context) error {
	if c.Bool("dry-run") && c.String("output") != "" {
		return usage("eval: --dry-run writes nothing: leave --output out")
	}
	if c.IsSet("against") && c.String("against") == "" {
		return usage("eval: --against is empty: give a model folder, or leave it out")
	}
	if c.IsSet("answers") {
		return nil
	}
	models := c.StringSlice("model")
	if len(models) == 0 || slices.Contains(models, "") {
		return usage("eval: --model is missing: see gad eval --help")
	}
	for i, m := range models {
		if slices.Contains(models[:i], m) {
			return usage("eval: --model %s: given twice: name two models to compare", m)
		}
	}
	if err := need(c, "data"); err != nil {
		return err
	}
	if len(models) > 1 && c.IsSet("adapter") {
		return usage("eval: --adapter goes with one --model, %d are given: give folders of adapters that name their base as --model", len(models))
	}
	if c.IsSet("n") && c.Int("n") > 1 && c.Float64("temperature") == 0 {
		return usage("eval: --n %d: greedy episodes of a row are all alike: give --temperature, or leave --n out", c.Int("n"))
	}
	if x := c.Float64("success"); math.IsNaN(x) || math.IsInf(x, 0) {
		return usage("eval: --success %g: must be a number", x)
	}
	if c.Int("disc-steps") < 0 || c.Int("disc-batch") < 1 || c.Int("disc-seeds") < 1 ||
		!(c.Float64("disc-lr") >= 0) {
		return usage("eval: --disc-steps %d, --disc-batch %d, --disc-seeds %d, --disc-lr %g: must be at least 0, 1, 1 and 0",
			c.Int("disc-steps"), c.Int("disc-batch"), c.Int("disc-seeds"), c.Float64("disc-lr"))
	}
	return nil
}

// checkJudge refuses combinations of the flags about a judge.
func checkJudge(c *cli.Context) error {
	if c.String("judge") == "" {
		return nil
	}
	if err := need(c, "judge-model"); err != nil {
		return err
	}
	if c.String("judge-mode") == string(judge.Score) && c.IsSet("judge-against") {
		return usage(
			"eval: --judge-against is for pairs: leave it out, or give --judge-mode pair or both")
	}
	if c.String("judge-mode") == string(judge.Pair) && c.Bool("judge-teacher") {
		return usage(
			"eval: --judge-teacher is for grades: leave it out, or give --judge-mode score or both")
	}
	if files := c.StringSlice("answers"); len(files) > 0 {
		for _, name := range c.LocalFlagNames() {
			if !slices.Contains(answersFlags, name) && !strings.HasPrefix(name, "judge") {
				return usage(
					"eval: --%s: not with --answers, which has prompts and answers: leave it out",
					name)
			}
		}
		for i, f := range files {
			if slices.Contains(files[:i], f) {
				return usage("eval: --answers %s: given twice: name each file once", f)
			}
		}
	}
	return nil
}

// judgeOptions returns the values of the flags about a judge; nil without one.
func judgeOptions(c *cli.Context) (*eval.JudgeOptions, error) {
	url, key := c.String("judge"), c.String("judge-key-env")
	if url == "" {
		return nil, nil
	}
	if !c.IsSet("judge-key-env") && endpoint.Loopback(url) {
		key = ""
	}
	extra, err := extraFields(c, "judge-extra")
	return &eval.JudgeOptions{URL: url, InsecureHTTP: c.Bool("insecure-http"), KeyEnv: key,
		Model: c.String("judge-model"),
		Mode:  judge.Mode(c.String("judge-mode")), Against: c.String("judge-against"),
		Teacher: c.Bool("judge-teacher"), Journal: c.String("judge-journal"),
		MaxTokens: c.Int("judge-max-tokens"), Temperature: c.Float64("judge-temperature"),
		Extra: extra, Concurrency: c.Int("judge-concurrency"),
		RequestsPerMinute: c.Float64("judge-rpm"), TokensPerMinute: c.Float64("judge-tpm"),
		Prices: c.String("prices")}, err
}
