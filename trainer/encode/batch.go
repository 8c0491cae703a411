package encode

import (
	"fmt"
	"strings"

	"gad/data"
	"gad/model"
	"gad/tokenizer"
)

// Batch holds the rows of one step.
type Batch []Row

// Row is a prompt with the teacher's answer.
type Row struct {
	Index       int // in the data set
	Prompt      []int32
	PromptText  string
	Teacher     model.Seq // prompt and teacher's answer, with the common end (Encoder.Seq)
	TeacherText string
	TeacherCut  bool             // the answer was longer than the limit, or unfinished
	Soft        []data.SoftLabel // labels of the trained tokens of Teacher; nil: all are hard
	// the prompt that a teacher alone reads; nil: the row's
	TeacherPrompt []data.Message
	Hard          bool // the row has log-probabilities, but no labels come of them
}

// Teachers returns the teacher's answers, each after its prompt.
func (b Batch) Teachers() []model.Seq {
	return mapRows(b, func(r Row) model.Seq { return r.Teacher })
}

// Prompts returns the prompts' tokens.
func (b Batch) Prompts() [][]int32 { return mapRows(b, func(r Row) []int32 { return r.Prompt }) }

// Indices returns the rows' indices in the data set.
func (b Batch) Indices() []int { return mapRows(b, func(r Row) int { return r.Index }) }

// mapRows returns value of each row.
func mapRows[T any](b Batch, value func(Row) T) []T {
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
		teacher := e.keepSpans(e.Seq(x.Prompt, answer), x.Spans)
		b[i] = Row{Index: rows[i], Prompt: x.Prompt, PromptText: x.PromptText(),
			Teacher: teacher, TeacherText: e.teacherText(x), TeacherCut: !answer.Finished,
			Soft: x.Soft[:min(teacher.Trained(), len(x.Soft))], Hard: x.Hard != "",
			TeacherPrompt: x.TeacherPrompt}
	}
	return b, nil
}

// keepSpans returns seq with the given spans of its answer as trained tokens; spans nil: all of the
// answer.
func (e Encoder) keepSpans(seq model.Seq, spans []data.Span) model.Seq {
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

// teacherText returns the teacher's answer as a student would write it.
func (e Encoder) teacherText(r data.Example) string {
	if r.Turns == nil {
		return r.Teacher
	}
	return strings.TrimSpace(e.Tok.Decode(r.Answer, true))
}

// RowAnswer is one row of a data set as token ids, for gad generate and the scoring of rows.
type RowAnswer struct {
	Row       int
	Seq       model.Seq
	Truncated bool
}

// RowAnswers encodes the answers of rows of a data set: response_ids, else response, else
// teacher_response. maxResponse is in tokens.
func RowAnswers(tok *tokenizer.Tokenizer, set *data.Set, rows []int,
	maxResponse int) (out []RowAnswer, err error) {
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
		seq, cut, err := enc.givenAnswer(prompt, r)
		if err != nil {
			return nil, err
		}
		out = append(out, RowAnswer{Row: i, Truncated: cut, Seq: seq})
	}
	return out, nil
}

// ForDiscriminator returns the answer as the discriminator reads it.
func (g RowAnswer) ForDiscriminator(tok *tokenizer.Tokenizer) model.Seq {
	return Encoder{Tok: tok}.Seq(g.Seq.IDs[:g.Seq.Prompt()],
		Response{g.Seq.Response(), !g.Truncated})
}
