package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/env"
	"gad/internal/journal"
)

// Episodes: the teacher acts in an environment, turn by turn.
//
// The journal has two records a turn: the teacher's answer, synced before it is used, and the
// environment's reply, which costs nothing to get again. An episode that was killed midway is
// replayed from its seed and the answers in the journal, without requests, and the environment's
// replies must equal the journal's. A record's key contains row, sample, turn, and a digest of all
// answers before it: so an answer is found only for the conversation that it was given to, even if
// the journal has lost a line.

// Env is the limits of the teacher's episodes.
type Env struct {
	Workers   int           // processes of the environment
	Timeout   time.Duration // for one reply of the environment
	MaxTurns  int           // of an episode
	MaxTokens int           // of a conversation, as the endpoint counts; 0: no limit
	Keep      Keep          // condition for an episode in the output
}

// maxFaults is the largest share of episodes that may be faults of the environment.
const maxFaults = 0.2

// faultsAtFirst is the number of faults, without any episode played to its end, at which collection
// stops: every episode would be a fault.
const faultsAtFirst = 20

// ErrFaults reports more faults of the environment than maxFaults.
var ErrFaults = errors.New("collect: faults")

// ErrPrompt reports an environment that rebuilds its contexts (replies with prompt).
var ErrPrompt = errors.New("collect: prompt")

// journalReply is the journal's record of an environment's reply.
type journalReply struct {
	Append  []env.Message `json:"append,omitempty"`
	Reward  float64       `json:"reward,omitempty"`
	Done    bool          `json:"done,omitempty"`
	Invalid bool          `json:"invalid,omitempty"`
	Label   string        `json:"label,omitempty"`
}

// Reasons of an episode's end.
const (
	endDone  = "done"  // the environment has ended it
	endLimit = "limit" // of turns or tokens
	endEmpty = "empty" // the teacher has answered without text
)

// episode is one sample of a row.
type episode struct {
	item, sample int
	start        *journalReply // reply to the reset; nil: unknown
	turns        []*answer
	replies      []*journalReply // to the turns; the last ones may be missing
	context      string          // digest of the answers
	counted      int             // turns whose cost is in the tally
	bytes        int             // of the conversation
	end          string          // "": not over
	fault        error
}

// loadEpisodes loads the episodes from the journal and counts their cost.
func (c *Collection) loadEpisodes() error {
	for i := range c.items {
		for s := range c.o.N {
			e := &episode{item: i, sample: s, bytes: c.items[i].bytes}
			c.episodes = append(c.episodes, e)
			if err := c.load(e); err != nil {
				return err
			}
			if e.end != "" {
				c.items[i].have++
			}
		}
	}
	return nil
}

// load loads the turns of an episode from the journal.
func (c *Collection) load(e *episode) error {
	var err error
	if e.start, err = c.replyAt(c.resetKey(e)); err != nil || e.start == nil {
		return err
	}
	e.hear(e.start)
	for e.end == "" {
		a, err := c.turnAt(c.turnKey(e))
		if err != nil || a == nil {
			return err
		}
		c.add(e, a)
		if e.end != "" {
			return nil
		}
		reply, err := c.replyAt(c.replyKey(e))
		if err != nil || reply == nil {
			return err
		}
		e.replies = append(e.replies, reply)
		e.hear(reply)
		c.settle(e)
	}
	return nil
}

// turnAt returns the journal's answer at key, nil for none.
func (c *Collection) turnAt(key string) (*answer, error) {
	raw, ok := c.journal.Lookup(key)
	if !ok {
		return nil, nil
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || len(a.Choices) == 0 {
		return nil, c.unreadable(key)
	}
	return &a, nil
}

// replyAt returns the journal's reply at key, nil for none.
func (c *Collection) replyAt(key string) (*journalReply, error) {
	raw, ok := c.journal.Lookup(key)
	if !ok {
		return nil, nil
	}
	var s journalReply
	if json.Unmarshal(raw, &s) != nil {
		return nil, c.unreadable(key)
	}
	return &s, nil
}

// unreadable returns the error of a record that cannot be read.
func (c *Collection) unreadable(key string) error {
	return fmt.Errorf("collect: %s: the record %q cannot be read: remove its line",
		JournalPath(c.o.Output), key)
}

// resetKey returns the key of the reply to the reset.
func (c *Collection) resetKey(e *episode) string {
	return fmt.Sprintf("%s/e%d/reset", c.items[e.item].digest, e.sample)
}

// turnKey returns the key of the next answer.
func (c *Collection) turnKey(e *episode) string {
	return fmt.Sprintf("%s/e%d/%d-%.8s", c.items[e.item].digest, e.sample, len(e.turns), e.context)
}

// replyKey returns the key of the reply to the last answer.
func (c *Collection) replyKey(e *episode) string {
	return fmt.Sprintf("%s/e%d/%d-%.8s/reply", c.items[e.item].digest, e.sample, len(e.turns)-1,
		e.context)
}

// add appends the teacher's next answer to the conversation, and counts its cost unless that is
// done. An answer without text ends the episode.
func (c *Collection) add(e *episode, a *answer) {
	if len(e.turns) == e.counted {
		c.countCost(e.bytes, a, false)
		e.counted++
	}
	ch := a.Choices[0]
	e.turns = append(e.turns, a)
	e.context = journal.Digest(e.context, ch)
	e.bytes += len("assistant") + len(ch.Content) + len(ch.ToolCalls)
	if blank(ch) {
		e.end = endEmpty
	}
}

// countCost counts an answer to a prompt of so many bytes; now if this process has paid for it.
func (c *Collection) countCost(promptBytes int, a *answer, now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var price endpoint.Price
	if c.o.Price != nil {
		price = *c.o.Price
	}
	c.total.add(promptBytes, a, price)
	if now {
		c.spent.add(promptBytes, a, price)
	}
}

// hear adds the bytes of an environment's reply to the conversation.
func (e *episode) hear(s *journalReply) {
	for _, m := range s.Append {
		e.bytes += len(m.Role) + len(m.Content) + len(m.ToolCalls)
	}
}

// settle ends the episode if the last reply or a limit ends it.
func (c *Collection) settle(e *episode) {
	last := e.turns[len(e.turns)-1]
	length := last.Usage.PromptTokens + last.Usage.CompletionTokens
	if length == 0 {
		length = e.bytes / bytesPerToken
	}
	switch {
	case e.replies[len(e.replies)-1].Done:
		e.end = endDone
	case len(e.turns) >= c.o.Env.MaxTurns, c.o.Env.MaxTokens > 0 && length >= c.o.Env.MaxTokens:
		e.end = endLimit
	}
}

// AskEpisodes plays the missing episodes. It returns endpoint.Failures, by row, for episodes with a
// request that could not be answered; every answered turn is in the journal.
func (c *Collection) AskEpisodes(ctx context.Context, client *endpoint.Client,
	pool *env.Pool) error {
	var todo []*episode
	for _, e := range c.episodes {
		if e.end == "" {
			todo = append(todo, e)
		}
	}
	advance, done := c.o.Stages.Begin("episodes", len(todo))
	defer done()
	if t := c.total; t.requests > 0 {
		client.SetProven()
		client.Calibrate(t.promptBytes, t.promptTokens, t.counted, t.answerTokens)
	}
	var bar sync.Mutex
	faults, played := 0, 0
	err := client.Each(ctx, len(todo), func(ctx context.Context, k int) error {
		e := todo[k]
		before := e.counted
		err := c.play(ctx, client, pool, e)
		if err != nil && !errors.Is(err, env.ErrFault) {
			if e.counted > before && endpoint.Transient(err) {
				return endpoint.Progress{Err: err}
			}
			return err
		}
		bar.Lock()
		defer bar.Unlock()
		advance(1)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil {
			c.items[e.item].have++
			played++
			return nil
		}
		e.fault = fmt.Errorf("row %d, sample %d: %w", e.item, e.sample, err)
		if faults++; c.tooMany(faults) || faults >= faultsAtFirst && played == 0 {
			return ErrFaults
		}
		return nil
	})
	var failures endpoint.Failures
	if errors.As(err, &failures) {
		for k := range failures {
			failures[k].Index = todo[failures[k].Index].item
		}
		return failures
	}
	return err
}

// tooMany reports whether so many faults exceed maxFaults.
func (c *Collection) tooMany(faults int) bool {
	return float64(faults) > maxFaults*float64(len(c.episodes))
}

// Faults returns the errors of the episodes that the environment has broken, and whether there are
// more than allowed.
func (c *Collection) Faults() (list []error, tooMany bool) {
	for _, e := range c.episodes {
		if e.fault != nil {
			list = append(list, e.fault)
		}
	}
	return list, c.tooMany(len(list)) || len(list) >= faultsAtFirst && len(list) == c.countEnded()
}

// countEnded returns the number of episodes that are over or broken.
func (c *Collection) countEnded() (n int) {
	for _, e := range c.episodes {
		if e.end != "" || e.fault != nil {
			n++
		}
	}
	return n
}

// envSeed returns the seed of an episode in the environment, a function of --seed, the row's prompt
// and the sample.
func (c *Collection) envSeed(e *episode) uint64 {
	var seed int64
	if c.o.Seed != nil {
		seed = *c.o.Seed
	}
	it := c.items[e.item]
	hex := journal.Digest(seed, it.promptDigest, it.nth, e.sample)
	x, _ := strconv.ParseUint(hex[:13], 16, 64) // 52 bits, as env.MaxSeed wants
	return x
}

// play continues an episode until it is over.
func (c *Collection) play(ctx context.Context, client *endpoint.Client, pool *env.Pool,
	e *episode) error {
	row, err := c.o.Set.Row(e.item)
	if err != nil {
		return err
	}
	begin := env.RowOf(row.Messages, row.Env) // --system is the teacher's alone
	played := pool.Episode()
	defer played.Close()
	take := func(r env.Reply) error { return c.begin(e, begin, r) }
	return env.Play(ctx, played, c.envSeed(e), begin, func(r env.Reply) (env.Turn, bool, error) {
		if err := take(r); err != nil || e.end != "" {
			return env.Turn{}, false, err
		}
		take = func(r env.Reply) error { return c.replied(e, r) }
		a, err := c.turnAt(c.turnKey(e))
		if err == nil && a == nil {
			a, err = c.ask(ctx, client, e)
		}
		if err != nil {
			return env.Turn{}, false, err
		}
		c.add(e, a)
		ch := a.Choices[0]
		turn := env.Turn{Text: turnText(ch.Content, ch.ToolCalls),
			Cut: data.Row{Finish: ch.FinishReason}.Unfinished()}
		return turn, e.end == "", nil
	})
}

// begin takes the reply to the reset of an episode on row.
func (c *Collection) begin(e *episode, row env.Row, r env.Reply) (err error) {
	if len(row.Content)+len(r.Append)+len(r.Prompt) == 0 {
		return fmt.Errorf(
			"%w: %q: neither the row nor the reset has a message: there is nothing to answer",
			env.ErrFault, c.o.Settings.Env)
	}
	*e = episode{item: e.item, sample: e.sample, bytes: c.items[e.item].bytes, counted: e.counted}
	e.start, err = c.heard(e, c.resetKey(e), "reset", r)
	return err
}

// replied takes the reply to the teacher's last turn.
func (c *Collection) replied(e *episode, r env.Reply) error {
	s, err := c.heard(e, c.replyKey(e), fmt.Sprintf("turn %d", len(e.turns)-1), r)
	if err != nil {
		return err
	}
	// Synced by the next answer; the journal keeps the first record of a key.
	if err := c.journal.Put(c.replyKey(e), s); err != nil {
		return err
	}
	e.replies = append(e.replies, s)
	c.settle(e)
	return nil
}

// heard returns an environment's reply as the journal records it. If the journal has a record at
// key, the reply must equal it. at names the reply for messages.
func (c *Collection) heard(e *episode, key, at string, r env.Reply) (*journalReply, error) {
	if r.Prompt != nil && !r.Done {
		return nil, markedError{fmt.Sprintf("collect: row %d: %q answers with prompt, the whole of the next context: such an episode is no one conversation, as rows are: collect in an environment that answers with append", e.item, c.o.Settings.Env), ErrPrompt}
	}
	s := &journalReply{r.Append, r.Reward, r.Done, !r.Valid, r.Label}
	if len(s.Append) == 0 {
		s.Append = nil // as it is read again
	}
	was, err := c.replyAt(key)
	if err != nil {
		return nil, err
	}
	if e.hear(s); was == nil {
		return s, nil
	}
	before, now := plainJSON(was), plainJSON(s)
	if !bytes.Equal(before, now) {
		from := 0
		for from < min(len(before), len(now)) && before[from] == now[from] {
			from++
		}
		show := func(text []byte) string {
			text = text[max(0, from-8):]
			return strconv.Quote(strings.ToValidUTF8(string(text[:min(len(text), 60)]), ""))
		}
		return nil, fmt.Errorf("%w: %q: not deterministic: played again from its seed and the answers of %s, the reply to %s is another: was %s, is %s", env.ErrFault, c.o.Settings.Env, JournalPath(c.o.Output), at, show(before), show(now))
	}
	return s, nil
}

// plainJSON returns a value in the journal's JSON.
func plainJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // messages and numbers can always be written
	return bytes.TrimSpace(b.Bytes())
}

// ask requests the teacher's next answer, and appends it to the journal.
func (c *Collection) ask(ctx context.Context, client *endpoint.Client,
	e *episode) (*answer, error) {
	if err := c.affordable(); err != nil {
		return nil, err
	}
	r, err := c.request(e.item, 1, e.sample, len(e.turns))
	if err != nil {
		return nil, err
	}
	if r.Messages, err = c.conversation(e, r.Messages); err != nil {
		return nil, err
	}
	got, err := client.Try(ctx, r)
	if err != nil {
		return nil, err
	}
	got.Choices = got.Choices[:1]
	a := &answer{Answer: *got}
	if err := c.journal.Append("settings", c.o.Settings); err != nil {
		return nil, err
	}
	if err := c.journal.Put(c.resetKey(e), e.start); err != nil { // only once there is an answer
		return nil, err
	}
	if err := c.journal.Append(c.turnKey(e), a); err != nil {
		return nil, err
	}
	c.countCost(e.bytes, a, true)
	e.counted = len(e.turns) + 1
	return c.turnAt(c.turnKey(e)) // as a resumed run will read it
}

// conversation appends the episode so far to the messages of its row: the context of the teacher's
// next turn.
//
// Calls of its earlier turns stay calls where a message of a tool answers each of them, as
// endpoints require; else they become text.
func (c *Collection) conversation(e *episode,
	messages []endpoint.Message) ([]endpoint.Message, error) {
	messages = append(messages, e.start.Append...)
	for k, a := range e.turns {
		ch, reply := a.Choices[0], answeredCalls(a.Choices[0], e.replies[k].Append)
		m := endpoint.Message{Role: "assistant", Content: ch.Content}
		if reply == nil {
			m.Content, reply = turnText(ch.Content, ch.ToolCalls), e.replies[k].Append
		} else if len(ch.ToolCalls) > 0 {
			calls, err := asTexts(data.JSON(ch.ToolCalls))
			if err != nil {
				return nil, fmt.Errorf("collect: row %d: turn %d: tool_calls: %w", e.item, k, err)
			}
			m.ToolCalls = calls
		}
		messages = append(append(messages, m), reply...)
	}
	return messages, nil
}

// answeredCalls returns the messages after a turn, with each tool's message naming the call that it
// answers; nil where the calls are not answered one by one.
func answeredCalls(ch endpoint.Choice, reply []env.Message) []env.Message {
	if len(ch.ToolCalls) == 0 {
		return reply
	}
	var calls []struct{ ID string }
	if json.Unmarshal(ch.ToolCalls, &calls) != nil || len(reply) < len(calls) {
		return nil
	}
	reply = slices.Clone(reply)
	for i := range reply {
		tool := reply[i].Role == "tool"
		if tool != (i < len(calls)) {
			return nil
		}
		if tool {
			reply[i].ToolCallID = cmp.Or(reply[i].ToolCallID, calls[i].ID)
		}
	}
	return reply
}

// turnText returns a turn as the environment reads it: the text, then calls in the hermes form,
// <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
func turnText(content string, calls json.RawMessage) string {
	if len(calls) == 0 {
		return content
	}
	var list []struct {
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(calls, &list) != nil {
		return content + string(calls)
	}
	var parts []string
	if strings.TrimSpace(content) != "" {
		parts = append(parts, content)
	}
	for _, call := range list {
		arguments := call.Function.Arguments
		if arguments == nil {
			arguments = call.Arguments
		}
		var text string // most endpoints have the arguments as a text of JSON
		if json.Unmarshal(arguments, &text) == nil {
			if text == "" {
				text = "{}"
			}
			if json.Valid([]byte(text)) {
				arguments = json.RawMessage(text)
			}
		}
		parts = append(parts, fmt.Sprintf(
			"<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>",
			plainJSON(cmp.Or(call.Function.Name, call.Name)), cmp.Or(string(arguments), "{}")))
	}
	return strings.Join(parts, "\n")
}

// reward returns the sum of the replies' rewards.
func (e *episode) reward() (sum float64) {
	for _, r := range e.replies {
		sum += r.Reward
	}
	return sum
}

// writeEpisodes writes the episodes that are over and pass Keep, in the order of the rows, and
// returns their number.
func (c *Collection) writeEpisodes() (int, error) {
	var kept []*episode
	ids := false
	for i := range c.items {
		row, err := c.o.Set.Row(i)
		if err != nil {
			return 0, err
		}
		ids = ids || row.ID != ""
	}
	for _, e := range c.episodes {
		if (e.end == endDone || e.end == endLimit) && c.o.Env.Keep.keeps(e.reward(), len(e.turns)) {
			kept = append(kept, e)
		}
	}
	if len(kept) == 0 {
		why := ""
		if text := c.o.Env.Keep.text; text != "" {
			why = fmt.Sprintf(": --keep %q leaves out all: %s", text, c.EpisodeSummary())
		}
		return 0, fmt.Errorf("collect: %s: there is no episode to write%s", c.o.Output, why)
	}
	return len(kept), data.WriteAnswers(c.o.FS, c.o.Output, ids, c.o.Stages, len(kept),
		func(k int) (data.Row, error) { return c.episodeRow(kept[k]) })
}

// episodeRow returns the row of an episode.
func (c *Collection) episodeRow(e *episode) (row data.Row, err error) {
	if row, err = c.o.Set.Row(e.item); err != nil {
		return row, err
	}
	wrong := func(err error) (data.Row, error) {
		return row, fmt.Errorf("collect: %s: row %d, sample %d: %w", JournalPath(c.o.Output),
			e.item, e.sample, err)
	}
	row.Messages, row.Turns = slices.Concat(row.Messages, e.start.Append), nil
	var turns []data.Message
	told := data.Told{Played: &data.Played{Reward: e.reward(),
		Label: e.replies[len(e.replies)-1].Label}}
	for k, a := range e.turns {
		ch := a.Choices[0]
		if row, err = c.rowWithAnswer(row, ch); err != nil {
			return wrong(err)
		}
		turn := data.Message{Role: "assistant", Content: ch.Content}
		if row.Turns != nil {
			turn = row.Turns[0]
		}
		told.Model = a.Model
		told.PromptTokens += a.Usage.PromptTokens
		told.AnswerTokens += a.Usage.CompletionTokens
		last := k == len(e.turns)-1
		turn.Context = !last && row.Unfinished() // a cut turn's end is not the teacher's
		turns = append(turns, turn)
		if last {
			break
		}
		reply := answeredCalls(ch, e.replies[k].Append)
		if reply == nil {
			reply = e.replies[k].Append
		}
		turns = append(turns, reply...)
	}
	row.Turns, row.Told = turns, told
	if e.end == endLimit {
		row.Finish = "length"
	}
	return row, nil
}

// EpisodeSummary returns a line on the episodes that are over.
func (c *Collection) EpisodeSummary() string {
	n, turns, invalid, empty, limit, cut := 0, 0, 0, 0, 0, 0
	reward := 0.0
	labels := map[string]int{}
	for _, e := range c.episodes {
		switch e.end {
		case "":
			continue
		case endEmpty:
			empty++
			continue
		case endLimit:
			limit++
		}
		n++
		turns += len(e.turns)
		for _, a := range e.turns {
			if (data.Row{Finish: a.Choices[0].FinishReason}).Unfinished() {
				cut++
			}
		}
		reward += e.reward()
		for _, r := range e.replies {
			if r.Invalid {
				invalid++
			}
		}
		if label := e.replies[len(e.replies)-1].Label; label != "" {
			labels[label]++
		}
	}
	if n == 0 {
		return fmt.Sprintf("no episode has come to its end; ended by an empty answer: %d", empty)
	}
	text := fmt.Sprintf("mean reward %.3g, %.3g turns an episode", reward/float64(n),
		float64(turns)/float64(n))
	var names []string
	for name := range labels {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(labels[b]-labels[a], strings.Compare(a, b))
	})
	for i, name := range names[:min(len(names), 8)] {
		text += []string{"; ", ", "}[min(i, 1)] + fmt.Sprintf("%s %d", name, labels[name])
	}
	for _, x := range []struct {
		n    int
		text string
	}{
		{invalid, "invalid turns"},
		{cut, "answers cut short (not learned: a higher --max-tokens)"},
		{limit, "ended at a limit (--max-turns, --episode-tokens: marked as cut)"},
		{empty, "ended by an empty answer (left out)"},
	} {
		if x.n > 0 {
			text += fmt.Sprintf("; %s: %d", x.text, x.n)
		}
	}
	return text
}

// CountDiscarded returns the number of episodes that are over and that --keep leaves out.
func (c *Collection) CountDiscarded() (n int) {
	for _, e := range c.episodes {
		if (e.end == endDone || e.end == endLimit) &&
			!c.o.Env.Keep.keeps(e.reward(), len(e.turns)) {
			n++
		}
	}
	return n
}

// estimateEpisodes returns the Estimate of the missing episodes: by the episodes so far if there
// are enough, else by the limits.
func (c *Collection) estimateEpisodes() (e Estimate) {
	ended, left := 0, 0
	var prompt, reply, turns float64 // of an episode
	asked := 0.0                     // bytes of the remaining rows
	for _, ep := range c.episodes {
		if ep.end == "" {
			left++
			asked += float64(c.items[ep.item].bytes)
			continue
		}
		ended++
		for _, a := range ep.turns {
			turns++
			prompt += float64(a.Usage.PromptTokens)
			reply += float64(a.Usage.CompletionTokens)
		}
	}
	if n := float64(ended); ended >= enough && prompt > 0 {
		turns, prompt, reply = turns/n, prompt/n, reply/n
		e.How = fmt.Sprintf("by the %d episodes so far: %.1f turns, %.0f tokens of prompts and %.0f of answers an episode", ended, turns, prompt, reply)
	} else {
		answer, flag := c.o.limit()
		how := fmt.Sprintf("the most that %s allows, %.0f tokens", flag, answer)
		if answer == 0 {
			answer = answerTokens
			how = fmt.Sprintf("a guess of %d tokens", answerTokens)
		}
		turns = float64(c.o.Env.MaxTurns)
		reply = turns * answer
		prompt = turns*asked/bytesPerToken/max(1, float64(left)) +
			turns*(turns-1)/2*(answer+replyTokens)
		if most := float64(c.o.Env.MaxTokens); most > 0 {
			prompt, reply = min(prompt, turns*most), min(reply, most)
		}
		e.How = fmt.Sprintf("the most that --max-turns allows, %d turns, each with all before it; %s per answer, a guess of %d per reply of the environment", c.o.Env.MaxTurns, how, replyTokens)
	}
	e.Requests = int(turns * float64(left))
	e.PromptTokens, e.AnswerTokens = prompt*float64(left), reply*float64(left)
	if c.o.Price != nil {
		e.Priced, e.Cost = true, c.o.Price.Cost(e.PromptTokens, e.AnswerTokens)
	}
	return e
}

// replyTokens is the assumed length of an environment's reply while there are too few to measure.
const replyTokens = 100

// Keep is a condition on an episode's reward or turns. All episodes pass the zero Keep.
type Keep struct {
	text, of, how string
	than          float64
}

// comparisons lists the operators of --keep, the longer ones first.
var comparisons = []string{">=", "<=", "==", "!=", ">", "<", "="}

// ParseKeep reads a comparison of reward or turns with a number, such as reward>=1.
func ParseKeep(text string) (k Keep, err error) {
	for _, how := range comparisons {
		of, than, ok := strings.Cut(text, how)
		if !ok {
			continue
		}
		k = Keep{text: text, of: strings.TrimSpace(of), how: how}
		k.than, err = strconv.ParseFloat(strings.TrimSpace(than), 64)
		if err == nil && k.than == k.than && (k.of == "reward" || k.of == "turns") {
			return k, nil
		}
		break
	}
	return Keep{}, fmt.Errorf(
		"%q: must be one comparison of reward or turns with a number, such as reward>=1", text)
}

// keeps reports whether an episode passes.
func (k Keep) keeps(reward float64, turns int) bool {
	x := reward
	if k.of == "turns" {
		x = float64(turns)
	}
	switch k.how {
	case ">=":
		return x >= k.than
	case "<=":
		return x <= k.than
	case ">":
		return x > k.than
	case "<":
		return x < k.than
	case "!=":
		return x != k.than
	case "=", "==":
		return x == k.than
	}
	return true
}
