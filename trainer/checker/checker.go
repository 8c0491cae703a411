// Package checker runs a program of the user's that scores answers, and only where a setting or
// a flag names it.
//
// The protocol: the program gets one JSON object a line on its standard input (Row),
// then end of file. It prints one line a row, in order: a number, or
// {"score":0.5,"label":"short"}. Scores are finite, larger is better, 0 to 1 is
// usual; a label names what sort of answer it is. null, or a score that is null, is no
// score: the program cannot tell. It ends with exit status 0.
//
// Rows with the same number are answers to the same prompt. A training step's call has
// all of them.
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

// Row is what the program is told of one answer.
type Row struct {
	Row       int       `json:"row"`     // in the data set, from 0
	Prompt    string    `json:"prompt"`  // the last turn before the answer
	Content   []Message `json:"content"` // the whole conversation before it
	Response  string    `json:"response"`
	Teacher   string    `json:"teacher_response"`
	Truncated bool      `json:"truncated"` // the response was cut at the length limit
}

// Rows are answers to the rows of set that at names, as a program is told of them.
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

// Message is one turn of a conversation, as rows have it.
type Message = data.Message

// Verdict is what the program says of one answer.
type Verdict struct {
	Score float64 // finite, or NaN: the program gives none
	Label string  // "" is none
}

// None reports whether the program gives no score.
func (v Verdict) None() bool { return math.IsNaN(v.Score) }

// MarshalJSON writes a verdict as a program prints it.
func (v Verdict) MarshalJSON() ([]byte, error) {
	o := struct {
		Score *float64 `json:"score"`
		Label string   `json:"label,omitempty"`
	}{&v.Score, v.Label}
	if v.None() {
		o.Score = nil
	}
	return json.Marshal(o)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Verdict) UnmarshalJSON(line []byte) (err error) {
	*v, err = parse(string(line))
	return err
}

// Trial is what a run will ask of a program, for which it is tried first. The program has it as
// JSON in the variable GAD_TRIAL, and may say on standard error what that will cost.
type Trial struct {
	Steps   int `json:"steps"`   // in which answers are scored
	Prompts int `json:"prompts"` // of a step; 0: a step's answers are not scored
	Answers int `json:"answers"` // to each
	Rows    int `json:"validation_rows"`

	// Means over rows of the training data.
	PromptBytes  float64 `json:"prompt_bytes"`
	TeacherBytes float64 `json:"teacher_bytes"`
}

// TrialVar is the variable that holds a Trial.
const TrialVar = "GAD_TRIAL"

// ErrFailed is wrapped by every error of a program that did not keep to the protocol.
// An error of a context that ended wraps that of the context instead.
var ErrFailed = errors.New("checker")

// maxLine bounds a line that a program prints, bytes.
const maxLine = 64 << 10

// Checker is a command, run once for each Check. Its methods may be called from
// several goroutines.
type Checker struct {
	Command string        // for sh -c
	Timeout time.Duration // of one Check

	mu      sync.Mutex
	running map[*child.Process]bool
	said    []string
}

// New is a checker that runs command with a deadline for each Check.
func New(command string, timeout time.Duration) *Checker {
	return &Checker{Command: command, Timeout: timeout, running: map[*child.Process]bool{}}
}

// Check has the program score rows: one verdict each, in order. When ctx or the
// deadline ends, the program and all that it started are killed.
func (c *Checker) Check(ctx context.Context, rows []Row) ([]Verdict, error) {
	return c.check(ctx, rows)
}

// Try is Check of a few rows before a run begins.
func (c *Checker) Try(ctx context.Context, rows []Row, t Trial) ([]Verdict, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, c.failed("%v", err)
	}
	return c.check(ctx, rows, TrialVar+"="+string(text))
}

// Said are the last lines that the program has written to standard error, in the call that has
// ended last.
func (c *Checker) Said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

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
	deadline, stop := context.WithCancel(deadline) // by the program's own fault
	defer stop()
	out := &answers{rows: rows, broke: stop}
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
	c.said = p.StderrLines()
	c.mu.Unlock()
	if err = c.ended(ctx, deadline, out, err, p.StderrNote()); err != nil {
		return nil, err
	}
	return out.verdicts, nil
}

// ended is the error of a program that has ended with err.
func (c *Checker) ended(ctx, deadline context.Context, out *answers, err error,
	said string) error {
	switch {
	case out.err != nil:
		return c.failed("%v%s", out.err, said)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("checker: %q: interrupted: %w", c.Command, ctx.Err())
	case deadline.Err() != nil && (child.Ended(err) || errors.Is(err, context.DeadlineExceeded)):
		return c.failed("%s: not finished after %v, so it was stopped: make it faster, or raise the time limit (trainer.checker_timeout, --checker-timeout)%s", out.missing(), c.Timeout, said)
	case err != nil:
		return c.failed("%s: ended with %v: must end with exit status 0%s", out.missing(), err,
			said)
	}
	if len(out.line) > 0 { // the last line may lack its end
		if out.end(); out.err != nil {
			return c.failed("%v%s", out.err, said)
		}
	}
	if len(out.verdicts) < len(out.rows) {
		return c.failed("%s: print one line per row, in order%s", out.missing(), said)
	}
	return nil
}

// start starts the program, and notes it for Kill.
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

// Kill ends what is running now, for a process that is about to end without waiting.
func (c *Checker) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.running {
		_ = p.Kill() // it may have ended just now
	}
}

func (c *Checker) failed(format string, args ...any) error {
	return fmt.Errorf("%w: %q: %s", ErrFailed, c.Command, fmt.Sprintf(format, args...))
}

// answers reads what the program prints, line by line as it comes, so that neither a
// line nor their number can fill the memory. The first fault ends the program.
type answers struct {
	rows     []Row
	verdicts []Verdict
	line     []byte // begun
	err      error
	broke    func()
}

var errBroken = errors.New("the output breaks the protocol")

// Write takes output; after a fault it takes no more.
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
				a.end()
			}
		}
	}
	if a.err != nil {
		a.broke()
		return 0, errBroken
	}
	return len(p), nil
}

// end takes the line that has been begun as a whole one.
func (a *answers) end() {
	v, err := parse(string(a.line))
	if err != nil {
		a.err = fmt.Errorf("%s: %w", a.here(), err)
	}
	a.verdicts, a.line = append(a.verdicts, v), a.line[:0]
}

// here names the row that the next line is for.
func (a *answers) here() string {
	return fmt.Sprintf("row %d (line %d)", a.rows[len(a.verdicts)].Row, len(a.verdicts)+1)
}

// missing says how far the program came.
func (a *answers) missing() string {
	n := len(a.verdicts)
	if n == len(a.rows) {
		return fmt.Sprintf("printed all of %d scores", n)
	}
	return fmt.Sprintf("row %d has no score: printed %d of %d", a.rows[n].Row, n, len(a.rows))
}

// parse reads one line.
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
		Score json.RawMessage `json:"score"` // null is not the same as none
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
	return Verdict{score, o.Label}, nil
}

var _ io.Writer = (*answers)(nil)

// Mean is the mean score of the verdicts that have one, NaN without any. none is how many have
// none.
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

// Shares are the shares of the labels, those without one apart; nil where there is none.
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
