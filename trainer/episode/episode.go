// Package episode plays episodes: conversations in which the student writes one turn after another,
// and an environment replies to each.
//
//	episode.go  the records: episode, turn, task
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

// Messages between student and environment, and the interface of environments
// (doc/environments.md). env.Pool implements it with programs.
type (
	Environment = env.Environment
	Row         = env.Row
	Message     = data.Message
)

// Episode is one conversation of the student with an environment. The student learns the tokens
// that it sampled: no text is ever encoded again.
//
// A reply that appends messages makes a turn's context longer, and the episode stays one sequence
// with a span for each turn. A reply that gives the next context whole begins another sequence.
// Readers of the whole episode, such as the discriminator, read Script: one conversation, in which
// a context that was given whole adds only its new messages.
type Episode struct {
	Seqs   []model.Seq // a span of one of them is a turn
	Script model.Seq   // the transcript, a span for each turn: Seqs[0] where there is one
	Logp   [][]float32 // of each sequence's trained tokens, as the sampler saw them
	Turns  []Turn      // in the order of the spans
	Cut    bool        // ended by a limit, and not by the environment
	Open   bool        // the last turn has no end: it was cut at a limit of tokens
	Label  string      // given by the environment; "": none
	Fault  string      // why the environment broke; "": it did not
	Before int         // turns copied from another episode, which are no spans of Seqs
	Again  int         // how many of these the environment played again
	Prompt []Message   // the first context
	Spoken []Message   // the messages of Script after Prompt

	// Tokens of the contexts of all turns' requests: all, those that no earlier request of the
	// episode had, and those that had to be computed.
	Context, New, Computed int
}

// Turn is one turn of the student, with the environment's verdict.
type Turn struct {
	Reward float64 // without the penalty of an invalid turn
	Valid  bool
	Cut    bool   // at a limit of tokens
	Anchor string // the observation before the turn, without its history; "": none
	At     int    // index in Spoken
}

// Trained returns the number of tokens that the student sampled.
func (e *Episode) Trained() (n int) {
	for _, s := range e.Seqs {
		n += s.Trained()
	}
	return n
}

// Reward returns the sum of the turns' rewards; each invalid turn costs penalty.
func (e *Episode) Reward(penalty float64) (sum float64) {
	for _, x := range e.Rewards(penalty) {
		sum += x
	}
	return sum
}

// Rewards returns the turns' rewards, minus penalty for an invalid turn.
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
	Tools  string  // the row's tools, as in tokenizer.Chat
	Seed   uint64  // the environment's, at most env.MaxSeed
	Key    uint64  // key of the random numbers: the row's number
	Sample int     // key of the random numbers: number of the row's episode
	Begins []int32 // first context of the teacher's episode, which this one must have; nil: any

	Replay Replay // turns to copy from another episode of the row
}

// Replay holds the first turns of an earlier episode, with which a branch begins: they are neither
// sampled nor trained. The environment forks the earlier episode if Player.Kept has it and it can
// be forked; otherwise the turns are sent to it again.
type Replay struct {
	Sample int // Task.Sample of the earlier episode
	Turns  []model.Completion
	Next   []int32 // context that the environment must give after these turns
}

// Replay returns the first n turns of e, for a branch. e must have sampled turn n-1 itself, and
// have more turns. sample is the Sample of e's task.
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

// TaskOf returns a task on a row, by the run's seed and step and the row's key. All samples of a
// row have the same world in a step.
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
	Tokens int // tokens after the first context, with those of the environment's messages
}

// ErrStart is wrapped by the error of an episode whose first context differs from the teacher's:
// the discriminator would tell the two apart by it.
var ErrStart = errors.New("another beginning than the teacher's")

// ErrContext is wrapped by the error of a first context that an episode cannot have.
var ErrContext = errors.New("the first context")

// sameIDs returns ErrStart if ids differ from the first context of the teacher's episode.
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
