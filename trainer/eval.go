package trainer

import (
	"fmt"

	"gad/critic"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/philox"
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

	// FreshDAcc is the held-out accuracy of a discriminator trained from scratch
	// on this student's answers; 0.5 is indistinguishable. Absent where none was.
	FreshDAcc *float64 `json:"fresh_d_acc,omitempty"`
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
		Sampling: compute.Sampling{Temperature: o.Temperature, TopP: 1}}, nil)
	if err != nil {
		return nil, err
	}
	j := &Judged{Batch: b}
	j.Eval = Evaluation{Rows: len(rows), Temperature: o.Temperature}
	e, n := &j.Eval, float64(len(rows))
	var studentTokens, teacherTokens float64
	for p, answers := range out {
		c := answers[0]
		text := tok.Decode(c.IDs, true)
		j.Answers = append(j.Answers, text)
		j.Truncated = append(j.Truncated, c.Truncated)
		j.Seqs = append(j.Seqs, enc.ending().Seq(b.Prompts[p], c.IDs, c.Truncated))
		e.RougeL += textmetrics.RougeL(text, b.TeacherText[p]) / n
		e.RepeatFrac += textmetrics.RepeatFrac(c.IDs) / n
		if c.Truncated {
			e.TruncatedFrac += 1 / n
		}
		studentTokens += float64(len(c.IDs))
		teacherTokens += float64(len(b.Teachers[p].IDs) - b.Teachers[p].Prompt)
	}
	e.LenRatio = studentTokens / teacherTokens
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
	return nil
}

// DiscOptions say how a fresh discriminator is trained.
type DiscOptions struct {
	From  string       // folder of a model to start from; empty: random weights of Shape
	Shape model.Config // architecture, where From is empty
	Steps int
	Batch int // pairs a step
	LR    float64
	Seed  uint64
}

// FreshDiscriminator trains a new discriminator on the first half of the pairs
// and returns its accuracy on the second half: how well the student's answers
// can still be told from the teacher's by someone who did not train against it.
func FreshDiscriminator(be compute.Backend, o DiscOptions, j *Judged) (acc float64, err error) {
	if o.Steps < 1 || o.Batch < 1 {
		return 0, fmt.Errorf("trainer: fresh discriminator: %d steps of %d pairs: both must be at least 1", o.Steps, o.Batch)
	}
	c := critic.DefaultConfig()
	c.Optim.LR, c.Optim.WarmupSteps, c.Optim.LRScheduler, c.GradClip = o.LR, o.Steps/10, "linear", 1
	var cr *critic.Critic
	if o.From != "" {
		cr, err = critic.Open(be, o.From, c, o.Steps, o.Batch, o.Seed)
	} else {
		var m *model.Model
		if m, err = model.New(be, o.Shape, model.Options{Kind: model.Scorer, Trainable: true, Seed: o.Seed, ScoreInit: c.HeadStd(o.Shape.Hidden)}); err == nil {
			cr, err = critic.New(m, c, o.Steps, o.Batch, o.Seed)
		}
	}
	if err != nil {
		return 0, err
	}
	defer cr.Close()
	half := len(j.Seqs) / 2
	if half == 0 {
		return 0, fmt.Errorf("trainer: fresh discriminator: %d rows: needs at least 2", len(j.Seqs))
	}
	pairs := func(at []int) critic.Batch {
		b := critic.Batch{Students: model.Pick(j.Seqs, at), Teachers: model.Pick(j.Batch.Teachers, at), Group: allGroups(len(at)), Skip: make([]bool, len(at))}
		for i, p := range at {
			b.Skip[i] = j.Batch.TeacherCut[p] // cut by our limit: told apart by the missing end alone
		}
		return b
	}
	for step := range o.Steps {
		at := make([]int, o.Batch)
		for i := range at {
			at[i] = philox.IntN(half, o.Seed, philox.Replay, uint64(step), uint64(i), 1)
		}
		b := pairs(at)
		if err := score(cr, &b); err != nil {
			return 0, err
		}
		if _, err := cr.Update(b); err != nil {
			return 0, err
		}
	}
	var rest []int
	for i := half; i < len(j.Seqs); i++ {
		rest = append(rest, i)
	}
	b := pairs(rest)
	if err := score(cr, &b); err != nil {
		return 0, err
	}
	return b.Signal().Acc, nil
}

func score(cr *critic.Critic, b *critic.Batch) (err error) {
	if b.FreshS, err = cr.Score(b.Students); err != nil {
		return err
	}
	b.FreshP, err = cr.Score(b.Teachers)
	return err
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
		prompt, err := enc.prompt(r)
		if err != nil {
			return nil, err
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

// lengths measures rows in tokens for data.Validate.
type lengths struct{ tok *tokenizer.Tokenizer }

// Lengths measures prompts and answers with tok.
func Lengths(tok *tokenizer.Tokenizer) data.Encoder { return lengths{tok} }

// PromptLen is the number of tokens of a rendered prompt.
func (l lengths) PromptLen(msgs []data.Message) (int, error) {
	ids, err := encoder{tok: l.tok}.prompt(data.Row{Messages: msgs})
	return len(ids), err
}

// AnswerLen is the number of tokens of an answer with its end.
func (l lengths) AnswerLen(text string) int {
	return len(encoder{tok: l.tok}.whole(text))
}
