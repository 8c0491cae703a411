package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
)

// conversations are random sequences with several spans; neighbours may have the same prompt.
func conversations(r *rand.Rand, n, vocab int) (seqs []Seq) {
	var prompt []int32
	tokens := func(n int) (ids []int32) {
		for range n {
			ids = append(ids, int32(r.IntN(vocab)))
		}
		return ids
	}
	for len(seqs) < n {
		if len(seqs) == 0 || r.IntN(3) > 0 {
			prompt = tokens(1 + r.IntN(20))
		}
		s := Seq{IDs: slices.Clone(prompt)}
		for range 1 + r.IntN(4) {
			from := len(s.IDs)
			s.IDs = append(s.IDs, tokens(1+r.IntN(6))...)
			s.Spans = append(s.Spans, Span{From: from, To: len(s.IDs)})
			// none: two spans that touch, or nothing behind the last
			s.IDs = append(s.IDs, tokens(r.IntN(9))...)
		}
		seqs = append(seqs, s)
	}
	return seqs
}

// A sequence with several spans is the sum of plain sequences, one for each span with all before
// it as its prompt: in log-probabilities and entropies to the bit, in gradients but for the
// rounding of sums.
func TestSpansAreSequences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	// and an answer of no tokens
	whole := append(conversations(r, 12, 29), Answer([]int32{3, 4, 5}, 3))
	var parts []Seq
	var of []int // [parts] its sequence
	for s, seq := range whole {
		for _, p := range seq.Spans {
			parts, of = append(parts, Answer(seq.IDs[:p.To], p.From)), append(of, s)
		}
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			m, err := New(be, tiny(arch), Options{Trainable: true, Seed: 3})
			must(t, err)
			defer m.Close()
			shake(m)
			logp, ent, err := m.LogProbs(whole, 0.8)
			must(t, err)
			partLogp, partEnt, err := m.LogProbs(parts, 0.8)
			must(t, err)
			joined := func(parts [][]float32) [][]float32 {
				out := make([][]float32, len(whole))
				for i, s := range of {
					out[s] = append(out[s], parts[i]...)
				}
				return out
			}
			for s := range whole {
				if len(logp[s]) != whole[s].Trained() {
					t.Fatalf("%s: sequence %d has %d log-probabilities for %d trained tokens", arch,
						s, len(logp[s]), whole[s].Trained())
				}
				same(t, "log-probability", logp[s], joined(partLogp)[s])
				same(t, "entropy", ent[s], joined(partEnt)[s])
			}
			// Of p times log-probabilities and entropies the gradient is another for each token.
			pull := func(logp, ent [][]float32) (_, _ [][]float32, err error) {
				return logp, ent,
					nil
			}
			must(t, m.LogProbGrad(whole, 0.8, pull))
			got := takeGrads(m)
			must(t, m.LogProbGrad(parts, 0.8, pull))
			sameGradients(t, m, got, takeGrads(m))
		}
	})
}

// takeGrads are the gradients of m, which are zero afterwards.
func takeGrads(m *Model) (out [][]float32) {
	for _, p := range m.params {
		out = append(out, values(m.be, p.G))
		m.be.Zero(p.G)
	}
	return out
}

// sameGradients compares gradients that differ by the rounding of sums.
func sameGradients(t *testing.T, m *Model, got, want [][]float32) {
	t.Helper()
	worst := 0.0
	for i := range want {
		var diff, norm float64
		for j, w := range want[i] {
			d := float64(got[i][j]) - float64(w)
			diff, norm = diff+d*d, norm+float64(w)*float64(w)
		}
		worst = max(worst, math.Sqrt(diff)/(math.Sqrt(norm)+1e-3))
	}
	limit := 1e-5
	if m.cfg.Stateful() { // norms of small outputs
		limit = 5e-5
	}
	if m.be.Name() == "ref" {
		limit = 1e-12
	}
	if worst > limit {
		t.Errorf("%s: a gradient is off by %.3g of its norm", m.cfg.Architecture, worst)
	}
}

// The scores of a sequence's turns are those of the sequence cut behind each turn: to the bit, so
// what follows changes none, and in gradients but for the rounding of sums. In packs of any size
// each sequence passes once.
func TestTurnScoresAreSequences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 2))
	// and answers of no tokens, and sequences without spans
	whole := append(conversations(r, 12, 29), Answer([]int32{3, 4, 5}, 3),
		Seq{IDs: []int32{3, 4, 6}})
	var parts []Seq
	var wantTurns []int
	for _, seq := range whole {
		wantTurns = append(wantTurns, max(1, len(seq.Spans)))
		for k := range wantTurns[len(wantTurns)-1] {
			n := len(seq.IDs)
			if len(seq.Spans) > 0 {
				n = seq.Spans[k].To
			}
			parts = append(parts, seq.Upto(n))
		}
	}
	pull := func(scoreN []float32) (d []float32, err error) {
		for i, x := range scoreN {
			d = append(d, x+float32(math.Sin(float64(i))))
		}
		return d, nil
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			m, err := New(be, tiny(arch),
				Options{Kind: Scorer, Trainable: true, Seed: 3, ScoreInit: 1})
			must(t, err)
			defer m.Close()
			shake(m)
			want, err := m.Scores(parts)
			must(t, err)
			for _, tokens := range []int{1, 40, 1 << 20} {
				got, err := m.AllTurnScores(whole, tokens)
				must(t, err)
				for i, n := range wantTurns {
					if len(got[i]) != n {
						t.Fatalf("%s: sequence %d has %d scores, want %d", arch, i, len(got[i]), n)
					}
				}
				same(t, "score", slices.Concat(got...), want)
			}
			must(t, m.TurnScoreGrad(whole, pull))
			got := takeGrads(m)
			must(t, m.ScoreGrad(parts, pull))
			sameGradients(t, m, got, takeGrads(m))
			if err := m.TurnScoreGrad(whole,
				func([]float32) ([]float32, error) { return want[1:], nil }); err == nil {
				t.Error("a gradient with a score too few")
			}
		}
	})
}

// A token of the environment changes no log-probability of a token before it, and is itself
// trained in no way.
func TestContextIsNotTrained(t *testing.T) {
	m, err := New(backends[0].new(), tiny("Qwen2"), Options{Trainable: true, Seed: 3})
	must(t, err)
	defer m.Close()
	seq := Seq{IDs: []int32{4, 5, 6, 7, 8, 9, 10, 11},
		Spans: []Span{{From: 2, To: 4}, {From: 6, To: 8}}}
	want, _, err := m.LogProbs([]Seq{seq}, 1)
	must(t, err)
	other := seq
	other.IDs = slices.Clone(seq.IDs)
	other.IDs[5] = 20
	got, _, err := m.LogProbs([]Seq{other}, 1)
	must(t, err)
	if len(got[0]) != 4 || !slices.Equal(got[0][:2], want[0][:2]) || got[0][2] == want[0][2] ||
		got[0][3] == want[0][3] {
		t.Errorf("log-probabilities %v, with another token of context %v", want[0], got[0])
	}
}

func TestWrongSpans(t *testing.T) {
	m, err := New(backends[0].new(), tiny("Qwen2"), Options{Seed: 3})
	must(t, err)
	defer m.Close()
	scorer, err := New(backends[0].new(), tiny("Qwen2"), Options{Kind: Scorer, Seed: 3})
	must(t, err)
	defer scorer.Close()
	ids := []int32{1, 2, 3, 4, 5, 6}
	const first, rule = "expected at least one, since the first response token is predicted from it",
		"expected spans that ascend, overlap nowhere and are not empty"
	for _, c := range []struct {
		spans []Span
		want  string
	}{
		{nil, "model: sequence 0: prompt of 0 of 6 tokens: " + first},
		{[]Span{{From: 0, To: 2}}, "model: sequence 0: prompt of 0 of 6 tokens: " + first},
		{[]Span{{From: 7, To: 8}}, "model: sequence 0: prompt of 7 of 6 tokens: " + first},
		{[]Span{{From: 2, To: 2}}, "model: sequence 0: span 0 is tokens 2 to 2 of 6: " + rule},
		{[]Span{{From: 2, To: 7}}, "model: sequence 0: span 0 is tokens 2 to 7 of 6: " + rule},
		{[]Span{{From: 2, To: 4}, {From: 3, To: 5}},
			"model: sequence 0: span 1 is tokens 3 to 5 of 6: " + rule},
		{[]Span{{From: 3, To: 4}, {From: 1, To: 2}},
			"model: sequence 0: span 1 is tokens 1 to 2 of 6: " + rule},
		{[]Span{{From: 3, To: 4}, {From: 6, To: 6}},
			"model: sequence 0: span 1 is tokens 6 to 6 of 6: " + rule},
	} {
		if _, _, err := m.LogProbs([]Seq{{IDs: ids, Spans: c.spans}}, 1); err == nil ||
			err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.spans, err, c.want)
		}
		if c.spans == nil {
			continue
		}
		if _, err := scorer.AllTurnScores([]Seq{{IDs: ids, Spans: c.spans}}, 100); err == nil ||
			err.Error() != c.want {
			t.Errorf("scores of %v: %v, want %s", c.spans, err, c.want)
		}
	}
}
