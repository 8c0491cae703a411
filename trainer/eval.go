package trainer

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"gad/data"
	"gad/internal/checker"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/tokenizer"
)

// Stages shows the progress of a long part of an evaluation, as data.Stages does of one of a data set.
type Stages = data.Stages

// Judged is a student's answers to held-out rows beside the teacher's, with the
// figures of each row. A row that is not Done has none.
type Judged struct {
	Batch     *Batch
	Done      []bool      // [P]
	Answers   []string    // [P] decoded, without control tokens
	Seqs      []model.Seq // [P] as the discriminator would read them
	Drawn     []model.Seq // [P] as they were sampled: the end is the one that the student drew
	Tokens    []int       // [P] of the answer, its end included
	Truncated []bool      // [P]
	RougeL    []float64   // [P]
	Repeat    []float64   // [P] share of tokens in repeated 4-grams
	NLL       []float64   // [P] nats of the teacher's whole answer; nil before TeacherNLL

	Eval Evaluation

	student, teacher gaps // to another model, in the answers of each; without rows before Against

	checks []checker.Verdict // [P]; nil without a checker
	told   verdicts          // of the fresh discriminators; nil without
}

// Evaluation are the figures of a student on held-out rows. Each has a 95 %
// interval; how each interval is made: doc/evaluation.md.
type Evaluation struct {
	Model         string  `json:"model,omitempty"` // where several are compared
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
	Check     *float64           `json:"check,omitempty"` // mean score
	CheckCI95 *[2]float64        `json:"check_ci95,omitempty"`
	Labels    map[string]float64 `json:"labels,omitempty"` // share of the rows by label

	// Of another model beside the student, at temperature 1; absent without one, or without
	// any token to compare at. See Judged.Against.
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
	FreshDTrained     *float64    `json:"fresh_d_trained,omitempty"` // accuracy on the pairs that it learned from: no sample of others, so no interval
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

// EvalOptions say how a student is evaluated.
type EvalOptions struct {
	MaxPrompt, MaxResponse int
	Temperature            float64 // 0 is greedy
	Seed                   uint64
	Slots, MaxTokens       int
	Against                *model.Config // of the model that Judged.Against is to compare with, for PlanEval; nil is none
	Quant                  string        // model.Options.Quant, for PlanEval
	Stages                 Stages        // nil shows nothing
	Stop                   func() bool   // true ends the evaluation with ErrInterrupted; nil is never
}

func (o EvalOptions) stopped() bool { return o.Stop != nil && o.Stop() }

// Evaluate answers the given rows and compares the answers with the teacher's.
func Evaluate(m *model.Model, tok *tokenizer.Tokenizer, set *data.Set, rows []int, o EvalOptions) (*Judged, error) {
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

// EncodeRows are the given rows as token ids.
func EncodeRows(tok *tokenizer.Tokenizer, set *data.Set, rows []int, o EvalOptions) (*Batch, error) {
	enc := encoder{tok: tok, maxPrompt: o.MaxPrompt, maxResponse: o.MaxResponse}
	advance, done := o.Stages.Begin("encoding", len(rows))
	defer done()
	all := &Batch{}
	const some = 64 // rows between two looks at the bar
	for lo := 0; lo < len(rows); lo += some {
		if o.stopped() {
			return nil, ErrInterrupted
		}
		b, err := enc.batch(set, rows[lo:min(lo+some, len(rows))])
		if err != nil {
			return nil, err
		}
		all.append(b)
		advance(len(b.Rows))
	}
	return all, nil
}

// append adds the rows of other.
func (b *Batch) append(other *Batch) {
	b.Rows = append(b.Rows, other.Rows...)
	b.Prompts = append(b.Prompts, other.Prompts...)
	b.Teachers = append(b.Teachers, other.Teachers...)
	b.TeacherCut = append(b.TeacherCut, other.TeacherCut...)
	b.TeacherText = append(b.TeacherText, other.TeacherText...)
	b.PromptText = append(b.PromptText, other.PromptText...)
}

// Answer has the student answer the rows of b, and measures the answers. When it is
// stopped, the error wraps ErrInterrupted and the answers that were complete are there.
func Answer(m *model.Model, tok *tokenizer.Tokenizer, b *Batch, o EvalOptions) (*Judged, error) {
	n := len(b.Rows)
	j := &Judged{Batch: b, Done: make([]bool, n), Answers: make([]string, n), Seqs: make([]model.Seq, n), Drawn: make([]model.Seq, n), Tokens: make([]int, n),
		Truncated: make([]bool, n), RougeL: make([]float64, n), Repeat: make([]float64, n)}
	j.Eval = Evaluation{Rows: n, Temperature: o.Temperature}
	keys := make([]uint64, n)
	for i, r := range b.Rows {
		keys[i] = uint64(r)
	}
	// Counted in tokens, so that the bar moves before the first answer has ended; the
	// rest of one that ends early counts as done.
	advance, done := o.Stages.Begin("answers, tokens", n*o.MaxResponse)
	defer done()
	ending := encoder{tok: tok}.ending()
	_, err := m.GenerateAll(b.Prompts, keys, model.SampleOptions{N: 1, MaxNew: o.MaxResponse, EOS: tok.EOS(), Seed: o.Seed, Slots: o.Slots,
		Sampling: model.Sampling{Temperature: o.Temperature, TopP: 1}, Stop: o.Stop,
		Done: func(p, _ int, c model.Completion) {
			j.Done[p], j.Tokens[p], j.Truncated[p] = true, len(c.IDs), c.Truncated
			j.Answers[p] = tok.Decode(c.IDs, true)
			j.Seqs[p] = ending.Seq(b.Prompts[p], c.IDs, c.Truncated)
			j.Drawn[p] = model.Seq{IDs: slices.Concat(b.Prompts[p], c.IDs), Prompt: len(b.Prompts[p])}
			j.RougeL[p] = textmetrics.RougeL(j.Answers[p], b.TeacherText[p])
			j.Repeat[p] = textmetrics.RepeatFrac(c.IDs)
			advance(o.MaxResponse - len(c.IDs))
		}}, advance)
	if errors.Is(err, model.ErrStopped) {
		return j, ErrInterrupted
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
	e.Distinct1, e.Distinct2 = textmetrics.DistinctN(j.Answers, 1), textmetrics.DistinctN(j.Answers, 2)
	return j, nil
}

func (j *Judged) teacherTokens(p int) float64 {
	return float64(len(j.Batch.Teachers[p].IDs) - j.Batch.Teachers[p].Prompt)
}

// shownTokens bounds a pass where somebody looks at a bar or may stop it: results do
// not depend on how sequences are packed.
const shownTokens = 2048

// TeacherNLL measures how probable the student finds the teacher's answers: the mean
// over tokens of -log p(teacher's token), at temperature 1.
func (j *Judged) TeacherNLL(m *model.Model, o EvalOptions) error {
	seqs, limit, all := j.Batch.Teachers, o.MaxTokens, 0
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
			return ErrInterrupted
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
	j.NLL = make([]float64, len(seqs))
	var sum, tokens float64
	for p, row := range logpST {
		for _, x := range row {
			j.NLL[p] -= float64(x)
			sum -= float64(x)
			tokens++
		}
	}
	j.Eval.TeacherNLL = sum / max(tokens, 1)
	return nil
}

// measure computes one figure of an evaluation, which report.FigureOf describes.
type measure struct {
	key   string
	value func(e *Evaluation) (*float64, **[2]float64)
	// One of the two: a ratio of sums over prompts, without ys a mean; or a figure of
	// all texts together, with its values without each of them.
	ratio   func(j *Judged) (xs, ys []float64)
	without func(j *Judged) []float64
}

var measures = []measure{
	{"check", func(e *Evaluation) (*float64, **[2]float64) { return e.Check, &e.CheckCI95 }, func(j *Judged) (xs, ys []float64) {
		for _, v := range j.checks {
			xs = append(xs, v.Score)
		}
		return xs, nil
	}, nil},
	{"rouge_l", func(e *Evaluation) (*float64, **[2]float64) { return &e.RougeL, &e.RougeLCI95 },
		func(j *Judged) (xs, ys []float64) { return j.RougeL, nil }, nil},
	{"teacher_nll", func(e *Evaluation) (*float64, **[2]float64) { return &e.TeacherNLL, &e.TeacherNLLCI95 },
		func(j *Judged) (xs, ys []float64) { return j.NLL, j.eachTeacherTokens() }, nil},
	{"reverse_kl", func(e *Evaluation) (*float64, **[2]float64) { return e.ReverseKL, &e.ReverseKLCI95 },
		func(j *Judged) (xs, ys []float64) { return j.student.exact, j.student.tokens }, nil},
	{"reverse_kl_sampled", func(e *Evaluation) (*float64, **[2]float64) { return e.ReverseKLSampled, &e.ReverseKLSampledCI95 },
		func(j *Judged) (xs, ys []float64) { return j.student.sampled, j.student.tokens }, nil},
	{"forward_kl", func(e *Evaluation) (*float64, **[2]float64) { return e.ForwardKL, &e.ForwardKLCI95 },
		func(j *Judged) (xs, ys []float64) { return j.teacher.exact, j.teacher.tokens }, nil},
	{"forward_kl_sampled", func(e *Evaluation) (*float64, **[2]float64) { return e.ForwardKLSampled, &e.ForwardKLSampledCI95 },
		func(j *Judged) (xs, ys []float64) { return j.teacher.sampled, j.teacher.tokens }, nil},
	{"fluency", func(e *Evaluation) (*float64, **[2]float64) { return e.Fluency, &e.FluencyCI95 },
		func(j *Judged) (xs, ys []float64) { return j.student.other, j.student.tokens }, nil},
	{"len_ratio", func(e *Evaluation) (*float64, **[2]float64) { return &e.LenRatio, &e.LenRatioCI95 },
		func(j *Judged) (xs, ys []float64) { return floatsOf(j.Tokens), j.eachTeacherTokens() }, nil},
	{"distinct_1", func(e *Evaluation) (*float64, **[2]float64) { return &e.Distinct1, &e.Distinct1CI95 }, nil,
		func(j *Judged) []float64 { return textmetrics.DistinctWithout(j.Answers, 1) }},
	{"distinct_2", func(e *Evaluation) (*float64, **[2]float64) { return &e.Distinct2, &e.Distinct2CI95 }, nil,
		func(j *Judged) []float64 { return textmetrics.DistinctWithout(j.Answers, 2) }},
	{"truncated_frac", func(e *Evaluation) (*float64, **[2]float64) { return &e.TruncatedFrac, &e.TruncatedFracCI95 },
		func(j *Judged) (xs, ys []float64) {
			for _, cut := range j.Truncated {
				x := 0.0
				if cut {
					x = 1
				}
				xs = append(xs, x)
			}
			return xs, nil
		}, nil},
	{"repeat_frac", func(e *Evaluation) (*float64, **[2]float64) { return &e.RepeatFrac, &e.RepeatFracCI95 },
		func(j *Judged) (xs, ys []float64) { return j.Repeat, nil }, nil},
}

func (j *Judged) eachTeacherTokens() (xs []float64) {
	for p := range j.Batch.Teachers {
		xs = append(xs, j.teacherTokens(p))
	}
	return xs
}

func floatsOf(xs []int) (out []float64) {
	for _, x := range xs {
		out = append(out, float64(x))
	}
	return out
}

// Intervals notes the 95 % intervals of j's figures: a bootstrap over prompts, for
// shares of rows Wilson's, for distinct n-grams the jackknife.
func (j *Judged) Intervals(seed uint64) {
	for _, m := range measures {
		x, ci := m.value(&j.Eval)
		switch {
		case x == nil:
		case m.without != nil:
			ends := textmetrics.Jackknife(*x, m.without(j))
			*ci = finite([2]float64{max(0, ends[0]), min(1, ends[1])})
		default:
			xs, ys := m.ratio(j)
			*ci = finite(textmetrics.RatioInterval(xs, ys, seed))
		}
	}
}

// Difference is a figure of one student minus another's on the same rows.
type Difference struct {
	Value float64     `json:"value"`
	CI95  *[2]float64 `json:"ci95,omitempty"`
}

// Minus are the differences of j's figures to those of first, by the keys of
// Evaluation. Their intervals are paired: each draw takes the same prompts of both.
// Students with other tokens have no difference in teacher NLL and length, those whose
// fresh discriminators were trained otherwise none in their accuracy.
func (j *Judged) Minus(first *Judged, sameTokens bool, seed uint64) map[string]Difference {
	out := map[string]Difference{}
	for _, m := range measures {
		a, _ := m.value(&first.Eval)
		b, _ := m.value(&j.Eval)
		if a == nil || b == nil || !sameTokens && (m.key == "teacher_nll" || m.key == "len_ratio") {
			continue
		}
		d := Difference{Value: *b - *a}
		if m.without != nil {
			wa, wb := m.without(first), m.without(j)
			for i := range wb {
				wb[i] -= wa[i]
			}
			d.CI95 = finite(textmetrics.Jackknife(d.Value, wb))
		} else {
			xa, ya := m.ratio(first)
			xb, yb := m.ratio(j)
			d.CI95 = finite(textmetrics.RatioDifference(xb, yb, xa, ya, seed))
		}
		out[m.key] = d
	}
	same := first.Eval.FreshDSteps == j.Eval.FreshDSteps && first.Eval.FreshDSeeds == j.Eval.FreshDSeeds && first.Eval.FreshDRead == j.Eval.FreshDRead
	if a, b := first.Eval.FreshDAcc, j.Eval.FreshDAcc; a != nil && b != nil && same {
		out["fresh_d_acc"] = Difference{*b - *a, finite(j.told.minus(first.told, seed))}
	}
	return out
}

// Figure is a figure of an evaluation for people.
type Figure struct {
	Key, Name string
	Better    int // 1: more is better, -1: less is better, 0: neither is known
	Value     float64
	CI95      *[2]float64
}

// Figures lists what e has, in the order in which it is shown. Shares of labels
// follow the checker's score.
func (e *Evaluation) Figures() (list []Figure) {
	for _, m := range measures {
		x, ci := m.value(e)
		if x == nil {
			continue
		}
		f, _ := report.FigureOf(m.key)
		list = append(list, Figure{m.key, f.Name, f.Better, *x, *ci})
		if m.key == "check" {
			for _, label := range slices.Sorted(maps.Keys(e.Labels)) {
				share := e.Labels[label]
				list = append(list, Figure{"label: " + label, "  " + label, 0, share, finite(textmetrics.Wilson(int(math.Round(share*float64(e.Rows))), e.Rows))})
			}
		}
	}
	return list
}

// EvalRow is one row of an evaluation and one student, a line of gad eval --output.
// The names are those of a data set, so that gad reads the file as one.
type EvalRow struct {
	Model      string         `json:"model"`
	Row        int            `json:"row"` // in the data
	Content    []data.Message `json:"content"`
	Teacher    string         `json:"teacher_response"`
	Response   string         `json:"response"` // the student's answer
	RougeL     float64        `json:"rouge_l"`
	Tokens     int            `json:"tokens"` // of the student's answer, its end included
	Truncated  bool           `json:"truncated"`
	TeacherNLL *float64       `json:"teacher_nll,omitempty"` // nats per token of the teacher's answer
	ReverseKL  *float64       `json:"reverse_kl,omitempty"`  // these three as in Evaluation, of this row's tokens
	ForwardKL  *float64       `json:"forward_kl,omitempty"`
	Fluency    *float64       `json:"fluency,omitempty"`
	Check      *float64       `json:"check,omitempty"`
	Label      string         `json:"label,omitempty"`
	// By fresh discriminator: 1 where it ranks the teacher's answer higher, 0 where the
	// student's, 0.5 where both are equal; null where it was not asked.
	Fresh []*float64 `json:"fresh_d,omitempty"`
}

// Rows are the rows that are done.
func (j *Judged) Rows(name string, set *data.Set) (list []EvalRow, err error) {
	for p, row := range j.Batch.Rows {
		if !j.Done[p] {
			continue
		}
		r, err := set.Row(row)
		if err != nil {
			return nil, err
		}
		out := EvalRow{Model: name, Row: row, Content: r.Messages, Teacher: j.Batch.TeacherText[p], Response: j.Answers[p],
			RougeL: j.RougeL[p], Tokens: j.Tokens[p], Truncated: j.Truncated[p]}
		if j.NLL != nil {
			nll := j.NLL[p] / max(j.teacherTokens(p), 1)
			out.TeacherNLL = finiteOr(nll)
		}
		if j.student.tokens != nil {
			out.ReverseKL, out.ForwardKL = finiteOr(j.student.exact[p]/j.student.tokens[p]), finiteOr(j.teacher.exact[p]/j.teacher.tokens[p])
			out.Fluency = finiteOr(j.student.other[p] / j.student.tokens[p])
		}
		if j.checks != nil {
			out.Check, out.Label = &j.checks[p].Score, j.checks[p].Label
		}
		for _, seed := range j.told {
			out.Fresh = append(out.Fresh, finiteOr(seed[p]))
		}
		list = append(list, out)
	}
	return list, nil
}

// finiteOr is x, nil where JSON has no number for it.
func finiteOr(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// validate evaluates the student on the first rows of the validation data, greedily.
func (t *Trainer) validate(m Metrics) error {
	t.ranks.Enter("validation")
	j, err := Evaluate(t.actor.Model(), t.tok, t.val, t.valRows, EvalOptions{
		MaxPrompt: t.cfg.Data.MaxPrompt, MaxResponse: t.cfg.Data.MaxResponse, Seed: t.cfg.Trainer.Seed,
		Slots: t.cfg.Rollout.MaxNumSeqs, MaxTokens: t.cfg.Actor.MaxTokenLen,
		Stages: func(name string, total int) (func(int), func()) { return t.rec.Stage("validation: "+name, total) }})
	if err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	m["val/rouge_l"], m["val/teacher_nll"], m["val/len_ratio"] = j.Eval.RougeL, j.Eval.TeacherNLL, j.Eval.LenRatio
	if err := t.judge(m, j); err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	t.noteValidation(m)
	return t.sampleValidation(j)
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

// EncodePrompt is the conversation of a row up to where the answer begins, as token ids.
func EncodePrompt(tok *tokenizer.Tokenizer, set *data.Set, row int) ([]int32, error) {
	r, err := set.Row(row)
	if err != nil {
		return nil, err
	}
	ids, err := encoder{tok: tok}.Prompt(r)
	if err != nil {
		return nil, fmt.Errorf("data: row %d: %w", row, err)
	}
	return ids, nil
}
