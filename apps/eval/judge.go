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
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/journal"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/quality"
)

// JudgeOptions names a language model behind an endpoint that judges answers.
type JudgeOptions struct {
	URL          string // of an OpenAI-compatible endpoint
	InsecureHTTP bool
	KeyEnv       string // environment variable with the key; "" sends none
	Model        string
	Mode         judge.Mode
	Against      string // the other answer of a pair: AgainstTeacher or AgainstFirst
	Teacher      bool   // grade the teacher's answers too
	// file of all replies: a request whose reply is there is not sent again
	Journal                            string
	MaxTokens                          int // tokens of a reply
	Temperature                        float64
	Extra                              map[string]any // additional fields of a request
	Concurrency                        int
	RequestsPerMinute, TokensPerMinute float64 // 0: by the endpoint's headers
	Prices                             string  // file of prices; "": none
}

// Values of JudgeOptions.Against: the answer that a student's answer is compared with.
const (
	AgainstTeacher = "teacher"
	AgainstFirst   = "first"
)

// judging is the judge of a gad eval, its journal and its report. Its methods close, json, print
// and verdict may be called on nil, which is no judge.
type judging struct {
	s *session.Session
	o JudgeOptions

	seed uint64

	client    *endpoint.Client
	price     *endpoint.Price // nil: unknown
	lock      *checkpoint.Lock
	journal   *journal.Journal
	judge     *judge.Judge
	questions []judge.Question
	students  []judge.Student
	report    *judge.Report
}

// openJudge checks the judge's options. It opens no connection and writes nothing. It returns nil
// without a judge.
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

// checkJournal refuses a file that exists and is not a journal, before anything is written to it.
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

// begin locks and opens the journal.
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

// close closes and unlocks the journal. It returns the first error.
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

// check refuses questions and a number of students that the mode cannot judge. where names a
// question for messages.
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

// estimate writes the largest number of requests to the judge, and an estimate of their tokens and
// cost.
func (j *judging) estimate(w io.Writer, students int) {
	e := judge.Expect(j.o.Mode, j.questions, students+j.extraStudents(), j.o.Against == AgainstFirst)
	fmt.Fprintf(w, "judge %s at %s: %s at most, less those in %s, plus one more for each verdict that cannot be read; estimate: %s (%d bytes per token, answers as long as the teacher's, verdicts of %d tokens)\n",
		session.Harmless(j.o.Model), j.client.Host(), report.Count(e.Requests, "request"),
		j.o.Journal, j.tokens(e.ToJudge, e.FromJudge, 0), judge.BytesPerToken,
		judge.VerdictTokens)
}

// tokens returns numbers of tokens as text, with their price if it is known. cached of the tokens
// to the judge came from a cache.
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

// extraStudents returns the number of students in addition to the models: 1 if the teacher is
// graded.
func (j *judging) extraStudents() int {
	if j.o.Teacher {
		return 1
	}
	return 0
}

// references makes the requests that need no student's answers.
func (j *judging) references(ctx context.Context) error {
	return j.wrapError(ctx, j.judge.References(ctx, j.questions))
}

// ask makes the requests about the students and sets the report.
func (j *judging) ask(ctx context.Context) (err error) {
	all := j.students
	if j.extraStudents() > 0 {
		t := judge.Student{Name: AgainstTeacher}
		for _, q := range j.questions {
			t.Answers = append(t.Answers, q.Teacher)
		}
		all = append(slices.Clone(all), t)
	}
	j.report, err = j.judge.Judge(ctx, j.questions, all)
	return j.wrapError(ctx, err)
}

// wrapError returns an error of the judge with its kind and a way out.
func (j *judging) wrapError(ctx context.Context, err error) error {
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

// stopError prints, for an interrupted judge, what the journal holds. It returns err.
func (j *judging) stopError(err error) error {
	if !errors.Is(err, fault.ErrInterrupted) {
		return err
	}
	j.s.Console.Close()
	fmt.Fprintf(j.s.Err, "gad: eval: stopped: %s: the same command asks only for the others\n",
		j.keptReplies())
	return err
}

// keptReplies returns the number of replies in the journal, for messages.
func (j *judging) keptReplies() string {
	return fmt.Sprintf("%s in %s", report.Count(j.journal.Len(), "judgment"), j.o.Journal)
}

// judgedJSON is the JSON of a judge's report.
type judgedJSON struct {
	*judge.Report
	Cost        *float64           `json:"cost_usd,omitempty"` // of this command's requests, with --prices
	Differences []modelDifferences `json:"differences,omitempty"`
}

// json returns the JSON of the report, nil without a judge.
func (j *judging) json() *judgedJSON {
	if j == nil {
		return nil
	}
	out := &judgedJSON{Report: j.report}
	if t := j.report.Tally; j.price != nil &&
		(t.Asked == 0 || t.PromptTokens+t.CompletionTokens > 0) {
		cost := j.price.UsageCost(t.Usage())
		out.Cost = &cost
	}
	for _, f := range j.report.Students[1:] {
		d := modelDifferences{model: f.Name, minus: j.report.Students[0].Name,
			values: map[string]quality.Difference{}}
		for key, x := range f.Minus {
			d.values[key] = quality.Difference(x)
		}
		out.Differences = append(out.Differences, d)
	}
	return out
}

// print writes the judge's table, in which students have the letters of gad eval's table.
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
	if j.extraStudents() > 0 {
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

// verdict returns the judge's verdict on a student's answer, nil without a judge.
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

// askJudge lets the judge judge the students' answers.
func (e *evaluation) askJudge() error {
	if e.judging == nil {
		return nil
	}
	for _, s := range e.students {
		e.judging.students = append(e.judging.students,
			judge.Student{Name: s.dir, Answers: s.results.Answers})
	}
	err := e.judging.ask(e.ctx)
	switch out := e.o.Output; {
	case err == nil:
		return e.save()
	case out != "" && errors.Is(err, fault.ErrInterrupted): // --output is left as it is
		e.s.Console.Close()
		return fault.As(fault.ErrStopped, fmt.Errorf("eval: stopped: answers are in %s, %s: give --answers %s instead of --model and --data to continue", out, e.judging.keptReplies(), out))
	case out != "":
		return fault.As(fault.ErrRunning,
			fmt.Errorf("%w: the answers are in %s: give --answers %s instead of --model and --data",
				err, out, out))
	}
	return e.judging.stopError(err)
}

// questions returns the rows of gad eval as the judge's questions.
func (e *evaluation) questions() ([]judge.Question, error) {
	var list []judge.Question
	for _, row := range e.rows {
		r, err := e.set.Row(row)
		if err != nil {
			return nil, err
		}
		list = append(list, judge.Question{Prompt: judge.Texts(r.Messages), Teacher: r.Teacher})
	}
	return list, nil
}
