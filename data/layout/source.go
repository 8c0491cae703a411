package layout

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxRowBytes bounds the bytes that one row copies: views and dictionaries let a small file contain
// the same long text many times.
const MaxRowBytes = 64 << 20

// Columns names the columns of a set. Only Content (or PromptIDs) must exist; the others are read
// if present.
type Columns struct {
	Content     string `yaml:"content" json:"content"`
	Teacher     string `yaml:"teacher_response" json:"teacher_response"`
	Response    string `yaml:"response" json:"response"`
	PromptIDs   string `yaml:"prompt_ids" json:"prompt_ids"`
	ResponseIDs string `yaml:"response_ids" json:"response_ids"`
	ID          string `yaml:"id" json:"id"`
	Finish      string `yaml:"finish_reason" json:"finish_reason"`
	// column for a teacher that scores answers; "": none
	TeacherPrompt string `yaml:"teacher_prompt" json:"teacher_prompt,omitempty"`
	// column that says which teacher scores answers; "": none
	TeacherBy string `yaml:"teacher_by" json:"teacher_by,omitempty"`
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

// Column is one column of a file, as the file declares it.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Source is one open file: batches of rows that are decoded one at a time.
type Source interface {
	Format() string
	Schema() []Column
	TurnKeys(column string) []string      // of a list of turns; nil where unknown
	Keys(column string) []string          // of an object; nil where unknown
	Bind(Layout) (note string, err error) // sets the columns to read, before the first load
	BatchRows() []int                     // rows of each batch
	Load(batch int) (Rows, error)         // decodes one batch
	Close() error
}

// Rows is a decoded batch. At copies its result out of the batch.
type Rows interface {
	At(i int) (Raw, error) // may be called from several goroutines
	Size() int64           // bytes held
}

// Text is a string that may be absent (null, or no such column).
type Text struct {
	S  string
	OK bool
}

// TextOf returns a text that is present.
func TextOf(s string) Text { return Text{s, true} }

// Raw is a row as the file has it, before its turns are separated.
type Raw struct {
	Turns    []Message
	TurnsOK  bool // the row has a conversation
	Answer   []Message
	AnswerOK bool // the teacher's answer is given as turns
	// watched columns, and keys of turns as COLUMN[].KEY, with a value in this row
	Unread      []string
	Elsewhere   string // another column that may be the conversation of a row without one
	Input       Text
	System      Text
	Tools       JSON
	Env         JSON
	Thought     Text
	Teacher     Text
	Response    Text
	ID          Text
	Finish      Text
	Logprobs    Logprobs
	PromptIDs   []int32
	ResponseIDs []int32
	Chosen      []Cell // of Layout.Chosen
	// the prompt that the teacher reads in the place of the row's
	TeacherPrompt []Message
}

// RowsIn returns the number of rows of a file.
func RowsIn(f Source) (n int) {
	for _, k := range f.BatchRows() {
		n += k
	}
	return n
}

// SharedColumns returns the columns that all files of one set must have or lack together: with one
// of them missing, rows would change their meaning.
func (l Layout) SharedColumns() string {
	var has []string
	for _, name := range []string{l.Content, l.Teacher, l.Response, l.PromptIDs, l.ResponseIDs} {
		if name != "" {
			has = append(has, name)
		}
	}
	return strings.Join(has, ", ")
}

// MaxRows bounds a set, so that a false count cannot ask for more memory than its order needs (8
// bytes a row).
const MaxRows = 1 << 28

// Fault is a mistake in one row.
type Fault struct {
	Column, value, rule, wayOut string
}

// NewFault returns a mistake of a row: its column, the value there ("" for none), the rule and the
// way out.
func NewFault(column, value, rule, wayOut string) *Fault {
	return &Fault{column, value, rule, wayOut}
}

func (f *Fault) Error() string {
	return fmt.Sprintf("column %q: %s", f.Column, f.reason())
}

// reason returns the error without the column.
func (f *Fault) reason() string {
	var b strings.Builder
	if f.value != "" {
		b.WriteString(f.value + ": ")
	}
	b.WriteString(f.rule)
	if f.wayOut != "" {
		b.WriteString(": " + f.wayOut)
	}
	return b.String()
}

// Preview returns s in quotes, cut after about n letters, on one line.
func Preview(s string, n int) string {
	if runes := []rune(s[:min(len(s), 4*n)]); len(runes) > n {
		return strconv.Quote(string(runes[:n])) + "..."
	}
	return strconv.Quote(s)
}
