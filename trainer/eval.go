package trainer

import (
	"fmt"

	"gad/data"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/tokenizer"
)

// Judged is a student's answers to held-out rows beside the teacher's.
type Judged struct {
	Batch     *Batch
	Answers   []string    // [P] decoded, without control tokens
	Seqs      []model.Seq // [P] as the discriminator would read them
	Truncated []bool
	Eval      Evaluation
}

// Evaluation are the figures of a student on held-out rows.
type Evaluation struct {
	Rows          int     `json:"rows"`
	Temperature   float64 `json:"temperature"`
	RougeL        float64 `json:"rouge_l"`
	TeacherNLL    float64 `json:"teacher_nll"` // nats per token of the teacher's answers, temperature 1
	LenRatio      float64 `json:"len_ratio"`
	Distinct1     float64 `json:"distinct_1"`
	Distinct2     float64 `json:"distinct_2"`
	TruncatedFrac float64 `json:"truncated_frac"`
	RepeatFrac    float64 `json:"repeat_frac"`

	RougeLCI95   *[2]float64 `json:"rouge_l_ci95,omitempty"`   // bootstrap over prompts, as all intervals here
	LenRatioCI95 *[2]float64 `json:"len_ratio_ci95,omitempty"` // absent where an end is not finite

	// Of a checker; absent without one.
	Check     *float64           `json:"check,omitempty"` // mean score
	CheckCI95 *[2]float64        `json:"check_ci95,omitempty"`
	Labels    map[string]float64 `json:"labels,omitempty"` // share of the rows by label

	// Of fresh discriminators; absent where none was trained. FreshDAcc is the held-out
	// accuracy over pairs that differ, mean over seeds; 0.5 is indistinguishable. It and
	// its interval are absent where the control (Fresh) says that the training cannot
	// rank, or where no pair differs.
	FreshDAcc     *float64    `json:"fresh_d_acc,omitempty"`
	FreshDCI95    *[2]float64 `json:"fresh_d_acc_ci95,omitempty"`
	FreshDControl *float64    `json:"fresh_d_control,omitempty"`
	FreshDTies    *float64    `json:"fresh_d_ties,omitempty"`    // share of the rows whose two answers are the same
	FreshDLearned *bool       `json:"fresh_d_learned,omitempty"` // what the control says
}

// EvalOptions say how a student is evaluated.
type EvalOptions struct {
	MaxPrompt, MaxResponse int
	Temperature            float64 // 0 is greedy
	Seed                   uint64
	Slots, MaxTokens       int
}

// Evaluate answers the given rows and compares the answers with the teacher's.
func Evaluate(m *model.Model, tok *tokenizer.Tokenizer, set *data.Set, rows []int, o EvalOptions) (*Judged, error) {
	enc := encoder{tok: tok, maxPrompt: o.MaxPrompt, maxResponse: o.MaxResponse}
	b, err := enc.batch(set, rows)
	if err != nil {
		return nil, err
	}
	keys := make([]uint64, len(rows))
	for i, r := range rows {
		keys[i] = uint64(r)
	}
	out, err := m.Generate(b.Prompts, keys, model.SampleOptions{N: 1, MaxNew: o.MaxResponse, EOS: tok.EOS(), Seed: o.Seed, Slots: o.Slots,
		Sampling: model.Sampling{Temperature: o.Temperature, TopP: 1}}, nil)
	if err != nil {
		return nil, err
	}
	j := &Judged{Batch: b}
	j.Eval = Evaluation{Rows: len(rows), Temperature: o.Temperature}
	e, n := &j.Eval, float64(len(rows))
	var studentTokens, teacherTokens float64
	rouge, lenS, lenP := make([]float64, len(rows)), make([]float64, len(rows)), make([]float64, len(rows)) // for the intervals
	for p, answers := range out {
		c := answers[0]
		text := tok.Decode(c.IDs, true)
		j.Answers = append(j.Answers, text)
		j.Truncated = append(j.Truncated, c.Truncated)
		j.Seqs = append(j.Seqs, enc.ending().Seq(b.Prompts[p], c.IDs, c.Truncated))
		rouge[p] = textmetrics.RougeL(text, b.TeacherText[p])
		lenS[p], lenP[p] = float64(len(c.IDs)), float64(len(b.Teachers[p].IDs)-b.Teachers[p].Prompt)
		e.RougeL += rouge[p] / n
		e.RepeatFrac += textmetrics.RepeatFrac(c.IDs) / n
		if c.Truncated {
			e.TruncatedFrac += 1 / n
		}
		studentTokens += lenS[p]
		teacherTokens += lenP[p]
	}
	e.LenRatio = studentTokens / teacherTokens
	e.RougeLCI95, e.LenRatioCI95 = finite(textmetrics.MeanInterval(rouge, o.Seed)), finite(textmetrics.RatioInterval(lenS, lenP, o.Seed))
	e.Distinct1, e.Distinct2 = textmetrics.DistinctN(j.Answers, 1), textmetrics.DistinctN(j.Answers, 2)
	e.TeacherNLL, err = teacherNLL(m, b.Teachers, o.MaxTokens)
	return j, err
}

// teacherNLL is the mean over tokens of -log p(teacher's token), temperature 1.
func teacherNLL(m *model.Model, teachers []model.Seq, maxTokens int) (float64, error) {
	logpST, _, err := m.AllLogProbs(teachers, 1, maxTokens)
	if err != nil {
		return 0, err
	}
	var sum, tokens float64
	for _, row := range logpST {
		for _, x := range row {
			sum -= float64(x)
			tokens++
		}
	}
	return sum / max(tokens, 1), nil
}

// validate evaluates the student on the first rows of the validation data, greedily.
func (t *Trainer) validate(m Metrics) error {
	j, err := Evaluate(t.actor.Model(), t.tok, t.val, t.valRows, EvalOptions{
		MaxPrompt: t.cfg.Data.MaxPrompt, MaxResponse: t.cfg.Data.MaxResponse, Seed: t.cfg.Trainer.Seed,
		Slots: t.cfg.Rollout.MaxNumSeqs, MaxTokens: t.cfg.Actor.MaxTokenLen})
	if err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	m["val/rouge_l"], m["val/teacher_nll"], m["val/len_ratio"] = j.Eval.RougeL, j.Eval.TeacherNLL, j.Eval.LenRatio
	if err := t.judge(m, j); err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	return nil
}

// Given is one row of a data set as token ids, for LogProbs and Scores.
type Given struct {
	Row       int
	Seq       model.Seq
	Truncated bool
}

// GivenRows encodes the answers that rows of a data set carry: response_ids,
// else response, else teacher_response. limits are in tokens.
func GivenRows(tok *tokenizer.Tokenizer, set *data.Set, rows []int, maxResponse int) (out []Given, err error) {
	enc := encoder{tok: tok, maxResponse: maxResponse}
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
		out = append(out, Given{Row: i, Truncated: cut, Seq: model.Seq{IDs: append(append([]int32(nil), prompt...), ids...), Prompt: len(prompt)}})
	}
	return out, nil
}

// Judge is g as the discriminator reads it.
func (g Given) Judge(tok *tokenizer.Tokenizer) model.Seq {
	return encoder{tok: tok}.ending().Seq(g.Seq.IDs[:g.Seq.Prompt], g.Seq.IDs[g.Seq.Prompt:], g.Truncated)
}

// Encoding is how a run with this tokenizer turns rows into tokens, without limits.
func Encoding(tok *tokenizer.Tokenizer) data.Encoder { return encoder{tok: tok} }
