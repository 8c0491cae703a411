package quality

import (
	"slices"

	"gad/internal/fault"
	"gad/model"
)

// divergences holds sums over the tokens of one answer per row under two models, the student and
// another, in nats.
type divergences struct {
	tokens []float64 // [P] number of tokens
	// [P] KL(one||other) over the vocabulary; one is the model that stands for the answer's author
	exact   []float64
	sampled []float64 // [P] log one - log other, of the answer's tokens
	other   []float64 // [P] log p under the other model
}

// MeasureDivergence measures the divergence of the student m from another model, which reads the
// same tokens: in the student's answers KL(m||other), in the teacher's KL(other||m), each exact
// over the vocabulary and estimated from the answers' tokens; and the other model's log-probability
// of the student's answers. Both distributions are at temperature 1, whatever temperature the
// answers were sampled at. The figures are means over all tokens. name is the other model's name,
// for people.
//
// If one of the models has a larger vocabulary, see model.Model.Divergences; an answer of the
// student is then read up to the first token that one of them lacks.
func (j *Results) MeasureDivergence(m, other *model.Model, name string, o Options) error {
	n, vocab := len(j.Batch), min(m.Vocab(), other.Vocab())
	e := &j.Eval
	e.Against, e.AgainstCut = name, 0
	// neighbours of one prompt share it in a pack
	seqs := slices.Concat(j.Drawn, j.Batch.Teachers())
	for p, s := range seqs[:n] {
		lacks := func(id int32) bool { return int(id) >= vocab }
		if i := slices.IndexFunc(s.Response(), lacks); i >= 0 {
			seqs[p] = s.Upto(s.Prompt() + i)
			e.AgainstCut++
		}
	}
	seqs, from := o.Chunks.SplitAll(seqs)
	all := 0
	for _, s := range seqs {
		all += len(s.IDs)
	}
	advance, done := o.Stages.Begin("against "+name+", tokens", all)
	defer done()
	both := divergences{make([]float64, 2*n), make([]float64, 2*n), make([]float64, 2*n),
		make([]float64, 2*n)}
	for _, pack := range model.Packs(seqs, min(o.MaxTokens, shownTokens)) {
		if o.stopped() {
			return fault.ErrInterrupted
		}
		ds, err := m.Divergences(other, model.Pick(seqs, pack))
		if err != nil {
			return err
		}
		tokens := 0
		for i, d := range ds {
			p := from[pack[i]]
			tokens += len(seqs[pack[i]].IDs)
			both.tokens[p] += float64(len(d.PQ))
			for t := range d.PQ {
				exact, sampled := d.PQ[t], d.LogP[t]-d.LogQ[t]
				if p >= n {
					exact, sampled = d.QP[t], -sampled
				}
				both.exact[p] += exact
				both.sampled[p] += sampled
				both.other[p] += d.LogQ[t]
			}
		}
		advance(tokens)
	}
	of := func(lo, hi int) divergences {
		return divergences{both.tokens[lo:hi], both.exact[lo:hi], both.sampled[lo:hi], both.other[lo:hi]}
	}
	j.student, j.teacher = of(0, n), of(n, 2*n)
	mean := func(xs, tokens []float64) *float64 {
		var sum, of float64
		for p := range xs {
			sum, of = sum+xs[p], of+tokens[p]
		}
		return finiteOr(sum / of)
	}
	e.ReverseKL, e.ReverseKLSampled =
		mean(j.student.exact, j.student.tokens), mean(j.student.sampled, j.student.tokens)
	e.ForwardKL, e.ForwardKLSampled =
		mean(j.teacher.exact, j.teacher.tokens), mean(j.teacher.sampled, j.teacher.tokens)
	e.Fluency = mean(j.student.other, j.student.tokens)
	return nil
}
