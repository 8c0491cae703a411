// Package data reads sets of prompts and teacher answers, hands their rows out
// in a keyed order, and checks, converts and splits them.
//
// It reads Arrow IPC files and streams, Parquet, JSON lines and CSV, alone, in
// folders of shards and as the folders that Hugging Face's
// datasets.save_to_disk writes. What a file is, its first bytes decide, not
// its name. Rows are decoded when asked for: a Set holds an index and a
// bounded number of decoded batches.
//
// Files are not trusted. Lengths are checked against the file before anything
// is allocated, the format libraries run guarded, and a file cut short is an
// error where the format lets one see it. Neither Arrow nor Parquet has a
// checksum over its text, though: a flipped letter is only seen by Digest.
package data

import (
	"errors"
	"slices"
)

// ErrExists marks an output that is already there: nothing is overwritten.
var ErrExists = errors.New("output exists")

// Row is one example.
type Row struct {
	Index    int       // position in the set, from 0
	Messages []Message // the prompt: every turn before the last answer
	Tools    JSON      // list of the tools that the teacher could call; "" is none
	// what an environment gets of the row: any JSON value but null, without blanks and otherwise
	// as the file has it; "" is none
	Env JSON
	// the teacher's answer, of several turns the last; empty where the set has none
	Teacher string
	// what the teacher did behind the prompt, where that is more than one text: begins and ends
	// with an assistant's turn
	Turns       []Message
	Response    string  // a given student's answer, from the optional response column
	PromptIDs   []int32 // optional token ids given instead of text
	ResponseIDs []int32 // optional token ids given instead of text
	ID          string  // optional name of the row, carried through
	// why the teacher's answer ended, where the set says it: stop, length, content_filter
	Finish string
	// what the teacher gave the tokens of its answer; nil where the set has none, and where the row
	// is not of the conversation's last answer
	Logprobs Logprobs
	Told     Told // is written, never read
}

// Told is what an endpoint said of the teacher's answer that it gave.
type Told struct {
	Model                      string
	PromptTokens, AnswerTokens int
	Played                     *Played // nil: the answer is no episode
}

// Played is what an environment said of the teacher's episode.
type Played struct {
	Reward float64 // of all turns
	Label  string
}

// played is zero for an answer that is no episode.
func (t Told) played() Played {
	if t.Played == nil {
		return Played{}
	}
	return *t.Played
}

// Unfinished reports whether the teacher's answer ended before its end: at a limit of
// tokens, by a filter, or because the server gave up.
func (r Row) Unfinished() bool { return slices.Contains(unfinished, r.Finish) }

// PromptText is the last turn that a person wrote.
func (r Row) PromptText() string {
	if n := len(r.Messages); n > 0 {
		return r.Messages[n-1].Content
	}
	return ""
}

// unfinished are the finish_reasons of such answers: OpenAI's and most others', Mistral's,
// vLLM's and SGLang's, and DeepSeek's.
var unfinished = []string{"length", "content_filter", "max_tokens", "model_length", "abort",
	"insufficient_system_resource"}

// LogprobsFault says why the row's log-probabilities are not those of its answer; "" where they
// are, or there are none.
func (r Row) LogprobsFault() string {
	if r.Logprobs == nil {
		return ""
	}
	if r.Turns != nil {
		return "the answer is more than a text, which a template writes"
	}
	if _, ok := r.Logprobs.Spell(r.Teacher); ok {
		return ""
	}
	for _, at := range r.Logprobs {
		if at[0].Bytes != "" {
			return "the bytes of the tokens do not write the answer"
		}
	}
	return "the tokens have no bytes"
}

// SoftLabel is what a student learns at one token of an answer: tokens with the teacher's
// log-probabilities, the answer's own first. What their probabilities lack of 1 is the tail: the
// mass of all other tokens. Nil is a hard label, the answer's token alone.
type SoftLabel struct {
	IDs      []int32
	LogProbs []float32
}
