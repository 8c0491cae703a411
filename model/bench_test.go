package model

import (
	"testing"

	"gad/internal/compute"
)

// small is a model of 10.2 million parameters: large enough that the matrix
// products dominate, as they do in a real one.
var small = Config{
	Architecture: "Qwen2", Hidden: 320, Layers: 6, Heads: 5, KVHeads: 1, HeadDim: 64, FFN: 1280,
	Vocab: 4096, MaxPosition: 1024,
	RMSEps: 1e-6, RopeTheta: 1e4, QKVBias: true, TieEmbeddings: true,
}

func benchModel(b *testing.B, o Options) *Model {
	b.Helper()
	be := backends[len(backends)-1].new()
	m, err := New(be, small, o)
	must(b, err)
	b.Cleanup(func() {
		m.Close()
		be.Close()
	})
	return m
}

// A forward and backward pass and an optimizer step over a pack of 1024 tokens.
func BenchmarkTrain(b *testing.B) {
	for _, recompute := range []bool{false, true} {
		name := "keep"
		if recompute {
			name = "recompute"
		}
		b.Run(name, func(b *testing.B) {
			m := benchModel(b, Options{Trainable: true, Recompute: recompute})
			o, err := NewOptimizer(m, adamw())
			must(b, err)
			seqs := seqsOf(small.Vocab, 256, 256, 256, 256)
			for b.Loop() {
				must(b, m.LogProbGrad(seqs, 1,
					func(l, e [][]float32) (_, _ [][]float32, err error) { return l, nil, nil }))
				_, _, err := o.step(1e-6)
				must(b, err)
			}
			tokens := 1024 * float64(b.N) / b.Elapsed().Seconds()
			passes := 3.0
			if recompute {
				passes = 4
			}
			b.ReportMetric(tokens, "tokens/s")
			b.ReportMetric(tokens*passes*small.FLOPsPerToken(128, true)/1e9, "GFLOP/s")
		})
	}
}

// Log-probabilities of a pack of 1024 tokens.
func BenchmarkLogProbs(b *testing.B) {
	m := benchModel(b, Options{})
	seqs := seqsOf(small.Vocab, 256, 256, 256, 256)
	for b.Loop() {
		_, _, err := m.LogProbs(seqs, 1)
		must(b, err)
	}
	tokens := 1024 * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(tokens, "tokens/s")
	b.ReportMetric(tokens*small.FLOPsPerToken(128, true)/1e9, "GFLOP/s")
}

// 8 samples of 64 tokens for each of 8 prompts of 64 tokens.
func BenchmarkGenerate(b *testing.B) {
	m := benchModel(b, Options{})
	var prompts [][]int32
	var rows []uint64
	for i, s := range seqsOf(small.Vocab, 64, 64, 64, 64, 64, 64, 64, 64) {
		prompts, rows = append(prompts, s.IDs), append(rows, uint64(i))
	}
	for b.Loop() {
		_, err := m.Generate(prompts, rows,
			SampleOptions{N: 8, MaxNew: 64, Sampling: compute.Sampling{Temperature: 0.8}}, nil)
		must(b, err)
	}
	tokens := 8 * 8 * 64 * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(tokens, "tokens/s")
	b.ReportMetric(tokens*small.FLOPsPerToken(96, true)/1e9, "GFLOP/s")
}
