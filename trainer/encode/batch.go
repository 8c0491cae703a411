package encode

import (
	"fmt"
	"strings"

	"gad/data"
	"gad/model"
	"gad/tokenizer"
)

// Batch is the rows of one step.
type Batch []Row

// Row is a prompt with the teacher's answer.
type Row struct {
	Index       int // in the data set
	Prompt      []int32
	PromptText  string
	Teacher     model.Seq // prompt and teacher's answer, as every sequence ends
	TeacherText string
	TeacherCut  bool             // the answer was longer than the limit, or unfinished
	Soft        []data.SoftLabel // of the trained tokens of Teacher; nil: all are hard
	Hard        bool             // the row has log-probabilities that give no labels
}

// Teachers returns the teacher's answers behind their prompts.
func (b Batch) Teachers() []model.Seq {
	return of(b, func(r Row) model.Seq { return r.Teacher })
}

// Prompts returns the prompts' tokens.
func (b Batch) Prompts() [][]int32 { return of(b, func(r Row) []int32 { return r.Prompt }) }

// Indices returns the places of the rows in the data set.
func (b Batch) Indices() []int { return of(b, func(r Row) int { return r.Index }) }

// of returns a value of each row.
func of[T any](b Batch, value func(Row) T) []T {
	out := make([]T, len(b))
	for i, r := range b {
		out[i] = value(r)
	}
	return out
}

// Batch encodes the given rows of set.
func (e Encoder) Batch(set *data.Set, rows []int) (Batch, error) {
	examples, err := set.Examples(rows, e, data.Limits{MaxPrompt: e.MaxPrompt})
	if err != nil {
		return nil, err
	}
	b := make(Batch, len(examples))
	for i, x := range examples {
		answer := e.Response(x.Answer)
		teacher := e.learned(e.Seq(x.Prompt, answer), x.Spans)
		b[i] = Row{Index: rows[i], Prompt: x.Prompt, PromptText: x.PromptText(),
			Teacher: teacher, TeacherText: e.shown(x), TeacherCut: !answer.Finished,
			Soft: x.Soft[:min(teacher.Trained(), len(x.Soft))], Hard: x.Hard != ""}
	}
	return b, nil
}

// learned gives seq the spans of its answer that are learned; nil is all.
func (e Encoder) learned(seq model.Seq, spans []data.Span) model.Seq {
	if spans == nil {
		return seq
	}
	prompt := seq.Prompt()
	n := len(seq.IDs) - prompt
	seq.Spans = nil
	for _, s := range spans {
		if s.From < n {
			seq.Spans = append(seq.Spans,
				model.Span{From: prompt + s.From, To: prompt + min(s.To, n)})
		}
	}
	return seq
}

// shown returns the teacher's answer as a student would write it.
func (e Encoder) shown(r data.Example) string {
	if r.Turns == nil {
		return r.Teacher
	}
	return strings.TrimSpace(e.Tok.Decode(r.Answer, true))
}

// Given is one row of a data set as token ids, for LogProbs and Scores.
type Given struct {
	Row       int
	Seq       model.Seq
	Truncated bool
}

// GivenRows encodes the answers that rows of a data set carry: response_ids,
// else response, else teacher_response. limits are in tokens.
func GivenRows(tok *tokenizer.Tokenizer, set *data.Set, rows []int,
	maxResponse int) (out []Given, err error) {
	enc := Encoder{Tok: tok, MaxResponse: maxResponse}
	for _, i := range rows {
		r, err := set.Row(i)
		if err != nil {
			return nil, err
		}
		prompt, err := enc.Prompt(r)
		if err != nil {
			return nil, fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		seq, cut, err := enc.given(prompt, r)
		if err != nil {
			return nil, err
		}
		out = append(out, Given{Row: i, Truncated: cut, Seq: seq})
	}
	return out, nil
}

// ForDiscriminator returns g as the discriminator reads it.
func (g Given) ForDiscriminator(tok *tokenizer.Tokenizer) model.Seq {
	return Encoder{Tok: tok}.Seq(g.Seq.IDs[:g.Seq.Prompt()],
		Response{g.Seq.Response(), !g.Truncated})
}
