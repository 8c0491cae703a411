package session

import (
	"slices"
	"strings"

	"gad/data"
	"gad/internal/fault"
)

// Rows names a data set and how to read its rows.
type Rows struct {
	Command         string // beginning of the errors
	Paths           []string
	Split           string
	Format          string
	Content, Answer string // columns: the conversation, the teacher's answer
	Turns           string // turns of a row that are answers, one of data.TurnsValues; "": the last
	All             bool   // data.TurnsAll is allowed
	TeacherPrompt   string // column with the prompt that a teacher reads; "": none
	Limit           int    // rows to read; 0: all
	data.Choice            // filter of rows
}

// Open opens the set.
func (r Rows) Open(s *Session) (*data.Set, error) {
	cols := data.DefaultColumns()
	cols.Content, cols.Teacher, cols.TeacherPrompt = r.Content, r.Answer, r.TeacherPrompt
	if !slices.Contains(data.RowFormats, r.Format) {
		return nil, fault.Usagef("%s: --format %q: use %s", r.Command, r.Format,
			strings.Join(data.RowFormats, ", "))
	}
	switch {
	case r.Turns != "" && !slices.Contains(data.TurnsValues, r.Turns):
		return nil, fault.Usagef("%s: --turns %q: use %s", r.Command, r.Turns,
			strings.Join(data.TurnsValues, ", "))
	case r.Turns == data.TurnsAll && !r.All:
		return nil, fault.Usagef("%s: --turns all: a row would be a whole conversation, and here an answer is one turn: use each", r.Command)
	}
	return data.OpenFiles(r.Paths,
		data.Options{Columns: cols, Format: r.Format, Split: r.Split, Turns: r.Turns,
			Choice: r.Choice, Stages: s.Console.Busy})
}

// List opens the set and returns the indices of the rows to read. It warns of columns that rows do
// not carry although answers may refer to them.
func (r Rows) List(s *Session) (*data.Set, []int, error) {
	set, err := r.Open(s)
	if err != nil {
		return nil, nil, err
	}
	if suspect, _ := set.Overlooked(); suspect != "" {
		s.Console.Warn(suspect)
	}
	n := set.Len()
	if r.Limit > 0 {
		n = min(n, r.Limit)
	}
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	return set, rows, nil
}
