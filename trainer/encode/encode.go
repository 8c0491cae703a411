// Package encode turns rows into token ids: prompts through the chat template, answers as every
// sequence of a run ends, and which rows a run can take.
//
//	encode.go  one row: Encoder, prompts and answers
//	batch.go   many rows: the batch of a step, and answers that rows carry
//	usable.go  which rows are within the limits, and what is to be said of the others
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

// Prompt returns the row's prompt up to where the answer begins: its prompt_ids, or its
// conversation in the chat template.
func (e Encoder) Prompt(r data.Row) ([]int32, error) {
	if len(r.PromptIDs) > 0 {
		return e.checked("prompt_ids", r.PromptIDs)
	}
	return e.Tok.Prompt(Chat(r))
}

// WithSystem returns a row whose prompt begins with the system message text, in the place of its
// own. A row with prompt_ids has no place for one.
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

// Shows refuses a row whose tool calls or tools the chat template does not show, and, with
// data.ErrThought, one whose answer thinks where the prompt does not, or the other way round.
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

// Reply returns what the teacher did behind the row's prompt, where that is more than a text: see
// tokenizer.Trajectory.
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

// Response is an answer before it stands in a sequence: its tokens, and whether it has an end. Of
// an end among the tokens only those are left that the student drew: Seq writes the one that
// counts.
type Response struct {
	IDs      []int32
	Finished bool
}

// Seq returns prompt and response as every sequence ends that is scored or compared: this is the
// one place at which an end is added.
func (e Encoder) Seq(prompt []int32, r Response) model.Seq {
	return e.Ending().Seq(prompt, r.IDs, !r.Finished)
}

// Response returns the answer of a row of data, whose tokens have an end unless it is unfinished
// (data.Row.Unfinished), within the limit. One that is cut at the limit has no end.
func (e Encoder) Response(ids []int32) Response {
	n := len(ids)
	if n > 0 && ids[n-1] == e.Tok.EndOfTurn() {
		return e.within(Response{ids[: n-1 : n-1], true})
	}
	return e.within(Response{IDs: ids})
}

// Len returns the tokens of the response, its end included.
func (r Response) Len() int {
	if r.Finished {
		return len(r.IDs) + 1
	}
	return len(r.IDs)
}

// within cuts a response at the limit, which counts its end.
func (e Encoder) within(r Response) Response {
	if n := e.MaxResponse; r.Len() > n {
		return Response{IDs: r.IDs[:n:n]}
	}
	return r
}

// Answer returns text as data keeps a finished answer, however long: with its end.
func (e Encoder) Answer(text string) []int32 { return append(e.text(text), e.Tok.EndOfTurn()) }

// text returns the tokens of an answer: without trailing blanks, which chat templates add and
// models rarely do.
func (e Encoder) text(text string) []int32 {
	return e.Tok.EncodeText(e.Tok.Written(strings.TrimRight(text, " \t\r\n")))
}

// Lost counts the characters of text that the tokenizer has no token for.
func (e Encoder) Lost(text string) (n int, first string) { return e.Tok.Lost(text) }

// given returns the answer that a row carries behind prompt: response_ids as they are, else
// response, else the teacher's; cut says that it has no end.
func (e Encoder) given(prompt []int32, r data.Row) (seq model.Seq, cut bool, err error) {
	var answer Response
	switch {
	case len(r.ResponseIDs) > 0:
		ids, err := e.checked("response_ids", r.ResponseIDs)
		if err != nil {
			return seq, false, fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		return model.Answer(slices.Concat(prompt, ids), len(prompt)), false, nil
	case r.Response != "":
		answer = e.within(Response{e.text(r.Response), true})
	case r.Teacher != "" && r.Turns == nil:
		answer = e.within(Response{e.text(r.Teacher), !r.Unfinished()})
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

func (e Encoder) checked(column string, ids []int32) ([]int32, error) {
	for i, id := range ids {
		if e.Tok.Piece(id) == nil {
			return nil, fmt.Errorf("%s[%d] is %d, not a token of this tokenizer (0 to %d)", column,
				i, id, e.Tok.Size()-1)
		}
	}
	return ids, nil
}

// Ending returns how sequences end.
func (e Encoder) Ending() critic.Ending {
	return critic.Ending{EOS: e.Tok.EOS(), Turn: e.Tok.EndOfTurn()}
}

// Chat returns the row's prompt as the chat template gets it.
func Chat(r data.Row) tokenizer.Chat {
	return tokenizer.Chat{Messages: r.Messages, Tools: string(r.Tools)}
}

// For returns how a run with this tokenizer turns rows into tokens, without limits.
func For(tok *tokenizer.Tokenizer) data.Encoder { return Encoder{Tok: tok} }

// Prompt returns the conversation of a row up to where the answer begins, as token ids.
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
