// Package judge asks a language model how good the answers of students are.
//
// In mode score it follows the evaluation of the GAD paper: the judge first answers each
// prompt itself, and then grades that reference and a student's answer from 1 to 10. In
// mode pair it compares two answers in both orders. Its replies are text that nobody
// controls: they are bounded, a verdict is read strictly, and one that cannot be read
// counts as none. Every reply is kept in a journal under a digest of its request, so that
// none is paid for twice.
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

	"gad/internal/endpoint"
	"gad/internal/journal"
)

// Mode is what the judge is asked for.
type Mode string

// The modes.
const (
	Score Mode = "score" // grades beside the judge's own reference answer
	Pair  Mode = "pair"  // two answers, in both orders
	Both  Mode = "both"
)

// Modes are all modes.
var Modes = []string{string(Score), string(Pair), string(Both)}

func (m Mode) scores() bool { return m != Pair }
func (m Mode) pairs() bool  { return m != Score }

// Question is a prompt with the teacher's answer to it.
type Question struct {
	Prompt  []Turn
	Teacher string
}

// Student is who answered.
type Student struct {
	Name    string
	Answers []string // by question
}

// Options say how is judged.
type Options struct {
	Client  *endpoint.Client
	Journal *journal.Journal
	Model   string
	Mode    Mode
	// AgainstFirst compares students with the first of them instead of with the teacher.
	AgainstFirst bool
	Temperature  float64
	MaxTokens    int            // of a reply
	Extra        map[string]any // further fields of a request, by name; nil leaves one out
	Seed         uint64         // of the intervals
	// Stages shows progress; nil shows nothing.
	Stages func(name string, total int) (advance func(n int), done func())
}

// Judge is a judge at work. It remembers what it has counted.
type Judge struct {
	o Options

	mu     sync.Mutex
	flight map[string]*flight
	tally  Tally

	references []reference

	read, unread int // verdicts that could be read, and those that could not

	patient bool // with an endpoint that is not there, since it has been: see Rubrics
}

// ErrNoVerdict is a judge that gives no verdict that can be read.
var ErrNoVerdict = errors.New("no verdict can be read")

// maxUnread is how many verdicts are asked for where none can be read.
const maxUnread = 20

// Tally is what a judge's replies took.
type Tally struct {
	Asked            int `json:"asked"`    // requests of this call
	Kept             int `json:"kept"`     // replies that the journal had
	Reminded         int `json:"reminded"` // replies without a verdict, which were asked for again
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`       // of this call, as the endpoint counts
	CachedTokens     int `json:"cached_tokens,omitempty"` // of PromptTokens, from a cache of the endpoint
}

// Usage is all of its tokens.
func (t Tally) Usage() endpoint.Usage {
	return endpoint.Usage{PromptTokens: t.PromptTokens, CompletionTokens: t.CompletionTokens,
		CachedTokens: t.CachedTokens}
}

// reference is the judge's own answer.
type reference struct {
	text string
	null string // why there is none; "" where there is one
	cut  bool   // by the limit of tokens
}

// New is a judge.
func New(o Options) *Judge {
	if o.Stages == nil {
		o.Stages = func(string, int) (func(int), func()) { return func(int) {}, func() {} }
	}
	return &Judge{o: o, flight: map[string]*flight{}}
}

// Tally is what has been asked so far.
func (j *Judge) Tally() Tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.tally
}

// record is what the journal keeps of a request: the request, and the reply as it came.
type record struct {
	Kind        string         `json:"kind"` // reference, score, pair, rubric, grades or none
	Model       string         `json:"model"`
	Temperature float64        `json:"temperature"`
	MaxTokens   int            `json:"max_tokens"`
	Extra       map[string]any `json:"extra,omitempty"`
	Messages    []Turn         `json:"messages"`
	Reply       string         `json:"reply"`
	Finish      string         `json:"finish_reason"`
	Refusal     string         `json:"refusal,omitempty"`
	ServedAs    string         `json:"served_as,omitempty"` // the endpoint's name of the model
	Usage       endpoint.Usage `json:"usage"`
	Time        time.Time      `json:"time"`
}

// flight is a request that is being made.
type flight struct {
	done chan struct{}
	rec  record
	err  error
}

// maxReply bounds what is kept of a reply, in bytes.
const maxReply = 1 << 20

// ask is the reply to messages: the journal's, or a new one. Equal requests at the same
// time are one.
func (j *Judge) ask(ctx context.Context, kind string, messages []Turn) (record, error) {
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
	if f.err != nil { // the next one may do better
		j.mu.Lock()
		delete(j.flight, key)
		j.mu.Unlock()
	}
	close(f.done)
	return f.rec, f.err
}

// requestKey is the key of a request in the journal. See TestJournalOfBefore.
func requestKey(o Options, messages []Turn) string {
	return journal.Digest("gad judge", o.Model, o.Temperature, o.MaxTokens, o.Extra, messages)
}

func (j *Judge) fetch(ctx context.Context, key, kind string,
	messages []Turn) (r record, err error) {
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
	for _, t := range messages {
		request.Messages = append(request.Messages,
			endpoint.Message{Role: t.Role, Content: t.Content})
	}
	a, err := j.o.Client.Try(ctx, request)
	if err != nil && j.patient {
		return r, err
	} else if err != nil {
		return r, j.unreached(err)
	}
	c := a.Choices[0]
	r = record{Kind: kind, Model: j.o.Model, Temperature: j.o.Temperature, MaxTokens: j.o.MaxTokens,
		Extra: j.o.Extra, Messages: messages,
		Reply: bounded(c.Content, maxReply), Finish: bounded(c.FinishReason, 64),
		Refusal: bounded(c.Refusal, maxReply), ServedAs: bounded(a.Model, 256),
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

// unreached makes an endpoint that was never there an error at once: a wrong address is
// not worth the patience that one earns that has answered.
func (j *Judge) unreached(err error) error {
	var e *endpoint.Error
	if !errors.As(err, &e) || e.Status > 0 || !strings.HasPrefix(e.Text, "cannot connect") &&
		!strings.HasPrefix(e.Text, "tls: ") || j.Tally().Asked > 0 {
		return err
	}
	return fmt.Errorf("judge: %s: %s: check the address, and that the judge runs", e.Host, e.Text)
}

// bounded is the beginning of text, in at most n bytes of valid UTF-8.
func bounded(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// thought is a reply without what a reasoning model thinks before it.
func thought(reply string) string {
	if i := strings.LastIndex(reply, "</think>"); i >= 0 {
		return reply[i+len("</think>"):]
	}
	return reply
}

// References has the judge answer each prompt itself, in a mode that needs it. It asks
// nothing about students, so that a judge that cannot be reached, or does not take the
// key, is seen before students answer.
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
			refs[i] = reference{text: strings.TrimSpace(thought(r.Reply)),
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

// each asks for n things. What the endpoint refuses to answer, prompt by prompt, is
// null; what fails otherwise is an error, and asked again by the same command.
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
	if len(failures) == n { // nothing is known of any
		return fmt.Errorf("judge: no request of %d has a reply: %w", n, failures[0].Err)
	}
	if failed != nil {
		return fmt.Errorf(
			"judge: %d of %d requests have no reply: the same command asks only for those: %w",
			len(failed), n, failed[0].Err)
	}
	return nil
}

// rule asks for a verdict, with a reminder where the first reply has none, or one that
// is a quotation, perhaps, of the material: the reminder asks for the verdict and nothing else.
// null says why there is no verdict.
func rule[T any](ctx context.Context, j *Judge, kind string, messages []Turn, reminder string,
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
		case r.Finish == "length": // the verdict would come last
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
		messages = append(messages[:len(messages):len(messages)], Turn{"assistant", said},
			Turn{"user", reminder})
	}
}

// maxQuoted bounds what is repeated to the judge of its own reply, in bytes.
const maxQuoted = 4 << 10

// Verdict is what the judge says of a student's answer to one question.
type Verdict struct {
	// Mode score. Both or neither is there.
	Grade     *float64 `json:"grade,omitempty"`
	Reference *float64 `json:"reference_grade,omitempty"`
	// Mode pair: won, lost, tie, or "" where there is no verdict. First is the game in
	// which the student's answer is shown first.
	First  string `json:"shown_first,omitempty"`
	Second string `json:"shown_second,omitempty"`
	Equal  bool   `json:"equal,omitempty"` // the two answers are the same: a tie that nobody is asked about
	// Why there is no verdict.
	NullScore string `json:"null_score,omitempty"`
	NullPair  string `json:"null_pair,omitempty"`
}

const (
	won  = "won"
	lost = "lost"
	tied = "tie"
)

// task is one thing to ask about a student.
type task struct {
	student, question int
	kind              int // score, or the order of a pair
}

const (
	taskScore = iota
	taskFirst
	taskSecond
)

// Judge asks about every answer of every student, and counts. An error that follows an
// end of ctx is ctx's.
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

// any reports whether there is a verdict of some kind.
func (v Verdict) any() bool { return v.Grade != nil || v.First != "" || v.Second != "" }

// firstNull is why the first verdict that is missing is missing.
func firstNull(verdicts [][]Verdict) string {
	for _, v := range slices.Concat(verdicts...) {
		if why := cmp.Or(v.NullScore, v.NullPair); why != "" {
			return why
		}
	}
	return ""
}

// counted counts a verdict, which null says is none. It is an error where the judge has
// given many replies and never a verdict: each is paid for, and the others would be alike.
func (j *Judge) counted(null string) error {
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

// opponent is the answer that a student's is compared with, if it is compared.
func (j *Judge) opponent(questions []Question, students []Student, s, q int) (string, bool) {
	switch {
	case !j.o.Mode.pairs(), j.o.AgainstFirst && s == 0:
		return "", false
	case j.o.AgainstFirst:
		return students[0].Answers[q], true
	}
	return questions[q].Teacher, true
}

// do asks one task. Tasks of one question write to fields of their own, but for
// NullPair, which the two orders share.
func (j *Judge) do(ctx context.Context, t task, questions []Question, students []Student,
	v *Verdict) error {
	prompt, answer := questions[t.question].Prompt, students[t.student].Answers[t.question]
	if t.kind == taskScore {
		g, null, err := rule(ctx, j, "score",
			scoreQuestion(prompt, j.references[t.question].text, answer), scoreReminder,
			quoted(gradeKeys), parseGrades)
		if err != nil {
			return err
		}
		if v.NullScore = null; null == "" {
			v.Grade, v.Reference = &g.answer, &g.reference
		}
		return j.counted(null)
	}
	other, _ := j.opponent(questions, students, t.student, t.question)
	a, b := answer, other
	mine, to := "A", &v.First
	if t.kind == taskSecond {
		a, b, mine, to = other, answer, "B", &v.Second
	}
	better, null, err := rule(ctx, j, "pair", pairQuestion(prompt, a, b), pairReminder,
		quoted(betterKeys), parseBetter)
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
	return j.counted(null)
}
