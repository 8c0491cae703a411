package data

import (
	"cmp"
	"fmt"
	"gad/data/layout"
	"slices"
	"strings"
)

// Info describes a set, for people by String and for programs as JSON.
type Info struct {
	Path     string     `json:"path"`
	Format   string     `json:"format"`
	Rows     int        `json:"rows"`
	Bytes    int64      `json:"bytes"` // size of the files on disk
	Files    []FileInfo `json:"files"`
	Columns  []Column   `json:"columns"` // of the first file
	Read     Columns    `json:"read"`    // the columns that are read; "" where the set has none
	More     []string   `json:"more"`    // other columns that are read: more of the prompt, a system message, tools, env, thoughts, soft labels
	Teacher  bool       `json:"teacher"` // rows carry teacher answers
	At       int        `json:"at"`      // number of the row shown, from 0
	Row      *Row       `json:"row"`     // that row; nil where it cannot be used
	RowErr   string     `json:"rowErr"`  // the reason why it cannot be used
	Notes    []string   `json:"notes"`   // how the files are read, as far as this was detected
	Warnings []string   `json:"warnings"`
}

// FileInfo is one file of a set.
type FileInfo struct {
	Name   string `json:"name"`
	Format string `json:"format"`
	Rows   int    `json:"rows"`
}

// Inspect describes a set and shows row at, which must exist. It reads only that row and the first
// ones.
func Inspect(s *Set, at int) Info {
	info := Info{
		Path: s.path, Format: s.Format(), Rows: s.Len(), Bytes: s.bytes,
		Columns: s.columns, Read: s.has, Teacher: s.HasTeacher(), At: at, Notes: s.Notes(),
		Warnings: s.Warnings(),
	}
	if chosen := s.Chosen(); chosen != "" {
		info.Notes = append(info.Notes, chosen)
	}
	if suspect, _ := s.Overlooked(); suspect != "" {
		info.Warnings = append(info.Warnings, suspect)
	}
	for i, f := range s.files {
		info.Files = append(info.Files, FileInfo{s.names[i], f.Format(), layout.RowsIn(f)})
	}
	for _, column := range []string{s.layouts[0].Input, s.layouts[0].System, s.layouts[0].Tools,
		s.layouts[0].Env, s.layouts[0].Thought, s.layouts[0].Logprobs} {
		if slices.ContainsFunc(s.columns, func(c Column) bool { return c.Name == column }) {
			info.More = append(info.More, column)
		}
	}
	if row, err := s.Row(at); err != nil {
		info.RowErr = err.Error()
	} else {
		info.Row = &row
	}
	return info
}

// String returns the description for a terminal.
func (in Info) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s, %s in %s\n", in.Path, in.Format, layout.CountOf(in.Rows, "row"),
		byteSize(in.Bytes), layout.CountOf(len(in.Files), "file"))
	if len(in.Files) > 1 {
		for _, f := range in.Files {
			fmt.Fprintf(&b, "  %s: %s, %s\n", f.Name, f.Format, layout.CountOf(f.Rows, "row"))
		}
	}
	b.WriteString("columns\n")
	used := map[string]string{
		in.Read.Content: "conversation", in.Read.Teacher: "teacher's answer",
		in.Read.Response:  "given answer",
		in.Read.PromptIDs: "prompt tokens", in.Read.ResponseIDs: "answer tokens",
		in.Read.ID: "name of the row", in.Read.Finish: "how the answer ended",
	}
	for _, column := range in.More {
		used[column] = cmp.Or(map[string]string{"tools": "tools", "env": "what an environment gets",
			"reasoning_content": "the teacher's thought", layout.LogprobsColumn: "soft labels"}[column],
			"more of the prompt")
	}
	for _, c := range in.Columns {
		fmt.Fprintf(&b, "  %-20s %s", c.Name, c.Type)
		if role := used[c.Name]; role != "" {
			fmt.Fprintf(&b, "  <- %s", role)
		} else {
			b.WriteString("  not read")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "row %d\n", in.At)
	if in.Row == nil {
		fmt.Fprintf(&b, "  cannot be used: %s\n", in.RowErr)
	} else {
		for _, m := range in.Row.Messages {
			fmt.Fprintf(&b, "  %-10s %s\n", m.Role, layout.Preview(m.Text(), 100))
		}
		if n := len(in.Row.PromptIDs); n > 0 {
			fmt.Fprintf(&b, "  %-10s %d tokens\n", "prompt", n)
		}
		for _, m := range in.Row.Turns {
			who := m.Role
			if m.Role == "assistant" && !m.Context {
				who = "TEACHER"
			}
			if m.Thinking != "" {
				fmt.Fprintf(&b, "  %-10s (thought) %s\n", who, layout.Preview(m.Thinking, 100))
			}
			fmt.Fprintf(&b, "  %-10s %s\n", who, layout.Preview(m.Text(), 100))
		}
		if in.Row.Teacher != "" && in.Row.Turns == nil {
			fmt.Fprintf(&b, "  %-10s %s\n", "TEACHER", layout.Preview(in.Row.Teacher, 100))
		}
		if n := len(in.Row.Logprobs); n > 0 {
			fmt.Fprintf(&b, "  %-10s of %s", "logprobs", layout.CountOf(n, "token"))
			if bad := in.Row.LogprobsFault(); bad != "" {
				fmt.Fprintf(&b, ", which are not read: %s", bad)
			}
			b.WriteByte('\n')
		}
		if in.Row.Response != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", "RESPONSE", layout.Preview(in.Row.Response, 100))
		}
		if in.Row.Env != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", "env", layout.Preview(string(in.Row.Env), 100))
		}
	}
	for _, n := range in.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, w := range in.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// byteSize returns n bytes as text, in GiB, MiB, KiB or bytes.
func byteSize(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
