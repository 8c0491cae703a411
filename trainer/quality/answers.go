// Package quality measures a student on held-out rows: it compares the student's answers with the
// teacher's, by figures and by fresh discriminators, trained for this alone (doc/evaluation.md).
//
//	answers.go   the answers of a student, and its NLL of the teacher's
//	figures.go   the figures of an evaluation, their intervals and differences
//	against.go   the divergence of a student from another model
//	fresh.go     fresh discriminators, and their number of steps for a time limit
//	verdicts.go  verdicts of several of them on each pair
//	pace.go      a short measurement of the machine's speed
//	plan.go      the time and memory of an evaluation
//	fidelity.go  how well a reward orders a student's answers to one prompt
package quality

import (
	"context"
	"errors"
	"slices"
	"time"

	"gad/data"
	"gad/internal/fault"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/checker"
	"gad/trainer/encode"
)

// Results holds a student's answers to held-out rows and the teacher's, with the figures of each
// row. A row that is not Done has none.
type Results struct {
	Batch     encode.Batch
	Done      []bool      // [P]
	Answers   []string    // [P] decoded, without control tokens
	Seqs      []model.Seq // [P] as the discriminator would read them
	Drawn     []model.Seq // [P] as sampled, with the end that the student sampled
	Tokens    []int       // [P] of the answer, its end included
	Truncated []bool      // [P]
	RougeL    []float64   // [P]
	Repeat    []float64   // [P] share of tokens in repeated 4-grams
	NLL       []float64   // [P] nats of the teacher's whole answer; nil before TeacherNLL

	Eval Evaluation

	student, teacher divergences // to another model, in each one's answers; see MeasureDivergence

	CheckerSaid string // the last line that the checker wrote to standard error

	checks        []checker.Verdict // [P]; nil without a checker
	freshVerdicts verdicts          // verdicts of the fresh discriminators; nil without them
}

// Evaluation holds the figures of a student on held-out rows, each with a 95 % interval;
// doc/evaluation.md explains how each interval is computed.
type Evaluation struct {
	Model         string  `json:"model,omitempty"` // if several are compared
	Rows          int     `json:"rows"`
	Temperature   float64 `json:"temperature"`
	RougeL        float64 `json:"rouge_l"`
	TeacherNLL    float64 `json:"teacher_nll"` // nats per token of the teacher's answers, temperature 1
	LenRatio      float64 `json:"len_ratio"`
	Distinct1     float64 `json:"distinct_1"`
	Distinct2     float64 `json:"distinct_2"`
	TruncatedFrac float64 `json:"truncated_frac"`
	RepeatFrac    float64 `json:"repeat_frac"`

	// Intervals. Absent before Intervals, and where an end is not finite.
	RougeLCI95        *[2]float64 `json:"rouge_l_ci95,omitempty"`
	TeacherNLLCI95    *[2]float64 `json:"teacher_nll_ci95,omitempty"`
	LenRatioCI95      *[2]float64 `json:"len_ratio_ci95,omitempty"`
	Distinct1CI95     *[2]float64 `json:"distinct_1_ci95,omitempty"`
	Distinct2CI95     *[2]float64 `json:"distinct_2_ci95,omitempty"`
	TruncatedFracCI95 *[2]float64 `json:"truncated_frac_ci95,omitempty"`
	RepeatFracCI95    *[2]float64 `json:"repeat_frac_ci95,omitempty"`

	// Of a checker; absent without one.
	Check     *float64           `json:"check,omitempty"`     // mean score
	Unchecked int                `json:"unchecked,omitempty"` // answers without a score, left out
	CheckCI95 *[2]float64        `json:"check_ci95,omitempty"`
	Labels    map[string]float64 `json:"labels,omitempty"` // share of the rows by label

	// Comparison with another model, at temperature 1; absent without one, or without any token to
	// compare at. See Results.MeasureDivergence.
	Against              string      `json:"against,omitempty"`     // the other model
	AgainstCut           int         `json:"against_cut,omitempty"` // answers that hold a token that one of the models lacks, and are read up to there
	ReverseKL            *float64    `json:"reverse_kl,omitempty"`
	ReverseKLCI95        *[2]float64 `json:"reverse_kl_ci95,omitempty"`
	ReverseKLSampled     *float64    `json:"reverse_kl_sampled,omitempty"`
	ReverseKLSampledCI95 *[2]float64 `json:"reverse_kl_sampled_ci95,omitempty"`
	ForwardKL            *float64    `json:"forward_kl,omitempty"`
	ForwardKLCI95        *[2]float64 `json:"forward_kl_ci95,omitempty"`
	ForwardKLSampled     *float64    `json:"forward_kl_sampled,omitempty"`
	ForwardKLSampledCI95 *[2]float64 `json:"forward_kl_sampled_ci95,omitempty"`
	Fluency              *float64    `json:"fluency,omitempty"`
	FluencyCI95          *[2]float64 `json:"fluency_ci95,omitempty"`

	// Of fresh discriminators; absent where none was trained. FreshDAcc is the held-out
	// accuracy over pairs that differ, mean over seeds; 0.5 is indistinguishable. It and
	// its interval are absent where the trainings did not learn (Fresh.Learned), or
	// where no pair differs.
	FreshDAcc         *float64    `json:"fresh_d_acc,omitempty"`
	FreshDCI95        *[2]float64 `json:"fresh_d_acc_ci95,omitempty"`
	FreshDTrained     *float64    `json:"fresh_d_trained,omitempty"` // accuracy on its own pairs; no interval
	FreshDControl     *float64    `json:"fresh_d_control,omitempty"`
	FreshDControlCI95 *[2]float64 `json:"fresh_d_control_ci95,omitempty"`
	FreshDTies        *float64    `json:"fresh_d_ties,omitempty"` // share of the rows whose two answers are the same
	FreshDTiesCI95    *[2]float64 `json:"fresh_d_ties_ci95,omitempty"`
	FreshDLearned     *bool       `json:"fresh_d_learned,omitempty"`
	FreshDSteps       int         `json:"fresh_d_steps,omitempty"` // of each training
	FreshDSeeds       int         `json:"fresh_d_seeds,omitempty"`
	FreshDRead        int         `json:"fresh_d_read,omitempty"` // tokens of an answer that it reads; absent: all
	FreshDNote        string      `json:"fresh_d_note,omitempty"` // what was shortened, or why there is none
}

// Options holds the settings of an evaluation.
type Options struct {
	MaxPrompt, MaxResponse int
	// if on, answers are thoughts in chunks, of MaxResponse tokens in all, and the teacher's
	// answers are read in the same chunks
	Chunks           model.Chunks
	Temperature      float64 // 0 is greedy
	Seed             uint64
	Slots, MaxTokens int
	// model that Results.MeasureDivergence will compare with, for PlanOf; nil: none
	Against *model.Config
	Quant   string      // model.Options.Quant, for PlanOf
	Stages  data.Stages // nil shows nothing
	// asked between parts: true ends the evaluation with fault.ErrInterrupted; nil: never
	Stop func() bool
}

// stopped reports whether the evaluation has been asked to end.
func (o Options) stopped() bool { return o.Stop != nil && o.Stop() }

// Evaluate answers the given rows, and measures the answers and the NLL of the teacher's.
func Evaluate(m *model.Model, tok *tokenizer.Tokenizer, set *data.Set, rows []int,
	o Options) (*Results, error) {
	b, err := EncodeRows(tok, set, rows, o)
	if err != nil {
		return nil, err
	}
	j, err := Answer(m, tok, b, o)
	if err != nil {
		return j, err
	}
	return j, j.TeacherNLL(m, o)
}

// EncodeRows returns the given rows as token ids.
func EncodeRows(tok *tokenizer.Tokenizer, set *data.Set, rows []int,
	o Options) (encode.Batch, error) {
	enc := encode.Encoder{Tok: tok, MaxPrompt: o.MaxPrompt, MaxResponse: o.MaxResponse}
	advance, done := o.Stages.Begin("encoding", len(rows))
	defer done()
	var all encode.Batch
	const some = 64 // rows between two looks at the bar
	for lo := 0; lo < len(rows); lo += some {
		if o.stopped() {
			return nil, fault.ErrInterrupted
		}
		b, err := enc.Batch(set, rows[lo:min(lo+some, len(rows))])
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
		advance(len(b))
	}
	return all, nil
}

// Answer samples the student's answers to the rows of b, and measures them. If it is stopped, the
// error wraps fault.ErrInterrupted and the complete answers are returned.
func Answer(m *model.Model, tok *tokenizer.Tokenizer, b encode.Batch,
	o Options) (*Results, error) {
	n := len(b)
	j := &Results{Batch: b, Done: make([]bool, n), Answers: make([]string, n),
		Seqs: make([]model.Seq, n), Drawn: make([]model.Seq, n), Tokens: make([]int, n),
		Truncated: make([]bool, n), RougeL: make([]float64, n), Repeat: make([]float64, n)}
	j.Eval = Evaluation{Rows: n, Temperature: o.Temperature}
	keys := make([]uint64, n)
	for i, r := range b {
		keys[i] = uint64(r.Index)
	}
	// Counted in tokens, so that the bar moves before the first answer has ended; the
	// rest of one that ends early counts as done.
	advance, done := o.Stages.Begin("answers, tokens", n*o.MaxResponse)
	defer done()
	ending := encode.Encoder{Tok: tok}.Ending()
	_, err := m.GenerateAll(b.Prompts(), keys,
		model.SampleOptions{N: 1, MaxNew: o.MaxResponse, Chunks: o.Chunks, EOS: tok.EOS(),
			Seed: o.Seed, Slots: o.Slots,
			Sampling: model.Sampling{Temperature: o.Temperature, TopP: 1}, Stop: o.Stop,
			Done: func(p, _ int, c model.Completion) {
				j.Done[p], j.Tokens[p], j.Truncated[p] = true, len(c.IDs), c.Truncated
				j.Answers[p] = tok.Decode(c.IDs, true)
				j.Seqs[p] = ending.Seq(b[p].Prompt, c.IDs, c.Truncated)
				j.Drawn[p] = model.Answer(slices.Concat(b[p].Prompt, c.IDs), len(b[p].Prompt))
				j.RougeL[p] = textmetrics.RougeL(j.Answers[p], b[p].TeacherText)
				j.Repeat[p] = textmetrics.RepeatFrac(c.IDs)
				advance(o.MaxResponse - len(c.IDs))
			}}, advance)
	if errors.Is(err, model.ErrStopped) {
		return j, fault.ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	e := &j.Eval
	var studentTokens, teacherTokens float64
	for p := range n {
		e.RougeL += j.RougeL[p] / float64(n)
		e.RepeatFrac += j.Repeat[p] / float64(n)
		if j.Truncated[p] {
			e.TruncatedFrac += 1 / float64(n)
		}
		studentTokens += float64(j.Tokens[p])
		teacherTokens += j.teacherTokens(p)
	}
	e.LenRatio = studentTokens / teacherTokens
	e.Distinct1, e.Distinct2 =
		textmetrics.DistinctN(j.Answers, 1), textmetrics.DistinctN(j.Answers, 2)
	return j, nil
}

// shownTokens bounds the tokens of a pass if there is a progress bar or a stop function: results do
// not depend on how sequences are packed.
const shownTokens = 2048

// teacherTokens returns the number of tokens of the teacher's answer to row p.
func (j *Results) teacherTokens(p int) float64 {
	return float64(j.Batch[p].Teacher.Trained())
}

// TeacherNLL measures the student's NLL of the teacher's answers: the mean over tokens of -log
// p(teacher's token), at temperature 1.
func (j *Results) TeacherNLL(m *model.Model, o Options) error {
	limit, all := o.MaxTokens, 0
	seqs, from := o.Chunks.SplitAll(j.Batch.Teachers())
	if o.Stages != nil {
		limit = min(limit, shownTokens)
	}
	for _, s := range seqs {
		all += len(s.IDs)
	}
	advance, done := o.Stages.Begin("teacher NLL, tokens", all)
	defer done()
	logpST := make([][]float32, len(seqs))
	packs := model.Packs(seqs, limit)
	if m.Ranks().Size() > 1 {
		var err error
		if logpST, _, err = m.AllLogProbs(seqs, 1, limit); err != nil {
			return err
		}
		packs = nil
		advance(all)
	}
	for _, pack := range packs {
		if o.stopped() {
			return fault.ErrInterrupted
		}
		logp, _, err := m.LogProbs(model.Pick(seqs, pack), 1)
		if err != nil {
			return err
		}
		tokens := 0
		for i, p := range pack {
			logpST[p] = logp[i]
			tokens += len(seqs[p].IDs)
		}
		advance(tokens)
	}
	j.NLL = make([]float64, len(j.Batch))
	var sum, tokens float64
	for p, row := range logpST {
		for _, x := range row {
			j.NLL[from[p]] -= float64(x)
			sum -= float64(x)
			tokens++
		}
	}
	j.Eval.TeacherNLL = sum / max(tokens, 1)
	return nil
}

// TryChecker asks the checker command about the teacher's answer to the first of the rows at of
// set, within the deadline.
func TryChecker(ctx context.Context, set *data.Set, at []int, command string,
	deadline time.Duration) error {
	_, err := checker.New(command, deadline).TryTeacher(ctx, set, at[0],
		checker.Trial{Rows: len(at)})
	return err
}

// Check scores j's answers to rows of set by the checker command, within the deadline, and sets the
// mean score and the shares of labels in j.Eval.
func (j *Results) Check(ctx context.Context, set *data.Set, command string,
	deadline time.Duration) error {
	rows, err := checker.Rows(set, j.Batch.Indices(), j.Answers, j.Truncated)
	if err != nil {
		return err
	}
	c := checker.New(command, deadline)
	verdicts, err := c.Check(ctx, rows)
	if err != nil {
		return err
	}
	mean, none := checker.Mean(verdicts)
	j.checks, j.Eval.Labels, j.Eval.Unchecked = verdicts, checker.Shares(verdicts), none
	if none < len(verdicts) {
		j.Eval.Check = &mean
	}
	if lines := c.Said(); len(lines) > 0 {
		j.CheckerSaid = lines[len(lines)-1]
	}
	return nil
}
