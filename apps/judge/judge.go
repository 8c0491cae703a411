// Package judge asks a language model how good the answers of students are.
//
// In mode score it follows the evaluation of the GAD paper: the judge first answers each prompt
// itself, and then grades that reference and a student's answer from 1 to 10. In mode pair it
// compares two answers in both orders. By rubrics it grades the answers to a prompt together.
// Replies are untrusted text: their length is bounded, a verdict is parsed strictly, and an
// unreadable one counts as none. Every reply is kept in a journal under a digest of its request, so
// that none is paid for twice.
//
//	judge.go          Judge: requests, the journal, verdicts; start here
//	prompt.go         questions to the judge
//	parse.go          verdicts in its replies
//	report.go         figures of students; stats.go: win rates at equal lengths
//	table.go          the report as text
//	rubric.go         grades by rubrics; rubric_prompt.go: its questions
//	notes.go          notes for a teacher
//	answers.go        files of answers
//	cost.go           the expected cost
package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/internal/chat"
	"gad/internal/endpoint"
	"gad/internal/journal"
)

// Mode is the kind of verdict that the judge gives.
type Mode string

// The modes.
const (
	Score Mode = "score" // grades, together with the judge's own reference answer
	Pair  Mode = "pair"  // comparisons of two answers, in both orders
	Both  Mode = "both"
)

// Modes lists all modes.
var Modes = []string{string(Score), string(Pair), string(Both)}

// scores and pairs report whether the mode has grades, and comparisons.
func (m Mode) scores() bool { return m != Pair }
func (m Mode) pairs() bool  { return m != Score }

// Question is a prompt with the teacher's answer to it.
type Question struct {
	Prompt  []chat.Message
	Teacher string
}

// Student is a model with its answers.
type Student struct {
	Name    string
	Answers []string // by question
}

// Options configures a Judge.
type Options struct {
	Client  *endpoint.Client
	Journal *journal.Journal
	Model   string
	Mode    Mode
	// AgainstFirst compares students with the first of them instead of with the teacher.
	AgainstFirst bool
	Temperature  float64
	MaxTokens    int            // tokens of a reply
	Extra        map[string]any // additional fields of a request; nil removes a field
	Seed         uint64         // of the bootstrap intervals
	Timeout      string         // settings that give a call more time; "": a checker's
	// Stages starts a display of progress; may be nil.
	Stages func(name string, total int) (advance func(n int), done func())
}

// Judge asks the judging model, and counts requests and verdicts.
type Judge struct {
	o Options

	mu     sync.Mutex
	flight map[string]*flight
	tally  Tally

	references []reference

	read, unread int // numbers of readable and unreadable verdicts

	retriesConnect bool // retry a connection that fails: see Rubrics
}

// ErrNoVerdict reports a judge without any readable verdict.
var ErrNoVerdict = errors.New("no verdict can be read")

// maxUnread is the number of unreadable verdicts, without a readable one, at which judging stops.
const maxUnread = 20

// Tally is the numbers of a judge's requests and tokens.
type Tally struct {
	Asked            int `json:"asked"`    // requests made
	Kept             int `json:"kept"`     // replies found in the journal
	Reminded         int `json:"reminded"` // reminders, after replies without a verdict
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`       // of the requests made, as the endpoint counts
	CachedTokens     int `json:"cached_tokens,omitempty"` // of PromptTokens, from a cache of the endpoint
}

// Usage returns all tokens.
func (t Tally) Usage() endpoint.Usage {
	return endpoint.Usage{PromptTokens: t.PromptTokens, CompletionTokens: t.CompletionTokens,
		CachedTokens: t.CachedTokens}
}

// reference is the judge's own answer to a prompt.
type reference struct {
	text string
	null string // why there is no answer; "" where there is one
	cut  bool   // ended by the limit of tokens
}

// timeout returns the settings that give a call more time.
func (o Options) timeout() string {
	return cmp.Or(o.Timeout, "trainer.checker_timeout, --checker-timeout")
}

// New returns a judge.
func New(o Options) *Judge {
	if o.Stages == nil {
		o.Stages = func(string, int) (func(int), func()) { return func(int) {}, func() {} }
	}
	return &Judge{o: o, flight: map[string]*flight{}}
}

// Tally returns the counts so far.
func (j *Judge) Tally() Tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.tally
}

// record is the journal's record of a request and its reply.
type record struct {
	Kind        string         `json:"kind"` // reference, score, pair, rubric, grades or none
	Model       string         `json:"model"`
	Temperature float64        `json:"temperature"`
	MaxTokens   int            `json:"max_tokens"`
	Extra       map[string]any `json:"extra,omitempty"`
	Messages    []chat.Message `json:"messages"`
	Reply       string         `json:"reply"`
	Finish      string         `json:"finish_reason"`
	Refusal     string         `json:"refusal,omitempty"`
	ServedAs    string         `json:"served_as,omitempty"` // the endpoint's name of the model
	Usage       endpoint.Usage `json:"usage"`
	Time        time.Time      `json:"time"`
}

// flight is a request in flight.
type flight struct {
	done chan struct{}
	rec  record
	err  error
}

// maxReply is the largest part of a reply that is kept, in bytes.
const maxReply = 1 << 20

// ask returns the reply to messages, from the journal or by a request. Equal calls at the same time
// share one request.
func (j *Judge) ask(ctx context.Context, kind string, messages []chat.Message) (record, error) {
	key := requestKey(j.o, messages)
	j.mu.Lock()
	if f, ok := j.flight[key]; ok {
		j.mu.Unlock()
		<-f.done
		return f.rec, f.err
	}
	f := &flight{done: make(chan struct{})}
	j.flight[key] = f
	j.mu.Unlock()
	f.rec, f.err = j.fetch(ctx, key, kind, messages)
	if f.err != nil { // a later call tries again
		j.mu.Lock()
		delete(j.flight, key)
		j.mu.Unlock()
	}
	close(f.done)
	return f.rec, f.err
}

// requestKey returns the key of a request in the journal. It must not change: TestJournalOfBefore.
func requestKey(o Options, messages []chat.Message) string {
	return journal.Digest("gad judge", o.Model, o.Temperature, o.MaxTokens, o.Extra, messages)
}

// fetch returns the reply from the journal, or requests it and appends it to the journal.
func (j *Judge) fetch(ctx context.Context, key, kind string,
	messages []chat.Message) (r record, err error) {
	if raw, ok := j.o.Journal.Lookup(key); ok {
		if err := json.Unmarshal(raw, &r); err != nil || len(r.Messages) != len(messages) {
			return r, fmt.Errorf("judge: journal: the record %s is no judgment: give another file",
				key)
		}
		j.o.Client.SetProven()
		j.mu.Lock()
		j.tally.Kept++
		j.mu.Unlock()
		return r, nil
	}
	request := endpoint.Request{Model: j.o.Model, Temperature: &j.o.Temperature,
		MaxTokens: j.o.MaxTokens, Extra: map[string]any{}}
	for name, x := range j.o.Extra {
		switch {
		case x != nil:
			request.Extra[name] = x
		case name == "temperature":
			request.Temperature = nil
		case name == "max_tokens":
			request.MaxTokens = 0
		}
	}
	request.Messages = messages
	a, err := j.o.Client.Try(ctx, request)
	if err != nil && j.retriesConnect {
		return r, err
	} else if err != nil {
		return r, j.connectError(err)
	}
	c := a.Choices[0]
	r = record{Kind: kind, Model: j.o.Model, Temperature: j.o.Temperature, MaxTokens: j.o.MaxTokens,
		Extra: j.o.Extra, Messages: messages,
		Reply: truncate(c.Content, maxReply), Finish: truncate(c.FinishReason, 64),
		Refusal: truncate(c.Refusal, maxReply), ServedAs: truncate(a.Model, 256),
		Usage: a.Usage, Time: time.Now().UTC().Truncate(time.Second)}
	if err := j.o.Journal.Append(key, r); err != nil {
		return r, err
	}
	j.mu.Lock()
	j.tally.Asked++
	j.tally.PromptTokens += a.Usage.PromptTokens
	j.tally.CompletionTokens += a.Usage.CompletionTokens
	j.tally.CachedTokens += a.Usage.CachedTokens
	j.mu.Unlock()
	return r, nil
}

// connectError makes a failed connection to an endpoint that has never answered an error that is
// not retried: a wrong address does not deserve patience.
func (j *Judge) connectError(err error) error {
	var e *endpoint.Error
	if !errors.As(err, &e) || e.Status > 0 || !strings.HasPrefix(e.Text, "cannot connect") &&
		!strings.HasPrefix(e.Text, "tls: ") || j.Tally().Asked > 0 {
		return err
	}
	return fmt.Errorf("judge: %s: %s: check the address, and that the judge runs", e.Host, e.Text)
}

// truncate returns the beginning of text, at most n bytes of valid UTF-8.
func truncate(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// stripThought returns a reply without the thought before it.
func stripThought(reply string) string {
	if i := strings.LastIndex(reply, "</think>"); i >= 0 {
		return reply[i+len("</think>"):]
	}
	return reply
}

// References lets the judge answer each prompt itself, in a mode that needs it. This needs no
// students' answers, so that an unreachable judge or a wrong key fails before students answer.
func (j *Judge) References(ctx context.Context, questions []Question) error {
	if !j.o.Mode.scores() || j.references != nil {
		return nil
	}
	refs := make([]reference, len(questions))
	err := j.each(ctx, "judge: reference answers", len(questions),
		func(ctx context.Context, i int) error {
			r, err := j.ask(ctx, "reference", questions[i].Prompt)
			if err != nil {
				return err
			}
			refs[i] = reference{text: strings.TrimSpace(stripThought(r.Reply)),
				cut: r.Finish == "length"}
			if refs[i].text == "" {
				refs[i].null = "the judge's reference answer is empty"
			}
			return nil
		}, func(i int, why string) { refs[i].null = why })
	if err == nil {
		j.references = refs
	}
	return err
}

// each calls ask for n requests. A request that the endpoint refuses (while it answers others) goes
// to null with the reason; other failures return an error, and the same command tries them again.
func (j *Judge) each(ctx context.Context, name string, n int,
	ask func(ctx context.Context, i int) error, null func(i int, why string)) error {
	advance, done := j.o.Stages(name, n)
	defer done()
	err := j.o.Client.Each(ctx, n, func(ctx context.Context, i int) error {
		err := ask(ctx, i)
		if err == nil {
			advance(1)
		}
		return err
	})
	var failures endpoint.Failures
	if !errors.As(err, &failures) {
		return err
	}
	var failed endpoint.Failures
	for _, f := range failures {
		if endpoint.Refused(f.Err) {
			null(f.Index, f.Err.Error())
		} else {
			failed = append(failed, f)
		}
	}
	if len(failures) == n { // no request has a reply
		return fmt.Errorf("judge: no request of %d has a reply: %w", n, failures[0].Err)
	}
	if failed != nil {
		return fmt.Errorf(
			"judge: %d of %d requests have no reply: the same command asks only for those: %w",
			len(failed), n, failed[0].Err)
	}
	return nil
}

// rule requests a verdict. It sends a reminder once, which asks for the verdict and nothing else,
// if the first reply has none, or one that may be quoted from the material. null is the reason if
// there is no verdict.
func rule[T any](ctx context.Context, j *Judge, kind string, messages []chat.Message,
	reminder string,
	quotes func(reply, material string) bool,
	parse func(reply string) (T, error)) (v T, null string, err error) {
	material := messages[len(messages)-1].Content
	for try := 0; ; try++ {
		r, err := j.ask(ctx, kind, messages)
		if err != nil {
			return v, "", err
		}
		if try == 1 {
			j.mu.Lock()
			j.tally.Reminded++
			j.mu.Unlock()
		}
		switch {
		case r.Finish == "length": // the verdict comes last
			null = fmt.Sprintf("the reply is cut at %d tokens", j.o.MaxTokens)
		case r.Reply == "" && r.Refusal != "":
			null = "the judge declines"
		default:
			var unread error
			if v, unread = parse(r.Reply); unread == nil &&
				(try == 1 || !quotes(r.Reply, material)) {
				return v, "", nil
			}
			if unread != nil {
				null = "the reply " + unread.Error()
			}
		}
		if try == 1 {
			return v, null, nil
		}
		said := r.Reply
		if at := len(said) - maxQuoted; at > 0 {
			said = strings.ToValidUTF8(said[at:], "")
		}
		if strings.TrimSpace(said) == "" {
			said = "(nothing)"
		}
		messages = append(messages[:len(messages):len(messages)],
			chat.Message{Role: "assistant", Content: said},
			chat.Message{Role: "user", Content: reminder})
	}
}

// maxQuoted is the largest part of its reply that a reminder repeats to the judge, in bytes.
const maxQuoted = 4 << 10

// Verdict is the judge's verdict on a student's answer to one question.
type Verdict struct {
	// Mode score: both or neither is set.
	Grade     *float64 `json:"grade,omitempty"`
	Reference *float64 `json:"reference_grade,omitempty"`
	// Mode pair: won, lost, tie, or "" without a verdict. First is the game in which the
	// student's answer is shown first.
	First  string `json:"shown_first,omitempty"`
	Second string `json:"shown_second,omitempty"`
	Equal  bool   `json:"equal,omitempty"` // equal answers: a tie without a request
	// Why there is no verdict.
	NullScore string `json:"null_score,omitempty"`
	NullPair  string `json:"null_pair,omitempty"`
}

const (
	won  = "won"
	lost = "lost"
	tied = "tie"
)

// task is one verdict to request.
type task struct {
	student, question int
	kind              int // score, or the order of a pair
}

const (
	taskScore = iota
	taskFirst
	taskSecond
)

// Judge requests the verdicts on every answer of every student and returns the report. After the
// end of ctx the error is ctx's.
func (j *Judge) Judge(ctx context.Context, questions []Question,
	students []Student) (*Report, error) {
	for _, s := range students {
		if len(s.Answers) != len(questions) {
			return nil, fmt.Errorf("judge: %s has %d answers to %d questions", s.Name,
				len(s.Answers), len(questions))
		}
	}
	if err := j.References(ctx, questions); err != nil {
		return nil, err
	}
	verdicts := make([][]Verdict, len(students))
	var tasks []task
	for s := range students {
		verdicts[s] = make([]Verdict, len(questions))
		for q := range questions {
			if j.o.Mode.scores() {
				if why := j.references[q].null; why != "" {
					verdicts[s][q].NullScore = why
				} else {
					tasks = append(tasks, task{s, q, taskScore})
				}
			}
			if other, ok := j.opponent(questions, students, s, q); !ok {
			} else if other == students[s].Answers[q] {
				verdicts[s][q].Equal, verdicts[s][q].First, verdicts[s][q].Second = true, tied, tied
			} else {
				tasks = append(tasks, task{s, q, taskFirst}, task{s, q, taskSecond})
			}
		}
	}
	err := j.each(ctx, "judge: verdicts", len(tasks), func(ctx context.Context, i int) error {
		return j.do(ctx, tasks[i], questions, students,
			&verdicts[tasks[i].student][tasks[i].question])
	}, func(i int, why string) {
		v := &verdicts[tasks[i].student][tasks[i].question]
		if tasks[i].kind == taskScore {
			v.NullScore = why
		} else {
			v.NullPair = why
		}
	})
	if err != nil {
		return nil, err
	}
	if j.unread > 0 && !slices.ContainsFunc(slices.Concat(verdicts...), Verdict.any) {
		return nil, fmt.Errorf("judge: %w, of %d: %s", ErrNoVerdict, j.unread, firstNull(verdicts))
	}
	return j.report(questions, students, verdicts), nil
}

// any reports whether there is any verdict.
func (v Verdict) any() bool { return v.Grade != nil || v.First != "" || v.Second != "" }

// firstNull returns the reason of the first missing verdict.
func firstNull(verdicts [][]Verdict) string {
	for _, v := range slices.Concat(verdicts...) {
		if why := cmp.Or(v.NullScore, v.NullPair); why != "" {
			return why
		}
	}
	return ""
}

// countVerdict counts a verdict, or a missing one whose reason is null. It returns an error after
// maxUnread missing verdicts without any other: each reply costs, and the next ones would be alike.
func (j *Judge) countVerdict(null string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if null == "" {
		j.read++
		return nil
	}
	j.unread++
	if j.read == 0 && j.unread >= maxUnread {
		return fmt.Errorf("judge: %w, of %d so far: %s", ErrNoVerdict, maxUnread, null)
	}
	return nil
}

// opponent returns the answer that a student's answer is compared with; false if there is no
// comparison.
func (j *Judge) opponent(questions []Question, students []Student, s, q int) (string, bool) {
	switch {
	case !j.o.Mode.pairs(), j.o.AgainstFirst && s == 0:
		return "", false
	case j.o.AgainstFirst:
		return students[0].Answers[q], true
	}
	return questions[q].Teacher, true
}

// do requests one verdict. Tasks of one question write to different fields, except NullPair, which
// both orders share.
func (j *Judge) do(ctx context.Context, t task, questions []Question, students []Student,
	v *Verdict) error {
	prompt, answer := questions[t.question].Prompt, students[t.student].Answers[t.question]
	if t.kind == taskScore {
		g, null, err := rule(ctx, j, "score",
			scoreQuestion(prompt, j.references[t.question].text, answer), scoreReminder,
			quotesVerdict(gradeKeys), parseGrades)
		if err != nil {
			return err
		}
		if v.NullScore = null; null == "" {
			v.Grade, v.Reference = &g.answer, &g.reference
		}
		return j.countVerdict(null)
	}
	other, _ := j.opponent(questions, students, t.student, t.question)
	a, b := answer, other
	mine, to := "A", &v.First
	if t.kind == taskSecond {
		a, b, mine, to = other, answer, "B", &v.Second
	}
	better, null, err := rule(ctx, j, "pair", pairQuestion(prompt, a, b), pairReminder,
		quotesVerdict(betterKeys), parseBetter)
	if err != nil {
		return err
	}
	switch {
	case null != "":
		j.mu.Lock()
		v.NullPair = null
		j.mu.Unlock()
	case better == "tie":
		*to = tied
	case better == mine:
		*to = won
	default:
		*to = lost
	}
	return j.countVerdict(null)
}
