package data

import (
	"errors"
	"fmt"
	"gad/data/layout"
	"slices"
	"strings"
	"unicode/utf8"
)

// Values of Options.Turns: the turns of the teacher that a student learns.
const (
	TurnsLast = "last" // the last, given all before it
	TurnsAll  = "all"  // all of a row, as one sequence
	TurnsEach = "each" // all, each as a row of its own
)

// TurnsValues are the values of Options.Turns.
var TurnsValues = []string{TurnsLast, TurnsAll, TurnsEach}

// ErrAppend is wrapped by errors of Encoder.Reply for a student whose chat template writes a turn
// differently once others follow it.
var ErrAppend = errors.New("the chat template rewrites earlier turns when others follow")

// ErrThought is wrapped by errors of Encoder.Shows for a row whose answer has a thought where the
// prompt has closed one, or has none where the prompt opens one.
var ErrThought = errors.New("the thought of the answer is not that of the prompt")

// Span is a range of an answer's tokens, From to To-1.
type Span struct{ From, To int }

// roleNames are ShareGPT's names of roles. Other names are kept.
var roleNames = map[string]string{"human": "user", "gpt": "assistant", "chatgpt": "assistant",
	"observation": "tool"}

// converse returns a row's conversation.
//
// The answer stands behind the prompt, or it is the conversation's last turn of an assistant. If
// the teacher column equals that turn, the turn counts once.
func converse(l layout.Layout, raw layout.Raw) (c conversed, fault *layout.Fault) {
	row := Row{Response: raw.Response.S, Tools: raw.Tools, Env: raw.Env,
		PromptIDs: raw.PromptIDs, ResponseIDs: raw.ResponseIDs, ID: raw.ID.S, Finish: raw.Finish.S}
	if row.TeacherPrompt, fault = teacherPrompt(l, raw.TeacherPrompt); fault != nil {
		return c, fault
	}
	if at := slices.Index(l.Chosen, l.TeacherBy); at >= 0 && at < len(raw.Chosen) {
		by := raw.Chosen[at]
		if by.Kind == layout.OtherCell {
			return c, layout.NewFault(l.TeacherBy, by.Text, "teacher.by needs a text or a number there",
				"write the teacher's name")
		}
		row.TeacherBy = by.String()
	}
	c.row, c.logprobs = row, raw.Logprobs
	if !raw.TurnsOK && raw.PromptIDs == nil {
		column := l.Content
		if column == "" {
			column = l.PromptIDs
		}
		if raw.Elsewhere != "" {
			return c, layout.NewFault(column, "null",
				fmt.Sprintf(
					"the row has no prompt but that in column %q, and other rows have theirs in %q",
					raw.Elsewhere, column), "write all rows alike, or in a file for each kind")
		}
		return c, layout.NewFault(column, "null", "the row has no prompt", "remove the row")
	}
	if !raw.AnswerOK && l.IsTurn(raw.Teacher.S) {
		answer, err := l.JSONTurns(l.Teacher, []byte("["+raw.Teacher.S+"]"))
		if err != nil {
			return c, layout.NewFault(l.Teacher, "", err.Error(), "")
		}
		raw.TakeAnswer(answer, true)
	}
	if l.Role == "from" {
		for _, turns := range [][]Message{raw.Turns, raw.Answer} {
			for i, m := range turns {
				if name, ok := roleNames[m.Role]; ok {
					turns[i].Role = name
				} else if m.Role == "function_call" {
					if turns[i], fault = layout.CalledIn(l.Content, i, m); fault != nil {
						return c, fault
					}
				}
			}
		}
	}
	if n := len(raw.Answer); raw.AnswerOK {
		// the whole conversation
		if l.Format == FormatPreference && n > 1 && raw.Answer[n-1].Role == "assistant" {
			if k := len(raw.Turns); k > n-1 || !slices.Equal(raw.Answer[n-1-k:n-1], raw.Turns) {
				return c, layout.NewFault(l.Teacher, fmt.Sprintf("%d turns", n),
					fmt.Sprintf("they do not begin with the prompt in column %q", l.Content),
					"keep the last turn alone")
			}
			raw.Turns, raw.Answer = raw.Answer[:n-1:n-1], raw.Answer[n-1:]
		}
		if n == 0 || raw.Answer[len(raw.Answer)-1].Role != "assistant" {
			return c, layout.NewFault(l.Teacher, layout.CountOf(n, "turn"),
				"the answer must end with a turn of the assistant", "remove the turns behind it")
		}
	}
	if strings.TrimSpace(raw.Input.S) != "" {
		if len(raw.Turns) != 1 {
			return c, layout.NewFault(l.Input, layout.Preview(raw.Input.S, 40),
				fmt.Sprintf("has no place in a prompt of %d turns", len(raw.Turns)),
				"put it into a turn")
		}
		raw.Turns[0].Content += "\n" + raw.Input.S
	}
	if strings.TrimSpace(raw.System.S) != "" {
		if len(raw.Turns) > 0 && raw.Turns[0].Role == "system" &&
			raw.Turns[0].Content != raw.System.S {
			return c, layout.NewFault(l.System, layout.Preview(raw.System.S, 40),
				"differs from the system turn "+layout.Preview(raw.Turns[0].Content, 40),
				"keep the system message in one place only")
		}
		if len(raw.Turns) > 0 && raw.Turns[0].Role != "system" {
			raw.Turns = append([]Message{{Role: "system", Content: raw.System.S}}, raw.Turns...)
		}
	}
	if !raw.AnswerOK && raw.Teacher.S != "" {
		raw.Answer = []Message{{Role: "assistant", Content: raw.Teacher.S}}
	}
	c.turns, c.first, c.none = raw.Turns, 0, raw.Turns == nil
	if k := len(raw.Answer); k > 0 {
		if n := len(raw.Turns); n > 0 && raw.Turns[n-1].Role == "assistant" && k == 1 {
			if last, answer := raw.Turns[n-1], raw.Answer[0]; last.Content != answer.Content {
				return c, layout.NewFault(l.Teacher, layout.Preview(answer.Content, 40),
					"differs from the last assistant turn "+layout.Preview(last.Content, 40),
					"keep the teacher's answer in one place only")
			} else if !acts(answer) { // the turn may have more fields
				raw.Answer[0] = last
				raw.Answer[0].Context = false
			}
			raw.Turns = raw.Turns[: n-1 : n-1]
		}
		c.turns, c.first = slices.Concat(raw.Turns, raw.Answer), len(raw.Turns)
	}
	if n := len(c.turns); strings.TrimSpace(raw.Thought.S) != "" && n > 0 &&
		c.turns[n-1].Role == "assistant" && c.turns[n-1].Thinking == "" {
		c.turns = slices.Clone(c.turns)
		c.turns[n-1].Thinking = raw.Thought.S
	}
	for i, m := range c.turns {
		for _, s := range []string{m.Role, m.Content, m.Thinking, string(m.ToolCalls), m.ToolCallID,
			m.Name} {
			if column := l.Content; !utf8.ValidString(s) {
				if i >= c.first && c.first > 0 && l.Teacher != "" {
					if !raw.AnswerOK {
						return c, layout.NewFault(l.Teacher, "", "not valid UTF-8", "re-encode the text")
					}
					column, i = l.Teacher, i-c.first
				}
				return c, layout.NewFault(column, fmt.Sprintf("turn %d", i), "not valid UTF-8",
					"re-encode the text")
			}
		}
	}
	for _, f := range []struct{ column, s string }{{l.Response, row.Response}, {l.ID, row.ID},
		{l.Finish, row.Finish}, {l.Tools, string(row.Tools)}} {
		if !utf8.ValidString(f.s) {
			return c, layout.NewFault(f.column, "", "not valid UTF-8", "re-encode the text")
		}
	}
	return c, nil
}

// teacherPrompt returns the prompt that a teacher reads in the place of the row's; nil if the row
// has none.
func teacherPrompt(l layout.Layout, turns []Message) ([]Message, *layout.Fault) {
	n := len(turns)
	if n == 0 || n == 1 && strings.TrimSpace(turns[0].Content) == "" {
		return nil, nil
	}
	turns = slices.Clone(turns)
	for i := range turns {
		if name, ok := roleNames[turns[i].Role]; ok && l.Role == "from" {
			turns[i].Role = name
		}
		if m := &turns[i]; !utf8.ValidString(m.Role + m.Content + m.Thinking) {
			return nil, layout.NewFault(l.TeacherPrompt, fmt.Sprintf("turn %d", i),
				"not valid UTF-8", "re-encode the text")
		}
		turns[i].Context = false
	}
	if turns[n-1].Role == "assistant" {
		return nil, layout.NewFault(l.TeacherPrompt, fmt.Sprintf("turn %d", n-1),
			"a teacher's prompt ends with a turn of the assistant, and the student's answer follows it",
			"remove that turn, or put its text into a turn of the user")
	}
	return turns, nil
}

// conversed is a row's conversation before its learned turns are selected.
type conversed struct {
	row   Row
	turns []Message // the whole conversation
	first int       // earlier turns are the prompt, whoever wrote them
	none  bool      // the row has no turns, not even a prompt

	logprobs Logprobs // of the last answer
}

// trainable returns the indices of the turns that a student may learn.
func (c conversed) trainable() (at []int) {
	for i := c.first; i < len(c.turns); i++ {
		if answers(c.turns[i]) && !c.turns[i].Context {
			at = append(at, i)
		}
	}
	return at
}

// pick returns the row whose answer is the turns from to to-1; with from -1 there is no answer, and
// all turns are prompt.
func (c conversed) pick(l layout.Layout, from, to int) (Row, *layout.Fault) {
	row := c.row
	if from < 0 {
		from, to = len(c.turns), len(c.turns)
	}
	if !c.none {
		row.Messages = slices.Clone(c.turns[:from])
		for i := range row.Messages {
			row.Messages[i].Context = false // it is prompt in any case
		}
	}
	if from == to {
		return row, nil
	}
	answer := slices.Clone(c.turns[from:to])
	row.Teacher = answer[len(answer)-1].Text()
	if to == len(c.turns) {
		row.Logprobs = c.logprobs
	}
	if last := answer[0]; len(answer) > 1 || last.Thinking != "" || last.ToolCalls != "" {
		row.Turns = answer
		if len(row.PromptIDs) > 0 {
			return row, layout.NewFault(l.PromptIDs, fmt.Sprintf("%d tokens", len(row.PromptIDs)),
				"a prompt as tokens, and an answer that is more than a text",
				"give the conversation instead")
		}
	}
	return row, nil
}

// answerOf returns the row that a student learns; k selects one of several if each turn is a row.
func (c conversed) answerOf(l layout.Layout, turns string, k int) (Row, *layout.Fault) {
	at, n := c.trainable(), len(c.turns)
	if turns != TurnsLast {
		written := slices.ContainsFunc(c.turns[c.first:],
			func(m Message) bool { return answers(m) })
		switch {
		case len(at) == 0 && written:
			return c.row, layout.NewFault(turnsColumn(l, c), layout.CountOf(n-c.first, "turn"), `no turn of the assistant is to be learned (weight 0 or "train": false)`, "remove the row")
		case len(at) == 0:
			return c.pick(l, -1, -1)
		case turns == TurnsAll:
			return c.pick(l, at[0], at[len(at)-1]+1)
		}
		return c.pick(l, at[k], at[k]+1)
	}
	if n == c.first || c.turns[n-1].Role != "assistant" {
		return c.pick(l, -1, -1)
	}
	if c.turns[n-1].Context {
		return c.row, layout.NewFault(turnsColumn(l, c), fmt.Sprintf("turn %d", n-1), `the last answer has weight 0 or "train": false: it is not to be learned`, "remove the row, or the turns after the answer that is")
	}
	if !answers(c.turns[n-1]) { // a blank answer counts neither as an answer nor as prompt
		c.turns = c.turns[:n-1]
		return c.pick(l, -1, -1)
	}
	return c.pick(l, n-1, n)
}

// turnsColumn returns the column with the turns that may be learned.
func turnsColumn(l layout.Layout, c conversed) string {
	if c.first > 0 && l.Teacher != "" {
		return l.Teacher
	}
	return l.Content
}

// acts reports whether the turn has more than a role and a text.
func acts(m Message) bool {
	m.Context = false
	return m != Message{Role: m.Role, Content: m.Content}
}

// answers reports whether a student may learn the turn.
func answers(m Message) bool {
	return m.Role == "assistant" &&
		(m.ToolCalls != "" || m.Thinking != "" || strings.TrimSpace(m.Content) != "")
}
