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
	"fmt"
	"slices"
)

// ErrTruncated marks a file that ends before its own marks say it should.
var ErrTruncated = errors.New("file is cut short")

// ErrCorrupt marks a file that breaks the rules of its format.
var ErrCorrupt = errors.New("file is corrupt")

// ErrExists marks an output that is already there: nothing is overwritten.
var ErrExists = errors.New("output exists")

// sentinelError is an error with a text of its own that is also a sentinel: the
// text says the same in the words of the case.
type sentinelError struct {
	text     string
	sentinel error
}

func (e *sentinelError) Error() string        { return e.text }
func (e *sentinelError) Is(target error) bool { return target == e.sentinel }

func truncated(format string, args ...any) error {
	return &sentinelError{fmt.Sprintf(format, args...), ErrTruncated}
}

func damaged(format string, args ...any) error {
	return &sentinelError{fmt.Sprintf(format, args...), ErrCorrupt}
}

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

// Columns names the columns of a set. Only Content (or PromptIDs) must be
// there; the others are read where present and ignored where not.
type Columns struct {
	Content     string `yaml:"content" json:"content"`
	Teacher     string `yaml:"teacher_response" json:"teacher_response"`
	Response    string `yaml:"response" json:"response"`
	PromptIDs   string `yaml:"prompt_ids" json:"prompt_ids"`
	ResponseIDs string `yaml:"response_ids" json:"response_ids"`
	ID          string `yaml:"id" json:"id"`
	Finish      string `yaml:"finish_reason" json:"finish_reason"`
}

// DefaultColumns returns the names content, teacher_response, response,
// prompt_ids, response_ids, id and finish_reason.
func DefaultColumns() Columns {
	return Columns{
		Content:     "content",
		Teacher:     "teacher_response",
		Response:    "response",
		PromptIDs:   "prompt_ids",
		ResponseIDs: "response_ids",
		ID:          "id",
		Finish:      "finish_reason",
	}
}
