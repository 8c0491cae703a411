// Package checker runs a user's program that scores answers. It runs no program unless a setting
// or a flag names one.
//
// The protocol: the program gets one JSON object a line on its standard input (Row), then end of
// file. It prints one line a row, in order: a number, or {"score":0.5,"label":"short"}. Scores are
// finite, larger is better, 0 to 1 is usual; a label names the sort of answer. null, or a score
// that is null, means that the program cannot score this answer. It ends with exit status 0.
//
// A coach is such a program whose notes are read, and not its score: {"notes":"Count anew."}. A
// line without notes of this form costs its answer the notes, and is no error.
//
//	checker.go  the program: start here
//	notes.go    notes that a teacher may read
//
// Rows with the same number are answers to the same prompt. A training step's call has all of
// them.
package checker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"gad/data"
	"gad/internal/child"
)

// Row is one answer with its prompt, as the program reads it.
type Row struct {
	Row       int       `json:"row"`     // in the data set, from 0
	Prompt    string    `json:"prompt"`  // the last turn before the answer
	Content   []Message `json:"content"` // the whole conversation before it
	Response  string    `json:"response"`
	Teacher   string    `json:"teacher_response"`
	Truncated bool      `json:"truncated"` // the response was cut at the length limit
}

// Rows builds the program's input: answers[i], cut at the length limit if truncated[i], belongs to
// row at[i] of set.
func Rows(set *data.Set, at []int, answers []string, truncated []bool) ([]Row, error) {
	out := make([]Row, len(at))
	for i, n := range at {
		r, err := set.Row(n)
		if err != nil {
			return nil, err
		}
		out[i] = Row{Row: n, Prompt: r.PromptText(), Response: answers[i], Teacher: r.Teacher,
			Truncated: truncated[i]}
		out[i].Content = r.Messages
	}
	return out, nil
}

// Message is one turn of a conversation, as the data set has it.
type Message = data.Message

// Verdict is the program's judgement of one answer.
type Verdict struct {
	Score float64 // finite; NaN if the program gives no score
	Label string  // "" if the program gives no label
	Notes string  // of a coach; "" if it gives none
}

// None reports whether the program gave no score.
func (v Verdict) None() bool { return math.IsNaN(v.Score) }

// MarshalJSON writes a verdict as a program prints it; no score is null.
func (v Verdict) MarshalJSON() ([]byte, error) {
	o := struct {
		Score *float64 `json:"score"`
		Label string   `json:"label,omitempty"`
		Notes string   `json:"notes,omitempty"`
	}{&v.Score, v.Label, v.Notes}
	if v.None() {
		o.Score = nil
	}
	return json.Marshal(o)
}

// UnmarshalJSON reads a verdict as MarshalJSON writes it. The score must be there; it may be null.
func (v *Verdict) UnmarshalJSON(line []byte) (err error) {
	*v, err = parse(string(line))
	return err
}

// Trial tells a program how many answers the run will have it score; Try sends it before the run
// begins, as JSON in the variable GAD_TRIAL. The program may print an estimate of its cost on
// standard error.
type Trial struct {
	Steps   int `json:"steps"`   // steps whose answers are scored
	Prompts int `json:"prompts"` // prompts a step; 0: a step's answers are not scored
	Answers int `json:"answers"` // answers a prompt
	Rows    int `json:"validation_rows"`

	// Means over rows of the training data.
	PromptBytes  float64 `json:"prompt_bytes"`
	TeacherBytes float64 `json:"teacher_bytes"`
}

// TrialVar is the variable that holds a Trial.
const TrialVar = "GAD_TRIAL"

// ErrFailed is wrapped by every error of a program that broke the protocol. If the caller's context
// ended, the error wraps the context's error instead.
var ErrFailed = errors.New("checker")

// maxLine is the largest length of a printed line, in bytes.
const maxLine = 64 << 10

// Checker is a command that runs once for each Check. Its methods may be called from several
// goroutines.
type Checker struct {
	Command string        // for sh -c
	Timeout time.Duration // of one Check
	Setting string        // that names the timeout, for errors
	Coaches bool          // the notes are read, and not the scores

	mu      sync.Mutex
	running map[*child.Process]bool
	stderr  []string // last lines of standard error of the last finished call
}

// New returns a checker that runs command by sh -c, with timeout for each Check.
func New(command string, timeout time.Duration) *Checker {
	return &Checker{Command: command, Timeout: timeout, running: map[*child.Process]bool{},
		Setting: "trainer.checker_timeout, --checker-timeout"}
}

// NewCoach returns a coach that runs command by sh -c, with timeout for each Check.
func NewCoach(command string, timeout time.Duration) *Checker {
	c := New(command, timeout)
	c.Coaches, c.Setting = true, "coach.timeout"
	return c
}

// Check runs the program on rows and returns a verdict for each, in order; without rows it runs
// nothing. When ctx or the timeout ends, it kills the program and all processes that it started.
func (c *Checker) Check(ctx context.Context, rows []Row) ([]Verdict, error) {
	return c.check(ctx, rows)
}

// Try runs Check on a few rows before a run begins, and passes t to the program in TrialVar.
func (c *Checker) Try(ctx context.Context, rows []Row, t Trial) ([]Verdict, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, c.failed("%v", err)
	}
	return c.check(ctx, rows, TrialVar+"="+string(text))
}

// TryTeacher runs Try on the teacher's answer to row at of set.
func (c *Checker) TryTeacher(ctx context.Context, set *data.Set, at int,
	t Trial) (v Verdict, err error) {
	r, err := set.Row(at)
	if err != nil {
		return v, err
	}
	rows, err := Rows(set, []int{at}, []string{r.Teacher}, []bool{false})
	if err != nil {
		return v, err
	}
	verdicts, err := c.Try(ctx, rows, t)
	if err != nil {
		return v, fmt.Errorf("tried on the teacher's answer to row %d: %w", at, err)
	}
	return verdicts[0], nil
}

// Said returns the last lines that the program wrote to standard error, in the call that finished
// last.
func (c *Checker) Said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stderr
}

// check runs the program on rows with env, VAR=value each, added to its environment.
func (c *Checker) check(ctx context.Context, rows []Row, env ...string) ([]Verdict, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	enc.SetEscapeHTML(false)
	for _, r := range rows {
		if r.Content == nil {
			r.Content = []Message{}
		}
		if err := enc.Encode(r); err != nil {
			return nil, c.failed("row %d: %v", r.Row, err)
		}
	}
	deadline, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	deadline, stop := context.WithCancel(deadline) // at the first breach of the protocol
	defer stop()
	out := &answers{rows: rows, stop: stop, parse: parse}
	if c.Coaches {
		out.parse = parseNotes
	}
	p, err := c.start(deadline, &in, out, env)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("checker: %q: interrupted: %w", c.Command, ctx.Err())
		}
		return nil, c.failed("cannot be started: %v", err)
	}
	err = p.Wait()
	c.mu.Lock()
	delete(c.running, p)
	c.stderr = p.StderrLines()
	c.mu.Unlock()
	if err = c.exitError(ctx, deadline, out, err, p.StderrNote()); err != nil {
		return nil, err
	}
	return out.verdicts, nil
}

// exitError returns the error of a call whose program has exited, nil if it scored all rows. err is
// the error of waiting for it, stderr the end of its standard error for the message; deadline ends
// with ctx, with the timeout and when out stops the program.
func (c *Checker) exitError(ctx, deadline context.Context, out *answers, err error,
	stderr string) error {
	switch {
	case out.err != nil:
		return c.failed("%v%s", out.err, stderr)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("checker: %q: interrupted: %w", c.Command, ctx.Err())
	case deadline.Err() != nil && (child.Ended(err) || errors.Is(err, context.DeadlineExceeded)):
		return c.failed(
			"%s: not finished after %v, so it was stopped: make it faster, or raise the time limit (%s)%s",
			out.progress(), c.Timeout, c.Setting, stderr)
	case err != nil:
		return c.failed("%s: ended with %v: must end with exit status 0%s", out.progress(), err,
			stderr)
	}
	if len(out.line) > 0 { // the last line may lack its end
		if out.endLine(); out.err != nil {
			return c.failed("%v%s", out.err, stderr)
		}
	}
	if len(out.verdicts) < len(out.rows) {
		return c.failed("%s: print one line per row, in order%s", out.progress(), stderr)
	}
	return nil
}

// start starts the program and registers it for Kill.
func (c *Checker) start(ctx context.Context, in io.Reader, out io.Writer,
	env []string) (*child.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := child.Start(ctx, c.Command, in, out, env...)
	if err == nil {
		c.running[p] = true
	}
	return p, err
}

// Kill kills the programs that are running, for a process that exits without waiting for them.
func (c *Checker) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.running {
		_ = p.Kill() // it may have ended just now
	}
}

// failed returns an ErrFailed that names the command.
func (c *Checker) failed(format string, args ...any) error {
	return fmt.Errorf("%w: %q: %s", ErrFailed, c.Command, fmt.Sprintf(format, args...))
}

// answers is the program's standard output. It parses each line as it arrives, so that neither a
// long line nor many lines fill the memory. The first breach of the protocol stops the program.
type answers struct {
	rows     []Row
	parse    func(line string) (Verdict, error)
	verdicts []Verdict
	line     []byte // the current line so far
	err      error  // first breach of the protocol
	stop     func() // stops the program
}

var errBroken = errors.New("the output breaks the protocol")

// Write parses output of the program. At a breach of the protocol it stops the program and returns
// errBroken, as it does for all later output.
func (a *answers) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && a.err == nil; {
		text, after, whole := bytes.Cut(rest, []byte("\n"))
		switch {
		case len(a.verdicts) == len(a.rows):
			a.err = fmt.Errorf("printed more than the %d lines for %d rows: print exactly one line per row; messages for people go to standard error", len(a.rows), len(a.rows))
		case len(a.line)+len(text) > maxLine:
			a.err = fmt.Errorf("%s: a line of more than %d bytes: print a number or a small object",
				a.here(), maxLine)
		default:
			a.line, rest = append(a.line, text...), after
			if whole {
				a.endLine()
			}
		}
	}
	if a.err != nil {
		a.stop()
		return 0, errBroken
	}
	return len(p), nil
}

// endLine parses the current line as a whole one, into the next verdict.
func (a *answers) endLine() {
	v, err := a.parse(string(a.line))
	if err != nil {
		a.err = fmt.Errorf("%s: %w", a.here(), err)
	}
	a.verdicts, a.line = append(a.verdicts, v), a.line[:0]
}

// here names the row and the line of the next verdict, for an error.
func (a *answers) here() string {
	return fmt.Sprintf("row %d (line %d)", a.rows[len(a.verdicts)].Row, len(a.verdicts)+1)
}

// progress says for an error how many rows the program has scored.
func (a *answers) progress() string {
	n := len(a.verdicts)
	if n == len(a.rows) {
		return fmt.Sprintf("printed all of %d scores", n)
	}
	return fmt.Sprintf("row %d has no score: printed %d of %d", a.rows[n].Row, n, len(a.rows))
}

// parse reads one line of the protocol.
func parse(line string) (v Verdict, err error) {
	const want = `print a finite number, or {"score":0.5,"label":"a word"}`
	text := strings.TrimSpace(line)
	if text == "null" {
		return Verdict{Score: math.NaN()}, nil
	}
	if !strings.HasPrefix(text, "{") {
		x, err := strconv.ParseFloat(text, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			return v, fmt.Errorf("%s is not a score: %s", child.Quote(text), want)
		}
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return v, fmt.Errorf("score %s is not finite: %s", child.Quote(text), want)
		}
		return Verdict{Score: x}, nil
	}
	var o struct {
		Score json.RawMessage `json:"score"` // null is a verdict, an absent score an error
		Label string          `json:"label"`
	}
	score := math.NaN()
	if err = json.Unmarshal([]byte(text), &o); err == nil && string(o.Score) != "null" {
		err = json.Unmarshal(o.Score, &score)
	}
	if err != nil {
		return v, fmt.Errorf("%s is not a score: %s", child.Quote(text), want)
	}
	if err := child.CheckLabel(o.Label); err != nil {
		return v, err
	}
	return Verdict{Score: score, Label: o.Label, Notes: notesOf(text)}, nil
}

var _ io.Writer = (*answers)(nil)

// Mean returns the mean score of the verdicts that have one, NaN if no verdict has, and the number
// of verdicts without a score.
func Mean(vs []Verdict) (mean float64, none int) {
	sum := 0.0
	for _, v := range vs {
		if v.None() {
			none++
		} else {
			sum += v.Score
		}
	}
	return sum / float64(len(vs)-none), none
}

// Shares returns for each label its share of all verdicts. Verdicts without a label count in the
// total only; without any label the map is nil.
func Shares(vs []Verdict) map[string]float64 {
	var shares map[string]float64
	for _, v := range vs {
		if v.Label != "" {
			if shares == nil {
				shares = map[string]float64{}
			}
			shares[v.Label]++
		}
	}
	for label := range shares {
		shares[label] /= float64(len(vs))
	}
	return shares
}
