package model

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// label is a label whose tokens and probabilities are plain.
func label(t *testing.T, ids []int32, p ...float64) SoftLabel {
	t.Helper()
	var logp []float64
	for _, x := range p {
		logp = append(logp, math.Log(x))
	}
	l, err := NewSoftLabel(ids, logp)
	must(t, err)
	return l
}

// The loss of five logits, worked by hand, and those of random rows with their gradients, by TRL's
// own tail bucket and PyTorch (scripts/fixtures_soft.py).
func TestTailGolden(t *testing.T) {
	type golden struct {
		Temperature float64
		Student     []float32
		IDs         []int32
		Logp        []float64
		Loss        float64
		Gradient    []float64
	}
	var file struct{ Cases []golden }
	raw, err := os.ReadFile("../testdata/golden/soft.json")
	must(t, err)
	must(t, json.Unmarshal(raw, &file))
	if len(file.Cases) != 120 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	file.Cases = append(file.Cases, golden{1, []float32{.3, -1.1, .7, 0, -.4}, []int32{2, 0},
		[]float64{math.Log(.3), math.Log(.5)}, .151631,
		[]float64{-.24848, .02879, .075224, .08649, .057976}})
	for i, c := range file.Cases {
		l, err := NewSoftLabel(c.IDs, c.Logp)
		must(t, err)
		x := klPass{v: len(c.Student), inv: 1 / c.Temperature,
			soft: &softPass{labelR: []SoftLabel{l}, restR: make([]float64, 1),
				massR: make([]float64, 1), bothR: make([]float64, 1)}}
		x.alloc(1)
		z := slices.Clone(c.Student)
		x.measureRow(z, nil, 0)
		if math.Abs(x.klR[0]-c.Loss) > 1e-6*(1+c.Loss) {
			t.Errorf("case %d: %g, want %g", i, x.klR[0], c.Loss)
		}
		x.gradient(z, nil, 0, x.inv)
		for v, want := range c.Gradient {
			if math.Abs(float64(z[v])-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("case %d, logit %d: gradient %g, want %g", i, v, z[v], want)
			}
		}
	}
}

// A model has no loss by its own labels, and the gradient of that is 0 in every element, however
// many tokens the labels have; all of them are its own most probable ones.
func TestTailOfEqualModels(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, k := range []int{1, 4, 29, 50} {
			m, err := New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
			must(t, err)
			q, err := New(be, tiny("Qwen2"), Options{Seed: 1})
			must(t, err)
			q.Share(m)
			shake(m)
			must(t, q.CopyWeights(m))
			seqs := seqsOf(29, 8, 3, 5)
			f, err := m.LogProbTopKGrad(seqs, q, seqs, k, 0.7,
				func(logp, _, tail [][]float32) (_, _, _ [][]float32, err error) {
					for s, row := range tail {
						if len(row) != seqs[s].Trained() || slices.Max(row) != 0 {
							t.Errorf("%d tokens: sequence %d: %v", k, s, row)
						}
					}
					return zeros(logp), nil, klWeights, nil
				})
			must(t, err)
			if f.Tokens != 12 || f.Overlap != 12 || f.TeacherMass != f.StudentMass ||
				!(f.TeacherMass > 0 && f.TeacherMass < 12.001) {
				t.Errorf("%d tokens: %+v", k, f)
			}
			for _, p := range m.params {
				for i, g := range values(be, p.G) {
					if g != 0 {
						t.Fatalf("%d tokens: %s[%d]: gradient %g", k, p.Name, i, g)
					}
				}
			}
			must(t, m.Close())
			must(t, q.Close())
		}
	})
}

// labelLoss is the loss of a label by its definition, in float64.
func labelLoss(z []float64, l SoftLabel) (loss float64) {
	sum, rest := 0.0, 0.0
	for v, x := range z {
		sum += math.Exp(x)
		if !slices.Contains(l.IDs, int32(v)) {
			rest += math.Exp(x)
		}
	}
	for k, id := range l.IDs {
		loss += math.Exp(l.Logp[k]) * (l.Logp[k] - z[id] + math.Log(sum))
	}
	if l.Rest > 0 {
		loss += l.Rest * math.Log(l.Rest*sum/rest)
	}
	return loss
}

// The gradient by every parameter against central differences: of labels that are given, some of
// which say nothing, and of a teacher's that reads another prompt and knows two entries more; of
// adapters too. Given and taken labels give the same bits, and AllTails the losses.
func TestTailDifferences(t *testing.T) {
	be := ref.New()
	check := func(t *testing.T, m *Model, taken bool) {
		larger := tiny("Llama")
		larger.Vocab += 2
		q, err := New(be, larger, Options{Seed: 12})
		must(t, err)
		seqs := seqsOf(29, 8, 3, 5)
		var reads []Seq
		for _, s := range seqs {
			reads = append(reads, Answer(slices.Concat([]int32{7, 30}, s.IDs), 2+s.Prompt()))
		}
		const temperature = 0.5
		labels, err := q.AllSoftLabels(reads, 4, 29, temperature, 10)
		must(t, err)
		if !taken {
			labels[0][2], labels[2][0] = SoftLabel{}, SoftLabel{}
			labels[1][1] = label(t, []int32{28, 0, 3}, .5, .2, .3)
		}
		dlogp := [][]float32{{0.5, 1, -1, 0.25, 1, -0.5}, {1, 0.75}, {-0.25, 1, 1, 2}}
		var seen [][]float32
		seed := func(_, _, tail [][]float32) (_, _, _ [][]float32, err error) {
			seen = tail
			return dlogp, nil, klWeights, nil
		}
		var f SoftFigures
		if taken {
			f, err = m.LogProbTopKGrad(seqs, q, reads, 4, temperature, seed)
		} else {
			f, err = m.LogProbTailGrad(seqs, labels, temperature, seed)
		}
		must(t, err)
		flat, told := slices.Concat(labels...), 0
		loss := func(each func(r int, x float64)) (total float64) {
			must(t, m.hidden(seqs))
			weights, err := m.pk.join(nil, "", klWeights)
			must(t, err)
			logps, err := m.pk.join(nil, "", dlogp)
			must(t, err)
			for r, z := range logitsOf(m, temperature) {
				sum := 0.0
				for _, x := range z {
					sum += math.Exp(x)
				}
				x := 0.0
				if len(flat[r].IDs) > 0 {
					x = labelLoss(z, flat[r])
				}
				if each != nil {
					each(r, x)
				}
				total += float64(weights[r])*x +
					float64(logps[r])*(z[m.pk.targets[r]]-math.Log(sum))
			}
			return total
		}
		differences(t, m, 1e-5, func() float64 { return loss(nil) })
		all, g, err := m.AllTails(seqs, labels, temperature, 6)
		must(t, err)
		if math.Abs(g.Overlap-f.Overlap) > 1e-9 || math.Abs(g.StudentMass-f.StudentMass) > 1e-9 {
			t.Errorf("%+v with a gradient, %+v without", f, g)
		}
		got := slices.Concat(seen...)
		for s := range all {
			same(t, "AllTails", all[s], seen[s])
		}
		loss(func(r int, want float64) {
			if math.Abs(float64(got[r])-want) > 1e-5*(1+want) {
				t.Errorf("token %d: %g, want %g", r, got[r], want)
			}
			if len(flat[r].IDs) > 0 {
				told++
			}
		})
		if f.Tokens != float64(told) || !(f.Overlap > 0 && f.Overlap < f.Tokens) {
			t.Errorf("%d labels: %+v", told, f)
		}
		must(t, q.Close())
	}
	for _, taken := range []bool{false, true} {
		m, err := New(be, tiny("Llama"), Options{Trainable: true, Seed: 11})
		must(t, err)
		shake(m)
		check(t, m, taken)
		must(t, m.Close())
	}
	t.Run("adapters", func(t *testing.T) {
		_, m, _ := adaptedOn(t, be, "Llama", LoRA{Rank: 4})
		for i, p := range m.params {
			m.fill(p, func(j int) float32 { return float32((i*7+j*13)%11-5) / 20 })
		}
		check(t, m, false)
	})
}

// Labels of the whole vocabulary are the teacher's distribution: loss and gradient of KL(q||m).
// Labels taken from the teacher beforehand give what those taken in the pass give.
func TestTailOfAllTokens(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m, err := New(be, tiny("Llama"), Options{Trainable: true, Seed: 1})
		must(t, err)
		q, err := New(be, tiny("Llama"), Options{Seed: 2})
		must(t, err)
		q.Share(m)
		var seqs []Seq // a shared prompt, and a sequence alone
		for k := range 3 {
			seqs = append(seqs, Answer([]int32{3, 1, 4, int32(9 + k), int32(2 + 3*k), 6}[:6-k], 3))
		}
		seqs = append(seqs, seqsOf(29, 12)...)
		var weights, seen [][]float32
		for s, seq := range seqs {
			weights = append(weights, make([]float32, seq.Trained()))
			for i := range weights[s] {
				weights[s][i] = float32(1+s)/4 - float32(i)/8
			}
		}
		seed := func(logp, _, kl [][]float32) (_, _, _ [][]float32, err error) {
			seen = kl
			return zeros(logp), nil, weights, nil
		}
		take := func() (all []float32) {
			for _, p := range m.params {
				all = append(all, values(be, p.G)...)
				be.Zero(p.G)
			}
			return append(all, slices.Concat(seen...)...)
		}
		near := func(what string, got, want []float32) {
			t.Helper()
			most := 0.0
			for _, x := range want {
				most = max(most, math.Abs(float64(x)))
			}
			for i := range want {
				if d := math.Abs(float64(got[i] - want[i])); !(d <= 2e-5*most) || most < 1e-2 {
					t.Fatalf("%s: element %d: %g, want %g", what, i, got[i], want[i])
				}
			}
		}
		must(t, m.LogProbDivergenceGrad(seqs, q, seqs, 0, 0.7, seed))
		want := take()
		_, err = m.LogProbTopKGrad(seqs, q, seqs, 29, 0.7, seed)
		must(t, err)
		near("all tokens", take(), want)
		_, err = m.LogProbTopKGrad(seqs, q, seqs, 5, 0.7, seed)
		must(t, err)
		want = take()
		labels, err := q.AllSoftLabels(seqs, 5, 29, 0.7, 7)
		must(t, err)
		_, err = m.LogProbTailGrad(seqs, labels, 0.7, seed)
		must(t, err)
		got := take()
		near("labels of another pass", got, want)
		if be.Alone() {
			same(t, "labels of another pass", got, want)
		}
		must(t, m.Close())
		must(t, q.Close())
	})
}

// Rows of a large vocabulary pass in several chunks, with the figures of rows alone.
func TestTailInChunks(t *testing.T) {
	be := ref.New()
	c := tiny("Llama")
	c.Vocab, c.Hidden, c.Heads, c.KVHeads, c.TieEmbeddings = 600, 2, 1, 1, true
	inChunks(t, 6, c.Vocab)
	m, err := New(be, c, Options{Seed: 1})
	must(t, err)
	q, err := New(be, c, Options{Seed: 2})
	must(t, err)
	seqs := seqsOf(c.Vocab, 6, 14)
	labels, err := q.AllSoftLabels(seqs, 20, c.Vocab, 1, 1000)
	must(t, err)
	all, _, err := m.AllTails(seqs, labels, 1, 1000)
	must(t, err)
	for s := range seqs {
		own, err := q.AllSoftLabels(seqs[s:s+1], 20, c.Vocab, 1, 1)
		must(t, err)
		for i, l := range own[0] {
			if !slices.Equal(l.IDs, labels[s][i].IDs) || !slices.Equal(l.Logp, labels[s][i].Logp) ||
				l.Rest != labels[s][i].Rest || math.Abs(l.Mass()+l.Rest-1) > 1e-12 {
				t.Errorf("sequence %d: token %d: %v, alone %v", s, i, labels[s][i], l)
			}
		}
		one, _, err := m.AllTails(seqs[s:s+1], own, 1, 1)
		must(t, err)
		same(t, "alone", one[0], all[s])
	}
	q.fill(q.norm, func(int) float32 { return float32(math.NaN()) })
	if _, err := q.AllSoftLabels(seqs, 2, c.Vocab, 1, 100); !errors.Is(err, ErrNotFinite) {
		t.Errorf("weights that are no numbers: %v", err)
	}
}

// A tail that the student leaves next to nothing of keeps its gradient; one that underflows has
// none, and the loss stays a number.
func TestTailOfASureStudent(t *testing.T) {
	for gap, want := range map[float32]float64{60: -.25, 2000: 0} {
		l := label(t, []int32{0}, .75)
		x := klPass{v: 3, inv: 1, soft: &softPass{labelR: []SoftLabel{l},
			restR: make([]float64, 1), massR: make([]float64, 1), bothR: make([]float64, 1)}}
		x.alloc(1)
		z := []float32{gap, 0, -1e30}
		x.measureRow(z, nil, 0)
		if !(x.klR[0] > 1) || math.IsInf(x.klR[0], 0) {
			t.Errorf("%g: a loss of %g", gap, x.klR[0])
		}
		x.gradient(z, nil, 0, 1)
		if math.Abs(float64(z[0])-.25) > 1e-6 || math.Abs(float64(z[1])-want) > 1e-6 || z[2] != 0 {
			t.Errorf("%g: gradient %v", gap, z)
		}
	}
}

// What is no distribution is refused, and so are labels that are not of the sequences.
func TestSoftLabelMistakes(t *testing.T) {
	inf := math.Inf(-1)
	for _, c := range []struct {
		ids  []int32
		logp []float64
		want string
	}{
		{[]int32{1}, nil, "1 tokens, and 0 log-probabilities"},
		{[]int32{1, 2}, []float64{-1, inf}, "token 2 has the log-probability -Inf"},
		{[]int32{1, 2}, []float64{math.NaN(), -1}, "token 1 has the log-probability NaN"},
		{[]int32{1, 2}, []float64{-1, .5}, "token 2 has the log-probability 0.5"},
		{[]int32{5, 2, 5}, []float64{-1, -2, -3}, "token 5: must be an id, and given once"},
		{[]int32{-1}, []float64{-1}, "token -1: must be an id"},
		{[]int32{1, 2}, []float64{-.1, -.2}, "of 2 tokens add up to 1.72"},
	} {
		if _, err := NewSoftLabel(c.ids, c.logp); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %v: %v, want %q", c.ids, c.logp, err, c.want)
		}
	}
	l := label(t, []int32{7, 3}, .25, .5)
	if !slices.Equal(l.IDs, []int32{3, 7}) || math.Abs(l.Rest-.25) > 1e-12 ||
		l.Logp[0] != math.Log(.5) {
		t.Errorf("%+v", l)
	}
	if over := label(t, []int32{1, 2}, .5, .501); over.Rest != 0 {
		t.Errorf("rounding left a tail of %g", over.Rest)
	}
	m, err := New(ref.New(), tiny("Llama"), Options{Trainable: true, Seed: 1})
	must(t, err)
	defer m.Close()
	seqs := seqsOf(29, 3)
	far := label(t, []int32{29}, .5)
	for want, labels := range map[string][][]SoftLabel{
		"1 sequences, labels of 0":            nil,
		"2 trained tokens, and 1 labels":      {{l}},
		"id 29: outside the vocabulary of 29": {{l, far}},
		"id 3 after 7: must ascend": {{l, {IDs: []int32{7, 3},
			Logp: []float64{-1, -1}}}},
		"2 ids, and 1 log-probabilities": {{{IDs: []int32{1, 2}, Logp: []float64{-1}}, l}},
	} {
		if _, _, err := m.AllTails(seqs, labels, 1, 100); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
