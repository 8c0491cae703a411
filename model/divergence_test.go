package model

import (
	"math"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// Ten words: p says all alike, q the first with 0.55 and the others with 0.05 each. A shift
// of the logits changes nothing.
func TestDivergenceByHand(t *testing.T) {
	var zp, zq []float32
	for v := range 10 {
		zp = append(zp, 3)
		zq = append(zq, float32(math.Log(0.05))-40)
		if v == 0 {
			zq[0] = float32(math.Log(0.55)) - 40
		}
	}
	logp, logq, pq, qp := diverge(zp, zq, 0)
	for what, x := range map[string][2]float64{
		"log p":    {logp, math.Log(0.1)},
		"log q":    {logq, math.Log(0.55)},
		"KL(p||q)": {pq, 0.1*math.Log(0.1/0.55) + 0.9*math.Log(2)},
		"KL(q||p)": {qp, 0.55*math.Log(5.5) + 0.45*math.Log(0.5)},
	} {
		if math.Abs(x[0]-x[1]) > 1e-5 { // float32 logits near -43 are 4e-6 apart
			t.Errorf("%s is %.9f, want %.9f", what, x[0], x[1])
		}
	}
	if logp, logq, pq, qp := diverge(zp, zp, 3); logp != logq || pq != 0 || qp != 0 {
		t.Errorf("a distribution and itself: %g, %g, %g, %g", logp, logq, pq, qp)
	}
}

// pair are two models of a vocabulary of 29 and other weights.
func pair(t *testing.T, be compute.Backend, arch string) (p, q *Model) {
	t.Helper()
	p, err := New(be, tiny(arch), Options{Seed: 1})
	must(t, err)
	q, err = New(be, tiny(arch), Options{Seed: 2})
	must(t, err)
	return p, q
}

// The exact divergence at a position is the expectation of the sampled one: that of
// log p - log q over all tokens that could stand there, and back with the models in the
// other order. The log-probabilities are those of LogProbs.
func TestDivergences(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range []string{"Qwen2", "Llama"} {
			p, q := pair(t, be, arch)
			var each []Seq // one for every next token
			for v := range 29 {
				each = append(each, Answer([]int32{4, 9, 1, int32(v)}, 3))
			}
			each = append(each, seqsOf(29, 5, 12, 1)...)
			there, err := p.Divergences(q, each)
			must(t, err)
			back, err := q.Divergences(p, each)
			must(t, err)
			logp, _, err := p.LogProbs(each, 1)
			must(t, err)
			logq, _, err := q.LogProbs(each, 1)
			must(t, err)
			var pq, qp float64
			for s, d := range there {
				if !slices.Equal(d.PQ, back[s].QP) || !slices.Equal(d.QP, back[s].PQ) ||
					!slices.Equal(d.LogP, back[s].LogQ) || !slices.Equal(d.LogQ, back[s].LogP) {
					t.Errorf("%s: sequence %d: %+v, the other way round %+v", arch, s, d, back[s])
				}
				if n := each[s].Trained(); len(d.PQ) != n || len(d.QP) != n || len(d.LogP) != n ||
					len(d.LogQ) != n {
					t.Fatalf("%s: sequence %d: %d tokens: %+v", arch, s, n, d)
				}
				for i := range d.PQ {
					if math.Abs(d.LogP[i]-float64(logp[s][i])) > 2e-6 ||
						math.Abs(d.LogQ[i]-float64(logq[s][i])) > 2e-6 {
						t.Errorf("%s: sequence %d, token %d: %g and %g, LogProbs says %g and %g",
							arch, s, i, d.LogP[i], d.LogQ[i], logp[s][i], logq[s][i])
					}
					if !(d.PQ[i] > 1e-3) || !(d.QP[i] > 1e-3) {
						t.Errorf("%s: sequence %d, token %d: %g and %g: want more of unlike models",
							arch, s, i, d.PQ[i], d.QP[i])
					}
				}
				if s < 29 {
					pq += math.Exp(d.LogP[0]) * (d.LogP[0] - d.LogQ[0])
					qp += math.Exp(d.LogQ[0]) * (d.LogQ[0] - d.LogP[0])
				}
			}
			if d := there[0]; math.Abs(d.PQ[0]-pq) > 1e-12 || math.Abs(d.QP[0]-qp) > 1e-12 {
				t.Errorf("%s: exact %g and %g, expected from samples %g and %g", arch, d.PQ[0],
					d.QP[0], pq, qp)
			}
			must(t, p.Close())
			must(t, q.Close())
		}
	})
}

// A model has no distance to itself, whatever its architecture, and its logits are those
// that LogProbs sums.
func TestNoDivergence(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, name := range some(t, be, lmFolders) {
			p, q := load(t, be, name, Options{}), load(t, be, name, Options{})
			seqs := readExpected(t, name).seqs()
			got, err := p.Divergences(q, seqs)
			must(t, err)
			logp, _, err := p.LogProbs(seqs, 1)
			must(t, err)
			for s, d := range got {
				for i := range d.PQ {
					if d.PQ[i] != 0 || d.QP[i] != 0 || d.LogP[i] != d.LogQ[i] ||
						math.Abs(d.LogP[i]-float64(logp[s][i])) > 2e-5 {
						t.Errorf("%s: sequence %d, token %d: %g, %g, %g, %g; LogProbs says %g",
							name, s, i, d.PQ[i], d.QP[i], d.LogP[i], d.LogQ[i], logp[s][i])
					}
				}
			}
			must(t, p.Close())
			must(t, q.Close())
		}
	})
}

// Rows of the vocabulary that only one of the models has count for nothing, in either
// order. A token that one of them lacks is an error.
func TestDivergencesOfPaddedVocabulary(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		p, q := pair(t, be, "Qwen2")
		c := tiny("Qwen2")
		c.Vocab = 40
		wide, err := New(be, c, Options{Seed: 7})
		must(t, err)
		for i, w := range q.params {
			v := values(be, w.W)
			more := values(be, wide.params[i].W)
			wide.fill(wide.params[i], func(j int) float32 {
				if j < len(v) {
					return v[j]
				}
				return 5 * more[j]
			})
		}
		seqs := seqsOf(29, 9, 14)
		want, err := p.Divergences(q, seqs)
		must(t, err)
		for _, reverse := range []bool{false, true} {
			from, to := p, wide
			if reverse {
				from, to = wide, p
			}
			got, err := from.Divergences(to, seqs)
			must(t, err)
			for s, d := range got {
				if reverse {
					d = Divergence{d.LogQ, d.LogP, d.QP, d.PQ}
				}
				for i := range d.PQ {
					if d.PQ[i] != want[s].PQ[i] || d.QP[i] != want[s].QP[i] ||
						d.LogP[i] != want[s].LogP[i] || d.LogQ[i] != want[s].LogQ[i] {
						t.Errorf("reverse %t, sequence %d, token %d: %g, %g, want %g, %g", reverse,
							s, i, d.PQ[i], d.QP[i], want[s].PQ[i], want[s].QP[i])
					}
				}
			}
			if _, err := from.Divergences(to, []Seq{Answer([]int32{1, 30}, 1)}); err == nil || err.Error() != "model: sequence 0: token 1: id 30: outside the vocabulary of 29: use the model's own tokenizer" {
				t.Errorf("a token of one model alone: %v", err)
			}
		}
	})
}

// Rows that do not fit into memory together have the figures that they have alone.
func TestDivergencesInChunks(t *testing.T) {
	be := ref.New()
	c := tiny("Llama")
	c.Vocab, c.Hidden, c.Heads, c.KVHeads, c.TieEmbeddings = 600, 2, 1, 1, true
	inChunks(t, 6, c.Vocab)
	p, err := New(be, c, Options{Seed: 1})
	must(t, err)
	wide := c
	wide.Hidden, wide.Heads = 4, 2
	q, err := New(be, wide, Options{Seed: 2})
	must(t, err)
	seqs := seqsOf(c.Vocab, 6, 12, 4)
	all, err := p.Divergences(q, seqs)
	must(t, err)
	for s := range seqs {
		one, err := p.Divergences(q, seqs[s:s+1])
		must(t, err)
		if !slices.Equal(one[0].PQ, all[s].PQ) || !slices.Equal(one[0].LogQ, all[s].LogQ) ||
			len(one[0].PQ) != seqs[s].Trained() {
			t.Errorf("sequence %d: alone %v, among others %v", s, one[0].PQ, all[s].PQ)
		}
	}
	// Weights that have broken down are named.
	p.fill(p.norm, func(int) float32 { return float32(math.NaN()) })
	if _, err := p.Divergences(q, seqs[:1]); err == nil ||
		!strings.Contains(err.Error(), "not finite: go back to an earlier checkpoint") {
		t.Errorf("weights that are no numbers: %v", err)
	}
}
