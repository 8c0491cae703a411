package model

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
)

// known is a tokenizer's list of n tokens, without those at holes.
func known(n int, holes ...int) []bool {
	tokens := slices.Repeat([]bool{true}, n)
	for _, id := range holes {
		tokens[id] = false
	}
	return tokens
}

// withoutPadding is a model of c with seed, and a copy of it whose embedding and head have n rows.
// What stands in the rows that the copy lacks would win every draw.
func withoutPadding(t *testing.T, be compute.Backend, c Config, n int,
	o Options) (padded, cut *Model) {
	t.Helper()
	short := c
	short.Vocab = n
	var err error
	cut, err = New(be, short, o)
	must(t, err)
	padded, err = New(be, c, o)
	must(t, err)
	must(t, padded.SetTokens(known(n)))
	for i, p := range padded.params {
		w := values(be, p.W)
		if p.Rows == c.Vocab {
			for at := n * p.Cols; at < len(w); at++ {
				w[at] = 30
			}
			be.Upload(p.W, w)
			padded.refresh(p)
			w = w[:n*p.Cols]
		}
		be.Upload(cut.params[i].W, w)
		cut.refresh(cut.params[i])
	}
	return padded, cut
}

// A model whose embedding is padded has the bits of one without the rows behind the last token: in
// log-probabilities, sampling, ranks, divergences, labels and all gradients.
func TestPaddedVocabulary(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range []string{"Qwen2", "Llama", "Gemma3", "Granite"} {
			c, n := tiny(arch), 23
			padded, cut := withoutPadding(t, be, c, n, Options{Trainable: true, Seed: 1})
			defer padded.Close()
			defer cut.Close()
			paddedQ, cutQ := withoutPadding(t, be, c, n, Options{Seed: 2})
			defer paddedQ.Close()
			defer cutQ.Close()
			seqs := seqsOf(n, 8, 3, 5)
			labels, err := cutQ.AllSoftLabels(seqs, 3, n, 0.8, 100)
			must(t, err)
			measure := func(m, q *Model, vocab int) []any {
				var all []any
				add := func(x any, err error) {
					t.Helper()
					must(t, err)
					all = append(all, x)
				}
				logp, ent, err := m.LogProbs(seqs, 0.7)
				add(logp, err)
				add(ent, err)
				add(m.AllKL(q, seqs, 0.7, 100))
				div, err := m.Divergences(q, seqs)
				add(div, err)
				add(m.AllScored(seqs, 4, vocab, 1, 100))
				add(m.AllSoftLabels(seqs, n, vocab, 1, 100))
				for _, s := range []Sampling{{Temperature: 1.5}, {}, {Temperature: 1, TopK: 4},
					{Temperature: 2, TopP: 0.95, MinP: 0.01}} {
					add(m.Generate([][]int32{{1, 2, 3}, {7, 4}}, []uint64{4, 9},
						SampleOptions{N: 6, MaxNew: 12, EOS: []int32{5}, Seed: 3,
							Sampling: s}, nil))
				}
				add(ranked(m, []int32{3, 1, 4, 1}, 30))
				one := func(logp, _, kl [][]float32) (_, _, _ [][]float32, err error) {
					dlogp, dent, dkl := zeros(logp), zeros(logp), zeros(logp)
					for s := range dlogp {
						for i := range dlogp[s] {
							dlogp[s][i], dent[s][i], dkl[s][i] = 1, 0.1, 0.5
						}
					}
					return dlogp, dent, dkl, nil
				}
				for _, beta := range []float64{0, 0.4, 1} {
					must(t, m.LogProbDivergenceGrad(seqs, q, seqs, beta, 0.9, one))
				}
				add(m.LogProbTopKGrad(seqs, q, seqs, 3, 0.9, one))
				add(m.LogProbTailGrad(seqs, labels, 0.9, one))
				for _, p := range m.params {
					g := values(be, p.G)
					if p.Rows == c.Vocab {
						for i, x := range g[n*p.Cols:] {
							if x != 0 {
								t.Fatalf("%s %s: gradient %g of row %d, which is no token", arch,
									p.Name, x, n+i/p.Cols)
							}
						}
						g = g[:n*p.Cols]
					}
					all = append(all, g)
					be.Zero(p.G)
				}
				return all
			}
			want := measure(cut, cutQ, n)
			for i, got := range measure(padded, paddedQ, c.Vocab) {
				if a, b := fmt.Sprint(got), fmt.Sprint(want[i]); a != b {
					t.Errorf("%s: %d: %.200s\nwithout padding %.200s", arch, i, a, b)
				}
			}
			_, _, err = padded.LogProbs([]Seq{Answer([]int32{1, 2, int32(n)}, 1)}, 1)
			if err == nil || !strings.Contains(err.Error(), "outside the vocabulary of 23") {
				t.Errorf("an id without a token: %v", err)
			}
		}
	})
}

// ranked is what a ranked request of m gives: the prompt's and the drawn tokens.
func ranked(m *Model, prompt []int32, top int) (all []Token, err error) {
	e, err := m.NewEngine(EngineOptions{Slots: 2, Pages: 8, Longest: 40})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	err = e.Submit(&Request{Prompt: prompt, N: 2, MaxNew: 5, Sampling: Sampling{Temperature: 1},
		Ranked: true, Top: top, Echo: func(tokens []Token) { all = append(all, tokens...) },
		Token: func(_ int, t Token) bool { all = append(all, t); return true }})
	for err == nil && !e.Idle() {
		err = e.Step()
	}
	return all, err
}

// Ids without a token in the midst of others are never sampled; the log-probabilities of what is
// drawn are the trainer's, and the other draws are those of a tokenizer without holes.
func TestIdsBetweenTokens(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		c := tiny("Qwen2")
		whole, err := New(be, c, Options{Seed: 1})
		must(t, err)
		must(t, whole.SetTokens(known(c.Vocab-2)))
		defer whole.Close()
		holed, err := New(be, c, Options{Seed: 1})
		must(t, err)
		must(t, holed.SetTokens(known(c.Vocab-2, 0, 7, 8, 20)))
		defer holed.Close()
		for _, s := range []Sampling{{Temperature: 2}, {}, {Temperature: 2, TopK: 5}} {
			o := SampleOptions{N: 400, MaxNew: 1, Seed: 3, Sampling: s}
			prompt := []int32{3, 4, 5}
			want, err := whole.Generate([][]int32{prompt}, []uint64{0}, o, nil)
			must(t, err)
			got, err := holed.Generate([][]int32{prompt}, []uint64{0}, o, nil)
			must(t, err)
			again, drawn := 0, map[int32]float64{}
			var seqs []Seq
			var logp []float32
			for i, x := range got[0] {
				id, was := x.IDs[0], want[0][i].IDs[0]
				if slices.Contains([]int32{0, 7, 8, 20}, id) || int(id) >= c.Vocab-2 {
					t.Fatalf("%+v: id %d, which is no token", s, id)
				}
				if slices.Contains([]int32{0, 7, 8, 20}, was) {
					again++
					drawn[id]++
				} else if id != was || x.Logp[0] != want[0][i].Logp[0] {
					t.Errorf("%+v: token %d (%g), and %d (%g) without holes", s, id, x.Logp[0], was,
						want[0][i].Logp[0])
				}
				seqs = append(seqs, Answer(append(slices.Clone(prompt), id), len(prompt)))
				logp = append(logp, x.Logp[0])
			}
			if again == 0 && s.Temperature > 0 {
				t.Errorf("%+v: nothing was drawn again: this test needs another prompt", s)
			}
			if s.Temperature == 2 && s.TopK == 0 && len(drawn) < 5 {
				t.Errorf("%d draws anew gave the tokens %v alone", again, drawn)
			}
			temperature := s.Temperature
			if temperature == 0 {
				temperature = 1
			}
			trainer, _, err := holed.LogProbs(seqs, temperature)
			must(t, err)
			for i := range logp {
				if holed.Alone() && math.Float32bits(trainer[i][0]) != math.Float32bits(logp[i]) {
					t.Fatalf("%+v: sampler %v, trainer %v", s, logp[i], trainer[i][0])
				}
			}
		}
	})
}

// Adapters and merged weights leave out what their base does, and a tokenizer must suit.
func TestTokensOfAdapters(t *testing.T) {
	be := backends[0].new()
	defer be.Close()
	c := tiny("Qwen2")
	base, err := New(be, c, Options{Seed: 1})
	must(t, err)
	defer base.Close()
	m, err := base.Adapt(Options{LoRA: LoRA{Rank: 2, Alpha: 4}})
	must(t, err)
	must(t, m.SetTokens(known(23, 4)))
	defer m.Close()
	merged, err := m.Merged()
	must(t, err)
	defer merged.Close()
	reference, err := base.Adapt(Options{})
	must(t, err)
	defer reference.Close()
	if merged.Vocab() != 23 || merged.tokens[4] {
		t.Errorf("merged: %d tokens, %v", merged.Vocab(), merged.tokens)
	}
	for name, x := range map[string]*Model{"adapters": m, "merged": merged, "reference": reference} {
		must(t, x.SetTokens(known(23, 4)))
		if x.Vocab() != 23 || len(x.tokens) != 23 || x.tokens[4] {
			t.Errorf("%s: %d tokens, %v", name, x.Vocab(), x.tokens)
		}
	}
	for _, bad := range []struct {
		tokens []bool
		want   string
	}{{known(30), "the tokenizer has 30 tokens"}, {make([]bool, 5), "no token"},
		{known(22), "is in memory with 23 tokens"}} {
		if err := reference.SetTokens(bad.tokens); err == nil ||
			!strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v, want %s", err, bad.want)
		}
	}
}
