package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/judge"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer"
)

// This file is gad eval --judge: a language model behind an endpoint judges the answers
// that gad eval's students give, or answers from files.

// Whom a student's answers are compared with.
const (
	againstTeacher = "teacher"
	againstFirst   = "first"
)

// defaultKeyEnv is the environment variable that other clients read too.
const defaultKeyEnv = "OPENAI_API_KEY"

// judgeFlags are those of gad eval that are about a judge.
func judgeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "judge", Usage: "base URL of an OpenAI-compatible endpoint whose model judges the answers, such as https://api.openai.com/v1 or that of gad serve"},
		&cli.StringFlag{Name: "judge-model", Usage: "model of the judge, as the endpoint calls it"},
		&cli.StringFlag{Name: "judge-key-env", Value: defaultKeyEnv, DefaultText: defaultKeyEnv + ", or none where --judge is this machine", Usage: "environment variable that holds the endpoint's key; empty sends none"},
		&cli.StringFlag{Name: "judge-mode", Value: string(judge.Both), Usage: "score: the judge answers itself, then grades its own answer and the student's; pair: it compares two answers in both orders; both"},
		&cli.StringFlag{Name: "judge-against", Value: againstTeacher, Usage: "whom pairs are against: teacher, or first: the first student"},
		&cli.BoolFlag{Name: "judge-teacher", Usage: "have the teacher's answers graded too, as those of another student"},
		&cli.StringFlag{Name: "judge-journal", Value: "judgments.jsonl", Usage: "file that keeps every reply of a judge; what is in it is not asked again"},
		&cli.IntFlag{Name: "judge-max-tokens", Value: 2048, Usage: "longest reply of the judge, tokens; more for a model that reasons"},
		&cli.Float64Flag{Name: "judge-temperature", Usage: "sampling temperature of the judge"},
		&cli.StringFlag{Name: "judge-extra", Usage: `more fields of a request to the judge, as JSON; null leaves one out: {"max_completion_tokens": 4096, "max_tokens": null, "temperature": null}`},
		&cli.IntFlag{Name: "judge-concurrency", Value: 16, Usage: "requests to the judge at a time"},
		&cli.Float64Flag{Name: "judge-rpm", DefaultText: "as the endpoint says", Usage: "requests to the judge per minute"},
		&cli.Float64Flag{Name: "judge-tpm", DefaultText: "as the endpoint says", Usage: "tokens to and from the judge per minute"},
		&cli.StringFlag{Name: "prices", Usage: `file with prices in USD per million tokens: {"MODEL": {"input": 2.5, "output": 10}}`},
		&cli.BoolFlag{Name: "insecure-http", Usage: "allow http:// to another machine, which sends key and prompts as plain text"},
		&cli.StringSliceFlag{Name: "answers", Usage: "judge the answers in this file, which gad generate --data or gad eval --output wrote, instead of those of --model; repeat it for each file"},
	}
}

// besideAnswers are the flags of gad eval that --answers leaves a meaning.
var besideAnswers = []string{"answers", "output", "dry-run", "seed", "limit", "json", "prices", "insecure-http"}

// checkJudgeFlags refuses what the flags about a judge cannot mean.
func checkJudgeFlags(c *cli.Context) error {
	judging := c.String("judge") != ""
	for _, f := range judgeFlags() {
		if name := f.Names()[0]; c.IsSet(name) && !judging {
			return usage("eval: --%s: needs --judge URL, the endpoint of a judge", name)
		}
	}
	if !judging {
		return nil
	}
	if err := need(c, "judge-model"); err != nil {
		return err
	}
	if m := c.String("judge-mode"); !slices.Contains(judge.Modes, m) {
		return usage("eval: --judge-mode %q: must be score, pair or both", m)
	}
	if a := c.String("judge-against"); a != againstTeacher && a != againstFirst {
		return usage("eval: --judge-against %q: must be teacher or first", a)
	}
	if c.String("judge-mode") == string(judge.Score) && c.IsSet("judge-against") {
		return usage("eval: --judge-against is for pairs: leave it out, or give --judge-mode pair or both")
	}
	if c.String("judge-mode") == string(judge.Pair) && c.Bool("judge-teacher") {
		return usage("eval: --judge-teacher is for grades: leave it out, or give --judge-mode score or both")
	}
	if n := c.Int("judge-max-tokens"); n < 1 || n > 1<<20 {
		return usage("eval: --judge-max-tokens %d: must be 1 to %d", n, 1<<20)
	}
	if n := c.Int("judge-concurrency"); n < 1 || n > 4096 {
		return usage("eval: --judge-concurrency %d: must be 1 to 4096", n)
	}
	if err := inRange(c, "judge-temperature", 2); err != nil {
		return err
	}
	if _, err := judgeExtra(c); err != nil {
		return err
	}
	for _, name := range []string{"judge-rpm", "judge-tpm"} {
		if err := inRange(c, name, 1e12); err != nil {
			return err
		}
	}
	if files := c.StringSlice("answers"); len(files) > 0 {
		for _, name := range c.LocalFlagNames() {
			if !slices.Contains(besideAnswers, name) && !strings.HasPrefix(name, "judge") {
				return usage("eval: --%s: not with --answers, which has prompts and answers: leave it out", name)
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

// judgeExtra are the fields of --judge-extra.
func judgeExtra(c *cli.Context) (fields map[string]any, err error) {
	text := c.String("judge-extra")
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, usage(`eval: --judge-extra: must be one JSON object, such as {"max_completion_tokens": 4096, "max_tokens": null}`)
	}
	for _, name := range []string{"model", "messages", "n", "stream"} {
		if _, ok := fields[name]; ok {
			return nil, usage("eval: --judge-extra: %q cannot be set here: gad sets it", name)
		}
	}
	return fields, nil
}

// judging is a judge at work for gad eval.
type judging struct {
	p    *program
	c    *cli.Context
	con  *report.Console
	path string // of the journal

	client    *endpoint.Client
	price     *endpoint.Price // nil if it is not known
	lock      *checkpoint.Lock
	journal   *endpoint.Journal
	judge     *judge.Judge
	questions []judge.Question
	students  []judge.Student
	report    *judge.Report
}

// openJudge checks what is said about the judge. It opens no connection and writes
// nothing. Without --judge it is nil.
func openJudge(p *program, c *cli.Context, con *report.Console) (*judging, error) {
	if c.String("judge") == "" {
		return nil, nil
	}
	j := &judging{p: p, c: c, con: con, path: c.String("judge-journal")}
	o := endpoint.Options{BaseURL: c.String("judge"), InsecureHTTP: c.Bool("insecure-http"), Concurrency: c.Int("judge-concurrency"),
		RequestsPerMinute: c.Float64("judge-rpm"), TokensPerMinute: c.Float64("judge-tpm"),
		Say: func(format string, args ...any) { con.Print(fmt.Sprintf(format, args...)) }}
	err := endpoint.CheckURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return nil, marked{errUsage, err}
	}
	if name := c.String("judge-key-env"); name != "" && (c.IsSet("judge-key-env") || !endpoint.Loopback(o.BaseURL)) {
		if o.Key, err = endpoint.KeyFromEnv(name); err != nil {
			return nil, marked{errUsage, err}
		}
	}
	if j.client, err = endpoint.New(o); err != nil {
		return nil, marked{errUsage, err}
	}
	if path := c.String("prices"); path != "" {
		price, err := endpoint.ReadPrice(files(), path, c.String("judge-model"))
		if err != nil {
			return nil, err
		}
		j.price = &price
	}
	return j, j.checkJournal()
}

// checkJournal refuses a file that is no journal, before anything is written to it.
func (j *judging) checkJournal() error {
	if out := j.c.String("output"); out != "" && filepath.Clean(out) == filepath.Clean(j.path) {
		return usage("eval: %s: --output and --judge-journal are the same file: give two", out)
	}
	if info, err := files().Stat(filepath.Dir(j.path)); err != nil || !info.IsDir() {
		return usage("eval: %s: there is no folder %s: create it or give another --judge-journal", j.path, filepath.Dir(j.path))
	}
	info, err := files().Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	foreign := usage("eval: %s: is not a judgment journal: give another --judge-journal", j.path)
	if err != nil || !info.Mode().IsRegular() {
		return foreign
	}
	f, err := files().Open(j.path)
	if err != nil {
		return vfs.Target(fmt.Errorf("eval: %w", err))
	}
	defer f.Close()
	const begins = `{"key":"`
	start := make([]byte, len(begins))
	if n, err := io.ReadFull(f, start); n > 0 && string(start[:n]) != begins[:n] || err != nil && n == 0 && err != io.EOF {
		return foreign
	}
	return nil
}

// begin takes the journal.
func (j *judging) begin() (err error) {
	if j.lock, err = checkpoint.LockOutput(j.path); err != nil {
		return err
	}
	if j.journal, err = endpoint.OpenJournal(files(), j.path); err != nil {
		return err
	}
	if n := j.journal.Dropped(); n > 0 {
		j.con.Warn(fmt.Sprintf("%s: %s damaged and dropped: what was in it is asked again", j.path, report.Count(n, "line")))
	}
	extra, err := judgeExtra(j.c)
	if err != nil {
		return err
	}
	j.judge = judge.New(judge.Options{Client: j.client, Journal: j.journal, Model: j.c.String("judge-model"), Mode: j.mode(), AgainstFirst: j.c.String("judge-against") == againstFirst,
		Temperature: j.c.Float64("judge-temperature"), MaxTokens: j.c.Int("judge-max-tokens"), Extra: extra, Seed: j.c.Uint64("seed"), Stages: j.con.Busy})
	return nil
}

// close gives the journal back. Its error is that of the first thing that fails.
func (j *judging) close() (err error) {
	if j == nil {
		return nil
	}
	if j.journal != nil {
		err = j.journal.Close()
	}
	if j.lock != nil {
		err = cmp.Or(err, j.lock.Unlock())
	}
	return err
}

func (j *judging) mode() judge.Mode { return judge.Mode(j.c.String("judge-mode")) }

// check refuses questions and a number of students that the mode cannot judge.
func (j *judging) check(students int, where func(q int) string) error {
	needsTeacher := j.c.Bool("judge-teacher") || j.mode() != judge.Score && j.c.String("judge-against") == againstTeacher
	for q, x := range j.questions {
		if len(x.Prompt) == 0 {
			return fmt.Errorf("judge: %s: has no text of the prompt, only token ids: a judge reads text: give data with a content column", where(q))
		}
		if needsTeacher && x.Teacher == "" {
			return fmt.Errorf("judge: %s: has no teacher's answer: give --judge-mode score, or --judge-against first", where(q))
		}
	}
	if j.mode() != judge.Score && j.c.String("judge-against") == againstFirst && students < 2 {
		return usage("eval: --judge-against first: needs two students or more: name another one")
	}
	return nil
}

// estimate says what the judge is asked for at most, and what that may cost.
func (j *judging) estimate(w io.Writer, students int) {
	e := judge.Expect(j.mode(), j.questions, students+j.extra(), j.c.String("judge-against") == againstFirst)
	fmt.Fprintf(w, "judge %s at %s: %s at most, less those in %s, plus one more for each verdict that cannot be read; estimate: %s (%d bytes per token, answers as long as the teacher's, verdicts of %d tokens)\n",
		harmless(j.c.String("judge-model")), j.client.Host(), report.Count(e.Requests, "request"), j.path, j.tokens(e.ToJudge, e.FromJudge, 0), judge.BytesPerToken, judge.VerdictTokens)
}

// tokens writes numbers of tokens, and their price if it is known. So many of those to the
// judge came from a cache.
func (j *judging) tokens(to, from float64, cached int) string {
	text := fmt.Sprintf("%.0f tokens to the judge, %.0f from it", to, from)
	if j.price != nil {
		text += fmt.Sprintf(", $%.2f", j.price.Of(endpoint.Usage{PromptTokens: int(math.Round(to)), CompletionTokens: int(math.Round(from)), CachedTokens: cached}))
	}
	return text
}

// extra are the students beside those that are named.
func (j *judging) extra() int {
	if j.c.Bool("judge-teacher") {
		return 1
	}
	return 0
}

// references asks for what no student is needed for.
func (j *judging) references(ctx context.Context) error {
	return j.failed(ctx, j.judge.References(ctx, j.questions))
}

// ask asks about the students.
func (j *judging) ask(ctx context.Context) (err error) {
	all := j.students
	if j.extra() > 0 {
		t := judge.Student{Name: againstTeacher}
		for _, q := range j.questions {
			t.Answers = append(t.Answers, q.Teacher)
		}
		all = append(slices.Clone(all), t)
	}
	j.report, err = j.judge.Judge(ctx, j.questions, all)
	return j.failed(ctx, err)
}

// failed marks an error of the judge.
func (j *judging) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return trainer.ErrInterrupted
	case endpoint.Fatal(err) && strings.HasSuffix(err.Error(), "the endpoint wants a key"):
		err = fmt.Errorf("%w: name its environment variable with --judge-key-env", err)
	case errors.Is(err, judge.ErrNoVerdict):
		err = fmt.Errorf("%w: read the replies in %s, then try another judge, a larger --judge-max-tokens or --judge-extra", err, j.path)
	}
	return marked{errRunning, err}
}

// stopped says what an interrupted judge has kept.
func (j *judging) stopped(err error) error {
	if !errors.Is(err, trainer.ErrInterrupted) {
		return err
	}
	j.con.Close()
	fmt.Fprintf(j.p.err, "gad: eval: stopped: %s: the same command asks only for the others\n", j.kept())
	return err
}

// kept is the number of replies in the journal, for messages.
func (j *judging) kept() string {
	return fmt.Sprintf("%s in %s", report.Count(j.journal.Len(), "judgment"), j.path)
}

// judged is the JSON of a judge's report.
type judged struct {
	*judge.Report
	Cost        *float64      `json:"cost_usd,omitempty"` // of this command's requests, with --prices
	Differences []differences `json:"differences,omitempty"`
}

// json is nil without a judge.
func (j *judging) json() *judged {
	if j == nil {
		return nil
	}
	out := &judged{Report: j.report}
	if t := j.report.Tally; j.price != nil && (t.Asked == 0 || t.PromptTokens+t.CompletionTokens > 0) {
		cost := j.price.Of(t.Usage())
		out.Cost = &cost
	}
	for _, f := range j.report.Students[1:] {
		d := differences{f.Name, j.report.Students[0].Name, map[string]trainer.Difference{}}
		for key, x := range f.Minus {
			d.of[key] = trainer.Difference(x)
		}
		out.Differences = append(out.Differences, d)
	}
	return out
}

// print writes the judge's table, in which students have the letters of gad eval's.
func (j *judging) print(w io.Writer) {
	if j == nil {
		return
	}
	var names []string
	for i := range j.students {
		names = append(names, letter(i))
	}
	if len(j.students) == 1 {
		names[0] = "student"
	}
	if j.extra() > 0 {
		names = append(names, againstTeacher)
	}
	j.report.Print(w, names)
	t := j.report.Tally
	took := j.tokens(float64(t.PromptTokens), float64(t.CompletionTokens), t.CachedTokens)
	if t.Asked > 0 && t.PromptTokens+t.CompletionTokens == 0 {
		took = "the endpoint counts no tokens"
	}
	fmt.Fprintf(w, "%s: %s made, %s; %d were in it before\n", j.path, report.Count(t.Asked, "request"), took, t.Kept)
}

// verdict is what the judge said of a student's answer, nil without a judge.
func (j *judging) verdict(student, question int) *judge.Verdict {
	if j == nil || j.report == nil {
		return nil
	}
	return &j.report.Verdicts[student][question]
}

// judgedRow is a line of --output with the judge's verdict.
type judgedRow struct {
	trainer.EvalRow
	Judge *judge.Verdict `json:"judge,omitempty"`
}

// turns are a conversation as a judge takes it.
func turns(messages []data.Message) (out []judge.Turn) {
	for _, m := range messages {
		out = append(out, judge.Turn(m))
	}
	return out
}

// ask has the judge judge what the students of gad eval have answered.
func (e *evaluation) ask() error {
	if e.judging == nil {
		return nil
	}
	for _, s := range e.students {
		e.judging.students = append(e.judging.students, judge.Student{Name: s.dir, Answers: s.judged.Answers})
	}
	err := e.judging.ask(e.ctx)
	switch out := e.c.String("output"); {
	case err == nil:
		return e.save()
	case out != "" && errors.Is(err, trainer.ErrInterrupted): // it is not overwritten
		e.con.Close()
		return marked{errStopped, fmt.Errorf("eval: stopped: answers are in %s, %s: give --answers %s instead of --model and --data to continue", out, e.judging.kept(), out)}
	case out != "":
		return marked{errRunning, fmt.Errorf("%w: the answers are in %s: give --answers %s instead of --model and --data", err, out, out)}
	}
	return e.judging.stopped(err)
}

// questions are the rows of gad eval, for the judge.
func (e *evaluation) questions() ([]judge.Question, error) {
	var list []judge.Question
	for _, row := range e.rows {
		r, err := e.set.Row(row)
		if err != nil {
			return nil, err
		}
		list = append(list, judge.Question{Prompt: turns(r.Messages), Teacher: r.Teacher})
	}
	return list, nil
}

// givenRow is a line of gad eval --answers --output.
type givenRow struct {
	Model    string         `json:"model"`
	Row      int            `json:"row"`
	Content  []judge.Turn   `json:"content"`
	Teacher  string         `json:"teacher_response,omitempty"`
	Response string         `json:"response"`
	Judge    *judge.Verdict `json:"judge"`
}

// judgeAnswers is gad eval --answers: no model is loaded.
func (p *program) judgeAnswers(c *cli.Context) (err error) {
	con := p.console()
	defer con.Close()
	out := c.String("output")
	if out != "" {
		lock, err := claimOutput("eval", out)
		if err != nil {
			return err
		}
		defer func() { err = cmp.Or(err, lock.Unlock()) }()
	}
	j, err := openJudge(p, c, con)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, j.close()) }()
	var rows []int
	if j.questions, j.students, rows, err = judge.ReadAnswers(c.StringSlice("answers"), c.Int("limit")); err != nil {
		return err
	}
	if err := j.check(len(j.students), func(q int) string { return fmt.Sprintf("row %d", rows[q]) }); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		j.estimate(p.out, len(j.students))
		return nil
	}
	ctx, stop := p.stoppable(con, "stopping; what the judge has said is kept in "+j.path+"; a second Ctrl-C stops at once", func() string { return "what the judge has said is kept in " + j.path })
	defer stop()
	if err := j.begin(); err != nil {
		return err
	}
	j.estimate(p.err, len(j.students))
	if err := j.ask(ctx); err != nil {
		return j.stopped(err)
	}
	con.Close()
	if out != "" {
		if err := j.write(out, rows); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return printJSON(p.out, map[string]any{"judge": j.json()})
	}
	if len(j.students) > 1 {
		for i, s := range j.students {
			fmt.Fprintf(p.out, "%s  %s\n", letter(i), harmless(s.Name))
		}
	}
	j.print(p.out)
	if out != "" {
		fmt.Fprintf(p.out, "%s: %s\n", out, report.Count(len(rows)*len(j.students), "answer"))
	}
	return nil
}

// write makes the output of gad eval --answers.
func (j *judging) write(path string, rows []int) error {
	if err := absent("eval", path); err != nil { // it was not there at the start
		return err
	}
	var b bytes.Buffer
	for s, student := range j.students {
		for q, x := range j.questions {
			if err := printJSON(&b, givenRow{student.Name, rows[q], x.Prompt, x.Teacher, student.Answers[q], j.verdict(s, q)}); err != nil {
				return err
			}
		}
	}
	if err := vfs.WriteFile(files(), path, b.Bytes()); err != nil {
		return marked{errRunning, checkpoint.ExplainFull(files(), path, int64(b.Len()), fmt.Errorf("eval: %w", err))}
	}
	return nil
}
