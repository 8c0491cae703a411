// Package pipe runs what a judge gives to answers as a program that gad starts: a checker
// (apps/rubric) or a coach (apps/coach). It reads rows from standard input and writes a line for
// each.
//
// Every call is a new process. The model's replies are kept in a folder of journals, one for each
// list of prompts in a call: a call reads a single file, and a repeated step or validation finds
// the replies that it has paid for.
package pipe

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gad/apps/judge"
	"gad/apps/session"
	"gad/checkpoint"
	"gad/internal/child"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/journal"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/checker"
)

// Job is what the judge gives.
type Job struct {
	Name    string // of the command, for messages, and of the journals' keys
	What    string // plural of what a prompt is given
	Unit    string // what is asked about: prompt or answer
	Setting string // settings that give a call more time
	// NeedsTeacher says what the teacher's answer is for; "": rows may lack it.
	NeedsTeacher string
	// Ask has the judge answer the groups. first reports that the endpoint has never answered.
	Ask func(ctx context.Context, j *judge.Judge, groups []judge.Group, first bool) ([]Given, error)
	// Asks says how many requests a prompt with so many answers takes.
	Asks func(answers int) string
	// Expect returns the expected cost of a prompt with so many answers.
	Expect func(prompt, teacher float64, answers int) judge.Estimate
}

// Given is what the judge has given to the answers of a group.
type Given struct {
	Lines []string // by answer, as they are printed
	None  int      // answers to which it gave nothing
	Null  string   // why, of the first of them
}

// Options configures the judge and the folder of its replies.
type Options struct {
	Endpoint    endpoint.Options
	Model       string
	Dir         string // folder of the journals
	Temperature float64
	MaxTokens   int            // tokens of a reply
	Extra       map[string]any // additional fields of a request
	Price       *endpoint.Price
	Job         Job
}

// suffix ends the name of a journal.
const suffix = ".jsonl"

// Run answers the rows of in, as a checker does. It prints its requests and their cost on standard
// error.
func Run(s *session.Session, o Options, in io.Reader) (err error) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	o.Endpoint.Until = answerDeadline(os.Getenv(child.Deadline), time.Now())
	if !o.Endpoint.Until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, o.Endpoint.Until)
	}
	defer cancel()
	client, err := endpoint.New(o.Endpoint)
	if err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	groups, of, err := o.Job.read(in)
	if err != nil || len(groups) == 0 {
		return err
	}
	trial, err := o.Job.trialOf(os.Getenv(checker.TrialVar))
	if err != nil {
		return err
	}
	if err := vfs.MakeDirs(s.FS, o.Dir); err != nil {
		return vfs.Target(fmt.Errorf("%s: %w", o.Job.Name, err))
	}
	entries, err := s.FS.ReadDir(o.Dir)
	if err != nil {
		return vfs.Target(fmt.Errorf("%s: %w", o.Job.Name, err))
	}
	path := filepath.Join(o.Dir, o.Job.promptsOf(groups)+suffix)
	lock, err := lockJournal(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	kept, err := journal.Open(path, journal.Options{FS: s.FS, Name: o.Job.Name + ": journal"})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, kept.Close()) }()
	j := judge.New(judge.Options{Client: client, Journal: kept, Model: o.Model,
		Temperature: o.Temperature, MaxTokens: o.MaxTokens, Extra: o.Extra, Timeout: o.Job.Setting})
	given, err := o.Job.Ask(ctx, j, groups, trial != nil || len(entries) == 0)
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	if trial != nil {
		fmt.Fprintln(s.Err, o.expect(client.Host(), *trial))
	}
	fmt.Fprintln(s.Err, o.summary(given, j.Tally()))
	return write(s.Out, given, of)
}

// lockJournal locks a journal, and waits until ctx ends for another process that has it: a checker
// outlives a run that is killed, with requests in flight that the next run need not repeat.
func lockJournal(ctx context.Context, path string) (*checkpoint.Lock, error) {
	for {
		lock, err := checkpoint.LockOutput(path)
		if !errors.Is(err, checkpoint.ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// place is the index of an answer: its group, and its place in the group.
type place struct{ group, answer int }

// read reads the rows of a call: answers with the same row number form a group. of has the place of
// each row.
func (job Job) read(in io.Reader) (groups []judge.Group, of []place, err error) {
	dec, at := json.NewDecoder(bufio.NewReader(in)), map[int]int{}
	for line := 1; ; line++ {
		var row struct {
			checker.Row
			Response *string `json:"response"` // pointer: to distinguish a missing one
		}
		switch err := dec.Decode(&row); {
		case errors.Is(err, io.EOF):
			return groups, of, nil
		case err != nil:
			return nil, nil, fmt.Errorf(
				"%s: line %d of standard input: %w: give what a checker gets, one JSON object per line (doc/the-game.md)", job.Name, line, err)
		case row.Response == nil || len(row.Content) == 0:
			return nil, nil, fmt.Errorf(
				"%s: line %d of standard input: has no response or no content: a %[1]s is about a conversation in text, and an answer", job.Name, line)
		case row.Teacher == "" && job.NeedsTeacher != "":
			return nil, nil, fmt.Errorf("%s: line %d of standard input: row %d has no teacher's answer: %s",
				job.Name, line, row.Row.Row, job.NeedsTeacher)
		}
		g, ok := at[row.Row.Row]
		if !ok {
			g = len(groups)
			at[row.Row.Row] = g
			q := judge.Question{Prompt: judge.Texts(row.Content), Teacher: row.Teacher}
			groups = append(groups, judge.Group{Question: q})
		}
		of = append(of, place{g, len(groups[g].Answers)})
		groups[g].Answers = append(groups[g].Answers, *row.Response)
		groups[g].Cut = append(groups[g].Cut, row.Truncated)
	}
}

// promptsOf returns a digest of the list of prompts, without the answers.
func (job Job) promptsOf(groups []judge.Group) string {
	var list []judge.Question
	for _, g := range groups {
		list = append(list, g.Question)
	}
	return journal.Digest("gad "+job.Name, list)
}

// write writes a line for each row.
func write(out io.Writer, given []Given, of []place) error {
	w := bufio.NewWriter(out)
	for _, p := range of {
		fmt.Fprintln(w, given[p.group].Lines[p.answer])
	}
	return w.Flush()
}

// trialOf reads the description of the run that is being tried; nil if there is none.
func (job Job) trialOf(text string) (*checker.Trial, error) {
	if text == "" {
		return nil, nil
	}
	t := &checker.Trial{}
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return nil, fmt.Errorf("%s: %s: %w: leave it to gad to set it", job.Name,
			checker.TrialVar, err)
	}
	return t, nil
}

// margin is the least time that a call reserves after the last answer.
const margin = time.Second

// answerDeadline returns the time until which to wait for answers, by the time (Unix seconds) at
// which the process is killed; zero without such a time.
func answerDeadline(deadline string, now time.Time) time.Time {
	at, err := strconv.ParseInt(deadline, 10, 64)
	if err != nil {
		return time.Time{}
	}
	end := time.Unix(at, 0)
	return end.Add(-max(margin, end.Sub(now)/20))
}

// expect returns a message on the requests of a run and their cost.
func (o Options) expect(host string, t checker.Trial) string {
	var parts []string
	if t.Prompts > 0 {
		e := o.Job.Expect(t.PromptBytes, t.TeacherBytes, t.Answers)
		n := float64(t.Prompts)
		parts = append(parts, fmt.Sprintf("a step asks %s (%s of %s with %s): %s",
			report.Count(t.Prompts*e.Requests, "request"), o.Job.Asks(t.Answers),
			report.Count(t.Prompts, "prompt"), report.Count(t.Answers, "answer"),
			o.cost(t.Steps, endpoint.Usage{PromptTokens: int(n * e.ToJudge),
				CompletionTokens: int(n * e.FromJudge)})))
	}
	if t.Rows > 0 {
		e := o.Job.Expect(t.PromptBytes, t.TeacherBytes, 1)
		n := float64(t.Rows)
		parts = append(parts, fmt.Sprintf("a validation asks %s the first time, %d later: %s",
			report.Count(t.Rows*e.Requests, "request"), t.Rows,
			o.cost(1, endpoint.Usage{PromptTokens: int(n * e.ToJudge),
				CompletionTokens: int(n * e.FromJudge)})))
	}
	return fmt.Sprintf(
		"%s of %s at %s: %s; estimate by %d bytes per token and answers as long as the teacher's",
		o.Job.What, session.Harmless(o.Model), host, strings.Join(parts, "; "), judge.BytesPerToken)
}

// cost returns tokens and, if it is known, their price, for one time and for so many times.
func (o Options) cost(times int, u endpoint.Usage) string {
	text := fmt.Sprintf("%d tokens to it and %d from it", u.PromptTokens, u.CompletionTokens)
	if o.Price == nil {
		return text
	}
	once := o.Price.UsageCost(u)
	if text += fmt.Sprintf(", $%.2f", once); times > 1 {
		text += fmt.Sprintf(", $%.2f in %d steps", float64(times)*once, times)
	}
	return text
}

// replyCost returns the cost of so many replies, by the endpoint's counts.
func (o Options) replyCost(replies int, u endpoint.Usage) string {
	if replies > 0 && u.PromptTokens+u.CompletionTokens == 0 {
		return "whose tokens the endpoint does not count"
	}
	return o.cost(1, u)
}

// summary returns a message on the requests and the cost of a call.
func (o Options) summary(given []Given, t judge.Tally) string {
	text := fmt.Sprintf("%s of %s: %s made, %s; %d in %s before", o.Job.What,
		report.Count(len(given), "prompt"), report.Count(t.Asked, "request"),
		o.replyCost(t.Asked, t.Usage()), t.Kept, o.Dir)
	none, first := 0, ""
	for _, g := range given {
		none += g.None
		first = cmp.Or(first, g.Null)
	}
	if none > 0 {
		text += fmt.Sprintf("; %d without, the first: %.200q", none, first)
	}
	return text
}

// PrintCost prints the number and the cost of the replies in o.Dir, over all runs.
func PrintCost(s *session.Session, o Options) error {
	entries, err := s.FS.ReadDir(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Usagef("%s: %s: there is no such folder: give the --journal of a run",
			o.Job.Name, o.Dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.Job.Name, err)
	}
	var u endpoint.Usage
	replies, none := 0, 0
	for _, e := range entries {
		if filepath.Ext(e.Name()) != suffix || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		kept, err := journal.Read(filepath.Join(o.Dir, e.Name()),
			journal.Options{FS: s.FS, Name: o.Job.Name + ": journal"})
		if err != nil {
			return err
		}
		for _, raw := range kept.All() {
			var r struct {
				Kind  string
				Usage endpoint.Usage
			}
			if err := json.Unmarshal(raw, &r); err != nil {
				return fmt.Errorf("%s: %s: %w: give the --journal of a run", o.Job.Name, e.Name(),
					err)
			}
			if r.Kind == "none" {
				none++
				continue
			}
			replies++
			u.PromptTokens += r.Usage.PromptTokens
			u.CompletionTokens += r.Usage.CompletionTokens
			u.CachedTokens += r.Usage.CachedTokens
		}
	}
	fmt.Fprintf(s.Out, "%s: %s of the judge, %s; %s without an answer of the endpoint\n", o.Dir,
		replyCount(replies), o.replyCost(replies, u), report.Count(none, o.Job.Unit))
	return nil
}

// replyCount returns a number of replies as text.
func replyCount(n int) string {
	if n == 1 {
		return "1 reply"
	}
	return fmt.Sprintf("%d replies", n)
}
