package episode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gad/internal/env"
	"gad/model"
	"gad/tokenizer"
)

// Player plays episodes.
type Player struct {
	Tok      *tokenizer.Tokenizer
	Env      Environment
	Limits   Limits
	Sampling model.Sampling
	Seed     uint64 // key of the random numbers, with Step
	Step     uint64
	Progress func(tokens int) // gets the tokens sampled since its last call; nil: not called

	// Slots of the engine: the number of episodes that are played at once, since its cache has room
	// for no more contexts; the next begins when one ends. More begin while the engine waits for
	// environments. 0: all at once.
	Slots int

	// Broken is called at each new broken episode, with their number and the first fault; its error
	// ends Play. nil: any number may break.
	Broken func(n int, first string) error

	// Kept holds the episodes played before, and gets the new ones, so that others can branch off
	// them; nil: none can.
	Kept *Kept
}

// Kept holds episodes open in their environment until Close, for branches. It belongs to one
// environment and one step. A nil Kept closes every episode.
type Kept struct {
	env env.Brancher
	mu  sync.Mutex
	of  map[name]env.Episode
}

type name struct {
	row    uint64
	sample int
}

// Keep returns a Kept for an environment in which episodes can branch; nil for another.
func Keep(e Environment) *Kept {
	b, is := e.(env.Brancher)
	if !is {
		return nil
	}
	return &Kept{env: b, of: map[name]env.Episode{}}
}

// begin starts a task's episode: a fork of the episode whose turns it replays, if that is held, or
// a new one.
func (k *Kept) begin(e Environment, task *Task) env.Episode {
	if k != nil && len(task.Replay.Turns) > 0 {
		k.mu.Lock()
		defer k.mu.Unlock()
		if from := k.of[name{task.Key, task.Replay.Sample}]; from != nil {
			return k.env.Branch(from, len(task.Replay.Turns))
		}
	}
	return e.Episode()
}

// end holds the finished episode of a task, or closes it if k is nil.
func (k *Kept) end(e env.Episode, task *Task) {
	if k == nil {
		e.Close()
		return
	}
	k.env.Hold(e)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of[name{task.Key, task.Sample}] = e
}

// Close closes the episodes that are still open.
func (k *Kept) Close() {
	if k != nil {
		for _, e := range k.of {
			e.Close()
		}
		k.of = nil
	}
}

// idle is how long an engine without requests waits for environments before another episode begins.
const idle = 100 * time.Millisecond

// Engine returns the size of an engine that plays the given number of episodes, slots of them at
// once. Pages of turns that are not being decoded stay cached while there is room: the next turn
// reuses them.
func (l Limits) Engine(slots, episodes int) model.EngineOptions {
	const page = 16
	longest := l.Prompt + l.Tokens
	slots = min(slots, episodes)
	pages := (longest+page-1)/page + 1
	return model.EngineOptions{Slots: slots, PageTokens: page, Pages: slots * pages,
		Longest: longest, Keep: true}
}

// Play plays all tasks on the engine, and returns their episodes in the order of the tasks. An
// episode waits only for its own environment: a turn is sampled as soon as a slot is free. An
// episode's turns do not depend on the others if a row of a product does not (model.Backend.Alone).
//
// An environment that breaks ends its episode (Episode.Fault). When ctx ends, the error is
// model.ErrStopped.
func (p *Player) Play(ctx context.Context, e *model.Engine, tasks []Task) ([]Episode, error) {
	ctx, cancel := context.WithCancel(ctx)
	g := &game{Player: p, engine: e, ctx: ctx, news: make(chan news, len(tasks)),
		open: len(tasks), grows: p.Tok.Grows()}
	defer g.wait.Wait()
	defer cancel() // cancels the calls of open episodes, before the wait
	for i := range tasks {
		g.seats = append(g.seats, &seat{Task: &tasks[i], turn: make(chan env.Turn, 1)})
	}
	for range cmp.Or(p.Slots, len(tasks)) {
		g.next()
	}
	reported := 0
	for g.open > 0 {
		if err := g.hear(); err != nil {
			return nil, err
		}
		if p.Broken != nil && g.faults > reported {
			reported = g.faults
			if err := p.Broken(reported, g.first); err != nil {
				return nil, err
			}
		}
		if g.open > 0 && !e.Idle() {
			if err := e.Step(); err != nil {
				return nil, err
			}
		}
	}
	out := make([]Episode, len(tasks))
	for i, s := range g.seats {
		out[i] = s.Episode
	}
	return out, nil
}

// game holds the episodes that are played on one engine.
type game struct {
	*Player
	engine *model.Engine
	ctx    context.Context
	seats  []*seat
	begun  int       // seats that have begun
	news   chan news // replies of the environments: at most one of each seat waits
	open   int
	grows  error  // why the chat template cannot append messages; nil: it can
	faults int    // broken episodes
	first  string // first fault
	wait   sync.WaitGroup
}

// seat is one episode in progress. A goroutine of its own (attend) calls its environment;
// everything else belongs to Play's goroutine.
type seat struct {
	*Task
	Episode
	turn   chan env.Turn // turns of the student for attend; closed when the episode ends
	anchor string        // anchor of the next turn
	forked bool          // forked: the environment does not play the earlier turns again
	// the context that was last given whole; the next one adds the messages after their common
	// beginning
	context []Message
	drawn   int // tokens sampled so far
	behind  int // tokens after the first context
	seen    int // tokens of the present sequence that a request has had
}

// news is a reply of a seat's environment.
type news struct {
	*seat
	env.Reply
	err error
}

// next begins another episode, if one is left.
func (g *game) next() {
	if g.begun < len(g.seats) {
		s := g.seats[g.begun]
		g.begun++
		g.wait.Go(func() { g.attend(s) })
	}
}

// attend calls a seat's environment until the episode has ended, and sends its replies to news.
func (g *game) attend(s *seat) {
	e := g.Kept.begin(g.Env, s.Task)
	defer g.Kept.end(e, s.Task)
	begun := false // from the first reply on the seat is of Play's goroutine
	err := env.Play(g.ctx, e, s.Seed, s.Row, func(r env.Reply) (env.Turn, bool, error) {
		if b, is := e.(env.Branch); is && !begun {
			s.forked = b.Forked()
		}
		begun = true
		g.news <- news{s, r, nil}
		if r.Done {
			return env.Turn{}, false, nil
		}
		select {
		case turn, ok := <-s.turn:
			return turn, ok, nil
		case <-g.ctx.Done():
			return env.Turn{}, false, nil
		}
	})
	if err != nil {
		g.news <- news{s, env.Reply{}, err}
	}
}

// hear handles the replies of environments. If the engine has nothing to do, it waits for one.
func (g *game) hear() error {
	wait := g.engine.Idle()
	for g.open > 0 {
		if wait {
			select {
			case n := <-g.news:
				if err := g.take(n); err != nil {
					return err
				}
			case <-time.After(idle):
				g.next()
			case <-g.ctx.Done():
				return model.ErrStopped
			}
			wait = g.engine.Idle()
			continue
		}
		select {
		case n := <-g.news:
			if err := g.take(n); err != nil {
				return err
			}
		case <-g.ctx.Done():
			return model.ErrStopped
		default:
			return nil
		}
	}
	return nil
}

// take handles a reply: the seat's next context, its end or its fault.
func (g *game) take(n news) error {
	s := n.seat
	switch {
	case n.err != nil && errors.Is(n.err, env.ErrFault):
		s.Fault = n.err.Error()
		g.end(s)
		return nil
	case n.err != nil && g.ctx.Err() != nil:
		return model.ErrStopped
	case n.err != nil:
		return n.err
	case len(s.Seqs) == 0:
		return g.begin(s, n.Reply)
	}
	turn := &s.Turns[len(s.Turns)-1]
	turn.Reward, turn.Valid = n.Reward, n.Valid
	if n.Label != "" {
		s.Label = n.Label
	}
	s.anchor = n.Anchor
	if n.Done {
		g.end(s)
		return nil
	}
	if len(s.Turns) >= g.Limits.Turns {
		g.cut(s)
		return nil
	}
	return g.proceed(s, n.Reply)
}

// proceed builds a seat's next context from a reply.
func (g *game) proceed(s *seat, r env.Reply) error {
	more := r.Append
	if r.Prompt != nil {
		more = r.Prompt[alike(s.context, r.Prompt):]
	} else if g.grows != nil {
		return fmt.Errorf("env: %s appends messages, but %w: use a student with another template, or an environment that gives prompt in the place of append", g.Env.Name(), g.grows)
	}
	// tokens to append to the transcript, and to the sequence unless a new one begins
	ids, err := g.Tok.Following(tokenizer.Chat{Messages: s.Prompt, Tools: s.Tools}, more)
	if err != nil {
		return g.broken(s, err)
	}
	if !s.Turns[len(s.Turns)-1].Cut { // the answer has its own end
		ids = ids[1:]
	}
	// a message that leaves no room for an answer is dropped
	if s.behind+len(ids) >= g.Limits.Tokens {
		g.cut(s)
		return nil
	}
	if r.Prompt == nil {
		seq := &s.Seqs[len(s.Seqs)-1]
		seq.IDs = append(seq.IDs, ids...)
	} else {
		whole, err := g.Tok.Prompt(tokenizer.Chat{Messages: r.Prompt, Tools: s.Tools})
		if err != nil {
			return g.broken(s, err)
		}
		if len(whole) > g.Limits.Prompt {
			g.cut(s)
			return nil
		}
		s.Seqs, s.Logp = append(s.Seqs, model.Seq{IDs: whole}), append(s.Logp, nil)
		s.context, s.seen = r.Prompt, 0
	}
	s.Spoken = append(s.Spoken, more...)
	s.Script.IDs = append(s.Script.IDs, ids...)
	s.behind += len(ids)
	return g.ask(s)
}

// alike returns how many messages two contexts have in common at their beginning, fewer than all of
// b.
func alike(a, b []Message) (n int) {
	for n < min(len(a), len(b)-1) && a[n].Role == b[n].Role && a[n].Content == b[n].Content {
		n++
	}
	return n
}

// begin sets a seat's first context.
func (g *game) begin(s *seat, r env.Reply) error {
	messages, ids, err := g.start(s.Task, r)
	if err != nil {
		return err
	}
	s.Prompt, s.context, s.anchor = messages, messages, r.Anchor
	s.Seqs, s.Logp = []model.Seq{{IDs: ids}}, [][]float32{nil}
	s.Script.IDs = slices.Clone(ids)
	return g.ask(s)
}

// Try begins one episode and ends it: an environment that cannot play the rows fails here, before
// any other work.
func (p *Player) Try(ctx context.Context, task Task) error {
	e := p.Env.Episode()
	defer e.Close()
	r, err := e.Reset(ctx, task.Seed, task.Row)
	if err == nil {
		_, _, err = p.start(&task, r)
	}
	return err
}

// start returns the first context of an episode, as messages and tokens, from the environment's
// reply to reset.
func (p *Player) start(task *Task, r env.Reply) (messages []Message, ids []int32, err error) {
	if messages = r.Prompt; r.Prompt == nil {
		messages = joinMessages(task.Row.Content, r.Append)
	}
	ids, err = p.Tok.Prompt(tokenizer.Chat{Messages: messages, Tools: task.Tools})
	switch {
	case err != nil:
	case r.Done:
		err = errors.New("is over before its first turn")
	case len(messages) == 0:
		err = errors.New(
			"has no message: the row's content is empty, and the environment appends none")
	case len(ids) > p.Limits.Prompt:
		err = fmt.Errorf("has %d tokens, more than data.max_prompt_length %d: raise it", len(ids),
			p.Limits.Prompt)
	case task.Begins != nil:
		err = sameIDs(*task, ids)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("env: row %d: %w %w", task.Key, ErrContext, err)
	}
	return messages, ids, nil
}

// joinMessages returns a row's content followed by the messages that reset appends, unless the
// content ends with them already: rows of recorded episodes contain the environment's first
// messages.
func joinMessages(content, more []env.Message) []env.Message {
	if n := len(content) - len(more); n >= 0 && slices.EqualFunc(content[n:], more,
		func(a, b env.Message) bool {
			return a.Role == b.Role && a.Content == b.Content && a.ToolCalls == b.ToolCalls
		}) {
		return content
	}
	return slices.Concat(content, more)
}

// ask submits the seat's next turn to the engine, or replays it.
func (g *game) ask(s *seat) error {
	seq := &s.Seqs[len(s.Seqs)-1]
	context := len(seq.IDs)
	// tokens of the present context may be fewer than Limits.Prompt, never more
	most := min(g.Limits.Turn, g.Limits.Tokens-s.behind)
	if most < 1 {
		g.cut(s)
		return nil
	}
	replay := s.Task.Replay
	if k := len(s.Turns); k < len(replay.Turns) {
		if s.Before++; !s.forked {
			s.Again++
		}
		g.wrote(s, replay.Turns[k])
		return nil
	} else if k == s.Before && k > 0 && !slices.Equal(seq.IDs, replay.Next) {
		g.failReplay(s)
		return nil
	}
	s.Context += context
	s.New += context - s.seen
	return g.engine.Submit(&model.Request{Prompt: slices.Clone(seq.IDs), N: 1, Sample: s.Sample,
		Drawn: s.drawn, MaxNew: most, Sampling: g.Sampling, EOS: g.Tok.EOS(), Seed: g.Seed,
		Step: g.Step, Row: s.Key,
		Found: func(tokens int) { s.Computed += context - tokens },
		Done:  func(_ int, c model.Completion) { g.wrote(s, c) }})
}

// wrote handles a finished turn of the student.
func (g *game) wrote(s *seat, c model.Completion) {
	last := len(s.Seqs) - 1
	seq := &s.Seqs[last]
	from := len(seq.IDs)
	seq.IDs = append(seq.IDs, c.IDs...)
	if len(s.Turns) >= s.Before {
		seq.Spans = append(seq.Spans, model.Span{From: from, To: len(seq.IDs)})
		s.Logp[last] = append(s.Logp[last], c.Logp...)
	}
	from = len(s.Script.IDs)
	s.Script.IDs = append(s.Script.IDs, c.IDs...)
	s.Script.Spans = append(s.Script.Spans, model.Span{From: from, To: len(s.Script.IDs)})
	s.drawn += len(c.IDs)
	s.behind += len(c.IDs)
	s.seen = len(seq.IDs) - 1 // the last token passes with the next request
	s.Turns = append(s.Turns, Turn{Cut: c.Truncated, Anchor: s.anchor, At: len(s.Spoken)})
	text := g.Tok.Decode(c.IDs, true)
	s.Spoken = append(s.Spoken, env.Message{Role: "assistant", Content: text})
	s.turn <- env.Turn{Text: text, Cut: c.Truncated}
	if g.Progress != nil && len(s.Turns) > s.Before {
		g.Progress(len(c.IDs))
	}
}

// cut ends an episode at a limit.
func (g *game) cut(s *seat) {
	s.Cut = true
	g.end(s)
}

// broken ends an episode with a fault: its messages cannot be written in the student's chat
// template.
func (g *game) broken(s *seat, err error) error {
	s.Fault = fmt.Sprintf("env: %s: turn %d: %v", g.Env.Name(), len(s.Turns), err)
	g.end(s)
	return nil
}

// failReplay ends an episode with a fault: the environment's replies to the replayed turns differ
// from the earlier ones.
func (g *game) failReplay(s *seat) {
	s.Fault = fmt.Sprintf("env: %s: row %d: replies to turns 1 to %d are not what they were: an environment in which episodes branch replies the same to the same seed and turns", g.Env.Name(), s.Key, s.Before)
	g.end(s)
}

// end closes a seat, counts its fault, and begins the next episode.
func (g *game) end(s *seat) {
	if n := len(s.Task.Replay.Turns); s.Fault == "" && n > 0 && len(s.Turns) <= n {
		g.failReplay(s) // it has ended before its own first turn
		return
	}
	if n := len(s.Turns); n > 0 {
		s.Open = s.Turns[n-1].Cut
	}
	if s.Fault != "" {
		g.faults++
		g.first = cmp.Or(g.first, s.Fault)
	}
	close(s.turn)
	g.open--
	g.next()
}
