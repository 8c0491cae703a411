package data

import (
	"cmp"
	"errors"
	"fmt"
	"gad/data/layout"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Encoder turns text into tokens as the run does.
type Encoder interface {
	// Prompt returns the tokens of a row's prompt: its prompt_ids, or its turns in the student's
	// chat template, up to the beginning of the answer.
	Prompt(Row) ([]int32, error)

	// Answer returns the tokens of an answer that is a text, with its end-of-turn token.
	Answer(text string) []int32

	// Reply returns the tokens of a row's Turns behind its prompt, and the spans that are learned.
	Reply(Row) (ids []int32, learned []Span, err error)

	// Shows returns an error if the student's chat template leaves out the row's tool calls or
	// tools, or cannot render the row at all.
	Shows(Row) error

	// Soft returns the soft labels of the tokens of a row's answer, a text that its Logprobs spell.
	// bad is the reason if there are none.
	Soft(row Row, answer []int32) (soft []SoftLabel, bad string)

	// Lost returns the number of characters of text that have no token, and a note on the first of
	// them.
	Lost(text string) (n int, first string)
}

// Limits are a run's bounds, in tokens. 0 is no bound.
type Limits struct {
	MaxPrompt   int `json:"maxPrompt"`   // data.max_prompt_length
	MaxResponse int `json:"maxResponse"` // data.max_response_length
}

// Severity tells whether a problem makes its row unusable.
type Severity string

const (
	SeverityError   Severity = "error"   // training refuses the row
	SeverityWarning Severity = "warning" // training takes the row, but look at it
)

// Kinds of problems. doc/data.md lists them with their severity.
const (
	KindUnreadable  = "unreadable"        // the file is damaged here
	KindFault       = "unusable row"      // refused by Row
	KindNoTeacher   = "no teacher answer" // missing, empty or blank
	KindNoUser      = "no user turn"
	KindRole        = "unknown role"
	KindTemplate    = "chat template fails"
	KindAppend      = "turns that are rewritten"
	KindTokens      = "prompt_ids are not tokens"
	KindLongPrompt  = "prompt over the limit"
	KindLongAnswer  = "answer over the limit" // it is cut
	KindUnfinished  = "unfinished answer"     // by its finish_reason
	KindLastTurn    = "prompt does not end with the user"
	KindBlank       = "blank turn"
	KindControl     = "control characters"
	KindReplacement = "replacement characters"     // damaged before it was written to the file
	KindLost        = "characters without a token" // of the student's vocabulary
	KindDuplicate   = "duplicate row"
	KindUnread      = "text that is not read" // in a column, or a key of turns, that may matter
	KindMarks       = "control tokens as text"
	KindThinking    = "thinking in an answer"
	KindHard        = "log-probabilities of another text" // the row has hard labels
)

var knownRoles = []string{"system", "developer", "user", "assistant", "tool"}

// Example is a row as training uses it.
type Example struct {
	Row
	Prompt []int32 // tokens; nil without an encoder
	// tokens of the whole teacher's answer with its end, without one if it is unfinished; nil
	// without an encoder
	Answer []int32
	Spans  []Span // learned tokens of Answer; nil is all
	// of the tokens of Answer; nil: all labels are hard
	Soft []SoftLabel
	Hard string // the reason why Logprobs give no soft labels; "": they do, or there are none
}

// finding is one problem of a row. text is the problem, its place and the way out; findings of one
// group are the same mistake in different rows.
type finding struct {
	severity     Severity
	kind, column string
	text, group  string
}

// RowError is the reason why training refuses a row.
type RowError struct {
	File string
	Row  int    // in the file, from 0
	Kind string // one of the Kind constants
	text string
	err  error // the cause, may be nil
}

func (e *RowError) Error() string {
	return fmt.Sprintf("data: %s: row %d: %s (gad data validate lists all such rows)", e.File,
		e.Row, e.text)
}

func (e *RowError) Unwrap() error { return e.err }

// Example returns row i as training uses it. It refuses, with a RowError, exactly the rows that
// Validate reports as errors: both use examine. Without an encoder the rules about tokens are left
// out.
func (s *Set) Example(i int, enc Encoder, lim Limits) (Example, error) {
	if enc != nil {
		if ex, ok := s.encodedExample(i); ok &&
			(lim.MaxPrompt <= 0 || len(ex.Prompt) <= lim.MaxPrompt) {
			ex.soften(enc)
			return ex, nil
		}
	}
	var first *finding
	ex, cause := s.examine(i, enc, lim, true, func(f finding) {
		if first == nil && f.severity == SeverityError {
			first = &f
		}
	})
	if first == nil {
		return ex, nil
	}
	file, at := s.locate(i)
	return Example{}, &RowError{File: file, Row: at, Kind: first.kind, text: first.text, err: cause}
}

// examine calls add with every problem of row i alone; with training the row must have a teacher's
// answer. If the row cannot be read at all, cause is the reason, which add gets too.
func (s *Set) examine(i int, enc Encoder, lim Limits, training bool,
	add func(finding)) (ex Example, cause error) {
	has := s.layoutOf(i).Columns
	fail := func(kind, column, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		add(finding{SeverityError, kind, column, text, text})
	}
	row, unread, err := s.read(i)
	if err != nil {
		var bad *layout.Fault
		if errors.As(err, &bad) {
			fail(KindFault, bad.Column, "%s", bad)
			return ex, err
		}
		file, at := s.locate(i)
		fail(KindUnreadable, "", "%s",
			strings.TrimPrefix(err.Error(), fmt.Sprintf("data: %s: row %d: ", file, at)))
		return ex, err
	}
	ex.Row = row
	for _, name := range unread {
		what := fmt.Sprintf("column %q", name)
		if column, key, turns := strings.Cut(name, "[]."); turns {
			what = fmt.Sprintf("key %q of the turns in column %q", key, column)
		}
		text := fmt.Sprintf("%s is not read, although the answer may speak of it%s", what,
			s.layoutOf(i).ReadsMore(unread))
		add(finding{SeverityWarning, KindUnread, name, text, text})
	}

	failed := false
	if len(row.PromptIDs) == 0 && (training || row.Messages != nil) {
		failed = checkTurns(row.Messages, has.Content, enc, add)
	}
	if enc != nil && !failed {
		if ex.Prompt, err = enc.Prompt(row); err != nil && len(row.PromptIDs) > 0 {
			fail(KindTokens, has.PromptIDs, "%v", err)
		} else if err != nil {
			fail(KindTemplate, has.Content, "the chat template fails: %v", err)
		} else if err = enc.Shows(row); errors.Is(err, ErrThought) {
			text := strings.TrimPrefix(err.Error(), ErrThought.Error()+": ")
			text = strings.TrimSuffix(text, ": "+ErrThought.Error())
			fail(KindTemplate, cmp.Or(has.Teacher, has.Content), "%s", text)
		} else if err != nil {
			fail(KindTemplate, has.Content, "the student would not see what the row says: %v: use a student whose template has them, or remove them from the row", err)
		}
		if n := len(ex.Prompt); lim.MaxPrompt > 0 && n > lim.MaxPrompt {
			add(finding{SeverityError, KindLongPrompt, has.Content, fmt.Sprintf("prompt has %d tokens, data.max_prompt_length is %d: raise it, or set data.overlong_prompts=filter", n, lim.MaxPrompt), "long"})
		}
	}

	column := has.Teacher
	if column == "" {
		column = has.Content
	}
	if strings.TrimSpace(row.Teacher) == "" {
		if training && has.Teacher == "" {
			end := "does not end with one: name"
			if n := len(row.Messages); n > 1 && row.Messages[n-1].Role == "user" {
				end = "ends with a turn of the user: remove that turn, or name"
			}
			fail(KindNoTeacher, column, "no teacher answer: there is no column %q, and the conversation in column %q %s the column of the answers (--teacher-key, data.teacher_key)", s.opt.Columns.Teacher, column, end)
		} else if training {
			fail(KindNoTeacher, column, "no teacher answer in column %q (missing, empty or blank): write one or remove the row", column)
		}
	} else {
		texts := []string{row.Teacher}
		for _, m := range row.Turns {
			texts = append(texts, m.Content, m.Thinking, string(m.ToolCalls))
		}
		checkText(strings.Join(texts, "\n"), column, enc, add)
		for _, m := range row.Turns {
			checkThinking(m.Content, column, add)
		}
		if row.Turns == nil {
			checkThinking(row.Teacher, column, add)
		}
		if row.Unfinished() {
			text := fmt.Sprintf(
				"answer in column %q is unfinished (%s is %q): it teaches no end and makes no pair",
				column, has.Finish, row.Finish)
			add(finding{SeverityWarning, KindUnfinished, column, text, text})
		}
		if enc != nil {
			if row.Turns == nil {
				ex.Answer = enc.Answer(row.Teacher)
			} else if !failed && ex.Prompt != nil {
				if ex.Answer, ex.Spans, err = enc.Reply(row); errors.Is(err, ErrAppend) {
					fail(KindAppend, column, "%v: set data.turns=each", err)
				} else if err != nil {
					fail(KindTemplate, column, "the chat template fails: %v", err)
				}
			}
			if row.Unfinished() && len(ex.Answer) > 0 {
				ex.Answer = ex.Answer[:len(ex.Answer)-1]
				if k := len(ex.Spans) - 1; k >= 0 {
					ex.Spans[k].To = min(ex.Spans[k].To, len(ex.Answer))
				}
			}
			checkAnswer(len(ex.Answer), column, lim, add)
		}
		if ex.soften(enc); ex.Hard != "" {
			add(finding{SeverityWarning, KindHard, layout.LogprobsColumn, fmt.Sprintf("log-probabilities in column %q are not read, and the row has hard labels: %s", layout.LogprobsColumn, ex.Hard), ex.Hard})
		}
	}
	return ex, nil
}

// soften sets the soft labels of the answer's tokens. enc may be nil.
func (ex *Example) soften(enc Encoder) {
	if ex.Logprobs == nil {
		return
	}
	if ex.Hard = ex.Row.LogprobsFault(); ex.Hard == "" && enc != nil {
		ex.Soft, ex.Hard = enc.Soft(ex.Row, ex.Answer)
	}
}

// checkAnswer warns of an answer that the limit cuts.
func checkAnswer(n int, column string, lim Limits, add func(finding)) {
	if lim.MaxResponse > 0 && n > lim.MaxResponse {
		add(finding{SeverityWarning, KindLongAnswer, column,
			fmt.Sprintf(
				"answer in column %q has %d tokens and is cut at data.max_response_length %d",
				column,
				n, lim.MaxResponse), column})
	}
}

// checkTurns checks a prompt's turns. It reports whether one is an error; rendering them would then
// only repeat it.
func checkTurns(turns []Message, column string, enc Encoder, add func(finding)) (failed bool) {
	say := func(severity Severity, kind, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		failed = failed || severity == SeverityError
		add(finding{severity, kind, column, text, text})
	}
	users, unknown := 0, false
	for i, m := range turns {
		if m.Role == "user" {
			users++
			if strings.TrimSpace(m.Content) == "" {
				say(SeverityWarning, KindBlank, "turn %d of column %q is a blank user turn", i,
					column)
			}
		}
		if !unknown && !slices.Contains(knownRoles, m.Role) {
			unknown = true // one line a row
			say(SeverityError, KindRole, "turn %d of column %q has the unknown role %s: use %s", i,
				column, layout.Preview(m.Role, 20), strings.Join(knownRoles, ", "))
		}
		checkText(m.Content, column, enc, add)
	}
	switch {
	case users == 0:
		say(SeverityError, KindNoUser,
			"the conversation in column %q has no user turn: add one or remove the row", column)
	case turns[len(turns)-1].Role != "user" && turns[len(turns)-1].Role != "tool":
		say(SeverityWarning, KindLastTurn,
			"the prompt in column %q ends with a turn of %s, not of the user", column,
			layout.Preview(turns[len(turns)-1].Role, 20))
	}
	return failed
}

// checkText warns of characters that no person wrote, and of characters without a token; enc may be
// nil.
func checkText(s, column string, enc Encoder, add func(finding)) {
	warn := func(kind, format string, args ...any) {
		add(finding{SeverityWarning, kind, column, fmt.Sprintf(format, args...), column})
	}
	control := strings.IndexFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
	if control >= 0 {
		r, _ := utf8.DecodeRuneInString(s[control:])
		warn(KindControl, "control character %U at byte %d of a text in column %q", r, control,
			column)
	}
	if mark := controlMark(s); mark != "" {
		warn(KindMarks, "%q in a text of column %q: gad reads it as these letters, never as a control token: remove it, or write turns", mark, column)
	}
	if i := strings.IndexRune(s, utf8.RuneError); i >= 0 {
		warn(KindReplacement,
			"U+FFFD at byte %d of a text in column %q: the text was damaged when it was made", i,
			column)
	}
	if enc == nil {
		return
	}
	if n, first := enc.Lost(s); n > 0 {
		warn(KindLost, "%s without a token in the student's vocabulary in a text in column %q (the first: %s): use a student whose tokenizer has all characters, or change the text", layout.CountOf(n, "character"), column, first)
	}
}

// checkThinking warns of an answer in which a teacher thinks aloud: the student learns to do so
// too, and it counts against data.max_response_length.
func checkThinking(answer, column string, add func(finding)) {
	for _, tag := range []string{"<think>", "</think>", "<thinking>"} {
		if strings.Contains(answer, tag) {
			add(finding{SeverityWarning, KindThinking, column, fmt.Sprintf("answer in column %q contains %s: the student learns to think aloud too, unless you cut that out", column, tag), column})
			return
		}
	}
}

// marks are the control tokens of chat templates that do not begin with "<|".
var marks = []string{"<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<\uff5c"}

// controlMark returns a control token that is spelled out in a text, or "". It does not depend on
// the student's tokens: such text was meant as a control token elsewhere.
func controlMark(s string) string {
	for from := 0; ; {
		at := strings.Index(s[from:], "<|")
		if at < 0 {
			break
		}
		at += from
		name := s[at+2 : min(len(s), at+40)]
		if end := strings.Index(name, "|>"); end > 0 &&
			strings.Trim(name[:end],
				"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ -") == "" {
			return s[at : at+2+end+2]
		}
		from = at + 2
	}
	for _, mark := range marks {
		if strings.Contains(s, mark) {
			return mark
		}
	}
	if t := strings.TrimSpace(s); strings.HasSuffix(t, "</s>") && !strings.Contains(t, "<s>") {
		return "</s>" // not the end of an HTML element
	}
	return ""
}

// rowsText names rows for a message: "row 3", "rows 3, 5 and 9", "rows 3, 5, 9 and 20 more".
func rowsText(rows []int, count int) string {
	if count == 1 {
		return "row " + strconv.Itoa(rows[0])
	}
	shown := make([]string, len(rows))
	for i, r := range rows {
		shown[i] = strconv.Itoa(r)
	}
	if count > len(rows) {
		return fmt.Sprintf("rows %s and %d more", strings.Join(shown, ", "), count-len(rows))
	}
	last := len(shown) - 1
	return "rows " + strings.Join(shown[:last], ", ") + " and " + shown[last]
}
