package model

import (
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
	"gad/model/internal/sequence"
)

// A thought's log-probabilities are, to the bit, those of a forward pass over each context; its
// tokens are those of the chunks asked for one by one, with draws that count on. Slots and the
// other thoughts change nothing, and a token is told once, under its response's number.
func TestGenerateChunks(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, be compute.Backend) {
		all := 0
		_, slow := be.(*ref.Backend)
		for i, name := range lmFolders {
			every := 4
			if slow {
				every = 6
			}
			if !hostile.InTurn(i, 0, every) {
				continue
			}
			m := load(t, be, name, Options{})
			prompts, rows := samplePrompts()
			o := sampleOptions()
			o.EOS, o.Chunks = o.EOS[:2], Chunks{Size: 9, Carry: 5, Head: 2, Most: 4}
			o.MaxNew = o.Chunks.Longest()
			drawn := map[[2]int][]int32{}
			o.Token = func(p, s int, id int32) {
				drawn[[2]int{p, s}] = append(drawn[[2]int{p, s}], id)
			}
			told := 0
			out, err := m.Generate(prompts, rows, o, func(n int) { told += n })
			must(t, err)
			chunks, ended, tokens := 0, 0, 0
			for p := range out {
				for s, c := range out[p] {
					seqs := o.Chunks.Seqs(prompts[p], c.IDs)
					logp, _, err := m.LogProbs(seqs, o.Sampling.Temperature)
					must(t, err)
					same(t, name, c.Logp, slices.Concat(logp...))
					if !slices.Equal(drawn[[2]int{p, s}], c.IDs) {
						t.Errorf("%s: told of %v, got %v", name, drawn[[2]int{p, s}], c.IDs)
					}
					if c.Truncated != (len(c.IDs) == o.MaxNew &&
						!slices.Contains(o.EOS, c.IDs[len(c.IDs)-1])) {
						t.Errorf("%s: %d tokens, truncated %t", name, len(c.IDs), c.Truncated)
					}
					if chunks = max(chunks, len(seqs)); !c.Truncated {
						ended++
					}
					tokens += len(c.IDs)
				}
			}
			all += ended
			if chunks != 4 || told != tokens {
				t.Errorf("%s: %d chunks at most, %d ended, told of %d tokens of %d", name, chunks,
					ended, told, tokens)
			}
			// one chunk after another, by hand
			e, err := m.NewEngine(EngineOptions{Slots: 2, PageTokens: 4, Pages: 40, Longest: 50})
			must(t, err)
			var ids []int32
			for context, at := prompts[1], 0; len(ids) == at; at += 4 {
				n := 4
				if at == 0 {
					n, at = 9, 5
				}
				must(t, e.Submit(&Request{Prompt: context, N: 1, Sample: 2, Drawn: len(ids),
					MaxNew: n, Sampling: o.Sampling, EOS: o.EOS, Seed: o.Seed, Step: o.Step,
					Row: rows[1], Done: func(_ int, c Completion) { ids = append(ids, c.IDs...) }}))
				for !e.Idle() {
					must(t, e.Step())
				}
				if len(ids) >= o.MaxNew || slices.Contains(o.EOS, ids[len(ids)-1]) {
					break
				}
				context = slices.Concat(prompts[1], ids[:2], ids[len(ids)-3:])
			}
			e.Close()
			if want := out[1][2].IDs; !slices.Equal(ids, want) {
				t.Errorf("%s: by hand %v, want %v", name, ids, want)
			}
			o.Token = nil
			for _, slots := range []int{1, 4} {
				o.Slots, o.PageTokens = slots, 3
				again, err := m.Generate(prompts, rows, o, nil)
				must(t, err)
				sameCompletions(t, name, again, out)
			}
			// A chunk that no answer fills is no chunk.
			plain := o
			plain.Chunks = Chunks{}
			plain.MaxNew = 20
			want, err := m.Generate(prompts, rows, plain, nil)
			must(t, err)
			plain.Chunks = Chunks{Size: 20, Carry: 5, Head: 2, Most: 4}
			got, err := m.Generate(prompts, rows, plain, nil)
			must(t, err)
			sameCompletions(t, name, got, want)
			must(t, m.Close())
		}
		if all < 10 {
			t.Errorf("%d thoughts have ended: the test shows little", all)
		}
	})
}

// A pack computes a question once for all chunks of all its thoughts, and bits and gradients are
// those without that.
func TestChunksShareTheirQuestion(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m := load(t, be, "llama_linear", Options{Trainable: true})
		defer m.Close()
		c := Chunks{Size: 6, Carry: 3, Head: 1, Most: 4}
		q := []int32{3, 1, 4, 1, 5, 9, 2, 6}
		seqs := append(c.Seqs(q, []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), c.Seqs(q,
			[]int32{7, 5})...)
		alone := slices.Clone(seqs)
		tokens := 0
		for i := range alone {
			alone[i].Shared = 0
			tokens += len(alone[i].IDs)
		}
		if got, want := sequence.Rows(seqs, []int{0, 1, 2, 3}), tokens-3*len(q); got != want ||
			len(Packs(seqs, 100)) != 1 || len(Segments(seqs)) != 5 {
			t.Errorf("%d tokens are computed, want %d; %v", got, want, Segments(seqs))
		}
		got, _, err := m.LogProbs(seqs, 1)
		must(t, err)
		for i := range alone {
			want, _, err := m.LogProbs(alone[i:i+1], 1)
			must(t, err)
			same(t, "shared", got[i], want[0])
		}
		pull := func(logp, ent [][]float32) (_, _ [][]float32, err error) { return logp, ent, nil }
		must(t, m.LogProbGrad(seqs, 0.8, pull))
		grads := takeGrads(m)
		for i := range alone {
			must(t, m.LogProbGrad(alone[i:i+1], 0.8, pull))
		}
		sameGradients(t, m, grads, takeGrads(m))
	})
}

// The memory of a thought does not grow with its chunks.
func TestChunksPeak(t *testing.T) {
	var first int64
	for _, most := range []int{2, 4, 8, 16, 32, 64} {
		be := backends[len(backends)-1].new()
		m := load(t, be, "llama_linear", Options{})
		o := SampleOptions{N: 2, Sampling: Sampling{Temperature: 1}, Seed: 3,
			Chunks: Chunks{Size: 24, Carry: 12, Head: 4, Most: most}}
		o.MaxNew = o.Chunks.Longest()
		out, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{1}, o, nil)
		must(t, err)
		_, peak := be.Memory()
		if len(out[0][0].IDs) != o.MaxNew {
			t.Fatalf("%d tokens of %d", len(out[0][0].IDs), o.MaxNew)
		}
		t.Logf("%2d chunks, %4d tokens: peak %d bytes", most, o.MaxNew, peak)
		if first == 0 {
			first = peak
		}
		if peak != first {
			t.Errorf("%d chunks: peak %d bytes, with 2 %d", most, peak, first)
		}
		must(t, m.Close())
		must(t, be.Close())
	}
}
