package encode

import (
	"fmt"
	"strings"

	"gad/data"
	"gad/model"
	"gad/tokenizer"
)

// Batch is the prompts of one step with the teacher's answers.
type Batch struct {
	Rows        []int       // [P] row of each in the data set
	Prompts     [][]int32   // [P]
	Teachers    []model.Seq // [P] prompt and teacher's answer, as every sequence ends
	TeacherCut  []bool      // [P] the answer was longer than the limit, or unfinished
	TeacherText []string    // [P]
	PromptText  []string    // [P]
	// [P] labels of the trained tokens of Teachers; nil: all are hard
	Soft [][]data.SoftLabel
	Hard []bool // [P] the row has log-probabilities that give no labels
}

// Batch encodes the given rows of set.
func (e Encoder) Batch(set *data.Set, rows []int) (*Batch, error) {
	b := &Batch{Rows: rows}
	examples, err := set.Examples(rows, e, data.Limits{MaxPrompt: e.MaxPrompt})
	if err != nil {
		return nil, err
	}
	for _, r := range examples {
		answer, cut := e.Cut(r.Answer)
		b.Prompts = append(b.Prompts, r.Prompt)
		teacher := e.learned(e.Ending().Seq(r.Prompt, answer, cut), len(answer), r.Spans)
		b.Teachers = append(b.Teachers, teacher)
		b.Soft = append(b.Soft, r.Soft[:min(teacher.Trained(), len(r.Soft))])
		b.Hard = append(b.Hard, r.Hard != "")
		b.TeacherCut = append(b.TeacherCut, cut)
		b.TeacherText = append(b.TeacherText, e.text(r))
		b.PromptText = append(b.PromptText, r.PromptText())
	}
	return b, nil
}

// learned gives seq the spans of its answer that are learned, which was cut at n tokens; nil is
// all.
func (e Encoder) learned(seq model.Seq, n int, spans []data.Span) model.Seq {
	if spans == nil {
		return seq
	}
	prompt := seq.Prompt()
	seq.Spans = nil
	for _, s := range spans {
		if s.From < n {
			seq.Spans = append(seq.Spans,
				model.Span{From: prompt + s.From, To: prompt + min(s.To, n)})
		}
	}
	return seq
}

// text is the teacher's answer as a student would write it.
func (e Encoder) text(r data.Example) string {
	if r.Turns == nil {
		return r.Teacher
	}
	return strings.TrimSpace(e.Tok.Decode(r.Answer, true))
}

// Append adds the rows of other.
func (b *Batch) Append(other *Batch) {
	b.Rows = append(b.Rows, other.Rows...)
	b.Prompts = append(b.Prompts, other.Prompts...)
	b.Teachers = append(b.Teachers, other.Teachers...)
	b.TeacherCut = append(b.TeacherCut, other.TeacherCut...)
	b.TeacherText = append(b.TeacherText, other.TeacherText...)
	b.PromptText = append(b.PromptText, other.PromptText...)
	b.Soft, b.Hard = append(b.Soft, other.Soft...), append(b.Hard, other.Hard...)
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
		ids, cut, _, err := enc.given(r)
		if err != nil {
			return nil, err
		}
		out = append(out, Given{Row: i, Truncated: cut,
			Seq: model.Answer(append(append([]int32(nil), prompt...), ids...), len(prompt))})
	}
	return out, nil
}

// ForDiscriminator is g as the discriminator reads it.
func (g Given) ForDiscriminator(tok *tokenizer.Tokenizer) model.Seq {
	return Encoder{Tok: tok}.Ending().Seq(g.Seq.IDs[:g.Seq.Prompt()], g.Seq.Response(), g.Truncated)
}
