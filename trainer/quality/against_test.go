package quality

import (
	"errors"
	"math"
	"slices"
	"testing"

	"gad/internal/fault"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/modeltest"
)

// against is the student's answers to so many rows, at temperature 1, with the other model
// asked about them.
func against(t *testing.T, m, other *model.Model, tr heldOut, o Options) *Results {
	t.Helper()
	b, err := EncodeRows(tr.tok, tr.val, tr.valRows, o)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Answer(m, tr.tok, b, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.TeacherNLL(m, o), j.MeasureDivergence(m, other, "other", o)); err != nil {
		t.Fatal(err)
	}
	j.Intervals(1)
	return j
}

// A student against itself is at no distance; against another model its figures are those
// of each row's tokens, the sampled ones agree with the exact ones as far as a sample can,
// and with the models in each other's place forward is reverse.
func TestAgainst(t *testing.T) {
	t.Parallel()
	be := modeltest.Backend(t)
	tr := openHeldOut(t, be)
	m := tr.m
	other, err := model.Load(be, modeltest.Blank(t), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	o := Options{MaxPrompt: 64, MaxResponse: 14, Temperature: 1, Seed: 1, Slots: 8, MaxTokens: 512}

	e := against(t, m, m, tr, o).Eval
	for what, x := range map[string]*float64{"reverse": e.ReverseKL,
		"reverse, sampled": e.ReverseKLSampled, "forward": e.ForwardKL,
		"forward, sampled": e.ForwardKLSampled} {
		if x == nil || *x != 0 {
			t.Errorf("a student and itself: %s KL %v", what, x)
		}
	}
	if e.ReverseKLCI95 != nil || e.FluencyCI95 == nil || math.Abs(*e.Fluency) < 0.01 {
		t.Errorf("%+v", e)
	}

	j := against(t, m, other, tr, o)
	e = j.Eval
	if e.Against != "other" || e.AgainstCut != 0 || !(*e.ReverseKL > 0.5) ||
		!(*e.ForwardKL > 0.5) || !(*e.Fluency < -2) {
		t.Errorf("%+v", e)
	}
	logp, _, err := other.AllLogProbs(j.Drawn, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	mine, _, err := m.AllLogProbs(j.Drawn, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	var fluency, sampled, tokens, spread float64
	for p, s := range j.Drawn {
		if n := s.Trained(); n != j.Tokens[p] || float64(n) != j.student.tokens[p] ||
			!slices.Equal(s.IDs[:s.Prompt()], j.Batch[p].Prompt) {
			t.Errorf("row %d: %d tokens, want %d", p, n, j.Tokens[p])
		}
		for i := range logp[p] {
			fluency, sampled, tokens =
				fluency+float64(logp[p][i]), sampled+float64(mine[p][i]-logp[p][i]), tokens+1
		}
		d := j.student.sampled[p] - j.student.exact[p]
		spread += d * d
	}
	if math.Abs(fluency/tokens-*e.Fluency) > 1e-5 ||
		math.Abs(sampled/tokens-*e.ReverseKLSampled) > 1e-5 {
		t.Errorf("fluency %g, sampled %g: log-probabilities say %g and %g", *e.Fluency,
			*e.ReverseKLSampled, fluency/tokens, sampled/tokens)
	}
	// Σ (log S - log T - KL) over sampled tokens is a sum of terms of mean 0.
	if off := tokens * math.Abs(*e.ReverseKLSampled-*e.ReverseKL); off > 4*math.Sqrt(spread) ||
		spread == 0 {
		t.Errorf("sampled and exact are %g nats apart in all; their rows' spread is %g", off,
			math.Sqrt(spread))
	}
	if got, want :=
		*e.ForwardKLSampled,
		e.TeacherNLL-logpOf(t, other, j.Batch.Teachers()); math.Abs(got-want) > 1e-5 {
		t.Errorf("forward, sampled: %g, want the difference of the NLLs %g", got, want)
	}
	for _, x := range []struct {
		value  float64
		ci     *[2]float64
		xs, ys []float64
	}{{*e.ReverseKL, e.ReverseKLCI95, j.student.exact, j.student.tokens},
		{*e.ForwardKL, e.ForwardKLCI95, j.teacher.exact, j.teacher.tokens}} {
		if x.ci == nil || !(x.ci[0] < x.value && x.value < x.ci[1]) ||
			*x.ci != textmetrics.RatioInterval(x.xs, x.ys, 1) {
			t.Errorf("%g, interval %v", x.value, x.ci)
		}
	}
	// The other way round, on the teacher's answers: KL(S||T) there, which is not shown.
	back := &Results{Batch: j.Batch, Drawn: j.Batch.Teachers()}
	if err := back.MeasureDivergence(other, m, "student", o); err != nil {
		t.Fatal(err)
	}
	if *back.Eval.ReverseKL != *e.ForwardKL || *back.Eval.ReverseKLSampled != *e.ForwardKLSampled {
		t.Errorf("on the teacher's answers %g and %g, the other way round %g and %g", *e.ForwardKL,
			*e.ForwardKLSampled, *back.Eval.ReverseKL, *back.Eval.ReverseKLSampled)
	}
	// Rows, figures and differences have them; packs decide nothing.
	rows, err := j.Rows("x", tr.val)
	if err != nil || rows[3].ReverseKL == nil ||
		*rows[3].ReverseKL != j.student.exact[3]/j.student.tokens[3] ||
		*rows[3].ForwardKL != j.teacher.exact[3]/j.teacher.tokens[3] || rows[3].Fluency == nil {
		t.Errorf("%+v, %v", rows[3], err)
	}
	for _, key := range []string{"reverse_kl", "reverse_kl_sampled", "forward_kl",
		"forward_kl_sampled", "fluency"} {
		i := slices.IndexFunc(e.Figures(), func(f Figure) bool { return f.Key == key })
		if d, ok := j.Minus(against(t, m, m, tr, o), true, 1)[key]; i < 0 || !ok || d.CI95 == nil {
			t.Errorf("%s: figure %d, difference %+v", key, i, d)
		}
	}
	o.MaxTokens = 40
	if small := against(t, m, other, tr, o).Eval; *small.ReverseKL != *e.ReverseKL ||
		*small.ForwardKL != *e.ForwardKL {
		t.Errorf("in packs of 40 tokens %g and %g, in one %g and %g", *small.ReverseKL,
			*small.ForwardKL, *e.ReverseKL, *e.ForwardKL)
	}
	o.Stop = func() bool { return true }
	if err := j.MeasureDivergence(m, other, "other", o); !errors.Is(err, fault.ErrInterrupted) {
		t.Errorf("stopped: %v", err)
	}
}

// logpOf is the mean of -log p over all response tokens.
func logpOf(t *testing.T, m *model.Model, seqs []model.Seq) float64 {
	t.Helper()
	logp, _, err := m.AllLogProbs(seqs, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	var sum, n float64
	for _, row := range logp {
		for _, x := range row {
			sum, n = sum-float64(x), n+1
		}
	}
	return sum / n
}

// A model whose vocabulary is padded beyond its tokenizer is compared on the tokens that
// both have; a student that draws padding is read up to there.
func TestAgainstPaddedVocabulary(t *testing.T) {
	be := modeltest.Backend(t)
	tr := openHeldOut(t, be)
	shape := modeltest.Shape
	shape.Vocab = modeltest.Tokenizer(t).Size() + 30
	padded, err := model.New(be, shape, model.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer padded.Close()
	o := Options{MaxPrompt: 64, MaxResponse: 14, Temperature: 1, Seed: 1, Slots: 8, MaxTokens: 512}
	j := against(t, tr.m, padded, tr, o)
	if e := j.Eval; e.AgainstCut != 0 || !(*e.ReverseKL > 0.5) || !(*e.ForwardKL > 0.5) {
		t.Errorf("a padded model beside the student: %+v", e)
	}
	back := &Results{Batch: j.Batch, Drawn: slices.Clone(j.Drawn)}
	s := back.Drawn[2]
	s = model.Answer(append(slices.Clone(s.IDs[:s.Prompt()+1]), int32(shape.Vocab-1), 1),
		s.Prompt())
	back.Drawn[2] = s
	at := j.Drawn[5].Prompt()
	back.Drawn[5] = model.Answer(append(slices.Clone(j.Drawn[5].IDs[:at]), int32(shape.Vocab-2)),
		at)
	if err := back.MeasureDivergence(padded, tr.m, "other", o); err != nil {
		t.Fatal(err)
	}
	if back.Eval.AgainstCut != 2 || back.student.tokens[2] != 1 || back.student.tokens[5] != 0 ||
		len(back.Drawn[2].IDs) != len(s.IDs) {
		t.Errorf("answers with padding: %d cut, %g and %g tokens", back.Eval.AgainstCut,
			back.student.tokens[2], back.student.tokens[5])
	}
}
