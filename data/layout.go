package data

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Formats of rows: which columns there are and what they mean.
const (
	FormatAuto = "auto" // what the columns look like
	// a conversation of {role, content} turns, or a prompt; the answer in it or beside it
	FormatMessages = "messages"
	// conversations: {from, value} turns; the last of gpt is the answer
	FormatShareGPT = "sharegpt"
	// instruction, input or context, output or response
	FormatAlpaca           = "alpaca"
	FormatQA               = "qa"                // question, answer and their like
	FormatPromptCompletion = "prompt_completion" // prompt, completion: text, or turns
	// prompt, chosen, rejected: text, or turns; chosen is the answer
	FormatPreference = "preference"
)

// RowFormats are the values of Options.Format.
var RowFormats = []string{FormatAuto, FormatMessages, FormatShareGPT, FormatAlpaca, FormatQA,
	FormatPromptCompletion, FormatPreference}

// Options say how the files of a set are read.
type Options struct {
	Columns Columns // zero is DefaultColumns
	Format  string  // of the rows, one of RowFormats; empty is FormatAuto
	Split   string  // of folders that hold several; empty is none
	Turns   string  // which turns are learned, one of TurnsValues; empty is TurnsLast
	Choice          // which rows
	Stages  Stages  // hears of long work; nil is silent

	chosen []string // columns that Choice reads
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
	input      string // column with more of the prompt
	system     string // column with a system message
	tools      string // column with the tools that the teacher could call
	env        string // column with what an environment gets of the row
	thought    string // column with what the teacher thought before its answer
	logprobs   string // column with the log-probabilities of the teacher's tokens

	// watched are columns that are not read although they may change what the answer
	// means. Their rows are counted: see rawRow.unread.
	watched []string

	paths []nestedPath // columns that are values inside of others
	// columns that are a system message where they come after the rows that were looked at
	lateSystem []string

	chosen []string // columns of the file that a choice of rows reads, whatever else reads them
}

// reads reports whether a column is read.
func (l layout) reads(column string) bool {
	return slices.Contains([]string{l.Content, l.Teacher, l.Response, l.PromptIDs, l.ResponseIDs,
		l.ID, l.Finish, l.input, l.system, l.tools, l.env, l.thought, l.logprobs}, column)
}

// maybePrompt are columns of which the answer may speak: what the teacher saw or thought
// beside the prompt. Where no format reads them, they are watched.
var maybePrompt = []string{"input", "context", "system", "system_prompt", "system_message",
	"history", "functions", "documents", "passage", "images", "image",
	"audio", "reasoning", "thinking"}

// systemColumns are the columns that may be a system message.
var systemColumns = []string{"system", "system_prompt", "system_message"}

// oldCallKey is the key of a turn that calls a tool in the form before tool_calls. A row with one
// is refused: without the call neither the turn nor those after it mean what they say.
const oldCallKey = "function_call"

// trainKey is the key of a turn that says whether it is learned.
const trainKey = "train"

// weightKey is the key of a turn by which OpenAI's files, and others, say that an answer is
// not to be learned: 0.
const weightKey = "weight"

// maybeTurn are the keys of a turn that are watched as maybePrompt is.
var maybeTurn = []string{"reasoning", "thinking", "images", "image", "audio", "tools"}

// answersTo are the columns of FormatQA: the answers to each kind of question, the likeliest
// first.
var answersTo = map[string][]string{
	"question": {"answer", "response", "solution"},
	"query":    {"response", "answer"},
	"problem":  {"solution", "answer"},
}

// nearContent and nearTeacher are other names that people give to the two columns.
var (
	nearContent = []string{"messages", "conversations", "conversation", "message", "dialog",
		"dialogue", "chat", "turns", "prompt", "instruction", "question", "query", "problem",
		"user", "human", "input", "inputs", "text"}
	nearTeacher = []string{"teacher", "teacher_answer", "answer", "output", "completion",
		"response", "assistant", "bot", "chosen", "solution", "target", "targets", "label"}
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
	types := map[string]string{}
	for _, c := range src.schema() {
		names = append(names, c.Name)
		types[c.Name] = c.Type
	}
	var paths []nestedPath
	for _, name := range []string{o.Columns.Content, o.Columns.Teacher, o.Columns.Response,
		o.Columns.ID, o.Columns.Finish, o.Columns.PromptIDs, o.Columns.ResponseIDs} {
		if p, ok := pathTo(name, names); ok {
			paths, names = append(paths, p), append(names, name)
		}
	}
	has := func(name string) bool { return name != "" && slices.Contains(names, name) }
	defaults := DefaultColumns()
	l = layout{Columns: o.Columns, format: o.Format, role: "role", text: "content", paths: paths}
	// instead takes the first of the format's own columns that is there, or the
	// first, for one that was not named in the settings.
	instead := func(column *string, was string, own ...string) {
		if *column == was {
			*column = append(among(names, own...), own[0])[0]
		}
	}
	fromValue := func(column string) bool {
		keys := src.turnKeys(column)
		return slices.Contains(keys, "from") && slices.Contains(keys, "value") &&
			!slices.Contains(keys, "role")
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
			if fromValue(l.Content) {
				l.format, found = FormatShareGPT, true
			}
		case len(several) > 1:
			return l, "", fmt.Errorf("columns %s: each may be the conversation: choose with --content-key %s (data.content_key)", quoted(several), several[0])
		case has("chosen") && has("rejected"):
			l.format = FormatPreference
		case has("prompt") && has("completion"):
			l.format = FormatPromptCompletion
		case has("instruction"):
			l.format = FormatAlpaca
		case has("question"), has("query"), has("problem"):
			l.format = FormatQA
		case has("prompt"):
			l.format = FormatPromptCompletion
		default:
			l.format = FormatMessages
		}
	}
	switch l.format {
	case FormatMessages:
		instead(&l.Content, defaults.Content, "content", "messages")
	case FormatShareGPT:
		l.role, l.text = "from", "value"
		instead(&l.Content, defaults.Content, "conversations", "conversation", "content")
	case FormatAlpaca:
		l.input = "input"
		if !has("input") && has("context") {
			l.input = "context"
		}
		instead(&l.Content, defaults.Content, "instruction")
		instead(&l.Teacher, defaults.Teacher, "teacher_response", "output", "response")
	case FormatQA:
		l.input = "context"
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
		if l.Content == "chosen" && types["chosen"] != "list" && len(src.turnKeys("chosen")) == 0 {
			return l, "", fmt.Errorf("column %q: preference data whose prompt stands in the text of the answers: write the prompt in a column \"prompt\" and the answers without it", l.Content)
		} else if l.Content != "chosen" {
			instead(&l.Teacher, defaults.Teacher, "chosen")
		}
		if fromValue("chosen") || fromValue(l.Content) {
			l.role, l.text = "from", "value"
		}
	default:
		return l, "", fmt.Errorf("format %q: use %s (setting data.format)", l.format,
			strings.Join(RowFormats, ", "))
	}
	if !has(l.Content) && (l.format != FormatMessages || !has(l.PromptIDs)) {
		return l, "", o.noContent(l, src)
	}
	if keys := src.turnKeys(l.Content); len(keys) > 0 && !slices.Contains(keys, l.role) &&
		!slices.Contains(keys, l.text) {
		return l, "", fmt.Errorf("column %q: its turns have the keys %s, not %q and %q: %s",
			l.Content, quoted(keys), l.role, l.text, renamed(l.Content, keys))
	}
	for _, name := range systemColumns {
		if l.system == "" && has(name) && !l.reads(name) {
			l.system = name
		}
	}
	if l.system == "" && anyKey(src) {
		for _, name := range systemColumns {
			if !l.reads(name) {
				l.lateSystem = append(l.lateSystem, name)
			}
		}
	}
	for _, column := range []struct {
		name string
		to   *string
	}{{"tools", &l.tools}, {"env", &l.env}, {l.thoughts(src, has), &l.thought},
		{logprobsColumn, &l.logprobs}} {
		if !l.reads(column.name) {
			*column.to = column.name
		}
	}
	if l.Response == l.Teacher {
		l.Response = "" // it is the teacher's
	}
	for _, column := range []*string{&l.Content, &l.Teacher, &l.Response, &l.PromptIDs,
		&l.ResponseIDs, &l.ID, &l.Finish, &l.input, &l.system, &l.tools, &l.env, &l.thought,
		&l.logprobs} {
		if l.leads(*column) {
			*column = "" // paths lead into it
			continue
		}
		if !has(*column) {
			// it may come after the rows that were looked at
			if late := column == &l.input || column == &l.tools || column == &l.env ||
				column == &l.thought || column == &l.logprobs; !late || !anyKey(src) {
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
	for _, name := range maybePrompt {
		if !l.reads(name) && !slices.Contains(l.lateSystem, name) && (has(name) || anyKey(src)) {
			l.watched = append(l.watched, name)
		}
	}
	for _, name := range o.chosen {
		if has(name) {
			l.chosen = append(l.chosen, name)
		}
	}
	if found {
		note = fmt.Sprintf("read as %s: prompt from column %q%s, %s (data.format=%s)", l.format,
			l.Content, l.andMore(has), l.whereAnswer(), l.format)
	} else if l.system != "" {
		note = fmt.Sprintf("system message from column %q", l.system)
	}
	return l, note, nil
}

// thoughts names the column of the teacher's thoughts, where there is one or may be.
func (l layout) thoughts(src source, has func(string) bool) string {
	const usual = "reasoning_content"
	if has(usual) {
		return usual
	}
	for _, c := range src.schema() {
		if slices.Contains(otherThoughts, c.Name) && c.Type == "string" && !l.reads(c.Name) {
			return c.Name
		}
	}
	return usual
}

// anyKey reports whether rows may have columns that the schema does not name: JSON, whose
// schema is that of its first rows.
func anyKey(src source) bool { return src.format() == "jsonl" || src.format() == "json" }

// andMore names the other columns that are read.
func (l layout) andMore(has func(string) bool) string {
	more := ""
	if has(l.input) {
		more += fmt.Sprintf(" and %q", l.input)
	}
	if l.system != "" {
		more += fmt.Sprintf(", system message from %q", l.system)
	}
	if has(l.tools) {
		more += fmt.Sprintf(", tools from %q", l.tools)
	}
	if has(l.env) {
		more += fmt.Sprintf(", environment from %q", l.env)
	}
	if has(l.thought) {
		more += fmt.Sprintf(", thoughts from %q", l.thought)
	}
	if has(l.logprobs) {
		more += fmt.Sprintf(", soft labels from %q", l.logprobs)
	}
	if l.Response != "" {
		more += fmt.Sprintf(", a student's answer from %q", l.Response)
	}
	return more
}

// readsMore is the way to have watched columns read, where there is one.
func (l layout) readsMore(watched []string) string {
	for _, format := range []struct{ content, format string }{{"instruction", FormatAlpaca},
		{"question", FormatQA}} {
		if l.Content == format.content && l.format == FormatMessages &&
			len(among(watched, "input", "context")) > 0 {
			return fmt.Sprintf(": give --format %s (data.format=%s)", format.format, format.format)
		}
	}
	return ": put what matters into the prompt"
}

// renamed is the way out for a column of turns whose keys have other names.
func renamed(column string, keys []string) string {
	switch {
	case slices.Contains(keys, "from") && slices.Contains(keys, "value"):
		return "give --format sharegpt (data.format=sharegpt)"
	case slices.Contains(keys, "role") && slices.Contains(keys, "content"):
		return "give --format messages (data.format=messages)"
	}
	who, what :=
		among(keys, "role", "from", "speaker", "author", "sender", "user", "name", "type"),
		among(keys, "content", "value", "text", "message", "utterance", "body", "data")
	if len(who) > 0 && len(what) > 0 {
		return fmt.Sprintf("rename them: jq -c '.%s |= map({role: .%s, content: .%s})' OLD > NEW",
			column, who[0], what[0])
	}
	return "rename them"
}

// whereAnswer says where the teacher's answers stand.
func (l layout) whereAnswer() string {
	switch {
	case l.Teacher != "":
		return fmt.Sprintf("teacher's answer from column %q", l.Teacher)
	case l.format == FormatShareGPT:
		return "teacher's answer is its last turn of gpt"
	case l.format == FormatAlpaca || l.format == FormatQA || l.format == FormatPromptCompletion:
		return "without a column of the teacher's answers"
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
	near := alike(names, nearContent)
	if len(near) > 0 {
		flags, settings, read := "--content-key "+near[0], "data.content_key="+near[0], near[:1]
		answers := slices.DeleteFunc(alike(names, nearTeacher),
			func(n string) bool { return n == near[0] })
		if !slices.Contains(names, l.Teacher) && len(answers) > 0 {
			flags, settings, read =
				flags+" --teacher-key "+answers[0], settings+" data.teacher_key="+answers[0],
				append(read, answers[0])
		}
		hint = fmt.Sprintf("did you mean %s (%s)?", flags, settings)
		if lost := slices.DeleteFunc(among(names, maybePrompt...),
			func(n string) bool { return slices.Contains(read, n) }); len(lost) > 0 {
			hint += fmt.Sprintf(" The student would not see %s", quoted(lost))
		}
	}
	if way := knownExport(names, src); way != "" {
		return fmt.Errorf("columns %s: %s", quoted(names), way)
	}
	if content, teacher := nestedNames(names, src); content != "" {
		hint = fmt.Sprintf("did you mean --content-key %s (data.content_key=%[1]s)?", content)
		if teacher != "" {
			hint = fmt.Sprintf("did you mean --content-key %s --teacher-key %s (data.content_key=%[1]s data.teacher_key=%[2]s)?", content, teacher)
		}
	}
	switch {
	case o.Format != FormatAuto:
		return fmt.Errorf("columns %s: no %q among them, which data.format=%s reads: leave out --format, or name the column with --content-key NAME (data.content_key)", quoted(names), l.Content, l.format)
	case len(among(names, "input", "preferred_output", "non_preferred_output")) == 3:
		hint = "they are preference data as OpenAI has it: keep the preferred answers, jq -c '{messages: (.input.messages + .preferred_output)}' OLD > NEW"
		return fmt.Errorf("columns %s: %s", quoted(names), hint)
	case inside != "" && rowsIn(src) == 1 && src.format() == "jsonl" && len(near) == 0:
		hint = fmt.Sprintf("if the rows are inside of %q: jq -c '.%s[]' OLD > NEW", inside, inside)
	}
	return fmt.Errorf("columns %s: no %q among them, and they are no known format of rows: %s",
		quoted(names), l.Content, hint)
}

// alike returns the names that are wanted in any case of letters, in the order of wanted.
func alike(names, wanted []string) (found []string) {
	for _, w := range wanted {
		for _, n := range names {
			if strings.EqualFold(n, w) {
				found = append(found, n)
			}
		}
	}
	return found
}

// NeedTeacher refuses a set whose rows carry no teacher answers.
func (s *Set) NeedTeacher() error {
	if s.HasTeacher() {
		return nil
	}
	if _, _, err := s.read(0); err != nil { // why there is none
		return fmt.Errorf("%w (gad data validate lists all such rows)", err)
	}
	l := s.layouts[0]
	var names []string
	for _, c := range s.columns {
		if c.Name != l.Content {
			names = append(names, c.Name)
		}
	}
	switch nested := among(names, "chosen", "instances", "answers"); {
	case len(nested) > 0 && nested[0] == "chosen" && l.format == FormatShareGPT:
		return fmt.Errorf("data: %s: no conversation in column %q ends with a turn of gpt: if the teacher's answers are the turns in \"chosen\": jq -c '.%s += [.chosen]' OLD > NEW", s.path, l.Content, l.Content)
	case l.format == FormatShareGPT:
		return fmt.Errorf("data: %s: no conversation in column %q ends with a turn of gpt, which is the teacher's answer", s.path, l.Content)
	case len(nested) > 0 && nested[0] == "instances" && l.format == FormatAlpaca:
		return fmt.Errorf("data: %s: has no answers but those inside of \"instances\": jq -c '{instruction} + .instances[]' OLD > NEW", s.path)
	case len(nested) > 0 && nested[0] == "answers" && l.format == FormatQA:
		return fmt.Errorf("data: %s: has no answers but those inside of \"answers\": write one as a text in a column \"answer\"", s.path)
	}
	hint := ""
	if near := alike(names, nearTeacher); len(near) > 0 {
		hint = fmt.Sprintf(", such as data.teacher_key=%s", near[0])
	}
	return fmt.Errorf(
		"data: %s: column %q is missing: name the teacher's column with data.teacher_key%s", s.path,
		s.opt.Columns.Teacher, hint)
}

// roleNames are ShareGPT's names for who speaks. Others stay as they are.
var roleNames = map[string]string{"human": "user", "gpt": "assistant", "chatgpt": "assistant",
	"observation": "tool"}

// conversed puts a row's conversation together.
//
// The answer stands behind the prompt, or it is the conversation's last turn of an assistant. When
// the teacher column says the same as that turn, the turn counts once.
func (l layout) conversed(raw rawRow) (c conversed, fault *rowFault) {
	row := Row{Response: raw.response.s, Tools: raw.tools, Env: raw.env,
		PromptIDs: raw.promptIDs, ResponseIDs: raw.responseIDs, ID: raw.id.s, Finish: raw.finish.s}
	c.row, c.logprobs = row, raw.logprobs
	if !raw.turnsOK && raw.promptIDs == nil {
		column := l.Content
		if column == "" {
			column = l.PromptIDs
		}
		if raw.elsewhere != "" {
			return c, &rowFault{column, "null",
				fmt.Sprintf(
					"the row has no prompt but that in column %q, and other rows have theirs in %q",
					raw.elsewhere, column), "write all rows alike, or in a file for each kind"}
		}
		return c, &rowFault{column, "null", "the row has no prompt", "remove the row"}
	}
	if l.role == "from" {
		for _, turns := range [][]Message{raw.turns, raw.answer} {
			for i, m := range turns {
				if name, ok := roleNames[m.Role]; ok {
					turns[i].Role = name
				} else if m.Role == "function_call" {
					if turns[i], fault = calledIn(l.Content, i, m); fault != nil {
						return c, fault
					}
				}
			}
		}
	}
	if n := len(raw.answer); raw.answerOK {
		// the whole conversation
		if l.format == FormatPreference && n > 1 && raw.answer[n-1].Role == "assistant" {
			if k := len(raw.turns); k > n-1 || !slices.Equal(raw.answer[n-1-k:n-1], raw.turns) {
				return c, &rowFault{l.Teacher, fmt.Sprintf("%d turns", n),
					fmt.Sprintf("they do not begin with the prompt in column %q", l.Content),
					"keep the last turn alone"}
			}
			raw.turns, raw.answer = raw.answer[:n-1:n-1], raw.answer[n-1:]
		}
		if n == 0 || raw.answer[len(raw.answer)-1].Role != "assistant" {
			return c, &rowFault{l.Teacher, countOf(n, "turn"),
				"the answer must end with a turn of the assistant", "remove the turns behind it"}
		}
	}
	if strings.TrimSpace(raw.input.s) != "" {
		if len(raw.turns) != 1 {
			return c, &rowFault{l.input, preview(raw.input.s, 40),
				fmt.Sprintf("has no place in a prompt of %d turns", len(raw.turns)),
				"put it into a turn"}
		}
		raw.turns[0].Content += "\n" + raw.input.s
	}
	if strings.TrimSpace(raw.system.s) != "" {
		if len(raw.turns) > 0 && raw.turns[0].Role == "system" &&
			raw.turns[0].Content != raw.system.s {
			return c, &rowFault{l.system, preview(raw.system.s, 40),
				"differs from the system turn " + preview(raw.turns[0].Content, 40),
				"keep the system message in one place only"}
		}
		if len(raw.turns) > 0 && raw.turns[0].Role != "system" {
			raw.turns = append([]Message{{Role: "system", Content: raw.system.s}}, raw.turns...)
		}
	}
	if !raw.answerOK && raw.teacher.s != "" {
		raw.answer = []Message{{Role: "assistant", Content: raw.teacher.s}}
	}
	c.turns, c.first, c.none = raw.turns, 0, raw.turns == nil
	if k := len(raw.answer); k > 0 {
		if n := len(raw.turns); n > 0 && raw.turns[n-1].Role == "assistant" && k == 1 {
			if last, answer := raw.turns[n-1], raw.answer[0]; last.Content != answer.Content {
				return c, &rowFault{l.Teacher, preview(answer.Content, 40),
					"differs from the last assistant turn " + preview(last.Content, 40),
					"keep the teacher's answer in one place only"}
			} else if !answer.acts() { // the turn may know more
				raw.answer[0] = last
				raw.answer[0].Context = false
			}
			raw.turns = raw.turns[: n-1 : n-1]
		}
		c.turns, c.first = slices.Concat(raw.turns, raw.answer), len(raw.turns)
	}
	if n := len(c.turns); strings.TrimSpace(raw.thought.s) != "" && n > 0 &&
		c.turns[n-1].Role == "assistant" && c.turns[n-1].Thinking == "" {
		c.turns = slices.Clone(c.turns)
		c.turns[n-1].Thinking = raw.thought.s
	}
	for i, m := range c.turns {
		for _, s := range []string{m.Role, m.Content, m.Thinking, string(m.ToolCalls), m.ToolCallID,
			m.Name} {
			if column := l.Content; !utf8.ValidString(s) {
				if i >= c.first && c.first > 0 && l.Teacher != "" {
					if !raw.answerOK {
						return c, &rowFault{l.Teacher, "", "not valid UTF-8", "re-encode the text"}
					}
					column, i = l.Teacher, i-c.first
				}
				return c, &rowFault{column, fmt.Sprintf("turn %d", i), "not valid UTF-8",
					"re-encode the text"}
			}
		}
	}
	for _, f := range []struct{ column, s string }{{l.Response, row.Response}, {l.ID, row.ID},
		{l.Finish, row.Finish}, {l.tools, string(row.Tools)}} {
		if !utf8.ValidString(f.s) {
			return c, &rowFault{f.column, "", "not valid UTF-8", "re-encode the text"}
		}
	}
	return c, nil
}
