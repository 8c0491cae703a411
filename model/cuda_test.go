//go:build nvidia

package model

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
	"gad/internal/compute/cuda/driver"
	"gad/internal/hostile"
)

// gpu opens a GPU, emulated or not; where there is none the test is skipped,
// unless GAD_REQUIRE_CUDA says that there must be one.
func gpu(t testing.TB, precision string) compute.Backend {
	t.Helper()
	be, err := cuda.Open(cuda.Options{Precision: precision})
	if errors.Is(err, cuda.ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		t.Skipf("NOT TESTED: %v", err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, be.Close()) })
	return be
}

func processor(t testing.TB) compute.Backend {
	t.Helper()
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, be.Close()) })
	return be
}

// tensorCore is a configuration whose sizes matrix units and the fast attention
// kernels take; tiny's sizes go the other ways. Products keep the size of what
// they multiply: with smaller weights attention is nearly even, and gradients of q
// and k are differences that bfloat16 loses on any device.
func tensorCore(arch string, headDim int) Config {
	c := tiny(arch)
	c.Hidden, c.HeadDim, c.FFN, c.Vocab, c.InitRange =
		2*headDim, headDim, 192, 320, 1.2/math.Sqrt(float64(2*headDim))
	return c
}

// ruled has the gated delta rule with other widths of keys and values.
func ruled(c Config, keys, values int) Config {
	c.Mixer.KeyDim, c.Mixer.ValueDim = keys, values
	return c
}

// usual has the usual scale of attention: tiny's is one for its own heads.
func usual(c Config) Config {
	c.AttnScale = 1 / math.Sqrt(float64(c.HeadDim))
	return c
}

// narrowed makes a model whose weights are such as bfloat16 holds, so that what
// is compared is the computing, not the rounding of weights.
func narrowed(t testing.TB, be compute.Backend, c Config, o Options) *Model {
	t.Helper()
	m, err := New(be, c, o)
	must(t, err)
	shake(m)
	narrow(m)
	return m
}

// narrow rounds m's own weights to values of bfloat16, ties to even as devices do.
func narrow(m *Model) {
	for _, p := range m.params {
		w := values(m.be, p.W)
		m.fill(p,
			func(j int) float32 {
				bits := math.Float32bits(w[j])
				return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
			})
	}
}

// away is the largest difference of two vectors, as a share of the largest
// element of b, or of 1 if that is more.
func away(a, b []float32) (share float64) {
	largest := 1.0
	for i := range b {
		share, largest =
			max(share, math.Abs(float64(a[i]-b[i]))), max(largest, math.Abs(float64(b[i])))
	}
	return share / largest
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	if aa == 0 && bb == 0 {
		return 1
	}
	return ab / math.Sqrt(aa*bb)
}

// someCUDA reports whether the tests on CUDA take a share of what differs in precision,
// recomputation and the like: on an emulated device, but for GAD_LONG.
func someCUDA() bool { return driver.Emulated() != nil && !hostile.Long() }

// The whole model on the GPU and on the CPU: log-probabilities, entropies,
// scores, and the gradient of every parameter, in both precisions, by the fast
// kernels and by those that take any size.
func TestCUDAAgainstCPU(t *testing.T) {
	gpu(t, cuda.F32) // opens the driver, or skips
	shapes := map[string]Config{
		"Qwen2 E=64": tensorCore("Qwen2", 64), "Qwen3 E=64": tensorCore("Qwen3", 64),
		"Llama E=128": tensorCore("Llama", 128),
		"Qwen2 odd":   tiny("Qwen2"), "Mistral odd": tiny("Mistral"),
		"Gemma3 E=64": usual(tensorCore("Gemma3", 64)), "SmolLM3 E=64": tensorCore("SmolLM3", 64),
		"Granite E=64": tensorCore("Granite", 64), "Olmo2 E=64": tensorCore("Olmo2", 64),
		"Gemma3 odd": usual(tiny("Gemma3")), "Mistral E=64": tensorCore("Mistral", 64),
		"Olmo3 E=64": tensorCore("Olmo3", 64), "Ministral3 E=64": tensorCore("Ministral3", 64),
		"Phi3 E=64": tensorCore("Phi3", 64), "GraniteMoeHybrid odd": tiny("GraniteMoeHybrid"),
		"Gemma2 E=64": usual(tensorCore("Gemma2", 64)), "Gemma2 odd": usual(tiny("Gemma2")),
		"Lfm2 E=64": tensorCore("Lfm2", 64), "Lfm2 odd": tiny("Lfm2"),
		"Qwen3_5 E=64": ruled(tensorCore("Qwen3_5", 64), 32, 64),
		"Qwen3_5 odd":  ruled(tiny("Qwen3_5"), 23, 37),
	}
	for arm, name := range slices.Sorted(maps.Keys(shapes)) {
		for way, precision := range []string{cuda.F32, cuda.BF16} {
			t.Run(name+"/"+precision, func(t *testing.T) {
				for k, recompute := range []bool{false, true} {
					if !someCUDA() || arm%2 == way && arm/2%2 == k {
						againstCPU(t, shapes[name], precision, recompute)
					}
				}
			})
		}
	}
}

// answered puts further answers, of so many tokens, to the first sequence's prompt behind
// that: they share it in a pack.
func answered(seqs []Seq, lengths ...int) []Seq {
	for k, n := range lengths {
		ids := slices.Clone(seqs[0].IDs[:seqs[0].Prompt()])
		for j := range n {
			ids = append(ids, int32((11*j+k+3)%29)) // ids that every shape has
		}
		seqs = slices.Insert(seqs, 1+k, Answer(ids, seqs[0].Prompt()))
	}
	return seqs
}

func againstCPU(t *testing.T, c Config, precision string, recompute bool) {
	tol, angle := 1e-5, 1-1e-9
	if precision == cuda.BF16 { // 8 bits, through two blocks
		tol, angle = 0.02, 0.998
	}
	if c.Stateful() { // norms of small outputs
		angle = 1 - 10*(1-angle)
	}
	seqs := answered(seqsOf(c.Vocab, 70, 5, 33), 1, 60)
	be, truth := gpu(t, precision), processor(t)
	var worst struct{ logp, ent, score, cos float64 }
	worst.cos = 1
	for _, kind := range []Kind{LM, Scorer} {
		o := Options{Kind: kind, Trainable: true, Recompute: recompute, Seed: 5, ScoreInit: 0.3}
		m, want := narrowed(t, be, c, o), narrowed(t, truth, c, o)
		run := func(m *Model) (logp, ent [][]float32, score []float32) {
			if kind == Scorer {
				must(t, m.ScoreGrad(seqs, func(s []float32) ([]float32, error) {
					score = slices.Clone(s)
					return []float32{1, -0.5, 0.7, 0.2, -1}, nil
				}))
				// more scores than sequences, of episodes of one, two and three turns
				turns := slices.Clone(seqs)
				turns[0].Spans = []Span{{From: 23, To: 30}, {From: 40, To: 41}, {From: 60, To: 70}}
				turns[2].Spans = []Span{{From: 23, To: 50}, {From: 51, To: 83}}
				must(t, m.TurnScoreGrad(turns, func(s []float32) ([]float32, error) {
					score = append(score, s...)
					return []float32{0.5, -0.3, 0.2, 0.4, -1, 0.6, 0.1, -0.8}, nil
				}))
				return nil, nil, score
			}
			must(t, m.LogProbGrad(seqs, 0.8,
				func(l, e [][]float32) (dl, de [][]float32, err error) {
					logp, ent = l, e
					for i := range l {
						dl, de =
							append(dl, make([]float32, len(l[i]))),
							append(de, make([]float32, len(l[i])))
						for j := range l[i] {
							dl[i][j], de[i][j] = float32(math.Sin(float64(i+3*j)))-0.3, 0.1
						}
					}
					return dl, de, nil
				}))
			return logp, ent, nil
		}
		logp, ent, score := run(m)
		logpW, entW, scoreW := run(want)
		for i := range logp {
			worst.logp, worst.ent =
				max(worst.logp, away(logp[i], logpW[i])), max(worst.ent, away(ent[i], entW[i]))
		}
		worst.score = max(worst.score, away(score, scoreW))
		for i, p := range m.params {
			g, gW := make([]float32, p.Len()), make([]float32, p.Len())
			be.Download(g, p.G)
			truth.Download(gW, want.params[i].G)
			cos := cosine(g, gW)
			worst.cos = min(worst.cos, cos)
			if !(cos > angle) {
				t.Errorf("gradient of %s: cosine %.9f", p.Name, cos)
			}
		}
		must(t, m.Close())
		must(t, want.Close())
	}
	t.Logf("recompute %v: furthest log-probability %.2g, entropy %.2g, score %.2g; least cosine of a gradient 1 - %.2g", recompute, worst.logp, worst.ent, worst.score, 1-worst.cos)
	if c.Mixer.Layers != nil { // products of three rounded activations
		tol *= 1.5
	}
	// Scores here are up to 5, of which bfloat16 has 0.02 as its last place; thirteen are compared.
	if !(worst.logp <= tol && worst.ent <= tol && worst.score <= 1.5*tol) {
		t.Errorf("recompute %v: %+v: want at most %g", recompute, worst, tol)
	}
}

// Answers that share their prompt's rows have the values that they have with a prompt
// each: on the emulated device, whose products do not depend on the number of rows, to
// the bit. Gradients are sums in another order. So have answers of trees.
func TestCUDASharedPrompts(t *testing.T) {
	gpu(t, cuda.F32) // opens the driver, or skips
	for arm, headDim := range []int{64, 128} {
		for way, precision := range []string{cuda.F32, cuda.BF16} {
			if someCUDA() && arm != way {
				continue
			}
			t.Run(fmt.Sprintf("E=%d/%s", headDim, precision), func(t *testing.T) {
				c := tensorCore("Qwen2", headDim)
				c.MaxPosition = 256
				seqs := answered(seqsOf(c.Vocab, 200, 9), 1, 70, 3)
				trees := sprouts(rand.New(rand.NewPCG(7, 8)), 60, 9)
				saved := 3*seqs[0].Prompt() - distinct(trees)
				for _, s := range trees {
					saved += len(s.IDs)
				}
				seqs = append(seqs, trees...)
				be := gpu(t, precision)
				tol, angle := 1e-5, 1-1e-9
				if precision == cuda.BF16 {
					tol, angle = 0.02, 0.999
				}
				if driver.Emulated() != nil {
					tol = 0
				}
				m := narrowed(t, be, c, Options{Trainable: true, Seed: 5})
				defer m.Close()
				run := func(apart bool) (logp, grad [][]float32) {
					m.unshared = apart
					for _, p := range m.params {
						be.Zero(p.G)
					}
					must(t, m.LogProbGrad(seqs, 0.8,
						func(l, _ [][]float32) (dl, _ [][]float32, err error) {
							for i := range l {
								logp, dl =
									append(logp, slices.Clone(l[i])),
									append(dl, make([]float32, len(l[i])))
								for j := range l[i] {
									dl[i][j] = float32(math.Sin(float64(i+3*j))) - 0.3
								}
							}
							return dl, nil, nil
						}))
					for _, p := range m.params {
						g := make([]float32, p.Len())
						be.Download(g, p.G)
						grad = append(grad, g)
					}
					must(t, be.Sync())
					return logp, grad
				}
				logp, grad := run(false)
				rows := len(m.pk.ids)
				logpW, gradW := run(true)
				if want := len(m.pk.ids) - saved; rows != want {
					t.Errorf("a pass of %d tokens, want %d: what is shared once", rows, want)
				}
				for i := range logpW {
					if x := away(logp[i], logpW[i]); !(x <= tol) {
						t.Errorf("log-probabilities of sequence %d: off by %g, want at most %g", i,
							x, tol)
					}
				}
				least := 1.0
				for i, p := range m.params {
					cos := cosine(grad[i], gradW[i])
					if least = min(least, cos); !(cos > angle) {
						t.Errorf("gradient of %s: cosine %.9f", p.Name, cos)
					}
				}
				t.Logf("least cosine of a gradient 1 - %.2g", 1-least)
			})
		}
	}
}

// Adapters that peft saved, and its figures, on the GPU.
func TestCUDAAgainstPeft(t *testing.T) { againstPeft(t, gpu(t, cuda.F32)) }

// Adapters on the GPU and on the CPU, beside frozen weights that are Narrow:
// log-probabilities, scores, gradients, sampling, and the weights with the adapters
// added, before and after a step.
func TestCUDALoRA(t *testing.T) {
	gpu(t, cuda.F32) // opens the driver, or skips
	shapes := map[string]struct {
		c Config
		l LoRA
	}{
		"Llama q8_0": {tensorCore("Llama", 64), LoRA{Rank: 8, Base: "q8_0"}},
		"Qwen2 q4_0": {tensorCore("Qwen2", 64), LoRA{Rank: 8, Base: "q4_0"}},
		"Qwen2 E=64": {tensorCore("Qwen2", 64), LoRA{Rank: 8}},
		"Llama odd":  {tiny("Llama"), LoRA{Rank: 3, Alpha: 5, RSLoRA: true}},
		"Gemma3":     {usual(tensorCore("Gemma3", 64)), LoRA{Rank: 4}},
		"Olmo2":      {tensorCore("Olmo2", 64), LoRA{Rank: 4}},
		"Qwen3 some": {tensorCore("Qwen3", 64),
			LoRA{Rank: 1, Alpha: 5, Targets: "q_proj,o_proj,down_proj"}},
	}
	for arm, name := range slices.Sorted(maps.Keys(shapes)) {
		shape := shapes[name]
		for way, precision := range []string{cuda.F32, cuda.BF16} {
			if someCUDA() && shape.l.Base == "" && arm%2 != way {
				continue
			}
			t.Run(name+"/"+precision, func(t *testing.T) {
				be, truth := gpu(t, precision), processor(t)
				o := Options{Seed: 5, Quant: shape.l.Base}
				base, baseW := narrowed(t, be, shape.c, o), narrowed(t, truth, shape.c, o)
				var frozen [][]float32
				for i, p := range base.params {
					frozen = append(frozen, values(be, p.W))
					same(t, "beside the CPU's "+p.Name, frozen[i], values(truth, baseW.params[i].W))
				}
				for j, kind := range []Kind{LM, Scorer} {
					for k, recompute := range []bool{false, true} {
						if someCUDA() && (j+way+k)%2 == 1 {
							continue
						}
						o := Options{Kind: kind, Trainable: true, Recompute: recompute,
							LoRA: shape.l, Seed: 7, ScoreInit: 0.3}
						m, err := base.Adapt(o)
						must(t, err)
						want, err := baseW.Adapt(o)
						must(t, err)
						adaptersAgainstCPU(t, m, want, precision)
						must(t, m.Close())
						must(t, want.Close())
					}
				}
				for i, p := range base.params {
					same(t, "the base's "+p.Name, values(be, p.W), frozen[i])
				}
				must(t, base.Close())
				must(t, baseW.Close())
			})
		}
	}
}

func adaptersAgainstCPU(t *testing.T, m, want *Model, precision string) {
	tol, angle := 1e-5, 1-1e-9
	if precision == cuda.BF16 {
		tol, angle = 0.02, 0.998
	}
	kind, c := m.opt.Kind, m.cfg
	seqs := answered(seqsOf(c.Vocab, 70, 5, 33), 1, 60)
	// read is the log-probabilities, or the scores, of all sequences.
	read := func(m *Model) (out []float32) {
		if kind == Scorer {
			out, err := m.Scores(seqs)
			must(t, err)
			return out
		}
		logp, _, err := m.LogProbs(seqs, 0.8)
		must(t, err)
		return slices.Concat(logp...)
	}
	train := func(m *Model) (out []float32) {
		if kind == Scorer {
			must(t, m.ScoreGrad(seqs, func(s []float32) ([]float32, error) {
				out = slices.Clone(s)
				return []float32{1, -0.5, 0.7, 0.2, -1}, nil
			}))
			return out
		}
		must(t, m.LogProbGrad(seqs, 0.8, func(l, _ [][]float32) (dl, _ [][]float32, err error) {
			out = slices.Concat(l...)
			for i := range l {
				dl = append(dl, make([]float32, len(l[i])))
				for j := range l[i] {
					dl[i][j] = float32(math.Sin(float64(i+3*j))) - 0.3
				}
			}
			return dl, nil, nil
		}))
		return out
	}
	near := func(what string, got, want []float32) {
		t.Helper()
		x := away(got, want)
		t.Logf("%v recompute %v: %s: off by %.2g", kind, m.opt.Recompute, what, x)
		if len(got) != len(want) || !(x <= tol) {
			t.Errorf("%v recompute %v: %s: off by %g, want at most %g", kind, m.opt.Recompute, what,
				x, tol)
		}
	}
	was := read(m)
	if kind == LM {
		same(t, "an adapter whose B is zero", was, read(m.base))
	}
	for _, m := range []*Model{m, want} {
		for i, p := range m.params {
			// larger ones lose k's gradients in bfloat16, as tensorCore says
			if strings.HasSuffix(p.Name, ".lora_B.weight") {
				m.fill(p,
					func(j int) float32 { return float32(0.1 * math.Sin(float64(3*i+7*j+1))) })
			}
		}
		narrow(m)
	}
	out, outW := train(m), train(want)
	near("adapted", out, outW)
	if x := away(out, was); !(x > 3*tol) {
		t.Errorf("%v: the adapters change the values by %g only: the test shows little", kind, x)
	}
	least := 1.0
	for i, p := range m.params {
		cos := cosine(values(m.be, p.G), values(want.be, want.params[i].G))
		if least = min(least, cos); !(cos > angle) {
			t.Errorf("gradient of %s: cosine %.9f", p.Name, cos)
		}
	}
	t.Logf("%v recompute %v: least cosine of a gradient 1 - %.2g", kind, m.opt.Recompute, 1-least)
	if m.opt.Recompute {
		return
	}

	merged, err := m.Merged()
	must(t, err)
	defer merged.Close()
	mergedW, err := want.Merged()
	must(t, err)
	defer mergedW.Close()
	near("merged", read(merged), read(mergedW))
	if kind == LM {
		o := SampleOptions{N: 3, MaxNew: 24, Sampling: compute.Sampling{Temperature: 0.9}, Seed: 42,
			Step: 7, Slots: 3}
		prompt := seqs[0].IDs[:17]
		for _, m := range []*Model{m, merged} {
			out, err := m.Generate([][]int32{prompt}, []uint64{3}, o, nil)
			must(t, err)
			var drawn []Seq
			var logp []float32
			for _, c := range out[0] {
				drawn, logp =
					append(drawn, Answer(slices.Concat(prompt, c.IDs), len(prompt))),
					append(logp, c.Logp...)
			}
			again, _, err := m.LogProbs(drawn, 0.9)
			must(t, err)
			bound := map[string]float64{cuda.F32: 1e-4, cuda.BF16: 0.1}[precision]
			if x := away(logp, slices.Concat(again...)); !(x <= bound) {
				t.Errorf("sampler and trainer differ by %g, want at most %g", x, bound)
			}
		}
	}
	opt, err := NewOptimizer(m, adamw())
	must(t, err)
	_, _, err = opt.step(0.02)
	must(t, err)
	stepped := read(m)
	if x := away(stepped, out); !(x > 3*tol) {
		t.Errorf("%v: the step changes the values by %g only: the test shows little", kind, x)
	}
	must(t, m.Remerge(merged))
	near("merged again", read(merged), stepped)
}

// overfit is n AdamW steps of m by cross entropy on seqs: the losses.
func overfit(t testing.TB, m *Model, c AdamWConfig, seqs []Seq, n int) (out []float64) {
	t.Helper()
	o, err := NewOptimizer(m, c)
	must(t, err)
	for range n {
		loss := 0.0
		must(t, m.LogProbGrad(seqs, 1, func(l, _ [][]float32) (dl, _ [][]float32, err error) {
			n := 0
			for i := range l {
				n += len(l[i])
			}
			for i := range l {
				dl = append(dl, make([]float32, len(l[i])))
				for j := range l[i] {
					loss -= float64(l[i][j]) / float64(n)
					dl[i][j] = -1 / float32(n)
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

// overfitting is overfit's optimizer.
var overfitting = AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, ClipNorm: 1}

// Optimizer steps by cross entropy follow the CPU's.
func TestCUDATraining(t *testing.T) {
	for _, precision := range []string{cuda.F32, cuda.BF16} {
		t.Run(precision, func(t *testing.T) {
			c := tensorCore("Qwen2", 64)
			seqs := seqsOf(c.Vocab, 40, 21, 30)
			losses := func(be compute.Backend) []float64 {
				m := narrowed(t, be, c, Options{Trainable: true, Seed: 2})
				defer m.Close()
				return overfit(t, m, overfitting, seqs, 8)
			}
			got, want := losses(gpu(t, precision)), losses(processor(t))
			tol := map[string]float64{cuda.F32: 1e-4, cuda.BF16: 0.03}[precision]
			t.Logf("loss %.4f to %.4f, on the CPU %.4f to %.4f", got[0], got[7], want[0], want[7])
			for i := range want {
				if math.Abs(got[i]-want[i]) > tol*want[i] {
					t.Errorf("step %d: loss %g, on the CPU %g", i+1, got[i], want[i])
				}
			}
			if got[7] > 0.8*got[0] {
				t.Errorf("the loss did not fall: %v", got)
			}
		})
	}
}

// Training with moments in 8 bits follows float32's, and the CPU's; with moments in the
// host's memory it has the same bits, and the device holds less by just the moments.
func TestCUDAMoments(t *testing.T) {
	for _, precision := range []string{cuda.F32, cuda.BF16} {
		t.Run(precision, func(t *testing.T) {
			c := tensorCore("Qwen2", 64)
			seqs := seqsOf(c.Vocab, 40, 21, 30)
			losses := map[bool][]float64{}
			for _, eight := range []bool{false, true} {
				var bits []float32
				var took int64
				for _, offload := range []bool{false, true} {
					be := gpu(t, precision)
					m := narrowed(t, be, c, Options{Trainable: true, Seed: 2})
					o := overfitting
					o.Moments8, o.Offload = eight, offload
					got := overfit(t, m, o, seqs, 8)
					var state []float32
					for _, p := range m.params {
						for _, x := range []compute.Tensor{p.W, p.M, p.V, p.MScale, p.VScale} {
							if !x.Absent() {
								state = append(state, values(be, x)...)
							}
						}
					}
					inUse, _ := be.Memory()
					if !offload {
						losses[eight], bits, took = got, state, inUse
					} else {
						if !slices.Equal(got, losses[eight]) || !slices.Equal(state, bits) {
							t.Errorf("8 bits %v: other losses or other bits with moments on the host: %v, want %v", eight, got, losses[eight])
						}
						if want := momentBytes(m, be, o) - momentBytes(m, be,
							AdamWConfig{Moments8: eight}); inUse-took != want {
							t.Errorf("8 bits %v: moments on the host change the device's memory by %d bytes, want %d", eight, inUse-took, want)
						}
					}
					must(t, m.Close())
				}
			}
			m := narrowed(t, processor(t), c, Options{Trainable: true, Seed: 2})
			defer m.Close()
			o := overfitting
			o.Moments8 = true
			want := overfit(t, m, o, seqs, 8)
			t.Logf("loss %.4f to %.4f, with moments in 8 bits %.4f, on the CPU %.4f",
				losses[false][0], losses[false][7], losses[true][7], want[7])
			tol := map[string]float64{cuda.F32: 1e-3, cuda.BF16: 0.03}[precision]
			for i, x := range losses[true] {
				if math.Abs(x-want[i]) > tol*want[i] {
					t.Errorf("step %d: loss %g with moments in 8 bits, on the CPU %g", i+1, x,
						want[i])
				}
				if math.Abs(x-losses[false][i]) > 0.05*x {
					t.Errorf("step %d: loss %g with moments in 8 bits, %g with float32", i+1, x,
						losses[false][i])
				}
			}
			if slices.Equal(losses[true], losses[false]) {
				t.Error("moments in 8 bits change nothing")
			}
		})
	}
}

// momentBytes are the bytes that NewOptimizer takes of the device for m.
func momentBytes(m *Model, f Footprint, o AdamWConfig) int64 {
	host := compute.Class(0)
	if o.Offload {
		host = compute.Host
	}
	parts := partsOf(m.params, 0, extent(m.params))
	return needBytes(f, partNeeds(m.params, parts, o.Moments8, host))
}

// Sampling: the tokens are the CPU's in float32; log-probabilities are those that
// the trainer computes; a second call draws the same.
func TestCUDAGenerate(t *testing.T) {
	// queries of Ministral 3 are scaled by position: no single operation rotates them and writes;
	// Qwen3.5 has states of sequences
	for _, x := range [][2]string{{"Qwen2", cuda.F32}, {"Qwen2", cuda.BF16},
		{"Ministral3", cuda.F32}, {"Qwen3_5", cuda.F32}} {
		arch, precision := x[0], x[1]
		t.Run(arch+" "+precision, func(t *testing.T) {
			be := gpu(t, precision)
			c := tensorCore(arch, 64)
			if c.Stateful() {
				c = ruled(c, 32, 64)
			}
			m := narrowed(t, be, c, Options{Seed: 3})
			defer m.Close()
			var prompts [][]int32
			for _, s := range seqsOf(c.Vocab, 4, 17, 1, 32, 6) {
				prompts = append(prompts, s.IDs)
			}
			rows := []uint64{3, 0, 1 << 40, 9, 4}
			o := SampleOptions{N: 3, MaxNew: 24, Sampling: compute.Sampling{Temperature: 0.9},
				EOS: []int32{5, 11, 23, 40, 61, 88, 120, 200}, Seed: 42, Step: 7, Slots: 6}
			out, err := m.Generate(prompts, rows, o, nil)
			must(t, err)
			again, err := m.Generate(prompts, rows, o, nil)
			must(t, err)
			sameCompletions(t, "a second time", again, out)

			var seqs []Seq
			var logp [][]float32
			for p := range out {
				for _, c := range out[p] {
					seqs = append(seqs, Answer(slices.Concat(prompts[p], c.IDs), len(prompts[p])))
					logp = append(logp, c.Logp)
				}
			}
			want, _, err := m.LogProbs(seqs, o.Sampling.Temperature)
			must(t, err)
			worst := 0.0
			for i := range want {
				worst = max(worst, away(logp[i], want[i]))
			}
			t.Logf("sampler and trainer differ by at most %.2g", worst)
			if tol := map[string]float64{cuda.F32: 1e-4, cuda.BF16: 0.1}[precision]; worst > tol {
				t.Errorf("sampler and trainer differ by %g", worst)
			}
			if precision == cuda.F32 {
				truth := narrowed(t, processor(t), c, Options{Seed: 3})
				defer truth.Close()
				want, err := truth.Generate(prompts, rows, o, nil)
				must(t, err)
				for p := range want {
					for s := range want[p] {
						if !slices.Equal(out[p][s].IDs, want[p][s].IDs) {
							t.Errorf("prompt %d sample %d: %v, on the CPU %v", p, s, out[p][s].IDs,
								want[p][s].IDs)
						}
					}
				}
			}
		})
	}
}

// Whichever allocation of the device fails, the error comes back, nothing stays
// allocated and the device can be used again.
func TestCUDAOutOfMemory(t *testing.T) {
	gpu(t, cuda.BF16)
	device := driver.Emulated()
	if device == nil {
		t.Skip("NOT TESTED: needs the emulated device, which can be told to fail")
	}
	c := tiny("Qwen3")
	seqs := seqsOf(c.Vocab, 9, 12)
	before := device.Allocs()
	n := 0
	for ; ; n++ {
		be, err := cuda.Open(cuda.Options{})
		must(t, err)
		device.FailAlloc(n)
		err = func() error {
			m, err := New(be, c, Options{Trainable: true})
			if err != nil {
				return err
			}
			defer m.Close()
			if _, err := NewOptimizer(m, adamw()); err != nil {
				return err
			}
			if err := m.LogProbGrad(seqs, 1,
				func(l, _ [][]float32) (_, _ [][]float32, err error) {
					return l, nil,
						nil
				}); err != nil {
				return err
			}
			_, err = m.Generate([][]int32{{1, 2}}, []uint64{0},
				SampleOptions{N: 2, MaxNew: 3, Sampling: compute.Sampling{Temperature: 1}}, nil)
			return err
		}()
		device.FailAlloc(-1)
		if err == nil {
			must(t, be.Close())
			break
		}
		// The same again, with memory: the failure is forgotten.
		m, err := New(be, c, Options{})
		if err != nil {
			t.Fatalf("after the failure of allocation %d: %v", n, err)
		}
		if _, _, err := m.LogProbs(seqs, 1); err != nil {
			t.Fatalf("after the failure of allocation %d: %v", n, err)
		}
		must(t, m.Close())
		must(t, be.Close())
		if after := device.Allocs(); after != before {
			t.Fatalf("allocation %d failed: %d blocks stay allocated", n, after-before)
		}
	}
	if n < 50 {
		t.Errorf("only %d allocations were made: the test shows little", n)
	}
	t.Logf("%d allocations failed, one at a time", n)
}

// The plan is what the model then takes, within 3 %, the copies of its weights
// and the operations' scratch included, and what is counted is what the device has less.
func TestCUDAPlan(t *testing.T) {
	c := tensorCore("Qwen2", 64)
	c.Hidden, c.Heads, c.FFN, c.Vocab = 256, 4, 512, 4096
	seqs := seqsOf(c.Vocab, 60, 68)
	for i := range seqs {
		// nearly as many rows of the head as tokens, which a plan reckons with
		seqs[i] = Answer(seqs[i].IDs, 1)
	}
	for i, precision := range []string{cuda.F32, cuda.BF16} {
		type planned struct {
			PlanOptions
			AdamWConfig // Moments8 and Offload
		}
		var all []planned
		for _, o := range []PlanOptions{
			{Tokens: 128},
			{Tokens: 128, Trainable: true},
			{Tokens: 128, Trainable: true, Recompute: true},
			{Kind: Scorer, Tokens: 128, Trainable: true},
			{Slots: 8, N: 8, Prompts: 1, PromptTokens: 48, MaxNew: 8},
			{Tokens: 128, Trainable: true, LoRA: LoRA{Rank: 16}},
			{Kind: Scorer, Tokens: 128, Trainable: true, Recompute: true, LoRA: LoRA{Rank: 16}},
			{Slots: 8, N: 8, Prompts: 1, PromptTokens: 48, MaxNew: 8, LoRA: LoRA{Rank: 16}},
			{Tokens: 128, Quant: "q8_0"},
			{Tokens: 128, Trainable: true, Recompute: true, LoRA: LoRA{Rank: 16}, Quant: "q8_0"},
			{Tokens: 128, Trainable: true, Recompute: true, LoRA: LoRA{Rank: 16}, Quant: "q4_0"},
			{Slots: 8, N: 8, Prompts: 1, PromptTokens: 48, MaxNew: 8, LoRA: LoRA{Rank: 16},
				Quant: "q4_0"},
			{Slots: 96, N: 96, Prompts: 1, PromptTokens: 48, MaxNew: 8, Quant: "q4_0"},
			{Slots: 96, N: 96, Prompts: 1, PromptTokens: 48, MaxNew: 8, Quant: "q8_0"},
		} {
			all = append(all, planned{o, adamw()})
			for _, eight := range []bool{false, true} {
				for _, offload := range []bool{false, true} {
					if a := adamw(); o.Trainable && !o.Recompute && o.Kind == LM &&
						(eight || offload) {
						o.Moments8, o.Offload = eight, offload
						a.Moments8, a.Offload = eight, offload
						all = append(all, planned{o, a})
					}
				}
			}
		}
		for k, o := range all {
			if someCUDA() && k%2 != i {
				continue
			}
			be := gpu(t, precision)
			_, before := be.Memory()
			free := be.Available()
			plan := c.Plan(be, o.PlanOptions).Total()
			opt := Options{Kind: o.Kind, Trainable: o.Trainable, Recompute: o.Recompute,
				LoRA: o.LoRA}
			var m *Model
			var err error
			if o.LoRA.On() {
				base, errBase := New(be, c, Options{Quant: o.Quant})
				must(t, errBase)
				of := c.Plan(be, PlanOptions{Quant: o.Quant})
				plan += of.Weights + of.Copies
				m, err = base.Adapt(opt)
				must(t, base.Close()) // once m is closed
			} else {
				opt.Quant = o.Quant
				m, err = New(be, c, opt)
			}
			must(t, err)
			if o.Trainable {
				_, err = NewOptimizer(m, o.AdamWConfig)
				must(t, err)
				if parts := c.Plan(be, o.PlanOptions); parts.Moments != momentBytes(m, be,
					o.AdamWConfig) {
					t.Errorf("%+v: %d bytes of moments planned, want %d", o.PlanOptions,
						parts.Moments, momentBytes(m, be, o.AdamWConfig))
				}
			}
			switch {
			case o.Slots > 0:
				_, err = m.Generate([][]int32{make([]int32, o.PromptTokens)}, []uint64{0},
					SampleOptions{N: o.N, MaxNew: o.MaxNew, Slots: o.Slots,
						Sampling: compute.Sampling{Temperature: 1}}, nil)
			case o.Kind == Scorer:
				err = m.ScoreGrad(seqs, func(s []float32) ([]float32, error) { return s, nil })
			case o.Trainable:
				err = m.LogProbGrad(seqs, 1,
					func(l, e [][]float32) (_, _ [][]float32, err error) { return l, e, nil })
			default:
				_, _, err = m.LogProbs(seqs, 1)
			}
			must(t, err)
			inUse, peak := be.Memory()
			took := peak - before
			if less := free - be.Available(); driver.Emulated() != nil && less != inUse-before {
				t.Errorf("%s %+v: %d bytes are counted, the device has %d less", precision,
					o.PlanOptions, inUse-before, less)
			}
			t.Logf("%s %+v 8 bits %v offload %v: plan %d bytes, took %d: %+.1f %%", precision,
				o.PlanOptions, o.AdamWConfig.Moments8, o.AdamWConfig.Offload, plan, took,
				100*(float64(plan)/float64(took)-1))
			if r := float64(plan) / float64(took); r < 0.97 || r > 1.03 {
				t.Errorf("%s %+v 8 bits %v offload %v: plan of %d bytes, the model took %d",
					precision, o.PlanOptions, o.AdamWConfig.Moments8, o.AdamWConfig.Offload, plan,
					took)
			}
			must(t, m.Close())
		}
	}
}
