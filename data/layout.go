package data

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Formats of rows: which columns there are and what they mean.
const (
	FormatAuto             = "auto"              // what the columns look like
	FormatMessages         = "messages"          // a conversation of {role, content} turns, or a prompt; the answer in it or beside it
	FormatShareGPT         = "sharegpt"          // conversations: {from, value} turns; the last of gpt is the answer
	FormatAlpaca           = "alpaca"            // instruction, input, output
	FormatPromptCompletion = "prompt_completion" // prompt, completion: text, or turns
)

// RowFormats are the values of Options.Format.
var RowFormats = []string{FormatAuto, FormatMessages, FormatShareGPT, FormatAlpaca, FormatPromptCompletion}

// Options say how the files of a set are read.
type Options struct {
	Columns Columns // zero is DefaultColumns
	Format  string  // of the rows, one of RowFormats; empty is FormatAuto
	Split   string  // of folders that hold several; empty is none
	Stages  Stages  // hears of long work; nil is silent
}

// Stages begins a piece of work of total parts that has a name. advance is called
// when n more parts are done, from one goroutine at a time, and done at the end.
type Stages func(name string, total int) (advance func(n int), done func())

// Begin begins a piece of work; nil Stages are silent.
func (s Stages) Begin(name string, total int) (advance func(n int), done func()) {
	if s == nil {
		return func(int) {}, func() {}
	}
	return s(name, total)
}

// layout says how the columns of one file make rows. Columns that the file does
// not have are "".
type layout struct {
	Columns
	format     string // one of RowFormats but FormatAuto
	role, text string // keys of a turn
	input      string // column with more of the prompt: Alpaca
	system     string // column with a system turn: ShareGPT, Alpaca
}

// reads reports whether a column is read.
func (l layout) reads(column string) bool {
	return slices.Contains([]string{l.Content, l.Teacher, l.Response, l.PromptIDs, l.ResponseIDs, l.ID, l.Finish, l.input, l.system}, column)
}

// nearContent and nearTeacher are other names that people give to the two columns.
var (
	nearContent = []string{"messages", "conversations", "conversation", "message", "dialog", "dialogue", "chat", "turns", "prompt", "instruction", "question", "query", "problem", "user", "input", "text"}
	nearTeacher = []string{"teacher", "teacher_answer", "answer", "output", "completion", "response", "assistant", "chosen", "solution", "target", "label"}
)

func quoted(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(q, ", ")
}

// layoutFor finds the format of a file's rows and the columns that it reads.
// note says what was found where that was not asked for.
func (o Options) layoutFor(src source) (l layout, note string, err error) {
	var names []string
	for _, c := range src.schema() {
		names = append(names, c.Name)
	}
	has := func(name string) bool { return name != "" && slices.Contains(names, name) }
	defaults := DefaultColumns()
	l = layout{Columns: o.Columns, format: o.Format, role: "role", text: "content"}
	// instead takes the first of the format's own columns that is there, or the
	// first, for one that was not named in the settings.
	instead := func(column *string, was string, own ...string) {
		if *column == was {
			*column = append(among(names, own...), own[0])[0]
		}
	}
	found := false
	if l.format == FormatAuto {
		found = l.Content == defaults.Content && !has(l.Content) && !has(l.PromptIDs)
		switch several := among(names, "messages", "conversations", "conversation"); {
		case !found, len(several) == 1:
			l.format = FormatMessages
			if found {
				l.Content = several[0]
			}
			if keys := src.turnKeys(l.Content); slices.Contains(keys, "from") && slices.Contains(keys, "value") && !slices.Contains(keys, "role") {
				l.format, found = FormatShareGPT, true
			}
		case len(several) > 1:
			return l, "", fmt.Errorf("columns %s: each may be the conversation: choose with --content-key %s (data.content_key)", quoted(several), several[0])
		case has("prompt") && has("completion"):
			l.format = FormatPromptCompletion
		case has("instruction") && has("output"):
			l.format = FormatAlpaca
		default:
			l.format = FormatMessages
		}
	}
	switch l.format {
	case FormatMessages:
		instead(&l.Content, defaults.Content, "content", "messages")
	case FormatShareGPT:
		l.role, l.text, l.system = "from", "value", "system"
		instead(&l.Content, defaults.Content, "conversations", "conversation", "content")
	case FormatAlpaca:
		l.input, l.system = "input", "system"
		instead(&l.Content, defaults.Content, "instruction")
		instead(&l.Teacher, defaults.Teacher, "teacher_response", "output")
	case FormatPromptCompletion:
		instead(&l.Content, defaults.Content, "prompt")
		instead(&l.Teacher, defaults.Teacher, "teacher_response", "completion")
	default:
		return l, "", fmt.Errorf("format %q: use %s (setting data.format)", l.format, strings.Join(RowFormats, ", "))
	}
	if !has(l.Content) && (l.format != FormatMessages || !has(l.PromptIDs)) {
		return l, "", o.noContent(l, src)
	}
	if keys := src.turnKeys(l.Content); len(keys) > 0 && !slices.Contains(keys, l.role) && !slices.Contains(keys, l.text) {
		hint := "rename them"
		if slices.Contains(keys, "from") && slices.Contains(keys, "value") {
			hint = "give --format sharegpt (data.format=sharegpt)"
		} else if slices.Contains(keys, "role") && slices.Contains(keys, "content") {
			hint = "give --format messages (data.format=messages)"
		}
		return l, "", fmt.Errorf("column %q: its turns have the keys %s, not %q and %q: %s", l.Content, quoted(keys), l.role, l.text, hint)
	}
	for _, column := range []*string{&l.Content, &l.Teacher, &l.Response, &l.PromptIDs, &l.ResponseIDs, &l.ID, &l.Finish, &l.input, &l.system} {
		if !has(*column) {
			*column = ""
			continue
		}
		if first := slices.Index(names, *column); slices.Contains(names[first+1:], *column) {
			return l, "", fmt.Errorf("column %q: appears twice: %w", *column, ErrCorrupt)
		}
	}
	if l.Response != "" {
		l.Finish = "" // it is the given answer's, as gad generate writes it
	}
	if found {
		note = fmt.Sprintf("read as %s: prompt from column %q, %s (data.format=%s)", l.format, l.Content, l.whereAnswer(), l.format)
	}
	return l, note, nil
}

// whereAnswer says where the teacher's answers stand.
func (l layout) whereAnswer() string {
	switch {
	case l.Teacher != "":
		return fmt.Sprintf("teacher's answer from column %q", l.Teacher)
	case l.format == FormatShareGPT:
		return "teacher's answer is its last turn of gpt"
	}
	return "teacher's answer is its last assistant turn"
}

// among returns those of wanted that are in names.
func among(names []string, wanted ...string) (found []string) {
	for _, w := range wanted {
		if slices.Contains(names, w) {
			found = append(found, w)
		}
	}
	return found
}

// noContent is the refusal of columns among which the conversation is not.
func (o Options) noContent(l layout, src source) error {
	var names []string
	inside := ""
	for _, c := range src.schema() {
		if names = append(names, c.Name); c.Type == "list" && inside == "" {
			inside = c.Name
		}
	}
	hint := "name the column of the conversations with --content-key NAME (data.content_key)"
	if near := among(names, nearContent...); len(near) > 0 {
		flags, settings := "--content-key "+near[0], "data.content_key="+near[0]
		answers := slices.DeleteFunc(among(names, nearTeacher...), func(n string) bool { return n == near[0] })
		if !slices.Contains(names, l.Teacher) && len(answers) > 0 {
			flags, settings = flags+" --teacher-key "+answers[0], settings+" data.teacher_key="+answers[0]
		}
		hint = fmt.Sprintf("did you mean %s (%s)?", flags, settings)
	}
	if o.Format != FormatAuto {
		return fmt.Errorf("columns %s: no %q among them, which data.format=%s reads: leave out --format, or name the column with --content-key NAME (data.content_key)", quoted(names), l.Content, l.format)
	}
	if inside != "" && rowsIn(src) == 1 && src.format() == "jsonl" && len(among(names, nearContent...)) == 0 {
		hint = fmt.Sprintf("if the rows are inside of %q: jq -c '.%s[]' OLD > NEW", inside, inside)
	}
	return fmt.Errorf("columns %s: no %q among them, and they are no known format of rows: %s", quoted(names), l.Content, hint)
}

// NeedTeacher refuses a set whose rows carry no teacher answers.
func (s *Set) NeedTeacher() error {
	if s.HasTeacher() {
		return nil
	}
	if l := s.layouts[0]; l.format == FormatShareGPT {
		return fmt.Errorf("data: %s: no conversation in column %q ends with a turn of gpt, which is the teacher's answer", s.path, l.Content)
	}
	var names []string
	for _, c := range s.columns {
		if c.Name != s.has.Content {
			names = append(names, c.Name)
		}
	}
	hint := ""
	if near := among(names, nearTeacher...); len(near) > 0 {
		hint = fmt.Sprintf(", such as data.teacher_key=%s", near[0])
	}
	return fmt.Errorf("data: %s: column %q is missing: name the teacher's column with data.teacher_key%s", s.path, s.opt.Columns.Teacher, hint)
}

// roleNames are ShareGPT's names for who speaks. Others stay as they are.
var roleNames = map[string]string{"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}

// assemble takes the conversation apart into prompt and answer.
//
// A last assistant turn is the teacher's answer when the row has no other. When
// the teacher column says the same, the turn is dropped from the prompt.
func (l layout) assemble(raw rawRow) (Row, *rowFault) {
	row := Row{
		Messages: raw.turns, Teacher: raw.teacher.s, Response: raw.response.s,
		PromptIDs: raw.promptIDs, ResponseIDs: raw.responseIDs, ID: raw.id.s, Finish: raw.finish.s,
	}
	if !raw.turnsOK && raw.promptIDs == nil {
		column := l.Content
		if column == "" {
			column = l.PromptIDs
		}
		return row, &rowFault{column, "null", "the row has no prompt", "remove the row"}
	}
	if raw.answerOK {
		if len(raw.answer) != 1 || raw.answer[0].Role != "assistant" {
			return row, &rowFault{l.Teacher, fmt.Sprintf("%d turns", len(raw.answer)), "the answer must be one assistant turn", "keep that turn alone"}
		}
		row.Teacher = raw.answer[0].Content
	}
	if l.format == FormatShareGPT {
		for i, m := range raw.turns {
			if name, ok := roleNames[m.Role]; ok {
				raw.turns[i].Role = name
			}
		}
	}
	if strings.TrimSpace(raw.input.s) != "" && len(raw.turns) == 1 {
		raw.turns[0].Content += "\n" + raw.input.s
	}
	if strings.TrimSpace(raw.system.s) != "" {
		raw.turns = append([]Message{{Role: "system", Content: raw.system.s}}, raw.turns...)
		row.Messages = raw.turns
	}
	if n := len(raw.turns); n > 0 && raw.turns[n-1].Role == "assistant" {
		last := raw.turns[n-1].Content
		if row.Teacher == "" {
			row.Teacher = last
		}
		if row.Teacher != last {
			return row, &rowFault{l.Teacher, preview(row.Teacher, 40), "differs from the last assistant turn " + preview(last, 40), "keep the teacher's answer in one place only"}
		}
		row.Messages = raw.turns[: n-1 : n-1]
	}
	for i, m := range row.Messages {
		if !utf8.ValidString(m.Content) || !utf8.ValidString(m.Role) {
			return row, &rowFault{l.Content, fmt.Sprintf("turn %d", i), "not valid UTF-8", "re-encode the text"}
		}
	}
	for _, f := range []struct{ column, s string }{{l.Teacher, row.Teacher}, {l.Response, row.Response}, {l.ID, row.ID}, {l.Finish, row.Finish}} {
		if !utf8.ValidString(f.s) {
			return row, &rowFault{f.column, "", "not valid UTF-8", "re-encode the text"}
		}
	}
	return row, nil
}
