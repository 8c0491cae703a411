package data

import (
	"gad/data/input"
	"gad/data/layout"
)

// Names of the packages below that are part of this package's API: of files (input), and of rows
// (layout).

// ErrTruncated marks a file that ends too early by its own lengths.
var ErrTruncated = input.ErrTruncated

// ErrCorrupt marks a file that breaks the rules of its format.
var ErrCorrupt = input.ErrCorrupt

// ErrChoice marks an invalid Choice: its text, its columns, or its ratings.
var ErrChoice = layout.ErrChoice

// ErrLogprobs is wrapped by errors of ReadLogprobs.
var ErrLogprobs = layout.ErrLogprobs

// Formats of rows: their columns and the columns' meaning. See package layout.
const (
	FormatAuto             = layout.FormatAuto
	FormatMessages         = layout.FormatMessages
	FormatShareGPT         = layout.FormatShareGPT
	FormatAlpaca           = layout.FormatAlpaca
	FormatQA               = layout.FormatQA
	FormatPromptCompletion = layout.FormatPromptCompletion
	FormatPreference       = layout.FormatPreference
)

// RowFormats are the values of Options.Format.
var RowFormats = layout.RowFormats

// NoLogProb is the log-probability of a token that is only known to be unlikely.
const NoLogProb = layout.NoLogProb

// Types of a row's parts.
type (
	// Message is one turn of a conversation.
	Message = layout.Message
	// JSON is a JSON text in one form: without blanks, and with the keys in their order.
	JSON = layout.JSON
	// Logprobs are what a teacher gave the tokens of its answer.
	Logprobs = layout.Logprobs
	// Logprob is one token and its log-probability.
	Logprob = layout.Logprob
	// Column is one column of a file, as the file declares it.
	Column = layout.Column
	// Columns names the columns of a set.
	Columns = layout.Columns
)

// DefaultColumns returns the names content, teacher_response, response, prompt_ids,
// response_ids, id and finish_reason.
func DefaultColumns() Columns { return layout.DefaultColumns() }

// ReadTools parses the tools of a conversation: see layout.ReadTools.
func ReadTools(value []byte) (JSON, error) { return layout.ReadTools(value) }

// ReadCalls parses the tool_calls of a turn: see layout.ReadCalls.
func ReadCalls(value []byte) (JSON, error) { return layout.ReadCalls(value) }

// ReadLogprobs parses tokens with their log-probabilities: see layout.ReadLogprobs, which lists the
// forms.
func ReadLogprobs(value []byte) (Logprobs, error) { return layout.ReadLogprobs(value) }

// RoleOf returns a role in gad's spelling: lower case for known roles, and system for OpenAI's
// developer. Others are returned unchanged.
func RoleOf(role string) string { return layout.RoleOf(role) }
