// Package env is what a student acts in: an environment that answers its turns and rewards them.
//
//	env.go       the interface: Environment, Episode, Row, Turn, Reply
//	wire.go      the protocol's lines: what is sent, and how a reply is read and checked
//	pool.go      the client: episodes on a pool of child processes
//	worker.go    one child process: start, requests, time limits, restart and replay
//	serve.go     the other side: an Episode of Go as a program that speaks the protocol
//
// doc/environments.md describes the protocol.
package env

import (
	"context"
	"encoding/json"
	"errors"

	"gad/internal/chat"
)

// Episode is one conversation of a student with an environment: Reset, then Step until a Reply is
// done, then Close. Its methods are called one at a time; episodes are independent of each other.
//
// An environment is deterministic: equal seeds, rows and turns give equal replies.
type Episode interface {
	// Reset begins the episode. seed is at most MaxSeed.
	Reset(ctx context.Context, seed uint64, row Row) (Reply, error)
	// Step gives the environment the student's turn.
	Step(ctx context.Context, turn Turn) (Reply, error)
	// Close ends the episode, at any time. It may be called twice.
	Close()
}

// Play drives an episode on a row: Reset, then Step until a reply is done. answer gets each reply,
// that of Reset first, and returns the next turn, or ok false to leave the episode. A turn behind
// the last reply is not played. Play does not close the episode.
func Play(ctx context.Context, e Episode, seed uint64, row Row,
	answer func(Reply) (turn Turn, ok bool, err error)) error {
	r, err := e.Reset(ctx, seed, row)
	for err == nil {
		turn, ok, failed := answer(r)
		if !ok || r.Done || failed != nil {
			return failed
		}
		r, err = e.Step(ctx, turn)
	}
	return err
}

// Forker is an Episode that a program can copy. Serve keeps a copy of every turn then, and offers
// forks to its client.
type Forker interface {
	Episode
	// Fork returns an episode that stands where this one stands. Neither of the two changes the
	// other, and the copy holds nothing that Close would have to give back.
	Fork() Forker
}

// Brancher is an Environment in which an episode can begin as one that was played.
type Brancher interface {
	Environment
	// Hold takes an episode that nobody will step any more, and leaves it open for branches until
	// its Close, where that saves anything.
	Hold(e Episode)
	// Branch is an episode whose Reset and first turns, at least 1, are those of e, which was held:
	// they are given once more, and must be answered as they were. Where e is still open in a child
	// that can fork, these answers are the recorded ones, and the child is asked for nothing but
	// the fork.
	Branch(e Episode, turns int) Branch
}

// Branch is an Episode that begins as another one.
type Branch interface {
	Episode
	// Forked reports, behind Reset, whether it is a fork: no turn of the other one is played again.
	Forked() bool
}

// Environment begins episodes. Its methods may be called by several goroutines.
type Environment interface {
	Name() string // as it calls itself
	Episode() Episode
}

// ErrFault is wrapped by the error of an episode that its environment has broken: nothing can be
// learned from the episode, and the others go on.
var ErrFault = errors.New("env")

// MaxSeed is the largest seed, so that every language reads it exactly as a JSON number.
const MaxSeed = 1<<53 - 1

// Row is what an environment gets of a row of the data.
type Row struct {
	Content []Message       `json:"content"`
	Env     json.RawMessage `json:"env,omitempty"` // opaque column; nil where the row has none
}

// Message is one message of a conversation, of one of Roles. An environment neither writes nor gets
// thoughts.
type Message = chat.Message

// RowOf returns what an environment gets of a row with these messages and this column env.
func RowOf(messages []Message, env chat.JSON) (r Row) {
	r.Content = make([]Message, len(messages))
	for i, m := range messages {
		r.Content[i] = m.Heard()
	}
	if env != "" {
		r.Env = json.RawMessage(env)
	}
	return r
}

// Roles are the roles of messages.
var Roles = []string{"system", "user", "assistant", "tool"}

// Turn is what the student wrote.
type Turn struct {
	Text string
	Cut  bool // at a limit of tokens: the text has no end
}

// Reply is what the environment answers.
type Reply struct {
	Append []Message // goes behind the context (of Reset: behind the row's content)
	Prompt []Message // is the whole next context in the place of Append
	Reward float64   // of the turn; finite
	Done   bool      // the episode is over
	Valid  bool      // the environment could read the turn; true for Reset
	Anchor string    // the observation without history; "" is none
	Label  string    // what sort of episode it was, for counts; "" is none
}
