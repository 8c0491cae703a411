// Package collect asks a teacher for answers: prompts and an endpoint in, a data set with the
// teacher's answers out. Every answer goes into a journal next to the output as it comes, so that
// no answer is paid for twice, however often the program is stopped.
//
//	run.go       gad data collect: the order of things, and its messages; start here
//	collect.go   Collection: rows, requests, answers in the journal, the output
//	batch.go     requests by the batch API
//	episode.go   episodes in an environment
//	logprobs.go  log-probabilities of answers
//	cost.go      estimate and sum of the cost
package collect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/journal"
	"gad/internal/vfs"
)

// limitKeys lists the fields of a request that limit an answer's tokens.
var limitKeys = []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}

// limit returns the most tokens that an answer may have, by MaxTokens or Extra, and the flag that
// sets it; 0 for no limit.
func (s Settings) limit() (n float64, flag string) {
	n, flag = float64(s.MaxTokens), "--max-tokens"
	for _, key := range limitKeys {
		if x, ok := s.Extra[key].(float64); ok && x > n {
			n, flag = x, "--extra "+key
		}
	}
	return n, flag
}

// Settings is everything that an answer depends on, except its prompt. The journal holds it: a
// collection can only be resumed with the same settings.
type Settings struct {
	Model       string         `json:"model" flag:"--model"`
	System      string         `json:"system" flag:"--system"` // for rows without a system turn
	Temperature *float64       `json:"temperature" flag:"--temperature"`
	TopP        *float64       `json:"top_p" flag:"--top-p"`
	MaxTokens   int            `json:"max_tokens" flag:"--max-tokens"`
	Seed        *int64         `json:"seed" flag:"--seed"`
	Extra       map[string]any `json:"extra,omitempty" flag:"--extra"`
	Env         string         `json:"env,omitempty" flag:"--env"` // command of the teacher's environment
	TopLogprobs int            `json:"top_logprobs,omitempty" flag:"--top-logprobs"`
}

// Options describes a collection.
type Options struct {
	Settings
	FS      vfs.FS // nil: the disk
	Set     *data.Set
	Rows    int    // number of rows to ask, from the first
	N       int    // answers to a row
	Output  string // file; its suffix decides the format
	Price   *endpoint.Price
	MaxCost float64 // in USD, by Price; 0: no limit
	Partial bool    // write the output even if answers are missing
	Empty   bool    // ask rows again whose answers are all empty

	Env *Env // limits of episodes in Settings.Env; nil: the teacher answers once

	Thinking bool // write the teacher's thoughts too
	Stages   data.Stages
	Say      func(text string) // gets messages for people
}

// JournalPath returns the path of an output's journal.
func JournalPath(output string) string { return output + ".journal" }

// ErrMaxCost reports that the cost would exceed Options.MaxCost.
var ErrMaxCost = errors.New("collect: cost")

// ErrSettings reports a journal of other settings.
var ErrSettings = errors.New("collect: settings")

// markedError is an error with its own text that is also the sentinel mark.
type markedError struct {
	text string
	mark error
}

func (m markedError) Error() string        { return m.text }
func (m markedError) Is(target error) bool { return target == m.mark }

// Collection is an open collection: the rows to ask, and the journal of answers.
type Collection struct {
	o       Options
	journal *journal.Journal
	items   []item

	episodes []*episode // N of each item, where there is an environment

	single atomic.Bool // the endpoint gives only one answer to a request

	mu    sync.Mutex
	spent tally // by this process
	total tally // of the journal, for the rows of this collection

	equal []string // see EqualAnswers
	soft  softTally
}

// item is a row to ask, with the counts of its answers.
type item struct {
	digest       string // of everything that its answers depend on
	promptDigest string // digest of the row's prompt, tools and task
	nth          int    // index among equal prompts
	bytes        int    // of the prompt
	blank        bool   // without a question
	have         int    // answers, without the empty ones that are asked for again
	got          int    // all answers
	text         int    // answers with text
	// records in the journal: a request may bring several answers, or fewer than requested
	parts int
}

// tally is the sums of answers, tokens and cost.
type tally struct {
	requests, answers          int
	promptTokens, answerTokens int
	promptBytes, counted       int     // bytes and answers of requests with token counts
	cachedTokens               int     // of promptTokens
	cost                       float64 // in USD, where there is a price
	// requests without token counts: their tokens are estimated by the length of the text
	guessed                int
	guessedPrompt          float64
	guessedAnswer          float64
	length, filtered, none int // answers cut, filtered, empty
}

// Open reads the prompts and the journal, and refuses a journal of other settings (ErrSettings).
// The caller must hold the lock of the output, and closes the collection.
func Open(o Options) (_ *Collection, err error) {
	o.FS = vfs.OrDisk(o.FS)
	if o.Say == nil {
		o.Say = func(string) {}
	}
	c := &Collection{o: o, items: make([]item, o.Rows)}
	seen := map[string]int{} // number of equal prompts so far
	advance, done := o.Stages.Begin("reading prompts", o.Rows)
	defer done()
	for i := range c.items {
		messages, err := c.messages(i)
		if err != nil {
			return nil, err
		}
		it := &c.items[i]
		it.blank = c.o.Env == nil && asksNothing(messages)
		for _, m := range messages {
			it.bytes += len(m.Role) + len(m.Content) + len(m.ToolCalls)
		}
		asked := []any{messages}
		if tools, err := c.tools(i); err != nil {
			return nil, err
		} else if tools != "" {
			it.bytes += len(tools)
			asked = append(asked, tools)
		}
		if c.o.Env != nil {
			row, err := o.Set.Row(i)
			if err != nil {
				return nil, err
			}
			asked = append(asked, "env", row.Env)
		}
		key := journal.Digest(asked...)
		it.promptDigest, it.nth = key, seen[key]
		// names paid answers: must not change (TestJournalOfBefore)
		it.digest = journal.Digest(append(append([]any{o.Settings}, asked...), it.nth)...)
		seen[key]++
		advance(1)
	}
	path := JournalPath(o.Output)
	_, err = o.FS.Stat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if c.journal, err = journal.Open(path,
		journal.Options{FS: o.FS, Name: "endpoint: journal"}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.journal.Close())
			if fresh && c.journal.Len() == 0 {
				_ = o.FS.Remove(path) // nothing has been paid for
			}
		}
	}()
	if n := c.journal.DroppedLines(); n > 0 {
		o.Say(fmt.Sprintf("%s: damaged lines left out: %d: what they held is asked again", path, n))
	}
	if err := c.sameSettings(path); err != nil {
		return nil, err
	}
	if c.o.Env != nil {
		return c, c.loadEpisodes()
	}
	for i := range c.items {
		for {
			a, ok, err := c.record(i, c.items[i].parts)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			c.count(i, a, false)
		}
	}
	return c, nil
}

// sameSettings refuses a journal of other settings.
func (c *Collection) sameSettings(path string) error {
	raw, ok := c.journal.Lookup("settings")
	if !ok {
		return nil // the first answer writes them
	}
	var was Settings
	if err := json.Unmarshal(raw, &was); err != nil {
		return fmt.Errorf("collect: %s: its settings cannot be read: %w", path, err)
	}
	if what := journal.Difference(was, c.o.Settings); what != "" {
		return markedError{fmt.Sprintf("collect: %s: its answers are of other settings: %s: give the same, or another --output", path, what), ErrSettings}
	}
	return nil
}

// asksNothing reports whether there is no user turn, or the last one is blank.
func asksNothing(messages []endpoint.Message) bool {
	for _, m := range slices.Backward(messages) {
		if m.Role == "user" {
			return strings.TrimSpace(m.Content) == ""
		}
	}
	return true
}

// messages returns the turns that the teacher gets for item i.
func (c *Collection) messages(i int) ([]endpoint.Message, error) {
	row, err := c.o.Set.Row(i)
	if err != nil {
		return nil, err
	}
	if len(row.Messages) == 0 && c.o.Env == nil {
		return nil,
			fmt.Errorf(
				"data: row %d: has no conversation that a teacher could be asked: give one as text",
				i)
	}
	var out []endpoint.Message
	if c.o.System != "" && (len(row.Messages) == 0 || row.Messages[0].Role != "system") {
		out = append(out, endpoint.Message{Role: "system", Content: c.o.System})
	}
	for k, m := range row.Messages {
		calls, err := asTexts(m.ToolCalls)
		if err != nil {
			return nil, fmt.Errorf("data: row %d: turn %d: tool_calls: %w", i, k, err)
		}
		m.ToolCalls = calls
		out = append(out, m)
	}
	return out, nil
}

// asTexts returns a turn's calls with their arguments as strings, as endpoints want them; "" for
// none.
func asTexts(calls data.JSON) (data.JSON, error) {
	if calls == "" {
		return "", nil
	}
	var list []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(calls), &list); err != nil {
		return "", err
	}
	for _, call := range list {
		function := call
		if raw := call["function"]; raw != nil {
			if err := json.Unmarshal(raw, &function); err != nil {
				return "", err
			}
		}
		if a := function["arguments"]; len(a) > 0 && a[0] == '{' {
			text, err := json.Marshal(string(a))
			if err != nil {
				return "", err
			}
			function["arguments"] = text
		}
		if call["function"] != nil {
			raw, err := json.Marshal(function)
			if err != nil {
				return "", err
			}
			call["function"] = raw
		}
	}
	text, err := json.Marshal(list)
	return data.JSON(text), err
}

// tools returns the tools of the row, which the teacher may call.
func (c *Collection) tools(i int) (data.JSON, error) {
	row, err := c.o.Set.Row(i)
	return row.Tools, err
}

// key returns the journal's key of a request for item i.
func (c *Collection) key(i, part int) string {
	return fmt.Sprintf("%s/%d", c.items[i].digest, part)
}

// answer is a record of the journal.
type answer struct {
	endpoint.Answer
	Batch bool `json:"batch,omitempty"` // by the batch API, at half the price
}

// BatchPrice is the price of a batch relative to single requests.
const BatchPrice = 0.5

// record returns the journal's answer to a request.
func (c *Collection) record(i, part int) (*answer, bool, error) {
	raw, ok := c.journal.Lookup(c.key(i, part))
	if !ok {
		return nil, false, nil
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || len(a.Choices) == 0 {
		return nil, false, fmt.Errorf("collect: %s: the record %q is no answer: remove its line",
			JournalPath(c.o.Output), c.key(i, part))
	}
	return &a, true, nil
}

// count counts an answer to item i that is in the journal; now if this process has paid for it.
func (c *Collection) count(i int, a *answer, now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := &c.items[i]
	it.parts++
	for _, ch := range a.Choices {
		it.got++
		if !blank(ch) {
			it.text++
		}
		if !blank(ch) || now || !c.o.Empty {
			it.have++
		}
	}
	var price endpoint.Price
	if c.o.Price != nil {
		price = *c.o.Price
	}
	c.total.add(it.bytes, a, price)
	if now {
		c.spent.add(it.bytes, a, price)
	}
}

// add adds an answer to a prompt of so many bytes, at a price. Without the endpoint's counts it
// estimates the tokens by the length of the texts.
func (t *tally) add(promptBytes int, a *answer, price endpoint.Price) {
	t.requests++
	cost := price.UsageCost(a.Usage)
	if a.Usage != (endpoint.Usage{}) {
		t.promptTokens += a.Usage.PromptTokens
		t.answerTokens += a.Usage.CompletionTokens
		t.cachedTokens += a.Usage.CachedTokens
		t.promptBytes += promptBytes
		t.counted += len(a.Choices)
	} else { // --max-cost must hold without counts too
		prompt, reply := float64(promptBytes)/bytesPerToken, 0.0
		for _, ch := range a.Choices {
			reply += float64(len(ch.Content)) / bytesPerToken
		}
		cost = price.Cost(prompt, reply)
		t.guessed++
		t.guessedPrompt += prompt
		t.guessedAnswer += reply
	}
	if a.Batch {
		cost *= BatchPrice
	}
	t.cost += cost
	for _, ch := range a.Choices {
		t.answers++
		switch {
		case blank(ch):
			t.none++
		case ch.FinishReason == "content_filter":
			t.filtered++
		case data.Row{Finish: ch.FinishReason}.Unfinished():
			t.length++
		}
	}
}

// blank reports whether a choice has neither text nor calls.
func blank(ch endpoint.Choice) bool {
	return strings.TrimSpace(ch.Content) == "" && len(ch.ToolCalls) == 0
}

// request returns the request of n answers to item i. The numbers distinguish it from the item's
// other requests: the answers so far, or an episode's sample and turn.
func (c *Collection) request(i, n int, numbers ...int) (endpoint.Request, error) {
	messages, err := c.messages(i)
	if err != nil {
		return endpoint.Request{}, err
	}
	s := c.o.Settings
	s.Seed = c.seed(i, numbers)
	tools, err := c.tools(i)
	if err != nil {
		return endpoint.Request{}, err
	}
	if extra := s.Extra; tools != "" && extra["tools"] == nil {
		s.Extra = map[string]any{"tools": tools}
		maps.Copy(s.Extra, extra)
	}
	return endpoint.Request{Model: s.Model, Messages: messages, Temperature: s.Temperature,
		TopP: s.TopP, MaxTokens: s.MaxTokens, Seed: s.Seed, N: n, TopLogprobs: s.TopLogprobs,
		Extra: s.Extra}, nil
}

// seed returns the seed of a request for item i, nil without --seed: a function of --seed, of the
// row's prompt and its index among equal prompts, and of the request's numbers, in 31 bits, which
// every endpoint takes.
//
// Requests with the same seed share the endpoint's random numbers: equal prompts would get the same
// answer, paid for again, and different prompts correlated answers, such as the same of two styles
// in every row.
func (c *Collection) seed(i int, numbers []int) *int64 {
	if c.o.Settings.Seed == nil {
		return nil
	}
	it := &c.items[i]
	hex := journal.Digest(*c.o.Settings.Seed, it.promptDigest, it.nth, numbers)
	x, _ := strconv.ParseInt(hex[:8], 16, 64)
	x &= math.MaxInt32
	return &x
}

// save appends an answer to the journal, after the settings, and counts it.
func (c *Collection) save(i int, a *answer) error {
	c.mu.Lock()
	part := c.items[i].parts
	c.mu.Unlock()
	if err := c.journal.Append("settings", c.o.Settings); err != nil {
		return err
	}
	c.shorten(a)
	if err := c.journal.Append(c.key(i, part), a); err != nil {
		return err
	}
	c.count(i, a, true)
	return nil
}

// incompleteItems returns the items that lack answers.
func (c *Collection) incompleteItems() (list []int) {
	for i, it := range c.items {
		if it.have < c.o.N && !it.blank {
			list = append(list, i)
		}
	}
	return list
}

// TotalAnswers returns the number of answers of a complete output, empty ones included.
func (c *Collection) TotalAnswers() int { return (c.o.Rows - len(c.blanks())) * c.o.N }

// blanks returns the items without a question.
func (c *Collection) blanks() (list []int) {
	for i, it := range c.items {
		if it.blank {
			list = append(list, i)
		}
	}
	return list
}

// BlankRows returns a message that names the rows without a question, which are not sent; "" for
// none.
func (c *Collection) BlankRows() string {
	list := c.blanks()
	if len(list) == 0 {
		return ""
	}
	return "left out, as they have no prompt (no user turn, or a blank one): " +
		rows(list, func(i int) string { return fmt.Sprint(i) })
}

// rows returns the names of rows as text: at most ten and the number of the others.
func rows(list []int, name func(i int) string) string {
	const most = 10
	word, more := "rows ", ""
	if len(list) == 1 {
		word = "row "
	}
	if n := len(list) - most; n > 0 {
		more, list = fmt.Sprintf(" and %d more", n), list[:most]
	}
	var names []string
	for _, i := range list {
		names = append(names, name(i))
	}
	return word + strings.Join(names, ", ") + more
}

// EmptyRows returns a message that names the rows whose answers have no text; "" for none.
func (c *Collection) EmptyRows() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []int
	for i, it := range c.items {
		if it.got > 0 && it.text == 0 {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return "", nil
	}
	var failed error
	text := rows(list, func(i int) string {
		a, _, err := c.record(i, 0)
		if err != nil {
			failed = err
			return ""
		}
		why := a.Choices[0].FinishReason
		switch {
		case a.Choices[0].Refusal != "":
			why = "refusal"
		case why == "":
			why = "no finish_reason"
		}
		return fmt.Sprintf("%d (%s)", i, why)
	})
	return "the teacher has answered without text: " + text, failed
}

// Ask requests the missing answers. It returns endpoint.Failures for rows that could not be
// answered; all other answers are in the journal.
func (c *Collection) Ask(ctx context.Context, client *endpoint.Client) error {
	todo := c.incompleteItems()
	total := 0
	for _, i := range todo {
		total += c.o.N - c.items[i].have
	}
	advance, done := c.o.Stages.Begin("answers", total)
	defer done()
	if t := c.total; t.requests > 0 {
		client.SetProven()
		client.Calibrate(t.promptBytes, t.promptTokens, t.counted, t.answerTokens)
	}
	var bar sync.Mutex
	err := client.Each(ctx, len(todo), func(ctx context.Context, k int) error {
		i := todo[k]
		for {
			c.mu.Lock()
			need, got := c.o.N-c.items[i].have, c.items[i].got
			c.mu.Unlock()
			if need <= 0 {
				return nil
			}
			if err := c.affordable(); err != nil {
				return err
			}
			r, err := c.request(i, need, got)
			if err != nil {
				return err
			}
			a, err := c.try(ctx, client, r)
			if err != nil {
				return err
			}
			if err := c.save(i, &answer{Answer: *a}); err != nil {
				return err
			}
			bar.Lock()
			advance(min(need, len(a.Choices)))
			bar.Unlock()
		}
	})
	var failures endpoint.Failures
	if errors.As(err, &failures) {
		for k := range failures {
			failures[k].Index = todo[failures[k].Index]
		}
		return failures
	}
	return err
}

// try makes one request. If the endpoint refuses a request of several answers, but takes one of a
// single answer, all later requests ask for one.
func (c *Collection) try(ctx context.Context, client *endpoint.Client,
	r endpoint.Request) (*endpoint.Answer, error) {
	if c.single.Load() {
		r.N = 1
	}
	a, err := client.Try(ctx, r)
	if r.N <= 1 || !endpoint.Refused(err) {
		return a, err
	}
	r.N = 1
	if a, err = client.Try(ctx, r); err == nil {
		c.single.Store(true)
	}
	return a, err
}

// affordable returns an error if the answers so far have cost --max-cost.
func (c *Collection) affordable() error {
	if c.o.Price == nil || c.o.MaxCost <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cost := c.total.cost; cost >= c.o.MaxCost {
		return markedError{fmt.Sprintf("collect: the answers so far have cost $%.2f, which is --max-cost %g: the same command with a higher one asks for the others", cost, c.o.MaxCost), ErrMaxCost}
	}
	return nil
}

// CountMissing returns the number of missing answers, and of rows that lack one.
func (c *Collection) CountMissing() (answers, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.incompleteItems() {
		answers += c.o.N - c.items[i].have
		rows++
	}
	return answers, rows
}

// Close closes the journal, and removes it if it is empty.
func (c *Collection) Close() error {
	empty := c.journal.Len() == 0
	err := c.journal.Close()
	if empty && err == nil {
		err = c.o.FS.Remove(JournalPath(c.o.Output)) // no answer was paid for
	}
	return err
}

// Write writes the output: the rows that have answers, in their order, one row an answer. It leaves
// out empty answers, which a filter or a refusal leaves, and returns the number of rows written.
func (c *Collection) Write() (rows int, err error) {
	if c.o.Env != nil {
		return c.writeEpisodes()
	}
	type place struct{ item, part, choice int }
	var places []place
	ids := false
	c.soft = softTally{k: c.o.TopLogprobs}
	for i := range c.items {
		row, err := c.o.Set.Row(i)
		if err != nil {
			return 0, err
		}
		ids = ids || row.ID != ""
		have := 0
		for part := range c.items[i].parts {
			a, _, err := c.record(i, part)
			if err != nil {
				return 0, err
			}
			for k, ch := range a.Choices {
				if !blank(ch) && have < c.o.N {
					places = append(places, place{i, part, k})
					have++
					answered, err := c.rowWithAnswer(row, ch)
					if err != nil {
						return 0, fmt.Errorf("collect: %s: the record %q: %w",
							JournalPath(c.o.Output), c.key(i, part), err)
					}
					c.soft.add(i, answered, ch)
				}
			}
		}
	}
	if len(places) == 0 {
		why, err := c.EmptyRows()
		if err != nil || why == "" {
			return 0,
				cmp.Or(err, fmt.Errorf("collect: %s: there is no answer to write", c.o.Output))
		}
		return 0,
			fmt.Errorf(
				"collect: %s: there is no answer to write: %s: --retry-empty asks them again",
				c.o.Output, why)
	}
	var tally data.AnswerTally
	seen := map[data.Key]bool{}
	err = data.WriteAnswers(c.o.FS, c.o.Output, ids, c.o.Stages, len(places),
		func(k int) (data.Row, error) {
			at := places[k]
			row, err := c.o.Set.Row(at.item)
			if err != nil {
				return row, err
			}
			a, _, err := c.record(at.item, at.part)
			if err != nil {
				return row, err
			}
			ch := a.Choices[at.choice]
			if row, err = c.rowWithAnswer(row, ch); err != nil { // no error: the loop above has tried it
				return row, err
			}
			if row.LogprobsFault() != "" {
				row.Logprobs = nil
			}
			row.Told = data.Told{Model: a.Model, PromptTokens: a.Usage.PromptTokens,
				AnswerTokens: a.Usage.CompletionTokens / len(a.Choices)}
			// count one answer of each prompt
			if prompt, _ := row.Keys(); at.part == 0 && at.choice == 0 && !seen[prompt] {
				seen[prompt] = true
				tally.Add(ch.Content, k)
			}
			return row, nil
		})
	_, c.equal = tally.Equal(len(places))
	return len(places), err
}

// rowWithAnswer returns row with an answer as the teacher's.
func (c *Collection) rowWithAnswer(row data.Row, ch endpoint.Choice) (data.Row, error) {
	turn := data.Message{Role: "assistant", Content: ch.Content}
	if c.o.Thinking {
		turn.Thinking = ch.Thinking
	}
	if len(ch.ToolCalls) > 0 {
		if err := turn.ToolCalls.UnmarshalJSON(ch.ToolCalls); err != nil {
			return row, fmt.Errorf("tool_calls: %w", err)
		}
	}
	row.Teacher, row.Turns, row.Finish = turn.Text(), nil, ch.FinishReason
	if turn.Thinking != "" || turn.ToolCalls != "" {
		row.Turns = []data.Message{turn}
	}
	if row.Logprobs = nil; ch.Logprobs != nil {
		row.Logprobs, _ = data.ReadLogprobs(ch.Logprobs) // softTally counts unreadable ones
	}
	return row, nil
}

// EqualAnswers returns lines on answers that many prompts of the last Write share.
func (c *Collection) EqualAnswers() []string { return c.equal }
