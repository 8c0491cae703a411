package model

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
	"gad/model/internal/logits"
)

// klWeights are weights of the divergences of sequences of 6, 2 and 4 trained tokens that share
// nothing, exact in float32.
var klWeights = [][]float32{{1, -0.5, 0.25, 2, -1, 1}, {0.5, -2}, {1, 1, -0.75, 0.5}}

func zeros(like [][]float32) [][]float32 {
	out := make([][]float32, len(like))
	for i := range like {
		out[i] = make([]float32, len(like[i]))
	}
	return out
}

// At every token AllKL is the sum over the vocabulary of p (log p - log q), each probability from
// LogProbs of the sequence that has that token there; at temperature 1 it is what Divergences
// has. Packs and shared memory change nothing.
func TestAllKL(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range []string{"Qwen2", "Llama"} {
			p, q := pair(t, be, arch)
			seqs := seqsOf(29, 8, 3, 5)
			for _, temperature := range []float64{1, 0.7} {
				got, err := p.AllKL(q, seqs, temperature, 1000)
				must(t, err)
				for s, seq := range seqs {
					for i, kl := range got[s] {
						at := seq.Prompt() + i
						var each []Seq
						for v := range 29 {
							each = append(each,
								Answer(append(slices.Clone(seq.IDs[:at]), int32(v)), at))
						}
						logp, _, err := p.LogProbs(each, temperature)
						must(t, err)
						logq, _, err := q.LogProbs(each, temperature)
						must(t, err)
						want := 0.0
						for v := range each {
							lp, lq := float64(logp[v][0]), float64(logq[v][0])
							want += math.Exp(lp) * (lp - lq)
						}
						if !(kl > 0) || math.Abs(float64(kl)-want) > 2e-6*(1+want) {
							t.Errorf("%s, T %g, sequence %d, token %d: %g, the sum is %g", arch,
								temperature, s, i, kl, want)
						}
					}
				}
				if be.Alone() {
					apart, err := p.AllKL(q, seqs, temperature, 1)
					must(t, err)
					for s := range seqs {
						same(t, "a pack of its own", apart[s], got[s])
					}
				}
			}
			want, err := p.Divergences(q, seqs)
			must(t, err)
			before, err := p.AllKL(q, seqs, 1, 1000)
			must(t, err)
			q.Share(p)
			shared, err := p.AllKL(q, seqs, 1, 1000)
			must(t, err)
			for s := range seqs {
				same(t, "memory for activations shared", shared[s], before[s])
				for i, kl := range shared[s] {
					if math.Abs(float64(kl)-want[s].PQ[i]) > 1e-6 {
						t.Errorf("%s: %g, Divergences has %g", arch, kl, want[s].PQ[i])
					}
				}
			}
			must(t, p.Close())
			must(t, q.Close())
		}
	})
}

// A model has no divergence from itself, and the gradient of that is 0 in every element.
func TestKLOfEqualModels(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range []string{"Qwen2", "Llama"} {
			m, err := New(be, tiny(arch), Options{Trainable: true, Seed: 1})
			must(t, err)
			q, err := New(be, tiny(arch), Options{Seed: 1})
			must(t, err)
			q.Share(m)
			seqs := seqsOf(29, 8, 3, 5)
			must(t, m.LogProbKLGrad(seqs, q, 0.7,
				func(logp, _, kl [][]float32) (_, _, _ [][]float32, err error) {
					for s, row := range kl {
						if len(row) != seqs[s].Trained() || slices.Max(row) != 0 {
							t.Errorf("%s: sequence %d: %v", arch, s, row)
						}
					}
					return zeros(logp), nil, klWeights, nil
				}))
			for _, p := range m.params {
				for i, g := range values(be, p.G) {
					if g != 0 {
						t.Fatalf("%s: %s[%d]: gradient %g", arch, p.Name, i, g)
					}
				}
			}
			must(t, m.Close())
			must(t, q.Close())
		}
	})
}

// Rows of a shared prompt, in chunks of which one row fits at a time, have the gradients of
// sequences that pass one by one.
func TestKLGradOfSharedPrompts(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		c := tiny("Llama")
		m, err := New(be, c, Options{Trainable: true, Seed: 1})
		must(t, err)
		q, err := New(be, c, Options{Seed: 2})
		must(t, err)
		defer m.Close()
		defer q.Close()
		var seqs []Seq
		for k := range 4 {
			ids := []int32{3, 1, 4, 1, 5, int32(9 + k), int32(2 + 3*k), 6}
			seqs = append(seqs, Seq{IDs: ids[:8-k/2],
				Spans: []Span{{From: 3, To: 5}, {From: 6 - k/2, To: 8 - k/2}}})
		}
		weights := func(kl [][]float32) [][]float32 {
			w := zeros(kl)
			for s := range w {
				for i := range w[s] {
					w[s][i] = float32(1+s)/4 - float32(i)
				}
			}
			return w
		}
		take := func() (grads [][]float32) {
			for _, p := range m.params {
				grads = append(grads, values(be, p.G))
				be.Zero(p.G)
			}
			return grads
		}
		seed := func(shift int) func(_, _, kl [][]float32) (_, _, _ [][]float32, err error) {
			return func(logp, _, kl [][]float32) (_, _, _ [][]float32, err error) {
				like := make([][]float32, len(seqs))
				for s := range like {
					like[s] = make([]float32, seqs[s].Trained())
				}
				return zeros(logp), nil, weights(like)[shift : shift+len(kl)], nil
			}
		}
		must(t, m.LogProbKLGrad(seqs, q, 0.7, seed(0)))
		together := take()
		for s := range seqs {
			must(t, m.LogProbKLGrad(seqs[s:s+1], q, 0.7, seed(s)))
		}
		most, off := 0.0, 0.0
		for k, g := range take() {
			for i, x := range g {
				most = max(most, math.Abs(float64(x)))
				off = max(off, math.Abs(float64(x-together[k][i])))
			}
		}
		if !(most > 1e-2) || off > 2e-5*most {
			t.Errorf("gradients differ by %g of %g", off, most)
		}
	})
}

// The gradient of weighted divergences by every parameter, against central differences in
// float64; beside gradients of log-probabilities and entropies, which it is added to. An adapted
// model is compared with its base without adapters.
func TestKLDifferences(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, m, q *Model) {
		seqs := seqsOf(29, 8, 3, 5)
		const temperature, within = 0.5, 1e-5 // logits and their gradients pass in float32
		dlogp := [][]float32{{0.5, 1, -1, 0.25, 1, -0.5}, {1, 0.75}, {-0.25, 1, 1, 2}}
		must(t, m.LogProbKLGrad(seqs, q, temperature,
			func(_, _, kl [][]float32) (_, _, _ [][]float32, err error) {
				return dlogp, nil, klWeights, nil
			}))
		differences(t, m, within, func() float64 {
			z := map[*Model][]float64{}
			var p *pack
			for _, of := range []*Model{q, m} {
				must(t, of.hidden(seqs))
				p = &of.pk
				h, w := ref.F64(of.acts.hND), ref.F64(of.head.W)
				for _, r := range p.rows {
					for v := range 29 {
						sum := 0.0
						for d := range of.cfg.Hidden {
							sum += h[int(r)*of.cfg.Hidden+d] * w[v*of.cfg.Hidden+d]
						}
						z[of] = append(z[of], sum/temperature)
					}
				}
			}
			wk, _ := p.join(nil, "", klWeights)
			wl, _ := p.join(nil, "", dlogp)
			total := 0.0
			for r := range p.rows {
				zp, zq := z[m][r*29:(r+1)*29], z[q][r*29:(r+1)*29]
				var sp, sq float64
				for v := range zp {
					sp, sq = sp+math.Exp(zp[v]), sq+math.Exp(zq[v])
				}
				kl := 0.0
				for v := range zp {
					lp, lq := zp[v]-math.Log(sp), zq[v]-math.Log(sq)
					kl += math.Exp(lp) * (lp - lq)
				}
				total += float64(wk[r])*kl +
					float64(wl[r])*(zp[p.targets[r]]-math.Log(sp))
			}
			return total
		})
	}
	for _, arch := range []string{"Qwen2", "Llama", "Gemma3"} {
		t.Run(arch, func(t *testing.T) {
			be := ref.New()
			m, err := New(be, tiny(arch), Options{Trainable: true, Seed: 11})
			must(t, err)
			q, err := New(be, tiny(arch), Options{Seed: 12})
			must(t, err)
			shake(m)
			check(t, m, q)
		})
	}
	t.Run("adapters", func(t *testing.T) {
		base, m, _ := adaptedOn(t, ref.New(), "Llama", LoRA{Rank: 4})
		for i, p := range m.params { // B is 0 at first, and with it the divergence
			m.fill(p, func(j int) float32 { return float32((i*7+j*13)%11-5) / 20 })
		}
		before := values(m.be, base.head.W)
		check(t, m, base)
		same(t, "the base's head", values(m.be, base.head.W), before)
	})
}

// inChunks has rows of logits of a vocabulary in memory at a time until the test ends.
func inChunks(t *testing.T, rows, vocab int) {
	t.Cleanup(func() { logits.Chunk = logits.Elements })
	logits.Chunk = rows * vocab
}

// Rows of a large vocabulary pass in several chunks, with the figures of rows alone, beside a wider
// model.
func TestKLInChunks(t *testing.T) {
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
	all, err := p.AllKL(q, seqs, 1, 1000)
	must(t, err)
	for s := range seqs {
		one, err := p.AllKL(q, seqs[s:s+1], 1, 1000)
		must(t, err)
		same(t, "alone", one[0], all[s])
	}
	for what, edit := range map[string]func(){
		"not finite: go back to an earlier checkpoint": func() {
			p.fill(p.norm, func(int) float32 { return float32(math.NaN()) })
		},
		"outside the vocabulary of 28": func() { must(t, q.SetTokens(known(28))) },
	} {
		edit()
		if _, err := p.AllKL(q, seqs[:1], 1, 1000); err == nil ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		q.head.Live = 0
	}
}

// logitsOf are the scaled logits of a model's trained rows, [R][V], of its last pass.
func logitsOf(m *Model, temperature float64) (z [][]float64) {
	h, w := ref.F64(m.acts.hND), ref.F64(m.head.W)
	for _, r := range m.pk.rows {
		row := make([]float64, m.cfg.Vocab)
		for v := range row {
			for d := range m.cfg.Hidden {
				row[v] += h[int(r)*m.cfg.Hidden+d] * w[v*m.cfg.Hidden+d]
			}
			row[v] /= temperature
		}
		z = append(z, row)
	}
	return z
}

// divergenceOf is D_beta of the distributions of the logits zp and zq, by its definition.
func divergenceOf(zp, zq []float64, beta float64) (d float64) {
	distribution := func(z []float64) (p []float64) {
		sum := 0.0
		for _, x := range z {
			p = append(p, math.Exp(x))
			sum += math.Exp(x)
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	v := min(len(zp), len(zq))
	p, q := distribution(zp[:v]), distribution(zq[:v])
	for i := range p {
		switch m := (1-beta)*p[i] + beta*q[i]; beta {
		case 0:
			d += q[i] * math.Log(q[i]/p[i])
		case 1:
			d += p[i] * math.Log(p[i]/q[i])
		default:
			d += beta*q[i]*math.Log(q[i]/m) + (1-beta)*p[i]*math.Log(p[i]/m)
		}
	}
	return d
}

// The divergences of three probabilities, worked by hand, and those of 200 random pairs of logits
// with their gradients, by TRL's GKDTrainer (scripts/fixtures_gkd.py).
func TestDivergenceGolden(t *testing.T) {
	type golden struct {
		Beta, Temperature float64
		Student, Teacher  []float32
		Loss              float64
		Gradient          []float64
	}
	var file struct{ Cases []golden }
	raw, err := os.ReadFile("../testdata/golden/gkd.json")
	must(t, err)
	must(t, json.Unmarshal(raw, &file))
	if len(file.Cases) != 200 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	logs := func(p ...float64) (z []float32) {
		for _, x := range p {
			z = append(z, float32(math.Log(x)))
		}
		return z
	}
	for beta, want := range map[float64]float64{0: .396058, .5: .091121, 1: .365274} {
		file.Cases = append(file.Cases, golden{beta, 1, logs(.2, .5, .3), logs(.6, .3, .1), want,
			nil})
	}
	for i, c := range file.Cases {
		x := klPass{beta: c.Beta, v: len(c.Student), inv: 1 / c.Temperature}
		x.alloc(1)
		z := slices.Clone(c.Student)
		x.measureRow(z, c.Teacher, 0)
		if math.Abs(x.klR[0]-c.Loss) > 1e-6*(1+c.Loss) {
			t.Errorf("case %d, beta %g: %g, want %g", i, c.Beta, x.klR[0], c.Loss)
		}
		x.gradient(z, c.Teacher, 0, x.inv)
		for v, want := range c.Gradient {
			if math.Abs(float64(z[v])-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("case %d, beta %g, logit %d: gradient %g, want %g", i, c.Beta, v, z[v],
					want)
			}
		}
	}
}

// The gradient of D_beta by every parameter against central differences, where the other model
// reads another prompt before the same tokens and knows two entries more, or two fewer.
func TestDivergenceDifferences(t *testing.T) {
	be := ref.New()
	for _, c := range []struct {
		beta float64
		more int // entries of the other vocabulary
	}{{0, -2}, {0.2, 2}, {0.5, -2}, {1, 2}, {1, -2}} {
		beta := c.beta
		m, err := New(be, tiny("Llama"), Options{Trainable: true, Seed: 11})
		must(t, err)
		another := tiny("Llama")
		another.Vocab += c.more
		q, err := New(be, another, Options{Seed: 12})
		must(t, err)
		q.Share(m)
		shake(m)
		seqs := seqsOf(min(29, another.Vocab), 8, 3, 5)
		var reads []Seq
		for _, s := range seqs {
			reads = append(reads,
				Answer(slices.Concat([]int32{7, int32(another.Vocab - 1)}, s.IDs), 2+s.Prompt()))
		}
		const temperature = 0.5
		var seen [][]float32
		must(t, m.LogProbDivergenceGrad(seqs, q, reads, beta, temperature,
			func(logp, _, kl [][]float32) (_, _, _ [][]float32, err error) {
				seen = kl
				return zeros(logp), nil, klWeights, nil
			}))
		must(t, q.hidden(reads))
		zq := logitsOf(q, temperature)
		flat := slices.Concat(klWeights...)
		differences(t, m, 1e-5, func() (total float64) {
			must(t, m.hidden(seqs))
			weights, err := m.pk.join(nil, "", klWeights)
			must(t, err)
			if len(weights) != len(flat) {
				t.Fatal("rows are shared")
			}
			for r, zp := range logitsOf(m, temperature) {
				total += float64(weights[r]) * divergenceOf(zp, zq[r], beta)
			}
			return total
		})
		must(t, m.hidden(seqs))
		var got []float64
		for _, row := range seen {
			for _, x := range row {
				got = append(got, float64(x))
			}
		}
		for r, zp := range logitsOf(m, temperature) {
			if want := divergenceOf(zp, zq[r], beta); math.Abs(got[r]-want) > 1e-5*(1+want) {
				t.Errorf("beta %g, token %d: %g, want %g", beta, r, got[r], want)
			}
		}
		other := slices.Clone(reads)
		other[1] = Answer(slices.Concat(seqs[1].IDs[:seqs[1].Prompt()], []int32{1, 1}),
			seqs[1].Prompt())
		for what, err := range map[string]error{
			"has other trained tokens": m.LogProbDivergenceGrad(seqs, q, other, beta, 1, nil),
			"2 for the other model":    m.LogProbDivergenceGrad(seqs, q, reads[:2], beta, 1, nil),
			"beta is 1.5":              m.LogProbDivergenceGrad(seqs, q, reads, 1.5, 1, nil),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
		}
		must(t, q.Close())
		must(t, m.Close())
	}
}
