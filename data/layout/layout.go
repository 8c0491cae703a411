// Package layout maps the columns of a file to rows, whatever format the file has: the column of
// the prompt, the column of the answer, and the meaning of their values. A reader of a format
// implements Source and needs nothing else of data. A program calls package data.
//
//	source.go    Source, Rows, Raw: what a reader of a format implements and gives
//	layout.go    Layout: which column means what; chosen by names and types
//	exports.go   exports of other programs that no layout fits, and the way out
//	column.go    one column's value into a row; paths into a value
//	value.go     values of JSON: texts, token ids, turns
//	turns.go     Message, JSON: turns, tools and calls
//	blocks.go    contents in blocks
//	logprobs.go  Logprobs: the teacher's log-probabilities
//	cell.go      values that a choice of rows compares
//	jsonscan.go  a fast scan of JSON texts
package layout

import (
	"fmt"
	"slices"
	"strings"
)

// Formats of rows: their columns and the columns' meaning.
const (
	FormatAuto = "auto" // by names and types of the columns
	// a conversation of {role, content} turns, or a prompt; the answer in it or beside it
	FormatMessages = "messages"
	// conversations: {from, value} turns; the last of gpt is the answer
	FormatShareGPT = "sharegpt"
	// instruction, input or context, output or response
	FormatAlpaca           = "alpaca"
	FormatQA               = "qa"                // question, answer and the like
	FormatPromptCompletion = "prompt_completion" // prompt, completion: text, or turns
	// prompt, chosen, rejected: text, or turns; chosen is the answer
	FormatPreference = "preference"
)

// RowFormats are the values of Options.Format.
var RowFormats = []string{FormatAuto, FormatMessages, FormatShareGPT, FormatAlpaca, FormatQA,
	FormatPromptCompletion, FormatPreference}

// Layout is the meaning of the columns of one file. Columns that the file does not have are "".
type Layout struct {
	Columns
	Format     string // one of RowFormats but FormatAuto
	Role, Text string // keys of a turn
	Input      string // column with more of the prompt
	System     string // column with a system message
	Tools      string // column with the tools that the teacher could call
	Env        string // column with the row's data for an environment
	Thought    string // column with the teacher's thought before its answer
	Logprobs   string // column with the log-probabilities of the teacher's tokens

	// Watched are columns that are not read although they may change the answer's meaning. Their
	// rows are counted: see Raw.Unread.
	Watched []string

	paths []nestedPath // columns that are values inside others
	// columns that are a system message if they first appear after the sample
	lateSystem []string

	Chosen []string // columns of the file that a choice of rows reads, in addition to other uses
}

// Reads reports whether a column is read.
func (l Layout) Reads(column string) bool {
	return slices.Contains([]string{l.Content, l.Teacher, l.Response, l.PromptIDs, l.ResponseIDs,
		l.ID, l.Finish, l.Input, l.System, l.Tools, l.Env, l.Thought, l.Logprobs,
		l.TeacherPrompt}, column)
}

// maybePrompt are columns to which the answer may refer: what the teacher saw or thought, apart
// from the prompt. If no format reads them, they are watched.
var maybePrompt = []string{"input", "context", "system", "system_prompt", "system_message",
	"history", "functions", "documents", "passage", "images", "image",
	"audio", "reasoning", "thinking"}

// systemColumns are the columns that may be a system message.
var systemColumns = []string{"system", "system_prompt", "system_message"}

// OldCallKey is the key of a turn that calls a tool in the form before tool_calls. A row with one
// is refused: without the call, this turn and later ones would change their meaning.
const OldCallKey = "function_call"

// TrainKey is the key of a turn that is false if the turn is not learned.
const TrainKey = "train"

// WeightKey is the key of a turn by which OpenAI's files, and others, exclude an answer from
// learning: 0.
const WeightKey = "weight"

// MaybeTurn are the keys of a turn that are watched as maybePrompt is.
var MaybeTurn = []string{"reasoning", "thinking", "images", "image", "audio", "tools"}

// answersTo are the columns of FormatQA: the answers to each kind of question, the likeliest first.
var answersTo = map[string][]string{
	"question": {"answer", "response", "solution"},
	"query":    {"response", "answer"},
	"problem":  {"solution", "answer"},
}

// nearContent and nearTeacher are other names that people give to the two columns.
var (
	// nearContent and NearTeacher are other common names of the two columns.
	nearContent = []string{"messages", "conversations", "conversation", "message", "dialog",
		"dialogue", "chat", "turns", "prompt", "instruction", "question", "query", "problem",
		"user", "human", "input", "inputs", "text"}
	NearTeacher = []string{"teacher", "teacher_answer", "answer", "output", "completion",
		"response", "assistant", "bot", "chosen", "solution", "target", "targets", "label"}
)

// QuoteNames returns names in quotes with commas between them.
func QuoteNames(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(q, ", ")
}

// Wanted is the layout that the settings ask for.
type Wanted struct {
	Columns Columns
	Format  string
	Chosen  []string // columns that a choice of rows reads
}

// LayoutFor returns the format of a file's rows and the columns that it reads. note describes the
// parts that were detected rather than set.
func (o Wanted) LayoutFor(src Source) (l Layout, note string, err error) {
	var names []string
	types := map[string]string{}
	for _, c := range src.Schema() {
		names = append(names, c.Name)
		types[c.Name] = c.Type
	}
	var paths []nestedPath
	for _, name := range []string{o.Columns.Content, o.Columns.Teacher, o.Columns.Response,
		o.Columns.ID, o.Columns.Finish, o.Columns.PromptIDs, o.Columns.ResponseIDs,
		o.Columns.TeacherPrompt} {
		if p, ok := pathTo(name, names); ok {
			paths, names = append(paths, p), append(names, name)
		}
	}
	has := func(name string) bool { return name != "" && slices.Contains(names, name) }
	defaults := DefaultColumns()
	l = Layout{Columns: o.Columns, Format: o.Format, Role: "role", Text: "content", paths: paths}
	l.TeacherPrompt, l.TeacherBy = "", "" // bindTeacher sets them, after all others
	// instead takes the first of the format's own columns that is there, or the
	// first, for one that was not named in the settings.
	instead := func(column *string, was string, own ...string) {
		if *column == was {
			*column = append(Present(names, own...), own[0])[0]
		}
	}
	fromValue := func(column string) bool {
		keys := src.TurnKeys(column)
		return slices.Contains(keys, "from") && slices.Contains(keys, "value") &&
			!slices.Contains(keys, "role")
	}
	found := false
	if l.Format == FormatAuto {
		found = l.Content == defaults.Content && !has(l.Content) && !has(l.PromptIDs)
		switch several := Present(names, "messages", "conversations", "conversation"); {
		case !found, len(several) == 1:
			l.Format = FormatMessages
			if found {
				l.Content = several[0]
			}
			if fromValue(l.Content) {
				l.Format, found = FormatShareGPT, true
			}
		case len(several) > 1:
			return l, "", fmt.Errorf("columns %s: each may be the conversation: choose with --content-key %s (data.content_key)", QuoteNames(several), several[0])
		case has("chosen") && has("rejected"):
			l.Format = FormatPreference
		case has("prompt") && has("completion"):
			l.Format = FormatPromptCompletion
		case has("instruction"):
			l.Format = FormatAlpaca
		case has("question"), has("query"), has("problem"):
			l.Format = FormatQA
		case has("prompt"):
			l.Format = FormatPromptCompletion
		default:
			l.Format = FormatMessages
		}
	}
	switch l.Format {
	case FormatMessages:
		instead(&l.Content, defaults.Content, "content", "messages")
	case FormatShareGPT:
		l.Role, l.Text = "from", "value"
		instead(&l.Content, defaults.Content, "conversations", "conversation", "content")
	case FormatAlpaca:
		l.Input = "input"
		if !has("input") && has("context") {
			l.Input = "context"
		}
		instead(&l.Content, defaults.Content, "instruction")
		instead(&l.Teacher, defaults.Teacher, "teacher_response", "output", "response")
	case FormatQA:
		l.Input = "context"
		instead(&l.Content, defaults.Content, "question", "query", "problem")
		instead(&l.Teacher, defaults.Teacher,
			append([]string{"teacher_response"}, answersTo[l.Content]...)...)
	case FormatPromptCompletion:
		instead(&l.Content, defaults.Content, "prompt")
		instead(&l.Teacher, defaults.Teacher, "teacher_response", "completion", "response")
	case FormatPreference:
		instead(&l.Content, defaults.Content, "prompt", "chosen")
		if !has(l.Content) && has("chosen") {
			l.Content = "chosen"
		}
		if l.Content == "chosen" && types["chosen"] != "list" && len(src.TurnKeys("chosen")) == 0 {
			return l, "", fmt.Errorf("column %q: preference data whose prompt stands in the text of the answers: write the prompt in a column \"prompt\" and the answers without it", l.Content)
		} else if l.Content != "chosen" {
			instead(&l.Teacher, defaults.Teacher, "chosen")
		}
		if fromValue("chosen") || fromValue(l.Content) {
			l.Role, l.Text = "from", "value"
		}
	default:
		return l, "", fmt.Errorf("format %q: use %s (setting data.format)", l.Format,
			strings.Join(RowFormats, ", "))
	}
	if !has(l.Content) && (l.Format != FormatMessages || !has(l.PromptIDs)) {
		return l, "", o.noContent(l, src)
	}
	if keys := src.TurnKeys(l.Content); len(keys) > 0 && !slices.Contains(keys, l.Role) &&
		!slices.Contains(keys, l.Text) {
		return l, "", fmt.Errorf("column %q: its turns have the keys %s, not %q and %q: %s",
			l.Content, QuoteNames(keys), l.Role, l.Text, renameHint(l.Content, keys))
	}
	for _, name := range systemColumns {
		if l.System == "" && has(name) && !l.Reads(name) {
			l.System = name
		}
	}
	if l.System == "" && AnyKey(src) {
		for _, name := range systemColumns {
			if !l.Reads(name) {
				l.lateSystem = append(l.lateSystem, name)
			}
		}
	}
	for _, column := range []struct {
		name string
		to   *string
	}{{"tools", &l.Tools}, {"env", &l.Env}, {l.thoughts(src, has), &l.Thought},
		{LogprobsColumn, &l.Logprobs}} {
		if !l.Reads(column.name) {
			*column.to = column.name
		}
	}
	if l.Response == l.Teacher {
		l.Response = "" // it is the teacher's
	}
	for _, column := range []*string{&l.Content, &l.Teacher, &l.Response, &l.PromptIDs,
		&l.ResponseIDs, &l.ID, &l.Finish, &l.Input, &l.System, &l.Tools, &l.Env, &l.Thought,
		&l.Logprobs} {
		if l.Leads(*column) {
			*column = "" // paths lead into it
			continue
		}
		if !has(*column) {
			// it may come after the rows that were looked at
			if late := column == &l.Input || column == &l.Tools || column == &l.Env ||
				column == &l.Thought || column == &l.Logprobs; !late || !AnyKey(src) {
				*column = ""
			}
			continue
		}
		if first := slices.Index(names, *column); slices.Contains(names[first+1:], *column) {
			return l, "", fmt.Errorf("column %q: appears twice: rename or remove one", *column)
		}
	}
	if l.Response != "" {
		l.Finish = "" // it is the given answer's, as gad generate writes it
	}
	if err := l.bindTeacher(o.Columns, names, AnyKey(src)); err != nil {
		return l, "", err
	}
	for _, name := range maybePrompt {
		if !l.Reads(name) && !l.Leads(name) && !slices.Contains(l.lateSystem, name) &&
			(has(name) || AnyKey(src)) {
			l.Watched = append(l.Watched, name)
		}
	}
	for _, name := range o.Chosen {
		if has(name) || name == l.TeacherBy {
			l.Chosen = append(l.Chosen, name)
		}
	}
	if found {
		note = fmt.Sprintf("read as %s: prompt from column %q%s, %s (data.format=%s)", l.Format,
			l.Content, l.andMore(has), l.whereAnswer(), l.Format)
	} else if l.System != "" {
		note = fmt.Sprintf("system message from column %q", l.System)
	}
	return l, note, nil
}

// bindTeacher sets the columns of the teacher's prompts, which has no other use, and of the
// teacher's name. Unless anyKey allows columns that the first rows lack, the file must have them.
func (l *Layout) bindTeacher(c Columns, names []string, anyKey bool) error {
	const promptKey = "teacher.prompt_key (--teacher-prompt-key)"
	if name := c.TeacherPrompt; name != "" && l.Reads(name) {
		return fmt.Errorf(
			"column %q: %s names it, and it is read for something else: copy it into a column with another name", name, promptKey)
	}
	for _, x := range [][2]string{{c.TeacherPrompt, promptKey}, {c.TeacherBy, "teacher.by"}} {
		if x[0] != "" && !slices.Contains(names, x[0]) && !anyKey {
			return fmt.Errorf("columns %s: no %q among them, which %s names: name one of them",
				QuoteNames(names), x[0], x[1])
		}
	}
	l.TeacherPrompt, l.TeacherBy = c.TeacherPrompt, c.TeacherBy
	return nil
}

// thoughts returns the column of the teacher's thoughts, if there is or may be one.
func (l Layout) thoughts(src Source, has func(string) bool) string {
	const usual = "reasoning_content"
	if has(usual) {
		return usual
	}
	for _, c := range src.Schema() {
		if slices.Contains(OtherThoughts, c.Name) && c.Type == "string" && !l.Reads(c.Name) {
			return c.Name
		}
	}
	return usual
}

// AnyKey reports whether rows may have columns that the schema lacks: JSON, whose schema is taken
// from its first rows.
func AnyKey(src Source) bool { return src.Format() == "jsonl" || src.Format() == "json" }

// andMore returns a note on the other columns that are read.
func (l Layout) andMore(has func(string) bool) string {
	more := ""
	if has(l.Input) {
		more += fmt.Sprintf(" and %q", l.Input)
	}
	if l.System != "" {
		more += fmt.Sprintf(", system message from %q", l.System)
	}
	if has(l.Tools) {
		more += fmt.Sprintf(", tools from %q", l.Tools)
	}
	if has(l.Env) {
		more += fmt.Sprintf(", environment from %q", l.Env)
	}
	if has(l.Thought) {
		more += fmt.Sprintf(", thoughts from %q", l.Thought)
	}
	if has(l.Logprobs) {
		more += fmt.Sprintf(", soft labels from %q", l.Logprobs)
	}
	if l.Response != "" {
		more += fmt.Sprintf(", a student's answer from %q", l.Response)
	}
	return more
}

// ReadsMore returns the setting under which watched columns are read, or other advice.
func (l Layout) ReadsMore(watched []string) string {
	for _, format := range []struct{ content, format string }{{"instruction", FormatAlpaca},
		{"question", FormatQA}} {
		if l.Content == format.content && l.Format == FormatMessages &&
			len(Present(watched, "input", "context")) > 0 {
			return fmt.Sprintf(": give --format %s (data.format=%s)", format.format, format.format)
		}
	}
	return ": put what matters into the prompt"
}

// renameHint returns the way out for a column of turns whose keys have other names.
func renameHint(column string, keys []string) string {
	switch {
	case slices.Contains(keys, "from") && slices.Contains(keys, "value"):
		return "give --format sharegpt (data.format=sharegpt)"
	case serialized(column, keys) != "":
		return "rewrite them: " + serialized(column, keys)
	case slices.Contains(keys, "role") && slices.Contains(keys, "content"):
		return "give --format messages (data.format=messages)"
	}
	who, what :=
		Present(keys, "role", "from", "speaker", "author", "sender", "user", "name", "type"),
		Present(keys, "content", "value", "text", "message", "utterance", "body", "data")
	if len(who) > 0 && len(what) > 0 {
		return fmt.Sprintf("rename them: jq -c '.%s |= map({role: .%s, content: .%s})' OLD > NEW",
			column, who[0], what[0])
	}
	return "rename them"
}

// whereAnswer returns a note on the place of the teacher's answers.
func (l Layout) whereAnswer() string {
	switch {
	case l.Teacher != "":
		return fmt.Sprintf("teacher's answer from column %q", l.Teacher)
	case l.Format == FormatShareGPT:
		return "teacher's answer is its last turn of gpt"
	case l.Format == FormatAlpaca || l.Format == FormatQA || l.Format == FormatPromptCompletion:
		return "without a column of the teacher's answers"
	}
	return "teacher's answer is its last assistant turn"
}

// Present returns the elements of wanted that are in names.
func Present(names []string, wanted ...string) (found []string) {
	for _, w := range wanted {
		if slices.Contains(names, w) {
			found = append(found, w)
		}
	}
	return found
}

// noContent returns the error for a file without the column of the conversation.
func (o Wanted) noContent(l Layout, src Source) error {
	var names []string
	inside := ""
	for _, c := range src.Schema() {
		if names = append(names, c.Name); c.Type == "list" && inside == "" {
			inside = c.Name
		}
	}
	hint := "name the column of the conversations with --content-key NAME (data.content_key)"
	near := Alike(names, nearContent)
	if len(near) > 0 {
		flags, settings, read := "--content-key "+near[0], "data.content_key="+near[0], near[:1]
		answers := slices.DeleteFunc(Alike(names, NearTeacher),
			func(n string) bool { return n == near[0] })
		if !slices.Contains(names, l.Teacher) && len(answers) > 0 {
			flags, settings, read =
				flags+" --teacher-key "+answers[0], settings+" data.teacher_key="+answers[0],
				append(read, answers[0])
		}
		hint = fmt.Sprintf("did you mean %s (%s)?", flags, settings)
		if lost := slices.DeleteFunc(Present(names, maybePrompt...),
			func(n string) bool { return slices.Contains(read, n) }); len(lost) > 0 {
			hint += fmt.Sprintf(" The student would not see %s", QuoteNames(lost))
		}
	}
	if way := knownExport(names, src); way != "" {
		return fmt.Errorf("columns %s: %s", QuoteNames(names), way)
	}
	content, teacher := nestedNames(names, src)
	nested := content != ""
	if nested {
		hint = fmt.Sprintf("did you mean --content-key %s (data.content_key=%[1]s)?", content)
		if teacher != "" {
			hint = fmt.Sprintf("did you mean --content-key %s --teacher-key %s (data.content_key=%[1]s data.teacher_key=%[2]s)?", content, teacher)
		}
	}
	switch {
	case o.Format != FormatAuto:
		return fmt.Errorf("columns %s: no %q among them, which data.format=%s reads: leave out --format, or name the column with --content-key NAME (data.content_key)", QuoteNames(names), l.Content, l.Format)
	case len(Present(names, "input", "preferred_output", "non_preferred_output")) == 3:
		hint = "they are preference data as OpenAI has it: keep the preferred answers, jq -c '{messages: (.input.messages + .preferred_output)}' OLD > NEW"
		return fmt.Errorf("columns %s: %s", QuoteNames(names), hint)
	case inside != "" && RowsIn(src) == 1 && src.Format() == "jsonl" && len(near) == 0 && !nested:
		hint = fmt.Sprintf("if the rows are inside of %q: jq -c '.%s[]' OLD > NEW", inside, inside)
	}
	return fmt.Errorf("columns %s: no %q among them, and they are no known format of rows: %s",
		QuoteNames(names), l.Content, hint)
}

// Alike returns the names that equal one of wanted but for the case of letters, in the order of
// wanted.
func Alike(names, wanted []string) (found []string) {
	for _, w := range wanted {
		for _, n := range names {
			if strings.EqualFold(n, w) {
				found = append(found, n)
			}
		}
	}
	return found
}

// CountOf returns a number with its noun: 1 row, 2 rows.
func CountOf(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
