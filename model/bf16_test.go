package model

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
)

// narrowly runs f on the CPU in bfloat16: as the machine does it best, and by
// rounding what the portable kernels multiply.
func narrowly(t *testing.T, f func(t *testing.T, be compute.Backend)) {
	for _, variant := range []string{"", "portable"} {
		be, err := cpu.New(cpu.Options{Precision: cpu.BF16, Variant: variant})
		must(t, err)
		t.Run(be.Name()[4:], func(t *testing.T) { f(t, be) })
		must(t, be.Close())
	}
}

// narrowShape is wide enough that a gradient is not one rounding's.
func narrowShape(arch string) Config {
	c := tiny(arch)
	c.Hidden, c.HeadDim, c.FFN, c.Vocab, c.InitRange = 64, 32, 96, 203, 0.15
	c.AttnScale /= 2 // of wider heads
	if c.Mixer.KeyDim > 0 {
		c.Mixer.KeyDim, c.Mixer.ValueDim = 24, 32
	}
	return c
}

// passed is what a model computes of sequences in TestBF16: log-probabilities and entropies, or
// scores, and the gradients of the parameters.
type passed struct {
	model   *Model
	results []float32
	grads   [][]float32
}

// pass computes a model's figures and gradients of sequences, with weights of its own or with
// another model's.
func pass(t *testing.T, be compute.Backend, c Config, kind Kind, from *Model) (x passed) {
	seqs := seqsOf(c.Vocab, 70, 5, 33)
	m, err := New(be, c, Options{Kind: kind, Trainable: true, Seed: 5, ScoreInit: 0.3,
		Repeat: from != nil})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	if from != nil {
		must(t, m.CopyWeights(from))
	} else {
		shake(m)
	}
	x.model = m
	if kind == Scorer {
		must(t, m.ScoreGrad(seqs, func(s []float32) ([]float32, error) {
			x.results = slices.Clone(s)
			return []float32{1, -0.5, 0.7}, nil
		}))
	} else {
		must(t, m.LogProbGrad(seqs, 0.8, func(l, e [][]float32) (dl, de [][]float32, err error) {
			for s := range l {
				x.results = slices.Concat(x.results, l[s], e[s])
				dl, de = append(dl, make([]float32, len(l[s]))),
					append(de, make([]float32, len(l[s])))
				for j := range l[s] {
					dl[s][j], de[s][j] = float32(math.Sin(float64(s+3*j)))-0.3, 0.1
				}
			}
			return dl, de, nil
		}))
	}
	for _, p := range m.params {
		x.grads = append(x.grads, values(be, p.G))
	}
	return x
}

// The whole model in bfloat16 against float32: log-probabilities, entropies and
// scores within bfloat16's 8 bits through two blocks; every parameter's gradient
// in the same direction.
func TestBF16(t *testing.T) {
	t.Parallel()
	truth, err := cpu.New(cpu.Options{})
	must(t, err)
	t.Cleanup(func() { truth.Close() })
	for i, arch := range architectures {
		for j, kind := range []Kind{LM, Scorer} {
			if !hostile.InTurn(i, j, 2) || testing.Short() && (i+j)%3 != 0 {
				continue
			}
			t.Run(fmt.Sprint(arch, kind), func(t *testing.T) {
				c := narrowShape(arch)
				want := pass(t, truth, c, kind, nil)
				narrowly(t, func(t *testing.T, be compute.Backend) {
					got := pass(t, be, c, kind, want.model)
					worst, largest, least := 0.0, 1.0, 1.0
					for i, x := range want.results {
						worst, largest = max(worst, math.Abs(float64(got.results[i]-x))),
							max(largest, math.Abs(float64(x)))
					}
					aligned := 0.999
					if c.Stateful() { // norms of small outputs
						aligned = 0.998
					}
					for i, p := range want.model.params {
						cos := between(got.grads[i], want.grads[i])
						least = min(least, cos)
						if !(cos > aligned) {
							t.Errorf("gradient of %s: cosine %.6f", p.Name, cos)
						}
					}
					t.Logf("furthest result %.2g of %.3g; least cosine of a gradient 1 - %.2g", worst,
						largest, 1-least)
					tol := 0.02
					if c.Mixer.Layers != nil { // products of three activations
						tol = 0.04
					}
					if !(worst <= tol*largest) || worst == 0 {
						t.Errorf("results differ by %g of %g", worst, largest)
					}
				})
			})
		}
	}
}

// between is the cosine of the angle between a and b.
func between(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// Optimizer steps by cross entropy fall as float32's do.
func TestBF16Training(t *testing.T) {
	c := narrowShape("Qwen2")
	seqs := seqsOf(c.Vocab, 40, 21, 30)
	losses := func(t *testing.T, be compute.Backend) (out []float64) {
		m, err := New(be, c, Options{Trainable: true, Seed: 2})
		must(t, err)
		defer m.Close()
		o, err := NewOptimizer(m,
			AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, ClipNorm: 1})
		must(t, err)
		for range 8 {
			loss, n := 0.0, 0
			must(t, m.LogProbGrad(seqs, 1, func(l, _ [][]float32) (dl, _ [][]float32, err error) {
				for i := range l {
					n += len(l[i])
				}
				for i := range l {
					dl = append(dl, slices.Repeat([]float32{-1 / float32(n)}, len(l[i])))
					for _, x := range l[i] {
						loss -= float64(x) / float64(n)
					}
				}
				return dl, nil, nil
			}))
			_, skipped, err := o.step(1e-3)
			must(t, err)
			if skipped {
				t.Fatal("a step was skipped")
			}
			out = append(out, loss)
		}
		return out
	}
	truth, err := cpu.New(cpu.Options{})
	must(t, err)
	defer truth.Close()
	want := losses(t, truth)
	narrowly(t, func(t *testing.T, be compute.Backend) {
		got := losses(t, be)
		t.Logf("loss %.4f to %.4f, in float32 %.4f to %.4f", got[0], got[7], want[0], want[7])
		for i := range want {
			if math.Abs(got[i]-want[i]) > 0.01*want[i] {
				t.Errorf("step %d: loss %g, in float32 %g", i+1, got[i], want[i])
			}
		}
		if got[7] > 0.9*got[0] {
			t.Errorf("the loss did not fall: %v", got)
		}
	})
}

// In bfloat16 too the sampler's log-probabilities are the trainer's, bit for bit,
// for any number of slots.
func TestBF16Generate(t *testing.T) {
	narrowly(t, func(t *testing.T, be compute.Backend) {
		for _, name := range []string{"qwen2_tied", "qwen3", "llama3_sharded"} {
			m := load(t, be, name, Options{})
			defer m.Close()
			prompts, rows := samplePrompts()
			o := sampleOptions()
			out, err := m.Generate(prompts, rows, o, nil)
			must(t, err)
			for _, slots := range []int{1, 4} {
				o.Slots = slots
				few, err := m.Generate(prompts, rows, o, nil)
				must(t, err)
				sameCompletions(t, fmt.Sprintf("%s: %d slots", name, slots), few, out)
			}
			var seqs []Seq
			var logp [][]float32
			for p := range out {
				for _, c := range out[p] {
					seqs, logp =
						append(seqs, Answer(slices.Concat(prompts[p], c.IDs), len(prompts[p]))),
						append(logp, c.Logp)
				}
			}
			want, _, err := m.LogProbs(seqs, o.Sampling.Temperature)
			must(t, err)
			for i := range want {
				same(t, name, logp[i], want[i])
			}
		}
	})
}
