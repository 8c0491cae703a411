// Package data reads sets of prompts and teacher answers, returns their rows in a keyed order, and
// checks, converts and splits them.
//
// It reads Arrow IPC files and streams, Parquet, JSON lines and CSV, alone, in folders of shards
// and as the folders that Hugging Face's datasets.save_to_disk writes. The format is determined by
// a file's first bytes, not by its name. Rows are decoded on demand: a Set holds an index and a
// bounded number of decoded batches.
//
// Files are not trusted. Lengths are checked against the file before anything is allocated, the
// format libraries run guarded, and a file cut short is an error where the format shows it. Neither
// Arrow nor Parquet has a checksum over its text, though: a flipped letter is only seen by Digest.
//
//	data.go       a row
//	set.go        a set of rows, open: start here
//	files.go      the files that a path stands for, and their formats
//	json.go       JSON lines and arrays; csv.go: CSV; packed.go: compressed files
//	conversed.go  from a row's columns to a conversation and the turns that are learned
//	order.go      the order of rows over epochs
//	choose.go     a choice of rows by condition
//	ratings.go    ratings of rows
//
//	rules.go      rules that a row must meet, and a row as training uses it
//	validate.go   all problems of a set
//	encode.go     rows into tokens, on all cores
//	kept.go       encoded rows, cached in a file
//	inspect.go    a set described for people
//	convert.go    rows written to a file
//	names.go      names of the packages below that are part of this one's API
package data

import (
	"errors"
	"slices"
	"strings"
)

// ErrExists marks an output path that exists: nothing is overwritten.
var ErrExists = errors.New("output exists")

// Row is one example.
type Row struct {
	Index    int       // position in the set, from 0
	Messages []Message // the prompt: every turn before the last answer
	Tools    JSON      // list of the tools that the teacher could call; "" is none
	// the row's data for an environment: any JSON value but null, without blanks and otherwise as
	// the file has it; "" is none
	Env JSON
	// the teacher's answer, or its last turn; empty if the set has none
	Teacher string
	// the teacher's turns behind the prompt, if they are more than one text: they begin and end
	// with an assistant's turn
	Turns       []Message
	Response    string  // a given student's answer, from the optional response column
	PromptIDs   []int32 // optional token ids given instead of text
	ResponseIDs []int32 // optional token ids given instead of text
	ID          string  // optional name of the row, carried through
	// the reason why the teacher's answer ended, if the set has it: stop, length, content_filter
	Finish string
	// the teacher's log-probabilities of its answer's tokens; nil if the set has none, and if the
	// row is not of the conversation's last answer
	Logprobs Logprobs
	// the prompt that a teacher reads in the place of Messages, of the column that Options names;
	// empty: none
	TeacherPrompt []Message
	// which teacher scores the answers, of the column that Options names; "": none
	TeacherBy string
	Told      Told // written, never read
}

// Told is an endpoint's report on the teacher's answer.
type Told struct {
	Model                      string
	PromptTokens, AnswerTokens int
	Played                     *Played // nil: the answer is no episode
}

// Played is an environment's report on the teacher's episode.
type Played struct {
	Reward float64 // of all turns
	Label  string
}

// episode returns the report on the episode, zero for an answer that is not one.
func (t Told) episode() Played {
	if t.Played == nil {
		return Played{}
	}
	return *t.Played
}

// Unfinished reports whether the teacher's answer ended before its end: at a limit of
// tokens, by a filter, or because the server gave up.
func (r Row) Unfinished() bool { return slices.Contains(unfinished, strings.ToLower(r.Finish)) }

// PromptText returns the text of the prompt's last turn.
func (r Row) PromptText() string {
	if n := len(r.Messages); n > 0 {
		return r.Messages[n-1].Content
	}
	return ""
}

// unfinished are the finish_reasons, in small letters, of answers that were cut: OpenAI's and most
// others', Mistral's, vLLM's and SGLang's, DeepSeek's, GLM's, Gemini's, and what routers say of a
// server that broke off.
var unfinished = []string{"length", "content_filter", "max_tokens", "model_length", "abort",
	"repetition", "insufficient_system_resource", "model_context_window_exceeded", "sensitive",
	"network_error", "safety", "recitation", "error"}

// LogprobsFault returns why the row's log-probabilities do not fit its answer; "" if they do, or if
// the row has no log-probabilities.
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

// SoftLabel is the target at one token of an answer: tokens with the teacher's log-probabilities,
// the answer's own first. Their probabilities add up to 1 minus the tail, the mass of all other
// tokens. Nil is a hard label, the answer's token alone.
type SoftLabel struct {
	IDs      []int32
	LogProbs []float32
}
