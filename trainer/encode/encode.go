// Package encode turns rows into token ids: prompts through the chat template, answers with the
// common end of all sequences, and finds the rows that a run can take.
//
//	encode.go  one row: Encoder, prompts and answers
//	batch.go   many rows: the batch of a step, and answers in rows
//	usable.go  which rows are within the limits, and notes about the others
//	ranked.go  scored answers of rows, for rankings
//	soft.go    soft labels from a teacher's log-probabilities
package encode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gad/critic"
	"gad/data"
	"gad/model"
	"gad/tokenizer"
)

// Encoder turns rows into token ids under the limits of a configuration.
type Encoder struct {
	Tok                    *tokenizer.Tokenizer
	MaxPrompt, MaxResponse int
}

// Prompt returns the tokens of the row's prompt up to where the answer begins: its prompt_ids, or
// its conversation in the chat template.
func (e Encoder) Prompt(r data.Row) ([]int32, error) {
	if len(r.PromptIDs) > 0 {
		return e.checkIDs("prompt_ids", r.PromptIDs)
	}
	return e.Tok.Prompt(Chat(r))
}

// ForTeacher returns a row with the prompt that a teacher reads: the row's own TeacherPrompt if it
// has one. It begins with the system message system, unless that is "".
func ForTeacher(r data.Row, system string) (data.Row, error) {
	if r.TeacherPrompt != nil {
		r.Messages, r.PromptIDs = r.TeacherPrompt, nil
	}
	if system == "" {
		return r, nil
	}
	return WithSystem(r, system)
}

// WithNotes returns a row whose teacher reads notes with the prompt: template replaces the last
// turn of the user, with that turn for {prompt} and the notes for {notes}. It fails on a row with
// prompt_ids and no prompt of the teacher's own.
func WithNotes(r data.Row, template, notes string) (data.Row, error) {
	turns := r.Messages
	if r.TeacherPrompt != nil {
		turns = r.TeacherPrompt
	}
	if len(turns) == 0 {
		return r, fmt.Errorf(
			"data: row %d: has prompt_ids, into which no notes can be put: give rows with messages", r.Index)
	}
	r.TeacherPrompt = fill(turns, template, "{notes}", notes)
	return r, nil
}

// WithAnswer returns a row whose prompt asks about an answer to it: template replaces the last turn
// of the user, with that turn for {prompt} and the answer for {answer}. It fails on a row with
// prompt_ids.
func WithAnswer(r data.Row, template, answer string) (data.Row, error) {
	if len(r.PromptIDs) > 0 || len(r.Messages) == 0 {
		return r, fmt.Errorf(
			"data: row %d: has prompt_ids, about which nothing can be asked: give rows with messages",
			r.Index)
	}
	r.Messages = fill(r.Messages, template, "{answer}", answer)
	return r, nil
}

// fill returns turns with template in the place of the last turn of the user: there that turn
// replaces {prompt}, and text replaces key.
func fill(turns []data.Message, template, key, text string) []data.Message {
	turns = slices.Clone(turns)
	at := len(turns) - 1
	for i, turn := range turns {
		if turn.Role == "user" {
			at = i
		}
	}
	turns[at].Content = strings.NewReplacer("{prompt}", turns[at].Content, key, text).Replace(template)
	return turns
}

// WithSystem returns a row whose prompt begins with the system message text, instead of its own. It
// fails on a row with prompt_ids.
func WithSystem(r data.Row, text string) (data.Row, error) {
	if len(r.PromptIDs) > 0 {
		return r, fmt.Errorf("data: row %d: has prompt_ids, which a system message cannot be put before: leave it out, or give rows with messages", r.Index)
	}
	if len(r.Messages) > 0 && r.Messages[0].Role == "system" {
		r.Messages = r.Messages[1:]
	}
	r.Messages = append([]data.Message{{Role: "system", Content: text}}, r.Messages...)
	return r, nil
}

// Shows refuses a row whose tool calls or tools the chat template does not show. It refuses, with
// data.ErrThought, a row whose answer has a thought but not its prompt, or the reverse.
func (e Encoder) Shows(r data.Row) error {
	if len(r.PromptIDs) > 0 {
		return nil
	}
	c := Chat(r)
	turns, skip := r.Turns, func(i int) bool { return r.Turns[i].Context }
	if r.Turns == nil && strings.TrimSpace(r.Teacher) != "" {
		turns = []tokenizer.Message{{Role: "assistant", Content: r.Teacher}}
		skip = func(int) bool { return false }
	}
	if err := e.Tok.Thinks(c, turns, skip); err != nil {
		return fmt.Errorf("%w: %w", data.ErrThought, err)
	}
	c.Messages = slices.Concat(c.Messages, r.Turns)
	return e.Tok.Shows(c)
}

// Reply returns the tokens and learned spans of the teacher's turns after the row's prompt, for
// rows whose answer is more than a text (tokenizer.Trajectory).
func (e Encoder) Reply(r data.Row) ([]int32, []data.Span, error) {
	ids, spans, err := e.Tok.Trajectory(Chat(r), r.Turns,
		func(i int) bool { return r.Turns[i].Context })
	if errors.Is(err, tokenizer.ErrRewritten) {
		err = fmt.Errorf("%w: %w", data.ErrAppend, err)
	}
	if err != nil {
		return nil, nil, err
	}
	learned := make([]data.Span, len(spans))
	for i, s := range spans {
		learned[i] = data.Span(s)
	}
	return ids, learned, nil
}

// Response is an answer before it is put into a sequence: its tokens, and whether it has an end. A
// student's response may contain the end tokens that it sampled; a teacher's does not. Seq replaces
// either by the common end.
type Response struct {
	IDs      []int32
	Finished bool
}

// Seq returns prompt and response with the common end of all sequences that are scored or compared.
// No other function adds an end.
func (e Encoder) Seq(prompt []int32, r Response) model.Seq {
	return e.Ending().Seq(prompt, r.IDs, !r.Finished)
}

// Response returns a row's answer, cut at the length limit. Answers in rows have an end unless they
// are unfinished (data.Row.Unfinished); an answer that is cut has none.
func (e Encoder) Response(ids []int32) Response {
	n := len(ids)
	if n > 0 && ids[n-1] == e.Tok.EndOfTurn() {
		return e.truncate(Response{ids[: n-1 : n-1], true})
	}
	return e.truncate(Response{IDs: ids})
}

// Len returns the number of tokens of the response, with its end.
func (r Response) Len() int {
	if r.Finished {
		return len(r.IDs) + 1
	}
	return len(r.IDs)
}

// truncate cuts a response at the length limit, which counts its end.
func (e Encoder) truncate(r Response) Response {
	if n := e.MaxResponse; r.Len() > n {
		return Response{IDs: r.IDs[:n:n]}
	}
	return r
}

// Answer returns the tokens of text as a finished answer of a row, with its end, however long.
func (e Encoder) Answer(text string) []int32 { return append(e.text(text), e.Tok.EndOfTurn()) }

// text returns the tokens of an answer's text without trailing blanks, which chat templates add and
// models rarely do.
func (e Encoder) text(text string) []int32 {
	return e.Tok.EncodeText(e.Tok.Written(strings.TrimRight(text, " \t\r\n")))
}

// Lost returns the number of characters of text that the tokenizer has no token for, and the first
// of them.
func (e Encoder) Lost(text string) (n int, first string) { return e.Tok.Lost(text) }

// givenAnswer returns the answer of a row after prompt: response_ids as they are, else response,
// else the teacher's; cut reports that it has no end.
func (e Encoder) givenAnswer(prompt []int32, r data.Row) (seq model.Seq, cut bool, err error) {
	var answer Response
	switch {
	case len(r.ResponseIDs) > 0:
		ids, err := e.checkIDs("response_ids", r.ResponseIDs)
		if err != nil {
			return seq, false, fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		return model.Answer(slices.Concat(prompt, ids), len(prompt)), false, nil
	case r.Response != "":
		answer = e.truncate(Response{e.text(r.Response), true})
	case r.Teacher != "" && r.Turns == nil:
		answer = e.truncate(Response{e.text(r.Teacher), !r.Unfinished()})
	case r.Teacher != "":
		ids, _, err := e.Reply(r)
		if err != nil {
			return seq, false, fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		answer = e.Response(ids)
		answer.Finished = answer.Finished && !r.Unfinished()
	default:
		return seq, false, fmt.Errorf(
			"data: row %d: has none of response_ids, response and teacher_response: nothing to score",
			r.Index)
	}
	return e.Seq(prompt, answer), !answer.Finished, nil
}

// checkIDs refuses ids, from the given column, that are no tokens of the tokenizer.
func (e Encoder) checkIDs(column string, ids []int32) ([]int32, error) {
	for i, id := range ids {
		if e.Tok.Piece(id) == nil {
			return nil, fmt.Errorf("%s[%d] is %d, not a token of this tokenizer (0 to %d)", column,
				i, id, e.Tok.Size()-1)
		}
	}
	return ids, nil
}

// Ending returns the end of sequences.
func (e Encoder) Ending() critic.Ending {
	return critic.Ending{EOS: e.Tok.EOS(), Turn: e.Tok.EndOfTurn()}
}

// Chat returns the row's prompt as the chat template reads it.
func Chat(r data.Row) tokenizer.Chat {
	return tokenizer.Chat{Messages: r.Messages, Tools: string(r.Tools)}
}

// NewEncoder returns an encoder without limits, for package data.
func NewEncoder(tok *tokenizer.Tokenizer) data.Encoder { return Encoder{Tok: tok} }

// Prompt returns the tokens of a row's conversation up to where the answer begins.
func Prompt(tok *tokenizer.Tokenizer, set *data.Set, row int) ([]int32, error) {
	r, err := set.Row(row)
	if err != nil {
		return nil, err
	}
	ids, err := Encoder{Tok: tok}.Prompt(r)
	if err != nil {
		return nil, fmt.Errorf("data: row %d: %w", row, err)
	}
	return ids, nil
}
