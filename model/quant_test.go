package model

import (
	"fmt"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
)

// inBlocks is tiny with rows of whole blocks.
func inBlocks(arch string) Config {
	c := tiny(arch)
	c.Hidden, c.HeadDim, c.FFN, c.Vocab = 64, 16, 96, 50
	return c
}

// TestQuantBase: student, discriminator and reference on a base in blocks have the bits that
// they have on a base with the values of the blocks: log-probabilities, answers, adapters after
// steps, merged weights.
func TestQuantBase(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, be compute.Backend) {
		if be.Element(compute.Q8) == 0 {
			t.Skipf("%s has no weights in blocks", be.Name())
		}
		// with head norms and an activation of its own
		for i, arch := range []string{"Llama", "Qwen2", "Gemma3"} {
			for j, quant := range []string{"q8_0", "q4_0"} {
				if !hostile.InTurn(i, j, 2) {
					continue
				}
				var results [2][][]float32
				var answers [2][][]Completion
				blocks, err := New(be, inBlocks(arch), Options{Seed: 3, Quant: quant})
				must(t, err)
				native, err := New(be, inBlocks(arch), Options{Seed: 3})
				must(t, err)
				differ := 0
				for i, p := range blocks.params {
					if fmt.Sprint(values(be, p.W)) != fmt.Sprint(values(be, native.params[i].W)) {
						differ++
					}
				}
				if want := 7*2 + 2; differ < want-1 { // every matrix; tied weights are one less
					t.Fatalf("%s: %d tensors were rounded, want %d or one less", quant, differ,
						want)
				}
				must(t, native.CopyWeights(blocks))
				seqs := seqsOf(50, 9, 21, 40)
				for i, base := range []*Model{blocks, native} {
					keep := func(x ...[]float32) { results[i] = append(results[i], x...) }
					l := LoRA{Rank: 4}
					lm, err := base.Adapt(Options{Trainable: true, LoRA: l, Seed: 5})
					must(t, err)
					scorer, err := base.Adapt(
						Options{Kind: Scorer, Trainable: true, LoRA: l, Seed: 6, ScoreInit: 1})
					must(t, err)
					for _, m := range []*Model{lm, scorer} {
						opt, err := NewOptimizer(m,
							AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8})
						must(t, err)
						for range 2 {
							if m == lm {
								must(t, lm.LogProbGrad(seqs, 0.7,
									func(logp, ent [][]float32) (_, _ [][]float32,
										err error) {
										return logp, nil, nil
									}))
							} else {
								must(t, scorer.ScoreGrad(seqs,
									func(s []float32) ([]float32, error) { return s, nil }))
							}
							_, _, err = opt.step(0.05)
							must(t, err)
						}
						for _, p := range m.params {
							keep(values(be, p.W))
						}
					}
					was, _, err := base.LogProbs(seqs, 0.7)
					must(t, err)
					keep(was...)
					answers[i], err = lm.Generate([][]int32{seqs[0].IDs, seqs[1].IDs},
						[]uint64{0, 1},
						SampleOptions{N: 2, MaxNew: 9, Sampling: compute.Sampling{Temperature: 0.9},
							Seed: 42}, nil)
					must(t, err)
					merged, err := lm.Merged()
					must(t, err)
					for _, p := range merged.params {
						keep(values(be, p.W))
					}
					for _, m := range []*Model{merged, lm, scorer} {
						must(t, m.Close())
					}
				}
				for i := range results[0] {
					same(t, fmt.Sprintf("%s %s: result %d", arch, quant, i), results[0][i],
						results[1][i])
				}
				sameCompletions(t, arch+" "+quant, answers[0], answers[1])
				must(t, blocks.Close())
				must(t, native.Close())
			}
		}
	})
}

// TestQuantPlan: a frozen model takes the memory that is planned, and blocks that of ggml's
// files; what is not possible is refused.
func TestQuantPlan(t *testing.T) {
	for _, precision := range []string{cpu.F32, cpu.BF16} {
		be, err := cpu.New(cpu.Options{Workers: 1, Precision: precision})
		must(t, err)
		defer be.Close()
		c := inBlocks("Llama")
		c.Vocab, c.FFN = 512, 256
		// half of the parameters are embedding and head
		for quant, most := range map[string]float64{"q8_0": 1.07, "q4_0": 1.07 * 0.8} {
			before, _ := be.Memory()
			m, err := New(be, c, Options{Quant: quant})
			must(t, err)
			in, _ := be.Memory()
			p := c.Plan(be, PlanOptions{Quant: quant})
			if p.Weights != in-before || p.Copies != 0 ||
				float64(p.Weights) > most*float64(c.ParamCount(LM))+4*64*5 {
				t.Errorf("%s %s: %d bytes, planned %d and %d of copies, of %d parameters",
					precision, quant, in-before, p.Weights, p.Copies, c.ParamCount(LM))
			}
			must(t, m.Close())
		}
		for _, c := range []struct {
			cfg  Config
			o    Options
			want string
		}{
			{tiny("Llama"), Options{Quant: "q8_0"}, "model: model.embed_tokens.weight has rows of 12 elements: q8_0 keeps blocks of 32 of a row: keep the weights native"},
			{inBlocks("Llama"), Options{Quant: "q4_0", Trainable: true}, "model: weights in q4_0 are frozen, and all are to be trained: train LoRA adapters on them, or keep them native"},
			{inBlocks("Llama"), Options{Quant: "q4_1"}, `model: frozen weights in "q4_1": use native, q8_0 or q4_0`},
		} {
			if _, err := New(be, c.cfg, c.o); err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		}
	}
}

// TestQuantLoad: adapters are loaded onto a base in blocks, by lora.base and by Options.Quant.
func TestQuantLoad(t *testing.T) {
	be, err := cpu.New(cpu.Options{Workers: 1})
	must(t, err)
	defer be.Close()
	at := t.TempDir()
	whole, err := New(be, inBlocks("Llama"), Options{Seed: 1})
	must(t, err)
	defer whole.Close()
	must(t, whole.Save(dir(at).create, "", 0))
	for _, o := range []Options{{Quant: "q8_0"},
		{Trainable: true, LoRA: LoRA{Rank: 2, Base: "q8_0"}}} {
		m, err := Load(be, at, o)
		must(t, err)
		embed := m.embed
		x, want := values(be, embed.W), values(be, whole.embed.W)
		codes := make([]byte, 32)
		compute.Q8.Decode(want, codes, compute.Q8.Encode(codes, want))
		same(t, "the first block of the embedding", x[:32], want[:32])
		must(t, m.Close())
	}
	if _, err := Load(be, at, Options{Quant: "q8_0", Trainable: true}); err == nil ||
		!strings.Contains(err.Error(), "are frozen, and all are to be trained") {
		t.Errorf("trained in full: %v", err)
	}
}
