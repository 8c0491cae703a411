package quality

import (
	"maps"
	"math"
	"slices"

	"gad/data"
	"gad/internal/report"
	"gad/internal/textmetrics"
)

// measure computes one figure of an evaluation, which report.FigureOf describes.
type measure struct {
	key   string
	value func(e *Evaluation) (*float64, **[2]float64)
	// One of the two: a ratio of sums over prompts, a mean if ys is nil; or, for a figure of all
	// texts together, its values with each text left out.
	ratio   func(j *Results) (xs, ys []float64)
	without func(j *Results) []float64
}

var measures = []measure{
	{"check", func(e *Evaluation) (*float64, **[2]float64) { return e.Check, &e.CheckCI95 },
		func(j *Results) (xs, ys []float64) {
			for _, v := range j.checks {
				x, y := v.Score, 1.0
				if v.None() {
					x, y = 0, 0
				}
				xs, ys = append(xs, x), append(ys, y)
			}
			if j.Eval.Unchecked == 0 { // then Wilson's interval may hold
				ys = nil
			}
			return xs, ys
		}, nil},
	{"rouge_l", func(e *Evaluation) (*float64, **[2]float64) { return &e.RougeL, &e.RougeLCI95 },
		func(j *Results) (xs, ys []float64) { return j.RougeL, nil }, nil},
	{"teacher_nll",
		func(e *Evaluation) (*float64, **[2]float64) { return &e.TeacherNLL, &e.TeacherNLLCI95 },
		func(j *Results) (xs, ys []float64) { return j.NLL, j.eachTeacherTokens() }, nil},
	{"reverse_kl",
		func(e *Evaluation) (*float64, **[2]float64) { return e.ReverseKL, &e.ReverseKLCI95 },
		func(j *Results) (xs, ys []float64) { return j.student.exact, j.student.tokens }, nil},
	{"reverse_kl_sampled",
		func(e *Evaluation) (*float64, **[2]float64) {
			return e.ReverseKLSampled,
				&e.ReverseKLSampledCI95
		},
		func(j *Results) (xs, ys []float64) { return j.student.sampled, j.student.tokens }, nil},
	{"forward_kl",
		func(e *Evaluation) (*float64, **[2]float64) { return e.ForwardKL, &e.ForwardKLCI95 },
		func(j *Results) (xs, ys []float64) { return j.teacher.exact, j.teacher.tokens }, nil},
	{"forward_kl_sampled",
		func(e *Evaluation) (*float64, **[2]float64) {
			return e.ForwardKLSampled,
				&e.ForwardKLSampledCI95
		},
		func(j *Results) (xs, ys []float64) { return j.teacher.sampled, j.teacher.tokens }, nil},
	{"fluency", func(e *Evaluation) (*float64, **[2]float64) { return e.Fluency, &e.FluencyCI95 },
		func(j *Results) (xs, ys []float64) { return j.student.other, j.student.tokens }, nil},
	{"len_ratio",
		func(e *Evaluation) (*float64, **[2]float64) { return &e.LenRatio, &e.LenRatioCI95 },
		func(j *Results) (xs, ys []float64) { return floatsOf(j.Tokens), j.eachTeacherTokens() },
		nil},
	{"distinct_1",
		func(e *Evaluation) (*float64, **[2]float64) { return &e.Distinct1, &e.Distinct1CI95 }, nil,
		func(j *Results) []float64 { return textmetrics.DistinctWithout(j.Answers, 1) }},
	{"distinct_2",
		func(e *Evaluation) (*float64, **[2]float64) { return &e.Distinct2, &e.Distinct2CI95 }, nil,
		func(j *Results) []float64 { return textmetrics.DistinctWithout(j.Answers, 2) }},
	{"truncated_frac",
		func(e *Evaluation) (*float64, **[2]float64) {
			return &e.TruncatedFrac,
				&e.TruncatedFracCI95
		},
		func(j *Results) (xs, ys []float64) {
			for _, cut := range j.Truncated {
				x := 0.0
				if cut {
					x = 1
				}
				xs = append(xs, x)
			}
			return xs, nil
		}, nil},
	{"repeat_frac",
		func(e *Evaluation) (*float64, **[2]float64) { return &e.RepeatFrac, &e.RepeatFracCI95 },
		func(j *Results) (xs, ys []float64) { return j.Repeat, nil }, nil},
}

// eachTeacherTokens returns the number of tokens of each teacher's answer [P].
func (j *Results) eachTeacherTokens() (xs []float64) {
	for p := range j.Batch {
		xs = append(xs, j.teacherTokens(p))
	}
	return xs
}

// floatsOf converts xs to float64.
func floatsOf(xs []int) (out []float64) {
	for _, x := range xs {
		out = append(out, float64(x))
	}
	return out
}

// Intervals sets the 95 % intervals of j's figures: a bootstrap over prompts, Wilson's for shares
// of rows, the jackknife for distinct n-grams.
func (j *Results) Intervals(seed uint64) {
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

// Minus returns j's figures minus first's, by the keys of Evaluation. The intervals of the
// differences are paired: each draw takes the same prompts of both. Students with different
// tokenizers have no difference in teacher NLL and length; students whose fresh discriminators were
// trained differently have none in their accuracy.
func (j *Results) Minus(first *Results, sameTokens bool, seed uint64) map[string]Difference {
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
	same := first.Eval.FreshDSteps == j.Eval.FreshDSteps &&
		first.Eval.FreshDSeeds == j.Eval.FreshDSeeds && first.Eval.FreshDRead == j.Eval.FreshDRead
	if a, b := first.Eval.FreshDAcc, j.Eval.FreshDAcc; a != nil && b != nil && same {
		out["fresh_d_acc"] = Difference{*b - *a,
			finite(j.freshVerdicts.difference(first.freshVerdicts, seed))}
	}
	return out
}

// Figure is a figure of an evaluation for people.
type Figure struct {
	Key, Name string
	Better    int // 1: more is better, -1: less is better, 0: neither
	Value     float64
	CI95      *[2]float64
}

// Figures lists the figures that e has, in the order in which they are shown. Shares of labels
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
				list = append(list, Figure{"label: " + label, "  " + label, 0, share,
					finite(textmetrics.Wilson(int(math.Round(share*float64(e.Rows))), e.Rows))})
			}
		}
	}
	return list
}

// Row is one row of an evaluation and one student, a line of gad eval --output.
// The names are those of a data set, so that gad reads the file as one.
type Row struct {
	Model      string         `json:"model"`
	Row        int            `json:"row"` // in the data
	Content    []data.Message `json:"content"`
	Tools      data.JSON      `json:"tools,omitempty"`
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
	// By fresh discriminator: 1 where it ranks the teacher's answer higher, 0 where the student's,
	// 0.5 where both are equal; null where it was not tested.
	Fresh []*float64 `json:"fresh_d,omitempty"`
}

// Rows returns the rows that are done, for gad eval --output.
func (j *Results) Rows(name string, set *data.Set) (list []Row, err error) {
	for p, row := range j.Batch {
		if !j.Done[p] {
			continue
		}
		r, err := set.Row(row.Index)
		if err != nil {
			return nil, err
		}
		out := Row{Model: name, Row: row.Index, Content: r.Messages, Tools: r.Tools,
			Teacher: row.TeacherText, Response: j.Answers[p],
			RougeL: j.RougeL[p], Tokens: j.Tokens[p], Truncated: j.Truncated[p]}
		if j.NLL != nil {
			nll := j.NLL[p] / max(j.teacherTokens(p), 1)
			out.TeacherNLL = finiteOr(nll)
		}
		if j.student.tokens != nil {
			out.ReverseKL, out.ForwardKL =
				finiteOr(j.student.exact[p]/j.student.tokens[p]),
				finiteOr(j.teacher.exact[p]/j.teacher.tokens[p])
			out.Fluency = finiteOr(j.student.other[p] / j.student.tokens[p])
		}
		if j.checks != nil {
			out.Check, out.Label = finiteOr(j.checks[p].Score), j.checks[p].Label
		}
		for _, seed := range j.freshVerdicts {
			out.Fresh = append(out.Fresh, finiteOr(seed[p]))
		}
		list = append(list, out)
	}
	return list, nil
}

// finiteOr returns x, or nil if JSON has no number for it.
func finiteOr(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// finite returns a pair of finite numbers, or nil if one is not finite: JSON has no number for it.
func finite(x [2]float64) *[2]float64 {
	if math.IsNaN(x[0]) || math.IsNaN(x[1]) || math.IsInf(x[0], 0) || math.IsInf(x[1], 0) {
		return nil
	}
	return &x
}
