// Package env runs environments in which a student acts: programs that reply to its turns and
// reward them.
//
//	env.go       the interface: Environment, Episode, Row, Turn, Reply. Start here
//	wire.go      the protocol's lines: requests, and how a reply is parsed and checked
//	pool.go      the client: episodes on a pool of child processes
//	worker.go    one child process: start, requests, time limits, restart and replay
//	serve.go     the server: an Episode in Go as a program that speaks the protocol
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
	// Reset starts the episode. seed is at most MaxSeed.
	Reset(ctx context.Context, seed uint64, row Row) (Reply, error)
	// Step sends the student's turn and returns the reply to it.
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

// Forker is an Episode that can be copied. Serve then keeps a copy at every turn, and offers forks
// to its client.
type Forker interface {
	Episode
	// Fork returns a copy of the episode in its present state. Neither changes the other, and the
	// copy holds nothing that Close would have to release.
	Fork() Forker
}

// Brancher is an Environment whose episodes can start as copies of earlier ones.
type Brancher interface {
	Environment
	// Hold takes an episode that will not be stepped any more, and leaves it open for branches
	// until its Close, where that saves work.
	Hold(e Episode)
	// Branch returns an episode whose Reset and first turns, at least 1, repeat those of e, which
	// was held: the caller gives them again, and they must get the same replies. Where e is still
	// open in a child that can fork, the recorded replies are returned, and the child is only asked
	// for the fork.
	Branch(e Episode, turns int) Branch
}

// Branch is an Episode that starts as a copy of another one.
type Branch interface {
	Episode
	// Forked reports, after Reset, whether the child has forked the other episode: no turn of it is
	// replayed.
	Forked() bool
}

// Environment starts episodes. Its methods may be called by several goroutines.
type Environment interface {
	Name() string // the program's name for itself
	Episode() Episode
}

// ErrFault is wrapped by the error of an episode that its environment has broken: the episode
// cannot be learned from, and others go on.
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

// Turn is the student's answer.
type Turn struct {
	Text string
	Cut  bool // at a limit of tokens: the text has no end
}

// Reply is the environment's answer to a Reset or a Step.
type Reply struct {
	Append []Message // is added to the context (of Reset: to the row's content)
	Prompt []Message // replaces the whole context, in place of Append
	Reward float64   // of the turn; finite
	Done   bool      // the episode is over
	Valid  bool      // the turn could be parsed; true for Reset
	Anchor string    // the observation without history; "" is none
	Label  string    // a kind of episode, for counts; "" is none
}
