// Package episode plays the student in an environment: conversations in which it writes one turn
// after another, and the environment answers each.
//
//	episode.go  what an episode is
//	play.go     many episodes on one engine: requests go out as environments answer
package episode

import (
	"errors"
	"fmt"

	"gad/data"
	"gad/internal/env"
	"gad/internal/philox"
	"gad/model"
)

// What is said between a student and its environment, and the environment itself
// (doc/environments.md). env.Pool is one that runs programs.
type (
	Environment = env.Environment
	Row         = env.Row
	Message     = data.Message
)

// Episode is one conversation of the student with an environment. What is learned are the tokens as
// they were sampled: no text is ever encoded again.
//
// A reply that appends messages makes a turn's context longer, and the episode stays one sequence
// with a span for each turn. A reply that gives the next context whole begins another sequence. A
// reader of the whole, such as the discriminator, has the transcript: one conversation, in which
// of a context that was given whole only those messages stand that are new in it.
type Episode struct {
	Seqs   []model.Seq // a span of one of them is a turn
	Script model.Seq   // the transcript, a span for each turn: Seqs[0] where there is one
	Logp   [][]float32 // of each sequence's trained tokens, as the sampler saw them
	Turns  []Turn      // in their order, which is that of the spans
	Cut    bool        // ended by a limit, and not by the environment
	Open   bool        // the last turn has no end: it was cut at a limit of tokens
	Label  string      // of the environment; "" is none
	Fault  string      // why the environment broke; "": it did not
	Before int         // turns taken over from another episode, which are no spans of Seqs
	Again  int         // of those, turns that the environment played once more
	Prompt []Message   // the first context
	Spoken []Message   // what the transcript has behind it, as texts

	// Tokens of contexts that the turns' requests had, of those the ones that no earlier request
	// of the episode had, and the ones that had to be computed.
	Context, New, Computed int
}

// Turn is one answer of the student, and what the environment made of it.
type Turn struct {
	Reward float64 // without the penalty of an invalid turn
	Valid  bool
	Cut    bool   // at a limit of tokens
	Anchor string // the observation before the turn, without its history; "" is none
	At     int    // in Spoken
}

// Trained is the number of tokens that the student wrote.
func (e *Episode) Trained() (n int) {
	for _, s := range e.Seqs {
		n += s.Trained()
	}
	return n
}

// Reward is the sum over the turns, each invalid one of which costs penalty.
func (e *Episode) Reward(penalty float64) (sum float64) {
	for _, x := range e.Rewards(penalty) {
		sum += x
	}
	return sum
}

// Rewards are those of the turns.
func (e *Episode) Rewards(penalty float64) []float64 {
	out := make([]float64, len(e.Turns))
	for k, turn := range e.Turns {
		if out[k] = turn.Reward; !turn.Valid {
			out[k] -= penalty
		}
	}
	return out
}

// Task is one episode to play.
type Task struct {
	Row    Row
	Tools  string  // of the row, as tokenizer.Chat has them
	Seed   uint64  // the environment's, at most env.MaxSeed
	Key    uint64  // of the draws: the row's number
	Sample int     // of the draws: which of the row's episodes
	Begins []int32 // the first context as it must be, of the teacher's episode; nil: any

	Replay Replay // what the episode takes over from another one of the row
}

// Replay is the first turns of an episode, which another one begins with too: they are neither
// sampled nor trained. The environment forks the episode that they are of, where it is among
// Player.Kept and can be forked, and otherwise gets them again.
type Replay struct {
	Sample int // the Task.Sample of the episode that they are of
	Turns  []model.Completion
	Next   []int32 // the context that the environment must give for the turn behind them
}

// Replay is the first n turns of e, of which it has sampled the last, and more than n. sample is
// that of its task.
func (e *Episode) Replay(sample, n int) (r Replay) {
	r.Sample = sample
	for k, span := range e.Script.Spans[:n] {
		r.Turns = append(r.Turns,
			model.Completion{IDs: e.Script.IDs[span.From:span.To], Truncated: e.Turns[k].Cut})
	}
	k := e.Before
	for _, seq := range e.Seqs {
		if n < k+len(seq.Spans) {
			r.Next = seq.IDs[:seq.Spans[n-k].From]
			break
		}
		k += len(seq.Spans)
	}
	return r
}

// TaskOf is an episode on a row, by the run's seed and step and the row's key. All samples of a row
// meet the same world in a step.
func TaskOf(row data.Row, seed, step, key uint64) (Task, error) {
	task := Task{Tools: string(row.Tools), Key: key,
		Seed: philox.Uint64(seed, philox.Environment, step, key, 0) & env.MaxSeed,
		Row:  env.RowOf(row.Messages, row.Env)}
	if len(row.PromptIDs) > 0 {
		return task, fmt.Errorf("data: row %d: its prompt is prompt_ids: an environment reads messages: give the column content", row.Index)
	}
	return task, nil
}

// Limits bound an episode.
type Limits struct {
	Prompt int // tokens of a context that the environment gives whole
	Turn   int // tokens of a turn
	Turns  int // turns
	Tokens int // tokens behind the first context, those of the environment's messages included
}

// ErrStart is wrapped by the error of an episode that does not begin as the teacher's did: the
// discriminator would tell the two apart by their beginnings.
var ErrStart = errors.New("another beginning than the teacher's")

// ErrContext is wrapped by the error of a context that no episode can begin with.
var ErrContext = errors.New("the first context")

func sameIDs(at Task, ids []int32) error {
	n := min(len(ids), len(at.Begins))
	for i := range n {
		if ids[i] != at.Begins[i] {
			n = i
			break
		}
	}
	if n == len(ids) && n == len(at.Begins) {
		return nil
	}
	return fmt.Errorf("%w: %d tokens against the teacher's %d, the first %d alike: make the rows with this environment (gad data collect --env), or set env.other_start=true",
		ErrStart, len(ids), len(at.Begins), n)
}
