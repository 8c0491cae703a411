package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gad/apps/judge"
	"gad/apps/session"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/journal"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/quality"
)

// JudgeOptions name a language model behind an endpoint that judges answers.
type JudgeOptions struct {
	URL          string // of an OpenAI-compatible endpoint
	InsecureHTTP bool
	KeyEnv       string // environment variable with the key; "" sends none
	Model        string
	Mode         judge.Mode
	Against      string // whom pairs are against
	Teacher      bool   // the teacher's answers are graded too
	// file of every reply; what is in it is not asked again
	Journal                            string
	MaxTokens                          int // of a reply
	Temperature                        float64
	Extra                              map[string]any // more fields of a request
	Concurrency                        int
	RequestsPerMinute, TokensPerMinute float64 // 0: as the endpoint says
	Prices                             string  // file; "" is none
}

// Whom a student's answers are compared with.
const (
	AgainstTeacher = "teacher"
	AgainstFirst   = "first"
)

// judging is a judge at work for gad eval.
type judging struct {
	s *session.Session
	o JudgeOptions

	seed uint64

	client    *endpoint.Client
	price     *endpoint.Price // nil if it is not known
	lock      *checkpoint.Lock
	journal   *journal.Journal
	judge     *judge.Judge
	questions []judge.Question
	students  []judge.Student
	report    *judge.Report
}

// openJudge checks what is said about the judge. It opens no connection and writes
// nothing. Without a judge it is nil.
func openJudge(s *session.Session, all Options) (*judging, error) {
	if all.Judge == nil {
		return nil, nil
	}
	j := &judging{s: s, o: *all.Judge, seed: all.Seed}
	o := endpoint.Options{BaseURL: j.o.URL, InsecureHTTP: j.o.InsecureHTTP,
		Concurrency:       j.o.Concurrency,
		RequestsPerMinute: j.o.RequestsPerMinute, TokensPerMinute: j.o.TokensPerMinute,
		Say: func(format string, args ...any) { s.Console.Print(fmt.Sprintf(format, args...)) }}
	err := endpoint.CheckURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	if j.o.KeyEnv != "" {
		if o.Key, err = endpoint.KeyFromEnv(j.o.KeyEnv); err != nil {
			return nil, fault.As(fault.ErrUsage, err)
		}
	}
	if j.client, err = endpoint.New(o); err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	if j.o.Prices != "" {
		price, err := endpoint.ReadPrice(s.FS, j.o.Prices, j.o.Model)
		if err != nil {
			return nil, err
		}
		j.price = &price
	}
	return j, j.checkJournal(all.Output)
}

// checkJournal refuses a file that is no journal, before anything is written to it.
func (j *judging) checkJournal(output string) error {
	path := j.o.Journal
	if output != "" && filepath.Clean(output) == filepath.Clean(path) {
		return fault.Usagef("eval: %s: --output and --judge-journal are the same file: give two",
			output)
	}
	if info, err := j.s.FS.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fault.Usagef(
			"eval: %s: there is no folder %s: create it or give another --judge-journal", path,
			filepath.Dir(path))
	}
	foreign, err := journal.Foreign(j.s.FS, path)
	if err != nil {
		return vfs.Target(fmt.Errorf("eval: %w", err))
	}
	if foreign {
		return fault.Usagef("eval: %s: is not a judgment journal: give another --judge-journal",
			path)
	}
	return nil
}

// begin takes the journal.
func (j *judging) begin() (err error) {
	if j.lock, err = checkpoint.LockOutput(j.o.Journal); err != nil {
		return err
	}
	if j.journal, err = journal.Open(j.o.Journal,
		journal.Options{FS: j.s.FS, Name: "endpoint: journal"}); err != nil {
		return err
	}
	if n := j.journal.DroppedLines(); n > 0 {
		j.s.Console.Warn(fmt.Sprintf("%s: %s damaged and dropped: what was in it is asked again",
			j.o.Journal, report.Count(n, "line")))
	}
	j.judge = judge.New(judge.Options{Client: j.client, Journal: j.journal, Model: j.o.Model,
		Mode: j.o.Mode, AgainstFirst: j.o.Against == AgainstFirst,
		Temperature: j.o.Temperature, MaxTokens: j.o.MaxTokens, Extra: j.o.Extra, Seed: j.seed,
		Stages: j.s.Console.Busy})
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

// check refuses questions and a number of students that the mode cannot judge.
func (j *judging) check(students int, where func(q int) string) error {
	needsTeacher := j.o.Teacher || j.o.Mode != judge.Score && j.o.Against == AgainstTeacher
	for q, x := range j.questions {
		if len(x.Prompt) == 0 {
			return fmt.Errorf("judge: %s: has no text of the prompt, only token ids: a judge reads text: give data with a content column", where(q))
		}
		if needsTeacher && x.Teacher == "" {
			return fmt.Errorf("judge: %s: has no teacher's answer: give --judge-mode score, or --judge-against first", where(q))
		}
	}
	if j.o.Mode != judge.Score && j.o.Against == AgainstFirst && students < 2 {
		return fault.Usagef(
			"eval: --judge-against first: needs two students or more: name another one")
	}
	return nil
}

// estimate says what the judge is asked for at most, and what that may cost.
func (j *judging) estimate(w io.Writer, students int) {
	e := judge.Expect(j.o.Mode, j.questions, students+j.extra(), j.o.Against == AgainstFirst)
	fmt.Fprintf(w, "judge %s at %s: %s at most, less those in %s, plus one more for each verdict that cannot be read; estimate: %s (%d bytes per token, answers as long as the teacher's, verdicts of %d tokens)\n",
		session.Harmless(j.o.Model), j.client.Host(), report.Count(e.Requests, "request"),
		j.o.Journal, j.tokens(e.ToJudge, e.FromJudge, 0), judge.BytesPerToken,
		judge.VerdictTokens)
}

// tokens writes numbers of tokens, and their price if it is known. So many of those to the
// judge came from a cache.
func (j *judging) tokens(to, from float64, cached int) string {
	text := fmt.Sprintf("%.0f tokens to the judge, %.0f from it", to, from)
	if j.price != nil {
		text += fmt.Sprintf(", $%.2f",
			j.price.UsageCost(
				endpoint.Usage{PromptTokens: int(math.Round(to)),
					CompletionTokens: int(math.Round(from)), CachedTokens: cached}))
	}
	return text
}

// extra are the students beside those that are named.
func (j *judging) extra() int {
	if j.o.Teacher {
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
		t := judge.Student{Name: AgainstTeacher}
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
		return fault.ErrInterrupted
	case endpoint.Fatal(err) && strings.HasSuffix(err.Error(), "the endpoint wants a key"):
		err = fmt.Errorf("%w: name its environment variable with --judge-key-env", err)
	case errors.Is(err, judge.ErrNoVerdict):
		err = fmt.Errorf("%w: read the replies in %s, then try another judge, a larger --judge-max-tokens or --judge-extra", err, j.o.Journal)
	}
	return fault.As(fault.ErrRunning, err)
}

// stopped says what an interrupted judge has kept.
func (j *judging) stopped(err error) error {
	if !errors.Is(err, fault.ErrInterrupted) {
		return err
	}
	j.s.Console.Close()
	fmt.Fprintf(j.s.Err, "gad: eval: stopped: %s: the same command asks only for the others\n",
		j.kept())
	return err
}

// kept is the number of replies in the journal, for messages.
func (j *judging) kept() string {
	return fmt.Sprintf("%s in %s", report.Count(j.journal.Len(), "judgment"), j.o.Journal)
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
	if t := j.report.Tally; j.price != nil &&
		(t.Asked == 0 || t.PromptTokens+t.CompletionTokens > 0) {
		cost := j.price.UsageCost(t.Usage())
		out.Cost = &cost
	}
	for _, f := range j.report.Students[1:] {
		d := differences{model: f.Name, minus: j.report.Students[0].Name,
			of: map[string]quality.Difference{}}
		for key, x := range f.Minus {
			d.of[key] = quality.Difference(x)
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
		names = append(names, AgainstTeacher)
	}
	j.report.Print(w, names)
	t := j.report.Tally
	took := j.tokens(float64(t.PromptTokens), float64(t.CompletionTokens), t.CachedTokens)
	if t.Asked > 0 && t.PromptTokens+t.CompletionTokens == 0 {
		took = "the endpoint counts no tokens"
	}
	fmt.Fprintf(w, "%s: %s made, %s; %d were in it before\n", j.o.Journal,
		report.Count(t.Asked, "request"), took, t.Kept)
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
	quality.Row
	Judge *judge.Verdict `json:"judge,omitempty"`
}

// turns are a conversation as a judge takes it.
func turns(messages []data.Message) (out []judge.Turn) {
	for _, m := range messages {
		out = append(out, judge.Turn{Role: m.Role, Content: m.Text()})
	}
	return out
}

// ask has the judge judge what the students of gad eval have answered.
func (e *evaluation) ask() error {
	if e.judging == nil {
		return nil
	}
	for _, s := range e.students {
		e.judging.students = append(e.judging.students,
			judge.Student{Name: s.dir, Answers: s.judged.Answers})
	}
	err := e.judging.ask(e.ctx)
	switch out := e.o.Output; {
	case err == nil:
		return e.save()
	case out != "" && errors.Is(err, fault.ErrInterrupted): // it is not overwritten
		e.s.Console.Close()
		return fault.As(fault.ErrStopped, fmt.Errorf("eval: stopped: answers are in %s, %s: give --answers %s instead of --model and --data to continue", out, e.judging.kept(), out))
	case out != "":
		return fault.As(fault.ErrRunning,
			fmt.Errorf("%w: the answers are in %s: give --answers %s instead of --model and --data",
				err, out, out))
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
