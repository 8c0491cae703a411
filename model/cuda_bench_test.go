//go:build nvidia

package model

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
	"gad/internal/compute/cuda"
)

// A training step and generation by whole models of Qwen2.5's shapes with random
// weights; scripts/peers/torch_step.py does the same in PyTorch, and
// scripts/gpu/bench.sh prints the ratios. GAD_BENCH_MODELS chooses the shapes,
// "0.5B 1.5B 3B" unless set; tiny is for an emulated device.

func qwen(hidden, layers, heads, kv, headDim, ffn, vocab int) Config {
	return Config{Architecture: "Qwen2", Hidden: hidden, Layers: layers, Heads: heads, KVHeads: kv,
		HeadDim: headDim, FFN: ffn, Vocab: vocab,
		MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e6, QKVBias: true, TieEmbeddings: true}
}

var qwens = map[string]Config{
	"tiny": qwen(128, 2, 2, 1, 64, 192, 320),
	"0.5B": qwen(896, 24, 14, 2, 64, 4864, 151936),
	"1.5B": qwen(1536, 28, 12, 2, 128, 8960, 151936),
	"3B":   qwen(2048, 36, 16, 2, 128, 11008, 151936),
}

// amount is how much a benchmark does.
type amount struct {
	seqs, length, prompt int // of a step: sequences, their tokens, of which prompt
	prompts, n, new      int // of generation: prompts, answers to each and their tokens
}

// cudaBenchmarks runs f for each model on a GPU, with the machine's limits measured.
func cudaBenchmarks(b *testing.B,
	f func(b *testing.B, be compute.Backend, roof compute.Roof, c Config, l amount)) {
	models := strings.Fields(os.Getenv("GAD_BENCH_MODELS"))
	if len(models) == 0 {
		models = []string{"0.5B", "1.5B", "3B"}
	}
	side := 8192
	if models[0] == "tiny" {
		side = 64
	}
	r := roof(b, side)
	b.Run("limits", func(b *testing.B) { computetest.Limits(b, r) })
	for _, name := range models {
		c, ok := qwens[name]
		if !ok {
			b.Fatalf("GAD_BENCH_MODELS: %q: want some of tiny, 0.5B, 1.5B and 3B", name)
		}
		b.Run(name, func(b *testing.B) {
			l := amount{seqs: 8, length: 2048, prompt: 512, prompts: 32, n: 8, new: 256}
			if name == "tiny" {
				l = amount{seqs: 2, length: 32, prompt: 8, prompts: 2, n: 2, new: 4}
			}
			if s := os.Getenv("GAD_BENCH_NEW"); s != "" {
				var err error
				l.new, err = strconv.Atoi(s)
				must(b, err)
			}
			f(b, gpu(b, cuda.BF16), r, c, l)
		})
	}
}

// roof is the machine's limits, measured on a backend of their own, so that a
// model's peak of memory is its own.
func roof(b *testing.B, side int) compute.Roof {
	b.Helper()
	be, err := cuda.Open(cuda.Options{})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		b.Skipf("NOT MEASURED: %v", err)
	}
	must(b, err)
	r, err := compute.MeasureRoof(be, side)
	must(b, errors.Join(err, be.Close()))
	return r
}

// memory reports the plan beside what was used.
func memory(b *testing.B, be compute.Backend, p Plan) {
	_, peak := be.Memory()
	b.ReportMetric(float64(p.Total())/1e9, "plan-GB")
	b.ReportMetric(float64(peak)/1e9, "peak-GB")
}

// BenchmarkStep is a training step of 8 sequences of 2,048 tokens, 512 of each a
// prompt: forward and backward pass of the answers' cross entropy, and AdamW.
// Operations count three forward passes; recomputation, which is there when the
// memory is short, is not counted.
func BenchmarkStep(b *testing.B) {
	cudaBenchmarks(b,
		func(b *testing.B, be compute.Backend, roof compute.Roof, c Config, l amount) {
			o, tokens := Options{Trainable: true, Repeat: true}, l.seqs*l.length
			plan := func() Plan {
				return c.Plan(be, PlanOptions{Trainable: true, Recompute: o.Recompute,
					Tokens: tokens})
			}
			room := be.Available()
			if room > 0 && plan().Total() > room {
				o.Recompute = true
			}
			if need := plan().Total(); room > 0 && need > room {
				b.Skipf("NOT MEASURED: needs %d bytes, and there are %d", need, room)
			}
			b.Logf("recompute %v", o.Recompute)
			m, err := New(be, c, o)
			must(b, err)
			defer m.Close()
			opt, err := NewOptimizer(m,
				AdamWConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.01, ClipNorm: 1})
			must(b, err)
			lengths := make([]int, l.seqs)
			for i := range lengths {
				lengths[i] = l.length
			}
			seqs := seqsOf(c.Vocab, lengths...)
			d := make([][]float32, l.seqs)
			for i := range seqs {
				seqs[i] = Answer(seqs[i].IDs, l.prompt)
				d[i] = make([]float32, l.length-l.prompt)
				for j := range d[i] {
					d[i][j] = -1 / float32(l.seqs*(l.length-l.prompt))
				}
			}
			step := func() {
				must(b, m.LogProbGrad(seqs, 1,
					func(_, _ [][]float32) (_, _ [][]float32, err error) { return d, nil, nil }))
				_, skipped, err := opt.step(1e-6)
				must(b, err)
				if skipped {
					b.Fatal("the gradient is not finite")
				}
			}
			step()
			for b.Loop() {
				step()
			}
			seconds := b.Elapsed().Seconds() / float64(b.N)
			context, answers := float64(l.length+1)/2, float64(l.seqs*(l.length-l.prompt))
			flops := 3 * (float64(tokens)*c.FLOPsPerToken(context, false) +
				answers*2*float64(c.Vocab*c.Hidden))
			computetest.ReportRoof(b, roof, flops, 0, seconds)
			b.ReportMetric(float64(tokens)/seconds, "tokens/s")
			memory(b, be, plan())
		})
}

// BenchmarkDecode generates 256 tokens for each of 8 answers to each of 32 prompts
// of 512 tokens, all at the same time. Bytes are what each token's step must read
// once: the weights, and keys and values, a prompt's for all its answers together.
func BenchmarkDecode(b *testing.B) {
	cudaBenchmarks(b,
		func(b *testing.B, be compute.Backend, roof compute.Roof, c Config, l amount) {
			m, err := New(be, c, Options{Repeat: true})
			must(b, err)
			defer func() { must(b, m.Close()) }()
			lengths := make([]int, l.prompts)
			for i := range lengths {
				lengths[i] = l.prompt
			}
			var prompts [][]int32
			var rows []uint64
			for i, s := range seqsOf(c.Vocab, lengths...) {
				prompts, rows = append(prompts, s.IDs), append(rows, uint64(i))
			}
			slots := l.prompts * l.n
			o := SampleOptions{N: l.n, MaxNew: l.new, Sampling: compute.Sampling{Temperature: 1},
				Slots: slots, Seed: 1}
			generate := func() {
				_, err := m.Generate(prompts, rows, o, nil)
				must(b, err)
			}
			generate()
			for b.Loop() {
				generate()
			}
			seconds := b.Elapsed().Seconds() / float64(b.N)
			weights := 0.0
			for _, p := range m.Params() {
				weights += 2 * float64(p.Len())
			}
			// positions, in the middle
			seen := float64(slots) * (float64(l.prompt) + float64(l.new)/2)
			kept := float64(l.prompts*l.prompt) + float64(slots*l.new)/2
			each := weights + kept*float64(2*2*c.Layers*c.KVHeads*c.HeadDim)
			fresh := float64(slots * l.new)
			flops := fresh*c.FLOPsPerToken(seen/float64(slots), true) +
				float64(l.prompts*l.prompt)*c.FLOPsPerToken(float64(l.prompt)/2, false)
			computetest.ReportRoof(b, roof, flops, each*float64(l.new), seconds)
			b.ReportMetric(fresh/seconds, "tokens/s")
			b.ReportMetric(1e3*seconds/float64(l.new), "ms/token-step")
			memory(b, be,
				c.Plan(be,
					PlanOptions{Slots: slots, N: l.n, Prompts: l.prompts, PromptTokens: l.prompt,
						MaxNew: l.new}))
			// The same with commands that are compared when the tokens are there.
			must(b, m.Close())
			m, err = New(behind{be}, c, Options{Repeat: true})
			must(b, err)
			generate()
			began := time.Now()
			generate()
			b.ReportMetric(1e3*time.Since(began).Seconds()/float64(l.new), "ms/token-step-behind")
		})
}

// behind is a backend that compares no commands ahead of Repeat.
type behind struct{ compute.Backend }

func (b behind) Repeat(key string, _ compute.Indices, op func()) {
	b.Backend.Repeat(key, compute.Indices{}, op)
}
